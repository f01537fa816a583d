"""What is said where an Equinox module, or a user's own function, does not do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.test_any_model import XOR, mlp


def foreign_messages():
    task, key = XOR, jax.random.key(0)

    class Twice(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w @ x, x

    class Scalar(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w @ x

    class Choosing(Scalar):
        def __call__(self, x):
            return self.w * x if x[0] > 0 else x

    linear = eqx.nn.Linear(2, 2, key=key, dtype=jnp.float64)
    numbered, mask = (
        eqx.tree_at(lambda m: (m.weight, m.bias), linear, spec)
        for spec in ((True, 1), (np.ones((2, 2), bool), True))
    )
    dropped = eqx.nn.Sequential([linear, eqx.nn.Dropout(0.5)])
    norm = eqx.nn.Sequential([linear, eqx.nn.BatchNorm(2, "batch", mode="batch")])
    mixed = eqx.tree_at(lambda m: m.bias, linear, linear.bias.astype(jnp.float32))
    flow = {"t1": 1.0}
    return [
        (eqx.nn.Linear(3, 2, key=key, dtype=jnp.float64), flow, "`network`, Linear, fails on one"),
        (mlp(task=fl.Task(task.x, task.y[:, :1])), flow, r"must return an array of shape \(2,\)"),
        (Twice(jnp.ones((2, 2))), flow, "got a tuple; it is called with one sample"),
        (dropped, flow, "fails on one sample .* key"),
        (norm, flow, "fails on one sample .* state"),
        (mixed, flow, "`network.bias` is float32 and the first array is float64"),
        (eqx.nn.Identity(), flow, "`network` must be a module that holds arrays of float32"),
        (jnp.tanh, flow, "`network` must be a network of flowlin, or an Equinox module"),
        (linear, flow | {"kinks": fl.ExactKinks()}, "`kinks` = .* nothing is known"),
        (linear, flow | {"events": fl.UnitSwitches()}, "`events` holds UnitSwitches"),
        (linear, flow | {"tau": [1.0, 2.0]}, "`tau` must be one number for a Linear"),
        (linear, flow | {"trainable": lambda leaf: False}, "`trainable` leaves no array"),
        (linear, flow | {"trainable": {"w": True}}, "`trainable` must be a function of a leaf"),
        (linear, flow | {"trainable": numbered}, r"`trainable.bias` must be True, .* got 1\."),
        (
            linear,
            flow | {"trainable": mask},
            r"`trainable.weight` .*; an array moves as",
        ),
        (
            linear,
            flow | {"weight_decay": [0.1, 0.1]},
            "`weight_decay` must be one number for a L",
        ),
        (
            Scalar(jnp.ones(2)),
            flow,
            r"float64\[\]; return an array \(1,\), as",
        ),
        (
            Choosing(jnp.ones(2)),
            flow,
            "fails on one sample .*; it is traced: .* jnp.where",
        ),
    ]


@pytest.mark.parametrize(("model", "options", "words"), foreign_messages())
def test_messages(without_type_checks, model, options, words):
    with pytest.raises(ValueError, match=words):
        fl.gradient_flow(model, XOR, **options)


def choosing(value):
    """What cannot be traced, in the ways that users write it."""
    return (
        lambda *args: np.abs(value(*args)),
        lambda *args: value(*args) if value(*args) > 0 else 0.0,
        lambda *args: 1 / 0,
    )


@pytest.mark.parametrize("which", range(3))
def test_functions_that_fail_are_named_with_what_to_do(which):
    of_network = choosing(lambda n, t: jnp.sum(n.layers[0].weight))[which]
    loss = choosing(lambda a, b: jnp.sum((a - b) ** 2))[which]
    remedy = ("; it is traced: compute with jax.numpy",) * 2 + ("ZeroDivisionError: .* mend the",)
    crossing = fl.Crossing(of_network, 0.1)
    for word, options in (
        ("`loss` = <lambda> fails on", {"loss": loss}),
        (r"`observe\['a'\]` fails", {"observe": {"a": of_network}}),
        ("`observable` .*fails", {"events": crossing}),
    ):
        for run in (
            lambda **options: fl.gradient_flow(mlp(), XOR, 1.0, **options),
            lambda **options: fl.gradient_descent(mlp(), XOR, 0.1, 2, **options),
        ):
            with pytest.raises(ValueError, match=f"{word}.*{remedy[which]}"):
                run(**options)
