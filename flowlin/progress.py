"""Progress bars."""

import diffrax


def progress_meter(
    progress: bool | diffrax.AbstractProgressMeter,
) -> diffrax.AbstractProgressMeter:
    """The diffrax meter for `progress=`: a tqdm bar for True.

    **Raises:** `ImportError` if tqdm is missing.
    """
    if isinstance(progress, diffrax.AbstractProgressMeter):
        return progress
    if not progress:
        return diffrax.NoProgressMeter()
    tqdm_class()
    return diffrax.TqdmProgressMeter()


def tqdm_class():
    """tqdm's bar, or an error that says how to get it."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install 'flowlin[progress]'.") from error
    return tqdm
