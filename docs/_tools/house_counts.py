"""How the library's code reads, in counts: names, docstrings, size.

    python3 dev.py run python docs/_tools/house_counts.py

Prints each count with the goal that the house is renewed for. Private names count, with their
underscores dropped; methods count as functions, those of Python's own protocols do not.
"""

import ast
import collections
import importlib
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Participles that do not end in -ed, and words in -ed and -ing that are none.
IRREGULAR = {
    *("begun", "bound", "broken", "built", "chosen", "come", "done", "drawn", "driven"),
    *("found", "given", "gone", "grown", "held", "kept", "known", "left", "lost", "made", "met"),
    *("said", "seen", "sent", "shown", "spread", "sunk", "taken", "thrown", "told", "worn"),
    *("woven", "written"),
}
NO_PARTICIPLE = {"embed", "exceed", "feed", "need", "seed", "speed", "ring", "string", "thing"}
# How the first line of a docstring begins that is no sentence.
FRAGMENT = re.compile(r"(What|Whether|Of|How|Where|When|Which|Whose|Those|That|Likewise)\b")


class Count(NamedTuple):
    """A number of the table, the whole that it is of, and how large it may be in the end.

    `per` scales it: 100 for per cent, 1000 for so many in a thousand lines, 1 for the number.
    """

    name: str
    found: int
    whole: int
    per: int
    goal: float

    @property
    def value(self) -> float:
        """The number, scaled."""
        return self.per * self.found / self.whole


def counts(folder: pathlib.Path = ROOT / "flowlin") -> list[Count]:
    """All counts of a folder's Python files."""
    texts = {path: path.read_text() for path in sorted(folder.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = [line for text in texts.values() for line in text.splitlines()]
    functions = [name for tree in trees.values() for name in function_names(tree)]
    meanings = collections.Counter(name for tree in trees.values() for name in defined(tree))
    firsts = [line for tree in trees.values() for line in first_lines(tree)]
    public = list(public_names())
    strangers = [name for name, stem in public if not words(name) & words(stem)]
    bases = [members for tree in trees.values() for members in abstract_members(tree)]
    any_lines = [line for line in lines if re.search(r"\bAny\b", line)]
    comments = [line for line in lines if line.lstrip().startswith("#")]
    return [
        Count("lines", len(lines), 1, 1, 22_500),
        Count("function names of one word, %", sum("_" not in n for n in functions),
              len(functions), 100, 50),
        Count("function names that begin with a participle, %",
              sum(is_participle(n.split("_")[0]) for n in functions), len(functions), 100, 3),
        Count("names defined in two files and more, %", sum(n > 1 for n in meanings.values()),
              len(meanings), 100, 1),
        Count("public names in a file of another name, %", len(strangers), len(public), 100, 25),
        Count("lines with `Any`, per 1,000", len(any_lines), len(lines), 1000, 6),
        Count("docstrings that begin with a fragment, %",
              sum(bool(FRAGMENT.match(line)) for line in firsts), len(firsts), 100, 5),
        Count("abstract members of the widest base class", max(bases), 1, 1, 6),
        Count("comment lines, %", len(comments), len(lines), 100, 100),
    ]  # fmt: skip


def function_names(tree: ast.AST) -> Iterator[str]:
    """Names of all functions and methods of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            yield node.name.strip("_")


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of the functions, classes and constants that a file defines at its top level."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name.strip("_")
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                yield target.id.strip("_")


def first_lines(tree: ast.AST) -> Iterator[str]:
    """First lines of the docstrings of a file's functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            yield text.splitlines()[0]


def abstract_members(tree: ast.AST) -> Iterator[int]:
    """How many abstract methods and fields each class of a file declares."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield sum(is_abstract(member) for member in node.body)


def is_abstract(member: ast.stmt) -> bool:
    """Tell whether a member of a class is left to its subclasses."""
    if isinstance(member, ast.FunctionDef):
        return any("abstract" in ast.unparse(decorator) for decorator in member.decorator_list)
    return isinstance(member, ast.AnnAssign) and "Abstract" in ast.unparse(member.annotation)


def is_participle(word: str) -> bool:
    """Tell whether a word is a participle, by its ending or by the list."""
    ending = word.endswith(("ed", "ing")) and word not in NO_PARTICIPLE
    return word in IRREGULAR or ending


def words(name: str) -> set[str]:
    """Split a name at underscores and capitals; an ending s is dropped."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower().removesuffix("s") for part in parts}


def public_names() -> Iterator[tuple[str, str]]:
    """Public functions and classes, each with the stem of its file."""
    rooms = ["flowlin", *(f"flowlin.{room}" for room in ("measures", "plot", "tasks", "theory"))]
    for room in rooms:
        for name, thing in vars(importlib.import_module(room)).items():
            home = getattr(thing, "__module__", None)
            if name[0] != "_" and callable(thing) and isinstance(home, str) and "flowlin" in home:
                source = getattr(sys.modules.get(home), "__file__", None) or home
                yield name, pathlib.Path(source).stem


def main() -> None:
    """Print the table."""
    print("| | count | goal |\n| --- | --- | --- |")
    for count in counts():
        goal = "" if count.goal == 100 else f"at most {count.goal:,g}"
        of = "" if count.whole == 1 else f" ({count.found:,} of {count.whole:,})"
        print(f"| {count.name} | {count.value:,.4g}{of} | {goal} |")


if __name__ == "__main__":
    main()
