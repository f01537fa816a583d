"""Which diffrax solver is the default: work against error on the library's own problems.

    python benchmarks/solvers.py [--quick]

Writes `solvers.json` to `benchmarks/results/`: per problem, solver and tolerance, the number of
vector field evaluations, the relative parameter error against a reference, and the time over the
problem's fastest run; and these two in the table `solvers.md`. Exact walks take at least as many
pieces as there are events; their evaluations are not counted.
"""

import _common
import diffrax
import jax
import numpy as np

import flowlin as fl

EVALUATIONS = {"Bosh3": 3, "Tsit5": 6, "Dopri5": 6, "Dopri8": 13}
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)


def problems(quick: bool):
    """(name, network, task, kinks, final time, reference solver and tolerance)."""
    key = jax.random.key(0)
    tree, digits = fl.tasks.hierarchy(), fl.tasks.digits()
    smooth = fl.SmoothKinks(1e-4)
    yield "linear, hierarchy, t=60", fl.LinearNetwork.init(tree, key=key), tree, None, 60.0
    if quick:
        return
    yield "linear, digits c=1, t=30", fl.LinearNetwork.init(digits, key=key), digits, None, 30.0
    relu = fl.ReLUNetwork.init(tree, key=key)
    yield "gated, hierarchy, t=60", relu.frozen(tree), tree, None, 60.0
    yield "ReLU smoothed 1e-4, hierarchy, t=10", relu, tree, smooth, 10.0
    few = fl.tasks.digits(200)
    bare = fl.ReLUNetwork.init(few, key=key)
    yield "ReLU bare, digits 200, t=3", bare, few, fl.IgnoreKinks(), 3.0
    walk = fl.ExactKinks()
    yield "ReLU exact, hierarchy, t=60", relu, tree, walk, 60.0
    few = fl.tasks.digits(50)
    yield "ReLU exact, digits 50, t=20", fl.ReLUNetwork.init(few, 32, key=key), few, walk, 20.0
    drawn = fl.tasks.teacher(100, (2.0, 1.0, 0.5), key=key)
    wide = fl.ReLUNetwork.init(drawn, 20, 0.05, key=key)
    yield "ReLU exact, Gaussian 100, t=20", wide, drawn, walk, 20.0
    for hidden, variance in (((16, 16), 1e-2), ((12, 12, 12), 0.05)):
        deep = fl.ReLUNetwork.init(tree, hidden, variance, key=key)
        name = f"ReLU exact, hierarchy, {' + '.join(map(str, hidden))}, t=60"
        yield name, deep, tree, walk, 60.0
    cloud = _common.gaussian(12, 4)
    deep = fl.ReLUNetwork.init(cloud, (12, 12), 0.2, key=key)
    yield "ReLU exact, Gaussian 12, 12 + 12, t=20", deep, cloud, walk, 20.0


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    cells = {
        (r["problem"], r["solver"], r["rtol"]): f"{r['error']:.0e} ({r['time over fastest']:.2f})"
        for r in rows
    }
    pairs = dict.fromkeys((r["problem"], r["solver"]) for r in rows)
    body = [(*pair, *(cells.get((*pair, rtol), "-") for rtol in TOLERANCES)) for pair in pairs]
    return _common.markdown_table(("problem", "solver", *map("{:.0e}".format, TOLERANCES)), body)


def main() -> None:
    """Run every solver on every problem."""
    quick = _common.parser(__doc__).parse_args().quick
    rows = []
    for name, network, task, kinks, t1 in problems(quick):
        finest = 1e-7 if "bare" in name else 1e-12
        exact = isinstance(kinks, fl.ExactKinks)
        reference = fl.gradient_flow(
            network, task, t1, kinks=kinks, solver=diffrax.Dopri8(), rtol=finest
        ).final
        for solver in (diffrax.Bosh3(), diffrax.Tsit5(), diffrax.Dopri5(), diffrax.Dopri8()):
            for rtol in (1e-4, 1e-6) if quick else TOLERANCES:
                if rtol < 1e-6 and ("bare" in name or isinstance(solver, diffrax.Bosh3)):
                    continue

                def run(solver=solver, rtol=rtol, network=network, task=task, kinks=kinks, t1=t1):
                    return fl.gradient_flow(
                        network, task, t1, kinks=kinks, solver=solver, rtol=rtol
                    )

                flow = run()
                times = [_common.seconds(run)[0] for _ in range(1 if quick else 3)]
                label = type(solver).__name__
                rows.append(
                    {
                        "problem": name,
                        "solver": label,
                        "rtol": rtol,
                        "evaluations": None
                        if exact
                        else int(flow.stats["num_steps"]) * EVALUATIONS[label],
                        "error": float(fl.distance(flow.final, reference, relative=True)),
                        "seconds": float(np.median(times)),
                    }
                )
                print(rows[-1], flush=True)
    fastest = {
        row["problem"]: min(r["seconds"] for r in rows if r["problem"] == row["problem"])
        for row in rows
    }
    for row in rows:
        row["time over fastest"] = round(row.pop("seconds") / fastest[row["problem"]], 2)
    if not quick:
        _common.save("solvers", rows, markdown(rows))


if __name__ == "__main__":
    main()
