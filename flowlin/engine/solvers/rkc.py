"""The second-order Runge-Kutta-Chebyshev method, for stiff gradient flow."""

import functools
from collections.abc import Callable
from typing import ClassVar, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox.internal import while_loop
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from .wrapped import AbstractCounting, History, Report

# ---- What the library's own second-order solvers have in common.

State = TypeVar("State")


class SecondOrder(diffrax.AbstractAdaptiveSolver[State]):
    """Order 2, a local error estimate of order 3, cubic Hermite dense output."""

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar[Callable[..., diffrax.AbstractLocalInterpolation]] = (
        diffrax.ThirdOrderHermitePolynomialInterpolation
    )

    def order(self, terms):
        """Global order."""
        del terms
        return 2

    def error_order(self, terms):
        """Order of the local error estimate."""
        del terms
        return 3

    def func(self, terms, t0, y0, args):
        """The vector field."""
        return terms.vf(t0, y0, args)


# ---- Coefficients of the second-order Runge-Kutta-Chebyshev method.
#
# With Chebyshev polynomials $T_j$, $w_0 = 1 + \epsilon / s^2$ and $w_1 = T_s'(w_0) / T_s''(w_0)$
# the stability polynomial of stage j is
#
# $$P_j(z) = a_j + b_j T_j(w_0 + w_1 z), \qquad b_j = \frac{T_j''(w_0)}{T_j'(w_0)^2} \;(j \ge 2),
#   \qquad b_0 = b_1 = b_2, \qquad a_j = 1 - b_j T_j(w_0),$$
#
# so that $P_s(z) = 1 + z + z^2/2 + O(z^3)$, and $|P_s| \le 1$ on $[-\beta, 0]$ with
# $\beta = (1 + w_0) / w_1 \approx 0.653\,(s^2 - 1)$. Source: Sommeijer, Shampine and Verwer (1997),
# J. Comput. Appl. Math. 88, 315-326, section 2.

DAMPING = 2 / 13  # epsilon: |P_s| stays below about 1 - epsilon/3 inside the interval

Number = np.ndarray | Array


class Chebyshev(eqx.Module):
    """T_j, T_j' and T_j'' at w0 = 1 + shift, each with its difference to that of j - 1.

    The recurrence T_j = 2 w0 T_{j-1} - T_{j-2} in differences adds positive numbers only, so
    that it holds its digits in float32 too.
    """

    value: Number
    value_step: Number
    first: Number
    first_step: Number
    second: Number
    second_step: Number

    @staticmethod
    def linear(shift: Number) -> "Chebyshev":
        """At j = 1."""
        zero, one = 0 * shift, 1 + 0 * shift
        return Chebyshev(
            value=1 + shift,
            value_step=shift,
            first=one,
            first_step=one,
            second=zero,
            second_step=zero,
        )

    def next(self, shift: Number) -> "Chebyshev":
        """From j to j + 1."""
        value_step = self.value_step + 2 * shift * self.value
        first_step = self.first_step + 2 * shift * self.first + 2 * self.value
        second_step = self.second_step + 2 * shift * self.second + 4 * self.first
        return Chebyshev(
            value=self.value + value_step,
            value_step=value_step,
            first=self.first + first_step,
            first_step=first_step,
            second=self.second + second_step,
            second_step=second_step,
        )

    @property
    def weight(self) -> Number:
        """b_j, for j >= 2."""
        return self.second / self.first**2


@functools.cache
def _tables(max_stages: int) -> tuple[np.ndarray, np.ndarray]:
    """For s = 2 ... max_stages: stretch w1 and stability interval beta."""
    s = np.arange(2, max_stages + 1)
    shift = DAMPING / s**2
    polynomial, stretch = Chebyshev.linear(shift), np.zeros(s.size)
    for j in s:
        polynomial = polynomial.next(shift)
        stretch[j - 2] = (polynomial.first / polynomial.second)[j - 2]
    return stretch, (2 + shift) / stretch


def stretch(stages: Int[Array, ""], max_stages: int, dtype: DTypeLike) -> Float[Array, ""]:
    """w1 of a method with so many stages."""
    return jnp.asarray(_tables(max_stages)[0], dtype)[jnp.clip(stages, 2, max_stages) - 2]


def stability_interval(max_stages: int) -> np.ndarray:
    """Beta for s = 2 ... max_stages: the method is stable for h times the radius up to it."""
    return _tables(max_stages)[1]


def stages_for(reach: Float[Array, ""], max_stages: int) -> Int[Array, ""]:
    """The fewest stages whose interval holds `reach`; max_stages + 1 where none does."""
    limits = jnp.asarray(stability_interval(max_stages), reach.dtype)
    return jnp.searchsorted(limits, reach).astype(jnp.int32) + 2


# ---- The spectral radius of a vector field's Jacobian, by power iteration.

CHANGE = 0.01  # relative change of the radius at which the iteration stops
NOISE = 0.02  # share of the fixed random direction in each start


def norm(tree: PyTree) -> Float[Array, ""]:
    """Euclidean norm of all leaves together."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def direction(like: PyTree) -> PyTree:
    """A fixed direction of norm 1 without structure, of the shape of `like`."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    draws = [
        _scramble(jnp.arange(end - leaf.size, end, dtype=jnp.uint32)).astype(leaf.dtype)
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    draws = [draw.reshape(leaf.shape) for draw, leaf in zip(draws, leaves, strict=True)]
    return jax.tree.unflatten(structure, [draw / norm(draws) for draw in draws])


def _scramble(index: Array) -> Array:
    """Numbers in (-1/2, 1/2) from a multiplicative hash, which compiles faster than JAX's own."""
    mixed = (index + 1) * jnp.uint32(2654435769)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(2246822519)
    return (mixed ^ (mixed >> 13)).astype(float) / 2.0**32 - 0.5


def spectral_radius(
    velocity: Callable[[PyTree], PyTree],
    y: PyTree,
    f: PyTree,
    vector: PyTree,
    radius: Float[Array, ""],
    max_iterations: int,
    loop: str,
) -> tuple[PyTree, Float[Array, ""], Int[Array, ""]]:
    r"""Power iteration $v \leftarrow (f(y + \delta v) - f(y)) / \delta$, normalised.

    One evaluation of `velocity` where `vector` and `radius`, from a point nearby, still fit. The
    ratio of norms is a lower bound of a symmetric Jacobian's radius, whatever the eigenvalues'
    signs. A little of a fixed random direction enters each start, so that no direction is lost
    for good.

    **Returns:** vector, radius and the number of evaluations.
    """
    size = norm(y)
    delta = jnp.sqrt(jnp.finfo(size.dtype).eps) * jnp.where(size > 0, size, 1)
    start = jax.tree.map(lambda a, b: a + NOISE * b, vector, direction(vector))
    start = jax.tree.map(lambda a: a / norm(start), start)

    def is_unfinished(carry):
        _, old, new, count = carry
        return (count == 0) | (jnp.abs(new - old) > CHANGE * new)

    def body(carry):
        v, _, old, count = carry
        moved = velocity(jax.tree.map(lambda a, b: a + delta * b, y, v))
        image = jax.tree.map(lambda a, b: (a - b) / delta, moved, f)
        new = norm(image)
        scale = jnp.where(new > 0, new, 1)
        v = jax.tree.map(lambda a, b: jnp.where(new > 0, a / scale, b), image, v)
        return v, old, new, count + 1

    vector, _, radius, count = while_loop(
        is_unfinished,
        body,
        (start, radius, radius, jnp.zeros((), jnp.int32)),
        kind=loop,  # pyright: ignore
        max_steps=max_iterations,
    )
    return vector, radius, count


SAFETY = 1.2  # the estimate is a lower bound, and the radius moves during the step
FIRST, LATER = 50, 10  # power iterations at most: at the start, and per step
MOST_STAGES = 2048  # the coefficients of more overflow


class RKCState(AbstractCounting):
    """State that one step hands to the next.

    - `velocity`, `vector`, `radius`: at the step's start.
    - `evaluations`: of the vector field so far, by accepted steps.
    - `log`: the radius at the start and after every accepted step.
    """

    velocity: PyTree
    vector: PyTree
    radius: Float[Array, ""]
    evaluations: Int[Array, ""]
    log: History

    def report(self, ts: Array) -> Report:
        """The radius at the saved times."""
        return {"accepted_evaluations": self.evaluations}, {"spectral_radius": self.log.at(ts)}


class RKC(SecondOrder[RKCState]):
    r"""Second-order Runge-Kutta-Chebyshev: explicit, stable far along the negative real axis.

    Gradient flow has a real spectrum, since its Jacobian is minus a Hessian. A step of s stages
    is stable for h times the spectral radius up to $0.653 (s^2 - 1)$, so a stiff flow costs the
    square root of what it costs any ordinary explicit method. Each step takes the fewest stages
    that suffice. The spectral radius is estimated once per step by power iteration, at about one
    evaluation; `gradient_flow` returns it as `flow.observed["spectral_radius"]`: it is the
    sharpness, the largest eigenvalue of the loss's Hessian over tau (unless the most negative one
    is larger in size). It is a lower bound: where one eigenvalue overtakes another, it follows
    some steps late (steps have a margin of 1.2, and their error estimate, against that).

    For stiff flows at moderate accuracy; where a flow is not stiff, methods of higher order need
    fewer evaluations. Order 2, so the error of a run shrinks as rtol^(2/3) and not as rtol.
    An implicit method without a Jacobian matrix (diffrax's Kvaerno5 with Newton and GMRES, see
    `benchmarks/stiff.py`) is no faster on linear networks at errors down to 1e-6, and on smoothed
    ReLU networks its Newton iterations fail so often that it takes 50 times the evaluations, so
    none is offered here; a `solver` that is given may be one.
    In float32 rounding of the error estimate limits h times the radius, to some hundreds at
    rtol = 1e-4.

    **Arguments:**

    - `max_stages`: a step that needs more is rejected and tried at a fifth of its length. Every
      stage adds rounding; memory of reverse-mode derivatives grows as its square root.
    - `loop`: what differentiates the loop over the stages: "checkpointed" in reverse mode, "lax"
      in forward mode (`jax.jvp`). `gradient_flow` chooses by its adjoint.

    **Raises:** `ValueError` for fewer than two stages or another loop.

    Source: Sommeijer, Shampine and Verwer (1997). RKC: an explicit solver for parabolic PDEs.
    J. Comput. Appl. Math. 88, 315-326.
    """

    max_stages: int = eqx.field(static=True, default=256)
    loop: str = eqx.field(static=True, default="checkpointed")

    def init(self, terms, t0, t1, y0, args) -> RKCState:
        """The vector field and its radius at the start."""
        del t1
        y0 = jax.tree.map(jnp.asarray, y0)
        radius = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y0)))
        f0 = terms.vf(t0, y0, args)
        vector, radius, count = self._radius(terms, t0, y0, f0, args, direction(y0), radius, FIRST)
        log = History.empty(t0, radius).append(t0, radius)
        return RKCState(velocity=f0, vector=vector, radius=radius, evaluations=count + 1, log=log)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step, with stages to suit its length."""
        state, control = solver_state, terms.contr(t0, t1)
        # After a jump the radius is stale as well; a step that proves too long is then rejected.
        f0 = lax.cond(made_jump, lambda: terms.vf(t0, y0, args), lambda: state.velocity)
        reach = SAFETY * jnp.abs(t1 - t0) * lax.stop_gradient(state.radius)
        stages = stages_for(reach, self.max_stages)
        longest = jnp.asarray(stability_interval(self.max_stages)[-1])
        too_long = ~(reach.astype(longest.dtype) <= longest)
        k0 = terms.prod(f0, control)
        # A step too long is not taken: no stage runs away before it is rejected.
        k0 = jax.tree.map(lambda k: jnp.where(too_long, 0.0, k), k0)
        stages = jnp.where(too_long, 0, stages)
        y1 = self._stages(terms, t0, t1, y0, k0, args, stages)
        f1 = terms.vf(t1, y1, args)
        k1 = terms.prod(f1, control)
        vector, radius, count = self._radius(
            terms, t1, y1, f1, args, state.vector, state.radius, LATER
        )
        # A radius that grew out of the interval meanwhile: the error estimate may not show it yet.
        limits = jnp.asarray(stability_interval(self.max_stages), radius.dtype)
        unsafe = too_long | (jnp.abs(t1 - t0) * radius > limits[jnp.maximum(stages, 2) - 2])
        error = jax.tree.map(
            lambda a, b, ka, kb: jnp.where(unsafe, jnp.inf, 0.8 * (a - b) + 0.4 * (ka + kb)),
            y0, y1, k0, k1,
        )  # fmt: skip
        spent = (stages, count, jnp.asarray(made_jump))
        own = state.evaluations.dtype
        evaluations = state.evaluations + sum(number.astype(own) for number in spent)
        after = RKCState(
            velocity=f1,
            vector=vector,
            radius=radius,
            evaluations=evaluations,
            log=state.log.append(t1, radius),
        )
        okay, failed = diffrax.RESULTS.successful, diffrax.RESULTS.dt_min_reached
        # Only steps of fixed length are kept in spite of an infinite error.
        result = diffrax.RESULTS.where(too_long, failed, okay)
        return y1, error, {"y0": y0, "y1": y1, "k0": k0, "k1": k1}, after, result

    def _stages(self, terms, t0, t1, y0, k0, args, stages):
        """The three-term recursion, in differences to y0 so that rounding stays small."""
        dtype = jnp.result_type(*jax.tree.leaves(y0))
        count = jnp.maximum(stages, 2).astype(dtype)
        shift, w1 = DAMPING / count**2, stretch(stages, self.max_stages, dtype)
        control = terms.contr(t0, t1)
        b = 1 / (2 * (1 + shift)) ** 2
        c = w1 * b
        first = jax.tree.map(lambda k: c * k, k0)
        before = jax.tree.map(jnp.zeros_like, first)

        def body(carry):
            j, last, before, polynomial, b1, b2, c = carry
            a1 = 1 - b1 * polynomial.value
            polynomial = polynomial.next(shift)
            b = polynomial.weight
            mu, nu, slope = 2 * b * (1 + shift) / b1, -b / b2, 2 * b * w1 / b1
            y = jax.tree.map(jnp.add, y0, last)
            k = terms.prod(terms.vf(t0 + c * (t1 - t0), y, args), control)
            new = jax.tree.map(
                lambda x, z, k, k0: mu * x + nu * z + slope * (k - a1 * k0), last, before, k, k0
            )
            c = w1 * polynomial.second / polynomial.first
            return j + 1, new, last, polynomial, b, b1, c

        carry = while_loop(
            lambda carry: carry[0] <= stages,
            body,
            (jnp.full((), 2, jnp.int32), first, before, Chebyshev.linear(shift), b, b, c),
            kind=self.loop,  # pyright: ignore
            max_steps=self.max_stages,
        )
        return jax.tree.map(jnp.add, y0, carry[1])

    def _radius(self, terms, t, y, f, args, vector, radius, iterations):
        """The spectral radius at (t, y); it chooses stages and is not differentiated."""
        terms, t, y, f, args, vector, radius = jax.tree.map(
            lambda a: lax.stop_gradient(a) if eqx.is_inexact_array(a) else a,
            (terms, t, y, f, args, vector, radius),
        )
        found = spectral_radius(
            lambda y: terms.vf(t, y, args), y, f, vector, radius, iterations, self.loop
        )
        return jax.tree.map(lax.stop_gradient, found)
