"""The objective of a run: loss and gradient of a network's parameters, and the vector field."""

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar, AbstractVar
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Parameters
from flowlin.networks.base import AbstractModel
from flowlin.networks.layered import product
from flowlin.tasks.task import Task
from flowlin.training.losses import Loss

# ---- Sums over the samples of a task, in chunks, so that memory does not grow with the samples.

Sums = TypeVar("Sums")

# Bytes per array of one chunk, and its samples at least, as `benchmarks/evaluation.py --chunks`
# measured: a CPU keeps a chunk's arrays in its cache. Accelerators want large products; theirs is
# not measured.
BYTES, BYTES_ELSEWHERE, ROWS = {"cpu": 2**21}, 2**28, 512


def pieces(samples: int, width: int, itemsize: int) -> int:
    """Return the number of chunks for arrays (samples, width); 1 is a single pass."""
    room = BYTES.get(jax.default_backend(), BYTES_ELSEWHERE)
    return max(1, samples // max(ROWS, room // (width * itemsize)))


def summed(function: Callable[[PyTree], Sums], rows: PyTree, width: int, shards: int = 1) -> Sums:
    """Return `function` of all rows, a tree of sums over samples, added up chunk by chunk.

    Reverse mode recomputes every chunk instead of keeping its arrays.

    **Arguments:**

    - `function`: of a tree such as `rows` with fewer samples; additive over samples.
    - `rows`: tree of arrays with a leading axis of samples, (P, ...).
    - `width`: numbers per sample that `function` holds at once.
    - `shards`: number of devices among which the samples are split, a divisor of P. Each adds up
      its own rows, and what they have is added once at the end.
    """
    first = jax.tree.leaves(rows)[0]
    own = first.shape[0] // shards
    number = pieces(own, width, first.dtype.itemsize)
    if number == 1:
        return function(rows)
    length = own // number
    blocks = jax.tree.map(lambda a: a.reshape(shards, own, *a.shape[1:]), rows)

    def chunk(start: int | Array, size: int) -> PyTree:
        cut = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size, axis=1), blocks)
        return jax.vmap(function)(cut)

    # The rows are cut inside the checkpoint: cut outside, reverse mode would keep every chunk's
    # rows, a copy of the task.
    chunk = jax.checkpoint(chunk, static_argnums=1)

    def body(total: PyTree, k: Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, chunk(k * length, length)), None

    zero = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(lambda: chunk(0, length))
    )
    total, _ = lax.scan(body, zero, jnp.arange(number))
    rest = own - number * length  # fewer rows than there are chunks
    if rest:
        total = jax.tree.map(jnp.add, total, chunk(number * length, rest))
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), total)


def dot(a: PyTree, b: PyTree) -> Array:
    """Return the scalar product of two trees of arrays."""
    return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


def norm(tree: PyTree) -> Array:
    """Return the Euclidean norm of a tree of arrays; squares do not underflow."""
    leaves = [a for a in jax.tree.leaves(tree) if a.size]
    largest = lax.stop_gradient(jnp.max(jnp.stack([jnp.max(jnp.abs(a)) for a in leaves])))
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, jnp.ones_like(largest))
    scaled = jax.tree.map(lambda a: a / unit, leaves)
    square = dot(scaled, scaled)
    # The root has no finite derivative at zero, and `where` passes on the NaN of a branch that is
    # not taken: the inner `where` keeps the root away from zero.
    return unit * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


class AbstractObjective(eqx.Module):
    """Loss and gradient as functions of a network of one fixed kind on one task."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Return the objective's name in `flow.stats`."""

    @property
    @abc.abstractmethod
    def falls(self) -> bool:
        """Tell whether the loss can only fall along the flow of minus the gradient."""

    @abc.abstractmethod
    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the run's own loss, the one that is recorded and watched."""

    @abc.abstractmethod
    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """Return the number whose gradient `gradient` returns, at the parameters given."""

    @abc.abstractmethod
    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient by all parameters of the network, or at and by those given.

        Parameters given as None stay as the network has them.
        """


class AbstractPlain(AbstractObjective):
    """Objectives that descend the run's own loss, with nothing added to it."""

    @property
    def label(self) -> str:
        """Return the name of the class."""
        return type(self).__name__

    @property
    def falls(self) -> bool:
        """Tell that the loss falls along the flow."""
        return True

    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """Return the loss."""
        return self.value(network if parameters is None else network.with_parameters(parameters))


class FullData(AbstractPlain):
    """The loss on all samples, by a forward and a backward pass over chunks of them.

    - `width`: z over which kinks are rounded off, or None; see `flowlin.networks.layered`.
    - `shards`: devices among which the samples are split.
    """

    task: Task
    loss: Loss
    width: ArrayLike | None = None
    shards: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        self.loss.require_fit(self.task.y)

    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the loss on the task."""
        return self._summed(self._loss, network, None)

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the loss on the task."""
        return self.value_and_gradient(network, parameters)[1]

    def value_and_gradient(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> tuple[Array, Parameters]:
        """Return both, from one pass over the samples."""
        return self._summed(jax.value_and_grad(self._loss), network, parameters)

    def _loss(self, parameters: Parameters, network: AbstractModel, rows: PyTree) -> Array:
        """Return the part of the loss that some samples, (x, y, gates, weights), contribute."""
        x, y, gates, weights = rows
        network = network.with_parameters(parameters).with_sample_gates(gates)
        fast = _product if x.shape[0] < self.task.samples and x.dtype == jnp.float64 else product
        outputs = network.rounded(x, self.width, fast)
        return self.loss.weight(self.task.mass) * self.loss.total(outputs, y, weights)

    def _summed(
        self, function: Callable[..., PyTree], network: AbstractModel, parameters: Parameters
    ) -> Any:
        """Add a function of (parameters, network, rows) up over all samples, chunk by chunk."""
        rows = (self.task.x, self.task.y, network.sample_gates, self.task.weights)
        parameters = network.parameters if parameters is None else parameters

        def part(rows):
            return function(parameters, network, rows)

        return summed(part, rows, network.held(self.task), self.shards)


def _product(h: Array, w: Array) -> Array:
    """Return h W^T, laid out so that XLA's fast kernel for CPUs takes the derivative by W too.

    In chunks and float64 a quarter faster over all; in float32 slower (`benchmarks/evaluation.py`).
    """
    return (w @ h.T).T


class AbstractAltered(AbstractObjective):
    """Objectives that descend the loss with something added; the run's own loss stays plain."""

    plain: AbstractVar[AbstractObjective]
    alteration: AbstractClassVar[str]

    @property
    def label(self) -> str:
        """Join the name of the plain objective and that of the addition."""
        return f"{self.plain.label}, {self.alteration}"

    @property
    def falls(self) -> bool:
        """Tell that the loss may rise: the flow descends another function."""
        return False

    def value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the plain loss."""
        return self.plain.value(network)


class Modified(AbstractAltered):
    r"""The loss that descent with a finite step descends, by backward error analysis.

    Steps $w_{k+1} = w_k - \epsilon \nabla L$ follow, at the times $k \epsilon \tau$ and up to
    $O(\epsilon^2)$, the flow of

    $$\tilde L = L + \frac{\epsilon}{4} \|\nabla L\|^2, \qquad
      \nabla \tilde L = \nabla L + \frac{\epsilon}{2} \nabla^2 L\, \nabla L$$

    (Barrett and Dherin 2021, Sec. 2; Hairer, Lubich and Wanner 2006, IX.1 for any method), which
    needs a gradient that is smooth. The Hessian enters as one forward derivative of the gradient.
    The run's own loss stays L, which need not fall where the curvature is below -2 / eps:
    $\tau \dot L = -g \cdot (1 + \frac{\epsilon}{2} \nabla^2 L)\, g$.
    """

    plain: AbstractObjective
    learning_rate: Float[Array, ""]

    alteration: ClassVar[str] = "modified"

    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """Return the modified loss."""
        slope = self.plain.gradient(network, parameters)
        added = self.learning_rate / 4 * dot(slope, slope)
        return self.plain.descended(network, parameters) + added

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the modified loss."""
        parameters = network.parameters if parameters is None else parameters

        def plain(parameters: Parameters) -> Parameters:
            return self.plain.gradient(network, parameters)

        slope = plain(parameters)
        slope, bend = jax.jvp(plain, (parameters,), (slope,))
        return jax.tree.map(lambda g, h: g + self.learning_rate / 2 * h, slope, bend)


# ---- Weight decay: half the sum of squares of what is trained, added to what is descended.


class Decay(eqx.Module):
    r"""Weight decay $\frac{\lambda}{2} \|w\|^2$, by its gradient $\lambda w$; biases decay alike.

    - `rate`: $\lambda \ge 0$, a number for all parameters, or (L,) one per layer.
    """

    rate: Float[Array, "*L"]

    def pull(self, parameters: Parameters) -> Parameters:
        r"""Return $\lambda w$ of all parameters, the gradient of the decay."""
        if self.rate.ndim == 0:
            return jax.tree.map(lambda w: self.rate * w, parameters)
        weights, biases = parameters
        pulled = [
            jax.tree.map(lambda w, k=k: self.rate[k] * w, layer)
            for k, layer in enumerate(zip(weights, biases, strict=True))
        ]
        return tuple(w for w, _ in pulled), tuple(b for _, b in pulled)

    def first(self) -> Float[Array, ""]:
        r"""Return $\lambda$ of the first layer."""
        return self.rate if self.rate.ndim == 0 else self.rate[0]


def slowed(velocity: Parameters, decay: Decay | None, parameters: Parameters) -> Parameters:
    r"""Add the decay's velocity $-\lambda w$ to the parameters' own, where there is one."""
    if decay is None:
        return velocity
    return jax.tree.map(jnp.subtract, velocity, decay.pull(parameters))


class Decayed(AbstractAltered):
    r"""The loss that a run with weight decay descends, $L + \frac{\lambda}{2} \|w\|^2$.

    The run's own loss stays L, which may rise: $\tau \dot L = -|g|^2 - \lambda\, g \cdot w$ with
    its gradient g.
    """

    plain: AbstractObjective
    decay: Decay

    alteration: ClassVar[str] = "with weight decay"

    def descended(self, network: AbstractModel, parameters: Parameters = None) -> Float[Array, ""]:
        """Return the loss with the decay."""
        parameters = network.parameters if parameters is None else parameters
        energy = dot(self.decay.pull(parameters), parameters) / 2
        return self.plain.descended(network, parameters) + energy

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the loss with the decay."""
        parameters = network.parameters if parameters is None else parameters
        gradient: Parameters = self.plain.gradient(network, parameters)
        return jax.tree.map(jnp.add, gradient, self.decay.pull(parameters))


def decayed(plain: AbstractObjective, decay: Decay | None) -> AbstractObjective:
    """Add the decay to an objective, where there is one."""
    return plain if decay is None else Decayed(plain, decay)
