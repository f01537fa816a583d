"""Exactness at every scale of the initial weights, and what it costs at ordinary ones.

    python benchmarks/scale.py [--quick] [--cost] [--aligning]

Errors: from starts between 1 and 1e-40, the largest relative error of the times at which modes are
half learnt, or a loss falls: with default arguments, and with the `atol` of `rtol` / 100 that was
the default of earlier versions. References are closed forms, SciPy's Radau in logarithmic
coordinates, and the exact walk at `rtol` = 1e-11 with an error bound for each number alone.

Writes `scale.json` and `scale.md` to `benchmarks/results/`.

With `--cost` instead: evaluations of the field, and the relative error of the parameters at the end
against a run at `rtol` = 1e-12, both ways, for ordinary starts (variance 2e-4 unless said) of
several seeds.
Of the change of evaluations the mean over seeds, and half of its 95 % interval by Student's t; of
errors the geometric means. Writes `scale_cost.json` and `scale_cost.md`.

With `--aligning` instead: 200 ReLU units without biases on 75 samples of 150 inputs, where pairs
slide while the units align, by averaged gates at several tolerances against descent. Descent is
done at rates of .002 and .001 and extrapolated; the difference of both says how far that goes.
Also the tree with 16 units by averaged gates against the exact walk, and long after convergence.
Writes `scale_aligning.json` and `scale_aligning.md` (a quarter of an hour on one core).
"""

import functools
from collections.abc import Callable
from typing import Any

import _common
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.integrate import solve_ivp

import flowlin as fl

TREE = fl.tasks.hierarchy()
MODES = fl.theory.modes(TREE)
HALF = 0.5 * MODES.full_strength
STARTS = (1e-3, 1e-6, 1e-12, 1e-20, 1e-30, 1e-40)
NEVER = float("inf")


def worst(found: Any, exact: Any) -> float:
    """The largest relative error; inf where something never came."""
    found, exact = np.asarray(found), np.asarray(exact)
    return float(np.max(np.where(np.isfinite(found), np.abs(found / exact - 1), NEVER)))


def linear(start: float, layers: int = 2, **how: Any) -> float:
    """Eight modes of the tree, aligned and balanced, of strength `start`: half times."""
    product = (MODES.u * start) @ MODES.v.T
    hidden, key = (16,) * (layers - 1), jax.random.key(1)
    network = fl.LinearNetwork.balanced(TREE, hidden, bias=False, product=product, key=key)
    exact = fl.theory.Mode(MODES.s, MODES.d, start, layers).hitting_time(HALF)
    end = 1.2 * float(jnp.max(exact))
    flow = fl.gradient_flow(network, TREE, end, events=fl.ModeHits(MODES, HALF), **how)
    return worst(flow.events.first("mode"), exact)


def linear_deep(start: float, **how: Any) -> float:
    """The same in three layers, for 20,000 steps at most."""
    return linear(start, 3, max_steps=20_000, throw=False, **how)


def scalar(start: float, **how: Any) -> float:
    """One input, one unit, one output, both weights sqrt(start): the half time."""
    one, w = fl.Task([[1.0]], [[1.0]]), np.full((1, 1), start**0.5)
    exact = fl.theory.hitting_time(0.5, 1.0, 1.0, start)
    network = fl.LinearNetwork((w, w))
    events = fl.ModeHits(fl.theory.modes(one), 0.5)
    flow = fl.gradient_flow(network, one, 1.5 * float(exact), events=events, **how)
    return worst(flow.events.first("mode"), exact)


def deep(start: float, **how: Any) -> float:
    """Three layers of one unit, all weights start^(1/3): the half time."""
    one, w = fl.Task([[1.0]], [[1.0]]), np.full((1, 1), start ** (1 / 3))
    exact = fl.theory.Mode(1.0, 1.0, start, 3).half_time
    events = fl.ModeHits(fl.theory.modes(one), 0.5)
    network, end = fl.LinearNetwork((w, w, w)), 1.5 * float(exact)
    flow = fl.gradient_flow(network, one, end, events=events, **how)
    return worst(flow.events.first("mode"), exact)


def graph(start: float, **how: Any) -> float:
    """Two ways of one unit each from a source to a sink, equally strong: the half time."""
    one, w = fl.Task([[1.0]], [[1.0]]), np.full((1, 1), (start / 2) ** 0.5)
    edges = {("in", "a"): w, ("a", "out"): w, ("in", "b"): w, ("b", "out"): w}
    exact = fl.theory.hitting_time(0.5, 1.0, 1.0, start)
    loss = fl.LossBelow(0.125)  # where the product is one half
    flow = fl.gradient_flow(fl.GatedGraph(edges), one, 1.5 * float(exact), events=loss, **how)
    return worst(flow.events.first("loss"), exact)


def orthogonal(start: float, **how: Any) -> float:
    """Four orthogonal samples, a ReLU unit for each that is off for the others: half times."""
    strength = np.array([1.0, 0.75, 0.5, 0.25])
    task = fl.Task(np.eye(4), np.diag(strength))
    w = start**0.5
    network = fl.ReLUNetwork((w * (np.eye(4) * 1.1 - 0.1), w * np.eye(4)))
    exact = fl.theory.hitting_time(strength / 2, strength / 4, 0.25, start)
    events = [fl.Crossing(Learnt(k), strength[k] / 2, name=f"sample {k}") for k in range(4)]
    flow = fl.gradient_flow(network, task, 1.2 * float(jnp.max(exact)), events=events, **how)
    return worst([flow.events.first(f"sample {k}") for k in range(4)], exact)


class Learnt(eqx.Module):
    """The output of a sample that is to be learnt."""

    sample: int = eqx.field(static=True)

    def __call__(self, network: Any, task: fl.Task) -> jax.Array:
        """Of its own class."""
        return network.outputs(task.x)[self.sample, self.sample]


class Diagonal(eqx.Module):
    """u^2 - v^2 as the weights of a linear model."""

    u: jax.Array
    v: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Its output."""
        return jnp.sum((self.u**2 - self.v**2) * x, keepdims=True)


def diagonal(start: float, **how: Any) -> float:
    """A diagonal network of four inputs, weights sqrt(start): the largest weights' half times."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4))
    beta = np.array([1.0, -0.5, 0.7, 0.3])
    task, alpha = fl.Task(x, (x @ beta)[:, None]), start**0.5
    model = Diagonal(jnp.full(4, alpha), jnp.full(4, alpha))
    exact = in_logarithms(x, beta, alpha)
    events = [
        fl.Crossing(Weight(k), float(beta[k]) / 2, name=f"weight {k}") for k in range(len(beta))
    ]
    flow = fl.gradient_flow(model, task, 1.2 * float(np.max(exact)), events=events, **how)
    return worst([flow.events.first(f"weight {k}") for k in range(4)], exact)


class Weight(eqx.Module):
    """A weight of the linear model."""

    place: int = eqx.field(static=True)

    def __call__(self, model: Any, task: fl.Task) -> jax.Array:
        """u^2 - v^2."""
        return model.u[self.place] ** 2 - model.v[self.place] ** 2


def in_logarithms(x: np.ndarray, beta: np.ndarray, alpha: float) -> np.ndarray:
    """By Radau, of log u and log v: (log u)' = 2 g, (log v)' = -2 g, g = S (beta - w)."""
    s = x.T @ x / len(x)

    def velocity(_: float, z: np.ndarray) -> np.ndarray:
        u, v = np.exp(z[:4]), np.exp(z[4:])
        g = s @ (beta - u**2 + v**2)
        return np.concatenate([2 * g, -2 * g])

    def jacobian(_: float, z: np.ndarray) -> np.ndarray:
        u, v = np.exp(2 * z[:4]), np.exp(2 * z[4:])
        slope = s @ np.concatenate([np.diag(-2 * u), np.diag(2 * v)], axis=1)
        return np.concatenate([2 * slope, -2 * slope])

    def crossing(k: int) -> Callable[..., float]:
        def level(_: float, z: np.ndarray) -> float:
            return float(np.exp(2 * z[k]) - np.exp(2 * z[4 + k]) - beta[k] / 2)

        return level

    end = 40 * (2 - np.log(alpha))
    tight = {"method": "Radau", "rtol": 1e-11, "atol": 1e-11, "jac": jacobian}
    start = np.full(8, np.log(alpha))
    events = [crossing(k) for k in range(4)]
    with np.errstate(over="ignore", invalid="ignore"):  # in steps that Radau takes back
        found = solve_ivp(velocity, (0.0, end), start, events=events, **tight)
    return np.array([times[0] for times in found.t_events])


@functools.cache
def tree_reference(start: float) -> float:
    """The time to 0.8 of the loss by the exact walk, with an error bound for each number."""
    return float(relu_run(start, kinks=fl.ExactKinks(), rtol=1e-11, atol=1e-300))


def relu_run(start: float, **how: Any) -> Any:
    """The time to 0.8 of the loss of 16 ReLU units on the tree, weights of standard deviation."""
    network = fl.ReLUNetwork.init(TREE, 16, start**2, key=jax.random.key(0))
    first = float(fl.measures.loss(network, TREE))
    event = fl.LossBelow(0.8 * first, terminate=True)
    end = 20 - 1.2 * np.log(start)
    return fl.gradient_flow(network, TREE, end, events=event, **how).events.first("loss")


def relu(start: float, **how: Any) -> float:
    """Of 16 ReLU units on the tree: the time to 0.8 of the loss."""
    return worst(relu_run(start, **how), tree_reference(start))


RUNS: dict[str, tuple[Callable[..., float], dict[str, Any]]] = {
    "linear, 8 modes, Dopri8": (linear, {}),
    "linear, 8 modes, RKC at 1e-6": (linear, {"solver": fl.RKC(), "rtol": 1e-6}),
    "linear, 8 modes, RecycledBDF at 1e-6": (linear, {"solver": fl.RecycledBDF(), "rtol": 1e-6}),
    "linear, one scalar mode": (scalar, {}),
    "linear, three layers": (deep, {}),
    "linear, three layers, 8 modes": (linear_deep, {}),
    "graph, two ways": (graph, {}),
    "diagonal (any module)": (diagonal, {}),
    "ReLU, four orthogonal samples, exact walk": (orthogonal, {"kinks": fl.ExactKinks()}),
    "ReLU, the same, averaged gates": (orthogonal, {"kinks": fl.AveragedKinks()}),
    "ReLU, tree, exact walk": (relu, {"kinks": fl.ExactKinks()}),
    "ReLU, tree, averaged gates": (relu, {"kinks": fl.AveragedKinks()}),
}


def with_atol(how: dict[str, Any]) -> dict[str, Any]:
    """The same with an `atol`, below which nothing is controlled."""
    rtol = how.get("rtol", 1e-5 if isinstance(how.get("kinks"), fl.AveragedKinks) else 1e-8)
    return how | {"atol": rtol / 100}


# ---- Samples in more dimensions than there are of them: units align while their pairs slide.

FALLS = (0.9, 0.5, 0.25)
TOLERANCES = (1e-3, 1e-4, 1e-5)
ALIGNING = (1e-6, 1e-10, 1e-20)
WALKED = (1e-6, 1e-8, 1e-10, 1e-20, 1e-40)


def aligning(
    start: float, samples: int = 75, inputs: int = 150, units: int = 200
) -> tuple[fl.Task, fl.ReLUNetwork]:
    """Samples of size 0.1 sqrt(inputs), a sum of 6 units, balanced weights of size `start`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, inputs)) * 0.1
    directions = rng.normal(size=(6, inputs))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    y = np.maximum(x @ directions.T, 0) @ rng.choice([-1.0, 1.0], 6)
    y /= np.linalg.norm(x.T @ y) / samples
    w = rng.normal(size=(units, inputs)) * start / np.sqrt(units * inputs)
    a = np.linalg.norm(w, axis=1) * rng.choice([-1.0, 1.0], units)
    return fl.Task(x, y[:, None]), fl.ReLUNetwork((w, a[None]))


def descended(start: float, rate: float) -> np.ndarray:
    """Times at which the loss has fallen by descent in NumPy's conventions, relu'(0) = 0."""
    task, network = aligning(start)
    (w, a), x, y = network.weights, task.x, task.y[:, 0]
    steps = int((12 - 2.75 * np.log(start)) / rate)

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        w, a = state
        z = x @ w.T
        h = jnp.maximum(z, 0)
        error = (y - h @ a) / len(y)
        dw = (jnp.where(z > 0, 1.0, 0.0) * error[:, None] * a).T @ x
        return (w + rate * dw, a + rate * error @ h), jnp.sum(error**2) * len(y) / 2

    run = jax.jit(lambda state: jax.lax.scan(step, state, None, length=steps)[1])
    losses = np.asarray(run((w, a[0])))
    # Between two steps, on a line.
    found = []
    for fall in FALLS:
        k = int(np.argmax(losses < fall * losses[0]))
        assert k > 0, f"descent did not get to {fall} of the loss"
        before, after = losses[k - 1], losses[k]
        found.append((k - 1 + (before - fall * losses[0]) / (before - after)) * rate)
    return np.array(found)


def by_averages(network: Any, task: fl.Task, t1: float, falls: Any, **how: Any) -> Any:
    """Times at which the loss falls below these shares of its start, and the run."""
    first = float(fl.measures.loss(network, task))
    events = [fl.LossBelow(fall * first, name=f"{fall}") for fall in falls]
    flow = fl.gradient_flow(network, task, t1, events=events, **how)
    return np.array([float(flow.events.first(event.name)) for event in events]), flow


def steps_of(flow: Any) -> str:
    """Tried steps, and those of them that were rejected."""
    return f"{int(flow.stats['num_steps'])} ({int(flow.stats['num_rejected_steps'])})"


def aligning_rows() -> tuple[list[dict[str, Any]], str]:
    """Results and tables of `--aligning`."""
    results, rows = [], []
    for start in ALIGNING:
        coarse, fine = descended(start, 2e-3), descended(start, 1e-3)
        known = 2 * fine - coarse
        shift = float(np.max(np.abs(fine / known - 1)))
        results.append({"start": start, "descent": known.tolist(), "rate .001 is off by": shift})
        cells = []
        for rtol in TOLERANCES:
            task, network = aligning(start)
            end = 1.1 * float(known[-1])
            how = {"kinks": fl.AveragedKinks(), "rtol": rtol}
            found, flow = by_averages(network, task, end, FALLS, **how)
            results.append({"start": start, "rtol": rtol, "found": found.tolist()})
            results[-1] |= {"steps (rejected)": steps_of(flow), "error": worst(found, known)}
            cells.append(f"{worst(found, known):.1e} : {steps_of(flow)}")
        times = ", ".join(f"{t:.3f}" for t in known)
        rows.append([f"{start:g}", times, f"{shift:.0e}", *cells])
        print(rows[-1], flush=True)
    head = ["size", "descent, extrapolated", "by", *(f"rtol {rtol:g}" for rtol in TOLERANCES)]
    text = _common.markdown_table(head, rows)
    walked, more = walked_rows()
    return results + walked, f"{text}\n\n{more}"


def walked_rows() -> tuple[list[dict[str, Any]], str]:
    """The tree by averaged gates against the exact walk, and how long it takes to go on."""
    results, rows = [], []
    for start in WALKED:
        network = fl.ReLUNetwork.init(TREE, 16, start**2, key=jax.random.key(0))
        end = 20 - 1.2 * np.log(start)
        known, _ = by_averages(network, TREE, end, (0.8, 0.6), kinks=fl.ExactKinks())
        found, flow = by_averages(network, TREE, end, (0.8, 0.6), kinks=fl.AveragedKinks())
        results.append({"tree": start, "exact": known.tolist(), "averaged": found.tolist()})
        rows.append(
            [f"{start:g}", *(f"{t:.5f}" for t in known), f"{worst(found, known):.1e}",
             steps_of(flow)]
        )  # fmt: skip
        print(rows[-1], flush=True)
    head = ["tree, std", "exact, .8", ".6", "averaged, worst error", "steps (rejected)"]
    text, rows = _common.markdown_table(head, rows), []
    network = fl.ReLUNetwork.init(TREE, 16, 1e-12, key=jax.random.key(0))
    for t1 in (1e3, 1e4, 1e6):
        events, kinks = fl.UnitSwitches(), fl.AveragedKinks()
        flow = fl.gradient_flow(network, TREE, t1, kinks=kinks, events=events)
        evaluations = int(flow.stats["evaluations"])
        results.append({"tree until": t1, "evaluations": evaluations})
        rows.append([f"{t1:g}", steps_of(flow), evaluations, flow.stats["solver"]])
        print(rows[-1], flush=True)
    head = ["tree, std 1e-6, until", "steps (rejected)", "evaluations", "solver"]
    return results, f"{text}\n\n{_common.markdown_table(head, rows)}"


# ---- Ordinary starts.


SEEDS = 5


def ordinary(seed: int) -> dict[str, tuple[Any, fl.Task, float, dict[str, Any]]]:
    """Networks with variance 2e-4, their tasks, and until when."""
    digits, mnist = fl.tasks.digits(samples=200, seed=seed), fl.tasks.mnist(200)
    teacher = fl.tasks.teacher(50, (2.0, 1.0, 0.5), inputs=20, key=jax.random.key(1 + seed))
    key, xor, gaussian = (
        jax.random.key(seed),
        fl.tasks.offset_xor(),
        _common.gaussian(40, seed=seed),
    )
    averaged = {"kinks": fl.AveragedKinks()}
    linear, relu = fl.LinearNetwork.init, fl.ReLUNetwork.init
    return {
        "linear, tree": (linear(TREE, 64, key=key), TREE, 20.0, {}),
        "linear, tree, two hidden layers": (linear(TREE, (32, 32), key=key), TREE, 100.0, {}),
        "linear, the same, variance 1e-2": (linear(TREE, (32, 32), 1e-2, key=key), TREE, 40.0, {}),
        "linear, teacher": (linear(teacher, 32, key=key), teacher, 10.0, {}),
        "linear, digits": (linear(digits, 32, key=key), digits, 2.0, {}),
        "linear, teacher, RKC at 1e-4": (
            linear(teacher, 32, key=key), teacher, 10.0, {"solver": fl.RKC(), "rtol": 1e-4}
        ),
        "linear, teacher, RecycledBDF at 1e-6": (
            linear(teacher, 32, key=key), teacher, 10.0,
            {"solver": fl.RecycledBDF(), "rtol": 1e-6},
        ),
        "ReLU, tree, exact walk": (relu(TREE, 64, key=key), TREE, 30.0, {}),
        "ReLU, offset xor, exact walk": (relu(xor, 20, key=key), xor, 30.0, {}),
        "ReLU, gaussian, exact walk": (relu(gaussian, 20, key=key), gaussian, 20.0, {}),
        "ReLU, tree, two hidden layers": (relu(TREE, (16, 16), key=key), TREE, 20.0, {}),
        "ReLU, the same, variance 1e-2": (relu(TREE, (16, 16), 1e-2, key=key), TREE, 20.0, {}),
        "ReLU, digits, averaged gates": (relu(digits, 32, key=key), digits, 2.0, averaged),
        "ReLU, tree, averaged gates": (relu(TREE, 64, key=key), TREE, 4.0, averaged),
        "ReLU, MNIST, averaged gates": (relu(mnist, 32, key=key), mnist, 2.0, averaged),
    }  # fmt: skip


def cost(network: Any, task: fl.Task, t1: float, how: dict[str, Any]) -> dict[str, float]:
    """Evaluations and errors both ways."""
    relu = isinstance(network, fl.ReLUNetwork)
    fine: dict[str, Any] = {"kinks": fl.ExactKinks()} if relu else {}
    reference = fl.gradient_flow(network, task, t1, rtol=1e-12, atol=1e-14, **fine).final
    found = {}
    for name, options in (("with atol", with_atol(how)), ("as called", how)):
        flow = fl.gradient_flow(network, task, t1, **options)
        found |= {
            f"evaluations {name}": int(flow.stats["evaluations"]),
            f"error {name}": float(fl.distance(flow.final, reference, relative=True)),
        }
    return found


def cost_rows(quick: bool) -> tuple[list[dict[str, Any]], str]:
    """All ordinary starts, seed by seed."""
    results, rows = [], []
    cases = [ordinary(seed) for seed in range(2 if quick else SEEDS)]
    for name in list(cases[0])[:1] if quick else cases[0]:
        found = [cost(*case[name]) for case in cases]
        results += [{"run": name, "seed": seed, **one} for seed, one in enumerate(found)]
        table = {key: np.array([one[key] for one in found]) for key in found[0]}
        change = table["evaluations as called"] / table["evaluations with atol"] - 1
        spread = stats.t.ppf(0.975, len(change) - 1) * change.std(ddof=1) / len(change) ** 0.5
        ways = ("with atol", "as called")
        errors = [stats.gmean(table[f"error {way}"]) for way in ways]
        rows.append(
            [name, *(f"{table[f'evaluations {way}'].mean():.0f}" for way in ways),
             f"{change.mean():+.1%} ± {spread:.1%}", *(f"{error:.1e}" for error in errors)]
        )  # fmt: skip
        print(rows[-1], flush=True)
    head = ["run", "evaluations with atol", "as called", "change", "error with atol", "as called"]
    return results, _common.markdown_table(head, rows)


def main() -> None:
    """The table that is asked for."""
    parser = _common.parser(__doc__)
    parser.add_argument("--cost", action="store_true", help="of ordinary starts alone")
    parser.add_argument("--aligning", action="store_true", help="these runs alone")
    args = parser.parse_args()
    if args.aligning:
        results, text = aligning_rows()
        print(text)
        _common.save("scale_aligning", results, "Worst error : steps (rejected).\n\n" + text)
        return
    if args.cost:
        results, text = cost_rows(args.quick)
        print(text)
        if not args.quick:
            _common.save("scale_cost", results, f"{SEEDS} seeds.\n\n{text}")
        return
    starts = STARTS[1:3] if args.quick else STARTS
    names = [list(RUNS)[k] for k in (0, 3)] if args.quick else list(RUNS)
    results, errors = [], []
    for name in names:
        run, how = RUNS[name]
        rows = {}
        for rule, options in (("as called", how), ("with atol", with_atol(how))):
            cells = []
            for start in starts:
                cells.append(run(start, **options))
                print(f"{name}, {rule}, {start:g}: {cells[-1]:.1e}", flush=True)
            rows[rule] = cells
        results.append({"run": name, "starts": starts, **rows})
        errors += [[name, rule, *(f"{cell:.0e}" for cell in rows[rule])] for rule in rows]
    text = _common.markdown_table(["run", "error", *(f"{s:g}" for s in starts)], errors)
    print(text)
    if not args.quick:
        _common.save("scale", results, text)


if __name__ == "__main__":
    main()
