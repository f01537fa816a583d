"""Real images: what the options do, and what happens when the files are not as they should be."""

import collections
import functools
import gzip
import hashlib
import os
import pickle
import sys
import tarfile

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import flowlin as fl
from flowlin.tasks import images
from flowlin.tasks import images as files

# The README of the data folder, not the library's own table.
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_IMAGES_SHA = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
CIFAR_TEST_SHA = "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


# --- stratified subsets ---------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 7, 50, 333, 999, 1000])
def test_stratified_keeps_the_proportions(samples):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [100, 200, 300, 400]))
    chosen = images.stratified(labels, samples, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == samples
    assert list(chosen) == sorted(chosen)
    share = np.array([0.1, 0.2, 0.3, 0.4]) * samples
    sizes = np.bincount(labels[chosen], minlength=4)
    # Every class within one sample of its share, and the missing ones go to the largest remainders.
    assert np.all(abs(sizes - share) < 1)
    up, down = (share % 1)[sizes > share], (share % 1)[sizes < share]
    assert not len(up) or not len(down) or up.min() >= down.max()


def test_stratified_is_exact_where_the_proportions_divide():
    labels = np.tile(np.repeat(np.arange(3), [1, 2, 7]), 40)
    chosen = images.stratified(labels, 50, seed=3)
    np.testing.assert_array_equal(np.bincount(labels[chosen]), [5, 10, 35])


def test_stratified_is_random_by_seed_and_takes_everyone():
    labels = np.arange(500) % 5
    one, again, other = (images.stratified(labels, 100, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert set(one.tolist()) != set(other.tolist())
    taken = collections.Counter()
    for seed in range(200):
        taken.update(images.stratified(labels, 100, seed).tolist())
    # Each index is taken with probability 1/5: 200 trials, standard deviation 5.7.
    assert len(taken) == 500
    assert min(taken.values()) > 40 - 5 * 5.7
    assert max(taken.values()) < 40 + 5 * 5.7


@pytest.mark.parametrize("samples", [0, -3, 501])
def test_stratified_size_out_of_range(samples):
    with pytest.raises(ValueError, match=rf"`samples` must lie between 1 and 500, got {samples}"):
        images.stratified(np.arange(500) % 5, samples, 0)


# --- digits ---------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn():
    raw, labels = load_digits(return_X_y=True)
    task = fl.tasks.digits()
    assert (task.samples, task.inputs, task.outputs, task.name) == (1797, 64, 10, "digits")
    np.testing.assert_array_equal(np.argmax(task.y, axis=1), labels)
    np.testing.assert_array_equal(np.sort(task.y, axis=1)[:, -2:], np.tile([0, 1], (1797, 1)))
    np.testing.assert_allclose(task.x, (raw - raw.mean(axis=0)) / 16, atol=1e-14)
    np.testing.assert_allclose(np.mean(task.x, axis=0), 0, atol=1e-14)
    whole = fl.tasks.digits(center=False)
    np.testing.assert_allclose(whole.x, raw / 16)
    assert (float(np.min(whole.x)), float(np.max(whole.x))) == (0, 1)
    plain = fl.tasks.digits(center=False, scale=False, one_hot=False)
    np.testing.assert_array_equal(plain.x, raw)
    np.testing.assert_array_equal(plain.y, labels[:, None])


@pytest.mark.parametrize("scale", [True, False])
def test_digits_standardise_over_all_pixels(scale):
    task = fl.tasks.digits(center=False, standardise=True, scale=scale)
    np.testing.assert_allclose(np.mean(task.x), 0, atol=1e-13)
    np.testing.assert_allclose(np.std(task.x), 1, atol=1e-13)
    # One mean and one deviation: the pixels keep their own.
    assert np.ptp(np.std(task.x, axis=0)) > 0.5


def test_digits_subset_is_taken_from_the_whole_with_its_mean():
    whole, part = fl.tasks.digits(), fl.tasks.digits(300, seed=5)
    _, labels = load_digits(return_X_y=True)
    chosen = images.stratified(labels, 300, 5)
    np.testing.assert_array_equal(part.x, np.asarray(whole.x)[chosen])
    np.testing.assert_array_equal(part.y, np.asarray(whole.y)[chosen])


@pytest.mark.parametrize("load", [fl.tasks.digits, fl.tasks.mnist, fl.tasks.cifar10])
def test_centring_and_standardising_exclude_each_other(load, monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"`center` and `standardise` exclude each other; pass"):
        load(standardise=True)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"needs scikit-learn: pip install 'flowlin\[data\]'"):
        fl.tasks.digits()


# --- MNIST ----------------------------------------------------------------------------------


def idx(path, header):
    """The bytes of an IDX file behind its header, read without the library."""
    return np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8)


@pytest.fixture(scope="module")
def mnist_files(data_folder):
    """(images, labels) of the training and of the test files, read here and by the library."""
    folder = data_folder / "mnist"
    raw = [
        (
            idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784),
            idx(folder / f"{part}-labels-idx1-ubyte.gz", 8),
        )
        for part in ("train", "t10k")
    ]
    return raw, [files.mnist_arrays(test) for test in (False, True)]


@pytest.fixture
def mnist_raw(mnist_files, monkeypatch):
    """(images, labels) of both splits; the library does not read its files again meanwhile."""
    raw, found = mnist_files
    monkeypatch.setattr(images, "mnist_arrays", lambda test: found[test])
    return raw


@pytest.mark.data
def test_mnist_training_set(mnist_raw):
    (pixels, labels), _ = mnist_raw
    task = fl.tasks.mnist()
    x, y = np.asarray(task.x), np.asarray(task.y)
    assert x.shape == (60_000, 784)
    assert y.shape == (60_000, 10)
    np.testing.assert_array_equal(y.sum(axis=0), MNIST_COUNTS)
    np.testing.assert_array_equal(y.argmax(axis=1), labels)
    assert set(np.unique(y)) == {0, 1}
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x[123] + pixels.mean(axis=0) / 255, pixels[123] / 255, atol=1e-13)
    assert x.min() >= -1
    assert x.max() <= 1


@pytest.mark.data
def test_mnist_standardised(mnist_raw):
    (pixels, _), (test_pixels, _) = mnist_raw
    # The test images by the training set's numbers: .1307 and .3081, as everyone knows them.
    x = np.asarray(fl.tasks.mnist(test=True, center=False, standardise=True).x)
    np.testing.assert_allclose(x, (test_pixels / 255 - 0.1307) / 0.3081, atol=1e-3)
    np.testing.assert_allclose(x, (test_pixels - pixels.mean()) / pixels.std(), atol=1e-11)


@pytest.mark.data
def test_mnist_test_split(mnist_raw):
    (pixels, _), (test_pixels, labels) = mnist_raw
    task = fl.tasks.mnist(test=True)
    assert task.x.shape == (10_000, 784)
    np.testing.assert_array_equal(np.argmax(task.y, axis=1), labels)
    expected = (test_pixels - pixels.mean(axis=0)) / 255
    np.testing.assert_allclose(task.x, expected, atol=1e-13)
    plain = fl.tasks.mnist(test=True, center=False, scale=False, one_hot=False)
    np.testing.assert_array_equal(plain.x, test_pixels)
    np.testing.assert_array_equal(plain.y, labels[:, None])
    scaled = np.asarray(fl.tasks.mnist(test=True, center=False).x)
    assert (scaled.min(), scaled.max()) == (0, 1)


@pytest.mark.data
def test_mnist_subset(mnist_raw):
    (pixels, labels), _ = mnist_raw
    task = fl.tasks.mnist(2_000, seed=3)
    assert task.x.shape == (2_000, 784)
    shares = np.array(MNIST_COUNTS) / 30
    assert np.all(abs(np.asarray(task.y).sum(axis=0) - shares) < 1)
    # The mean of the whole training set is taken away, not that of the subset.
    chosen = images.stratified(labels, 2_000, 3)
    expected = (pixels[chosen] - pixels.mean(axis=0)) / 255
    np.testing.assert_allclose(task.x, expected, atol=1e-13)
    assert 1e-4 < np.max(abs(expected.mean(axis=0))) < 0.1
    again, other = fl.tasks.mnist(2_000, seed=3), fl.tasks.mnist(2_000, seed=4)
    np.testing.assert_array_equal(again.x, task.x)
    assert not np.array_equal(other.x, task.x)


# --- CIFAR-10 -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar_files(data_folder):
    """(images, labels) of the training and of the test set; the archive is read once for each."""
    return [files.cifar10_arrays(test) for test in (False, True)]


@pytest.fixture
def cifar_raw(cifar_files, monkeypatch):
    """(images, labels) of both splits; the library does not read the archive again meanwhile."""
    monkeypatch.setattr(images, "cifar10_arrays", lambda test: cifar_files[test])
    return cifar_files


@pytest.fixture(scope="module")
def cifar_folder(data_folder, tmp_path_factory):
    """A data folder that holds the extracted CIFAR-10 batches instead of the archive."""
    folder = tmp_path_factory.mktemp("data") / "cifar10"
    with tarfile.open(data_folder / "cifar10" / files.CIFAR10_ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    yield folder.parent
    for path in folder.rglob("*_batch*"):
        path.unlink()


@pytest.mark.data
def test_cifar10_arrays_are_the_batches_in_order(cifar_raw, cifar_folder):
    (train, train_labels), (test, test_labels) = cifar_raw
    assert train.shape == (50_000, 3072)
    assert test.shape == (10_000, 3072)
    np.testing.assert_array_equal(np.bincount(train_labels), [5_000] * 10)
    np.testing.assert_array_equal(np.bincount(test_labels), [1_000] * 10)
    content = (cifar_folder / "cifar10" / "cifar-10-batches-py" / "test_batch").read_bytes()
    assert hashlib.sha256(content).hexdigest() == CIFAR_TEST_SHA
    batch = pickle.loads(content, encoding="bytes")
    np.testing.assert_array_equal(test, batch[b"data"])
    np.testing.assert_array_equal(test_labels, batch[b"labels"])


@pytest.mark.data
@pytest.mark.parametrize("nested", [True, False])
def test_cifar10_from_the_extracted_folder(nested, cifar_raw, cifar_folder, monkeypatch):
    folder = cifar_folder if nested else cifar_folder / "cifar10"
    monkeypatch.setenv("FLOWLIN_DATA", str(folder))
    for test in (True, False) if nested else (True,):
        for found, expected in zip(files.cifar10_arrays(test), cifar_raw[test], strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.data
def test_cifar10_in_colour_and_in_grey(cifar_raw):
    _, (pixels, labels) = cifar_raw
    load = functools.partial(fl.tasks.cifar10, 500, test=True, center=False)
    chosen = images.stratified(labels, 500, 0)
    colour = load(grayscale=False)
    assert colour.x.shape == (500, 3072)
    np.testing.assert_allclose(colour.x, pixels[chosen] / 255, atol=1e-15)
    red, green, blue = np.split(np.asarray(colour.x), 3, axis=1)
    grey = load()
    assert grey.x.shape == (500, 1024)
    assert grey.name != colour.name
    np.testing.assert_allclose(grey.x, 0.299 * red + 0.587 * green + 0.114 * blue, atol=1e-14)
    assert 0 <= np.min(grey.x) < np.max(grey.x) <= 1
    for task in (colour, grey):
        np.testing.assert_array_equal(np.sum(task.y, axis=0), [50] * 10)
    plain = load(grayscale=False, scale=False, one_hot=False)
    np.testing.assert_array_equal(plain.x, pixels[chosen])
    np.testing.assert_array_equal(plain.y, labels[chosen][:, None])


@pytest.mark.data
def test_cifar10_is_centred_by_the_whole_training_set(cifar_raw):
    (train, _), (test, labels) = cifar_raw
    chosen = images.stratified(labels, 300, 0)
    mean = train.mean(axis=0)
    colour = fl.tasks.cifar10(300, test=True, grayscale=False)
    np.testing.assert_allclose(colour.x, (test[chosen] - mean) / 255, atol=1e-12)
    grey = fl.tasks.cifar10(300, test=True)
    # The luma of the means is the mean of the lumas.
    expected = np.array([0.299, 0.587, 0.114]) @ ((test[chosen] - mean) / 255).reshape(300, 3, -1)
    np.testing.assert_allclose(grey.x, expected, atol=1e-12)


@pytest.mark.data
@pytest.mark.parametrize("grayscale", [True, False])
def test_cifar10_standardised(grayscale, cifar_files, monkeypatch):
    """With the first 2,000 training images as the whole training set."""
    images_, labels = cifar_files[0]
    few = images_[:2_000], labels[:2_000]
    monkeypatch.setattr(images, "cifar10_arrays", lambda test: few)
    x = np.asarray(fl.tasks.cifar10(grayscale=grayscale, center=False, standardise=True).x)
    np.testing.assert_allclose(x.mean(), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(), 1, atol=1e-12)
    centred = np.asarray(fl.tasks.cifar10(grayscale=grayscale).x)
    np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-12)


# --- bad files ------------------------------------------------------------------------------

LOADERS = [
    lambda: fl.tasks.mnist(test=True, center=False),
    lambda: fl.tasks.cifar10(test=True, center=False),
]


@pytest.mark.parametrize("load", LOADERS)
def test_a_data_folder_that_is_not_there(load, monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(fl.DataError, match=r"FLOWLIN_DATA names .*nowhere, which is no folder"):
        load()


@pytest.mark.parametrize(
    ("load", "place"),
    [(LOADERS[0], "mnist/t10k-images-idx3-ubyte.gz"), (LOADERS[1], "cifar10/cifar-10-batches-py")],
)
def test_a_data_folder_without_files(load, place, monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    with pytest.raises(fl.DataError, match=r"no data file found; looked for") as caught:
        load()
    assert str(tmp_path / place) in str(caught.value)
    assert "unset FLOWLIN_DATA to download" in str(caught.value)


@pytest.mark.data
def test_one_flipped_bit_in_mnist(data_folder, monkeypatch, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("images-idx3", "labels-idx1"):
        name = f"t10k-{part}-ubyte.gz"
        (folder / name).write_bytes((data_folder / "mnist" / name).read_bytes())
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    assert len(LOADERS[0]().x) == 10_000
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(fl.DataError, match=r"t10k-labels.* is damaged .*: SHA-256 .*, expected"):
        LOADERS[0]()


class Bomb:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("packed", [True, False])
def test_an_unknown_pickle_is_not_loaded(packed, monkeypatch, tmp_path):
    crater, folder = tmp_path / "crater", tmp_path / "cifar10" / files.CIFAR10_FOLDER
    folder.mkdir(parents=True)
    for name in BATCHES:
        (folder / name).write_bytes(pickle.dumps({b"data": Bomb(crater)}))
    if packed:
        with tarfile.open(tmp_path / "cifar10" / files.CIFAR10_ARCHIVE, "w:gz") as archive:
            archive.add(folder, files.CIFAR10_FOLDER)
        folder.rename(tmp_path / "elsewhere")
        folder = tmp_path / "elsewhere"
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    for test in (True, False):
        with pytest.raises(fl.DataError, match=r"is damaged or not the original file: SHA-256"):
            fl.tasks.cifar10(test=test, center=False)
    assert not crater.exists()
    pickle.loads((folder / "test_batch").read_bytes())
    assert crater.exists()


def test_an_archive_without_the_batches(monkeypatch, tmp_path):
    (tmp_path / "note").write_text("nothing to see")
    with tarfile.open(tmp_path / files.CIFAR10_ARCHIVE, "w:gz") as archive:
        archive.add(tmp_path / "note", "cifar-10-batches-py/note")
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    with pytest.raises(fl.DataError, match=r"has no member test_batch; it is not the CIFAR-10"):
        LOADERS[1]()


@pytest.mark.parametrize("damage", ["truncated", "junk"])
def test_a_damaged_archive(damage, monkeypatch, tmp_path):
    path = tmp_path / files.CIFAR10_ARCHIVE
    noise = np.random.default_rng(0).bytes(200_000)
    (tmp_path / "test_batch").write_bytes(noise)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "test_batch", "cifar-10-batches-py/test_batch")
    path.write_bytes(path.read_bytes()[:100_000] if damage == "truncated" else noise)
    monkeypatch.setenv("FLOWLIN_DATA", str(tmp_path))
    with pytest.raises(fl.DataError, match=r"cifar-10-python.tar.gz"):
        LOADERS[1]()


# --- downloads ------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "mirrors"), [(LOADERS[0], 2), (LOADERS[1], 1)])
def test_no_network(load, mirrors, monkeypatch):
    asked = []

    def retrieve(url, **options):
        assert options["known_hash"]
        asked.append(url)
        raise OSError("the cable is unplugged")

    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", retrieve)
    with pytest.raises(fl.DataError, match=r"could not download .*") as caught:
        load()
    assert len(set(asked)) == mirrors
    assert str(caught.value).count("the cable is unplugged") == mirrors
    assert "set FLOWLIN_DATA to a folder that holds it" in str(caught.value)


def test_no_pooch(monkeypatch):
    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'flowlin\[data\]'.*set FLOWLIN_DATA"):
        LOADERS[0]()


def test_a_download_is_checked_again(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"junk")
    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", lambda *args, **options: tmp_path / "file")
    with pytest.raises(fl.DataError, match=r"is damaged or not the original file: SHA-256"):
        LOADERS[0]()


@pytest.mark.data
def test_a_download_from_the_second_mirror(data_folder, monkeypatch):
    hashes = {}

    def retrieve(url, known_hash, fname, path, progressbar):
        if url.startswith(files.MNIST_MIRRORS[0]):
            raise OSError("down")
        assert url == files.MNIST_MIRRORS[1] + fname
        assert progressbar == sys.stderr.isatty()
        hashes[fname] = known_hash
        return str(data_folder / "mnist" / fname)

    expected = fl.tasks.mnist(100)
    monkeypatch.delenv("FLOWLIN_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", retrieve)
    task = fl.tasks.mnist(100)
    np.testing.assert_array_equal(task.x, expected.x)
    assert hashes["train-images-idx3-ubyte.gz"] == MNIST_IMAGES_SHA
    assert len(hashes) == 2


def test_empty_flowlin_data_counts_as_unset(monkeypatch):
    monkeypatch.setenv("FLOWLIN_DATA", "")
    assert files.data_folder() is None


def test_image_tasks_take_the_default_precision():
    assert fl.tasks.digits(10).x.dtype == jnp.float64
