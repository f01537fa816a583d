"""Walks and descents that a page shows over time: the side of every (unit, sample) pair.

    python docs/_figures/walks.py [--out FILE]

Runs the exact flow of a network with one hidden layer, and gradient descent from the same weights,
for three tasks, four strengths c of the bias and three seeds: some minutes, most of it compiling.
Writes `docs/_static/walk_data.js`, which `docs/_static/walk.js` draws. Needs the extra `data`.

A run lasts `FRAMES` frames, each of `TICKS` ticks, in which the times of events are counted.
Numbers are written in base 64. Descent is kept at the step of each frame, and at its own t*: a bit
for every pair that slides in the flow then, and the pairs whose gate is not the flow's.
"""

import argparse
import json
import pathlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import flowlin as fl

OUT = pathlib.Path(__file__).resolve().parents[1] / "_static" / "walk_data.js"
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
FRAMES = 300
TICKS = 512
LOSS = 64**2 - 1  # what the loss at the start is written as
RATE = 1e-2
STRENGTHS = (0.0, 0.5, 1.0, 2.0)
SEEDS = (0, 1, 2)


class Setting(NamedTuple):
    """A task with a name for readers, the hidden units of its networks, and a last time."""

    name: str
    task: fl.Task
    units: int
    end: float


def settings() -> tuple[Setting, ...]:
    """The tasks, the README's first."""
    return (
        Setting("semantic tree", fl.tasks.hierarchy(levels=3), 64, 30.0),
        Setting("ten digits", fl.tasks.digits(10), 32, 30.0),
        Setting("offset XOR", fl.tasks.offset_xor(), 32, 30.0),
    )


def packed(values: Iterable[int], width: int) -> str:
    """Integers from zero in base 64, each with `width` digits, the first digit first."""
    places = [64**k for k in reversed(range(width))]
    return "".join(DIGITS[int(value) // place % 64] for value in values for place in places)


def packed_bits(bits: np.ndarray) -> str:
    """Bits, six to a digit, the first one worth most."""
    sixes = np.pad(bits, (0, -len(bits) % 6)).reshape(-1, 6)
    return packed(sixes @ (1 << np.arange(5, -1, -1)), 1)


def by_share_on(sides: np.ndarray) -> np.ndarray:
    """Units in the order of their column: on for every sample longest, then on for most samples."""
    linear, share = (sides >= 0).all(axis=1).mean(axis=0), (sides >= 0).mean(axis=(0, 1))
    return np.lexsort((-share, -linear))


class Sides(NamedTuple):
    """Sides of a layer's pairs, (samples, units), at the start and after each event, in ticks."""

    initial: np.ndarray
    ticks: np.ndarray
    pairs: np.ndarray
    sides: np.ndarray

    def at(self, tick: int) -> np.ndarray:
        """The side of every pair once the events of a tick are done."""
        now = self.initial.ravel().copy()
        for k in np.flatnonzero(self.ticks <= tick):
            now[self.pairs[k]] = self.sides[k]
        return now.reshape(self.initial.shape)


def sides_of(flow: fl.Trajectory, end: float) -> Sides:
    """The sides of a run, whose events come a tick late at most."""
    initial = np.asarray(flow.events.sides(0.0))
    rows = flow.events.select("gate").table()
    ticks = [np.ceil(row["time"] / end * FRAMES * TICKS) for row in rows]
    pairs = [sample * initial.shape[1] + unit for _, unit, sample in (r["index"] for r in rows)]
    new = [row["new"] for row in rows]
    return Sides(initial, *(np.asarray(found, int) for found in (ticks, pairs, new)))


def gates_text(sides: np.ndarray, on: np.ndarray) -> str:
    """Descent's gates beside the flow's sides: bits where it slides, then where they differ."""
    sides, on = sides.ravel(), on.ravel()
    others = np.flatnonzero((sides != 0) & (on != (sides > 0)))
    return packed_bits(on[sides == 0]) + packed([len(others)], 2) + packed(others, 2)


def ordered(sides: Sides, order: np.ndarray) -> Sides:
    """The same with the units in another order."""
    place = np.argsort(order)
    samples, units = np.divmod(sides.pairs, len(order))
    pairs = samples * len(order) + place[units]
    return sides._replace(initial=sides.initial[:, order], pairs=pairs)


def star(found: Any) -> list[float]:
    """A linearization time and its fraction, as a page shows them."""
    return [round(float(found.time), 4), round(float(found.fraction), 4)]


def preactivations(network: fl.ReLUNetwork, task: fl.Task) -> jax.Array:
    """Preactivations of the hidden layer, (samples, units)."""
    return network.preactivations(task.x)[0]


def walk(setting: Setting, strength: float, seed: int) -> dict[str, Any]:
    """A flow and a descent as the page reads them."""
    name, task, units, end = setting
    network = fl.ReLUNetwork.init(task, (units,), bias_strength=strength, key=jax.random.key(seed))
    times = np.linspace(0.0, end, FRAMES + 1)
    flow = fl.gradient_flow(network, task, end, ts=times, observe={})
    watched = {"z": preactivations}
    descent = fl.gradient_descent(network, task, RATE, t1=end, observe=watched, save_every=1)
    on = np.asarray(descent.observed["z"]) > 0
    own, mine = flow.linearization(), descent.linearization().open
    sides = sides_of(flow, end)
    frames = np.arange(FRAMES + 1) * TICKS
    order = by_share_on(np.stack([sides.at(int(tick)) for tick in frames]))
    sides, on = ordered(sides, order), on[:, :, order]
    steps = np.rint(times / RATE).astype(int)
    counts = on.all(axis=1).sum(axis=1)
    parts = np.split(counts, steps[1:])[:FRAMES]
    its_step = round(float(mine.time) / RATE)
    shown = [
        *zip(frames, steps, strict=True),
        (round(its_step * RATE / end * FRAMES * TICKS), its_step),
    ]
    losses = np.asarray(flow.losses)
    return {
        "task": name, "samples": len(task.x), "units": units,
        "c": strength, "seed": seed, "end": end,
        "open": star(own.open), "closed": star(own.closed), "descent": star(mine),
        "initial": packed(sides.initial.ravel() + 1, 1),
        "events": packed(sides.ticks, 3) + packed(3 * sides.pairs + sides.sides + 1, 2),
        "start": float(f"{losses[0]:.4g}"),
        "losses": packed(np.rint(losses / losses[0] * LOSS).clip(0, LOSS), 2),
        "low": packed((part.min() for part in parts), 2),
        "high": packed((part.max() for part in parts), 2),
        "gates": "".join(gates_text(sides.at(tick), on[step]) for tick, step in shown),
    }  # fmt: skip


def walks() -> Iterator[dict[str, Any]]:
    """All of them, each told of as it ends."""
    for setting in settings():
        for strength in STRENGTHS:
            for seed in SEEDS:
                found = walk(setting, strength, seed)
                shown = {
                    key: found[key] for key in ("task", "c", "seed", "open", "closed", "descent")
                }
                print(
                    shown, {k: len(v) for k, v in found.items() if isinstance(v, str)}, flush=True
                )
                yield found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    out = parser.parse_args().out
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    head = {"frames": FRAMES, "ticks": TICKS, "loss": LOSS, "rate": RATE}
    runs = ",\n".join(json.dumps(found, separators=(",", ":")) for found in walks())
    out.write_text(
        "// Made by docs/_figures/walks.py, which says what stands here.\n"
        f"window.flowlinWalks = {{...{json.dumps(head)}, runs: [\n{runs}\n]}};\n"
    )
    print(f"{out}: {out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
