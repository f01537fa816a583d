"""flowlin: exact gradient flow of linear, ReLU and gated-linear networks, timed by events."""

import importlib as _importlib
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from flowlin import measures as measures
from flowlin import tasks as tasks
from flowlin import theory as theory
from flowlin._tools.configure import configure as configure
from flowlin._tools.moved import missing_name as _missing_name
from flowlin._tools.printing import LogProgress as LogProgress
from flowlin._tools.version import __version__ as __version__
from flowlin.engine.kinks.kink_policies import AveragedKinks as AveragedKinks
from flowlin.engine.kinks.kink_policies import ExactKinks as ExactKinks
from flowlin.engine.kinks.kink_policies import IgnoreKinks as IgnoreKinks
from flowlin.engine.kinks.kink_policies import KinksWarning as KinksWarning
from flowlin.engine.kinks.kink_policies import SmoothKinks as SmoothKinks
from flowlin.engine.solver_arguments import RKC as RKC
from flowlin.engine.solver_arguments import RecycledBDF as RecycledBDF
from flowlin.events.crossing import Crossing as Crossing
from flowlin.events.falls_below import GradientBelow as GradientBelow
from flowlin.events.falls_below import LossBelow as LossBelow
from flowlin.events.mode_hits import ModeHits as ModeHits
from flowlin.events.switches import UnitSwitches as UnitSwitches
from flowlin.measures.parameter_distance import distance as distance
from flowlin.networks.gated_module import GatedModule as GatedModule
from flowlin.networks.globally_gated import Clusters as Clusters
from flowlin.networks.globally_gated import GloballyGatedNetwork as GloballyGatedNetwork
from flowlin.networks.globally_gated import HalfSpaces as HalfSpaces
from flowlin.networks.graph import GatedGraph as GatedGraph
from flowlin.networks.network_kinds import GatedLinearNetwork as GatedLinearNetwork
from flowlin.networks.network_kinds import LinearNetwork as LinearNetwork
from flowlin.networks.network_kinds import ReLUNetwork as ReLUNetwork
from flowlin.networks.pathways import Pathway as Pathway
from flowlin.record.event_log import CrossingsWarning as CrossingsWarning
from flowlin.record.event_log import EventLog as EventLog
from flowlin.record.linearization import Linearization as Linearization
from flowlin.record.linearization import LinearizationWarning as LinearizationWarning
from flowlin.record.results import RESULTS as RESULTS
from flowlin.record.results import RunError as RunError
from flowlin.record.run_errors import RunErrors as RunErrors
from flowlin.record.sweep import Sweep as Sweep
from flowlin.record.trajectory import Trajectory as Trajectory
from flowlin.runs.compare import Comparison as Comparison
from flowlin.runs.compare import compare as compare
from flowlin.runs.gradient_descent import gradient_descent as gradient_descent
from flowlin.runs.gradient_descent import stochastic_gradient_descent as stochastic_gradient_descent
from flowlin.runs.gradient_flow import gradient_flow as gradient_flow
from flowlin.runs.grid import Grid as Grid
from flowlin.runs.grid import grid as grid
from flowlin.runs.largest_learning_rate import Accuracy as Accuracy
from flowlin.runs.largest_learning_rate import RateCertificate as RateCertificate
from flowlin.runs.largest_learning_rate import largest_learning_rate as largest_learning_rate
from flowlin.runs.load import load as load
from flowlin.runs.polish import CriticalPoint as CriticalPoint
from flowlin.runs.polish import PolishWarning as PolishWarning
from flowlin.runs.polish import polish as polish
from flowlin.runs.precision_warning import PrecisionWarning as PrecisionWarning
from flowlin.runs.rate_warning import RateWarning as RateWarning
from flowlin.runs.step_clock import LossConvention as LossConvention
from flowlin.runs.step_clock import StepClock as StepClock
from flowlin.runs.sweep import sweep as sweep
from flowlin.tasks.data_files import DataError as DataError
from flowlin.tasks.task import Task as Task
from flowlin.theory.race_hits import RaceHits as RaceHits
from flowlin.theory.rectified import Rectified as Rectified
from flowlin.theory.rectified import rectified as rectified
from flowlin.theory.rectified_parts import RectifiedPathway as RectifiedPathway
from flowlin.training.cross_entropy import CrossEntropy as CrossEntropy
from flowlin.training.rules import AbstractRule as AbstractRule
from flowlin.training.rules import Gradient as Gradient
from flowlin.training.squared_error import SquaredError as SquaredError

if _TYPE_CHECKING:
    from flowlin import plot as plot


def __getattr__(name: str):
    """`fl.plot`, imported when it is first used since it needs matplotlib."""
    if name == "plot":
        return _importlib.import_module("flowlin.plot")
    raise _missing_name("flowlin", name, {"Convention": "fl.LossConvention"})


def __dir__() -> list[str]:
    """The public names, without the rooms that they come from."""
    rooms = {"measures", "plot", "tasks", "theory"}
    found = {name for name, value in globals().items() if not isinstance(value, _ModuleType)}
    return sorted(rooms | {name for name in found if name == "__version__" or name[0] != "_"})
