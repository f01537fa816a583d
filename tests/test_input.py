"""Bad input: every error is clear, names the argument and says what to do."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

TASK = fl.tasks.hierarchy()
NETWORK = fl.LinearNetwork.init(TASK, 4, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones(3), np.ones((3, 1)), "`x` must have one row per sample"),
        (np.ones((3, 2)), np.ones((2, 1)), "rows are samples"),
        (np.ones((0, 2)), np.ones((0, 1)), "`x` is empty"),
        (np.array([[1.0, np.nan]]), np.ones((1, 1)), "NaN or infinite"),
        (np.ones((1, 1)), np.array([[np.inf]]), "`y` holds 1 value"),
    ],
)
def test_tasks(x, y, message):
    with pytest.raises(ValueError, match=message):
        fl.Task(x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t1": 0.0}, "`t1` must be finite and positive, got 0.0"),
        ({"t1": -1.0}, "`t1` must be finite and positive"),
        ({"t1": np.inf}, "`t1` must be finite"),
        ({"t1": [1.0]}, r"`t1` must be a single number, got shape \(1,\)"),
        ({"tau": np.ones(2)}, r"`tau` must be a single number, got shape \(2,\)"),
        ({"tau": 0.0}, "`tau` must be finite and positive"),
        ({"ts": []}, "`ts` must be a non-empty list"),
        ({"ts": [0.0, 2.0, 1.0]}, "`ts` must be strictly ascending"),
        ({"ts": [0.0, 9.0]}, "`ts` runs from 0 to 9, outside the run's"),
        ({"ts": [-1.0, 2.0]}, "outside the run's"),
        ({"rtol": -1e-3}, "`rtol` must be finite and positive"),
        ({"rtol": 1e-17}, "finer than float64 can hold"),
        ({"atol": 0.0}, "`atol` must be finite and positive"),
        (
            {"events": (fl.Crossing(lambda n, t: jnp.sum(n.weights[0] > 0)),)},
            "return a floating-point",
        ),
        (
            {"events": (fl.ModeHits(fl.theory.modes(TASK), [0.1, 0.2]),)},
            "`rho` must be a number or have shape",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_runs(options, message):
    with pytest.raises(ValueError, match=message):
        fl.gradient_flow(NETWORK, TASK, **{"t1": 5.0, **options})


# The tests' type checker would speak before the library does, so these run without it.
WRONG_TYPES = {
    "fl.gradient_flow(relu, task, 1.0, kinks='smooth')": "`kinks` must be an object such as",
    "fl.gradient_flow(relu, task, 1.0, events=(max,))": "wrap a function as fl.Crossing(function)",
    "fl.gradient_flow('relu', task, 1.0)": "`network` must be a flowlin network, got str",
    "fl.SquaredError('median')": '`reduction` must be "mean" or "sum"',
    "fl.Crossing(max, direction='sideways')": "`direction` must be None",
}


def test_wrong_types():
    code = f"""
import flowlin as fl, jax
task = fl.tasks.xor()
relu = fl.ReLUNetwork.init(task, 4, key=jax.random.key(0))
for call, message in {WRONG_TYPES!r}.items():
    try:
        eval(call)
    except ValueError as error:
        assert message in str(error), (call, str(error))
    else:
        raise AssertionError(call + " raised nothing")
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_network_and_task_must_fit():
    with pytest.raises(ValueError, match="maps 8 inputs to 15 outputs, but `task` 'xor'"):
        fl.gradient_flow(NETWORK, fl.tasks.xor(), 1.0)


def test_float32_refuses_tolerances_that_it_cannot_hold():
    single = NETWORK.astype(jnp.float32)
    with pytest.raises(ValueError, match=r'jax.config.update\("jax_enable_x64", True\)'):
        fl.gradient_flow(single, TASK, 1.0, rtol=1e-12)


def test_max_steps_keeps_what_was_computed():
    with pytest.raises(fl.RunError, match="`max_steps` = 7 reached at t = ") as caught:
        fl.gradient_flow(NETWORK, TASK, 60.0, max_steps=7, ts=np.linspace(0, 60, 601))
    partial = caught.value.trajectory
    assert 0 < float(partial.end) < 60
    assert 1 < len(partial.ts) < 601
    assert float(partial.ts[-1]) <= float(partial.end)
    assert jnp.all(jnp.isfinite(partial.losses))
    quiet = fl.gradient_flow(NETWORK, TASK, 60.0, max_steps=7, throw=False)
    assert bool(quiet.result == fl.RESULTS.max_steps_reached)
    assert float(quiet.end) == float(partial.end)


class Breaking(fl.SquaredError):
    """A loss that is NaN below a level, gradient included if `hard`."""

    hard: bool = False

    def total(self, outputs, targets):
        total, level = super().total(outputs, targets), targets.shape[0]
        if self.hard:
            return jnp.where(total < level, jnp.sqrt(total - level), total)
        return jnp.where(total < level, jnp.nan, total)


@pytest.mark.parametrize("hard", [False, True])
def test_nan_in_the_loss_leaves_what_was_computed(hard):
    relu = fl.LinearNetwork.init(TASK, 4, 0.05, key=jax.random.key(0)).frozen(TASK)
    ts = jnp.linspace(0, 30, 301)
    flow = fl.gradient_flow(relu, TASK, 30.0, loss=Breaking(hard=hard), ts=ts, throw=False)
    good = int(jnp.sum(jnp.isfinite(flow.losses)))
    assert good > 3
    assert float(flow.losses[good - 1]) >= 1.0
    expected = fl.RESULTS.dt_min_reached if hard else fl.RESULTS.not_finite
    assert bool(flow.result == expected)
    with pytest.raises(fl.RunError):
        fl.gradient_flow(relu, TASK, 30.0, loss=Breaking(hard=hard), ts=ts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.SmoothKinks(0.0), "`width` must be finite and positive"),
        (lambda: fl.Crossing(lambda n, t: 0.0, level=np.nan), "`level` holds 1 value"),
        (lambda: fl.theory.bias_mode(TASK, np.nan), "`bias_strength` holds 1 value"),
        (lambda: fl.UnitSwitches(0.5), r"`quantile` must lie in \[0, 0.5\)"),
    ],
)
def test_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
