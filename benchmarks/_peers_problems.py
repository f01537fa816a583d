"""The problems of `peers.py`: what is solved, to what errors, and what is known about it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import averaged
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import flowlin as fl
from flowlin.training.rules import VectorField, choose_objective
from flowlin.training.statistics import LinearStatistics

PATIENCE = 3  # descent may take this many times the cap


class Problem(NamedTuple):
    """One problem; its parameters are one flat vector for everybody but flowlin."""

    name: str
    title: str
    network: Any
    task: fl.Task
    t1: float
    known: np.ndarray  # final parameters, or hitting times
    reference: str  # where they come from
    targets: tuple[float, ...]  # relative errors at which contenders are timed
    knobs: tuple[float, ...]  # tolerances tried, from loose to tight
    rate: float  # the largest rate of descent tried
    cap: float  # seconds that one run may take; descent three times as many
    main: str  # the flowlin contender that ratios refer to
    hits: fl.ModeHits | None = None

    @property
    def start(self) -> np.ndarray:
        """Initial parameters."""
        return _common.flat(self.network)

    @property
    def modes(self) -> fl.theory.Modes:
        """Of an event problem."""
        assert self.hits is not None
        return self.hits.modes


def ladder(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Tolerances from loose to tight."""
    return tuple(float(f"{first / factor**k:.3g}") for k in range(count))


def field(problem: Problem) -> Callable[[Any], Any]:
    """Velocity of the flat parameters, the same for every JAX and SciPy contender.

    Linear networks: from the sufficient statistics of the data, as flowlin does itself.
    """
    network, loss = problem.network, fl.SquaredError()
    if isinstance(network, fl.LinearNetwork):
        goal: Any = LinearStatistics.from_task(problem.task, loss)
    else:
        goal = choose_objective(network, problem.task, loss)
    velocity = VectorField(goal, network, jnp.ones(()))
    unravel = ravel_pytree(network.parameters)[1]
    return lambda y: ravel_pytree(velocity(0.0, unravel(y), None))[0]


def strengths(problem: Problem) -> Callable[[Any], Any]:
    """Strengths of the flat parameters' modes, (K,), for inputs aligned with the modes."""
    modes, unravel = problem.modes, ravel_pytree(problem.network.parameters)[1]

    def found(y):
        (w1, w2), _ = unravel(y)
        return jnp.sum(modes.u * (w2 @ (w1 @ modes.v)), axis=0)

    return found


def cost(problem: Problem) -> float:
    """Seconds of one evaluation in a jitted loop."""
    velocity = field(problem)
    loop = jax.jit(lambda y, n: jax.lax.fori_loop(0, n, lambda _, y: y + 1e-9 * velocity(y), y))
    count = 10
    loop(problem.start, count)
    while True:
        begin = time.perf_counter()
        jax.block_until_ready(loop(problem.start, count))
        taken = time.perf_counter() - begin
        if taken > 0.1:
            return taken / count
        count *= 4


def linear(stiff: bool) -> Problem:
    """A linear network on digits: stiff with c = 10, not with c = 1."""
    task, c, t1 = fl.tasks.digits(), 10.0 if stiff else 1.0, 3000.0 if stiff else 30.0
    network = fl.LinearNetwork.init(task, bias_strength=c, key=jax.random.key(0))
    # Two methods and tolerances; where they differ is what is known of the reference's error.
    fine, other = (
        _common.flat(fl.gradient_flow(network, task, t1, solver=s, rtol=rtol).final)
        for s, rtol in ((diffrax.Dopri8(), 1e-12), (diffrax.Dopri8(), 1e-10))
    )
    return Problem(
        f"linear c={c:g}", f"linear, digits, c = {c:g}, t = {t1:g}", network, task, t1, fine,
        f"Dopri8, rtol 1e-12 ({averaged.off(other, fine):.0e} from rtol 1e-10)",
        (1e-3, 1e-5, 1e-7) if stiff else (1e-4, 1e-6, 1e-8),
        ladder(1e-4, 10, 6) if stiff else ladder(1e-3, 10**0.5, 17),
        1e-2 if stiff else 0.5, 60.0, "flowlin",
    )  # fmt: skip


def tree() -> Problem:
    """A ReLU network on the semantic tree, which slides on its kinks."""
    task = fl.tasks.hierarchy()
    network = fl.ReLUNetwork.init(task, key=jax.random.key(0))
    fine, other = (
        _common.flat(_common.exact_walk(network, task, 60.0, rtol).final) for rtol in (1e-12, 1e-10)
    )
    return Problem(
        "relu tree", "ReLU, hierarchy, c = 1, t = 60", network, task, 60.0, fine,
        f"exact walk, rtol 1e-12 ({averaged.off(other, fine):.0e} from rtol 1e-10); descent, which "
        "knows nothing of it, converges to it",
        (1e-3, 1e-4, 1e-5), ladder(1e-3, 10**0.5, 11), 1e-2, 40.0, "flowlin ExactKinks",
    )  # fmt: skip


def images(mnist: bool) -> Problem:
    """A ReLU network on real images: more kinks than can be walked."""
    if mnist:
        task, label, t1, steps = fl.tasks.mnist(1000), "MNIST 1,000 c=1 t=10", 10.0, 10_000
    else:
        task, label, t1, steps = fl.tasks.digits(), "digits c=1 t=100", 100.0, 100_000
    network = fl.ReLUNetwork.init(task, 64, key=jax.random.key(0))
    half, fine = (
        averaged.reference(label, network, task, t1, count) for count in (steps, 2 * steps)
    )
    return Problem(
        "relu mnist" if mnist else "relu digits",
        f"ReLU, {'MNIST, 1,000 images' if mnist else 'digits'}, c = 1, t = {t1:g}",
        network, task, t1, fine,
        f"Heun, {2 * steps:,} steps ({averaged.off(half, fine):.0e} from half of them)",
        (1e-2, 1e-3, 1e-4), ladder(1e-2, 10**0.5, 10), 0.1, 60.0, "flowlin AveragedKinks",
    )  # fmt: skip


def events(levels: int, hidden: int) -> Problem:
    """Hitting times of a balanced, aligned linear network: the closed form is exact."""
    task = fl.tasks.hierarchy(levels)
    modes = fl.theory.modes(task)
    a0 = 1e-3 * (1 + np.arange(len(modes.s)) / len(modes.s))  # equal modes hit one by one
    network = fl.LinearNetwork.balanced(
        task, hidden, bias=False, product=(modes.u * a0) @ modes.v.T, key=jax.random.key(0)
    )
    half = 0.5 * modes.full_strength
    known = np.asarray(fl.theory.hitting_time(half, modes.s, modes.d, a0))
    count = len(known)
    return Problem(
        f"events {count}", f"hitting times of {count} modes, linear, hierarchy", network, task,
        float(np.max(known)) * 1.05, known, "closed form",
        (1e-3, 1e-5, 1e-7, 1e-9), ladder(1e-3, 10**0.5, 21), 0.1, 60.0, "flowlin under jit",
        fl.ModeHits(modes, share=0.5),
    )  # fmt: skip


def toys() -> list[Problem]:
    """What `--quick` runs."""
    task = fl.tasks.hierarchy(2)
    network = fl.LinearNetwork.init(task, 8, variance=1e-2, key=jax.random.key(0))
    known = _common.flat(fl.gradient_flow(network, task, 3.0, rtol=1e-10).final)
    toy = Problem(
        "toy", "linear, hierarchy of two levels", network, task, 3.0, known, "Dopri8, rtol 1e-10",
        (1e-2,), (1e-3, 1e-5), 0.1, 5.0, "flowlin",
    )  # fmt: skip
    hits = events(2, 8)._replace(name="toy events", main="flowlin")
    return [toy, hits._replace(targets=(1e-2,), knobs=(1e-3, 1e-5))]


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear c=10": lambda: linear(stiff=True),
    "linear c=1": lambda: linear(stiff=False),
    "relu tree": tree,
    "relu digits": lambda: images(mnist=False),
    "relu mnist": lambda: images(mnist=True),
    "events 8": lambda: events(3, 16),
    "events 32": lambda: events(5, 48),
}
