"""`Task` and the toy tasks."""

# pyright: reportArgumentType=false
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.svm import SVC

import flowlin as fl

CORNERS = np.array(list(itertools.product((0.0, 1.0), repeat=2)))


def spectrum(task, c):
    """Singular values of Sigma_yx for inputs [c; x], in numpy."""
    x = np.column_stack([np.full(task.samples, c), task.x])
    return np.linalg.svd(np.asarray(task.y).T @ x / task.samples, compute_uv=False)


def linear_residual(x, y):
    """Sum of squares that an affine function of x leaves of y."""
    x = np.column_stack([np.ones(len(x)), x])
    return float(np.sum((y - x @ np.linalg.lstsq(x, y)[0]) ** 2))


def test_task_reads_its_sizes():
    task = fl.Task(np.ones((5, 3)), np.ones((5, 2)), name="ones")
    assert (task.samples, task.inputs, task.outputs, task.name) == (5, 3, 2, "ones")


def test_task_converts():
    task = fl.Task([[1, 2], [3, 4]], np.array([[True], [False]]))
    assert task.x.dtype == task.y.dtype == jnp.float64
    mixed = fl.Task(np.ones((2, 1), np.float32), np.ones((2, 1)))
    assert mixed.x.dtype == mixed.y.dtype == jnp.float64
    single = mixed.astype(jnp.float32)
    assert single.x.dtype == single.y.dtype == jnp.float32
    assert fl.Task(single.x, single.y).x.dtype == jnp.float32


def test_take_is_the_task_on_those_samples():
    task = fl.tasks.hierarchy()
    part = task.take(jnp.array([4, 1]))
    np.testing.assert_array_equal(part.x, np.asarray(task.x)[[4, 1]])
    np.testing.assert_array_equal(part.y, np.asarray(task.y)[[4, 1]])
    assert part.name == task.name


def test_task_passes_through_jit_and_vmap():
    def total(task):
        again = fl.Task(2 * task.x, task.y, name=task.name)
        return jnp.sum(again.x) + again.samples

    task = fl.Task(np.ones((3, 2)), np.ones((3, 1)))
    assert jax.jit(total)(task) == 12 + 3
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), task)
    np.testing.assert_array_equal(jax.vmap(total)(many), [15, 27])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones(3), np.ones((3, 1)), r"`x` must have one row per sample.*got shape \(3,\)"),
        (np.ones((3, 1)), np.ones(3), r"reshape a single feature with `y\[:, None\]`"),
        (np.ones((3, 1)), np.ones((3, 1, 1)), r"`y` must have one row per sample"),
        (np.ones((0, 2)), np.ones((0, 1)), r"`x` is empty: its shape is \(0, 2\)"),
        (np.ones((2, 2)), np.ones((2, 0)), r"`y` is empty"),
        (np.ones((2, 3)), np.ones((3, 2)), r"`x` has 2 samples and `y` has 3; rows are samples"),
        (np.array([[1.0], [np.nan]]), np.ones((2, 1)), r"`x` holds 1 value\(s\) that are NaN"),
        (np.ones((2, 1)), np.full((2, 1), -np.inf), r"`y` holds 2 value\(s\) that are NaN"),
    ],
)
def test_bad_tasks(x, y, message):
    with pytest.raises(ValueError, match=message):
        fl.Task(x, y)


def test_a_column_of_a_table_that_holds_no_numbers_is_named(without_type_checks):
    table = pytest.importorskip("pandas").DataFrame({"a": [1.0, 2.0], "sort": ["x", "y"]})
    assert fl.Task(table[["a"]], np.ones((2, 1))).inputs == 1
    with pytest.raises(
        ValueError, match=r"`x` must be .* its column 'sort' is of .*: leave it out"
    ):
        fl.Task(table, np.ones((2, 1)))


@pytest.mark.parametrize(("levels", "branching"), [(1, 2), (3, 2), (2, 3), (4, 2)])
def test_hierarchy_marks_the_leaves_below_every_node(levels, branching):
    task = fl.tasks.hierarchy(levels, branching)
    # A leaf is the string of branches taken, a node a beginning of such a string.
    leaves = list(itertools.product(range(branching), repeat=levels))
    nodes = [n for d in range(levels + 1) for n in itertools.product(range(branching), repeat=d)]
    expected = [[float(leaf[: len(node)] == node) for node in nodes] for leaf in leaves]
    np.testing.assert_array_equal(task.y, expected)
    np.testing.assert_array_equal(task.x, np.eye(len(leaves)))


def test_hierarchy_has_the_spectrum_of_the_sources():
    task = fl.tasks.hierarchy(levels=3)
    assert task.y.shape == (8, 15)
    assert task.x.shape == (8, 8)
    values = spectrum(task, 1.0)
    # As printed, and exactly: y_i . y_j counts common ancestors, so that the leaves' Gram matrix
    # has the eigenvalues 15, 7, 3 (twice), 1 (four times).
    printed = [1.452, 0.331, 0.2165, 0.2165, 0.125, 0.125, 0.125, 0.125, 0]
    np.testing.assert_allclose(values, printed, atol=5e-4)
    exact = [np.sqrt(15 * 9) / 8, np.sqrt(7) / 8, *[np.sqrt(3) / 8] * 2, *[1 / 8] * 4, 0]
    np.testing.assert_allclose(values, exact, atol=1e-14)


def test_xor():
    plain, binary = fl.tasks.xor(), fl.tasks.xor(binary=True)
    np.testing.assert_array_equal(binary.x, CORNERS)
    np.testing.assert_array_equal(plain.x, 2 * CORNERS - 1)
    np.testing.assert_array_equal(plain.x.mean(axis=0), [0, 0])
    for task in (plain, binary):
        differ = [float(bool(a) ^ bool(b)) for a, b in CORNERS]
        np.testing.assert_array_equal(task.y[:, 1], differ)
        np.testing.assert_array_equal(task.y.sum(axis=1), 1)
        # No affine function explains any of it: four points, variance 1/4 in each output.
        np.testing.assert_allclose(linear_residual(task.x, task.y), 2.0, atol=1e-12)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("delta", [0.1, 0.5, 0.8])
def test_offset_xor_has_the_margin_twice_delta(delta, binary):
    task = fl.tasks.offset_xor(delta, binary)
    plain = fl.tasks.xor(binary)
    np.testing.assert_array_equal(task.x[:, :2], plain.x)
    np.testing.assert_array_equal(task.y, plain.y)
    np.testing.assert_allclose(abs(task.x[:, 2]), delta)
    # The hard-margin support vector machine's slab is as wide as the classes lie apart.
    machine = SVC(kernel="linear", C=1e9, tol=1e-8).fit(np.asarray(task.x), task.y[:, 1] > 0.5)
    np.testing.assert_allclose(2 / np.linalg.norm(machine.coef_), 2 * delta, rtol=1e-5)


def test_offset_xor_without_an_offset_is_xor():
    task = fl.tasks.offset_xor(0.0)
    np.testing.assert_array_equal(task.x, np.column_stack([fl.tasks.xor().x, np.zeros(4)]))
    np.testing.assert_allclose(linear_residual(task.x, task.y), 2.0, atol=1e-12)
    assert linear_residual(fl.tasks.offset_xor(0.1).x, task.y) < 1e-20


@pytest.mark.parametrize("binary", [False, True])
def test_parallel_has_a_linear_and_a_nonlinear_label(binary):
    task = fl.tasks.parallel(one_hot=False, binary=binary)
    np.testing.assert_array_equal(task.x, CORNERS if binary else 2 * CORNERS - 1)
    np.testing.assert_array_equal(task.y, [[1, 1], [1, 0], [0, 0], [0, 1]])
    assert linear_residual(task.x, task.y[:, 0]) < 1e-20
    np.testing.assert_allclose(linear_residual(task.x, task.y[:, 1]), 1.0)
    hot = fl.tasks.parallel(binary=binary)
    np.testing.assert_array_equal(hot.x, task.x)
    np.testing.assert_array_equal(hot.y[:, ::2], task.y)
    np.testing.assert_array_equal(hot.y[:, 1::2], 1 - task.y)


VALUES = [3.0, 1.0, 0.2]


@pytest.mark.parametrize(("inputs", "outputs"), [(None, None), (5, 3)])
def test_whitened_teacher_has_its_spectrum(inputs, outputs, key):
    task = fl.tasks.teacher(40, VALUES, inputs, outputs, whiten=True, key=key)
    assert task.x.shape == (40, inputs or 3)
    assert task.y.shape == (40, outputs or 3)
    x = np.asarray(task.x)
    np.testing.assert_allclose(x.T @ x / 40, np.eye(task.inputs), atol=1e-13)
    found = spectrum(task, 0.0)
    np.testing.assert_allclose(found, VALUES, atol=1e-13)


def test_teacher_is_a_linear_map_of_chosen_spectrum(key):
    task = fl.tasks.teacher(40, VALUES, 5, 3, key=key)
    x, y = np.asarray(task.x), np.asarray(task.y)
    matrix = np.linalg.lstsq(x, y)[0]
    np.testing.assert_allclose(x @ matrix, y, atol=1e-12)
    values = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(values, VALUES, atol=1e-12)
    # The inputs are standard normal draws, not whitened.
    assert 0.01 < np.max(abs(x.T @ x / 40 - np.eye(5))) < 1


def test_teacher_adds_noise(key):
    plain = fl.tasks.teacher(40, VALUES, 5, 3, key=key)
    noisy = fl.tasks.teacher(40, VALUES, 5, 3, noise=0.3, key=key)
    np.testing.assert_array_equal(noisy.x, plain.x)
    deviation = np.std(np.asarray(noisy.y) - np.asarray(plain.y))
    assert abs(deviation / 0.3 - 1) < 5 / np.sqrt(2 * 120)


def test_teacher_depends_on_the_key(key):
    one, again = (fl.tasks.teacher(40, VALUES, 5, 3, key=key) for _ in range(2))
    np.testing.assert_array_equal(one.x, again.x)
    np.testing.assert_array_equal(one.y, again.y)
    other = fl.tasks.teacher(40, VALUES, 5, 3, key=jax.random.key(1))
    assert not np.any(np.asarray(one.x) == np.asarray(other.x))


KEY = jax.random.key(0)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fl.tasks.hierarchy(levels=0), r"`levels` must be a whole number of 1 .* got 0"),
        (lambda: fl.tasks.hierarchy(3, branching=1), r"`branching` must be .* 2 or more, got 1"),
        (lambda: fl.tasks.hierarchy(2, 2.5), r"`branching` must be a whole number.* got 2\.5"),
        (lambda: fl.tasks.hierarchy("3"), r"`levels` must be a whole number"),
        (lambda: fl.tasks.hierarchy(10**10), r"`levels` = 10000000000 asks for"),
        (lambda: fl.tasks.hierarchy(30), r"`levels` = 30 asks for .* GiB of memory"),
        (lambda: fl.tasks.xor("yes"), r"`binary` must be True or False, got 'yes'"),
        (lambda: fl.tasks.offset_xor(0.5, 1), r"`binary` must be True or False, got 1"),
        (lambda: fl.tasks.offset_xor("far"), r"`delta` must be"),
        (lambda: fl.tasks.parallel(one_hot=None), r"`one_hot` must be True or False"),
        (lambda: fl.tasks.teacher(inputs=0), r"`inputs` must be a whole number of 1"),
        (lambda: fl.tasks.teacher(outputs=-1), r"`outputs` must be a whole number of 1"),
        (lambda: fl.tasks.teacher(noise=-1), r"`noise` must be finite and zero or positive"),
        (lambda: fl.tasks.teacher(10, []), r"`spectrum` must be a list of numbers"),
        (lambda: fl.tasks.teacher(10, "ab"), r"`spectrum` must be an array"),
        (lambda: fl.tasks.teacher(10**12), r"`samples` = 1000000000000 asks for"),
        (lambda: fl.tasks.teacher(10, key=0), r"`key` must be a key"),
        (lambda: fl.tasks.teacher(10, whiten=1), r"`whiten` must be True or False"),
        (lambda: fl.tasks.digits(2.5), r"`samples` must be a whole number"),
        (lambda: fl.tasks.mnist(10, seed=-1), r"`seed` must be a whole number of 0"),
        (lambda: fl.tasks.mnist(10, test="yes"), r"`test` must be True or False"),
        (lambda: fl.tasks.cifar10(10, grayscale=None), r"`grayscale` must be True or False"),
        (lambda: fl.tasks.offset_xor(-0.5), r"`delta` must be finite and zero or positive.*-0.5"),
        (lambda: fl.tasks.offset_xor(np.nan), r"`delta` must be finite"),
        (
            lambda: fl.tasks.teacher(10, [1.0, 1.0], inputs=1, key=KEY),
            r"`spectrum` has 2 values, more than `inputs` = 1 or `outputs` = 2",
        ),
        (lambda: fl.tasks.teacher(0, [1.0], key=KEY), r"`samples` must be a whole number of 1"),
        (lambda: fl.tasks.teacher(10, [1.0, np.nan], key=KEY), r"`spectrum` holds 1 value\(s\)"),
        (
            lambda: fl.tasks.teacher(3, [1.0], inputs=5, whiten=True, key=KEY),
            r"`whiten=True` needs samples >= inputs, got 3 < 5",
        ),
    ],
)
def test_wrong_options(build, message):
    with pytest.raises(ValueError, match=message):
        build()
