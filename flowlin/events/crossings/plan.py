"""How each watched function is looked at within a step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flowlin.events.observer import Observer
from flowlin.events.step_path import Path
from flowlin.events.watched import OrderStatistic

LEAST = 5  # points per step, both ends included, at which anything but a monotone value is looked


class Plan(NamedTuple):
    """The watches, by number, according to how they are looked at.

    - `ends`: what is monotone, at the step's ends alone.
    - `counted`: order statistics of polynomials, in groups of the same polynomials.
    - `exact`: polynomials that are sampled together with others.
    - `apart`: polynomials that are sampled by themselves, by the number of nodes that it takes.
    - `smooth`: all others.
    - `points`: nodes at which `exact` and `smooth` are sampled.
    """

    ends: list[int]
    counted: list[list[int]]
    exact: list[int]
    apart: dict[int, list[int]]
    smooth: list[int]
    points: int

    @staticmethod
    def of(observer: Observer, path: Path) -> "Plan":
        """For the steps of a solver, of which `path` is one.

        A polynomial of degree k in the parameters is one of degree k p in time where the dense
        output has degree p, so k p + 1 nodes tell all of it.
        """
        ends, exact, smooth, points = [], [], [], LEAST
        groups: dict[tuple[int, int], list[int]] = {}
        apart: dict[int, list[int]] = {}
        network, times = observer.network, jax.ShapeDtypeStruct((1,), jnp.result_type(path.t0))
        for i, watch in enumerate(observer.watches):
            function = watch.function
            behind = function.preactivations if isinstance(function, OrderStatistic) else function
            degree = behind.degree(network)
            if watch.monotone:
                ends.append(i)
            elif degree is None or path.degree is None:
                smooth.append(i)
            elif isinstance(function, OrderStatistic):
                rows = function.preactivations
                groups.setdefault((rows.end, rows.layer), []).append(i)
            elif jax.eval_shape(lambda t, f=function: f.sampled(network, path, t), times) is None:
                exact.append(i)
                points = max(points, degree * path.degree + 1)
            else:
                apart.setdefault(degree * path.degree + 1, []).append(i)
        return Plan(ends, list(groups.values()), exact, apart, smooth, points)

    @property
    def together(self) -> list[int]:
        """What is sampled together, besides the order statistics' polynomials."""
        return sorted(self.exact + self.smooth)

    @property
    def polynomials(self) -> list[tuple[int, list[int]]]:
        """What is exact, with the number of nodes at which it is sampled."""
        return [(self.points, self.exact)][: len(self.exact)] + list(self.apart.items())
