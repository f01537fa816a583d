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
        assert (verdicts.RESULTS / f"{study.name}.png").read_bytes().startswith(b"\x89PNG")
        total += len(rows)
    assert total >= 40


def test_results_are_those_of_studies(studies, verdicts):
    assert {path.stem for path in verdicts.RESULTS.glob("*.json")} == set(studies)


def test_committed_table_is_up_to_date(studies, verdicts):
    table = verdicts.table(verdicts.entries(list(studies), verdicts.quoted), verdicts.RESULTS)
    committed = (verdicts.RESULTS / "verdicts.md").read_text()
    assert committed == table, "run examples/paper/verdicts.py --quoted and commit the table"


def test_row_refuses_unknown_verdict(verdicts):
    with pytest.raises(ValueError, match="`verdict`"):
        verdicts.Row("claim", "source", "measured", "nearly holds")


def test_quoting_marks_the_size(studies, verdicts, tmp_path):
    study = dataclasses.replace(next(iter(studies.values())), name="images")
    row = {"claim": "a", "source": "b", "measured": "c", "verdict": "holds: never"}
    size = {"name": "default", "mnist": {"samples": 2000}, "seeds": 5}
    record = {"study": "images", "size": size, "numbers": {}, "verdicts": [row]}
    (tmp_path / "images.json").write_text(json.dumps(record))
    (found,) = verdicts.quoted(study, tmp_path)
    assert found.measured == "quoted, default size, 2,000 samples, 5 seeds: c"
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        verdicts.quoted(dataclasses.replace(study, name="nothing"), tmp_path)


def test_table_escapes_and_counts(verdicts, tmp_path):
    rows = [
        verdicts.Entry("|y|", "M", "a*b\nc", "holds", "examples/paper/errata.py"),
        verdicts.Entry("x", "M", "1", "does not hold", "examples/paper/errata.py"),
    ]
    text = verdicts.table(rows, verdicts.RESULTS)
    line = text.splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", line)) == 6
    assert r"a\*b c" in line
    assert "[errata](../errata.py)" in line
    assert "2 claims in 1 studies: 1 holds; 1 does not hold." in text


def test_a_failing_study_is_a_row(verdicts, capsys):
    def rows_of(study):
        if study.name == "errata":
            raise RuntimeError("no luck")
        return [verdicts.Row("a", "b", "c", "holds")]

    failed, good = verdicts.entries(["errata", "m_prop1"], rows_of)
    assert failed.verdict == verdicts.FAILED
    assert "no luck" in failed.measured
    assert good.verdict == "holds"
    assert good.script == "examples/paper/m_prop1.py"
    assert "no luck" in capsys.readouterr().err


@pytest.mark.parametrize("condition", [None, ("c = 1", 0.0), ("c = 1", 0.5)])
def test_errata_are_judged_by_their_errors(verdicts, condition):
    finding = importlib.import_module("_errata").Finding
    words = ("5 Eq. 10", "claim", "source", "measured")
    assert finding(*words, 1e-9, 0.0, condition).row.verdict == "holds"
    right = condition is not None and condition[1] == 0
    expected = "holds under a condition: c = 1" if right else "does not hold"
    assert finding(*words, 0.7, 0.0, condition).row.verdict == expected


def test_what_a_correction_mends_is_a_misprint(verdicts):
    finding = importlib.import_module("_errata").Finding
    words = ("5 Eq. 10", "claim", "source", "measured", 0.7)
    assert finding(*words, 0.0, correction="with c").row.verdict == "misprint: with c"
    assert finding(*words, 0.5, correction="with c").row.verdict == "does not hold"


def test_what_nobody_claims_is_a_control(verdicts):
    finding = importlib.import_module("_errata").Finding
    row = finding("4 losses", "claim", "source", "measured", 0.7, control="no").row
    assert (row.kind, row.verdict) == ("control", "control: no")
    assert "as printed" not in row.measured


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


def test_the_verdict_is_that_of_the_first_reading_that_holds(verdicts):
    words = importlib.import_module("_judge").verdict
    assert words(True, ("c = 1", False)) == "holds"
    assert words(None, ("c = 0", False), ("c = 1", True)) == "holds under a condition: c = 1"
    assert words(False, ("c = 1", None)) == "does not hold"
    assert words(None) == "undecided"


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
    assert rows.helped(pair, "claim", "source").verdict == "holds"
    assert rows.helped({"bias": without, "no bias": with_bias}, "a", "b").kind != "holds"
    part = rows.part(images.Setting(end=4.0), pair, "claim", "source")
    assert part.verdict == "holds"
    assert part.measured.count("2.5 ± 0 (2 seeds) with bias") == 1


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
