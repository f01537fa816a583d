"""Where the bias mode ranks among the modes of real images, by bias strength.
See: on centred images it climbs from mode to mode, and is the first where the condition says (thin
lines). On standardised CIFAR-10 the mode of the mean input is the first at every c, and that of
the bias coordinate is so from a larger c on than the condition says.

    python benchmarks/bias_rank.py [--quick | --redraw]

Proposition 1 says that the bias mode comes first; on images that takes a bias strength c that is
large enough (`theory.bias_mode`). For all images of MNIST and CIFAR-10 (grayscale) and for
scikit-learn's digits, centred by pixel or standardised by one mean and deviation, this
measures the rank of the mode with the largest overlap with the mean input [c; xbar], with the bias
coordinate and with the mean target, for c from 0 to 10; the c from which it is first, by bisection;
and what the two conditions say. Writes `bias_rank.json`, `bias_rank.md` and `bias_rank.png` to
`benchmarks/results/`. Needs the image files (see the README); `--quick` takes the digits alone, and
`--redraw` draws what is held.
"""

import functools
import json
from typing import Any

import _common
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

STRENGTHS = np.unique([*np.linspace(0, 10, 101), 0.01, 0.03])
SHOWN = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0, 10.0)
KINDS = {"rank": "mean input [c; xbar]", "bias rank": "bias coordinate", "mean rank": "mean target"}
DATA = ("#009E73", "#D55E00", "#0072B2")
LOOKS = (("#56B4E9", "-", 3.5), ("black", "--", 2.0), ("#CC79A7", ":", 2.5))


@jax.jit
def ranked(task: fl.Task, cs: jax.Array) -> fl.theory.BiasMode:
    """The bias mode for every c; the samples are looked at once."""
    return jax.vmap(functools.partial(fl.theory.bias_mode, task))(cs)


def first_from(task: fl.Task, kind: str) -> float:
    """The c from which on the mode that overlaps most with [c; xbar], or the bias, is strongest.

    The last c of a fine grid at which it is not, bisected upwards; 0 where it always is.
    """

    def behind(cs):
        return np.flatnonzero(np.asarray(getattr(ranked(task, jnp.asarray(cs)), kind)) > 1)

    grid = np.linspace(0, 10, 201)
    late = behind(grid)
    if not len(late):
        return 0.0
    low, high = grid[late[-1]], grid[min(late[-1] + 1, 200)]
    for _ in range(3):  # by a factor of 20 each
        finer = np.linspace(low, high, 21)
        late = behind(finer)
        low, high = finer[late[-1]], finer[min(late[-1] + 1, 20)]
    return float(high)


def entry(name: str, task: fl.Task) -> dict[str, Any]:
    """Everything measured for one data set and preprocessing."""
    # Only moments matter: as many rows as coordinates carry them, with a constant first column.
    small = compressed(task)
    found = jax.tree.map(np.asarray, ranked(small, jnp.asarray(STRENGTHS)))
    whole = fl.theory.bias_mode(task, 1.0)
    products = np.asarray(task.y @ jnp.mean(task.y, axis=0))
    one = int(np.argmin(abs(STRENGTHS - 1)))
    return {
        "data": name,
        "samples": task.samples,
        "compression error": float(abs(whole.s / found.s[one] - 1)),
        "mean input": float(jnp.linalg.norm(jnp.mean(task.x, axis=0))),
        "mean target": float(jnp.linalg.norm(jnp.mean(task.y, axis=0))),
        "y_i . ybar": [float(z) for z in (products.min(), products.max())],
        "input residual": float(found.input_residual[one]),
        "target residual": float(whole.target_residual),
        "singular residual at c = 1": float(found.singular_residual[one]),
        "predicted first from": float(whole.first_from),
        "measured first from": first_from(small, "rank"),
        "bias coordinate first from": first_from(small, "bias_rank"),
        "c": STRENGTHS.tolist(),
        "rank": found.rank.tolist(),
        "overlap": found.overlap.tolist(),
        "bias rank": found.bias_rank.tolist(),
        "mean rank": found.mean_rank.tolist(),
        "strength": found.s.tolist(),
        "others": strengths_beside(small),
    }


def compressed(task: fl.Task) -> fl.Task:
    """A task of few samples with the same means and second moments of inputs and targets.

    The R of a QR decomposition of [1, X, Y], turned so that its first column is constant.
    """
    whole = np.concatenate([np.ones((task.samples, 1)), task.x, task.y], axis=1)
    r = np.linalg.qr(whole, mode="r")
    rows = len(r)
    turn = np.linalg.qr(np.concatenate([np.ones((rows, 1)), np.eye(rows)[:, 1:]], axis=1))[0]
    r = turn @ r
    r /= r[0, 0]  # the constant: sqrt(P / rows) before
    x, y = r[:, 1 : 1 + task.inputs], r[:, 1 + task.inputs :]
    if np.linalg.norm(x.mean(axis=0)) < 1e-10 * np.linalg.norm(x):
        x = x - x.mean(axis=0)  # zero up to the rounding of the decomposition
    return fl.Task(x, y, name=task.name)


def strengths_beside(task: fl.Task) -> list[float]:
    """The task's five largest singular values at c = 1."""
    return np.asarray(fl.theory.modes(task, 1.0).s[:5]).tolist()


def table(entries: list[dict]) -> str:
    """The table as Markdown."""
    head = [
        "data",
        "first from c: v_0 (condition), bias",
        "residuals: input, target",
        "singular values, c = 1",
    ]
    head += [f"c = {c:g}" for c in SHOWN]
    rows = []
    for e in entries:
        at = [int(np.argmin(abs(STRENGTHS - c))) for c in SHOWN]
        ranks = [
            "none" if e["rank"][k] == 0 else f"{e['rank'][k]} ({e['overlap'][k]:.3f})" for k in at
        ]
        rows.append(
            [
                f"{e['data']} ({e['samples']})",
                f"{e['measured first from']:.4f} ({e['predicted first from']:.4f}), "
                f"{e['bias coordinate first from']:.4f}",
                f"{e['input residual']:.3f}, {e['target residual']:.3f}",
                " ".join(f"{s:.3f}" for s in e["others"]),
                *ranks,
            ]
        )
    return (
        "Rank, and in brackets the overlap, of the mode with the largest overlap with the mean "
        "input v_0 = [c; xbar] / m, and the c from which on it, and the mode with the largest "
        "overlap with the bias coordinate, is first. In brackets what the condition m |ybar| >= "
        "sigma_max(C) says, which decides where both residuals vanish, and need not elsewhere.\n\n"
        + _common.markdown_table(head, rows)
    )


def picture(entries: list[dict], path: Any) -> None:
    """Rank against c: where mean input, bias coordinate and mean target agree, and where not.

    Data on which all three are first at every c are named above.
    """
    shown = [e for e in entries if max(max(e[key]) for key in KINDS) > 1]
    others = [e["data"] for e in entries if e not in shown]
    fig, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True)
    for k, e in enumerate(e for e in shown if agrees(e)):
        look = (DATA[k], *LOOKS[k][1:])
        draw_rank(axes[0], e, "rank", e["data"].split(",")[0], look)
        axes[0].axvline(e["predicted first from"], color=look[0], lw=1.0, linestyle="-")
    (apart,) = (e for e in shown if not agrees(e))
    for (key, label), look in zip(KINDS.items(), LOOKS, strict=True):
        draw_rank(axes[1], apart, key, label, look)
    axes[1].axvline(apart["predicted first from"], color="grey", lw=1.0, linestyle="-")
    axes[0].set_title("centred: mean input, bias, mean target agree", fontsize=11)
    axes[1].set_title(apart["data"], fontsize=11)
    for axis in axes:
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set(xlim=(0, 10), ylim=(10.5, 0.5), yticks=[1, 2, 4, 6, 8, 10])
        axis.set_xticks([0, 0.1, 1, 10], ["0", "0.1", "1", "10"])
        axis.set_xlabel("bias strength c")
        axis.plot([], [], color="grey", lw=1.0, linestyle="-", label="condition")
        axis.legend(loc="upper left", bbox_to_anchor=(0, 0.92))
    axes[0].set_ylabel("rank of the mode that overlaps most\n(1: learned first)")
    if others:
        fig.suptitle(f"first at every c, not shown: {'; '.join(others)}", fontsize=11)
    fig.savefig(path, dpi=130)


def agrees(e: dict) -> bool:
    """Whether one mode has the largest overlap with all three, wherever there is a bias."""
    return all(len({e[key][k] for key in KINDS}) == 1 for k, c in enumerate(e["c"]) if c > 0)


def draw_rank(axis: Any, e: dict, key: str, label: str, look: tuple[str, str, float]) -> None:
    """One rank over c."""
    colour, style, width = look
    ranks = np.where(np.array(e[key]) > 0, e[key], np.nan)
    axis.step(e["c"], ranks, style, color=colour, lw=width, label=label, where="mid")


def main() -> None:
    """Measure, and write table and figure."""
    parser = _common.parser(__doc__)
    parser.add_argument("--redraw", action="store_true", help="the committed numbers, drawn anew")
    given = parser.parse_args()
    with fl.plot.style():
        if given.redraw:
            held = json.loads((_common.RESULTS / "bias_rank.json").read_text())
            picture(held, _common.RESULTS / "bias_rank.png")
            return
    loads: dict[str, Any] = {"digits": fl.tasks.digits}
    if not given.quick:
        loads = {"MNIST": fl.tasks.mnist, "CIFAR-10": fl.tasks.cifar10, **loads}
    entries = []
    for name, load in loads.items():
        for kind, options in (
            ("centred", {}),
            ("standardised", {"center": False, "standardise": True}),
        ):
            entries.append(entry(f"{name}, {kind}", load(**options)))
            print(entries[-1]["data"], entries[-1]["measured first from"], flush=True)
    print(table(entries))
    if not given.quick:
        _common.save("bias_rank", entries, table(entries))
        with fl.plot.style():
            picture(entries, _common.RESULTS / "bias_rank.png")


if __name__ == "__main__":
    main()
