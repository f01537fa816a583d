"""The exact walk through the kinks of ReLU networks."""

from flowlin.exact.modes import NO_SLOTS as NO_SLOTS
from flowlin.exact.modes import TWO_LAYERS as TWO_LAYERS
from flowlin.exact.modes import UNSOLVED as UNSOLVED
from flowlin.exact.walk import ExactWalk as ExactWalk
from flowlin.exact.walk import WalkState as WalkState
from flowlin.exact.walk import rule_for as rule_for
