"""A module with given gates in place of its kinks: between switches, the model that it is."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arguments import argument_error, checked
from flowlin._tools.arrays import Numbers, Product, replace_fields, require_finite
from flowlin._tools.files import saveable
from flowlin._tools.printing import Summary, format_count, print_by
from flowlin.networks.base import AbstractModel, ModelFacts
from flowlin.networks.kink_program import (
    KinkProgram,
    outputs_and_preactivations,
)
from flowlin.networks.layered import gate_arrays
from flowlin.networks.modules import ForeignModel, module_preactivations_off_kinks
from flowlin.tasks.task import Task


def _own_module(name: str, value: object) -> eqx.Module:
    """Check for a module of the user's own, or what a run has made of one."""
    own = isinstance(value, ForeignModel) or not isinstance(value, AbstractModel)
    if not isinstance(value, eqx.Module) or not own:
        remedy = "networks of flowlin have `network.frozen(task)`"
        raise argument_error(name, "an Equinox module of ReLUs", value, remedy)
    return value


def _model_with_known_kinks(name: str, value: object) -> ForeignModel:
    """Check for a module as a run holds it, with kinks that are known."""
    if isinstance(value, ForeignModel) and value.hidden:
        return value
    remedy = "take `fl.GatedModule.frozen(module, task)`"
    raise argument_error(name, "a model whose kinks are known", value, remedy)


def _summarise(network: "GatedModule") -> Summary:
    """Summarise a gated module: what it is made of, its gates, parameters, precision."""
    shapes = ", ".join(map(str, (gate.shape for gate in network.gates)))
    sizes = [array.size for array in jax.tree.leaves(network.parameters)]
    rows = [("module", network.model.name), ("gates", f"gates {shapes}")]
    rows += [("parameters", format_count(sum(sizes), "parameter"))]
    return Summary("GatedModule", [*rows, ("precision", str(network.dtype))], inline=True)


@checked(model=_model_with_known_kinks, gates=None)
@print_by(_summarise)
@saveable()
class GatedModule(AbstractModel):
    r"""An Equinox module of ReLUs with given gates: each $\max(z, 0)$ in it is $g z$.

    What `fl.GatedLinearNetwork` is to `fl.ReLUNetwork`, of any module whose kinks can be found:
    convolutions with pooling, residual blocks, attention. Its arrays are trained as the module's
    are, and nothing of it switches; its own flow is that of the module as long as no gate does.
    Other kinks are ReLUs in disguise, and their gates are those of the $\max(z, 0)$ within:
    $|z| = 2 \max(z, 0) - z$, and $\max(a, b) = b + \max(a - b, 0)$, whose gate says which is taken.

    `frozen` and `always_on` make one; a run of it takes the samples that its gates are for.

    **Arguments:**

    - `model`: the module with its kinks, as `frozen` finds them and `flow.model` has them.
    - `gates`: of each place with kinks, (H,) or (P, H).

    **Raises:** `ValueError` for a model without known kinks, gates of other shapes, or NaN.
    """

    model: ForeignModel
    gates: tuple[Array, ...]

    def __init__(self, model: ForeignModel, gates: Numbers):
        self.model = model
        self.gates = gate_arrays(gates, model.hidden, model.dtype)

    @staticmethod
    @checked(network=_own_module)
    def frozen(network: eqx.Module, task: Task) -> "GatedModule":
        """Return a module with the gates (P, H) that it has on the samples, a layer after another.

        A gate is one where z > 0, else zero: also where z is zero up to rounding, as of pairs that
        slide along a walk. Between a walk's steps z of these may have an error of the run's
        interpolation: there give `with_gates` those of `flow.events.sides(t, layer) > 0`.

        **Arguments:** `network`, a module of one sample; `task`, whose samples the gates are for.

        **Raises:** `ValueError` for a module without kinks, or with some that cannot be found.
        """
        model, z = _model_and_preactivations(network, task)
        gates = tuple((one > 0).astype(model.dtype) for one in z)
        return GatedModule(model, gates)

    @staticmethod
    @checked(network=_own_module)
    def always_on(network: eqx.Module, task: Task) -> "GatedModule":
        """Return a module with gates (H,): 1 for units that are on for all samples, else 0.

        **Arguments:** as for `frozen`.

        **Raises:** `ValueError` as for `frozen`.
        """
        model, z = _model_and_preactivations(network, task)
        gates = tuple(jnp.all(one > 0, axis=0).astype(model.dtype) for one in z)
        return GatedModule(model, gates)

    @checked(gates=None)
    def with_gates(self, gates: Numbers) -> "GatedModule":
        """Return the same model with other gates, one array (H,) or (P, H) per place with kinks.

        **Raises:** `ValueError` for other shapes, or NaN.
        """
        return GatedModule(self.model, gates)

    @property
    def name(self) -> str:
        """Its name with that of the module's class."""
        return f"GatedModule({self.model.name})"

    @property
    def facts(self) -> ModelFacts:
        """Facts of the module, but that it has no kinks, since all gates are given."""
        return self.model.facts._replace(
            name=type(self).__name__, kind=f"GatedModule({self.model.facts.kind})", hidden=(),
            kinks="none", kinks_because=f"all gates of {self.model.name} are given",
        )  # fmt: skip

    @property
    def parameters(self) -> PyTree:
        """The module's floating-point arrays; gates are none."""
        return self.model.parameters

    def with_parameters(self, parameters: PyTree) -> "GatedModule":
        """Return the same model with other arrays; those that are None stay."""
        return replace_fields(self, model=self.model.with_parameters(parameters))

    @property
    def sample_gates(self) -> tuple[Array | None, ...]:
        """The gates that are per sample, None for places where they are (H,)."""
        return tuple(gate if gate.ndim == 2 else None for gate in self.gates)

    def with_sample_gates(self, gates: tuple[Array | None, ...]) -> "GatedModule":
        """Return the same model with other gates where they are per sample."""
        pairs = zip(self.gates, gates, strict=True)
        return replace_fields(self, gates=tuple(a if b is None else b for a, b in pairs))

    def smooth_outputs(
        self, x: Float[Array, "P N_in"], width: ArrayLike | None, product: Product
    ) -> Float[Array, "P N_out"]:
        """Compute the outputs: there are no kinks to round off."""
        del width, product
        samples = {gate.shape[0] for gate in self.sample_gates if gate is not None} - {len(x)}
        if samples:
            raise ValueError(
                f"`gates` are for {samples.pop()} samples and the inputs have {len(x)}; "
                "per-sample gates go with the samples they were made for."
            )
        program = self.model.kink_program(x.shape[1])
        assert isinstance(program, KinkProgram)
        leaves = jax.tree.leaves((self.model.inexact, self.model.fixed))
        shapes = [(len(x), gate.shape[-1]) for gate in self.gates]
        rows = map(jnp.broadcast_to, self.gates, shapes)

        def output_of(sample: Array, gates: Array) -> Array:
            nothing = jnp.zeros_like(gates)
            return outputs_and_preactivations(program, [*leaves, sample], gates, nothing)[0]

        return jax.vmap(output_of)(x, jnp.concatenate(list(rows), axis=1))


def _model_and_preactivations(
    network: eqx.Module, task: Task
) -> tuple[ForeignModel, tuple[Array, ...]]:
    """Return a module with what is known of its kinks, and z (P, H) of each place with some.

    Where z may be rounding it is zero.

    **Raises:** `ValueError` where there are none, or where they cannot be told.
    """
    own = network
    if not isinstance(own, ForeignModel):
        own = ForeignModel.from_module("network", network)
    own.sample_output(task.inputs, f"of `task` {task.name!r}")
    model = own.with_kinks(task.inputs)
    if not model.hidden:
        raise ValueError(
            "`network` must be a module of ReLUs, whose gates are known; "
            f"{model.facts.kinks_because}."
        )
    require_finite("task.x", task.x)  # a gate would take NaN for a unit that is off
    return model, module_preactivations_off_kinks(model, jnp.asarray(task.x, model.dtype))
