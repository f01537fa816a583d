"""What a file holds of a model: arrays by their places, put into the model that is given again."""

from collections.abc import Hashable

import jax
from jaxtyping import PyTree

from flowlin._tools.arguments import with_article
from flowlin.networks.base import AbstractModel
from flowlin.networks.gated_module import GatedModule
from flowlin.networks.modules import ForeignModel


def pack_parameters(model: AbstractModel, parameters: PyTree) -> PyTree:
    """Return parameters, some of them None, in the form that a file holds.

    A network's own tree; of a module, whose tree is the user's, a list in the tree's order.
    """
    if isinstance(model, ForeignModel | GatedModule):
        return jax.tree.structure(model.parameters).flatten_up_to(parameters)
    return parameters


def unpack_parameters(model: AbstractModel, stored: PyTree) -> PyTree:
    """Return the parameters that `pack_parameters` has put into the form of a file.

    They may hold rows of each array.
    """
    if not isinstance(model, ForeignModel | GatedModule):
        return stored
    own = jax.tree.leaves(model.parameters)
    listed = stored if isinstance(stored, list) else []
    fine = len(listed) == len(own) and all(
        new is None or (isinstance(new, jax.Array) and new.shape[1:] == old.shape)
        for new, old in zip(listed, own, strict=True)
    )
    if not fine:
        raise ValueError("`trajectory.saved` does not fit the model")
    return jax.tree.unflatten(jax.tree.structure(model.parameters), listed)


def with_saved_arrays(model: AbstractModel, stored: AbstractModel, name: str) -> AbstractModel:
    """Return the model of a file, which is of the given one's kind; `name` is the argument's.

    Of flowlin's own network the file has all; of a module it has the arrays.

    **Raises:** `ValueError` where kinds, shapes or precisions differ, naming which.
    """
    if isinstance(model, GatedModule):
        if not isinstance(stored, GatedModule):
            raise ValueError(f"`{name}` is {model!r}, and the file holds {stored!r}; leave it out.")
        return GatedModule(_module_with_arrays(model.model, stored.model, name), stored.gates)
    if isinstance(model, ForeignModel):
        return _module_with_arrays(model, stored, name)
    if _structure_and_shapes(model) != _structure_and_shapes(stored):
        raise ValueError(
            f"`{name}` is {model!r}, and the file holds {stored!r}; pass one of that kind, "
            "or none for a network of flowlin."
        )
    return stored


def _structure_and_shapes(network: PyTree) -> tuple[Hashable, list[tuple[int, ...]]]:
    """Return what two networks of one kind and of the same shapes have in common."""
    return jax.tree.structure(network), [leaf.shape for leaf in jax.tree.leaves(network)]


def _module_with_arrays(model: ForeignModel, stored: AbstractModel, name: str) -> ForeignModel:
    """Return a module with the arrays that a file holds by their places."""
    if not isinstance(stored, ForeignModel):
        raise ValueError(
            f"`{name}` is {with_article(model.name)}, and the file holds {stored!r}; leave it out."
        )
    inexact = _fill_arrays(name, model.inexact, stored.inexact)
    fixed = _fill_arrays(name, model.fixed, stored.fixed)
    theirs = dict(stored.names_by_place)  # another version of a class may have other fields
    for place, word in model.names_by_place:
        if theirs.get(place, word) != word:
            raise ValueError(
                f"`{name}{place}` is {word}, and the file has {theirs[place]} there; give a "
                "model of the kind that was saved."
            )
    return ForeignModel(inexact, fixed, model.rest, stored.kinks)


def _fill_arrays(name: str, own: PyTree, stored: PyTree) -> PyTree:
    """Return a tree with other arrays, of the same shapes and types."""
    listed = stored if isinstance(stored, list) else []
    places, structure = jax.tree_util.tree_flatten_with_path(own)
    if len(listed) != len(places):
        raise ValueError(
            f"`{name}` has {len(places)} arrays where the file has {len(listed)}; give a model of "
            "the kind that was saved."
        )
    for (place, leaf), new in zip(places, listed, strict=True):
        wanted, got = (getattr(a, "shape", None) for a in (leaf, new))
        types = tuple(getattr(a, "dtype", None) for a in (leaf, new))
        if wanted != got or types[0] != types[1]:
            raise ValueError(
                f"`{name}{jax.tree_util.keystr(place)}` is {types[0]}{list(wanted or ())}, and the "
                f"file has {types[1]}{list(got or ())} there; give a model of the kind that was "
                "saved."
            )
    return jax.tree.unflatten(structure, listed)
