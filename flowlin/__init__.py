"""flowlin: exact gradient flow of linear, ReLU and gated-linear networks, timed by events."""

import importlib as _importlib
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from flowlin import measures as measures
from flowlin import tasks as tasks
from flowlin import theory as theory
from flowlin._tools.bar import LogProgress as LogProgress
from flowlin._tools.result import RESULTS as RESULTS
from flowlin._tools.result import RunError as RunError
from flowlin._tools.version import __version__ as __version__
from flowlin.agreement.clock import Convention as Convention
from flowlin.agreement.clock import StepClock as StepClock
from flowlin.agreement.comparison import Comparison as Comparison
from flowlin.agreement.comparison import compare as compare
from flowlin.agreement.measure import Accuracy as Accuracy
from flowlin.agreement.search import RateCertificate as RateCertificate
from flowlin.agreement.search import largest_learning_rate as largest_learning_rate
from flowlin.events.kinds import Crossing as Crossing
from flowlin.events.kinds import LossBelow as LossBelow
from flowlin.events.kinds import ModeHits as ModeHits
from flowlin.events.kinds import UnitSwitches as UnitSwitches
from flowlin.log.eventlog import CrossingsWarning as CrossingsWarning
from flowlin.log.eventlog import EventLog as EventLog
from flowlin.log.linear_phase import Linearization as Linearization
from flowlin.log.linear_phase import LinearizationWarning as LinearizationWarning
from flowlin.loss import CrossEntropy as CrossEntropy
from flowlin.loss import SquaredError as SquaredError
from flowlin.measures.parameters import distance as distance
from flowlin.network.gating import Clusters as Clusters
from flowlin.network.gating import HalfSpaces as HalfSpaces
from flowlin.network.global_gates import GloballyGatedNetwork as GloballyGatedNetwork
from flowlin.network.graph import GatedGraph as GatedGraph
from flowlin.network.kinds import GatedLinearNetwork as GatedLinearNetwork
from flowlin.network.kinds import LinearNetwork as LinearNetwork
from flowlin.network.kinds import ReLUNetwork as ReLUNetwork
from flowlin.network.pathways import Pathway as Pathway
from flowlin.reading.pathways import RectifiedPathway as RectifiedPathway
from flowlin.reading.relu_run import Rectified as Rectified
from flowlin.reading.relu_run import rectified as rectified
from flowlin.runs.descent import gradient_descent as gradient_descent
from flowlin.runs.descent import stochastic_gradient_descent as stochastic_gradient_descent
from flowlin.runs.flow import gradient_flow as gradient_flow
from flowlin.runs.grids import Grid as Grid
from flowlin.runs.grids import grid as grid
from flowlin.runs.precision import PrecisionWarning as PrecisionWarning
from flowlin.runs.racing import RaceHits as RaceHits
from flowlin.runs.storage import load as load
from flowlin.runs.sweeps import sweep as sweep
from flowlin.runs.swept import Sweep as Sweep
from flowlin.runs.trajectory import Trajectory as Trajectory
from flowlin.solvers.bdf import RecycledBDF as RecycledBDF
from flowlin.solvers.kinks import AveragedKinks as AveragedKinks
from flowlin.solvers.kinks import ExactKinks as ExactKinks
from flowlin.solvers.kinks import IgnoreKinks as IgnoreKinks
from flowlin.solvers.kinks import KinksWarning as KinksWarning
from flowlin.solvers.kinks import SmoothKinks as SmoothKinks
from flowlin.solvers.rkc import RKC as RKC
from flowlin.tasks.files import DataError as DataError
from flowlin.tasks.task import Task as Task

if _TYPE_CHECKING:
    from flowlin import plot as plot


def __getattr__(name: str):
    """`fl.plot`, imported when it is first used since it needs matplotlib."""
    if name == "plot":
        return _importlib.import_module("flowlin.plot")
    raise AttributeError(f"module 'flowlin' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, without the rooms that they come from."""
    rooms = {"measures", "plot", "tasks", "theory"}
    found = {name for name, value in globals().items() if not isinstance(value, _ModuleType)}
    return sorted(rooms | {name for name in found if name == "__version__" or name[0] != "_"})
