"""M Eq. 14: the delay of ReLU networks by gating, its readings, and what makes it."""

import dataclasses
from typing import Any

import numpy as np
from _judge import SHARES, TIMES, apart, both, half_widths, interval, more, same, share, verdict
from _paper import Row, fl
from _tree import SHARES as LEVELS
from _tree import grouped, modes_of, steps_clock, task_of

# What g-bar of Eq. 14 is: Sec. 5.4 and App. F.4 say one thing and derive another.
TEXTS = {
    "dead": "g-bar the rate of dead units, as Sec. 5.4 says",
    "live": "g-bar the share of live units, as App. F.4 derives",
}
# What is left of the units without "dead and non-linear" ones: those that are on for all samples.
NONLINEAR = {
    "on at the start": "of all units but the dead and non-linear ones, at the start",
    "on at t*": "of the same at t*",
}
READINGS = ("live", "dead", "half")
VARIANCES = ("2e-4", "2e-8")


@dataclasses.dataclass
class Hits:
    """From one variance: hits (seeds, shares, modes), balanced a_0 and g-bar (seeds, modes).

    `live`: of the linear network without the units that are dead in the ReLU network; `kept`: the
    share of the balanced a_0 that it keeps, (seeds, modes).
    """

    relu: np.ndarray
    linear: np.ndarray
    live: np.ndarray
    balanced: np.ndarray
    kept: np.ndarray
    g: dict[str, np.ndarray]

    def delay(self, level: float) -> np.ndarray:
        """ReLU minus linear hitting times at a share of the strength, (seeds, modes)."""
        k = LEVELS.index(level)
        return self.relu[:, k] - self.linear[:, k]

    def dead_part(self, level: float) -> np.ndarray:
        """The delay that the deletion of the dead units alone makes, (seeds, modes)."""
        k = LEVELS.index(level)
        return self.live[:, k] - self.linear[:, k]

    def told(self, reading: str) -> np.ndarray:
        """Delays of Eq. 14, (seeds, modes)."""
        modes = modes_of("tree", 1.0)
        return np.asarray(fl.theory.gating_delay(modes.s, modes.d, self.balanced, self.g[reading]))


# The formulas, as printed


def printed_delay(rho: Any, s: Any, d: Any, a0: Any, g: Any) -> np.ndarray:
    """M Eq. 14 as it is printed, with tau = 1."""
    top = s**2 * a0 - s * d * a0**2 * g - s * rho * d * a0 + d**2 * a0**2 * g * rho
    bottom = s**2 * a0 * g - s * d * a0 * g * rho - s * d * a0**2 * g + d**2 * a0**2 * g * rho
    return np.log(top / bottom) / (2 * s)


def by_value(rows: np.ndarray) -> np.ndarray:
    """Means over the modes of each of the tree's four singular values, (seeds, 4)."""
    return grouped(rows, "tree", 1.0)


def rows(data: Any) -> list[Row]:
    """Verdicts on Eq. 14."""
    clock = steps_clock(task_of("tree"), data.size.learning_rate)
    return [*_formula_rows(), _always_row(data), _explain_row(data, clock), _implied_row(data),
            _reading_row(data), _shift_row(data, clock), _small_row(data, clock),
            _told_row(data)]  # fmt: skip


def _formula_rows() -> list[Row]:
    modes = modes_of("tree", 1.0)
    s, d = np.asarray(modes.s), np.asarray(modes.d)
    rng, off, moved, below = np.random.default_rng(0), 0.0, 0.0, []
    for _ in range(100):
        g, a0 = rng.uniform(0.05, 0.99), rng.uniform(1e-4, 1e-2, len(s))
        first = printed_delay(0.5 * s / d, s, d, a0, g)
        for level in (0.02, 0.5, 0.98):
            rho = level * s / d
            relu, linear = (fl.theory.hitting_time(rho, s, d, a) for a in (g * a0, a0))
            printed = printed_delay(rho, s, d, a0, g)
            off = max(off, np.max(np.abs(printed / np.asarray(relu - linear) - 1)))
            moved = max(moved, np.max(np.abs(printed / first - 1)))
            below.append(np.all(printed > 0))
    return [
        Row(
            claim="Eq. 14 is the difference of the hitting times of Eqs. 27 and 26",
            quote="Thus the difference in hitting time from gating is:",
            source="M Eq. 14, App. F.4, erratum E11",
            measured=f"relative error of Eq. 14 as printed against Eq. 13 from g a_0 less Eq. 13 "
            f"from a_0: {off:.1e} at most in 100 draws of g and a_0 and rho from .02 to .98 of "
            f"s/d. It is the same for every rho, to {moved:.1e}: in short tau/(2s) log[(s - d a_0 "
            "g) / (g (s - d a_0))]",
            verdict=verdict(bool(off < 1e-6)),
        ),
        Row(
            claim="The delay of Eq. 14 is positive for a small rho, s > d rho",
            quote="Since ρ is a small controllable parameter it is always possible to satisfy this "
            "condition. Thus, all terms in the change of hitting time equation will be positive",
            source="M App. F.4, Sec. 5.4, erratum E11",
            measured=f"positive in {share(below)} draws with g < 1 and rho below s/d",
            verdict=verdict(bool(np.all(below))),
        ),
    ]


def _always_row(data: Any) -> Row:
    deleted = np.stack([data.paper.dead_part(level) for level in LEVELS], axis=1)
    number = deleted.shape[1] * deleted.shape[2]
    return Row(
        claim="Dead units always increase the hitting time",
        quote="dead neurons always increase the hitting time",
        source="M Sec. 5.4, App. F.4",
        measured="the linear network from which those units are deleted that are dead in the ReLU "
        "network hits later than the whole one, in all modes at all levels, in "
        f"{share(np.all(deleted > 0, axis=(1, 2)))} seeds ({np.mean(deleted > 0):.1%} of all hits, "
        f"{number} a seed)",
        verdict=verdict(bool(np.all(deleted > 0))),
    )


def _in_steps(values: np.ndarray, clock: fl.StepClock) -> str:
    """Means in steps by singular value, with intervals."""
    found = zip(clock.steps(values.mean(axis=0)), clock.steps(half_widths(values)), strict=True)
    return ", ".join(f"{v:.0f} ± {h:.0f}" for v, h in found)


def _over(values: np.ndarray) -> str:
    """Means of ratios by singular value, with intervals."""
    found = zip(values.mean(axis=0), half_widths(values), strict=True)
    return ", ".join(f"{v:.2f} ± {h:.2f}" for v, h in found)


def _errors(hits: Hits, reading: str, level: float = 0.5) -> np.ndarray:
    """Predicted minus measured delay over the measured one's mean, (seeds, singular values)."""
    delays = by_value(hits.delay(level))
    return (by_value(hits.told(reading)) - delays) / delays.mean(axis=0)


def _explain_row(data: Any, clock: fl.StepClock) -> Row:
    parts, delays = by_value(data.paper.dead_part(0.5)), by_value(data.paper.delay(0.5))
    number, shares = delays.shape[1], parts.mean(axis=0) / delays.mean(axis=0)
    found, told = {}, []
    for name, words in TEXTS.items():
        errors = _errors(data.paper, name)
        found[words] = both(*(same(one, TIMES, number) for one in errors.T))
        told.append(f"Eq. 14 with {words}, {_in_steps(by_value(data.paper.told(name)), clock)}")
    some = both(*(more(one, of=number) for one in parts.T))
    return Row(
        claim="Dead units explain the time shift, by Eq. 14",
        quote="dead neurons always increase the hitting time, explaining the slight time shift "
        "between ReLU and linear models observed in Fig. 2.B",
        source="M Sec. 5.4, Eq. 14; erratum E11",
        measured=f"delay of the ReLU network at half of the strength in steps, by singular value, "
        f"{len(delays)} seeds: measured {_in_steps(delays, clock)}; {'; '.join(told)}; linear "
        f"network without the dead units {_in_steps(parts, clock)}, which is "
        f"{', '.join(f'{v:.0%}' for v in shares)} of the measured one. Criterion: the delay of Eq. "
        f"14, {TIMES}, {number} comparisons",
        verdict=verdict(
            found, (f"dead units make {min(shares):.0%} to {max(shares):.0%} of it", some)
        ),
    )


def _implied_row(data: Any) -> Row:
    delays = by_value(data.paper.delay(0.5))
    told = {words: by_value(data.paper.told(name)) for name, words in TEXTS.items()}
    number = delays.shape[1]
    return Row(
        claim="The time shift that Sec. 5.4 implies is not seen",
        quote="This, at least partially, explains why we do not see the time shift between the "
        "ReLU and linear network dynamics implied by the results of Section 5.4.",
        source="M App. F.2, against Sec. 5.4; erratum E11",
        measured="implied over measured delay at half of the strength, by singular value: "
        + "; ".join(f"{words}, {_over(v / delays.mean(axis=0))}" for words, v in told.items())
        + f". Criterion: less delay than implied for all four, paired, {number} comparisons",
        verdict=verdict({
            words: both(*(more(a, b, number) for a, b in zip(v.T, delays.T, strict=True)))
            for words, v in told.items()
        }),
    )  # fmt: skip


def _reading_row(data: Any) -> Row:
    kept, live = by_value(data.paper.kept), data.paper.g["live"]
    right, wrong = (np.abs(kept - g).mean(axis=1) for g in (live, 1 - live))
    found = both(same(right, SHARES), apart(wrong, SHARES))
    return Row(
        claim="g-bar of Eq. 14, the share of a_0 that is left, is the rate of dead units",
        quote="By defining the rate of dead neurons in the hidden layer of ReLU network as ... and "
        "taking the difference in hitting times for the ReLU and linear networks, we are able to "
        "obtain the time shift which occurs due to the dead neurons",
        source="M Sec. 5.4, App. F.4; erratum E11",
        measured="share of the balanced a_0 that is left without the dead units, by singular "
        f"value: {_over(kept)}; share of live units {interval(live[:, 0])}, of dead ones "
        f"{interval(1 - live[:, 0])}; distance of what is left from the first "
        f"{interval(right)}, from the second {interval(wrong)} ({SHARES})",
        verdict="misprint: g-bar is the share of live units"
        if found
        else verdict(same(wrong, SHARES)),
    )


def _shift_row(data: Any, clock: fl.StepClock) -> Row:
    hits, number = data.paper, 4
    delays = {level: by_value(hits.delay(level)) for level in (0.1, 0.5, 0.9)}
    change = (delays[0.9] - delays[0.1]) / delays[0.5].mean(axis=0)
    low, high = (by_value(hits.relu[:, k]) / by_value(hits.linear[:, k])
                 for k in (LEVELS.index(0.1), LEVELS.index(0.9)))  # fmt: skip
    shifted = [same(v, TIMES, number) for v in change.T]
    stretch = [same(v, TIMES, number) for v in (high / low - 1).T]
    return Row(
        claim="The dynamics match after an initial time shift: a mode's delay is the same at every "
        "level",
        quote="in practice the dynamics that are followed on ... linear datasets match closely "
        "after an initial timeshift",
        source="M Sec. 5.4",
        measured="delay by singular value in steps at a tenth of the strength "
        f"{_in_steps(delays[0.1], clock)}, at nine tenths {_in_steps(delays[0.9], clock)}: a "
        f"change, over that at half, of {_over(change)}; time of the ReLU network over that of the "
        f"linear one at a tenth {_over(low)}, at nine tenths {_over(high)}. Criterion for a shift: "
        f"no change, {TIMES}, {number} comparisons; for a factor of time: the same at both levels",
        verdict=verdict(
            both(*shifted),
            ("the bias mode is shifted, the others are stretched in time",
             both(shifted[0], *stretch[1:])),
        ),
    )  # fmt: skip


def _small_row(data: Any, clock: fl.StepClock) -> Row:
    hits, number = data.paper, 4
    delays, k = by_value(hits.delay(0.5)), LEVELS.index(0.5)
    relative = delays / by_value(hits.linear[:, k])
    small = both(*(more(TIMES.apart, v, number) for v in relative.T))
    wise = both(*(more(b, a, number) for a, b in zip(delays.T, delays.T[1:], strict=False)))
    told, found = [], {}
    for name, words in NONLINEAR.items():
        errors, share_on = _errors(hits, name), hits.g[name][:, 0]
        r = [np.corrcoef(1 - share_on, v)[0, 1] for v in delays.T]
        found[f"g-bar the share {words}"] = both(*(same(e, TIMES, number) for e in errors.T))
        told.append(
            f"by Eq. 14 with g-bar the share {words} ({interval(share_on)}), "
            f"{_in_steps(by_value(hits.told(name)), clock)}, and its correlation with the share of "
            f"the others over {len(delays)} seeds {', '.join(f'{v:.2f}' for v in r)}"
        )
    return Row(
        claim="The difference from a linear network is a small time shift of each mode, determined "
        "by the fraction of dead and non-linear units",
        quote="a key difference from a linear net is a small, mode-wise time shift determined by "
        "the fraction of dead and non-linear units",
        source="M Sec. 5",
        measured=f"delay at half of the strength by singular value {_in_steps(delays, clock)} "
        f"steps, which is {_over(relative)} of the linear network's time; {'; '.join(told)}. "
        f"Criterion: less than {TIMES.apart:g} of the linear time, larger for each later mode, and "
        f"the delay of Eq. 14, {TIMES}, {number} comparisons each",
        verdict=verdict(
            {words: both(small, wise, one) for words, one in found.items()},
            ("it is small and larger for each later mode", both(small, wise)),
        ),
    )


def _within(errors: np.ndarray, margin: float) -> bool | None:
    """Whether all intervals lie within a margin."""
    number = errors.shape[1]
    return both(*(more(margin, np.sign(e.mean()) * e, number) for e in errors.T))


def _told_row(data: Any) -> Row:
    found = {
        (name, k): _errors(hits, k)
        for name, hits in zip(VARIANCES, (data.paper, data.small), strict=True) for k in READINGS
    }  # fmt: skip
    ratio = {key: _over(1 + errors) for key, errors in found.items()}
    words = []
    if both(*(more(0, one, of=4) for one in found["2e-4", "live"].T)):
        words.append("the delay is more than live units alone tell")
    if both(*(_within(found[name, "half"][:, 1:], TIMES.apart) for name in VARIANCES)):
        words.append("one half tells it to a quarter but for the bias mode")
    text = (
        "delay at half of the strength by Eq. 14 over the measured one, by singular value: with "
        f"g-bar the share of live units {ratio['2e-4', 'live']} (from variance 2e-8 "
        f"{ratio['2e-8', 'live']}), one half {ratio['2e-4', 'half']} ({ratio['2e-8', 'half']})"
    )
    if len(data.clock):
        bias = data.paper.delay(0.5)[:, 0]
        slowed = (data.clock - bias[: len(data.clock)]) / bias.mean()
        text += (
            "; the clock of the bias mode that follows the samples on which each unit is on, over "
            f"the measured delay less 1: {interval(slowed)} ({TIMES})"
        )
        if same(slowed, TIMES):
            words.append("the samples on which units are on tell that of the bias mode")
    return Row(
        claim="What tells the delay, if units that are on for some samples add to it",
        quote="Although it is plausible that the time delay should be even greater than predicted "
        "when some neurons are only active for a portion of the dataset",
        source="M Sec. 5.4 (which grants it); W Sec. 2 (half width), erratum E8",
        measured=text,
        verdict=f"measured: {'; '.join(words) or 'none of these tells it'}",
        kind="control",
    )
