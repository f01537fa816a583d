"""Closed forms: what can be written down about a network and a task without a solver."""

from flowlin.theory.bias import BiasMode as BiasMode
from flowlin.theory.bias import bias_mode as bias_mode
from flowlin.theory.modes import Modes as Modes
from flowlin.theory.modes import modes as modes
from flowlin.theory.riccati import balanced_gram as balanced_gram
from flowlin.theory.riccati import balanced_product as balanced_product
from flowlin.theory.shallow import single_layer as single_layer
from flowlin.theory.solve import Certificate as Certificate
from flowlin.theory.solve import Solution as Solution
from flowlin.theory.solve import solve as solve
from flowlin.theory.two_layer import balanced_strength as balanced_strength
from flowlin.theory.two_layer import gating_delay as gating_delay
from flowlin.theory.two_layer import hitting_time as hitting_time
from flowlin.theory.two_layer import mode_strength as mode_strength
