"""Search crossings of functions of time that can only be sampled."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.series import looked_at
from flowlin.record.event_log import Unresolved

# ---- Parts of [0, 1] from left to right, each halved as often as its functions need.


def deepest(dtype: DTypeLike) -> int:
    """Return how often an interval is halved at most: down to about eps^0.6."""
    return min(int(-0.6 * math.log2(jnp.finfo(dtype).eps)), 30)


class Part(eqx.Module):
    """The part [index, index + 1] / 2^level of [0, 1]; beyond 1 once all have been passed."""

    index: Int[Array, ""]
    level: Int[Array, ""]

    @staticmethod
    def whole() -> "Part":
        """Return all of [0, 1]."""
        return Part(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def ends(self, dtype: DTypeLike) -> tuple[Array, Array]:
        """Return the fractions of the step at which the part begins and ends."""
        # Not `exp2`, which rounds: neighbours have to meet.
        width = 1 / jnp.left_shift(1, self.level).astype(dtype)
        index = self.index.astype(dtype)
        return index * width, (index + 1) * width

    @property
    def is_inside(self) -> Array:
        """Tell whether the part still lies in [0, 1]."""
        return (self.index >> self.level) == 0

    def following(self, split: Array) -> "Part":
        """Return the left half if the part is to be split, else the largest that begins at its end.

        That one is the right half of the smallest part before it that was split.

        That one is the right half of the smallest part before it that was split.
        """
        after = self.index + 1
        zeros = lax.population_count((after & -after) - 1)
        return Part(
            jnp.where(split, 2 * self.index, after >> jnp.minimum(zeros, self.level)),
            jnp.where(split, self.level + 1, jnp.maximum(self.level - zeros, 0)),
        )


# ---- Brackets of the crossings within one step, and stretches where they stay unknown.

SPARE = 1024  # crossings within one step, besides one per component


class Directions(eqx.Module):
    """Two flags per component: whether its rising, and whether its falling, counts."""

    up: Bool[Array, " C"]
    down: Bool[Array, " C"]

    def of(self, number: ArrayLike) -> "Directions":
        """Return the flags of components of these numbers."""
        return Directions(self.up[number], self.down[number])

    def counts(self, rising: Array) -> Array:
        """Tell which crossings in these directions count."""
        up, down = (jnp.broadcast_to(way, rising.shape) for way in (self.up, self.down))
        return jnp.where(rising, up, down)


class Brackets(eqx.Module):
    """Crossings within a step, each between two times, and stretches that stay unresolved.

    - `spans`: (R, 3), the times, and an uncertainty that is known beforehand (0: it is not).
    - `marks`: (R, 2), the component, and 1 where it rises.
    """

    spans: Float[Array, "R 3"]
    marks: Int[Array, "R 2"]
    count: Int[Array, ""]
    doubts: Unresolved

    @staticmethod
    def empty(components: int, doubts: Unresolved) -> "Brackets":
        """Return room for the crossings of one step, none entered yet."""
        room = components + SPARE
        spans, marks = jnp.zeros((room, 3), doubts.start.dtype), jnp.zeros((room, 2), jnp.int32)
        return Brackets(spans, marks, jnp.zeros((), jnp.int32), doubts)

    @property
    def room(self) -> int:
        """The number of crossings that there is room for."""
        return self.spans.shape[0]

    def put(
        self,
        wanted: Array,
        low: ArrayLike,
        high: ArrayLike,
        component: ArrayLike,
        rising: ArrayLike,
        spread: ArrayLike = 0.0,
    ) -> "Brackets":
        """Append the crossings that are `wanted`; the other arguments broadcast to its shape."""
        flat = wanted.ravel()
        at = jnp.where(flat, self.count + jnp.cumsum(flat, dtype=jnp.int32) - 1, self.room)

        def into(table: Array, *columns: Any) -> Array:
            rows = [
                jnp.broadcast_to(jnp.asarray(c).astype(table.dtype), wanted.shape).ravel()
                for c in columns
            ]
            return table.at[at].set(jnp.stack(rows, axis=1), mode="drop")

        return Brackets(
            into(self.spans, low, high, spread),
            into(self.marks, component, rising),
            self.count + jnp.sum(flat, dtype=jnp.int32),
            self.doubts,
        )

    def doubted(self, wanted: Array, low: Array, high: Array, component: ArrayLike) -> "Brackets":
        """Append stretches of time in which crossings of components stay unresolved."""
        doubts = lax.cond(
            jnp.any(wanted),
            lambda: self.doubts.put(wanted, low, high, component),
            lambda: self.doubts,
        )
        return Brackets(self.spans, self.marks, self.count, doubts)

    def closed(self, start: ArrayLike, end: ArrayLike) -> Unresolved:
        """Return the unresolved stretches; the whole step is one if crossings did not fit."""
        full = jnp.asarray(self.count > self.room)[None]
        return self.doubts.put(full, start, end, self.marks[-1, 0])


PARTS = 4096  # of a step; after so many the rest is not halved any more, and is unresolved


class Components(eqx.Module):
    """Components of the watched values that are searched side by side, along one step.

    - `sample`: function of a part of the step, as two fractions, and of flags `wanted` (C,) that
      returns the values (n, C) at the part's nodes; those that are not wanted may be anything.
    - `times`: the times at the nodes of a part.
    - `number`: (C,), which component of all each is.
    - `above`, `above_end`: (C,), whether positive at the step's start and end.
    - `error`: (C,), below which a value is not known to differ from zero.
    - `touches`: (C,), whether a dip that stays within the error counts as a pair of crossings.
    - `directions`: which crossings count.
    """

    sample: Callable[[Array, Array, Array], Float[Array, "n C"]] | None
    times: Callable[[Array, Array], Float[Array, " n"]]
    factor: float  # see `looked_at`
    number: Int[Array, " C"]
    above: Bool[Array, " C"]
    above_end: Bool[Array, " C"]
    error: Float[Array, " C"]
    touches: Bool[Array, " C"]
    directions: Directions


class _Search(eqx.Module):
    """State of the search of one step, part by part from left to right.

    - `until`: (C,), the fraction of the step up to which each component is done.
    - `above`: (C,), its side there.
    - `since`, `least`, `bottom`: (C,), the time since which it has been within its error (inf: it
      is not; -inf: it was so from the start, or changed sign there), its least size there, and the
      time of that.
    - `parts`: the number of parts searched.
    """

    part: Part
    until: Float[Array, " C"]
    above: Bool[Array, " C"]
    since: Float[Array, " C"]
    least: Float[Array, " C"]
    bottom: Float[Array, " C"]
    parts: Int[Array, ""]
    found: Brackets


def searched(them: Components, todo: Bool[Array, " C"], found: Brackets) -> Brackets:
    """Add the crossings of the components that are `todo`.

    A part is done for a component that certainly has no root in it, or one; the others go on
    with its halves. Values that stay within the error are done as well: they cross if they come
    out on the other side; one that dips into the error and out again on the same side is recorded
    as a pair of crossings at its least value, with an uncertainty. At the last level a jump is a
    crossing; several changes of sign there, or what is left when `PARTS` are used up, are doubts.
    So is all that is NaN, which has no side: nothing crosses on the way into it or out of it.
    """
    dtype, far = them.error.dtype, jnp.full(todo.shape, jnp.inf, them.error.dtype)
    start = _Search(
        part=Part.whole(),
        until=jnp.where(todo, 0.0, 1.0).astype(dtype),
        above=them.above,
        since=far,
        least=far,
        bottom=far,
        parts=jnp.zeros((), jnp.int32),
        found=found,
    )

    def unfinished(search: _Search) -> Array:
        return search.part.is_inside & jnp.any(search.until < 1)

    return lax.while_loop(unfinished, lambda s: _looked(them, s), start).found


def _looked(them: Components, search: _Search) -> _Search:
    """Search one part further."""
    dtype = them.error.dtype
    low, high = search.part.ends(dtype)
    wanted = search.until <= low
    assert them.sample is not None
    values, times = them.sample(low, high, wanted), them.times(low, high)
    clear, single, rough = looked_at(values, them.factor)
    size = jnp.max(jnp.abs(values), axis=0)
    quiet = (size <= them.error) & ~clear & ~single
    lost = jnp.isnan(values)
    fine = clear | single | quiet | jnp.all(lost, axis=0)
    level, parts = search.part.level, search.parts + 1
    last = (level >= deepest(dtype)) | (parts >= PARTS)
    done = wanted & (fine | last)

    signs = (values > 0).at[0].set(search.above)
    signs = signs.at[-1].set(jnp.where(high >= 1, them.above_end, signs[-1]))
    signs = jnp.where(quiet[None], _once(signs), signs)
    changed = (signs[1:] != signs[:-1]) & ~lost[1:] & ~lost[:-1] & done[None]
    several = jnp.sum(changed, axis=0) > 1
    unsure = (~fine & (several | (parts >= PARTS))) | (quiet & rough & (them.factor > 0))
    unsure = done & (unsure | jnp.any(lost, axis=0))
    moved = _recorded(them, search.found, signs, changed, times)
    moved = moved.doubted(unsure, times[0], times[-1], them.number)
    search = eqx.tree_at(lambda s: s.found, search, moved)
    search = _dips(them, search, done, quiet, jnp.any(changed, axis=0), values, times)
    return _Search(
        part=search.part.following(jnp.any(wanted & ~done)),
        until=jnp.where(done, high, search.until),
        above=jnp.where(done, signs[-1], search.above),
        since=search.since,
        least=search.least,
        bottom=search.bottom,
        parts=parts,
        found=search.found,
    )


def _once(signs: Bool[Array, "n C"]) -> Bool[Array, "n C"]:
    """Return signs that are those of both ends, with one change at most, at the first there is."""
    left = lax.cummax((signs != signs[:1]).astype(jnp.int8)).astype(bool)
    return jnp.where(left & (signs[-1:] != signs[:1]), signs[-1:], signs[:1])


def _recorded(
    them: Components,
    found: Brackets,
    signs: Array,
    changed: Array,
    times: Array,
) -> Brackets:
    """Append the changes of sign between neighbouring nodes."""
    counts = changed & them.directions.counts(signs[1:])

    def record() -> Brackets:
        return found.put(counts, times[:-1, None], times[1:, None], them.number, signs[1:])

    return lax.cond(jnp.any(counts), record, lambda: found)


def _dips(
    them: Components,
    search: _Search,
    done: Array,
    quiet: Array,
    changed: Array,
    values: Array,
    times: Array,
) -> _Search:
    """Append the dips into the error and out of it again that this part ends."""
    quiet, leaves = done & quiet, done & ~quiet
    touched = leaves & jnp.isfinite(search.since) & them.touches

    def record() -> Brackets:
        rising = jnp.stack([~search.above, search.above])
        half = (times[0] - search.since) / 2
        wanted = touched[None] & them.directions.counts(rising)
        return search.found.put(wanted, search.bottom, search.bottom, them.number, rising, half)

    found = lax.cond(jnp.any(touched), record, lambda: search.found)
    never = changed | (search.part.index == 0)
    entered = jnp.where(jnp.isposinf(search.since), times[0], search.since)
    since = jnp.where(quiet, jnp.where(never, -jnp.inf, entered), search.since)
    deepest_yet = jnp.min(jnp.abs(values), axis=0)
    lower = quiet & (deepest_yet < search.least)
    here = times[jnp.argmin(jnp.abs(values), axis=0)]
    return _Search(
        part=search.part,
        until=search.until,
        above=search.above,
        since=jnp.where(leaves, jnp.inf, since),
        least=jnp.where(leaves, jnp.inf, jnp.where(lower, deepest_yet, search.least)),
        bottom=jnp.where(lower, here, search.bottom),
        parts=search.parts,
        found=found,
    )


def first_look(
    them: Components,
    values: Float[Array, "n C"],
    times: Float[Array, " n"],
    factor: float,
    found: Brackets,
) -> tuple[Bool[Array, " C"], Brackets]:
    """Search the whole step in one pass.

    **Returns:** which components it leaves to do, and the crossings with those of the others.
    """
    clear, single, _ = looked_at(values, factor)
    fine = clear | single
    signs = (values > 0).at[0].set(them.above).at[-1].set(them.above_end)
    changed = (signs[1:] != signs[:-1]) & fine[None]
    return ~fine, _recorded(them, found, signs, changed, times)
