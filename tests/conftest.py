"""What all tests share: float64, a key, and the folder with the real data."""

import gc
import importlib.metadata
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Nearly all of the suite's time goes into compiling programs that then run for milliseconds, so
# they are compiled hastily (examples and benchmarks are not), and each but once for all workers.
HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
HASTY += " --xla_cpu_parallel_codegen_split_count=1"  # the other core has its own worker
HASTY += " --xla_disable_hlo_passes=hlo-verifier,while-loop-simplifier"
HASTY += ",while-loop-invariant-code-motion,tree_reduction_rewriter"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # unknown to others, who would abort
    HASTY += " --xla_cpu_use_fusion_emitters=false"  # compiles in half of the time
os.environ.setdefault("XLA_FLAGS", HASTY)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from jax._src import pjit
from jax._src.interpreters import pxla

jax.config.update("jax_enable_x64", True)

import flowlin as fl


def prevbefore(t):
    """Equinox's function of this name for t > 0, in four operations instead of forty.

    Every solve of diffrax goes a hundred floats back from its end: a tenth of all compiling.
    """
    whole = jax.lax.bitcast_convert_type(t, jnp.dtype(f"int{8 * t.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(whole - jnp.ones_like(whole), t.dtype)


eqxi.prevbefore = prevbefore

PROGRAMS = 1000  # that a worker keeps: up to 25 memory maps each, of which Linux allows 65,530
# Where JAX keeps all it has lowered, if this version does.
LOWERED = [
    vars(home)[name]
    for home, name in ((pjit, "_pjit_lower"), (pxla, "_cached_lowering_to_hlo"))
    if name in vars(home)
]

# Tracing allocates many objects that live on, and looking through them again and again is in vain.
gc.freeze()
gc.set_threshold(100_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--long-fuzz", action="store_true", help="thousands of calls in tests/test_fuzz.py"
    )


@pytest.fixture(autouse=True)
def _forget_lowered():
    """What is lowered would stay alive, megabytes each, and slow down every further compilation."""
    yield
    for cache in LOWERED:
        cache.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled():
    """What a module has compiled the next ones use, too, until there is too much of it."""
    yield
    if len(jax.devices()[0].client.live_executables()) > PROGRAMS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(scope="session")
def tree():
    """The semantic tree, 8 items and 15 features."""
    return fl.tasks.hierarchy()


@pytest.fixture(scope="session")
def aligned(tree):
    """A balanced network aligned to the tree's modes, and the modes."""
    modes = fl.theory.modes(tree, 1.0)
    product = (modes.u * jax.numpy.linspace(1e-3, 3e-3, 9)) @ modes.v.T
    return fl.LinearNetwork.balanced(tree, product=product, key=jax.random.key(1)), modes


@pytest.fixture
def without_type_checks(monkeypatch):
    """Without the import hook's checks, as for users: bad values reach the library's own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def data_folder():
    """The folder with the real MNIST and CIFAR-10 files, which `FLOWLIN_DATA` names meanwhile."""
    named = os.environ.get("FLOWLIN_DATA")
    if named:
        yield Path(named)
        return
    sibling = ROOT.parent / "shared" / "data"
    if not sibling.is_dir():
        pytest.skip(f"no real data: FLOWLIN_DATA is not set and there is no {sibling}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWLIN_DATA", str(sibling))
        yield sibling
