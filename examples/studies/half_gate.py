r"""The half-gate law: how much later than a linear network a ReLU network learns each mode. See:
the gate lies near one half over the variance, and over the width from 32 units on; at the smallest
bias it does not.

    python examples/studies/half_gate.py [--quick] [--seeds 40] [--out FOLDER]

Eq. 14 of the lead paper with half of the units live, g = 1/2, makes a mode of strength s late by
Delta t = (tau / 2 s) ln 2. Exact times at which each mode of the semantic tree has half of its full
strength, in ReLU networks and in the linear ones with the same initial weights, over variance,
width, c and the slope of leaky ReLU; from a mean delay the gate that the law would need, g =
exp(-2 s Delta t / tau), with its 95 % interval over seeds. Modes of one strength are averaged.

Beside it stands what `_half.py` derives from each network's initial weights, seed by seed, with
nothing fitted.

Found, with 40 seeds, the same in all settings, so that their errors go together:

- At 32 units and c = 1 the gate is 0.48 to 0.51 for mode 1 and the group 2-3, 0.46 to 0.51 for the
  group 4-7 and 0.45 for the bias mode, at all variances from 2e-8 to 2e-4.
- Which units learn is told by the initial weights: for the bias mode the derived delay correlates
  with the measured one by 0.98 over seeds (0.95 to 1 in all settings). It is 12 % short, 3 % where
  a unit that is off has the gate 0.6: the time that its units need to come on.
- Of later modes the derived mean delays are 0.87 to 1.06 of the measured ones at 32 units. Single
  seeds are told less well: correlation 0.78 for mode 1 (0.91 at 64 units), 0.6 for the group 2-3,
  0.2 for the last (0.64 at 64 units). Units still switch on the way.
- It is not (1 + slope) / 2 for leaky units: at the slopes 0.1, 0.3 and 0.6 the gate is 0.38 to
  0.51, where the mean gate is 0.55 to 0.8 (the last group's delay is 1.4 times as long as derived
  at 0.6).
- Held out (c = 0.7, slope 0.2, 48 units; a smaller tree, slopes 0 and 0.3): gates 0.44 to 0.50,
  derived over measured 0.89 to 1.03, correlations 0.97 to 0.99 for the bias mode, 0.47 to 0.87 for
  the others.
- It breaks with few units per mode (8 units: gates 0.20 to 0.36 beyond the bias mode, and in 20 of
  40 seeds the last group is not half learned by t = 150) and at c = 0.25 for the last group (gate
  0.74, delay 2.4 times shorter than derived).
- On tasks that are no trees the bias mode's law holds where inputs are orthogonal, and on 300
  images of MNIST at c = 10: derived over measured 0.88 to 0.90, correlation 0.98 to 0.99. On
  Gaussian inputs and on offset XOR it does not: 1.20 and 0.66. Of later modes half of the units
  learn on dense targets (gates 0.50 to 0.52), a third on classes (0.28 to 0.31); on Gaussian inputs
  and offset XOR ReLU has them earlier than the linear network.
"""

import dataclasses
from typing import Any, NamedTuple

import _studies
import jax
import matplotlib.pyplot as plt
import numpy as np
from _half import delay, parts
from _studies import NO_TREES, task_named
from matplotlib.figure import Figure

import flowlin as fl

T1 = 150.0
SHARE = 0.5  # of a mode's full strength, at which its time is taken


@dataclasses.dataclass(frozen=True)
class Setting:
    """A task by its name, and a kind of network."""

    width: int = 32
    variance: float = 2e-6
    c: float = 1.0
    slope: float = 0.0
    task: str = "tree"


BASE = Setting()
# One thing changed at a time.
SCANS = {
    "variance": (2e-8, 2e-7, 2e-6, 2e-5, 2e-4),
    "width": (8, 16, 32, 64, 128),
    "c": (0.25, 0.5, 1.0, 2.0),
    "slope": (0.0, 0.1, 0.3, 0.6),
}
HELD_OUT = (
    Setting(48, 2e-7, 0.7, 0.2),
    Setting(32, 2e-6, 1.0, 0.0, "small tree"),
    Setting(32, 2e-6, 1.0, 0.3, "small tree"),
)
# Tasks that are no trees; of images the bias mode alone, and by descent.
ELSEWHERE = (*NO_TREES, "offset XOR")
IMAGES = Setting(c=10.0, task="MNIST")
IMAGES_RATE, IMAGES_T1 = 2e-3, 1.6
AXES = {
    "variance": "initial variance $v$",
    "width": "hidden units $H$",
    "c": "bias strength $c$",
    "slope": "gate of a unit that is off",
}
# Of each scan, what is shown seed by seed.
SHOWN = {"variance": BASE.variance, "width": 8, "c": 0.25, "slope": 0.6}


def network(
    width: int, variance: float, c: float, slope: float, task: str, relu: bool, seed: int
) -> fl.ReLUNetwork | fl.LinearNetwork:
    """A network at the start, or the linear one with the same weights."""
    start = fl.ReLUNetwork.init(
        task_named(task), width, variance, bias_strength=c, slope=slope, key=jax.random.key(seed)
    )
    return start if relu else start.linear()


class Group(NamedTuple):
    """Equal modes, which are hit at one time: when the mean of their strengths is there.

    - `delay`: (seeds,), by which the ReLU network reaches them later.
    - `derived`: likewise, from the initial weights.
    """

    s: float
    modes: list[int]
    delay: np.ndarray
    derived: np.ndarray

    def numbers(self) -> dict[str, Any]:
        """The mean delay with its interval, what the law says of it, and the gate that it takes;
        of seeds in which both networks learn the modes."""
        there = np.isfinite(self.delay) & np.isfinite(self.derived)
        found: dict[str, Any] = {"s": self.s, "modes": self.modes, "seeds": int(there.sum())}
        if there.sum() < 2:
            return found
        rows = np.stack([self.delay[there], self.derived[there]], axis=1)
        fine, derived = rows.T
        low, high = _studies.bootstrap(np.mean, fine)
        law = np.log(2) / (2 * self.s)
        return found | {
            "delay": fine.mean(), "interval": [low, high],
            "law": law, "law over measured": law / fine.mean(),
            "gate": np.exp(-2 * self.s * fine.mean()),
            "gate, interval": np.exp(-2 * self.s * np.array([high, low])).tolist(),
            "derived": derived.mean(), "derived over measured": derived.mean() / fine.mean(),
            "derived over measured, interval": _studies.bootstrap(_shortfall, rows),
            "correlation by seed": _related(rows),
            "correlation by seed, interval": _studies.bootstrap(_related, rows),
            "standard deviation": fine.std(), "rms error": np.sqrt(np.mean((fine - derived) ** 2)),
        }  # fmt: skip


def _shortfall(rows: np.ndarray) -> float:
    """Derived over measured, of means of rows (measured, derived)."""
    return rows[:, 1].mean() / rows[:, 0].mean()


def _related(rows: np.ndarray) -> float:
    return float(np.corrcoef(rows.T)[0, 1])


def flow_hits(setting: Setting, own: list[list[int]], seeds: int, given: Any) -> np.ndarray:
    """Exact times of the groups in ReLU and linear networks, (G, 2, seeds)."""
    task = task_named(setting.task)
    modes = fl.theory.modes(task, setting.c)
    grid = fl.grid(**dataclasses.asdict(setting), relu=[True, False], seed=range(seeds))

    def record(flow: fl.Trajectory) -> dict[str, Any]:
        hits = np.asarray(flow.events.first("mode"))
        return {f"mode_{k}": float(hits[group[0]]) for k, group in enumerate(own)}

    runs = fl.sweep(
        network, task, 60.0 if given.quick else T1, grid=grid, record=record, rtol=1e-8,
        events=fl.ModeHits(modes, share=SHARE), workers=given.workers, progress=True,
        checkpoint=_studies.table(f"half_gate_{len(own)}", given.quick),
    )  # fmt: skip
    return np.array([runs.columns[f"mode_{k}"].reshape(2, seeds) for k in range(len(own))])


def descent_hits(setting: Setting, seeds: int) -> np.ndarray:
    """The bias mode's times by descent, interpolated between steps, (1, 2, seeds)."""
    task = task_named(setting.task)
    event = fl.ModeHits(fl.theory.modes(task, setting.c), share=SHARE)
    times = np.zeros((1, 2, seeds))
    for kind, seed in np.ndindex(2, seeds):
        how: dict[str, Any] = {**dataclasses.asdict(setting), "relu": kind == 0}
        start = network(**how, seed=seed)
        run = fl.gradient_descent(
            start, task, IMAGES_RATE, t1=IMAGES_T1, ts=[IMAGES_T1], events=event, interpolate=True
        )
        times[0, kind, seed] = np.asarray(run.events.first("mode"))[0]
    return times


def groups(setting: Setting, seeds: int, given: Any) -> list[Group]:
    """The delays of a setting; of images that of the bias mode."""
    modes = fl.theory.modes(task_named(setting.task), setting.c)
    own = _studies.driven_groups(modes)
    if setting == IMAGES:
        own, hits = own[:1], descent_hits(setting, seeds)
    else:
        hits = flow_hits(setting, own, seeds, given)
    how: dict[str, Any] = {**dataclasses.asdict(setting), "relu": True}
    growing = [parts(network(**how, seed=seed), modes) for seed in range(seeds)]
    found = []
    for group, (relu, linear) in zip(own, hits, strict=True):
        s = float(np.mean(np.asarray(modes.s)[group]))
        derived = [
            delay(part.on[group].sum(), part.off[group].sum(), s, setting.slope, time)
            for part, time in zip(growing, linear, strict=True)
        ]
        with np.errstate(invalid="ignore"):  # never less never
            found.append(Group(s, group, relu - linear, np.array(derived)))
    return found


class Data(NamedTuple):
    """Groups of modes by setting; `held` were not looked at before, `elsewhere` are no trees."""

    scans: dict[str, dict[float, list[Group]]]
    held: dict[str, list[Group]]
    elsewhere: dict[str, list[Group]]


def compute(given: Any) -> Data:
    """All runs."""
    if given.quick:
        small = dataclasses.replace(BASE, width=8, variance=2e-4)
        return Data({"variance": {2e-4: groups(small, 2, given)}}, {}, {})
    scans = {
        name: {
            value: groups(dataclasses.replace(BASE, **{name: value}), given.seeds, given)
            for value in values
        }
        for name, values in SCANS.items()
    }
    held = {str(one): groups(one, given.seeds, given) for one in HELD_OUT}
    others = [dataclasses.replace(BASE, task=name) for name in ELSEWHERE]
    elsewhere = {one.task: groups(one, given.seeds, given) for one in (*others, IMAGES)}
    return Data(scans, held, elsewhere)


def numbers(data: Data) -> dict[str, Any]:
    """Every group of modes of every setting."""
    scans = {
        name: {f"{value:g}": [group.numbers() for group in found] for value, found in scan.items()}
        for name, scan in data.scans.items()
    }
    held, elsewhere = (
        {name: [group.numbers() for group in found] for name, found in part.items()}
        for part in (data.held, data.elsewhere)
    )
    return {"scans": scans, "held out": held, "no trees": elsewhere}


GATE = r"gate $e^{-2 s \Delta t / \tau}$ of the mean delay"
DELAY = {
    "xlabel": "derived from the initial weights",
    "ylabel": r"delay $2 s \Delta t / \tau$, measured",
}


def draw(data: Data) -> Figure:
    """The gates that the mean delays take, by mode; a panel for each thing that is changed."""
    figure, axes = plt.subplots(2, 2, figsize=(9.8, 7.2), layout="constrained")
    for (name, scan), ax in zip(data.scans.items(), axes.flat, strict=False):
        _draw_gates(ax, name, scan)
    for ax in axes[:, 0]:
        ax.set_ylabel(GATE)
    axes[0, 0].legend(fontsize=9, ncols=2)
    return figure


def draw_seeds(data: Data) -> Figure:
    """Delays of ReLU networks seed by seed, as measured and as derived from the initial weights.
    See: the bias mode (dark circles) lies along the diagonal, later modes scatter about it (dotted:
    half of the units). With 8 units the last modes lie mostly above it, at c = 0.25 below.
    """
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 8.4), layout="constrained")
    for (name, scan), ax in zip(data.scans.items(), axes.flat, strict=False):
        value = SHOWN[name] if SHOWN[name] in scan else next(iter(scan))
        _draw_seeds(ax, scan[value])
        ax.set_title(f"{AXES[name]} = {value:g}")
    for ax in axes[:, 0]:
        ax.set_ylabel(DELAY["ylabel"])
    for ax in axes[1]:
        ax.set_xlabel(DELAY["xlabel"])
    axes[0, 0].legend(fontsize=9)
    return figure


def draw_no_trees(data: Data) -> Figure:
    """The half-gate law on tasks that are no trees. See: later modes lie near a half (line) on
    dense targets alone (left). Delays of the bias mode lie along the diagonal for classes, dense
    targets and MNIST, and off it for Gaussian inputs and offset XOR (right).
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.8, 4.4), layout="constrained")
    if data.elsewhere:
        _draw_elsewhere(axes[0], axes[1], data.elsewhere)
    axes[0].set_ylabel(GATE)
    axes[1].set(**DELAY)
    return figure


def _draw_gates(ax: plt.Axes, name: str, scan: dict[float, list[Group]]) -> None:
    for k, colour in enumerate(fl.plot.shades("relu", 4)):
        rows = [found[k].numbers() for found in scan.values()]
        label = f"modes {', '.join(map(str, rows[0]['modes']))}, s = {rows[0]['s']:.3g}"
        _gates(ax, list(scan), rows, color=colour, label=label if k else "bias mode")
    ax.axhline(0.5, color="black", lw=0.8)
    if name == "slope":
        ax.plot(list(scan), (1 + np.array(list(scan))) / 2, ":", color="black", label="mean gate")
        ax.legend(handles=ax.lines[-1:], fontsize=9)
    ax.set(xlabel=AXES[name], xscale="linear" if name == "slope" else "log", ylim=(0, 1))
    ax.set_xticks(list(scan), [f"{value:g}" for value in scan])
    ax.minorticks_off()


def _gates(ax: plt.Axes, at: Any, rows: list[dict[str, Any]], **how: Any) -> None:
    """Gates with their intervals."""
    middle = np.array([row["gate"] for row in rows])
    ends = np.array([row["gate, interval"] for row in rows]).T
    ax.errorbar(at, middle, np.abs(ends - middle), **{"marker": "o", "ms": 4, "capsize": 2} | how)


def _draw_seeds(ax: plt.Axes, found: list[Group]) -> None:
    ends = np.array([0.0, 2.0])
    ax.plot(ends, ends, color="black", lw=0.8)
    for group, colour, marker in zip(found, fl.plot.shades("relu", 4), "osD^", strict=False):
        scale = 2 * group.s
        label = f"modes {', '.join(map(str, group.modes))}" if group.modes[0] else "bias mode"
        ax.plot(scale * group.derived, scale * group.delay, marker, ms=4, color=colour, label=label)
    ax.axvline(np.log(2), color="0.6", ls=":", lw=0.8)
    ax.set(xlim=ends, ylim=ends)


def _draw_elsewhere(gates: plt.Axes, seeds: plt.Axes, tasks: dict[str, list[Group]]) -> None:
    """Gates of all modes, and the bias mode seed by seed, on tasks that are no trees."""
    ends = np.array([0.0, 3.0])
    seeds.plot(ends, ends, color="black", lw=0.8)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(tasks)))
    apart = np.linspace(-0.2, 0.2, len(tasks))
    looks = zip(apart, colours, "osD^v", strict=True)
    for (name, found), (aside, colour, marker) in zip(tasks.items(), looks, strict=True):
        rows = [row for group in found if "gate" in (row := group.numbers())]
        _gates(gates, np.arange(len(rows)) + aside, rows, color=colour, marker=marker, ls="none")
        scale = 2 * found[0].s
        seeds.plot(scale * found[0].derived, scale * found[0].delay, marker, ms=4, color=colour,
                   label=name)  # fmt: skip
    gates.axhline(0.5, color="black", lw=0.8)
    gates.set(xlabel="mode, strongest first", title="no trees (above 1: ReLU is earlier)",
              yscale="log")  # fmt: skip
    gates.set_xticks(range(max(map(len, tasks.values()))))
    gates.set_yticks([0.3, 0.5, 1, 3, 10, 100], ["0.3", "0.5", "1", "3", "10", "100"])
    gates.minorticks_off()
    seeds.set(xlim=ends, ylim=ends, title="no trees: the bias mode")
    seeds.legend(fontsize=9)


if __name__ == "__main__":
    others = {"_seeds": draw_seeds, "_no_trees": draw_no_trees}
    _studies.sweeps("half_gate", __doc__, compute, numbers, draw, others)
