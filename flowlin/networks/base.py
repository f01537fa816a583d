"""The abstract model that a run trains: a function of one sample, and arrays that move."""

import abc
import math
from collections.abc import Sequence
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
    with_article,
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

    def pair_name(self, unit: int, sample: int) -> str:
        """Name a pair of one of its units and a sample in words."""
        at = ", ".join(str(int(k)) for k in np.unravel_index(unit, self.shape)) or "0"
        return f"unit {at} of {self.part}, sample {sample}"


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


def input_array(name: str, value: object) -> AnyArray:
    """Check for an array of inputs; as for JAX, a list is none."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise argument_error(name, "an array", value, f"pass jnp.asarray({name})")
    return real_array(name, value)


class ModelFacts(NamedTuple):
    """Facts of a model that a run asks for, besides its arrays and its outputs.

    - `name`: of its class; of a module, of the user's class.
    - `kind`: a name for all of the model but its arrays, the same in every process.
    - `hidden`: widths of the hidden layers, as far as they are known.
    - `owners`: of each parameter array, in the order of the leaves, whose numbers it holds. An
      owner is a layer of units (by name) with the axis along which they lie; the axis is None where
      one owner has the whole array. A hidden unit owns its incoming weights, its bias, and in the
      last hidden layer its outgoing weights.
    - `layers`: of each parameter array the number of its layer; None where no layers are known.
    - `kinks`, `kinks_because`: a word and a reason for `flow.stats`: the kinks of a model without
      a policy for them.
    - `numbers_per_sample`: how many numbers per sample a forward pass holds at once, where that is
      known without a trace (`flowlin.networks.fit`).
    """

    name: str
    kind: str
    hidden: tuple[int, ...]
    owners: tuple[tuple[str, int | None], ...]
    layers: tuple[int, ...] | None
    kinks: str
    kinks_because: str
    numbers_per_sample: int | None


class AbstractModel(eqx.Module):
    """A function of one sample with arrays that can be trained.

    flowlin's networks are models whose hidden units are known; `ForeignModel` is any other Equinox
    module. Every leaf is an array, so models stack and vmap.
    """

    @property
    @abc.abstractmethod
    def facts(self) -> ModelFacts:
        """Facts of the model besides its arrays and its outputs."""

    @property
    @abc.abstractmethod
    def parameters(self) -> PyTree:
        """The arrays that can be trained, as a tree."""

    @abc.abstractmethod
    def with_parameters(self: M, parameters: PyTree) -> M:
        """Return the same model with other parameters; those that are None stay."""

    @property
    @abc.abstractmethod
    def sample_gates(self) -> tuple[Array | None, ...]:
        """Given gates that belong to samples, (P, H), as `with_sample_gates` takes them."""

    @abc.abstractmethod
    def with_sample_gates(self: M, gates: tuple[Array | None, ...]) -> M:
        """Return the same model with these in place of `sample_gates`, for other samples."""

    @abc.abstractmethod
    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs with kinks rounded off over a width, if any.

        A `product` of h (P, N) and W (M, N) gives h W^T.

        **Raises:** as `outputs`.
        """

    @checked(x=input_array)
    def outputs(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N_out"]:
        """Return the outputs (P, N_out) for all samples at once; no rows for no samples.

        **Raises:** `ValueError` for other inputs than it takes, or for another number of samples
        than that of its given gates.
        """
        return self.smooth_outputs(x, None, apply_weights)

    @property
    def dtype(self) -> np.dtype:
        """Floating-point precision of the parameters."""
        return jax.tree.leaves(self.parameters)[0].dtype

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers, as far as they are known."""
        return self.facts.hidden


def apply_weights(h: Array, w: Array) -> Array:
    """Return h W^T for activations h (P, N) and weights W (M, N)."""
    return h @ w.T


def time_constants(model: AbstractModel, tau: Array) -> PyTree:
    """Spread tau over the parameter arrays: one number for all, or one per layer (L,).

    A bias has that of its layer's weights.

    **Raises:** `ValueError` for a number of them that does not go with the layers.
    """
    facts, structure = model.facts, jax.tree.structure(model.parameters)
    if not tau.ndim:
        return jax.tree.unflatten(structure, [tau] * structure.num_leaves)
    if facts.layers is None:
        raise ValueError(
            f"`tau` must be one number for {with_article(facts.name)}, got shape {tau.shape}: only "
            "flowlin's layered networks have layers that are known."
        )
    own = max(facts.layers) + 1
    if tau.shape != (own,):
        raise ValueError(
            f"`tau` must be one number or have one entry per layer, {own} with the readout, "
            f"got shape {tau.shape}."
        )
    return jax.tree.unflatten(structure, [tau[k] for k in facts.layers])


# ---- Whether a network is one that a function takes: not stacked, and of a task's shapes.


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


# ---- What flowlin's own networks have in common as models: weights, biases, and their strength.

O = TypeVar("O", bound="AbstractOwnModel")  # noqa: E741


class AbstractOwnModel(AbstractModel):
    """Base of flowlin's own networks: weights, biases, and the constant c in front of biases."""

    weights: AbstractVar[PyTree]
    biases: AbstractVar[PyTree]
    bias_strength: AbstractVar[Array]

    @property
    def parameters(self) -> Parameters:
        """The weights and the biases, which are trained."""
        return self.weights, self.biases

    def with_parameters(self: O, parameters: Parameters) -> O:
        """Return the same network with other weights and biases; those that are None stay."""
        weights, biases = eqx.combine(as_tree(parameters), self.parameters)
        return replace_fields(self, weights=weights, biases=biases)

    @checked
    def astype(self: O, dtype: DTypeLike) -> O:
        """Return the same network in another floating-point precision, float32 or float64."""
        return jax.tree.map(lambda array: array.astype(dtype), self)
