"""W Fig. 2A: similarity (CKA) of linear and ReLU networks' representations on the hierarchy task.

Gradient flow with exact walks from the same initial weights, 64 hidden units, variance 2e-4, c = 1
and no bias; linear CKA (the text says Centered Kernel Alignment and cites Kornblith et al. 2019),
biased and debiased, which matters at 8 items in 64 dimensions. Also between independent
initialisations, since the text does not say that the weights are shared. Judged while both learn:
from the time at which both networks have 90 % of their first mode (before, representations are the
random initial ones) until the linear network's loss is 1 % of its first.

    python examples/paper/w_fig2.py [--quick | --full]
"""

import dataclasses
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _judge import LIKENESS, both, interval, more, same, verdict
from _paper import WITHOUT, Row, Study, fl
from _tree import SHARES, Size, many, thin
from matplotlib.figure import Figure

SIZES = {"quick": Size(2), "default": Size(20), "full": Size(20)}


@dataclasses.dataclass
class Data:
    """CKA by (c, same initial weights, debiased), (seeds, T); `learning` by the first two.

    The latter are the saved times while both networks of a pair learn, (seeds, T) of booleans.
    """

    size: Size
    cka: dict[tuple[float, bool, bool], np.ndarray]
    learning: dict[tuple[float, bool], np.ndarray]


def compute(size: Size) -> Data:
    """The runs and their similarity at every saved time."""
    data, ts = Data(size, {}, {}), size.setting.ts
    for c in (1.0, 0.0):
        linear, relu = (many("tree", kind, c, size.seeds, size.setting)
                        for kind in ("linear", "relu"))  # fmt: skip
        first, second = (
            [fl.measures.along(flow, fl.measures.hidden) for flow in flows]
            for flows in (linear, relu)
        )
        for shared in (True, False):
            turn = 0 if shared else 1
            pairs = list(zip(linear, relu[turn:] + relu[:turn], strict=True))
            data.learning[c, shared] = np.array(
                [(ts >= max(hit(a), hit(b))) & (np.asarray(a.losses) >= 0.01 * float(a.losses[0]))
                 for a, b in pairs]
            )  # fmt: skip
            for debiased in (False, True):
                data.cka[c, shared, debiased] = np.array(
                    [fl.measures.linear_cka(a, b, debiased=debiased)
                     for a, b in zip(first, second[turn:] + second[:turn], strict=True)]
                )  # fmt: skip
    return data


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
        f"CKA, {'with' if c else 'without'} bias, {'the same' if shared else 'other'} initial "
        f"weights, {'debiased' if debiased else 'biased'}"
    )


def during(data: Data, c: float, shared: bool, debiased: bool) -> np.ndarray:
    """Mean over time while both networks learn, (seeds,)."""
    weights = data.learning[c, shared] * np.gradient(data.size.setting.ts)
    return np.sum(weights * data.cka[c, shared, debiased], axis=1) / weights.sum(axis=1)


def judge(data: Data) -> list[Row]:
    """Verdicts over both estimators and kinds of start."""
    high, lower, texts = [], [], []
    for shared in (True, False):
        for debiased in (False, True):
            bias, bare = (during(data, c, shared, debiased) for c in (1.0, 0.0))
            high.append(same(1 - bias, LIKENESS, of=4))
            lower += [] if debiased else [more(bias, bare, of=2)]
            texts.append(
                f"{'the same' if shared else 'other'} initial weights, {'de' * debiased}biased "
                f"{interval(bias)}, without bias {interval(bare)}"
            )
    text = f"mean CKA while both learn: {'; '.join(texts)}"
    return [
        Row("CKA of linear and ReLU networks is high with bias", "W Fig. 2A",
            f"{text}; criterion: CKA 1 in all four, {LIKENESS}", verdict(both(*high))),
        Row("It is lower without bias", "W Fig. 2A",
            f"{text}; criterion: lower, paired by seed, for both starts, by the (biased) estimator "
            "that the text cites", verdict(both(*lower))),
    ]  # fmt: skip


def draw(data: Data) -> Figure:
    """CKA over time, with bias and without, by estimator and start."""
    figure, axes = plt.subplots(1, 4, figsize=(12.0, 3.2), sharey=True)
    ts = data.size.setting.ts
    for ax, (shared, debiased) in zip(axes, list(np.ndindex(2, 2)), strict=True):
        for c, label, how in ((1.0, "bias", {"linestyle": "-"}), (0.0, "no bias", WITHOUT)):
            rows = data.cka[c, not shared, bool(debiased)]
            colour = fl.plot.COLOURS["relu"]
            ax.plot(ts, rows.mean(axis=0), color=colour, label=label, **how)
            low, high = np.quantile(rows, [0.025, 0.975], axis=0)
            ax.fill_between(ts, low, high, color=colour, alpha=0.15, linewidth=0)
            when = ts[np.mean(data.learning[c, not shared], axis=0) > 0.5]
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
