"""Closed forms: NaN stays NaN, elementwise, and arguments out of range are told."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

theory = fl.theory

# A valid value of every argument of a closed form, and those of matrices.
VALUES = {
    "t": 0.3, "rho": 0.2, "s": 1.2, "d": 0.8, "a0": 0.05, "imbalance": 0.1, "depth": 3.0,
    "g": 0.5, "tau": 1.5, "w1": 0.2, "w2": 0.3, "variance": 0.9, "balance": 0.0,
    "p": np.array([0.1, 0.2]), "q": np.array([0.3, -0.1]),
}  # fmt: skip
MATRICES = {
    "w0": np.full((2, 3), 0.1), "s_x": np.diag([1.0, 0.5, 0.2]), "w1": np.full((2, 3), 0.2),
    "w2": np.full((2, 2), 0.1), "s_yx": np.array([[0.4, 0.1, 0.0], [0.2, 0.3, 0.1]]),
}  # fmt: skip
MATRIX = MATRICES["w0"], MATRICES["s_yx"], MATRICES["s_x"]
OTHERS = {
    "after_linearization", "balanced_strength", "bias_mode", "early_phase", "lazy",
    "learning_coefficient", "modes", "race", "slowed_clock", "solve",
}  # fmt: skip


def closed_forms() -> dict:
    """All of `fl.theory` that is a function of numbers."""
    public = {name: thing for name, thing in vars(theory).items() if not name.startswith("_")}
    functions = {n: f for n, f in public.items() if callable(f) and not inspect.isclass(f)}
    return {name: form for name, form in functions.items() if name not in OTHERS}


def arguments(form) -> dict:
    """Three of every number, side by side; matrices are one for all three times."""
    names = list(inspect.signature(form).parameters)
    if "s_yx" not in names:
        return {name: jnp.stack(3 * [jnp.asarray(VALUES[name])]) for name in names}
    known = {**VALUES, **MATRICES, "t": np.full(3, VALUES["t"])}
    return {name: jnp.asarray(known[name]) for name in names}


def with_nan(given: dict, word: str) -> tuple[dict, bool]:
    """The arguments with a NaN in the second of the three, and whether it is of this one alone."""
    value = given[word]
    alone = "s_yx" not in given or word == "t"
    bad = value.at[(1, ...) if alone else (0,) * value.ndim].set(jnp.nan)
    return {**given, word: bad}, alone


@pytest.mark.parametrize("name", closed_forms())
def test_nan_stays_nan(name):
    form = closed_forms()[name]
    given = arguments(form)
    found = jax.jit(lambda given: jax.tree.leaves(form(**given)))
    expected = found(given)
    for word in given:
        bad, alone = with_nan(given, word)
        for leaf, before in zip(found(bad), expected, strict=True):
            assert np.all(np.isnan(leaf[1])), word
            if alone:
                np.testing.assert_array_equal(leaf[::2], before[::2], word)
            else:
                assert np.all(np.isnan(leaf)), word


@pytest.mark.parametrize("name", ["hitting_time", "mode_vectors", "unbalanced_hitting_time"])
def test_nan_leaves_the_derivatives_of_others_alone(name):
    form = closed_forms()[name]
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
    nan = float("nan")
    assert np.isnan(theory.hitting_time(0.5, nan, 1, 0.01))
    found = theory.mode_strength([0.1, nan, 0.2], 1.0, 1.0, 0.01)
    np.testing.assert_array_equal(np.isnan(found), [False, True, False])
    slope = jax.grad(lambda s: theory.mode_strength(jnp.array([0.1, nan]), s, 1.0, 0.1)[0])(1.0)
    assert slope > 0


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.mode_strength(-1.0, 1, 1, 0.1), "`t` must be zero or positive.*got -1.0"),
        (lambda: theory.mode_strength(1.0, -1, 1, 0.1), "`s` must be zero or positive"),
        (lambda: theory.mode_strength(1.0, 1, 1, -0.1), "`a0` must be zero or positive"),
        (lambda: theory.hitting_time(0.5, 1, [0.1, -2], 0.1), r"`d` must be .*got -2"),
        (lambda: theory.hitting_time(0.5, 1, 1, 0.1, tau=0.0), "`tau` must be positive"),
        (lambda: theory.hitting_time("0.5", 1, 1, 0.1), "`rho` must be an array of"),
        (lambda: theory.hitting_time(0.5, None, 1, 0.1), "`s` must be an array of"),
        (lambda: theory.hitting_time(0.5, 1j, 1, 0.1), "`s` must be an array of real"),
        (lambda: theory.hitting_time([0.5, 1], [1, 1, 1], 1, 0.1), r"`rho` \(2,\), `s` \(3,\)"),
        (lambda: theory.gating_delay(1.0, 1.0, 0.1, -0.1), r"`g` must be in \[0, 1\]"),
        (lambda: theory.gating_delay(1.0, 1.0, 0.1, 1.5), r"`g` must be in \[0, 1\]"),
        (lambda: theory.deep_half_time(1.0, 1.0, 0.1, 1.5), "`depth` must be 1, or 2 and more"),
        (lambda: theory.deep_inflection_level(1.0, -1.0, 3), "`d` must be zero or positive"),
        (lambda: theory.imbalance(0.1, [0.1, 0.2]), "`p` must hold vectors"),
        (lambda: theory.imbalance([0.1, 0.2, 0.3], [0.1, 0.2]), "`p` and `q` must have the same"),
        (lambda: theory.half_time(1.0, 1.0, 0.1, 0.0, -1.0), "`tau` must be positive"),
        (lambda: theory.inflection_levels(1.0, -1.0, 0.1), "`d` must be zero or positive"),
        (lambda: theory.single_layer(-0.1, *MATRIX), "`t` must be zero or positive"),
        (lambda: theory.single_layer(0.1, *MATRIX, tau=0), "`tau` must be positive"),
        (lambda: theory.single_layer(0.1, 1.0, *MATRIX[1:]), "`w0` must hold matrices"),
        (lambda: theory.balanced_gram(0.1, "w", *MATRIX[:2]), "`w1` must be an array of"),
    ],
)
def test_arguments_out_of_range_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_misspelt_argument_is_told():
    with pytest.raises(TypeError, match="did you mean `tau`"):
        theory.hitting_time(0.5, 1.0, 1.0, 0.1, tua=1.0)  # pyright: ignore
