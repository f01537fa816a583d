r"""B: a bias after ReLU, $\mathrm{ReLU}(\cdot) - b$, in residual networks: offset and loss.
See: the offset Delta is least where b is $\sqrt{v / 2 \pi}$ (dotted). Where Delta is low, the final
loss mostly is so too. Along the gradient flow (lower right) b makes hardly a difference.

Teacher and student of 10 residual blocks with a norm after each, 50 inputs, 200 hidden units per
block; the teacher has b = 0. Delta is the standard deviation over outputs of their mean over normal
inputs. Students learn by Adam at 1e-3 for 1,000 steps, on the mean of half the squared error. The
source gives neither norm (here by the root mean square), initial weights (PyTorch's, without biases
before ReLU), data nor batch (4,096 samples, 32 per step); losses are those on 1,000 new samples.
Where the mean comes from is asked of other activations in place of ReLU.

A preactivation of variance v gives $E\, \mathrm{ReLU} = \sqrt{v / 2 \pi}$, which b is to take away:
with PyTorch's weights v = 1/3 and b = .230. The control changes v by a gain. The gradient flow is
of 3 blocks with 10 inputs and 40 hidden units, 200 samples.

    python examples/paper/b_bias_after_relu.py [--quick | --full]
"""

import dataclasses
import itertools
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from _judge import LOSSES, SHARES, both, half_width, interval, more, same, verdict
from _paper import Row, Study, fl
from _residual import ACTIVATIONS, Residual, is_weight, offset, outputs_of, residual, taught
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
    seeds: int = 20
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
    - `mean`: standard deviation over units of the inputs' and the outputs' means, b = 0.
    - `origin`: by activation, Delta of new students at b = 0, (seeds,).
    - `teachers`: Delta of the teachers, (seeds,).
    - `start`: Delta of the students of the descent, (seeds, b).
    - `steps`; `offsets`, `losses`: of the descent on new samples, (seeds, b, T).
    - `flow_ts`; `flow_start` (Delta) (seeds, b); `flow_losses`: (seeds, b, T).
    """

    size: Size
    initial: dict[float, np.ndarray]
    mean: np.ndarray
    origin: dict[str, np.ndarray]
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
    return Data(size, initial, means, _origin(size, shape), np.array(teachers), steps,
                np.asarray(offsets), np.asarray(losses), flow_ts, np.array([f[0] for f in flows]),
                np.array([f[1] for f in flows]))  # fmt: skip


def _fresh(size: Size, seed: int) -> fl.Task:
    """Normal inputs to measure Delta on; there is nothing to learn."""
    x = np.random.default_rng((4, seed)).normal(size=(4_096, size.width)).astype(np.float32)
    return fl.Task(x, np.zeros((4_096, 1), np.float32))


def _initial(size: Size, shape: tuple[int, int, int]) -> tuple[dict[float, np.ndarray], np.ndarray]:
    """Delta of new students, and how far the means of inputs and outputs are from zero."""
    found, means = {}, []
    for gain in size.gains:
        rows = []
        for seed in range(size.seeds):
            task, one = _fresh(size, seed), residual(*shape, (3, seed), gain=gain)
            rows.append(
                [_offset(dataclasses.replace(one, b=np.float32(b)), task) for b in size.grid]
            )
            if gain == 1:
                sides = (task.x, outputs_of(one, task.x))
                means.append([np.asarray(z).mean(axis=0).std() for z in sides])
        found[gain] = np.array(rows)
    return found, np.array(means)


def _origin(size: Size, shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Delta of new students with other activations."""
    found: dict[str, list[float]] = {name: [] for name in ACTIVATIONS}
    for seed in range(size.seeds):
        task, one = _fresh(size, seed), residual(*shape, (3, seed))
        for name, (activation, _) in ACTIVATIONS.items():
            other = dataclasses.replace(one, activation=activation)
            found[name].append(float(_offset(other, task)))
    return {name: np.array(rows) for name, rows in found.items()}


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
            network, task, size.flow_time, kinks=fl.IgnoreKinks(), trainable=is_weight, rtol=1e-3,
            observe={}, ts=np.linspace(0, size.flow_time, 21),
        )  # fmt: skip
        starts.append(float(offset(network, task)))
        losses.append(np.asarray(run.losses))
    return starts, losses


def lowest(b: np.ndarray) -> np.ndarray:
    """Which of the biases are those of which the source says that their Delta is low."""
    return (b >= 0.2) & (b <= 0.3)


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
    for name, row in data.origin.items():
        found[f"initial Delta at b = 0, {name}"] = row.mean()
    found |= {"b of students": data.size.biases, "step": data.steps}
    found["loss on new samples"] = data.losses.mean(axis=0)
    found["Delta along training"] = data.offsets.mean(axis=0)
    found["flow: b"], found["flow: loss at the end"] = (
        data.size.flow_biases, data.flow_losses[..., -1].mean(axis=0),
    )  # fmt: skip
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the source's claims."""
    rows = [_mean_row(data), _origin_row(data), _shape_row(data), _bug_row(data)]
    return [*rows, *_loss_rows(data), _flow_row(data)]


def _mean_row(data: Data) -> Row:
    inputs, outputs = data.mean.T
    return Row(
        claim="The outputs have a mean although the inputs have none: Delta > 0",
        quote="the output y appears to have a clearly non-zero mean across the batch dimension",
        source="B, Representation collapse",
        measured=f"b = 0, initial weights: Delta {interval(outputs)}, of the inputs "
        f"{interval(inputs)} (4,096 samples); criterion: more, paired",
        verdict=verdict(more(outputs, inputs)),
    )


def _origin_row(data: Data) -> Row:
    """Whether Delta goes with the shift of the activation, and is none without one."""
    inputs = data.mean[:, 0]
    shifts = {name: shift * np.sqrt(1 / (6 * np.pi)) for name, (_, shift) in ACTIVATIONS.items()}
    moved = [v for name, v in data.origin.items() if shifts[name]]
    still = [v for name, v in data.origin.items() if not shifts[name]]
    number = len(moved) + len(still)
    steps = [more(a, b, number) for a, b in itertools.pairwise([*moved, np.max(still, axis=0)])]
    none = [same((v - inputs) / data.origin["ReLU"], SHARES, number) for v in still]
    text = ", ".join(f"{k} ({shifts[k]:.2g}) {interval(v)}" for k, v in data.origin.items())
    return Row(
        claim="The mean of the outputs comes from the shift that ReLU makes",
        quote="We hypothesize that this effect arises from ReLU inducing distribution shifts",
        source="B, Representation collapse",
        measured="initial Delta at b = 0 with another activation in place of ReLU (in brackets its "
        f"mean at the variance 1/3 of preactivations): {text}; of the inputs {interval(inputs)}; "
        "criterion: the more of a mean, the more Delta, paired, and without one that of the "
        f"inputs, the difference taken as a share of ReLU's Delta, {SHARES}, {number} comparisons",
        verdict=verdict(both(*steps, *none)),
    )


def _shape_row(data: Data) -> Row:
    """U over b, with the least values at b = .2 and .3, for each variance of preactivations."""
    size, grid = data.size, np.array(data.size.grid)
    swept = np.isin(grid, size.biases)
    low = swept & lowest(grid)
    others, found, texts = np.flatnonzero(swept & ~low), {}, []
    for gain, rows in data.initial.items():
        least, number = rows.mean(axis=0).argmin(), len(others) + 2
        bent = [more(rows[:, k], rows[:, least], number) for k in (0, -1)]
        below = [more(rows[:, k], rows[:, low].max(axis=1), number) for k in others]
        name = f"initial weights that give preactivations the variance {gain**2 / 3:.2g}"
        found[name] = both(*bent, *below)
        shown = ", ".join(f"{grid[k]:g}: {interval(rows[:, k])}" for k in np.flatnonzero(swept))
        texts.append(
            f"{name}: {shown}, {grid[-1]:g}: {interval(rows[:, -1])}, least at b = "
            f"{interval(grid[rows.argmin(axis=1)])} (sqrt(v / 2 pi) = "
            f"{gain * np.sqrt(1 / (6 * np.pi)):.3g})"
        )
    return Row(
        claim="Delta over b has the shape of a U, low at b = .2 and .3",
        quote="Δ exhibits a U-shaped dependence on b. Values b = 0.2, 0.3 yield low Δ",
        source="B, Trick (middle plot); erratum E19",
        measured=f"initial Delta by b: {'; '.join(texts)}; 1/3 is PyTorch's; the text does not give"
        " the initial weights; criterion: more at both ends of the range than at the least, and "
        f"at .2 and .3 less than at the other b of the sweep, paired, {len(others) + 2} "
        "comparisons",
        verdict=verdict(found),
    )


def _bug_row(data: Data) -> Row:
    last, first = (
        np.abs(data.offsets[:, :, k] - data.teachers[:, None]).mean(axis=1) for k in (-1, 0)
    )
    come = both(more(first, last), same(last / data.teachers, SHARES))
    return Row(
        claim="Is Delta > 0 to be eliminated, a feature or a bug?",
        quote="This raises the question: how can we eliminate it, and is it truly a feature or a "
        "bug?",
        source="B, Representation collapse",
        measured=f"distance of Delta from the teacher's, {interval(data.teachers)}, at the start "
        f"{interval(first)}, after training {interval(last)} (means over b)",
        verdict="measured: trained students "
        + {True: "come", False: "do not come", None: "may come"}[come]
        + " to the teacher's Delta, whatever b",
        kind="control",
    )


def _loss_rows(data: Data) -> list[Row]:
    b, last = np.array(data.size.biases), data.losses[:, :, -1]
    related = correlation(data)
    unbent = np.array([stats.pearsonr(b, row)[0] for row in last])
    text = ", ".join(f"{k:g}: {interval(v)}" for k, v in zip(b, last.T, strict=True))
    best = b[last.argmin(axis=1)]
    return [
        Row(
            claim="The final loss correlates positively with Delta",
            quote="we explicitly show how the final loss correlates with Δ, revealing a clear "
            "positive correlation",
            source="B, Trick (right plot)",
            measured=f"over b, with the initial Delta: {interval(related)}; with b itself "
            f"{interval(unbent)}; criterion: positive",
            verdict=verdict(more(related)),
        ),
        _curves_row(data),
        Row(
            claim="Where the final loss is least",
            source="B, Trick (right plot)",
            measured=f"after {data.size.steps:,} steps by b: {text}",
            verdict=f"measured: at b = {interval(best, 2)}",
            kind="control",
        ),
    ]


def _curves_row(data: Data) -> Row:
    """Whether b = .2 and .3 learn faster than all other b, and smoothly."""
    b = np.array(data.size.biases)
    low, others = lowest(b), np.flatnonzero(~lowest(b))
    quick, rough = area(data.losses), rises(data.losses)
    slower = {k: quick[:, k] - quick[:, low].mean(axis=1) for k in others}
    found = {k: more(v, of=len(others)) for k, v in slower.items()}
    bumps = rough[:, low].mean(axis=1)
    fast, smooth, ends = (
        both(*found.values()),
        same(bumps, LOSSES),
        both(found[others[0]], found[others[-1]]),
    )
    text = ", ".join(f"{b[k]:g}: {interval(v)}" for k, v in slower.items())
    bump = ", ".join(f"{b[k]:g}: {interval(rough[:, k], 2)}" for k in others)
    start = ", ".join(f"{k:g}: {v:.2g}" for k, v in
                      zip(b, data.offsets[:, :, 0].mean(axis=0), strict=True))  # fmt: skip
    return Row(
        claim="The values of b with a low Delta are those that learn fast and smoothly",
        quote="Values b = 0.2, 0.3 yield low Δ, which correspond to fast and smooth learning "
        "curves",
        source="B, Trick (left plot)",
        measured="mean log loss along training, that of b = .2 and .3 subtracted, by b: "
        f"{text} (initial Delta {start}); rises of the loss between rows {data.size.every} steps "
        f"apart, summed, over the first loss: {interval(bumps, 2)}, other b {bump}; criterion: "
        f"slower at every other b, paired, {len(others)} comparisons, and rises none: {LOSSES}",
        verdict=verdict(
            both(fast, smooth),
            ("smooth, and faster than at both ends of the range, not than where Delta is higher in "
             "between", both(ends, smooth)),
        ),
    )  # fmt: skip


def _flow_row(data: Data) -> Row:
    b, last = np.array(data.size.flow_biases), data.flow_losses[..., -1]
    low = lowest(b)
    bottom, quick = last[:, low].mean(axis=1), area(data.flow_losses)
    ends = both(*(more(last[:, k], bottom, 2) for k in (0, -1)))
    pace = both(*(more(quick[:, k], quick[:, low].mean(axis=1), 2) for k in (0, -1)))
    text = ", ".join(f"{k:g}: {interval(v)}" for k, v in zip(b, last.T, strict=True))
    speed = ", ".join(
        f"{k:g}: {interval(v)}" for k, v in zip(b[1:], (quick - quick[:, :1]).T[1:], strict=True)
    )
    words = {True: "yes", False: "no", None: "not seen"}
    return Row(
        claim="Whether a low Delta helps without Adam, along gradient flow",
        source="B, Trick",
        measured=f"3 blocks, 10 inputs, 40 hidden units: loss at t = {data.size.flow_time:g} by b: "
        f"{text}; mean log loss along the flow over that of b = 0: {speed}",
        verdict=f"measured: a lower final loss than at both ends: {words[ends]}; faster: "
        f"{words[pace]}",
        kind="control",
    )


def draw(data: Data) -> Figure:
    """Learning curves; Delta over b; loss over Delta; the flow."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.0))
    b, flow_b = data.size.biases, data.size.flow_biases
    _beside(axes[0, 0], data.steps, data.losses, b)
    axes[0, 0].set(xlabel="step of Adam", title="learning curves, beside b = 0",
                   ylabel="loss on new samples, over that of b = 0", ylim=(0.83, 1.2))  # fmt: skip
    for k, shade in enumerate(_shades(len(b))):
        axes[1, 0].plot(data.offsets[:, k, 0], data.losses[:, k, -1], "o", color=shade,
                        markersize=4, label=f"b = {b[k]:g}")  # fmt: skip
    axes[1, 0].set(xlabel="Delta at the start", ylabel="final loss",
                   title="final loss and Delta, all seeds")  # fmt: skip
    axes[1, 0].legend(fontsize="small", frameon=False)
    for gain, rows in data.initial.items():
        v = gain**2 / 3
        _band(axes[0, 1], data.size.grid, rows, f"preactivations of variance v = {v:.2g}")
        least = axes[0, 1].axvline(np.sqrt(v / (2 * np.pi)), color="0.6", linestyle=":")
    least.set_label(r"$\sqrt{v / 2 \pi}$")
    axes[0, 1].set(xlabel="b", ylabel="Delta at the start", title="Delta over b",
                   ylim=(0, 0.95))  # fmt: skip
    axes[0, 1].legend(fontsize="small", loc="upper center", framealpha=1, edgecolor="white")
    _ends(axes[1, 1], data.flow_losses, flow_b)
    axes[1, 1].set(xlabel="b", ylabel="loss, over that of b = 0", ylim=(0.83, 1.2),
                   title=f"gradient flow, 3 blocks, at $t = {data.size.flow_time:g}$")  # fmt: skip
    return figure


def _shades(number: int) -> np.ndarray:
    """One colour for each b, in their order."""
    return plt.get_cmap("viridis")(np.linspace(0, 0.9, number))


def _beside(ax: Any, x: Any, losses: np.ndarray, biases: tuple[float, ...]) -> None:
    """Loss over that of the first b, seed by seed, of (seeds, b, T), with its interval."""
    ratios = losses / losses[:, :1]
    for k, shade in enumerate(_shades(len(biases))):
        _band(ax, x, ratios[:, k], f"b = {biases[k]:g}", shade)
    last = np.argsort(ratios[..., -1].mean(axis=0))[::-1]  # listed as the curves end
    handles, labels = ax.get_legend_handles_labels()
    ax.legend([handles[k] for k in last], [labels[k] for k in last], fontsize="small",
              frameon=False, loc="upper right", ncols=2)  # fmt: skip


def _ends(ax: Any, losses: np.ndarray, biases: tuple[float, ...]) -> None:
    """Last loss over that of the first b: each seed, and the mean with its interval, over b."""
    ratios = (losses / losses[:, :1])[..., -1]
    ax.axhline(1.0, color="0.6", linestyle=":")
    for k, shade in enumerate(_shades(len(biases))):
        aside = biases[k] + np.linspace(-0.02, 0.02, len(ratios))
        seeds, mean = ("each seed", "mean, 95 %") if k == 2 else ("_", "_")
        ax.plot(aside, ratios[:, k], "o", color=shade, markersize=3, alpha=0.6, label=seeds)
        middle, half = ratios[:, k].mean(), half_width(ratios[:, k])
        ax.errorbar(biases[k], middle, half, fmt="s", color="black", markersize=4, capsize=4,
                    label=mean)  # fmt: skip
    ax.legend(fontsize="small", frameon=False, loc="upper right")


def _band(ax: Any, x: Any, rows: np.ndarray, label: str, colour: Any = None) -> None:
    """Mean over seeds with its interval."""
    middle = rows.mean(axis=0)
    half = np.array([half_width(column) for column in rows.T])
    (line,) = ax.plot(x, middle, linestyle="-", label=label, color=colour)
    ax.fill_between(x, middle - half, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)


STUDY = Study("b_bias_after_relu", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
