"""Stiffness: measured during a run, which goes on with another solver where that gets further."""

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import flowlin as fl
from tests.tolerances import of_flow, of_time

TASK = fl.tasks.hierarchy()
NETWORK = fl.LinearNetwork.init(TASK, 9, variance=1e-2, key=jax.random.key(0))
EVENTS = (fl.LossBelow(0.5),)
END = 3e3
EARLY = 32  # accepted steps before the first look


def seven(t0, t1):
    """Times of as many rows in every run, so that all share their programs."""
    return np.linspace(t0, t1, 7)


def run_to(t1, network=NETWORK, **options):
    options = {"ts": seven(0, t1), "events": EVENTS} | options
    return fl.gradient_flow(network, TASK, t1, **options)


@pytest.fixture(scope="module")
def handed_over():
    """A run that becomes stiff, of a network aligned to the modes; its loss in closed form."""
    modes = fl.theory.modes(TASK, 1.0)
    a0 = np.linspace(1e-2, 3e-2, len(modes.s))
    product = (np.asarray(modes.u) * a0) @ np.asarray(modes.v).T
    network = fl.LinearNetwork.balanced(TASK, 9, product=product, key=jax.random.key(1))
    ts = np.append(np.linspace(0, 20, 6), END)
    flow = fl.gradient_flow(network, TASK, END, ts=ts, rtol=1e-6, events=EVENTS)
    s, d = np.asarray(modes.s), np.asarray(modes.d)

    def loss(t):
        a = np.asarray(fl.theory.mode_strength(t, modes.s, modes.d, a0))
        return np.mean(np.sum(np.asarray(TASK.y) ** 2, 1)) / 2 + np.sum(d * a**2 / 2 - s * a, -1)

    return flow, loss


@pytest.mark.slow
def test_a_run_that_becomes_stiff_goes_on_with_the_implicit_method(handed_over):
    flow, loss = handed_over
    assert flow.stats["solver"] == "Dopri8, then RecycledBDF"
    assert "step x spectral radius" in flow.stats["solver_because"]
    np.testing.assert_allclose(flow.losses, loss(np.asarray(flow.ts)[:, None]), atol=of_flow(1e-6))
    # The event came before the change; the log outlives it.
    (time,) = np.asarray(flow.events.time)
    exact = brentq(lambda t: loss(t) - 0.5, 0.0, 200.0, xtol=1e-12)
    assert time == pytest.approx(exact, rel=of_time(1e-6))
    # Those before the change are counted: a step of the implicit method takes one at least.
    steps = int(flow.stats["num_accepted_steps"]) - EARLY
    assert int(flow.stats["accepted_evaluations"]) > 13 * EARLY + steps
    assert int(flow.stats["evaluations"]) > int(flow.stats["accepted_evaluations"])
    assert int(flow.stats["num_steps"]) < 600  # where explicit steps are bounded by stability


@pytest.mark.slow
def test_a_run_that_hands_over_is_one_by_a_plain_solver_in_less_work(tmp_path):
    chosen = run_to(3e3, rtol=1e-6, checkpoint=tmp_path / "run.npz")
    plain = run_to(3e3, rtol=1e-6, solver=diffrax.Dopri8())
    assert chosen.stats["solver"] == "Dopri8, then RecycledBDF"
    assert "step x spectral radius" in chosen.stats["solver_because"]
    assert plain.stats["solver"] == "Dopri8"
    assert plain.stats["solver_because"] == "as asked for"
    assert plain.stats["accepted_evaluations"] == 1 + 13 * plain.stats["num_accepted_steps"]
    # An event takes a step of its own.
    assert plain.stats["evaluations"] == 3 + 13 * (plain.stats["num_steps"] + len(plain.events))
    assert 5 * chosen.stats["evaluations"] < plain.stats["evaluations"]
    steps = chosen.stats["num_accepted_steps"] - EARLY
    # Those before the change are counted: a step of the implicit method takes one at least.
    assert int(chosen.stats["accepted_evaluations"]) > 13 * EARLY + int(steps)
    assert np.allclose(chosen.losses, plain.losses, atol=1e-9)
    for a, b in zip(jax.tree.leaves(chosen.final), jax.tree.leaves(plain.final), strict=True):
        assert np.allclose(a, b, atol=2e-6)
    # The event came before the change; the log outlives it.
    assert np.array_equal(chosen.events.time, plain.events.time)
    assert len(plain.events) == 1

    again = run_to(3e3, rtol=1e-6, checkpoint=tmp_path / "run.npz")
    assert again.stats == chosen.stats
    longer = chosen.extend(3.5e3, ts=seven(3.1e3, 3.5e3))
    assert 5 * longer.stats["num_steps"] < 6 * chosen.stats["num_steps"]  # still the implicit one
    names = "solver", "solver_because"
    assert [longer.stats[name] for name in names] == [chosen.stats[name] for name in names]


@pytest.mark.slow
def test_a_stiff_run_goes_on_with_rkc_at_a_loose_tolerance():
    chosen = fl.gradient_flow(NETWORK, TASK, 3e3, ts=seven(0, 3e3), rtol=1e-3)
    assert chosen.stats["solver"] == "Tsit5, then RKC"

    # Measured sharpness: the largest eigenvalue of the Hessian at the end.
    vector, unravel = jax.flatten_util.ravel_pytree(chosen.final.parameters)

    def loss(flat):
        outputs = NETWORK.with_parameters(unravel(flat)).outputs(TASK.x)
        return fl.SquaredError()(outputs, TASK.y)

    sharpness = np.linalg.eigvalsh(jax.jit(jax.hessian(loss))(vector))[-1]
    radius = np.asarray(chosen.observed["spectral_radius"])
    assert np.isclose(radius[-1], sharpness, rtol=0.02)
    assert np.isnan(radius[0])  # not yet measured then


def quartic(output, target):
    return jnp.sum((output - target) ** 4)


def clipped(output, target):
    """Smooth, but by a choice, which may hide a kink."""
    square = (output - target) ** 2
    return jnp.sum(jnp.where(square < 1e3, square, 1e3))


def joined(z):
    """Smooth, but by a choice on what is trained, which may hide a kink."""
    return jnp.where(z > 0, jnp.tanh(z), z)


@pytest.mark.slow
def test_any_model_goes_on_with_the_implicit_method_where_it_is_surely_smooth():
    """And with `RKC` where network or loss may have a kink, as short runs show."""

    def run(t1, activation=jax.nn.softplus, **options):
        network = eqx.nn.MLP(8, 15, 12, 1, activation, key=jax.random.key(0))
        return fl.gradient_flow(network, TASK, t1, rtol=1e-5, **options)

    assert run(1e4, ts=seven(0, 1e4)).stats["solver"] == "Tsit5, then RecycledBDF"
    short = [({"loss": quartic}, fl.RecycledBDF), ({"loss": clipped}, fl.RKC),
             ({"activation": joined, "kinks": fl.IgnoreKinks()}, fl.RKC)]  # fmt: skip
    for options, solver in short:
        one = run(1e-3, **options).reference.run
        assert type(one.method.stiff_solver(one.problem)) is solver


@pytest.mark.slow
def test_a_run_that_stopped_after_the_change_says_so_when_resumed(tmp_path):
    def run(**options):
        return run_to(END, rtol=1e-6, **options)

    file = tmp_path / "run.npz"
    steps = int(run().stats["num_steps"])
    stopped = run(checkpoint=file, max_steps=steps - 9, throw=False)
    assert stopped.stats["solver"] == "Dopri8, then RecycledBDF"
    assert float(stopped.end) < END
    resumed = run(checkpoint=file)
    assert float(resumed.end) == END
    assert resumed.stats["solver"] == "Dopri8, then RecycledBDF"
    assert resumed.stats["solver_because"] == stopped.stats["solver_because"]


@pytest.mark.slow
def test_a_run_that_is_extended_is_measured_like_one_that_was_longer_from_the_start():
    whole, half = run_to(3e3, rtol=1e-6), run_to(10.0, rtol=1e-6)
    assert "too short to measure" in half.stats["solver_because"]
    longer = half.extend(3e3, ts=seven(20, 3e3))
    assert longer.stats["solver"] == whole.stats["solver"] == "Dopri8, then RecycledBDF"
    assert "step x spectral radius" in longer.stats["solver_because"]
    assert 5 * longer.stats["evaluations"] < 6 * whole.stats["evaluations"]
    again = longer.extend(3.1e3, ts=seven(3.01e3, 3.1e3))
    assert again.stats["solver"] == "Dopri8, then RecycledBDF"
    assert again.stats["solver_because"] == longer.stats["solver_because"]
    # A solver that was asked for stays.
    asked = run_to(10.0, rtol=1e-6, solver=diffrax.Dopri8())
    assert asked.extend(300.0, ts=seven(20, 300.0)).stats["solver"] == "Dopri8"


@pytest.mark.slow
def test_runs_that_are_not_stiff_keep_the_default():
    short = run_to(10.0)
    assert short.stats["solver"] == "Dopri8"
    assert "too short to measure" in short.stats["solver_because"]
    # A step that is bounded by its error, not by stability: a tolerance that is very fine.
    fine = run_to(60.0, rtol=1e-14)
    assert fine.stats["num_accepted_steps"] > 256
    assert fine.stats["solver"] == "Dopri8"
    assert "at t = " in fine.stats["solver_because"]


_ALL = fl.tasks.digits()
DIGITS = fl.Task(_ALL.x[::3], _ALL.y[::3])
BIASED = fl.ReLUNetwork.init(DIGITS, 32, bias_strength=15.0, key=jax.random.key(2))
LATE = 40.0
SPAN = np.linspace(0, LATE, 41)


def averaged(rtol=1e-3, **options):
    options = {"ts": SPAN, "events": (fl.UnitSwitches(0.1),)} | options
    return fl.gradient_flow(BIASED, DIGITS, LATE, kinks=fl.AveragedKinks(), rtol=rtol, **options)


@pytest.fixture(scope="module")
def handed_over_gates(tmp_path_factory):
    """A run of averaged gates that becomes stiff, and its file."""
    file = tmp_path_factory.mktemp("averaged") / "run.npz"
    return averaged(checkpoint=file), file


@pytest.mark.slow
def test_averaged_gates_hand_over_where_they_become_stiff(handed_over_gates):
    (chosen, file), alone, fine = handed_over_gates, averaged(9e-4), averaged(1e-4)
    assert alone.stats["solver"] == fine.stats["solver"] == "AveragedGates"
    assert chosen.stats["solver"] == "AveragedGates, then RKC"
    assert "RKC came" in chosen.stats["solver_because"]
    assert 2 * chosen.stats["evaluations"] < alone.stats["evaluations"]
    assert int(chosen.stats["accepted_evaluations"]) < int(chosen.stats["evaluations"])
    for flow in chosen, alone:
        assert np.allclose(flow.losses, fine.losses, rtol=0.01)
    assert "grazing_margin" in alone.stats
    assert "grazing_margin" not in chosen.stats  # not watched by RKC
    # The log goes along: units switch before the change and after.
    found, known = (f.events.select("always_on(0.1)") for f in (chosen, fine))
    assert len(found) == len(known) > 1
    assert np.allclose(found.time, known.time, rtol=0.05)

    again = averaged(checkpoint=file)
    assert np.array_equal(again.losses, chosen.losses)
    assert again.stats == chosen.stats


@pytest.mark.slow
def test_a_run_that_handed_over_resumes_to_the_bit(handed_over_gates, tmp_path):
    whole, _ = handed_over_gates
    steps = int(whole.stats["num_steps"]) - 20
    stopped = averaged(checkpoint=tmp_path / "run.npz", max_steps=steps, throw=False)
    assert stopped.stats["solver"] == "AveragedGates, then RKC"
    assert float(stopped.end) < LATE
    resumed = averaged(checkpoint=tmp_path / "run.npz")
    for a, b in zip(jax.tree.leaves(resumed.final), jax.tree.leaves(whole.final), strict=True):
        assert np.array_equal(a, b)
