"""Gates of a descent over windows of steps: which pairs slide, read off steps that flicker."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flowlin.network.kinds import ReLUNetwork
from flowlin.network.model import AbstractModel
from flowlin.tasks.task import Task

FLICKER = 2  # switches within a window from which on a pair counts as sliding


class Window(NamedTuple):
    """Steps over which gates are watched, and the quantile of samples at which units count."""

    quantile: float
    steps: int


class Gates(eqx.Module):
    r"""The gates of every hidden layer, and how often each switched since its window began.

    Where the flow slides along a kink, off drives the preactivation up and on drives it down, and
    a pair is on for a share g of the time (Filippov's rule). A step of descent overshoots the kink,
    by at most the step times that drive, and the next ones come back: the pair is on in a share g
    of the steps and switches $2 \min(g, 1 - g)$ times a step, while a pair that crosses its kink
    for good switches once. So within a window of w steps a pair that switches twice or more slides,
    but for those with $w \min(g, 1 - g) < 1$ and those that cross twice by themselves. With a step
    $\epsilon$ both errors vanish as $w \to \infty$ and $w \epsilon \to 0$, as with
    $w \propto \epsilon^{-1/2}$.

    - `on`: (P, H) per layer, after the last step.
    - `switches`: (P, H) per layer.
    """

    on: tuple[Bool[Array, "P H"], ...]
    switches: tuple[Int[Array, "P H"], ...]

    @staticmethod
    def of(network: AbstractModel, task: Task) -> "Gates":
        """At the start."""
        on = gates(network, task)
        return Gates(on, tuple(jnp.zeros(g.shape, jnp.int32) for g in on))

    def after(self, on: tuple[Array, ...], begins: Array) -> "Gates":
        """One step later; `begins` says whether a window began with it."""
        pairs = zip(self.on, on, self.switches, strict=True)
        switches = tuple(jnp.where(begins, 0, n) + (new != old) for old, new, n in pairs)
        return Gates(on, switches)

    def counts(self, quantile: float) -> tuple[tuple[Array, Array], ...]:
        """(on, off) units, per layer with sliding pairs first as off, then as on."""
        found = []
        for on, switches in zip(self.on, self.switches, strict=True):
            slides = switches >= FLICKER
            samples = on.shape[0]
            k = math.floor(quantile * samples)
            for side in (on & ~slides, on | slides):
                number = jnp.sum(side, axis=0)
                found.append((jnp.sum(number >= samples - k), jnp.sum(number <= k)))
        return tuple(found)


def gates(network: AbstractModel, task: Task) -> tuple[Bool[Array, "P H"], ...]:
    """Which pairs are on, per layer."""
    assert isinstance(network, ReLUNetwork)
    return tuple(z > 0 for z in jax.tree.leaves(network.preactivations(task.x)))
