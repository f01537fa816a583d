"""Printing of objects: a few lines of text, or a small table in notebooks."""

import html
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO, TypeVar

import equinox as eqx
import jax
import jax.core
import numpy as np

from flowlin._tools.arguments import argument_error, checked, positive


def format_times(times: np.ndarray) -> str:
    """Write how many times there are, and the first and the last."""
    if not len(times):
        return "no time"
    first, last = format_number(times[0]), format_number(times[-1])
    return f"{format_count(len(times), 'time')} from {first} to {last}"


C = TypeVar("C", bound=type)
WIDTH = 100  # of a line
LONGEST_WORDS = 60  # characters of a user's words
LONGEST_ADVICE = 200  # of what happened, why, and what to do about it


class Summary(NamedTuple):
    """The text that an object prints: a title, and rows of cells, the first of which is a label.

    Rows of equally many cells are aligned. An `inline` summary is one line of text,
    `title(cell, cell, ...)`, without the labels; in notebooks it is a table as well.
    """

    title: str
    rows: list[tuple[str, ...]]
    inline: bool = False

    def __str__(self) -> str:
        if self.inline:
            return f"{self.title}({', '.join(row[-1] for row in self.rows)})"
        return "\n".join([self.title, *self._lines_of_rows()])

    def _lines_of_rows(self) -> list[str]:
        """Lay out the rows as lines of at most 100 characters, equal columns aligned."""
        columns: dict[int, list[int]] = {}
        for row in self.rows:
            widths = columns.setdefault(len(row), [0] * len(row))
            widths[:] = map(max, widths, map(len, row))
        label = max((widths[0] for widths in columns.values()), default=0)
        lines = []
        for row in self.rows:
            widths = [label, *columns[len(row)][1:-1]]
            cells = (cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False))
            begin = "".join(f"  {cell}" for cell in cells) + "  "
            later = " " * (label + 4)
            lines += textwrap.wrap(
                begin + row[-1], WIDTH, subsequent_indent=later, break_on_hyphens=False
            )
        return lines

    def html_table(self) -> str:
        """Write an HTML table whose caption is the title; every cell is escaped."""
        columns = max((len(row) for row in self.rows), default=1)
        lines = [_html_row(row, columns) for row in self.rows]
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<tbody>{''.join(lines)}</tbody></table>"


def _html_row(row: tuple[str, ...], columns: int) -> str:
    """Write one row of an HTML table; the last cell spans the columns that are left."""
    left = 'style="text-align: left"'
    cells = [f"<th {left}>{html.escape(row[0])}</th>"]
    for k, cell in enumerate(row[1:], start=2):
        span = f' colspan="{columns - k + 1}"' if k == len(row) < columns else ""
        cells.append(f"<td {left}{span}>{html.escape(cell)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def print_by(describe: Callable[..., Summary]) -> Callable[[C], C]:
    """Decorate a class, so that its objects print what `describe` says of them.

    Inside tree maps and other people's transformations a field may hold anything; an object that
    cannot be described prints as Equinox would print it.
    """

    def set_repr(kind: C) -> C:
        def __repr__(self: object) -> str:
            try:
                return str(describe(self))
            except Exception:  # the repr of a broken object is needed most
                return _plain_repr(self)

        def _repr_html_(self: object) -> str:
            try:
                return describe(self).html_table()
            except Exception:
                return f"<pre>{html.escape(_plain_repr(self))}</pre>"

        kind.__repr__, kind._repr_html_ = __repr__, _repr_html_  # pyright: ignore
        return kind

    return set_repr


def _plain_repr(thing: object) -> str:
    """Write the fields of a dataclass with its arrays' shapes; no more than the type of others."""
    if hasattr(thing, "__dataclass_fields__"):
        return eqx.tree_pformat(thing, struct_as_array=True)
    return object.__repr__(thing)


def concrete_array(array: object, dimensions: int) -> np.ndarray | None:
    """Return the numbers of an array of so many axes; None for tracers, stacks, other things."""
    if isinstance(array, jax.core.Tracer):
        return None
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return None
    if not isinstance(array, (jax.Array, np.ndarray, np.generic, bool, int, float)):
        return None
    numbers = np.asarray(array)
    return numbers if numbers.ndim == dimensions else None


def format_number(value: object, digits: int = 6) -> str:
    """Write a number to so many digits; of anything else its type and shape, such as `f64[5]`."""
    found = concrete_array(value, 0)
    if found is None:
        return eqx.tree_pformat(value, struct_as_array=True)
    return f"{found:,}" if found.dtype.kind in "iu" else f"{float(found):.{digits}g}"


def format_range(values: object) -> str:
    """Write the range of some numbers, `low to high`, without those that are NaN."""
    numbers = np.asarray(values)
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        return "nan"
    low, high = format_number(np.min(numbers)), format_number(np.max(numbers))
    return low if low == high else f"{low} to {high}"


def format_first(values: object, digits: int = 6, most: int = 6) -> str:
    """Write the first `most` of some numbers (K,), with commas."""
    found = concrete_array(values, 1)
    if found is None:
        return format_number(values)
    words = [format_number(value, digits) for value in found[:most]]
    return ", ".join(words + ["..."] * (len(found) > most))


def shorten_text(words: object, longest: int = LONGEST_WORDS) -> str:
    """Write a user's words in one line, cut where they are long."""
    line = " ".join(str(words).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def format_count(count: int, thing: str) -> str:
    """Write a count with what is counted: `1 run`, `2 runs`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# ---- Progress of long work: bars, and lines for logs.


def _check_stream(name: str, value: object) -> object:
    """Check for something that lines can be written to, or None."""
    if value is not None and not (hasattr(value, "write") and hasattr(value, "flush")):
        raise argument_error(
            name, "None or an open text file", value, "open('run.log', 'a') makes one"
        )
    return value


@checked(every=positive, stream=_check_stream)
class LogProgress(eqx.Module):
    """A line every so many seconds, for jobs without a terminal: `progress=fl.LogProgress()`.

    It says t, loss (a descent's at its last saved step), steps and their speed, the time that
    passed, and what is left at the speed since the line before; one more line tells the end. It is
    written at the first pause after `every` seconds, so a step that takes longer delays it.

    - `every`: seconds between lines.
    - `stream`: an open text file; None is standard error.
    """

    every: float = 30.0
    stream: TextIO | None = eqx.field(default=None, static=True)


Progress = bool | LogProgress


def progress_option(name: str, value: object) -> Progress:
    """Check for a way to show progress: True for a bar, False for none, or lines of a log."""
    if not isinstance(value, (bool, LogProgress)):
        raise argument_error(name, "True, False or fl.LogProgress()", value)
    return value


def tqdm_bar(total: int | float | None, **options: Any) -> Any:
    """Return a tqdm bar, silent where standard error is not a terminal.

    **Raises:** `ImportError` if tqdm is missing, saying how to get it.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install 'flowlin[progress]'.") from error
    return tqdm(total=total, disable=None, **options)
