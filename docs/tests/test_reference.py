"""The reference is whole: every public name once, each with an example, no method left out."""

import ast
import functools
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import flowlin as fl

REFERENCE = Path(__file__).resolve().parent.parent / "reference"
sys.path[:0] = [str(REFERENCE), str(REFERENCE.parent / "_tools")]

import _docstrings
import reference_pages

PAGES = sorted(set(REFERENCE.glob("*.md")) - {REFERENCE / "derivations.md"})
EXAMPLE = re.compile(r"^```(?:pycon|python)$", re.M)
# A shape in words: (T, P, N_out), (..., H), "of its shape", "scalar".
AXIS = r"(?:[A-Z]\w*|[a-z](?:_\w+)?|\d+|runs|\.\.\.)(?: [-+*] \w+)?"
SHAPE = re.compile(rf"\({AXIS}(?:(?:,\s+{AXIS})+|,)\)|\bshapes?\b|\bscalar\b")
ROOMS = {"flowlin": fl} | {
    f"flowlin.{room}": getattr(fl, room) for room in ("theory", "tasks", "measures", "plot")
}
# What runs, files and other classes call, and users do not: of networks, of events and policies for
# kinks, of losses, of logs and trajectories.
INNER = re.findall(
    r"\w+",
    """
    sliding facts
    require_fit with_module smooth_outputs
    smooth_activation sample_gates time_constants with_sample_gates
    activation gate
    choose_solver remedy traits wrap_solver walks watches width
    total_loss weight factor_per_sample require_weights is_sum_over_outputs
    channel gate_channel map_columns merge_with offsets without_padding where model_at
    models of with_run from_function with_rows
    """,
)


def entries(text):
    """(name, what stands below it until the next entry or heading) of a page's entries."""
    found = list(reference_pages.ENTRY.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    for match, end in zip(found, ends, strict=True):
        yield match[1], re.split(r"^#", text[match.end() : end], flags=re.M)[0]


def public():
    """The public names, by their full short paths."""
    for path, room in ROOMS.items():
        for name in dir(room):
            module = isinstance(getattr(room, name), ModuleType)
            if (name[0] != "_" or name == "__version__") and not module:
                yield f"{path}.{name}"


def thing(path):
    """What a public name stands for."""
    return eval(path, {"flowlin": fl})


def faults(pages):
    """What is missing, doubled, unknown or without an example in the text of pages."""
    listed = [entry for text in pages for entry in entries(text)]
    names, known = [name for name, _ in listed], set(public())
    return (
        [f"{name} is missing" for name in sorted(known - set(names))]
        + [f"{name} stands twice" for name in sorted(set(names)) if names.count(name) > 1]
        + [f"{name} is no public name" for name in names if name not in known]
        + [f"{name} has no example" for name, below in listed if not EXAMPLE.search(below)]
    )


def is_own(kind):
    """Whether a class is flowlin's."""
    return kind.__module__.split(".")[0] == "flowlin"


def methods(kind):
    """A class's public methods and properties, without those that a base of others asks for."""
    own = {name for base in kind.__mro__ if is_own(base) for name in vars(base)}
    others = {name for base in kind.__mro__ if not is_own(base) for name in vars(base)}
    for name in sorted(own - others):
        thing = inspect.getattr_static(kind, name)
        absent = type(thing).__name__ == "AbsentAttribute"  # it says what to do instead
        function = (callable(thing) or hasattr(thing, "__get__")) and not absent
        if function and name[0] != "_" and not inspect.isclass(thing):
            yield name


def says_what_it_returns(function, *, method):
    """Whether a docstring does under its own heading, or that of a method in its first line."""
    text = inspect.getdoc(function) or ""
    nothing = inspect.signature(function).return_annotation in (None, "None")
    return nothing or "**Returns:**" in text or (method and text.startswith("Return "))


def lacks_shape(function):
    """Whether it returns arrays without a word of their shape, nor in its annotation."""
    returns = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].returns
    annotation = ast.unparse(returns) if returns else ""
    if "Array" not in annotation and "ndarray" not in annotation:
        return False
    known = re.findall(r"Array, '([^']*)'", annotation)
    told = known and all(shape.strip(" .") or not shape for shape in known)
    return not told and not SHAPE.search(inspect.getdoc(function) or "")


def told(kind, name):
    """What stands behind a method or a property of a class, and whether it is a property."""
    found = inspect.getattr_static(kind, name)
    if isinstance(found, property | functools.cached_property):
        return getattr(found, "fget", None) or found.func, True
    if isinstance(found, staticmethod | classmethod):
        return inspect.unwrap(found.__func__), False
    bound = inspect.unwrap(getattr(kind, name))
    return getattr(bound, "__func__", bound), False


def shown_methods():
    """(where it is, its function, whether a property) of all methods that the pages show."""
    for name, below in (entry for page in PAGES for entry in entries(page.read_text())):
        kind = thing(name)
        if inspect.isclass(kind) and not isinstance(kind, type(fl.RESULTS)):
            shown = set(re.findall(r"\w+", below.partition("-->")[0]))
            for method in set(methods(kind)) & shown:
                yield f"{name}.{method}", *told(kind, method)


def test_every_function_says_what_it_returns():
    """Functions and methods in words; a property's sentence is what it is."""
    found = [(name, thing(name)) for name in public() if inspect.isfunction(thing(name))]
    shown = [(name, function) for name, function, whole in shown_methods() if not whole]
    assert len(found) > 50 < len(shown)
    assert [name for name, f in found if not says_what_it_returns(f, method=False)] == []
    assert [name for name, f in shown if not says_what_it_returns(f, method=True)] == []
    assert not says_what_it_returns(says_what_it_returns, method=True)  # the rule can fail


def test_whatever_returns_arrays_says_their_shape():
    """Functions, methods and properties, in the annotation or in words."""
    found = [(name, inspect.unwrap(thing(name))) for name in public()]
    shown = [(name, function) for name, function, _ in shown_methods()]
    functions = [(name, f) for name, f in found if inspect.isfunction(f)] + shown
    assert [name for name, function in functions if lacks_shape(function)] == []

    def shapeless() -> "Array":
        """Return (something, or nothing)."""

    assert lacks_shape(shapeless)  # the rule can fail


def signatures():
    """The signatures that the pages show, as text."""
    for name in (entry for page in PAGES for entry, _ in entries(page.read_text())):
        named = thing(name)
        if inspect.isfunction(named):
            yield " ".join(filter(None, _docstrings.of_function(named, bound=False)))
        elif inspect.isclass(named) and not isinstance(named, type(fl.RESULTS)):
            yield _docstrings.of_class(named)
    for _, function, _ in shown_methods():
        yield " ".join(filter(None, _docstrings.of_function(function, bound=True)))


def test_words_in_signatures_are_explained():
    """What stands in annotations is public, of Python's `typing`, or a row of the first page."""
    plain = {"Any", "Callable", "Literal", "Mapping", "Sequence", "AbstractContextManager"}
    plain |= {"True", "False", "None", "Self", "MOST"}  # MOST is a number
    known = plain | {name for things in _docstrings.public().values() for name in things}
    text = re.sub(r"'[^']*'", "", " ".join(signatures()))
    used = set(re.findall(r"(?<![\w.~])[A-Z]\w+", text))
    assert {"Numbers", "AnyLoss"} < used
    assert used - known == reference_pages.words() & used
    assert reference_pages.words() - used == set()


def test_each_page_opens_with_a_table_of_its_names():
    for page in set(PAGES) - {REFERENCE / "index.md"}:
        text = page.read_text()
        assert text.split("\n\n")[2] == "<!-- {names} -->", page.name
        told = dict(reference_pages.names_of(text))
        assert list(told) == [name for name, _ in entries(text)]
        assert all(10 < len(sentence) < 250 for sentence in told.values()), told
    assert reference_pages.first_sentence("A rule: it moves\nw by\n\n$x$") == "A rule."
    assert reference_pages.first_sentence("One thing. Another.") == "One thing."


def test_the_flow_is_shown_before_its_arguments():
    text = (REFERENCE / "runs.md").read_text()
    assert ">>> flow = fl.gradient_flow(network, task" in text.partition("autofunction")[0]


def test_what_draws_has_a_picture():
    drawing = {name for name in dir(fl.plot) if name[0] != "_"} - {"COLOURS", "style"}
    drawing = {name for name in drawing if inspect.isfunction(getattr(fl.plot, name))}
    assert {path.stem for path in reference_pages.PICTURES.iterdir()} == drawing
    lines = ["Draw it.", "", "More."]
    reference_pages.add_picture(None, "function", "flowlin.plot.losses", None, None, lines)
    assert lines[2] == "![What losses draws](/_static/plot/losses.png)"


def test_every_public_name_stands_once_with_an_example():
    """All names of flowlin and its rooms; no others."""
    pages = [page.read_text() for page in PAGES]
    assert not faults(pages), (
        "a public name has one entry, with an example behind it, in a page of docs/reference: see "
        "docs/contribute/add-a-measure.md"
    )
    short = ["".join(pages).replace("autofunction:: flowlin.sweep ", "autofunction:: flowlin.x ")]
    assert faults(short) == ["flowlin.sweep is missing", "flowlin.x is no public name"]
    again = [*pages, "<!-- .. autofunction:: flowlin.sweep -->"]
    assert {"flowlin.sweep stands twice", "flowlin.sweep has no example"} <= set(faults(again))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_classes_name_all_their_methods(page):
    """Each public method and property stands under `:members:`, or is known as an inner one."""
    for name, below in entries(page.read_text()):
        named = thing(name)
        if inspect.isclass(named) and not isinstance(named, type(fl.RESULTS)):
            shown = set(re.findall(r"\w+", below.partition("-->")[0]))
            tuples = getattr(named, "_fields", ())
            missing = set(methods(named)) - shown - set(INNER) - set(tuples)
            assert not missing, name
