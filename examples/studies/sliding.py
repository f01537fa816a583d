r"""Sliding is descent's boundary layer: what descent reports where the flow slides, and t* from
descent alone. See: what the flow's sliding predicts lies on the diagonal with what descent does (B,
C); t* of descent counted in windows comes to the flow's, of single steps it does not (D).

    python examples/studies/sliding.py [--quick] [--out FOLDER]

Where the flow holds a (unit, sample) pair at its kink with the share g of a full gate, a step of
descent is on or off. With K_ik = (c^2 + x_i x_k) / P and the signals C_k < 0 of a unit's sliding
pairs, one step moves their preactivations by

    z -> z + eps (b - K |C| s),   s = 1[z > 0],   b = K |C| g,

to first order in the rate eps. If s were equal to g, nothing would move: that is the definition of
sliding. Since s is 0 or 1, each step moves z by the same vector up to an integer combination of the
columns of eps K |C|, so it is a rotation of a torus. In units of these columns the vector is g.
Each pair is on in a share g of the steps, and where 1, g_1, ..., g_n are rationally independent, as
all g are but a null set, orbits fill a tile of the lattice of these columns evenly
(Guentuerk and Thao have such tiles of sigma-delta quantizers): the joint shares (all of a unit's
pairs on: the unit counts as linear) are those of the tile, neither those of independent pairs nor
free to choose. Where they are dependent, g = (0.6, 0.6) say, an orbit fills a part, and which one
is told by the start. One pair alone switches 2 min(g, 1 - g) times a step. Nothing of this depends
on eps, so the always-on fraction of single steps converges to nothing as eps falls, and its maximum
over a run is that of a noise.

Shown, without a parameter that was fitted:

1. Joint shares, switches per step and the always-on fraction of descent against that map, made from
   the exact flow's g, on the tree and, held out, with other c, width and inputs.
2. t* by windows (`descent.linearization(window=)`, w = 3 / sqrt(eps) steps, two switches in a
   window are sliding) against the exact flow's, open and closed, over seeds and rates; and on
   digits and MNIST.
3. Joint shares of two pairs from many starts, with independent and with dependent fractions.
"""

import dataclasses
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _studies import Study, fl, share
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `seeds`, `rates`, `t1`: of the estimator's check on the tree, 64 units.
    - `states`: seeds and times at which the map is compared with descent.
    - `steps`: of descent there, at the rate `rate`.
    - `images`: samples of digits and MNIST; None leaves them out.
    - `starts`: of orbits of two pairs.
    """

    seeds: int = 100
    rates: tuple[float, ...] = (1e-2, 2.5e-3, 6.25e-4, 1.5625e-4)
    t1: float = 30.0
    states: int = 8
    steps: int = 4_000
    rate: float = 2e-5
    images: int | None = 200
    starts: int = 200


TIMES = (1.0, 3.0, 8.0, 20.0)  # of the states
# Of two pairs: rationally independent of 1 and each other, and not.
FRACTIONS = ((0.35**0.5, 0.37**0.5), (0.6, 0.6), (0.5, 0.5))


class Setting(NamedTuple):
    """A task and a network on it."""

    name: str
    task: fl.Task
    c: float
    hidden: int


def settings() -> list[Setting]:
    """The tree, and what was not looked at before."""
    tree = fl.tasks.hierarchy()
    rng = np.random.default_rng(0)
    turned = fl.Task(jnp.asarray(rng.normal(size=(8, 5)) / 5**0.5), tree.y, name="random inputs")
    return [
        Setting("tree", tree, 1.0, 64),
        Setting("c = 0.5", tree, 0.5, 64),
        Setting("16 units", tree, 1.0, 16),
        Setting("random inputs", turned, 1.0, 64),
    ]


def initial(setting: Setting, seed: int) -> fl.ReLUNetwork:
    """The paper's initial weights."""
    return fl.ReLUNetwork.init(
        setting.task, setting.hidden, 2e-4, bias=True, bias_strength=setting.c,
        key=jax.random.key(seed),
    )  # fmt: skip


# 1. The map


class Chatter(NamedTuple):
    """Of one unit with sliding pairs: what the map says and what descent does.

    - `pairs`: how many slide.
    - `told`, `independent`, `found`: shares of steps in which all are on: of the map, of
      independent pairs, of descent.
    - `switching`, `switched`: switches per step and pair, of the map and of descent.
    - `width`, `wide`: largest preactivation of its pairs over the rate, of the map and of descent.
    """

    pairs: int
    told: float
    independent: float
    found: float
    switching: float
    switched: float
    width: float
    wide: float


def rotation(
    kernel: np.ndarray, signals: np.ndarray, share: np.ndarray, steps: int, start: Any = 0.0
) -> np.ndarray:
    """z (steps, ..., n) of the map z -> z + K |C| (g - s) from one start (..., n) or some, after
    as many steps before: it is in its tile."""
    drives = kernel * np.abs(signals)
    z = np.zeros((2 * steps, *np.broadcast_shapes(np.shape(start), np.shape(share))))
    z[0] = start
    for k in range(2 * steps - 1):
        z[k + 1] = z[k] + (share - (z[k] > 0)) @ drives.T
    return z[steps:]


def joint_shares(share: Any, size: Size) -> np.ndarray:
    """Shares of steps in which both of two pairs are on, by start (starts,): orthonormal inputs,
    c = 1, equal signals."""
    starts = np.random.default_rng(0).uniform(-1, 1, size=(size.starts, 2))
    z = rotation(1 + np.eye(2), np.ones(2), np.asarray(share), size.steps, starts)
    return np.mean(np.all(z > 0, axis=-1), axis=0)


def at_state(setting: Setting, seed: int, size: Size) -> list[tuple[float, list[Chatter], Any]]:
    """At some times of a run: every unit with sliding pairs, and always-on fractions."""
    task, found = setting.task, []
    flow = fl.gradient_flow(initial(setting, seed), task, max(TIMES), dense=True)
    run = fl.rectified(flow, task)
    for t in TIMES:
        network = flow.network(t)
        sides, shares = np.asarray(flow.events.sides(t)), np.asarray(run.gates(t))
        descent = fl.gradient_descent(network, task, size.rate, size.steps, save_every=1)
        z = jax.vmap(lambda n: n.preactivations(task.x)[0])(descent.networks)
        z = np.asarray(z)[size.steps // 4 :]  # (steps, P, H), its start forgotten
        gates = z > 0
        x, readout = np.asarray(task.x), np.asarray(network.weights[1])
        kernel = (setting.c**2 + x @ x.T) / len(x)
        errors = np.asarray(task.y) - np.asarray(network.outputs(task.x))
        units = []
        for j in np.flatnonzero(np.any(sides == 0, axis=0)):
            slides = sides[:, j] == 0
            if np.any(sides[:, j] < 0):
                continue  # it is not linear in any step
            g = shares[slides, j]
            signals = (errors @ readout)[slides, j]
            map_z = rotation(kernel[np.ix_(slides, slides)], signals, g, size.steps)
            own = z[:, slides, j]
            units.append(
                Chatter(
                    int(slides.sum()), (map_z > 0).all(axis=1).mean(), float(np.prod(g)),
                    gates[:, :, j].all(axis=1).mean(), _switches(map_z > 0), _switches(own > 0),
                    np.abs(map_z).max(), np.abs(own).max() / size.rate,
                )
            )  # fmt: skip
        always = np.mean(np.all(sides > 0, axis=0)), np.mean(np.all(sides >= 0, axis=0))
        told = always[0] + sum(unit.told for unit in units) / setting.hidden
        seen = gates.all(axis=1).mean(axis=1)  # of every step
        found.append((t, units, (*always, told, seen.mean(), seen.max())))
    return found


def _switches(gates: np.ndarray) -> float:
    """Per step and pair."""
    return float(np.mean(gates[1:] != gates[:-1]))


# 2. The estimator


class Times(NamedTuple):
    """t* and fraction, open and closed."""

    open: float
    open_fraction: float
    closed: float
    closed_fraction: float


def read(found: fl.Linearization) -> Times:
    """As numbers."""
    return Times(
        float(found.open.time), float(found.open.fraction),
        float(found.closed.time), float(found.closed.fraction),
    )  # fmt: skip


class Estimate(NamedTuple):
    """Of one seed: the exact flow, and by rate what windows and single steps of descent say.

    - `within`: per rate whether the windows' brackets hold the exact open and closed time.
    """

    exact: Times
    windows: list[Times]
    single: list[Times]
    within: list[tuple[bool, bool]]


def window(rate: float) -> int:
    """Steps of a window: long for the gates, short as a time."""
    return round(3 * rate**-0.5)


def estimate(
    network: fl.ReLUNetwork, task: fl.Task, t1: float, rates: Any, quantile: float = 0.0
) -> Estimate:
    """The exact flow and descents from one start."""
    flow = fl.gradient_flow(network, task, t1, observe={}, kinks=fl.ExactKinks())
    exact = flow.linearization(quantile)
    windows, single, within = [], [], []
    for rate in rates:
        w = window(rate)
        events = (fl.UnitSwitches(quantile, window=w), fl.UnitSwitches(quantile))
        descent = fl.gradient_descent(network, task, rate, t1=t1, observe={}, events=events)
        found = descent.linearization(quantile, window=w)
        windows.append(read(found))
        single.append(read(descent.linearization(quantile)))
        pairs = (found.open, exact.open), (found.closed, exact.closed)
        within.append(tuple(bool(a.bracket[0] <= b.time <= a.bracket[1]) for a, b in pairs))
    return Estimate(read(exact), windows, single, within)


# Both


@dataclasses.dataclass
class Data:
    """What was found; `states` by setting, `images` by task, `orbits` by fractions: the joint
    share of every start."""

    size: Size
    states: dict[str, list[Any]]
    estimates: list[Estimate]
    images: dict[str, list[Estimate]]
    orbits: dict[str, np.ndarray]


def compute(size: Size) -> Data:
    """All runs."""
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    kinds = settings()
    orbits = {
        ", ".join(f"{g:.3g}" for g in share): joint_shares(share, size) for share in FRACTIONS
    }
    data = Data(size, {kind.name: [] for kind in kinds}, [], {}, orbits)
    for kind in tqdm(kinds[: 1 if size.images is None else None], desc="states"):
        for seed in range(size.states):
            data.states[kind.name] += at_state(kind, seed, size)
    tree = kinds[0]
    for seed in tqdm(range(size.seeds), desc="t*"):
        data.estimates.append(estimate(initial(tree, seed), tree.task, size.t1, size.rates))
    if size.images is not None:
        for name, task in (
            ("digits", fl.tasks.digits(size.images)),
            ("MNIST", fl.tasks.mnist(size.images).astype(jnp.float64)),
        ):
            few = Setting(name, task, 1.0, 32)
            data.images[name] = [
                estimate(initial(few, seed), task, 12.0, (1e-2, 2.5e-3), 0.05)
                for seed in tqdm(range(3), desc=name)
            ]
    return data


def off(told: Any, found: Any) -> str:
    """Median and largest distance."""
    apart = np.abs(np.asarray(told) - np.asarray(found))
    return f"{np.median(apart):.2g}, at most {apart.max():.2g}"


def findings(data: Data) -> list[str]:
    """In sentences."""
    lines = []
    for name, states in data.states.items():
        units = [unit for _, own, _ in states for unit in own]
        several = [unit for unit in units if unit.pairs > 1]
        if not units:
            continue
        told, found = ([getattr(u, k) for u in units] for k in ("told", "found"))
        rates = [[getattr(u, k) for u in units] for k in ("switching", "switched")]
        width = np.median([abs(u.wide / u.width - 1) for u in units])
        totals = np.array([total for _, _, total in states])
        line = (
            f"{name}: {len(units)} units with sliding pairs ({len(several)} with several) in "
            f"{len(states)} states: share of steps with all on, map off by {off(told, found)}"
        )
        if several:
            apart = [[getattr(u, k) for u in several] for k in ("told", "independent", "found")]
            line += (
                f" (with several pairs: map {off(apart[0], apart[2])}; independent pairs "
                f"{off(apart[1], apart[2])})"
            )
        lines.append(
            f"{line}; switches per step and pair off by {off(*rates)}; width of the chatter, in "
            f"rates, off by {width:.1%} in the median; always-on fraction of "
            f"descent, mean over steps, off by {off(totals[:, 2], totals[:, 3])}, where open and "
            f"closed are {np.mean(totals[:, 1] - totals[:, 0]):.2g} apart in the mean"
        )
    lines += _estimator_lines("tree", data.estimates, data.size.rates)
    for name, estimates in data.images.items():
        lines += _estimator_lines(name, estimates, (1e-2, 2.5e-3))
    return lines + [
        f"two pairs, g = ({name}): both on in {shares.min():.3f} to {shares.max():.3f} of the "
        f"steps by the start ({len(shares)} of them)"
        for name, shares in data.orbits.items()
    ]


def _estimator_lines(name: str, estimates: list[Estimate], rates: Any) -> list[str]:
    lines = []
    for k, rate in enumerate(rates):
        parts = []
        for c, label in enumerate(("open", "closed")):
            exact = np.array([e.exact for e in estimates])[:, 2 * c : 2 * c + 2]
            seen = np.array([e.windows[k] for e in estimates])[:, 2 * c : 2 * c + 2]
            single = np.array([e.single[k] for e in estimates])[:, 2 * c : 2 * c + 2]
            inside = [e.within[k][c] for e in estimates]
            parts.append(
                f"{label}: median |t* off| {np.median(np.abs(seen - exact)[:, 0]):.2g} (single "
                f"steps {np.median(np.abs(single - exact)[:, 0]):.2g}), bracket holds it in "
                f"{share(inside)}, same fraction in {share(seen[:, 1] == exact[:, 1])} (single "
                f"steps {share(single[:, 1] == exact[:, 1])})"
            )
        lines.append(f"{name}, rate {rate:g}, windows of {window(rate)}: {'; '.join(parts)}")
    return lines


def draw(data: Data) -> plt.Figure:
    """Fractions over time; the map; t* by rate."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.6))
    _draw_fractions(axes[0, 0], data.size)
    _draw_map(axes[0, 1], axes[1, 0], data)
    _draw_errors(axes[1, 1], data)
    return figure


def _draw_fractions(ax: plt.Axes, size: Size) -> None:
    tree, rate = settings()[0], size.rates[1]
    network, w = initial(tree, 0), window(rate)
    exact = fl.gradient_flow(network, tree.task, size.t1, observe={}).linearization()
    events = (fl.UnitSwitches(window=w),)
    descent = fl.gradient_descent(network, tree.task, rate, t1=size.t1, observe={}, events=events)
    ts = np.linspace(0, size.t1, 3001)
    single = descent.linearization().activity(ts).always_on
    ax.plot(ts, single, color="0.75", linewidth=0.6, label=f"single steps of {rate:g}")
    seen = descent.linearization(window=w)
    for closed, colour, label in ((False, "linear", "open"), (True, "relu", "closed")):
        colour = fl.plot.COLOURS[colour]
        ax.plot(ts, exact.activity(ts, closed).always_on, color=colour, label=f"flow, {label}")
        some = ts[20::75]
        ax.plot(some, seen.activity(some, closed).always_on, "o", markersize=3.5, color=colour,
                markerfacecolor="white", label=f"windows, {label}")  # fmt: skip
    ax.set(xlabel=r"flow time ($\tau$)", ylabel="always-on fraction", title="A. One seed, the tree")
    ax.set_ylim(0, 1.35)
    ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper right")


def _draw_map(shares: plt.Axes, switches: plt.Axes, data: Data) -> None:
    colours = fl.plot.shades("relu", max(len(data.states), 2))
    for colour, (name, states) in zip(colours, data.states.items(), strict=False):
        units = [unit for _, own, _ in states for unit in own]
        if not units:
            continue
        several = [unit for unit in units if unit.pairs > 1]
        shares.plot([u.independent for u in several], [u.found for u in several], "x",
                    color="0.7", markersize=5, zorder=1)  # fmt: skip
        shares.plot([u.told for u in units], [u.found for u in units], ".", color=colour,
                    label=f"{name} ({len(units)} units)")  # fmt: skip
        switches.plot([u.switching for u in units], [u.switched for u in units], ".",
                      color=colour, label=name)  # fmt: skip
    shares.plot([], [], "x", color="0.7", label="if pairs were independent")
    for ax, what in ((shares, "steps with all pairs on"), (switches, "switches per step and pair")):
        ax.axline((0.5, 0.5), slope=1, color="black", linewidth=0.7)
        ax.set(xlabel=f"{what}, from the flow's $g$", ylabel=f"{what}, descent")
        ax.set_ylim(top=ax.get_ylim()[1] * 1.15)  # room for the legend
        ax.legend(fontsize="small", frameon=False, loc="upper left")
    shares.set_title("B. When a unit with sliding pairs is linear")
    switches.set_title("C. How often a sliding pair switches")


def _draw_errors(ax: plt.Axes, data: Data) -> None:
    rates = np.array(data.size.rates)
    for c, (label, colour) in enumerate((("open", "linear"), ("closed", "relu"))):
        exact = np.array([e.exact for e in data.estimates])[:, None, 2 * c]
        for kind, style in (("windows", "o-"), ("single", "s--")):
            seen = np.array([getattr(e, kind) for e in data.estimates])[:, :, 2 * c]
            low, middle, high = np.quantile(np.abs(seen - exact), (0.25, 0.5, 0.75), axis=0)
            name = {"windows": "windows", "single": "single steps"}[kind]
            ax.errorbar(rates * (0.97 + 0.06 * c), middle, (middle - low, high - middle), fmt=style,
                        color=fl.plot.COLOURS[colour], markersize=4, capsize=2,
                        markerfacecolor="white" if kind == "single" else None,
                        label=f"{name}, {label}")  # fmt: skip
    widths = [window(rate) * rate for rate in rates]
    ax.plot(rates, widths, ":", color="black", label="a window")
    ax.set(xscale="log", yscale="log", xlabel=r"learning rate (units of $\tau$)",
           ylabel=r"$|t^* - t^*_{\rm flow}|$ ($\tau$), median and quartiles",
           title=f"D. t* from descent, {len(data.estimates)} seeds")  # fmt: skip
    ax.set_ylim(top=300)
    ax.legend(fontsize="small", frameon=False, ncols=2, loc="upper left")


STUDY = Study(
    name="sliding",
    quick=Size(3, (1e-2, 2.5e-3), 30.0, 1, 500, 1e-4, None, 20),
    default=Size(),
    compute=compute,
    findings=findings,
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main(__doc__)
