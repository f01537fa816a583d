"""The scripts of the papers' figures: sizes, committed results, the table of verdicts."""

import dataclasses
import importlib
import json
import pathlib
import re
import sys
import types

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples" / "paper"


@pytest.fixture(scope="module")
def verdicts():
    """The script that makes the table; its folder can be imported from."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("verdicts")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def studies(verdicts):
    """All studies by name."""
    return {name: verdicts.study_of(name) for name in verdicts.names()}


def test_studies_are_named_and_sized(studies):
    assert len(studies) >= 10
    for name, study in studies.items():
        assert study.name == name
        assert set(study.sizes) == {"quick", "default", "full"}
        (kind,) = {type(size) for size in study.sizes.values()}
        assert dataclasses.is_dataclass(kind)


def test_committed_results_hold_valid_verdicts(studies, verdicts):
    total = 0
    for study in studies.values():
        rows = verdicts.quoted(study)  # Row refuses what is no verdict
        assert rows
        assert all(row.claim and row.source for row in rows)
        assert not any("± 0 " in row.measured for row in rows)
        assert (verdicts.RESULTS / f"{study.name}.png").read_bytes().startswith(b"\x89PNG")
        total += len(rows)
    assert total >= 40


def named(numbers, word):
    """All that stands under names with a word in them."""
    for name, value in numbers.items():
        if word in name and value:
            yield value
        if isinstance(value, dict):
            yield from named(value, word)


def lacks_its_flow(record):
    """Whether a figure speaks of a flow that its numbers do not hold: of a ReLU network on images
    with its events, cost and error."""
    says, numbers = record.get("figure says", []), record["numbers"]
    if not any("flow" in words for words in says):
        return False
    if not any("images" in words for words in says):
        return not any(named(numbers, "flow"))
    flows = numbers.get("flow relu", [])
    wanted = {"data", "preprocessing", "c", "seed", "hidden", "rtol"}
    return not flows or any(
        not wanted <= set(flow) or flow["error"] is None or not any(flow["half times"])
        for flow in flows
    )


def test_a_figure_that_speaks_of_a_flow_has_one(studies, verdicts):
    for name in studies:
        assert not lacks_its_flow(json.loads((verdicts.RESULTS / f"{name}.json").read_text())), name
    says = ["60,000 images: descent (markers), flow (lines)"]
    known = dict.fromkeys(("data", "preprocessing", "c", "seed", "hidden", "rtol"), 0)
    flow = known | {"error": 1e-3, "half times": [0.1, None]}
    assert not lacks_its_flow({"figure says": says, "numbers": {"flow relu": [flow]}})
    for flows in ([], [flow | {"error": None}], [flow | {"half times": [None]}], [{"error": 1e-3}]):
        assert lacks_its_flow({"figure says": says, "numbers": {"flow relu": flows}})
    assert lacks_its_flow({"figure says": ["the flow"], "numbers": {"losses": [1]}})
    assert not lacks_its_flow({"figure says": ["the loss"], "numbers": {}})


def test_results_are_those_of_studies(studies, verdicts):
    assert {path.stem for path in verdicts.RESULTS.glob("*.json")} == set(studies)


def test_committed_table_is_up_to_date(studies, verdicts):
    tables = verdicts.tables(verdicts.entries(list(studies), verdicts.quoted), verdicts.RESULTS)
    committed = (verdicts.RESULTS / "verdicts.md").read_text()
    assert committed == tables, "run examples/paper/verdicts.py --quoted and commit the table"


def test_rows_are_refused_that_say_too_little(verdicts):
    with pytest.raises(ValueError, match="`verdict` must start with"):
        verdicts.Row("claim", "source", "measured", "nearly holds", "so it is")
    with pytest.raises(ValueError, match="`kind` must start with"):
        verdicts.Row("claim", "source", "measured", "holds", "so it is", "guess")
    with pytest.raises(ValueError, match="`quote` is missing: where does source say 'claim'"):
        verdicts.Row("claim", "source", "measured", "holds")
    row = verdicts.Row("claim", "source", "measured", "measured: 3", kind="control")
    assert verdicts.Row.of(row.record) == row
    assert (row.record["class"], row.record["outcome"]) == ("control", "measured")


def test_verdicts_that_margins_move_are_told(studies, verdicts):
    judge = importlib.import_module("_judge")
    study = next(iter(studies.values()))

    def judged(distance):
        found = judge.verdict(judge.same(distance + np.array([0, 1e-3, 2e-3]), judge.LOSSES))
        return [verdicts.Row("claim", "source", "measured", found, "so it is")]

    (row,) = dataclasses.replace(study, judge=judged).rows(0.01)
    assert (row.verdict, row.moves) == ("holds", "")
    (row,) = dataclasses.replace(study, judge=judged).rows(0.04)
    assert (row.verdict, row.moves) == ("holds", "at half the margins: undecided")
    (row,) = dataclasses.replace(study, judge=judged).rows(0.12)
    assert (row.verdict, row.moves) == ("refuted as stated", "at twice the margins: undecided")


def test_quoting_marks_the_size(studies, verdicts, tmp_path):
    study = dataclasses.replace(next(iter(studies.values())), name="images")
    row = verdicts.Row("a", "b", "c", "holds", "a is so").record
    size = {"name": "default", "mnist": {"samples": 2000}, "seeds": 5}
    record = {"study": "images", "size": size, "numbers": {}, "verdicts": [row]}
    (tmp_path / "images.json").write_text(json.dumps(record))
    (found,) = verdicts.quoted(study, tmp_path)
    assert found.measured == "quoted, default size, 2,000 samples, 5 seeds: c"
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        verdicts.quoted(dataclasses.replace(study, name="nothing"), tmp_path)


def test_tables_escape_and_count(verdicts, tmp_path):
    script = "examples/paper/errata.py"
    rows = [
        verdicts.Entry("|y|", "M", "a*b\nc", "holds", script, "so |y|", moves="at half: no"),
        verdicts.Entry("x", "M", "1", "refuted as stated", script, "x is so"),
        verdicts.Entry("z", "M", "1", "measured: 2", script, kind="control"),
    ]
    text = verdicts.tables(rows, verdicts.RESULTS)
    line = text.splitlines()[4]
    assert len(re.findall(r"(?<!\\)\|", line)) == 6
    for part in (r"a\*b c", "[errata](../errata.py)", r"“so \|y\|”", "holds<br>at half: no"):
        assert part in line
    assert text.splitlines()[0] == "## M, the lead paper"
    assert "In all 2 claims in 1 studies: 1 holds; 1 refuted as stated." in text
    assert "1 rows in 1 studies: 1 measured." in text


def test_a_failing_study_is_a_row(verdicts, capsys):
    def rows_of(study):
        if study.name == "errata":
            raise RuntimeError("no luck")
        return [verdicts.Row("a", "b", "c", "holds", "a is so")]

    failed, good = verdicts.entries(["errata", "m_prop1"], rows_of)
    assert failed.verdict == verdicts.FAILED
    assert "no luck" in failed.measured
    assert good.verdict == "holds"
    assert good.script == "examples/paper/m_prop1.py"
    assert "no luck" in capsys.readouterr().err


def test_no_study_begins_late_and_those_left_out_are_told(verdicts, capsys):
    assert verdicts.entries(["errata", "m_prop1"], pytest.fail, minutes=-1) == []
    assert "-1 minutes are over: errata m_prop1" in capsys.readouterr().out


ERRATUM = ("5 Eq. 10", "claim", "source", "measured")


@pytest.mark.parametrize("condition", [None, ("c = 1", 0.0), ("c = 1", 0.5)])
def test_errata_are_judged_by_their_errors(verdicts, condition):
    finding = importlib.import_module("_errata").Finding
    row = finding(*ERRATUM, 1e-9, 0.0, condition, quote="so it is").row
    assert (row.verdict, row.quote, row.kind) == ("holds", "so it is", "claim")
    right = condition is not None and condition[1] == 0
    expected = "holds in part, refuted as stated: c = 1" if right else "refuted as stated"
    row = finding(*ERRATUM, 0.7, 0.0, condition, quote="so it is").row
    assert row.verdict == expected
    assert row.measured.startswith("measured: error as printed 0.7, right form 0")
    row = finding(*ERRATUM, 0.7, 0.0, condition, left_open=True, quote="so it is").row
    assert row.verdict == ("holds under a condition: c = 1" if right else "refuted as stated")
    with pytest.raises(ValueError, match="`quote` is missing"):
        _ = finding(*ERRATUM, 1e-9).row


def test_what_the_one_correction_mends_is_a_misprint(verdicts):
    finding = importlib.import_module("_errata").Finding
    how = {"correction": "with c", "quote": "so it is"}
    assert finding(*ERRATUM, 0.7, 0.0, **how).row.verdict == "misprint: with c"
    assert finding(*ERRATUM, 0.7, 0.5, **how).row.verdict == "refuted as stated"
    assert finding(*ERRATUM, 0.0, 0.0, **how).row.verdict == "holds"


def test_what_nobody_claims_is_a_control(verdicts):
    finding = importlib.import_module("_errata").Finding
    row = finding(*ERRATUM, 0.7, found="no", kind="control", formula=False).row
    assert (row.kind, row.verdict, row.measured) == ("control", "measured: no", "measured")


def test_one_claim_is_one_row(studies, verdicts):
    claims = [row.claim for study in studies.values() for row in verdicts.quoted(study)]
    assert len(set(claims)) == len(claims)


def test_separate_drops_of_the_loss_are_counted(verdicts):
    drops = importlib.import_module("_tree").drops
    ts = np.linspace(0, 30, 301)

    def number(*times, steep=4.0):
        losses = sum(1 / (1 + np.exp(steep * (ts - at))) for at in times)
        return drops(types.SimpleNamespace(ts=ts, losses=losses))

    assert [number(12), number(5, 14, 25), number(5, 12, 14, 25)] == [1, 3, 4]
    assert number(12, 14, steep=1.0) == 1  # they overlap


def test_rules_say_when_they_cannot_tell(verdicts):
    judge = importlib.import_module("_judge")
    margins = judge.Margins(0.1, 0.2, "of it")
    # Student's t with two degrees of freedom: 4.303 standard errors.
    values = np.array([0.0, 0.01, 0.02])
    assert judge.half_width(values) == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert judge.same(values, margins) is True
    assert judge.same(values, margins, of=100) is None  # wider intervals
    assert judge.same(0.2 + values, margins) is None
    assert judge.same(-0.3 - values, margins) is False
    assert judge.apart(0.3 + values, margins) is True
    assert judge.same([0.0], margins) is None
    assert judge.more(values + 1, values) is True
    assert judge.more(values, values + np.array([1, 1, 1.1])) is False
    assert judge.more(values) is None
    # Wilson's interval of 9 in 10 is (.596, .982).
    assert judge.wilson(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-4)
    assert judge.usual([True] * 9 + [False]) is True
    assert judge.usual([True] * 6 + [False] * 4) is None
    assert judge.usual([False] * 10) is False


def test_the_verdict_is_the_worst_of_all_readings(verdicts):
    words = importlib.import_module("_judge").verdict
    part = ("c = 1", True)
    assert words(True, ("c = 1", False)) == "holds"
    assert words({"a": True, "b": True}) == "holds"
    assert words({"a": False, "b": True, "c": None}, part) == "holds under a condition: b"
    assert words({"a": False, "b": None}) == "undecided"
    assert words(False, part) == "holds in part, refuted as stated: c = 1"
    assert words(None, part) == "undecided"
    assert words(False, ("c = 1", None)) == "refuted as stated"
    assert words(None) == "undecided"


def test_distances_of_both_signs_are_not_the_same(verdicts):
    judge = importlib.import_module("_judge")
    signs = np.resize([1.0, -1.0], 10)
    assert judge.same(0.3 * signs, judge.LOSSES) is False
    assert judge.same(0.01 * signs, judge.LOSSES) is True
    assert judge.interval(np.ones(4)) == "1 in all 4 seeds"


def test_a_stretch_of_time_is_told_from_a_shift(verdicts):
    tree = importlib.import_module("_tree")
    linear = np.array([[2.0, 9, 13, 20], [1.8, 9.2, 13.1, 20.5]])
    stretched, shifted = tree.Pace(1.2 * linear, linear), tree.Pace(linear + 1.5, linear)
    assert stretched.common == pytest.approx(1.2)
    for found in (stretched.uneven, stretched.after_factor, shifted.after_shift):
        assert found == pytest.approx(0, abs=0.01)
    assert np.all(stretched.after_shift > 0.05)
    assert np.all(shifted.after_factor > 0.2)
    assert tree.in_step(stretched) is True
    assert tree.out_of_step(shifted, stretched) is True
    ts = np.linspace(0, 10, 201)
    curve = np.stack([np.tanh(ts), np.exp(-ts)], axis=1)
    late = np.stack([np.tanh(ts / 1.3), np.exp(-ts / 1.3)], axis=1)
    assert tree.stretched(ts, late, curve) == pytest.approx((1.3, 0), abs=2e-3)


def test_modes_of_one_singular_value_are_one_group(verdicts):
    tree = importlib.import_module("_tree")
    sizes = [len(group) for group in tree.groups_of("tree", 1.0)]
    assert sizes == [1, 1, 2, 4]
    assert [len(group) for group in tree.groups_of("centred tree", 1.0)] == [1, 2, 4]
    assert tree.grouped(np.arange(8), "tree", 1.0).tolist() == [0, 1, 2.5, 5.5]


def test_images_losses_are_judged_for_both_widths(verdicts):
    images, rows = (importlib.import_module(name) for name in ("_images", "_images_rows"))
    ts = np.linspace(0, 4, 41)
    zero, same, half = np.zeros(41), *images.LINEAR

    def phase(c, *levels):
        """ReLU losses that are further from linear ones by `levels` times t, of two seeds."""
        loss = 0.5 * np.exp(-ts)
        linear = [images.Run(ts, loss, {})] * 2
        others = [images.Run(ts, loss + 0.5 * level * ts, {}) for level in levels]
        runs = {"relu": linear, same: others, half: [images.Run(ts, loss + zero, {})] * 2}
        return images.Early(c, 0.1, 4.0, runs, {}, {}, zero=0.5)

    down = images.down_time(phase(10.0, 0).descents[half][0], phase(10.0, 0))
    np.testing.assert_allclose(down, -np.log(0.1 + 0.9 * np.exp(-4)), rtol=1e-3)
    with_bias, without = phase(10.0, 0.04, 0.04), phase(0.0, 0.08, 0.0801)
    np.testing.assert_allclose(images.partings(with_bias, same), [2.5, 2.5])
    np.testing.assert_allclose(images.partings(with_bias, half), [4, 4])
    down = images.down_time(with_bias.descents[same][0], with_bias)
    np.testing.assert_allclose(images.gaps(with_bias, same), 0.04 * down / 2)
    pair = {"bias": with_bias, "no bias": without}
    words = ("claim", "source", "so it is")
    part = rows.part(images.Setting(end=4.0), pair, *words)
    assert part.verdict == "holds"
    assert part.measured.count("same width 2.5 in all 2 seeds with bias") == 1
    assert "per batch mean" not in part.measured
    assert rows.closer({"plain": without, "fine": with_bias}, *words).verdict == "holds"
    assert rows.closer({"plain": with_bias, "fine": without}, *words).outcome != "holds"
    assert "closer with bias" in rows.aligned(pair, *words).measured


def test_images_flows_stand_for_the_rate_per_mean(verdicts):
    images, rows = (importlib.import_module(name) for name in ("_images", "_images_rows"))
    ts, (same, half) = np.linspace(0, 4, 41), images.LINEAR
    loss = 0.5 * np.exp(-ts)

    def phase(level, flow_level, half_level=0.0):
        """Two seeds whose ReLU losses are that far from linear ones, in descent and flow."""

        def runs(by):
            return [images.Run(ts, loss + by * noise, {}) for noise in (1.0, 1.001)]

        descents = {"relu": runs(0.0), same: runs(level), half: runs(half_level)}
        flows = {"relu": runs(0.0), same: runs(flow_level), half: runs(half_level)}
        flows[half] = flows[half] * 2  # flows of linear networks are run for more seeds
        return images.Early(10.0, 0.1, 4.0, descents, flows, {}, zero=0.5)

    words = ("claim", "source", "so it is")
    with_bias = phase(0.01, 0.01)
    row = rows.aligned({"bias": with_bias, "no bias": phase(0.1, 0.1, 0.1)}, *words)
    assert row.verdict == "holds"
    assert "per batch mean (the flow): same width 0.02" in row.measured
    row = rows.aligned({"bias": with_bias, "no bias": phase(0.1, 0.0, 0.1)}, *words)
    assert row.verdict == "holds under a condition: the rate is per batch sum"
    row = rows.aligned({"bias": phase(0.1, 0.1), "no bias": phase(0.01, 0.01, 0.1)}, *words)
    assert row.verdict == f"holds in part, refuted as stated: {rows.HALF_WIDTH}"
    assert "further apart with bias" in row.measured


def test_kept_runs_are_read_again(verdicts, tmp_path, monkeypatch):
    images = importlib.import_module("_images")
    monkeypatch.setattr(images, "RUNS", tmp_path)

    class Found:
        ts = np.array([0.0, 1.0, np.inf])
        losses = np.array([0.5, 0.25, np.nan])
        observed = {"open": np.ones((3, 2))}  # noqa: RUF012

    setting, calls = images.Setting(kept=True), []

    def made():
        calls.append(1)
        return Found

    runs = [images.kept(setting, made, "descent", seed) for seed in (0, 0, 1)]
    assert len(calls) == 2
    np.testing.assert_array_equal(runs[1].losses, [0.5, 0.25])
    assert runs[1].observed["open"].shape == (2, 2)
    images.kept(dataclasses.replace(setting, seeds=3), made, "descent", 0)
    assert len(calls) == 2  # more seeds, same run
    images.kept(dataclasses.replace(setting, variance=1.0), made, "descent", 0)
    assert len(calls) == 3


@pytest.mark.parametrize("name", ["m_fig1", "m_fig8"])
def test_what_is_drawn_anew_is_what_is_committed(verdicts, name):
    study = verdicts.study_of(name)
    record = json.loads((verdicts.RESULTS / f"{name}.json").read_text())
    plain = importlib.import_module("_paper").plain
    numbers = study.numbers(study.again(record))
    found, held = json.loads(json.dumps(numbers, default=plain)), record["numbers"]
    assert found["flow relu"] == held["flow relu"]
    losses = curves(held["losses"])
    assert len(losses) > 10
    for place, rows in curves(found["losses"]).items():
        np.testing.assert_allclose(rows, losses[place], rtol=1e-5)  # of six digits


def curves(found):
    """By their place, all losses that are drawn."""
    if "t" not in found:
        parts = {key: curves(value) for key, value in found.items()}
        return {(key, *place): v for key, part in parts.items() for place, v in part.items()}
    drawn = ("descent ", "flow ", "closed ")
    return {(key,): np.array(v) for key, v in found.items() if key.startswith(drawn)}


def test_every_further_picture_is_committed_and_has_a_caption(studies, verdicts):
    for name, study in studies.items():
        own = {path.stem for path in verdicts.RESULTS.glob(f"{name}_*.png")}
        assert own == {f"{name}{ending}" for ending in study.others}, name
        module = importlib.import_module(name)
        assert all(getattr(module, f"draw{ending}").__doc__ for ending in study.others), name
