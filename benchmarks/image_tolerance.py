"""By which tolerance the events of a ReLU flow on images are right, and what events cost.

    python benchmarks/image_tolerance.py [--quick] [--only WORD] [--policy WORD]

Subsets of real images, networks of the papers' sizes from their initial weights (variance 2e-4,
seed 0, float32). Errors: the largest relative error of the half times of the first ten modes and of
the times at which the loss falls to `LEVELS`, against a run at the tightest tolerance, by two
policies for kinks that are of no common code: gates averaged over a step, and Bosh3 across them.
Cost: evaluations, and the time of a run with its events over that of the same run without.

Writes `image_tolerance.json` and `image_tolerance.md` to `benchmarks/results/`.
"""

import json
from typing import Any, NamedTuple

import _common
import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Bosh3

import flowlin as fl

LEVELS = (0.45, 0.4, 0.35, 0.3)
MODES = 10


class Problem(NamedTuple):
    """A flow: which images, and from which weights until when."""

    data: str
    samples: int | None
    standardise: bool
    hidden: tuple[int, ...]
    c: float
    t1: float

    @property
    def task(self) -> fl.Task:
        """In float32, as the figures on all images have it."""
        maker = {"mnist": fl.tasks.mnist, "cifar10": fl.tasks.cifar10}[self.data]
        how = {"center": not self.standardise, "standardise": self.standardise}
        return maker(self.samples, **how).astype(jnp.float32)

    def network(self, task: fl.Task) -> fl.ReLUNetwork:
        """The initial weights of seed 0."""
        how = {"bias": True, "bias_strength": self.c, "key": jax.random.key(0)}
        return fl.ReLUNetwork.init(task, self.hidden, 2e-4, **how)


def problems(samples: int) -> dict[str, Problem]:
    """The figures' flows on so many images."""
    found = {}
    for c in (10.0, 0.0):
        found |= {
            f"MNIST, mean per pixel, c = {c:g}": Problem("mnist", samples, False, (512,), c, 24),
            f"MNIST, one mean, c = {c:g}": Problem("mnist", samples, True, (512,), c, 24),
            f"CIFAR-10, mean per pixel, c = {c:g}": Problem(
                "cifar10", samples, False, (1024,), c, 16
            ),
            f"CIFAR-10, two hidden layers, c = {c:g}": Problem(
                "cifar10", samples, False, (512, 512), c, 16
            ),
        }
    return found


def averaged(rtol: float) -> tuple[str, dict[str, Any]]:
    """Gates averaged over every step."""
    return f"averaged {rtol:g}", {"kinks": fl.AveragedKinks(), "rtol": rtol}


def across(rtol: float, solver: Any = None) -> tuple[str, dict[str, Any]]:
    """Bosh3, or another method, that takes no note of kinks."""
    solver = Bosh3() if solver is None else solver
    how = {"kinks": fl.IgnoreKinks(), "solver": solver, "rtol": rtol}
    return f"{type(solver).__name__} {rtol:g}", how


def policies(problem: Problem) -> list[tuple[str, dict[str, Any]]]:
    """The reference first."""
    found = [across(2e-6), across(1e-3), across(1e-4), across(1e-5), across(1e-3, fl.RKC())]
    return found + [averaged(1e-3), averaged(1e-4)] * (len(problem.hidden) == 1)


def events_of(network: fl.ReLUNetwork, task: fl.Task) -> list[Any]:
    """Half times of all modes, and falls of the loss."""
    modes = fl.theory.modes(task, network)
    levels = [fl.LossBelow(level, name=f"{level:g}") for level in LEVELS]
    return [fl.ModeHits(modes, share=0.5), *levels]


def times(flow: fl.Trajectory) -> np.ndarray:
    """Of all events; inf for what is not reached."""
    hits = np.asarray(flow.events.first("mode"))[:MODES]
    return np.append(hits, [float(flow.events.first(f"{level:g}")) for level in LEVELS])


def worst(found: np.ndarray, known: np.ndarray) -> tuple[float, int]:
    """The largest relative error of what both reach well before the end, and which it is."""
    both = np.isfinite(found) & np.isfinite(known)
    missing = np.isfinite(known) & (known < 0.95 * np.max(known[np.isfinite(known)])) & ~both
    off = np.where(both, np.abs(np.where(both, found, 1) / np.where(both, known, 1) - 1), 0.0)
    off = np.where(missing, np.inf, off)
    return float(np.max(off)), int(np.argmax(off))


def judged(problem: Problem, word: str, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the policies whose names hold a word; of the others what was saved of them."""
    task = problem.task
    network = problem.network(task)
    events, rows = events_of(network, task), []
    kept = {row["policy"]: row for row in saved if word not in row["policy"]}
    known = next((np.asarray(row["times"]) for row in kept.values()), None)  # the reference's
    for name, how in policies(problem):
        if name in kept:
            rows.append(kept[name])
            continue

        def run(events: list[Any], how: dict[str, Any] = how) -> fl.Trajectory:
            return fl.gradient_flow(network, task, problem.t1, events=events, **how)

        cold, flow = _common.seconds(lambda run=run: run(events))
        found = times(flow)
        known = found if known is None else known
        error, which = worst(found, known)
        row = {
            "policy": name, "error": error, "of": which, "times": found.tolist(),
            "evaluations": int(flow.stats["evaluations"]), "solver": str(flow.stats["solver"]),
        }  # fmt: skip
        if name in {across(1e-5)[0], averaged(1e-3)[0]}:
            run([])
            both = {"with": lambda run=run: run(events), "without": lambda run=run: run([])}
            took = _common.alternated(both, 1)
            row["time with events over without"] = took["with"] / took["without"]
        rows.append(row)
        print(name, f"{error:.1e} ({which})", row["evaluations"], f"{cold:.0f} s",
              row.get("time with events over without"), flush=True)  # fmt: skip
    return rows


def table(results: list[dict[str, Any]]) -> str:
    """A line for each policy on each problem."""
    rows = []
    for row in results:
        cost = row.get("time with events over without")
        rows.append(
            [row["problem"], row["policy"], f"{row['error']:.1e}", row["evaluations"],
             row["solver"], "" if cost is None else f"{cost:.2f}"]
        )  # fmt: skip
    head = ["flow", "policy, rtol", "worst error", "evaluations", "solver", "events cost"]
    return _common.markdown_table(head, rows)


def main() -> None:
    """Problem by problem; with `--only` or `--policy`, the others stay as they were saved."""
    parser = _common.parser(__doc__)
    parser.add_argument("--only", default="", help="problems whose name holds this")
    parser.add_argument("--policy", default="", help="policies whose name holds this")
    args = parser.parse_args()
    path, results = _common.RESULTS / "image_tolerance.json", []
    if (args.only or args.policy) and path.exists():
        results = json.loads(path.read_text())
    for name, problem in problems(200 if args.quick else 2000).items():
        if args.only not in name:
            continue
        print(name, flush=True)
        small = problem._replace(hidden=(16,) * len(problem.hidden), t1=2.0)
        saved = [row for row in results if row["problem"] == name]
        rows = judged(small if args.quick else problem, args.policy, saved)
        found = [{"problem": name, **row} for row in rows]
        results = [row for row in results if row["problem"] != name] + found
        if not args.quick:
            _common.save("image_tolerance", results, table(results))
    print(table(results))


if __name__ == "__main__":
    main()
