"""What the figures on real images share: tasks, runs of descent and flow, early match, floors.

Two ways of counting matter here and the paper leaves both open. Its learning rate eps is for a
loss summed over the batch, or averaged: a step is then 64 eps or eps of flow time. And the linear
network that the ReLU network is compared with has as many hidden units, or half as many
(workshop version, Fig. 4). Both are run. All networks of a seed have the same initial weights, the
narrow one those of the first units, and see the same batches; no bias is c = 0.

Beyond the quick size the runs are kept in `figures/paper/runs` as they come, so that a study that
was cut off goes on, and can be judged and drawn again; delete the folder to compute them afresh.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _flows import Flow, flow_of, losses_at
from _judge import LOSSES
from _paper import fl
from tqdm import tqdm

# Hidden layers of the linear networks, relative to the ReLU network's.
LINEAR = {"linear": 1.0, "linear, half width": 0.5}
RUNS = pathlib.Path("figures/paper/runs")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs on an image task.

    - `data`: "mnist" or "cifar10" (grayscale).
    - `samples`: of the stratified training subset; None is all.
    - `statistics`: likewise, of the subset whose floors and modes are quoted.
    - `hidden`, `variance`, `bias_strength`: of the networks; `bias_strength` where there is a bias.
    - `learning_rate`, `batch`: of the descent, on half the squared error summed over the batch.
    - `seeds`: of weights and batches.
    - `early`: flow time up to which the losses are compared as early ones.
    - `end`: flow time that the runs end at.
    - `looks`: saved losses, evenly in the root of time.
    - `flow_seeds`: seeds of the ReLU network's flow, of all images read from `results/flows`; that
      of linear networks is run for all seeds. None for no flow.
    - `mean_seeds`, `mean_end`: descent on the mean over the batch, 64 times as many steps.
    - `kept`: whether runs are kept; see above.
    """

    data: str = "mnist"
    samples: int | None = 5_000
    statistics: int | None = None
    hidden: tuple[int, ...] = (512,)
    variance: float = 2e-4
    bias_strength: float = 10.0
    learning_rate: float = 5e-4
    batch: int = 64
    seeds: int = 5
    early: float = 4.0
    end: float = 24.0
    looks: int = 20
    flow_seeds: int | None = None
    mean_seeds: int = 0
    mean_end: float = 1.0
    kept: bool = True

    @property
    def clock(self) -> fl.StepClock:
        """Steps on the batch's sum, against flow time."""
        how = {"convention": fl.LossConvention.BATCH_HALF_SUM, "batch_size": self.batch}
        return fl.StepClock(self.learning_rate, **how)

    @property
    def rate(self) -> float:
        """The learning rate on the mean over the batch that takes the same steps."""
        return self.learning_rate * self.clock.factor

    @property
    def steps(self) -> np.ndarray:
        """The steps whose losses are saved, from 0 to the end, evenly in their root."""
        last = np.sqrt(self.clock.steps(self.end))
        return np.unique(np.round(np.linspace(0, last, self.looks) ** 2).astype(int))

    @property
    def ts(self) -> np.ndarray:
        """Their flow times."""
        return self.rate * self.steps


QUICK: dict[str, Any] = {
    "samples": 300,
    "statistics": 300,
    "hidden": (16,),
    "seeds": 2,
    "early": 1.28,
    "end": 2.56,
    "looks": 12,
    "flow_seeds": 1,
    "kept": False,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What is needed of a run: flow times (T,), losses (T,), and what was observed, (T, ...)."""

    ts: np.ndarray
    losses: np.ndarray
    observed: dict[str, np.ndarray]

    def save(self, path: pathlib.Path) -> None:
        """As a file that `loaded` reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows: dict[str, Any] = {"ts": self.ts, "losses": self.losses} | self.observed
        np.savez(path, **rows)

    @classmethod
    def loaded(cls, path: pathlib.Path) -> "Run":
        """What was saved."""
        with np.load(path) as file:
            found = dict(file)
        return cls(found.pop("ts"), found.pop("losses"), found)

    @classmethod
    def of(cls, flow: fl.Trajectory) -> "Run":
        """The saved rows of a run up to its end."""
        rows = np.isfinite(flow.ts)
        observed = {name: np.asarray(v)[rows] for name, v in flow.observed.items()}
        return cls(np.asarray(flow.ts)[rows], np.asarray(flow.losses)[rows], observed)


def kept(setting: Setting, made: Callable[[], fl.Trajectory], *what: Any) -> Run:
    """The run that `what` describes, with the setting: made, or read where it was kept."""
    if not setting.kept:
        return Run.of(made())
    fields = [getattr(setting, f.name) for f in dataclasses.fields(Setting) if f.name not in ANY]
    name = hashlib.sha256(repr((fields, what)).encode()).hexdigest()[:16]
    path = RUNS / f"{name}.npz"
    if not path.exists():
        Run.of(made()).save(path)
    return Run.loaded(path)


# Fields of the setting that a run does not depend on.
ANY = ("statistics", "seeds", "early", "flow_seeds", "mean_seeds", "kept")


def load(setting: Setting, samples: int | None, standardise: bool, test: bool = False) -> fl.Task:
    """The images, in float32: descent's own noise is far above its rounding."""
    maker = {"mnist": fl.tasks.mnist, "cifar10": fl.tasks.cifar10}[setting.data]
    how = {"center": not standardise, "standardise": standardise}
    return maker(samples, test=test, **how).astype(jnp.float32)


def relu(task: fl.Task, setting: Setting, seed: int, c: float) -> fl.ReLUNetwork:
    """The initial ReLU network of a seed."""
    return fl.ReLUNetwork.init(
        task, setting.hidden, setting.variance, bias=True, bias_strength=c, key=jax.random.key(seed)
    )


def narrowed(network: fl.ReLUNetwork, share: float) -> fl.LinearNetwork:
    """The linear network of the first units of every hidden layer."""
    inner = [round(share * h) for h in network.hidden]
    outs, ins = [*inner, network.widths[-1]], [network.widths[0], *inner]
    weights = tuple(w[:o, :i] for w, o, i in zip(network.weights, outs, ins, strict=True))
    biases = tuple(b if b is None else b[:o] for b, o in zip(network.biases, outs, strict=True))
    return fl.LinearNetwork(weights, biases, network.bias_strength)


def descend(network: Any, task: fl.Task, setting: Setting, seed: int, **how: Any) -> fl.Trajectory:
    """Stochastic descent, on the clock of the mean-loss flow: saved at `setting.ts` or as said."""
    how = {"ts": setting.ts, "observe": {}, "learning_rate": setting.rate} | how
    rate, ts = how.pop("learning_rate"), how["ts"]
    key = jax.random.key(1000 + seed)
    return fl.stochastic_gradient_descent(
        network, task, rate, t1=float(ts[-1]), batch_size=setting.batch, key=key, **how
    )


def linear_flow(network: fl.LinearNetwork, task: fl.Task, setting: Setting) -> fl.Trajectory:
    """Gradient flow, at the same times."""
    ts = setting.ts
    return fl.gradient_flow(network, task, float(ts[-1]), ts=ts, observe={})


def relu_flow(
    task: fl.Task, setting: Setting, seed: int, c: float, standardise: bool
) -> dict[str, Any]:
    """The file of the ReLU network's flow from the initial weights of a seed.

    Of all images it is read; of fewer, where it takes minutes, it is run.
    """
    if setting.samples is None:
        return flow_read(setting, seed, c, standardise)
    way, hidden = "global" if standardise else "pixel", setting.hidden
    flow = Flow(setting.data, way, c, seed, hidden, setting.end, setting.samples, setting.variance)
    return flow.run(task) | {"error": None}


def flow_read(setting: Setting, seed: int, c: float, standardise: bool) -> dict[str, Any]:
    """The committed file of the flow on all images."""
    way = "global" if standardise else "pixel"
    return flow_of(setting.data, way, c, seed, setting.hidden, setting.end).found()


def closed_form(network: fl.LinearNetwork, task: fl.Task, setting: Setting) -> np.ndarray:
    """Losses of the linear network by the closed form of its modes, as if the inputs did not couple
    them; each mode with the imbalance of its own initial weights (`fl.theory.solve`)."""
    solution = fl.theory.solve(network.astype(jnp.float64), task.astype(jnp.float64))
    return np.asarray(solution.loss(setting.ts))


@dataclasses.dataclass(frozen=True)
class Early:
    """Runs with one c: those of all seeds by label, "relu" and the linear networks.

    - `rate`: flow time per step.
    - `early`: flow time up to which losses are early ones.
    - `descents`: of all networks.
    - `flows`: likewise, of "relu" with fewer seeds; `files`, by seed, what is known of those.
    - `closed`: by seed, the closed form's losses of the linear network of the same width, if it has
      one hidden layer.
    - `means`: descent on the mean over the batch, fewer seeds, up to an earlier time.
    - `zero`: the loss of the network that is zero: 1/2 for classes. Losses are in shares of it.
    """

    c: float
    rate: float
    early: float
    descents: dict[str, list[Run]]
    flows: dict[str, list[Run]]
    means: dict[str, list[Run]]
    zero: float
    files: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    closed: list[np.ndarray] = dataclasses.field(default_factory=list)


def early(
    task: fl.Task,
    setting: Setting,
    c: float,
    standardise: bool,
    shares: dict[str, float] = LINEAR,
    **relu_: Any,
) -> Early:
    """Runs all networks: linear ones of some shares of the width, and the ReLU network's descent
    with some more options. `standardise` says how the task was made."""
    labels = ("relu", *shares)
    descents, flows, means = ({label: [] for label in labels} for _ in range(3))
    closed = []
    slow = {
        "learning_rate": setting.learning_rate,
        "ts": setting.ts[setting.ts <= setting.mean_end],
    }
    for seed in tqdm(range(setting.seeds), desc=f"c = {c:g}", unit="seed"):
        full = relu(task, setting, seed, c)
        for label in labels:
            share, more = (shares[label], {}) if label in shares else (0.0, relu_)
            network = narrowed(full, share) if share else full
            what = (standardise, seed, c, share)
            descent = partial(descend, network, task, setting, seed)
            made = kept(setting, partial(descent, **more), "descent", *what, sorted(more))
            descents[label].append(made)
            if isinstance(network, fl.LinearNetwork) and setting.flow_seeds is not None:
                made = partial(linear_flow, network, task, setting)
                flows[label].append(kept(setting, made, "flow", *what))
            if isinstance(network, fl.LinearNetwork) and share == 1 and len(setting.hidden) == 1:
                closed.append(closed_form(network, task, setting))
            if seed < setting.mean_seeds:
                means[label].append(kept(setting, partial(descent, **slow), "mean", *what))
    files = [
        relu_flow(task, setting, seed, c, standardise) for seed in range(setting.flow_seeds or 0)
    ]
    flows["relu"] = [Run(setting.ts, losses_at(file, setting.ts), {}) for file in files]
    zero = scale(task)
    return Early(c, setting.rate, setting.early, descents, flows, means, zero, files, closed)


def scale(task: fl.Task) -> float:
    """Loss of the network that is zero, from which small weights start: 1/2 for classes."""
    return 0.5 * float(jnp.mean(jnp.sum(task.y**2, axis=1)))


def down_time(run: Run, phase: Early) -> float:
    """The flow time at which the loss has made 90 % of its way from that of the network that is
    zero to where it is at the end of the early phase."""
    last = np.interp(phase.early, run.ts, run.losses)
    level = 0.1 * phase.zero + 0.9 * last
    k = int(np.argmax(run.losses <= level))
    near = slice(max(k - 1, 0), k + 1)
    return float(np.interp(-level, -run.losses[near], run.ts[near]))


def distance(one: Run, other: Run, phase: Early, until: float) -> float:
    """Mean over time of the distance of two losses, up to a flow time, in shares of 1/2."""
    kept_ = one.ts < until
    ts = np.append(one.ts[kept_], until)
    apart = np.interp(ts, one.ts, np.abs(one.losses - other.losses))
    return float(np.trapezoid(apart, ts) / until / phase.zero)


def gaps(phase: Early, label: str) -> np.ndarray:
    """Mean distance of the ReLU network's loss from a linear one's until that is down, per seed."""
    pairs = zip(phase.descents["relu"], phase.descents[label], strict=True)
    return np.array([distance(a, b, phase, down_time(b, phase)) for a, b in pairs])


def partings(phase: Early, label: str, share: float = LOSSES.apart) -> np.ndarray:
    """Flow time at which the losses part for good: the last at which they are `share` of 1/2
    apart, interpolated, or the end if they are closer there. Per seed."""
    found = []
    for one, other in zip(phase.descents["relu"], phase.descents[label], strict=True):
        apart = np.abs(one.losses - other.losses) / phase.zero
        within = np.flatnonzero(apart <= share)
        k = within[-1] if len(within) else 0
        near = slice(k, k + 2)
        found.append(np.interp(share, apart[near], one.ts[near]))
    return np.array(found)


def deviations(some: list[Run], others: list[Run], phase: Early) -> np.ndarray:
    """Largest distance of losses at the same early times, in shares of 1/2, per seed of both."""
    found = []
    for one, other in zip(some, others, strict=False):
        n = int(np.sum(one.ts[: len(other.ts)] <= phase.early))
        found.append(np.max(np.abs(one.losses[:n] - other.losses[:n])) / phase.zero)
    return np.array(found)


def linear_floor(task: fl.Task, bias: bool) -> float:
    r"""Loss of the best linear function of the inputs, with a constant or without.

    $\frac12 (\langle |y|^2 \rangle - tr\, \Sigma_{yx} \Sigma_x^+ \Sigma_{yx}^T)$. For the whole set
    of images: in a subset, pixels that are dark throughout keep a tiny constant once the mean over
    all images is subtracted, and with it the best function has its constant, bias or not.
    """
    x, y = np.asarray(task.x, np.float64), np.asarray(task.y, np.float64)
    if bias:
        x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    syx, sx = y.T @ x / len(x), x.T @ x / len(x)
    explained = np.trace(syx @ np.linalg.pinv(sx, rcond=1e-9, hermitian=True) @ syx.T)
    return float(0.5 * (np.mean(np.sum(y**2, axis=1)) - explained))


def first_mode(task: fl.Task, c: float) -> dict[str, Any]:
    """Strengths of the first modes, and where the bias mode is among them."""
    found, bias = fl.theory.modes(task, c), fl.theory.bias_mode(task.astype(jnp.float64), c)
    rank = int(bias.rank)
    return {
        "strengths": np.asarray(found.s[:6]),
        "bias mode strength": float(bias.s),
        "bias mode rank": rank,
        "overlap": float(bias.overlap),
        "first from c": float(bias.first_from),
    }
