"""A contextual task: items in contexts, with properties that hold in all contexts or in one."""

import jax.numpy as jnp
import numpy as np
from _paper import fl


def contextual(contexts: int, levels: int = 3) -> fl.Task:
    """Every item of the hierarchy in every context (after Jarvis et al. 2024, Fig. 3).

    Inputs are one-hot codes of the item and of the context, side by side; samples are in the
    order of contexts, then items. The first block of outputs are the item's properties in the
    hierarchy, the same in all contexts. Each further block belongs to one context: there it has
    the properties of a hierarchy of other items, elsewhere zero.
    """
    y = np.asarray(fl.tasks.hierarchy(levels=levels).y)
    items = len(y)
    blocks = [y[np.random.default_rng(c).permutation(items)] for c in range(contexts)]
    codes = np.eye(contexts)
    x = np.concatenate([np.c_[np.eye(items), np.tile(codes[c], (items, 1))]
                        for c in range(contexts)])  # fmt: skip
    own = np.concatenate([np.kron(codes[c], blocks[c]) for c in range(contexts)])
    return fl.Task(jnp.asarray(x), jnp.asarray(np.c_[np.tile(y, (contexts, 1)), own]),
                   name=f"{contexts} contexts")  # fmt: skip
