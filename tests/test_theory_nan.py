"""Closed forms: NaN stays NaN, elementwise, and leaves the derivatives of the others alone."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

theory = fl.theory

# A valid value of every argument; matrices are one for all times.
VALUES = {
    "t": 0.3, "rho": 0.2, "level": 0.2, "s": 1.2, "d": 0.8, "a0": 0.05, "imbalance": 0.1,
    "depth": 3.0, "g": 0.5, "tau": 1.5, "w1": 0.2, "w2": 0.3, "variance": 0.9, "balance": 0.0,
    "p": np.array([0.1, 0.2]), "q": np.array([0.3, -0.1]),
}  # fmt: skip
MATRICES = {
    "w0": np.full((2, 3), 0.1), "s_x": np.diag([1.0, 0.5, 0.2]), "w1": np.full((2, 3), 0.2),
    "w2": np.full((2, 2), 0.1), "s_yx": np.array([[0.4, 0.1, 0.0], [0.2, 0.3, 0.1]]),
}  # fmt: skip
OTHERS = {
    "after_linearization", "balanced_strength", "bias_mode", "early_phase", "lazy",
    "learning_coefficient", "mode_starts", "modes", "race", "slowed_clock", "solve",
}  # fmt: skip
# One of numbers, one of vectors, one of matrices, and what else is soon compiled; all go through
# the same door, and the second tier has the others.
FIRST = {"gating_delay", "hitting_time", "imbalance", "mode_strength", "single_layer"}


def mode_vectors(t, s, d, p, q, tau):
    return theory.Mode.of_vectors(s, d, p, q, tau).vectors(t)


def mode_weights(t, s, d, w1, w2, tau):
    return theory.Mode.of_weights(s, d, w1, w2, tau).weights(t)


def unbalanced_strength(t, s, d, a0, imbalance, tau):
    return theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).strength(t)


def unbalanced_hitting_time(level, s, d, a0, imbalance, tau):
    return theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).hitting_time(level)


def unbalanced_start(level, t, s, d, imbalance, tau):
    return theory.Mode(s, d, imbalance=imbalance, tau=tau).start_for(level, t)


def unbalanced_levels(s, d, imbalance):
    return theory.Mode(s, d, imbalance=imbalance).inflection_levels


def unbalanced_times(s, d, a0, imbalance, tau):
    mode = theory.Mode(s, d, a0, imbalance=imbalance, tau=tau)
    return mode.half_time, mode.inflection_times


def deep_strength(t, s, d, a0, depth, tau):
    return theory.Mode(s, d, a0, depth, tau=tau).strength(t)


def deep_hitting_time(level, s, d, a0, depth, tau):
    return theory.Mode(s, d, a0, depth, tau=tau).hitting_time(level)


def deep_start(level, t, s, d, depth, tau):
    return theory.Mode(s, d, depth=depth, tau=tau).start_for(level, t)


def deep_levels(s, d, depth):
    return theory.Mode(s, d, depth=depth).inflection_levels


def deep_times(s, d, a0, depth, tau):
    mode = theory.Mode(s, d, a0, depth, tau=tau)
    return mode.half_time, mode.inflection_times


OF_MODES = (
    mode_vectors, mode_weights, unbalanced_strength, unbalanced_hitting_time, unbalanced_start,
    unbalanced_levels, unbalanced_times, deep_strength, deep_hitting_time, deep_start, deep_levels,
    deep_times,
)  # fmt: skip


def closed_forms():
    """All of `fl.theory` that is a function of numbers, and what `theory.Mode` makes of them."""
    functions = {
        name: thing
        for name, thing in vars(theory).items()
        if callable(thing) and not inspect.isclass(thing) and name[0] != "_" and name not in OTHERS
    }
    for name, form in (functions | {form.__name__: form for form in OF_MODES}).items():
        yield pytest.param(form, id=name, marks=() if name in FIRST else pytest.mark.slow)


def arguments(form) -> dict:
    """Three of every number, side by side."""
    names = [name for name in inspect.signature(form).parameters if name != "check"]
    if "s_yx" in names:
        given = {**VALUES, **MATRICES, "t": np.full(3, VALUES["t"])}
    else:
        given = {name: np.stack([value] * 3) for name, value in VALUES.items()}
    return {name: np.asarray(given[name]) for name in names}


def with_nan(given: dict, word: str) -> tuple[dict, bool]:
    """The arguments with a NaN in the second of the three, and whether it is of this one alone."""
    value, alone = np.array(given[word]), "s_yx" not in given or word == "t"
    value[(1, ...) if alone else (0,) * value.ndim] = np.nan
    return {**given, word: value}, alone


@pytest.mark.parametrize("form", list(closed_forms()))
def test_nan_stays_nan(form):
    given, found = arguments(form), jax.jit(lambda given: jax.tree.leaves(form(**given)))
    expected = found(given)
    for word in given:
        bad, alone = with_nan(given, word)
        for leaf, before in zip(found(bad), expected, strict=True):
            assert np.all(np.isnan(np.asarray(leaf)[1 if alone else ...])), word
            if alone:
                np.testing.assert_array_equal(leaf[::2], before[::2], word)


@pytest.mark.parametrize("form", [theory.hitting_time, mode_vectors, unbalanced_hitting_time])
@pytest.mark.slow
def test_nan_leaves_the_derivatives_of_others_alone(form):
    given = arguments(form)

    @jax.jit
    @jax.grad
    def slopes(given):
        found = jax.tree.leaves(form(**given))
        return sum(jnp.sum(jnp.where(jnp.isnan(one), 0.0, one)) for one in found)

    expected = slopes(given)
    for word in given:
        found = slopes(with_nan(given, word)[0])
        for other, slope in found.items():
            np.testing.assert_array_equal(slope[::2], expected[other][::2], f"{word}, {other}")


def test_nan_stays_nan_outside_jit():
    found = theory.gating_delay(1.0, 1.0, np.array([0.1, np.nan, 0.1]), 0.5)
    np.testing.assert_array_equal(np.isnan(found), [False, True, False])
