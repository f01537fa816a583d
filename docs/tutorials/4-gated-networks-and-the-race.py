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
# # 4. Gated networks and the race
#
# You will learn
#
# - how gates make a linear network learn XOR, and what of the task it then sees;
# - how pathways race, and why those that share their edges win;
# - how large a head start beats sharing.
#
# It takes about 12 minutes to read, and one to two minutes to run.
#
# A linear network computes linear functions only. **Gates** lift that without giving up what made
# linear networks tractable. Units, or whole parts of the network, are switched on or off by a
# signal that depends on the sample but not on the weights. Given its gates the network is linear on
# every sample, and its flow is that of many linear networks which share weights. What a sample runs
# through from input to output is a **pathway**, and the pathways race.

# %%
import jax

jax.config.update("jax_enable_x64", True)

import itertools

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## XOR is two linear tasks
#
# On XOR a linear network learns the mean of the targets and no more. But where the first coordinate
# is positive, the answer is a linear function of the second, and where it is negative, of its
# opposite. A `fl.GatedGraph` is given by nodes, edges and gates; this one has two
# middles, open for either half of the samples.

# %%
xor = fl.tasks.xor()
positive = np.asarray(xor.x[:, 0] > 0, float)
gated = fl.GatedGraph.init(
    xor,
    nodes={"in": 2, "up": 4, "down": 4, "out": 2},
    edges=[("in", "up"), ("in", "down"), ("up", "out"), ("down", "out")],
    node_gates={"up": positive, "down": 1 - positive},
    variance=1e-3,
    key=jax.random.key(0),
)
statistics = gated.pathway_statistics(xor)
for pathway in gated.pathways:
    print(pathway)
    print("  Sigma_yx =", np.round(statistics.yx[pathway], 2).tolist())

# %% [markdown]
# That is all the flow sees of the task: with the gate $g_p$ of a pathway on a sample, every pathway
# has correlations of its own, $\Sigma_{yx}(p) = \langle g_p\, y x^T \rangle$ and
# $\Sigma_x(j, p) = \langle g_j\, x x^T g_p \rangle$, and
#
# $$\tau \dot W_e = \sum_{p \ni e} W_{\text{after } e}^T \Big[\Sigma_{yx}(p) - \sum_j W_j
#   \Sigma_x(j, p)\Big] W_{\text{before } e}^T .$$
#
# An edge that lies on several pathways is pulled by all of them.

# %%
t1 = 40.0
ts = jnp.linspace(0, t1, 161)
linear = fl.LinearNetwork.init(xor, hidden=8, variance=1e-3, key=jax.random.key(0))
learned = fl.LossBelow(0.05)
flows = {
    "linear, with bias": fl.gradient_flow(linear, xor, t1, ts=ts, rtol=1e-5),
    "gated by the first input": fl.gradient_flow(gated, xor, t1, ts=ts, rtol=1e-5, events=learned),
}
for name, flow in flows.items():
    print(f"{name}: loss {flow.losses[0]:.3f} -> {flow.losses[-1]:.1e}")
hit = flows["gated by the first input"].events.first("loss")
print(f"the gated network's loss is at 0.05 at t = {hit:.3f}")

# %% tags=["hide-input"]
with fl.plot.style():
    figure, ax = plt.subplots(figsize=(5, 3.2))
    fl.plot.losses(flows, ax)
    ax.plot(hit, 0.05, "o", color="black", markerfacecolor="white", zorder=4)
    plt.show()

# %% [markdown]
# The gates were given here, and they knew the task. With gates that know nothing of it, such as
# random half-spaces (`fl.GloballyGatedNetwork`, `fl.HalfSpaces`), one
# needs more of them. In a study of a contextual task 16 half-spaces learned it. With 2,
# 4 and 8 it was not learned on all seeds (`examples/paper/results/c_5_gates.json`). A ReLU network
# makes its gates itself, from its weights; [tutorial 7](7-effective-maps.py) reads such a run as a
# gated network.
#
# ## The race of pathways
#
# Now a network with a choice. There are two input domains and two output domains; each input domain
# shows the four items of a small tree, each output domain asks for their seven features. The
# network can route through a *shared* middle, in → low → high → out, or through a way of its *own*
# for each pair of domains. `active` of the two outputs are asked of every input.

# %%
tree = fl.tasks.hierarchy(levels=2)
items, features = tree.inputs, tree.outputs


def routing(active, domains=2):
    """A routing task, and a network with a shared middle and ways of single pairs."""
    pairs = [(i, (i + k) % domains) for i in range(domains) for k in range(active)]
    of = np.repeat(np.arange(len(pairs)), items)  # the pair that a sample is of
    x, y = (np.zeros((len(of), domains * n)) for n in (items, features))
    nodes, edges, gates = {"low": 16, "high": 16}, [("low", "high")], {}
    for d in range(domains):
        nodes |= {f"in{d}": items, f"out{d}": features}
        edges += [(f"in{d}", "low"), ("high", f"out{d}")]
        gates[f"out{d}"] = np.array([float(pairs[n][1] == d) for n in of])
    for n, (i, j) in enumerate(pairs):
        x[of == n, items * i : items * (i + 1)] = tree.x
        y[of == n, features * j : features * (j + 1)] = tree.y
        way = (f"in{i}", f"low{i}{j}", f"high{i}{j}", f"out{j}")
        nodes |= dict.fromkeys(way[1:3], 8)
        edges += itertools.pairwise(way)
        gates[way[1]] = (of == n).astype(float)
    task = fl.Task(x, y, name=f"routing, {active} active")
    network = fl.GatedGraph.init(
        task,
        nodes,
        edges,
        node_gates=gates,
        key=jax.random.key(0),
        inputs={f"in{d}": slice(items * d, items * (d + 1)) for d in range(domains)},
        outputs={f"out{d}": slice(features * d, features * (d + 1)) for d in range(domains)},
    )
    return network, task


# %% [markdown]
# `fl.theory.race` looks for singular vectors that all pathways' statistics share.
# Where there are such, every mode flows by itself, a pathway's strength is the product of one
# number per edge, and the race of these numbers *is* the flow. The certificate says whether that is
# so. The weights must be aligned to the modes too: `race.aligned` makes such a start, here with
# strength 0.1 on all edges.


# %%
def started(active, strength=0.1):
    """The race from an aligned start."""
    network, task = routing(active)
    race = fl.theory.race(network, task)
    return fl.theory.race(race.aligned(strength, key=jax.random.key(1)), task)


races = {active: started(active) for active in (1, 2)}
print(races[2])

# %%
runs = {}
for active, race in races.items():
    end = 40.0 * race.task.samples / items  # a pair is seen less often where there are more
    runs[active] = race.flow(end, ts=jnp.linspace(0, end, 201), events=race.hits(0.5), rtol=1e-6)
    lead = race.winner(runs[active], "in0", "out0")
    times = np.asarray(runs[active].events.first("race"))
    shared = [p.nodes[1] for p in race.pathways].index("low")
    print(
        f"{active} active: in0 to out0, mode 0: {lead.pathways[0].nodes[1:3]} carries "
        f"{100 * lead.share[0]:.2f} per cent; half-time {times[shared, 0]:.3f}"
    )

# %% tags=["hide-input"]
with fl.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.6))
    for ax, (active, run) in zip(axes, runs.items(), strict=False):
        names = [p.nodes for p in races[active].pathways]
        which = [k for k, n in enumerate(names) if n[0] == "in0" and n[-1] == "out0"]
        graph = axes[2] if active == 2 else None
        fl.plot.pathways(run, races[active], ax, shown=which, graph=graph)
        ax.set(xlim=(0, 60), title=f"{active} of 2 outputs active")
        ax.get_legend().remove()
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    axes[2].set_title("the two ways of the pair (in0, out0)")
    plt.show()

# %% [markdown]
# All edges start equal, and yet the shared middle takes nearly all of it. Its edges lie on more
# pathways, so more samples pull on them. With products of three edges the first to grow is the
# only one to grow. With more pairs that share it, its lead is larger. In the study from random
# weights, with three domains, its share is 0.964, 0.997 and 0.998 for one to three active outputs
# (`examples/paper/results/c_4_race.json`).
#
# ## How large a head start beats sharing?
#
# Write $b$ for the strength of one edge in one mode, $M$ for the number of domains and $K$ for that
# of active outputs, and leave out $\Sigma_x$, which small weights do not feel. The three edges of a
# pathway of its own obey $\dot b \propto s\, b^2$. On the shared way $K$ pathways pull at each
# outer edge, and $K M$ at the middle one. Balanced, the middle edge is $\sqrt M$ times as strong
# as the outer ones, and then $\dot b \propto K \sqrt M s\, b^2$. Both solutions blow up at a time
# $\propto 1/b$. So for small starts they tie where the own pathways start $K \sqrt M$ times as
# strong: here $2 \sqrt 2 = 2.83$ times.

# %%
small, tie = 0.01, 2 * np.sqrt(2)
print(f"{'head start':>10}{'over K sqrt(M)':>16}{'share of the shared way':>25}")
network, task = routing(2)
modes_of = fl.theory.race(network, task)
for share in (0.5, 0.9, 0.95, 1.0, 1.05, 2.0):
    own = share * tie * small
    strength = {e: small if {"low", "high"} & set(e) else own for e in network.edges}
    strength["low", "high"] = np.sqrt(2) * small
    race = fl.theory.race(modes_of.aligned(strength, key=jax.random.key(1)), task)
    run = race.flow(600.0, ts=jnp.linspace(0, 600, 201), rtol=1e-6)
    carried = np.abs(
        [
            run.product(p)[-1, 0]
            for p in race.pathways
            if p.nodes[0] == "in0" and p.nodes[-1] == "out0"
        ]
    )
    print(f"{share * tie:>10.3f}{share:>16.2f}{carried[0] / carried.sum():>25.3f}")

# %% [markdown]
# The tie lies a little below the limit, as it should for a start that is small but not zero. "The
# fastest path wins" is a statement about small starts, as "the largest singular value wins" was.
#
# ## Exercises
#
# The answers are folded below.
#
# 1. Let the race start from the random weights of `routing(2)` itself. What does `race.certificate`
#    say, and how far is `fl.gradient_flow(network, task, ...)` from `race.flow(...)`?
# 2. Zero-shot: train three domains with two active outputs and no own ways. Does the network know
#    the pairs it never saw? (In the study: yes, to 0.0097 of the targets; with one active output,
#    no.)
# 3. Replace the gates of the XOR network by `fl.HalfSpaces.random(xor, 4, key=...)` in a
#    `fl.GloballyGatedNetwork`. With which keys is XOR learned?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. The certificate says that the weights are not aligned to the modes. The race is then the flow
# of their aligned part, as if the rest were not there; here is how far it is from the true flow.
network, task = routing(2)
race = fl.theory.race(network, task)
print(race.certificate)
true = fl.gradient_flow(network, task, 80.0, ts=(0.0, 80.0), rtol=1e-6)
reduced = race.flow(80.0, ts=(0.0, 80.0), rtol=1e-6)
print(f"at t = 80 the flow's loss is {true.losses[-1]:.2e}, the race's {reduced.losses[-1]:.2e}")


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. Yes, with two active outputs. Here is the map from an input domain to an output domain that it
# was never trained with, against the tree's own map. With one active output it knows nothing of it.
def zero_shot(active, domains=3):
    """Error on unseen pairs of domains, over the targets, of a network with the shared way only."""
    whole, task = routing(active, domains)
    ends = [f"in{d}" for d in range(domains)], [f"out{d}" for d in range(domains)]
    edges = [(d, "low") for d in ends[0]] + [("low", "high")] + [("high", d) for d in ends[1]]
    network = fl.GatedGraph(
        {edge: whole.weights[edge] for edge in edges},
        node_gates={d: whole.node_gates[d] for d in ends[1]},
        inputs={d: slice(items * k, items * (k + 1)) for k, d in enumerate(ends[0])},
        outputs={d: slice(features * k, features * (k + 1)) for k, d in enumerate(ends[1])},
    )
    end = fl.gradient_flow(network, task, 600.0, rtol=1e-5).final
    middle = end.weights["low", "high"]
    seen = {(i, (i + k) % domains) for i in range(domains) for k in range(active)}
    errors = []
    for i, j in set(itertools.product(range(domains), repeat=2)) - seen:
        way = end.weights["high", f"out{j}"] @ middle @ end.weights[f"in{i}", "low"]
        errors.append(float(jnp.linalg.norm(way - tree.y.T) / jnp.linalg.norm(tree.y)))
    return max(errors)


for active in (1, 2):
    error = zero_shot(active)
    print(f"{active} of 3 outputs active: error on unseen pairs {error:.4f} of the targets")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. With those whose four half-spaces tell the samples apart well enough; most do.
ends = []
for seed in range(8):
    places = fl.HalfSpaces.random(xor, 4, key=jax.random.key(seed))
    network = fl.GloballyGatedNetwork.init(
        xor, hidden=8, gates=places, variance=1e-2, key=jax.random.key(0)
    )
    run = fl.gradient_flow(network, xor, 100.0, rtol=1e-5)
    ends.append(float(fl.measures.loss(run.final, xor)))
print("loss at the end, keys 0 to 7:", ", ".join(f"{end:.1e}" for end in ends))

# %% [markdown]
# Next: [ReLU, bias and t\*](5-relu-bias-and-t-star.py). Sources: Saxe, Sodhani and Lewallen (2022);
# Li and Sompolinsky (2022) for global gates.
