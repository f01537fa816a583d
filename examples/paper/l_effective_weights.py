r"""L: effective weights of a ReLU network of MNIST, $f(x) = W_{eff}(x)\, x$, along training.
Distances within classes fall below those between, less than of activations, with biases as without.

Three hidden layers and a head without biases, Adam at 1e-3 on the cross-entropy; 1,000 test images,
as in the source, which gives neither width (here 64), batch (64), length (three epochs) nor
preprocessing (standardised by one mean and one standard deviation). Its pictures by t-SNE keep no
distances; here are distances within and between classes, relative to the norm of the maps, and the
classes of the ten nearest neighbours, of the maps to the logits and to the last hidden layer
("backbone"). Beside them: the same of raw inputs and of activations; training on shuffled labels;
biases; gates and weights taken from different times; and normal samples with the covariance of the
class "1", which have clusters by chance alone. Whether that class has clusters before training is
looked at in more networks. The gradient flow is of 40 images in 16 units per layer, exact, through
every switch.

    python examples/paper/l_effective_weights.py [--quick | --full]
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from _effective import (
    SPACES,
    Geometry,
    Split,
    curvature,
    deep,
    exactness,
    geometry,
    gram_of,
    nearness,
    points,
    product_error,
    shuffled,
    slant_and_foot,
    split,
    start,
    train,
)
from _effective_rows import rows as judge
from _paper import Study, fl
from matplotlib.figure import Figure
from sklearn.manifold import MDS, TSNE
from threadpoolctl import threadpool_limits
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters.

    - `samples`: training images; None is all.
    - `tests`, `hidden`, `steps` (at which networks are saved, in steps of Adam).
    - `seeds`: of the networks without biases; `others` those with biases, shuffled labels, and of
      residual, smooth and normalised modules.
    - `starts`: untrained networks whose class "1" is looked at.
    - `draws`: normal samples that the clusters of a class are compared with.
    - `flow_samples`, `flow_hidden`, `flow_time`, `flow_seeds`: of the gradient flow.
    - `pictures`: steps at which maps are drawn, of seed 0.
    """

    samples: int | None = None
    tests: int = 1_000
    hidden: int = 64
    steps: tuple[int, ...] = (0, 100, 1_000, 2_814)
    seeds: int = 8
    others: int = 4
    starts: int = 100
    draws: int = 20
    flow_samples: int = 40
    flow_hidden: int = 16
    flow_time: float = 6.0
    flow_seeds: int = 5
    pictures: tuple[int, ...] = (0, 100, 2_814)


SIZES = {
    "quick": Size(2_000, 200, 12, (0, 60), 2, 2, 3, 4, 20, 3, 0.5, 2, (0, 60)),
    "default": Size(),
    "full": Size(
        hidden=256, steps=(0, 30, 100, 300, 1_000, 2_814, 14_070), pictures=(0, 300, 14_070)
    ),
}


@dataclasses.dataclass
class Data:
    """What was found.

    - `classes`: (P,) of the test images.
    - `runs`: by "no bias", "bias", "shuffled labels": one {space: geometries over time} per seed.
    - `errors`: test error of the same networks over time, (seeds, T).
    - `mixed`: per seed, by "gates" and "weights": geometry of backbone maps with the others of the
      start and these of the end.
    - `ones`: clusters of the class "1" in backbone maps per seed, at the start and at the end.
    - `near`: how near they are to each other, likewise.
    - `untrained`: its clusters in more networks at the start.
    - `raw`: clusters of its raw inputs; `slant` and `foot` of its images.
    - `exact`: (error, share of the offset) by kind of network, of every seed.
    - `bent`: how far tangents are off at a distance, likewise; `products`: errors of the products
      of weights and of what activations multiply by.
    - `flows`: per seed, {space: geometries over time}; `switches`: located in each;
      `flow_errors`: on the training images at the end.
    - `pictures`: {step: backbone maps as points whose distances are theirs}.
    """

    size: Size
    classes: np.ndarray
    runs: dict[str, list[dict[str, list[Geometry]]]]
    errors: dict[str, np.ndarray]
    mixed: list[dict[str, Geometry]]
    ones: list[tuple[Split, Split]]
    near: list[tuple[float, float]]
    untrained: list[Split]
    raw: Split
    slant: np.ndarray
    foot: np.ndarray
    exact: dict[str, list[tuple[float, float]]]
    bent: dict[str, list[float]]
    products: dict[str, list[float]]
    flows: list[dict[str, list[Geometry]]]
    switches: list[int]
    flow_errors: list[float]
    pictures: dict[int, np.ndarray]


def task_of(samples: int | None, test: bool = False) -> fl.Task:
    """Standardised images, float32."""
    return fl.tasks.mnist(samples, test=test, center=False, standardise=True).astype(jnp.float32)


def saved(run: fl.Trajectory) -> list[Any]:
    """The networks of a run."""
    return [jax.tree.map(lambda a, k=k: a[k], run.networks) for k in range(len(run.ts))]


def geometries(networks: list[Any], x: Any, classes: np.ndarray) -> dict[str, list[Geometry]]:
    """By space, over time; raw inputs stay the same."""
    found = {}
    for space in SPACES:
        some = networks[:1] if space == "inputs" else networks
        found[space] = [geometry(gram_of(points(one, x, space)), classes) for one in some]
    return found


def compute(size: Size) -> Data:
    """All runs."""
    task, test = task_of(size.samples), task_of(size.tests, test=True)
    classes = np.asarray(test.y).argmax(axis=1)
    kinds = {"no bias": (task, False, size.seeds), "bias": (task, True, size.others),
             "shuffled labels": (shuffled(task), False, size.others)}  # fmt: skip
    one = np.asarray(test.x)[classes == 1]
    slant, foot = slant_and_foot(one)
    data = Data(size, classes, {}, {}, [], [], [], [], split(gram_of(one), size.draws), slant, foot,
                {}, {}, {}, [], [], [], {})  # fmt: skip
    for seed in tqdm(range(size.starts), desc="untrained", disable=None):
        first = start(task, (size.hidden,) * 3, seed, bias=False)
        data.untrained.append(split(gram_of(points(first, one, "backbone")), size.draws))
    for kind, (trained, bias, seeds) in kinds.items():
        data.runs[kind], errors, data.exact[kind] = [], [], []
        for seed in tqdm(range(seeds), desc=kind, disable=None):
            first = start(trained, (size.hidden,) * 3, seed, bias)
            run = train(first, trained, size.steps, seed)
            networks = saved(run)
            data.runs[kind].append(geometries(networks, test.x, classes))
            errors.append(fl.measures.along(run, fl.measures.error_rate, test))
            final = networks[-1].astype(jnp.float64)
            data.exact[kind].append(exactness(final, test.x[:100].astype(jnp.float64)))
            if kind == "no bias":
                _look_closely(data, networks, test, seed)
        data.errors[kind] = np.asarray(errors)
    _other_modules(data, task, test)
    _flow(data)
    return data


def _look_closely(data: Data, networks: list[Any], test: fl.Task, seed: int) -> None:
    """Gates against weights, the class "1", pictures."""
    first, final = networks[0], networks[-1]
    crossed = {
        "gates": final.frozen(test).with_parameters(first.parameters),
        "weights": first.frozen(test).with_parameters(final.parameters),
    }
    data.mixed.append({
        name: geometry(gram_of(points(one, test.x, "backbone")), data.classes)
        for name, one in crossed.items()
    })  # fmt: skip
    one = data.classes == 1
    splits, near = [], []
    for network in (first, final):
        gram = gram_of(points(network, test.x, "backbone"))
        splits.append(split(gram[np.ix_(one, one)], data.size.draws))
        near.append(nearness(gram, one, splits[-1].labels))
    data.ones.append((splits[0], splits[1]))
    data.near.append((near[0], near[1]))
    if seed:
        return
    for step in data.size.pictures:
        gram = gram_of(points(networks[data.size.steps.index(step)], test.x, "backbone"))
        centre = np.eye(len(gram)) - 1 / len(gram)
        values, vectors = np.linalg.eigh(centre @ gram @ centre)
        kept = values > 1e-4 * values[-1]
        data.pictures[step] = vectors[:, kept] * np.sqrt(values[kept] / values[-1])


def _other_modules(data: Data, task: fl.Task, test: fl.Task) -> None:
    """Residual, smooth and normalised modules: how exact their maps are, how far they reach."""
    kinds = {
        "plain ReLU": (jax.nn.relu, False, False),
        "residual ReLU": (jax.nn.relu, True, False),
        "GELU": (jax.nn.gelu, False, False),
        "ReLU and norm": (jax.nn.relu, False, True),
    }
    x = test.x[:100].astype(jnp.float64)
    for kind, (activation, residual, norm) in kinds.items():
        data.exact[kind], data.bent[kind], data.products[kind] = [], [], []
        for seed in range(data.size.others):
            one = deep(task, 64, seed, activation, residual=residual, norm=norm)
            one = train(one, task, (0, min(1_000, data.size.steps[-1])), seed).final
            one = jax.tree.map(lambda a: a.astype(jnp.float64), one)
            data.exact[kind].append(exactness(one, x))
            data.bent[kind].append(curvature(one, x))
            data.products[kind].append(product_error(one, x))


def _flow(data: Data) -> None:
    """Gradient flow of a few images, in float64."""
    size = data.size
    task = task_of(size.flow_samples).astype(jnp.float64)
    classes = np.asarray(task.y).argmax(axis=1)
    how: dict[str, Any] = {"loss": fl.CrossEntropy(), "rtol": 1e-3}
    kinks = fl.ExactKinks(slots=24)
    for seed in tqdm(range(size.flow_seeds), desc="flow", disable=None):
        first = start(task, (size.flow_hidden,) * 3, seed, bias=False)
        ts = np.linspace(0, size.flow_time, 5)
        run = fl.gradient_flow(first, task, size.flow_time, kinks=kinks, ts=ts, **how)
        data.flows.append(geometries(saved(run), task.x, classes))
        data.switches.append(len(run.events))
        data.flow_errors.append(float(fl.measures.error_rate(run.final, task)))


def numbers(data: Data) -> dict[str, Any]:
    """Ratios over time, means over seeds."""
    found: dict[str, Any] = {"step": data.size.steps}
    for kind, space in itertools.product(data.runs, SPACES):
        over = [[g.within / g.between for g in one[space]] for one in data.runs[kind]]
        found[f"{kind}, {space}: within over between"] = np.mean(over, axis=0)
    for space in SPACES:
        last = [one[space][-1].neighbours for one in data.runs["no bias"]]
        first = [one[space][0].neighbours for one in data.runs["no bias"]]
        found[f"{space}: own class among neighbours, start"] = np.mean(first, axis=0).diagonal()
        found[f"{space}: own class among neighbours, end"] = np.mean(last, axis=0).diagonal()
    for kind, errors in data.errors.items():
        found[f"{kind}: test error"] = errors.mean(axis=0)
    return found


def draw(data: Data) -> Figure:
    """Ratios over time."""
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 4.2))
    looks = {"no bias": "-", "bias": "--", "shuffled labels": ":"}
    at = np.maximum(data.size.steps, 10)
    for ax, space in zip(axes, ("logits", "backbone"), strict=True):
        for (kind, dash), colour in zip(looks.items(), ("C0", "C1", "0.4"), strict=True):
            over = [[g.within / g.between for g in one[space]] for one in data.runs[kind]]
            ax.plot(at, np.mean(over, axis=0), color=colour, linestyle=dash, label=kind)
        for other, dash in (("activations", "-."), ("inputs", "--")):
            over = [[g.within / g.between for g in one[other]] for one in data.runs["no bias"]]
            mean = np.broadcast_to(np.mean(over, axis=0), at.shape)
            ax.plot(at, mean, color="C2" if other == "activations" else "C3", linestyle=dash,
                    label=f"{other}, no bias")  # fmt: skip
        ax.set(xscale="log", xlabel="step of Adam (10: the start)", ylim=(0, 1.05),
               ylabel="distance within / between classes",
               title=f"$W_{{eff}}$ of {space}")  # fmt: skip
    axes[0].legend(fontsize="small", frameon=False, loc="lower left")
    return figure


def draw_maps(data: Data) -> Figure:
    """Effective weights of test images at the start (left) and at the end (right), in two
    dimensions. See: by t-SNE, which shows clusters, each digit has about one at the end (above). By
    scaling that keeps distances (MDS) digits gather too, and overlap (below).
    """
    figure, axes = plt.subplots(2, 2, figsize=(8.8, 7.6))
    scalings = {"t-SNE": TSNE(random_state=0), "MDS": _mds()}
    steps = (min(data.pictures), max(data.pictures))
    for row, (name, scaling) in zip(axes, scalings.items(), strict=True):
        for ax, step in zip(row, steps, strict=True):
            with threadpool_limits(1):
                flat = scaling.fit_transform(data.pictures[step])
            seen = ax.scatter(*flat.T, c=data.classes, cmap="tab10", vmin=-0.5, vmax=9.5, s=6)
            ax.set(title=f"{name}, step {step:,}", xticks=[], yticks=[])
    figure.colorbar(seen, ax=axes, ticks=range(10), shrink=0.6, label="digit")
    return figure


def _mds() -> MDS:
    return MDS(n_init=1, init="random", max_iter=200, random_state=0, normalized_stress="auto")


OTHERS = {"_maps": draw_maps}
STUDY = Study(
    "l_effective_weights", SIZES, compute, draw, numbers, judge, heavy=True, others=OTHERS
)

if __name__ == "__main__":
    STUDY.main(__doc__)
