"""Checkpoints of long runs: a file with all that a run needs to go on to the bit."""

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flowlin._tools.arrays import PathLike, replace_fields
from flowlin._tools.files import (
    file_errors,
    read_file,
    require_saveable,
    require_type,
    saveable,
    writable_path,
    write_file,
)
from flowlin._tools.function_code import PYTHON, function_parts
from flowlin._tools.numerics import jit_by_array
from flowlin._tools.version import __version__
from flowlin.engine.run import AbstractRun, Limits, is_paused
from flowlin.events.watch import BoundToTask
from flowlin.record.origin import RunState
from flowlin.record.trajectory import Trajectory
from flowlin.runs.load import check_trajectory
from flowlin.runs.progress import AbstractTimedPause, Pace
from flowlin.runs.run import AbstractPause, Outset, compile_initial_state
from flowlin.training.schedule import Schedule

# The format of a run's state: raised with every change of its leaves, which a test notices, or of
# what they mean.
STATE_FORMAT = 9
CHECKPOINT_SECONDS = (
    30.0  # about so long between two checkpoints; longer where writing one would take
)
WRITING_SHARE = 0.02  # more than this share of the time


@saveable(state_format=0, functions={}, python="", slots=0)
class CheckpointFile(NamedTuple):
    """The content of a checkpoint's file.

    - `prints`: by name, a fingerprint of each argument of the run.
    - `slope`: loss and gradient norms at t = 0, which tell apart functions of the same name.
    - `capacity`: room of the run's event logs.
    - `switched`: whether the run has changed to a solver for stiff flows.
    - `flow`: the trajectory so far.
    - `state`: the leaves of the run's state; random keys among them as numbers.
    - `state_format`: the format of the state in the version that wrote it; 0 until flowlin 0.2.
    - `functions`: fingerprints of what the functions in `observe`, `events` and `tau` do, by where
      they stand, and `python`, the version of which that is the code.
    - `slots`: of the run's walk, which may have grown; 0 without one, and until flowlin 0.2.
    """

    prints: dict[str, str]
    slope: Float[Array, " N"]
    capacity: int
    switched: bool
    flow: Trajectory
    state: list[jax.Array]
    state_format: int
    functions: dict[str, str]
    python: str
    slots: int


class ResumePoint(NamedTuple):
    """A run as its checkpoint has it: the run, its state, and the trajectory so far."""

    run: AbstractRun
    state: RunState
    flow: Trajectory


class Checkpoint(AbstractTimedPause):
    """A pause that writes state and trajectory to a file, every half minute and at the end.

    It writes less often where that would take more than 2 % of the time.

    The file is replaced atomically; see `flowlin._tools.files` for its format. Since pauses
    change no step, a run that was killed and resumed equals one that was not, bit for bit.
    """

    def __init__(self, path: PathLike, run: AbstractRun):
        self.path, self.pace = writable_path("checkpoint", path), Pace(CHECKPOINT_SECONDS)
        self.fingerprints, self.signature = (
            _argument_fingerprints(run),
            _start_signature(run.without_names),
        )
        self.functions = _function_fingerprints(run)
        if jax.process_count() > 1:
            raise ValueError("`checkpoint` is for runs of one process; leave it out on several.")
        if run.observables.functions is not None:
            shapes = eqx.filter_eval_shape(run.observables, run.network, run.parameters, run.task)
            require_saveable(shapes, "observe")

    def on_end(self, run: AbstractRun, flow: Trajectory) -> Trajectory:
        """Write the whole run to the file, and return its trajectory."""
        self.report_state(run, flow)
        return flow

    def on_interrupt(self, run: AbstractRun, flow: Trajectory | None) -> None:
        """Write the run as far as it came before Ctrl-C or an error."""
        if flow is not None:
            self.report_state(run, flow)

    def resume_point(self, run: AbstractRun) -> ResumePoint | None:
        """Read the run, its state and its trajectory from the file; None if there is no file yet.

        **Raises:** `ValueError` for a file of another run, naming what differs, and for a damaged
        one or one whose state has another format.
        """
        if not self.path.exists():
            return None
        found = self._read_checkpoint()
        with file_errors("checkpoint", self.path):
            found = found._replace(flow=found.flow.with_module(run.network, "network"))
            check_trajectory(found.flow)
            if min(found.capacity, found.slots) < 0:
                raise ValueError(
                    f"`checkpoint.capacity` is {found.capacity}, `slots` {found.slots}"
                )
            if set(dict(found.flow.labels)) != set(run.reference.choice._fields):
                raise ValueError("`checkpoint.flow.labels` do not say what was chosen")
            run = run.as_saved(found.capacity, found.switched, found.slots).with_choice(
                **dict(found.flow.labels)
            )
            start = _state_from_leaves(run, found.state)
        return ResumePoint(run, start, replace_fields(found.flow, continuation=start))

    def _read_checkpoint(self) -> CheckpointFile:
        """Read the file, and refuse one that is damaged or of another run."""
        where = f"`checkpoint` = {str(self.path)!r}"
        found, _, written_by = read_file("checkpoint", self.path)
        if not isinstance(found, CheckpointFile):
            raise ValueError(f"{where} holds no checkpoint but a {type(found).__name__}.")
        if found.state_format != STATE_FORMAT:
            raise ValueError(
                f"{where} was written by flowlin {written_by.get('flowlin')}, whose runs have "
                f"another state than those of {__version__} (format {found.state_format}, not "
                f"{STATE_FORMAT}); finish the run with that one, or remove the file to start anew."
            )
        with file_errors("checkpoint", self.path):
            require_type(found, CheckpointFile, "checkpoint")
        names = {**self.fingerprints, **found.prints}  # a rule stands where it is another one
        other = [name for name in names if found.prints.get(name) != self.fingerprints.get(name)]
        if other:
            raise ValueError(
                f"{where} is of a run with another {', '.join(other)}; remove the file to start "
                "anew, or choose another one."
            )
        known = found.functions.items() if found.python == PYTHON else ()
        changed = [place for place, mark in known if self.functions.get(place) != mark]
        if changed:
            raise ValueError(
                f"{where} is of a run with another function {', '.join(changed)}, whose code, or a "
                "value that it uses, is not the same; remove the file to start anew, or choose "
                "another one."
            )
        if not _is_near(np.asarray(found.slope), np.asarray(self.signature)):
            raise ValueError(
                f"{where} is of a run with another loss or gradient at t = 0: `network` or `loss` "
                "holds another function of the same name; remove the file to start anew, or "
                "choose another one."
            )
        return found

    def report_state(self, run: AbstractRun, flow: Trajectory) -> None:
        """Write the run as it stands, and adapt the pace to the time that writing takes."""
        began = time.monotonic()
        content = CheckpointFile(
            prints=self.fingerprints,
            slope=self.signature,
            capacity=run.capacity,
            switched=run.has_switched_solver,
            flow=flow.with_run(run),
            state=_state_leaves(flow.continuation),
            state_format=STATE_FORMAT,
            functions=self.functions,
            python=PYTHON,
            slots=run.slots,
        )
        write_file(self.path, content)
        self.pace.seconds = max(CHECKPOINT_SECONDS, (time.monotonic() - began) / WRITING_SHARE)


def outset_from_file(
    path: PathLike | None,
    run: AbstractRun,
    limits: Limits,
    pauses: Callable[..., list[AbstractPause]],
) -> Outset:
    """Return from where a run with a checkpoint goes on; without a path from t = 0.

    `pauses(run, t=)` makes the other pauses of the run from time t on. They come first, so that
    the file holds what they chose.
    """
    if path is None:
        return Outset(run, pauses(run, t=0.0))
    file = Checkpoint(path, run)
    found = file.resume_point(run)
    if found is None:
        return Outset(run, [*pauses(run, t=0.0), file])
    if not is_paused(found.flow, limits):
        return Outset(found.run, [], before=found.flow)
    own = pauses(found.run, t=float(found.state.t))
    return Outset(found.run, [*own, file], found.state, found.flow)


def _is_key(leaf: PyTree) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _state_leaves(start: RunState | None) -> list[jax.Array]:
    """Return the leaves of a state; keys of `jax.random`, as optimisers hold them, as numbers."""
    leaves = jax.tree.leaves(start)
    return [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]


def _state_from_leaves(run: AbstractRun, leaves: list[jax.Array]) -> RunState:
    """Return the state of a run from its leaves in a file.

    **Raises:** `ValueError` for leaves whose shapes or dtypes are not those of this run.
    """
    like = eqx.filter_eval_shape(type(run).initial_state, run.without_names)
    wanted = eqx.filter_eval_shape(_state_leaves, like)
    if [(a.shape, a.dtype) for a in leaves] != [(a.shape, a.dtype) for a in wanted]:
        raise ValueError("its state does not fit the run")
    if any(map(_is_key, jax.tree.leaves(like))):
        kinds = jax.tree.leaves(compile_initial_state(run.without_names))
        leaves = [
            jax.random.wrap_key_data(a, impl=jax.random.key_impl(b)) if _is_key(b) else a
            for a, b in zip(leaves, kinds, strict=True)
        ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _argument_fingerprints(run: AbstractRun) -> dict[str, str]:
    """Return, by name, a fingerprint of each argument of a run."""
    return {name: _tree_hash(part) for name, part in run.arguments_by_name().items()}


def _function_fingerprints(run: AbstractRun) -> dict[str, str]:
    """Return a fingerprint of each function in `observe`, `events`, `tau`, by where it stands."""
    found = {f"`observe[{name!r}]`": one for name, one in (run.observables.functions or {}).items()}
    tau = run.arguments_by_name()["tau"]
    for node in jax.tree.leaves(tau, is_leaf=lambda node: isinstance(node, Schedule)):
        if isinstance(node, Schedule):
            found["`tau`"] = node.function
    for watch in run.observer.watches:
        nodes = jax.tree.leaves(watch.function, is_leaf=lambda node: isinstance(node, BoundToTask))
        for node in nodes:
            if isinstance(node, BoundToTask):
                found[f"of the event {watch.channel.name!r}"] = node.function
    return {place: _tree_hash(function_parts(function)) for place, function in found.items()}


@jit_by_array
def _start_signature(run: AbstractRun) -> Float[Array, " N"]:
    """Return the loss at t = 0 and the norms of the arrays of its gradient, (1 + arrays,).

    They tell apart functions that fingerprints know by name alone, such as `<lambda>`.
    """
    gradient = jax.tree.leaves(run.objective.gradient(run.network, run.parameters))
    lengths = [jnp.linalg.norm(jnp.ravel(array)) for array in gradient]
    return jnp.stack([run.objective.loss_value(run.network), *lengths])


def _is_near(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether losses and gradient norms are equal, up to another machine's rounding."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    size = np.abs(np.append(b[0], np.full(len(b) - 1, np.max(b[1:]))))
    near = np.abs(a - b) <= np.finfo(b.dtype).eps ** (1 / 3) * size  # products in TensorFloat-32
    return bool(np.all(near)) or np.array_equal(a, b, equal_nan=True)


def _tree_hash(part: PyTree) -> str:
    made = hashlib.sha256()
    for leaf in jax.tree.leaves(part):
        if isinstance(leaf, str):
            made.update(leaf.encode())
        else:
            made.update(repr((leaf.shape, leaf.dtype)).encode() + np.asarray(leaf).tobytes())
    return made.hexdigest()
