"""C, fourth part: the neural race, in routing networks of M input and M output domains. The way
that all pairs share wins, unless single pairs' ways are K sqrt(M) times as strong at the start.

Gated deep linear networks (Saxe, Sodhani and Lewallen 2022). Every input domain shows the 4 items
of a small tree, every output domain asks for their 7 features; of the M^2 pairs of domains K per
input are trained. Three networks, three layers of weights each:

- a shared middle alone, in_i -> low -> high -> out_j, from balanced, aligned starts over M and K:
  located half-times of the race against a closed form derived here;
- the same from small random weights, for pairs that were never trained;
- with a way of its own for each pair beside the middle, from equal strengths on all edges, and from
  small random weights: which wins, and how the time of winning depends on the others' head start.

The sources give neither sizes nor levels; these are chosen here.

    python examples/paper/c_4_race.py [--quick | --full]
"""

import dataclasses
import itertools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import COEFFICIENTS, LOSSES, both, interval, more, same, verdict
from _paper import Row, Study, fl
from matplotlib.figure import Figure
from tqdm import tqdm

SOURCE = "C, GDLN (Saxe, Sodhani and Lewallen 2022)"
TREE = fl.tasks.hierarchy(2)
ITEMS, FEATURES = TREE.inputs, TREE.outputs


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`: of random starts; `variance` of their weights.
    - `domains`: numbers M of the closed form's comparison; `shown` the M of all else.
    - `start`: strength of the edges in aligned starts.
    - `small`, `ahead`: in races with a head start, the strength of the middle's edges, and that of
      single pairs' ways over it, in units of K sqrt(M).
    - `hidden`: width of shared nodes; `own` of those of single pairs.
    - `t1`: end of runs, in units of tau times the number of trained pairs.
    """

    seeds: int
    domains: tuple[int, ...] = (2, 3, 4)
    shown: int = 3
    start: float = 0.1
    small: float = 0.01
    ahead: tuple[float, ...] = (0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.3, 2.0)
    variance: float = 4e-3
    hidden: int = 16
    own: int = 8
    t1: float = 60.0


SIZES = {
    "quick": Size(2, domains=(2,), shown=2),
    "default": Size(8),
    "full": Size(40),
}


@dataclasses.dataclass
class Data:
    """What `compute` finds.

    - `times`: by (M, K), located and closed half-times of the shared network's modes, (2, modes).
    - `unseen`: by K, (seeds,), error on pairs never trained, over that of saying nothing.
    - `share`: by K, (modes,), the middle's share at the end of the race from equal strengths.
    - `random`: by K, (seeds,), the middle's share of all trained pairs' strongest modes from random
      weights.
    - `ahead`: by K, (starts,), its share of the strongest mode against ways that are ahead.
    - `races`, `runs`: by K, the race from equal strengths, and its run.
    - `agreement`: largest difference of the race from the network's own flow.
    - `slopes`: derivatives of the middle's half-times by the logarithm of the others' strength at
      t = 0, through the run and by differences, (2, modes).
    """

    size: Size
    times: dict[tuple[int, int], np.ndarray]
    unseen: dict[int, np.ndarray]
    share: dict[int, np.ndarray]
    random: dict[int, np.ndarray]
    ahead: dict[int, np.ndarray]
    races: dict[int, fl.theory.Race]
    runs: dict[int, fl.Trajectory]
    agreement: float
    slopes: np.ndarray


def trained(domains: int, active: int) -> list[tuple[int, int]]:
    """Pairs of an input and an output domain."""
    return [(i, (i + k) % domains) for i in range(domains) for k in range(active)]


def task_of(domains: int, pairs: list[tuple[int, int]]) -> tuple[fl.Task, np.ndarray]:
    """The task of some pairs, and which pair each sample is of (pairs, P)."""
    rows = len(pairs) * ITEMS
    x, y = np.zeros((rows, ITEMS * domains)), np.zeros((rows, FEATURES * domains))
    open_ = np.zeros((len(pairs), rows))
    for n, (i, j) in enumerate(pairs):
        here = slice(ITEMS * n, ITEMS * (n + 1))
        x[here, ITEMS * i : ITEMS * (i + 1)] = TREE.x
        y[here, FEATURES * j : FEATURES * (j + 1)] = TREE.y
        open_[n, here] = 1
    return fl.Task(x, y, name=f"routing {domains} x {len(pairs) // domains}"), open_


def network_of(size: Size, domains: int, pairs: Any, seed: int, own: bool) -> Any:
    """A network with a shared middle, and ways of single pairs if `own`, with its task."""
    task, open_ = task_of(domains, pairs)
    ends = range(domains)
    nodes = {"low": size.hidden, "high": size.hidden}
    nodes |= {f"in{i}": ITEMS for i in ends} | {f"out{j}": FEATURES for j in ends}
    edges = [(f"in{i}", "low") for i in ends] + [("low", "high")]
    edges += [("high", f"out{j}") for j in ends]
    to = {f"out{j}": sum(open_[n] for n, p in enumerate(pairs) if p[1] == j) for j in ends}
    gates = {node: gate for node, gate in to.items() if np.ndim(gate)}
    for n, (i, j) in enumerate(pairs if own else []):
        way = (f"in{i}", f"low{i}{j}", f"high{i}{j}", f"out{j}")
        edges += list(itertools.pairwise(way))
        nodes |= dict.fromkeys(way[1:3], size.own)
        gates[way[1]] = open_[n]
    network = fl.GatedGraph.init(
        task, nodes, edges, node_gates=gates, variance=size.variance, key=jax.random.key(seed),
        inputs={f"in{i}": slice(ITEMS * i, ITEMS * (i + 1)) for i in ends},
        outputs={f"out{j}": slice(FEATURES * j, FEATURES * (j + 1)) for j in ends},
    )  # fmt: skip
    return network, task


def race_of(size: Size, domains: int, active: int, own: bool, **strength: Any) -> fl.theory.Race:
    """The race from an aligned start with these strengths."""
    network, task = network_of(size, domains, trained(domains, active), 0, own)
    race = fl.theory.race(network, task)
    return fl.theory.race(race.aligned(key=jax.random.key(1), **strength), task)


def compute(size: Size) -> Data:
    """All runs, and the closed form."""
    ks = range(1, size.shown + 1)
    races = {k: race_of(size, size.shown, k, True, strength=size.start) for k in ks}
    runs = {k: run(race, size) for k, race in races.items()}
    return Data(
        size,
        {(m, k): closed_and_located(size, m, k) for m in size.domains for k in range(1, m + 1)},
        {k: np.array([unseen(size, k, s) for s in seeds(size, k)]) for k in ks if k < size.shown},
        {k: shared(races[k], runs[k]) for k in ks},
        {k: np.array([random_share(size, k, s) for s in seeds(size, k)]) for k in ks},
        {k: against_ahead(races[k], size, k) for k in ks},
        races,
        runs,
        agreement(races[size.shown], size),
        slopes(races[size.shown], size),
    )


def seeds(size: Size, active: int) -> Any:
    """Seeds, with a progress bar."""
    return tqdm(range(size.seeds), desc=f"K = {active}", disable=None)


def end(race: fl.theory.Race, size: Size) -> float:
    """Runs are as long as a pair is rare."""
    return size.t1 * race.task.samples / ITEMS


def run(race: fl.theory.Race, size: Size) -> fl.Trajectory:
    """The race with its half-times."""
    t1 = end(race, size)
    ts, half = np.linspace(0, t1, 241), race.hits(0.5, direction="up")
    return race.flow(t1, ts=ts, events=(half,), rtol=1e-10)


def closed_and_located(size: Size, domains: int, active: int) -> np.ndarray:
    """Half-times of the shared network's modes, located and in closed form, (2, modes).

    With b_low = b_high = b and b_middle = sqrt(M) b, which the flow conserves, the product
    a = sqrt(M) b^3 of each pathway obeys tau da/dt = 3 K M^(1/3) a^(4/3) (S - a D): a mode of three
    layers whose time runs K M^(1/3) times as fast as that of one pair with a way of its own.
    """
    b = size.start
    edges = {"low": b, "high": b * np.sqrt(domains)}
    race = race_of(size, domains, active, False)
    strength = {(a, c): edges.get(c, b) for a, c in race.network.edges}
    race = fl.theory.race(race.aligned(strength, key=jax.random.key(1)), race.task)
    assert race.exact, race
    located = run(race, size).events.first("race")[0]
    s, d = race.s[0], race.d[0, 0]
    fast, a0 = active * domains ** (1 / 3), np.sqrt(domains) * b**3
    closed = fl.theory.Mode(fast * s, fast * d, a0, 3).half_time
    driven = np.asarray(race.lone_strengths[0]) > 0
    return np.stack([located, closed])[:, driven]


def unseen(size: Size, active: int, seed: int) -> float:
    """Error of a trained network on the pairs that it never saw, over that of outputs of zero."""
    pairs = trained(size.shown, active)
    network, task = network_of(size, size.shown, pairs, seed, False)
    flow = fl.gradient_flow(network, task, size.t1 * len(pairs))
    others = [(i, j) for i in range(size.shown) for j in range(size.shown) if (i, j) not in pairs]
    other, test = network_of(size, size.shown, others, seed, False)
    moved = other.with_parameters(flow.final.parameters)
    return float(fl.measures.loss(moved, test) / (jnp.sum(test.y**2) / test.samples / 2))


def shared(race: fl.theory.Race, flow: fl.Trajectory) -> np.ndarray:
    """The middle's share of the first trained pair's modes at the end."""
    middle = np.array(["low" in p.nodes for p in race.pathways])
    pair = np.array([(p.source, p.target) == ("in0", "out0") for p in race.pathways])
    strengths = np.asarray(race.strengths(flow.final))
    driven = np.asarray(race.lone_strengths)[pair & middle][0] > 0
    return (strengths[pair & middle] / strengths[pair].sum(axis=0))[0][driven]


def random_share(size: Size, active: int, seed: int) -> float:
    """The middle's share of all trained pairs' strongest mode, from random weights."""
    pairs = trained(size.shown, active)
    network, task = network_of(size, size.shown, pairs, seed, True)
    race = fl.theory.race(network, task)
    final = fl.gradient_flow(network, task, end(race, size)).final
    strengths = np.asarray(race.strengths(final))[:, 0]
    driven = np.asarray(race.lone_strengths)[:, 0] > 0
    middle = np.array(["low" in p.nodes for p in race.pathways])
    return float(strengths[driven & middle].sum() / strengths[driven].sum())


def own_edges(race: fl.theory.Race) -> set[tuple[str, str]]:
    """The edges of single pairs' ways."""
    return {edge for edge in race.network.edges if not {"low", "high"} & set(edge)}


def against_ahead(race: fl.theory.Race, size: Size, active: int) -> np.ndarray:
    """The middle's share of the strongest mode, balanced, against ways that start ahead."""
    b, own = size.small, own_edges(race)
    one = jnp.ones_like(race.start.weights["low", "high"])
    t1 = end(race, size) * size.start / size.small

    def final(ahead: Any) -> Any:
        weights = {edge: b * (ahead if edge in own else 1.0) * one for edge in race.network.edges}
        weights["low", "high"] = b * np.sqrt(size.shown) * one
        start = race.start.with_parameters((weights, race.start.biases))
        return race.strengths(fl.gradient_flow(start, race.reduced, t1).final)[:, 0]

    strengths = np.asarray(jax.jit(jax.vmap(final))(expected(size, active) * jnp.array(size.ahead)))
    middle = np.array(["low" in p.nodes for p in race.pathways])
    driven = np.asarray(race.lone_strengths)[:, 0] > 0
    return strengths[:, middle & driven].sum(axis=1) / strengths[:, driven].sum(axis=1)


def agreement(race: fl.theory.Race, size: Size) -> float:
    """Largest difference of the network's strengths from the race's, over the largest."""
    t1, rtol = end(race, size), 1e-11
    ts = np.linspace(0, t1, 13)
    full = fl.gradient_flow(race.network, race.task, t1, ts=ts, rtol=rtol)
    reduced = race.flow(t1, ts=ts, rtol=rtol)
    a, b = (np.asarray(jax.vmap(race.strengths)(f.networks)) for f in (full, reduced))
    return float(np.abs(a - b).max() / np.abs(b).max())


def slopes(race: fl.theory.Race, size: Size) -> np.ndarray:
    """d t / d log b of the middle's half-times, b the strength of all other ways at t = 0."""
    n = next(n for n, p in enumerate(race.pathways) if "low" in p.nodes)
    driven = np.flatnonzero(np.asarray(race.lone_strengths)[n] > 0)
    t1 = end(race, size)

    def times(shift: Any) -> Any:
        own = own_edges(race)
        weights = {e: w * jnp.exp(shift) if e in own else w for e, w in race.start.weights.items()}
        start = race.start.with_parameters((weights, race.start.biases))
        flow = fl.gradient_flow(
            start, race.reduced, t1, events=(race.hits(0.5),), rtol=1e-11, max_steps=512,
            max_events=1024, adjoint=diffrax.ForwardMode(),
        )  # fmt: skip
        return flow.events.first("race")[n, driven]

    step = 1e-4
    # One program for the derivative and the runs that it is compared with.
    ways = jax.jit(jax.vmap(lambda at: jax.jvp(times, (at,), (1.0,))))
    found, through = ways(jnp.array([0.0, -step, step]))
    return np.stack([through[0], (found[2] - found[1]) / (2 * step)])


def crossing(data: Data, active: int) -> float:
    """The head start at which the middle carries half of the strongest mode, over K sqrt(M)."""
    share, logs = data.ahead[active], np.log(data.size.ahead)
    return float(np.exp(np.interp(-0.5, -share, logs))) if share[-1] < 0.5 else np.inf


def expected(size: Size, active: int) -> float:
    """K sqrt(M), from both growing as b' = K sqrt(M) S b^2 and b' = S b^2."""
    return active * float(np.sqrt(size.shown))


def numbers(data: Data) -> dict[str, Any]:
    """What the figure shows, in numbers."""
    return {
        "half-times, located and closed": {f"M {m}, K {k}": t for (m, k), t in data.times.items()},
        "error on unseen pairs": data.unseen,
        "share of the middle, equal strengths": data.share,
        "share of the middle, random weights": data.random,
        "head starts, over K sqrt(M)": data.size.ahead,
        "share of the middle against head starts": data.ahead,
        "head start at equal shares, over K sqrt(M)": {k: crossing(data, k) for k in data.ahead},
        "race against the network's flow": data.agreement,
        "dt / d log b, through the run and by differences": data.slopes,
    }


def judge(data: Data) -> list[Row]:
    """Verdicts on the claims."""
    return [_win_row(data), *_theorem_rows(data), _unseen_row(data)]


def _win_row(data: Data) -> Row:
    worst = {k: float(share.min()) for k, share in data.share.items()}
    wins = [more(row, 0.5, len(data.random)) for row in data.random.values()]
    return Row(
        claim="The fastest path, here the one that all pairs of domains share, wins",
        quote="why “fastest path wins”",
        source=SOURCE,
        measured=f"M = {data.size.shown}, share of the weakest mode that the shared path has in "
        "the end, from equal strengths: "
        + ", ".join(f"{share:.4f} (K = {k})" for k, share in worst.items())
        + "; of the strongest from random weights: "
        + ", ".join(f"{interval(row, 4)} (K = {k})" for k, row in data.random.items())
        + f"; criterion: more than half for every K, {len(wins)} comparisons",
        verdict=verdict(both(min(worst.values()) > 0.5, *wins)),
    )


def _theorem_rows(data: Data) -> list[Row]:
    """The reduction, half-times through a shared middle, and the head start against it."""
    m = data.size.shown
    off = max(float(np.abs(a / b - 1).max()) for a, b in data.times.values())
    slope = float(np.abs(data.slopes[0] / data.slopes[1] - 1).max())
    limits = {k: crossing(data, k) for k in data.share}
    near = [same((ratio - 1,) * 2, COEFFICIENTS) for ratio in limits.values()]
    return [
        Row(
            claim="The flow of a gated network is a race of its pathways, mode by mode, each on "
            "the samples for which it is open, if their statistics have common singular vectors "
            "and weights are aligned to them",
            quote="the neural race reduction—how gating induces pathway-specific effective "
            "datasets",
            source=SOURCE,
            measured=f"M = K = {m}, {len(data.races[m].pathways)} pathways, aligned start: "
            f"strengths agree to {data.agreement:.1e} of the largest",
            verdict=verdict(data.agreement < 1e-6),
            kind="theorem",
        ),
        Row(
            claim="From balanced, aligned starts a shared middle runs K M^(1/3) times as fast as "
            "one pair alone (three layers)",
            source=f"{SOURCE}, derived here",
            measured=f"half-times of {len(data.times)} pairs (M, K) within {off:.1e} of the closed "
            "form",
            verdict=verdict(off < 1e-6),
            kind="theorem",
        ),
        Row(
            claim="In the limit of small starts ways of single pairs need a head start of "
            "K sqrt(M) to carry half",
            source=f"{SOURCE}, derived here",
            measured=f"M = {m}, over K sqrt(M): "
            + ", ".join(f"{ratio:.3f} (K = {k})" for k, ratio in limits.items())
            + f", from edges of {data.size.small:g}, {COEFFICIENTS}; the middle's half-times as "
            f"events have derivatives by the others' start, right to {slope:.0e}",
            verdict=verdict(both(*near)),
            kind="theorem",
        ),
    ]


def _unseen_row(data: Data) -> Row:
    known = {k: same(row, LOSSES, len(data.unseen)) for k, row in data.unseen.items()}
    words = {True: "yes", False: "no", None: "undecided"}
    return Row(
        claim="Whether a shared middle generalises to pairs of domains that were never trained "
        "(zero-shot); those of K = 1 do not connect the domains",
        source=SOURCE,
        measured=f"M = {data.size.shown}, error on unseen pairs over that of outputs of zero, "
        "random weights: "
        + ", ".join(f"{interval(row)} (K = {k})" for k, row in data.unseen.items())
        + f"; criterion: {LOSSES}, {len(known)} comparisons",
        verdict="measured: " + ", ".join(f"K = {k} {words[found]}" for k, found in known.items()),
        kind="control",
    )


def again(record: dict[str, Any]) -> Data:
    """The committed numbers, with the race that is drawn, which takes seconds."""
    size, found = SIZES[record["size"]["name"]], record["numbers"]
    shown = min(2, size.shown)
    race = race_of(size, size.shown, shown, True, strength=size.start)

    def of(name: str) -> dict[int, np.ndarray]:
        return {int(k): np.array(row) for k, row in found[name].items()}

    ks = {(m, k): f"M {m}, K {k}" for m in size.domains for k in range(1, m + 1)}
    times = found["half-times, located and closed"]
    return Data(
        size,
        {key: np.array(times[name]) for key, name in ks.items()},
        of("error on unseen pairs"), of("share of the middle, equal strengths"),
        of("share of the middle, random weights"), of("share of the middle against head starts"),
        {shown: race}, {shown: run(race, size)}, found["race against the network's flow"],
        np.array(found["dt / d log b, through the run and by differences"]),
    )  # fmt: skip


def draw(data: Data) -> Figure:
    """The race and its graph; head starts, and what the middle leaves."""
    figure, axes = plt.subplots(2, 2, figsize=(8.8, 7.4))
    k = min(2, data.size.shown)
    race, pair = data.races[k], ("in0", "out0")
    which = [n for n, p in enumerate(race.pathways) if (p.source, p.target) == pair]
    fl.plot.pathways(data.runs[k], race, axes[0, 0], shown=which, graph=axes[0, 1])
    axes[0, 0].set(title=f"A. the race of one pair, M = {data.size.shown}, K = {k}", xlim=(0, 120))
    axes[0, 1].set_title("B. all pairs' graph, and the pathways of A")
    for n, (active, share) in enumerate(data.ahead.items()):
        look = {"color": f"C{n}", "marker": "osD^"[n], "markersize": 4}
        unit = expected(data.size, active)
        axes[1, 0].plot(unit * np.array(data.size.ahead), share, label=f"K = {active}", **look)
        axes[1, 0].axvline(unit, color=f"C{n}", linewidth=0.8, linestyle="--")
    axes[1, 0].set(
        xlabel="head start of single pairs' ways", ylabel="share of the middle",
        title=r"C. who carries mode 0 (dashed: $K \sqrt{M}$)", ylim=(-0.05, 1.05),
    )  # fmt: skip
    axes[1, 0].legend(fontsize="small", frameon=False)
    _draw_shares(data, axes[1, 1])
    return figure


def draw_pairs(data: Data) -> Figure:
    """The shared middle alone, by the number K of trained pairs per input domain. See: its
    half-time per pair falls along the closed form (dotted, A). On pairs that were never trained it
    errs about as outputs of zero do (dashed) at K = 1, and little at K = 2 (B).
    """
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 4.0))
    _draw_times(data, axes[0])
    for active, row in data.unseen.items():
        axes[1].plot([active] * len(row), row, "o", color="C0", markerfacecolor="white")
    axes[1].axhline(1.0, color="0.5", linestyle="--", linewidth=0.8)
    axes[1].set(
        yscale="log", xticks=list(data.unseen), xlabel="trained pairs per input domain, K",
        ylabel="error, over outputs of zero", title="B. pairs never trained, random weights",
    )  # fmt: skip
    axes[1].margins(x=0.5)
    return figure


def _draw_times(data: Data, ax: Any) -> None:
    """Half-times, per trained pair, located and in closed form."""
    most = max(data.size.domains)
    for m in data.size.domains:
        ks = np.arange(1, m + 1)
        located, closed = (
            np.array([data.times[m, int(k)][n, 0] for k in ks]) / (m * ks) for n in (0, 1)
        )
        shift = 0.05 * (m - most)
        ax.plot(ks + shift, located, "osD^"[m % 4], color=f"C{m - 2}", label=f"M = {m}")
        ax.plot(ks + shift, closed, **fl.plot.look("theory"))
    ax.set(
        xticks=range(1, most + 1), xlabel="trained pairs per input domain, K",
        ylabel=r"half-time per pair (units of $\tau$)", title="A. mode 0, closed form dotted",
    )  # fmt: skip
    ax.legend(fontsize="small", frameon=False)


def _draw_shares(data: Data, ax: Any) -> None:
    """What single pairs' ways keep, from equal strengths and from random weights."""
    for n, active in enumerate(data.share):
        equal, random = 1 - data.share[active], 1 - data.random[active]
        names = ("equal strengths, by modes", "random weights, by seeds")
        for x, row, mark, name in ((-0.1, equal, "s", names[0]), (0.1, random, "o", names[1])):
            ax.plot([active + x] * len(row), row, mark, color="C0" if mark == "s" else "C1",
                    markerfacecolor="white", label=None if n else name)  # fmt: skip
    ax.set(
        yscale="log", xticks=list(data.share), xlabel="trained pairs per input domain, K",
        ylabel="share of single pairs' ways", title="D. what the middle leaves",
    )  # fmt: skip
    ax.legend(fontsize="small", frameon=False)
    ax.margins(x=0.3, y=0.25)


OTHERS = {"_pairs": draw_pairs}
STUDY = Study(
    "c_4_race", SIZES, compute, draw, numbers, judge, heavy=True, others=OTHERS, again=again
)

if __name__ == "__main__":
    STUDY.main(__doc__)
