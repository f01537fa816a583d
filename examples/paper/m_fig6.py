r"""M Fig. 6: a linear and a non-linear task in parallel.

Four points, a linear (simple) label s = 1, 1, 0, 0 and a non-linear (complex) one c = 1, 0, 0, 1.
Gradient flow with exact walks to t = 200 ("convergence"), 64 hidden units, variance 2e-4, with bias
(c = 1) and without.

App. E lists one-hot labels that fit only one of the tasks, and no code of the inputs. Judged are
four outputs (both labels one-hot) and inputs -1/+1: with 0/1 a network without bias gives zero at
00 whatever its weights, so it cannot have zero loss on both tasks as the text's has. The numbers of
two outputs (s and c themselves) and of inputs 0/1 stand beside. How the loss slows down at the
dotted line, what is left when only the linear task is solved, is timed by events at 1.3, 1.1 and
0.9 of it.

    python examples/paper/m_fig6.py [--quick | --full]
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import LOSSES, TIMES, apart, both, half_widths, interval, more, same, verdict
from _paper import WITHOUT, WITHOUT_BAR, Row, Study, fl, initial
from _tree import delay, thin
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
AROUND = (1.3, 1.1, 0.9)  # of the plateau
CODES = tuple(itertools.product((4, 2), ("-1/+1", "0/1")))
JUDGED = CODES[0]


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


SIZES = {"quick": Size(3, CODES[:2]), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Results:
    """Of one code: the plateau, and by kind the runs, and for ReLU networks the rest.

    - `rest`: (seeds, 3), times at `AROUND` the plateau.
    - `rank`: (seeds,), effective rank of the Gram matrix at convergence.
    - `explained`: (seeds, 3), variance explained by s, c and both.
    """

    plateau: float
    flows: dict[str, fl.Sweep]
    rest: dict[str, np.ndarray]
    rank: dict[str, np.ndarray]
    explained: dict[str, np.ndarray]

    def losses(self, kind: str) -> np.ndarray:
        """(seeds, T)."""
        return self.flows[kind].map(lambda flow: flow.losses)


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
        found.flows[kind] = flows
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


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Quotient, inf for a run that never leaves the plateau or never gets there."""
    there = np.isfinite(part)
    return np.where(there, np.where(there, part, 0) / np.where(there, whole, 1), np.inf)


def dwell(found: Results, kind: str) -> np.ndarray:
    """How long the loss rests at the plateau over how long it took to get there, (seeds,)."""
    _, first, last = found.rest[kind].T
    return _over(last - np.where(np.isfinite(last), first, 0), first)


def slowing(found: Results, kind: str) -> np.ndarray:
    """Time from 1.1 to .9 of the plateau over that from 1.3 to 1.1, (seeds,)."""
    before, first, last = found.rest[kind].T
    there = np.isfinite(last)
    return _over(last - np.where(there, first, 0), first - np.where(there, before, -1))


def spell(values: np.ndarray) -> str:
    """Mean and interval, or how many runs never leave the plateau."""
    stay = int(np.sum(np.isinf(values)))
    return f"endless in {stay} of {len(values)} seeds" if stay else interval(values)


def numbers(data: Data) -> dict[str, Any]:
    """By code: the plateau, the rest, ranks and explained variance; losses of the first code."""
    shown: dict[str, Any] = {"t": thin(data.size.ts)}
    for k, ((outputs, inputs), found) in enumerate(data.found.items()):
        entry: dict[str, Any] = {"plateau": found.plateau}
        for kind in found.flows:
            losses = found.losses(kind)
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
    """Verdicts on the caption and Sec. 6.2."""
    claims = {
        "With bias ReLU networks are aligned to linear ones until the linear task is solved": (
            "M Fig. 6B, Sec. 6.2", _early,
            "largest difference of losses after the best shift until the linear network has made "
            f"95 % of its way, {LOSSES}, less than without bias",
        ),
        "With bias the loss settles at the dotted line for a lengthy period": (
            "M Fig. 6B, Sec. 6.2", _rests,
            f"rest over the time to get there, against none: {TIMES}",
        ),
        "Without bias networks also learn more slowly after the linear task": (
            "M Sec. 6.2", _slower,
            "time from 1.1 to .9 of the dotted line over that from 1.3 to 1.1, above 1",
        ),
        "Without bias the saddle is substantially less pronounced": (
            "M Sec. 6.2, Fig. 6B", _weaker, f"rest without bias, against that with bias: {TIMES}",
        ),
        "With bias the Gram matrix at convergence has a lower effective rank": (
            "M Sec. 6.2, Fig. 6C of the text", _lower, "lower, paired by seed",
        ),
        "With bias the linear task explains more of the representation's variance than without": (
            "M Sec. 6.2, Fig. 6C of the caption, 6D of the text", _more, "more, paired by seed",
        ),
        "With and without bias s explains more than c": (
            "M Sec. 6.2, caption of Fig. 6", _simple, "more, paired, two comparisons",
        ),
        "Without bias a regression on both explains less": (
            "M Sec. 6.2", _less, "less, paired by seed",
        ),
        "ReLU networks with and without bias reach zero loss on both tasks": (
            "M Sec. 6.2", _zero, "last loss below a thousandth of the dotted line",
        ),
    }  # fmt: skip
    return [_row(data, claim, *how) for claim, how in claims.items()]


def _row(data: Data, claim: str, source: str, judged: Any, criterion: str) -> Row:
    """A claim in the code that is judged, with the numbers of the others."""
    found = {code: judged(results) for code, results in data.found.items()}
    beside = "; ".join(
        f"{n} outputs, inputs {x}: {text}"
        for (n, x), (_, text) in found.items()
        if (n, x) != JUDGED
    )
    holds, text = found[JUDGED]
    measured = f"4 outputs, inputs -1/+1: {text}; criterion: {criterion}. Not judged: {beside}"
    return Row(claim, source, measured, verdict(holds))


def _early(found: Results) -> tuple[bool | None, str]:
    """Until the linear network has made 95 % of its way to the plateau, or to its own end."""

    def gaps(bias: str, end: float | None) -> np.ndarray:
        rows = []
        for relu, linear in zip(found.flows[f"ReLU, {bias}"], found.flows[f"linear, {bias}"],
                                strict=True):  # fmt: skip
            first, last = float(linear.losses[0]), end or float(linear.losses[-1])
            rows.append(delay(relu, linear, ((0.95 * last + 0.05 * first) / first, np.inf)))
        return np.array(rows)

    (shift, bias), (_, none) = gaps("bias", found.plateau).T, gaps("no bias", None).T
    text = f"{interval(bias)} after {interval(shift)}, without bias {interval(none)}"
    return both(same(bias, LOSSES), more(none, bias)), text


def _rests(found: Results) -> tuple[bool | None, str]:
    values, slower = dwell(found, "ReLU, bias"), slowing(found, "ReLU, bias")
    text = f"{spell(values)} (over the time of the same fall just above: {spell(slower)})"
    return apart(values, TIMES), text


def _slower(found: Results) -> tuple[bool | None, str]:
    values = slowing(found, "ReLU, no bias")
    return True if np.all(np.isinf(values)) else more(values, 1.0), spell(values)


def _weaker(found: Results) -> tuple[bool | None, str]:
    bias, none = dwell(found, "ReLU, bias"), dwell(found, "ReLU, no bias")
    text = f"{spell(none)} (with bias {spell(bias)})"
    if np.any(np.isinf(none)):
        return False, text
    shorter = 1 - none / bias
    return both(apart(shorter, TIMES), more(shorter)), text


def _lower(found: Results) -> tuple[bool | None, str]:
    bias, none = found.rank["ReLU, bias"], found.rank["ReLU, no bias"]
    return more(none, bias), f"{interval(bias)} against {interval(none)} without bias"


def _pair(found: Results, name: str) -> tuple[np.ndarray, np.ndarray]:
    k = NAMES.index(name)
    return found.explained["ReLU, bias"][:, k], found.explained["ReLU, no bias"][:, k]


def _more(found: Results) -> tuple[bool | None, str]:
    bias, none = _pair(found, "s")
    return more(bias, none), f"{interval(bias)} against {interval(none)} without"


def _simple(found: Results) -> tuple[bool | None, str]:
    pairs = list(zip(_pair(found, "s"), _pair(found, "c"), strict=True))
    text = ", ".join(
        f"{name} s {interval(s)} c {interval(c)}"
        for name, (s, c) in zip(("bias", "no bias"), pairs, strict=True)
    )
    return both(*(more(s, c, of=2) for s, c in pairs)), text


def _less(found: Results) -> tuple[bool | None, str]:
    bias, none = _pair(found, "both")
    return more(bias, none), f"{interval(none)} against {interval(bias)} with bias"


def _zero(found: Results) -> tuple[bool | None, str]:
    last = {kind: found.losses(kind)[:, -1].max() for kind in found.rank}
    text = ", ".join(f"{kind} {value:.1e}" for kind, value in last.items())
    return max(last.values()) < 1e-3 * found.plateau, f"largest last loss {text}"


def draw(data: Data) -> Figure:
    """Every code: losses with and without bias (B), effective rank (C), variance explained (D)."""
    figure = plt.figure(figsize=(10.0, 2.75 * len(data.found) + 0.4), layout="constrained")
    parts: Any = figure.subfigures(len(data.found), 1, squeeze=False)
    for part, ((outputs, inputs), found) in zip(parts[:, 0], data.found.items(), strict=True):
        part.suptitle(f"inputs {inputs}, {outputs} outputs", x=0.01, ha="left", fontweight="bold")
        axes = part.subplots(1, 4, width_ratios=(1.3, 1.3, 0.6, 1.1))
        _draw_losses(axes[:2], found, data.size.ts)
        _bars(axes[2], {kind: found.rank[kind][:, None] for kind in found.rank}, ("",))
        axes[2].set(title="C  rank at the end", ylabel=r"$\rho(H^T H)$", ylim=(0, 4.2))
        _bars(axes[3], found.explained, NAMES)
        axes[3].set(
            title="D  variance explained",
            ylabel="$R^2$",
            ylim=(0, 1.4),
            xlabel="regressor",
            yticks=(0, 0.5, 1),
        )
        if part is parts[0, 0]:
            axes[0].legend(frameon=False)
            axes[3].legend(frameon=False, loc="upper left")
    return figure


def _draw_losses(axes: Any, found: Results, ts: np.ndarray) -> None:
    """Losses of all seeds and their mean, with bias and without."""
    top = 1.05 * found.losses("linear, bias")[:, 0].max()
    for ax, bias in zip(axes, ("bias", "no bias"), strict=True):
        how = {"linestyle": "-"} if bias == "bias" else WITHOUT
        for name, kind in (("linear", "linear"), ("ReLU", "relu")):
            colour, rows = fl.plot.COLOURS[kind], found.losses(f"{name}, {bias}")
            ax.plot(ts, rows.T, color=colour, alpha=0.25, linewidth=0.7, linestyle="-")
            ax.plot(ts, rows.mean(axis=0), color=colour, label=name, **how)
        ax.axhline(found.plateau, color="black", linestyle=":", linewidth=1.2,
                   label="linear task solved")  # fmt: skip
        ax.set(title=f"B  losses, {bias}", xlabel="flow time $t$ (units of $\\tau$)",
               ylabel="loss $L$", xlim=(0, 40), ylim=(0, top))  # fmt: skip


def _bars(ax: Any, groups: dict[str, np.ndarray], names: tuple[str, ...]) -> None:
    """Means with 95 % intervals of values (seeds, names); without bias hatched."""
    colour = fl.plot.COLOURS["relu"]
    for k, (kind, values) in enumerate(groups.items()):
        place = np.arange(len(names)) + 0.38 * (k - 0.5)
        how = {"color": colour} if k == 0 else {"edgecolor": colour} | WITHOUT_BAR
        ax.bar(place, values.mean(axis=0), 0.34, yerr=half_widths(values), capsize=3, label=kind,
               ecolor="black", **how)  # fmt: skip
    ax.set_xticks(np.arange(len(names)), names)


STUDY = Study("m_fig6", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
