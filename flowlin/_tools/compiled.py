"""Compiling functions of large trees, such as a run."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax import lax

from flowlin._tools.arrays import is_traced

Function = TypeVar("Function", bound=Callable[..., Any])

# XLA's newer way to emit loops for CPUs takes 1.4 times as long to compile. Its program is faster
# by a few percent for small arrays (the semantic tree), for large ones by up to a third (averaged
# gates on digits). At optimization level 1 the ten lines of the README compile in 0.9 of the time,
# and programs of small arrays, which are many short loops, are no slower. Likewise without trees
# of reductions, each a kernel of its own that is written out for 32 numbers: 0.88 of the time.
HASTILY = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_disable_hlo_passes": "tree_reduction_rewriter",
}
SMALL = 2**16  # numbers in all arrays of a tree that is compiled hastily


def jit_by_array(function: Function) -> Function:
    """`eqx.filter_jit` of a function whose first argument may hold an array several times.

    A run's task is also its objective's, its solver's and its events'. A compiled program takes
    every leaf for another array and would compute with each of them anew, so every array is
    handed over once. Where these are small, compiling is what takes time, and is done hastily.
    """

    def whole(arrays, places, structure, *args, **options):
        tree = jax.tree.unflatten(structure, [arrays[place] for place in places])
        return function(tree, *args, **options)

    fully = eqx.filter_jit(whole)
    asked = os.environ.get("XLA_FLAGS", "")
    unasked = {name: value for name, value in HASTILY.items() if name not in asked}
    hastily = eqx.filter_jit(whole, compiler_options=unasked)  # pyright: ignore

    @functools.wraps(function)
    def call(tree, *args, **options):
        leaves, structure = jax.tree.flatten(tree)
        # Numbers and functions are part of the program, whichever object holds them.
        names = [id(leaf) if eqx.is_array(leaf) else ~k for k, leaf in enumerate(leaves)]
        arrays = dict(zip(names, leaves, strict=True))
        order = {name: place for place, name in enumerate(arrays)}
        places = tuple(order[name] for name in names)
        compiled = hastily if _is_hasty(arrays.values(), (args, options)) else fully
        return compiled(list(arrays.values()), places, structure, *args, **options)

    return call  # pyright: ignore


def _is_hasty(arrays: Any, beside: Any) -> bool:
    """Whether a program of these arrays, and some beside them, may be compiled hastily."""
    if not (jax.__version__.startswith("0.10.") and jax.default_backend() == "cpu"):
        return False  # the option is one of XLA's own, which others may not know
    arrays = [a for a in arrays if eqx.is_array(a)]
    # Within another program nothing is left to choose; there all that is made is a tracer.
    return sum(a.size for a in arrays) <= SMALL and not is_traced((arrays, beside, lax.full((), 0)))
