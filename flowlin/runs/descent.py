"""Gradient descent: the discrete run, with the same results as the continuous one."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from flowlin._tools.checks import WORDS, checked, instance, require_memory
from flowlin._tools.result import RESULTS
from flowlin.events.kinds import AbstractEvent, UnitSwitches, user_watches
from flowlin.events.recorder import Observer
from flowlin.field.vector_field import objective
from flowlin.loss import Loss, SquaredError
from flowlin.network.foreign import model
from flowlin.network.kinds import ReLUNetwork
from flowlin.network.model import trained
from flowlin.runs.choices import require_room
from flowlin.runs.run import Observables, Observe
from flowlin.runs.stepping import Descent, Look, stepped
from flowlin.runs.trajectory import Reference, Trajectory, finished
from flowlin.solvers.kinks import IgnoreKinks
from flowlin.tasks.task import Task


@checked(network=model)
def gradient_descent(
    network: eqx.Module,
    task: Task,
    learning_rate: float,
    steps: int,
    *,
    trainable: Any = None,
    loss: Loss = SquaredError(),
    tau: float = 1.0,
    optimiser: optax.GradientTransformation | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    interpolate: bool = False,
    observe: Observe | None = None,
    save_every: int | None = None,
    max_events: int = 2**16,
    progress: bool = False,
    throw: bool = True,
) -> Trajectory:
    r"""Full-batch gradient descent, $w_{k+1} = w_k - \epsilon \nabla L(w_k)$.

    Same results as `gradient_flow`; step k is at time t = k eps tau. Timings are step-grained: an
    event's time is that of the first step on the other side, its uncertainty one step; t* is the
    first step of the maximal always-on count, counted at **every** step (on a sliding pair descent
    flickers, so this count is neither the open nor the closed one).

    **Arguments:** as for `gradient_flow`, and

    - `learning_rate`: eps.
    - `steps`: number of steps.
    - `optimiser`: any optax optimiser in place of plain descent; it brings its own rate, and
      `learning_rate` then only sets the unit of time.
    - `interpolate`: whether an event's time is where the straight line between the watched values
      of two steps crosses the level, instead of the later step. Steps know nothing finer; but
      these times converge to those of the modified flow (`fl.gradient_flow(learning_rate=)`) as
      eps^2. Their uncertainty stays the step.
    - `save_every`: steps between saved rows; None saves about 200. The last step is saved too.

    Ctrl-C is heard about every other second, at saved steps, and carries what was computed as
    `error.trajectory`.

    **Returns:** a `Trajectory`. `flow.events` holds the given events; gates are not logged one by
    one. Always-on and always-off units are counted for ReLU networks, at quantile 0 and at that
    of every `UnitSwitches` in `events`.

    **Raises:** `ValueError` for bad input; `fl.RunError` when the loss becomes NaN or infinite
    or there are more than `max_events` events.
    """
    return _run(
        network, task, learning_rate, steps, loss, tau, optimiser, events, interpolate, observe,
        save_every, max_events, progress, throw, batch_size=None, key=None, trainable=trainable,
    )  # fmt: skip


@checked(network=model)
def stochastic_gradient_descent(
    network: eqx.Module,
    task: Task,
    learning_rate: float,
    steps: int,
    *,
    trainable: Any = None,
    batch_size: int,
    key: PRNGKeyArray,
    loss: Loss = SquaredError(),
    tau: float = 1.0,
    optimiser: optax.GradientTransformation | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    interpolate: bool = False,
    observe: Observe | None = None,
    save_every: int | None = None,
    max_events: int = 2**16,
    progress: bool = False,
    throw: bool = True,
) -> Trajectory:
    """Mini-batch gradient descent; every epoch is a fresh random order of the samples.

    Batches are drawn without replacement; where the batch size does not divide P, an epoch's last,
    incomplete batch is left out. The loss's reduction is over the batch: `SquaredError()` averages
    over it, `SquaredError("sum")` sums (the lead paper leaves this open; see `fl.StepClock` for
    the two time units).

    **Arguments:** as for `gradient_descent`, and `batch_size` and a `key` of `jax.random`. Losses,
    events and unit counts are of the whole task; since that costs more than a step, events and
    counts are looked at at saved steps only, which is then their grain.

    **Raises:** as `gradient_descent`; `ValueError` for a batch size not in [1, P].
    """
    if batch_size > task.samples:
        raise ValueError(
            f"`batch_size` must lie between 1 and the number of samples {task.samples}, got "
            f"{batch_size}."
        )
    return _run(
        network, task, learning_rate, steps, loss, tau, optimiser, events, interpolate, observe,
        save_every, max_events, progress, throw, batch_size=batch_size, key=key,
        trainable=trainable,
    )  # fmt: skip


def _run(
    network, task, learning_rate, steps, loss, tau, optimiser, events, interpolate, observe,
    save_every, max_events, progress, throw, batch_size, key, trainable,
) -> Trajectory:  # fmt: skip
    network.require_fit(task)
    if save_every is None:
        save_every = math.ceil(steps / 200)
    if save_every > steps:
        raise ValueError(
            f"`save_every` must lie between 1 and `steps` = {steps}, got {save_every}."
        )
    run, quantiles = prepared(
        network, task, learning_rate, loss, tau, optimiser, events, interpolate, observe,
        save_every, batch_size, key, trainable,
    )  # fmt: skip
    _require_memory(run, steps, quantiles)
    descent = stepped(run, steps, max_events, progress, quantiles, Reference(run.task, loss))
    return finished(descent, throw, lambda d: _failure(d, max_events))


def _require_memory(run: Descent, steps: int, quantiles: list[float]) -> None:
    """Raise `ValueError` where the saved rows, or the counts of every step, are too many."""
    rows = math.ceil(steps / run.save_every)
    if run.observe.functions is None:
        remedy = "Save fewer rows, or use `observe`"
        require_room(run.network, rows, "save_every", f"{run.save_every}, {rows} rows,", remedy)
    if run.batch_size is None:
        counts = 2 * len(quantiles) * len(run.network.hidden) * steps
        require_memory("steps", steps, 16 * counts, "Take fewer")


def prepared(
    network, task, learning_rate, loss, tau, optimiser, events, interpolate, observe, save_every,
    batch_size, key, trainable=None,
) -> tuple[Descent, list[float]]:  # fmt: skip
    """The run, and the quantiles at which it counts units."""
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    goal = objective(network, task, loss)
    quantiles = sorted({0.0} | {e.quantile for e in events if isinstance(e, UnitSwitches)})
    quantiles = quantiles if isinstance(network, ReLUNetwork) else []
    watched = [e for e in events if not isinstance(e, UnitSwitches)]
    watches = user_watches(watched, network, task, goal, IgnoreKinks())
    counters = tuple(
        Observer(tuple(UnitSwitches(q).watches(network, task, goal, IgnoreKinks())), network)
        for q in quantiles
    )
    run = Descent(
        network=network,
        trained=trained(network, trainable),
        task=task,
        objective=goal,
        loss=loss,
        look=Look(Observer(tuple(watches), network), counters),
        observe=Observables(observe),
        learning_rate=jnp.asarray(learning_rate, network.dtype),
        tau=jnp.asarray(tau, network.dtype),
        clock=jnp.asarray(learning_rate * tau, network.dtype),
        optimiser=optimiser,
        interpolate=interpolate,
        save_every=save_every,
        batch_size=batch_size,
        key=key,
    )
    return run, quantiles


def _failure(descent: Trajectory, max_events: int) -> str:
    """What went wrong and what to do about it."""
    if bool(descent.result == RESULTS.event_overflow):
        return (
            f"{int(descent.events.count)} events happened and `max_events` = {max_events}. "
            "Increase it, or watch fewer components."
        )
    first = float(descent.ts[jnp.argmax(~jnp.isfinite(descent.losses))])
    return f"the loss is NaN or infinite from t = {first:.6g} on; lower `learning_rate`."


WORDS["optimiser"] = instance(
    optax.GradientTransformation, "an optax optimiser", "pass one such as optax.adam(1e-3)"
)
