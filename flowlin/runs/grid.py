"""Grids of the values that a sweep covers, and the networks and tasks made from them."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from flowlin._tools.arguments import argument_error
from flowlin._tools.printing import Summary, format_count, print_by
from flowlin._tools.tables import Cell
from flowlin.record.event_log import EVENT_COLUMNS
from flowlin.tasks.task import Task

RESERVED_COLUMNS = {
    "run",
    "failed",
    "key",
    "functions",
    *EVENT_COLUMNS,
}  # columns that the tables of a sweep have themselves


def _grid_summary(found: "Grid") -> Summary:
    """Print the number of points, and the values of each axis."""
    rows = [
        (name, ", ".join(map(str, _shorten_values(values)))) for name, values in found.axes.items()
    ]
    return Summary(f"Grid of {format_count(len(found), 'point')}", rows)


def _shorten_values(values: tuple) -> tuple:
    return values if len(values) <= 8 else (*values[:4], "...", *values[-3:])


@print_by(_grid_summary)
class Grid(Sequence[dict[str, Cell]]):
    """All combinations of some values, as a sequence of points; the last name varies fastest.

    A point is a dictionary from names to values. What a sweep over a grid gives, one number per
    run, has the grid's axes after `.reshape(grid.shape)`.

    - `axes`: by name, the values.
    """

    def __init__(self, axes: dict[str, tuple[Cell, ...]]):
        self.axes = axes

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names, in order."""
        return tuple(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of values of each axis, in order."""
        return tuple(map(len, self.axes.values()))

    def __len__(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        if not isinstance(index, (int, np.integer)):
            raise argument_error("index", "a whole number or a slice", index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"`index` = {index} is out of range: the grid has {len(self)} points.")
        places = np.unravel_index(index % len(self), self.shape)
        pairs = zip(places, self.axes.items(), strict=True)
        return {name: values[int(k)] for k, (name, values) in pairs}

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


def grid(**axes: PyTree) -> Grid:
    """Make a grid of all combinations of some values, for `fl.sweep(grid=...)`.

    **Arguments:** by name, a list of numbers, truth values or words; a single one is a list of one.

    **Returns:** `Grid`, a row per combination, the last name's values changing fastest.

    **Raises:** `ValueError` for no values or odd ones, and for names of a sweep's own columns.
    """
    for name in axes:
        if name in RESERVED_COLUMNS:
            raise ValueError(
                f"`{name}` is a column of a sweep's tables already; give the axis another name."
            )
    return Grid({name: _axis_values(name, values) for name, values in axes.items()})


def _axis_values(name: str, given: PyTree) -> tuple[Cell, ...]:
    """Return the values of an axis as Python's own; a single one is a list of one."""
    wanted = "a list of numbers, truth values or words"
    if isinstance(given, (bool, int, float, str, np.generic)) or np.ndim(given) == 0:
        given = (given,)
    if isinstance(given, dict) or np.ndim(given) > 1:
        raise argument_error(name, wanted, given)
    values = tuple(table_cell(f"{name}[{k}]", one) for k, one in enumerate(given))
    if not values:
        raise argument_error(name, wanted, given, "give at least one value")
    return values


def table_cell(name: str, value: PyTree) -> Cell:
    """Return a number, a truth value or a word as Python's own; `ValueError` for anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, (bool, int, float, str)):
        raise argument_error(name, "a number, a truth value or a word", value)
    return value


def is_value_function(value: object) -> bool:
    """Tell whether a value is a function of a grid's values, and neither a network nor a task."""
    known = isinstance(value, (eqx.Module, Task)) or inspect.isclass(value)
    return callable(value) and not known


def evaluate_on_grid(points: Sequence[dict[str, Cell]], **arguments: PyTree) -> tuple[PyTree, ...]:
    """Return all arguments, of functions of the points' values the list of what they return.

    **Raises:** `ValueError` for functions without points, those that ask for what is no axis, and
    for axes that no function takes.
    """
    functions = {name: value for name, value in arguments.items() if is_value_function(value)}
    if functions and not points:
        name = next(iter(functions))
        raise ValueError(f"`{name}` is a function; pass `grid`, the values that it is called with.")
    axes = list(points[0]) if points else []
    takes = {name: _axis_arguments(name, value, axes) for name, value in functions.items()}
    idle = [axis for axis in axes if functions and not any(axis in t for t in takes.values())]
    if idle:
        raise ValueError(
            f"`grid` has the axis {idle[0]!r}, and no function of {', '.join(functions)} takes it; "
            "leave it out, or give a function an argument of that name."
        )
    return tuple(
        _value_per_point(value, takes[name], points) if name in functions else value
        for name, value in arguments.items()
    )


def _axis_arguments(name: str, function: Callable[..., PyTree], axes: list[str]) -> list[str]:
    """Return the axes that a function has arguments for."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return axes
    named = {p.name: p.default is p.empty for p in parameters if p.kind != p.VAR_POSITIONAL}
    missing = [word for word, needed in named.items() if needed and word not in axes]
    if missing:
        raise ValueError(
            f"`{name}` takes `{missing[0]}`, which is no axis of `grid`; it has {', '.join(axes)}."
        )
    return [axis for axis in axes if axis in named]


def _value_per_point(
    function: Callable[..., PyTree], takes: list[str], points: Sequence[dict]
) -> list[PyTree]:
    """Call a function at every point, once for the same values, and return the list of results."""
    made: dict[tuple, PyTree] = {}
    for point in points:
        values = tuple(point[name] for name in takes)
        if values not in made:
            made[values] = function(**dict(zip(takes, values, strict=True)))
    return [made[tuple(point[name] for name in takes)] for point in points]
