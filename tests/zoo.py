"""What tests share so that one compiled program serves many of them."""

import functools
import io

import jax
import numpy as np

import flowlin as fl

distance = functools.partial(fl.distance, relative=True)

# Compiles programs of a test that hold runs. On a CPU with the option with which the library
# compiles a small run that is under no other `jit`; docs/faq.md tells users of it. What a plain
# `jax.jit` makes of runs is looked at in test_compiled, test_confirm and test_project.
jit = functools.partial(
    jax.jit,
    compiler_options={"xla_cpu_use_fusion_emitters": False}
    if jax.default_backend() == "cpu"
    else None,
)

# Strengths of the tree's nine modes, equal ones' equal.
ALIGNED = 1e-3 * np.array([1.0, 1.25, 1.5, 1.5, 2.0, 2.0, 2.0, 2.0, 3.0])


def times(t1):
    """151 times from 0 to the end: runs that save as many share their programs."""
    return np.linspace(0, t1, 151)


def deep_walk(t1, rtol):
    """A network of two layers of 16 units, and its walk on `hierarchy()`.

    Samples slide in both layers for most of t < 20.
    """
    tree, kinks = fl.tasks.hierarchy(), fl.ExactKinks(slots=8)
    network = fl.ReLUNetwork.init(tree, (16, 16), 1e-2, key=jax.random.key(3))
    return network, fl.gradient_flow(network, tree, t1, kinks=kinks, rtol=rtol, ts=times(t1))


def two_layers():
    """A network of two layers of six units, of whose samples some slide by t = 12, and its task."""
    rng = np.random.default_rng(0)
    task = fl.Task(rng.normal(size=(8, 4)), rng.normal(size=(8, 2)))
    return fl.ReLUNetwork.init(task, (6, 6), key=jax.random.key(1), variance=0.3), task


def small_walk(task, rtol=1e-8, seed=0):
    """Of six units to t = 20, with sliding pairs and mode hits in its log; `hierarchy(2)`."""
    modes = fl.theory.modes(task, 1.0)
    network = fl.ReLUNetwork.init(task, 6, variance=2e-2, key=jax.random.key(seed))
    half = fl.ModeHits(modes, 0.5 * modes.full_strength)
    return fl.gradient_flow(
        network, task, 20.0, ts=np.linspace(0.0, 20.0, 31), events=(half,), rtol=rtol
    )


class Killed(io.StringIO):
    """A log that Ctrl-C is pressed over as its second line is written."""

    def write(self, text):
        if self.getvalue().count("\n") == 1:
            super().write("\n")
            raise KeyboardInterrupt
        return super().write(text)
