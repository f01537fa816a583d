r"""How much of the fall of the loss every unit carries between two switches.

Along a gradient flow $-dL/dt = \sum_w \tau |\dot w|^2$ over all parameters, sliding pairs included
(their velocity is the negative subgradient of least norm), and every parameter of a network with
one hidden layer belongs to one unit or to the readout's bias. So

$$E_{jk} = \int_{t_k}^{t_{k+1}} \tau |\dot w_j|^2 + \tau |\dot a_j|^2\, dt \ge 0,
  \qquad \sum_{jk} E_{jk} = L(0) - L(t_1)$$

with nothing left over. With weight decay L is what is descended, decay included.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flowlin._tools.flat import as_tree
from flowlin.field.gates.fractions import powers, sides_of
from flowlin.field.gates.one_layer import GatedFlow
from flowlin.reading.history import SLIDING, History

# Exact for polynomials of degree 15: the integrand's over a step, whose state has degree 4 or 7.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)


def work(flow: GatedFlow, dense, history: History, slots: int) -> np.ndarray:
    """E (K, H + 1), intervals times units, the readout's bias last; over the steps by Gauss."""
    knots = np.asarray(dense.ts)
    knots = knots[np.isfinite(knots) & (knots > 0) & (knots < history.times[-1])]
    edges = np.unique(np.r_[history.times, knots])
    interval = np.searchsorted(history.times, (edges[:-1] + edges[1:]) / 2) - 1
    codes = history.sides[0][interval]
    # So many panels more, of length zero, that runs of like lengths share a program.
    more = round_up(len(interval)) - len(interval)
    edges = np.r_[edges, np.full(more, edges[-1])]
    codes = np.concatenate([codes, np.repeat(codes[-1:], more, axis=0)])
    panels = _panels(flow, dense, edges[:-1], edges[1:], codes, slots)
    panels = np.asarray(panels)[: len(interval)]
    found = np.zeros((len(history.times) - 1, panels.shape[1]))
    np.add.at(found, interval, panels)
    return found


@eqx.filter_jit
def _panels(flow, dense, starts, ends, codes, slots):
    """The integral over every panel, on which all gates keep their sides."""

    def panel(one):
        start, end, codes = one
        sides = sides_of(flow.kinks, codes, slots)

        def power(node):
            at = start + (end - start) * (1 + node) / 2
            return powers(flow, as_tree(dense.evaluate(at)), sides)

        return (end - start) / 2 * jnp.asarray(WEIGHTS) @ jax.vmap(power)(jnp.asarray(NODES))

    return lax.map(panel, (jnp.asarray(starts), jnp.asarray(ends), jnp.asarray(codes)))


def most_slots(flow: GatedFlow, history: History) -> int:
    """Room for the largest number of kinks on which a unit slides at once, a power of two."""
    slides = (history.sides[0] == SLIDING) & np.asarray(flow.kinks.leads)
    return min(slides.shape[-1], round_up(int(np.max(np.sum(slides, axis=-1)))))


def round_up(number: int) -> int:
    """The least power of two that is not below a number."""
    return 2 ** max(0, int(number) - 1).bit_length()
