"""Pages for contributors call files and functions by the names that these have."""

import ast
import builtins
import collections
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((DOCS / "contribute").glob("*.md"))]
SOURCES = ("flowlin", "tests", "docs", "examples", "benchmarks")
# Where a path may begin: the repository, the library, and for studies their own folder.
STARTS = tuple(ROOT / folder for folder in (
    ".", "flowlin", "flowlin/measures", "flowlin/events", "examples/paper", "docs/contribute",
))  # fmt: skip
MADE = re.compile(r"(site|build|dist|results|\.venv)/|/tmp/")  # by programs, or only at some time
INVENTED = {"flowlin/events/distance_above.py"}  # by an example that nobody has merged
FILE = re.compile(r"[\w./-]+(?:\.(?:py|md|toml|js|json)|/)")
CALL = re.compile(r"(\w+)\(([^()]*)\)")


def in_backticks(text):
    """What stands in single backticks, fenced blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def parameters():
    """Names of the parameters of all functions and methods, by the name of these."""
    found = collections.defaultdict(list)
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    given = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                    found[node.name].append([a for a in given if a not in ("self", "cls")])
    return found


def faults(text, known):
    """Files that are not there, and calls of functions that take no such arguments."""
    for word in in_backticks(text):
        named = FILE.fullmatch(word) and not MADE.match(word) and "NAME" not in word
        if named and word not in INVENTED and not any((s / word).exists() for s in STARTS):
            yield f"{word} is not there"
        call = CALL.fullmatch(word)
        names = [a.strip() for a in call[2].split(", ...")[0].split(",")] if call else []
        own = call is not None and not hasattr(builtins, call[1])
        if own and all(name.isidentifier() for name in names):
            signatures = known.get(call[1], [])
            if not any(one[: len(names)] == names for one in signatures):
                yield f"{word} is no function of the code"


def test_pages_for_contributors_name_what_is_there():
    known = parameters()
    wrong = [f"{page.name}: {fault}" for page in PAGES for fault in faults(page.read_text(), known)]
    assert not wrong
    old = "`events/cross.py`, `sampled(network, path, times)`, `degree(network)`, `runs/run.py`"
    assert list(faults(old, known)) == [
        "events/cross.py is not there",
        "sampled(network, path, times) is no function of the code",
    ]
