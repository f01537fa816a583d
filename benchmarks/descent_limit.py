"""Gradient descent with ever smaller steps against the exact flow: does it converge to it?

    python benchmarks/descent_limit.py [--quick] [--seeds 3]

The flow is walked exactly at rtol 1e-11. Descent starts at rate 1e-2 and halves it until its
parameters are within a relative 1e-6 of the flow's at the final time. The slope of log distance
against log rate is fitted by least squares over all rates: descent chatters where the flow
slides, so single distances scatter about the line. Every run slides; how much is in the table.
Writes `descent_limit.json` and the table `descent_limit.md` to `benchmarks/results/`.
"""

from typing import Any

import _common
import jax
import numpy as np
from tqdm import tqdm

import flowlin as fl

# hidden units, initial variance, final time
SETTINGS = {
    "hierarchy": (64, 2e-4, 5.0),
    "xor": (32, 1e-2, 4.0),
    "xor 0/1": (32, 1e-2, 4.0),
    "offset xor": (32, 1e-2, 4.0),
    "gaussian": (32, 1e-2, 3.0),
}
CLOSE = 1e-6
FINEST = 5e-7  # rate at which to give up


def limit(name: str, task: fl.Task, seed: int, close: float) -> dict[str, Any]:
    """Distances of descent from the flow, rate after rate, and their slope."""
    hidden, variance, t1 = SETTINGS[name]
    network = fl.ReLUNetwork.init(
        task, hidden=(hidden,), variance=variance, key=jax.random.key(seed)
    )
    flow = _common.exact_walk(network, task, t1, 1e-11)
    rates, distances = [], []
    while not distances or (distances[-1] > close and rates[-1] > FINEST):
        rates.append(1e-2 / 2 ** len(rates))
        descent = _common.descended(network, task, t1, rates[-1])
        distances.append(float(fl.distance(descent, flow.final, relative=True)))
    slope, offset = np.polyfit(np.log(rates), np.log(distances), 1)
    scatter = np.std(np.log(distances) - slope * np.log(rates) - offset)
    return {
        "task": name,
        "seed": seed,
        "hidden": hidden,
        "variance": variance,
        "t1": t1,
        "slides entered": int(np.sum(np.asarray(flow.events.new) == 0)),
        "events": len(flow.events),
        "slope": float(slope),
        "scatter": float(np.expm1(scatter)),
        "rates": rates,
        "distances": distances,
    }


def markdown(rows: list[dict]) -> str:
    """The table as Markdown, one line per task."""
    head = (
        "task", "t1", "seeds", "rates", "events", "slides entered", "slope, median (range)",
        "outside 1 +- 0.05", "scatter", "smallest distance, largest over seeds",
    )  # fmt: skip
    body = []
    for name in dict.fromkeys(r["task"] for r in rows):
        mine = [r for r in rows if r["task"] == name]
        slopes = np.array([r["slope"] for r in mine])
        odd = [f"{r['slope']:.3f} (seed {r['seed']})" for r in mine if abs(r["slope"] - 1) > 0.05]
        body.append(
            (
                name, f"{mine[0]['t1']:g}", len(mine),
                f"1e-2 ... {min(min(r['rates']) for r in mine):.1e}",
                f"{np.median([r['events'] for r in mine]):.0f}",
                " / ".join(str(r["slides entered"]) for r in mine),
                f"{np.median(slopes):.3f} ({slopes.min():.3f} ... {slopes.max():.3f})",
                ", ".join(odd) or "none",
                f"{100 * np.median([r['scatter'] for r in mine]):.0f} %",
                f"{max(min(r['distances']) for r in mine):.1e}",
            )
        )  # fmt: skip
    return _common.markdown_table(head, body)


def main() -> None:
    """Run every task and seed."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    tasks = _common.toys()
    if given.quick:
        tasks, given.seeds = {"hierarchy": tasks["hierarchy"]}, 1
    rows: list[dict] = []
    for name, seed in tqdm([(name, s) for name in tasks for s in range(given.seeds)]):
        rows.append(limit(name, tasks[name], seed, 1e-3 if given.quick else CLOSE))
        if not given.quick:
            _common.save("descent_limit", rows, markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
