"""How large a learning rate may be for descent to stay near to the flow: measured, by descent."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from flowlin._tools.bar import tqdm_bar
from flowlin._tools.checks import checked, known, positive, refuse
from flowlin._tools.copies import copied
from flowlin._tools.show import shown
from flowlin._tools.types import Numbers
from flowlin.agreement import summary
from flowlin.agreement.measure import (
    NEAR,
    QUANTITIES,
    Accuracy,
    _Errors,
    _measured,
    _sharpness,
    _times,
)
from flowlin.events.kinds import AbstractEvent, UnitSwitches
from flowlin.field.problem import Problem
from flowlin.loss import AnyLoss, Loss, SquaredError
from flowlin.network.foreign import model
from flowlin.network.model import AbstractModel
from flowlin.runs.choices import chosen_decay
from flowlin.runs.descent import Rule, Watched, described
from flowlin.runs.flow import gradient_flow
from flowlin.runs.stepping import Descent, Look
from flowlin.runs.trajectory import Trajectory
from flowlin.solvers.kinks import AbstractKinks
from flowlin.tasks.task import Task

FACTOR = 4  # between the rates that bracket


@shown(summary.rate_certificate)
@dataclasses.dataclass(frozen=True)
class RateCertificate:
    r"""At which learning rates descent stays within a share of the flow.

    - `rates`: (R,), learning rates tried, ascending.
    - `steps`: (R,), the whole numbers of steps in which they reach t1.
    - `within`, `t1`: the limit and the final time, as asked for.
    - `edge`: 2 over the largest spectral radius of the loss's Hessian along the flow, where
      descent becomes unstable. The largest rate tried is the largest up to it that takes whole
      steps, t1 / (tau n) with the smallest such n: for few steps it may lie far below.
    - `parameters`, `function`: `Accuracy` of the largest relative distances in [0, t1] that
      `fl.compare` finds, each relative to the flow's own norm at that time.
    - `loss`: of the largest difference of the losses over the flow's loss at t = 0.
    - `events`: of the largest relative difference of an event's time; None where no event happens
      in [0, t1], neither in the flow nor in any descent.
    - `chattering`: of the largest |z| of a (unit, sample) pair that slides along the flow, in units
      of the preactivation; its `rate` is nan, since nothing limits it, and its `slope` is over all
      rates. None if no pair slides.
    """

    rates: Float[np.ndarray, " R"]
    steps: Int[np.ndarray, " R"]
    within: float
    t1: float
    edge: float
    parameters: Accuracy
    function: Accuracy
    loss: Accuracy
    events: Accuracy | None
    chattering: Accuracy | None

    def table(self) -> list[dict[str, Any]]:
        """One dictionary per quantity: its name, largest rate, slope, and what limits the rate."""
        rows = []
        for name in QUANTITIES:
            accuracy: Accuracy | None = getattr(self, name)
            if accuracy is None:
                continue
            limit = f"{100 * self.within:g} % of the flow"
            if accuracy.rate == self.rates[-1]:
                limit = f"largest rate tried, {self.steps[-1]} step(s) to t1"
                if accuracy.rate >= NEAR * self.edge:
                    limit = f"stability edge {self.edge:.3g}"
            elif math.isnan(accuracy.rate):
                limit = f"no rate from {self.rates[0]:.3g} on is within {limit}"
            row = {"quantity": name, "rate": accuracy.rate, "slope": accuracy.slope}
            rows.append({**row, "limit": limit})
        return rows


def _share(name: str, value: Any) -> float:
    """A relative error in (0, 0.5)."""
    value = known(positive)(name, value)
    if value >= 0.5:
        raise refuse(name, "a relative error below 0.5", value)
    return value


@checked(
    network=model, t1=known(positive), within=_share, precision=known(positive), tau=known(positive)
)
def largest_learning_rate(
    network: eqx.Module,
    task: Task,
    t1: float,
    within: float = 0.01,
    *,
    loss: AnyLoss = SquaredError(),
    tau: float = 1.0,
    weight_decay: Numbers | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    kinks: AbstractKinks | None = None,
    solver: diffrax.AbstractSolver | None = None,
    rtol: float | None = None,
    precision: float = 0.05,
    max_steps: int = 2**18,
    progress: bool = False,
) -> RateCertificate:
    r"""The largest learning rates at which descent stays within a share of the flow over [0, t1].

    Measured, not extrapolated: descent is run at every rate that counts. From the edge of
    stability on the rate falls by factors of four until all errors are within the limit, and once
    more by two; then each quantity's largest rate is bisected in log eps. Parameters, function and
    loss are compared at 128 times; events at their own times, descent's interpolated between
    steps. Where a ReLU flow slides on its kinks descent chatters about them, and the width of that
    is measured at every step, over the pairs that slide from one of the 128 times to the next.

    **Arguments:**

    - `network`, `task`, `t1`, `loss`, `tau`, `weight_decay`, `kinks`, `solver`, `rtol`: of the
      flow, as for `gradient_flow`; it is kept with `dense=True`. Steps of rate eps take eps tau.
    - `within`: the limit, a relative error in (0, 0.5).
    - `events`: whose times count; `Crossing`, `ModeHits`, `LossBelow`. Those of the flow until t1
      must happen in descent, and the other way round, in the same order for each component. They
      cannot end a run, nor happen at t = 0.
    - `precision`: relative width of the bracket of each rate at which bisection ends.
    - `max_steps`: of one descent; smaller rates than t1 / (tau max_steps) are not tried.
    - `progress`: a tqdm bar over the descents.

    **Returns:** a `RateCertificate`, with one `Accuracy` per quantity. A quantity that no rate
    tried keeps within the limit has `rate` nan.

    **Raises:** `ValueError` for bad input, or a flow that rests; `fl.RunError` where it fails.
    """
    network, events = cast(AbstractModel, network), cast(tuple, events)  # as `checked` leaves them
    if any(isinstance(event, UnitSwitches) for event in events):
        raise ValueError(
            "`events` holds UnitSwitches; descent flickers on sliding pairs, so that its units' "
            "switches do not converge. Pass events of observables."
        )
    own = task.astype(network.dtype), cast(Loss, loss), jnp.asarray(tau, network.dtype)
    decay = chosen_decay(network, weight_decay)
    rule, watched = Rule(learning_rate=1.0, clock=tau), Watched(events, interpolate=True)
    run = described(Problem(network, *own, decay), rule, watched)
    if any(watch.terminate for watch in run.look.observer.watches):
        raise ValueError("`events` must not end the run; pass them with `terminate=False`.")
    run = copied(run, look=Look(run.look.observer))
    flow = gradient_flow(
        network, task, t1 * (1 + 2 * within) if events else t1, loss=loss, tau=tau,
        weight_decay=weight_decay, events=events, kinks=kinks, solver=solver, rtol=rtol, dense=True,
    )  # fmt: skip
    _require_motion(network, flow, run)
    sharpness = float(_sharpness(run, flow, t1))
    edge = 2 / sharpness if sharpness > 0 else math.inf
    first = max(1, math.ceil(t1 / (tau * edge)))
    if first > max_steps:
        raise ValueError(
            f"`max_steps` = {max_steps} is too small: at the edge of stability, eps = {edge:.3g}, "
            f"descent takes {first} steps."
        )
    bar = tqdm_bar(None, unit="run") if progress else None

    def measured(steps: int) -> "_Errors":
        if bar is not None:
            bar.set_postfix_str(f"eps = {t1 / (tau * steps):.3g}")
            bar.update()
        return _measured(run, flow, t1, tau, within, steps)

    found = _searched(measured, first, max_steps, within, precision)
    if bar is not None:
        bar.close()
    return _certificate(found, t1, tau, within, edge)


def _require_motion(network: AbstractModel, flow: Trajectory, run: Descent) -> None:
    """Raise `ValueError` where there is nothing that errors could be relative to."""
    if bool(eqx.tree_equal(network.parameters, flow.model.parameters)):
        raise ValueError(
            "`network` does not move on this `task` until `t1`: where the gradient of its loss "
            "vanishes, descent of any rate rests as well. Start from other parameters."
        )
    names = {watch.channel.name for watch in run.look.observer.watches}
    for (name, index, _), times in _times(flow.events, names).items():
        if times[0] <= 0:
            raise ValueError(
                f"`events`: {name!r} {index} happens at t = 0, where no difference of times is "
                "relative to anything. Leave it out, or shift its level."
            )


def _searched(
    measured: Callable[[int], _Errors], first: int, last: int, within: float, precision: float
) -> dict[int, _Errors]:
    """Errors by number of steps: bracketing by factors, then bisection for each quantity."""
    steps, found = first, {first: measured(first)}

    def fails(errors: _Errors, quantity: str) -> bool:
        return getattr(errors, quantity) > within  # nan, where there is nothing, does not

    while any(fails(found[steps], q) for q in QUANTITIES) and steps < last:
        steps = min(FACTOR * steps, last)
        found[steps] = measured(steps)
    if 2 * steps <= last:
        found[2 * steps] = measured(2 * steps)
    for quantity in QUANTITIES:
        while True:
            failing = [n for n, errors in found.items() if fails(errors, quantity)]
            low = max(failing, default=0)
            high = min((n for n in found if n > low), default=None)
            if low == 0 or high is None or high <= max(low + 1, low * (1 + precision)):
                break
            middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
            found[middle] = measured(middle)
    return found


def _certificate(
    found: dict[int, _Errors], t1: float, tau: float, within: float, edge: float
) -> RateCertificate:
    """What the descents found, in terms of rates."""
    numbers = sorted(found, reverse=True)
    rates = t1 / (tau * np.array(numbers))

    def accuracy(quantity: str) -> Accuracy | None:
        errors = np.array([getattr(found[n], quantity) for n in numbers])
        if np.all(np.isnan(errors)):
            return None
        limited = quantity in QUANTITIES
        if limited:
            errors = np.where(np.isnan(errors), 0.0, errors)  # no event in the flow or in descent
        passed = np.cumprod(errors <= within) > 0 if limited else np.zeros(len(errors), bool)
        rate = float(rates[passed][-1]) if np.any(passed) else math.nan
        near = rates <= (2 * rate if np.any(passed) else rates[: 3 if limited else None][-1])
        near &= np.isfinite(errors) & (errors > 0)
        slope = math.nan
        if np.sum(near) > 1:
            slope = float(np.polyfit(np.log(rates[near]), np.log(errors[near]), 1)[0])
        return Accuracy(rate, errors, slope)

    parameters, function, loss = (accuracy(q) for q in QUANTITIES[:3])
    assert parameters is not None
    assert function is not None
    assert loss is not None
    return RateCertificate(
        rates=rates,
        steps=np.array(numbers),
        within=within,
        t1=t1,
        edge=edge,
        parameters=parameters,
        function=function,
        loss=loss,
        events=accuracy("events"),
        chattering=accuracy("chattering"),
    )
