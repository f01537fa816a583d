"""C, first part: the SVD change of variables, mode decoupling, shallow against deep. See: closed
forms (dotted) lie on the curves; of random starts the smaller err less, if singular values are
apart (green, D).

Gradient flow of linear networks of one to four layers on a task whose nine modes have every pair of
s in (3, 2, 1) and d in (1/2, 1, 2), so that one run tells what depends on which. Starts are aligned
to the modes (balanced, product a_0 U V^T) or i.i.d. normal. Other tasks: "turned" has the same
Sigma_yx and the same eigenvalues of Sigma_x in a turned basis, where the modes do not decouple;
"distinct" has s = 4, 2, 1 once each and zero otherwise; "white" has Sigma_x = 1 and nine values.

C is a reading list and gives neither task nor sizes; these are chosen here.

    python examples/paper/c_1_svd.py [--quick | --full]
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _errata import EXACT
from _judge import MAPS, TIMES, apart, both, interval, more, same, verdict
from _paper import Row, Study, fl
from _tree import thin
from matplotlib.figure import Figure
from tqdm import tqdm

SHARES = (0.1, 0.5, 0.9)  # of the full strength, at which modes are timed
NAMES = {1: "one layer", 2: "two layers", 3: "three layers", 4: "four layers"}


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`: random starts; `variances` of their weights (two layers).
    - `s`, `d`: the task has a mode for every pair.
    - `start`: a_0 of the aligned starts; `depths` they are run at.
    - `hidden`, `samples`, `t1`, `points`: units, P, end of the flow, saved times.
    """

    seeds: int
    variances: tuple[float, ...] = (1e-2, 1e-4, 1e-6, 1e-8)
    depths: tuple[int, ...] = (1, 2, 3, 4)
    s: tuple[float, ...] = (3.0, 2.0, 1.0)
    d: tuple[float, ...] = (0.5, 1.0, 2.0)
    start: float = 1e-3
    hidden: int = 16
    samples: int = 24
    t1: float = 40.0
    points: int = 201
    rtol: float = 1e-10
    tasks: tuple[str, ...] = ("pairs", "turned", "distinct", "white")


SIZES = {
    "quick": Size(2, variances=(1e-2, 1e-8), depths=(1, 2), tasks=("pairs", "turned", "distinct")),
    "default": Size(20),
    "full": Size(100),
}


@dataclasses.dataclass
class Data:
    """What `compute` finds; errors are relative to the largest norm of the product.

    - `aligned`: by depth, the flow from the aligned start; `exact`: the closed forms' names and
      errors; `hits` (shares, K) the located times, `early` (2, K) those of 2 and 20 a_0.
    - `errors`: of isolated modes from random starts, by task, (variance, seed).
    - `moved`: by case, how much the other modes change when one mode's weights are doubled.
    - `bent`: by depth, how far the flow from the mean of two starts is off the mean of the flows.
    - `hump`: by depth, how far the loss between two weights exceeds its chord, over L(0).
    """

    size: Size
    aligned: dict[int, fl.Trajectory]
    exact: dict[str, float]
    hits: dict[int, np.ndarray]
    early: np.ndarray
    errors: dict[str, np.ndarray]
    moved: dict[str, np.ndarray]
    bent: dict[int, np.ndarray]
    hump: dict[int, float]


@functools.lru_cache
def task_of(size: Size, kind: str = "pairs") -> fl.Task:
    """Sigma_yx = U diag(s) V^T and Sigma_x = V R diag(d) R^T V^T, R = 1 unless "turned"."""
    s, d = np.repeat(size.s, len(size.d)), np.tile(size.d, len(size.s))
    rng, number = np.random.default_rng(0), len(s)
    if kind == "distinct":
        s = np.array([4.0, 2.0, 1.0] + [0.0] * (number - 3))
    if kind == "white":
        s, d = 3 * 0.75 ** np.arange(number), np.ones(number)
    u, v, r = (np.linalg.qr(rng.normal(size=(number, number)))[0] for _ in range(3))
    white = np.linalg.qr(rng.normal(size=(size.samples, number)))[0] * np.sqrt(size.samples)
    basis = v @ r if kind == "turned" else v
    x = white * np.sqrt(d) @ basis.T
    teacher = (u * s) @ v.T @ (basis / d) @ basis.T
    return fl.Task(x, x @ teacher.T, name="modes of given s and d")


def aligned_start(size: Size, depth: int, kind: str = "pairs") -> fl.LinearNetwork:
    """The balanced network whose product is a_0 U V^T."""
    task = task_of(size, kind)
    modes = fl.theory.modes(task)
    product = size.start * modes.u @ modes.v.T
    if depth == 1:
        return fl.LinearNetwork([product])
    hidden = (size.hidden,) * (depth - 1)
    return fl.LinearNetwork.balanced(
        task, hidden, bias=False, product=product, key=jax.random.key(0)
    )


def random_start(size: Size, seed: int, variance: float) -> fl.LinearNetwork:
    """Two layers, i.i.d. normal."""
    how = {"hidden": (size.hidden,), "variance": variance, "bias": False}
    return fl.LinearNetwork.init(task_of(size), **how, key=jax.random.key(seed))


def run(size: Size, network: fl.LinearNetwork, kind: str = "pairs") -> fl.Trajectory:
    """The flow, with the modes' passings of their shares and of 2 and 20 a_0."""
    task = task_of(size, kind)
    modes = fl.theory.modes(task)
    full = np.asarray(modes.full_strength)
    early = size.start * np.array([[2.0], [20.0]]) * np.ones_like(full)
    levels = np.concatenate([np.asarray(SHARES)[:, None] * full, early])
    hits = fl.Crossing(modes.observable(network, task), levels, direction="up", name="mode")
    ts = size.t1 * np.linspace(0, 1, size.points) ** 2
    return fl.gradient_flow(network, task, size.t1, ts=ts, events=(hits,), rtol=size.rtol)


def strengths(flow: fl.Trajectory, task: fl.Task) -> np.ndarray:
    """Mode strengths over the run, (T, K)."""
    return np.asarray(fl.measures.along(flow, fl.theory.modes(task).strengths, task))


def compute(size: Size) -> Data:
    """All runs."""
    aligned = {depth: run(size, aligned_start(size, depth)) for depth in size.depths}
    found = {depth: np.asarray(flow.events.first("mode")) for depth, flow in aligned.items()}
    return Data(
        size,
        aligned,
        _exact(size, aligned),
        {depth: rows[: len(SHARES)] for depth, rows in found.items()},
        found[2][len(SHARES) :],
        _isolated(size),
        _moved(size),
        {depth: _bent(size, depth) for depth in (1, 2)},
        {depth: _hump(size, depth) for depth in size.depths},
    )


def _exact(size: Size, aligned: dict[int, fl.Trajectory]) -> dict[str, float]:
    """Largest error of the closed forms that call themselves exact, by name."""
    found = {}
    for depth, flow in aligned.items():
        solution = fl.theory.solve(aligned_start(size, depth), task_of(size))
        name = f"{solution.name}, {NAMES[depth]}"
        found[name] = float(solution.error(flow).max()) if solution.exact else np.inf
    if "white" not in size.tasks:
        return found
    drawn, task = random_start(size, 0, 1e-2), task_of(size, "white")
    product = drawn.weights[1] @ drawn.weights[0]
    network = fl.LinearNetwork.balanced(
        task, (size.hidden,), bias=False, product=product, key=jax.random.key(1)
    )
    solution = fl.theory.solve(network, task)
    error = solution.error(run(size, network, "white")).max() if solution.exact else np.inf
    found[f"{solution.name}, two layers, white inputs, any balanced start"] = float(error)
    return found


def _isolated(size: Size) -> dict[str, np.ndarray]:
    """Largest errors of modes taken by themselves, by task, (variances, seeds)."""
    found = {}
    for kind in ("distinct", "pairs", "turned"):
        errors = np.zeros((len(size.variances), size.seeds))
        for k, seed in tqdm(list(np.ndindex(errors.shape)), desc=kind, disable=None):
            network = random_start(size, seed, size.variances[k])
            solution = fl.theory.solve(network, task_of(size, kind))
            errors[k, seed] = solution.error(run(size, network, kind)).max()
        found[kind] = errors
    return found


def _doubled(network: fl.LinearNetwork, modes: Any, k: int) -> fl.LinearNetwork:
    """The network with the weights of one mode, W_1 v_k and u_k^T W_2, doubled."""
    w1, w2 = network.weights
    u, v = modes.u[:, k], modes.v[:, k]
    return fl.LinearNetwork([w1 + jnp.outer(w1 @ v, v), w2 + jnp.outer(u, u @ w2)])


def _moved(size: Size) -> dict[str, np.ndarray]:
    """Largest change of another mode's strength, over the full strength of the doubled one."""
    small, large = min(size.variances), max(size.variances)
    cases = {
        "aligned": [(aligned_start(size, 2), "pairs")],
        "aligned, Sigma_x turned": [(aligned_start(size, 2, "turned"), "turned")],
    }
    for kind, variance in (("distinct", small), ("distinct", large), ("pairs", small)):
        name = f"random, {kind}, variance {variance:g}"
        cases[name] = [(random_start(size, k, variance), kind) for k in range(size.seeds)]
    found = {}
    for name, starts in cases.items():
        rows = []
        for network, kind in starts:
            task = task_of(size, kind)
            modes, k = fl.theory.modes(task), 0
            pair = [strengths(run(size, n, kind), task)
                    for n in (network, _doubled(network, modes, k))]  # fmt: skip
            change = np.abs(pair[1] - pair[0]) / np.asarray(modes.full_strength)[0]
            rows.append(np.delete(change, k, axis=1).max())
        found[name] = np.array(rows)
    return found


def _product(network: Any) -> Any:
    return network.affine()[0]


def _bent(size: Size, depth: int) -> np.ndarray:
    """Failure of superposition, of three pairs of random starts, over the largest product."""
    rows = []
    for seed in range(3):
        pair = [random_start(size, 2 * seed + k, 1e-2).weights for k in range(2)]
        if depth == 1:
            pair = [[w2 @ w1] for w1, w2 in pair]
        mean = [(a + b) / 2 for a, b in zip(*pair, strict=True)]
        flows = [run(size, fl.LinearNetwork(list(w))) for w in (*pair, mean)]
        products = [fl.measures.along(f, lambda n, _: _product(n)) for f in flows]
        off = products[2] - (products[0] + products[1]) / 2
        norms = [np.linalg.norm(z, axis=(1, 2)).max() for z in (off, products[2])]
        rows.append(norms[0] / norms[1])
    return np.array(rows)


def _hump(size: Size, depth: int) -> float:
    """Largest excess of the loss at the mean of two weights over the mean loss, over L(0).

    Among 200 random pairs, and pairs that differ by the sign of the first two layers.
    """
    task, rng = task_of(size), np.random.default_rng(depth)
    x, y = np.asarray(task.x), np.asarray(task.y)
    sizes = [x.shape[1], *(size.hidden,) * (depth - 1), y.shape[1]]

    def loss(weights):
        return np.mean(
            np.sum((x @ functools.reduce(np.matmul, [w.T for w in weights]) - y) ** 2, 1)
        )

    def pairs():
        for _ in range(200):
            one, other = ([rng.normal(size=(b, a)) / np.sqrt(a) for a, b in
                           itertools.pairwise(sizes)] for _ in range(2))  # fmt: skip
            yield one, other
            if depth > 1:
                yield one, [-one[0], -one[1], *one[2:]]

    excess = [
        loss([(a + b) / 2 for a, b in zip(one, other, strict=True)]) - (loss(one) + loss(other)) / 2
        for one, other in pairs()
    ]
    return float(max(excess) / np.mean(np.sum(y**2, axis=1)))


# What is measured


def exponents(size: Size, values: np.ndarray) -> np.ndarray:
    """Powers (alpha, beta) of the best s^alpha d^beta through the values of the modes, (2,)."""
    modes = fl.theory.modes(task_of(size))
    logs = np.log([np.asarray(modes.s), np.asarray(modes.d)])
    table = np.stack([np.ones(len(values)), *logs], axis=1)
    return np.linalg.lstsq(table, np.log(values), rcond=None)[0][1:]


def ends(data: Data, depth: int) -> np.ndarray:
    """Mode strengths when the run ends, (K,)."""
    return strengths(data.aligned[depth], task_of(data.size))[-1]


def mode_at(data: Data, s: float, d: float) -> int:
    """Which mode has this s and d."""
    modes = fl.theory.modes(task_of(data.size))
    return int(np.argmin(np.abs(np.asarray(modes.s) - s) + np.abs(np.asarray(modes.d) - d)))


def spread(data: Data, depth: int) -> float:
    """Half-time of the weakest mode over that of the strongest, at the middle d."""
    s, d = data.size.s, data.size.d[1]
    last, first = (data.hits[depth][1, mode_at(data, v, d)] for v in (s[-1], s[0]))
    return float(last / first)


def sharpness(data: Data, depth: int) -> float:
    """Time from 10 to 90 % over the half-time, of the mode with the middle s and d."""
    t = data.hits[depth][:, mode_at(data, data.size.s[1], data.size.d[1])]
    return float((t[2] - t[0]) / t[1])


def numbers(data: Data) -> dict[str, Any]:
    """What the panels show."""
    found: dict[str, Any] = {"t": thin(data.aligned[2].ts), "modes (s, d)": _pairs(data)}
    for depth in data.size.depths:
        a = strengths(data.aligned[depth], task_of(data.size))
        if depth <= 2:
            found[f"strengths, {NAMES[depth]}"] = thin(a, 20)
        found[f"times at 10, 50, 90 % by mode, {NAMES[depth]}"] = data.hits[depth]
        found[f"half-time ~ s^a d^b, {NAMES[depth]}"] = exponents(data.size, data.hits[depth][1])
    found["errors of closed forms"] = data.exact
    for name, errors in data.errors.items():
        rows = np.quantile(errors, [0, 0.5, 1], axis=1).T
        found[f"error of isolated modes (least, median, largest by variance), {name}"] = rows
    found["other modes move by"] = data.moved
    found["superposition fails by"] = {NAMES[k]: v for k, v in data.bent.items()}
    found["loss above its chord, over L(0)"] = {NAMES[k]: v for k, v in data.hump.items()}
    return found


def _pairs(data: Data) -> np.ndarray:
    modes = fl.theory.modes(task_of(data.size))
    return np.stack([modes.s, modes.d], axis=1)


def judge(data: Data) -> list[Row]:
    """Verdicts: depth, what sets time course and fixed point; change of variables."""
    return [*_depth_rows(data), _course_row(data), *_theorem_rows(data), _random_row(data)]


def twice(value: float) -> tuple[float, float]:
    """A number that is the same for all seeds, as that of an aligned start, for `same`."""
    return value, value


def _depth_rows(data: Data) -> list[Row]:
    spreads = {k: spread(data, k) for k in data.size.depths}
    sharp = {k: sharpness(data, k) for k in data.size.depths}
    deep = [k for k in data.size.depths if k > 1]
    far = [apart(twice(spreads[k] - 1), TIMES) for k in deep]
    steeper = [both(sharp[k] < sharp[1], apart(twice(sharp[k] / sharp[1] - 1), TIMES))
               for k in deep]  # fmt: skip
    convex = data.hump[1] <= 1e-12
    return [
        Row(
            claim="A linear network does not have linear training dynamics: with depth its loss is "
            "not convex in the weights",
            quote="“linear network” ≠ “linear training dynamics” because depth makes training "
            "non-convex and highly structured",
            source="C, confusing things; C, the essentials",
            measured="product of the flow from the mean of two starts against the mean of the two "
            f"products, relative: one layer {data.bent[1].max():.1e}, two layers "
            f"{data.bent[2].min():.2f} to {data.bent[2].max():.2f} (three pairs); largest excess "
            "of the loss over its chord, halfway between two weights, over L(0): "
            + ", ".join(f"{NAMES[k]} {v:.2g}" for k, v in data.hump.items())
            + "; criterion: one layer linear and convex, deeper ones neither (how they are "
            "structured is in the next rows)",
            verdict=verdict(
                both(
                    bool(data.bent[1].max() < EXACT),
                    more(data.bent[2], EXACT),
                    convex and min(data.hump[k] for k in deep) > 0,
                )
            ),
        ),
        Row(
            claim="Depth changes the dynamics: modes are learned one after the other",
            quote="why depth changes dynamics",
            source="C, the essentials",
            measured=f"half-time at s = {data.size.s[-1]:g} over that at s = {data.size.s[0]:g}, "
            f"d = {data.size.d[1]:g}: "
            + ", ".join(f"{NAMES[k]} {v:.3g}" for k, v in spreads.items())
            + "; time from 10 to 90 % over the half-time: "
            + ", ".join(f"{sharp[k]:.3g}" for k in sharp)
            + f"; criterion: one layer the same, deeper ones apart and steeper, {TIMES}",
            verdict=verdict(both(same(twice(spreads[1] - 1), TIMES), *far, *steeper)),
        ),
    ]


def _course_row(data: Data) -> Row:
    """What doubling s, or d, changes of half-times and of final strengths, from two layers on."""
    size, modes = data.size, fl.theory.modes(task_of(data.size))
    times = {depth: exponents(size, data.hits[depth][1]) for depth in size.depths}
    final = {depth: exponents(size, ends(data, depth)) for depth in size.depths}
    course, end = (
        np.abs(2.0 ** np.array([powers[k] for k in powers if k > 1]) - 1)
        for powers in (times, final)
    )
    on = both(*(apart(twice(v), TIMES) for v in (*course[:, 0], *end[:, 1])))
    alone = [same(twice(v), TIMES) for v in (*course[:, 1], *end[:, 0])]
    rate = np.log(10) / (data.early[1] - data.early[0]) / 2
    off = np.max(np.abs(rate / np.asarray(modes.s) - 1))
    told = {
        name: ", ".join(f"{NAMES[k]} ~ s^{a:.3f} d^{b:.3f}" for k, (a, b) in powers.items())
        for name, powers in (("half", times), ("end", final))
    }
    return Row(
        claim="The time course of deep linear networks depends on the singular values of Sigma_yx, "
        "the fixed point on Sigma_x",
        quote="the time course depends on Σ_yx singular values while the fixed point depends on "
        "Σ_x",
        source="C, semantic development; M Sec. 5.2; erratum E19",
        measured=f"half-times of nine modes, a_0 = {size.start:g}: {told['half']} (two layers keep "
        "a logarithm of the ratio of full to initial strength, which holds d; an early mode's rate "
        f"is 2 s up to {off:.2g}); final strengths: {told['end']}: s/d, so on Sigma_yx as well; "
        "criterion: from two layers on doubling s changes half-times and doubling d the end, and, "
        f"where 'depends on' means on nothing else, not the other way round, {TIMES}",
        verdict=verdict({
            "'depends on' leaves room for more: the end depends on both": on,
            "'depends on' means on nothing else": both(on, *alone),
        }),
    )  # fmt: skip


def _theorem_rows(data: Data) -> list[Row]:
    size = data.size
    moved = {name: float(rows.max()) for name, rows in data.moved.items()}
    aligned, turned = moved["aligned"], moved["aligned, Sigma_x turned"]
    commutators = [float(fl.theory.modes(task_of(size, k)).commutator) for k in ("pairs", "turned")]
    falls = more(data.moved[f"random, distinct, variance {max(size.variances):g}"],
                 data.moved[f"random, distinct, variance {min(size.variances):g}"])  # fmt: skip
    drift = _drift(data)
    source = "C, exact dynamics (Saxe, McClelland and Ganguli 2014)"
    return [
        Row(
            claim="In the coordinates of the SVD of Sigma_yx the modes decouple, if Sigma_x is "
            "diagonal in them and weights are aligned to them; small weights that are not couple "
            "them the less, the smaller they are",
            quote="the SVD change of variables, balanced solutions, mode decoupling",
            source=source,
            measured="largest change of another mode when the strongest mode's initial weights are "
            "doubled, over that one's full strength: "
            + ", ".join(f"{k} {v:.1e}" for k, v in moved.items())
            + f" (two layers, {size.seeds} random starts; relative commutator of the covariances "
            f"{commutators[0]:.0e}, turned {commutators[1]:.2f}); criterion: below {EXACT:g} only "
            "where both conditions hold",
            verdict=verdict(both(aligned < EXACT, turned > EXACT, falls)),
            kind="theorem",
        ),
        Row(
            claim="Singular values have closed-form trajectories",
            quote="closed-form singular-value trajectories",
            source=source,
            measured="largest error relative to the flow (rtol 1e-10): "
            + ", ".join(f"{k} {v:.1e}" for k, v in data.exact.items()),
            verdict=verdict(max(data.exact.values()) < EXACT),
            kind="theorem",
        ),
        Row(
            claim="A balanced start stays balanced",
            quote="balanced solutions",
            source=source,
            measured="largest entry of W_{l+1}^T W_{l+1} - W_l W_l^T along the runs of two and "
            f"more layers: {drift:.1e}",
            verdict=verdict(drift < EXACT),
            kind="theorem",
        ),
    ]  # fmt: skip


def _random_row(data: Data) -> Row:
    """How well the closed forms describe small random starts."""
    size = data.size
    median = {kind: np.median(rows, axis=1) for kind, rows in data.errors.items()}
    curves = "; ".join(
        f"{kind}: {', '.join(f'{e:.2g}' for e in rows)}" for kind, rows in median.items()
    )
    close = {kind: same(rows[-1], MAPS, of=3) for kind, rows in data.errors.items()}
    fades = more(data.errors["distinct"][0], data.errors["distinct"][-1])
    words = {
        "distinct": "singular values apart",
        "pairs": "equal ones in threes, which grow together in a basis that the start sets",
        "turned": "Sigma_x not diagonal in the modes",
    }
    found = {True: "near", False: "far", None: "undecided"}
    return Row(
        claim="Whether the closed forms describe small random starts",
        source="C, exact dynamics; erratum: raw a0 may be negative",
        measured=f"largest error of isolated modes along the run, median over {size.seeds} seeds, "
        f"at variances {', '.join(f'{v:g}' for v in size.variances)}: {curves}; means at the "
        f"smallest {', '.join(f'{k} {interval(v[-1])}' for k, v in data.errors.items())}; "
        f"criterion: {MAPS} at the smallest",
        verdict="measured: "
        + "; ".join(f"{words[kind]}: {found[near]}" for kind, near in close.items())
        + {True: "; nearer the smaller", False: "; not nearer the smaller", None: ""}[fades],
        kind="control",
    )


def _drift(data: Data) -> float:
    """Largest entry that W_{l+1}^T W_{l+1} - W_l W_l^T takes during the aligned runs."""
    largest = 0.0
    for depth, flow in data.aligned.items():
        for layer in range(depth - 1):
            measure = functools.partial(fl.measures.conserved_matrix, layer=layer)
            largest = max(largest, float(jnp.max(jnp.abs(fl.measures.along(flow, measure)))))
    return largest


def draw(data: Data) -> Figure:
    """Two-layer modes; one mode by depth; half-times; errors by variance."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.0))
    _draw_modes(data, axes[0, 0])
    _draw_depths(data, axes[0, 1])
    _draw_times(data, axes[1, 0])
    variances = data.size.variances
    names = {"turned": r"$\Sigma_x$ turned", "pairs": "equal $s$ in threes",
             "distinct": "$s$ apart"}  # fmt: skip
    for k, (kind, name) in enumerate(names.items()):
        rows = np.quantile(data.errors[kind], [0, 0.5, 1], axis=1)
        bars = np.abs(rows[[0, 2]] - rows[1])
        axes[1, 1].errorbar(variances, rows[1], bars, fmt="osD"[k], linestyle="-", color=f"C{k}",
                            markersize=4, capsize=3, label=name)  # fmt: skip
    axes[1, 1].set(xscale="log", yscale="log", xlabel="variance of the initial weights",
                   ylabel="largest error of isolated modes\n(relative to the product)",
                   title="D. random starts, two layers")  # fmt: skip
    axes[1, 1].legend(fontsize="small", frameon=False)
    return figure


def _draw_modes(data: Data, ax: Any) -> None:
    size, flow, modes = data.size, data.aligned[2], fl.theory.modes(task_of(data.size))
    a = strengths(flow, task_of(size))
    closed = fl.theory.mode_strength(np.asarray(flow.ts)[:, None], modes.s, modes.d, size.start)
    for n, s in enumerate(size.s):
        for k in np.flatnonzero(np.isclose(modes.s, s)):
            ax.plot(flow.ts, a[:, k], color=f"C{n}", linestyle="-")
            ax.plot(flow.ts, closed[:, k], **fl.plot.look("theory"))
            ax.annotate(f"$d={float(modes.d[k]):g}$", (9.9 - 1.1 * n, a[-1, k]), fontsize=8,
                        color=f"C{n}", ha="right", va="bottom")  # fmt: skip
        ax.plot([], [], color=f"C{n}", linestyle="-", label=f"$s = {s:g}$")
    ax.plot([], [], **fl.plot.look("theory"), label="closed form")
    ax.set(
        xlim=(0, 10),
        ylim=(0, 1.3 * a[-1].max()),
        xlabel="flow time $t$ (units of $\\tau$)",
        ylabel=r"mode strength $a_\alpha$",
        title="A. two layers, all pairs of $s$ and $d$",
    )
    ax.legend(fontsize="small", frameon=False, ncols=2)


def _draw_depths(data: Data, ax: Any) -> None:
    k = mode_at(data, data.size.s[1], data.size.d[1])
    modes = fl.theory.modes(task_of(data.size))
    full = float(modes.full_strength[k])
    for n, (depth, flow) in enumerate(data.aligned.items()):
        a = strengths(flow, task_of(data.size))[:, k]
        ax.plot(flow.ts, a / full, color=f"C{n}", linestyle="-", label=NAMES[depth])
        closed = fl.theory.Mode(modes.s[k], modes.d[k], data.size.start, depth).strength(flow.ts)
        ax.plot(flow.ts, closed / full, **fl.plot.look("theory"),
                label=None if n else "closed form")  # fmt: skip
    ax.set(
        xlim=(0, 12),
        xlabel="flow time $t$ (units of $\\tau$)",
        ylabel=r"mode strength $a_\alpha d_\alpha / s_\alpha$",
        title=f"B. the mode $s = {data.size.s[1]:g}$, $d = {data.size.d[1]:g}$ by depth",
    )
    ax.legend(fontsize="small", frameon=False, loc="lower right")


def _draw_times(data: Data, ax: Any) -> None:
    s = np.geomspace(0.9 * min(data.size.s), 1.1 * max(data.size.s), 41)
    for n, depth in enumerate(data.size.depths[:3]):
        for m, d in enumerate(data.size.d):
            which = [mode_at(data, v, d) for v in data.size.s]
            ax.plot(data.size.s, data.hits[depth][1, which], "osD"[m], markersize=5,
                    color=f"C{n}")  # fmt: skip
            ax.plot(s, fl.theory.Mode(s, d, data.size.start, depth).half_time, linewidth=0.9,
                    linestyle="-", color=f"C{n}")  # fmt: skip
        ax.plot([], [], color=f"C{n}", linestyle="-", label=NAMES[depth])
    for m, d in enumerate(data.size.d):
        ax.plot([], [], "osD"[m], color="0.4", label=f"$d = {d:g}$")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=r"singular value $s$ of $\Sigma_{yx}$",
        ylabel="half-time (units of $\\tau$)",
        title="C. located half-times and closed forms",
    )
    ax.set_xticks(data.size.s, [f"{v:g}" for v in data.size.s])
    ax.minorticks_off()
    ax.set_ylim(top=4 * ax.get_ylim()[1])
    ax.legend(fontsize="small", frameon=False, ncols=2)


STUDY = Study("c_1_svd", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
