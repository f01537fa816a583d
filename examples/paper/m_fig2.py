"""M Fig. 2 (W Fig. 1 and 2B): linear and ReLU networks on the hierarchy task and on XOR.

Gradient flow, 64 hidden units, variance 2e-4, c = 1 or 0 (no bias), exact walks through the kinks,
mean and standard error over seeds; seed 0 also as descent at the paper's rate (half the summed
squared error, 2e-4: 625 steps of it are a unit of flow time).

Left open by the text: the tree's features (one per node, 15; also without the root's), XOR's
coordinates (-1/+1 and 0/1 are both run; -1/+1 is drawn, where the linear network without bias
learns nothing), the kind of multidimensional scaling (classical, all times jointly). "Exact" is
the closed form of isolated modes of any imbalance; Eq. 7 with the balanced part of the initial
strengths stands in the table.

    python examples/paper/m_fig2.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import (
    PAPER,
    Case,
    Setting,
    delay,
    gap,
    many,
    modes_of,
    product_losses,
    start,
    task_of,
    thin,
)
from matplotlib.figure import Figure
from scipy.signal import find_peaks

CLOSE = 0.05  # of the initial loss: curves that differ by less would be drawn as one
TASKS = ("tree", "rootless", "xor", "xor 0/1")


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, the runs', and the rate of the one descent (0: none)."""

    seeds: int
    setting: Setting = PAPER
    tasks: tuple[str, ...] = TASKS
    learning_rate: float = 2e-4


SIZES = {
    "quick": Size(2, tasks=("tree", "xor"), learning_rate=0.0),
    "default": Size(20),
    "full": Size(20),
}


@dataclasses.dataclass
class Data:
    """Runs by (task, kind, c); exact losses of the linear runs on the tree; one descent."""

    size: Size
    runs: dict[tuple[str, str, float], list[fl.Trajectory]]
    exact: list[np.ndarray]
    eq7: list[np.ndarray]
    negative: list[int]
    descent: fl.Trajectory | None


def compute(size: Size) -> Data:
    """All runs, and the closed forms."""
    runs = {
        (task, kind, c): many(task, kind, c, size.seeds, size.setting)
        for task in size.tasks
        for kind in ("linear", "relu")
        for c in (1.0, 0.0)
    }
    exact, eq7, negative = [], [], []
    for seed in range(size.seeds):
        network = start(Case("tree", "linear", 1.0, seed), size.setting)
        solution = fl.theory.solve(network, task_of("tree"))
        assert solution.certificate.negative is not None  # of two layers
        exact.append(np.asarray(solution.loss(size.setting.ts)))
        eq7.append(_eq7(network, size.setting))
        negative.append(int(solution.certificate.negative))
    return Data(size, runs, exact, eq7, negative, _descent(size))


def _eq7(network: fl.LinearNetwork, setting: Setting) -> np.ndarray:
    """Loss of Eq. 7 from the balanced parts of the initial strengths."""
    modes = modes_of("tree", 1.0)
    a0 = fl.theory.balanced_strength(network, modes)
    a = fl.theory.mode_strength(setting.ts[:, None], modes.s, modes.d, a0)
    return product_losses((modes.u * np.asarray(a)[:, None, :]) @ modes.v.T, task_of("tree"), 1.0)


def _descent(size: Size) -> fl.Trajectory | None:
    """The biased ReLU network of seed 0 by descent, saved in units of flow time."""
    if not size.learning_rate:
        return None
    task = task_of("tree")
    network = start(Case("tree", "relu", 1.0, 0), size.setting)
    # Half the mean at P times the rate is half the sum at the rate, and counts flow time.
    rate = size.learning_rate * task.samples
    return fl.gradient_descent(network, task, rate, t1=size.setting.t1)


# What the panels show, in numbers


def matched(late: fl.Trajectory, early: fl.Trajectory) -> tuple[float, float]:
    """(gap, exit): difference before the linear plateau, and when the ReLU network goes below.

    The plateau begins when the linear loss has made 95 % of its drop; up to there the largest
    difference after the best shift, over the initial loss. `exit` is when the ReLU loss is `CLOSE`
    below the linear network's last, in units of the plateau's beginning.
    """
    ts, a, b = (np.asarray(v) for v in (early.ts, late.losses, early.losses))
    plateau = np.flatnonzero(b <= b[-1] + 0.05 * (b[0] - b[-1]))[0]
    window = ts[: plateau + 1]
    shifts = np.linspace(0, window[-1], 401)
    gaps = [np.max(np.abs(np.interp(window + s, ts, a) - b[: plateau + 1])) for s in shifts]
    below = np.flatnonzero(a < b[-1] - CLOSE * b[0])
    out = ts[below[0]] / window[-1] if len(below) else np.inf
    return float(min(gaps) / b[0]), float(out)


def stages(flow: fl.Trajectory) -> int:
    """Number of separate drops of the loss: peaks of -dL/dt of at least 5 % of the highest."""
    t = np.linspace(0, flow.ts[-1], 2401)
    speed = -np.gradient(np.interp(t, flow.ts, flow.losses), t)
    speed = np.convolve(speed, np.ones(9) / 9, mode="same")
    return len(find_peaks(np.concatenate([[0], speed]), prominence=0.02 * speed.max())[0])


def splits(flow: fl.Trajectory) -> np.ndarray:
    """When the distances within pairs of siblings, of cousins, and across the root are half grown.

    And how far siblings are apart, as a share of their final distance, when the root has split.
    """
    hidden = fl.measures.along(flow, fl.measures.hidden)
    apart = np.asarray(fl.measures.distances(hidden))
    k = np.arange(apart.shape[1])
    near = [k[:, None] // 2**n == k // 2**n for n in range(4)]
    curves = [apart[:, near[n + 1] & ~near[n]].mean(axis=1) for n in range(3)]
    half = [_first(flow.ts, curve, 0.5 * curve[-1]) for curve in curves]
    return np.array([*half, np.interp(half[2], flow.ts, curves[0]) / curves[0][-1]])


def _first(ts: Any, curve: np.ndarray, level: float) -> float:
    """First time at which a saved curve reaches a level, interpolated."""
    ts, k = np.asarray(ts), int(np.argmax(curve >= level))
    if k == 0:
        return float(ts[0])
    return float(np.interp(level, curve[k - 1 : k + 1], ts[k - 1 : k + 1]))


def _pairs(data: Data, task: str, c: float) -> list[tuple[fl.Trajectory, fl.Trajectory]]:
    return list(zip(data.runs[task, "relu", c], data.runs[task, "linear", c], strict=True))


def floor(labels: np.ndarray, x: np.ndarray) -> float:
    """Least half squared error of an affine map."""
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    errors = labels - x @ np.linalg.lstsq(x, labels, rcond=None)[0]
    return float(0.5 * np.mean(np.sum(errors**2, axis=1)))


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, gaps and delays, split times."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for (task, kind, c), flows in data.runs.items():
        found[f"loss, {task}, {kind}, c = {c:g}"] = thin(flows[0].losses)
    found["loss, tree, exact"] = thin(data.exact[0])
    for task in data.size.tasks:
        for c in (1.0, 0.0):
            pairs = _pairs(data, task, c)
            rows = [(gap(a, b), *delay(a, b)) for a, b in pairs]
            found[f"gap, delay, gap left by seed, {task}, c = {c:g}"] = np.array(rows)
    for kind, c in (("linear", 1.0), ("relu", 1.0), ("relu", 0.0)):
        rows = [splits(flow) for flow in data.runs["tree", kind, c]]
        found[f"splits (siblings, cousins, root; share), {kind}, c = {c:g}"] = np.mean(rows, axis=0)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on panels B, D, E."""
    return [*_tree_rows(data), *_exact_rows(data), *_xor_rows(data), *_mds_rows(data)]


def _tree_rows(data: Data) -> list[Row]:
    pairs, bare = _pairs(data, "tree", 1.0), data.runs["tree", "relu", 0.0]
    gaps, left = np.array([gap(*p) for p in pairs]), np.array([delay(*p) for p in pairs])
    number = [[stages(f) for f in data.runs["tree", k, 1.0]] for k in ("relu", "linear")]
    bare_number = [stages(f) for f in bare]
    rows = [
        Row(
            "ReLU networks with bias closely track the linear ones, with a slight time shift",
            "M Fig. 2B, Sec. 4",
            f"largest difference of the losses over the initial one {interval(gaps)}; after a "
            f"shift of {interval(left[:, 0])} units of time, {interval(left[:, 1])}",
            "holds" if left[:, 1].mean() <= CLOSE else "does not hold",
        ),
        *(_bare_row(data, name) for name in data.size.tasks if not name.startswith("xor")),
        Row(
            "Biased ReLU networks learn in stages like linear ones",
            "M Fig. 2B, Sec. 4",
            f"separate drops of the loss: ReLU {np.mean(number[0]):.2g}, linear "
            f"{np.mean(number[1]):.2g}, ReLU without bias {np.mean(bare_number):.2g} (mean of "
            f"{len(pairs)} seeds)",
            "holds" if number[0] == number[1] and min(number[0]) > 1 else "does not hold",
        ),
    ]
    if data.descent is not None:
        flow, descent = data.runs["tree", "relu", 1.0][0], data.descent
        off = np.abs(np.interp(descent.ts, flow.ts, flow.losses) - np.asarray(descent.losses))
        off = float(np.max(off) / flow.losses[0])
        rows.append(
            Row(
                "A learning rate of 2e-4 is gradient flow",
                "M App. E, Sec. 4",
                f"largest difference of the losses of descent and flow over the initial one "
                f"{off:.1e} (seed 0, {int(descent.stats['num_steps']):,} steps; the flow is "
                f"interpolated between {data.size.setting.points} times)",
                "holds" if off < 0.01 else "does not hold",
            )
        )
    return rows


def _bare_row(data: Data, task: str) -> Row:
    pairs, bare = _pairs(data, task, 1.0), _pairs(data, task, 0.0)
    gaps, left = (np.array([f(*p)[-1] for p in pairs]) for f in (_gaps, delay))
    gaps0, left0 = (np.array([f(*p) for p in bare]) for f in (_gaps, delay))
    apart, apart_unshifted = np.mean(left0[:, 1] > left), np.mean(gaps0[:, 0] > gaps)
    what = "" if task == "tree" else " without its root"
    return Row(
        f"Without bias the connection breaks down and the dynamics diverge (tree{what})",
        "M Fig. 2B, Sec. 4",
        f"largest difference {interval(gaps0[:, 0])} of the initial loss, after a shift of "
        f"{interval(left0[:, 0])}: {interval(left0[:, 1])}; with bias {interval(gaps)} and "
        f"{interval(left)}; greater than that in {apart_unshifted:.0%} (unshifted) and {apart:.0%} "
        "(shifted) of the seeds",
        "holds"
        if apart > 0.95
        else "holds under a condition: without the shift that is granted to the biased ones"
        if apart_unshifted > 0.95
        else "does not hold",
    )


def _gaps(late: fl.Trajectory, early: fl.Trajectory) -> tuple[float]:
    return (gap(late, early),)


def _exact_rows(data: Data) -> list[Row]:
    linear, relu = data.runs["tree", "linear", 1.0], data.runs["tree", "relu", 1.0]
    scale = float(linear[0].losses[0])
    gaps = [
        [
            np.max(np.abs(np.asarray(f.losses) - x)) / scale
            for f, x in zip(linear, curves, strict=True)
        ]
        for curves in (data.exact, data.eq7)
    ]
    to_relu = [
        delay(f, dataclasses.replace(g, losses=x))
        for f, g, x in zip(relu, linear, data.exact, strict=True)
    ]
    to_relu = np.array(to_relu)
    return [
        Row(
            "Exact solutions for linear networks agree with the linear runs",
            "M Fig. 2B; erratum: raw a0 may be negative",
            f"largest difference over the initial loss: isolated modes {interval(gaps[0], 2)}, "
            f"Eq. 7 from the balanced part of a_0 {interval(gaps[1], 2)}; the raw a_0 of "
            f"{np.mean(data.negative):.2g} of the modes are negative, where Eq. 7 has no use",
            "holds under a condition: a_0 is the balanced part of the initial strengths"
            if np.mean(gaps[1]) < 0.02
            else "does not hold",
        ),
        Row(
            "Exact solutions almost perfectly match biased ReLU networks, with a slight time shift",
            "M Sec. 4",
            f"after a shift of {interval(to_relu[:, 0])} the losses differ by at most "
            f"{interval(to_relu[:, 1])} of the initial one",
            "holds" if to_relu[:, 1].mean() <= CLOSE else "does not hold",
        ),
    ]


def _xor_rows(data: Data) -> list[Row]:
    rows = []
    for task in (name for name in data.size.tasks if name.startswith("xor")):
        biased = np.array([matched(*p) for p in _pairs(data, task, 1.0)])
        good = biased[:, 0].mean() <= CLOSE and np.median(biased[:, 1]) >= 1
        rows.append(
            Row(
                f"On {_name(task)}, biased ReLU and linear networks match until the linear plateau",
                "M Fig. 2D, Sec. 4",
                f"before it, after the best shift, the losses differ by at most "
                f"{interval(biased[:, 0])} of the initial one; the ReLU network goes below the "
                f"plateau at {np.median(biased[:, 1]):.2g} times its beginning (median)",
                "holds" if good else "does not hold",
            )
        )
        bare = _pairs(data, task, 0.0)
        learnt = np.mean([1 - g.losses[-1] / g.losses[0] for _, g in bare])
        apart = np.array([matched(*p)[0] if learnt > 0.01 else gap(*p) for p in bare])
        rows.append(
            Row(
                f"On {_name(task)}, the match breaks down without bias",
                "M Fig. 2D, Sec. 4",
                f"the linear network removes {learnt:.0%} of the loss; difference "
                f"{'before its plateau' if learnt > 0.01 else 'of the whole curves'} "
                f"{interval(apart)} of the initial loss",
                "holds" if apart.mean() > 2 * biased[:, 0].mean() else "does not hold",
            )
        )
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1.0]])
    listed = np.repeat(np.eye(2), 2, axis=0)
    floors = floor(listed, x), floor(listed[[0, 2, 3, 1]], x)
    rows.append(
        Row(
            "XOR's labels are [1,0], [1,0], [0,1], [0,1]",
            "M App. E, erratum B.15",
            f"least loss of an affine map with the inputs in the order 00, 01, 10, 11: "
            f"{floors[0]:.3g}, a linear problem; in the order 00, 11, 01, 10: {floors[1]:.3g}",
            "holds under a condition: the inputs are listed as 00, 11, 01, 10"
            if floors[0] < 1e-12 < floors[1]
            else "does not hold",
        )
    )
    return rows


def _name(task: str) -> str:
    return "XOR with coordinates " + ("0/1" if task.endswith("1") else "-1/+1")


def _mds_rows(data: Data) -> list[Row]:
    found = {
        (kind, c): np.array([splits(f) for f in data.runs["tree", kind, c]])
        for kind, c in (("linear", 1.0), ("relu", 1.0), ("relu", 0.0))
    }
    biased, bare, linear = found["relu", 1.0], found["relu", 0.0], found["linear", 1.0]
    ordered = np.mean((biased[:, 2] < biased[:, 1]) & (biased[:, 1] < biased[:, 0]))
    spread, spread0 = biased[:, 0] / biased[:, 2], bare[:, 0] / bare[:, 2]
    return [
        Row(
            "With bias, ReLU representations emerge in the tree's order, siblings together, as in "
            "linear networks",
            "M Fig. 2E, W Fig. 2B",
            f"distances half grown across the root at {biased[:, 2].mean():.3g}, cousins "
            f"{biased[:, 1].mean():.3g}, siblings {biased[:, 0].mean():.3g} (linear: "
            f"{', '.join(f'{v:.3g}' for v in linear[:, 2::-1].mean(axis=0))}), in this order in "
            f"{ordered:.0%} of {len(biased)} seeds; siblings then have {biased[:, 3].mean():.0%} "
            f"of their final distance (linear {linear[:, 3].mean():.0%})",
            "holds" if ordered > 0.95 and biased[:, 3].mean() < 0.25 else "does not hold",
        ),
        Row(
            "Without bias, classes separate almost from the very beginning",
            "M Fig. 2E, W Fig. 2B",
            f"siblings' distance half grown {interval(spread0)} times as late as the root's, with "
            f"bias {interval(spread)}; when the root has split, siblings have "
            f"{interval(bare[:, 3])} of their final distance, with bias {interval(biased[:, 3])}",
            "holds" if np.all(spread0 < spread) and spread0.mean() < 1.25 else "does not hold",
        ),
    ]


def draw(data: Data) -> Figure:
    """Panels A to E."""
    figure, axes = plt.subplots(3, 3, figsize=(10.5, 9.0))
    axes[0, 0].imshow(task_of("tree").y, cmap="Greys", aspect="auto")
    axes[0, 0].set(xlabel="feature (root, branches, leaves)", ylabel="item", title="A. hierarchy")
    for n, (c, title) in enumerate(((1.0, "B. with bias"), (0.0, "B. without bias")), start=1):
        ax = fl.plot.losses(_curves(data, "tree", c), axes[0, n])
        if c:
            ax.plot(data.size.setting.ts, data.exact[0], label="exact", **fl.plot.look("theory"))
            if data.descent is not None:
                every = slice(None, None, 6)
                how = fl.plot.look("descent", points=True)
                ax.plot(
                    data.descent.ts[every], data.descent.losses[every], label="descent 2e-4", **how
                )
            ax.legend(fontsize="small", frameon=False)
        ax.set(title=title, xlim=(0, 40))
    _xor_panels(data, axes[1])
    for ax, (kind, c) in zip(axes[2], (("linear", 1.0), ("relu", 1.0), ("relu", 0.0)), strict=True):
        hidden = fl.measures.along(data.runs["tree", kind, c][0], fl.measures.hidden)
        points = np.asarray(fl.measures.mds(hidden).points)
        fl.plot.representations(points, ax)
        name = "linear" if kind == "linear" else "ReLU"
        ax.set(title=f"E. {name}, {'with' if c else 'without'} bias")
    return figure


def _curves(data: Data, task: str, c: float) -> dict[str, Any]:
    return {name: data.runs[task, name.lower(), c] for name in ("linear", "ReLU")}


def _xor_panels(data: Data, axes: Any) -> None:
    task = task_of("xor")
    x, first = np.asarray(task.x), np.asarray(task.y[:, 0]) > 0
    for chosen, marker in ((first, "o"), (~first, "^")):
        axes[0].plot(*x[chosen].T, linestyle="none", marker=marker, markersize=10)
    axes[0].set(
        title="C. XOR", xlabel="$x_1$", ylabel="$x_2$", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6),
        aspect="equal",
    )  # fmt: skip
    for ax, c in zip(axes[1:], (1.0, 0.0), strict=True):
        fl.plot.losses(_curves(data, "xor", c), ax)
        ax.set(title=f"D. {'with' if c else 'without'} bias", xlim=(0, 40), ylim=(0, None))


STUDY = Study("m_fig2", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
