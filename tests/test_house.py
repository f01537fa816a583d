"""The house: a file imports from its own folder and from lower floors, and nothing runs in circles.

The table of floors is drawn in ARCHITECTURE.md. And what holds for all files: how long they are,
which tests look inside, and that nobody compiles otherwise than users do.
"""

import ast
import functools
import graphlib
import importlib
import importlib.util
import inspect
import pathlib
import re
import runpy
import sys
import traceback

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "flowlin").rglob("*.py"))
TESTS = ROOT / "tests"
SOURCES = ("flowlin", "tests", "docs", "examples", "benchmarks")
# From the ground up.
FLOORS = (
    {"_tools": "arrays, argument checks, numerics, series, files, printing"},
    {"tasks": "what is trained on"},
    {"networks": "the forward pass, the kinds of networks, initial weights"},
    {"training": "losses, objectives, statistics, rules, problem"},
    {"record": "what happened: trajectory, event log, t*, sweep, results"},
    {"measures": "quantities of a network, modes of a task"},
    {"events": "what is watched, and how all its crossings are found"},
    {"engine": "what compiles a run; kinks/: policies, sides, walks; solvers/"},
    {"runs": "one file per verb: checks, names, pauses, checkpoints"},
    {"theory": "closed forms, certificates, readings of runs"},
    {"plot": "pictures and films"},
    {"__init__": "the public names"},
)
# Tests that look inside; all others use public names.
INSIDERS = {
    "sharded_checks.py",
    "test_averaged.py",
    "test_crossings.py",
    "test_deep.py",
    "test_inside.py",
    "test_matching.py",
    "test_objectives.py",
    "test_walk.py",
}
# How the code reads: today's counts, on their way to the goals of docs/_tools/house_counts.py.
COUNTS = {
    "function names of one word, %": 20.2,
    "function names that begin with a participle, %": 1.6,
    "names defined in two files and more, %": 0.5,
    "public names in a file of another name, %": 25,
    "lines with `Any`, per 1,000": 6,
    "docstrings that begin with a fragment, %": 0.4,
    "abstract members of the widest base class": 18,
}
LONGEST = 500  # lines
MOST_FRAMES = 7
SELF = "test_house.py:test_few_frames_lie_between_the_call_and_the_solver"
# Files that are longer, and are to be cut.
LONG = {
    "examples/paper/c_1_svd.py",
    "tests/test_deep.py",
    "tests/test_flow.py",
    "tests/test_messages.py",
    "tests/test_network.py",
    "tests/test_objectives.py",
    "tests/test_pausing.py",
    "tests/test_walk.py",
}
# Flags and inner parts of JAX with which programs are not those that users run; in two parts, so
# that this file does not hold them.
OTHER_PROGRAMS = re.compile(
    "|".join(
        a + b
        for a, b in (
            (r"jax\.", "_src"),
            ("xla_", "backend_optimization"),
            ("xla_", "llvm_disable"),
            ("xla_", "disable_hlo"),
            ("XLA_", "FLAGS"),
        )
    )
)


@functools.cache
def imports(path):
    """(module, whether inside a function) of everything that a file imports."""
    return tuple(_imports(path))


def _imports(path):
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inner = {id(n) for f in functions for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((tuple(alias.name.split(".")), id(node) in inner) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            folder = own(path)[: -node.level] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            yield from (((*folder, *module, a.name), id(node) in inner) for a in node.names)


def file_of(name):
    """The library's file, as a tuple, that a name is imported from."""
    place = ROOT.joinpath(*name)
    module = name if place.is_dir() or place.with_suffix(".py").exists() else name[:-1]
    return (*module, "__init__") if ROOT.joinpath(*module).is_dir() else module


def own(path):
    return path.relative_to(ROOT).with_suffix("").parts


def library(path):
    return [(file_of(name), inside) for name, inside in imports(path) if name[0] == "flowlin"]


def climbs(importer, imported):
    floor = {room: k for k, rooms in enumerate(FLOORS) for room in rooms}
    return importer[1] != imported[1] and floor[imported[1]] >= floor[importer[1]]


def test_files_import_downwards_and_never_inside_a_function():
    wrong = [
        f"{'/'.join(own(path))} imports {'.'.join(module)}"
        for path in FILES
        for module, inside in library(path)
        if inside or climbs(own(path), module)
    ]
    assert not wrong
    assert climbs(("flowlin", "tasks", "x"), ("flowlin", "record", "y"))  # the rule can fail
    assert not climbs(("flowlin", "plot", "x"), ("flowlin", "runs", "y"))


def test_no_circles():
    graph = {own(path): {module for module, _ in library(path)} for path in FILES}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_room_stands_on_a_floor():
    rooms = {path.stem for path in (ROOT / "flowlin").iterdir() if path.name[:2] != "__"}
    assert {room for rooms in FLOORS for room in rooms} == (rooms - {"py"}) | {"__init__"}


def test_few_files_use_what_equinox_keeps_to_itself():
    """One for the library, one for the solvers, which import nothing of it."""
    users = [
        own(p)[1:] for p in FILES if any(n[:2] == ("equinox", "internal") for n, _ in imports(p))
    ]
    assert users == [("_tools", "numerics"), ("engine", "solvers", "rkc")]


def doors(path):
    """The checks that `checked` is given by name, `word=check`, in a file."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    checks = [call.keywords for call in calls if ast.unparse(call.func) == "checked"]
    return [ast.unparse(check) for words in checks for check in words]


def test_signatures_tell_the_truth():
    """A conversion stands in the body, not at the door, so that nothing is told its type there."""
    assert not [own(path) for path in FILES if ("typing", "cast") in dict(imports(path))]
    found = [door for path in FILES for door in doors(path)]
    assert "network=any_module" in found  # they are seen
    assert not [door for door in found if "=as_" in door]


SOLVERS = ("flowlin", "engine", "solvers")


def outside(path):
    """What a file imports of the library beside the solvers."""
    return [module for module, _ in library(path) if module[:3] != SOLVERS]


def test_solvers_import_nothing_of_the_library():
    """So the folder can be taken as it stands: here it is loaded under another name."""
    folder = ROOT.joinpath(*SOLVERS)
    files = [path for path in FILES if path.parent == folder]
    assert len(files) > 5
    assert not [own(path)[-1] for path in files if outside(path)]
    assert outside(folder.parent / "allowed.py")  # the rule can fail
    try:
        spec = importlib.util.spec_from_file_location("taken", folder / "__init__.py")
        assert spec is not None
        sys.modules["taken"] = importlib.util.module_from_spec(spec)
        taken = [importlib.import_module(f"taken.{p.stem}") for p in files if p.stem[0] != "_"]
        things = [thing for module in taken for thing in vars(module).values()]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "taken"]:
            del sys.modules[name]
    homes = {getattr(thing, "__module__", None) or "" for thing in things}
    assert {"taken.rkc", "taken.recycled_bdf"} <= homes
    assert not [home for home in homes if home.split(".")[0] == "flowlin"]


def test_few_frames_lie_between_the_call_and_the_solver(monkeypatch):
    """Those of the library; a tracer enters them once."""
    frames = []

    class Seen(Exception):
        """The frames are known: the solver need not be traced."""

    def look(*args, **options):
        names = [f"{frame.filename}:{frame.name}" for frame in traceback.extract_stack()]
        start = max(k for k, name in enumerate(names) if name.endswith(SELF))
        frames.append(
            [name for name in names[start + 1 : -1] if name.startswith(f"{ROOT}/flowlin/")]
        )
        raise Seen

    monkeypatch.setattr(diffrax, "diffeqsolve", look)
    task = fl.Task(jnp.eye(3), jnp.eye(3), name="no other test's shapes")
    network = fl.LinearNetwork.init(task, (7,), 1e-3, key=jax.random.key(0))
    with pytest.raises(Seen):
        fl.gradient_flow(network, task, 1.0)
    assert len(frames) == 1
    assert 3 < len(frames[0]) <= MOST_FRAMES


def classes():
    """All classes of the library."""
    files = [path for path in FILES if path.stem != "__init__"]
    things = [t for p in files for t in vars(importlib.import_module(".".join(own(p)))).values()]
    return {thing for thing in things if inspect.isclass(thing) and is_own(thing)}


def is_own(kind):
    return kind.__module__.split(".")[0] == "flowlin"


def overridden(kind):
    """What a class defines although one of the library's classes behind it defines it already."""
    defined = {n for n in vars(kind) if not n.startswith("__") or n == "__call__"} - {"_abc_impl"}
    for base in filter(is_own, kind.__mro__[1:]):
        for name in defined & set(vars(base)):
            if not getattr(vars(base)[name], "__isabstractmethod__", False):
                yield f"{kind.__name__}.{name}"


def test_methods_are_abstract_or_final():
    assert not [name for kind in classes() for name in overridden(kind)]
    assert not [path for path in FILES if "NotImplementedError" in path.read_text()]
    assert sum(inspect.isabstract(kind) for kind in classes()) > 7

    class Louder(fl.SquaredError):
        def total_loss(self, outputs, targets):
            return 2.0 * super().total_loss(outputs, targets)

    assert list(overridden(Louder)) == ["Louder.total_loss"]  # the rule can fail


def test_dir_lists_public_names_only():
    assert {"Trajectory", "plot", "__version__"} <= set(dir(fl))
    hidden = {"runs", "record", "training", "events", "networks", "engine", "_tools"}
    assert not hidden & set(dir(fl))
    assert all(hasattr(fl, name) for name in dir(fl))


def test_warnings_of_all_rooms_pass_through_the_library():
    assert all(
        str(path).startswith(importlib.import_module("flowlin._tools.warn").PASSED_THROUGH)
        for path in FILES
    )


def test_a_warning_points_at_the_line_that_called():
    task = fl.tasks.xor()
    network = fl.ReLUNetwork((np.ones((4, 2)), np.ones((2, 4))))

    def run(network):
        return fl.gradient_flow(network, task, 0.1, solver=diffrax.Kvaerno3(), rtol=1e-3).losses

    with pytest.warns(fl.KinksWarning) as seen:
        jax.eval_shape(run, network)  # traced only
    assert (seen[0].filename, seen[0].lineno) == (__file__, run.__code__.co_firstlineno + 1)


def drawing():
    rows = []
    for rooms in reversed(FLOORS):
        for k, (room, holds) in enumerate(rooms.items()):
            rows.append(f"{'  | ' if k else '    '}{room:<11}{holds}")
    return "\n".join(rows)


def test_architecture_draws_the_house():
    assert drawing() in (ROOT / "ARCHITECTURE.md").read_text()


def inside(text):
    """Whether a file's text imports from within the library."""
    modules = [
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    ]
    return any(name.startswith("flowlin.") for name in modules)


def test_few_tests_look_inside():
    found = {p.relative_to(TESTS).as_posix() for p in TESTS.rglob("*.py") if inside(p.read_text())}
    assert len(INSIDERS) <= 8
    assert found == INSIDERS
    assert inside("def f():\n    import flowlin.runs.run")  # the rule can fail
    assert not inside("import flowlin as fl\nfrom flowlin import theory")


def test_files_are_short():
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    lengths = {p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in files}
    assert len(lengths) > 200
    long = {name for name, lines in lengths.items() if lines > LONGEST}
    assert long == LONG, f"cut a file of more than {LONGEST} lines in two; take one cut off LONG"


def test_nobody_compiles_otherwise_than_users():
    """Pages may tell of flags; programs set none."""
    files = [p for folder in (*SOURCES, ".ci") for p in (ROOT / folder).rglob("*") if p.is_file()]
    code = [path for path in files if path.suffix in ("", ".py", ".sh", ".ipynb")]
    code += [ROOT / "dev.py", ROOT / "pyproject.toml"]
    assert ROOT / ".ci" / "run" in code
    assert not [path for path in code if OTHER_PROGRAMS.search(path.read_text())]
    assert OTHER_PROGRAMS.search('os.environ["XLA_' + 'FLAGS"]')  # the rule can fail


def test_the_code_reads_no_worse_than_it_did():
    found = runpy.run_path(str(ROOT / "docs" / "_tools" / "house_counts.py"))
    values = {count.name: count.value for count in found["counts"]()}
    assert not {name: values[name] for name, limit in COUNTS.items() if values[name] > limit}
    assert [found["is_participle"](word) for word in ("told", "driven", "seed", "run")] == [
        True, True, False, False,
    ]  # fmt: skip
