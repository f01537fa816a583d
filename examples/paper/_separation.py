"""How the hidden representations of the tree's items separate (M Fig. 2E)."""

from typing import Any

import numpy as np
from _paper import fl

KINDS = (("linear", 1.0), ("relu", 1.0), ("relu", 0.0))  # as the paper's three panels


def splits(flow: fl.Trajectory) -> np.ndarray:
    """When the distances within pairs of siblings, of cousins, and across the root are half grown.

    And how far siblings are apart, as a share of their final distance, when the root has split.
    """
    hidden = fl.measures.along(flow, fl.measures.hidden)
    apart = np.asarray(fl.measures.distances(hidden))
    k = np.arange(apart.shape[1])
    near = [k[:, None] // 2**n == k // 2**n for n in range(4)]
    curves = [apart[:, near[n + 1] & ~near[n]].mean(axis=1) for n in range(3)]
    half = [_first(flow.ts, curve, 0.5 * curve[-1]) for curve in curves]
    return np.array([*half, np.interp(half[2], flow.ts, curves[0]) / curves[0][-1]])


def _first(ts: Any, curve: np.ndarray, level: float) -> float:
    """First time at which a saved curve reaches a level, interpolated."""
    ts, k = np.asarray(ts), int(np.argmax(curve >= level))
    if k == 0:
        return float(ts[0])
    return float(np.interp(level, curve[k - 1 : k + 1], ts[k - 1 : k + 1]))
