"""Flow against descent on real images: how fast descent approaches the flow.

    python benchmarks/agreement.py [--quick] [--samples 2000] [--hidden 128]

For MNIST and grayscale CIFAR-10, linear and ReLU networks with bias (c = 10), descent at three
learning rates is compared with the flow: relative distance of parameters and function, difference
in loss, in the modes' hitting times, and in t* by quantile. Writes `agreement.json` and the table
`agreement.md` to `benchmarks/results/`. Needs the image files (see the README); `--quick` runs on
scikit-learn's digits.
"""

import warnings

import _common
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl

QUANTILES = (0.01, 0.05)
# final time and learning rates per task, below the edge of stability
SETTINGS = {
    "mnist": (6.0, (1e-2, 5e-3, 2.5e-3)),
    "cifar10": (6.0, (4e-3, 2e-3, 1e-3)),
    "digits": (4.0, (2e-2, 1e-2, 5e-3)),
}


def t_stars(run: fl.Trajectory) -> list[float]:
    """Open t* at every quantile; NaN for linear networks."""
    if not isinstance(run.final, fl.ReLUNetwork):
        return [float("nan")] * len(QUANTILES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        return [float(run.linearization(q).open.time) for q in QUANTILES]


def rows(name: str, task: fl.Task, kind: type, hidden: int) -> list[dict]:
    """One row per learning rate."""
    t1, rates = SETTINGS[name]
    c = 10.0 if name != "digits" else 1.0
    network = kind.init(task, hidden, bias_strength=c, key=jax.random.key(0))
    modes = fl.theory.modes(task, network)
    events: list = [fl.ModeHits(modes, share=0.25)]
    if kind is fl.ReLUNetwork:
        events += [fl.UnitSwitches(q) for q in QUANTILES]
    rtol = 1e-10 if kind is fl.LinearNetwork else 1e-5
    flow = fl.gradient_flow(
        network, task, t1, events=events, dense=True, rtol=rtol, kinks=fl.IgnoreKinks()
    )
    reference, stars = np.asarray(flow.events.first("mode")), t_stars(flow)
    found = []
    for rate in rates:
        descent = fl.gradient_descent(network, task, rate, t1=t1, events=events)
        gap = fl.compare(flow, descent)
        hits = np.asarray(descent.events.first("mode"))
        both = np.isfinite(hits) & np.isfinite(reference)
        found.append(
            {
                "task": task.name,
                "samples": task.samples,
                "hidden": hidden,
                "network": kind.__name__,
                "t1": t1,
                "learning rate": rate,
                "parameters": float(gap.parameters[-1]),
                "function": float(gap.function[-1]),
                "largest loss difference": float(jnp.max(jnp.abs(gap.loss))),
                "modes hit": int(both.sum()),
                "largest hitting time difference": float(
                    np.max(np.abs(hits[both] - reference[both]), initial=0.0)
                ),
                **{
                    f"t* {q:g}: flow, descent": [a, b]
                    for q, a, b in zip(QUANTILES, stars, t_stars(descent), strict=True)
                    if np.isfinite(a)
                },
            }
        )
        print(found[-1], flush=True)
    return found


def markdown(table: list[dict]) -> str:
    """The table as Markdown."""
    head = (
        "task", "network", "rate", "parameters", "function", "loss", "hitting times",
        "t* (q = 0.01): flow, descent",
    )  # fmt: skip
    rows = []
    for r in table:
        star = r.get("t* 0.01: flow, descent")
        rows.append(
            (
                f"{r['task']} ({r['samples']})", r["network"], f"{r['learning rate']:g}",
                f"{r['parameters']:.1e}", f"{r['function']:.1e}",
                f"{r['largest loss difference']:.1e}",
                f"{r['largest hitting time difference']:.1e} ({r['modes hit']} modes)",
                "-" if star is None else f"{star[0]:.4f}, {star[1]:.4f}",
            )
        )  # fmt: skip
    return _common.markdown_table(head, rows)


def main() -> None:
    """Run the comparison."""
    parser = _common.parser(__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--hidden", type=int, default=128)
    given = parser.parse_args()
    if given.quick:
        tasks = {"digits": fl.tasks.digits(150)}
        given.hidden = 12
    else:
        tasks = {
            "mnist": fl.tasks.mnist(given.samples),
            "cifar10": fl.tasks.cifar10(given.samples),
        }
    table = [
        row
        for name, task in tasks.items()
        for kind in (fl.LinearNetwork, fl.ReLUNetwork)
        for row in rows(name, task, kind, given.hidden)
    ]
    print(markdown(table))
    if not given.quick:
        _common.save("agreement", table, markdown(table))


if __name__ == "__main__":
    main()
