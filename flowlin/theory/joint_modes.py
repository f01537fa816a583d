"""Bases at the nodes of a graph in which all its matrices are diagonal, in numpy and float64.

A block (a, b, M) is a matrix between two nodes, M = T_a diag T_b^T in the bases that are looked
for; a basis T holds K orthonormal columns.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

SEEN = 1e-7  # part of a unit vector that counts as one
OWN = 0.5  # part of a vector that must be outside of what is found, to be another mode's
SWEEPS = 200
STILL = 1e-12  # relative change of a sweep's gain at which they end


class Block(NamedTuple):
    """A matrix between two nodes."""

    a: str
    b: str
    matrix: np.ndarray

    def diagonal(self, bases: Mapping[str, np.ndarray]) -> np.ndarray:
        """What it does to each mode, (K,)."""
        return np.einsum("ik,ij,jk->k", bases[self.a], self.matrix, bases[self.b])


def common_modes(blocks: list[Block], sizes: Mapping[str, int], ends: set[str]) -> dict:
    """Bases of all nodes in which blocks are diagonal, as nearly as they can be.

    Of blocks that have such bases, a generic combination of all, as one symmetric matrix over all
    nodes, has eigenvectors whose part at each node is a column of its basis, or zero; equal
    eigenvalues turn a mode at all nodes alike. Modes of separate nodes share a place, strongest
    first. Where there are no such bases, those found are improved by turns.

    **Arguments:**

    - `blocks`: matrices; of pairs of sources, symmetric ones in both orders or one.
    - `sizes`: of nodes.
    - `ends`: the nodes of which a mode must have one, and another node, to be driven.
    """
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    values, vectors = np.linalg.eigh(_combined(blocks, starts, sum(sizes.values())))
    modes: list[dict[str, np.ndarray]] = []
    for k in np.argsort(-values):
        parts = {node: vectors[starts[node] : starts[node] + n, k] for node, n in sizes.items()}
        parts = {node: part for node, part in parts.items() if np.linalg.norm(part) > SEEN}
        driven = ends & set(parts) and set(parts) - ends
        if values[k] > SEEN * values[-1] and driven and _is_new(parts, modes):
            free = (mode for mode in modes if not set(mode) & set(parts))
            place = next(free, None)
            if place is None:
                modes.append(place := {})
            place |= {node: part / np.linalg.norm(part) for node, part in parts.items()}
    return {
        node: orthonormal(_stacked([mode.get(node, np.zeros(n)) for mode in modes], n))
        for node, n in sizes.items()
    }


def _stacked(columns: list[np.ndarray], rows: int) -> np.ndarray:
    """Vectors as the columns of a matrix, which may have none."""
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))


def _combined(blocks: list[Block], starts: Mapping[str, int], size: int) -> np.ndarray:
    """One symmetric matrix of all blocks, each with a weight of its own."""
    found, rng = np.zeros((size, size)), np.random.default_rng(0)
    scale = max((np.linalg.norm(block.matrix) for block in blocks), default=0.0) or 1.0
    for a, b, matrix in blocks:
        rows, columns = matrix.shape
        part = rng.uniform(0.5, 1.5) / scale * matrix
        found[starts[a] : starts[a] + rows, starts[b] : starts[b] + columns] += part
        found[starts[b] : starts[b] + columns, starts[a] : starts[a] + rows] += part.T
    return found


def _is_new(parts: Mapping[str, np.ndarray], modes: list[dict[str, np.ndarray]]) -> bool:
    """Whether a vector's parts are no other mode's, at any node."""
    for node, part in parts.items():
        rest = part
        for mode in modes:
            if node in mode:
                rest = rest - (mode[node] @ part) * mode[node]
        if np.linalg.norm(rest) < OWN * np.linalg.norm(part):
            return False
    return True


def orthonormal(vectors: np.ndarray) -> np.ndarray:
    """The nearest orthonormal columns; those that are zero, or too many, are zero."""
    found, kept = np.zeros_like(vectors), np.flatnonzero(np.any(vectors, axis=0))[: len(vectors)]
    if kept.size:
        left, _, right = np.linalg.svd(vectors[:, kept], full_matrices=False)
        found[:, kept] = left @ right
    return found


def grown(blocks: list[Block], bases: Mapping, order: Iterable[str]) -> dict:
    """Bases of the nodes that have none yet, in an order: of each what known nodes lead to."""
    found = dict(bases)
    modes = next(iter(bases.values())).shape[1]
    for node in order:
        led = [m @ found[b] for a, b, m in blocks if a == node and b in found]
        led += [m.T @ found[a] for a, b, m in blocks if b == node and a in found]
        if node not in found:
            columns = [_main(np.stack([one[:, k] for one in led], axis=1)) for k in range(modes)]
            found[node] = orthonormal(_stacked(columns, led[0].shape[0]))
    return found


def _main(vectors: np.ndarray) -> np.ndarray:
    """The direction that most of some vectors have in common, up to sign; zero of zeros."""
    return np.linalg.svd(vectors, full_matrices=False)[0][:, 0] * np.any(vectors)


def improved(blocks: list[Block], bases: Mapping, free: Iterable[str]) -> dict:
    """Bases, of which some are free, with more of the blocks on the diagonals.

    In turns each free basis takes what is best, to first order, given all others (Procrustes).
    """
    found, free, before = dict(bases), list(free), -np.inf
    for _ in range(SWEEPS):
        for node in free:
            pull = np.zeros_like(found[node])
            for block in blocks:
                if node in block[:2]:
                    a, b, m = block
                    led = m @ found[b] if node == a else m.T @ found[a]
                    pull += led * block.diagonal(found)
            # What nothing pulls at stays.
            found[node] = orthonormal(pull + SEEN * np.max(np.abs(pull), initial=0) * found[node])
        gain = sum(float(np.sum(block.diagonal(found) ** 2)) for block in blocks)
        if gain <= before * (1 + STILL):
            break
        before = gain
    return found
