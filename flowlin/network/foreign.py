"""Any Equinox module as a model: nothing is known of it but its outputs and its arrays."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flowlin._tools.checks import WORDS, refuse, require_runnable
from flowlin._tools.codec import storable
from flowlin._tools.door import an
from flowlin._tools.show import Summary, plural, shown
from flowlin._tools.types import Product
from flowlin.network.graph import GatedGraph
from flowlin.network.kinds import AbstractNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task

ONE_SAMPLE = (
    "it is called with one sample and nothing else: bind what else it takes (a key, a state), and "
    "put dropout into inference mode by `eqx.nn.inference_mode`"
)


def _summary(found: Any) -> Summary:
    """Its kind, number of parameters, precision."""
    arrays = jax.tree.leaves(found.inexact)
    rows = [("parameters", plural(sum(a.size for a in arrays), "parameter"))]
    rows.append(("precision", str(arrays[0].dtype)))
    # A file keeps the name alone.
    title = found.rest if isinstance(found.rest, str) else type(found.rest).__name__
    return Summary(title, rows, inline=True)


@shown(_summary)
@storable()
class ForeignModel(AbstractModel):
    """An Equinox module in three parts, each of its structure with None elsewhere.

    - `inexact`: its floating-point arrays, which can be trained.
    - `fixed`: its other arrays.
    - `rest`: functions, numbers, and whatever else it holds.
    """

    inexact: Any
    fixed: Any
    rest: Any = eqx.field(static=True)

    @staticmethod
    def of(name: str, module: eqx.Module) -> "ForeignModel":
        """The model of a module, the argument `name`.

        **Raises:** `ValueError` for a module that cannot be called, holds no floating-point array,
        arrays of several precisions or of complex numbers, or what cannot be compared.
        """
        if not callable(module):
            raise refuse(name, "a module that maps one sample", module, "give it a `__call__`")
        inexact, others = eqx.partition(module, eqx.is_inexact_array)
        fixed, rest = eqx.partition(others, eqx.is_array)
        _require_one_precision(name, module, inexact)
        try:
            hash(rest)
        except TypeError as error:
            raise ValueError(
                f"`{name}` holds something without a hash ({error}); mark that field with "
                "`eqx.field(static=True)`, or make it an array or a tuple."
            ) from None
        return ForeignModel(jax.tree.map(jnp.asarray, inexact), fixed, rest)

    @property
    def module(self) -> Any:
        """The module, put together again."""
        return eqx.combine(self.inexact, self.fixed, self.rest)

    @property
    def kind(self) -> str:
        """The names of its class and of what it holds besides arrays: `MLP(tanh, _identity)`."""
        leaves = jax.tree.leaves(self.rest)
        known = (bool, int, float, str)
        named = [repr(one) if isinstance(one, known) else _name(one) for one in leaves]
        return f"{type(self.rest).__name__}({', '.join(named)})"

    @property
    def parameters(self) -> PyTree:
        """Its floating-point arrays."""
        return self.inexact

    def parameters_of(self, module: Any) -> PyTree:
        """Its floating-point arrays."""
        return eqx.filter(module, eqx.is_inexact_array)

    def with_parameters(self, parameters: PyTree) -> "ForeignModel":
        """The same module with other arrays; those that are None stay."""
        return ForeignModel(eqx.combine(parameters, self.inexact), self.fixed, self.rest)

    @property
    def dtype(self) -> Any:
        """Floating-point precision of the arrays."""
        return jax.tree.leaves(self.inexact)[0].dtype

    @property
    def hidden(self) -> tuple[int, ...]:
        """None are known."""
        return ()

    @property
    def about_kinks(self) -> tuple[str, str]:
        """Nothing is known."""
        kind = type(self.rest).__name__
        return "unknown", f"nothing is known of a model's kinks that is not flowlin's own ({kind})"

    @property
    def sample_gates(self) -> tuple[Array | None, ...]:
        """None are known."""
        return ()

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "ForeignModel":
        """The model itself."""
        del gates
        return self

    def outputs(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N_out"]:
        """Outputs for all samples, as `vmap` of the module gives them."""
        return jax.vmap(self.module)(x)

    def rounded(
        self, x: Float[Array, "P N_in"], width: float, product: Product
    ) -> Float[Array, "P N_out"]:
        """Its outputs: kinks cannot be rounded off that are not known."""
        del width, product
        return self.outputs(x)

    def held(self, task: Task) -> int:
        """The largest array that its forward pass makes of one sample more."""
        two, three = (self._sizes(samples, task) for samples in (2, 3))
        return max(1, *(b - a for a, b in zip(two, three, strict=False)))

    def _sizes(self, samples: int, task: Task) -> list[int]:
        """Sizes of all arrays that a forward pass makes, in order."""
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
        found = self.output_of(task.inputs, of)
        if found.shape != (task.outputs,):
            raise self._refused(found, (task.outputs,), task.inputs, of)

    def output_of(self, inputs: int, of: str) -> jax.ShapeDtypeStruct:
        """What one sample (N_in,) gives, which must be numbers (N_out,); `of` says whose it is."""
        kind, x = type(self.rest).__name__, jax.ShapeDtypeStruct((inputs,), self.dtype)
        try:
            found: Any = eqx.filter_eval_shape(self.module, x)
        except Exception as error:  # whatever the user's own code raises
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ValueError(
                f"`network`, {kind}, fails on one sample {of}, of shape {x.shape}: {why}; "
                f"{ONE_SAMPLE}."
            ) from error
        dtype = cast(Any, getattr(found, "dtype", None))
        if len(getattr(found, "shape", ())) != 1 or not jnp.issubdtype(dtype, jnp.floating):
            raise self._refused(found, "(N_out,)", inputs, of)
        return found

    def _refused(self, found: Any, wanted: Any, inputs: int, of: str) -> ValueError:
        """The error of a module that gives something else than wanted."""
        dtype = getattr(found, "dtype", None)
        got = f"{dtype}{list(found.shape)}" if dtype is not None else f"a {type(found).__name__}"
        return ValueError(
            f"`network`, {type(self.rest).__name__}, must return an array of shape {wanted} for "
            f"one sample {of}, of shape {(inputs,)}, got {got}; {ONE_SAMPLE}."
        )

    def time_constants(self, tau: Array) -> PyTree:
        """One for all arrays."""
        if tau.ndim:
            raise ValueError(
                f"`tau` must be one number for a {type(self.rest).__name__}, got shape "
                f"{tau.shape}: only flowlin's own networks have layers that are known."
            )
        return jax.tree.map(lambda _: tau, self.inexact)

    def packed(self, parameters: PyTree) -> list[Array | None]:
        """A list of them, in the tree's order."""
        return jax.tree.structure(self.inexact).flatten_up_to(parameters)

    def unpacked(self, stored: Any) -> PyTree:
        """Of such a list, or of one with rows of each array."""
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
    def _stored(fields: dict[str, Any]) -> dict[str, Any]:
        """What a file holds: arrays in the tree's order, and what kind of module they are of."""
        arrays = {name: jax.tree.leaves(fields[name]) for name in ("inexact", "fixed")}
        return arrays | {"rest": type(fields["rest"]).__name__}

    def restored(self, stored: AbstractModel, name: str) -> AbstractModel:
        """This module with the arrays that a file holds by their places."""
        if not isinstance(stored, ForeignModel):
            raise ValueError(
                f"`{name}` is {an(type(self.rest).__name__)}, and the file holds {stored!r}; leave "
                "it out."
            )
        return ForeignModel(
            _filled(name, self.inexact, stored.inexact),
            _filled(name, self.fixed, stored.fixed),
            self.rest,
        )


def _name(thing: Any) -> str:
    """Of a function, or of the class of something else."""
    return getattr(thing, "__name__", type(thing).__name__)


def _filled(name: str, own: PyTree, stored: Any) -> PyTree:
    """A tree with other arrays, of the same shapes and types."""
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


def _require_one_precision(name: str, module: Any, inexact: PyTree) -> None:
    """Raise `ValueError` unless all arrays that can be trained are float32, or all float64."""
    found = jax.tree_util.tree_flatten_with_path(inexact)[0]
    if not found:
        raise refuse(name, "a module that holds arrays of float32 or float64", module)
    for place, leaf in found:
        where = f"{name}{jax.tree_util.keystr(place)}"
        require_runnable(where, leaf)
        if leaf.dtype != found[0][1].dtype:
            raise ValueError(
                f"`{where}` is {leaf.dtype} and the first array is {found[0][1].dtype}; runs need "
                "one precision: cast the arrays of the model to it."
            )


def model(name: str, value: Any) -> AbstractModel:
    """A network of flowlin, or any other Equinox module as a model."""
    if isinstance(value, AbstractNetwork):
        return WORDS["network"](name, value)
    if isinstance(value, GatedGraph):
        return WORDS["graph"](name, value)
    if isinstance(value, AbstractModel):
        return value
    if not isinstance(value, eqx.Module):
        wanted = "a network of flowlin, or an Equinox module that maps one sample"
        raise refuse(name, wanted, value, "make one by fl.ReLUNetwork.init(task, key=key)")
    return ForeignModel.of(name, value)
