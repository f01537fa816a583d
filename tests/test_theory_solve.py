"""The choice of a closed form for a network and a task: which one, why, and that the flow is it."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest

import flowlin as fl
from tests.closed_forms import (
    errors,
    gram_by_integrator,
    product_by_integrator,
    targets,
    white_task,
)

INF = float("inf")
KEY = jax.random.key(0)
solve = fl.theory.solve

# By which solutions are compared: of one shape, as are the tasks and networks where they can be.
TS = np.array([0.0, 0.5, 2.0, 8.0])


def certificate(solution) -> Any:
    """Numbers, of which those that make no sense for a network are None."""
    return solution.certificate


def test_solve_takes_the_single_layer():
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(6, 3)), rng.normal(size=(6, 2)))
    bias = rng.normal(size=2)
    network = fl.LinearNetwork((rng.normal(size=(2, 3)),), (bias,), 1.5)
    solution = solve(network, task, tau=1.2)
    assert (solution.name, solution.exact) == ("single layer", True)
    assert certificate(solution).imbalance is None
    found = np.asarray(solution.product(TS))
    # The raw bias stands in front.
    np.testing.assert_allclose(found[0, :, 0], bias, atol=1e-15)
    assert errors(found, product_by_integrator(TS, network, task, 1.2)) < 1e-10


@pytest.fixture(scope="module")
def riccati():
    """A network, a task and their solution, with a bias: centred inputs of variance c^2."""

    def made(balance):
        task = white_task(targets(3, 4, 2), 0.64, centred=True)
        task = fl.Task(task.x, task.y + np.arange(4.0)[None])
        network = fl.LinearNetwork.balanced(
            task, 3, variance=0.05, bias_strength=0.8, balance=balance, key=KEY
        )
        return network, task, solve(network, task, tau=1.2)

    return {balance: made(balance) for balance in (0.0, 0.5)}


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_solve_takes_the_riccati_solution(balance, riccati):
    network, task, solution = riccati[balance]
    assert (solution.name, solution.exact) == ("Riccati", True)
    found = certificate(solution)
    assert found.whiteness < 1e-14
    assert found.spread.shape == (4,)
    assert np.max(found.spread) < 1e-13
    np.testing.assert_allclose([found.variance, found.balance], [0.64, balance], atol=1e-13)
    expected = product_by_integrator(TS, network, task, 1.2)
    assert errors(solution.product(TS), expected) < 1e-9
    assert errors(solution.gram(TS), gram_by_integrator(TS, network, task, 1.2)) < 1e-9


@pytest.mark.slow
def test_solutions_go_through_jit_as_arguments(riccati):
    _, _, solution = riccati[0.5]
    again = jax.jit(lambda s, t: s.product(t))(solution, TS)
    np.testing.assert_allclose(again, solution.product(TS), atol=1e-14)


@pytest.mark.slow
def test_solve_with_fewer_samples_than_inputs():
    """Sigma_x is a multiple of a projector: Riccati as long as W_1 acts within the data's span."""
    x = 2 * np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))[0].T
    task = fl.Task(x, np.random.default_rng(1).normal(size=(3, 2)))
    within = np.random.default_rng(2).normal(size=(2, 3)) @ x / 20
    network = fl.LinearNetwork.balanced(task, 4, bias=False, product=within, key=KEY)
    solution = solve(network, task)
    assert solution.name == "Riccati"
    assert errors(solution.product(TS), product_by_integrator(TS, network, task)) < 1e-10
    outside = fl.LinearNetwork.balanced(task, 4, bias=False, variance=0.1, key=KEY)
    solution = solve(outside, task)
    assert not solution.exact
    assert "inputs that the data do not have" in solution.why


@pytest.mark.parametrize("mixed", [False, True])
def test_solve_takes_modes_of_any_imbalance(mixed):
    """Hidden vectors p, q in planes of their own, a0 of both signs; a turn of them mixes modes."""
    rng = np.random.default_rng(0)
    u, v, planes = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (3, 4, 6))
    d, s = np.array([2.0, 0.5, 1.0, 0.7]), np.array([1.0, 0.6, 0.3])
    x = np.sqrt(12 * d) * np.linalg.qr(rng.normal(size=(12, 4)))[0] @ v.T
    task = fl.Task(x, x @ (v[:, :3] * s / d[:3]) @ u.T)
    mix = rng.normal(size=(2, 2, 3))
    p, q = (0.4 * (planes.reshape(6, 2, 3) * one).sum(axis=1) for one in mix)
    if mixed:
        p = p[:, ::-1]
    network = fl.LinearNetwork((q @ v[:, :3].T, u @ p.T))
    solution = solve(network, task, tau=0.7)
    error = errors(solution.product(TS), product_by_integrator(TS, network, task, 0.7))
    gram = errors(solution.gram(TS), gram_by_integrator(TS, network, task, 0.7))
    assert gram > 1e-3 if mixed else gram < 1e-10
    assert solution.exact != mixed
    assert solution.name == ("isolated modes" if mixed else "modes")
    assert error > 1e-3 if mixed else error < 1e-10
    negative = certificate(solution).negative
    assert mixed or 0 < negative < 3


@pytest.fixture(scope="module")
def decoupled(aligned, tree):
    """One-hot inputs with a bias are not white, but their modes decouple."""
    network, _ = aligned
    return solve(network, tree), product_by_integrator(TS, network, tree)


def test_solve_takes_decoupled_modes(decoupled, aligned):
    solution, expected = decoupled
    assert (solution.name, solution.exact) == ("modes", True)
    assert certificate(solution).negative == 0
    assert np.max(certificate(solution).alignment) < 1e-12
    found = np.asarray(solution.product(np.array([*TS[:3], INF])))
    assert errors(found[:3], expected[:3]) < 1e-9
    _, modes = aligned
    u, v, d = (np.asarray(a) for a in (modes.u, modes.v, modes.d))
    final = np.where(d > 0, modes.full_strength, certificate(solution).a0)
    np.testing.assert_allclose(found[-1], (u * final) @ v.T, atol=1e-12)


def test_outputs_and_losses_are_those_of_the_product(decoupled, tree):
    solution, expected = decoupled
    x, y = np.column_stack([np.ones(8), tree.x]), np.asarray(tree.y)
    outputs = np.einsum("toi,pi->tpo", expected, x)
    np.testing.assert_allclose(solution.outputs(TS), outputs, atol=1e-8)
    losses = np.sum((outputs - y) ** 2, axis=(1, 2)) / 16
    np.testing.assert_allclose(solution.loss(TS), losses, rtol=1e-9)


@pytest.mark.slow
def test_a_flow_is_what_the_solution_says(decoupled, aligned, tree):
    flow = fl.gradient_flow(aligned[0], tree, 12.0, ts=[0.0, 0.5, 2.0, 12.0], rtol=1e-10)
    solution, _ = decoupled
    assert np.max(solution.error(flow)) < 1e-9
    np.testing.assert_allclose(solution.loss(flow.ts), flow.losses, rtol=1e-9)


def test_solve_approximates_and_says_so(tree):
    network = fl.LinearNetwork.init(tree, 64, variance=1e-4, key=KEY)
    solution = solve(network, tree)
    assert (solution.name, solution.exact) == ("isolated modes", False)
    assert "not white" in solution.why
    assert "not aligned" in solution.why
    found = certificate(solution)
    assert found.negative is not None
    assert found.negative > 0
    expected = product_by_integrator(TS, network, tree, rtol=1e-7)
    assert 0.01 < errors(solution.product(TS), expected) < 0.1


@pytest.mark.slow
def test_the_bias_coordinate_is_there_where_c_is_zero(tree):
    network = fl.LinearNetwork.init(tree, 5, bias_strength=0.0, key=KEY)
    assert solve(network, tree).product(TS).shape == (4, 15, 9)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(9, 10), (10, 9, 11)])
def test_solve_takes_deep_modes_in_the_basis_of_the_weights(tree, hidden):
    """Equal modes share a plane; balanced weights may be aligned to any basis of it."""
    found = fl.theory.modes(tree, 1.0)
    u, v, a0 = np.array(found.u), np.array(found.v), np.linspace(0.01, 0.3, 9)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    group = slice(4, 8)
    np.testing.assert_allclose(found.s[group], 1 / 8)
    u[:, group], v[:, group] = u[:, group] @ turn, v[:, group] @ turn
    a0[8] = 0  # the direction that no data take
    network = fl.LinearNetwork.balanced(tree, hidden, product=(u * a0) @ v.T, key=KEY)
    solution = solve(network, tree)
    assert (solution.name, solution.exact) == ("deep modes", True)
    certified = certificate(solution)
    assert np.max([*certified.imbalance, *certified.alignment, certified.inner]) < 1e-12
    assert certified.balance is None
    np.testing.assert_allclose(np.sort(certified.a0), np.sort(a0), atol=1e-15)
    expected = product_by_integrator(TS, network, tree)
    product = np.asarray(solution.product(np.array([*TS[1:], INF])))
    assert errors(product[:3], expected[1:]) < 1e-9
    final = np.where(np.asarray(found.d) > 0, found.full_strength, 0)
    np.testing.assert_allclose(product[3], (u * final) @ v.T, atol=1e-12)
    # The modes as they come are not it.
    mixed = np.asarray(found.u).T @ ((u * a0) @ v.T) @ np.asarray(found.v)
    assert np.max(abs(mixed - np.diag(np.diag(mixed)))) > 0.01


@pytest.mark.slow
def test_solve_takes_deep_modes_that_nothing_drives():
    """Among modes with s = 0 each side has a basis of its own; they decay."""
    task = white_task(targets(3, 3, 1), 1.0)
    found = fl.theory.modes(task)
    u, v = np.array(found.u), np.array(found.v)
    for side, seed in ((u, 0), (v, 1)):
        turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 2)))[0]
        side[:, 1:] = side[:, 1:] @ turn
    product = (u * np.array([0.05, 0.3, 0.1])) @ v.T
    network = fl.LinearNetwork.balanced(task, (3, 3), bias=False, product=product, key=KEY)
    solution = solve(network, task)
    assert (solution.name, solution.exact) == ("deep modes", True)
    expected = product_by_integrator(TS, network, task)
    assert errors(solution.product(TS), expected) < 1e-9


def changed(change):
    """A task, and a network along its modes but for one condition."""
    task = white_task(targets(3, 3, 3), 1.0)
    modes = fl.theory.modes(task)
    u, v, a0 = np.asarray(modes.u), np.asarray(modes.v), np.array([0.2, 0.1, 0.05])
    if change == "mixed":
        u = u @ np.linalg.qr(np.arange(9.0).reshape(3, 3) + 5 * np.eye(3))[0]
    if change == "negative":
        a0 = a0 * np.array([1, -1, -1])
    product = (u * a0) @ v.T
    network = fl.LinearNetwork.balanced(task, (3, 3), bias=False, product=product, key=KEY)
    w1, w2, w3 = network.weights
    if change == "scaled":
        network = fl.LinearNetwork((2 * w1, w2 / 2, w3))
    if change == "turned":
        network = fl.LinearNetwork((w1, w2[::-1], w3))
    return network, task


CHANGES = {
    "scaled": "not balanced",
    "turned": "neighbouring layers are not aligned",
    "mixed": "not aligned to the modes",
    "negative": "2 modes start with negative strength",
}


@pytest.mark.parametrize("change", CHANGES)
def test_solve_says_why_deep_modes_are_not_exact(change):
    """Each condition by itself: what fails alone is named."""
    solution = solve(*changed(change))
    assert (solution.name, solution.exact) == ("isolated modes", False)
    assert CHANGES[change] in solution.why
    assert ("not balanced" in solution.why) == (change in ("scaled", "turned"))


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_the_flow_does_leave_what_is_not_exact(change):
    network, task = changed(change)
    found = solve(network, task).product(TS)
    assert 0.01 < errors(found, product_by_integrator(TS, network, task)) < 2


def test_solve_refuses_what_it_has_no_solution_for(tree):
    w1, w2, w3 = np.ones((4, 8)), np.ones((15, 4)), np.ones((4, 4))
    with pytest.raises(ValueError, match="linear counterpart"):
        solve(fl.ReLUNetwork((w1, w2)), tree)
    for weights, biases in [
        ((w1, w2), (np.ones(4), np.ones(15))),
        ((w1, w3, w2), (np.ones(4), np.ones(4), None)),
    ]:
        with pytest.raises(ValueError, match="bias beyond its first layer"):
            solve(fl.LinearNetwork(weights, biases), tree)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda task: solve(fl.LinearNetwork((w1, w2)), task).product(1.0))(tree)


def test_grams_are_of_two_layers(decoupled):
    """What the weights do beside the modes is in them; the product is a block."""
    solution, _ = decoupled
    gram, product = np.asarray(solution.gram(TS)), solution.product(TS)
    np.testing.assert_allclose(gram[:, 9:, :9], product, atol=1e-14)
    at_end = solution.gram(INF)
    assert at_end.shape == (24, 24)
    single = solve(fl.LinearNetwork((np.eye(2),)), fl.Task(np.eye(2), np.eye(2)))
    with pytest.raises(ValueError, match=r"`gram` is of two layers of weights, and .* of one"):
        single.gram(1.0)


def test_gram_of_weights_beside_the_modes():
    """A unit that listens to an input without a target, and is not heard, rests."""
    task = white_task(np.diag([1.0, 0.5, 0.0])[:2], 1.0)
    w1, w2 = np.diag([0.3, 0.2, 0.4]), np.diag([0.2, 0.5, 0.0])[:2]
    network = fl.LinearNetwork((w1, w2))
    solution = solve(network, task)
    assert (solution.name, solution.exact) == ("modes", True)
    assert errors(solution.gram(TS), gram_by_integrator(TS, network, task)) < 1e-10


@pytest.fixture(scope="module")
def resting():
    """A run of zero weights, which rest."""
    task = white_task(targets(3, 2, 2), 1.0)
    zeros = fl.LinearNetwork((np.zeros((2, 3)), np.zeros((2, 2))))
    return zeros, task, fl.gradient_descent(zeros, task, 0.5, 2)


@pytest.mark.slow
def test_errors_of_zero_weights_are_numbers(resting):
    """Zero weights rest, as their solution does; another one is off by all of its own size."""
    zeros, task, flow = resting
    solution = solve(zeros, task)
    assert solution.exact
    np.testing.assert_array_equal(solution.error(flow), 0.0)
    moving = solve(fl.LinearNetwork.balanced(task, 2, bias=False, key=KEY), task)
    error = moving.error(flow, check=False)
    assert np.max(error) == 1
    assert np.all(np.isfinite(error))


@pytest.mark.slow
def test_only_runs_of_linear_networks_have_an_error(tree, decoupled):
    run = fl.gradient_descent(fl.ReLUNetwork.init(tree, 4, key=KEY), tree, 0.1, 1)
    with pytest.raises(ValueError, match="end-to-end"):
        decoupled[0].error(run)


FORMS = ("single layer", "Riccati", "modes", "isolated modes", "deep modes")


def solution_named(name):
    """A solution of each form."""
    task = white_task(targets(4, 3, 2), 1.0) if name == "Riccati" else fl.tasks.hierarchy()
    if name == "single layer":
        return solve(fl.LinearNetwork([0.1 * np.asarray(task.y.T @ task.x)]), task)
    if name == "isolated modes":
        return solve(fl.LinearNetwork.init(task, 5, key=KEY), task)
    sizes = (8, 8) if name == "deep modes" else 8
    modes = fl.theory.modes(task, 1.0)
    u, v = np.asarray(modes.u)[:, :8], np.asarray(modes.v)[:, :8]  # all that are driven
    product = None if name == "Riccati" else 0.01 * u @ v.T
    bias = name != "Riccati"
    return solve(fl.LinearNetwork.balanced(task, sizes, bias=bias, product=product, key=KEY), task)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FORMS, "after linearization"])
def test_solutions_can_be_pickled(name):
    if name in FORMS:
        solution = solution_named(name)
        assert solution.name == name
    else:
        task = fl.tasks.hierarchy()
        network = fl.ReLUNetwork.init(task, 5, key=KEY)
        solution = fl.theory.after_linearization(network, task, always_on=np.ones(5, bool))
    back = pickle.loads(pickle.dumps(solution))
    assert type(back) is type(solution)
    same = jax.tree.map(np.array_equal, back, solution)  # of one structure, names included
    assert all(jax.tree.leaves(same))
