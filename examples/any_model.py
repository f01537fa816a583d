"""The gradient flow of any Equinox model: a tanh network on the semantic tree.

    python examples/any_model.py [--quick]

An `eqx.nn.MLP` that flowlin knows nothing of flows as its own networks do: to the solver's
precision, with events located on the way, here the loss falling to a tenth and each item's output
reaching half of what it is to be. Prints when, and how descent at several learning rates
comes to it; with the first layer frozen the same model learns later. Saves a figure of losses and
of the distances of descent from the flow.
"""

import argparse
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt

import flowlin as fl


def model_for(task: fl.Task, seed: int) -> eqx.nn.MLP:
    """Small weights, so that what is learned shows one after the other."""
    key = jax.random.key(seed)
    model = eqx.nn.MLP(task.inputs, task.outputs, 32, 1, jnp.tanh, dtype=jnp.float64, key=key)
    return jax.tree.map(lambda a: 0.1 * a if eqx.is_inexact_array(a) else a, model)


def share_learned(model: eqx.nn.MLP, task: fl.Task) -> jax.Array:
    """Of each item: how far its outputs have come along its targets, (P,)."""
    outputs = jax.vmap(model)(task.x)
    return jnp.sum(outputs * task.y, axis=1) / jnp.sum(task.y**2, axis=1)


def all_but_first(model: eqx.nn.MLP) -> eqx.nn.MLP:
    """The filter spec that freezes the first layer."""
    moves = jax.tree.map(eqx.is_inexact_array, model)
    frozen = jax.tree.map(lambda _: False, moves.layers[0])
    return eqx.tree_at(lambda m: m.layers[0], moves, frozen)


def draw_losses(ax: plt.Axes, flow: fl.Trajectory, frozen: fl.Trajectory, level: float) -> None:
    """The loss of both flows, and where they cross the level."""
    for n, (label, run) in enumerate({"all trained": flow, "first frozen": frozen}.items()):
        ax.plot(run.ts, run.losses, **{**fl.plot.look("other", n), "marker": ""}, label=label)
        for when in run.events.select("loss").time:
            ax.plot(when, level, "o", color="black", markersize=4, zorder=5)
    ax.axhline(level, color="0.6", lw=0.6, zorder=0)
    halves = np.asarray(flow.events.select("half").time)
    ax.plot(halves, np.interp(halves, flow.ts, flow.losses), "|", color="black", markersize=9)
    time = r"flow time $t$ (units of $\tau$)"
    ax.set(xlabel=time, ylabel="loss", title="bars: items half learned")
    ax.legend(frameon=False, fontsize=8)


def draw_distances(ax: plt.Axes, found: dict[float, fl.Comparison]) -> None:
    """How far descent is from the flow, in function."""
    shades = reversed(fl.plot.shades("descent", len(found)))
    for (rate, distance), colour in zip(found.items(), shades, strict=True):
        kept = np.asarray(distance.function) > 0
        ax.plot(distance.ts[kept], distance.function[kept], color=colour, label=f"rate {rate:g}")
    ax.set(
        yscale="log",
        xlabel=r"flow time $t$ (units of $\tau$)",
        ylabel="relative distance of the outputs",
        title="descent against the flow",
    )
    ax.legend(frameon=False, fontsize=8)


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"))
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    given = parser.parse_args()
    t1 = 12.0 if given.quick else 60.0
    rates = (0.1, 0.03) if given.quick else (0.1, 0.03, 0.01)
    task = fl.tasks.hierarchy()
    model = model_for(task, given.seed)
    level = 0.1 * float(fl.measures.loss(model, task))
    events = fl.LossBelow(level), fl.Crossing(share_learned, 0.5, direction="up", name="half")
    options = {"ts": np.linspace(0, t1, 301), "events": events}
    flow = fl.gradient_flow(model, task, t1, dense=True, **options)
    frozen = fl.gradient_flow(model, task, t1, trainable=all_but_first(model), **options)
    print(f"kinks: {flow.stats['kinks']}; solver: {flow.stats['solver']}")
    for label, run in (("all trained", flow), ("first layer frozen", frozen)):
        halves = run.events.select("half").time
        when = ", ".join(f"{float(t):.6f}" for t in run.events.select("loss").time) or "later"
        span = f"{float(halves[0]):.4f} to {float(halves[-1]):.4f}" if len(halves) else "later"
        print(f"{label:<20} loss at {level:.4g}: t = {when}; items at half: t = {span}")
    found = {}
    for rate in rates:
        descent = fl.gradient_descent(model, task, rate, t1=t1, events=events)
        found[rate] = fl.compare(flow, descent)
        halves = descent.events.select("half").time
        print(
            f"descent, rate {rate:<6g} first item at half: t = "
            f"{float(halves[0]) if len(halves) else float('nan'):.4f}; outputs at the end off by "
            f"{float(found[rate].function[-1]):.2e}"
        )
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw_losses(axes[0], flow, frozen, level)
    draw_distances(axes[1], found)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "any_model.png"
    figure.savefig(path, dpi=150)
    print(f"figure: {path}")


if __name__ == "__main__":
    main()
