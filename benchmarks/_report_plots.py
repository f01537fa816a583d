"""Work-precision plots of the entries of `peers.json`."""

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Per library: a colour of Okabe and Ito's, a line style; per method of it: a marker.
STYLES = {
    "flowlin": ("#000000", "-"),
    "diffrax": ("#0072B2", "--"),
    "scipy": ("#E69F00", "-."),
    "CVODE": ("#009E73", ":"),
    "torchdiffeq": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
    "descent,": ("#D55E00", (0, (1, 1))),
}
MARKERS = "os^Dv"


def style(name: str, names: list[str]) -> dict[str, Any]:
    """How a contender is drawn."""
    library = name.split()[0]
    colour, line = STYLES[library]
    place = [other for other in names if other.split()[0] == library].index(name)
    ours = library == "flowlin"
    return {
        "color": colour,
        "linestyle": line,
        "marker": MARKERS[place % len(MARKERS)],
        "markerfacecolor": colour if place == 0 else "white",
        "linewidth": 2.4 if ours else 1.4,
        "markersize": 7 if ours else 6,
        "zorder": 3 if ours else 2,
    }


def points(contender: dict, unit: str) -> list[tuple[float, float]]:
    """(error, work) of the runs that have both, from loose to tight."""
    rows = [r for r in contender["tried"] if r.get("error") and r.get(unit)]
    return [(r["error"], r[unit]) for r in rows if r["error"] < 0.5]


def work_precision(entry: dict, path: pathlib.Path) -> None:
    """Error against evaluations and against seconds, side by side."""
    names = [c["name"] for c in entry["contenders"]]
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.4), sharey=True, layout="constrained")
    for axis, unit in zip(axes, ("evaluations", "seconds"), strict=True):
        for contender in entry["contenders"]:
            found = points(contender, unit)
            if found:
                errors, work = zip(*found, strict=True)
                look = style(contender["name"], names)
                axis.loglog(work, errors, label=contender["name"], **look)
        for target in entry["targets"]:
            axis.axhline(target, color="0.75", linewidth=0.8, zorder=1)
        others = [c for c in entry["contenders"] if not c["name"].startswith("descent")]
        work = [w for c in others for _, w in points(c, unit)]
        axis.set_xlim(min(work) / 2, 20 * max(work))  # descent may leave on the right
        axis.grid(True, which="major", color="0.92", linewidth=0.6)
        axis.set_xlabel("evaluations of the field" if unit == "evaluations" else "seconds")
        axis.tick_params(labelsize=11)
        axis.xaxis.label.set_size(12)
    what = "largest relative error of a hitting time" if entry["events"] else "relative error"
    axes[0].set_ylabel(what if entry["events"] else f"{what} of the parameters", fontsize=12)
    figure.suptitle(entry["title"], fontsize=13)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= {h.get_label(): h for h in axis.get_legend_handles_labels()[0]}
    shown = [name for name in names if name in handles]
    figure.legend(
        [handles[name] for name in shown], shown, loc="outside lower center", ncols=4,
        fontsize=10.5, handlelength=3.2, frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=100)
    plt.close(figure)
