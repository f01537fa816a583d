"""The house: a file imports from its own folder and from lower floors, and nothing runs in circles.

The table is drawn in ARCHITECTURE.md, which a test compares with it.
"""

import ast
import graphlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# From the ground up; rooms of one floor do not see each other.
FLOORS = (
    {"_tools": "arrays, argument checks, numerics, compiling, saving, progress bars, printing"},
    {"loss": "losses of a whole task"},
    {
        "tasks": "what is trained on",
        "log": "the record of what happened: events, gates, t*",
    },
    {"network": "the forward pass, the kinds of networks, initial weights"},
    {"field": "objective, statistics, policies for kinks; gates/: sliding, box QP, Filippov's rule"},
    {
        "theory": "closed forms and their conditions; early/: the early phase",
        "solvers": "RKC, averaged gates, the exact walk, pausing",
    },
    {
        "measures": "quantities of a network",
        "events": "what is watched, and how its crossings are found",
    },
    {"runs": "gradient flow, descent, sweep; trajectory, checkpoint"},
    {"agreement": "flow against descent, rates, clocks", "plot": "pictures and films"},
    {"__init__": "the public names"},
)


def imports(path):
    """Modules of the library that a file imports from, and whether inside a function."""
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inner = {id(n) for f in functions for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flowlin"):
            for alias in node.names:
                parts = (*node.module.split("."), alias.name)
                module = parts if ROOT.joinpath(*parts).with_suffix(".py").exists() else parts[:-1]
                if ROOT.joinpath(*module).is_dir():
                    module = (*module, "__init__")
                yield module, id(node) in inner


def test_files_import_downwards_and_without_circles():
    floor = {room: k for k, rooms in enumerate(FLOORS) for room in rooms}
    graph, wrong = {}, []
    for path in sorted((ROOT / "flowlin").rglob("*.py")):
        own = path.relative_to(ROOT).with_suffix("").parts
        graph[own] = {module for module, _ in imports(path)}
        for module, inside in imports(path):
            lower = module[1] == own[1] or floor[module[1]] < floor[own[1]]
            if inside or not lower:
                wrong.append(f"{'.'.join(own)} imports {'.'.join(module)}")
    assert not wrong
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_room_stands_on_a_floor():
    rooms = {path.stem for path in (ROOT / "flowlin").iterdir() if path.name[:2] != "__"}
    assert {room for rooms in FLOORS for room in rooms} == (rooms - {"py"}) | {"__init__"}


def drawing():
    rows = []
    for rooms in reversed(FLOORS):
        for k, (room, holds) in enumerate(rooms.items()):
            rows.append(f"{'  | ' if k else '    '}{room:<10}{holds}")
    return "\n".join(rows)


def test_architecture_draws_the_house():
    assert drawing() in (ROOT / "ARCHITECTURE.md").read_text()
