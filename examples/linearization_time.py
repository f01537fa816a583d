"""The linearization time t* and the modes' hitting times of one seed: flow, closed form, descent.
See: descent and closed form lie on the flow's curves (A). The t* where sliding pairs count as off
comes early, that where they count as on late (B). With bias the factors by which modes are late are
nearer to one another than without (D).

    python examples/linearization_time.py                    the lead paper's semantic tree
    python examples/linearization_time.py --task mnist       the same on real images
                                                             (also cifar10, digits)

Trains linear and ReLU networks with and without bias, each as gradient flow and as gradient
descent from the same initial weights; prints the timings and saves a figure.
"""

import argparse
import pathlib
import time
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

import flowlin as fl

DEFAULTS = {
    # samples, hidden, c, t1, learning rate, rtol, quantile
    "hierarchy": (None, 64, 1.0, 60.0, 1e-2, 1e-8, 0.0),
    "digits": (None, 64, 1.0, 30.0, 1e-2, 1e-5, 0.01),
    "mnist": (2000, 128, 10.0, 10.0, 1e-2, 1e-5, 0.01),
    "cifar10": (2000, 128, 10.0, 10.0, 5e-3, 1e-5, 0.01),
}


class Run(NamedTuple):
    """One network's two runs and what they are compared with."""

    kind: str
    bias: bool
    modes: fl.theory.Modes
    a0: jax.Array
    rho: jax.Array
    flow: fl.Trajectory
    descent: fl.Trajectory

    @property
    def name(self) -> str:
        """Such as "ReLU, bias"."""
        return f"{self.kind}, {'bias' if self.bias else 'no bias'}"


def options() -> argparse.Namespace:
    """The command line, with each task's defaults filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=DEFAULTS, default="hierarchy")
    parser.add_argument("--samples", type=int, help="images in a stratified subset")
    parser.add_argument("--hidden", type=int, help="number of hidden units")
    parser.add_argument("--bias-strength", type=float, help="the constant c")
    parser.add_argument("--t1", type=float, help="final time of the mean-loss flow")
    parser.add_argument("--learning-rate", type=float, help="of the descent")
    parser.add_argument("--rtol", type=float, help="relative tolerance of the flow")
    parser.add_argument("--quantile", type=float, help="linear = on for a share 1 - q of samples")
    parser.add_argument("--rho", type=float, default=0.5, help="hit at this share of s/d")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"))
    parser.add_argument("--quick", action="store_true", help="small and short, for tests")
    given = parser.parse_args()
    names = ("samples", "hidden", "bias_strength", "t1", "learning_rate", "rtol", "quantile")
    for name, value in zip(names, DEFAULTS[given.task], strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.quick:
        given.hidden, given.t1 = min(given.hidden, 16), min(given.t1, 8.0)
        given.samples = None if given.task == "hierarchy" else min(given.samples or 200, 200)
    return given


def load(given: argparse.Namespace) -> fl.Task:
    """The task; images are a stratified subset, pixel-wise mean subtracted."""
    if given.task == "hierarchy":
        return fl.tasks.hierarchy(levels=3)
    return getattr(fl.tasks, given.task)(samples=given.samples)


def train(given: argparse.Namespace, task: fl.Task, kind: str, bias: bool) -> Run:
    """Flow and descent of one network from the same initial weights."""
    make = fl.LinearNetwork if kind == "linear" else fl.ReLUNetwork
    network = make.init(
        task,
        hidden=given.hidden,
        bias=bias,
        bias_strength=given.bias_strength,
        key=jax.random.key(given.seed),
    )
    modes = fl.theory.modes(task, network)
    rho = given.rho * modes.full_strength
    events: list = [fl.ModeHits(modes, rho)]
    if kind == "ReLU" and given.task != "hierarchy":
        events.append(fl.UnitSwitches(given.quantile))
    images = given.task != "hierarchy" and not given.quick
    flow = fl.gradient_flow(
        network,
        task,
        given.t1,
        ts=jnp.linspace(0, given.t1, 201),
        events=events,
        observe={"modes": modes},
        rtol=given.rtol,
        kinks=None if given.task == "hierarchy" else fl.IgnoreKinks(),
        progress=images,
    )
    descent = fl.gradient_descent(
        network,
        task,
        given.learning_rate,
        t1=given.t1,
        events=events,
        progress=images,
    )
    a0 = fl.theory.balanced_strength(network, modes)
    return Run(kind, bias, modes, a0, rho, flow, descent)


def cell(value: float, digits: int = 4) -> str:
    """A number, or a dash for what never happened."""
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


def percent(value: float, reference: float) -> str:
    """Relative difference in percent."""
    fine = np.isfinite(value) and np.isfinite(reference)
    return f"{100 * (value / reference - 1):+.2f}%" if fine else "-"


def report(runs: list[Run], given: argparse.Namespace) -> None:
    """Print both tables."""
    print(f"\nHitting times of the modes, a = {given.rho:g} s/d (time of the mean-loss flow)\n")
    head = ("network", "mode", "s", "flow", "closed form", "diff", "descent", "diff")
    print("{:<16}{:>5}{:>9}{:>12}{:>13}{:>9}{:>12}{:>9}".format(*head))
    for run in runs:
        hits = [np.asarray(ran.events.first("mode")) for ran in (run.flow, run.descent)]
        exact = np.asarray(fl.theory.hitting_time(run.rho, run.modes.s, run.modes.d, run.a0))
        exact = np.where(exact <= given.t1, exact, np.inf)
        # Equal modes have one time.
        for name, (mode, *_) in zip(run.modes.names, run.modes.groups, strict=True):
            if run.modes.s[mode] == 0:
                continue
            f, e, d = hits[0][mode], exact[mode], hits[1][mode]
            print(
                f"{run.name:<16}{name:>5}{float(run.modes.s[mode]):>9.4f}{cell(f):>12}"
                f"{cell(e):>13}{percent(e, f):>9}{cell(d):>12}{percent(d, f):>9}"
            )
    for modes in (runs[0].modes, runs[2].modes):
        print(
            f"  closed form, c = {modes.bias_strength:g}: commutator "
            f"{float(modes.commutator):.1e}, modes span {100 * float(modes.completeness):.1f} % of "
            "the input variance (exact at 0 and 100)"
        )
    q = given.quantile
    what = "all samples" if q == 0 else f"{100 * (1 - q):g}% of the samples"
    print(f"\nLinearization time t*: most units on for {what}\n")
    print(f"{'network':<16}{'convention':<12}{'t*':>12}{'uncertainty':>14}{'fraction':>10}")
    for run in (r for r in runs if r.kind == "ReLU"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flow, descent = run.flow.linearization(q), run.descent.linearization(q)
        rows = (("flow, open", flow.open), ("flow, closed", flow.closed), ("descent", descent.open))
        for label, t in rows:
            half = float(t.bracket[1] - t.bracket[0]) / 2
            print(
                f"{run.name:<16}{label:<13}{float(t.time):>11.4f}{half:>14.1e}"
                f"{float(t.fraction):>10.4f}"
            )
        for message in {str(w.message) for w in caught}:
            print(f"  note: {message}")


def closed_strengths(run: Run) -> jax.Array:
    """Mode strengths of the closed form at the flow's times, (T, K)."""
    return fl.theory.mode_strength(run.flow.ts[:, None], run.modes.s, run.modes.d, run.a0)


def draw_loss(ax: plt.Axes, runs: list[Run], task: fl.Task) -> None:
    """Loss curves of the networks with bias; those without look the same."""
    chosen = [r for r in runs if r.bias]
    curves = {f"{r.kind}, flow": r.flow for r in chosen}
    fl.plot.losses(curves | {f"{r.kind}, descent": r.descent for r in chosen}, ax)
    linear = next(r for r in chosen if r.kind == "linear")
    a, m = closed_strengths(linear), linear.modes
    start = 0.5 * jnp.sum(task.y**2) / task.samples
    closed = start - jnp.sum(m.s * a - 0.5 * m.d * a**2, axis=1)
    ax.plot(linear.flow.ts, closed, **fl.plot.look("theory"), label="closed form (linear)")
    ax.set(title="A. loss, with bias", ylim=(0, None))
    ax.legend(frameon=False, fontsize=8)


def draw_activity(ax: plt.Axes, run: Run, given: argparse.Namespace) -> None:
    """Always-on, gating and off fractions of the biased ReLU network, with t*."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        fl.plot.activity(run.flow, ax, quantile=given.quantile)
    ax.set(
        title="B. units of the ReLU network, with bias", ylim=(0, 1.45), yticks=np.linspace(0, 1, 6)
    )
    handles, _ = ax.get_legend_handles_labels()
    handles += [
        Line2D([], [], color="0.3", linestyle="-", label="sliding pairs off (open)"),
        Line2D([], [], color="0.3", linestyle="--", label="sliding pairs on (closed)"),
    ]
    ax.legend(handles=handles, frameon=False, fontsize=8, ncols=2, loc="upper center")


def draw_modes(ax: plt.Axes, runs: list[Run]) -> None:
    """Mode strengths over their final value, with the hitting times."""
    for run in (r for r in runs if r.bias):
        closed = closed_strengths(run) if run.kind == "linear" else None
        fl.plot.modes(
            run.flow, run.modes, ax, rho=run.rho, closed=closed, share=True, label=run.kind
        )
    handles, _ = ax.get_legend_handles_labels()
    handles.append(Line2D([], [], color="0.3", marker="o", markerfacecolor="white", linestyle="",
                          label="located hit"))  # fmt: skip
    ax.legend(handles=handles, frameon=False, fontsize=8, loc="lower right")
    ax.set_title("C. the first modes, with bias")


def draw_ratios(ax: plt.Axes, runs: list[Run], most: int = 10) -> None:
    """Hitting times of the modes, ReLU over linear, with bias and without.

    The loss, a sum over modes, hides that modes without bias are late or early by unlike factors.
    """
    for bias, face, dash in ((True, None, "-"), (False, "white", "--")):
        pair = [next(r for r in runs if (r.kind, r.bias) == (k, bias)) for k in ("linear", "ReLU")]
        linear, relu = (np.asarray(run.flow.events.first("mode")) for run in pair)
        groups = pair[0].modes.groups[:most]
        firsts = np.array([group[0] for group in groups])
        known = np.flatnonzero(np.isfinite(linear[firsts]) & np.isfinite(relu[firsts]))
        which = firsts[known]
        ax.plot(known, relu[which] / linear[which], "o", linestyle=dash,
                color=fl.plot.COLOURS["relu"], markerfacecolor=face,
                label="with bias" if bias else "without bias")  # fmt: skip
    ax.axhline(1, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel="mode, equal ones together", ylabel="hitting time, ReLU / linear",
           title="D. by which factor ReLU networks are late")  # fmt: skip
    ax.set_xticks(range(len(groups)), pair[0].modes.names[:most])
    ax.legend(frameon=False, fontsize=8, ncols=2)


def main() -> None:
    """Train, report, draw."""
    given = options()
    task = load(given)
    print(f"task {task.name}: {task.samples} samples, {task.inputs} inputs, {task.outputs} outputs")
    start = time.perf_counter()
    runs = []
    for bias in (True, False):
        for kind in ("linear", "ReLU"):
            runs.append(train(given, task, kind, bias))
            print(f"trained {runs[-1].name}: {time.perf_counter() - start:.0f} s", flush=True)
    report(runs, given)
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    draw_loss(axes[0, 0], runs, task)
    draw_activity(axes[0, 1], runs[1], given)
    draw_modes(axes[1, 0], runs)
    draw_ratios(axes[1, 1], runs)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"linearization_time_{given.task}.png"
    figure.savefig(path, dpi=150)
    print(f"\nfigure: {path}")


if __name__ == "__main__":
    main()
