"""What the figures on real images show alike: the losses in numbers and drawn."""

from typing import Any

import numpy as np
from _flows import losses_at, summary
from _images import LINEAR, Early, Run, Setting, flow_read, gaps, partings
from _judge import half_widths
from _paper import WITHOUT, fl

SAME, HALF = LINEAR
# Of networks: the name, and how they look; no bias is `WITHOUT`.
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("ReLU", {"color": fl.plot.COLOURS["relu"], "marker": "o"}),
    SAME: ("linear", {"color": fl.plot.COLOURS["linear"], "marker": "s"}),
    HALF: ("linear, half the width", {"color": fl.plot.COLOURS["linear"], "marker": "D"}),
}
FAINT = {HALF: 0.45}


def curves(phase: Early) -> dict[str, Any]:
    """All losses, (seeds, T), and what is read off them by seed."""
    found: dict[str, Any] = {"t": phase.descents["relu"][0].ts}
    for kind, runs in (("descent", phase.descents), ("flow", phase.flows), ("mean", phase.means)):
        for label, members in runs.items():
            if members:
                found[f"{kind} {label}"] = np.stack([m.losses for m in members])
    linear = [label for label in phase.descents if label != "relu"]
    if phase.closed:
        found["closed form linear"] = np.stack(phase.closed)
    found["mean gap until 90 % down, shares of 1/2"] = {k: gaps(phase, k) for k in linear}
    found["time of parting for good"] = {k: partings(phase, k) for k in linear}
    return found


def phase_again(
    found: dict[str, Any], setting: Setting, c: float, standardise: bool = False
) -> Early:
    """What `curves` found, as committed, and the ReLU networks' flows as a phase: to be drawn."""
    ts = np.array(found["t"])
    runs = {
        kind: {
            key.removeprefix(f"{kind} "): [Run(ts[: len(row)], np.array(row), {}) for row in rows]
            for key, rows in found.items()
            if key.startswith(f"{kind} ")
        }
        for kind in ("descent", "flow")
    }
    seeds = range(setting.flow_seeds or 0)
    files = [flow_read(setting, seed, c, standardise) for seed in seeds]
    closed = [np.array(row) for row in found.get("closed form linear", [])]
    early = (c, setting.rate, setting.early, runs["descent"], runs["flow"], {}, 0.5)
    return Early(*early, files, closed)


def flow_entries(phase: Early) -> list[dict[str, Any]]:
    """The ReLU networks' flows as a figure's numbers quote them: event times, cost and error."""
    return [summary(file, float(phase.descents["relu"][0].ts[-1])) for file in phase.files]


def error_words(phases: list[Early]) -> str:
    """The largest error of the events of some flows, as far as it is known."""
    errors = [f["error"] for phase in phases for f in phase.files if f["error"] is not None]
    return f", events to {100 * max(errors):.1g} %" if errors else ""


def draw_runs(phase: Early, ax: Any, shown: dict[str, str], bias: bool) -> None:
    """Losses against the root of time: descent as markers, flow as lines, intervals of the seeds.

    `shown`: the phase's labels by those of `LOOKS`.
    """
    for name, label in shown.items():
        word, look = LOOKS[name]
        faint = {"alpha": FAINT.get(name, 1.0)}
        more = {} if bias else WITHOUT
        descents, flows = phase.descents[label], phase.flows.get(label, [])
        ts, losses = descents[0].ts, stacked(descents)
        how = look | faint | more | {"linestyle": "none" if flows else more.get("linestyle", "-")}
        ax.plot(ts, losses.mean(axis=0), label=word, markersize=4, lw=1, **how)
        half = half_widths(losses)
        ax.fill_between(ts, losses.mean(axis=0) - half, losses.mean(axis=0) + half, lw=0,
                        color=look["color"], alpha=0.2)  # fmt: skip
        line = {"color": look["color"], "linestyle": more.get("linestyle", "-"), "lw": 1.6} | faint
        if name == "relu" and phase.files:
            fine = np.linspace(0, ts[-1] ** 0.5, 400) ** 2
            found = np.stack([losses_at(file, fine) for file in phase.files])
            ax.plot(fine, found.mean(axis=0), **line)
        elif flows:
            ax.plot(ts, stacked(flows).mean(axis=0), **line)
    if phase.closed:
        ax.plot(ts, np.mean(phase.closed, axis=0), ":", color="0.2", lw=1.2,
                label="linear, closed form of its modes")  # fmt: skip
    ax.set_xscale("function", functions=(lambda t: np.sqrt(np.maximum(t, 0)), np.square))
    end = ts[-1]
    ticks = [t for t in (0, 0.25, 1, 2, 4, 8, 12, 16, 24, 32, 48) if t <= end * 1.001]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set(xlim=(0, end), xlabel=rf"flow time $t$, root scale ({phase.rate:.3g} per step)")
    ax.set_ylabel("loss $L$")


def draw_half_times(phases: list[Early], ax: Any, title: str) -> None:
    """Half times of the first modes along the ReLU networks' flows, by seed, where reached."""
    for phase in phases:
        times = np.array([f["half times"] for f in phase.files], float)
        look = ({} if phase.c else WITHOUT) | {"linestyle": "none", "marker": "o", "ms": 4}
        labels = [f"c = {phase.c:g}" if phase.c else "without bias", *[None] * (len(times) - 1)]
        ax.plot(times.T, color=fl.plot.COLOURS["relu"], label=labels, **look)
    ax.set(title=title, xlabel="mode", ylabel="flow time of half strength", yscale="log")
    ax.legend(frameon=False, fontsize="small")


def draw_early(phase: Early, ax: Any, title: str, bias: bool, floor: float | None = None) -> None:
    """The same of all three networks; the loss of the best linear function of all images."""
    draw_runs(phase, ax, {name: name for name in LOOKS}, bias)
    if floor is not None:
        ax.axhline(floor, color="0.5", lw=0.9, ls=":", zorder=0)
        ax.annotate("best linear function", (0.02, floor), xycoords=("axes fraction", "data"),
                    va="bottom", fontsize="small", color="0.35")  # fmt: skip
    ax.set_title(title)


def stacked(runs: list[Run]) -> np.ndarray:
    """Losses, (seeds, T)."""
    return np.stack([run.losses for run in runs])
