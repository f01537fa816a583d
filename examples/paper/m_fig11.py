r"""M Fig. 11: the extended XOR over a grid of its linear margin.

As M Fig. 5 (inputs coded -1/+1, the code that reproduces it), for each Delta: the linear and the
ReLU network with bias (c = 1), and the ReLU network without. Gradient flow with exact walks, 64
hidden units, variance 2e-4. The paper does not list its values of Delta.

    python examples/paper/m_fig11.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import Case, Setting, delay, gap, runs, thin
from m_fig5 import contradicted, decision, grid, reliance
from matplotlib.figure import Figure

KINDS = {"linear, bias": ("linear", 1.0), "ReLU, bias": ("relu", 1.0), "ReLU, no bias": ("relu", 0)}
SETTING = Setting(t1=400.0)
DELTAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
APART = 0.1  # difference of losses over the first one, from which on they diverge
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
    "default": Size(10),
    "full": Size(10),
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


def apart(data: Data) -> np.ndarray:
    """Difference of both biased networks' losses over the first one, (Deltas, seeds, 2).

    The largest one, and what is left of it after the best shift of time.
    """
    pairs = zip(data.flows["ReLU, bias"], data.flows["linear, bias"], strict=True)
    return np.array(
        [[(gap(*pair), delay(*pair)[1]) for pair in zip(*rows, strict=True)] for rows in pairs]
    )


def early(data: Data) -> np.ndarray:
    """Times of the ReLU over the linear network until the mean is learned, (Deltas, seeds).

    That is, until the loss has fallen to `EARLY` of the first one.
    """

    def time(flow: fl.Trajectory) -> float:
        losses = np.asarray(flow.losses)
        return float(np.interp(-EARLY * losses[0], -losses, data.size.setting.ts))

    pairs = zip(data.flows["ReLU, bias"], data.flows["linear, bias"], strict=True)
    return np.array([[time(a) / time(b) for a, b in zip(*rows, strict=True)] for rows in pairs])


def numbers(data: Data) -> dict[str, Any]:
    """By Delta, how far the losses are apart and what is learned; mean loss curves."""
    found: dict[str, Any] = {
        "Delta": data.size.deltas,
        "largest difference of losses, bias, mean, as it is and shifted": apart(data).mean(axis=1),
        "time to learn the mean, ReLU / linear, mean": early(data).mean(axis=1),
        "t": thin(data.size.setting.ts),
    }
    for kind in KINDS:
        found[f"share of x_3, {kind}, mean"] = data.shares[kind][..., 0].mean(axis=1)
        found[f"corners that follow x_3, {kind}"] = np.mean(data.corners[kind] > 0, axis=(1, 2))
        for delta, row in zip(data.size.deltas, data.flows[kind], strict=True):
            found[f"loss, {kind}, Delta {delta:g}"] = thin(row[0].losses, 30)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption and App. C.5."""
    deltas, gaps, times = np.array(data.size.deltas), apart(data), early(data)
    each = "; ".join(
        f"Delta = {d:g}: {interval(g[:, 0])}, {interval(g[:, 1])}"
        for d, g in zip(deltas, gaps, strict=True)
    )
    diverge = gaps[..., 1].mean(axis=1) > APART
    largest = deltas[diverge].max() if diverge.any() else 0.0
    small = not diverge.all() and np.array_equal(diverge, deltas <= largest)
    paces = "; ".join(f"Delta = {d:g}: {interval(r)}" for d, r in zip(deltas, times, strict=True))
    near = np.abs(times.mean(axis=1) - 1) < 0.35
    bias, none = (data.shares[f"ReLU, {kind}"][..., 0] for kind in ("bias", "no bias"))
    linear = bias.mean(axis=1) > 0.5
    corners = np.mean(data.corners["ReLU, bias"] > 0, axis=(1, 2))
    follow = corners > 0.5
    return [
        Row(
            "Dynamics of the linear and the ReLU network with bias diverge only for small Delta",
            "M Fig. 11, Sec. 6.1, App. C.5",
            "largest difference of the losses over the first loss, as it is and after the best "
            f"shift of time: {each}; the latter above {APART:g} up to Delta = {largest:g}",
            f"holds under a condition: small means Delta <= {largest:g}"
            if small and diverge.any()
            else "does not hold",
        ),
        Row(
            "Even for very small offsets the dynamics are preserved in the initial bias phase",
            "M App. C.5",
            f"time until the mean is learned (loss at {EARLY:g} of the first), ReLU over linear: "
            f"{paces}",
            "holds"
            if near.all()
            else f"holds under a condition: Delta >= {deltas[near].min():g}"
            if near.any()
            else "does not hold",
        ),
        Row(
            "Bias robustly pushes ReLU networks towards the linear solution",
            "M Fig. 11, App. C.5",
            "share of the function's variance in x_3 with and without bias: "
            + "; ".join(
                f"Delta = {d:g}: {interval(b, 2)} and {interval(n, 2)}"
                for d, b, n in zip(deltas, bias, none, strict=True)
            ),
            "holds" if np.all(bias.mean(axis=1) > none.mean(axis=1)) else "does not hold",
        ),
        Row(
            "ReLU networks with bias settle on the linear solution",
            "M Sec. 6.1",
            "share in x_3 above one half at Delta = "
            + (", ".join(f"{d:g}" for d in deltas[linear]) or "none")
            + "; where x_3 contradicts x_1, x_2 at most corners they follow x_3 at Delta = "
            + (", ".join(f"{d:g}" for d in deltas[follow]) or "none"),
            "holds"
            if linear.all() and follow.all()
            else f"holds under a condition: Delta >= {deltas[linear & follow].min():g}"
            if np.any(linear & follow)
            else "does not hold",
        ),
    ]


def draw(data: Data) -> Figure:
    """Losses for every Delta, the difference over Delta, and the share of x_3."""
    deltas = data.size.deltas
    columns = (len(deltas) + 3) // 2
    figure, grid_ = plt.subplots(2, columns, figsize=(2.6 * columns, 5.2))
    axes = grid_.ravel()
    for ax, k in zip(axes, range(len(deltas)), strict=False):
        curves = {kind: fl.Sweep(data.flows[kind][k]) for kind in ("linear, bias", "ReLU, bias")}
        fl.plot.losses(curves, ax)
        end = max(float(_end(flow)) for runs_ in curves.values() for flow in runs_)
        ax.set(title=f"$\\Delta$ = {deltas[k]:g}", xlim=(0, end), xlabel="$t$ (units of $\\tau$)")
        if k:
            ax.get_legend().remove()
    for k, (label, dash) in enumerate((("as it is", "-"), ("time shifted", "--"))):
        fl.plot.sweep_line(
            deltas, apart(data)[..., k].T, axes[-2], label=label, linestyle=dash,
            color=fl.plot.COLOURS["relu"], names=(r"offset $\Delta$", "loss difference / $L_0$"),
        )  # fmt: skip
    for kind in KINDS:
        network, n = ("linear", 0) if "linear" in kind else ("relu", "no bias" in kind)
        fl.plot.sweep_line(
            deltas, data.shares[kind][..., 0].T, axes[-1], label=kind,
            names=(r"offset $\Delta$", "variance share of $x_3$"), **fl.plot.look(network, int(n)),
        )  # fmt: skip
    axes[-1].set_ylim(-0.03, 1.7)
    axes[-1].legend(fontsize="small", frameon=False, loc="upper center")
    for ax in axes[len(deltas) : -2]:
        ax.remove()
    return figure


def _end(flow: fl.Trajectory) -> float:
    """A time shortly after the loss has fallen to a hundredth."""
    losses = np.asarray(flow.losses)
    return min(
        float(flow.ts[-1]), 1.3 * float(np.interp(-0.01 * losses[0], -losses, np.asarray(flow.ts)))
    )


STUDY = Study("m_fig11", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
