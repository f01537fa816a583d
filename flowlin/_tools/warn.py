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


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line of the user's that called into the library.

    Frames of flowlin, and of the packages that it calls through, are passed over, however many.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PASSED_THROUGH):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
