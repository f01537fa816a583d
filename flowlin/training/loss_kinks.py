r"""The kinks of a user's loss: of hinge, of L1, of whatever has a maximum or an absolute value.

A loss is the mean over samples of a function $\ell(\hat y, y)$ of one sample. Its kinks are found
in its program as those of a module are (`flowlin.networks.module_kinks`). For a walk they join
those of the model, a module or a linear or ReLU network of flowlin's: one program takes a sample's
row [x, y] to the outputs and the sample's loss, (N_out + 1,), with the loss's kinks last, and the
loss of the task is linear in these, $\sum_p v_p \ell_p / \sum_p v_p$. Whatever holds of the kinks
of a graph holds of these too.
"""

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Scalar, replace_fields
from flowlin.networks.base import AbstractModel
from flowlin.networks.kink_program import KinkProgram, KinkSite
from flowlin.networks.layered import smooth_relu
from flowlin.networks.module_kinks import ModuleKinks, Refusal, find_kinks
from flowlin.networks.modules import ForeignModel, StaticPart, unit_places
from flowlin.networks.network_kinds import (
    AbstractSelfGated,
    ReLUNetwork,
    outputs_by_rectifier,
)
from flowlin.tasks.task import Task
from flowlin.training.function_loss import FunctionLoss
from flowlin.training.loss import Loss, TargetWeights

LossFunction = Callable[..., Array]


class _OutputsOfLoss(NamedTuple):
    """The outputs that a loss is a function of; the field's name is the place of its kinks."""

    loss: Array


@functools.lru_cache(maxsize=64)
def _program_of_loss(
    function: LossFunction, outputs: int, dtype: DTypeLike
) -> KinkProgram | Refusal:
    """Return the program of a loss of one sample, (N_out,) outputs and targets to (1,)."""
    one = jax.ShapeDtypeStruct((outputs,), dtype)

    def call_loss(at: _OutputsOfLoss, fixed: None, target: Array) -> Array:
        del fixed
        return function(at.loss, target)[None]

    try:
        return find_kinks(call_loss, _OutputsOfLoss(one), None, one)  # pyright: ignore
    except jax.errors.TracerArrayConversionError:
        return Refusal("it holds numbers that are traced; give it numbers as they are")


@functools.lru_cache(maxsize=64)
def _program_of_both(
    rest: StaticPart, arrays: StaticPart, function: LossFunction, inputs: int, outputs: int
) -> KinkProgram | Refusal:
    """Return the program of a model and its loss on a row [x, y]; see `ModelWithLoss`."""
    inexact, fixed = arrays.tree
    row = jax.ShapeDtypeStruct((inputs + outputs,), jax.tree.leaves(inexact)[0].dtype)

    def call_both(inexact: PyTree, fixed: PyTree, row: Array) -> Array:
        model = eqx.combine(inexact, fixed, rest.tree)
        x = row[:inputs]
        if isinstance(model, ReLUNetwork):  # its rectifiers as such
            found = outputs_by_rectifier(model, x[None], jax.nn.relu)[0]
        else:
            found = model.outputs(x[None])[0] if isinstance(model, AbstractSelfGated) else model(x)
        own = function(found, row[inputs:]).astype(found.dtype)
        return jnp.concatenate([found, own[None]])

    return find_kinks(call_both, inexact, fixed, row)


def kinks_of_loss(loss: Loss, outputs: int, dtype: DTypeLike) -> ModuleKinks:
    """Return what the program of a loss of so many outputs shows of its kinks.

    The losses of flowlin have none.
    """
    if not isinstance(loss, FunctionLoss):
        return ModuleKinks()
    found = _program_of_loss(loss.require_function(), outputs, jnp.dtype(dtype))
    if isinstance(found, Refusal):
        return ModuleKinks((), f"`loss` = {loss.name}: {found.reason}")
    return ModuleKinks(found.sites)


def with_loss_kinks(network: ForeignModel, task: Task, loss: Loss) -> ForeignModel:
    """Return a module with the kinks of its loss after its own; as it is where these are unknown.

    **Raises:** `ValueError` for a loss that does not fit the task.
    """
    loss.require_fit(task.y)
    own, found = network.kinks, kinks_of_loss(loss, task.outputs, network.dtype)
    if own is None or own.unknown_because:
        return network
    if found.unknown_because:
        unknown = own._replace(loss_unknown_because=found.unknown_because)
        return replace_fields(network, kinks=unknown)
    if not found.sites:
        return network
    return replace_fields(network, kinks=_kinks_with_loss(network, task, loss, own.sites))


def _kinks_with_loss(
    model: AbstractModel, task: Task, loss: Loss, own: tuple[KinkSite, ...]
) -> ModuleKinks:
    """Return a model's own kinks with those of its loss behind them, or why these are unknown."""
    assert isinstance(loss, FunctionLoss)  # others have no kinks
    both = ModelWithLoss(model, loss, task.outputs)
    found = both.kink_program(task.inputs + task.outputs)
    if isinstance(found, Refusal):
        return ModuleKinks(own, loss_unknown_because=found.reason)
    more = [KinkSite("loss", *site[1:]) for site in found.sites[len(own) :]]
    return ModuleKinks((*own, *more), in_loss=len(more))


def kinks_to_walk(network: AbstractModel, task: Task, loss: Loss) -> ModuleKinks:
    """Return the kinks that a walk of flowlin's own network passes with those of its loss.

    None where the loss has none, or the network is no linear or ReLU network.
    """
    if not isinstance(network, AbstractSelfGated):
        return ModuleKinks()
    if not kinks_of_loss(loss, task.outputs, network.dtype).sites:
        return ModuleKinks()
    places = unit_places(network) if isinstance(network, ReLUNetwork) else ()
    own = tuple(KinkSite(place.part, "max", place.shape) for place in places)
    found = _kinks_with_loss(network, task, loss, own)
    return ModuleKinks() if found.loss_unknown_because else found


def _split(model: AbstractModel) -> tuple[PyTree, PyTree, StaticPart]:
    """Split a model into arrays that can be trained, other arrays, and all else."""
    if isinstance(model, ForeignModel):
        return model.inexact, model.fixed, model.rest
    assert isinstance(model, AbstractSelfGated)
    none, all_ = (jax.tree.map(lambda _, flag=flag: flag, model) for flag in (False, True))
    trained = eqx.tree_at(lambda m: (m.weights, m.biases), none, (all_.weights, all_.biases))
    inexact, fixed = eqx.partition(model, trained)
    return inexact, fixed, StaticPart(eqx.filter(model, False))


class ModelWithLoss(eqx.Module):
    """A model and its loss as one graph, for the walk: of a row [x, y] the outputs and the loss.

    - `kinks`: those of both, the loss's last; none before they are looked for.
    """

    model: AbstractModel
    loss: FunctionLoss
    outputs: int = eqx.field(static=True)
    kinks: ModuleKinks = eqx.field(static=True, default=ModuleKinks())

    @property
    def parameters(self) -> PyTree:
        """The arrays of the model that can be trained."""
        return self.model.parameters

    @property
    def buffers(self) -> PyTree:
        """The model's other arrays."""
        return _split(self.model)[1]

    @property
    def hidden(self) -> tuple[int, ...]:
        """The units at each of the places with kinks, those of the loss last."""
        return tuple(site.size for site in self.kinks.sites)

    @property
    def loss_units(self) -> int:
        """The units of the loss, the last ones of all."""
        return sum(site.size for site in self.kinks.sites[-self.kinks.in_loss :])

    def with_parameters(self, parameters: PyTree) -> "ModelWithLoss":
        """Return the same with other arrays; those that are None stay."""
        return replace_fields(self, model=self.model.with_parameters(parameters))

    def kink_program(self, inputs: int) -> KinkProgram | Refusal:
        """Return the program of a row of so many numbers, targets included."""
        inexact, fixed, rest = _split(self.model)
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (inexact, fixed))
        function = self.loss.require_function()
        own = inputs - self.outputs
        return _program_of_both(rest, StaticPart(shapes), function, own, self.outputs)


class AbstractLossBySample(Loss):
    """Base of losses made of another one, `inner`, which take a sample's outputs together."""

    inner: AbstractVar[Loss]

    @abc.abstractmethod
    def sample_losses(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, " P"]:
        """Return each sample's own loss, (P,)."""

    @property
    def is_sum_over_outputs(self) -> bool:
        """Tell that samples have weights, and not outputs."""
        return False

    def factor_per_sample(self, mass: Scalar) -> Scalar:
        """Return the factor of each sample's own loss, that of the inner loss."""
        return self.inner.factor_per_sample(mass)

    def total_loss(
        self,
        outputs: Float[Array, "P N_out"],
        targets: Float[Array, "P N_out"],
        weights: TargetWeights = None,
    ) -> Float[Array, ""]:
        """Return the sum of the samples' losses, by their weights."""
        losses = self.sample_losses(outputs, targets)
        return jnp.sum(losses if weights is None else weights * losses, dtype=outputs.dtype)


class SumOfLastOutput(AbstractLossBySample):
    """The loss of outputs of which the last one is the sample's own loss by `inner`."""

    inner: Loss

    def sample_losses(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, " P"]:
        """Return the last outputs, (P,)."""
        del targets
        return outputs[:, -1]

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Accept all targets: they are in the rows."""


def join_loss(
    network: AbstractModel, task: Task, loss: Loss
) -> tuple[ForeignModel | ModelWithLoss, Task, Loss]:
    """Return network, task and loss of a walk, with the loss in the graph where it has kinks."""
    foreign = isinstance(network, ForeignModel)
    kinks = network.kinks if foreign else kinks_to_walk(network, task, loss)
    if foreign and (kinks is None or not kinks.in_loss):
        return network, task, loss
    assert kinks is not None
    assert isinstance(loss, FunctionLoss)  # others have no kinks
    rows = jnp.concatenate([task.x, task.y], axis=1)
    none = jnp.zeros((task.samples, task.outputs + 1), task.y.dtype)
    both = ModelWithLoss(network, loss, task.outputs, kinks)
    return both, replace_fields(task, x=rows, y=none), SumOfLastOutput(loss)


class RoundedLoss(AbstractLossBySample):
    """A loss with its kinks rounded off over |z| < width, as `SmoothKinks` does a network's."""

    inner: FunctionLoss
    width: ArrayLike

    def sample_losses(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, " P"]:
        """Return the rounded losses, (P,)."""
        function = self.inner.require_function()
        program = _program_of_loss(function, outputs.shape[1], outputs.dtype)
        assert isinstance(program, KinkProgram)
        round_off = functools.partial(smooth_relu(jnp.zeros((), outputs.dtype), self.width), 0)

        def loss_of_sample(output: Array, target: Array) -> Array:
            return program.evaluate([output, target], round_off)[0]

        return jax.vmap(loss_of_sample)(outputs, targets)

    def require_fit(self, targets: Float[Array, "P N_out"]) -> None:
        """Raise `ValueError` for targets that the inner loss is not made for."""
        self.inner.require_fit(targets)


def round_off(loss: Loss, width: ArrayLike | None, outputs: int, dtype: DTypeLike) -> Loss:
    """Return a loss with its kinks rounded off over a width; as it is without any, or without."""
    if width is None or not kinks_of_loss(loss, outputs, dtype).sites:
        return loss
    assert isinstance(loss, FunctionLoss)  # others have no kinks
    return RoundedLoss(loss, width)
