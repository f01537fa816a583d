"""Events that users pass to a run, and what the run watches for them."""

from collections.abc import Sequence

from flowlin._tools.arguments import CHECKS_BY_NAME, instance_of, sequence_of
from flowlin.events.event import AbstractEvent, AbstractKinkTraits
from flowlin.events.switches import GateSwitches
from flowlin.events.watch import Watch
from flowlin.training.objective import AbstractObjective
from flowlin.training.problem import Problem

# Names of what a run logs without being asked, which no event may have.
RESERVED_NAMES = {"gate": "a run's gates", "branch": "a run's branches"}

_event = instance_of(AbstractEvent, "an event", "wrap a function as fl.Crossing(function)")
_some_events = sequence_of(_event, "a sequence of events")


def _one_or_more(name: str, value: object) -> AbstractEvent | tuple[AbstractEvent, ...]:
    """Check for an event, or a sequence of some."""
    return value if isinstance(value, AbstractEvent) else _some_events(name, value)


CHECKS_BY_NAME["events"] = _one_or_more


def as_events(events: AbstractEvent | Sequence[AbstractEvent]) -> tuple[AbstractEvent, ...]:
    """Return a run's events, of which there may be one alone, as a tuple."""
    return (events,) if isinstance(events, AbstractEvent) else tuple(events)


def user_watches(
    events: Sequence[AbstractEvent],
    problem: Problem,
    objective: AbstractObjective,
    kinks: AbstractKinkTraits,
) -> list[Watch]:
    """Return what a run watches for the user's events.

    **Raises:** `ValueError` for two events of one name.
    """
    found: list[Watch] = []
    owners = dict(RESERVED_NAMES)
    for event in events:
        watches = event.watches(problem, objective, kinks)
        if not isinstance(event, GateSwitches):
            _take_names(owners, event, {watch.channel.name for watch in watches})
        found += watches
    return found


def _take_names(owners: dict[str, str], event: AbstractEvent, names: set[str]) -> None:
    """Enter an event as the owner of names; `ValueError` for a name that another event owns."""
    kind = type(event).__name__
    for name in sorted(names & owners.keys()):
        remedy = "leave one out"
        if hasattr(event, "name"):
            remedy = f'give each a name of its own, as in {kind}(..., name="{name} 2")'
        raise ValueError(
            f"`events`: two are named {name!r}, {owners[name]} and {kind}, and the log could not "
            f"tell them apart; {remedy}."
        )
    owners.update(dict.fromkeys(names, kind))
