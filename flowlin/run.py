"""A run of gradient flow: what defines it, its solve, and what comes of that."""

import math
from collections.abc import Callable
from typing import Any, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowlin._arrays import is_traced
from flowlin.averaged import EVALUATIONS, AveragedGates
from flowlin.events import Watch
from flowlin.exact import NO_SLOTS, TWO_LAYERS, UNSOLVED, ExactWalk, WalkState, rule_for
from flowlin.field import AbstractObjective, GradientField
from flowlin.kinks import AbstractKinks, ExactKinks
from flowlin.loss import Loss
from flowlin.network import AbstractNetwork, Parameters, ReLUNetwork
from flowlin.recorder import Log, Observer, Recorder, RecorderState, event_log
from flowlin.result import RESULTS, okay
from flowlin.rkc import RKC
from flowlin.task import Task
from flowlin.trajectory import Reference, Trajectory
from flowlin.unrolled import Unrolled

Observe = dict[str, Callable[[AbstractNetwork, Task], Any]]


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


class Run(eqx.Module):
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
        """The solution with what the recorder and the walk found."""
        (ts, (end,)), (rows, last) = solution.ts, solution.ys  # pyright: ignore
        state: Any = solution.solver_state
        found = _Found(
            RESULTS.promote(solution.result), end, jax.tree.map(lambda a: a[0], last), None
        )
        if self.watches:
            found = found.recorded(state)
            state = state.inner
        events = event_log(found.log, Observer(self.watches, self.network), found.end)
        if isinstance(self.kinks, ExactKinks):
            found = found.walked(state)
            events = state.log.events(found.end, self.network.hidden).merged(events)
        if self.ts is None:
            ts = jnp.append(ts, found.end)
            last_row = save(found.end, found.final, None)
            rows = jax.tree.map(lambda a, b: jnp.append(a, b[None], axis=0), rows, last_row)
        # Rows past the event that ended the run were saved before it was known.
        kept, (losses, observed) = ts <= found.end, rows
        finite = jnp.all(jnp.isfinite(losses) | ~kept)
        counts = {k: v for k, v in solution.stats.items() if k != "max_steps"}
        more_counts, more = _reported(self.solver, state, counts, ts)
        networks = self.observe.functions is None
        return Trajectory(
            ts=jnp.where(kept, ts, jnp.inf),
            losses=jnp.where(kept, losses, jnp.inf),
            observed=more if networks else more | observed,
            events=events,
            final=self.network.with_parameters(found.final),
            end=found.end,
            result=found.unless(~finite, RESULTS.not_finite).result,
            saved=observed if networks else None,
            counts=counts | more_counts,
            labels=self.labels,
            dense=solution.interpolation if dense else None,  # pyright: ignore
            step_counts=None,
            samples=self.task.samples,
            reference=self.reference,
        )


class _Found(eqx.Module):
    """How a run ended, as far as is known: its result, when, where, and the user's events."""

    result: Any
    end: Array
    final: Parameters
    log: Log | None

    def unless(self, failed: Array, why: Any) -> "_Found":
        """With the result `why` where something `failed` that was fine until now."""
        result = RESULTS.where(failed & okay(self.result), why, self.result)
        return _Found(result, self.end, self.final, self.log)

    def recorded(self, state: RecorderState) -> "_Found":
        """With what a recorder found: its log, and the event that ended the run if one did."""
        log, result, end, final = state.log, self.result, self.end, self.final
        if state.stopped is not None:
            ended = jnp.isfinite(log.end)
            end = jnp.minimum(end, log.end)
            result = RESULTS.where(ended, RESULTS.event_occurred, result)  # pyright: ignore
            final = jax.tree.map(lambda a, b: jnp.where(ended, a, b), state.stopped, final)
        full = log.count > log.time.shape[0]
        return _Found(result, end, final, log).unless(full, RESULTS.event_overflow)

    def walked(self, state: WalkState) -> "_Found":
        """With what an exact walk found: the event that it could not decide, if one was."""
        found = self.unless(state.log.count > state.log.time.shape[0], RESULTS.event_overflow)
        result = found.result
        for trouble, why in (
            (NO_SLOTS, RESULTS.slide_overflow),
            (UNSOLVED, RESULTS.modes_unsolved),
            (TWO_LAYERS, RESULTS.slides_in_two_layers),
        ):
            result = RESULTS.where(jnp.any(state.modes.trouble == trouble), why, result)
        return _Found(result, jnp.minimum(self.end, state.end), self.final, self.log)


def _reported(solver: Any, state: Any, counts: dict[str, Any], ts: Array) -> tuple[dict, dict]:
    """Counts and observables (T, ...) that a solver of the library keeps in its state."""
    if isinstance(solver, RKC):
        radius = state.log.at(ts)
        return {"accepted_evaluations": state.evaluations}, {"spectral_radius": radius}
    if isinstance(solver, AveragedGates):
        evaluations = 1 + EVALUATIONS * counts["num_accepted_steps"]
        return {"accepted_evaluations": evaluations, "grazing_margin": state.margin}, {}
    return {}, {}


def attempts(run: Run, dense: bool, max_steps: int, max_events: int) -> Trajectory:
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
