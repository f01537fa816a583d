"""Search crossings of functions of time that can only be sampled."""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.arrays import replace_fields
from flowlin._tools.series import certify_roots
from flowlin.record.event_log import Unresolved

# ---- Parts of [0, 1] from left to right, each halved as often as its functions need.


def deepest_level(dtype: DTypeLike) -> int:
    """Return how often an interval is halved at most: down to about eps^0.6."""
    return min(int(-0.6 * math.log2(jnp.finfo(dtype).eps)), 30)


class StepPart(eqx.Module):
    """The part [index, index + 1] / 2^level of [0, 1]; beyond 1 once all have been passed."""

    index: Int[Array, ""]
    level: Int[Array, ""]

    @staticmethod
    def whole_step() -> "StepPart":
        """Return all of [0, 1]."""
        return StepPart(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def part_ends(self, dtype: DTypeLike) -> tuple[Array, Array]:
        """Return the fractions of the step at which the part begins and ends."""
        # Not `exp2`, which rounds: neighbours have to meet.
        width = 1 / jnp.left_shift(1, self.level).astype(dtype)
        index = self.index.astype(dtype)
        return index * width, (index + 1) * width

    @property
    def is_inside(self) -> Array:
        """Tell whether the part still lies in [0, 1]."""
        return (self.index >> self.level) == 0

    def next_part(self, split: Array) -> "StepPart":
        """Return the left half if the part is to be split, else the largest that begins at its end.

        That one is the right half of the smallest part before it that was split.
        """
        after = self.index + 1
        zeros = lax.population_count((after & -after) - 1)
        return StepPart(
            jnp.where(split, 2 * self.index, after >> jnp.minimum(zeros, self.level)),
            jnp.where(split, self.level + 1, jnp.maximum(self.level - zeros, 0)),
        )


# ---- Brackets of the crossings within one step, and stretches where they stay unknown.

SPARE_CROSSINGS = 1024  # crossings within one step, besides one per component


class Directions(eqx.Module):
    """Two flags per component: whether its rising, and whether its falling, counts."""

    up: Bool[Array, " C"]
    down: Bool[Array, " C"]

    def of_components(self, component: ArrayLike) -> "Directions":
        """Return the flags of components of these numbers."""
        return Directions(self.up[component], self.down[component])

    def is_counted(self, rising: Array) -> Array:
        """Tell which crossings in these directions count."""
        up, down = (jnp.broadcast_to(way, rising.shape) for way in (self.up, self.down))
        return jnp.where(rising, up, down)


class Brackets(eqx.Module):
    """Crossings within a step, each between two times, and stretches that stay unresolved.

    - `spans`: (R, 5), the times, an uncertainty that is known beforehand (0: it is not), and the
      values at both times, or their signs where these are all that is known.
    - `marks`: (R, 2), the component, and 1 where it rises.
    """

    spans: Float[Array, "R 5"]
    marks: Int[Array, "R 2"]
    count: Int[Array, ""]
    unresolved: Unresolved

    @staticmethod
    def empty(components: int, doubts: Unresolved) -> "Brackets":
        """Return room for the crossings of one step, none entered yet."""
        room = components + SPARE_CROSSINGS
        spans, marks = jnp.zeros((room, 5), doubts.start.dtype), jnp.zeros((room, 2), jnp.int32)
        return Brackets(spans, marks, jnp.zeros((), jnp.int32), doubts)

    @property
    def capacity(self) -> int:
        """The number of crossings that there is room for."""
        return self.spans.shape[0]

    def append(
        self,
        wanted: Array,
        low: ArrayLike,
        high: ArrayLike,
        component: ArrayLike,
        rising: Array,
        uncertainty: ArrayLike = 0.0,
        values: tuple[Array, Array] | None = None,
    ) -> "Brackets":
        """Append the crossings that are `wanted`; the other arguments broadcast to its shape."""
        sign = jnp.where(rising, 1.0, -1.0)
        at_low, at_high = (-sign, sign) if values is None else values
        flat = wanted.ravel()
        at = jnp.where(flat, self.count + jnp.cumsum(flat, dtype=jnp.int32) - 1, self.capacity)

        def append_rows(table: Array, *columns: ArrayLike) -> Array:
            rows = [
                jnp.broadcast_to(jnp.asarray(c).astype(table.dtype), wanted.shape).ravel()
                for c in columns
            ]
            return table.at[at].set(jnp.stack(rows, axis=1), mode="drop")

        return Brackets(
            append_rows(self.spans, low, high, uncertainty, at_low, at_high),
            append_rows(self.marks, component, rising),
            self.count + jnp.sum(flat, dtype=jnp.int32),
            self.unresolved,
        )

    def append_unresolved(
        self, wanted: Array, low: Array, high: Array, component: ArrayLike
    ) -> "Brackets":
        """Append stretches of time in which crossings of components stay unresolved."""
        doubts = lax.cond(
            jnp.any(wanted),
            lambda: self.unresolved.append(wanted, low, high, component),
            lambda: self.unresolved,
        )
        return Brackets(self.spans, self.marks, self.count, doubts)

    def finish(self, start: ArrayLike, end: ArrayLike) -> Unresolved:
        """Return the unresolved stretches; the whole step is one if crossings did not fit."""
        full = jnp.asarray(self.count > self.capacity)[None]
        return self.unresolved.append(full, start, end, self.marks[-1, 0])


MAX_STEP_PARTS = 4096  # of a step; after so many the rest is not halved any more, and is unresolved


class Components(eqx.Module):
    """Components of the watched values that are searched side by side, along one step.

    - `sample`: function of a part of the step, as two fractions, and of flags `wanted` (C,) that
      returns the values (n, C) at the part's nodes; those that are not wanted may be anything.
    - `times`: the times at the nodes of a part.
    - `number`: (C,), which component of all each is.
    - `above`: (C,), whether positive at the step's start.
    - `error_at`: function of the values (C,) at the step's end that returns their error (C,), which
      is called where a look at the whole step does not do; None where the end is known beforehand.
    - `touches`: (C,), whether a dip that stays within the error counts as a pair of crossings.
    - `directions`: which crossings count.
    """

    sample: Callable[[Array, Array, Array], Float[Array, "n C"]] | None
    times: Callable[[Array, Array], Float[Array, " n"]]
    margin_factor: float  # see `certify_roots`
    component: Int[Array, " C"]
    above: Bool[Array, " C"]
    error_at: Callable[[Array], Float[Array, " C"]] | None
    touches: Bool[Array, " C"]
    directions: Directions


class StepEnd(eqx.Module):
    """Hold what is known of components at a step's end.

    - `values`: (C,).
    - `error`: (C,), below which a value is not known to differ from zero.
    """

    values: Float[Array, " C"]
    error: Float[Array, " C"]


class _SearchState(eqx.Module):
    """State of the search of one step, part by part from left to right.

    - `until`: (C,), the fraction of the step up to which each component is done.
    - `above`: (C,), its side there.
    - `since`, `least`, `bottom`: (C,), the time since which it has been within its error (inf: it
      is not; -inf: it was so from the start, or changed sign there), its least size there, and the
      time of that.
    - `parts`: the number of parts searched.
    - `end`: what is known of the step's end.
    """

    part: StepPart
    done_until: Float[Array, " C"]
    above: Bool[Array, " C"]
    quiet_since: Float[Array, " C"]
    least_size: Float[Array, " C"]
    least_time: Float[Array, " C"]
    part_count: Int[Array, ""]
    end: StepEnd
    brackets: Brackets


def search_crossings(
    components: Components, todo: Bool[Array, " C"], end: StepEnd, brackets: Brackets
) -> tuple[Brackets, StepEnd]:
    """Add the crossings of the components that are `todo`, looking at the whole step first.

    A part is done for a component that certainly has no root in it, or one; the others go on
    with its halves. Values that stay within the error are done as well: they cross if they come
    out on the other side; one that dips into the error and out again on the same side is recorded
    as a pair of crossings at its least value, with an uncertainty. At the last level a jump is a
    crossing; several changes of sign there, or what is left when `PARTS` are used up, are doubts.
    So is all that is NaN, which has no side: nothing crosses on the way into it or out of it.

    **Returns:** the brackets, and what is known of the step's end.
    """
    dtype, far = end.values.dtype, jnp.full_like(end.values, jnp.inf)
    start = _SearchState(
        part=StepPart.whole_step(),
        done_until=jnp.where(todo, 0.0, 1.0).astype(dtype),
        above=components.above,
        quiet_since=far,
        least_size=far,
        least_time=far,
        part_count=jnp.zeros((), jnp.int32),
        end=end,
        brackets=brackets,
    )

    def is_unfinished(search: _SearchState) -> Array:
        return search.part.is_inside & jnp.any(search.done_until < 1)

    found = lax.while_loop(is_unfinished, lambda s: _search_part(components, s), start)
    return found.brackets, found.end


def _search_part(components: Components, search: _SearchState) -> _SearchState:
    """Search one part further."""
    end, dtype = search.end, search.end.values.dtype
    low, high = search.part.part_ends(dtype)
    wanted = search.done_until <= low
    assert components.sample is not None
    values, times = components.sample(low, high, wanted), components.times(low, high)
    whole = search.part_count == 0
    if components.error_at is not None:
        end = replace_fields(end, values=jnp.where(whole, values[-1], end.values))
    clear, single, rough = certify_roots(values, components.margin_factor)
    size = jnp.max(jnp.abs(values), axis=0)
    quiet = (size <= end.error) & ~clear & ~single
    lost = jnp.isnan(values)
    fine = clear | single | quiet | jnp.all(lost, axis=0)
    level, parts = search.part.level, search.part_count + 1
    last = (level >= deepest_level(dtype)) | (parts >= MAX_STEP_PARTS)
    done = wanted & (fine | last)

    signs = (values > 0).at[0].set(search.above)
    signs = signs.at[-1].set(jnp.where(high >= 1, end.values > 0, signs[-1]))
    signs = jnp.where(quiet[None], _with_one_change(signs), signs)
    changed = (signs[1:] != signs[:-1]) & ~lost[1:] & ~lost[:-1] & done[None]
    several = jnp.sum(changed, axis=0) > 1
    unsure = (~fine & (several | (parts >= MAX_STEP_PARTS))) | (
        quiet & rough & (components.margin_factor > 0)
    )
    unsure = done & (unsure | jnp.any(lost, axis=0))
    rows = _changes_of_sign(components, signs, changed, times, values)
    dips, search = _pass_dips(
        components, search, done, quiet, jnp.any(changed, axis=0), values, times
    )
    brackets = _append_crossings(components, [rows, dips], search.brackets)
    brackets = brackets.append_unresolved(unsure, times[0], times[-1], components.component)
    left = jnp.any(wanted & ~done)
    if components.error_at is not None:
        error = lax.cond(whole & left, components.error_at, lambda values: end.error, end.values)
        end = replace_fields(end, error=error)
    return _SearchState(
        part=search.part.next_part(left),
        done_until=jnp.where(done, high, search.done_until),
        above=jnp.where(done, signs[-1], search.above),
        quiet_since=search.quiet_since,
        least_size=search.least_size,
        least_time=search.least_time,
        part_count=parts,
        end=end,
        brackets=brackets,
    )


def _with_one_change(signs: Bool[Array, "n C"]) -> Bool[Array, "n C"]:
    """Return signs that are those of both ends, with one change at most, at the first there is."""
    left = lax.cummax((signs != signs[:1]).astype(jnp.int8)).astype(bool)
    return jnp.where(left & (signs[-1:] != signs[:1]), signs[-1:], signs[:1])


# Crossings as columns of `Brackets.append`: wanted, low, high, rising, uncertainty, both values.
_BracketColumns = tuple[Array, ArrayLike, ArrayLike, Array, ArrayLike, Array, Array]


def _append_crossings(
    components: Components, some: list[_BracketColumns], brackets: Brackets
) -> Brackets:
    """Append crossings, each of shape (n, C), those that are wanted."""

    def append_columns() -> Brackets:
        tables = [[jnp.broadcast_to(c, columns[0].shape) for c in columns] for columns in some]
        wanted, low, high, rising, uncertainty, *values = (
            jnp.concatenate(column) for column in zip(*tables, strict=True)
        )
        return brackets.append(
            wanted, low, high, components.component, rising, uncertainty, (values[0], values[1])
        )

    some_wanted = functools.reduce(jnp.logical_or, [jnp.any(columns[0]) for columns in some])
    return lax.cond(some_wanted, append_columns, lambda: brackets)


def _changes_of_sign(
    components: Components, signs: Array, changed: Array, times: Array, values: Array
) -> _BracketColumns:
    """Return the changes of sign between neighbouring nodes."""
    counts, none = changed & components.directions.is_counted(signs[1:]), jnp.zeros((), times.dtype)
    return counts, times[:-1, None], times[1:, None], signs[1:], none, values[:-1], values[1:]


def _pass_dips(
    components: Components,
    search: _SearchState,
    done: Array,
    quiet: Array,
    changed: Array,
    values: Array,
    times: Array,
) -> tuple[_BracketColumns, _SearchState]:
    """Return the dips into the error and out of it again that this part ends, and those it goes on.

    **Returns:** crossings, and the state with what is known of the dips that are left.
    """
    quiet, leaves = done & quiet, done & ~quiet
    touched = leaves & jnp.isfinite(search.quiet_since) & components.touches
    rising = jnp.stack([~search.above, search.above])
    half = (times[0] - search.quiet_since) / 2
    wanted = touched[None] & components.directions.is_counted(rising)
    sizes = search.least_size, search.least_size
    dips = wanted, search.least_time, search.least_time, rising, half, *sizes
    never = changed | (search.part.index == 0)
    entered = jnp.where(jnp.isposinf(search.quiet_since), times[0], search.quiet_since)
    since = jnp.where(quiet, jnp.where(never, -jnp.inf, entered), search.quiet_since)
    deepest_yet = jnp.min(jnp.abs(values), axis=0)
    lower = quiet & (deepest_yet < search.least_size)
    here = times[jnp.argmin(jnp.abs(values), axis=0)]
    return dips, replace_fields(
        search,
        quiet_since=jnp.where(leaves, jnp.inf, since),
        least_size=jnp.where(leaves, jnp.inf, jnp.where(lower, deepest_yet, search.least_size)),
        least_time=jnp.where(lower, here, search.least_time),
    )


def first_pass(
    components: Components,
    values: Float[Array, "n C"],
    times: Float[Array, " n"],
    brackets: Brackets,
) -> tuple[Bool[Array, " C"], Brackets]:
    """Search the whole step in one pass, by values at its nodes.

    **Returns:** which components it leaves to do, and the crossings with those of the others.
    """
    clear, single, _ = certify_roots(values, components.margin_factor)
    fine = clear | single
    signs = (values > 0).at[0].set(components.above)
    changed = (signs[1:] != signs[:-1]) & fine[None]
    rows = _changes_of_sign(components, signs, changed, times, values)
    return ~fine, _append_crossings(components, [rows], brackets)
