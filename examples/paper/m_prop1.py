r"""M Prop. 1: the bias mode of one-hot inputs, and where it fails. See: the bias mode (dotted) is
the largest singular value at every c on the left. In the other two it is not where c is small
(grey): another mode is above it.

Algebra and closed forms for many c and P; hitting times of the modes from gradient flow on the
hierarchy task. The text assumes Eq. 4, simultaneous diagonalisation. For one-hot inputs that is
y_i . ybar the same for all i, and makes v_0 a singular vector, of any strength: there are targets
of both signs with Eq. 4 on which it is not the first. Tasks without Eq. 4 and images
(scikit-learn's 8 x 8 digits with the pixel mean subtracted) stand beside.

    python examples/paper/m_prop1.py [--quick | --full]
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from _judge import both, share, usual, verdict
from _paper import Row, Study, fl
from _tree import PAPER, Case, Setting, runs
from matplotlib.figure import Figure

DRAWN = ("balanced tree", "small mean", "digits")
FINE = np.geomspace(1e-2, 10, 121)  # c at which they are drawn
LIKE = 0.5  # cosine between v_0 and a mode from which on the mode is called the bias mode


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters: bias strengths, item numbers, random tasks, c and seeds of runs, the runs'."""

    strengths: tuple[float, ...] = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0, 3.0, 10.0)
    items: tuple[int, ...] = (2, 4, 8, 16, 64)
    random: int = 200
    flows: tuple[float, ...] = (0.01, 0.1, 1.0, 3.0)
    seeds: int = 10
    setting: Setting = PAPER


SIZES = {
    "quick": Size((0.01, 0.3, 1.0, 10.0), (2, 8), random=20, flows=(0.1, 1.0), seeds=1),
    "default": Size(),
    "full": Size(),
}


def tasks() -> dict[str, fl.Task]:
    """One-hot inputs with targets that fulfil Eq. 4 (the first three), or do not."""
    unequal = np.repeat(np.eye(3), [4, 3, 1], axis=0)
    uneven = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1.0]])
    signed = np.array([[1, 0], [-0.95, 0], [0, 1], [0, -0.95]])
    small = np.array([[1, 0.1], [-1, 0.1], [1, 0.1], [-1, 0.1]])  # Eq. 4 holds, the mean is small
    xor = np.array([[1, 0], [0, 1], [0, 1], [1, 0.0]])
    named = {
        "balanced tree": np.asarray(fl.tasks.hierarchy().y),
        "XOR's labels": xor,
        "small mean": small,
        "unbalanced tree": uneven,
        "unequal classes": unequal,
        "targets of both signs": signed,
    }
    return {name: fl.Task(np.eye(len(y)), y, name=name) for name, y in named.items()}


class Found(NamedTuple):
    """Bias mode of a task, its singular values, the most similar mode's place and cosine."""

    mode: fl.theory.BiasMode
    s: np.ndarray
    place: int
    overlap: float

    @property
    def leads(self) -> bool:
        """Whether the first mode is the bias mode, more than anything else."""
        return self.place == 0 and self.overlap > LIKE

    @property
    def largest(self) -> bool:
        """Whether s_0 is the largest singular value."""
        return abs(float(self.mode.s) / self.s[0] - 1) < 1e-9

    @property
    def label(self) -> str:
        """The place in words, counted from 1."""
        return f"{self.place + 1}" if self.overlap > LIKE else "none"


@dataclasses.dataclass
class Data:
    """Relative errors, bias modes by (task, c), first modes of flows.

    - `random`: of random tasks at c = 1 by kind, the shares in which v_0 is a singular vector and
      in which s_0 is the first singular value, and the median of their ratio.
    - `commutator`: how far the two matrices of Eq. 4 are from being diagonal together, by task.
    - `curves`: what is drawn, by task: s_0 over `FINE`, and the first singular values.
    """

    size: Size
    spectrum: float
    strength: float
    display: float
    mended: float
    found: dict[tuple[str, float], Found]
    random: dict[str, tuple[float, float, float]]
    commutator: dict[str, float]
    first: dict[tuple[str, float], np.ndarray]
    curves: dict[str, tuple[np.ndarray, np.ndarray]]


def compute(size: Size) -> Data:
    """Everything; only the flows take time."""
    named = tasks() | {"digits": fl.tasks.digits()}
    strengths = (0.0, *size.strengths)
    found = {(name, c): _place(task, c) for name, task in named.items() for c in strengths}
    first = {}
    for kind in ("linear", "relu"):
        for c in size.flows:
            flows = runs([Case("tree", kind, c, seed) for seed in range(size.seeds)], size.setting)
            first[kind, c] = np.array([np.argmin(f.events.first("mode")[2]) == 0 for f in flows])
    errors = [_errors(c, p) for c in size.strengths for p in size.items]
    spectrum, strength, display, mended = np.max(errors, axis=0)
    apart = {name: _commutator(task) for name, task in tasks().items()}
    curves = {name: _curves(named[name]) for name in DRAWN}
    return Data(size, spectrum, strength, display, mended, found, _random(size), apart, first,
                curves)  # fmt: skip


def _place(task: fl.Task, c: float) -> Found:
    """The bias mode, and the place among the modes of the one that is most like it."""
    mode, modes = fl.theory.bias_mode(task, c), fl.theory.modes(task, c)
    overlap = np.abs(np.asarray(mode.v if c else mode.v[1:]) @ np.asarray(modes.v))
    place = int(overlap.argmax())
    return Found(mode, np.asarray(modes.s), place, float(overlap[place]))


def _curves(task: fl.Task) -> tuple[np.ndarray, np.ndarray]:
    """s_0 of a task over `FINE`, and its largest singular values, (c, 6) at most."""
    found = [_place(task, float(c)) for c in FINE]
    return np.array([float(one.mode.s) for one in found]), np.array([one.s[:6] for one in found])


def _errors(c: float, p: int) -> tuple[float, float, float, float]:
    """Relative errors: spectrum of Sigma_x, Sigma_yx v_0 (Eq. 5), App. F.1's display, mended."""
    rng = np.random.default_rng(p)
    x, y = np.concatenate([np.full((p, 1), c), np.eye(p)], axis=1), rng.random((p, 3))
    s_x, s_yx = x.T @ x / p, y.T @ x / p
    claimed = np.array([0.0, *[1 / p] * (p - 1), c**2 + 1 / p])
    spectrum = np.max(np.abs(np.linalg.eigvalsh(s_x) - claimed)) / claimed[-1]
    v = np.array([1.0, *[1 / (c * p)] * p])
    image = s_yx @ v / np.linalg.norm(v)
    right = np.sqrt(c**2 + 1 / p) * y.mean(axis=0)
    printed = (c**2 * p + 1 / c) / p  # c^2 P + 1^T 1/(cP), its first entry as displayed
    display, mended = (abs(v / (c**2 + 1 / p) - 1) for v in (printed, (c**2 * p + c / c) / p))
    strength = float(np.linalg.norm(image - right) / np.linalg.norm(right))
    return float(spectrum), strength, display, mended


def _commutator(task: fl.Task, c: float = 1.0) -> float:
    """Relative size of the commutator of Sigma_yx^T Sigma_yx and Sigma_x: 0 where Eq. 4 holds."""
    x, y = np.asarray(task.x), np.asarray(task.y)
    x = np.concatenate([np.full((len(x), 1), c), x], axis=1)
    first, second = (m.T @ m for m in (y.T @ x, x))
    size = np.linalg.norm(first) * np.linalg.norm(second)
    return float(np.linalg.norm(first @ second - second @ first) / size)


def _draws(rng: np.random.Generator) -> dict[str, Callable[[], np.ndarray]]:
    """Random targets of eight one-hot inputs, by kind; the first two fulfil Eq. 4."""

    def signed() -> np.ndarray:
        mean, rest = rng.normal(size=5), rng.normal(size=(8, 5))
        rest = rest - rest.mean(axis=0)
        return mean + rest - np.outer(rest @ mean, mean) / (mean @ mean)

    def positive() -> np.ndarray:
        y = rng.random((8, 5))
        for _ in range(500):  # to the same sum in every row and the same mean in every column
            y = y / y.sum(axis=1, keepdims=True)
            y = y / (5 * y.mean(axis=0))
        return y

    return {
        "Eq. 4, normal": signed,
        "Eq. 4, not negative": positive,
        "uniform in [0, 1]": lambda: rng.random((8, 5)),
        "standard normal": lambda: rng.normal(size=(8, 5)),
        "one-hot classes": lambda: np.eye(4)[rng.integers(0, 4, 8)],
    }


def _random(size: Size) -> dict[str, tuple[float, float, float]]:
    """By kind: shares in which v_0 is singular and s_0 the first, median of s_0 over the first."""
    found = {}
    for name, draw in _draws(np.random.default_rng(0)).items():
        modes = [_place(fl.Task(np.eye(8), draw()), 1.0) for _ in range(size.random)]
        found[name] = (
            float(np.mean([bool(one.mode.is_singular) for one in modes])),
            float(np.mean([one.largest for one in modes])),
            float(np.median([float(one.mode.s) / one.s[0] for one in modes])),
        )
    return found


def numbers(data: Data) -> dict[str, Any]:
    """s_0 and the largest singular value by task and c."""
    found: dict[str, Any] = {
        f"{name}, c = {c:g}: s_0, largest s, place of the most similar mode, cosine": np.array(
            [float(one.mode.s), one.s[0], one.place, one.overlap]
        )
        for (name, c), one in data.found.items()
    }
    found["random tasks: v_0 singular, s_0 the first (shares), s_0 over the first (median)"] = {
        name: list(shares) for name, shares in data.random.items()
    }
    found["commutator of Eq. 4"] = data.commutator
    found["bias mode first, share of seeds"] = {
        f"{kind}, c = {c:g}": rows.mean() for (kind, c), rows in data.first.items()
    }
    return found


def judge(data: Data) -> list[Row]:
    """Verdicts on the proposition and what is drawn from it."""
    return [*_algebra_rows(data), _together_row(data), _singular_row(data), _order_row(data)]


def _algebra_rows(data: Data) -> list[Row]:
    c = data.size.strengths
    where = f"c from {min(c):g} to {max(c):g}, P in {data.size.items}"
    exact = 1e-13
    return [
        Row(
            claim="Sigma_x has eigenvalues c^2 + 1/P, 1/P (P - 1 times), 0",
            quote="has eigenvalues ... where the ... terms have a multiplicity of ... and the top "
            "eigenvector is",
            source="M Prop. 1",
            measured=f"largest error over the largest eigenvalue {data.spectrum:.1e} ({where})",
            verdict=verdict(bool(data.spectrum < exact)),
        ),
        Row(
            claim="Sigma_yx v_0 / |v_0| = sqrt(c^2 + 1/P) ybar",
            quote="We now compute the action of ... on the normalized top eigenvector",
            source="M Eq. 5, App. F.1",
            measured=f"largest relative error {data.strength:.1e} ({where}, random targets)",
            verdict=verdict(bool(data.strength < exact)),
        ),
        Row(
            claim="The proof's display: the first entry of Sigma_x v_0 is "
            "(c^2 P + 1^T 1/(cP) 1) / P",
            quote="Direct multiplication shows",
            source="M App. F.1, erratum E6d",
            measured=f"off from the eigenvalue by up to {data.display:.2g} of it ({where}), with c "
            f"before 1^T by {data.mended:.1e}; the result of the proof stands",
            verdict="misprint: c^2 P + c 1^T 1/(cP) 1"
            if data.mended < exact < data.display
            else verdict(bool(data.display < exact)),
        ),
    ]


def _together_row(data: Data) -> Row:
    text = ", ".join(f"{name} {v:.1e}" for name, v in data.commutator.items())
    return Row(
        claim="Eq. 4 holds exactly in the text's one-hot experiments",
        quote="We work under the standard simultaneous-diagonalization condition of Saxe et al. "
        "(2014), which holds exactly in our one-hot experiments",
        source="M Sec. 5.1, Eq. 4; erratum E6a",
        measured="commutator of Sigma_yx^T Sigma_yx and Sigma_x over their norms, c = 1, one-hot "
        f"inputs: {text}. One-hot inputs alone do not make it so; the text's one task with them is "
        "the balanced tree, which is judged",
        verdict=verdict(bool(data.commutator["balanced tree"] < 1e-13)),
    )


def _singular_row(data: Data) -> Row:
    parts, under = [], []
    for name in tasks():
        one = data.found[name, 1.0]
        if bool(one.mode.is_singular):
            under.append(one.largest)
            note = ""
        else:
            note = " (no singular vector: Eq. 4 does not hold)"
        parts.append(f"{name}: s_0 = {float(one.mode.s):.4g}, largest {one.s[0]:.4g}{note}")
    random = "; ".join(
        f"{name}: a singular vector in {v:.0%}, the first one in {first:.0%}, s_0 over the first "
        f"{ratio:.1%}" for name, (v, first, ratio) in data.random.items()
    )  # fmt: skip
    signed, positive = (data.random[f"Eq. 4, {name}"] for name in ("normal", "not negative"))
    return Row(
        claim="Under Eq. 4 s_0 = sqrt(c^2 + 1/P) |ybar| is the first singular value of Sigma_yx",
        quote="which is the top singular value associated with the bias direction",
        source="M Prop. 1, Eq. 5, App. F.1, Sec. 5.1; errata E6a, E6b",
        measured=f"at c = 1: {'; '.join(parts)}. In random tasks ({data.size.random} each, P = 8, "
        f"c = 1; medians): {random}. Eq. 4, which the text assumes, makes v_0 a singular vector; "
        "that it is the first one takes (c^2 + 1/P) |ybar|^2 >= the largest squared singular value "
        "of the centred targets over P too",
        verdict=verdict(
            all(under) and signed[1] == 1,
            ("under Eq. 4 it is a singular value, and the first one where no target is negative, "
             "as in the text's experiments",
             signed[0] == positive[0] == 1 and positive[1] == 1
             and data.found["balanced tree", 1.0].largest),
        ),
    )  # fmt: skip


def _order_row(data: Data) -> Row:
    strengths = data.size.strengths
    found = {
        name: [data.found[name, c] for c in strengths]
        for name in ("balanced tree", "small mean", "digits")
    }
    bare = data.found["balanced tree", 0.0]
    flows = "; ".join(f"{kind} c = {c:g}: {share(rows)}" for (kind, c), rows in data.first.items())
    text = "; ".join(
        f"{name}: "
        + ", ".join(f"{c:g}: {one.label}" for c, one in zip(strengths, row, strict=True))
        for name, row in found.items()
    )
    tree, small = (all(one.leads for one in found[n]) for n in ("balanced tree", "small mean"))
    learnt = both(tree, *(usual(rows, of=len(data.first)) for rows in data.first.values()))
    return Row(
        claim="A nonzero ybar and c imply that the bias mode is learned first, for any c != 0",
        quote="As the bias mode is associated with the leading singular value a nonzero ... and c "
        "implies that this direction of the network function is learned first. Note that this "
        "implies that early learning of the bias mode is not dependent on bias magnitude c",
        source="M Sec. 5.2, errata E6b, E6c",
        measured="on the hierarchy task the bias mode is the first to have half of its strength "
        f"in: {flows} (there the mean's mode is number {bare.label} at c = 0 as well: c does not "
        f"make the order). Place of the mode like v_0 (cosine above {LIKE:g}), by c: {text}. "
        "Judged on one-hot inputs with Eq. 4, as the text assumes, of which the small mean is one; "
        "images (digits), where the text takes c = 10, stand beside",
        verdict=verdict(
            both(small, learnt),
            ("s_0 is the largest singular value, as on the text's toy tasks at every c", learnt),
        ),
    )


def draw(data: Data) -> Figure:
    """s_0 and singular values over c, for three tasks; grey where s_0 is below the first by 1 %."""
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.7))
    for ax, name in zip(axes, DRAWN, strict=True):
        s0, values = data.curves[name]
        values = np.where(values > 1e-3 * values.max(), values, np.nan)  # those of zero left out
        names = [r"singular values of $\Sigma_{yx}$", *["_"] * (values.shape[1] - 1)]
        blue = {"color": fl.plot.COLOURS["linear"], "linestyle": "-", "linewidth": 2.2}
        ax.loglog(FINE, values, label=names, **blue)
        ax.loglog(FINE, s0, label=r"bias mode $\|\Sigma_{yx} v_0\|$", **fl.plot.look("theory"))
        behind = FINE[s0 < 0.99 * values[:, 0]]
        ax.axvspan(FINE[0], behind.max(initial=FINE[0]), color="0.9", zorder=0)
        ax.set(title=name, xlabel="bias strength $c$", xlim=(FINE[0], FINE[-1]))
    axes[0].set_ylabel("singular value (mode's rate times $\\tau$)")
    axes[1].set_ylim(bottom=0.035)
    axes[2].set_ylim(bottom=0.02)  # s_0 goes on to 0 with c
    axes[0].legend(fontsize="small", frameon=False)
    axes[1].text(0.04, 0.96, "grey: another mode\nis the first", transform=axes[1].transAxes,
                 fontsize="small", verticalalignment="top")  # fmt: skip
    return figure


STUDY = Study("m_prop1", SIZES, compute, draw, numbers, judge)

if __name__ == "__main__":
    STUDY.main(__doc__)
