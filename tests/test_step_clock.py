"""Steps of gradient descent in units of flow time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin import LossConvention

SIZES = {"samples": 8, "outputs": 15, "batch_size": 4}


@pytest.mark.parametrize(
    ("convention", "needs", "steps"),
    [
        (LossConvention.HALF_MEAN, None, 100.0),  # 1 / eps
        (LossConvention.HALF_SUM, "samples", 12.5),  # 1 / (P eps)
        (LossConvention.MEAN, None, 50.0),  # 1 / (2 eps)
        (LossConvention.TORCH_MEAN, "outputs", 750.0),  # N_out / (2 eps)
        (LossConvention.BATCH_HALF_SUM, "batch_size", 25.0),  # 1 / (B eps)
    ],
)
def test_steps_per_unit_of_time(convention, needs, steps):
    sizes = {needs: SIZES[needs]} if needs else {}
    clock = fl.StepClock(0.01, convention, **sizes)
    assert clock.steps_per_time == pytest.approx(steps, rel=1e-14)
    times = jnp.array([0.0, 0.5, 3.0])
    np.testing.assert_allclose(clock.steps(times), steps * times, rtol=1e-14)
    np.testing.assert_allclose(clock.time(clock.steps(times)), times, rtol=1e-14)
    assert clock.time(1.0) == pytest.approx(1 / steps, rel=1e-14)
    # With another tau the flow is slower, so the same step covers more of its time.
    slow = fl.StepClock(0.01, convention, tau=4.0, **sizes)
    assert slow.time(1.0) == pytest.approx(4 / steps, rel=1e-14)
    # More sizes than needed do no harm; the needed one must be there.
    assert fl.StepClock(0.01, convention, **SIZES).steps_per_time == clock.steps_per_time
    if needs:
        with pytest.raises(ValueError, match=rf"{convention.name} needs `{needs}`; pass it"):
            fl.StepClock(0.01, convention)


def test_the_clock_takes_whole_numbers():
    clock = fl.StepClock(0.5)
    assert clock.time(3) == 1.5
    assert clock.steps(3) == 6
    np.testing.assert_array_equal(clock.time(jnp.arange(3)), [0, 0.5, 1])


def test_the_papers_625_steps():
    clock = fl.StepClock(2e-4, LossConvention.HALF_SUM, samples=8)
    assert clock.steps_per_time == pytest.approx(625)


@pytest.mark.parametrize("rate", [0.0, -0.1, np.nan, np.inf])
def test_impossible_rates(rate):
    with pytest.raises(ValueError, match=r"`learning_rate` must be finite and positive, got"):
        fl.StepClock(rate)
    with pytest.raises(ValueError, match=r"`tau` must be finite and positive, got"):
        fl.StepClock(0.1, tau=rate)


# ---- The clock against descent

P, BATCH, N_IN, HIDDEN, N_OUT = 6, 3, 4, 5, 3


def half_square(y, outputs):
    return jnp.sum((y - outputs) ** 2) / 2


DESCENDED = {
    LossConvention.HALF_MEAN: lambda y, outputs: half_square(y, outputs) / len(y),
    LossConvention.HALF_SUM: half_square,
    LossConvention.MEAN: lambda y, outputs: jnp.mean(jnp.sum((y - outputs) ** 2, axis=1)),
    LossConvention.TORCH_MEAN: lambda y, outputs: jnp.mean((y - outputs) ** 2),
    LossConvention.BATCH_HALF_SUM: half_square,
}


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    shapes = (P, N_IN), (P, N_OUT), (HIDDEN, N_IN), (N_OUT, HIDDEN)
    x, y, w1, w2 = (rng.normal(size=shape) for shape in shapes)
    return x, y, 0.4 * w1, 0.4 * w2


def flow(problem, times, tau):
    """Losses of the mean-loss flow of a two-layer linear network: classical Runge-Kutta, numpy."""
    x, y, w1, w2 = problem

    def field(w):
        w1, w2 = w
        residual = (y - x @ w1.T @ w2.T).T @ x / P
        return np.array([w2.T @ residual, residual @ w1.T], dtype=object) / tau

    def loss(w):
        return np.sum((y - x @ w[0].T @ w[1].T) ** 2) / (2 * P)

    w = np.array([w1, w2], dtype=object)
    losses = [loss(w)]
    for t0, t1 in itertools.pairwise(times):
        for _ in range(20):
            h = (t1 - t0) / 20
            k1 = field(w)
            k2 = field(w + h / 2 * k1)
            k3 = field(w + h / 2 * k2)
            k4 = field(w + h * k3)
            w = w + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        losses.append(loss(w))
    return np.array(losses)


def descend(convention, batches, problem, rates, steps):
    """Mean half squared errors before every step, mini-batches one after the other; per rate."""
    *data, w1, w2 = problem
    x, y = (jnp.asarray(a).reshape(batches, P // batches, -1) for a in data)

    def descended(w, batch):
        return DESCENDED[convention](y[batch], x[batch] @ w[0].T @ w[1].T)

    @jax.jit
    @jax.vmap
    def losses(rate):
        def step(w, k):
            loss = DESCENDED[LossConvention.HALF_SUM](y, x @ w[0].T @ w[1].T) / P
            gradient = jax.grad(descended)(w, k % batches)
            return jax.tree.map(lambda a, g: a - rate * g, w, gradient), loss

        return jax.lax.scan(step, (w1, w2), jnp.arange(steps + 1))[1]

    return np.asarray(losses(jnp.asarray(rates)))


QUICK = [
    (LossConvention.HALF_SUM, 1),
    (LossConvention.BATCH_HALF_SUM, 2),
    (LossConvention.TORCH_MEAN, 2),
]
OTHERS = [
    (LossConvention.HALF_MEAN, 2),
    (LossConvention.HALF_MEAN, 1),
    (LossConvention.MEAN, 1),
    (LossConvention.TORCH_MEAN, 1),
]


@pytest.mark.parametrize(
    ("convention", "batches"),
    [*QUICK, *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)],
)
def test_the_clock_is_right_about_descent(convention, batches, problem):
    """k steps lie on the flow's loss curve at `clock.time(k)`, to first order in the rate."""
    rates = (2e-3, 1e-3)
    sizes = {"samples": P, "outputs": N_OUT, "batch_size": P // batches}
    clocks = [fl.StepClock(rate, convention, **sizes) for rate in rates]
    counts = [round(clock.steps(2.0)) for clock in clocks]
    descents = descend(convention, batches, problem, rates, max(counts))
    for tau in (1.0, 2.5):
        errors = []
        for rate, descent, count in zip(rates, descents, counts, strict=True):
            clock = fl.StepClock(rate, convention, tau=tau, **sizes)
            marks = np.linspace(0, count, 9).astype(int) // batches * batches
            exact = flow(problem, [clock.time(float(k)) for k in marks], tau)
            assert exact[-1] < 0.7 * exact[0]
            errors.append(np.max(abs(descent[marks] / exact - 1)))
        assert errors[1] < 1e-2
        assert errors[1] < 0.6 * errors[0]
