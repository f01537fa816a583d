"""Gradient flow: the continuous run."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowlin._arrays import ENABLE_X64, is_traced, require_positive
from flowlin.averaged import EVALUATIONS, FINEST, AveragedGates
from flowlin.events import (
    AbstractEvent,
    GateSwitches,
    Watch,
    logs_gates,
    user_watches,
)
from flowlin.exact import NO_SLOTS, TWO_LAYERS, UNSOLVED, ExactWalk, rule_for
from flowlin.field import AbstractObjective, GradientField, objective
from flowlin.kinks import (
    AbstractKinks,
    AveragedKinks,
    ExactKinks,
    IgnoreKinks,
    KinksWarning,
    suitable_kinks,
)
from flowlin.loss import Loss, SquaredError
from flowlin.network import AbstractNetwork, Parameters, ReLUNetwork
from flowlin.progress import progress_meter
from flowlin.recorder import Observer, Recorder, event_log
from flowlin.result import RESULTS, okay
from flowlin.rkc import RKC
from flowlin.task import Task
from flowlin.trajectory import Reference, Trajectory, finished
from flowlin.unrolled import Unrolled

Observe = dict[str, Callable[[AbstractNetwork, Task], Any]]


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
      Tsit5; for ReLU networks Tsit5 (smoothed kinks: at rtol <= 1e-6), else Bosh3. `fl.RKC()`
      suits stiff flows. `AveragedKinks` has its own.
    - `rtol`, `atol`: None is 1e-8 in float64 (1e-5 with `AveragedKinks`, which goes no finer) and
      1e-4 in float32, and rtol / 100.
    - `max_steps`, `max_events`: where to give up.
    - `adjoint`: how derivatives are taken; the default is reverse mode, `diffrax.ForwardMode()`
      for `jax.jvp`. Reverse mode keeps about sqrt(2 `max_steps`) checkpoints, each with the
      parameters and the log: give it `max_steps` and `max_events` near to what the run needs.
    - `progress`: True for a tqdm bar, or a diffrax progress meter.
    - `throw`: whether a run that fails raises; else `flow.result` says what happened.

    **Returns:** a `Trajectory`.

    **Raises:** `ValueError` for bad input; `fl.RunError`, which holds the partial trajectory, for
    a run that fails.
    """
    check_fit(network, task)
    _check(t1, ts, tau, rtol, atol, network.dtype)
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    if kinks is None or not isinstance(network, ReLUNetwork):
        kinks, why = suitable_kinks(network, task, solver)
    elif isinstance(kinks, AbstractKinks):
        why = "as asked for"
    else:
        raise ValueError(f"`kinks` must be an object such as fl.ExactKinks(), got {kinks!r}.")
    tau = jnp.asarray(tau, network.dtype)
    rtol = cast(float, _tolerance(rtol, kinks, network.dtype))
    if isinstance(kinks, ExactKinks) and not isinstance(solver, diffrax.AbstractERK | None):
        raise ValueError(
            f"`ExactKinks` walks with explicit Runge-Kutta solvers such as diffrax.Tsit5(); with "
            f"`solver` = {type(solver).__name__} use `kinks=fl.SmoothKinks(1e-4)`."
        )
    if isinstance(kinks, AveragedKinks):
        solver = _averaged(network, task, loss, tau, solver)
    solver = default_solver(network, kinks, rtol) if solver is None else solver
    goal = objective(network, task, loss, kinks)
    logged = (GateSwitches(),) if logs_gates(network, task, events, kinks) else ()
    watches = user_watches((*logged, *events), network, task, goal, kinks)
    run = _Run(
        network=network,
        task=task,
        loss=loss,
        kinks=kinks,
        objective=goal,
        tau=tau,
        watches=tuple(watches),
        observe=Observables(observe),
        solver=solver,
        controller=diffrax.PIDController(
            # As arrays: another tolerance is not another compilation.
            rtol=jnp.asarray(rtol, network.dtype),
            atol=jnp.asarray(rtol / 100 if atol is None else atol, network.dtype),
            dtmin=_smallest_step(t1, network.dtype),
            force_dtmin=False,
        ),
        adjoint=adjoint,
        meter=progress_meter(progress),
        t1=jnp.asarray(t1, network.dtype),
        ts=None if ts is None else jnp.asarray(ts, network.dtype),
        labels=(
            ("solver", type(solver).__name__),
            ("kinks", repr(kinks) if isinstance(network, ReLUNetwork) else "none"),
            ("kinks_because", why),
            ("objective", type(goal).__name__),
        ),
        reference=Reference(task, loss),
    )
    flow = _attempts(run, dense, max_steps, max_events)
    return finished(flow, throw, lambda f: _failure(f, max_steps, max_events))


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


def _averaged(network, task, loss, tau, solver) -> AveragedGates:
    """The solver of `AveragedKinks`, which takes no other."""
    if solver is not None:
        raise ValueError(
            f"`AveragedKinks` has a solver of its own; leave out `solver` = "
            f"{type(solver).__name__}, or pass other `kinks`."
        )
    return AveragedGates(network, task, loss, tau)


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


class Observables(eqx.Module):
    """The user's observables as one function; None for the networks' parameters."""

    functions: Observe | None

    def __call__(self, network: AbstractNetwork, task: Task) -> Any:
        if self.functions is None:
            return network.parameters
        return {name: f(network, task) for name, f in self.functions.items()}


class _Save(eqx.Module):
    """What is saved at each time: the loss and the observables."""

    objective: AbstractObjective
    network: AbstractNetwork
    task: Task
    observe: Observables

    def __call__(self, t: Any, parameters: Parameters, args: Any) -> tuple[Array, Any]:
        del t, args
        network = self.network.with_parameters(parameters)
        return self.objective.value(network), self.observe(network, self.task)


class _Run(eqx.Module):
    """Everything that defines a run, so that it can be jitted and attempted again."""

    network: AbstractNetwork
    task: Task
    loss: Loss
    kinks: AbstractKinks
    objective: AbstractObjective
    tau: Array
    watches: tuple[Watch, ...]
    observe: Observables
    solver: diffrax.AbstractSolver
    controller: diffrax.PIDController
    adjoint: diffrax.AbstractAdjoint
    meter: diffrax.AbstractProgressMeter
    t1: Array
    ts: Array | None
    labels: tuple[tuple[str, Any], ...] = eqx.field(static=True)
    reference: Reference = eqx.field(static=True)

    @eqx.filter_jit
    def solve(self, dense: bool, max_steps: int, capacity: int) -> Trajectory:
        """One attempt with room for `capacity` events."""
        solver, loop = self.solver, "checkpointed"
        if isinstance(self.adjoint, (diffrax.ForwardMode, diffrax.DirectAdjoint)):
            loop = "lax"
        field = GradientField(self.objective, self.network, self.tau)
        if isinstance(solver, RKC):
            solver = RKC(solver.max_stages, loop)
        if isinstance(self.kinks, ExactKinks):
            assert isinstance(self.network, ReLUNetwork)
            rule = rule_for(self.network, self.task, self.loss, self.tau, self.kinks.slots, loop)
            field = rule.flow
            inner = Unrolled(cast(Any, solver))
            rtol, atol = self.controller.rtol, self.controller.atol
            solver = ExactWalk(inner, rule, rtol, atol, capacity, loop=loop)
        if self.watches:
            solver = Recorder(solver, Observer(self.watches, self.network), capacity, loop)
        save = _Save(self.objective, self.network, self.task, self.observe)
        rows = (
            diffrax.SubSaveAt(t0=True, fn=save)
            if self.ts is None
            else diffrax.SubSaveAt(ts=self.ts, fn=save)
        )
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            solver,
            t0=jnp.zeros_like(self.t1),
            t1=self.t1,
            dt0=None,
            y0=self.network.parameters,
            saveat=diffrax.SaveAt(
                subs=[rows, diffrax.SubSaveAt(t1=True)], dense=dense, solver_state=True
            ),
            stepsize_controller=self.controller,
            adjoint=self.adjoint,
            max_steps=max_steps,
            progress_meter=self.meter,
            throw=False,
        )
        return self._trajectory(solution, save, dense)

    def _trajectory(self, solution: diffrax.Solution, save: _Save, dense: bool) -> Trajectory:
        """The solution with what the recorder found."""
        (ts, (end,)), (rows, last) = solution.ts, solution.ys  # pyright: ignore
        final, log = jax.tree.map(lambda a: a[0], last), None
        result = RESULTS.promote(solution.result)
        state: Any = solution.solver_state
        walk = state.inner if self.watches else state
        if self.watches:
            log = state.log
            if state.stopped is not None:
                ended = jnp.isfinite(log.end)
                end = jnp.minimum(end, log.end)
                result = RESULTS.where(ended, RESULTS.event_occurred, result)  # pyright: ignore
                final = jax.tree.map(lambda a, b: jnp.where(ended, a, b), state.stopped, final)
            overflow = log.count > log.time.shape[0]
            result = RESULTS.where(overflow & okay(result), RESULTS.event_overflow, result)
        events = event_log(log, Observer(self.watches, self.network), end)
        if isinstance(self.kinks, ExactKinks):
            overflow = walk.log.count > walk.log.time.shape[0]
            result = RESULTS.where(overflow & okay(result), RESULTS.event_overflow, result)
            for trouble, name in (
                (NO_SLOTS, RESULTS.slide_overflow),
                (UNSOLVED, RESULTS.modes_unsolved),
                (TWO_LAYERS, RESULTS.slides_in_two_layers),
            ):
                result = RESULTS.where(jnp.any(walk.modes.trouble == trouble), name, result)
            end = jnp.minimum(end, walk.end)
            events = walk.log.events(end, self.network.hidden).merged(events)
        if self.ts is None:
            ts = jnp.append(ts, end)
            last_row = save(end, final, None)
            rows = jax.tree.map(lambda a, b: jnp.append(a, b[None], axis=0), rows, last_row)
        # Rows past the event that ended the run were saved before it was known.
        kept = ts <= end
        losses, observed = rows
        finite = jnp.all(jnp.isfinite(losses) | ~kept)
        result = RESULTS.where(okay(result) & ~finite, RESULTS.not_finite, result)
        networks = self.observe.functions is None
        counts = {k: v for k, v in solution.stats.items() if k != "max_steps"}
        extra = {}
        if isinstance(self.solver, RKC):
            counts["accepted_evaluations"] = walk.evaluations
            extra["spectral_radius"] = walk.log.at(ts)
        if isinstance(self.solver, AveragedGates):
            counts["accepted_evaluations"] = 1 + EVALUATIONS * counts["num_accepted_steps"]
            counts["grazing_margin"] = walk.margin
        return Trajectory(
            ts=jnp.where(kept, ts, jnp.inf),
            losses=jnp.where(kept, losses, jnp.inf),
            observed=extra if networks else extra | observed,
            events=events,
            final=self.network.with_parameters(final),
            end=end,
            result=result,
            saved=observed if networks else None,
            counts=counts,
            labels=self.labels,
            dense=solution.interpolation if dense else None,  # pyright: ignore
            step_counts=None,
            samples=self.task.samples,
            reference=self.reference,
        )


def _attempts(run: _Run, dense: bool, max_steps: int, max_events: int) -> Trajectory:
    """Solve with small buffers first, and again with larger ones where they did not suffice."""
    components = sum(watch.channel.size for watch in run.watches)
    capacity = min(max_events, 2 ** math.ceil(math.log2(max(1024, 2 * components))))
    traced = is_traced(run)
    if traced:
        if dense and max_steps > 2**14:
            raise ValueError(
                f"`dense=True` under jit or vmap reserves memory for `max_steps` = {max_steps} "
                "steps; pass a `max_steps` of at most 16384."
            )
        return run.solve(dense, max_steps, max_events)
    flow = run.solve(False, max_steps, capacity)
    if capacity < max_events and bool(flow.result == RESULTS.event_overflow):
        capacity = max_events
        flow = run.solve(False, max_steps, capacity)
    if dense:
        # diffrax reserves memory for every step that could happen: reserve what did.
        taken = int(flow.counts["num_steps"])
        flow = run.solve(True, min(max_steps, 2 ** math.ceil(math.log2(taken + 1))), capacity)
    return flow


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


def _smallest_step(t1: Any, dtype: Any) -> Any:
    """Steps below this have lost the race against rounding."""
    return 16 * jnp.finfo(dtype).eps * t1


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


def check_fit(network: AbstractNetwork, task: Task) -> None:
    """Raise `ValueError` unless the network takes the task's inputs and gives its outputs."""
    if not isinstance(network, AbstractNetwork):
        raise ValueError(f"`network` must be a flowlin network, got {type(network).__name__}.")
    takes, gives = network.weights[0].shape[-1], network.weights[-1].shape[-2]
    if (takes, gives) != (task.inputs, task.outputs):
        raise ValueError(
            f"`network` maps {takes} inputs to {gives} outputs, but `task` {task.name!r} has "
            f"{task.inputs} inputs and {task.outputs} outputs."
        )
