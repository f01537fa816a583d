"""The largest eigenvalues' eigenvectors of a symmetric matrix that is known by products alone."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Vectors are rows: products with a basis of a million entries a vector are six times as fast so.
VectorRows = Float[Array, "count N"]

BLOCKS = 16  # of vectors, between restarts
MOST_CYCLES = 60


def top_eigenvectors(product: Callable[[VectorRows], VectorRows], start: VectorRows) -> VectorRows:
    """Return orthonormal eigenvectors of the largest eigenvalues, by sign, largest first.

    Block Lanczos with all vectors kept orthogonal, restarted from the best ones (Golub and Van Loan
    2013, Sec. 10.3). As many as there are in a block are found even where their eigenvalues are
    equal. It stops where all residuals are below the root of eps times the largest eigenvalue's
    size: the errors of eigenvalues are of the order of the squares of these.

    **Arguments:**

    - `product`: of the matrix with each vector of a block, (count, N).
    - `start`: such a block, at random; N is at least 17 times `count`.
    """
    bound, count = float(jnp.finfo(start.dtype).eps) ** 0.5, len(start)

    def is_unfinished(carry: tuple[VectorRows, Array, Array]) -> Array:
        _, converged, cycles = carry
        return ~converged & (cycles < MOST_CYCLES)

    def next_cycle(carry: tuple[VectorRows, Array, Array]) -> tuple[VectorRows, Array, Array]:
        basis, projected = _krylov_basis(product, carry[0])
        values, combinations = jnp.linalg.eigh(projected)
        vectors = combinations[:, ::-1][:, :count].T @ basis
        residuals = product(vectors) - values[::-1][:count, None] * vectors
        size = jnp.max(jnp.abs(values))
        converged = jnp.all(jnp.linalg.norm(residuals, axis=1) <= bound * size)
        return vectors, converged, carry[2] + 1

    first = _orthonormal(start), jnp.zeros((), bool), jnp.zeros((), jnp.int32)
    return lax.while_loop(is_unfinished, next_cycle, first)[0]


def _krylov_basis(
    product: Callable[[VectorRows], VectorRows], first: VectorRows
) -> tuple[Float[Array, "m N"], Float[Array, "m m"]]:
    """Return an orthonormal basis of m = 16 count vectors, and the matrix projected onto it."""
    (count, size), dtype = first.shape, first.dtype
    m = BLOCKS * count

    def add_block(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, projected = carry
        image = product(lax.dynamic_slice_in_dim(basis, k * count, count))
        row = image @ basis.T
        projected = lax.dynamic_update_slice_in_dim(projected, row, k * count, axis=0)
        # Twice: where the matrix takes a block into the basis, what is left at first is rounding,
        # which may lie anywhere, and is no longer small once it is normalised.
        new = _orthonormal(image - row @ basis)
        new = _orthonormal(new - (new @ basis.T) @ basis)
        return lax.dynamic_update_slice_in_dim(basis, new, (k + 1) * count, axis=0), projected

    basis = jnp.zeros((m + count, size), dtype).at[:count].set(first)
    projected = jnp.zeros((m, m + count), dtype)
    basis, projected = lax.fori_loop(0, BLOCKS, add_block, (basis, projected))
    # Rows know nothing of the blocks that came after them.
    lower = jnp.tril(projected[:, :m])
    return basis[:m], lower + jnp.tril(lower, -1).T


def _orthonormal(block: VectorRows) -> VectorRows:
    """Return an orthonormal basis of what the rows span."""
    return jnp.linalg.qr(block.T)[0].T
