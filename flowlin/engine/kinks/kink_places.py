"""Where an exact walk finds kinks: in the hidden layers, and in a loss that has some."""

from flowlin.networks.base import UnitPlace
from flowlin.networks.modules import ForeignModel, unit_places
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.training.loss_kinks import kinks_to_walk
from flowlin.training.problem import Problem


def kink_places(problem: Problem) -> dict[int, UnitPlace]:
    """Return the places of kinks by number of layer; those of the loss are behind all layers.

    None for a model without kinks, or of which none are known.
    """
    network = problem.network
    own = isinstance(network, ForeignModel | ReLUNetwork)
    places = dict(enumerate(unit_places(network))) if own else {}
    behind = len(network.hidden)
    return places | {behind + k: place for k, place in enumerate(_places_in_loss(problem))}


def walks_through_loss(problem: Problem) -> bool:
    """Tell whether a walk of flowlin's own network passes kinks of the loss."""
    return bool(_places_in_loss(problem))


def pair_count(problem: Problem) -> int:
    """Count the (unit, sample) pairs, each with its kink."""
    return sum(place.units for place in kink_places(problem).values()) * problem.task.samples


def _places_in_loss(problem: Problem) -> list[UnitPlace]:
    """List the kinks of the loss of flowlin's own network; a module's are among its own."""
    known = kinks_to_walk(problem.network, problem.task, problem.loss)
    first = len(known.sites) - known.in_loss
    return [UnitPlace(site.place, site.shape) for site in known.sites[first:]]
