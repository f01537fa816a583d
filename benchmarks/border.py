"""Up to how many (unit, sample) pairs the exact walk pays, on a processor with two cores.

    python benchmarks/border.py [--quick] [--deep] [--wide] [--case NAME]

ReLU networks with biases, variance 1e-2, on standard normal data (10 inputs, 3 targets, t1 = 5)
and on subsets of scikit-learn's digits (t1 = 6), P samples, H hidden units; with `--deep` networks
with two and three hidden layers, whose variances are 0.1 and, for digits, 0.03. Each method is
refined (rtol 1e-3, 1e-4, ...) until its parameters at t1 are within a relative 1e-4, then 1e-6, of
an exact walk at rtol 1e-10, or until a run takes 50,000 steps, 65,536 events or a minute, or finer
tolerances gain nothing:

- exact: `kinks=fl.ExactKinks()`;
- plain: `kinks=fl.IgnoreKinks()`, Bosh3;
- smooth: `kinks=fl.SmoothKinks(1e-4)`, whose width alone leaves an error;
- descent, with `--deep` only: a bare loop of steps with rate 1e-3, 1e-4, ... to 2.5e-6.

Plain and smooth log unit switches in place of every gate, which would cost them about 7 times more;
descent logs nothing; the exact walk logs every gate as it goes. Those that meet an error are timed
again, taking turns, without their compilation (medians of three; one run where a turn takes longer
than 15 s). Ratios are to the exact walk's time. Writes `border.json` and the table `border.md` to
`benchmarks/results/`, with `--deep` those of `border_deep`; with `--case` results of other cases
are kept.

With `--wide` the walk against averaged gates, each at its defaults, in networks of one layer, most
with few samples and many units, from small weights and from variance 1e-2: events, evaluations, and
seconds of processor time, in which other work on the machine counts little. Averaged gates log unit
switches where the walk is the default, which may cost more than the rest. One run each, without
compilation; where one takes more than 30 s, it is the first, with compilation. Writes
`border_wide`.
"""

import json
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import _common
import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import flowlin as fl

CASES = (
    ("gaussian", 10, (16,)),
    ("gaussian", 20, (32,)),
    ("digits", 50, (16,)),
    ("gaussian", 40, (32,)),
    ("gaussian", 80, (32,)),
    ("digits", 50, (64,)),
    ("gaussian", 80, (64,)),
    ("digits", 100, (64,)),
    ("gaussian", 160, (64,)),
    ("digits", 200, (64,)),
    ("gaussian", 320, (64,)),
    ("digits", 200, (128,)),
)
DEEP = (
    ("gaussian", 10, (8, 8)),
    ("gaussian", 10, (8, 8, 8)),
    ("gaussian", 20, (16, 16)),
    ("gaussian", 20, (16, 16, 16)),
    ("digits", 50, (16, 16)),
    ("gaussian", 40, (32, 32)),
    ("digits", 50, (32, 32)),
    ("gaussian", 80, (32, 32)),
)
WIDE = (
    ("gaussian", 10, (100,), 1e-4),
    ("gaussian", 10, (300,), 1e-4),
    ("gaussian", 3, (1000,), 1e-5),
    ("gaussian", 3, (3000,), 1e-5),
    ("gaussian", 10, (1000,), 1e-4),
    ("gaussian", 3, (3000,), 1e-2),
    ("digits", 10, (300,), 1e-4),
    ("gaussian", 80, (64,), 1e-4),
    ("hierarchy", 8, (300,), 1e-4),
)
LONG = 30.0  # seconds
TARGETS = (1e-4, 1e-6)
TOLERANCES = tuple(10.0**-k for k in range(3, 10))
RATES = (1e-3, 1e-4, 1e-5, 2.5e-6)
STEPS, PATIENCE = 50_000, 60.0
LIGHT = (fl.UnitSwitches(),)  # in place of the log of every gate
METHODS = {
    "exact": {"kinks": fl.ExactKinks()},
    "plain": {"kinks": fl.IgnoreKinks(), "solver": diffrax.Bosh3(), "events": LIGHT},
    "smooth": {"kinks": fl.SmoothKinks(1e-4), "events": LIGHT},
}


class Ended(NamedTuple):
    """Where a run ended, after how many steps, and why not at t1."""

    final: Any
    steps: int
    stopped: str | None


class Method(NamedTuple):
    """A way to t1 that gets closer as its rtol, or rate, gets finer."""

    run: Callable[[float], Ended]
    knob: str  # "rtol" or "rate"
    settings: tuple[float, ...]


def flowing(network: Any, task: fl.Task, t1: float, options: dict[str, Any]) -> Method:
    """The gradient flow; `rtol` as an array, so that all share one program."""

    def run(rtol: float) -> Ended:
        chosen: Any = {**options, "rtol": jnp.asarray(rtol)}
        flow = fl.gradient_flow(network, task, t1, max_steps=STEPS, throw=False, **chosen)
        steps, why = int(flow.stats["num_steps"]), None
        if flow.result == fl.RESULTS.event_overflow:
            why = f"{int(flow.events.count):,} events"
        elif flow.result == fl.RESULTS.max_steps_reached:
            why = f"{steps:,} steps"
        elif flow.result != fl.RESULTS.successful:
            why = fl.RESULTS[flow.result]
        return Ended(flow.final, steps, why)

    return Method(run, "rtol", TOLERANCES)


def descending(network: Any, task: fl.Task, t1: float) -> Method:
    """Plain gradient descent."""

    def run(rate: float) -> Ended:
        return Ended(_common.descended(network, task, t1, rate), round(t1 / rate), None)

    return Method(run, "rate", RATES)


def refined(method: Method, reference: Any, targets: tuple[float, ...]) -> list[dict[str, Any]]:
    """Refine until the smallest target is met, a limit is reached or nothing is gained."""
    tried: list[dict[str, Any]] = []
    for setting in method.settings:
        if not tried:
            method.run(setting)  # compiles
        taken, ended = _common.seconds(lambda s=setting: method.run(s))
        row = {method.knob: setting, "seconds": taken, "steps": ended.steps}
        tried.append(row)
        at = f"at {method.knob} {setting:.0e}"
        if ended.stopped:
            row["stopped"] = f"{ended.stopped} {at}"
            break
        row["error"] = float(fl.distance(ended.final, reference, relative=True))
        if row["error"] <= min(targets):
            break
        if len(tried) > 3 and row["error"] > 0.9 * tried[-4]["error"]:
            row["stopped"] = "nothing gained by finer tolerances"
            break
        if taken > PATIENCE or setting == method.settings[-1]:
            row["stopped"] = f"{taken:.0f} s {at}"
            break
    return tried


def units(hidden: tuple[int, ...]) -> str:
    """How many hidden units, in words."""
    return " + ".join(map(str, hidden))


def setting(name: str, samples: int, hidden: tuple[int, ...]) -> tuple[fl.Task, float, Any]:
    """Task, t1 and network of a case."""
    digits, deep = name == "digits", len(hidden) > 1
    task = fl.tasks.digits(samples) if digits else _common.gaussian(samples, 10)
    variance = (0.03 if digits else 0.1) if deep else 1e-2
    network = fl.ReLUNetwork.init(task, hidden, variance, key=jax.random.key(0))
    return task, 6.0 if digits else 5.0, network


def compare(
    name: str, samples: int, hidden: tuple[int, ...], targets: tuple[float, ...]
) -> list[dict[str, Any]]:
    """A row per target."""
    task, t1, network = setting(name, samples, hidden)
    methods = {key: flowing(network, task, t1, options) for key, options in METHODS.items()}
    if len(hidden) > 1:
        methods["descent"] = descending(network, task, t1)
    reference = _common.exact_walk(network, task, t1, jnp.asarray(1e-10), throw=False)
    tried = {key: refined(method, reference.final, targets) for key, method in methods.items()}
    rows = []
    for target in targets:
        chosen = {
            method: row
            for method, found in tried.items()
            for row in [next((r for r in found if r.get("error", np.inf) <= target), None)]
            if row is not None
        }
        turn = sum(row["seconds"] for row in chosen.values())
        again = {key: (lambda m=methods[key], r=r: m.run(r[m.knob])) for key, r in chosen.items()}
        times = _common.alternated(again, 1 if turn > 15 else 3)
        row = {"task": name, "P": samples, "H": units(hidden)}
        row |= {"PH": samples * sum(hidden), "target": target}
        row |= {"reference": fl.RESULTS[reference.result], "events": len(reference.events)}
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
    knob = "rtol" if "rtol" in mine else "rate"
    return f"{mine['seconds'] / exact:.2g} ({knob} {mine[knob]:.0e}, {mine['steps']} steps)"


def processor_seconds(run: Callable[[], fl.Trajectory]) -> tuple[float, fl.Trajectory]:
    """The processor's seconds of a run, and what came of it; with compilation if it is long."""
    for _ in range(2):
        began = time.process_time()
        flow = jax.block_until_ready(run())
        taken = time.process_time() - began
        if taken > LONG:
            break
    return taken, flow


def default_kinks(network: Any, task: fl.Task, t1: float) -> str:
    """How a run without `kinks` treats them, which its trace tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.KinksWarning)
        flow = eqx.filter_eval_shape(
            lambda n: fl.gradient_flow(n, task, t1, max_steps=16, max_events=16), network
        )
    return dict(flow.labels)["kinks"]


def compare_wide(name: str, samples: int, hidden: tuple[int, ...], variance: float) -> dict:
    """The row of a walk and of averaged gates, each at its defaults."""
    if name == "hierarchy":
        task, t1 = fl.tasks.hierarchy(), 20.0
    else:
        task, t1, _ = setting(name, samples, hidden)
    network = fl.ReLUNetwork.init(task, hidden, variance, key=jax.random.key(0))
    pairs = samples * sum(hidden)
    row = {"task": name, "P": samples, "H": units(hidden), "variance": variance, "PH": pairs}
    row["numbers"] = pairs + sum(a.size for a in jax.tree.leaves(network.parameters))
    row["default"] = default_kinks(network, task, t1)
    how: dict[str, Any] = {"exact": {"kinks": fl.ExactKinks()}}
    # By default they log nothing; where they are asked for, every gate but for this.
    light = {} if "Averaged" in row["default"] else {"events": LIGHT}
    how["averaged"] = {"kinks": fl.AveragedKinks(), **light}
    finals = {}
    for method, options in how.items():
        taken, flow = processor_seconds(
            lambda o=options: fl.gradient_flow(network, task, t1, throw=False, **o)
        )
        finals[method] = flow.final
        row[method] = {
            "seconds": taken,
            "evaluations": int(flow.stats["evaluations"]),
            "loss": float(flow.losses[-1]),
            "ended": fl.RESULTS[flow.result],
        }
        if method == "exact":
            row["events"] = len(flow.events)
    row["distance"] = float(fl.distance(finals["averaged"], finals["exact"], relative=True))
    return row


def wide_table(rows: list[dict]) -> str:
    """The table of `--wide` as Markdown."""
    head = (
        "task", "P", "H", "variance", "P x H", "events", "events per pair", "numbers", "default",
        "exact: seconds (evaluations)", "averaged: seconds (evaluations)", "loss, exact",
        "loss, averaged", "relative distance",
    )  # fmt: skip
    body = [
        (
            r["task"], r["P"], r["H"], f"{r['variance']:.0e}", r["PH"], r["events"],
            f"{r['events'] / r['PH']:.2f}", r["numbers"], r["default"],
            *(f"{r[m]['seconds']:.2f} ({r[m]['evaluations']})" for m in ("exact", "averaged")),
            *(f"{r[m]['loss']:.3g}" for m in ("exact", "averaged")), f"{r['distance']:.0e}",
        )
        for r in rows
    ]  # fmt: skip
    return _common.markdown_table(head, body)


def markdown(rows: list[dict]) -> str:
    """The table as Markdown."""
    others = [method for method in ("plain", "smooth", "descent") if method in rows[0]]
    head = (
        "task", "P", "H", "P x H", "events", "slides entered", "error",
        "exact: seconds (rtol, steps)", *(f"{method}: times exact" for method in others),
    )  # fmt: skip
    body = []
    for r in sorted(rows, key=lambda r: (-r["target"], r["task"], r["PH"])):
        mine = r["exact"]
        exact = (
            f"{mine['seconds']:.2f} (rtol {mine['rtol']:.0e}, {mine['steps']} steps)"
            if "seconds" in mine
            else cell(r, "exact")
        )
        body.append(
            (
                r["task"], r["P"], r["H"], r["PH"], r["events"], r["slides entered"],
                f"{r['target']:.0e}", exact, *(cell(r, method) for method in others),
            )
        )  # fmt: skip
    return _common.markdown_table(head, body)


def wide_rows(quick: bool, wanted: str) -> None:
    """Compare the cases of `--wide` that are wanted; the smallest one alone is not kept."""
    path = _common.RESULTS / "border_wide.json"
    known = json.loads(path.read_text()) if wanted and path.exists() else []
    rows = {f"{r['task']} {r['P']}, {r['H']}, {r['variance']}": r for r in known}
    for case in tqdm((("gaussian", 3, (4,), 1e-2),) if quick else WIDE):
        name, samples, hidden, variance = case
        key = f"{name} {samples}, {units(hidden)}, {variance}"
        if wanted not in key:
            continue
        rows[key] = compare_wide(*case)
        if not quick:
            _common.save("border_wide", list(rows.values()), wide_table(list(rows.values())))
        jax.clear_caches()
    print(wide_table(list(rows.values())))


def main() -> None:
    """Compare every case that is asked for; saved results of others are kept."""
    parser = _common.parser(__doc__)
    parser.add_argument("--deep", action="store_true", help="two and three hidden layers")
    parser.add_argument("--wide", action="store_true", help="few samples, many units")
    parser.add_argument("--case", default="", help='only those so named, as "digits 50, 16 + 16"')
    given = parser.parse_args()
    if given.wide:
        wide_rows(given.quick, given.case)
        return
    if given.quick:
        tiny = ("gaussian", 6, (3, 3) if given.deep else (4,))
        print(markdown(compare(*tiny, (1e-2,))))
        return
    name = "border_deep" if given.deep else "border"
    path = _common.RESULTS / f"{name}.json"
    rows: list[dict] = json.loads(path.read_text()) if given.case and path.exists() else []
    for task, samples, hidden in tqdm(DEEP if given.deep else CASES):
        case = f"{task} {samples}, {units(hidden)}"
        if given.case not in case:
            continue
        rows = [row for row in rows if f"{row['task']} {row['P']}, {row['H']}" != case]
        rows += compare(task, samples, hidden, TARGETS)
        _common.save(name, rows, markdown(rows))
        jax.clear_caches()  # the programs of many cases are more than fit into one process
    print(markdown(rows))


if __name__ == "__main__":
    main()
