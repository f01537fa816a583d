"""A time constant that depends on time: another clock, in every solver, with all that a run has."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.by_hand import COUNTS, classes, linear, relu
from tests.zoo import jit

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

ONE = fl.Task(np.ones((1, 1)), np.ones((1, 1)))


def approach(w=0.0, dtype=float):
    """One weight, whose loss is (1 - w)^2 / 2."""
    return fl.LinearNetwork((jnp.full((1, 1), w, dtype),), None)


def weight(flow):
    return float(flow.final.weights[0][0, 0])


def growing(t):
    """w' = (1 - w) / (1 + t), so that w = t / (1 + t)."""
    return 1 + t


class From(eqx.Module):
    """tau = a + t, so that w = t / (a + t)."""

    a: jax.Array

    def __call__(self, t):
        return self.a + t


# ---- The equation, by its closed form


@pytest.mark.parametrize(
    ("solver", "rtol", "off"),
    [
        pytest.param(None, None, 1e-9, id="default"),
        pytest.param(fl.RKC(), 1e-5, 1e-4, id="RKC", marks=pytest.mark.slow),
        pytest.param(fl.RecycledBDF(), 1e-7, 1e-6, id="RecycledBDF", marks=pytest.mark.slow),
    ],
)
def test_one_weight_follows_the_closed_form(solver, rtol, off):
    ts = np.array([0.0, 1.0, 3.0])
    flow = fl.gradient_flow(approach(), ONE, 3.0, tau=growing, ts=ts, solver=solver, rtol=rtol)
    # Only at the end: Runge-Kutta steps of this equation are exact whatever their length, and so
    # long that the dense output between them has few digits.
    assert weight(flow) == pytest.approx(0.75, abs=off)
    np.testing.assert_array_equal(flow.observed["tau"], 1 + ts)
    assert np.isnan(flow.tau)
    assert "of time, 1 -> 4" in str(flow)


@pytest.mark.slow
def test_float32_has_its_digits():
    task = ONE.astype("float32")
    flow = fl.gradient_flow(approach(dtype=jnp.float32), task, 3.0, tau=growing, rtol=1e-5)
    assert flow.final.weights[0].dtype == flow.observed["tau"].dtype == jnp.float32
    assert weight(flow) == pytest.approx(0.75, abs=1e-5)


@pytest.mark.slow
def test_a_jump_is_found_by_error_control():
    """tau is 1 up to t = 1 and then 1/4: w = 1 - exp(-1 - 4 (t - 1))."""

    def jumps(t):
        return jnp.where(t < 1, 1.0, 0.25)

    flow = fl.gradient_flow(approach(), ONE, 1.5, tau=jumps)
    assert weight(flow) == pytest.approx(-np.expm1(-3.0), abs=1e-8)
    assert int(flow.stats["num_rejected_steps"]) > 5
    plain = diffrax.PIDController(rtol=1e-8, atol=1e-10)
    known = diffrax.ClipStepSizeController(plain, jump_ts=jnp.array([1.0]))
    told = fl.gradient_flow(approach(), ONE, 1.5, tau=jumps, stepsize_controller=known)
    assert weight(told) == pytest.approx(-np.expm1(-3.0), abs=1e-8)
    assert int(told.stats["num_rejected_steps"]) < int(flow.stats["num_rejected_steps"])


def test_it_is_not_asked_beyond_the_end():
    """Where it is no time constant any more; diffrax looks ahead to choose the first step."""
    task = fl.Task(np.ones((1, 1)), 1e3 * np.ones((1, 1)))
    flow = fl.gradient_flow(approach(1e3 - 1e-3), task, 1e-3, tau=lambda t: 2e-3 - t)
    # 1 - w falls as 1 - t / .002.
    assert weight(flow) == pytest.approx(1e3 - 5e-4, abs=1e-10)


def test_a_rule_of_training_has_it_too():
    flow = fl.gradient_flow(approach(), ONE, 3.0, tau=growing, rule=Twice())
    assert weight(flow) == pytest.approx(1 - 1 / 16, abs=1e-7)


class Twice(fl.AbstractRule):
    """Twice the force, so that 1 - w = (1 + t)^-2."""

    def memory(self, parameters):
        return ()

    def velocity(self, t, parameters, memory, force):
        return jax.tree.map(lambda f: 2 * f, force), memory


# ---- Networks: the change of clock, s = log(1 + t)

TASK, CLOCK = classes(COUNTS), 3.0


class Linear(eqx.Module):
    """tau = 1 + rate t: one program for every rate."""

    rate: jax.Array

    def __call__(self, t):
        return 1 + self.rate * t


def both_clocks(network, s=CLOCK, **options):
    """Flows to one state, with tau = 1 up to t = s, and with tau = 1 + t."""
    return [
        fl.gradient_flow(network, TASK, end, tau=Linear(jnp.asarray(rate)), **options)
        for rate, end in [(0.0, s), (1.0, float(np.expm1(s)))]
    ]


def agree(pair, off):
    """Tell that two flows are one but for the clock, events too."""
    plain, slow = pair
    assert float(fl.distance(plain.final, slow.final, relative=True)) < off
    np.testing.assert_array_equal(plain.events.component, slow.events.component)
    times = np.asarray(plain.events.time)
    np.testing.assert_allclose(slow.events.time, np.expm1(times), rtol=100 * off)


@pytest.fixture(scope="module")
def walks():
    """With pairs that slide, and an event of the user's."""
    options = {"loss": fl.CrossEntropy(), "events": fl.LossBelow(0.8), "weight_decay": 0.05}
    return both_clocks(relu(TASK, seed=7), rtol=1e-10, **options)


@pytest.mark.slow
def test_walks_have_their_events_at_the_times_of_the_clock(walks):
    agree(walks, 1e-8)
    assert len(walks[0].events) > 3
    assert np.any(np.asarray(walks[0].events.new) == 0)  # pairs slide
    assert len(walks[0].events.select("loss")) == 1


@pytest.mark.slow
def test_the_parts_of_the_fall_of_the_loss_do_not_depend_on_the_clock(walks):
    plain, slow = (fl.rectified(flow, TASK) for flow in walks)
    np.testing.assert_allclose(slow.loss_fall, plain.loss_fall, atol=1e-7)
    assert np.max(plain.loss_fall) > 0.01
    assert float(fl.distance(slow.replay(), walks[1].final, relative=True)) < 1e-6


OTHERS = {
    "averaged": lambda: relu(TASK, seed=7),
    "tiny": lambda: fl.LinearNetwork.init(TASK, 3, 1e-24, key=jax.random.key(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "off", "options"),
    [
        ("averaged", 1e-4, {"kinks": fl.AveragedKinks(), "weight_decay": 0.1}),
        ("tiny", 1e-7, {"s": 50.0}),
    ],
)
def test_others_change_their_clock_alone(kind, off, options):
    agree(both_clocks(OTHERS[kind](), **options), off)


@pytest.mark.slow
def test_eigenvalues_are_those_of_the_hessian_without_the_schedule():
    """Of (a b - 1)^2 / 2."""
    solver = fl.RecycledBDF(eigenvalues=1)
    network = fl.LinearNetwork((jnp.full((1, 1), 0.3), jnp.full((1, 1), 0.5)))
    ts = np.expm1(np.linspace(0.0, 6.0, 7))
    flow = fl.gradient_flow(network, ONE, ts[-1], ts=ts, tau=growing, solver=solver, rtol=1e-6)
    a, b = (np.ravel(w) for w in flow.networks.weights)
    wanted = (a**2 + b**2) / 2 + np.hypot((a**2 - b**2) / 2, 2 * a * b - 1)
    np.testing.assert_allclose(flow.observed["hessian_eigenvalues"][:, 0], wanted, rtol=0.02)
    assert max(wanted) > 1.4 * min(wanted)


# ---- Derivatives and transformations


def end(schedule, **options):
    flow = fl.gradient_flow(
        approach(), ONE, 3.0, tau=schedule, max_steps=64, max_events=8, **options
    )
    return flow.final.weights[0][0, 0]


def test_derivatives_by_what_is_in_a_schedule():
    """w(3) = 3 / (a + 3)."""
    one = jnp.asarray(1.0)
    forward = diffrax.ForwardMode()
    _, found = jax.jvp(jit(lambda a: end(From(a), adjoint=forward)), (one,), (one,))
    assert float(found) == pytest.approx(-3 / 16, abs=1e-7)


@pytest.mark.slow
def test_a_stack_of_functions_in_reverse_by_what_they_close_over():
    starts = jnp.array([0.5, 1.0, 3.0])
    of_each = jax.vmap(jax.value_and_grad(lambda a: end(lambda t: a + t)))
    ends, slopes = jit(of_each)(starts)
    np.testing.assert_allclose(ends, 3 / (starts + 3), atol=1e-8)
    np.testing.assert_allclose(slopes, -3 / (starts + 3) ** 2, atol=1e-7)


# ---- What goes along with a run


@pytest.mark.slow
def test_a_run_goes_on_from_its_file_to_the_bit(tmp_path):
    file, network = tmp_path / "run", linear(TASK)

    def run(tau=growing, t1=40.0, **options):
        return fl.gradient_flow(network, TASK, t1, tau=tau, **options)

    whole = run()
    part = run(checkpoint=file, max_steps=12, throw=False)
    assert float(part.end) < 40.0
    resumed = run(checkpoint=file)
    for a, b in zip(*(jax.tree.leaves(f.final) for f in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"another function `tau`"):
        run(tau=other_growing(), checkpoint=file)
    for other in (1.0, From(jnp.asarray(1.0))):
        with pytest.raises(ValueError, match="of a run with another tau"):
            run(tau=other, checkpoint=file)


def other_growing():
    def growing(t):
        return 2 + t

    return growing


@pytest.fixture(scope="module")
def grown():
    return fl.gradient_flow(approach(), ONE, 1.0, tau=growing)


@pytest.mark.slow
def test_it_is_extended_confirmed_and_saved(grown, tmp_path):
    flow = grown.extend(3.0, ts=[2.0, 3.0])  # as many rows: no other program
    assert weight(flow) == pytest.approx(0.75, abs=1e-9)
    np.testing.assert_array_equal(flow.observed["tau"][jnp.array([0, -1])], [1.0, 4.0])
    sure = flow.confirm()
    assert float(sure.error.losses[-1]) < 1e-8
    flow.save(tmp_path / "flow.npz")
    loaded = fl.load(tmp_path / "flow.npz")
    assert np.isnan(loaded.tau)
    np.testing.assert_array_equal(loaded.observed["tau"], flow.observed["tau"])


def test_closed_forms_of_one_tau_are_not_held_against_it(grown):
    with pytest.raises(ValueError, match="`flow` has a `tau` that depends on time"):
        fl.theory.lazy(approach(), ONE).error(grown)


@pytest.mark.parametrize(
    ("tau", "said"),
    [
        (lambda: 1.0, r"`tau` must be a function of \(t\), and takes \(\)"),
        (From, r"`tau` must be a function of \(t\)"),
        (lambda t: jnp.stack([1 + t, t]), r"`tau` = <lambda> must make one real number .* \(2,\)"),
        (lambda t: None, r"`tau` = <lambda> must make one real number of a time t, and makes None"),
        (lambda t: "one", r"`tau` = <lambda> fails at t = 0: TypeError"),
        (lambda t: 1.0 if t > 1 else 2.0, r"`tau` = <lambda> fails .* choose with jnp.where"),
        (lambda t: t, r"`tau` = <lambda> must be positive and finite .* is 0 at t = 0"),
        (lambda t: t / 0.0, r"`tau` = <lambda> must be positive and finite .* is nan at t = 0"),
    ],
)
def test_what_is_no_schedule_is_refused(tau, said):
    with pytest.raises(ValueError, match=said):
        fl.gradient_flow(approach(), ONE, 3.0, tau=tau)


@pytest.mark.parametrize(
    ("tau", "end"),
    [
        pytest.param(lambda t: 2 - t, 2.0, marks=pytest.mark.slow),
        (lambda t: jnp.where(t < 1, 1.0, -1.0), 1.0),
    ],
)
def test_a_run_ends_where_its_schedule_is_not_positive(tau, end):
    with pytest.raises(fl.RunError, match=r"`tau` = <lambda> must be positive and finite") as said:
        fl.gradient_flow(approach(), ONE, 3.0, tau=tau)
    assert float(said.value.trajectory.end) == pytest.approx(end, abs=1e-6)
    assert weight(said.value.trajectory) <= 1.0


def test_descent_has_one_time_constant():
    with pytest.raises(
        ValueError, match="`tau` must be a number, finite and positive, got a function"
    ):
        fl.gradient_descent(approach(), ONE, 0.1, t1=1.0, tau=growing)  # pyright: ignore
