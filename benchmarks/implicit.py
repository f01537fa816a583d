"""Stiff smooth flows: as called, by `fl.RecycledBDF()`, SUNDIALS' CVODE and `fl.RKC()`.

    python benchmarks/implicit.py [--quick] [--seeds 5] [--only PREFIX]

Writes `implicit.json` and the table `implicit.md` to `benchmarks/results/`: per problem, initial
weights and target, the fewest evaluations of the field with which each method's relative parameter
error is no larger, and the processor seconds of that run, over tolerances from 1e-2 on, three a
decade.
Evaluations are `flow.stats["evaluations"]`: every call of the field, products with the Hessian,
rejected steps and the first step's length included; CVODE's are counted as they happen, too. It is
given what `peers.py` gives it: BDF, matrix-free GMRES, the same compiled field. What is known is
CVODE's solution at rtol 1e-11; how far that of `fl.RecycledBDF()` is from it stands below. MNIST,
where one evaluation takes milliseconds, has one network and one tolerance a decade, down to 1e-7.
Problems that are not run keep their rows.
"""

import json
import time

import _common
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _peers_torch import optional
from jax.flatten_util import ravel_pytree

import flowlin as fl
from flowlin.networks.modules import as_model
from flowlin.training.rules import VectorField, choose_objective

cvode = optional("sksundae.cvode")

TARGETS = (1e-3, 1e-5, 1e-7)
TOLERANCES = tuple(10 ** (-k / 3) for k in range(6, 31))
COARSE = tuple(10.0**-k for k in range(2, 8))
FINEST = {"RKC": 1e-7}  # beyond it takes minutes
REFERENCE = 1e-11
METHODS = "as called", "RecycledBDF", "CVODE", "RKC"


def problems(quick: bool):
    """(name, function of a key that makes the network, task, final time)."""
    digits = fl.tasks.digits()
    init = fl.LinearNetwork.init
    yield "linear, digits, c = 10", lambda k: init(digits, bias_strength=10.0, key=k), digits, 3e3
    if quick:
        return
    deep = (64, 64)
    yield (
        "linear, 3 layers, digits, c = 3",
        lambda k: init(digits, deep, bias_strength=3.0, key=k), digits, 1e3,
    )  # fmt: skip
    yield "tanh, digits", lambda k: tanh(digits, k), digits, 300.0
    mnist = fl.tasks.mnist()
    yield "linear, 3 layers, MNIST, c = 1", lambda k: init(mnist, (32, 32), key=k), mnist, 300.0


def tanh(task: fl.Task, key: jax.Array) -> eqx.Module:
    """64-64-10 with biases."""
    mlp = eqx.nn.MLP(task.inputs, task.outputs, 64, 1, activation=jnp.tanh, key=key)
    return jax.tree.map(lambda a: a.astype(float) if eqx.is_inexact_array(a) else a, mlp)


def by_flowlin(solver):
    """A solver of the library, or the one that it chooses for None, as a user calls it."""

    def run(network, task, t1, rtol):
        flow = fl.gradient_flow(network, task, t1, solver=solver, rtol=rtol)
        return flat(flow.final), int(flow.stats["evaluations"])

    return run


def flat(network) -> np.ndarray:
    """All that moves."""
    return np.asarray(ravel_pytree(as_model("network", network).parameters)[0])


class Field:
    """The field that the library solves, compiled once for all initial weights."""

    def __init__(self, network, task: fl.Task):
        own = as_model("network", network)
        velocity = VectorField(choose_objective(own, task, fl.SquaredError()), own, jnp.ones(()))
        unravel = ravel_pytree(own.parameters)[1]
        self.compiled = jax.jit(lambda y: ravel_pytree(velocity(0.0, unravel(y), None))[0])

    def by_cvode(self, network, task, t1, rtol):
        """CVODE, which asks for the field from Python."""
        count = 0

        def rhs(t, y, yp):
            nonlocal count
            count += 1
            yp[:] = self.compiled(y)

        solver = cvode.CVODE(
            rhs, method="BDF", linsolver="gmres", krylov_dim=20, rtol=rtol, atol=rtol / 100,
            max_num_steps=10**9,
        )  # fmt: skip
        # Three times: with two it would keep every step.
        found = solver.solve(np.array([0.0, t1 / 2, t1]), flat(network))
        assert found.success
        return np.asarray(found.y[-1]), count


def measured(problem: str, seed: int, network, task, t1, methods) -> list[dict]:
    """One row per method and target."""
    coarse = "MNIST" in problem
    finest = 1e-9 if coarse else REFERENCE
    known, _ = methods["CVODE" if cvode else "RecycledBDF"](network, task, t1, finest)
    other, _ = methods["RecycledBDF"](network, task, t1, finest)
    size, rows = np.linalg.norm(known), []
    for name, run in methods.items():
        points = []
        for rtol in COARSE if coarse else TOLERANCES:
            if rtol < FINEST.get(name, 0) or (points and points[-1]["error"] < TARGETS[-1] / 3):
                break
            begin = time.process_time()
            found, count = run(network, task, t1, rtol)
            taken = time.process_time() - begin
            error = float(np.linalg.norm(found - known) / size)
            points.append({"rtol": rtol, "error": error, "evaluations": count, "seconds": taken})
        for target in TARGETS[:2] if coarse else TARGETS:
            fine = [point for point in points if point["error"] <= target]
            best = min(fine, key=lambda point: point["evaluations"], default={})
            rows.append({"problem": problem, "seed": seed, "method": name, "target": target} | best)
            rows[-1]["reference"] = float(np.linalg.norm(other - known) / size)
    return rows


def table(rows: list[dict]) -> str:
    """Medians over the seeds, and the range of CVODE's evaluations over those of RecycledBDF."""
    lines, names = [], [name for name in METHODS if any(row["method"] == name for row in rows)]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        for target in TARGETS:
            here = [r for r in rows if r["problem"] == problem and r["target"] == target]
            if not here:
                continue
            cells, counts = [], {}
            for name in names:
                own = [row for row in here if row["method"] == name and "evaluations" in row]
                counts[name] = {row["seed"]: row["evaluations"] for row in own}
                if len(own) < len({row["seed"] for row in here}):
                    cells.append("-")
                    continue
                count, taken = (
                    np.median([row[k] for row in own]) for k in ("evaluations", "seconds")
                )
                cells.append(f"{count:,.0f}, {taken:.2g} s")
            mine, theirs = counts["RecycledBDF"], counts.get("CVODE", {})
            ratios = [theirs[seed] / mine[seed] for seed in mine if seed in theirs]
            span = f"{min(ratios):.2f} ... {max(ratios):.2f}" if ratios else "-"
            seeds = len({row["seed"] for row in here})
            lines.append((problem, seeds, f"{target:.0e}", *cells, span))
    head = ("problem", "networks", "error", *names, "CVODE / RecycledBDF")
    worst = max(row["reference"] for row in rows)
    note = (
        f"\nReferences of two methods differ by {worst:.0e} at most. On MNIST the seconds of "
        "flowlin include\nmaking the statistics of 60,000 images in each call, which CVODE is "
        "given."
    )
    title = "Evaluations and processor seconds at no larger an error, medians over initial weights."
    return title + "\n\n" + _common.markdown_table(head, lines) + "\n" + note


def main() -> None:
    """Every problem, method and seed."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="problems whose name begins so")
    args = parser.parse_args()
    file = _common.RESULTS / "implicit.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    if not cvode and not args.quick:
        raise SystemExit("CVODE is missing: pip install 'flowlin[peers]'")
    for name, network, task, t1 in problems(args.quick):
        if not name.startswith(args.only):
            continue
        rows = [row for row in rows if row["problem"] != name]
        field = Field(network(jax.random.key(0)), task)
        methods = {
            "as called": by_flowlin(None),
            "RecycledBDF": by_flowlin(fl.RecycledBDF()),
            **({"CVODE": field.by_cvode} if cvode else {}),
            "RKC": by_flowlin(fl.RKC()),
        }
        for method in methods.values():  # compiled before anything is timed
            method(network(jax.random.key(0)), task, t1, 1e-2)
        for seed in range(1 if args.quick or "MNIST" in name else args.seeds):
            rows += measured(name, seed, network(jax.random.key(seed)), task, t1, methods)
            print(table(rows), flush=True)
            if not args.quick:
                _common.save("implicit", rows, table(rows))


if __name__ == "__main__":
    main()
