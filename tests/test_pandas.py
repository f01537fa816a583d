"""Data frames of logs, sweeps and runs."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

WALK = fl.load(pathlib.Path(__file__).parent / "data" / "flow-0.1.npz")


def test_to_pandas_is_the_table(monkeypatch):
    two = fl.Sweep([WALK, WALK])
    columns = ["time", "uncertainty", "name", "index", "old", "new", "promise", "reason"]
    for table, names in ((WALK.events, columns), (two, ["run", *columns])):
        frame = table.to_pandas()
        assert list(frame.columns) == names
        assert frame.to_dict("records") == table.table()
    empty = WALK.events.where(jnp.zeros(len(WALK.events), bool)).to_pandas()
    assert list(empty.columns) == columns
    assert len(empty) == 0
    assert list(fl.Sweep([]).to_pandas().columns) == ["run", *columns]
    monkeypatch.setitem(sys.modules, "pandas", None)
    for table in (WALK.events, two):
        with pytest.raises(ImportError, match=r"pip install 'flowlin\[pandas\]'"):
            table.to_pandas()


def test_a_run_to_pandas_is_what_was_saved(monkeypatch):
    observe = {
        "first": lambda n, _: n.weights[0][0, 0],
        "loss": fl.measures.loss,
        "norms": fl.measures.norms,
        "w": lambda n, _: n.weights[0],
    }
    start = fl.LinearNetwork((0.1 * np.ones((2, 2)), 0.2 * np.ones((1, 2))), (np.ones(2), None))
    task = fl.Task(np.eye(2), np.ones((2, 1)))
    run = fl.gradient_descent(start, task, 0.1, 4, save_every=2, observe=observe)
    frame = run.to_pandas()
    parts = ["norms.weights[0]", "norms.weights[1]", "norms.biases[0]"]
    entries = ["w[0, 0]", "w[0, 1]", "w[1, 0]", "w[1, 1]"]
    assert list(frame.columns) == ["t", "loss", "first", "observed.loss", *parts, *entries]
    for name, values in (
        ("t", run.ts), ("loss", run.losses), ("observed.loss", run.losses),
        ("first", run.observed["w"][:, 0, 0]), ("w[1, 0]", run.observed["w"][:, 1, 0]),
        ("norms.biases[0]", run.observed["norms"].biases[0]),
    ):  # fmt: skip
        assert np.array_equal(frame[name], values)
    with pytest.raises(ValueError, match=r"`to_pandas` is of one run, and these are stacked"):
        jax.tree.map(lambda a: jnp.stack([a, a]), run).to_pandas()
    with pytest.raises(ValueError, match=r"call it outside of `jit`"):
        jax.eval_shape(lambda one: one.to_pandas(), run)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'flowlin\[pandas\]'"):
        run.to_pandas()
