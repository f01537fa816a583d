"""M Fig. 10: loss and activity on the hierarchy task for bias strengths c.

Gradient flow with exact walks, 64 hidden units, variance 2e-4; the paper does not list its c, here
0, 0.01, 0.03, 0.1, 0.3, 1, 3. Alignment is judged on when the four singular values are half
learned, over the linear network of the same c; stages are counted from variance 2e-8, where they do
not overlap. Fractions are those of descent at the paper's rate, as the paper counts (z > 0),
averaged over a unit of time; those of the flow, open (a sliding unit counts as off) and closed (as
on), stand beside them. At the start the always-on fraction is E[Phi(c b)^P] for standard normal b.

    python examples/paper/m_fig10.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import SHARES, TIMES, both, half_widths, interval, more, usual, verdict
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
    strengths: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
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
    """Always-on fraction at a Gaussian start with one-hot inputs, E[Phi(c b)^P]."""
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
    """Verdicts on the four panels."""
    return [_aligned_row(data), _stage_row(data), _linear_row(data), _gating_row(data)]


def _conditional(found: dict[float, bool | None], *others: bool | None) -> str:
    """The verdict, with the c for which it holds as a condition."""
    return verdict(both(*found.values(), *others), (f"c = {_good(found)}", True in found.values()))


def _good(found: dict[float, bool | None]) -> str:
    return ", ".join(f"{c:g}" for c, one in found.items() if one) or "none"


def _aligned(data: Data, small: bool) -> dict[float, bool | None]:
    """By c, whether the network is in step and the one without bias is not."""
    number, bare = len(data.size.positive), data.pace(0.0, small)
    return {
        c: both(
            in_step(data.pace(c, small), number), out_of_step(bare, data.pace(c, small), number)
        )
        for c in data.size.positive
    }


def _aligned_row(data: Data) -> Row:
    found, small = (_aligned(data, flag) for flag in (False, True))
    text = "; ".join(
        f"c = {c:g}: {data.pace(c).text}, {interval(data.pace(c).uneven)}, from "
        f"{data.size.small.variance:g} {interval(data.pace(c, True).uneven)}"
        for c in data.size.strengths
    )
    condition = f"c = {_good(found)}; from variance {data.size.small.variance:g} c = {_good(small)}"
    return Row(
        "All networks with c > 0 are aligned to linear ones, and only those without bias diverge",
        "M Fig. 10 left, App. C.4",
        f"half times of the four singular values over those of the linear network of the same c, "
        f"and how far they are from each other ({TIMES}; without bias beyond {TIMES.same:g} and "
        f"more than with c, at the level of {len(found)} comparisons): {text}",
        verdict(both(*found.values()), (condition, True in found.values())),
    )


def _stage_row(data: Data) -> Row:
    number = {key: np.array([drops(f) for f in flows]) for key, flows in data.runs.items()}
    found = {
        c: usual(number["relu", c, True] == number["linear", c, True], of=len(data.size.positive))
        for c in data.size.positive
    }
    text = "; ".join(
        f"c = {c:g}: ReLU {number['relu', c, True].mean():.3g}, linear "
        f"{number['linear', c, True].mean():.3g} (from {data.size.setting.variance:g} "
        f"{number['relu', c, False].mean():.3g}, {number['linear', c, False].mean():.3g})"
        for c in data.size.strengths
    )
    bare = usual(number["relu", 0.0, True] < number["linear", 0.0, True])
    return Row(
        "Losses display stage-like learning in all cases where c > 0",
        "M Fig. 10 left, App. C.4",
        f"separate drops of the loss from variance {data.size.small.variance:g}, mean of "
        f"{data.size.seeds} seeds, to be as many as in linear networks: {text}",
        _conditional(found, bare),
    )


def _largest(data: Data, c: float, way: str, part: int) -> np.ndarray:
    """Largest value of a part by seed."""
    return data.parts[c, way][:, :, part].max(axis=1)


def _linear_row(data: Data) -> Row:
    strengths = data.size.positive
    found = {}
    for c in strengths:
        high = _largest(data, c, "descent", 0)
        rise = high - data.parts[c, "descent"][:, 0, 0]
        over = high - _largest(data, 0.0, "descent", 0)
        found[c] = both(more(rise, of=len(strengths)), more(over, SHARES.apart, len(strengths)))
    texts = []
    for c in data.size.strengths:
        mean = {way: data.parts[c, way].mean(axis=0)[:, 0] for way in WAYS}
        when = data.size.setting.ts[mean["descent"].argmax()]
        high = {way: _largest(data, c, way, 0).mean() for way in WAYS}
        texts.append(
            f"c = {c:g}: {mean['descent'][0]:.3f} to {interval(_largest(data, c, 'descent', 0))} "
            f"near t = {when:.3g} (open {high['open']:.2f}, closed {high['closed']:.2f})"
        )
    return Row(
        "The linear fraction shoots up early irrespective of c unless c = 0",
        "M Fig. 10 left-center, App. C.4",
        f"always-on fraction of descent from the start to its largest, to be more than at the "
        f"start, and more than {SHARES.apart:g} above c = 0: {'; '.join(texts)}",
        _conditional(found),
    )


def _gating_row(data: Data) -> Row:
    least = {
        (c, way): data.parts[c, way][:, :, 1].min(axis=1)
        for c in data.size.strengths for way in WAYS
    }  # fmt: skip
    strengths = data.size.positive
    found = {
        c: more(least[0.0, "descent"] - least[c, "descent"], SHARES.apart, len(strengths))
        for c in strengths
    }
    text = "; ".join(
        f"c = {c:g}: {interval(least[c, 'descent'])} (open {least[c, 'open'].mean():.2f}, closed "
        f"{least[c, 'closed'].mean():.2f})" for c in data.size.strengths
    )  # fmt: skip
    return Row(
        "The gating fraction is small unless c = 0",
        "M Fig. 10 right-center, App. C.4",
        f"least fraction of gating units in descent, to be more than {SHARES.apart:g} below that "
        f"of c = 0: {text}",
        _conditional(found),
    )


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
           ylabel="half time, ReLU over linear", ylim=(0.85, 1.35))  # fmt: skip
    ax.legend(fontsize="small", frameon=False, ncols=2)


STUDY = Study("m_fig10", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
