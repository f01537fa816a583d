r"""Derivatives of events as design: initial weights for a prescribed order of learning, or for a
prescribed linear phase. See: from A to B the tree's levels change places, and cross half of their
strength at the times that were asked for (crosses). In C t* breaks off and goes on elsewhere; the
time at which ten units are linear (dotted) does not.

    python examples/studies/design.py [--quick] [--out FOLDER]

A located event has a derivative with respect to everything that the flow starts from, by the
implicit function theorem: z(t, w) = level gives dt/dw = -(dz/dw) / (dz/dt). So a wish about times
is a system of equations that Levenberg and Marquardt's method (optimistix) solves in a few runs,
with the flow's own Jacobian in forward mode.

1. A linear network on the tree learns the root first, then halves, quarters and siblings. Here the
   initial weights are scaled, one factor per mode, until the order is reversed, each level at a
   time that is given. Descent, which knew nothing of it, is then run from those weights.
2. A ReLU network's c and the scale of its initial weights are chosen so that t* (open) and the
   loss's half-time have given values.
3. t* is the time of the gate that makes the always-on count largest, an argmax over the run: along
   a line in weight space it is smooth but for jumps, where two maxima are equal. A derivative says
   nothing of them. The time of a fixed gate (the first that makes k units linear) has none there.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optimistix as optx
from _studies import Study, fl
from tqdm import tqdm

TASK = fl.tasks.hierarchy(levels=3)
LEVELS = (1, 1, 2, 4)  # modes of the root, halves, quarters, siblings
NAMES = ("root", "halves", "quarters", "siblings")
HOW: dict[str, Any] = {"observe": {}, "max_steps": 2048, "max_events": 512}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `reversed_times`: when each level's modes shall reach half of their strength.
    - `rates`: of the descents that check.
    - `phase`: t* and the half-time of the loss that are asked for; None leaves ReLU networks out.
    - `points`, `lines`: of the lines along which t* is followed.
    """

    reversed_times: tuple[float, ...] = (24.0, 20.0, 16.0, 8.0)
    rates: tuple[float, ...] = (1e-2, 2.5e-3, 6.25e-4)
    phase: tuple[float, float] | None = (3.0, 9.0)
    points: int = 161
    lines: int = 8


class Solved(NamedTuple):
    """A wish and what came of it.

    - `wanted`, `before`, `after`: times, by what was asked for.
    - `steps`: of the least-squares solver.
    - `found`: the parameters.
    - `descents`: by rate the times of descent from there.
    - `derivative`: relative error of the Jacobian against central differences.
    """

    wanted: np.ndarray
    before: np.ndarray
    after: np.ndarray
    steps: int
    found: np.ndarray
    descents: dict[float, np.ndarray]
    derivative: float


def solved(times: Callable[[Any], Any], start: Any, wanted: np.ndarray) -> dict[str, Any]:
    """Parameters whose times are those wanted, and how good the Jacobian is at the start."""
    run = jax.jit(times)
    jacobian = np.asarray(jax.jit(jax.jacfwd(times))(start))
    near = 1e-5 * np.eye(len(start))
    brute = np.stack([(run(start + d) - run(start - d)) / 2e-5 for d in near], axis=1)
    answer = optx.least_squares(
        lambda at, _: times(at) - wanted,
        optx.LevenbergMarquardt(rtol=1e-10, atol=1e-10),
        start,
        options={"jac": "fwd"},
        max_steps=64,
    )
    return {
        "wanted": wanted,
        "before": np.asarray(run(start)),
        "after": np.asarray(run(answer.value)),
        "steps": int(answer.stats["num_steps"]),
        "found": np.asarray(answer.value),
        "derivative": float(np.max(np.abs(jacobian - brute)) / np.max(np.abs(jacobian))),
    }


# 1. The order of learning


def linear() -> tuple[fl.LinearNetwork, fl.theory.Modes]:
    """A small network at random, and the modes that have data."""
    network = fl.LinearNetwork.init(TASK, 16, variance=1e-3, bias=False, key=jax.random.key(0))
    return network, fl.theory.modes(TASK, network)


def rescaled(factors: Any) -> fl.LinearNetwork:
    """Both hidden vectors of every mode times exp(factor), all else as it was."""
    network, modes = linear()
    first, second = network.weights
    u, v, more = modes.u[:, : sum(LEVELS)], modes.v[:, : sum(LEVELS)], jnp.expm1(factors)
    return fl.LinearNetwork(
        (first + (first @ v) * more @ v.T, second + (u * more) @ (u.T @ second)),
        network.biases,
        network.bias_strength,
    )


def half_times(factors: Any, **how: Any) -> Any:
    """When each mode is half learned, in units of tau."""
    return mode_run(rescaled(factors), **how).events.first("mode")[: sum(LEVELS)]


def mode_run(network: fl.LinearNetwork, **how: Any) -> fl.Trajectory:
    """A flow with its hits."""
    how = HOW | {"adjoint": diffrax.ForwardMode()} | how
    return fl.gradient_flow(network, TASK, 40.0, events=(hits(),), **how)


def hits() -> fl.ModeHits:
    """Half of full strength."""
    return fl.ModeHits(linear()[1], share=0.5)


def reversed_order(size: Size) -> Solved:
    """Siblings first, root last."""
    wanted = np.repeat(size.reversed_times, LEVELS)
    found = solved(half_times, jnp.zeros(len(wanted)), wanted)
    start, descents = rescaled(jnp.asarray(found["found"])), {}
    for rate in size.rates:
        descent = fl.gradient_descent(
            start, TASK, rate, t1=40.0, events=(hits(),), observe={}, interpolate=True
        )
        descents[rate] = np.asarray(descent.events.first("mode"))[: len(wanted)]
    return Solved(descents=descents, **found)


# 2. and 3. The linear phase


def biased(seed: int = 0) -> fl.ReLUNetwork:
    """The paper's initial weights, 16 units."""
    return fl.ReLUNetwork.init(TASK, 16, 2e-4, bias=True, key=jax.random.key(seed))


def chosen(at: Any) -> fl.ReLUNetwork:
    """With c = exp(at[0]), weights and biases times exp(at[1])."""
    c, scale = jnp.exp(at[0]), jnp.exp(at[1])
    network = biased()
    weights = [scale * w for w in network.weights]
    biases = [b if b is None else scale * b for b in network.biases]
    return fl.ReLUNetwork(weights, biases, bias_strength=c)


def phase(at: Any) -> Any:
    """t* (open), and when the loss is half of the initial one."""
    events = (fl.LossBelow(0.5 * initial_loss()),)
    how: dict[str, Any] = HOW | {"adjoint": diffrax.ForwardMode()}
    flow = fl.gradient_flow(chosen(at), TASK, 60.0, events=events, **how)
    return jnp.stack([flow.linearization().open.time, flow.events.first("loss")])


def initial_loss() -> float:
    """Of a network that is zero."""
    return 0.5 * float(np.mean(np.sum(np.asarray(TASK.y) ** 2, axis=1)))


def prescribed_phase(size: Size) -> Solved:
    """c and scale for a wanted phase."""
    assert size.phase is not None
    found = solved(phase, jnp.zeros(2), np.array(size.phase))
    network, descents = chosen(jnp.asarray(found["found"])), {}
    for rate in size.rates:
        w = round(3 * rate**-0.5)
        events = (fl.LossBelow(0.5 * initial_loss()), fl.UnitSwitches(window=w))
        descent = fl.gradient_descent(
            network, TASK, rate, t1=60.0, events=events, observe={}, interpolate=True
        )
        t_star = descent.linearization(window=w).open.time
        descents[rate] = np.array([t_star, descent.events.first("loss")])
    return Solved(descents=descents, **found)


class Line(NamedTuple):
    """Along a line in weight space, per point.

    - `at`: the share of the norm of the initial weights that they are moved by.
    - `t_star`, `slope`: t* (open) and its derivative; `count`: units that are always on then.
    - `reached`: when so many units were first linear as at every point of the line.
    """

    at: np.ndarray
    t_star: np.ndarray
    slope: np.ndarray
    count: np.ndarray
    reached: np.ndarray


def line(seed: int, points: int) -> Line:
    """t* of networks along a random direction."""
    network = biased()
    rng = np.random.default_rng(seed)
    away = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), network.parameters)
    norm = jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(network.parameters)))
    length = jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(away)))
    at = np.linspace(-0.3, 0.3, points)
    found = [_along(network, away, float(norm / length), s) for s in at]
    t_star, slope, counts = zip(*found, strict=True)
    fewest = min(count.on.max() for count in counts)
    reached = [c.time[np.argmax(c.on >= fewest)] for c in counts]
    return Line(at, np.array(t_star), np.array(slope),
                np.array([c.on.max() for c in counts]), np.array(reached))  # fmt: skip


@jax.jit
def _along(network: fl.ReLUNetwork, away: Any, unit: float, s: float) -> Any:
    """t*, its derivative along the line, and the counts it is read from."""

    def run(s: Any) -> Any:
        moved = jax.tree.map(lambda a, b: a + s * unit * b, network.parameters, away)
        flow = fl.gradient_flow(
            network.with_parameters(moved), TASK, 60.0, adjoint=diffrax.ForwardMode(), **HOW
        )
        found = flow.linearization()
        return found.open.time, found.open_counts

    (t_star, counts), (slope, _) = jax.jvp(run, (s,), (1.0,))
    return t_star, slope, counts


def jumps(found: Line) -> np.ndarray:
    """Where t* moves by more than five times what its slopes at both ends allow (points - 1,)."""
    step = np.diff(found.at)
    allowed = np.maximum(np.abs(found.slope[1:]), np.abs(found.slope[:-1])) * step
    return np.abs(np.diff(found.t_star)) > 5 * allowed + 1e-3


def slope_error(found: Line) -> float:
    """Median relative error of central differences against derivatives, away from jumps."""
    smooth = ~(jumps(found)[1:] | jumps(found)[:-1])
    brute = (found.t_star[2:] - found.t_star[:-2]) / (found.at[2:] - found.at[:-2])
    apart = np.abs(brute - found.slope[1:-1]) / np.abs(found.slope[1:-1])
    return float(np.median(apart[smooth]))


# What came of it


@dataclasses.dataclass
class Data:
    """All that was found; None where it was left out."""

    size: Size
    order: Solved
    phase: Solved | None
    lines: list[Line]


def compute(size: Size) -> Data:
    """Everything."""
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    order = reversed_order(size)
    if size.phase is None:
        return Data(size, order, None, [])
    wanted = prescribed_phase(size)
    lines = [line(seed, size.points) for seed in tqdm(range(size.lines), desc="lines")]
    return Data(size, order, wanted, lines)


def findings(data: Data) -> list[str]:
    """In sentences."""
    lines = [told("order of learning reversed", data.order)]
    if data.phase is not None:
        c, scale = np.exp(data.phase.found)
        lines.append(told(f"linear phase, c = {c:.4g}, scale {scale:.4g}", data.phase))
        number = [int(jumps(found).sum()) for found in data.lines]
        errors = [slope_error(found) for found in data.lines]
        counted = [np.sum(jumps(x) & (np.diff(x.count) != 0)) for x in data.lines]
        lines.append(
            f"t* along {len(number)} random lines of 0.6 of the weights' norm: jumps per line "
            f"{np.mean(number):.3g} (0 in {number.count(0)}), {sum(counted)} of {sum(number)} with "
            "another maximum of the count; elsewhere central differences of the points differ from "
            f"the derivative by {np.median(errors):.1e} in the median"
        )
    return lines


def told(what: str, found: Solved) -> str:
    """A wish and what came of it."""
    text = (
        f"{what}: {found.steps} steps of Levenberg-Marquardt, then off by at most "
        f"{np.max(np.abs(found.after - found.wanted)):.1e} (before "
        f"{np.max(np.abs(found.before - found.wanted)):.3g}); Jacobian against differences "
        f"{found.derivative:.1e}; descent off by at most "
    )
    return text + ", ".join(
        f"{np.max(np.abs(times - found.wanted)):.2g} at rate {rate:g}"
        for rate, times in found.descents.items()
    )


def draw(data: Data) -> plt.Figure:
    """Modes before and after; t* along a line."""
    few = data.phase is None
    figure, axes = plt.subplots(1, 2 if few else 3, figsize=(7.6 if few else 10.2, 3.6))
    _, modes = linear()
    ts = np.linspace(0, 40, 401)
    for ax, factors, title in (
        (axes[0], np.zeros(sum(LEVELS)), "A. As drawn at random"),
        (axes[1], data.order.found, "B. Designed: the order reversed"),
    ):
        flow = fl.gradient_flow(rescaled(jnp.asarray(factors)), TASK, 40.0, ts=ts)
        shares = np.asarray(flow.along(modes.strengths) / modes.full_strength)
        for k, name in enumerate(NAMES):
            mine = shares[:, sum(LEVELS[:k]) : sum(LEVELS[: k + 1])]
            ax.plot(ts, mine, "-", color=fl.plot.shades("linear", 5)[k + 1])
            ax.plot([], [], "-", color=fl.plot.shades("linear", 5)[k + 1], label=name)
        ax.set(xlabel=r"flow time ($\tau$)", title=title, ylim=(-0.05, 1.35))
    axes[0].set_ylabel("mode strength over its full strength")
    axes[0].legend(fontsize="small", frameon=False, ncols=2, loc="upper center")
    axes[1].plot(data.order.wanted, np.full(sum(LEVELS), 0.5), "k+", markersize=9,
                 label="asked for")  # fmt: skip
    rate = min(data.order.descents)
    last = data.order.descents[rate]
    axes[1].plot(last, np.full(sum(LEVELS), 0.5), "o", color="black", markersize=5,
                 markerfacecolor="none", label=f"descent, rate {rate:g}")  # fmt: skip
    axes[1].legend(fontsize="small", frameon=False, loc="upper center", ncols=2, handlelength=1.2,
                   columnspacing=1.0)  # fmt: skip
    if not few:
        _draw_line(axes[2], max(data.lines, key=lambda found: jumps(found).sum()))
    return figure


def _draw_line(ax: plt.Axes, found: Line) -> None:
    colour = fl.plot.COLOURS["relu"]
    pieces = np.split(np.arange(len(found.at)), np.flatnonzero(jumps(found)) + 1)
    for k, piece in enumerate(pieces):
        ax.plot(found.at[piece], found.t_star[piece], "-", color=colour,
                label="$t^*$ (open)" if k == 0 else None)  # fmt: skip
        if len(piece) < 5:
            continue
        middle = piece[len(piece) // 2]
        near = 0.03 * np.array([-1, 1])
        ax.plot(found.at[middle] + near, found.t_star[middle] + found.slope[middle] * near, "-",
                color="black", linewidth=1.2, label="derivative" if k == 0 else None)  # fmt: skip
    ax.plot(found.at, found.reached, ":", color=fl.plot.COLOURS["gated"],
            label=f"{int(found.count.min())} units are linear")  # fmt: skip
    ax.set(xlabel="along a line, in shares of the weights' norm", ylabel=r"time ($\tau$)",
           title="C. $t^*$ jumps, a gate's time does not")  # fmt: skip
    ax.set_ylim(top=1.35 * ax.get_ylim()[1])
    ax.legend(fontsize="small", frameon=False, loc="upper center", ncols=2)


STUDY = Study(
    name="design",
    quick=Size(rates=(1e-2,), phase=None),
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main(__doc__)
