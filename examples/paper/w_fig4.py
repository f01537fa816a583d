"""Workshop version, Fig. 4: losses of linear and ReLU networks on MNIST (one hidden layer) and
grey CIFAR-10 (two). See: with bias (left) ReLU lies early on the linear network of half its width
(light), as the text observes, and not on that of its own. Without (right) it lies on neither.

The width of the linear network is scanned. If half of the ReLU network's gates are open, whatever
the sample, its early phase is that of the open half; the share of open gates is measured along the
run. Sizes are not given: the lead paper's are taken for MNIST (H = 512, variance 2e-4, c = 10,
batches of 64, learning rate 5e-4, half squared error summed over the batch) and, for CIFAR-10, two
layers of 256 units at learning rate 2e-4. Stratified subsets of 3,000 images, 10 and 16 seeds
(`--full`, as committed: all images, layers of 512): descent of all networks and the flow of linear
ones. Every linear network has the weights of the ReLU network's first units; in two layers the same
share of each.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from _images import QUICK, Early, Setting, early, load
from _images import distance as between
from _images_distances import Distances, distances, draw_distances
from _images_rows import WORDS
from _images_show import HALF as HALF_LOOK
from _images_show import SAME as SAME_LOOK
from _images_show import curves, draw_runs, error_words, flow_entries, phase_again
from _judge import EXACT, LOSSES, SHARES, both, half_widths, interval, more, same, verdict
from _paper import WITHOUT, Row, Study, fl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

HALF = 0.5
BIAS = {"bias": "with bias", "no bias": "without bias"}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
TASKS = tuple(TITLES)
# The linear network's, in Fig. 4, of which the text does not say which it shows.
WIDTHS = {
    1.0: "the linear network has the ReLU network's width",
    HALF: "the linear network has half the width",
}


@dataclasses.dataclass(frozen=True)
class Size:
    """Both tasks, and the linear networks' widths as shares of the ReLU network's."""

    mnist: Setting
    cifar10: Setting
    shares: tuple[float, ...] = (0.25, 0.375, 0.5, 0.625, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Data:
    """Phases by task and "bias" or "no bias"; the labels of linear networks by share; by task,
    descent's distance from the flow, with bias."""

    size: Size
    phases: dict[tuple[str, str], Early]
    labels: dict[float, str]
    distances: dict[str, Distances]


def open_gates(network: Any, task: fl.Task) -> Any:
    """Share of the (unit, sample) pairs that are on, per layer."""
    return jnp.array([jnp.mean(z > 0) for z in network.preactivations(task.x)])


def compute(size: Size) -> Data:
    """The early phases of all widths."""
    labels = {share: f"linear, {share:g} H" for share in size.shares}
    phases, apart = {}, {}
    for name in TASKS:
        setting = getattr(size, name)
        task = load(setting, setting.samples, standardise=False)
        for label, c in (("bias", setting.bias_strength), ("no bias", 0.0)):
            by_label = {label: share for share, label in labels.items()}
            how = {"observe": {"open": open_gates}}
            phases[name, label] = early(task, setting, c, False, by_label, **how)
        file = phases[name, "bias"].files[0]
        apart[name] = distances(task, setting, setting.bias_strength, False, file)
    return Data(size, phases, labels, apart)


def distance(phase: Early, label: str) -> np.ndarray:
    """Mean over the early phase of the distance of the losses, per seed, in shares of 1/2."""
    pairs = zip(phase.descents["relu"], phase.descents[label], strict=True)
    return np.array([between(a, b, phase, phase.early) for a, b in pairs])


def gates_of(phase: Early) -> np.ndarray:
    """Open gates over the early phase: (seeds, T, layers)."""
    runs = phase.descents["relu"]
    return np.stack([run.observed["open"][run.ts <= phase.early] for run in runs])


def numbers(data: Data) -> dict[str, Any]:
    """Distances by width, open gates, curves."""
    found: dict[str, Any] = {
        "flow relu": [entry for phase in data.phases.values() for entry in flow_entries(phase)],
        "distance of descent from the flow": {k: v.numbers for k, v in data.distances.items()},
    }
    for key, phase in data.phases.items():
        gates = gates_of(phase).mean(axis=0)
        found[", ".join(key)] = {
            "distance by width": {k: distance(phase, k) for k in data.labels.values()},
            "open gates": gates,
            "losses": curves(phase),
        }
    return found


def half_row(data: Data) -> Row:
    """Whether half the width, and no other, matches."""
    texts, exact, close = [], {}, {}
    for name in TASKS:
        phase, setting = data.phases[name, "bias"], getattr(data.size, name)
        by_share = {share: distance(phase, label) for share, label in data.labels.items()}
        others = [v for share, v in by_share.items() if share != HALF]
        closest = both(*(more(v, by_share[HALF], of=len(others)) for v in others))
        exact[name] = both(closest, same(by_share[HALF], EXACT))
        close[name] = both(closest, same(by_share[HALF], LOSSES))
        widths = "; ".join(f"{share:g} H {interval(v)}" for share, v in by_share.items())
        texts.append(
            f"{name}, hidden {setting.hidden}, up to flow time {setting.early:g}: {widths}, open "
            f"gates at the end of this phase {shares(gates_of(phase)[:, -1])}"
        )
    return Row(
        "With bias the match is exact only where the linear network has half the width",
        "W Sec. 2, Fig. 4",
        f"mean distance of the losses (share of 1/2) by the linear network's width, "
        f"{'; '.join(texts)}; criterion: half is closer than each other width, paired by seed, "
        f"{len(others)} comparisons, and exact: {EXACT}",
        verdict(
            both(*exact.values()),
            *((f"on {name}", holds) for name, holds in exact.items()),
            ("closest there, but not exact", both(*close.values())),
        ),
        "we observed the match between linear and ReLU networks to only be exact when hidden layer "
        "size of linear networks were reduced to be half the size of corresponding ReLU networks.",
    )


def shares(gates: np.ndarray) -> str:
    """Mean over seeds, per layer."""
    return ", ".join(f"{g:.3f}" for g in gates.mean(axis=0))


def faster_row(data: Data) -> Row:
    """Whether losses are close with bias, and further apart without."""
    texts, found = [], {share: [] for share in WIDTHS}
    for name in TASKS:
        for share, holds in found.items():
            biased, bare = (
                distance(data.phases[name, label], data.labels[share]) for label in BIAS
            )
            holds.append(both(same(biased, LOSSES), more(bare, biased)))
            texts.append(f"{name}, {share:g} H: bias {interval(biased)}, none {interval(bare)}")
    early = " and ".join(f"{getattr(data.size, name).early:g}" for name in TASKS)
    return Row(
        "With bias the losses are closely aligned, without it they diverge faster",
        "W Sec. 2, Fig. 4",
        f"mean distance of the losses (share of 1/2) up to flow time {early}, {'; '.join(texts)}; "
        f"the rate is per batch sum; criterion: with bias {LOSSES}, and more without, paired by "
        "seed, on both tasks",
        verdict({WIDTHS[share]: both(*holds) for share, holds in found.items()}),
        "we find that loss curves of ReLU networks with bias terms are closely aligned to those of "
        "linear networks, while loss curves diverge faster when bias terms are ablated.",
    )


def gates_row(data: Data) -> Row:
    """Whether half of the gates are open in the early phase."""
    layers = {k[0]: gates_of(v) for k, v in data.phases.items() if k[1] == "bias"}
    means = [v.mean(axis=1)[:, n] for v in layers.values() for n in range(v.shape[2])]
    found = "; ".join(
        f"{k}: per layer {shares(v.mean(axis=1))}, at the start {shares(v[:, 0])}"
        for k, v in layers.items()
    )
    holds = both(*(same(v - HALF, SHARES, of=len(means)) for v in means))
    return Row(
        "Whether half of the gates are open in the early phase, with bias",
        "W Fig. 4, erratum E8",
        f"share of open (unit, sample) pairs, mean over the phase and {len(means[0])} seeds, "
        f"{found}; criterion: distance from a half in every layer {SHARES}, {len(means)} "
        "comparisons",
        f"measured: {WORDS[holds]}",
        kind="control",
    )


def judge(data: Data) -> list[Row]:
    """The claims of the caption and the text."""
    return [faster_row(data), half_row(data), gates_row(data)]


def again(record: dict[str, Any]) -> Data:
    """What is drawn, of the committed record."""
    found, size = record["numbers"], SIZES[record["size"]["name"]]
    labels = {share: f"linear, {share:g} H" for share in size.shares}
    phases = {}
    for name in TASKS:
        setting = getattr(size, name)
        for label, c in (("bias", setting.bias_strength), ("no bias", 0.0)):
            phases[name, label] = phase_again(found[f"{name}, {label}"]["losses"], setting, c)
    apart = found["distance of descent from the flow"]
    return Data(size, phases, labels, {name: Distances.of(row) for name, row in apart.items()})


def draw(data: Data) -> Figure:
    """Losses with bias and without."""
    figure, axes = plt.subplots(2, 2, figsize=(9.4, 7.4))
    shown = {"relu": "relu", SAME_LOOK: data.labels[1.0], HALF_LOOK: data.labels[HALF]}
    for row, name in zip(axes, TASKS, strict=True):
        row[1].sharey(row[0])
        for ax, (label, word) in zip(row, BIAS.items(), strict=True):
            draw_runs(data.phases[name, label], ax, shown, label == "bias")
            ax.set_title(f"{TITLES[name]}, {word}")
        row[1].set_ylabel("")
    axes[0, 0].legend(frameon=False, fontsize="small")
    words = error_words(list(data.phases.values()))
    figure.suptitle(f"{trained_on(data)}\ndescent (markers) and flow (lines{words})")
    return figure


def draw_width(data: Data) -> Figure:
    """The loss of ReLU networks against that of linear ones by their width (left), and descent
    against the flow (right), on MNIST and CIFAR-10. See: with bias (filled) the distance is least
    at half the width. Descent nears the flow about as its learning rate (dotted).
    """
    figure, axes = plt.subplots(2, 2, figsize=(9.4, 7.8))
    for row, name in zip(axes, TASKS, strict=True):
        for label, word in BIAS.items():
            phase = data.phases[name, label]
            values = np.stack([distance(phase, k) for k in data.labels.values()], axis=1)
            look = {"color": fl.plot.COLOURS["relu"], "marker": "o"}
            look |= {} if label == "bias" else WITHOUT
            row[0].errorbar(list(data.labels), values.mean(axis=0), half_widths(values), capsize=3,
                            label=word, **look)  # fmt: skip
        early = getattr(data.size, name).early
        row[0].set(title=f"{TITLES[name]}, ReLU against linear", ylim=(0, None))
        row[0].set_xlabel("linear width / ReLU width")
        row[0].set_ylabel(f"mean distance, $t$ < {early:g} (/ 0.5)")
        draw_distances(data.distances[name], row[1], f"{TITLES[name]}, descent against the flow")
    axes[0, 0].legend(frameon=False, fontsize="small")
    figure.suptitle(trained_on(data))
    return figure


def trained_on(data: Data) -> str:
    """Images, layers and seeds of both tasks."""
    sizes = [getattr(data.size, name) for name in TASKS]
    return (
        f"{sizes[0].samples or 60_000:,} images of MNIST, hidden {sizes[0].hidden}, and "
        f"{sizes[1].samples or 50_000:,} of CIFAR-10, hidden {sizes[1].hidden}, {sizes[0].seeds} "
        f"and {sizes[1].seeds} seeds"
    )


LOOKS: dict[str, Any] = {"looks": 16, "flow_seeds": 1}
SMALL: dict[str, Any] = QUICK | LOOKS
EVERY: dict[str, Any] = LOOKS | {"flow_seeds": 5}
DEEP: dict[str, Any] = {"hidden": (16, 16)}
CIFAR: dict[str, Any] = {"data": "cifar10", "learning_rate": 2e-4, "early": 12.0, "end": 16.0}
SIZES = {
    "quick": Size(
        Setting(**SMALL),
        Setting(**CIFAR | SMALL | DEEP),
        shares=(0.25, 0.5, 1.0),
    ),
    "default": Size(
        Setting(samples=3_000, end=8.0, seeds=10, **LOOKS),
        Setting(samples=3_000, hidden=(256, 256), seeds=16, **CIFAR, **LOOKS),
    ),
    "full": Size(
        Setting(samples=None, end=8.0, seeds=10, **EVERY),
        Setting(samples=None, hidden=(512, 512), seeds=5, **CIFAR, **EVERY),
    ),
}
STUDY = Study(
    "w_fig4", SIZES, compute, draw, numbers, judge, heavy=True,
    others={"_width": draw_width}, again=again,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main(__doc__)
