"""A run of gradient flow: what defines it, its solve, and the trajectory that comes of it."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arrays import Parameters, as_parameters, replace_fields, rows_within
from flowlin._tools.numerics import jit_by_array
from flowlin.engine.kinks.kink_places import kink_places
from flowlin.engine.kinks.kink_policies import ExactKinks
from flowlin.engine.kinks.walk import ExactWalk, WalkState
from flowlin.engine.method import Method, describe_options
from flowlin.engine.mode_frame import ProblemInModes
from flowlin.engine.observables import Observables
from flowlin.engine.outcome import FlowOutcome
from flowlin.engine.recorder import Recorder, event_log
from flowlin.engine.rows import append_row, count_due, insert_row, times_due, value_or_zeros
from flowlin.engine.run import UNLIMITED_STEPS, AbstractRun, Limits, StepCost, is_paused
from flowlin.engine.signals import PAUSED
from flowlin.engine.solvers.recycled_bdf import RecycledBDF
from flowlin.engine.solvers.rkc import RKC
from flowlin.engine.state_parameters import WITHOUT_MEMORY, DenseParameters
from flowlin.engine.step_control import (
    CountingSolver,
    PausingController,
    PausingState,
    evaluations_after,
    evaluations_before,
    inner_state,
    shortest_step,
    solver_report,
    with_inner_state,
)
from flowlin.events.watch import Observer, Watch, log_with_names, watches_without_names
from flowlin.networks.base import AbstractModel
from flowlin.networks.trainable import trainable_part
from flowlin.record.event_log import EventLog
from flowlin.record.gate_log import gate_log
from flowlin.record.origin import Origin, RunState
from flowlin.record.results import RESULTS
from flowlin.record.trajectory import Trajectory, trim_run
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective, ModifiedLoss
from flowlin.training.problem import Problem

STEP_COUNTS = ("num_steps", "num_accepted_steps", "num_rejected_steps")


class _Save(eqx.Module):
    """The function of a saved time that returns the loss and the observables there."""

    objective: AbstractObjective
    network: AbstractModel
    task: Task
    observe: Observables
    trainable_flags: tuple[bool, ...] | None = eqx.field(static=True)
    to_parameters: Callable[[Parameters], Parameters] | None

    def __call__(self, t: ArrayLike, parameters: Parameters, args: PyTree) -> tuple[Array, PyTree]:
        del t, args
        network = self.network.with_parameters(as_parameters(self.to_parameters, parameters))
        kept = trainable_part(network.parameters, self.trainable_flags)
        return self.objective.loss_value(network), self.observe(network, kept, self.task)


class Budget(eqx.Module):
    """Limits of one solve: how many steps it may take before it comes back.

    - `accepted`, `tried`: after so many steps it comes back.
    - `room`: for so many tried steps memory is reserved where that is needed.
    """

    accepted: Array
    tried: Array
    room: int = eqx.field(static=True)

    @staticmethod
    def without_pause(steps: int, room: int) -> "Budget":
        """Return limits for a run that does not pause."""
        return Budget(jnp.asarray(steps), jnp.asarray(steps), room)


class FlowRun(AbstractRun):
    """A run of gradient flow, so that it can be compiled and attempted again.

    - `problem`, `method`: what is solved, and how.
    - `watches`, `observe`: functions evaluated in every step, and at the saved times.
    - `t1`, `ts`: the end, and the times to save; None saves both ends.
    - `capacity`: of the logs.
    - `reference`: facts of the run that travel with the trajectory.
    - `in_modes`: the problem in its modes' coordinates, where it is solved in these.
    - `pauses_at_rest`: whether it pauses after some steps that move nothing beyond their error.
    """

    problem: Problem
    method: Method
    watches: tuple[Watch, ...]
    observe: Observables
    t1: Array
    ts: Array | None
    progress_meter: diffrax.AbstractProgressMeter
    capacity: int = eqx.field(static=True)
    reference: Origin = eqx.field(static=True)
    in_modes: ProblemInModes | None = None
    pauses_at_rest: bool = eqx.field(static=True, default=False)

    @property
    def problem_and_method(self) -> tuple[Problem, Method]:
        """The problem that is solved, and the method."""
        if self.in_modes is None:
            return self.problem, self.method
        goal = self.in_modes.objective
        return self.in_modes.problem, replace_fields(self.method, objective=goal)

    @property
    def to_parameters(self) -> Callable[[Parameters], Parameters] | None:
        """The map from solver states to parameters; None where they are the same."""
        if self.problem.has_memory:
            return WITHOUT_MEMORY
        return None if self.in_modes is None else self.in_modes.frame.from_modes

    def network_at(self, state: Parameters) -> AbstractModel:
        """Return the network at a solver's state."""
        return self.network.with_parameters(as_parameters(self.to_parameters, state))

    @property
    def network(self) -> AbstractModel:
        """The network at t = 0."""
        return self.problem.network

    @property
    def parameters(self) -> PyTree:
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
    def step_cost(self) -> StepCost:
        """The cost of a step."""
        return StepCost(self.problem.task.samples, 5e-4 if self.method.kinks.walks else 1e-4)

    @property
    def has_switched_solver(self) -> bool:
        """Tell whether it has gone over to a solver for stiff flows."""
        return self.reference.has_switched

    @property
    def save_function(self) -> "_Save":
        """The function that is called at each saved time."""
        goal, problem = self.method.objective, self.problem
        return _Save(
            goal, self.network, problem.task, self.observe, problem.trained, self.to_parameters
        )

    @property
    def observer(self) -> Observer:
        """The watched values as one function of the parameters."""
        return Observer(self.watches, self.network)

    @property
    def may_switch_solver(self) -> bool:
        """Tell whether another solver may take over where the run becomes stiff."""
        free = self.reference.exchangeable and self.problem.is_gradient_flow
        return free and self.method.may_switch_solver

    def with_stiff_solver(self) -> "FlowRun":
        """Return the same run by a solver for stiff flows."""
        stiff = self.method.stiff_solver(self.problem) if self.in_modes is None else RKC()
        method = replace_fields(self.method, solver=stiff)
        return replace_fields(
            self, method=method, reference=self.reference.with_changes(unswitched=self)
        )

    @property
    def slots(self) -> int:
        """The slots of an exact walk for sliding pairs, see `ExactKinks`; 0 without one."""
        kinks = self.method.kinks
        return kinks.slots if isinstance(kinks, ExactKinks) else 0

    def with_slots(self, slots: int) -> "FlowRun":
        """Return the same run with so many slots; as it is without a walk."""
        if not self.slots:
            return self
        kinks = replace_fields(self.method.kinks, slots=slots)
        run = replace_fields(self, method=replace_fields(self.method, kinks=kinks))
        return run.with_choice(kinks=repr(kinks))

    def state_in_slots(self, state: RunState) -> RunState:
        """Return a state that was found with fewer slots as this run goes on from it."""
        problem, method = self.problem_and_method
        walk, (_, solver) = inner_state(state.solver), method.equation(problem, self.capacity)
        assert isinstance(solver, ExactWalk)
        walk = replace_fields(walk, sides=solver.switching.in_own_slots(walk.sides))
        return replace_fields(state, solver=with_inner_state(state.solver, walk))

    def as_saved(self, capacity: int, switched: bool, slots: int) -> "FlowRun":
        """Return the run as it was when it was written to a file."""
        run = self.with_capacity(capacity).with_slots(max(slots, self.slots))
        return run.with_stiff_solver() if switched else run

    def arguments_by_name(self) -> dict[str, object]:
        """Return what the run was asked for by name; functions count by what they are called."""
        problem, method = self.problem, self.method
        goal = method.objective
        watched = [(watch.channel, watch.direction, watch.terminate) for watch in self.watches]
        found = {
            "network": (problem.network.facts.kind, problem.network),
            "task": problem.task,
            "loss": repr(problem.loss),
            "kinks": describe_options(method.kinks),
            "tau": problem.tau_by_name,
            "weight_decay": problem.decay,
            "trainable": repr(problem.trained),
            "modified_rate": goal.learning_rate if isinstance(goal, ModifiedLoss) else None,
            "events": (repr(watched), eqx.filter(self.watches, eqx.is_array)),
            "observe": repr(sorted(self.observe.functions or ["networks"])),
            "solver": describe_options(method.solver),
            "rtol": np.asarray(method.controller.rtol),
            "atol": np.asarray(method.controller.atol),
            "stepsize_controller": describe_options(method.controller),
            "t1": self.t1,
            "ts": self.ts,
        }
        # Files of gradient flow say nothing of a rule, as when there was no other one.
        if not problem.is_gradient_flow:
            found["rule"] = describe_options(problem.rule)
        return found

    @property
    def without_names(self) -> "FlowRun":
        """The same run without its reference, and without names of events and observables.

        One compilation serves all tasks of one shape, whatever the names.
        """
        return replace_fields(
            self,
            watches=watches_without_names(self.watches),
            observe=self.observe.without_names,
            reference=Origin(None, self.problem.loss),
        )

    def equation(self) -> tuple[diffrax.ODETerm, diffrax.AbstractSolver]:
        """Return the term to solve, and the solver in its wrappings."""
        problem, method = self.problem_and_method
        field, solver = method.equation(problem, self.capacity)
        if self.watches:
            solver = Recorder(
                solver, self.observer, self.capacity, self.method.loop_kind, self.to_parameters,
                method.takes_second_step(problem),
            )  # fmt: skip
        if isinstance(self.method.solver, (RKC, RecycledBDF)) or self.method.kinks.walks:
            solver = CountingSolver(solver)
        return diffrax.ODETerm(field), solver

    def initial_state(
        self, t: Array | None = None, parameters: Parameters | None = None
    ) -> RunState:
        """Return the state before the first step; t = 0 and the network's parameters if None."""
        term, solver = self.equation()
        problem, method = self.problem_and_method
        t = jnp.zeros_like(self.t1) if t is None else t
        parameters = method.state_at_start(problem) if parameters is None else parameters

        def field_until_end(terms: PyTree, t: ArrayLike, y: PyTree, args: PyTree) -> PyTree:
            # diffrax looks ahead to choose the first step, where a user's function of time may not
            # be defined any more.
            return solver.func(terms, jnp.minimum(t, self.t1), y, args)

        ahead, inner = method.step_controller(problem).init(
            term, t, self.t1, parameters, None, None, field_until_end, solver.error_order(term)
        )
        # diffrax chooses the first step without regard to t, beside which it may vanish.
        ahead = jnp.maximum(ahead, t + 2 * shortest_step(t))
        state = solver.init(term, t, jnp.minimum(ahead, self.t1), parameters, None)
        none = {name: jnp.zeros((), int) for name in STEP_COUNTS}
        start = RunState(
            t,
            parameters,
            state,
            PausingState.after_pause(inner, jnp.asarray(ahead)),
            none | evaluations_before(self.method.solver, state),
            self.method.objective.loss_value(self.network_at(parameters)),
        )
        # Types as they come out of a solve, so that a later part runs the same program.
        return jax.tree.map(lambda a: jnp.asarray(a) if eqx.is_array_like(a) else a, start)

    def advance(self, start: RunState, first: bool, budget: int, limits: Limits) -> Trajectory:
        """Take at most `budget` steps from `start`, and return them with their rows.

        Rows that an earlier part has saved are left out: `first` tells that there is none.
        """
        taken = int(start.counts["num_steps"])
        accepted, tried = jax.device_put((budget, limits.steps - taken))  # compiles nothing
        allowance = Budget(accepted, tried, UNLIMITED_STEPS)
        flow = trim_run(self._with_names(self.without_names.solve_segment(start, allowance)))
        wanted = slice(None if first else 1, -1 if is_paused(flow, limits) else None)
        if self.ts is None and wanted != slice(None):  # rows at the ends, but not at pauses
            flow = flow.with_rows(lambda rows: jax.device_put(rows_within(rows, wanted)))
        return flow

    def solve_whole(self, budget: Budget, dense: bool) -> Trajectory:
        """Return the trajectory from t = 0 without pauses, under the user's own names."""
        return self._with_names(self.without_names.solve_segment(None, budget, dense))

    def _with_names(self, flow: Trajectory) -> Trajectory:
        """Return a trajectory of `without_names` under the user's own names."""
        events = log_with_names(flow.events, self.watches)
        return replace_fields(flow, events=events, observed=self.observe.with_names(flow.observed))

    @jit_by_array
    def solve_segment(
        self,
        start: RunState | None,
        budget: Budget,
        dense: bool = False,
    ) -> Trajectory:
        """Integrate from `start` (None: t = 0) to t1, or as far as is allowed."""
        # In one program with the solve where no other segment follows.
        start = self.initial_state() if start is None else start
        term, solver = self.equation()
        if self.ts is None:
            rows = diffrax.SubSaveAt(t0=True, fn=lambda *at: self._start_row(start.loss, *at))
        else:
            rows = diffrax.SubSaveAt(ts=times_due(self.ts, start.t, self.t1), fn=self.save_function)
        problem, method = self.problem_and_method
        steps = method.step_controller(problem)
        scale = method.error_scale(problem) if self.pauses_at_rest else None
        limits = budget.accepted, budget.tried
        controller = PausingController(steps, self.t1, *limits, start.controller, scale)  # pyright: ignore
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
            max_steps=budget.room,
            progress_meter=self.progress_meter,
            solver_state=start.solver,
            controller_state=start.controller,
            throw=False,
        )
        paused = solution.result == PAUSED
        paused = paused & (solution.stats["num_steps"] < budget.tried)
        return self._make_trajectory(start, solution, paused, dense, solver.interpolation_cls)

    def _start_row(
        self, loss: Array, t: Array, state: Parameters, args: PyTree
    ) -> tuple[Array, PyTree]:
        """Return the row at t = 0, where the loss is known; no observables after a pause."""
        return loss, value_or_zeros(t > 0, lambda: self.save_function(t, state, args)[1])

    def _make_trajectory(
        self,
        start: RunState,
        solution: PyTree,
        paused: Array,
        dense: bool,
        interpolation_cls: object,
    ) -> Trajectory:
        """Make a trajectory of the solution and of what recorder and walk have logged."""
        (ts, (t,)), (rows, last) = solution.ts, solution.ys
        y = jax.tree.map(lambda a: a[0], last)
        state, loss = solution.solver_state, self.method.objective.loss_value(self.network_at(y))
        found = FlowOutcome(RESULTS.promote(solution.result), t, y, None)
        found, events = self._outcome_and_events(found, state, interpolation_cls)
        doubts, state = (state.unresolved, state.inner) if self.watches else (None, state)
        ts, rows = self._rows_with_end(start, (ts, rows), found, paused, loss)
        # Rows past the event that ended the run were saved before it was known.
        kept, (losses, observed) = ts <= found.end, rows
        finite = jnp.all(jnp.isfinite(losses) | ~kept)
        solver = self.method.solver
        counts = {name: start.counts[name] + solution.stats[name] for name in STEP_COUNTS}
        accepted = counts["num_accepted_steps"]
        more_counts, more = solver_report(solver, state, accepted, ts, self.problem)
        counts |= evaluations_after(start, self.method, self.problem, solution)
        if isinstance(state, WalkState):
            more_counts["rtol"] = jnp.asarray(self.method.controller.rtol)
        if self.slots:
            more_counts["slots"] = jnp.asarray(self.slots)
        if doubts is not None:
            more_counts["unresolved_crossings"] = doubts.count
        networks = self.observe.functions is None
        whole = solution.interpolation if dense else None
        if whole is not None and self.to_parameters is not None:
            whole = DenseParameters(whole, self.to_parameters)
        return Trajectory(
            ts=jnp.where(kept, ts, jnp.inf),
            losses=jnp.where(kept, losses, jnp.inf),
            observed=more if networks else more | observed,
            events=events,
            model=self.network_at(found.final),
            end=found.end,
            result=found.with_failure(~finite, RESULTS.not_finite).result,
            saved=observed if networks else None,
            counts=counts | more_counts,
            labels=(),
            tau=self.problem.tau_on_record,
            discrete=False,
            dense=whole,
            step_counts=None,
            window_counts=None,
            samples=self.problem.task.samples,
            reference=self.reference,
            continuation=RunState(
                t,
                y,
                solution.solver_state,
                solution.controller_state.reset_counts(),
                counts,
                loss,
            ),
        )

    def _outcome_and_events(
        self, found: FlowOutcome, state: PyTree, interpolation_cls: object
    ) -> tuple[FlowOutcome, EventLog]:
        """Return the outcome with what recorder and walk know of it, and what both have logged."""
        doubts = None
        if self.watches:
            found, doubts, state = found.with_recorder(state), state.unresolved, state.inner
        events = event_log(found.log, self.observer, found.end, doubts, interpolation_cls)
        if isinstance(state, WalkState):
            found = found.with_walk(state)
            places = kink_places(self.problem)
            gates = gate_log(state.log, state.initial_sides, places, found.end)
            events = gates.merge_with(events)
        return found, events

    def _rows_with_end(
        self, start: RunState, saved: PyTree, outcome: "FlowOutcome", paused: Array, loss: Array
    ) -> tuple[Array, PyTree]:
        """Return saved times and rows, and the end where it is saved; inf where none is due."""
        ts, rows = saved
        if self.ts is None:
            # A row may cost as much as many steps, and at a pause it is not saved.
            last = value_or_zeros(
                paused, lambda: self.save_function(outcome.end, outcome.final, None)
            )
            if not any(watch.terminate for watch in self.watches):
                last = loss, last[1]  # so that it is computed once
            return append_row((ts, rows), (outcome.end, last))
        # `_after` filled the array up with t1: those rows are not due.
        ts = jnp.where(jnp.arange(len(ts)) < count_due(self.ts, start.t), ts, jnp.inf)
        if not any(watch.terminate for watch in self.watches):
            return ts, rows
        ended = outcome.result == RESULTS.event_occurred
        last = value_or_zeros(~ended, lambda: self.save_function(outcome.end, outcome.final, None))
        ts = jnp.where(ended & (ts >= outcome.end), jnp.inf, ts)
        end = jnp.where(ended, outcome.end, jnp.inf)
        place = jnp.sum(ts < end)
        ts, rows = insert_row((ts, rows), (end, last), place)
        return jnp.where(jnp.arange(len(ts)) > place, jnp.inf, ts), rows
