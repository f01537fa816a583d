"""Choose how a flow is solved, where its caller leaves it open, and say why."""

import dataclasses
import re
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, PyTree

from flowlin._tools.arrays import Real, as_dtype, is_traced, replace_fields
from flowlin._tools.numerics import FlatTree
from flowlin._tools.smooth_operations import has_only_smooth_operations
from flowlin._tools.warn import warn_user
from flowlin.engine.allowed import ErrorPerUnit, ErrorScaledController
from flowlin.engine.kinks.averaged import AbstractAveraging
from flowlin.engine.kinks.kink_places import kink_places, walks_through_loss
from flowlin.engine.kinks.kink_policies import (
    ASKED_REASON,
    IGNORED,
    AbstractKinks,
    IgnoreKinks,
    KinksWarning,
    SmoothKinks,
    StepTraits,
    choose_kinks,
    places_of_kinks,
    warn_unknown_kinks,
)
from flowlin.engine.kinks.loss_warning import (
    about_loss_kinks,
    loss_sites_apart,
    rounds_loss,
    warn_loss_kinks,
)
from flowlin.engine.kinks.starts import may_be_at_kink
from flowlin.engine.solvers.error_scale import AbstractErrorScale, ErrorPerNumber
from flowlin.engine.solvers.recycled_bdf import RecycledBDF
from flowlin.engine.solvers.rkc import RKC
from flowlin.engine.solvers.wrapped import is_explicit
from flowlin.networks.base import AbstractOwnModel
from flowlin.networks.modules import has_known_kinks
from flowlin.training.cross_entropy import CrossEntropy
from flowlin.training.function_loss import FunctionLoss
from flowlin.training.loss_kinks import kinks_of_loss
from flowlin.training.objective import AbstractObjective, ModifiedLoss
from flowlin.training.problem import Problem
from flowlin.training.rules import (
    MOVED_BY,
    AbstractRule,
    RuleField,
    VectorField,
    choose_objective,
    require_velocities,
)
from flowlin.training.squared_error import SquaredError

# Solvers for which any tree of arrays is a state, one flat vector too.
TREE_SOLVERS = (diffrax.Bosh3, diffrax.Tsit5, diffrax.Dopri8, RKC, RecycledBDF)


IMPLICIT_RTOL = 1e-4  # the loosest rtol at which the implicit method is chosen
LARGE_BYTES = 2**25  # bytes of parameters from which on it is not: it keeps 60 times as many
SETTLED = 10.0  # tolerances of its unit by which a number of a settled walk may still move


class Choice(NamedTuple):
    """The choices of a run and their reasons, for `flow.stats`; no part of what is compiled."""

    solver: str
    solver_because: str
    kinks: str
    kinks_because: str
    objective: str

    @property
    def stat_labels(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a name and the text that stands under it."""
        return tuple(self._asdict().items())


class Tolerances(NamedTuple):
    """The user's tolerances and step size control; None stands for the default."""

    rtol: Real | None
    atol: Real | None
    controller: diffrax.AbstractAdaptiveStepSizeController | None


def validate_tolerances(
    rtol: Real | None,
    atol: Real | None,
    controller: diffrax.AbstractAdaptiveStepSizeController | None,
) -> Tolerances:
    """Return tolerances, or a controller with its own; `ValueError` for both."""
    if controller is None:
        return Tolerances(rtol, atol, None)
    if rtol is not None or atol is not None:
        raise ValueError(
            "`stepsize_controller` has tolerances of its own; leave out `rtol` and `atol`, or it."
        )
    return Tolerances(controller.rtol, controller.atol, controller)


class Method(eqx.Module):
    """The way to solve a problem.

    - `kinks`: the policy for kinks; `objective`: the function that is descended.
    - `solver`, `controller`: diffrax's, as yet without the library's wrappings.
    - `error_by_unit`: whether the controller's `rtol` counts against hidden units and its `atol`
      for nothing, see `flowlin.engine.allowed`; else both count against single numbers.
    - `adjoint`: how derivatives are taken.
    - `flat_state`: whether the state of the solve is one vector, see `flowlin._tools.numerics`.
    - `starts_at_kink`: whether a pair may be at its kink at t = 0, so that a walk has sides to
      choose there.
    """

    kinks: AbstractKinks
    objective: AbstractObjective
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractAdaptiveStepSizeController
    adjoint: diffrax.AbstractAdjoint
    flat_state: bool = eqx.field(static=True)
    error_by_unit: bool = eqx.field(static=True)
    starts_at_kink: bool = eqx.field(static=True)

    def state_at_start(self, problem: Problem) -> PyTree:
        """Return the state that the solver moves, at t = 0."""
        if problem.has_memory:
            return problem.parameters, problem.memory
        return FlatTree.from_tree(problem.parameters) if self.flat_state else problem.parameters

    @property
    def loop_kind(self) -> str:
        """The kind of loops that the adjoint needs, see `flowlin._tools.numerics`."""
        forward = isinstance(self.adjoint, (diffrax.ForwardMode, diffrax.DirectAdjoint))
        return "lax" if forward else "checkpointed"

    def equation(self, problem: Problem, capacity: int) -> tuple[PyTree, diffrax.AbstractSolver]:
        """Return the vector field, and the solver that follows it with room for so many events."""
        solver, allowed = self.solver, self.error_scale(problem)
        if isinstance(solver, RKC):
            solver = RKC(solver.max_stages, self.loop_kind)
        if isinstance(solver, RecycledBDF):
            solver = replace_fields(
                solver, rtol=allowed.rtol, atol=allowed.atol, allowed=allowed,
                norm=self.controller.norm, time_constant=problem.schedule or problem.tau,
            )  # fmt: skip
        walk = self.kinks.wrap_solver(
            problem, solver, allowed, capacity, self.loop_kind, self.starts_at_kink
        )
        if walk is not None:
            return problem.with_schedule(walk.flow), walk
        return self.vector_field(problem), solver

    def takes_second_step(self, problem: Problem) -> bool:
        """Tell whether a step to each event locates it better than the step's dense output.

        Not in ReLU networks: a walk does so by itself, and where steps cross kinks there may be
        more switches than steps, and either kind of output is of low order.
        """
        return is_explicit(self.solver) and not has_known_kinks(problem.network)

    def error_scale(self, problem: Problem) -> AbstractErrorScale:
        """Return the error that a step may make."""
        if self.error_by_unit:
            return self._error_per_unit(problem, self.kinks.traits.counts_by_number)
        return ErrorPerNumber(self.controller.rtol, self.controller.atol)

    def step_controller(self, problem: Problem) -> diffrax.AbstractAdaptiveStepSizeController:
        """Return the controller that chooses the steps."""
        if not self.error_by_unit:
            return self.controller
        # A solver that takes over across kinks averages none: it gets a control without memory.
        traits = self.kinks.traits if isinstance(self.solver, AbstractAveraging) else StepTraits()
        by_number = self.kinks.traits.counts_by_number
        if self.kinks.walks and isinstance(self.solver, RKC):
            # At held sides nothing grows any more, and as much as this is allowed in all.
            traits, by_number = StepTraits(slack=SETTLED), False
        error_scale = self._error_per_unit(problem, by_number)
        return ErrorScaledController.from_scale(error_scale, traits.gains, traits.slack)

    def _error_per_unit(self, problem: Problem, by_number: bool) -> ErrorPerUnit:
        """Return the error that a step of this solver may make, by units."""
        implicit = isinstance(self.solver, RecycledBDF | diffrax.AbstractImplicitSolver)
        deep = len(problem.network.hidden) != 1  # or of a depth that is not known
        rtol = self.controller.rtol
        return ErrorPerUnit.from_problem(problem, rtol, by_number, implicit and deep)

    @property
    def may_switch_solver(self) -> bool:
        """Tell whether another solver may take over where the run becomes stiff."""
        return float(self.controller.rtol) >= self.kinks.traits.handover_rtol

    def stiff_solver(self, problem: Problem) -> diffrax.AbstractSolver:
        """Return the solver to go on with if a run becomes stiff; see `benchmarks/implicit.py`."""
        crossed = self.kinks.traits.needs_gates and self.kinks.width is None
        smooth = not crossed and not problem.tau.ndim and _is_smooth(problem)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.parameters))
        fine = float(self.controller.rtol) <= IMPLICIT_RTOL
        usual = isinstance(self.controller, diffrax.PIDController)
        return RecycledBDF() if smooth and fine and usual and size < LARGE_BYTES else RKC()

    def vector_field(self, problem: Problem) -> Callable[..., PyTree]:
        """Return the vector field without a walk's gates."""
        goal, network, rule = self.objective, problem.network, problem.rule
        if problem.is_gradient_flow:
            return problem.with_schedule(VectorField(goal, network, problem.time_constants))
        return problem.with_schedule(
            RuleField(goal, network, problem.tau, rule, problem.has_memory)
        )


def choose_method(
    problem: Problem,
    kinks: AbstractKinks | None,
    solver: diffrax.AbstractSolver | None,
    modified_rate: ArrayLike | None,
    tolerances: Tolerances,
    adjoint: diffrax.AbstractAdjoint,
) -> tuple[Method, Choice]:
    """Choose the method for a problem, and say why: the user's choices first, else by its facts."""
    network, dtype = problem.network, problem.network.dtype
    sites, asked = loss_sites_apart(problem), kinks
    facts = network.facts
    known, kinks_because = facts.kinks, facts.kinks_because
    _require_known_kinks(kinks, known, kinks_because)
    has_kinks = bool(kink_places(problem))
    if has_kinks and kinks is not None:
        kinks_because = ASKED_REASON
    elif has_kinks:
        kinks, kinks_because = choose_kinks(problem, solver)
    else:
        if known == "unknown" and kinks is None and problem.is_gradient_flow:
            warn_unknown_kinks(kinks_because)
        kinks = asked if asked is not None and rounds_loss(asked, sites) else IGNORED
    if not problem.is_gradient_flow:
        kinks, kinks_because = _kinks_of_rule(kinks, kinks_because, problem.rule)
    warn_loss_kinks(problem, asked, kinks, sites)
    rtol = effective_rtol(tolerances, kinks, dtype)
    chosen, because = kinks.choose_solver(problem, solver, rtol)
    if isinstance(chosen, RecycledBDF) and chosen.linear_solver is not None:
        raise ValueError(
            "`solver` = RecycledBDF has a `linear_solver`, which is for diffrax.diffeqsolve of "
            "other equations; leave it out, since a flow's Jacobian is symmetric."
        )
    if not problem.is_gradient_flow:
        _require_rule_fits(problem, chosen, modified_rate)
    if isinstance(chosen, RecycledBDF) and problem.tau.ndim:
        raise ValueError(
            "`solver` = RecycledBDF needs one `tau`: with one per layer the flow's Jacobian is not "
            "symmetric; use fl.RKC()."
        )
    policy = jax.tree.map(jnp.asarray, kinks)  # so that another width is no other program
    goal = choose_objective(network, problem.task, problem.loss, policy.width, problem.decay)
    if modified_rate is not None:
        goal = ModifiedLoss(goal, jnp.asarray(modified_rate, dtype))
    moved = "" if problem.is_gradient_flow else MOVED_BY + type(problem.rule).__name__
    choice = Choice(
        solver=type(chosen).__name__,
        solver_because=because,
        kinks=repr(kinks) if has_kinks or kinks.width is not None else known,
        kinks_because=kinks_because
        + places_of_kinks(network)
        + about_loss_kinks(problem, kinks, sites),
        objective=goal.stats_label + moved,
    )
    steps = _user_controller(tolerances.controller, dtype) or pid_controller(
        rtol, tolerances.atol, dtype
    )
    own = tolerances.controller is None
    by_unit, flat = own and tolerances.atol is None, own and _has_flat_state(problem, kinks, chosen)
    tied = kinks.walks and may_be_at_kink(problem)
    return Method(policy, goal, chosen, steps, adjoint, flat, by_unit, tied), choice


def _is_smooth(problem: Problem) -> bool:
    """Tell whether network and loss are surely without kinks."""
    network, task, loss = problem.network, problem.task, problem.loss
    known = network.facts.kinks == "none"
    if not known and not has_only_smooth_operations(network.outputs, task.x):
        return False
    if isinstance(loss, FunctionLoss):
        found = kinks_of_loss(loss, task.outputs, network.dtype)
        return not (found.sites or found.unknown_because)
    known = type(loss) in (SquaredError, CrossEntropy)
    return known or has_only_smooth_operations(loss, task.y, task.y, task.weights)


def _kinks_of_rule(
    kinks: AbstractKinks, because: str, rule: AbstractRule
) -> tuple[AbstractKinks, str]:
    """Return a policy for another rule: smooth kinks, unless one across them was asked for.

    **Raises:** `ValueError` for a policy whose steps know the kinks of gradient flow alone.
    """
    if isinstance(kinks, SmoothKinks | IgnoreKinks):
        return kinks, because
    if because == ASKED_REASON:
        raise ValueError(
            f"`kinks` = {kinks} is for gradient flow, and `rule` = {rule} is another one; pass "
            "`kinks=fl.SmoothKinks(1e-4)`."
        )
    return SmoothKinks(), "the rule is no gradient flow, whose kinks are known"


def _require_rule_fits(
    problem: Problem, solver: diffrax.AbstractSolver, modified_rate: ArrayLike | None
) -> None:
    """Raise `ValueError` for what goes with gradient flow alone, and for velocities of no use."""
    if isinstance(solver, RecycledBDF):
        raise ValueError(
            "`solver` = RecycledBDF is for the symmetric Jacobian of gradient flow, and `rule` = "
            f"{problem.rule} is another one; use fl.RKC() or leave the solver out."
        )
    if problem.tau.ndim or modified_rate is not None:
        raise ValueError(
            f"`{'tau' if problem.tau.ndim else 'modified_rate'}` goes with gradient flow alone, "
            f"and `rule` = {problem.rule} is another one; pass one `tau` and no `modified_rate`."
        )
    require_velocities(problem.rule, problem.parameters)


def _has_flat_state(problem: Problem, kinks: AbstractKinks, solver: diffrax.AbstractSolver) -> bool:
    """Tell whether the state may be one vector: where nobody but the library sees it, in whole.

    It is a tree for the user's own solvers and controllers, which may look at its parts, for arrays
    that are split among devices, for walks of several layers or through the kinks of a loss, and
    for any other Equinox module.
    """
    network = problem.network
    deep = kinks.walks and (len(network.hidden) > 1 or walks_through_loss(problem))
    known = isinstance(network, AbstractOwnModel) and type(solver) in TREE_SOLVERS and not deep
    arrays = [a for a in jax.tree.leaves(problem.parameters) if not is_traced(a)]
    return known and all(a.sharding.is_fully_replicated for a in arrays)


def _require_known_kinks(kinks: AbstractKinks | None, known: str, why: str) -> None:
    """Raise `ValueError` for a policy that needs kinks where none are known."""
    if kinks is not None and kinks.traits.needs_gates and known == "unknown":
        raise ValueError(
            f"`kinks` = {kinks} needs to know the kinks, and {why}; leave it out, or make an "
            "fl.ReLUNetwork of the same weights."
        )


def _user_controller(
    controller: diffrax.AbstractAdaptiveStepSizeController | None, dtype: DTypeLike
) -> diffrax.AbstractAdaptiveStepSizeController | None:
    """Return the user's step size control, its tolerances as arrays like those of `controller`."""
    if not isinstance(controller, diffrax.PIDController):
        return controller
    rtol, atol = as_dtype(controller.rtol, dtype), as_dtype(controller.atol, dtype)
    return dataclasses.replace(controller, rtol=rtol, atol=atol)


def pid_controller(rtol: Real, atol: Real | None, dtype: DTypeLike) -> diffrax.PIDController:
    """Return step size control whose tolerances are arrays: other ones compile no other program."""
    return diffrax.PIDController(
        rtol=as_dtype(rtol, dtype), atol=as_dtype(0.0 if atol is None else atol, dtype)
    )


def describe_options(thing: eqx.Module) -> tuple[str, list[np.ndarray]]:
    """Describe an object of options by its kind and options, as text, and by its numbers."""
    options = re.sub(r" at 0x[0-9a-f]+", "", eqx.tree_pformat(thing))
    numbers = [np.asarray(a) for a in jax.tree.leaves(thing) if eqx.is_array_like(a)]
    return options, numbers


def effective_rtol(tolerances: Tolerances, kinks: AbstractKinks, dtype: DTypeLike) -> PyTree:
    """Return the run's rtol: its default (`benchmarks/precision.py`), none finer than is of use."""
    rtol, finest = tolerances.rtol, kinks.traits.finest_rtol
    if rtol is None:
        return max(1e-8, finest) if dtype == jnp.float64 else kinks.traits.float32_rtol
    if is_traced(rtol):
        return jnp.maximum(rtol, finest) if finest else rtol
    if rtol < finest and tolerances.controller is not None:
        raise ValueError(
            f"`stepsize_controller` has rtol = {rtol:g}, finer than `{type(kinks).__name__}` can "
            f"use; give it {finest:g}."
        )
    if rtol < finest:
        warn_user(
            f"`rtol` = {rtol:g} is finer than `{type(kinks).__name__}` can use: its steps would "
            f"creep from switch to switch. {finest:g} is used instead.",
            KinksWarning,
        )
    return max(rtol, finest)
