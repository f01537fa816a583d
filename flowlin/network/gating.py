"""Gates that are functions of the inputs: half-spaces and clusters."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from flowlin._tools.arrays import require_finite
from flowlin._tools.checks import array, checked, floating, whole
from flowlin._tools.show import Summary, shown
from flowlin._tools.types import Numbers
from flowlin.tasks.task import Task


def _summary(found: Any) -> Summary:
    """How many gates, of how many inputs."""
    gates, inputs = (found.normals if hasattr(found, "normals") else found.centres).shape
    rows = [("gates", f"{gates} gates"), ("inputs", f"{inputs} inputs")]
    return Summary(type(found).__name__, rows, inline=True)


def _rows(x: Any, inputs: int) -> Array:
    """Inputs (P, N_in)."""
    if jnp.ndim(x) != 2 or jnp.shape(x)[1] != inputs:
        wanted = f"(P, {inputs}), one row per sample"
        raise ValueError(f"`x` must have shape {wanted}, got {jnp.shape(x)}.")
    return jnp.asarray(x)


def _matrix(name: str, value: Any) -> Array:
    found = floating(name, value)
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(f"`{name}` must be a matrix (M, N_in), got shape {found.shape}.")
    require_finite(name, found)
    return found


@checked(normals=None, thresholds=None)
@shown(_summary)
class HalfSpaces(eqx.Module):
    r"""Gates that are one in a half-space: $g_m(x) = 1$ where $v_m \cdot x > \theta_m$, else 0.

    What globally gated networks commonly use (Li and Sompolinsky 2022).

    **Arguments:** `normals` v, (M, N_in); `thresholds` theta, (M,), zero by default.

    **Raises:** `ValueError` for shapes that do not fit, or NaN.
    """

    normals: Float[Array, "M N_in"]
    thresholds: Float[Array, " M"]

    def __init__(self, normals: Numbers, thresholds: Numbers | None = None):
        self.normals = _matrix("normals", normals)
        count, dtype = self.normals.shape[0], self.normals.dtype
        given = jnp.zeros(count, dtype) if thresholds is None else thresholds
        self.thresholds = floating("thresholds", given).astype(dtype)
        if self.thresholds.shape != (count,):
            raise ValueError(
                f"`thresholds` must have shape ({count},), one per row of `normals`, got "
                f"{self.thresholds.shape}."
            )

    @staticmethod
    @checked(number=whole(1))
    def random(task: Task, number: int, *, key: PRNGKeyArray) -> "HalfSpaces":
        """So many, with normals i.i.d. standard normal, through the mean of the task's inputs."""
        normals = jax.random.normal(key, (number, task.inputs), task.x.dtype)
        return HalfSpaces(normals, normals @ jnp.mean(task.x, axis=0))

    @checked(x=array)
    def __call__(self, x: Float[Array, "P N_in"]) -> Float[Array, "P M"]:
        """The gates of these inputs."""
        x = _rows(x, self.normals.shape[1])
        return (x @ self.normals.T > self.thresholds).astype(self.normals.dtype)


@checked(centres=None)
@shown(_summary)
class Clusters(eqx.Module):
    """Gates by nearest centre: one for the cluster that an input lies in, zero for all others.

    **Arguments:** `centres`, (M, N_in).

    **Raises:** `ValueError` for what is no such matrix.
    """

    centres: Float[Array, "M N_in"]

    def __init__(self, centres: Numbers):
        self.centres = _matrix("centres", centres)

    @staticmethod
    @checked(number=whole(1), seed=whole(0))
    def of(task: Task, number: int, *, seed: int = 0) -> "Clusters":
        """So many clusters of the task's inputs, by scikit-learn's k-means.

        **Raises:** `ImportError` without scikit-learn; `ValueError` for more clusters than samples.
        """
        try:
            from sklearn.cluster import KMeans
        except ImportError as error:
            raise ImportError(
                "`Clusters.of` needs scikit-learn: pip install 'flowlin[data]'."
            ) from error
        if number > task.samples:
            raise ValueError(
                f"`number` = {number} clusters of {task.samples} samples; take as many at most."
            )
        found = KMeans(number, n_init="auto", random_state=seed).fit(task.x)
        return Clusters(jnp.asarray(found.cluster_centers_, task.x.dtype))

    @checked(x=array)
    def __call__(self, x: Float[Array, "P N_in"]) -> Float[Array, "P M"]:
        """The gates of these inputs."""
        x = _rows(x, self.centres.shape[1])
        # |x|^2 is the same for all centres.
        far = jnp.sum(self.centres**2, axis=1) - 2 * x @ self.centres.T
        return jax.nn.one_hot(jnp.argmin(far, axis=1), len(self.centres), dtype=self.centres.dtype)
