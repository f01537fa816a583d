"""Names that are not there: what became of those that have moved, and what to write instead."""

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

Decorated = TypeVar("Decorated", bound=type)


def missing_name(module: str, name: str, moved: Mapping[str, str]) -> AttributeError:
    """Return the error for a name that a module has not: `moved` holds what to write instead."""
    if name in moved:
        return AttributeError(f"`{module}.{name}` is gone; write `{moved[name]}`.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class AbsentAttribute:
    """An attribute that a class may be thought to have, whose error says what to do instead."""

    def __init__(self, remedy: str):
        self.remedy = remedy

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"`{owner.__name__}` has no attribute {self.name!r}: {self.remedy}.")


def moved_attributes(**moved: str) -> Callable[[Decorated], Decorated]:
    """Decorate a class, so that attributes which are gone say what to write instead."""

    def answer_old_names(kind: Decorated) -> Decorated:
        def __getattr__(self: object, name: str) -> NoReturn:
            if name in moved:
                raise AttributeError(f"`{kind.__name__}.{name}` is gone; write `{moved[name]}`.")
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")

        kind.__getattr__ = __getattr__
        return kind

    return answer_old_names
