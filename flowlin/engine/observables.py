"""The user's observables, which a run records by name at the saved times."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from flowlin._tools.arrays import Parameters
from flowlin._tools.user_functions import calling, recordable
from flowlin.measures.modes import Modes
from flowlin.networks.base import AbstractModel
from flowlin.tasks.task import Task

Observe = Mapping[str, Callable[..., Any] | Modes]


class _Said:
    """Names for messages, all equal to each other, so that other names compile no other program."""

    def __init__(self, words: dict[str, str]):
        self.words = words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Said)

    def __hash__(self) -> int:
        return 0


class Observables(eqx.Module):
    """The user's observables as one function of a network; with None, of its parameters alone.

    `said`: what messages call them, where they are `unnamed`.
    """

    functions: dict[str, Callable[[AbstractModel, Task], Any]] | None
    said: _Said = eqx.field(static=True, default=_Said({}))

    @staticmethod
    def of(observe: Observe | None, network: AbstractModel, task: Task) -> "Observables":
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
    def _places(self) -> dict[str, str]:
        """The place that stands for each name in compiled programs."""
        return {name: f"#{k}" for k, name in enumerate(self.functions or ())}

    @property
    def unnamed(self) -> "Observables":
        """The same observables by place, so that other names compile no other program."""
        if self.functions is None:
            return self
        places = self._places
        functions = {places[name]: f for name, f in self.functions.items()}
        return Observables(functions, _Said({place: name for name, place in places.items()}))

    def named(self, found: dict[str, Any]) -> dict[str, Any]:
        """Give recorded values their names back; whatever else is recorded beside them stays."""
        own = {name: found[place] for name, place in self._places.items() if place in found}
        beside = {name: value for name, value in found.items() if not name.startswith("#")}
        return dict(sorted((beside | own).items()))

    def __call__(self, network: AbstractModel, parameters: Parameters, task: Task) -> Any:
        """Return all observables as arrays, by name; without observables the parameters."""
        if self.functions is None:
            return parameters
        found = {}
        for name, function in self.functions.items():
            what = f"`observe[{self.said.words.get(name, name)!r}]`"
            with calling(f"{what} fails"):
                value = function(network.module, task)
            found[name] = recordable(what, value)
        return jax.tree.map(lambda a: a if eqx.is_array(a) else jnp.asarray(a, float), found)
