#!/usr/bin/env python3
"""The package as somebody installs it: builds sdist and wheel, and tries the wheel from empty.

    python3 dev.py run python .ci/check_package.py [--lowest] [--python PROGRAM ...]

For each Python the wheel is installed into a new environment without extras, with the newest
versions of what it needs, or with the lowest that pyproject.toml names (`--lowest`); the README's
example runs there, in an empty folder. Prints the versions and what the example printed; the exit
code is the number of environments that failed. Nothing is left behind.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What must be in the sdist, and what must not be in the wheel.
SOURCES = ("tests/conftest.py", "examples/linearization_time.py", "docs/conf.py", "dev.py")


def build(folder: pathlib.Path) -> pathlib.Path:
    """The wheel, made from the sdist, in `folder`; both hold what they should."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names.issuperset(SOURCES), f"the sdist lacks {set(SOURCES) - names}"
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert all(top.startswith("flowlin") for top in tops), f"the wheel holds {tops}"
    return wheel


def requirements() -> list[str]:
    """What flowlin needs, as pyproject.toml says it."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def example() -> str:
    """The README's example."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return blocks[0]


def tried(program: str, wheel: pathlib.Path, pins: Iterable[str]) -> bool:
    """Whether the example runs where the wheel was installed into a new environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "-m", "venv", "env"], cwd=folder, check=True)
        python = pathlib.Path(folder, "env", "Scripts" if os.name == "nt" else "bin", "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([*install, wheel, *pins], env=clean)
        if done.returncode:
            return False
        names = dict.fromkeys(requirement.partition(">=")[0] for requirement in requirements())
        show = "import importlib.metadata as m, sys; print(*[sys.version.split()[0]] + ["
        show += "f'{n} {m.version(n)}' for n in sys.argv[1:]], sep=', ')"
        subprocess.run([python, "-c", show, *names, "jaxlib"], check=True)
        done = subprocess.run([python, "-W", "error", "-c", example()], cwd=folder, env=clean)
        return done.returncode == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lowest", action="store_true", help="the lowest versions")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="with these Pythons")
    given = parser.parse_args()
    pins = [r.replace(">=", "==", 1) for r in requirements()] if given.lowest else []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(pathlib.Path(folder))
        for program in given.python:
            passed = tried(program, wheel, pins)
            print(f"{program}: {'passed' if passed else 'FAILED'}", flush=True)
            failed += not passed
    return failed


if __name__ == "__main__":
    sys.exit(main())
