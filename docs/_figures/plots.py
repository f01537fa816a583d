"""One picture of each function of `fl.plot` that draws, for the gallery.

    python docs/_figures/plots.py [--out FOLDER]

Runs on toy tasks, about a minute, most of it compiling. Writes `docs/_static/plot/NAME.png`, NAME
the function's; of `fl.plot.animate` a film of some frames, NAME.gif.
"""

import argparse
import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import flowlin as fl

TREE = fl.tasks.hierarchy(levels=3)
END = 60.0
TIMES = jnp.linspace(0.0, END, 241)


def of_runs() -> dict[str, Callable[[], Axes]]:
    """Pictures of a ReLU network on the semantic tree, and of the linear one beside it."""
    network = fl.ReLUNetwork.init(TREE, hidden=(8,), variance=2e-4, key=jax.random.key(0))
    modes = fl.theory.modes(TREE, network)
    half = fl.ModeHits(modes, share=0.5)
    flow = fl.gradient_flow(network, TREE, END, ts=TIMES, events=half, dense=True)
    linear = fl.gradient_flow(network.linear(), TREE, END, ts=TIMES, events=half)
    read = fl.rectified(flow, TREE)
    plane = fl.measures.mds(flow.along(fl.measures.hidden))
    items = [f"item {k + 1}" for k in range(8)]
    return {
        "losses": lambda: fl.plot.losses({"ReLU": flow, "linear": linear}),
        "modes": lambda: fl.plot.modes(linear, modes, shown=range(4), share=True),
        "activity": lambda: fl.plot.activity(flow),
        "sides": lambda: fl.plot.sides(flow, 5.0),
        "side_history": lambda: fl.plot.side_history(flow, units=[0, 6, 7]),
        "kinks": lambda: fl.plot.kinks(flow.ts, flow.along(fl.measures.kink_positions)),
        "representations": lambda: fl.plot.representations(plane.points, labels=items),
        "lifetimes": lambda: fl.plot.lifetimes(read, most=12),
        "overlap": lambda: fl.plot.overlap(read),
    }


def of_cube() -> Axes:
    """The function of a ReLU network trained on the extended XOR, averaged over an input."""
    task = fl.tasks.offset_xor()
    network = fl.ReLUNetwork.init(task, hidden=(8,), key=jax.random.key(0))
    trained = fl.gradient_flow(network, task, 40.0).final
    grid = jnp.linspace(-1.0, 1.0, 21)
    values = fl.measures.on_grid(trained, axes=(grid, grid, grid))
    return fl.plot.cube(values[..., 0], grid, axis=2)


def of_pathways() -> Axes:
    """Two pathways that race in a graph whose second path is a layer longer."""
    tree = fl.tasks.hierarchy(levels=2)
    edges = [("in", "a"), ("in", "b"), ("a", "out"), ("b", "c"), ("c", "out")]
    nodes = {"in": 4, "a": 8, "b": 8, "c": 8, "out": 7}
    graph = fl.GatedGraph.init(tree, nodes, edges, variance=1e-3, key=jax.random.key(0))
    race = fl.theory.race(graph, tree)
    flow = race.flow(16.0, ts=jnp.linspace(0.0, 16.0, 161), events=race.hits(0.5))
    return fl.plot.pathways(flow, race)


def of_sweep() -> Axes:
    """When the strongest mode of linear networks is half learned, by the variance at the start."""
    variances, seeds = (1e-5, 1e-4, 1e-3, 1e-2), range(6)
    networks = [
        fl.LinearNetwork.init(TREE, hidden=(8,), variance=v, key=jax.random.key(seed))
        for seed in seeds
        for v in variances
    ]
    half = fl.ModeHits(fl.theory.modes(TREE, networks[0]), share=0.5)
    runs = fl.sweep(networks, TREE, 20.0, events=half)
    times = [run.events.first("mode")[0] for run in runs]
    table = jnp.asarray(times).reshape(len(seeds), len(variances))
    names = ("variance of the initial weights", r"half time of the first mode (units of $\tau$)")
    ax = fl.plot.sweep_line(variances, table, names=names, **fl.plot.look("linear"))
    ax.set_xscale("log")
    return ax


def of_map() -> Axes:
    """The closed half time of a balanced mode over its singular value and its start."""
    strengths, starts = jnp.array([0.25, 0.5, 1.0, 2.0]), jnp.array([1e-4, 1e-3, 1e-2, 1e-1])
    times = fl.theory.Mode(strengths[None, :], 1.0, starts[:, None]).half_time
    names = ("singular value $s$", "start $a_0$", r"half time (units of $\tau$)")
    return fl.plot.sweep_map(strengths, starts, times, names=names)


def of_work() -> Axes:
    """Four methods of `benchmarks/results/peers.json` on a linear network that is not stiff."""
    root = pathlib.Path(__file__).resolve().parents[2]
    entries = json.loads((root / "benchmarks" / "results" / "peers.json").read_text())
    (linear,) = (entry for entry in entries if entry["problem"] == "linear c=1")
    methods = {}
    for contender in linear["contenders"]:
        if contender["name"] in ("flowlin", "scipy DOP853", "CVODE BDF, GMRES", "descent, JAX"):
            rows = [r for r in contender["tried"] if r.get("error") and r.get("evaluations")]
            methods[contender["name"]] = [[r[k] for r in rows] for k in ("evaluations", "error")]
    return fl.plot.work_precision(methods, error="relative error of the parameters")


def of_kinds() -> Axes:
    """The line of every kind of network."""
    ax = plt.figure(layout="constrained").add_subplot()
    kinds = list(fl.plot.COLOURS)
    for k, kind in enumerate(kinds):
        for n in range(3):
            ax.plot([n, n + 0.9], [-k, -k], **fl.plot.look(kind, n))
    ax.set(yticks=-jnp.arange(len(kinds)), yticklabels=kinds)
    ax.set(xticks=[0.45, 1.45, 2.45], xticklabels=["n = 0", "n = 1", "n = 2"])
    return ax


def of_shades() -> Axes:
    """Eight shades of each kind's colour."""
    ax = plt.figure(layout="constrained").add_subplot()
    kinds = list(fl.plot.COLOURS)
    for k, kind in enumerate(kinds):
        for n, colour in enumerate(fl.plot.shades(kind, 8)):
            ax.add_patch(plt.Rectangle((n, -k - 0.4), 1.0, 0.8, color=colour))
    ax.set(xlim=(0, 8), ylim=(-len(kinds) + 0.4, 0.6), yticks=-jnp.arange(len(kinds)))
    ax.set(yticklabels=kinds, xticks=[0.5, 7.5], xticklabels=["dark", "light"])
    return ax


def film(folder: pathlib.Path) -> pathlib.Path:
    """Gates of a ReLU network at some times, as a film."""
    network = fl.ReLUNetwork.init(TREE, hidden=(8,), variance=2e-4, key=jax.random.key(0))
    flow = fl.gradient_flow(network, TREE, END, ts=TIMES)

    def draw(figure, k: int) -> None:
        fl.plot.sides(flow, float(TIMES[4 * k]), ax=figure.subplots())

    return fl.plot.animate(draw, 30, folder / "animate.gif", size=(4.5, 3.2), dpi=100)


def save(name: str, draw: Callable[[], Axes], folder: pathlib.Path) -> None:
    """A picture with a palette, a third of the size of one without."""
    with fl.plot.style():
        figure = draw().figure
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=150)
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    print(path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    static = pathlib.Path(__file__).resolve().parent.parent / "_static" / "plot"
    parser.add_argument("--out", type=pathlib.Path, default=static)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    more = {"cube": of_cube, "pathways": of_pathways, "sweep_line": of_sweep, "sweep_map": of_map}
    more |= {"work_precision": of_work, "look": of_kinds, "shades": of_shades}
    for name, draw in (of_runs() | more).items():
        save(name, draw, folder)
    with fl.plot.style():
        print(film(folder))


if __name__ == "__main__":
    main()
