"""From what a solver moves to the parameters, where they are not the same."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from flowlin._tools.arrays import Parameters


class DenseParameters(eqx.Module):
    """Dense output of a run whose solver moves something else than the parameters."""

    states: diffrax.DenseInterpolation
    to_parameters: Callable[[PyTree], Parameters]

    def evaluate(self, t: Array) -> Parameters:
        """Return the parameters at a time."""
        return self.to_parameters(self.states.evaluate(t))


def drop_memory(state: tuple[Parameters, PyTree]) -> Parameters:
    """Return the parameters of a state that holds what a rule of training remembers, too."""
    return state[0]


WITHOUT_MEMORY = jax.tree_util.Partial(drop_memory)  # a tree, as runs and trajectories hold it
