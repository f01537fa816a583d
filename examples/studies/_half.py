r"""Half of the units learn: by how much later than a linear network a ReLU network learns a mode.

From small weights every unit has, for mode alpha, a part that grows,

$$p_\alpha = (v_\alpha \cdot \tilde w + u_\alpha \cdot w^{out}) / \sqrt 2, \qquad
  \tau \dot p_\alpha = s_\alpha p_\alpha,$$

with its incoming weights and bias $\tilde w$ and its readout $w^{out}$, and in a linear network the
mode's strength is the sum of $p_\alpha^2$ over units up to its hitting time. In a ReLU network with
bias, where the bias mode comes first and is of one sign on all samples, the sign of $p_0$ decides:
units with the one sign come to be on for all samples, and are linear units from then on; those with
the other are off for all, and learn at `slope` times the speed. So of a ReLU network that is
otherwise the linear one

$$\sum_{on} p_\alpha^2 e^{2 s_\alpha t / \tau}
  + m \sum_{off} p_\alpha^2 e^{2 m s_\alpha t / \tau}
  = \sum_{all} p_\alpha^2 e^{2 s_\alpha t_{lin} / \tau}, \qquad \Delta t = t - t_{lin},$$

with the slope m. Without slope that is Eq. 14 with the gate
$g_\alpha = \sum_{on} p_\alpha^2 / \sum_{all} p_\alpha^2$, a number of the initial weights. For
Gaussian ones it has the mean 1/2 and the variance 3 / 4H, so that the mean delay is
$(\tau / 2 s) (\ln 2 + 3 / 2H)$ up to higher orders of 1 / H. With a slope of less than one the
second sum is exponentially behind by the time of the hit: the gate stays near one half, and is not
the mean gate (1 + m) / 2.

What is left out: that the bias mode grows at about half the speed until its units are on, and that
units may still switch later.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import root_scalar

import flowlin as fl


class Parts(NamedTuple):
    """Sums of p^2 over units that will be on, and off, of every mode, (K,) each."""

    on: np.ndarray
    off: np.ndarray


def parts(start: fl.ReLUNetwork | fl.LinearNetwork, modes: Any) -> Parts:
    """The growing parts of a network of one hidden layer with biases, c > 0."""
    u, v = np.asarray(modes.u), np.asarray(modes.v)
    bias = np.asarray(start.biases[0])[:, None]
    incoming = np.concatenate([bias, np.asarray(start.weights[0])], axis=1)
    p = (incoming @ v + np.asarray(start.weights[1]).T @ u) / np.sqrt(2)
    # The sign that the bias mode's preactivations have where the unit is on.
    on = p[:, 0] * v[0, 0] > 0
    return Parts(np.sum(p[on] ** 2, axis=0), np.sum(p[~on] ** 2, axis=0))


def delay(on: float, off: float, s: float, slope: float, linear: float) -> float:
    """Delta t of a mode that the linear network hits at a time, tau = 1; infinite if it does not or
    if no unit is on."""
    if on == 0 or not np.isfinite(linear):
        return np.inf

    def excess(late: float) -> float:
        leaky = slope * off * np.exp(2 * s * (slope * (linear + late) - linear))
        return on * np.exp(2 * s * late) + leaky - on - off

    # Before the linear network there would be too little, without those that are off too much.
    latest = np.log((on + off) / on) / (2 * s) + 1e-9
    return float(root_scalar(excess, bracket=(-linear, latest)).root)
