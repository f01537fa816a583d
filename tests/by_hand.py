"""Networks in NumPy: what flows, descents and losses are measured by."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special
from scipy.integrate import solve_ivp

import flowlin as fl

COUNTS = np.array([1, 2, 1, 3, 1, 1, 2])  # weights of samples, as how often each is there

Arrays = list[np.ndarray]


def classes(weights=None) -> fl.Task:
    """Seven samples of two inputs in three classes."""
    rng = np.random.default_rng(3)
    return fl.Task(rng.normal(size=(7, 2)), np.eye(3)[rng.integers(3, size=7)], weights=weights)


def relu(task, width=3, variance=0.3, seed=0, **options) -> fl.ReLUNetwork:
    """A network with biases in both layers."""
    key = jax.random.key(seed)
    return fl.ReLUNetwork.init(task, width, variance, (True, True), key=key, **options)


def linear(task, width=3, variance=0.3, seed=0) -> fl.LinearNetwork:
    """A network with biases in both layers."""
    return fl.LinearNetwork.init(task, width, variance, (True, True), key=jax.random.key(seed))


def squared(outputs, y):
    """Loss of every sample, and its derivative by the outputs."""
    return np.sum((outputs - y) ** 2, axis=1) / 2, outputs - y


def entropy(outputs, y):
    """The same for cross-entropy."""
    logs = special.log_softmax(outputs, axis=1)
    return -np.sum(y * logs, axis=1), np.sum(y, axis=1, keepdims=True) * np.exp(logs) - y


@dataclasses.dataclass(frozen=True)
class ByHand:
    """How a network is trained; a sample of weight n is there n times.

    - `tau`, `decay`: of every layer.
    - `rests`: places of the arrays that do not move, of weights first, then of biases.
    - `summed`: whether the loss is the sum over the samples, not their mean.
    """

    network: fl.LinearNetwork | fl.ReLUNetwork
    task: fl.Task
    loss: Callable = squared
    tau: tuple[float, ...] = (1.0, 1.0)
    decay: tuple[float, ...] = (0.0, 0.0)
    rests: tuple[int, ...] = ()
    summed: bool = False

    @functools.cached_property
    def start(self) -> Arrays:
        """Weights of all layers, then biases."""
        return [np.asarray(a) for a in jax.tree.leaves(self.network.parameters)]

    @functools.cached_property
    def layers(self) -> list[int]:
        """The layer of each of these arrays."""
        biased = [k for k, b in enumerate(self.network.biases) if b is not None]
        return [*range(len(self.network.weights)), *biased]

    @functools.cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The inputs, targets and weights of all samples."""
        weights = np.ones(self.task.samples) if self.task.weights is None else self.task.weights
        return np.asarray(self.task.x), np.asarray(self.task.y), np.asarray(weights, int)

    @functools.cached_property
    def repeated(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of all samples, each as often as it is there."""
        x, y, counts = self.rows
        return np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0)

    @functools.cached_property
    def constants(self) -> tuple[float, float]:
        """The bias strength, and the slope of a unit that is off."""
        return float(self.network.bias_strength), float(getattr(self.network, "slope", 1.0))

    def at(self, arrays: Arrays):
        """The network with these arrays."""
        structure = jax.tree.structure(self.network.parameters)
        leaves = [jnp.asarray(a) for a in arrays]
        return self.network.with_parameters(jax.tree.unflatten(structure, leaves))

    def __call__(self, arrays: Arrays, samples: list[int] | None = None) -> tuple[float, Arrays]:
        """The loss on the data, of all samples or of a batch, and the velocity."""
        c, leak = self.constants
        depth = len(self.network.weights)
        weights = [np.asarray(w) for w in arrays[:depth]]
        biases = dict(zip(self.layers[depth:], map(np.asarray, arrays[depth:]), strict=True))
        if samples is None:
            x, y = self.repeated
        else:
            x, y, counts = (a[samples] for a in self.rows)
            x, y = np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0)
        below, gates = [x], []
        for k, w in enumerate(weights):
            z = below[k] @ w.T + c * biases.get(k, 0.0)
            gates.append(np.where(z > 0, 1.0, leak) if k < depth - 1 else np.ones_like(z))
            below.append(gates[k] * z)
        losses, back = self.loss(below[-1], y)
        share = 1.0 if self.summed else 1 / len(x)
        back, sent = share * back, []
        for w, gate in zip(reversed(weights), reversed(gates), strict=True):
            sent.insert(0, gate * back)
            back = sent[0] @ w
        gradient = [dz.T @ h for dz, h in zip(sent, below[:-1], strict=True)]
        gradient += [c * sent[k].sum(axis=0) for k in biases]
        velocity = [
            np.zeros_like(a) if k in self.rests else -(g + self.decay[layer] * a) / self.tau[layer]
            for k, (a, g, layer) in enumerate(zip(arrays, gradient, self.layers, strict=True))
        ]
        return share * float(np.sum(losses)), velocity

    def descent(self, rate: float, steps: int) -> Iterator[tuple[float, Arrays]]:
        """Loss and arrays before the first step and after every one."""
        arrays = self.start
        for _ in range(steps + 1):
            loss, velocity = self(arrays)
            yield loss, arrays
            arrays = [a + rate * v for a, v in zip(arrays, velocity, strict=True)]

    def limit(self, t1: float, rate: float):
        """The network at a time, by small steps."""
        *_, (_, arrays) = self.descent(rate, round(t1 / rate))
        return self.at(arrays)

    def solution(self, t1: float, rtol: float = 1e-12) -> Callable:
        """The network at any time up to the last, of a smooth flow by SciPy."""
        shapes = [a.shape for a in self.start]
        ends = np.cumsum([a.size for a in self.start])[:-1]

        def arrays(y):
            return [a.reshape(s) for a, s in zip(np.split(y, ends), shapes, strict=True)]

        def field(_, y):
            return np.concatenate([v.ravel() for v in self(arrays(y))[1]])

        y0 = np.concatenate([a.ravel() for a in self.start])
        found = solve_ivp(field, (0, t1), y0, "DOP853", dense_output=True, rtol=rtol, atol=1e-13)
        return lambda t: self.at(arrays(found.sol(t)))
