"""What a log of events is to the functions that count, match and print its events."""

from typing import Protocol, runtime_checkable

from jaxtyping import Array


@runtime_checkable
class ChannelLike(Protocol):
    """A channel of a log, see `Channel`: its name, and how its components are counted."""

    name: str
    shape: tuple[int, ...]
    prefix: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of its components."""
        ...


@runtime_checkable
class EventColumns(Protocol):
    """The columns of an `EventLog`, which says what each holds."""

    time: Array
    uncertainty: Array
    component: Array
    old: Array
    new: Array
    count: Array
    shift: Array | None
    confirmed: bool

    @property
    def channels(self) -> tuple[ChannelLike, ...]:
        """Return the channels, in the order of their components."""
        ...

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the first component of each channel, and one more entry."""
        ...
