"""Lead paper, Fig. 1: MNIST, loss of linear and ReLU networks with bias and without; the rank of
what ReLU networks represent, and their test error, where training stops. See: with bias the ReLU
network follows the linear one of half its width until t = 4, and has the lower rank at the stop;
the test errors are alike.

The paper: H = 512, variance 2e-4, c = 10, batches of 64, learning rate 5e-4, images in [0, 1] minus
their mean, 5 seeds; stop at a sample loss of 0.025; 500 test images. Run here: descent of all
networks, the flow of linear ones, and ReLU networks' descent to the stop, on a stratified subset of
5,000 images (`--full`, as committed: all 60,000). Networks with bias and without have the same
seeds.

What the text leaves open, and what is run:

- Learning rate per batch: of the sum of half the squared errors (a step is 1/31 of a unit of flow
  time), or of the mean (64 times as many). The sum here; both in Fig. 7, where it matters most.
- "Sample-wise loss 0.025": half the squared error, and the squared error averaged over the 10
  outputs (then 0.125 of half the squared error). With 5,000 images the stops come after some
  12,000 and 900 steps; with all of them after 56,000 with bias and 89,000 without, and 1,000.

The linear network has the ReLU network's width, as the text says; half of it, as the workshop
version has it, is run beside. The floors and modes are those of all 60,000 images.
"""

import dataclasses
import json
from functools import partial
from typing import Any

import numpy as np
from _flows import STOPS, all_stopped, rank_of
from _images import (
    QUICK,
    Early,
    Run,
    Setting,
    descend,
    early,
    first_mode,
    kept,
    linear_floor,
    load,
    relu,
)
from _images_distances import Distances, distances, draw_distances
from _images_rows import WORDS, aligned, part
from _images_show import (
    curves,
    draw_early,
    draw_half_times,
    error_words,
    flow_entries,
    phase_again,
)
from _judge import MARGINS_TIMES, SHARES, both, half_width, interval, more, verdict
from _paper import WITHOUT_BAR, Row, Study, fl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tqdm import tqdm

SEEN = ("rank", "few", "every")
STOP = ("seeds", "steps", *SEEN)
MNIST = 60_000  # images


@dataclasses.dataclass(frozen=True)
class Size(Setting):
    """The runs whose losses are compared, and those to the stops.

    - `test`: test images for rank and error; `all_test`: for the error besides.
    - `high`: images of the runs to the higher stop, and the steps between which it is looked for.
    - `low`: likewise of the lower stop.
    """

    test: int = 500
    all_test: int | None = None
    high: tuple[int | None, int, int] = (5_000, 600, 1_500)
    low: tuple[int | None, int, int] = (5_000, 8_000, 16_000)


@dataclasses.dataclass(frozen=True)
class Stop:
    """ReLU networks of all seeds that came to a stop: images that they were trained on, seeds, and
    by seed steps, effective rank, error on few and on all test images."""

    samples: int
    seeds: np.ndarray
    steps: np.ndarray
    rank: np.ndarray
    few: np.ndarray
    every: np.ndarray


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that is shown; stops by bias and by the stop's name, of descent and, with all
    images, of the flow; all images' number; descent's distance from the flow, with bias."""

    size: Size
    phases: dict[str, Early]
    stops: dict[tuple[str, str], Stop]
    flow_stops: dict[tuple[str, str], Stop]
    floors: dict[str, float]
    modes: dict[float, dict[str, Any]]
    images: int
    distances: Distances


def trained(size: Size, task: fl.Task, loss: float, between: tuple[int, int]) -> dict[str, Stop]:
    """Descends to a stop, with bias and without, and looks for it between two steps."""
    found = {}
    for label, c in {"bias": size.bias_strength, "no bias": 0.0}.items():
        seeds = tqdm(range(size.seeds), desc=f"to {loss:g}, {label}", unit="seed")
        runs = [stopped_run(size, task, loss, between, seed, c) for seed in seeds]
        found[label] = at_stop(runs, loss, size, task)
    return found


def stopped_run(
    size: Size, task: fl.Task, loss: float, between: tuple[int, int], seed: int, c: float
) -> Run:
    """Descent of a seed to a stop, with the rank and the errors from the first step on between
    which it is looked for."""
    on, measures = fl.measures.OnTask, fl.measures
    few, every = (load(size, n, False, test=True) for n in (size.test, size.all_test))
    looks = 1 + round(np.log(between[1] / between[0]) / np.log(1.1))
    how = {
        "ts": size.rate * np.append(0, np.round(np.geomspace(*between, looks))),
        "events": (fl.LossBelow(loss, terminate=True),),
        "observe": {
            "rank": on(rank_of, few),
            "few": on(measures.error_rate, few),
            "every": on(measures.error_rate, every),
        },
    }
    what = ("stop", loss, task.samples, few.samples, every.samples, between)
    make = partial(descend, relu(task, size, seed, c), task, size, seed, **how)
    return kept(size, make, *what, seed, c)


def at_stop(runs: list[Run], loss: float, size: Size, task: fl.Task) -> Stop:
    """What was found where the loss came to `loss`, interpolated in the logarithms of the loss
    and the step between looks; of the seeds that came so far."""
    seeds = [seed for seed, run in enumerate(runs) if run.losses[-1] <= loss]
    found = []
    for run in (runs[seed] for seed in seeds):
        k = int(np.argmax(run.losses <= loss))
        near, levels = slice(k - 1, k + 1), -np.log(run.losses[k - 1 : k + 1])
        steps = np.exp(np.interp(-np.log(loss), levels, np.log(run.ts[near] / size.rate)))
        seen = [np.interp(-np.log(loss), levels, run.observed[name][near]) for name in SEEN]
        found.append([steps, *seen])
    columns = np.array(found).reshape(-1, 1 + len(SEEN)).T
    return Stop(task.samples, np.array(seeds, int), *columns)


def flow_stops(size: Size) -> dict[tuple[str, str], Stop]:
    """What the flows had at the stops, interpolated in log t between rows; steps are their flow
    time in steps of descent. None is run of fewer than all images."""
    if size.samples is not None:
        return {}
    found = {}
    for label, c in {"bias": size.bias_strength, "no bias": 0.0}.items():
        files = [json.loads(flow.path.read_text()) for flow in all_stopped() if flow.c == c]
        for stop in STOPS:
            ends = [file["stops"][stop] for file in files]
            columns = [
                [np.interp(np.log(end), np.log(file["t"][1:]), file[name][1:]) for name in SEEN]
                for end, file in zip(ends, files, strict=True)
            ]
            steps, seeds = np.array(ends) / size.rate, np.arange(len(files))
            found[label, stop] = Stop(files[0]["images"], seeds, steps, *np.array(columns).T)
    return found


def compute(size: Size) -> Data:
    """Losses to compare, runs to the stops, floors."""
    cs = {"bias": size.bias_strength, "no bias": 0.0}
    task = load(size, size.samples, standardise=False)
    phases = {label: early(task, size, c, standardise=False) for label, c in cs.items()}
    stops = {}
    for (name, loss), of in zip(STOPS.items(), (size.low, size.high), strict=True):
        samples, first, last = of
        found = trained(size, load(size, samples, False), loss, (first, last))
        stops |= {(label, name): stop for label, stop in found.items()}
    whole = load(size, size.statistics, standardise=False)
    part = load(size, size.statistics or 50_000, standardise=False)
    floors = {
        "bias": linear_floor(whole, bias=True),
        "no bias": linear_floor(whole, bias=False),
        "bias, 5/6 of the images": linear_floor(part, bias=True),
        "no bias, 5/6 of the images": linear_floor(part, bias=False),
    }
    modes = {c: first_mode(whole, c) for c in (0.0, 1.0, size.bias_strength)}
    file = phases["bias"].files[0]
    apart = distances(task, size, size.bias_strength, False, file)
    return Data(size, phases, stops, flow_stops(size), floors, modes, whole.samples, apart)


def numbers(data: Data) -> dict[str, Any]:
    """Losses, stops, floors, modes."""
    return {
        "flow relu": [entry for phase in data.phases.values() for entry in flow_entries(phase)],
        "distance of descent from the flow": data.distances.numbers,
        "losses": {label: curves(phase) for label, phase in data.phases.items()},
        "stops": {", ".join(k): dataclasses.asdict(v) for k, v in data.stops.items()},
        "stops of the flow": {
            ", ".join(k): dataclasses.asdict(v) for k, v in data.flow_stops.items()
        },
        "linear floors": data.floors,
        "modes by c": {f"{c:g}": found for c, found in data.modes.items()},
    }


def paired(data: Data, stop: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the seeds that came to a stop both with bias and without: what was found there."""
    one, other = data.stops["bias", stop], data.stops["no bias", stop]
    seeds = np.intersect1d(one.seeds, other.seeds)
    return (
        getattr(one, name)[np.isin(one.seeds, seeds)],
        getattr(other, name)[np.isin(other.seeds, seeds)],
    )


def versus(data: Data, stop: str, name: str) -> str:
    """With bias against without, in words."""
    with_bias, without = paired(data, stop, name)
    return f"{interval(with_bias)} with bias, {interval(without)} without"


def lower_rank(with_bias: np.ndarray, without: np.ndarray) -> bool | None:
    """Whether it is substantially lower with bias: by more than a tenth."""
    return more(1 - with_bias / without, SHARES.same, of=len(STOPS))


def lower_error(with_bias: np.ndarray, without: np.ndarray, image: float) -> bool | None:
    """Whether it is lower with bias; not so where a benefit as large as one image is ruled out."""
    lower = more(without, with_bias, of=len(STOPS))
    none = more(MARGINS_TIMES.get() * image, without - with_bias, of=len(STOPS))
    return False if lower is None and none else lower


def at_stops(data: Data, name: str, rule: Any, *given: Any) -> dict[str, bool | None]:
    """Whether a rule holds of what was seen at the stops, by what 0.025 may mean."""
    found = {}
    for stop in STOPS:
        seen = paired(data, stop, name)
        found[f"0.025 is the {stop}"] = rule(*seen, *given) if len(seen[0]) > 1 else None
    return found


def stopped(data: Data) -> list[Row]:
    """Figs. 1B and C."""
    rank = at_stops(data, "rank", lower_rank)
    error = at_stops(data, "every", lower_error, 1 / data.size.test)
    every, few = data.size.all_test or 10_000, data.size.test
    at = {stop: f"{stop}, {data.stops['bias', stop].samples:,} images" for stop in STOPS}
    ranks = "; ".join(
        f"0.025 = {at[stop]}: {versus(data, stop, 'rank')}, after {versus(data, stop, 'steps')} "
        "steps"
        for stop in STOPS
    )
    errors = "; ".join(
        f"0.025 = {at[stop]}: {versus(data, stop, 'every')} of {every:,} test images, less with "
        f"bias by {interval(np.subtract(*paired(data, stop, 'every')[::-1]), 2)} "
        f"({versus(data, stop, 'few')} of {few})"
        for stop in STOPS
    )
    criteria = f"paired by seed, {len(STOPS)} comparisons, the rate per batch sum"
    return [
        Row(
            "At the stop, ReLU networks with bias have representations of much lower rank",
            "M Fig. 1B, Sec. 3 (which says 1C)",
            f"effective rank of the Gram matrix, {ranks}; {criteria}; criterion: lower by more "
            f"than {SHARES.same:g} of it",
            verdict(rank),
            "At this point, ReLU networks with bias and early linear phase have substantially "
            "lower dimensional representations.",
        ),
        Row(
            "At the stop, the test error is lower with bias",
            "M Fig. 1C, Sec. 3",
            f"{errors}; {criteria}; criterion: lower; refuted where a benefit of one of the "
            f"paper's {few} test images is ruled out",
            verdict(error),
            "ReLU networks with an early linear phase have lower test error.",
        ),
        Row(
            "Early linear dynamics cause lower rank and better generalization",
            "M Sec. 3",
            "what is changed is the bias; criterion: both rows before, at the same stop: "
            f"{said('rank', rank)}; {said('error', error)}",
            verdict(
                {stop: both(rank[stop], error[stop]) for stop in rank},
                ("lower rank alone", both(*rank.values())),
            ),
            "our result causally demonstrate that neural networks with early linear dynamics "
            "display a stronger simplicity bias as evidenced by lower-rank representations and "
            "improved generalization.",
        ),
        *flow_at_stops(data),
    ]


def flow_at_stops(data: Data) -> list[Row]:
    """The same of the flow, which the paper did not train by."""
    if not data.flow_stops:
        return []
    found, rank, error = [], {}, {}
    for stop in STOPS:
        one, other = (data.flow_stops[label, stop] for label in ("bias", "no bias"))
        rank[f"0.025 is the {stop}"] = lower_rank(one.rank, other.rank)
        error[f"0.025 is the {stop}"] = lower_error(one.every, other.every, 1 / data.size.test)
        pairs = ((interval(getattr(one, k)), interval(getattr(other, k))) for k in SEEN[::2])
        ranks, errors = (f"{a} with bias, {b} without" for a, b in pairs)
        less = interval(other.every - one.every, 2)
        times = " and ".join(interval(data.size.rate * v.steps) for v in (one, other))
        apart = paired(data, stop, "rank")[0].mean() / one.rank.mean()
        found.append(
            f"0.025 = {stop}, at flow time {times}: rank {ranks}, with bias descent's is "
            f"{apart:.2g} times the flow's; error {errors}, less with bias by {less}"
        )
    return [
        Row(
            "Rank and test error where the gradient flow comes to the stop",
            "M Fig. 1B, C, Sec. 3",
            f"{'; '.join(found)}; {one.samples:,} images, errors on all test images",
            f"measured: {said('rank', rank)}; {said('error', error)}",
            kind="control",
        )
    ]


def said(name: str, found: dict[str, bool | None]) -> str:
    """Whether something is lower, by the stop, in words."""
    return f"{name} lower: " + ", ".join(f"{WORDS[v]} where {k}" for k, v in found.items())


def judge(data: Data) -> list[Row]:
    """The claims of Fig. 1 and Sec. 3."""
    f, modes, c = data.floors, data.modes, data.size.bias_strength
    lowest = min(f["bias"], f["no bias"]) / 5
    change = max(abs(f[k] - f[f"{k}, 5/6 of the images"]) for k in ("bias", "no bias"))
    place = {k: modes[k]["bias mode rank"] for k in modes if k > 0}
    strengths = "; ".join(
        f"c = {k:g}: S = {', '.join(f'{s:.3f}' for s in modes[k]['strengths'][:5])}, bias mode "
        f"{modes[k]['bias mode strength']:.3f} is number {place[k]}"
        for k in place
    )
    return [
        aligned(
            data.phases,
            "With bias the losses of linear and ReLU networks are closely aligned early",
            "M Fig. 1A, Sec. 3",
            "We find that loss curves of ReLU networks with bias terms are closely aligned to "
            "those of linear networks in early training.",
        ),
        part(
            data.size,
            data.phases,
            "Without bias the losses diverge quickly",
            "M Fig. 1A, Sec. 3",
            "In contrast, loss curves of diverge quickly when bias terms are ablated",
        ),
        *stopped(data),
        Row(
            "Whether linear networks can be trained until the sample loss is 0.025",
            "M Sec. 3, App. E",
            f"least-squares floor on {data.images:,} images, half the squared error: "
            f"{f['bias']:.4f} with bias, {f['no bias']:.4f} without; squared error over 10 outputs "
            f"{f['bias'] / 5:.4f} and {f['no bias'] / 5:.4f}",
            f"measured: {'no, to neither' if lowest > 0.025 else 'yes, to one'} reading of 0.025",
            kind="control",
        ),
        Row(
            "The standard MNIST training set has 50000 images",
            "M App. E, erratum E16",
            f"{data.images:,} images read; floors of 5/6 of them differ from those of all by at "
            f"most {change:.1g}; which 50,000 they were, if so many, is not said",
            verdict(None if data.size.statistics else data.images == 50_000),
            "We use the whole standard MNIST training set of 50000 images.",
        ),
        Row(
            "Which mode of MNIST is that of the bias",
            "M Sec. 3, Sec. 5.2, erratum E6c",
            f"{strengths} ({data.images:,} images); first from c = "
            f"{modes[c]['first from c']:.3f} on",
            "measured: " + ", ".join(f"number {n} at c = {k:g}" for k, n in place.items()),
            kind="control",
        ),
    ]


def again(record: dict[str, Any]) -> Data:
    """What is drawn, of the committed record."""
    found, size = record["numbers"], SIZES[record["size"]["name"]]
    cs = {"bias": size.bias_strength, "no bias": 0.0}
    phases = {label: phase_again(found["losses"][label], size, c) for label, c in cs.items()}
    apart = Distances.of(found["distance of descent from the flow"])
    stops, flows = (
        {
            tuple(key.split(", ")): Stop(row["samples"], *(np.array(row[k]) for k in STOP))
            for key, row in found[name].items()
        }
        for name in ("stops", "stops of the flow")
    )
    modes = {float(c): row for c, row in found["modes by c"].items()}
    return Data(size, phases, stops, flows, found["linear floors"], modes, MNIST, apart)


def draw(data: Data) -> Figure:
    """Loss with bias and without; rank and test error at the stop."""
    figure, axes = plt.subplots(2, 2, figsize=(9.4, 7.8))
    names = {
        "bias": f"A. With bias (c = {data.size.bias_strength:g})",
        "no bias": "A. Without bias",
    }
    axes[0, 1].sharey(axes[0, 0])
    for ax, (label, title) in zip(axes[0], names.items(), strict=True):
        draw_early(data.phases[label], ax, title, label == "bias", data.floors[label])
    axes[0, 1].set_ylabel("")
    axes[0, 0].legend(frameon=False, fontsize="small")
    draw_stops(data, "rank", axes[1, 0], "B. Effective rank at the stop")
    axes[1, 0].set_ylabel(r"effective rank of $H^T H$")
    draw_stops(data, "every", axes[1, 1], "C. Test error at the stop")
    axes[1, 1].set_ylabel(f"error on {data.size.all_test or 10_000:,} images / %")
    words = error_words(list(data.phases.values()))
    figure.suptitle(f"{images(data.size)}:\ndescent (markers), flow (lines{words}), 95 % intervals")
    return figure


def draw_flow(data: Data) -> Figure:
    """When the flow of ReLU networks of all of MNIST learns the modes, and how far descent is from
    it. See: with bias (filled) modes are learned earlier, the first one by far (left). Descent's
    distance falls about as the learning rate (dotted) and one over the batch, and flattens near
    1e-4 (right).
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 4.4))
    draw_half_times(list(data.phases.values()), axes[0], "Modes, flow of ReLU networks")
    draw_distances(data.distances, axes[1], "Descent's distance from the flow")
    figure.suptitle(images(data.size))
    return figure


def images(size: Size) -> str:
    """What all panels show alike."""
    number = size.samples or MNIST
    return f"MNIST, {number:,} images, H = {size.hidden[0]}, {size.seeds} seeds"


def draw_stops(data: Data, name: str, ax: Any, title: str) -> None:
    """Bars at both stops, with bias and without; points of the same seed are joined."""
    unit = 100 if name == "every" else 1
    colour = fl.plot.COLOURS["relu"]
    looks = ({"color": colour, "alpha": 0.8}, {"edgecolor": colour} | WITHOUT_BAR)
    for k, stop in enumerate(STOPS):
        values = [unit * v for v in paired(data, stop, name)]
        for x, v, look, label in zip(
            (k - 0.2, k + 0.2), values, looks, ("with bias", "without bias"), strict=True
        ):
            ax.bar(x, v.mean(), 0.34, yerr=half_width(v), capsize=4, **look,
                   label=label if k == 0 else None)  # fmt: skip
        ax.plot([k - 0.2, k + 0.2], values, "o-", color="0.25", lw=0.7, markersize=3)
        flows = (
            [getattr(data.flow_stops[label, stop], name) for label in data.phases]
            if (data.flow_stops)
            else []
        )
        for x, v in zip((k - 0.06, k + 0.34), flows, strict=False):
            ax.plot(np.full(len(v), x), unit * v, "D", color="black",
                    markersize=3.5, label="flow" if (k, x) == (0, -0.06) else None)  # fmt: skip
    words = [f"0.025 =\n{k}\n{data.stops['bias', k].samples:,} images" for k in STOPS]
    ax.set_xticks(range(len(STOPS)), words)
    ax.set(title=title, ylim=(0, 1.25 * ax.get_ylim()[1]))
    ax.legend(frameon=False, fontsize="small", ncols=3, loc="upper center")


STEPS: dict[str, Any] = {"high": (300, 300, 2_000), "low": (300, 1_000, 20_000)}
SIZES = {
    "quick": Size(**QUICK, **STEPS, test=100, all_test=200),
    "default": Size(flow_seeds=1),
    "full": Size(samples=None, flow_seeds=5, high=(None, 700, 1_250), low=(None, 30_000, 150_000)),
}
STUDY = Study(
    "m_fig1", SIZES, compute, draw, numbers, judge, heavy=True,
    others={"_flow": draw_flow}, again=again,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main(__doc__)
