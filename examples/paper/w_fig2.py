"""W Fig. 2A: similarity (CKA) of linear and ReLU networks' representations on the hierarchy task.
See: with bias (solid) similarity comes near 1 early and stays there. Without (dashed) it comes
there later, by the end of the time in which both networks learn (bar).

Gradient flow with exact walks, 64 hidden units, variance 2e-4, c = 1 and no bias; linear CKA (the
text says Centered Kernel Alignment and cites Kornblith et al. 2019, whose estimator is judged; the
debiased one, which matters at 8 items in 64 dimensions, stands beside). The text does not say that
the initial weights are shared: both shared and independent ones are judged. It says "throughout
training": from the start until the linear network's loss is 1 % of its first. Beside it stands the
time in which both networks learn, from when both have 90 % of their first mode (before,
representations are the random initial ones, scaled).

    python examples/paper/w_fig2.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import LIKENESS, interval, more, same, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import SHARES, Size, many, thin
from matplotlib.figure import Figure

SIZES = {"quick": Size(2), "default": Size(20), "full": Size(20)}


STARTS = {True: "the same initial weights", False: "other initial weights"}


@dataclasses.dataclass
class Data:
    """CKA by (c, same initial weights, debiased), (seeds, T); `training` by the first two.

    The latter are the saved times of training, and those in which both networks of a pair learn,
    (seeds, 2, T) of booleans.
    """

    size: Size
    cka: dict[tuple[float, bool, bool], np.ndarray]
    training: dict[tuple[float, bool], np.ndarray]


def compute(size: Size) -> Data:
    """The runs and their similarity at every saved time."""
    data = Data(size, {}, {})
    for c in (1.0, 0.0):
        linear, relu = (many("tree", kind, c, size.seeds, size.setting)
                        for kind in ("linear", "relu"))  # fmt: skip
        first, second = (
            [fl.measures.along(flow, fl.measures.hidden) for flow in flows]
            for flows in (linear, relu)
        )
        for shared in STARTS:
            turn = 0 if shared else 1
            pairs = zip(linear, relu[turn:] + relu[:turn], strict=True)
            data.training[c, shared] = np.array([_training(*p, size.setting.ts) for p in pairs])
            for debiased in (False, True):
                data.cka[c, shared, debiased] = np.array(
                    [fl.measures.linear_cka(a, b, debiased=debiased)
                     for a, b in zip(first, second[turn:] + second[:turn], strict=True)]
                )  # fmt: skip
    return data


def _training(linear: fl.Trajectory, relu: fl.Trajectory, ts: np.ndarray) -> np.ndarray:
    """Whether a time is one of training, and one in which both learn, (2, T)."""
    training = np.asarray(linear.losses) >= 0.01 * float(linear.losses[0])
    return np.stack([training, training & (ts >= max(hit(linear), hit(relu)))])


def hit(flow: fl.Trajectory) -> float:
    """When the first mode, with bias that of the mean, has 90 % of its strength."""
    return float(flow.events.first("mode")[SHARES.index(0.9), 0])


def numbers(data: Data) -> dict[str, Any]:
    """Thinned mean curves."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts)}
    for (c, shared, debiased), rows in data.cka.items():
        found[_name(c, shared, debiased)] = thin(rows.mean(axis=0))
    return found


def _name(c: float, shared: bool, debiased: bool) -> str:
    return (
        f"CKA, {'with' if c else 'without'} bias, {STARTS[shared]}, "
        f"{'debiased' if debiased else 'biased'}"
    )


def during(data: Data, c: float, shared: bool, debiased: bool, learning: bool) -> np.ndarray:
    """Mean over the time of training, or of that in which both networks learn, (seeds,)."""
    weights = data.training[c, shared][:, int(learning)] * np.gradient(data.size.setting.ts)
    return np.sum(weights * data.cka[c, shared, debiased], axis=1) / weights.sum(axis=1)


WHEN = {
    "throughout training": (False, False),
    "debiased": (True, False),
    "while both learn": (False, True),
    "debiased, while both learn": (True, True),
}


def judge(data: Data) -> list[Row]:
    """Verdicts by kind of start."""
    high, lower, biased, bare = {}, {}, [], []
    for shared, name in STARTS.items():
        with_, without = ({words: during(data, c, shared, *how) for words, how in WHEN.items()}
                          for c in (1.0, 0.0))  # fmt: skip
        first, second = (found["throughout training"] for found in (with_, without))
        high[name], lower[name] = same(1 - first, LIKENESS, 2), more(first, second, 2)
        for found, texts in ((with_, biased), (without, bare)):
            told = (f"{words} {interval(values)}" for words, values in found.items())
            texts.append(f"With {name}: {', '.join(told)}")
    return [
        Row(
            claim="CKA of linear and ReLU networks is high with bias",
            quote="Alignment is high when networks have bias terms.",
            source="W Fig. 2A, Sec. 2",
            measured=f"mean CKA with bias. {'. '.join(biased)}. Criterion, throughout training: "
            f"CKA 1, {LIKENESS}, two comparisons",
            verdict=verdict(high),
        ),
        Row(
            claim="Bias makes it so: CKA is higher with bias than without",
            quote="bias terms can ... drive representational and functional alignment between "
            "distinct model classes",
            source="W Sec. 1, Fig. 2A",
            measured=f"mean CKA without bias (with bias: the row on high CKA). {'. '.join(bare)}. "
            "Criterion, throughout training: less, paired by seed, two comparisons",
            verdict=verdict(lower),
        ),
    ]


def draw(data: Data) -> Figure:
    """CKA over time, with bias and without, by estimator and start."""
    figure, axes = plt.subplots(1, 4, figsize=(10.2, 3.2), sharey=True)
    ts = data.size.setting.ts
    for ax, (shared, debiased) in zip(axes, list(np.ndindex(2, 2)), strict=True):
        for c, label, how in ((1.0, "bias", {"linestyle": "-"}), (0.0, "no bias", WITHOUT)):
            rows = data.cka[c, not shared, bool(debiased)]
            colour = fl.plot.COLOURS["relu"]
            ax.plot(ts, rows.mean(axis=0), color=colour, label=label, **how)
            low, high = np.quantile(rows, [0.025, 0.975], axis=0)
            ax.fill_between(ts, low, high, color=colour, alpha=0.15, linewidth=0)
            when = ts[np.mean(data.training[c, not shared][:, 1], axis=0) > 0.5]
            at = -0.28 if c else -0.34
            ax.plot(when[[0, -1]], (at, at), color=colour, linewidth=2.5, **how)
        ax.set(title=f"{'other' if shared else 'same'} weights, {'de' * debiased}biased",
               xlabel="flow time $t$ (units of $\\tau$)", ylim=(-0.4, 1.05),
               xlim=(0, 40))  # fmt: skip
    axes[0].set_ylabel("CKA(linear, ReLU)")
    axes[0].legend(frameon=False, loc="center right", title="bar: both learn")
    return figure


STUDY = Study("w_fig2", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
