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
# # 7. Effective maps, and a ReLU run read as gated linear ones
#
# You will learn
#
# - what affine map a ReLU network is at a sample, and in the plane of inputs;
# - how to read a run as gated linear networks with switching times, and how to check that;
# - when one gating does for the rest of a run.
#
# It takes about 10 minutes to read, and one to two minutes to run.
#
# At a sample $x$ with its gates given, a ReLU network is an affine map. These **effective maps**
# say what the network does there, which gates and weights made it, and how it came about in
# training. Between two switches of a gate, the flow is that of a gated linear network ([tutorial
# 4](4-gated-networks-and-the-race.py)).

# %%
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## The map at a sample
#
# With $D_l = \operatorname{diag}(g_l(x))$ for the gates of hidden layer $l$,
#
# $$f(x) = W_{\text{eff}}(x)\, x + b_{\text{eff}}(x), \qquad
#   W_{\text{eff}} = W_L D_{L-1} W_{L-1} \cdots D_1 W_1,$$
#
# and the offset collects the biases on their way through the later layers. It is exact at every
# $x$, and off the kinks $W_{\text{eff}}$ is the Jacobian. (Ye's Eq. 4 puts a gate on the last
# layer too, as on every layer of that text; a network whose output is linear has none there: [the
# errata](../explanation/errata.md).) `fl.measures.effective_map` takes a task or any
# inputs.

# %%
task = fl.tasks.xor()
network = fl.ReLUNetwork.init(task, hidden=12, variance=1e-3, key=jax.random.key(2))
t1 = 40.0
flow = fl.gradient_flow(network, task, t1, dense=True)
print(flow)
maps = fl.measures.effective_map(flow.final, task)
for p in range(task.samples):
    off = maps.matrix[p] @ task.x[p] + maps.offset[p] - flow.final(task.x[p])
    slope = maps.matrix[p, 1] - maps.matrix[p, 0]
    print(
        f"x = {np.asarray(task.x[p]).astype(int)}: W_eff x + b_eff off by "
        f"{jnp.abs(off).max():.0e}; label's slope {slope[0]:+.3f}, {slope[1]:+.3f}"
    )

# %% [markdown]
# The label is the difference of the two outputs, "differ" minus "agree". In the plane of inputs
# each unit's kink is a line, the lines cut the plane into cells, and in a cell there is one map. We
# look at the network on its way and at the end; an arrow is the slope of the label there.

# %% tags=["hide-input"]
edge = jnp.linspace(-2, 2, 161)
points = jnp.stack(jnp.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
coarse = jnp.stack(jnp.meshgrid(edge[8::18], edge[8::18]), axis=-1).reshape(-1, 2)
shown = (3.0, 12.0, t1)
with fl.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.7), sharey=True)
    for ax, t in zip(axes, shown, strict=True):
        now = flow.network(t)
        label = (lambda y: y[:, 1] - y[:, 0])(now.outputs(points)).reshape(161, 161)
        picture = ax.pcolormesh(edge, edge, label, cmap="RdBu_r", vmin=-2, vmax=2, rasterized=True)
        z = now.preactivations(points)[0]
        for unit in range(z.shape[1]):
            ax.contour(
                edge, edge, z[:, unit].reshape(161, 161), [0.0], colors="0.3", linewidths=0.7
            )
        matrix = fl.measures.effective_map(now, coarse).matrix
        ax.quiver(*coarse.T, *(matrix[:, 1] - matrix[:, 0]).T, scale=30, width=0.006)
        for x, y in zip(task.x, task.y, strict=True):
            ax.plot(*x, "o" if y[0] else "s", color="white", markeredgecolor="black", markersize=7)
        cells = len(np.unique(np.asarray(z > 0), axis=0))
        ax.set(
            title=f"t = {t:g}: loss {fl.measures.loss(now, task):.2g}, {cells} cells",
            xlabel="$x_1$",
            aspect="equal",
        )
    axes[0].set_ylabel("$x_2$")
    figure.colorbar(picture, ax=axes, label="label (outputs' difference)", shrink=0.8)
    plt.show()

# %% [markdown]
# Many kinks run right through a sample (circles agree, squares differ): those pairs slide
# ([tutorial 6](6-exact-flow-through-kinks.py)). There $z = 0$, and the offset and slope of one unit
# depend on the side that one takes (rounding decides in the list above), while $f(x)$ does not.
#
# ## Reading the run
#
# `fl.rectified` reads an exact walk of a network with its switches: between them, a
# gated linear network, with sliding pairs at the fractions of Filippov's rule. Its **pathways** are
# the sets of units whose gates agree on all samples, as long as they do, and each carries a share
# of the fall of the loss.

# %%
reading = fl.rectified(flow, task)
print(reading)
print("switching times:", np.round(reading.times[:8], 3), "...")
for pathway in reading.pathways[:5]:
    print(pathway)
needed, number = reading.pathways_needed(0.99), len(reading.pathways)
print(f"99 per cent of the fall: {needed} of {number} pathways")
print(f"the first three carry {100 * reading.explained_share(3):.1f} per cent")

# %% [markdown]
# Is that more than a way of speaking? `replay` hands the switching times and the fractions to a
# gated linear flow that knows nothing of $\operatorname{sign} z$, and lets it run from the same
# weights.

# %%
end = reading.replay()
print(f"relative distance of the end: {fl.distance(end, flow.final, relative=True):.1e}")
graph = reading.graph(reading.intervals - 1)
off = jnp.abs(graph.outputs(task.x) - reading.network(reading.times[-2]).outputs(task.x)).max()
print(
    f"the gated graph of the last interval: {len(graph.pathways)} pathways, "
    f"outputs off by {off:.0e}"
)

# %% tags=["hide-input"]
times = np.linspace(0, t1, 81)
with fl.plot.style():
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 3.8), width_ratios=(3, 2))
    fl.plot.lifetimes(reading, axes[0], most=12)
    fl.plot.overlap(reading, axes[1], times=times)
    plt.show()

# %% [markdown]
# Left: one bar per pathway from its first moment to its last, and beside it the samples on which it
# is on, slides or is off. Right: the share of (unit, sample) pairs that have one side at both of
# two times; where a block is one, a single gated linear network does for all of it. So a ReLU
# network learns as a gated deep linear network *if* the gates switch, and slide, as the ReLU run
# tells; the replay agrees to 2e-9 in 176 runs of the study. "A single constant gating does" is true
# of the later part only: on XOR the gates can be frozen with 37.5 per cent of the fall still ahead,
# on the tree with 43.8 (`examples/paper/results/c_6_rectified.json`).
#
# ## What is known of effective maps in larger networks
#
# On MNIST, with three hidden layers and no biases, the maps of one class come together relative to
# their norm. The distance within classes over that between them falls from 0.948 to 0.749 in
# training (eight seeds, last hidden layer). But with shuffled labels it falls as well, to 0.854 ±
# 0.067; and the activations, at 0.48, tell classes apart better than the maps do. Most of it is in
# which gates are open: gates of the end with weights of the start give 0.797, the reverse 0.939
# (`examples/paper/results/l_effective_weights.json`).
#
# Other modules have effective maps by their Jacobian: a residual ReLU network's is exact, of a
# network with GELU or norms it is the tangent ([your own network](../how-to/own-network.md)).
#
# ## Exercises
#
# The answers are folded below.
#
# 1. `fl.tasks.offset_xor(1.0)`: a third coordinate makes the classes separable. How many pathways
#    carry 99 per cent now, and how much do the four samples' maps differ?
# 2. Compare `reading.gates(t)` with `flow.network(t).gates(task.x)[0]` at a time at which pairs
#    slide.
# 3. Two hidden layers: `reading.graph(k)` works where no pair slides. On how many intervals is that
#    so (`reading.sliding`)?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. Fewer, and the maps are nearer to each other, since one linear map would do.
wide = fl.tasks.offset_xor(1.0)
start = fl.ReLUNetwork.init(wide, hidden=12, variance=1e-3, key=jax.random.key(2))
separable = fl.gradient_flow(start, wide, t1, dense=True)
its = fl.rectified(separable, wide)
for name, found, end, its_task in (
    ("XOR", reading, flow.final, task),
    ("offset 1", its, separable.final, wide),
):
    maps = fl.measures.effective_map(end, its_task).matrix
    spread = jnp.linalg.norm(maps - maps.mean(axis=0)) / jnp.linalg.norm(maps)
    print(
        f"{name}: {found.pathways_needed(0.99)} of {len(found.pathways)} pathways carry 99 per "
        f"cent; the samples' maps are {spread:.2f} apart, relative to their norm"
    )

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. They are the same but for pairs that slide: there the network's own gates are 0 or 1, as
# rounding has left z beside zero, and the reading has the fractions of Filippov's rule.
k = int(np.argmax(reading.sliding))
t = 0.5 * (reading.times[k] + reading.times[k + 1])
fractions, seen = reading.gates(float(t)), flow.network(float(t)).gates(task.x)[0]
apart = np.abs(np.asarray(fractions) - np.asarray(seen)) > 1e-9
print(f"at t = {t:.3f} the two differ in {apart.sum()} of {apart.size} pairs")
print("fractions there:", np.round(np.asarray(fractions)[apart], 3))

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. On hardly any: some pair slides nearly all of the time.
deep = fl.ReLUNetwork.init(task, hidden=(8, 8), variance=1e-1, key=jax.random.key(2))
walk = fl.gradient_flow(deep, task, t1, dense=True)
its = fl.rectified(walk, task)
print(
    f"{np.sum(np.asarray(its.sliding) == 0)} of {its.intervals} intervals have no pair that slides"
)

# %% [markdown]
# Next: [from flow time to SGD steps](8-from-flow-time-to-sgd-steps.py). Sources: Ye (2025); Jarvis
# et al. (2024). More: [the rectified reading](../explanation/rectified-reading.md).
