"""The abstract model that a run trains: a function of one sample, and arrays that move."""

import abc
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
from equinox import AbstractVar
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    checked,
    index_from_zero,
    real_array,
    require_single,
)
from flowlin._tools.arrays import AnyArray, Parameters, Product, replace_fields
from flowlin._tools.files import saveable
from flowlin._tools.numerics import as_tree
from flowlin.tasks.task import Task, labels_remedy

M = TypeVar("M", bound="AbstractModel")


@saveable()
class UnitPlace(NamedTuple):
    """A place in a model where the units of a hidden layer are.

    - `part`: the part of the model that gives their z, such as `weights[0]` or `blocks[2].conv`.
    - `shape`: of their z for one sample.
    """

    part: str
    shape: tuple[int, ...]

    @property
    def units(self) -> int:
        """Return the number of units."""
        return math.prod(self.shape)


def _number_or_part(name: str, value: object) -> int | str:
    """Check for a hidden layer: a whole number that counts from 0, or the name of a part."""
    return value if isinstance(value, str) else index_from_zero(name, value)


CHECKS_BY_NAME["layer"] = _number_or_part


def number_of_layer(layer: int | str, places: Sequence[UnitPlace]) -> int:
    """Return the number of a hidden layer, which may be named by the part that gives its z.

    **Raises:** `ValueError` if there is no such layer, or are several in that part.
    """
    if not isinstance(layer, str):
        if layer < len(places):
            return layer
        raise ValueError(
            f"`layer` = {layer} does not exist; the network has {len(places)} hidden layer(s), "
            "counted from 0."
        )
    found = [k for k, place in enumerate(places) if place.part == layer]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"`layer` = {layer!r} is the part of several; give one of {found}.")
    parts = ", ".join(dict.fromkeys(repr(place.part) for place in places))
    raise ValueError(f"`layer` = {layer!r} does not exist; layers are in {parts or 'no part'}.")


class AbstractModel(eqx.Module):
    """A function of one sample with arrays that can be trained.

    flowlin's networks are models whose hidden units are known; `ForeignModel` is any other Equinox
    module. Every leaf is an array, so models stack and vmap.
    """

    @property
    @abc.abstractmethod
    def module(self) -> PyTree:
        """The user's own object, which a run hands out and calls observables with."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """A name for all of the model but its arrays, the same in every process."""

    @property
    @abc.abstractmethod
    def parameters(self) -> PyTree:
        """The arrays that can be trained, as a tree."""

    @abc.abstractmethod
    def parameters_of(self, module: PyTree) -> PyTree:
        """Return the same arrays of another object like `module`, with None for those it lacks."""

    @abc.abstractmethod
    def with_parameters(self: M, parameters: PyTree) -> M:
        """Return the same model with other parameters; those that are None stay."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype:
        """Floating-point precision of the parameters."""

    @property
    @abc.abstractmethod
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers, as far as they are known."""

    @property
    @abc.abstractmethod
    def parameter_owners(self) -> list[tuple[str, int | None]]:
        """Owner of each parameter array, in the order of the leaves: whose numbers it holds.

        An owner is a layer of units (by name) with the axis along which they lie; the axis is None
        where one owner has the whole array. A hidden unit owns its incoming weights, its bias, and
        in the last hidden layer its outgoing weights.
        """

    @property
    @abc.abstractmethod
    def kinks_and_reason(self) -> tuple[str, str]:
        """A word and a reason for `flow.stats`: the kinks of a model without a policy for them."""

    @property
    @abc.abstractmethod
    def sample_gates(self) -> tuple[Array | None, ...]:
        """Given gates that belong to samples, (P, H), as `with_sample_gates` takes them."""

    @abc.abstractmethod
    def with_sample_gates(self: M, gates: tuple[Array | None, ...]) -> M:
        """Return the same model with these in place of `sample_gates`, for other samples."""

    @abc.abstractmethod
    def outputs(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N_out"]:
        """Compute the outputs for all samples at once."""

    @abc.abstractmethod
    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs with kinks rounded off over a width, if any.

        A `product` of h (P, N) and W (M, N) gives h W^T.
        """

    @abc.abstractmethod
    def numbers_per_sample(self, task: Task) -> int:
        """Estimate how many numbers per sample of a task a forward pass holds at once."""

    @abc.abstractmethod
    def require_fit(self, task: Task) -> None:
        """Raise `ValueError` unless the model takes the task's inputs and gives its outputs."""

    @abc.abstractmethod
    def time_constants(self, tau: Array) -> PyTree:
        """Spread tau over the parameter arrays: one number for all, or one per layer (L,).

        **Raises:** `ValueError` for a number of them that does not go with the layers.
        """

    @abc.abstractmethod
    def pack_parameters(self, parameters: PyTree) -> PyTree:
        """Return parameters, some of them None, in the form that a file holds."""

    @abc.abstractmethod
    def unpack_parameters(self, stored: PyTree) -> PyTree:
        """Return the parameters that `pack_parameters` has put into the form of a file."""

    @abc.abstractmethod
    def with_saved_arrays(self, stored: "AbstractModel", name: str) -> "AbstractModel":
        """Return the model of a file, which is of this one's kind; `name` is this one's argument.

        **Raises:** `ValueError` where shapes or precisions differ, naming which.
        """


def trainable_flags(model: AbstractModel, trainable: PyTree) -> tuple[bool, ...] | None:
    """Tell which of a model's parameter arrays a filter spec trains; None for all.

    **Arguments:** `trainable` as for `gradient_flow`: None, a tree of truth values, or a function
    of a leaf, as `eqx.partition` takes them. What cannot be trained is not, whatever it says.

    **Raises:** `ValueError` for a spec that does not fit, or that leaves nothing to train.
    """
    if trainable is None:
        return None
    try:
        kept = model.parameters_of(eqx.filter(model.module, trainable))
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        wanted = f"a function of a leaf, or a tree of truth values like the network ({why})"
        raise argument_error("trainable", wanted, trainable) from None
    places = jax.tree.structure(model.parameters).flatten_up_to(kept)
    found = tuple(place is not None for place in places)
    if not any(found):
        raise ValueError(
            "`trainable` leaves no array of `network` to train; mark those that move with True, "
            "as `eqx.partition` takes them."
        )
    return None if all(found) else found


def _filter_spec(name: str, value: PyTree) -> PyTree:
    """Check a filter spec, as far as that can be done without the network."""
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    if not leaves:
        wanted = "a function of a leaf, or a tree of truth values like the network"
        raise argument_error(name, wanted, value)
    for path, leaf in leaves:
        if not callable(leaf) and not isinstance(leaf, (bool, np.bool_)):
            wanted = "True, False or a function of a leaf, or a tree of them like the network"
            remedy = "an array moves as a whole" if path and np.ndim(leaf) else ""
            raise argument_error(f"{name}{jax.tree_util.keystr(path)}", wanted, leaf, remedy)
    return value


CHECKS_BY_NAME["trainable"] = _filter_spec


def trainable_part(parameters: PyTree, trainable_flags: tuple[bool, ...] | None) -> PyTree:
    """Return a tree like the parameters, with None in place of what is not trained."""
    if trainable_flags is None:
        return parameters
    leaves, structure = jax.tree.flatten(parameters)
    kept = [leaf if moves else None for leaf, moves in zip(leaves, trainable_flags, strict=True)]
    return jax.tree.unflatten(structure, kept)


# ---- Whether a network is one that a function takes: not stacked, and of a task's shapes.


def input_array(name: str, value: object) -> AnyArray:
    """Check for an array of inputs; as for JAX, a list is none."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise argument_error(name, "an array", value, f"pass jnp.asarray({name})")
    return real_array(name, value)


def require_inputs(
    network: "AbstractOwnModel", x: AnyArray, name: str = "x", axes: int = 2
) -> None:
    """Raise `ValueError` unless the network takes these inputs: many (P, N_in), or one (N_in,)."""
    require_unstacked(network)
    takes = network.weights[0].shape[1]
    if x.ndim == axes and x.shape[-1] == takes:
        return
    many = f"(P, {takes}), one row per sample"
    wanted, other = (f"({takes},), one sample", many) if axes == 1 else (many, f"({takes},)")
    remedy = ""
    if x.ndim == 3 - axes and x.shape[-1] == takes:
        remedy = f"; inputs of shape {other}, go into `network{'.outputs' if axes == 1 else ''}(x)`"
    raise ValueError(f"`{name}` must have shape {wanted}, got {x.shape}{remedy}.")


def require_unstacked(network: "AbstractOwnModel", name: str = "network") -> None:
    """Raise `ValueError` for a stack of networks, or for one without arrays."""
    axes = getattr(network.weights[0], "ndim", None)
    if axes is None:
        raise ValueError(f"`{name}` holds no arrays; pass one whose weights and biases are there.")
    require_single(name, axes, 2, "networks")


def require_task_fit(network: "AbstractOwnModel", task: Task) -> None:
    """Raise `ValueError` unless the network takes the task's inputs and gives its outputs."""
    require_unstacked(network)
    takes, gives = network.weights[0].shape[-1], network.weights[-1].shape[-2]
    if (takes, gives) != (task.inputs, task.outputs):
        raise ValueError(
            f"`network` maps {takes} inputs to {gives} outputs, but `task` {task.name!r} has "
            f"{task.inputs} inputs and {task.outputs} outputs.{labels_remedy(task, gives)}"
        )


def require_same_kind(network: PyTree, other: PyTree, name: str) -> None:
    """Raise `ValueError` unless a file's network has the kind and shapes of the one given."""

    def structure_and_shapes(one: PyTree) -> tuple[Hashable, list[tuple[int, ...]]]:
        return jax.tree.structure(one), [leaf.shape for leaf in jax.tree.leaves(one)]

    if structure_and_shapes(network) != structure_and_shapes(other):
        raise ValueError(
            f"`{name}` is {network!r}, and the file holds {other!r}; pass one of that kind, "
            "or none for a network of flowlin."
        )


# ---- What flowlin's own networks have in common as models: weights, biases, and their strength.

O = TypeVar("O", bound="AbstractOwnModel")  # noqa: E741


class AbstractOwnModel(AbstractModel):
    """Base of flowlin's own networks: weights, biases, and the constant c in front of biases."""

    weights: AbstractVar[PyTree]
    biases: AbstractVar[PyTree]
    bias_strength: AbstractVar[Array]

    @property
    def module(self: O) -> O:
        """The network itself."""
        return self

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self).__name__

    @property
    def parameters(self) -> Parameters:
        """The weights and the biases, which are trained."""
        return self.weights, self.biases

    def parameters_of(self, module: "AbstractOwnModel") -> Parameters:
        """Return the weights and biases of another network."""
        return module.parameters

    def with_parameters(self: O, parameters: Parameters) -> O:
        """Return the same network with other weights and biases; those that are None stay."""
        weights, biases = eqx.combine(as_tree(parameters), self.parameters)
        return replace_fields(self, weights=weights, biases=biases)

    @checked
    def astype(self: O, dtype: DTypeLike) -> O:
        """Return the same network in another floating-point precision, float32 or float64."""
        return jax.tree.map(lambda array: array.astype(dtype), self)

    @property
    def kinks_and_reason(self) -> tuple[str, str]:
        """No kinks; ReLU networks, which have some, always have a policy for them."""
        return "none", "the network has no kinks"

    def pack_parameters(self, parameters: Parameters) -> Parameters:
        """Return the parameters as they are."""
        return parameters

    def unpack_parameters(self, stored: Parameters) -> Parameters:
        """Return the parameters as they are."""
        return stored

    def with_saved_arrays(self, stored: AbstractModel, name: str) -> AbstractModel:
        """Return the file's network, which needs nothing of this one but to be of its kind."""
        require_same_kind(self, stored, name)
        return stored
