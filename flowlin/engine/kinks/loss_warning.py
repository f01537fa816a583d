"""What becomes of the kinks of a loss where no walk knows them."""

from flowlin._tools.arguments import with_article
from flowlin._tools.warn import warn_user
from flowlin.engine.kinks.kink_policies import AbstractKinks, IgnoreKinks, KinksWarning, SmoothKinks
from flowlin.networks.kink_program import KinkSite
from flowlin.networks.module_kinks import describe_sites
from flowlin.networks.modules import ForeignModel
from flowlin.training.function_loss import FunctionLoss
from flowlin.training.loss_kinks import kinks_of_loss
from flowlin.training.problem import Problem


def loss_sites_apart(problem: Problem) -> tuple[KinkSite, ...]:
    """Return the kinks of the loss where the network is flowlin's own, whose walk has none."""
    if isinstance(problem.network, ForeignModel):
        return ()
    loss, task = problem.loss, problem.task
    loss.require_fit(task.y)
    return kinks_of_loss(loss, task.outputs, problem.network.dtype).sites


def rounds_loss(kinks: AbstractKinks | None, sites: tuple[KinkSite, ...]) -> bool:
    """Tell whether a policy rounds the kinks of a loss off, whatever those of the network."""
    return bool(sites) and isinstance(kinks, SmoothKinks)


def trouble_of_loss(problem: Problem, kinks: AbstractKinks) -> str:
    """Return what of a loss may have kept a run from its end, to follow a remedy; or nothing."""
    found = kinks_of_loss(problem.loss, problem.task.outputs, problem.network.dtype)
    if found.unknown_because:
        return f"; kinks of the loss are not known: {found.unknown_because}"
    known = isinstance(problem.network, ForeignModel) and kinks.walks
    return "" if known else across_loss_kinks(kinks, found.sites)


def across_loss_kinks(kinks: AbstractKinks, sites: tuple[KinkSite, ...]) -> str:
    """Return a clause on the kinks of a loss that a run goes across, or nothing."""
    if not sites or kinks.width is not None:
        return ""
    return f"; the loss has kinks ({describe_sites(sites)}), which this run goes across"


def warn_loss_kinks(
    problem: Problem, asked: AbstractKinks | None, kinks: AbstractKinks, sites: tuple[KinkSite, ...]
) -> None:
    """Warn of a loss with kinks that the steps of a flowlin network's run go across."""
    loss = problem.loss
    if not sites or kinks.width is not None or isinstance(asked, IgnoreKinks):
        return
    assert isinstance(loss, FunctionLoss)
    warn_user(
        f"`loss` = {loss.name} has kinks ({describe_sites(sites)}), which only the walk of an "
        f"Equinox module knows: a run of {with_article(problem.network.kind)} goes across them, "
        "and where its flow slides on one its steps shrink without end. Pass an eqx.nn.MLP of the "
        "same weights, `kinks=fl.SmoothKinks(1e-4)`, which rounds them off, or "
        "`kinks=fl.IgnoreKinks()` to choose that.",
        KinksWarning,
    )
