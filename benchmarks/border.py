"""Up to how many (unit, sample) pairs the exact walk pays, on a processor with two cores.

    python benchmarks/border.py [--quick]

ReLU networks with biases, variance 1e-2, on standard normal data (10 inputs, 3 targets, t1 = 5)
and on subsets of scikit-learn's digits (t1 = 6), P samples, H hidden units. Each method is refined
(rtol 1e-3, 1e-4, ...) until its parameters at t1 are within a relative 1e-4, then 1e-6, of an
exact walk at rtol 1e-10, or until a run takes 50,000 steps, 65,536 events or a minute, or finer
tolerances gain nothing:

- exact: `kinks=fl.ExactKinks()`;
- plain: `kinks=fl.IgnoreKinks()`, Bosh3;
- smooth: `kinks=fl.SmoothKinks(1e-4)`, whose width alone leaves an error.

The latter two log unit switches in place of every gate, which would cost them about 7 times more;
the exact walk logs every gate as it goes. Those that meet an error are timed again, taking turns,
without their compilation (medians of three; one run where a turn takes longer than 15 s). Ratios
are to the exact walk's time. Writes `border.json` and the table `border.md` to
`benchmarks/results/`.
"""

from typing import Any

import _common
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import flowlin as fl

CASES = (
    ("gaussian", 10, 16),
    ("gaussian", 20, 32),
    ("digits", 50, 16),
    ("gaussian", 40, 32),
    ("gaussian", 80, 32),
    ("digits", 50, 64),
    ("gaussian", 80, 64),
    ("digits", 100, 64),
    ("gaussian", 160, 64),
    ("digits", 200, 64),
    ("gaussian", 320, 64),
    ("digits", 200, 128),
)
TARGETS = (1e-4, 1e-6)
TOLERANCES = tuple(10.0**-k for k in range(3, 10))
STEPS, PATIENCE = 50_000, 60.0
LIGHT = (fl.UnitSwitches(),)  # in place of the log of every gate
METHODS = {
    "exact": {"kinks": fl.ExactKinks()},
    "plain": {"kinks": fl.IgnoreKinks(), "solver": diffrax.Bosh3(), "events": LIGHT},
    "smooth": {"kinks": fl.SmoothKinks(1e-4), "events": LIGHT},
}


def refined(run: Any, reference: Any, targets: tuple[float, ...]) -> list[dict[str, Any]]:
    """Refine until the smallest target is met, a limit is reached or nothing is gained."""
    tried: list[dict[str, Any]] = []
    for rtol in TOLERANCES:
        if not tried:
            run(rtol)  # compiles
        taken, flow = _common.seconds(lambda rtol=rtol: run(rtol))
        row = {"rtol": rtol, "seconds": taken, "steps": int(flow.stats["num_steps"])}
        tried.append(row)
        if flow.result != fl.RESULTS.successful:
            full = bool(flow.result == fl.RESULTS.event_overflow)
            why = f"{int(flow.events.count):,} events" if full else f"{row['steps']:,} steps"
            row["stopped"] = f"{why} at rtol {rtol:.0e}"
            break
        row["error"] = float(fl.distance(flow.final, reference, relative=True))
        if row["error"] <= min(targets):
            break
        if len(tried) > 2 and row["error"] > 0.9 * tried[-3]["error"]:
            row["stopped"] = "nothing gained by finer tolerances"
            break
        if taken > PATIENCE:
            row["stopped"] = f"{taken:.0f} s at rtol {rtol:.0e}"
            break
    return tried


def compare(
    name: str, samples: int, hidden: int, targets: tuple[float, ...]
) -> list[dict[str, Any]]:
    """A row per target."""
    digits = name == "digits"
    task = fl.tasks.digits(samples) if digits else _common.gaussian(samples, 10)
    t1 = 6.0 if digits else 5.0
    network = fl.ReLUNetwork.init(task, hidden=(hidden,), variance=1e-2, key=jax.random.key(0))

    def runner(method):
        def run(rtol):
            options: Any = {**METHODS[method], "rtol": jnp.asarray(rtol)}
            return fl.gradient_flow(network, task, t1, max_steps=STEPS, throw=False, **options)

        return run

    runs = {method: runner(method) for method in METHODS}
    reference = runs["exact"](1e-10)
    tried = {method: refined(run, reference.final, targets) for method, run in runs.items()}
    rows = []
    for target in targets:
        chosen = {
            method: row
            for method, found in tried.items()
            for row in [next((r for r in found if r.get("error", np.inf) <= target), None)]
            if row is not None
        }
        turn = sum(row["seconds"] for row in chosen.values())
        again = {m: (lambda m=m, r=r["rtol"]: runs[m](r)) for m, r in chosen.items()}
        times = _common.alternated(again, 1 if turn > 15 else 3)
        row = {"task": name, "P": samples, "H": hidden, "PH": samples * hidden, "target": target}
        row |= {"events": len(reference.events)}
        row |= {"slides entered": int(np.sum(np.asarray(reference.events.new) == 0))}
        for method, found in tried.items():
            row[method] = {
                "best error": min((r["error"] for r in found if "error" in r), default=None),
                "spent": found[-1]["seconds"],
                "stopped": found[-1].get("stopped"),
                **{k: v for k, v in chosen.get(method, {}).items() if k != "seconds"},
                **({"seconds": times[method]} if method in times else {}),
            }
        rows.append(row)
    return rows


def cell(row: dict, method: str) -> str:
    """Time over the exact walk's, or what was reached instead."""
    mine, exact = row[method], row["exact"].get("seconds")
    if "seconds" not in mine or exact is None:
        best = "none finished" if mine["best error"] is None else f"best {mine['best error']:.0e}"
        return f"not met ({best}; {mine['stopped']})"
    return f"{mine['seconds'] / exact:.2g} (rtol {mine['rtol']:.0e}, {mine['steps']} steps)"


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    head = (
        "task", "P", "H", "P x H", "events", "slides entered", "error",
        "exact: seconds (rtol, steps)", "plain: times exact", "smooth: times exact",
    )  # fmt: skip
    body = []
    for r in sorted(rows, key=lambda r: (-r["target"], r["task"], r["PH"])):
        mine = r["exact"]
        exact = (
            f"{mine['seconds']:.2f} (rtol {mine['rtol']:.0e}, {mine['steps']} steps)"
            if "seconds" in mine
            else "not met"
        )
        body.append(
            (
                r["task"], r["P"], r["H"], r["PH"], r["events"], r["slides entered"],
                f"{r['target']:.0e}", exact, cell(r, "plain"), cell(r, "smooth"),
            )
        )  # fmt: skip
    return _common.markdown_table(head, body)


def main() -> None:
    """Compare every case."""
    quick = _common.parser(__doc__).parse_args().quick
    rows: list[dict] = []
    for case in tqdm([("gaussian", 6, 4)] if quick else CASES):
        rows += compare(*case, (1e-2,) if quick else TARGETS)
        if not quick:
            _common.save("border", rows, markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
