"""The objective of a run: loss and gradient of a network's parameters, and the vector field."""

import abc
import functools
from collections.abc import Callable
from typing import ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar, AbstractVar
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Parameters
from flowlin._tools.numerics import largest_number
from flowlin.networks.base import AbstractModel
from flowlin.networks.fit import numbers_per_sample
from flowlin.networks.layered import apply_weights
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss

# ---- Sums over the samples of a task, in chunks, so that memory does not grow with the samples.

Sums = TypeVar("Sums")

# Bytes per array of one chunk, and its samples at least, as `benchmarks/evaluation.py --chunks`
# measured: a CPU keeps a chunk's arrays in its cache. Accelerators want large products; theirs is
# not measured.
CHUNK_BYTES, CHUNK_BYTES_OTHERWISE, MIN_CHUNK_ROWS = {"cpu": 2**21}, 2**28, 512


def number_of_chunks(samples: int, width: int, itemsize: int) -> int:
    """Return the number of chunks for arrays (samples, width); 1 is a single pass."""
    room = CHUNK_BYTES.get(jax.default_backend(), CHUNK_BYTES_OTHERWISE)
    return max(1, samples // max(MIN_CHUNK_ROWS, room // (width * itemsize)))


def sum_over_samples(
    function: Callable[[PyTree], Sums], rows: PyTree, width: int, shards: int = 1
) -> Sums:
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
    number = number_of_chunks(own, width, first.dtype.itemsize)
    if number == 1:
        return function(rows)
    length = own // number
    blocks = jax.tree.map(lambda a: a.reshape(shards, own, *a.shape[1:]), rows)

    def chunk_sum(start: int | Array, size: int) -> PyTree:
        cut = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size, axis=1), blocks)
        return jax.vmap(function)(cut)

    # The rows are cut inside the checkpoint: cut outside, reverse mode would keep every chunk's
    # rows, a copy of the task.
    chunk_sum = jax.checkpoint(chunk_sum, static_argnums=1)

    def add_chunk(total: PyTree, k: Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, chunk_sum(k * length, length)), None

    zero = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(lambda: chunk_sum(0, length))
    )
    total, _ = lax.scan(add_chunk, zero, jnp.arange(number))
    rest = own - number * length  # fewer rows than there are chunks
    if rest:
        total = jax.tree.map(jnp.add, total, chunk_sum(number * length, rest))
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), total)


def tree_dot(a: PyTree, b: PyTree) -> Array:
    """Return the scalar product of two trees of arrays."""
    return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


def tree_norm(tree: PyTree) -> Array:
    """Return the Euclidean norm of a tree of arrays; squares do not underflow."""
    leaves = [a for a in jax.tree.leaves(tree) if a.size]
    largest = lax.stop_gradient(largest_number(leaves))
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, jnp.ones_like(largest))
    scaled = jax.tree.map(lambda a: a / unit, leaves)
    square = tree_dot(scaled, scaled)
    # The root has no finite derivative at zero, and `where` passes on the NaN of a branch that is
    # not taken: the inner `where` keeps the root away from zero.
    # NaN is not zero, and stays.
    return unit * jnp.where(square == 0, 0.0, jnp.sqrt(jnp.where(square == 0, 1.0, square)))


class AbstractObjective(eqx.Module):
    """Loss and gradient as functions of a network of one fixed kind on one task."""

    @property
    @abc.abstractmethod
    def stats_label(self) -> str:
        """Return the objective's name in `flow.stats`."""

    @property
    @abc.abstractmethod
    def is_monotone(self) -> bool:
        """Tell whether the loss can only fall along the flow of minus the gradient."""

    @abc.abstractmethod
    def loss_value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the run's own loss, the one that is recorded and watched."""

    @abc.abstractmethod
    def objective_value(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> Float[Array, ""]:
        """Return the number whose gradient `gradient` returns, at the parameters given."""

    @abc.abstractmethod
    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient by all parameters of the network, or at and by those given.

        Parameters given as None stay as the network has them.
        """

    def hessian_product(
        self, network: AbstractModel, parameters: Parameters
    ) -> Callable[[Parameters], Parameters]:
        """Return the linear function v -> H v of the Hessian at, and by, the parameters given.

        It is the derivative of the gradient, so gates stay as they are there.
        """
        return jax.linearize(lambda at: self.gradient(network, at), parameters)[1]


class AbstractPlainObjective(AbstractObjective):
    """Objectives that descend the run's own loss, with nothing added to it."""

    @property
    def stats_label(self) -> str:
        """Return the name of the class."""
        return type(self).__name__

    @property
    def is_monotone(self) -> bool:
        """Tell that the loss falls along the flow."""
        return True

    def objective_value(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> Float[Array, ""]:
        """Return the loss."""
        return self.loss_value(
            network if parameters is None else network.with_parameters(parameters)
        )


class FullData(AbstractPlainObjective):
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
        self.loss.require_weights(self.task.weights, self.task.y.shape)

    def loss_value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the loss on the task."""
        return self._sum_over_chunks(self._loss_of_rows, network, None)

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the loss on the task."""
        return self.value_and_gradient(network, parameters)[1]

    def value_and_gradient(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> tuple[Array, Parameters]:
        """Return both, from one pass over the samples."""
        return self._sum_over_chunks(jax.value_and_grad(self._loss_of_rows), network, parameters)

    def _loss_of_rows(self, parameters: Parameters, network: AbstractModel, rows: PyTree) -> Array:
        """Return the part of the loss that some samples, (x, y, gates, weights), contribute."""
        x, y, gates, weights = rows
        network = network.with_parameters(parameters).with_sample_gates(gates)
        fast = (
            _product_for_cpu
            if x.shape[0] < self.task.samples and x.dtype == jnp.float64
            else apply_weights
        )
        outputs = network.smooth_outputs(x, self.width, fast)
        return self.loss.factor_per_sample(self.task.mass) * self.loss.total_loss(
            outputs, y, weights
        )

    def _sum_over_chunks(
        self, function: Callable[..., PyTree], network: AbstractModel, parameters: Parameters
    ) -> PyTree:
        """Add a function of (parameters, network, rows) up over all samples, chunk by chunk."""
        rows = (self.task.x, self.task.y, network.sample_gates, self.task.weights)
        parameters = network.parameters if parameters is None else parameters

        def part_of_rows(rows):
            return function(parameters, network, rows)

        return sum_over_samples(
            part_of_rows, rows, numbers_per_sample(network, self.task), self.shards
        )


def _product_for_cpu(h: Array, w: Array) -> Array:
    """Return h W^T, laid out so that XLA's fast kernel for CPUs takes the derivative by W too.

    In chunks and float64 a quarter faster over all; in float32 slower (`benchmarks/evaluation.py`).
    """
    return (w @ h.T).T


class AbstractAddition(AbstractObjective):
    """Objectives that descend the loss with something added; the run's own loss stays plain."""

    plain: AbstractVar[AbstractObjective]
    addition_label: AbstractClassVar[str]

    @property
    def stats_label(self) -> str:
        """Join the name of the plain objective and that of the addition."""
        return f"{self.plain.stats_label}, {self.addition_label}"

    @property
    def is_monotone(self) -> bool:
        """Tell that the loss may rise: the flow descends another function."""
        return False

    def loss_value(self, network: AbstractModel) -> Float[Array, ""]:
        """Return the plain loss."""
        return self.plain.loss_value(network)


class ModifiedLoss(AbstractAddition):
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

    addition_label: ClassVar[str] = "modified"

    def objective_value(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> Float[Array, ""]:
        """Return the modified loss."""
        slope = self.plain.gradient(network, parameters)
        added = self.learning_rate / 4 * tree_dot(slope, slope)
        return self.plain.objective_value(network, parameters) + added

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the modified loss."""
        parameters = network.parameters if parameters is None else parameters

        def plain_gradient(parameters: Parameters) -> Parameters:
            return self.plain.gradient(network, parameters)

        slope = plain_gradient(parameters)
        slope, bend = jax.jvp(plain_gradient, (parameters,), (slope,))
        return jax.tree.map(lambda g, h: g + self.learning_rate / 2 * h, slope, bend)


# ---- Weight decay: half the sum of squares of what is trained, added to what is descended.


class Decay(eqx.Module):
    r"""Weight decay $\frac{\lambda}{2} \|w\|^2$, by its gradient $\lambda w$; biases decay alike.

    - `rate`: $\lambda \ge 0$, a number for all parameters, or (L,) one per layer.
    """

    rate: Float[Array, "*L"]

    def gradient(self, parameters: Parameters) -> Parameters:
        r"""Return $\lambda w$ of all parameters, the gradient of the decay."""
        if self.rate.ndim == 0:
            return jax.tree.map(lambda w: self.rate * w, parameters)
        weights, biases = parameters
        pulled = [
            jax.tree.map(lambda w, k=k: self.rate[k] * w, layer)
            for k, layer in enumerate(zip(weights, biases, strict=True))
        ]
        return tuple(w for w, _ in pulled), tuple(b for _, b in pulled)

    def first_rate(self) -> Float[Array, ""]:
        r"""Return $\lambda$ of the first layer."""
        return self.rate if self.rate.ndim == 0 else self.rate[0]


def add_decay(velocity: Parameters, decay: Decay | None, parameters: Parameters) -> Parameters:
    r"""Add the decay's velocity $-\lambda w$ to the parameters' own, where there is one."""
    if decay is None:
        return velocity
    return jax.tree.map(jnp.subtract, velocity, decay.gradient(parameters))


class WeightDecay(AbstractAddition):
    r"""The loss that a run with weight decay descends, $L + \frac{\lambda}{2} \|w\|^2$.

    The run's own loss stays L, which may rise: $\tau \dot L = -|g|^2 - \lambda\, g \cdot w$ with
    its gradient g.
    """

    plain: AbstractObjective
    decay: Decay

    addition_label: ClassVar[str] = "with weight decay"

    def objective_value(
        self, network: AbstractModel, parameters: Parameters = None
    ) -> Float[Array, ""]:
        """Return the loss with the decay."""
        parameters = network.parameters if parameters is None else parameters
        energy = tree_dot(self.decay.gradient(parameters), parameters) / 2
        return self.plain.objective_value(network, parameters) + energy

    def gradient(self, network: AbstractModel, parameters: Parameters = None) -> Parameters:
        """Return the gradient of the loss with the decay."""
        parameters = network.parameters if parameters is None else parameters
        gradient: Parameters = self.plain.gradient(network, parameters)
        return jax.tree.map(jnp.add, gradient, self.decay.gradient(parameters))


def with_decay(plain: AbstractObjective, decay: Decay | None) -> AbstractObjective:
    """Add the decay to an objective, where there is one."""
    return plain if decay is None else WeightDecay(plain, decay)
