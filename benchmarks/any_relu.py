"""Exact walks of modules of ReLUs that are not flowlin's own, held against descent.

    python benchmarks/any_relu.py [--quick] [--seeds 5]

Eight small modules, six samples of normal numbers (of the hinge loss, classes -1 and 1), default
initial weights of Equinox, t1 = 8, rtol 1e-9, seeds 0, 1, ...: the first draws weights and task.
Per module:

- pairs, events, slides: of all (unit, sample) pairs at most, of the median run, and how many of its
  events enter a slide.
- branches: runs with an event where the flow may not be unique.
- distance: the largest relative distance of descent's weights from the walk's at t1, at the finest
  rate; and slope, its median exponent between the last two rates. A flow that descent converges to
  has slope 1.
- drift: the largest change of |w|^2 + b^2 - |a|^2 of a channel between 65 saved times, over the
  largest |w|^2 + b^2 + |a|^2: of the weights w and bias b that a channel receives with and the
  weights a that it sends with, wherever only ReLUs, maxima and pooling lie between (Du, Hu and Lee,
  2018: gradient flow conserves it; of a channel the weights at all its places count once).
- rises: runs in which the loss rises between 65 saved times by more than 1e-12 of its start.
- smooth: the median distance of `SmoothKinks(1e-3)` and `(1e-4)` from the walk at t1.
- compile: seconds of the first run, less those of the second; and milliseconds per event of the
  second run, median.

Writes `any_relu.json` and `any_relu.md` to `benchmarks/results/`.
"""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl

END, RTOL, SAMPLES = 8.0, 1e-9, 6
# What channels receive with and what they send with, channels in front.
Balance = tuple[list[jax.Array | None], list[jax.Array | None]]
RATES = (1e-3, 2.5e-4, 6.25e-5, 1.5625e-5)


class Residual(eqx.Module):
    """Two blocks of one hidden layer with skips."""

    first: eqx.nn.Linear
    blocks: list[eqx.nn.MLP]
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        a, b, c, d = jax.random.split(key, 4)
        self.first, self.out = eqx.nn.Linear(4, 5, key=a), eqx.nn.Linear(5, 2, key=b)
        self.blocks = [eqx.nn.MLP(5, 5, 5, 1, key=one) for one in (c, d)]

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


class Conv1d(eqx.Module):
    """Two convolutions along a line."""

    first: eqx.nn.Conv1d
    second: eqx.nn.Conv1d
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        a, b, c = jax.random.split(key, 3)
        self.first, self.second = eqx.nn.Conv1d(1, 3, 3, key=a), eqx.nn.Conv1d(3, 2, 3, key=b)
        self.out = eqx.nn.Linear(4, 2, key=c)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.nn.relu(self.first(x[None]))
        return self.out(jax.nn.relu(self.second(h)).ravel())


class Conv2d(eqx.Module):
    """Two convolutions of a 6 x 6 image, with max pooling between."""

    first: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    second: eqx.nn.Conv2d
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        a, b, c = jax.random.split(key, 3)
        self.first, self.second = eqx.nn.Conv2d(1, 2, 3, key=a), eqx.nn.Conv2d(2, 2, 2, key=b)
        self.pool, self.out = eqx.nn.MaxPool2d(2, 2), eqx.nn.Linear(2, 2, key=c)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.pool(jax.nn.relu(self.first(x.reshape(1, 6, 6))))
        return self.out(jax.nn.relu(self.second(h)).ravel())


class Attention(eqx.Module):
    """Attention of three tokens, then an MLP of each, with skips."""

    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        a, b, c = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(1, 3, key=a)
        self.mlp, self.out = eqx.nn.MLP(3, 3, 5, 1, key=b), eqx.nn.Linear(3, 2, key=c)

    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = x.reshape(3, 3)
        tokens = tokens + self.attention(tokens, tokens, tokens)
        return self.out(jnp.mean(tokens + jax.vmap(self.mlp)(tokens), axis=0))


class Maxout(eqx.Module):
    """Four units, each the largest of three linear ones."""

    first: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        a, b = jax.random.split(key)
        self.first, self.out = eqx.nn.Linear(4, 12, key=a), eqx.nn.Linear(4, 2, key=b)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jnp.max(self.first(x).reshape(4, 3), axis=1))


class LeakyUNet(eqx.Module):
    """Leaky ReLUs down to half the length and up again, with a skip."""

    first: eqx.nn.Conv1d
    down: eqx.nn.Conv1d
    up: eqx.nn.ConvTranspose1d
    out: eqx.nn.Conv1d

    def __init__(self, key: jax.Array):
        a, b, c, d = jax.random.split(key, 4)
        self.first = eqx.nn.Conv1d(1, 2, 3, padding=1, key=a)
        self.down = eqx.nn.Conv1d(2, 3, 2, stride=2, key=b)
        self.up = eqx.nn.ConvTranspose1d(3, 2, 2, stride=2, key=c)
        self.out = eqx.nn.Conv1d(4, 1, 1, key=d)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.nn.leaky_relu(self.first(x[None]), 0.1)
        low = jax.nn.leaky_relu(self.down(h), 0.1)
        return self.out(jnp.concatenate([h, jax.nn.leaky_relu(self.up(low), 0.1)]))[0]


def mlp(key: jax.Array) -> eqx.nn.MLP:
    """Two hidden layers of six."""
    return eqx.nn.MLP(4, 2, 6, 2, key=key)


def shallow(key: jax.Array) -> eqx.nn.MLP:
    """One hidden layer of six."""
    return eqx.nn.MLP(4, 1, 6, 1, key=key)


def hinge(output: jax.Array, target: jax.Array) -> jax.Array:
    """The hinge loss of one sample, whose kinks are walked through like those of the module."""
    return jnp.sum(jax.nn.relu(1 - target * output))


def of_mlp(model: eqx.nn.MLP) -> list[Balance]:
    """Return what each hidden layer receives and sends with."""
    pairs = zip(model.layers, model.layers[1:], strict=False)
    return [([one.weight, one.bias], [after.weight.T]) for one, after in pairs]


def of_convolutions(model: Conv1d | Conv2d) -> list[Balance]:
    """Return what the channels of both convolutions receive and send with."""
    channels, readout = model.second.out_channels, model.out.weight.T
    return [
        ([model.first.weight, model.first.bias], [jnp.swapaxes(model.second.weight, 0, 1)]),
        ([model.second.weight, model.second.bias], [readout.reshape(channels, -1)]),
    ]


def of_maxout(model: Maxout) -> list[Balance]:
    """Return what each unit, of three linear ones, receives and sends with."""
    first = model.first
    assert first.bias is not None
    return [([first.weight.reshape(4, -1), first.bias.reshape(4, -1)], [model.out.weight.T])]


def of_unet(model: LeakyUNet) -> list[Balance]:
    """Return what the channels of the three convolutions receive and send with."""
    down, up, out = (jnp.swapaxes(c.weight, 0, 1) for c in (model.down, model.up, model.out))
    return [
        ([model.first.weight, model.first.bias], [down, out[:2]]),
        ([model.down.weight, model.down.bias], [up]),
        ([model.up.weight, model.up.bias], [out[2:]]),
    ]


class Case(NamedTuple):
    """A module by its name, the widths of its inputs and outputs, what balances, and its loss."""

    name: str
    make: Callable[[jax.Array], Any]
    inputs: int
    outputs: int
    balances: Callable[[Any], list[Balance]]
    loss: Any = fl.SquaredError()


CASES = (
    Case("MLP, 2 x 6", mlp, 4, 2, of_mlp),
    Case("residual, 2 blocks", Residual, 4, 2, lambda m: [b for k in m.blocks for b in of_mlp(k)]),
    Case("convolutions 1-D", Conv1d, 6, 2, of_convolutions),
    Case("convolutions 2-D, max pooling", Conv2d, 36, 2, of_convolutions),
    Case("attention + MLP", Attention, 9, 2, lambda m: of_mlp(m.mlp)),
    Case("maxout", Maxout, 4, 2, of_maxout),
    Case("leaky U-Net 1-D", LeakyUNet, 8, 8, of_unet),
    Case("MLP, hinge loss", shallow, 4, 1, of_mlp, hinge),
)


def distance(a: Any, b: Any) -> float:
    """Return the relative distance of two modules' weights."""
    flat = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(m, eqx.is_array))])
        for m in (a, b)
    ]
    return float(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1]))


def drift(case: Case, flow: fl.Trajectory) -> float:
    """Return by how much what balances changes along a run, relative to its size."""

    def sizes(arrays: list[jax.Array | None]) -> jax.Array:
        squares = [jnp.sum(a.reshape(len(a), -1) ** 2, axis=1) for a in arrays if a is not None]
        return sum(squares, jnp.zeros(()))

    @eqx.filter_vmap
    def balance(model: Any) -> tuple[jax.Array, jax.Array]:
        pairs = [(sizes(received), sizes(sent)) for received, sent in case.balances(model)]
        received, sent = (jnp.concatenate(ends) for ends in zip(*pairs, strict=True))
        return received - sent, received + sent

    difference, size = balance(flow.networks)
    return float(jnp.max(jnp.abs(difference - difference[0])) / jnp.max(size))


def measured(case: Case, seed: int, rates: tuple[float, ...]) -> dict[str, Any]:
    """Walk one start, twice, and descend from it."""
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(SAMPLES, width)) for width in (case.inputs, case.outputs))
    task, loss = fl.Task(x, np.sign(y) if case.loss is hinge else y), case.loss
    model = case.make(jax.random.key(seed))
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        flow = fl.gradient_flow(
            model, task, END, rtol=RTOL, ts=np.linspace(0, END, 65), loss=loss, throw=False
        )
        seconds.append(time.perf_counter() - begin)
    final = flow.final
    found = [
        distance(fl.gradient_descent(model, task, r, t1=END, loss=loss).final, final) for r in rates
    ]
    smooth = [
        distance(
            fl.gradient_flow(model, task, END, loss=loss, kinks=fl.SmoothKinks(w)).final, final
        )
        for w in (1e-3, 1e-4)
    ]
    log, losses = flow.events.select("gate"), np.asarray(flow.losses)
    return {
        "case": case.name,
        "seed": seed,
        "ended": float(flow.end) == END,
        "pairs": sum(flow.model.hidden) * SAMPLES,
        "events": len(log),
        "slides": int(np.sum(np.asarray(log.new) == 0)),
        "branches": len(flow.events.select("branch")),
        "drift": drift(case, flow),
        "rises": bool(np.max(np.diff(losses)) > 1e-12 * losses[0]),
        "distances": found,
        "smooth": smooth,
        "seconds": seconds,
    }


def summary(name: str, rows: list[dict[str, Any]]) -> list[Any]:
    """Return one line of the table."""

    def median(values: Any) -> float:
        return float(np.median(list(values)))

    slopes = [
        np.log(r["distances"][-2] / r["distances"][-1]) / np.log(RATES[-2] / RATES[-1])
        for r in rows
    ]
    per_event = median(1e3 * r["seconds"][1] / max(r["events"], 1) for r in rows)
    return [
        name,
        f"{sum(r['ended'] for r in rows)} of {len(rows)}",
        rows[0]["pairs"],
        f"{median(r['events'] for r in rows):.0f}",
        f"{median(r['slides'] for r in rows):.0f}",
        sum(r["branches"] > 0 for r in rows),
        f"{max(r['drift'] for r in rows):.0e}",
        sum(r["rises"] for r in rows),
        f"{max(r['distances'][-1] for r in rows):.1e}",
        f"{median(slopes):.2f}",
        ", ".join(f"{median(r['smooth'][k] for r in rows):.0e}" for k in (0, 1)),
        f"{rows[0]['seconds'][0] - rows[0]['seconds'][1]:.0f}",
        f"{per_event:.1f}",
    ]


def main() -> None:
    """Measure all modules, and write the results."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="starts of each module")
    options = parser.parse_args()
    cases, seeds = (CASES[:1], 1) if options.quick else (CASES, options.seeds)
    rows = []
    for case in cases:
        for seed in range(seeds):
            rows.append(measured(case, seed, RATES))
            print(json.dumps(rows[-1]), flush=True)
    head = [
        "module", "reach t1", "pairs", "events", "slides", "branches", "drift", "rises",
        "distance", "slope", "smooth", "compile, s", "ms per event",
    ]  # fmt: skip
    lines = [summary(c.name, [r for r in rows if r["case"] == c.name]) for c in cases]
    table = _common.markdown_table(head, lines)
    print(table)
    if not options.quick:
        _common.save("any_relu", rows, table)


if __name__ == "__main__":
    main()
