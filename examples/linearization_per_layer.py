"""Which layer linearizes first? t* per layer of networks with two hidden layers.

    python examples/linearization_per_layer.py [--quick]

Walks biased and unbiased ReLU networks exactly through the semantic tree, over several seeds, and
reads t* off each hidden layer: the first time at which most of its units are on for all samples,
with a sliding pair counted as off (open) or as on (closed). Beside it the times at which the modes
of the linear network with the same initial weights reach half of their strength; that network is
run too, since the closed form of deep modes needs balanced weights, which these are not.

The second layer linearizes first: in 8 of 8 seeds with bias and in 8 of 8 without, open and closed.

- With bias it is most linear near the start. Its inputs are still small, so the sign of a unit is
  mostly its bias's: 0.44 of the units are on for all samples at t = 0 (medians over seeds), 0.50 at
  t* = 0.35 (open) and 0.56 at 5.1 (closed). The first layer starts at 0.12, near the 1/9 of theory.
  Closed it gets to 0.75 at t* = 42, as the linear network's last modes reach half of their strength
  (34 to 43); open it never passes 0.38, and its t* lies anywhere between 1.2 and 65.
- Without bias a preactivation of the first layer is a single weight, and no unit is ever on for all
  samples. The second layer rises from 0 to 0.44 at t* = 9.9 (open) or 0.47 at 12 (closed), while
  the linear network learns its first two modes (7.4 and 11), and falls after.

The order is the same at the variances 2e-2 (4 of 4 seeds each) and 2e-4 (to t = 150, likewise but
for one seed with bias, closed, whose second layer reaches its maximum at t = 149 only).

Every biased walk has branches, the first at t = 13 to 40: from there on descent may go elsewhere.
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

LAYERS = ("first layer", "second layer")
CONVENTIONS = ("open", "closed")


class Study(NamedTuple):
    """All seeds with a bias, or without.

    - `flows`: the exact walks.
    - `hits`: (seeds, modes), hitting times of the linear networks; inf where later than the end.
    - `t_star`, `fraction`: (seeds, layers, conventions); inf and 0 where no unit was ever on for
      all samples.
    - `start`: (seeds, layers), the fraction at t = 0.
    """

    bias: bool
    flows: fl.Sweep
    hits: np.ndarray
    t_star: np.ndarray
    fraction: np.ndarray
    start: np.ndarray

    @property
    def name(self) -> str:
        """With or without bias."""
        return "with bias" if self.bias else "without bias"


def t_stars(flow: fl.Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """t* and the always-on fraction there, both (layers, conventions), and at t = 0 (layers,)."""
    lines = [flow.linearization(layer=layer) for layer in range(len(LAYERS))]
    found = [[getattr(line, convention) for convention in CONVENTIONS] for line in lines]
    fraction = np.array([[float(t.fraction) for t in row] for row in found])
    time = np.array([[float(t.time) for t in row] for row in found])
    start = np.array([float(line.activity(0.0).always_on) for line in lines])
    return np.where(fraction > 0, time, np.inf), fraction, start


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
    """Median and range over seeds."""
    numbers = (np.median(values), np.min(values), np.max(values))
    median, low, high = (f"{x:.2f}" if np.isfinite(x) else "never" for x in numbers)
    return f"{median:>6}" + (f" ({low} to {high})" if low != high else "")


def report(found: Study) -> None:
    """Print t* per layer, which layer came first, and the modes' hitting times."""
    print(f"\n{found.name}, {len(found.flows)} seeds: median (range)")
    print(f"{'':<22}{'t*':<24}{'always on there':<22}at t = 0")
    for k, convention in enumerate(CONVENTIONS):
        for layer, name in enumerate(LAYERS):
            time, most = found.t_star[:, layer, k], found.fraction[:, layer, k]
            columns = f"{spread(time):<24}{spread(most):<22}{spread(found.start[:, layer])}"
            print(f"{f'{name}, {convention}':<22}{columns}")
    for k, convention in enumerate(CONVENTIONS):
        first, second = found.t_star[:, 0, k], found.t_star[:, 1, k]
        print(
            f"{convention}: the first layer linearizes first in {np.sum(first < second)}, "
            f"the second in {np.sum(second < first)} of {len(first)} seeds"
        )
    hits = ", ".join(spread(times).strip() for times in found.hits.T)
    print(f"modes of the linear network at half strength: {hits}")
    branches = found.flows.map(
        lambda flow: np.min(flow.events.select("branch").time, initial=np.inf)
    )
    print(f"first branch, from where on the flow may not be unique: {spread(branches).strip()}")


def draw_fractions(ax: plt.Axes, found: Study, t1: float) -> None:
    """Always-on fractions of both layers: mean over seeds, with a band of one standard error."""
    ts = jnp.linspace(0, t1, 601)
    for layer, colour in enumerate(fl.plot.shades("relu", len(LAYERS))):
        lines = [flow.linearization(layer=layer) for flow in found.flows]
        for closed, dashes in ((False, "-"), (True, "--")):
            rows = np.array([line.activity(ts, closed=closed).always_on for line in lines])
            mean, error = (
                rows.mean(axis=0),
                rows.std(axis=0, ddof=len(rows) > 1) / np.sqrt(len(rows)),
            )
            label = f"{LAYERS[layer]}, {CONVENTIONS[closed]}"
            ax.plot(ts, mean, color=colour, linestyle=dashes, lw=1.6, label=label)
            ax.fill_between(ts, mean - error, mean + error, color=colour, alpha=0.15, lw=0)
    ax.set(title=found.name)


def draw_t_stars(ax: plt.Axes, found: Study, t1: float) -> None:
    """t* of every seed, one row per layer and convention, with their median."""
    rng = np.random.default_rng(0)
    for layer, colour in enumerate(fl.plot.shades("relu", len(LAYERS))):
        for k, marker in enumerate("^v"):
            row, time = 2 * layer + k, found.t_star[:, layer, k]
            height = row + rng.uniform(-0.22, 0.22, len(time))
            ax.plot(time, height, marker, color=colour, ms=5.5, mec="black", mew=0.4, clip_on=False)
            ax.plot([np.median(time)] * 2, [row - 0.35, row + 0.35], color="black", lw=2)
            if not np.any(np.isfinite(time)):
                ax.text(
                    0.5 * t1, row, "no unit is ever on for all samples", ha="center", va="center",
                    backgroundcolor="white", fontsize=9,
                )  # fmt: skip
    names = [f"{layer}, {convention}" for layer in LAYERS for convention in CONVENTIONS]
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(3.6, -0.6), xlim=(0, t1), xlabel=r"flow time $t$ (units of $\tau$)")
    ax.set_title(r"$t^*$ of every seed; bar: median", fontsize=10)


def draw(studies: list[Study], t1: float) -> plt.Figure:
    """Fractions above, every seed's t* below; with bias left, without right."""
    figure, axes = plt.subplots(
        2, 2, figsize=(11, 6.5), sharex=True, sharey="row", layout="constrained"
    )
    for column, found in zip(axes.T, studies, strict=True):
        draw_fractions(column[0], found, t1)
        draw_t_stars(column[1], found, t1)
        look = fl.plot.look("theory") | {"linewidth": 1.0, "zorder": 0}
        for ax in column:
            for mode, hit in enumerate(np.median(found.hits, axis=0)):
                label = None if mode else "linear network's modes at half strength"
                ax.axvline(hit, label=label, **look)
    axes[0, 0].set(ylabel="always-on fraction", ylim=(0, 0.95))
    axes[0, 1].legend(framealpha=1, edgecolor="none", fontsize=8, loc="upper right")
    return figure


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=16, help="units in each hidden layer")
    parser.add_argument("--variance", type=float, default=5e-3, help="of the initial weights")
    parser.add_argument("--t1", type=float, default=80.0)
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
