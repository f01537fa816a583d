"""Stiff systems that are no networks: gradient flows whose ends are known without a solver of ours.

All are instances of one field, so that one program solves them all.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

N = 24
CURVATURES = np.array([1.0, 30.0, 900.0])


class Parts(NamedTuple):
    """What the field is made of: A, c, leap and bend."""

    matrix: Any
    drive: Any = 0.0
    leap: Any = 0.0
    bend: Any = 0.0


def field(t, y, args):
    """y' = (A - leap s(t)) (y - c cos t) - bend |y|^2 y, where s rises from 0 to 1 at t = 1."""
    matrix, drive, leap, bend = args
    gap = y - drive * jnp.cos(t)
    late = leap * jax.nn.sigmoid(200 * (t - 1)) * gap
    return matrix @ gap - late - bend * (y @ y) * y


class Problem(NamedTuple):
    """From `start` at t = 0, where it is `end` at t1; `radius` of the Jacobian, then."""

    parts: Parts
    start: np.ndarray
    t1: float
    end: np.ndarray
    radius: float


def heat():
    """Heat on N points of a bar with cold ends: each sine decays at a rate of its own."""
    x = np.arange(1, N + 1) / (N + 1)
    waves = np.sin(np.pi * np.outer(np.arange(1, N + 1), x))
    rates = 4 * (N + 1) ** 2 * np.sin(np.pi * x / 2) ** 2
    bar = (N + 1) ** 2 * (np.eye(N, k=1) + np.eye(N, k=-1) - 2 * np.eye(N))
    size = 1.0 / np.arange(1, N + 1)
    end = (size * np.exp(-0.2 * rates)) @ waves
    return Problem(Parts(bar), size @ waves, 0.2, end, rates[-1])


def quadratic(seed, rates=np.geomspace(1e-2, 1e3, N)):
    """Descent on a quadratic form with these curvatures, in a random basis."""
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(rates.size, rates.size)))
    end = turn @ np.exp(-10 * rates)
    start = turn @ np.ones(rates.size)
    return Problem(Parts(-(turn * rates) @ turn.T), start, 10.0, end, rates[-1])


def driven(radius, leap=0.0, size=N, bend=0.02):
    """Descent on a quartic whose minimum moves with time; the last curvature may leap."""
    rates = np.repeat([1.0, radius**0.5, radius], size // 3)
    parts = Parts(-np.diag(rates), 1.0, np.append(np.zeros(size - 1), leap), bend)
    start = np.cos(3 * np.arange(size))
    end = reference(parts, start, [2.0])[0]
    return Problem(parts, start, 2.0, end, radius + leap)


def filled(problem):
    """Its parts, of one shape for all problems of a size."""
    size = problem.start.size
    return Parts(*(np.broadcast_to(part, np.shape(part) or size) for part in problem.parts))


def reference(parts, start, times):
    """By SciPy, in NumPy alone."""
    matrix, drive, leap, bend = parts

    def velocity(t, y):
        gap = y - drive * np.cos(t)
        late = leap * 0.5 * (1 + np.tanh(100 * (t - 1))) * gap
        return matrix @ gap - late - bend * (y @ y) * y

    options = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-12}
    return solve_ivp(velocity, (0.0, times[-1]), start, t_eval=times, **options).y.T


def size(gap, scale: Any = 1.0):
    return float(np.linalg.norm(gap) / np.linalg.norm(scale))
