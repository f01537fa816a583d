"""Progress bars."""

from typing import Any


def tqdm_bar(total: int | float | None, **options: Any) -> Any:
    """A tqdm bar, silent where standard error is not a terminal.

    **Raises:** `ImportError` if tqdm is missing, saying how to get it.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install 'flowlin[progress]'.") from error
    return tqdm(total=total, disable=None, **options)
