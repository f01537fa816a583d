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
)
from flowlin._tools.arrays import Product, replace_fields
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, format_count, print_by
from flowlin._tools.user_functions import user_function_errors
from flowlin.networks.base import AbstractModel, ModelFacts, UnitPlace
from flowlin.networks.graph import GatedGraph
from flowlin.networks.kink_program import KinkProgram
from flowlin.networks.kink_rounding import place_preactivations_off_rounding
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

    @functools.cached_property
    def names_by_place(self) -> tuple[tuple[str, str], ...]:
        """Place and name of all that is in it, its own first."""
        return tuple(_names_of_parts(self.tree))

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
        return self.rest.names_by_place if isinstance(self.rest, StaticPart) else self.rest

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.names_by_place[0][1]

    @property
    def facts(self) -> ModelFacts:
        """Its class and all that it holds besides arrays; the kinks that its program shows.

        Its kind is written in one word: `Lambda(fn=tanh)`. Each array owns itself, since units are
        not known; its hidden layers are the places with kinks.
        """
        parts = (f"{place[1:]}={word}" for place, word in self.names_by_place[1:])
        kinks, because = self._kinks_and_reason()
        arrays = range(len(jax.tree.leaves(self.inexact)))
        return ModelFacts(
            name=self.name, kind=f"{self.name}({', '.join(parts)})",
            hidden=tuple(site.size for site in self.kinks.sites) if self.kinks else (),
            owners=tuple((f"array {k}", None) for k in arrays), layers=None,
            kinks=kinks, kinks_because=because, numbers_per_sample=None,
        )  # fmt: skip

    def _kinks_and_reason(self) -> tuple[str, str]:
        """Return a word on the kinks that its program shows, and the reason."""
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
    def parameters(self) -> PyTree:
        """Its floating-point arrays."""
        return self.inexact

    @property
    def buffers(self) -> PyTree:
        """Its other arrays."""
        return self.fixed

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
    def sample_gates(self) -> tuple[Array | None, ...]:
        """No gates, since none are known."""
        return ()

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "ForeignModel":
        """Return the model itself, which has no gates."""
        del gates
        return self

    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs, with kinks rounded off over a width where they are known."""
        del product
        if width is None or not self.hidden:
            return jax.vmap(self.module)(x)
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

    def require_sample_outputs(self, task: Task) -> None:
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

    @staticmethod
    def _fields_to_store(fields: dict[str, PyTree]) -> dict[str, PyTree]:
        """Return a file's fields: arrays in the tree's order, and the names of all the rest."""
        arrays = {name: jax.tree.leaves(fields[name]) for name in ("inexact", "fixed")}
        rest = {"rest": ForeignModel(**fields).names_by_place, "kinks": fields["kinks"]}
        return arrays | rest


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


@eqx.filter_jit  # one program, not one per operation
def module_preactivations_off_kinks(
    model: ForeignModel, x: Float[Array, "P N_in"]
) -> tuple[Float[Array, "P H"], ...]:
    """Return the z of each place of a module whose kinks are known, zero where z may be rounding.

    That of a sliding pair is rounding of either sign, and its gate is to be told as off.
    """
    program, leaves = model.kink_program(x.shape[1]), jax.tree.leaves((model.inexact, model.fixed))
    assert isinstance(program, KinkProgram)
    return place_preactivations_off_rounding(program, leaves, x)


def has_known_kinks(model: AbstractModel) -> bool:
    """Tell whether a model has kinks, and these are known: a ReLU network, or a module of ReLUs."""
    return isinstance(model, ReLUNetwork) or (
        isinstance(model, ForeignModel) and bool(model.hidden)
    )


def any_module(name: str, value: object) -> eqx.Module:
    """Check for a network of flowlin or any other Equinox module, of which `as_model` asks more."""
    if not isinstance(value, eqx.Module):
        wanted = "a network of flowlin, or an Equinox module that maps one sample"
        raise argument_error(name, wanted, value, "make one by fl.ReLUNetwork.init(task, key=key)")
    return value


def as_model(name: str, value: object) -> AbstractModel:
    """Return the model behind an argument: a network of flowlin, or any other Equinox module."""
    if isinstance(value, AbstractNetwork):
        return CHECKS_BY_NAME["network"](name, value)
    if isinstance(value, GatedGraph):
        return CHECKS_BY_NAME["graph"](name, value)
    if isinstance(value, AbstractModel):
        return value
    return ForeignModel.from_module(name, any_module(name, value))


def as_module(model: AbstractModel) -> PyTree:
    """Return the user's own object behind a model, which a run hands out.

    Observables are called with it. flowlin's networks are their own models.
    """
    return model.module if isinstance(model, ForeignModel) else model
