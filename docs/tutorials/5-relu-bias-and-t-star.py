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
# # 5. ReLU, bias, and the linearization time
#
# You will learn
#
# - how to find the time at which a ReLU network is most linear, in both conventions;
# - which units come on for all samples, told from the weights at t = 0;
# - how good a closed form is from that time on.
#
# It takes about 15 minutes to read, and about a minute to run.
#
# A ReLU network is a gated network whose gates its own weights decide: a unit is on for a sample
# where its preactivation $z = w \cdot x + c\, b$ is positive. If for some time every unit is on for
# all samples or for none, the network *is* a linear one, as narrow as it has units on. The
# [lead paper](../references.md)'s claim is that biases bring this about, early in training. This
# tutorial follows one network there, to the **linearization time** $t^*$, and on.

# %%
import jax

jax.config.update("jax_enable_x64", True)

import warnings

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## Three networks from one start
#
# The semantic tree again ([tutorial 2](2-hierarchy-and-race.py)), with 32 hidden units: a ReLU
# network with bias, the linear network of the same weights, and the ReLU network with bias strength
# $c = 0$, which is no bias. A ReLU network's flow with few samples is walked exactly, kink by kink
# ([tutorial 6](6-exact-flow-through-kinks.py)), and logs every gate.

# %%
task = fl.tasks.hierarchy(levels=3)
t1 = 60.0
ts = t1 * jnp.linspace(0, 1, 201) ** 2
start = fl.ReLUNetwork.init(task, hidden=32, variance=2e-4, key=jax.random.key(5))
initial = float(fl.measures.loss(start, task))
events = tuple(fl.LossBelow(share * initial, name=f"{share:.0%}") for share in (0.9, 0.5))
networks = {
    "ReLU": start,
    "linear": start.linear(),
    "ReLU, no bias": fl.ReLUNetwork(start.weights, start.biases, bias_strength=0.0),
}
flows = {
    name: fl.gradient_flow(network, task, t1, ts=ts, events=events)
    for name, network in networks.items()
}
for name, flow in flows.items():
    times = [float(flow.events.first(event.name)) for event in events]
    print(
        f"{name:<14} loss at 90 and 50 per cent of its start at t = {times[0]:.4f}, {times[1]:.4f}"
    )

# %% tags=["hide-input"]
with fl.plot.style():
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    fl.plot.losses(flows, axes[0])
    norms = {name: flows[name].along(fl.measures.norms) for name in ("ReLU", "linear")}
    for name, found in norms.items():
        look = fl.plot.look("relu" if name == "ReLU" else "linear")
        axes[1].plot(ts, found.biases[0], **look, label=rf"$\|b\|$, {name}")
        axes[1].plot(ts, found.weights[0], **(look | {"color": "0.5"}), label=rf"$\|W_1\|$, {name}")
    axes[1].set(xlabel=r"flow time $t$ (units of $\tau$)", ylabel="norm", title="biases move first")
    axes[0].set_title("losses")
    axes[1].legend(frameon=False, fontsize="small")
    plt.show()

# %% [markdown]
# The biased ReLU network learns in the same stages as the linear one, a little later. Its biases
# move first, and on all samples alike: the strongest mode of the inputs $[c; x]$ is nearly the bias
# itself. Without a bias the first stage is missing, and the network is no longer in step with *its*
# linear counterpart. On XOR with coordinates $\pm 1$ it parts from it completely. On this tree the
# first modes come later than in the linear network and the last ones sooner. With bias all
# are late by the same factor, 1.13 (`examples/paper/results/m_fig2.json`). The loss, in which late
# and early modes add up, hides most of that.
#
# ## Always on, always off, gating
#
# Of each unit we ask on how many samples it is on. `flow.linearization()` counts at every logged
# change of a gate, not at saved times, and finds the first time at which the largest fraction of
# units is on for all samples, $t^*$. There are two, and the next tutorial says why: a (unit,
# sample) pair can *slide* along its kink $z = 0$ for a while. The **open** convention counts it as
# off, the **closed** one as on.

# %%
line = flows["ReLU"].linearization()
print(line)
first, expected = line.activity(0.0), 1 / (task.samples + 1)
print(
    f"at t = 0: always on {first.always_on:.3f}, off {first.off:.3f}; "
    f"expected for c = 1, both: 1/(P + 1) = {expected:.3f} ± "
    f"{np.sqrt(expected * (1 - expected) / 32):.3f}"
)

# %% tags=["hide-input"]
with fl.plot.style():
    figure, ax = plt.subplots(figsize=(7, 3.6))
    fl.plot.activity(flows["ReLU"], ax)
    ax.set_xlim(0, 40)
    plt.show()

# %% [markdown]
# How general is that? Other seeds cost little now, since the program is compiled. If the maximum
# still stands when a run ends, $t^*$ may move in a longer run. A warning says so; here we silence
# it and mark such seeds in the table.

# %%
print(f"{'seed':>4}{'t* open':>10}{'always on':>11}{'t* closed':>11}{'always on':>11}")
for seed in range(6):
    network = fl.ReLUNetwork.init(task, hidden=32, variance=2e-4, key=jax.random.key(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        found = fl.gradient_flow(network, task, t1, ts=ts, events=events).linearization()
    stands = " (stands at the end)" if found.closed.time + found.closed.lasts >= t1 else ""
    print(
        f"{seed:>4}{found.open.time:>10.4f}{found.open.fraction:>11.3f}"
        f"{found.closed.time:>11.4f}{found.closed.fraction:>11.3f}{stands}"
    )

# %% [markdown]
# **A claim about $t^*$ needs the convention said.** Over 100 seeds with 64 units
# (`examples/paper/results/m_fig3.json`):
#
# | sliding pairs count as | largest always-on fraction | seeds with an early majority |
# | --- | --- | --- |
# | off (open) | 0.477 ± 0.012 | 30 |
# | on (closed) | 0.781 ± 0.011 | 99 |
#
# Intervals are of 95 per cent; early is before the second singular value is half learned. Descent
# at the paper's rate, whose count flickers between the two, has such a majority in 19 of 20 seeds.
#
# ## Which units come on?
#
# While the outputs are small, units do not see each other. With input weights
# $\tilde w_j = [b_j, w_j]$, output weights $a_j$ and the samples on which it is active, a unit
# obeys a linear law,
#
# $$\tau \frac{d}{dt} \begin{bmatrix} \tilde w_j \\ a_j \end{bmatrix} =
#   \begin{bmatrix} 0 & M_j \\ M_j^T & 0 \end{bmatrix}
#   \begin{bmatrix} \tilde w_j \\ a_j \end{bmatrix}, \qquad
#   M_j = \frac1P \sum_{i \text{ active}} \tilde x_i y_i^T,$$
#
# as long as its gates hold. So it grows along the top singular pair $(u, v)$ of $M_j$: into the
# half-space in which $u$ points where $u \cdot \tilde w_j + v \cdot a_j > 0$ at the start, and out
# of it where that is negative. (The paper's Eq. 11 leaves out $a_j$ at the start; see
# [the errata](../explanation/errata.md). `fl.theory.early_phase` follows the
# gates' changes too.)


# %%
def pushes(network):
    """How strongly each unit grows into its half-space: below 0 out of it, 0 if it is dead."""
    inputs = np.concatenate([np.ones((task.samples, 1)), task.x], axis=1)
    active = np.asarray(network.gates(task.x)[0]) > 0  # (samples, units)
    found = np.zeros(active.shape[1])
    for j in np.flatnonzero(active.any(axis=0)):
        mine = inputs[active[:, j]]
        u, _, vt = np.linalg.svd(mine.T @ np.asarray(task.y)[active[:, j]] / task.samples)
        inward = np.sign((mine @ u[:, 0]).sum())
        w, a = np.append(network.biases[0][j], network.weights[0][j]), network.weights[1][:, j]
        found[j] = inward * (u[:, 0] @ w + vt[0] @ a)
    return found


def fates(flow, convention):
    """Which units are on for all samples, off for all, or neither, at a convention's t*."""
    sides = np.asarray(flow.events.sides(getattr(flow.linearization(), convention).time))
    on = sides >= (1 if convention == "open" else 0)  # 1 on, 0 sliding, -1 off
    return {
        "on": on.all(axis=0),
        "off": ~on.any(axis=0),
        "gating": on.any(axis=0) & ~on.all(axis=0),
    }


growth = pushes(start)
for convention in ("open", "closed"):
    print(f"{'at the ' + convention + ' t*':<18}{'grows in':>10}{'turned out':>12}{'dead':>6}")
    for name, which in fates(flows["ReLU"], convention).items():
        count = [np.sum(growth[which] > 0), np.sum(growth[which] < 0), np.sum(growth[which] == 0)]
        print(f"{name:<18}{count[0]:>10}{count[1]:>12}{count[2]:>6}")

# %%
on_later = {"open": 0, "closed": 0}
turned_out = 0
for seed in (0, 1, 2, 3, 4, 6, 7, 8):
    network = fl.ReLUNetwork.init(task, hidden=32, variance=2e-4, key=jax.random.key(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        flow = fl.gradient_flow(network, task, t1, ts=ts, events=events)
        out = pushes(network) < 0
        turned_out += np.sum(out)
        for convention in on_later:
            on_later[convention] += np.sum(out & fates(flow, convention)["on"])
print(f"eight other seeds: of {turned_out} units that are turned out, on at the open t*:",
      f"{on_later['open']}, at the closed t*: {on_later['closed']}")  # fmt: skip

# %% [markdown]
# At the open $t^*$ the sign at $t = 0$ tells nearly everything: the units that are on are those
# that grew in, and hardly one that was turned out is among them. The closed $t^*$ is much later. By
# then a unit that was turned out may have come on for other samples, where another $M_j$ holds, and
# slide on the rest.
#
# ## After t\*: a linear network in closed form
#
# From $t^*$ on the always-on units are a linear network, as long as they stay on, and for that
# there is a closed form. `fl.theory.after_linearization` makes it from the network at
# $t^*$ and the units that are on there, read from the log. We run the same flow again, saved from
# $t^*$ on.

# %%
after = {}
for convention, level in (("open", 1), ("closed", 0)):
    t_star = float(getattr(line, convention).time)
    times = t_star + (t1 - t_star) * jnp.linspace(0, 1, len(ts)) ** 2
    flow = fl.gradient_flow(start, task, t1, ts=times, events=events)
    at_t_star = jax.tree.map(lambda leaf: leaf[0], flow.networks)
    on = jnp.all(flow.events.sides(t_star) >= level, axis=0)
    model = fl.theory.after_linearization(at_t_star, task, always_on=on)
    closed = model.loss(times - t_star)
    after[convention] = times, closed
    off = jnp.max(jnp.abs(closed - flow.losses)) / flow.losses[0]
    print(
        f"{convention}: from t* = {t_star:.3f} on, {int(on.sum())} units: the losses differ by "
        f"at most {100 * off:.1f} per cent of the loss at t*"
    )

# %% tags=["hide-input"]
whole = fl.theory.solve(start.linear(), task)
with fl.plot.style():
    figure, ax = plt.subplots(figsize=(6, 3.6))
    fl.plot.losses({"ReLU": flows["ReLU"]}, ax)
    ax.plot(ts, whole.loss(ts), color="0.6", linestyle="--", label="linear network from t = 0")
    for (convention, (times, closed)), colour in zip(
        after.items(), ("black", fl.plot.COLOURS["gated"]), strict=True
    ):
        ax.plot(
            times,
            closed,
            color=colour,
            linestyle=":",
            label=f"closed form, from the {convention} $t^*$",
        )
        ax.plot(times[0], closed[0], "o", color=colour, markerfacecolor="white", zorder=5)
    ax.set_xlim(0, 40)
    ax.legend(frameon=False)
    plt.show()

# %% [markdown]
# Over 20 seeds the difference from the open $t^*$ on is 1.3 ± 0.3 per cent of the loss at $t = 0$.
# The closed form of the whole linear network from $t = 0$ is off by 7.3 ± 0.5 per cent
# (`examples/paper/results/m_fig4.json`).
#
# The paper explains the delay by dead units: its Eq. 14 (`fl.theory.gating_delay`) with the share
# of live units. **That is a lower bound.** For the bias mode it predicts 29 ± 3 steps. Measured are
# 179 ± 15, since units that are on for some samples only slow the start down as well
# (`examples/paper/results/m_eq13_14.json`).
#
# ## Exercises
#
# The answers are folded below.
#
# 1. Bias strength: `bias_strength` in `(0.1, 0.3, 1, 3)`. Where is the always-on fraction highest,
#    open and closed? ([Sweeps](../how-to/sweeps.md) run them in one call.)
# 2. `flow.linearization(quantile=0.125)` counts a unit as linear when it is on for all samples but
#    one. How does the fraction change, and what would $t^*$ be on real images without a quantile?
# 3. Is $t^*$ causal? Compare `flow.linearization()` of runs with `t1` in `(1, 2, 5, 60)`.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. Where the bias is weak few units come on. Here it is highest at c = 1, closed as high at 0.3.
print(f"{'c':>5}{'always on, open':>18}{'closed':>9}")
for c in (0.1, 0.3, 1.0, 3.0):
    biased = fl.ReLUNetwork(start.weights, start.biases, bias_strength=c)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        found = fl.gradient_flow(biased, task, t1, ts=ts, events=events).linearization()
    print(f"{c:>5}{found.open.fraction:>18.3f}{found.closed.fraction:>9.3f}")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. It can only rise, since each unit that is on for all is on for all but one. Of thousands of
# images some lie beyond every unit's kink: without a quantile t* is that of a few odd images.
for q in (0.0, 0.125):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        found = flows["ReLU"].linearization(quantile=q)
    print(
        f"quantile {q}: open {found.open.fraction:.3f} at t* = {found.open.time:.3f}, "
        f"closed {found.closed.fraction:.3f} at {found.closed.time:.3f}"
    )

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. No. It is where a maximum over the whole run is first reached, so a run that ends earlier has
# another one, until the maximum has passed. A warning says where it stands at the end.
for end in (1.0, 2.0, 5.0, 60.0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        found = fl.gradient_flow(start, task, end, ts=end * ts / t1, events=events).linearization()
    print(f"t1 = {end:<4g} t* open {found.open.time:.4f}, closed {found.closed.time:.4f}")

# %% [markdown]
# Next: [exact flow through kinks](6-exact-flow-through-kinks.py). Source: the
# [lead paper](../references.md), Secs. 5 and 6; the measured state of each of its claims is in
# [the verdicts](../verdicts.md).
