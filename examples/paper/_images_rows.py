"""Rows that the figures on real images share. One rule for each:

- Two losses are aligned early where their mean distance, until the linear network is 90 % down, is
  the same by the margins of losses, and less with bias than without.
- They diverge where they come to the difference margin for good; one pair sooner than another.
- Descent follows the flow where the largest distance of losses is the same, for all curves.

The lead paper states one width for both kinds of networks, which is judged; that of half of it for
the linear one is a weaker statement, not its own. It does not say whether the rate is for the
batch's sum or mean: both are judged where the ReLU network's flow was run, which stands for the
mean, else the sum alone, and the row says so.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from _images import LINEAR, Early, Setting, deviations, gaps, partings
from _judge import LOSSES, apart, both, interval, more, same, verdict
from _paper import Row

SAME, HALF = LINEAR
SUM, MEAN = "the rate is per batch sum", "the rate is per batch mean (the flow)"
HALF_WIDTH = "where the linear network has half the width, as in W"
GAP = "mean distance of the losses (share of 1/2) until the linear network is 90 % down"
NAMES = {"bias": "with bias", "no bias": "without"}
WORDS = {True: "yes", False: "no", None: "undecided"}
Phases = dict[str, Early]  # by "bias" and "no bias", or what else is compared
Rule = Callable[[Any, Any], bool | None]


def ways(phases: Phases) -> dict[str, list[Early]]:
    """The phases by how the batch is taken: the descents, and the flows in their place."""
    found = {SUM: list(phases.values())}
    seeds = min(len(phase.flows.get("relu", [])) for phase in found[SUM])
    if seeds > 1:
        found[MEAN] = [
            dataclasses.replace(
                phase, descents={label: runs[:seeds] for label, runs in phase.flows.items()}
            )
            for phase in found[SUM]
        ]
    return found


def pairs(first: dict[str, Any], second: dict[str, Any], phases: Phases) -> str:
    """Numbers of both widths, of two phases."""
    widths = {SAME: "same width", HALF: "half the width"}
    one, other = (NAMES.get(name, name) for name in phases)
    return "; ".join(
        f"{widths[k]} {interval(first[k])} {one}, {interval(second[k])} {other}" for k in LINEAR
    )


def judged(
    phases: Phases, rule: Rule, number: Callable[[Early, str], np.ndarray] = gaps
) -> tuple[str, str]:
    """What was measured, and the verdict of a rule of a number of two phases."""
    texts, found = [], {}
    for way, members in ways(phases).items():
        first, second = ({k: number(phase, k) for k in LINEAR} for phase in members)
        found[way] = {k: rule(first[k], second[k]) for k in LINEAR}
        texts.append(f"{way}: {pairs(first, second, phases)}")
    half = both(*(by_width[HALF] for by_width in found.values()))
    word = verdict({way: by_width[SAME] for way, by_width in found.items()}, (HALF_WIDTH, half))
    return "; ".join(texts), word


def order(phases: Phases) -> str:
    """Which of the two losses at the same width are further apart, in words."""
    first, second = (gaps(phase, SAME) for phase in phases.values())
    words = {True: "closer", False: "further apart", None: "not told to be closer"}
    return f"at the same width, which the text states, {words[more(second, first)]} with bias"


def aligned(phases: Phases, claim: str, source: str, quote: str) -> Row:
    """With bias the early losses agree, and more so than without."""
    measured, word = judged(phases, lambda a, b: both(same(a, LOSSES), more(b, a)))
    criterion = f"criterion: with bias {LOSSES}, and less than without, paired by seed"
    return Row(claim, source, f"{GAP}, {measured}; {order(phases)}; {criterion}", word, quote)


def driven(phases: Phases, claim: str, source: str, quote: str, why: str) -> Row:
    """Bias brings the early losses closer together, and without it they do not agree."""
    measured, word = judged(phases, lambda a, b: both(more(b, a), apart(b, LOSSES)))
    close = same(gaps(phases["bias"], SAME), LOSSES)
    criterion = f"criterion: less with bias, paired by seed, and without it apart, {LOSSES}"
    beside = f"with bias at the same width the same: {WORDS[close]}"
    return Row(claim, source, f"{GAP}, {measured}; {criterion} ({beside}); {why}", word, quote)


def independent(phases: Phases, claim: str, source: str, quote: str) -> Row:
    """Early losses agree with bias and without, and as well."""

    def rule(a: Any, b: Any) -> bool | None:
        return both(*(same(v, LOSSES, of=3) for v in (a, b, b - a)))

    measured, word = judged(phases, rule)
    criterion = f"criterion: both, and their difference by seed, {LOSSES}, three comparisons"
    return Row(claim, source, f"{GAP}, {measured}; {criterion}", word, quote)


def closer(phases: Phases, claim: str, source: str, quote: str) -> Row:
    """The early losses of the second phases are closer together than those of the first."""
    measured, word = judged(phases, lambda a, b: more(a, b))
    criterion = f"criterion: less with {list(phases)[1]}, paired by seed"
    return Row(claim, source, f"{GAP}, {measured}; {criterion}", word, quote)


def part(setting: Setting, phases: Phases, claim: str, source: str, quote: str) -> Row:
    """The losses diverge, sooner without bias than with it."""

    def rule(a: Any, b: Any) -> bool | None:
        return both(bool(np.all(b < setting.end)) or None, more(a, b))

    measured, word = judged(phases, rule, partings)
    return Row(
        claim,
        source,
        f"flow time from which the losses are {LOSSES.apart:g} of 1/2 apart for good, at most "
        f"{setting.end:g}, {measured}; criterion: in all seeds, and sooner than with bias, paired "
        "by seed",
        word,
        quote,
    )


def followed(setting: Setting, phases: Phases, source: str) -> Row:
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
        f"Whether descent at rate {setting.learning_rate:g} and batches of {setting.batch} follows "
        "gradient flow",
        source,
        "largest distance of the losses (share of 1/2); rate for the sum over the batch, up to "
        f"flow time {setting.early:g}: {words['sum']}; for the mean, up to "
        f"{setting.mean_end:g}: {words['mean'] or 'not run'}; where a ReLU network's flow was not "
        f"run, its descent on the mean is in its place; criterion: all {LOSSES}",
        "measured: " + ", ".join(f"per batch {way} {WORDS[v]}" for way, v in holds.items()),
        kind="control",
    )
