"""Every kind of run is lowered for accelerators, on a machine that has none.

Under strict promotion of types, which users may set.
"""

import jax
import pytest

import flowlin as fl

XOR = fl.tasks.xor()
LINEAR = fl.LinearNetwork.init(XOR, 3, 0.1, key=jax.random.key(0))
RELU = fl.ReLUNetwork.init(XOR, 3, 0.1, key=jax.random.key(0))


def flow(network, **options):
    # An error that is raised from inside of a program is a call back to the host.
    return fl.gradient_flow(network, XOR, 1.0, max_steps=64, max_events=64, throw=False, **options)


RUNS = {
    "linear": (LINEAR, flow),
    "RKC": (LINEAR, lambda n: flow(n, solver=fl.RKC())),
    "exact": (RELU, lambda n: flow(n, kinks=fl.ExactKinks())),
    "averaged": (RELU, lambda n: flow(n, kinks=fl.AveragedKinks(), events=fl.UnitSwitches())),
    "smooth": (RELU, lambda n: flow(n, kinks=fl.SmoothKinks(1e-2))),
    "events": (LINEAR, lambda n: flow(n, events=fl.LossBelow(0.3, terminate=True))),
    "descent": (LINEAR, lambda n: fl.gradient_descent(n, XOR, 0.1, 10, throw=False)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.filterwarnings("ignore::flowlin.KinksWarning")
def test_runs_lower_for_accelerators(kind):
    network, run = RUNS[kind]

    def found(network):
        trajectory = run(network)
        if trajectory.stats.get("kinks", "").startswith("Exact"):
            trajectory.linearization()
        return trajectory.losses, trajectory.final.parameters, trajectory.events.time

    with jax.numpy_dtype_promotion("strict"):  # numbers of two kinds meet by intention only
        exported = jax.export.export(jax.jit(found), platforms=["cuda", "tpu"])(network)
    assert exported.platforms == ("cuda", "tpu")
