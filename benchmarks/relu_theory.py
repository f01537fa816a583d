"""The theory of ReLU networks against their exact flow: early phase, t*, delay, linear model.

    python benchmarks/relu_theory.py [--quick] [--seeds 5]

The semantic tree (`fl.tasks.hierarchy()`), 64 hidden units with biases, c = 1, the mean loss,
seeds 0, 1, ..., `kinks=fl.ExactKinks()` at rtol 1e-8 up to t = 60, for two initial variances.
Per variance, median and largest value over the seeds of:

- walk: relative distance of `theory.early_phase` from the numerical flow of the loss made linear
  at zero outputs, which it is the closed form of, at rtol 1e-10 (first three seeds).
- early error: relative distance of the early phase's parameters from the flow, where their outputs
  have reached 1 % and 10 % of the targets (`overlap`).
- fate: units whose fate at t = 0 differs from what they are at the flow's t* (open); units whose
  state in the walk, where the leading mode is learned to 90 %, differs from it.
- on: difference of the always-on fractions on the slowed clock and in the flow, where the leading
  mode is learned to 25, 50, 75, 90 %.
- t*: predicted (slowed clock, `share=0.9`) and measured, open.
- delay: of the ReLU network behind the linear one with the same weights until a mode is at half of
  its strength, measured as events, and its estimates: `gating_delay` with the live fraction, with
  that weighted by the modes' parts (errata E11), and `SlowedClock.delays`.
- model: error of `theory.after_linearization`, started in the middle of the maximum at t*, against
  the gated linear network and against the ReLU network, up to 20 units of time later, and the
  largest differences of the losses over that of zero outputs. Which units are on is read from
  the log of gates.

Writes `relu_theory.json` and the tables `relu_theory.md` to `benchmarks/results/`.
"""

import warnings
from typing import Any

import _common
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import flowlin as fl
from flowlin import theory

VARIANCES = (2e-4, 2e-6)
SHARES = (0.25, 0.5, 0.75, 0.9)
LEVELS = (0.01, 0.1)
TIMES = np.linspace(0, 60, 61)
MODES = 2  # those that no other mode equals


def walked(network: Any, task: fl.Task, modes: Any, ts: Any) -> fl.Trajectory:
    """The exact walk; always of the same shapes, so that it is compiled once."""
    half = fl.ModeHits(modes, share=0.5, direction="up")
    return fl.gradient_flow(
        network, task, float(ts[-1]), ts=ts, events=(half,), kinks=fl.ExactKinks()
    )


def states(codes: Any) -> np.ndarray:
    """1 for units whose pairs (..., H) are all on, -1 for all off, 0 for others."""
    codes = np.asarray(codes)
    return np.where(np.all(codes == 1, axis=0), 1, np.where(np.all(codes == -1, axis=0), -1, 0))


def early(network: Any, task: fl.Task, modes: Any, line: Any, at: dict, check: bool) -> dict:
    """The early phase and the slowed clock against the flow, whose networks `at` holds."""
    phase, clock = at["phase"], at["clock"]
    found: dict[str, Any] = {}
    if check:
        exact = fl.gradient_flow(
            network, task, float(phase.t1), loss=theory.LinearizedLoss(fl.SquaredError()),
            kinks=fl.ExactKinks(), rtol=1e-10,
        )  # fmt: skip
        found["walk"] = float(fl.distance(phase.network(phase.t1), exact.final, relative=True))
    for level, (t, true) in at["levels"].items():
        found[f"early {level:g}"] = float(fl.distance(phase.network(t), true, relative=True))
    truth = states(at["gates"])
    fate, walk = np.asarray(phase.fate), states(np.asarray(phase.sides(clock.reading_at(0.9))).T)
    found["fate"] = [float(np.mean(fate == k)) for k in (1, 0, -1)]
    found["fate wrong"] = float(np.mean(fate != truth))
    found["fate reversed"] = float(np.mean(fate * truth < 0))
    found["walk wrong"] = float(np.mean(walk != truth))
    found["on"] = []
    for share in SHARES:
        theta = clock.reading_at(share)
        on = float(jnp.mean(jnp.all(phase.sides(theta) == 1, axis=1)))
        real = float(line.activity(clock.time(theta)).always_on)
        found["on"].append([on, real])
    predicted = clock.linearization()[0]
    found["t*"] = [float(predicted.time), float(line.open.time)]
    found["fraction"] = [float(predicted.fraction), float(line.open.fraction)]
    return found


def hits(flow: fl.Trajectory) -> np.ndarray:
    """First times at which the modes are at half of their strength."""
    return np.asarray(flow.events.first("mode"))[:MODES]


def delay(network: Any, task: fl.Task, modes: Any, flow: Any, clock: Any) -> dict[str, Any]:
    """The delay behind the linear network and its estimates."""
    measured = hits(flow) - hits(walked(network.linear(), task, modes, TIMES))
    live = np.any(np.asarray(network.preactivations(task.x)[0]) > 0, axis=0)
    w = np.concatenate([network.biases[0][:, None], network.weights[0]], axis=1)
    parts = np.asarray(network.weights[1].T @ modes.u + w @ modes.v)[:, :MODES] / 2
    a0 = np.sum(parts**2, axis=0)
    of = modes.s[:MODES], modes.d[:MODES], a0
    return {
        "measured": measured.tolist(),
        "live": np.asarray(theory.gating_delay(*of, np.mean(live))).tolist(),
        "weighted": np.asarray(
            theory.gating_delay(*of, np.sum(parts[live] ** 2, axis=0) / a0)
        ).tolist(),
        "clock": np.asarray(clock.delays(0.5 * modes.full_strength))[:MODES].tolist(),
    }


def model(start: Any, gates: Any, task: fl.Task, modes: Any) -> dict[str, Any]:
    """The linear model after t*, with the units that the log of gates says are on."""
    on = np.all(np.asarray(gates) > 0, axis=0)
    solution = theory.after_linearization(start, task, always_on=on)
    gated = fl.GatedLinearNetwork(
        start.weights, start.biases, start.bias_strength, gates=(on.astype(float),)
    )
    ts = np.linspace(0, 20, len(TIMES))
    first = float(fl.SquaredError()(start.outputs(task.x) * 0, task.y))
    found, losses = {}, {}
    for name, other in (("gated", gated), ("ReLU", start)):
        run = walked(other, task, modes, ts)
        error, off = solution.error(run), jnp.abs(solution.loss(ts) - run.losses)
        found[name] = [float(jnp.max(error)), float(jnp.max(off)) / first]
        losses[name] = run.losses
    found["gated to ReLU"] = float(jnp.max(jnp.abs(losses["gated"] - losses["ReLU"]))) / first
    return found


def measured(network: Any, task: fl.Task, modes: Any, check: bool) -> dict[str, Any]:
    """One seed."""
    flow = walked(network, task, modes, TIMES)
    line = flow.linearization()
    phase = theory.early_phase(network, task)
    clock = theory.slowed_clock(phase, modes)
    times = np.linspace(0, float(phase.t1), 1001)
    overlap = np.asarray(phase.overlap(times))
    wanted = [times[np.argmax(overlap >= level)] for level in LEVELS]
    star = float(line.open.time + line.open.lasts / 2)
    ts = np.sort(np.concatenate([TIMES[: -len(wanted) - 2], [*wanted, star], TIMES[-1:]]))
    rows = walked(network, task, modes, ts)

    def network_at(t: float) -> Any:
        k = int(np.searchsorted(ts, t))
        return jax.tree.map(lambda a: a[k], rows.networks)

    gates = flow.events.sides(star)
    at = {"phase": phase, "clock": clock, "gates": gates}
    at["levels"] = {level: (t, network_at(t)) for level, t in zip(LEVELS, wanted, strict=True)}
    row = early(network, task, modes, line, at, check)
    row["delay"] = delay(network, task, modes, flow, clock)
    row["model"] = model(network_at(star), gates, task, modes)
    return row


def spread(values: Any) -> str:
    """Median and largest."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return f"{np.median(values):.3g} / {np.max(values):.3g}" if values.size else "-"


def tables(rows: list[dict]) -> str:
    """The results as Markdown."""
    groups = {v: [r for r in rows if r["variance"] == v] for v in VARIANCES}
    groups = {v: group for v, group in groups.items() if group}
    first, second, third, fourth = [], [], [], []
    for v, group in groups.items():
        star, fraction = (np.array([r[k] for r in group]) for k in ("t*", "fraction"))
        on = np.array([r["on"] for r in group])
        first.append(
            (f"{v:g}", len(group), spread([r["walk"] for r in group if "walk" in r]),
             spread([r["early 0.01"] for r in group]), spread([r["early 0.1"] for r in group]),
             *(spread([r[k] for r in group])
               for k in ("fate wrong", "fate reversed", "walk wrong")))
        )  # fmt: skip
        second.append(
            (f"{v:g}", *(spread(np.abs(on[:, k, 0] - on[:, k, 1])) for k in range(len(SHARES))),
             spread(np.abs(fraction[:, 0] - fraction[:, 1])),
             spread(np.abs(star[:, 0] / star[:, 1] - 1)),
             f"{np.sum(np.abs(star[:, 0] / star[:, 1] - 1) < 0.01)} of {len(group)}")
        )  # fmt: skip
        for mode in range(MODES):
            d = {k: np.array([r["delay"][k][mode] for r in group]) for k in group[0]["delay"]}
            true = d["measured"]
            third.append(
                (f"{v:g}", mode + 1, f"{np.min(true):.3f} to {np.max(true):.3f}",
                 *(f"{np.median(d[k] / true):.3f} ({np.min(d[k] / true):.3f} to "
                   f"{np.max(d[k] / true):.3f})" for k in ("live", "weighted", "clock")))
            )  # fmt: skip
        fourth.append(
            (f"{v:g}", *(spread([r["model"][n][k] for r in group])
                         for n in ("gated", "ReLU") for k in (0, 1)),
             spread([r["model"]["gated to ReLU"] for r in group]))
        )  # fmt: skip
    return "\n\n".join(
        (
            "Early phase and fates, median / largest over seeds:",
            _common.markdown_table(
                ("variance", "seeds", "walk", "early error at 1 %", "at 10 %", "fate wrong at t*",
                 "of these, reversed", "walk wrong at t*"), first),
            "Always-on fraction and t* (open) on the slowed clock, median / largest difference:",
            _common.markdown_table(
                ("variance", *(f"on at {s:.0%}" for s in SHARES), "fraction at t*",
                 "t*, relative", "t* within 1 %"), second),
            "Delay behind the linear network until half strength, estimate over measured delay, "
            "median (range):",
            _common.markdown_table(
                ("variance", "mode", "measured", "live fraction (Eq. 14)", "weighted live fraction",
                 "slowed clock"), third),
            "Linear model of the always-on units from t* on, median / largest:",
            _common.markdown_table(
                ("variance", "outputs, against gated linear", "loss", "outputs, against ReLU",
                 "loss", "gated linear against ReLU, loss"), fourth),
        )
    )  # fmt: skip


def main() -> None:
    """Run everything."""
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore", fl.LinearizationWarning)
    task, variances = fl.tasks.hierarchy(), VARIANCES
    if given.quick:
        task, variances, given.seeds = fl.tasks.hierarchy(levels=2), VARIANCES[:1], 1
    modes, rows = theory.modes(task, 1.0), []
    for variance in variances:
        for seed in tqdm(range(given.seeds), desc=f"variance {variance:g}"):
            network = fl.ReLUNetwork.init(
                task, hidden=(64,), variance=variance, key=jax.random.key(seed)
            )
            row = {"variance": variance, "seed": seed}
            rows.append(row | measured(network, task, modes, check=seed < 3))
    text = tables(rows)
    print(text)
    if not given.quick:
        _common.save("relu_theory", rows, text)


if __name__ == "__main__":
    main()
