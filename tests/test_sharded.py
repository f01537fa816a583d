"""Several devices and several processes: the same numbers as on one, in processes of their own."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).parent / "sharded_checks.py"
ROOT = SCRIPT.parent.parent
TOO_LONG = 240.0  # seconds; each takes some 40 on one core


def start(*arguments: str) -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes: subprocess.Popen) -> list[list[str]]:
    """The numbers that each has printed."""
    numbers = []
    try:
        for process in processes:
            try:
                output, _ = process.communicate(timeout=TOO_LONG)
            except subprocess.TimeoutExpired as late:
                pytest.fail(f"no end after {TOO_LONG} s: {(late.stdout or b'').decode()}")
            assert process.returncode == 0, output
            assert "all equal" in output
            numbers.append(re.findall(r"numbers (.*)", output))
        return numbers
    finally:
        for process in processes:
            process.kill()
            process.communicate()  # none is left behind, nor its pipe


def test_eight_devices_give_the_numbers_of_one():
    finish(start())


def test_two_processes_each_with_its_own_rows(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    one, other = finish(start(port, "0", str(tmp_path)), start(port, "1", str(tmp_path)))
    assert one
    assert one == other
