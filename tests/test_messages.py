"""What is said of a wrong argument: its name, what came, and what to do.

A row for each validator and for each message, not for each argument: the second tier's
`tests/fuzz` gives wrong values to every argument of every public function. A row is a call, `>`,
and how its error begins; what stands behind ` ... ` is found further on. The calls are made without
the type checks of the tests, which would speak first, and before anything is traced. Messages about
what is in a file, in an image or in a solver's hands are with the tests of these.
"""

import fractions
import functools
import inspect
import os
from types import SimpleNamespace
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.sparse

import flowlin as fl
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.usefixtures("without_type_checks")

NETWORKS = """
fl.LinearNetwork(None) > `weights` must be a list, one matrix (N_out, N_in) per layer, got None
fl.LinearNetwork([[[1.0, 2.0], [3.0]]]) > `weights[0]` must be an array of numbers, got a list
fl.LinearNetwork([[['a']]]) > `weights[0]` must be an array of real numbers, got a list
fl.LinearNetwork([W.astype('float16')]) > `weights[0]` must be of float32 or float64, got
fl.LinearNetwork([W * nan]) > `weights[0]` holds 4 value(s) that are NaN or infinite; remove
fl.LinearNetwork([]) > `weights` is empty; give at least one matrix (N_out, N_in)
fl.LinearNetwork([W[0]]) > `weights[0]` must be a matrix (N_out, N_in), got (2,)
fl.LinearNetwork([w2, w1]) > `weights[1]` takes 4 inputs and `weights[0]` gives 7 outputs
fl.LinearNetwork([W], inf) > `biases` must be a list
fl.LinearNetwork([W, W], [None]) > `biases` has 1 entries for 2 layers; use None for a layer
fl.LinearNetwork([W], [np.ones(3)]) > `biases[0]` must have shape (2,), got (3,)
fl.LinearNetwork([W], bias_strength=1j) > `bias_strength` must be a number, finite, got 1j
fl.LinearNetwork([W], bias_strength=nan) > `bias_strength` must be finite, got nan
fl.LinearNetwork([W], bias_strength=[1.0]) > `bias_strength` must be a single number, got a list
fl.LinearNetwork([W], bias_strength=W) > `bias_strength` must be a single number, got shape (2, 2)
fl.LinearNetwork([W], bias=None) > LinearNetwork() has no argument `bias`; did you mean `biases`
fl.ReLUNetwork([W], slope='a') > `slope` must lie in [0, 1), got 'a'
fl.ReLUNetwork([W], slope=1.0) > `slope` must lie in [0, 1), got 1.0
fl.GatedLinearNetwork.init(task, 3, key=key) > `GatedLinearNetwork` has no attribute 'init': its
fl.GatedLinearNetwork([W, W], gates=None) > `gates` must be a list, one array per hidden layer
fl.GatedLinearNetwork([W, W], gates=[]) > `gates` needs one array per hidden layer, 1, got 0
fl.GatedLinearNetwork([W, W], gates=[np.ones(3)]) > `gates[0]` must have shape (2,) or (P, 2), got
frozen.outputs(task.x[:3]) > `gates[0]` are for 4 samples and the inputs have 3; ... For one
frozen(task.x[0], np.ones(9)) > `gates` needs one array (H,) per hidden layer
frozen(task.x[0], 8.0) > `gates` must be a list, one array (H,) per hidden layer
relu([1.0, 2.0]) > `x` must be an array, got a list; pass jnp.asarray(x)
relu(np.ones(3)) > `x` must have shape (4,), one sample, got (3,)
relu(task.x) > `x` must have shape (4,), one sample, got (4, 4); inputs of shape (P, 4)
relu.outputs(np.ones(4)) > `x` must have shape (P, 4), one row per sample, got (4,)
relu.gates(task) > `x` must be an array, got a Task
relu.frozen(xor) > `task.x` must have shape (P, 4), one row per sample, got (4, 2)
relu.frozen(unknown) > `task.x` holds 16 value(s) that are NaN or infinite
relu.frozen(task.x) > `task` must be an fl.Task, got an array of shape (4, 4) and dtype float64
relu.astype(int) > `dtype` must be float32 or float64, got the class int
relu.astype(None) > `dtype` must be float32 or float64, got None
stack.outputs(task.x) > `network` is a stack of networks; take one, as in jax.tree.map
fl.distance(relu, 'text') > `b` holds no arrays of floats; pass a network, or its parameters
fl.distance(relu.weights, relu) > `a` and `b` must have parameters of one structure, got
"""
INITIAL = """
init(task) > ReLUNetwork.init(): missing a required argument: 'key'; it has task, hidden
init(task, 8, hiden=3, key=key) > ReLUNetwork.init() has no argument `hiden`; did you mean
init(task, key=7) > `key` must be a key of jax.random, got 7; pass jax.random.key(7)
init(task, key=None) > `key` must be a key of jax.random, got None; pass jax.random.key(0)
init((1, 2), key=key) > `task` must be an fl.Task, got a tuple; make one by fl.Task(x, y)
init(fl.Task, key=key) > `task` must be an fl.Task, got the class Task; make an object of it
init(task, (4, -1), key=key) > `hidden` must hold at least one width of 1 or more, got (4, -1)
init(task, {2}, key=key) > `hidden` must hold at least one width of 1 or more, got ... whole
init(task, 8, 'x', key=key) > `variance` must be a number, finite and zero or positive, got 'x'
init(task, 8, -1e-4, key=key) > `variance` must be finite and zero or positive, got -0.0001
init(task, 4, (0.1, 0.1, 0.1), key=key) > `variance` has 3 entries for 2 layers (readout included)
init(task, 8, bias=1, key=key) > `bias` must be True or False, got 1
init(task, 8, np.array(object()), key=key) > `variance` must be a number
balanced(task, 8, product='x', key=key) > `product` must be an array of real numbers, got 'x'
balanced(task, 8, product=W, key=key) > `product` must have shape (7, 5), got (2, 2)
balanced(task, 1, product=np.eye(7, 5), key=key) > `hidden` has a layer of 1 units, but a product
balanced(task, 8, balance=nan, key=key) > `balance` must be finite, got nan
balanced(task, 8, balance=0.1, product=np.eye(7, 5), key=key) > `balance` = 0.1 needs at most as
balanced(task, 2, balance=0.1, product=np.eye(7, 5), key=key) > `hidden` must be at least the
balanced(task, (8, 8), balance=0.1, product=np.eye(7, 5), key=key) > `balance` other than 0 needs
"""
GRAPHS = """
fl.GatedGraph([W]) > `weights` must be a dictionary, ... got a list
fl.GatedGraph({}) > `weights` is empty; give at least one edge its matrix (N_to, N_from)
fl.GatedGraph({'ab': W}) > `weights` must be pairs of nodes, (from, to)
fl.GatedGraph({('bias', 'a'): W}) > `weights` has a node 'bias', the name of the constant source
fl.GatedGraph({('a', 'b'): W[0]}) > `weights[('a', 'b')]` must be a matrix (N_to, N_from), got (2,)
fl.GatedGraph({('a', 'b'): W, ('b', 'c'): w1}) > `weights[('b', 'c')]` of shape (3, 4) gives node
fl.GatedGraph({('a', 'b'): W, ('b', 'c'): W, ('c', 'b'): W}) > `edges` go in a circle, ... -> c
fl.GatedGraph({('a', 'b'): W}, {'a': W[0]}) > `biases` names 'a', which no edge goes into
fl.GatedGraph({('a', 'b'): W}, {'b': [1.0]}) > `biases['b']` must have shape (2,), got (1,)
fl.GatedGraph({('a', 'b'): W}, node_gates={'c': W[0]}) > `node_gates` names 'c', which is none
fl.GatedGraph({('a', 'b'): W}, node_gates={'a': 1.0}) > `node_gates['a']` must have shape (P,)
fl.GatedGraph({('a', 'b'): W}, inputs={'a': [0, 1]}) > `inputs['a']` must be a slice of columns,
fl.GatedGraph({('a', 'b'): W}, inputs={'a': slice(0, 1)}) > `inputs['a']` takes 1 of 2 columns of
fl.GatedGraph({('a', 'b'): W}, inputs={'x': slice(2)}) > `inputs` names 'x', which is no node
fl.GatedGraph({('a', 'b'): W}, inputs={'b': slice(2)}) > `inputs` names 'b', which has edges into
fl.GatedGraph({('a', 'c'): W, ('b', 'c'): W}) > `inputs` leaves out node 'a', which has
two_sources({'a': slice(0, 2), 'b': slice(1, 3)}) > `inputs['b']` and `inputs['a']` overlap at
two_gates({'a': [1, 0]}, {('a', 'b'): [1, 0, 1]}) > `edge_gates[('a', 'b')]` is for 3 samples and
fl.GatedGraph(nodes={'a': 2}) > GatedGraph() has no argument `nodes`: ... GatedGraph.init(task
graph.outputs(task.x[0]) > `x` must have shape (P, 4)
graph.outputs(1.0) > `x` must be an array, got 1.0; pass jnp.asarray(x).
edges({'in': 4, 'out': 7}, [('in', 'out')], bias=[W]) > `bias` names an array of shape (2, 2)
graph.outputs(task.x[:3]) > the gates are for 4 samples and the inputs have 3; per-sample gates
graph(task.x[0], {}) > `gates` must have one number for each of
graph(task.x[0], {'h': [0.0]}) > `gates['h']` must be a number, that of one sample, got a list
graph.product('in -> h') > `pathway` must be one of `network.pathways`
edges([4, 7], [('in', 'out')]) > `nodes` must be a dictionary, a width by each node, got a list
edges({'in': 4, 'out': 7}, 3) > `edges` must be a list of
edges({'in': 4, 'out': 7}, []) > `edges` is empty; give
edges({'in': 4, 'out': 7}, [('in', 'x')]) > `edges[0]` = ('in', 'x') has node 'x', which is none of
edges({'in': 4, 'out': 7}, [('in', 'out')] * 2) > `edges[1]` = ('in', 'out') is there twice
edges({'in': 4, 'out': 7, 'x': 3}, [('in', 'out')]) > `nodes` has 'x', which no edge leads to or
edges({'in': 3, 'out': 7}, [('in', 'out')]) > `network` maps 3 inputs to 7 outputs, but `task`
edges({'in': 4, 'out': 7}, [('in', 'out')], bias=3) > `bias` must be True, False or a list of
edges({'in': 4, 'out': 7}, [('in', 'out')], bias=['x']) > `bias` names 'x', which no edge goes
edges({'in': 4, 'out': 7}, [('in', 'out')], variance={'a': 1}) > `variance` must be a number, or
fl.gradient_flow(graph, task, 1.0, tau=[1.0, 2.0]) > `tau` must be one number for a GatedGraph
fl.gradient_flow(tree.map(none, graph), task, 1.0) > `network` holds no arrays; pass one whose
fl.GloballyGatedNetwork([W, W], gates=np.ones(4)) > `gates` must be an array (P, M), one row of
fl.GloballyGatedNetwork([W, W], gates=np.ones((4, 3))) > `weights[1]` takes 2 inputs ... 3 times
fl.GloballyGatedNetwork.init(task, 2, gates=W, key=key) > `gates` are for 2 samples and `task`
many.outputs(task.x[:3]) > the gates are for 4 samples and the inputs have 3; take those of
many.with_gates(np.ones((4, 3))) > `gates` must be an array (P, 2), one column per gate, got an
fl.HalfSpaces(np.ones(2)) > `normals` must be a matrix (M, N_in), got shape (2,)
fl.HalfSpaces(W, np.ones(3)) > `thresholds` must have shape (2,), one per row of `normals`, got (3,)
fl.HalfSpaces(W)(task.x) > `x` must have shape (P, 2)
fl.Clusters.of(task, 9) > `number` = 9 clusters of 4 samples; take as many at most
"""
TASKS = """
fl.Task('a', task.y) > `x` must be an array of real numbers, got 'a'
fl.Task(task.x[0], task.y) > `x` must have one row per sample, shape (P, N), got shape (4,)
fl.Task(task.x, [0, 1, 2, 1]) > `y` must have ... `y[:, None]`, and ... `jax.nn.one_hot(y, classes)`
fl.Task(np.ones((4, 3, 3)), task.y) > `x` must have one ... flatten samples with `x.reshape(len(x)
fl.Task(np.ma.array(task.x), task.y) > `x` must be an array without a mask ... `x.filled(0.0)`
fl.Task(sparse, task.y) > `x` must be an array of real numbers ... make it dense by `x.toarray()`
fl.Task(task.x[:0], task.y) > `x` is empty: its shape is (0, 4)
fl.Task(task.x, task.y[:3]) > `x` has 4 samples and `y` has 3; rows are samples, transpose
fl.Task([[nan]], [[1.0]]) > `x` holds 1 value(s) that are NaN or infinite; remove those samples
fl.Task(task.x, task.y, name=3) > `name` must be a string, got 3
fl.Task(task.x, task.y, weights=np.ones(3)) > `weights` must have shape (4,), one per sample, or
fl.Task(task.x, task.y * nan) > `y` holds ... or give missing targets the weight zero, by `weights=
fl.Task(task.x, task.y, weights=-np.ones(4)) > `weights` must be zero or positive, got -1.0
fl.Task(task.x, task.y, weights=np.zeros(4)) > `weights` are all zero; at least one sample or entry
weighted.take([0]) > `indices` take samples of weight zero only; take one that counts
task.take([0, 99]) > `indices` must be a list of whole numbers from -4 to 3, one per ... got 99
task.take(3) > `indices` must be ... got 3; one sample k is taken by [k]
task.take([True]) > `indices` must be a mask of shape (4,) that keeps a sample, got a list
task.sharded('cpu') > `mesh` must be a jax.sharding.Mesh, got 'cpu'
task.sharded(mesh, axis='rows') > `axis` = 'rows' is none of the mesh's axes, ('samples',)
fl.tasks.hierarchy(levels=2.5) > `levels` must be a whole number of 1 or more, got 2.5
fl.tasks.offset_xor(-0.5) > `delta` must be finite and zero or positive, got -0.5
fl.tasks.teacher(10, []) > `spectrum` must be a list of numbers, got shape (0,)
fl.tasks.teacher(9, [2.0, 1.0], inputs=1, key=key) > `spectrum` has 2 values, more than `inputs` =
fl.tasks.teacher(2, [1.0], inputs=3, whiten=True, key=key) > `whiten=True` needs samples >=
fl.tasks.digits(9999) > `samples` must lie between 1 and
fl.tasks.digits(9, center=True, standardise=True) > `center` and `standardise` exclude each other
fl.tasks.mnist(10, seed=-1) > `seed` must be a whole number of 0 or more, got -1
"""
LOSSES = """
fl.SquaredError('median') > `reduction` must be "mean" or "sum", got 'median'
fl.SquaredError()(np.ones(3), np.ones((3, 1))) > `outputs` and `targets` must have one shape (P,
fl.SquaredError()(W, W, np.ones(3)) > `weights` must have shape (2,), one per sample, or (2, 2)
fl.CrossEntropy(3) > CrossEntropy(): too many positional arguments; it has no arguments
fl.CrossEntropy()(W[:, :1], W[:, :1]) > `loss` = CrossEntropy() needs `targets` of two or more
fl.CrossEntropy()(W, W[0]) > `outputs` and `targets` must have ... `jax.nn.one_hot(labels, N_out)`
fl.CrossEntropy()(W, -W) > `loss` = CrossEntropy() needs `targets` that are one-hot or ... down to
flow(1.0, loss='mse') > `loss` must be a loss of flowlin or a function of (output, target) of one
flow(1.0, loss=fl.SquaredError) > `loss` must be a loss ... got the class SquaredError; make an
flow(1.0, loss=lambda a, b: a) > `loss` = <lambda> must make one floating-point number of one
flow(1.0, loss=lambda a, b: np.abs(a)) > `loss` = <lambda> fails on ... ; it is traced: compute
flow(1.0, loss=lambda a, b: 1 / 0) > `loss` = <lambda> fails on ... ZeroDivisionError: ... mend
fl.StepClock(0.1, 'HALF_SUM') > `convention` must be an fl.LossConvention, got 'HALF_SUM'; pass
fl.StepClock(0.1, fl.LossConvention.HALF_SUM) > LossConvention.HALF_SUM needs `samples`; pass it
fl.StepClock(0.1, samples='3') > `samples` must be a whole number of 1 or more, got '3'
fl.StepClock(0.1).time('a') > `steps` must be an array of real numbers, got 'a'
"""
WAYS = """
fl.SmoothKinks('a') > `width` must be a number, finite and positive, got 'a'
fl.SmoothKinks(0.0) > `width` must be finite and positive, got 0.0
fl.ExactKinks(slot=3) > ExactKinks() has no argument `slot`; did you mean `slots`
fl.RKC(2.5) > `max_stages` must be a whole number from 2 to 2048, got 2.5
fl.RKC(loop=W) > `loop` must be "checkpointed" or "lax", got an array of shape (2, 2) and dtype
fl.LogProgress(stream='run.log') > `stream` must be None or an open text file, got 'run.log'; open('
flow(1.0, solver='Tsit5') > `solver` must be a diffrax solver, got 'Tsit5'; pass one such as
flow(1.0, solver=diffrax.Tsit5) > `solver` must be a diffrax solver, got the class Tsit5; make an
flow(1.0, solver=diffrax.KenCarp4()) > `solver` must be a solver of an ordinary differential
flow(1.0, solver=diffrax.Euler()) > `solver` must be a solver that estimates its error, got an
flow(1.0, solver=fl.RecycledBDF(), tau=[1.0, 2.0]) > `solver` = RecycledBDF needs one `tau`: ... fl.
flow(1.0, solver=fl.RKC(), kinks=fl.ExactKinks()) > `ExactKinks` walks with explicit Runge-Kutta
flow(1.0, solver=diffrax.Tsit5(), kinks=fl.AveragedKinks()) > `AveragedKinks` has a solver of its
flow(1.0, stepsize_controller=diffrax.ConstantStepSize()) > `stepsize_controller` must be an
flow(1.0, stepsize_controller=diffrax.PIDController(1, 1), rtol=1) > `stepsize_controller` has
flow(1.0, adjoint=diffrax.BacksolveAdjoint()) > `adjoint` must be ... ForwardMode() or Direct
flow(1.0, kinks='exact') > `kinks` must be an object such as fl.ExactKinks(), got 'exact'
flow(1.0, modified_rate=0.1) > `modified_rate` asks for the modified flow, which needs a smooth
linearly(1.0, modified_rate=0.1, tau=[1.0, 2.0]) > `modified_rate` asks for the modified flow,
"""
EVENTS = """
fl.Crossing(3) > `observable` must be a function of (network, task), got 3
fl.Crossing(lambda n: n) > `observable` must be a function of (network, task), and takes (n)
fl.Crossing(max, 'a') > `level` must be an array of real numbers, got 'a'
fl.Crossing(max, nan) > `level` must be finite, got nan
fl.Crossing(max, direction='sideways') > `direction` must be None, "up" or "down", got 'sideways'
fl.LossBelow('a') > `level` must be a number
fl.UnitSwitches(0.5) > `quantile` must lie in [0, 0.5), got 0.5
fl.UnitSwitches(window=1) > `window` must be a whole number of 2 or more, got 1; one step alone
fl.ModeHits('modes', 0.1) > `modes` must be modes, as `theory.modes
fl.ModeHits(modes) > `rho` or `share` must be given, one of them, got neither
fl.ModeHits(modes, 0.1, share=0.5) > `rho` or `share` must be given, one of them, got both
flow(1.0, events=fl.ModeHits(modes, [0.1, 0.2])) > `rho` must be a number or have shape (5,), one
flow(1.0, events=(max,)) > `events[0]` must be an event, got a builtin_function_or_method; wrap a
flow(1.0, events=np.array(3)) > `events` must be a sequence of events, got a
flow(1.0, events=[fl.LossBelow(0.1)] * 2) > `events`: two are named 'loss', LossBelow and
flow(1.0, events=fl.UnitSwitches(window=2)) > `events` holds UnitSwitches(window=2), which is for
fl.gradient_flow(many, task, 1.0, events=fl.UnitSwitches()) > `events` holds UnitSwitches, which
flow(1.0, events=fl.Crossing(lambda n, t: 'x')) > `observable` of event 'crossing' must return
flow(1.0, events=fl.Crossing(lambda n, t: {'a': 1.0})) > `observable` of event 'crossing' must
flow(1.0, events=fl.Crossing(lambda n, t: W[0], W1)) > `observable` of event 'crossing' returns
flow(1.0, events=fl.Crossing(lambda n, t: W[:0])) > `observable` of event 'crossing' returns an
flow(1.0, events=fl.Crossing(lambda n, t: W, W[:0, :1])) > `observable` of event 'crossing' returns
flow(1.0, events=fl.Crossing(lambda n, t: W[0, 0], W[:0])) > `level` is empty: its shape is (0, 2)
flow(1.0, events=fl.Crossing(lambda n, t: n.weights[0]>0)) > `observable` of event 'crossing'
flow(1.0, events=fl.Crossing(lambda n, t: np.abs(n.weights[0]))) > `observable` of event 'crossing'
"""
RUNS = """
flow() > gradient_flow(): missing a required argument: 't1'; it has network, task
flow(1.0, rtoll=1e-3) > gradient_flow() has no argument `rtoll`; did you mean `rtol`?
flow(1.0, learning_rate=1) > gradient_flow() has no argument `learning_rate`: a flow has no steps. `
fl.gradient_flow('relu', task, 1.0) > `network` must be a network of flowlin, or ... got 'relu'
fl.gradient_flow(relu, labelled, 1.0) > `network` maps ... outputs. If ... jax.nn.one_hot(labels, 7)
fl.gradient_flow(relu, xor, 1.0) > `network` maps 4 inputs to 7 outputs, but `task` 'xor' has 2
fl.gradient_flow(missing, task, 1.0) > `network.weights[0]` holds 24 NaN among 24 numbers; start
fl.gradient_flow(single, task, 1.0, rtol=1e-12) > `rtol` = 1e-12 is finer than float32 can hold
flow('1') > `t1` must be a number, finite and positive, got '1'
flow(True) > `t1` must be a number, finite and positive, got True
flow(inf) > `t1` is inf, and no event ends the run; give a finite `t1`, or one that does
flow(1.0, tau=None) > `tau` must be a number, finite and positive, got None
flow(1.0, tau=0.0) > `tau` must be finite and positive, got 0.0
flow(1.0, tau=np.ones(3)) > `tau` must be one number or have one entry per layer, 2 ... got shape
flow(1.0, tau=[1.0, -2.0]) > `tau[1]` must be finite and positive, got -2.0
flow(1.0, tau=[[1.0]]) > `tau` must be a number, one per layer, or a function of time, got
flow(1.0, ts=[]) > `ts` must be a non-empty list of times, got shape (0,)
flow(1.0, ts=[nan]) > `ts` holds 1 NaN among 1 times
flow(1.0, ts=[0.5, 0.2]) > `ts` must be strictly ascending; sort it and drop duplicates
flow(1.0, ts=[1.0 + 1e-12]) > `ts` runs from 1 to 1, outside the run's [0, t1 = 1]
flow(1.0, rtol=1e-17) > `rtol` = 1e-17 is finer than float64 can hold
flow(1.0, dense=1) > `dense` must be True or False, got 1
flow(1.0, progress='yes') > `progress` must be True, False, fl.LogProgress() or a diffrax progress
flow(1.0, max_steps=10**10) > `max_steps` must be a whole number from 1 to 1073741824, got
flow(1.0, max_steps=0) > `max_steps` must be a whole number from 1 to 1073741824, got 0; None is no
flow(1.0, checkpoint=3) > `checkpoint` must be a path, as a string or a pathlib.Path, got 3
flow(1.0, checkpoint='no/such/run.npz') > `checkpoint` = 'no/such/run.npz': there is no folder
flow(1.0, checkpoint='.') > `checkpoint` = '.' is a directory; give a file in it
flow(1.0, checkpoint='run.npz', dense=True) > `checkpoint` does not keep dense output; save at `ts`
traced(lambda t1: flow(t1, checkpoint='run.npz')) > `checkpoint` is for runs outside of `jit` and
traced(lambda t1: flow(t1, dense=True, max_steps=None)) > `dense=True` under jit or vmap reserves
traced(lambda t1: flow(t1, progress=fl.LogProgress())) > `progress` = fl.LogProgress() is for runs
flow(1.0, observe=max) > `observe` must be a dictionary of functions of (network, task), named
flow(1.0, observe={'a': 3}) > `observe['a']` must be a function of (network, task), got 3
flow(1.0, observe={'a': fl.theory.modes(task)}) > `modes` are for c = 0 and the network has c = 1
flow(1.0, observe={'a': lambda n, t: np.abs(n.weights[0])}) > `observe['a']` fails:
flow(1.0, trainable=lambda leaf: False) > `trainable` leaves no array of `network` to train
flow(1.0, trainable='w') > `trainable` must be True, False or a function of a leaf, or ... got 'w'
flow(1.0, weight_decay=-1.0) > `weight_decay` must be zero or positive, got -1.0; it pulls to
flow(1.0, weight_decay=[0.1] * 3) > `weight_decay` must be a number or have shape (2,), one per
descent(9, observe={'a': lambda n, t: None}) > `observe['a']` must return numbers or arrays, and
descent(9, observe={'a': lambda n, t: mlp(1)}) > `observe['a']` must return numbers
descent(2.5) > `steps` must be a whole number from 1 to 1073741824, got 2.5; to reach a time t1 it
descent() > give one of `steps` and `t1`, which say where the run ends; got neither
descent(t1=1e9) > `t1` = 1e+09 takes 1e+10 steps of 0.1 each, more than the ... raise
descent(9, save_every=2, ts=[0.5]) > `ts` and `save_every` both say what is saved; leave one out
descent(9, save_every=10) > `save_every` must lie between 1 and `steps` = 9, got 10
descent(9, ts=[0.51, 0.52]) > `ts` must fall on steps that are not saved yet, each 0.1 long; leave
descent(9, optimiser='adam') > `optimiser` must be an optax optimiser, got 'adam'
descent(9, optimizer=3) > gradient_descent() has no argument `optimizer`; did you mean
traced(lambda ts: descent(9, ts=ts[None])) > `ts` must be known when the program is made, got a
traced(lambda rate: by_rate(rate, t1=1.0)) > `learning_rate` must be known where `t1` or `ts` is
traced(lambda rate: by_rate(rate, 9, checkpoint='a.npz')) > `checkpoint` is for runs outside of
sgd(9, batch_size=9, key=key) > `batch_size` must lie between 1 and the number of samples 4, got
sgd(9, batch_size=2, key=0) > `key` must be a key of jax.random, got 0
rate(nan) > `within` must be finite and positive, got nan
rate(0.5) > `within` must be a relative error below 0.5, got 0.5
rate(0.1, events=fl.UnitSwitches()) > `events` holds UnitSwitches; descent flickers on sliding
rate(0.1, events=fl.LossBelow(0.1, terminate=True)) > `events` must not end the run; pass them with
"""
SWEEPS = """
fl.sweep([linear, 'a'], task, 1.0) > `networks[1]` must be a network of flowlin, or an Equinox
fl.sweep([linear], 'a', 1.0) > `tasks` must be an fl.Task, got 'a'
fl.sweep([], task, 1.0) > `networks` is empty; give at least one
fl.sweep([linear] * 3, [task], 1.0) > `tasks` holds 1 tasks for 3 networks; give one per network
fl.sweep(stack, task, 1.0) > `networks` must be a list of networks; unstack it with `jax.tree.map`
fl.sweep([linear], task, 1.0, rtoll=2) > sweep() has no argument `rtoll`; did you mean `rtol`?
fl.sweep([linear], task, 1.0, throw=False) > `throw` is not for sweeps; look at `sweep.failed`
fl.sweep([linear], task, 1.0, checkpoint='a.csv') > `checkpoint` of a sweep keeps what is recorded
fl.sweep(lambda c: linear, task, 1.0) > `networks` is a function; pass `grid`, the values that it
fl.sweep(lambda c: linear, task, 1.0, grid=fl.grid(a=1)) > `networks` takes `c`, which is no axis
fl.sweep(lambda: linear, task, 1.0, grid=fl.grid(a=1)) > `grid` has the axis 'a', and no function
fl.sweep([linear] * 2, task, 1.0, grid=fl.grid(a=1)) > `networks` holds 2 for 1 points of `grid`
fl.grid(c=[]) > `c` must be a list of numbers, ... give at least one value
fl.grid(c=[[1.0], [2.0]]) > `c` must be a list of numbers
fl.grid(c=[None]) > `c[0]` must be a number, a truth value or a word, got None
fl.grid(time=[1.0]) > `time` is a column of a sweep's tables already; give the axis another name
fl.grid(c=1)['a'] > `index` must be a whole number or a slice, got 'a'
fl.grid(c=1)[2] > `index` = 2 is out of range: the grid has 1 points
fl.Sweep([])['a'] > `index` must be a whole number or a slice, got 'a'
fl.Sweep([])[0] > `index` = 0 is out of range: the sweep has 0 runs
fl.Sweep([]).map(3) > `function` must be a function of (flow), got 3
fl.Sweep(3) > `flows` must be a trajectory, which runs return, got 3
fl.Sweep([]).columns > this sweep kept its runs; pass `record`, or use `map(function)`
"""
THEORY = """
theory.modes(np.ones(3)) > `task` must be an fl.Task, got an array
theory.modes(task, linear_module) > `bias_strength` must be a number c, or a flowlin network with a
theory.modes(task, network=graph) > modes() has no argument `network`: ... modes(task, netw
theory.modes(stacked) > `task` is a stack of tasks; take one, as in jax.tree.map
theory.modes(unknown) > `task.x` holds 16 value(s) that are NaN
theory.modes(half_task) > `task.x` must be an array of float32 or float64, got ... ; runs need one
theory.modes(task, 1e100) > `task` or `bias_strength` = 1e+100 has numbers above 1e+19, ... scale
traced(lambda c: theory.modes(task, c).s) > `theory.modes` needs a concrete task and bias strength
modes.strengths(half, task) > `network.weights[0]` must be an array of float32 or float64, got
modes.strengths(relu, other) > `modes` are of other data than `task` 'other'; use `theory.modes` of
modes.strengths(fl.ReLUNetwork([W]), xor) > `modes` are of a task with 4 inputs and 7 outputs, and
modes.strengths(fl.ReLUNetwork([W]), xor, check=False) > `modes` are of a task with 4 inputs and 7
modes.hidden_vectors(plain) > `modes` are for c = 1 and the network has no bias; use
modes.hidden_vectors(deep) > hidden vectors are defined for one hidden layer; the network has 2
modes.augmented(xor.x) > `x` must have shape (P, 4), got (4, 2)
modes.observable(linear, task)(of_eight, eight) > these mode strengths are of another kind of
theory.solve(relu, task) > `network` is a ReLUNetwork; closed forms are for linear ones
theory.solve(graph, task) > `network` must be a flowlin network, whose hidden units stand in
theory.solve(biased, task) > `network` has a bias beyond its first layer, for which there is no
theory.solve(linear, task, tolerance=-1) > `tolerance` must be finite and zero or positive, got
theory.solve(linear, task).product(-1.0) > `t` must be zero or positive: it is the time since the
theory.solve(linear, task).error(linear) > `flow` must be a trajectory, which runs return, got a
traced(lambda c: theory.solve(fl.LinearNetwork([c * w2 @ w1]), task)) > `solve` needs a concrete
theory.balanced_strength(deep, modes) > `balanced_strength` needs one hidden layer and no bias on
theory.lazy(linear, task, loss=fl.CrossEntropy()) > `loss` must be fl.SquaredError(): other flows
theory.lazy(linear, task, alpha=0.0) > `alpha` must be finite and positive, got 0.0
theory.lazy(frozen, task, alpha=2.0).scaled > `network` has gates that belong to samples, so
theory.race(linear, task) > `network` must be an fl.GatedGraph, got a LinearNetwork; make one by
theory.race(biased_graph, task) > `network` has biases, which take part in no mode; use a source
theory.after_linearization(deep, task) > `network` must be a fl.ReLUNetwork with one hidden
theory.after_linearization(relu, task, always_on=[2] * 6) > `always_on` must be an array of True
theory.after_linearization(relu, task, always_on=[True]) > `always_on` must have one entry for each
theory.early_phase(linear, task) > `network` is a LinearNetwork with 1 hidden layers; the early
theory.early_phase(readout, task) > `network` has a bias on its readout, which grows whatever the
theory.early_phase(relu, task, loss=fl.CrossEntropy()) > `loss` must be fl.SquaredError(), got
theory.slowed_clock('early', modes) > `early` must be an early phase
theory.learning_coefficient([3], 1) > `widths` must hold two numbers or more, from inputs to
theory.learning_coefficient([3, 2], 3) > `rank` must be at most the least of `widths`, 2, got 3: no
theory.Mode(1.0, 1.0, 0.1, 3, imbalance=0.1) > `imbalance` must be 0, and known to be, where `depth`
theory.hitting_time([0.5, 1], [1, 1, 1], 1, 0.1) > shapes do not broadcast: `rho` (2,), `s` (3,)
theory.hitting_time(0.5, 1, [0.1, -2], 0.1) > `d` must be zero or positive: it is the variance
theory.hitting_time(0.5, 1, 1, 0.1, tau=0.0) > `tau` must be positive: it is the time constant of
theory.hitting_time(0.5, 1j, 1, 0.1) > `s` must be an array of real numbers, got 1j
theory.hitting_time(0.5, 1, 1, 0.1, tua=1.0) > hitting_time() has no argument `tua`; did you mean
theory.gating_delay(1.0, 1.0, 0.1, 1.5) > `g` must be in [0, 1]: it is the fraction of live units,
theory.Mode(1.0, 1.0, 0.1, 1.5) > `depth` must be 1, or 2 and more: layers of weights,
theory.imbalance(0.1, [0.1, 0.2]) > `p` must hold vectors, got shape ()
theory.imbalance([0.1, 0.2, 0.3], [0.1, 0.2]) > `p` and `q` must have the same last axis, the
theory.single_layer(0.1, W, W, np.eye(3)) > `w0` (2, 2), `s_yx` (2, 2) and `s_x` (3, 3) must be
theory.balanced_gram(0.1, w2, w1, W) > `w1` (7, 3), `w2` (3, 4) and `s_yx` (2, 2) do not chain
theory.balanced_gram(0.1, w1, w2, w2 @ w1, balance=[1, 2]) > `balance` must be a single number, got
"""
MEASURES = """
measures.hidden('network', task) > `network` must be a network of flowlin, or an Equinox module
measures.hidden(relu, xor) > `task.x` must have shape (P, 4), one row per sample
measures.effective_map(linear_module, W[0]) > `task` must have shape (P, N_in), one row per sample,
measures.hidden(relu, task.x[:0]) > `task` has no samples
measures.hidden(relu, None) > this measure looks at samples: pass a `task`, or inputs
measures.hidden(relu, task, layer=0.5) > `layer` must be a whole number counted from 0, got 0.5
measures.hidden(relu, task, layer=True) > `layer` must be a whole number counted from 0, got
measures.hidden(relu, task, layer=3) > `layer` = 3 does not exist; the network has 1 hidden layer(s)
measures.hidden(relu, task, layer='readout') > `layer` = 'readout' does not exist; layers are in 'we
measures.activity(linear_module, task) > `network` must be one of flowlin whose ... smooth
measures.activity(graph, task) > `network` must be one of flowlin whose hidden units stand in layers
measures.activity(relu, task, quantil=0.1) > activity() has no argument `quantil`; did you mean
measures.norms(stack) > `network` is a stack of networks; take one
measures.norms(half) > `network.weights[0]` must be an array of float32
measures.norms(tree.map(none, relu)) > `network` holds no arrays; pass one whose weights and biases
measures.error_rate(relu, fl.Task(task.x, task.y[:, :1])) > a classification error needs one output
measures.on_grid(relu, axes='x') > `axes` must be an array
measures.on_grid(relu, axes=([0.0],) * 3) > `axes` needs one array for each of 4 inputs, got 3
measures.on_grid(relu, axes=(W,) * 4) > `axes` must be one-dimensional and not empty, got shapes
measures.on_grid(relu, axes=(np.arange(1e3),) * 4) > `axes` make a grid of 1,000,000,000,000
measures.on_grid(relu, axes=([0.0],) * 4, average=4) > `average` = 4 is none of the 4 input
measures.on_grid(linear_module) > `axes` must be a tuple, one array per input, or `task` be given:
measures.effective_map(relu, task, sides=[W]) > `sides` must have shapes [(4, 6)], one (P, H) per
measures.effective_map(relu, task, sides=[W + 1j]) > `sides[0]` must
measures.effective_map(graph, task, sides=[W]) > `sides` must be None for a network without sides
measures.effective_map(graph, task, layer=0) > `layer` must be None for a network whose units do
measures.kink_rates(relu, task, velocity=1) > `velocity` must be a function of (network, task), got
measures.kink_rates(relu, task, velocity=lambda n, t: t) > `velocity` must be a function that
measures.sharpness(relu, task, count=99) > `count` = 99 is more than the Hessian has eigenvalues
measures.sharpness(relu, task, count=0) > `count` must be a whole number of 1 or more, got 0
measures.tangent_kernel(relu, None) > this measure looks at samples: pass a `task`, or inputs
measures.tangent_kernel(relu, task, by_output=1) > `by_output` must be True or False, got 1
measures.drift(1.0) > `values` must have a first axis of times, got shape ()
measures.effective_rank(np.ones(3)) > `matrix` must have one row per sample, (..., P, H), got shape
measures.effective_rank(np.zeros((0, 2))) > `matrix` is empty: its shape is (0, 2)
measures.mds(cloud, 3) > `dimensions` must lie between 1 and H = 2, got 3
measures.distance_ratio(cloud, ['a', 'b', 'c']) > `classes` must be numbers, one per sample, got
measures.distance_ratio(cloud, [1, 2]) > `classes` must have shape (3,), got (2,)
measures.linear_cka(cloud, cloud[:, :2]) > `a` has 3 samples and `b` has 2; compare representations
measures.linear_cka(cloud, cloud, debiased=True) > the unbiased estimator needs at least 4 samples,
measures.variance_explained(cloud, np.ones((2, 1))) > `features` must have one row for each of the
measures.along(relu, measures.norms) > `flow` must hold networks stacked on one leading axis, got
measures.along('flow', measures.norms) > `flow` must be a trajectory, or stacked networks, got
measures.along(stack, lambda network, task: 'text') > `measure` must return numbers or arrays
measures.OnTask(lambda: 1.0, task) > `measure` must be a function of (network, task), and takes ()
"""
PICTURES = """
plot.losses({}) > `runs` is empty; give at least one, as
plot.losses([1]) > `runs` must be a trajectory, a sweep, or a dictionary
plot.losses({'a': 'f'}) > `runs['a']` must be a trajectory, several of them, or a sweep, got 'f'
plot.kinks(np.arange(3.0), np.ones((2, 2))) > `positions` must have shape (3, H), got (2, 2)
plot.kinks(np.arange(3.0), np.ones((3, 0))) > `positions` is empty: its shape is (3, 0)
plot.kinks(np.arange(3.0), np.ones((3, 2)), colur='C0') > `look` must hold keywords of Axes.plot
plot.kinks(np.arange(3.0), np.ones((3, 2)), ax='x') > `ax` must be matplotlib Axes, got 'x'
plot.representations(cloud, labels='abc') > `labels` must have 3
plot.representations(cloud, colours=['x'] * 3) > `colours[0]` must be a colour that matplotlib
plot.cube(np.zeros((2, 2, 2)), [0, 1], plt.figure().gca()) > `ax` must have `projection='3d'`,
plot.cube(np.zeros((2, 2, 2)), [0, 1], axis=3) > `axis` must be 0, 1, 2 or None, got 3
plot.cube(np.zeros((2, 2, 2)), [0, 1], at=1) > `at` = 1 needs an `axis`, and must lie in 0 ... 1
plot.cube(np.zeros((2, 2, 2)), [0, 1], axis=0, limits=1) > `limits` must be two numbers
plot.sweep_line([0], [[1]], names=('a', 1)) > `names[1]` must be a string, got 1
plot.work_precision({'a': 1}) > `contenders['a']` must be a pair, (work, error), got 1
plot.look('reul') > `kind` = 'reul' is unknown; choose one of
plot.shades('relu', 2.5) > `number` must be a whole number
plot.animate(lambda k: k, 3, 'a.gif') > `draw` must be a function of (figure, k), and takes (k)
plot.animate(lambda f, k: np.int64('x'), 3, 'a.gif') > invalid literal for int
plot.animate(print, 3, 'a.png') > `path` must end in .gif or .mp4, got 'a.png'
plot.animate(print, 3, 'a.gif', size=3) > `size` must be two numbers
"""
FOREIGN = """
module(linear_module, xor) > `network`, Linear, fails on one sample
module(mlp(1), task) > `network` ... must return an array of shape (7,)
module(Named(np.ones((7, 4)))) > `network` ... got a dict; join its entries by jnp.concatenate; the
module(mlp(3), labelled) > `network` ... got float64[3]; outputs and ... jax.nn.one_hot(labels, 3)
module(Twice(np.ones((7, 4)))) > `network` ... got a tuple; it is called with one sample
module(Scalar(np.ones(4))) > `network` ... float64[]; return an array (1,), as
module(Choosing(np.ones(4))) > `network`, Choosing, fails on one sample ... ; it is traced: ... jnp.
module(eqx.nn.Sequential([linear_module, eqx.nn.Dropout(0.5)])) > `network`, Sequential, fails
module(mixed) > `network.bias` is float32 and the first array is float64; runs need one
module(eqx.nn.Identity()) > `network` must be a module that holds arrays of float32 or float64, got
module(jnp.tanh) > `network` must be a network of flowlin, or an Equinox module
module(Mute(np.ones(4))) > `network` must be a module that maps one sample, got a Mute; give it a
module(Sorting(np.ones((7, 4))), kinks=fl.ExactKinks()) > `kinks` = ... and Sorting: `sort` in w
module(linear_module, events=fl.UnitSwitches()) > `events` holds UnitSwitches, which watches hidden
module(linear_module, tau=[1.0, 2.0]) > `tau` must be one number for a Linear, got shape (2,)
module(linear_module, weight_decay=[0.1, 0.1]) > `weight_decay` must be one number for a Linear,
module(linear_module, trainable={'w': True}) > `trainable` must be a function of a leaf
module(linear_module, trainable=numbered) > `trainable.bias` must be True, ... got 1
module(linear_module, trainable=masked) > `trainable.weight` must be ... ; an array moves as
"""
# On a machine of 16 GiB.
LARGE = """
init(task, 10**10, key=key) > `hidden` = 10000000000 asks for ... GiB of memory, and there are 16
balanced(task, 10**6, key=key) > `hidden` = 1000000 asks for
edges({'in': 4, 'out': 10**12}, [('in', 'out')]) > `nodes` = ... asks for
fl.tasks.hierarchy(40) > `levels` = 40 asks for
fl.tasks.teacher(10**12, key=key) > `samples` = 1000000000000 asks for
plot.shades('relu', 10**12) > `number` = 1000000000000 asks for
flow(1.0, max_events=10**15) > `max_events` = 1000000000000000 asks for ... Lower it, or watch
descent(2**30) > `steps` = 1073741824 asks for
descent(2**30, save_every=1) > `save_every` = 1, 1073741824 rows, asks for ... or use `observe`
"""
# A linear flow with one event, a descent, and two of each on one axis.
OF_RUNS = """
flow.linearization() > `linearization` is about gates that switch; of a LinearNetwork there are
steps.linearization('a') > `quantile` must lie in [0, 0.5), got 'a'
fl.load('a.npz', task=task) > load() has no argument `task`: a file has ... `checkpoint=file` by
flow.extend('a') > `t1` must be a number, finite and positive, got 'a'
flow.extend(1.0, max_steps=0.5) > `max_steps` must be a whole number from 1 to 1073741824, got
flow.extend(0.1) > `t1` must lie beyond the run's end, 0.3, got 0.1
flow.extend(1.0, ts=[0.2]) > `ts` must lie beyond the run's end, 0.3, got 0.2
flow.network('a') > `t` must be an array of real numbers, got 'a'
flow.network(0.1) > `flow.network(t)` needs a run with `dense=True`
flow.models > this run recorded `observe` instead of networks; add `observe={..., 'network':
flow.observed['ones'] > the run recorded nothing named 'ones'; did you mean 'one', of ['half'
steps.observed['one'] > the run recorded nothing named 'one', nor by any other name; pass `observe=
flow.product(3) > `product` is for gated graphs; this run is of a LinearNetwork
flow.save(3) > `path` must be a path, as a string or a pathlib.Path, got 3
flows.save('a.npz') > `save` writes one run; take it out of its batch with `jax.tree.map`
flow.events.select(3) > `name` must be a string, got 3
flow.events.select('mode') > `name` = 'mode': no such events were watched; the log has
flow.events.component_sides([0.1]) > `t` must be a single number, got a list
flow.events.component_sides(-inf) > `t` must be a time, or inf for the end, got -inf
flow.events.sides(0.1, 'a') > `layer` = a: the run logged no gates of it; only flows of ReLU
flow.events.sides(0.1) > `layer` = 0: the run logged no gates of it; only flows of ReLU networks
flow.events.where([True]) > `mask` must be an array of truth values of shape
flows.events.name > `events.name` is of one log, and these are stacked, with times of shape (2,
flows.events.component_sides(0.1) > `events.component_sides` is of one log, and these are stacked
len(flows.events) > `len(events)` is of one log, and these are stacked
jax.eval_shape(lambda log: log.name, flow.events) > `events.name` is not known under jit or vmap
jax.eval_shape(lambda log: len(log), flow.events) > `len(events)` is not known under jit or vmap
jax.eval_shape(lambda run: run.save('a.npz'), flow) > `save` writes numbers; call it outside of
fl.compare(relu, relu) > `flow` must be a trajectory, which runs return, got a ReLUNetwork
fl.compare(flows, flow) > `flow` is a stack of runs; take one, as in jax.tree.map
fl.compare(flow, of_other_task) > `flow` and `descent` were trained on different tasks or losses
fl.compare(flow, thinner) > `flow` and `descent` are of networks of other shapes, ... compare runs
fl.compare(flow, steps) > the runs were saved at different times; run the flow with `dense=True`
fl.rectified(flow, task) > `flow` must be of a ReLUNetwork, got a LinearNetwork; of others no
fl.rectified(steps, task) > `flow` must be a gradient flow that was computed in this process,
theory.solve(plain, task).error(steps) > `flow` is of another network or task than the closed
theory.solve(linear, task).error(stack_of(steps)) > `flow` is a stack of runs; take one
plot.modes(steps, modes, rho=np.ones(2)) > `rho` must be a number or have shape (5,), one per mode
plot.modes(flow, modes) > the run holds no mode strengths; pass `observe={'modes': modes}` to it
plot.losses({'a': [flow, steps]}) > the runs of 'a' have different saved times; give all the same
plot.activity(steps, parts='dead') > `parts` must be some of
plot.sides(flow, 9.0) > `t` = 9.0 lies outside the run, [0, 0.3]
"""


class Scalar(eqx.Module):
    """A module that returns one number, and others whose calls go wrong otherwise."""

    w: jax.Array

    def __call__(self, x):
        return self.w @ x


class Twice(Scalar):
    def __call__(self, x):
        return self.w @ x, x


class Named(Scalar):
    def __call__(self, x):
        return {"y": self.w @ x}


class Choosing(Scalar):
    def __call__(self, x):
        return self.w * x if x[0] > 0 else x


class Sorting(Scalar):
    def __call__(self, x):
        return jnp.sort(self.w @ x)


class Mute(eqx.Module):
    w: jax.Array


def rows(table):
    """The rows of a table: the call, and the parts of its message."""
    pairs = (line.split(" > ", 1) for line in table.splitlines() if line)
    return [pytest.param(call, message.split(" ... "), id=call) for call, message in pairs]


def stack(one):
    """What `vmap` makes of two of a kind."""
    return jax.tree.map(lambda a: np.stack([a, a]), one)


def cast(one, dtype):
    return jax.tree.map(lambda a: np.asarray(a).astype(dtype), one)


def mlp(outputs):
    return eqx.nn.MLP(4, outputs, 3, 1, dtype=jnp.float64, key=jax.random.key(0))


def traced(function):
    """The function of one number, under `jit`."""
    return jax.eval_shape(function, jnp.float64(0.5))


@pytest.fixture(scope="module")
def things():
    """What the calls speak of."""
    key, task, xor = jax.random.key(0), fl.tasks.hierarchy(2), fl.tasks.xor()
    relu = fl.ReLUNetwork.init(task, 6, variance=2e-2, key=key)
    linear = fl.LinearNetwork(relu.weights, relu.biases)
    deep = fl.ReLUNetwork.init(task, (3, 3), key=key)
    square, w1, w2 = np.ones((2, 2)), np.ones((3, 4)), np.ones((7, 3))
    edges = {("in", "h"): w1, ("h", "out"): w2}
    layer = eqx.nn.Linear(4, 7, key=key, dtype=jnp.float64)
    source = fl.GatedGraph
    parts = lambda m: (m.weight, m.bias)  # noqa: E731
    return dict(
        fl=fl, diffrax=diffrax, eqx=eqx, inf=np.inf, jax=jax, jnp=jnp, nan=np.nan, np=np, plt=plt,
        measures=fl.measures, plot=fl.plot, theory=fl.theory, tree=jax.tree, none=lambda a: None,
        Scalar=Scalar, Twice=Twice, Named=Named, Choosing=Choosing, Mute=Mute, traced=traced,
        Sorting=Sorting,
        mlp=mlp, stack_of=stack,
        key=key, task=task, xor=xor, W=square, W1=np.ones((2, 5)), w1=w1, w2=w2,
        other=fl.Task(task.x, task.y[::-1] + 0.5 * task.y, name="other"),
        unknown=cast(jax.tree.map(lambda a: a * np.nan, task), float), half_task=cast(task, "f2"),
        labelled=fl.Task(task.x, [[0], [1], [2], [1]]),
        stacked=stack(task), weighted=fl.Task(task.x, task.y, weights=[0, 1, 1, 1]),
        sparse=scipy.sparse.csr_array(np.eye(4)), mesh=jax.make_mesh((1,), ("samples",)),
        init=fl.ReLUNetwork.init, balanced=fl.LinearNetwork.balanced,
        relu=relu, linear=linear, deep=deep, plain=fl.LinearNetwork(relu.weights),
        single=cast(relu, "f4"), half=cast(relu, "f2"), stack=stack(relu),
        missing=eqx.tree_at(lambda n: n.weights[0], relu, np.full((6, 4), np.nan)),
        frozen=relu.frozen(task), readout=fl.ReLUNetwork([w1, w2], [None, np.ones(7)]),
        biased=fl.LinearNetwork([w1, w2], [np.ones(3), np.ones(7)]),
        graph=fl.GatedGraph(edges, node_gates={"h": [1, 0, 1, 0]}),
        biased_graph=fl.GatedGraph(edges, {"h": np.ones(3)}),
        edges=functools.partial(source.init, task, variance=0.1, key=key),
        two_sources=lambda inputs: source(
            {("a", "c"): square, ("b", "c"): square}, inputs=inputs
        ),
        two_gates=lambda nodes, edges: source(
            {("a", "b"): square}, node_gates=nodes, edge_gates=edges
        ),
        many=fl.GloballyGatedNetwork([w1, np.ones((7, 6))], gates=np.ones((4, 2))),
        modes=fl.theory.modes(task, 1.0), cloud=np.arange(12.0).reshape(2, 3, 2),
        eight=fl.tasks.hierarchy(3), of_eight=fl.ReLUNetwork([np.ones((3, 8)), np.ones((15, 3))]),
        linear_module=layer, mixed=eqx.tree_at(lambda m: m.bias, layer, np.zeros(7, np.float32)),
        numbered=eqx.tree_at(parts, layer, (True, 1)),
        masked=eqx.tree_at(parts, layer, (np.ones((7, 4), bool), True)),
        module=lambda network, of=task, **options: fl.gradient_flow(network, of, 1.0, **options),
        flow=functools.partial(fl.gradient_flow, relu, task),
        linearly=functools.partial(fl.gradient_flow, linear, task),
        descent=functools.partial(fl.gradient_descent, relu, task, 0.1),
        by_rate=functools.partial(fl.gradient_descent, relu, task),
        sgd=functools.partial(fl.stochastic_gradient_descent, relu, task, 0.1),
        rate=functools.partial(fl.largest_learning_rate, relu, task, 1.0),
    )  # fmt: skip


# One program for all runs of it: one event, a time past the end by rounding, plain numbers.
OPTIONS = {
    "ts": [0.1, 0.1 + 0.2],
    "events": fl.LossBelow(1.0),
    "observe": {"one": lambda network, task: 1, "half": lambda network, task: 0.5},
}


@pytest.fixture(scope="module")
def runs(things):
    """The things, and runs of the linear network."""
    task, linear, other = (things[name] for name in ("task", "linear", "other"))
    flow = fl.gradient_flow(linear, task, 0.3, max_steps=None, **OPTIONS)
    thin = fl.LinearNetwork.init(task, 3, key=jax.random.key(1))
    return things | dict(
        flow=flow, flows=stack(flow), steps=fl.gradient_descent(linear, task, 0.01, 4),
        of_other_task=fl.gradient_descent(linear, other, 0.01, 4),
        thinner=fl.gradient_descent(thin, task, 0.01, 4),
    )  # fmt: skip


def refused(things, call, parts):
    """The call raises; its message begins with the first part and has the others in order."""
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)) as caught:
        eval(call, things)
    message, place = str(caught.value.args[0]), 0
    assert message.startswith(parts[0]), message
    for part in parts:
        place = message.find(part, place)
        assert place >= 0, f"{part!r} is not in {message!r}"
        place += len(part)


TABLES = (NETWORKS, INITIAL, GRAPHS, TASKS, LOSSES, WAYS, EVENTS, RUNS, SWEEPS, THEORY)
TABLES += (MEASURES, PICTURES, FOREIGN)


@pytest.mark.parametrize(("call", "parts"), rows("".join(TABLES)))
@pytest.mark.filterwarnings("ignore::flowlin.KinksWarning")
def test_what_is_refused(things, call, parts):
    refused(dict(things), call, parts)
    plt.close("all")


@pytest.mark.parametrize(("call", "parts"), rows(LARGE))
def test_what_is_too_large(things, monkeypatch, call, parts):
    monkeypatch.setattr(os, "sysconf", lambda name: 2**17)
    refused(dict(things), call, parts)


@pytest.mark.parametrize(("call", "parts"), rows(OF_RUNS))
def test_what_runs_refuse(runs, call, parts):
    refused(dict(runs), call, parts)
    plt.close("all")


# --- what only some of a kind refuse, or only when the program runs


def watched(event, network, task):
    """What a run asks of an event."""
    return event.watches(SimpleNamespace(network=network, task=task), None, None)


USES = {
    "strengths": lambda modes, n, t, **how: modes.strengths(n, t, **how),
    "observable": lambda modes, n, t, **how: modes.observable(n, t, **how),
    "hits": lambda modes, n, t, **how: watched(fl.ModeHits(modes, 0.1, **how), n, t),
    "mode_matrix": lambda modes, n, t, **how: fl.measures.mode_matrix(n, t, modes, **how),
    "mode_shares": lambda modes, n, t, **how: fl.measures.mode_shares(n, t, modes, **how),
    "hidden_vectors": lambda modes, n, t, **how: fl.measures.hidden_vectors(n, t, modes, **how),
    "alignment": lambda modes, n, t, **how: fl.measures.alignment(n, t, modes, **how),
}


@pytest.mark.parametrize("use", USES)
def test_modes_of_another_origin_are_refused_by_all_who_use_them(things, use):
    modes, relu, other = things["modes"], things["relu"], things["other"]
    with pytest.raises(ValueError, match="`modes` are of other data than `task` 'other'"):
        USES[use](modes, relu, other)
    USES[use](modes, relu, other, check=False)


def test_modes_of_a_network_have_its_c(things):
    """A graph's modes had any c: strengths of a biased one were taken by the modes of c = 0."""
    task, relu = things["task"], things["relu"]
    (w1, w2), (b, _) = relu.parameters
    edges, last = {("x", "a"): w1, ("a", "y"): w2}, np.ones(7)
    gates = np.ones((4, 1))
    for network, c in (
        (relu, 1.0),
        (fl.LinearNetwork((w1, w2), (b, None), 2.0), 2.0),
        (fl.LinearNetwork((w1, w2)), 0.0),
        (fl.LinearNetwork((w1, w2), (None, last), 2.0), 0.0),
        (fl.GatedGraph(edges, {"a": b}, 2.0), 2.0),
        (fl.GatedGraph(edges, {"y": last}, 2.0), 0.0),
        (fl.GloballyGatedNetwork((w1, w2), (b, None), 2.0, gates=gates), 2.0),
    ):
        modes = fl.theory.modes(task, network)
        assert modes.bias_strength == c
        assert len(watched(fl.ModeHits(modes, 0.1), network, task)) == 1
        with pytest.raises(ValueError, match=f"`modes` are for c = 3 and the network has .*{c:g}?"):
            fl.theory.modes(task, 3.0).strengths(network, task)


def test_the_data_of_modes_are_known_in_any_precision_and_order_and_when_traced(things):
    task, modes, relu, other = (things[name] for name in ("task", "modes", "relu", "other"))
    order = np.array([2, 0, 3, 1])
    modes.strengths(relu, fl.Task(task.x[order], task.y[order]))
    single = cast((modes, relu, task), np.float32)
    single[0].strengths(*single[1:])
    for found in (modes, single[0]):
        with jax.numpy_dtype_promotion("standard"):
            found.strengths(relu, task)
        with pytest.raises(ValueError, match="other data"):
            found.strengths(relu, other)
    jax.eval_shape(lambda modes, task: modes.strengths(relu, task), modes, task)
    with pytest.raises(ValueError, match="other data"):  # known numbers, when traced too
        jax.eval_shape(lambda network: modes.strengths(network, other), relu)
    of_xor = fl.theory.modes(things["xor"], 1.0)
    with pytest.raises(ValueError, match="2 inputs and 2 outputs"):
        jax.eval_shape(lambda modes, task: modes.strengths(relu, task), of_xor, task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tau": 2.0},
            "`flow` has tau = 2.0, and the closed form is that of tau = 1; pass that as",
        ),
        ({"task": "other"}, "`flow` is of other data than the closed form, .* task 'other'"),
        ({"network": 1.1}, "`flow` starts from another network than the closed form"),
        ({"loss": fl.CrossEntropy()}, r"`flow` descends CrossEntropy\(\), .*`loss=fl.Squared"),
        ({"weight_decay": 0.1}, r"another function than its loss \(with weight decay\)"),
        ({"trainable": True}, "`flow` moves other arrays of the network"),
    ],
)
def test_a_closed_form_is_compared_with_a_flow_of_its_problem(things, options, message):
    """Each of these gave a number that looked like the form's error."""
    linear, task = things["linear"], things[options.pop("task", "task")]
    scale, all_but_one = options.pop("network", 1.0), jax.tree.map(lambda _: True, linear)
    if "trainable" in options:
        options["trainable"] = eqx.tree_at(lambda n: n.weights[1], all_but_one, False)
    start = fl.LinearNetwork([scale * w for w in linear.weights], linear.biases)
    flow = fl.gradient_descent(start, task, 1e-2, 4, **options)
    solution = fl.theory.solve(linear, things["task"])
    forms: list[Any] = [solution, fl.theory.lazy(linear, things["task"])]
    if scale == 1:  # the model after t* is also for other networks
        forms.append(fl.theory.AfterLinearization(solution, jnp.ones(6, bool)))
    for form in forms:
        with pytest.raises(ValueError, match=f"{message}.*`check=False` where"):
            form.error(flow)
    assert solution.error(flow, check=False).shape == flow.ts.shape


@pytest.mark.slow
def test_a_sum_at_the_speed_of_the_mean_is_of_the_same_problem(things, tmp_path):
    linear, task = (things[name] for name in ("linear", "task"))
    steps, solution = fl.gradient_descent(linear, task, 0.01, 4), fl.theory.solve(linear, task)
    mean = solution.error(steps)
    for tau, said in ((4.0, None), (1.0, r"tau = 1.0 with SquaredError.*that of tau = 4 with")):
        loss = fl.SquaredError("sum")
        quick = fl.gradient_descent(linear, task, 0.01 / tau, 4, loss=loss, tau=tau)
        if said is None:
            np.testing.assert_allclose(solution.error(quick), mean, rtol=1e3 * ROUNDING)
        else:
            with pytest.raises(ValueError, match=said):
                solution.error(quick)
    jitted = jax.jit(lambda found, run: found.error(run))(solution, steps)
    np.testing.assert_allclose(jitted, mean, rtol=1e3 * ROUNDING)
    # A file knows the loss and what was added to it, and so says more than nothing.
    decaying = {"weight_decay": 0.1, "solver": diffrax.Tsit5()}
    fl.gradient_flow(linear, task, 0.05, **decaying).save(tmp_path / "flow.npz")
    with pytest.raises(ValueError, match="with weight decay"):
        solution.error(fl.load(tmp_path / "flow.npz"))
    single = fl.gradient_descent(linear, task.astype("float32"), 0.01, 4)
    assert solution.error(single).shape == single.ts.shape


DERIVATIVES = {
    "jvp": lambda losses: jax.jvp(losses, (1.0,), (1.0,)),
    "jvp of jit": lambda losses: jax.jvp(jax.jit(losses), (1.0,), (1.0,)),
    "jit of jacfwd": lambda losses: jax.jit(jax.jacfwd(losses))(1.0),
    "hessian": lambda losses: jax.hessian(lambda tau: losses(tau)[-1])(1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_forward_derivatives_name_the_adjoint(things, derivative):
    flow = things["linearly"]
    with pytest.raises(ValueError, match=r"`adjoint=diffrax.ForwardMode\(\)`"):
        DERIVATIVES[derivative](lambda tau: flow(0.3, tau=tau, max_steps=64).losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "fine", "bad", "message"),
    [
        (
            lambda flow, descent: lambda tau: flow(0.3, tau=tau, max_steps=64),
            1.0, (-1.0, 0.0), "`tau` must be finite and positive",
        ),
        (
            lambda flow, descent: lambda tau: flow(0.3, tau=jnp.stack([1.0, tau]), max_steps=64),
            1.0, (-1.0,), "`tau` must be positive",
        ),
        (
            lambda flow, descent: lambda t1: flow(t1, max_steps=64),
            0.3, (np.nan,), "`t1` must be finite and positive",
        ),
        (
            lambda flow, descent: lambda decay: descent(2, weight_decay=decay),
            0.0, (-1.0, np.nan, np.inf), "`weight_decay` must be finite and zero or positive",
        ),
    ],
    ids=["tau", "tau of a layer", "t1", "weight_decay"],
)  # fmt: skip
def test_traced_values_are_checked_when_the_program_runs(things, run, fine, bad, message):
    function = run(things["linearly"], things["descent"])
    program = jax.jit(lambda value: function(value).losses)
    assert np.all(np.isfinite(program(fine)))
    for value in bad:
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            jax.block_until_ready(program(value))


# --- runs that fail keep what they have


def test_max_steps_keeps_what_was_computed(runs):
    linear, task, whole = runs["linear"], runs["task"], runs["flow"]
    with pytest.raises(fl.RunError, match="`max_steps` = 1 reached at t = ") as caught:
        fl.gradient_flow(linear, task, 0.3, max_steps=1, **OPTIONS)
    partial = caught.value.trajectory
    assert 0 < float(partial.end) < float(whole.end)
    assert len(partial.ts) < len(whole.ts)
    assert np.all(np.asarray(partial.ts) <= float(partial.end))
    assert np.all(np.isfinite(partial.losses))
    quiet = fl.gradient_flow(linear, task, 0.3, max_steps=1, throw=False, **OPTIONS)
    assert bool(quiet.result == fl.RESULTS.max_steps_reached)
    assert float(quiet.end) == float(partial.end)


class Breaking(fl.SquaredError):
    """A loss that is NaN below a level, gradient included if `hard`."""

    hard: bool = False

    def total_loss(self, outputs, targets, weights=None):
        total, level = super().total_loss(outputs, targets, weights), float(targets.shape[0])
        if self.hard:
            return jnp.where(total < level, jnp.sqrt(total - level), total)
        return jnp.where(total < level, jnp.nan, total)


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, True])
def test_nan_in_the_loss_leaves_what_was_computed(things, hard):
    task = things["task"]
    gated = fl.LinearNetwork.init(task, 4, 0.05, key=jax.random.key(0)).frozen(task)
    options = {"loss": Breaking(hard=hard), "ts": np.linspace(0, 30, 301)}
    options |= {"solver": diffrax.Tsit5()}
    flow = fl.gradient_flow(gated, task, 30.0, throw=False, **options)
    good = int(np.sum(np.isfinite(flow.losses)))
    assert good > 3
    assert float(flow.losses[good - 1]) >= 1.0
    expected = fl.RESULTS.dt_min_reached if hard else fl.RESULTS.not_finite
    assert bool(flow.result == expected)
    with pytest.raises(fl.RunError):
        fl.gradient_flow(gated, task, 30.0, **options)


# --- what is accepted, and that all is asked


def test_what_is_accepted(runs):
    flow, task, linear = runs["flow"], runs["task"], runs["linear"]
    assert float(flow.ts[-1]) == 0.3
    np.testing.assert_array_equal(flow.observed["one"], [1, 1])
    np.testing.assert_array_equal(flow.observed["half"], [0.5, 0.5])
    assert flow.events.channels[0].name == "loss"
    losses = fl.gradient_descent(linear, task, 0.01, 4, observe={})  # and nothing else
    assert losses.observed == {}
    assert losses.saved is None
    x, y = np.asarray(task.x), np.asarray(task.y)
    np.testing.assert_array_equal(task.take([-1, 0]).x, x[[-1, 0]])
    np.testing.assert_array_equal(task.take(y[:, 1] > 0).y, y[y[:, 1] > 0])
    assert fl.Task(np.ones((2, 1), "float16"), np.ones((2, 1), bool)).x.dtype == np.float64
    assert fl.LinearNetwork([[[1, 2]]]).dtype == np.float64
    strength = fractions.Fraction(1, 4)
    init: Any = fl.LinearNetwork.init
    network = init(task, jnp.array(2), bias_strength=strength, key=runs["key"])
    assert network.hidden == (2,)
    assert float(network.bias_strength) == 0.25
    assert linear.outputs(x[:0]).shape == (0, task.outputs)


# What runs hand to each other, with arguments of their own making.
INNER = {
    "activation", "gate", "gate_channel", "sliding", "map_columns",
    "merge_with", "method", "choose_solver", "model_at", "of", "with_run", "from_function",
    "remedy", "require_fit", "with_module",
    "smooth_outputs", "smooth_activation", "time_constants", "total_loss",
    "wrap_solver", "watches", "weight", "factor_per_sample",
    "require_weights", "is_sum_over_outputs",
    "with_parameters", "with_rows", "with_sample_gates", "memory", "velocity",
}  # fmt: skip
RETURNED = (
    Exception, fl.Accuracy, fl.Comparison, fl.CriticalPoint,
    fl.LossConvention, fl.EventLog, fl.Grid, fl.RunErrors,
    fl.Linearization, fl.Pathway, fl.RESULTS, fl.RateCertificate, fl.Rectified,
    fl.RectifiedPathway, fl.Trajectory,
)  # fmt: skip


def entrances(module):
    """Public functions, constructors and methods of a module, by name."""
    for name, thing in vars(module).items():
        if name.startswith("_") or not callable(thing):
            continue
        if not inspect.isclass(thing):
            yield name, thing
            continue
        if not issubclass(thing, RETURNED):
            yield name, thing.__init__
        for word, method in inspect.getmembers(thing, callable):
            method = inspect.unwrap(getattr(method, "__func__", method))
            own = str(getattr(method, "__module__", "")).startswith("flowlin")
            hidden = word in INNER or (word.startswith("_") and word != "__call__")
            if own and not hidden and not issubclass(thing, diffrax.AbstractSolver):
                yield f"{name}.{word}", getattr(thing, word)


@pytest.mark.parametrize("module", [fl, fl.tasks, fl.plot], ids=lambda module: module.__name__)
def test_every_public_callable_is_entered_through_the_door_that_checks(module):
    found = dict(entrances(module))
    assert len(found) > 5
    for name, function in found.items():
        parameters = inspect.signature(function).parameters.values()
        words = [p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD]
        assert hasattr(function, "checks") or not words, f"{name} is not decorated with `checked`"
