"""What the figures on real images share: tasks, runs of descent and flow, early match, floors.

Two ways of counting matter here and the paper leaves both open. Its learning rate eps is for a
loss summed over the batch, or averaged: a step is then 64 eps or eps of flow time. And the linear
network that the ReLU network is compared with has as many hidden units, or half as many
(workshop version, Fig. 4). Both are run. All networks of a seed have the same initial weights, the
narrow one those of the first units, and see the same batches; no bias is c = 0.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _paper import fl
from tqdm import tqdm

# Hidden layers of the linear networks, relative to the ReLU network's.
LINEAR = {"linear": 1.0, "linear, half width": 0.5}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Early phase on an image task.

    - `data`: "mnist" or "cifar10" (grayscale).
    - `samples`: of the stratified training subset; None is all.
    - `statistics`: likewise, of the subset whose floors and modes are quoted.
    - `hidden`, `variance`, `bias_strength`: of the networks; `bias_strength` where there is a bias.
    - `learning_rate`, `batch`: of the descent, on half the squared error summed over the batch.
    - `seeds`: of weights and batches.
    - `early`: flow time up to which losses are compared.
    - `every`: descent steps between saved losses.
    - `flow_seeds`, `rtol`: the ReLU network's flow, with averaged gates.
    - `mean_seeds`: descent on the mean over the batch, 64 times as many steps.
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
    every: int = 5
    flow_seeds: int = 1
    mean_seeds: int = 1
    rtol: float = 1e-3

    @property
    def clock(self) -> fl.StepClock:
        """Steps on the batch's sum, against flow time."""
        how = {"convention": fl.Convention.BATCH_HALF_SUM, "batch_size": self.batch}
        return fl.StepClock(self.learning_rate, **how)

    @property
    def rate(self) -> float:
        """The learning rate on the mean over the batch that takes the same steps."""
        return self.learning_rate * self.clock.factor

    @property
    def steps(self) -> int:
        """Of the early phase; a multiple of `every`."""
        return self.every * round(self.clock.steps(self.early) / self.every)

    @property
    def ts(self) -> np.ndarray:
        """The early phase's saved flow times."""
        return self.rate * np.arange(0, self.steps + 1, self.every)


QUICK: dict[str, Any] = {
    "samples": 300,
    "statistics": 300,
    "hidden": (16,),
    "seeds": 2,
    "early": 1.28,
    "every": 8,
}


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
    """Stochastic descent, on the clock of the mean-loss flow: losses at `setting.ts` or as said."""
    how = {"steps": setting.steps, "save_every": setting.every, "observe": {}} | how
    rate, steps = how.pop("learning_rate", setting.rate), how.pop("steps")
    key = jax.random.key(1000 + seed)
    return fl.stochastic_gradient_descent(
        network, task, rate, steps, batch_size=setting.batch, key=key, **how
    )


def flow(network: Any, task: fl.Task, setting: Setting) -> fl.Trajectory:
    """Gradient flow, at the same times."""
    ts = setting.ts
    how: dict[str, Any] = {"rtol": setting.rtol} if isinstance(network, fl.ReLUNetwork) else {}
    if isinstance(network, fl.ReLUNetwork) and len(network.hidden) == 1:
        how["kinks"] = fl.AveragedKinks()
    return fl.gradient_flow(network, task, float(ts[-1]), ts=ts, observe={}, **how)


@dataclasses.dataclass(frozen=True)
class Early:
    """The early phase with one c: trajectories of all seeds by label.

    - `rate`: flow time per step.
    - `descents`: "relu" and the linear networks, usually `LINEAR`.
    - `flows`: likewise, fewer seeds of "relu".
    - `mean`: descent of "relu" on the mean over the batch, at the same flow times.
    - `down`: per linear network and seed, the flow time by which the loss has made 90 % of its way
      from 1/2 to where it is at the end of the phase.
    """

    c: float
    rate: float
    descents: dict[str, list[fl.Trajectory]]
    flows: dict[str, list[fl.Trajectory]]
    mean: list[fl.Trajectory]
    down: dict[str, np.ndarray]


def early(
    task: fl.Task, setting: Setting, c: float, shares: dict[str, float] = LINEAR, **relu_: Any
) -> Early:
    """Runs the early phase of all networks: linear ones of some shares of the width, and the ReLU
    network's descent with some more options."""
    descents: dict[str, list[fl.Trajectory]] = {label: [] for label in ("relu", *shares)}
    flows: dict[str, list[fl.Trajectory]] = {label: [] for label in ("relu", *shares)}
    mean = []
    for seed in tqdm(range(setting.seeds), desc=f"early phase, c = {c:g}", unit="seed"):
        network = relu(task, setting, seed, c)
        descents["relu"].append(descend(network, task, setting, seed, **relu_))
        if seed < setting.flow_seeds:
            flows["relu"].append(flow(network, task, setting))
        if seed < setting.mean_seeds:
            slow = {"steps": setting.steps * setting.batch, "learning_rate": setting.learning_rate}
            slow["save_every"] = setting.every * setting.batch
            mean.append(descend(network, task, setting, seed, **slow))
        for label, share in shares.items():
            linear = narrowed(network, share)
            descents[label].append(descend(linear, task, setting, seed))
            if seed < setting.flow_seeds:
                flows[label].append(flow(linear, task, setting))
    down = {k: np.array([down_time(run, scale(task)) for run in descents[k]]) for k in shares}
    return Early(c, setting.rate, descents, flows, mean, down)


def scale(task: fl.Task) -> float:
    """Loss of the network that is zero, from which small weights start: 1/2 for classes."""
    return 0.5 * float(jnp.mean(jnp.sum(task.y**2, axis=1)))


def down_time(run: fl.Trajectory, start: float) -> float:
    """First time at which the loss is 90 % down from `start` to its last value, interpolated."""
    ts, losses = np.asarray(run.ts), np.asarray(run.losses)
    level = 0.1 * start + 0.9 * losses[-1]
    k = int(np.argmax(losses <= level))
    near = slice(max(k - 1, 0), k + 1)
    return float(np.interp(-level, -losses[near], ts[near]))


def gaps(phase: Early, label: str, runs: str = "descents") -> np.ndarray:
    """Mean distance of the ReLU network's loss from a linear one's until that is down, per seed.

    In shares of the loss at zero weights, 1/2.
    """
    found = []
    pairs = zip(getattr(phase, runs)["relu"], getattr(phase, runs)[label], strict=True)
    for k, (one, other) in enumerate(pairs):
        until = np.asarray(one.ts) <= phase.down[label][k]
        found.append(2 * np.mean(np.abs(np.asarray(one.losses - other.losses))[until]))
    return np.array(found)


def partings(phase: Early, label: str, share: float = 0.05) -> np.ndarray:
    """Flow time at which the losses first differ by `share` of 1/2; the end if they never do."""
    found = []
    for one, other in zip(phase.descents["relu"], phase.descents[label], strict=True):
        ts, apart = np.asarray(one.ts), 2 * np.abs(np.asarray(one.losses - other.losses))
        k = np.argmax(apart > share)
        if apart[k] <= share:
            found.append(ts[-1])
        else:
            near = slice(max(k - 1, 0), k + 1)
            found.append(np.interp(share, apart[near], ts[near]))
    return np.array(found)


def deviation(one: Sequence[fl.Trajectory], other: Sequence[fl.Trajectory]) -> float:
    """Largest distance of losses at the same times, in shares of 1/2, over the seeds of both.

    nan if there are none.
    """
    pairs = list(zip(one, other, strict=False))
    if not pairs:
        return np.nan
    return max(2 * float(np.max(np.abs(np.asarray(a.losses - b.losses)))) for a, b in pairs)


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
