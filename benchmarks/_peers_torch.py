"""PyTorch contenders: closed-form gradients in float64, no autograd, both cores."""

import importlib
import time
from typing import Any

import numpy as np
from _peers_problems import PATIENCE, Problem

import flowlin as fl
from flowlin.training.statistics import LinearStatistics


class Unfinished(Exception):
    """A run exceeded its limit; what it had spent is the argument."""


def optional(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch, torchdiffeq = optional("torch"), optional("torchdiffeq")
THREADS = (2, 1)


def tensors(problem: Problem) -> list[Any]:
    """The parameters w1, w2 and, where there is one, the hidden bias."""
    (w1, w2), (b1, _) = problem.network.parameters
    return [torch.tensor(np.array(a)) for a in (w1, w2, b1) if a is not None]


def gradients(problem: Problem):
    """Gradients in closed form, as a function of (w1, w2) or (w1, w2, b1)."""
    network = problem.network
    c, biased = float(network.bias_strength), network.biases[0] is not None
    if isinstance(network, fl.LinearNetwork):
        stats = LinearStatistics.from_task(problem.task, fl.SquaredError()).expansion
        arrays = (stats.sigma_x, stats.solution, stats.gradient_at_solution)
        sigma, solution, slope = (torch.tensor(np.array(a)) for a in arrays)

        def linear(w1, w2, b1=None):
            # [c b, W1] maps [1; x]; without a bias its first column is zero and not trained.
            first = torch.zeros(len(w1), 1, dtype=w1.dtype) if b1 is None else c * b1[:, None]
            first = torch.cat([first, w1], dim=1)
            pull = torch.addmm(slope, w2 @ first - solution, sigma)
            back = w2.T @ pull
            return (back[:, 1:], pull @ first.T, *((c * back[:, 0],) if biased else ()))

        return linear
    x, y = (torch.tensor(np.array(a)) for a in (problem.task.x, problem.task.y))

    def relu(w1, w2, b1):
        h = torch.relu(torch.addmm(c * b1, x, w1.T))
        error = (h @ w2.T - y) / len(x)
        back = (error @ w2) * (h > 0)
        return back.T @ x, error.T @ h, c * back.sum(0)

    return relu


def choose_threads(problem: Problem) -> int:
    """Set PyTorch to as many threads as are faster: two of them stall on a machine that is busy."""
    step, parameters, times = gradients(problem), tensors(problem), {}
    for count in THREADS:
        torch.set_num_threads(count)
        with torch.no_grad():
            step(*parameters)
            begin = time.perf_counter()
            for _ in range(30):
                step(*parameters)
        times[count] = time.perf_counter() - begin
    fastest = min(times, key=lambda count: times[count])
    torch.set_num_threads(fastest)
    return fastest


class Velocity:
    """The field of the flat parameters as torchdiffeq wants it; counts, and stops at a limit."""

    def __init__(self, problem: Problem):
        self.gradients = gradients(problem)
        self.shapes = [p.shape for p in tensors(problem)]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.count, self.limit = 0, problem.cap
        self.begin = time.perf_counter()

    def parts(self, y):
        """The parameters as views of the flat vector."""
        pieces = torch.split(y, self.sizes)
        return [p.view(shape) for p, shape in zip(pieces, self.shapes, strict=True)]

    def __call__(self, t, y):
        self.count += 1
        if self.count % 64 == 0 and time.perf_counter() - self.begin > self.limit:
            raise Unfinished(self.count)
        return -torch.cat([g.reshape(-1) for g in self.gradients(*self.parts(y))])


def by_torchdiffeq(problem: Problem, method: str):
    """`odeint` to the final time."""

    def run(rtol):
        velocity = Velocity(problem)
        with torch.no_grad():
            times = torch.tensor([0.0, problem.t1], dtype=torch.float64)
            start = torch.tensor(problem.start)
            found = torchdiffeq.odeint(
                velocity, start, times, rtol=rtol, atol=rtol / 100, method=method
            )
        return found[-1].numpy(), velocity.count

    return run


def hits_by_torchdiffeq(problem: Problem, method: str):
    """`odeint_event` to the next hit, again and again, with the modes that are left."""
    modes = problem.modes
    u, v = (torch.tensor(np.array(a)) for a in (modes.u, modes.v))
    levels = torch.tensor(0.5 * np.asarray(modes.full_strength))

    def run(rtol):
        velocity = Velocity(problem)
        y, t = torch.tensor(problem.start), torch.tensor(0.0, dtype=torch.float64)
        times, left = np.full(len(levels), np.inf), list(range(len(levels)))

        def gap(t, y, which):
            w1, w2 = velocity.parts(y)
            return levels[which] - torch.sum(u[:, which] * (w2 @ (w1 @ v[:, which])), dim=0)

        with torch.no_grad():
            while left:
                which = torch.tensor(left)
                t, found = torchdiffeq.odeint_event(
                    velocity, y, t, event_fn=lambda t, y, which=which: gap(t, y, which),
                    rtol=rtol, atol=rtol / 100, method=method,
                )  # fmt: skip
                y = found[-1]
                hit = left.pop(int(torch.argmin(torch.abs(gap(t, y, which)))))
                times[hit] = float(t)
        return times, velocity.count

    return run


def descent(problem: Problem):
    """Plain full-batch descent, in place."""
    step = gradients(problem)

    def run(rate):
        steps = round(problem.t1 / rate)
        parameters, h = tensors(problem), problem.t1 / steps
        begin = time.perf_counter()
        with torch.no_grad():
            for k in range(steps):
                for p, g in zip(parameters, step(*parameters), strict=True):
                    p.sub_(g, alpha=h)
                if k % 1024 == 0 and time.perf_counter() - begin > PATIENCE * problem.cap:
                    raise Unfinished(k)
        return np.concatenate([p.numpy().ravel() for p in parameters]), steps

    return run
