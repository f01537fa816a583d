#!/usr/bin/env python3
"""Set-up and commands in one: makes `.venv`, installs flowlin into it, and runs a command there.

    python3 dev.py main [options]     the main job, examples/linearization_time.py
    python3 dev.py test [options]     the tests of the first tier, by pytest: eight minutes
    python3 dev.py test --all         both tiers; `test -m slow` for the second alone
    python3 dev.py docs               the documentation, into site/; any fault in it fails
    python3 dev.py run  COMMAND ...   anything else in the environment

Needs Python 3.11 or newer with venv and pip, and nothing installed by hand.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent
HOME = ROOT / ".venv"
# Two at once, a file's tests on one core since they share programs, the files in order of names.
PYTEST = ["-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
PYTEST += ["--durations", "10", "-p", "no:hypothesispytest"]  # in use nowhere; takes seconds
# The first tier checks shapes and types of all arguments within the library. The second runs the
# library as users do, without, which takes a tenth less.
TYPES = ["--jaxtyping-packages=flowlin,beartype.beartype"]
FIRST_TIER = ["-m", "not slow", *TYPES]  # an `-m` among the options overrides this one
BIN = HOME / ("Scripts" if os.name == "nt" else "bin")
STRICT = ["--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]


def set_up() -> None:
    """Create the environment, or bring it up to date when pyproject.toml has changed."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this file must speak up on an older Python)
        sys.exit("flowlin needs Python 3.11 or newer; start this script with such a Python.")
    stamp = HOME / "installed"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("setting up .venv (once, about a minute) ...", file=sys.stderr, flush=True)
    if not (BIN / "python").exists() and not (BIN / "python.exe").exists():
        venv.create(HOME, with_pip=True)
    install = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--editable", ".[dev]"]
    subprocess.run(install, cwd=ROOT, check=True)
    stamp.write_text(wanted)


def pages(python: str) -> list[list[str]]:
    """The commands that build the documentation anew and look at what was built."""
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    sphinx = ["-m", "sphinx", *STRICT, "--doctree-dir", "build/docs/doctrees", "docs", "site"]
    return [[python, *sphinx], [python, "docs/_tools/check_site.py", "site"]]


def main() -> int:
    """Run one of the commands above."""
    python = str(BIN / "python")
    match sys.argv[1:]:
        case ["main", *options]:
            commands = [[python, "examples/linearization_time.py", *options]]
        case ["test", "--all", *options]:
            commands = [[python, *PYTEST, *TYPES, *options]]
        case ["test", "-m", "slow", *options]:
            commands = [[python, *PYTEST, "-m", "slow", *options]]
        case ["test", *options]:
            commands = [[python, *PYTEST, *FIRST_TIER, *options]]
        case ["docs"]:
            commands = pages(python)
        case ["run", program, *options]:
            commands = [[str(BIN / program), *options]]
        case _:
            print(__doc__)
            return 2
    set_up()
    codes = [subprocess.run(command, cwd=ROOT).returncode for command in commands]
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
