"""How a ReLU flow treats its kinks, the sets z = 0 of the (unit, sample) pairs."""

import abc

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from flowlin._tools.checks import WORDS, checked, instance, known, positive, whole
from flowlin._tools.types import Activation
from flowlin._tools.warning import warn
from flowlin.network.kinds import AbstractNetwork, ReLUNetwork
from flowlin.tasks.task import Task

MANY_PAIRS = 10_000  # (unit, sample) pairs beyond which each one's switches are too many


class AbstractKinks(eqx.Module):
    """Base class of the ways to treat kinks.

    A pair counts as off for z < -width, on for z > width, and at its kink in between.
    """

    @property
    @abc.abstractmethod
    def width(self) -> float:
        """Half the width of what counts as the kink."""

    @abc.abstractmethod
    def activation(self, network: AbstractNetwork) -> Activation:
        """The activation that the flow uses in place of the network's own."""


@checked
class IgnoreKinks(AbstractKinks):
    """Integrate plainly across the kinks, leaving them to the step size control.

    Right for networks whose kinks are few or far between. A biased ReLU network's flow slides on
    its kinks; there the plain integrator chatters and its steps shrink without end.
    """

    @property
    def width(self) -> float:
        """No width: a pair is on or off."""
        return 0.0

    def activation(self, network: AbstractNetwork) -> Activation:
        """The network's own activation."""
        return network.activation


@checked(width=known(positive))
class SmoothKinks(AbstractKinks):
    r"""Round each kink off over |z| < width by a quadratic.

    $$\sigma_w(z) = \frac{(z + w)^2}{4 w} \quad (|z| < w), \qquad \max(z, 0) \text{ outside}.$$

    What is integrated is the exact gradient flow **of the smoothed network**: its loss still
    falls. Against the ReLU network the parameters are off by an amount that shrinks about linearly
    with the width, and so are the quantities that a ReLU unit conserves; a sliding pair becomes
    one that hovers inside |z| < w.

    **Arguments:**

    - `width`: w > 0, in units of the preactivation. Small against the preactivations' scale;
      steps grow about as 1/w where pairs slide.

    **Raises:** `ValueError` for a width that is not positive.
    """

    width: float = eqx.field(static=True, default=1e-4)  # pyright: ignore

    def activation(self, network: AbstractNetwork) -> Activation:
        """Smoothed ReLU (leaky where the network is); other networks have no kinks."""
        if not isinstance(network, ReLUNetwork):
            return network.activation
        w, slope = self.width, network.slope

        def smooth(layer: int, z: Array) -> Array:
            del layer
            rounded = jnp.where(z > 0, z, 0.0)
            inside = jnp.abs(z) < w
            rounded = jnp.where(inside, (jnp.where(inside, z, 0.0) + w) ** 2 / (4 * w), rounded)
            return slope * z + (1 - slope) * rounded

        return smooth


@checked
class AveragedKinks(AbstractKinks):
    r"""Average every gate over the step instead of stepping to its switches.

    For ReLU (and leaky ReLU) networks with one hidden layer and too many (unit, sample) pairs to
    walk exactly. Each switch within a step costs an ordinary method an error of first order in
    the step's length; averaged, the order is two, at two evaluations a step: see
    `flowlin.solvers.averaged.AveragedGates`, which is the run's solver (`solver` must be None).

    Below `rtol` = 1e-5, the default in float64, the steps creep from switch to switch, so a finer
    `rtol` is floored there, with a `KinksWarning`.

    `flow.stats["accepted_evaluations"]` counts pairs of large products of accepted steps.
    `flow.stats["grazing_margin"]` says how nearly a pair missed a kink that repels (one with
    $C_{ji} = a_j \cdot e_i > 0$, which drives z up if on): the smallest
    $|z_{ji}| / (|\tilde w_j| |\tilde x_i|)$, with $\tilde w = [b; w]$ and $\tilde x = [c; x]$, of
    such pairs at their nearest in a step that they began towards the kink and ended away from it on
    the same side; inf if none did. The flow depends discontinuously on its start there: a relative
    error of the unit's weights beyond the margin can send the pair to the other side for good.

    **Raises:** (by `gradient_flow`) `ValueError` for several hidden layers, or with a `solver`.
    """

    @property
    def width(self) -> float:
        """No width: a pair is on or off."""
        return 0.0

    def activation(self, network: AbstractNetwork) -> Activation:
        """The network's own activation."""
        return network.activation


@checked(slots=whole(1))
class ExactKinks(AbstractKinks):
    """Walk through the kinks exactly: every gate switches at a located event.

    Between events each (unit, sample) gate is off, on or sliding, and the flow is that of a gated
    linear network whose sliding pairs are held at their kinks; at an event Filippov's rule
    chooses the gates. Limited by the solver's tolerance alone, so `rtol` means what it says.

    For ReLU (and leaky ReLU) networks. Work grows with the number of events, roughly as units x
    samples. With several hidden layers the walk goes on until a sample slides in two layers at
    once: there the fractions of the gates multiply, and the flow that descent tends to is not
    known to be unique. The run stops with `RESULTS.slides_in_two_layers`.
    `flow.stats["accepted_evaluations"]` counts evaluations of the velocity in accepted steps.

    **Arguments:**

    - `slots`: how many pairs of one unit may slide at once, or in a network of several hidden
      layers a quarter of the pairs that may; a run that needs more stops with
      `RESULTS.slide_overflow`.

    **Raises:** `ValueError` for fewer than one slot.
    """

    slots: int = eqx.field(static=True, default=16)

    @property
    def width(self) -> float:
        """No width: a sliding pair is at its kink itself."""
        return 0.0

    def activation(self, network: AbstractNetwork) -> Activation:
        """The network's own activation."""
        return network.activation


WORDS["kinks"] = instance(
    AbstractKinks, "an object such as fl.ExactKinks()", "or fl.SmoothKinks(1e-4)"
)


class KinksWarning(UserWarning):
    """A run treats its kinks otherwise than exactly without being told to, or than it was told."""


def suitable_kinks(
    network: AbstractNetwork, task: Task, solver: diffrax.AbstractSolver | None
) -> tuple[AbstractKinks, str]:
    """The kinks for a run that was given none, and why.

    Warns where that is not `ExactKinks`. Its border was measured by `benchmarks/border.py`: at a
    parameter error of 1e-6 plain integration takes more than ten times as long or does not get
    there, up to the 5,120 pairs tried; at 1e-4 it is the faster one from about 2,000 pairs on with
    Gaussian data, and with digits at all sizes.
    """
    if not isinstance(network, ReLUNetwork):
        return IgnoreKinks(), "the network has no kinks"
    pairs, depth = sum(network.hidden) * task.samples, len(network.hidden)
    if pairs > MANY_PAIRS:
        averaged = depth == 1 and solver is None
        kinks = AveragedKinks() if averaged else IgnoreKinks()
        why = f"{pairs} (unit, sample) pairs, more than {MANY_PAIRS}"
    elif depth > 1:
        kinks, why = SmoothKinks(), f"{depth} hidden layers, where samples slide in two at once"
    elif not (solver is None or isinstance(solver, diffrax.AbstractERK)):
        kinks, why = SmoothKinks(), f"{type(solver).__name__} is not an explicit Runge-Kutta method"
    else:
        return ExactKinks(), f"one hidden layer and {pairs} (unit, sample) pairs"
    warn(
        f"the kinks are not walked through exactly but by {kinks}: {why}. Pass `kinks` to choose "
        "yourself.",
        KinksWarning,
    )
    return kinks, why
