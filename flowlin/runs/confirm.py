"""A second run of a flow at another tolerance, and what it says of the errors of the first."""

import dataclasses
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from flowlin._tools.arrays import Numbers, replace_fields
from flowlin.engine.integrate import FlowRun
from flowlin.record.event_match import ROUNDING, global_uncertainties
from flowlin.record.refusals import confirmation_error
from flowlin.record.run_errors import RunErrors
from flowlin.record.trajectory import Trajectory

# Factors of the second run's tolerance, and what its distance to the first then counts. A run that
# is ten times finer hardly errs beside the first one, whose error the distance then is; thrice,
# since the two may happen to err alike. One that is ten times coarser errs alone.
FINER, COARSER = (0.1, 3.0), (10.0, 1.0)


class SecondRun(NamedTuple):
    """A run to compare with, the factor of the distances to it, and whether it is the finer one."""

    run: FlowRun
    factor: float
    is_finer: bool


def second_run(flow: Trajectory) -> SecondRun:
    """Return a flow's run at another tolerance, from its start and by the solver it began with.

    **Raises:** `ValueError` where the run is not known, or has no `rtol` to change.
    """
    run = flow.reference.run
    if run is None:
        raise confirmation_error(flow)
    first = run if run.reference.unswitched is None else run.reference.unswitched
    control = first.method.controller
    if not isinstance(control, diffrax.PIDController):
        raise ValueError(
            f"`confirm` changes `rtol`, and this run's `stepsize_controller` is a "
            f"{type(control).__name__}; compare two runs of your own."
        )
    rtol, finest = float(control.rtol), 10 * float(jnp.finfo(first.network.dtype).eps)
    finest = max(finest, first.method.kinks.traits.finest_rtol)
    is_finer = rtol * FINER[0] >= finest
    share, factor = FINER if is_finer else COARSER
    control = dataclasses.replace(control, rtol=control.rtol * share, atol=control.atol * share)
    method = replace_fields(first.method, controller=control)
    again = replace_fields(first, method=method, t1=run.t1, ts=_times_again(flow, run))
    return SecondRun(again, factor, is_finer)


def _times_again(flow: Trajectory, run: FlowRun) -> Numbers | None:
    """Return the times to save in a second run: those asked for, of extended runs all rows."""
    rows = np.asarray(flow.ts)
    if run.ts is None:
        return None if len(rows) <= 2 else flow.ts
    own = np.asarray(run.ts)
    return run.ts if np.isin(rows[rows < float(flow.end)], own).all() else flow.ts


def with_global_errors(flow: Trajectory, other: Trajectory, factor: float) -> Trajectory:
    """Return a flow with the errors that another run of it shows; see `Trajectory.confirm`."""
    uncertainty = global_uncertainties(flow.events, other.events, factor)
    dtype = flow.events.uncertainty.dtype
    events = replace_fields(
        flow.events, uncertainty=jnp.asarray(uncertainty, dtype), confirmed=True
    )
    time, sure = np.asarray(events.time), np.isfinite(uncertainty)
    late = ~sure & (time > np.max(time[sure], initial=0.0))
    known = min(float(flow.counts.get(name, np.inf)) for name in ("converged", "slides_decayed"))
    converged = jnp.asarray(np.min(time[late], initial=known), dtype)
    return replace_fields(
        flow,
        events=events,
        error=_errors_of_rows(flow, other, factor),
        counts=flow.counts | {"converged": converged},
    )


def _errors_of_rows(flow: Trajectory, other: Trajectory, factor: float) -> RunErrors:
    """Return the errors of what was saved; inf at times that the other run has not saved."""
    place = _places_of_rows(flow, other)

    def difference(own: ArrayLike, theirs: ArrayLike) -> np.ndarray:
        own, theirs = np.asarray(own), np.asarray(theirs)
        if not len(theirs):
            return np.full(own.shape, np.inf)
        off = factor * np.abs(own - theirs[place])
        missing = (place < 0).reshape(-1, *[1] * (own.ndim - 1))
        rounding = ROUNDING * np.finfo(own.dtype).eps * np.abs(own)
        return np.where(missing, np.inf, off + rounding)

    observed = {
        name: jnp.asarray(difference(values, other.observed[name]))
        for name, values in flow.observed.items()
        if _is_array_of_rows(values, flow) and name in other.observed
    }
    parameters = None
    if flow.saved is not None and other.saved is not None:
        pairs = zip(jax.tree.leaves(flow.saved), jax.tree.leaves(other.saved), strict=True)
        offs = [(difference(a, b), np.asarray(a)) for a, b in pairs]
        off, size = (
            sum(np.sum(part.reshape(len(part), -1) ** 2, axis=1) for part in parts)
            for parts in zip(*offs, strict=True)
        )
        parameters = jnp.asarray(np.sqrt(off / np.where(size > 0, size, 1.0)))
    control = other.reference.run.method.controller
    losses = jnp.asarray(difference(flow.losses, other.losses))
    return RunErrors(parameters, losses, observed, jnp.asarray(control.rtol))


def _places_of_rows(flow: Trajectory, other: Trajectory) -> np.ndarray:
    """Return for each row its place in another run, -1 where it has none.

    The rows of two runs that one event has ended belong together, if at other times.
    """
    own, theirs = np.asarray(flow.ts), np.asarray(other.ts)
    place = np.full(len(own), -1)
    if not len(theirs):
        return place
    at = np.minimum(np.searchsorted(theirs, own), len(theirs) - 1)
    place = np.where(theirs[at] == own, at, place)
    ended = len(own) and int(flow.result._value) == int(other.result._value)
    if ended and place[-1] < 0 and own[-1] == float(flow.end):
        place[-1] = len(theirs) - 1
    return place


def _is_array_of_rows(values: object, flow: Trajectory) -> bool:
    """Tell whether an observable is an array of numbers with a row for each saved time."""
    if not isinstance(values, jax.Array) or not jnp.issubdtype(values.dtype, jnp.floating):
        return False
    return values.shape[:1] == flow.ts.shape
