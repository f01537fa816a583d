r"""M Fig. 11: the extended XOR over a grid of its linear margin $\Delta$. At small ones ReLU leaves
the plateau on which the linear network stays long; from 0.5 on both learn alike.

As M Fig. 5, for each Delta: the linear and the ReLU network with bias (c = 1) and without. Gradient
flow with exact walks, 64 hidden units, variance 2e-4. The paper lists no values of Delta and does
not say how the first two coordinates are coded: -1/+1 (drawn; the code that reproduces Fig. 5) and
0/1 are judged.

    python examples/paper/m_fig11.py [--quick | --full]
"""

import dataclasses
import functools
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import LOSSES, SHARES, both, half_widths, interval, more, same, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import Case, Setting, delay, runs, thin
from m_fig5 import CODES, KINDS, contradicted, decision, grid, reliance
from matplotlib.figure import Figure

SETTING = Setting(t1=400.0)
DELTAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
FIRST = "-1/+1"  # the code that is drawn
EARLY = 0.55  # share of the first loss above which only the mean has been learned: it is 1/2 there


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, values of Delta, the runs', points of the cube along an edge, codes."""

    seeds: int
    deltas: tuple[float, ...] = DELTAS
    setting: Setting = SETTING
    edge: int = 21
    codes: tuple[str, ...] = tuple(CODES)


SIZES = {
    "quick": Size(2, (0.1, 0.3, 0.5, 1.0), Setting(t1=100.0), edge=11),
    "default": Size(20),
    "full": Size(20),
}


Key = tuple[str, str]


@dataclasses.dataclass
class Data:
    """By code and kind: runs (Deltas, seeds), shares of x_3 (Deltas, seeds), corners.

    The latter are (Deltas, seeds, 4), positive where the decision follows x_3.
    """

    size: Size
    flows: dict[Key, list[list[fl.Trajectory]]]
    shares: dict[Key, np.ndarray]
    corners: dict[Key, np.ndarray]


def compute(size: Size) -> Data:
    """The runs, and what the networks have learned as in M Fig. 5."""
    data = Data(size, {}, {}, {})
    for code in size.codes:
        axes, behind = grid(code, size.edge), "" if code == FIRST else f" {code}"
        for kind, (network, c) in KINDS.items():
            flows = data.flows[code, kind] = [
                runs([Case(f"offset xor {delta:g}{behind}", network, c, seed)
                      for seed in range(size.seeds)], size.setting)
                for delta in size.deltas
            ]  # fmt: skip
            data.shares[code, kind] = np.array(
                [[reliance(decision(flow.final, axes))[0] for flow in row] for row in flows]
            )
            corners = [[contradicted(flow) for flow in row] for row in flows]
            data.corners[code, kind] = np.array(corners)
    return data


def shifted(data: Data, code: str, bias: str, level: float = 0.0) -> np.ndarray:
    """Difference of the losses over the first one that the best shift of time leaves.

    (Deltas, seeds), while the linear network has more than this share of its first loss.
    """
    flows = (data.flows[code, f"{kind}, {bias}"] for kind in ("ReLU", "linear"))
    return np.array([
        [delay(relu, linear, (level, np.inf))[1] for relu, linear in zip(*rows, strict=True)]
        for rows in zip(*flows, strict=True)
    ])  # fmt: skip


def turn(data: Data, code: str, kind: str) -> np.ndarray:
    """The least Delta from which on x_3 has more than half of the variance, by seed.

    Interpolated; the largest Delta where it never has, the smallest where it always has.
    """
    deltas, found = np.array(data.size.deltas), []
    for share in data.shares[code, kind].T:
        below = np.flatnonzero(share <= 0.5)
        k = below[-1] if len(below) else -1
        if k in (-1, len(deltas) - 1):
            found.append(deltas[max(k, 0)])
        else:
            found.append(np.interp(0.5, share[k : k + 2], deltas[k : k + 2]))
    return np.array(found)


def numbers(data: Data) -> dict[str, Any]:
    """By Delta, how far the losses are apart and what is learned; loss curves of seed 0."""
    found: dict[str, Any] = {"Delta": data.size.deltas, "t": thin(data.size.setting.ts)}
    for code in data.size.codes:
        left = shifted(data, code, "bias").mean(axis=1)
        found[f"largest difference of losses after a shift, {code}, bias, mean"] = left
    for (code, kind), flows in data.flows.items():
        share, corners = data.shares[code, kind], data.corners[code, kind]
        found[f"share of x_3, {code}, {kind}, mean"] = share.mean(axis=1)
        found[f"corners that follow x_3, {code}, {kind}"] = np.mean(corners > 0, axis=(1, 2))
        for delta, row in zip(data.size.deltas, flows if code == FIRST else [], strict=False):
            found[f"loss, {kind}, Delta {delta:g}"] = thin(row[0].losses, 30)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption, App. C.5 and Sec. 6.1; each is read off all Deltas."""
    return [_diverge(data), _phase(data), _pushes(data), _before(data), _settles(data)]


def _each(deltas: Any, *columns: Any) -> str:
    """Means with intervals, by Delta."""
    lines = (
        f"Delta = {d:g}: {' and '.join(interval(column[k], 2) for column in columns)}"
        for k, d in enumerate(deltas)
    )
    return "; ".join(lines)


def _diverge(data: Data) -> Row:
    deltas, found, texts = data.size.deltas, {}, []
    for code in data.size.codes:
        gaps = shifted(data, code, "bias")
        close = [same(row, LOSSES, of=len(deltas)) for row in gaps]
        far = [one is False for one in close]
        last = sum(far)
        only = far == [True] * last + [False] * (len(far) - last) and last > 0
        found[f"inputs {code}"] = None if only and True not in close else only
        alike = ", ".join(f"{d:g}" for d, c in zip(deltas, close, strict=True) if c) or "none"
        texts.append(
            f"inputs {code}: {_each(deltas, gaps)}; apart up to Delta = "
            f"{deltas[last - 1] if last else 0:g}, the same at {alike}"
        )
    return Row(
        claim="Dynamics of the linear and the ReLU network with bias diverge only for small Delta",
        quote="dynamics of linear and ReLU network with bias terms only diverge for small values "
        "of Δ",
        source="M Fig. 11, Sec. 6.1, App. C.5",
        measured="largest difference of the losses over the first loss, after the best shift of "
        f"time. {'. '.join(texts)}. Criterion: {LOSSES}, {len(deltas)} comparisons, apart for the "
        "smallest, for no larger one after them, and the same for some",
        verdict=verdict(found),
    )


def _phase(data: Data) -> Row:
    found, texts, number = {}, [], len(data.size.deltas)
    for code in data.size.codes:
        bias, none = (shifted(data, code, kind, EARLY) for kind in ("bias", "no bias"))
        found[f"inputs {code}"] = both(*(same(row, LOSSES, number) for row in bias))
        texts.append(f"inputs {code}: {_each(data.size.deltas, bias, none)}")
    return Row(
        claim="Even for very small offsets the dynamics are preserved in the initial bias phase",
        quote="Even for very small offsets the dynamics are preserved during the initial bias "
        "learning phase.",
        source="M App. C.5",
        measured="difference of the losses after the best shift while the linear network with "
        f"bias, and without, has more than {EARLY:g} of its first loss. {'. '.join(texts)}. "
        f"Criterion, with bias: {LOSSES}, {number} comparisons",
        verdict=verdict(found),
    )


def _pushed(bias: np.ndarray, none: np.ndarray, of: int) -> bool | None:
    """Whether a share is more with bias than without, or cannot be more: both are 1."""
    full = both(*(same(1 - share, SHARES, of) for share in (bias, none)))
    return True if full else more(bias, none, of)


def _pushes(data: Data) -> Row:
    found, texts, number = {}, [], len(data.size.deltas)
    for code in data.size.codes:
        bias, none = (data.shares[code, f"ReLU, {kind}"] for kind in ("bias", "no bias"))
        pairs = zip(bias, none, strict=True)
        found[f"inputs {code}"] = both(*(_pushed(*pair, number) for pair in pairs))
        texts.append(f"inputs {code}: {_each(data.size.deltas, bias, none)}")
    return Row(
        claim="Bias enhances the preference for the linear solution, robustly over Delta",
        quote="ReLU networks with bias terms have an enhanced preference for linear solutions ... "
        "bias terms robustly push models towards a preference for linear task solutions",
        source="M Sec. 6.1, Fig. 11, App. C.5",
        measured="share of the function's variance that is in x_3 with bias and without. "
        f"{'. '.join(texts)}. Criterion: more with bias for every Delta, paired, unless all is in "
        f"x_3 with and without ({SHARES}); {number} comparisons",
        verdict=verdict(found),
    )


def _before(data: Data) -> Row:
    at = data.size.deltas.index(0.5)
    found, texts = {}, []
    for code in data.size.codes:
        share = data.shares[code, "ReLU, no bias"][at]
        found[f"inputs {code}"] = more(0.5, share)
        bias, none = (interval(turn(data, code, f"ReLU, {b}")) for b in ("bias", "no bias"))
        texts.append(
            f"inputs {code}: {interval(share)} of the function's variance is in x_3 at Delta = "
            f"0.5, more than half from Delta = {none} on, with bias from {bias} on"
        )
    return Row(
        claim="Without bias ReLU networks turn to non-linear solutions well before the linear one "
        "is gone",
        quote="ReLU networks transition to non-linear solutions well before the problem becomes "
        "not linearly solvable",
        source="M Sec. 6.1, after Jarvis et al. 2025",
        measured=f"a linear solution is there for all Delta > 0. {'. '.join(texts)} (of Delta = "
        f"{', '.join(f'{d:g}' for d in data.size.deltas)}, interpolated). Criterion for well "
        "before: non-linear, less than half of the variance in x_3, at the Delta = 0.5 of Fig. 5",
        verdict=verdict(found),
    )


def _settles(data: Data) -> Row:
    deltas, texts, from_ = np.array(data.size.deltas), [], []
    for code in data.size.codes:
        corners = np.mean(data.corners[code, "ReLU, bias"] > 0, axis=2)
        found = {
            "variance in x_3": data.shares[code, "ReLU, bias"],
            "corners that follow x_3 where x_1, x_2 contradict it": corners,
        }
        above = {
            name: deltas[[more(row, 0.5, len(deltas)) is True for row in rows]]
            for name, rows in found.items()
        }
        told = (f"{name} at {', '.join(f'{d:g}' for d in some) or 'none'}"
                for name, some in above.items())  # fmt: skip
        texts.append(f"inputs {code}: {'; '.join(told)}")
        settled = functools.reduce(np.intersect1d, above.values())
        from_.append(f"inputs {code} from Delta = {settled.min():g} on" if len(settled) else
                     f"inputs {code} nowhere")  # fmt: skip
    return Row(
        claim="Where ReLU networks with bias settle on the linear solution",
        quote="in cases where a linear solution exists, they may still settle on a linear solution",
        source="M Sec. 6.1",
        measured=f"values of Delta at which more than half of these is linear ({data.size.seeds} "
        f"seeds). {'. '.join(texts)}",
        verdict=f"measured: {', '.join(from_)}",
        kind="control",
    )


def draw(data: Data) -> Figure:
    """Losses for four values of Delta."""
    deltas, ts = data.size.deltas, data.size.setting.ts
    figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.6), sharex=True, sharey=True)
    chosen = np.linspace(0, len(deltas) - 1, 4).round().astype(int)
    for ax, k in zip(axes.flat, chosen, strict=True):
        for label, kind in (("linear, bias", "linear"), ("ReLU, bias", "relu")):
            rows = np.array([flow.losses for flow in data.flows[FIRST, label][k]])
            colour = fl.plot.COLOURS[kind]
            ax.plot(ts, rows.T, color=colour, linestyle="-", linewidth=0.7, alpha=0.25)
            ax.plot(ts, rows.mean(axis=0), color=colour, linestyle="-", label=label)
        ax.set(title=f"$\\Delta$ = {deltas[k]:g}", xlim=(0, 40), ylim=(0, 0.55))
    for ax in axes[1]:
        ax.set_xlabel("flow time $t$ (units of $\\tau$)")
    for ax in axes[:, 0]:
        ax.set_ylabel("loss $L$")
    axes[0, 0].legend(fontsize="small", frameon=False, loc="upper right")
    return figure


def draw_delta(data: Data) -> Figure:
    r"""M Fig. 11 over all $\Delta$: how far ReLU and linear losses are apart (left), and how much
    of the ReLU function is in the linear coordinate $x_3$ (right). See: with bias (filled) losses
    differ only at small $\Delta$, and $x_3$ makes the function from smaller ones on than without
    (hollow).
    """
    deltas = data.size.deltas
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 4.0))
    marks = {"bias": {"linestyle": "-"}, "no bias": WITHOUT}
    for bias, how in marks.items():
        shown = shifted(data, FIRST, bias), data.shares[FIRST, f"ReLU, {bias}"]
        for ax, rows in zip(axes, shown, strict=True):
            ax.errorbar(deltas, rows.mean(axis=1), half_widths(rows.T), marker="o", capsize=2,
                        color=fl.plot.COLOURS["relu"], label=bias, **how)  # fmt: skip
    axes[0].set(title="ReLU and linear apart", xlabel=r"offset $\Delta$", ylim=(0, None),
                ylabel="loss difference / $L_0$, shifted")  # fmt: skip
    axes[1].set(title="variance of the ReLU function in $x_3$", xlabel=r"offset $\Delta$",
                ylabel="share", ylim=(0, 1.05))  # fmt: skip
    axes[1].legend(fontsize="small", frameon=False, loc="lower right")
    return figure


OTHERS = {"_delta": draw_delta}
STUDY = Study("m_fig11", SIZES, compute, draw, numbers, judge, others=OTHERS)

if __name__ == "__main__":
    STUDY.main(__doc__)
