"""An Equinox module as a model, of which only its outputs and its arrays are known."""

import functools
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    require_float_array,
    with_article,
)
from flowlin._tools.arrays import Product, replace_fields
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, format_count, print_by
from flowlin._tools.user_functions import user_function_errors
from flowlin.networks.base import AbstractModel, UnitPlace
from flowlin.networks.graph import GatedGraph
from flowlin.networks.kink_program import KinkProgram
from flowlin.networks.layered import smooth_relu
from flowlin.networks.maxima import Rectifier
from flowlin.networks.module_kinks import (
    ModuleKinks,
    Refusal,
    describe_sites,
    find_kinks,
)
from flowlin.networks.network_kinds import AbstractNetwork, ReLUNetwork
from flowlin.tasks.task import Task, labels_remedy

ONE_SAMPLE = (
    "it is called with one sample and nothing else: bind what else it takes (a key, a state), and "
    "put dropout into inference mode by `eqx.nn.inference_mode`"
)


def _module_summary(model: "ForeignModel") -> Summary:
    """Summarise a module: its kind, number of parameters, precision."""
    arrays = jax.tree.leaves(model.inexact)
    rows = [("parameters", format_count(sum(a.size for a in arrays), "parameter"))]
    rows.append(("precision", str(arrays[0].dtype)))
    return Summary(model.name, rows, inline=True)


class StaticPart:
    """All that a module holds besides arrays, as a static part of what is compiled.

    Compared by all that is in it, so that lists and dictionaries have a hash here.
    """

    def __init__(self, tree: PyTree):
        self.tree = tree

    def _comparison_key(self) -> tuple[Hashable, tuple[tuple[type, object], ...]]:
        """Return all that is in it, in a form that can be compared."""
        leaves, structure = jax.tree.flatten(self.tree)
        return structure, tuple((type(leaf), leaf) for leaf in leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticPart) and self._comparison_key() == other._comparison_key()

    def __hash__(self) -> int:
        return hash(self._comparison_key())


@functools.lru_cache(maxsize=64)
def _program_of(rest: StaticPart, arrays: StaticPart, inputs: int) -> KinkProgram | Refusal:
    """Return the program of a module's call on one sample; the same one for the same module.

    **Arguments:** `arrays` holds the shapes of a module's `inexact` and `fixed` arrays.
    """
    inexact, fixed = arrays.tree
    x = jax.ShapeDtypeStruct((inputs,), jax.tree.leaves(inexact)[0].dtype)

    def call_module(inexact: PyTree, fixed: PyTree, x: Array) -> Array:
        return eqx.combine(inexact, fixed, rest.tree)(x)

    return find_kinks(call_module, inexact, fixed, x)


@print_by(_module_summary)
@saveable(kinks=None)
class ForeignModel(AbstractModel):
    """An Equinox module in three parts, each of its structure with None elsewhere.

    - `inexact`: its floating-point arrays, which can be trained.
    - `fixed`: its other arrays.
    - `rest`: functions, numbers, and whatever else it holds, a `StaticPart`; of a file its `words`
      alone.
    - `kinks`: what is known of its kinks, None before `with_kinks`.
    """

    inexact: PyTree
    fixed: PyTree
    rest: Any = eqx.field(static=True)
    kinks: ModuleKinks | None = eqx.field(static=True, default=None)

    @staticmethod
    def from_module(name: str, module: eqx.Module) -> "ForeignModel":
        """Make the model of a module, the argument `name`.

        **Raises:** `ValueError` for a module that cannot be called, holds no floating-point array,
        arrays of several precisions or of complex numbers, one array at two places, or what cannot
        be compared.
        """
        if not callable(module):
            raise argument_error(
                name, "a module that maps one sample", module, "give it a `__call__`"
            )
        inexact, others = eqx.partition(module, eqx.is_inexact_array)
        fixed, rest = eqx.partition(others, lambda a: eqx.is_array(a) or isinstance(a, np.ndarray))
        _require_one_precision(name, module, inexact)
        _require_no_sharing(name, inexact)
        _require_hashes(name, rest)
        inexact, fixed = jax.tree.map(jnp.asarray, (inexact, fixed))
        return ForeignModel(inexact, fixed, StaticPart(rest))

    @property
    def module(self) -> PyTree:
        """The user's module, put together again."""
        return eqx.combine(self.inexact, self.fixed, self.rest.tree)

    @property
    def names_by_place(self) -> tuple[tuple[str, str], ...]:
        """Place and name of its class, and of all that it holds besides arrays, static or not."""
        if isinstance(self.rest, str):  # of a file of flowlin 0.2.0 or before: the class alone
            return (("", self.rest),)
        return (
            tuple(_names_of_parts(self.rest.tree))
            if isinstance(self.rest, StaticPart)
            else self.rest
        )

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.names_by_place[0][1]

    @property
    def kind(self) -> str:
        """Its class and all that it holds besides arrays, in one word: `Lambda(fn=tanh)`."""
        parts = (f"{place[1:]}={word}" for place, word in self.names_by_place[1:])
        return f"{self.name}({', '.join(parts)})"

    @property
    def parameter_owners(self) -> list[tuple[str, int | None]]:
        """One owner per array, since units are not known."""
        return [(f"array {k}", None) for k in range(len(jax.tree.leaves(self.inexact)))]

    @property
    def parameters(self) -> PyTree:
        """Its floating-point arrays."""
        return self.inexact

    @property
    def buffers(self) -> PyTree:
        """Its other arrays."""
        return self.fixed

    def parameters_of(self, module: PyTree) -> PyTree:
        """Return the floating-point arrays of another module."""
        return eqx.filter(module, eqx.is_inexact_array)

    def with_parameters(self, parameters: PyTree) -> "ForeignModel":
        """Return the same module with other arrays; those that are None stay."""
        return replace_fields(self, inexact=eqx.combine(parameters, self.inexact))

    def kink_program(self, inputs: int) -> KinkProgram | Refusal:
        """Return the module's call on one sample (N_in,), with its kinks, or why they are unknown.

        The program takes the leaves of `inexact` and `fixed`, and the sample.
        """
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (self.inexact, self.fixed)
        )
        return _program_of(self.rest, StaticPart(shapes), inputs)

    def with_kinks(self, inputs: int) -> "ForeignModel":
        """Return the same module with what its program shows of its kinks."""
        found = self.kink_program(inputs)
        refused = isinstance(found, Refusal)
        kinks = ModuleKinks((), found.reason) if refused else ModuleKinks(found.sites)
        return replace_fields(self, kinks=kinks)

    @property
    def dtype(self) -> np.dtype:
        """Floating-point precision of the arrays."""
        return jax.tree.leaves(self.inexact)[0].dtype

    @property
    def hidden(self) -> tuple[int, ...]:
        """The units at each of the places with kinks; none where these are not known."""
        return tuple(site.size for site in self.kinks.sites) if self.kinks else ()

    @property
    def kinks_and_reason(self) -> tuple[str, str]:
        """A word on the kinks that its program shows, and the reason."""
        if self.kinks is None:
            return "unknown", f"the program of {self.name} was not looked at"
        if self.kinks.unknown_because:
            return "unknown", f"{self.name}: {self.kinks.unknown_because}"
        of_loss = self.kinks.loss_unknown_because
        of_loss = of_loss and f"; kinks of the loss are not known: {of_loss}"
        if not self.kinks.sites:
            return "none", f"the program of {self.name} has smooth operations alone{of_loss}"
        return "known", f"of {self.name}: {describe_sites(self.kinks.sites)}{of_loss}"

    @property
    def sample_gates(self) -> tuple[Array | None, ...]:
        """No gates, since none are known."""
        return ()

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "ForeignModel":
        """Return the model itself, which has no gates."""
        del gates
        return self

    def outputs(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N_out"]:
        """Compute the outputs for all samples, by `vmap` of the module."""
        return jax.vmap(self.module)(x)

    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs, with kinks rounded off over a width where they are known."""
        del product
        if width is None or not self.hidden:
            return self.outputs(x)
        return self.outputs_by_rectifier(
            x, functools.partial(smooth_relu(jnp.zeros((), x.dtype), width), 0)
        )

    def outputs_by_rectifier(
        self, x: Float[Array, "P N_in"], rectify: Rectifier
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs for all samples with a function in place of every max(z, 0)."""
        program, leaves = self.kink_program(x.shape[1]), jax.tree.leaves((self.inexact, self.fixed))
        assert isinstance(program, KinkProgram)
        return jax.vmap(lambda sample: program.evaluate([*leaves, sample], rectify))(x)

    def numbers_per_sample(self, task: Task) -> int:
        """Return the size of the largest array that grows with the samples, per sample."""
        two, three = (self._array_sizes(samples, task) for samples in (2, 3))
        return max(1, *(b - a for a, b in zip(two, three, strict=False)))

    def _array_sizes(self, samples: int, task: Task) -> list[int]:
        """List the sizes of all arrays that a forward pass makes, in order."""
        x = jax.ShapeDtypeStruct((samples, task.inputs), self.dtype)
        found, left = [], [jax.make_jaxpr(self.outputs)(x).jaxpr]
        while left:
            for equation in left.pop().eqns:
                found += [one.aval.size for one in equation.outvars if hasattr(one.aval, "size")]
                parts = jax.tree.leaves(equation.params)
                parts = [getattr(part, "jaxpr", part) for part in parts]  # of a closed one
                left += [part for part in parts if hasattr(part, "eqns")]
        return found

    def require_fit(self, task: Task) -> None:
        """Raise `ValueError` unless one sample (N_in,) of the task gives (N_out,)."""
        of = f"of `task` {task.name!r}"
        found = self.sample_output(task.inputs, of)
        if found.shape != (task.outputs,):
            remedy = "outputs and targets have one shape, whatever the loss"
            error = self._output_error(found, (task.outputs,), task.inputs, of, remedy)
            raise ValueError(f"{error}{labels_remedy(task, found.shape[0])}")

    def sample_output(self, inputs: int, whose: str) -> jax.ShapeDtypeStruct:
        """Return the shape and type of one sample's output, which must be numbers (N_out,).

        The sample has shape (`inputs`,); in errors, `of` says in words whose it is.
        """
        x = jax.ShapeDtypeStruct((inputs,), self.dtype)
        what = f"`network`, {self.name}, fails on one sample {whose}, of shape {x.shape}"
        with user_function_errors(what, ONE_SAMPLE):
            found = eqx.filter_eval_shape(self.module, x)
        dtype = getattr(found, "dtype", np.dtype(object))
        if len(getattr(found, "shape", ())) != 1 or not jnp.issubdtype(dtype, jnp.floating):
            raise self._output_error(found, "(N_out,)", inputs, whose)
        return found

    def _output_error(
        self,
        found: PyTree,
        wanted: tuple[int, ...] | str,
        inputs: int,
        whose: str,
        remedy: str = ONE_SAMPLE,
    ) -> ValueError:
        """Return the error for a module that gives something else than wanted."""
        dtype = getattr(found, "dtype", None)
        got = f"{dtype}{list(found.shape)}" if dtype is not None else f"a {type(found).__name__}"
        if getattr(found, "shape", None) == ():
            remedy = "return an array (1,), as of jnp.atleast_1d"
        if isinstance(found, dict):
            remedy = "join its entries by jnp.concatenate; the loss may take them apart again"
        return ValueError(
            f"`network`, {self.name}, must return an array of shape {wanted} for "
            f"one sample {whose}, of shape {(inputs,)}, got {got}; {remedy}."
        )

    def time_constants(self, tau: Array) -> PyTree:
        """Return tau, which must be one number, for every array."""
        if tau.ndim:
            raise ValueError(
                f"`tau` must be one number for {with_article(self.name)}, got shape "
                f"{tau.shape}: only flowlin's own networks have layers that are known."
            )
        return jax.tree.map(lambda _: tau, self.inexact)

    def pack_parameters(self, parameters: PyTree) -> list[Array | None]:
        """List the parameters in the tree's order."""
        return jax.tree.structure(self.inexact).flatten_up_to(parameters)

    def unpack_parameters(self, stored: PyTree) -> PyTree:
        """Return the tree of such a list, or of one that holds rows of each array."""
        own = jax.tree.leaves(self.inexact)
        listed = stored if isinstance(stored, list) else []
        fine = len(listed) == len(own) and all(
            new is None or (isinstance(new, jax.Array) and new.shape[1:] == old.shape)
            for new, old in zip(listed, own, strict=True)
        )
        if not fine:
            raise ValueError("`trajectory.saved` does not fit the model")
        return jax.tree.unflatten(jax.tree.structure(self.inexact), listed)

    @staticmethod
    def _fields_to_store(fields: dict[str, PyTree]) -> dict[str, PyTree]:
        """Return a file's fields: arrays in the tree's order, and the names of all the rest."""
        arrays = {name: jax.tree.leaves(fields[name]) for name in ("inexact", "fixed")}
        rest = {"rest": ForeignModel(**fields).names_by_place, "kinks": fields["kinks"]}
        return arrays | rest

    def with_saved_arrays(self, stored: AbstractModel, name: str) -> AbstractModel:
        """Return this module with the arrays that a file holds by their places."""
        if not isinstance(stored, ForeignModel):
            raise ValueError(
                f"`{name}` is {with_article(self.name)}, and the file holds {stored!r}; "
                "leave it out."
            )
        inexact = _fill_arrays(name, self.inexact, stored.inexact)
        fixed = _fill_arrays(name, self.fixed, stored.fixed)
        theirs = dict(stored.names_by_place)  # another version of a class may have other fields
        for place, word in self.names_by_place:
            if theirs.get(place, word) != word:
                raise ValueError(
                    f"`{name}{place}` is {word}, and the file has {theirs[place]} there; give a "
                    "model of the kind that was saved."
                )
        return ForeignModel(inexact, fixed, self.rest, stored.kinks)


def _direct_parts(thing: PyTree) -> dict[str, PyTree]:
    """Return what a thing holds directly, static or not, by place; nothing for a leaf."""
    if isinstance(thing, functools.partial):
        return {".func": thing.func, ".args": thing.args, ".keywords": thing.keywords}
    if _is_object(thing):
        return {f".{field.name}": getattr(thing, field.name, None) for field in fields(thing)}
    inner = jax.tree_util.tree_flatten_with_path(thing, is_leaf=lambda node: node is not thing)[0]
    return {jax.tree_util.keystr(path): part for path, part in inner if path}


def _is_object(thing: PyTree) -> bool:
    """Tell whether a thing is an object of a dataclass, and no class."""
    return is_dataclass(thing) and not isinstance(thing, type)


def _all_parts(thing: PyTree, place: str = "") -> Iterator[tuple[str, PyTree]]:
    """Walk through a thing and all that it holds, each with its place."""
    yield place, thing
    for where, part in _direct_parts(thing).items():
        yield from _all_parts(part, place + where)


def _names_of_parts(thing: PyTree) -> Iterator[tuple[str, str]]:
    """Walk through all that is no array, each with its place and its name."""
    for place, part in _all_parts(thing):
        nameless = part is None or isinstance(part, (jax.Array, np.ndarray, list, tuple, dict))
        if not nameless:
            yield place, _name_of_part(part)


def _values_to_hash(part: PyTree) -> dict[str, object]:
    """Return what needs a hash, by place: the static fields of an object, or a leaf."""
    if _is_object(part):
        static = [field.name for field in fields(part) if field.metadata.get("static")]
        return {f".{name}": getattr(part, name, None) for name in static}
    holds = _direct_parts(part) or isinstance(part, (list, tuple, dict))
    return {} if holds else {"": part}


def _require_hashes(name: str, rest: PyTree) -> None:
    """Raise `ValueError`, naming the place, for a static thing without a hash to compile by."""
    for place, part in _all_parts(rest):
        for where, value in _values_to_hash(part).items():
            try:
                hash(value)
            except TypeError:
                wanted = "something with a hash, as all that is static and no array"
                remedy = "make it a tuple, or a field that is not static"
                raise argument_error(f"{name}{place}{where}", wanted, value, remedy) from None


def _name_of_part(thing: object) -> str:
    """Return the name of a function, or of a thing's class; numbers and words are their own."""
    if isinstance(thing, (bool, int, float, complex, str)):
        return repr(thing)
    found = getattr(thing, "__name__", type(thing).__name__)
    return "<lambda>" if found == "_identity" else found  # Equinox has written it either way


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


def _require_one_precision(name: str, module: eqx.Module, inexact: PyTree) -> None:
    """Raise `ValueError` unless all arrays that can be trained are float32, or all float64."""
    found = jax.tree_util.tree_flatten_with_path(inexact)[0]
    if not found:
        raise argument_error(name, "a module that holds arrays of float32 or float64", module)
    for place, leaf in found:
        where = f"{name}{jax.tree_util.keystr(place)}"
        require_float_array(where, leaf)
        if leaf.dtype != found[0][1].dtype:
            raise ValueError(
                f"`{where}` is {leaf.dtype} and the first array is {found[0][1].dtype}; runs need "
                "one precision: cast the arrays of the model to it."
            )


def _require_no_sharing(name: str, inexact: PyTree) -> None:
    """Raise `ValueError` for one array at two places, which JAX would train as two."""
    first: dict[int, str] = {}
    for place, leaf in jax.tree_util.tree_flatten_with_path(inexact)[0]:
        where = f"{name}{jax.tree_util.keystr(place)}"
        if id(leaf) in first:
            raise ValueError(
                f"`{where}` and `{first[id(leaf)]}` are one array, and would move as two: tie them "
                "by `eqx.nn.Shared`, or give one of them a copy (`jnp.copy`) where they only begin "
                "alike."
            )
        first[id(leaf)] = where


def unit_places(model: AbstractModel) -> tuple[UnitPlace, ...]:
    """Return where the units of each hidden layer are; of a module, those of each known kink."""
    if isinstance(model, ForeignModel):
        sites = model.kinks.sites if model.kinks else ()
        return tuple(UnitPlace(site.place, site.shape) for site in sites)
    return tuple(UnitPlace(f"weights[{k}]", (width,)) for k, width in enumerate(model.hidden))


def has_known_kinks(model: AbstractModel) -> bool:
    """Tell whether a model has kinks, and these are known: a ReLU network, or a module of ReLUs."""
    return isinstance(model, ReLUNetwork) or (
        isinstance(model, ForeignModel) and bool(model.hidden)
    )


def as_model(name: str, value: object) -> AbstractModel:
    """Return the model behind an argument: a network of flowlin, or any other Equinox module."""
    if isinstance(value, AbstractNetwork):
        return CHECKS_BY_NAME["network"](name, value)
    if isinstance(value, GatedGraph):
        return CHECKS_BY_NAME["graph"](name, value)
    if isinstance(value, AbstractModel):
        return value
    if not isinstance(value, eqx.Module):
        wanted = "a network of flowlin, or an Equinox module that maps one sample"
        raise argument_error(name, wanted, value, "make one by fl.ReLUNetwork.init(task, key=key)")
    return ForeignModel.from_module(name, value)
