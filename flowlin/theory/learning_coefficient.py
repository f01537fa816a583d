"""Singular learning theory: the learning coefficient of deep linear networks."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from flowlin._tools.arguments import checked, integer_from, sequence_of
from flowlin._tools.files import saveable


@saveable()
class LearningCoefficient(NamedTuple):
    r"""How fast the volume of good weights vanishes, $V(\epsilon) \sim \epsilon^\lambda
    (-\log \epsilon)^{m - 1}$: `coefficient` lambda and `multiplicity` m."""

    coefficient: float
    multiplicity: int


@checked(
    widths=sequence_of(integer_from(1), "widths, one per layer of units"), rank=integer_from(0)
)
def learning_coefficient(widths: Sequence[int], rank: int) -> LearningCoefficient:
    r"""The learning coefficient of a deep linear network without biases whose task has some rank.

    It is the real log canonical threshold of $K(W) = \frac12 \|W_L \cdots W_1 - W^*\|_F^2$, or of
    the excess loss of any task whose inputs span the input space, at its most singular solutions.
    For widths $H_1, \ldots, H_{L+1}$ and the rank r of $W^*$ take $M_j = H_j - r$ in ascending
    order and the largest l with $S = M_1 + \cdots + M_{l+1} \ge l M_{l+1}$. With
    $a = S - (\lceil S / l \rceil - 1)\, l$

    $$\lambda = \frac{r (H_1 + H_{L+1}) - r^2}{2} + \frac{a (l - a)}{4 l}
      - \frac{l - 1}{4 l} S^2 + \frac12 \sum_{i < j \le l + 1} M_i M_j, \qquad m = a (l - a) + 1.$$

    Bayesian learning of n samples has the free energy $n L_n + \lambda \log n$ and, with
    normal noise, the generalisation error $\lambda / n$. A regular model has lambda half its number
    of parameters; so has the single layer here.

    **Arguments:**

    - `widths`: units of all layers from the inputs to the outputs, two or more.
    - `rank`: of the task's map, from 0 to the least width.

    **Returns:** `LearningCoefficient`, a named tuple (coefficient, multiplicity).

    **Raises:** `ValueError` for fewer than two widths, or a rank above the least.

    Source: Aoyagi (2024), for two layers Aoyagi and Watanabe (2005); Watanabe (2009).
    """
    if len(widths) < 2:
        raise ValueError(
            f"`widths` must hold two numbers or more, from inputs to outputs, got {tuple(widths)}."
        )
    if rank > min(widths):
        raise ValueError(
            f"`rank` must be at most the least of `widths`, {min(widths)}, got {rank}: no product "
            "of such layers has a higher one."
        )
    spare = sorted(width - rank for width in widths)
    count = max(k for k in range(1, len(spare)) if sum(spare[: k + 1]) >= k * spare[k])
    chosen = spare[: count + 1]
    total = sum(chosen)
    rest = total - (-(-total // count) - 1) * count  # `a`, from 1 to l
    pairs = sum(one * other for one, other in itertools.combinations(chosen, 2))
    # In quarters of l, so that all is integer_from until the end.
    quarters = 2 * count * rank * (widths[0] + widths[-1] - rank) + rest * (count - rest)
    quarters += 2 * count * pairs - (count - 1) * total**2
    return LearningCoefficient(quarters / (4 * count), rest * (count - rest) + 1)
