"""How a ReLU flow treats its kinks, the sets z = 0 of the (unit, sample) pairs."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from flowlin._arrays import require_positive
from flowlin.network import AbstractNetwork, Activation, ReLUNetwork


class AbstractKinks(eqx.Module):
    """Base class of the ways to treat kinks.

    A pair counts as off for z < -width, on for z > width, and at its kink in between.
    """

    @property
    def width(self) -> float:
        """Half the width of what counts as the kink."""
        raise NotImplementedError

    def activation(self, network: AbstractNetwork) -> Activation:
        """The activation that the flow uses in place of the network's own."""
        raise NotImplementedError


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

    def __check_init__(self):
        require_positive("width", self.width)

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


class ExactKinks(AbstractKinks):
    """Walk through the kinks exactly: every gate switches at a located event.

    Between events each (unit, sample) gate is off, on or sliding, and the flow is that of a gated
    linear network whose sliding pairs are held at their kinks; at an event Filippov's rule
    chooses the gates. Limited by the solver's tolerance alone, so `rtol` means what it says.

    For ReLU (and leaky ReLU) networks with one hidden layer. Work grows with the number of
    events, roughly as units x samples.

    **Arguments:**

    - `slots`: how many pairs of one unit may slide at once; a run that needs more stops with
      `RESULTS.slide_overflow`.

    **Raises:** `ValueError` for fewer than one slot.
    """

    slots: int = eqx.field(static=True, default=16)

    def __check_init__(self):
        if self.slots < 1:
            raise ValueError(f"`slots` must be at least 1, got {self.slots}.")

    @property
    def width(self) -> float:
        """No width: a sliding pair is at its kink itself."""
        return 0.0

    def activation(self, network: AbstractNetwork) -> Activation:
        """The network's own activation."""
        return network.activation
