"""Gradient flow: the continuous run."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, cast

import diffrax
import jax.numpy as jnp
import numpy as np

from flowlin._arrays import ENABLE_X64, is_traced, require_positive
from flowlin.averaged import FINEST, AveragedGates
from flowlin.checkpoint import Checkpoint
from flowlin.drive import AbstractPause, Limits, drive, is_paused
from flowlin.events import AbstractEvent, GateSwitches, logs_gates, user_watches
from flowlin.field import objective
from flowlin.kinks import (
    AbstractKinks,
    AveragedKinks,
    ExactKinks,
    IgnoreKinks,
    KinksWarning,
    suitable_kinks,
)
from flowlin.loss import Loss, SquaredError
from flowlin.network import AbstractNetwork, ReLUNetwork, check_fit
from flowlin.progress import Bar, progress_meter
from flowlin.result import RESULTS
from flowlin.run import Observables, Observe, Run
from flowlin.stiffness import StiffnessCheck
from flowlin.storage import Path
from flowlin.task import Task
from flowlin.trajectory import Reference, Trajectory, finished


def gradient_flow(
    network: AbstractNetwork,
    task: Task,
    t1: float,
    *,
    ts: Any = None,
    dense: bool = False,
    loss: Loss = SquaredError(),
    tau: Any = 1.0,
    events: Sequence[AbstractEvent] = (),
    observe: Observe | None = None,
    kinks: AbstractKinks | None = None,
    solver: diffrax.AbstractSolver | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 2**20,
    max_events: int = 2**16,
    adjoint: diffrax.AbstractAdjoint = diffrax.RecursiveCheckpointAdjoint(),
    progress: bool | diffrax.AbstractProgressMeter = False,
    checkpoint: Path | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Gradient flow $\tau\, \dot w = -\nabla L(w)$ from t = 0 to `t1`.

    **Arguments:**

    - `network`: the initial network. Its weights and biases move, nothing else does.
    - `task`: what it is trained on; taken to the network's precision.
    - `t1`: final time, in the units of tau (see `fl.StepClock` for descent steps).
    - `ts`: times to save, ascending in [0, t1]; None saves 0 and the end.
    - `dense`: whether `flow.network(t)` works for every t. The run is then done twice, first to
      count its steps; memory is steps x stages x parameters (for an exact walk times 8 pieces).
    - `loss`: `SquaredError()` or `CrossEntropy()`.
    - `tau`: time constant.
    - `events`: `Crossing`, `ModeHits`, `LossBelow`, `UnitSwitches`. A ReLU network with up to
      10,000 (unit, sample) pairs logs its gates besides.
    - `observe`: `{name: function(network, task)}`, recorded at `ts` **instead of** the networks.

    Other arguments, which most people never need:

    - `kinks`: of a ReLU network; None takes, up to 10,000 (unit, sample) pairs, `ExactKinks()`
      for one hidden layer and `SmoothKinks(1e-4)` for more, and beyond `AveragedKinks()` for one
      hidden layer without a `solver`, else `IgnoreKinks()`; `flow.stats` says which and why, and
      what is not exact warns (`fl.KinksWarning`).
    - `solver`: any diffrax solver; None takes Dopri8 for smooth flows at rtol <= 1e-6, else
      Tsit5; for ReLU networks Tsit5 (smoothed kinks: at rtol <= 1e-6), else Bosh3; and goes on
      with `fl.RKC()` where stiffness is measured during the run and RKC comes further per
      evaluation (not under `jit` or `vmap`, with `dense`, or with exact kinks). `AveragedKinks`
      has its own. `flow.stats` says which and why.
    - `rtol`, `atol`: None is 1e-8 in float64 (1e-5 with `AveragedKinks`, which goes no finer) and
      1e-4 in float32, and rtol / 100.
    - `max_steps`, `max_events`: where to give up.
    - `adjoint`: how derivatives are taken; the default is reverse mode, `diffrax.ForwardMode()`
      for `jax.jvp`. Reverse mode keeps about sqrt(2 `max_steps`) checkpoints, each with the
      parameters and the log: give it `max_steps` and `max_events` near to what the run needs.
    - `progress`: True for a tqdm bar with loss, steps, speed and the time left, silent where
      standard error is not a terminal; or a diffrax progress meter.
    - `checkpoint`: a file that the run's state and trajectory are written to about every half
      minute and at the end, atomically. The same call finds the file and goes on from there, or
      returns at once what had come out. A run that was killed and resumed equals one that was
      not, bit for bit. Functions in `events` and `observe` are known by their names alone.
    - `throw`: whether a run that fails raises; else `flow.result` says what happened.

    **Returns:** a `Trajectory`.

    **Raises:** `ValueError` for bad input; `fl.RunError`, which holds the partial trajectory, for
    a run that fails.
    """
    check_fit(network, task)
    _check(t1, ts, tau, rtol, atol, network.dtype)
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    kinks, why = _kinks(network, task, kinks, solver)
    tau = jnp.asarray(tau, network.dtype)
    rtol = cast(float, _tolerance(rtol, kinks, network.dtype))
    method, method_why = _solver(network, task, loss, tau, kinks, solver, rtol)
    goal = objective(network, task, loss, kinks)
    logged = (GateSwitches(),) if logs_gates(network, task, events, kinks) else ()
    watches = user_watches((*logged, *events), network, task, goal, kinks)
    run = Run(
        network=network,
        task=task,
        loss=loss,
        kinks=kinks,
        objective=goal,
        tau=tau,
        watches=tuple(watches),
        observe=Observables(observe),
        solver=method,
        controller=_controller(rtol, atol, t1, network.dtype),
        adjoint=adjoint,
        meter=diffrax.NoProgressMeter(),
        t1=jnp.asarray(t1, network.dtype),
        ts=None if ts is None else jnp.asarray(ts, network.dtype),
        labels=(
            ("solver", type(method).__name__),
            ("solver_because", method_why),
            ("kinks", repr(kinks) if isinstance(network, ReLUNetwork) else "none"),
            ("kinks_because", why),
            ("objective", type(goal).__name__),
        ),
        reference=Reference(task, loss),
        capacity=_capacity(watches, max_events),
    )
    solve = _traced if is_traced(run) else _driven
    flow = solve(run, dense, Limits(max_steps, max_events), solver is None, progress, checkpoint)
    return finished(flow, throw, lambda f: _failure(f, max_steps, max_events))


def extended(
    flow: Trajectory, t1: float, ts: Any, max_steps: int, max_events: int, progress: bool, throw
) -> Trajectory:
    """See `Trajectory.extend`."""
    run, at = flow.reference.run, flow.continuation
    if run is None or at is None or is_traced(flow):
        raise ValueError(
            "this trajectory cannot be extended: only flows can, and only where they were "
            "computed, without `dense=True`, outside of `jit` and `vmap`. Rerun it with a later "
            "`t1`."
        )
    if bool(flow.result == RESULTS.event_occurred):
        raise ValueError(
            "this run ended at a terminating event; to go beyond, run it with `terminate=False`."
        )
    _check(t1, ts, run.tau, None, None, run.network.dtype)
    first = float(t1) if ts is None else float(np.asarray(ts)[0])
    if not first > float(flow.end):
        raise ValueError(
            f"`{'t1' if ts is None else 'ts'}` must lie beyond the run's end, {float(flow.end):g}, "
            f"got {first:g}."
        )
    dtype = run.network.dtype
    run = dataclasses.replace(
        run, t1=jnp.asarray(t1, dtype), ts=None if ts is None else jnp.asarray(ts, dtype)
    )
    limits = Limits(int(at.counts["num_steps"]) + max_steps, max_events)
    pauses: list[AbstractPause] = [Bar(run, float(at.t))] if progress else []
    longer = drive(run, limits, pauses, at, flow)
    return finished(longer, throw, lambda f: _failure(f, max_steps, max_events))


def _capacity(watches: Sequence[Any], max_events: int) -> int:
    """Of the first logs; they grow where that does not suffice."""
    components = sum(watch.channel.size for watch in watches)
    return min(max_events, 2 ** math.ceil(math.log2(max(1024, 2 * components))))


def _traced(
    run: Run, dense: bool, limits: Limits, automatic: bool, progress: Any, checkpoint: Any
) -> Trajectory:
    """A run under `jit`, `vmap` or a derivative: one solve with all the room it may need."""
    del automatic  # the solver stays: choosing another needs numbers
    if checkpoint is not None:
        raise ValueError("`checkpoint` is for runs outside of `jit` and `vmap`; leave it out.")
    if dense and limits.steps > 2**14:
        raise ValueError(
            f"`dense=True` under jit or vmap reserves memory for `max_steps` = {limits.steps} "
            "steps; pass a `max_steps` of at most 16384."
        )
    run = dataclasses.replace(run.with_capacity(limits.events), meter=progress_meter(progress))
    whole = jnp.asarray(limits.steps)
    flow = run.solve(None, whole, whole, dense=dense, max_steps=limits.steps)
    return dataclasses.replace(flow, continuation=None)


def _driven(
    run: Run, dense: bool, limits: Limits, automatic: bool, progress: Any, checkpoint: Any
) -> Trajectory:
    """A run outside of them, which can pause."""
    pauses: list[AbstractPause] = []
    start = before = None
    if checkpoint is not None:
        if dense:
            raise ValueError("`checkpoint` does not keep dense output; save at `ts` instead.")
        file = Checkpoint(checkpoint, run)
        pauses.append(file)
        if found := file.resumed(run):
            run, start, before = found
            if not is_paused(before, limits):
                return before.of(run)
    if automatic and not dense and not isinstance(run.kinks, (ExactKinks, AveragedKinks)):
        pauses.insert(0, StiffnessCheck(run))  # before a checkpoint, which then holds the choice
    if isinstance(progress, diffrax.AbstractProgressMeter):
        run = dataclasses.replace(run, meter=progress)
    elif progress:
        pauses.append(Bar(run, 0.0 if start is None else float(start.t)))
    flow = drive(run, limits, pauses, start, before)
    if not dense:
        return flow
    # diffrax reserves memory for every step that could happen: reserve what did.
    room = 2 ** math.ceil(math.log2(int(flow.counts["num_steps"]) + 1))
    run = dataclasses.replace(flow.reference.run, meter=diffrax.NoProgressMeter())
    whole = jnp.asarray(limits.steps)
    flow = run.solve(None, whole, whole, dense=True, max_steps=room)
    return dataclasses.replace(flow, continuation=None)


def default_solver(
    network: AbstractNetwork, kinks: AbstractKinks, rtol: float
) -> diffrax.AbstractSolver:
    """Chosen by `benchmarks/solvers.py`, except for exact walks, which it does not compare yet."""
    if isinstance(kinks, ExactKinks):
        return diffrax.Tsit5()
    if isinstance(network, ReLUNetwork):
        # Kinks limit the order: a low-order method wins until the tolerance resolves the width.
        bare = isinstance(kinks, IgnoreKinks)
        return diffrax.Bosh3() if bare or rtol > 1e-6 else diffrax.Tsit5()
    return diffrax.Dopri8() if rtol <= 1e-6 else diffrax.Tsit5()


def _solver(network, task, loss, tau, kinks, solver, rtol) -> tuple[diffrax.AbstractSolver, str]:
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


def _kinks(network, task, kinks, solver) -> tuple[AbstractKinks, str]:
    """The given kinks, or those that suit the run, and why."""
    if kinks is None or not isinstance(network, ReLUNetwork):
        return suitable_kinks(network, task, solver)
    if not isinstance(kinks, AbstractKinks):
        raise ValueError(f"`kinks` must be an object such as fl.ExactKinks(), got {kinks!r}.")
    return kinks, "as asked for"


def _controller(rtol: Any, atol: Any, t1: Any, dtype: Any) -> diffrax.PIDController:
    """Step size control. Tolerances are arrays: another one is not another compilation."""
    return diffrax.PIDController(
        rtol=jnp.asarray(rtol, dtype),
        atol=jnp.asarray(rtol / 100 if atol is None else atol, dtype),
        # Steps below this have lost the race against rounding.
        dtmin=16 * jnp.finfo(dtype).eps * t1,
        force_dtmin=False,
    )


def _tolerance(rtol: Any, kinks: AbstractKinks, dtype: Any) -> Any:
    """The run's rtol: its default, and not finer than averaged kinks can use."""
    averaged = isinstance(kinks, AveragedKinks)
    if rtol is None:
        return 1e-4 if dtype != jnp.float64 else FINEST if averaged else 1e-8
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


def _failure(flow: Trajectory, max_steps: int, max_events: int) -> str:
    """What went wrong and what to do about it."""
    reached = f"t = {float(flow.end):.6g} after {int(flow.counts['num_steps'])} steps"
    sliding = "a ReLU flow that slides on its kinks needs `kinks=fl.SmoothKinks(...)`"
    if bool(flow.result == RESULTS.max_steps_reached):
        return (
            f"`max_steps` = {max_steps} reached at {reached}. Increase it, or loosen `rtol`; "
            f"{sliding}."
        )
    if bool(flow.result == RESULTS.dt_min_reached):
        return (
            f"the step size shrank to nothing at {reached}: the loss is not finite there, or its "
            f"gradient jumps; {sliding}."
        )
    if bool(flow.result == RESULTS.event_overflow):
        return (
            f"{int(flow.events.count)} events happened and `max_events` = {max_events}. Increase "
            "it, watch fewer components, or end the run earlier."
        )
    if bool(flow.result == RESULTS.slides_in_two_layers):
        layer, unit, sample = flow.events.select("gate").index[-1]
        return (
            f"sample {sample} slides in two layers at once at {reached}: unit {unit} of layer "
            f"{layer} reached its kink and can neither cross nor go back. `ExactKinks` stops "
            "there; use `kinks=fl.SmoothKinks(...)`, or end the run before."
        )
    return f"{RESULTS[flow.result]}, at {reached}."


def _check(t1, ts, tau, rtol, atol, dtype) -> None:
    require_positive("t1", t1)
    require_positive("tau", tau)
    if rtol is not None:
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
    if atol is not None:
        require_positive("atol", atol)
    if ts is not None and not is_traced(ts):
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
