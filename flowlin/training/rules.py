"""Rules of training, time constants, the choice of an objective, the vector field of a run."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from flowlin._tools.arguments import CHECKS_BY_NAME, instance_of
from flowlin._tools.arrays import Parameters
from flowlin._tools.numerics import as_tree, flatten_like
from flowlin.networks.base import AbstractModel
from flowlin.networks.graph import GatedGraph
from flowlin.networks.network_kinds import LinearNetwork
from flowlin.tasks.task import Task, has_entry_weights
from flowlin.training.loss import Loss
from flowlin.training.loss_kinks import round_off
from flowlin.training.objective import AbstractObjective, Decay, FullData, with_decay
from flowlin.training.squared_error import SquaredError
from flowlin.training.statistics import GraphStatistics, LinearStatistics, is_cheaper


def is_none(node: PyTree) -> bool:
    """Tell whether a node is None, which stands for parameters that rest."""
    return node is None


def tau_per_array(tau: PyTree, parameters: PyTree) -> PyTree:
    """Return the time constant of every array, from a prefix `tau` of the tree; None for rest."""

    def tau_of_part(one: Array | None, part: PyTree) -> PyTree:
        return jax.tree.map(lambda _: one, part)

    return jax.tree.map(tau_of_part, tau, parameters, is_leaf=is_none)


def layers_that_move(tau: PyTree, network: AbstractModel) -> list[tuple[bool, bool]]:
    """Tell of each layer whether its weights and its bias move; a missing bias does not."""
    weights, biases = tau_per_array(tau, network.parameters)
    return [(w is not None, b is not None) for w, b in zip(weights, biases, strict=True)]


def divide_by_tau(force: PyTree, tau: PyTree) -> PyTree:
    """Return the velocity force / tau that a force gives; None for what rests."""

    def divide_part(one: Array | None, part: PyTree) -> PyTree:
        return None if one is None else jax.tree.map(lambda f: f / one, part)

    return jax.tree.map(divide_part, tau, force, is_leaf=is_none)


# ---- Rules of training: what moves the parameters, given the force on them.


# How `flow.stats["objective"]` ends where another rule than `Gradient` has moved the network.
MOVED_BY = ", moved by "


class AbstractRule(eqx.Module):
    r"""A rule of training in continuous time: a run of it moves parameters w and a memory m by

    $$\tau\, (\dot w, \dot m) = \text{velocity}(t, w, m, -\nabla L).$$

    The memory rides beside the parameters in the solver's state, so that events, dense output,
    checkpoints and `vmap` see it by themselves. Of both methods all trees are like the parameters
    that move, with None in place of those that rest.
    """

    @abc.abstractmethod
    def memory(self, parameters: PyTree) -> PyTree:
        """Return the memory at t = 0, a tree of arrays of the parameters' dtype; () for none."""

    @abc.abstractmethod
    def velocity(
        self, t: ArrayLike | None, parameters: PyTree, memory: PyTree, force: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return how fast parameters and memory change at tau = 1, as trees like these.

        The force is minus the gradient of what is descended, weight decay included.
        """


class Gradient(AbstractRule):
    """Gradient flow: the velocity is the force, and nothing is remembered."""

    def memory(self, parameters: PyTree) -> tuple[()]:
        """Return nothing."""
        del parameters
        return ()

    def velocity(
        self, t: ArrayLike | None, parameters: PyTree, memory: PyTree, force: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the force."""
        del t, parameters
        return force, memory


CHECKS_BY_NAME["rule"] = instance_of(AbstractRule, "a rule of training", "such as fl.Gradient()")


# ---- The vector field of a run, and the objective that it descends.


def choose_objective(
    network: AbstractModel,
    task: Task,
    loss: Loss,
    width: ArrayLike | None = None,
    decay: Decay | None = None,
) -> AbstractObjective:
    """Choose the cheapest exact objective: statistics where they cost less, for squared error.

    `width`: z over which kinks are rounded off, or None.
    """
    rounded = round_off(loss, width, task.outputs, task.y.dtype)
    plain: AbstractObjective = FullData(task, rounded, width, task.shards)
    # With weights of entries every output has statistics of its own.
    if isinstance(loss, SquaredError) and not has_entry_weights(task):
        # With fewer samples than inputs the samples hold fewer numbers than Sigma_x.
        if isinstance(network, LinearNetwork) and task.samples > task.inputs:
            plain = LinearStatistics.from_task(task, loss)
        elif isinstance(network, GatedGraph) and is_cheaper(network, task):
            plain = GraphStatistics.from_graph(network, task, loss)
    return with_decay(plain, decay)


class VectorField(eqx.Module):
    """The vector field dw/dt = -grad L / tau, with the signature that diffrax expects.

    `tau` is a prefix of the parameters' tree: one time constant for all parameters, one per
    array, or None for what rests.
    """

    objective: AbstractObjective
    network: AbstractModel
    tau: PyTree

    def __call__(self, t: ArrayLike | None, parameters: Parameters, args: PyTree) -> Parameters:
        """Return the velocity of the parameters, of those that are there."""
        del t, args
        gradient = self.objective.gradient(self.network, as_tree(parameters))
        return flatten_like(
            parameters, divide_by_tau(jax.tree.map(jnp.negative, gradient), self.tau)
        )


class RuleField(eqx.Module):
    """The vector field of a rule other than `Gradient`: of the parameters, or with the memory.

    All of it is divided by one time constant `tau`. A state without a memory is the parameters
    alone, since solvers do not take empty parts.
    """

    objective: AbstractObjective
    network: AbstractModel
    tau: Array
    rule: AbstractRule
    has_memory: bool = eqx.field(static=True)

    def __call__(self, t: ArrayLike | None, state: PyTree, args: PyTree) -> PyTree:
        """Return the velocity of the state, a pair (parameters, memory) where there is one."""
        del args
        alone = as_tree(state)
        parameters, memory = state if self.has_memory else (alone, self.rule.memory(alone))
        force = jax.tree.map(jnp.negative, self.objective.gradient(self.network, parameters))
        moved = self.rule.velocity(t, parameters, memory, force)
        velocity = jax.tree.map(lambda a: a / self.tau, moved)
        return velocity if self.has_memory else flatten_like(state, velocity[0])


def require_velocities(rule: AbstractRule, parameters: PyTree) -> None:
    """Raise `ValueError` unless a rule gives parameters and memory velocities like themselves."""
    state = parameters, rule.memory(parameters)
    if not all(eqx.is_array(leaf) for leaf in jax.tree.leaves(state)):
        raise ValueError(f"`rule` = {rule} must return arrays from `memory`, or a tree of them.")
    found = eqx.filter_eval_shape(rule.velocity, None, *state, parameters)

    def describe_tree(tree: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    if describe_tree(found) != describe_tree(state):
        raise ValueError(
            f"`rule` = {rule} must return from `velocity` a pair of trees like the parameters and "
            f"the memory, of the same shapes and dtypes; got {eqx.tree_pformat(found)} for "
            f"{eqx.tree_pformat(state)}."
        )
