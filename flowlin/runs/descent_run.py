"""A run of descent: its length, the steps that it saves, and the trajectory that it makes."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from flowlin._tools.arrays import (
    first_rows,
    join_rows,
    replace_fields,
)
from flowlin.engine.descend import (
    Descent,
    DescentOutcome,
    DescentState,
    Rows,
    RowSchedule,
    jit_advance,
    jit_outcome,
    jit_row,
    optimiser_update,
)
from flowlin.engine.observables import Observables
from flowlin.engine.run import AbstractRun, Limits, StepCost
from flowlin.events.watch import Observer, log_with_names
from flowlin.networks.base import AbstractModel
from flowlin.record.linearization import UnitCounts
from flowlin.record.origin import Origin, RunState
from flowlin.record.results import RESULTS, result_is
from flowlin.record.trajectory import Trajectory, WindowCounts
from flowlin.runs.run import compile_initial_state
from flowlin.tasks.task import Task
from flowlin.training.objective import AbstractObjective, tree_dot
from flowlin.training.problem import Problem

STEPS_PER_PROGRAM = 2**12  # steps in one program, whose counts of units all come back from it
# Rows in one program. At least the fewest where rows are small, so that short runs of many
# lengths share one program.
FEWEST_ROWS, MOST_ROWS = 2**8, 2**10
SMALL_ROW = 2**14  # bytes of a small row


class DescentChoice(NamedTuple):
    """The words that `flow.stats` has for a descent."""

    solver: str

    @property
    def stat_labels(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a name and the words under it."""
        return tuple(self._asdict().items())


class DescentPlan(NamedTuple):
    """The length of a run, and the steps at which it saves a row.

    - `steps`: the number of the last step.
    - `every`: steps from one saved row to the next; the first and the last are saved too.
    - `at`: (T,), the saved steps, where the user asked for them.

    A run computes a row at every saved step, at its start and at its end.
    """

    steps: int
    save_every: int
    saved_steps: Int[np.ndarray, " T"] | None

    @property
    def row_count(self) -> int:
        """The number of rows that the run computes, at most."""
        return 2 + (
            self.steps // self.save_every if self.saved_steps is None else len(self.saved_steps)
        )

    def next_row_steps(self, after: int, most: int) -> Int[np.ndarray, " R"]:
        """Return the next steps with a row after the step `after`, at most `most` of them."""
        if self.saved_steps is None:
            found = (after // self.save_every + 1 + np.arange(most)) * self.save_every
        else:
            found = np.union1d(0, self.saved_steps)
            found = found[np.searchsorted(found, after, side="right") :]
        return np.append(found[found < self.steps], self.steps)[:most]

    def steps_between(self, steps: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
        """Return for each step with a row how many steps it comes after the row before it."""
        if self.saved_steps is None:
            return np.full(len(steps), self.save_every)
        found = np.union1d([0, self.steps], self.saved_steps)
        place = np.searchsorted(found, steps)
        return found[place] - found[np.maximum(place - 1, 0)]

    def is_saved(self, steps: Int[np.ndarray, " R"]) -> Bool[np.ndarray, " R"]:
        """Tell for each step with a row whether the trajectory keeps it."""
        return (
            np.ones(len(steps), bool)
            if self.saved_steps is None
            else np.isin(steps, self.saved_steps)
        )


class _RowBlock(NamedTuple):
    """Rows of a trajectory and (on, off) counts of its units, in arrays of NumPy or JAX.

    `looked` are the times of the counts, `grain` how far each is from the one before, in time.
    """

    ts: PyTree
    losses: PyTree
    observed: PyTree
    count_times: PyTree
    count_widths: PyTree
    counts: PyTree
    count_steps: np.ndarray  # of the counts


class DescentRun(AbstractRun):
    """A descent that can be run from pause to pause.

    - `descent`: the part that is compiled.
    - `plan`: length and saved steps; None in what is compiled.
    - `rows`: room for rows in one program.
    """

    descent: Descent
    plan: DescentPlan | None
    rows: int = eqx.field(static=True)
    capacity: int = eqx.field(static=True)
    reference: Origin = eqx.field(static=True)

    @staticmethod
    def of(descent: Descent, plan: DescentPlan, capacity: int, reference: Origin) -> "DescentRun":
        """Make a run of a descent; where rows are small, runs of all lengths share programs."""
        size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(descent.network.parameters))
        small = descent.observe.functions is None and size <= SMALL_ROW
        rows = max(FEWEST_ROWS if small else 1, min(plan.row_count, MOST_ROWS))
        kind = "descent" if descent.batch_size is None else "stochastic descent"
        return DescentRun(
            descent=descent,
            plan=plan,
            rows=1 << (rows - 1).bit_length(),
            capacity=capacity,
            reference=reference.with_changes(choice=DescentChoice(kind)),
        )

    @property
    def problem(self) -> Problem:
        """The problem whose flow the descent approximates."""
        return self.descent.problem

    @property
    def network(self) -> AbstractModel:
        """The network at t = 0."""
        return self.descent.network

    @property
    def parameters(self) -> PyTree:
        """The parameters that move, at t = 0."""
        return self.descent.problem.parameters

    @property
    def task(self) -> Task:
        """The task that the network is trained on."""
        return self.descent.task

    @property
    def objective(self) -> AbstractObjective:
        """The objective that is descended."""
        return self.descent.objective

    @property
    def observables(self) -> Observables:
        """The functions that the user observes."""
        return self.descent.observe

    @property
    def observer(self) -> Observer:
        """The watched values as one function of the parameters."""
        return self.descent.observers.observer

    @property
    def horizon(self) -> float:
        """The time of its last step."""
        assert self.plan is not None
        return self.plan.steps * float(self.descent.clock)

    @property
    def without_names(self) -> "DescentRun":
        """The same run without its length, its reference, and names of events and observables."""
        nobody = Origin(None, self.descent.problem.loss)
        return replace_fields(
            self, descent=self.descent.without_names, plan=None, rows=0, reference=nobody
        )

    @property
    def step_cost(self) -> StepCost:
        """The cost of a step: its samples, and the seconds that it takes at least."""
        return StepCost(self.descent.batch_size or self.task.samples, 2e-5)

    @property
    def has_switched_solver(self) -> bool:
        """Always False: a descent has no other solver."""
        return False

    @property
    def slots(self) -> int:
        """No slots: nothing slides in a descent."""
        return 0

    def as_saved(self, capacity: int, switched: bool, slots: int) -> "DescentRun":
        """Return the run with the capacity that a checkpoint has."""
        if switched or slots:
            raise ValueError("a descent has no other solver to go over to, and no slots")
        return self.with_capacity(capacity)

    def arguments_by_name(self) -> dict[str, object]:
        """Return by name what the user asked for; functions count by their names."""
        descent, plan = self.descent, self.plan
        assert plan is not None
        look, problem = descent.observers, descent.problem
        watched = [(w.channel, w.direction, w.terminate) for w in look.observer.watches]
        counted = (watched, look.quantiles, *look.windows)
        key = descent.key
        return {
            "network": (self.network.facts.kind, self.network),
            "task": self.task,
            "loss": repr(problem.loss),
            "tau": problem.tau,
            "weight_decay": problem.decay,
            "trainable": repr(problem.trained),
            "learning_rate": descent.learning_rate,
            "optimiser": _trial_updates(descent),
            "batch_size": repr(descent.batch_size),
            "key": None if key is None else _key_numbers(key),
            "events": (repr(counted), eqx.filter(look, eqx.is_array)),
            "interpolate": repr(descent.interpolate),
            "observe": repr(sorted(self.observables.functions or ["networks"])),
            "steps": repr(plan.steps),
            "save_every": repr(plan.save_every),
            "ts": plan.saved_steps,
        }

    def initial_state(self) -> RunState:
        """Return the state before the first step."""
        state = self.descent.initial_state(self.capacity)
        end = jnp.zeros_like(self.descent.clock)
        return _state_at_end(state, end, self.descent.objective.loss_value(self.network))

    def advance(self, start: RunState, first: bool, budget: int, limits: Limits) -> Trajectory:
        """Take the next steps, at most `budget`; keep the rows that no earlier part has saved."""
        del limits
        assert self.plan is not None
        state = replace_fields(start.solver, parameters=start.parameters)
        at, parts, loss = int(start.counts["num_steps"]), [], start.loss
        descent = self.descent.without_names
        after, goal, ended = -1 if first else at, min(at + budget, self.plan.steps), False
        while after < goal and not ended:
            stops = self._next_schedule(at, after, goal)
            state, rows = jit_advance(
                descent, state, jax.device_put(stops), self._steps_per_program
            )
            ended = bool(np.isfinite(np.asarray(state.stop_time)))
            parts.append(self._select_rows(stops, rows, int(state.step), ended, after < 0))
            at = after = int(stops.stop_steps[-1])
            if np.any(stops.saves_row):  # else it stays that of the last look
                loss = jax.device_put(np.asarray(rows.losses)[int(np.sum(stops.saves_row)) - 1])
        flow = self._to_trajectory(join_rows(*parts), state, jit_outcome(descent, state))
        paused = goal < self.plan.steps and not ended
        if paused and not result_is(flow.result, RESULTS.event_overflow):
            flow = replace_fields(flow, result=RESULTS.max_steps_reached)
        return replace_fields(flow, continuation=_state_at_end(state, flow.end, loss))

    def trace_whole_run(self) -> Trajectory:
        """Run as a whole in loops of fixed length, under `jit`, `vmap` and derivatives."""
        plan = self.plan
        assert plan is not None
        looks, every = plan.next_row_steps(-1, plan.row_count), self.descent.batch_size is None
        gaps = np.diff(looks)
        stops = RowSchedule(
            stop_steps=jnp.asarray(looks, jnp.int32),
            saves_row=jnp.ones(len(gaps), bool),
            stop_count=len(gaps),
            longest_stretch=int(np.max(gaps)),
            is_even=bool(np.all(gaps == gaps[0])),
        )
        start, descent = compile_initial_state(self.without_names), self.descent.without_names
        state = replace_fields(start.solver, parameters=start.parameters)
        first = jit_row(descent, state)
        state, rows = jit_advance(descent, state, stops, plan.steps)
        found, clock = jit_outcome(descent, state), descent.clock

        def prepend_row(first: PyTree, rows: PyTree) -> PyTree:
            return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rows)

        saved = prepend_row(first[:3], rows[:3])
        looked = clock * jnp.arange(plan.steps + 1, dtype=clock.dtype) if every else saved[0]
        # Rows after a terminating event repeat its state, which is saved once, as the last row.
        asked, ends = (
            plan.is_saved(looks),
            any(w.terminate for w in descent.observers.observer.watches),
        )
        chosen = asked | ends & (looks == plan.steps)
        ts, losses, observed = jax.tree.map(lambda a: a[chosen], saved)
        kept = jnp.concatenate([jnp.ones(1, bool), ts[1:] > ts[:-1]])
        kept = kept & (asked[chosen] | (found.result == RESULTS.event_occurred))
        since = self._steps_between(np.arange(plan.steps + 1) if every else looks)
        part = _RowBlock(
            ts=jnp.where(kept, ts, jnp.inf),
            losses=losses,
            observed=observed,
            count_times=jnp.where(looked <= found.end, looked, jnp.inf),
            count_widths=clock * since.astype(clock.dtype),
            counts=rows.counts if every else prepend_row(first.counts, rows.counts),
            count_steps=np.arange(plan.steps + 1) if every else looks,
        )
        return self._to_trajectory(part, state, found)

    @property
    def _steps_per_program(self) -> int:
        """The steps of one program, where it counts units at every step; 0 where it does not."""
        every_step = self.descent.batch_size is None and self.descent.observers.counters
        return STEPS_PER_PROGRAM if every_step else 0

    def _next_schedule(self, at: int, after: int, goal: int) -> RowSchedule:
        """Return the next stops that one program has room for, up to the step `goal`."""
        assert self.plan is not None
        last = min(goal, at + self._steps_per_program) if self._steps_per_program else goal
        looks = self.plan.next_row_steps(after, self.rows)
        looks = looks[looks <= last]
        pauses = len(looks) < self.rows and (not len(looks) or looks[-1] < last)
        stops = np.append(looks, last) if pauses else looks
        filled = np.full(self.rows + 1, stops[-1], np.int32)
        filled[: len(stops) + 1] = [at, *stops]
        return RowSchedule(
            stop_steps=filled,
            saves_row=np.arange(self.rows) < len(looks),
            stop_count=np.asarray(len(stops), np.int32),
        )

    def _select_rows(
        self, stops: RowSchedule, rows: Rows, end: int, ended: bool, first: bool
    ) -> _RowBlock:
        """Select the rows that a trajectory keeps of a program's, when the run is at step `end`."""
        assert self.plan is not None
        count, at = int(stops.stop_count), np.asarray(stops.stop_steps)
        before, steps = at[:count], at[1 : count + 1]
        # Rows after a terminating event repeat its state.
        looked = np.asarray(stops.saves_row)[:count] & ((before < end) | (steps == 0))
        saved = looked & ((self.plan.is_saved(steps) & (steps <= end)) | (ended & (steps >= end)))
        ts, losses, observed = _pick_rows(rows[:3], saved)
        if self.descent.batch_size is None:
            own = np.arange(int(at[0]) + (not first), end + 1)
            times = own.astype(ts.dtype) * np.asarray(self.descent.clock)
            counts = _pick_rows(rows.counts, np.arange(end - at[0] + 1) >= (not first))
        else:
            own = steps[looked]
            times, counts = _pick_rows((rows.ts, rows.counts), looked)
        grain = self._steps_between(own).astype(ts.dtype) * np.asarray(self.descent.clock)
        return _RowBlock(ts, losses, observed, times, grain, counts, own)

    def _steps_between(self, steps: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
        """Return for each count how many steps it comes after the one before it."""
        assert self.plan is not None
        if self.descent.batch_size is None:  # counted at every step
            return np.ones(len(steps), int)
        return self.plan.steps_between(steps)

    def _window_counts(self, part: _RowBlock, counts: PyTree) -> WindowCounts:
        """Return open and closed counts of every window, at the time of the window's start.

        A unit that is linear in a window became so in it or in the one before.
        """
        hidden, clock, found = self.network.hidden, self.descent.clock, {}
        pairs = iter(counts)
        for quantile, length in self.descent.observers.windows:
            ends = np.flatnonzero((part.count_steps > 0) & (part.count_steps % length == 0))
            width = jnp.full(len(ends), length, clock.dtype) * clock
            for layer, units in enumerate(hidden):
                both = [next(pairs), next(pairs)]
                found[layer, quantile, length] = tuple(
                    UnitCounts(part.count_times[ends] - width, width, on[ends], off[ends], units)
                    for on, off in both
                )
        return found

    def _to_trajectory(
        self, part: _RowBlock, state: DescentState, found: DescentOutcome
    ) -> Trajectory:
        """Make the trajectory of a run from its rows, its state and its outcome."""
        look, hidden = self.descent.observers, self.network.hidden
        keys = [(layer, q) for q in look.quantiles for layer in range(len(hidden))]
        networks = self.observables.functions is None
        counts = {"num_steps": state.step}
        if look.observer.watches:
            counts["unresolved_crossings"] = state.unresolved.count
        return Trajectory(
            ts=part.ts,
            losses=part.losses,
            observed={} if networks else self.observables.with_names(part.observed),
            events=log_with_names(found.events, look.observer.watches),
            model=self.network.with_parameters(state.parameters),
            end=found.end,
            result=found.result,
            saved=part.observed if networks else None,
            counts=counts,
            labels=self.reference.choice.stat_labels,
            dense=None,
            step_counts={
                (layer, q): UnitCounts(part.count_times, part.count_widths, on, off, hidden[layer])
                for (layer, q), (on, off) in zip(keys, part.counts, strict=False)
            },
            window_counts=self._window_counts(part, part.counts[len(keys) :]),
            samples=self.task.samples,
            tau=self.descent.problem.tau,
            discrete=True,
            reference=self.reference,
            continuation=None,
        )


def _state_at_end(state: DescentState, end: Array, loss: Array) -> RunState:
    return RunState(
        t=end,
        parameters=state.parameters,
        solver=replace_fields(state, parameters=()),
        controller=(),
        counts={name: state.step for name in ("num_steps", "num_accepted_steps")},
        loss=loss,
    )


def _pick_rows(tree: PyTree, kept: Bool[np.ndarray, " R"]) -> PyTree:
    """Return of every array the rows where `kept` is True."""
    return jax.tree.map(lambda a: a[kept], first_rows(tree, len(kept)))


def _key_numbers(key: Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def _trial_updates(descent: Descent) -> PyTree:
    """Return the updates of an optimiser in three steps, by which two of them are told apart.

    An optimiser is made of functions, which cannot be compared. It goes down half the sum of the
    squares of the parameters, whose gradient they are.
    """
    optimiser, parameters = descent.optimiser, descent.network.parameters
    if optimiser is None:
        return None

    def half_square(parameters: PyTree) -> PyTree:
        return tree_dot(parameters, parameters) / 2

    @eqx.filter_jit
    def three_updates(parameters: PyTree) -> PyTree:
        state, found = optimiser.init(parameters), []
        for _ in range(3):  # the first one does not show how rates decay
            updates, state = optimiser_update(optimiser, parameters, state, parameters, half_square)
            found.append(updates)
        return found, state

    found = three_updates(parameters)
    numbers = [a for a in jax.tree.leaves(found) if eqx.is_array(a)]
    numbers = [
        _key_numbers(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a for a in numbers
    ]
    return str(jax.tree.structure(found)), numbers
