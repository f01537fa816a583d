"""How far the exact walk carries with several hidden layers.

    python benchmarks/deep_walk.py [--quick] [--seeds 20]

The walk stops where a sample slides in two layers at once. On the semantic tree, for widths, depths
and initial variances: when that happens, how much of the loss has gone by then (1 is all of what
training to t = 100 with smoothed kinks takes away), after how many events and slides. Writes
`deep_walk.json` and the table `deep_walk.md` to `benchmarks/results/`.
"""

from typing import Any

import _common
import jax
import numpy as np
from tqdm import tqdm

import flowlin as fl

SETTINGS = (((32, 32), 1e-2, True), ((64, 64), 1e-2, True), ((32, 32), 1e-2, False),
            ((32, 32, 32), 3e-2, True))  # fmt: skip


def stop(task: fl.Task, hidden, variance: float, bias: bool, seed: int) -> dict[str, Any]:
    """One run up to where it stops."""
    network = fl.ReLUNetwork.init(task, hidden, variance, bias, key=jax.random.key(seed))
    flow = fl.gradient_flow(network, task, 100.0, kinks=fl.ExactKinks(), rtol=1e-8, throw=False)
    smooth = fl.gradient_flow(network, task, 100.0, kinks=fl.SmoothKinks(1e-3), rtol=1e-5)
    start, end = float(flow.losses[0]), float(smooth.losses[-1])
    return {
        "hidden": list(hidden),
        "variance": variance,
        "bias": bias,
        "seed": seed,
        "result": "end" if flow.result == fl.RESULTS.successful else fl.RESULTS[flow.result],
        "stopped at": float(flow.end),
        "loss gone": (start - float(flow.losses[-1])) / (start - end),
        "events": len(flow.events),
        "slides entered": int(np.sum(np.asarray(flow.events.new) == 0)),
    }


def main() -> None:
    """Run all seeds of every setting."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    task = fl.tasks.hierarchy(levels=2 if given.quick else 3)
    settings = (((4, 4), 1e-1, True),) if given.quick else SETTINGS
    rows, lines = [], []
    for setting in settings:
        seeds = range(1 if given.quick else given.seeds)
        found = [stop(task, *setting, seed) for seed in tqdm(seeds, str(setting))]
        rows += found
        cells = [
            "{:.3g} / {:.3g} / {:.3g}".format(*np.quantile([r[key] for r in found], (0, 0.5, 1)))
            for key in ("stopped at", "loss gone", "events", "slides entered")
        ]
        two = sum("two layers" in r["result"] for r in found)
        lines.append((*setting, len(found), two, *cells))
    head = ("hidden", "variance", "bias", "seeds", "stopped for two layers", "stopped at t",
            "share of the loss gone", "events", "slides entered")  # fmt: skip
    text = _common.markdown_table(head, lines) + "\n\nSmallest / median / largest over seeds."
    print(text)
    if not given.quick:
        _common.save("deep_walk", rows, text)


if __name__ == "__main__":
    main()
