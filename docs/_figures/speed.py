"""The figures of the page on speed, from the committed results of the benchmarks.

    python docs/_figures/speed.py [--out FOLDER]

Nothing is run. Reads `benchmarks/results/*.json`, writes `docs/_static/speed/NAME.png`. Each
picture keeps a hash of the results that it is made from, under the key "made from".
"""

import argparse
import functools
import hashlib
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import NullFormatter

import flowlin as fl

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
STATIC = ROOT / "docs" / "_static" / "speed"
sys.path.append(str(ROOT / "benchmarks"))

import _peers_table

OURS, OTHERS, PLAIN = fl.plot.COLOURS["relu"], "#9aa5b1", "#2f4b7c"
WIDTH = 7.6  # inches, of which the site makes some 97 px each
PROBLEMS = {  # problem: (contender of flowlin, error, what it is)
    "linear c=10": ("flowlin", 1e-5, "stiff: linear, digits, c = 10"),
    "linear c=1": ("flowlin", 1e-6, "not stiff: linear, digits, c = 1"),
    "relu digits": ("flowlin AveragedKinks", 1e-4, "ReLU, digits, gates averaged"),
    "events 32": ("flowlin", 1e-7, "hitting times of 32 modes"),
}
JOBS = {  # as `benchmarks/latency.py` calls them
    "README": "the ten lines, with figure",
    "ten lines": "their flow alone",
    "linear, mode hits": "a linear flow with hits",
    "linear": "a linear flow",
    "descent": "descent",
    "linearization": "t* of a flow",
    "overhead": "a flow of a few steps",
}


@functools.cache
def load(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def entry(problem: str) -> dict:
    """A problem's entry of `peers.json`."""
    (found,) = (one for one in load("peers") if one["problem"] == problem)
    return found


def contenders(problem: str) -> list[str]:
    """Who took part, those of other libraries last."""
    tree = entry(problem)
    return [*_peers_table.names(tree, ours=True), *_peers_table.names(tree, ours=False)]


def draw_bars(
    ax: Axes, names: Sequence[str], values: Sequence[float | None], low: float, high: float
) -> None:
    """Horizontal bars on a logarithmic axis, from `low` on, with their numbers."""
    for k, (name, value) in enumerate(zip(names, values, strict=True)):
        colour = OURS if name.startswith("flowlin") else OTHERS
        if value:
            ax.barh(-k, value - low, left=low, color=colour, height=0.7)
        text = f" {value:.2g}" if value else " not reached"
        grey = "black" if value else "0.45"
        ax.text(value or low, -k, text, va="center", fontsize=9, color=grey)
    ax.set(xscale="log", xlim=(low, high))
    ax.set_yticks(range(0, -len(names), -1), names, fontsize=9)
    ax.grid(axis="y", visible=False)


def of_kinks() -> Figure:
    """Seconds until the parameters are right, across the kinks of a ReLU network."""
    tree = entry("relu tree")
    names = [name for name in contenders("relu tree") if _peers_table.best(tree, name, 1e-3)]
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.6), sharey=True)
    for ax, error in zip(axes, (1e-3, 1e-5), strict=True):
        found = [_peers_table.best(tree, name, error) for name in names]
        draw_bars(ax, names, [f and f["seconds"] for f in found], low=0.02, high=300)
        ax.set(title=f"to an error of {error:.0e}", xlabel="seconds")
    return figure


def of_evaluations() -> Figure:
    """Evaluations at matched error over those of flowlin, four problems."""
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 6.4))
    for ax, (problem, (mine, error, title)) in zip(axes.flat, PROBLEMS.items(), strict=True):
        one = entry(problem)
        own = _peers_table.best(one, mine, error)["evaluations"]
        names = [n for n in contenders(problem) if not n.startswith("flowlin")]
        best = [_peers_table.best(one, name, error) for name in names]
        ratios = {n: b["evaluations"] / own for n, b in zip(names, best, strict=True) if b}
        for k, ratio in enumerate(ratios.values()):
            ax.plot([1, ratio], [-k, -k], color=OTHERS, linestyle="-", lw=2, zorder=1)
            face = "white" if ratio < 1 else PLAIN
            ax.plot(ratio, -k, "o", color=PLAIN, markerfacecolor=face, markersize=6)
            text = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
            ax.annotate(text, (max(ratio, 1), -k), (6, 0), textcoords="offset points",
                        va="center", fontsize=9)  # fmt: skip
        ax.axvline(1, color="black", lw=1.2, linestyle="-")
        ax.set_yticks(range(0, -len(ratios), -1), ratios, fontsize=9)
        span = max(ratios.values())
        ax.set(xscale="log", xlim=(0.6 * min(1, *ratios.values()), 2 * span ** 1.25 + 1),
               ylim=(0.6 - len(ratios), 0.6), title=f"{title}\nerror {error:.0e}")  # fmt: skip
    for ax in axes[1]:
        ax.set_xlabel("evaluations over flowlin's")
    return figure


def of_events() -> Figure:
    """What an event of a walk costs, and up to which size the walk pays."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.7))
    wide = [row for row in load("border_wide") if row["events"]]
    x = [row["numbers"] for row in wide]
    left.loglog(x, [1e3 * row["exact"]["seconds"] / row["events"] for row in wide], "o",
                color=OURS, label="one hidden layer")  # fmt: skip
    left.set(xlabel="pairs + parameters", ylabel="milliseconds an event")
    left.set_title("an event costs more in larger networks")
    rows = [row for row in load("border") if row["task"] == "gaussian"]
    for error, marker in ((1e-4, "o"), (1e-6, "s")):
        for name, colour in (("exact", OURS), ("plain", PLAIN)):
            found = sorted(
                (row["PH"], row[name]["seconds"])
                for row in rows
                if row["target"] == error and row[name].get("seconds")
            )
            if found:
                label = f"{'exact walk' if name == 'exact' else 'across the kinks'}, {error:.0e}"
                right.loglog(*zip(*found, strict=True), marker=marker, color=colour, label=label,
                             linestyle="-" if error == 1e-4 else ":")  # fmt: skip
    right.set(xlabel="(unit, sample) pairs", ylabel="seconds to the error")
    right.set_title("the walk pays for small networks")
    right.legend(frameon=False, fontsize=9)
    for ax, ticks in ((left, (3_000, 10_000, 30_000)), (right, (200, 1_000, 5_000))):
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.xaxis.set_minor_formatter(NullFormatter())
    return figure


def of_first() -> Figure:
    """What the first call takes, and further ones."""
    jobs = {row["job"]: row for row in load("latency")}
    figure, ax = plt.subplots(figsize=(WIDTH, 3.0))
    for k, job in enumerate(JOBS):
        first, further = jobs[job]["first"], jobs[job]["further"]
        ax.plot([further, first], [-k, -k], color=OTHERS, linestyle="-", lw=2, zorder=1)
        ax.plot(first, -k, "o", color=OURS, label="first call: it compiles" if not k else None)
        ax.plot(further, -k, "s", color=PLAIN, label="further calls" if not k else None)
        for value, side in ((first, 1), (further, -1)):
            ax.annotate(f"{value:.2g} s", (value, -k), (7 * side, 0), textcoords="offset points",
                        va="center", ha="left" if side > 0 else "right", fontsize=9)  # fmt: skip
    ax.set_yticks(range(0, -len(JOBS), -1), JOBS.values())
    ax.set(xscale="log", xlabel="seconds", xlim=(3e-4, 40))
    ax.legend(frameon=False, loc="upper left", fontsize=9)
    return figure


def of_losses() -> Figure:
    """Where some peer is cheaper than all of flowlin, and by how much."""
    lost = [loss for one in load("peers") for loss in _peers_table.losses(one) if loss["times"]]
    units = ("seconds", "evaluations")
    parts = {unit: [loss for loss in lost if loss["unit"] == unit] for unit in units}
    sizes = [len(rows) for rows in parts.values()]
    figure, axes = plt.subplots(2, 1, figsize=(WIDTH, 0.9 + 0.27 * sum(sizes)), sharex=True,
                                height_ratios=sizes)  # fmt: skip
    for ax, (unit, rows) in zip(axes, parts.items(), strict=True):
        rows = sorted(rows, key=lambda row: -row["times"])
        for k, row in enumerate(rows):
            ax.barh(-k, row["times"] - 1, left=1, color=OTHERS, height=0.7)
            ax.text(row["times"], -k, f" {row['times']:.2f}", va="center", fontsize=9)
        names = [f"{row['peer']}: {row['problem']}, {row['target']:.0e}" for row in rows]
        ax.set_yticks(range(0, -len(rows), -1), names, fontsize=9)
        ax.set(xlim=(1, 4), title=f"fewer {unit}", ylim=(0.6 - len(rows), 0.6))
    axes[-1].set_xlabel("times cheaper than flowlin's cheapest")
    return figure


QUESTIONS = {  # the kind of flow: (question, answer to yes), from the top, and what is left
    "a ReLU network": (
        [
            ("a loss to 1e-3 is all,\nno event?", "a loop of descent\nis faster"),
            ("an implicit solver, or\nmodified_rate?", "kinks=fl.\nSmoothKinks(width)"),
            ("up to 10,000 pairs of\nunits and samples?", "as called:\nExactKinks()"),
        ],
        "as called: AveragedKinks();\nit warns",
    ),
    "a linear or another smooth flow": (
        [
            ("one closed form\n(theory.solve)?", "no solver at all"),
            ("outside of jit?", "as called: stiffness\nis measured"),
            ("not stiff?", "as called"),
            ("an error below 1e-4?", "solver=fl.\nRecycledBDF()"),
        ],
        "solver=fl.RKC()",
    ),
}
QUESTION = {"boxstyle": "round", "fc": "white", "ec": "0.4"}
ANSWER = {"boxstyle": "square", "fc": "#e3edf7", "ec": PLAIN}


def draw_ladder(ax: Axes, kind: str, rungs: Sequence[tuple[str, str]], rest: str) -> None:
    """Questions below one another, with the answer to yes beside each, and to the last no below."""

    def box(x: float, y: float, text: str, how: dict) -> Annotation:
        return ax.annotate(text, (x, y), bbox=how, ha="center", va="center", fontsize=9.5)

    def join(one: Annotation, other: Annotation, word: str, place: tuple[float, float]) -> None:
        ends = {"patchA": one.get_bbox_patch(), "patchB": other.get_bbox_patch()}
        how = {"arrowstyle": "->", "color": "0.4", "shrinkA": 0, "shrinkB": 0} | ends
        ax.annotate("", other.xy, one.xy, arrowprops=how)
        ax.annotate(word, place, ha="center", va="center", fontsize=9)

    asked = [box(0.25, -k, question, QUESTION) for k, (question, _) in enumerate(rungs)]
    below = [*asked[1:], box(0.25, -len(rungs), rest, ANSWER)]
    for k, ((_, answer), one, other) in enumerate(zip(rungs, asked, below, strict=True)):
        join(one, box(0.81, -k, answer, ANSWER), "yes", (0.55, 0.12 - k))
        join(one, other, "no", (0.3, -k - 0.5))
    ax.set(xlim=(0, 1), ylim=(-len(rungs) - 0.5, 0.5), title=kind)
    ax.axis("off")


def of_choice() -> Figure:
    """Which kinks and solver to ask for: one ladder of questions for each kind of flow."""
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 4.6))
    for ax, (kind, ladder) in zip(axes, QUESTIONS.items(), strict=True):
        draw_ladder(ax, kind, *ladder)
    return figure


FIGURES: dict[str, tuple[Callable[[], Figure], tuple[str, ...]]] = {
    "kinks": (of_kinks, ("peers",)),
    "choice": (of_choice, ()),
    "evaluations": (of_evaluations, ("peers",)),
    "events": (of_events, ("border", "border_wide")),
    "first": (of_first, ("latency",)),
    "losses": (of_losses, ("peers",)),
}


def made_from(names: Sequence[str]) -> str:
    """A hash of result files."""
    text = b"".join((RESULTS / f"{name}.json").read_bytes() for name in names)
    return hashlib.sha256(text).hexdigest()[:16]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=STATIC)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    with fl.plot.style():
        for name, (draw, results) in FIGURES.items():
            path = folder / f"{name}.png"
            draw().savefig(path, dpi=150, metadata={"made from": made_from(results)})
            print(path)


if __name__ == "__main__":
    main()
