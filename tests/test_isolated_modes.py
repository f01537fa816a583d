"""`theory.Mode`: it takes the closed form of its depth, and goes through transformations whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import flowlin as fl

theory = fl.theory
S, D, A0, TAU = np.array([1.0, 0.6]), np.array([0.5, 0.8]), np.array([0.02, 0.1]), 1.3


@jax.jit
def everything(mode):
    """At one time and level, and the derivatives of the half-time."""
    slope = jax.grad(lambda mode: jnp.sum(mode.half_time))(mode)
    times = mode.half_time, mode.inflection_time
    return mode.strength(2.0), mode.hitting_time(0.2), *times, slope.s, slope.a0


@jax.jit
def by_functions(s, a0):
    """The same by Eqs. 7 and 13 of the lead paper, whose modes are balanced."""

    def half(s, a0):
        return theory.hitting_time(s / (2 * D), s, D, a0, TAU)

    slope = jax.grad(lambda *mode: jnp.sum(half(*mode)), argnums=(0, 1))(s, a0)
    strength, time = (
        form(z, s, D, a0, TAU)
        for form, z in ((theory.mode_strength, 2.0), (theory.hitting_time, 0.2))
    )
    return strength, time, half(s, a0), half(s, a0), *slope


def test_a_mode_goes_through_transformations_whole():
    found = everything(theory.Mode(S, D, A0, tau=TAU))
    for a, b in zip(found, by_functions(S, A0), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_unbalanced_mode_and_a_deep_one_by_quadrature():
    """The time to half of the strength, from the equation of motion."""
    for mode in (theory.Mode(1.0, 0.5, 0.02, imbalance=0.3), theory.Mode(1.0, 0.5, 0.02, 3)):

        def slowness(a, deep=not mode.two_layers):
            return 1 / ((3 * a ** (4 / 3) if deep else np.hypot(0.3, 2 * a)) * (1 - 0.5 * a))

        expected = scipy.integrate.quad(slowness, 0.02, 1.0)[0]
        found = jax.jit(lambda mode: mode.half_time)(mode)
        assert float(found) == pytest.approx(expected, rel=1e-8)


def test_modes_map_and_depths_broadcast():
    single = jax.jit(jax.vmap(lambda s, d, a0: theory.Mode(s, d, a0, tau=TAU).half_time))(S, D, A0)
    np.testing.assert_allclose(single, everything(theory.Mode(S, D, A0, tau=TAU))[2], rtol=1e-12)
    deep = theory.Mode(1.0, 0.5, 0.1, depth=np.array([1.0, 2.0, np.inf]))
    np.testing.assert_allclose(deep.inflection_level, [np.nan, 1.0, 4 / 3], rtol=1e-15)
    unknown = everything(theory.Mode(S, D, A0 * np.array([1.0, np.nan]), tau=TAU))
    assert np.isnan(unknown[2]).tolist() == [False, True]
    assert repr(theory.Mode(1.0, 0.5, 0.1)) == (
        "Mode(s = 1, d = 0.5, a0 = 0.1, depth = 2, imbalance = 0, tau = 1)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": -1.0}, "`d` must be zero or positive"),
        ({"depth": 1.5}, "`depth` must be 1, or 2 and more"),
        ({"tau": 0.0}, "`tau` must be positive"),
        ({"s": -1.0, "depth": 3}, "`s` must be zero or positive"),
        ({"depth": 3, "imbalance": 0.1}, "`imbalance` must be 0, and known to be"),
        ({"s": S, "d": np.ones(3)}, r"shapes do not broadcast: `s` \(2,\), `d` \(3,\)"),
    ],
)
def test_modes_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        theory.Mode(**{"s": 1.0, "d": 1.0, "a0": 0.1, **options})
