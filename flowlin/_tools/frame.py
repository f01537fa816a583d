"""Tables for pandas, which is optional."""

from collections.abc import Sequence
from typing import Any


def data_frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> Any:
    """A `pandas.DataFrame` of the rows, with these columns even where there are none.

    **Raises:** `ImportError` if pandas is missing, which says how to get it.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("`to_pandas` needs pandas: pip install 'flowlin[pandas]'.") from error
    return pandas.DataFrame(rows, columns=list(columns))
