"""Descent by optimisers of optax that ask for the value of what is descended, and by others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import flowlin as fl
from flowlin.engine import descend as stepping
from flowlin.networks.modules import ForeignModel
from flowlin.runs.gradient_descent import Rule, Watched, described
from flowlin.training.problem import Problem
from tests.test_any_model import XOR, close, mlp


@pytest.mark.parametrize(
    ("optimiser", "batches", "dtype"),
    [
        (optax.lbfgs(), False, jnp.float64),
        (optax.polyak_sgd(0.1, 0.5), True, jnp.float64),
        (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), False, jnp.float32),
    ],
)
def test_optimisers_that_ask_for_the_value_are_given_what_is_descended(optimiser, batches, dtype):
    model = jax.tree.map(lambda a: a.astype(dtype) if eqx.is_array(a) else a, mlp())
    start, rest = eqx.partition(model, eqx.is_inexact_array)
    options = {"steps": 8, "weight_decay": 0.05, "optimiser": optimiser}
    if batches:  # of all samples, in another order
        options |= {"batch_size": XOR.samples, "key": jax.random.key(0)}
    descend = fl.stochastic_gradient_descent if batches else fl.gradient_descent
    descent = descend(model, XOR, 0.01, **options)

    def descended(w):
        squares = sum(jnp.sum(a**2) for a in jax.tree.leaves(w))
        outputs = jax.vmap(eqx.combine(w, rest))(XOR.x.astype(dtype))
        return fl.SquaredError()(outputs, XOR.y.astype(dtype)) + 0.05 / 2 * squares

    @jax.jit
    def step(w, state):
        value, grad = jax.value_and_grad(descended)(w)
        updates, state = optimiser.update(
            grad, state, w, value=value, grad=grad, value_fn=descended
        )
        return optax.apply_updates(w, updates), state

    w, state = start, optimiser.init(start)
    for _ in range(8):
        w, state = step(w, state)
    close(descent.final, w, 1e-12 if dtype == jnp.float64 else 1e-6)


def test_optimisers_that_do_not_ask_cost_no_value(monkeypatch):
    def flops():
        problem = Problem(ForeignModel.of("network", mlp()), XOR, fl.SquaredError(), jnp.ones(()))
        made = described(problem, Rule(0.1, 0.1, optax.adam(0.1)), Watched())
        state = made.start(0)
        return jax.jit(lambda s: made.update(s)).lower(state).compile().cost_analysis()["flops"]

    found = flops()
    monkeypatch.setattr(stepping, "updated", lambda o, g, s, w, _: o.update(g, s, w))
    assert found == flops() > 0
