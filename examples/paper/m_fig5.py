r"""M Fig. 5: which of two solutions is learned, a linear or a non-linear one. With bias the losses
of linear and ReLU networks fall alike; without, the linear one stops at half and ReLU goes on.

Extended XOR, $x = (x_1, x_2, \pm\Delta)$ with $\Delta$ = 0.5: the first two coordinates solve the
task non-linearly, the third one linearly. Gradient flow with exact walks, 64 hidden units,
variance 2e-4, c = 1 or no bias (c = 0), and descent at the paper's rate 2e-4 on its sum loss.

The text leaves open how the first two coordinates are coded and how the cube is averaged. Both
codes are run and judged: **-1 and +1 reproduce the figure, 0 and 1 do not** (there a network
without bias uses the linear feature too, since the inputs' mean acts as a bias). The cube is
[-1, 1]^3 (with 0/1 code [0, 1]^2 x [-1, 1]) at equidistant points, and the function is
$\hat y_2 - \hat y_1$, the decision.
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
from _judge import LOSSES, SHARES, both, interval, more, same, share, usual, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import Case, Setting, delay, runs, start, task_of, thin
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


def shifted(data: Data, code: str, bias: str) -> np.ndarray:
    """Shift of the ReLU network's loss, and the gap to the linear one's left by it, (seeds, 2)."""
    pairs = zip(data.flows[code, f"ReLU, {bias}"], data.flows[code, f"linear, {bias}"], strict=True)
    return np.array([delay(relu, linear) for relu, linear in pairs])


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
    """Verdicts on the caption and Sec. 6.1."""
    return [_solvable(), _losses(data), *_functions(data)]


def _solvable() -> Row:
    """Margin, and the linear solution's existence."""
    deltas, found, texts = (0.0, 0.01, 0.5), {}, []
    for code in CODES:
        floors = {delta: _floor(fl.tasks.offset_xor(delta, code == "0/1")) for delta in deltas}
        margin = _margin(np.asarray(fl.tasks.offset_xor(0.5, code == "0/1").x))
        solved = max(v for delta, v in floors.items() if delta) < 1e-12 < 0.1 < floors[0.0]
        found[f"inputs {code}"] = abs(margin - 1) < 1e-12 and solved
        told = ", ".join(f"{v:.2g} at Delta = {delta:g}" for delta, v in floors.items())
        texts.append(f"inputs {code}: distance of the classes' hulls at Delta = 0.5 {margin:.6g}; "
                     f"best linear loss {told}")  # fmt: skip
    return Row(
        "The margin is 2 Delta, and a linear solution exists only for Delta > 0",
        "M Sec. 6.1, Fig. 5A",
        "; ".join(texts),
        verdict(found),
        "the third introduces linear separability with a margin of ... A linear solution is only "
        "possible when ...",
    )


def _floor(task: fl.Task) -> float:
    """Least loss of an affine map."""
    x, y = np.column_stack([np.ones(task.samples), task.x]), np.asarray(task.y)
    return 0.5 * float(np.mean(np.sum((x @ np.linalg.lstsq(x, y)[0] - y) ** 2, axis=1)))


def _margin(x: np.ndarray) -> float:
    """Distance of the classes' hulls, segments a + p e and b + q f, by least squares."""
    directions = np.column_stack([x[3] - x[0], x[1] - x[2]])
    best = np.linalg.lstsq(directions, x[1] - x[0])[0]
    return float(np.linalg.norm(x[1] - x[0] - directions @ best))


def _losses(data: Data) -> Row:
    """Fig. 5B, with the networks without bias as control."""
    size, found, texts = data.size, {}, []
    for code in CODES:
        (shift, bias), (_, none) = (shifted(data, code, name).T for name in ("bias", "no bias"))
        ratio = late(data, code)
        rest = np.array([flow.losses[-1] for flow in data.flows[code, "linear, no bias"]])
        found[f"inputs {code}"] = both(same(bias, LOSSES, len(CODES)), more(none, bias, len(CODES)))
        texts.append(
            f"inputs {code}: after a shift of {interval(shift)} the losses differ by at most "
            f"{interval(bias)} of the first one, without bias by {interval(none)} (the linear "
            f"network without bias rests at {interval(rest)}); with bias the ReLU network needs "
            f"{interval(ratio[:, 0])}, {interval(ratio[:, 1])} and {interval(ratio[:, 2])} times "
            "as long to 90, 50 and 10 % of the loss"
        )
    first = np.asarray(data.flows["-1/+1", "ReLU, bias"][0].losses)
    descent = np.interp(np.asarray(data.descent.ts), size.setting.ts, first)
    off = np.max(np.abs(np.asarray(data.descent.losses) - descent)) / first[0]
    return Row(
        "With bias the ReLU network's loss follows the linear one's with a small time shift",
        "M Sec. 6.1, Fig. 5B",
        f"{'. '.join(texts)}. Delta = 0.5, {size.setting.hidden} units; descent at the rate "
        f"{size.learning_rate:g} is within {off:.1e} of the flow, inputs -1/+1, seed 0. Criterion: "
        f"{LOSSES}, and less than without bias",
        verdict(found),
        "loss curves for ReLU networks with bias terms closely resemble linear networks with a "
        "small time-shift (Fig. 5B)",
    )


def _learned(data: Data, code: str, kind: str) -> tuple[str, bool | None, bool | None]:
    """What a kind relies on in words, and whether that is x_3 almost alone, or x_1, x_2."""
    shares, corners = data.shares[code, kind], data.corners[code, kind] > 0
    third, other = shares.T
    text = (
        f"{kind}: {interval(third)} of the function's variance is in x_3, {interval(other)} in "
        f"x_1, x_2; all four corners where the two contradict each other follow x_3 in "
        f"{share(corners.all(axis=1))}, none in {share(~corners.any(axis=1))}"
    )
    by_corners = usual(corners.mean(axis=1) < 0.5, of=len(CODES))
    return (
        text,
        same(1 - third, SHARES, len(CODES)),
        both(more(other, third, len(CODES)), by_corners),
    )


def _functions(data: Data) -> list[Row]:
    """Fig. 5C, in both codes of the inputs."""
    found = {key: _learned(data, *key) for key in data.shares}

    def judged(kinds: tuple[str, ...], linear: bool) -> tuple[str, dict[str, bool | None]]:
        by_code = {code: [found[code, kind] for kind in kinds] for code in CODES}
        text = ". ".join(
            f"Inputs {code}: {'; '.join(one[0] for one in those)}"
            for code, those in by_code.items()
        )
        return text, {
            f"inputs {code}": both(*(alone if linear else other for _, alone, other in those))
            for code, those in by_code.items()
        }

    rely, by_rely = judged(("linear, bias", "ReLU, bias"), True)
    bare, by_bare = judged(("ReLU, no bias",), False)
    return [
        Row(
            "Linear and ReLU networks with bias strongly rely on the linear feature",
            "M Fig. 5C, Sec. 6.1",
            f"{rely}. Criterion: all of the variance in x_3, {SHARES}",
            verdict(by_rely),
            "ReLU and linear networks with bias terms strongly rely on linear features",
        ),
        Row(
            "Without bias the ReLU network uses the non-linear structure",
            "M Sec. 6.1, Fig. 5C",
            f"{bare}. Criterion: more variance in x_1, x_2 than in x_3, and they decide more of "
            "the corners in most seeds",
            verdict(by_bare),
            "In contrast, ReLU networks without bias make use of the non-linear structure.",
        ),
        _caption_row(judged(("ReLU, bias",), True), (bare, by_bare)),
    ]


def _caption_row(with_bias: tuple[str, Any], without: tuple[str, Any]) -> Row:
    """The caption's last words, which are against its first."""
    (text, relies), (bare, uses) = with_bias, without
    printed = {code: None if found is None else not found for code, found in relies.items()}
    right = [code for code, found in uses.items() if found]
    wrong = all(found is False for found in printed.values())
    words = f"misprint: without bias terms ({' and '.join(right)})"
    return Row(
        "ReLU networks with bias do not rely on the linear feature",
        "M Fig. 5, last sentence of the caption",
        f"{text}. {bare}",
        words if wrong and right else verdict(printed),
        "while ReLU networks with bias terms do not",
    )


def draw(data: Data) -> Figure:
    """A: the task; B: losses."""
    figure = plt.figure(figsize=(10.4, 3.9))
    _task(figure.add_subplot(1, 3, 1, projection="3d"))
    for place, bias in ((2, "bias"), (3, "no bias")):
        ax: Any = figure.add_subplot(1, 3, place)
        how = {"linestyle": "-"} if bias == "bias" else WITHOUT
        for name, kind in (("linear", "linear"), ("ReLU", "relu")):
            losses = np.array([flow.losses for flow in data.flows["-1/+1", f"{name}, {bias}"]])
            ax.plot(data.size.setting.ts, losses.mean(axis=0), color=fl.plot.COLOURS[kind],
                    label=f"{name}, {bias}", **how)  # fmt: skip
        if bias == "bias":
            ts = np.arange(0.5, data.size.descent_time, 1.0)
            losses = np.interp(ts, np.asarray(data.descent.ts), np.asarray(data.descent.losses))
            ax.plot(ts, losses, "o", markersize=4, markerfacecolor="white",
                    color=fl.plot.COLOURS["relu"], label="ReLU, descent (seed 0)")  # fmt: skip
        ax.set(xlim=(0, 25), ylim=(0, 0.55), title=f"B  losses, {bias} ({data.size.seeds} seeds)",
               xlabel="flow time $t$ (units of $\\tau$)", ylabel="loss $L$")  # fmt: skip
        ax.legend(fontsize="small", frameon=False)
    return figure


def draw_functions(data: Data) -> Figure:
    """What ReLU networks of M Fig. 5 learn with bias (left) and without (right), averaged over one
    coordinate. See: with bias colours are strongest below, where the third coordinate decides, as
    in linear networks; without, above, where XOR does.
    """
    edge, kinds = grid("-1/+1", data.size.edge)[0], ("ReLU, bias", "ReLU, no bias")
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 7.4), sharex=True)
    for row, axis, other in zip(axes, (2, 1), (2, 3), strict=True):
        for ax, kind in zip(row, kinds, strict=True):
            mean = data.cubes[kind].mean(axis)
            shown = ax.pcolormesh(edge, edge, mean.T, shading="gouraud", cmap="RdBu_r",
                                  vmin=-1, vmax=1, rasterized=True)  # fmt: skip
            if np.ptp(mean) > 1e-6:
                ax.contour(edge, edge, mean.T, levels=[0], colors="black", linewidths=1.5)
            name = "x_3" if axis == 2 else "x_2"
            ax.set(title=f"C  {kind}: mean over ${name}$", ylabel=f"$x_{other}$", aspect="equal",
                   xticks=(-1, 0, 1), yticks=(-1, 0, 1))  # fmt: skip
            ax.set_xlabel("$x_1$")
    label = r"decision $\hat y_2 - \hat y_1$ (line: 0)"
    figure.colorbar(shown, ax=axes, extend="both", label=label)
    return figure


def _task(ax: Any) -> None:
    """The four samples in space, coloured by class."""
    task = task_of(CODES["-1/+1"])
    x, first = np.asarray(task.x), np.asarray(task.y[:, 0]) > 0
    for some, marker, colour, label in (
        (first, "o", "black", "class 1"),
        (~first, "^", "0.6", "class 2"),
    ):
        ax.scatter(*x[some].T, s=60, marker=marker, color=colour, label=label, depthshade=False)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$", title="A  extended XOR, $\\Delta$ = 0.5",
           xticks=[-1, 1], yticks=[-1, 1], zticks=[-0.5, 0.5])  # fmt: skip
    ax.set_box_aspect(None, zoom=0.8)
    ax.zaxis.labelpad = -4
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(-0.25, 1.02))


OTHERS = {"_functions": draw_functions}
STUDY = Study("m_fig5", SIZES, compute, draw, numbers, judge, others=OTHERS)

if __name__ == "__main__":
    STUDY.main(__doc__)
