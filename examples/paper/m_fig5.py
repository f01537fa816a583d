r"""M Fig. 5: which of two solutions is learned, a linear or a non-linear one.

Extended XOR, $x = (x_1, x_2, \pm\Delta)$ with $\Delta$ = 0.5: the first two coordinates solve the
task non-linearly, the third one linearly. Gradient flow with exact walks, 64 hidden units,
variance 2e-4, c = 1 or no bias (c = 0), and descent at the paper's rate 2e-4 on its sum loss.

The text leaves open how the first two coordinates are coded and how the cube is averaged. Both
codes are run: **-1 and +1 reproduce the figure, 0 and 1 do not** (there a network without bias uses
the linear feature too, since the inputs' mean acts as a bias). The cube is [-1, 1]^3 (with 0/1 code
[0, 1]^2 x [-1, 1]) at equidistant points, and the function is $\hat y_2 - \hat y_1$, the decision.
What it relies on is measured twice: as shares of its variance on the cube, that of the mean
over x_1 and x_2 (a function of x_3 alone) and that of the mean over x_3; and by the four corners
$(x_1, x_2, -x_3)$ at which the two solutions contradict each other.

    python examples/paper/m_fig5.py [--quick | --full]
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl
from _tree import Case, Setting, gap, runs, start, task_of, thin
from matplotlib.figure import Figure

KINDS = {
    "linear, bias": ("linear", 1.0),
    "ReLU, bias": ("relu", 1.0),
    "linear, no bias": ("linear", 0.0),
    "ReLU, no bias": ("relu", 0.0),
}
SETTING = Setting(t1=100.0)
CODES = {"-1/+1": "offset xor 0.5", "0/1": "offset xor 0.5 0/1"}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, the runs', points of the cube along an edge, the paper's rate."""

    seeds: int
    setting: Setting = SETTING
    edge: int = 21
    learning_rate: float = 2e-4
    descent_time: float = 40.0


SIZES = {"quick": Size(3, descent_time=4.0), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """By code and kind: runs, shares (seeds, 2) of x_3 and of x_1, x_2, and corners (seeds, 4).

    A corner's value is positive where the decision follows x_3. `cubes` are functions of seed 0
    with the first code, `descent` the biased ReLU network's.
    """

    size: Size
    flows: dict[tuple[str, str], list[fl.Trajectory]]
    shares: dict[tuple[str, str], np.ndarray]
    corners: dict[tuple[str, str], np.ndarray]
    cubes: dict[str, np.ndarray]
    descent: fl.Trajectory


def compute(size: Size) -> Data:
    """The runs, and what the networks have learned."""
    data = Data(size, {}, {}, {}, {}, _descent(size))
    for code, task in CODES.items():
        for kind, (network, c) in KINDS.items():
            cases = [Case(task, network, c, seed) for seed in range(size.seeds)]
            flows = data.flows[code, kind] = runs(cases, size.setting)
            cubes = [decision(flow.final, grid(code, size.edge)) for flow in flows]
            data.shares[code, kind] = np.array([reliance(cube) for cube in cubes])
            data.corners[code, kind] = np.array([contradicted(flow) for flow in flows])
            if code == "-1/+1":
                data.cubes[kind] = cubes[0]
    return data


def _descent(size: Size) -> fl.Trajectory:
    """The paper's descent; a step of the sum loss is P times one of the mean loss."""
    task, rate = task_of(CODES["-1/+1"]), size.learning_rate
    network = start(Case(task.name, "relu", 1.0, 0), size.setting)
    return fl.gradient_descent(network, task, rate * task.samples, t1=size.descent_time)


def grid(code: str, edge: int) -> tuple[np.ndarray, ...]:
    """Points along the three edges of the cube."""
    low = 0.0 if code == "0/1" else -1.0
    first = np.linspace(low, 1.0, edge)
    return first, first, np.linspace(-1.0, 1.0, edge)


def decision(network: Any, axes: tuple[np.ndarray, ...]) -> np.ndarray:
    """Second output less the first one on the cube, (n, n, n)."""
    outputs = fl.measures.on_grid(network, axes=tuple(jnp.asarray(a) for a in axes))
    return np.asarray(outputs[..., 1] - outputs[..., 0])


def reliance(cube: np.ndarray) -> np.ndarray:
    """Shares of a function's variance in its means over x_1, x_2 and over x_3 (Sobol indices)."""
    return np.array([cube.mean(axis=(0, 1)).var(), cube.mean(axis=2).var()]) / cube.var()


def contradicted(flow: fl.Trajectory) -> np.ndarray:
    """The decision at the samples with x_3 reversed, positive where it follows x_3, (4,)."""
    task = flow.reference.task
    assert task is not None
    x = task.x * jnp.array([1.0, 1.0, -1.0])
    outputs = flow.final.outputs(x)
    return np.asarray((outputs[:, 1] - outputs[:, 0]) * jnp.sign(x[:, 2]))


def apart(data: Data, code: str, bias: str) -> np.ndarray:
    """Largest difference of the ReLU and the linear network's loss over the first one, (seeds,)."""
    pairs = zip(data.flows[code, f"ReLU, {bias}"], data.flows[code, f"linear, {bias}"], strict=True)
    return np.array([gap(relu, linear) for relu, linear in pairs])


def late(data: Data, code: str, shares: Any = (0.9, 0.5, 0.1, 0.01)) -> np.ndarray:
    """Time of the biased ReLU network over the linear one's for the loss to fall, (seeds, 4)."""

    def times(flow: fl.Trajectory) -> np.ndarray:
        losses = np.asarray(flow.losses)
        return np.interp(-np.asarray(shares) * losses[0], -losses, data.size.setting.ts)

    relu, linear = (data.flows[code, f"{kind}, bias"] for kind in ("ReLU", "linear"))
    return np.array([times(a) / times(b) for a, b in zip(relu, linear, strict=True)])


def numbers(data: Data) -> dict[str, Any]:
    """Loss curves of the first code, and both measures of what is learned for both codes."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for (code, kind), flows in data.flows.items():
        if code == "-1/+1":
            losses = np.array([flow.losses for flow in flows])
            found[f"loss, {kind}, mean"] = thin(losses.mean(axis=0))
        found[f"{code}: {kind}"] = {
            "final loss": max(float(flow.losses[-1]) for flow in flows),
            "shares of x_3 and of x_1, x_2": data.shares[code, kind].mean(axis=0),
            "corners that follow x_3": np.mean(data.corners[code, kind] > 0),
        }
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption, Sec. 6.1 and App. E."""
    return [_solvable(), *_losses(data), *_functions(data), *_codes(data), *_labels(data)]


def _solvable() -> Row:
    """Margin, and the linear solution's existence."""

    def floor(delta: float) -> float:
        task = fl.tasks.offset_xor(delta)
        x = np.column_stack([np.ones(task.samples), task.x])
        fit = x @ np.linalg.lstsq(x, np.asarray(task.y))[0]
        return 0.5 * float(np.mean(np.sum((fit - np.asarray(task.y)) ** 2, axis=1)))

    # Hulls of the classes are segments a + p e and b + q f: least distance by least squares.
    x = np.asarray(fl.tasks.offset_xor(0.5).x)
    directions = np.column_stack([x[3] - x[0], x[1] - x[2]])
    best = np.linalg.lstsq(directions, x[1] - x[0])[0]
    margin = float(np.linalg.norm(x[1] - x[0] - directions @ best))
    floors = {delta: floor(delta) for delta in (0.0, 0.01, 0.5)}
    fine = abs(margin - 1) < 1e-12 and floors[0.0] > 0.1 and max(floors[0.01], floors[0.5]) < 1e-12
    return Row(
        "The margin is 2 Delta = 1, and a linear solution exists only for Delta > 0",
        "M Sec. 6.1, Fig. 5A",
        f"distance of the classes' hulls {margin:.6g}; best linear loss "
        + ", ".join(f"{v:.2g} at Delta = {k:g}" for k, v in floors.items()),
        "holds" if fine else "does not hold",
    )


def _losses(data: Data) -> list[Row]:
    """Fig. 5B."""
    code, size = "-1/+1", data.size
    bias, none = apart(data, code, "bias"), apart(data, code, "no bias")
    ratio = late(data, code)
    sizes = f"Delta = 0.5, {size.setting.hidden} units"
    rest = np.array([flow.losses[-1] for flow in data.flows[code, "linear, no bias"]])
    first = np.asarray(data.flows[code, "ReLU, bias"][0].losses)
    descent = np.interp(np.asarray(data.descent.ts), size.setting.ts, first)
    off = np.max(np.abs(np.asarray(data.descent.losses) - descent)) / first[0]
    return [
        Row(
            "With bias the ReLU network's loss follows the linear one's with a small time shift",
            "M Sec. 6.1, Fig. 5B",
            f"largest difference of the losses over the first loss {interval(bias)}; the ReLU "
            f"network needs {interval(ratio[:, 0])}, {interval(ratio[:, 1])} and "
            f"{interval(ratio[:, 2])} times as long to 90, 50 and 10 % of the loss ({sizes})",
            "holds"
            if bias.max() < 0.25 and np.all((ratio[:, :3] > 1) & (ratio[:, :3] < 1.5))
            else "does not hold",
        ),
        Row(
            "Without bias the loss curves part",
            "M Fig. 5B",
            f"largest difference {interval(none)} of the first loss, with bias {interval(bias)}; "
            f"the linear network without bias rests at {interval(rest)}: it cannot give the mean",
            "holds" if none.min() > bias.max() else "does not hold",
        ),
        Row(
            "Descent at rate 2e-4 on the sum loss is the flow",
            "M App. E",
            f"{int(data.descent.stats['num_steps'])} steps: loss differs by {off:.1e} of the first "
            "loss from the flow's (seed 0, bias)",
            "holds" if off < 1e-2 else "does not hold",
        ),
    ]


def _both(shares: np.ndarray, corners: np.ndarray) -> str:
    return (
        f"shares of the variance: mean over x_1, x_2 {interval(shares[:, 0])}, mean over x_3 "
        f"{interval(shares[:, 1])}; {100 * np.mean(corners > 0):.0f} % of the corners where the "
        "solutions contradict each other follow x_3"
    )


def _linear(data: Data, code: str, kind: str) -> tuple[str, bool, bool]:
    """What a kind relies on in words, and whether that is x_3 by both measures, or x_1, x_2."""
    shares, corners = data.shares[code, kind], data.corners[code, kind]
    linear = bool(np.all(shares[:, 0] > shares[:, 1]) and np.mean(corners > 0) > 0.5)
    other = bool(np.all(shares[:, 0] < shares[:, 1]) and np.mean(corners > 0) < 0.5)
    return _both(shares, corners), linear, other


def _functions(data: Data) -> list[Row]:
    """Fig. 5C."""
    rows = []
    for kind in ("linear, bias", "ReLU, bias"):
        text, linear, _ = _linear(data, "-1/+1", kind)
        claim = f"{kind}: the network relies strongly on the linear feature"
        strong = linear and data.shares["-1/+1", kind][:, 0].min() > 0.8
        rows.append(Row(claim, "M Sec. 6.1, Fig. 5C", text, "holds" if strong else "does not hold"))
    text, _, other = _linear(data, "-1/+1", "ReLU, no bias")
    rows.append(
        Row("ReLU, no bias: the network uses the non-linear structure", "M Sec. 6.1, Fig. 5C",
            text, "holds" if other else "does not hold")
    )  # fmt: skip
    text, linear, _ = _linear(data, "-1/+1", "ReLU, bias")
    rows.append(
        Row("As printed: ReLU networks with bias terms do not rely on linear features (the "
            "caption's last sentence, which means those without)", "M Fig. 5 caption",
            text, "does not hold" if linear else "holds")
    )  # fmt: skip
    return rows


def _codes(data: Data) -> list[Row]:
    """Which code of the inputs reproduces the figure."""
    found = {}
    for code in CODES:
        bias, linear, _ = _linear(data, code, "ReLU, bias")
        none, _, other = _linear(data, code, "ReLU, no bias")
        found[code] = linear and other, f"code {code}: with bias {bias}; without {none}"
    fine = [code for code, (both, _) in found.items() if both]
    claim = "Bias makes the ReLU network linear, its absence non-linear, whatever the inputs' code"
    if len(fine) == len(found):
        verdict = "holds"
    else:
        verdict = f"holds under a condition: code {fine[0]}" if fine else "does not hold"
    return [Row(claim, "M Fig. 5", ". ".join(text for _, text in found.values()), verdict)]


def _labels(data: Data) -> list[Row]:
    """What App. E lists for Figs. 2-5."""
    del data
    x, labels = np.asarray(fl.tasks.xor().x), np.array([1.0, 1, 0, 0])
    augmented = np.column_stack([np.ones(4), x])

    def left(order: list[int]) -> float:
        """Residual of the listed labels in an order of the points 00, 01, 10, 11."""
        wanted = labels[np.argsort(order)]
        return float(np.linalg.norm(augmented @ np.linalg.lstsq(augmented, wanted)[0] - wanted))

    natural, listed = left([0, 1, 2, 3]), left([0, 3, 1, 2])
    tree, cube = task_of("tree").inputs, task_of(CODES["-1/+1"]).inputs
    return [
        Row(
            "Labels [1,0], [1,0], [0,1], [0,1] are XOR's",
            "M App. E, erratum B.15",
            f"residual of a linear fit in x_1, x_2 over points in the order 00, 01, 10, 11: "
            f"{natural:.1e}, in the order 00, 11, 01, 10: {listed:.2g}",
            "holds under a condition: points in the order 00, 11, 01, 10"
            if natural < 1e-12 < 0.5 < listed
            else "does not hold",
        ),
        Row(
            "Figs. 2-5 are trained on the hierarchical task",
            "M App. E, erratum B.16",
            f"the cube of Fig. 5C has {cube} inputs, the hierarchical task {tree}; App. E's "
            '"Figure 6 & 11" are Figs. 5 and 11, its "Figure 7" is Fig. 6',
            "holds" if tree == cube else "does not hold",
        ),
    ]


def draw(data: Data) -> Figure:
    """A: the task; B: losses; C: functions on the cube, averaged over one coordinate."""
    figure = plt.figure(figsize=(11.0, 8.2))
    parts: Any = figure.subfigures(3, 1, height_ratios=(1.15, 1, 1))
    top, middle, bottom = parts
    _task(top.add_subplot(1, 3, 1, projection="3d"))
    shown = data.flows
    for place, bias in ((2, "bias"), (3, "no bias")):
        ax = top.add_subplot(1, 3, place)
        pair = {
            f"{kind}, {bias}": fl.Sweep(shown["-1/+1", f"{kind}, {bias}"])
            for kind in ("linear", "ReLU")
        }
        late_ones: dict[str, Any] = {"ReLU, descent": data.descent} if bias == "bias" else {}
        fl.plot.losses(pair | late_ones, ax)
        ax.set(xlim=(0, 40), title=f"B  losses, {bias} ({data.size.seeds} seeds)")
    edges = grid("-1/+1", data.size.edge)
    kinds = ("linear, bias", "ReLU, bias", "ReLU, no bias")
    limit = max(np.abs(data.cubes[kind].mean(axis)).max() for kind in kinds for axis in (1, 2))
    limits = (-limit, limit)
    for row, axis in ((middle, 2), (bottom, 1)):
        for place, kind in enumerate(kinds):
            ax = row.add_subplot(1, 3, place + 1)
            fl.plot.cube(data.cubes[kind], edges[0], ax, axis=axis, limits=limits,
                         label=r"$\hat y_2 - \hat y_1$")  # fmt: skip
            ax.set_title(f"C  {kind}: {ax.get_title()}")
    return figure


def _task(ax: Any) -> None:
    """The four samples in space, coloured by class."""
    task = task_of(CODES["-1/+1"])
    x, first = np.asarray(task.x), np.asarray(task.y[:, 0]) > 0
    for some, marker, colour, label in (
        (first, "o", "#0072B2", "class 1"),
        (~first, "^", "#D55E00", "class 2"),
    ):
        ax.scatter(*x[some].T, s=60, marker=marker, color=colour, label=label, depthshade=False)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$", title="A  extended XOR, $\\Delta$ = 0.5",
           xticks=[-1, 1], yticks=[-1, 1], zticks=[-0.5, 0.5])  # fmt: skip
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(-0.25, 1.02))


STUDY = Study("m_fig5", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
