"""How far descent with a finite rate is from the flow: slopes, certificates, chattering width.

    python benchmarks/descent_certificate.py [--quick]

Per task: the largest learning rates at which full-batch descent stays within 1 % of the flow, in
parameters, function, loss and event times (`fl.largest_learning_rate`; every mode reaching half of
its strength, and the loss half of its start), with the slopes of log error against log rate, and
for ReLU networks the width about the kinks within which descent chatters where the flow slides,
over the smallest rates of a certificate for a tenth of that.
For smooth networks also the slopes against the modified flow, in the parameters at the final time
and in the event times. ReLU flows are walked exactly; they have no modified flow.
Writes `descent_certificate.json` and the table `descent_certificate.md` to `benchmarks/results/`.
"""

import math
from typing import Any

import _common
import jax
import numpy as np
from tqdm import tqdm

import flowlin as fl

# kind, task, hidden layers, initial variance, final time
SETTINGS = {
    "linear, hierarchy": (fl.LinearNetwork, "hierarchy", (16,), 2e-4, 12.0),
    "linear, three layers": (fl.LinearNetwork, "hierarchy", (16, 16), 2e-2, 12.0),
    "linear, gaussian": (fl.LinearNetwork, "gaussian", (32,), 1e-2, 10.0),
    "relu, hierarchy": (fl.ReLUNetwork, "hierarchy", (64,), 2e-4, 5.0),
    "relu, xor": (fl.ReLUNetwork, "xor", (32,), 1e-2, 4.0),
    "relu, gaussian": (fl.ReLUNetwork, "gaussian", (32,), 1e-2, 3.0),
}
WITHIN = 0.01


def problem(name: str) -> tuple[Any, fl.Task, float, tuple]:
    """Network, task, final time and events of a setting."""
    kind, title, hidden, variance, t1 = SETTINGS[name]
    task = _common.toys()[title]
    network = kind.init(task, hidden, variance, key=jax.random.key(0))
    modes = fl.theory.modes(task, network)
    level = 0.5 * float(fl.SquaredError()(network.outputs(task.x), task.y))
    events = (fl.ModeHits(modes, share=0.5), fl.LossBelow(level))
    return network, task, t1, events


def certified(name: str) -> dict[str, Any]:
    """The certificate of a setting."""
    network, task, t1, events = problem(name)
    taken, found = _common.seconds(
        lambda: fl.largest_learning_rate(network, task, t1, WITHIN, events=events)
    )
    row = {"setting": name, "t1": t1, "edge": found.edge, "rates": found.rates.tolist()}
    row |= {"seconds, compilation included": taken}
    for quantity in ("parameters", "function", "loss", "events"):
        accuracy = getattr(found, quantity)
        if accuracy is not None:
            errors = accuracy.errors.tolist()
            row[quantity] = {"rate": accuracy.rate, "slope": accuracy.slope, "errors": errors}
    if found.chattering is not None:
        # Rates within 1 % are so coarse in the shorter runs that pairs hardly slide for a step.
        finer = fl.largest_learning_rate(network, task, t1, WITHIN / 10)
        small = finer.rates <= 16 * finer.rates[0]
        assert finer.chattering is not None
        rates, widths = finer.rates[small], finer.chattering.errors[small]
        row["chattering"] = {"rates": rates.tolist(), "widths": widths.tolist()}
        row["chattering"]["slope"] = float(np.polyfit(np.log(rates), np.log(widths), 1)[0])
        row["width over rate"] = float(np.median(widths / rates))
    return row


def times(log: fl.EventLog) -> np.ndarray:
    """First times of the modes' hits and of the loss; inf where there is none."""
    return np.append(log.first("mode"), log.first("loss"))


def modified(name: str, rates: list[float]) -> dict[str, Any]:
    """Slopes of descent's distances from the plain and from the modified flow."""
    network, task, t1, events = problem(name)

    def flowed(rate: float | None) -> tuple[Any, np.ndarray]:
        flow = fl.gradient_flow(network, task, t1, events=events, modified_rate=rate, rtol=1e-11)
        return flow.final, times(flow.events)

    end, hits = flowed(None)
    distances: dict[str, list[float]] = {"plain": [], "modified": []}
    delays: dict[str, list[float]] = {"plain": [], "modified": []}
    for rate in rates:
        run = fl.gradient_descent(network, task, rate, t1=t1, events=events, interpolate=True)
        found = times(run.events)
        for which, (last, due) in (("plain", (end, hits)), ("modified", flowed(rate))):
            distances[which].append(float(fl.distance(run.final, last, relative=True)))
            both = np.isfinite(found) & np.isfinite(due)
            delays[which].append(float(np.max(np.abs(found[both] - due[both]))))
    slopes = {
        f"{what}, {which}": float(np.polyfit(np.log(rates), np.log(errors[which]), 1)[0])
        for what, errors in (("parameters", distances), ("event times", delays))
        for which in errors
    }
    return {
        "modified, rates": rates, "modified, slopes": slopes, "modified, events": len(hits),
        "modified, parameters": distances, "modified, event times": delays,
    }  # fmt: skip


def cell(row: dict[str, Any], quantity: str) -> str:
    """Rate and slope of one quantity."""
    if quantity not in row:
        return "-"
    rate, slope = row[quantity]["rate"], row[quantity]["slope"]
    return f"{'none' if math.isnan(rate) else f'{rate:.2g}'} ({slope:.2f})"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Both tables as Markdown."""
    head = (
        "setting", "t1", "edge 2/lambda", "parameters", "function", "loss", "event times",
        "chattering width / eps", "its slope", "s",
    )  # fmt: skip
    body = [
        (
            row["setting"], f"{row['t1']:g}", f"{row['edge']:.2g}",
            *(cell(row, q) for q in ("parameters", "function", "loss", "events")),
            f"{row['width over rate']:.2g}" if "chattering" in row else "-",
            f"{row['chattering']['slope']:.2f}" if "chattering" in row else "-",
            f"{row['seconds, compilation included']:.0f}",
        )
        for row in rows
    ]  # fmt: skip
    text = f"Largest learning rate within {100 * WITHIN:g} % of the flow (slope of its error):\n\n"
    text += _common.markdown_table(head, body)
    head = ("setting", "rates", "against", "parameters at t1", "event times (largest)", "slopes")
    body = [
        (
            row["setting"], f"{row['modified, rates'][0]:g} ... {row['modified, rates'][-1]:g}",
            f"{which} flow", f"{row['modified, parameters'][which][-1]:.1e}",
            f"{row['modified, event times'][which][-1]:.1e}",
            f"{row['modified, slopes'][f'parameters, {which}']:.3f}, "
            f"{row['modified, slopes'][f'event times, {which}']:.3f}",
        )
        for row in rows
        for which in ("plain", "modified")
        if "modified, slopes" in row
    ]  # fmt: skip
    text += "\n\nDescent against the plain and the modified flow, at the smallest rate:\n\n"
    return text + _common.markdown_table(head, body)


def main() -> None:
    """Run every setting."""
    given = _common.parser(__doc__).parse_args()
    names = list(SETTINGS)[:1] if given.quick else list(SETTINGS)
    rates = [0.02, 0.01] if given.quick else [0.02, 0.01, 0.005, 0.0025]
    rows: list[dict[str, Any]] = []
    for name in tqdm(names):
        row = certified(name)
        if SETTINGS[name][0] is fl.LinearNetwork:
            row |= modified(name, rates)
        rows.append(row)
        if not given.quick:
            _common.save("descent_certificate", rows, markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
