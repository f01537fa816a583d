"""Finding, checking and reading the original files of MNIST and CIFAR-10."""

import gzip
import hashlib
import os
import pickle
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np

MNIST_SHA256 = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
CIFAR10_ARCHIVE = "cifar-10-python.tar.gz"
CIFAR10_FOLDER = "cifar-10-batches-py"
CIFAR10_ARCHIVE_MD5 = "md5:c58f30108f718f92721af3b95e74349a"
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR10_SHA256 = {
    "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
}


class DataError(ValueError):
    """A data file that is missing, damaged, or cannot be had."""


def data_folder() -> Path | None:
    """Return the folder that `FLOWLIN_DATA` names, or None.

    **Raises:** `DataError` if it names no folder.
    """
    named = os.environ.get("FLOWLIN_DATA")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"the environment variable FLOWLIN_DATA names {folder}, which is no folder; point it "
            "at a folder with `mnist/` and `cifar10/`, or unset it to use the download cache."
        )
    return folder


def mnist_arrays(test: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read MNIST's IDX files: images (P, 784) as bytes, and labels (P,)."""
    part = "t10k" if test else "train"
    images = _parse_idx(_mnist_file(f"{part}-images-idx3-ubyte.gz"))
    labels = _parse_idx(_mnist_file(f"{part}-labels-idx1-ubyte.gz"))
    return images.reshape(len(images), -1), labels


def cifar10_arrays(test: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR-10: images (P, 3072) as bytes, planes red, green, blue, and labels (P,)."""
    names = ["test_batch"] if test else [f"data_batch_{i}" for i in range(1, 6)]
    members = _cifar10_members(names)
    batches = [pickle.loads(members[name], encoding="bytes") for name in names]
    images = np.concatenate([batch[b"data"] for batch in batches])
    return images, np.concatenate([np.asarray(batch[b"labels"]) for batch in batches])


def verify_checksum(content: bytes, sha256: str, where: str) -> bytes:
    """Return `content` if its checksum is right.

    **Raises:** `DataError` otherwise; nothing is parsed or unpickled before this.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{where} is damaged or not the original file: SHA-256 {found}, expected {sha256}. "
            "Delete it and fetch it again."
        )
    return content


def _mnist_file(name: str) -> bytes:
    """Read a file of MNIST, from the folder of the data or from the cache, and verify it."""
    folder = data_folder()
    if folder is None:
        path = _download_file(name, MNIST_MIRRORS, MNIST_SHA256[name])
    else:
        path = _first_existing(
            [folder / "mnist" / name, folder / "MNIST" / "raw" / name, folder / name]
        )
    return verify_checksum(_read_bytes(path), MNIST_SHA256[name], str(path))


def _cifar10_members(names: list[str]) -> dict[str, bytes]:
    """Read the named batches, from the extracted folder or the archive, and verify them."""
    folder = data_folder()
    if folder is None:
        path = _download_file(CIFAR10_ARCHIVE, CIFAR10_MIRRORS, CIFAR10_ARCHIVE_MD5)
    else:
        homes = [folder / "cifar10", folder]
        path = _first_existing(
            [h / part for h in homes for part in (CIFAR10_FOLDER, CIFAR10_ARCHIVE)]
        )
    contents: dict[str, bytes] = {}
    if path.is_dir():
        for name in names:
            contents[name] = _read_bytes(_first_existing([path / name]))
    else:
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    name = Path(member.name).name
                    if name in names:
                        contents[name] = _read_member(archive, member, path)
                    if len(contents) == len(names):
                        break
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"{path} is damaged or not the CIFAR-10 archive ({error}). Delete it and fetch it "
                "again."
            ) from error
    missing = sorted(set(names) - set(contents))
    if missing:
        raise DataError(f"{path} has no member {missing[0]}; it is not the CIFAR-10 archive.")
    return {n: verify_checksum(contents[n], CIFAR10_SHA256[n], f"{path}: {n}") for n in names}


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    """Read a member of the archive, which is a file: the original archive has no links."""
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None:
        raise DataError(
            f"{path}: its member {member.name} is a link or no file, so it is not the CIFAR-10 "
            "archive. Delete it and fetch it again."
        )
    return stream.read()


def _read_bytes(path: Path) -> bytes:
    """Read a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); put the file there.") from error


def _first_existing(candidates: list[Path]) -> Path:
    """Return the first path at which there is something."""
    for path in candidates:
        if path.exists():
            return path
    looked = "\n  ".join(str(path) for path in candidates)
    raise DataError(
        f"no data file found; looked for\n  {looked}\nPut the original file at one of these "
        "places, or unset FLOWLIN_DATA to download it."
    )


def _download_file(name: str, mirrors: tuple[str, ...], known_hash: str) -> Path:
    """Return the file in the cache folder; download it, with a bar in a terminal, if missing."""
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            "downloading data needs pooch: pip install 'flowlin[data]'. Or set FLOWLIN_DATA to a "
            f"folder that holds {name}."
        ) from error
    failures = []
    for mirror in mirrors:
        try:
            path = pooch.retrieve(
                mirror + name,
                known_hash=known_hash,
                fname=name,
                path=pooch.os_cache("flowlin"),
                progressbar=sys.stderr.isatty(),
            )
            return Path(path)
        except Exception as error:  # any network or checksum failure: try the next mirror
            failures.append(f"{mirror}: {error}")
    raise DataError(
        f"could not download {name}:\n  " + "\n  ".join(failures) + "\nCheck the connection, or "
        "fetch the file elsewhere and set FLOWLIN_DATA to a folder that holds it."
    )


def _parse_idx(compressed: bytes) -> np.ndarray:
    """Parse an IDX file of bytes: magic 0x0000080d, d big-endian sizes, then the values."""
    raw = gzip.decompress(compressed)
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
