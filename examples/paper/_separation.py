"""How the hidden representations of the tree's items separate (M Fig. 2E)."""

from typing import Any

import numpy as np
from _judge import SHARES, TIMES, both, interval, more, same, share, usual, verdict
from _paper import Row, fl

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


def rows(found: dict[tuple[str, float], np.ndarray]) -> list[Row]:
    """Verdicts on `splits`, (seeds, 4), of all `KINDS`."""
    linear, biased, bare = (found[key] for key in KINDS)
    ordered = (biased[:, 2] < biased[:, 1]) & (biased[:, 1] < biased[:, 0])
    late, late0 = biased[:, 0] / biased[:, 2], bare[:, 0] / bare[:, 2]
    return [
        Row(
            "With bias, ReLU representations emerge in the tree's order, siblings together, in "
            "excellent agreement with linear networks",
            "M Fig. 2E, Sec. 4; W Fig. 2B",
            f"distances half grown across the root at {biased[:, 2].mean():.3g}, cousins "
            f"{biased[:, 1].mean():.3g}, siblings {biased[:, 0].mean():.3g} (linear: "
            f"{', '.join(f'{v:.3g}' for v in linear[:, 2::-1].mean(axis=0))}), in this order in "
            f"{share(ordered)}; siblings then have {interval(biased[:, 3])} of their final "
            f"distance, linear {interval(linear[:, 3])} ({SHARES}), without bias "
            f"{interval(bare[:, 3])}",
            verdict(both(usual(ordered), same(biased[:, 3] - linear[:, 3], SHARES))),
        ),
        Row(
            "Without bias, classes separate almost from the very beginning",
            "M Fig. 2E, Sec. 4; W Fig. 2B",
            f"siblings' distance is half grown {interval(late0)} times as late as the root's (not "
            f"apart: less than {1 + TIMES.apart:g}), with bias {interval(late)}; when the root has "
            f"split, siblings have {interval(bare[:, 3])} of their final distance, with bias "
            f"{interval(biased[:, 3])}",
            verdict(both(more(1 + TIMES.apart, late0), more(bare[:, 3], biased[:, 3]))),
        ),
    ]
