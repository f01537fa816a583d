"""What becomes of the kinks of a loss: a walk passes them, other steps go across."""

from flowlin._tools.arguments import with_article
from flowlin._tools.warn import warn_user
from flowlin.engine.kinks.kink_places import walks_through_loss
from flowlin.engine.kinks.kink_policies import AbstractKinks, IgnoreKinks, KinksWarning, SmoothKinks
from flowlin.networks.kink_program import KinkSite
from flowlin.networks.module_kinks import describe_sites
from flowlin.networks.modules import ForeignModel
from flowlin.training.function_loss import FunctionLoss
from flowlin.training.loss_kinks import kinks_of_loss
from flowlin.training.problem import Problem


def loss_sites_apart(problem: Problem) -> tuple[KinkSite, ...]:
    """Return the kinks of the loss where the network is flowlin's own, which tells none of them."""
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
    return "" if passes_loss(problem, kinks) else about_loss_kinks(problem, kinks, found.sites)


def passes_loss(problem: Problem, kinks: AbstractKinks) -> bool:
    """Tell whether a run walks through the kinks of its loss."""
    known = isinstance(problem.network, ForeignModel) or walks_through_loss(problem)
    return kinks.walks and known


def about_loss_kinks(problem: Problem, kinks: AbstractKinks, sites: tuple[KinkSite, ...]) -> str:
    """Return a clause on what a run does with the kinks of its loss, or nothing."""
    if not sites or kinks.width is not None:
        return ""
    where = f"; the loss has kinks ({describe_sites(sites)})"
    does = "walks through as well" if passes_loss(problem, kinks) else "goes across"
    return f"{where}, which this run {does}"


def warn_loss_kinks(
    problem: Problem, asked: AbstractKinks | None, kinks: AbstractKinks, sites: tuple[KinkSite, ...]
) -> None:
    """Warn of a loss with kinks that the steps of a flowlin network's run go across."""
    loss, passes = problem.loss, passes_loss(problem, kinks)
    if not sites or passes or kinks.width is not None or isinstance(asked, IgnoreKinks):
        return
    assert isinstance(loss, FunctionLoss)
    exact = "`kinks=fl.ExactKinks()`, " if walks_through_loss(problem) else ""
    kind = with_article(problem.network.facts.kind)
    warn_user(
        f"`loss` = {loss.name} has kinks ({describe_sites(sites)}): a run of "
        f"{kind} by {kinks} goes across them, and where its flow "
        f"slides on one its steps shrink without end. Pass {exact}`kinks=fl.SmoothKinks(1e-4)`, "
        "which rounds them off, or `kinks=fl.IgnoreKinks()` to choose that.",
        KinksWarning,
    )
