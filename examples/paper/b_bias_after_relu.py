r"""B: a bias after ReLU, $\mathrm{ReLU}(\cdot) - b$, in residual networks: offset and loss.

Teacher and student of 10 residual blocks with a norm after each, 50 inputs, 200 hidden units per
block; the teacher has b = 0. Delta is the standard deviation over outputs of their mean over normal
inputs. Students learn by Adam at 1e-3 for 1,000 steps, on the mean of half the squared error. The
source gives neither norm (here by the root mean square), initial weights (PyTorch's, without biases
before ReLU), data nor batch (4,096 samples, 32 per step); losses are those on 1,000 new samples.

A preactivation of variance v gives $E\, \mathrm{ReLU} = \sqrt{v / 2 \pi}$, which b is to take away:
with PyTorch's weights v = 1/3 and b = .230. The control changes v by a gain. The gradient flow is
of 3 blocks with 10 inputs and 40 hidden units, 200 samples.

    python examples/paper/b_bias_after_relu.py [--quick | --full]
"""

import dataclasses
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from _judge import both, half_width, interval, more, verdict
from _paper import Row, Study, fl
from _residual import Residual, is_weight, offset, outputs_of, residual, taught
from matplotlib.figure import Figure
from scipy import stats
from tqdm import tqdm

RATE = 1e-3
ADAM = optax.adam(RATE)  # one object: every new one is compiled anew


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `depth`, `width`, `hidden`: blocks, inputs, hidden units per block.
    - `samples`, `batch`, `steps`, `every`: of the descent; steps between saved rows.
    - `biases`, `seeds`: b of the students, and how many of each.
    - `grid`: b at which the initial Delta is measured, of as many seeds; `gains` of the control.
    - `flow_biases`, `flow_seeds`, `flow_time`: of the smaller networks' gradient flow.
    """

    depth: int = 10
    width: int = 50
    hidden: int = 200
    samples: int = 4_096
    batch: int = 32
    steps: int = 1_000
    every: int = 100
    biases: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    seeds: int = 10
    grid: tuple[float, ...] = tuple(round(0.02 * k, 2) for k in range(36))
    gains: tuple[float, ...] = (1.0, 3**0.5)
    flow_biases: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    flow_seeds: int = 10
    flow_time: float = 100.0


SIZES = {
    "quick": Size(3, 10, 40, 256, 32, 60, 20, (0.0, 0.2, 0.5), 2, (0.0, 0.2, 0.4), (1.0,),
                  (0.0, 0.2, 0.5), 2, 2.0),
    "default": Size(),
    "full": Size(samples=32_768, batch=128, seeds=20,
                 biases=(0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)),
}  # fmt: skip


@dataclasses.dataclass
class Data:
    """What was found.

    - `initial`: by gain, Delta of new students over `grid`, (seeds, B).
    - `mean`: mean and standard deviation over outputs of the inputs' and the outputs' means, b = 0.
    - `teachers`: Delta of the teachers, (seeds,).
    - `start`: Delta of the students of the descent, (seeds, b).
    - `steps`; `offsets`, `losses`: of the descent on new samples, (seeds, b, T).
    - `flow_ts`; `flow_start` (Delta) (seeds, b); `flow_losses`: (seeds, b, T).
    """

    size: Size
    initial: dict[float, np.ndarray]
    mean: np.ndarray
    teachers: np.ndarray
    steps: np.ndarray
    offsets: np.ndarray
    losses: np.ndarray
    flow_ts: np.ndarray
    flow_start: np.ndarray
    flow_losses: np.ndarray


def compute(size: Size) -> Data:
    """All runs."""
    shape = (size.depth, size.width, size.hidden)
    initial, means = _initial(size, shape)
    teachers, offsets, losses = [], [], []
    for seed in tqdm(range(size.seeds), desc="descent", disable=None):
        teacher = residual(*shape, (0, seed))
        task, test = taught(teacher, size.samples, (1, seed)), taught(teacher, 1_000, (2, seed))
        runs = [_descend(residual(*shape, (3, seed), b), task, test, size, seed)
                for b in size.biases]  # fmt: skip
        teachers.append(float(offset(teacher, test)))
        offsets.append([run.observed["offset"] for run in runs])
        losses.append([run.observed["loss"] for run in runs])
    steps = size.every * np.arange(len(losses[0][0]))
    flows = [_flows(size, seed) for seed in tqdm(range(size.flow_seeds), desc="flow", disable=None)]
    flow_ts = np.linspace(0, size.flow_time, 21)
    return Data(size, initial, means, np.array(teachers), steps, np.asarray(offsets),
                np.asarray(losses), flow_ts, np.array([f[0] for f in flows]),
                np.array([f[1] for f in flows]))  # fmt: skip


def _initial(size: Size, shape: tuple[int, int, int]) -> tuple[dict[float, np.ndarray], np.ndarray]:
    """Delta of new students, and how far the means of inputs and outputs are from zero."""
    found, means = {}, []
    for gain in size.gains:
        rows = []
        for seed in range(size.seeds):
            x = np.random.default_rng((4, seed)).normal(size=(4_096, size.width))
            task = fl.Task(x.astype(np.float32), np.zeros((4_096, 1), np.float32))
            one = residual(*shape, (3, seed), gain=gain)
            rows.append([_offset(_with(one, b), task) for b in size.grid])
            if gain == 1:
                means.append([x.mean(axis=0).std(),
                              np.asarray(outputs_of(one, task.x)).mean(axis=0).std()])  # fmt: skip
        found[gain] = np.array(rows)
    return found, np.array(means)


def _with(network: Residual, b: float) -> Residual:
    return dataclasses.replace(network, b=np.float32(b))


@jax.jit
def _offset(network: Residual, task: fl.Task) -> jax.Array:
    return offset(network, task)


def _descend(network: Residual, task: fl.Task, test: fl.Task, size: Size, seed: int) -> Any:
    """Adam, looked at on new samples."""
    observe = {
        "offset": fl.measures.OnTask(offset, test),
        "loss": fl.measures.OnTask(fl.measures.loss, test),
    }
    return fl.stochastic_gradient_descent(
        network, task, RATE, size.steps, batch_size=size.batch, key=jax.random.key(seed),
        trainable=is_weight, optimiser=ADAM, save_every=size.every, observe=observe,
    )  # fmt: skip


def _flows(size: Size, seed: int) -> tuple[list[float], list[np.ndarray]]:
    """Delta at the start and losses along the flow of the smaller students."""
    teacher = residual(3, 10, 40, (5, seed))
    task = taught(teacher, 200, (6, seed))
    starts, losses = [], []
    for b in size.flow_biases:
        network = residual(3, 10, 40, (7, seed), b)
        run = fl.gradient_flow(
            network, task, size.flow_time, trainable=is_weight, rtol=1e-3, observe={},
            ts=np.linspace(0, size.flow_time, 21),
        )  # fmt: skip
        starts.append(float(offset(network, task)))
        losses.append(np.asarray(run.losses))
    return starts, losses


def area(losses: np.ndarray) -> np.ndarray:
    """Mean logarithm of the loss along a run: the lower, the faster. (..., T) to (...)."""
    return np.log(losses).mean(axis=-1)


def rises(losses: np.ndarray) -> np.ndarray:
    """Sum of all rises between saved rows in shares of the first loss: zero is smooth."""
    return np.maximum(np.diff(losses, axis=-1), 0).sum(axis=-1) / losses[..., 0]


def correlation(data: Data) -> np.ndarray:
    """Of the initial Delta with the final loss over b, per seed."""
    pairs = zip(data.offsets[:, :, 0], data.losses[:, :, -1], strict=True)
    return np.array([stats.pearsonr(a, b)[0] for a, b in pairs])


def numbers(data: Data) -> dict[str, Any]:
    """Means over seeds."""
    found: dict[str, Any] = {"b": data.size.grid}
    for gain, rows in data.initial.items():
        found[f"initial Delta, gain {gain:.3g}"] = rows.mean(axis=0)
    found |= {"b of students": data.size.biases, "step": data.steps}
    found["loss on new samples"] = data.losses.mean(axis=0)
    found["Delta along training"] = data.offsets.mean(axis=0)
    found["flow: b"], found["flow: loss at the end"] = (
        data.size.flow_biases, data.flow_losses[..., -1].mean(axis=0),
    )  # fmt: skip
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the source's claims."""
    return [*_offset_rows(data), *_loss_rows(data), _flow_row(data)]


def _offset_rows(data: Data) -> list[Row]:
    size, grid = data.size, np.array(data.size.grid)
    least = {gain: grid[rows.argmin(axis=1)] for gain, rows in data.initial.items()}
    rows = data.initial[1.0]
    at = np.array([0, np.argmin(rows.mean(axis=0)), -1])
    middle, half = least[1.0].mean(), half_width(least[1.0])
    told = {gain: gain * np.sqrt(1 / (6 * np.pi)) for gain in size.gains}
    text = "; ".join(
        f"gain {gain:.3g}: measured {interval(v)}, sqrt(v / 2 pi) = {told[gain]:.3g}"
        for gain, v in least.items()
    )
    inputs, outputs = data.mean.T
    last, first = (
        np.abs(data.offsets[:, :, k] - data.teachers[:, None]).mean(axis=1) for k in (-1, 0)
    )
    return [
        Row(
            "The outputs have a mean although the inputs have none: Delta > 0",
            "B, representation collapse",
            f"b = 0, initial weights: Delta {interval(outputs)}, of the inputs {interval(inputs)} "
            "(4,096 samples); criterion: more, paired",
            verdict(more(outputs, inputs)),
        ),
        Row(
            "Delta has the shape of a U over b",
            "B, trick",
            f"initial Delta at b = {', '.join(f'{grid[k]:g}: {interval(rows[:, k])}' for k in at)}"
            "; criterion: more at both ends, paired, two comparisons",
            verdict(both(*(more(rows[:, k], rows[:, at[1]], 2) for k in (0, -1)))),
        ),
        Row(
            "Delta is low at b = .2 and .3",
            "B, trick",
            "b of the least Delta by the variance of preactivations (gain 1: PyTorch's initial "
            f"weights, variance 1/3): {text}; criterion: between .2 and .3 at gain 1 (elsewhere at "
            "sqrt(v / 2 pi), erratum B.19)",
            verdict(bool(middle - half >= 0.2 and middle + half <= 0.3)),
        ),
        Row(
            "Is Delta > 0 to be eliminated, a feature or a bug?",
            "B, representation collapse (which asks it)",
            f"distance of Delta from the teacher's, {interval(data.teachers)}, at the start "
            f"{interval(first)}, after training {interval(last)} (means over b)",
            "control: trained students come to the teacher's Delta, whatever b"
            if more(first, last) and more(0.1 * data.teachers, last)
            else "control: undecided",
        ),
    ]


def _loss_rows(data: Data) -> list[Row]:
    b, last = np.array(data.size.biases), data.losses[:, :, -1]
    low = (b >= 0.2) & (b <= 0.3)
    best = b[last.argmin(axis=1)]
    text = ", ".join(f"{k:g}: {interval(v)}" for k, v in zip(b, last.T, strict=True))
    related = correlation(data)
    unbent = np.array([stats.pearsonr(b, row)[0] for row in last])
    quick, rough = area(data.losses), rises(data.losses)
    slower = [quick[:, k] - quick[:, low].mean(axis=1) for k in (0, -1)]
    rougher = [rough[:, k] - rough[:, low].mean(axis=1) for k in (0, -1)]
    smooth = rough.mean() < 1e-3
    return [
        Row(
            "Where the final loss is least",
            "B, trick (right plot)",
            f"after {data.size.steps:,} steps by b: {text}",
            f"control: at b = {interval(best)}",
        ),
        Row(
            "The final loss correlates positively with Delta",
            "B, trick",
            f"over b, with the initial Delta: {interval(related)}; with b itself "
            f"{interval(unbent)}; criterion: positive, and more than with b",
            verdict(both(more(related), more(related, unbent))),
        ),
        Row(
            "Low Delta goes with fast learning curves",
            "B, trick",
            "mean log loss along training, that of b = .2 and .3 subtracted: "
            f"b = {b[0]:g}: {interval(slower[0])}, b = {b[-1]:g}: {interval(slower[1])}; "
            "criterion: more at both, paired, two comparisons",
            verdict(both(*(more(v, of=2) for v in slower))),
        ),
        Row(
            "Low Delta goes with smooth learning curves",
            "B, trick",
            f"rises between rows {data.size.every} steps apart, in shares of the first loss, that "
            f"of b = .2 and .3 ({interval(rough[:, low].mean(axis=1))}) subtracted: b = {b[0]:g}: "
            f"{interval(rougher[0])}, b = {b[-1]:g}: {interval(rougher[1])}"
            + ("; all curves are smooth here" if smooth else ""),
            "not testable here" if smooth else verdict(both(*(more(v, of=2) for v in rougher))),
        ),
    ]


def _flow_row(data: Data) -> Row:
    b, last = np.array(data.size.flow_biases), data.flow_losses[..., -1]
    low = (b >= 0.2) & (b <= 0.3)
    bottom, quick = last[:, low].mean(axis=1), area(data.flow_losses)
    ends = both(*(more(last[:, k], bottom, 2) for k in (0, -1)))
    pace = both(*(more(quick[:, k], quick[:, low].mean(axis=1), 2) for k in (0, -1)))
    text = ", ".join(f"{k:g}: {interval(v)}" for k, v in zip(b, last.T, strict=True))
    speed = ", ".join(
        f"{k:g}: {interval(v)}" for k, v in zip(b, (quick - quick[:, :1]).T, strict=True)
    )
    words = {True: "yes", False: "no", None: "not seen"}
    return Row(
        "Whether a low Delta helps without Adam, along gradient flow",
        "B, trick",
        f"3 blocks, 10 inputs, 40 hidden units: loss at t = {data.size.flow_time:g} by b: {text}; "
        f"mean log loss along the flow over that of b = 0: {speed}",
        f"control: final loss {words[ends]}, speed {words[pace]}",
    )


def draw(data: Data) -> Figure:
    """Learning curves; Delta and loss over b; loss over Delta; the flow."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.0))
    b = data.size.biases
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(b)))
    for k, shade in enumerate(shades):
        axes[0, 0].plot(data.steps, data.losses[:, k].mean(axis=0), color=shade, linestyle="-",
                        label=f"b = {b[k]:g}")  # fmt: skip
        axes[1, 0].plot(data.offsets[:, k, 0], data.losses[:, k, -1], "o", color=shade,
                        markersize=4, label=f"b = {b[k]:g}")  # fmt: skip
    axes[0, 0].set(yscale="log", xlabel="step of Adam", ylabel="loss on new samples",
                   title="learning curves, mean over seeds")  # fmt: skip
    axes[1, 0].set(xlabel="Delta at the start", ylabel="final loss", title="all seeds")
    for gain, rows in data.initial.items():
        _band(axes[0, 1], data.size.grid, rows, f"Delta, preactivation variance {gain**2 / 3:.2g}")
        axes[0, 1].axvline(gain * np.sqrt(1 / (6 * np.pi)), color="0.6", linestyle=":")
    axes[0, 1].set(xlabel="b", ylabel="Delta at the start",
                   title=r"dotted: $\sqrt{v / 2 \pi}$")  # fmt: skip
    flow_b = data.size.flow_biases
    for k, shade in enumerate(plt.get_cmap("viridis")(np.linspace(0, 0.9, len(flow_b)))):
        axes[1, 1].plot(data.flow_ts, data.flow_losses[:, k].mean(axis=0), color=shade,
                        linestyle="-", label=f"b = {flow_b[k]:g}")  # fmt: skip
    axes[1, 1].set(yscale="log", xlabel="flow time $t$ (units of $\\tau$)", ylabel="loss",
                   title="gradient flow, 3 blocks")  # fmt: skip
    for ax in axes.flat:
        ax.legend(fontsize="small", frameon=False)
    return figure


def _band(ax: Any, x: Any, rows: np.ndarray, label: str) -> None:
    """Mean over seeds with its interval."""
    middle = rows.mean(axis=0)
    half = np.array([half_width(column) for column in rows.T])
    (line,) = ax.plot(x, middle, linestyle="-", label=label)
    ax.fill_between(x, middle - half, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)


STUDY = Study("b_bias_after_relu", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
