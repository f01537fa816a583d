"""A run of gradient flow: what defines it, its solve, and the trajectory that comes of it."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from flowlin._tools.arrays import Parameters, as_parameters, copied
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.kinks.sides import NO_SLOTS, UNSOLVED
from flowlin.engine.kinks.walk import WalkState
from flowlin.engine.method import Method, nature
from flowlin.engine.mode_frame import Dense, Turned
from flowlin.engine.observables import Observables
from flowlin.engine.recorder import Recorder, RecorderState, event_log
from flowlin.engine.run import ROOM, AbstractRun, Effort, Limits, is_paused
from flowlin.engine.signals import PAUSED
from flowlin.engine.solvers.recycled_bdf import RecycledBDF
from flowlin.engine.solvers.rkc import RKC
from flowlin.engine.step_control import (
    Counting,
    Pausing,
    PausingState,
    begun,
    gone,
    reported,
    shortest,
)
from flowlin.events.watch import Observer, Watch, named, unnamed
from flowlin.networks.base import AbstractModel, moving
from flowlin.record.buffer import Buffer
from flowlin.record.event_log import gate_log
from flowlin.record.results import RESULTS, okay
from flowlin.record.trajectory import Continuation, Reference, Trajectory, trimmed
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective, Modified
from flowlin.training.problem import Problem

COUNTS = ("num_steps", "num_accepted_steps", "num_rejected_steps")


class _Save(eqx.Module):
    """The function of a saved time that returns the loss and the observables there."""

    objective: AbstractObjective
    network: AbstractModel
    task: Task
    observe: Observables
    trained: tuple[bool, ...] | None = eqx.field(static=True)
    back: Callable[[Parameters], Parameters] | None

    def __call__(self, t: Any, parameters: Parameters, args: Any) -> tuple[Array, Any]:
        del t, args
        network = self.network.with_parameters(as_parameters(self.back, parameters))
        kept = moving(network.parameters, self.trained)
        return self.objective.value(network), self.observe(network, kept, self.task)


class Allowance(eqx.Module):
    """Limits of one solve: how many steps it may take before it comes back.

    - `accepted`, `tried`: after so many steps it comes back.
    - `room`: for so many tried steps memory is reserved where that is needed.
    """

    accepted: Array
    tried: Array
    room: int = eqx.field(static=True)

    @staticmethod
    def whole(steps: int, room: int) -> "Allowance":
        """Return limits for a run that does not pause."""
        return Allowance(jnp.asarray(steps), jnp.asarray(steps), room)


class Run(AbstractRun):
    """A run of gradient flow, so that it can be compiled and attempted again.

    - `problem`, `method`: what is solved, and how.
    - `watches`, `observe`: functions evaluated in every step, and at the saved times.
    - `t1`, `ts`: the end, and the times to save; None saves both ends.
    - `capacity`: of the logs.
    - `reference`: facts of the run that travel with the trajectory.
    - `turned`: the problem in its modes' coordinates, where it is solved in these.
    """

    problem: Problem
    method: Method
    watches: tuple[Watch, ...]
    observe: Observables
    t1: Array
    ts: Array | None
    meter: diffrax.AbstractProgressMeter
    capacity: int = eqx.field(static=True)
    reference: Reference = eqx.field(static=True)
    turned: Turned | None = None

    @property
    def solved_by(self) -> tuple[Problem, Method]:
        """The problem that is solved, and the method."""
        if self.turned is None:
            return self.problem, self.method
        goal = self.turned.objective
        return self.turned.problem, copied(self.method, objective=goal)

    @property
    def back(self) -> Callable[[Parameters], Parameters] | None:
        """The map from solver states to parameters; None where they are the same."""
        return None if self.turned is None else self.turned.frame.back

    def at(self, state: Parameters) -> AbstractModel:
        """Return the network at a solver's state."""
        return self.network.with_parameters(as_parameters(self.back, state))

    @property
    def network(self) -> AbstractModel:
        """The network at t = 0."""
        return self.problem.network

    @property
    def parameters(self) -> Any:
        """The parameters that move, at t = 0."""
        return self.problem.parameters

    @property
    def task(self) -> Task:
        """The task that it is trained on."""
        return self.problem.task

    @property
    def objective(self) -> AbstractObjective:
        """The objective that it descends."""
        return self.method.objective

    @property
    def observables(self) -> Observables:
        """The user's observables."""
        return self.observe

    @property
    def horizon(self) -> float:
        """The time at which it ends."""
        return float(self.t1)

    @property
    def effort(self) -> Effort:
        """The cost of a step."""
        return Effort(self.problem.task.samples, 5e-4 if self.method.kinks.walks else 1e-4)

    @property
    def switched(self) -> bool:
        """Tell whether it has gone over to a solver for stiff flows."""
        return self.reference.switched

    @property
    def save(self) -> "_Save":
        """The function that is called at each saved time."""
        goal, problem = self.method.objective, self.problem
        return _Save(goal, self.network, problem.task, self.observe, problem.trained, self.back)

    @property
    def observer(self) -> Observer:
        """The watched values as one function of the parameters."""
        return Observer(self.watches, self.network)

    @property
    def exchangeable(self) -> bool:
        """Tell whether another solver may take over where the run becomes stiff."""
        return self.reference.exchangeable and self.method.exchangeable

    def gone_over(self) -> "Run":
        """Return the same run by a solver for stiff flows."""
        stiff = self.method.for_stiff(self.problem) if self.turned is None else RKC()
        method = copied(self.method, solver=stiff)
        return copied(self, method=method, reference=self.reference.told(switched=True))

    def resumed(self, capacity: int, switched: bool) -> "Run":
        """Return the run as it was when it was written to a file."""
        run = self.with_capacity(capacity)
        return run.gone_over() if switched else run

    def arguments(self) -> dict[str, Any]:
        """Return what the run was asked for by name; functions count by what they are called."""
        problem, method = self.problem, self.method
        goal = method.objective
        watched = [(watch.channel, watch.direction, watch.terminate) for watch in self.watches]
        return {
            "network": (problem.network.kind, problem.network),
            "task": problem.task,
            "loss": repr(problem.loss),
            "kinks": nature(method.kinks),
            "tau": problem.tau,
            "weight_decay": problem.decay,
            "trainable": repr(problem.trained),
            "modified_rate": goal.learning_rate if isinstance(goal, Modified) else None,
            "events": (repr(watched), eqx.filter(self.watches, eqx.is_array)),
            "observe": repr(sorted(self.observe.functions or ["networks"])),
            "solver": nature(method.solver),
            "rtol": np.asarray(method.controller.rtol),
            "atol": np.asarray(method.controller.atol),
            "stepsize_controller": nature(method.controller),
            "t1": self.t1,
            "ts": self.ts,
        }

    @property
    def anonymous(self) -> "Run":
        """The same run without its reference, and without names of events and observables.

        One compilation serves all tasks of one shape, whatever the names.
        """
        return copied(
            self,
            watches=unnamed(self.watches),
            observe=self.observe.unnamed,
            reference=Reference(None, self.problem.loss),
        )

    def equation(self) -> tuple[diffrax.ODETerm, diffrax.AbstractSolver]:
        """Return the term to solve, and the solver in its wrappings."""
        problem, method = self.solved_by
        field, solver = method.equation(problem, self.capacity)
        if self.watches:
            observer = self.observer
            solver = Recorder(solver, observer, self.capacity, self.method.loop, self.back)
        if isinstance(self.method.solver, (RKC, RecycledBDF)) or self.method.kinks.walks:
            solver = Counting(solver)
        return diffrax.ODETerm(field), solver

    def begin(self, t: Array | None = None, parameters: Parameters | None = None) -> Continuation:
        """Return the state before the first step; t = 0 and the network's parameters if None."""
        term, solver = self.equation()
        problem, method = self.solved_by
        t = jnp.zeros_like(self.t1) if t is None else t
        parameters = method.state(problem) if parameters is None else parameters
        ahead, inner = method.steps(problem).init(
            term, t, self.t1, parameters, None, None, solver.func, solver.error_order(term)
        )
        # diffrax chooses the first step without regard to t, beside which it may vanish.
        ahead = jnp.maximum(ahead, t + 2 * shortest(t))
        state = solver.init(term, t, jnp.minimum(ahead, self.t1), parameters, None)
        none = {name: jnp.zeros((), int) for name in COUNTS}
        start = Continuation(
            t,
            parameters,
            state,
            PausingState.fresh(inner, jnp.asarray(ahead)),
            none | begun(self.method.solver, state),
            self.method.objective.value(self.at(parameters)),
        )
        # Types as they come out of a solve, so that a later part runs the same program.
        return jax.tree.map(lambda a: jnp.asarray(a) if eqx.is_array_like(a) else a, start)

    def ahead(
        self, start: Continuation | None, first: bool, budget: int, limits: Limits
    ) -> Trajectory:
        """Take at most `budget` steps from `start`, and return them with their rows.

        Rows that an earlier part has saved are left out: `first` tells that there is none.
        """
        taken = 0 if start is None else int(start.counts["num_steps"])
        allowance = Allowance(jnp.asarray(budget), jnp.asarray(limits.steps - taken), ROOM)
        flow = trimmed(self.solved(start, allowance))
        wanted = slice(None if first else 1, -1 if is_paused(flow, limits) else None)
        if self.ts is None and wanted != slice(None):  # rows at the ends, but not at pauses
            flow = flow.with_rows(lambda a: a[wanted])
        return flow

    def solved(
        self, start: Continuation | None, allowance: Allowance, dense: bool = False
    ) -> Trajectory:
        """Return the trajectory of `solve`, under the user's own names."""
        flow = self.anonymous.solve(start, allowance, dense)
        events, observed = named(flow.events, self.watches), self.observe.named(flow.observed)
        return copied(flow, events=events, observed=observed)

    @jit_by_array
    def solve(
        self,
        start: Continuation | None,
        allowance: Allowance,
        dense: bool = False,
    ) -> Trajectory:
        """Integrate from `start` (None: t = 0) to t1, or as far as is allowed."""
        # Compiled together with the solve, since most runs never pause.
        start = self.begin() if start is None else start
        term, solver = self.equation()
        if self.ts is None:
            rows = diffrax.SubSaveAt(t0=True, fn=self._at_start)
        else:
            rows = diffrax.SubSaveAt(ts=_after(self.ts, start.t, self.t1), fn=self.save)
        limits = allowance.accepted, allowance.tried
        steps = self.method.steps(self.solved_by[0])
        controller = Pausing(steps, self.t1, *limits, start.controller)  # pyright: ignore
        solution = diffrax.diffeqsolve(
            term,
            solver,
            t0=start.t,
            t1=self.t1,
            dt0=None,
            y0=start.parameters,
            saveat=diffrax.SaveAt(
                subs=[rows, diffrax.SubSaveAt(t1=True)],
                dense=dense,
                solver_state=True,
                controller_state=True,
            ),
            stepsize_controller=controller,
            adjoint=self.method.adjoint,
            max_steps=allowance.room,
            progress_meter=self.meter,
            solver_state=start.solver,
            controller_state=start.controller,
            throw=False,
        )
        paused = solution.result == PAUSED
        paused = paused & (solution.stats["num_steps"] < allowance.tried)
        return self._trajectory(start, solution, paused, dense)

    def _at_start(self, t: Array, parameters: Parameters, args: Any) -> tuple[Array, Any]:
        """Return the row at t = 0; zeros where a run that has paused goes on."""
        return _unless(t > 0, lambda: self.save(t, parameters, args))

    def _trajectory(
        self, start: Continuation, solution: Any, paused: Array, dense: bool
    ) -> Trajectory:
        """Make a trajectory of the solution and of what recorder and walk have logged."""
        (ts, (t,)), (rows, last) = solution.ts, solution.ys
        y = jax.tree.map(lambda a: a[0], last)
        state = solution.solver_state
        found = _Found(RESULTS.promote(solution.result), t, y, None)
        if self.watches:
            found = found.recorded(state)
            state = state.inner
        doubts = solution.solver_state.doubts if self.watches else None
        events = event_log(found.log, self.observer, found.end, doubts)
        if isinstance(state, WalkState):
            found = found.walked(state)
            gates = gate_log(state.log, state.initial, self.network.hidden, found.end)
            events = gates.merged(events)
        ts, rows = self._all_rows(start, ts, rows, found, paused)
        # Rows past the event that ended the run were saved before it was known.
        kept, (losses, observed) = ts <= found.end, rows
        finite = jnp.all(jnp.isfinite(losses) | ~kept)
        solver = self.method.solver
        counts = {name: start.counts[name] + solution.stats[name] for name in COUNTS}
        accepted = counts["num_accepted_steps"]
        more_counts, more = reported(solver, state, accepted, ts, self.problem.tau)
        counts |= gone(start.counts, solver, solution)
        if doubts is not None:
            more_counts["unresolved_crossings"] = doubts.count
        networks = self.observe.functions is None
        whole = solution.interpolation if dense else None
        if whole is not None and self.turned is not None:
            whole = Dense(whole, self.turned.frame)
        return Trajectory(
            ts=jnp.where(kept, ts, jnp.inf),
            losses=jnp.where(kept, losses, jnp.inf),
            observed=more if networks else more | observed,
            events=events,
            model=self.at(found.final),
            end=found.end,
            result=found.unless(~finite, RESULTS.not_finite).result,
            saved=observed if networks else None,
            counts=counts | more_counts,
            labels=(),
            tau=self.problem.tau,
            discrete=False,
            dense=whole,
            step_counts=None,
            window_counts=None,
            samples=self.problem.task.samples,
            reference=self.reference,
            continuation=Continuation(
                t,
                y,
                solution.solver_state,
                solution.controller_state.rested(),
                counts,
                self.method.objective.value(self.at(y)),
            ),
        )

    def _all_rows(
        self, start: Continuation, ts: Array, rows: Any, found: "_Found", paused: Array
    ) -> tuple[Array, Any]:
        """Return saved times and rows, and the end where it is saved; inf where none is due."""
        if self.ts is None:
            # A row may cost as much as many steps, and at a pause it is not saved.
            last = _unless(paused, lambda: self.save(found.end, found.final, None))
            return _put((ts, rows), (found.end, last), jnp.asarray(len(ts)))
        # `_after` filled the array up with t1: those rows are not due.
        ts = jnp.where(jnp.arange(len(ts)) < _due(self.ts, start.t), ts, jnp.inf)
        if not any(watch.terminate for watch in self.watches):
            return ts, rows
        ended = found.result == RESULTS.event_occurred
        last = _unless(~ended, lambda: self.save(found.end, found.final, None))
        # Rows past the event that ended the run were saved before it was known.
        ts = jnp.where(ended & (ts >= found.end), jnp.inf, ts)
        end = jnp.where(ended, found.end, jnp.inf)
        place = jnp.sum(ts < end)
        ts, rows = _put((ts, rows), (end, last), place)
        return jnp.where(jnp.arange(len(ts)) > place, jnp.inf, ts), rows


def _put(rows: Any, row: Any, place: Array) -> Any:
    """Insert a row at a place, which loses what was there; the row stands at the end, too."""
    return jax.tree.map(lambda a, b: jnp.append(a, b[None], axis=0).at[place].set(b), rows, row)


def _unless(skipped: Array, value: Callable[[], Any]) -> Any:
    """Return a tree of arrays, or zeros in its place where it is skipped."""
    shapes = jax.eval_shape(value)

    def zeros() -> Any:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    return lax.cond(skipped, zeros, value)


def _due(ts: Array, t: Array) -> Array:
    """Count the times that are not yet saved at t, where the start itself is still due."""
    return jnp.sum(jnp.where(t > 0, ts > t, True))


def _after(ts: Array, t: Array, t1: Array) -> Array:
    """Return the times that are due at t, filled up with t1."""
    place, due = jnp.arange(len(ts)), _due(ts, t)
    return jnp.where(place < due, ts[(place - due) % len(ts)], t1)


class _Found(eqx.Module):
    """The end of a run as far as it is known: its result, when, where, and the user's events."""

    result: Any
    end: Array
    final: Parameters
    log: Buffer | None

    def unless(self, failed: Array, why: Any) -> "_Found":
        """Return it with the result `why` where a run `failed` that was fine or paused.

        A log that overflows before a pause must be seen at that pause: what did not fit is lost.
        """
        fine = okay(self.result) | (self.result == RESULTS.max_steps_reached)
        result = RESULTS.where(failed & fine, why, self.result)
        return _Found(result, self.end, self.final, self.log)

    def recorded(self, state: RecorderState) -> "_Found":
        """Return it with a recorder's log, and the event that ended the run if one did."""
        log, result, end, final = state.log, self.result, self.end, self.final
        if state.stopped is not None:
            ended = jnp.isfinite(state.end)
            end = jnp.minimum(end, state.end)
            result = RESULTS.where(ended, RESULTS.event_occurred, result)  # pyright: ignore
            final = jax.tree.map(lambda a, b: jnp.where(ended, a, b), state.stopped, final)
        found = _Found(result, end, final, log)
        return found.unless(log.overflowed, RESULTS.event_overflow)

    def walked(self, state: WalkState) -> "_Found":
        """Return it with the undecided event that stopped an exact walk, if one did."""
        found = self.unless(state.log.overflowed, RESULTS.event_overflow)
        result = found.result
        for trouble, why in (
            (NO_SLOTS, RESULTS.slide_overflow),
            (UNSOLVED, RESULTS.modes_unsolved),
        ):
            result = RESULTS.where(jnp.any(state.sides.trouble == trouble), why, result)
        return _Found(result, jnp.minimum(self.end, state.end), self.final, self.log)
