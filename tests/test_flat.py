"""Parameters as one vector: nobody but the library sees it."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl
from flowlin._tools.numerics import Flat, as_tree, like
from flowlin.engine.method import chosen_method, chosen_tolerances
from flowlin.training.problem import Problem


def test_a_tree_comes_back_from_its_vector_stacked_or_not():
    tree = ((jnp.arange(6.0).reshape(2, 3), None), (jnp.ones(2), jnp.float64(7)))
    flat = Flat.of(tree)
    assert flat.vector.shape == (9,)
    assert like(tree, tree) is as_tree(tree) is tree
    jax.tree.map(np.testing.assert_array_equal, as_tree(like(flat, tree)), tree)
    stacked = jax.vmap(lambda k: jax.tree.map(lambda a: k * a, flat))(jnp.arange(3.0))
    (w, none), (_, last) = stacked.whole
    assert w.shape == (3, 2, 3)
    assert none is None
    np.testing.assert_array_equal(last, [0, 7, 14])


class Own(diffrax.Tsit5):
    """A solver of a user's, who may look at the weights."""


def state(network, task, solver=None, controller=None):
    """What the solver of a run moves."""
    problem = Problem(network, task, fl.SquaredError(), jnp.ones(()))
    given = chosen_tolerances(None, None, controller)
    adjoint = diffrax.RecursiveCheckpointAdjoint()
    return chosen_method(problem, None, solver, None, given, 1.0, adjoint)[0].state(problem)


def test_what_users_write_themselves_sees_weights_and_biases(tree, key):
    """Solvers, and controllers with their norms, in place of the library's, which see a vector."""
    network = fl.LinearNetwork.init(tree, 8, 0.1, key=key)
    relu, deep = (fl.ReLUNetwork.init(tree, width, 0.1, key=key) for width in (8, (8, 8)))
    for flat in (state(network, tree), state(relu, tree), state(network, tree, fl.RecycledBDF())):
        assert isinstance(flat, Flat)
    steps = diffrax.PIDController(rtol=1e-3, atol=1e-6)
    for whole in (state(network, tree, Own()), state(network, tree, controller=steps)):
        assert whole == network.parameters
    assert state(deep, tree) == deep.parameters  # a deep walk's rule goes by trees
