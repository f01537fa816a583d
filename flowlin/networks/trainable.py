"""Which arrays of a model are trained."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from flowlin._tools.arguments import CHECKS_BY_NAME, argument_error
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import as_module


def trainable_flags(model: AbstractModel, trainable: PyTree) -> tuple[bool, ...] | None:
    """Tell which of a model's parameter arrays a filter spec trains; None for all.

    **Arguments:** `trainable` as for `gradient_flow`: None, a tree of truth values, or a function
    of a leaf, as `eqx.partition` takes them. What cannot be trained is not, whatever it says.

    **Raises:** `ValueError` for a spec that does not fit, or that leaves nothing to train.
    """
    if trainable is None:
        return None
    try:
        kept = _trainable_arrays(eqx.filter(as_module(model), trainable))
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


def _trainable_arrays(module: PyTree) -> PyTree:
    """Return the arrays that can be trained of a user's own object, None for those it lacks."""
    if isinstance(module, AbstractModel):
        return module.parameters
    return eqx.filter(module, eqx.is_inexact_array)


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
