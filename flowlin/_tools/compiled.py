"""Compiling functions of large trees, such as a run."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

Function = TypeVar("Function", bound=Callable[..., Any])


def jit_by_array(function: Function) -> Function:
    """`eqx.filter_jit` of a function whose first argument may hold an array several times.

    A run's task is also its objective's, its solver's and its events'. A compiled program takes
    every leaf for another array and would compute with each of them anew, so every array is
    handed over once.
    """

    @eqx.filter_jit
    def compiled(arrays, places, structure, *args, **options):
        tree = jax.tree.unflatten(structure, [arrays[place] for place in places])
        return function(tree, *args, **options)

    @functools.wraps(function)
    def call(tree, *args, **options):
        leaves, structure = jax.tree.flatten(tree)
        # Numbers and functions are part of the program, whichever object holds them.
        names = [id(leaf) if eqx.is_array(leaf) else ~k for k, leaf in enumerate(leaves)]
        arrays = dict(zip(names, leaves, strict=True))
        order = {name: place for place, name in enumerate(arrays)}
        places = tuple(order[name] for name in names)
        return compiled(list(arrays.values()), places, structure, *args, **options)

    return call  # pyright: ignore
