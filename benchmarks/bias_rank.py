"""Where the bias mode ranks among the modes of real images, by bias strength.
See: on centred images it climbs from mode to mode, and is the first where the condition (grey)
says. On standardised CIFAR-10 the mode of the mean input is the first at every c, and that of the
bias coordinate is so from a larger c on than the condition says.

    python benchmarks/bias_rank.py [--quick]

Proposition 1 says that the bias mode comes first; on images that takes a bias strength c that is
large enough (`theory.bias_mode`). For all images of MNIST and CIFAR-10 (grayscale) and for
scikit-learn's digits, centred by pixel or standardised by one mean and deviation, this
measures the rank of the mode with the largest overlap with the mean input [c; xbar], with the bias
coordinate and with the mean target, for c from 0 to 10; the c from which it is first, by bisection;
and what the two conditions say. Writes `bias_rank.json`, `bias_rank.md` and `bias_rank.png` to
`benchmarks/results/`. Needs the image files (see the README); `--quick` takes the digits alone.
"""

import functools
from typing import Any

import _common
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flowlin as fl

STRENGTHS = np.unique([*np.linspace(0, 10, 101), 0.01, 0.03])
SHOWN = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0, 10.0)


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
    """Rank against c: by the mean input, the bias coordinate and the mean target.

    Data on which all three are first at every c have no panel, and are named above.
    """
    kinds = (
        ("rank", "mean input [c; xbar]", "#56B4E9", "-", 4.0),
        ("bias rank", "bias coordinate", "black", "--", 2.0),
        ("mean rank", "mean target", "#CC79A7", ":", 2.0),
    )
    shown = [e for e in entries if max(max(e[key]) for key, *_ in kinds) > 1]
    others = [e["data"] for e in entries if e not in shown]
    fig, axes = plt.subplots(-(-len(shown) // 2), 2, figsize=(9, 6.4), sharey=True, squeeze=False)
    for axis, e in zip(axes.flat, shown, strict=False):
        for key, label, colour, style, width in kinds:
            ranks = np.where(np.array(e[key]) > 0, e[key], np.nan)
            axis.step(e["c"], ranks, style, color=colour, lw=width, label=label, where="mid")
        axis.axvline(e["predicted first from"], color="grey", lw=1.2, linestyle="-",
                     label="condition holds from")  # fmt: skip
        axis.set_title(e["data"], fontsize=11)
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set(xlim=(0, 10), ylim=(10.5, 0.5), yticks=[1, 2, 4, 6, 8, 10])
        axis.set_xticks([0, 0.1, 1, 10], ["0", "0.1", "1", "10"])
    for axis in axes[-1]:
        axis.set_xlabel("bias strength c")
    for axis in axes[:, 0]:
        axis.set_ylabel("rank of the mode that\noverlaps most with ...")
    axes[0, 0].legend(loc="upper left", bbox_to_anchor=(0.0, 0.9))
    if others:
        fig.suptitle(f"first at every c, not shown: {'; '.join(others)}", fontsize=11)
    fig.savefig(path, dpi=130)


def main() -> None:
    """Measure, and write table and figure."""
    given = _common.parser(__doc__).parse_args()
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
