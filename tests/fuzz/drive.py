"""Cases in child processes, which may hang or die."""

import concurrent.futures
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMORY = 12 * 2**30  # of address space, in bytes
START = 300.0  # seconds in which a child must be ready
ASLEEP = 8.0  # of the limit of processor time, the time on the clock after which a case hangs too

Tell = Callable[[dict[str, Any]], None]


def outcomes(
    batches: Sequence[Sequence[str]], workers: int, limit: float, tell: Tell = lambda outcome: None
) -> list[dict[str, Any]]:
    """The outcomes of all cases, each a dictionary as `outcome.Outcome`.

    - `batches`: of cases, one child process each.
    - `workers`: how many children at once.
    - `limit`: processor time, in seconds, after which a case hangs.
    - `tell`: called with every outcome as it comes.
    """
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda batch: _batch(list(batch), limit, tell), batches)
        return [outcome for batch in found for outcome in batch]


def _batch(cases: list[str], limit: float, tell: Tell) -> list[dict[str, Any]]:
    """A batch's outcomes: after a hang or a death another child goes on behind it."""
    done: list[dict[str, Any]] = []
    while len(done) < len(cases):
        left = cases[len(done) :]
        found, end = _child(left, limit, tell)
        done += found
        if end is not None:
            done.append({"case": left[len(found)], **end, "seconds": limit})
            tell(done[-1])
    return done


def _child(
    cases: list[str], limit: float, tell: Tell
) -> tuple[list[dict[str, Any]], dict[str, str] | None]:
    """Outcomes of one child, and what became of the case after them."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.child", str(MEMORY), str(limit)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT, env=_environment(),
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stderr is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
    found: list[dict[str, Any]] = []
    try:
        with child.stdin:
            child.stdin.write(json.dumps(cases))
        if not lines.get(timeout=START):
            raise RuntimeError(f"a child could not start:\n{child.stderr.read()}")
        while len(found) < len(cases):
            line = lines.get(timeout=ASLEEP * limit)
            if not line:
                return found, _end(child.wait(), limit)
            found.append(json.loads(line))
            tell(found[-1])
        return found, None
    except queue.Empty:
        return found, {"verdict": "hang", "detail": f"no answer after {ASLEEP * limit:g} s"}
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


def _end(code: int, limit: float) -> dict[str, str]:
    if code == -signal.SIGXCPU:
        return {"verdict": "hang", "detail": f"computed for {limit:g} s"}
    return {"verdict": "died", "detail": f"exit code {code}"}


def _read(stream, lines: queue.Queue) -> None:
    """Lines as they come, and an empty one at the end."""
    for line in stream:
        lines.put(line)
    lines.put("")
    stream.close()


def _environment() -> dict[str, str]:
    """The children keep what they compile on disk, with the tests and each other."""
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return {**kept, **os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
