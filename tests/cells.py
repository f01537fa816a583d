r"""All local minima of the local problem at a point where kinks meet, cell by cell, in plain NumPy.

Near a point descent is that on $L'(\theta_0; \delta)$, one pass of tangents in which the pairs at
their kinks pass on max(dz, 0). With these pairs' gates off let f be minus the gradient,
$\phi_p = \partial z_p / \partial \theta$, $D_p = \partial L / \partial h_p$ and
$M_{pq} = \partial z_p / \partial h_q$. The flow leaves along a local minimum d of

$$\Psi(\delta) + |\delta|^2 / 2, \qquad
  \Psi(\delta) = -f \cdot \delta + \sum_p D_p \max(s_p, 0), \qquad
  s_p = \phi_p \cdot \delta + \sum_q M_{pq} \max(s_q, 0).$$

Given the signs of s all is linear: a cell. Its minimiser is the projection of minus its gradient
onto the cell, a cone. A point is a local minimum if every closed cell that holds it has it as its
minimiser. No code is shared with flowlin's rule, which follows descent or lets pairs change sides.
"""

import itertools
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize

Pair = tuple[int, int, int]  # layer, unit, sample
SAME, RANK = 1e-7, 1e-9  # relative: of two points, of the directions of kinks


class LocalProblem(NamedTuple):
    """The problem in coordinates of the space that the kinks' directions span."""

    pairs: list[Pair]
    pull: np.ndarray  # q, of f
    directions: np.ndarray  # B, a row per pair
    feeds: np.ndarray  # M, strictly lower triangular
    prices: np.ndarray  # D


def local_problem(weights, x, y, near: float, off: Collection[Pair] = ()) -> LocalProblem:
    """Return the problem of a network without biases at a point, of pairs with |z| <= near |w| |h|.

    Pairs are those with a gradient of their own, or fed by others at their kinks; those in `off`
    stay off.
    """
    hs, on, at = [np.asarray(x).T], [], []
    for w in weights[:-1]:
        z = w @ hs[-1]
        sizes = np.linalg.norm(w, axis=1)[:, None] * np.linalg.norm(hs[-1], axis=0)[None]
        at.append(np.abs(z) <= near * np.maximum(sizes, np.max(sizes)))
        on.append((z > 0) & ~at[-1])
        hs.append(np.where(on[-1], z, 0.0))
    error = weights[-1] @ hs[-1] - np.asarray(y).T

    def backward(signal, top, i):
        """Gradients of all weights, and what each layer's h are sent, by a signal at one layer."""
        rows, sent = [np.zeros(w.size) for w in weights], {}
        for k in range(top, -1, -1):
            rows[k] = np.outer(signal, hs[k][:, i]).ravel()
            sent[k - 1] = weights[k].T @ signal
            signal = sent[k - 1] * (on[k - 1][:, i] if k else 1.0)
        return np.concatenate(rows), sent

    last, samples = len(weights) - 1, hs[0].shape[1]
    of_loss = [backward(error[:, i], last, i) for i in range(samples)]
    found: list[Pair] = [(k, h, i) for k in range(last) for h, i in np.argwhere(at[k]).tolist()]
    found = [p for p in found if p not in off]
    own = {p: backward(np.eye(len(weights[p[0]]))[p[1]], p[0], p[2]) for p in found}

    def feeds(p, q):
        return own[p][1][q[0]][q[1]] if q[0] < p[0] and q[2] == p[2] else 0.0

    pairs: list[Pair] = []
    for p in found:  # from below: pairs that nothing reaches have no say
        if np.any(own[p][0]) or any(feeds(p, q) for q in pairs):
            pairs.append(p)
    rows = np.array([own[p][0] for p in pairs]).reshape(len(pairs), sum(w.size for w in weights))
    _, size, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[size > RANK * max(size, default=0.0)]
    return LocalProblem(
        pairs,
        basis @ -sum(gradient for gradient, _ in of_loss),
        rows @ basis.T,
        np.array([[feeds(p, q) for q in pairs] for p in pairs]).reshape(len(pairs), len(pairs)),
        np.array([of_loss[i][1][k][h] for k, h, i in pairs]),
    )


def has_inside(rows: np.ndarray) -> bool:
    """Tell whether rows y > 0 for some y."""
    if not len(rows):
        return True
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    size = rows.shape[1]
    found = scipy.optimize.linprog(
        np.append(np.zeros(size), -1.0),
        A_ub=np.column_stack([-rows, np.ones(len(rows))]),
        b_ub=np.zeros(len(rows)),
        bounds=[(-1, 1)] * size + [(None, 1)],
    )
    return -found.fun > SAME


def cell(problem: LocalProblem, on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of s, and the gradient of Psi, where these pairs are on."""
    rows = np.linalg.solve(np.eye(len(on)) - problem.feeds * on, problem.directions)
    return rows, rows.T @ (on * problem.prices) - problem.pull


def local_minima(problem: LocalProblem) -> tuple[list[np.ndarray], float]:
    """Return all local minima, velocities after the point, and the largest gradient of a cell."""
    cells, scale = [], 0.0
    for signs in itertools.product((0.0, 1.0), repeat=len(problem.pairs)):
        on = np.array(signs)
        rows, gradient = cell(problem, on)
        idle = np.linalg.norm(rows, axis=1) <= RANK * np.linalg.norm(problem.directions)
        cone = ((2 * on - 1)[:, None] * rows)[~idle]
        if np.any(on[idle]) or not has_inside(cone):
            continue
        back = scipy.optimize.nnls(cone.T, gradient)[0] if len(cone) else np.zeros(0)
        cells.append((cone, cone.T @ back - gradient))
        scale = max(scale, float(np.linalg.norm(gradient)))
    minima: list[np.ndarray] = []
    for _, y in cells:
        around = [one for cone, one in cells if np.all(cone @ y >= -SAME * scale)]
        stays = all(np.linalg.norm(one - y) <= SAME * scale for one in around)
        if stays and all(np.linalg.norm(y - known) > SAME * scale for known in minima):
            minima.append(y)
    return minima, scale


def velocity(problem: LocalProblem, sides: np.ndarray) -> np.ndarray:
    """Return the velocity of a walk with the pairs at these sides: 1 on, 0 sliding, -1 off."""
    rows, gradient = cell(problem, (sides == 1).astype(float))
    held = scipy.linalg.orth(rows[sides == 0].T)
    return held @ (held.T @ gradient) - gradient
