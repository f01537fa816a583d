"""Gates averaged over a step in deep networks and modules: error against evaluations.

    python benchmarks/averaged_graph.py [--quick]

Writes `benchmarks/results/averaged_graph.json` and the table `averaged_graph.md`: per model and
contender the relative parameter error and the evaluations of the velocity (an attempted step takes
three of either contender, and averaged gates one more at the start), and how many times fewer
averaged gates need for an error of 1e-4 and for that of the finest plain run, interpolated in
logarithms. All models learn digits (8 x 8), from the default initial weights of their kind, seed 0.
The reference is Heun's method with fixed steps, done twice, the second time with twice the steps;
their distance says how far it can be trusted.
"""

import _common
import averaged
import equinox as eqx
import jax
import numpy as np

import flowlin as fl
from flowlin.networks.modules import as_model

KEY, CLASSES = jax.random.key(0), 10
LEVEL = 1e-4  # an error at which evaluations are compared


class Filters(eqx.Module):
    """Eight filters of 3 x 3, the largest of each four, a readout."""

    filters: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    readout: eqx.nn.Linear
    pool_first: bool = eqx.field(static=True)

    def __init__(self, pool_first: bool):
        first, last = jax.random.split(KEY)
        self.filters, self.pool = eqx.nn.Conv2d(1, 8, 3, key=first), eqx.nn.MaxPool2d(2, 2)
        self.readout = eqx.nn.Linear(8 * 9, CLASSES, key=last)
        self.pool_first = pool_first

    def __call__(self, x: jax.Array) -> jax.Array:
        z = self.filters(x.reshape(1, 8, 8))
        h = jax.nn.relu(self.pool(z)) if self.pool_first else self.pool(jax.nn.relu(z))
        return self.readout(h.ravel())


class TwoConvolutions(eqx.Module):
    """Two layers of eight filters, the second with a stride of two, and a readout."""

    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    readout: eqx.nn.Linear

    def __init__(self):
        a, b, c = jax.random.split(KEY, 3)
        self.first, self.second = eqx.nn.Conv2d(1, 8, 3, key=a), eqx.nn.Conv2d(8, 8, 3, 2, key=b)
        self.readout = eqx.nn.Linear(8 * 4, CLASSES, key=c)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.nn.relu(self.first(x.reshape(1, 8, 8)))
        return self.readout(jax.nn.relu(self.second(h)).ravel())


class Residual(eqx.Module):
    """Two blocks of one hidden layer with skips."""

    first: eqx.nn.Linear
    blocks: list[eqx.nn.MLP]
    readout: eqx.nn.Linear

    def __init__(self):
        a, b, c, d = jax.random.split(KEY, 4)
        self.first, self.readout = eqx.nn.Linear(64, 24, key=a), eqx.nn.Linear(24, CLASSES, key=b)
        self.blocks = [eqx.nn.MLP(24, 24, 24, 1, key=one) for one in (c, d)]

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.readout(h)


def problems(quick: bool):
    """(name, model, task, final time, steps of the coarser reference)."""
    few = fl.tasks.digits(600)
    yield "MLP, 2 x 32", eqx.nn.MLP(64, CLASSES, 32, 2, key=KEY), few, 20.0, 20_000
    if quick:
        return
    whole = fl.tasks.digits()
    deep = fl.ReLUNetwork.init(whole, (64, 64), key=KEY)
    yield "fl.ReLUNetwork, 2 x 64, all digits", deep, whole, 200.0, 20_000
    yield "residual", Residual(), few, 10.0, 6_000
    yield "two convolutions", TwoConvolutions(), few, 10.0, 6_000
    yield "filters, pooled, rectified", Filters(True), few, 10.0, 6_000
    yield "filters, rectified, pooled", Filters(False), few, 10.0, 6_000


def measured(model, task, t1, kinks, rtol, known) -> dict:
    """One contender: its error and evaluations."""
    flow = fl.gradient_flow(model, task, t1, kinks=kinks, rtol=rtol, events=(fl.LossBelow(0.0),))
    row = {
        "contender": repr(kinks).rstrip("()"),
        "rtol": rtol,
        "error": averaged.off(_common.flat(flow.model), known),
        "evaluations": int(flow.stats["evaluations"]),
        "rejected": int(flow.stats["num_rejected_steps"]),
        "solver": flow.stats["solver"],
    }
    print(row, flush=True)
    return row


def evaluations_for(error: float, rows: list[dict]) -> float:
    """Evaluations for an error, interpolated in logarithms; NaN beyond what was measured."""
    x, y = (np.log([row[name] for row in rows])[::-1] for name in ("error", "evaluations"))
    return float(np.exp(np.interp(np.log(error), x, y, np.nan, np.nan)))


def results(quick: bool):
    """One entry per model."""
    for name, model, task, t1, steps in problems(quick):
        print(name, flush=True)
        known, count = as_model("model", model), steps // (10 if quick else 1)
        coarse, fine = (averaged.heun(known, task, t1, k * count) for k in (1, 2))
        ways = {
            kinks: [measured(model, task, t1, kinks, rtol, fine) for rtol in rtols]
            for kinks, rtols in (
                (fl.AveragedKinks(), (1e-3,) if quick else (1e-3, 1e-4, 1e-5)),
                (fl.IgnoreKinks(), (1e-4,) if quick else (1e-4, 1e-5, 1e-6)),
            )
        }
        yield {
            "problem": f"{name}, t = {t1:g}",
            "reference": f"Heun, {2 * count} steps",
            "distance_to_half_the_steps": averaged.off(coarse, fine),
            "rows": [row for rows in ways.values() for row in rows],
        }


def times_fewer(rows: list[dict]) -> list[str]:
    """By what factor averaged gates need fewer evaluations, at both errors; - beyond the rows."""
    ours, plain = (
        [row for row in rows if row["contender"] == name]
        for name in ("AveragedKinks", "IgnoreKinks")
    )
    levels = LEVEL, min(row["error"] for row in plain)
    gains = [evaluations_for(level, plain) / evaluations_for(level, ours) for level in levels]
    return [f"{gain:.1f}" if np.isfinite(gain) else "-" for gain in gains]


def table(entries: list[dict]) -> str:
    """Error : evaluations, a row per model."""
    rows = entries[0]["rows"]
    names = ["model", "reference", *(f"{r['contender']} {r['rtol']:.0e}" for r in rows)]
    names += [f"times fewer at {LEVEL:.0e}", "at the finest plain run's error"]
    lines = []
    for entry in entries:
        apart = f"{entry['distance_to_half_the_steps']:.1e} from half of them"
        cells = [f"{r['error']:.1e} : {r['evaluations']}" for r in entry["rows"]]
        known = f"{entry['reference']} ({apart})"
        lines.append([entry["problem"], known, *cells, *times_fewer(entry["rows"])])
    return _common.markdown_table(names, lines)


def main() -> None:
    """Run both contenders on every model."""
    quick = _common.parser(__doc__).parse_args().quick
    title = "Relative parameter error : evaluations."
    _common.print_and_save("averaged_graph", list(results(quick)), table, title, quick)


if __name__ == "__main__":
    main()
