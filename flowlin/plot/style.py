"""The looks of pictures: one colour and line style per kind of network, clear without colour."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.cbook import normalize_kwargs
from matplotlib.colors import is_color_like, to_hex, to_rgb
from matplotlib.lines import Line2D

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    Check,
    argument_error,
    boolean,
    checked,
    index_from_zero,
    instance_of,
    integer_from,
    number_where,
    sequence_of,
    string,
)
from flowlin._tools.arguments import real_array as numbers
from flowlin._tools.memory import require_memory
from flowlin.networks.graph import AbstractGraph
from flowlin.networks.network_kinds import GatedLinearNetwork, LinearNetwork, ReLUNetwork
from flowlin.record.trajectory import Trajectory

# ---- What pictures are made of, as `flowlin._tools.arguments` checks it.

require_axes = instance_of(
    Axes, "matplotlib Axes", "make them by plt.subplots(), or leave them out"
)


def require_colour(name: str, value: object) -> object:
    """Accept a colour in any way that matplotlib knows."""
    if not is_color_like(value):
        raise argument_error(
            name, "a colour that matplotlib knows", value, 'such as "C0" or "#D55E00"'
        )
    return value


def name_or_number(name: str, value: object) -> str:
    """Accept a name of one thing among many, a string or a number, as a string."""
    return str(value) if isinstance(value, int) else string(name, value)


def dictionary_of(what: str) -> Check:
    """Make a check for a dictionary that is not empty; `what` says what of."""

    def check_dictionary(name: str, value: object) -> object:
        if not isinstance(value, Mapping):
            raise argument_error(name, f"a dictionary, {what}", value)
        if not value:
            raise ValueError(f"`{name}` is empty; give at least one, as {what}.")
        return value

    return check_dictionary


def some_of(known: tuple[str, ...]) -> Check[tuple[str, ...]]:
    """Make a check for some of a few words, at least one."""

    def check_words(name: str, value: object) -> tuple[str, ...]:
        given: tuple[object, ...] = (value,)
        if isinstance(value, Iterable) and not isinstance(value, str):
            given = tuple(value)
        words = tuple(word for word in given if isinstance(word, str) and word in known)
        if not given or len(words) < len(given):
            raise ValueError(f"`{name}` must be some of {known}, got {given}.")
        return words

    return check_words


def tuple_of(count: int, check: Check, wanted: str) -> Check:
    """Make a check for a tuple of so many."""

    def check_items(name: str, value: object) -> tuple:
        found = sequence_of(check, wanted)(name, value)
        if len(found) != count:
            raise argument_error(name, wanted, value)
        return found

    return check_items


indices = sequence_of(index_from_zero, "a list of whole numbers counted from 0")
texts = sequence_of(name_or_number, "a list of names")
colours = sequence_of(require_colour, "a list of colours")
low_and_high = tuple_of(2, number_where("a number", lambda value: True), "two numbers, (low, high)")

CHECKS_BY_NAME["ax"] = require_axes
CHECKS_BY_NAME["colour"] = require_colour
CHECKS_BY_NAME["label"] = string


# Colours of Okabe and Ito (2008), which the colour-blind tell apart; one per kind everywhere.
COLOURS = {
    "relu": "#D55E00",
    "linear": "#0072B2",
    "gated": "#009E73",
    "descent": "#56B4E9",
    "theory": "#000000",
    "other": "#AA4499",  # Tol's: the last one of Okabe and Ito is too pale for lighter tones
}
# For what has no kind: items, contenders.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"
TONES = 3  # of one kind's colour; a fourth would hardly be seen on white
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 1)))

_KINDS: dict[str, Any] = {
    "relu": ReLUNetwork,
    "linear": LinearNetwork,
    "gated": (GatedLinearNetwork, AbstractGraph),
}
_LINES: dict[str, Any] = {
    "relu": {"linestyle": "-", "linewidth": 1.8},
    "linear": {"linestyle": (0, (7, 1.5)), "linewidth": 1.8},
    "gated": {"linestyle": "-.", "linewidth": 1.8},
    "other": {"linestyle": (0, (5, 1, 1, 1, 1, 1)), "linewidth": 1.8},
    "descent": {"linestyle": "-", "linewidth": 0.8},
    "theory": {"linestyle": (0, (1.2, 1.4)), "linewidth": 2.0, "zorder": 3},
}
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.labelsize": 10,
    "axes.prop_cycle": cycler(color=CYCLE[:6]) + cycler(linestyle=DASHES[:6]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "figure.figsize": (4.5, 3.2),
    "font.size": 10,
    "image.cmap": "cividis",
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 200,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def style() -> AbstractContextManager[None]:
    """Return a context in which figures look as in the project: `with fl.plot.style(): ...`.

    Line styles change along with the colours, so that curves stay apart in print without colour.
    matplotlib's settings are as before when it ends.

    **Returns:** a context manager, for `with`.
    """
    return matplotlib.rc_context(_STYLE)


def kind_of(network: object) -> str:
    """Return a network's key of `COLOURS`: relu, linear, gated, or other than flowlin's own."""
    return next((kind for kind, cls in _KINDS.items() if isinstance(network, cls)), "other")


def is_descent(run: Trajectory) -> bool:
    """Tell whether a trajectory is discrete."""
    return run.discrete


def _require_kind(name: str, value: object) -> str:
    """Accept a key of `COLOURS`."""
    if not isinstance(value, str) or value not in COLOURS:
        raise ValueError(f"`{name}` = {value!r} is unknown; choose one of {sorted(COLOURS)}.")
    return value


@checked(kind=_require_kind, n=index_from_zero, points=boolean)
def look(kind: str, n: int = 0, *, points: bool = False) -> dict[str, Any]:
    """Return keywords of `Axes.plot` for the n-th curve of a kind.

    **Arguments:**

    - `kind`: a key of `COLOURS`; it sets colour and line style.
    - `n`: 0, 1, ...; the second and third curve of a kind are lighter and carry hollow markers,
      sparse ones where `markevery` is given. Every three more have these tones again, and filled
      markers.
    - `points`: hollow markers without a line, as runs of descent are drawn beside flows.

    **Returns:** a dictionary of keywords, for `ax.plot(x, y, **look)`.

    **Raises:** `ValueError` for an unknown kind.
    """
    colour = _mix_colours(COLOURS[kind], "white", 1 - 0.65 ** (n % TONES))
    marker = MARKERS[(n + list(COLOURS).index(kind)) % len(MARKERS)]
    found = {"color": colour, **_LINES[kind]}
    if points:
        found |= {"linestyle": "none"}
    if points or n:
        face, size = ("white", 4.0) if points or n < TONES else (colour, 5.5)
        found |= {"marker": marker, "markersize": size, "markerfacecolor": face}
    return found


def override_look(look_: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `Axes.plot` with the user's in their place; `lw` is `linewidth`.

    **Raises:** `ValueError` for keywords or values that are none of a line.
    """
    try:
        found = {**look_, **normalize_kwargs(dict(given), Line2D)}
        Line2D([], [], **found)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"`look` must hold keywords of Axes.plot: {error}.") from None
    return found


def _colour_or_kind(name: str, value: object) -> object:
    """Accept a colour, or a key of `COLOURS`."""
    return value if isinstance(value, str) and value in COLOURS else require_colour(name, value)


@checked(colour=_colour_or_kind, number=integer_from(0))
def shades(colour: str, number: int) -> list[str]:
    """Return `number` shades of a colour or a kind's colour, dark to light, for many curves.

    **Returns:** `number` colours as hexadecimal words.
    """
    require_memory("number", number, 128 * number, "Take fewer")
    base = COLOURS.get(colour, colour)
    half = np.linspace(-0.5, 0.45, number) if number > 1 else np.zeros(1)
    return [_mix_colours(base, "black" if x < 0 else "white", abs(x)) for x in half]


def _mix_colours(colour: str, other: str, share: float) -> str:
    """Mix two colours; `share` is that of the other."""
    mixed = (1 - share) * np.asarray(to_rgb(colour)) + share * np.asarray(to_rgb(other))
    return to_hex(tuple(mixed))


# ---- What every picture needs: Axes, arrays of the right shape, the label of the time axis.

Data = Array | np.ndarray | Sequence[Any]

TIME_LABEL = r"flow time $t$ (units of $\tau$)"


def axes_or_new(ax: Axes | None, **subplot: Any) -> Axes:
    """Return the given Axes, or those of a new figure."""
    if ax is not None:
        return ax
    return plt.figure(layout="constrained").add_subplot(**subplot)


def array_of_shape(name: str, value: Data, shape: str) -> np.ndarray:
    """Return `value` as an array with the axes that `shape` names, such as "T P 2".

    A number in `shape` must be met; so must equal letters, if `value` has them twice.

    **Raises:** `ValueError` for what holds no numbers, is empty, or has another shape.
    """
    found, wanted = np.asarray(numbers(name, value)), shape.split()
    fits = found.ndim == len(wanted) and all(
        not want.isdigit() or int(want) == size
        for want, size in zip(wanted, found.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must have shape ({', '.join(wanted)}), got {found.shape}; reshape it."
        )
    if not found.size:
        raise ValueError(f"`{name}` is empty: its shape is {found.shape}.")
    return found


def time_label(run: Trajectory) -> str:
    """Return the label of the time axis; a run with another tau than 1 has its unit of time."""
    if run.tau.ndim or np.isnan(run.tau):  # one per layer, or a function of time
        return r"flow time $t$"
    tau = float(run.tau)
    return TIME_LABEL if tau == 1 else rf"flow time $t$ ($\tau$ = {tau:g})"


def draw_legend(ax: Axes, **place: Any) -> None:
    """Draw a legend, if anything has a label."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(framealpha=0.85, edgecolor="none", fontsize="small", **place).set_zorder(6)


def draw_band(ax: Axes, x: Data, rows: np.ndarray, **look: Any) -> None:
    """Draw the mean of rows (R, N) over x (N,) with a band of one standard error, without NaNs."""
    kept = np.ma.masked_invalid(rows)
    mean = kept.mean(axis=0)
    (line,) = ax.plot(np.asarray(x), mean.filled(np.nan), **look)
    if len(rows) > 1:
        error = kept.std(axis=0, ddof=1) / np.sqrt(np.maximum(kept.count(axis=0), 1))
        low, high = (mean - error).filled(np.nan), (mean + error).filled(np.nan)
        ax.fill_between(np.asarray(x), low, high, color=line.get_color(), alpha=0.2, linewidth=0)
