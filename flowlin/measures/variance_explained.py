"""Share of a representation's variance that features explain."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, float_array
from flowlin.measures.along import centre_samples, require_representation


@checked(hidden=None)
def variance_explained(hidden: ArrayLike, features: ArrayLike) -> Float[Array, "..."]:
    r"""Return the share of a representation's variance that a regression on features explains.

    $$R^2 = 1 - \frac{\|\tilde H - \tilde X \hat W\|_F^2}{\|\tilde H\|_F^2}, \qquad
      \hat W = \arg\min_W \|\tilde H - \tilde X W\|_F,$$

    with H and X centred over samples (lead paper App. D and Fig. 6D, after Lampinen et al.
    2024; its X~ and Y~ are the centred features and the centred hidden representation, and
    W-hat is the minimiser, not the minimum). In [0, 1]. For features that are orthogonal once
    centred the shares add up: $R^2_{both} = R^2_s + R^2_c$. Collinear features count once.

    **Arguments:**

    - `hidden`: (..., P, H). A constant one has no variance: nan.
    - `features`: (P, q), or (P,) for a single one.

    **Returns:** (...), one share per representation.

    **Raises:** `ValueError` for different numbers of samples.
    """
    hidden, features = (
        centre_samples(require_representation("hidden", hidden)),
        float_array("features", features),
    )
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or features.shape[0] != hidden.shape[-2] or not features.size:
        raise ValueError(
            f"`features` must have one row for each of the {hidden.shape[-2]} samples of `hidden`, "
            f"(P, q) or (P,), got shape {features.shape}."
        )
    u, s, _ = jnp.linalg.svd(centre_samples(features), full_matrices=False)
    # Singular values are cut relative to the features before they are centred: a constant feature,
    # centred, is the rounding of its own size and explains nothing.
    size = jnp.sqrt(jnp.sum(features**2))
    kept = s > max(features.shape) * jnp.finfo(s.dtype).eps * size
    explained = jnp.sum(((u * kept.astype(u.dtype)[None]).T @ hidden) ** 2, axis=(-2, -1))
    return explained / jnp.sum(hidden**2, axis=(-2, -1))
