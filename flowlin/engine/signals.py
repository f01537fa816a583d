"""Results by which a step ends a run that did not fail.

diffrax knows one end from within, `event_occurred`, and overwrites it by the controller's
`successful`. So these are failures that can come from nowhere else in the runs of this library;
state kept beside them says which end it was (`tests/test_signals.py` pins what diffrax makes of
them: the step is kept, and so is the solver's state).
"""

import diffrax

EVENT = diffrax.RESULTS.max_steps_rejected  # a terminating event; the log's `end` is finite
UNDECIDED = diffrax.RESULTS.internal_error  # an event of a walk; `sides.failure` says why
PAUSED = diffrax.RESULTS.max_steps_reached  # fewer steps were taken than the run may take
