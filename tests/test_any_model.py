"""Any Equinox module flows, descends, is swept over and saved; frozen arrays; tau per layer."""

import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

import flowlin as fl
from tests.tolerances import EPS, ROUNDING

XOR = fl.tasks.xor()
TS = (0.0, 1.0, 4.0)
OUTPUT, LEVEL = 0.3, 0.4


def mlp(seed=0, activation=jnp.tanh, task=XOR, width=6, **options):
    key = jax.random.key(seed)
    sizes = task.inputs, task.outputs, width, 1
    return eqx.nn.MLP(*sizes, activation, dtype=jnp.float64, key=key, **options)


def loss_of(model):
    return fl.SquaredError()(jax.vmap(model)(XOR.x), XOR.y)


def outputs_at_first(network, task):
    return network(task.x[0])


WATCHED = {
    "ts": TS,
    "events": (fl.Crossing(outputs_at_first, OUTPUT), fl.LossBelow(LEVEL)),
    "rtol": 1e-10,
    "atol": 1e-12,
}


@pytest.fixture(scope="module")
def flow():
    return fl.gradient_flow(mlp(), XOR, 4.0, **WATCHED)


def same(a, b):
    return bool(eqx.tree_equal(eqx.filter(a, eqx.is_array), eqx.filter(b, eqx.is_array)))


def arrays_of(model):
    return [np.asarray(a) for a in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))]


def flat(model):
    return ravel_pytree(eqx.filter(model, eqx.is_inexact_array))


def close(a, b, tolerance):
    for one, other in zip(arrays_of(a), arrays_of(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def reference():
    """The same flow by SciPy, at any time."""
    y0, build = flat(mlp())
    rest = eqx.filter(mlp(), eqx.is_inexact_array, inverse=True)
    slope = jax.jit(jax.grad(lambda y: loss_of(eqx.combine(build(y), rest))))
    found = solve_ivp(
        lambda _, y: -np.asarray(slope(y)), (0, 4), np.asarray(y0), "DOP853",
        dense_output=True, rtol=1e-12, atol=1e-13,
    )  # fmt: skip
    return lambda t: eqx.combine(build(jnp.asarray(found.sol(float(t)))), rest)


def test_flow_is_what_scipy_finds(flow, reference):
    for k, t in enumerate(TS):
        one = jax.tree.map(lambda a, k=k: np.asarray(a)[k] if eqx.is_array(a) else a, flow.networks)
        assert isinstance(one, eqx.nn.MLP)
        close(one, reference(t), 1e-8)
    assert isinstance(flow.final, eqx.nn.MLP)
    assert flow.final.activation is jnp.tanh
    assert np.isclose(flow.losses[-1], loss_of(flow.final), rtol=1e-12)
    assert flow.stats["kinks"] == "none"
    assert "smooth operations alone" in flow.stats["kinks_because"]


def test_events_are_of_the_users_own_function(flow, reference):
    assert {"crossing", "loss"} == set(flow.events.name)
    for time, name, index in zip(
        flow.events.time, flow.events.name, flow.events.index, strict=True
    ):
        there = reference(time)
        if name == "loss":
            assert np.isclose(loss_of(there), LEVEL, atol=1e-8)
        else:
            assert np.isclose(outputs_at_first(there, XOR)[index], OUTPUT, atol=1e-8)


class Chain(eqx.Module):
    """Two layers, whose weights may be shared."""

    weights: list

    def __call__(self, x):
        return self.weights[1] @ jnp.tanh(self.weights[0] @ x)


def test_one_array_at_two_places_is_refused_since_it_would_part():
    w = jnp.eye(2)
    with pytest.raises(
        ValueError, match=r"`network.weights\[1\]` and `network.weights\[0\]` are one"
    ):
        fl.gradient_descent(Chain([w, w]), XOR, 0.1, 1)
    run = fl.gradient_descent(Chain([w, jnp.copy(w)]), XOR, 0.1, 1)
    assert fl.distance(*run.final.weights) > 0


def only(model, *leaves):
    """A filter spec that trains some leaves."""
    nothing = jax.tree.map(lambda _: False, model)
    return eqx.tree_at(lambda m: [leaf(m) for leaf in leaves], nothing, [True] * len(leaves))


def test_descent_is_a_loop_of_optax_and_leaves_alone_what_is_not_trainable():
    start, optimiser = mlp(), optax.adamw(0.01, weight_decay=0.1)
    trainable = only(start, lambda m: m.layers[0].weight, lambda m: m.layers[1].bias)
    descent = fl.gradient_descent(
        start, XOR, 0.01, 60, optimiser=optimiser, trainable=trainable,
        observe={"loss": lambda n, _: loss_of(n)},
    )  # fmt: skip
    moving, rest = eqx.partition(start, trainable)
    state = optimiser.init(moving)

    @eqx.filter_jit
    def step(moving, state):
        slope = jax.grad(lambda w: loss_of(eqx.combine(w, rest)))(moving)
        with jax.numpy_dtype_promotion("standard"):  # which optax needs
            updates, state = optimiser.update(slope, state, moving)
        return eqx.apply_updates(moving, updates), state

    for _ in range(60):
        moving, state = step(moving, state)
    close(descent.final, eqx.combine(moving, rest), ROUNDING)
    np.testing.assert_allclose(descent.observed["loss"], descent.losses, rtol=ROUNDING)
    for part in (lambda m: m.layers[1].weight, lambda m: m.layers[0].bias):
        assert same(part(descent.final), part(start))


def test_nan_in_an_array_is_told_before_a_run():
    """Runs ended with a step size that shrank, or the advice to lower `learning_rate`."""
    module, own = mlp(), fl.LinearNetwork.init(XOR, 3, key=jax.random.key(0))
    odd = eqx.tree_at(lambda m: m.layers[1].bias, module, replace_fn=lambda b: b * jnp.nan)
    own = eqx.tree_at(lambda n: n.weights[0], own, own.weights[0].at[0, 1].set(jnp.nan))
    for network, said in (
        (odd, r"network\.layers\[1\]\.bias` holds 2 NaN among 2"),
        (own, r"network\.weights\[0\]` holds 1 NaN among 6"),
    ):
        with pytest.raises(ValueError, match=said):
            fl.gradient_flow(network, XOR, 1.0)
        with pytest.raises(ValueError, match=said):
            fl.gradient_descent(network, XOR, 0.1, 3)
        with pytest.raises(ValueError, match=said.replace("network", r"networks\[1\]")):
            fl.sweep([mlp(), network], XOR, 1.0)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(("activation", "slope"), [(jax.nn.relu, 0.0), (jax.nn.leaky_relu, 0.01)])
def test_an_mlp_of_relus_becomes_a_relu_network(activation, slope, scan):
    options = {"depth": 3, "use_final_bias": False, "scan": scan, "key": jax.random.key(0)}
    model = eqx.nn.MLP(2, 2, 4, activation=activation, **options)
    own = fl.ReLUNetwork.of(model)
    assert own.hidden == (4, 4, 4)
    assert own.slope == pytest.approx(slope)
    assert not np.signbit(own.slope)
    assert [b is None for b in own.biases] == [False, False, False, True]
    x = jax.random.normal(jax.random.key(1), (5, 2))
    np.testing.assert_allclose(own.outputs(x), jax.vmap(model)(x), rtol=ROUNDING)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation": eqx.nn.PReLU()}, "is trained; pass `mlp` itself"),
        ({"activation": jnp.tanh}, "`mlp.activation` = <.*tanh.* is no ReLU"),
        ({"activation": jax.nn.relu6}, "is no ReLU"),
        ({"activation": jax.nn.gelu}, "is no ReLU"),
        ({"activation": jnp.abs}, "is no ReLU"),
        ({"final_activation": jax.nn.relu}, "`mlp.final_activation` = .* is not the identity"),
        ({"depth": 0}, "`mlp` has no hidden layer"),
        ({"out_size": "scalar"}, "`mlp` takes or returns a scalar"),
    ],
)
def test_other_mlps_do_not(options, said):
    options = {"in_size": 2, "out_size": 2, "width_size": 3, "depth": 1} | options
    with pytest.raises(ValueError, match=said):
        fl.ReLUNetwork.of(eqx.nn.MLP(**options, key=jax.random.key(0)))


def test_what_only_looks_at_outputs_takes_any_model(flow):
    model = flow.final
    assert np.isclose(fl.measures.loss(model, XOR), loss_of(model), rtol=1e-12)
    along = fl.measures.along(flow, lambda n, t: loss_of(n))
    np.testing.assert_allclose(along, flow.losses, rtol=1e-12)
    np.testing.assert_allclose(flow.along(fl.measures.loss), flow.losses, rtol=1e-12)
    corners = np.array([-1.0, 1.0])
    doors: Any = ({"axes": (corners, corners)}, {"task": XOR, "axes": corners})
    for options in doors:
        grid = fl.measures.on_grid(model, **options)
        assert grid.shape == (2, 2, 2)
        np.testing.assert_allclose(grid[0, 1], model(np.array([-1.0, 1.0])), rtol=1e-12)
    with pytest.raises(ValueError, match="`axes` must be a tuple, one array per input, or `task`"):
        fl.measures.on_grid(model)
    with pytest.raises(ValueError, match="fails on one sample of the grid, of shape"):
        fl.measures.on_grid(model, axes=(corners,) * 3)


@pytest.mark.slow
def test_modes_take_any_model(flow):
    model, modes = flow.final, fl.theory.modes(XOR)
    outputs = jax.vmap(model)(XOR.x)
    wanted = np.einsum("ok,po,pi,ik->k", modes.u, outputs, XOR.x, modes.v) / 4 / modes.d
    seen = np.asarray(modes.d) > 0
    np.testing.assert_allclose(modes.strengths(model, XOR)[seen], wanted[seen], rtol=1e-9)
    matrix = fl.measures.mode_matrix(model, XOR, modes)
    np.testing.assert_allclose(jnp.diagonal(matrix), modes.strengths(model, XOR), atol=1e-15)
    # A linear module's shares are those of flowlin's own network.
    linear = eqx.nn.Linear(2, 2, use_bias=False, dtype=jnp.float64, key=jax.random.key(0))
    shares = [
        fl.measures.mode_shares(one, XOR, modes)
        for one in (linear, fl.LinearNetwork([linear.weight]))
    ]
    np.testing.assert_allclose(*shares, rtol=1e-12, atol=1e-15)
    along = flow.along(modes)
    np.testing.assert_allclose(along[-1][seen], wanted[seen], rtol=1e-9)
    np.testing.assert_array_equal(fl.measures.along(flow.networks, modes, XOR), along)
    with pytest.raises(ValueError, match=r"`task` must be an fl\.Task, got None"):
        fl.measures.along(flow.networks, modes)


class Residual(eqx.Module):
    """A biased ReLU layer that adds to its input, and a readout."""

    inner: eqx.nn.Linear
    readout: eqx.nn.Linear

    def __call__(self, x):
        return self.readout(x + jax.nn.relu(self.inner(x)))


@pytest.mark.slow
def test_effective_maps_are_tangents():
    """By hand with gates where the module is piecewise linear, by derivatives where smooth."""
    x, make = np.random.default_rng(3).normal(size=(5, 4)), eqx.nn.Linear
    keys = jax.random.split(jax.random.key(1))
    inner, readout = make(4, 4, key=keys[0]), make(4, 3, key=keys[1])
    model = jax.tree.map(lambda a: a.astype(jnp.float64), Residual(inner, readout))
    (w, b), (v, a) = ((np.asarray(z.weight), np.asarray(z.bias))
                      for z in (model.inner, model.readout))  # fmt: skip
    # GELU without biases: exact at the sample, and with an offset.
    smooth = mlp(activation=jax.nn.gelu, use_bias=False, use_final_bias=False)

    @eqx.filter_jit
    def every(model, smooth):
        found = [fl.measures.effective_map(one, z) for one, z in ((model, x), (smooth, XOR))]
        return found, jax.vmap(smooth)(XOR.x), jax.vmap(jax.jacfwd(smooth))(XOR.x)

    ((matrix, offset), (tangent, rest)), values, slopes = every(model, smooth)
    for sample, m, c in zip(x, matrix, offset, strict=True):
        gates = np.diag((w @ sample + b > 0).astype(float))
        np.testing.assert_allclose(m, v @ (np.eye(4) + gates @ w), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(c, v @ gates @ b + a, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(tangent, slopes, atol=1e-15)
    seen = np.einsum("poi,pi->po", tangent, XOR.x) + rest
    np.testing.assert_allclose(seen, values, atol=4 * EPS * float(jnp.abs(values).max()))
    assert float(jnp.abs(rest).max()) > 0.01
    with pytest.raises(ValueError, match=r"`layer` must be None .* got 0; pass the module"):
        fl.measures.effective_map(smooth, XOR, layer=0)
    with pytest.raises(ValueError, match=r"fails on one sample of `task`, of shape \(4,\)"):
        fl.measures.effective_map(smooth, x)
    with pytest.raises(ValueError, match=r"`task` must have shape \(P, N_in\), one row"):
        fl.measures.effective_map(smooth, x[0])


@pytest.mark.slow
def test_compare_and_sweep(flow):
    descent = fl.stochastic_gradient_descent(
        mlp(), XOR, 0.01, 400, batch_size=4, key=jax.random.key(1), save_every=100
    )
    dense = fl.gradient_flow(mlp(), XOR, 4.0, rtol=1e-8, dense=True)
    found = fl.compare(dense, descent)
    assert found.parameters[0] == 0.0
    assert 1e-6 < found.parameters[-1] < 0.02
    assert isinstance(dense.network(0.5), eqx.nn.MLP)
    runs = fl.sweep([mlp(0), mlp(1)], XOR, 4.0, **WATCHED)
    assert same(runs[0].final, flow.final)
    assert not same(runs[1].final, flow.final)


@pytest.mark.slow
def test_files_keep_the_arrays_and_like_the_rest(flow, tmp_path):
    flow.save(tmp_path / "run.npz")
    back = fl.load(tmp_path / "run.npz", like=mlp(seed=7))
    assert same(back.final, flow.final)
    assert same(back.networks, flow.networks)
    assert back.final.activation is jnp.tanh
    np.testing.assert_array_equal(back.events.time, flow.events.time)
    for like, words in (
        (None, "`path` = .* holds a run of an MLP.* pass `like`"),
        (mlp(width=5), r"`like.layers\[0\].weight` is float64\[5, 2\].* float64\[6, 2\]"),
        (eqx.nn.Linear(2, 1, key=jax.random.key(0), dtype=jnp.float64), "has 2 arrays .* has 4"),
        (fl.LinearNetwork.init(XOR, 2, key=jax.random.key(0)), "`like` is .* and the file holds"),
        (mlp(activation=jax.nn.relu), "`like.activation` is relu, and the file has tanh there"),
        (Renamed(mlp()), "`like` is Renamed, and the file has MLP there; give a model of the kind"),
        (mlp(use_final_bias=False), "`like` has 3 arrays where the file has 4"),
    ):
        with pytest.raises(ValueError, match=words):
            fl.load(tmp_path / "run.npz", like=like)


class Renamed(eqx.Module):
    """An MLP of another class: its arrays are the same ones, in the same order."""

    layers: tuple

    def __init__(self, model):
        self.layers = model.layers

    def __call__(self, x):
        return self.layers[0](x)


def test_files_of_0_2_0_name_the_class_alone(flow, tmp_path):
    flow.save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as archive:
        arrays = dict(archive)
    written = arrays.pop("header").tobytes().decode()

    def old(node):
        if node.get("object") == "ForeignModel":
            node["fields"]["rest"] = {"value": "MLP"}
        return node

    header = json.dumps(json.loads(written, object_hook=old)).encode()
    assert header != written.encode()
    np.savez(tmp_path / "old.npz", header=np.frombuffer(header, np.uint8), **arrays)
    assert same(fl.load(tmp_path / "old.npz", like=mlp()).final, flow.final)
    with pytest.raises(ValueError, match="`like` is Renamed, and the file has MLP"):
        fl.load(tmp_path / "old.npz", like=Renamed(mlp()))


@pytest.mark.slow
def test_a_checkpoint_is_of_one_network(tmp_path):
    file = tmp_path / "state.npz"
    fl.gradient_descent(mlp(), XOR, 0.01, 8, checkpoint=file)
    other = mlp(activation=jax.nn.softplus)
    with pytest.raises(ValueError, match="another network"):
        fl.gradient_descent(other, XOR, 0.01, 8, checkpoint=file)


@pytest.mark.slow
def test_a_checkpoint_tells_functions_of_one_name_apart(tmp_path):
    """By the loss and the gradient at t = 0, which another machine may round otherwise."""

    def run(power: Any = 1, weight=1.0, rounding=0.0, file="flow.npz"):
        found = mlp(activation=lambda z: z**power)
        found = eqx.tree_at(lambda m: m.layers[1].weight, found, replace_fn=jnp.zeros_like)
        share = 1 + rounding
        options: Any = {"loss": lambda a, b: share * (jnp.mean((a - b) ** 2) + weight)}
        options["checkpoint"] = tmp_path / file
        if file == "flow.npz":
            return fl.gradient_flow(found, XOR, 1.0, **options)
        return fl.gradient_descent(found, XOR, 0.1, 9, **options)

    for file in ("flow.npz", "descent.npz"):
        first = run(file=file)
        assert same(run(file=file).final, first.final)
        assert same(run(rounding=1e-9, file=file).final, first.final)
        for other in ({"power": 2}, {"weight": 2.0}, {"rounding": 1e-3}):  # as if of another run
            with pytest.raises(ValueError, match="another loss or gradient at t = 0: `network`"):
                run(**other, file=file)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tree", "function"])
def test_what_is_not_trainable_stays_to_the_bit(spec, tmp_path):
    start = mlp()
    first = only(start, lambda m: m.layers[0].weight)
    trainable = first if spec == "tree" else lambda leaf: np.shape(leaf) == (6, 2)
    run = fl.gradient_flow(start, XOR, 1.0, trainable=trainable)
    assert not same(run.final.layers[0].weight, start.layers[0].weight)
    for part in (lambda m: m.layers[1], lambda m: m.layers[0].bias):
        assert same(part(run.final), part(start))
    run.save(tmp_path / "run.npz")
    assert same(fl.load(tmp_path / "run.npz", like=start).networks, run.networks)


class Listed(eqx.Module):
    """What the tutorials of Equinox do, layers in a list; and an array of NumPy."""

    layers: list
    order: np.ndarray
    sizes: object = eqx.field(static=True, default=())

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x[self.order]


def listed(sizes=()):
    layers = mlp().layers
    return Listed([layers[0], jnp.tanh, layers[1]], np.arange(2), sizes)


@pytest.mark.slow
def test_fields_may_be_lists():
    run, other = (fl.gradient_descent(one, XOR, 0.01, 8) for one in (listed((6, 2)), mlp()))
    np.testing.assert_allclose(run.losses, other.losses, rtol=ROUNDING)
    assert isinstance(run.final.layers, list)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_static_fields_need_a_hash():
    for held in ([6, 2], np.ones(2), {"a": 1}):
        with pytest.raises(ValueError, match=r"`network.sizes` must be .* make it a tuple"):
            fl.gradient_flow(listed((held,)), XOR, 4.0)


def test_distances_are_of_networks(flow):
    assert fl.distance(flow.final, flow.final) == 0
    for a, b in ((flow, flow), (flow.final, flow)):
        with pytest.raises(ValueError, match=r"must be a network, .* got a Traj.*; pass `flow"):
            fl.distance(a, b)
    with pytest.raises(ValueError, match="other fields around arrays of the same shapes"):
        fl.distance(XOR, fl.Task(XOR.x, XOR.y, name="other"))


def test_networks_can_be_recorded_among_observables():
    """As the messages say."""

    def run(observe):
        return fl.gradient_descent(mlp(), XOR, 0.01, 8, observe={"n": observe}, save_every=4)

    with pytest.raises(ValueError, match=r"return eqx.filter\(module, eqx.is_array\)"):
        run(lambda network, task: network)
    descent = run(lambda network, task: eqx.filter(network, eqx.is_array))
    with pytest.raises(ValueError, match=r"lambda network, task: eqx.filter\(network, eqx.is_arr"):
        _ = descent.networks
    whole = eqx.combine(descent.observed["n"], descent.final)
    assert isinstance(whole, eqx.nn.MLP)
    for rows, first, last in zip(*map(arrays_of, (whole, mlp(), descent.final)), strict=True):
        np.testing.assert_array_equal(rows[0], first)
        np.testing.assert_array_equal(rows[-1], last)


def test_what_needs_hidden_units_says_so(flow):
    model = flow.final
    with pytest.raises(ValueError, match="`network` must be one of flowlin whose hidden units"):
        fl.measures.hidden(model, XOR)
    for refused in (lambda: fl.theory.solve(model, XOR), lambda: fl.measures.conserved(model)):
        with pytest.raises(ValueError, match="`network` must be a flowlin network, whose hidden"):
            refused()
    with pytest.raises(ValueError, match="gates that switch; of an MLP there are none"):
        flow.linearization()
    with pytest.raises(ValueError, match="`flow` must be of a ReLUNetwork, got an MLP; of others"):
        fl.rectified(flow, XOR)
