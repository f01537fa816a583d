"""Policies for the kinks of a ReLU flow, the sets z = 0 of the (unit, sample) pairs."""

import abc
import math
from typing import ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    boolean,
    checked,
    instance_of,
    integer_from,
    positive,
    static_value,
    with_article,
)
from flowlin._tools.arrays import ENABLE_X64, Real
from flowlin._tools.warn import warn_user
from flowlin.engine.kinks.averaged import FINEST_RTOL, AveragedGates
from flowlin.engine.kinks.averaged_graph import AveragedGraph
from flowlin.engine.kinks.kink_places import pair_count, walks_through_loss
from flowlin.engine.kinks.walk import ExactWalk, HeldWalk, choose_switching
from flowlin.engine.solvers.error_scale import AbstractErrorScale
from flowlin.engine.solvers.rkc import RKC
from flowlin.engine.solvers.wrapped import Explicit, is_explicit
from flowlin.events.event import AbstractKinkTraits
from flowlin.networks.base import AbstractModel
from flowlin.networks.modules import has_known_kinks
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.training.problem import Problem

MANY_PAIRS = 10_000  # (unit, sample) pairs beyond which each one's switches are too many
# By `benchmarks/border.py --wide`: events of a pair of a network from small weights, 0.2 to 0.6,
# and numbers moved by all events of a walk that takes some half a minute.
EVENTS_PER_PAIR, MANY_NUMBERS = 0.5, 5e7
DEFAULT_REASON = "the default for these kinks"
ASKED_REASON = "as asked for"
# Made once: modules take longer to make than to use.
BOSH3, TSIT5, DOPRI8 = diffrax.Bosh3(), diffrax.Tsit5(), diffrax.Dopri8()


class StepTraits(NamedTuple):
    """Properties of a policy that its steps are taken by; the defaults are plain integration's.

    - `needs_gates`: whether it asks the network for its preactivations or gates.
    - `handover_rtol`: the rtol from which on another solver may take over where the flow becomes
      stiff.
    - `float32_rtol`: the default rtol in float32.
    - `finest_rtol`: the finest rtol that is of use.
    - `counts_by_number`: whether errors count against single numbers, and against what a unit moves
      once it has grown; if not, against units: see `flowlin.engine.allowed`.
    - `gains`: of the step size control, proportional and integral.
    - `slack`: by what its step's error estimate, counted by units, is larger than one that counts
      by numbers where it is as right; see `benchmarks/scale.py --cost`.
    """

    needs_gates: bool = True
    handover_rtol: float = 0.0
    float32_rtol: float = 1e-4
    finest_rtol: float = 0.0
    counts_by_number: bool = True
    gains: tuple[float, float] = (0.0, 1.0)  # a control without memory
    slack: float = 1.0


class AbstractKinks(AbstractKinkTraits):
    """Base class of the policies for kinks, with `width` and `walks` as events ask for them.

    - `traits`: what its steps are taken by.
    """

    traits: AbstractClassVar[StepTraits]

    @abc.abstractmethod
    def choose_solver(
        self, problem: Problem, solver: diffrax.AbstractSolver | None, rtol: Real
    ) -> tuple[diffrax.AbstractSolver, str]:
        """Choose the solver for a problem, the given one where it suits, and say why.

        **Raises:** `ValueError` for one that does not suit.
        """

    @abc.abstractmethod
    def wrap_solver(
        self,
        problem: Problem,
        solver: diffrax.AbstractSolver,
        error_scale: AbstractErrorScale,
        capacity: int,
        loop_kind: str,
        starts_at_kink: bool,
    ) -> ExactWalk | HeldWalk | None:
        """Wrap the solver so that it walks; None where it does not."""

    @abc.abstractmethod
    def remedy(self, network: AbstractModel) -> str:
        """Return what else may help a run that failed, to follow a comma or a semicolon."""


def _low_order_solver(rtol: Real) -> diffrax.AbstractSolver:
    """Return a low-order solver: kinks limit the order; see `benchmarks/solvers.py`."""
    return BOSH3 if rtol > 1e-6 else TSIT5


@checked
class IgnoreKinks(AbstractKinks):
    """Integrate plainly across the kinks, leaving them to the step size control.

    Right for networks whose kinks are few or far between. A biased ReLU network's flow slides on
    its kinks; there the plain integrator chatters and its steps shrink without end.
    """

    width: ClassVar[None] = None
    walks: ClassVar[bool] = False
    traits: ClassVar[StepTraits] = StepTraits(needs_gates=False)

    def choose_solver(self, problem, solver, rtol) -> tuple[diffrax.AbstractSolver, str]:
        """Choose low order for a ReLU network, high order for one without kinks."""
        if solver is not None:
            return solver, ASKED_REASON
        if has_known_kinks(problem.network):
            return BOSH3, DEFAULT_REASON
        return DOPRI8 if rtol <= 1e-6 else TSIT5, DEFAULT_REASON

    def wrap_solver(self, problem, solver, allowed, capacity, loop, starts_at_kink) -> None:
        """Return None: it does not walk."""

    def remedy(self, network: AbstractModel) -> str:
        """Return advice against ignoring kinks."""
        if has_known_kinks(network):
            return "; a ReLU flow that slides on its kinks needs `kinks=fl.SmoothKinks(...)`"
        if network.facts.kinks == "none":
            return ""
        return (
            "; a model with kinks, such as those of a ReLU, may slide on them, which no steps "
            "follow: take `fl.ReLUNetwork`, or a smooth activation"
        )


@checked(width=static_value(positive))
class SmoothKinks(AbstractKinks):
    r"""Round each kink off over |z| < width by a quadratic.

    $$\sigma_w(z) = \frac{(z + w)^2}{4 w} \quad (|z| < w), \qquad \max(z, 0) \text{ outside}.$$

    What is integrated is the exact gradient flow **of the smoothed network**: its loss still
    falls. Against the ReLU network the parameters are off by an amount that shrinks about linearly
    with the width, and so are the quantities that a ReLU unit conserves; a sliding pair becomes
    one that hovers inside |z| < w.

    **Arguments:**

    - `width`: w > 0, in units of the preactivation. Small against the preactivations' scale;
      steps grow about as 1/w where pairs slide. One compiled program serves all widths.

    **Raises:** `ValueError` for a width that is not positive.
    """

    width: float = 1e-4  # pyright: ignore

    walks: ClassVar[bool] = False
    traits: ClassVar[StepTraits] = StepTraits()

    def choose_solver(self, problem, solver, rtol) -> tuple[diffrax.AbstractSolver, str]:
        """Choose low order: a high one would have to resolve the width."""
        return (
            (_low_order_solver(rtol), DEFAULT_REASON) if solver is None else (solver, ASKED_REASON)
        )

    def wrap_solver(self, problem, solver, allowed, capacity, loop, starts_at_kink) -> None:
        """Return None: it does not walk."""

    def remedy(self, network: AbstractModel) -> str:
        """Return nothing."""
        del network
        return ""


@checked
class AveragedKinks(AbstractKinks):
    r"""Average every gate over the step instead of stepping to its switches.

    For ReLU (and leaky ReLU) networks, and Equinox modules of ReLUs, with too many (unit, sample)
    pairs to walk exactly. Each switch within a step costs an ordinary method an error of first
    order in the step's length; averaged, the order is two. The run's solver (`solver` must be
    None) is with one hidden layer `flowlin.engine.kinks.averaged.AveragedGates`, of two evaluations
    a step, else `flowlin.engine.kinks.averaged_graph.AveragedGraph`, of three at most.

    With `AveragedGraph` the order is one again where a maximum is taken of what is rectified
    already, as by max pooling after a ReLU: take the maximum first, which is the same function.

    The steps are explicit: where the flow is stiff, as with a strong bias on images, they are
    bounded by about 2 over the sharpness. Such a run goes on with `RKC` across kinks, where that
    comes further per evaluation (not under `jit` or `vmap`, or with `dense`): at an `rtol` of 1e-3
    and more this is tried after 128 steps, at a finer one, where there are kinks, it rarely does,
    and is tried after 4096, for flows that have converged and go on for long. At 1e-2 the steps
    before that may err by more than 1 % of the loss; where it is all that counts,
    `kinks=fl.IgnoreKinks()` with `solver=fl.RKC()` is stable from the start.

    With one hidden layer pairs that slide have the gates of their slide, see
    `flowlin.engine.kinks.slides`, and do not bound the steps. Others that switch do: below an
    `rtol` of 1e-5, the default in float64, steps creep from switch to switch, so a finer one is
    floored there, with a `KinksWarning`.

    `flow.stats["accepted_evaluations"]` counts pairs of large products of accepted steps.
    `flow.stats["grazing_margin"]` says how nearly a pair missed a kink that repels (one with
    $C_{ji} = a_j \cdot e_i > 0$, which drives z up if on): the smallest
    $|z_{ji}| / (|\tilde w_j| |\tilde x_i|)$, with $\tilde w = [b; w]$ and $\tilde x = [c; x]$, of
    such pairs at their nearest in a step that they began towards the kink and ended away from it on
    the same side; inf if none did. The flow depends discontinuously on its start there. If the
    unit's weights are uncertain by more than the margin (relative), the pair may end on the other
    side. So do not trust digits finer than it.
    Runs by `AveragedGraph`, and those that went on with `RKC`, have no margin, since these do not
    watch for it.

    **Raises:** (by `gradient_flow`) `ValueError` with a `solver`, or for a network without kinks.
    """

    width: ClassVar[None] = None
    walks: ClassVar[bool] = False
    traits: ClassVar[StepTraits] = StepTraits(
        finest_rtol=FINEST_RTOL,
        counts_by_number=False,  # its steps would creep
        gains=(0.3, 0.3),  # as many steps fail without memory as succeed
        slack=1.2,
    )

    def choose_solver(self, problem, solver, rtol) -> tuple[diffrax.AbstractSolver, str]:
        """Choose its own solver; `ValueError` for another one."""
        del rtol
        if solver is not None:
            raise ValueError(
                f"`AveragedKinks` has a solver of its own; leave out `solver` = "
                f"{type(solver).__name__}, or pass other `kinks`."
            )
        because, network = "the solver of averaged kinks", problem.network
        if not has_known_kinks(network):
            raise ValueError(
                "`AveragedKinks` is for an fl.ReLUNetwork or a module of ReLUs, got "
                f"{with_article(network.facts.kind)}; pass `kinks=fl.ExactKinks()`, "
                "`fl.SmoothKinks(1e-4)` or `fl.IgnoreKinks()`."
            )
        if not has_one_layer(network):
            return AveragedGraph.from_problem(problem), because
        assert isinstance(network, ReLUNetwork)
        task, loss, tau = problem.task, problem.loss, problem.time_constants
        own = AveragedGates(network, task, loss, tau, problem.decay, problem.schedule)
        return own, because

    def wrap_solver(self, problem, solver, allowed, capacity, loop, starts_at_kink) -> None:
        """Return None: it does not walk."""

    def remedy(self, network: AbstractModel) -> str:
        """Return nothing."""
        del network
        return ""


@checked(slots=integer_from(1), revive=boolean)
class ExactKinks(AbstractKinks):
    r"""Walk through the kinks exactly: every gate switches at a located event.

    Between events each (unit, sample) gate is off, on or sliding, and the flow is that of a gated
    linear network whose sliding pairs are held at their kinks; at an event Filippov's rule
    chooses the gates. Limited by the solver's tolerance alone, so `rtol` means what it says.

    For ReLU (and leaky ReLU) networks of any depth, and for any Equinox module of ReLUs, whose
    kinks are found in its program. Those of a `loss` of the user's own are walked through as well,
    of linear networks too. Work grows with the number of events, roughly as units x samples.
    `flow.stats["accepted_evaluations"]` counts evaluations of the velocity in accepted steps.

    With several hidden layers a sample may slide in several of them at once. Where a lower pair
    then leaves its slide to on, and the loss nearby is not convex, the flow may not be unique: the
    walk takes the exit, which is the limit of smooth gates (`SmoothKinks` of smaller and smaller
    width), and descent, whose gates in the two layers are correlated, may stay. Such exits are in
    the log, `flow.events.select("branch")`. `flow.stats["branch_certificate"]` is, at the first
    exit, the largest drive C of the leaving pair over all choices of the gates above it. Positive
    means not convex, NaN means no such exit (see `flowlin.engine.kinks.deep_switching` for rule and
    derivation).

    Without biases a layer may send nothing for a sample, and units that are at their kinks there
    leave them one by one or two at a time, with what they feed. Where kinks of several layers meet
    at one point, descent through it, blown up, is asked; where it is of two minds a branch is
    logged, and where sides that go on are not found the run ends with `RESULTS.sides_unsolved`.
    Samples to which one unit alone sends something share the kinks above it, and with biases those
    to which none does; they slide as one.

    A unit that dies at its kink, and whose own weights alone move its z, stays dead, as with
    descent: a unit of the first layer, all places of a filter, one above samples for which all
    below is off, or one of zero weights. Where its C, of all that share the kink, turns positive
    later the flow is not unique either, and a branch is logged: gates that are smooth and never
    zero revive the unit, once the integral of C since its death is zero. After convergence C is an
    error, and so is u of a slide; they count where they come from beyond a hundred `rtol` of their
    scale, or get there. With one layer a branch is also logged where a unit's weights pass through
    zero and kinks that repel meet there: smooth gates may lead on, and descent leave the unit off.

    Where a kink turns to repel a pair that slides on it, as where the readout of its unit passes
    zero, small steps of descent may leave it to either side, and a branch is logged.

    With any number of layers a pair that begins at its kink with C >= 0 is on if its z rises with
    it off, else off; where it could come on as well, as from weights of zero, a branch is logged at
    t = 0. Pairs that could come on only together are not told.

    A run that has converged, and would go on for long, ends at sides that no longer change, where
    `solver` is left open and nothing is traced: `flow.stats["converged"]` says from when on, or
    inf. What is left of the flow is less than its error there. Under `jit`, `vmap` and with `dense`
    such a run walks on, and errors alone switch its pairs; `flow.confirm()` tells which.

    `flow.stats["grazing_margin"]` says how nearly a pair missed a kink that repels, as with
    `AveragedKinks`: the smallest $|z_{ji}| / (|\tilde w_j| |\tilde x_i|)$ of a pair that moved
    towards its kink, turned back and did not switch; behind other layers $\tilde x$ is what these
    send. Here |z| is that at the bottom of the dip, or where another pair's event turned it back;
    sizes and C are those where the piece began, between two events; and only kinks with C above
    `rtol` times its scale count, since after convergence C is an error. Steps at held sides do not
    watch for it.

    Where a pair touches its kink within the run's error it may switch there and back or not at all.
    `flow.events.is_touch` marks such switches, `flow.stats["undecided_touches"]` counts how often;
    they are not determined and have no say in t*.

    **Arguments:**

    - `slots`: for how many pairs of one unit that slide at once there is room at first. With
      several hidden layers, and in modules, there is room for four times as many of all; or for as
      many, where there are at most ten times as many pairs and none starts at its kink (under `jit`
      and `vmap` one may). A run that needs more goes on with twice as many slots, compiled anew;
      `flow.stats["slots"]` says with how many it ended. Under `jit` and `vmap` it stops with
      `RESULTS.slide_overflow`.
    - `revive`: True for the limit of smooth gates in place of descent's, where a kink turns to
      repel the dead unit that rests on it: the unit comes on where the integral of its C since it
      died is back at zero. For `fl.ReLUNetwork` with one hidden layer. A unit that dies at
      two kinks at once stays dead, since of these it is not known. The branch is logged in either
      case. Such a run does not end at sides that no longer change.

    **Raises:** `ValueError` for fewer than one slot, and (by `gradient_flow`) for `revive` with
    another network, or a loss that has kinks.
    """

    slots: int = eqx.field(static=True, default=16)
    revive: bool = eqx.field(static=True, default=False)

    width: ClassVar[None] = None
    walks: ClassVar[bool] = True
    traits: ClassVar[StepTraits] = StepTraits(
        handover_rtol=float("inf"),
        float32_rtol=1e-5,  # finer, which spares events that are errors of the steps
    )

    def choose_solver(self, problem, solver, rtol) -> tuple[diffrax.AbstractSolver, str]:
        """Choose an explicit Runge-Kutta method, of low order since pieces are short.

        Of high order for several hidden layers at fine tolerances: as fast, and with a sixth of
        the error (`benchmarks/solvers.py`).
        """
        if self.revive and (not has_one_layer(problem.network) or walks_through_loss(problem)):
            raise ValueError(
                f"`kinks` = {self} is for an fl.ReLUNetwork with one hidden layer and a loss "
                "without kinks, where it is known when a dead unit revives; leave out `revive`."
            )
        if solver is None:
            fine = len(problem.network.hidden) > 1 and rtol <= 1e-9
            return DOPRI8 if fine else _low_order_solver(rtol), DEFAULT_REASON
        if not is_explicit(solver):
            raise ValueError(
                "`ExactKinks` walks with explicit Runge-Kutta solvers such as diffrax.Tsit5(); "
                f"with `solver` = {type(solver).__name__} use `kinks=fl.SmoothKinks(1e-4)`."
            )
        return solver, ASKED_REASON

    def wrap_solver(
        self, problem, solver, allowed, capacity, loop, starts_at_kink
    ) -> ExactWalk | HeldWalk:
        """Wrap the solver in a walk by the rule for the network's depth.

        The stiff solver of a walk that has settled holds the sides.
        """
        rule = choose_switching(problem, self.slots, loop, starts_at_kink)
        if isinstance(solver, RKC):
            return HeldWalk(solver, rule.flow)
        assert is_explicit(solver)
        return ExactWalk(Explicit(solver), rule, allowed, capacity, loop_kind=loop)

    def remedy(self, network: AbstractModel) -> str:
        """Advise to take more digits."""
        if network.dtype == jnp.float64:
            return ""
        return f"; events may be too close for float32; before any array is made: {ENABLE_X64}"


def has_one_layer(network: AbstractModel) -> bool:
    """Tell whether a network is a ReLU network with one hidden layer."""
    return isinstance(network, ReLUNetwork) and len(network.hidden) == 1


def revives(kinks: AbstractKinks | None) -> bool:
    """Tell whether a policy revives dead units, for which a run integrates their C."""
    return isinstance(kinks, ExactKinks) and kinks.revive


IGNORED = IgnoreKinks()

CHECKS_BY_NAME["kinks"] = instance_of(
    AbstractKinks, "an object such as fl.ExactKinks()", "or fl.SmoothKinks(1e-4)"
)


def warn_unknown_kinks(why: str) -> None:
    """Warn of a model that is integrated across kinks of which nothing is known."""
    warn_user(
        f"where the model has kinks is not known: {why}. It is integrated across them, and where "
        "its flow slides on one its steps shrink without end. Pass `kinks=fl.IgnoreKinks()` to "
        "choose that.",
        KinksWarning,
    )


class KinksWarning(UserWarning):
    """A run treats its kinks otherwise than exactly without being told to, or than it was told."""


class WalkCost(NamedTuple):
    """The cost of an exact walk, as far as it is known at t = 0.

    - `pairs`: (unit, sample) pairs.
    - `events`: the switches to expect, for small weights; large ones have fewer.
    - `numbers`: what a step to an event moves: preactivations and parameters.
    """

    pairs: int
    events: int
    numbers: int

    def verdict(self, averages: bool) -> tuple[bool, str]:
        """Tell whether to walk, and why; `averages` tells whether averaged gates could take over.

        They take one to five thousand evaluations whatever the events. Where they cannot, what is
        left is plain integration, and a long walk is better.
        """
        if self.pairs > MANY_PAIRS:
            return False, f"{self.pairs} (unit, sample) pairs, more than {MANY_PAIRS}"
        about = f"about {self.events} events to expect of {self.pairs} (unit, sample) pairs"
        if averages and self.events * self.numbers > MANY_NUMBERS:
            return False, f"{about}, each of which moves {self.numbers} numbers"
        return True, about


def walk_cost(problem: Problem) -> WalkCost:
    """Estimate the cost of an exact walk by sizes alone, so that traced runs choose alike.

    Each event ends a step, and the steps take some 18 evaluations of the velocity per event, each
    of which moves the preactivations of all pairs and all parameters.
    """
    pairs = pair_count(problem)
    parameters = sum(a.size for a in jax.tree.leaves(problem.network.parameters))
    return WalkCost(pairs, math.ceil(EVENTS_PER_PAIR * pairs), pairs + parameters)


def places_of_kinks(network: AbstractModel) -> str:
    """Return where a module's kinks are, to follow a reason; nothing for other networks."""
    known, where = network.facts.kinks, network.facts.kinks_because
    return f"; {where}" if known == "known" else ""


def choose_kinks(
    problem: Problem, solver: diffrax.AbstractSolver | None
) -> tuple[AbstractKinks, str]:
    """Choose the policy for a run that was given none, and say why.

    Warns where that is not `ExactKinks`. Its border was measured by `benchmarks/border.py`: at a
    parameter error of 1e-6 plain integration takes more than ten times as long or does not get
    there, up to the 5,120 pairs tried; at 1e-4 it is the faster one from about 2,000 pairs on with
    Gaussian data, and with digits at all sizes. Averaged gates, for one hidden layer, are the
    faster ones from some hundred events on, to four or five digits; there the border is where a
    walk takes some half a minute.

    For several hidden layers and modules the border is that of the pairs: up to the 5,120 pairs
    tried neither plain integration nor smoothing gets to 1e-6, and descent takes 4 to 150 times as
    long. At 1e-4 smoothing is the faster one with digits and at 5,120 pairs, plain integration
    nowhere. Beyond, gates are averaged (`benchmarks/averaged_graph.py`).
    """
    network, averages = problem.network, solver is None and has_known_kinks(problem.network)
    walks, why = walk_cost(problem).verdict(averages and has_one_layer(network))
    if not walks:
        kinks = AveragedKinks() if averages else IGNORED
    elif not (solver is None or is_explicit(solver)):
        kinks, why = SmoothKinks(), f"{type(solver).__name__} is not an explicit Runge-Kutta method"
    else:
        return ExactKinks(), why
    warn_user(
        f"the kinks are not walked through exactly but by {kinks}: {why}"
        f"{places_of_kinks(network)}. Pass `kinks` to choose yourself.",
        KinksWarning,
    )
    return kinks, why
