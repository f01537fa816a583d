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
# # 6. Exact flow through kinks
#
# You will learn
#
# - the three things that can happen where a preactivation is zero;
# - what sliding is, and what descent does in its place;
# - why descent cannot tell the linearization time, at any rate.
#
# It takes about 12 minutes to read, and one to two minutes to run.
#
# At $z = w \cdot x + c\, b = 0$ the gate of a (unit, sample) pair jumps, and with it the right-hand
# side of the gradient flow. Each such **kink** is an event of the flow, and what happens there is
# not always a crossing. This tutorial shows what a solver has to do, what the solution looks like,
# and why descent, whose steps know nothing of it, cannot tell the linearization time.

# %%
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

# %% [markdown]
# ## Three things that can happen at a kink
#
# Let $\dot z_-$ be the rate of $z$ with the gate off, and $\dot z_+$ with the gate on.
#
# - Both have one sign: $z$ **crosses**, and the gate switches.
# - $\dot z_- < 0 < \dot z_+$: either side leads away from the kink. The flow does not come to it
#   from either.
# - $\dot z_- > 0 > \dot z_+$: either side leads back. The pair stays **on** the kink; it
#   **slides**.
#
# While it slides, $z = 0$ holds, and the flow is the mixture of both sides that keeps it
# (Filippov's rule): with the gate at a fraction $g$, the rate is
# $\dot z_- + g (\dot z_+ - \dot z_-)$, which is zero at
#
# $$g = \frac{\dot z_-}{\dot z_- - \dot z_+} \in (0, 1).$$
#
# Where several pairs slide at once their fractions depend on each other, and a small quadratic
# programme replaces the quotient ([kinks and sliding](../explanation/kinks-and-sliding.md)). Why
# would a pair slide at all? The hidden unit is on for other samples, which push $z$ up; this sample
# wants the unit less active and pulls $z$ down, but only while its gate is open.
#
# ## A walk, and its log
#
# `kinks=None` takes `fl.ExactKinks` for small tasks: between events the gates are
# given and the flow is smooth; every event is located to the solver's accuracy; then each pair is
# off, on, or sliding. The log holds the sides -1 (off), 0 (at the kink) and 1 (on) before and after
# each event.

# %%
task = fl.tasks.hierarchy(levels=3)
network = fl.ReLUNetwork.init(task, hidden=32, variance=2e-4, key=jax.random.key(5))
t1 = 30.0
flow = fl.gradient_flow(network, task, t1, dense=True)
gates = flow.events.select("gate").table()
kinds = {"entries into sliding": 0, "exits from sliding": 0, "crossings": 0}
for row in gates:
    kinds["entries into sliding"] += row["new"] == 0
    kinds["exits from sliding"] += row["old"] == 0
    kinds["crossings"] += row["old"] * row["new"] == -1
print(flow)
print(kinds)
print("first events:")
for row in gates[:4]:
    layer, unit, sample = row["index"]
    print(
        f"  t = {row['time']:.6f} ± {row['uncertainty']:.0e}: unit {unit}, sample {sample}: "
        f"{row['old']} -> {row['new']}"
    )

# %% [markdown]
# ## One pair, as flow and as descent
#
# Take the pair that slides longest among those that have begun by $t = 3$ and ended by $t = 15$. In
# the flow its $z$ is zero up to rounding. Descent steps over the kink and back, over and back; the
# smaller the rate, the nearer it stays. (It is *on* the kink in the mean only.)

# %%
began, slides = {}, []
for row in gates:
    if row["new"] == 0:
        began[row["index"]] = row["time"]
    elif row["old"] == 0:
        slides.append((began[row["index"]], row["time"], row["index"]))
early = [slide for slide in slides if slide[0] < 3 and slide[1] < 15]
begin, end, (_, unit, sample) = max(early, key=lambda slide: slide[1] - slide[0])
print(f"unit {unit}, sample {sample} slides for {begin:.4f} < t < {end:.4f}")


def preactivation(network, task):
    """z of the pair."""
    return network.preactivations(task.x)[0][sample, unit]


rates = (1e-2, 1e-3)
descents = {
    rate: fl.gradient_descent(
        network, task, rate, t1=t1, observe={"z": preactivation}, save_every=1
    )
    for rate in rates
}
widest = 0.0
for rate, run in descents.items():
    inside = (run.ts > begin) & (run.ts < end)
    width = float(jnp.max(jnp.abs(jnp.where(inside, run.observed["z"], 0.0))))
    widest = max(widest, width)
    print(f"rate {rate}: largest |z| while the flow slides {width:.1e}")

# %% [markdown]
# The fraction of the flow's gate can be asked for through `fl.rectified`, which reads
# a run as one of a gated linear network. It should be what descent's flickering gate is on average.
# We average over 0.25 units of time.

# %%
reading = fl.rectified(flow, task)
margin = 0.3 * (end - begin)
at = np.linspace(max(begin - margin, 0.0), end + margin, 61)
fraction = [float(reading.gates(float(t))[sample, unit]) for t in at]
finest = descents[rates[-1]]
window = round(0.25 / rates[-1])
flicker = np.convolve(np.asarray(finest.observed["z"]) > 0, np.ones(window) / window, mode="same")
gap = np.abs(np.interp(at, finest.ts, flicker) - fraction)[(at > begin + 0.2) & (at < end - 0.2)]
print(f"mean of descent's gate against Filippov's fraction: {gap.mean():.3f} apart on average")

# %% tags=["hide-input"]
fine = jnp.linspace(at[0], at[-1], 801)
z = jax.vmap(lambda network: preactivation(network, task))(flow.network(fine))
with fl.plot.style():
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    shades = fl.plot.shades("descent", len(rates))
    for (rate, run), colour in zip(descents.items(), shades[::-1], strict=True):
        axes[0].plot(
            run.ts,
            run.observed["z"],
            color=colour,
            linestyle="-",
            linewidth=0.7,
            label=f"descent, rate {rate:g}",
        )
    axes[0].plot(fine, z, **fl.plot.look("relu"), label="exact flow")
    axes[0].set(
        ylim=(-1.4 * widest, 1.4 * widest),
        ylabel="preactivation $z$",
        title="on the kink, and beside it",
    )
    axes[1].plot(
        finest.ts,
        flicker,
        color=shades[0],
        linestyle="-",
        linewidth=0.9,
        label=f"descent, rate {rates[-1]:g}, running mean",
    )
    axes[1].plot(at, fraction, **fl.plot.look("relu"), label="exact flow")
    axes[1].set(ylabel="gate $g$", title="its gate", ylim=(-0.05, 1.05))
    axes[0].ticklabel_format(axis="y", scilimits=(0, 0))
    for ax in axes:
        ax.axvspan(begin, end, color="0.93", zorder=0)
        ax.set(xlabel=r"flow time $t$ (units of $\tau$)", xlim=(at[0], at[-1]))
        ax.legend(frameon=False, fontsize="small")
    plt.show()

# %% [markdown]
# ## Open, closed, and descent
#
# Is a sliding unit on? The flow itself does not decide it, so flowlin counts both ways: **open**, a
# sliding pair counts as off, and **closed**, it counts as on. Descent counts a flicker: in each
# step the pair is on one side or the other. The step at which *most* units happen to be on for
# all samples at once is neither of the two, nor does it settle as the rate falls. Watch it happen,
# for 64 units on the tree and for other tasks, strengths of the bias and seeds:
#
# <!-- {walk} -->
#
# And in numbers, for the 32 units from above:

# %%
line = flow.linearization()
print(f"{'':<22}{'t*':>12}{'always on':>11}")
for name, found in (("flow, open", line.open), ("flow, closed", line.closed)):
    print(f"{name:<22}{found.time:>12.6f}{found.fraction:>11.4f}")
descents[1e-4] = fl.gradient_descent(network, task, 1e-4, t1=t1)
for rate, run in descents.items():
    found = run.linearization().open  # one count for both conventions
    print(f"{f'descent, rate {rate:g}':<22}{found.time:>12.6f}{found.fraction:>11.4f}")

# %% tags=["hide-input"]
with fl.plot.style():
    figure, ax = plt.subplots(figsize=(7, 3.6))
    fl.plot.activity(
        finest,
        ax,
        parts=("always_on",),
        conventions=("open",),
        label=f"descent, rate {rates[-1]:g}",
    )
    fl.plot.activity(flow, ax, parts=("always_on",), label="exact flow")
    ax.set(ylabel="always-on fraction", ylim=(0, 1.2))
    ax.legend(frameon=False, fontsize="small", loc="upper center", ncols=2)
    plt.show()

# %% [markdown]
# With 64 units (`examples/results/chattering.json`, by `examples/chattering.py`):
#
# | run | $t^*$ |
# | --- | --- |
# | descent, rate 1e-2 | 9.4 |
# | descent, rate 1e-3 | 24.2 |
# | descent, rate 1e-4 | 12.3 |
# | flow, open | 2.7712 |
# | flow, closed | 23.157 |
#
# ## What it takes to ignore the kinks
#
# An ordinary adaptive solver may be sent across the kinks (`fl.IgnoreKinks`; it warns
# if it is chosen for you). It then is of first order at best, whatever its order on smooth flows,
# and its steps shrink where pairs slide. On this task (64 units, $t = 60$) a parameter error of
# 1e-5 takes Bosh3 across the kinks 45 times the walk's time. Tsit5, Dopri8 and SciPy's and
# SUNDIALS' solvers do not get there within 250 times (`benchmarks/results/peers.md`). Where a task
# is too large to be walked, `fl.AveragedKinks` averages the gates over a step
# ([averaged gates](../explanation/averaged-gates.md)).
#
# ## Exercises
#
# The answers are folded below.
#
# 1. Run the walk at `rtol` 1e-6, 1e-8 and 1e-10. By how much does $t^*$ move? What does
#    `line.open.bracket` say?
# 2. Send `fl.IgnoreKinks` across at `rtol` 1e-3 and 1e-4. How many gate events does
#    its log have beside the walk's, and how far does it end from it (`fl.distance`)?
# 3. `fl.SmoothKinks` rounds the kinks off over a width. Is $z$ of the pair then zero?
#    What does its gate, the slope of the rounded ReLU at $z$, tend to as the width falls?
# 4. Take 8 hidden units, and several keys. How near does descent's $t^*$ come to the closed one,
#    and why nearer than with 32?
# 5. Why does a pair cease to slide? Look at the gate's fraction at the end of each of `slides`: is
#    it always at 0 or at 1?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 1", "code_prompt_hide": "Answer 1"}
# 1. In the ninth digit. The bracket says between which times the switch lies on the computed path,
# not how far that path is off: for the error of the whole run ask `flow.confirm()`.
for rtol in (1e-6, 1e-8, 1e-10):
    found = fl.gradient_flow(network, task, t1, rtol=rtol).linearization().open
    low, high = found.bracket
    print(f"rtol {rtol:.0e}: open t* = {found.time:.10f}, bracket {high - low:.0e} wide")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 2", "code_prompt_hide": "Answer 2"}
# 2. Where the flow slides it switches there and back in every step, so its log is longer, and the
# longer the more steps it takes.
for rtol in (1e-3, 1e-4):
    across = fl.gradient_flow(network, task, t1, rtol=rtol, kinks=fl.IgnoreKinks())
    apart = fl.distance(across.final, flow.final, relative=True)
    print(
        f"rtol {rtol:.0e}: {len(across.events.select('gate').table())} gate events where the walk "
        f"has {len(gates)}; the ends are {apart:.0e} apart"
    )

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 3", "code_prompt_hide": "Answer 3"}
# 3. No: z is a share of the width, at which the rounded slope, (z + w) / 2w, balances both sides.
# That slope tends to the fraction of the flow's gate.
middle = 0.5 * (begin + end)
print(f"fraction of the flow's gate at t = {middle:.2f}: {reading.gates(middle)[sample, unit]:.4f}")
for width in (1e-2, 1e-3, 1e-4):
    policy = fl.SmoothKinks(width)
    smooth = fl.gradient_flow(network, task, middle, kinks=policy)
    z = preactivation(smooth.final, task)
    print(f"width {width:.0e}: z = {z:+.1e}, slope {(z + width) / (2 * width):.4f}")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 4", "code_prompt_hide": "Answer 4"}
# 4. Within a few steps of it, mostly. With few units few pairs slide at once, so there is soon a
# step in which all of them happen to be on. With 32 units there is hardly ever one.
import warnings

for seed in range(4):
    small = fl.ReLUNetwork.init(task, hidden=8, variance=2e-4, key=jax.random.key(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)  # of maxima that stand at t1
        whole = fl.gradient_flow(small, task, t1).linearization()
        found = fl.gradient_descent(small, task, 1e-2, t1=t1).linearization().open
    print(
        f"key {seed}: flow {whole.open.time:.3f} open, {whole.closed.time:.3f} closed; "
        f"descent {found.time:.3f}"
    )

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Answer 5", "code_prompt_hide": "Answer 5"}
# 5. Mostly since its fraction has come to 0 or 1: one side no longer leads back. Else another pair
# of the unit switches at that moment, which changes both rates at once, and neither leads back any
# more.
bounds, others = 0, 0
for _, left, index in slides:
    last = float(reading.gates(left - 1e-6)[index[2], index[1]])
    if min(last, 1 - last) < 1e-3:
        bounds += 1
    else:
        others += any(
            row["index"][1] == index[1] and row["index"] != index and abs(row["time"] - left) < 1e-9
            for row in gates
        )
print(f"of {len(slides)} slides {bounds} end at a fraction of 0 or 1,")
print(f"and {others} as another pair of the unit switches")

# %% [markdown]
# Next: [effective maps](7-effective-maps.py). More: [kinks and
# sliding](../explanation/kinks-and-sliding.md), [why a discrete t\* is
# neither](../explanation/linearization-time.md), and [choosing kinks, solver and
# tolerance](../how-to/kinks-solver-tolerance.md).
