"""Shared by the parts of `deep_walk.py`: the cases, and how their logs are read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import _common
import jax
import jax.numpy as jnp
import numpy as np

import flowlin as fl


class Case(NamedTuple):
    """A task, a network's start, and how long it is walked."""

    name: str
    task: fl.Task
    hidden: tuple[int, ...]
    variance: float
    t1: float
    bias: bool = True

    def start(self, seed: int) -> fl.ReLUNetwork:
        """The network of a seed, with biases in its hidden layers or none."""
        return fl.ReLUNetwork.init(
            self.task, self.hidden, self.variance, bias=self.bias, key=jax.random.key(seed)
        )

    @property
    def label(self) -> str:
        """Task and widths."""
        return f"{self.name}, {' + '.join(map(str, self.hidden))}"


def walk(case: Case, network: fl.ReLUNetwork, rtol: float, **options: Any) -> Any:
    """The exact walk; `rtol` as an array, so that all tolerances share one program."""
    return _common.exact_walk(network, case.task, case.t1, jnp.asarray(rtol), **options)


def saved(flow: Any, k: int) -> fl.ReLUNetwork:
    """The network at saved time number k."""
    return jax.tree.map(lambda a: a[k], flow.networks)


def said(flow: Any) -> str:
    """How a run ended, in a word."""
    return "end" if bool(flow.result == fl.RESULTS.successful) else fl.RESULTS[flow.result]


def shared_slides(log: fl.EventLog, hidden: Sequence[int], samples: int, end: float) -> float:
    """Share of the time up to `end` in which some sample slides in two layers at once."""
    units = np.repeat(np.arange(len(hidden)), hidden)
    codes = np.asarray(log.initial)[: units.size * samples].reshape(-1, samples).copy()

    def slide() -> bool:
        layers = [np.any(codes[units == k] == 0, axis=0) for k in range(len(hidden))]
        return bool(np.any(np.sum(layers, axis=0) > 1))

    shared, last = 0.0, 0.0
    columns = (np.asarray(column) for column in (log.time, log.component, log.new))
    for time, component, new in zip(*columns, strict=True):
        shared += (time - last) * slide()
        last = time
        if component < codes.size:  # beyond are the branches
            codes.ravel()[component] = new
    return float(shared + (end - last) * slide()) / end


class Branch(NamedTuple):
    """Where a walk leaves a kink that descent may stay on."""

    time: float
    pair: tuple[int, ...]  # layer, unit, sample

    @staticmethod
    def all_of(flow: Any) -> list["Branch"]:
        """Those of a run."""
        log = flow.events.select("branch")
        return [Branch(float(t), i) for t, i in zip(np.asarray(log.time), log.index, strict=True)]
