"""The gradient flows on all images that the figures on real images read; see `_flows.py`.

    python examples/paper/flows.py [--only WORD] [--list] [--descent] [--quick]

Runs those that have no file in `results/flows` yet, one after the other, hours on two cores
in all, minutes on a GPU for computing. It can be stopped at any time: each flow has its
checkpoint, and the next call goes on there. Last come those to the stops of Fig. 1B and C.
`--only` takes those whose name holds a word, and `--list` says what there is and how right it is.
`--descent` checks the flows of seed 0 that there are by descent on all images at two rates, a
quarter and an eighth of the paper's, extrapolated to the rate zero, up to flow time 8. `--quick`
runs three on 200 images and saves nothing.
"""

import argparse
import dataclasses
import json

import numpy as np
from _flows import FLOWS, Flow, Stopped, all_flows, all_stopped, event_times


def saved(flow: Flow) -> str:
    """A line on what its file holds."""
    if not flow.path.exists():
        return f"{flow.name}: not run"
    file = json.loads(flow.path.read_text())
    if isinstance(flow, Stopped):
        return f"{flow.name}: {file['evaluations']} evaluations; stops at {file['stops']}"
    found = event_times(file)
    times = ", ".join(f"{t:.4g}" for t in found)
    words = f"{flow.name}: {file['evaluations']} evaluations; events at {times}"
    error = flow.error()
    if error is not None and flow.seed == 0 and not flow.finer:
        words += f"; off a finer run by {error:.2g} at most"
    if flow.descent_path.exists():
        known = np.array(json.loads(flow.descent_path.read_text())["events"][-1], float)
        words += f"; off descent's limit by {np.nanmax(np.abs(found / known - 1)):.2g} at most"
    return words


def descended(flows: list[Flow]) -> None:
    """The descents of those flows of seed 0 that were run."""
    for flow in flows:
        if flow.seed == 0 and flow.path.exists() and not (flow.finer or flow.descent_path.exists()):
            rate = 16 * (5e-4 if flow.data == "mnist" else 2e-4)
            found = flow.descents(flow.task(), rate, 8.0)
            flow.descent_path.write_text(json.dumps(found) + "\n")
            print(saved(flow), flush=True)


def main() -> None:
    """One after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="flows whose name holds this")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--descent", action="store_true", help="their check by descent")
    parser.add_argument("--quick", action="store_true", help="a small one, for tests")
    given = parser.parse_args()
    if given.quick:
        flow = Flow("mnist", "pixel", 10.0, 0, (16,), 1.0, samples=200)
        task = flow.task()
        stopped = Stopped("mnist", "pixel", 10.0, 0, (16,), 20.0, samples=200)
        found = [flow.run(task), stopped.run(task), flow.descents(task, 0.02, 1.0)]
        print(json.dumps(found)[:2000])
        return
    if given.descent:
        descended([flow for flow in all_flows() if given.only in flow.name])
        return
    kind, task = None, None
    for flow in all_flows() + all_stopped():
        if given.only not in flow.name:
            continue
        if not (given.list or flow.path.exists()):
            if kind != (flow.data, flow.preprocessing):
                kind, task = (flow.data, flow.preprocessing), flow.task()
            print(f"{flow.name}, {dataclasses.asdict(flow)}", flush=True)
            assert task is not None
            found = flow.run(task)
            FLOWS.mkdir(exist_ok=True)
            flow.path.write_text(json.dumps(found) + "\n")
        print(saved(flow), flush=True)


if __name__ == "__main__":
    main()
