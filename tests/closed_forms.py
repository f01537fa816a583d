"""What tests of closed forms share: one program of each for a whole file, its slopes, and tasks."""

import functools
import inspect

import jax
import numpy as np
from scipy.integrate import solve_ivp

import flowlin as fl

SIZE = 24  # numbers in one call


def columns(rows):
    """Rows of arguments as one array for each argument."""
    return np.array(rows, dtype=float).T


def elementwise(form):
    """A form compiled once: arguments of any shapes are broadcast, and taken `SIZE` at a time."""
    compiled, signature = jax.jit(form), inspect.signature(form)

    def called(*arguments):
        bound = signature.bind(*arguments)
        bound.apply_defaults()
        grids = np.broadcast_arrays(*(np.asarray(a, float) for a in bound.args))
        shape, flat = grids[0].shape, np.stack([grid.ravel() for grid in grids])
        parts = [
            compiled(*np.resize(flat[:, k : k + SIZE].T, (SIZE, len(flat))).T)
            for k in range(0, flat.shape[1], SIZE)
        ]
        return jax.tree.map(
            lambda *found: np.concatenate(found)[: flat.shape[1]].reshape(shape), *parts
        )

    called.__signature__ = signature
    return called


def derivatives(form):
    """A form's derivatives by all of its arguments, elementwise."""
    count = len(inspect.signature(form).parameters)
    by_all = jax.vmap(jax.grad(form, argnums=tuple(range(count))))

    def every(*arguments):
        return by_all(*arguments)

    every.__signature__ = inspect.signature(form)
    return elementwise(every)


def differences(form, point, steps=1e-3):
    """Central differences with one Richardson step, by all arguments, along a new first axis.

    A step is relative to the argument, or to 0.05 where that is close to zero.
    """
    point = np.stack(np.broadcast_arrays(*(np.asarray(z, float) for z in point)))
    size = np.abs(point)
    h = steps * np.where(size < 1e-6, 0.05, size)
    found = np.zeros(point.shape)
    for which in range(len(point)):

        def slope(h, which=which):
            move = np.zeros(point.shape)
            move[which] = h
            return (form(*(point + move)) - form(*(point - move))) / (2 * h)

        found[which] = (4 * slope(h[which] / 2) - slope(h[which])) / 3
    return found


def relative(found, expected):
    """Errors, relative to the numbers or to 1e-3 of the largest beside them."""
    return np.abs(found - expected) / (np.abs(expected) + 1e-3 * np.max(np.abs(expected), axis=0))


def integrated(field, y0):
    """The flow of a field at time 1, from many starts at once."""
    run = solve_ivp(
        lambda t, y: field(y.reshape(y0.shape)).ravel(),
        (0, 1),
        y0.ravel(),
        method="DOP853",
        rtol=1e-12,
        atol=1e-15,
    )
    return run.y[:, -1].reshape(y0.shape)


# --- of matrices ----------------------------------------------------------------------------


def white_task(s_yx, variance, centred=False):
    """A task with Sigma_x = variance I and the given Sigma_yx."""
    inputs = s_yx.shape[1]
    samples = 3 * inputs
    draw = np.random.default_rng(5).normal(size=(samples, inputs))
    if centred:
        draw = draw - draw.mean(axis=0)
    x = np.sqrt(samples * variance) * np.linalg.qr(draw)[0]
    return fl.Task(x, x @ s_yx.T / variance)


def targets(inputs, outputs, rank, seed=0):
    rng = np.random.default_rng(seed)
    s_yx = rng.normal(size=(outputs, rank)) @ rng.normal(size=(rank, inputs))
    return s_yx / np.linalg.norm(s_yx, 2)


def errors(found, expected):
    """Largest Frobenius distance, relative to the largest norm."""
    found, expected = np.asarray(found), np.asarray(expected)
    distance = np.linalg.norm(found - expected, axis=(-2, -1))
    return np.max(distance) / np.max(np.linalg.norm(expected, axis=(-2, -1)))


def product_by_integrator(ts, network, task, tau=1.0, rtol=1e-11):
    """End-to-end matrix of a linear network of any depth, by DOP853; biases in front."""
    stages = weights_by_integrator(ts, network, task, tau, rtol)
    return np.array([functools.reduce(lambda product, w: w @ product, one) for one in stages])


def gram_by_integrator(ts, network, task, tau=1.0):
    """Q Q^T with Q = [W_1^T; W_2] of two layers, by DOP853; the bias in front."""
    stacks = [np.concatenate([a.T, b]) for a, b in weights_by_integrator(ts, network, task, tau)]
    return np.array([q @ q.T for q in stacks])


def weights_by_integrator(ts, network, task, tau=1.0, rtol=1e-11):
    """Weights of a linear network of any depth at times ts, by DOP853; biases in front."""
    weights = [np.asarray(w) for w in network.weights]
    x, y = np.asarray(task.x), np.asarray(task.y)
    if network.biases[0] is not None:
        weights[0] = np.column_stack([network.biases[0], weights[0]])
        x = np.column_stack([np.full(len(x), float(network.bias_strength)), x])
    ends = np.cumsum([w.size for w in weights])[:-1]
    s_yx, s_x = y.T @ x / len(x), x.T @ x / len(x)

    def split(z):
        return [a.reshape(w.shape) for a, w in zip(np.split(z, ends), weights, strict=True)]

    def whole(factors, size):
        return functools.reduce(lambda product, w: w @ product, factors, np.eye(size))

    def velocity(_, z):
        w = split(z)
        error = s_yx - whole(w, len(s_x)) @ s_x
        moves = [
            whole(w[k + 1 :], len(w[k])).T @ error @ whole(w[:k], len(s_x)).T for k in range(len(w))
        ]
        return np.concatenate([move.ravel() for move in moves]) / tau

    start, atol = np.concatenate([w.ravel() for w in weights]), rtol / 100
    run = solve_ivp(velocity, (0, ts[-1]), start, "DOP853", t_eval=ts, rtol=rtol, atol=atol)
    return [split(z) for z in run.y.T]
