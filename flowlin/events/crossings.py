"""Find the crossings of all watches within one step of a solver."""

import functools
import itertools
from collections.abc import Callable, Hashable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flowlin._tools.arrays import Parameters, first_true_indices
from flowlin._tools.series import chebyshev_nodes, fit_matrix, values_on_part
from flowlin.events.order_statistics import (
    FirstLayerUnits,
    OrderStatistics,
    order_statistic_crossings,
)
from flowlin.events.path import StepPath
from flowlin.events.search import (
    Brackets,
    Components,
    Directions,
    StepEnd,
    first_pass,
    search_crossings,
)
from flowlin.events.watch import LevelDifference, Observer, OrderStatistic, Watch
from flowlin.networks.base import AbstractModel
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.record.channel import BISECTED, CERTIFIED, SAMPLED

# ---- The plan by which each watched function is searched within a step.

FEWEST_NODES = 5  # per step, or part of one, both ends included, of all that is not monotone


def promise_of_watch(watch: Watch, network: AbstractModel, dense_degree: int | None) -> str:
    """Return how surely a watch's crossings are found; see `EventLog.promise`.

    `dense_degree` is that of the parameters as a polynomial in time within a step, if it is one.
    """
    if watch.monotone or polynomial_degree(watch, network, dense_degree) is not None:
        return CERTIFIED
    function = watch.function
    jumps = isinstance(function, LevelDifference) and _has_no_slope(function.function, network)
    return BISECTED if jumps else SAMPLED


def _has_no_slope(function: Callable[[AbstractModel], Array], network: AbstractModel) -> bool:
    """Tell whether a function's derivative is zero for any parameters: it is constant or jumps."""

    def derivative(parameters: Parameters, direction: Parameters) -> Array:
        def value(moved: Parameters) -> Array:
            return function(network.with_parameters(moved))

        return jax.jvp(value, (parameters,), (direction,))[1]

    found = jax.make_jaxpr(derivative)(network.parameters, network.parameters).jaxpr
    directions = found.invars[len(found.invars) // 2 :]
    reached = {id(variable) for variable in directions}
    for equation in found.eqns:
        if any(id(variable) in reached for variable in equation.invars):
            reached |= {id(variable) for variable in equation.outvars}
    return not any(id(variable) in reached for variable in found.outvars)


def polynomial_degree(watch: Watch, network: AbstractModel, dense_degree: int | None) -> int | None:
    """Return the degree of a watched function as a polynomial in time; None where it is none.

    A polynomial of degree k in the parameters is one of degree k p in time where the dense output
    has degree p. Of an order statistic it is the degree of what is ordered.
    """
    function = watch.function
    behind = function.preactivations if isinstance(function, OrderStatistic) else function
    degree = behind.degree(network)
    return None if degree is None or dense_degree is None else degree * dense_degree


class SearchPlan(NamedTuple):
    """The watches of a run, by number, in groups that are searched in the same way.

    - `ends`: monotone functions, whose signs at the step's ends tell all.
    - `counted`: order statistics of polynomials, in groups of the same polynomials.
    - `exact`: polynomials that are sampled together.
    - `apart`: polynomials that are sampled by themselves, by the number of nodes that it takes.
    - `calm`: functions that move no faster than the run itself, see `NEAR`.
    - `smooth`: all others, which need not be smooth.
    - `points`: nodes at which `exact` are sampled.
    """

    monotone: list[int]
    order_statistics: list[list[int]]
    exact: list[int]
    by_node_count: dict[int, list[int]]
    slow: list[int]
    non_polynomial: list[int]
    node_count: int

    @staticmethod
    def from_observer(observer: Observer, path: StepPath) -> "SearchPlan":
        """Plan how steps like `path` are searched; degree + 1 nodes determine a polynomial."""
        ends, exact, calm, smooth, points = [], [], [], [], FEWEST_NODES
        groups: dict[tuple[int, int], list[int]] = {}
        apart: dict[int, list[int]] = {}
        network, times = observer.network, jax.ShapeDtypeStruct((1,), jnp.result_type(path.t0))
        for i, watch in enumerate(observer.watches):
            function, degree = watch.function, polynomial_degree(watch, network, path.degree)
            if watch.monotone:
                ends.append(i)
            elif degree is None:
                (calm if function.is_slow else smooth).append(i)
            elif isinstance(function, OrderStatistic):
                rows = function.preactivations
                groups.setdefault((rows.width_end, rows.layer), []).append(i)
            elif (
                jax.eval_shape(lambda t, f=function: f.sample_along(network, path, t), times)
                is None
            ):
                exact.append(i)
                points = max(points, degree + 1)
            else:
                apart.setdefault(degree + 1, []).append(i)
        calm, smooth = (
            list(itertools.chain(*_groups_of_one_quantity(observer, some)))
            for some in (calm, smooth)
        )
        return SearchPlan(ends, list(groups.values()), exact, apart, calm, smooth, points)

    @property
    def polynomial_groups(self) -> list[tuple[int, list[int]]]:
        """Return the groups of polynomials, each with the number of nodes that determines them."""
        return [(self.node_count, self.exact)][: len(self.exact)] + list(self.by_node_count.items())


def _groups_of_one_quantity(observer: Observer, which: list[int]) -> list[list[int]]:
    """Put watches together that compare one quantity with their levels; the others stay alone."""
    groups: dict[Hashable, list[int]] = {}
    for i in which:
        quantity = getattr(observer.watches[i].function, "quantity", None)
        groups.setdefault(i if quantity is None else quantity, []).append(i)
    return list(groups.values())


# A calm function is sampled within a step only if it came nearer to zero than so many times its
# change in this step, or the change that it would make at the speed of the step before: sampling
# may cost as much as the step, and far from its level a smooth function has no root.
NEAR_FACTOR = 2.0
# How much a function may do beyond its series through the nodes: see `certify_roots`.
SAMPLED_FACTOR, EXACT_FACTOR = 100.0, 0.0
ROUNDING_ULPS = 64.0  # machine epsilons of its watch's size that a value near zero may be rounding
POLYNOMIAL_BATCH = 16  # polynomials that are searched together


class StepCrossings(eqx.Module):
    """One step of a solver in which all crossings are searched for.

    - `path`: its dense output; `end`: the parameters at its end.
    - `error`: the estimate of their error, or None.
    - `before`: (C,), watched values at its start; `speed`: (C,), how fast they changed in the step
      before, inf if there was none.
    """

    observer: Observer
    path: StepPath
    end_parameters: Parameters
    error: Parameters | None
    start_values: Float[Array, " C"]
    speed: Float[Array, " C"]

    def find_crossings(self, brackets: Brackets) -> tuple[Brackets, Float[Array, " C"]]:
        """Return brackets of all crossings, and the watched values (C,) at the end of the step.

        Neither carries derivatives: locating the crossings afterwards does.
        """
        still = jax.tree.map(lambda a: lax.stop_gradient(a) if eqx.is_array(a) else a, self)
        return lax.stop_gradient(still._find_crossings(brackets))

    def _find_crossings(self, brackets: Brackets) -> tuple[Brackets, Array]:
        """Search group by group, each in the cheapest way that finds all its crossings."""
        plan = SearchPlan.from_observer(self.observer, self.path)
        values, others = self._values_at_nodes(plan), plan.non_polynomial
        brackets, ends = (
            self._non_polynomial_crossings(others, brackets) if others else (brackets, {})
        )
        after = self._end_values(plan, values, ends)
        brackets = self._monotone_crossings(plan.monotone, after, brackets)
        for count, which in plan.polynomial_groups:
            brackets = self._polynomial_crossings(count, which, values, after, brackets)
        brackets = self._slow_crossings(plan.slow, after, brackets)
        for group in plan.order_statistics:
            brackets = self._unit_crossings(group, values[group[0]], after, brackets)
        return brackets, after

    def _values_at_nodes(self, plan: SearchPlan) -> dict[int, Array]:
        """Return values (n - 1, c) by watch, at all nodes but the first.

        A group of order statistics has the preactivations (H, P) at the end, under its first watch.
        """
        watches, which = self.observer.watches, plan.exact
        times = self._node_times(plan.node_count)
        cuts = np.cumsum([watches[i].channel.size for i in which])[:-1].tolist()
        values: dict[int, Array] = {}
        if which:
            table = lax.map(lambda t: self._values_at(t, which), times)
            values = dict(zip(which, jnp.split(table, cuts, axis=1), strict=True))
        for count, apart in plan.by_node_count.items():
            for i in apart:
                function, times = watches[i].function, self._node_times(count)
                values[i] = function.sample_along(self.observer.network, self.path, times)  # pyright: ignore
        there = self.observer.network.with_parameters(self.end_parameters)
        values |= {
            i: self._order_statistic(i).preactivations(there) for i, *_ in plan.order_statistics
        }
        # In the run's precision, whatever that of the user's function.
        return {i: value.astype(self.start_values.dtype) for i, value in values.items()}

    def _node_times(self, count: int) -> Array:
        """Return the times (count - 1,) of all nodes but the first."""
        at, start = jnp.asarray(1 + chebyshev_nodes(count)[1:]), self.path.t0
        length = (self.path.t1 - start).astype(at.dtype)
        times = start.astype(at.dtype) + length * at / 2
        return times.astype(self.start_values.dtype).at[-1].set(self.path.t1)

    def _values_at(self, t: Array, which: list[int]) -> Float[Array, " c"]:
        """Return the values of some watches at time t, end to end."""
        last = t == self.path.t1
        parameters = jax.tree.map(
            lambda a, b: jnp.where(last, a, b), self.end_parameters, self.path(t)
        )
        return self.observer.flat_values(which, parameters, self.path.quantities_at(t, parameters))

    def _order_statistic(self, i: int) -> OrderStatistic:
        """Return the function of watch i, an order statistic."""
        function = self.observer.watches[i].function
        assert isinstance(function, OrderStatistic)
        return function

    def _end_values(
        self, plan: SearchPlan, values: dict[int, Array], ends: dict[int, Array]
    ) -> Float[Array, " C"]:
        """Return all watched values at the end of the step, of which some are known by watch."""
        at_ends = plan.monotone + plan.slow
        known = self.path.quantities_at(self.path.t1, self.end_parameters) if at_ends else {}
        others = self.observer.watch_values(at_ends, self.end_parameters, known)
        ends = ends | dict(zip(at_ends, others, strict=True))
        for group in plan.order_statistics:
            ends |= {i: self._order_statistic(i).excess_count(values[group[0]]) for i in group}
        parts = [ends[i] if i in ends else values[i][-1] for i in range(len(self.observer.watches))]
        return jnp.concatenate([jnp.ravel(part) for part in parts])

    def _search_components(
        self,
        component: np.ndarray | Array,
        sample: Callable[..., Array] | None,
        times: Callable[..., Array],
        factor: float,
        error_at: Callable[..., Array] | None = None,
    ) -> Components:
        """Return the components of these numbers as a search takes them."""
        touches = jnp.asarray(self.observer.per_component(lambda watch: watch.touches))
        component = jnp.asarray(component, jnp.int32)
        return Components(
            sample=sample,
            times=times,
            margin_factor=factor,
            component=component,
            above=self.start_values[component] > 0,
            error_at=error_at,
            touches=touches[component],
            directions=Directions(*self.observer.direction_flags).of_components(component),
        )

    def _monotone_crossings(
        self, ends: list[int], end_values: Array, brackets: Brackets
    ) -> Brackets:
        """Add the crossings of monotone watches: their signs at both ends of the step tell all."""
        number = self.observer.component_numbers(ends)
        if not number.size:
            return brackets
        above = end_values[number] > 0
        counts = Directions(*self.observer.direction_flags).of_components(number).is_counted(above)
        changed = (above != (self.start_values[number] > 0)) & counts
        values = self.start_values[number], end_values[number]
        return brackets.append(changed, self.path.t0, self.path.t1, number, above, 0.0, values)

    def _polynomial_crossings(
        self,
        count: int,
        which: list[int],
        values: dict[int, Array],
        end_values: Array,
        brackets: Brackets,
    ) -> Brackets:
        """Add the crossings of polynomials that `count` nodes determine.

        A first pass settles most; the rest is searched `POLYNOMIAL_BATCH` polynomials at a time.
        """
        number = jnp.asarray(self.observer.component_numbers(which), jnp.int32)
        table = jnp.concatenate([values[i] for i in which], axis=1)
        table = jnp.concatenate([self.start_values[number][None], table])
        fit, dtype = jnp.asarray(fit_matrix(count, count - 1), table.dtype), table.dtype

        def node_times(low, high):
            fractions = low + (high - low) * jnp.asarray((1 + chebyshev_nodes(count)) / 2, dtype)
            return (self.path.t0 + (self.path.t1 - self.path.t0) * fractions).astype(dtype)

        them = self._search_components(number, None, node_times, EXACT_FACTOR)
        todo, brackets = first_pass(them, table, node_times(0.0, 1.0), brackets)

        def search_batch(carry):
            todo, found = carry
            chosen = first_true_indices(todo, min(POLYNOMIAL_BATCH, number.size), 0)
            real = todo[chosen] & (jnp.cumsum(todo)[chosen] <= POLYNOMIAL_BATCH)
            real = real & (jnp.arange(chosen.size) < jnp.sum(todo))
            coefficients = jnp.tensordot(fit, table[:, chosen], 1)

            def sample_part(low, high, wanted):
                del wanted
                return values_on_part(coefficients, low, high, count)

            own = self._search_components(number[chosen], sample_part, node_times, EXACT_FACTOR)
            rounding = self._value_rounding(which, end_values[number])[chosen]
            error = self._error_effect(number[chosen]) + rounding
            end = StepEnd(end_values[number[chosen]], error)
            return todo.at[chosen].set(False), search_crossings(own, real, end, found)[0]

        return lax.while_loop(lambda carry: jnp.any(carry[0]), search_batch, (todo, brackets))[1]

    def _value_rounding(self, which: list[int], end_values: Array) -> Float[Array, " c"]:
        """Return the part of values of some watches that may be rounding, by their watch's size."""
        starts, parts, begin = self.observer.component_starts, [], 0
        for i in which:
            watch, end = self.observer.watches[i], begin + self.observer.watches[i].channel.size
            both = jnp.stack([self.start_values[starts[i] : starts[i + 1]], end_values[begin:end]])
            size = jnp.max(jnp.abs(both), initial=0.0) + watch.function.level_scale
            parts.append(jnp.full(watch.channel.size, size, self.start_values.dtype))
            begin = end
        return ROUNDING_ULPS * jnp.finfo(self.start_values.dtype).eps * jnp.concatenate(parts)

    def _error_effect(self, component: Array) -> Array:
        """Return how far the step's error moves components of these numbers."""
        if self.error is None:
            return jnp.zeros(component.shape, self.start_values.dtype)
        network = self.observer.network
        there = network.with_parameters(self.end_parameters)
        off = network.with_parameters(jax.tree.map(jnp.add, self.end_parameters, self.error))

        def component_change(watched, k):
            change = watched.component(off, k) - watched.component(there, k)
            return jnp.abs(change).astype(self.start_values.dtype)

        return jax.vmap(lambda k: self.observer.select_watch(k, component_change))(component)

    def _slow_crossings(self, which: list[int], end_values: Array, brackets: Brackets) -> Brackets:
        """Add the crossings of slow watches, which are sampled only where they came near zero."""
        if not which:
            return brackets
        number = self.observer.component_numbers(which)
        before, end, length = (
            self.start_values[number],
            end_values[number],
            self.path.t1 - self.path.t0,
        )
        moved = jnp.maximum(jnp.abs(end - before), self.speed[number] * length)
        far = jnp.minimum(jnp.abs(before), jnp.abs(end)) > NEAR_FACTOR * moved

        def search_step() -> Brackets:
            return self._non_polynomial_crossings(which, brackets)[0]

        return lax.cond(jnp.all(far), lambda: brackets, search_step)

    def _non_polynomial_crossings(
        self, which: list[int], brackets: Brackets
    ) -> tuple[Brackets, dict[int, Array]]:
        """Add the crossings of what is no polynomial; also return its values at the step's end.

        The whole step is looked at first, then parts of it. XLA compiles the functions at every
        place that calls them: one loop does both.
        """
        number, dtype = self.observer.component_numbers(which), self.start_values.dtype
        fractions = jnp.asarray((1 + chebyshev_nodes(FEWEST_NODES)) / 2, dtype)

        def node_times(low, high):
            start, length = self.path.t0, self.path.t1 - self.path.t0
            whole, parts = start + length * fractions, low + (high - low) * fractions
            times = jnp.where(high - low < 1, self.path.part_times(parts), whole).astype(dtype)
            return times.at[-1].set(jnp.where(high < 1, times[-1], self.path.t1))

        def sample_part(low, high, wanted):
            times = node_times(low, high)
            return lax.map(lambda t: self._values_where_wanted(which, wanted, t), times)

        def error_at(end_values):
            rounding = self._value_rounding(which, end_values)
            if self.error is None:
                return rounding
            off = jax.tree.map(jnp.add, self.end_parameters, self.error)
            return jnp.abs(self.observer.flat_values(which, off) - end_values) + rounding

        them = self._search_components(number, sample_part, node_times, SAMPLED_FACTOR, error_at)
        unknown = StepEnd(*jnp.zeros((2, number.size), dtype))
        brackets, end = search_crossings(them, jnp.ones(number.shape, bool), unknown, brackets)
        cuts = np.cumsum([self.observer.watches[i].channel.size for i in which])[:-1].tolist()
        return brackets, dict(zip(which, jnp.split(end.values, cuts), strict=True))

    def _values_where_wanted(self, which: list[int], wanted: Array, t: Array) -> Array:
        """Evaluate at time t the watches of which any component is wanted; others are zero."""
        last = t == self.path.t1
        parameters = jax.tree.map(
            lambda a, b: jnp.where(last, a, b), self.end_parameters, self.path(t)
        )
        known = self.path.quantities_at(t, parameters)
        groups = _groups_of_one_quantity(self.observer, which)
        if len(groups) == 1:
            return self.observer.flat_values(which, parameters, known)
        values, start = [], 0
        for group in groups:
            size = sum(self.observer.watches[i].channel.size for i in group)
            mine, none = wanted[start : start + size], jnp.zeros(size, self.start_values.dtype)
            found = functools.partial(self.observer.flat_values, group, parameters, known)
            values.append(lax.cond(jnp.any(mine), found, lambda none=none: none))
            start += size
        return jnp.concatenate(values)

    def _unit_crossings(
        self, group: list[int], end: Array, end_values: Array, brackets: Brackets
    ) -> Brackets:
        """Add the crossings of order statistics of the same preactivations, `end` (H, P)."""
        behind, network = self._order_statistic(group[0]).preactivations, self.observer.network
        degree = self.path.degree
        assert degree is not None
        assert isinstance(network, AbstractNetwork)
        units = FirstLayerUnits(self.path, degree, self.error, behind.task.x, network, end)
        number = jnp.asarray(self.observer.component_numbers(group), jnp.int32)
        number = number.reshape(len(group), -1)
        most = np.array([self._order_statistic(i).count_threshold for i in group])[:, None]
        statistics = OrderStatistics(
            most, number, self.start_values[number] > 0, end_values[number] > 0
        )
        return order_statistic_crossings(
            statistics, units, Directions(*self.observer.direction_flags), brackets
        )
