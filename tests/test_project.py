"""The project as a user meets it: import, README, main job, precision, GPU."""

import contextlib
import functools
import io
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowlin as fl

ROOT = pathlib.Path(__file__).resolve().parent.parent


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=ROOT, check=True, env={**os.environ, **environment},
    ).stdout  # fmt: skip


def test_import_sets_no_flag_and_pulls_in_no_extra():
    out = python(
        """
        import json, sys, time
        import jax
        before = dict(jax.config.values)
        import diffrax
        known = set(sys.modules)
        start = time.perf_counter()
        import flowlin
        seconds = time.perf_counter() - start
        new = set(sys.modules) - known
        print(json.dumps({
            "same": before == dict(jax.config.values),
            "extras": sorted(
                {m.split(".")[0] for m in new}
                & {"matplotlib", "pandas", "pooch", "sklearn", "tqdm"}
            ),
            "seconds": seconds,
        }))
        assert "plot" in dir(flowlin)
        sys.modules["matplotlib"] = None
        try:
            flowlin.plot
        except ImportError as error:
            print(error)
        """,
        JAX_ENABLE_X64="0",
    )
    told, without_matplotlib = out.splitlines()
    assert without_matplotlib == "`fl.plot` needs matplotlib: pip install 'flowlin[plot]'."
    found = json.loads(told)
    assert found["same"]
    assert found["extras"] == []
    assert found["seconds"] < 5.0


def test_configure_keeps_programs_for_the_next_process(tmp_path):
    """With JAX's own programs forgotten, as in a new process, all come from the folder."""
    out = python(
        f"""
        import collections, json, jax
        import flowlin as fl
        counts = collections.Counter()
        jax.monitoring.register_event_listener(lambda name, **_: counts.update([name]))
        jax.jit(lambda x: x + 1)(1.0)  # a program before there is a folder
        assert fl.configure(cache={str(tmp_path / "new" / "folder")!r}) is None
        for last in (False, True):
            counts.clear()
            jax.clear_caches()
            network = fl.LinearNetwork.init(fl.tasks.hierarchy(), 4, key=jax.random.key(0))
            found = [counts[f"/jax/compilation_cache/cache_{{how}}"] for how in ("hits", "misses")]
            print(json.dumps([*found, str(network.dtype)]))
        """,
        JAX_ENABLE_X64="0",
        JAX_COMPILATION_CACHE_DIR="",
    )
    (hits, misses, dtype), (hits_again, misses_again, _) = map(json.loads, out.splitlines())
    assert hits < misses
    assert misses_again == 0
    assert hits_again > 3
    assert dtype == "float64"
    assert any((tmp_path / "new" / "folder").iterdir())


def test_configure_refuses_what_is_no_folder(tmp_path):
    before = dict(jax.config.values)
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below", "\0"):
        with pytest.raises(ValueError, match="`cache`: no compiled programs can be kept in"):
            fl.configure(cache=wrong)  # pyright: ignore
    for wrong in (1, None, "", b"folder"):
        with pytest.raises(ValueError, match="`cache` must be"):
            fl.configure(cache=wrong)  # pyright: ignore
    with pytest.raises(ValueError, match="`x64` must be True or False"):
        fl.configure(x64="yes", cache=str(tmp_path))  # pyright: ignore
    fl.configure(x64=False, cache=False)
    assert dict(jax.config.values) == before


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """What the README's example prints, in a folder that takes its picture."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    folder = contextlib.chdir(tmp_path_factory.mktemp("readme"))
    with folder, contextlib.redirect_stdout(io.StringIO()) as told:
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    return told.getvalue()


@pytest.mark.slow
def test_readme_example_runs(readme):
    assert re.search(r"hitting times: \[[ \d.e+inf\n]+\]", readme)
    for word in ("open", "closed", "fraction", "ExactKinks()"):
        assert word in readme
    assert "nan" not in readme.lower()


@pytest.mark.slow
def test_the_front_page_shows_the_ten_lines_and_what_they_print(readme):
    page = (ROOT / "docs" / "index.md").read_text()
    (code,), (shown,) = (re.findall(rf"```{k}\n(.*?)```", page, re.S) for k in ("python", "text"))
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code == lines
    assert_prints_agree(readme, shown)
    (short,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert_prints_agree("\n".join(readme.splitlines()[: len(short.splitlines())]), short)


def assert_prints_agree(told, shown):
    """Hold two prints of one walk to one another, but for what a machine's rounding decides.

    These are the digits of every ±, whether a touch switches twice or not at all, hence the numbers
    of switches and of steps, and the last digits of every time. A slide's drive is found to be
    within the error at the start of a step.
    """
    number = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    told, shown = (re.sub(r"± \S+|  touches .*\n", "", text).splitlines() for text in (told, shown))
    for one, other in zip(told, shown, strict=True):
        assert re.sub(number, "#", one).split() == re.sub(number, "#", other).split()
        by_steps = one.startswith(("  events ", "  end ", "  slides "))
        for a, b in zip(re.findall(number, one), re.findall(number, other), strict=True):
            off = 0.05 if by_steps else 1e-4 if "." in a else 0.0
            assert float(a) == pytest.approx(float(b), rel=off, abs=0)


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'plots'"):
        fl.plots  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'strengh'"):
        fl.theory.strengh  # noqa: B018


def test_a_name_that_is_gone_says_what_to_write():
    """The call that it became is one that there is."""
    given = {"s": 1.5, "d": 1.0, "a0": 0.1, "tau": 1.0, "t": 0.5, "rho": 0.75, "imbalance": 0.1}
    given |= {"depth": 3.0, "p": np.ones(2), "q": np.ones(2), "w1": 0.1, "w2": 0.2}
    names = [
        *("unbalanced_strength", "unbalanced_hitting_time", "unbalanced_start", "half_time"),
        *("inflection_levels", "inflection_times", "mode_vectors", "mode_weights"),
        *("deep_strength", "deep_hitting_time", "deep_start", "deep_half_time"),
        *("deep_inflection_level", "deep_inflection_time"),
    ]
    for name in names:
        with pytest.raises(AttributeError, match=f"`flowlin.theory.{name}` is gone") as told:
            getattr(fl.theory, name)
        call = str(told.value).split("write `")[1].removesuffix("`.")
        answer = functools.partial(eval, call, {"theory": fl.theory, **given})
        assert jax.tree.leaves(jax.eval_shape(answer)), call


def test_an_attribute_that_is_gone_says_what_to_write():
    gone = {
        fl.EventLog: {"gates": "sides"},
        fl.GatedLinearNetwork: {"gates_": "given_gates"},
        fl.Rectified: {
            "work": "loss_fall", "needed": "pathways_needed", "explained": "explained_share"
        },
        fl.theory.EarlyPhase: {"codes": "sides", "final_codes": "final_sides"},
        fl.theory.Race: {"alone": "lone_strengths", "unexplained": "unexplained_loss"},
        fl.theory.SlowedClock: {"reading": "reading_at"},
    }  # fmt: skip
    for kind, names in gone.items():
        empty = object.__new__(kind)
        for old, new in names.items():
            assert hasattr(kind, new) or new in kind.__annotations__
            with pytest.raises(AttributeError, match=f"`{kind.__name__}.{old}` is gone; .*`{new}`"):
                getattr(empty, old)
        with pytest.raises(AttributeError, match="object has no attribute 'strengh'"):
            empty.strengh  # noqa: B018
    for module, name in ((fl, "Convention"), (fl.theory, "Lead"), (fl.plot, "gate_history")):
        with pytest.raises(AttributeError, match=f"{name}` is gone"):
            getattr(module, name)


def test_readme_commands_exist():
    text = (ROOT / "README.md").read_text()
    assert "python3 dev.py main" in text
    assert "python3 dev.py test" in text
    assert "python3 dev.py test" in (ROOT / ".ci" / "run").read_text()


def test_version_is_told_alike():
    citation, changes = (ROOT / "CITATION.cff").read_text(), (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {fl.__version__}\n" in citation
    assert re.findall("^## (.*?) ", changes, re.M)[0] == fl.__version__


@pytest.mark.slow
def test_main_job_prints_its_tables_and_saves_its_figure(tmp_path):
    out = subprocess.run(
        [sys.executable, "examples/linearization_time.py", "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, check=True,
    ).stdout  # fmt: skip
    assert "Hitting times of the modes" in out
    assert re.search(r"ReLU, bias +flow, open +[\d.]+", out)
    assert (tmp_path / "linearization_time_hierarchy.png").stat().st_size > 20_000


@pytest.mark.slow
def test_float32_flow_holds_its_tolerance():
    tree = fl.tasks.hierarchy()
    network = fl.LinearNetwork.init(tree, 6, key=jax.random.key(0))

    def run(dtype, rtol):
        task, start = tree.astype(dtype), network.astype(dtype)
        half = fl.ModeHits(fl.theory.modes(task, 1.0), share=0.5)
        how = {"events": half, "solver": diffrax.Tsit5()}
        return fl.gradient_flow(start, task, 20.0, rtol=rtol, **how)

    double, single = run(jnp.float64, 1e-8), run(jnp.float32, 1e-4)
    assert single.final.dtype == jnp.float32
    assert len(single.events) == len(double.events)
    assert np.allclose(single.events.time, double.events.time, rtol=2e-3)
    assert np.allclose(single.losses, double.losses, rtol=5e-3)


@pytest.mark.slow
def test_everything_runs_without_float64():
    out = python(
        """
        import jax
        import flowlin as fl
        task = fl.tasks.hierarchy()
        key = jax.random.key(0)
        relu = fl.ReLUNetwork.init(task, 8, key=key)
        flow = fl.gradient_flow(relu, task, 3.0, dense=True, kinks=fl.SmoothKinks(1e-3))
        descent = fl.gradient_descent(relu, task, 1e-2, 300)
        print(flow.ts.dtype, flow.final.dtype, float(fl.compare(flow, descent).parameters[-1]))
        """,
        JAX_ENABLE_X64="0",
    )
    time_dtype, dtype, gap = out.split()
    assert (time_dtype, dtype) == ("float32", "float32")
    assert float(gap) < 0.05


class Terminal(io.StringIO):
    """Standard error of somebody who looks."""

    def isatty(self):
        return True


@pytest.mark.slow
def test_progress_bars_show_and_change_nothing(capfd, monkeypatch):
    tree = fl.tasks.hierarchy()
    network = fl.LinearNetwork.init(tree, 4, key=jax.random.key(0))
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        shown = fl.gradient_flow(network, tree, 5.0, progress=True)
    last = terminal.getvalue().split("\r")[-1]
    assert "100%" in last
    assert "t = 5/5" in last
    assert f"loss {float(shown.losses[-1]):.4g}, {shown.stats['num_steps']} steps" in last
    fl.gradient_flow(network, tree, 5.0, progress=True)
    assert capfd.readouterr().err == ""  # nobody looks
    jitted = jax.jit(lambda n: fl.gradient_flow(n, tree, 5.0, progress=True).losses)
    jax.block_until_ready(jitted(network))
    jax.effects_barrier()
    fl.gradient_descent(network, tree, 0.1, 50, progress=True)
    fl.sweep([network], tree, 5.0, progress=True)
    assert capfd.readouterr().err == ""
    quiet = fl.gradient_flow(network, tree, 5.0)
    assert capfd.readouterr().err == ""
    assert jnp.allclose(shown.final.weights[0], quiet.final.weights[0], rtol=1e-12, atol=1e-15)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    jax.block_until_ready(jitted(network))
    jax.effects_barrier()
    fl.gradient_descent(network, tree, 0.1, 50, progress=True)
    fl.sweep([network], tree, 5.0, progress=True)
    for shown in ("100.00%", "t = 5/5", ", 50 steps, ", "1/1"):
        assert shown in terminal.getvalue()


@pytest.mark.slow
def test_log_lines_say_how_far_it_is_and_change_nothing(monkeypatch):
    tree = fl.tasks.hierarchy()
    network = fl.LinearNetwork.init(tree, 4, key=jax.random.key(0))
    # As if every reading of the clock were a minute later.
    monkeypatch.setattr(time, "monotonic", itertools.count(step=60.0).__next__)
    log = io.StringIO()
    shown = fl.gradient_flow(network, tree, 60.0, rtol=1e-10, progress=fl.LogProgress(stream=log))
    *lines, last = log.getvalue().splitlines()
    assert len(lines) > 2
    assert re.fullmatch(
        r"t = [\d.]+ of 60 \(\d+%\), loss [\d.]+, [\d,]+ steps, [\d.e-]+/s, "
        r"\d+:\d\d:00 passed, \d+:\d\d:\d\d left",
        lines[0],
    )
    steps = shown.stats["num_steps"]
    assert last.startswith(
        f"t = 60 of 60 (100%), loss {float(shown.losses[-1]):.4g}, {steps} steps"
    )
    assert last.endswith("0:00:00 left, ended")
    monkeypatch.undo()
    plain = fl.gradient_flow(network, tree, 60.0, rtol=1e-10, progress=fl.LogProgress(stream=log))
    assert jnp.array_equal(shown.final.weights[0], plain.final.weights[0])
    descent_log = io.StringIO()
    descent = fl.gradient_descent(
        network, tree, 0.1, 50, progress=fl.LogProgress(stream=descent_log)
    )
    descent.extend(6.0, progress=fl.LogProgress(stream=descent_log))
    first, second = descent_log.getvalue().splitlines()
    assert "50 steps" in first
    assert "60 steps" in second
    jitted = jax.jit(lambda n: fl.gradient_flow(n, tree, 60.0, progress=fl.LogProgress()).losses)
    with pytest.raises(ValueError, match="outside of `jit`"):
        jitted(network)


def test_log_lines_of_a_descent_say_of_when_its_loss_is(monkeypatch):
    tree = fl.tasks.hierarchy()
    network = fl.LinearNetwork.init(tree, 4, key=jax.random.key(0))
    monkeypatch.setattr(time, "monotonic", itertools.count(step=60.0).__next__)
    log = io.StringIO()
    run = fl.gradient_descent(
        network, tree, 0.1, 40, save_every=20, progress=fl.LogProgress(stream=log)
    )
    lines = [line.split(", ") for line in log.getvalue().splitlines()]
    told = {
        saved: f"loss {loss:.4g}"
        for saved, loss in zip(run.ts.tolist(), run.losses.tolist(), strict=True)
    }
    for at, loss, *_ in lines:
        reached = float(at.split()[2])
        saved = max(t for t in told if t <= reached)
        assert loss == told[saved] + (f" at t = {saved:.4g}" if saved < reached else "")
    assert any(" at t = " in loss for _, loss, *_ in lines)


def test_progress_without_tqdm_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    tree = fl.tasks.hierarchy()
    network = fl.LinearNetwork.init(tree, 4, key=jax.random.key(0))
    with pytest.raises(ImportError, match=r"pip install 'flowlin\[progress\]'"):
        fl.gradient_flow(network, tree, 5.0, progress=True)


gpu = pytest.mark.skipif(
    all(device.platform == "cpu" for device in jax.devices()), reason="JAX sees no GPU"
)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kind", [fl.LinearNetwork, fl.ReLUNetwork])
def test_cpu_and_gpu_agree(kind):
    """The same flow on both devices, in float64, to the tolerance."""
    finals = []
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        with jax.default_device(device):
            task = fl.tasks.hierarchy()
            network = kind.init(task, 16, key=jax.random.key(0))
            # At the default rtol rounding leads to other steps, whose errors are 1e-6.
            kinks = fl.SmoothKinks(1e-3)
            finals.append(fl.gradient_flow(network, task, 5.0, kinks=kinks, rtol=1e-11).final)
    for a, b in zip(*(jax.tree.leaves(jax.device_get(f)) for f in finals), strict=True):
        assert jnp.allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
@gpu
def test_a_flow_in_float32_is_as_right_on_a_gpu():
    """With factors rounded to 11 bits (TF32) the loss would be off by 1e-4."""
    x, y = (jax.random.normal(jax.random.key(k), (512, n)) for k, n in ((1, 128), (2, 8)))
    task = fl.Task(x, y).astype(jnp.float32)
    network = fl.LinearNetwork.init(task, 128, key=jax.random.key(0))
    losses = []
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        with jax.default_device(device):
            own, there = jax.device_put((network, task), device)
            run = fl.gradient_flow(own, there, 2.0)
        losses.append(jax.device_get(run.losses))
    assert jnp.allclose(*losses, rtol=1e-5)


@pytest.mark.gpu
@gpu
def test_main_job_runs_on_gpu(tmp_path):
    test_main_job_prints_its_tables_and_saves_its_figure(tmp_path)
