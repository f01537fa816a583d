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
# What a sample loss of 0.025 may mean, in terms of half the squared error per sample.
STOPS = {"half squared error": 0.025, "squared error / 10": 0.125}
TEST = 500
FINER, FINEST = 0.1, 2e-6  # times the tolerance, but not beyond what float32 holds
# Tolerances of averaged gates and of Bosh3 with which errors of times are below a percent. With one
# mean, where the first mode is fast, and on CIFAR-10 without bias, where the ninth mode is slow at
# half its strength, 1e-3 was off by 1.3 and 6 %. The latter's finer run is at a tenth of 1e-3.
AVERAGED, TIGHTER, ACROSS = 1e-3, 2e-4, 1e-5


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
        if len(self.hidden) > 1:
            usual = ACROSS
        elif self.preprocessing == "global":
            usual = TIGHTER
        else:
            usual = AVERAGED
        if self.finer:
            return max(usual * FINER, FINEST)
        slow = self.data == "cifar10" and not self.c and len(self.hidden) == 1
        return min(usual, TIGHTER) if slow else usual

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
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        checkpoint = CHECKPOINTS / f"{self.name}.npz"
        flow = fl.gradient_flow(
            network, task, self.end, ts=self.times, checkpoint=checkpoint,
            progress=fl.LogProgress(60.0), **self.looks(network, task), **self.method,
        )  # fmt: skip
        checkpoint.unlink(missing_ok=True)
        rows = np.isfinite(flow.ts)  # those after a stop are not
        return {
            **{k: v for k, v in dataclasses.asdict(self).items() if k != "samples"},
            "images": task.samples,
            "rtol": self.rtol,
            **self.timed(flow),
            "evaluations": int(flow.stats["evaluations"]),
            "steps": int(flow.stats["num_accepted_steps"]),
            "rejected": int(flow.stats["num_rejected_steps"]),
            "solver": str(flow.stats["solver"]),
            "kinks": str(flow.stats["kinks"]),
            "device": jax.devices()[0].device_kind,
            "seconds since it was last started": round(time.monotonic() - start),
            "t": rounded(flow.ts[rows]),
            "loss": rounded(flow.losses[rows]),
            **self.seen({name: np.asarray(v)[rows] for name, v in flow.observed.items()}),
        }

    def looks(self, network: fl.ReLUNetwork, task: fl.Task) -> dict[str, Any]:
        """Its events, and what is seen in its rows."""
        modes = fl.theory.modes(task, network)
        return {"events": watched(modes), "observe": {"modes": modes}}

    def timed(self, flow: fl.Trajectory) -> dict[str, Any]:
        """When its events came."""
        return timed(flow)

    def seen(self, observed: dict[str, np.ndarray]) -> dict[str, Any]:
        """What is kept of what was seen: strengths of the first modes."""
        return {"modes": rounded(observed["modes"][:, :MODES])}

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


@dataclasses.dataclass(frozen=True)
class Stopped(Flow):
    """A flow up to where the lead paper's Fig. 1B and C stop training: a sample loss of 0.025.

    `STOPS` are what that may mean in terms of half the squared error. In its rows stand the
    effective rank of the hidden Gram matrix on `TEST` of the test images, the error on these, and
    that on all of them.
    """

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{super().name}-stop"

    @property
    def times(self) -> np.ndarray:
        """Of its rows: evenly in log t, from before the first stop."""
        return np.append(0, np.geomspace(10, self.end, 90))

    def looks(self, network: fl.ReLUNetwork, task: fl.Task) -> dict[str, Any]:
        """The stops, of which the lower ends it."""
        del network, task
        on, measures = fl.measures.OnTask, fl.measures
        few, every = (
            fl.tasks.mnist(n, test=True, center=True).astype(jnp.float32) for n in (TEST, None)
        )
        lowest = min(STOPS.values())
        events = [fl.LossBelow(v, name=k, terminate=v == lowest) for k, v in STOPS.items()]
        observe = {
            "rank": on(rank_of, few),
            "few": on(measures.error_rate, few),
            "every": on(measures.error_rate, every),
        }
        return {"events": events, "observe": observe}

    def timed(self, flow: fl.Trajectory) -> dict[str, Any]:
        """When it came to the stops."""
        return {"stops": {name: finite(flow.events.first(name)) for name in STOPS}}

    def seen(self, observed: dict[str, np.ndarray]) -> dict[str, Any]:
        """Rank and errors."""
        return {name: rounded(rows) for name, rows in observed.items()}


def rank_of(network: Any, task: fl.Task) -> Any:
    """Effective rank of the Gram matrix of hidden representations."""
    return fl.measures.effective_rank_of_gram(fl.measures.hidden(network, task))


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


def rounded(values: Any) -> list[Any]:
    """As many digits as float32 has, in lists."""
    values = np.asarray(values, float)
    return [rounded(row) if values.ndim > 1 else float(f"{row:.7g}") for row in values]


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


def all_stopped() -> list[Flow]:
    """Those to the stops of Fig. 1, with bias and without."""
    return [
        Stopped("mnist", "pixel", c, seed, (512,), 8e3) for seed in range(5) for c in (10.0, 0.0)
    ]
