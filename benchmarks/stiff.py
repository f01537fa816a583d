"""Stiff flows: vector field evaluations against error, for `fl.RKC()` and diffrax's solvers.

    python benchmarks/stiff.py [--quick]

Writes `stiff.json` and the table `stiff.md` to `benchmarks/results/`: per problem, solver and
tolerance, the number of vector field evaluations, the relative parameter error against Dopri8 at
rtol 1e-10, and the steps. Those
of RKC are counted as they happen, rejected steps included; those of Tsit5 and Dopri8 are stages
times attempted steps. Kvaerno5 runs matrix-free, its Newton iterations solved by GMRES to 1e-2
(with diffrax's chord iteration JAX refuses the operator, with BiCGStab no step is accepted); its
count is that of the Jacobian-vector products alone, each of which costs more than an evaluation.
"""

import _common
import diffrax
import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx

import flowlin as fl
from flowlin.training.rules import VectorField, choose_objective

EVALUATIONS = {"Tsit5": 6, "Dopri8": 13}


def problems(quick: bool):
    """(name, network, task, kinks, final time)."""
    key, digits, tree = jax.random.key(0), fl.tasks.digits(), fl.tasks.hierarchy()
    linear = fl.LinearNetwork.init(digits, bias_strength=10.0, key=key)
    yield "linear, digits c=10", linear, digits, None, 3.0 if quick else 3000.0
    if not quick:
        yield "linear, digits c=1", fl.LinearNetwork.init(digits, key=key), digits, None, 30.0
        relu = fl.ReLUNetwork.init(tree, key=key)
        yield "ReLU smoothed 1e-3, hierarchy", relu, tree, fl.SmoothKinks(1e-3), 30.0


def counted_solve(problem, solver, rtol):
    """Final network, attempted steps, evaluations and Jacobian-vector products as they happen."""
    _, network, task, kinks, t1 = problem
    calls = {"field": 0, "product": 0}
    goal = choose_objective(network, task, fl.SquaredError(), kinks.width if kinks else None)
    field = VectorField(goal, network, jnp.ones(()))

    def count(kind):
        def called(*_):
            calls[kind] += 1

        return called

    @jax.custom_jvp
    def counted(parameters):
        jax.debug.callback(count("field"))
        return field(0.0, parameters, None)

    def derivative(primals, tangents):
        # The tangent is an argument so that the call stays with the product, not the field.
        jax.debug.callback(count("product"), jax.tree.leaves(tangents)[0].ravel()[0])
        return jax.jvp(lambda p: field(0.0, p, None), primals, tangents)

    counted.defjvp(derivative)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: counted(y)), solver, 0.0, t1, None, network.parameters,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100), max_steps=2**20,
        throw=False,
    )  # fmt: skip
    final = network.with_parameters(jax.tree.map(lambda a: a[-1], solution.ys))
    jax.block_until_ready(final)
    jax.effects_barrier()
    return final, int(solution.stats["num_steps"]), calls


def measured(problem, solver, rtol, reference) -> dict:
    """One row."""
    name, network, task, kinks, t1 = problem
    label = type(solver).__name__
    if label in EVALUATIONS:
        flow = fl.gradient_flow(network, task, t1, kinks=kinks, solver=solver, rtol=rtol)
        final, steps = flow.final, int(flow.stats["num_steps"])
        evaluations = EVALUATIONS[label] * steps
    else:
        final, steps, calls = counted_solve(problem, solver, rtol)
        evaluations = calls["product" if label == "Kvaerno5" else "field"]
    return {
        "problem": name,
        "t1": t1,
        "solver": label,
        "rtol": rtol,
        "evaluations": evaluations,
        "error": float(fl.distance(final, reference, relative=True)),
        "steps": steps,
    }


def matrix_free() -> diffrax.Kvaerno5:
    """Kvaerno5 that needs no Jacobian matrix."""
    gmres = lx.GMRES(rtol=1e-2, atol=1e-8, restart=30, stagnation_iters=30)
    newton = diffrax.with_stepsize_controller_tols(optx.Newton)(linear_solver=gmres)
    return diffrax.Kvaerno5(root_finder=newton)


def save(rows: list[dict]) -> None:
    """Write the rows and a table of error : evaluations."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        cell = f"{row['error']:.1e} : {row['evaluations']:,}"
        cells.setdefault((row["problem"], row["solver"]), []).append(cell)
    lines = [(problem, solver, ", ".join(found)) for (problem, solver), found in cells.items()]
    head = ("problem", "solver", "error : evaluations, from loose to tight")
    _common.save("stiff", rows, _common.markdown_table(head, lines))


def main() -> None:
    """Run every solver on every problem."""
    quick = _common.parser(__doc__).parse_args().quick
    tolerances = [
        (fl.RKC(), (1e-4, 1e-5, 1e-6, 1e-7)),
        (diffrax.Tsit5(), (1e-4, 1e-6, 1e-8)),
        (diffrax.Dopri8(), (1e-4, 1e-7)),
        (matrix_free(), (1e-4, 1e-6)),
    ]
    rows, kept = [], tolerances[:2] if quick else tolerances
    for problem in problems(quick):
        _, network, task, kinks, t1 = problem
        reference = fl.gradient_flow(
            network, task, t1, kinks=kinks, solver=diffrax.Dopri8(), rtol=1e-10
        ).final
        for solver, rtols in kept:
            for rtol in rtols[:1] if quick else rtols:
                rows.append(measured(problem, solver, rtol, reference))
                print(rows[-1], flush=True)
    if not quick:
        save(rows)


if __name__ == "__main__":
    main()
