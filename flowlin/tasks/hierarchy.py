"""A semantic tree, whose items are its leaves."""

import math

import numpy as np

from flowlin._tools.arguments import checked, integer_from
from flowlin._tools.memory import require_memory
from flowlin.tasks.task import Task


@checked(levels=integer_from(1), branching=integer_from(2))
def hierarchy(levels: int = 3, branching: int = 2) -> Task:
    """Make the semantic tree (lead paper Fig. 2A; Saxe et al. 2019), whose items are its leaves.

    One-hot inputs, one per leaf; one feature per node of the tree, which is 1 for the leaves below
    that node (the leaf itself and the root included). Three binary levels: 8 inputs, 15 features.

    The paper shows P and Y only as a picture; this tree gives, with c = 1, the singular values
    1.452, 0.331, 0.2165 (twice), 0.125 (four times). Other trees by `levels` and `branching`.

    **Returns:** `Task` of x (P, P) and y (P, nodes), P = branching^levels.

    **Raises:** `ValueError` for levels < 1 or branching < 2, and for more leaves than the memory
    holds.
    """
    number = branching**levels if levels * math.log2(branching) < 64 else 2**64
    needed = 40 * number**2  # inputs and two branches' features, and the mask they are made of
    require_memory("levels", levels, needed, "Take fewer levels or branches")
    leaves = np.arange(number)
    features = [
        leaves[:, None] // branching ** (levels - level) == np.arange(branching**level)
        for level in range(levels + 1)
    ]
    y = np.concatenate(features, axis=1)
    return Task(np.eye(len(leaves)), y.astype(float), name=f"hierarchy {levels} x {branching}")
