"""Files and copies of runs: every measure in them, every field checked, other versions, pickle."""

import copy
import functools
import inspect
import io
import json
import os
import pathlib
import pickle
import tarfile
import zipfile
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl
from flowlin._tools import files as codec
from flowlin.runs import load as storage
from flowlin.runs import progress as interrupts
from flowlin.tasks import images as files

jax.config.update("jax_enable_x64", True)

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TASK = fl.tasks.hierarchy()
RELU = fl.ReLUNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
LINEAR = fl.LinearNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
TIMES = np.linspace(0, 4, 10)
MODES = fl.theory.modes(TASK, 1.0)
M = fl.measures


def on_hidden(measure, *others):
    """A measure of representations, of the hidden layer's."""
    return lambda network, task: measure(M.hidden(network, task), *others)


OBSERVE: dict[str, Any] = {
    "alignment": functools.partial(M.alignment, modes=MODES),
    "distance_ratio": on_hidden(M.distance_ratio, jnp.arange(8) % 2),
    "hidden_vectors": functools.partial(M.hidden_vectors, modes=MODES),
    "linear_cka": lambda n, t: M.linear_cka(M.hidden(n, t), t.y),
    "mode_matrix": functools.partial(M.mode_matrix, modes=MODES),
    "mode_shares": functools.partial(M.mode_shares, modes=MODES),
    "on_grid": functools.partial(M.on_grid, axes=(*[np.zeros(1)] * 7, np.linspace(0, 1, 3))),
    "drift": lambda n, t: M.drift(n.weights[0]),  # made for values over time
    "along": lambda n, t: M.along(jax.tree.map(lambda a: a[None], n), M.norms),  # and so is this
    "variance_explained": lambda n, t: M.variance_explained(M.hidden(n, t), t.y),
    "modes": lambda n, t: MODES,
    "task": lambda n, t: t,
    "frozen": lambda n, t: n.frozen(t),
} | {
    name: on_hidden(getattr(M, name))
    for name in (
        "distances", "effective_rank", "effective_rank_of_gram", "gram", "mds",
        "spectral_entropy",
    )
}  # fmt: skip
OBSERVE |= {
    name: function
    for name, function in inspect.getmembers(M, inspect.isfunction)
    if name not in OBSERVE
}
SMOOTH: dict[str, Any] = {
    "kinks": fl.SmoothKinks(1e-2),
    "solver": diffrax.Tsit5(),
    "rtol": 1e-5,
    "ts": TIMES,
    "observe": OBSERVE,
}


def assert_same(a, b):
    """Equal to the last bit, of the same structure and types."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with every measure."""
    path = tmp_path_factory.mktemp("whole") / "run.npz"
    return fl.gradient_flow(RELU, TASK, 4.0, checkpoint=path, **SMOOTH)


def test_every_measure_is_resumed_and_saved(whole, tmp_path, monkeypatch):
    """What a measure returns comes back as it was, names of its fields included."""

    def budget(self, accepted):
        if accepted:
            raise KeyboardInterrupt
        return 20

    with monkeypatch.context() as patch:
        patch.setattr(interrupts.Interruptible, "budget", budget)
        with pytest.raises(KeyboardInterrupt) as stopped:
            fl.gradient_flow(RELU, TASK, 4.0, checkpoint=tmp_path / "run.npz", **SMOOTH)
    part = stopped.value.trajectory
    assert 0 < part.end < 4
    assert 0 < len(part.ts) < len(TIMES)
    resumed = fl.gradient_flow(RELU, TASK, 4.0, checkpoint=tmp_path / "run.npz", **SMOOTH)
    assert_same((resumed.ts, resumed.observed), (whole.ts, whole.observed))
    whole.save(tmp_path / "saved.npz")
    assert_same(fl.load(tmp_path / "saved.npz").observed, whole.observed)
    assert isinstance(whole.observed["norms"], M.Norms)
    assert whole.observed["mode_shares"].diagonal.shape == (len(TIMES),)


class Odd(NamedTuple):
    """Of the user's."""

    a: jax.Array


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda n, t: Odd(t.x), "cannot save a Odd"),
        (lambda n, t: diffrax.Tsit5(), "must return numbers or arrays"),
        (lambda n, t: jax.random.key(0), "must return numbers or arrays"),
    ],
)
def test_what_cannot_be_kept_is_told_before_the_run(function, message, tmp_path, monkeypatch):
    monkeypatch.setattr("flowlin.runs.gradient_flow.driven", lambda *_: pytest.fail("has run"))
    with pytest.raises(ValueError, match=message):
        fl.gradient_flow(
            LINEAR, TASK, 4.0, observe={"o": function}, checkpoint=tmp_path / "run.npz"
        )


OLD = pathlib.Path(__file__).parent / "data" / "flow-0.1.npz"  # by flowlin 0.1, of RELU


def test_files_of_version_0_1_are_read():
    back = fl.load(OLD)
    assert storage.read("path", OLD).written_by == {"flowlin": "0.1"}
    assert back.result == fl.RESULTS.successful
    assert back.reference.loss == fl.SquaredError()
    assert np.allclose(np.asarray(back.losses)[[0, -1]], [2.02338128, 1.02706121])
    assert back.observed["gram"].shape == (10, 2, 2)
    assert back.linearization().open.time > 0
    with pytest.raises(ValueError, match=r"written by flowlin 0\.1, and a run's state"):
        fl.gradient_flow(RELU, TASK, 4.0, checkpoint=OLD)


def test_files_say_what_they_were_written_by(tmp_path):
    path = tmp_path / "run.npz"
    fl.load(OLD).save(path)
    found = storage.read("path", path)
    assert (found.format, found.written_by) == (
        2,
        {"flowlin": fl.__version__, "jax": jax.__version__},
    )
    assert_same(fl.load(path), fl.load(OLD))
    header, arrays = opened(path)
    packed(path, header | {"version": 3}, arrays)
    with pytest.raises(ValueError, match=r"written by a later flowlin \(format 3"):
        fl.load(path)


def opened(path):
    """The header of a file and its arrays."""
    with np.load(path) as archive:
        arrays = dict(archive)
    return json.loads(arrays.pop("header").tobytes()), arrays


def packed(path, header, arrays):
    """A file of them."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, header=text, **arrays)


def nodes(tree, place=()):
    """Where every part of a tree of JSON stands."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, item in items:
        yield (*place, key)
        if isinstance(item, (dict, list)):
            yield from nodes(item, (*place, key))


def without(tree, place, new=None):
    """A tree of JSON with one part removed, or another in its place."""
    tree = copy.deepcopy(tree)
    *way, last = place
    inner = functools.reduce(lambda part, key: part[key], way, tree)
    if new is None:
        del inner[last]
    else:
        inner[last] = new[0]
    return tree


def outcome(header, arrays):
    """What reading a file of this content comes to: None, or the error."""
    try:
        content = codec.decoded(header["content"], arrays)
        storage.check_trajectory(content)
    except ValueError as error:
        return error
    content.events.table(), content.stats, content.networks if content.saved else None
    return None


def test_every_field_of_a_file_is_checked():
    """Removed, or of another type, shape or dtype: told by `ValueError`, or harmless."""
    header, arrays = opened(OLD)
    accepted = []
    for place in nodes(header["content"], ("content",)):
        for new in (None, [None], ["x"], [[]], [{}], [10**9], [-1], [0.5]):
            if outcome(without(header, place, new), arrays) is None:
                accepted.append((place, new))
    removed = [place for place, new in accepted if new is None]
    assert all({"labels", "observed", "counts"} & set(place) for place in removed), removed
    assert not any("reference" in place and new != [None] for place, new in accepted)
    for name, array in arrays.items():
        odd = [array[None], array.astype(complex), np.zeros((0, 3)), array.astype(str)]
        if "observed" in name:  # any shape of the same length may have been recorded
            odd = odd[2:3]
        for changed in odd:
            assert outcome(header, arrays | {name: changed}) is not None, (name, changed.shape)
        less = {key: item for key, item in arrays.items() if key != name}
        assert "is missing" in str(outcome(header, less))


def test_a_globally_gated_network_is_checked_like_the_others(tmp_path):
    task, path = fl.tasks.hierarchy(levels=2), tmp_path / "run.npz"
    gates = fl.HalfSpaces.random(task, 3, key=jax.random.key(0))(task.x)
    network = fl.GloballyGatedNetwork.init(task, 5, gates=gates, key=jax.random.key(1))
    fl.gradient_flow(network, task, 0.5, rtol=1e-3).save(path)
    assert fl.load(path).final.weights[1].shape == (7, 15)
    header, arrays = opened(path)
    assert outcome(header, arrays) is None
    for part in ("gates", "weights.0", "weights.1"):
        name = f"content.model.{part}"
        less = arrays | {name: arrays[name][:-1]}
        assert "does not fit" in str(outcome(header, less)), part


def damaged(path, kind):
    """A file that is none."""
    good = OLD.read_bytes()
    header, arrays = opened(OLD)
    if kind == "directory":
        path.mkdir()
    elif kind == "half":
        path.write_bytes(good[: len(good) // 2])
    elif kind == "flipped":
        path.write_bytes(good[:3000] + bytes(200) + good[3200:])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "other archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "a")
    elif kind == "pickle":
        with open(path, "wb") as file:
            np.savez(file, header=np.array([{}], dtype=object))
    elif kind == "list":
        packed(path, [], {})
    elif kind == "no version":
        packed(path, {"format": "flowlin"}, arrays)
    elif kind == "version of text":
        packed(path, header | {"version": "1"}, arrays)
    elif kind == "number":
        packed(path, header | {"content": {"value": 1}}, {})
    elif kind == "deep":
        content = functools.reduce(lambda node, _: {"list": [node]}, range(300), {"value": 1})
        packed(path, header | {"content": content}, {})
    else:
        packed(path, header | {"content": {"result": "x"}}, {})


KINDS = (
    "directory", "half", "flipped", "empty", "other archive", "pickle", "list", "no version",
    "version of text", "number", "deep", "result",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_told_in_one_line(kind, tmp_path):
    path = tmp_path / "run.npz"
    damaged(path, kind)
    for name, read in (
        ("path", fl.load),
        ("checkpoint", lambda p: fl.gradient_flow(LINEAR, TASK, 4.0, checkpoint=p)),
    ):
        with pytest.raises(ValueError, match=rf"^`{name}` = '.*run.npz'.*[^\n]$"):
            read(path)


def test_a_tampered_checkpoint_is_told(tmp_path):
    path = tmp_path / "run.npz"
    fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=path)
    header, arrays = opened(path)
    good = path.read_bytes()
    state = next(name for name in arrays if ".state." in name and arrays[name].size > 1)
    fields = ("content", "fields")
    for changed, others in (
        (header, arrays | {state: arrays[state][:1]}),
        (without(header, (*fields, "state", "list", 0)), arrays),
        (without(header, (*fields, "capacity"), [{"value": -5}]), arrays),
        (without(header, (*fields, "capacity"), [{"value": "x"}]), arrays),
        (without(header, (*fields, "flow"), [{"value": 1}]), arrays),
        (without(header, (*fields, "prints"), [{"value": 1}]), arrays),
        (without(header, (*fields, "switched"), [{"value": None}]), arrays),
    ):
        packed(path, changed, others)
        with pytest.raises(ValueError, match=r"`checkpoint` = .*run\.npz"):
            fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=path)
    path.write_bytes(good)
    fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=path)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("write", ["save", "checkpoint"])
def test_paths_are_checked_before_anything_is_done(write, tmp_path):
    back = fl.load(OLD)

    def to(path):
        if write == "save":
            return back.save(path)
        return fl.gradient_flow(LINEAR, TASK, 2.0, checkpoint=path)

    for path, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere" / "run.npz", "there is no folder"),
        (3, "must be a path"),
        (io.BytesIO(), "must be a path"),
    ):
        with pytest.raises(ValueError, match=message):
            to(path)


def test_runs_that_failed_in_any_way_are_saved(tmp_path):
    """Results of diffrax's own as well, which the library names nowhere."""
    back = fl.load(OLD)
    for name in ("nonlinear_divergence", "dt_min_reached", "interrupted"):
        result = getattr(fl.RESULTS, name)
        eqx.tree_at(lambda f: f.result, back, result, is_leaf=lambda r: r is back.result).save(
            tmp_path / "run.npz"
        )
        assert fl.load(tmp_path / "run.npz").result == result


def test_runs_and_what_they_are_made_of_can_be_pickled_and_copied(whole):
    """Without the user's functions: an unpickled run cannot be extended, a copied one can."""
    flow, dense = whole, fl.gradient_flow(LINEAR, TASK, 2.0, dense=True)
    descent = fl.gradient_descent(RELU, TASK, 0.05, 20)
    for thing in (flow, dense, descent, fl.Sweep([flow, descent]), flow.events, RELU, TASK):
        for again in (pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing), copy.copy(thing)):
            assert type(again) is type(thing)
            assert len(again) == len(thing) if hasattr(thing, "__len__") else True
    back = pickle.loads(pickle.dumps(flow))
    assert_same(
        (back.ts, back.observed, back.final, back.events),
        (flow.ts, flow.observed, flow.final, flow.events),
    )
    assert back.result == flow.result
    assert eqx.tree_equal(back.reference.task, TASK)
    with pytest.raises(ValueError, match="cannot be extended"):
        back.extend(5.0)
    assert np.allclose(
        pickle.loads(pickle.dumps(dense)).network(1.3).weights[0], dense.network(1.3).weights[0]
    )
    assert copy.deepcopy(flow).reference.task is flow.reference.task
    assert copy.deepcopy(flow).continuation is not None
    error = pickle.loads(pickle.dumps(fl.RunError("no", descent)))
    assert str(error) == "no"
    assert_same(error.trajectory.losses, descent.losses)


@pytest.mark.usefixtures("without_type_checks")
def test_static_fields_are_plain_numbers():
    """An array in one made every later compilation of the process fail."""
    one = jnp.asarray
    for made, plain in (
        (fl.SmoothKinks(one(0.1)), fl.SmoothKinks(0.1)),
        (fl.SmoothKinks(np.float64(0.1)), fl.SmoothKinks(0.1)),
        (fl.ExactKinks(one(8)), fl.ExactKinks(8)),
        (fl.RKC(one(64)), fl.RKC(64)),
        (fl.UnitSwitches(one(0.25)), fl.UnitSwitches(0.25)),
        (fl.LossBelow(1.0, terminate=np.bool_(True)), fl.LossBelow(1.0, terminate=True)),
        (
            fl.StepClock(0.1, fl.Convention.HALF_SUM, samples=one(8)),
            fl.StepClock(0.1, fl.Convention.HALF_SUM, samples=8),
        ),
    ):
        assert jax.tree.structure(made) == jax.tree.structure(plain)
        hash(jax.tree.structure(made))
    with pytest.raises(ValueError, match="`width` must be known when the program is made"):
        jax.jit(lambda w: fl.SmoothKinks(w).width)(0.1)


@pytest.mark.parametrize("kind", ["symbolic", "hard", "folder"])
def test_archives_with_links_are_refused(kind, tmp_path, monkeypatch):
    archive = tmp_path / "cifar10" / files.CIFAR10_ARCHIVE
    archive.parent.mkdir()
    member = tarfile.TarInfo(f"{files.CIFAR10_FOLDER}/test_batch")
    member.type = {"symbolic": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "folder": tarfile.DIRTYPE}[
        kind
    ]
    member.linkname = "/etc/hostname"
    with tarfile.open(archive, "w:gz") as made:
        made.addfile(member)
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    with pytest.raises(fl.DataError, match="test_batch is a link or no file"):
        fl.tasks.cifar10(10, test=True)


def test_data_files_that_are_folders_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    for place in ("mnist/t10k-images-idx3-ubyte.gz", f"{files.CIFAR10_FOLDER}/test_batch"):
        os.makedirs(tmp_path / place)
    with pytest.raises(fl.DataError, match="cannot be read"):
        fl.tasks.mnist(10, test=True)
    with pytest.raises(fl.DataError, match="cannot be read"):
        fl.tasks.cifar10(10, test=True)
