"""A ReLU network on all of MNIST or CIFAR-10: gradient flow with events.

    python examples/images_full.py                       5,000 MNIST images on a CPU,
                                                         all 60,000 where JAX sees a GPU
    python examples/images_full.py --task cifar10        grayscale, 1,024 inputs, H = 1,024

One hidden layer, gates averaged over every step; with `--checkpoint FILE` a run that was killed
goes on where it was. Prints memory and time per evaluation, when the
loss fell to 0.025, when each mode reached half its strength (and the closed form of a linear
network's modes from the same weights, with the imbalance that they have), and the linearization
time t* for several quantiles; saves a figure and the numbers. The
run ends where the loss reaches `--loss`, or at `--t1`. `--descent` adds mini-batch descent with the
lead paper's batches of 64 and its rate, 5e-4 for sums over a batch.

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

import flowlin as fl

HIDDEN = {"mnist": 512, "cifar10": 1024}
QUANTILES = (0.0, 0.01, 0.1)
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
) -> None:  # fmt: skip
    """Write the numbers beside the figure."""
    told = {k: v for k, v in vars(given).items() if k not in ("out", "checkpoint", "against")}
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


def draw(
    axes: Any, flow: fl.Trajectory, modes: fl.theory.Modes, linear: fl.theory.Mode, level: float
) -> None:
    """Loss with its events, always-on fractions, mode strengths against the closed form."""
    hits = np.asarray(flow.events.first("mode"))
    shown = np.flatnonzero(np.asarray(modes.s) > 1e-6)[:5]
    ax = fl.plot.losses({"ReLU": flow}, axes[0])
    for k, colour in zip(shown, fl.plot.shades("relu", len(shown)), strict=True):
        if np.isfinite(hits[k]):
            at = np.interp(hits[k], np.asarray(flow.ts), np.asarray(flow.losses))
            ax.plot(hits[k], at, "o", color=colour, ms=7, label=f"mode {k} half learned")
    if flow.losses[-1] <= 1.2 * level:
        ax.axhline(level, color="0.6", lw=0.9, ls="--", label=f"loss {level:g}")
    ax.set(title="loss", ylim=(0, None))
    ax.legend(frameon=False, fontsize="small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)  # as the figure shows
        for q, colour in zip(QUANTILES, fl.plot.shades("relu", len(QUANTILES)), strict=True):
            fl.plot.activity(
                flow, axes[1], quantile=q, parts=("always_on",), conventions=("open",),
                label=f"on for {100 * (1 - q):g} %", colour=colour,
            )  # fmt: skip
    axes[1].set_title("units on for a share of the images")
    closed = linear.strength(flow.ts[:, None])
    rho = 0.5 * modes.full_strength
    fl.plot.modes(flow, modes, axes[2], rho=rho, closed=closed, share=True, shown=shown.tolist())
    axes[2].set_title("first five modes; linear: dotted")


def main() -> None:
    """Run, report, draw."""
    given = options()
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
    saved(given, flow, modes, closed, descent)
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 4.0), layout="constrained")
    draw(axes, flow, modes, linear, given.loss)
    if descent is not None:
        fl.plot.losses({"descent": descent}, axes[0])
    if float(flow.end) > 50:  # most happens early
        for ax in axes:
            ax.set(xscale="log", xlim=(0.01, float(flow.end)))
    figure.suptitle(f"{task.name}, {task.samples} images, ReLU with H = {given.hidden}, c = {c:g}")
    path = given.out / f"{name(given)}.png"
    figure.savefig(path, dpi=150)
    print(f"\nfigure: {path}")


if __name__ == "__main__":
    main()
