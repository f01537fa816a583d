"""The exact walk against descent and plain solvers at equal error.

    python benchmarks/matched_error.py [--quick] [--seeds 1] [--t1 60]

The semantic tree, 64 hidden units with biases, variance 2e-4, float64. Each contender is refined
(descent: the rate halved from 1e-2; solvers: rtol from 1e-3 by factors of sqrt(10), atol = rtol /
100) until its parameters at t1 are within a relative 1e-5, then 1e-6, of the reference, the exact
walk at rtol 1e-12. Descent, which knows nothing of that walk, checks it: its distances and their
slope are in the JSON. Contenders:

- exact walk: `fl.gradient_flow(..., kinks=fl.ExactKinks())`.
- descent, bare loop: one jitted `fori_loop` over `jax.grad`, nothing looked at.
- `fl.gradient_descent` at the bare loop's rate: it counts always-on units at every step.
- diffrax Tsit5 on `-jax.grad` of the loss, at most 300,000 steps.
- scipy RK45 and LSODA on the same field, jitted, at most 300,000 evaluations.

Those that meet the error are timed again, taking turns, without their compilation: medians. A
solver that exceeds its limit is listed as not finished with what it had spent. Writes
`matched_error.json` and the table `matched_error.md` to `benchmarks/results/`.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp
from tqdm import tqdm

import flowlin as fl

LIMIT = 300_000
TOLERANCES = tuple(10 ** (-3 - k / 2) for k in range(17))
RATES = tuple(1e-2 / 2**k for k in range(15))
EXACT, BARE = "exact walk", "descent, bare loop"
NAMES = (EXACT, BARE, "fl.gradient_descent", "diffrax Tsit5", "scipy RK45", "scipy LSODA")


class Unfinished(Exception):
    """A solver exceeded its limit."""


class Contender(NamedTuple):
    """A method and the knob that it is refined by."""

    run: Callable[[float], Any]  # knob -> (network, work)
    knobs: tuple[float, ...]
    unit: str  # of work


def velocity(network: Any, task: fl.Task):
    """-grad of the loss as a function of the parameters."""
    loss = fl.SquaredError()

    def value(parameters):
        return loss(network.with_parameters(parameters).outputs(task.x), task.y)

    return lambda parameters: jax.tree.map(jnp.negative, jax.grad(value)(parameters))


def by_diffrax(network: Any, task: fl.Task, t1: float, limit: int):
    """Tsit5 on the bare field."""
    field = velocity(network, task)

    @jax.jit
    def solve(rtol):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: field(y)),  # pyright: ignore
            diffrax.Tsit5(),
            t0=0.0,
            t1=t1,
            dt0=None,
            y0=network.parameters,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
            max_steps=limit,
            throw=False,
        )

    def run(rtol):
        solution = solve(jnp.asarray(rtol))
        if solution.result != diffrax.RESULTS.successful:
            raise Unfinished
        final = jax.tree.map(lambda a: a[0], solution.ys)
        return network.with_parameters(final), int(solution.stats["num_steps"])

    return run


def by_scipy(network: Any, task: fl.Task, t1: float, limit: int, method: str):
    """A method of `solve_ivp` on the same field."""
    start, unravel = ravel_pytree(network.parameters)
    field = velocity(network, task)
    compiled = jax.jit(lambda y: ravel_pytree(field(unravel(y)))[0])

    def run(rtol):
        count = 0

        def counted(t, y):
            nonlocal count
            count += 1
            if count > limit:
                raise Unfinished
            return np.asarray(compiled(y))

        options: Any = {"method": method, "rtol": rtol, "atol": rtol / 100, "t_eval": [t1]}
        found = solve_ivp(counted, (0.0, t1), np.asarray(start), **options)
        if not found.success:
            raise Unfinished
        return network.with_parameters(unravel(jnp.asarray(found.y[:, -1]))), count

    return run


def contenders(network: Any, task: fl.Task, t1: float, limit: int) -> dict[str, Contender]:
    """All of them, on one problem."""

    def exact(rtol):
        flow = _common.exact_walk(network, task, t1, rtol)
        return flow.final, int(flow.stats["num_steps"])

    def bare(rate):
        return _common.descended(network, task, t1, rate), round(t1 / rate)

    def library(rate):
        steps = round(t1 / rate)
        return fl.gradient_descent(network, task, t1 / steps, steps).final, steps

    return {
        EXACT: Contender(exact, TOLERANCES, "steps"),
        BARE: Contender(bare, RATES, "steps"),
        NAMES[2]: Contender(library, RATES, "steps"),
        NAMES[3]: Contender(by_diffrax(network, task, t1, limit), TOLERANCES, "steps"),
        NAMES[4]: Contender(by_scipy(network, task, t1, limit, "RK45"), TOLERANCES, "evaluations"),
        NAMES[5]: Contender(by_scipy(network, task, t1, limit, "LSODA"), TOLERANCES, "evaluations"),
    }


def refined(contender: Contender, reference: Any, targets: tuple[float, ...]) -> list[dict]:
    """Refine until the smallest target is met: every knob tried, its error, its time."""
    tried: list[dict] = []
    for knob in contender.knobs:
        row: dict[str, Any] = {"knob": knob}
        tried.append(row)
        start = time.perf_counter()
        try:
            taken, (network, work) = _common.seconds(lambda knob=knob: contender.run(knob))
        except Unfinished:
            row["unfinished after"] = time.perf_counter() - start
            break
        off = float(fl.distance(network, reference, relative=True))
        row |= {"seconds": taken, "error": off, "work": work}
        if row["error"] <= min(targets):
            break
    return tried


def matched(tried: list[dict], target: float) -> dict | None:
    """The coarsest knob that meets a target."""
    return next((row for row in tried if row.get("error", np.inf) <= target), None)


def compare(seed: int, t1: float, targets: tuple[float, ...], limit: int, repeats: int):
    """All contenders on one seed: a row per target and contender."""
    task = fl.tasks.hierarchy()
    network = fl.ReLUNetwork.init(task, key=jax.random.key(seed))
    reference = _common.exact_walk(network, task, t1, 1e-12)
    methods = contenders(network, task, t1, limit)
    tried: dict[str, list[dict]] = {}
    for name, method in tqdm(methods.items(), f"seed {seed}: refining"):
        if name == NAMES[2]:
            continue  # the same iterates as the bare loop's
        tried[name] = refined(method, reference.final, targets)
    tried[NAMES[2]] = tried[BARE]
    rows = []
    for target in tqdm(targets, f"seed {seed}: timing"):
        chosen = {name: matched(tried[name], target) for name in NAMES}
        runs = {
            name: (lambda m=methods[name], k=row["knob"]: m.run(k))
            for name, row in chosen.items()
            if row is not None
        }
        if NAMES[2] in runs:
            runs[NAMES[2]]()  # the number of steps is compiled in
        times = _common.alternated(runs, repeats)
        for name, row in chosen.items():
            one = {"seed": seed, "target": target, "contender": name, "unit": methods[name].unit}
            best = min((r["error"] for r in tried[name] if "error" in r), default=None)
            spent = tried[name][-1].get("unfinished after")
            one |= {"best error": best, "tried": len(tried[name]), "unfinished after": spent}
            if row is not None:
                one |= {"knob": row["knob"], "error": row["error"], "work": row["work"]}
                one |= {"seconds": times[name], "ratio": times[name] / times[EXACT]}
            rows.append(one)
    bare = [(r["knob"], r["error"]) for r in tried[BARE]]
    log_rates, log_errors = np.log(np.array(bare).T)
    slope = float(np.polyfit(log_rates, log_errors, 1)[0])
    slides = int(np.sum(np.asarray(reference.events.new) == 0))
    check = {"seed": seed, "t1": t1, "events": len(reference.events), "slides entered": slides}
    return rows, {**check, "slope of descent": slope, "rates, distances of descent": bare}


def markdown(rows: list[dict], t1: float) -> str:
    """The table as Markdown: medians over seeds."""
    head = ("error", "contender", "rtol or rate", "work", "seconds", "times the exact walk's")
    body = []
    for target in dict.fromkeys(r["target"] for r in rows):
        for name in NAMES:
            mine = [r for r in rows if r["target"] == target and r["contender"] == name]
            met = [r for r in mine if "ratio" in r]
            if len(met) < len(mine):
                bests = [r["best error"] for r in mine if r["best error"] is not None]
                best = f"best error {min(bests):.0e}" if bests else "no tolerance finished"
                spent = [r["unfinished after"] for r in mine if r["unfinished after"]]
                spent = f" after {np.median(spent):.0f} s" if spent else ""
                reached = f"not met in {len(mine) - len(met)} of {len(mine)} seeds{spent}, {best}"
                body.append((f"{target:.0e}", name, "-", "-", "-", reached))
                continue
            ratios = [r["ratio"] for r in met]
            body.append(
                (
                    f"{target:.0e}", name, f"{np.median([r['knob'] for r in met]):.1e}",
                    f"{np.median([r['work'] for r in met]):,.0f} {met[0]['unit']}",
                    f"{np.median([r['seconds'] for r in met]):.3f}",
                    f"{np.median(ratios):.1f} ({min(ratios):.1f} ... {max(ratios):.1f})",
                )
            )  # fmt: skip
    seeds = len({r["seed"] for r in rows})
    return f"t1 = {t1:g}, medians over {seeds} seeds.\n\n{_common.markdown_table(head, body)}"


def main() -> None:
    """Compare on every seed."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--t1", type=float, default=60.0)
    given = parser.parse_args()
    targets, limit, repeats = (1e-5, 1e-6), LIMIT, 5
    if given.quick:
        targets, limit, repeats, given.seeds, given.t1 = (1e-2,), 5000, 1, 1, 2.0
    rows, checks = [], []
    for seed in range(given.seeds):
        found, check = compare(seed, given.t1, targets, limit, repeats)
        rows, checks = rows + found, [*checks, check]
        print(markdown(rows, given.t1), check, sep="\n", flush=True)
        if not given.quick:
            _common.save("matched_error", rows + checks, markdown(rows, given.t1))


if __name__ == "__main__":
    main()
