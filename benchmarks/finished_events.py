"""Event times of smooth flows by the step's dense output, and finished by a step that ends there.

    python benchmarks/finished_events.py [--quick]

Five flows, of linear networks of two and three layers and of tanh modules, by Dopri8 and Tsit5 at
several tolerances. The events are ten levels of the loss, from .95 to .1 of its start. Before
events were finished, their times were roots of the step's dense output: they are found again here,
from `flow.network(t)` of a run with `dense=True`. The truth is the closed form in the first flow, a
run by Dopri8 at 1e-13 in the others; the closed form tells how good that is. Writes
`finished_events.json` and its table to `benchmarks/results/`.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import flowlin as fl

SOLVERS = {"Dopri8": diffrax.Dopri8(), "Tsit5": diffrax.Tsit5()}
RTOLS = (1e-4, 1e-6, 1e-8, 1e-10)
SHARES = np.array([0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
FINEST = 1e-13
TINY = 1e-18  # a time that counts as no error at all


class Problem(NamedTuple):
    """A flow: its name, network and task, an end, and its exact loss where there is one."""

    name: str
    network: Any
    task: fl.Task
    t1: float
    exact: Callable[[float], float] | None


def loss_on_data(network: Any, task: fl.Task) -> jax.Array:
    """Half the mean squared error."""
    off = jax.vmap(network)(task.x) - task.y
    return 0.5 * jnp.mean(jnp.sum(off**2, axis=1))


def loss_for_each_level(network: Any, task: fl.Task) -> jax.Array:
    """The loss as often as there are levels."""
    return loss_on_data(network, task) * jnp.ones(len(SHARES))


def problems() -> list[Problem]:
    """The five flows."""
    tree, gauss = fl.tasks.hierarchy(), _common.gaussian(12, 5, 2)
    modes = fl.theory.modes(tree, 1.0)
    strengths = np.linspace(0.05, 0.1, modes.u.shape[1])
    aligned = fl.LinearNetwork.balanced(
        tree, product=(modes.u * strengths) @ modes.v.T, key=jax.random.key(1)
    )
    solution = fl.theory.solve(aligned, tree)
    keys = jax.random.split(jax.random.key(3), 4)
    wide = fl.LinearNetwork.init(gauss, 8, 0.05, key=keys[0])
    deep = fl.LinearNetwork.init(tree, (12, 12), 0.05, key=keys[1])
    one, two = (
        eqx.nn.MLP(5, 2, 8, depth, jnp.tanh, key=key) for depth, key in ((1, keys[2]), (2, keys[3]))
    )
    return [
        Problem("linear, aligned", aligned, tree, 40.0, lambda t: float(solution.loss(t))),
        Problem("linear", wide, gauss, 40.0, None),
        Problem("linear, three layers", deep, tree, 60.0, None),
        Problem("tanh", one, gauss, 100.0, None),
        Problem("tanh, two hidden layers", two, gauss, 100.0, None),
    ]


def run(problem: Problem, rtol: float, solver: Any, dense: bool) -> Any:
    """A run that logs when the loss falls to each of its levels."""
    start = float(loss_on_data(problem.network, problem.task))
    falls = fl.Crossing(
        lambda network, task: loss_on_data(network, task) * jnp.ones(len(SHARES)),
        level=SHARES * start,
        direction="down",
        name="loss",
    )
    return fl.gradient_flow(
        problem.network,
        problem.task,
        problem.t1,
        rtol=rtol,
        solver=solver,
        events=falls,
        dense=dense,
    )


@eqx.filter_jit
def dense_loss(flow: Any, task: fl.Task, t: Any) -> jax.Array:
    """The loss on a run's dense output."""
    return loss_on_data(flow.network(t), task)


def dense_times(flow: Any, problem: Problem, levels: np.ndarray) -> np.ndarray:
    """Where the dense output has its levels, by the secant method from the finished times."""
    found = np.full(len(levels), np.nan)
    for k, time in enumerate(np.asarray(flow.events.first("loss"))):
        if np.isfinite(time):
            found[k] = scipy.optimize.newton(
                lambda t, k=k: float(dense_loss(flow, problem.task, t)) - levels[k],
                time,
                x1=time * (1 + 1e-7),
                tol=1e-15 * time,
                maxiter=20,
                disp=False,
            )
    return found


def true_times(problem: Problem) -> tuple[np.ndarray, float]:
    """The true times, and how far the finest run is from the closed form, where there is one."""
    finest = np.asarray(run(problem, FINEST, SOLVERS["Dopri8"], False).events.first("loss"))
    if problem.exact is None:
        return finest, 0.0
    levels, exact = SHARES * problem.exact(0.0), problem.exact
    times = [
        scipy.optimize.brentq(lambda t, k=k: exact(t) - levels[k], 0.9 * one, 1.1 * one, xtol=1e-15)
        for k, one in enumerate(finest)
    ]
    return np.array(times), float(np.max(np.abs(finest - times)))


def main() -> None:
    """Measure, print, write."""
    quick = _common.parser(__doc__).parse_args().quick
    warnings.simplefilter("ignore")  # of the secant method, which cannot better a rounding
    chosen = problems()[: 1 if quick else None]
    rtols = RTOLS[1:2] if quick else RTOLS
    errors: dict[tuple[str, float], list[tuple[np.ndarray, ...]]] = {}
    apart = 0.0
    for problem in chosen:
        truth, off = true_times(problem)
        apart = max(apart, off)
        levels = SHARES * float(loss_on_data(problem.network, problem.task))
        for (name, solver), rtol in ((pair, r) for pair in SOLVERS.items() for r in rtols):
            flow = run(problem, rtol, solver, True)
            finished = np.asarray(flow.events.first("loss"))
            stated = np.full(len(SHARES), np.inf)
            for row in flow.events.table():
                stated[row["index"]] = row["uncertainty"]
            by_dense = np.abs(dense_times(flow, problem, levels) - truth)
            known = np.isfinite(truth) & np.isfinite(by_dense)
            found = by_dense, np.abs(finished - truth), stated
            errors.setdefault((name, rtol), []).append(tuple(part[known] for part in found))
    results = []
    for (name, rtol), parts in errors.items():
        dense, finished, stated = (np.concatenate(part) for part in zip(*parts, strict=True))
        results.append({
            "solver": name,
            "rtol": rtol,
            "events": len(dense),
            "dense, median": float(np.median(dense)),
            "finished, median": float(np.median(finished)),
            "dense, largest": float(np.max(dense)),
            "finished, largest": float(np.max(finished)),
            "dense over finished": float(np.median(dense / np.maximum(finished, TINY))),
            "finished, within 3 ±": float(np.mean(finished <= 3 * stated + 2e-15)),
        })  # fmt: skip
    text = _common.markdown_table(
        list(results[0]),
        [[f"{v:.2g}" if isinstance(v, float) else v for v in row.values()] for row in results],
    )
    text += f"\n\nThe run at {FINEST} is within {apart:.1e} of the closed form."
    print(text)
    if not quick:
        _common.save("finished_events", [*results, {"finest run off": apart}], text)


if __name__ == "__main__":
    main()
