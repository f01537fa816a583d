r"""M Fig. 6: a linear and a non-linear task in parallel. With bias the loss bends where the linear
task alone is solved (dotted), where linear networks stay; without, it passes straight.

Four points, a linear (simple) label s = 1, 1, 0, 0 and a non-linear (complex) one c = 1, 0, 0, 1.
Gradient flow with exact walks to t = 200 ("convergence"), 64 hidden units, variance 2e-4, with bias
(c = 1) and without.

App. E lists one-hot labels that fit only one of the tasks, and no code of the inputs. Judged are
all codes that the text admits: inputs -1/+1 with four outputs (both labels one-hot) or two (s and c
themselves), and two outputs with inputs 0/1 where s = c = 0 at 00. With other codes of inputs 0/1,
whose numbers stand beside, a network without bias cannot have zero loss on both tasks, as the
text's has: it gives zero at 00 whatever its weights. How the loss slows down at the dotted line,
what is left when only the linear task is solved, is timed by events at 1.3, 1.1 and 0.9 of it.

That it is the early linear phase, rather than the bias as such, which makes representations simple
cannot be seen where the bias is there all the time or never. A third kind of network has both
apart: it is trained without bias until its loss is down to 1.1 of the dotted line, and only then
with one.

    python examples/paper/m_fig6.py [--quick | --full]
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _fig6_rows import CONSTANT, JUDGED, LATE, NAMES, ZERO, dwell, judge, spell
from _judge import half_width, half_widths, interval
from _paper import WITHOUT, WITHOUT_BAR, Study, fl, initial
from _tree import thin
from matplotlib.figure import Figure

KINDS = {
    "linear, bias": ("linear", 1.0),
    "ReLU, bias": ("relu", 1.0),
    "linear, no bias": ("linear", 0.0),
    "ReLU, no bias": ("relu", 0.0),
}
SIMPLE, COMPLEX = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 1])
FEATURES = {"s": SIMPLE, "c": COMPLEX, "both": np.stack([SIMPLE, COMPLEX], axis=1)}
AROUND = (1.3, 1.1, 0.9)  # of the plateau
CODES = (*JUDGED, (4, "0/1"), (2, "0/1"))


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, codes (outputs, inputs), width, variance, end of the flow, saved times.

    `others`: seeds in the codes that are not judged.
    """

    seeds: int
    others: int = 20
    codes: tuple[tuple[int, str], ...] = CODES
    hidden: int = 64
    variance: float = 2e-4
    t1: float = 200.0
    points: int = 201

    @property
    def ts(self) -> np.ndarray:
        """Saved times, dense where learning begins."""
        return self.t1 * np.linspace(0, 1, self.points) ** 2


SIZES = {"quick": Size(3, 3, CODES[:2]), "default": Size(100), "full": Size(100)}


@dataclasses.dataclass
class Results:
    """Of one code: the plateau, and by kind the runs, and for ReLU networks the rest.

    - `rest`: (seeds, 3), times at `AROUND` the plateau.
    - `rank`: (seeds,), effective rank of the Gram matrix at convergence; of `LATE` ones too.
    - `explained`: (seeds, 3), variance explained by s, c and both; of `LATE` ones too.
    - `early`: (seeds,), what is learned of the non-linear task when the linear one is solved, see
      `_early`.
    """

    plateau: float
    flows: dict[str, fl.Sweep]
    rest: dict[str, np.ndarray]
    rank: dict[str, np.ndarray]
    explained: dict[str, np.ndarray]
    early: dict[str, np.ndarray]

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
    task = fl.tasks.parallel(one_hot=outputs == 4, binary=inputs != "-1/+1")
    # The same four pairs of labels, at other points.
    return fl.Task(task.x, 1 - task.y, name=task.name) if inputs == ZERO else task


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
    task, judged = task_of(outputs, inputs), (outputs, inputs) in JUDGED
    seeds = size.seeds if judged else size.others
    found = Results(best_linear(task), {}, {}, {}, {}, {})
    rest = fl.Crossing(fl.measures.loss, found.plateau * np.array(AROUND), name="rest")
    how: dict[str, Any] = {"ts": size.ts, "progress": seeds > 4}
    for kind, (network, c) in KINDS.items():
        given = {"hidden": (size.hidden,), "variance": size.variance, "bias_strength": c}
        starts = [initial(task, seed, **given) for seed in range(seeds)]
        if network == "linear":
            starts = [start.linear() for start in starts]
            found.flows[kind] = fl.sweep(starts, task, size.t1, **how)
            continue
        flows = found.flows[kind] = fl.sweep(starts, task, size.t1, events=(rest,), **how)
        found.rest[kind] = flows.map(lambda flow: flow.events.first("rest"))
        found.early[kind] = flows.map(lambda flow: _early(flow, task))
        found.rank[kind], found.explained[kind] = _ends(flows, task)
        if c == 0 and judged:
            late = _late(starts, task, size, AROUND[1] * found.plateau)
            found.rank[LATE], found.explained[LATE] = _ends(
                fl.sweep(late, task, size.t1, **how), task
            )
    return found


def _late(starts: list[Any], task: fl.Task, size: Size, level: float) -> list[fl.ReLUNetwork]:
    """Networks trained without bias until their loss is down to a level, then given theirs."""
    stop = fl.Crossing(fl.measures.loss, level, "down", terminate=True, name="level")
    ends = [flow.final for flow in fl.sweep(starts, task, size.t1, events=(stop,))]
    return [fl.ReLUNetwork(one.weights, one.biases, 1.0) for one in ends]


def _ends(flows: fl.Sweep, task: fl.Task) -> Any:
    """What is represented at convergence, by seed."""
    return flows.map(lambda flow: _represented(flow.final, task))


def _outputs(network: Any, task: fl.Task) -> Any:
    return network.outputs(task.x)


def _early(flow: fl.Trajectory, task: fl.Task) -> float:
    """What the loss of the non-linear task has fallen by, beyond the best constant's, over L(0).

    When that of the linear task is down to a tenth of the best constant's.
    """
    errors = np.asarray(fl.measures.along(flow, _outputs, task)) - np.asarray(task.y)
    first, second = np.split(0.5 * np.mean(errors**2, axis=1), 2, axis=1)
    simple, hard = first.sum(axis=1), second.sum(axis=1)
    solved = int(np.argmax(simple < 0.1 * CONSTANT * simple[0]))
    return float((CONSTANT * hard[0] - hard[solved]) / hard[0])


@jax.jit
def _represented(network: fl.ReLUNetwork, task: fl.Task) -> tuple[Any, Any]:
    """Effective rank of the Gram matrix, and variance explained by s, c and both (App. D)."""
    hidden, explained = fl.measures.hidden(network, task), fl.measures.variance_explained
    shares = [explained(hidden, jnp.asarray(FEATURES[name])) for name in NAMES]
    return fl.measures.effective_rank_of_gram(hidden), jnp.stack(shares)


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
        for kind in found.rest:
            entry[f"rest / time to get there, {kind}"] = spell(dwell(found, kind))
            entry[f"learned of the non-linear task when the linear one is, {kind}"] = interval(
                found.early[kind]
            )
        for kind in found.rank:
            entry[f"effective rank, {kind}"] = interval(found.rank[kind])
            for name, values in zip(NAMES, found.explained[kind].T, strict=True):
                entry[f"variance explained by {name}, {kind}"] = interval(values)
        shown[f"{outputs} outputs, inputs {inputs}"] = entry
    return shown


def draw(data: Data) -> Figure:
    """The first code: losses with and without bias (B), rank (C), variance explained (D)."""
    figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.8))
    outputs, inputs = data.size.codes[0]
    found = data.found[outputs, inputs]
    _draw_losses(axes[0], found, data.size.ts)
    _bars(axes[1, 0], {kind: found.rank[kind][:, None] for kind in found.rest}, ("",))
    axes[1, 0].set(title="C  rank at the end", ylabel=r"$\rho(H^T H)$", ylim=(0, 4.2))
    _bars(axes[1, 1], {kind: found.explained[kind] for kind in found.rest}, NAMES)
    axes[1, 1].set(
        title="D  variance explained",
        ylabel="$R^2$",
        ylim=(0, 1.4),
        xlabel="regressor",
        yticks=(0, 0.5, 1),
    )
    axes[0, 0].legend(frameon=False)
    axes[1, 1].legend(frameon=False, loc="upper left")
    figure.suptitle(f"inputs {inputs}, {outputs} outputs")
    return figure


def draw_codes(data: Data) -> Figure:
    """M Fig. 6 in all codes that the text admits or nearly so: the rank (C), and what the linear
    label s explains (D). See: bias (filled) lowers the rank for inputs -1/+1, and raises it for
    0/1. It raises what s explains in four codes of five.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 5.0), sharey=True)
    codes = list(data.found)
    kinds = list(data.found[codes[0]].rest)
    names = [
        f"{inputs},\n{outputs} outputs".replace(", both", ",\nboth") for outputs, inputs in codes
    ]
    for ax, read in zip(axes, (lambda one, k: one.rank[k], lambda one, k: one.explained[k][:, 0]),
                        strict=True):  # fmt: skip
        values = {k: [read(data.found[code], k) for code in codes] for k in kinds}
        _lying_bars(ax, values, names)
    axes[0].set(title="C  rank at the end", xlabel=r"$\rho(H^T H)$", ylabel="inputs")
    axes[1].set(title="D  variance explained by s", xlabel="$R^2$")
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False)  # fmt: skip
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


def _lying_bars(ax: Any, values: dict[str, list[np.ndarray]], names: list[str]) -> None:
    """By kind a bar for each code, the mean of its seeds with the 95 % interval."""
    colour = fl.plot.COLOURS["relu"]
    for k, (kind, some) in enumerate(values.items()):
        place = np.arange(len(names)) + 0.38 * (k - 0.5)
        how = {"color": colour} if k == 0 else {"edgecolor": colour} | WITHOUT_BAR
        wide = [half_width(one) for one in some]
        ax.barh(place, [one.mean() for one in some], 0.34, xerr=wide, capsize=3, label=kind,
                ecolor="black", **how)  # fmt: skip
    ax.set_yticks(np.arange(len(names)), names)


OTHERS = {"_codes": draw_codes}
STUDY = Study("m_fig6", SIZES, compute, draw, numbers, judge, others=OTHERS)

if __name__ == "__main__":
    STUDY.main(__doc__)
