r"""Pairs that few below feed: without inputs, or with kinks that samples share.

**Pairs without inputs.** Where all units of a layer are off or at their kinks for a sample, z of
the layers above is zero, whatever their weights, and stays so: such a pair neither moves nor
slides. Its gate is what it becomes when units below rise from their kinks. Let $y \ge 0$ be what
the units at their kinks send. The loss near such a point is $\ell(y)$, piecewise linear, and they
slide with signals $w = -u$ while the origin is a local minimum of $\ell(y) - u \cdot y$:

- along one unit, $-C \ge u$ with its own C (`alone`), pairs above having the signs of its weights;
- between two units, where a pair above, pushed both ways, stays at its kink (`joint_exit`). This
  may fail first: then both rise together, the pair above sliding.

What a rise gives the pairs above is the sign of $\sum_j W_{ij} \dot z_j$ (`push`).

**Shared kinks.** Samples to which the layer below sends nothing share the kink b = 0 of a biased
unit, and samples to which one unit j alone sends something, $h_{jp}$, the kink $W_{ij} = 0$ of an
unbiased unit i. Their gradients are multiples h of one. The flow fixes but $\sum_p h_p u_p$, and
the local loss, $\sum_p C_p h_p$ times what is above zero, gives it the range from zero to $-\sum_p
h_p C_p$, whatever the signs of the C_p. u and C projected on h have these sums, and the range of
each pair is then that of all (`among_sharers`).

Arrays are lists of one (H_l, P) per hidden layer.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flowlin._tools.arrays import Biases, Weights
from flowlin._tools.numerics import dtype_rounding
from flowlin.engine.kinks.sides import ON, SLIDING
from flowlin.networks.network_kinds import ReLUNetwork

LayerArrays = list[Array]


def is_unfed(network: ReLUNetwork, codes: LayerArrays) -> LayerArrays:
    """Tell which pairs have no inputs at these sides."""
    empty = jnp.zeros(codes[0].shape[1], bool)
    found = []
    for k, own in enumerate(codes):
        fed = network.biases[k] is not None or k == 0
        empty = jnp.zeros_like(empty) if fed else empty
        found.append(jnp.broadcast_to(empty, own.shape))
        empty = (empty | jnp.all(own <= SLIDING, axis=0)) & (network.slope == 0)
    return found


def rates_of_unfed(
    weights: Sequence[Array], unfed: LayerArrays, rising: LayerArrays
) -> LayerArrays:
    """Return dz/dt of unfed pairs; see `DeepFlow.push`."""
    below, found = None, []
    for w, unfed_, up in zip(weights, unfed, rising, strict=False):
        own = jnp.zeros_like(up) if below is None else w @ below
        size = jnp.zeros_like(up) if below is None else jnp.abs(w) @ below
        own = jnp.where(jnp.abs(own) > dtype_rounding(own.dtype).slack * size, own, 0.0)
        found.append(jnp.where(unfed_, own, 0.0))
        below = jnp.where(unfed_, jnp.maximum(found[-1], 0.0), up)
    return found


def drive_if_alone(
    weights: Weights,
    biases: Sequence[Array | None],
    drives: LayerArrays,
    gates: LayerArrays,
    error: Float[Array, "N_out P"],
) -> LayerArrays:
    """Return C; where a layer sends nothing for a sample, each unit's as if it rose by itself.

    Units above are then on or off by the signs of the weights alone, whatever the sample.
    """
    found = list(drives)
    for k, gate in enumerate(gates[:-1]):
        if any(b is not None for b in biases[k + 1 :]):
            continue
        sent = weights[k + 1]
        for w in weights[k + 2 :]:
            sent = w @ jnp.maximum(sent, 0.0)
        found[k] = jnp.where(jnp.all(gate == 0, axis=0)[None], sent.T @ error, drives[k])
    return found


def several_in_sample(pairs: LayerArrays) -> LayerArrays:
    """Tell which pairs are of a sample with more than one of these, in whatever layer."""
    count = sum(jnp.sum(own, axis=0) for own in pairs)
    return [jnp.broadcast_to(count > 1, own.shape) for own in pairs]


def among_sharers(
    network: ReLUNetwork,
    gates: LayerArrays,
    inputs: Sequence[Array],
    leads: Sequence[Array],
    values: LayerArrays,
) -> LayerArrays:
    """Project values on the inputs of the samples that share their kinks.

    **Arguments:** `inputs` are those (H_l, P) of all layers but the first, `leads` (P,) marks the
    leaders of the kinks that samples share anyway.
    """
    found = [values[0]]
    layers = zip(network.biases[1:], gates, inputs, leads[1:], values[1:], strict=False)
    for bias, gate, h, leader, own in layers:
        if bias is None:
            alone = jnp.sum(gate != 0, axis=0) == 1
            sent = jnp.where(alone[None] & (gate == 1), h, 0.0)
        else:
            sent = jnp.all(gate == 0, axis=0)[None].astype(own.dtype)
        sent = jnp.where(leader[None], sent, 0.0)
        square = jnp.sum(sent**2, axis=1)  # of each group of samples
        scaled = sent / jnp.where(square > 0, square, 1.0)[:, None]
        shared = jnp.any(sent != 0, axis=0)[None]
        found.append(jnp.where(shared, (own @ scaled.T) @ sent, own))
    return found


def depend_on_each_other(codes: LayerArrays, pairs: LayerArrays, inputs: int) -> LayerArrays:
    """Tell which pairs are of a unit with more of these than it has active inputs."""
    found, most = [], jnp.asarray(inputs)
    for k, own in enumerate(pairs):
        if k:
            active = own.astype(int) @ (codes[k - 1] == ON).astype(int).T  # (H_k, H_below)
            most = jnp.sum(active > 0, axis=1)
        found.append(own & (jnp.sum(own, axis=1) > most)[:, None])
    return found


def any_in_layer(pairs: LayerArrays) -> LayerArrays:
    """Tell whether any pair of the same layer and sample is one of these."""
    return [jnp.broadcast_to(jnp.any(own, axis=0), own.shape) for own in pairs]


def any_above(pairs: LayerArrays) -> LayerArrays:
    """Tell whether any pair of the same sample in a higher layer is one of these."""
    found, above = [], jnp.zeros(pairs[0].shape[1], bool)
    for own in reversed(pairs):
        found = [jnp.broadcast_to(above, own.shape), *found]
        above = above | jnp.any(own, axis=0)
    return found


def joint_exit(
    weights: Weights,
    biases: Biases,
    feeds: LayerArrays,
    u: LayerArrays,
    error: Float[Array, "N_out P"],
) -> tuple[LayerArrays, LayerArrays]:
    r"""Find how far sliding pairs `feeds` are from rising two at a time, and on which ray.

    Loss and pressure along y >= 0 are $\ell(y) - u \cdot y$, which is piecewise linear. Its least
    slope between two of the units is along one of them (`alone`), or where a unit above, pushed
    both ways, stays at its kink: $y \propto (|W_{kj}|, |W_{ki}|)$. Of more than three units in one
    sample the first three are compared, and of several layers above only the first one's kinks.

    **Returns:** $\ell - u \cdot y$ at the lowest such y, whose largest entry is one, for the two
    units it belongs to, else infinity; and y, else zero.
    """
    margins, rays = [], []
    for k, (own, press) in enumerate(zip(feeds, u, strict=True)):
        margin, ray = jnp.full(own.shape, jnp.inf, press.dtype), jnp.zeros(own.shape, press.dtype)
        if k + 1 < len(feeds) and all(b is None for b in biases[k + 1 : -1]):
            margin, ray = _lowest_exit(weights[k + 1 :], own, press, error)
        margins, rays = [*margins, margin], [*rays, ray]
    return margins, rays


def _lowest_exit(
    weights: Sequence[Array], feeds: Array, press: Array, error: Array
) -> tuple[Array, Array]:
    """Return margin and ray (H, P) of the two of a sample's first three units that exit first."""
    order = jnp.where(feeds, jnp.cumsum(feeds, axis=0), 0)  # 1, 2, 3 for the first ones

    def exit_of(first, second):
        two = (order == first).astype(press.dtype), (order == second).astype(press.dtype)
        return _exit_of_two(weights, two, press, error)

    # As a batch: three copies would be compiled at each of the places that ask.
    margins, rays = jax.vmap(exit_of)(jnp.array([1, 1, 2]), jnp.array([2, 3, 3]))
    lowest = jnp.argmin(jnp.min(margins, axis=1), axis=0)[None, None]
    margin, ray = (jnp.take_along_axis(a, lowest, axis=0)[0] for a in (margins, rays))
    return margin, jnp.where(jnp.isfinite(margin), ray, 0.0)


def _exit_of_two(
    weights: Sequence[Array], two: Sequence[Array], press: Array, error: Array
) -> tuple[Array, Array]:
    """Return margin and ray (H, P) of two units of each sample, given as rows of ones and zeros."""
    push = [weights[0] @ one for one in two]  # (K, P)
    torn = push[0] * push[1] < 0
    scale = jnp.where(torn, jnp.maximum(jnp.abs(push[0]), jnp.abs(push[1])), 1.0)
    parts = [jnp.abs(push[1]) / scale, jnp.abs(push[0]) / scale]  # (K, P), of the two
    sent = push[0][:, None] * parts[0][None] + push[1][:, None] * parts[1][None]
    itself = jnp.eye(sent.shape[0], dtype=bool)[:, :, None]
    sent = jnp.maximum(jnp.where(itself, 0.0, sent), 0.0)  # (K', K, P)
    for w in weights[1:-1]:
        sent = jnp.maximum(jnp.tensordot(w, sent, 1), 0.0)
    gain = jnp.einsum("op,okp->kp", error, jnp.tensordot(weights[-1], sent, 1))
    pressed = sum(
        jnp.sum(one * press, axis=0, keepdims=True) * part
        for one, part in zip(two, parts, strict=True)
    )
    margin = jnp.where(torn, -gain - pressed, jnp.inf)
    lowest = jnp.argmin(margin, axis=0)

    def at_lowest(rows):
        return jnp.take_along_axis(rows, lowest[None], axis=0)

    own = (two[0] + two[1]) > 0
    ray = two[0] * at_lowest(parts[0]) + two[1] * at_lowest(parts[1])
    return jnp.where(own, at_lowest(margin), jnp.inf), ray


def any_below(pairs: LayerArrays) -> LayerArrays:
    """Tell whether any pair of the same sample in a lower layer is one of these."""
    return any_above(pairs[::-1])[::-1]


def rank_in_layer(pairs: LayerArrays) -> LayerArrays:
    """Number these pairs among those of the same layer and sample, from 0."""
    return [jnp.cumsum(own, axis=0) - 1 for own in pairs]
