"""Effective weights of classifiers of images: networks, training, and how maps lie by class."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _paper import fl
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from threadpoolctl import threadpool_limits

SPACES = ("logits", "backbone", "activations", "inputs")
NEIGHBOURS = 10
RATE = 1e-3
ADAM = optax.adam(RATE)  # one object: every new one is compiled anew


class Geometry(NamedTuple):
    """How points lie by class.

    - `norm`: root mean square of their norms.
    - `within`, `between`: mean distances of pairs of one class, and of two.
    - `neighbours`: (10, 10), share of class b among the ten nearest of a sample of class a.
    """

    norm: float
    within: float
    between: float
    neighbours: np.ndarray


class Split(NamedTuple):
    """Two clusters of one class.

    - `silhouette`: of the better of ten runs of k-means.
    - `null`: the same of normal samples with the class's own covariance, (draws,).
    - `labels`: 0 or 1 of every sample.
    """

    silhouette: float
    null: np.ndarray
    labels: np.ndarray


def start(task: fl.Task, hidden: tuple[int, ...], seed: int, bias: bool) -> fl.ReLUNetwork:
    """PyTorch's initial weights: uniform within 1 / sqrt(inputs of the layer), biases as well."""
    rng, sizes = np.random.default_rng(seed), [task.inputs, *hidden, task.outputs]
    dtype = task.x.dtype
    pairs = list(itertools.pairwise(sizes))
    weights = [jnp.asarray(rng.uniform(-1, 1, (o, i)) / i**0.5, dtype) for i, o in pairs]
    if not bias:
        return fl.ReLUNetwork(weights)
    return fl.ReLUNetwork(
        weights, [jnp.asarray(rng.uniform(-1, 1, o) / i**0.5, dtype) for i, o in pairs]
    )


def shuffled(task: fl.Task) -> fl.Task:
    """The task with the labels of other samples."""
    order = np.random.default_rng(0).permutation(task.samples)
    return dataclasses.replace(task, y=task.y[order])


def train(network: Any, task: fl.Task, steps: tuple[int, ...], seed: int) -> fl.Trajectory:
    """Adam at 1e-3 on the cross-entropy of batches of 64, saved after some steps."""
    return fl.stochastic_gradient_descent(
        network, task, RATE, steps[-1], batch_size=64, key=jax.random.key(seed),
        loss=fl.CrossEntropy(), optimiser=ADAM, ts=RATE * np.asarray(steps),
    )  # fmt: skip


@eqx.filter_jit
def maps(network: Any, x: jax.Array, layer: int | None) -> fl.measures.EffectiveMap:
    """Effective maps of the samples."""
    return fl.measures.effective_map(network, x, layer=layer)


def points(network: Any, x: Any, space: str) -> np.ndarray:
    """What is compared, one row per sample: W_eff of logits or backbone, activations, inputs."""
    if space == "inputs":
        return np.asarray(x)
    top = len(network.weights) - 2
    if space == "activations":
        return np.asarray(fl.measures.hidden(network, x, layer=top))
    found = maps(network, x, None if space == "logits" else top).matrix
    return np.asarray(found).reshape(len(x), -1)


def gram_of(rows: np.ndarray) -> np.ndarray:
    """Inner products of the rows (P, P)."""
    return np.asarray(rows @ rows.T, np.float64)


def distances(gram: np.ndarray) -> np.ndarray:
    """Of all pairs, from inner products."""
    squares = np.diag(gram)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0))


def geometry(gram: np.ndarray, classes: np.ndarray) -> Geometry:
    """Distances and neighbours by class, from inner products."""
    apart = distances(gram)
    alone = np.eye(len(gram), dtype=bool)
    same = classes[:, None] == classes
    nearest = np.argsort(np.where(alone, np.inf, apart), axis=1)[:, :NEIGHBOURS]
    shares = np.eye(10)[classes[nearest]].mean(axis=1)
    neighbours = np.stack([shares[classes == k].mean(axis=0) for k in range(10)])
    norm = float(np.sqrt(np.diag(gram).mean()))
    return Geometry(norm, apart[same & ~alone].mean(), apart[~same].mean(), neighbours)


def split(gram: np.ndarray, draws: int) -> Split:
    """Two clusters of samples with these inner products, against normal samples."""
    centre = np.eye(len(gram)) - 1 / len(gram)
    values, vectors = np.linalg.eigh(centre @ gram @ centre)
    kept = values > 1e-6 * values[-1]
    scales = np.sqrt(values[kept])
    rng = np.random.default_rng(0)

    def clusters(rows: np.ndarray) -> tuple[float, np.ndarray]:
        with threadpool_limits(1):  # more threads wait for each other
            labels = KMeans(2, n_init=10, random_state=0).fit_predict(rows)  # pyright: ignore
        return float(silhouette_score(rows, labels)), labels

    found, labels = clusters(vectors[:, kept] * scales)
    normal = rng.normal(size=(draws, len(gram), len(scales))) * scales / np.sqrt(len(gram))
    return Split(found, np.array([clusters(rows)[0] for rows in normal]), labels)


def nearness(gram: np.ndarray, ones: np.ndarray, labels: np.ndarray) -> float:
    """Mean distance of two clusters of the ones over that of ones from other digits.

    `gram`: of all samples; `ones`: which of them are; `labels`: the ones' clusters.
    """
    apart = distances(gram)
    across = apart[np.ix_(ones, ones)][labels[:, None] != labels]
    return float(across.mean() / apart[np.ix_(ones, ~ones)].mean())


def slant_and_foot(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of ones: shear of the ink; largest width of a row in the lowest fifth over the stem's."""
    images = (x - x.min()) / (x.max() - x.min())
    images = images.reshape(-1, 28, 28)
    slants, feet = [], []
    for image in images:
        r, c = np.nonzero(image > 0.3)
        ink, rows = image[r, c], np.unique(r)
        dr, dc = r - np.average(r, weights=ink), c - np.average(c, weights=ink)
        slants.append(-np.sum(ink * dr * dc) / np.sum(ink * dr**2))
        widths = np.array([np.ptp(c[r == row]) + 1 for row in rows])
        height = (rows - rows[0]) / max(np.ptp(rows), 1)
        stem = np.median(widths[(height > 0.3) & (height < 0.7)])
        feet.append(widths[height >= 0.8].max() / stem)
    return np.array(slants), np.array(feet)


def exactness(network: Any, x: jax.Array) -> tuple[float, float]:
    """Largest error of W_eff x + b_eff in shares of the largest output; mean |b_eff| over |f|."""
    matrix, offset = maps(network, x, None)
    values = jax.vmap(network)(x)
    error = jnp.einsum("poi,pi->po", matrix, x) + offset - values
    share = jnp.linalg.norm(offset, axis=1) / jnp.linalg.norm(values, axis=1)
    return float(jnp.max(jnp.abs(error)) / jnp.max(jnp.abs(values))), float(share.mean())


class Deep(eqx.Module):
    """784 inputs, three layers of equal width, a head; no biases.

    - `residual`: whether the second and third layer add to what they are given.
    - `norm`: whether every activation is normalised over its units.
    """

    first: jax.Array
    blocks: jax.Array
    head: jax.Array
    activation: Any = eqx.field(static=True)
    residual: bool = eqx.field(static=True)
    norm: bool = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        """One sample."""
        h = self._normalised(self.activation(self.first @ x))
        for block in self.blocks:
            new = self._normalised(self.activation(block @ h))
            h = h + new if self.residual else new
        return self.head @ h

    def product(self, x: jax.Array) -> jax.Array:
        """M of f(x) = M x: the weights, and what activations and norms multiply by at a sample."""
        h, m = self._through(self.first, x, jnp.eye(len(x), dtype=x.dtype))
        for block in self.blocks:
            new, further = self._through(block, h, m)
            h, m = (h + new, m + further) if self.residual else (new, further)
        return self.head @ m

    def _through(self, w: jax.Array, h: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = w @ h
        h = self.activation(z)
        m = (h / z)[:, None] * (w @ m)
        if self.norm:
            m = (m - m.mean(axis=0)) / jnp.sqrt(h.var() + 1e-5)
        return self._normalised(h), m

    def _normalised(self, h: jax.Array) -> jax.Array:
        if not self.norm:
            return h
        return (h - h.mean()) / jnp.sqrt(h.var() + 1e-5)


def deep(task: fl.Task, width: int, seed: int, activation: Any, **how: bool) -> Deep:
    """With PyTorch's initial weights."""
    first, *blocks, head = start(task, (width,) * 3, seed, bias=False).weights
    return Deep(first, jnp.stack(blocks), head, activation, **how)


def product_error(network: Deep, x: jax.Array) -> float:
    """Largest error of its product, in shares of the largest output."""
    found = jax.vmap(lambda one: network.product(one) @ one - network(one))(x)
    return float(jnp.max(jnp.abs(found)) / jnp.max(jnp.abs(jax.vmap(network)(x))))


def curvature(network: Any, x: jax.Array, step: float = 0.1) -> float:
    """How far the tangent is off at a step of this share of |x|, in shares of the change of f."""
    away = np.random.default_rng(0).normal(size=x.shape)
    away = away / np.linalg.norm(away, axis=1, keepdims=True)
    away = jnp.asarray(step * away * np.linalg.norm(x, axis=1, keepdims=True), x.dtype)
    matrix, offset = maps(network, x, None)
    there = jax.vmap(network)(x + away)
    told = jnp.einsum("poi,pi->po", matrix, x + away) + offset
    moved = jnp.linalg.norm(there - jax.vmap(network)(x), axis=1)
    return float(jnp.mean(jnp.linalg.norm(told - there, axis=1)) / jnp.mean(moved))
