r"""An order parameter of linearity: how far apart a ReLU network's modes are in what they lose.
See: with c = 1 all modes are late by nearly one factor (A); the spread R falls with c (B).

    python examples/studies/order_parameter.py [--quick] [--out FOLDER]

A ReLU network that is a slowed linear one learns every mode later by one factor. So of the half
times of all modes alpha, exact events of both flows from the same start,

$$r_\alpha = t_\alpha(\mathrm{ReLU}) / t_\alpha(\mathrm{linear}), \qquad
  R = \sqrt{\operatorname{Var}_\alpha \log r_\alpha},$$

the spread R is zero for a linear network at another speed, whatever that is, and grows as modes
are learned at speeds of their own. Equal modes have one half time, that of their trace, and count
as one. On the semantic tree, with the lead paper's initial weights:
over the bias strength c, the initial variance and the balance of the layers (the first scaled by
exp(delta), the readout by exp(-delta), their product as it was), in one and two hidden layers.

Where R has half of its value at c = 0 is looked up on half of the seeds, with an interval, and
held against the other half, another width and another tree.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _studies import Study, driven_groups, fl, half_widths
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `strengths`: c of the sweep over c. `variances`, `balances`: of the maps, at every c of `few`.
    - `others`: held out; name, levels of the tree, width.
    - `seeds`: of every point; `deep`: of two hidden layers.
    - `t1`: end of the runs, in units of tau.
    """

    strengths: tuple[float, ...] = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
    few: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0)
    variances: tuple[float, ...] = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3)
    balances: tuple[float, ...] = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
    others: tuple[tuple[str, int, int], ...] = (("32 units", 3, 32), ("4 leaves", 2, 64))
    seeds: int = 16
    deep: int = 8
    t1: float = 120.0


PAPER = 2e-4
TREE = fl.tasks.hierarchy(levels=3)


def start(
    task: fl.Task, hidden: tuple[int, ...], variance: float, delta: float, c: float, seed: int
) -> fl.ReLUNetwork:
    """A ReLU network at the start."""
    network = fl.ReLUNetwork.init(
        task, hidden, variance, bias=True, bias_strength=c, key=jax.random.key(seed)
    )
    first, *inner, readout = network.weights
    bias, *more = network.biases
    assert bias is not None
    return fl.ReLUNetwork(
        (jnp.exp(delta) * first, *inner, jnp.exp(-delta) * readout),
        (jnp.exp(delta) * bias, *more),
        bias_strength=c,
    )


def ratios(
    task: fl.Task,
    c: float,
    grid: fl.Grid,
    size: Size,
    hidden: tuple[int, ...] = (64,),
    variance: float = PAPER,
) -> np.ndarray:
    """r_alpha of every mode (*grid.shape, modes), equal ones as one; NaN where one is not learned
    in time."""
    modes = fl.theory.modes(task, c)
    own = driven_groups(modes)
    half = fl.ModeHits(modes, share=0.5)

    def relu(seed: int, variance: float = variance, delta: float = 0.0) -> fl.ReLUNetwork:
        return start(task, hidden, variance, delta, c, seed)

    def linear(seed: int, variance: float = variance, delta: float = 0.0) -> fl.LinearNetwork:
        return relu(seed, variance, delta).linear()

    def record(flow: fl.Trajectory) -> dict[str, Any]:
        hits = flow.events.first("mode")
        return {f"t{k}": hits[group[0]] for k, group in enumerate(own)}

    both = [
        fl.sweep(kind, task, size.t1, grid=grid, record=record, events=half, observe={}, rtol=1e-6)
        for kind in (relu, linear)
    ]
    times = [np.stack([runs.columns[f"t{k}"] for k in range(len(own))], axis=-1) for runs in both]
    found = np.where(np.isfinite(times[0]) & np.isfinite(times[1]), times[0] / times[1], np.nan)
    return found.reshape(*grid.shape, len(own))


def spread(found: np.ndarray) -> np.ndarray:
    """R, over the last axis, of the modes that are learned in time."""
    return np.nanstd(np.log(found), axis=-1)


def crossing(strengths: Any, spreads: np.ndarray) -> float:
    """Where the mean over seeds (strengths, seeds) has fallen to half of its value at c = 0."""
    mean = spreads.mean(axis=1)
    below = np.flatnonzero(mean <= mean[0] / 2)
    if not len(below) or below[0] == 0:
        return float("nan")
    k = below[0]
    return float(np.interp(mean[0] / 2, mean[[k, k - 1]], np.asarray(strengths)[[k, k - 1]]))


def boundary(strengths: Any, spreads: np.ndarray) -> tuple[float, float, float]:
    """The crossing and its 95 % interval, by drawing seeds anew."""
    rng, seeds = np.random.default_rng(0), spreads.shape[1]
    draws = [crossing(strengths, spreads[:, rng.integers(seeds, size=seeds)]) for _ in range(1000)]
    return crossing(strengths, spreads), *np.nanquantile(draws, (0.025, 0.975))


@dataclasses.dataclass
class Data:
    """What was found.

    - `over_c`: r_alpha of one hidden layer, (strengths, seeds, modes); `others`: by name the same
      of what was held out.
    - `variances`, `balances`: R by c, (points, seeds).
    - `deep`: r_alpha of two hidden layers by c, (seeds, modes).
    """

    size: Size
    over_c: np.ndarray
    others: dict[str, np.ndarray]
    variances: dict[float, np.ndarray]
    balances: dict[float, np.ndarray]
    deep: dict[float, np.ndarray]


def compute(size: Size) -> Data:
    """All sweeps."""
    seeds = range(size.seeds)

    def over_c(task: fl.Task, hidden: tuple[int, ...] = (64,)) -> np.ndarray:
        grid = fl.grid(seed=seeds)
        name = f"{task.name}, {hidden[0]} units"
        return np.stack([ratios(task, c, grid, size, hidden) for c in tqdm(size.strengths, name)])

    others = {name: over_c(fl.tasks.hierarchy(n), (width,)) for name, n, width in size.others}
    maps: dict[str, dict[float, np.ndarray]] = {"variance": {}, "delta": {}}
    for c in tqdm(size.few, "maps"):
        for name, values in (("variance", size.variances), ("delta", size.balances)):
            grid = fl.grid(**{name: values}, seed=seeds)
            maps[name][c] = spread(ratios(TREE, c, grid, size))
    deep = {
        c: ratios(TREE, c, fl.grid(seed=range(size.deep)), size, (32, 32), 1e-2) for c in size.few
    }
    return Data(size, over_c(TREE), others, maps["variance"], maps["delta"], deep)


def findings(data: Data) -> list[str]:
    """In sentences."""
    size, spreads = data.size, spread(data.over_c)
    lines = [
        f"c = {c:g}: r from {own.min():.3f} to {own.max():.3f} (means over {size.seeds} seeds of "
        f"{len(own)} modes), R = {row.mean():.3f} \u00b1 {half_widths(row):.2g}"
        for c, own, row in zip(
            size.strengths, np.nanmean(data.over_c, axis=1), spreads, strict=True
        )
    ]
    part = size.seeds // 2
    for name, of in (
        ("first half of the seeds", spreads[:, :part]),
        ("other half, held out", spreads[:, part:]),
        *((f"{name}, held out", spread(found)) for name, found in data.others.items()),
    ):
        middle, low, high = boundary(size.strengths, of)
        lines.append(f"R is half of R(0) at c = {middle:.3g} ({low:.3g} to {high:.3g}), {name}")
    for name, values, rows in (
        ("variance", size.variances, data.variances),
        ("delta", size.balances, data.balances),
    ):
        for c, own in rows.items():
            text = ", ".join(
                f"{value:g}: {row.mean():.3f} \u00b1 {half_widths(row):.2g}"
                for value, row in zip(values, own, strict=True)
            )
            lines.append(f"R by {name} at c = {c:g}: {text}")
    for c, own in data.deep.items():
        row = spread(own)
        lines.append(
            f"two hidden layers, c = {c:g}: mean r {np.nanmean(own):.3f}, R = {row.mean():.3f} "
            f"\u00b1 {half_widths(row):.2g} ({len(row)} seeds)"
        )
    return lines


def draw(data: Data) -> plt.Figure:
    """Ratios by mode; R over c, variance and balance."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.6))
    _draw_modes(axes[0, 0], data)
    _draw_strengths(axes[0, 1], data)
    for ax, values, rows, label, title in (
        (axes[1, 0], data.size.variances, data.variances, "initial variance", "C. Small starts"),
        (axes[1, 1], data.size.balances, data.balances,
         r"balance $\delta$ (first layer $e^\delta$, readout $e^{-\delta}$)", "D. Balance"),
    ):  # fmt: skip
        colours = fl.plot.shades("relu", len(rows) + 1)[1:]
        for colour, (c, own) in zip(colours, rows.items(), strict=True):
            ax.errorbar(values, own.mean(axis=1), half_widths(own.T), marker="o", markersize=4,
                        capsize=2, color=colour, label=f"c = {c:g}", **mark(c))  # fmt: skip
        ax.set(xlabel=label, ylabel="spread $R$", title=title)
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
        ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper center")
    axes[1, 0].set_xscale("log")
    return figure


def mark(c: float) -> dict[str, Any]:
    """How networks with bias, and without, are drawn."""
    return {"linestyle": "--", "markerfacecolor": "white"} if c == 0 else {"linestyle": "-"}


def _draw_modes(ax: plt.Axes, data: Data) -> None:
    strengths = data.size.strengths
    shown = [k for k, c in enumerate(strengths) if c in data.size.few]
    colours = fl.plot.shades("relu", len(shown) + 1)[1:]
    for j, (colour, k) in enumerate(zip(colours, shown, strict=True)):
        own, aside = data.over_c[k], 0.08 * (j - (len(shown) - 1) / 2)
        ax.errorbar(np.arange(own.shape[1]) + aside, np.nanmean(own, axis=0), half_widths(own),
                    marker="o", markersize=4, capsize=2, color=colour,
                    label=f"c = {strengths[k]:g}", **mark(strengths[k]))  # fmt: skip
    ax.axhline(1, color="0.7", linewidth=0.8)
    groups = driven_groups(fl.theory.modes(TREE, 1.0))
    names = [f"{own[0]}" if len(own) == 1 else f"{own[0]} to {own[-1]}" for own in groups]
    ax.set_xticks(range(len(names)), names)
    ax.set(xlabel=r"mode $\alpha$, equal ones as one, strongest first",
           ylabel=r"$r_\alpha$ = half time, ReLU over linear",
           title="A. With strong bias all modes are late alike")  # fmt: skip
    ax.set_ylim(top=ax.get_ylim()[1] + 0.12)
    ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper center")


def _draw_strengths(ax: plt.Axes, data: Data) -> None:
    strengths = np.asarray(data.size.strengths)
    rows = {"64 units": data.over_c} | data.others
    colours = fl.plot.shades("relu", len(rows) + 1)[1:]
    for colour, (name, found) in zip(colours, rows.items(), strict=True):
        own = spread(found)
        ax.errorbar(strengths, own.mean(axis=1), half_widths(own.T), marker="o", markersize=4,
                    capsize=2, color=colour, linestyle="-", label=name)  # fmt: skip
    for c, own in data.deep.items():
        ax.errorbar(c, spread(own).mean(), half_widths(spread(own)), fmt="s", markersize=5,
                    capsize=2, color=fl.plot.COLOURS["gated"],
                    label="two hidden layers" if c == min(data.deep) else None)  # fmt: skip
    ax.set(xlabel="bias strength $c$", ylabel="spread $R$", title="B. The order parameter")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small", frameon=False, loc="upper right", bbox_to_anchor=(0.93, 1.0))


STUDY = Study(
    name="order_parameter",
    quick=Size((0.0, 0.3), (0.0,), (1e-4,), (0.5,), others=(), seeds=2, deep=2, t1=60.0),
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main(__doc__)
