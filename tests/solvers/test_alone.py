"""The stiff solvers on equations that are no flows, in plain diffrax."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from flowlin import RKC, RecycledBDF
from tests.zoo import jit

N = 100
SPACING = 1 / (N + 1)
BAR = (np.eye(N, k=1) + np.eye(N, k=-1) - 2 * np.eye(N)) / SPACING**2
WIND = (np.eye(N, k=-1) - np.eye(N, k=1)) / (2 * SPACING)
LUMP = np.exp(-50 * (np.arange(1, N + 1) * SPACING - 0.3) ** 2)


def control(rtol, atol):
    return diffrax.PIDController(rtol=rtol, atol=atol)


def end(field, solver, y0, t1, rtol, atol, args=None, **options):
    """The state at t1, and the steps that were tried."""
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(field), solver, jnp.zeros(()), jnp.asarray(t1), None, jnp.asarray(y0), args,
        stepsize_controller=control(rtol, atol), **options,
    )  # fmt: skip
    assert found.ys is not None
    return found.ys[0], found.stats["num_steps"]


# ---- Heat: a symmetric Jacobian, until a wind sets in.

RTOL, ATOL = 1e-5, 1e-8
SOLVERS = {
    "RKC": (RKC(), 1e-3),  # of order 2: the error of a run goes as rtol^(2/3)
    "RecycledBDF": (RecycledBDF(rtol=RTOL, atol=ATOL), 5e-5),
    "RecycledBDF by LU": (RecycledBDF(rtol=RTOL, atol=ATOL, linear_solver=lx.LU()), 5e-5),
}
ASYMMETRIC = r"not symmetric.*RecycledBDF.*linear_solver=lineax\.LU\(\)"


def heat(t, y, args):
    """Heat on a bar with cold ends, in a wind of this strength from a time on."""
    strength, since = args
    return BAR @ y + jnp.where(t < since, 0.0, strength) * (WIND @ y)


@functools.cache
def warmed(name, t1=0.1, strength=0.0, since=0.0):
    """The bar at t1, and steps; one program for each solver."""
    args = jnp.asarray(strength), jnp.asarray(since)
    return end(heat, SOLVERS[name][0], LUMP, t1, RTOL, ATOL, args)


FIRST = ("RKC",)  # the order of RecycledBDF is looked at in test_recycled_bdf


@pytest.fixture(
    scope="module",
    params=[n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in SOLVERS],
)
def bar(request):
    """The bar that has cooled, its steps, and the error that its solver may make."""
    return *warmed(request.param), SOLVERS[request.param][1]


def test_heat_follows_the_matrix_exponential(bar):
    y, steps, error = bar
    exact = expm(0.1 * BAR) @ LUMP
    assert np.linalg.norm(y - exact) < error * np.linalg.norm(exact)
    # A step of an ordinary explicit method is stable up to about 3.3 over the radius.
    assert 2 * int(steps) < 0.1 * 4 / SPACING**2 / 3.3


@pytest.mark.parametrize("since", [0.0, 0.01])
def test_what_is_not_symmetric_is_refused(since):
    """From the start or on the way, rather than tried again in ever shorter steps."""
    with pytest.raises(RuntimeError, match=ASYMMETRIC):
        warmed("RecycledBDF", 0.02, 40.0, since)


@pytest.mark.slow
def test_wind_is_no_trouble_with_a_linear_solver():
    y, _ = warmed("RecycledBDF by LU", 0.02, 40.0, 0.01)
    exact = expm(0.01 * (BAR + 40.0 * WIND)) @ expm(0.01 * BAR) @ LUMP
    assert np.linalg.norm(y - exact) < 1e-3 * np.linalg.norm(exact)


# ---- Robertson's reaction (1966): small, stiff, of any Jacobian.

T_ROBERTSON, FINE, FINER = 1e4, 1e-6, 1e-10
ANY = {
    "LU": RecycledBDF(rtol=FINE, atol=FINER, linear_solver=lx.LU()),
    "GMRES": RecycledBDF(rtol=FINE, atol=FINER, linear_solver=lx.GMRES(rtol=1e-3, atol=1e-3)),
}


def robertson(t, y, args):
    a, b, c = y
    slow, fast, back = 0.04 * a, 3e7 * b**2, 1e4 * b * c
    return jnp.stack([back - slow, slow - back - fast, fast])


def reacted(solver):
    return end(robertson, solver, [1.0, 0.0, 0.0], T_ROBERTSON, FINE, FINER)


@pytest.fixture(scope="module")
def reactions():
    return {name: reacted(solver) for name, solver in ANY.items()}


@pytest.fixture(scope="module")
def known():
    """By Radau, the field in Python."""

    def field(t, y):
        a, b, c = y
        slow, fast, back = 0.04 * a, 3e7 * b**2, 1e4 * b * c
        return [back - slow, slow - back - fast, fast]

    options = {"method": "Radau", "rtol": 1e-10, "atol": 1e-14}
    return solve_ivp(field, (0.0, T_ROBERTSON), [1.0, 0.0, 0.0], **options).y[:, -1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ANY)
def test_robertson_agrees_with_radau(name, reactions, known):
    y, steps = reactions[name]
    np.testing.assert_allclose(y, known, rtol=2e-5)
    np.testing.assert_allclose(np.sum(y), 1.0, atol=1e-8)
    assert int(steps) < 1000  # the fastest rate at the end is 9e3


def test_arguments_that_cannot_work_say_so():
    with pytest.raises(ValueError, match="`linear_solver` must be a linear solver of lineax, got"):
        RecycledBDF(rtol=1e-6, atol=1e-9, linear_solver="LU")  # pyright: ignore
    with pytest.raises(ValueError, match=r"`eigenvalues` of fl\.RecycledBDF are those of a symm"):
        RecycledBDF(eigenvalues=2, rtol=1e-6, atol=1e-9, linear_solver=lx.LU())
    with pytest.raises(ValueError, match=r"`rtol` and `atol` of fl\.RecycledBDF are missing"):
        end(robertson, RecycledBDF(linear_solver=lx.LU()), [1.0, 0.0, 0.0], 1.0, FINE, FINER)


# ---- Neural ODEs, whose derivatives are asked for.

RATES = np.array([1.0, 10.0, 200.0])
RNG = np.random.default_rng(0)
WEIGHTS = {"in": RNG.normal(size=(4, 3)), "out": RNG.normal(size=(3, 4))}
TURN = {"in": RNG.normal(size=(4, 3)), "out": RNG.normal(size=(3, 4))}
BEGIN = np.array([1.0, -0.5, 0.3])
TIGHT, T1 = 1e-8, 1.0


def neural(t, y, weights):
    """A network and stiff decay, of any Jacobian."""
    return weights["out"] @ jnp.tanh(weights["in"] @ y) - RATES * y


def potential(t, y, weights):
    """The descent of an energy, whose Jacobian is symmetric."""
    return weights["in"].T @ jnp.tanh(weights["in"] @ y) - RATES * y


def moved(along):
    """The weights, so far in a direction."""
    return {name: value + along * TURN[name] for name, value in WEIGHTS.items()}


def slope_by_scipy(field):
    """Central difference of the sum of the end, by Radau; the field is NumPy's here."""

    def total(along):
        weights = moved(along)
        out = weights["out"] if field is neural else weights["in"].T

        def velocity(t, y):
            return out @ np.tanh(weights["in"] @ y) - RATES * y

        options = {"method": "Radau", "rtol": 1e-11, "atol": 1e-13}
        return np.sum(solve_ivp(velocity, (0.0, T1), BEGIN, **options).y[:, -1])

    return (total(1e-4) - total(-1e-4)) / 2e-4


def slope(field, solver, mode):
    """The same, by diffrax."""
    forward = mode == "forward"
    adjoint = diffrax.ForwardMode() if forward else diffrax.RecursiveCheckpointAdjoint()

    def total(along):
        options = {"adjoint": adjoint, "max_steps": 1024}
        return jnp.sum(end(field, solver, BEGIN, T1, TIGHT, TIGHT, moved(along), **options)[0])

    return jit((jax.jacfwd if forward else jax.grad)(total))(0.0)


NEURAL = {
    "RKC": (neural, lambda mode: RKC(loop="lax" if mode == "forward" else "checkpointed"), 1e-4),
    "RecycledBDF": (potential, lambda mode: RecycledBDF(rtol=TIGHT, atol=TIGHT), 1e-5),
    "RecycledBDF by LU": (
        neural, lambda mode: RecycledBDF(rtol=TIGHT, atol=TIGHT, linear_solver=lx.LU()), 1e-5,
    ),
    "RecycledBDF by GMRES": (
        neural,
        lambda mode: RecycledBDF(
            rtol=TIGHT, atol=TIGHT, linear_solver=lx.GMRES(rtol=1e-2, atol=1e-2)
        ),
        1e-5,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("RKC", "reverse"),
        ("RecycledBDF", "reverse"),
        ("RecycledBDF by LU", "reverse"),
        ("RecycledBDF by GMRES", "forward"),
    ],
)
def test_derivatives_of_a_neural_ode(name, mode):
    """Others are in test_rkc.py and test_recycled_bdf.py, against closed forms."""
    field, solver, bound = NEURAL[name]
    assert float(slope(field, solver(mode), mode)) == pytest.approx(
        slope_by_scipy(field), rel=bound
    )


@pytest.mark.slow
def test_a_derivative_that_presumes_too_much_is_no_number():
    """The Jacobian is symmetric where the solve starts, and so little off that no step fails.

    In reverse mode, which transposes the solves of forward mode.
    """

    def total(start):
        def field(t, y, args):
            late = jnp.where(t < 1e-3, 0.0, 0.1) * jnp.stack([y[1], -y[0]])
            return -jnp.array([1.0, 2.0]) * y + late

        solver = RecycledBDF(rtol=1e-3, atol=1e-3)
        options = {"adjoint": diffrax.RecursiveCheckpointAdjoint(), "max_steps": 64}
        return jnp.sum(end(field, solver, start * jnp.ones(2), 0.5, 1e-3, 1e-3, **options)[0])

    value, found = jit(jax.value_and_grad(total))(1.0)
    turned = expm(0.499 * np.array([[-1.0, 0.1], [-0.1, -2.0]]))
    exact = turned @ np.exp(-1e-3 * np.array([1.0, 2.0]))
    assert float(value) == pytest.approx(np.sum(exact), rel=1e-2)
    assert np.isnan(found)
