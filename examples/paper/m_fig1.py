"""Lead paper, Fig. 1: MNIST, loss of linear and ReLU networks with bias and without; the rank of
what ReLU networks represent, and their test error, where training stops.

The paper: H = 512, variance 2e-4, c = 10, batches of 64, learning rate 5e-4, images in [0, 1] minus
their mean, 5 seeds; stop at a sample loss of 0.025; 500 test images. Run here, by default, at this
width and with 5 seeds on a stratified subset of 5,000 images (`--full`: all 60,000): descent, and
for one seed gradient flow on the same time axis.

What the text leaves open, and what is run:

- Learning rate per batch: of the sum of half the squared errors (a step is 1/31 of a unit of flow
  time, the stop comes after some 12,000 steps here), or of the mean (64 times as many). Both for
  the early phase of one seed; the sum for the rest.
- "Sample-wise loss 0.025": half the squared error, and the squared error averaged over the 10
  outputs (then 0.125 of half the squared error).
- The linear network's width: that of the ReLU network, and half of it.

What reproduces the claims: A, only a linear network of half the width (with that of the ReLU
network they are as far apart with bias as without); B, both readings of the stop; C, neither: the
errors with and without bias agree within what seeds differ by. The subset's size matters to B and
C: 2,500 images are run for one seed. The floors and modes are those of all 60,000 images.
`--full` takes about an hour on one core.
"""

import dataclasses
from typing import Any

import numpy as np
from _images import (
    LINEAR,
    QUICK,
    Early,
    Setting,
    descend,
    early,
    first_mode,
    gaps,
    linear_floor,
    load,
    partings,
    relu,
)
from _images_show import curves, draw_early, followed
from _judge import interval
from _paper import Row, Study, fl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tqdm import tqdm

# What 0.025 may mean, in terms of half the squared error per sample.
STOPS = {"half squared error": 0.025, "squared error / 10": 0.125}


@dataclasses.dataclass(frozen=True)
class Size(Setting):
    """The early phase, and training up to the stop.

    - `test`: test images for rank and error; `all_test`: for the error besides.
    - `stops`: losses, of half the squared error, that count as the stop.
    - `longest`, `look`: steps at most, and between looks.
    - `other`: another subset's size, for one seed.
    """

    test: int = 500
    all_test: int | None = None
    stops: tuple[float, ...] = tuple(STOPS.values())
    longest: int = 30_000
    look: int = 500
    other: int | None = 2_500


@dataclasses.dataclass(frozen=True)
class Stop:
    """One ReLU network at every stop: step, effective rank, error on few and on all test images."""

    steps: np.ndarray
    rank: np.ndarray
    error: np.ndarray
    full_error: np.ndarray


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that is shown."""

    size: Size
    phases: dict[str, Early]
    stops: dict[str, list[Stop]]
    other: dict[str, list[Stop]]
    floors: dict[str, float]
    modes: dict[float, dict[str, Any]]


def rank_of(network: Any, task: fl.Task) -> Any:
    """Effective rank of the Gram matrix of hidden representations."""
    return fl.measures.effective_rank_of_gram(fl.measures.hidden(network, task))


def trained(size: Size, task: fl.Task, few: fl.Task, every: fl.Task, seed: int, c: float) -> Stop:
    """Descends to the lowest stop; values at a stop are interpolated in the loss between looks."""
    on, measures = fl.measures.OnTask, fl.measures
    run = descend(
        relu(task, size, seed, c),
        task,
        size,
        seed,
        steps=size.longest,
        save_every=size.look,
        events=(fl.LossBelow(min(size.stops), terminate=True),),
        observe={
            "rank": on(rank_of, few),
            "error": on(measures.error_rate, few),
            "full": on(measures.error_rate, every),
        },
    )
    kept = np.isfinite(run.ts)
    losses = np.asarray(run.losses)[kept]
    weights = []
    for stop in size.stops:
        below = np.flatnonzero(losses <= stop)
        weight = np.full(len(losses), np.nan)
        if len(below):
            k = below[0]
            share = (losses[k - 1] - stop) / (losses[k - 1] - losses[k])
            weight = np.zeros(len(losses))
            weight[k - 1 : k + 1] = 1 - share, share
        weights.append(weight)
    at = np.array(weights)
    steps = np.asarray(run.ts)[kept] / size.rate
    seen = {name: np.asarray(run.observed[name])[kept] for name in ("rank", "error", "full")}
    return Stop(at @ steps, at @ seen["rank"], at @ seen["error"], at @ seen["full"])


def compute(size: Size) -> Data:
    """Early phases, runs to the stop, floors."""
    task = load(size, size.samples, standardise=False)
    few = load(size, size.test, standardise=False, test=True)
    every = load(size, size.all_test, standardise=False, test=True)
    cs = {"bias": size.bias_strength, "no bias": 0.0}
    phases = {label: early(task, size, c) for label, c in cs.items()}
    jobs = [(seed, label) for seed in range(size.seeds) for label in cs]
    stops: dict[str, list[Stop]] = {label: [] for label in cs}
    for seed, label in tqdm(jobs, desc="to the stop", unit="run"):
        stops[label].append(trained(size, task, few, every, seed, cs[label]))
    other: dict[str, list[Stop]] = {}
    if size.other is not None:
        less = load(size, size.other, standardise=False)
        other = {k: [trained(size, less, few, every, 0, c)] for k, c in cs.items()}
    whole = load(size, size.statistics, standardise=False)
    fewer = None if size.statistics is None else size.statistics * 5 // 6
    part = load(size, fewer or 50_000, standardise=False)
    floors = {
        "bias": linear_floor(whole, bias=True),
        "no bias": linear_floor(whole, bias=False),
        "bias, 5/6 of the images": linear_floor(part, bias=True),
        "no bias, 5/6 of the images": linear_floor(part, bias=False),
    }
    modes = {c: first_mode(whole, c) for c in (0.0, 1.0, size.bias_strength)}
    return Data(size, phases, stops, other, floors, modes)


def numbers(data: Data) -> dict[str, Any]:
    """Curves, stops, floors, modes."""

    def of(members: list[Stop]) -> dict[str, Any]:
        return {f.name: [getattr(m, f.name) for m in members] for f in dataclasses.fields(Stop)}

    return {
        "early": {label: curves(phase) for label, phase in data.phases.items()},
        "stops (rows: seeds, columns: stops)": {k: of(v) for k, v in data.stops.items()},
        "stops on the other subset": {k: of(v) for k, v in data.other.items()},
        "linear floors": data.floors,
        "modes by c": {f"{c:g}": found for c, found in data.modes.items()},
    }


def aligned(data: Data) -> list[Row]:
    """Fig. 1A."""
    size, with_bias, without = data.size, data.phases["bias"], data.phases["no bias"]
    same, half = LINEAR
    gap = {(k, p): gaps(data.phases[p], k) for k in LINEAR for p in data.phases}
    apart = {(k, p): partings(data.phases[p], k) for k in LINEAR for p in data.phases}
    end = size.steps * size.rate

    def mean_below(values: np.ndarray, level: float) -> bool:
        return bool(np.mean(values) < level)

    def sooner(key: str) -> bool:
        return bool(np.all(apart[key, "no bias"] < apart[key, "bias"]))

    conditional = "holds under a condition: the linear network has half the width"
    if mean_below(gap[same, "bias"], 0.05):
        close = "holds"
    else:
        close = conditional if mean_below(gap[half, "bias"], 0.05) else "does not hold"
    leaves = "holds" if sooner(same) else (conditional if sooner(half) else "does not hold")
    unit = 1 / (2 * float(data.modes[0.0]["strengths"][0]))
    return [
        Row(
            "With bias the losses of linear and ReLU networks are closely aligned early",
            "M Fig. 1A, Sec. 3",
            f"mean gap (share of 1/2) until the linear network is 90 % down: "
            f"{interval(gap[same, 'bias'])} at the same width, {interval(gap[half, 'bias'])} at "
            f"half of it; close: mean below .05",
            close,
        ),
        Row(
            "Without bias they diverge quickly",
            "M Fig. 1A, Sec. 3",
            f"flow time until they are 5 % of 1/2 apart (at most {end:.3g}; 1/(2 S_1) = {unit:.2g} "
            f"without bias, a step {size.rate:.2g}): same width {interval(apart[same, 'no bias'])} "
            f"without and {interval(apart[same, 'bias'])} with bias, half width "
            f"{interval(apart[half, 'no bias'])} and {interval(apart[half, 'bias'])}; mean gap "
            f"without bias until 90 % down {interval(gap[same, 'no bias'])} and "
            f"{interval(gap[half, 'no bias'])}; criterion: sooner than with bias for every seed",
            leaves,
        ),
        followed(size, {"with bias": with_bias, "without": without}),
    ]


def stopped(data: Data) -> list[Row]:
    """Figs. 1B and C."""
    rows = []
    for k, (name, loss) in enumerate(STOPS.items()):
        both = {p: np.array([s.rank[k] for s in data.stops[p]]) for p in data.stops}
        few = {p: np.array([s.error[k] for s in data.stops[p]]) for p in data.stops}
        full = {p: np.array([s.full_error[k] for s in data.stops[p]]) for p in data.stops}
        steps = {p: np.array([s.steps[k] for s in data.stops[p]]) for p in data.stops}
        what = f"0.025 of the {name} (half squared error {loss:g})"
        rows += [
            Row(
                f"At the stop, {what}, the effective rank is lower with bias",
                "M Fig. 1B (text: 1C)",
                f"{versus(both)}; stop after {versus(steps)} steps; criterion: 95 % intervals "
                f"apart{elsewhere(data, 'rank', k)}",
                lower(both),
            ),
            Row(
                f"At the stop, {what}, the test error is lower with bias",
                "M Fig. 1C",
                f"{data.size.test} test images {versus(few)}; all {versus(full)}; criterion: 95 % "
                f"intervals apart on {data.size.test}{elsewhere(data, 'full_error', k)}",
                lower(few, full),
            ),
        ]
    return rows


def versus(values: dict[str, np.ndarray]) -> str:
    """With bias against without."""
    return f"bias {interval(values['bias'])}, none {interval(values['no bias'])}"


def elsewhere(data: Data, name: str, k: int) -> str:
    """The same on the other subset."""
    if not data.other:
        return ""
    pair = [getattr(data.other[p][0], name)[k] for p in ("bias", "no bias")]
    return f". With {data.size.other} images, 1 seed: {pair[0]:.3g} and {pair[1]:.3g}"


def lower(*measured: dict[str, np.ndarray]) -> str:
    """Whether the intervals with bias lie below those without; then on more data."""
    conditions = ("", ": on all test images, not on few")
    for values, condition in zip(measured, conditions, strict=False):
        halves = {k: 1.96 * np.std(v, ddof=1) / np.sqrt(len(v)) for k, v in values.items()}
        distance = np.mean(values["no bias"]) - np.mean(values["bias"])
        if distance > halves["bias"] + halves["no bias"]:
            return "holds" + (" under a condition" + condition if condition else "")
    if np.any(np.isnan(measured[0]["bias"])) or np.any(np.isnan(measured[0]["no bias"])):
        return "not testable here"
    return "does not hold"


def judge(data: Data) -> list[Row]:
    """The claims of Fig. 1 and Sec. 3."""
    f, modes = data.floors, data.modes
    images = data.size.statistics or 60_000
    reach = min(f["bias"], f["bias"] / 5) > 0.025
    change = max(abs(f[k] - f[f"{k}, 5/6 of the images"]) for k in ("bias", "no bias"))
    firsts = {c: m["bias mode rank"] == 1 for c, m in modes.items() if c > 0}
    strongest = {c: m["strengths"] for c, m in modes.items()}
    c = data.size.bias_strength
    if all(firsts.values()):
        first = "holds"
    else:
        limit = modes[c]["first from c"]
        first = f"holds under a condition: c > {limit:.3g}" if firsts[c] else "does not hold"
    return [
        *aligned(data),
        *stopped(data),
        Row(
            "Networks, the linear ones too, are trained until the sample loss is 0.025",
            "M Sec. 3, App. E",
            f"least-squares floor on {images} images, half the squared error: {f['bias']:.4f} with "
            f"bias, {f['no bias']:.4f} without; squared error {2 * f['bias']:.3f} and "
            f"{2 * f['no bias']:.3f}; over 10 outputs {f['bias'] / 5:.4f} and "
            f"{f['no bias'] / 5:.4f}: {'all above' if reach else 'not all above'} 0.025",
            "holds under a condition: ReLU networks only" if reach else "holds",
        ),
        Row(
            '"the whole standard MNIST training set of 50000 images" (there are 60,000)',
            "M App. E, erratum B.16",
            f"floors of 5/6 of the images differ from those of all by at most {change:.1g}",
            "not testable here",
        ),
        Row(
            "The bias mode is the first to be learned for any c other than 0",
            "M Sec. 5.2, erratum B.6c",
            "; ".join(
                f"c = {k:g}: S = {', '.join(f'{s:.3f}' for s in strongest[k][:5])}, bias mode "
                f"{modes[k]['bias mode strength']:.3f} is number {modes[k]['bias mode rank']}"
                for k in firsts
            )
            + f" ({images} images); first from c = {modes[c]['first from c']:.3f} on",
            first,
        ),
    ]


def draw(data: Data) -> Figure:
    """Loss with bias and without; rank and test error at the stop."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.2), width_ratios=(1, 1))
    titles = {
        "bias": f"A. With bias (c = {data.size.bias_strength:g})",
        "no bias": "A. Without bias",
    }
    for ax, (label, title) in zip(axes[0], titles.items(), strict=True):
        draw_early(data.phases[label], ax, title, data.floors[label])
    axes[0, 1].get_legend().remove()
    shown = {
        "rank": (axes[1, 0], r"effective rank of $H^T H$", "B. Effective rank at the stop"),
        "error": (axes[1, 1], "test error", "C. Test error at the stop"),
    }
    for name, (ax, label, title) in shown.items():
        for n, (bias, colour) in enumerate(zip(data.stops, ("relu", "gated"), strict=True)):
            values = np.array([getattr(s, name) for s in data.stops[bias]])
            half = 1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
            at = np.arange(len(STOPS)) + 0.4 * n - 0.2
            ax.bar(at, values.mean(axis=0), 0.34, yerr=half, capsize=4, alpha=0.75,
                   color=fl.plot.COLOURS[colour], label=f"ReLU, {bias}")  # fmt: skip
            ax.plot(np.repeat(at, len(values)), values.T.ravel(), "k.", markersize=4)
        ax.set_xticks(range(len(STOPS)), [f"0.025 =\n{k}" for k in STOPS])
        ax.set(ylabel=label, title=title)
        ax.set_ylim(0, 1.22 * ax.get_ylim()[1])
        ax.legend(frameon=False, fontsize="small", ncols=2)
    size = data.size
    figure.suptitle(
        f"MNIST, {size.samples or 60_000} images, H = {size.hidden[0]}, {size.seeds} seeds "
        "(markers: descent, lines: flow; bars: 95 % intervals)"
    )
    return figure


SIZES = {
    "quick": Size(**QUICK, test=100, all_test=200, longest=20_000, look=500, other=None),
    "default": Size(),
    "full": Size(samples=None, other=10_000, longest=100_000),
}
STUDY = Study("m_fig1", SIZES, compute, draw, numbers, judge, heavy=True)

if __name__ == "__main__":
    STUDY.main(__doc__)
