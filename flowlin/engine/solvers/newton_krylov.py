"""Newton's method for one implicit step, from Jacobian products alone or by a lineax solver."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Float32, Int, PyTree

from .rkc import direction

# ---- Conjugate gradients that keep their last directions, for (1 - A) x = b with a symmetric A.

Linear = Callable[[Float[Array, " N"]], Float[Array, " N"]]
Test = Callable[[Float[Array, " N"]], Bool[Array, ""]]


class Solve(eqx.Module):
    """A solve under way, or done.

    - `x`, `residual`: the solution so far, and what is left of b.
    - `better`: the residual, preconditioned; `product`: of the two.
    - `direction`: the next one.
    - `count`: products with A so far.
    - `convex`: whether 1 - A was positive along every direction; if not the solve has failed,
      as one by lineax has that did not succeed.
    - `directions`, `images`: (M, N), of norm 1 those of the last M products, and A times them.
    """

    x: Float[Array, " N"]
    residual: Float[Array, " N"]
    better: Float[Array, " N"]
    product: Float[Array, ""]
    direction: Float[Array, " N"]
    count: Int[Array, ""]
    convex: Bool[Array, ""]
    directions: Float[Array, "M N"]
    images: Float[Array, "M N"]

    @staticmethod
    def at(x: Float[Array, " N"], convex: Bool[Array, ""], room: int) -> "Solve":
        """Return a solution without a search, and with room for directions."""
        zero, blank = jnp.zeros_like(x), jnp.zeros((room, x.size), x.dtype)
        none = jnp.zeros((), jnp.int32)
        return Solve(x, zero, zero, jnp.zeros((), x.dtype), zero, none, convex, blank, blank)


def conjugate_gradients(
    image: Linear,
    b: Float[Array, " N"],
    preconditioner: Linear,
    unsolved: Test,
    most: int,
    room: int,
) -> Solve:
    """Solve (1 - A) x = b.

    - `image`: v to A v.
    - `unsolved`: whether a preconditioned residual is still too large.
    - `most`: products at most; `room`: how many directions to keep.

    It stops at a direction along which 1 - A is not positive, as it is for any step of an implicit
    method that is short against the rate at which solutions part.
    """
    blank = jnp.zeros((room, b.size), b.dtype)
    better = preconditioner(b)
    start = Solve(
        jnp.zeros_like(b), b, better, jnp.vdot(b, better), better,
        jnp.zeros((), jnp.int32), jnp.ones((), bool), blank, blank,
    )  # fmt: skip

    def is_unfinished(s: Solve) -> Bool[Array, ""]:
        return s.convex & (s.count < most) & unsolved(s.better)

    def body(s: Solve) -> Solve:
        moved = image(s.direction)
        left = s.direction - moved
        curvature = jnp.vdot(s.direction, left)
        length = jnp.where(curvature > 0, s.product / curvature, 0)
        residual = s.residual - length * left
        better = preconditioner(residual)
        product = jnp.vdot(residual, better)
        size, row = jnp.linalg.norm(s.direction), s.count % room
        return Solve(
            s.x + length * s.direction,
            residual,
            better,
            product,
            better + product / s.product * s.direction,
            s.count + 1,
            curvature > 0,
            s.directions.at[row].set(s.direction / size),
            s.images.at[row].set(moved / size),
        )

    done = lax.while_loop(is_unfinished, body, start)
    # Where b is small enough as it is, the preconditioned b and not zero is the solution, as in
    # CVODE (`cvLsSolve`): a zero would pass for a step without an error, and the next one would be
    # ten times as long.
    return dataclasses.replace(done, x=jnp.where(done.count > 0, done.x, done.better))


# ---- Leading eigenvectors of a symmetric Jacobian, from the directions that solves have
# multiplied.
#
# They are kept in float32: they change from step to step by more than that, and it halves what they
# cost.


class Ritz(eqx.Module):
    """Approximate eigenvectors of a Jacobian and their values, the most negative first.

    - `vectors`: (K, N), orthonormal rows; zero where there is none yet.
    - `values`: (K,), zero or negative.
    """

    vectors: Float32[Array, "K N"]
    values: Float32[Array, " K"]

    @staticmethod
    def none(count: int, like: Float[Array, " N"]) -> "Ritz":
        """Nothing known."""
        return Ritz(jnp.zeros((count, like.size), jnp.float32), jnp.zeros(count, jnp.float32))

    @staticmethod
    def arbitrary(count: int, like: Float[Array, " N"]) -> "Ritz":
        """Vectors without structure, to begin with."""
        noise = direction(jnp.zeros((count, like.size), jnp.float32))
        scale, turn = jnp.linalg.eigh(noise @ noise.T)
        return Ritz((turn / jnp.sqrt(scale)[None]).T @ noise, jnp.zeros(count, jnp.float32))

    def precondition(self, factor: Float[Array, ""], r: Float[Array, " N"]) -> Float[Array, " N"]:
        """About (1 - factor J)^-1 r: exact in these eigenvectors, r itself beside them."""
        stiffness = jnp.minimum(1 - factor.astype(jnp.float32) * self.values, STIFFEST)
        weights = 1 / stiffness - 1
        change = (weights * (self.vectors @ r.astype(jnp.float32))) @ self.vectors
        return r + change.astype(r.dtype)

    def follow(self, jacobian: Linear, count: int, dtype: DTypeLike) -> tuple["Ritz", Array]:
        """With products of the first vectors, and the values (count,) that these products give.

        A fixed direction without structure is multiplied too: what begins to stand out may lie
        across all that is known, and across the solution's path.
        """
        vectors = self.vectors[:count]
        vectors = jnp.concatenate([vectors, direction(vectors[:1])])
        images = lax.map(jacobian, vectors.astype(dtype)).astype(jnp.float32)
        size = jnp.linalg.norm(images, axis=1, keepdims=True)
        block = vectors[:count] @ images[:count].T
        values = jnp.linalg.eigvalsh((block + block.T) / 2)
        return self.update(vectors, images, images / jnp.where(size > 0, size, 1)), values

    def update(
        self,
        directions: Float[Array, "M N"],
        images: Float[Array, "M N"],
        more: Float[Array, "L N"] | None = None,
    ) -> "Ritz":
        """With what the products J d of some directions d tell; rows of zeros tell nothing.

        Rayleigh-Ritz in the space of vectors, directions and `more` rows of norm 1. Where there is
        no image the Jacobian is what the pairs say: images of vectors from earlier solves are out
        of date, and pairs of both kinds of images blow up.
        """
        count = len(self.values)
        directions, images = directions.astype(jnp.float32), images.astype(jnp.float32)
        new = directions if more is None else jnp.concatenate([directions, more])
        inside = new @ self.vectors.T
        outside = new - inside @ self.vectors
        again = outside @ self.vectors.T  # once more, or errors of the vectors would grow
        inside, outside = inside + again, outside - again @ self.vectors
        gram = outside @ outside.T
        scale, turn = jnp.linalg.eigh(gram)
        basis = turn * _inverse_root(scale)[None]  # basis.T @ outside is orthonormal
        rows = jnp.concatenate([self.vectors, basis.T @ outside])
        known = jnp.concatenate([inside, gram @ basis], axis=1)[: len(directions)].T
        image = rows @ images.T
        scale, turn = jnp.linalg.eigh(known.T @ known)
        into = turn * _inverse_root(scale)[None]
        known, image = known @ into, image @ into
        inner = known.T @ image
        outer = image - known @ inner
        rest = jnp.eye(len(rows), count, dtype=rows.dtype)
        rest = rest - known @ known[:count].T
        matrix = (
            known @ ((inner + inner.T) / 2) @ known.T
            + outer @ known.T
            + known @ outer.T
            + (rest * self.values[None]) @ rest.T
        )
        values, turn = jnp.linalg.eigh(matrix)
        vectors = turn[:, :count].T @ rows
        # A step towards orthonormal rows, or what they lack would grow from update to update.
        vectors = 1.5 * vectors - 0.5 * (vectors @ vectors.T) @ vectors
        return Ritz(vectors, jnp.minimum(values[:count], 0))


def _inverse_root(scale: Float[Array, " K"]) -> Float[Array, " K"]:
    """1 / sqrt of eigenvalues of a Gram matrix of rows of norm 1, zero for what is rounding."""
    kept = scale > jnp.sqrt(jnp.finfo(scale.dtype).eps)
    return jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, scale, 1)), 0)


# Of 1 - h J in an eigenvector: beyond, what float32 leaves of a residual there is noise, and the
# preconditioner no longer positive. A flow long after convergence, with steps of 1e8, then crept.
STIFFEST = 1e3
MOST_ITERATIONS = 3
MOST_PRODUCTS = 60  # in one solve
CLOSE = 0.02  # of the tolerance: looser, and noise in the high differences lowers the order
RATE_FALL = 0.3  # the rate of convergence falls by no more at a time
DIVERGED = 2.0  # times the correction before
DERIVATIVE_PRODUCTS = 500


class Move(eqx.Module):
    """h f(t, y) of a flat y, with the control that stands for h."""

    terms: PyTree
    t: ArrayLike
    control: ArrayLike
    args: PyTree
    unravel: Callable[[Array], PyTree] = eqx.field(static=True)

    def __call__(self, y: Float[Array, " N"]) -> Float[Array, " N"]:
        velocity = self.terms.vf(self.t, self.unravel(y), self.args)
        return ravel_pytree(self.terms.prod(velocity, self.control))[0]


class Step(eqx.Module):
    """The equation y = start + (move(y) - slope) / lead of an implicit step, for y - start.

    - `start`, `slope`: the state and h times the velocity that are predicted for the step's end.
    - `lead`: the formula's leading coefficient.
    """

    move: Move
    start: Float[Array, " N"]
    slope: Float[Array, " N"]
    lead: Float[Array, ""]

    def defect(self, here: Float[Array, " N"], x: Float[Array, " N"]) -> Float[Array, " N"]:
        """Return what is left of the equation at start + x, where `here` is the move."""
        return (here - self.slope) / self.lead - x


class Found(eqx.Module):
    """Solution that Newton's method found.

    - `x`: the correction; `size`: the norm of its last change.
    - `rate`: of convergence, as far as is known.
    - `count`: iterations; `okay`, `failed`: whether it has converged, or will not.
    - `last`: the last linear solve.
    - `evaluations`: of the vector field, differences for products included.
    """

    x: Float[Array, " N"]
    size: Float[Array, ""]
    rate: Float[Array, ""]
    count: Int[Array, ""]
    okay: Bool[Array, ""]
    failed: Bool[Array, ""]
    last: Solve
    evaluations: Int[Array, ""]


# ---- Ways to solve Newton's linear systems.

ENOUGH = 20  # solves by lineax, each of what the one before has left


class Recycling(eqx.Module):
    """Conjugate gradients preconditioned by eigenvectors, for symmetric Jacobians.

    - `ritz`: of h J, as the equations have it.
    - `room`: how many directions of a solve to keep.
    - `trusted`: whether the Jacobian is known to be symmetric, and not looked at.
    """

    ritz: Ritz
    room: int = eqx.field(static=True)
    trusted: bool = eqx.field(static=True)

    def solve_newton(self, step: Step, y: Array, here: Array, b: Array, unsolved: Test) -> Solve:
        """Solve (1 - h J / lead) x = b at y, where `here` is the move."""
        products = difference_products(step, y, here)
        return conjugate_gradients(
            products, b, lambda r: self.ritz.precondition(1 / step.lead, r), unsolved,
            MOST_PRODUCTS, self.room,
        )  # fmt: skip

    def solve_tangent(self, step: Step, y: Array, b: Array) -> Array:
        """Solve the same to nearly all digits, for derivatives; NaN where that fails."""
        lead = lax.stop_gradient(step.lead)

        def image(v: Array) -> Array:
            return jax.jvp(step.move, (y,), (v,))[1] / lead

        def solve(_: PyTree, b: Array) -> Array:
            least, size = jnp.finfo(b.dtype).eps ** 0.75, jnp.linalg.norm(b)
            found = conjugate_gradients(
                image,
                b,
                lambda r: self.ritz.precondition(1 / lead, r),
                lambda r: jnp.linalg.norm(r) > least * size,
                DERIVATIVE_PRODUCTS,
                1,
            )
            return _unless_far(found.x, found.better, size)

        if not self.trusted:  # reverse mode takes the transposed system for the same
            b = b * jnp.where(is_asymmetric(step.move, y), jnp.nan, 1)
        return lax.custom_linear_solve(lambda v: v - image(v), b, solve, symmetric=True)


class ByLineax(eqx.Module):
    """A solver of lineax, for any Jacobian.

    - `scale`: what is allowed to each number, in units of which it works.
    """

    solver: lx.AbstractLinearSolver
    scale: Float[Array, " N"]
    room: ClassVar[int] = 0

    def solve_newton(self, step: Step, y: Array, here: Array, b: Array, unsolved: Test) -> Solve:
        """Solve (1 - h J / lead) x = b at y, with exact products."""
        del here, unsolved
        push = jax.linearize(step.move, y)[1]
        x, okay = self._solve(lambda v: v - push(v) / step.lead, self.scale, b)
        return Solve.at(x, okay, self.room)

    def solve_tangent(self, step: Step, y: Array, b: Array) -> Array:
        """Solve the same to nearly all digits, for derivatives; NaN where that fails."""
        lead = lax.stop_gradient(step.lead)

        def refine(scale: Array, product: Linear, b: Array) -> Array:
            least, size = jnp.finfo(b.dtype).eps ** 0.75, jnp.linalg.norm(b)

            def is_unfinished(carry: tuple[Array, Array, Array]) -> Array:
                return (carry[2] < ENOUGH) & (jnp.linalg.norm(carry[1]) > least * size)

            def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                x = carry[0] + self._solve(product, scale, carry[1])[0]
                return x, b - product(x), carry[2] + 1

            start = jnp.zeros_like(b), b, jnp.zeros((), jnp.int32)
            x, left, _ = lax.while_loop(is_unfinished, body, start)
            return _unless_far(x, left, size)

        return lax.custom_linear_solve(
            lambda v: v - jax.jvp(step.move, (y,), (v,))[1] / lead, b,
            lambda product, b: refine(self.scale, product, b),
            lambda product, b: refine(1 / self.scale, product, b),
        )  # fmt: skip

    def _solve(self, product: Linear, scale: Array, b: Array) -> tuple[Array, Bool[Array, ""]]:
        """The solution, and whether there is one."""
        like = jax.ShapeDtypeStruct(b.shape, b.dtype)
        scaled = lx.FunctionLinearOperator(lambda v: product(v * scale) / scale, like)
        found = lx.linear_solve(scaled, b / scale, self.solver, throw=False)
        return found.value * scale, found.result == lx.RESULTS.successful


def _unless_far(x: Array, left: Array, size: Array) -> Array:
    """A solution, or NaN where too much is left of a right-hand side of this size."""
    near = jnp.linalg.norm(left) <= jnp.finfo(x.dtype).eps ** 0.25 * size
    return x * jnp.where(near, 1, jnp.nan)


def is_asymmetric(move: Move, y: Float[Array, " N"]) -> Bool[Array, ""]:
    """Tell whether u J v and v J u differ for two directions without structure.

    By exact products: differences are as far from symmetric as the field is from linear.
    """
    move, y = jax.tree.map(
        lambda a: lax.stop_gradient(a) if eqx.is_inexact_array(a) else a, (move, y)
    )
    u, v = direction(jnp.zeros((2, y.size), y.dtype))
    image_of_u, image_of_v = (jax.jvp(move, (y,), (w,))[1] for w in (u, v))
    sizes = jnp.linalg.norm(image_of_u) * jnp.linalg.norm(v)
    sizes = sizes + jnp.linalg.norm(image_of_v) * jnp.linalg.norm(u)
    gap = jnp.abs(jnp.vdot(u, image_of_v) - jnp.vdot(v, image_of_u))
    return gap > jnp.sqrt(jnp.finfo(y.dtype).eps) * sizes


def solve_step(
    step: Step,
    linear: Recycling | ByLineax,
    norm: Callable[[Float[Array, " N"]], Float[Array, ""]],
    tolerance: Float[Array, ""],
    rate: Float[Array, ""],
) -> Found:
    """Solve a step's equation to a tolerance in `norm`; see `attach_derivatives`.

    The solve itself is not differentiated. One iteration suffices where its
    correction times the `rate` of convergence is small.
    """
    step, linear, tolerance, rate = jax.tree.map(
        lambda a: lax.stop_gradient(a) if eqx.is_inexact_array(a) else a,
        (step, linear, tolerance, rate),
    )

    def body(found: Found) -> Found:
        y = step.start + found.x
        here = step.move(y)
        last = linear.solve_newton(
            step, y, here, step.defect(here, found.x), lambda r: norm(r) > CLOSE * tolerance
        )
        size = norm(last.x)
        later = found.count > 0
        rate = jnp.where(later, jnp.maximum(RATE_FALL * found.rate, size / found.size), found.rate)
        okay = last.convex & (size * jnp.minimum(rate, 1) <= tolerance)
        worse = later & (size > DIVERGED * found.size)
        hopeless = ~last.convex | (last.count >= MOST_PRODUCTS) | worse | jnp.isnan(size)
        spent = found.evaluations + 1 + last.count
        return Found(
            found.x + last.x, size, rate, found.count + 1, okay & ~hopeless, hopeless, last, spent
        )

    none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    zero, size = jnp.zeros_like(step.start), jnp.zeros_like(rate)
    empty = Solve.at(zero, ~no, linear.room)
    return lax.while_loop(
        lambda found: ~(found.okay | found.failed) & (found.count < MOST_ITERATIONS),
        body,
        Found(zero, size, rate, none, no, no, empty, none),
    )


def difference_products(step: Step, y: Array, here: Array) -> Linear:
    """Products with h J / lead at y by differences, one evaluation each where jvp costs two."""
    size = jnp.linalg.norm(y)
    delta = jnp.sqrt(jnp.finfo(y.dtype).eps) * jnp.where(size > 0, size, 1)

    def image(v: Array) -> Array:
        d = delta / jnp.linalg.norm(v)
        return (step.move(y + d * v) - here) / (d * step.lead)

    return image


@eqx.filter_custom_jvp
def attach_derivatives(
    step: Step, x: Float[Array, " N"], linear: Recycling | ByLineax
) -> Float[Array, " N"]:
    """The solution x of a step's equation with its derivatives, by the implicit function theorem.

    Those are solved for anew, to nearly all digits, in forward and in reverse mode.
    """
    del step, linear
    return x


@attach_derivatives.def_jvp
def _attach_derivatives_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    step, x, linear = primals

    def defect(step: Step) -> Array:
        return step.defect(step.move(step.start + x), x)

    _, change = eqx.filter_jvp(defect, (step,), (tangents[0],))
    return x, linear.solve_tangent(step, step.start + x, change)
