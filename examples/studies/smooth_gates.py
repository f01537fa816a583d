r"""Descent and smooth gates: how often they learn different networks, and from which starts. See:
starts without a branch lie on the dotted line, smooth gates come to the exact flow (A); many with a
branch lie on the black one, they do not. Large weights part more often than small ones (B).

    python examples/studies/smooth_gates.py [--quick] [--out FOLDER]

Where kinks repel, the gradient flow of a ReLU network is not unique. Two limits choose: descent's,
with relu'(0) = 0, and that of smooth gates, here h = w softplus(z / w) with a width w that goes to
zero. Both are run from the same weights, softplus networks by flowlin's flow of any smooth module,
and held against the exact walk by the outputs on the samples at t1, relative to the targets' norm.
A limit comes to the walk where a tenth of the width, or of the rate, is less than 0.3 times as far;
it parts where that is more than half as far, and more than a thousandth. A walk says by a branch in
its log that the flow is one of several. Of one hidden layer the walk of smooth gates is known, too,
`fl.ExactKinks(revive=True)`; their distance from it is the last one.
"""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _studies import Study, fl, share, task_named
from tqdm import tqdm

WIDTHS, RATES = (1e-5, 1e-6), (1e-2, 1e-3)
VARIANCES = (2e-4, 2e-2, 0.5)
RTOL = 1e-9  # of smooth gates: z counts in widths
PARTS, COMES, LEAST = 0.5, 0.3, 1e-3
COMING, PARTING, OPEN = "comes", "parts", "open"
# Colours and markers of widths by hidden layers.
LOOKS = {(4,): ("0.6", "o"), (16,): ("0.2", "s"), (4, 4): ("tab:blue", "^")}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds of each start; tasks and hidden layers; variances; the end t1."""

    seeds: int = 30
    settings: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("small tree", (4,)), ("small tree", (16,)), ("small tree", (4, 4)), ("tree", (16,)),
        ("Gaussian inputs", (4,)),
    )  # fmt: skip
    variances: tuple[float, ...] = VARIANCES
    t1: float = 30.0


@dataclasses.dataclass
class Case:
    """One start, and what became of it.

    - `reasons`: of the walk's branches, in order; `first`, the time of the first, else inf.
    - `smooth`, `descent`: distances from the walk by width and by rate.
    - `revived`: of smooth gates from the walk in which units revive; empty for several layers.
    - `losses`: at t1, of the walk, the narrowest gates and the slowest descent.
    """

    task: str
    hidden: tuple[int, ...]
    variance: float
    seed: int
    reasons: list[str]
    first: float
    smooth: tuple[float, ...]
    descent: tuple[float, ...]
    revived: tuple[float, ...]
    losses: tuple[float, ...]


@dataclasses.dataclass
class Data:
    """All cases, and the number of walks that found no sides."""

    cases: list[Case]
    unsolved: int


class SmoothGates(eqx.Module):
    """A ReLU network whose gates are smooth: h = w softplus(z / w)."""

    weights: tuple[jax.Array, ...]
    biases: tuple[jax.Array | None, ...]
    width: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """The outputs of one sample."""
        width, last = jax.lax.stop_gradient(self.width), len(self.weights) - 1
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = w @ x if b is None else w @ x + b
            x = width * jax.nn.softplus(x / width) if layer < last else x
        return x


def gates_of(network: fl.ReLUNetwork, width: float) -> SmoothGates:
    """A network with smooth gates of the same weights."""
    return SmoothGates(network.weights, network.biases, jnp.asarray(width))


def one_case(task: fl.Task, hidden: tuple[int, ...], variance: float, seed: int, t1: float):
    """A start's case; None where the walk found no sides."""
    network = fl.ReLUNetwork.init(task, hidden, variance, key=jax.random.key(seed))
    walk = fl.gradient_flow(
        network, task, t1, kinks=fl.ExactKinks(), rtol=1e-8, observe={}, throw=False
    )
    if walk.result != fl.RESULTS.successful:
        return None
    flows = [
        fl.gradient_flow(gates_of(network, width), task, t1, rtol=RTOL, observe={})
        for width in WIDTHS
    ]
    runs = [fl.gradient_descent(network, task, rate, t1=t1, observe={}) for rate in RATES]
    smooth = [jax.vmap(flow.final)(task.x) for flow in flows]

    def distances(outputs: list[jax.Array], network: fl.ReLUNetwork) -> tuple[float, ...]:
        off, scale = network.outputs(task.x), jnp.linalg.norm(task.y)
        return tuple(float(jnp.linalg.norm(one - off) / scale) for one in outputs)

    revived: tuple[float, ...] = ()
    if len(hidden) == 1:
        kinks = fl.ExactKinks(revive=True)
        again = fl.gradient_flow(network, task, t1, kinks=kinks, rtol=1e-8, observe={})
        revived = distances(smooth, again.final)
    branches = walk.events.select("branch")
    return Case(
        task.name, hidden, variance, seed, list(branches.reason),
        float(np.min(np.asarray(branches.time), initial=np.inf)),
        distances(smooth, walk.final),
        distances([run.final.outputs(task.x) for run in runs], walk.final),
        revived,
        tuple(float(run.losses[-1]) for run in (walk, flows[-1], runs[-1])),
    )  # fmt: skip


def compute(size: Size) -> Data:
    """All starts."""
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    cases, unsolved = [], 0
    for name, hidden in size.settings:
        task = task_named(name)
        starts = [(v, seed) for v in size.variances for seed in range(size.seeds)]
        for variance, seed in tqdm(starts, desc=f"{name}, {hidden}"):
            case = one_case(task, hidden, variance, seed, size.t1)
            if case is None:
                unsolved += 1
            else:
                cases.append(dataclasses.replace(case, task=name))
    return Data(cases, unsolved)


def outcome(far: tuple[float, ...]) -> str:
    """Whether a limit comes to the walk or parts from it, by its two distances."""
    wide, narrow = far
    if narrow > PARTS * wide and narrow > LEAST:
        return PARTING
    return COMING if narrow < COMES * wide or narrow < LEAST / 10 else OPEN


def findings(data: Data) -> list[str]:
    """In sentences."""
    lines = []
    for branch in (False, True):
        cases = [case for case in data.cases if bool(case.reasons) == branch]
        words = "with" if branch else "without"
        for what in ("smooth", "descent"):
            ends = [outcome(getattr(case, what)) for case in cases]
            lines.append(
                f"of {len(cases)} starts {words} a branch, {what}: "
                + ", ".join(f"{name} {share([e == name for e in ends])}"
                            for name in (COMING, PARTING, OPEN) if ends)
            )  # fmt: skip
    for reason in sorted({reason for case in data.cases for reason in case.reasons}):
        own = [case for case in data.cases if case.reasons and case.reasons[0] == reason]
        ends = [(outcome(case.smooth), outcome(case.descent)) for case in own]
        if own:
            lines.append(
                f"first branch because {reason}: {len(own)} starts; smooth gates part in "
                f"{sum(a == PARTING for a, _ in ends)}, descent in "
                f"{sum(b == PARTING for _, b in ends)}"
            )
    known = [case for case in data.cases if case.revived and outcome(case.smooth) == PARTING]
    ends = [outcome(case.revived) for case in known]
    lines.append(
        f"of {len(known)} starts with one layer from whose walk smooth gates part, to the walk "
        "with revival: "
        + ", ".join(f"{name} {sum(e == name for e in ends)}" for name in (COMING, PARTING, OPEN))
    )
    apart = [case for case in data.cases if outcome(case.smooth) == PARTING]
    if apart:
        far = np.array([case.smooth[-1] for case in apart])
        lower = [case.losses[1] < case.losses[0] for case in apart]
        lines.append(
            f"where smooth gates part, {len(apart)} starts, they are {np.median(far):.2g} away in "
            f"the median and {far.max():.2g} at most; their loss is the lower in {share(lower)}"
        )
    for (task, hidden), by_variance in by_setting(data).items():
        for variance, cases in by_variance.items():
            parts = [outcome(case.smooth) == PARTING for case in cases]
            logs = [bool(case.reasons) for case in cases]
            lines.append(
                f"{task}, hidden {hidden}, variance {variance:g}: smooth gates part in "
                f"{share(parts)}, a branch in {share(logs)}"
            )
    return [*lines, f"walks that found no sides: {data.unsolved}"]


def by_setting(data: Data) -> dict[tuple[str, tuple[int, ...]], dict[float, list[Case]]]:
    """The cases by task and hidden layers, and by variance."""
    found: dict[tuple[str, tuple[int, ...]], dict[float, list[Case]]] = {}
    for case in data.cases:
        found.setdefault((case.task, tuple(case.hidden)), {}).setdefault(case.variance, []).append(
            case
        )
    return found


def draw(data: Data) -> plt.Figure:
    """Distances at two widths; shares of starts that part, by variance."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4))
    for branch, marker, colour in ((False, ".", "linear"), (True, "x", "relu")):
        some = [case for case in data.cases if bool(case.reasons) == branch]
        far = np.array([case.smooth for case in some]).reshape(-1, 2)
        label = f"{'a' if branch else 'no'} branch ({len(some)} starts)"
        colour = fl.plot.COLOURS[colour]
        left.plot(*far.T, marker, color=colour, markersize=5, alpha=0.6, label=label)
    ends = np.array([1e-6, 2.0])
    left.plot(ends, ends, "-", color="black", linewidth=0.7, label="as far")
    left.plot(ends, ends / 10, ":", color="black", linewidth=0.9, label="a tenth as far")
    left.set(
        xscale="log", yscale="log", xlabel=f"distance from the walk, width {WIDTHS[0]:g}",
        ylabel=f"distance, width {WIDTHS[1]:g}", title="A. The limit of smooth gates",
        xlim=(1e-5, 2), ylim=(1e-7, 2),
    )  # fmt: skip
    left.legend(fontsize="small", frameon=False)
    styles = {"small tree": "-", "tree": "--", "Gaussian inputs": ":"}
    for (task, hidden), by_variance in by_setting(data).items():
        parts = [
            np.mean([outcome(case.smooth) == PARTING for case in own])
            for own in by_variance.values()
        ]
        colour, marker = LOOKS[hidden]
        label = f"{task}, {' and '.join(map(str, hidden))} units"
        right.plot(list(by_variance), parts, styles[task], marker=marker, color=colour,
                   markersize=5, label=label)  # fmt: skip
    right.set(
        xscale="log", ylim=(-0.01, 0.32), xlabel="variance of the initial weights",
        ylabel="share of starts that part", title="B. Where smooth gates learn another network",
    )  # fmt: skip
    right.legend(fontsize="small", frameon=False)
    return figure


STUDY = Study(
    name="smooth_gates",
    quick=Size(6, (("small tree", (4,)),), (2e-2, 0.5), 20.0),
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main(__doc__)
