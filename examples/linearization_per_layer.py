"""Which layer linearizes first? t* per layer of networks with two hidden layers.

    python examples/linearization_per_layer.py [--quick]

Walks biased and unbiased ReLU networks exactly through the semantic tree, over several seeds, and
reads t* off each hidden layer: the first time at which most of its units are on for all samples,
with a sliding pair counted as off (open) or as on (closed). Beside it the times at which the modes
of the linear network with the same initial weights reach half of their strength.
"""

import argparse
import pathlib
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt

import flowlin as fl

LAYERS = (0, 1)
CONVENTIONS = ("open", "closed")


class Study(NamedTuple):
    """All seeds with a bias, or without.

    - `flows`: the exact walks.
    - `hits`: (seeds, modes), hitting times of the linear networks; inf where later than the end.
    - `t_star`, `fraction`: (seeds, layers, conventions); inf and 0 where no unit was ever on for
      all samples.
    """

    bias: bool
    flows: fl.Sweep
    hits: np.ndarray
    t_star: np.ndarray
    fraction: np.ndarray

    @property
    def name(self) -> str:
        """With or without bias."""
        return "with bias" if self.bias else "without bias"


def t_stars(flow: fl.Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """t* and the always-on fraction there, both (layers, conventions)."""
    found = [
        [getattr(flow.linearization(layer=layer), convention) for convention in CONVENTIONS]
        for layer in LAYERS
    ]
    fraction = np.array([[float(t.fraction) for t in row] for row in found])
    time = np.array([[float(t.time) for t in row] for row in found])
    return np.where(fraction > 0, time, np.inf), fraction


def study(task: fl.Task, bias: bool, given: argparse.Namespace) -> Study:
    """All seeds of one kind of network, and the linear networks with the same weights."""
    networks = [
        fl.ReLUNetwork.init(
            task, (given.hidden,) * 2, variance=given.variance, bias=bias, key=jax.random.key(seed)
        )
        for seed in range(given.seeds)
    ]
    flows = fl.sweep(networks, task, given.t1, rtol=1e-8)
    modes = fl.theory.modes(task, networks[0])
    linear = fl.sweep(
        [network.linear() for network in networks],
        task,
        given.t1,
        events=(fl.ModeHits(modes, share=0.5),),
    )
    hits = linear.map(lambda flow: flow.events.first("mode"))[:, np.asarray(modes.s) > 0]
    return Study(bias, flows, hits, *flows.map(t_stars))


def spread(values: np.ndarray) -> str:
    """Median and range over seeds; a dash where most never got there."""
    median, *ends = (np.quantile(values, q, method="lower") for q in (0.5, 0.0, 1.0))
    low, high = (f"{end:.2f}" if np.isfinite(end) else "never" for end in ends)
    return f"{f'{median:.2f}' if np.isfinite(median) else 'never':>8}  ({low} to {high})"


def report(found: Study) -> None:
    """Print t* per layer, which layer came first, and the modes' hitting times."""
    print(f"\n{found.name}, {len(found.flows)} seeds: median over seeds (range)")
    print(f"{'':<18}{'t*':>8}{'':<18}{'always on there':>16}")
    for k, convention in enumerate(CONVENTIONS):
        for layer in LAYERS:
            label = f"layer {layer + 1}, {convention}"
            time, most = found.t_star[:, layer, k], found.fraction[:, layer, k]
            print(f"{label:<18}{spread(time):<26}{spread(most):>24}")
    for k, convention in enumerate(CONVENTIONS):
        first, second = found.t_star[:, 0, k], found.t_star[:, 1, k]
        print(
            f"{convention}: the first layer first in {np.sum(first < second)}, "
            f"the second in {np.sum(second < first)} of {len(first)} seeds"
        )
    for mode, hits in enumerate(found.hits.T):
        print(f"linear network, mode {mode} at half strength: {spread(hits)}")


def draw_fractions(ax: plt.Axes, found: Study, t1: float) -> None:
    """Always-on fractions of both layers: mean over seeds, with a band of one standard error."""
    ts = jnp.linspace(0, t1, 601)
    for layer, colour in zip(LAYERS, fl.plot.shades("relu", 2), strict=True):
        for closed, line in ((False, "-"), (True, "--")):
            rows = found.flows.map(
                lambda flow, layer=layer, closed=closed: (
                    flow.linearization(layer=layer).activity(ts, closed=closed).always_on
                )
            )
            mean, error = rows.mean(axis=0), rows.std(axis=0) / np.sqrt(len(rows))
            label = f"layer {layer + 1}, {CONVENTIONS[closed]}"
            ax.plot(ts, mean, color=colour, linestyle=line, lw=1.6, label=label)
            ax.fill_between(ts, mean - error, mean + error, color=colour, alpha=0.15, lw=0)
    ax.set(title=found.name, ylabel="always-on fraction")


def draw_t_stars(ax: plt.Axes, found: Study, t1: float) -> None:
    """t* of every seed, one row per layer and convention, over the linear modes' hits."""
    rng = np.random.default_rng(0)
    for layer, colour in zip(LAYERS, fl.plot.shades("relu", 2), strict=True):
        for k, marker in enumerate("^v"):
            row = 2 * layer + k
            time = found.t_star[:, layer, k]
            height = row + rng.uniform(-0.22, 0.22, len(time))
            ax.plot(time, height, marker, color=colour, ms=5, mec="black", mew=0.4, ls="none")
            if not np.any(np.isfinite(time)):
                ax.text(0.5 * t1, row, "no unit is ever always on", va="center", ha="center")
            else:
                median = np.quantile(time, 0.5, method="lower")
                ax.plot([median] * 2, [row - 0.35, row + 0.35], color="black", lw=2)
    names = [f"layer {layer + 1}, {convention}" for layer in LAYERS for convention in CONVENTIONS]
    ax.set_yticks(range(4), names)
    ax.set(ylim=(3.6, -0.6), xlim=(0, t1), xlabel=r"flow time $t$ (units of $\tau$)")


def draw(studies: list[Study], t1: float) -> plt.Figure:
    """Fractions above, every seed's t* below; with bias left, without right."""
    figure, axes = plt.subplots(
        2, 2, figsize=(11, 6.5), sharex=True, sharey="row", layout="constrained"
    )
    for column, found in zip(axes.T, studies, strict=True):
        draw_fractions(column[0], found, t1)
        draw_t_stars(column[1], found, t1)
        medians = np.quantile(found.hits, 0.5, axis=0, method="lower")
        for ax in column:
            for hit in medians[np.isfinite(medians)]:
                label = "linear network's modes at half strength" if hit == medians[0] else None
                ax.axvline(hit, **{**fl.plot.look("theory"), "linewidth": 1.0}, label=label)
    axes[0, 0].legend(frameon=False, fontsize=8, loc="upper right")
    axes[1, 0].set_title(r"$t^*$ of every seed; bar: median", fontsize=10)
    return figure


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=16, help="units in each hidden layer")
    parser.add_argument("--variance", type=float, default=5e-3, help="of the initial weights")
    parser.add_argument("--t1", type=float, default=60.0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"))
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.hidden, given.t1 = 2, 8, 15.0
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    task = fl.tasks.hierarchy(levels=3)
    studies = []
    for bias in (True, False):
        studies.append(study(task, bias, given))
        report(studies[-1])
    figure = draw(studies, given.t1)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "linearization_per_layer.png"
    figure.savefig(path, dpi=150)
    print(f"\nfigure: {path}")


if __name__ == "__main__":
    main()
