"""Gates of descents over windows of steps: what flickers slides."""

import pathlib
import warnings

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from tests.zoo import times

TREE = fl.tasks.hierarchy()
RATE, LENGTH = 1e-2, 30
EVENTS = (fl.UnitSwitches(window=LENGTH), fl.UnitSwitches(0.13, window=20))


def descend(network, steps=1600, **how):
    return fl.gradient_descent(network, TREE, RATE, steps, events=EVENTS, **how)


@pytest.fixture(scope="module")
def network():
    return fl.ReLUNetwork.init(TREE, 16, bias=True, key=jax.random.key(0))


@pytest.fixture(scope="module")
def descent(network):
    return descend(network, save_every=1)


@pytest.fixture(autouse=True)
def _maxima_may_stand():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.LinearizationWarning)
        yield


def counts(on, length, spare):
    """By hand: numbers of linear units, open and closed, of gates (steps + 1, P, H)."""
    found = []
    for first in range(0, len(on) - length, length):
        steps = on[first : first + length + 1]
        slides = np.sum(steps[1:] != steps[:-1], axis=0) >= 2
        sides = steps[-1] & ~slides, steps[-1] | slides
        found.append([np.sum(side.sum(axis=0) >= 8 - spare) for side in sides])
    return np.array(found).T


@pytest.mark.slow
def test_windows_are_those_of_the_steps(descent):
    on = np.asarray(jax.vmap(lambda n: n.preactivations(TREE.x)[0])(descent.networks)) > 0
    for quantile, length, spare in ((0.0, LENGTH, 0), (0.13, 20, 1)):
        result = descent.linearization(quantile, window=length)
        wanted = counts(on, length, spare)
        assert np.any(wanted[0] != wanted[1])  # something slides
        for of, number in zip(("open", "closed"), wanted, strict=True):
            t_star, seen = getattr(result, of), getattr(result, f"{of}_counts")
            assert np.array_equal(seen.on, number)
            best = int(np.argmax(number))
            assert float(t_star.fraction) == number.max() / 16
            assert float(t_star.time) == pytest.approx(best * length * RATE)
            wide = [max(best - 1, 0) * length * RATE, (best + 1) * length * RATE]
            assert np.asarray(t_star.bracket) == pytest.approx(wide)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_windows_find_the_flow_where_single_steps_do_not(seed):
    """By a walk of the program of tests/test_walk.py; single steps take what slides for on."""
    task, t1, length = fl.tasks.offset_xor(), 8.0, 60
    network = fl.ReLUNetwork.init(task, (64,), variance=2e-4, key=jax.random.key(seed))
    options = {"kinks": fl.ExactKinks(slots=16), "solver": diffrax.Tsit5(), "rtol": 1e-8}
    exact = fl.gradient_flow(network, task, t1, ts=times(t1), **options).linearization()
    descent = fl.gradient_descent(
        network, task, 2.5e-3, t1=t1, observe={}, events=(fl.UnitSwitches(window=length),)
    )
    found = descent.linearization(window=length)
    for true, seen in ((exact.open, found.open), (exact.closed, found.closed)):
        assert float(true.fraction) == float(seen.fraction)
        assert seen.bracket[0] <= true.time <= seen.bracket[1]
    single = descent.linearization().open
    assert float(exact.open.fraction) < float(single.fraction)
    assert abs(float(single.time) - float(exact.open.time)) > 1.0


@pytest.mark.slow
def test_windows_survive_pauses_files_and_jit(network, descent, tmp_path):
    whole = descent.linearization(window=LENGTH)
    parts = descend(network, 915, save_every=1).extend(16.0)
    descent.save(tmp_path / "run.npz")
    loaded = fl.load(tmp_path / "run.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = jax.jit(lambda n: descend(n, save_every=1).linearization(window=LENGTH))(network)
    for other in (parts.linearization(window=LENGTH), loaded.linearization(window=LENGTH), traced):
        for one, same in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            assert jnp.allclose(one, same, rtol=1e-12)


@pytest.mark.slow
def test_windows_are_for_full_batches(network, descent):
    with pytest.raises(ValueError, match=r"UnitSwitches\(0, window=31\)"):
        descent.linearization(window=31)
    with pytest.raises(ValueError, match="`window` = 30 is longer than the run"):
        descend(network, 20).linearization(window=30)
    flow = fl.load(pathlib.Path(__file__).parent / "data" / "flow-0.1.npz")
    with pytest.raises(ValueError, match="`window` is for descents"):
        flow.linearization(window=30)
    with pytest.raises(ValueError, match="is for full-batch descents"):
        fl.gradient_flow(network, TREE, 1.0, events=EVENTS)
    with pytest.raises(ValueError, match="is for full-batch descents"):
        fl.stochastic_gradient_descent(
            network, TREE, RATE, 4, batch_size=4, key=jax.random.key(0), events=EVENTS
        )
