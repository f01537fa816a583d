"""Derivatives through the events of an exact walk: against finite differences, and their memory.

    python benchmarks/derivatives.py [--quick]

Forward-mode derivatives of every event time, of t* (open and closed) and of the final weights,
along random directions of the initial weights and of the data and with respect to c, against
five-point differences of steps 1e-5 and 1e-6 (the closer one) at rtol 1e-12. Events whose
derivative differs by more than 1e-6 are listed with their uncertainty, those that come or go
within the differences are counted. Reverse against forward mode on a small network. Memory is what
XLA sets aside beyond arguments and results. Writes `derivatives.json` and the table
`derivatives.md` to `benchmarks/results/`.
"""

from typing import Any

import _common
import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl

STEPS = (1e-5, 1e-6)
NAMES = ("initial weights", "bias strength c", "data")


def outcome(base, task: fl.Task, t1: float, rtol: float, adjoint: Any, max_steps: int):
    """Function of (turn, c, bend): event times and components, t*, final weights, uncertainty."""
    keys = jax.random.split(jax.random.key(11), 3)
    turns = [
        jnp.std(w) * jax.random.normal(key, w.shape)
        for key, w in zip(keys, base.weights, strict=False)
    ]
    bend = jax.random.normal(keys[2], task.x.shape)

    def run(at):
        weights = tuple(w + at[0] * d for w, d in zip(base.weights, turns, strict=True))
        network = fl.ReLUNetwork(weights, base.biases, at[1])
        flow = fl.gradient_flow(
            network,
            fl.Task(task.x + at[2] * bend, task.y),
            t1,
            kinks=fl.ExactKinks(),
            rtol=rtol,
            adjoint=adjoint,
            throw=False,
            max_steps=max_steps,
            max_events=1024,
        )
        line, log = flow.linearization(), flow.events
        final = jnp.concatenate([w.ravel() for w in flow.final.weights])
        stars = jnp.stack([line.open.time, line.closed.time])
        return log.time, final, stars, log.component, log.uncertainty

    return run


def by_pair(time, component) -> dict[tuple[int, int], int]:
    """Row of each event by (component, how many before it)."""
    found: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(np.isfinite(time)):
        number = sum(1 for c, _ in found if c == component[row])
        found[int(component[row]), number] = int(row)
    return found


def differences(run, at, direction, known, step: float):
    """Five-point differences: of event times by pair, of the final weights, of t*."""
    weigh = np.array([1.0, -8.0, 8.0, -1.0]) / (12 * step)
    near = [run(at + k * step * direction) for k in (-2, -1, 1, 2)]
    tables = [by_pair(one[0], np.asarray(one[3])) for one in near]
    common = [key for key in known if all(key in table for table in tables)]
    times = {
        key: sum(w * float(one[0][t[key]]) for w, one, t in zip(weigh, near, tables, strict=True))
        for key in common
    }
    final, stars = (sum(w * one[k] for w, one in zip(weigh, near, strict=True)) for k in (1, 2))
    return times, final, stars


def against_differences(
    name: str, task: fl.Task, hidden: int | tuple[int, ...], variance: float, t1: float
):
    """One row per direction."""
    base = fl.ReLUNetwork.init(task, hidden, variance, key=jax.random.key(3))
    run = jax.jit(outcome(base, task, t1, 1e-12, diffrax.ForwardMode(), 2048))
    at = jnp.asarray([0.0, 1.0, 0.0])
    rows = []
    for direction, what in zip(jnp.eye(3), NAMES, strict=True):
        value, tangent = jax.jvp(lambda x: run(x)[:3], (at,), (direction,))
        _, _, _, component, uncertainty = run(at)
        known = by_pair(value[0], np.asarray(component))
        found = [differences(run, at, direction, known, step) for step in STEPS]
        common = [key for key in known if all(key in times for times, _, _ in found)]
        mine = np.array([known[key] for key in common])
        finite = np.array([[times[key] for key in common] for times, _, _ in found])
        off = np.min(np.abs(np.asarray(tangent[0])[mine] / finite - 1), axis=0)

        def relative(k, found=found, tangent=tangent):
            errors = [np.linalg.norm(tangent[k] - one[k]) for one in found]
            size = np.linalg.norm(found[0][k])
            return float(min(errors) / size) if size > 0 else None

        bad = [
            {
                "time": float(value[0][k]),
                "derivative": float(tangent[0][k]),
                "off": float(o),
                "uncertainty": float(uncertainty[k]),
            }
            for k, o in zip(mine, off, strict=True)
            if o > 1e-6
        ]
        rows.append(
            {
                "task": name,
                "with respect to": what,
                "events": len(known),
                "median": float(np.median(off)),
                "largest": float(np.max(off)),
                "t*": relative(2),
                "final weights": relative(1),
                "came or went": len(known) - len(common),
                "beyond 1e-6": bad,
            }
        )
    return rows


def temporary(compiled: Any) -> int:
    """Bytes set aside beyond arguments and results."""
    return int(compiled.memory_analysis().temp_size_in_bytes)


def reverse_against_forward(hidden: tuple[int, ...]) -> dict[str, Any]:
    """Reverse-mode gradient against forward-mode slopes, and the memory of either."""
    task = fl.tasks.xor()
    base = fl.ReLUNetwork.init(task, hidden, 0.1, key=jax.random.key(2))

    def compiled(adjoint, max_steps, derivative):
        run = outcome(base, task, 6.0, 1e-8, adjoint, max_steps)

        def total(at):
            time, final, *_ = run(at)
            return jnp.sum(jnp.where(jnp.isfinite(time), time, 0.0)) + jnp.sum(final**3)

        return jax.jit(derivative(total)).lower(jnp.asarray([0.0, 1.0, 0.0])).compile()

    at = jnp.asarray([0.0, 1.0, 0.0])
    row: dict[str, Any] = {"xor": " + ".join(map(str, hidden))}
    forward = compiled(diffrax.ForwardMode(), 128, jax.jacfwd)
    for steps in (128, 2**20):
        reverse = compiled(diffrax.RecursiveCheckpointAdjoint(), steps, jax.grad)
        if steps == 128:
            slopes, gradient = forward(at), reverse(at)
            row["largest relative difference"] = float(np.max(np.abs(gradient / slopes - 1)))
        row[f"reverse, max_steps {steps}: bytes"] = temporary(reverse)
    row["forward, 3 directions: bytes"] = temporary(forward)
    plain = compiled(diffrax.ForwardMode(), 128, lambda f: f)
    row["no derivative: bytes"] = temporary(plain)
    return row


def main() -> None:
    """Measure and write."""
    quick = _common.parser(__doc__).parse_args().quick
    tree = fl.tasks.hierarchy()
    if quick:
        rows = against_differences("hierarchy", tree, 8, 1e-3, 3.0)
    else:
        rows = against_differences("hierarchy", tree, 64, 2e-4, 20.0)
        rows += against_differences("gaussian", _common.gaussian(20), 32, 1e-2, 6.0)
        rows += against_differences("offset xor", fl.tasks.offset_xor(), 32, 1e-2, 10.0)
        rows += against_differences("xor 0/1", fl.tasks.xor(binary=True), 32, 1e-2, 20.0)
        small = fl.tasks.hierarchy(levels=2)
        rows += against_differences("hierarchy of 4, 6 + 6", small, (6, 6), 5e-2, 12.0)
    head = [key for key in rows[0] if key != "beyond 1e-6"]
    cells = [
        [f"{v:.1e}" if isinstance(v, float) else "-" if v is None else v for v in line]
        for line in ([row[key] for key in head] for row in rows)
    ]
    text = _common.markdown_table(head, cells)
    for row in rows:
        for bad in row["beyond 1e-6"]:
            text += (
                f"\n\n{row['task']}, {row['with respect to']}: event at t = {bad['time']:.6f} off "
                f"by {bad['off']:.1e} of {bad['derivative']:.1e}, uncertainty "
                f"{bad['uncertainty']:.1e}"
            )
    print(text)
    if quick:
        return
    memory = [reverse_against_forward(hidden) for hidden in ((6,), (6, 6))]
    text += "\n\n" + _common.markdown_table(list(memory[0]), [list(m.values()) for m in memory])
    print(memory)
    _common.save("derivatives", [*rows, *memory], text)


if __name__ == "__main__":
    main()
