"""What pictures are made of, as `flowlin._tools.checks` checks it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import is_color_like

from flowlin._tools.checks import WORDS, index, instance, number, refuse, sequence_of, text

axes_given = instance(Axes, "matplotlib Axes", "make them by plt.subplots(), or leave them out")


def colour(name: str, value: Any) -> Any:
    """A colour in any way that matplotlib knows."""
    if not is_color_like(value):
        raise refuse(name, "a colour that matplotlib knows", value, 'such as "C0" or "#D55E00"')
    return value


def named(name: str, value: Any) -> str:
    """A name of one thing among many: a string or a number."""
    return str(value) if isinstance(value, int) else text(name, value)


def mapping(what: str) -> Callable[[str, Any], Any]:
    """A check for a dictionary that is not empty; `what` says what of."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise refuse(name, f"a dictionary, {what}", value)
        if not value:
            raise ValueError(f"`{name}` is empty; give at least one, as {what}.")
        return value

    return check


def some_of(known: tuple[str, ...]) -> Callable[[str, Any], tuple[str, ...]]:
    """A check for some of a few words, at least one."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        single = isinstance(value, str) or not isinstance(value, Iterable)
        given: tuple[Any, ...] = (value,) if single else tuple(value)
        if not given or not all(isinstance(word, str) and word in known for word in given):
            raise ValueError(f"`{name}` must be some of {known}, got {given}.")
        return given

    return check


def exactly(count: int, check: Callable[[str, Any], Any], wanted: str) -> Callable[[str, Any], Any]:
    """A check for a tuple of so many."""

    def checked_items(name: str, value: Any) -> tuple:
        found = sequence_of(check, wanted)(name, value)
        if len(found) != count:
            raise refuse(name, wanted, value)
        return found

    return checked_items


indices = sequence_of(index, "a list of whole numbers counted from 0")
texts = sequence_of(named, "a list of names")
colours = sequence_of(colour, "a list of colours")
limits = exactly(2, number("a number", lambda value: True), "two numbers, (low, high)")

WORDS["ax"] = axes_given
WORDS["colour"] = colour
WORDS["label"] = text
