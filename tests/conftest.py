"""What all tests share: float64, a key, and the folder with the real data."""

import gc
import os
from pathlib import Path

from tests import hasty  # isort: skip

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)

import flowlin as fl

PROGRAMS = 1000  # that a worker keeps: up to 25 memory maps each, of which Linux allows 65,530

# Tracing allocates many objects that live on, and looking through them again and again is in vain.
gc.freeze()
gc.set_threshold(100_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--long-fuzz", action="store_true", help="thousands of calls in tests/test_fuzz.py"
    )


@pytest.fixture(autouse=True)
def _forget_lowered():
    yield
    hasty.forget_lowered()


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
    sibling = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not sibling.is_dir():
        pytest.skip(f"no real data: FLOWLIN_DATA is not set and there is no {sibling}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWLIN_DATA", str(sibling))
        yield sibling
