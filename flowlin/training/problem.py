"""The problem that a run solves: whose parameters move, on what, and how fast."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flowlin.networks.base import AbstractModel, time_constants
from flowlin.networks.trainable import trainable_part
from flowlin.tasks.task import Task
from flowlin.training.loss import Loss
from flowlin.training.objective import Decay
from flowlin.training.rules import AbstractRule, Gradient
from flowlin.training.schedule import Schedule, ScheduledField


class Problem(eqx.Module):
    r"""The flow $\tau\, \dot w = -\nabla L$ of a network's weights on a task, from where they are.

    With a `decay` also $-\lambda w$.

    - `tau`: one time constant, or one per layer (L,); 1 where there is a `schedule` of it.
    - `trained`: which of the network's arrays move, in the order of its leaves; None for all.
    - `groups`: whose numbers the arrays hold where it is not the network's hidden units, as
      `ModelFacts.owners` says it.
    - `rule`: of training. With another one than `Gradient` the flow is the rule's, of its force
      $-\nabla L$.
    - `schedule`: the time constant as a function of time, or None for `tau`.
    - `rest_integrals`: the units for whose revival a walk integrates their C, or 0; they ride
      beside the parameters as what a rule remembers.
    """

    network: AbstractModel
    task: Task
    loss: Loss
    tau: Array
    decay: Decay | None = None
    trained: tuple[bool, ...] | None = eqx.field(static=True, default=None)
    groups: tuple[tuple[str, int | None], ...] | None = eqx.field(static=True, default=None)
    rule: AbstractRule = Gradient()
    schedule: Schedule | None = None
    rest_integrals: int = eqx.field(static=True, default=0)

    @property
    def parameters(self) -> PyTree:
        """Return the parameters that move, at t = 0, with None in place of those that rest."""
        return trainable_part(self.network.parameters, self.trained)

    @property
    def memory(self) -> PyTree:
        """Return what moves beside the parameters, at t = 0; an empty tree for gradient flow.

        What the rule remembers, or the integrals of units that may revive.
        """
        if self.rest_integrals:
            return jnp.zeros(self.rest_integrals, self.network.dtype)
        return self.rule.memory(self.parameters)

    @property
    def is_gradient_flow(self) -> bool:
        """Tell whether the rule is `Gradient`."""
        return isinstance(self.rule, Gradient)

    @property
    def has_memory(self) -> bool:
        """Tell whether anything moves beside the parameters; a solver's state is then a pair."""
        return bool(jax.tree.leaves(self.memory))

    @property
    def owners(self) -> tuple[tuple[str, int | None], ...]:
        """Return for every parameter array the name of its units, and their axis or None."""
        return self.network.facts.owners if self.groups is None else self.groups

    @property
    def time_constants(self) -> PyTree:
        """Return the time constants as a prefix of the parameters' tree, None for what rests."""
        if self.trained is None and not self.tau.ndim:
            return self.tau
        return trainable_part(time_constants(self.network, self.tau), self.trained)

    @property
    def tau_on_record(self) -> Array:
        """Return what a trajectory has as its `tau`: NaN where that depends on time."""
        return self.tau if self.schedule is None else jnp.full_like(self.tau, jnp.nan)

    @property
    def tau_by_name(self) -> PyTree:
        """Return what a checkpoint knows the time constants by: numbers, and a function's name."""
        return self.tau if self.schedule is None else (self.schedule.name, self.schedule)

    def with_schedule(self, field: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Return the vector field of the flow from that of its `time_constants`."""
        return field if self.schedule is None else ScheduledField(field, self.schedule)
