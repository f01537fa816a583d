"""The bias mode: Proposition 1 of the lead paper, with its true conditions."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flowlin._arrays import augment
from flowlin.task import Task


class BiasMode(eqx.Module):
    r"""The mode that learns the mean target, and what the task must fulfil for it.

    The direction is that of the mean augmented input, $v_0 \propto [c; \bar x]$; for one-hot
    inputs this is the paper's $[1; \mathbf 1 / (cP)]$.

    - `u`, `v`: unit output and input direction, (N_out,) and (1 + N_in,), bias coordinate first
      (zero for c = 0).
    - `s`: $\|\Sigma_{yx} v_0\|$; for one-hot inputs $\sqrt{c^2 + 1/P}\, \|\bar y\|$ (Eq. 5).
    - `d`: $v_0^T \Sigma_x v_0$; for one-hot inputs $c^2 + 1/P$.
    - `one_hot`: the inputs are orthonormal, $X X^T = I$, as the proposition assumes.
    - `eigenvector`: v_0 is an eigenvector of Sigma_x. Follows from `one_hot`.
    - `singular`: v_0 is a right singular vector of Sigma_yx. For one-hot inputs this holds iff
      $y_i \cdot \bar y$ is the same for all i, which the proposition leaves out (errata B.6a).
    - `leading`: no singular value of Sigma_yx exceeds s. Not implied by c != 0 (B.6b, B.6c).
    - `rank`: how many singular values exceed s: 0 if leading.
    """

    u: Float[Array, " N_out"]
    v: Float[Array, " N"]
    s: Float[Array, ""]
    d: Float[Array, ""]
    one_hot: Bool[Array, ""]
    eigenvector: Bool[Array, ""]
    singular: Bool[Array, ""]
    leading: Bool[Array, ""]
    rank: Array


def bias_mode(task: Task, bias_strength: float) -> BiasMode:
    """Proposition 1: the bias mode and its conditions, for any inputs.

    **Arguments:**

    - `task`: inputs and targets.
    - `bias_strength`: c; 0 asks what the inputs alone do.

    Predicates hold to a relative rounding of sqrt(eps).
    """
    x = augment(task.x, bias_strength)
    mean = jnp.mean(x, axis=0)
    norm = jnp.linalg.norm(mean)
    # A mean that is zero up to rounding has no direction.
    there = norm > 32 * jnp.finfo(x.dtype).eps * jnp.sqrt(jnp.mean(jnp.sum(x**2, axis=1)))
    v = jnp.where(there, mean / jnp.where(there, norm, 1.0), 0.0)
    syx, sx = task.y.T @ x / task.samples, x.T @ x / task.samples
    response = syx @ v
    s, d = jnp.linalg.norm(response), v @ sx @ v
    tolerance = jnp.sqrt(jnp.finfo(x.dtype).eps)
    values = jnp.linalg.svd(syx, compute_uv=False)

    def parallel(image: Array) -> Array:
        return jnp.linalg.norm(image - v * (v @ image)) <= tolerance * jnp.linalg.norm(image)

    gram = task.x @ task.x.T if task.samples <= task.inputs else jnp.zeros((1, 1), x.dtype)
    identity = jnp.eye(gram.shape[0], dtype=x.dtype)
    return BiasMode(
        u=response / jnp.where(s > 0, s, 1.0),
        v=v,
        s=s,
        d=d,
        one_hot=jnp.max(jnp.abs(gram - identity)) <= tolerance,
        eigenvector=parallel(sx @ v),
        singular=parallel(syx.T @ response),
        leading=s >= values[0] * (1 - tolerance),
        rank=jnp.sum(values > s * (1 + tolerance)),
    )
