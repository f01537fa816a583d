"""Find the crossings of all watches within one step of a solver."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flowlin._tools.arrays import Parameters, places
from flowlin._tools.series import evaluated, fitting, nodes
from flowlin.events.order_statistics import Statistics, Units, crossings
from flowlin.events.path import Path
from flowlin.events.search import Brackets, Components, Directions, first_look, searched
from flowlin.events.watch import Observer, OrderStatistic
from flowlin.networks.kinds import AbstractNetwork

# ---- The plan by which each watched function is searched within a step.

LEAST = 5  # nodes per step, both ends included, of everything that is not monotone


class Plan(NamedTuple):
    """The watches of a run, by number, in groups that are searched in the same way.

    - `ends`: monotone functions, whose signs at the step's ends tell all.
    - `counted`: order statistics of polynomials, in groups of the same polynomials.
    - `exact`: polynomials that are sampled together with others.
    - `apart`: polynomials that are sampled by themselves, by the number of nodes that it takes.
    - `calm`: functions that move no faster than the run itself, see `NEAR`.
    - `smooth`: all others, which need not be smooth.
    - `points`: nodes at which `exact` and `smooth` are sampled.
    """

    ends: list[int]
    counted: list[list[int]]
    exact: list[int]
    apart: dict[int, list[int]]
    calm: list[int]
    smooth: list[int]
    points: int

    @staticmethod
    def of(observer: Observer, path: Path) -> "Plan":
        """Plan how steps like `path` are searched.

        A polynomial of degree k in the parameters is one of degree k p in time where the dense
        output has degree p, so k p + 1 nodes determine it.
        """
        ends, exact, calm, smooth, points = [], [], [], [], LEAST
        groups: dict[tuple[int, int], list[int]] = {}
        apart: dict[int, list[int]] = {}
        network, times = observer.network, jax.ShapeDtypeStruct((1,), jnp.result_type(path.t0))
        for i, watch in enumerate(observer.watches):
            function = watch.function
            behind = function.preactivations if isinstance(function, OrderStatistic) else function
            degree = behind.degree(network)
            if watch.monotone:
                ends.append(i)
            elif degree is None or path.degree is None:
                (calm if function.calm else smooth).append(i)
            elif isinstance(function, OrderStatistic):
                rows = function.preactivations
                groups.setdefault((rows.end, rows.layer), []).append(i)
            elif jax.eval_shape(lambda t, f=function: f.sampled(network, path, t), times) is None:
                exact.append(i)
                points = max(points, degree * path.degree + 1)
            else:
                apart.setdefault(degree * path.degree + 1, []).append(i)
        return Plan(ends, list(groups.values()), exact, apart, calm, smooth, points)

    @property
    def together(self) -> list[int]:
        """Return the watches that are sampled at the plan's own nodes, in one loop over times."""
        return sorted(self.exact + self.smooth)

    @property
    def polynomials(self) -> list[tuple[int, list[int]]]:
        """Return the groups of polynomials, each with the number of nodes that determines them."""
        return [(self.points, self.exact)][: len(self.exact)] + list(self.apart.items())


# A calm function is sampled within a step only if it came nearer to zero than so many times its
# change in this step, or the change that it would make at the speed of the step before: sampling
# may cost as much as the step, and far from its level a smooth function has no root.
NEAR = 2.0
NODES = 9  # points per part of a step, where functions that are not polynomials are searched
# How much a function may do beyond its series through the nodes: see `looked_at`.
AT_FIRST, IN_PARTS, EXACTLY = 100.0, 16.0, 0.0
ROUNDING = 64.0  # machine epsilons of its watch's size that a value near zero may be rounding
BATCH = 16  # polynomials that are searched together


class Step(eqx.Module):
    """One step of a solver in which all crossings are searched for.

    - `path`: its dense output; `end`: the parameters at its end.
    - `error`: the estimate of their error, or None.
    - `before`: (C,), watched values at its start; `speed`: (C,), how fast they changed in the step
      before, inf if there was none.
    """

    observer: Observer
    path: Path
    end: Parameters
    error: Parameters | None
    before: Float[Array, " C"]
    speed: Float[Array, " C"]

    def looked_through(self, found: Brackets) -> tuple[Brackets, Float[Array, " C"]]:
        """Return brackets of all crossings, and the watched values (C,) at the end of the step.

        Neither carries derivatives: locating the crossings afterwards does.
        """
        still = jax.tree.map(lambda a: lax.stop_gradient(a) if eqx.is_array(a) else a, self)
        return lax.stop_gradient(still._looked_through(found))

    def _looked_through(self, found: Brackets) -> tuple[Brackets, Array]:
        """Search group by group, each in the cheapest way that finds all its crossings."""
        plan = Plan.of(self.observer, self.path)
        values = self._sampled(plan)
        after = self._after(plan, values)
        found = self._monotone(plan.ends, after, found)
        for count, which in plan.polynomials:
            found = self._exact(count, which, values, after, found)
        if plan.smooth:
            table = jnp.concatenate([values[i] for i in plan.smooth], axis=1)
            found = self._smooth(plan.smooth, plan.points, table, after, found)
        found = self._calm(plan.calm, after, found)
        for group in plan.counted:
            found = self._counted(group, values[group[0]], after, found)
        return found, after

    def _sampled(self, plan: Plan) -> dict[int, Array]:
        """Return values (n - 1, c) by watch, at all nodes but the first.

        A group of order statistics has the preactivations (H, P) at the end, under its first watch.
        """
        watches, which = self.observer.watches, plan.together
        times = self._nodes(plan.points)
        cuts = np.cumsum([watches[i].channel.size for i in which])[:-1].tolist()
        values: dict[int, Array] = {}
        if which:
            table = lax.map(lambda t: self._at(t, which), times)
            values = dict(zip(which, jnp.split(table, cuts, axis=1), strict=True))
        for count, apart in plan.apart.items():
            for i in apart:
                function, times = watches[i].function, self._nodes(count)
                values[i] = function.sampled(self.observer.network, self.path, times)  # pyright: ignore
        there = self.observer.network.with_parameters(self.end)
        values |= {i: self._statistic(i).preactivations(there) for i, *_ in plan.counted}
        # In the run's precision, whatever that of the user's function.
        return {i: value.astype(self.before.dtype) for i, value in values.items()}

    def _nodes(self, count: int) -> Array:
        """Return the times (count - 1,) of all nodes but the first."""
        at, start = jnp.asarray(1 + nodes(count)[1:]), self.path.t0
        length = (self.path.t1 - start).astype(at.dtype)
        times = start.astype(at.dtype) + length * at / 2
        return times.astype(self.before.dtype).at[-1].set(self.path.t1)

    def _at(self, t: Array, which: list[int]) -> Float[Array, " c"]:
        """Return the values of some watches at time t, end to end."""
        last = t == self.path.t1
        parameters = jax.tree.map(lambda a, b: jnp.where(last, a, b), self.end, self.path(t))
        return self.observer.of(which, parameters, self.path.known(t, parameters))

    def _statistic(self, i: int) -> OrderStatistic:
        """Return the function of watch i, an order statistic."""
        function = self.observer.watches[i].function
        assert isinstance(function, OrderStatistic)
        return function

    def _after(self, plan: Plan, values: dict[int, Array]) -> Float[Array, " C"]:
        """Return the watched values at the end of the step."""
        at_ends = plan.ends + plan.calm
        known = self.path.known(self.path.t1, self.end) if at_ends else {}
        ends = dict(zip(at_ends, self.observer.values(at_ends, self.end, known), strict=True))
        for group in plan.counted:
            ends |= {i: self._statistic(i).excess(values[group[0]]) for i in group}
        parts = [ends[i] if i in ends else values[i][-1] for i in range(len(self.observer.watches))]
        return jnp.concatenate([jnp.ravel(part) for part in parts])

    def _components(
        self, number: np.ndarray | Array, after: Array, sample: Any, times: Any, factor: float
    ) -> Components:
        """Return the components of these numbers as a search takes them, with errors of zero."""
        touches = jnp.asarray(self.observer.each(lambda watch: watch.touches))
        number = jnp.asarray(number, jnp.int32)
        return Components(
            sample=sample,
            times=times,
            factor=factor,
            number=number,
            above=self.before[number] > 0,
            above_end=after[number] > 0,
            error=jnp.zeros(number.shape, self.before.dtype),
            touches=touches[number],
            directions=Directions(*self.observer.directions).of(number),
        )

    def _monotone(self, ends: list[int], after: Array, found: Brackets) -> Brackets:
        """Add the crossings of monotone watches: their signs at both ends of the step tell all."""
        number = self.observer.numbers(ends)
        if not number.size:
            return found
        above = after[number] > 0
        counts = Directions(*self.observer.directions).of(number).counts(above)
        changed = (above != (self.before[number] > 0)) & counts
        return found.put(changed, self.path.t0, self.path.t1, number, above)

    def _exact(
        self, count: int, which: list[int], values: dict[int, Array], after: Array, found: Brackets
    ) -> Brackets:
        """Add the crossings of polynomials that `count` nodes determine.

        A first pass settles most; the rest is searched `BATCH` polynomials at a time.
        """
        number = jnp.asarray(self.observer.numbers(which), jnp.int32)
        table = jnp.concatenate([values[i] for i in which], axis=1)
        table = jnp.concatenate([self.before[number][None], table])
        fit, dtype = jnp.asarray(fitting(count, count - 1), table.dtype), table.dtype

        def times(low, high):
            fractions = low + (high - low) * jnp.asarray((1 + nodes(count)) / 2, dtype)
            return (self.path.t0 + (self.path.t1 - self.path.t0) * fractions).astype(dtype)

        them = self._components(number, after, None, times, EXACTLY)
        todo, found = first_look(them, table, times(0.0, 1.0), EXACTLY, found)

        def batch(carry):
            todo, found = carry
            chosen = places(todo, min(BATCH, number.size), 0)
            real = todo[chosen] & (jnp.cumsum(todo)[chosen] <= BATCH)
            real = real & (jnp.arange(chosen.size) < jnp.sum(todo))
            coefficients = jnp.tensordot(fit, table[:, chosen], 1)

            def sample(low, high, wanted):
                del wanted
                return evaluated(coefficients, low, high, count)

            own = self._components(number[chosen], after, sample, times, EXACTLY)
            error = self._error(number[chosen]) + self._rounding(after)[number[chosen]]
            own = eqx.tree_at(lambda c: c.error, own, error)
            return todo.at[chosen].set(False), searched(own, real, found)

        return lax.while_loop(lambda carry: jnp.any(carry[0]), batch, (todo, found))[1]

    def _rounding(self, after: Array) -> Float[Array, " C"]:
        """Return the part of each component's value that may be rounding, by its watch's size."""
        starts, parts = self.observer.starts, []
        for i, watch in enumerate(self.observer.watches):
            both = jnp.stack([self.before, after])[:, starts[i] : starts[i + 1]]
            size = jnp.max(jnp.abs(both), initial=0.0) + watch.function.scale
            parts.append(jnp.full(watch.channel.size, size, self.before.dtype))
        return ROUNDING * jnp.finfo(self.before.dtype).eps * jnp.concatenate(parts)

    def _error(self, number: Array) -> Array:
        """Return how far the step's error moves components of these numbers."""
        if self.error is None:
            return jnp.zeros(number.shape, self.before.dtype)
        network = self.observer.network
        there = network.with_parameters(self.end)
        off = network.with_parameters(jax.tree.map(jnp.add, self.end, self.error))

        def moved(watched, k):
            change = watched.component(off, k) - watched.component(there, k)
            return jnp.abs(change).astype(self.before.dtype)

        return jax.vmap(lambda k: self.observer.switch(k, moved))(number)

    def _calm(self, which: list[int], after: Array, found: Brackets) -> Brackets:
        """Add the crossings of slow watches, which are sampled only where they came near zero."""
        if not which:
            return found
        number = self.observer.numbers(which)
        before, end, length = self.before[number], after[number], self.path.t1 - self.path.t0
        moved = jnp.maximum(jnp.abs(end - before), self.speed[number] * length)
        far = jnp.minimum(jnp.abs(before), jnp.abs(end)) > NEAR * moved

        def looked() -> Brackets:
            table = lax.map(lambda t: self._at(t, which), self._nodes(LEAST))
            return self._smooth(which, LEAST, table.astype(self.before.dtype), after, found)

        return lax.cond(jnp.all(far), lambda: found, looked)

    def _smooth(
        self, which: list[int], points: int, table: Array, after: Array, found: Brackets
    ) -> Brackets:
        """Add the crossings of what is no polynomial, by its values at all nodes but the first."""
        number = self.observer.numbers(which)
        table = jnp.concatenate([self.before[number][None], table])

        def times(low, high):
            fractions = jnp.asarray((1 + nodes(NODES)) / 2, table.dtype)
            return self.path.times(low + (high - low) * fractions).astype(table.dtype)

        def sample(low, high, wanted):
            return lax.map(lambda t: self._wanted(which, wanted, t), times(low, high))

        them = self._components(number, after, sample, times, IN_PARTS)
        start = jnp.asarray(self.path.t0, table.dtype)[None]
        first = jnp.concatenate([start, self._nodes(points)])
        todo, found = first_look(them, table, first, AT_FIRST, found)

        def error():
            if self.error is None:
                return jnp.zeros(number.shape, table.dtype)
            off = jax.tree.map(jnp.add, self.end, self.error)
            return jnp.abs(self.observer.of(which, off) - after[number])

        moved = lax.cond(jnp.any(todo), error, lambda: jnp.zeros(number.shape, table.dtype))
        moved = moved + self._rounding(after)[number]
        return searched(eqx.tree_at(lambda c: c.error, them, moved), todo, found)

    def _wanted(self, which: list[int], wanted: Array, t: Array) -> Array:
        """Evaluate at time t the watches of which any component is wanted; others are zero."""
        parameters = self.path(t)
        known = self.path.known(t, parameters)
        if len(which) == 1:
            return self.observer.of(which, parameters, known)
        values, start = [], 0
        for i in which:
            size = self.observer.watches[i].channel.size
            mine = jnp.any(wanted[start : start + size])
            none = jnp.zeros(size, self.before.dtype)
            values.append(
                lax.cond(
                    mine,
                    lambda i=i: self.observer.of([i], parameters, known),
                    lambda none=none: none,
                )
            )
            start += size
        return jnp.concatenate(values)

    def _counted(self, group: list[int], end: Array, after: Array, found: Brackets) -> Brackets:
        """Add the crossings of order statistics of the same preactivations, `end` (H, P)."""
        behind, network = self._statistic(group[0]).preactivations, self.observer.network
        degree = self.path.degree
        assert degree is not None
        assert isinstance(network, AbstractNetwork)
        units = Units(self.path, degree, self.error, behind.task.x, network, end)
        number = jnp.asarray(self.observer.numbers(group), jnp.int32)
        number = number.reshape(len(group), -1)
        most = np.array([self._statistic(i).most for i in group])[:, None]
        statistics = Statistics(most, number, self.before[number] > 0, after[number] > 0)
        return crossings(statistics, units, Directions(*self.observer.directions), found)
