"""Whether `exact` is true of every mode: random weights and tasks, against the flow by SciPy."""

import functools
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from scipy.integrate import DOP853

import flowlin as fl

MODES, HIDDEN, INPUTS, OUTPUTS = 3, 4, 4, 3
TIMES = 61
EPS = np.finfo(float).eps
KINDS = ("modes", "white", "deep")


class Draw(NamedTuple):
    """A task and weights in the bases of the modes, and these bases."""

    s: np.ndarray  # (OUTPUTS, INPUTS), Sigma_yx
    d: np.ndarray  # (INPUTS, INPUTS), Sigma_x
    weights: list[np.ndarray]  # W_1 V, ..., U^T W_L
    u: np.ndarray
    v: np.ndarray


def whole(weights):
    """W_L ... W_1."""
    return functools.reduce(lambda product, w: w @ product, weights)


def orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def little(rng):
    """Mostly nothing, else any power of ten from 1e-16 to 1."""
    return 0.0 if rng.random() < 0.75 else 10 ** rng.uniform(-16, 0)


def turned(rng, n, share):
    """A rotation away from the identity."""
    return np.linalg.qr(np.eye(n) + share * rng.normal(size=(n, n)))[0]


def drawn(rng, kind, smallest):
    """Modes of sizes 1 to 10^smallest, more or less aligned, coupled, balanced, white."""
    layers = 3 if kind == "deep" else 2
    s = np.zeros((OUTPUTS, INPUTS))
    s[:MODES, :MODES] = np.diag(rng.uniform(0.7, 1.6, MODES))
    d = np.eye(INPUTS) if kind == "white" else np.diag(rng.uniform(0.6, 1.6, INPUTS))
    mixed = rng.normal(size=(INPUTS, INPUTS))
    d = d + little(rng) * 0.1 * (mixed + mixed.T)
    a0 = 10 ** rng.uniform(smallest, 0, MODES)
    widths = [INPUTS, *[HIDDEN] * (layers - 1), OUTPUTS]
    weights = [np.zeros((b, a)) for a, b in pairwise(widths)]
    for w in weights:
        np.fill_diagonal(w[:MODES, :MODES], a0 ** (1 / layers))
    if kind == "modes":
        unequal = np.exp(rng.choice([0.0, 1.0]) * rng.normal(size=MODES))
        weights[0][:, :MODES] *= np.where(rng.random(MODES) < 0.1, -1.0, 1.0) * unequal
        weights[-1][:MODES] /= unequal[:, None]
    if kind == "white":  # not aligned, and balanced all the same
        share = rng.choice([0.0, 1.0, 10 ** rng.uniform(-16, 0)])
        weights[0] = weights[0] @ turned(rng, INPUTS, share)
        weights[-1] = turned(rng, OUTPUTS, share) @ weights[-1]
    for k in range(layers):
        noise = rng.normal(size=weights[k].shape)
        size = np.linalg.norm(weights[k], axis=0) if rng.random() < 0.5 else 1.0
        weights[k] = weights[k] + little(rng) * noise * size
    for k in range(layers - 1):
        turn = orthogonal(rng, HIDDEN)
        weights[k], weights[k + 1] = turn @ weights[k], weights[k + 1] @ turn.T
    return Draw(s, d, weights, orthogonal(rng, OUTPUTS), orthogonal(rng, INPUTS))


def problem(draw):
    """The network and the task of a draw, in the coordinates of users."""
    root = np.linalg.cholesky(draw.d).T * np.sqrt(INPUTS)
    targets = root @ np.linalg.solve(draw.d, draw.s.T)
    first, *between, last = draw.weights
    network = fl.LinearNetwork((first @ draw.v.T, *between, draw.u @ last))
    return network, fl.Task(root @ draw.v.T, targets @ draw.u.T)


def moved(weights, s, d):
    """Minus the gradient, of many networks at once."""
    error, moves = s - whole(weights) @ d, []
    for k in reversed(range(len(weights))):
        moves.append(error @ np.swapaxes(whole(weights[:k]), -1, -2) if k else error)
        error = np.swapaxes(weights[k], -1, -2) @ error
    return moves[::-1]


def by_steps(draws, ends):
    """Products of many draws in the modes' bases, (B, TIMES, OUTPUTS, INPUTS).

    Steps of order 8 by SciPy's table, of equal length for each draw, .25 of what its fastest
    direction takes.
    """
    s, d = np.stack([draw.s for draw in draws]), np.stack([draw.d for draw in draws])
    weights = [np.stack(one) for one in zip(*(draw.weights for draw in draws), strict=True)]
    stages = DOP853.n_stages
    steps = int(np.ceil(np.max(ends * [fastest(draw) for draw in draws]) / (0.25 * (TIMES - 1))))
    h = (ends / (steps * (TIMES - 1)))[:, None, None]
    found = [whole(weights)]
    for _ in range(TIMES - 1):
        for _ in range(steps):
            slopes = []
            for row in DOP853.A[:stages]:
                inner = [
                    w + h * sum((a * k[n] for a, k in zip(row, slopes, strict=False) if a), 0 * w)
                    for n, w in enumerate(weights)
                ]
                slopes.append(moved(inner, s, d))
            weights = [
                w + h * sum(b * k[n] for b, k in zip(DOP853.B, slopes, strict=True) if b)
                for n, w in enumerate(weights)
            ]
        found.append(whole(weights))
    return np.stack(found, axis=1)


def fastest(draw):
    """About the largest rate of a flow."""
    return len(draw.weights) * max(3.0, *(np.sum(w**2) for w in draw.weights))


def by_like_steps(draws, ends):
    """The same, in batches of draws that need about as many steps: one may need a thousand times
    those of another."""
    order, found = np.argsort(ends * [fastest(draw) for draw in draws]), {}
    for batch in np.array_split(order, -(-len(draws) // 25)):
        found |= zip(batch.tolist(), by_steps([draws[k] for k in batch], ends[batch]), strict=True)
    return [found[k] for k in range(len(draws))]


def end(draw):
    """A time by which every mode has been learnt, if it ever is."""
    layers = len(draw.weights)
    a0 = np.linalg.norm(draw.weights[0][:, :MODES], axis=0) ** layers
    late = 30.0 if layers == 2 else 2 * np.min(a0) ** (2 / layers - 1) + 20
    return late / np.min(np.diag(draw.s)[:MODES])


def off(draw, expected, found):
    """Largest error of the modes at all times, each over its own size, rounding of the largest off.

    An entry between two modes is over the root of both sizes, one beside the modes over its own.
    """
    found = draw.u.T @ found @ draw.v
    size = np.max(np.abs(np.einsum("tkk->tk", expected[:, :MODES, :MODES])), axis=0)
    size = np.append(size, np.full(INPUTS - MODES, np.nan))
    scale = np.sqrt(size[:OUTPUTS, None] * size)
    scale = np.where(np.isnan(scale), size[:OUTPUTS, None], scale)
    error = np.max(np.abs(found - expected), axis=0) - 64 * EPS * np.max(np.abs(expected))
    return np.max(error / scale)


def surveyed(kind, seed, count, smallest):
    """Whether each draw is called exact, and how far it is off, (count,) each."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    draws = [drawn(rng, kind, smallest) for _ in range(count)]
    ends = np.array([end(draw) for draw in draws])
    solutions = [fl.theory.solve(*problem(draw)) for draw in draws]
    exact = np.array([solution.exact for solution in solutions])
    error = [
        off(draw, expected, np.asarray(solution.product(np.linspace(0, last, TIMES))))
        for draw, expected, solution, last in zip(
            draws, by_like_steps(draws, ends), solutions, ends, strict=True
        )
    ]
    return exact, np.array(error)


def test_none_is_exact_and_off(seed):
    exact, error = surveyed("modes", seed, 24, -8)
    assert np.all(error[exact] < 1e-8)
    assert 1 <= np.sum(exact) <= 23
    assert np.max(error) > 1e-8


# Three layers learn a mode of 1e-5 in a hundred time constants.
HUNDREDS = {"modes": (150, -8), "white": (110, -8), "deep": (40, -5)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_none_of_hundreds_is_exact_and_off(kind, seed):
    exact, error = surveyed(kind, seed + 1, *HUNDREDS[kind])
    assert np.all(error[exact] < 1e-8)
    assert np.mean(exact) > 0.15
    assert np.mean(error > 1e-3) > 0.1


def test_two_weak_modes_that_the_inputs_couple_beside_a_learnt_one():
    """Their share of all weights is 1e-10, and was all that counted."""
    s = np.diag([1.0, 0.8, 0.6])
    d = np.array([[1.0, 0, 0], [0, 1, 0.3], [0, 0.3, 1]])
    root = np.linalg.cholesky(d).T * np.sqrt(3)
    task = fl.Task(root, root @ np.linalg.solve(d, s))
    weights = np.diag([1.0, 1e-5, 1e-5])
    network = fl.LinearNetwork((weights, weights))
    solution = fl.theory.solve(network, task)
    assert not solution.exact
    assert "the inputs couple the modes" in solution.why
    coupling = np.asarray(solution.certificate.coupling)
    assert coupling.shape == (3,)
    assert coupling[0] < 1e-9
    assert np.all(coupling[1:] > 1)
    ends = np.array([30.0])
    expected = by_steps([Draw(s, d, [weights, weights], np.eye(3), np.eye(3))], ends)[0]
    found = np.asarray(solution.product(np.linspace(0, 30, TIMES)))
    assert np.max(np.abs(found - expected)) > 0.2
