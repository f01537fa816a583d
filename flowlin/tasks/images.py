"""Real images: MNIST, CIFAR-10, and scikit-learn's 8 x 8 digits."""

import numpy as np

from flowlin._tools.arguments import boolean, checked, integer_from
from flowlin.tasks.data_files import cifar10_arrays, mnist_arrays
from flowlin.tasks.task import Task

_check_image_options = checked(
    samples=integer_from(1),
    seed=integer_from(0),
    test=boolean,
    grayscale=boolean,
    scale=boolean,
    center=boolean,
    standardise=boolean,
    one_hot=boolean,
)

# ITU-R BT.601 luma, what PIL and torchvision call grayscale.
LUMA = np.array([0.299, 0.587, 0.114])


@_check_image_options
def mnist(
    samples: int | None = None,
    *,
    seed: int = 0,
    test: bool = False,
    scale: bool = True,
    center: bool = True,
    standardise: bool = False,
    one_hot: bool = True,
) -> Task:
    """Load handwritten digits: 784 inputs, 10 classes, 60,000 training or 10,000 test images.

    The original IDX files are read from the folder `FLOWLIN_DATA` names (itself or its subfolder
    `mnist`), else from the download cache, which is filled with pooch on first use.

    **Arguments:**

    - `samples`: size of a stratified subset, every class in proportion; None takes all.
    - `seed`: of the subset.
    - `test`: the test images instead of the training images.
    - `scale`: pixels to [0, 1].
    - `center`: subtract every pixel's mean over the whole training set (lead paper Sec. 3). The
      mean of a subset is then close to zero, not zero.
    - `standardise`: subtract one mean and divide by one standard deviation, over all pixels of
      all training images (lead paper App. C.1), instead of `center`.
    - `one_hot`: targets (P, 10); False gives the class as a number, (P, 1).

    **Returns:** `Task` of x (P, 784) and y (P, 10), or (P, 1) without `one_hot`.

    **Raises:** `ValueError` for impossible options, and (as its subclass `DataError`) for a file
    that is missing, damaged or cannot be downloaded, saying what to do.
    """
    _require_one_centring(center, standardise)
    images, labels = mnist_arrays(test)
    reference = None
    if center or standardise:
        reference = mnist_arrays(test=False)[0] if test else images
    return _image_task(
        "mnist",
        images,
        labels,
        reference,
        samples=samples,
        seed=seed,
        scale=scale,
        standardise=standardise,
        one_hot=one_hot,
    )


@_check_image_options
def cifar10(
    samples: int | None = None,
    *,
    seed: int = 0,
    test: bool = False,
    grayscale: bool = True,
    scale: bool = True,
    center: bool = True,
    standardise: bool = False,
    one_hot: bool = True,
) -> Task:
    """Load small photographs: 1,024 inputs (3,072 in colour), 10 classes, 50,000 or 10,000 images.

    Read from the folder `FLOWLIN_DATA` names (itself or its subfolder `cifar10`): the archive
    `cifar-10-python.tar.gz` or its extracted folder. What counts are the checksums of the batches
    inside, and no batch is unpickled before its checksum is verified.

    **Arguments:** as for `mnist`, and

    - `grayscale`: the luma 0.299 R + 0.587 G + 0.114 B, as the lead paper's "grayscale", whose
      formula it does not give; False keeps the three colour planes.

    **Returns:** `Task` of x (P, 1024), or (P, 3072) in colour, and y (P, 10), or (P, 1)
    without `one_hot`.

    **Raises:** as `mnist`.
    """
    _require_one_centring(center, standardise)

    def pixel_rows(images: np.ndarray) -> np.ndarray:
        if not grayscale:
            return images
        planes = images.reshape(len(images), 3, -1)
        return np.einsum("c,pcn->pn", LUMA, planes)

    raw, labels = cifar10_arrays(test)
    images, reference = pixel_rows(raw), None
    if center or standardise:
        reference = pixel_rows(cifar10_arrays(test=False)[0]) if test else images
    name = "cifar10 grayscale" if grayscale else "cifar10"
    return _image_task(
        name,
        images,
        labels,
        reference,
        samples=samples,
        seed=seed,
        scale=scale,
        standardise=standardise,
        one_hot=one_hot,
    )


@_check_image_options
def digits(
    samples: int | None = None,
    *,
    seed: int = 0,
    scale: bool = True,
    center: bool = True,
    standardise: bool = False,
    one_hot: bool = True,
) -> Task:
    """Load scikit-learn's real 8 x 8 digits: 64 inputs, 10 classes, 1,797 images, no download.

    **Arguments:** as for `mnist`; there is one split, and pixels run
    from 0 to 16, so `scale` divides by 16.

    **Returns:** `Task` of x (P, 64) and y (P, 10), or (P, 1) without `one_hot`.

    **Raises:** `ValueError` as `mnist`; `ImportError` without scikit-learn.
    """
    _require_one_centring(center, standardise)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("`digits` needs scikit-learn: pip install 'flowlin[data]'.") from error
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    reference = images if center or standardise else None
    return _image_task(
        "digits",
        images,
        labels,
        reference,
        samples=samples,
        seed=seed,
        scale=scale,
        standardise=standardise,
        one_hot=one_hot,
        white_value=16.0,
    )


def _require_one_centring(center: bool, standardise: bool) -> None:
    """Raise `ValueError` if both ways of centring are asked for."""
    if center and standardise:
        raise ValueError(
            "`center` and `standardise` exclude each other; pass `center=False, standardise=True` "
            "for the global mean and standard deviation."
        )


def _image_task(
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    reference: np.ndarray | None,
    *,
    samples: int | None,
    seed: int,
    scale: bool,
    standardise: bool,
    one_hot: bool,
    white_value: float = 255.0,
) -> Task:
    """Make the task of a set of images: the part that all three have in common.

    It takes a subset, scales, and centres or standardises by the images of `reference`; a white
    pixel is `white`.
    """
    if samples is not None:
        chosen = draw_stratified(labels, samples, seed)
        images, labels = images[chosen], labels[chosen]
    x = images.astype(np.float64)
    unit = white_value if scale else 1.0
    x /= unit
    if reference is not None:
        if standardise:
            mean, deviation = np.mean(reference), np.std(reference)
            x = (x - mean / unit) / (deviation / unit)
        else:
            x -= np.mean(reference, axis=0) / unit
    classes = labels.astype(int)
    y = np.eye(10)[classes] if one_hot else classes[:, None].astype(float)
    return Task(x, y, name=name)


def draw_stratified(labels: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Draw indices of a random subset with every class in proportion, in the original order.

    Class sizes are the exact proportions rounded so that they add up (largest remainders).

    **Raises:** `ValueError` for a size that is not between 1 and the number of labels.
    """
    if not 1 <= samples <= len(labels):
        raise ValueError(f"`samples` must lie between 1 and {len(labels)}, got {samples}.")
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    share = counts * samples / len(labels)
    sizes = np.floor(share).astype(int)
    largest = np.argsort(sizes - share, kind="stable")[: samples - sizes.sum()]
    sizes[largest] += 1
    chosen = [
        rng.choice(np.flatnonzero(labels == c), size, replace=False)
        for c, size in zip(classes, sizes, strict=True)
    ]
    return np.sort(np.concatenate(chosen))
