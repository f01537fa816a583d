r"""The kinks of a user's loss: of hinge, of L1, of whatever has a maximum or an absolute value.

A loss is the mean over samples of a function $\ell(\hat y, y)$ of one sample. Its kinks are found
in its program as those of a module are (`flowlin.networks.module_kinks`). For a module's walk they
join those of the module: one program takes a sample's row [x, y] to the outputs and the sample's
loss, (N_out + 1,), with the loss's kinks last, and the loss of the task is linear in these,
$\sum_p v_p \ell_p / \sum_p v_p$. Whatever holds of the kinks of a graph holds of these too.
"""

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arrays import Scalar, replace_fields
from flowlin.networks.kink_program import KinkProgram, KinkSite
from flowlin.networks.layered import smooth_relu
from flowlin.networks.module_kinks import ModuleKinks, Refusal, find_kinks
from flowlin.networks.modules import ForeignModel, StaticPart
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
    """Return the program of a module and its loss on a row [x, y]; see `ModuleWithLoss`."""
    inexact, fixed = arrays.tree
    row = jax.ShapeDtypeStruct((inputs + outputs,), jax.tree.leaves(inexact)[0].dtype)

    def call_both(inexact: PyTree, fixed: PyTree, row: Array) -> Array:
        found = eqx.combine(inexact, fixed, rest.tree)(row[:inputs])
        own = function(found, row[inputs:]).astype(found.dtype)
        return jnp.concatenate([found, own[None]])

    return find_kinks(call_both, inexact, fixed, row)


def kinks_of_loss(loss: Loss, outputs: int, dtype: DTypeLike) -> ModuleKinks:
    """Return what the program of a loss of so many outputs shows of its kinks.

    The losses of flowlin have none.
    """
    if not isinstance(loss, FunctionLoss):
        return ModuleKinks()
    found = _program_of_loss(cast(LossFunction, loss.function), outputs, jnp.dtype(dtype))
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
    both = ModuleWithLoss(network, cast(FunctionLoss, loss), task.outputs).kink_program(
        task.inputs + task.outputs
    )
    if isinstance(both, Refusal):
        return replace_fields(network, kinks=own._replace(loss_unknown_because=both.reason))
    more = [KinkSite("loss", *site[1:]) for site in both.sites[len(own.sites) :]]
    return replace_fields(network, kinks=ModuleKinks((*own.sites, *more), in_loss=len(more)))


class ModuleWithLoss(eqx.Module):
    """A module and its loss as one graph, for the walk: of a row [x, y] the outputs and the loss.

    Parameters and kinks are those of `model`, which knows the kinks of the loss too.
    """

    model: ForeignModel
    loss: FunctionLoss
    outputs: int = eqx.field(static=True)

    @property
    def parameters(self) -> PyTree:
        """The module's floating-point arrays."""
        return self.model.parameters

    @property
    def buffers(self) -> PyTree:
        """The module's other arrays."""
        return self.model.fixed

    @property
    def hidden(self) -> tuple[int, ...]:
        """The units at each of the places with kinks, those of the loss last."""
        return self.model.hidden

    @property
    def loss_units(self) -> int:
        """The units of the loss, the last ones of all."""
        known = cast(ModuleKinks, self.model.kinks)
        return sum(site.size for site in known.sites[-known.in_loss :])

    def with_parameters(self, parameters: PyTree) -> "ModuleWithLoss":
        """Return the same with other arrays; those that are None stay."""
        return replace_fields(self, model=self.model.with_parameters(parameters))

    def kink_program(self, inputs: int) -> KinkProgram | Refusal:
        """Return the program of a row of so many numbers, targets included."""
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (self.model.inexact, self.model.fixed)
        )
        function = cast(LossFunction, self.loss.function)
        own = inputs - self.outputs
        return _program_of_both(self.model.rest, StaticPart(shapes), function, own, self.outputs)


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
    network: ForeignModel, task: Task, loss: Loss
) -> tuple[ForeignModel | ModuleWithLoss, Task, Loss]:
    """Return network, task and loss of a walk, with the loss in the graph where it has kinks."""
    if network.kinks is None or not network.kinks.in_loss:
        return network, task, loss
    rows = jnp.concatenate([task.x, task.y], axis=1)
    none = jnp.zeros((task.samples, task.outputs + 1), task.y.dtype)
    both = ModuleWithLoss(network, cast(FunctionLoss, loss), task.outputs)
    return both, replace_fields(task, x=rows, y=none), SumOfLastOutput(loss)


class RoundedLoss(AbstractLossBySample):
    """A loss with its kinks rounded off over |z| < width, as `SmoothKinks` does a network's."""

    inner: FunctionLoss
    width: ArrayLike

    def sample_losses(
        self, outputs: Float[Array, "P N_out"], targets: Float[Array, "P N_out"]
    ) -> Float[Array, " P"]:
        """Return the rounded losses, (P,)."""
        function = cast(LossFunction, self.inner.function)
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
    return RoundedLoss(cast(FunctionLoss, loss), width)
