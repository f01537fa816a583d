r"""The bias mode: Proposition 1 of the lead paper, with its true conditions, for any inputs.

With the means of the augmented inputs and of the targets, $m v_0 = [c; \bar x]$ and $\bar y$, and
the covariance $C = [0, (Y - \bar y)^T X / P]$,

$$\Sigma_{yx} = m\, \bar y\, v_0^T + C, \qquad m^2 = c^2 + \|\bar x\|^2.$$

Where $C v_0 = 0$ (the targets do not vary along the mean input) and $C^T \bar y = 0$ (no input
tells how far the targets are along their mean) the two parts share no direction: the singular
values are $s_0 = m \|\bar y\|$, with $v_0$ and $\bar y / \|\bar y\|$, and those of C. The **bias
mode** is then first iff

$$(c^2 + \|\bar x\|^2)\, \|\bar y\|^2 \geq \sigma_{max}(C)^2.$$

Only $m$ knows c: the two conditions hold for every c or, but for special values of c, for none.

One-hot inputs, $X X^T = I$, have $\|\bar x\|^2 = 1/P$ and $C v_0 = 0$, and C has the singular
values of the centred targets over P: what is left are the errata's conditions, the same
$y_i \cdot \bar y$ for all i, and $(c^2 + 1/P) \|\bar y\|^2 \geq \sigma_{max}(Y_c)^2 / P^2$. For
$Y \geq 0$ the first implies the second, at c = 0 too (Perron and Frobenius). For centred inputs
$m = c$, and a bias mode that is not first at c = 1 can be at c = 10.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flowlin._tools.arguments import checked
from flowlin._tools.arrays import sample_correlation, sample_mean
from flowlin._tools.printing import Summary, format_number, print_by
from flowlin.measures.mode_origin import MODES_ARE
from flowlin.tasks.task import Task, weights_by_sample


def bias_mode_summary(found: "BiasMode") -> Summary:
    """Print strength, variance, rank among the task's modes, and how well conditions hold."""
    if format_number(found.rank) == "0":
        return Summary("BiasMode: none, the inputs' mean is zero and so is c", [])
    conditions = ("input", "target", "eigen", "singular")
    residuals = ", ".join(
        f"{n} {format_number(getattr(found, f'{n}_residual'), 4)}" for n in conditions
    )
    rows = [
        ("rank", f"{format_number(found.rank)}, overlap {format_number(found.overlap, 4)}"),
        ("ties", f"{format_number(found.ties)} of this strength"),
        (
            "margin",
            f"{format_number(found.margin, 4)}, at least 1 from c = "
            f"{format_number(found.first_from)}",
        ),
        ("residuals", f"{residuals}, 0 where conditions hold"),
        ("bias", f"most of it in rank {format_number(found.bias_rank)}"),
        ("mean target", f"most of it in rank {format_number(found.mean_rank)}"),
    ]
    return Summary(f"BiasMode: s = {format_number(found.s)}, d = {format_number(found.d)}", rows)


@print_by(bias_mode_summary)
class BiasMode(eqx.Module):
    r"""The mode that learns the mean target, the conditions that make it one, and its rank.

    The direction is that of the mean augmented input, $v_0 = [c; \bar x] / m$; for one-hot inputs
    the paper's $[1; \mathbf 1 / (cP)]$. It is zero, and there is no bias mode, for centred inputs
    at c = 0 (a mean below eps^(2/3) of the inputs' size counts as zero).

    - `u`, `v`: unit output and input direction, (N_out,) and (1 + N_in,), bias coordinate first
      (zero for c = 0).
    - `s`: $\|\Sigma_{yx} v_0\|$; for one-hot inputs $\sqrt{c^2 + 1/P}\, \|\bar y\|$ (Eq. 5).
    - `d`: $v_0^T \Sigma_x v_0$; for one-hot inputs $c^2 + 1/P$.

    Residuals of the conditions, relative, 0 where they hold:

    - `input_residual`: $\|C v_0\| / \|C\|$.
    - `target_residual`: $\|C^T \bar y\| / \|C\| \|\bar y\|$; for one-hot inputs 0 iff
      $y_i \cdot \bar y$ is the same for all i, which Eq. 4 implies (errata E6a).
    - `eigen_residual`: share of $\Sigma_x v_0$ that is not along v_0; 0 for one-hot inputs.
    - `singular_residual`: share of $\Sigma_{yx}^T \Sigma_{yx} v_0$ that is not along v_0; 0 where
      the first two are.
    - `margin`: $m \|\bar y\| / \sigma_{max}(C)$, the second condition: at least 1. c alone does not
      decide it (E6b, E6c).
    - `first_from`: the c from which `margin` is at least 1; 0 where it always is.

    Where they fail the bias is part of several modes. Measured among the task's modes, with modes
    of equal strength taken as one:

    - `rank`: 1 + the number of modes stronger than the one with the largest overlap with v_0; 0
      if v_0 is zero. `overlap` is that overlap, 1 where v_0 is singular, and `ties` the number of
      modes of this strength: 2 for XOR at c = 0.
    - `bias_rank`, `mean_rank`: likewise for the largest overlap with the bias coordinate and, on
      the output side, with the mean target.
    """

    u: Float[Array, " N_out"]
    v: Float[Array, " N"]
    s: Float[Array, ""]
    d: Float[Array, ""]
    input_residual: Float[Array, ""]
    target_residual: Float[Array, ""]
    eigen_residual: Float[Array, ""]
    singular_residual: Float[Array, ""]
    margin: Float[Array, ""]
    first_from: Float[Array, ""]
    rank: Int[Array, ""]
    overlap: Float[Array, ""]
    ties: Int[Array, ""]
    bias_rank: Int[Array, ""]
    mean_rank: Int[Array, ""]

    def _is_negligible(self, residual: Array) -> Bool[Array, ""]:
        """Tell whether a residual is zero up to sqrt(eps), and there is a bias mode."""
        return (self.rank > 0) & (residual <= jnp.sqrt(jnp.finfo(residual.dtype).eps))

    @property
    def is_eigenvector(self) -> Bool[Array, ""]:
        """Tell whether v_0 is an eigenvector of Sigma_x, up to sqrt(eps)."""
        return self._is_negligible(self.eigen_residual)

    @property
    def is_singular(self) -> Bool[Array, ""]:
        """Tell whether v_0 is a right singular vector of Sigma_yx, up to sqrt(eps)."""
        return self._is_negligible(self.singular_residual)

    @property
    def is_first(self) -> Bool[Array, ""]:
        """Tell whether the second condition holds, `margin` >= 1 up to sqrt(eps).

        Where v_0 is singular by the two conditions this is `rank` == 1. Where it is not, the
        condition compares parts that mix: `rank` and `overlap` say which mode comes first.
        """
        return self._is_negligible(1 - self.margin)


@checked
def bias_mode(task: Task, bias_strength: ArrayLike) -> BiasMode:
    """Return the bias mode of Proposition 1, its conditions and its rank, for any inputs.

    **Arguments:**

    - `task`: inputs and targets.
    - `bias_strength`: c; 0 is for the inputs alone. Under `jax.vmap` over many c the means and
      covariances are computed once.

    **Returns:** `BiasMode`: vectors, the two conditions, the rank among the modes.

    **Raises:** `ValueError` for c that is not a finite number.

    Source: lead paper, Proposition 1 and App. F.1, corrected; derivation in the module.
    """
    x, y, weights = task.x, task.y, weights_by_sample(task, MODES_ARE)
    c = jnp.asarray(bias_strength, x.dtype)
    eps = 32 * jnp.finfo(x.dtype).eps
    mean, target = sample_mean(x, weights), sample_mean(y, weights)
    along = x @ mean
    along_covariance = sample_correlation(along - sample_mean(along, weights), x, weights)
    covariance = sample_correlation(y - target[None], x, weights)
    size = jnp.sqrt(c**2 + jnp.sum(mean**2))
    input_scale = jnp.sqrt(c**2 + sample_mean(jnp.sum(x**2, axis=1), weights))
    output_scale = jnp.sqrt(sample_mean(jnp.sum(y**2, axis=1), weights))
    noise = eps * input_scale * output_scale
    # Means and covariances that are zero up to rounding have no direction.
    zero = jnp.finfo(x.dtype).eps ** (2 / 3)
    there = size > zero * input_scale
    target_there = jnp.linalg.norm(target) > zero * output_scale
    target = jnp.where(target_there, target, 0.0)
    covariance = jnp.where(jnp.linalg.norm(covariance) > noise, covariance, 0.0)

    m = jnp.where(there, size, 1.0)
    v = jnp.where(there, jnp.concatenate([c[None], mean]) / m, 0.0)
    shift = jnp.concatenate([jnp.zeros(1, x.dtype), along_covariance]) / m
    image = jnp.where(there, size**2 * v + shift, 0.0)  # Sigma_x v_0
    response = size * target * there.astype(x.dtype) + covariance @ v[1:]  # Sigma_yx v_0
    s = jnp.linalg.norm(response)
    response = jnp.where(s > noise, response, 0.0)
    syx = jnp.outer(target, jnp.concatenate([c[None], mean])).at[:, 1:].add(covariance)
    u_all, values, vt_all = jnp.linalg.svd(syx, full_matrices=False)
    spread, length = jnp.linalg.norm(covariance), jnp.linalg.norm(target)
    largest = jnp.linalg.norm(covariance, 2)
    unit = target / jnp.where(length > 0, length, 1.0)
    rank, overlap, ties = _overlap_rank(values, vt_all @ v, noise)
    return BiasMode(
        u=_safe_share(response, s),
        v=v,
        s=jnp.linalg.norm(response),
        d=v @ image,
        input_residual=_safe_share(jnp.linalg.norm(covariance @ v[1:]), spread),
        target_residual=_safe_share(jnp.linalg.norm(unit @ covariance), spread),
        eigen_residual=_orthogonal_share(image, v),
        singular_residual=_orthogonal_share(response @ syx, v),
        margin=jnp.where(largest > 0, _safe_share(size * length, largest), jnp.inf),
        first_from=_least_bias_strength(largest, length, jnp.sum(mean**2)),
        rank=jnp.where(there, rank, 0),
        overlap=overlap,
        ties=jnp.where(there, ties, 0),
        bias_rank=jnp.where(c != 0, _overlap_rank(values, vt_all[:, 0], noise)[0], 0),
        mean_rank=jnp.where(target_there, _overlap_rank(values, unit @ u_all, noise)[0], 0),
    )


def _overlap_rank(values: Array, overlaps: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Return rank (from 1), overlap and size of the group of equal values that overlaps most."""
    starts = jnp.concatenate([jnp.ones(1, bool), values[:-1] - values[1:] > noise])
    group = jnp.cumsum(starts) - 1
    shares = jax.ops.segment_sum(overlaps**2, group, num_segments=len(values))
    members = group == jnp.argmax(shares)
    return jnp.argmax(members) + 1, jnp.sqrt(jnp.max(shares)), jnp.sum(members)


def _safe_share(part: Array, whole: Array) -> Array:
    """Return part over whole, 0 where the whole is 0."""
    return part / jnp.where(whole > 0, whole, 1.0)


def _orthogonal_share(image: Array, v: Array) -> Float[Array, ""]:
    """Return the share of `image` that is orthogonal to `v`."""
    return _safe_share(jnp.linalg.norm(image - v * (v @ image)), jnp.linalg.norm(image))


def _least_bias_strength(largest: Array, length: Array, mean_square: Array) -> Array:
    """Return the c of (c^2 + |xbar|^2) |ybar|^2 = sigma_max^2, at least 0; inf for ybar = 0."""
    needed = largest / jnp.where(length > 0, length, 1.0)
    c = jnp.sqrt(jnp.maximum(needed**2 - mean_square, 0.0))
    return jnp.where(length > 0, c, jnp.where(largest > 0, jnp.inf, 0.0))
