"""Runs with a checkpoint, for processes of their own that `test_pausing.py` kills."""

import time
import warnings

import jax
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

import flowlin as fl

# These processes are forked from one that has imported all this, and has no device yet.
warnings.filterwarnings("ignore", r"os\.fork\(\) was called")

KINDS = ("exact", "averaged", "descent")
FASTER = 150


def run(kind: str, path: str) -> None:
    """A run of this kind from its checkpoint there, if there is one, to its end."""
    clock = time.monotonic
    time.monotonic = lambda: FASTER * clock()
    task = fl.tasks.hierarchy()
    key = jax.random.key(0)
    norms = {"norms": fl.measures.norms}
    if kind == "descent":
        linear = fl.LinearNetwork.init(task, 6, variance=1e-2, key=key)
        options = {"batch_size": 3, "key": key, "optimiser": optax.adam(1e-4), "observe": norms}
        fl.stochastic_gradient_descent(
            linear, task, 1e-3, t1=100.0, events=fl.LossBelow(1.2), checkpoint=path, **options
        )
        return
    relu = fl.ReLUNetwork.init(task, 6, variance=1e-2, key=key)
    measures = norms | {
        "x": lambda n, t: [n.outputs(t.x)[0]],
        "activity": fl.measures.activity,
    }
    network, t1, options = {
        "exact": (relu, 100.0, {"rtol": 1e-9, "observe": measures}),
        "averaged": (relu, 10.0, {"kinks": fl.AveragedKinks()}),
    }[kind]
    fl.gradient_flow(network, task, t1, ts=np.linspace(0, t1, 20), checkpoint=path, **options)
