"""What the figures on real images show alike: the early phase in numbers, in a row and drawn."""

from typing import Any

import numpy as np
from _images import LINEAR, Early, Setting, deviation, gaps, partings
from _paper import Row, fl


def curves(phase: Early, points: int = 20) -> dict[str, Any]:
    """The phase in numbers: seeds' mean and standard error at every few times."""
    some = slice(None, None, max(1, len(phase.descents["relu"][0].ts) // points))
    found: dict[str, Any] = {"t": np.asarray(phase.descents["relu"][0].ts)[some]}
    for kind, runs in (("descent", phase.descents), ("flow", phase.flows)):
        for label, members in runs.items():
            if members:
                rows = np.stack([np.asarray(m.losses)[some] for m in members])
                found[f"{kind} {label}"] = np.mean(rows, axis=0)
    found["mean gap until 90 % down, shares of 1/2"] = {k: gaps(phase, k) for k in phase.down}
    found["time of parting by 5 %"] = {k: partings(phase, k) for k in phase.down}
    found["90 % down"] = phase.down
    return found


def draw_early(phase: Early, ax: Any, title: str, floor: float | None = None) -> None:
    """Loss curves: descent as markers, flow as lines; the best linear function of all images."""
    linear, half = LINEAR
    shown = {
        "linear": phase.descents[linear],
        "linear, half width": phase.descents[half],
        "ReLU": phase.descents["relu"],
        "ReLU, flow": phase.flows["relu"],
        "linear, flow": phase.flows[linear],
        "linear, half width, flow": phase.flows[half],
    }
    fl.plot.losses({k: v for k, v in shown.items() if v}, ax)
    if floor is not None:
        ax.axhline(floor, color="0.5", lw=0.9, ls=":", zorder=0)
        ax.annotate("linear floor", (0.99, floor), xycoords=("axes fraction", "data"),
                    ha="right", va="bottom", fontsize="small", color="0.35")  # fmt: skip
    ax.set(title=title, xlabel=rf"flow time $t$ ({phase.rate:.3g} per step)")


def followed(setting: Setting, phases: dict[str, Early]) -> Row:
    """Whether descent follows the flow, for both ways to take the batch."""
    apart = {
        label: (deviation(p.flows["relu"], p.descents["relu"]), deviation(p.flows["relu"], p.mean))
        for label, p in phases.items()
    }
    worst = [max(a[k] for a in apart.values()) for k in (0, 1)]
    verdict = "does not hold"
    if worst[0] < 0.02:
        verdict = "holds"
    elif worst[1] < 0.02:
        verdict = "holds under a condition: the rate is per batch mean"
    ways = ("sum", "mean") if setting.mean_seeds else ("sum",)
    found = "; ".join(
        f"{k}: " + ", ".join(f"{w} {x:.2g}" for w, x in zip(ways, a, strict=False))
        for k, a in apart.items()
    )
    return Row(
        f"Descent at rate {setting.learning_rate:g} and batches of {setting.batch} follows "
        "gradient flow",
        "M Sec. 4, App. E",
        "largest distance of the ReLU network's losses (share of 1/2), by what is taken over the "
        f"batch, up to flow time {setting.early:g}, {setting.flow_seeds} seed; {found}; criterion: "
        "below .02",
        verdict,
    )
