"""A module's call on one sample as a program in which every kink is a rectifier's."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowlin._tools.files import saveable
from flowlin.networks.maxima import Rectifier


@saveable()
class KinkSite(NamedTuple):
    """One operation with kinks in a module's call, of as many units as its z has entries.

    - `place`: the part of the module whose numbers it rectifies, such as `layers[0]`.
    - `operation`: its name in the program, such as `max`.
    - `shape`: of its z for one sample.
    """

    place: str
    operation: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of units."""
        return math.prod(self.shape)


class Constant(NamedTuple):
    """A number or an array that the program holds."""

    value: Any


Atom = int | Constant  # the number of a value, or a constant


class ProgramStep(NamedTuple):
    """One operation as it is evaluated: a function of the rectifier and of the inputs' values."""

    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]
    evaluate: Callable[..., Sequence[Array]]
    operation: str
    place: str = ""


class KinkProgram:
    """A module's call on one sample, with a rectifier in place of every kink.

    - `sites`: the operations with kinks, in the order in which they are evaluated.
    """

    def __init__(self, steps: list[ProgramStep], output: Atom, arguments: Sequence[Any]):
        self._steps, self._output = steps, output
        found: list[KinkSite] = []

        def record_kinks(*values: Array) -> Array:
            def record_at(step: ProgramStep) -> Rectifier:
                def record_shape(z: Array) -> Array:
                    found.append(KinkSite(step.place, step.operation, z.shape))
                    return z

                return record_shape

            return self._evaluate_steps(values, record_at)

        jax.eval_shape(record_kinks, *arguments)
        self.sites: tuple[KinkSite, ...] = tuple(found)

    def evaluate(self, arguments: Sequence[Array], rectify: Rectifier) -> Float[Array, " N_out"]:
        """Return the outputs for one sample.

        **Arguments:** `arguments` are the module's leaves and the sample; `rectify` is called with
        the z of each site, in order, and returns what stands there for max(z, 0).
        """
        return self._evaluate_steps(arguments, lambda step: rectify)

    def _evaluate_steps(
        self, arguments: Sequence[Array], rectifier_at: Callable[[ProgramStep], Rectifier]
    ) -> Array:
        """Evaluate step by step, each with its own rectifier."""
        known = dict(enumerate(arguments))

        def read(atom: Atom) -> Any:
            return jnp.asarray(atom.value) if isinstance(atom, Constant) else known[atom]

        for step in self._steps:
            values = step.evaluate(rectifier_at(step), *map(read, step.inputs))
            known.update(zip(step.outputs, values, strict=True))
        return read(self._output)


@jax.custom_jvp
def _pass_gate_at_kink(z: Array, gate: Array, at_kink: Array) -> Array:
    """Return g z, of which a pair at its kink passes on positive tangents alone."""
    del at_kink
    return gate * z


@_pass_gate_at_kink.defjvp
def _tangent_at_kink(
    values: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    """Return g z, and the directional derivative of max(z, 0) at its kink; else g dz."""
    (z, gate, at_kink), dz = values, tangents[0]
    return gate * z, jnp.where(at_kink != 0, jnp.where(dz > 0, dz, 0.0), gate * dz)


@jax.custom_jvp
def rectify_with_gate(z: Array, gate: Array) -> Array:
    """Return max(z, 0), whose derivative is taken to be the gate."""
    del gate
    return jnp.where(z > 0, z, 0.0)


@rectify_with_gate.defjvp
def _tangent_by_gate(
    values: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return max(z, 0) and g dz."""
    z, gate = values
    return jnp.where(z > 0, z, 0.0), gate * tangents[0]


def outputs_and_preactivations(
    program: KinkProgram,
    arguments: Sequence[Array],
    gates: Array | None,
    extra: Array | None,
    at_kink: Array | None = None,
) -> tuple[Float[Array, " N_out"], Float[Array, " H"]]:
    """Return the outputs for one sample, and the z of all kinks, of one place after another.

    **Arguments:** `gates` (H,) and `extra` (H,) make g z + e of each z; without gates it is
    max(z, 0). Where `at_kink` (H,) is not zero, a tangent of z goes on as its positive part.
    """
    found: list[Array] = []

    def rectify(z: Array) -> Array:
        start = sum(one.size for one in found)
        found.append(jnp.ravel(z))
        if gates is None or extra is None:
            return jnp.where(z > 0, z, 0.0)
        own = slice(start, start + z.size)
        gate, more = (a[own].reshape(z.shape) for a in (gates, extra))
        if at_kink is None:
            return gate * z + more
        return _pass_gate_at_kink(z, gate, at_kink[own].reshape(z.shape)) + more

    outputs = program.evaluate(arguments, rectify)
    return outputs, jnp.concatenate(found)


def preactivations_by_place(
    program: KinkProgram, arguments: Sequence[Array], x: Float[Array, "P N_in"]
) -> tuple[Float[Array, "P H"], ...]:
    """Return the z of each site for many samples; `arguments` are the module's leaves."""

    def preactivations(sample: Array) -> Array:
        return outputs_and_preactivations(program, [*arguments, sample], None, None)[1]

    stops = np.cumsum([site.size for site in program.sites])[:-1].tolist()
    return tuple(jnp.split(jax.vmap(preactivations)(x), stops, axis=1))
