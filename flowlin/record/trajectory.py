"""The trajectory that a run returns, continuous or discrete."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    LARGEST_STEP_LIMIT,
    argument_error,
    boolean,
    checked,
    final_time,
    instance_of,
    require_single,
    with_article,
)
from flowlin._tools.arrays import (
    DataFrame,
    Numbers,
    Parameters,
    PathLike,
    data_frame,
    first_rows,
    is_traced,
    repeat_as_rows,
    replace_fields,
)
from flowlin._tools.files import saveable, writable_path, write_file
from flowlin._tools.printing import Progress, concrete_array, print_by, progress_option
from flowlin.networks.base import AbstractModel, number_of_layer
from flowlin.networks.graph import AbstractGraph
from flowlin.networks.layer_places import layer_places
from flowlin.networks.modules import ForeignModel, as_module, has_known_kinks
from flowlin.networks.pathways import Pathway
from flowlin.networks.saved_arrays import pack_parameters, unpack_parameters, with_saved_arrays
from flowlin.record.event_log import EventLog, warn_unresolved
from flowlin.record.event_log_summary import first_branch
from flowlin.record.linearization import (
    Linearization,
    UnitCounts,
    end_of_certainty,
    linearization_of_counts,
    linearization_of_log,
)
from flowlin.record.measured import (
    AbstractPreparedMeasure,
    Measure,
    Samples,
    measure_networks,
    require_measure,
    require_samples,
)
from flowlin.record.observed import ObservedRows
from flowlin.record.origin import Origin, RunState
from flowlin.record.refusals import confirmation_error, extension_error
from flowlin.record.results import SUCCESSES, RunError, is_success, result_is
from flowlin.record.run_errors import RunErrors
from flowlin.record.touches import count_touches
from flowlin.record.trajectory_summary import trajectory_summary
from flowlin.record.trajectory_table import trajectory_columns
from flowlin.training.loss import Loss

# Counts (open, closed) by layer, quantile and number of steps in a window.
WindowCounts = dict[tuple[int, float, int], tuple[UnitCounts, UnitCounts]]


@print_by(trajectory_summary)
@saveable(tau=None, discrete=None, window_counts=None, error=None, old_names={"final": "model"})
class Trajectory(eqx.Module):
    """A run of gradient flow or descent.

    - `ts`: (T,), saved times in units of flow time.
    - `losses`: (T,), the run's own loss there.
    - `observed`: by name, what `observe` recorded there, (T, ...).
    - `events`: `EventLog`.
    - `model`: `final` as the library handles it.
    - `end`: the time reached.
    - `result`: how the run ended; `fl.RESULTS`.
    - `tau`: the time constant of the flow, or of what descent approximates; NaN where it depends on
      time, with its values at `ts` in `observed["tau"]`.
    - `discrete`: whether it is a run of descent.
    - `error`: `RunErrors`, estimates of the run's global errors by `confirm`; None before.
    """

    ts: Float[Array, " T"]
    losses: Float[Array, " T"]
    observed: dict[str, PyTree] = eqx.field(converter=ObservedRows)
    events: EventLog
    model: AbstractModel
    end: Float[Array, ""]
    result: Any
    saved: Parameters | None
    counts: dict[str, PyTree]
    labels: tuple[tuple[str, Any], ...] = eqx.field(static=True)
    dense: PyTree  # what has `evaluate(t)`, the parameters at a time, or None
    step_counts: dict[tuple[int, float], UnitCounts] | None
    window_counts: WindowCounts | None
    samples: int = eqx.field(static=True)
    tau: Array
    discrete: bool = eqx.field(static=True)
    reference: Origin = eqx.field(static=True)
    continuation: RunState | None
    error: RunErrors | None = None

    @property
    def stats(self) -> dict[str, Any]:
        """Return numbers of steps, and what was chosen: solver, kinks, objective.

        With explicit solvers and `RecycledBDF` two numbers more: `evaluations`, how often the
        vector field was evaluated, in rejected steps, for the first step's length, in products
        with the Hessian, in looking for stiffness and in finishing events too; and
        `accepted_evaluations`, those in accepted steps alone. Where events were watched,
        `unresolved_crossings`: in how many stretches of time crossings may be missing from the log;
        `flow.events.unresolved` says where. Of exact walks and after `confirm`, `converged`: the
        time from which on no event is determined, or inf. Of exact walks `slots`, with how many
        they ended (see `ExactKinks`), `grazing_margin`, how nearly a pair missed a kink that
        repels, `slides_decayed`, from when on a pair slides by a drive within the error, so that
        its end would not be seen, or inf, and `rtol`; outside of `jit` and `vmap` also
        `undecided_touches`: how many times a pair switched there and back within the run's error,
        see `EventLog.is_touch`; and where the log has a branch `branch_because`, the first one's
        reason, and `branches`, how many have each reason.
        """
        touches = count_touches(self.events)
        found: dict[str, Any] = {} if touches is None else {"undecided_touches": touches}
        if (branch := first_branch(self.events)) and branch.reason:
            found |= {"branch_because": branch.reason, "branches": branch.counts}
        return {**self.counts, **found, **dict(self.labels)}

    @property
    def final(self) -> PyTree:
        """Return the network at the end (at the event that ended the run, if one did)."""
        return as_module(self.model)

    @property
    def networks(self) -> PyTree:
        """Return the networks at `ts`, one network whose arrays have a leading axis T.

        **Raises:** `ValueError` if the run recorded observables instead.
        """
        return as_module(self.models)

    @property
    def models(self) -> AbstractModel:
        """Return `networks` as the library handles them.

        **Raises:** `ValueError` if the run recorded observables instead.
        """
        if self.saved is None:
            # Observables are arrays, and modules other than flowlin's hold functions too.
            foreign = isinstance(self.model, ForeignModel)
            whole = "eqx.filter(network, eqx.is_array)" if foreign else "network"
            raise ValueError(
                "this run recorded `observe` instead of networks; add "
                f"`observe={{..., 'network': lambda network, task: {whole}}}`, or use `dense=True`."
            )
        return _stack_networks(self.model, self.saved, self.ts.shape[0])

    def with_run(self, run: PyTree) -> "Trajectory":
        """Return the trajectory with this run as its own, and with its labels."""
        labels = run.reference.choice.stat_labels
        return replace_fields(self, reference=run.reference.with_changes(run=run), labels=labels)

    @staticmethod
    def _fields_to_store(fields: dict[str, PyTree]) -> dict[str, PyTree]:
        """Return what a file holds: no dense output, no task, and nothing that `extend` needs."""
        loss, saved = fields["reference"].loss, fields["saved"]
        saved = None if saved is None else pack_parameters(fields["model"], saved)
        left_out = {"dense": None, "continuation": None, "observed": dict(fields["observed"])}
        return {**fields, **left_out, "reference": loss, "saved": saved}

    @staticmethod
    def _fields_from_file(fields: dict[str, PyTree]) -> dict[str, PyTree]:
        """Return the fields of a trajectory from those of a file."""
        loss = fields["reference"]
        if not isinstance(loss, Loss):
            raise ValueError(f"a run's loss is a {type(loss).__name__}")
        if fields["discrete"] is None:  # of a file of flowlin 0.1, which did not say
            labels = fields["labels"]
            if not isinstance(labels, tuple) or not isinstance(fields["end"], jax.Array):
                raise ValueError("`labels` and `end` are not those of a run")
            descent = any("descent" in str(label) for label in labels)
            fields = {**fields, "discrete": descent, "tau": jnp.ones_like(fields["end"])}
        if isinstance(fields["observed"], dict):
            fields = {**fields, "observed": ObservedRows(fields["observed"])}
        return {**fields, "reference": Origin(None, loss)}

    def with_module(self, like: AbstractModel, name: str) -> "Trajectory":
        """Put the model of a file's run together as one of the kind of `like`.

        **Raises:** `ValueError` for a model of another kind; `name` is the argument's.
        """
        model = with_saved_arrays(like, self.model, name)
        saved = None if self.saved is None else unpack_parameters(model, self.saved)
        return replace_fields(self, model=model, saved=saved)

    def __getstate__(self):
        """Leave out what `extend` needs, which may hold functions of the user's."""
        return {**vars(self), "continuation": None}

    def __deepcopy__(self, memo: object) -> "Trajectory":
        """Return new containers of the same arrays, which nobody can change, and the same task."""
        return jax.tree.map(lambda a: a, self)

    def __copy__(self) -> "Trajectory":
        """Copy as `__deepcopy__` does."""
        return self.__deepcopy__({})

    def with_rows(self, select: Callable[[Array], Array]) -> "Trajectory":
        """Apply a function to everything that was saved at `ts`."""
        rows = (self.ts, self.losses, self.observed, self.saved)
        ts, losses, observed, saved = jax.tree.map(select, rows)
        error = None if self.error is None else self.error.with_rows(select)
        return replace_fields(
            self, ts=ts, losses=losses, observed=observed, saved=saved, error=error
        )

    @checked
    def network(self, t: ArrayLike) -> PyTree:
        """Return the network at time t in [0, end]; for an array of times, stacked.

        **Raises:** `ValueError` without `dense=True`, or for a time outside the run.
        """
        return as_module(self.model_at(t))

    def model_at(self, t: ArrayLike) -> AbstractModel:
        """Return `network(t)` as the library handles it."""
        if self.dense is None:
            raise ValueError("`flow.network(t)` needs a run with `dense=True`.")
        t = jnp.asarray(t, self.ts.dtype)
        if t.ndim > 1:
            raise argument_error("t", "a time or a list of times", t)
        if not is_traced((t, self.end)):
            outside = ~((np.asarray(t) >= 0) & (np.asarray(t) <= np.asarray(self.end)))
            if np.any(outside):
                raise ValueError(
                    f"`t` = {np.asarray(t)[outside].flat[0]} lies outside the run, "
                    f"[0, {float(self.end)}]."
                )
        evaluate = self.dense.evaluate
        if t.ndim == 0:
            return self.model.with_parameters(evaluate(t))
        return _stack_networks(self.model, jax.vmap(evaluate)(t), t.shape[0])

    @checked(pathway=None)
    def product(self, pathway: Pathway) -> Float[Array, "T ..."]:
        """Return the product of the weights along a pathway of a gated graph, at the saved times.

        (T, N_sink, N_source), or (T, K) in the run of a race.

        **Raises:** `ValueError` for other networks, and for a pathway that is not the graph's.
        """
        if not isinstance(self.model, AbstractGraph):
            raise ValueError(
                f"`product` is for gated graphs; this run is of "
                f"{with_article(self.model.facts.kind)}."
            )
        return self.networks.product(pathway)

    @checked(measure=require_measure, task=require_samples)
    def along(self, measure: Measure | AbstractPreparedMeasure, task: Samples = None) -> PyTree:
        """Return a measure, or modes' strengths, at all saved times: see `fl.measures.along`."""
        return measure_networks(measure, self.models, self.reference.task if task is None else task)

    @checked(t1=final_time, progress=progress_option)
    def extend(
        self,
        t1: float | None,
        *,
        ts: Numbers | None = None,
        max_steps: int | None = 2**20,
        max_events: int = 2**16,
        progress: Progress = False,
        throw: bool = True,
    ) -> "Trajectory":
        """Go on with the run from where it ended to a later `t1`, with the solver's state.

        Equal to a run to the later end that has a step end at the earlier one. A run that failed
        for `max_steps` goes on likewise. A descent ends at the step nearest to `t1`, at least one
        later, with its optimiser's state and its order of batches carried on.

        **Arguments:**

        - `t1`: the new end; of a flow also None or inf, where an event ends it.
        - `ts`: times to save besides those already saved; None saves the new end, and in a
          descent with `save_every` as before.
        - `max_steps`, `max_events`, `progress`, `throw`: as in `gradient_flow`; steps are those
          of the extension, events all. A descent takes as many steps as `t1` asks for.

        **Returns:** the trajectory of the whole run; this one stays as it is.

        **Raises:** `ValueError` for times that are not later, for a run that ended at a terminating
        event, and for trajectories under `jit` or `vmap`, loaded and unpickled ones, and those
        with `dense=True`.
        """
        extended = self.reference.extended
        if extended is None:
            raise extension_error(self)
        t1 = math.inf if t1 is None else t1
        max_steps = LARGEST_STEP_LIMIT if max_steps is None else max_steps
        return extended(self, t1, ts, max_steps, max_events, progress, throw)

    @checked(progress=progress_option, finer=boolean)
    def confirm(
        self,
        *,
        finer: bool = False,
        max_steps: int | None = 2**20,
        max_events: int = 2**16,
        progress: Progress = False,
    ) -> "Trajectory":
        """Return the flow with its global errors, by a second run at a tenth of its `rtol`.

        The ± of an event is then no longer that of its step, but three times the distance to the
        same event of the second run, at least what nine tenths of the 20 events before it have. It
        is inf where the second run has no such event: what rounding does after convergence is not
        determined, and has no say in t*. `flow.error` has the errors of what was saved. Where a
        tenth of `rtol` is too fine for the run, the second one has ten times as much, and the
        distance counts once (`benchmarks/trust.py`).

        **Arguments:**

        - `finer`: whether to return the finer of the two runs in place of this one, with the same
          distances as its errors: about ten times what it errs by itself.
        - `max_steps`, `max_events`, `progress`: of the second run.

        **Raises:** `ValueError` for descents, for trajectories under `jit` or `vmap`, loaded ones,
        and those of a `stepsize_controller` other than diffrax's PID; `fl.RunError` if it fails.
        """
        if self.reference.confirmed is None or is_traced(self) or self.ts.ndim != 1:
            raise confirmation_error(self)
        max_steps = LARGEST_STEP_LIMIT if max_steps is None else max_steps
        return self.reference.confirmed(self, finer, max_steps, max_events, progress)

    @checked
    def save(self, path: PathLike) -> None:
        """Write the trajectory to a `.npz` file, for `fl.load(path)`.

        Everything but dense output, the task, and what `extend` needs. The format is open (see
        `flowlin._tools.files`): NumPy arrays and a JSON header, no pickle. An existing file is
        replaced at once or not at all.

        A pickled trajectory keeps dense output and the task, and not what `extend` needs either.

        **Raises:** `ValueError` for observables other than arrays, networks, what measures return,
        and lists, tuples and dictionaries of them; a directory, or a folder that does not exist;
        or under `jit`.
        """
        if is_traced(self):
            raise ValueError("`save` writes numbers; call it outside of `jit` and `vmap`.")
        if self.ts.ndim != 1:
            raise ValueError("`save` writes one run; take it out of its batch with `jax.tree.map`.")
        write_file(writable_path("path", path), self)

    def to_pandas(self) -> DataFrame:
        """Return what was saved as a `pandas.DataFrame`, one row per time of `ts`.

        Its columns are `t`, `loss`, and every number of `observed` by how it is indexed: `rate` of
        a scalar, `share[2]` and `strengths[0, 1]` of arrays, `norms.weights[0]` inside of what a
        measure returns. An observable that is itself named t or loss is `observed.t` or
        `observed.loss`. Events are in `flow.events.to_pandas()`.

        **Raises:** `ImportError` if pandas is missing; `ValueError` under `jit`, and for the runs
        of a batch.
        """
        columns = trajectory_columns(self)
        return data_frame(columns, list(columns))

    @checked
    def linearization(
        self, quantile: float = 0.0, *, layer: int | str = 0, window: int | None = None
    ) -> Linearization:
        """Return the linearization time t* and activity fractions of a hidden layer.

        Warns (`fl.LinearizationWarning`) if the maximum still stands when the run ends.

        **Arguments:**

        - `quantile`: a unit counts as linear when it is on for at least a share 1 - quantile of
          the samples; 0 is the lead paper's definition.
        - `layer`: which hidden layer, 0 the first, or the part of the model that gives its z, such
          as "weights[0]" or, of a module, "blocks[2].conv"; `events.place` has it.
        - `window`: of a descent that watched `fl.UnitSwitches(quantile, window=window)`: counts
          over windows of so many steps, in which a pair that switches twice or more slides. Each
          step's own counts, as without it, converge to neither convention as the learning rate
          falls: sliding pairs flicker, and the maximum over steps is that of a noise. Brackets are
          a window to either side.

        **Raises:** `ValueError` for networks other than ReLU, a layer or a quantile out of range,
        or a quantile or window that the run did not record.
        """
        places = layer_places(self.model)
        if not has_known_kinks(self.model) or not places:
            why = self.model.facts.kinks_because
            loss_alone = isinstance(self.model, ForeignModel) and self.model.hidden
            why = f"all kinks are the loss's, {why}" if loss_alone else why
            raise ValueError(
                f"`linearization` is about gates that switch; of "
                f"{with_article(type(self.final).__name__)} there are none that are known, since "
                f"{why}; run a fl.ReLUNetwork or a module of ReLUs."
            )
        layer = number_of_layer(layer, places)
        if window is not None:
            return linearization_of_counts(self._window_counts(layer, quantile, window), self.end)
        if self.step_counts is not None:
            if (layer, quantile) not in self.step_counts:
                raise ValueError(
                    f"this run did not count units at quantile {quantile:g}; pass "
                    f"`events=(fl.UnitSwitches({quantile:g}),)` to it."
                )
            counts = self.step_counts[layer, quantile]
            return linearization_of_counts((counts, counts), self.end)
        converged = concrete_array(self.counts.get("converged"), 0)
        settled = not self.events.confirmed and converged is not None and float(converged) < np.inf
        until = end_of_certainty(self.events, self.counts)
        return linearization_of_log(
            self.events, layer, self.samples, quantile, self.end, settled, until
        )

    def _window_counts(
        self, layer: int, quantile: float, window: int
    ) -> tuple[UnitCounts, UnitCounts]:
        """Return the counts of a descent over windows of steps, open and closed.

        **Raises:** `ValueError` for a flow, and where they were not counted.
        """
        if not self.discrete:
            raise ValueError(
                "`window` is for descents, whose gates flicker where the flow's slide; leave it "
                "out."
            )
        found = (self.window_counts or {}).get((layer, quantile, window))
        if found is None:
            raise ValueError(
                f"this run did not count units at quantile {quantile:g} over windows of {window} "
                f"steps; pass `events=(fl.UnitSwitches({quantile:g}, window={window}),)` to it."
            )
        if not found[0].time.shape[0]:
            raise ValueError(f"`window` = {window} is longer than the run; pass a shorter one.")
        return found


def _single_trajectory(name: str, value: object) -> Trajectory:
    """Accept one trajectory, and no stack of them."""
    value = instance_of(Trajectory, "a trajectory, which runs return")(name, value)
    require_single(name, np.ndim(value.ts), 1, "runs")
    return value


CHECKS_BY_NAME["flow"] = CHECKS_BY_NAME["descent"] = _single_trajectory


def _stack_networks(template: AbstractModel, parameters: Parameters, length: int) -> AbstractModel:
    """Give `template` stacked parameters, its other arrays repeated along the same axis."""
    return repeat_as_rows(template, length).with_parameters(parameters)


def trim_run(run: Trajectory) -> Trajectory:
    """Return the run, which is not traced, without its padding."""
    kept = int(np.sum(np.isfinite(np.asarray(run.ts))))
    if kept < run.ts.shape[0]:
        run = run.with_rows(lambda rows: jax.device_put(first_rows(rows, kept)))
    events = EventLog.without_padding(run.events)  # a bound method would be a tree
    return run if events is run.events else replace_fields(run, events=events)


def trim_and_raise(
    run: Trajectory, throw: bool, failure: Callable[[Trajectory], str]
) -> Trajectory:
    """Return the run without its padding; raise if it failed and failures raise."""
    if is_traced(run):
        message = "A run failed; with `throw=False` its `.result` says how."
        return eqx.error_if(run, ~is_success(run.result), message) if throw else run
    run = trim_run(run)
    warn_unresolved(run.events)
    if throw and not result_is(run.result, *SUCCESSES):
        raise RunError(f"{failure(run)} What was computed is in `error.trajectory`.", run)
    return run
