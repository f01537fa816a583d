"""What a flow uses where its caller leaves it open, and whether what is given can be run."""

import warnings
from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np

from flowlin._arrays import ENABLE_X64, is_traced, require_positive
from flowlin.averaged import FINEST, AveragedGates
from flowlin.field import AbstractObjective, Modified, objective
from flowlin.kinks import (
    AbstractKinks,
    AveragedKinks,
    ExactKinks,
    IgnoreKinks,
    KinksWarning,
    SmoothKinks,
    suitable_kinks,
)
from flowlin.loss import Loss
from flowlin.network import AbstractNetwork, ReLUNetwork
from flowlin.precision import tell_digits
from flowlin.task import Task


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
    if not isinstance(kinks, AbstractKinks):
        raise ValueError(f"`kinks` must be an object such as fl.ExactKinks(), got {kinks!r}.")
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
    tell_digits(dtype, stacklevel=3)
    averaged = isinstance(kinks, AveragedKinks)
    if rtol is None and dtype != jnp.float64:
        return 1e-5 if isinstance(kinks, ExactKinks) else 1e-4
    if rtol is None:
        return FINEST if averaged else 1e-8
    if not averaged:
        return rtol
    if not is_traced(rtol) and rtol < FINEST:
        warnings.warn(
            f"`rtol` = {rtol:g} is finer than `AveragedKinks` can use: its steps would creep from "
            f"switch to switch. {FINEST:g} is used instead.",
            KinksWarning,
            stacklevel=3,
        )
    return jnp.maximum(rtol, FINEST) if is_traced(rtol) else max(rtol, FINEST)


def check_options(network, t1, ts, tau, rtol, atol, learning_rate, kinks) -> None:
    """Raise `ValueError` for times, tolerances or a modified flow that cannot be."""
    check_times(t1, ts)
    require_positive("tau", tau)
    if rtol is not None:
        _check_rtol(rtol, network.dtype)
    if atol is not None:
        require_positive("atol", atol)
    if learning_rate is not None:
        _check_modified(network, learning_rate, kinks)


def _check_rtol(rtol: Any, dtype: Any) -> None:
    require_positive("rtol", rtol)
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


def check_times(t1: Any, ts: Any) -> None:
    """Raise `ValueError` unless all of `ts` lie in [0, t1], ascending."""
    require_positive("t1", t1)
    if ts is None or is_traced(ts):
        return
    times = np.asarray(ts)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"`ts` must be a non-empty list of times, got shape {times.shape}.")
    if not np.all(np.diff(times) > 0):
        raise ValueError("`ts` must be strictly ascending; sort it and drop duplicates.")
    if times[0] < 0 or (not is_traced(t1) and times[-1] > float(t1)):
        raise ValueError(
            f"`ts` runs from {times[0]:g} to {times[-1]:g}, outside the run's [0, t1 = "
            f"{float(t1):g}]."
        )


def _check_modified(network: AbstractNetwork, learning_rate: Any, kinks: Any) -> None:
    """Raise `ValueError` for a modified flow that does not exist.

    Where a step crosses a kink, descent keeps the old gate until its end: for a share of the step
    that depends on where the step began. Its distance from any flow is of first order there.
    """
    require_positive("learning_rate", learning_rate)
    if isinstance(network, ReLUNetwork) and not isinstance(kinks, SmoothKinks):
        raise ValueError(
            "`learning_rate` asks for the modified flow, which needs a smooth gradient; a ReLU "
            f"network's jumps, with `kinks` = {kinks}. Use `kinks=fl.SmoothKinks(width)` with a "
            "width well above the steps of the preactivations, `network.frozen(task)`, or "
            "`fl.largest_learning_rate`, which measures descent itself."
        )


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
