"""How a flow is solved, where its caller leaves it open, and why so."""

import dataclasses
import re
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike

from flowlin._tools.arrays import copied, in_dtype, is_traced
from flowlin._tools.numerics import Flat
from flowlin._tools.warn import warn
from flowlin.engine.allowed import ByUnit, Scaled
from flowlin.engine.kinks.averaged import AveragedGates
from flowlin.engine.kinks.policies import (
    ASKED,
    IGNORED,
    PLAIN,
    AbstractKinks,
    KinksWarning,
    suitable_kinks,
)
from flowlin.engine.solvers.allowed_error import AbstractAllowed, ByNumber
from flowlin.engine.solvers.recycled_bdf import RecycledBDF
from flowlin.engine.solvers.rkc import RKC
from flowlin.networks.base import AbstractOwn
from flowlin.networks.kinds import ReLUNetwork
from flowlin.training.objective import AbstractObjective, Modified
from flowlin.training.problem import Problem
from flowlin.training.rules import GradientField, objective

# Solvers that ask nothing of the state but that it is a tree of arrays.
OWN = (diffrax.Bosh3, diffrax.Tsit5, diffrax.Dopri8, RKC, RecycledBDF)


IMPLICIT = 1e-4  # the loosest rtol at which the implicit method is chosen
LARGE = 2**25  # bytes of parameters from which on it is not: it keeps 60 times as many


class Choice(NamedTuple):
    """What was chosen and why, for `flow.stats`: told beside what is compiled, no part of it."""

    solver: str
    solver_because: str
    kinks: str
    kinks_because: str
    objective: str

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Names and what stands under them."""
        return tuple(self._asdict().items())


class Tolerances(NamedTuple):
    """What is said of the size of steps: None is the default."""

    rtol: Any
    atol: Any
    controller: diffrax.AbstractAdaptiveStepSizeController | None


def chosen_tolerances(
    rtol: Any, atol: Any, controller: diffrax.AbstractAdaptiveStepSizeController | None
) -> Tolerances:
    """Tolerances, or a controller that has its own; `ValueError` for both."""
    if controller is None:
        return Tolerances(rtol, atol, None)
    if rtol is not None or atol is not None:
        raise ValueError(
            "`stepsize_controller` has tolerances of its own; leave out `rtol` and `atol`, or it."
        )
    return Tolerances(controller.rtol, controller.atol, controller)


class Method(eqx.Module):
    """How a problem is solved.

    - `kinks`: the policy for kinks; `objective`: what is descended.
    - `solver`, `controller`: diffrax's, as yet without the library's wrappings.
    - `by_unit`: whether the controller's `rtol` counts against hidden units and its `atol` for
      nothing, see `flowlin.engine.allowed`; else both count against single numbers.
    - `adjoint`: how derivatives are taken.
    - `flat`: whether the state of the solve is one vector, see `flowlin._tools.numerics`.
    """

    kinks: AbstractKinks
    objective: AbstractObjective
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractAdaptiveStepSizeController
    adjoint: diffrax.AbstractAdjoint
    flat: bool = eqx.field(static=True)
    by_unit: bool = eqx.field(static=True)

    def state(self, problem: Problem) -> Any:
        """What the solver moves, at t = 0."""
        return Flat.of(problem.parameters) if self.flat else problem.parameters

    @property
    def loop(self) -> str:
        """The kind of loops that the adjoint needs, see `flowlin._tools.numerics`."""
        forward = isinstance(self.adjoint, (diffrax.ForwardMode, diffrax.DirectAdjoint))
        return "lax" if forward else "checkpointed"

    def equation(self, problem: Problem, capacity: int) -> tuple[Any, diffrax.AbstractSolver]:
        """The vector field, and the solver that follows it, logs with this room included."""
        solver, allowed = self.solver, self.allowed(problem)
        if isinstance(solver, RKC):
            solver = RKC(solver.max_stages, self.loop)
        if isinstance(solver, RecycledBDF):
            solver = copied(
                solver, rtol=allowed.rtol, atol=allowed.atol, allowed=allowed,
                norm=self.controller.norm,
            )  # fmt: skip
        walk = self.kinks.walk(problem, solver, allowed, capacity, self.loop)
        if walk is not None:
            return walk.rule.flow, walk
        return self.field(problem), solver

    def allowed(self, problem: Problem) -> AbstractAllowed:
        """The error that a step may make."""
        if self.by_unit:
            return ByUnit.of(problem, self.controller.rtol, self.kinks.growing)
        return ByNumber(self.controller.rtol, self.controller.atol)

    def steps(self, problem: Problem) -> diffrax.AbstractAdaptiveStepSizeController:
        """What chooses the steps."""
        if not self.by_unit:
            return self.controller
        # What goes on across kinks has them no longer one by one.
        gains = self.kinks.gains if isinstance(self.solver, AveragedGates) else PLAIN
        return Scaled.of(problem, self.controller.rtol, self.kinks.growing, gains)

    @property
    def exchangeable(self) -> bool:
        """Whether another solver may take over where the run becomes stiff."""
        return float(self.controller.rtol) >= self.kinks.handover

    def for_stiff(self, problem: Problem) -> diffrax.AbstractSolver:
        """What to go on with where a run becomes stiff; see `benchmarks/implicit.py`."""
        crossed = self.kinks.needs_gates and self.kinks.width is None
        known = problem.network.about_kinks[0] == "none"
        smooth = known and not crossed and not problem.tau.ndim
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.parameters))
        fine = float(self.controller.rtol) <= IMPLICIT
        usual = isinstance(self.controller, diffrax.PIDController)
        return RecycledBDF() if smooth and fine and usual and size < LARGE else RKC()

    def field(self, problem: Problem) -> GradientField:
        """The vector field without a walk's gates."""
        return GradientField(self.objective, problem.network, problem.constants)


def chosen_method(
    problem: Problem,
    kinks: AbstractKinks | None,
    solver: diffrax.AbstractSolver | None,
    modified_rate: ArrayLike | None,
    tolerances: Tolerances,
    adjoint: diffrax.AbstractAdjoint,
) -> tuple[Method, Choice]:
    """The method for a problem."""
    network, dtype = problem.network, problem.network.dtype
    known, kinks_because = network.about_kinks
    _require_known(kinks, known, kinks_because)
    if isinstance(network, ReLUNetwork) and kinks is not None:
        kinks_because = ASKED
    elif isinstance(network, ReLUNetwork):
        kinks, kinks_because = suitable_kinks(network, problem.task, solver)
    else:
        kinks = IGNORED
    rtol = tolerance(tolerances, kinks, dtype)
    chosen, because = kinks.method(problem, solver, rtol)
    if isinstance(chosen, RecycledBDF) and chosen.linear_solver is not None:
        raise ValueError(
            "`solver` = RecycledBDF has a `linear_solver`, which is for diffrax.diffeqsolve of "
            "other equations; leave it out, since a flow's Jacobian is symmetric."
        )
    if isinstance(chosen, RecycledBDF) and problem.tau.ndim:
        raise ValueError(
            "`solver` = RecycledBDF needs one `tau`: with one per layer the flow's Jacobian is not "
            "symmetric; use fl.RKC()."
        )
    policy = jax.tree.map(jnp.asarray, kinks)  # so that another width is no other program
    goal = objective(network, problem.task, problem.loss, policy.width, problem.decay)
    if modified_rate is not None:
        goal = Modified(goal, jnp.asarray(modified_rate, dtype))
    choice = Choice(
        solver=type(chosen).__name__,
        solver_because=because,
        kinks=repr(kinks) if isinstance(network, ReLUNetwork) else known,
        kinks_because=kinks_because,
        objective=goal.label,
    )
    steps = _given(tolerances.controller, dtype) or controller(rtol, tolerances.atol, dtype)
    own = tolerances.controller is None
    by_unit, flat = own and tolerances.atol is None, own and _is_flat(problem, kinks, chosen)
    return Method(policy, goal, chosen, steps, adjoint, flat, by_unit), choice


def _is_flat(problem: Problem, kinks: AbstractKinks, solver: diffrax.AbstractSolver) -> bool:
    """Whether the state may be one vector: where nobody but the library sees it, in whole.

    Not with solvers or controllers of the user's, which may look at its parts, nor with arrays
    that are split among devices; the rule of deep walks and other models go by trees, too.
    """
    network = problem.network
    deep = kinks.walks and len(network.hidden) > 1
    known = isinstance(network, AbstractOwn) and type(solver) in OWN and not deep
    arrays = [a for a in jax.tree.leaves(problem.parameters) if not is_traced(a)]
    return known and all(a.sharding.is_fully_replicated for a in arrays)


def _require_known(kinks: AbstractKinks | None, known: str, why: str) -> None:
    """Raise `ValueError` for a policy that needs kinks where none are known."""
    if kinks is not None and kinks.needs_gates and known == "unknown":
        raise ValueError(
            f"`kinks` = {kinks} needs to know the kinks, and {why}; leave it out, or make an "
            "fl.ReLUNetwork of the same weights."
        )


def _given(
    controller: diffrax.AbstractAdaptiveStepSizeController | None, dtype: DTypeLike
) -> diffrax.AbstractAdaptiveStepSizeController | None:
    """The user's step size control, with its tolerances as `controller` has them."""
    if not isinstance(controller, diffrax.PIDController):
        return controller
    rtol, atol = in_dtype(controller.rtol, dtype), in_dtype(controller.atol, dtype)
    return dataclasses.replace(controller, rtol=rtol, atol=atol)


def controller(rtol: Any, atol: Any, dtype: DTypeLike) -> diffrax.PIDController:
    """Step size control. Tolerances are arrays: another one is not another compilation."""
    return diffrax.PIDController(
        rtol=in_dtype(rtol, dtype), atol=in_dtype(0.0 if atol is None else atol, dtype)
    )


def nature(thing: eqx.Module) -> tuple[str, list[np.ndarray]]:
    """What an object of options goes by: its kind, its options by name, and its numbers."""
    options = re.sub(r" at 0x[0-9a-f]+", "", eqx.tree_pformat(thing))
    numbers = [np.asarray(a) for a in jax.tree.leaves(thing) if eqx.is_array_like(a)]
    return options, numbers


def tolerance(tolerances: Tolerances, kinks: AbstractKinks, dtype: DTypeLike) -> Any:
    """The run's rtol: its default (`benchmarks/precision.py`), and not finer than is of use."""
    rtol, finest = tolerances.rtol, kinks.finest
    if rtol is None:
        return max(1e-8, finest) if dtype == jnp.float64 else kinks.narrow
    if is_traced(rtol):
        return jnp.maximum(rtol, finest) if finest else rtol
    if rtol < finest and tolerances.controller is not None:
        raise ValueError(
            f"`stepsize_controller` has rtol = {rtol:g}, finer than `{type(kinks).__name__}` can "
            f"use; give it {finest:g}."
        )
    if rtol < finest:
        warn(
            f"`rtol` = {rtol:g} is finer than `{type(kinks).__name__}` can use: its steps would "
            f"creep from switch to switch. {finest:g} is used instead.",
            KinksWarning,
        )
    return max(rtol, finest)
