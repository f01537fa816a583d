"""The verdicts on M Fig. 6, in every code that the text admits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from _judge import LOSSES, TIMES, apart, both, interval, more, same, verdict
from _paper import Row
from _tree import delay

NAMES = ("s", "c", "both")
LATE = "ReLU, bias from the dotted line on"
ZERO = "0/1, both labels 0 at 00"
# Number of outputs and code of the inputs, in words; what the text admits.
JUDGED = {
    (4, "-1/+1"): "four outputs, inputs -1/+1",
    (2, "-1/+1"): "two outputs, inputs -1/+1",
    (2, ZERO): f"two outputs, inputs {ZERO}",
}
COMPARED = len(JUDGED)
CONSTANT = 0.5  # loss of the best constant over that of zero weights, of either task

Judged = tuple[bool | None, str]


@dataclasses.dataclass(frozen=True)
class Claim:
    """What is asked, where it stands, how it is judged in one code, by what criterion, the words.

    - `weaker`: a statement that the text does not make, and how it is judged.
    - `beside`: whether numbers in the other codes stand beside.
    """

    claim: str
    source: str
    judged: Callable[[Any], Judged]
    criterion: str
    quote: str
    weaker: tuple[str, Callable[[Any], bool | None]] | None = None
    beside: bool = True

    def row(self, data: Any) -> Row:
        """In all codes that are judged."""
        told = {code: self.judged(results) for code, results in data.found.items()}
        readings = {JUDGED[code]: holds for code, (holds, _) in told.items() if code in JUDGED}
        text = ". ".join(f"{JUDGED[code]}: {words}" for code, (_, words) in told.items()
                         if code in JUDGED)  # fmt: skip
        others = "; ".join(
            f"{code[0]} outputs, inputs {code[1]}: {words}"
            for code, (_, words) in told.items() if code not in JUDGED
        )  # fmt: skip
        parts = []
        if self.weaker is not None and False in readings.values():
            words, rule = self.weaker
            found = [rule(results) for code, results in data.found.items() if code in JUDGED]
            parts = [(words, both(*found))]
        return Row(
            self.claim,
            self.source,
            f"{text}. Criterion: {self.criterion}"
            + (f". Beside it, {others}" if others and self.beside else ""),
            verdict(readings, *parts),
            self.quote,
        )


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Quotient, inf for a run that never leaves the plateau or never gets there."""
    there = np.isfinite(part)
    return np.where(there, np.where(there, part, 0) / np.where(there, whole, 1), np.inf)


def dwell(found: Any, kind: str) -> np.ndarray:
    """How long the loss rests at the plateau over how long it took to get there, (seeds,)."""
    _, first, last = found.rest[kind].T
    return _over(last - np.where(np.isfinite(last), first, 0), first)


def slowing(found: Any, kind: str) -> np.ndarray:
    """Time from 1.1 to .9 of the plateau over that from 1.3 to 1.1, (seeds,)."""
    before, first, last = found.rest[kind].T
    there = np.isfinite(last)
    return _over(last - np.where(there, first, 0), first - np.where(there, before, -1))


def spell(values: np.ndarray) -> str:
    """Mean and interval, or how many runs never leave the plateau."""
    stay = int(np.sum(np.isinf(values)))
    return f"endless in {stay} of {len(values)} seeds" if stay else interval(values)


def _early(found: Any) -> Judged:
    """Until the linear network has made 95 % of its way to the plateau, or to its own end."""

    def gaps(bias: str, end: float | None) -> np.ndarray:
        rows = []
        for relu, linear in zip(found.flows[f"ReLU, {bias}"], found.flows[f"linear, {bias}"],
                                strict=True):  # fmt: skip
            first, last = float(linear.losses[0]), end or float(linear.losses[-1])
            rows.append(delay(relu, linear, ((0.95 * last + 0.05 * first) / first, np.inf)))
        return np.array(rows)

    (shift, bias), (_, none) = gaps("bias", found.plateau).T, gaps("no bias", None).T
    text = f"{interval(bias)} after {interval(shift)}, without bias {interval(none)}"
    return both(same(bias, LOSSES, COMPARED), more(none, bias, COMPARED)), text


def _first(found: Any) -> Judged:
    bias, none = (found.early[f"ReLU, {name}"] for name in ("bias", "no bias"))
    return same(bias, LOSSES, COMPARED), f"{interval(bias)}, without bias {interval(none)}"


def _rests(found: Any) -> Judged:
    values, slower = dwell(found, "ReLU, bias"), slowing(found, "ReLU, bias")
    text = f"{spell(values)} (over the time of the same fall just above: {spell(slower)})"
    return apart(values, TIMES, COMPARED), text


def _slower(found: Any) -> Judged:
    values = slowing(found, "ReLU, no bias")
    return True if np.all(np.isinf(values)) else more(values, 1.0, COMPARED), spell(values)


def _weaker(found: Any) -> Judged:
    bias, none = dwell(found, "ReLU, bias"), dwell(found, "ReLU, no bias")
    text = f"{spell(none)} (with bias {spell(bias)})"
    if np.any(np.isinf(none)):
        return False, text
    shorter = 1 - none / bias
    return both(apart(shorter, TIMES, COMPARED), more(shorter, 0, COMPARED)), text


def _dimensions(found: Any) -> Judged:
    bias, none = found.rank["ReLU, bias"], found.rank["ReLU, no bias"]
    text = f"{interval(bias)}, without bias {interval(none)}, lower by {interval(none - bias)}"
    return more(none - bias, 1.0, COMPARED), text


def _lower(found: Any) -> bool | None:
    return more(found.rank["ReLU, no bias"], found.rank["ReLU, bias"], COMPARED)


def _of(found: Any, kind: str, name: str) -> np.ndarray:
    """Variance explained by a regressor, (seeds,)."""
    return found.explained[kind][:, NAMES.index(name)]


def _pair(found: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    return _of(found, "ReLU, bias", name), _of(found, "ReLU, no bias", name)


def _more(found: Any) -> Judged:
    bias, none = _pair(found, "s")
    return more(bias, none, COMPARED), f"{interval(bias)}, without bias {interval(none)}"


def _simple(found: Any) -> Judged:
    pairs = list(zip(_pair(found, "s"), _pair(found, "c"), strict=True))
    text = ", ".join(
        f"{name} s {interval(s)} c {interval(c)}"
        for name, (s, c) in zip(("bias", "no bias"), pairs, strict=True)
    )
    return both(*(more(s, c, of=2 * COMPARED) for s, c in pairs)), text


def _boosts(found: Any) -> Judged:
    bias, none = (s - c for s, c in zip(_pair(found, "s"), _pair(found, "c"), strict=True))
    return more(bias, none, COMPARED), f"{interval(bias)}, without bias {interval(none)}"


def _less(found: Any) -> Judged:
    bias, none = _pair(found, "both")
    text = f"{interval(none)}, with bias {interval(bias)}, less by {interval(bias - none)}"
    return more(bias, none, COMPARED), text


def _zero(found: Any) -> Judged:
    last = {kind: found.losses(kind)[:, -1].max() for kind in found.rest}
    text = ", ".join(f"{kind} {value:.1e}" for kind, value in last.items())
    return max(last.values()) < 1e-3 * found.plateau, f"largest last loss {text}"


def _by_phase(of: Callable[[Any, str], np.ndarray], sign: int) -> Callable[[Any], Judged]:
    """Whether a measure is more, or less, where bias and early linear phase go together."""

    def judged(found: Any) -> Judged:
        if LATE not in found.rank:
            return None, "not run"
        bias, late, none = (of(found, kind) for kind in ("ReLU, bias", LATE, "ReLU, no bias"))
        text = (
            f"{interval(bias)} with bias, {interval(late)} with bias from the dotted line on, "
            f"{interval(none)} without"
        )
        return more(sign * bias, sign * late, COMPARED), text

    return judged


CLAIMS = (
    Claim(
        "With bias ReLU networks are aligned to linear ones until the linear task is solved",
        "M Sec. 6.2, Fig. 6B; W Sec. 2, Fig. 3B",
        _early,
        "largest difference of losses after the best shift until the linear network has made 95 % "
        f"of its way, {LOSSES}, and less than without bias",
        "bias-ReLU networks are aligned to linear networks in early training",
    ),
    Claim(
        "With bias ReLU networks learn nothing but the linear task at first",
        "M Sec. 6.2, Fig. 6B; W Sec. 2, Fig. 3B",
        _first,
        "fall of the non-linear task's loss below the best constant's, over its first, when that "
        f"of the linear task is down to a tenth of the best constant's: none, {LOSSES}",
        "bias-ReLU networks ... initially only acquire the linear problem",
    ),
    Claim(
        "With bias the loss settles at the dotted line for a lengthy period",
        "M Sec. 6.2, Fig. 6B",
        _rests,
        f"time from 1.1 to .9 of the line over the time to get there, apart from none: {TIMES}",
        "The ReLU loss curve in Fig. 6B, (Bias) settles at the dotted line which indicates the "
        "loss value that is achieved when only solving the linear task for a lengthy period.",
    ),
    Claim(
        "Without bias networks also learn more slowly after the linear task",
        "M Sec. 6.2; W Sec. 2",
        _slower,
        "time from 1.1 to .9 of the dotted line, the loss where only the linear task is solved, "
        "over that from 1.3 to 1.1: above 1",
        "ReLU networks without bias also appear to learn slower after learning the linear task.",
    ),
    Claim(
        "Without bias the saddle is substantially less pronounced",
        "M Sec. 6.2, Fig. 6B; W Sec. 2",
        _weaker,
        f"time at the dotted line without bias, less than that with bias and apart: {TIMES}",
        "However, the saddle point is substantially less pronounced.",
    ),
    Claim(
        "With bias the representation has fundamentally fewer dimensions",
        "M Sec. 6.2, Fig. 6C of the text",
        _dimensions,
        "effective rank of the Gram matrix at convergence; fundamentally: lower by one dimension "
        "or more, paired by seed",
        "We find that bias-ReLU networks have a strong low-rank bias and represent the task in a "
        "fundamentally lower dimensional fashion (Fig. 6C).",
        ("the effective rank is lower, by less than one dimension", _lower),
    ),
    Claim(
        "With bias the linear task explains more of the representation's variance than without",
        "M Fig. 6C of the caption, 6D of the text, Sec. 6.2; W Sec. 2, Fig. 3C",
        _more,
        "more, paired by seed",
        "More variance in the representations of bias-ReLU networks is explained by the linear "
        "task than for non-bias ReLU networks.",
    ),
    Claim(
        "With and without bias s explains more than c",
        "M Sec. 6.2; W Sec. 2, Fig. 3C",
        _simple,
        "more, paired by seed",
        "However, both models represent linear features more prominently than non-linear features.",
    ),
    Claim(
        "Bias makes the lead of s over c larger",
        "M caption of Fig. 6; W Fig. 3",
        _boosts,
        "variance explained by s less that by c, more with bias, paired by seed",
        "the early linear alignment of bias-ReLU networks to linear models boosts the phenomenon",
    ),
    Claim(
        "Without bias a regression on both explains less",
        "M Sec. 6.2; W Sec. 2",
        _less,
        "less, paired by seed",
        "For bias-free ReLU we also find that less overall representational variance is explained "
        "when fitting a regression that contain both regressor",
    ),
    Claim(
        "ReLU networks with and without bias reach zero loss on both tasks",
        "M Sec. 6.2; W Sec. 2",
        _zero,
        "last loss below a thousandth of the dotted line",
        "ReLU networks with bias terms encode the linear task more strongly than their bias-free "
        "counterparts, despite zero loss on both tasks",
    ),
    Claim(
        "The early linear phase contributes to what s explains, not only the bias as such",
        "M Sec. 6.2; W Sec. 2",
        _by_phase(lambda found, kind: _of(found, kind, "s"), 1),
        "variance explained by s, more with bias all the time than with bias only after the loss "
        "came down to 1.1 of the dotted line without",
        "Further interrogation of model representations reveals that early linearity also "
        "contributes to the overrepresentation of linear features.",
        beside=False,
    ),
    Claim(
        "The early linear phase is a cause of the lower rank, not only the bias as such",
        "M Sec. 3, said of Fig. 1, here on the two tasks of Fig. 6",
        _by_phase(lambda found, kind: found.rank[kind], -1),
        "effective rank, lower with bias all the time than with bias only after the loss came down "
        "to 1.1 of the dotted line without; generalization has no meaning on four points",
        "our result causally demonstrate that neural networks with early linear dynamics display a "
        "stronger simplicity bias as evidenced by lower-rank representations ...",
        beside=False,
    ),
)


def judge(data: Any) -> list[Row]:
    """Verdicts on the caption and Sec. 6.2, and on the early phase as a cause."""
    return [claim.row(data) for claim in CLAIMS]
