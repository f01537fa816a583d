"""M Fig. 10: loss and activity on the hierarchy task for bias strengths c.

Gradient flow with exact walks, 64 hidden units, variance 2e-4; the paper does not list its c, here
0, 0.01, 0.03, 0.1, 0.3, 1, 3. Fractions are means over seeds of exact step functions; open (a
sliding unit counts as off) solid and closed (as on) dashed. At the start the always-on fraction is
E[Phi(c b)^P] for standard normal b.

    python examples/paper/m_fig10.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import PAPER, Setting, delay, gap, linearization, many, task_of, thin
from m_fig2 import CLOSE, stages
from matplotlib.figure import Figure
from numpy.polynomial.hermite_e import hermegauss
from scipy.stats import norm

PARTS = ("always_on", "gating", "off")
TITLES = ("always on", "gating", "off")


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, bias strengths (c = 0 among them), the runs'."""

    seeds: int
    strengths: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    setting: Setting = PAPER


SIZES = {"quick": Size(2, (0.0, 0.3, 1.0)), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """Runs by (kind, c); fractions by (c, closed): (seeds, T, 3) on, gating, off."""

    size: Size
    runs: dict[tuple[str, float], list[fl.Trajectory]]
    parts: dict[tuple[float, bool], np.ndarray]


def compute(size: Size) -> Data:
    """All runs."""
    runs = {
        (kind, c): many("tree", kind, c, size.seeds, size.setting)
        for c in size.strengths
        for kind in ("relu", "linear")
    }
    parts = {
        (c, closed): np.array([_parts(flow, closed) for flow in runs["relu", c]])
        for c in size.strengths
        for closed in (False, True)
    }
    return Data(size, runs, parts)


def _parts(flow: fl.Trajectory, closed: bool) -> np.ndarray:
    found = linearization(flow).activity(flow.ts, closed=closed)
    return np.stack([np.asarray(getattr(found, part)) for part in PARTS], axis=-1)


def expected_on(c: float, samples: int) -> float:
    """Always-on fraction at a Gaussian start with one-hot inputs, E[Phi(c b)^P]."""
    b, weight = hermegauss(120)
    return float(np.sum(weight * norm.cdf(c * b) ** samples) / np.sqrt(2 * np.pi))


def _pairs(data: Data, c: float) -> list[tuple[fl.Trajectory, fl.Trajectory]]:
    return list(zip(data.runs["relu", c], data.runs["linear", c], strict=True))


def numbers(data: Data) -> dict[str, Any]:
    """Thinned mean curves per c."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts, 30)}
    for c in data.size.strengths:
        losses = np.mean([flow.losses for flow in data.runs["relu", c]], axis=0)
        found[f"c = {c:g}: loss"] = thin(losses, 30)
        for closed in (False, True):
            name, mean = ("open", "closed")[closed], data.parts[c, closed].mean(axis=0)
            found |= {f"c = {c:g}: {part}, {name}": thin(mean[:, k], 30)
                      for k, part in enumerate(PARTS)}  # fmt: skip
        found[f"c = {c:g}: gap, delay, gap left"] = [
            np.mean([gap(*p) for p in _pairs(data, c)]),
            *np.mean([delay(*p) for p in _pairs(data, c)], axis=0),
        ]
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the four panels."""
    return [*_loss_rows(data), *_part_rows(data), _start_row(data)]


def _loss_rows(data: Data) -> list[Row]:
    strengths = [c for c in data.size.strengths if c > 0]
    number = {c: np.mean([stages(f) for f in data.runs["relu", c]]) for c in data.size.strengths}
    linear = {c: np.mean([stages(f) for f in data.runs["linear", c]]) for c in data.size.strengths}
    left = {c: np.array([delay(*p) for p in _pairs(data, c)]) for c in data.size.strengths}
    staged = [c for c in strengths if number[c] >= 1.95]
    close = [c for c in strengths if left[c][:, 1].mean() <= CLOSE]
    text = "; ".join(f"c = {c:g}: ReLU {number[c]:.2g}, linear {linear[c]:.2g}" for c in number)
    gaps = "; ".join(f"c = {c:g}: {v[:, 1].mean():.3f}" for c, v in left.items())
    bare = left[0.0][:, 1]
    others = np.mean([left[c][:, 1] for c in strengths], axis=0)
    return [
        Row(
            "Losses display stage-like learning in all cases where c > 0",
            "M Fig. 10 left, App. C.4",
            f"separate drops of the loss, mean of {data.size.seeds} seeds: {text}",
            _some(staged, strengths),
        ),
        Row(
            "Networks with c > 0 are aligned to linear ones",
            "M Fig. 10 left, App. C.4",
            f"largest difference of the losses from the linear network's of the same c, after the "
            f"best shift, over the initial loss: {gaps}",
            _some(close, strengths),
        ),
        Row(
            "Only networks without bias significantly diverge from linear dynamics",
            "M Fig. 10 left, App. C.4",
            f"the same for c = 0: {interval(bare)}; mean over c > 0: {interval(others)}",
            "holds" if np.mean(bare > others) > 0.95 else "does not hold",
        ),
    ]


def _some(good: list[float], strengths: list[float]) -> str:
    if good == strengths:
        return "holds"
    if not good:
        return "does not hold"
    return f"holds under a condition: c = {', '.join(f'{c:g}' for c in good)}"


def _part_rows(data: Data) -> list[Row]:
    strengths = [c for c in data.size.strengths if c > 0]
    rows = []
    for closed in (False, True):
        name = ("open", "closed")[closed]
        most = {c: data.parts[c, closed][:, :, 0].max(axis=1) for c in data.size.strengths}
        when = {c: data.size.setting.ts[data.parts[c, closed].mean(axis=0)[:, 0].argmax()]
                for c in data.size.strengths}  # fmt: skip
        good = [c for c in strengths if most[c].mean() > 0.5]
        text = "; ".join(
            f"c = {c:g}: {v.mean():.3f} near t = {when[c]:.3g}" for c, v in most.items()
        )
        rows.append(
            Row(
                f"The linear fraction shoots up early irrespective of c unless c = 0 (sliding: "
                f"{name})",
                "M Fig. 10 left-center, App. C.4",
                f"largest always-on fraction (more than half is called high): {text}",
                _some(good, strengths),
            )
        )
        gating = {c: data.parts[c, closed][:, :, 1] for c in data.size.strengths}
        least = {c: v.min(axis=1).mean() for c, v in gating.items()}
        small = [c for c in strengths if least[c] < 0.5 * least[0.0]]
        text = "; ".join(
            f"c = {c:g}: {v.min(axis=1).mean():.3f}, at the end {v[:, -1].mean():.3f}"
            for c, v in gating.items()
        )
        rows.append(
            Row(
                f"The gating fraction is small unless c = 0 (sliding: {name})",
                "M Fig. 10 right-center, App. C.4",
                f"smallest over the run (less than half of that at c = 0 is called small): {text}",
                _some(small, strengths),
            )
        )
    off = {c: data.parts[c, False][:, :, 2] for c in data.size.strengths}
    text = "; ".join(f"c = {c:g}: {v[:, 0].mean():.3f}, {v[:, -1].mean():.3f}"
                     for c, v in off.items())  # fmt: skip
    grows = all(v[:, -1].mean() >= v[:, 0].mean() for v in off.values())
    rows.append(
        Row(
            "Dead units: those at the start, which stay",
            "M Fig. 10 right, Sec. 5",
            f"off fraction at the start and the end: {text}",
            "holds under a condition: more units die during the run" if grows else "does not hold",
        )
    )
    return rows


def _start_row(data: Data) -> Row:
    samples = task_of("tree").samples
    theory = {c: expected_on(c, samples) for c in data.size.strengths}
    found = {c: data.parts[c, False][:, 0, 0] for c in data.size.strengths}
    units = data.size.seeds * data.size.setting.hidden
    off = [(v.mean() - theory[c]) / np.sqrt(theory[c] * (1 - theory[c]) / units)
           for c, v in found.items()]  # fmt: skip
    text = "; ".join(f"c = {c:g}: {v.mean():.4f} ({theory[c]:.4f})" for c, v in found.items())
    return Row(
        "At the start the always-on fraction is E[Phi(c b)^P]",
        "M Fig. 10, expectation at the start",
        f"measured (expected): {text}; largest deviation {np.max(np.abs(off)):.2g} standard errors",
        "holds" if np.max(np.abs(off)) < 4 else "does not hold",
    )


def draw(data: Data) -> Figure:
    """Loss, always on, gating, off."""
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 6.6))
    ts, strengths = data.size.setting.ts, data.size.strengths
    colours = ["#DD0000", *fl.plot.shades("linear", len(strengths) - 1)]
    for c, colour in zip(strengths, colours, strict=True):
        losses = np.mean([flow.losses for flow in data.runs["relu", c]], axis=0)
        how: dict[str, Any] = {
            "color": colour,
            "linewidth": 1.4 if c else 4.0,
            "zorder": 2 if c else 1,
        }
        axes[0, 0].plot(ts, losses, linestyle="-", label=f"c = {c:g}", **how)
        for ax, k in zip(axes.flat[1:], range(3), strict=True):
            for closed, dash in ((False, "-"), (True, "--")):
                ax.plot(ts, data.parts[c, closed].mean(axis=0)[:, k], linestyle=dash, **how)
    axes[0, 0].set(ylabel="loss $L$", title="loss", xlim=(0, 40))
    axes[0, 0].legend(fontsize="small", frameon=False)
    for ax, title in zip(axes.flat[1:], TITLES, strict=True):
        ax.set(title=f"{title} (solid: open, dashed: closed)", ylabel="fraction of hidden units")
        ax.set(ylim=(0, 1))
    for ax in axes.flat:
        ax.set_xlabel("flow time $t$ (units of $\\tau$)")
    return figure


STUDY = Study("m_fig10", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
