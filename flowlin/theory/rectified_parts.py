"""The parts of a rectified run: graphs, sides over time, pathways, replay, falls of the loss."""

import dataclasses
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from flowlin._tools.arrays import Parameters
from flowlin._tools.numerics import as_tree
from flowlin._tools.printing import Summary, format_number, print_by, shorten_text
from flowlin.engine.allowed import ErrorPerUnit, ErrorScaledController
from flowlin.engine.kinks.one_layer import (
    OneLayerFlow,
    dissipation_per_unit,
    effective_gates,
    sides_with_slots,
)
from flowlin.networks.graph import GatedGraph
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.record.event_log import EventLog
from flowlin.training.problem import Problem
from flowlin.training.rules import VectorField, choose_objective


def pathway_life_summary(found: "RectifiedPathway") -> Summary:
    """Print units, samples, life and share of a pathway."""
    rows = [
        ("units", shorten_text(f"units {list(found.units)}")),
        ("samples", shorten_text(f"samples {list(found.samples)}")),
        ("life", f"t = {format_number(found.start)} to {format_number(found.end)}"),
        ("share", f"share {found.share:.3g}"),
    ]
    return Summary("RectifiedPathway", rows, inline=True)


Groups = tuple[tuple[tuple[int, ...], ...], ...]


def graph_of(network: ReLUNetwork, gates: tuple[Array, ...], groups: Groups) -> GatedGraph:
    """Make the graph with a node for every group of units, "layer.group", and "in", "out".

    `gates` (P, H) per hidden layer; a group's are those of its first unit. Every group has an
    edge from each node of the layer below and to each of the layer above, with a block of the
    layer's weights.
    """
    hidden = [[(f"{layer}.{k}", units) for k, units in enumerate(own)]
              for layer, own in enumerate(groups)]  # fmt: skip
    every = slice(None)
    layers = [[("in", every)], *hidden, [("out", every)]]
    weights, biases, node_gates = {}, {}, {}
    for layer, w in enumerate(network.weights):
        b = network.biases[layer]
        for target, rows in layers[layer + 1]:
            rows = rows if rows is every else jnp.asarray(rows)
            if b is not None:
                biases[target] = b[rows]
            for source, columns in layers[layer]:
                columns = columns if columns is every else jnp.asarray(columns)
                weights[source, target] = w[rows][:, columns]
    for own, gate in zip(hidden, gates, strict=True):
        node_gates |= {name: gate[:, units[0]] for name, units in own}
    return GatedGraph(
        weights=weights, biases=biases, bias_strength=network.bias_strength, node_gates=node_gates
    )


# ---- The sides of all pairs between the switches of a run, and the units that share them.

SLIDING = 0  # a side in the log: 1 on, 0 sliding, -1 off


class SideHistory(NamedTuple):
    """The sides of all pairs of a run, interval by interval.

    - `times`: (K + 1,), t = 0, the times of the switches, the end.
    - `sides`: per hidden layer (K, H, P), on each interval 1 on, 0 sliding, -1 off.
    """

    times: np.ndarray
    sides: tuple[np.ndarray, ...]

    @staticmethod
    def of(log: EventLog, layers: int, end: float) -> "SideHistory":
        """Read the sides from a log, of all hidden layers, up to the time `end`.

        **Raises:** `ValueError` for a log without the gates of a layer.
        """
        channels = [log.gate_channel(layer) for layer in range(layers)]
        time, component, new = (np.asarray(a) for a in (log.time, log.component, log.new))
        gate = np.isin(np.asarray(log.channel), channels) & (time < end)
        time, component, new = time[gate], component[gate], new[gate]
        times = np.unique(np.r_[0.0, time, end].astype(log.time.dtype))
        codes = np.empty((len(times) - 1, len(log.initial)), np.int8)
        now, done = np.asarray(log.initial).astype(np.int8), 0
        # Of several events of a pair at one time the last one counts.
        for k, past in enumerate(np.searchsorted(time, times[:-1], side="right")):
            for event in range(done, past):
                now[component[event]] = new[event]
            codes[k], done = now, past
        places = [(log.offsets[c], log.offsets[c + 1], log.channels[c].shape) for c in channels]
        return SideHistory(
            times, tuple(codes[:, i:j].reshape(-1, *shape) for i, j, shape in places)
        )

    def interval_at(self, t: float) -> int:
        """Return the number of a time's interval; a switch belongs to the one that it begins."""
        k = int(np.searchsorted(self.times, t, side="right")) - 1
        return min(max(k, 0), len(self.times) - 2)

    def unit_groups(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """Return groups of units of a layer whose gates agree at all times, by their first unit.

        A unit with a pair that slides is alone: the fractions of two of them differ.
        """
        found: dict[tuple, list[int]] = {}
        for unit in range(self.sides[layer].shape[1]):
            own = self.sides[layer][:, unit]
            alone = unit if np.any(own == SLIDING) else -1
            found.setdefault((alone, own.tobytes()), []).append(unit)
        return tuple(tuple(units) for units in found.values())


# ---- The pathways of a rectified linear network: samples through units, for a time.


@print_by(pathway_life_summary)
@dataclasses.dataclass(frozen=True, eq=False)
class RectifiedPathway:
    """Units whose gates agree, as long as they do.

    - `sides`: (P,), of the units' pairs with the samples: 1 on, 0 sliding, -1 off.
    - `units`: those that were in it at some time of its life.
    - `start`, `end`: its life, in units of flow time: while any unit has these sides.
    - `share`: the part of the whole fall of the loss that these units carry in that time.
    """

    sides: np.ndarray
    units: tuple[int, ...]
    start: float
    end: float
    share: float

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples that go through it: those on which its units are on or slide."""
        return tuple(np.flatnonzero(self.sides >= SLIDING).tolist())

    @property
    def lifetime(self) -> float:
        """`end - start`."""
        return self.end - self.start


class _OpenPathway:
    """A pathway that has not ended yet."""

    def __init__(self, start: float):
        self.start, self.units, self.work = start, set(), 0.0

    def finish_pathway(self, sides: np.ndarray, end: float, whole: float) -> RectifiedPathway:
        """Return the pathway that ends now; `whole` is the fall of the loss."""
        units = tuple(sorted(self.units))
        return RectifiedPathway(sides, units, self.start, end, self.work / whole)


def pathways_of(history: SideHistory, work: np.ndarray) -> tuple[RectifiedPathway, ...]:
    """Return all pathways of a run, the largest share first, from the units' `work` (K, H + 1)."""
    whole, sides = float(np.sum(work)) or 1.0, history.sides[0]  # at rest all shares are zero
    living: dict[bytes, _OpenPathway] = {}
    found: list[RectifiedPathway] = []

    def end_pathways(names, end):
        for name in names:
            found.append(living.pop(name).finish_pathway(np.frombuffer(name, np.int8), end, whole))

    for k, start in enumerate(history.times[:-1]):
        names = [row.tobytes() for row in sides[k]]
        end_pathways([name for name in living if name not in set(names)], float(start))
        for unit, name in enumerate(names):
            one = living.setdefault(name, _OpenPathway(float(start)))
            one.units.add(unit)
            one.work += work[k, unit]
    end_pathways(list(living), float(history.times[-1]))
    return tuple(sorted(found, key=lambda one: -one.share))


MOST_STEPS = 16_384  # of a replay's solver in one interval, where most need some dozen


# ---- The flow of a gated linear network whose gates, and their switching times, are those of a
# ReLU run.


def replay_gates(
    problem: Problem,
    flow: OneLayerFlow,
    dense: PyTree,
    history: SideHistory,
    slots: int,
    rtol: float,
) -> Parameters:
    r"""Integrate the parameters from the start through all intervals, and return the last.

    The run's weights enter through their gates g(t) alone: the field is that of a
    `GatedLinearNetwork`, by automatic differentiation. Where pairs slide their z is zero in the
    run, and here only as exactly as g(t) makes it.

    **Raises:** `RuntimeError` where the solver does not come to the end of an interval.
    """
    parameters = problem.parameters
    spans = zip(history.times[:-1], history.times[1:], history.sides[0], strict=True)
    for start, end, codes in spans:
        parameters, ended = _replay_interval(
            problem, flow, dense, jnp.asarray(start), jnp.asarray(end), parameters,
            jnp.asarray(codes), slots, jnp.asarray(rtol),
        )  # fmt: skip
        if not ended:
            raise RuntimeError(
                f"The replay stopped between the switches at t = {start:g} and {end:g}: its solver "
                f"cannot hold `rtol` = {rtol:g}; pass a larger one."
            )
    return parameters


@eqx.filter_jit
def _replay_interval(problem, flow, dense, start, end, parameters, codes, slots, rtol):
    """Integrate the parameters from the beginning of an interval to its end; tell if it came there.

    It does not raise within the program, since one that calls Python is kept in no cache.
    """
    sides = sides_with_slots(flow.kinks, codes, slots)
    network = problem.network
    blank = network.frozen(problem.task)
    descended = choose_objective(blank, problem.task, problem.loss, decay=problem.decay)

    def velocity(t, y, args):
        gates = effective_gates(flow, lax.stop_gradient(as_tree(dense.evaluate(t))), sides)
        gated = blank.with_sample_gates((gates.T,))
        field = VectorField(descended, gated, problem.time_constants)
        return problem.with_schedule(field)(t, y, args)

    error_scale = ErrorPerUnit.from_problem(problem, rtol)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),  # pyright: ignore
        diffrax.Dopri8(),
        start,
        end,
        None,
        parameters,
        stepsize_controller=ErrorScaledController.from_scale(error_scale),
        saveat=diffrax.SaveAt(t1=True),
        max_steps=MOST_STEPS,
        adjoint=diffrax.ForwardMode(),
        throw=False,
    )
    assert solution.ys is not None
    ended = solution.result == diffrax.RESULTS.successful
    return jax.tree.map(lambda a: a[0], solution.ys), ended


# ---- The part of the fall of the loss that every unit carries between two switches.
#
# Along a gradient flow $-dL/dt = \sum_w \tau |\dot w|^2$ over all parameters, sliding pairs
# included (their velocity is the negative subgradient of least norm), and every parameter of a
# network with one hidden layer belongs to one unit or to the readout's bias. So
#
# $$E_{jk} = \int_{t_k}^{t_{k+1}} \tau |\dot w_j|^2 + \tau |\dot a_j|^2\, dt \ge 0,
#   \qquad \sum_{jk} E_{jk} = L(0) - L(t_1)$$
#
# without remainder. With weight decay L includes the decay.

# Exact for polynomials of degree 15: the integrand's over a step, whose state has degree 4 or 7.
GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)


def unit_loss_falls(
    problem: Problem, flow: OneLayerFlow, dense: PyTree, history: SideHistory, slots: int
) -> np.ndarray:
    """Return E (K, H + 1), intervals times units, readout's bias last, by Gauss's rule per step."""
    knots = np.asarray(dense.ts)
    knots = knots[np.isfinite(knots) & (knots > 0) & (knots < history.times[-1])]
    edges = np.unique(np.r_[history.times, knots])
    interval = np.searchsorted(history.times, (edges[:-1] + edges[1:]) / 2) - 1
    codes = history.sides[0][interval]
    # Panels of length zero fill up to a power of two, so that runs of like lengths share a program.
    more = round_up(len(interval)) - len(interval)
    edges = np.r_[edges, np.full(more, edges[-1])]
    codes = np.concatenate([codes, np.repeat(codes[-1:], more, axis=0)])
    panels = _panel_integrals(problem, flow, dense, edges[:-1], edges[1:], codes, slots)
    panels = np.asarray(panels)[: len(interval)]
    found = np.zeros((len(history.times) - 1, panels.shape[1]))
    np.add.at(found, interval, panels)
    return found


@eqx.filter_jit
def _panel_integrals(problem, flow, dense, starts, ends, codes, slots):
    """Return the integral over every panel, on which all gates keep their sides."""

    def panel_integral(one):
        start, end, codes = one
        sides = sides_with_slots(flow.kinks, codes, slots)

        def power_at(node):
            at = start + (end - start) * (1 + node) / 2
            falls = dissipation_per_unit(flow, as_tree(dense.evaluate(at)), sides)
            # The flow's own velocities are those at tau = 1 where tau depends on time.
            return falls if problem.schedule is None else falls / problem.schedule(at)

        return (
            (end - start)
            / 2
            * jnp.asarray(GAUSS_WEIGHTS)
            @ jax.vmap(power_at)(jnp.asarray(GAUSS_NODES))
        )

    return lax.map(panel_integral, (jnp.asarray(starts), jnp.asarray(ends), jnp.asarray(codes)))


def slots_needed(flow: OneLayerFlow, history: SideHistory) -> int:
    """Return room for the most kinks on which a unit slides at once: 4, or a power of two."""
    slides = (history.sides[0] == SLIDING) & np.asarray(flow.kinks.is_leader)
    most = int(np.max(np.sum(slides, axis=-1)))
    return min(slides.shape[-1], round_up(max(4, most)))  # one program for most runs


def round_up(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 2 ** max(0, int(number) - 1).bit_length()
