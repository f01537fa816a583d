"""Numerics that any room may need: inverses, elementary functions with their limits, compiling."""

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import NamedTuple, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox.internal import while_loop as while_loop  # a loop that has derivatives
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Inexact, PyTree

from flowlin._tools.arrays import Parameters, is_traced
from flowlin._tools.memory import forget_programs

# ---- What an exact walk takes for rounding, per precision of its numbers.


class Rounding(NamedTuple):
    """Sizes, all relative, below which a difference says nothing.

    In float64 there is room for generous multiples of eps. In float32 there is little: a pair
    within rounding of its kink is taken to be there, which is an error of the run, so its z and u
    are smaller multiples (`benchmarks/precision.py`; float64's multiples of eps made weights
    off by ten to a hundred times as much). The rest are some tens to a thousand of its eps.
    """

    z: float  # |z| over |w| |x|
    u: float  # u of a sliding pair, over its C
    snap: float  # u over its bound: this close to an end of its range it is at that end
    slack: float  # of the conditions on u and the velocity of z in the choice of modes
    cut: float  # eigenvalues of sliding pairs' Gram matrix, over the largest
    root: float  # of an event's time, over the step


EPS = 2.0**-52
FLOAT64 = Rounding(z=512 * EPS, u=5e4 * EPS, snap=1e-9, slack=1e3 * EPS, cut=1e-10, root=1e-12)
FLOAT32 = Rounding(z=7.6e-6, u=6e-5, snap=1e-5, slack=1.2e-4, cut=1e-6, root=5e-7)


def dtype_rounding(dtype: DTypeLike) -> Rounding:
    """Return the sizes of rounding for walks in float64, or in any lower precision."""
    return FLOAT64 if dtype == jnp.float64 else FLOAT32


@jax.jit
def decay_integral(rate: Array, t: Array) -> Array:
    """Integrate exp(-rate s) over s from 0 to t: (1 - exp(-rate t)) / rate.

    The limits are t at rate = 0, and 1 / rate at t = inf.

    The quotient's value has no cancellation, but its derivative with respect to the rate does:
    for small rate t a series stands in.
    """
    forever, still = jnp.isinf(t), rate == 0
    finite = jnp.where(forever, 0.0, t)
    x = rate * finite
    tiny = jnp.abs(x) < 1e-3
    z = jnp.where(tiny, x, 0.0)  # so that the series' derivatives cannot overflow
    # The next term, z^5 / 720, is below 2e-18.
    series = finite * (1 - z / 2 * (1 - z / 3 * (1 - z / 4 * (1 - z / 5))))
    safe = jnp.where(still | (tiny & ~forever), 1.0, rate)
    exact = jnp.where(forever, 1.0, -jnp.expm1(-safe * finite)) / safe
    return jnp.where(forever, jnp.where(still, jnp.inf, exact), jnp.where(tiny, series, exact))


@jax.jit
def log_growth(rate: Array, q: Array) -> Array:
    """Return log(1 + rate q) / rate, the inverse of expm1(rate t) / rate; it is q at rate = 0."""
    x = rate * q
    tiny = jnp.abs(x) < 1e-5
    small = jnp.where(tiny, x, 0.0)
    # The next term, small^4 / 5, is below 3e-21.
    series = q * (1 - small / 2 + small**2 / 3 - small**3 / 4)
    exact = jnp.log1p(jnp.where(tiny, 0.0, x)) / jnp.where(tiny, 1.0, rate)
    return jnp.where(tiny, series, exact)


@jax.jit
def safe_sqrt(square: Array) -> Array:
    """Take the square root, with derivative zero at zero: for even functions of the root."""
    info = jnp.finfo(square.dtype)
    zero = square <= info.tiny / info.eps**2
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


@jax.jit
def hypot(x: Array, y: Array) -> Array:
    """Return sqrt(x^2 + y^2) without overflow or underflow, with derivative zero at the origin."""
    # The result does not depend on the scale, so neither do its derivatives.
    scale = lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
    scale = jnp.where(scale > 0, scale, 1.0)
    return scale * safe_sqrt((x / scale) ** 2 + (y / scale) ** 2)


@jax.jit
def safe_divide(numerator: Array, denominator: Array, otherwise: ArrayLike) -> Array:
    """Divide, and return `otherwise` (without a derivative) where the denominator is zero."""
    zero = denominator == 0
    return jnp.where(zero, otherwise, numerator / jnp.where(zero, 1.0, denominator))


def pseudo_inverse(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    r"""Invert a positive semi-definite matrix (Moore-Penrose); constant to derivatives.

    Eigenvalues that may be rounding of the largest's are dropped.
    """
    values, vectors = jnp.linalg.eigh(lax.stop_gradient(gram))
    cut = dtype_rounding(gram.dtype).cut
    keep = values > cut * jnp.maximum(values[-1], jnp.finfo(gram.dtype).tiny)
    inverse = jnp.where(keep, 1 / jnp.where(keep, values, 1.0), 0.0)
    return (vectors * inverse[None]) @ vectors.T


def default_floats(*values: ArrayLike) -> tuple[Array, ...]:
    """Return the values as arrays of JAX's default float."""
    return tuple(jnp.asarray(value, dtype=jnp.result_type(float)) for value in values)


def time_over_tau(t: Array, tau: Array) -> Array:
    """Divide a time by tau; inf (without a derivative) at t = inf."""
    forever = jnp.isinf(t)
    return jnp.where(forever, jnp.inf, jnp.where(forever, 0.0, t) / tau)


def previous_float(t: Float[Array, ""], count: int) -> Float[Array, ""]:
    """Return the float that lies so many before t > 0: of positive floats, the bits count up."""
    t = lax.stop_gradient(t)
    bits = jnp.dtype(f"int{8 * t.dtype.itemsize}")
    whole = lax.bitcast_convert_type(t, bits)
    return lax.bitcast_convert_type(whole - jnp.asarray(count, bits), t.dtype)


# ---- Parameters joined in one vector, as the state of a solver: less to compile than a tree.


class FlatTree(eqx.Module):
    """A tree of arrays of one precision, joined end to end in one vector.

    A solver adds, scales and compares all numbers as one array; `whole` gives the arrays back.
    Like any tree it may have leading axes, for stacked states.

    - `vector`: all numbers, in the order of the tree's leaves.
    - `shapes`, `structure`: the tree's.
    """

    vector: Inexact[Array, "*T N"]
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    structure: Hashable = eqx.field(static=True)

    @staticmethod
    def from_tree(tree: PyTree) -> "FlatTree":
        """Join the arrays of a tree, all of one precision."""
        leaves, structure = jax.tree.flatten(tree)
        vector = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
        return FlatTree(vector, tuple(leaf.shape for leaf in leaves), structure)

    @property
    def tree(self) -> PyTree:
        """The tree of arrays, cut out of the vector."""
        leaves, start, stacked = [], 0, self.vector.shape[:-1]
        for shape in self.shapes:
            end = start + math.prod(shape)
            leaves.append(self.vector[..., start:end].reshape(*stacked, *shape))
            start = end
        return jax.tree.unflatten(self.structure, leaves)


def as_tree(parameters: Parameters | FlatTree) -> Parameters:
    """Return parameters as a tree, whether they come as one or flat."""
    return parameters.tree if isinstance(parameters, FlatTree) else parameters


def flatten_like(parameters: Parameters | FlatTree, tree: Parameters) -> Parameters | FlatTree:
    """Return a tree in the form that the parameters have: flat, or as a tree."""
    return FlatTree.from_tree(tree) if isinstance(parameters, FlatTree) else tree


# ---- Compiling functions of large trees, such as a run.

Function = TypeVar("Function", bound=Callable[..., object])

# XLA's newer way to emit loops for CPUs takes nearly twice as long to compile (README's walk: 9.2 s
# in place of 5.6 s). Its program is faster by 5 % for small arrays, for large ones by up to a third
# (averaged gates on digits): small ones are compiled without it, where this XLA knows the option.
OLDER_LOOPS = {"xla_cpu_use_fusion_emitters": False}
SMALL_TREE = 2**16  # numbers in all arrays of a tree that counts as small


def jit_by_array(function: Function) -> Function:
    """Compile, as `eqx.filter_jit`, a function whose first argument may hold one array twice.

    A run's task is also its objective's, its solver's and its events'. A compiled program takes
    every leaf for another array and would compute with each of them anew, so every array is
    handed over once. Programs of small arrays are compiled with `OLDER_LOOPS`, and all of them
    `in_full_precision`. A call that follows one that compiled may `forget_programs` first.
    """

    has_compiled = False  # since programs were last counted, which takes as long as a short run

    def call_on_tree(arrays, places, structure, *args, **options):
        nonlocal has_compiled
        has_compiled = True
        tree = jax.tree.unflatten(structure, [arrays[place] for place in places])
        return function(tree, *args, **options)

    for_large = eqx.filter_jit(call_on_tree)
    for_small = eqx.filter_jit(call_on_tree, compiler_options=OLDER_LOOPS)  # pyright: ignore

    @functools.wraps(function)
    def call_compiled(tree, *args, **options):
        nonlocal has_compiled
        leaves, structure = jax.tree.flatten(tree)
        if has_compiled and not is_traced(leaves):
            has_compiled = False
            forget_programs()
        # Numbers and functions are part of the program, whichever object holds them.
        names = [id(leaf) if eqx.is_array(leaf) else ~k for k, leaf in enumerate(leaves)]
        arrays = dict(zip(names, leaves, strict=True))
        order = {name: place for place, name in enumerate(arrays)}
        places = tuple(order[name] for name in names)
        small = _is_small(arrays.values(), (args, options)) and _knows_older_loops()
        compiled = for_small if small else for_large
        with in_full_precision():
            return compiled(list(arrays.values()), places, structure, *args, **options)

    return call_compiled  # pyright: ignore


def largest_number(leaves: Sequence[Array]) -> Array:
    """Return the largest |number| in arrays; where they are few, by a kernel for all of them.

    Large ones may be split among devices, and are looked at one by one.
    """
    leaves = [leaf for leaf in leaves if leaf.size]
    if sum(leaf.size for leaf in leaves) <= SMALL_TREE:
        return jnp.max(jnp.abs(jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])))
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))


def finite_or(other: PyTree, tree: PyTree) -> PyTree:
    """Return a tree if all its numbers are finite, else the other one."""
    fine = jnp.isfinite(largest_number(jax.tree.leaves(tree)))
    return jax.tree.map(lambda a, b: jnp.where(fine, b, a), other, tree)


def in_full_precision() -> contextlib.AbstractContextManager[None]:
    """Make products within as precise as their arrays, unless JAX was told a precision.

    By default JAX rounds the factors of float32 products to 11 bits on NVIDIA GPUs since Ampere
    (TF32) and to 8 on TPUs, so a gradient is off by 1e-4 of itself whatever the tolerance
    (`jax.lax.Precision`). CPUs round nothing.
    """
    if jax.config.jax_default_matmul_precision is not None:  # pyright: ignore
        return contextlib.nullcontext()
    return jax.default_matmul_precision("highest")


def _is_small(arrays: Collection[object], beside: PyTree) -> bool:
    """Tell whether arrays, and some beside them, are small; within another program none are.

    There every new array is a tracer, and the compiler's options are those of the outer program.
    """
    sizes = [a.size for a in arrays if isinstance(a, jax.Array)]
    return sum(sizes) <= SMALL_TREE and not is_traced((list(arrays), beside, lax.full((), 0)))


@functools.cache
def _knows_older_loops() -> bool:
    """Tell whether the XLA that is installed takes `OLDER_LOOPS`; others raise for it."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0, compiler_options=OLDER_LOOPS)()
    except jax.errors.JaxRuntimeError:
        return False
    return True


# ---- Derivatives in forward mode, refused by name where a run has them in reverse mode only.
#
# JAX's own error speaks of a `custom_vjp` function, at whatever place it stumbles upon one.

FORWARD_MODE_MESSAGE = (
    "derivatives in forward mode (jax.jvp, jax.jacfwd, jax.hessian) need "
    "`adjoint=diffrax.ForwardMode()` in the run, which has the default for reverse mode (jax.grad)."
)


@contextlib.contextmanager
def catch_forward_mode() -> Iterator[None]:
    """Let JAX's error for forward mode, raised in tracing, say `FORWARD_MODE_MESSAGE` instead."""
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise ValueError(FORWARD_MODE_MESSAGE) from None


def reverse_only(tree: PyTree) -> PyTree:
    """Return the same arrays; a derivative in forward mode by any of them is a `ValueError`."""
    return jax.tree.map(
        lambda leaf: _mark_array(leaf) if eqx.is_inexact_array(leaf) else leaf, tree
    )


@jax.custom_jvp
def _mark_array(x: PyTree) -> PyTree:
    """Return the array itself; its derivative is marked by `_tangent_mark`."""
    return x


@_mark_array.defjvp
def _mark_array_jvp(primals: PyTree, tangents: PyTree) -> PyTree:
    return _mark_array(primals[0]), _tangent_mark.bind(
        tangents[0]
    )  # marked for a derivative of this one


def _refuse_forward_mode(*args: object, **kwargs: object) -> NoReturn:
    """Raise the error for forward mode, as the program is evaluated or compiled."""
    del args, kwargs
    raise ValueError(FORWARD_MODE_MESSAGE)


# The identity on tangents: transposed away in reverse mode, evaluated or compiled in forward mode.
_tangent_mark = Primitive("reverse_only")
_tangent_mark.def_impl(_refuse_forward_mode)
_tangent_mark.def_abstract_eval(lambda tangent: tangent)
ad.deflinear2(_tangent_mark, lambda cotangent, tangent: [cotangent])
batching.primitive_batchers[_tangent_mark] = lambda args, axes: (_tangent_mark.bind(*args), axes[0])
mlir.register_lowering(_tangent_mark, _refuse_forward_mode)
