r"""Coefficients of the second-order Runge-Kutta-Chebyshev method.

With Chebyshev polynomials $T_j$, $w_0 = 1 + \epsilon / s^2$ and $w_1 = T_s'(w_0) / T_s''(w_0)$ the
stability polynomial of stage j is

$$P_j(z) = a_j + b_j T_j(w_0 + w_1 z), \qquad b_j = \frac{T_j''(w_0)}{T_j'(w_0)^2} \;(j \ge 2),
  \qquad b_0 = b_1 = b_2, \qquad a_j = 1 - b_j T_j(w_0),$$

so that $P_s(z) = 1 + z + z^2/2 + O(z^3)$, and $|P_s| \le 1$ on $[-\beta, 0]$ with
$\beta = (1 + w_0) / w_1 \approx 0.653\,(s^2 - 1)$. Source: Sommeijer, Shampine and Verwer (1997),
J. Comput. Appl. Math. 88, 315-326, section 2.
"""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

DAMPING = 2 / 13  # epsilon: |P_s| stays below about 1 - epsilon/3 inside the interval


class Chebyshev(eqx.Module):
    """T_j, T_j' and T_j'' at w0 = 1 + shift, each with its difference to that of j - 1.

    The recurrence T_j = 2 w0 T_{j-1} - T_{j-2} in differences adds positive numbers only, so
    that it holds its digits in float32 too.
    """

    value: Any
    value_step: Any
    first: Any
    first_step: Any
    second: Any
    second_step: Any

    @staticmethod
    def linear(shift: Any) -> "Chebyshev":
        """At j = 1."""
        zero, one = 0 * shift, 1 + 0 * shift
        return Chebyshev(
            value=1 + shift,
            value_step=shift,
            first=one,
            first_step=one,
            second=zero,
            second_step=zero,
        )

    def next(self, shift: Any) -> "Chebyshev":
        """From j to j + 1."""
        value_step = self.value_step + 2 * shift * self.value
        first_step = self.first_step + 2 * shift * self.first + 2 * self.value
        second_step = self.second_step + 2 * shift * self.second + 4 * self.first
        return Chebyshev(
            value=self.value + value_step,
            value_step=value_step,
            first=self.first + first_step,
            first_step=first_step,
            second=self.second + second_step,
            second_step=second_step,
        )

    @property
    def weight(self) -> Any:
        """b_j, for j >= 2."""
        return self.second / self.first**2


@functools.cache
def _tables(max_stages: int) -> tuple[np.ndarray, np.ndarray]:
    """For s = 2 ... max_stages: stretch w1 and stability interval beta."""
    s = np.arange(2, max_stages + 1)
    shift = DAMPING / s**2
    polynomial, stretch = Chebyshev.linear(shift), np.zeros(s.size)
    for j in s:
        polynomial = polynomial.next(shift)
        stretch[j - 2] = (polynomial.first / polynomial.second)[j - 2]
    return stretch, (2 + shift) / stretch


def stretch(stages: Int[Array, ""], max_stages: int, dtype: DTypeLike) -> Float[Array, ""]:
    """w1 of a method with so many stages."""
    return jnp.asarray(_tables(max_stages)[0], dtype)[jnp.clip(stages, 2, max_stages) - 2]


def stability_interval(max_stages: int) -> np.ndarray:
    """Beta for s = 2 ... max_stages: the method is stable for h times the radius up to it."""
    return _tables(max_stages)[1]


def stages_for(reach: Float[Array, ""], max_stages: int) -> Int[Array, ""]:
    """The fewest stages whose interval holds `reach`; max_stages + 1 where none does."""
    limits = jnp.asarray(stability_interval(max_stages), reach.dtype)
    return jnp.searchsorted(limits, reach).astype(jnp.int32) + 2
