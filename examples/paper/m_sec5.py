r"""M Sec. 5, App. B and App. F.2: what the theory assumes, and whether its first step is needed.
See: the first mode is aligned (blue) before the loss moves. With bias (filled) the outputs of ReLU
networks stay nearer to those of linear ones, once time is stretched by the factor that fits best;
also where the mean target is zero (lower left).

Claims of the text that have no figure, on one-hot inputs with 64 hidden units and variance 2e-4:

- silent alignment before the loss moves, and balanced weights in practice (linear networks);
- biases that start slightly negative drift up (ReLU networks); slightly: by less than a standard
  deviation of the initial weights. Measured when the loss has fallen by 5 %;
- the same where targets have both signs, unit by unit against the update that App. F.2 prints;
- the mechanism, whose first step is that "when ybar is not zero, the bias induces a leading mode":
  the same networks on the tree and on targets of mean zero, where there is no bias mode. Whether
  ReLU and linear networks stay together is judged on their outputs, after the best common stretch
  of time.

    python examples/paper/m_sec5.py [--quick | --full]
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from _judge import (
    LIKENESS,
    LOSSES,
    MAPS,
    SHARES,
    both,
    half_widths,
    interval,
    more,
    same,
    verdict,
)
from _paper import WITHOUT_BAR, Row, Study, fl
from _tree import (
    PAPER,
    Case,
    Pace,
    Setting,
    grouped,
    linearization,
    many,
    map_stretch,
    modes_of,
    pace,
    runs,
    task_of,
    thin,
)
from _tree import SHARES as LEVELS
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DRAWN = "normal"  # another task for each seed
ZERO = ("signed tree", "centred tree", f"centred {DRAWN}")


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: number of seeds, tasks of mean target zero, the runs'."""

    seeds: int
    zero: tuple[str, ...] = ZERO
    setting: Setting = PAPER


SIZES = {"quick": Size(2, zero=("signed tree",)), "default": Size(20), "full": Size(20)}


class Drift(NamedTuple):
    """Of one ReLU network, until its loss has fallen by 5 %.

    - `slight`, `positive`: share of the live units with a slightly negative or a positive initial
      bias whose bias rises; `rise`, `rise_positive`: the mean changes of their biases.
    - `all_live`: share of all live units; `told`: of those live units for which the update that
      App. F.2 prints is positive; `fit`: correlation of the changes with it.
    """

    slight: float
    positive: float
    rise: float
    rise_positive: float
    all_live: float
    told: float
    fit: float


@dataclasses.dataclass
class Data:
    """Measures of linear runs on the tree, drifts (seeds, 7) by task, distances by (task, c).

    - `aligned`: cosine of the first singular vectors of the map with those of the task, (seeds, T).
    - `balance`: 2 p . q / (|p|^2 + |q|^2) of the modes, (seeds, T, modes); 1 where they are equal.
    - `maps`: factor of time and distance left, (seeds, 2); `on`: largest open and closed always-on
      fraction of the ReLU network, (seeds, 2).
    """

    size: Size
    linear: list[fl.Trajectory]
    aligned: np.ndarray
    balance: np.ndarray
    drifts: dict[str, np.ndarray]
    maps: dict[tuple[str, float], np.ndarray]
    on: dict[tuple[str, float], np.ndarray]
    paces: dict[tuple[str, float], Pace]


def compute(size: Size) -> Data:
    """The runs."""
    linear = many("tree", "linear", 1.0, size.seeds, size.setting)
    measured = [_measured(flow) for flow in linear]
    drifts = {task: np.array([_drift(flow, case.task) for case, flow in _flows(task, size)])
              for task in ("tree", DRAWN)}  # fmt: skip
    maps, on, paces = {}, {}, {}
    for task in ("tree", *size.zero):
        for c in (1.0, 0.0):
            flows = (_flows(task, size, kind, c) for kind in ("relu", "linear"))
            pairs = [(a, b, case.task) for (case, a), (_, b) in zip(*flows, strict=True)]
            maps[task, c] = np.array([map_stretch(a, b, task_of(name)) for a, b, name in pairs])
            lines = [linearization(a) for a, _, _ in pairs]
            on[task, c] = np.array([(x.open.fraction, x.closed.fraction) for x in lines])
            if not task.endswith(DRAWN):
                relu, straight = zip(*((a, b) for a, b, _ in pairs), strict=True)
                paces[task, c] = pace(relu, straight, task, c)
    aligned, balance = (np.array(column) for column in zip(*measured, strict=True))
    return Data(size, linear, aligned, balance, drifts, maps, on, paces)


def _flows(task: str, size: Size, kind: str = "relu", c: float = 1.0) -> list[tuple[Case, Any]]:
    """The runs on a task, of drawn ones another for each seed."""
    names = [f"{task} {k}" if task.endswith(DRAWN) else task for k in range(size.seeds)]
    cases = [Case(name, kind, c, seed) for seed, name in enumerate(names)]
    return list(zip(cases, runs(cases, size.setting), strict=True))


def _measured(flow: fl.Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Alignment (T,) and balance (T, modes) of a linear run on the tree."""
    modes, task = modes_of("tree", 1.0), task_of("tree")
    matrices = fl.measures.along(flow, partial(fl.measures.mode_matrix, modes=modes), task)
    u, _, v = np.linalg.svd(np.asarray(matrices))
    vectors = fl.measures.along(flow, partial(fl.measures.hidden_vectors, modes=modes), task)
    p, q = (np.asarray(part) for part in vectors)
    balance = 2 * np.sum(p * q, axis=-1) / np.sum(p**2 + q**2, axis=-1)
    return np.minimum(np.abs(u[:, 0, 0]), np.abs(v[:, 0, 0])), balance


def _moved(flow: fl.Trajectory) -> int:
    """Number of the saved time at which the loss has fallen by `LOSSES.same` of its start."""
    losses = np.asarray(flow.losses)
    return int(np.argmax(losses <= (1 - LOSSES.same) * losses[0]))


def _drift(flow: fl.Trajectory, task: str) -> Drift:
    """How the biases of the units that are live at the start have moved; one-hot inputs."""
    paths, targets = np.asarray(flow.networks.biases[0]), np.asarray(task_of(task).y)
    first, change = paths[0], paths[_moved(flow)] - paths[0]
    z = np.asarray(flow.networks.weights[0])[0] + first[:, None]  # (H, P)
    hidden = np.maximum(z, 0.0)
    printed = np.sum(hidden @ (targets @ targets.T) * (z > 0), axis=1)
    live = np.any(z > 0, axis=1)
    slight = live & (first < 0) & (first > -np.sqrt(PAPER.variance))
    positive = live & (first > 0)
    up, up_positive, up_live, told = (
        float(np.mean(change[some] > 0)) for some in (slight, positive, live, live & (printed > 0))
    )
    rise, rise_positive = (float(np.mean(change[some])) for some in (slight, positive))
    fit = float(np.corrcoef(printed[live], change[live])[0, 1])
    return Drift(up, up_positive, rise, rise_positive, up_live, told, fit)


def numbers(data: Data) -> dict[str, Any]:
    """Alignment and balance of seed 0, means of the rest by task."""
    found: dict[str, Any] = {
        "t": thin(data.size.setting.ts),
        "alignment of the first mode, seed 0": thin(data.aligned[0]),
        "balance by mode, seed 0": thin(data.balance[0]),
    }
    for task, rows in data.drifts.items():
        found[f"drift, {task}"] = dict(zip(Drift._fields, rows.mean(axis=0).tolist(), strict=True))
    for (task, c), rows in data.maps.items():
        found[f"stretch, distance left by seed, {task}, c = {c:g}"] = rows
        found[f"always on, open and closed, mean, {task}, c = {c:g}"] = data.on[task, c].mean(0)
    for (task, c), one in data.paces.items():
        found[f"half times over linear by seed, {task}, c = {c:g}"] = one.ratios
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the text's claims."""
    return [_silent_row(data), _balance_row(data), _slight_row(data), _update_row(data),
            _zero_row(data)]  # fmt: skip


def _silent_row(data: Data) -> Row:
    at = [_moved(flow) for flow in data.linear]
    seeds = np.arange(len(at))
    found, ts = data.aligned[seeds, at], data.size.setting.ts
    own = _balance(data, 0.1)
    return Row(
        claim="Weights align with the singular vectors of the data before the loss changes "
        "appreciably (silent alignment)",
        quote="weight singular values will rapidly align to match input correlation singular "
        "vectors before network loss changes in any appreciable way",
        source="M App. B, Sec. 5.2, after Atanasov et al. 2021",
        measured="cosine of the linear network's first singular vectors with the task's, the "
        f"lesser of both sides, when the loss has fallen by {LOSSES.same:.0%} (t = "
        f"{interval(ts[at])}): {interval(found)}, at the start {interval(data.aligned[:, 0])}; of "
        "later modes 2 p.q / (|p|^2 + |q|^2), which is 1 where the layers are aligned, at a tenth "
        f"of their strength, by singular value {', '.join(f'{v:.3f}' for v in own.mean(axis=0))}. "
        f"Criterion: 1, {LIKENESS}",
        verdict=verdict(
            both(same(1 - found, LIKENESS), *(same(1 - v, LIKENESS, 4) for v in own.T))
        ),
    )


def _balance(data: Data, level: float) -> np.ndarray:
    """Balance of the modes when they have a share of their strength, (seeds, singular values)."""
    ts, k = data.size.setting.ts, LEVELS.index(level)
    rows = []
    for flow, balance in zip(data.linear, data.balance, strict=True):
        hits = np.asarray(flow.events.first("mode"))[k]
        rows.append([np.interp(hits[a], ts, balance[:, a]) for a in range(len(hits))])
    return grouped(np.array(rows), "tree", 1.0)


def _balance_row(data: Data) -> Row:
    found = {f"at {level:g} of the strength": _balance(data, level) for level in (0.02, 0.1, 0.5)}
    found = {"at the start": grouped(data.balance[:, 0], "tree", 1.0)} | found
    text = "; ".join(
        f"{name} {', '.join(f'{v:.3f}' for v in rows.mean(axis=0))}" for name, rows in found.items()
    )
    return Row(
        claim="From small weights the layers are balanced in practice",
        quote="When initializing networks from small weights this assumption will hold true in "
        "practice.",
        source="M App. B",
        measured="2 p.q / (|p|^2 + |q|^2) of the hidden vectors p = W_2^T u and q = W_1 v, 1 where "
        f"they are equal, by singular value: {text} ({LIKENESS}, 4 comparisons). The text does not "
        "say when; Eq. 21 takes it from the start",
        verdict=verdict({
            name: both(*(same(1 - v, LIKENESS, 4) for v in rows.T)) for name, rows in found.items()
        }),
    )  # fmt: skip


def _slight_row(data: Data) -> Row:
    slight, positive, rise, rise_positive, *_ = data.drifts["tree"].T
    return Row(
        claim="Many units with slightly negative initial biases drift upward, more slowly",
        quote="many units with slightly negative initial b_j still drift upward (slower), "
        "consistent with our experiments",
        source="M App. F.2",
        measured=f"until the loss has fallen by {LOSSES.same:.0%}, the biases of "
        f"{interval(slight)} of the live units with -sigma < b(0) < 0 rise (many: more than half), "
        f"of those with b(0) > 0 {interval(positive)}; mean change {interval(rise)} and "
        f"{interval(rise_positive)}",
        verdict=verdict(both(more(slight, 0.5), more(rise), more(rise_positive, rise))),
    )


def _update_row(data: Data) -> Row:
    _, _, rise, _, live, told, fit = data.drifts[DRAWN].T
    on_tree = data.drifts["tree"][:, -1]
    return Row(
        claim="With negative targets too, the bias of a unit that is active on similar targets "
        "rises, by the printed update",
        quote="will be positive when the neuron is active for data points with similar outputs",
        source="M App. F.2, Eq. 24; erratum E8",
        measured="normal targets, another task for each seed: until the loss has fallen by "
        f"{LOSSES.same:.0%} the biases rise of {interval(told)} of the live units whose printed "
        f"update is positive, and of {interval(live)} of all live ones; correlation of the change "
        f"with the printed update {interval(fit)}, on the tree {interval(on_tree)} (it leaves out "
        f"W_2(0)); mean change of slightly negative biases {interval(rise)}. Criterion: they rise "
        f"in all of these units but a share, {SHARES}",
        verdict=verdict(
            same(1 - told, SHARES),
            ("most of these rise, and the more the larger the printed update",
             both(more(told, 0.5), more(fit))),
        ),
    )  # fmt: skip


def _zero_row(data: Data) -> Row:
    number, texts, together = len(data.size.zero), [], {}
    for task in ("tree", *data.size.zero):
        with_, bare = data.maps[task, 1.0][:, 1], data.maps[task, 0.0][:, 1]
        on = data.on[task, 1.0].mean(axis=0)
        text = (f"{task}: {interval(with_)}, without bias {interval(bare)} (always on with bias up "
                f"to {on[0]:.2f} open, {on[1]:.2f} closed)")  # fmt: skip
        if (task, 1.0) in data.paces:
            uneven = [interval(data.paces[task, c].uneven) for c in (1.0, 0.0)]
            text += f", half times differ by {uneven[0]}, without bias by {uneven[1]}"
        texts.append(text)
        of = 1 if task == "tree" else number
        together[task] = both(same(with_, MAPS, of), more(bare, with_, of))
    zero = [together[task] for task in data.size.zero]
    only = False if True in zero else None if None in zero else True
    return Row(
        claim="The bias aligns ReLU networks with linear ones by the mode of the mean target",
        quote="Our main conclusion follows a three-step mechanism: (i) when ... the hidden bias "
        'induces a leading "bias mode" that is learned first; (ii) this growth pushes most ReLU '
        "units into the linear regime; (iii) beyond that time learning dynamics are transiently "
        "linear",
        source="M Sec. 5",
        measured="largest distance of the ReLU network's outputs from the linear one's after the "
        "best stretch of time, over the targets, on the tree and on targets of mean zero, which "
        f"have no such mode: {'; '.join(texts)}. Criterion: aligned is {MAPS}, and nearer than "
        "without bias. Where targets of mean zero are aligned too, the mechanism is one way to "
        "it, and a bias aligns without its step (i)",
        verdict=verdict({
            "as one way, where the mean target is not zero": together["tree"],
            "as the only way, no alignment where it is zero": only,
        }),
    )  # fmt: skip


def draw(data: Data) -> Figure:
    """Alignment and balance, drifting biases, and the distances on targets of mean zero."""
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 7.2))
    _draw_early(data, axes[0, 0])
    _draw_drift(data, axes[0, 1])
    tasks = ["tree", *data.size.zero]
    _bars(data, axes[1, 0], {c: [data.maps[t, c][:, 1] for t in tasks] for c in (1.0, 0.0)},
          tasks)  # fmt: skip
    axes[1, 0].axhline(MAPS.same, color="0.6", linewidth=0.8, linestyle="-")
    axes[1, 0].set(title="ReLU from linear, time stretched to fit",
                   ylabel="distance of the outputs", ylim=(0, 0.25))  # fmt: skip
    on = {c: [data.on[t, c][:, 0] for t in tasks] for c in (1.0, 0.0)}
    _bars(data, axes[1, 1], on, tasks)
    closed = [data.on[t, 1.0][:, 1].mean() for t in tasks]
    axes[1, 1].plot(np.arange(len(tasks)) - 0.2, closed, linestyle="none", marker="v",
                    color="black", markersize=7, label="with bias, sliding counts")  # fmt: skip
    axes[1, 1].set(title="largest always-on fraction", ylabel="fraction of units", ylim=(0, 1))
    handles, labels = axes[1, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small",
                  frameon=False)  # fmt: skip
    return figure


def _draw_early(data: Data, ax: Axes) -> None:
    """Alignment, balance and loss of seed 0's linear network."""
    ts, losses = data.size.setting.ts, np.asarray(data.linear[0].losses)
    colour = fl.plot.COLOURS["linear"]
    ax.plot(ts, losses / losses[0], color="black", linestyle="-", label="loss / $L(0)$")
    ax.plot(ts, data.aligned[0], color=colour, linestyle="-", label="alignment, first mode")
    balance = grouped(data.balance[0], "tree", 1.0)
    dashes = ((0, (6, 1)), "-.", (0, (3, 2)), ":")  # the later, the lighter
    for k, (dash, shade) in enumerate(zip(dashes, fl.plot.shades("gated", 4), strict=True)):
        ax.plot(ts, balance[:, k], color=shade, linestyle=dash,
                label=f"balance, singular value {k + 1}")  # fmt: skip
    ax.set(title="linear network: aligned before the loss moves", ylabel="share or cosine",
           xlabel="flow time $t$ (units of $\\tau$)", xlim=(0, 8), ylim=(-0.1, 1.05))  # fmt: skip
    ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper center",
              bbox_to_anchor=(0.5, -0.17))  # fmt: skip


def _draw_drift(data: Data, ax: Axes) -> None:
    """Share of the biases that rise."""
    colour = fl.plot.COLOURS["relu"]
    for n, (task, shade) in enumerate((("tree", 0.9), (DRAWN, 0.45))):
        rows = data.drifts[task][:, [0, 1, 4]]
        label = "tree" if task == "tree" else "normal targets"
        ax.bar(np.arange(3) + 0.4 * (n - 0.5), rows.mean(axis=0), 0.36, yerr=half_widths(rows),
               color=colour, alpha=shade, label=label)  # fmt: skip
    ax.axhline(0.5, color="0.4", linewidth=0.8, linestyle="--")
    ax.set_xticks(range(3), ["$-\\sigma < b(0) < 0$", "$b(0) > 0$", "all live"])
    ax.set(title=f"biases that rise until the loss is down {LOSSES.same:.0%}", ylim=(0, 1),
           ylabel="share of units")  # fmt: skip
    ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper center")


def _bars(data: Data, ax: Axes, found: dict[float, list[np.ndarray]], tasks: list[str]) -> None:
    """Bars with and without bias, by task."""
    colour, where = fl.plot.COLOURS["relu"], np.arange(len(tasks))
    for c, rows in found.items():
        means, errors = [v.mean() for v in rows], [half_widths(v[:, None])[0] for v in rows]
        look: dict[str, Any] = {"color": colour} if c else WITHOUT_BAR | {"edgecolor": colour}
        ax.bar(where + (-0.2 if c else 0.2), means, 0.36, yerr=errors, ecolor="black",
               label="with bias" if c else "without bias", **look)  # fmt: skip
    names = [t.replace(" ", "\n") + ("" if t == "tree" else "\n$\\bar y = 0$") for t in tasks]
    ax.set_xticks(where, names)


STUDY = Study("m_sec5", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
