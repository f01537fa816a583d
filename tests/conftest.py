"""What all tests share: float64, strict arithmetic, a key, and the folder with the real data."""

import gc
import os
from pathlib import Path

# Compiled programs are kept on disk, as a user may do: the workers share them.
CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
# No dtype and no shape is guessed, in the library as in the tests.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

import flowlin as fl
from tests.zoo import ALIGNED

pytest_plugins = ["tests.budget"]

# Tracing allocates many objects that live on, and looking through them again and again is in vain.
gc.freeze()
gc.set_threshold(100_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--long-fuzz", action="store_true", help="thousands of calls in tests/test_fuzz.py"
    )
    parser.addoption("--seed", type=int, default=0, help="of the tests' random draws")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test that draws says with which seed."""
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"{item.funcargs.get('seed')} (--seed N for another)"))
    return report


@pytest.fixture
def seed(request):
    """Of a test's random draws: whatever it is, the test must pass."""
    return request.config.getoption("--seed")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(scope="session")
def tree():
    """The semantic tree, 8 items and 15 features."""
    return fl.tasks.hierarchy()


@pytest.fixture(scope="session")
def aligned(tree):
    """A balanced network aligned to the tree's modes, equal ones equally strong, and the modes."""
    modes = fl.theory.modes(tree, 1.0)
    product = (modes.u * ALIGNED[None]) @ modes.v.T
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
