"""What diffrax makes of a step that says that it failed: the ends of runs rest on it."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import pytest

from flowlin.engine import signals

jax.config.update("jax_enable_x64", True)


class Signalling(diffrax.Euler):
    """Says so in the step that ends at t = 0.5."""

    signal: Any

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        *taken, _ = super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        result = diffrax.RESULTS.where(t1 == 0.5, self.signal, diffrax.RESULTS.successful)
        return *taken, result


def solved(signal):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y), Signalling(signal), 0.0, 1.0, 0.25, jnp.ones(()),
        stepsize_controller=diffrax.ConstantStepSize(), throw=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["EVENT", "UNDECIDED", "PAUSED"])
def test_a_signal_ends_the_run_and_keeps_its_step(name):
    signal = getattr(signals, name)
    found = solved(signal)
    assert bool(found.result == signal)
    assert int(found.stats["num_steps"]) == 2
    assert float(found.ts[-1]) == 0.5
    assert float(found.ys[-1]) == 0.75**2


def test_the_signals_differ():
    several = [signals.EVENT, signals.UNDECIDED, signals.PAUSED]
    assert len({int(signal._value) for signal in several}) == 3


def test_an_event_of_diffrax_own_would_not_be_heard():
    found = solved(diffrax.RESULTS.event_occurred)
    assert bool(found.result == diffrax.RESULTS.successful)
    assert float(found.ts[-1]) == 1.0
