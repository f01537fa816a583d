"""Rectified linear networks: an exact ReLU run as gated graphs with switching times."""

import dataclasses
import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    checked,
    finite_array,
    index_from_zero,
    instance_of,
    integer_from,
    not_negative,
    number_in,
)
from flowlin._tools.arrays import Numbers, is_traced
from flowlin._tools.moved import moved_attributes
from flowlin._tools.printing import Summary, format_count, format_number, print_by, shorten_text
from flowlin.engine.kinks.one_layer import OneLayerFlow, effective_gates, sides_with_slots
from flowlin.networks.graph import GatedGraph
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.record.results import SUCCESSES, result_is
from flowlin.record.trajectory import Trajectory
from flowlin.runs.gradient_flow import with_dense
from flowlin.tasks.task import Task
from flowlin.theory.rectified_parts import (
    SLIDING,
    RectifiedPathway,
    SideHistory,
    graph_of,
    pathways_of,
    replay_gates,
    slots_needed,
    unit_loss_falls,
)
from flowlin.training.problem import Problem


def rectified_summary(found: "Rectified") -> Summary:
    """Print intervals, groups, and the share of the time in which pairs slide."""
    length = np.diff(found.times)
    slides = float(np.sum(length[found.sliding > 0]) / np.sum(length))
    groups = ", ".join(str(len(own)) for own in found.groups)
    units = ", ".join(str(own.shape[1]) for own in found.history.sides)
    rows = [
        ("network", shorten_text(repr(found.flow.model))),
        (
            "intervals",
            f"{format_count(found.intervals, 'interval')} to t = {format_number(found.times[-1])}",
        ),
        ("groups", f"{groups} of {units} units"),
        ("sliding", f"in {100 * slides:.3g} % of the time, up to {max(found.sliding)} pairs"),
    ]
    return Summary("Rectified", rows)


@moved_attributes(work="loss_fall", needed="pathways_needed", explained="explained_share")
@print_by(rectified_summary)
@dataclasses.dataclass(frozen=True, eq=False)
class Rectified:
    """A ReLU run between its switches, where it is the run of a gated linear network.

    With the gates of an interval given, the network is a gated deep linear network (Saxe, Sodhani
    and Lewallen 2022) on a graph whose nodes are groups of units (Jarvis, Klein, Rosman and Saxe
    2024); `fl.rectified` makes one.

    - `flow`: the run, with dense output.
    - `task`: what it was trained on.
    - `history`: the sides of all pairs, interval by interval.
    """

    flow: Trajectory
    task: Task
    history: SideHistory

    @property
    def times(self) -> np.ndarray:
        """Times of t = 0, the switches and the end, (K + 1,): interval k is times k to k + 1."""
        return self.history.times

    @property
    def intervals(self) -> int:
        """The number K of intervals."""
        return len(self.times) - 1

    @functools.cached_property
    def groups(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Per hidden layer the groups of units whose gates agree from start to end.

        A unit with a pair that slides at some time is a group of its own.
        """
        return tuple(self.history.unit_groups(layer) for layer in range(len(self.history.sides)))

    @property
    def sliding(self) -> np.ndarray:
        """The number of (unit, sample) pairs that slide on each interval, (K,), of all layers."""
        sides = self.history.sides
        return np.sum([np.sum(own == SLIDING, axis=(1, 2)) for own in sides], axis=0)

    @checked
    def network(self, t: ArrayLike) -> ReLUNetwork:
        """Return the run's network at time t; for several times (T,), stacked."""
        return self.flow.network(t)

    @checked(t=not_negative)
    def gates(self, t: float) -> Float[Array, "P H"]:
        r"""Return gates (P, H) at time t; sliding pairs have Filippov's fraction $u / |C|$.

        **Raises:** `ValueError` for a time outside the run, or where pairs of a network with
        several hidden layers slide: the fractions of its lower layers are not determined.
        """
        k = self.history.interval_at(t)
        network = self.network(t)
        if not self.sliding[k]:
            sides = jnp.asarray(self.history.sides[0][k].T)
            return jnp.where(sides > 0, 1.0, network.slope)
        self._require_one_layer("gates(t)", k)
        gated, slots = self._flow_and_slots
        return _gates_at(gated, network.parameters, self.history.sides[0][k], slots).T

    @checked(k=index_from_zero)
    def graph(self, k: int) -> GatedGraph:
        """Return the gated graph on interval k, with the run's weights at its beginning.

        Its nodes are "in", the groups of each hidden layer, named "layer.group", and "out"; so
        the graphs of all intervals have the same nodes and edges, and other gates. Without
        sliding pairs its flow is that of the ReLU network, to the interval's end. Pairs that
        slide have the gates of its beginning, which then do not change: `sliding[k]` counts them.

        **Raises:** `ValueError` for an interval that does not exist, or where pairs of a network
        with several hidden layers slide.
        """
        if k >= self.intervals:
            wanted = f"an interval, one of {self.intervals} counted from 0"
            raise argument_error("k", wanted, k, "see `rectified.times`")
        start = float(self.times[k])
        if len(self.groups) > 1:
            self._require_one_layer(f"graph({k})", k)
            slope = self.network(start).slope
            gates = tuple(jnp.where(own[k].T > 0, 1.0, slope) for own in self.history.sides)
        else:
            gates = (self.gates(start),)
        return graph_of(self.network(start), gates, self.groups)

    def _require_one_layer(self, what: str, k: int) -> None:
        """Raise `ValueError` where pairs slide on interval k and there are several layers."""
        if len(self.history.sides) > 1 and self.sliding[k]:
            raise ValueError(
                f"`{what}`: on interval {k} {self.sliding[k]} pairs slide, and with several hidden "
                "layers the fractions of sliding gates are not determined; take an interval in "
                "which none does (`rectified.sliding`)."
            )

    @functools.cached_property
    def _flow_and_slots(self) -> tuple[OneLayerFlow, int]:
        """The flow at given sides of one hidden layer, and room for kinks that a unit slides on."""
        if len(self.history.sides) > 1:
            raise ValueError(
                f"the run's network has {len(self.history.sides)} hidden layers; pathways, shares "
                "and replay are for one, in deeper ones a weight belongs to two groups."
            )
        problem = self._run_problem
        network = problem.network
        assert isinstance(network, ReLUNetwork)
        gated = eqx.filter_jit(OneLayerFlow)(
            network, self.task, problem.loss, problem.time_constants, problem.decay
        )
        return gated, slots_needed(gated, self.history)

    @property
    def _run_problem(self) -> Problem:
        return self.flow.reference.run.problem

    @functools.cached_property
    def loss_fall(self) -> np.ndarray:
        r"""The fall of the loss by each unit on each interval, (K, H + 1), the readout's bias last.

        It is $\int \tau |\dot w|^2 dt$ over the unit's weights, and sums up to L(0) - L(t1); one
        hidden layer. With weight decay L includes the decay.
        """
        gated, slots = self._flow_and_slots
        dense = self.flow.dense
        return unit_loss_falls(self._run_problem, gated, dense, self.history, slots)

    @functools.cached_property
    def pathways(self) -> tuple[RectifiedPathway, ...]:
        """Sets of units whose gates agree, as long as they do, the largest share first.

        **Raises:** `ValueError` for networks with several hidden layers.
        """
        return pathways_of(self.history, self.loss_fall)

    @checked(n=integer_from(0))
    def explained_share(self, n: int) -> float:
        """Return the share of the loss's fall that the n pathways of the largest shares carry."""
        return float(sum(pathway.share for pathway in self.pathways[:n]))

    @checked(share=number_in(0.0, 1.0))
    def pathways_needed(self, share: float = 0.99) -> int:
        """Return the least number of pathways that explain a share of the fall of the loss."""
        sums = np.cumsum([pathway.share for pathway in self.pathways])
        return int(np.searchsorted(sums, share)) + 1

    @checked(times=finite_array)
    def overlap(self, times: Numbers) -> np.ndarray:
        """Return (T, T), the share of pairs on one side at both of two `times` (T,).

        It is one where constant gates would do. All hidden layers count.
        """
        at = np.atleast_1d(np.asarray(times, float))
        if at.ndim != 1 or not np.all((at >= 0) & (at <= self.times[-1])):
            raise argument_error("times", f"times (T,) in [0, {self.times[-1]:g}]", times)
        own = np.concatenate([own.reshape(len(own), -1) for own in self.history.sides], axis=1)
        rows = own[[self.history.interval_at(t) for t in at]]
        return np.stack([np.mean(rows == row, axis=1) for row in rows])

    @checked(rtol=number_in(1e-14, 1.0))
    def replay(self, rtol: float | None = None) -> ReLUNetwork:
        """Return the network at the end of a gated linear flow that has the run's gates g(t).

        It goes from the run's start through all its intervals. Of the run it takes the switching
        times and the fractions of sliding pairs, and no weights but those at the start. Its
        distance from `flow.final` measures how nearly the run is that of a gated linear network.
        One hidden layer.

        `rtol` is the solver's; None is 1e-10 in float64 and 1e-5 in float32.

        **Raises:** `RuntimeError` where the solver cannot hold `rtol`.
        """
        exact = self.times.dtype == np.float64
        rtol = (1e-10 if exact else 1e-5) if rtol is None else rtol
        gated, slots = self._flow_and_slots
        end = replay_gates(self._run_problem, gated, self.flow.dense, self.history, slots, rtol)
        return self.network(0.0).with_parameters(end)


@eqx.filter_jit
def _gates_at(flow: OneLayerFlow, parameters, codes, slots: int):
    """Return the gates (H, P) of a layer at given parameters and sides."""
    return effective_gates(
        flow, parameters, sides_with_slots(flow.kinks, jnp.asarray(codes), slots)
    )


@checked
def rectified(flow: Trajectory, task: Task) -> Rectified:
    """Read an exact ReLU run as gated linear networks, one between any two of its switches.

    **Arguments:** `flow` of a `ReLUNetwork` under `fl.ExactKinks()` (the default), computed in
    this process; without `dense=True` it is solved once more. `task` is what it was trained on.

    **Returns:** `Rectified`, with its K intervals between switches.

    **Raises:** `ValueError` for a run that logged no gates, was loaded, stacked or traced, or
    did not reach its end, or for another task.
    """
    run = flow.reference.run
    if is_traced(flow) or run is None or flow.discrete:
        raise ValueError(
            "`flow` must be a gradient flow that was computed in this process, outside of `jit` "
            "and `vmap`, and not loaded; run `fl.gradient_flow(network, task, t1)` again."
        )
    if not isinstance(flow.model, ReLUNetwork):
        raise argument_error("flow", "of a ReLUNetwork", flow.final, "of others no switch is known")
    if not result_is(flow.result, *SUCCESSES):
        raise ValueError("`flow` failed; what it computed has no end to read it to.")
    if not eqx.tree_equal(task, flow.reference.task):
        raise ValueError("`task` is not the one that `flow` was trained on; pass that one.")
    history = SideHistory.of(flow.events, len(flow.model.hidden), float(flow.end))
    dense = flow if flow.dense is not None else with_dense(flow, 2**20)
    return Rectified(dense, task, history)


CHECKS_BY_NAME["rectified"] = instance_of(
    Rectified, "a rectified run", "make one by fl.rectified(flow, task)"
)
