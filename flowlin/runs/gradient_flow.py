"""Gradient flow: the continuous run, solved as an ordinary differential equation."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from flowlin._tools.arguments import LARGEST_STEP_LIMIT, checked, final_time, positive_at_run_time
from flowlin._tools.arrays import (
    Numbers,
    PathLike,
    as_dtype,
    is_traced,
    replace_fields,
    require_no_nan,
)
from flowlin._tools.numerics import SMALL_TREE, catch_forward_mode, reverse_only
from flowlin._tools.printing import Progress
from flowlin.engine.integrate import Budget, FlowRun
from flowlin.engine.kinks.kink_places import pair_count
from flowlin.engine.kinks.kink_policies import AbstractKinks, AveragedKinks, revives, walk_cost
from flowlin.engine.kinks.walk import ExactWalk
from flowlin.engine.method import Choice, Method, choose_method, validate_tolerances
from flowlin.engine.mode_frame import problem_in_modes
from flowlin.engine.observables import Observables, Observe
from flowlin.engine.run import AbstractRun, Limits
from flowlin.engine.solvers.wrapped import evaluations, is_explicit
from flowlin.events.event import AbstractEvent
from flowlin.events.switches import GateSwitches, UnitSwitches
from flowlin.events.user_events import as_events, user_watches
from flowlin.events.watch import Watch
from flowlin.networks.base import AbstractModel
from flowlin.networks.fit import require_fit
from flowlin.networks.modules import ForeignModel, any_module, as_model, as_module
from flowlin.networks.network_kinds import ReLUNetwork
from flowlin.networks.trainable import trainable_flags
from flowlin.record.origin import Origin
from flowlin.record.results import attach_trajectory
from flowlin.record.trajectory import Trajectory, trim_and_raise
from flowlin.runs.checkpoint import outset_from_file
from flowlin.runs.confirm import second_run, with_global_errors
from flowlin.runs.flow_failure import flow_failure
from flowlin.runs.hidden_modes import warn_hidden
from flowlin.runs.precision_warning import warn_precision, warn_uneven
from flowlin.runs.progress import SILENT_METER, clock_pauses, progress_meter
from flowlin.runs.rate_warning import warn_past_edge
from flowlin.runs.run import AbstractPause, Outset, drive_run
from flowlin.runs.run_options import (
    DEFAULT_MAX_EVENTS,
    check_problem,
    decay_of,
    event_limit_under_jit,
    initial_capacity,
    progress_argument,
    require_coarse_enough,
    require_ending,
    require_extendable,
    require_saved_memory,
    time_constants_argument,
    validate_times,
)
from flowlin.runs.settled import SettledCheck, pause_at_rest
from flowlin.runs.stiffness import TOO_SHORT, StiffnessCheck
from flowlin.tasks.task import Task
from flowlin.training.function_loss import AnyLoss, as_loss
from flowlin.training.loss import Loss
from flowlin.training.loss_kinks import with_loss_kinks
from flowlin.training.problem import Problem
from flowlin.training.rules import AbstractRule, Gradient
from flowlin.training.schedule import Schedule, TimeConstant
from flowlin.training.squared_error import SquaredError

# Steps that dense output of few parameters has room for: short runs share one program.
DENSE_STEPS = 64


@checked(
    network=any_module,
    t1=final_time,
    tau=time_constants_argument,
    modified_rate=positive_at_run_time,
    rtol=positive_at_run_time,
    atol=positive_at_run_time,
    progress=progress_argument,
)
def gradient_flow(
    network: eqx.Module,
    task: Task,
    t1: ArrayLike | None,
    *,
    rule: AbstractRule = Gradient(),
    trainable: PyTree = None,
    ts: Numbers | None = None,
    dense: bool = False,
    loss: AnyLoss = SquaredError(),
    tau: TimeConstant = 1.0,
    weight_decay: Numbers | None = None,
    modified_rate: ArrayLike | None = None,
    events: AbstractEvent | Sequence[AbstractEvent] = (),
    observe: Observe | None = None,
    kinks: AbstractKinks | None = None,
    solver: diffrax.AbstractSolver | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    stepsize_controller: diffrax.AbstractAdaptiveStepSizeController | None = None,
    max_steps: int | None = 2**20,
    max_events: int | None = None,
    adjoint: diffrax.AbstractAdjoint = diffrax.RecursiveCheckpointAdjoint(),
    progress: Progress | diffrax.AbstractProgressMeter = False,
    checkpoint: PathLike | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Solve the gradient flow $\tau\, \dot w = -\nabla L(w)$ from t = 0 to `t1`.

    **Arguments:**

    - `network`: the initial network, of flowlin, whose weights and biases move and nothing else;
      or any Equinox module whose call takes one sample, (N_in,) to (N_out,), whose floating-point
      arrays move. `flow.final` and the networks that functions are called with are then such ones.
    - `task`: what it is trained on; taken to the network's precision.
    - `t1`: final time, in the units of tau (see `fl.StepClock` for descent steps); None, or inf,
      for a run that ends at an event with `terminate=True`, such as `fl.GradientBelow`.
    - `rule`: of training, `fl.Gradient()` or what `fl.AbstractRule` asks for. Another one than
      `Gradient` takes one `tau`, ReLU networks with rounded kinks, and no closed form is its.
    - `trainable`: which arrays move, where not all do: a tree of truth values like the network,
      or a function of a leaf, as `eqx.partition` takes them. The others stay as they are, to the
      bit, in exact walks too.
    - `ts`: times to save, ascending in [0, t1] (up to rounding); None saves 0 and the end. A run
      that ends at an event saves its end as the last row.
    - `dense`: whether `flow.network(t)` works for every t. The run is then done twice, first to
      count its steps; memory is steps x stages x parameters (for an exact walk times 8 pieces).
    - `loss`: `SquaredError()`, `CrossEntropy()`, or any differentiable function of one sample's
      (output, target), each (N_out,), that returns a number: L is its mean over the samples (for
      the sum divide `tau` by P). The same function compiles once. Its kinks, as of hinge loss, are
      walked through where the network is linear, a ReLU network or an Equinox module.
    - `tau`: time constant; or one per layer of a network of flowlin, (L,) with the readout, which
      a layer's weights and bias share: tau_l dw_l/dt = -grad_l L. Or a function of time that JAX
      can trace, t to one positive number, such as `lambda t: 1 + t`, or a callable Equinox module,
      whose arrays have derivatives: $\tau(t)\, \dot w = -\nabla L$, with `ts` and events in t. It
      is asked at times in [0, `t1`] alone. Where it jumps, error control finds the jump by some
      dozens of short steps; a pulse shorter than a step may be missed, as anything that is. The
      saved values are `flow.observed["tau"]`, and `flow.tau` is NaN.
    - `weight_decay`: $\lambda$, or one per layer of weights, readout included: what is descended
      is then $L + \frac{\lambda}{2} \|w\|^2$, weights and biases alike. `flow.losses` and
      `LossBelow` stay those of L, the loss on the data, which need not fall all the way.
    - `modified_rate`: None for the flow itself. A rate eps gives the *modified* flow that descent
      with that rate follows to second order: of $L + (\epsilon/4) \|\nabla L\|^2$ (Barrett and
      Dherin 2021; see `flowlin.training.objective.ModifiedLoss`), at about three times the cost.
      Its times, events among them, are those of descent up to O(eps^2), with k steps at t = k eps
      tau; compare them with `fl.gradient_descent(..., interpolate=True)`. Losses stay those of L.
      For smooth networks: a ReLU network needs `SmoothKinks`, and the rounded network is then
      meant. The rate times the spectral radius of the Hessian is measured at the start and at the
      end; from 2 on, the edge of stability, it warns (`fl.RateWarning`).
    - `events`: `Crossing`, `ModeHits`, `LossBelow`, `GradientBelow`, `UnitSwitches`; one or
      several, no two of one name. A ReLU network logs its gates besides, unless they are too many
      for a walk (see `kinks`).
    - `observe`: `{name: function(network, task)}`, recorded at `ts` **instead of** the networks;
      modes in place of a function, as in `{"modes": modes}`, are their strengths (T, K).

    Other arguments, which most people never need:

    - `kinks`: of a ReLU network or a module of ReLUs; None takes, up to 10,000 (unit, sample)
      pairs, `ExactKinks()`, and beyond `AveragedKinks()`, with a `solver` `IgnoreKinks()`. With
      one hidden layer `AveragedKinks()` is taken below, too, where the events to expect, half as
      many as pairs, times pairs and parameters together are more than 5e7: many units on few
      samples. `flow.stats` says which and why, and what is not exact warns (`fl.KinksWarning`).
    - `solver`: any diffrax solver of ordinary differential equations that estimates its error;
      `diffrax.HalfSolver` makes such a one of any other. Its steps are chosen by `rtol` and `atol`.
      None chooses one by network, kinks and `rtol`, measures stiffness during the run, and goes on
      with `fl.RecycledBDF()` or `fl.RKC()` where that one comes further per evaluation. Stiffness
      is not measured under `jit` or `vmap`, with `dense`, or with exact kinks. `flow.stats` says
      which solver and why.
    - `rtol`: the relative error of a step; None is 1e-8 in float64 (1e-5 with `AveragedKinks`,
      which goes no finer) and 1e-4 in float32 (1e-5 with `ExactKinks`). It counts against a
      weight and a part of the hidden unit that it belongs to, at every scale of the weights, and
      where that has grown a hundredfold at most against what it moves; with averaged gates against
      the unit alone (see `flowlin.engine.allowed`). In modules that are not flowlin's an array
      stands for a unit. Linear networks of two layers from tiny weights flow in the
      coordinates of their modes (see `flowlin.engine.mode_frame`); elsewhere a run warns of modes
      that rounding hides (`fl.PrecisionWarning`), as the first run does while JAX is set to
      float32, or of a float32 network on a float64 task without an `rtol`.
    - `atol`: None, or an absolute error: errors then count against `atol` + `rtol` |w| for each
      number w, and what is smaller than `atol` is not controlled. For weights on inputs of 1e8,
      which are tiny beside others of their units: a run warns (`fl.PrecisionWarning`).
    - `stepsize_controller`: an adaptive one of diffrax in place of `rtol` and `atol`, such as
      `diffrax.PIDController(rtol=1e-6, atol=1e-8, dtmax=0.1)`.
    - `max_steps`, `max_events`: where to give up; `max_steps=None` is 2^30, in effect no limit, and
      `max_events=None` is 2^16. Under `jit` and `vmap`, where all of a log's room is copied in
      every step, it is 8 for each watched component (a pair, a mode), and at least 4096.
    - `adjoint`: how derivatives are taken; the default is reverse mode, `diffrax.ForwardMode()`
      for `jax.jvp`. Reverse mode keeps about sqrt(2 `max_steps`) checkpoints, each with the
      parameters and the log: give it `max_steps` and `max_events` near to what the run needs.
    - `progress`: True for a tqdm bar with loss, steps, speed and the time left, silent where
      standard error is not a terminal; `fl.LogProgress()` for lines of a log; or a diffrax
      progress meter.
    - `checkpoint`: a file that the run's state and trajectory are written to about every half
      minute and at the end, atomically. The same call finds the file and goes on from there, or
      returns at once what had come out. A run that was killed and resumed equals one that was
      not, bit for bit. Functions are known by their names; those in `network` and `loss` also by
      the loss and the gradient at t = 0, those in `events`, `observe` and `tau` by their code and
      by the numbers, strings, arrays and functions of their own file that they use. Callable
      objects that are neither functions nor modules of Equinox are known by their name alone.
    - `throw`: whether a run that fails raises; else `flow.result` says what happened.

    Ctrl-C is heard about every other second (under `jit`, with a diffrax progress meter and in the
    second run of `dense` only at the end). It, and any other error in a run that has begun, such as
    a full disk, carries what was computed as `error.trajectory`, which can be saved and extended.

    **Returns:** a `Trajectory`.

    **Raises:** `ValueError` for bad input; `fl.RunError`, which holds the partial trajectory, for
    a run that fails.
    """
    network, loss, events = as_model("network", network), as_loss(loss), as_events(events)
    t1 = math.inf if t1 is None else t1
    tolerances, ts = validate_tolerances(rtol, atol, stepsize_controller), validate_times(t1, ts)
    network = _prepare_network(network, task, loss, ts, observe)
    require_coarse_enough(tolerances.rtol, network.dtype)
    warn_precision(network.dtype, task.x.dtype, tolerances.rtol is not None)
    task = task if task.x.dtype == network.dtype else task.astype(network.dtype)
    problem = _pose_problem(network, task, loss, rule, tau, weight_decay, trainable, kinks)
    check_problem(problem, modified_rate, kinks)
    method, choice = choose_method(problem, kinks, solver, modified_rate, tolerances, adjoint)
    watches = _step_watches(problem, method, events, t1)
    in_modes = problem_in_modes(problem, method)
    choice = choice if in_modes is None else choice._replace(objective=in_modes.label)
    run = FlowRun(
        problem=problem,
        method=method,
        watches=watches,
        observe=Observables.from_user(observe, network, problem.task),
        t1=as_dtype(t1, network.dtype),
        ts=None if ts is None else jnp.asarray(ts, network.dtype),
        progress_meter=SILENT_METER,
        capacity=initial_capacity(watches, max_events or DEFAULT_MAX_EVENTS),
        reference=_origin_of_flow(task, loss, choice, solver is None and not dense),
        in_modes=in_modes,
    )
    limits = _limits_of(run, max_steps, max_events)
    edge_known = warn_past_edge(run)
    if is_traced(run):
        flow = _trace_flow(run, dense, limits, progress, checkpoint)
    else:
        flow = drive_run(_flow_outset(run, dense, limits, progress, checkpoint), limits)
        flow = with_dense(flow, limits.steps) if dense else flow
    return _finish_flow(run, flow, throw, limits, edge_known)


def _limits_of(run: FlowRun, max_steps: int | None, max_events: int | None) -> Limits:
    """Return the numbers of steps and of events at which a run gives up, None by default."""
    steps = LARGEST_STEP_LIMIT if max_steps is None else max_steps
    if max_events:
        return Limits(steps, max_events)
    components = sum(watch.channel.size for watch in run.watches)
    if run.method.kinks.walks:  # which logs its gates itself
        components += pair_count(run.problem)
    events = event_limit_under_jit(components) if is_traced(run) else DEFAULT_MAX_EVENTS
    return Limits(steps, events)


def _origin_of_flow(task: Task, loss: Loss, choice: Choice, exchangeable: bool) -> Origin:
    """Return what travels with a flow's trajectory, and the functions that go on from it."""
    return Origin(task, loss, None, extend_flow, choice, exchangeable, confirmed=confirm_flow)


def _pose_problem(
    network: AbstractModel,
    task: Task,
    loss: Loss,
    rule: AbstractRule,
    tau: TimeConstant,
    weight_decay: Numbers | None,
    trainable: PyTree,
    kinks: AbstractKinks | None,
) -> Problem:
    """Return what is solved; without the task's name, which is no part of what is compiled."""
    decay, moves = decay_of(network, weight_decay), trainable_flags(network, trainable)
    schedule, unnamed = None, replace_fields(task, name="")
    if callable(tau):
        schedule, tau = Schedule.from_function(tau, jnp.zeros((), network.dtype)), 1.0
    tau = as_dtype(tau, network.dtype)
    revival = revives(kinks) and isinstance(network, ReLUNetwork) and network.hidden
    return Problem(
        network, unnamed, loss, tau, decay, moves, rule=rule, schedule=schedule,
        rest_integrals=network.hidden[0] if revival else 0,
    )  # fmt: skip


def _step_watches(
    problem: Problem, method: Method, events: Sequence[AbstractEvent], t1: ArrayLike | None
) -> tuple[Watch, ...]:
    """Return what is watched in every step: gates, where they are logged, and the user's events.

    **Raises:** `ValueError` for a run that nothing ends.
    """
    kinks = method.kinks
    logged = (GateSwitches(),) if _logs_gates(problem, events, kinks) else ()
    watches = tuple(user_watches((*logged, *events), problem, method.objective, kinks))
    require_ending(t1, watches)
    return watches


def _prepare_network(
    network: AbstractModel, task: Task, loss: Loss, ts: Any, observe: Observe | None
) -> AbstractModel:
    """Return the network, a module with what its program and its loss's show of their kinks.

    **Raises:** `ValueError` for a network that is not the task's, or holds NaN; also where the
    networks at so many times do not fit into memory.
    """
    require_fit(network, task)
    require_no_nan("network", as_module(network))
    if ts is not None and observe is None:
        require_saved_memory(
            network, len(ts), "ts", f"{len(ts)} times", "Save fewer, or use `observe`"
        )
    if isinstance(network, ForeignModel):
        return with_loss_kinks(network.with_kinks(task.inputs), task, loss)
    return network


def extend_flow(
    flow: Trajectory,
    t1: float,
    ts: Numbers | None,
    max_steps: int,
    max_events: int,
    progress: Progress,
    throw,
) -> Trajectory:
    """Continue a flow to a later time, as `Trajectory.extend` says."""
    run, at, ts = require_extendable(flow, t1, ts)
    require_ending(t1, run.watches)
    dtype = run.network.dtype
    run = replace_fields(
        run, t1=jnp.asarray(t1, dtype), ts=None if ts is None else jnp.asarray(ts, dtype)
    )
    limits = Limits(int(at.counts["num_steps"]) + max_steps, max_events)
    outset = Outset(run, _flow_pauses(run, progress, float(at.t)), at, flow)
    longer = drive_run(outset, limits)
    return _finish_flow(run, longer, throw, Limits(max_steps, max_events))


def confirm_flow(
    flow: Trajectory, finer: bool, max_steps: int, max_events: int, progress: Progress
) -> Trajectory:
    """Run a flow at another tolerance, and return it with its errors: `Trajectory.confirm`."""
    run, factor, is_finer = second_run(flow)
    limits = Limits(max_steps, max_events)
    other = drive_run(Outset(run, _flow_pauses(run, progress, 0.0)), limits)
    other = _finish_flow(run, other, True, limits, True)
    own, other = (other, flow) if finer and is_finer else (flow, other)
    return with_global_errors(own, other, factor)


def _finish_flow(
    run: FlowRun, flow: Trajectory, throw: bool, limits: Limits, edge_known: bool = False
) -> Trajectory:
    """Warn of what the end of a flow shows, raise where it failed, and return it.

    `edge_known`: whether the user was warned at the start that the rate is past the edge.
    """
    if not edge_known:
        warn_past_edge(run, flow)
    warn_hidden(run, flow)
    return trim_and_raise(flow, throw, lambda f: flow_failure(f, limits, run))


def _trace_flow(
    run: FlowRun,
    dense: bool,
    limits: Limits,
    progress: Progress | diffrax.AbstractProgressMeter,
    checkpoint: PathLike | None,
) -> Trajectory:
    """Run a flow under `jit`, `vmap` or a derivative: one solve with all the room it may need."""
    if checkpoint is not None:
        raise ValueError("`checkpoint` is for runs outside of `jit` and `vmap`; leave it out.")
    if dense and limits.steps > 2**14:
        raise ValueError(
            f"`dense=True` under jit or vmap reserves memory for `max_steps` = {limits.steps} "
            "steps; pass a `max_steps` of at most 16384."
        )
    if dense:
        _require_dense(run, limits.steps)
    if isinstance(run.method.adjoint, diffrax.RecursiveCheckpointAdjoint):
        run = reverse_only(run)
    run = replace_fields(run.with_capacity(limits.events), progress_meter=progress_meter(progress))
    with catch_forward_mode():
        flow = run.solve_whole(Budget.without_pause(limits.steps, limits.steps), dense)
    return replace_fields(flow.with_run(run), reference=run.reference, continuation=None)


def _flow_outset(
    run: FlowRun,
    dense: bool,
    limits: Limits,
    progress: Progress | diffrax.AbstractProgressMeter,
    checkpoint: PathLike | None,
) -> Outset:
    """Return from where a flow outside of `jit` and `vmap` goes on, and its pauses."""
    warn_uneven(run)
    if dense and checkpoint is not None:
        raise ValueError("`checkpoint` does not keep dense output; save at `ts` instead.")
    if run.may_switch_solver:
        run = run.with_choice(solver_because=TOO_SHORT)
    run = pause_at_rest(run)
    if isinstance(progress, diffrax.AbstractProgressMeter):
        run = replace_fields(
            run, progress_meter=progress
        )  # which would begin anew after each pause
    pauses = functools.partial(_flow_pauses, progress=progress)
    return outset_from_file(checkpoint, run, limits, pauses)


def _flow_pauses(
    run: AbstractRun, progress: Progress | diffrax.AbstractProgressMeter, t: float
) -> list[AbstractPause]:
    """Return the pauses of a run from time t on: stiffness, Ctrl-C, progress."""
    assert isinstance(run, FlowRun)
    pauses: list[AbstractPause] = [StiffnessCheck(run)] if run.may_switch_solver else []
    pauses += [SettledCheck()] if run.pauses_at_rest else []
    if not isinstance(progress, diffrax.AbstractProgressMeter):
        pauses += clock_pauses(run, progress, t)
    return pauses


def with_dense(flow: Trajectory, steps: int) -> Trajectory:
    """Solve a run again with dense output, in at most `steps` steps.

    diffrax reserves memory for every step that could happen; from the first run it is known how
    many do.
    """
    run = replace_fields(flow.reference.run, progress_meter=SILENT_METER)
    # Rounded up to a power of two, so that there are few programs.
    room = 2 ** math.ceil(math.log2(int(flow.counts["num_steps"]) + 1))
    size = sum(a.size for a in jax.tree.leaves(run.network.parameters))
    room = max(room, DENSE_STEPS) if size <= SMALL_TREE else room
    _require_dense(run, room)
    try:
        again = run.solve_whole(Budget.without_pause(steps, room), dense=True).with_run(run)
    except (KeyboardInterrupt, Exception) as error:
        attach_trajectory(error, flow)
        raise
    return replace_fields(again, continuation=None)


def _require_dense(run: FlowRun, steps: int) -> None:
    """Raise `ValueError` where the dense output of so many steps does not fit into memory."""
    solver = run.method.solver
    stages = evaluations(solver) if is_explicit(solver) else 4
    pieces = ExactWalk.pieces if run.method.kinks.walks else 1
    remedy = "Lower `max_steps` or the end, or save at `ts` instead"
    require_saved_memory(
        run.network, steps * stages * pieces, "dense", f"True for {steps} steps", remedy
    )


def _logs_gates(problem: Problem, events: Sequence[AbstractEvent], kinks: AbstractKinks) -> bool:
    """Tell whether a run watches all gates: ReLU with few events, and no units asked for.

    An exact walk logs its gates itself.
    """
    units = any(isinstance(event, UnitSwitches) for event in events)
    watched = isinstance(problem.network, ReLUNetwork) and not kinks.walks
    few = walk_cost(problem).verdict(isinstance(kinks, AveragedKinks))[0]
    return watched and few and not units
