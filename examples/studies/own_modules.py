r"""Residual and convolutional networks along the exact flow: effective weights, and how long ReLU
filters learn as linear ones do. See: maps of one class come together in the residual network, and
not in filters (A); what blocks add comes to depend on the class (B). Filters with ReLUs leave the
linear ones (dashed) at about one time with biases and without (C, D). Half as many (dotted) are
nearer.

    python examples/studies/own_modules.py [--quick] [--redraw] [--out FOLDER]

Both are ordinary Equinox modules, whose kinks flowlin finds and walks through (`Residual`,
`Filters`). Images are of 14 x 14 (MNIST) and 16 x 16 pixels (CIFAR-10 in grey), means of 2 x 2.

1. Ye (2025) reads a ReLU network as one matrix per image, $f(x) = W_{eff}(x)\, x$, sees matrices of
   one class cluster, and leaves residual networks to later work: there "how networks like ResNets
   learn to control information flow by bypassing transformations for certain inputs". Here, along
   the flow from PyTorch's initial weights: distances of $W_{eff}$ within classes over those between
   them, with the images' own as a control; and of a residual network the share that its blocks have
   in it,

   $$\beta(x) = |W_{eff}(x) - R E| \,/\, (|W_{eff}(x) - R E| + |R E|),$$

   where R E is what the skips alone carry from the embedding E to the readout R.
2. The lead paper finds ReLU networks of images with biases closely aligned to linear ones, and the
   match exact only for linear ones of half the width. Here the hidden layer is one of filters. The
   linear network has the same filters, or the first half of them with the readout's part for these.
   How far the losses are apart is the mean over time of |L - L_lin| / L(0); they have parted where
   it is 0.02.

Found, with 5 seeds, 20 images, 12 units and 4 filters:

- Of the residual network distances of $W_{eff}$ within classes fall from 0.91 to 0.43 of those
  between them; of filters they stay where they were, near the images' own.
- No change of the mean of $\beta$ or of its spread over images is seen. But the share of its
  variance that is between classes rises from 0.22 to 0.66: the class tells how much blocks add.
- With biases a third of the (filter, position) units of MNIST is linear at t* (open), a tenth of
  CIFAR-10; without biases none is.
- All the same ReLU filters part from linear ones at t = 1.5 to 2.0, with biases and without; no
  difference is seen. What has been learnt by then is a tenth of the loss with biases, a thirtieth
  or less without.
- Half as many linear filters are nearer on MNIST, and with biases on CIFAR-10; they are not exact.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _studies import Study, fl, half_widths
from matplotlib.figure import Figure
from tqdm import tqdm

MAKERS = {"MNIST": fl.tasks.mnist, "CIFAR-10": fl.tasks.cifar10}
PARTED = 0.02  # of the loss at the start: two losses so far apart have parted


def same(z: jax.Array) -> jax.Array:
    """No activation: of a linear network."""
    return z


class Residual(eqx.Module):
    """An embedding, blocks of one hidden layer with skips, and a readout, all without biases."""

    embedding: jax.Array
    blocks: list[tuple[jax.Array, jax.Array]]
    readout: jax.Array
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.embedding @ x
        for into, out in self.blocks:
            h = h + out @ self.activation(into @ h)
        return self.readout @ h

    @property
    def skips(self) -> jax.Array:
        """The map without blocks."""
        return self.readout @ self.embedding


class Filters(eqx.Module):
    """A layer of filters of 5 x 5 pixels at every third one, and a readout."""

    filters: eqx.nn.Conv2d
    readout: eqx.nn.Linear
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        side = round(x.size**0.5)
        h = self.activation(self.filters(x.reshape(1, side, side)))
        return self.readout(h.ravel())


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `images`: of both tasks, of ten classes in proportion.
    - `tasks`: those on which filters are compared with linear ones; maps are of MNIST.
    - `seeds`, `t1`: of the maps' flows.
    - `networks`: whose maps are looked at.
    - `width`: of the residual network; `filters`: how many.
    - `scale`: of the initial weights of filters that are compared with linear ones, times
      PyTorch's; `long`: the time of those flows.
    - `biases`: with and without.
    """

    images: int = 20
    tasks: tuple[str, ...] = ("MNIST", "CIFAR-10")
    seeds: int = 5
    t1: float = 20.0
    width: int = 12
    filters: int = 4
    scale: float = 0.3
    long: float = 30.0
    biases: tuple[bool, ...] = (True, False)
    networks: tuple[str, ...] = ("residual", "filters")


@dataclasses.dataclass
class Maps:
    """Effective maps of a network along its flow, of all seeds: (seeds, T).

    - `apart`: mean distance within classes over that between them.
    - `blocks`: mean of beta over images, `spread` its standard deviation, and `by_class` the share
      of its variance that is between classes; nan for filters.
    - `learned`: loss over that at the start.
    """

    apart: np.ndarray
    blocks: np.ndarray
    spread: np.ndarray
    by_class: np.ndarray
    learned: np.ndarray


@dataclasses.dataclass
class Pair:
    """Flows of filters with ReLUs and of linear ones, of all seeds.

    - `relu`, `full`, `half`: losses over that at the start, (seeds, T); linear ones of as many
      filters and of half as many.
    - `open_time`, `open_fraction`: t* (open), and the share of (filter, position) that are linear.
    """

    relu: np.ndarray
    full: np.ndarray
    half: np.ndarray
    open_time: np.ndarray
    open_fraction: np.ndarray


@dataclasses.dataclass
class Data:
    """All flows: `maps` by network, `images` the images' own distances; `pairs` by task, bias."""

    size: Size
    images: float
    ts: np.ndarray
    long: np.ndarray
    maps: dict[str, Maps]
    pairs: dict[str, dict[str, Pair]]


def task_of(name: str, images: int) -> fl.Task:
    """Images of half the side, each pixel's mean subtracted."""
    task = MAKERS[name](images).astype(jnp.float64)
    side = round(task.inputs**0.5) // 2
    x = task.x.reshape(images, side, 2, side, 2).mean(axis=(2, 4)).reshape(images, side**2)
    return dataclasses.replace(task, x=x)


def uniform(rng: np.random.Generator, out: int, into: int) -> jax.Array:
    """PyTorch's initial weights."""
    return jnp.asarray(rng.uniform(-1, 1, (out, into)) / into**0.5)


def residual(task: fl.Task, width: int, seed: int) -> Residual:
    """Of two blocks."""
    rng = np.random.default_rng(seed)
    blocks = [(uniform(rng, width, width), uniform(rng, width, width)) for _ in "12"]
    embedding = uniform(rng, width, task.inputs)
    return Residual(embedding, blocks, uniform(rng, task.outputs, width), jax.nn.relu)


def filters(task: fl.Task, count: int, seed: int, bias: bool, scale: float) -> Filters:
    """Of Equinox's initial weights, which are PyTorch's, times a scale."""
    one, two = jax.random.split(jax.random.key(seed))
    positions = ((round(task.inputs**0.5) - 5) // 3 + 1) ** 2
    how: dict[str, Any] = {"use_bias": bias, "dtype": jnp.float64}
    made = Filters(
        eqx.nn.Conv2d(1, count, 5, 3, key=one, **how),
        eqx.nn.Linear(count * positions, task.outputs, key=two, **how),
        jax.nn.relu,
    )
    return jax.tree.map(lambda a: scale * a, made)


def first_half(network: Filters) -> Filters:
    """The first half of the filters, with the readout's part for these."""
    count = network.filters.weight.shape[0] // 2
    columns = network.readout.weight.shape[1] // 2
    own = network.filters.bias
    parts = (network.filters.weight[:count], network.readout.weight[:, :columns])
    made = eqx.tree_at(lambda n: (n.filters.weight, n.readout.weight), network, parts)
    return made if own is None else eqx.tree_at(lambda n: n.filters.bias, made, own[:count])


def maps_and_blocks(
    network: Any, sides: list[jax.Array], task: fl.Task
) -> tuple[jax.Array, jax.Array]:
    """W_eff of every image at the sides of the walk, (P, 10 inputs), and beta, (P,)."""
    found = fl.measures.effective_map(network, task, sides=sides).matrix
    maps = found.reshape(task.samples, -1)
    if isinstance(network, Filters):
        return maps, jnp.full(task.samples, jnp.nan)
    skips = network.skips.ravel()
    added = jnp.linalg.norm(maps - skips, axis=1)
    return maps, added / (added + jnp.linalg.norm(skips))


def look_along(flow: fl.Trajectory, task: fl.Task) -> tuple[np.ndarray, np.ndarray]:
    """`maps_and_blocks` at all saved times; between steps z does not tell which pairs slide."""
    sides = [
        jax.vmap(lambda t, place=place: flow.events.sides(t, place))(flow.ts)
        for place in range(len(flow.model.hidden))
    ]
    look = eqx.filter_vmap(maps_and_blocks, in_axes=(eqx.if_array(0), 0, None))
    maps, blocks = eqx.filter_jit(look)(flow.networks, sides, task)
    return np.asarray(maps), np.asarray(blocks)


def distances(rows: np.ndarray, classes: np.ndarray) -> float:
    """Mean distance of rows of one class over that of rows of two."""
    apart = np.linalg.norm(rows[:, None] - rows, axis=-1)
    alone, alike = np.eye(len(rows), dtype=bool), classes[:, None] == classes
    return float(apart[alike & ~alone].mean() / apart[~alike].mean())


def share_by_class(values: np.ndarray, classes: np.ndarray) -> float:
    """Share of the variance that is between the classes' means, less what chance has of it."""
    kinds = np.unique(classes)
    means = np.array([values[classes == k].mean() for k in kinds])
    between = sum(
        np.mean(classes == k) * (m - values.mean()) ** 2 for k, m in zip(kinds, means, strict=True)
    )
    found = between / values.var()
    chance = (len(kinds) - 1) / (len(values) - 1)
    return float((found - chance) / (1 - chance))


def watch_maps(make: Callable[[int], Any], task: fl.Task, size: Size, ts: np.ndarray) -> Maps:
    """The flows of one kind of network, looked at from row to row."""
    classes, rows = np.argmax(np.asarray(task.y), axis=1), []
    for seed in tqdm(range(size.seeds), desc="maps", disable=None):
        flow = fl.gradient_flow(make(seed), task, size.t1, ts=ts, kinks=fl.ExactKinks())
        maps, blocks = look_along(flow, task)
        rows.append((
            [distances(one, classes) for one in maps],
            blocks.mean(axis=1),
            blocks.std(axis=1),
            [share_by_class(one, classes) for one in blocks],
            flow.losses / flow.losses[0],
        ))  # fmt: skip
    return Maps(*map(np.array, zip(*rows, strict=True)))


def compare(task: fl.Task, size: Size, bias: bool, ts: np.ndarray) -> Pair:
    """Filters with ReLUs, and linear ones from the same weights."""
    rows = []
    for seed in tqdm(range(size.seeds), desc=f"bias {bias}", disable=None):
        start = filters(task, size.filters, seed, bias, size.scale)
        flow = fl.gradient_flow(start, task, size.long, ts=ts, kinks=fl.ExactKinks())
        linear = dataclasses.replace(start, activation=same)
        losses = [
            run.losses / run.losses[0]
            for run in (
                flow,
                *(
                    fl.gradient_flow(one, task, size.long, ts=ts)
                    for one in (linear, first_half(linear))
                ),
            )
        ]
        opened = flow.linearization(layer=0).open
        rows.append((*losses, float(opened.time), float(opened.fraction)))
    return Pair(*map(np.array, zip(*rows, strict=True)))


def compute(size: Size) -> Data:
    """All flows."""
    task = task_of("MNIST", size.images)
    classes = np.argmax(np.asarray(task.y), axis=1)
    ts, long = np.linspace(0, size.t1, 41), np.append(0, np.geomspace(0.05, size.long, 120))
    makers = {
        "residual": lambda seed: residual(task, size.width, seed),
        "filters": lambda seed: filters(task, size.filters, seed, False, 1.0),
    }
    maps = {name: watch_maps(makers[name], task, size, ts) for name in size.networks}
    pairs = {
        name: {
            "bias" if bias else "no bias": compare(task_of(name, size.images), size, bias, long)
            for bias in size.biases
        }
        for name in size.tasks
    }
    return Data(size, distances(np.asarray(task.x), classes), ts, long, maps, pairs)


# What was found


def spread_of(values: np.ndarray) -> str:
    """A mean over seeds with its interval."""
    return f"{values.mean():.3g} \u00b1 {half_widths(values):.2g}"


def distance(losses: np.ndarray, others: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """Mean over time of |L - L_other| / L(0), (seeds,)."""
    return np.trapezoid(np.abs(losses - others), ts, axis=1) / ts[-1]


def parting(losses: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Row of times at which two losses first part, (seeds,); the last if they do not."""
    apart = np.abs(losses - others) > PARTED
    return np.where(apart.any(axis=1), apart.argmax(axis=1), losses.shape[1] - 1)


def of_pair(one: Pair, ts: np.ndarray) -> list[str]:
    """What is found of filters of one kind on one task."""
    full, half = (distance(one.relu, other, ts) for other in (one.full, one.half))
    rows = parting(one.relu, one.full)
    there = one.relu[np.arange(len(rows)), rows]
    return [
        f"mean distance of the losses from the linear network's {spread_of(full)}, from that of "
        f"half the filters {spread_of(half)}, difference {spread_of(full - half)}",
        f"parts from the linear network by {PARTED:g} at t = {spread_of(ts[rows])}, where its loss "
        f"is {spread_of(there)} of the start",
        f"t* (open) {spread_of(one.open_time)}, share of linear units there "
        f"{spread_of(one.open_fraction)}",
    ]


def findings(data: Data) -> list[str]:
    """In sentences."""
    lines = [f"images of MNIST: distances within classes over between {data.images:.3g}"]
    for name, found in data.maps.items():
        start, end = found.apart[:, 0], found.apart[:, -1]
        lines.append(
            f"{name}: distances of W_eff within classes over between {spread_of(start)} at the "
            f"start, {spread_of(end)} at t = {data.ts[-1]:g}, difference {spread_of(end - start)}; "
            f"loss there {spread_of(found.learned[:, -1])} of the start"
        )
    blocks = data.maps["residual"]
    lines += [
        f"residual: {what} {spread_of(rows[:, 0])} at the start, {spread_of(rows[:, -1])} at the "
        f"end, difference {spread_of(rows[:, -1] - rows[:, 0])}"
        for what, rows in (
            ("share of the blocks in W_eff, mean over images", blocks.blocks),
            ("its standard deviation over images", blocks.spread),
            ("share of its variance between classes, less chance", blocks.by_class),
        )
    ]
    for name, kinds in data.pairs.items():
        lines += [f"{name}, {kind}: {text}" for kind, one in kinds.items()
                  for text in of_pair(one, data.long)]  # fmt: skip
        if len(kinds) == 2:
            bias, none = (distance(one.relu, one.full, data.long) for one in kinds.values())
            lines.append(
                f"{name}: distance from the linear network of as many filters, no bias less bias "
                f"{spread_of(none - bias)}"
            )
    return lines


# The figure


def band(ax: plt.Axes, ts: np.ndarray, rows: np.ndarray, label: str, **look: Any) -> None:
    """Mean over seeds and its interval."""
    middle, wide = rows.mean(axis=0), half_widths(rows)
    (line,) = ax.plot(ts, middle, label=label, **look)
    ax.fill_between(ts, middle - wide, middle + wide, color=line.get_color(), alpha=0.2, lw=0)


def draw(data: Data) -> Figure:
    """Maps by class, the share of blocks, and losses with and without biases."""
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 7.6), layout="constrained")
    time = r"flow time $t$ (units of $\tau$)"
    ax = axes[0, 0]
    for n, (name, found) in enumerate(data.maps.items()):
        band(ax, data.ts, found.apart, name, color=f"C{n}", ls="-" if n == 0 else "--")
    ax.axhline(data.images, color="0.4", ls=":", label="the images themselves")
    ax.set(title="A. Maps of one class, MNIST", ylabel="distance within classes / between")
    ax = axes[0, 1]
    band(ax, data.ts, data.maps["residual"].by_class, "residual", color="C0")
    ax.axhline(0.0, color="0.4", ls=":", label="chance")
    ax.set(
        title="B. What the blocks add, MNIST", ylabel=r"share of $\beta$'s variance between classes"
    )
    name, kinds = next(iter(data.pairs.items()))
    for ax, letter, (kind, one) in zip(axes[1], "CD", kinds.items(), strict=False):
        band(ax, data.long, one.relu, "ReLU", color="C0")
        band(ax, data.long, one.full, "linear", color="C1", ls="--")
        band(ax, data.long, one.half, "linear, half of the filters", color="C2", ls=":")
        ax.set(
            title=f"{letter}. Filters, {name}, {kind}",
            ylabel="loss / loss at the start",
            xscale="log",
        )
    for ax in axes.ravel()[: 2 + len(kinds)]:
        ax.set_xlabel(time)
        ax.legend(frameon=False, fontsize=9)
    return figure


QUICK = Size(20, ("MNIST",), 2, 0.5, 4, 2, 0.3, 1.0, (True,), ("residual",))
STUDY = Study("own_modules", QUICK, Size(), compute, findings, draw)

if __name__ == "__main__":
    STUDY.main(__doc__)
