r"""How the gates of ReLU networks slow them down: "half the width", with the gates measured.

A unit whose weights lie along the input direction v of a mode and whose readout along its output
direction u pulls on the mode as one of a linear network does, on the samples where its gate is on:
its rate is that of the linear unit, times the share

$$g_\alpha = \frac{\sum_j c_j \sum_p g_{jp} (v_\alpha^T x_p)^2}
                  {\sum_j c_j \sum_p (v_\alpha^T x_p)^2}, \qquad
  c_j = |u_\alpha^T a_j| \, |v_\alpha^T w_j|,$$

so a mode takes 1/g times as long to grow. On symmetric data half of the samples are on for every
unit (Zhang, Saxe and Latham 2025): g = 1/2, half the speed, at early times that of half the width
(the workshop paper). Elsewhere g is what the run's own gates say.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from _judge import TIMES, both, interval, same, verdict
from _paper import Row, fl
from tqdm import tqdm

SHARES = (0.1, 0.5, 0.9)  # of a mode's full strength: it grows from the first to the last


@dataclasses.dataclass
class Growth:
    """Of one seed, by mode: `gates` g where half of it is there; `ratio` of the times from 10 to
    90 %, ReLU over linear.
    """

    gates: np.ndarray
    ratio: np.ndarray


def symmetric(seed: int, samples: int = 12, inputs: int = 4) -> fl.Task:
    """Inputs x and -x with targets of a linear teacher with three unlike modes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, inputs))
    x = np.linalg.qr(x)[0] * np.sqrt(samples)  # white
    u, v = (np.linalg.qr(rng.normal(size=(inputs, 3)))[0] for _ in range(2))
    teacher = (u * [3.0, 1.5, 0.75]) @ v.T
    x = np.r_[x, -x]
    return fl.Task(x, x @ teacher.T, name="symmetric")


def compute(seeds: int, tree: fl.Task) -> dict[str, list[Growth]]:
    """Runs on symmetric data and on the tree, both without biases."""
    found: dict[str, list[Growth]] = {"symmetric": [], "tree": []}
    for seed in tqdm(range(seeds), desc="half width", disable=None):
        for task, hidden, variance, modes in (
            (symmetric(seed), 64, 1e-6, 3), (tree, 16, 2e-4, len(tree.x)),
        ):  # fmt: skip
            network = fl.ReLUNetwork.init(
                task, (hidden,), variance, bias=False, key=jax.random.key(seed)
            )
            found["symmetric" if modes == 3 else "tree"].append(growth(task, network, modes))
    return found


def growth(task: fl.Task, network: Any, modes: int, t1: float = 60.0) -> Growth:
    """Of the strongest modes of a bias-free ReLU network and of the linear one from its start."""
    found, times = fl.theory.modes(task), {}
    levels = np.outer(SHARES, found.full_strength[:modes])
    for kind, one in {"linear": network.linear(), "relu": network}.items():
        hits = fl.Crossing(
            lambda n, t, seen=found.observable(one, task): seen(n, t)[:modes], levels, "up",
            name="mode",
        )  # fmt: skip
        flow = fl.gradient_flow(one, task, t1, events=(hits,), rtol=1e-6)
        times[kind] = np.asarray(flow.events.first("mode"))
    read = fl.rectified(flow, task)
    gates = [shares(read, found, task, mode, times["relu"][1, mode]) for mode in range(modes)]
    low, _, high = times["relu"]
    low_linear, _, high_linear = times["linear"]
    return Growth(np.array(gates), (high - low) / (high_linear - low_linear))


def shares(read: Any, found: Any, task: fl.Task, mode: int, t: float) -> float:
    """g of a mode at time t."""
    if not np.isfinite(t):
        return float("nan")
    network, gates = read.network(t), np.asarray(read.gates(t))
    (into, out), u, v = network.weights, found.u[:, mode], found.v[:, mode]
    weight = np.abs(u @ out) * np.abs(into @ v)
    seen = np.asarray(task.x @ v) ** 2
    return float(seen @ gates @ weight / (np.sum(seen) * np.sum(weight)))


def means(runs: list[Growth], what: str) -> np.ndarray:
    """Mean over modes, per seed: "gates", "ratio", their "product", how far that is "off" 1."""
    found = {
        "gates": lambda run: run.gates,
        "ratio": lambda run: run.ratio,
        "product": lambda run: run.gates * run.ratio,
        "off": lambda run: np.abs(run.gates * run.ratio - 1),
    }
    return np.array([np.nanmean(found[what](run)) for run in runs])


def rows(data: dict[str, list[Growth]]) -> list[Row]:
    """Half speed on symmetric data; whether measured gates say how much longer a mode takes."""
    even = np.array([run.ratio for run in data["symmetric"]])
    text = "; ".join(
        f"{name}: gates {interval(means(runs, 'gates'))}, modes' times over those of the linear "
        f"network {interval(means(runs, 'ratio'))}, product {interval(means(runs, 'product'))}, "
        f"off 1 by {interval(means(runs, 'off'))}"
        for name, runs in data.items()
    )
    told = {name: same(means(runs, "off"), TIMES, len(data)) for name, runs in data.items()}
    words = {True: "yes", False: "no", None: "undecided"}
    return [
        Row(
            claim="Without bias and on symmetric data a ReLU network learns like a linear one, at "
            "half speed",
            quote="Zhang et al. (2025a) established exact agreement in learning dynamics of ReLU "
            "and linear models in specific cases, requiring constraints on the data distribution "
            "and the removal of bias terms.",
            source="Zhang, Saxe and Latham 2025; M Sec. 1",
            measured="time from 10 to 90 % of a mode's strength, ReLU over linear, same start "
            f"(variance 1e-6, 64 units), by mode: {', '.join(interval(one) for one in even.T)}; "
            f"criterion: twice, {TIMES}, {even.shape[1]} comparisons",
            verdict=verdict(both(*(same(one / 2 - 1, TIMES, even.shape[1]) for one in even.T))),
            kind="theorem",
        ),
        Row(
            claim="Whether the share of open gates tells how much slower a mode is learned without "
            "bias",
            source="W Fig. 4 (half the width), read with the measured gates",
            measured="share of the drive of a mode that the gates of the units that carry it let "
            f"through, means over modes: {text}; criterion: product 1, mode by mode, {TIMES}",
            verdict=f"measured: {'; '.join(f'{k} {words[one]}' for k, one in told.items())}",
            kind="control",
        ),
    ]


def draw(ax: Any, data: dict[str, list[Growth]]) -> None:
    """How much longer modes take, over what the gates say."""
    for (name, runs), colour, mark in zip(data.items(), ("C0", "C1"), "os", strict=False):
        for k, run in enumerate(runs):
            ax.plot(1 / run.gates, run.ratio, mark, color=colour, alpha=0.5, markersize=5,
                    label=name if k == 0 else None)  # fmt: skip
    ax.plot([1, 3], [1, 3], color="0.5", linewidth=0.8, label="as the gates say")
    ax.set(xlabel="1 / share that the gates let through", xlim=(1, 3), ylim=(0.5, 3),
           ylabel="time from 10 to 90 %, ReLU over linear",
           title="modes without bias: half the width?")  # fmt: skip
    ax.legend(loc="upper left")
