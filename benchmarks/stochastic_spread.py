"""Event times over many mini-batch orders, against the flow's single number.
See: events of descent are late, in proportion to the rate. With larger batches they come nearer to
the modified flow (dashed), and orders spread less (bars, 5 to 95 %).

    python benchmarks/stochastic_spread.py [--quick] [--orders 64]

Linear networks on the semantic tree and on 1,000 MNIST images: for every rate and batch size
`--orders` runs of mini-batch descent (a fresh order every epoch, all orders under one `vmap`), and
when each mode reaches a share of its strength, interpolated between steps. The mean's offset from
the flow and the standard deviation over the orders are fitted by eps^p B^q, by least squares over
all rates and batch sizes. The modified flow (`modified_rate=`) gives the offset that full batches
would have. Writes `stochastic_spread.json`, `.md` and `.png` to `benchmarks/results/`.
"""

from typing import Any, NamedTuple

import _common
import jax
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

import flowlin as fl


class Setting(NamedTuple):
    """A task, and at what rates and batch sizes it is descended."""

    task: fl.Task
    bias_strength: float
    share: float  # of the modes' strengths
    t1: float
    rates: tuple[float, ...]
    batches: tuple[int, ...]
    every: int  # steps between looks


def settings(quick: bool) -> dict[str, Setting]:
    """By name."""
    if quick:
        task = fl.tasks.hierarchy()
        return {"hierarchy": Setting(task, 1.0, 0.5, 4.0, (0.04, 0.02), (1, 4), 1)}
    rates = (0.04, 0.02, 0.01, 0.005)
    found = {"hierarchy": Setting(fl.tasks.hierarchy(), 1.0, 0.5, 12.0, rates, (1, 2, 4), 1)}
    rates = (4e-3, 2e-3, 1e-3)
    found["mnist 1000"] = Setting(fl.tasks.mnist(1000), 10.0, 0.25, 1.6, rates, (10, 50, 200), 2)
    return found


def spread(name: str, setting: Setting, orders: int) -> list[dict[str, Any]]:
    """One row per rate, batch size and event."""
    task, c = setting.task, setting.bias_strength
    network = fl.LinearNetwork.init(task, 16, 2e-4, bias_strength=c, key=jax.random.key(0))
    modes = fl.theory.modes(task, network)
    events = (fl.ModeHits(modes, share=setting.share, direction="up"),)

    def flowed(rate: float | None) -> np.ndarray:
        flow = fl.gradient_flow(
            network, task, 1.05 * setting.t1, events=events, modified_rate=rate, rtol=1e-9
        )
        return np.asarray(flow.events.first("mode"))

    exact = flowed(None)
    keys = jax.random.split(jax.random.key(1), orders)
    rows = []
    for rate in tqdm(setting.rates, desc=name):
        shifted = flowed(rate)
        for batch in setting.batches:

            def one(key, rate=rate, batch=batch):
                run = fl.stochastic_gradient_descent(
                    network, task, rate, t1=setting.t1, batch_size=batch, key=key,
                    events=events, interpolate=True, save_every=setting.every, observe={},
                    max_events=64, throw=False,
                )  # fmt: skip
                return run.events.first("mode")

            times = np.asarray(jax.jit(jax.vmap(one))(keys))
            for mode in np.flatnonzero(exact < 0.95 * setting.t1).tolist():
                due, hit = float(exact[mode]), times[:, mode]
                hit = hit[np.isfinite(hit)]
                low, middle, high = np.quantile(hit, (0.05, 0.5, 0.95))
                rows.append(
                    {
                        "task": name, "rate": rate, "batch": batch, "mode": mode, "flow": due,
                        "modified": float(shifted[mode] - due), "orders": len(hit),
                        "offset": float(np.mean(hit) - due), "std": float(np.std(hit, ddof=1)),
                        "5 %": float(low - due), "median": float(middle - due),
                        "95 %": float(high - due),
                    }
                )  # fmt: skip
    return rows


def powers(rows: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """p and q of |value| ~ eps^p B^q."""
    logs = np.log([[r["rate"], r["batch"]] for r in rows])
    values = np.log([abs(r[name]) for r in rows])
    found = np.linalg.lstsq(np.column_stack([logs, np.ones(len(rows))]), values, rcond=None)[0]
    return float(found[0]), float(found[1])


def grouped(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Rows by task and mode."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["mode"]), []).append(row)
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as Markdown: one line per event, rate and batch size, and the fits."""
    head = (
        "task, mode", "flow's time", "rate", "batch", "mean - flow", "modified - flow",
        "std over orders", "5 ... 95 %, - flow",
    )  # fmt: skip
    body = [
        (
            f"{r['task']}, {r['mode']}", f"{r['flow']:.5g}", f"{r['rate']:g}", r["batch"],
            f"{r['offset']:+.2e}", f"{r['modified']:+.2e}", f"{r['std']:.1e}",
            f"{r['5 %']:+.2e} ... {r['95 %']:+.2e}",
        )
        for r in rows
    ]  # fmt: skip
    fits = []
    for (task, mode), mine in grouped(rows).items():
        (p, q), (a, b) = powers(mine, "offset"), powers(mine, "std")
        fits.append((f"{task}, {mode}", f"eps^{p:.2f} B^{q:+.2f}", f"eps^{a:.2f} B^{b:+.2f}"))
    text = _common.markdown_table(("task, mode", "abs. mean offset", "std over orders"), fits)
    return text + "\n\n" + _common.markdown_table(head, body)


def figure(rows: list[dict[str, Any]]) -> None:
    """5, 50 and 95 % of the times against the flow's, per event."""
    groups = grouped(rows)
    fig, axes = plt.subplots(1, len(groups), figsize=(3.4 * len(groups), 3.4), squeeze=False)
    for ax, ((task, mode), mine) in zip(axes[0], groups.items(), strict=True):
        batches = sorted({r["batch"] for r in mine})
        colours = fl.plot.shades("descent", len(batches))
        for k, batch in enumerate(batches):
            some = [r for r in mine if r["batch"] == batch]
            x = np.array([r["rate"] for r in some]) * 1.12 ** (k - (len(batches) - 1) / 2)
            y = np.array([r["median"] for r in some])
            bars = np.abs(np.array([[r["5 %"], r["95 %"]] for r in some]).T - y)
            ax.errorbar(x, y, bars, fmt="osD"[k], ms=4, capsize=2, color=colours[k],
                        label=f"batches of {batch}")  # fmt: skip
        full = sorted({(r["rate"], r["modified"]) for r in mine})
        ax.plot(*zip(*full, strict=True), "k--", lw=1, label="modified flow (full batch)")
        ax.axhline(0, color="0.6", lw=1, linestyle="-")
        ax.set(xscale="log", xlabel="learning rate", title=f"{task}, mode {mode}")
        ax.set_xticks([rate for rate, _ in full], [f"{rate:g}" for rate, _ in full])
        ax.minorticks_off()
        ax.legend(fontsize="small", loc="upper left")
        ax.set_ylabel(f"event time - flow's {mine[0]['flow']:.4g} (flow time)")
    fig.savefig(_common.RESULTS / "stochastic_spread.png", dpi=150)


def main() -> None:
    """Run every setting."""
    parser = _common.parser(__doc__)
    parser.add_argument("--orders", type=int, default=64)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, setting in settings(given.quick).items():
        rows += spread(name, setting, 8 if given.quick else given.orders)
        if not given.quick:
            _common.save("stochastic_spread", rows, markdown(rows))
            with fl.plot.style():
                figure(rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
