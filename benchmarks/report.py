"""Makes `benchmarks/README.md` and the work-precision plots from the committed results.

    python benchmarks/report.py [--quick]

Nothing is run: the JSON files in `benchmarks/results/` are read, and the README and the plots in
`benchmarks/results/` written. With `--quick` one plot is drawn in a temporary folder and the rest
printed. Needs matplotlib (extra `plot`).
"""

import ast
import pathlib
import tempfile

import _common
from _peers_table import best, losses
from _report_claims import Verdict, load, verdicts
from _report_plots import work_precision

HERE = pathlib.Path(__file__).parent

INTRODUCTION = """# Benchmarks

One script per claim. Each takes `--quick` (seconds, leaves the results alone) and `--help`, which
says what is measured and how; its results are in [`results/`](results), as JSON and as a table.
This page is made from them by `python benchmarks/report.py`; their plots, and which solver, policy
and device to take, are on [a page of the documentation](../docs/explanation/benchmarks.md).

```bash
pip install '.[benchmarks]'            # the peers: SciPy, SUNDIALS, PyTorch, torchdiffeq
python benchmarks/peers.py             # all problems; --problem NAME for one
python benchmarks/report.py            # this page and its plots
```

Times are medians of runs that take turns within one process, without compilation, on a machine
with two cores: read the ratios, not the seconds. The tables of peers say what load there was:
all problems were measured alone, or nearly so. What runs for a millisecond or two finds its caches
emptied by the others in between, and takes about twice as long as alone."""

PEERS = """## flowlin and its peers

Same problem, same initial weights, float64, error against a reference; `python benchmarks/peers.py
--help` says what every contender is given. All of them have the same field, of linear networks the
one from sufficient statistics, so that the seconds compare solvers. Cells: evaluations of the
field, seconds. In the plots descent may leave on the right. Full
tables with tolerances and the reasons for what is missing:
[results/peers.md](results/peers.md)."""


def scripts() -> str:
    """Every script and the first line of its docstring."""
    rows = []
    for path in sorted(HERE.glob("[!_]*.py")):
        claim = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        table = _common.RESULTS / f"{path.stem}.md"
        link = f"[table](results/{table.name})" if table.exists() else "-"
        rows.append((f"[`{path.name}`]({path.name})", claim, link))
    return "## Scripts\n\n" + _common.markdown_table(("script", "claim", "results"), rows)


REASONS = """Why: a call of `fl.gradient_flow` costs some milliseconds beside its steps (1.5 alone,
more where other programs come in between), which shows where the whole run is short; under
`jax.jit` part of it goes. The exact walk costs about the same whatever error is asked for. On a
smooth flow that is not stiff the methods of flowlin are those of its peers. Of hitting times, "its
field alone" above says how many times less time the same evaluations would take with nothing else
done: where that is below ten, so is every solver with as many evaluations."""


def goals(found: list[Verdict]) -> str:
    """Goals, what was measured, met or not."""
    words = {True: "met", False: "**not met**", None: "-"}
    rows = [(v.script, v.goal, v.measured, words[v.met]) for v in found]
    head = ("script", "goal", "measured", "")
    return "## Goals\n\n" + _common.markdown_table(head, rows)


def plot_name(entry: dict) -> str:
    """File of an entry's plot."""
    return "peers_" + entry["problem"].replace(" ", "_").replace("=", "") + ".png"


def cell(entry: dict, name: str, target: float) -> str:
    """Evaluations and seconds at one error."""
    row = best(entry, name, target)
    if row is None:
        return "-"
    count = "?" if row["evaluations"] is None else f"{row['evaluations']:,}"
    return f"{count}, {row['seconds']:.2g} s"


def problem(entry: dict) -> str:
    """One problem: plot and table."""
    rows = []
    for contender in entry["contenders"]:
        name = contender["name"]
        cells = [cell(entry, name, target) for target in entry["targets"]]
        note = f" ({contender['note']})" if contender["note"] else ""
        rows.append((name + note, *cells))
    head = ("contender", *(f"{target:.0e}" for target in entry["targets"]))
    load = " and ".join(map(str, entry["load"]))
    return (
        f"### {entry['title']}\n\n![Work-precision plot: {entry['title']}]"
        f"(results/{plot_name(entry)})\n\n{_common.markdown_table(head, rows)}\n\n"
        f"{entry['parameters']:,} parameters; reference: {entry['reference']}. A run may take "
        f"{entry['cap']:g} s. Load of the machine at start and end: {load}."
    )


def losing(entries: list[dict]) -> str:
    """Where a peer is cheaper than every flowlin contender."""
    rows: dict[tuple, list[str]] = {}
    for entry in entries:
        for loss in losses(entry):
            times = "" if loss["times"] is None else f" ({loss['times']:,.2f}x)"
            key = (loss["problem"], f"{loss['target']:.0e}", loss["unit"])
            rows.setdefault(key, []).append(loss["peer"] + times)
    body = [(*key, ", ".join(peers)) for key, peers in rows.items()]
    head = ("problem", "error", "in", "cheaper than every flowlin contender (how many times)")
    text = (
        "Computed from the results: every problem, error and measure in which some peer needs "
        "fewer evaluations, or less than 1/1.1 of the time."
    )
    return f"## Where flowlin loses\n\n{text}\n\n{_common.markdown_table(head, body)}\n\n{REASONS}"


def stiff_flows() -> str:
    """What `implicit.py` has measured."""
    return "## Stiff and smooth flows\n\n" + (_common.RESULTS / "implicit.md").read_text().strip()


def page(entries: list[dict]) -> str:
    """The README."""
    parts = [INTRODUCTION, scripts(), goals(verdicts()), losing(entries), stiff_flows(), PEERS]
    return "\n\n".join([*parts, *(problem(entry) for entry in entries)]) + "\n"


def main() -> None:
    """Draw and write."""
    quick = _common.parser(__doc__).parse_args().quick
    entries = load("peers")
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            for entry in entries[:1]:
                work_precision(entry, pathlib.Path(folder) / plot_name(entry))
        print(page(entries))
        return
    for entry in entries:
        work_precision(entry, _common.RESULTS / plot_name(entry))
    (HERE / "README.md").write_text(page(entries))


if __name__ == "__main__":
    main()
