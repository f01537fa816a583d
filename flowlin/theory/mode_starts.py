"""Where two-layer modes start: strengths and imbalances of a network's modes."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked
from flowlin._tools.numerics import default_floats, safe_sqrt
from flowlin.measures.mode_origin import require_origin
from flowlin.measures.modes import Modes, mean_over_equal
from flowlin.networks.network_kinds import AbstractNetwork
from flowlin.theory.closed_form import closed_form


@closed_form(axes={"p": 1, "q": 1})
def imbalance(p: ArrayLike, q: ArrayLike) -> Float[Array, "..."]:
    r"""Imbalance $|\lambda| = \|p + q\| \|p - q\|$ of hidden vectors (..., H), conserved, (...).

    $\lambda^2 = (\|p\|^2 - \|q\|^2)^2 + 4 (\|p\|^2 \|q\|^2 - (p \cdot q)^2)$: the difference of the
    two sides' norms, and the area between them where they are not parallel. With it and
    $a_0 = p \cdot q$ the strength of the mode is that of a scalar one.

    **Returns:** $|\lambda|$, (...), never negative.

    **Raises:** `ValueError` for hidden vectors of different size.
    """
    p, q = default_floats(p, q)
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"`p` and `q` must have the same last axis, the hidden units; got {p.shape} and "
            f"{q.shape}."
        )
    return safe_sqrt(jnp.sum((p + q) ** 2, axis=-1)) * safe_sqrt(jnp.sum((p - q) ** 2, axis=-1))


@checked
def balanced_strength(network: AbstractNetwork, modes: Modes) -> Float[Array, " K"]:
    r"""Balanced part of a two-layer network's mode strengths, $\frac14 \|W_2^T u + W_1 v\|^2$.

    The a0 to start the closed forms from. The raw strength $u^T W_2 W_1 v$ of a random
    initialisation is negative for about half of the modes, and Eq. 7 then blows up; the balanced
    part is what grows. With a bias, W_1 is [b, W_1]. Equal modes have the mean of theirs.

    **Returns:** (K,), never negative.

    **Raises:** `ValueError` for a network that has not exactly one hidden layer, or modes of
    another c.
    """
    if len(network.weights) != 2 or network.biases[1] is not None:
        raise ValueError("`balanced_strength` needs one hidden layer and no bias on the readout.")
    w1, b1 = network.weights[0], network.biases[0]
    require_origin(modes, network)
    if modes.bias_strength:
        w1 = jnp.concatenate([b1[:, None], w1], axis=1)  # pyright: ignore
    halves = (network.weights[1].T @ modes.u + w1 @ modes.v) / 2
    return mean_over_equal(jnp.sum(halves**2, axis=0), modes.equal)


@checked
def mode_starts(
    network: AbstractNetwork, modes: Modes, *, check: bool = True
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    r"""Strength $a_0 = p \cdot q$ and imbalance of a two-layer network's modes, (K,) each.

    What a `theory.Mode` starts from, of the hidden vectors $p = W_2^T u$ and $q = W_1 v$. Of equal
    modes squares and products are means over the group, which no basis changes:
    $\lambda^2 = \langle \|p + q\|^2 \rangle \langle \|p - q\|^2 \rangle$.

    **Returns:** the strengths (K,) and the imbalances (K,).

    **Raises:** `ValueError` for a network that has not exactly one hidden layer, and for modes of
    another c, unless `check=False`.
    """
    p, q = modes.hidden_vectors(network, check=check)
    plus, minus, strength = (
        mean_over_equal(jnp.sum(a * b, axis=1), modes.equal)
        for a, b in ((p + q, p + q), (p - q, p - q), (p, q))
    )
    return strength, safe_sqrt(plus) * safe_sqrt(minus)
