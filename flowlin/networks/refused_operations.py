"""What is said of operations with kinks that are not known: what each does, and what to write."""

import numpy as np

from flowlin.networks.value_facts import Definitions, Fact, Operation, constant_value, holds_floats

REMEDY = "write it with jax.nn.relu, jax.nn.leaky_relu, jnp.maximum, jnp.minimum, jnp.abs, jnp.clip"
ACROSS = "`kinks=fl.IgnoreKinks()` goes across its kinks"
JUMPS = f"for the largest number itself write jnp.max, or weigh by jax.nn.softmax; {ACROSS}"
UNROLLED = "and loops are not entered; write it as a `for` of Python, or keep its body smooth"
# What an operation does, behind its name and its place.
TROUBLE = {
    "argmax": f"jumps where two numbers are equal; {JUMPS}",
    "argmin": f"jumps where two numbers are equal; {JUMPS}",
    "sort": "has kinks where two numbers are equal, which are not known; take the largest by "
    f"jnp.max, or order pairs by jnp.maximum and jnp.minimum; {ACROSS}",
    "top_k": "has kinks where two numbers are equal, which are not known; take the largest by "
    f"jnp.max; {ACROSS}",
    "cond": "is a branch on what is trained, which may jump; compute both sides and join them, by "
    "jnp.maximum or jnp.minimum where they meet",
    "scan": f"is a loop that may hold a kink, {UNROLLED}",
    "while": "is a loop that may hold a kink, and loops are not entered; write it as a `for` of "
    "Python with a known number of steps",
}
INDICES = {  # which inputs of an operation are indices, from one on and up to another
    "gather": (1, 2), "dynamic_slice": (1, None), "dynamic_update_slice": (2, None),
    "scatter": (1, 2), "scatter-add": (1, 2), "cond": (0, 1),
}  # fmt: skip
ROOTS = {"sqrt", "cbrt", "pow"}


def say_trouble(operation: Operation, definitions: Definitions) -> str:
    """Say why an operation is refused, by what the user wrote where that can be told."""
    name = operation.name
    if name in TROUBLE:
        return f"`{name}`{{where}} {TROUBLE[name]}"
    purpose = _purpose_of(operation, definitions)
    if purpose == "cond":
        return f"`cond`{{where}} {TROUBLE['cond']}"
    if purpose:
        return f"an index{{where}} is made of what is trained, and what it takes may jump; {JUMPS}"
    return f"`{name}`{{where}} may jump or have a kink that is not known; {REMEDY}"


def _purpose_of(operation: Operation, definitions: Definitions) -> str:
    """Return what takes an operation's results as indices, through whole numbers; or nothing."""
    values, seen = list(operation.outputs), set()
    while values:
        value = values.pop()
        for user in definitions.used_by.get(value, []):
            first, end = INDICES.get(user.name, (0, 0))
            if value in user.inputs[first:end]:
                return user.name
            if not any(map(holds_floats, user.equation.outvars)):
                values += [k for k in user.outputs if k not in seen]
                seen.update(user.outputs)
    return ""


def say_root(operation: Operation, own: list[Fact], definitions: Definitions) -> str:
    """Say that a root may come to zero, where its slope is infinite; nothing where it cannot.

    Powers are roots with an exponent between 0 and 1, or with one that is not known.
    """
    name = operation.name
    if name not in ROOTS or own[0].positive or definitions.hides_zero(operation.outputs[0]):
        return ""
    if name == "pow":
        exponents = constant_value(operation.inputs[1], definitions.made_by)
        if exponents is not None and np.all((exponents <= 0) | (exponents >= 1)):
            return ""
    which = ", of a power between 0 and 1 or not known," if name == "pow" else ""
    return (
        f"`{name}`{{where}}{which} has a kink at zero, which its operand may reach; write |z| as "
        "jnp.abs(z), or add a positive number to what is never negative: jnp.sqrt(z**2 + 1e-6)"
    )
