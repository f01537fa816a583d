"""Events: the loss, or the gradient's norm, falls to a level."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, ArrayLike

from flowlin._tools.arguments import checked, finite
from flowlin.events.event import AbstractEvent, level_watch
from flowlin.events.watch import Watch
from flowlin.networks.base import AbstractModel
from flowlin.networks.trainable import trainable_part
from flowlin.training.objective import AbstractObjective, tree_norm
from flowlin.training.problem import Problem


@checked(level=finite)
class LossBelow(AbstractEvent):
    """The run's own loss falling to a level; with weight decay that on the data alone.

    A loss that is there at t = 0 is an event at t = 0 (its `old` equals its `new`), and ends the
    run there if it terminates.

    **Arguments:** `level` of the loss, `terminate` and `name` as for `Crossing`; for several levels
    in one run, give each a name.
    """

    level: ArrayLike
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="loss")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the run's loss minus the level, falling."""
        del kinks
        # The loss of a gradient flow never rises, so it is monotone; a modified flow's may,
        # and so may the loss on the data where weights decay.
        return [_downward_watch(self, objective.loss_value, problem, "loss", objective.is_monotone)]


def _downward_watch(
    event: "LossBelow | GradientBelow",
    function: Callable[[AbstractModel], Array],
    problem: Problem,
    quantity: str,
    monotone: bool = False,
) -> Watch:
    """Return a watch of a number that falls to the event's level, or begins below it."""
    return level_watch(
        function,
        (),
        event.level,
        problem.network.dtype,
        name=event.name,
        direction="down",
        terminate=event.terminate,
        monotone=monotone,
        from_start=True,
        quantity=quantity,
    )


class _GradientNorm(eqx.Module):
    """Euclidean norm of the gradient by the parameters that move, as a function of the network."""

    objective: AbstractObjective
    trainable_flags: tuple[bool, ...] | None = eqx.field(static=True)

    def __call__(self, network: AbstractModel) -> Array:
        return tree_norm(trainable_part(self.objective.gradient(network), self.trainable_flags))


@checked(level=finite)
class GradientBelow(AbstractEvent):
    """The gradient's norm falling to a level: the run comes to rest, at a minimum or at a saddle.

    The Euclidean norm of the gradient of what is descended, weight decay included, by all numbers
    that move. A gradient that is so small at t = 0 is an event at t = 0, and ends the run there if
    it terminates; so does a run from a saddle point. Every step and every location takes a gradient
    more. A plateau can be as flat as the end: a level below its gradient tells the two apart. The
    gradient of a ReLU network jumps at kinks, over a level too.

    The steps' errors leave a gradient of their own, of about `rtol` times the weights times the
    curvature. When a level as low as that is reached is not determined, and its `uncertainty` is
    inf; take a smaller `rtol` or a higher level.

    **Arguments:** `level` of the norm, `terminate` and `name` as for `Crossing`; for several levels
    in one run, give each a name. With `terminate=True` a run needs no other end:
    `fl.gradient_flow(network, task, None, events=fl.GradientBelow(1e-4, terminate=True))`.
    """

    level: ArrayLike
    terminate: bool = eqx.field(static=True, default=False)
    name: str = eqx.field(static=True, default="gradient")

    def watches(self, problem, objective, kinks) -> list[Watch]:
        """Return one watch: the gradient's norm minus the level, falling."""
        del kinks
        return [
            _downward_watch(
                self, _GradientNorm(objective, problem.trained), problem, "gradient norm"
            )
        ]
