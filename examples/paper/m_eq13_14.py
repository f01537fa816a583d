r"""M Eqs. 13 and 14: hitting times of modes, and their delay in ReLU networks.

Hierarchy task, c = 1, 64 hidden units, variance 2e-4, and 2e-8. Eq. 13 is tested on balanced
weights aligned to the modes, where it is exact, and on random ones (with the raw and the balanced
a_0); hits of the modes are located events. The delay of the biased ReLU network behind the linear
one with the same initial weights is compared

- with Eq. 14 for three readings of g-bar: the share of live units (what the proof's g_j says), of
  dead units (what the text says), and one half (the half width of the workshop version);
- with the delay of the linear network from which the units are deleted that are dead in the ReLU
  network: the part that dead units make;
- with the slowed clock of its early phase (`theory.slowed_clock`).

    python examples/paper/m_eq13_14.py [--quick | --full]
"""

import dataclasses
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from _eq14 import READINGS, Hits, by_value
from _eq14 import rows as delay_rows
from _judge import TIMES, half_widths, same, verdict
from _paper import Row, Study, fl
from _tree import (
    PAPER,
    SHARES,
    SMALL,
    Case,
    Setting,
    levels_of,
    many,
    modes_of,
    run_from,
    start,
    steps_clock,
    task_of,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, those of the slowed clock, the paper's rate for steps, the runs'."""

    seeds: int
    clocks: int = 20
    learning_rate: float = 2e-4
    setting: Setting = PAPER
    small: Setting = SMALL


SIZES = {"quick": Size(3, clocks=0), "default": Size(50), "full": Size(50)}


@dataclasses.dataclass
class Data:
    """Hits at both variances; raw a_0 and imbalance (seeds, modes) at the paper's.

    `aligned`: hits of a network that is balanced and aligned to the modes, and its a_0.
    `clock`: the bias mode's delay by the slowed clock, (seeds,).
    """

    size: Size
    paper: Hits
    small: Hits
    raw: np.ndarray
    imbalance: np.ndarray
    aligned: tuple[np.ndarray, np.ndarray]
    clock: np.ndarray


def compute(size: Size) -> Data:
    """The runs and what the formulas take from their starts."""
    task, modes = task_of("tree"), modes_of("tree", 1.0)
    raw, imbalance, clock = [], [], []
    for seed in range(size.seeds):
        network = start(Case("tree", "relu", 1.0, seed), size.setting)
        strength, between = fl.theory.mode_starts(network, modes)
        raw.append(strength)
        imbalance.append(between)
        if seed < size.clocks:
            slowed = fl.theory.slowed_clock(fl.theory.early_phase(network, task), modes)
            clock.append(float(slowed.delays(0.5 * modes.full_strength)[0]))
    return Data(
        size, _hits(size, size.setting), _hits(size, size.small), np.array(raw),
        np.array(imbalance), _aligned(size), np.array(clock),
    )  # fmt: skip


def _hits(size: Size, setting: Setting) -> Hits:
    """All runs from one variance."""
    flows = {kind: many("tree", kind, 1.0, size.seeds, setting) for kind in ("relu", "linear")}
    modes, rows = modes_of("tree", 1.0), []
    for seed, flow in enumerate(flows["relu"]):
        case = Case("tree", "linear", 1.0, seed)
        network = start(case, setting)
        live = ~np.all(np.asarray(flow.events.gates(0.0)) < 0, axis=0)
        (w1, w2), (b, _) = network.weights, network.biases
        left = fl.LinearNetwork((w1 * live[:, None], w2 * live), (b * live, None), case.c)
        hits = run_from(left, case, setting, setting.ts).events.first("mode")
        rows.append((hits, fl.theory.balanced_strength(network, modes), live.mean()))
    live, balanced, share = (np.array(column) for column in zip(*rows, strict=True))
    relu, linear = (np.array([f.events.first("mode") for f in flows[k]]) for k in flows)
    g = {"live": share[:, None], "dead": 1 - share[:, None], "half": np.full((len(share), 1), 0.5)}
    return Hits(relu, linear, live, balanced, g)


def _aligned(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Hits and a_0 of balanced weights that are aligned to the modes."""
    modes, task = modes_of("tree", 1.0), task_of("tree")
    a0 = 1e-3 * np.array([group[0] + 1.0 for group in modes.groups for _ in group])
    network = fl.LinearNetwork.balanced(
        task,
        hidden=(size.setting.hidden,),
        product=(np.asarray(modes.u) * a0) @ np.asarray(modes.v).T,
        key=jax.random.key(0),
    )
    flow = run_from(network, Case("tree", "linear", 1.0, 0), size.setting, size.setting.ts)
    return np.asarray(flow.events.first("mode")), a0


def hitting_errors(data: Data) -> dict[str, np.ndarray]:
    """Relative errors of closed hitting times, by form, (seeds, shares, modes)."""
    modes, rho = modes_of("tree", 1.0), levels_of("tree", 1.0)
    a0 = np.where(data.raw > 0, data.raw, np.nan)
    forms = {
        "raw": fl.theory.hitting_time(rho, modes.s, modes.d, a0[:, None]),
        "balanced": fl.theory.hitting_time(rho, modes.s, modes.d, data.paper.balanced[:, None]),
        "unbalanced": fl.theory.unbalanced_hitting_time(
            rho, modes.s, modes.d, data.raw[:, None], data.imbalance[:, None]
        ),
    }
    return {name: np.asarray(t) / data.paper.linear - 1 for name, t in forms.items()}


def numbers(data: Data) -> dict[str, Any]:
    """Mean hits, delays and predictions by mode."""
    clock = steps_clock(task_of("tree"), data.size.learning_rate)
    found: dict[str, Any] = {
        "steps per unit of time": clock.steps_per_time,
        "shares": SHARES,
        "median relative error of hitting times": {
            name: np.median(np.abs(rows), axis=0)
            for name, rows in hitting_errors(data).items()
            if name != "raw"
        },
        "delay of the bias mode by the slowed clock, steps": clock.steps(data.clock),
    }
    for variance, hits in (("2e-4", data.paper), ("2e-8", data.small)):
        found[f"{variance}: mean hits, ReLU"] = hits.relu.mean(axis=0)
        found[f"{variance}: mean hits, linear"] = hits.linear.mean(axis=0)
        for reading in READINGS:
            key = f"{variance}: Eq. 14 in steps, mean by mode, g: {reading}"
            found[key] = clock.steps(hits.told(reading).mean(axis=0))
        for share in SHARES:
            for name, rows in (("delay", hits.delay), ("part of dead units", hits.dead_part)):
                key = f"{variance}: {name} in steps at {share:g} of the strength, mean by mode"
                found[key] = clock.steps(rows(share).mean(axis=0))
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on both equations."""
    return [*_hitting_rows(data), *delay_rows(data)]


def _hitting_rows(data: Data) -> list[Row]:
    modes, rho = modes_of("tree", 1.0), levels_of("tree", 1.0)
    found, a0 = data.aligned
    error = np.max(np.abs(fl.theory.hitting_time(rho, modes.s, modes.d, a0) / found - 1))
    errors = hitting_errors(data)
    middle = {k: np.nanmedian(np.abs(v)) for k, v in errors.items()}
    balanced = np.median(np.abs(errors["balanced"]), axis=(1, 2))
    negative = np.mean(data.raw <= 0)
    beyond = np.isinf(fl.theory.hitting_time(2.0, modes.s[-1], modes.d[-1], 1e-3))
    text = "; ".join(f"{k} a_0: {middle[k]:.2g}" for k in errors)
    return [
        Row(
            "Eq. 13 is the time at which a mode reaches rho",
            "M Eq. 13",
            f"balanced weights aligned to the modes: largest relative error {error:.1e} over "
            f"{found.size} located hits (rtol {data.size.setting.rtol:g})",
            verdict(bool(error < 1e-6)),
        ),
        Row(
            "The same from small random weights",
            "M Eq. 13, Sec. 5.4; erratum B.14",
            f"median relative error over {data.raw.shape[0]} seeds, {len(SHARES)} levels, all "
            f"modes ({TIMES}): {text}; {negative:.0%} of the raw a_0 are not positive and have no "
            "such time",
            verdict(
                bool(negative == 0 and middle["raw"] < TIMES.same),
                ("a_0 is the balanced part of the initial strength",
                 same(balanced, TIMES)),
            ),
        ),
        Row(
            "The log is positive as rho >= a_0",
            "M App. F.3, erratum B.10",
            f"rho = 2 > s/d = {float(modes.full_strength[-1]):.3g} is never reached: {beyond}; the "
            "rho of Sec. 5.4 is small",
            verdict(not beyond, ("rho < s/d, as a small rho is", bool(error < 1e-6))),
        ),
    ]  # fmt: skip


def draw(data: Data) -> Figure:
    """Hitting times against Eq. 13, and delays by singular value against Eq. 14."""
    figure, axes = plt.subplots(1, 3, figsize=(11.0, 4.4), width_ratios=(1.1, 1, 1))
    modes, rho = modes_of("tree", 1.0), levels_of("tree", 1.0)
    closed = fl.theory.hitting_time(rho, modes.s, modes.d, data.paper.balanced[:, None])
    colours = fl.plot.shades("linear", len(SHARES))
    for k, share in enumerate(SHARES):
        points = np.asarray(closed)[:, k].ravel(), data.paper.linear[:, k].ravel()
        label = f"{share:g} of full strength"
        axes[0].plot(*points, ".", color=colours[k], markersize=3, label=label)
    axes[0].axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes[0].set(xlabel="Eq. 13 from the balanced $a_0$ (units of $\\tau$)",
                ylabel="located hit, linear network (units of $\\tau$)",
                title="Eq. 13")  # fmt: skip
    axes[0].legend(fontsize="small", frameon=False, markerscale=3)
    for ax, hits, name in ((axes[1], data.paper, data.size.setting.variance),
                           (axes[2], data.small, data.size.small.variance)):  # fmt: skip
        _delays(data, hits, ax)
        ax.set(title=f"Eq. 14, variance {name:g}")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small",
                  frameon=False)  # fmt: skip
    return figure


def _delays(data: Data, hits: Hits, ax: Axes) -> None:
    """Measured delays at half of the strength, what dead units make, and three readings."""
    clock = steps_clock(task_of("tree"), data.size.learning_rate)
    where = np.arange(1, 5)
    for rows, label, colour, marker in (
        (hits.delay(0.5), "ReLU behind linear", "relu", "o"),
        (hits.dead_part(0.5), "linear without the dead units", "linear", "s"),
    ):  # fmt: skip
        steps = clock.steps(by_value(rows))
        ax.errorbar(where, steps.mean(axis=0), half_widths(steps), linestyle="none", marker=marker,
                    markersize=5, color=fl.plot.COLOURS[colour], label=label)  # fmt: skip
    marks = {
        "live": ("_", "g: live units"),
        "dead": ("x", "g: dead units"),
        "half": ("+", "g = 1/2"),
    }
    for reading, (marker, label) in marks.items():
        steps = clock.steps(by_value(hits.told(reading)))
        ax.plot(where, steps.mean(axis=0), linestyle="none", marker=marker, markersize=9,
                color="black", label=f"Eq. 14, {label}")  # fmt: skip
    ax.set(xlabel="singular value, largest first", ylabel="delay (steps of 2e-4)", xticks=where,
           yscale="log", ylim=(15, 1e4))  # fmt: skip


STUDY = Study("m_eq13_14", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
