"""Global errors by a second run: truth within the ±, convergence, refusals."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

TSIT = diffrax.Tsit5()


@pytest.fixture(scope="module")
def modes_run(tree, aligned):
    """A flow that watches the hits of modes, the same confirmed, and their true times."""
    network, modes = aligned
    # The program of those in test_events, which is found on disk since it saves at no other times.
    options = {"events": fl.ModeHits(modes, share=0.5), "solver": diffrax.Dopri8()}
    flow = fl.gradient_flow(network, tree, 30.0, rtol=1e-4, **options)
    rho = 0.5 * modes.full_strength
    exact = fl.theory.hitting_time(rho, modes.s, modes.d, modes.strengths(network, tree))
    return flow, flow.confirm(), np.asarray(exact)


def test_the_truth_lies_within_the_uncertainty(modes_run):
    flow, confirmed, exact = modes_run
    found, stated = np.asarray(flow.events.first("mode"))[:8], np.zeros(8)
    for row in confirmed.events.table():
        stated[row["index"]] = row["uncertainty"]
    off = np.abs(found - exact[:8])
    assert np.all(off < stated)
    assert np.all(stated < 30 * np.max(off))
    assert np.array_equal(confirmed.events.first("mode")[:8], found)  # times are left alone


def test_the_finer_run_may_take_its_place(modes_run, tree, aligned):
    flow, confirmed, exact = modes_run
    finer = flow.confirm(finer=True)
    rows = finer.events.table()
    off = np.array([abs(row["time"] - exact[row["index"]]) for row in rows])
    stated = np.array([row["uncertainty"] for row in rows])
    own = [row["uncertainty"] for row in confirmed.events.table()]
    before = np.abs(np.asarray(flow.events.first("mode"))[: len(off)] - exact[: len(off)])
    assert np.all(off < np.maximum(before, 1e-10))  # roots are located to 1e-12 of a step
    assert np.all(off < stated)
    assert np.all(stated <= own)  # the distances are the same, what a step does to it is less
    loss = fl.theory.solve(aligned[0], tree).loss(flow.ts)
    assert np.all(np.abs(finer.losses - loss) <= 3 * finer.error.losses + 1e-14)
    np.testing.assert_allclose(finer.error.losses, confirmed.error.losses, rtol=1e-3)
    assert float(finer.error.rtol) == pytest.approx(1e-4)


def test_rows_have_errors(modes_run, tree, aligned):
    flow, confirmed, _ = modes_run
    error = confirmed.error
    off = np.abs(flow.losses - fl.theory.solve(aligned[0], tree).loss(flow.ts))
    assert np.all(off <= 3 * error.losses + 1e-14)
    assert np.max(error.losses) < 100 * np.max(off)
    assert error.parameters.shape == flow.ts.shape
    assert float(error.rtol) == pytest.approx(1e-5)
    assert flow.error is None
    assert "± of the run" in repr(confirmed)
    assert "± of their steps" in repr(flow)
    assert "rtol = 1e-05" in repr(error)


def test_what_is_confirmed_is_kept(modes_run, tmp_path):
    _, confirmed, _ = modes_run
    confirmed.save(tmp_path / "flow.npz")
    again = fl.load(tmp_path / "flow.npz")
    assert again.events.confirmed
    assert jax.tree.all(jax.tree.map(np.array_equal, again.error, confirmed.error))
    assert np.array_equal(again.events.uncertainty, confirmed.events.uncertainty)
    with pytest.raises(ValueError, match=r"cannot be confirmed: it was loaded .* before it is"):
        again.confirm()


def test_runs_that_cannot_be_confirmed_say_so(modes_run, tree, aligned):
    flow, _, _ = modes_run
    descent = fl.gradient_descent(aligned[0], tree, 1e-2, 4)
    with pytest.raises(ValueError, match=r"cannot be confirmed: descent has no .* `fl.compare`"):
        descent.confirm()
    with pytest.raises(ValueError, match=r"cannot be confirmed: it is a stack .* fl.sweep"):
        jax.tree.map(lambda a: jnp.stack([a, a]), flow).confirm()
    with pytest.raises(ValueError, match=r"cannot be confirmed: it is traced by `jit`"):
        jax.jit(lambda flow: flow.confirm().end)(flow)
    with pytest.raises(fl.RunError, match="max_steps"):
        flow.confirm(max_steps=3)


@pytest.fixture(scope="module")
def converged():
    """By rtol: a walk that goes on long after convergence, and the same confirmed.

    At the looser one errors switch its gates for ever, at the finer one its slides are held.
    """
    task = fl.tasks.offset_xor(0.5)
    network = fl.ReLUNetwork.init(task, 8, variance=1e-2, key=jax.random.key(0))
    flows = [fl.gradient_flow(network, task, 1e3, rtol=r, solver=TSIT) for r in (1e-5, 1e-8)]
    return [(flow, flow.confirm()) for flow in flows]


@pytest.mark.slow
def test_after_convergence_nothing_is_determined(converged):
    """t* stays where it was, at every tolerance, and what may come later is said to be open."""
    found, kept = [], []
    for _, confirmed in converged:
        kept.append(np.mean(confirmed.events.is_determined))
        assert 20 < confirmed.stats["converged"] < 200
        with pytest.warns(fl.LinearizationWarning, match="are not"):
            found.append(confirmed.linearization().closed)
        assert "no later event is determined" in repr(confirmed)
        assert "not determined after" in repr(found[-1])
    first, second = found
    assert kept[0] < 0.5
    assert kept[1] == 1
    assert first.fraction == second.fraction
    assert abs(first.time - second.time) <= first.bracket[1] - first.time < 1e-3
    assert second.determined_until > second.time


@pytest.fixture(scope="module")
def averaged():
    """A run of averaged gates, as fine as they go, and the same ten times coarser."""
    task = fl.tasks.teacher(20, (1.0, 0.5), key=jax.random.key(2))
    network = fl.ReLUNetwork.init(task, 4, variance=0.1, key=jax.random.key(1))
    start = float(fl.gradient_descent(network, task, 1e-3, 1).losses[0])
    how = {"kinks": fl.AveragedKinks(), "events": fl.LossBelow(0.9 * start)}
    return [fl.gradient_flow(network, task, 3.0, rtol=r, **how) for r in (1e-5, 1e-4)]


@pytest.mark.slow
def test_a_run_that_can_go_no_finer_is_compared_with_a_coarser_one(averaged):
    flow, coarser = averaged
    confirmed = flow.confirm()
    assert float(confirmed.error.rtol) == pytest.approx(1e-4)
    off = abs(flow.events.first("loss") - coarser.events.first("loss"))
    (row,) = confirmed.events.select("loss").table()
    assert 0 < off <= row["uncertainty"]
    finer = flow.confirm(finer=True)  # is the first run
    assert np.array_equal(finer.events.time, flow.events.time)
    assert np.array_equal(finer.events.uncertainty, confirmed.events.uncertainty)
