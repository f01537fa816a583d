"""Runs on the toy tasks that several figures look at: made once per process, compiled once.

All runs on one task share the same call, so that one kind of network is one compilation: a network
without bias is one with c = 0 (its bias then neither enters nor moves), and every run logs the
times at which its modes pass the same shares of their full strength.
"""

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from _judge import TIMES, both, more, same
from _paper import fl, initial
from scipy.signal import find_peaks, peak_prominences
from tqdm import tqdm

SHARES = (0.02, 0.1, 0.5, 0.9)  # of the full strength s/d, at which modes are timed


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the toy runs share: the paper's sizes (App. E), and for how long and how finely.

    - `hidden`, `variance`: units of the hidden layer and variance of the initial weights.
    - `t1`: end in flow time; the paper's step is 1/625 of a unit on the hierarchy task.
    - `points`: saved times, t1 u^2 for equidistant u, dense where learning begins.
    """

    hidden: int = 64
    variance: float = 2e-4
    t1: float = 60.0
    points: int = 201
    rtol: float = 1e-8

    @property
    def ts(self) -> np.ndarray:
        """The saved times."""
        return self.t1 * np.linspace(0, 1, self.points) ** 2


PAPER = Setting()
# From so small weights every singular value of the tree is learned in a stage of its own.
SMALL = Setting(variance=2e-8, t1=100.0)


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters of most studies: number of seeds, and the runs'."""

    seeds: int
    setting: Setting = PAPER


@dataclasses.dataclass(frozen=True)
class Case:
    """A run: its task, kind of network, bias strength and seed.

    - `task`: "tree", "rootless", "xor", "offset xor 0.5" with any Delta, the latter two with
      " 0/1" behind for that code; of mean target zero "centred tree", "signed tree" (its splits as
      +1 and -1) and "centred normal 3" with any seed of its targets, and the same without
      "centred"; `kind`: "relu" or "linear".
    - `both`: whether the readout has a bias too.
    """

    task: str
    kind: str
    c: float
    seed: int
    both: bool = False


@functools.lru_cache
def task_of(name: str) -> fl.Task:
    """The toy task of this name, always the same object."""
    tree = fl.tasks.hierarchy()
    if name == "tree":
        return tree
    if name == "rootless":
        return fl.Task(tree.x, tree.y[:, 1:], name="hierarchy without its root")
    if name.endswith(" tree") or "normal" in name:
        return fl.Task(tree.x, _signed(name, np.asarray(tree.y)), name=name)
    binary, plain = name.endswith(" 0/1"), name.removesuffix(" 0/1")
    if plain == "xor":
        return fl.tasks.xor(binary)
    return fl.tasks.offset_xor(float(plain.removeprefix("offset xor ")), binary)


def _signed(name: str, tree: np.ndarray) -> np.ndarray:
    """Targets of one-hot inputs that are not all positive."""
    if name == "signed tree":
        splits = [tree[:, k] - tree[:, k + 1] for k in range(1, tree.shape[1], 2)]
        return np.stack(splits, axis=1)
    if name == "centred tree":
        return tree - tree.mean(axis=0)
    drawn = np.random.default_rng(int(name.split()[-1])).normal(size=(len(tree), 5)) / 2
    return drawn - drawn.mean(axis=0) if name.startswith("centred") else drawn


@functools.lru_cache
def modes_of(name: str, c: float) -> Any:
    """The modes of a toy task that the data can drive: as many for every c."""
    modes, number = fl.theory.modes(task_of(name), c), min(task_of(name).y.shape)
    equal = tuple(group for group in modes.equal if group[-1] < number)
    cut = {"u": modes.u[:, :number], "s": modes.s[:number], "equal": equal}
    return dataclasses.replace(modes, **cut, v=modes.v[:, :number], d=modes.d[:number])


def levels_of(name: str, c: float) -> np.ndarray:
    """Mode strengths that are timed, (shares, modes); of 1 where there is no full strength."""
    full = np.asarray(modes_of(name, c).full_strength)
    return np.asarray(SHARES)[:, None] * np.where(full > 0, full, 1.0)


def start(case: Case, setting: Setting) -> Any:
    """The initial network: the same weights for every kind and c of a seed."""
    how = {"hidden": (setting.hidden,), "variance": setting.variance, "bias_strength": case.c}
    bias = (True, True) if case.both else True
    network = initial(task_of(case.task), case.seed, bias=bias, **how)
    return network.linear() if case.kind == "linear" else network


_RUNS: dict[tuple[Case, Setting], fl.Trajectory] = {}


def runs(cases: Iterable[Case], setting: Setting, ts: Any = None) -> list[fl.Trajectory]:
    """The cases' runs, in order; what was run before in this process is not run again.

    `ts` saves at other times than the setting's, as many of them; such runs are not kept.
    """
    if ts is not None:
        return [_run(case, setting, ts) for case in cases]
    cases = list(cases)
    bar = _bar([case for case in cases if (case, setting) not in _RUNS])
    for case in bar:
        _RUNS[case, setting] = _run(case, setting, setting.ts)
    return [_RUNS[case, setting] for case in cases]


def _bar(cases: Sequence[Case]) -> Any:
    return tqdm(cases, unit="run", disable=None if len(cases) > 2 else True)


def _run(case: Case, setting: Setting, ts: Any) -> fl.Trajectory:
    return run_from(start(case, setting), case, setting, ts)


def run_from(network: Any, case: Case, setting: Setting, ts: Any) -> fl.Trajectory:
    """The flow of a network on the case's task up to the last of the saved times.

    Its events "mode" are passings of every share from below, (shares, modes).
    """
    task = task_of(case.task)
    observable = modes_of(case.task, case.c).observable(network, task)
    hits = fl.Crossing(observable, levels_of(case.task, case.c), "up", name="mode")
    return fl.gradient_flow(network, task, ts[-1], ts=ts, events=(hits,), rtol=setting.rtol)


def many(task: str, kind: str, c: float, seeds: int, setting: Setting, both: bool = False) -> list:
    """Runs of seeds 0, 1, ..."""
    return runs([Case(task, kind, c, seed, both) for seed in range(seeds)], setting)


def linearization(flow: fl.Trajectory) -> fl.Linearization:
    """t* and activity, without the warning that a maximum stands when the run ends.

    Some closed ones do: at t = 60 nothing moves any more.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        return flow.linearization()


def product_losses(product: Any, task: fl.Task, c: float) -> np.ndarray:
    """Mean half squared error of end-to-end matrices (T, N_out, 1 + N_in), raw bias first."""
    x = np.concatenate([np.full((task.samples, 1), c), np.asarray(task.x)], axis=1)
    errors = x @ np.swapaxes(np.asarray(product), -1, -2) - np.asarray(task.y)
    return 0.5 * np.mean(np.sum(errors**2, axis=-1), axis=-1)


def gap(first: fl.Trajectory, second: fl.Trajectory) -> float:
    """Largest difference of two loss curves over the initial loss."""
    a, b = np.asarray(first.losses), np.asarray(second.losses)
    return float(np.max(np.abs(a - b)) / a[0])


def delay(
    late: fl.Trajectory, early: fl.Trajectory, within: tuple[float, float] = (0.0, np.inf)
) -> tuple[float, float]:
    """The shift of time >= 0 that brings a loss curve closest to another, and the gap left.

    The gap is the largest difference over the initial loss while the early one's share of its
    initial loss is `within` limits; the shift is the one that minimises it (paper: "although with
    a slight time shift").
    """
    ts, a, b = (np.asarray(v) for v in (early.ts, late.losses, early.losses))
    some = (b >= within[0] * b[0]) & (b <= within[1] * b[0])
    shifts = np.linspace(0, 0.2 * ts[-1], 1201)
    gaps = [
        np.max(np.abs(np.interp(ts + s, ts, a) - b), where=some & (ts <= ts[-1] - s), initial=0)
        for s in shifts
    ]
    best = int(np.argmin(gaps))
    return float(shifts[best]), float(gaps[best] / a[0])


def stretched(ts: Any, late: Any, early: Any) -> tuple[float, float]:
    """The factor of time that brings a curve (T, ...) closest to another, and the distance left.

    The distance is the largest over time.
    """
    ts = np.asarray(ts)
    late, early = (np.reshape(np.asarray(v), (len(ts), -1)) for v in (late, early))
    found = []
    for factor in (factors := np.linspace(0.8, 2.0, 241)):
        moved = ts[factor * ts <= ts[-1]] * factor
        right = np.clip(np.searchsorted(ts, moved), 1, len(ts) - 1)
        share = ((moved - ts[right - 1]) / (ts[right] - ts[right - 1]))[:, None]
        at = (1 - share) * late[right - 1] + share * late[right]
        found.append(np.max(np.linalg.norm(at - early[: len(moved)], axis=1)))
    best = int(np.argmin(found))
    return float(factors[best]), float(found[best])


def loss_stretch(late: fl.Trajectory, early: fl.Trajectory) -> tuple[float, float]:
    """Factor and gap left, over the initial loss, of two loss curves."""
    factor, left = stretched(early.ts, late.losses, early.losses)
    return factor, left / float(early.losses[0])


def map_stretch(late: fl.Trajectory, early: fl.Trajectory, task: fl.Task) -> tuple[float, float]:
    """Factor and distance left, over the norm of the targets, of two networks' outputs."""
    outputs = [fl.measures.along(f, lambda n, t: n.outputs(t.x), task) for f in (late, early)]
    factor, left = stretched(early.ts, *outputs)
    return factor, left / float(np.linalg.norm(task.y))


# When modes are learned


def groups_of(name: str, c: float) -> list[np.ndarray]:
    """Modes that share a singular value; within such a group their axes are arbitrary."""
    s = np.asarray(modes_of(name, c).s)
    s = s[s > 1e-9 * s[0]]
    return np.split(np.arange(len(s)), np.flatnonzero(np.diff(s) < -1e-6 * s[0]) + 1)


def grouped(values: Any, name: str, c: float) -> np.ndarray:
    """Means of (..., modes) over the modes of each singular value, (..., groups)."""
    values = np.asarray(values)
    return np.stack([values[..., group].mean(axis=-1) for group in groups_of(name, c)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Pace:
    """When modes reach half of their strength, by seed and singular value, (seeds, groups).

    `relu` and `linear` are of networks with the same initial weights.
    """

    relu: np.ndarray
    linear: np.ndarray

    @property
    def ratios(self) -> np.ndarray:
        """Half times, ReLU over linear, (seeds, groups)."""
        return self.relu / self.linear

    @property
    def common(self) -> np.ndarray:
        """The factor that suits all of a seed best, (seeds,)."""
        return (self.ratios.max(axis=1) + self.ratios.min(axis=1)) / 2

    @property
    def uneven(self) -> np.ndarray:
        """By how much the ratios of two singular values differ in each seed, (seeds,).

        Of the two whose mean ratios are largest and smallest: the largest and smallest of each
        seed would add the seeds' noise.
        """
        order = np.argsort(self.ratios.mean(axis=0))
        return np.abs(self.ratios[:, order[-1]] / self.ratios[:, order[0]] - 1)

    @property
    def after_factor(self) -> np.ndarray:
        """What the best common factor leaves, as a share of the time, (seeds,)."""
        return np.max(np.abs(self.ratios / self.common[:, None] - 1), axis=1)

    @property
    def after_shift(self) -> np.ndarray:
        """What the best common shift leaves, as a share of the time, (seeds,)."""
        late = self.relu - self.linear
        shifts = np.linspace(late.min(axis=1), late.max(axis=1), 401)[..., None]
        return np.min(np.max(np.abs((late - shifts) / self.linear), axis=2), axis=0)

    @property
    def text(self) -> str:
        """Mean ratios by singular value."""
        return " ".join(f"{v:.2f}" for v in self.ratios.mean(axis=0))


def pace(relu: Sequence[Any], linear: Sequence[Any], name: str, c: float) -> Pace:
    """The half times of paired runs on a task."""
    half = SHARES.index(0.5)
    times = [
        np.array([flow.events.first("mode")[half] for flow in flows]) for flows in (relu, linear)
    ]
    return Pace(*(grouped(rows, name, c) for rows in times))


def in_step(found: Pace, of: int = 1) -> bool | None:
    """Whether all modes are late by the same factor."""
    return same(found.uneven, TIMES, of)


def out_of_step(bare: Pace, biased: Pace, of: int = 1) -> bool | None:
    """Whether a network without bias is not in step, and less so than the one with bias."""
    return both(more(bare.uneven, TIMES.same, of), more(bare.uneven, biased.uneven, of))


def drops(flow: fl.Trajectory) -> int:
    """Separate drops of the loss: between two the speed is below half of the slower one's peak."""
    speed = -np.gradient(np.asarray(flow.losses), np.asarray(flow.ts))
    speed = np.concatenate([[0], speed, [0]])
    peaks, _ = find_peaks(speed, height=1e-3 * speed.max())
    return int(np.sum(peak_prominences(speed, peaks)[0] > 0.5 * speed[peaks]))


def thin(values: Any, most: int = 40) -> np.ndarray:
    """At most so many rows, the first and the last among them."""
    values = np.asarray(values)
    kept = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))
    return values[kept]


def steps_clock(task: fl.Task, learning_rate: float) -> fl.StepClock:
    """The paper's steps: full-batch descent on half the summed squared error (App. E)."""
    return fl.StepClock(learning_rate, fl.LossConvention.HALF_SUM, samples=task.samples)
