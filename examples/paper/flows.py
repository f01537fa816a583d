"""The gradient flows on all images that the figures on real images read; see `_flows.py`.

    python examples/paper/flows.py [--only WORD] [--list] [--quick]

Runs those that have no file in `results/flows` yet, one after the other, some nine hours on two
cores in all. It can be stopped at any time: each flow has its checkpoint, and the next call goes on
there. `--only` takes those whose name holds a word, `--list` says what there is, and `--quick` runs
one on 200 images and saves nothing.
"""

import argparse
import dataclasses
import json

from _flows import FLOWS, Flow, all_flows, event_times


def saved(flow: Flow) -> str:
    """A line on what its file holds."""
    if not flow.path.exists():
        return f"{flow.name}: not run"
    file = json.loads(flow.path.read_text())
    times = ", ".join(f"{t:.4g}" for t in event_times(file))
    return f"{flow.name}: {file['evaluations']} evaluations; events at {times}"


def main() -> None:
    """One after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="flows whose name holds this")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--quick", action="store_true", help="a small one, for tests")
    given = parser.parse_args()
    if given.quick:
        flow = Flow("mnist", "pixel", 10.0, 0, (16,), 1.0, samples=200)
        print(json.dumps(flow.run(flow.task()), indent=1)[:600])
        return
    kind, task = None, None
    for flow in all_flows():
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
