"""Event: an observable crosses a level."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arguments import checked, describe_value, function_of
from flowlin._tools.user_functions import shapes_of_result
from flowlin.events.event import AbstractEvent, level_watch
from flowlin.events.watch import BoundToTask, Direction, Watch
from flowlin.networks.base import AbstractModel


def _observable_shape(
    what: str, function: Callable[..., PyTree], network: AbstractModel, level: ArrayLike
) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of an observable; `ValueError` if the level does not fit to it."""
    found = shapes_of_result(what, function, network)
    if isinstance(found, dict) or (len(jax.tree.leaves(found)) > 1 and not isinstance(found, list)):
        raise ValueError(f"{what} must return one array, and returns {describe_value(found)}.")
    raw = jax.eval_shape(lambda n: jnp.asarray(function(n)), network)
    try:
        shape = np.broadcast_shapes(raw.shape, np.shape(level))
    except ValueError:
        raise ValueError(
            f"{what} returns shape {raw.shape}, which `level` of shape {np.shape(level)} does not "
            "go with; give one level, or one per component."
        ) from None
    if 0 in np.shape(level):
        raise ValueError(f"`level` is empty: its shape is {np.shape(level)}; give one number.")
    if 0 in shape:
        raise ValueError(
            f"{what} returns an empty array, of shape {raw.shape}; return one number or more."
        )
    return raw


@checked(observable=function_of("network", "task"))
class Crossing(AbstractEvent):
    """Every time any component of an observable crosses a level.

    All components, any number of times, located on the solver's dense output to its own
    accuracy (with a non-adaptive solver or a discrete run, to the step). A component that is
    exactly at its level counts as below it; one that touches it within the step's error and
    turns back is logged as two crossings at that time, with the uncertainty that this has.

    Each step is searched for all roots, hundreds of them if need be: the observable is sampled at
    Chebyshev points, and where these do not certify that it has no root, or one, the step is
    halved, again and again (see `flowlin.events.crossings`). Kinks, as of |a - 0.7|, and jumps are
    found as well. What swings so fast that 4096 parts of a step do not resolve it, and what is NaN,
    which has no side, is reported by `flow.events.unresolved`, by
    `flow.stats["unresolved_crossings"]`, and by a `fl.CrossingsWarning`. Under `jit`, `vmap` and
    derivatives all that is the same but for the warning. A feature that is narrower than the
    distance of five points at which everything else is smooth stays unseen, since a function that
    can only be sampled has no other certificate.

    **Arguments:**

    - `observable`: function of (network, task) that returns a real scalar or array.
    - `level`: scalar, or an array that broadcasts against the observable.
    - `direction`: None for both, `"up"` or `"down"`.
    - `terminate`: whether the first such crossing ends the run, at the crossing.
    - `name`: what the log calls it; no two events of a run have the same name.

    **Raises:** `ValueError` for another direction, or a level that is not finite; in a run for a
    name that another of its events has.
    """

    observable: Callable[..., Array]  # of a network and a task
    level: ArrayLike = 0.0
    direction: Direction = eqx.field(static=True, default=None)
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="crossing")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the observable minus the level."""
        del objective, kinks
        network, task = problem.network, problem.task
        function = BoundToTask(self.observable, task)
        raw = _observable_shape(
            f"`observable` of event {self.name!r}", function, network, self.level
        )
        if not jnp.issubdtype(raw.dtype, jnp.floating):
            raise ValueError(
                f"`observable` of event {self.name!r} returns {raw.dtype}; return a floating-point "
                "array whose components cross the level continuously."
            )
        return [
            level_watch(
                function,
                raw.shape,
                self.level,
                network.dtype,
                name=self.name,
                direction=self.direction,
                terminate=self.terminate,
            )
        ]
