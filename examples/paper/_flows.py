"""Gradient flows of ReLU networks on all images: one small file for each, which the figures read.

A flow takes from minutes to an hour on two cores. `flows.py` runs those that are missing, and each
is saved in `results/flows` as soon as it ends; what is under way goes on from its checkpoint.

Times of events are those that the run located: half times of the first ten modes, and when the loss
fell to `LEVELS`. The `error` of a flow is the largest relative difference of these times between it
and a run at a `FINER` tolerance, which is made for the first seed of each kind and stands for all.
"""

import dataclasses
import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _paper import RESULTS, fl
from diffrax import Bosh3
from scipy.interpolate import CubicSpline

FLOWS = RESULTS / "flows"
CHECKPOINTS = pathlib.Path("figures/paper/flows")
LEVELS = (0.45, 0.4, 0.35, 0.3)
MODES = 10
FINER, FINEST = 0.1, 2e-6  # times the tolerance, but not beyond what float32 holds
# Tolerances of averaged gates and of Bosh3, by `benchmarks/image_tolerance.py` on MNIST: errors
# of times below a percent.
AVERAGED, ACROSS = 1e-3, 1e-5


@dataclasses.dataclass(frozen=True)
class Flow:
    """Which flow it is.

    - `data`: "mnist" or "cifar10" (grayscale); `samples` of a stratified subset, None for all.
    - `preprocessing`: "pixel" subtracts every pixel's mean, "global" one mean, and divides by one
      standard deviation.
    - `c`, `seed`, `hidden`, `variance`: of the network; c = 0 is without bias.
    - `end`: flow time.
    - `finer`: whether at a tolerance that is `FINER`.
    """

    data: str
    preprocessing: str
    c: float
    seed: int
    hidden: tuple[int, ...]
    end: float
    samples: int | None = None
    variance: float = 2e-4
    finer: bool = False

    @property
    def name(self) -> str:
        """Of its file."""
        parts = [self.data, self.preprocessing, f"c{self.c:g}", "x".join(map(str, self.hidden))]
        parts += [f"seed{self.seed}"] + [f"{self.samples}"] * (self.samples is not None)
        return "-".join(parts + ["finer"] * self.finer)

    @property
    def path(self) -> pathlib.Path:
        """Its file."""
        return FLOWS / f"{self.name}.json"

    @property
    def rtol(self) -> float:
        """Its tolerance."""
        rtol = AVERAGED if len(self.hidden) == 1 else ACROSS
        return max(rtol * FINER, FINEST) if self.finer else rtol

    @property
    def method(self) -> dict[str, Any]:
        """Averaged gates where there is one hidden layer, else Bosh3 across the kinks."""
        if len(self.hidden) == 1:
            return {"kinks": fl.AveragedKinks(), "rtol": self.rtol}
        return {"kinks": fl.IgnoreKinks(), "solver": Bosh3(), "rtol": self.rtol}

    @property
    def times(self) -> np.ndarray:
        """Of its rows: evenly in log t, from before the first mode."""
        return np.append(0, np.geomspace(1e-3, self.end, 60))

    def task(self) -> fl.Task:
        """The images, in float32."""
        maker = {"mnist": fl.tasks.mnist, "cifar10": fl.tasks.cifar10}[self.data]
        whole = self.preprocessing == "global"
        return maker(self.samples, center=not whole, standardise=whole).astype(jnp.float32)

    def network(self, task: fl.Task) -> fl.ReLUNetwork:
        """The initial weights of its seed, which the figures' descents start from too."""
        how = {"bias": True, "bias_strength": self.c, "key": jax.random.key(self.seed)}
        return fl.ReLUNetwork.init(task, self.hidden, self.variance, **how)

    def run(self, task: fl.Task) -> dict[str, Any]:
        """What its file holds; goes on from a checkpoint."""
        network, start = self.network(task), time.monotonic()
        modes = fl.theory.modes(task, network)
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        checkpoint = CHECKPOINTS / f"{self.name}.npz"
        flow = fl.gradient_flow(
            network, task, self.end, ts=self.times, events=watched(modes), checkpoint=checkpoint,
            observe={"modes": modes}, progress=fl.LogProgress(60.0), **self.method,
        )  # fmt: skip
        checkpoint.unlink(missing_ok=True)
        return {
            **{k: v for k, v in dataclasses.asdict(self).items() if k != "samples"},
            "images": task.samples,
            "rtol": self.rtol,
            **timed(flow),
            "evaluations": int(flow.stats["evaluations"]),
            "steps": int(flow.stats["num_accepted_steps"]),
            "rejected": int(flow.stats["num_rejected_steps"]),
            "solver": str(flow.stats["solver"]),
            "kinks": str(flow.stats["kinks"]),
            "seconds since it was last started": round(time.monotonic() - start),
            "t": rounded(flow.ts),
            "loss": rounded(flow.losses),
            "modes": [rounded(row) for row in np.asarray(flow.observed["modes"])[:, :MODES]],
        }

    @property
    def descent_path(self) -> pathlib.Path:
        """The file of its descents."""
        return FLOWS / f"{self.name}-descent.json"

    def descents(self, task: fl.Task, rate: float, until: float) -> dict[str, Any]:
        """Its events by descent on all images at a rate and at half of it, and extrapolated.

        Descent's times are off by the first power of the rate, so twice those at half the rate
        less those at the whole rate are right up to its second power (Richardson). Between two
        steps they are interpolated.
        """
        network = self.network(task)
        modes = fl.theory.modes(task, network)
        how = {"events": watched(modes), "interpolate": True, "observe": {}, "t1": until}
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        found = []
        for one in (rate, rate / 2):
            checkpoint = CHECKPOINTS / f"{self.name}-descent-{one:g}.npz"
            descent = fl.gradient_descent(
                network, task, one, checkpoint=checkpoint, progress=fl.LogProgress(60.0), **how
            )
            checkpoint.unlink(missing_ok=True)
            found.append(event_times(timed(descent)))
        off = 2 * found[1] - found[0]
        return {
            "rates": [rate, rate / 2],
            "until": until,
            "events": [[finite(t) for t in times] for times in (*found, off)],
        }

    def found(self) -> dict[str, Any]:
        """What its file holds, with its `error`.

        **Raises:** `FileNotFoundError` if it was not run.
        """
        if not self.path.exists():
            raise FileNotFoundError(
                f"{self.path} is missing; run `python examples/paper/flows.py --only {self.name}`."
            )
        return json.loads(self.path.read_text()) | {"error": self.error()}

    def error(self) -> float | None:
        """Relative, of the worst event; None where no finer run of its kind was made."""
        first = dataclasses.replace(self, seed=0, finer=False)
        finer = dataclasses.replace(first, finer=True)
        if not (first.path.exists() and finer.path.exists()):
            return None
        times = [event_times(json.loads(flow.path.read_text())) for flow in (first, finer)]
        apart = np.abs(times[0] / times[1] - 1)
        return float(np.nanmax(apart)) if np.any(np.isfinite(apart)) else None


def losses_at(found: dict[str, Any], ts: np.ndarray) -> np.ndarray:
    """Of a file, at other times than its rows', by cubic splines in log t."""
    t, loss = (np.asarray(found[name], float) for name in ("t", "loss"))
    spline = CubicSpline(np.log(t[1:]), loss[1:])
    first = loss[0] + (loss[1] - loss[0]) * np.minimum(ts / t[1], 1)
    return np.where(ts < t[1], first, spline(np.log(np.maximum(ts, t[1]))))


def summary(found: dict[str, Any], until: float) -> dict[str, Any]:
    """What a figure quotes of a file; events that come after the figure's end are None."""

    def early(t: float | None) -> float | None:
        return None if t is None or t > until else t

    names = ("data", "preprocessing", "c", "seed", "hidden", "evaluations", "rtol", "error")
    return {name: found[name] for name in names} | {
        "half times": [early(t) for t in found["half times"]],
        "loss levels": {level: early(t) for level, t in found["loss levels"].items()},
    }


def watched(modes: fl.theory.Modes) -> list[Any]:
    """The events of a flow: modes come to half their strength, the loss falls to `LEVELS`."""
    levels = [fl.LossBelow(level, name=f"{level:g}") for level in LEVELS]
    return [fl.ModeHits(modes, share=0.5), *levels]


def timed(flow: fl.Trajectory) -> dict[str, Any]:
    """When they came, None for never."""
    return {
        "half times": [finite(t) for t in np.asarray(flow.events.first("mode"))[:MODES]],
        "loss levels": {f"{k:g}": finite(flow.events.first(f"{k:g}")) for k in LEVELS},
    }


def finite(t: Any) -> float | None:
    """A time, or None for never."""
    return float(t) if np.isfinite(t) else None


def rounded(values: Any) -> list[float]:
    """As many digits as float32 has."""
    return [float(f"{value:.7g}") for value in np.asarray(values, float)]


def event_times(file: dict[str, Any]) -> np.ndarray:
    """Half times and times of levels, NaN for never."""
    times = [*file["half times"], *file["loss levels"].values()]
    return np.array([np.nan if t is None else t for t in times])


def flow_of(
    data: str, preprocessing: str, c: float, seed: int, hidden: tuple[int, ...], until: float
) -> Flow:
    """That of a figure; figures share those that go far enough.

    **Raises:** `LookupError` if none of `all_flows` is.
    """
    for flow in all_flows():
        what = (flow.data, flow.preprocessing, flow.c, flow.seed, flow.hidden)
        if what == (data, preprocessing, c, seed, hidden) and flow.end >= until and not flow.finer:
            return flow
    raise LookupError(f"no flow of {data}, {preprocessing}, c = {c:g}, seed {seed}, {hidden}.")


def all_flows() -> list[Flow]:
    """Those of the figures, in the order in which they are run.

    Seed 0 of every kind first, then the other seeds, then the finer ones.
    """
    kinds = [
        *(("mnist", "pixel", c, (512,), 24.0, 5) for c in (10.0, 0.0)),
        *(("cifar10", "pixel", c, (512, 512), 16.0, 5) for c in (10.0, 0.0)),
        *(("cifar10", "pixel", c, (1024,), 16.0, 3) for c in (10.0, 0.0)),
        *(("mnist", "global", c, (512,), 24.0, 5) for c in (10.0, 0.0)),
        *(("cifar10", "global", c, (1024,), 16.0, 3) for c in (10.0, 0.0)),
    ]
    flows = [
        Flow(data, way, c, seed, hidden, end)
        for seed in range(5)
        for data, way, c, hidden, end, seeds in kinds
        if seed < seeds
    ]
    return flows + [dataclasses.replace(flow, finer=True) for flow in flows if flow.seed == 0]
