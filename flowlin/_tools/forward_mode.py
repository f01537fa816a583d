"""Derivatives in forward mode, refused by name where a run has them in reverse mode only.

JAX's own error speaks of a `custom_vjp` function, at whatever place it stumbles upon one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import PyTree

MESSAGE = (
    "derivatives in forward mode (jax.jvp, jax.jacfwd, jax.hessian) need "
    "`adjoint=diffrax.ForwardMode()` in the run, which has the default for reverse mode (jax.grad)."
)


@contextlib.contextmanager
def told_by_name() -> Iterator[None]:
    """JAX's error, where it notices forward mode as the program is made, says `MESSAGE` instead."""
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise ValueError(MESSAGE) from None


def reverse_only(tree: PyTree) -> PyTree:
    """The same arrays; a derivative in forward mode by any of them is a `ValueError`."""
    return jax.tree.map(lambda leaf: _marked(leaf) if eqx.is_inexact_array(leaf) else leaf, tree)


@jax.custom_jvp
def _marked(x: PyTree) -> PyTree:
    return x


@_marked.defjvp
def _marked_jvp(primals: PyTree, tangents: PyTree) -> PyTree:
    return _marked(primals[0]), _tangent.bind(tangents[0])  # marked for a derivative of this one


def _refused(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise ValueError(MESSAGE)


# The identity on tangents: transposed away in reverse mode, evaluated or compiled in forward mode.
_tangent = Primitive("reverse_only")
_tangent.def_impl(_refused)
_tangent.def_abstract_eval(lambda tangent: tangent)
ad.deflinear2(_tangent, lambda cotangent, tangent: [cotangent])
batching.primitive_batchers[_tangent] = lambda args, axes: (_tangent.bind(*args), axes[0])
mlir.register_lowering(_tangent, _refused)
