"""C, third part: the low-rank simplicity bias of deep linear networks. See: from small starts the
rank of deep products climbs in steps, and that of one layer does not (A); the deeper, the nearer to
the best map of each rank (C).

Gradient flow of one to four layers on three linear teachers. One has white inputs and four singular
values apart (8 inputs and outputs): the plateaus and their ranks are looked at, from i.i.d. normal
starts of several sizes. Another has rank 2, label noise and half as many samples as inputs. On both
the map at convergence is determined by least squares and the start, whatever the depth. The third
is a matrix of rank 2 of which fewer entries are measured than it has (matrix completion, as in
Arora et al. 2019), so that a bias to low rank has room at convergence. The starts of all depths
have products of the same norm, which is what "initial variance" means between depths; the weights'
variance follows from it.

The text gives no numbers; Huh et al. (2023), whom it quotes, define the rank by the entropy of the
singular values, here `effective_rank`, exp of it.

    python examples/paper/c_3_low_rank.py [--quick | --full]
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import COEFFICIENTS, MAPS, apart, both, interval, more, same, verdict
from _paper import Row, Study, fl
from _tree import thin
from matplotlib.figure import Figure
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`, `depths`, `hidden`: runs; `norms` of the initial product over the teacher's.
    - `spectrum`, `inputs`: of the first teacher.
    - `noisy_*`: of the second: inputs, samples, standard deviation of the noise, initial norm.
    - `side`, `measured`: of the third: rows and columns, entries that are measured.
    - `t1`, `points`: largest end of the flow, saved times (equidistant in log t).
    """

    seeds: int
    depths: tuple[int, ...] = (1, 2, 3, 4)
    norms: tuple[float, ...] = (0.3, 1e-1, 1e-2, 1e-3, 1e-4)
    hidden: int = 12
    spectrum: tuple[float, ...] = (4.0, 2.0, 1.0, 0.5)
    inputs: int = 8
    noisy_inputs: int = 24
    noisy_samples: int = 12
    noisy_norm: float = 1e-3
    noise: float = 0.5
    side: int = 12
    measured: int = 84
    t1: float = 400.0
    points: int = 241


SIZES = {
    "quick": Size(2, depths=(1, 2), norms=(0.3, 1e-4)),
    "default": Size(10),
    "full": Size(50),
}


@dataclasses.dataclass
class Run:
    """A run: times, losses, and of the product rank, distance from the maps of rank k, over norm.

    - `near`: (T, K), relative distance from the teacher's best map of rank 1, ..., K.
    - `test`: (T,), squared error on new inputs.
    """

    ts: np.ndarray
    losses: np.ndarray
    rank: np.ndarray
    near: np.ndarray
    test: np.ndarray


@dataclasses.dataclass
class Data:
    """Runs by (depth, norm), of all seeds; others by depth; ranks of large random starts."""

    size: Size
    runs: dict[tuple[int, float], list[Run]]
    noisy: dict[int, list[Run]]
    completion: dict[int, list[Run]]
    starts: dict[int, np.ndarray]


@functools.lru_cache
def clean_task(size: Size) -> tuple[fl.Task, np.ndarray]:
    """White inputs, the teacher's spectrum; and the teacher."""
    task = fl.tasks.teacher(2 * size.inputs, size.spectrum, size.inputs, size.inputs, whiten=True)
    return task, np.asarray(task.y.T @ task.x) / task.samples


@functools.lru_cache
def noisy_task(size: Size) -> tuple[fl.Task, np.ndarray]:
    """Fewer samples than inputs, a teacher of rank 2, label noise; and the teacher."""
    rng, n = np.random.default_rng(0), size.noisy_inputs
    u, v = (np.linalg.qr(rng.normal(size=(n, 2)))[0] for _ in range(2))
    teacher = (u * [3.0, 2.0]) @ v.T
    x = rng.normal(size=(size.noisy_samples, n))
    y = x @ teacher.T + size.noise * rng.normal(size=x.shape)
    return fl.Task(x, y, name="noisy"), teacher


def completion_task(size: Size, seed: int) -> tuple[fl.Task, np.ndarray]:
    """Entries of a matrix of rank 2; targets of those that are not measured are 0."""
    rng, n = np.random.default_rng(100 + seed), size.side
    u, v = (np.linalg.qr(rng.normal(size=(n, 2)))[0] for _ in range(2))
    teacher = (u * [3.0, 2.0]) @ v.T
    seen = np.zeros(n * n)
    seen[rng.permutation(n * n)[: size.measured]] = 1
    # Inputs sqrt(n) e_i: the loss is half the squared error over the measured entries.
    return fl.Task(np.sqrt(n) * np.eye(n), np.sqrt(n) * (teacher * seen.reshape(n, n)).T), teacher


def of_measured(output: Any, target: Any) -> Any:
    """Half the squared error of the entries that are measured."""
    return 0.5 * jnp.sum(jnp.where(target != 0, output - target, 0.0) ** 2)


def start(task: fl.Task, depth: int, hidden: int, norm: float, seed: int) -> fl.LinearNetwork:
    """I.i.d. normal layers, scaled alike until the product has the norm."""
    rng = np.random.default_rng(seed)
    sizes = [task.inputs, *(hidden,) * (depth - 1), task.outputs]
    shapes = zip(sizes[1:], sizes[:-1], strict=True)
    weights = [rng.normal(size=shape) / np.sqrt(shape[1]) for shape in shapes]
    now = np.linalg.norm(functools.reduce(np.matmul, weights[::-1]))
    return fl.LinearNetwork([w * (norm / now) ** (1 / depth) for w in weights])


def measured(network: fl.LinearNetwork, task: Any, teacher: Any, maps: Any) -> dict[str, Any]:
    """Rank and distances of the product."""
    del task
    product = network.affine()[0]
    return {
        "rank": fl.measures.effective_rank(product),
        "near": jnp.linalg.norm(product - maps, axis=(1, 2)) / jnp.linalg.norm(maps, axis=(1, 2)),
        "test": 0.5 * jnp.sum((product - teacher) ** 2),
    }


def run(
    task: fl.Task, teacher: np.ndarray, network: fl.LinearNetwork, size: Size, loss: Any = None
) -> Run:
    """The flow, measured at times that are equidistant in log t."""
    u, s, vt = np.linalg.svd(teacher)
    some = int(np.sum(s > 1e-9 * s[0]))
    maps = np.stack([(u[:, :k] * s[:k]) @ vt[:k] for k in range(1, some + 1)])
    ts = np.concatenate([[0], np.geomspace(1e-2, size.t1, size.points - 1)])
    how = {} if loss is None else {"loss": loss}
    flow = fl.gradient_flow(network, task, size.t1, ts=ts, rtol=1e-6, **how)
    found = fl.measures.along(
        flow, jax.tree_util.Partial(measured, teacher=jnp.asarray(teacher), maps=jnp.asarray(maps))
    )
    rows = {name: np.asarray(v) for name, v in found.items()}
    return Run(ts, np.asarray(flow.losses), rows["rank"], rows["near"], rows["test"])


def compute(size: Size) -> Data:
    """All runs."""
    runs: dict[tuple[int, float], list[Run]] = {}
    keys = [(depth, norm, k) for depth in size.depths for norm in size.norms
            for k in range(size.seeds)]  # fmt: skip
    task, teacher = clean_task(size)
    scale = float(np.linalg.norm(teacher))
    for depth, norm, seed in tqdm(keys, desc="plateaus", disable=None):
        network = start(task, depth, size.hidden, norm * scale, seed)
        runs.setdefault((depth, norm), []).append(run(task, teacher, network, size))
    noisy: dict[int, list[Run]] = {}
    task, teacher = noisy_task(size)
    scale = float(np.linalg.norm(teacher))
    for depth in size.depths:
        for seed in range(size.seeds):
            network = start(task, depth, size.noisy_inputs, size.noisy_norm * scale, seed)
            noisy.setdefault(depth, []).append(run(task, teacher, network, size))
    completion: dict[int, list[Run]] = {}
    for depth, seed in itertools.product(size.depths, range(size.seeds)):
        task, teacher = completion_task(size, seed)
        norm = size.noisy_norm * float(np.linalg.norm(teacher))
        network = start(task, depth, size.side, norm, seed)
        completion.setdefault(depth, []).append(run(task, teacher, network, size, of_measured))
    ranks = {depth: _start_ranks(depth) for depth in size.depths}
    return Data(size, runs, noisy, completion, ranks)


def _start_ranks(depth: int) -> np.ndarray:
    """Effective rank of products of random square matrices of 32 units, 20 draws."""
    rng = np.random.default_rng(depth)
    products = [functools.reduce(np.matmul, rng.normal(size=(depth, 32, 32))) for _ in range(20)]
    return np.asarray(fl.measures.effective_rank(np.stack(products)))


# What is measured


def midway(one: Run) -> float:
    """Mean effective rank while the loss goes from 90 to 10 % of the initial one.

    Averaged over log loss, not time, so that fast and slow depths are compared alike.
    """
    share = one.losses / one.losses[0]
    levels = np.geomspace(0.9, 0.1, 40)
    return float(np.mean(np.interp(levels, share[::-1], one.rank[::-1])))


def closest(one: Run) -> np.ndarray:
    """Least relative distance from the best maps of rank 1, 2, ... over the run, (K,)."""
    return one.near.min(axis=0)


def plateau_ranks(one: Run) -> np.ndarray:
    """Effective rank where the run is closest to the best map of rank k, (K,)."""
    return one.rank[one.near.argmin(axis=0)]


def truncated_ranks(size: Size) -> np.ndarray:
    """Effective ranks of the teacher's best maps of rank 1, 2, ..., (K,)."""
    return np.array([
        float(fl.measures.effective_rank(np.diag(size.spectrum[:k])))
        for k in range(1, len(size.spectrum) + 1)
    ])  # fmt: skip


def over(runs: list[Run], function: Any) -> np.ndarray:
    """A number of every seed's run."""
    return np.array([function(one) for one in runs])


def falls(groups: Any, of: int = 1) -> list[bool | None]:
    """Whether every group is less than the one before, paired."""
    pairs = list(itertools.pairwise(groups))
    return [more(a, b, of * len(pairs)) for a, b in pairs]


def numbers(data: Data) -> dict[str, Any]:
    """Curves of seed 0, ranks by depth and norm, test errors."""
    found: dict[str, Any] = {"t": thin(data.runs[2, data.size.norms[-1]][0].ts)}
    found["effective ranks of the teacher's best maps"] = truncated_ranks(data.size)
    for (depth, norm), runs in data.runs.items():
        name = f"{depth} layers, norm {norm:g}"
        if norm in (data.size.norms[0], data.size.norms[-1]):
            found[f"rank, {name}"] = thin(runs[0].rank, 30)
        found[f"mean rank midway, {name}"] = over(runs, midway).mean()
        found[f"distance from best maps (median), {name}"] = np.median(over(runs, closest), axis=0)
        found[f"rank there (median), {name}"] = np.median(over(runs, plateau_ranks), axis=0)
    for depth, runs in data.noisy.items():
        rows = np.array([[r.test.min(), r.test[-1], r.rank[-1]] for r in runs])
        found[f"noisy, {depth} layers: least and last test error, last rank"] = rows.mean(axis=0)
    for depth, runs in data.completion.items():
        rows = np.array([[r.losses[-1] / r.losses[0], missed(r), r.rank[-1]] for r in runs])
        found[f"completion, {depth} layers: last loss, error, last rank"] = rows.mean(axis=0)
    found["rank of random products by depth"] = {k: v.mean() for k, v in data.starts.items()}
    return found


def missed(one: Run) -> float:
    """Last error of the map over that at the start, which is nearly zero."""
    return float(one.test[-1] / one.test[0])


def judge(data: Data) -> list[Row]:
    """Verdicts: small starts, what is left at convergence, generalisation, depth."""
    return [_small_row(data), _end_row(data), *_depth_rows(data), *_determined_rows(data)]


def _listed(values: dict[int, np.ndarray]) -> str:
    return ", ".join(f"{_layers(k)} {interval(v)}" for k, v in values.items())


def _steps(found: list[bool | None]) -> str:
    """What `falls` says, in words."""
    words = {True: "lower than", False: "higher than", None: "not seen to differ from"}
    return ", ".join(f"{_layers(k + 1)} {words[f]} {_layers(k)}" for k, f in enumerate(found, 1))


def _small_row(data: Data) -> Row:
    size, target = data.size, truncated_ranks(data.size)
    far = {
        key: over(runs, closest)[:, :-1].max(axis=1) for key, runs in data.runs.items()
    }  # of all but the last rank
    texts = []
    for depth in size.depths:
        at = np.median(over(data.runs[depth, size.norms[-1]], plateau_ranks), axis=0)[:-1]
        by_norm = ", ".join(f"{norm:g}: {interval(far[depth, norm], 2)}" for norm in size.norms)
        texts.append(f"{_layers(depth)} {by_norm} (ranks {', '.join(f'{v:.3g}' for v in at)})")
    deep = [same(far[k, size.norms[-1]], MAPS, len(size.depths)) for k in size.depths[1:]]
    shallow = apart(far[size.depths[0], size.norms[-1]], MAPS, len(size.depths))
    return Row(
        claim="Low-rank structure emerges: from small starts deep linear networks pass through "
        "solutions of rank 1, 2, 3",
        quote="why low-rank, semantic structure emerges",
        source="C, first paragraph",
        measured="least relative distance from the teacher's best maps of rank 1 to 3, the largest "
        "of the three, by layers and initial norm, and median effective ranks there: "
        f"{'; '.join(texts)}; the best maps have {', '.join(f'{v:.3g}' for v in target[:-1])}; "
        f"criterion: at the smallest norm two and more layers near, one layer not, {MAPS}, "
        f"{len(size.depths)} comparisons",
        verdict=verdict(both(*deep, shallow)),
    )


def _end_row(data: Data) -> Row:
    """Rank and error at convergence where the data leave room: matrix completion."""
    size, deep = data.size, data.size.depths[1:]
    rank, error, left = (
        {k: over(runs, what) for k, runs in data.completion.items()}
        for what in (lambda r: r.rank[-1], missed, lambda r: r.losses[-1] / r.losses[0])
    )
    found = [
        more(values[size.depths[0]], values[k], 2 * len(deep))
        for values in (rank, error)
        for k in deep
    ]
    return Row(
        claim="Deep linear networks have a bias to low rank, which helps generalisation",
        quote="“low-rank simplicity bias” and its consequences for feature learning and "
        "generalization in linear (and near-linear) regimes",
        source="C, low-rank simplicity bias (Huh et al. 2023)",
        measured=f"matrix completion, {size.side} x {size.side}, rank 2, {size.measured} of "
        f"{size.side**2} entries measured, initial norm {size.noisy_norm:g}, losses at most "
        f"{max(v.max() for v in left.values()):.1g} of the first: effective rank {_listed(rank)} "
        f"(the matrix itself: 1.96); squared error of the map over that of zero {_listed(error)}; "
        f"criterion: both lower for two and more layers than for one, paired, {len(found)} "
        "comparisons",
        verdict=verdict(both(*found)),
    )


def _depth_rows(data: Data) -> list[Row]:
    """Does more depth do more: during training, at the start, with early stopping."""
    size = data.size
    means = {
        norm: {k: over(data.runs[k, norm], midway) for k in size.depths}
        for norm in (size.norms[0], size.norms[-1])
    }
    during = {norm: falls(mean.values(), of=2) for norm, mean in means.items()}
    names = [f"norm {norm:g}: {_listed(mean)}" for norm, mean in means.items()]
    best = {k: over(runs, lambda r: r.test.min()) for k, runs in data.noisy.items()}
    source = "C, low-rank simplicity bias (Huh et al. 2023)"
    return [
        Row(
            claim="Whether every further layer strengthens the bias to low rank during training",
            source=source,
            measured="effective rank between 90 and 10 % of the initial loss, by initial "
            f"{'; '.join(names)}; criterion: falls with every layer, paired",
            verdict="measured: "
            + "; ".join(f"from norm {norm:g} {_steps(found)}" for norm, found in during.items()),
            kind="control",
        ),
        Row(
            claim="Depth lowers the effective rank of random starts already",
            source=source,
            measured=f"products of random 32 x 32 matrices (seeds: draws): {_listed(data.starts)}; "
            "criterion: falls with every layer",
            verdict=verdict(both(*falls(data.starts.values()))),
            kind="control",
        ),
        Row(
            claim="Whether early stopping finds a better map in deeper networks",
            source=source,
            measured=f"least test error along the run ({_noisy(size)}): {_listed(best)}; criterion:"
            " falls with every layer, paired",
            verdict=f"measured: {_steps(falls(best.values()))}",
            kind="control",
        ),
    ]


def _noisy(size: Size) -> str:
    return (
        f"rank-2 teacher, {size.noisy_samples} samples of {size.noisy_inputs} inputs, noise "
        f"{size.noise:g}, initial norm {size.noisy_norm:g}"
    )


def _determined_rows(data: Data) -> list[Row]:
    """Where least squares, and a small start, leave no room for a bias at convergence."""
    size = data.size
    final = {k: over(data.runs[k, size.norms[-1]], lambda r: r.rank[-1]) for k in size.depths}
    last = {k: over(runs, lambda r: r.test[-1]) for k, runs in data.noisy.items()}
    rank = {k: over(runs, lambda r: r.rank[-1]) for k, runs in data.noisy.items()}

    def alike(values: dict[int, np.ndarray]) -> str:
        one, *deeper = values.values()
        found = both(*(same(v / one - 1, COEFFICIENTS, len(deeper)) for v in deeper))
        words = {True: "the same at every depth", False: "not the same", None: "undecided"}
        return f"measured: {words[found]}"

    how = f"criterion: relative difference from one layer, which is least squares, {COEFFICIENTS}"

    return [
        Row(
            claim="The rank at convergence where least squares is determined, and a bias has no "
            "room",
            source="C, low-rank simplicity bias (Huh et al. 2023)",
            measured=f"teacher of rank 4, more samples than inputs: {_listed(final)}; {how}",
            verdict=alike(final),
            kind="control",
        ),
        Row(
            claim="The test error at convergence where least squares and a small start determine "
            "the map: the interpolation of least norm",
            source="C, consequences for generalization",
            measured=f"{_noisy(size)}: {_listed(last)}; effective rank there {_listed(rank)}; "
            f"{how}",
            verdict=alike(last),
            kind="control",
        ),
    ]


def draw(data: Data) -> Figure:
    """Rank over loss by depth and by norm; distances from low-rank maps; test error."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.2))
    size, small = data.size, data.size.norms[-1]
    for n, depth in enumerate(size.depths):
        one = data.runs[depth, small][0]
        axes[0, 0].plot(one.ts, one.rank, color=f"C{n}", linestyle="-", label=_layers(depth))
    for level in truncated_ranks(size):
        axes[0, 0].axhline(level, color="0.75", linewidth=0.7, linestyle="-", zorder=0)
    axes[0, 0].set(xscale="log", xlim=(1e-2, size.t1), ylim=(0.9, size.inputs),
                   xlabel="flow time $t$ (units of $\\tau$)",
                   ylabel="effective rank of the product",
                   title=f"A. by depth, initial norm {small:g}; grey: best maps")  # fmt: skip
    deep = 2
    for n, norm in enumerate(size.norms):
        one = data.runs[deep, norm][0]
        axes[0, 1].plot(one.losses / one.losses[0], one.rank, color=f"C{n}", linestyle="-",
                        label=f"{norm:g}")  # fmt: skip
    axes[0, 1].set(xscale="log", xlim=(1.1, 1e-3), ylim=(0.9, size.inputs),
                   xlabel="loss / initial loss (falls to the right)",
                   ylabel="effective rank of the product",
                   title=f"B. by initial norm, {deep} layers")  # fmt: skip
    for n, depth in enumerate(size.depths):
        rows = [over(data.runs[depth, norm], closest)[:, :-1].max(axis=1) for norm in size.norms]
        middle = np.median(rows, axis=1)
        bars = np.abs(np.quantile(rows, [0.1, 0.9], axis=1) - middle)
        axes[1, 0].errorbar(size.norms, middle, bars, fmt="osD^"[n], linestyle="-", color=f"C{n}",
                            markersize=4, capsize=3, label=_layers(depth))  # fmt: skip
        those = data.completion[depth]
        tests = np.array([r.test / r.test[0] for r in those])
        how, ts = {"color": f"C{n}", "linestyle": "-"}, those[0].ts
        axes[1, 1].plot(ts, tests.T, linewidth=0.6, alpha=0.3, **how)
        axes[1, 1].plot(ts, np.median(tests, axis=0), label=_layers(depth), **how)
    axes[1, 0].set(xscale="log", yscale="log",
                   xlabel="norm of the initial product over the teacher's",
                   ylabel="relative distance from the best\nmap of rank 1, 2 or 3 (worst)",
                   title="C. how low in rank the intermediate solutions are")  # fmt: skip
    axes[1, 1].set(xscale="log", xlim=(1e-1, size.t1), ylim=(0, None),
                   xlabel="flow time $t$ (units of $\\tau$)",
                   ylabel="squared error over that of zero",
                   title=f"D. {size.measured} of {size.side**2} entries of a rank-2 matrix "
                   "(median)")  # fmt: skip
    for ax in axes.flat:
        ax.legend(fontsize="small", frameon=False)
    axes[0, 1].get_legend().set_title("initial norm")
    return figure


def _layers(depth: int) -> str:
    return "one layer" if depth == 1 else f"{depth} layers"


STUDY = Study("c_3_low_rank", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
