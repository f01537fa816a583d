"""A child process: judges the cases that it reads, and writes their outcomes, one a line.

The processor time of each case is limited, so that what hangs is ended on a busy machine neither
sooner nor later than on an idle one.
"""

import dataclasses
import json
import os
import resource
import sys
import tempfile


def main(memory: int, limit: float) -> None:
    """Read cases as a JSON list; write JSON lines: `null` when ready, then outcomes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cases = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_traceback_filtering", "off")
    from tests.fuzz.outcome import judged

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        _say(out, None)
        for case in cases:
            _allow(limit)
            _say(out, dataclasses.asdict(judged(case)))


def _allow(seconds: float) -> None:
    """So many seconds more of the processor, after which SIGXCPU ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, most))


def _say(out, message) -> None:
    print(json.dumps(message), file=out, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
