"""Leading eigenvectors of a symmetric Jacobian, from the directions that solves have multiplied.

They are kept in float32: they change from step to step by more than that, and it halves what they
cost.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32

from flowlin.solvers.conjugate import Linear
from flowlin.solvers.radius import direction


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
    def scattered(count: int, like: Float[Array, " N"]) -> "Ritz":
        """Vectors without structure, to begin with."""
        noise = direction(jnp.zeros((count, like.size), jnp.float32))
        scale, turn = jnp.linalg.eigh(noise @ noise.T)
        return Ritz((turn / jnp.sqrt(scale)).T @ noise, jnp.zeros(count, jnp.float32))

    def solved(self, factor: Float[Array, ""], r: Float[Array, " N"]) -> Float[Array, " N"]:
        """About (1 - factor J)^-1 r: exact in these eigenvectors, r itself beside them."""
        weights = 1 / (1 - factor.astype(jnp.float32) * self.values) - 1
        change = (weights * (self.vectors @ r.astype(jnp.float32))) @ self.vectors
        return r + change.astype(r.dtype)

    def followed(self, jacobian: Linear, count: int, dtype: DTypeLike) -> tuple["Ritz", Array]:
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
        return self.updated(vectors, images, images / jnp.where(size > 0, size, 1)), values

    def updated(
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
        basis = turn * _inverse_root(scale)  # basis.T @ outside is orthonormal
        rows = jnp.concatenate([self.vectors, basis.T @ outside])
        known = jnp.concatenate([inside, gram @ basis], axis=1)[: len(directions)].T
        image = rows @ images.T
        scale, turn = jnp.linalg.eigh(known.T @ known)
        into = turn * _inverse_root(scale)
        known, image = known @ into, image @ into
        inner = known.T @ image
        outer = image - known @ inner
        rest = jnp.eye(len(rows), count, dtype=rows.dtype)
        rest = rest - known @ known[:count].T
        matrix = (
            known @ ((inner + inner.T) / 2) @ known.T
            + outer @ known.T
            + known @ outer.T
            + (rest * self.values) @ rest.T
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
