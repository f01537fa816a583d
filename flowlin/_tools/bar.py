"""Progress of long work: bars, and lines for logs."""

from typing import Any, TextIO

import equinox as eqx

from flowlin._tools.checks import checked, positive, refuse


def _stream(name: str, value: Any) -> Any:
    """Something that lines can be written to."""
    if value is not None and not (hasattr(value, "write") and hasattr(value, "flush")):
        raise refuse(name, "None or an open text file", value, "open('run.log', 'a') makes one")
    return value


@checked(every=positive, stream=_stream)
class LogProgress(eqx.Module):
    """A line every so many seconds, for jobs without a terminal: `progress=fl.LogProgress()`.

    It says t, loss (a descent's at its last saved step), steps and their speed, the time that
    passed, and what is left at the speed since the line before; one more line tells the end. It is
    written at the first pause after `every` seconds, so a step that takes longer delays it.

    - `every`: seconds between lines.
    - `stream`: an open text file; None is standard error.
    """

    every: float = 30.0
    stream: TextIO | None = eqx.field(default=None, static=True)


Progress = bool | LogProgress


def bar_or_lines(name: str, value: Any) -> Any:
    """Whether there is a bar or lines of a log."""
    if not isinstance(value, (bool, LogProgress)):
        raise refuse(name, "True, False or fl.LogProgress()", value)
    return value


def tqdm_bar(total: int | float | None, **options: Any) -> Any:
    """A tqdm bar, silent where standard error is not a terminal.

    **Raises:** `ImportError` if tqdm is missing, saying how to get it.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install 'flowlin[progress]'.") from error
    return tqdm(total=total, disable=None, **options)
