"""Checks of a run's arguments: those that depend on each other, and diffrax's own kinds."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    finite_array,
    function_of,
    instance_of,
    positive,
    positive_at_run_time,
    real_array,
)
from flowlin._tools.arrays import ENABLE_X64, Numbers, Real, float_dtype, is_traced
from flowlin._tools.memory import require_memory
from flowlin._tools.printing import LogProgress
from flowlin.engine.kinks.kink_places import kink_places
from flowlin.engine.kinks.kink_policies import AbstractKinks
from flowlin.events.watch import Watch
from flowlin.measures.modes import Modes
from flowlin.networks.base import AbstractModel, time_constants
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.origin import RunState
from flowlin.record.refusals import extension_error
from flowlin.record.results import RESULTS, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.training.objective import Decay
from flowlin.training.problem import Problem
from flowlin.training.schedule import schedule_argument


def require_coarse_enough(rtol: Real | None, dtype: DTypeLike) -> None:
    """Raise `ValueError` for a tolerance that is finer than a precision can hold."""
    finest = 10 * float(jnp.finfo(dtype).eps)
    if rtol is not None and not is_traced(rtol) and float(rtol) < finest:
        remedy = (
            f"switch to float64 before any array is made: {ENABLE_X64}"
            if dtype == jnp.float32
            else "loosen it"
        )
        raise ValueError(
            f"`rtol` = {rtol:g} is finer than {dtype} can hold ({finest:.1e}); {remedy}."
        )


def require_ending(t1: ArrayLike | None, watches: Sequence[Watch]) -> None:
    """Raise `ValueError` for a run to t = inf that no event ends."""
    if not is_traced(t1) and t1 == math.inf and not any(watch.terminate for watch in watches):
        raise ValueError(
            "`t1` is inf, and no event ends the run; give a finite `t1`, or one that does, such as "
            "`events=fl.GradientBelow(1e-4, terminate=True)`."
        )


def validate_times(t1: Any, ts: Any) -> PyTree:
    """Return the times to save, ascending in [0, t1]; those past t1 by rounding become t1."""
    if ts is None or is_traced(ts):
        return ts
    times = np.asarray(ts, float)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"`ts` must be a non-empty list of times, got shape {times.shape}.")
    if np.isnan(times).any():
        raise ValueError(f"`ts` holds {np.isnan(times).sum()} NaN among {times.size} times.")
    if not is_traced(t1):
        ulp = max(float(jnp.finfo(float_dtype(value)).eps) for value in (ts[0], t1))
        past = (times > float(t1)) & (times <= float(t1) * (1 + 8 * ulp))
        times = np.where(past, float(t1), times)
    if not np.all(np.diff(times) > 0):
        raise ValueError("`ts` must be strictly ascending; sort it and drop duplicates.")
    if times[0] < 0 or (not is_traced(t1) and times[-1] > float(t1)):
        end = "" if is_traced(t1) else f" = {float(t1):g}"
        raise ValueError(
            f"`ts` runs from {times[0]:g} to {times[-1]:g}, outside the run's [0, t1{end}]."
        )
    return times


DEFAULT_MAX_EVENTS = 2**16  # at which a run gives up that is not told when
LEAST_TRACED_EVENTS = 2**12  # the same under `jit` and `vmap`, and for each watched component:
TRACED_EVENTS_PER_COMPONENT = 8  # a pair of a walk has some half an event, and hardly ever more


def event_limit_under_jit(components: int) -> int:
    """Return the events at which a run under `jit` or `vmap` gives up that watches so many things.

    There a log cannot grow. diffrax selects between the logs before and after every step, to roll
    back what a rejected one logged, and so all of their room is copied.
    """
    expected = TRACED_EVENTS_PER_COMPONENT * components
    return min(DEFAULT_MAX_EVENTS, max(LEAST_TRACED_EVENTS, expected))


def initial_capacity(watches: Sequence[Watch], max_events: int) -> int:
    """Return the room of the first event logs, which grow where that is not enough."""
    components = sum(watch.channel.size for watch in watches)
    return min(max_events, 2 ** math.ceil(math.log2(max(1024, 2 * components))))


def require_extendable(
    flow: Trajectory, t1: float, ts: Numbers | None
) -> tuple[PyTree, RunState, PyTree]:
    """Return the run behind a trajectory, its state, and the times to save.

    **Raises:** `ValueError` where the trajectory cannot be extended to `t1`, or saved at `ts`.
    """
    run, at = flow.reference.run, flow.continuation
    if run is None or at is None or is_traced(flow):
        raise extension_error(flow)
    if result_is(flow.result, RESULTS.event_occurred):
        raise ValueError(
            "this run ended at a terminating event; to go beyond, run it with `terminate=False`."
        )
    ts = validate_times(t1, ts)
    first = float(t1) if ts is None else float(np.asarray(ts)[0])
    if not first > float(flow.end):
        raise ValueError(
            f"`{'t1' if ts is None else 'ts'}` must lie beyond the run's end, {float(flow.end):g}, "
            f"got {first:g}."
        )
    return run, at, ts


def check_problem(
    problem: Problem, modified_rate: ArrayLike | None, kinks: AbstractKinks | None
) -> None:
    """Raise `ValueError` for a wrong number of time constants, or for no modified flow.

    There is none of several time constants, nor across kinks.
    """
    if modified_rate is not None:
        _require_smooth_gradient(problem, kinks)
    if problem.tau.ndim and modified_rate is not None:
        raise ValueError(
            "`modified_rate` asks for the modified flow, which has one step for all layers; give "
            "`tau` as one number."
        )
    if problem.tau.ndim:
        time_constants(problem.network, problem.tau)


def time_constants_argument(name: str, value: Any) -> PyTree:
    """Check time constants, one or one per layer: positive; traced ones when the program runs.

    Or a function of time, whose values are not known before.
    """
    if callable(value):
        return schedule_argument(name, value)
    if np.ndim(value) == 0 and not isinstance(value, (list, tuple)):
        return positive_at_run_time(name, value)
    value = real_array(name, value)
    if value.ndim != 1 or not value.size:
        raise argument_error(name, "a number, one per layer, or a function of time", value)
    if is_traced(value):
        return eqx.error_if(value, ~(value > 0), f"`{name}` must be positive, and was not.")
    for layer, one in enumerate(np.asarray(value)):
        positive(f"{name}[{layer}]", float(one))
    return value


def _require_smooth_gradient(problem: Problem, kinks: AbstractKinks | None) -> None:
    """Raise `ValueError` for a modified flow that does not exist.

    Where a step crosses a kink, descent keeps the old gate until the end of the step: for a share
    of it that depends on where it began. Its distance from any flow is of first order there.
    """
    if kink_places(problem) and (kinks is None or kinks.width is None):
        raise ValueError(
            "`modified_rate` asks for the modified flow, which needs a smooth gradient; that of "
            f"ReLUs, or of a loss with kinks, jumps, with `kinks` = {kinks}. Use "
            "`kinks=fl.SmoothKinks(width)` with a width well above the steps of preactivations, "
            "`network.frozen(task)`, or `fl.largest_learning_rate`, which measures descent itself."
        )


def decay_of(network: AbstractModel, weight_decay: Numbers | None) -> Decay | None:
    """Return the weight decay of a run: one rate, or one per layer of weights (L,); or None."""
    if weight_decay is None:
        return None
    rate = jnp.asarray(weight_decay, network.dtype)
    if rate.ndim and not isinstance(network, AbstractNetwork):
        raise ValueError(
            f"`weight_decay` must be one number for a {network.facts.name}, got shape "
            f"{rate.shape}: only flowlin's layered networks have layers that are known."
        )
    layers = len(network.hidden) + 1
    if rate.shape not in ((), (layers,)):
        raise ValueError(
            f"`weight_decay` must be a number or have shape ({layers},), one per layer, readout "
            f"included, got shape {rate.shape}."
        )
    return Decay(rate)


def require_saved_memory(
    network: AbstractModel, rows: int, name: str, value: object, remedy: str
) -> None:
    """Raise `ValueError` where so many copies of the parameters do not fit into memory."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(network.parameters))
    require_memory(name, value, rows * size, remedy)


def _solver_argument(name: str, value: object) -> diffrax.AbstractSolver:
    """Check that an argument is a solver of an ODE in one term that estimates its error."""
    said = "pass one such as diffrax.Tsit5() or diffrax.Kvaerno5()"
    value = instance_of(diffrax.AbstractSolver, "a diffrax solver", said)(name, value)
    term = value.term_structure
    if not (inspect.isclass(term) and issubclass(diffrax.ODETerm, term)):
        wanted = "a solver of an ordinary differential equation in one term"
        raise argument_error(name, wanted, value, said)
    if not isinstance(value, diffrax.AbstractAdaptiveSolver):
        kind = type(value).__name__
        remedy = f"{said}, or diffrax.HalfSolver(diffrax.{kind}()), which makes one of it"
        raise argument_error(name, "a solver that estimates its error", value, remedy)
    return value


def _adjoint_argument(name: str, value: object) -> diffrax.AbstractAdjoint:
    """Check that an argument is an adjoint that goes through all that a run records."""
    kinds = (diffrax.RecursiveCheckpointAdjoint, diffrax.DirectAdjoint, diffrax.ForwardMode)
    wanted = "diffrax.RecursiveCheckpointAdjoint(), ForwardMode() or DirectAdjoint()"
    return instance_of(kinds, wanted)(name, value)


def _observe_argument(name: str, value: object) -> dict[str, PyTree]:
    """Check that an argument holds functions of (network, task), or modes, by name."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        wanted = "a dictionary of functions of (network, task), named by strings"
        raise argument_error(name, wanted, value, "write it as {'norm': function}")
    check = function_of("network", "task")
    return {
        key: asked if isinstance(asked, Modes) else check(f"{name}[{key!r}]", asked)
        for key, asked in value.items()
    }


def progress_argument(name: str, value: object) -> object:
    """Check that an argument asks for a bar, for lines of a log, or for neither."""
    if not isinstance(value, (bool, LogProgress, diffrax.AbstractProgressMeter)):
        wanted = "True, False, fl.LogProgress() or a diffrax progress meter"
        raise argument_error(name, wanted, value)
    return value


def _weight_decay_argument(name: str, value: Any) -> PyTree:
    """Check that numbers are finite and zero or positive, of any shape.

    Traced ones are checked when the program runs.
    """
    value = finite_array(name, value)
    if is_traced(value):
        odd = ~((value >= 0) & (value < jnp.inf))
        return eqx.error_if(
            value, odd, f"`{name}` must be finite and zero or positive, and was not."
        )
    if np.any(np.asarray(value) < 0):
        raise argument_error(
            name, "zero or positive", np.min(np.asarray(value)), "it pulls to zero"
        )
    return value


_controller_argument = instance_of(
    diffrax.AbstractAdaptiveStepSizeController,
    "an adaptive step size controller of diffrax",
    "pass one such as diffrax.PIDController(rtol=1e-6, atol=1e-8)",
)

CHECKS_BY_NAME.update(
    adjoint=_adjoint_argument, observe=_observe_argument, solver=_solver_argument, ts=real_array
)
CHECKS_BY_NAME.update(stepsize_controller=_controller_argument, weight_decay=_weight_decay_argument)
