"""Closed forms: what can be written down about a network and a task without a solver."""

from flowlin.theory.bias import BiasMode as BiasMode
from flowlin.theory.bias import bias_mode as bias_mode
from flowlin.theory.deep import deep_hitting_time as deep_hitting_time
from flowlin.theory.deep import deep_inflection_time as deep_inflection_time
from flowlin.theory.deep import deep_strength as deep_strength
from flowlin.theory.hyperbolic import half_time as half_time
from flowlin.theory.hyperbolic import imbalance as imbalance
from flowlin.theory.hyperbolic import inflection_levels as inflection_levels
from flowlin.theory.hyperbolic import inflection_times as inflection_times
from flowlin.theory.hyperbolic import mode_vectors as mode_vectors
from flowlin.theory.hyperbolic import mode_weights as mode_weights
from flowlin.theory.hyperbolic import unbalanced_hitting_time as unbalanced_hitting_time
from flowlin.theory.hyperbolic import unbalanced_start as unbalanced_start
from flowlin.theory.hyperbolic import unbalanced_strength as unbalanced_strength
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
