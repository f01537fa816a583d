r"""M Fig. 11: the extended XOR over a grid of its linear margin.

As M Fig. 5 (inputs coded -1/+1, the code that reproduces it), for each Delta: the linear and the
ReLU network with bias (c = 1) and without. Gradient flow with exact walks, 64 hidden units,
variance 2e-4. The paper does not list its values of Delta.

    python examples/paper/m_fig11.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import LOSSES, both, half_widths, interval, more, same, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import Case, Setting, delay, runs, thin
from m_fig5 import KINDS, contradicted, decision, grid, reliance
from matplotlib.figure import Figure

SETTING = Setting(t1=400.0)
DELTAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
EARLY = 0.55  # share of the first loss above which only the mean has been learned: it is 1/2 there


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, values of Delta, the runs', points of the cube along an edge."""

    seeds: int
    deltas: tuple[float, ...] = DELTAS
    setting: Setting = SETTING
    edge: int = 21


SIZES = {
    "quick": Size(2, (0.1, 0.3, 0.5, 1.0), Setting(t1=100.0), edge=11),
    "default": Size(20),
    "full": Size(20),
}


@dataclasses.dataclass
class Data:
    """By kind: runs (Deltas, seeds); shares (Deltas, seeds, 2) and corners (Deltas, seeds, 4)."""

    size: Size
    flows: dict[str, list[list[fl.Trajectory]]]
    shares: dict[str, np.ndarray]
    corners: dict[str, np.ndarray]


def compute(size: Size) -> Data:
    """The runs, and what the networks have learned as in M Fig. 5."""
    data = Data(size, {}, {}, {})
    axes = grid("-1/+1", size.edge)
    for kind, (network, c) in KINDS.items():
        flows = data.flows[kind] = [
            runs([Case(f"offset xor {delta:g}", network, c, seed) for seed in range(size.seeds)],
                 size.setting)
            for delta in size.deltas
        ]  # fmt: skip
        data.shares[kind] = np.array(
            [[reliance(decision(flow.final, axes)) for flow in row] for row in flows]
        )
        data.corners[kind] = np.array([[contradicted(flow) for flow in row] for row in flows])
    return data


def shifted(data: Data, bias: str, level: float = 0.0) -> np.ndarray:
    """Difference of the losses over the first one that the best shift of time leaves.

    (Deltas, seeds), while the linear network has more than this share of its first loss.
    """
    pairs = zip(data.flows[f"ReLU, {bias}"], data.flows[f"linear, {bias}"], strict=True)
    return np.array([
        [delay(relu, linear, (level, np.inf))[1] for relu, linear in zip(*rows, strict=True)]
        for rows in pairs
    ])  # fmt: skip


def numbers(data: Data) -> dict[str, Any]:
    """By Delta, how far the losses are apart and what is learned; mean loss curves."""
    found: dict[str, Any] = {
        "Delta": data.size.deltas,
        "largest difference of losses after a shift, bias, mean": shifted(data, "bias").mean(
            axis=1
        ),
        "t": thin(data.size.setting.ts),
    }
    for kind in KINDS:
        found[f"share of x_3, {kind}, mean"] = data.shares[kind][..., 0].mean(axis=1)
        found[f"corners that follow x_3, {kind}"] = np.mean(data.corners[kind] > 0, axis=(1, 2))
        for delta, row in zip(data.size.deltas, data.flows[kind], strict=True):
            found[f"loss, {kind}, Delta {delta:g}"] = thin(row[0].losses, 30)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption and App. C.5; each is read off all Deltas."""
    return [_diverge(data), _phase(data), _pushes(data), _settles(data)]


def _each(deltas: Any, *columns: Any) -> str:
    """Means with intervals, by Delta."""
    lines = (
        f"Delta = {d:g}: {' and '.join(interval(column[k], 2) for column in columns)}"
        for k, d in enumerate(deltas)
    )
    return "; ".join(lines)


def _diverge(data: Data) -> Row:
    deltas, gaps = data.size.deltas, shifted(data, "bias")
    close = [same(row, LOSSES, of=len(deltas)) for row in gaps]
    far = [found is False for found in close]
    last = sum(far)
    only = far == [True] * last + [False] * (len(far) - last) and last > 0
    return Row(
        "Dynamics of the linear and the ReLU network with bias diverge only for small Delta",
        "M Fig. 11, Sec. 6.1, App. C.5",
        "largest difference of the losses over the first loss, after the best shift of time: "
        f"{_each(deltas, gaps)}; apart up to Delta = {deltas[last - 1] if last else 0:g}, the same "
        f"at {', '.join(f'{d:g}' for d, c in zip(deltas, close, strict=True) if c) or 'none'}; "
        f"criterion: {LOSSES}, {len(deltas)} comparisons, apart for the smallest, for no larger "
        "one after them, and the same for some",
        verdict(None if only and True not in close else only),
    )


def _phase(data: Data) -> Row:
    bias, none = (shifted(data, kind, EARLY) for kind in ("bias", "no bias"))
    number = len(bias)
    return Row(
        "Even for very small offsets the dynamics are preserved in the initial bias phase",
        "M App. C.5",
        "difference after the best shift while the linear network with bias, or without, has more "
        f"than {EARLY:g} of its first loss: {_each(data.size.deltas, bias, none)}; criterion: "
        f"{LOSSES}, {number} comparisons, and less than without bias for the smallest Delta",
        verdict(both(*(same(row, LOSSES, number) for row in bias), more(none[0], bias[0]))),
    )


def _pushes(data: Data) -> Row:
    bias, none = (data.shares[f"ReLU, {kind}"][..., 0] for kind in ("bias", "no bias"))
    return Row(
        "Bias robustly pushes ReLU networks towards the linear solution",
        "M Fig. 11, Sec. 6.1, App. C.5",
        "share of the function's variance in x_3 with and without bias: "
        f"{_each(data.size.deltas, bias, none)}; criterion: more with bias for every Delta, paired,"
        f" {len(bias)} comparisons",
        verdict(both(*(more(b, n, len(bias)) for b, n in zip(bias, none, strict=True)))),
    )


def _settles(data: Data) -> Row:
    deltas = np.array(data.size.deltas)
    corners = np.mean(data.corners["ReLU, bias"] > 0, axis=2)
    found = {
        "share of the variance in x_3": data.shares["ReLU, bias"][..., 0],
        "share of the corners that follow x_3 where x_1, x_2 contradict it": corners,
    }
    above = {
        name: deltas[[more(row, 0.5, len(deltas)) is True for row in rows]]
        for name, rows in found.items()
    }
    text = "; ".join(
        f"{name} above one half at Delta = {', '.join(f'{d:g}' for d in some) or 'none'}"
        for name, some in above.items()
    )
    first, second = above.values()
    settled = np.intersect1d(first, second)
    return Row(
        "Where ReLU networks with bias settle on the linear solution",
        "M Sec. 6.1 (which says that they may)",
        f"{text} ({corners.shape[1]} seeds)",
        f"control: from Delta = {settled.min():g} on" if len(settled) else "control: nowhere",
    )


def draw(data: Data) -> Figure:
    """Losses for every Delta, the difference over Delta, and the share of x_3."""
    deltas = data.size.deltas
    columns = (len(deltas) + 3) // 2
    figure, grid_ = plt.subplots(2, columns, figsize=(2.6 * columns, 5.4))
    axes = grid_.ravel()
    for ax, k in zip(axes, range(len(deltas)), strict=False):
        for label, kind in (("linear, bias", "linear"), ("ReLU, bias", "relu")):
            rows = np.array([flow.losses for flow in data.flows[label][k]])
            ts, colour = data.size.setting.ts, fl.plot.COLOURS[kind]
            ax.plot(ts, rows.T, color=colour, linestyle="-", linewidth=0.7, alpha=0.25)
            ax.plot(ts, rows.mean(axis=0), color=colour, linestyle="-", label=label)
        ax.set(title=f"$\\Delta$ = {deltas[k]:g}", xlim=(0, 40), ylim=(0, 0.55),
               xlabel="$t$ (units of $\\tau$)")  # fmt: skip
    axes[0].set_ylabel("loss $L$")
    axes[0].legend(fontsize="small", frameon=False)
    marks = {"bias": {"linestyle": "-"}, "no bias": WITHOUT}
    for bias, how in marks.items():
        for ax, rows in ((axes[-2], shifted(data, bias)),
                         (axes[-1], data.shares[f"ReLU, {bias}"][..., 0])):  # fmt: skip
            ax.errorbar(deltas, rows.mean(axis=1), half_widths(rows.T), marker="o", capsize=2,
                        color=fl.plot.COLOURS["relu"], label=bias, **how)  # fmt: skip
    axes[-2].set(title="ReLU and linear apart", xlabel=r"offset $\Delta$", ylim=(0, None),
                 ylabel="loss difference / $L_0$, shifted")  # fmt: skip
    axes[-1].set(title="variance in $x_3$ (ReLU)", xlabel=r"offset $\Delta$", ylabel="share",
                 ylim=(0, 1.05))  # fmt: skip
    axes[-1].legend(fontsize="small", frameon=False, loc="lower right")
    for ax in axes[len(deltas) : -2]:
        ax.remove()
    return figure


STUDY = Study("m_fig11", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
