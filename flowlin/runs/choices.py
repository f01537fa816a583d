"""What a flow uses where its caller leaves it open, and whether what is given can be run."""

import inspect
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from flowlin._tools.arrays import ENABLE_X64, is_traced
from flowlin._tools.checks import WORDS, array, function_of, instance, refuse, require_memory
from flowlin._tools.warning import warn
from flowlin.field.kinks import (
    AbstractKinks,
    AveragedKinks,
    ExactKinks,
    IgnoreKinks,
    KinksWarning,
    SmoothKinks,
    suitable_kinks,
)
from flowlin.field.objective import AbstractObjective, Modified
from flowlin.field.vector_field import objective
from flowlin.loss import Loss
from flowlin.network.kinds import AbstractNetwork, ReLUNetwork
from flowlin.runs.precision import tell_digits
from flowlin.solvers.averaged import FINEST, AveragedGates
from flowlin.tasks.task import Task


def default_solver(
    network: AbstractNetwork, kinks: AbstractKinks, rtol: float
) -> diffrax.AbstractSolver:
    """Chosen by `benchmarks/solvers.py`."""
    if isinstance(network, ReLUNetwork):
        # Kinks limit the order: a low-order method wins until the tolerance resolves the width. In
        # exact walks they limit the steps, which are short enough for one.
        bare = isinstance(kinks, IgnoreKinks)
        return diffrax.Bosh3() if bare or rtol > 1e-6 else diffrax.Tsit5()
    return diffrax.Dopri8() if rtol <= 1e-6 else diffrax.Tsit5()


def chosen_solver(
    network, task, loss, tau, kinks, solver, rtol
) -> tuple[diffrax.AbstractSolver, str]:
    """The given solver where it suits the kinks, or the one that does, and why."""
    if isinstance(kinks, AveragedKinks):
        if solver is not None:
            raise ValueError(
                f"`AveragedKinks` has a solver of its own; leave out `solver` = "
                f"{type(solver).__name__}, or pass other `kinks`."
            )
        return AveragedGates(network, task, loss, tau), "the solver of averaged kinks"
    if solver is None:
        return default_solver(network, kinks, rtol), "the default; stiffness was not measured"
    if isinstance(kinks, ExactKinks) and not isinstance(solver, diffrax.AbstractERK):
        raise ValueError(
            f"`ExactKinks` walks with explicit Runge-Kutta solvers such as diffrax.Tsit5(); with "
            f"`solver` = {type(solver).__name__} use `kinks=fl.SmoothKinks(1e-4)`."
        )
    return solver, "as asked for"


def chosen_kinks(network, task, kinks, solver) -> tuple[AbstractKinks, str]:
    """The given kinks, or those that suit the run, and why."""
    if kinks is None or not isinstance(network, ReLUNetwork):
        return suitable_kinks(network, task, solver)
    return kinks, "as asked for"


def controller(rtol: Any, atol: Any, t1: Any, dtype: Any) -> diffrax.PIDController:
    """Step size control. Tolerances are arrays: another one is not another compilation."""
    return diffrax.PIDController(
        rtol=jnp.asarray(rtol, dtype),
        atol=jnp.asarray(rtol / 100 if atol is None else atol, dtype),
        # Steps below this have lost the race against rounding.
        dtmin=16 * jnp.finfo(dtype).eps * t1,
        force_dtmin=False,
    )


def tolerance(rtol: Any, kinks: AbstractKinks, dtype: Any) -> Any:
    """The run's rtol: its default, and not finer than averaged kinks can use.

    Exact walks in float32 take a finer one than other runs do (`benchmarks/precision.py`): they
    hold it, and are spared events that are errors of the steps.
    """
    tell_digits(dtype)
    averaged = isinstance(kinks, AveragedKinks)
    if rtol is None and dtype != jnp.float64:
        return 1e-5 if isinstance(kinks, ExactKinks) else 1e-4
    if rtol is None:
        return FINEST if averaged else 1e-8
    if not averaged:
        return rtol
    if not is_traced(rtol) and rtol < FINEST:
        warn(
            f"`rtol` = {rtol:g} is finer than `AveragedKinks` can use: its steps would creep from "
            f"switch to switch. {FINEST:g} is used instead.",
            KinksWarning,
        )
    return jnp.maximum(rtol, FINEST) if is_traced(rtol) else max(rtol, FINEST)


def check_options(network, rtol, learning_rate, kinks) -> None:
    """Raise `ValueError` for a tolerance or a modified flow that cannot be."""
    if rtol is not None:
        _check_rtol(rtol, network.dtype)
    if learning_rate is not None:
        _check_modified(network, kinks)


def _check_rtol(rtol: Any, dtype: Any) -> None:
    finest = 10 * float(jnp.finfo(dtype).eps)
    if not is_traced(rtol) and float(rtol) < finest:
        remedy = (
            f"switch to float64 before any array is made: {ENABLE_X64}"
            if dtype == jnp.float32
            else "loosen it"
        )
        raise ValueError(
            f"`rtol` = {rtol:g} is finer than {dtype} can hold ({finest:.1e}); {remedy}."
        )


def chosen_times(t1: Any, ts: Any) -> Any:
    """The times to save, which lie in [0, t1], ascending; what is past t1 by rounding is t1."""
    if ts is None or is_traced(ts):
        return ts
    times = np.asarray(ts, float)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"`ts` must be a non-empty list of times, got shape {times.shape}.")
    if np.isnan(times).any():
        raise ValueError(f"`ts` holds {np.isnan(times).sum()} NaN among {times.size} times.")
    if not is_traced(t1):
        ulp = max(float(jnp.finfo(jnp.result_type(float, value)).eps) for value in (ts[0], t1))
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


def _check_modified(network: AbstractNetwork, kinks: Any) -> None:
    """Raise `ValueError` for a modified flow that does not exist.

    Where a step crosses a kink, descent keeps the old gate until its end: for a share of the step
    that depends on where the step began. Its distance from any flow is of first order there.
    """
    if isinstance(network, ReLUNetwork) and not isinstance(kinks, SmoothKinks):
        raise ValueError(
            "`learning_rate` asks for the modified flow, which needs a smooth gradient; a ReLU "
            f"network's jumps, with `kinks` = {kinks}. Use `kinks=fl.SmoothKinks(width)` with a "
            "width well above the steps of the preactivations, `network.frozen(task)`, or "
            "`fl.largest_learning_rate`, which measures descent itself."
        )


def require_room(network: AbstractNetwork, rows: int, name: str, value: Any, remedy: str) -> None:
    """Raise `ValueError` where so many copies of the parameters do not fit into memory."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(network.parameters))
    require_memory(name, value, rows * size, remedy)


def chosen_objective(
    network: AbstractNetwork, task: Task, loss: Loss, kinks: AbstractKinks, learning_rate: Any
) -> AbstractObjective:
    """What the flow descends: the loss, or that of the modified flow."""
    plain = objective(network, task, loss, kinks)
    if learning_rate is None:
        return plain
    return Modified(plain, jnp.asarray(learning_rate, network.dtype))


def labels(
    network: AbstractNetwork,
    solver: tuple[diffrax.AbstractSolver, str],
    kinks: tuple[AbstractKinks, str],
    goal: AbstractObjective,
) -> tuple[tuple[str, str], ...]:
    """What was chosen and why, for `flow.stats`."""
    return (
        ("solver", type(solver[0]).__name__),
        ("solver_because", solver[1]),
        ("kinks", repr(kinks[0]) if isinstance(network, ReLUNetwork) else "none"),
        ("kinks_because", kinks[1]),
        ("objective", goal.label),
    )


def _solver(name: str, value: Any) -> diffrax.AbstractSolver:
    """A solver of ordinary differential equations that estimates its error."""
    said = "pass one such as diffrax.Tsit5() or diffrax.Kvaerno5()"
    value = instance(diffrax.AbstractSolver, "a diffrax solver", said)(name, value)
    term = value.term_structure
    if not (inspect.isclass(term) and issubclass(diffrax.ODETerm, term)):
        wanted = "a solver of an ordinary differential equation in one term"
        raise refuse(name, wanted, value, said)
    if not isinstance(value, diffrax.AbstractAdaptiveSolver):
        kind = type(value).__name__
        remedy = f"{said}, or diffrax.HalfSolver(diffrax.{kind}()), which makes one of it"
        raise refuse(name, "a solver that estimates its error", value, remedy)
    return value


def _adjoint(name: str, value: Any) -> diffrax.AbstractAdjoint:
    """How derivatives are taken: the ways that go through all that a run records."""
    kinds = (diffrax.RecursiveCheckpointAdjoint, diffrax.DirectAdjoint, diffrax.ForwardMode)
    wanted = "diffrax.RecursiveCheckpointAdjoint(), ForwardMode() or DirectAdjoint()"
    return instance(kinds, wanted)(name, value)


def _observe(name: str, value: Any) -> dict[str, Any]:
    """Functions of (network, task) by name."""
    named = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if not named:
        wanted = "a dictionary of functions of (network, task), named by strings"
        raise refuse(name, wanted, value, "write it as {'norm': function}")
    check = function_of("network", "task")
    return {key: check(f"{name}[{key!r}]", f) for key, f in value.items()}


def meter(name: str, value: Any) -> Any:
    """Whether there is a bar, or which."""
    if not isinstance(value, (bool, diffrax.AbstractProgressMeter)):
        raise refuse(name, "True, False or a diffrax progress meter", value)
    return value


WORDS.update(adjoint=_adjoint, observe=_observe, solver=_solver, ts=array)
