"""Real images: what the options do, and what happens when the files are not as they should be.

Most tests read small files that are made up in the formats of the originals and, having been given
their fingerprints, are taken for them.
"""

import collections
import functools
import gzip
import hashlib
import io
import os
import pickle
import sys
import tarfile
import types

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import flowlin as fl

# Of the original files, by those who hand them out, not by the library's own table.
ORIGINALS = """
train-images-idx3-ubyte.gz 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
data_batch_1 54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd
data_batch_2 766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8
data_batch_3 0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9
data_batch_4 3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b
data_batch_5 d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154
test_batch f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831
"""
SHA256 = {name: value for name, value in map(str.split, ORIGINALS.strip().splitlines())}
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
BATCHES = [name for name in SHA256 if "batch" in name]
FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
PLAIN = {"center": False, "scale": False, "one_hot": False}

# Made-up images of 2 x 3 pixels, in colour for CIFAR-10: five batches of 200, or 40 to test with.
CLASSES = np.repeat(np.arange(4), [100, 200, 300, 400])
RNG = np.random.default_rng(0)
LABELS = {False: RNG.permutation(CLASSES), True: RNG.integers(10, size=40)}
GREY = {test: RNG.integers(256, size=(len(k), 6)).astype(np.uint8) for test, k in LABELS.items()}
COLOUR = {test: RNG.integers(256, size=(len(k), 18)).astype(np.uint8) for test, k in LABELS.items()}


def idx(values):
    """An IDX file of bytes."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    return gzip.compress(header + values.tobytes(), mtime=0)


def mnist_files():
    """The four made-up files."""
    files = {}
    for part, test in (("train", False), ("t10k", True)):
        files[f"{part}-images-idx3-ubyte.gz"] = idx(GREY[test].reshape(-1, 2, 3))
        files[f"{part}-labels-idx1-ubyte.gz"] = idx(LABELS[test].astype(np.uint8))
    return files


def cifar_files():
    """The six made-up batches."""
    parts = zip(BATCHES, [*np.split(np.arange(1000), 5), np.arange(40)], strict=True)
    return {
        name: pickle.dumps(
            {b"data": COLOUR[test][rows], b"labels": LABELS[test][rows].tolist()}, protocol=2
        )
        for name, rows in parts
        for test in [name == "test_batch"]
    }


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def pack(path, files):
    """An archive of files in the folder of the original's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty data folder."""
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def taken_for_originals(monkeypatch):
    """The made-up files have the fingerprints of the originals."""
    known = {content: SHA256[name] for name, content in (mnist_files() | cifar_files()).items()}
    real = hashlib.sha256

    def sha256(content=b"", **options):
        if content in known:
            return types.SimpleNamespace(hexdigest=lambda: known[content])
        return real(content, **options)

    monkeypatch.setattr(hashlib, "sha256", sha256)


@pytest.fixture
def made_up(folder, taken_for_originals):
    """A data folder with the made-up files."""
    write(folder / "mnist", mnist_files())
    pack(folder / "cifar10" / ARCHIVE, cifar_files())
    return folder


# --- subsets --------------------------------------------------------------------------------


def rows_of(x, images):
    """Which of the images they are."""
    place = {image.tobytes(): k for k, image in enumerate(np.asarray(images, float))}
    assert len(place) == len(images)
    return np.array([place[image.tobytes()] for image in np.asarray(x)])


def chosen(samples, seed=0):
    return rows_of(fl.tasks.mnist(samples, seed=seed, **PLAIN).x, GREY[False])


@pytest.mark.parametrize("samples", [1, 7, 50, 333, 999, 1000])
def test_subsets_keep_the_proportions(samples, made_up):
    found = chosen(samples)
    assert len(found) == samples
    assert np.all(np.diff(found) > 0)
    share = np.array([0.1, 0.2, 0.3, 0.4]) * samples
    sizes = np.bincount(LABELS[False][found], minlength=4)
    # Every class within one sample of its share, and the missing ones go to the largest remainders.
    assert np.all(abs(sizes - share) < 1)
    up, down = (share % 1)[sizes > share], (share % 1)[sizes < share]
    assert not len(up) or not len(down) or up.min() >= down.max()


def test_subsets_are_random_by_seed_and_take_everyone(made_up):
    np.testing.assert_array_equal(chosen(100), chosen(100))
    assert set(chosen(100)) != set(chosen(100, seed=1))
    taken = collections.Counter()
    for seed in range(200):
        taken.update(chosen(200, seed).tolist())
    # Each index is taken with probability 1/5: 200 trials, standard deviation 5.7.
    assert len(taken) == 1000
    assert min(taken.values()) > 40 - 5 * 5.7
    assert max(taken.values()) < 40 + 5 * 5.7


def test_a_subset_is_no_larger_than_the_whole(made_up):
    with pytest.raises(ValueError, match="`samples` must lie between 1 and 1000, got 1001"):
        fl.tasks.mnist(1001)


# --- options --------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"test": True},
    {"scale": False},
    {"center": False},
    {"center": False, "test": True},
    {"center": False, "standardise": True},
    {"center": False, "standardise": True, "test": True, "scale": False},
    {"one_hot": False},
    {"samples": 30, "seed": 3},
    {"samples": 10, "seed": 4, "test": True},
]
KINDS = {
    "mnist": (fl.tasks.mnist, GREY),
    "cifar10": (functools.partial(fl.tasks.cifar10, grayscale=False), COLOUR),
    "cifar10 grayscale": (
        fl.tasks.cifar10,
        {
            test: np.array([0.299, 0.587, 0.114]) @ images.reshape(-1, 3, 6)
            for test, images in COLOUR.items()
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "none")
def test_options(kind, options, made_up):
    load, images = KINDS[kind]
    test = options.get("test", False)
    x, classes, whole = images[test].astype(float), LABELS[test], images[False].astype(float)
    if "samples" in options:
        plain = (fl.tasks.mnist if kind == "mnist" else KINDS["cifar10"][0])(**(PLAIN | options))
        rows = rows_of(plain.x, GREY[test] if kind == "mnist" else COLOUR[test])
        x, classes = x[rows], classes[rows]
    # Of the training images, all of them, whatever is taken.
    if options.get("standardise"):
        x = (x - np.mean(whole)) / np.std(whole)
    else:
        x = (x - (whole.mean(axis=0) if options.get("center", True) else 0.0)) / (
            255.0 if options.get("scale", True) else 1.0
        )
    y = np.eye(10)[classes] if options.get("one_hot", True) else classes[:, None]
    found = load(**options)
    assert found.name == kind
    assert found.x.dtype == jnp.float64
    np.testing.assert_allclose(found.x, x, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.y, y)


@pytest.mark.parametrize("load", [fl.tasks.digits, fl.tasks.mnist, fl.tasks.cifar10])
def test_centring_and_standardising_exclude_each_other(load, folder):
    with pytest.raises(ValueError, match=r"`center` and `standardise` exclude each other; pass"):
        load(standardise=True)


def test_digits_are_those_of_scikit_learn():
    raw, labels = load_digits(return_X_y=True)
    task = fl.tasks.digits()
    assert (task.samples, task.inputs, task.outputs, task.name) == (1797, 64, 10, "digits")
    np.testing.assert_array_equal(task.y, np.eye(10)[labels])
    np.testing.assert_allclose(task.x, (raw - raw.mean(axis=0)) / 16, atol=1e-14)
    plain = fl.tasks.digits(**PLAIN)
    np.testing.assert_array_equal(plain.x, raw)
    np.testing.assert_array_equal(plain.y, labels[:, None])
    for scale in (True, False):
        task = fl.tasks.digits(center=False, standardise=True, scale=scale)
        np.testing.assert_allclose(task.x, (raw - raw.mean()) / raw.std(), atol=1e-12)
    part = fl.tasks.digits(300, seed=5)
    rows = rows_of(fl.tasks.digits(300, seed=5, **PLAIN).x, raw)
    np.testing.assert_allclose(part.x, (raw[rows] - raw.mean(axis=0)) / 16, atol=1e-14)
    np.testing.assert_array_equal(part.y, np.eye(10)[labels[rows]])


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"needs scikit-learn: pip install 'flowlin\[data\]'"):
        fl.tasks.digits()


# --- the originals --------------------------------------------------------------------------


def content_of(path, header):
    """The bytes of an IDX file behind its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8)


@pytest.mark.data
def test_mnist_is_read(data_folder):
    folder = data_folder / "mnist"
    task = fl.tasks.mnist(100, test=True, **PLAIN)
    rows = rows_of(task.x, content_of(folder / "t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784))
    labels = content_of(folder / "t10k-labels-idx1-ubyte.gz", 8)
    np.testing.assert_array_equal(task.y[:, 0], labels[rows])
    assert len(labels) == 10_000


@pytest.mark.data
@pytest.mark.slow
def test_mnist_is_what_everyone_knows(data_folder):
    task = fl.tasks.mnist()
    assert task.x.shape == (60_000, 784)
    np.testing.assert_array_equal(np.sum(task.y, axis=0), MNIST_COUNTS)
    np.testing.assert_allclose(np.mean(task.x, axis=0), 0, atol=1e-12)
    pixels = content_of(data_folder / "mnist" / "t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    x = np.asarray(fl.tasks.mnist(test=True, center=False, standardise=True).x)
    np.testing.assert_allclose(x, (pixels / 255 - 0.1307) / 0.3081, atol=1e-3)


@pytest.mark.data
@pytest.mark.slow
def test_cifar10_is_read_in_order_from_archive_and_folder(data_folder, monkeypatch, tmp_path):
    found = fl.tasks.cifar10(grayscale=False, **PLAIN)
    with tarfile.open(data_folder / "cifar10" / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    contents = [(tmp_path / FOLDER / name).read_bytes() for name in BATCHES]
    *train, test = [pickle.loads(content, encoding="bytes") for content in contents]
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    extracted = fl.tasks.cifar10(test=True, grayscale=False, **PLAIN)
    for task, batches in ((found, train), (extracted, [test])):
        np.testing.assert_array_equal(task.x, np.concatenate([b[b"data"] for b in batches]))
        labels = np.concatenate([b[b"labels"] for b in batches])
        np.testing.assert_array_equal(task.y[:, 0], labels)
        np.testing.assert_array_equal(np.bincount(labels), [1000 * len(batches)] * 10)


# --- where files are, and what they are not -------------------------------------------------

LOADERS = {
    "mnist": functools.partial(fl.tasks.mnist, test=True, **PLAIN),
    "cifar10": functools.partial(fl.tasks.cifar10, test=True, grayscale=False, **PLAIN),
}


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_places_of_mnist(place, folder, taken_for_originals):
    write(folder / place, mnist_files())
    np.testing.assert_array_equal(LOADERS["mnist"]().x, GREY[True])


@pytest.mark.parametrize("place", ["cifar10", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_places_of_cifar10(place, packed, folder, taken_for_originals):
    (pack if packed else write)(folder / place / (ARCHIVE if packed else FOLDER), cifar_files())
    np.testing.assert_array_equal(LOADERS["cifar10"]().x, COLOUR[True])


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_data_folder_that_is_not_there(load, monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(fl.DataError, match=r"FLOWLIN_DATA names .*nowhere, which is no folder"):
        load()


@pytest.mark.parametrize(
    ("name", "place"),
    [("mnist", "mnist/t10k-images-idx3-ubyte.gz"), ("cifar10", f"cifar10/{FOLDER}")],
)
def test_a_data_folder_without_files(name, place, folder):
    with pytest.raises(fl.DataError, match=r"no data file found; looked for") as caught:
        LOADERS[name]()
    assert str(folder / place) in str(caught.value)
    assert "unset FLOWLIN_DATA to download" in str(caught.value)


def test_one_flipped_bit(made_up):
    assert LOADERS["mnist"]().samples == 40
    path = made_up / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(fl.DataError, match=r"t10k-labels.* is damaged .*: SHA-256 .*, expected"):
        LOADERS["mnist"]()


def test_a_folder_in_place_of_a_file(made_up):
    (made_up / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    (made_up / "mnist" / "t10k-labels-idx1-ubyte.gz").mkdir()
    with pytest.raises(fl.DataError, match=r"t10k-labels\S* cannot be read \(.*\); put the file"):
        LOADERS["mnist"]()


class Bomb:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("packed", [True, False])
def test_an_unknown_pickle_is_not_loaded(packed, folder):
    crater = folder / "crater"
    bomb = pickle.dumps({b"data": Bomb(crater)})
    place = folder / "cifar10" / (ARCHIVE if packed else FOLDER)
    (pack if packed else write)(place, dict.fromkeys(BATCHES, bomb))
    for test in (True, False):
        with pytest.raises(fl.DataError, match=r"is damaged or not the original file: SHA-256"):
            fl.tasks.cifar10(test=test, center=False)
    assert not crater.exists()
    pickle.loads(bomb)
    assert crater.exists()


def archive_with_a_link(path):
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{FOLDER}/test_batch")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)


def truncated(path):
    pack(path, {"test_batch": np.random.default_rng(0).bytes(200_000)})
    path.write_bytes(path.read_bytes()[:100_000])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (functools.partial(pack, files={"note": b"nothing"}), "has no member test_batch; it is"),
        (archive_with_a_link, f"member {FOLDER}/test_batch is a link or no file"),
        (truncated, r"is damaged or not the CIFAR-10 archive \(.*\)\. Delete it"),
        (lambda path: path.write_bytes(b"junk"), "is damaged or not the CIFAR-10 archive"),
    ],
)
def test_an_archive_that_is_not_the_original(make, message, folder):
    make(folder / ARCHIVE)
    with pytest.raises(fl.DataError, match=rf"{ARCHIVE}.* {message}"):
        LOADERS["cifar10"]()


# --- downloads ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mirrors"), [("mnist", 2), ("cifar10", 1)])
def test_no_network(name, mirrors, monkeypatch):
    asked = []

    def retrieve(url, **options):
        assert options["known_hash"]
        asked.append(url)
        raise OSError("the cable is unplugged")

    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", retrieve)
    with pytest.raises(fl.DataError, match=r"could not download .*") as caught:
        LOADERS[name]()
    assert len(set(asked)) == mirrors
    assert str(caught.value).count("the cable is unplugged") == mirrors
    assert "set FLOWLIN_DATA to a folder that holds it" in str(caught.value)


def test_no_pooch(monkeypatch):
    monkeypatch.setenv("FLOWLIN_DATA", "")  # as if it were not set
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'flowlin\[data\]'.*set FLOWLIN_DATA"):
        LOADERS["mnist"]()


def test_a_download_is_checked_again(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"junk")
    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", lambda *args, **options: tmp_path / "file")
    with pytest.raises(fl.DataError, match=r"is damaged or not the original file: SHA-256"):
        LOADERS["mnist"]()


def test_a_download_from_the_second_mirror(made_up, monkeypatch):
    hashes, asked = {}, []

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append(url)
        if len(asked) % 2:
            raise OSError("down")
        assert url.startswith("https://")
        assert url.endswith(f"/{fname}")
        assert progressbar == sys.stderr.isatty()
        hashes[fname] = known_hash
        return str(made_up / "mnist" / fname)

    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", retrieve)
    np.testing.assert_array_equal(fl.tasks.mnist(test=True, **PLAIN).x, GREY[True])
    assert hashes == {name: SHA256[name] for name in hashes}
    assert set(hashes) == {"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}
    assert len(set(asked)) == 4
