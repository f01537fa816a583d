# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Gradient flow and the change of variables
#
# You will learn
#
# - how gradient flow is the limit of descent, and what a unit of its time is in steps;
# - the change of variables that takes a deep linear network apart into logistic equations;
# - which closed form holds for a network, and how flowlin tells that it does.
#
# It takes about 10 minutes to read, and about a minute to run.
#
# Gradient descent with a small rate $\epsilon$ takes steps
# $w_{k+1} = w_k - \epsilon \nabla L(w_k)$. In the limit of small rates the steps become a curve,
# the **gradient flow**
#
# $$\tau\, \dot w = -\nabla L(w),$$
#
# on which $k$ steps end near $t = k \epsilon \tau$. Theory lives on this curve, because there the
# dynamics of a deep linear network fall apart into scalar equations with solutions on paper. This
# tutorial derives them and lays them beside the flow as flowlin solves it and beside descent.
#
# You need to know ordinary differential equations and the singular value decomposition. The first
# lines switch JAX to double precision, which all tutorials do.

# %%
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## A task and its singular values
#
# Rows of `task.x` (P, N_in) are samples, and the loss is half the mean squared error,
# $L = \frac{1}{2P} \sum_p \|y_p - \hat y_p\|^2$. A linear network sees of the task two matrices
# only,
#
# $$\Sigma_{yx} = \frac1P Y^T X = U S V^T, \qquad \Sigma_x = \frac1P X^T X .$$
#
# We take a linear teacher with the singular values 3, 1.5 and 0.75, and inputs that are white,
# $\Sigma_x = 1$. A triple $(u_\alpha, s_\alpha, v_\alpha)$ is called a **mode**, and
# $d_\alpha = v_\alpha^T \Sigma_x v_\alpha$ is the variance of its input;
# `fl.theory.modes` finds both.

# %%
task = fl.tasks.teacher(samples=24, spectrum=(3.0, 1.5, 0.75), whiten=True)
modes = fl.theory.modes(task)
print(task)
print("s =", np.round(modes.s, 4), " d =", np.round(modes.d, 4))

# %% [markdown]
# ## The change of variables
#
# For two layers, $\hat y = W_2 W_1 x$, the flow is
#
# $$\tau \dot W_1 = W_2^T (\Sigma_{yx} - W_2 W_1 \Sigma_x), \qquad
#   \tau \dot W_2 = (\Sigma_{yx} - W_2 W_1 \Sigma_x) W_1^T .$$
#
# (Papers print these rules without the transposes now and then; [the
# errata](../explanation/errata.md) have a measured example.) Write $W_1 = R\, \bar W_1 V^T$ and
# $W_2 = U \bar W_2 R^T$ with any orthonormal $R$. If $V$ diagonalises $\Sigma_x$, then $U$, $V$ and
# $R$ cancel, and diagonal $\bar W_1 = \mathrm{diag}(b)$, $\bar W_2 = \mathrm{diag}(c)$ stay
# diagonal:
#
# $$\tau \dot b = c\,(s - c b\, d), \qquad \tau \dot c = b\,(s - c b\, d).$$
#
# The difference $b^2 - c^2$ is conserved. If it is zero at the start the network is **balanced**,
# $b = c$, and the mode's strength $a = c b$ obeys a logistic equation:
#
# $$\tau \dot a = 2 a (s - d a), \qquad
#   a(t) = \frac{s/d}{1 - \big(1 - \frac{s}{d a_0}\big) e^{-2 s t / \tau}} .$$
#
# So a mode grows at the rate $2s/\tau$ and ends at $s/d$. One layer alone, $\hat y = W x$, has
# $\tau \dot a = s - d a$ instead: all its modes approach their ends at one rate, $d/\tau$.
#
# ## The flow, measured
#
# A balanced start on the modes is a matter of giving its end-to-end matrix. The events
# `fl.ModeHits` record when each mode passes half of its full strength $s/d$; they are
# located on the solution, not read off the nearest saved time.

# %%
a0, t1 = 0.01, 6.0
product = a0 * modes.u @ modes.v.T
deep = fl.LinearNetwork.balanced(task, hidden=8, bias=False, product=product, key=jax.random.key(0))
shallow = fl.LinearNetwork((product,))
how = {
    "ts": jnp.linspace(0, t1, 121),
    "events": fl.ModeHits(modes, share=0.5),
}
flows = {
    "one layer": fl.gradient_flow(shallow, task, t1, **how),
    "two layers": fl.gradient_flow(deep, task, t1, **how),
}
print(flows["two layers"])

# %% [markdown]
# First the times. `fl.theory.hitting_time` is the logistic curve solved for $t$; for
# one layer the exponential is quickly solved by hand. (For any depth there is
# `fl.theory.Mode`.)

# %%
half = modes.full_strength / 2
closed = {
    "one layer": jnp.log((modes.s - modes.d * a0) / (modes.s - modes.d * half)) / modes.d,
    "two layers": fl.theory.hitting_time(half, modes.s, modes.d, a0),
}
print(f"{'':<12}{'mode':>5}{'s':>7}{'half-time':>12}{'closed form':>13}{'difference':>12}")
for name, flow in flows.items():
    for k, t in enumerate(flow.events.first("mode")):
        exact = closed[name][k]
        print(f"{name:<12}{k:>5}{modes.s[k]:>7.2f}{t:>12.6f}{exact:>13.6f}{abs(t - exact):>12.0e}")

# %% [markdown]
# Then the curves. With two layers the modes are learned one after the other, the strongest first;
# with one layer they all pass half of their strength at about $t = \log 2$, whatever their $s$.
# Depth makes the stages. (In a study over nine modes the half-time of two layers goes like
# $s^{-0.86}$, of one layer like $s^{0.00}$: `examples/paper/results/c_1_svd.json`.)

# %% tags=["hide-input"]
ts = flows["one layer"].ts[:, None]
full = modes.full_strength
curves = {
    "one layer": full + (a0 - full) * jnp.exp(-modes.d * ts),
    "two layers": fl.theory.mode_strength(ts, modes.s, modes.d, a0),
}
with fl.plot.style():
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for ax, (name, flow) in zip(axes, flows.items(), strict=True):
        fl.plot.modes(flow, modes, ax, rho=half, closed=curves[name])
        ax.set_title(name)
        ax.get_legend().remove()
    axes[1].set_ylabel("")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    plt.show()

# %% [markdown]
# ## Which solution holds, and how one knows
#
# `fl.theory.solve` looks at the network and the task, takes the strongest closed form
# that applies and says why. A *certificate* holds the numbers that it decided by
# ([reading certificates](../how-to/certificates.md)).

# %%
solution = fl.theory.solve(deep, task)
print(solution)
print(f"largest distance from the flow: {solution.error(flows['two layers']).max():.0e}")

# %% [markdown]
# What is conserved is the matrix $W_1 W_1^T - W_2^T W_2$. It is zero for this start and stays so,
# and of any other start it keeps its value ([conserved quantities](../explanation/conserved.md)).
# The solver knows nothing of it, so its drift is a check of the run.

# %%
drift = fl.measures.drift(fl.measures.along(flows["two layers"], fl.measures.conserved_matrix))
print(f"largest change of W1 W1^T - W2^T W2 along the run: {drift.max():.0e}")

# %% [markdown]
# Small random weights are neither balanced nor aligned. What is then left is an approximation, each
# mode as if the others were not there, and it is labelled as one. It gets better as the weights get
# smaller, because the balanced and aligned part of them grows and the rest decays.

# %%
for variance in (1e-2, 1e-4, 1e-6):
    start = fl.LinearNetwork.init(
        task, hidden=8, variance=variance, bias=False, key=jax.random.key(0)
    )
    found = fl.theory.solve(start, task)
    flow = fl.gradient_flow(start, task, 20.0, ts=jnp.linspace(0, 20, 121))
    error = float(found.error(flow).max())
    print(f"variance {variance:.0e}: {found.name}, exact: {found.exact}, error {error:.4f}")

# %% [markdown]
# ## Descent beside the flow
#
# `fl.gradient_descent` takes the steps, and `fl.compare` gives the
# distance in parameters, function and loss. The distance falls with the rate, to first order: this
# is what "the limit of small rates" means in numbers. [Tutorial
# 8](8-from-flow-time-to-sgd-steps.py) goes on from here.

# %%
smooth = fl.gradient_flow(deep, task, t1, dense=True)
for rate in (0.1, 0.01, 0.001):
    descent = fl.gradient_descent(deep, task, rate, t1=t1)
    distance = fl.compare(smooth, descent)
    print(
        f"rate {rate}: {round(t1 / rate)} steps, distance of the outputs up to "
        f"{distance.function.max():.1e}"
    )

# %% [markdown]
# ## Exercises
#
# The answers are folded below.
#
# 1. Give the teacher inputs that are not white (`whiten=False`). Print `modes.commutator` and what
#    `fl.theory.solve` says. Which of the steps of the derivation fails?
# 2. Three layers: `fl.LinearNetwork.balanced(task, hidden=(8, 8), ...)` and
#    `fl.theory.Mode(..., depth=3).strength(ts)`. Does depth sharpen the stages? Compare the times
#    from 10 to 90 per cent with the half-times.
# 3. Start two layers from `product = 0`. What happens, and why does it not with one layer?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. V diagonalises the correlations of inputs and outputs, but not those of the inputs among
# themselves. So Sigma_x does not cancel, b and c do not stay diagonal, and modes feed each other.
coloured = fl.tasks.teacher(samples=24, spectrum=(3.0, 1.5, 0.75), whiten=False)
its = fl.theory.modes(coloured)
uneven = a0 * its.u @ its.v.T
start = fl.LinearNetwork.balanced(
    coloured, hidden=8, bias=False, product=uneven, key=jax.random.key(0)
)
print(f"commutator {its.commutator:.2f}; of white inputs {modes.commutator:.0e}")
print(fl.theory.solve(start, coloured))

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. Yes. A deeper mode waits longer and then rises within a smaller share of its time.
for depth in (1, 2, 3, 4):
    mode = fl.theory.Mode(modes.s[0], modes.d[0], a0, depth=depth)
    low, high = (mode.hitting_time(share * full[0]) for share in (0.1, 0.9))
    print(
        f"{depth} layer{'s' * (depth > 1)}: mode 0 half learned at t = {mode.half_time:.3f}, "
        f"from 10 to 90 per cent in {(high - low) / mode.half_time:.2f} of that time"
    )
three = fl.LinearNetwork.balanced(
    task, hidden=(8, 8), bias=False, product=product, key=jax.random.key(0)
)
deeper = fl.gradient_flow(three, task, 40.0, events=fl.ModeHits(modes, share=0.5))
closed_3 = fl.theory.Mode(modes.s, modes.d, a0, depth=3).half_time
off = jnp.abs(deeper.events.first("mode")[:3] - closed_3[:3]).max()
print(f"three layers, flow and closed form: half-times at most {off:.0e} apart")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. Two layers stay where they are: each layer's velocity has the other as a factor, and the origin
# is a saddle. The velocity of one layer, s - d a, is s at the origin, so it just starts. (It starts
# next to the origin, since errors of a run are counted against the size of its weights.)
for name, network in {
    "one layer": fl.LinearNetwork((1e-12 * product,)),
    "two layers": fl.LinearNetwork([0.0 * layer for layer in deep.weights]),
}.items():
    flow = fl.gradient_flow(network, task, t1, ts=(0.0, t1))
    print(f"{name} from nothing: loss {flow.losses[0]:.3f} -> {flow.losses[-1]:.3g}")

# %% [markdown]
# Next: [hierarchy and the singular-value race](2-hierarchy-and-race.py). Source of the derivation:
# Saxe, McClelland and Ganguli (2014).
