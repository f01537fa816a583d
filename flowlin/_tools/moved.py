"""Names that are not there: what became of those that have moved."""

from collections.abc import Mapping


def missing_name(module: str, name: str, moved: Mapping[str, str]) -> AttributeError:
    """Return the error for a name that a module has not: `moved` holds what to write instead."""
    if name in moved:
        return AttributeError(f"`{module}.{name}` is gone; write `{moved[name]}`.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
