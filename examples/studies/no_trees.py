r"""What is left of the boundary in c, and of the spread R over c, on tasks that are no trees.
See: for orthogonal inputs the boundary is about as steep as what is derived on trees (dotted), for
Gaussian inputs it is flat, and above 1 (A). The spread R falls to less than half on dense targets
alone (B).

    python examples/studies/no_trees.py [--quick] [--out FOLDER]

On semantic trees ReLU networks become linear from a bias strength on that goes as $(v H)^{1/4}$
(`linearization_phase.py`), and the spread R of their modes' delays has half of its value without
bias at c of 0.19 to 0.25 (`order_parameter.py`). The same measurements, with nothing changed but
the task, on those of `_studies.NO_TREES`: classes of unequal size, dense targets of orthogonal
inputs, and correlated Gaussian inputs. How later modes are late is in `half_gate.py`, on the same
tasks.
"""

import dataclasses

import jax
import matplotlib.pyplot as plt
import numpy as np
import order_parameter
from _boundary import crossing, derived
from _studies import NO_TREES, Study, bootstrap, fl, half_widths, task_named

TEN_SEEDS = dataclasses.replace(order_parameter.STUDY.default, seeds=10)


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `strengths` (c), `variances`, `width`, `t1`, `seeds`: of the boundary.
    - `tasks`: of `_studies.NO_TREES`.
    - `spreads`: of R, whose width, variance and end are those of `order_parameter.py`, and `order`.
    """

    strengths: tuple[float, ...] = (0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0)
    variances: tuple[float, ...] = (3e-7, 3e-5)
    width: int = 32
    t1: float = 100.0
    seeds: int = 10
    spreads: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
    order: order_parameter.Size = TEN_SEEDS
    tasks: tuple[str, ...] = NO_TREES


def fractions(task: fl.Task, size: Size) -> np.ndarray:
    """The largest always-on fraction, open, (variances, strengths, seeds)."""

    def network(variance: float, c: float, seed: int) -> fl.ReLUNetwork:
        return fl.ReLUNetwork.init(
            task, size.width, variance, bias_strength=c, key=jax.random.key(seed)
        )

    grid = fl.grid(variance=size.variances, c=size.strengths, seed=range(size.seeds))
    runs = fl.sweep(
        network, task, size.t1, grid=grid, rtol=1e-6, progress=True,
        record=lambda flow: {"fraction": flow.linearization().open.fraction},
    )  # fmt: skip
    return runs.columns["fraction"].reshape(grid.shape)


def spreads(task: fl.Task, size: Size) -> np.ndarray:
    """R, (spreads, seeds)."""
    grid = fl.grid(seed=range(size.order.seeds))
    return np.stack([
        order_parameter.spread(order_parameter.ratios(task, c, grid, size.order))
        for c in size.spreads
    ])  # fmt: skip


@dataclasses.dataclass
class Found:
    """Of one task: `fraction` (variances, strengths, seeds), `spread` (spreads, seeds) and, by
    variance, the boundary that is derived on trees."""

    fraction: np.ndarray
    spread: np.ndarray
    derived: list[float]


@dataclasses.dataclass
class Data:
    """By task."""

    size: Size
    tasks: dict[str, Found]


def compute(size: Size) -> Data:
    """All runs."""
    found = {}
    for name in size.tasks:
        task = task_named(name)
        laws = [derived(task, size.width, variance) for variance in size.variances]
        found[name] = Found(fractions(task, size), spreads(task, size), laws)
    return Data(size, found)


def boundary(size: Size, fraction: np.ndarray) -> np.ndarray:
    """c* by variance and the exponent of the variance in it, (variances + 1,), of fractions."""
    c = np.array([crossing(size.strengths, cell) for cell in fraction])
    if np.isfinite(c).sum() < 2:
        return np.append(c, np.nan)
    there = np.isfinite(c)
    slope = np.polyfit(np.log(np.array(size.variances)[there]), np.log(c[there]), 1)[0]
    return np.append(c, slope)


def with_intervals(size: Size, fraction: np.ndarray) -> np.ndarray:
    """The same with its ends over seeds, (3, variances + 1)."""
    ends = bootstrap(
        lambda rows: boundary(size, np.moveaxis(rows, 0, -1)), np.moveaxis(fraction, -1, 0), 400
    )
    return np.stack([boundary(size, fraction), *ends])


def text(row: np.ndarray) -> str:
    """A number with its interval."""
    middle, low, high = row
    return f"{middle:.3g} ({low:.3g} to {high:.3g})" if np.isfinite(middle) else "none"


def findings(data: Data) -> list[str]:
    """In sentences."""
    size, lines = data.size, []
    for name, found in data.tasks.items():
        rows = with_intervals(size, found.fraction).T
        for k, (variance, law) in enumerate(zip(size.variances, found.derived, strict=True)):
            fraction = found.fraction[k].mean(axis=-1)
            lines.append(
                f"{name}, variance {variance:g}: c* = {text(rows[k])}, {text(rows[k] / law)} times "
                f"what is derived on trees, {law:.3g}; mean fraction {fraction[0]:.3f} at c = "
                f"{size.strengths[0]:g}, {fraction[-1]:.3f} at {size.strengths[-1]:g}"
            )
        lines.append(f"{name}: exponent of the variance in c* {text(rows[-1])}, 1/4 derived")
        lines += [
            f"{name}, c = {c:g}: R = {row.mean():.3f} \u00b1 {half_widths(row):.2g}"
            for c, row in zip(size.spreads, found.spread, strict=True)
        ]
        half = order_parameter.boundary(size.spreads, found.spread)
        lines.append(f"{name}: R is half of R(0) at c = {text(np.array(half))}")
    return lines


def draw(data: Data) -> plt.Figure:
    """c* over the variance, beside what is derived on trees; R over c."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    size = data.size
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.8, len(data.tasks)))
    for (name, found), colour, marker in zip(data.tasks.items(), colours, "osD", strict=False):
        middle, low, high = with_intervals(size, found.fraction)[:, :-1]
        left.errorbar(size.variances, middle, (middle - low, high - middle), fmt=f"{marker}-",
                      markersize=5, capsize=2, color=colour, label=name)  # fmt: skip
        left.plot(size.variances, found.derived, ":", color=colour)
        mean, wide = found.spread.mean(axis=1), half_widths(found.spread.T)
        right.errorbar(size.spreads, mean, wide, fmt=f"{marker}-", markersize=5, capsize=2,
                       color=colour, label=name)  # fmt: skip
    left.plot([], [], ":", color="0.4", label="derived on trees")
    left.set(xscale="log", yscale="log", xlabel="initial variance $v$", ylabel="boundary $c^*$",
             title=f"A. From which c on: {size.width} units")  # fmt: skip
    right.set(xlabel="bias strength $c$", ylabel="spread $R$",
              title="B. How alike modes are late: 64 units")  # fmt: skip
    right.set_ylim(bottom=0)
    for ax in (left, right):
        ax.legend(fontsize=9, frameon=False)
    return figure


STUDY = Study(
    name="no_trees",
    quick=Size(
        (0.1, 0.5),
        (1e-4,),
        8,
        20.0,
        2,
        (0.0, 0.5),
        order_parameter.Size(seeds=2, t1=60.0),
        NO_TREES[:1],
    ),
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main(__doc__)
