"""Margins along a step, as polynomials, and where the first of them ends."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools.arrays import places
from flowlin.engine.kinks.walk import Pieces, _Curve, _points
from flowlin.events.watch import SLOTS, Path
from flowlin.training.problem import Problem


def margins(at):
    """Two of three pairs' margins fall to zero, at arccos(.2) / 9 and .9 of the step."""
    at = np.asarray(at)[..., None, None, None]
    own = np.concatenate([np.cos(9 * at) - 0.2, 0.9 - at, 2 + np.sin(20 * at)], axis=-1)
    return np.concatenate([own, np.ones_like(own)], axis=-3)


@pytest.mark.parametrize("count", [30, 41, 65])  # five to eight hidden layers
def test_polynomials_of_high_degree_keep_their_digits(count):
    points = _points(count)
    curve = _Curve.through(points, jnp.asarray(margins(points)))
    for at in (0.0, 0.1234, 0.5, 0.97, 1.0):
        np.testing.assert_allclose(curve(jnp.asarray(at)), margins(at), atol=1e-12)
    found, before, after = curve.first_fall()
    assert found
    low, high = curve.first_root(before, after)
    assert float(low) <= np.arccos(0.2) / 9 + 1e-13
    np.testing.assert_allclose(high, np.arccos(0.2) / 9, atol=1e-11)


def test_a_dip_between_grid_points_is_found_and_a_miss_is_not():
    points = _points(9)
    for deep, found in ((1e-4, True), (-1e-4, False)):  # the bottom, at .537, lies so far below
        values = 20 * (points - 0.537) ** 2 - deep
        curve = _Curve.through(
            points, jnp.asarray(values[:, None, None, None] + np.zeros((2, 1, 1)))
        )
        fell, before, after = curve.first_fall()
        assert bool(fell) is found
        if found:
            _, high = curve.first_root(before, after)
            np.testing.assert_allclose(high, 0.537 - np.sqrt(deep / 20), atol=1e-11)


@pytest.mark.parametrize(
    ("hidden", "rtol", "solver"),
    [
        (16, 1e-10, diffrax.Tsit5),
        ((4, 4), 1e-5, diffrax.Bosh3),
        ((4, 4), 1e-8, diffrax.Tsit5),
        ((4, 4), 1e-9, diffrax.Dopri8),
    ],
)
def test_solver_of_a_walk(tree, key, hidden, rtol, solver):
    network = fl.ReLUNetwork.init(tree, hidden, key=key)
    problem = Problem(network, tree, fl.SquaredError(), jnp.asarray(1.0))
    assert isinstance(fl.ExactKinks().method(problem, None, rtol)[0], solver)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_places_are_those_of_nonzero(share):
    chosen = np.random.default_rng(0).random(20) < share
    for size in (1, 4, 20, 30):
        (expected,) = jnp.nonzero(chosen, size=size, fill_value=99)
        np.testing.assert_array_equal(places(jnp.asarray(chosen), size, 99), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_times_along_a_step_of_several_pieces(count):
    """Every piece has slots of its own, of equal length; an end of a piece is an end of a slot."""
    ends = np.sort(np.random.default_rng(count).uniform(3.0, 5.0, count))
    starts, far = np.append(3.0, ends[:-1]), np.full(8 - count, np.inf)
    pieces = Pieces(jnp.append(starts, far), jnp.append(ends, far), {})
    path = Path(
        diffrax.LocalLinearInterpolation,
        jnp.asarray(3.0),
        jnp.asarray(ends[-1]),
        {"pieces": pieces},
        (),
    )
    owners = [slot * count // SLOTS for slot in range(SLOTS)]
    marks = [np.linspace(starts[k], ends[k], owners.count(k), endpoint=False) for k in range(count)]
    marks = np.append(np.concatenate(marks), ends[-1])
    fractions = np.linspace(0, 1, 81)
    expected = np.interp(fractions, np.linspace(0, 1, SLOTS + 1), marks)
    np.testing.assert_allclose(path.times(fractions), expected, rtol=1e-15)
