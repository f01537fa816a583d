"""Closed forms: what can be written down about a network and a task without a solver."""

from flowlin._tools.moved import missing_name as _missing_name
from flowlin.measures.modes import Modes as Modes
from flowlin.measures.modes import modes as modes
from flowlin.theory.after_linearization import AfterLinearization as AfterLinearization
from flowlin.theory.after_linearization import after_linearization as after_linearization
from flowlin.theory.balanced_product import balanced_gram as balanced_gram
from flowlin.theory.balanced_product import balanced_product as balanced_product
from flowlin.theory.bias_mode import BiasMode as BiasMode
from flowlin.theory.bias_mode import bias_mode as bias_mode
from flowlin.theory.certificate import Certificate as Certificate
from flowlin.theory.early_phase import EarlyPhase as EarlyPhase
from flowlin.theory.early_phase import early_phase as early_phase
from flowlin.theory.lazy import Lazy as Lazy
from flowlin.theory.lazy import LazyCertificate as LazyCertificate
from flowlin.theory.lazy import lazy as lazy
from flowlin.theory.learning_coefficient import LearningCoefficient as LearningCoefficient
from flowlin.theory.learning_coefficient import learning_coefficient as learning_coefficient
from flowlin.theory.mode import Mode as Mode
from flowlin.theory.mode import gating_delay as gating_delay
from flowlin.theory.mode import hitting_time as hitting_time
from flowlin.theory.mode import mode_strength as mode_strength
from flowlin.theory.mode_starts import balanced_strength as balanced_strength
from flowlin.theory.mode_starts import imbalance as imbalance
from flowlin.theory.mode_starts import mode_starts as mode_starts
from flowlin.theory.race import LeadingPathways as LeadingPathways
from flowlin.theory.race import Race as Race
from flowlin.theory.race import RaceCertificate as RaceCertificate
from flowlin.theory.race import race as race
from flowlin.theory.single_layer import single_layer as single_layer
from flowlin.theory.slowed_clock import SlowedClock as SlowedClock
from flowlin.theory.slowed_clock import slowed_clock as slowed_clock
from flowlin.theory.solution import Solution as Solution
from flowlin.theory.solve import solve as solve
from flowlin.training.linearized_loss import LinearizedLoss as LinearizedLoss

# Names that are gone, and the calls that they became; for one version.
_MOVED = {
    "unbalanced_strength": "theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).strength(t)",
    "unbalanced_hitting_time": "theory.Mode(s, d, a0, imbalance=imbalance, tau=tau)"
    ".hitting_time(rho)",
    "unbalanced_start": "theory.Mode(s, d, imbalance=imbalance, tau=tau).start_for(rho, t)",
    "half_time": "theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).half_time",
    "inflection_levels": "theory.Mode(s, d, imbalance=imbalance).inflection_levels",
    "inflection_times": "theory.Mode(s, d, a0, imbalance=imbalance, tau=tau).inflection_times",
    "mode_vectors": "theory.Mode.of_vectors(s, d, p, q, tau).vectors(t)",
    "mode_weights": "theory.Mode.of_weights(s, d, w1, w2, tau).weights(t)",
    "deep_strength": "theory.Mode(s, d, a0, depth, tau=tau).strength(t)",
    "deep_hitting_time": "theory.Mode(s, d, a0, depth, tau=tau).hitting_time(rho)",
    "deep_start": "theory.Mode(s, d, depth=depth, tau=tau).start_for(rho, t)",
    "deep_half_time": "theory.Mode(s, d, a0, depth, tau=tau).half_time",
    "deep_inflection_level": "theory.Mode(s, d, depth=depth).inflection_levels[1]",
    "deep_inflection_time": "theory.Mode(s, d, a0, depth, tau=tau).inflection_times[1]",
    "Lead": "theory.LeadingPathways",
}


def __getattr__(name: str):
    """Answer a name that is not there."""
    raise _missing_name("flowlin.theory", name, _MOVED)
