r"""A second exact walk through the kinks of a network with one hidden ReLU layer, in plain NumPy.

It shares nothing with flowlin but the mathematics: SciPy's DOP853, event times by bisection on a
grid of each step, and Filippov's rule by trying all choices of gates.

With $\tilde w_j = [b_j; w_j]$ and $\tilde x_i = [c; x_i]$ the network is
$z_{ji} = \tilde w_j \cdot \tilde x_i$, $h_{ji} = \gamma_{ji} z_{ji}$,
$\hat y_i = \sum_j a_j h_{ji}$,
where the gate $\gamma$ is 1 for z > 0 and the slope s for z < 0. The loss is the mean over samples
of $|y_i - \hat y_i|^2 / 2$. So, with $e_i = (y_i - \hat y_i) / P$ and $C_{ji} = a_j \cdot e_i$, the
flow is

$$\dot{\tilde w}_j = \sum_i \gamma_{ji} C_{ji} \tilde x_i, \quad \dot a_j = \sum_i h_{ji} e_i.$$

Where $z_{ji} = 0$ the gate is not defined, but h is continuous: only the velocity of unit j's own
weights jumps, by $(1 - s) C_{ji} \tilde x_i$ from off to on. A. F. Filippov (Differential Equations
with Discontinuous Righthand Sides, 1988, section 4) admits all mixtures of the velocities on
either side: gates $s + (1 - s) \theta$, $0 \le \theta \le 1$. For the pairs S of a unit at their
kinks,

$$\dot z_k = q_k + \sum_{l \in S} (1 - s) C_l \theta_l \, \tilde x_k \cdot \tilde x_l,$$

q with all of S off, and a flow goes on where each of them turns on ($\theta = 1$, $\dot z \ge 0$),
turns off ($\theta = 0$, $\dot z \le 0$), or slides: $\dot z = 0$, which is a linear system for the
$\theta$ of those that slide. Of the $3^{|S|}$ choices that one is taken which keeps these bounds;
for C < 0 they are the optimality conditions of a convex quadratic program in $C \theta$, and the
velocity is unique. For C > 0 both sides push away from the kink, and the pair crosses. A pair ends
its slide where its $\theta$ leaves [0, 1], on that side.

Samples with $\tilde x_i = \alpha_i \tilde x_r$ have one kink: those with $\alpha < 0$ have the gate
of $1 - \theta$, and what jumps is $(1 - s) \sum_i |\alpha_i| C_{ji} \tilde x_r$. Sample r leads.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy.integrate
import scipy.optimize

RTOL, ATOL = 1e-11, 1e-13
TINY = 1e-13, 1e-11  # by which z, or theta, falls below zero, or below where it starts, at an event
GRID = np.linspace(0, 1, 17)[1:]  # of a step, where it is looked whether a margin has fallen


class Walk(NamedTuple):
    """Switches (time, unit, sample, old side, new side), and weights at the times asked for."""

    switches: list[tuple[float, int, int, int, int]]
    hidden: np.ndarray  # (T, H, N), without the biases
    biases: np.ndarray | None  # (T, H)
    readout: np.ndarray  # (T, N_out, H)

    @property
    def slides(self) -> int:
        """How often a pair began to slide."""
        return sum(new == 0 for *_, new in self.switches)


class Flow:
    """Velocity and margins at given sides: 1 on, -1 off, 0 sliding, (H, P) as the leaders have."""

    def __init__(self, network: Any, task: Any):
        x, self.y = np.asarray(task.x, float), np.asarray(task.y, float)
        self.biased, self.slope = network.biases[0] is not None, float(network.slope)
        constant = np.full((len(x), 1), float(network.bias_strength))
        self.x = np.concatenate([constant, x], axis=1) if self.biased else x
        self.units = len(network.weights[0])
        self.leader, self.scale = np.arange(len(x)), np.ones(len(x))
        for i, r in itertools.combinations(range(len(x)), 2):
            alpha = self.x[r] @ self.x[i] / (self.x[i] @ self.x[i])
            if self.leader[r] == r and np.allclose(self.x[r], alpha * self.x[i], atol=1e-14):
                self.leader[r], self.scale[r] = i, alpha
        self.leads = self.leader == np.arange(len(x))

    def start(self, network: Any) -> np.ndarray:
        """The state: all of w~ and a, flat."""
        hidden, readout = (np.asarray(w, float) for w in network.weights)
        if self.biased:
            hidden = np.concatenate([np.asarray(network.biases[0])[:, None], hidden], axis=1)
        return np.concatenate([hidden.ravel(), readout.ravel()])

    def split(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The arrays w~ (H, N) and a (N_out, H)."""
        cut = self.units * self.x.shape[1]
        return state[:cut].reshape(self.units, -1), state[cut:].reshape(-1, self.units)

    def preactivations(self, state: np.ndarray) -> np.ndarray:
        """z (H, P)."""
        return self.split(state)[0] @ self.x.T

    def of_samples(self, sides: np.ndarray) -> np.ndarray:
        """Sides of all samples from those of the leaders."""
        return sides[:, self.leader] * np.sign(self.scale).astype(int)

    def forces(self, state: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, ...]:
        """Velocity of w~ with all that slide off, the jumps of its kinks, and velocity of a."""
        w, a = self.split(state)
        own = self.of_samples(np.where(sides == 0, -1, sides))
        gates = np.where(own > 0, 1.0, self.slope)
        h = gates * (w @ self.x.T)
        e = (self.y - h.T @ a.T) / len(self.y)
        c = a.T @ e.T
        jumps = np.zeros_like(c)
        np.add.at(jumps.T, self.leader, (1 - self.slope) * (np.abs(self.scale) * c).T)
        return (gates * c) @ self.x, jumps, e.T @ h.T

    def pressed(self, force: np.ndarray, slides: np.ndarray) -> np.ndarray:
        """Jump times theta of these kinks of one unit that keep them at z = 0."""
        x = self.x[slides]
        return np.linalg.lstsq(x @ x.T, -x @ force, rcond=1e-10)[0]

    def velocity(self, state: np.ndarray, sides: np.ndarray) -> np.ndarray:
        """Of the state."""
        force, _, readout = self.forces(state, sides)
        for unit in np.flatnonzero(np.any(sides == 0, axis=1)):
            slides = sides[unit] == 0
            force[unit] += self.pressed(force[unit], slides) @ self.x[slides]
        return np.concatenate([force.ravel(), readout.ravel()])

    def margins(self, state: np.ndarray, sides: np.ndarray) -> np.ndarray:
        """How far each kink is from an event, (2, H, P): |z| and 1, or theta and 1 - theta."""
        force, jumps, _ = self.forces(state, sides)
        found = np.stack([sides * self.preactivations(state), np.ones(sides.shape)])
        for unit in np.flatnonzero(np.any(sides == 0, axis=1)):
            slides = sides[unit] == 0
            theta = self.pressed(force[unit], slides) / jumps[unit, slides]
            found[:, unit, slides] = theta, 1 - theta
        return np.where(self.leads, found, 1.0)

    def decided(self, state: np.ndarray, sides: np.ndarray, event: tuple[int, ...]) -> np.ndarray:
        """Sides after an event (which margin, unit, sample), by trying all choices."""
        which, unit, sample = event
        force, jumps, _ = self.forces(state, sides)
        sides, slid = sides.copy(), sides[unit, sample] == 0
        if slid:
            sides[unit, sample] = 1 if which else -1
        elif jumps[unit, sample] >= 0:
            sides[unit, sample] *= -1
        open_ = np.flatnonzero(sides[unit] == 0)
        if not slid and jumps[unit, sample] < 0:
            open_ = np.append(open_, sample)
        base = sides.copy()
        base[unit, open_] = -1
        force = self.forces(state, base)[0][unit]
        jump, x = jumps[unit, open_], self.x[open_]
        rated = []
        for choice in itertools.product((-1, 0, 1), repeat=len(open_)):
            choice = np.array(choice, int)
            theta, still = (choice > 0).astype(float), choice == 0
            if np.any(still):
                pushed = force + (theta * jump) @ x
                theta[still] = self.pressed(pushed, open_[still]) / jump[still]
            rates = x @ (force + (theta * jump) @ x)
            wrong = np.concatenate([-choice * rates, -theta, theta - 1, [0.0]])
            rated.append((np.max(wrong), tuple(choice)))
        worst, best = min(rated)
        assert worst < 1e-8, "no choice of sides keeps Filippov's conditions"
        sides[unit, open_] = best
        return sides


def _first_fall(margins: Any, floor: np.ndarray, since: float, until: float) -> Any:
    """The first time at which a margin is at its floor, and whose it is; None if there is none."""
    before = since
    for t in since + (until - since) * GRID:
        fallen = np.argwhere(margins(t) < floor)
        if len(fallen):
            found = []
            for who in map(tuple, fallen):
                gap = lambda t, who=who: margins(t)[who] - floor[who]  # noqa: E731
                found.append((scipy.optimize.brentq(gap, before, t, xtol=1e-14), who))
            return min(found)
        before = t
    return None


def walk(network: Any, task: Any, t1: float, ts: Any = None) -> Walk:
    """The flow of a network that starts off its kinks, up to t1; weights at `ts`, or at t1.

    `network` has `weights`, `biases` of the hidden layer (or None), `bias_strength` and `slope`,
    `task` has `x` and `y`.
    """
    flow = Flow(network, task)
    ts = np.atleast_1d(t1 if ts is None else ts).astype(float)
    state, t, switches, saved = flow.start(network), 0.0, [], []
    sides = np.where(flow.preactivations(state) > 0, 1, -1)
    while t < t1 or not saved:
        floor = np.minimum(flow.margins(state, sides), 0.0) - np.where(sides, *TINY)
        steps = scipy.integrate.DOP853(
            lambda _, y, sides=sides: flow.velocity(y, sides), t, state, t1, rtol=RTOL, atol=ATOL
        )
        event = None
        while event is None and steps.status == "running":
            steps.step()
            path = steps.dense_output()
            event = _first_fall(
                lambda t, path=path, sides=sides: flow.margins(path(t), sides), floor, t, steps.t
            )
            end = steps.t if event is None else event[0]
            saved += [path(s) for s in ts if t < s <= end or s == t == 0.0]
            t, state = end, path(end)
        if event is not None:
            before, sides = sides, flow.decided(state, sides, event[1])
            old, new = flow.of_samples(before), flow.of_samples(sides)
            switches += [(t, *pair, old[*pair], new[*pair]) for pair in np.argwhere(old != new)]
    weights = [flow.split(one) for one in saved]
    hidden, readout = (np.array(part) for part in zip(*weights, strict=True))
    if flow.biased:
        return Walk(switches, hidden[:, :, 1:], hidden[:, :, 0], readout)
    return Walk(switches, hidden, None, readout)
