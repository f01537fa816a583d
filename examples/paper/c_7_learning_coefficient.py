r"""C: deep linear networks in singular learning theory: the learning coefficient, measured. See:
measured curves come to the closed form (left); what they come to lies on the diagonal (middle).

The volume of weights with $K(W) = \frac12 \|W_L \cdots W_1 - W^*\|^2 < \epsilon$ goes as
$\epsilon^\lambda (-\log \epsilon)^{m - 1}$, and the mean of K over the Gibbs measure
$e^{-\beta K}$ on a prior as $\beta \langle K \rangle = \lambda - (m - 1) / (\log \beta + const)$.
That mean is measured by annealed importance sampling: normal prior, beta from 1e-2 to 1e6,
resampling and Hamiltonian moves at every step. Lambda and the constant are fitted over the last two
decades with the closed form's m; every seed is a population of its own. W* has singular values 1.

The local coefficient at a point takes a prior of width .1 around it. Of the flow's end points from
small and from large weights it says how singular a solution the flow finds, up to the beta at which
what is left of K at the end counts.

    python examples/paper/c_7_learning_coefficient.py [--quick | --full]
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _judge import COEFFICIENTS, apart, both, half_width, interval, more, same, verdict
from _paper import Row, Study, fl
from matplotlib.figure import Figure
from scipy.optimize import curve_fit
from tqdm import tqdm

Case = tuple[tuple[int, ...], int]  # widths and rank
WIDTH = 0.1  # of the prior around a point


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `cases`: widths and ranks.
    - `particles`, `stages` (values of beta), `moves` per stage, `seeds`.
    - `last`: the largest beta.
    - `flow_case`, `norms`: of the flows, initial norms of the product; `flow_seeds`.
    """

    cases: tuple[Case, ...]
    particles: int = 500
    stages: int = 50
    moves: int = 5
    seeds: int = 5
    last: float = 1e6
    flow_case: Case = ((4, 4, 4, 4), 1)
    norms: tuple[float, float] = (1e-4, 100.0)
    flow_seeds: int = 5


CASES: tuple[Case, ...] = (
    ((2, 3), 1), ((1, 1, 1), 0), ((1, 1, 1, 1), 0), ((2, 2, 2), 0), ((2, 2, 2), 1),
    ((3, 2, 3), 1), ((2, 2, 2, 2), 0), ((3, 3, 3, 3), 1), ((4, 4, 4), 1), ((3, 5, 2), 1),
)  # fmt: skip
SIZES = {
    "quick": Size(CASES[1:4], 200, 30, 3, 2, 1e4, ((3, 3, 3), 1), flow_seeds=2),
    "default": Size(CASES),
    "full": Size((*CASES, ((5, 5, 5, 5, 5), 2)), particles=4_000, stages=120, moves=16, seeds=10),
}


@dataclasses.dataclass
class Data:
    """What was found.

    - `betas`; `curves`: beta <K> per case, (seeds, stages).
    - `local`: the same at the flows' end points by initial norm; `excess`: K there.
    """

    size: Size
    betas: np.ndarray
    curves: dict[Case, np.ndarray]
    local: dict[float, np.ndarray]
    excess: dict[float, np.ndarray]


def target_of(widths: tuple[int, ...], rank: int) -> np.ndarray:
    """A map with singular values one."""
    return np.eye(widths[-1], widths[0]) * (np.arange(widths[0]) < rank)


def product(weights: list[jax.Array]) -> jax.Array:
    """Of the layers, with leading axes."""
    return functools.reduce(lambda below, w: w @ below, weights)


@functools.partial(jax.jit, static_argnames=("moves",))
def anneal(
    centre: list[jax.Array], start: list[jax.Array], target: jax.Array, width: Any,
    betas: jax.Array, moves: int, key: jax.Array,
) -> jax.Array:  # fmt: skip
    """beta <K> at every beta, from particles of the prior N(centre, width^2)."""

    def energy(weights: list[jax.Array]) -> jax.Array:
        return 0.5 * jnp.sum((product(weights) - target) ** 2, axis=(-2, -1))

    def prior(weights: list[jax.Array]) -> jax.Array:
        parts = [jnp.sum((w - c) ** 2, (-2, -1)) for w, c in zip(weights, centre, strict=True)]
        return 0.5 * sum(parts) / width**2

    def stage(carry: Any, beta: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        weights, step = carry
        before, now, key = beta
        pick, key = jax.random.split(key)
        logs = -(now - before) * energy(weights)
        kept = jax.random.categorical(pick, logs, shape=logs.shape)
        weights = jax.tree.map(lambda w: w[kept], weights)

        def move(carry: Any, key: jax.Array) -> Any:
            weights, step = carry
            return hamiltonian(weights, step, lambda w: now * energy(w) + prior(w), key), None

        (weights, step), _ = jax.lax.scan(move, (weights, step), jax.random.split(key, moves))
        return (weights, step), now * jnp.mean(energy(weights))

    keys = jax.random.split(key, len(betas))
    before = jnp.concatenate([jnp.zeros(1), betas[:-1]])
    return jax.lax.scan(stage, (start, jnp.asarray(0.1)), (before, betas, keys))[1]


def hamiltonian(weights: Any, step: jax.Array, potential: Any, key: jax.Array) -> Any:
    """One move of all particles by ten leapfrog steps; a step that is accepted more or less often
    than at 80 % grows or shrinks."""
    slope = jax.grad(lambda w: jnp.sum(potential(w)))
    several, accept, jitter = jax.random.split(key, 3)
    keys = jax.random.split(several, len(weights))
    momenta = [jax.random.normal(k, w.shape) for k, w in zip(keys, weights, strict=True)]
    size = step * jax.random.uniform(jitter, minval=0.6, maxval=1.4)

    def leap(carry: Any, _: Any) -> Any:
        w, p = carry
        p = [a - 0.5 * size * g for a, g in zip(p, slope(w), strict=True)]
        w = [a + size * b for a, b in zip(w, p, strict=True)]
        return (w, [a - 0.5 * size * g for a, g in zip(p, slope(w), strict=True)]), None

    (there, turned), _ = jax.lax.scan(leap, (weights, momenta), length=10)

    def total(w: Any, p: Any) -> jax.Array:
        return potential(w) + 0.5 * sum(jnp.sum(a**2, axis=(-2, -1)) for a in p)

    gain = total(weights, momenta) - total(there, turned)
    taken = jnp.log(jax.random.uniform(accept, gain.shape)) < gain
    moved = [jnp.where(taken[:, None, None], b, a) for a, b in zip(weights, there, strict=True)]
    return moved, step * jnp.exp(0.3 * (jnp.mean(taken) - 0.8))


def sampled(case: Case, centre: Any, width: float, size: Size, betas: Any, seed: int) -> np.ndarray:
    """beta <K> of one population."""
    first, key = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(first, len(centre))
    start = [
        c + width * jax.random.normal(k, (size.particles, *c.shape))
        for k, c in zip(keys, centre, strict=True)
    ]
    target = jnp.asarray(target_of(*case))
    return np.asarray(anneal(centre, start, target, width, betas, size.moves, key))


def compute(size: Size) -> Data:
    """All cases and seeds."""
    betas = np.geomspace(1e-2, size.last, size.stages)
    data = Data(size, betas, {}, {}, {})
    for case in tqdm(size.cases, desc="cases", disable=None):
        shapes = zip(case[0][1:], case[0][:-1], strict=True)
        centre = [jnp.zeros(shape) for shape in shapes]
        data.curves[case] = np.array(
            [sampled(case, centre, 1.0, size, betas, seed) for seed in range(size.seeds)]
        )
    for norm in size.norms:
        curves, excess = [], []
        for seed in range(size.flow_seeds):
            network = flowed(size.flow_case, norm, seed)
            weights = list(network.weights)
            curves.append(sampled(size.flow_case, weights, WIDTH, size, betas, 100 + seed))
            off = np.asarray(product(weights)) - target_of(*size.flow_case)
            excess.append(0.5 * np.sum(off**2))
        data.local[norm], data.excess[norm] = np.array(curves), np.array(excess)
    return data


def flowed(case: Case, norm: float, seed: int) -> fl.LinearNetwork:
    """Where the flow ends from normal weights whose product has a norm."""
    widths, rank = case
    x = np.sqrt(widths[0]) * np.eye(widths[0])  # white
    task = fl.Task(x, x @ target_of(widths, rank).T, name="rank")
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=s) for s in zip(widths[1:], widths[:-1], strict=True)]
    now = np.linalg.norm(product(weights))  # pyright: ignore
    weights = [w * (norm / now) ** (1 / len(weights)) for w in weights]
    return fl.gradient_flow(fl.LinearNetwork(weights), task, 5_000.0, rtol=1e-8, observe={}).final


def fitted(betas: np.ndarray, curve: np.ndarray, multiplicity: int) -> float:
    """Lambda from the last two decades of beta <K>."""
    some = betas > betas[-1] / 101
    if multiplicity == 1:
        return float(curve[some].mean())

    def form(log_beta: np.ndarray, value: float, constant: float) -> np.ndarray:
        return value - (multiplicity - 1) / (log_beta + constant)

    found = curve_fit(form, np.log(betas[some]), curve[some], (1.0, 1.0),
                      bounds=([0, -2], [np.inf, 20]))  # fmt: skip
    return float(found[0][0])


def estimates(data: Data, case: Case) -> np.ndarray:
    """Measured lambda per seed."""
    multiplicity = fl.theory.learning_coefficient(*case).multiplicity
    return np.array([fitted(data.betas, curve, multiplicity) for curve in data.curves[case]])


def parameters(case: Case) -> int:
    """How many weights there are."""
    return sum(a * b for a, b in zip(case[0][1:], case[0][:-1], strict=True))


def named(case: Case) -> str:
    """Widths and rank in words."""
    return f"{'-'.join(map(str, case[0]))} rank {case[1]}"


def numbers(data: Data) -> dict[str, Any]:
    """Curves and estimates."""
    found: dict[str, Any] = {"beta": data.betas}
    for case, curves in data.curves.items():
        found[f"{named(case)}: beta <K>"] = curves.mean(axis=0)
        found[f"{named(case)}: closed, measured"] = [
            fl.theory.learning_coefficient(*case).coefficient, estimates(data, case).mean(),
        ]  # fmt: skip
    for norm, curves in data.local.items():
        found[f"flow from norm {norm:g}: beta <K>"] = curves.mean(axis=0)
    return found


def judge(data: Data) -> list[Row]:
    """Closed form against measured; what it is for; where flows end."""
    texts, off, means, below = [], [], [], {}
    for case in data.curves:
        closed, measured = fl.theory.learning_coefficient(*case), estimates(data, case)
        texts.append(
            f"{named(case)}: {closed.coefficient:.4g} (m = {closed.multiplicity}), measured "
            f"{interval(measured)}"
        )
        off.append(measured / closed.coefficient - 1)
        means.append(np.mean(off[-1]))
        if closed.coefficient < parameters(case) / 2:
            below[case] = 2 * measured / parameters(case)
    far = any(apart(v, COEFFICIENTS, len(off)) for v in off)
    return [
        Row(
            claim="The learning coefficient of deep linear networks has a closed form",
            quote="They seem to be used as a model in singular learning theory, once again for "
            "tractability",
            source="C, singular learning theory (Aoyagi 2024)",
            # Seeds are draws of one number: their mean is compared, case by case.
            measured=f"{'; '.join(texts)}; mean distance of the cases' means "
            f"{np.mean(np.abs(means)):.2g} ± {half_width(np.abs(means)):.2g} ({len(means)} cases); "
            f"criterion: {COEFFICIENTS} over cases, and no case apart",
            verdict=verdict(both(same(means, COEFFICIENTS), not far)),
            kind="theorem",
        ),
        Row(
            claim="Deep linear networks are singular: lambda is below half the number of weights",
            source="C, singular learning theory",
            measured="measured lambda over half the number of weights: "
            + ", ".join(f"{named(c)} {interval(v, 2)}" for c, v in below.items())
            + f"; a single layer is regular; criterion: below 1, {len(below)} comparisons",
            verdict=verdict(both(*(more(1.0, v, len(below)) for v in below.values()))),
            kind="theorem",
        ),
        _flow_row(data),
    ]


def _flow_row(data: Data) -> Row:
    closed = fl.theory.learning_coefficient(*data.size.flow_case)
    widths, _ = data.size.flow_case
    excess = max(float(v.max()) for v in data.excess.values())
    at = max(0, int(np.searchsorted(data.betas, 0.1 / excess)) - 1)
    small, large = (data.local[norm][:, at] for norm in data.size.norms)
    order = {True: "they do, by this measure", False: "they do not", None: "not seen"}
    settled = "" if small.mean() >= closed.coefficient else ", so the smaller has not settled"
    return Row(
        claim="Whether flows from small weights end at more singular solutions than from large "
        "ones",
        source="C, singular learning theory",
        measured=f"{named(data.size.flow_case)}: local beta <K> at beta = {data.betas[at]:.2g} "
        f"around the end of the flow from a product of norm {data.size.norms[0]:g}: "
        f"{interval(small)}, of norm {data.size.norms[1]:g}: {interval(large)}; the most singular "
        f"point has {closed.coefficient:g}{settled}, a generic one "
        f"{widths[0] * widths[-1] / 2:g}; K at the ends at most {excess:.1g}",
        verdict=f"measured: {order[more(large, small)]}",
        kind="control",
    )


def draw(data: Data) -> Figure:
    """beta <K> over beta; measured over closed; the flows' ends."""
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 3.8), width_ratios=(1.35, 1, 1))
    levels = levels_of(data)
    for (value, cases), colour in zip(levels.items(), fl.plot.shades("linear", len(levels)),
                                      strict=True):  # fmt: skip
        _draw_level(data, axes[0], value, cases, colour)
        for case in cases:
            found = estimates(data, case)
            axes[1].errorbar(value, found.mean(), half_width(found), fmt="o", color=colour,
                             markersize=4, capsize=3)  # fmt: skip
    axes[1].plot([0, max(levels)], [0, max(levels)], color="0.6", linestyle=":", zorder=0)
    last = np.log10(data.size.last)
    axes[0].set(xscale="log", ylabel=r"$\beta \langle K \rangle$", xlim=(5e-3, 10 ** (2.2 * last)),
                title=r"comes to $\lambda$ in closed form (dotted)",
                xticks=10.0 ** np.arange(-2, last + 1, 2))  # fmt: skip
    axes[0].minorticks_off()
    axes[0].set_xlabel(r"inverse temperature $\beta$", x=0.3)
    axes[1].set(xlabel=r"$\lambda$, closed form", ylabel=r"$\lambda$, measured",
                title="bars: 95 % over seeds")  # fmt: skip
    for n, (norm, curves) in enumerate(data.local.items()):
        axes[2].plot(data.betas, curves.mean(axis=0), color=f"C{n}", linestyle="-",
                     label=f"from norm {norm:g}")  # fmt: skip
    closed = fl.theory.learning_coefficient(*data.size.flow_case)
    axes[2].axhline(closed.coefficient, color="0.6", linestyle=":")
    axes[2].set(xscale="log", ylim=(-1.5, None), xlabel=r"inverse temperature $\beta$",
                ylabel=r"local $\beta \langle K \rangle$",
                title=f"around the flow's end,\n{named(data.size.flow_case)}")  # fmt: skip
    axes[2].legend(fontsize="small", frameon=False, loc="lower right")
    return figure


def levels_of(data: Data) -> dict[float, list[Case]]:
    """The cases of each coefficient, in closed form, in its order."""
    found: dict[float, list[Case]] = {}
    for case in data.curves:
        value = float(fl.theory.learning_coefficient(*case).coefficient)
        found.setdefault(value, []).append(case)
    return dict(sorted(found.items()))


def _draw_level(data: Data, ax: Any, value: float, cases: list[Case], colour: Any) -> None:
    """The curves that come to one coefficient, named behind their ends."""
    for n, case in enumerate(cases):
        ax.plot(data.betas, data.curves[case].mean(axis=0), ("-", "--", "-.")[n], color=colour)
    ax.plot(data.betas[[0, -1]], [value, value], color=colour, linestyle=":", linewidth=0.8)
    names = ", ".join("-".join(map(str, widths)) for widths, _ in cases)
    ax.text(2 * data.betas[-1], value, f"{names} rank {cases[0][1]}", fontsize="small",
            va="center")  # fmt: skip


STUDY = Study("c_7_learning_coefficient", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
