"""Norms of a network's weights and biases."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flowlin._tools.arguments import checked
from flowlin._tools.files import saveable
from flowlin._tools.numerics import safe_sqrt
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.measured import Samples, require_samples


@saveable()
class Norms(NamedTuple):
    """Frobenius norms of a network's parameters, first layer first; None where there is no bias."""

    weights: tuple[Array, ...]
    biases: tuple[Array | None, ...]


@checked(task=require_samples)
def norms(network: AbstractNetwork, task: Samples = None) -> Norms:
    """Return the norm of every weight matrix (Frobenius) and of every raw bias vector (Euclidean).

    Lead paper Fig. 3A. The bias that acts is c b: its norm is c times as large.

    **Arguments:** `network`; `task` is not used.

    **Returns:** `Norms`, a named tuple (weights, biases) with a scalar per layer; None where
    there is no bias.
    """
    del task
    return Norms(*jax.tree.map(lambda a: safe_sqrt(jnp.sum(a**2)), network.parameters))
