"""Pictures: what is drawn is what was given; nothing global changes."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.colors
import numpy as np
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

import flowlin as fl
from tests.zoo import small_walk

pytestmark = pytest.mark.slow  # of a walk
END = 20.0


@pytest.fixture(scope="module")
def task():
    return fl.tasks.hierarchy(levels=2)


@pytest.fixture(scope="module")
def flow(task):
    """A ReLU flow with sliding pairs and mode hits in its log."""
    flow = small_walk(task)
    assert np.any(np.asarray(flow.events.new) == 0)
    return flow


@pytest.fixture(scope="module")
def descent(flow, task):
    return fl.gradient_descent(network_at(flow, 0), task, 1e-2, 400)


@pytest.fixture(autouse=True)
def same_settings():
    """No picture changes matplotlib's settings, or leaves a figure behind."""
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    plt.close("all")


def network_at(flow, k):
    """A saved network."""
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[k]), flow.networks)


def drawn(ax, label) -> Any:
    """Data of the line of this label, (2, N)."""
    (line,) = [line for line in ax.lines if line.get_label() == label]
    return np.asarray(line.get_data())


def shown(ax) -> Any:
    """Values of the first collection, as the cells of a map."""
    return ax.collections[0].get_array()


def points_of(line) -> Any:
    """Data of a line, (2, N)."""
    return np.asarray(line.get_data())


def test_losses(flow, descent):
    _, ax = plt.subplots()
    assert fl.plot.losses({"flow": flow, "descent": descent, "again": flow}, ax) is ax
    for label, run in (("flow", flow), ("descent", descent)):
        assert np.array_equal(drawn(ax, label), np.stack([run.ts, run.losses]))
    looks = {line.get_label(): line for line in ax.lines}
    assert looks["flow"].get_color() == fl.plot.COLOURS["relu"].lower()
    assert looks["descent"].get_linestyle() == "None"
    assert looks["again"].get_color() != looks["flow"].get_color()
    assert looks["again"].get_marker() != looks["flow"].get_marker()
    assert r"units of $\tau$" in ax.get_xlabel()
    with pytest.raises(ValueError, match="`runs` is empty"):
        fl.plot.losses({}, ax)
    alone = fl.plot.losses(flow)
    assert np.array_equal(drawn(alone, type(flow.final).__name__)[1], flow.losses)


@pytest.mark.slow
def test_runs_of_any_model_are_drawn(task):
    model = eqx.nn.MLP(task.inputs, task.outputs, 3, 1, jnp.tanh, key=jax.random.key(0))
    run = fl.gradient_descent(model, task, 0.1, 10, save_every=10)
    modes = fl.theory.modes(task)
    times, strengths = drawn(fl.plot.modes(run, modes, shown=[1]), "mode 1")
    assert np.array_equal(times, [0.0, 1.0])
    outputs = np.asarray(jax.vmap(run.final)(task.x))
    expected = modes.u[:, 1] @ outputs.T @ task.x @ modes.v[:, 1] / 4 / modes.d[1]
    assert np.isclose(strengths[1], expected, rtol=1e-10)
    assert np.array_equal(drawn(fl.plot.losses({"MLP": run}), "MLP")[1], run.losses)
    for draw in (fl.plot.activity, fl.plot.side_history, lambda run: fl.plot.sides(run, 0.5)):
        with pytest.raises(ValueError, match=r"MLP|gates"):
            draw(run)


def test_losses_of_several_runs_are_their_mean_with_one_standard_error(flow):
    other = dataclasses.replace(flow, losses=flow.losses + 0.5)
    ax = fl.plot.losses({"both": [flow, other]})
    assert np.allclose(drawn(ax, "both")[1], np.asarray(flow.losses) + 0.25)
    (band,) = ax.collections
    edges = np.asarray(band.get_paths()[0].vertices)
    assert np.isclose(edges[:, 1].max() - flow.losses[0], 0.5)  # mean 0.25, standard error 0.25
    with pytest.raises(ValueError, match="different saved times"):
        fl.plot.losses({"x": [flow, flow.with_rows(lambda a: a[:5])]}, ax)
    slow = dataclasses.replace(flow, tau=jnp.asarray(2.0))
    with pytest.raises(ValueError, match="the runs of 'x' have different `tau`"):
        fl.plot.losses({"x": [flow, slow]}, ax)
    fl.plot.losses({"x": [flow, flow], "y": [slow, slow]}, ax)


def test_modes(flow, task):
    modes = fl.theory.modes(task, 1.0)
    rho = 0.5 * modes.full_strength
    closed = np.arange(31 * len(modes.s)).reshape(31, -1)
    ax = fl.plot.modes(flow, modes, rho=rho, closed=closed, shown=[0, 1])
    strengths = [modes.strengths(network_at(flow, k), task) for k in (3, 30)]
    for k in (0, 1):
        times, values = drawn(ax, f"mode {k}")
        assert np.array_equal(times, flow.ts)
        assert np.allclose(values[[3, 30]], [s[k] for s in strengths], atol=1e-12)
    assert np.array_equal(drawn(ax, "closed form")[1], closed[:, 0])
    log = flow.events.select("mode")
    marks = [line for line in ax.lines if line.get_linestyle() == "None"]
    for k, mark in enumerate(marks):
        hits = [
            t for t, index in zip(np.asarray(log.time), log.index, strict=True) if index == (k,)
        ]
        assert hits
        assert np.array_equal(mark.get_xdata(), hits)
        assert np.allclose(mark.get_ydata(), rho[k])
    shares = fl.plot.modes(flow, modes, shown=[1], share=True)
    assert np.allclose(drawn(shares, "mode 1")[1], drawn(ax, "mode 1")[1] / modes.full_strength[1])
    with pytest.raises(ValueError, match="`closed` must have shape"):
        fl.plot.modes(flow, modes, closed=closed[:5])
    for shown in ([], [0, 7], [-1]):
        with pytest.raises(
            ValueError,
            match=r"`shown` must be some of the modes 0 \.\.\. 4, got|`shown\[0\]` must be",
        ):
            fl.plot.modes(flow, modes, shown=shown)


@pytest.mark.filterwarnings("ignore:the .* always-on fraction")
@pytest.mark.parametrize("convention", ["open", "closed"])
def test_activity_steps_at_event_times_and_marks_t_star(flow, convention):
    closed = convention == "closed"
    found = flow.linearization()
    ax = fl.plot.activity(flow, conventions=(convention,))
    for part in ("always on", "gating", "off"):
        times, values = drawn(ax, part)
        (line,) = [line for line in ax.lines if line.get_label() == part]
        assert line.get_drawstyle() == "steps-post"
        assert times[0] == 0
        assert times[-1] == END
        assert np.all(np.isin(times[1:-1], flow.events.time))
        fine = np.linspace(0, END, 997)
        exact = getattr(found.activity(fine, closed), part.replace(" ", "_"))
        at = np.searchsorted(times, fine, side="right") - 1
        assert np.allclose(values[at], exact)
    t_star = getattr(found, convention)
    x, y = drawn(ax, f"$t^*$ = {float(t_star.time):.4g}")
    assert np.array_equal(x, [t_star.time, t_star.time])
    assert np.array_equal(y, [0.0, t_star.fraction])


def test_activity_where_no_unit_is_ever_on_for_all(flow, task):
    """Of opposite inputs, and without a bias, none is."""
    opposite = fl.Task(np.concatenate([task.x[:2], -task.x[:2]]), task.y)
    network = network_at(flow, 0)
    network = fl.ReLUNetwork(network.weights, network.biases, 0.0)
    run = fl.gradient_descent(network, opposite, 1e-2, 400)
    ax = fl.plot.activity(run, parts=("always_on",), conventions=("open",))
    assert ax.get_ylim() == (0.0, 1.0)


def test_activity_of_descent_and_wrong_arguments(flow, descent):
    ax = fl.plot.activity(descent, conventions=("open",), parts=("always_on",), label="run")
    legend = ax.get_legend()
    assert legend is not None
    (entry,) = [t.get_text() for t in legend.get_texts()]
    assert entry == f"run: $t^*$ = {float(descent.linearization().open.time):.4g}"
    with pytest.raises(ValueError, match="`parts` must be some of"):
        fl.plot.activity(flow, parts=("dead",))


def test_kinks():
    ts, positions = np.linspace(0, 1, 5), np.arange(15.0).reshape(5, 3)
    ax = fl.plot.kinks(ts, positions)
    assert np.array_equal([points_of(line)[1] for line in ax.lines[:3]], positions.T)
    assert isinstance(ax, Axes)
    assert fl.plot.kinks(ts, positions, lw=2.0).lines[0].get_linewidth() == 2.0
    with pytest.raises(ValueError, match=r"`positions` must have shape \(5, H\), got \(3, 5\)"):
        fl.plot.kinks(ts, positions.T)


def modes_of_pairs(flow, task, t, tolerance=1e-7):
    """On, off or sliding, from the preactivations of a stored network: independent of the log."""
    k = int(np.argmin(np.abs(np.asarray(flow.ts) - t)))
    network = network_at(flow, k)
    w, b = np.asarray(network.weights[0]), np.asarray(network.biases[0])
    z = np.asarray(task.x) @ w.T + float(network.bias_strength) * b
    return np.where(np.abs(z) < tolerance, 0, np.sign(z)), float(flow.ts[k])


def test_gates_at_a_time_and_over_time(flow, task):
    history = fl.plot.side_history(flow, units=[4, 1])
    mesh: Any = history.collections[0]
    edges, states = mesh.get_coordinates()[0, :, 0], np.asarray(shown(history))
    assert edges[0] == 0
    assert edges[-1] == END
    assert np.all(np.isin(edges[1:-1], flow.events.time))
    assert [text.get_text() for text in history.get_yticklabels()] == ["4", "1"]
    seen = set()
    for t in np.asarray(flow.ts)[1::3]:
        expected, t = modes_of_pairs(flow, task, t)  # (P, H)
        raster = shown(fl.plot.sides(flow, t))
        assert np.array_equal(raster, expected)
        column = np.searchsorted(edges, t, side="right") - 1
        rows = np.concatenate([expected[:, 4], expected[:, 1]])
        assert np.array_equal(states[:, min(column, states.shape[1] - 1)], rows)
        seen |= set(expected.ravel().tolist())
    assert seen == {-1, 0, 1}
    with pytest.raises(ValueError, match="outside the run"):
        fl.plot.sides(flow, END + 1)
    with pytest.raises(ValueError, match="`layer` = 1: the run logged no gates"):
        fl.plot.sides(flow, 1.0, layer=1)
    with pytest.raises(ValueError, match="`units` must be some of"):
        fl.plot.side_history(flow, units=[6])


def test_representations():
    points = np.random.default_rng(0).normal(size=(7, 3, 2))
    ax = fl.plot.representations(points, labels=["a", "b", "c"])
    for k, label in enumerate("abc"):
        path, start, end = ax.lines[3 * k : 3 * k + 3]
        assert np.array_equal(points_of(path).T, points[:, k])
        assert np.array_equal(points_of(start), points[0, k][:, None])
        assert np.array_equal(points_of(end), points[-1, k][:, None])
        assert end.get_label() == label
    with pytest.raises(ValueError, match="`labels` must have 3 entries"):
        fl.plot.representations(points, labels=["a"])


def test_cube():
    grid = np.linspace(-1, 1, 5)
    x, y, z = np.meshgrid(grid, grid, grid, indexing="ij")
    values = x + 10 * y + 100 * z
    mean = shown(fl.plot.cube(values, grid, axis=0))
    assert np.allclose(mean, (10 * y + 100 * z)[0].T)
    cut = fl.plot.cube(values, grid, axis=1, at=4)
    assert np.allclose(shown(cut), values[:, 4].T)
    assert (cut.get_xlabel(), cut.get_ylabel()) == ("input $x_1$", "input $x_3$")
    points = fl.plot.cube(values, grid)
    assert points.name == "3d"
    assert np.allclose(np.sort(shown(points)), np.sort(values.ravel()))
    for wrong in ({"axis": 3}, {"at": 1}, {"axis": 0, "at": 5}, {"ax": plt.figure().gca()}):
        with pytest.raises(ValueError, match=r"`a(xis|t|x)`"):
            fl.plot.cube(values, grid, **wrong)  # pyright: ignore


def test_sweeps_leave_out_failed_runs():
    values = np.array([[1.0, 2.0, 3.0], [3.0, np.nan, 5.0]])
    ax = fl.plot.sweep_map([0, 1, 10], [1e-4, 1e-2], values, names=("c", "variance", "t*"))
    assert np.array_equal(shown(ax).mask, np.isnan(values))
    assert np.array_equal(shown(ax).compressed(), values[~np.isnan(values)])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "10"]
    line = fl.plot.sweep_line([0, 1, 10], values, names=("c", "t*"), label="mean", ms=7.0)
    assert line.lines[0].get_markersize() == 7.0
    assert np.array_equal(drawn(line, "mean"), [[0, 1, 10], [2, 2, 4]])
    with pytest.raises(ValueError, match="`values`"):
        fl.plot.sweep_map([0, 1], [1e-4, 1e-2], values, names=("c", "variance", "t*"))


def test_a_phase_diagram_has_its_boundary_with_intervals():
    x, y, rng = np.geomspace(0.1, 10, 21), [1e-4, 1e-2, 1.0], np.random.default_rng(1)
    places = np.array([5.3, 12.5, 99.0])  # in cells; the last one is never reached
    exact = np.tanh(np.arange(21) - places[:, None]) * np.array([1, -1, 1])[:, None]
    names = ("c", "variance", "fraction")
    ax = fl.plot.sweep_map(x, y, exact, names=names, level=0.0)
    found = drawn(ax, "boundary")
    assert np.allclose(found[0][:2], places[:2], atol=0.05)
    assert np.isnan(found[0][2])
    noisy = exact[..., None] + 0.3 * rng.normal(size=(3, 21, 25))
    noisy[0, 20, 3] = noisy[1, 0, :] = np.nan
    ax = fl.plot.sweep_map(x, y, noisy, names=names, level=0.0)
    cells = shown(ax)
    assert cells.mask[1, 0]
    assert cells.mask.sum() == 1
    assert np.isclose(cells[0, 20], np.nanmean(noisy[0, 20]))
    _, *bars = ax.lines
    assert len(bars) == 2
    found = drawn(ax, "boundary")[0][:2]
    assert np.allclose(found, places[:2], atol=0.15)
    for place, bar in zip(found, bars, strict=True):
        low, high = points_of(bar)[0]
        assert low < place < high
        assert 0.05 < high - low < 1.0
    with pytest.raises(ValueError, match="`values` must have shape"):
        fl.plot.sweep_map(x[:2], y, noisy, names=names)
    with pytest.raises(ValueError, match="`values` must be"):
        fl.plot.sweep_map([1, 2], [1, 2], [[1, 2], [3]], names=names)
    with pytest.raises(ValueError, match="`level` must be finite, got nan"):
        fl.plot.sweep_map(x, y, noisy, names=names, level=np.nan)


def test_work_precision_tells_contenders_apart_without_colour():
    contenders = {f"method {k}": ([10, 100], [1e-1, 10.0**-k]) for k in range(8)}
    ax = fl.plot.work_precision(contenders, looks={"method 0": {"lw": 3.0, "c": "red"}})
    for name, (work, error) in contenders.items():
        assert np.array_equal(drawn(ax, name), [work, error])
    assert (ax.get_xscale(), ax.get_yscale(), ax.lines[0].get_linewidth()) == ("log", "log", 3.0)
    assert len({(line.get_linestyle(), line.get_marker()) for line in ax.lines}) == 8


def test_looks():
    for n in range(3):
        styles = [fl.plot.look(kind, n) for kind in fl.plot.COLOURS]
        assert len({s["color"] for s in styles}) == len(styles)
    for kind in fl.plot.COLOURS:
        many = [fl.plot.look(kind, n) for n in range(8)]
        assert len({(s["color"], s.get("marker"), s.get("markerfacecolor")) for s in many}) == 8
        away = [1 - np.array(matplotlib.colors.to_rgb(s["color"])) for s in many]  # from white
        assert np.min(np.max(away, axis=1)) > 0.25
    flows = [fl.plot.look(kind) for kind in ("relu", "linear", "gated", "theory")]
    assert len({str(s["linestyle"]) for s in flows}) == 4
    grey = [np.dot(matplotlib.colors.to_rgb(c), (0.299, 0.587, 0.114))
            for c in fl.plot.shades("relu", 5)]  # fmt: skip
    assert np.all(np.diff(grey) > 0.05)
    with fl.plot.style():
        assert matplotlib.rcParams["legend.handlelength"] == 2.8
    with pytest.raises(ValueError, match="`kind` = 'reul' is unknown"):
        fl.plot.look("reul")


def test_films(tmp_path, monkeypatch):
    frames = []

    def draw(figure, k):
        frames.append(k)
        figure.subplots().plot([0, 1], [0, k])
        assert len(figure.axes) == 1  # nothing is left of the frame before

    path = fl.plot.animate(draw, 3, tmp_path / "film.gif", size=(1.0, 1.0), dpi=40, fps=10.0)
    image = pytest.importorskip("PIL.Image").open(path)
    assert (frames, image.n_frames, image.size) == ([0, 1, 2], 3, (40, 40))
    assert image.info["duration"] == 100
    image.close()
    with pytest.raises(ValueError, match=r"must end in \.gif or \.mp4"):
        fl.plot.animate(draw, 3, tmp_path / "film.avi")
    monkeypatch.setitem(matplotlib.rcParams, "animation.ffmpeg_path", "/nowhere")
    with pytest.raises(RuntimeError, match="needs ffmpeg"):
        fl.plot.animate(draw, 3, tmp_path / "film.mp4")
    monkeypatch.undo()
