"""Checkpoints of long runs."""

import hashlib
import pathlib
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from flowlin.drive import AbstractPause, Limits
from flowlin.field import Modified
from flowlin.progress import Pace
from flowlin.rkc import RKC
from flowlin.run import Run
from flowlin.storage import Path, read, write
from flowlin.trajectory import Continuation, Trajectory

SECONDS = 30.0  # between two checkpoints, about


class Resumed(NamedTuple):
    """Where a checkpointed run stands: the run, its state, and the trajectory so far."""

    run: Run
    start: Continuation
    flow: Trajectory


class Checkpoint(AbstractPause):
    """Writes a run's state and its trajectory so far to a file, every half minute and at the end.

    The file is replaced atomically; see `flowlin.storage` for its format. Since pauses change no
    step, a run that was killed and resumed equals one that was not, bit for bit.
    """

    def __init__(self, path: Path, run: Run):
        self.path, self.pace = pathlib.Path(path), Pace(SECONDS)
        self.prints = _prints(run)
        if jax.process_count() > 1:
            raise ValueError("`checkpoint` is for runs of one process; leave it out on several.")
        if not self.path.parent.is_dir():
            raise ValueError(
                f"`checkpoint` = {str(self.path)!r}: there is no folder {str(self.path.parent)!r}."
            )

    def budget(self, accepted: int) -> int | None:
        """About half a minute's steps."""
        return self.pace.budget(accepted)

    def pause(self, run: Run, flow: Trajectory, limits: Limits) -> tuple[Run, Trajectory]:
        """Write if it is time."""
        assert flow.continuation is not None
        if self.pace.due(flow.continuation):
            self._write(run, flow)
        return run, flow

    def end(self, run: Run, flow: Trajectory) -> Trajectory:
        """Write what came out."""
        self._write(run, flow)
        return flow

    def resumed(self, run: Run) -> Resumed | None:
        """Where the run of the file stands; None if there is no file yet.

        **Raises:** `ValueError` for a file of another run, naming what differs.
        """
        if not self.path.exists():
            return None
        found = read(self.path)
        if not isinstance(found, dict) or "state" not in found:
            raise ValueError(f"`checkpoint` = {str(self.path)!r} holds no checkpoint.")
        other = [
            name for name, print_ in self.prints.items() if found["prints"].get(name) != print_
        ]
        if other:
            raise ValueError(
                f"`checkpoint` = {str(self.path)!r} is of a run with another {', '.join(other)}; "
                "remove the file to start anew, or choose another one."
            )
        run = run.with_capacity(found["capacity"])
        if found["switched"]:
            run = run.with_solver(RKC())
        shapes = eqx.filter_eval_shape(Run.begin, run)
        start = jax.tree.unflatten(jax.tree.structure(shapes), found["state"])
        flow = eqx.tree_at(lambda f: f.continuation, found["flow"], start, is_leaf=_is_none)
        return Resumed(run, start, flow)

    def _write(self, run: Run, flow: Trajectory) -> None:
        content = {
            "prints": self.prints,
            "capacity": run.capacity,
            "switched": isinstance(run.solver, RKC) and dict(flow.labels)["solver"] != "RKC",
            "flow": flow,
            "state": jax.tree.leaves(flow.continuation),
        }
        write(self.path, content)


def _is_none(node: Any) -> bool:
    return node is None


def _prints(run: Run) -> dict[str, str]:
    """A fingerprint of each argument of a run; functions count by what they are called."""
    goal = run.objective
    watched = [(watch.channel, watch.direction, watch.terminate) for watch in run.watches]
    parts = {
        "network": (type(run.network).__name__, run.network),
        "task": run.task,
        "loss": repr(run.loss),
        "kinks": repr(run.kinks),
        "tau": run.tau,
        "learning_rate": goal.learning_rate if isinstance(goal, Modified) else None,
        "events": (repr(watched), eqx.filter(run.watches, eqx.is_array)),
        "observe": repr(sorted(run.observe.functions or ["networks"])),
        "solver": type(run.solver).__name__,
        "rtol": run.controller.rtol,
        "atol": run.controller.atol,
        "t1": run.t1,
        "ts": run.ts,
    }
    return {name: _hash(part) for name, part in parts.items()}


def _hash(part: Any) -> str:
    made = hashlib.sha256()
    for leaf in jax.tree.leaves(part):
        if isinstance(leaf, str):
            made.update(leaf.encode())
        else:
            made.update(repr((leaf.shape, leaf.dtype)).encode() + np.asarray(leaf).tobytes())
    return made.hexdigest()
