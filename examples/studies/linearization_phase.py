r"""Phase diagram of linearization: from which bias strength c on do ReLU networks become linear?
See: the measured boundary (white) runs beside the derived one (dotted), and over it all curves rise
at one place.

    python examples/studies/linearization_phase.py [--quick] [--seeds 31] [--out FOLDER]

Exact runs of ReLU networks on the semantic tree over c, the variance v of the initial weights and
the width H: the largest fraction of units that are on for all samples, its time t* and how long it
lasts, open and closed. The runs go into a table, `figures/linearization_phase.csv`, which a run
that was killed goes on from.

Where the boundary lies is derived without a fitted parameter, after a first look at 72 runs (32
units, three variances) and before the table was made. The early phase turns half of the units off.
In the others the bias mode grows, along [c; mean of x] on the input side, until the outputs are of
the order of the targets: (H / 2) |w| |a| = |mean y| / sqrt(c^2 + m^2), with m = |mean x| and |w| =
|a|, of which the bias has the share b = c |w| / sqrt(c^2 + m^2). An input weight whose sample
starts on the off side gets no gradient and stays, of the order of sqrt(v). So a unit is on for all
samples when c b exceeds the largest of P such weights, whose median is z sqrt(v), z =
Phi^-1(2^(-1/P)), and a quarter of all units, half of those that grow, where

    c^2 / (c^2 + m^2)^(3/4) = z sqrt(v H / (2 |mean y|)),

which for c well below m is c* = sqrt(z m^(3/2)) (v H / (2 |mean y|))^(1/4): the boundary goes to
zero with the initial weights, as the fourth root of variance and width.

Found, in 10,075 runs (`--seeds 31`, a quarter to half an hour on two cores): the exponent of the
variance is 0.253 [0.248, 0.258] over five decades, that of the width 0.356 [0.317, 0.406] from 16
units on and 0.299 [0.246, 0.355] from 32: the law does not hold in narrow networks. c* is 1.30
(open) and 0.89 (closed) times the derived one; with that factor, held-out widths, variances and a
smaller tree are met to 8 %. The early phase of each network puts the boundary at 0.7 of the
measured one.
"""

import functools
from typing import Any, NamedTuple

import _studies
import jax
import matplotlib.pyplot as plt
import numpy as np
from _boundary import PART, Boundary, crossing, derived, exponents, factor
from matplotlib.figure import Figure

import flowlin as fl

T1 = 150.0


class Size(NamedTuple):
    """What is swept over.

    - `levels`: of the tree. `first`: the first seed.
    """

    strengths: tuple[float, ...]
    variances: tuple[float, ...]
    widths: tuple[int, ...]
    levels: int = 3
    first: int = 0

    @property
    def shown(self) -> int:
        """The width of the map, and of the comparison with the early phase."""
        return self.widths[len(self.widths) // 2]


STRENGTHS = tuple(float(f"{c:.3g}") for c in np.geomspace(0.01, 1.0, 13))
MAIN = Size(STRENGTHS, (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3), (16, 32, 64))
OTHER = Size(STRENGTHS, (3e-7, 3e-5), (24, 48), first=100)
PAPER = Size(STRENGTHS, (2e-4,), (64,), first=300)  # the lead paper's variance
SMALLER = Size(STRENGTHS, (1e-7, 1e-5), (32,), levels=2, first=200)
QUICK = Size((0.05, 0.1, 0.5), (1e-4,), (8,))


@functools.cache
def tree(levels: int) -> fl.Task:
    """The semantic tree."""
    return fl.tasks.hierarchy(levels=levels)


def network(levels: int, width: int, variance: float, c: float, seed: int) -> fl.ReLUNetwork:
    """A network at the start."""
    return fl.ReLUNetwork.init(
        tree(levels), width, variance, bias_strength=c, key=jax.random.key(seed)
    )


def record(flow: fl.Trajectory) -> dict[str, Any]:
    """t*, the largest always-on fraction and how long it lasts, open and closed."""
    line = flow.linearization()
    both = {"open": line.open, "closed": line.closed}
    found = {
        f"{part}_{name}": getattr(one, part)
        for name, one in both.items()
        for part in ("time", "fraction", "lasts")
    }
    return found | {"start": line.activity(0.0).always_on, "events": len(flow.events)}


class Found(NamedTuple):
    """The runs of a size: columns as arrays (widths, variances, strengths, seeds)."""

    size: Size
    columns: dict[str, np.ndarray]
    failed: int

    def fraction(self, convention: str = "open") -> np.ndarray:
        """The largest always-on fraction."""
        return self.columns[f"fraction_{convention}"]


def runs(size: Size, seeds: int, given: Any) -> Found:
    """The exact runs, or what the table has of them."""
    grid = fl.grid(
        levels=size.levels, width=size.widths, variance=size.variances, c=size.strengths,
        seed=range(size.first, size.first + seeds),
    )  # fmt: skip
    found = fl.sweep(
        network, tree, 20.0 if given.quick else T1, grid=grid, record=record, rtol=1e-6,
        workers=given.workers, progress=True,
        checkpoint=_studies.table("linearization_phase", given.quick),
    )  # fmt: skip
    columns = {name: values.reshape(grid.shape)[0] for name, values in found.columns.items()}
    return Found(size, columns, len(found.failed))


def boundaries(found: Found, convention: str = "open") -> list[Boundary]:
    """c* of every width and variance."""
    size, rows = found.size, []
    for i, width in enumerate(size.widths):
        for j, variance in enumerate(size.variances):
            cell = found.fraction(convention)[i, j]
            low, high = _studies.bootstrap(
                lambda draw: crossing(size.strengths, draw.T), cell.T, times=1000
            )
            c = crossing(size.strengths, cell)
            law = derived(tree(size.levels), width, variance)
            rows.append(Boundary(width, variance, c, float(low), float(high), law))
    return rows


class Early(NamedTuple):
    """What the early phase says of the runs of one width: (variances, strengths, seeds)."""

    fraction: np.ndarray
    time: np.ndarray


def early(size: Size, seeds: int) -> Early:
    """`theory.early_phase` of networks of the width that is shown, up to its own end."""
    shape = (len(size.variances), len(size.strengths), seeds)
    fraction, time = np.zeros(shape), np.zeros(shape)
    for i, variance in enumerate(size.variances):
        for j, c in enumerate(size.strengths):
            for k in range(seeds):
                start = network(size.levels, size.shown, variance, c, size.first + k)
                line = fl.theory.early_phase(start, tree(size.levels)).linearization()
                fraction[i, j, k], time[i, j, k] = line.open.fraction, line.open.time
    return Early(fraction, time)


class Data(NamedTuple):
    """All runs and predictions; `held` are not used to find anything."""

    main: Found
    held: dict[str, Found]
    early: Early | None


def compute(given: Any) -> Data:
    """The runs, by the number of seeds that was asked for."""
    if given.quick:
        main = runs(QUICK, 2, given)
        return Data(main, {}, early(QUICK, 1))
    held = {
        "other widths and variances": runs(OTHER, given.seeds, given),
        "the paper's variance": runs(PAPER, given.seeds, given),
        "a smaller tree": runs(SMALLER, given.seeds, given),
    }
    return Data(runs(MAIN, given.seeds, given), held, early(MAIN, min(4, given.seeds)))


def powers(found: Found, least: int) -> dict[str, dict[str, Any]]:
    """Exponents of variance and width in c*, of this width or more; 95 % intervals over seeds."""

    def statistic(draw: np.ndarray) -> np.ndarray:
        rows = [
            Boundary(width, variance, crossing(found.size.strengths, draw[:, i, j].T), 0, 0, 1)
            for i, width in enumerate(found.size.widths)
            for j, variance in enumerate(found.size.variances)
            if width >= least
        ]
        return exponents(rows)

    seeds = np.moveaxis(found.fraction(), -1, 0)
    fitted, (low, high) = statistic(seeds), _studies.bootstrap(statistic, seeds, times=400)
    return {
        name: {"fitted": fitted[k], "interval": [low[k], high[k]], "derived": 0.25}
        for k, name in enumerate(("variance", "width"))
    }


def numbers(data: Data) -> dict[str, Any]:
    """What was found."""
    rows, everything = boundaries(data.main), [data.main, *data.held.values()]
    ratio, spread = factor(rows)
    found: dict[str, Any] = {
        "runs": sum(one.fraction().size for one in everything),
        "failed": sum(one.failed for one in everything),
        "seeds": data.main.fraction().shape[-1],
        "boundaries, open": [row._asdict() for row in rows],
        "boundaries, closed": [row._asdict() for row in boundaries(data.main, "closed")],
        "measured over derived": {"mean": ratio, "spread as a factor": spread},
        "plateaus": plateaus(data.main),
        "held out": {name: held_out(one, ratio) for name, one in data.held.items()},
    }
    if len(data.main.size.variances) > 1:
        found["exponents"] = powers(data.main, 0)
        found["exponents, 32 units and more"] = powers(data.main, 32)
    if data.early is not None:
        found["early phase"] = against_early(data.main, data.early)
    return found


def plateaus(found: Found) -> dict[str, list[float]]:
    """Quartiles over all linear runs of how long the largest fraction lasts, in units of tau."""
    return {
        name: np.quantile(
            found.columns[f"lasts_{name}"][found.fraction(name) >= PART], [0.25, 0.5, 0.75]
        ).tolist()
        for name in ("open", "closed")
    }


def held_out(found: Found, ratio: float) -> list[dict[str, Any]]:
    """c* where nothing was fitted: the law with the factor of the main runs, and measured."""
    return [
        row._asdict()
        | {
            "predicted": ratio * row.derived,
            "measured over predicted": row.c / (ratio * row.derived),
        }
        for row in boundaries(found)
    ]


def against_early(found: Found, predicted: Early) -> dict[str, Any]:
    """c* and t* by the early phase over those of the same networks' exact runs."""
    seeds = predicted.fraction.shape[-1]
    at = found.size.widths.index(found.size.shown)
    fraction, time = (
        found.columns[f"{name}_open"][at, ..., :seeds] for name in ("fraction", "time")
    )
    ratios = [
        crossing(found.size.strengths, ours) / crossing(found.size.strengths, own)
        for ours, own in zip(predicted.fraction, fraction, strict=True)
    ]
    linear = (fraction >= PART) & (predicted.fraction >= PART)
    delays = predicted.time[linear] / time[linear]
    error = predicted.fraction - fraction
    return {
        "networks": int(fraction.size),
        "c*, predicted over measured, by variance": ratios,
        "t* open, predicted over measured, quartiles": np.quantile(
            delays, [0.25, 0.5, 0.75]
        ).tolist()
        if delays.size
        else [],
        "fraction, predicted minus measured": {
            "mean": float(error.mean()),
            "deviation": float(error.std()),
        },
    }


def draw_map(ax: Any, data: Data) -> None:
    """The largest always-on fraction over c and variance, and where it is `PART`."""
    found, size = data.main, data.main.size
    at = size.widths.index(size.shown)
    fl.plot.sweep_map(
        size.strengths, size.variances, found.fraction()[at], ax, level=PART,
        names=("bias strength $c$", "initial variance $v$", "largest always-on fraction (open)"),
    )  # fmt: skip
    ax.set_xticks(ax.get_xticks(), ax.get_xticklabels(), rotation=60)
    logs, rows = np.log(size.strengths), boundaries(found)
    rows = [row for row in rows if row.width == size.shown]

    def place(c: Any) -> np.ndarray:
        return np.interp(np.log(c), logs, np.arange(len(logs)), left=np.nan, right=np.nan)

    ax.plot(place([r.derived for r in rows]), range(len(rows)), ":", color="white", label="derived")
    if data.early is not None:
        ours = [crossing(size.strengths, row) for row in data.early.fraction]
        ax.plot(place(ours), range(len(rows)), "x", color="red", label="early phase")
    ax.legend(fontsize="small", loc="lower right", facecolor="0.4", labelcolor="white")
    ax.set_title(f"A. {size.shown} units; boundary: where the fraction is {PART:g}", fontsize=10)


def draw_law(ax: Any, data: Data) -> None:
    """The boundary against width times variance."""
    ratio, _ = factor(boundaries(data.main))
    named = {
        "fitted": (data.main, "o"),
        **dict(zip(data.held, zip(data.held.values(), "sD^", strict=False), strict=False)),
    }
    for name, (found, marker) in named.items():
        rows = [row for row in boundaries(found) if np.isfinite(row.c)]
        x, c = np.array([row.width * row.variance for row in rows]), np.array([r.c for r in rows])
        error = np.abs([[r.c - r.low for r in rows], [r.high - r.c for r in rows]])
        face = None if name == "fitted" else "white"
        ax.errorbar(x, c, error, fmt=marker, ms=5, mfc=face, capsize=2, label=name)
    x = np.geomspace(1e-7, 1e-1, 50)
    law = np.array([derived(tree(3), 1, one) for one in x])
    ax.plot(x, law, **fl.plot.look("theory", points=False) | {"label": "derived"})
    ax.set_title("B. The boundary, open; bars: 95 % over seeds", fontsize=10)
    ax.plot(x, ratio * law, "--", color="black", lw=1, label=f"{ratio:.2f} of it")
    ax.set(
        xscale="log", yscale="log", xlabel="width times variance, $H v$", ylabel="boundary $c^*$"
    )
    ax.legend(fontsize="small")


def draw_collapse(ax: Any, data: Data) -> None:
    """The fraction at all variances against c in units of the derived boundary."""
    found, size = data.main, data.main.size
    at = size.widths.index(size.shown)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(size.variances)))
    for j, variance in enumerate(size.variances):
        x = np.array(size.strengths) / derived(tree(size.levels), size.shown, variance)
        fraction = found.fraction()[at, j].mean(axis=-1)
        ax.plot(x, fraction, color=colours[j], lw=1, label=f"$v$ = {variance:g}")
    ax.axhline(PART, color="0.7", lw=0.8)
    ax.set_title(f"C. {size.shown} units, all variances: one curve", fontsize=10)
    ax.set(
        xscale="log", xlabel="$c$ over the derived boundary", ylabel="largest always-on fraction"
    )
    ax.legend(fontsize="small")


def draw_times(ax: Any, data: Data) -> None:
    """The open t*: medians over seeds with their quartiles."""
    found, size = data.main, data.main.size
    at = size.widths.index(size.shown)
    colours = fl.plot.shades("relu", len(size.variances))
    for j, (variance, colour) in enumerate(zip(size.variances, colours, strict=True)):
        linear = found.fraction()[at, j].mean(axis=-1) >= PART
        time = found.columns["time_open"][at, j, linear]
        if not len(time):
            continue
        low, middle, high = np.nanquantile(time, [0.25, 0.5, 0.75], axis=-1)
        strengths = np.array(size.strengths)[linear]
        ax.plot(strengths, middle, "-", color=colour, label=f"$v$ = {variance:g}")
        ax.fill_between(strengths, low, high, color=colour, alpha=0.12, lw=0)
    ax.set(xscale="log", yscale="log", xlabel="bias strength $c$")
    ax.set_ylabel(r"$t^*$, open (units of $\tau$)")
    ax.set_yticks([2, 3, 5, 10, 20], ["2", "3", "5", "10", "20"])
    ax.minorticks_off()
    ax.set_title(f"D. {size.shown} units, where the fraction is {PART:g} or more", fontsize=10)
    ax.legend(fontsize="small", loc="lower left")


def draw(data: Data) -> Figure:
    """The map, the law, the collapse, the times."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 8.4), layout="constrained")
    for ax, panel in zip(axes.flat, (draw_map, draw_law, draw_collapse, draw_times), strict=True):
        panel(ax, data)
    return figure


if __name__ == "__main__":
    _studies.sweeps("linearization_phase", __doc__, compute, numbers, draw)
