"""M Fig. 2 (W Fig. 1 and 2B): linear and ReLU networks on the hierarchy task and on XOR.

Gradient flow, 64 hidden units, variance 2e-4, c = 1 or 0 (no bias), exact walks through the kinks;
the first seeds also as descent at the paper's rate (half the summed squared error, 2e-4: 625 steps
of it are a unit of flow time). Whether two networks learn alike is judged on when each singular
value is learned: late modes that come early hide early ones that come late in the loss, which is
their sum. At variance 2e-4 the stages of the last two singular values overlap with those before;
at 2e-8 there are four.

Left open by the text: the tree's features (one per node, 15; also without the root's), XOR's
coordinates (-1/+1 and 0/1 are both run; -1/+1 is drawn, where the linear network without bias
learns nothing), the kind of multidimensional scaling (classical, all times jointly). "Exact" is
the closed form of isolated modes of any imbalance; Eq. 7 stands in the table with the singular
values at the start, which App. B names, and with the balanced part of the initial strengths.

    python examples/paper/m_fig2.py [--quick | --full]
"""

import dataclasses
from typing import Any

import numpy as np
from _fig2_show import figure
from _judge import LOSSES, TIMES, apart, both, interval, more, same, usual, verdict
from _paper import Row, Study, fl
from _separation import KINDS, splits
from _separation import rows as separation_rows
from _tree import (
    PAPER,
    SMALL,
    Case,
    Pace,
    Setting,
    delay,
    drops,
    gap,
    in_step,
    loss_stretch,
    many,
    modes_of,
    out_of_step,
    pace,
    product_losses,
    start,
    task_of,
    thin,
)

TASKS = ("tree", "rootless", "xor", "xor 0/1")


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: seeds, the runs' settings, tasks, seeds of descent and its rate (0: none)."""

    seeds: int
    setting: Setting = PAPER
    small: Setting = SMALL
    tasks: tuple[str, ...] = TASKS
    descents: int = 3
    learning_rate: float = 2e-4


SIZES = {
    "quick": Size(2, tasks=("tree", "xor"), descents=0),
    "default": Size(20),
    "full": Size(20),
}
Key = tuple[str, str, float]


@dataclasses.dataclass
class Data:
    """Runs by (task, kind, c); on the tree those of small weights, and descents.

    Losses of closed forms by name; `negative`: modes of a seed whose raw a_0 is not positive.
    """

    size: Size
    runs: dict[Key, list[fl.Trajectory]]
    small: dict[Key, list[fl.Trajectory]]
    descents: dict[Key, list[fl.Trajectory]]
    exact: dict[str, list[np.ndarray]]
    negative: list[int]

    def pairs(self, task: str, c: float) -> list[tuple[fl.Trajectory, fl.Trajectory]]:
        """ReLU and linear runs of the same seeds."""
        return list(zip(self.runs[task, "relu", c], self.runs[task, "linear", c], strict=True))

    def pace(self, task: str, c: float, small: bool = False) -> Pace:
        """Their half times."""
        runs = self.small if small else self.runs
        return pace(runs[task, "relu", c], runs[task, "linear", c], task, c)


def compute(size: Size) -> Data:
    """All runs, and the closed forms."""

    def all_of(tasks: tuple[str, ...], setting: Setting) -> dict[Key, list[fl.Trajectory]]:
        keys = [(t, k, c) for t in tasks for k in ("linear", "relu") for c in (1.0, 0.0)]
        return {(t, k, c): many(t, k, c, size.seeds, setting) for t, k, c in keys}

    exact: dict[str, list[np.ndarray]] = {"isolated": [], "balanced": [], "singular": []}
    negative = []
    for seed in range(size.seeds):
        network = start(Case("tree", "linear", 1.0, seed), size.setting)
        solution = fl.theory.solve(network, task_of("tree"))
        assert solution.certificate.negative is not None  # of two layers
        negative.append(int(solution.certificate.negative))
        exact["isolated"].append(np.asarray(solution.loss(size.setting.ts)))
        modes = modes_of("tree", 1.0)
        weights = np.column_stack([network.biases[0], network.weights[0]])
        values = np.linalg.svd(network.weights[1] @ weights, compute_uv=False)[: len(modes.s)]
        starts = {"balanced": fl.theory.balanced_strength(network, modes), "singular": values}
        for name, a0 in starts.items():
            exact[name].append(_eq7(a0, size.setting))
    runs, small = all_of(size.tasks, size.setting), all_of(("tree",), size.small)
    return Data(size, runs, small, _descents(size), exact, negative)


def _eq7(a0: Any, setting: Setting) -> np.ndarray:
    """Loss of Eq. 7 from initial strengths."""
    modes = modes_of("tree", 1.0)
    a = fl.theory.mode_strength(setting.ts[:, None], modes.s, modes.d, a0)
    return product_losses((modes.u * np.asarray(a)[:, None, :]) @ modes.v.T, task_of("tree"), 1.0)


def _descents(size: Size) -> dict[Key, list[fl.Trajectory]]:
    """The first seeds on the tree by descent, saved in units of flow time."""
    task = task_of("tree")
    # Half the mean at P times the rate is half the sum at the rate, and counts flow time.
    how: dict[str, Any] = {
        "learning_rate": size.learning_rate * task.samples,
        "t1": size.setting.t1,
    }
    keys = [("tree", k, c) for k in ("relu", "linear") for c in (1.0, 0.0)]
    return {
        key: [
            fl.gradient_descent(start(Case(*key, seed), size.setting), task, **how)
            for seed in range(size.descents)
        ]
        for key in keys
    }


# What the panels show, in numbers


def matched(late: fl.Trajectory, early: fl.Trajectory) -> tuple[float, float]:
    """(gap, exit): difference before the linear plateau, and when the ReLU network goes below.

    The plateau begins when the linear loss has made 95 % of its drop; up to there the largest
    difference after the best shift, over the initial loss. `exit` is when the ReLU loss is
    `LOSSES.same` below the linear network's last, in units of the plateau's beginning.
    """
    ts, a, b = (np.asarray(v) for v in (early.ts, late.losses, early.losses))
    plateau = np.flatnonzero(b <= b[-1] + 0.05 * (b[0] - b[-1]))[0]
    window = ts[: plateau + 1]
    shifts = np.linspace(0, window[-1], 401)
    gaps = [np.max(np.abs(np.interp(window + s, ts, a) - b[: plateau + 1])) for s in shifts]
    below = np.flatnonzero(a < b[-1] - LOSSES.same * b[0])
    out = ts[below[0]] / window[-1] if len(below) else np.inf
    return float(min(gaps) / b[0]), float(out)


def floor(labels: np.ndarray, x: np.ndarray) -> float:
    """Least half squared error of an affine map."""
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    errors = labels - x @ np.linalg.lstsq(x, labels, rcond=None)[0]
    return float(0.5 * np.mean(np.sum(errors**2, axis=1)))


def numbers(data: Data) -> dict[str, Any]:
    """Thinned curves of seed 0, half times, gaps and delays, split times."""
    found: dict[str, Any] = {"t": thin(data.size.setting.ts), "t, small": thin(data.size.small.ts)}
    for name, runs in (("", data.runs), (", small", data.small)):
        for (task, kind, c), flows in runs.items():
            found[f"loss, {task}, {kind}, c = {c:g}{name}"] = thin(flows[0].losses)
    found["loss, tree, exact"] = thin(data.exact["isolated"][0])
    for task in data.size.tasks:
        for c in (1.0, 0.0):
            rows = [(gap(*p), *delay(*p), *loss_stretch(*p)) for p in data.pairs(task, c)]
            key = f"gap; shift, gap left; stretch, gap left by seed, {task}, c = {c:g}"
            found[key] = np.array(rows)
            if not task.startswith("xor"):
                key = f"half times over linear by seed and singular value, {task}, c = {c:g}"
                found[key] = data.pace(task, c).ratios
    for kind, c in KINDS:
        rows = [splits(flow) for flow in data.runs["tree", kind, c]]
        found[f"splits (siblings, cousins, root; share), {kind}, c = {c:g}"] = np.mean(rows, axis=0)
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on panels B, D, E."""
    found = {(k, c): np.array([splits(f) for f in data.runs["tree", k, c]]) for k, c in KINDS}
    rows = [*_time_rows(data), _diverge_row(data), _stage_row(data), *_exact_rows(data)]
    descent = [_descent_row(data)] if data.size.descents else []
    return [*rows, *descent, *_xor_rows(data), _label_row(), *separation_rows(found)]


def _time_rows(data: Data) -> list[Row]:
    pairs, biased = data.pairs("tree", 1.0), data.pace("tree", 1.0)
    gaps = np.array([(gap(*p), *delay(*p), *loss_stretch(*p)) for p in pairs])
    slight = more(TIMES.apart, biased.common - 1)
    return [
        Row(
            "ReLU networks with bias closely track the linear ones, with a slight time shift",
            "M Fig. 2B, Sec. 4; W Sec. 2",
            f"half times of the four singular values over those of the linear network: "
            f"{biased.text}; they differ from each other by {interval(biased.uneven)} ({TIMES}), "
            f"their common factor is {interval(biased.common)} (slight: less than "
            f"{1 + TIMES.apart:g}); without bias they differ by "
            f"{interval(data.pace('tree', 0.0).uneven)}; losses differ by at most "
            f"{interval(gaps[:, 0])} of L(0), after a shift of {interval(gaps[:, 1])} by "
            f"{interval(gaps[:, 2])}",
            verdict(both(in_step(biased), slight)),
        ),
        Row(
            "The dynamics are preserved under different learning speeds: time is stretched, not "
            "shifted",
            "W Sec. 2, Fig. 5",
            f"what the best common factor leaves of the half times: {interval(biased.after_factor)}"
            f" of the time ({TIMES}); what the best common shift leaves: "
            f"{interval(biased.after_shift)}; of the losses a factor of {interval(gaps[:, 3])} "
            f"leaves {interval(gaps[:, 4])}, a shift {interval(gaps[:, 2])} of L(0)",
            verdict(
                both(
                    same(biased.after_factor, TIMES), more(biased.after_shift, biased.after_factor)
                )
            ),
        ),
    ]


def _diverge_row(data: Data) -> Row:
    tasks = [task for task in data.size.tasks if not task.startswith("xor")]
    found, texts = [], []
    for task in tasks:
        biased, bare = data.pace(task, 1.0), data.pace(task, 0.0)
        found.append(out_of_step(bare, biased, len(tasks)))
        texts.append(f"{task}: {bare.text}, from each other by {interval(bare.uneven)}, with bias "
                     f"{interval(biased.uneven)}")  # fmt: skip
    small = data.pace("tree", 0.0, small=True)
    far = "apart" if apart(small.uneven, TIMES) else "not apart"
    return Row(
        "Without bias the connection breaks down and the dynamics diverge",
        "M Fig. 2B, Sec. 4; W Sec. 2",
        f"half times over those of the linear network without bias, by singular value: "
        f"{'; '.join(texts)} (criterion: beyond {TIMES.same:g} and more than with bias, at the "
        f"level of {len(tasks)} tasks); at variance {data.size.small.variance:g} {small.text}, by "
        f"{interval(small.uneven)} ({far}), with bias "
        f"{interval(data.pace('tree', 1.0, small=True).uneven)}",
        verdict(both(*found)),
    )


def _stage_row(data: Data) -> Row:
    number = {
        (small, kind, c): np.array([drops(flow) for flow in runs["tree", kind, c]])
        for small, runs in ((False, data.runs), (True, data.small))
        for kind in ("relu", "linear") for c in (1.0, 0.0)
    }  # fmt: skip
    text = {
        small: "; ".join(
            f"{'with' if c else 'without'} bias ReLU {number[small, 'relu', c].mean():.3g}, linear "
            f"{number[small, 'linear', c].mean():.3g}" for c in (1.0, 0.0)
        ) for small in (False, True)
    }  # fmt: skip
    alike = [usual(number[s, "relu", 1.0] == number[s, "linear", 1.0]) for s in (False, True)]
    bare = usual(number[True, "relu", 0.0] < number[True, "linear", 0.0])
    return Row(
        "Biased ReLU networks learn in stages like linear ones",
        "M Fig. 2B, Sec. 4",
        f"separate drops of the loss (peaks of -dL/dt twice as high as the valleys beside them), "
        f"mean of {data.size.seeds} seeds: {text[False]}; at variance "
        f"{data.size.small.variance:g}, where the tree's four singular values do not overlap: "
        f"{text[True]}",
        verdict(both(*alike, usual(number[True, "relu", 1.0] == 4), bare)),
    )


def _exact_rows(data: Data) -> list[Row]:
    linear, pairs = data.runs["tree", "linear", 1.0], data.pairs("tree", 1.0)
    gaps = {
        name: [gap(dataclasses.replace(f, losses=x), f) for f, x in zip(linear, rows, strict=True)]
        for name, rows in data.exact.items()
    }
    exact = [dataclasses.replace(g, losses=x)
             for (_, g), x in zip(pairs, data.exact["isolated"], strict=True)]  # fmt: skip
    to_relu = [(*delay(f, g), *loss_stretch(f, g)) for (f, _), g in zip(pairs, exact, strict=True)]
    shift, left, factor, left_by_factor = np.array(to_relu).T
    return [
        Row(
            "Exact solutions for linear networks agree with the linear runs",
            "M Fig. 2B, Eq. 7, App. B; erratum B.14",
            f"largest difference of the losses ({LOSSES}): Eq. 7 from the singular values at the "
            f"start, which App. B names, {interval(gaps['singular'], 2)}; from the balanced part "
            f"of a_0 {interval(gaps['balanced'], 2)}; isolated modes of any imbalance "
            f"{interval(gaps['isolated'], 2)}; the raw a_0 of {np.mean(data.negative):.2g} of the "
            "8 modes are negative, where Eq. 7 has no use",
            verdict(
                same(gaps["singular"], LOSSES),
                (
                    "a_0 is the balanced part of the initial strengths",
                    same(gaps["balanced"], LOSSES),
                ),
            ),
        ),
        Row(
            "Exact solutions almost perfectly match biased ReLU networks, with a slight time shift",
            "M Sec. 4",
            f"after a shift of {interval(shift)} the losses differ by at most {interval(left)}, "
            f"after a stretch of time by {interval(factor)} by {interval(left_by_factor)} "
            f"({LOSSES})",
            verdict(
                same(left, LOSSES),
                ("time is stretched rather than shifted", same(left_by_factor, LOSSES)),
            ),
        ),
    ]


def _descent_row(data: Data) -> Row:
    off = {
        key: [np.max(np.abs(np.interp(d.ts, f.ts, f.losses) - np.asarray(d.losses))) / f.losses[0]
              for d, f in zip(descents, data.runs[key], strict=False)]
        for key, descents in data.descents.items()
    }  # fmt: skip
    text = "; ".join(f"{kind}, c = {c:g}: {interval(v, 2)}" for (_, kind, c), v in off.items())
    return Row(
        "A learning rate of 2e-4 is gradient flow",
        "M App. E, Sec. 4; W Sec. 2",
        f"largest difference of the losses of descent and flow ({LOSSES}; the flow is interpolated "
        f"between {data.size.setting.points} times): {text}",
        verdict(both(*(same(v, LOSSES, len(off)) for v in off.values()))),
    )


def _xor_rows(data: Data) -> list[Row]:
    tasks = [name for name in data.size.tasks if name.startswith("xor")]
    early, late, good, bad = [], [], [], {}
    for task in tasks:
        name, pairs = "0/1" if task.endswith("1") else "-1/+1", data.pairs(task, 1.0)
        biased, bare = np.array([matched(*p) for p in pairs]), data.pairs(task, 0.0)
        good += [same(biased[:, 0], LOSSES, len(tasks)), usual(biased[:, 1] >= 1, of=len(tasks))]
        early.append(f"{name}: by at most {interval(biased[:, 0])}, and the ReLU network goes below"
                     f" at {np.median(biased[:, 1]):.2g} times its beginning (median)")  # fmt: skip
        learnt = np.mean([1 - g.losses[-1] / g.losses[0] for _, g in bare])
        far = np.array([matched(*p)[0] if learnt > 0.01 else gap(*p) for p in bare])
        bad[name] = apart(far, LOSSES, len(tasks))
        late.append(f"{name}: the linear network removes {learnt:.0%} of the loss; difference "
                    f"{'before its plateau' if learnt > 0.01 else 'of the whole curves'} "
                    f"{interval(far)}, with bias {interval(biased[:, 0])}")  # fmt: skip
    conditions = [(f"coordinates {name}", found) for name, found in bad.items()]
    return [
        Row(
            "On XOR biased ReLU and linear networks match until the linear plateau",
            "M Fig. 2D, Sec. 4; W Fig. 1D",
            f"before the linear plateau, after the best shift, the losses differ ({LOSSES}), with "
            f"coordinates {'; '.join(early)}",
            verdict(both(*good)),
        ),
        Row(
            "On XOR the match breaks down without bias",
            "M Fig. 2D, Sec. 4; W Sec. 2",
            f"coordinates {'; '.join(late)} ({LOSSES})",
            verdict(both(*bad.values()), *conditions),
        ),
    ]


def _label_row() -> Row:
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1.0]])
    listed = np.repeat(np.eye(2), 2, axis=0)
    floors = floor(listed, x), floor(listed[[0, 2, 3, 1]], x)
    right = floors[0] < 1e-12 < floors[1]
    return Row(
        "XOR's labels are [1,0], [1,0], [0,1], [0,1]",
        "M App. E, erratum B.15",
        f"least loss of an affine map with the inputs in the order 00, 01, 10, 11: "
        f"{floors[0]:.3g}, a linear problem; in the order 00, 11, 01, 10: {floors[1]:.3g}",
        "misprint: the inputs are listed as 00, 11, 01, 10" if right else "does not hold",
    )


STUDY = Study("m_fig2", SIZES, compute, figure, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
