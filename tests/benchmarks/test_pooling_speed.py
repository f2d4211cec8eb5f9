"""The pooling benchmark runs, writes everything, and compares things that are equal. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pooling_head, pooling_speed


REAL_SENTENCES = Path(__file__).resolve().parents[3] / "shared" / "data" / "unlabelled" / "wiki_sentences.txt.gz"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("sentence_transformers")
    path = tmp_path_factory.mktemp("benchmark") / "new folder" / "report.json"
    pooling_speed.main(["--quick", "--threads", "1", "--output", str(path)])
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_part_has_its_rows(report: dict[str, Any]) -> None:
    modes = ["forward, evaluation", "forward, training", "forward and backward, training"]
    assert [row["mode"] for row in report["head"]] == modes
    for row in report["head"]:
        assert row["speed_up"] == pytest.approx(row["loop_seconds"] / row["ours_seconds"])
        assert row["ours_peak_bytes"] <= row["loop_peak_bytes"]
    contenders = ["sentence-transformers, mean", "ours, layer_attn", "ours, mean"]
    assert [row["contender"] for row in report["encode"]] == contenders
    assert all(row["texts_per_second"] > 0 for row in report["encode"])
    assert report["encode"][0]["speed_up"] == 1
    assert [row["contender"] for row in report["memory"]] == ["encoder", "encode", "all states"]
    assert [(row["pairs"], row["way"]) for row in report["cache"]] == [
        (pairs, way) for pairs in (4, 8) for way in ("cached", "whole")
    ]


def test_memory_is_what_the_design_says(report: dict[str, Any]) -> None:
    extra = {row["contender"]: row["extra_bytes"] for row in report["memory"]}
    assert 0 < extra["encode"] < extra["all states"] / 3
    peaks = {(row["pairs"], row["way"]): row["peak_bytes"] for row in report["cache"]}
    assert peaks[8, "cached"] < 1.1 * peaks[4, "cached"] < peaks[8, "whole"]


def test_what_is_compared_is_equal(report: dict[str, Any]) -> None:
    assert len(report["checks"]) == 4
    assert [row["check"] for row in report["checks"] if not row["passed"]] == []


def test_targets_and_circumstances_are_written(report: dict[str, Any]) -> None:
    assert len(report["targets"]) == 3 + 1 + 1 + 1
    assert report["settings"]["sentences"] == "made up" and report["settings"]["quick"]
    assert {"cpu", "threads", "torch", "transformers", "python"} <= set(report["machine"])
    assert report["machine"]["threads"] == 1


def test_one_part_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    pooling_speed.main(["--quick", "--threads", "1", "--parts", "head", "--output", str(path)])
    assert {"encode", "memory", "cache"}.isdisjoint(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("training", [False, True])
def test_the_loop_draws_slopes_for_every_query_in_training(training: bool) -> None:
    contenders, pooler = pooling_head.head_contenders({"layers": 4, "hidden_size": 24, "batch": 3})
    pooler.train(training)
    first, mean = (list(part) for part in torch.randn(2, 4, 3, 24))
    once, again = contenders["loop"](first, mean), contenders["loop"](first, mean)
    assert torch.equal(once, again) != training
    assert torch.allclose(once, contenders["ours"](first, mean), atol=1e-6) != training


def test_sentences_are_the_same_every_time(tmp_path: Path) -> None:
    assert pooling_speed.read_sentences(str(tmp_path / "none.gz"), 5) is None
    made_up = pooling_speed.made_up_sentences(7)
    assert len(made_up) == 7 and made_up == pooling_speed.made_up_sentences(7)
    if not REAL_SENTENCES.is_file():
        pytest.skip(f"real sentences are not here: {REAL_SENTENCES} does not exist")
    drawn = pooling_speed.read_sentences(str(REAL_SENTENCES), 50)
    assert len(set(drawn)) == 50 and drawn == pooling_speed.read_sentences(str(REAL_SENTENCES), 50)
