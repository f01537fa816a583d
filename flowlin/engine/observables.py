"""The user's observables, which a run records by name at the saved times."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from flowlin._tools.arrays import Parameters
from flowlin._tools.user_functions import require_recordable, user_function_errors
from flowlin.measures.modes import Modes
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import as_module
from flowlin.record.observed import ObservedRows
from flowlin.tasks.task import Task

Observe = Mapping[str, Callable[..., PyTree] | Modes]


class _MessageNames:
    """Names for messages, all equal to each other, so that other names compile no other program."""

    def __init__(self, words: dict[str, str]):
        self.words = words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MessageNames)

    def __hash__(self) -> int:
        return 0


class Observables(eqx.Module):
    """The user's observables as one function of a network; with None, of its parameters alone.

    `said`: what messages call them, where they are `unnamed`.
    """

    functions: dict[str, Callable[[AbstractModel, Task], PyTree]] | None
    message_names: _MessageNames = eqx.field(static=True, default=_MessageNames({}))

    @staticmethod
    def from_user(observe: Observe | None, network: AbstractModel, task: Task) -> "Observables":
        """Make observables of functions by name; modes stand for their strengths."""
        if observe is None:
            return Observables(None)
        return Observables(
            {
                name: asked.observable(network, task) if isinstance(asked, Modes) else asked
                for name, asked in observe.items()
            }
        )

    @property
    def _place_names(self) -> dict[str, str]:
        """The place that stands for each name in compiled programs."""
        return {name: f"#{k}" for k, name in enumerate(self.functions or ())}

    @property
    def without_names(self) -> "Observables":
        """The same observables by place, so that other names compile no other program."""
        if self.functions is None:
            return self
        places = self._place_names
        functions = {places[name]: f for name, f in self.functions.items()}
        return Observables(
            functions, _MessageNames({place: name for name, place in places.items()})
        )

    def with_names(self, values: dict[str, PyTree]) -> ObservedRows:
        """Give recorded values their names back; whatever else is recorded beside them stays."""
        own = {name: values[place] for name, place in self._place_names.items() if place in values}
        beside = {name: value for name, value in values.items() if not name.startswith("#")}
        return ObservedRows(sorted((beside | own).items()))

    def __call__(self, network: AbstractModel, parameters: Parameters, task: Task) -> PyTree:
        """Return all observables as arrays, by name; without observables the parameters."""
        if self.functions is None:
            return parameters
        found = {}
        for name, function in self.functions.items():
            what = f"`observe[{self.message_names.words.get(name, name)!r}]`"
            with user_function_errors(f"{what} fails"):
                value = function(as_module(network), task)
            found[name] = require_recordable(what, value)
        return jax.tree.map(lambda a: a if eqx.is_array(a) else jnp.asarray(a, float), found)
