"""A table on disk that grows by whole rows, as results come."""

import csv
import io
import os
import threading

from flowlin._tools.archive import require_place
from flowlin._tools.types import PathLike

Cell = float | int | bool | str
Row = dict[str, Cell]


class GrowingTable:
    """A CSV file: a header, and a row for every result, written at once and kept by the disk.

    A row that a killed process has left half written is none, and is cut off before the next one.
    Numbers are read as they were written, to the last bit.

    - `name`: of the argument that says where it lies.
    - `columns`: None as long as there is no header.
    - `rows`: those that were there when it was opened.

    **Raises:** `ValueError` for a place that cannot be one, or a file that is no such table.
    """

    def __init__(self, name: str, path: PathLike):
        self.name, self.place = name, require_place(name, path)
        self.columns: list[str] | None = None
        self.rows: list[Row] = []
        self._whole, self._lock = 0, threading.Lock()
        if self.place.exists():
            self._read()

    def append(self, row: Row) -> None:
        """Write a row, whose names are the columns'; the first one makes the header.

        **Raises:** `ValueError` for other columns than the table's.
        """
        with self._lock:
            first = self.columns is None
            self.columns = self.columns or list(row)
            if self.columns != list(row):
                raise self._other(list(row))
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            if first:
                writer.writerow(self.columns)
            writer.writerow([repr(cell) if _is_number(cell) else cell for cell in row.values()])
            with open(self.place, "ab") as file:
                file.truncate(self._whole)
                file.write(text.getvalue().encode())
                file.flush()
                os.fsync(file.fileno())
                self._whole = file.tell()

    def require_columns(self, first: list[str], last: list[str]) -> None:
        """Raise `ValueError` unless the header begins and ends with these, where there is one."""
        if self.columns is None:
            return
        inner = len(self.columns) - len(first) - len(last)
        found = self.columns[: len(first)], self.columns[len(first) + max(inner, 0) :]
        if inner < 0 or found != (first, last):
            raise self._other([*first, "...", *last])

    def _other(self, wanted: list[str]) -> ValueError:
        return ValueError(
            f"`{self.name}` = {str(self.place)!r} is a table of {', '.join(self.columns or [])}, "
            f"and the rows to write have {', '.join(wanted)}; choose another file."
        )

    def _read(self) -> None:
        data = self.place.read_bytes()
        self._whole = data.rfind(b"\n") + 1
        try:
            found = list(csv.reader(io.StringIO(data[: self._whole].decode()), strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        if not found:
            return
        self.columns = found[0]
        if any(len(row) != len(self.columns) for row in found):
            raise self._damaged("its rows are not of one length")
        self.rows = [dict(zip(self.columns, map(_parsed, row), strict=True)) for row in found[1:]]

    def _damaged(self, why: str) -> ValueError:
        return ValueError(
            f"`{self.name}` = {str(self.place)!r} is no table of results ({why}); choose another "
            "file, or remove it."
        )


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str)


def _parsed(text: str) -> Cell:
    """A number or a truth value where it reads as one."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
