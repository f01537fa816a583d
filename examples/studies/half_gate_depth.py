r"""The half-gate law in deep networks, and which of two hidden layers makes ReLU late.
See: measured factors (filled) lie at the Gaussian law's triangles, not at the aligned law's (A). As
starts get smaller they fall towards $\sqrt 2$ (B). Points held out (green) lie as near to the
diagonal as others (C).

    python examples/studies/half_gate_depth.py [--quick] [--out FOLDER]

A mode of L balanced layers has one weight w in each, and strength $a = w^L$. Where a share $g_l$
of the units of hidden layer l is on, and the others are lost, layer l of weights starts at
$w_l^2 = w^2 f_l$. Neighbours' differences are conserved, so with $w_l^2 = w^2 f_l + y$ and
$a^2 = \prod_l (w^2 f_l + y)$ the flow is $\tau \dot y = 2 a (s - d a)$ (Saxe et al. 2014; Arora et
al. 2018). For two layers of weights this is the half-gate law, $\Delta t = (\tau / 2s) \ln 2$ for
g = 1/2. For more of them the early time is not a logarithm, and from small weights **all modes are
late by one factor**, whatever their strength and start,

$$\frac{t(g)}{t(1)} = \Big(\frac L2 - 1\Big) \int_0^\infty \frac{dy}{\prod_l \sqrt{f_l + y}}.$$

What f is depends on what the weights between hidden layers are; $f_1 = g_1$, $f_L = g_{L-1}$.

- **Aligned**: a mode is one pattern of each layer, of which the length $\sqrt{g_l}$ is left, so
  $f_l = g_{l-1} g_l$. Factors pi / 2 for two hidden layers at g = 1/2, 1.246 for one of the two,
  4 ln 2 for three.
- **Gaussian**: nothing is aligned yet, and weights between the units that are on are a smaller
  Gaussian matrix, of norm $\propto \sqrt{g_{l-1} H} + \sqrt{g_l H}$, so
  $f_l = (\sqrt{g_{l-1}} + \sqrt{g_l})^2 / 4$. If all layers are ReLU that is a linear network of
  half the width: factors $\sqrt 2$ and 2.

From weights that are not small the integral ends where a = s / 2d; w is then that of the balanced
mode (`theory.Mode.start_for`) with the linear network's half time. Nothing is fitted; but the
Gaussian law was derived after the aligned one was seen to be late, so `fresh` settings are held out
for it.

Measured: half times of the modes of the semantic tree, in networks with a bias on the first layer
and ReLU in all hidden layers or in some, over those of the linear networks with the same weights.
A network that is ReLU in some of its layers is no kind of the library: any Equinox module descends,
and descent's half times at the rate used are held against the exact walk. Beside the law stand
linear networks of half the width, and those of each ReLU network's own units: those that are on
for all samples at twice the time at which the bias mode is half learned, from t = 0 on.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _studies import Study, bootstrap, driven_groups, fl, half_widths
from scipy.integrate import quad
from scipy.optimize import root_scalar
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Setting:
    """A task, of so many levels of the tree, and initial weights.

    - `width`: of each of `layers` hidden layers; `scale`: width times variance.
    - `gated`: by hidden layer whether it is ReLU; the others are linear.
    """

    gated: tuple[bool, ...] = (True, True)
    width: int = 32
    scale: float = 0.32
    c: float = 1.0
    levels: int = 3

    @property
    def name(self) -> str:
        """In words."""
        on = "+".join(str(k + 1) for k, g in enumerate(self.gated) if g)
        return (
            f"{len(self.gated)} hidden layers of {self.width}, ReLU in {on}, "
            f"H variance {self.scale:g}, c = {self.c:g}, {2**self.levels} leaves"
        )


BOTH, THREE = (True, True), (True, True, True)


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `settings`: what is measured; `held`: what was not looked at before the aligned law, `fresh`
      before either.
    - `walked`: seeds of the first setting of which the exact walk is made, up to `walk`.
    - `rate` of descent; `t1`: its end, in units of tau.
    """

    settings: tuple[Setting, ...] = (
        Setting(), Setting((True, False)), Setting((False, True)),
        Setting(scale=0.08), Setting(scale=0.16), Setting(scale=0.64),
        Setting(width=16), Setting(width=64), Setting(width=128),
        Setting(c=0.0), Setting((True, False), c=0.0), Setting((False, True), c=0.0),
        Setting(THREE, width=64, scale=0.64),
    )  # fmt: skip
    held: tuple[Setting, ...] = (
        Setting(width=48, scale=0.24, c=0.7), Setting(levels=2, width=64, scale=0.2),
        Setting((True, False), levels=2, width=64, scale=0.2),
        Setting((False, True), levels=2, width=64, scale=0.2),
        Setting(THREE, width=96, scale=0.5, levels=2),
    )  # fmt: skip
    fresh: tuple[Setting, ...] = (
        Setting(width=96, scale=0.12, c=1.5), Setting((True, False), width=96, scale=0.12, c=1.5),
        Setting(THREE, width=128, scale=0.4, levels=2),
    )  # fmt: skip
    seeds: int = 10
    walked: int = 3
    walk: float = 14.0
    rate: float = 5e-3
    t1: float = 80.0


class PartlyReLU(eqx.Module):
    """A network whose hidden layers are ReLU or linear, one by one; a bias c b on the first."""

    weights: tuple[jax.Array, ...]
    bias: jax.Array | None
    gated: tuple[bool, ...] = eqx.field(static=True)
    c: float = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The output of one sample."""
        h = self.weights[0] @ x
        h = h if self.bias is None else h + self.c * self.bias
        for w, gated in zip(self.weights[1:], self.gated, strict=True):
            h = w @ (jax.nn.relu(h) if gated else h)
        return h


def start(one: Setting, seed: int, width: int = 0) -> fl.ReLUNetwork:
    """The ReLU network at the start; of another width with the same variance."""
    layers = len(one.gated)
    bias = (one.c > 0,) + layers * (False,)
    return fl.ReLUNetwork.init(
        fl.tasks.hierarchy(levels=one.levels), layers * (width or one.width,),
        one.scale / one.width, bias=bias, bias_strength=one.c or 1.0, key=jax.random.key(seed),
    )  # fmt: skip


def layer_factors(gated: Sequence[bool], aligned: bool, share: float = 0.5) -> np.ndarray:
    """f_l of every layer of weights."""
    g = np.array([1.0, *(share if one else 1.0 for one in gated), 1.0])
    if aligned:
        return g[1:] * g[:-1]
    inner = (np.sqrt(g[1:-2]) + np.sqrt(g[2:-1])) ** 2 / 4
    return np.array([g[1], *inner, g[-2]])


def limit(gated: Sequence[bool], aligned: bool) -> float:
    """By what factor modes are late from small weights; L > 2."""
    f = layer_factors(gated, aligned)
    whole, _ = quad(lambda y: 1 / np.sqrt(np.prod(f + y)), 0, np.inf, epsabs=1e-12)
    return (len(f) / 2 - 1) * whole


@jax.jit
def start_of(s: float, d: float, depth: float, half_time: float) -> Any:
    """Strength from which a balanced mode is half learned at this time."""
    return fl.theory.Mode(s, d, depth=depth).start_for(s / (2 * d), half_time)


def late(
    gated: Sequence[bool], aligned: bool, s: float, d: float, linear: float, share: float = 0.5
) -> float:
    """The same for a mode that the linear network half learns at the time `linear`."""
    f = layer_factors(gated, aligned, share)
    w = float(start_of(s, d, float(len(f)), linear)) ** (1 / len(f))

    def strength(y: float) -> float:
        return float(np.sqrt(np.prod(w**2 * f + y)))

    most = (s / (2 * d)) ** (2 / len(f))
    end = float(root_scalar(lambda y: strength(y) - s / (2 * d), bracket=(0, most)).root)

    def slow(log_y: float) -> float:  # evenly spread over the scales of y
        a = strength(np.exp(log_y))
        return np.exp(log_y) / (2 * a * (s - d * a))

    least = np.log(1e-10 * w**2)
    whole, _ = quad(slow, least, np.log(end), limit=200)
    return whole / linear


def half_times(network: eqx.Module, task: fl.Task, modes: fl.theory.Modes, size: Size) -> Any:
    """Of all modes, equal ones as one, by descent, interpolated between steps, (G,); NaN where
    there is none by t1."""
    run = fl.gradient_descent(
        network, task, size.rate, t1=size.t1, interpolate=True, ts=[size.t1],
        events=fl.ModeHits(modes, share=0.5),
    )  # fmt: skip
    return mode_times(run, modes)


def mode_times(run: fl.Trajectory, modes: fl.theory.Modes) -> np.ndarray:
    """Of a run, (G,), equal modes as one."""
    times = np.asarray(run.events.first("mode"))[[own[0] for own in driven_groups(modes)]]
    return np.where(np.isfinite(times), times, np.nan)


def own_units(
    first: fl.ReLUNetwork, task: fl.Task, time: float, size: Size
) -> fl.GatedLinearNetwork:
    """The linear network of the units that are on for all samples at a time, from t = 0."""
    there = fl.gradient_descent(first, task, size.rate, t1=time, ts=[time]).final
    gates = tuple(jnp.all(z > 0, axis=0).astype(float) for z in there.preactivations(task.x))
    return fl.GatedLinearNetwork(first.weights, first.biases, first.bias_strength, gates=gates)


@dataclasses.dataclass
class Found:
    """Half times (seeds, G) of one setting, whose groups of equal modes have s and d (G,).

    - `half`: of linear networks of half the width; `own`: of the ReLU network's own units, where
      all layers are ReLU, and `share`: how many these are, (seeds, layers).
    """

    name: str
    groups: list[list[int]]
    s: np.ndarray
    d: np.ndarray
    gated: tuple[bool, ...]
    relu: np.ndarray
    linear: np.ndarray
    half: np.ndarray
    own: np.ndarray
    share: np.ndarray

    def factors(self, times: np.ndarray) -> np.ndarray:
        """Times over those of the linear networks, (seeds, G)."""
        return times / self.linear

    def law(self, group: int, aligned: bool) -> float:
        """What a law says of a group, from the linear networks' mean half time."""
        s, d = float(self.s[group]), float(self.d[group])
        return late(self.gated, aligned, s, d, float(np.nanmean(self.linear[:, group])))

    def spread(self) -> np.ndarray:
        """The order parameter R, (seeds,)."""
        return np.std(np.log(self.factors(self.relu)), axis=1)


def geometric(rows: np.ndarray) -> np.ndarray:
    """Mean over seeds, (..., G); NaN where none has any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.exp(np.nanmean(np.log(rows), axis=0))


def measured(one: Setting, size: Size) -> Found:
    """All runs of a setting."""
    task = fl.tasks.hierarchy(levels=one.levels)
    modes = fl.theory.modes(task, one.c)
    groups = driven_groups(modes)
    rows: dict[str, list[Any]] = {k: [] for k in ("relu", "linear", "half", "own", "share")}
    none = len(one.gated) * (False,)
    for seed in tqdm(range(size.seeds), one.name):
        first, narrow = start(one, seed), start(one, seed, one.width // 2)

        def partly(network: fl.ReLUNetwork, gated: tuple[bool, ...]) -> np.ndarray:
            model = PartlyReLU(network.weights, network.biases[0], gated, one.c)
            return half_times(model, task, modes, size)

        relu = partly(first, one.gated)
        rows["relu"].append(relu)
        rows["linear"].append(partly(first, none))
        rows["half"].append(partly(narrow, none))
        whole = all(one.gated) and one.c > 0 and np.isfinite(relu[0])
        own = own_units(first, task, 2 * relu[0], size) if whole else None
        nothing = np.full(len(groups), np.nan)
        rows["own"].append(nothing if own is None else half_times(own, task, modes, size))
        shares = (
            [np.nan for _ in none] if own is None else [float(g.mean()) for g in own.given_gates]
        )
        rows["share"].append(shares)
    arrays = {k: np.array(v, dtype=float) for k, v in rows.items()}
    s, d = (np.asarray(v)[[own[0] for own in groups]] for v in (modes.s, modes.d))
    return Found(one.name, groups, s, d, one.gated, **arrays)


@dataclasses.dataclass
class Data:
    """By setting, in the order of the size; `walk`: half times of the first setting, by the exact
    walk and by descent, (seeds, modes) each, NaN after the walk's end."""

    size: Size
    settings: list[Found]
    held: list[Found]
    fresh: list[Found]
    walk: tuple[np.ndarray, np.ndarray]


def walked(size: Size, found: Found) -> tuple[np.ndarray, np.ndarray]:
    """Half times by the exact walk, and by descent."""
    one = size.settings[0]
    task = fl.tasks.hierarchy(levels=one.levels)
    modes, rows = fl.theory.modes(task, one.c), []
    event = fl.ModeHits(modes, share=0.5)
    for seed in tqdm(range(size.walked), "exact"):
        flow = fl.gradient_flow(
            start(one, seed), task, size.walk, events=event, observe={}, rtol=1e-6
        )
        rows.append(mode_times(flow, modes))
    return np.array(rows), found.relu[: size.walked]


def compute(size: Size) -> Data:
    """All runs."""
    settings = [measured(one, size) for one in size.settings]
    held, fresh = ([measured(one, size) for one in more] for more in (size.held, size.fresh))
    return Data(size, settings, held, fresh, walked(size, settings[0]))


def findings(data: Data) -> list[str]:
    """In sentences."""
    walk, descent = data.walk
    both = (descent / walk)[np.isfinite(descent / walk)]
    lines = [
        "limits of small weights, aligned and Gaussian: "
        + "; ".join(
            f"{name} {limit(gated, True):.4f}, {limit(gated, False):.4f}"
            for name, gated in (
                ("two hidden layers", BOTH), ("one of the two", (True, False)), ("three", THREE),
            )
        ),
        f"descent's half times over those of the exact walk, {both.size} of them: "
        f"{both.min(initial=2):.4f} to {both.max(initial=0):.4f}",
    ]  # fmt: skip
    for how, rows in (
        ("", data.settings), (", held out of the aligned law", data.held),
        (", held out", data.fresh),
    ):  # fmt: skip
        lines += [f"{found.name}{how}: {described(found)}" for found in rows]
    return lines


def described(found: Found) -> str:
    """One setting."""
    factors, half, own = (found.factors(one) for one in (found.relu, found.half, found.own))
    middle = geometric(factors)
    low, high = bootstrap(geometric, factors)
    parts = []
    for k, group in enumerate(found.groups):
        aligned, free = (found.law(k, one) / middle[k] for one in (True, False))
        text = (
            f"modes {group[0]}-{group[-1]} late by {middle[k]:.3f} ({low[k]:.3f} to {high[k]:.3f}),"
            f" aligned law {aligned:.2f} of it, Gaussian {free:.2f}"
        )
        if all(found.gated):
            text += f", linear networks of half the width {geometric(half)[k] / middle[k]:.2f}"
        if k < 2 and np.isfinite(own[:, k]).sum() > 2:
            there = np.isfinite(own[:, k])
            related = np.corrcoef(np.log(own[there, k]), np.log(factors[there, k]))[0, 1]
            text += f", own units {geometric(own)[k] / middle[k]:.2f}, by seed r = {related:.2f}"
        parts.append(text)
    spread, missing = found.spread(), int(np.isnan(found.relu).sum())
    spread = spread[np.isfinite(spread)]
    tail = f"R = {spread.mean():.3f} \u00b1 {half_widths(spread):.2g}"
    if np.isfinite(found.share).all():
        tail += f"; own units by layer {', '.join(f'{u:.2f}' for u in found.share.mean(axis=0))}"
    return "; ".join([*parts, tail]) + (f"; {missing} half times missing" if missing else "")


def draw(data: Data) -> plt.Figure:
    """Factors by mode; over the scale; all settings' bias modes; the order parameter by layer."""
    figure, axes = plt.subplots(2, 2, figsize=(10.2, 7.8), layout="constrained")
    _draw_modes(axes[0, 0], data)
    _draw_scales(axes[0, 1], data)
    _draw_held(axes[1, 0], data)
    _draw_layers(axes[1, 1], data)
    return figure


def _bars(ax: plt.Axes, at: Any, factors: np.ndarray, **how: Any) -> None:
    """Means over seeds with their intervals."""
    middle, low, high = (
        np.atleast_1d(z) for z in (geometric(factors), *bootstrap(geometric, factors))
    )
    ax.errorbar(at, middle, (middle - low, high - middle), capsize=2, markersize=5, **how)


def _named(found: Found) -> str:
    on = "+".join(str(k + 1) for k, one in enumerate(found.gated) if one)
    return f"ReLU in layer {on}"


def _draw_modes(ax: plt.Axes, data: Data) -> None:
    shown = data.settings[:3]
    colours = fl.plot.shades("relu", len(shown) + 1)[1:]
    for k, (colour, found) in enumerate(zip(colours, shown, strict=True)):
        at = np.arange(len(found.groups))
        _bars(ax, at + 0.06 * (k - 1), found.factors(found.relu), fmt="o", color=colour,
              label=_named(found))  # fmt: skip
        for aligned, mark in ((True, "^"), (False, "v")):
            laws = [found.law(g, aligned) for g in range(len(at))]
            ax.plot(at + 0.06 * (k - 1), laws, mark, markersize=6, markerfacecolor="none",
                    color=colour)  # fmt: skip
    first = shown[0]
    ax.plot(at, geometric(first.factors(first.half)), "x", color=fl.plot.COLOURS["linear"],
            label="linear, half the width")  # fmt: skip
    names = [f"{own[0]}" if len(own) == 1 else f"{own[0]} to {own[-1]}" for own in first.groups]
    ax.set_xticks(at, names)
    ax.set(xlabel="modes of one strength, strongest first", ylabel="half time over linear one's",
           title="A. Two layers of 32")  # fmt: skip
    for mark, law in (("^", "aligned law"), ("v", "Gaussian law")):
        ax.plot([], [], mark, markersize=6, markerfacecolor="none", color="0.4", label=law)
    ax.set_ylim(1, 1.25 * max(ax.get_ylim()[1], 2))
    ax.legend(fontsize="small", ncols=2, loc="upper left")


def _draw_scales(ax: plt.Axes, data: Data) -> None:
    base = data.size.settings[0]
    pairs = [
        (one.scale, found)
        for one, found in zip(data.size.settings, data.settings, strict=True)
        if dataclasses.replace(one, scale=base.scale) == base
    ]
    pairs.sort(key=lambda pair: pair[0])
    scales = [scale for scale, _ in pairs]
    for k, colour in enumerate(fl.plot.shades("relu", len(pairs[0][1].groups))):
        factors = np.stack([found.factors(found.relu)[:, k] for _, found in pairs], axis=1)
        own = pairs[0][1].groups[k]
        label = "bias mode" if k == 0 else f"modes {own[0]} to {own[-1]}"
        label = label if len(own) > 1 or k == 0 else f"mode {own[0]}"
        _bars(ax, scales, factors, fmt="-o", color=colour, label=label)
        ax.plot(scales, [found.law(k, False) for _, found in pairs], ":", color=colour)
    ax.axhline(limit(BOTH, False), color="0.6", linewidth=0.8)
    ax.set(xlabel=r"$H \times$ initial variance", ylabel="half time over linear one's",
           title=r"B. Starts (dotted: Gaussian law, line: $\sqrt{2}$)", xscale="log")  # fmt: skip
    ax.set_xticks(scales, [f"{scale:g}" for scale in scales])
    ax.minorticks_off()
    ax.set_ylim(1, 1.2 * ax.get_ylim()[1])
    ax.legend(fontsize="small", ncols=2, loc="upper left")


def _draw_held(ax: plt.Axes, data: Data) -> None:
    """All modes of all settings with biases; filled: ReLU in all layers."""
    ends = np.array([1.0, 4.0])
    ax.plot(ends, ends, color="0.6", linewidth=0.8)
    seen = [f for one, f in zip(data.size.settings, data.settings, strict=True) if one.c > 0]
    for name, rows, colour, marker in (
        ("seen", seen + data.held, fl.plot.COLOURS["relu"], "o"),
        ("held out", data.fresh, fl.plot.COLOURS["gated"], "s"),
    ):
        for k, found in enumerate(rows):
            factors = found.factors(found.relu)
            laws = [found.law(g, False) for g in range(factors.shape[1])]
            _bars(ax, laws, factors, fmt=marker, color=colour, elinewidth=0.8,
                  markerfacecolor=colour if all(found.gated) else "none",
                  label=None if k else name)  # fmt: skip
    ax.set(xlabel="factor by the Gaussian law", ylabel="measured", xlim=ends, ylim=ends,
           title="C. All modes (open: ReLU in one of two layers)", xscale="log",
           yscale="log")  # fmt: skip
    ticks = [1, 1.5, 2, 3, 4]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.legend(fontsize="small", loc="upper left")


def _draw_layers(ax: plt.Axes, data: Data) -> None:
    """The spread over modes, with and without a bias, by which layers are ReLU."""
    base = data.size.settings[0]
    for k, (c, colour) in enumerate(((1.0, "relu"), (0.0, "gated"))):
        pairs = [
            (_named(found), found.spread())
            for one, found in zip(data.size.settings, data.settings, strict=True)
            if dataclasses.replace(one, gated=BOTH, c=1.0) == base and one.c == c
        ]
        if pairs:
            at = np.arange(len(pairs)) + 0.1 * k
            rows = np.stack([row for _, row in pairs], axis=1)
            ax.errorbar(at, np.nanmean(rows, axis=0), half_widths(rows), fmt="o", capsize=2,
                        color=fl.plot.COLOURS[colour], label=f"c = {c:g}")  # fmt: skip
            ax.set_xticks(np.arange(len(pairs)), [name for name, _ in pairs])
    ax.set(ylabel="spread $R$ over modes", title="D. The order parameter by layer")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.2)
    ax.legend(fontsize="small")


QUICK = (Setting(width=8, levels=1), Setting((True, False), width=8, levels=1))
STUDY = Study(
    name="half_gate_depth",
    quick=Size(QUICK, (), (), seeds=2, walked=1, walk=2.5, rate=5e-2, t1=60.0),
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main(__doc__)
