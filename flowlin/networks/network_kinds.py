"""Linear, ReLU and gated-linear networks: one forward pass with three kinds of gates."""

import abc
from collections.abc import Sequence
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    argument_error,
    boolean,
    checked,
    finite,
    instance_of,
    real_array,
    require_float_array,
    static_value,
)
from flowlin._tools.arrays import Activation, Biases, Numbers, Weights, require_finite
from flowlin._tools.files import saveable
from flowlin._tools.moved import AbsentAttribute, moved_attributes
from flowlin._tools.printing import print_by
from flowlin.networks import initial
from flowlin.networks.base import AbstractOwnModel, input_array, require_inputs, require_unstacked
from flowlin.networks.from_mlp import relu_layers
from flowlin.networks.kink_rounding import preactivations_off_rounding
from flowlin.networks.layered import (
    AbstractLayered,
    forward_pass,
    gate_arrays,
    layer_arrays,
    list_per_layer,
    network_summary,
    slope_value,
    smooth_relu,
)
from flowlin.networks.maxima import Rectifier
from flowlin.tasks.task import Task

N = TypeVar("N", bound="AbstractNetwork")


class AbstractNetwork(AbstractLayered):
    """Base of the three kinds of networks whose hidden units have gates.

    A hidden unit has the preactivation z = W h + c b and the activation h = g z; readout is
    linear. `weights[l]` has shape (N_out_l, N_in_l), `biases[l]` shape (N_out_l,) or is None,
    `bias_strength` is the constant c that multiplies every bias. Weights and biases are
    trained; all other fields are not. Every field is an array leaf, so networks stack and vmap.
    """

    @abc.abstractmethod
    def gate(self, layer: int, z: Float[Array, "P H"]) -> Array:
        """Return the gates g of hidden layer `layer`, (P, H) or what broadcasts, for its z.

        Constant between kinks: this is what the kinds of networks differ in.
        """

    def activation(self, layer: int, z: Float[Array, "P H"]) -> Float[Array, "P H"]:
        """Compute the activation h = g z of hidden layer `layer`, whose derivative is g."""
        gate = self.gate(layer, z)
        return (gate[None] if gate.ndim == 1 else gate) * z

    @checked(x=input_array)
    def preactivations(self, x: Float[Array, "P N_in"]) -> tuple[Array, ...]:
        """Return the preactivations z = W h + c b, one array (P, H) per hidden layer."""
        require_inputs(self, x)
        return forward_pass(self.parameters, self.bias_strength, x, self.activation)[1]

    @checked(x=input_array)
    def gates(self, x: Float[Array, "P N_in"]) -> tuple[Array, ...]:
        """Return the gates g = h / z, one array (P, H) per hidden layer."""
        return tuple(
            jnp.broadcast_to(self.gate(layer, z), z.shape)
            for layer, z in enumerate(self.preactivations(x))
        )

    def linear(self) -> "LinearNetwork":
        """Return the linear network with the same weights, biases and c: all gates are one."""
        require_unstacked(self)
        return LinearNetwork(self.weights, self.biases, self.bias_strength)

    @checked
    def frozen(self, task: Task) -> "GatedLinearNetwork":
        """Return the gated linear network with this network's (P, H) gates on the samples.

        Where z is zero up to rounding, as of pairs that slide along a walk, they are off, while
        `gates` go by the sign of the rounding. Between the steps of walks through several layers z
        of these pairs has an error of the run's interpolation: there give a `GatedLinearNetwork`
        the gates `flow.events.sides(t, layer) > 0`.
        """
        self._require_samples(task)
        return self._with_gates(gates_off_kinks(self, task.x))

    @checked
    def always_on(self, task: Task) -> "GatedLinearNetwork":
        """Return the gated linear network with (H,) gates: 1 for units on for all samples, else 0.

        The linear model of Eq. 15 of the lead paper, G = diag(on for every sample). Pairs whose z
        is zero up to rounding are off, as in `frozen`.
        """
        self._require_samples(task)
        found = preactivations_off_kinks(self, task.x)
        return self._with_gates(tuple(jnp.all(z > 0, axis=0).astype(z.dtype) for z in found))

    def _require_samples(self, task: Task) -> None:
        """Raise `ValueError` unless the task's inputs have the network's shape and are finite."""
        require_inputs(self, task.x, "task.x")
        require_finite("task.x", task.x)  # a gate would take NaN for a unit that is off

    def _with_gates(self, gates: tuple[Array, ...]) -> "GatedLinearNetwork":
        """Return the gated linear network with the same parameters and these gates."""
        return GatedLinearNetwork(self.weights, self.biases, self.bias_strength, gates=gates)


class AbstractSelfGated(AbstractNetwork):
    """Networks whose gates follow from the preactivations; nothing in them belongs to a sample."""

    @property
    def sample_gates(self) -> tuple[Array | None, ...]:
        """No gates, since none are given."""
        return ()

    def with_sample_gates(self: N, gates: tuple[Array | None, ...]) -> N:
        """Return the network itself, which has no given gates."""
        del gates
        return self

    @checked(x=input_array)
    def __call__(self, x: Float[Array, " N_in"]) -> Float[Array, " N_out"]:
        """Compute the output of one sample; use `jax.vmap` or `outputs` for many."""
        require_inputs(self, x, axes=1)
        return self.outputs(x[None])[0]


@checked(weights=None, biases=None)
@print_by(network_summary)
@saveable()
class LinearNetwork(AbstractSelfGated):
    """Deep linear network: all gates are one.

    **Arguments:**

    - `weights`: matrices (N_out_l, N_in_l), first layer first.
    - `biases`: None for no bias, or per layer an array (N_out_l,) or None.
    - `bias_strength`: the constant c that multiplies every bias.

    **Raises:** `ValueError` for shapes that do not chain, NaN, or no weights.
    """

    weights: Weights
    biases: Biases
    bias_strength: Array

    def __init__(
        self,
        weights: Sequence[Numbers],
        biases: Sequence[Numbers | None] | None = None,
        bias_strength: ArrayLike = 1.0,
    ):
        self.weights, self.biases, self.bias_strength = layer_arrays(weights, biases, bias_strength)

    def gate(self, layer: int, z: Float[Array, "P H"]) -> Array:
        """Return one, the gate of every unit."""
        del layer
        return jnp.ones((), z.dtype)

    def smooth_activation(self, width: ArrayLike | None) -> Activation:
        """Return the activation itself, which has no kinks."""
        del width
        return self.activation

    def affine(self) -> tuple[Float[Array, "N_out N_in"], Float[Array, " N_out"]]:
        """Return the end-to-end map: matrix and offset with f(x) = matrix x + offset."""
        matrix, offset = None, jnp.zeros_like(self.weights[-1][:, 0])
        for w, b in zip(reversed(self.weights), reversed(self.biases), strict=True):
            if b is not None:
                b = self.bias_strength * b
                offset = offset + (b if matrix is None else matrix @ b)
            matrix = w if matrix is None else matrix @ w
        assert matrix is not None
        return matrix, offset

    @classmethod
    @checked(hidden=None, variance=None, bias=None)
    def init(
        cls,
        task: Task,
        hidden: int | Sequence[int] = (64,),
        variance: float | Sequence[float] = 2e-4,
        bias: bool | Sequence[bool] = True,
        bias_strength: float = 1.0,
        *,
        key: PRNGKeyArray,
    ) -> "LinearNetwork":
        """Return a network drawn i.i.d. normal (lead paper, App. E); see `ReLUNetwork.init`.

        The same key gives a linear and a ReLU network of one shape the same parameters.
        """
        weights, biases = initial.draw_normal_layers(task, hidden, variance, bias, key)
        return cls(weights, biases, bias_strength)

    @classmethod
    @checked(hidden=None, variance=None, balance=static_value(finite), product=None)
    def balanced(
        cls,
        task: Task,
        hidden: int | Sequence[int] = (64,),
        variance: float | Sequence[float] = 2e-4,
        bias: bool = True,
        bias_strength: float = 1.0,
        *,
        balance: float = 0.0,
        product: ArrayLike | None = None,
        key: PRNGKeyArray,
    ) -> "LinearNetwork":
        r"""Return a network of a given product with $W_{l+1}^T W_{l+1} - W_l W_l^T = \lambda I$.

        The conserved quantity of every linear flow, set to zero (balanced, Saxe et al. 2014;
        Arora et al. 2018) or, for two layers, to lambda (lambda-balanced, Domine et al. 2024).
        A hidden bias counts as the first column of W_1 (with the raw b, for any c).

        **Arguments:**

        - `task`, `hidden`, `variance`, `bias`, `bias_strength`, `key`: as in `init`; `bias` is
          for the first layer only, since a bias on a later layer has no balanced partner.
        - `balance`: lambda; nonzero needs one hidden layer no wider than the outputs
          (lambda > 0) or than the inputs, bias included (lambda < 0).
        - `product`: the end-to-end matrix W_L ... W_1, shape (N_out, N_in), or (N_out, 1 + N_in)
          with the raw bias first. By default the product of an i.i.d. normal draw.

        **Raises:** `ValueError` where no such factorisation exists.
        """
        weights, biases = initial.draw_balanced_layers(
            task, hidden, variance, bias, balance=balance, product=product, key=key
        )
        return cls(weights, biases, bias_strength)


@checked(weights=None, biases=None, slope=slope_value)
@print_by(network_summary)
@saveable()
class ReLUNetwork(AbstractSelfGated):
    """ReLU network: gates slaved to the sign of the preactivation.

    **Arguments:**

    - `weights`, `biases`, `bias_strength`: as for `LinearNetwork`.
    - `slope`: gate of a unit that is off; 0 is ReLU, a value in (0, 1) leaky ReLU.

    At z = 0 the gate is the off one: relu'(0) = `slope`.

    **Raises:** `ValueError` for shapes that do not chain, NaN, or a slope outside [0, 1).
    """

    weights: Weights
    biases: Biases
    bias_strength: Array
    slope: Array

    def __init__(
        self,
        weights: Sequence[Numbers],
        biases: Sequence[Numbers | None] | None = None,
        bias_strength: ArrayLike = 1.0,
        slope: ArrayLike = 0.0,
    ):
        self.weights, self.biases, self.bias_strength = layer_arrays(weights, biases, bias_strength)
        self.slope = jnp.asarray(slope, dtype=self.weights[0].dtype)

    def gate(self, layer: int, z: Float[Array, "P H"]) -> Array:
        """Return one where z > 0, the slope elsewhere."""
        del layer
        return jnp.where(z > 0, 1.0, self.slope)

    def smooth_activation(self, width: ArrayLike | None) -> Activation:
        """Return ReLU, quadratic over |z| < width; see `flowlin.networks.layered`."""
        return self.activation if width is None else smooth_relu(self.slope, width)

    @classmethod
    @checked(hidden=None, variance=None, bias=None, slope=None)
    def init(
        cls,
        task: Task,
        hidden: int | Sequence[int] = (64,),
        variance: float | Sequence[float] = 2e-4,
        bias: bool | Sequence[bool] = True,
        bias_strength: float = 1.0,
        slope: float = 0.0,
        *,
        key: PRNGKeyArray,
    ) -> "ReLUNetwork":
        """Return a network drawn i.i.d. normal, weights and biases, as in the lead paper (App. E).

        **Arguments:**

        - `task`: gives the numbers of inputs and outputs, and the precision.
        - `hidden`: widths of the hidden layers; an integer for one layer.
        - `variance`: of every weight and bias, or one per layer.
        - `bias`: True for biases on the hidden layers (not on the readout), or one bool per
          layer, readout last.
        - `bias_strength`: the constant c that multiplies every bias.
        - `slope`: of leaky ReLU.
        - `key`: of `jax.random`.

        **Raises:** `ValueError` for a negative variance, a width below 1, or a wrong number of
        entries.
        """
        weights, biases = initial.draw_normal_layers(task, hidden, variance, bias, key)
        return cls(weights, biases, bias_strength, slope)

    @classmethod
    @checked(
        mlp=instance_of(eqx.nn.MLP, "an eqx.nn.MLP", "other modules of ReLUs flow as they are")
    )
    def of(cls, mlp: eqx.nn.MLP) -> "ReLUNetwork":
        """Return a multilayer perceptron of Equinox as a network of this kind, with c = 1.

        Its flow is that of `mlp`, which `gradient_flow` takes, too; of this network all is known
        that is known of ReLU networks: averaged gates, layers with a `tau` each, closed forms. What
        its activation is, is told by its values at some points (`flowlin.networks.from_mlp`).

        **Raises:** `ValueError` for one whose activation is no ReLU and no leaky ReLU, or is
        trained, whose final activation is not the identity, without hidden layers, or of scalars.
        """
        layers = relu_layers(mlp)
        return cls(layers.weights, layers.biases, 1.0, layers.slope)


@moved_attributes(gates_="given_gates")
@checked(weights=None, biases=None, gates=None)
@print_by(network_summary)
@saveable({"gates_": "given_gates"})
class GatedLinearNetwork(AbstractNetwork):
    """Gated linear network, whose gates are given and fixed.

    **Arguments:**

    - `weights`, `biases`, `bias_strength`: as for `LinearNetwork`.
    - `gates`: per hidden layer an array (H,), the same for every sample, or (P, H), one row per
      sample of the task that it is trained on.

    **Raises:** `ValueError` for shapes that do not fit.
    """

    weights: Weights
    biases: Biases
    bias_strength: Array
    given_gates: tuple[Array, ...]

    init = AbsentAttribute(
        "its gates are not drawn. Draw a network of another kind, and fix its gates by "
        "`network.frozen(task)`, or give gates: fl.GatedLinearNetwork(weights, gates=gates)"
    )

    def __init__(
        self,
        weights: Sequence[Numbers],
        biases: Sequence[Numbers | None] | None = None,
        bias_strength: ArrayLike = 1.0,
        *,
        gates: Numbers,
    ):
        self.weights, self.biases, self.bias_strength = layer_arrays(weights, biases, bias_strength)
        self.given_gates = gate_arrays(gates, self.hidden, self.dtype)

    def gate(self, layer: int, z: Float[Array, "P H"]) -> Array:
        """Return the given gates, (H,) or (P, H).

        **Raises:** `ValueError` for gates that were made for another number of samples.
        """
        gate, samples = self.given_gates[layer], z.shape[0]
        if gate.ndim == 2 and gate.shape[0] != samples:
            raise ValueError(
                f"`gates[{layer}]` are for {gate.shape[0]} samples and the inputs have "
                f"{samples}; per-sample gates go with the samples they were made for. For "
                "one sample call `network(x, gates)` with that sample's gates."
            )
        return gate

    def smooth_activation(self, width: ArrayLike | None) -> Activation:
        """Return the activation itself: given gates have no kinks."""
        del width
        return self.activation

    @property
    def sample_gates(self) -> tuple[Array | None, ...]:
        """The gates that are per sample, None for layers where they are (H,)."""
        return tuple(gate if gate.ndim == 2 else None for gate in self.given_gates)

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "GatedLinearNetwork":
        """Return the same network with other gates where they are per sample."""
        merged = tuple(
            own if new is None else new for own, new in zip(self.given_gates, gates, strict=True)
        )
        return eqx.tree_at(lambda network: network.given_gates, self, merged)

    @checked(x=input_array, gates=None)
    def __call__(
        self, x: Float[Array, " N_in"], gates: Numbers | None = None
    ) -> Float[Array, " N_out"]:
        """Compute the output of one sample.

        `gates`, per hidden layer an array (H,) (or the bare array where there is one layer),
        replaces the network's own and is required where those are per sample.
        """
        require_inputs(self, x, axes=1)
        if gates is None:
            return self.outputs(x[None])[0]
        given = (gates,) if hasattr(gates, "ndim") else gates
        gates = list_per_layer("gates", given, "one array (H,) per hidden layer")
        shapes = [np.shape(real_array(f"gates[{k}]", gate)) for k, gate in enumerate(gates)]
        if shapes != [(width,) for width in self.hidden]:
            raise ValueError(
                f"`gates` needs one array (H,) per hidden layer, H = {self.hidden}, got arrays of "
                f"shapes {shapes}."
            )

        def activate_layer(layer: int, z: Array) -> Array:
            gate = jnp.asarray(gates[layer])
            real = jnp.issubdtype(gate.dtype, jnp.floating)
            return (gate if real else gate.astype(z.dtype))[None] * z

        return forward_pass(self.parameters, self.bias_strength, x[None], activate_layer)[0][0]


@eqx.filter_jit  # one program, not one per operation
def preactivations_off_kinks(
    network: AbstractNetwork, x: Float[Array, "P N_in"]
) -> tuple[Float[Array, "P H"], ...]:
    """Return the preactivations of a network, zero where they may be rounding."""
    c = network.bias_strength
    return preactivations_off_rounding(network.parameters, c, x, network.activation)


def gates_off_kinks(
    network: AbstractNetwork, x: Float[Array, "P N_in"]
) -> tuple[Float[Array, "P H"], ...]:
    """Return the gates of a network, off where z may be rounding, unlike `network.gates(x)`."""
    return tuple(
        jnp.broadcast_to(network.gate(layer, z), z.shape)
        for layer, z in enumerate(preactivations_off_kinks(network, x))
    )


def outputs_by_rectifier(
    network: ReLUNetwork, x: Float[Array, "P N_in"], rectify: Rectifier
) -> Float[Array, "P N_out"]:
    """Compute the outputs for all samples with a function in place of every max(z, 0)."""

    def activate_layer(layer: int, z: Array) -> Array:
        del layer
        return network.slope * z + (1 - network.slope) * rectify(z)

    return forward_pass(network.parameters, network.bias_strength, x, activate_layer)[0]


def _single_network(name: str, value: object) -> AbstractNetwork:
    """Check for one network, and no stack of them, of a precision that runs can have."""
    remedy = "make one by fl.ReLUNetwork.init(task, key=key)"
    if isinstance(value, eqx.Module) and not isinstance(value, AbstractNetwork):
        where = "stand in layers" if isinstance(value, AbstractOwnModel) else "are known"
        raise argument_error(name, f"a flowlin network, whose hidden units {where}", value, remedy)
    value = instance_of(AbstractNetwork, "a flowlin network", remedy)(name, value)
    require_unstacked(value, name)
    require_float_array(f"{name}.weights[0]", value.weights[0])
    return value


CHECKS_BY_NAME["network"] = _single_network
CHECKS_BY_NAME["bias"] = boolean
