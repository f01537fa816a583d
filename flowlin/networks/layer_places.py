"""Where the hidden layers of a model are, without the kinks of its loss."""

from flowlin.networks.base import AbstractModel, UnitPlace
from flowlin.networks.modules import ForeignModel, unit_places


def layer_places(model: AbstractModel) -> tuple[UnitPlace, ...]:
    """Return where the units of each hidden layer are, without a loss's kinks behind them."""
    kinks = model.kinks if isinstance(model, ForeignModel) else None
    places = unit_places(model)
    return places[: len(places) - kinks.in_loss] if kinks else places
