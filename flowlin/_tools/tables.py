"""A table on disk that grows by whole rows, as results come."""

import csv
import io
import os
import threading

from flowlin._tools.arrays import PathLike
from flowlin._tools.files import writable_path

Cell = float | int | bool | str
TableRow = dict[str, Cell]


class GrowingTable:
    """A CSV file: a header, and a row for every result, written at once and kept by the disk.

    A row that a killed process has left half written is cut off before the next one is written.
    Numbers are read as they were written, to the last bit.

    - `name`: of the argument that says where it lies.
    - `columns`: None as long as there is no header.
    - `rows`: those that were there when it was opened.

    **Raises:** `ValueError` for a place that cannot be one, or a file that is no such table.
    """

    def __init__(self, name: str, path: PathLike):
        self.name, self.path = name, writable_path(name, path)
        self.columns: list[str] | None = None
        self.rows: list[TableRow] = []
        self._end_of_rows, self._lock = 0, threading.Lock()
        if self.path.exists():
            self._read_rows()

    def append_row(self, row: TableRow) -> None:
        """Write a row, whose names are the columns'; the first one makes the header.

        **Raises:** `ValueError` for other columns than the table's.
        """
        with self._lock:
            first = self.columns is None
            self.columns = self.columns or list(row)
            if self.columns != list(row):
                raise self._columns_error(list(row))
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            if first:
                writer.writerow(self.columns)
            writer.writerow([repr(cell) if _is_number(cell) else cell for cell in row.values()])
            with open(self.path, "ab") as file:
                file.truncate(self._end_of_rows)
                file.write(text.getvalue().encode())
                file.flush()
                os.fsync(file.fileno())
                self._end_of_rows = file.tell()

    def require_columns(self, first: list[str], last: list[str]) -> None:
        """Raise `ValueError` unless the header begins and ends with these, where there is one."""
        if self.columns is None:
            return
        inner = len(self.columns) - len(first) - len(last)
        found = self.columns[: len(first)], self.columns[len(first) + max(inner, 0) :]
        if inner < 0 or found != (first, last):
            raise self._columns_error([*first, "...", *last])

    def _columns_error(self, wanted: list[str]) -> ValueError:
        """Return the error for columns that are not the table's."""
        return ValueError(
            f"`{self.name}` = {str(self.path)!r} is a table of {', '.join(self.columns or [])}, "
            f"and the rows to write have {', '.join(wanted)}; choose another file."
        )

    def _read_rows(self) -> None:
        """Read the header and the whole rows, and note where they end."""
        data = self.path.read_bytes()
        self._end_of_rows = data.rfind(b"\n") + 1
        try:
            found = list(csv.reader(io.StringIO(data[: self._end_of_rows].decode()), strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise self._table_error(str(error)) from None
        if not found:
            return
        self.columns = found[0]
        if any(len(row) != len(self.columns) for row in found):
            raise self._table_error("its rows are not of one length")
        self.rows = [
            dict(zip(self.columns, map(_parse_cell, row), strict=True)) for row in found[1:]
        ]

    def _table_error(self, why: str) -> ValueError:
        """Return the error for a file that is no table of results, which says why."""
        return ValueError(
            f"`{self.name}` = {str(self.path)!r} is no table of results ({why}); choose another "
            "file, or remove it."
        )


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str)


def _parse_cell(text: str) -> Cell:
    """Read a cell as a number or a truth value, where it is one."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
