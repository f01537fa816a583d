r"""C: disentanglement is not the default: rotated factors in linear and ReLU networks. See: linear
modes are disentangled where factors are not rotated (dashed), hidden units hardly more than random
ones. A rotation changes the linear loss by rounding alone (right).

Inputs and targets are $x = y = S R(\theta) z$: four independent factors z of variance 1, mixed by a
rotation in the planes (1, 2) and (3, 4), and stretched by S. The factors take three values each, in
all 81 combinations, so that their covariance is exactly the identity whatever the angle: then
$\Sigma_x = \Sigma_{yx} = S^2$ knows nothing of the factors. One hidden layer, small weights.

Disentanglement is that of Eastwood and Williams (2018): a code's squared weights on the factors,
as shares $p_k$ of one unit, give $1 - H(p) / \log 4$, averaged over units by their weight; one if
every unit reads a single factor. Codes are the hidden units, linear modes $u_\alpha \cdot \hat y$,
and, as a control, random units that keep the inputs' distances as the solutions do.

    python examples/paper/c_8_disentanglement.py [--quick | --full]
"""

import dataclasses
import itertools
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from _judge import LIKENESS, apart, both, half_width, interval, more, same, verdict
from _paper import Row, Study, fl
from matplotlib.figure import Figure
from tqdm import tqdm

STRETCH = (2.0, 1.4, 1.7, 1.1)


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: angles in degrees, hidden units, variance, flow time, seeds."""

    angles: tuple[float, ...] = (0.0, 15.0, 30.0, 45.0)
    hidden: int = 32
    variance: float = 1e-4
    t1: float = 20.0
    seeds: int = 10


SIZES = {
    "quick": Size((0.0, 45.0), 8, t1=6.0, seeds=2),
    "default": Size(),
    "full": Size(tuple(range(0, 46, 5)), 64, seeds=20),
}


@dataclasses.dataclass
class Data:
    """What was found, by kind ("linear", "relu") and angle.

    - `units`: disentanglement of the hidden units, (seeds,); `chance`: that of
      random units by angle.
    - `modes`: that of the linear network's modes; `losses`: (seeds, T) at `ts`.
    """

    size: Size
    ts: np.ndarray
    units: dict[tuple[str, float], np.ndarray]
    chance: dict[float, np.ndarray]
    modes: dict[float, np.ndarray]
    losses: dict[tuple[str, float], np.ndarray]


def factors() -> np.ndarray:
    """All combinations of three values, (81, 4), of covariance one."""
    return np.sqrt(1.5) * np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=4)))


def rotation(degrees: float) -> np.ndarray:
    """In the planes (1, 2) and (3, 4)."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.kron(np.eye(2), [[c, -s], [s, c]])


def task_of(degrees: float) -> fl.Task:
    """The stretched factors, as inputs and targets."""
    x = factors() @ rotation(degrees).T * np.array(STRETCH)
    return fl.Task(x, x, name=f"factors at {degrees:g} degrees")


def disentanglement(code: np.ndarray) -> float:
    """Of a code (81, K) of the factors, from its linear weights on them."""
    weights = (code - code.mean(axis=0)).T @ factors() / 81
    squares = weights**2
    squares = squares[squares.sum(axis=1) > 0]  # dead units read none
    shares = squares / squares.sum(axis=1, keepdims=True)
    entropy = -np.sum(shares * np.log(np.maximum(shares, 1e-300)), axis=1)
    return float(np.average(1 - entropy / np.log(4), weights=squares.sum(axis=1)))


def compute(size: Size) -> Data:
    """All flows."""
    ts = np.linspace(0, size.t1, 81)
    data = Data(size, ts, {}, {a: _chance(size, a) for a in size.angles}, {}, {})
    keys = list(itertools.product(("linear", "relu"), size.angles))
    for kind, angle in tqdm(keys, desc="flows", disable=None):
        task, units, modes, losses = task_of(angle), [], [], []
        for seed in range(size.seeds):
            start = fl.ReLUNetwork.init(
                task, size.hidden, size.variance, bias=kind == "relu", key=jax.random.key(seed)
            )
            how: dict[str, Any] = {"kinks": fl.AveragedKinks()} if kind == "relu" else {}
            network = start if kind == "relu" else start.linear()
            run = fl.gradient_flow(network, task, size.t1, ts=ts, observe={}, rtol=1e-8
                                   if kind == "linear" else 1e-4, **how)  # fmt: skip
            units.append(disentanglement(np.asarray(fl.measures.hidden(run.final, task))))
            losses.append(run.losses)
            if kind == "linear":
                u = fl.theory.modes(task).u
                modes.append(disentanglement(np.asarray(run.final.outputs(task.x) @ u)))
        data.units[kind, angle], data.losses[kind, angle] = np.array(units), np.asarray(losses)
        if kind == "linear":
            data.modes[angle] = np.array(modes)
    return data


def _chance(size: Size, angle: float) -> np.ndarray:
    """Units that keep the inputs' distances, as those of a solution, otherwise random; (seeds,)."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(size.seeds, 4, size.hidden))
    frames = [np.linalg.qr(row.T)[0].T for row in rows]  # four orthonormal rows
    x = np.asarray(task_of(angle).x)
    return np.array([disentanglement(x @ frame) for frame in frames])


def numbers(data: Data) -> dict[str, Any]:
    """Means over seeds by angle."""
    found: dict[str, Any] = {"degrees": data.size.angles}
    for kind in ("linear", "relu"):
        rows = [data.units[kind, angle].mean() for angle in data.size.angles]
        found[f"disentanglement of hidden units, {kind}"] = rows
    found["of linear modes"] = [data.modes[angle].mean() for angle in data.size.angles]
    for kind in ("linear", "relu"):
        found[f"change of the loss, {kind}"] = differences(data, kind).mean(axis=1)
    found["of random units"] = [data.chance[angle].mean() for angle in data.size.angles]
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts."""
    return [_unit_row(data), _blind_row(data), _mode_row(data)]


def differences(data: Data, kind: str) -> np.ndarray:
    """Largest differences of losses from those at the first angle, over the first loss.

    Same initial weights at every angle; (angles but the first, seeds).
    """
    first, *others = (data.losses[kind, angle] for angle in data.size.angles)
    return np.array([np.max(np.abs(other - first), axis=1) / first[:, 0] for other in others])


def _blind_row(data: Data) -> Row:
    first = data.size.angles[0]
    off = {kind: differences(data, kind).max() for kind in ("linear", "relu")}
    return Row(
        claim="The linear flow cannot tell factors from their rotations, as it sees the data's "
        "covariances only",
        source="C, confusing things (Locatello et al. 2019)",
        measured=f"largest difference of losses from those at {first:g} degrees, same initial "
        f"weights, in shares of the first loss: linear {off['linear']:.1e}, ReLU "
        f"{off['relu']:.2g}, {data.size.seeds} seeds",
        verdict=verdict(off["linear"] < 1e-6),
        kind="theorem",
    )


def _by_angle(data: Data, found: list[np.ndarray]) -> str:
    """Means by angle, to the solver's accuracy."""
    return ", ".join(
        f"{angle:g}: {interval(v.round(8))}"
        for angle, v in zip(data.size.angles, found, strict=True)
    )


def _unit_row(data: Data) -> Row:
    found = {kind: [data.units[kind, angle] for angle in data.size.angles]
             for kind in ("linear", "relu")}  # fmt: skip
    chance = data.chance[data.size.angles[0]]
    text = "; ".join(
        f"{'ReLU' if kind == 'relu' else kind} {_by_angle(data, rows)}"
        for kind, rows in found.items()
    )
    return Row(
        claim="Disentanglement is not the default of hidden units",
        quote="disentanglement is not necessarily the default inductive bias",
        source="C, confusing things (Locatello et al. 2019, Jarvis et al. 2024)",
        measured=f"disentanglement (1: one factor per unit) by angle of the factors: {text}; "
        f"random units at {data.size.angles[0]:g} {interval(chance)}; criterion: at "
        f"{data.size.angles[0]:g}, where units could lie on the factors, 1 apart: {LIKENESS}, two "
        "comparisons (more than by chance, paired: ReLU "
        f"{_word(more(found['relu'][0], chance, 2))}, linear "
        f"{_word(more(found['linear'][0], chance, 2))})",
        verdict=verdict(both(*(apart(1 - rows[0], LIKENESS, 2) for rows in found.values()))),
    )


def _word(found: bool | None) -> str:
    return {True: "yes", False: "no", None: "undecided"}[found]


def _mode_row(data: Data) -> Row:
    found, angles = [data.modes[angle] for angle in data.size.angles], data.size.angles
    first, last = (_word(same(1 - found[k], LIKENESS, 2)) for k in (0, -1))
    return Row(
        claim="Whether the modes that a linear network learns one by one are the factors",
        source="C, the SVD change of variables",
        measured=f"disentanglement of u . yhat by angle: {_by_angle(data, found)}; at "
        f"{angles[0]:g} the factors lie along the principal axes; criterion: {LIKENESS}, two "
        "comparisons",
        verdict=f"measured: at {angles[0]:g} degrees {first}, at {angles[-1]:g} {last}",
        kind="control",
    )


def draw(data: Data) -> Figure:
    """Disentanglement over the angle; what a rotation changes of the losses."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6))
    angles = data.size.angles
    rows = {
        "linear modes": [data.modes[a] for a in angles],
        "hidden units, linear": [data.units["linear", a] for a in angles],
        "hidden units, ReLU": [data.units["relu", a] for a in angles],
        "random units": [data.chance[a] for a in angles],
    }
    linear, relu = fl.plot.COLOURS["linear"], fl.plot.COLOURS["relu"]
    colours = (linear, linear, relu, "0.6")
    for n, (label, found) in enumerate(rows.items()):
        axes[0].errorbar(
            angles, [v.mean() for v in found], [half_width(v) for v in found],
            color=colours[n], fmt="osD^"[n], linestyle=("--" if n == 0 else "-"), markersize=4,
            capsize=3, label=label,
        )  # fmt: skip
    axes[0].set(xlabel="rotation of the factors (degrees)", ylabel="disentanglement",
                ylim=(0, 1.05))  # fmt: skip
    for kind, colour, mark in (("linear", linear, "s"), ("relu", relu, "D")):
        off = differences(data, kind)
        axes[1].errorbar(
            angles[1:], off.mean(axis=1), [half_width(v) for v in off], color=colour, fmt=mark,
            linestyle="-", markersize=4, capsize=3,
            label="ReLU network" if kind == "relu" else "linear network",
        )  # fmt: skip
    axes[1].set(xlabel="rotation of the factors (degrees)", yscale="log", ylim=(1e-16, 1),
                xlim=axes[0].get_xlim(), ylabel="largest change of the loss, in $L(0)$",
                title="how much a rotation changes the loss")  # fmt: skip
    axes[0].set_title("what reads single factors")
    for ax in axes:
        ax.legend(fontsize="small", frameon=False)
    return figure


STUDY = Study("c_8_disentanglement", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
