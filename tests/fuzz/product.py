"""The product: every public callable, each of its arguments, a wrong value of each sort.

Only what is certainly bad for an argument is given to it, so that every call must be refused: no
call computes anything.
"""

from tests.fuzz.cases import call, misspelt
from tests.fuzz.names import Target
from tests.fuzz.things import evaluated
from tests.fuzz.words import word

# Of each sort, from the plainest on: the first that is bad for an argument is taken.
SORTS = {
    "type": ("object()", "'text'", "3"),
    "shape": ("np.ones((2, 3, 4))", "np.ones((2, 3))", "np.ones(3)", "[]"),
    "nan": ("nan", "np.array([1.0, nan])", "[nan]"),
    "sign": ("-1", "-0.5", "-np.ones(4)"),
    "name": ("'no such name'", "{'no such name': 1}"),
}


def product(target: Target) -> list[str]:
    """The calls of one callable, those with a misspelt argument and with a surplus one last."""
    found = [
        call(target, f"{name}={value}")
        for name in target.parameters
        for values in SORTS.values()
        if (value := first_bad(target, name, values)) is not None
    ]
    if target.parameters:
        name = next(iter(target.parameters))
        wrong = misspelt(name, list(target.parameters))
        found.append(call(target, f"{wrong}={word(target, name).value}"))
        found.append(call(target, "*EXTRA"))
    return list(dict.fromkeys(found))


def first_bad(target: Target, name: str, values: tuple[str, ...]) -> str | None:
    """The first value that the argument can certainly not have, or None."""
    good = word(target, name).kind.good
    return next((value for value in values if not good(evaluated(value))), None)
