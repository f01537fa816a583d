"""Globally gated deep linear networks: all units of a layer share the gates."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowlin._tools.arrays import require_finite
from flowlin._tools.checks import array, checked, floating, refuse
from flowlin._tools.codec import storable
from flowlin._tools.show import shown
from flowlin._tools.types import Activation, Biases, Numbers, Weights
from flowlin.network import initial, summary
from flowlin.network.construction import layers
from flowlin.network.fit import inputs, require_inputs
from flowlin.network.forward_pass import forward
from flowlin.network.layered import AbstractLayered
from flowlin.tasks.task import Task


def _gates(value: Any) -> Array:
    """Gates (P, M)."""
    found = floating("gates", value)
    if found.ndim != 2 or 0 in found.shape:
        raise refuse("gates", "an array (P, M), one row of M gates per sample", value)
    require_finite("gates", found)
    return found


@checked(weights=None, biases=None, gates=None)
@shown(summary.network)
@storable()
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
        gates: Any,
    ):
        found = _gates(gates)
        self.weights, self.biases, self.bias_strength = layers(
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
        gates: Any,
        variance: float | Sequence[float] = 2e-4,
        bias: bool | Sequence[bool] = False,
        bias_strength: float = 1.0,
        key: PRNGKeyArray,
    ) -> "GloballyGatedNetwork":
        """Weights and biases i.i.d. normal; other arguments as in `ReLUNetwork.init`.

        `gates` are an array (P, M), or a function of the inputs, as `fl.HalfSpaces` is one.

        **Raises:** `ValueError` as `ReLUNetwork.init`, and for gates of other samples.
        """
        gates = _gates(gates(task.x) if callable(gates) else gates)
        if len(gates) != task.samples:
            raise ValueError(
                f"`gates` are for {len(gates)} samples and `task` {task.name!r} has "
                f"{task.samples}; give one row of gates per sample."
            )
        weights, biases = initial.normal(task, hidden, variance, bias, key, gates.shape[1])
        return cls(weights, biases, bias_strength, gates=gates)

    def activation(self, layer: int, z: Float[Array, "P H"]) -> Float[Array, "P MH"]:
        """What the next layer's matrices take: M copies of h, each times its gate."""
        del layer
        if len(self.gates) != len(z):
            raise ValueError(
                f"the gates are for {len(self.gates)} samples and the inputs have {len(z)}; take "
                "those of these inputs by `network.with_gates(gates)`."
            )
        return (self.gates[:, :, None] * z[:, None, :]).reshape(len(z), -1)

    def rounded_activation(self, width: ArrayLike | None) -> Activation:
        """Its own: there are no kinks."""
        del width
        return self.activation

    @checked(x=inputs)
    def outputs(self, x: Float[Array, "P N_in"]) -> Float[Array, "P N_out"]:
        """Outputs for all samples at once.

        **Raises:** `ValueError` for other inputs, or another number of samples than the gates'.
        """
        require_inputs(self, x)
        return forward(self.parameters, self.bias_strength, x, self.activation)[0]

    @checked(x=inputs, gates=None)
    def __call__(self, x: Float[Array, " N_in"], gates: Any = None) -> Float[Array, " N_out"]:
        """Output of one sample, with its `gates` (M,) in place of the network's own."""
        require_inputs(self, x, axes=1)
        network = self if gates is None else self.with_gates(array("gates", gates)[None])
        return network.outputs(x[None])[0]

    @checked(gates=None)
    def with_gates(self, gates: Any) -> "GloballyGatedNetwork":
        """The same network with gates (P, M) of other samples, such as those of a test set."""
        found = _gates(gates).astype(self.dtype)
        if found.shape[1] != self.gates.shape[1]:
            wanted = f"an array (P, {self.gates.shape[1]}), one column per gate"
            raise refuse("gates", wanted, gates)
        return eqx.tree_at(lambda network: network.gates, self, found)

    @property
    def sample_gates(self) -> tuple[Array, ...]:
        """The gates (P, M)."""
        return (self.gates,)

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "GloballyGatedNetwork":
        """The same network with these in place of `sample_gates`."""
        (own,) = gates
        return self if own is None else eqx.tree_at(lambda network: network.gates, self, own)
