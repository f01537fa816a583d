"""The public callables, collected from the public names."""

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx

import flowlin as fl

MODULES = {
    "fl": fl,
    "fl.theory": fl.theory,
    "fl.tasks": fl.tasks,
    "fl.measures": fl.measures,
    "fl.plot": fl.plot,
}

# What runs, measures and closed forms return: the library makes these, users read them.
RETURNED = {
    "fl.Accuracy",
    "fl.Comparison",
    "fl.CriticalPoint",
    "fl.RunErrors",
    "fl.EventLog",
    "fl.Grid",
    "fl.Linearization",
    "fl.Pathway",
    "fl.RateCertificate",
    "fl.Rectified",
    "fl.RectifiedPathway",
    "fl.Sweep",
    "fl.Trajectory",
    "fl.theory.AfterLinearization",
    "fl.theory.BiasMode",
    "fl.theory.Certificate",
    "fl.theory.EarlyPhase",
    "fl.theory.Lazy",
    "fl.theory.LazyCertificate",
    "fl.theory.LeadingPathways",
    "fl.theory.Modes",
    "fl.theory.Race",
    "fl.theory.RaceCertificate",
    "fl.theory.SlowedClock",
    "fl.theory.Solution",
}

# Methods by which parts of the library call each other, with objects that users do not make.
INNER = {
    "activation",
    "gate",
    "method",
    "choose_solver",
    "memory",
    "velocity",
    "remedy",
    "wrap_solver",
    "gate_channel",
    "map_columns",
    "merge_with",
    "observable",
    "of",
    "with_run",
    "from_function",
    "total_loss",
    "watches",
    "weight",
    "factor_per_sample",
    "where",
    "sliding",
    "interpolation_cls",
    "model_at",
    "require_fit",
    "require_weights",
    "is_sum_over_outputs",
    "with_module",
    "smooth_outputs",
    "smooth_activation",
    "time_constants",
    "with_parameters",
    "with_rows",
    "with_sample_gates",
}

OPERATORS = ("__call__", "__getitem__")


@dataclasses.dataclass(frozen=True)
class Target:
    """A public callable or property.

    - `name`: as a user writes it, `fl.Trajectory.extend`.
    - `function`: what is called; for properties a function of the instance.
    - `parameters`: by name, without `self`; none for a property.
    - `owner`: of a method or property, the name of its class.
    """

    name: str
    function: Callable[..., Any]
    parameters: dict[str, inspect.Parameter]
    owner: str | None = None

    @property
    def required(self) -> list[str]:
        """Parameters without a default."""
        return [name for name, p in self.parameters.items() if p.default is p.empty]


def targets() -> dict[str, Target]:
    """All public callables by name, in order."""
    found: dict[str, Target] = {}
    for module_name, module in MODULES.items():
        for name in sorted(dir(module)):
            thing = getattr(module, name)
            if name.startswith("_") or isinstance(thing, types.ModuleType):
                continue
            for target in _of(f"{module_name}.{name}", thing):
                found[target.name] = target
    return found


def _of(name: str, thing: Any) -> Iterator[Target]:
    """The callables behind one public name."""
    if not getattr(thing, "__module__", "").startswith("flowlin"):
        return
    if inspect.isclass(thing):
        yield from _of_class(name, thing)
    elif callable(thing):
        yield Target(name, thing, _parameters(thing))


def _of_class(name: str, cls: type) -> Iterator[Target]:
    """Constructor, methods and properties that the library defines."""
    if issubclass(cls, (BaseException, enum.Enum, eqx.Enumeration)):
        return
    if name not in RETURNED and not issubclass(cls, tuple):
        yield Target(name, cls, _parameters(cls))
    for key in sorted(dir(cls)):
        if (key.startswith("_") and key not in OPERATORS) or key in INNER or _is_diffrax(cls, key):
            continue
        own = inspect.getattr_static(cls, key)
        if isinstance(own, property):
            yield Target(f"{name}.{key}", own.__get__, {}, name)
        elif isinstance(own, (classmethod, staticmethod)):
            yield Target(f"{name}.{key}", getattr(cls, key), _parameters(getattr(cls, key)))
        elif callable(own) and _is_ours(own):
            function = getattr(cls, key)
            names = list(_parameters(function).items())
            yield Target(f"{name}.{key}", function, dict(names[1:]), name)


def _is_diffrax(cls: type, key: str) -> bool:
    """Whether diffrax asks for this member, and calls it."""
    return any(base.__module__.startswith("diffrax") and hasattr(base, key) for base in cls.mro())


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("flowlin")


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Named parameters; those of `**options` belong to whatever they are handed on to."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind not in many}
