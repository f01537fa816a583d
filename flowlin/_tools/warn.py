"""Warnings that point at the line of the user's own code."""

import os
import sys
import warnings

import diffrax
import equinox
import jax
import jax.core
import jaxtyping

LIBRARY = os.path.dirname(os.path.dirname(__file__))  # all of its rooms
PASSED_THROUGH = (
    LIBRARY + os.sep,
    *(os.path.dirname(m.__file__ or "") + os.sep for m in (diffrax, equinox, jax, jaxtyping)),
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at whoever called into the library, however many calls ago."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PASSED_THROUGH):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
