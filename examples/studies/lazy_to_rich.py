r"""The spread R of modes between ReLU and linear networks, from rich to lazy: with the initial
variance it grows to that of the linearised models, and so it does at negative lambda. Bars and
bands: from the least to the largest of 6 seeds.

    python examples/studies/lazy_to_rich.py [--quick] [--out FOLDER]

The half times of all modes in a ReLU network over those of the linear network with the same
weights, $r_\alpha$, and their spread R (`order_parameter.py`), where closed forms stand beside:

- **Scale.** Every unit has a twin with the opposite readout, so that networks start at zero output,
  and the initial variance alone leads from rich to lazy. Beside the exact flows the linearised
  models of both networks (`theory.lazy`, at finite width). At infinite width their kernels on
  inputs $\tilde x = [c; x]$ with one-hot x are sums of an identity and a constant: with the angle
  $\cos\phi = c^2 / (1 + c^2)$ between two samples,

  $$K_{lin} = 2 (c^2 + \delta_{pq}), \qquad K_{ReLU} = \delta_{pq} (1 + c^2)
    + (1 - \delta_{pq}) \Big[ c^2 \frac{\pi - \phi}{2 \pi}
    + (1 + c^2) \frac{\sin\phi + (\pi - \phi) \cos\phi}{2 \pi} \Big]$$

  in units of H v (Cho and Saul 2009; Jacot et al. 2018), so that there are two ratios, that of the
  mode that is constant over samples and that of all others, and **the lazy limit of R is a number
  of c and of how many strengths there are** (equal modes count as one).
- **lambda-balance**, $W_2^T W_2 - W_1 W_1^T = \lambda I$ (`LinearNetwork.balanced`), no bias: the
  linear network's exact solution is the matrix Riccati one, at every lambda (Domine et al. 2024).
  At positive lambda there are at most as many units as outputs, at negative ones as inputs; so the
  task has four modes, over 16 one-hot inputs and 21 outputs. As the columns of $W_2$ are then
  orthogonal, a lazy ReLU network of positive lambda learns of each sample only what its units span
  that are on: about half. So times are those of a quarter of full strength.
- **Delta** of `tasks.offset_xor`. A linear network learns two modes, the mean and the third
  coordinate, the latter at the rate $s = \Delta / \sqrt 2$. Units that are on for a set S of the
  four samples only grow at the largest singular value of $\sum_{S} y_p \tilde x_p^T / P$ (Y
  without its mean, which comes first): where that of any set that a plane can cut off is larger
  than s, ReLU should solve XOR first, r being the ratio of the rates. Nothing is fitted. It is too
  simple, and worse from smaller weights: the way to such a set is left out.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _studies import Study, driven_groups, fl, half_widths
from scipy.optimize import linprog, root_scalar
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `variances`, `strengths` (c), `width`: of the scan of scales.
    - `widths`: of linearised models alone; `held`: c of such ones, held out.
    - `lambdas`, `product`: of the scan of balance; variance of the factors of the initial product.
    - `deltas`, none of them one of `offsets` (c), where the modes have one strength: of the offset
      task; `unseen`: c held out; `small`: the variance of another scan of Delta, at c = 1.
    - `seeds` of everything; `t1`: end of the runs, in units of tau.
    """

    variances: tuple[float, ...] = (1e-5, 1e-3, 1e-2, 0.1, 1.0)
    strengths: tuple[float, ...] = (0.0, 1.0)
    width: int = 64
    widths: tuple[int, ...] = (64, 512, 4096)
    held: tuple[float, ...] = (0.3, 0.5, 2.0)
    lambdas: tuple[float, ...] = (-100.0, -10.0, -1.0, 0.0, 1.0, 10.0, 100.0)
    product: float = 1e-3
    deltas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.45, 0.55, 0.65, 0.85, 1.1, 1.4)
    offsets: tuple[float, ...] = (0.5, 1.0)
    unseen: tuple[float, ...] = (0.75,)
    small: float = 2e-8
    seeds: int = 6
    t1: float = 120.0


TREE = fl.tasks.hierarchy(levels=3)
KINDS = ("ReLU", "linear", "ReLU, lazy", "linear, lazy")


def mirrored(c: float, variance: float, width: int, seed: int) -> fl.ReLUNetwork:
    """A network whose units are twins with opposite readouts: its output is zero."""
    half = fl.ReLUNetwork.init(
        TREE, (width // 2,), variance, bias=c > 0, bias_strength=c or 1.0, key=jax.random.key(seed)
    )
    (w1, w2), (b1, _) = half.parameters
    bias = None if b1 is None else jnp.concatenate([b1, b1])
    weights = jnp.concatenate([w1, w1]), jnp.concatenate([w2, -w2], axis=1)
    return fl.ReLUNetwork(weights, (bias, None), bias_strength=c or 1.0)


def few_modes() -> fl.Task:
    """The upper three levels of a tree with 16 leaves, three times over."""
    tree = fl.tasks.hierarchy(levels=4)
    return fl.Task(tree.x, jnp.tile(tree.y[:, :7], 3), name="upper levels")


def balanced(task: fl.Task, balance: float, product: float, seed: int) -> fl.ReLUNetwork:
    """A lambda-balanced network of as many units as inputs."""
    linear = fl.LinearNetwork.balanced(
        task, task.inputs, product, bias=False, balance=balance, key=jax.random.key(seed)
    )
    return fl.ReLUNetwork(linear.weights)


def first_times(flow: fl.Trajectory, modes: fl.theory.Modes) -> np.ndarray:
    """Of the mode events, (G,), equal modes as one; NaN for none."""
    times = np.asarray(flow.events.first("mode"))[[own[0] for own in driven_groups(modes)]]
    return np.where(np.isfinite(times), times, np.nan)


def closed_times(
    outputs: Callable[[Any], Any], task: fl.Task, modes: fl.theory.Modes, share: float
) -> np.ndarray:
    """The same of a closed form of the outputs: between points of a grid, and of a finer one."""
    inputs = modes.augmented(task.x) @ modes.v
    level, groups = share * np.asarray(modes.s), driven_groups(modes)

    def gaps(ts: np.ndarray) -> np.ndarray:
        found = jnp.einsum("ok,tpo,pk->tk", modes.u, outputs(ts), inputs) / task.samples
        gap = np.asarray(found) - level
        return np.stack([gap[:, own].mean(axis=1) for own in groups], axis=1)

    coarse = np.concatenate([[0.0], np.geomspace(1e-5, 1e6, 999)])
    first = gaps(coarse)
    times = []
    for k in range(len(groups)):
        at = int(np.argmax(first[:, k] >= 0))
        if first[at, k] < 0 or at == 0:
            times.append(np.nan if first[at, k] < 0 else 0.0)
            continue
        fine = np.linspace(coarse[at - 1], coarse[at], 1000)
        gap = gaps(fine)[:, k]
        j = max(1, int(np.argmax(gap >= 0)))
        times.append(float(np.interp(0, gap[j - 1 : j + 1], fine[j - 1 : j + 1])))
    return np.array(times)


def lazy_times(network: Any, task: fl.Task, modes: fl.theory.Modes, share: float) -> np.ndarray:
    """Those of the linearised model, by its components: cheap at any width."""
    lazy = fl.theory.lazy(network, task)

    def outputs(ts: np.ndarray) -> jax.Array:
        left = jnp.exp(-ts[:, None] * lazy.eigenvalues) * lazy.error0
        error = np.sqrt(task.samples) * left @ lazy.vectors.T
        return task.y + error.reshape(len(ts), *task.y.shape)

    return closed_times(outputs, task, modes, share)


def four_times(
    network: fl.ReLUNetwork, task: fl.Task, c: float, share: float, t1: float
) -> np.ndarray:
    """Times of all modes in the four kinds, (4, G)."""
    modes = fl.theory.modes(task, c)
    events = fl.ModeHits(modes, share=share)
    both = network, network.linear()
    lazy = [lazy_times(one, task, modes, share) for one in both]
    # Lazy runs are over long before the others.
    last = 20 * np.max(lazy)
    t1 = min(t1, last) if np.isfinite(last) else t1
    flows = [
        fl.gradient_flow(one, task, t1, events=events, observe={}, rtol=1e-7, throw=False)
        for one in both
    ]
    return np.stack([*(first_times(flow, modes) for flow in flows), *lazy])


def spread(times: np.ndarray, over: int = 0, under: int = 1) -> np.ndarray:
    """R of times (..., kinds, modes) between two kinds."""
    return np.std(np.log(times[..., over, :] / times[..., under, :]), axis=-1)


def lazy_ratios(c: float, samples: int) -> tuple[float, float]:
    """r of the constant mode and of the others, from the kernels at infinite width."""
    phi = np.arccos(c**2 / (1 + c**2))
    both_on = (np.pi - phi) / (2 * np.pi)
    product = (1 + c**2) * (np.sin(phi) + (np.pi - phi) * np.cos(phi)) / (2 * np.pi)
    off, on = c**2 * both_on + product, 1 + c**2
    constant = 2 * (1 + samples * c**2) / (on + (samples - 1) * off)
    return constant, 2 / (on - off)


def lazy_spread(c: float, task: fl.Task) -> float:
    """R of these, over the G strengths of a task."""
    constant, other = lazy_ratios(c, task.samples)
    number = len(driven_groups(fl.theory.modes(task, c)))
    return np.sqrt(number - 1) / number * abs(np.log(constant / other))


def cut_off(x: np.ndarray) -> list[tuple[int, ...]]:
    """All sets of samples that a unit can be on for, without the others."""
    found = []
    for size in range(1, len(x) + 1):
        for chosen in itertools.combinations(range(len(x)), size):
            signs = np.where(np.isin(np.arange(len(x)), chosen), -1.0, 1.0)
            fits = linprog(
                np.zeros(x.shape[1]), A_ub=signs[:, None] * x, b_ub=-np.ones(len(x)),
                bounds=(None, None),
            )  # fmt: skip
            if fits.status == 0:
                found.append(chosen)
    return found


def set_rate(delta: float, c: float) -> float:
    """The largest rate at which units grow that are not on for all samples."""
    task = fl.tasks.offset_xor(delta)
    x = np.concatenate([np.full((task.samples, 1), c), np.asarray(task.x)], axis=1)
    y = np.asarray(task.y - task.y.mean(axis=0))
    rates = [
        np.linalg.svd(y[list(own)].T @ x[list(own)], compute_uv=False)[0] / task.samples
        for own in cut_off(x)
        if len(own) < task.samples
    ]
    return max(rates)


def parting(c: float) -> float:
    """Delta at which the linear mode is as fast as the fastest of these."""
    found = root_scalar(lambda x: x / np.sqrt(2) - set_rate(x, c), bracket=(0.05, 5.0), xtol=1e-6)
    return float(found.root)


@dataclasses.dataclass
class Data:
    """Times; the four kinds are ReLU, linear, and their linearised models.

    - `scale`: by c, (variances, seeds, kinds, modes).
    - `wide`: by c, of the linearised models alone, (widths, seeds, 2, modes).
    - `balance`: (lambdas, seeds, kinds, modes); `riccati`: the exact solution's (lambdas, seeds,
      modes).
    - `offset`: by c, of ReLU and linear, (deltas, seeds, 2, modes): the mean, the third coordinate;
      `small`: the same from smaller weights.
    """

    size: Size
    scale: dict[float, np.ndarray]
    wide: dict[float, np.ndarray]
    balance: np.ndarray
    riccati: np.ndarray
    offset: dict[float, np.ndarray]
    small: np.ndarray


def over_scale(c: float, size: Size) -> np.ndarray:
    """Of the tree, from rich to lazy."""
    return np.array(
        [
            [
                four_times(mirrored(c, variance, size.width, seed), TREE, c, 0.5, size.t1)
                for seed in range(size.seeds)
            ]
            for variance in tqdm(size.variances, f"scale, c = {c:g}")
        ]
    )


def over_width(c: float, size: Size) -> np.ndarray:
    """Of linearised models, whose ratios do not depend on the scale."""
    modes, rows = fl.theory.modes(TREE, c), []
    for width in tqdm(size.widths, f"width, c = {c:g}"):
        starts = [mirrored(c, 1 / width, width, seed) for seed in range(size.seeds)]
        rows.append(
            [[lazy_times(n, TREE, modes, 0.5) for n in (one, one.linear())] for one in starts]
        )
    return np.array(rows)


def over_balance(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Four kinds, and the exact solution."""
    task = few_modes()
    modes, found, exact = fl.theory.modes(task), [], []
    for balance in tqdm(size.lambdas, "lambda"):
        starts = [balanced(task, balance, size.product, seed) for seed in range(size.seeds)]
        found.append([four_times(one, task, 0.0, 0.25, size.t1) for one in starts])
        solutions = [fl.theory.solve(one.linear(), task) for one in starts]
        assert all(one.exact and one.name == "Riccati" for one in solutions)
        exact.append([closed_times(one.outputs, task, modes, 0.25) for one in solutions])
    return np.array(found), np.array(exact)


def over_delta(c: float, size: Size, variance: float = 2e-4) -> np.ndarray:
    """Of the offset task: the mean's mode first, then that of the third coordinate."""
    rows = []
    for delta in tqdm(size.deltas, f"Delta, c = {c:g}"):
        task = fl.tasks.offset_xor(delta)
        modes = fl.theory.modes(task, c)
        order = np.argsort(np.abs(np.asarray(modes.v)[0]))[::-1]
        event = fl.ModeHits(modes, share=0.5)
        row = []
        for seed in range(size.seeds):
            start = fl.ReLUNetwork.init(
                task, (size.width,), variance, bias=True, bias_strength=c, key=jax.random.key(seed)
            )
            flows = [
                fl.gradient_flow(one, task, 2 * size.t1, events=event, observe={}, rtol=1e-7)
                for one in (start, start.linear())
            ]
            row.append([first_times(flow, modes)[order] for flow in flows])
        rows.append(row)
    return np.array(rows)


def compute(size: Size) -> Data:
    """All runs."""
    balance, riccati = over_balance(size)
    return Data(
        size,
        {c: over_scale(c, size) for c in size.strengths},
        {c: over_width(c, size) for c in size.strengths + size.held},
        balance,
        riccati,
        {c: over_delta(c, size) for c in size.offsets + size.unseen},
        over_delta(1.0, size, size.small),
    )


def text(rows: np.ndarray) -> str:
    """Mean and 95 % interval of seeds."""
    fine = rows[np.isfinite(rows)]
    if len(fine) < 2:
        return "none"
    left = f" ({len(fine)} seeds)" if len(fine) < len(rows) else ""
    return f"{fine.mean():.4g} \u00b1 {half_widths(fine):.2g}{left}"


def over(times: np.ndarray, kind: int, other: int) -> np.ndarray:
    """Geometric mean over modes of times over others, (..., seeds)."""
    return np.exp(np.mean(np.log(times[..., kind, :] / times[..., other, :]), axis=-1))


def findings(data: Data) -> list[str]:
    """In sentences."""
    size, lines = data.size, []
    for c, found in data.scale.items():
        for variance, own in zip(size.variances, found, strict=True):
            lines.append(
                f"scale, c = {c:g}, variance {variance:g}: R {text(spread(own))}, of the "
                f"linearised models {text(spread(own, 2, 3))}; ReLU over linear "
                f"{text(over(own, 0, 1))}, over its linearised model {text(over(own, 0, 2))}"
            )
    for c, found in data.wide.items():
        held = ", held out" if c in size.held else ""
        constant, other = lazy_ratios(c, 8)
        for width, own in zip(size.widths, found, strict=True):
            ratios = own[:, 0] / own[:, 1]
            lines.append(
                f"linearised, c = {c:g}{held}, width {width}: R {text(spread(own))}, derived "
                f"{lazy_spread(c, TREE):.4g}; r of the constant mode {text(ratios[:, 0])}, derived "
                f"{constant:.4g}; of the others {text(ratios[:, 1:].mean(axis=1))}, derived "
                f"{other:.4g}"
            )
    worst = np.nanmax(np.abs(data.balance[..., 1, :] / data.riccati - 1))
    lines.append(f"linear flow against the Riccati solution: times differ by up to {worst:.1e}")
    for value, own in zip(size.lambdas, data.balance, strict=True):
        lines.append(
            f"lambda = {value:g}: R {text(spread(own))}, of the linearised models "
            f"{text(spread(own, 2, 3))}; ReLU over Riccati {text(over(own, 0, 1))}, over its "
            f"linearised model {text(over(own, 0, 2))}; a quarter of strengths not reached: "
            f"{int(np.isnan(own[:, 0]).sum())} of {own[:, 0].size}"
        )
    return lines + offset_findings(data)


def offset_findings(data: Data) -> list[str]:
    """Those of the offset task."""
    size, lines = data.size, []
    scans = [(c, ", held out" if c in size.unseen else "", row) for c, row in data.offset.items()]
    for c, held, found in [*scans, (1.0, f", variance {size.small:g}", data.small)]:
        lines.append(f"offset, c = {c:g}{held}: rates part at Delta = {parting(c):.3f}")
        for delta, own in zip(size.deltas, found, strict=True):
            r = own[:, 0] / own[:, 1]
            lines.append(
                f"offset, c = {c:g}{held}, Delta = {delta:g}: r of the mean {text(r[:, 0])}, of "
                f"the third coordinate {text(r[:, 1])}, rates {slower(delta, c):.3f}; R "
                f"{text(spread(own))}"
            )
    return lines


def slower(delta: float, c: float) -> float:
    """The ratio of times that the rates allow."""
    return min(1.0, delta / np.sqrt(2) / set_rate(delta, c))


def draw(data: Data) -> plt.Figure:
    """R and ratios of times over scale and lambda."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 8), layout="constrained")
    _draw_scale(axes[0], data)
    _draw_balance(axes[1], data)
    _label(axes[0, 0])
    axes[0, 1].set_ylim(top=60)
    return figure


def draw_offset(data: Data) -> plt.Figure:
    r"""Offset XOR over $\Delta$. See: for each c the spread R of half times of ReLU over linear is
    near zero at one of them, where ReLU is a slowed linear network (A). At small ones it learns the
    third coordinate earlier than the linear network (below the grey line), at large ones later (B).
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
    at = np.asarray(data.size.deltas)
    colours = fl.plot.shades("relu", len(data.offset) + 1)[1:]
    for (c, found), colour in zip(sorted(data.offset.items()), colours, strict=True):
        _line(axes[0], at, spread(found), fmt="-o", color=colour, label=f"c = {c:g}")
        axes[0].axvline(parting(c), color=colour, linewidth=0.9, linestyle="--",
                        label=f"rates part, c = {c:g}")  # fmt: skip
        _line(axes[1], at, found[:, :, 0, 1] / found[:, :, 1, 1], fmt="o", color=colour,
              label=f"c = {c:g}")  # fmt: skip
        fine = np.linspace(at[0], at[-1], 60)
        axes[1].plot(fine, [slower(delta, c) for delta in fine], "-", color=colour, linewidth=0.9,
                     label=f"rates, c = {c:g}")  # fmt: skip
    r = data.small[:, :, 0, 1] / data.small[:, :, 1, 1]
    _line(axes[1], at, r, fmt="x", color=fl.plot.COLOURS["gated"],
          label=f"c = 1, variance {data.size.small:g}")  # fmt: skip
    axes[0].set_title("A. Offset XOR")
    axes[1].axhline(1, color="0.7", linewidth=0.8)
    axes[1].set(xlabel=r"$\Delta$", ylabel="$r$ of the third coordinate",
                title="B. The linear mode")  # fmt: skip
    axes[0].set_xlabel(r"$\Delta$")
    for ax in axes:
        ax.legend(fontsize="small")
    _label(axes[0])
    return figure


def _label(ax: plt.Axes) -> None:
    """Of a panel that shows R, with room for the legend."""
    ax.set(ylim=(0, 1.55 * ax.get_ylim()[1]), ylabel="spread $R$ over modes")


def _line(ax: plt.Axes, at: Any, rows: np.ndarray, **how: Any) -> None:
    """Means over seeds (points, seeds), where most have one; bars from the least to the largest."""
    few = np.isfinite(rows).mean(axis=1) < 0.75
    rows = np.where(few[:, None], np.nan, rows)
    middle = [np.nan if no else np.nanmean(row) for row, no in zip(rows, few, strict=True)]
    bars = np.abs(np.array([np.fmin.reduce(rows, axis=1), np.fmax.reduce(rows, axis=1)]) - middle)
    ax.errorbar(at, middle, bars, markersize=4, capsize=2, **how)


def _draw_scale(axes: Any, data: Data) -> None:
    at = data.size.variances
    for (c, found), colour in zip(data.scale.items(), ("gated", "relu"), strict=False):
        shade = fl.plot.COLOURS[colour]
        _line(axes[0], at, spread(found), fmt="-o", color=shade, label=f"flows, c = {c:g}")
        lazy = spread(found, 2, 3)[0]  # at every variance
        axes[0].axhline(lazy.mean(), color=shade, linestyle=":", label=f"linearised, c = {c:g}")
        axes[0].axhspan(lazy.min(), lazy.max(), color=shade, alpha=0.12, linewidth=0)
        axes[0].axhline(lazy_spread(c, TREE), color=shade, linewidth=0.7, linestyle="--",
                        label=f"infinitely wide, c = {c:g}")  # fmt: skip
        _line(axes[1], at, over(found, 0, 1), fmt="-o", color=shade,
              label=f"linear, c = {c:g}")  # fmt: skip
        _line(axes[1], at, over(found, 0, 2), fmt=":s", color=shade,
              label=f"its linearised model, c = {c:g}")  # fmt: skip
    axes[0].set_title("A. Rich to lazy")
    axes[1].set(ylabel="time of ReLU, over that of", title="B. From linear to linearised",
                yscale="log")  # fmt: skip
    axes[1].axhline(1, color="0.7", linewidth=0.8)
    for ax in axes:
        ax.set(xscale="log", xlabel="initial variance")
        ax.legend(fontsize="small", loc="upper right")


def _draw_balance(axes: Any, data: Data) -> None:
    at = data.size.lambdas
    shade = fl.plot.COLOURS["gated"]  # as above
    for kind, label, look in ((1, "linear (Riccati)", "-o"), (2, "its linearised model", ":s")):
        _line(axes[1], at, over(data.balance, 0, kind), fmt=look, color=shade, label=label)
    _line(axes[0], at, spread(data.balance), fmt="-o", color=shade, label="flows")
    beside = 1.15 * np.array(at)
    _line(axes[0], beside, spread(data.balance, 2, 3), fmt=":s", color=shade, label="linearised")
    axes[0].set(title=r"C. $\lambda$-balanced weights, c = 0", yscale="log", ylim=(0.005, 50),
                ylabel="spread $R$ over modes")  # fmt: skip
    axes[1].set(ylabel="time of ReLU, over that of", yscale="log",
                title="D. Times of a quarter of full strength",
                xlabel=r"$\lambda$ of $W_2^T W_2 - W_1 W_1^T = \lambda I$")  # fmt: skip
    axes[1].axhline(1, color="0.7", linewidth=0.8)
    axes[1].set_ylim(0.02, 50)
    for ax in axes:
        ax.set_xlabel(axes[1].get_xlabel())
        ax.set_xscale("symlog", linthresh=1)
        ax.set_xlim(1.5 * at[0], 1.5 * at[-1])
        ax.legend(fontsize="small")


QUICK = Size((0.1,), (0.0,), 16, (64,), (), (-10.0,), 1e-2, (0.85,), (1.0,), (), seeds=2, t1=30.0)
STUDY = Study(
    name="lazy_to_rich",
    quick=QUICK,
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
    others={"_offset": draw_offset},
)

if __name__ == "__main__":
    STUDY.main(__doc__)
