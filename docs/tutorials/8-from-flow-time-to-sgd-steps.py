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
# # 8. From flow time to SGD steps
#
# You will learn
#
# - how many steps a unit of flow time is, for each convention of the loss;
# - how fast descent comes to the flow as its rate falls, and which flow is nearer to it;
# - which rate is small enough for a quantity, and when none is.
#
# It takes about 10 minutes to read, and one to two minutes to run.
#
# Gradient flow is where the theory is; what is run in practice takes steps, often on mini-batches.
# This tutorial converts the units, and measures how far descent is from the flow and how fast that
# goes away with the rate. It uses a flow that is nearer to descent. It asks for the largest rate at
# which flow and descent still tell the same.

# %%
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## Units
#
# flowlin's flow is $\tau \dot w = -\nabla L$ with $L = \frac{1}{2P} \sum_p \|y_p - \hat y_p\|^2$. A
# step of rate $\epsilon$ on a loss $f L$ advances it by $f \epsilon \tau$. So what a unit of flow
# time is in steps depends on what a training loop calls its loss; `fl.StepClock` knows
# the conventions (`fl.LossConvention`). The [lead paper](../references.md)'s "tau" is this number
# of steps. One of its equations writes it as $1/(N \epsilon)$, where N is the number of samples, P
# here ([the errata](../explanation/errata.md)).

# %%
task = fl.tasks.hierarchy(levels=3)
print(f"{'loss':<16}{'steps per unit of time, rate 2e-4':>35}")
for convention in fl.LossConvention:
    clock = fl.StepClock(2e-4, convention, samples=task.samples, outputs=task.outputs, batch_size=4)
    print(f"{convention.name:<16}{clock.steps_per_time:>35.0f}")

# %% [markdown]
# ## Descent against the flow
#
# A linear network on the tree, to $t = 16$, when the first two modes are learned. Descent at four
# rates is saved at the same 81 times as the flow, and `fl.compare` gives their
# distance. Events work for descent too; `interpolate=True` puts them on the straight line between
# two steps.

# %%
t1, rows = 16.0, 80
network = fl.LinearNetwork.init(task, hidden=8, variance=2e-4, key=jax.random.key(1))
modes = fl.theory.modes(task, network)
how = {"events": fl.ModeHits(modes, share=0.5), "ts": jnp.linspace(0, t1, rows + 1)}
flow = fl.gradient_flow(network, task, t1, **how)
rates = (0.2, 0.1, 0.05, 0.025)
descents = {
    rate: fl.gradient_descent(network, task, rate, t1=t1, interpolate=True, **how) for rate in rates
}
hits = flow.events.first("mode")[:2]
print(f"flow: modes 0 and 1 are half learned at t = {hits[0]:.5f}, {hits[1]:.5f}")
print(f"{'rate':>6}{'steps':>7}{'outputs apart':>15}{'mode 0 off by':>15}{'mode 1 off by':>15}")
for rate, run in descents.items():
    apart = float(fl.compare(flow, run).function.max())
    off = (run.events.first("mode")[:2] - hits) / hits
    print(f"{rate:>6}{round(t1 / rate):>7}{apart:>15.4f}{off[0]:>14.3%}{off[1]:>14.3%}")

# %% [markdown]
# Half the rate, about half the distance: descent is the explicit Euler method for the flow, which
# is of first order as the rate goes to zero. At rates as large as these it falls short of that: the
# printed distances shrink by less than two each time, and the figure below has the slope that they
# have. Descent is *late* while a mode grows, because an Euler step of an exponential falls
# short: a mode of rate $r$ grows by $1 + r \epsilon$ in a step and not by $e^{r \epsilon}$.
#
# ## The modified flow
#
# Backward error analysis asks which flow the steps do follow. To second order it is that of
#
# $$\tilde L = L + \frac{\epsilon}{4} \|\nabla L\|^2$$
#
# (Barrett and Dherin 2021), and `modified_rate=` runs it. What descent does differently at a finite
# rate is then in the flow, events included.

# %%
print(f"{'rate':>6}{'from the flow':>15}{'from the modified flow':>24}{'mode 0':>11}{'mode 1':>11}")
distances = []
for rate, run in descents.items():
    modified = fl.gradient_flow(network, task, t1, modified_rate=rate, **how)
    pair = [float(fl.compare(a, run).function.max()) for a in (flow, modified)]
    off = run.events.first("mode")[:2] / modified.events.first("mode")[:2] - 1
    distances.append(pair)
    print(f"{rate:>6}{pair[0]:>15.5f}{pair[1]:>24.5f}{off[0]:>11.3%}{off[1]:>11.3%}")

# %% tags=["hide-input"]
distances = np.array(distances)
with fl.plot.style():
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    fl.plot.losses({"flow": flow, "descent, rate 0.2": descents[0.2]}, axes[0])
    axes[0].set_title("losses")
    for k, (name, kind) in enumerate((("flow", "linear"), ("modified flow", "other"))):
        slope = np.polyfit(np.log(rates), np.log(distances[:, k]), 1)[0]
        look = fl.plot.look(kind) | {"marker": "o", "markerfacecolor": "white"}
        axes[1].loglog(rates, distances[:, k], **look, label=f"from the {name}, slope {slope:.2f}")
    axes[1].set(
        xlabel=r"learning rate $\epsilon$",
        ylabel="distance of the outputs",
        title="order of descent",
    )
    axes[1].set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes[1].set_xticks([], minor=True)
    axes[1].legend(frameon=False)
    plt.show()

# %% [markdown]
# ## Which rate is small enough?
#
# `fl.largest_learning_rate` measures it. Descent is run at rate after rate, and each
# quantity (parameters, outputs, loss, times of events) is compared over the whole time. The
# largest rate within a share of the flow is bisected. Nothing is extrapolated. The stability edge,
# 2 over the largest curvature along the flow, comes with it.

# %%
certificate = fl.largest_learning_rate(
    network, task, t1, within=0.02, events=fl.ModeHits(modes, share=0.5), precision=0.2
)
print(f"stability edge: {certificate.edge:.3f}")
for row in certificate.table():
    print(
        f"{row['quantity']:<12} within 2 per cent up to rate {row['rate']:.4f} "
        f"(error ~ rate^{row['slope']:.2f})"
    )
print(f"descents run: {len(certificate.rates)}")

# %% [markdown]
# So a rate that is stable by far need not be one at which events can be timed. The outputs are the
# strictest here: a small delay of a mode is a large difference while the mode grows.
#
# ## Mini-batches
#
# A step on a mini-batch mean has the flow's direction on average only. The clock is the same, one
# step is $\epsilon \tau$, and what is added is noise, which falls with the rate as well.

# %%
apart = {}
for rate in (0.1, 0.025):
    runs = [
        fl.stochastic_gradient_descent(
            network, task, rate, t1=t1, batch_size=2, key=jax.random.key(k), ts=how["ts"]
        )
        for k in range(8)
    ]
    apart[f"rate {rate}, batches of 2"] = [fl.compare(flow, run).function for run in runs]
    apart[f"rate {rate}, full batch"] = [fl.compare(flow, descents[rate]).function]
for name, found in apart.items():
    print(
        f"{name}: outputs apart by {np.max(found, axis=1).mean():.3f}, at the end "
        f"{np.mean(found, axis=0)[-1]:.4f}"
    )

# %% tags=["hide-input"]
with fl.plot.style():
    figure, ax = plt.subplots(figsize=(6, 3.4))
    for (name, found), colour in zip(apart.items(), ("C1", "C1", "C0", "C0"), strict=True):
        line = "-" if "batches" in name else "--"
        ax.semilogy(flow.ts[1:], np.mean(found, axis=0)[1:], color=colour, ls=line, label=name)
    ax.set(xlabel=r"flow time $t$ (units of $\tau$)", ylabel="distance of the outputs")
    ax.legend(frameon=False, fontsize="small")
    plt.show()

# %% [markdown]
# (Of the mini-batches the mean over eight keys.) After four batches of two every sample has been
# seen once. That is an epoch, 0.4 units of time at rate 0.1: the distance is larger within it than
# at its ends, hence the zigzag. While a mode grows, the finite rate and not the noise makes most of
# the distance; where nothing grows, most of it is noise.
#
# ## Where there is no small enough rate
#
# On a ReLU network's kinks descent chatters, with a width proportional to the rate ([tutorial
# 6](6-exact-flow-through-kinks.py)). Its parameters converge to the flow's at first order all the
# same. On the tree the logarithm of the distance has the slope 1.002 in that of the rate, down to
# rates of 5e-6. Over three seeds it is 0.994 to 1.005 (`benchmarks/results/descent_limit.md`). But
# what counts signs, such as $t^*$, does not converge to the flow's open or closed value. So a
# certificate for the loss is none for $t^*$.
#
# ## Exercises
#
# The answers are folded below.
#
# 1. Your training loop uses `torch.nn.MSELoss()` and rate 0.05 on ten outputs. At which step does a
#    mode with half-time $t = 8$ reach its half?
# 2. Add `tau=2.0` to all runs. Which numbers change?
# 3. An optimiser: `fl.gradient_descent(..., optimiser=optax.adam(1e-3))`. Does it pass the modes in
#    the same order, and what does its time axis mean?
# 4. `print(fl.largest_learning_rate(...))` of the ReLU network with the same weights has a row
#    `chattering`. What is its slope?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. That loss is a mean over samples and outputs, 2/10 of flowlin's, so a step is 2/10 of the rate.
clock = fl.StepClock(0.05, fl.LossConvention.TORCH_MEAN, samples=1, outputs=10)
print(f"half learned at step {clock.steps(8.0):.0f}")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. The flow's times double, and so does the time that a step takes, rate times tau. Numbers of
# steps, and distances at the same step, stay what they were.
clock = fl.StepClock(0.1, samples=task.samples, tau=2.0)
slow = {"events": how["events"], "ts": 2.0 * how["ts"], "tau": 2.0}
slowed = fl.gradient_flow(network, task, 2 * t1, **slow)
descent = fl.gradient_descent(network, task, 0.1, t1=2 * t1, interpolate=True, **slow)
print("half-times, tau = 2 over tau = 1:", np.round(slowed.events.first("mode")[:2] / hits, 6))
print(f"steps at rate 0.1: {clock.steps(2 * t1):.0f}, were {round(t1 / 0.1)}")
apart_2 = fl.compare(slowed, descent).function.max()
print(f"outputs apart {apart_2:.4f}, were {fl.compare(flow, descents[0.1]).function.max():.4f}")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. In the same order here, but closer together. Adam divides each step by the gradient's size, so
# weak modes hardly wait. Its time axis is the number of steps times the rate, the time of no flow.
import optax

adam = fl.gradient_descent(
    network, task, 1e-3, t1=t1, optimiser=optax.adam(1e-3), events=how["events"]
)
print("half-times of the flow:", np.round(flow.events.first("mode")[:3], 3))
print("half-times of Adam:    ", np.round(adam.events.first("mode")[:3], 3))

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 4", "code_prompt_hide": "Answer 4"}
# 4. One: how far descent jumps about a kink on which the flow slides is proportional to its rate.
relu = fl.ReLUNetwork(network.weights, network.biases)
certificate = fl.largest_learning_rate(relu, task, t1, within=0.02, precision=0.2)
print(certificate)
print(f"chattering: slope {certificate.chattering.slope:.2f}")

# %% [markdown]
# This was the last tutorial. On from here: [how-to](../how-to/index.md) pages for your own task,
# network and events, the [explanation](../explanation/index.md) of what is exact, and the
# [reference](../reference/index.md).
