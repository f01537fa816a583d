"""A single linear layer: gradient flow of linear regression."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arrays import as_float_array, with_axes
from flowlin._tools.numerics import decay_integral
from flowlin.theory.closed_form import closed_form


@closed_form(axes={"w0": 2, "s_yx": 2, "s_x": 2})
@jax.jit
def single_layer(
    t: ArrayLike, w0: ArrayLike, s_yx: ArrayLike, s_x: ArrayLike, *, tau: ArrayLike = 1.0
) -> Float[Array, "... N_out N_in"]:
    r"""Return the weights W(t) of one linear layer, $\tau \dot W = \Sigma_{yx} - W \Sigma_x$.

    $$W(t) = W_0\, e^{-\Sigma_x t / \tau} + \Sigma_{yx} \int_0^{t / \tau} e^{-\Sigma_x s} ds,$$

    the integral being $\Sigma_x^+ (1 - e^{-\Sigma_x t / \tau})$ where the inputs vary. Elsewhere
    W stays; $\Sigma_{yx}$ vanishes there, as the correlation of any data does.

    **Arguments:**

    - `t`: times of any shape, >= 0, inf allowed.
    - `w0`: W at t = 0, (N_out, N_in). With a bias [b, W], and moments of the inputs [c; x].
    - `s_yx`, `s_x`: $Y^T X / P$, (N_out, N_in), and $X^T X / P$, (N_in, N_in), of any rank.
    - `tau`: time constant.

    Differentiable in t, w0, s_yx and tau; in s_x where its eigenvalues differ.

    **Returns:** (..., N_out, N_in), with the axes of `t` in front.

    **Raises:** `ValueError` for shapes that do not fit.

    Source: linear regression; the per-mode form is Saxe et al. (2014), shallow network.
    """
    w0, s_yx, s_x = (as_float_array(z) for z in (w0, s_yx, s_x))
    if w0.shape != s_yx.shape or s_x.shape != (w0.shape[1],) * 2:
        raise ValueError(
            f"`w0` {w0.shape}, `s_yx` {s_yx.shape} and `s_x` {s_x.shape} must be (N_out, N_in), "
            "(N_out, N_in) and (N_in, N_in)."
        )
    t = jnp.asarray(t, s_x.dtype) / tau
    d, v = jnp.linalg.eigh(s_x)
    info = jnp.finfo(s_x.dtype)
    varies = d > d.shape[0] * info.eps * d[-1]
    varies, d = (with_axes(a, t.ndim) for a in (varies, jnp.where(varies, d, 0.0)))
    # Finite times at which every direction has arrived.
    arrived = 1 / (info.eps * jnp.where(varies, d, 1.0))
    times = jnp.minimum(t[..., None], arrived)
    gain = jnp.where(varies, decay_integral(d, times), 0.0)[..., None, :]
    start, driven = (with_axes(w @ v, t.ndim) for w in (w0, s_yx))
    return (start * jnp.exp(-d * times)[..., None, :] + driven * gain) @ v.T
