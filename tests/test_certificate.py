"""Largest learning rates: against closed forms, public descents, and brute force for chatter."""

import dataclasses
import itertools
import math

import diffrax
import jax
import numpy as np
import pytest
from scipy.optimize import brentq

import flowlin as fl

KINKS = fl.SmoothKinks(1e-4)  # sliding pairs hover; exact walks take long to compile


@pytest.fixture(scope="module")
def scalar():
    """One weight on L = lambda w^2 / 2, lambda = 4: flow exp(-4t), descent (1 - 4 eps)^k."""
    plain = {
        "task": fl.Task(np.full((1, 1), 2.0), np.zeros((1, 1))),
        "network": fl.LinearNetwork((np.ones((1, 1)),)),
        "t1": 2.0, "tau": 2.0, "events": (fl.LossBelow(0.5),), "rtol": 1e-9,
        "solver": diffrax.Tsit5(),
    }  # fmt: skip

    def certified(within=0.01, **options):
        return fl.largest_learning_rate(within=within, **plain | options)

    return certified


@pytest.fixture(scope="module")
def quadratic(scalar):
    return scalar()


def test_a_quadratic_has_closed_forms(quadratic):
    """The relative error is 1 - (1 - 4 eps)^(t / (eps tau)) e^(4 t / tau), largest at the end."""
    found = quadratic
    assert found.edge == pytest.approx(0.5, rel=0.02)

    def off(rate, k=None):  # t1 / tau = 1
        return 1 - math.exp(math.log1p(-4 * rate) / rate + 4)

    def loss(rate):  # over the initial loss, at the worst of the 128 times
        t = np.floor(np.arange(129) / 128 * round(1 / rate)) * rate
        return np.max(np.abs((1 - 4 * rate) ** (2 * t / rate) - np.exp(-8 * t)))

    def late(rate):  # L = 2 w^2 falls to 1/2 at w = 1/2
        k = math.ceil(round(math.log(0.5) / math.log1p(-4 * rate), 9))
        before, after = (2 * (1 - 4 * rate) ** (2 * j) for j in (k - 1, k))
        time = 2 * rate * (k - 1 + (before - 0.5) / (before - after))
        return abs(time / (math.log(2) / 2) - 1)

    small = found.rates < 0.02
    for accuracy, exact in (
        (found.parameters, off), (found.function, off), (found.loss, loss), (found.events, late)
    ):  # fmt: skip
        errors = [exact(rate) for rate in found.rates[small]]
        assert np.allclose(accuracy.errors[small], errors, rtol=1e-4, atol=1e-9)
        k = list(found.rates).index(accuracy.rate)
        assert accuracy.errors[k] <= 0.01 < accuracy.errors[k + 1]
        assert found.rates[k + 1] <= 1.05 * accuracy.rate or accuracy.rate > 0.02
    assert found.parameters.rate == pytest.approx(
        brentq(lambda rate: off(rate) - 0.01, 1e-6, 0.1), rel=0.05
    )
    assert found.parameters.slope == pytest.approx(1.0, abs=0.05)
    assert found.loss.slope == pytest.approx(1.0, abs=0.05)
    assert found.chattering is None


def test_that_no_rate_suffices_is_told(scalar, quadratic):
    assert quadratic.rates[-1] > 1 / 64
    none = scalar(1e-6, max_steps=64)
    assert math.isnan(none.parameters.rate)
    assert "no rate from 0.0156 on is within 0.0001 %" in none.table()[0]["limit"]
    assert none.rates[0] == 1 / 64
    assert [row["quantity"] for row in none.table()] == ["parameters", "function", "loss", "events"]
    with pytest.raises(ValueError, match="`max_steps` = 1 is too small"):
        scalar(max_steps=1)
    with pytest.raises(ValueError, match=r"`t1` takes 1e\+308 steps"):
        scalar(t1=1e308)  # before a flow is computed, which would not end


@pytest.mark.slow
def test_a_single_step_in_float32_whose_events_are_still_to_come(scalar):
    """One step to t1 is the largest rate that can be tried, far below the edge; no event is due."""
    found = scalar(
        network=fl.LinearNetwork((np.ones((1, 1), np.float32),)),
        t1=0.02,
        events=(fl.LossBelow(1e-9),),
        rtol=2e-6,
    )
    assert found.steps.tolist() == [2, 1]
    np.testing.assert_allclose(found.rates, [0.005, 0.01])
    exact = [1 - (1 - 4 * 0.01 / n) ** n * math.exp(0.04) for n in (2, 1)]
    np.testing.assert_allclose(found.parameters.errors, exact, rtol=1e-3)
    assert found.events is None
    limits = {row["quantity"]: row["limit"] for row in found.table()}
    assert limits == dict.fromkeys(
        ("parameters", "function", "loss"), "largest rate tried, 1 step(s) to t1"
    )
    near = dataclasses.replace(found, edge=0.0101)
    assert near.table()[0]["limit"] == "stability edge 0.0101"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("y", "level", "message"),
    [
        (2.0, 0.5, "`network` does not move on this `task`"),
        (0.0, 2.0, "happens at t = 0"),  # the initial loss
    ],
)
def test_errors_must_be_relative_to_something(scalar, y, level, message):
    task = fl.Task(np.full((1, 1), 2.0), np.full((1, 1), y))
    with pytest.raises(ValueError, match=message):
        scalar(task=task, events=(fl.LossBelow(level),))


@pytest.fixture(scope="module")
def relu(tree):
    network = fl.ReLUNetwork.init(tree, 12, 0.01, key=jax.random.key(3))
    options = {"kinks": KINKS, "rtol": 1e-6, "solver": diffrax.Tsit5()}
    return network, fl.largest_learning_rate(network, tree, 2.0, 0.02, precision=0.5, **options)


@pytest.mark.slow
def test_relu_errors_are_those_of_compare(tree, relu):
    network, found = relu
    k = len(found.rates) // 2
    steps = round(2.0 / found.rates[k])
    descent = fl.gradient_descent(network, tree, 2.0 / steps, steps, save_every=1)
    options = {"kinks": KINKS, "rtol": 1e-6, "solver": diffrax.Tsit5()}
    flow = fl.gradient_flow(network, tree, 2.0, dense=True, **options)  # as of the certificate
    both = fl.compare(flow, descent)
    worst = np.max(both.parameters), np.max(both.function), np.max(np.abs(both.loss))
    mine = found.parameters, found.function, found.loss
    scale = 1, 1, float(flow.losses[0])
    for accuracy, all_steps, unit in zip(mine, worst, scale, strict=True):
        assert accuracy.errors[k] * unit <= all_steps * (1 + 1e-6)
        assert accuracy.errors[k] * unit == pytest.approx(float(all_steps), rel=0.03)
    assert found.parameters.slope == pytest.approx(1.0, abs=0.1)
    assert found.events is None

    # Pairs count while they slide from one of the 128 times to the next, at every step.
    z = np.asarray(jax.vmap(lambda n: n.preactivations(tree.x)[0])(descent.networks))
    gates, widest, seen = flow.events, 0.0, 0
    time, pair, side = (np.asarray(a) for a in (gates.time, gates.component, gates.new))
    for unit, sample in np.ndindex(12, 8):
        own = pair == 8 * unit + sample
        borders = [*time[own], 2.0]
        for start, end in itertools.pairwise(borders):
            if side[own][list(time[own]).index(start)] != 0:
                continue
            stops = np.arange(129) * steps // 128
            inside = stops[(stops * 2.0 / steps >= start) & (stops * 2.0 / steps < end)]
            if end == 2.0 and len(inside):
                inside = [*inside, steps]
            if len(inside) and inside[-1] > inside[0]:
                seen += 1
                widest = max(
                    widest, np.max(np.abs(z[inside[0] + 1 : inside[-1] + 1, sample, unit]))
                )
    assert seen >= 3
    assert found.chattering.errors[k] == pytest.approx(widest, rel=1e-6)
    assert math.isnan(found.chattering.rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"within": 0.6}, "`within` must be a relative error below 0.5"),
        ({"precision": 0.0}, "`precision` must be finite and positive"),
        ({"events": (fl.UnitSwitches(),)}, "Pass events of observables"),
        ({"events": (fl.LossBelow(0.1, terminate=True),)}, "`terminate=False`"),
    ],
)
def test_bad_input(tree, options, message):
    network = fl.LinearNetwork.init(tree, 2, key=jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        fl.largest_learning_rate(network, tree, 1.0, **options)
