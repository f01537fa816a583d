"""flowlin: exact gradient flow of linear, ReLU and gated-linear networks, timed by events."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from flowlin import measures as measures
from flowlin import tasks as tasks
from flowlin import theory as theory
from flowlin.certificate import Accuracy as Accuracy
from flowlin.certificate import RateCertificate as RateCertificate
from flowlin.certificate import largest_learning_rate as largest_learning_rate
from flowlin.compare import Comparison as Comparison
from flowlin.compare import compare as compare
from flowlin.descent import gradient_descent as gradient_descent
from flowlin.descent import stochastic_gradient_descent as stochastic_gradient_descent
from flowlin.eventlog import CrossingsWarning as CrossingsWarning
from flowlin.eventlog import EventLog as EventLog
from flowlin.events import Crossing as Crossing
from flowlin.events import LossBelow as LossBelow
from flowlin.events import ModeHits as ModeHits
from flowlin.events import UnitSwitches as UnitSwitches
from flowlin.flow import gradient_flow as gradient_flow
from flowlin.kinks import AveragedKinks as AveragedKinks
from flowlin.kinks import ExactKinks as ExactKinks
from flowlin.kinks import IgnoreKinks as IgnoreKinks
from flowlin.kinks import KinksWarning as KinksWarning
from flowlin.kinks import SmoothKinks as SmoothKinks
from flowlin.linearization import Linearization as Linearization
from flowlin.loss import CrossEntropy as CrossEntropy
from flowlin.loss import SquaredError as SquaredError
from flowlin.network import GatedLinearNetwork as GatedLinearNetwork
from flowlin.network import LinearNetwork as LinearNetwork
from flowlin.network import ReLUNetwork as ReLUNetwork
from flowlin.precision import PrecisionWarning as PrecisionWarning
from flowlin.result import RESULTS as RESULTS
from flowlin.result import RunError as RunError
from flowlin.rkc import RKC as RKC
from flowlin.storage import load as load
from flowlin.sweep import Sweep as Sweep
from flowlin.sweep import sweep as sweep
from flowlin.task import Task as Task
from flowlin.tasks.files import DataError as DataError
from flowlin.trajectory import Trajectory as Trajectory
from flowlin.units import Convention as Convention
from flowlin.units import StepClock as StepClock

if _TYPE_CHECKING:
    from flowlin import plot as plot

__version__ = "0.1.0"


def __getattr__(name: str):
    """`fl.plot`, imported when it is first used since it needs matplotlib."""
    if name == "plot":
        return _importlib.import_module("flowlin.plot")
    raise AttributeError(f"module 'flowlin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "plot"]
