"""Singular value decompositions in a basis that no machine changes."""

import numpy as np

Group = tuple[int, ...]  # the numbers of triples that are equal

# Singular values, and variances, count as equal if they differ by less than the first share of the
# largest and the second share of themselves: the first alone would join weak ones that differ by
# factors.
EQUAL_TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
EQUAL_OWN_SHARE = 1e-3
ZERO_TOLERANCE = 1e-10  # of the largest; smaller singular values count as zero
TIE_TOLERANCE = 1e-4  # relative; lengths as close as this tie, and the first one is taken


def singular_triples(
    syx: np.ndarray, sx: np.ndarray, noise: float, same: float, zero: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[Group, ...]]:
    """Decompose Sigma_yx in a basis that no machine changes, and group equal modes.

    Neighbours that are closer than `same` of the largest, and `OWN` of themselves, are equal,
    singular values as variances; with `same` = 0 singular values that are closer than `noise`.
    Singular values below `zero` of the largest, or `noise`, are zero, so that s/d does not become
    noise over noise; there inputs and outputs are turned by themselves.

    **Returns:** `u`, `s`, `v`, the variances `d` of the v, and the groups, most of them of one.
    """
    u, s, vt = np.linalg.svd(syx, full_matrices=False)
    v, s = vt.T, np.where(s > max(noise, zero * s[0]), s, 0.0)
    driven = int(np.sum(s > 0))
    close = _equal_distance(s, same) if same else np.full(s.shape, noise)
    for group in _equal_neighbours(s[:driven], close[:driven]):
        # The same rotation on both sides keeps u diag(s) v^T for equal s.
        rotation = _diagonal_rotation(v[:, group], sx)
        u[:, group], v[:, group] = u[:, group] @ rotation, v[:, group] @ rotation
    if driven < len(s):
        rest = np.linalg.qr(v[:, :driven], mode="complete")[0][:, driven:]
        v[:, driven:] = (rest @ _diagonal_rotation(rest, sx))[:, : len(s) - driven]
        rest = np.linalg.qr(u[:, :driven], mode="complete")[0][:, driven:]
        u[:, driven:] = canonical_basis(rest, len(s) - driven)
    d = np.einsum("ik,ij,jk->k", v, sx, v)
    groups: list[Group] = []
    for block in _equal_neighbours(s, close):
        for run in _equal_neighbours(d[block], _equal_distance(d[block], same)):
            group = block[run]
            basis = canonical_basis(v[:, group])
            if s[group[0]] > 0:
                u[:, group] = u[:, group] @ (v[:, group].T @ basis)
                groups.append(tuple(group.tolist()))
            else:  # with s = 0 any u may stand beside any v
                groups += [(k,) for k in group.tolist()]
            v[:, group] = basis
    return u, s, v, d, tuple(groups)


def _diagonal_rotation(span: np.ndarray, sx: np.ndarray) -> np.ndarray:
    """Return the rotation of a basis (N, m) that makes its variances diagonal, largest first."""
    if span.shape[1] < 2:
        return np.eye(span.shape[1])
    return np.linalg.eigh(span.T @ sx @ span)[1][:, ::-1]


def _equal_distance(values: np.ndarray, same: float) -> np.ndarray:
    """Return how far equal values may be from the one before, (n,)."""
    return np.minimum(same * np.max(values, initial=0.0), EQUAL_OWN_SHARE * values)


def _equal_neighbours(values: np.ndarray, close: np.ndarray) -> list[np.ndarray]:
    """Group neighbours that are equal, no farther than `close` (n,) from the one before."""
    steps = np.flatnonzero(np.abs(np.diff(values)) > close[1:])
    return np.split(np.arange(len(values)), steps + 1) if len(values) else []


def canonical_basis(span: np.ndarray, count: int | None = None) -> np.ndarray:
    """Return an orthonormal basis (N, count) of a span that depends on nothing but the span.

    Every coordinate axis has a projection onto the span. The longest, the first one of several,
    is the first vector; then the same in what is orthogonal to it, and so on.

    **Arguments:** `span`, (N, m) orthonormal; `count` of vectors, None for m.
    """
    basis = []
    for _ in range(span.shape[1] if count is None else count):
        length = np.linalg.norm(span, axis=1)
        longest = int(np.argmax(length >= (1 - TIE_TOLERANCE) * np.max(length)))
        along = span[longest] / length[longest]
        basis.append(span @ along)
        span = span - np.outer(span @ along, along)
    return np.stack(basis, axis=1) if basis else np.zeros((len(span), 0))
