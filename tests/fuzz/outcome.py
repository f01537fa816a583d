"""One case: the call is made, and what came of it is judged."""

import ast
import dataclasses
import functools
import inspect
import linecache
import pathlib
import re
import time
import traceback
import types
import warnings
from typing import Any

import equinox as eqx
import jax
import numpy as np

import flowlin as fl
from tests.fuzz.kinds import AbstractNetwork
from tests.fuzz.names import Target, targets
from tests.fuzz.things import plt, shared
from tests.fuzz.words import valid, word

VERDICTS = ("right", "told", "obscure", "silent", "hang", "died", "invalid")
HOME = pathlib.Path(fl.__file__).parent
MISSING, EXTRA = "MISSING", "*EXTRA"
# IndexError is what Python asks of a sequence.
TOLD = (ValueError, TypeError, ImportError, IndexError, fl.RunError)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a case: one of `VERDICTS`, why, and the processor time in seconds."""

    case: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def target(self) -> str:
        return self.case.split("(")[0]


@dataclasses.dataclass(frozen=True)
class Call:
    """A case, read: expressions of the arguments that differ from the valid ones."""

    target: Target
    changes: dict[str, str]
    extra: bool

    @property
    def misspelt(self) -> list[str]:
        return [name for name in self.changes if name not in {"self", *self.target.parameters}]

    @property
    def misses(self) -> list[str]:
        return [name for name, value in self.changes.items() if value == MISSING]


def read(case: str) -> Call:
    """The call that a case describes: `fl.f(a=1)`, `fl.f(a=MISSING)` or `fl.f(*EXTRA)`."""
    tree: Any = ast.parse(case, mode="eval").body
    changes = {one.arg: ast.unparse(one.value) for one in tree.keywords}
    return Call(targets_by_name()[ast.unparse(tree.func)], changes, bool(tree.args))


targets_by_name = functools.cache(targets)


def made(expression: str) -> Any:
    """The value of an expression; what its functions raise is recognised by the file's name."""
    return eval(compile(expression, "<case>", "eval"), {}, shared())


def judged(case: str, show: bool = False) -> Outcome:
    """The case's outcome; `show` prints the traceback, or the value."""
    call, start = read(case), time.process_time()
    pathlib.Path("checkpoint.npz").unlink(missing_ok=True)
    try:
        given = valid(call.target) | call.changes
        values = {name: made(e) for name, e in given.items() if e != MISSING}
    except Exception as error:
        return Outcome(case, "invalid", f"an argument cannot be made: {error!r}")
    changed = {name: values[name] for name in call.changes if name in values}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = _called(call, values)
        verdict, detail = _of_value(call, changed, value)
        if show:
            print(repr(value))
    except Exception as error:
        verdict, detail = _of_error(call, error)
        if show:
            traceback.print_exception(error)
    finally:
        plt.close("all")
        shared().pop("axes", None)
    if not call.changes and not call.extra and verdict != "right":
        verdict = "invalid"
    return Outcome(case, verdict, detail, time.process_time() - start)


def _called(call: Call, values: dict[str, Any]) -> Any:
    own = (values.pop("self"),) if "self" in values else ()
    if call.extra:
        places = [
            name for name, p in call.target.parameters.items() if p.kind != p.KEYWORD_ONLY
        ]  # fmt: skip
        for name in places:
            values.setdefault(name, made(word(call.target, name).value))
        own = (*own, *(values.pop(name) for name in places), None)
    value = call.target.function(*own, **values)
    return jax.block_until_ready(value)


def _of_value(call: Call, changed: dict[str, Any], value: Any) -> tuple[str, str]:
    """Whether an answer is one."""
    if call.misspelt or call.misses or call.extra:
        return "silent", f"accepted: {type(value).__name__}"
    for name, bad in changed.items():
        if name == "self":
            continue
        known = word(call.target, name)
        if _has_nan(bad) and _has_nan(value) and _is_answer(call.target, value):
            continue
        if not known.kind.good(bad) and not _is_default(call.target, name, bad):
            return "silent", f"`{name}` accepted; returned {_short(value)}"
        if known.kind.formula and _has_nan(bad) and not _has_nan(value):
            return "silent", f"NaN in `{name}` became {_short(value)}"
    odd = any(map(_has_odd, changed.values())) or _says_nan(call.target)
    if not odd and _has_nan(value) and not _has_nan_when_valid(call.target.name):
        return "silent", f"NaN out of finite arguments: {_short(value)}"
    return "right", ""


def _is_answer(target: Target, value: Any) -> bool:
    """Whether numbers were asked for, where NaN may come out of NaN: not a run, not an object."""
    made_of_arguments = (fl.Trajectory, fl.Sweep, fl.Task, AbstractNetwork)
    return not inspect.isclass(target.function) and not isinstance(value, made_of_arguments)


def _says_nan(target: Target) -> bool:
    """Whether a docstring says that NaN is an answer: its own, its class's, its module's."""
    owner = eval(target.owner or target.name.rpartition(".")[0], {"fl": fl})
    texts = [target.function.__doc__, owner.__doc__]
    return any("nan" in (text or "").split("**Raises")[0].lower() for text in texts)


def _is_default(target: Target, name: str, value: Any) -> bool:
    default = target.parameters[name].default
    return value is None and default is None


@functools.cache
def _has_nan_when_valid(name: str) -> bool:
    call = read(f"{name}()")
    values = {key: made(e) for key, e in valid(call.target).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _has_nan(_called(call, values))


def _numbers(value: Any) -> list[np.ndarray]:
    """The floating-point arrays in a value."""
    found = []
    for leaf in jax.tree.leaves(value):
        if isinstance(leaf, (float, np.floating)) or eqx.is_inexact_array_like(leaf):
            found.append(np.asarray(leaf))
    return found


def _has_nan(value: Any) -> bool:
    return any(bool(np.any(np.isnan(a))) for a in _numbers(value))


def _has_odd(value: Any) -> bool:
    """Whether there is anything but finite numbers of moderate size."""
    if isinstance(value, int):
        return abs(value) > 1e6
    numbers = _numbers(value)
    return any(not np.all(np.abs(a) < 1e6) for a in numbers) or isinstance(value, (str, bytes))


def _of_error(call: Call, error: Exception) -> tuple[str, str]:
    """Whether an error says what is wrong with which argument."""
    message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{_relative(frame.filename)}:{frame.lineno}"
    if frame.filename == "<case>":
        return "told", message  # the caller's own function raised it
    if isinstance(error, TypeError) and _tells_of_the_call(call, str(error)):
        return "told", message
    if isinstance(error, OSError) and error.filename is not None:
        return "told", message  # the system's own words, which name the file
    by_us = _is_ours(frame.filename) and _raises(frame)
    if isinstance(error, TOLD) and by_us and _names(call, str(error)):
        return "told", message
    return "obscure", f"{message} ({place})"


def _tells_of_the_call(call: Call, message: str) -> bool:
    """Python's own words for a call that does not fit the signature."""
    if call.extra:
        return "positional argument" in message
    return any(name in message for name in (*call.misspelt, *call.misses))


def _is_ours(filename: str) -> bool:
    return HOME in pathlib.Path(filename).parents


def _relative(filename: str) -> str:
    path = pathlib.Path(filename)
    if _is_ours(filename):
        return f"flowlin/{path.relative_to(HOME)}"
    return "/".join(path.parts[-3:])


def _raises(frame: traceback.FrameSummary) -> bool:
    """Whether the frame's line is a `raise`, rather than something that failed."""
    return linecache.getline(frame.filename, frame.lineno or 0).lstrip().startswith("raise")


def _names(call: Call, message: str) -> bool:
    """Whether the message has an argument in backticks, or one of those that were changed."""
    if re.search(r"`[^`]+`", message):
        return True
    return any(len(n) > 2 and re.search(rf"\b{n}\b", message) for n in call.changes)


def _short(value: Any) -> str:
    if isinstance(value, (types.GeneratorType, eqx.Module)) or inspect.isfunction(value):
        return type(value).__name__
    return " ".join(repr(value).split())[:80]
