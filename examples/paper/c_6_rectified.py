"""C, sixth part: ReLU networks read as gated deep linear networks (rectified linear networks). On
the tree one pathway, of units that are on for all samples, carries most of the loss's fall.

Exact ReLU runs are cut at their switches; between two of them the network is a gated linear one.
Asked is whether the gated flow with the switching times handed over is the ReLU flow, how long one
constant gating would do, how many pathways carry the fall of the loss, whether they are mixed
selective on a contextual task (Jarvis, Klein, Rosman and Saxe 2024, whom the text quotes), where
the solution of the offset XOR task becomes linear without and with bias, and whether the gates say
how much slower bias-free ReLU networks are than linear ones (`_half_width.py`).

Cut: one hidden layer (the replay of gates is for one), 32 units on the contextual task.

    python examples/paper/c_6_rectified.py [--quick | --full]
"""

import dataclasses
from typing import Any

import _half_width as half
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _contexts import contextual
from _judge import SHARES, apart, both, interval, more, same, verdict
from _paper import Row, Study, fl
from _rectified_show import draw_contexts, draw_explained, draw_offset
from matplotlib.figure import Figure
from tqdm import tqdm

REPLAYED = 1e-7  # relative distance of weights that counts as the same run, at rtol 1e-9
DOES = 0.05  # largest distance of outputs, over the targets' size, up to which one gating does
# The networks of the offset XOR task: with bias or not; the XOR's inputs 0 and 1, or -1 and 1.
WITH, WITHOUT = "bias, inputs -1 and 1", "no bias, inputs -1 and 1"
OFFSETS = {WITHOUT: (False, False), "no bias, inputs 0 and 1": (False, True), WITH: (True, False)}
QUARTER = {False: 0.5, True: 0.25}  # of the side of the XOR's square, by whether inputs are 0 and 1
OUTPUTS: Any = {"outputs": lambda network, task: network.outputs(task.x)}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`: of every kind of run.
    - `levels`, `hidden`, `t1`: of the tree.
    - `xor_hidden`, `deltas`, `offsets`: of the offset XOR tasks; without offset it is XOR.
    - `contexts`, `units`, `context_t1`: of the contextual tasks.
    - `symmetric`: seeds of the bias-free networks, on symmetric data and on the tree.
    """

    seeds: int
    levels: int = 3
    hidden: int = 16
    t1: float = 60.0
    xor_hidden: int = 16
    deltas: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    contexts: tuple[int, ...] = (2, 3, 4)
    units: int = 32
    context_t1: float = 100.0
    symmetric: int = 5
    offsets: tuple[str, ...] = tuple(OFFSETS)


SIZES = {
    "quick": Size(1, levels=2, hidden=8, t1=20.0, xor_hidden=8, deltas=(0.0, 2.0), contexts=(),
                  symmetric=0, offsets=(WITHOUT, WITH)),
    "default": Size(8),
    "full": Size(20, contexts=(2, 3, 4, 5), symmetric=20),
}  # fmt: skip


@dataclasses.dataclass
class Read:
    """What is kept of a run.

    - `replay`: relative distance of the replay's final weights.
    - `sliding`: share of the time in which some pair slides.
    - `shares`: of the pathways, in falling order.
    - `sides`: (pathways, P) of those.
    - `lasting`: the share of the run's fall of loss that is still ahead where its gates, kept
      constant from there on, first give the run's own outputs at all later times; nan where it
      is not asked.
    - `always`: share of the loss's fall carried by units that are on for all samples.
    - `curved`: of the last outputs' variance between the samples' corners, see `curved`.
    """

    replay: float
    intervals: int
    sliding: float
    shares: np.ndarray
    sides: np.ndarray
    lasting: float
    always: float
    curved: float


@dataclasses.dataclass
class Data:
    """All runs, those of offset XOR by `OFFSETS` and Delta; and the first seed's rectified tree
    run, for the picture."""

    size: Size
    tree: list[Read]
    offset: dict[str, dict[float, list[Read]]]
    contexts: dict[int, list[Read]]
    growth: dict[str, list[half.Growth]]
    shown: Any

    @property
    def xor(self) -> list[Read]:
        """The runs with bias and without offset."""
        return self.offset[WITH][0.0]


# Runs


def relu(task: fl.Task, hidden: int, variance: float, seed: int, bias: bool = True) -> Any:
    """A start."""
    key = jax.random.key(seed)
    return fl.ReLUNetwork.init(task, (hidden,), variance, bias, key=key)


def read(task: fl.Task, network: Any, t1: float, lasts: bool) -> tuple[Read, Any]:
    """A run, read as gated linear networks; `lasts`: whether `Read.lasting` is asked."""
    flow = fl.gradient_flow(network, task, t1, kinks=fl.ExactKinks(), rtol=1e-9)
    found = fl.rectified(flow, task)
    length = np.diff(found.times)
    ways = found.pathways
    always = sum(one.share for one in ways if np.all(one.sides == 1))
    return Read(
        replay=float(fl.distance(found.replay(), flow.final, relative=True)),
        intervals=found.intervals,
        sliding=float(np.sum(length[found.sliding > 0]) / np.sum(length)),
        shares=np.array([one.share for one in ways]),
        sides=np.array([one.sides for one in ways]),
        lasting=lasting(found, task) if lasts else float("nan"),
        always=float(always),
        curved=curved(flow.final, task),
    ), found


def lasting(found: Any, task: fl.Task, points: int = 9) -> float:
    """See `Read.lasting`: tried where shares 0, 1/8, ... of the fall are behind; 0 if none does."""
    fallen = np.r_[0, np.cumsum(np.sum(found.loss_fall, axis=1))]
    end = float(found.times[-1])
    outputs = eqx.filter_jit(eqx.filter_vmap(lambda network: network.outputs(task.x)))
    for share in np.linspace(0, 1, points)[:-1]:
        t = float(np.interp(share * fallen[-1], fallen, found.times))
        ts, start = np.linspace(t, end, 61), found.network(t)
        gated = fl.GatedLinearNetwork(
            start.weights, start.biases, start.bias_strength, gates=(found.gates(t),)
        )
        flow = fl.gradient_flow(gated, task, end - t, ts=ts - t, observe=OUTPUTS, rtol=1e-6)
        off = flow.observed["outputs"] - outputs(found.network(ts))
        if float(jnp.max(jnp.linalg.norm(off, axis=(1, 2))) / jnp.linalg.norm(task.y)) < DOES:
            return 1.0 - float(share)
    return 0.0


def curved(network: Any, task: fl.Task, points: int = 500) -> float:
    """Share of the outputs' variance in the box around the inputs that no affine map has.

    Of what tells the outputs apart: their mean over outputs is taken off. One-hot targets have a
    sum of one, which without bias no affine map gives.
    """
    low, high = np.asarray(task.x).min(axis=0), np.asarray(task.x).max(axis=0)
    x = np.random.default_rng(0).uniform(low, high, (points, task.inputs))
    y = np.asarray(network.outputs(jnp.asarray(x)))
    y = y - y.mean(axis=1, keepdims=True)
    fit = np.linalg.lstsq(np.c_[np.ones(points), x], y, rcond=None)[0]
    rest = y - np.c_[np.ones(points), x] @ fit
    return float(np.sum(rest**2) / np.sum((y - y.mean(axis=0)) ** 2))


def compute(size: Size) -> Data:
    """All runs."""
    tree = fl.tasks.hierarchy(levels=size.levels)
    tasks: dict[Any, tuple[fl.Task, int, float, bool, float]] = {
        "tree": (tree, size.hidden, 2e-4, True, size.t1)
    }
    for kind in size.offsets:
        bias, binary = OFFSETS[kind]
        for delta in size.deltas:
            offset = fl.tasks.offset_xor(delta, binary)
            tasks[kind, delta] = offset, size.xor_hidden, 1e-2, bias, 60.0
    for count in size.contexts:
        tasks[count] = contextual(count, size.levels), size.units, 1e-2, False, size.context_t1
    found: dict[Any, list[Read]] = {name: [] for name in tasks}
    jobs = [(name, seed) for name in tasks for seed in range(size.seeds)]
    shown = None
    for name, seed in tqdm(jobs, desc="runs", disable=None):
        if seed == 0 and size.seeds > 1:  # programs take memory maps, of which there are 65,000
            jax.clear_caches()
        task, hidden, variance, bias, t1 = tasks[name]
        lasts = name in ("tree", (WITH, 0.0))
        one, rectified = read(task, relu(task, hidden, variance, seed, bias), t1, lasts)
        shown = rectified if shown is None else shown
        found[name].append(one)
    return Data(
        size,
        found["tree"],
        {kind: {delta: found[kind, delta] for delta in size.deltas} for kind in size.offsets},
        {count: found[count] for count in size.contexts},
        half.compute(size.symmetric, tree) if size.symmetric else {},
        shown,
    )


# What is measured


def needed(one: Read, share: float = 0.99) -> int:
    """How many pathways carry a share of the loss's fall."""
    return int(np.searchsorted(np.cumsum(one.shares), share)) + 1


def profile(one: Read, contexts: int) -> np.ndarray:
    """(contexts + 1,), shares of pathways whose units are on in 0, 1, ... contexts.

    On in a context is on, or sliding, for more than half of its items.
    """
    on = np.mean(one.sides.reshape(len(one.sides), contexts, -1) >= 0, axis=2) > 0.5
    found = np.zeros(contexts + 1)
    np.add.at(found, np.sum(on, axis=1), one.shares)
    return found


def chance(one: Read, contexts: int, draws: int = 100) -> np.ndarray:
    """`profile` where each pathway's samples are shuffled by themselves, mean over draws."""
    rng = np.random.default_rng(0)
    shuffled = [dataclasses.replace(one, sides=rng.permuted(one.sides, axis=1))
                for _ in range(draws)]  # fmt: skip
    return np.mean([profile(some, contexts) for some in shuffled], axis=0)


def structure(one: Read, contexts: int, draws: int = 200) -> float:
    """Variance between contexts of the units' share of items, over that of shuffled samples.

    Each pathway's samples are shuffled by themselves; averages over pathways by their shares.
    """
    rng = np.random.default_rng(0)
    on = (one.sides >= 0).astype(float)

    def between(rows: np.ndarray) -> float:
        means = rows.reshape(len(rows), contexts, -1).mean(axis=2)
        return float(one.shares @ means.var(axis=1))

    random = float(np.mean([between(rng.permuted(on, axis=1)) for _ in range(draws)]))
    return between(on) / random if random > 0 else float("nan")


def numbers(data: Data) -> dict[str, Any]:
    """Replay, pathways, profiles, shares of always-on units, half times."""
    found: dict[str, Any] = {}
    for name, runs in _named(data):
        found[f"{name}: replay, largest distance"] = max(r.replay for r in runs)
        found[f"{name}: intervals"] = [r.intervals for r in runs]
        found[f"{name}: share of the time with sliding"] = [r.sliding for r in runs]
        found[f"{name}: pathways for 99 %"] = [needed(r) for r in runs]
        if not np.isnan(runs[0].lasting):
            lasts = [r.lasting for r in runs]
            found[f"{name}: share of the fall ahead where one gating does"] = lasts
        found[f"{name}: share of the fall by units on for all samples"] = [r.always for r in runs]
        found[f"{name}: curved share of the outputs"] = [r.curved for r in runs]
    for count, runs in data.contexts.items():
        found[f"{count} contexts: shares on in 0, 1, ... contexts"] = np.mean(
            [profile(r, count) for r in runs], axis=0
        )
        found[f"{count} contexts: the same, samples shuffled"] = np.mean(
            [chance(r, count) for r in runs], axis=0
        )
        found[f"{count} contexts: structure over chance"] = [structure(r, count) for r in runs]
    for name, runs in data.growth.items():
        found[f"{name}, no bias: share let through by the gates, by mode"] = [
            run.gates for run in runs
        ]
        found[f"{name}, no bias: time from 10 to 90 %, ReLU over linear, by mode"] = [
            run.ratio for run in runs
        ]
    return found


def _named(data: Data) -> list[tuple[str, list[Read]]]:
    return [
        ("tree", data.tree),
        *((f"{count} contexts", runs) for count, runs in data.contexts.items()),
        *(
            (f"offset XOR, {kind}, Delta = {delta:g}", runs)
            for kind, by_delta in data.offset.items()
            for delta, runs in by_delta.items()
        ),
    ]


def judge(data: Data) -> list[Row]:
    """Verdicts: equivalence, offset XOR, pathways, contexts, symmetric data."""
    rows = [_reading_row(data), *_offset_rows(data), _ways_row(data)]
    rows += _context_rows(data) if data.contexts else []
    return rows + (half.rows(data.growth) if data.growth else [])


def _reading_row(data: Data) -> Row:
    runs = [one for _, group in _named(data) for one in group]
    worst = max(one.replay for one in runs)
    slides = 100 * float(np.median([one.sliding for one in runs]))
    lasts = {name: np.array([r.lasting for r in group]) for name, group in
             (("tree", data.tree), ("XOR", data.xor))}  # fmt: skip
    fixed = both(*(same(1 - v, SHARES, len(lasts)) for v in lasts.values()))
    return Row(
        claim="A ReLU network learns as a gated deep linear network does (its ReLN)",
        quote="the ReLU↔︎GDLN equivalence via Rectified Linear Networks (ReLNs)",
        source="C, ReLU and GDLN (Jarvis et al. 2024)",
        measured="final weights of a gated linear flow with the switching times and sliding "
        f"fractions handed over, relative distance at most {worst:.1g} in {len(runs)} runs "
        f"(criterion: {REPLAYED:g}); pairs slide in {slides:.0f} % of the time (median), where the "
        "gates are fractions that move; share of the fall of the loss still ahead when the gates, "
        "kept constant from there on, first give the run's outputs at all later times within "
        f"{100 * DOES:.0f} %: "
        + ", ".join(f"{name} {interval(v)}" for name, v in lasts.items())
        + f" (criterion: from all of it {SHARES}, {len(lasts)} comparisons); the text does not say "
        "whether the gates may move",
        verdict=verdict({
            "gates that switch, and slide, as the ReLU run tells": worst < REPLAYED,
            "one constant gating": fixed,
        }),
    )  # fmt: skip


def _ways_row(data: Data) -> Row:
    ways = {name: (np.array([needed(r) for r in group]), np.median([len(r.shares) for r in group]))
            for name, group in (("tree", data.tree), ("XOR", data.xor))}  # fmt: skip
    return Row(
        claim="How many pathways explain what a ReLU network learns",
        source="C, ReLU and GDLN (Jarvis et al. 2024)",
        measured="pathways (sets of units with one gating, as long as it lasts) for 99 % of the "
        "fall of the loss: "
        + ", ".join(f"{name} {interval(v)} of {all_:.0f}" for name, (v, all_) in ways.items()),
        verdict="measured: "
        + ", ".join(f"{name} {v.mean():.0f} of {all_:.0f}" for name, (v, all_) in ways.items()),
        kind="control",
    )


def _context_rows(data: Data) -> list[Row]:
    shares, random = (
        {n: np.array([what(r, n) for r in runs]) for n, runs in data.contexts.items()}
        for what in (profile, chance)
    )
    single = {count: own[:, 1] for count, own in shares.items()}
    mixed = {count: own[:, 2:].sum(axis=1) for count, own in shares.items()}
    by_chance = {count: own[:, 2:].sum(axis=1) for count, own in random.items()}
    over = {n: np.array([structure(r, n) for r in runs]) for n, runs in data.contexts.items()}
    text = "; ".join(
        f"{count} contexts: one {interval(single[count])}, several {interval(mixed[count])}, "
        f"several if samples are shuffled {np.mean(by_chance[count]):.2g}"
        for count in mixed
    )
    few, most, number = min(mixed), max(mixed), 2 * len(mixed) + 2
    step, shuffled = single[few] - single[most], random[few][:, 1] - random[most][:, 1]
    grows = both(more(step, of=number), more(step, shuffled, number))
    prefer = both(*(more(mixed[count], single[count], number) for count in mixed))
    beyond = both(*(more(mixed[count], by_chance[count], number) for count in mixed))
    return [
        Row(
            claim="On contextual tasks ReLU networks prefer units used in several contexts (mixed "
            "selectivity) to modules of one context, the more so the more contexts there are",
            source="Jarvis et al. 2024, abstract (named in C, M and W)",
            measured="share of the fall of the loss carried by pathways whose units are on for "
            f"more than half of the items in one context, or in several: {text}; share of one "
            f"context, {few} minus {most} contexts, same seeds: {interval(step)}, with shuffled "
            f"samples {interval(shuffled)}; criterion: several more than one, and more than by "
            f"chance, and the share of one falls, more than by chance, paired, {number} "
            "comparisons",
            verdict=verdict(
                both(prefer, beyond, grows),
                ("modules lose more with the number of contexts than by chance", grows),
            ),
            kind="control",
        ),
        Row(
            claim="These representations are structured by context",
            source="Jarvis et al. 2024, abstract (named in C, M and W)",
            measured="variance between contexts of the share of items for which a pathway is on, "
            "over that of shuffled samples: "
            + ", ".join(f"{count} contexts {interval(v)}" for count, v in over.items())
            + f"; criterion: above 1, {len(over)} comparisons",
            verdict=verdict(both(*(more(v, 1.0, len(over)) for v in over.values()))),
            kind="control",
        ),
    ]


def _offset_rows(data: Data) -> list[Row]:
    """Without bias, which is what the sentence is about; and with bias beside it."""
    shares = {
        kind: {delta: np.array([r.curved for r in runs]) for delta, runs in by_delta.items()}
        for kind, by_delta in data.offset.items()
    }
    bare = [kind for kind in data.size.offsets if not OFFSETS[kind][0]]
    largest, number, found = max(data.size.deltas), 2 * len(bare), {}
    for kind in bare:
        well = QUARTER[OFFSETS[kind][1]]
        found[kind] = both(
            same(shares[kind][largest], SHARES, number),
            apart(shares[kind][well], SHARES, number) if well in shares[kind] else None,
        )
    what = (
        "share of the variance of the last outputs, in the box around the inputs, that no affine "
        "map has (of the difference between outputs; their sum, one for all inputs, is left out)"
    )
    listed = {
        kind: ", ".join(f"{delta:g}: {interval(v)}" for delta, v in rows.items())
        for kind, rows in shares.items()
    }
    return [
        Row(
            claim="The solution that ReLU networks without bias find of the offset XOR task turns "
            "from linear to non-linear well before the task stops being linearly solvable, which "
            "is at Delta = 0",
            quote="ReLU networks transition to non-linear solutions well before the problem "
            "becomes not linearly solvable",
            source="M Sec. 6.1 (of Jarvis et al. 2025), Fig. 11",
            measured=f"{what}, by Delta; "
            + "; ".join(f"{kind}: {listed[kind]}" for kind in bare)
            + f"; criterion: none at Delta = {largest:g}, apart from none where Delta is a quarter "
            f"of the side of the XOR's square, {SHARES}, {number} comparisons",
            verdict=verdict(found),
        ),
        _bias_row(shares, what, listed),
    ]


def _bias_row(shares: dict[str, dict[float, np.ndarray]], what: str, listed: Any) -> Row:
    bias, none = (shares[kind] for kind in (WITH, WITHOUT))
    number = len(bias)
    less = [f"{d:g}" for d in bias if more(none[d], bias[d], number)]
    linear = [f"{d:g}" for d in bias if same(bias[d], SHARES, number)]
    return Row(
        claim="Where the solution of offset XOR is linear with bias",
        source="M Sec. 6.1, Fig. 11",
        measured=f"{what}, by Delta; {WITH}: {listed[WITH]}; criterion: {SHARES}, and less than "
        f"without bias, paired, {number} comparisons",
        verdict=f"measured: at Delta = {', '.join(linear) or 'none'}; less curved than without "
        f"bias at {', '.join(less) or 'none'}",
        kind="control",
    )


# The figure


def draw(data: Data) -> Figure:
    """Pathways and overlap of a tree run."""
    figure, axes = plt.subplots(1, 2, figsize=(8.9, 4.4))
    fl.plot.lifetimes(data.shown, axes[0], most=12)
    axes[0].set_title("tree: pathways of a run", loc="left")
    fl.plot.overlap(data.shown, axes[1])
    axes[1].set_title("tree: how alike its gatings are")
    return figure


def draw_pathways(data: Data) -> Figure:
    """How many pathways a ReLU network learns by. See: 99 % of the fall (grey) takes tens on the
    tree, fewer on XOR, though the first has most of it on the tree (left). With several contexts
    pathways that are on in all of them carry less than with samples shuffled (dashes, right).
    """
    figure, axes = plt.subplots(1, 2, figsize=(8.9, 4.4))
    draw_explained(axes[0], {"tree": data.tree, "XOR": data.xor})
    if data.contexts:
        found = {
            count: [np.array([read(r, count) for r in runs]) for read in (profile, chance)]
            for count, runs in data.contexts.items()
        }
        draw_contexts(axes[1], found)
    return figure


def draw_bias(data: Data) -> Figure:
    r"""Offset XOR, and how long modes take without bias. See: the curved share of the outputs falls
    below a tenth (grey) at a smaller $\Delta$ with bias, or with inputs 0 and 1, than without
    (left). Modes take twice as long on symmetric data, as the share of open gates says (line), and
    mostly less on the tree (right).
    """
    figure, axes = plt.subplots(1, 2, figsize=(8.9, 4.4))
    curved = {
        kind: {delta: [r.curved for r in runs] for delta, runs in by_delta.items()}
        for kind, by_delta in data.offset.items()
    }
    draw_offset(axes[0], curved, {WITH: ("C0", "o", "-"), WITHOUT: ("C1", "s", "--")})
    half.draw(axes[1], data.growth)
    return figure


OTHERS = {"_pathways": draw_pathways, "_bias": draw_bias}
STUDY = Study("c_6_rectified", SIZES, compute, draw, numbers, judge, heavy=True, others=OTHERS)

if __name__ == "__main__":
    STUDY.main(__doc__)
