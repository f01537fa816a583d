"""C, third part: the low-rank simplicity bias of deep linear networks.

Gradient flow of one to four layers on two linear teachers. One has white inputs and four singular
values apart (8 inputs and outputs): the plateaus and their ranks are looked at, from i.i.d. normal
starts of several sizes. The other has rank 2, label noise and half as many samples as inputs, for
what the bias does for generalisation. The starts of all depths have products of the same norm,
which is what "initial variance" means between depths; the weights' variance follows from it.

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
from _judge import interval
from _paper import Row, Study, fl
from _tree import thin
from matplotlib.figure import Figure
from tqdm import tqdm

NEAR = 0.1  # relative distance from the best map of a rank that counts as being there


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`, `depths`, `hidden`: runs; `norms` of the initial product over the teacher's.
    - `spectrum`, `inputs`: of the first teacher.
    - `noisy_*`: of the second: inputs, samples, standard deviation of the noise, initial norm.
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
    """Runs by (depth, norm), of all seeds; noisy ones by depth; ranks of large random starts."""

    size: Size
    runs: dict[tuple[int, float], list[Run]]
    noisy: dict[int, list[Run]]
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


def run(task: fl.Task, teacher: np.ndarray, network: fl.LinearNetwork, size: Size) -> Run:
    """The flow, measured at times that are equidistant in log t."""
    u, s, vt = np.linalg.svd(teacher)
    some = int(np.sum(s > 1e-9 * s[0]))
    maps = np.stack([(u[:, :k] * s[:k]) @ vt[:k] for k in range(1, some + 1)])
    ts = np.concatenate([[0], np.geomspace(1e-2, size.t1, size.points - 1)])
    flow = fl.gradient_flow(network, task, size.t1, ts=ts, rtol=1e-6)
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
    return Data(size, runs, noisy, {depth: _start_ranks(depth) for depth in size.depths})


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


def surely_falls(groups: Any) -> bool:
    """Whether every group's mean lies below the one before by 1.96 standard errors or more."""
    pairs = itertools.pairwise([(v.mean(), v.var(ddof=1) / len(v)) for v in groups])
    return all(a - b > 1.96 * np.sqrt(p + q) for (a, p), (b, q) in pairs)


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
    found["rank of random products by depth"] = {k: v.mean() for k, v in data.starts.items()}
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts: small starts, depth, generalisation."""
    return [*_small_rows(data), *_depth_rows(data), *_noise_rows(data)]


def _small_rows(data: Data) -> list[Row]:
    size, rows, target = data.size, [], truncated_ranks(data.size)
    for depth in size.depths:
        near = {norm: np.median(over(data.runs[depth, norm], closest), axis=0)[:-1]
                for norm in size.norms}  # fmt: skip
        at = np.median(over(data.runs[depth, size.norms[-1]], plateau_ranks), axis=0)
        largest = [float(near[norm].max()) for norm in size.norms]
        text = ", ".join(f"{n:g}: {v:.2g}" for n, v in zip(size.norms, largest, strict=True))
        layers = "one layer" if depth == 1 else f"{depth} layers"
        rows.append(
            Row(
                f"Small starts pass through solutions of rank 1, 2, 3 on the way to 4 ({layers})",
                "C Sec. 1, low-rank simplicity bias",
                "least relative distance from the teacher's best maps of rank 1 to 3, the largest "
                f"of the three, median over {size.seeds} seeds, by initial norm: {text}; effective "
                f"ranks there at the smallest {', '.join(f'{v:.3g}' for v in at[:-1])}, of the "
                f"best maps {', '.join(f'{v:.3g}' for v in target[:-1])}",
                "does not hold"
                if largest[-1] > NEAR
                else "holds"
                if largest[0] < NEAR
                else "holds under a condition: small enough starts",
            )
        )
    return rows


def _depth_rows(data: Data) -> list[Row]:
    size, rows = data.size, []
    for norm in (size.norms[0], size.norms[-1]):
        mean = {k: over(data.runs[k, norm], midway) for k in size.depths}
        means = np.array([v.mean() for v in mean.values()])
        rows.append(
            Row(
                f"Depth strengthens the bias to low rank during training (initial norm {norm:g})",
                "C Sec. 1, low-rank simplicity bias",
                "effective rank between 90 and 10 % of the initial loss: "
                + ", ".join(f"{_layers(k)} {interval(v)}" for k, v in mean.items()),
                "does not hold"
                if means[0] - means[1] < 0.05
                else "holds"
                if surely_falls(mean.values())
                else "holds under a condition: from one layer to more, not beyond",
            )
        )
    ranks = np.array([data.starts[k].mean() for k in size.depths])
    rows.append(
        Row(
            "Depth lowers the effective rank of random starts already",
            "C Sec. 1, low-rank simplicity bias (Huh et al. 2023)",
            "products of random 32 x 32 matrices: "
            + ", ".join(f"{_layers(k)} {v:.3g}" for k, v in zip(size.depths, ranks, strict=True)),
            "holds" if np.all(np.diff(ranks) < 0) else "does not hold",
        )
    )
    last = {k: over(data.runs[k, size.norms[-1]], lambda r: r.rank[-1]).mean() for k in size.depths}
    spread = max(last.values()) / min(last.values()) - 1
    rows.append(
        Row(
            "The bias persists at convergence",
            "C Sec. 1, low-rank simplicity bias (Huh et al. 2023)",
            "effective rank when the run ends, teacher of rank 4, more samples than inputs: "
            + ", ".join(f"{_layers(k)} {v:.4g}" for k, v in last.items()),
            "does not hold" if spread < 0.01 else "holds",
        )
    )
    return rows


def _noise_rows(data: Data) -> list[Row]:
    best = {k: over(runs, lambda r: r.test.min()) for k, runs in data.noisy.items()}
    last = {k: over(runs, lambda r: r.test[-1]) for k, runs in data.noisy.items()}
    rank = {k: over(runs, lambda r: r.rank[-1]) for k, runs in data.noisy.items()}
    means = np.array([v.mean() for v in best.values()])
    ends = np.array([v.mean() for v in last.values()])

    def listed(values):
        return ", ".join(f"{_layers(k)} {interval(v)}" for k, v in values.items())

    what = (
        f"rank-2 teacher, {data.size.noisy_samples} samples of {data.size.noisy_inputs} inputs, "
        f"noise {data.size.noise:g}, initial norm {data.size.noisy_norm:g}"
    )
    return [
        Row(
            "The bias helps generalisation: early stopping finds a better map in deeper networks",
            "C Sec. 1, consequences for generalization",
            f"least test error along the run ({what}): {listed(best)}",
            "does not hold"
            if means[1] > 0.98 * means[0]
            else "holds"
            if surely_falls(best.values())
            else "holds under a condition: from one layer to more, not beyond",
        ),
        Row(
            "It helps generalisation without early stopping as well",
            "C Sec. 1, consequences for generalization",
            f"test error when the run ends: {listed(last)}; effective rank there {listed(rank)}: "
            "small starts of every depth end at the interpolation of least norm",
            "does not hold" if np.ptp(ends) < 0.02 * ends.mean() else
            "holds" if surely_falls(last.values()) else "does not hold",
        ),
    ]  # fmt: skip


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
        tests = np.mean([r.test for r in data.noisy[depth]], axis=0)
        ts = data.noisy[depth][0].ts
        axes[1, 1].plot(ts, tests, color=f"C{n}", linestyle="-", label=_layers(depth))
    axes[1, 0].set(xscale="log", yscale="log",
                   xlabel="norm of the initial product over the teacher's",
                   ylabel="relative distance from the best\nmap of rank 1, 2 or 3 (worst)",
                   title="C. how low in rank the intermediate solutions are")  # fmt: skip
    axes[1, 1].set(xscale="log", xlim=(1e-2, size.t1), xlabel="flow time $t$ (units of $\\tau$)",
                   ylabel="test error (half squared error)",
                   title="D. noisy teacher of rank 2, mean over seeds")  # fmt: skip
    for ax in axes.flat:
        ax.legend(fontsize="small", frameon=False)
    axes[0, 1].get_legend().set_title("initial norm")
    return figure


def _layers(depth: int) -> str:
    return "one layer" if depth == 1 else f"{depth} layers"


STUDY = Study("c_3_low_rank", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
