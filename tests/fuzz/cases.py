"""Which calls are made: drawn by hypothesis, from fixed seeds."""

import warnings
import zlib

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.names import Target
from tests.fuzz.words import owners, word

# Values that hardly any argument can be.
ODD = (
    "None", "nan", "inf", "-inf", "-1", "0", "2.5", "True", "'text'", "b''", "[]", "{}", "()",
    "object()", "dict", "fl.Task", "fl", "Ellipsis", "set()", "1j", "10**10", "-10**10", "10**400",
    "1e308", "np.ones((2, 2, 2))", "np.zeros((0,))", "np.zeros((2, 0, 3))", "jnp.array(nan)",
    "np.array([1, 2])", "np.array([True, False])", "np.array([1j, 2j])", "np.array(['a'])",
    "np.array([object()])", "np.ones((2, 2), np.float16)", "np.datetime64('2020-01-01')",
    "lambda: 1", "lambda *a, **k: 1 / 0", "lambda *a, **k: 'text'", "iter([])", "range(3)",
    "[None]", "['text']", "[nan]", "[[1.0], [1.0, 2.0]]", "task", "relu", "modes", "key",
    "decimal.Decimal('nan')", "'nan'", "np.int8(100)", "np.bool_(True)", "float", "NotImplemented",
)  # fmt: skip
# What would be a long run, a long film or a long wait, as was asked for.
LONG = {"steps": ("10**10", "10**400"), "frames": ("10**10", "10**400")}

DTYPES = ("bool", "int32", "uint8", "float16", "float32", "float64", "complex128")
FILLS = ("0", "1", "-1.0", "0.5", "nan", "inf", "1e300")


def numbers() -> st.SearchStrategy[str]:
    """Any float or integer, written out."""
    floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
    return floats | st.integers(-(2**70), 2**70).map(repr)


def arrays(formula: bool) -> st.SearchStrategy[str]:
    """Arrays of odd shapes and dtypes; of few shapes for formulas, which compile for each."""
    anything = st.lists(st.integers(0, 5), max_size=4).map(tuple)
    shape = st.sampled_from([(), (4,), (0,)]) if formula else anything
    parts = st.tuples(shape, st.sampled_from(FILLS), st.sampled_from(DTYPES))
    return parts.filter(_can_hold).map(lambda p: f"np.full({p[0]}, {p[1]}, '{p[2]}')")


def _can_hold(parts: tuple) -> bool:
    _, fill, dtype = parts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fill in {"0", "1"} or dtype.startswith(("float", "complex"))


def values(target: Target, name: str) -> st.SearchStrategy[str]:
    """Odd values of one argument, half of them near to its kind."""
    banned = LONG.get(name, ())
    odd = st.sampled_from([value for value in ODD if value not in banned])
    if name not in LONG:
        odd = st.integers(0, 5).flatmap(lambda k, odd=odd: odd if k else numbers())
    known = word(target, name)
    near = st.sampled_from(known.kind.near) if known.kind.near else odd
    some = arrays(known.kind.formula)
    return st.integers(0, 9).flatmap(lambda k: near if k < 5 else odd if k < 9 else some)


@st.composite
def cases(draw, target: Target) -> str:
    """A call with one odd argument, or two, or of another signature."""
    names, form = list(target.parameters), draw(st.integers(0, 19))
    self = f"self={draw(st.sampled_from(owners(target)))}" if target.owner else ""
    if not names:
        return call(target, self)
    name = draw(st.sampled_from(names))
    if form == 0 and target.required:
        return call(target, f"{draw(st.sampled_from(target.required))}=MISSING")
    if form == 1:
        return call(target, f"{misspelt(name, names)}={word(target, name).value}")
    if form == 2:
        return call(target, "*EXTRA")
    changes = {name: draw(values(target, name))}
    if form < 6:
        other = draw(st.sampled_from(names))
        changes[other] = draw(values(target, other))
    own = [self] if form > 15 and self else []
    return call(target, *own, *(f"{n}={value}" for n, value in changes.items()))


def call(target: Target, *arguments: str) -> str:
    return f"{target.name}({', '.join(a for a in arguments if a)})"


def misspelt(name: str, names: list[str]) -> str:
    """The name with one letter too many, such as no parameter has."""
    wrong = name[:-1] + name[-1] * 2
    return wrong if wrong not in names else wrong + "_"


def drawn(target: Target, number: int, own: int = 0) -> list[str]:
    """A number of cases of one callable, the valid call first; the same ones for one `own` seed."""
    found: list[str] = []

    @seed(zlib.crc32(target.name.encode()) + own)
    @settings(
        max_examples=number + 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    )
    @given(cases(target))
    def collect(case: str) -> None:
        found.append(case)

    collect()
    # Hypothesis begins with the simplest, which would be the same argument for all callables.
    return list(dict.fromkeys([call(target), *found[1:]]))
