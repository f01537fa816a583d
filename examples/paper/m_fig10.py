"""M Fig. 10: loss and activity on the hierarchy task for bias strengths c. See: without bias the
ReLU network's loss leaves the linear one's; the always-on fraction rises early and high only where
c is large.

Gradient flow with exact walks, 64 hidden units, variance 2e-4. The paper does not list its c, but
speaks of all c > 0; here 0, 0.01, 0.03, 0.1, 0.3, 1, 3 and 10 (its own on images). Alignment is
judged on when the four singular values are half learned, over the linear network of the same c.
At the paper's variance the stages of linear networks overlap for c < 1; runs from variance 2e-8,
where they do not, stand beside. Fractions are those of descent at the paper's rate, as the paper
counts (z > 0), averaged over a unit of time; those of the flow, open (a sliding unit counts as off)
and closed (as on), stand beside them. "Early" is before the second singular value is half learned.
At the start the fractions of always-on and of dead units are E[Phi(c b)^P] for standard normal b.

    python examples/paper/m_fig10.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import (
    SHARES,
    TIMES,
    apart,
    both,
    half_widths,
    interval,
    more,
    same,
    usual,
    verdict,
)
from _paper import WITHOUT, Row, Study, fl
from _tree import (
    PAPER,
    SMALL,
    Case,
    Pace,
    Setting,
    drops,
    in_step,
    linearization,
    many,
    out_of_step,
    pace,
    start,
    task_of,
    thin,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.polynomial.hermite_e import hermegauss
from scipy.stats import norm

PARTS = ("always_on", "gating", "off")
TITLES = ("always on", "gating", "off")
WAYS = ("open", "closed", "descent")
UNIT = 1.0  # of time, over which the flickering fractions of descent are averaged


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, bias strengths (0 among them), the runs', seeds of descent, its rate."""

    seeds: int
    strengths: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    setting: Setting = PAPER
    small: Setting = SMALL
    descents: int = 20
    learning_rate: float = 2e-4

    @property
    def positive(self) -> list[float]:
        """The bias strengths other than 0."""
        return [c for c in self.strengths if c > 0]


SIZES = {"quick": Size(2, (0.0, 0.3, 1.0), descents=2), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """Runs by (kind, c, from small weights); fractions by (c, way), (seeds, T, 3)."""

    size: Size
    runs: dict[tuple[str, float, bool], list[fl.Trajectory]]
    parts: dict[tuple[float, str], np.ndarray]

    def pace(self, c: float, small: bool = False) -> Pace:
        """Half times of the runs of a c."""
        return pace(self.runs["relu", c, small], self.runs["linear", c, small], "tree", c)


def compute(size: Size) -> Data:
    """All runs."""
    runs = {
        (kind, c, small): many("tree", kind, c, size.seeds, setting)
        for small, setting in ((False, size.setting), (True, size.small))
        for c in size.strengths
        for kind in ("relu", "linear")
    }
    parts = {}
    for c in size.strengths:
        for way in ("open", "closed"):
            flows = runs["relu", c, False]
            parts[c, way] = np.array([_parts(f, size.setting.ts, way == "closed") for f in flows])
        parts[c, "descent"] = np.array([_descended(size, c, k) for k in range(size.descents)])
    return Data(size, runs, parts)


def _parts(flow: fl.Trajectory, ts: Any, closed: bool = False) -> np.ndarray:
    """Always on, gating, off at times, (T, 3)."""
    found = linearization(flow).activity(ts, closed=closed)
    return np.stack([np.asarray(getattr(found, part)) for part in PARTS], axis=-1)


def _descended(size: Size, c: float, seed: int) -> np.ndarray:
    """The same of descent, averaged around each time."""
    task = task_of("tree")
    network = start(Case("tree", "relu", c, seed), size.setting)
    # Half the mean at P times the rate is half the sum at the rate, and counts flow time.
    rate = size.learning_rate * task.samples
    flow = fl.gradient_descent(network, task, rate, t1=size.setting.t1)
    near = size.setting.ts[:, None] + np.linspace(-0.5, 0.5, 51) * UNIT
    rows = _parts(flow, np.clip(near.ravel(), 0, size.setting.t1))
    return rows.reshape(*near.shape, 3).mean(axis=1)


def expected_on(c: float, samples: int) -> float:
    """Always-on, and dead, fraction at a Gaussian start with one-hot inputs, E[Phi(c b)^P]."""
    b, weight = hermegauss(120)
    return float(np.sum(weight * norm.cdf(c * b) ** samples) / np.sqrt(2 * np.pi))


def numbers(data: Data) -> dict[str, Any]:
    """Thinned mean curves and half times per c, and the fraction expected at the start."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts, 30)}
    for c in data.size.strengths:
        losses = np.mean([flow.losses for flow in data.runs["relu", c, False]], axis=0)
        found[f"c = {c:g}: loss"] = thin(losses, 30)
        for way in WAYS:
            mean = data.parts[c, way].mean(axis=0)
            found |= {f"c = {c:g}: {part}, {way}": thin(mean[:, k], 30)
                      for k, part in enumerate(PARTS)}  # fmt: skip
        for small in (False, True):
            name = f"c = {c:g}: half times over linear, by seed{', small' if small else ''}"
            found[name] = data.pace(c, small).ratios
        on = data.parts[c, "open"][:, 0, 0].mean()
        found[f"c = {c:g}: always on at the start, expected"] = [
            on, expected_on(c, task_of("tree").samples)
        ]  # fmt: skip
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the four panels, and on what Sec. 5.3 says of such fractions at c = 1."""
    return [_aligned_row(data), _stage_row(data), _linear_row(data), _gating_row(data),
            _dead_row(data), _small_row(data)]  # fmt: skip


def _good(found: dict[float, bool | None]) -> str:
    some = ", ".join(f"{c:g}" for c, one in found.items() if one)
    return f"c = {some}" if some else "no c"


def _aligned(data: Data, small: bool) -> dict[float, bool | None]:
    """By c, whether the network is in step and the one without bias is not.

    Not where it is out of step itself by more than the equivalence margin, which is what is asked
    of networks without bias for them to diverge.
    """
    number, bare = len(data.size.positive), data.pace(0.0, small)
    found = {}
    for c in data.size.positive:
        one = data.pace(c, small)
        diverges = more(one.uneven, TIMES.same, number)
        good = both(in_step(one, number), out_of_step(bare, one, number))
        found[c] = False if diverges else good
    return found


def _aligned_row(data: Data) -> Row:
    found, small = (_aligned(data, flag) for flag in (False, True))
    text = "; ".join(
        f"c = {c:g}: {data.pace(c).text}, uneven by {interval(data.pace(c).uneven)}, from "
        f"{data.size.small.variance:g} by {interval(data.pace(c, True).uneven)}"
        for c in data.size.strengths
    )
    part = f"{_good(found)}; from variance {data.size.small.variance:g} {_good(small)}"
    return Row(
        claim="All networks with c > 0 are aligned to linear ones, only those without bias diverge",
        quote="all networks which have c > 0 display characteristic linear aligned, stage-like "
        "learning (Fig. 10, left) and only networks with no bias term significantly diverge from "
        "linear dynamics",
        source="M App. C.4, Fig. 10 left, Sec. 5.2",
        measured="half times of the four singular values over those of the linear network of the "
        f"same c, and by how much one of these exceeds another: {text}. Criterion: with bias "
        f"{TIMES}; diverging, with bias or without, is beyond {TIMES.same:g}, and without bias "
        f"more than with; intervals at the level of {len(found)} comparisons",
        verdict=verdict(both(*found.values()), (part, True in found.values())),
    )


def _stage_row(data: Data) -> Row:
    number = {key: np.array([drops(f) for f in flows]) for key, flows in data.runs.items()}

    def staged(small: bool) -> dict[float, bool | None]:
        pairs = {c: [number[kind, c, small] for kind in ("relu", "linear")]
                 for c in data.size.positive}  # fmt: skip
        return {c: usual((a == b) & (a > 1), of=len(pairs)) for c, (a, b) in pairs.items()}

    text = "; ".join(
        f"c = {c:g}: ReLU {number['relu', c, False].mean():.3g}, linear "
        f"{number['linear', c, False].mean():.3g} (from {data.size.small.variance:g} "
        f"{number['relu', c, True].mean():.3g}, {number['linear', c, True].mean():.3g})"
        for c in data.size.strengths
    )
    found, small = staged(False), staged(True)
    part = (
        f"{_good(found)}; from variance {data.size.small.variance:g}, where the stages of "
        f"linear networks do not overlap, {_good(small)}"
    )
    return Row(
        claim="Losses display stage-like learning in all cases where c > 0",
        quote="loss curves display characteristic stage-like learning in all cases where c > 0",
        source="M Fig. 10 left, App. C.4",
        measured=f"separate drops of the loss, mean of {data.size.seeds} seeds: {text}. Criterion, "
        "at the paper's variance: more than one drop, and as many as the linear network, in most "
        f"seeds, {len(found)} comparisons",
        verdict=verdict(both(*found.values()),
                        (part, True in (*found.values(), *small.values()))),
    )  # fmt: skip


def _early(data: Data, c: float, way: str, part: int) -> np.ndarray:
    """A part at the saved times before the second singular value is half learned, by seed.

    Later ones are nan; (seeds, T).
    """
    rows = data.parts[c, way][:, :, part]
    second = data.pace(c).relu[: len(rows), 1]
    return np.where(data.size.setting.ts <= second[:, None], rows, np.nan)


def _largest(data: Data, c: float, way: str) -> np.ndarray:
    """Largest always-on fraction of early times by seed."""
    return np.nanmax(_early(data, c, way, 0), axis=1)


def _linear_row(data: Data) -> Row:
    strengths = data.size.positive
    found, texts = {}, []
    for c in data.size.strengths:
        high = {way: _largest(data, c, way) for way in WAYS}
        first = data.parts[c, "descent"][:, 0, 0]
        texts.append(
            f"c = {c:g}: {first.mean():.3f} to {interval(high['descent'])} (open "
            f"{high['open'].mean():.2f}, closed {high['closed'].mean():.2f})"
        )
        if c > 0:
            over = high["descent"] - _largest(data, 0.0, "descent")
            number = len(strengths)
            found[c] = both(more(high["descent"] - first, of=number), apart(over, SHARES, number))
    return Row(
        claim="The always-on fraction shoots up early irrespective of c, unless c = 0",
        quote="bias terms drive networks towards linearity early in training irrespective of bias "
        "magnitude c unless c = 0",
        source="M Fig. 10 left-center, App. C.4",
        measured="always-on fraction of descent, averaged over a unit of time, from the start to "
        "its largest value before the second singular value is half learned: "
        f"{'; '.join(texts)}. Criterion: it rises, and its "
        f"largest is above that of c = 0: {SHARES}; {len(strengths)} comparisons",
        verdict=verdict(both(*found.values()), (f"{_good(found)}", True in found.values())),
    )


def _gating_row(data: Data) -> Row:
    least = {
        (c, way): data.parts[c, way][:, :, 1].min(axis=1)
        for c in data.size.strengths for way in WAYS
    }  # fmt: skip
    number = len(data.size.positive)
    small = {c: same(least[c, "descent"], SHARES, number) for c in data.size.positive}
    fewer = {
        c: both(more(less := least[0.0, "descent"] - least[c, "descent"], of=number),
                apart(less, SHARES, number))
        for c in data.size.positive
    }  # fmt: skip
    text = "; ".join(
        f"c = {c:g}: {interval(least[c, 'descent'])} (open {least[c, 'open'].mean():.2f}, closed "
        f"{least[c, 'closed'].mean():.2f})" for c in data.size.strengths
    )  # fmt: skip
    part = f"small at {_good(small)}, smaller than without bias at {_good(fewer)}"
    return Row(
        claim="The number of gating units is small unless c = 0",
        quote="the number of neurons which perform gating is small unless c = 0",
        source="M App. C.4, Fig. 10 right-center",
        measured=f"least fraction of gating units in descent, at any time: {text}. Criterion: "
        f"small is none, {SHARES}; smaller is the same below c = 0; {number} comparisons",
        verdict=verdict(both(*small.values()), (part, True in fewer.values())),
    )


def _dead_row(data: Data) -> Row:
    samples, texts, last = task_of("tree").samples, [], {}
    for c in data.size.strengths:
        off = {way: data.parts[c, way][:, :, 2] for way in WAYS}
        last[c] = off["open"][:, -1]
        texts.append(
            f"c = {c:g}: {off['open'][:, 0].mean():.3f} (expected {expected_on(c, samples):.3f}) "
            f"to {interval(last[c])} (descent {off['descent'][:, -1].mean():.3f})"
        )
    means = [rows.mean() for rows in last.values()]
    grows = "more for larger c" if np.all(np.diff(means) >= 0) else "not more for every larger c"
    return Row(
        claim="How many units are dead, by c",
        quote="Fraction of effectively dead units.",
        source="M Fig. 10 right",
        measured=f"units that are off for all samples, at the start and at the end: "
        f"{'; '.join(texts)}",
        verdict=f"measured: at the end {min(means):.0%} to {max(means):.0%}, {grows}",
        kind="control",
    )


def _small_row(data: Data) -> Row:
    on = {way: _largest(data, 1.0, way) for way in WAYS}
    off = data.parts[1.0, "open"][:, :, 2]
    die = off[:, -1] - off[:, 0]
    text = ", ".join(f"{interval(1 - rows)} ({way})" for way, rows in on.items())
    return Row(
        claim="All but a small subset of the units, which die or stay non-linear, become active on "
        "all inputs",
        quote="Apart from a small subset of neurons that become dead neurons ... or stay in the "
        "nonlinear regime, the majority of neurons therefore rapidly enter a linear regime and "
        "become active on all inputs",
        source="M Sec. 5.3, Fig. 3C",
        measured="units that are not always on (averaged over a unit of time) where these are "
        f"fewest before the second singular value is half learned, c = 1: {text}; off for all "
        f"samples at the start {interval(off[:, 0])}, at the end {interval(off[:, -1])}, so that "
        f"{interval(die)} die on the way. Criterion: small is none, {SHARES}, in descent as the "
        "paper counts",
        verdict=verdict(same(1 - on["descent"], SHARES),
                        ("those that die on the way are a small subset", same(die, SHARES))),
    )  # fmt: skip


def draw(data: Data) -> Figure:
    """Losses of ReLU and linear networks, their half times by c, always on and gating."""
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 7.0))
    ts = data.size.setting.ts
    shown = [c for c in (0.0, 0.1, 0.3, 1.0, 3.0) if c in data.size.strengths]
    _losses(data, axes[0, 0])
    _times(data, axes[0, 1])
    shades = fl.plot.shades("relu", len(shown) - 1)
    for ax, k in ((axes[1, 0], 0), (axes[1, 1], 1)):
        for c, colour in zip(shown, [fl.plot.COLOURS["relu"], *shades], strict=True):
            mean = data.parts[c, "descent"].mean(axis=0)[:, k]
            how: dict[str, Any] = {"color": colour, "linestyle": "-", "linewidth": 1.8}
            marks = {"marker": "o", "markersize": 4, "markevery": 15}
            ax.plot(ts, mean, label=f"c = {c:g}", **how | ({} if c else WITHOUT | marks))
        ax.set(title=f"{TITLES[k]} (descent, mean over seeds)", ylabel="fraction of hidden units",
               ylim=(0, 1), xlabel="flow time $t$ (units of $\\tau$)")  # fmt: skip
    axes[1, 0].legend(fontsize="small", frameon=False, loc="upper right", ncols=2)
    return figure


def _losses(data: Data, ax: Axes) -> None:
    """From small weights, where the stages do not overlap."""
    for shade, c in zip((0, 1, 2), (1.0, 0.3, 0.0), strict=True):
        for kind in ("linear", "relu"):
            flows = data.runs[kind, c, True]
            mean = np.mean([flow.losses for flow in flows], axis=0)
            name = "ReLU" if kind == "relu" else "linear"
            how: dict[str, Any] = {"linestyle": ("-", "-.", "--")[shade], "linewidth": 1.6}
            how |= {"color": fl.plot.shades(kind, 3)[shade]}
            marks = {"marker": "os"[kind == "linear"], "markersize": 4, "markevery": 12}
            how |= {} if c else WITHOUT | marks
            ax.plot(flows[0].ts, mean, label=f"{name}, c = {c:g}", **how)
    ax.set(
        title=f"loss from variance {data.size.small.variance:g}", ylabel="loss $L$", xlim=(0, 80),
        xlabel="flow time $t$ (units of $\\tau$)",
    )  # fmt: skip
    ax.legend(fontsize="small", frameon=False)


def _times(data: Data, ax: Axes) -> None:
    """Half times over those of the linear network, by c and singular value."""
    strengths = data.size.strengths
    where, shades = np.arange(len(strengths)), fl.plot.shades("relu", 4)
    for k, name in enumerate(("largest", "second", "third", "smallest")):
        ratios = np.stack([data.pace(c).ratios[:, k] for c in strengths], axis=1)
        how: dict[str, Any] = {"color": shades[k], "linestyle": "-", "marker": "osD^"[k]}
        ax.errorbar(where, ratios.mean(axis=0), half_widths(ratios), label=f"{name} $s$",
                    markersize=4, **how)  # fmt: skip
    ax.axhline(1, color="0.6", linewidth=0.8, linestyle="-")
    ax.set_xticks(where, [f"{c:g}" for c in strengths])
    ax.set(title="when singular values are half learned", xlabel="bias strength $c$",
           ylabel="half time, ReLU over linear", ylim=(0.85, 1.45))  # fmt: skip
    ax.legend(fontsize="small", frameon=False, ncols=2)


STUDY = Study("m_fig10", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
