"""Closed forms: what can be written down about a network and a task without a solver."""

from flowlin.theory.bias import BiasMode as BiasMode
from flowlin.theory.bias import bias_mode as bias_mode
from flowlin.theory.modes import Modes as Modes
from flowlin.theory.modes import modes as modes
from flowlin.theory.two_layer import balanced_strength as balanced_strength
from flowlin.theory.two_layer import gating_delay as gating_delay
from flowlin.theory.two_layer import hitting_time as hitting_time
from flowlin.theory.two_layer import mode_strength as mode_strength
