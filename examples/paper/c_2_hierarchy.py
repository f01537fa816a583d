"""C, second part: progressive differentiation on the hierarchy, and races of modes. See: broad
levels of the tree are learned before fine ones (A), as small starts make sure (C); from some head
start on a weaker mode wins (filled, D).

Gradient flow of linear networks. The hierarchy (8 items, 15 features, no bias) from i.i.d. normal
weights with 64 hidden units at variance 2e-4, and of two and three layers at several variances with
fewer units; races of two modes (s = 1 and less, d = 1; all side by side, as aligned modes do not
see each other) from balanced, aligned starts a_0 of their own, over a grid of the weaker mode's s
and a_0. Times are located events at half of the full strength.

C gives neither sizes nor levels; these are chosen here, the hierarchy's as in M.

    python examples/paper/c_2_hierarchy.py [--quick | --full]
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import TIMES, both, interval, more, same, share, usual, verdict, wilson
from _paper import Row, Study, fl
from _separation import splits
from _tree import PAPER, SHARES, Setting, levels_of, many, modes_of, task_of, thin
from matplotlib.figure import Figure
from tqdm import tqdm

LEVELS = ("root", "halves", "quarters", "siblings")
GROUPS = ((0,), (1,), (2, 3), (4, 5, 6, 7))  # the hierarchy's modes by level of the tree
HALF = SHARES.index(0.5)


SURE = 0.9  # share of the seeds


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`, `setting`: the runs on the hierarchy.
    - `order_seeds`, `order_hidden`, `variances`: the runs that ask how sure the order is, by depth.
    - `weak`, `boosts`: s of the weaker mode, and its a_0 over that of the stronger; `start` the
      latter; `depths` of the races.
    """

    seeds: int
    order_seeds: int
    setting: Setting = PAPER
    order_hidden: int = 16
    variances: tuple[tuple[int, tuple[float, ...]], ...] = (
        (2, (1e-2, 1e-3, 1e-4, 1e-6)),
        (3, (3e-2, 1e-2, 1e-3, 1e-4)),
    )
    weak: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    boosts: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    start: float = 1e-3
    depths: tuple[int, ...] = (1, 2, 3)


SIZES = {
    "quick": Size(
        2,
        3,
        variances=((2, (1e-2, 1e-6)),),
        weak=(0.4, 0.8),
        boosts=(1.0, 8.0, 64.0),
        depths=(2,),
    ),
    "default": Size(20, 200),
    "full": Size(20, 200),
}


@dataclasses.dataclass
class Data:
    """What `compute` finds.

    - `runs`: on the hierarchy, two layers; `times` (seeds, shares, K) of their modes.
    - `closed`: by name, the closed forms' times, as many.
    - `aligned`: (2, shares, K), located and closed times from a balanced, aligned start.
    - `order`: by (depth, variance), (seeds, K): half-times of the modes.
    - `races`: by depth, (weak, boosts, 2): half-times of the stronger and of the weaker mode.
    """

    size: Size
    runs: list[fl.Trajectory]
    times: np.ndarray
    closed: dict[str, np.ndarray]
    aligned: np.ndarray
    order: dict[tuple[int, float], np.ndarray]
    races: dict[int, np.ndarray]


def compute(size: Size) -> Data:
    """All runs, and the closed forms."""
    runs = many("tree", "linear", 0.0, size.seeds, size.setting)
    modes, rho = modes_of("tree", 0.0), levels_of("tree", 0.0)
    closed: dict[str, list] = {"Eq. 13, balanced part": [], "modes of any imbalance": []}
    for flow in runs:
        start = jax.tree.map(lambda z: z[0], flow.networks)
        a0 = fl.theory.balanced_strength(start, modes)
        closed["Eq. 13, balanced part"].append(fl.theory.hitting_time(rho, modes.s, modes.d, a0))
        raw, lam = fl.theory.mode_starts(start, modes)
        closed["modes of any imbalance"].append(
            fl.theory.Mode(modes.s, modes.d, raw, imbalance=lam).hitting_time(rho)
        )
    return Data(
        size,
        runs,
        np.array([flow.events.first("mode") for flow in runs]),
        {name: np.array(rows) for name, rows in closed.items()},
        _aligned(size),
        _order(size),
        {depth: _races(size, depth) for depth in size.depths},
    )


def _aligned(size: Size) -> np.ndarray:
    """Times from a balanced start aligned to the modes, located and by Eq. 13."""
    task, modes, rho = task_of("tree"), modes_of("tree", 0.0), levels_of("tree", 0.0)
    a0 = 1e-3
    network = fl.LinearNetwork.balanced(
        task, (size.order_hidden,), bias=False, product=a0 * modes.u @ modes.v.T,
        key=jax.random.key(0),
    )  # fmt: skip
    event = fl.Crossing(modes.observable(network, task), rho, name="mode")
    flow = fl.gradient_flow(network, task, size.setting.t1, events=(event,), rtol=1e-10)
    found = flow.events.first("mode")
    return np.stack([found, fl.theory.hitting_time(rho, modes.s, modes.d, a0)])


def _order(size: Size) -> dict[tuple[int, float], np.ndarray]:
    """Half-times from random starts by depth and variance."""
    task, modes, found = task_of("tree"), modes_of("tree", 0.0), {}
    event = fl.ModeHits(modes, share=0.5, direction="up", name="half")
    for depth, variances in size.variances:
        hidden = (size.order_hidden,) * (depth - 1)
        for variance in variances:
            rows = []
            for seed in tqdm(range(size.order_seeds), desc=f"order, {depth}", disable=None):
                network = fl.LinearNetwork.init(
                    task, hidden, variance, bias=False, key=jax.random.key(seed)
                )
                # No mode is found later than this; the run ends when the loss is gone.
                end = fl.LossBelow(1e-3, terminate=True)
                flow = fl.gradient_flow(network, task, 1e5, events=(event, end), rtol=1e-6)
                rows.append(flow.events.first("half"))
            found[depth, variance] = np.array(rows)
    return found


def _races(size: Size, depth: int) -> np.ndarray:
    """Half-times of the two modes over the grid of the weaker one's s and start.

    All weaker modes run beside the stronger one at once: aligned modes do not see each other.
    """
    order = np.argsort(size.weak)[::-1]
    s = np.array([1.0, *np.asarray(size.weak)[order]])
    x = np.sqrt(len(s)) * np.eye(len(s))
    task = fl.Task(x, x * s, name="race")
    modes, found = fl.theory.modes(task), np.zeros((len(size.weak), len(size.boosts), 2))
    event = fl.ModeHits(modes, share=0.5, direction="up", name="half")
    for j, boost in enumerate(size.boosts):
        a0 = size.start * np.array([1.0] + [boost] * len(order))
        # Balanced scalars side by side: every layer is diagonal.
        network = fl.LinearNetwork([jnp.diag(jnp.asarray(a0 ** (1 / depth)))] * depth)
        flow = fl.gradient_flow(network, task, 100.0, events=(event,), rtol=1e-8)
        times = flow.events.first("half")
        found[:, j, 0], found[order, j, 1] = times[0], times[1:]
    return found


# What is measured


def in_order(times: np.ndarray) -> np.ndarray:
    """Whether each run (seeds, K) has all modes of a level before all of the next, (seeds,)."""
    early = [times[:, list(g)].max(axis=1) for g in GROUPS[:-1]]
    late = [times[:, list(g)].min(axis=1) for g in GROUPS[1:]]
    return np.all([a < b for a, b in zip(early, late, strict=True)], axis=0)


def race_theory(size: Size, depth: int) -> np.ndarray:
    """Closed half-times over the grid, (weak, boosts, 2)."""
    weak, boost = np.meshgrid(size.weak, size.boosts, indexing="ij")
    one = fl.theory.Mode(1.0, 1.0, size.start, depth).half_time
    other = fl.theory.Mode(weak, 1.0, size.start * boost, depth).half_time
    return np.stack([np.broadcast_to(one, weak.shape), other], axis=-1)


def head_start(weak: Any, start: float, depth: int) -> np.ndarray:
    """Ratio of starts at which a weaker mode draws level, from the closed half-time; by bisection.

    As a_0 goes to zero: a_0^(s_2/s_1 - 1) for two layers, which grows without bound, and
    (s_1/s_2)^(L/(L-2)) for more, which does not.
    """
    weak = np.asarray(weak, float)
    goal = fl.theory.Mode(1.0, 1.0, start, depth).half_time
    low, high = np.ones_like(weak), 0.499 * weak / start
    for _ in range(60):
        middle = np.sqrt(low * high)
        late = np.asarray(fl.theory.Mode(weak, 1.0, start * middle, depth).half_time > goal)
        low, high = np.where(late, middle, low), np.where(late, high, middle)
    return np.sqrt(low * high)


def numbers(data: Data) -> dict[str, Any]:
    """Times, order, races."""
    modes = modes_of("tree", 0.0)
    found: dict[str, Any] = {
        "s": modes.s, "d": modes.d, "t": thin(data.size.setting.ts),
        "strengths, seed 0": thin(_strengths(data.runs[0]), 25),
        "half-times by mode (mean over seeds)": data.times[:, HALF].mean(axis=0),
        "half-times by mode, balanced part, Eq. 13": np.mean(
            data.closed["Eq. 13, balanced part"][:, HALF], axis=0),
        "splits (siblings, cousins, root; share)": np.mean([splits(f) for f in data.runs], axis=0),
    }  # fmt: skip
    for (depth, variance), rows in data.order.items():
        name = f"{depth} layers, variance {variance:g}"
        found[f"in order, {name}"] = in_order(rows).mean()
        found[f"median half-times, {name}"] = np.median(rows, axis=0)
    for depth, rows in data.races.items():
        found[f"races, {depth} layers (weak, boosts, [strong, weak])"] = rows
    return found


def _strengths(flow: fl.Trajectory) -> np.ndarray:
    modes = modes_of("tree", 0.0)
    return np.asarray(fl.measures.along(flow, modes.strengths, task_of("tree")))


def judge(data: Data) -> list[Row]:
    """Verdicts: order, closed forms, races."""
    return [_tree_row(data), *_race_rows(data), _order_row(data), *_time_rows(data)]


def _tree_row(data: Data) -> Row:
    """Modes, and with them representations, level by level."""
    modes, ordered = modes_of("tree", 0.0), in_order(data.times[:, HALF])
    s = np.unique(np.round(np.asarray(modes.s), 4))[::-1]
    by_group = [data.times[:, HALF, list(g)].mean(axis=1) for g in GROUPS]
    split = np.array([splits(flow) for flow in data.runs])
    down = (split[:, 2] < split[:, 1]) & (split[:, 1] < split[:, 0])
    return Row(
        claim="Hierarchies emerge mode by mode: the levels' modes in the order of their singular "
        "values, and with them the hidden representations, which split from the root downwards",
        quote="how hierarchies emerge mode-by-mode",
        source="C, semantic development (Saxe, McClelland and Ganguli 2019)",
        measured="half-times of the levels' modes "
        + ", ".join(
            f"{name} (s = {v:g}) {interval(rows)}"
            for name, v, rows in zip(LEVELS, s, by_group, strict=True)
        )
        + f"; all of a level before all of the next in {share(ordered)} seeds; half of the final "
        f"distance of hidden representations is reached across the root at "
        f"{interval(split[:, 2])}, between cousins at {interval(split[:, 1])}, between siblings at "
        f"{interval(split[:, 0])}, in this order in {share(down)} seeds; criterion: both in most "
        "seeds",
        verdict=verdict(both(usual(ordered), usual(down))),
    )


def _time_rows(data: Data) -> list[Row]:
    exact = float(np.max(np.abs(data.aligned[0] / data.aligned[1] - 1)))
    known = np.isfinite(data.times)
    off = {name: np.abs(closed / np.where(known, data.times, np.nan) - 1)
           for name, closed in data.closed.items()}  # fmt: skip
    means = {name: np.nanmean(v, axis=(1, 2)) for name, v in off.items()}
    text = "; ".join(
        f"{name}: mean {interval(means[name])}, median {np.nanmedian(v):.2g}, 95 % quantile "
        f"{np.nanquantile(v, 0.95):.2g}"
        for name, v in off.items()
    )
    return [
        Row(
            claim="Located hitting times equal the closed form",
            source="C, singular-value races",
            measured="balanced start aligned to the modes, a_0 = 1e-3: largest relative difference "
            f"{exact:.1e}, 8 modes, {len(SHARES)} levels",
            verdict=verdict(exact < 1e-6),
            kind="test",
        ),
        Row(
            claim="The closed form holds closely from small random weights as well",
            source="C, singular-value races; erratum: raw a0 may be negative",
            measured=f"relative error: {text} (8 modes, levels {SHARES}; {known.mean():.1%} of the "
            f"levels are reached); criterion: means by seed, {TIMES}, {len(off)} comparisons",
            verdict=verdict(both(*(same(v, TIMES, len(means)) for v in means.values()))),
            kind="control",
        ),
    ]


def _order_row(data: Data) -> Row:
    texts, found = [], []
    for depth, variances in data.size.variances:
        ordered = [in_order(data.order[depth, v]) for v in variances]
        texts.append(f"{depth} layers: " + ", ".join(
            f"{v:g}: {share(o)}" for v, o in zip(variances, ordered, strict=True)))  # fmt: skip
        found.append(both(usual(ordered[-1], SURE), more(ordered[-1], ordered[0])))
    return Row(
        claim="Small initial weights make the order sure",
        source="C, semantic development",
        measured="seeds in the order of the tree's levels, by variance, "
        f"{data.size.order_hidden} units; {'; '.join(texts)}; criterion: more than {SURE:.0%} of "
        "the seeds at the smallest variance, and more than at the largest, paired by seed",
        verdict=verdict(both(*found)),
        kind="control",
    )


def _race_rows(data: Data) -> list[Row]:
    """Who wins from equal starts, and from which head start the other one does."""
    size, wins, heads, need, told = data.size, {}, [], [], []
    for depth, found in data.races.items():
        theory, layers = race_theory(size, depth), f"{depth} layer{'s' * (depth > 1)}"
        weaker = found[..., 1] < found[..., 0]
        # By how much the stronger one is ahead from equal starts, as a share of the weaker's time.
        ahead = 1 - found[:, 0, 0] / found[:, 0, 1]
        wins[depth] = bool(np.all(ahead > 1e-6))
        heads.append(f"{layers} {ahead.min():.2g} to {ahead.max():.2g}")
        off = float(np.max(np.abs(found / theory - 1)))
        alike = float(np.mean(weaker == (theory[..., 1] < theory[..., 0])))
        told.append(off < 1e-5 and alike == 1)
        at = [float(head_start(0.5, a, depth)) if depth > 1 else 1.0
              for a in (size.start, size.start**2)]  # fmt: skip
        need.append(
            f"{layers}: {at[0]:.3g} at a_0 = {size.start:g}, {at[1]:.3g} at {size.start**2:g} (the "
            f"weaker one wins {weaker.mean():.0%} of {weaker.size} races with head starts of "
            f"{size.boosts[0]:g} to {size.boosts[-1]:g}, times within {off:.1e} of the closed "
            f"form, winners {alike:.1%} equal)"
        )
    return [
        Row(
            claim="From equal starts the mode with the largest singular value wins",
            quote="which modes win first",
            source="C, first paragraph and singular-value races",
            measured=f"by how much it is ahead in {len(size.weak)} races, as a share of the "
            f"other's half-time: {'; '.join(heads)}; criterion: ahead in every race of two layers "
            "and more (one layer, the control, has ties: its time course is that of d)",
            verdict=verdict(both(*(won for depth, won in wins.items() if depth > 1))),
            kind="theorem",
        ),
        Row(
            claim="A weaker mode wins from the head start on that the closed form tells: for two "
            "layers it grows as starts shrink, as a_0^(s_2/s_1 - 1), for more it stays below "
            "(s_1/s_2)^(L/(L-2))",
            source="C, singular-value races (derived here)",
            measured=f"for s_2 = s_1/2, {'; '.join(need)}; criterion: times within 1e-5 of the "
            "closed form and all winners as it says",
            verdict=verdict(all(told)),
            kind="theorem",
        ),
    ]


def draw(data: Data) -> Figure:
    """Modes on the hierarchy; located against closed times; order by variance; races."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.2))
    _draw_modes(data, axes[0, 0])
    _draw_times(data, axes[0, 1])
    for n, (depth, variances) in enumerate(data.size.variances):
        ordered = [in_order(data.order[depth, v]) for v in variances]
        middle = np.array([o.mean() for o in ordered])
        bars = np.abs(np.array([wilson(int(o.sum()), len(o)) for o in ordered]).T - middle)
        axes[1, 0].errorbar(variances, middle, bars, fmt="os"[n], linestyle="-", color=f"C{n}",
                            capsize=3, markersize=4, label=f"{depth} layers")  # fmt: skip
    axes[1, 0].set(
        xscale="log",
        ylim=(-0.05, 1.15),
        xlabel="variance of the initial weights",
        ylabel="share of the seeds",
        title="C. in the order of the tree's levels",
    )
    axes[1, 0].legend(fontsize="small", frameon=False)
    _draw_races(data, axes[1, 1])
    return figure


def _draw_modes(data: Data, ax: Any) -> None:
    modes, flow = modes_of("tree", 0.0), data.runs[0]
    start = jax.tree.map(lambda z: z[0], flow.networks)
    a0 = fl.theory.balanced_strength(start, modes)
    closed = fl.theory.mode_strength(np.asarray(flow.ts)[:, None], modes.s, modes.d, a0)
    a, full = _strengths(flow), np.asarray(modes.full_strength)
    for n, group in enumerate(GROUPS):
        for k in group:
            name = f"{LEVELS[n]}, $s = {float(modes.s[k]):.3g}$" if k == group[0] else None
            ax.plot(flow.ts, a[:, k] / full[k], color=f"C{n}", linestyle="-", label=name)
            ax.plot(flow.ts, closed[:, k] / full[k], **fl.plot.look("theory") | {"linewidth": 1.2},
                    label="Eq. 7, balanced part" if k == 7 else None)  # fmt: skip
    ax.set(
        xlim=(0, 45),
        ylim=(0, 1.1),
        xlabel="flow time $t$ (units of $\\tau$)",
        ylabel=r"mode strength $a_\alpha d_\alpha / s_\alpha$",
        title="A. hierarchy, seed 0",
    )
    ax.legend(fontsize="small", frameon=False, loc="lower right")


def _draw_times(data: Data, ax: Any) -> None:
    closed = data.closed["Eq. 13, balanced part"]
    for n, group in enumerate(GROUPS):
        which = list(group)
        ax.plot(closed[:, 1:, which].ravel(), data.times[:, 1:, which].ravel(), "osD^"[n],
                color=f"C{n}", markersize=3, alpha=0.6, label=LEVELS[n])  # fmt: skip
    ax.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle="-")
    ax.set(
        xlabel="Eq. 13 from the balanced part (units of $\\tau$)",
        ylabel="located hitting time (units of $\\tau$)",
        title="B. times at 10, 50, 90 % of full strength, all seeds",
    )
    ax.legend(fontsize="small", frameon=False)


def _draw_races(data: Data, ax: Any) -> None:
    size, weak = data.size, np.linspace(min(data.size.weak) - 0.04, 0.999, 121)
    ahead = fl.plot.COLOURS
    depths = [depth for depth in data.races if depth > 1]
    for n, depth in enumerate(depths):
        found = data.races[depth]
        wins = found[..., 1] < found[..., 0]
        i, j = np.meshgrid(size.weak, size.boosts, indexing="ij")
        shift = 0.012 * (n - (len(depths) - 1) / 2)
        colour = (ahead["linear"], ahead["relu"])[n]
        for kind, face in ((wins, colour), (~wins, "none")):
            ax.plot(i[kind] + shift, j[kind], "os"[n], color=colour, markerfacecolor=face,
                    markersize=4.5)  # fmt: skip
        ax.plot(weak, head_start(weak, size.start, depth), color=colour, linestyle=("-", "--")[n],
                label=f"{depth} layers, closed form")  # fmt: skip
    ax.plot([], [], "o", color="0.3", label="weaker mode wins")
    ax.plot([], [], "o", color="0.3", markerfacecolor="none", label="stronger mode wins")
    ax.set(
        yscale="log",
        ylim=(0.7, 2 * max(size.boosts) * 4),
        xlabel="singular value $s_2$ of the weaker mode ($s_1 = 1$)",
        ylabel=r"head start $a_2(0) / a_1(0)$",
        title=f"D. races, $a_1(0)$ = {size.start:g}",
    )
    ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper center")


STUDY = Study("c_2_hierarchy", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
