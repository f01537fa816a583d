"""What the suite may take: processor time of each test, seconds of compiling of each tier.

A test of the first tier has `SECONDS` of processor time, apart from what its fixtures take, in
which tests share runs and programs; `EXCEPTIONS` lists those that need more and says why. A test of
the second tier is marked `slow` and has no limit of its own. The seconds that JAX spends on
compiling are summed over all workers, and a run of more than `COMPILING` fails; the tests that
compile most, with their fixtures, are listed beside the slowest. All are seconds of a quiet
machine: before anything is called too slow, the clock of this one is read (`slowness`), and where
other jobs took a part of the processors, of the seconds of compiling only the part that workers had
counts (`compile_seconds`).
"""

import functools
import gc
import random
import time
from collections import Counter
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

SECONDS = 3.0  # of processor time, for a test of the first tier
# By how much one timing may miss a test's own: of a test whose programs are compiled in it, 2.9 s
# alone were 3.7 beside another worker, and the clock of the machine told neither from the other.
NOISE = 2.0
# Seconds summed over all workers, each of which takes half as long again beside the other.
COMPILING = {"not slow": 440.0, "slow": 2400.0}
# Processor time of `_compile` on a quiet machine. Inferred: it is 0.54 on one on which the first
# tier compiled for 468 s, where another took 336 s. A loop in Python does not tell: the slower of
# the two runs it in half of the time.
REFERENCE = 0.39

PROCESS_MAPS = Path("/proc/self/maps")  # a line each

LISTED = 10  # tests that compile most
# Maps of memory, up to 25 a program, above which programs are forgotten: between files, and at the
# latest after a test, since those of one file share programs. Linux ends a worker above 65,530.
MAPS, MOST_MAPS = 40_000, 55_000

# Tests of the first tier that need more, with their seconds and the reason.
EXCEPTIONS: dict[str, tuple[float, str]] = {
    "tests/test_lazy.py::test_against_the_exponential_of_the_whole_linear_flow[random features]": (
        4.0,
        "the oracle is the whole flow's matrix exponential, with programs of its own",
    )
}

USED = pytest.StashKey[float]()  # processor time of a test, without its fixtures
COMPILED = "/jax/core/compile/backend_compile_duration"
# Of this process: "seconds" of compiling, in how many "programs"; of all tests the time on the
# "wall" and on the "processor".
spent: Counter[str] = Counter()
by_test: Counter[str] = Counter()  # seconds of compiling, of this process and of workers


def _count(event: str, duration_secs: float, **_) -> None:
    if event == COMPILED:
        spent.update(seconds=duration_secs, programs=1)  # pyright: ignore


jax.monitoring.register_event_duration_secs_listener(_count)


def _forget_compiled(most: int) -> None:
    """Forget what was compiled if this process has more than `most` maps of memory."""
    if PROCESS_MAPS.exists() and PROCESS_MAPS.read_bytes().count(b"\n") > most:
        jax.clear_caches()
        gc.collect()


def _compile() -> float:
    """Processor time of compiling a program of some hundred operations, which no cache has."""
    number = random.random()

    def program(x):
        for k in range(12):
            x = jnp.tanh(x @ x.T + number * k)
            x = jnp.cumsum(x, axis=k % 2) / (1 + jnp.linalg.norm(x))
            x = jnp.where(x > number, x, jnp.sort(x, axis=0))
        return x

    lowered = jax.jit(program).lower(jnp.ones((8, 8)))
    start = time.process_time()
    lowered.compile()
    return time.process_time() - start


@functools.cache
def slowness() -> float:
    """How many times longer than a quiet machine this one takes to compile, at least 1."""
    return max(1.0, min(_compile() for _ in range(3)) / REFERENCE)


def excess(name: str, seconds: float, slow: float) -> str | None:
    """What to say of a test of the first tier that took too long, or None if it did not."""
    allowed, _ = EXCEPTIONS.get(name, (SECONDS, ""))
    if seconds <= NOISE * allowed * slow:
        return None
    return (
        f"{seconds:.1f} s of processor time, on a machine {slow:.1f} times as slow as a quiet one; "
        f"a test of the first tier has {allowed:g} s of a quiet one. Share the programs of other "
        "tests, take a smaller network, or mark it `slow` (docs/contribute/tests.md)."
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):
    before, wall, processor = spent["seconds"], time.monotonic(), time.process_time()
    try:
        return (yield)
    finally:
        by_test[item.nodeid] += spent["seconds"] - before
        passed, used = time.monotonic() - wall, time.process_time() - processor
        spent.update(wall=passed, processor=used)  # pyright: ignore
        _forget_compiled(MOST_MAPS if nextitem and nextitem.path == item.path else MAPS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    start = time.process_time()
    try:
        return (yield)
    finally:
        item.stash[USED] = time.process_time() - start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """A test of the first tier that took too long fails."""
    report = yield
    # What a GPU compiles takes longer, and has no limit.
    free = any(item.get_closest_marker(name) for name in ("slow", "gpu"))
    if call.when == "call" and report.passed and not free:
        seconds = item.stash[USED]
        said = excess(item.nodeid, seconds, 1.0) and excess(item.nodeid, seconds, slowness())
        if said:
            report.outcome, report.longrepr = "failed", said
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """A worker is done: what it compiled is added up here."""
    told = getattr(node, "workeroutput", {})
    spent.update(told.get("spent", {}))
    by_test.update(told.get("by_test", {}))


def compile_seconds() -> float:
    """Seconds of compiling, less those in which other jobs had the processors."""
    return spent["seconds"] * min(1.0, spent["processor"] / max(spent["wall"], 1e-9))


def _allowed(config: pytest.Config) -> float:
    """Seconds of compiling that the tier has, or both of them."""
    return COMPILING.get(config.option.markexpr, sum(COMPILING.values()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput |= {"spent": dict(spent), "by_test": dict(by_test)}  # pyright: ignore
    elif compile_seconds() > _allowed(config) * slowness() and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    allowed, seconds, slow = _allowed(config), compile_seconds(), slowness()
    terminalreporter.write_line(
        f"compiling: {seconds:.0f} s in {spent['programs']:,} programs; this tier has "
        f"{allowed:.0f} s of a quiet machine, and this one is {slow:.1f} times as slow"
        + (": TOO MUCH" if seconds > allowed * slow else "")
    )
    for name, seconds in by_test.most_common(LISTED):
        terminalreporter.write_line(f"{seconds:7.1f} s of compiling: {name}")
