"""What a run recorded by name, which says what there is where a name is wrong."""

import difflib
from collections.abc import Hashable, Iterable
from typing import NoReturn

import jax
from jaxtyping import PyTree


class ObservedRows(dict[str, PyTree]):
    """Rows by the name of what was observed: a dictionary whose `KeyError` lists the names."""

    def __missing__(self, name: Hashable) -> NoReturn:
        """Raise `KeyError` for a name that was not recorded."""
        if not self:
            raise KeyError(
                f"the run recorded nothing named {name!r}, nor by any other name; pass "
                "`observe={name: function}` to it."
            )
        near = difflib.get_close_matches(str(name), self, 1)
        hint = f"did you mean {near[0]!r}, of {sorted(self)}" if near else f"it has {sorted(self)}"
        raise KeyError(f"the run recorded nothing named {name!r}; {hint}.")


def _flatten_with_names(
    rows: ObservedRows,
) -> tuple[list[tuple[PyTree, PyTree]], tuple[str, ...]]:
    """Return the rows in the order of their names, as JAX does of dictionaries, and the names."""
    names = tuple(sorted(rows))
    return [(jax.tree_util.DictKey(name), rows[name]) for name in names], names


def _rows_of_names(names: tuple[str, ...], rows: Iterable[PyTree]) -> ObservedRows:
    """Return rows with their names."""
    return ObservedRows(zip(names, rows, strict=True))


jax.tree_util.register_pytree_with_keys(ObservedRows, _flatten_with_names, _rows_of_names)
