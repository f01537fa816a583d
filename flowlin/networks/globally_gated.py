"""Globally gated deep linear networks: all units of a layer share the gates."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowlin._tools.arguments import argument_error, checked, float_array, integer_from, real_array
from flowlin._tools.arrays import Activation, Biases, Numbers, Weights, require_finite
from flowlin._tools.draws import draw_normals
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, print_by
from flowlin.networks import initial
from flowlin.networks.base import input_array, require_inputs
from flowlin.networks.layered import AbstractLayered, layer_arrays, network_summary
from flowlin.tasks.task import Task


def _gate_rows(value: object) -> Array:
    """Check for gates (P, M)."""
    found = float_array("gates", value)
    if found.ndim != 2 or 0 in found.shape:
        raise argument_error("gates", "an array (P, M), one row of M gates per sample", value)
    require_finite("gates", found)
    return found


@checked(weights=None, biases=None, gates=None)
@print_by(network_summary)
@saveable()
class GloballyGatedNetwork(AbstractLayered):
    r"""Globally gated deep linear network (Li and Sompolinsky 2022).

    Every unit of a layer has M branches, one for each gate $g_m(x)$, which all units share:

    $$h_1 = W_1 x + c\, b_1, \qquad
      h_{l} = \sum_{m=1}^M g_m(x)\, W_l^{(m)} h_{l-1} + c\, b_l,$$

    with the outputs as the last h. The gates are given and fixed; without the paper's factor
    $1 / \sqrt{N M}$, which is one of scale. With one gate that is always one it is a
    `LinearNetwork`. A layer's matrices stand side by side, $W_l = [W_l^{(1)}, ..., W_l^{(M)}]$.

    **Arguments:**

    - `weights`: matrices, first (N_1, N_in), then (N_l, M N_{l-1}).
    - `biases`, `bias_strength`: as for `LinearNetwork`.
    - `gates`: (P, M), one row per sample of the task that it is trained on; `fl.HalfSpaces` and
      `fl.Clusters` make some.

    **Raises:** `ValueError` for shapes that do not chain, or NaN.
    """

    weights: Weights
    biases: Biases
    bias_strength: Array
    gates: Float[Array, "P M"]

    def __init__(
        self,
        weights: Sequence[Numbers],
        biases: Sequence[Numbers | None] | None = None,
        bias_strength: ArrayLike = 1.0,
        *,
        gates: object,
    ):
        found = _gate_rows(gates)
        self.weights, self.biases, self.bias_strength = layer_arrays(
            weights, biases, bias_strength, found.shape[1]
        )
        self.gates = found.astype(self.weights[0].dtype)

    @classmethod
    @checked(hidden=None, gates=None, variance=None, bias=None)
    def init(
        cls,
        task: Task,
        hidden: int | Sequence[int] = (64,),
        *,
        gates: object,
        variance: float | Sequence[float] = 2e-4,
        bias: bool | Sequence[bool] = False,
        bias_strength: float = 1.0,
        key: PRNGKeyArray,
    ) -> "GloballyGatedNetwork":
        """Return a network drawn i.i.d. normal; other arguments as in `ReLUNetwork.init`.

        `gates` are an array (P, M), or a function of the inputs, as `fl.HalfSpaces` is one.

        **Raises:** `ValueError` as `ReLUNetwork.init`, and for gates of other samples.
        """
        gates = _gate_rows(gates(task.x) if callable(gates) else gates)
        if len(gates) != task.samples:
            raise ValueError(
                f"`gates` are for {len(gates)} samples and `task` {task.name!r} has "
                f"{task.samples}; give one row of gates per sample."
            )
        weights, biases = initial.draw_normal_layers(
            task, hidden, variance, bias, key, gates.shape[1]
        )
        return cls(weights, biases, bias_strength, gates=gates)

    def activation(self, layer: int, z: Float[Array, "P H"]) -> Float[Array, "P MH"]:
        """Return the inputs of the next layer's matrices: M copies of h, each times its gate."""
        del layer
        if len(self.gates) != len(z):
            raise ValueError(
                f"the gates are for {len(self.gates)} samples and the inputs have {len(z)}; take "
                "those of these inputs by `network.with_gates(gates)`."
            )
        return (self.gates[:, :, None] * z[:, None, :]).reshape(len(z), -1)

    def smooth_activation(self, width: ArrayLike | None) -> Activation:
        """Return the activation itself, which has no kinks."""
        del width
        return self.activation

    @checked(x=input_array, gates=None)
    def __call__(self, x: Float[Array, " N_in"], gates: object = None) -> Float[Array, " N_out"]:
        """Compute one sample's output, with its `gates` (M,) in place of the network's own."""
        require_inputs(self, x, axes=1)
        network = self if gates is None else self.with_gates(real_array("gates", gates)[None])
        return network.outputs(x[None])[0]

    @checked(gates=None)
    def with_gates(self, gates: object) -> "GloballyGatedNetwork":
        """Return the network with gates (P, M) of other samples, such as those of a test set."""
        found = _gate_rows(gates).astype(self.dtype)
        if found.shape[1] != self.gates.shape[1]:
            wanted = f"an array (P, {self.gates.shape[1]}), one column per gate"
            raise argument_error("gates", wanted, gates)
        return eqx.tree_at(lambda network: network.gates, self, found)

    @property
    def sample_gates(self) -> tuple[Array, ...]:
        """The gates (P, M)."""
        return (self.gates,)

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "GloballyGatedNetwork":
        """Return the same network with these in place of `sample_gates`."""
        (own,) = gates
        return self if own is None else eqx.tree_at(lambda network: network.gates, self, own)


# ---- Gates that are functions of the inputs: half-spaces and clusters.


def _gates_summary(found: "HalfSpaces | Clusters") -> Summary:
    """Summarise gates of inputs: how many there are, and of how many inputs."""
    gates, inputs = (found.normals if isinstance(found, HalfSpaces) else found.centres).shape
    rows = [("gates", f"{gates} gates"), ("inputs", f"{inputs} inputs")]
    return Summary(type(found).__name__, rows, inline=True)


def _input_rows(x: ArrayLike, inputs: int) -> Array:
    """Check for inputs (P, N_in)."""
    if jnp.ndim(x) != 2 or jnp.shape(x)[1] != inputs:
        wanted = f"(P, {inputs}), one row per sample"
        raise ValueError(f"`x` must have shape {wanted}, got {jnp.shape(x)}.")
    return jnp.asarray(x)


def _check_matrix(name: str, value: object) -> Array:
    """Check for a finite matrix (M, N_in)."""
    found = float_array(name, value)
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(f"`{name}` must be a matrix (M, N_in), got shape {found.shape}.")
    require_finite(name, found)
    return found


@checked(normals=None, thresholds=None)
@print_by(_gates_summary)
class HalfSpaces(eqx.Module):
    r"""Gates that are one in a half-space: $g_m(x) = 1$ where $v_m \cdot x > \theta_m$, else 0.

    What globally gated networks commonly use (Li and Sompolinsky 2022).

    **Arguments:** `normals` v, (M, N_in); `thresholds` theta, (M,), zero by default.

    **Raises:** `ValueError` for shapes that do not fit, or NaN.
    """

    normals: Float[Array, "M N_in"]
    thresholds: Float[Array, " M"]

    def __init__(self, normals: Numbers, thresholds: Numbers | None = None):
        self.normals = _check_matrix("normals", normals)
        count, dtype = self.normals.shape[0], self.normals.dtype
        given = jnp.zeros(count, dtype) if thresholds is None else thresholds
        self.thresholds = float_array("thresholds", given).astype(dtype)
        if self.thresholds.shape != (count,):
            raise ValueError(
                f"`thresholds` must have shape ({count},), one per row of `normals`, got "
                f"{self.thresholds.shape}."
            )

    @staticmethod
    @checked(number=integer_from(1))
    def random(task: Task, number: int, *, key: PRNGKeyArray) -> "HalfSpaces":
        """Return so many half-spaces of standard normal normals, through the inputs' mean."""
        one = np.ones(1, task.x.dtype)
        (normals,) = draw_normals(key, (), [(number, task.inputs)], one)
        return HalfSpaces(normals, normals @ jnp.mean(task.x, axis=0))

    @checked(x=real_array)
    def __call__(self, x: Float[Array, "P N_in"]) -> Float[Array, "P M"]:
        """Return the gates (P, M) of inputs (P, N_in)."""
        x = _input_rows(x, self.normals.shape[1])
        return (x @ self.normals.T > self.thresholds[None]).astype(self.normals.dtype)


@checked(centres=None)
@print_by(_gates_summary)
class Clusters(eqx.Module):
    """Gates by nearest centre: one for the cluster that an input lies in, zero for all others.

    **Arguments:** `centres`, (M, N_in).

    **Raises:** `ValueError` for what is no such matrix.
    """

    centres: Float[Array, "M N_in"]

    def __init__(self, centres: Numbers):
        self.centres = _check_matrix("centres", centres)

    @staticmethod
    @checked(number=integer_from(1), seed=integer_from(0))
    def of(task: Task, number: int, *, seed: int = 0) -> "Clusters":
        """Return so many clusters of the task's inputs, found by scikit-learn's k-means.

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

    @checked(x=real_array)
    def __call__(self, x: Float[Array, "P N_in"]) -> Float[Array, "P M"]:
        """Return the gates (P, M) of inputs (P, N_in)."""
        x = _input_rows(x, self.centres.shape[1])
        # |x|^2 is the same for all centres.
        far = jnp.sum(self.centres**2, axis=1)[None] - 2 * x @ self.centres.T
        return jax.nn.one_hot(jnp.argmin(far, axis=1), len(self.centres), dtype=self.centres.dtype)
