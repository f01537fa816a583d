"""Compiling in haste, which is where nearly all of the suite's time goes; import it before JAX.

The tests' programs run for milliseconds. So XLA optimizes them little, each is compiled but once
for all workers, and what JAX makes anew or keeps alive with every program is shared or forgotten.
"""

import importlib.metadata
import os
import threading
from pathlib import Path

FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
FLAGS += " --xla_cpu_parallel_codegen_split_count=1"  # the other core has its own worker
FLAGS += " --xla_disable_hlo_passes=hlo-verifier,simplify-while-loops"
FLAGS += ",while-loop-invariant-code-motion,tree_reduction_rewriter"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # unknown to others, who would abort
    FLAGS += " --xla_cpu_use_fusion_emitters=false"  # compiles in half of the time
CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "compiled"

os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Where each operation comes from is written into every program, and XLA carries it along.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax._src import pjit
from jax._src.interpreters import mlir, pxla
from jax._src.lib.mlir import ir

# Where JAX keeps all it has lowered, if this version does.
LOWERED = [
    vars(home)[name]
    for home, name in ((pjit, "_pjit_lower"), (pxla, "_cached_lowering_to_hlo"))
    if name in vars(home)
]
make_context = mlir.make_ir_context
held = threading.local()  # a context is for one thread at a time


def context():
    """One MLIR context for all programs: a new one takes as long as lowering a small program."""
    try:
        within = ir.Context.current is not None
    except ValueError:
        within = False  # what other versions say of none
    if within:  # the lowering of another, whose module would get this one's
        return make_context()
    if not hasattr(held, "context"):
        held.context = make_context()
    return held.context


def forget_lowered() -> None:
    """What is lowered would stay alive, megabytes each, and slow down all that is lowered later."""
    held.__dict__.clear()
    for cache in LOWERED:
        cache.cache_clear()


def prevbefore(t):
    """Equinox's function of this name for t > 0, in four operations instead of forty.

    Every solve of diffrax goes a hundred floats back from its end: a tenth of all compiling.
    """
    whole = jax.lax.bitcast_convert_type(t, jnp.dtype(f"int{8 * t.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(whole - jnp.ones_like(whole), t.dtype)


mlir.make_ir_context = context
eqxi.prevbefore = prevbefore
