"""Why descent cannot tell t*: chattering against sliding.
See: where the flow (orange) slides (grey), descent steps to and fro across the kink (left). Its
always-on fraction flickers between the flow's two, open (solid) and closed (dashed), and each rate
has another t* (right).

    python examples/chattering.py [--quick]

On the semantic tree a biased ReLU network's gradient flow slides along its kinks: the
preactivation of a (unit, sample) pair reaches zero and stays there for a while, because both sides
push it back. Gradient descent steps across and back instead. Prints t* as the exact flow has it
(open: a sliding pair counts as off; closed: as on) and as descent reports it at several learning
rates, saves these numbers as JSON, and draws one such pair and the always-on fractions. A second
figure has two hidden layers: one sample that the flow keeps on a kink in both at once, where
descent chatters in both.
"""

import argparse
import json
import pathlib
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt

import flowlin as fl

LAYERS = ("first", "second")
# Learning rates and their colours, the darker the smaller.
RATES = dict(zip((1e-4, 1e-3, 3e-3, 1e-2), fl.plot.shades("descent", 4), strict=True))
MARGIN = 0.35  # drawn before and after a slide, as a share of it


class Slide(NamedTuple):
    """A stretch of time that a pair spends on its kink."""

    start: float
    end: float
    layer: int
    unit: int
    sample: int


def slides(flow: fl.Trajectory, before: float) -> list[Slide]:
    """The slides that have ended by a time."""
    began: dict[tuple[int, ...], float] = {}
    found = []
    for row in flow.events.select("gate").table():
        if row["time"] >= before:
            break
        pair = row["index"]
        if row["new"] == 0:
            began[pair] = row["time"]
        elif row["old"] == 0:
            found.append(Slide(began.pop(pair, 0.0), row["time"], *pair))
    if not found:
        raise SystemExit(f"no pair slides before t = {before:g}; try another --seed")
    return found


def shared(pair: Sequence[Slide]) -> tuple[float, float]:
    """(start, end) of the time in which all of these slide."""
    return max(slide.start for slide in pair), min(slide.end for slide in pair)


def longest_together(flow: fl.Trajectory, before: float) -> tuple[Slide, Slide]:
    """Slides of one sample in the first and the second layer, those that share the most time."""
    found = slides(flow, before)
    pairs = [
        (first, second)
        for first in found
        for second in found
        if (first.layer, second.layer) == (0, 1) and first.sample == second.sample
    ]

    def length(pair: Sequence[Slide]) -> float:
        start, end = shared(pair)
        return end - start

    best = max(pairs, key=length, default=None)
    if best is None or length(best) <= 0:
        raise SystemExit(f"no sample slides in both layers before t = {before:g}; try --seed")
    return best


def preactivation(task: fl.Task, slide: Slide):
    """Observable: the preactivation of one pair."""
    x = task.x[slide.sample : slide.sample + 1]
    return lambda network, task: network.preactivations(x)[slide.layer][0, slide.unit]


def _name(rate: float) -> str:
    return f"descent, rate {rate:g}" if rate else "exact flow"


def watch(network, task, pair: Sequence[Slide], rates) -> dict[float, fl.Trajectory]:
    """Descents by rate and, last, the flow as rate 0, with the pairs' preactivations.

    To after their slide.
    """
    start, end = shared(pair)
    t1 = end + MARGIN * (end - start)
    observe = {f"z{k}": preactivation(task, slide) for k, slide in enumerate(pair)}
    runs = {
        rate: fl.gradient_descent(network, task, rate, t1=t1, observe=observe, save_every=1)
        for rate in rates
    }
    ts = jnp.linspace(0, t1, 2001)[1:]
    runs[0.0] = fl.gradient_flow(network, task, t1, ts=ts, observe=observe, rtol=1e-10)
    return runs


def widths(run: fl.Trajectory, pair: Sequence[Slide]) -> list[float]:
    """Each pair's largest |z| while all slide in the flow."""
    start, end = shared(pair)
    inside = (run.ts > start) & (run.ts < end)
    return [float(jnp.max(jnp.abs(jnp.where(inside, z, 0.0)))) for z in run.observed.values()]


def draw_pairs(axes: Sequence[plt.Axes], runs, pair: Sequence[Slide]) -> None:
    """Each pair's preactivation around the time that they share, as flow and as descent."""
    start, end = shared(pair)
    margin = MARGIN * (end - start)
    for rate, run in runs.items():
        look = {"color": RATES[rate], "lw": 0.8} if rate else fl.plot.look("relu")
        for ax, z in zip(axes, run.observed.values(), strict=True):
            ax.plot(run.ts, z, label=_name(rate), **look)
    sizes = np.max([widths(run, pair) for run in runs.values()], axis=0)
    for ax, slide, size in zip(axes, pair, sizes, strict=True):
        ax.axvspan(slide.start, slide.end, color="0.93", zorder=0)
        ax.axhline(0, color="0.6", lw=0.6, zorder=0)
        layer = f"{LAYERS[slide.layer]} layer\n" if len(axes) > 1 else ""
        ax.set(
            xlim=(start - margin, end + margin),
            ylim=(-1.3 * size, 1.3 * size),  # the scale of the chatter, not of z elsewhere
            xlabel=r"flow time $t$ (units of $\tau$)",
            ylabel="preactivation $z$",
            title=f"{layer}unit {slide.unit}, sample {slide.sample}: "
            f"slides for {slide.start:.2f} < t < {slide.end:.2f}",
        )
        ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18),
                  ncols=2)  # fmt: skip


def draw_fractions(ax: plt.Axes, flow, runs) -> None:
    """Always-on fractions with every t*."""
    for rate, run in reversed(runs.items()):  # the coarse ones, which switch less often, on top
        fl.plot.activity(
            run, ax, parts=("always_on",), conventions=("open",), colour=RATES[rate],
            label=_name(rate),
        )  # fmt: skip
    fl.plot.activity(flow, ax, parts=("always_on",), label="exact flow")
    ax.set(ylabel="always-on fraction", title="linearization time", ylim=(0, 1))
    ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


def linearization_times(
    flow: fl.Trajectory, descents: dict[float, fl.Trajectory]
) -> list[dict[str, float | str]]:
    """t* and its always-on fraction of the exact flow, open and closed, and of each descent."""
    line = flow.linearization()
    found = {"exact flow, open": line.open, "exact flow, closed": line.closed}
    found |= {_name(rate): run.linearization().open for rate, run in descents.items()}
    return [
        {"run": name, "t*": float(t_star.time), "always on": float(t_star.fraction)}
        for name, t_star in found.items()
    ]


def one_layer(task: fl.Task, given: argparse.Namespace) -> plt.Figure:
    """t* of a network with one hidden layer, as flow and as descent; the numbers as JSON too."""
    t1 = 4.0 if given.quick else 40.0
    rates = (1e-2, 3e-3) if given.quick else (1e-2, 1e-3, 1e-4)
    network = fl.ReLUNetwork.init(task, key=jax.random.key(given.seed))
    flow = fl.gradient_flow(network, task, t1, rtol=1e-10)
    entries = int(np.sum(np.asarray(flow.events.new) == 0))
    print(
        f"{len(flow.events)} gate events up to t = {t1:g}, {entries} of them entries into sliding"
    )
    runs = {rate: fl.gradient_descent(network, task, rate, t1=t1) for rate in rates}
    rows = linearization_times(flow, runs)
    print(f"{'':<24}{'t*':>14}{'always on':>12}")
    for row in rows:
        print(f"{row['run']:<24}{row['t*']:>14.8f}{row['always on']:>12.4f}")
    record = {"task": task.name, "seed": given.seed, "t1": t1, "rows": rows}
    (given.out / "chattering.json").write_text(json.dumps(record, indent=1) + "\n")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    longest = max(slides(flow, before=3.0), key=lambda slide: slide.end - slide.start)
    draw_pairs(axes[:1], watch(network, task, (longest,), rates[:2]), (longest,))
    draw_fractions(axes[1], flow, runs)
    return figure


def two_layers(task: fl.Task, given: argparse.Namespace) -> plt.Figure:
    """One sample on the kinks of both layers of a network with two, as flow and as descent."""
    network = fl.ReLUNetwork.init(task, (16, 16), variance=0.02, key=jax.random.key(given.seed))
    flow = fl.gradient_flow(network, task, 9.0, rtol=1e-10)
    pair = longest_together(flow, before=float(flow.end))
    start, end = shared(pair)
    print(
        f"\ntwo hidden layers: sample {pair[0].sample} slides in both "
        f"for {start:.4f} < t < {end:.4f}"
    )
    runs = watch(network, task, pair, (1e-2, 3e-3) if given.quick else (1e-2, 1e-3))
    print(f"{'largest |z| there':<24}{'first layer':>14}{'second layer':>14}")
    for rate, run in runs.items():
        print(f"{_name(rate):<24}" + "".join(f"{width:>14.1e}" for width in widths(run, pair)))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    draw_pairs(axes, runs, pair)
    return figure


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
    task = fl.tasks.hierarchy(levels=3)
    given.out.mkdir(parents=True, exist_ok=True)
    figures = {"chattering": one_layer, "chattering_two_layers": two_layers}
    for name, figure in figures.items():
        path = given.out / f"{name}.png"
        figure(task, given).savefig(path, dpi=150)
        print(f"figure: {path}")


if __name__ == "__main__":
    main()
