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
# # 3. The bias to low rank
#
# You will learn
#
# - how to measure the rank of a matrix that has full rank to the last digit;
# - why depth and small starts lead past the best maps of rank 1, 2 and 3;
# - what that does for generalisation, and what it does not.
#
# It takes about 10 minutes to read, and about a minute to run.
#
# If modes are learned one after the other, the network's end-to-end matrix has rank about 1, then
# about 2, and so on. On its way to a solution of rank $K$ it visits the best maps of every lower
# rank. This is called the low-rank bias, or simplicity bias, of deep linear networks. The tutorial
# shows how depth and small starts bring it about, and where it ends: it is a property of the way,
# not of the end.

# %%
import jax

jax.config.update("jax_enable_x64", True)

import functools
import itertools

import diffrax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## Measuring rank
#
# A matrix is hardly ever of low rank to the last digit. The *effective rank* counts singular values
# by their entropy, with $\bar s_i = s_i / \sum_j s_j$,
#
# $$\rho(A) = \exp\Big(-\sum_i \bar s_i \log \bar s_i\Big) \in [1, \operatorname{rank} A],$$
#
# the number of equal singular values with that entropy. (The [lead paper](../references.md)'s Eq. 1
# has the sign the other way round, which makes it negative: see
# [the errata](../explanation/errata.md).)
#
# ## Plateaus of rank 1, 2, 3
#
# The teacher has four singular values on white inputs. A balanced mode of a network with $L$ layers
# obeys $\tau \dot a = L\, a^{2 - 2/L} (s - d a)$: the deeper, the slower a small mode and the more
# sudden its rise. We start networks of one to three layers from random weights whose *products*
# have the same norm, since "the same variance" would mean another thing for each depth.

# %%
spectrum = (4.0, 2.0, 1.0, 0.5)
task = fl.tasks.teacher(samples=16, spectrum=spectrum, inputs=8, outputs=8, whiten=True)
modes = fl.theory.modes(task)
u, s, v = (np.asarray(a)[..., :4] for a in (modes.u, modes.s, modes.v))
best = jnp.stack([(u[:, :k] * s[:k]) @ v[:, :k].T for k in (1, 2, 3, 4)])  # maps of rank k


def random_start(task, depth, norm, hidden=12, seed=0):
    """Normal layers, scaled alike until the product has the norm."""
    rng = np.random.default_rng(seed)
    sizes = [task.inputs, *[hidden] * (depth - 1), task.outputs]
    weights = [rng.normal(size=(m, n)) / np.sqrt(n) for n, m in itertools.pairwise(sizes)]
    now = np.linalg.norm(functools.reduce(np.matmul, weights[::-1]))
    return fl.LinearNetwork([w * (norm / now) ** (1 / depth) for w in weights])


def rank(network, task):
    """Effective rank of the end-to-end matrix."""
    return fl.measures.effective_rank(network.affine()[0])


def away(network, task):
    """Relative distance from the teacher's best maps of rank 1, 2, 3 and 4."""
    off = jnp.linalg.norm(network.affine()[0] - best, axis=(1, 2))
    return off / jnp.linalg.norm(best, axis=(1, 2))


# %% [markdown]
# `observe` records functions of the network at the saved times, instead of the networks themselves.
# Five digits are enough here, `rtol=1e-5`. The solver is given, so that it is kept to the end. Left
# to itself the run would measure that it is stiff after the last mode and go on with another
# ([stiff flows](../explanation/stiffness.md)). For so few steps that costs more compiling
# than it saves.

# %%
t1 = 400.0
how = {"rtol": 1e-5, "solver": diffrax.Tsit5()}
ts = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-2, t1, 240)])
scale = float(np.linalg.norm(s))


def run(depth, norm):
    """The flow of one depth from one norm, over that of the teacher."""
    network = random_start(task, depth, norm * scale)
    half = fl.ModeHits(modes, share=0.5, direction="up")
    watched = {"rank": rank, "away": away}
    return fl.gradient_flow(network, task, t1, ts=ts, observe=watched, events=half, **how)


flows = {depth: run(depth, 1e-3) for depth in (1, 2, 3)}
print(f"{'layers':>6}   half-times of the four modes")
for depth, flow in flows.items():
    times = np.asarray(flow.events.first("mode"))[:4]
    print(f"{depth:>6}   " + "".join(f"{t:>10.3f}" for t in times))

# %% [markdown]
# How near does each come to the best maps of rank 1, 2 and 3 before it goes on to the teacher?

# %%
print(f"{'layers':>6}   nearest to rank 1, 2, 3      effective rank there")
for depth, flow in flows.items():
    off = np.asarray(flow.observed["away"])[:, :3]
    there = np.asarray(flow.observed["rank"])[off.argmin(axis=0)]
    print(
        f"{depth:>6}   "
        + "".join(f"{x:>8.4f}" for x in off.min(axis=0))
        + "     "
        + "".join(f"{x:>8.3f}" for x in there)
    )
print("best maps:" + " " * 27 + "".join(f"{fl.measures.effective_rank(m):>8.3f}" for m in best[:3]))

# %% tags=["hide-input"]
with fl.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.4))
    for depth, flow in flows.items():
        name = f"{depth} layer{'s' * (depth > 1)}"
        axes[0].semilogx(ts[1:], flow.losses[1:], label=name)
        share = flow.losses / flow.losses[0]
        axes[1].plot(share, flow.observed["rank"], label=name)
    for k in range(4):
        axes[2].loglog(ts[1:], flows[3].observed["away"][1:, k], label=f"rank {k + 1}")
    axes[0].set(xlabel=r"flow time $t$ (units of $\tau$)", ylabel="loss $L$", title="plateaus")
    axes[1].set(
        xlabel="share of the initial loss",
        ylabel="effective rank",
        xscale="log",
        xlim=(1, 1e-4),
        title="rank along the way",
    )
    axes[2].set(
        xlabel=r"flow time $t$ (units of $\tau$)",
        ylabel="relative distance",
        xlim=(0.3, t1),
        title="three layers, distance from best map",
    )
    axes[0].legend(frameon=False)
    axes[2].legend(frameon=False, loc="lower left")
    plt.show()

# %% [markdown]
# One layer never comes near to a map of low rank: its modes rise together, and the effective rank
# is that of the teacher all along. From two layers on the loss has steps, and the rank rises by one
# at each. Three layers come nearer to the maps than two, and their steps are sharper.
#
# ## Small starts
#
# The plateaus are a matter of the start's size as much as of depth.

# %%
print(f"{'norm':>7}   two layers, nearest to rank 1, 2, 3")
for norm in (0.3, 1e-2, 1e-4):
    off = np.asarray(run(2, norm).observed["away"])[:, :3]
    print(f"{norm:>7}   " + "".join(f"{x:>8.4f}" for x in off.min(axis=0)))

# %% [markdown]
# **The smaller the start and the deeper the network, the nearer it passes.** The largest of these
# three distances, median over ten seeds (`examples/paper/results/c_3_low_rank.json`):
#
# | layers | norm 0.3 | norm 1e-4 |
# | --- | --- | --- |
# | 1 | 0.5 | 0.5 |
# | 2 | 0.43 | 0.042 |
# | 3 | 0.33 | 0.00067 |
#
# ## What it does for generalisation, and what not
#
# Now fewer samples than inputs, a teacher of rank 2, and noise on the targets. The low-rank maps on
# the way have less of the noise than the end, where the network interpolates. A measure on other
# data than the run's is bound to them by `fl.measures.OnTask`; with standard normal
# test inputs the test error is a distance of matrices, so we write it down.

# %%
rng = np.random.default_rng(0)
n, samples, noise = 16, 8, 0.5
left, right = (np.linalg.qr(rng.normal(size=(n, 2)))[0] for _ in range(2))
teacher = (left * [3.0, 2.0]) @ right.T
x = rng.normal(size=(samples, n))
noisy = fl.Task(x, x @ teacher.T + noise * rng.normal(size=(samples, n)), name="noisy")


def test_error(network, task):
    """Half the mean squared error on new, standard normal inputs."""
    return 0.5 * jnp.sum((network.affine()[0] - teacher) ** 2)


runs = {}
for depth in (1, 2, 3):
    start = random_start(noisy, depth, 1e-3 * np.linalg.norm(teacher), hidden=n)
    watched = {"rank": rank, "test": test_error}
    runs[depth] = fl.gradient_flow(start, noisy, t1, ts=ts, observe=watched, **how)
    error = np.asarray(runs[depth].observed["test"])
    k = int(error.argmin())
    print(
        f"{depth} layers: least test error {error[k]:.3f} at t = {ts[k]:.1f}, effective rank "
        f"{runs[depth].observed['rank'][k]:.2f}; at the end {error[-1]:.3f}, "
        f"{runs[depth].observed['rank'][-1]:.2f}"
    )

# %% tags=["hide-input"]
with fl.plot.style():
    figure, ax = plt.subplots(figsize=(5, 3.2))
    for depth, flow in runs.items():
        ax.semilogx(ts[1:], flow.observed["test"][1:], label=f"{depth} layer{'s' * (depth > 1)}")
    ax.set(xlabel=r"flow time $t$ (units of $\tau$)", ylabel="test error")
    ax.legend(frameon=False)
    plt.show()

# %% [markdown]
# Stopped early, deep networks find a better map than a single layer. Left alone, all depths end at
# about the same one: started small, each interpolates with the least norm. Nothing of the bias
# is left, because least squares and a small start determine the map here. The bias persists at
# convergence where fewer numbers are measured than are unknown, such as 84 entries of a 12 x 12
# matrix of rank 2. Of the studies (ten seeds, 24 inputs; [verdicts](../verdicts.md)):
#
# | layers | least test error | last test error | effective rank, 84 entries measured |
# | --- | --- | --- | --- |
# | 1 | 4.3 | 7.51 to 7.58 | 6.87 |
# | 2 | 3.58 | as above | 2.48 |
# | 3 | 3.55 | as above | 2.01 |
# | 4 | 3.55 | as above | 2.04 |
#
# ## Exercises
#
# The answers are folded below.
#
# 1. Four equal singular values: `spectrum=(1, 1, 1, 1)`. Are there plateaus? Why not?
# 2. Use `fl.LossBelow` with `terminate=True` to stop each depth at the training loss
#    of its least test error, as one would do with held-out data.
# 3. `weight_decay=` in `fl.gradient_flow` changes the end as well. Which effective
#    rank does the noisy task end at with `weight_decay=0.1` and two layers, and with one?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. No. Equal modes have one rate, so they rise together, and the rank is above three all along.
# What they differ by is what the random start gave to each.
equal = fl.tasks.teacher(
    samples=16, spectrum=(1.0, 1.0, 1.0, 1.0), inputs=8, outputs=8, whiten=True
)
for name, its in (("4, 2, 1, 0.5", task), ("1, 1, 1, 1", equal)):
    start = random_start(its, 2, 1e-3 * float(jnp.linalg.norm(fl.theory.modes(its).s)))
    found = fl.gradient_flow(start, its, t1, ts=ts, observe={"rank": rank}, **how)
    share = np.asarray(found.losses) / float(found.losses[0])
    ranks = np.asarray(found.observed["rank"])
    shown = [ranks[np.argmax(share < level)] for level in (0.9, 0.5, 0.1, 0.01)]
    print(f"spectrum {name}: rank where the loss is at 90, 50, 10 and 1 per cent of its start: "
          + ", ".join(f"{r:.2f}" for r in shown))  # fmt: skip

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. It stops where the test error is least, since the training loss tells the time.
for depth, whole in runs.items():
    k = int(np.asarray(whole.observed["test"]).argmin())
    start = random_start(noisy, depth, 1e-3 * np.linalg.norm(teacher), hidden=n)
    stop = fl.LossBelow(whole.losses[k], terminate=True)
    stopped = fl.gradient_flow(start, noisy, t1, events=stop, **how)
    print(
        f"{depth} layers: stopped at t = {stopped.ts[-1]:.2f}, test error "
        f"{test_error(stopped.final, noisy):.3f}; at the end {whole.observed['test'][-1]:.3f}"
    )

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. In one layer weight decay makes the map smaller and hardly changes its rank. In two layers it
# is a penalty on the sum of the singular values: small ones lose more, and the rank falls a little.
for depth in (1, 2):
    start = random_start(noisy, depth, 1e-3 * np.linalg.norm(teacher), hidden=n)
    for decay in (0.0, 0.1):
        end = fl.gradient_flow(start, noisy, t1, weight_decay=decay, **how).final
        print(
            f"{depth} layers, weight decay {decay}: effective rank {rank(end, noisy):.2f}, "
            f"test error {test_error(end, noisy):.3f}"
        )

# %% [markdown]
# Next: [gated networks and the race](4-gated-networks-and-the-race.py). Source: Huh et al. (2023);
# for the deep mode, Saxe et al. (2014) and `fl.theory.Mode`.
