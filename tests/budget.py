"""What the suite may take: processor time of each test, what each tier may compile.

A test of the first tier has `SECONDS` of processor time, apart from what its fixtures take, in
which tests share runs and programs, and apart from compiling. A test of the second tier is marked
`slow` and has no limit of its own.

What a tier compiles is weighed, not timed: seconds of compiling of one and the same tier differed
by half between machines, and no reading of their clocks told so. Every compiled program is kept on
disk, where the workers share them, and a run that leaves more than `COMPILED` there fails. The
seconds are told beside it, and the tests that compile most, with their fixtures.

With `--minutes N` tests that would begin later are skipped, and say so: a run of CI on a slow
machine is then not cut off, with nothing to show for it.
"""

import gc
import os
import time
from collections import Counter
from pathlib import Path

import jax
import jax.monitoring
import pytest

# Of processor time, for a test of the first tier. A test that takes twice as much fails, since one
# timing on another machine, beside another worker, is no better than that.
SECONDS = 3.0
# Megabytes of compiled programs, from an empty cache; the second tier after the first. Two fifths
# more than they were when this was written, since code for other processors has other sizes.
COMPILED = {"not slow": 40.0, "slow": 165.0}
PROCESS_MAPS = Path("/proc/self/maps")  # a line each

LISTED = 10  # tests that compile most
# Maps of memory above which programs are forgotten: between files, and at the latest after a test,
# since those of one file share programs. Linux ends a worker above 65,530; the library forgets at
# 55,700, between two runs, which a test that counts what it compiles would take for its own.
MAPS, MOST_MAPS = 40_000, 55_000

BEGIN = pytest.StashKey[float]()  # when this process began, monotonic
USED = pytest.StashKey[float]()  # processor time of a test, without fixtures and compiling
BEFORE = pytest.StashKey[frozenset[str]]()  # programs that were kept before this run
EVENT = "/jax/core/compile/backend_compile_duration"
# Of this process, and at the end of its workers: "seconds" of compiling, in how many "programs".
spent: Counter[str] = Counter()
by_test: Counter[str] = Counter()  # seconds of compiling, of this process and of workers


def _count(event: str, duration_secs: float, **_) -> None:
    if event == EVENT:
        spent.update(seconds=duration_secs, programs=1)  # pyright: ignore


jax.monitoring.register_event_duration_secs_listener(_count)


def _forget_compiled(most: int) -> None:
    """Forget what was compiled if this process has more than `most` maps of memory."""
    if PROCESS_MAPS.exists() and PROCESS_MAPS.read_bytes().count(b"\n") > most:
        jax.clear_caches()
        gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=float("inf"), help="begin no test later")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes: float = item.config.option.minutes
    if time.monotonic() > item.config.stash[BEGIN] + 60 * minutes:
        pytest.skip(f"{minutes:g} minutes are over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):
    before = spent["seconds"]
    try:
        return (yield)
    finally:
        by_test[item.nodeid] += spent["seconds"] - before
        _forget_compiled(MOST_MAPS if nextitem and nextitem.path == item.path else MAPS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    start = time.process_time() - spent["seconds"]
    try:
        return (yield)
    finally:
        item.stash[USED] = time.process_time() - spent["seconds"] - start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """A test of the first tier that took too long fails."""
    report = yield
    # What runs on a GPU has no limit.
    free = any(item.get_closest_marker(name) for name in ("slow", "gpu"))
    if call.when == "call" and report.passed and not free and item.stash[USED] > 2 * SECONDS:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.stash[USED]:.1f} s of processor time, compiling apart, where a test of the "
            f"first tier has {SECONDS:g}. Share the runs of other tests, take a smaller network, "
            "or mark it `slow` (docs/contribute/tests.md)."
        )
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """A worker is done: what it compiled is added up here."""
    told = getattr(node, "workeroutput", {})
    spent.update(told.get("spent", {}))
    by_test.update(told.get("by_test", {}))


def _programs_on_disk() -> dict[str, int]:
    """Sizes of the compiled programs that are kept, by name."""
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])  # as tests/conftest.py has it
    return {file.name: file.stat().st_size for file in folder.glob("*")}


@pytest.hookimpl
def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what was compiled before, and when this was."""
    session.config.stash[BEFORE] = frozenset(_programs_on_disk())
    session.config.stash[BEGIN] = time.monotonic()


def megabytes(config: pytest.Config) -> float:
    """Of the programs that this run has compiled and kept."""
    before = config.stash[BEFORE]
    return sum(size for name, size in _programs_on_disk().items() if name not in before) / 1e6


def _allowed(config: pytest.Config) -> float:
    """Megabytes of compiled programs that the tier has, or both of them."""
    return COMPILED.get(config.option.markexpr, sum(COMPILED.values()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput |= {"spent": dict(spent), "by_test": dict(by_test)}  # pyright: ignore
    elif megabytes(config) > _allowed(config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    allowed, found = _allowed(config), megabytes(config)
    terminalreporter.write_line(
        f"compiled: {spent['programs']:,} programs in {spent['seconds']:.0f} s; {found:.1f} MB of "
        f"them are new, and this tier may leave {allowed:g}"
        + (": TOO MUCH" if found > allowed else "")
    )
    for name, seconds in by_test.most_common(LISTED):
        terminalreporter.write_line(f"{seconds:7.1f} s of compiling: {name}")
