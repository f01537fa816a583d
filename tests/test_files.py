"""Files and copies of runs: what is kept, what is told of a damaged one, other versions.

That every kind of run comes back to the bit is in tests/test_contracts.py.
"""

import copy
import functools
import inspect
import io
import json
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
from tests.zoo import Killed

pytestmark = pytest.mark.filterwarnings("ignore:the .* always-on fraction")

TASK = fl.tasks.hierarchy()
LINEAR = fl.LinearNetwork.init(TASK, 3, variance=1e-2, key=jax.random.key(0))
RELU = fl.ReLUNetwork.init(TASK, 6, variance=1e-2, key=jax.random.key(0))
OLD = pathlib.Path(__file__).parent / "data" / "flow-0.1.npz"  # by flowlin 0.1, of RELU
M = fl.measures


def assert_same(a, b):
    """Equal to the last bit, of the same structure and types."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


def descend(**options):
    """A short run of a program that the tests share."""
    return fl.gradient_descent(LINEAR, TASK, 0.05, 20, **options)


@pytest.fixture(scope="module")
def descent():
    return descend(observe=KEPT)


# ---- What is kept.

KEPT = {
    "network": lambda n, t: n,
    "list": lambda n, t: [n.weights[0], {"loss": (M.loss(n, t),)}],
    "norms": M.norms,
}


def test_what_was_observed_is_kept_as_it_was(descent, tmp_path):
    path = tmp_path / "run.npz"
    descent.save(path)
    back = fl.load(path)
    assert_same(back.observed, descent.observed)
    assert isinstance(back.observed["norms"], M.Norms)
    assert back.reference.loss == descent.reference.loss
    with pytest.raises(
        ValueError, match=r"was loaded or .* fl.gradient_descent\(flow.final, \.\.\.\)"
    ):
        back.extend(100.0)
    with np.load(path, allow_pickle=False) as plain:  # without the library
        assert np.array_equal(plain["content.losses"], descent.losses)


MODES = fl.theory.modes(TASK, 1.0)


def on_hidden(measure, *others):
    """A measure of representations, of the hidden layer's."""
    return lambda network, task: measure(M.hidden(network, task), *others)


def every_measure():
    """All functions of `fl.measures`, those that take more than a network and a task bound."""
    bound: dict[str, Any] = {
        "alignment": functools.partial(M.alignment, modes=MODES),
        "distance_ratio": on_hidden(M.distance_ratio, jnp.arange(8) % 2),
        "hidden_vectors": functools.partial(M.hidden_vectors, modes=MODES),
        "linear_cka": lambda n, t: M.linear_cka(M.hidden(n, t), t.y),
        "mode_matrix": functools.partial(M.mode_matrix, modes=MODES),
        "mode_shares": functools.partial(M.mode_shares, modes=MODES),
        "on_grid": functools.partial(M.on_grid, axes=(*[np.zeros(1)] * 7, np.linspace(0, 1, 3))),
        "drift": lambda n, t: M.drift(n.weights[0]),  # made for values over time
        "along": lambda n, t: M.along(jax.tree.map(lambda a: a[None], n), M.norms),  # and so is it
        "variance_explained": lambda n, t: M.variance_explained(M.hidden(n, t), t.y),
        "modes": lambda n, t: MODES,
        "task": lambda n, t: t,
        "frozen": lambda n, t: n.frozen(t),
    }
    for name in ("distances", "effective_rank", "effective_rank_of_gram", "gram", "mds"):
        bound[name] = on_hidden(getattr(M, name))
    bound["spectral_entropy"] = on_hidden(M.spectral_entropy)
    return dict(inspect.getmembers(M, inspect.isfunction)) | bound


@pytest.mark.slow
def test_every_measure_is_resumed_and_saved(tmp_path):
    """What a measure returns comes back as it was, names of its fields included."""

    def run(name, stream):
        return fl.gradient_descent(
            RELU, TASK, 0.05, 20, save_every=2, observe=every_measure(),
            checkpoint=tmp_path / name, progress=fl.LogProgress(1e-12, stream),
        )  # fmt: skip

    whole = run("whole.npz", io.StringIO())
    with pytest.raises(KeyboardInterrupt) as stopped:
        run("run.npz", Killed())
    assert 0 < len(stopped.value.trajectory.ts) < 11  # pyright: ignore
    assert_same(run("run.npz", io.StringIO()).observed, whole.observed)
    whole.save(tmp_path / "saved.npz")
    assert_same(fl.load(tmp_path / "saved.npz").observed, whole.observed)
    assert whole.observed["mode_shares"].diagonal.shape == (11,)


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
def test_what_cannot_be_kept_is_told_before_the_run(function, message, tmp_path):
    """The run would be over a million steps long."""
    with pytest.raises(ValueError, match=message):
        fl.gradient_flow(
            LINEAR, TASK, 1e9, observe={"o": function}, checkpoint=tmp_path / "run.npz"
        )
    with pytest.raises(ValueError, match="cannot save a Odd"):
        descend(observe={"o": lambda n, t: Odd(n.weights[0])}).save(tmp_path / "run.npz")


def test_a_failed_write_leaves_the_old_file(descent, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    descent.save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        fl.load(OLD).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    assert path.read_bytes() == before


def test_runs_that_failed_in_any_way_are_saved(tmp_path):
    """Results of diffrax's own as well, which the library names nowhere."""
    back = fl.load(OLD)
    for name in ("nonlinear_divergence", "dt_min_reached", "interrupted"):
        result = getattr(fl.RESULTS, name)
        failed = eqx.tree_at(lambda f: f.result, back, result, is_leaf=lambda r: r is back.result)
        failed.save(tmp_path / "run.npz")
        assert fl.load(tmp_path / "run.npz").result == result


# ---- Files of other versions, and damaged ones.


def opened(path):
    """The header of a file and its arrays."""
    with np.load(path) as archive:
        arrays = dict(archive)
    return json.loads(arrays.pop("header").tobytes()), arrays


def packed(path, header, arrays):
    """A file of them."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, header=text, **arrays)


def changed(tree, place, new=None):
    """A tree of JSON with one part in place of another, or without it."""
    tree = copy.deepcopy(tree)
    *way, last = place
    inner = functools.reduce(lambda part, key: part[key], way, tree)
    if new is None:
        del inner[last]
    else:
        inner[last] = new
    return tree


def test_files_of_version_0_1_are_read_and_written_anew(tmp_path):
    path, back = tmp_path / "run.npz", fl.load(OLD)
    assert back.result == fl.RESULTS.successful
    assert back.reference.loss == fl.SquaredError()
    assert np.allclose(np.asarray(back.losses)[[0, -1]], [2.02338128, 1.02706121])
    assert back.observed["gram"].shape == (10, 2, 2)
    with pytest.raises(ValueError, match="holds no checkpoint but a Trajectory"):
        fl.gradient_flow(RELU, TASK, 4.0, checkpoint=OLD)
    back.save(path)
    assert_same(fl.load(path), back)
    header, arrays = opened(path)
    assert header["version"] == 2
    assert header["written_by"] == {"flowlin": fl.__version__, "jax": jax.__version__}
    packed(path, header | {"version": 3}, arrays)
    with pytest.raises(ValueError, match=r"written by a later flowlin \(format 3"):
        fl.load(path)


FIELDS = ("content", "fields")
TAMPERED: dict[str, Any] = {
    "no events": (("events",), None),
    "end is a word": (("end",), {"value": "late"}),
    "samples are few": (("samples",), {"value": 2}),
    "counts are a list": (("counts",), {"list": []}),
    "counts are one word": (("counts", "dict"), [["num_steps"]]),
    "counts have no name": (("counts", "dict"), [[{"list": []}, {"value": 1}]]),
    "labels without the solver": (("labels",), {"tuple": []}),
    "result is a number": (("result",), {"value": 0}),
    "unknown class": (("events", "object"), "Path"),
    "missing array": (("ts", "array"), "content.nowhere"),
    "no node": (("ts",), [0.5]),
    "unknown node": (("ts",), {"call": "exit"}),
    "loss is an array": (("reference",), {"array": "content.ts"}),
    "network is a list": (("final",), {"list": []}),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_field_that_does_not_fit_is_told(name, tmp_path):
    header, arrays = opened(OLD)
    place, new = TAMPERED[name]
    packed(tmp_path / "run.npz", changed(header, (*FIELDS, *place), new), arrays)
    with pytest.raises(ValueError, match=r"`path` = .*run\.npz"):
        fl.load(tmp_path / "run.npz")


def test_every_array_of_a_file_is_checked(tmp_path):
    """Of another shape or dtype, or missing."""
    header, arrays = opened(OLD)
    for name, array in arrays.items():
        less = {key: item for key, item in arrays.items() if key != name}
        bad = [less, *(arrays | {name: odd} for odd in (np.zeros((0, 3)), array.astype(str)))]
        if "observed" not in name:  # where any shape of as many rows may have been recorded
            bad += [arrays | {name: odd} for odd in (array[None], array.astype(complex))]
        for content in bad:
            packed(tmp_path / "run.npz", header, content)
            with pytest.raises(ValueError, match=r"`path` = .*run\.npz"):
                fl.load(tmp_path / "run.npz")


GATES: dict[str, Any] = {"gates": np.ones((8, 2))}
ITEMS: dict[str, Any] = {"node_gates": {"a": np.ones(8)}, "variance": 0.1}
SHAPED = {
    "globally gated": lambda key: fl.GloballyGatedNetwork.init(TASK, 2, **GATES, key=key),
    "graph": lambda key: fl.GatedGraph.init(
        TASK, {"in": 8, "a": 2, "out": 15}, [("in", "a"), ("a", "out")], **ITEMS, key=key
    ),
}


@pytest.mark.parametrize("kind", SHAPED)
def test_the_shapes_of_other_networks_are_checked_too(kind, key, tmp_path):
    path = tmp_path / "run.npz"
    fl.gradient_descent(SHAPED[kind](key), TASK, 0.1, 2).save(path)
    assert len(fl.load(path).ts) == 3
    header, arrays = opened(path)
    parts = [name for name in arrays if "gates" in name or "weights" in name]
    assert len(parts) == 3
    for name in parts:
        packed(path, header, arrays | {name: arrays[name][:-1]})
        with pytest.raises(ValueError, match=r"`path` = .*run\.npz"):
            fl.load(path)


def damaged(path, kind):
    """A file that is none."""
    good = OLD.read_bytes()
    header, arrays = opened(OLD)
    match kind:
        case "directory":
            path.mkdir()
        case "half":
            path.write_bytes(good[: len(good) // 2])
        case "flipped":
            path.write_bytes(good[:3000] + bytes(200) + good[3200:])
        case "empty":
            path.write_bytes(b"")
        case "other archive":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("a.txt", "a")
        case "pickle":
            np.savez(path, header=np.array([{}], dtype=object))
        case "list":
            packed(path, [], {})
        case "other format":
            packed(path, header | {"format": "flow"}, arrays)
        case "no version":
            packed(path, {"format": "flowlin"}, arrays)
        case "version of text":
            packed(path, header | {"version": "1"}, arrays)
        case "number":
            packed(path, header | {"content": {"value": 1}}, {})
        case "deep":
            content = functools.reduce(lambda node, _: {"list": [node]}, range(300), {"value": 1})
            packed(path, header | {"content": content}, {})
        case "result":
            packed(path, header | {"content": {"result": "x"}}, {})


KINDS = (
    "directory", "half", "flipped", "empty", "other archive", "pickle", "list", "other format",
    "no version", "version of text", "number", "deep", "result",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_told_in_one_line(kind, tmp_path):
    path = tmp_path / "run.npz"
    damaged(path, kind)
    for name, read in (("path", fl.load), ("checkpoint", lambda p: descend(checkpoint=p))):
        with pytest.raises(ValueError, match=rf"^`{name}` = '.*run.npz'.*[^\n]$"):
            read(path)


def test_a_tampered_checkpoint_is_told(tmp_path):
    path = tmp_path / "run.npz"
    descend(checkpoint=path)
    with pytest.raises(ValueError, match="holds no trajectory"):
        fl.load(path)
    good = path.read_bytes()
    header, arrays = opened(path)
    state = next(name for name in arrays if ".state." in name and arrays[name].size > 1)
    cases = [(header, arrays | {state: arrays[state][:1]})]
    for place, new in (
        (("state", "list", 0), None),
        (("capacity",), {"value": -5}),
        (("capacity",), {"value": "x"}),
        (("flow",), {"value": 1}),
        (("flow", "fields", "labels"), {"tuple": []}),
        (("prints",), {"value": 1}),
        (("switched",), {"value": None}),
    ):
        cases.append((changed(header, (*FIELDS, *place), new), arrays))
    for content in cases:
        packed(path, *content)
        with pytest.raises(ValueError, match=r"`checkpoint` = .*run\.npz"):
            descend(checkpoint=path)
    path.write_bytes(good)
    descend(checkpoint=path)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("write", ["save", "checkpoint"])
def test_paths_are_checked_before_anything_is_done(write, tmp_path):
    def to(path):
        return fl.load(OLD).save(path) if write == "save" else descend(checkpoint=path)

    for path, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere" / "run.npz", "there is no folder"),
        (3, "must be a path"),
        (io.BytesIO(), "must be a path"),
    ):
        with pytest.raises(ValueError, match=message):
            to(path)


# ---- Copies.


def test_runs_and_what_they_are_made_of_can_be_pickled_and_copied(descent):
    """Without the user's functions: an unpickled run cannot be extended, a copied one can."""
    for thing in (descent, fl.Sweep([descent, descent]), descent.events, RELU, TASK):
        for again in (pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing), copy.copy(thing)):
            assert type(again) is type(thing)
            assert_same(jax.tree.leaves(again), jax.tree.leaves(thing)) if thing is TASK else None
            if hasattr(thing, "__len__"):
                assert len(again) == len(thing)  # pyright: ignore
    with pytest.raises(
        ValueError, match=r"was loaded or unpickled, .* with `checkpoint=file` keeps"
    ):
        pickle.loads(pickle.dumps(descent)).extend(5.0)
    assert copy.deepcopy(descent).reference.task is TASK
    assert copy.deepcopy(descent).continuation is not None
    error = pickle.loads(pickle.dumps(fl.RunError("no", descent)))
    assert str(error) == "no"
    assert_same(error.trajectory.losses, descent.losses)


@pytest.mark.slow
def test_dense_output_is_pickled_too():
    flow = fl.gradient_flow(LINEAR, TASK, 2.0, dense=True, solver=diffrax.Tsit5())
    again = pickle.loads(pickle.dumps(flow))
    assert np.array_equal(again.network(1.3).weights[0], flow.network(1.3).weights[0])


@pytest.mark.usefixtures("without_type_checks")
def test_static_fields_are_plain_numbers():
    """An array in one made every later compilation of the process fail."""
    half_sum = fl.LossConvention.HALF_SUM

    def one(value, kind=jnp.asarray) -> Any:
        return kind(value)

    for made, plain in (
        (fl.SmoothKinks(one(0.1)), fl.SmoothKinks(0.1)),
        (fl.SmoothKinks(np.float64(0.1)), fl.SmoothKinks(0.1)),
        (fl.ExactKinks(one(8)), fl.ExactKinks(8)),
        (fl.RKC(one(64)), fl.RKC(64)),
        (fl.UnitSwitches(one(0.25)), fl.UnitSwitches(0.25)),
        (fl.LossBelow(1.0, terminate=one(True, np.bool_)), fl.LossBelow(1.0, terminate=True)),
        (fl.StepClock(0.1, half_sum, samples=one(8)), fl.StepClock(0.1, half_sum, samples=8)),
    ):
        assert jax.tree.structure(made) == jax.tree.structure(plain)
        hash(jax.tree.structure(made))
    with pytest.raises(ValueError, match="`width` must be known when the program is made"):
        jax.jit(lambda w: fl.SmoothKinks(w).width)(0.1)


# ---- Archives of data.


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_archives_with_links_are_refused(kind, tmp_path, monkeypatch):
    archive = tmp_path / "cifar10" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
    member.type, member.linkname = kind, "/etc/hostname"
    with tarfile.open(archive, "w:gz") as made:
        made.addfile(member)
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    with pytest.raises(fl.DataError, match="test_batch is a link or no file"):
        fl.tasks.cifar10(10, test=True)


def test_data_files_that_are_folders_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    for place in ("mnist/t10k-images-idx3-ubyte.gz", "cifar-10-batches-py/test_batch"):
        (tmp_path / place).mkdir(parents=True)
    for read in (fl.tasks.mnist, fl.tasks.cifar10):
        with pytest.raises(fl.DataError, match="cannot be read"):
            read(10, test=True)
