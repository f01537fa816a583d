"""A ReLU network on all of MNIST or CIFAR-10 (the title says which): gradient flow with events.
See: modes are half learned later than the closed form of a linear network has it, where it has a
time (middle). Few units, if any, are ever on for all images (right).

    python examples/images_full.py                       5,000 MNIST images on a CPU,
                                                         all 60,000 where JAX sees a GPU
    python examples/images_full.py --task cifar10        grayscale, 1,024 inputs, H = 1,024

One hidden layer, gates averaged over every step; with `--checkpoint FILE` a run that was killed
goes on where it was. Prints memory and time per evaluation, when the loss fell to 0.025, when each
mode reached half its strength (and the closed form of a linear network's modes from the same
weights, with the imbalance that they have), and the linearization time t* for several quantiles;
saves the numbers, and a figure of them, which `--redraw FILE` draws anew. The run ends where the
loss reaches `--loss`, or at `--t1`. `--descent` adds mini-batch descent with the lead paper's
batches of 64 and its rate, 5e-4 for sums over a batch.

The runs of `examples/results/`, half an hour and more each on two cores:

    python examples/images_full.py --images 0 --float32 --rtol 1e-3 --t1 400 --extend 2500 --descent
    python examples/images_full.py --images 0 --float32 --rtol 1e-3 --t1 2500 --extend 2800 \\
        --bias-strength 0
    python examples/images_full.py --task cifar10 --images 0 --float32 --rtol 1e-3 --t1 400
"""

import argparse
import itertools
import json
import pathlib
import resource
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

import flowlin as fl

HIDDEN = {"mnist": 512, "cifar10": 1024}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10 in grey"}
QUANTILES = (0.0, 0.01, 0.1)
TIME = r"flow time $t$ (units of $\tau$)"
UNTOLD = ("out", "checkpoint", "against", "redraw")  # options that are not of the run
BATCH, RATE = 64, 64 * 5e-4  # M, Fig. 1: the rate is of sums over a batch, here of means


def options() -> argparse.Namespace:
    """The command line, with what depends on the machine filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=HIDDEN, default="mnist")
    parser.add_argument("--images", type=int, help="a stratified subset; 0 takes all")
    parser.add_argument("--hidden", type=int, help="number of hidden units")
    parser.add_argument("--bias-strength", type=float, default=10.0, help="the constant c")
    parser.add_argument("--variance", type=float, default=2e-4, help="of the initial weights")
    parser.add_argument("--t1", type=float, default=10.0, help="end of the mean-loss flow")
    parser.add_argument("--extend", type=float, help="goes on to this time")
    parser.add_argument("--descent", action="store_true", help="mini-batch descent beside it")
    parser.add_argument("--loss", type=float, default=0.025, help="ends the run")
    parser.add_argument("--rtol", type=float, default=1e-4)
    parser.add_argument(
        "--ignore-kinks",
        action="store_true",
        help="stabilised steps (RKC), from the start: the first ones hardly damp the first mode",
    )
    parser.add_argument("--float32", action="store_true", help="half the memory, on GPUs faster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"))
    parser.add_argument("--rows", type=int, default=401, help="times saved, evenly in log t")
    parser.add_argument("--against", type=pathlib.Path, help="compares with another run's numbers")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="goes on from this file")
    parser.add_argument(
        "--redraw", type=pathlib.Path, help="draws the figure of these numbers, and ends"
    )
    parser.add_argument("--quick", action="store_true", help="small and short, for tests")
    given = parser.parse_args()
    if given.images is None:
        given.images = 5000 if jax.default_backend() == "cpu" else 0
    given.hidden = given.hidden or HIDDEN[given.task]
    if given.quick:
        given.images, given.hidden, given.t1, given.rtol = 300, 32, 1.0, 1e-3
    return given


def watched(given: argparse.Namespace, network: fl.ReLUNetwork, task: fl.Task) -> dict[str, Any]:
    """What is timed and measured along a run."""
    modes = fl.theory.modes(task, network)
    events = (
        fl.LossBelow(given.loss, terminate=True),
        fl.ModeHits(modes, share=0.5),
        *(fl.UnitSwitches(q) for q in QUANTILES),
    )
    return {"events": events, "observe": {"modes": modes}}


def integrated(
    given: argparse.Namespace, network: fl.ReLUNetwork, task: fl.Task, t1: float, **how: Any
) -> fl.Trajectory:
    """The run up to t1."""
    method: dict[str, Any] = {"kinks": fl.AveragedKinks()}
    if given.ignore_kinks:
        method = {"kinks": fl.IgnoreKinks(), "solver": fl.RKC()}
    return fl.gradient_flow(
        network,
        task,
        t1,
        ts=t1 * jnp.append(0, jnp.geomspace(1e-5, 1, given.rows - 1)),  # modes come over decades
        rtol=given.rtol,
        **method,
        **watched(given, network, task),
        **how,
    )


def descended(
    given: argparse.Namespace, network: fl.ReLUNetwork, task: fl.Task, flow: fl.Trajectory
) -> fl.Trajectory:
    """Mini-batch descent over the same time, saved at the flow's times."""
    t1 = float(flow.end)
    ts = np.asarray(flow.ts)[np.asarray(flow.ts) <= t1]
    steps = np.unique(np.round(ts / RATE).clip(max=round(t1 / RATE)))
    return fl.stochastic_gradient_descent(
        network,
        task,
        RATE,
        t1=t1,
        ts=RATE * steps,
        batch_size=min(BATCH, task.samples),
        key=jax.random.key(given.seed + 1),
        progress=progress(given),
        **watched(given, network, task),
    )


def progress(given: argparse.Namespace) -> Any:
    """A bar, or lines where there is no terminal."""
    return not given.quick and (sys.stderr.isatty() or fl.LogProgress(60.0))


def cost(flow: fl.Trajectory, seconds: float) -> str:
    """Time per evaluation of a run that was compiled before, and memory."""
    device, network = jax.devices()[0], flow.final
    task, spent = flow.reference.task, int(flow.stats["accepted_evaluations"])
    assert task is not None
    products = 4 * task.samples * network.hidden[0] * task.inputs  # of one evaluation
    stats = device.memory_stats() or {}
    peak = stats.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    pairs = task.samples * network.hidden[0] * task.x.dtype.itemsize
    return (
        f"run: {seconds:.0f} s; {1e3 * seconds / spent:.0f} ms per evaluation with its events, "
        f"{products * spent / seconds / 1e9:.0f} GFlop/s in large products alone\n"
        f"memory: at most {peak / 1e6:.0f} MB in use, {task.x.nbytes / 1e6:.0f} MB of them inputs, "
        f"{pairs / 1e6:.0f} MB each array of (unit, sample) pairs"
    )


def linearizations(flow: fl.Trajectory) -> dict[float, Any]:
    """Activity and t* per quantile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)  # as the figure shows
        return {q: flow.linearization(q) for q in QUANTILES}


def numbers(flow: fl.Trajectory) -> dict[str, Any]:
    """What a run measured, as JSON takes it."""
    inside = np.asarray(flow.ts) <= float(flow.end)
    found: dict[str, Any] = {
        "end": float(flow.end),
        "stats": {k: v if isinstance(v, str) else int(v) for k, v in flow.stats.items()},
        "ts": np.asarray(flow.ts, float)[inside].tolist(),
        "losses": np.asarray(flow.losses, float)[inside].tolist(),
        "loss reached": np.asarray(flow.events.select("loss").time, float).tolist(),
        "mode hits": np.asarray(flow.events.first("mode"), float).tolist(),
        "t*": {
            f"on for {100 * (1 - q):g} %": [float(found.open.time), float(found.open.fraction)]
            for q, found in linearizations(flow).items()
        },
        "events": len(flow.events),
    }
    if "spectral_radius" in flow.observed:
        found["spectral radius"] = float(np.nanmax(flow.observed["spectral_radius"]))
    return found


def saved(
    given: argparse.Namespace, flow: fl.Trajectory, modes: fl.theory.Modes, closed: Any,
    descent: fl.Trajectory | None,
) -> dict[str, Any]:  # fmt: skip
    """Write the numbers, and return them."""
    told = {k: v for k, v in vars(given).items() if k not in UNTOLD}
    found: dict[str, Any] = {
        "options": told,
        "s": np.asarray(modes.s, float).tolist(),
        "closed form hits": np.asarray(closed, float).tolist(),
        "flow": numbers(flow),
        "descent": None if descent is None else numbers(descent),
    }
    if descent is not None:
        found["losses of descent"] = compared(found["descent"], found["flow"])
        print(f"losses of descent against the flow's: {found['losses of descent']}")
    if given.against:
        other = json.loads(given.against.read_text())["flow"]
        found["losses against"] = compared(found["flow"], other)
        print(f"losses against {given.against}: {found['losses against']}")
    path = given.out / f"{name(given)}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def save_figure(found: dict[str, Any], path: pathlib.Path) -> None:
    """Save the figure of a run's numbers."""
    draw(found).savefig(path, dpi=150)
    print(f"\nfigure: {path}")


def name(given: argparse.Namespace) -> str:
    """Of the files."""
    kind = f"images_full_{given.task}_c{given.bias_strength:g}"
    return f"{kind}_rtol{given.rtol:g}" if given.against else kind


def compared(run: dict[str, Any], known: dict[str, Any]) -> dict[str, float]:
    """The largest relative difference of the losses of two runs where both are known, by when."""
    ts = np.asarray(run["ts"])
    ts = ts[ts <= known["ts"][-1]]
    off = np.abs(run["losses"][: ts.size] / np.interp(ts, known["ts"], known["losses"]) - 1)
    edges = [t for t in (0.0, 1.0, 10.0, 100.0, 400.0) if t < ts[-1]] + [float(ts[-1])]
    windows = {f"{a:g} to {b:g}": (ts >= a) & (ts <= b) for a, b in itertools.pairwise(edges)}
    return {label: float(np.max(off[inside])) for label, inside in windows.items() if inside.any()}


def report(
    flow: fl.Trajectory, modes: fl.theory.Modes, closed: np.ndarray, label: str = "flow"
) -> None:
    """Print the timings."""
    reached = flow.events.select("loss").time
    print(
        f"\n{label}: loss {float(flow.losses[0]):.4f} -> {float(flow.losses[-1]):.4f} at t = "
        f"{float(flow.ts[-1]):.4f}; ended at {float(flow.end):.4f}; "
        f"{flow.stats['num_steps']} steps, {len(flow.events)} events"
        + ("" if len(reached) else "; the level of the loss was not reached")
    )
    print(f"\n{'mode':>4}{'s':>9}{'hit at':>11}{'closed form':>13}   (half strength)")
    for k, (hit, exact) in enumerate(
        zip(np.asarray(flow.events.first("mode")), closed, strict=True)
    ):
        if float(modes.s[k]) > 1e-6:
            shown = [f"{t:.4f}" if np.isfinite(t) else "-" for t in (hit, exact)]
            print(f"{k:>4}{float(modes.s[k]):>9.4f}{shown[0]:>11}{shown[1]:>13}")
    print(f"\n{'on for':>10}{'t*':>10}{'fraction':>10}")
    for q, found in linearizations(flow).items():
        t_star = found.open
        share = f"{100 * (1 - q):g} %"
        print(f"{share:>10}{float(t_star.time):>10.4f}{float(t_star.fraction):>10.4f}")


def draw(found: dict[str, Any]) -> Figure:
    """A run's numbers: its loss, when modes are half learned, and units on for most images."""
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 4.2), layout="constrained")
    draw_losses(axes[0], found)
    draw_half_times(axes[1], found)
    draw_units(axes[2], found)
    given = found["options"]
    images = f"{given['images']:,}" if given["images"] else "all"
    figure.suptitle(
        f"{NAMES[given['task']]}, {images} images, ReLU with H = {given['hidden']:,}, "
        f"c = {given['bias_strength']:g}"
    )
    return figure


def runs_of(found: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The flow and the descent, where there is one: name, numbers, and how points look."""
    colour = fl.plot.COLOURS["relu"]
    looks = (
        ("flow", {"color": colour}),
        ("descent", {"color": colour, "markerfacecolor": "white"}),
    )
    return [(name, found[name], look) for name, look in looks if found[name]]


def draw_losses(ax: Any, found: dict[str, Any]) -> None:
    """The loss over time, of descent some rows, and the level at which the run ends."""
    for name, run, look in runs_of(found):
        ts, losses = np.asarray(run["ts"]), np.asarray(run["losses"])
        some = slice(None) if name == "flow" else slice(None, None, max(1, ts.size // 25))
        marks = {"lw": 2} if name == "flow" else {"ls": "", "marker": "o", "ms": 5} | look
        ax.plot(ts[some], losses[some], label=name, **{"color": look["color"]} | marks)
    level = found["options"]["loss"]
    if found["flow"]["loss reached"]:
        ax.axhline(level, color="0.4", lw=0.9, ls="--", label=f"loss {level:g}")
    ax.set(title="loss", xlabel=TIME, ylabel="loss $L$", ylim=(0, None))
    over_time(ax, found)
    ax.legend(frameon=False)


def draw_half_times(ax: Any, found: dict[str, Any]) -> None:
    """When each mode has half of its full strength, beside a linear network's closed form."""
    modes = np.flatnonzero(np.asarray(found["s"]) > 1e-6)
    closed = np.asarray(found["closed form hits"])[modes]
    ax.plot(closed, modes, ls="", marker="x", color="black", ms=6, label="linear, closed form")
    for name, run, look in runs_of(found):
        hits = np.asarray(run["mode hits"])[modes]
        ax.plot(hits, modes, ls="", marker="o", ms=7 - 2 * (name != "flow"), label=name, **look)
        if name == "flow":
            ax.hlines(modes, closed, hits, color="0.7", lw=1, zorder=0)
    ax.set(title="when modes are half learned", xlabel=TIME, ylabel="mode, the strongest first")
    ax.set(xscale="log", yticks=modes, ylim=(modes[-1] + 3, -0.6))  # with room for the legend
    ax.legend(frameon=False, loc="lower left")


def draw_units(ax: Any, found: dict[str, Any]) -> None:
    """The largest share of units that are on for a share of the images, when it is reached."""
    shades = fl.plot.shades("relu", len(QUANTILES))
    times = found["flow"]["t*"]
    for (kind, (t, share)), colour in zip(times.items(), shades, strict=True):
        if share:
            label = f"{kind}: {100 * share:.2g} % at {t:.3g}"
            ax.plot([t, t], [0, share], color=colour, lw=1.5)
            ax.plot(t, share, ls="", marker="^", ms=8, color=colour, label=label)
    ax.set(title="most units on for most images", xlabel=TIME)
    most = max(share for _, share in times.values())
    ax.set(ylabel="largest share of hidden units", ylim=(0, max(0.6, 1.35 * most)))
    over_time(ax, found)
    if any(share for _, share in times.values()):
        ax.legend(frameon=False, loc="upper right")
    else:
        said = f"no unit is ever\n{list(times)[-1]}\nof the images"
        ax.text(0.5, 0.5, said, ha="center", va="center", transform=ax.transAxes)


def over_time(ax: Any, found: dict[str, Any]) -> None:
    """Time from 0 to the end of the run; in a long one most happens early."""
    end = found["flow"]["end"]
    ax.set(xlim=(0, end))
    if end > 50:
        ax.set(xscale="log", xlim=(0.01, end))


def main() -> None:
    """Run, report, draw."""
    given = options()
    if given.redraw:
        save_figure(json.loads(given.redraw.read_text()), given.redraw.with_suffix(".png"))
        return
    task = getattr(fl.tasks, given.task)(samples=given.images or None)
    task = task.astype(jnp.float32) if given.float32 else task
    c = given.bias_strength
    network = fl.ReLUNetwork.init(
        task, given.hidden, given.variance, bias_strength=c, key=jax.random.key(given.seed)
    )
    device = jax.devices()[0]
    print(
        f"{task.name}: {task.samples} images, {task.inputs} inputs, H = {given.hidden}, "
        f"{task.x.dtype}, {device.platform} ({device.device_kind})"
    )
    resumed = given.checkpoint is not None and given.checkpoint.exists()
    if not resumed:
        integrated(given, network, task, 1e-6 * given.t1)  # compiles
    start = time.perf_counter()
    flow = integrated(
        given, network, task, given.t1, progress=progress(given), checkpoint=given.checkpoint
    )
    if not resumed:
        print(cost(flow, time.perf_counter() - start))
    if given.extend and not len(flow.events.select("loss")):
        later = np.linspace(float(flow.end), given.extend, given.rows // 4)[1:]
        flow = flow.extend(given.extend, ts=later, progress=progress(given))
    descent = descended(given, network, task, flow) if given.descent else None
    modes = fl.theory.modes(task, network)
    rho = 0.5 * modes.full_strength
    a0, gap = fl.theory.mode_starts(network, modes)
    linear = fl.theory.Mode(modes.s, modes.d, a0, imbalance=gap)
    closed = np.asarray(linear.hitting_time(rho))
    report(flow, modes, closed)
    if descent is not None:
        report(descent, modes, closed, f"descent, batches of {BATCH}")
    given.out.mkdir(parents=True, exist_ok=True)
    found = saved(given, flow, modes, closed, descent)
    save_figure(found, given.out / f"{name(given)}.png")


if __name__ == "__main__":
    main()
