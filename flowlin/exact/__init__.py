"""The exact walk of a ReLU flow through its kinks: gates switch at located events."""

from flowlin.exact.gated import GatedFlow as GatedFlow
from flowlin.exact.walk import ExactWalk as ExactWalk
