r"""M Eqs. 13 and 14: hitting times of modes, and their delay in ReLU networks.
See: located hits lie near the diagonal (left). The measured delay (orange) is near Eq. 14 with
g = 1/2 (plus), and far from it with both shares that the text names (cross and bar). Dead units
(squares) make a part of it.

Hierarchy task, c = 1, 64 hidden units, variance 2e-4, and 2e-8. Eq. 13 is tested on balanced
weights aligned to the modes, where it is exact, and on random ones, with the a_0 that App. B names
(the singular values of W_2 W_1 at the start, the largest for the first mode), and beside it with
the raw u^T W_2 W_1 v and the balanced a_0; hits of the modes are located events. The delay of the
biased ReLU network behind the linear one with the same initial weights is compared

- with Eq. 14 for three readings of g-bar: the share of live units (what App. F.4 derives), of dead
  units (what it says), and one half (the half width of the workshop version);
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
from _eq14 import NONLINEAR, READINGS, Hits, by_value
from _eq14 import rows as delay_rows
from _judge import TIMES, both, half_widths, interval, same, share, verdict
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
    """Hits at both variances; raw and singular a_0 and imbalance (seeds, modes) at the paper's.

    `aligned`: hits of a network that is balanced and aligned to the modes, and its a_0.
    `clock`: the bias mode's delay by the slowed clock, (seeds,).
    """

    size: Size
    paper: Hits
    small: Hits
    raw: np.ndarray
    singular: np.ndarray
    imbalance: np.ndarray
    aligned: tuple[np.ndarray, np.ndarray]
    clock: np.ndarray


def compute(size: Size) -> Data:
    """The runs and what the formulas take from their starts."""
    task, modes = task_of("tree"), modes_of("tree", 1.0)
    raw, singular, imbalance, clock = [], [], [], []
    for seed in range(size.seeds):
        network = start(Case("tree", "relu", 1.0, seed), size.setting)
        strength, between = fl.theory.mode_starts(network, modes)
        raw.append(strength)
        imbalance.append(between)
        (w1, w2), (b, _) = network.weights, network.biases
        values = np.linalg.svd(w2 @ np.column_stack([b, w1]), compute_uv=False)
        singular.append(values[: len(modes.s)])
        if seed < size.clocks:
            slowed = fl.theory.slowed_clock(fl.theory.early_phase(network, task), modes)
            clock.append(float(slowed.delays(0.5 * modes.full_strength)[0]))
    return Data(
        size, _hits(size, size.setting), _hits(size, size.small), np.array(raw),
        np.array(singular), np.array(imbalance), _aligned(size), np.array(clock),
    )  # fmt: skip


def _hits(size: Size, setting: Setting) -> Hits:
    """All runs from one variance."""
    flows = {kind: many("tree", kind, 1.0, size.seeds, setting) for kind in ("relu", "linear")}
    modes, rows = modes_of("tree", 1.0), []
    for seed, flow in enumerate(flows["relu"]):
        case = Case("tree", "linear", 1.0, seed)
        network = start(case, setting)
        sides = np.asarray(flow.events.sides(0.0))
        live, always = ~np.all(sides < 0, axis=0), np.all(sides > 0, axis=0)
        (w1, w2), (b, _) = network.weights, network.biases
        left = fl.LinearNetwork((w1 * live[:, None], w2 * live), (b * live, None), case.c)
        hits = run_from(left, case, setting, setting.ts).events.first("mode")
        whole, kept = (fl.theory.balanced_strength(n, modes) for n in (network, left))
        shares = [live.mean()], [always.mean()], [float(flow.linearization().open.fraction)]
        rows.append((hits, whole, kept / whole, *shares))
    live, balanced, kept, on, *always = (np.array(column) for column in zip(*rows, strict=True))
    relu, linear = (np.array([f.events.first("mode") for f in flows[k]]) for k in flows)
    g = {"live": on, "dead": 1 - on, "half": np.full_like(on, 0.5)}
    g |= dict(zip(NONLINEAR, always, strict=True))
    return Hits(relu, linear, live, balanced, kept, g)


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
        "singular": fl.theory.hitting_time(rho, modes.s, modes.d, data.singular[:, None]),
        "raw": fl.theory.hitting_time(rho, modes.s, modes.d, a0[:, None]),
        "balanced": fl.theory.hitting_time(rho, modes.s, modes.d, data.paper.balanced[:, None]),
        "unbalanced": fl.theory.Mode(
            modes.s, modes.d, data.raw[:, None], imbalance=data.imbalance[:, None]
        ).hitting_time(rho),
    }
    return {name: np.asarray(t) / data.paper.linear - 1 for name, t in forms.items()}


def numbers(data: Data) -> dict[str, Any]:
    """Mean hits, delays and predictions by mode."""
    clock = steps_clock(task_of("tree"), data.size.learning_rate)
    found: dict[str, Any] = {
        "steps per unit of time": clock.steps_per_time,
        "shares": SHARES,
        "relative error of hitting times, mean by level and mode": {
            name: np.mean(np.abs(rows), axis=0)
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
        for level in SHARES:
            for name, rows in (("delay", hits.delay), ("part of dead units", hits.dead_part)):
                key = f"{variance}: {name} in steps at {level:g} of the strength, mean by mode"
                found[key] = clock.steps(rows(level).mean(axis=0))
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on both equations."""
    return [*_hitting_rows(data), *delay_rows(data)]


def _hitting_rows(data: Data) -> list[Row]:
    modes, rho = modes_of("tree", 1.0), levels_of("tree", 1.0)
    found, a0 = data.aligned
    error = np.max(np.abs(fl.theory.hitting_time(rho, modes.s, modes.d, a0) / found - 1))
    return [
        Row(
            claim="Eq. 13 is the time at which a mode reaches rho",
            quote='From Equation 7 we can derive the "hitting time" of a network mode, which is '
            "the time taken for the mode to begin learning",
            source="M Eq. 13, Sec. 5.4, App. F.3",
            measured=f"balanced weights aligned to the modes: largest relative error {error:.1e} "
            f"over {found.size} located hits (rtol {data.size.setting.rtol:g})",
            verdict=verdict(bool(error < 1e-6)),
        ),
        _random_row(data),
        _log_row(),
    ]


def _random_row(data: Data) -> Row:
    errors = {name: np.abs(rows) for name, rows in hitting_errors(data).items()}
    levels = [f"rho = {level:g} s/d" for level in SHARES]
    by_level = {name: rows.mean(axis=2).T for name, rows in errors.items() if name != "raw"}
    text = "; ".join(
        f"{words} {', '.join(interval(one, 2) for one in by_level[name])} (median of all "
        f"{np.median(errors[name]):.2g})"
        for name, words in {
            "singular": "from the singular values at the start, as App. B says,",
            "balanced": "from the balanced part of the strength at the start",
            "unbalanced": "for modes of any imbalance",
        }.items()
    )
    return Row(
        claim="It is so from small random weights, with a_0 the singular values at the start",
        quote="the hitting time for a mode depends on the initial singular value for the mode",
        source="M App. F.4, App. B, Eq. 13; erratum E14",
        measured="relative error of Eq. 13 against located hits, mean over the modes, at "
        f"{', '.join(levels)}: {text}; from the raw u^T W_2 W_1 v a median of "
        f"{np.nanmedian(errors['raw']):.2g}, and {np.mean(data.raw <= 0):.0%} of these are not "
        f"positive and have no such time. Criterion: the first, {TIMES}; Sec. 5.4 says that rho is "
        "small, not how small",
        verdict=verdict(
            dict(zip(levels, (same(one, TIMES) for one in by_level["singular"]), strict=True)),
            ("a_0 is the balanced part of the initial strength",
             both(*(same(one, TIMES) for one in by_level["balanced"]))),
        ),
    )  # fmt: skip


def _log_row() -> Row:
    modes, rng, found = modes_of("tree", 1.0), np.random.default_rng(0), []
    s, d = np.asarray(modes.s), np.asarray(modes.d)
    for _ in range(100):
        rho = rng.uniform(0.02, 0.98) * s / d
        a0 = rng.uniform(0, 1) * rho
        inside = (s * rho - d * a0 * rho) / (s * a0 - d * a0 * rho)
        found.append(np.all(inside > 1))
    beyond = 2 * s / d
    lost = np.all((s * beyond - d * a0 * beyond) / (s * a0 - d * a0 * beyond) < 0)
    return Row(
        claim="For a small rho >= a_0 the log of Eq. 13 is positive",
        quote="The term inside of the log is always going to be greater than 1 as ρ ≥ a_0. Thus "
        "the log is positive.",
        source="M App. F.3, Sec. 5.4 (rho is small), erratum E10",
        measured=f"for a_0 < rho < s/d so in {share(found)} draws; at rho = 2 s/d, which no mode "
        f"reaches, the term inside is {'negative' if lost else 'not negative'}",
        verdict=verdict(bool(np.all(found))),
    )


def draw(data: Data) -> Figure:
    """Hitting times against Eq. 13, and delays by singular value against Eq. 14."""
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 4.4), width_ratios=(1.1, 1, 1))
    modes, rho = modes_of("tree", 1.0), levels_of("tree", 1.0)
    closed = fl.theory.hitting_time(rho, modes.s, modes.d, data.paper.balanced[:, None])
    colours = fl.plot.shades("linear", len(SHARES))
    for k, level in enumerate(SHARES):
        points = np.asarray(closed)[:, k].ravel(), data.paper.linear[:, k].ravel()
        label = f"{level:g} of full strength"
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
