"""Rows that the figures on real images share. One rule for each:

- Two losses are aligned early where their mean distance, until the linear network is 90 % down, is
  the same by the margins of losses, and less with bias than without.
- They diverge where they come to the difference margin for good; one pair sooner than another.
- Descent follows the flow where the largest distance of losses is the same, for all curves.

Each is asked for the linear network of the same width, as the paper states, and for that of half
of it, which is then a condition.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from _images import LINEAR, Early, Setting, deviations, gaps, partings
from _judge import LOSSES, apart, both, interval, more, same, verdict
from _paper import Row

SAME, HALF = LINEAR
HALF_WIDTH = "the linear network has half the width"
GAP = "mean distance of the losses (share of 1/2) until the linear network is 90 % down"


def by_width(found: dict[str, bool | None]) -> str:
    """The verdict by the linear network's width."""
    return verdict(found[SAME], (HALF_WIDTH, found[HALF]))


def pairs(with_bias: dict[str, Any], without: dict[str, Any]) -> str:
    """Numbers of both widths, with bias and without."""
    names = {SAME: "same width", HALF: "half the width"}
    return "; ".join(
        f"{names[k]}: {interval(with_bias[k])} with bias, {interval(without[k])} without"
        for k in LINEAR
    )


def gap_rule(phases: dict[str, Early], rule: Callable[..., bool | None]) -> tuple[str, str]:
    """What was measured, and the verdict of a rule of the gaps with bias and without."""
    with_bias, without = ({k: gaps(phases[p], k) for k in LINEAR} for p in ("bias", "no bias"))
    found = {k: rule(with_bias[k], without[k]) for k in LINEAR}
    return f"{GAP}: {pairs(with_bias, without)}", by_width(found)


def aligned(phases: dict[str, Early], claim: str, source: str) -> Row:
    """With bias the early losses agree, and more so than without."""
    measured, word = gap_rule(phases, lambda a, b: both(same(a, LOSSES), more(b, a)))
    criterion = f"criterion: with bias {LOSSES}, and less than without, paired by seed"
    return Row(claim, source, f"{measured}; {criterion}", word)


def helped(phases: dict[str, Early], claim: str, source: str) -> Row:
    """Bias brings the early losses closer together."""
    measured, word = gap_rule(phases, lambda a, b: more(b, a))
    return Row(claim, source, f"{measured}; criterion: less with bias, paired by seed", word)


def insufficient(phases: dict[str, Early], claim: str, source: str, why: str) -> Row:
    """Without bias the early losses do not agree."""
    measured, word = gap_rule(phases, lambda _, b: apart(b, LOSSES))
    return Row(claim, source, f"{measured}; criterion: without bias {LOSSES}; {why}", word)


def independent(phases: dict[str, Early], claim: str, source: str) -> Row:
    """Early losses agree with bias and without."""

    def rule(a: Any, b: Any) -> bool | None:
        return both(same(a, LOSSES, of=2), same(b, LOSSES, of=2))

    measured, word = gap_rule(phases, rule)
    return Row(claim, source, f"{measured}; criterion: both {LOSSES}, two comparisons", word)


def indifferent(phases: dict[str, Early], claim: str, source: str) -> Row:
    """Early losses agree as well without bias as with it."""
    measured, word = gap_rule(phases, lambda a, b: same(b - a, LOSSES))
    criterion = f"criterion: the difference of the two, paired by seed, {LOSSES}"
    return Row(claim, source, f"{measured}; {criterion}", word)


def part(setting: Setting, phases: dict[str, Early], claim: str, source: str) -> Row:
    """The losses diverge, sooner without bias than with it."""
    with_bias, without = ({k: partings(phases[p], k) for k in LINEAR} for p in ("bias", "no bias"))
    found = {
        k: both(bool(np.all(without[k] < setting.end)) or None, more(with_bias[k], without[k]))
        for k in LINEAR
    }
    return Row(
        claim,
        source,
        f"flow time from which the losses are {LOSSES.apart:g} of 1/2 apart for good, at most "
        f"{setting.end:g}: {pairs(with_bias, without)}; criterion: in all seeds, and sooner than "
        "with bias, paired by seed",
        by_width(found),
    )


def followed(setting: Setting, phases: dict[str, Early], source: str) -> Row:
    """Whether descent follows the flow, for all curves and both ways to take the batch."""
    found: dict[str, dict[str, np.ndarray]] = {"sum": {}, "mean": {}}
    for name, phase in phases.items():
        for label, runs in phase.descents.items():
            flows, means = phase.flows.get(label, []), phase.means.get(label, [])
            curve = label.replace("relu", "ReLU") + ", " + name
            if flows or means:
                found["sum"][curve] = deviations(flows or means, runs, phase)
            if flows and means:
                found["mean"][curve] = deviations(flows, means, phase)
    words = {
        way: ", ".join(f"{interval(v, 2)} {k}" for k, v in curves.items())
        for way, curves in found.items()
    }
    holds = {
        way: both(*(same(v, LOSSES, of=len(curves)) for v in curves.values()))
        for way, curves in found.items()
        if curves
    }
    return Row(
        f"Descent at rate {setting.learning_rate:g} and batches of {setting.batch} follows "
        "gradient flow",
        source,
        "largest distance of the losses (share of 1/2); rate for the sum over the batch, up to "
        f"flow time {setting.early:g}: {words['sum']}; for the mean, up to "
        f"{setting.mean_end:g}: {words['mean'] or 'not run'}; where a ReLU network's flow was not "
        f"run, its descent on the mean is in its place; criterion: all {LOSSES}",
        verdict(holds["sum"], ("the rate is per batch mean", holds.get("mean"))),
    )
