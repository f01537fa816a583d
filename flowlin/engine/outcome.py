"""The end of a flow's solve: how it ended, when and where, by solver, recorder and walk."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.engine.kinks.sides import NO_SIDES, NO_SLOTS
from flowlin.engine.kinks.walk import WalkState
from flowlin.engine.recorder import RecorderState
from flowlin.record.buffer import EventBuffer
from flowlin.record.results import RESULTS, is_success


class FlowOutcome(eqx.Module):
    """The end of a run as far as it is known: its result, when, where, and the user's events."""

    result: PyTree
    end: Array
    final: Parameters
    log: EventBuffer | None

    def with_failure(self, failed: Array, why: PyTree) -> "FlowOutcome":
        """Return it with the result `why` where a run `failed` that was fine or paused.

        A log that overflows before a pause must be seen at that pause: what did not fit is lost.
        """
        fine = is_success(self.result) | (self.result == RESULTS.max_steps_reached)
        result = RESULTS.where(failed & fine, why, self.result)
        return FlowOutcome(result, self.end, self.final, self.log)

    def with_recorder(self, state: RecorderState) -> "FlowOutcome":
        """Return it with a recorder's log, and the event that ended the run if one did."""
        log, result, end, final = state.log, self.result, self.end, self.final
        if state.stop_state is not None:
            ended = jnp.isfinite(state.stop_time)
            end = jnp.minimum(end, state.stop_time)
            result = RESULTS.where(ended, RESULTS.event_occurred, result)  # pyright: ignore
            final = jax.tree.map(lambda a, b: jnp.where(ended, a, b), state.stop_state, final)
        found = FlowOutcome(result, end, final, log)
        return found.with_failure(log.has_overflowed, RESULTS.event_overflow)

    def with_walk(self, state: WalkState) -> "FlowOutcome":
        """Return it with the undecided event that stopped an exact walk, if one did."""
        found = self.with_failure(state.log.has_overflowed, RESULTS.event_overflow)
        result = found.result
        for trouble, why in (
            (NO_SLOTS, RESULTS.slide_overflow),
            (NO_SIDES, RESULTS.sides_unsolved),
        ):
            result = RESULTS.where(jnp.any(state.sides.failure == trouble), why, result)
        return FlowOutcome(result, jnp.minimum(self.end, state.failure_time), self.final, self.log)
