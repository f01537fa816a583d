"""What keeps mini-batch descent from the flow: its learning rate, or the noise of its batches.

From the initial weights of seed 0, descent at the paper's learning rate and at smaller ones, with
several batch sizes and draws of batches. If the step is what matters the distance of the losses
falls with the first power of the rate, whatever the batch; if it is the noise, with its root and
with the root of the batch (the noise of a step's gradient has variance 1 / batch, and 1 / rate
steps of size rate add up to a variance of rate / batch).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np
from _flows import losses_at
from _images import Setting, kept, relu, scale
from _paper import fl
from tqdm import tqdm

BATCHES = {"mnist": (16, 64, 256, 1024), "cifar10": (16, 64, 256)}
DRAWS = 3


@dataclasses.dataclass(frozen=True)
class Distances:
    """Mean distances of losses from the flow's.

    - `rates`: (R,), flow time per step.
    - `batches`: samples in a step's gradient.
    - `found`: (batches, R, draws), shares of the loss of the network that is zero.
    - `early`: flow time up to which losses are compared.
    """

    rates: np.ndarray
    batches: tuple[int, ...]
    found: np.ndarray
    early: float

    @property
    def slopes(self) -> dict[int, float]:
        """By batch, that of the logarithm of the distance in that of the rate."""
        logs = np.log(self.found.mean(axis=2))
        return {
            batch: float(np.polyfit(np.log(self.rates), row, 1)[0])
            for batch, row in zip(self.batches, logs, strict=True)
        }

    @property
    def batch_slope(self) -> float:
        """That in the logarithm of the batch, at the largest rate, of the three smallest batches:
        0 is the step's error, -1/2 is noise one way or the other, -1 is its variance."""
        logs = np.log(self.found.mean(axis=2)[:3, 0])
        return float(np.polyfit(np.log(self.batches[:3]), logs, 1)[0])

    @property
    def numbers(self) -> dict[str, Any]:
        """As JSON holds them."""
        return dataclasses.asdict(self) | {
            "slopes": {str(k): v for k, v in self.slopes.items()},
            "slope in the batch": self.batch_slope,
        }

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Distances":
        """What JSON holds."""
        kept_ = (np.array(found["rates"]), tuple(found["batches"]), np.array(found["found"]))
        return cls(*kept_, found["early"])


def distances(
    task: fl.Task, setting: Setting, c: float, standardise: bool, file: dict[str, Any]
) -> Distances:
    """At the setting's rate, a half, a quarter and an eighth of it; `file` is the flow's."""
    network = relu(task, setting, 0, c)
    ts = setting.ts[setting.ts <= setting.early]
    reference, zero = losses_at(file, ts), scale(task)
    rates = setting.rate / 2 ** np.arange(4)
    batches = tuple(batch for batch in BATCHES[setting.data] if batch <= task.samples)
    found = np.empty((len(batches), len(rates), DRAWS))
    for index in tqdm(list(np.ndindex(found.shape)), desc="rates and batches", unit="run"):
        b, r, draw = index
        made = partial(
            fl.stochastic_gradient_descent, network, task, float(rates[r]), t1=float(ts[-1]), ts=ts,
            batch_size=batches[b], key=jax.random.key(2000 + draw), observe={},
        )  # fmt: skip
        run = kept(setting, made, "distance", standardise, c, batches[b], r, draw, len(ts))
        found[index] = np.trapezoid(np.abs(run.losses - reference), ts) / ts[-1] / zero
    return Distances(rates, batches, found, setting.early)


def draw_distances(distances: Distances, ax: Any, title: str) -> None:
    """Against the rate, a line for each batch, and what the step's error and noise would be."""
    colours = fl.plot.shades("relu", len(distances.batches))
    for batch, row, colour in zip(distances.batches, distances.found, colours, strict=True):
        low, high = row.min(axis=1), row.max(axis=1)
        label = f"batches of {batch:,}, slope {distances.slopes[batch]:.2f}"
        ax.plot(distances.rates, row.mean(axis=1), "o-", color=colour, markersize=4, label=label)
        ax.fill_between(distances.rates, low, high, color=colour, alpha=0.15, lw=0)
    ends = np.array([distances.rates.min(), distances.rates.max()])
    first = distances.found[0].mean(axis=1)[0]
    ax.plot(ends, 1.5 * first * ends / ends[1], ":", color="0.5", lw=1, label="slope 1")
    # Room for the legend below the lines.
    ax.set(xscale="log", yscale="log", title=title, ylim=(distances.found.min() / 40, None))
    ax.set_xticks(distances.rates, [f"{rate:.3g}" for rate in distances.rates])
    ax.minorticks_off()
    ax.set_xlabel("flow time per step")
    ax.set_ylabel(f"distance of losses, $t$ < {distances.early:g} (/ 0.5)")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
