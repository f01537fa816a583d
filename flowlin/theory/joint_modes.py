"""Bases at the nodes of a graph in which all its matrices are diagonal, in NumPy and float64.

A block (a, b, M) is a matrix between two nodes, M = T_a diag T_b^T in the bases to be found; a
basis T holds K orthonormal columns.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

NEGLIGIBLE_PART = 1e-7  # a part of a unit vector that is no longer than this counts as zero
OWN_PART = 0.5  # the share of a vector that must lie outside of the modes found, for another mode
MOST_SWEEPS = 200
SMALLEST_GAIN = 1e-12  # sweeps end once the gain grows by less than this share


class Block(NamedTuple):
    """A matrix M (N_a, N_b) between two nodes a and b."""

    a: str
    b: str
    matrix: np.ndarray

    def diagonal(self, bases: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the diagonal of T_a^T M T_b, one number per mode, (K,)."""
        return np.einsum("ik,ij,jk->k", bases[self.a], self.matrix, bases[self.b])


def common_modes(blocks: list[Block], sizes: Mapping[str, int], ends: set[str]) -> dict:
    """Return bases of all nodes in which the blocks are diagonal, as nearly as they can be.

    Of blocks that have such bases, a generic combination of all, as one symmetric matrix over all
    nodes, has eigenvectors whose part at each node is a column of its basis, or zero; equal
    eigenvalues rotate a mode at all nodes alike. Modes of separate nodes share a column, strongest
    first. Where no such bases exist, the result is a start for the improvement in turns.

    **Arguments:**

    - `blocks`: matrices; of pairs of sources, symmetric ones in both orders or one.
    - `sizes`: of nodes.
    - `ends`: the sinks; a driven mode has a part at one of them, and at another node.
    """
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    values, vectors = np.linalg.eigh(_combine_blocks(blocks, starts, sum(sizes.values())))
    modes: list[dict[str, np.ndarray]] = []
    for k in np.argsort(-values):
        parts = {node: vectors[starts[node] : starts[node] + n, k] for node, n in sizes.items()}
        parts = {
            node: part for node, part in parts.items() if np.linalg.norm(part) > NEGLIGIBLE_PART
        }
        driven = ends & set(parts) and set(parts) - ends
        if values[k] > NEGLIGIBLE_PART * values[-1] and driven and _is_new(parts, modes):
            free = (mode for mode in modes if not set(mode) & set(parts))
            place = next(free, None)
            if place is None:
                modes.append(place := {})
            place |= {node: part / np.linalg.norm(part) for node, part in parts.items()}
    return {
        node: orthonormal_columns(_as_columns([mode.get(node, np.zeros(n)) for mode in modes], n))
        for node, n in sizes.items()
    }


def _as_columns(columns: list[np.ndarray], rows: int) -> np.ndarray:
    """Return vectors as the columns of a matrix, which may have none."""
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))


def _combine_blocks(blocks: list[Block], starts: Mapping[str, int], size: int) -> np.ndarray:
    """Return one symmetric matrix of all blocks, each with a random weight."""
    found, rng = np.zeros((size, size)), np.random.default_rng(0)
    scale = max((np.linalg.norm(block.matrix) for block in blocks), default=0.0) or 1.0
    for a, b, matrix in blocks:
        rows, columns = matrix.shape
        part = rng.uniform(0.5, 1.5) / scale * matrix
        found[starts[a] : starts[a] + rows, starts[b] : starts[b] + columns] += part
        found[starts[b] : starts[b] + columns, starts[a] : starts[a] + rows] += part.T
    return found


def _is_new(parts: Mapping[str, np.ndarray], modes: list[dict[str, np.ndarray]]) -> bool:
    """Tell whether the parts of a vector lie outside of the modes found, at every node."""
    for node, part in parts.items():
        rest = part
        for mode in modes:
            if node in mode:
                rest = rest - (mode[node] @ part) * mode[node]
        if np.linalg.norm(rest) < OWN_PART * np.linalg.norm(part):
            return False
    return True


def orthonormal_columns(vectors: np.ndarray) -> np.ndarray:
    """Return the nearest orthonormal columns; those that are zero, or too many, are zero."""
    found, kept = np.zeros_like(vectors), np.flatnonzero(np.any(vectors, axis=0))[: len(vectors)]
    if kept.size:
        left, _, right = np.linalg.svd(vectors[:, kept], full_matrices=False)
        found[:, kept] = left @ right
    return found


def extend_bases(blocks: list[Block], bases: Mapping, order: Iterable[str]) -> dict:
    """Add bases of nodes that have none, in an order, from their blocks with known nodes."""
    found = dict(bases)
    modes = next(iter(bases.values())).shape[1]
    for node in order:
        led = [m @ found[b] for a, b, m in blocks if a == node and b in found]
        led += [m.T @ found[a] for a, b, m in blocks if b == node and a in found]
        if node not in found:
            columns = [
                _main_direction(np.stack([one[:, k] for one in led], axis=1)) for k in range(modes)
            ]
            found[node] = orthonormal_columns(_as_columns(columns, led[0].shape[0]))
    return found


def _main_direction(vectors: np.ndarray) -> np.ndarray:
    """Return the main direction of some vectors, up to sign; zero if all are zero."""
    return np.linalg.svd(vectors, full_matrices=False)[0][:, 0] * np.any(vectors)


def refine_bases(blocks: list[Block], bases: Mapping, free: Iterable[str]) -> dict:
    """Improve the free bases so that more of the blocks lies on the diagonals.

    In turns each free basis takes the best columns, to first order, given all others (Procrustes).
    """
    found, free, before = dict(bases), list(free), -np.inf
    for _ in range(MOST_SWEEPS):
        for node in free:
            pull = np.zeros_like(found[node])
            for block in blocks:
                if node in block[:2]:
                    a, b, m = block
                    led = m @ found[b] if node == a else m.T @ found[a]
                    pull += led * block.diagonal(found)
            # A column that no block acts on keeps its direction.
            found[node] = orthonormal_columns(
                pull + NEGLIGIBLE_PART * np.max(np.abs(pull), initial=0) * found[node]
            )
        gain = sum(float(np.sum(block.diagonal(found) ** 2)) for block in blocks)
        if gain <= before * (1 + SMALLEST_GAIN):
            break
        before = gain
    return found
