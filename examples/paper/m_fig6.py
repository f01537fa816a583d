r"""M Fig. 6: a linear and a non-linear task in parallel.

Four points, a linear (simple) label s = 1, 1, 0, 0 and a non-linear (complex) one c = 1, 0, 0, 1.
Gradient flow with exact walks to t = 200 ("convergence"), 64 hidden units, variance 2e-4, with bias
(c = 1) and without.

The text leaves open how outputs and inputs are coded; App. E prints labels that fit only one of the
tasks. Four outputs (both labels one-hot) and two (s and c themselves) are run, each with inputs
-1/+1 and 0/1. The rest at the dotted line is timed by events: from the loss at 1.1 to that at 0.9
of what is left when only the linear task is solved (the best linear fit's loss). No code gives
every claim: with -1/+1 and four outputs all hold but that the rest is long; with 0/1 and two it is,
but then a network without bias gives zero at 00 whatever its weights, and never converges.

    python examples/paper/m_fig6.py [--quick | --full]
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import interval
from _paper import Row, Study, fl, initial
from _tree import thin
from matplotlib.figure import Figure

KINDS = {
    "linear, bias": ("linear", 1.0),
    "ReLU, bias": ("relu", 1.0),
    "linear, no bias": ("linear", 0.0),
    "ReLU, no bias": ("relu", 0.0),
}
NAMES = ("s", "c", "both")
SIMPLE, COMPLEX = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
FEATURES = {"s": SIMPLE, "c": COMPLEX, "both": np.stack([SIMPLE, COMPLEX], axis=1)}
AROUND = (1.1, 0.9)  # of the plateau
CODES = tuple(itertools.product((4, 2), ("-1/+1", "0/1")))


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, codes (outputs, inputs), width, variance, end of the flow, saved times."""

    seeds: int
    codes: tuple[tuple[int, str], ...] = CODES
    hidden: int = 64
    variance: float = 2e-4
    t1: float = 200.0
    points: int = 201

    @property
    def ts(self) -> np.ndarray:
        """Saved times, dense where learning begins."""
        return self.t1 * np.linspace(0, 1, self.points) ** 2


SIZES = {"quick": Size(3, CODES[:2]), "default": Size(10), "full": Size(10)}


@dataclasses.dataclass
class Results:
    """Of one code: the plateau, and by kind losses (seeds, T), and for ReLU networks the rest.

    - `rest`: (seeds, 2), times at 1.1 and 0.9 of the plateau.
    - `rank`: (seeds,), effective rank of the Gram matrix at convergence.
    - `explained`: (seeds, 3), variance explained by s, c and both.
    """

    plateau: float
    losses: dict[str, np.ndarray]
    rest: dict[str, np.ndarray]
    rank: dict[str, np.ndarray]
    explained: dict[str, np.ndarray]


@dataclasses.dataclass
class Data:
    """Results by code."""

    size: Size
    found: dict[tuple[int, str], Results]


def task_of(outputs: int, inputs: str) -> fl.Task:
    """The task in a code."""
    return fl.tasks.parallel(one_hot=outputs == 4, binary=inputs == "0/1")


def best_linear(task: fl.Task) -> float:
    """Loss of the best affine fit: the linear task solved, the other one's mean."""
    x = np.column_stack([np.ones(task.samples), task.x])
    fit = x @ np.linalg.lstsq(x, np.asarray(task.y))[0]
    return 0.5 * float(np.mean(np.sum((fit - np.asarray(task.y)) ** 2, axis=1)))


def compute(size: Size) -> Data:
    """All codes."""
    return Data(size, {code: _results(size, *code) for code in size.codes})


def _results(size: Size, outputs: int, inputs: str) -> Results:
    """Runs of all kinds in one code."""
    task = task_of(outputs, inputs)
    found = Results(best_linear(task), {}, {}, {}, {})
    rest = fl.Crossing(fl.measures.loss, found.plateau * np.array(AROUND), name="rest")
    for kind, (network, c) in KINDS.items():
        how = {"hidden": (size.hidden,), "variance": size.variance, "bias_strength": c}
        starts = [initial(task, seed, **how) for seed in range(size.seeds)]
        starts = [start.linear() for start in starts] if network == "linear" else starts
        flows = fl.sweep(
            starts,
            task,
            size.t1,
            ts=size.ts,
            events=(rest,) if network == "relu" else (),
            progress=size.seeds > 4,
        )
        found.losses[kind] = flows.map(lambda flow: flow.losses)
        if network == "relu":
            found.rest[kind] = flows.map(lambda flow: flow.events.first("rest"))
            seen = flows.map(lambda flow: _represented(flow.final, task))
            found.rank[kind], found.explained[kind] = seen
    return found


@jax.jit
def _represented(network: fl.ReLUNetwork, task: fl.Task) -> tuple[Any, Any]:
    """Effective rank of the Gram matrix, and variance explained by s, c and both (App. D)."""
    hidden, explained = fl.measures.hidden(network, task), fl.measures.variance_explained
    shares = [explained(hidden, jnp.asarray(FEATURES[name])) for name in NAMES]
    return fl.measures.effective_rank_of_gram(hidden), jnp.stack(shares)


def dwell(found: Results, kind: str) -> np.ndarray:
    """How long the loss rests at the plateau over how long it took to get there, (seeds,).

    inf for a run that never leaves it or never gets there.
    """
    first, last = found.rest[kind].T
    there = np.isfinite(last)
    return np.where(
        there,
        (np.where(there, last, 0.0) - np.where(there, first, 0.0)) / np.where(there, first, 1.0),
        np.inf,
    )


def spell(values: np.ndarray) -> str:
    """Mean and interval, or how many runs never leave the plateau."""
    stay = int(np.sum(np.isinf(values)))
    return f"endless in {stay} of {len(values)} seeds" if stay else interval(values)


def numbers(data: Data) -> dict[str, Any]:
    """By code: the plateau, the rest, ranks and explained variance; losses of the first code."""
    shown: dict[str, Any] = {"t": thin(data.size.ts)}
    for k, ((outputs, inputs), found) in enumerate(data.found.items()):
        entry: dict[str, Any] = {"plateau": found.plateau}
        for kind, losses in found.losses.items():
            entry[f"final loss, {kind}, largest"] = losses[:, -1].max()
            if k == 0:
                entry[f"loss, {kind}, mean"] = thin(losses.mean(axis=0))
        for kind in found.rank:
            entry[f"rest / time to get there, {kind}"] = spell(dwell(found, kind))
            entry[f"effective rank, {kind}"] = interval(found.rank[kind])
            for name, values in zip(NAMES, found.explained[kind].T, strict=True):
                entry[f"variance explained by {name}, {kind}"] = interval(values)
        shown[f"{outputs} outputs, inputs {inputs}"] = entry
    return shown


def judge(data: Data) -> list[Row]:
    """Verdicts on the caption, Sec. 6.2 and App. D, for every code."""
    claims = {
        "With bias the ReLU network follows the linear one early": ("M Fig. 6B", _early),
        "With bias the loss rests at the dotted line for a lengthy period": ("M Fig. 6B", _rests),
        "Without bias the saddle is substantially less pronounced": ("M Sec. 6.2", _weaker),
        "With bias the Gram matrix at convergence has a lower effective rank": (
            "M Sec. 6.2, Fig. 6C of the text", _lower,
        ),
        "With bias s explains more of the representation's variance than without": (
            "M Fig. 6D of the text (6C of the caption)", _more,
        ),
        "Both networks represent s more strongly than c": ("M Sec. 6.2", _simple),
        "Both features together explain less without bias": ("M Sec. 6.2", _less),
        "R2 of both features is the sum of their R2": ("M App. D, erratum B.15", _sum),
        "All networks with hidden ReLU units reach zero loss on both tasks": ("M Sec. 6.2", _zero),
    }  # fmt: skip
    return [_row(data, claim, *how) for claim, how in claims.items()] + [_labels()]


def _row(data: Data, claim: str, source: str, judged: Any) -> Row:
    """A claim over all codes: where it holds decides."""
    found = {f"{n} outputs, {x}": judged(results) for (n, x), results in data.found.items()}
    fine = [name for name, (holds, _) in found.items() if holds]
    text = "; ".join(f"{name}: {measured}" for name, (_, measured) in found.items())
    if len(fine) == len(found):
        verdict = "holds"
    else:
        verdict = "holds under a condition: " + " or ".join(fine) if fine else "does not hold"
    return Row(claim, source, text, verdict)


def _above(more: np.ndarray, less: np.ndarray) -> bool:
    """Whether the 95 % intervals of two means lie apart in this order."""

    def half(values: np.ndarray) -> float:
        return 1.96 * float(values.std(ddof=1)) / np.sqrt(len(values))

    return bool(more.mean() - half(more) > less.mean() + half(less))


def _early(found: Results) -> tuple[bool, str]:
    """Differences of the losses while they are above the plateau."""
    relu, linear = found.losses["ReLU, bias"], found.losses["linear, bias"]
    none = np.abs(found.losses["ReLU, no bias"] - found.losses["linear, no bias"])
    before = linear > AROUND[0] * found.plateau
    first = linear[:, 0]
    with_bias = np.max(np.where(before, np.abs(relu - linear), 0.0), axis=1) / first
    without = np.max(np.where(before, none, 0.0), axis=1) / first
    text = f"largest difference before the plateau {interval(with_bias)} of the first loss"
    return with_bias.mean() < 0.25, f"{text} (without bias {interval(without)})"


def _rests(found: Results) -> tuple[bool, str]:
    values = dwell(found, "ReLU, bias")
    text = f"{spell(values)} of the time to get there (plateau {found.plateau:.4g})"
    return bool(values.min() > 0.5), text


def _weaker(found: Results) -> tuple[bool, str]:
    bias, none = dwell(found, "ReLU, bias"), dwell(found, "ReLU, no bias")
    shorter = bool(np.all(np.isfinite(none))) and _above(bias, 2 * none)
    return shorter, f"rest {spell(none)} (with bias {spell(bias)})"


def _lower(found: Results) -> tuple[bool, str]:
    bias, none = found.rank["ReLU, bias"], found.rank["ReLU, no bias"]
    return _above(none, bias), f"{interval(bias)} against {interval(none)}"


def _pair(found: Results, name: str) -> tuple[np.ndarray, np.ndarray]:
    k = NAMES.index(name)
    return found.explained["ReLU, bias"][:, k], found.explained["ReLU, no bias"][:, k]


def _more(found: Results) -> tuple[bool, str]:
    bias, none = _pair(found, "s")
    return _above(bias, none), f"{interval(bias)} against {interval(none)}"


def _simple(found: Results) -> tuple[bool, str]:
    pairs = list(zip(_pair(found, "s"), _pair(found, "c"), strict=True))
    text = ", ".join(
        f"{name} s {interval(s)} c {interval(c)}"
        for name, (s, c) in zip(("bias", "no bias"), pairs, strict=True)
    )
    return all(_above(s, c) for s, c in pairs), text


def _less(found: Results) -> tuple[bool, str]:
    bias, none = _pair(found, "both")
    return _above(bias, none), f"{interval(none)} against {interval(bias)} with bias"


def _sum(found: Results) -> tuple[bool, str]:
    every = np.concatenate(list(found.explained.values()))
    error = float(np.max(np.abs(every[:, 2] - every[:, 0] - every[:, 1])))
    return error < 1e-10, f"largest difference {error:.1e}"


def _zero(found: Results) -> tuple[bool, str]:
    last = {kind: found.losses[kind][:, -1].max() for kind in found.rank}
    text = ", ".join(f"{kind} {value:.1e}" for kind, value in last.items())
    return max(last.values()) < 1e-3 * found.plateau, f"largest final loss {text}"


def _labels() -> Row:
    """The labels that App. E prints for this figure."""
    first = np.array([1.0, 1, 0, 0])

    def determined(label: np.ndarray) -> float:
        """Residual of the label as an affine function of the printed ones."""
        known = np.column_stack([np.ones(4), first])
        return float(np.linalg.norm(known @ np.linalg.lstsq(known, label)[0] - label))

    s, c = determined(SIMPLE), determined(COMPLEX)
    return Row(
        "Labels [1,0], [1,0], [0,1], [0,1] code the task",
        "M App. E, erratum B.15",
        f"residual of s given the labels {s:.1e}, of c {c:.2g}: they say nothing about c",
        "holds" if max(s, c) < 1e-12 else "does not hold",
    )


def draw(data: Data) -> Figure:
    """A: labels; B: losses with and without bias; C: effective rank; D: explained variance."""
    shown = list(data.found.items())[:2]
    figure, rows = plt.subplots(
        len(shown), 5, figsize=(15.0, 3.2 * len(shown)), width_ratios=(0.8, 1.2, 1.2, 0.7, 1.2),
        squeeze=False,
    )  # fmt: skip
    for axes, ((outputs, inputs), found) in zip(rows, shown, strict=True):
        _draw_task(axes[0], task_of(outputs, inputs), f"A  inputs {inputs}, {outputs} outputs")
        _draw_losses(axes[1:3], found, data.size.ts)
        _bars(axes[3], {kind: found.rank[kind][:, None] for kind in found.rank}, ("",))
        axes[3].set(title="C  effective rank", ylabel=r"$\rho(H^T H)$ at the end")
        _bars(axes[4], found.explained, NAMES)
        axes[4].set(title="D  variance explained", ylabel="$R^2$", ylim=(0, 1.25),
                    xlabel="regressor")  # fmt: skip
        axes[4].legend(fontsize="small", frameon=False, ncols=2, loc="upper center")
    return figure


def _draw_losses(axes: Any, found: Results, ts: np.ndarray) -> None:
    """Losses of all seeds and their mean, with bias and without."""
    for ax, bias in zip(axes, ("bias", "no bias"), strict=True):
        for name, kind in (("linear", "linear"), ("ReLU", "relu")):
            look = fl.plot.look(kind)
            rows = found.losses[f"{name}, {bias}"]
            ax.plot(ts, rows.T, **look | {"alpha": 0.25, "linewidth": 0.7})
            ax.plot(ts, rows.mean(axis=0), **look, label=name)
        ax.axhline(found.plateau, color="black", linestyle=":", label="linear task solved")
        ax.set(title=f"B  losses, {bias}", xlabel="flow time $t$ (units of $\\tau$)",
               ylabel="loss $L$", xlim=(0, 40))  # fmt: skip
        ax.legend(fontsize="small", frameon=False)


def _draw_task(ax: Any, task: fl.Task, title: str) -> None:
    """Labels of the four points."""
    x = np.asarray(task.x)
    low, edge = x.min(), np.ptp(x[:, 0])
    for label, offset, name in ((SIMPLE, 0.1, "s"), (COMPLEX, -0.1, "c")):
        for point, value in zip(x, label, strict=True):
            colour, at = "#0072B2" if value else "white", point[1] + offset * edge
            ax.scatter(point[0], at, s=90, color=colour, edgecolor="#0072B2")
            ax.annotate(name, (point[0] + 0.13 * edge, at), va="center", fontsize=9)
    limits = (low - 0.3 * edge, 1 + 0.35 * edge)
    ax.set(title=title, xlabel="$x_1$ (filled: label 1)", ylabel="$x_2$", xlim=limits, ylim=limits,
           xticks=[low, 1], yticks=[low, 1])  # fmt: skip


def _bars(ax: Any, groups: dict[str, np.ndarray], names: tuple[str, ...]) -> None:
    """Means with 95 % intervals of values (seeds, names), one colour per group."""
    for k, (kind, values) in enumerate(groups.items()):
        half = 1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
        place = np.arange(len(names)) + 0.38 * (k - 0.5)
        colour = fl.plot.look("relu", k)["color"]
        ax.bar(place, values.mean(axis=0), 0.36, yerr=half, capsize=3, color=colour, label=kind)
        if len(names) == 1:
            ax.annotate(kind.split(", ")[1], (place[0], 0.1), ha="center", rotation=90)  # fmt: skip
    ax.set_xticks(np.arange(len(names)), names)


STUDY = Study("m_fig6", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
