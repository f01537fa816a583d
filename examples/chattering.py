"""Why descent cannot tell t*: chattering against sliding.

    python examples/chattering.py [--quick]

On the semantic tree a biased ReLU network's gradient flow slides along its kinks: the
preactivation of a (unit, sample) pair reaches zero and stays there for a while, because both sides
push it back. Gradient descent steps across and back instead. Prints t* as the exact flow has it
(open: a sliding pair counts as off; closed: as on) and as descent reports it at several learning
rates, and saves a figure of one such pair and of the always-on fractions.
"""

import argparse
import pathlib
import warnings

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt

import flowlin as fl


def longest_slide(flow: fl.Trajectory, before: float) -> tuple[float, float, int, int]:
    """(start, end, unit, sample) of the longest slide that has ended by a time."""
    began: dict[tuple[int, ...], float] = {}
    slides = []
    for row in flow.events.table():
        if row["time"] >= before:
            break
        pair = row["index"]
        if row["new"] == 0:
            began[pair] = row["time"]
        elif row["old"] == 0:
            slides.append((began.pop(pair), row["time"], *pair[1:]))
    if not slides:
        raise SystemExit(f"no pair slides before t = {before:g}; try another --seed")
    return max(slides, key=lambda slide: slide[1] - slide[0])


def preactivation(task: fl.Task, unit: int, sample: int):
    """Observable: the preactivation of one pair."""
    x = task.x[sample : sample + 1]
    return lambda network, task: network.preactivations(x)[0][0, unit]


def draw_pair(ax: plt.Axes, network, task, slide, rates) -> None:
    """The preactivation of one pair around its slide, as flow and as descent."""
    start, end, unit, sample = slide
    t1 = end + 0.35 * (end - start)
    observe = {"z": preactivation(task, unit, sample)}
    size = 0.0
    for rate, colour in zip(rates, reversed(fl.plot.shades("descent", len(rates))), strict=True):
        run = fl.gradient_descent(network, task, rate, t1=t1, observe=observe, save_every=1)
        z, inside = run.observed["z"], (run.ts > start) & (run.ts < end)
        size = max(size, float(jnp.max(jnp.abs(jnp.where(inside, z, 0.0)))))
        ax.plot(run.ts, z, color=colour, lw=0.8, label=f"descent, rate {rate:g}")
    ts = jnp.linspace(0, t1, 2001)[1:]
    flow = fl.gradient_flow(network, task, t1, ts=ts, observe=observe)
    ax.plot(ts, flow.observed["z"], **fl.plot.look("relu"), label="exact flow")
    ax.axvspan(start, end, color="0.93", zorder=0)
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set(
        xlim=(start - 0.35 * (end - start), t1),
        ylim=(-1.3 * size, 1.3 * size),  # the scale of the chatter, not of z elsewhere
        xlabel=r"flow time $t$ (units of $\tau$)",
        ylabel="preactivation $z$",
        title=f"unit {unit}, sample {sample}: slides for {start:.2f} < t < {end:.2f}",
    )
    ax.legend(frameon=False, fontsize=8)


def draw_fractions(ax: plt.Axes, flow, runs) -> None:
    """Always-on fractions with every t*."""
    shades = reversed(fl.plot.shades("descent", len(runs)))
    for (rate, run), colour in zip(runs.items(), shades, strict=True):
        fl.plot.activity(
            run, ax, parts=("always_on",), conventions=("open",), colour=colour,
            label=f"descent, rate {rate:g}",
        )  # fmt: skip
    fl.plot.activity(flow, ax, parts=("always_on",), label="exact flow")
    ax.set(ylabel="always-on fraction", title="linearization time", ylim=(0, 1.2))
    ax.legend(frameon=False, fontsize=8, loc="upper center", ncols=2, handlelength=1.5)


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"))
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    given = parser.parse_args()
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    t1 = 4.0 if given.quick else 40.0
    rates = (1e-2, 3e-3) if given.quick else (1e-2, 1e-3, 1e-4)
    task = fl.tasks.hierarchy(levels=3)
    network = fl.ReLUNetwork.init(task, key=jax.random.key(given.seed))
    flow = fl.gradient_flow(network, task, t1, rtol=1e-10)
    line = flow.linearization()
    slides = int(np.sum(np.asarray(flow.events.new) == 0))
    print(f"{len(flow.events)} gate events up to t = {t1:g}, {slides} of them entries into sliding")
    print(f"{'':<24}{'t*':>14}{'always on':>12}")
    for name, t_star in (("exact flow, open", line.open), ("exact flow, closed", line.closed)):
        print(f"{name:<24}{float(t_star.time):>14.8f}{float(t_star.fraction):>12.4f}")
    runs = {}
    for rate in rates:
        runs[rate] = fl.gradient_descent(network, task, rate, t1=t1)
        t_star = runs[rate].linearization().open
        name = f"descent, rate {rate:g}"
        print(f"{name:<24}{float(t_star.time):>14.4f}{float(t_star.fraction):>12.4f}")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    slide = longest_slide(flow, before=3.0)
    draw_pair(axes[0], network, task, slide, rates[:2])
    draw_fractions(axes[1], flow, runs)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "chattering.png"
    figure.savefig(path, dpi=150)
    print(f"figure: {path}")


if __name__ == "__main__":
    main()
