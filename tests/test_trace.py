"""Evaluations along the way: how fast fine-tuning learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import assert_same
from tiny_runs import QUICK, save_encoder, weights, write_task

import run_glue
from benchmarks.meta_trace import main, read_trace


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    encoder = save_encoder(tmp_path / "encoder")
    write_task(tmp_path / "data")
    return [*QUICK, "--encoder", str(encoder), "--task", "cola", "--dataset_dir", str(tmp_path / "data")]


def test_is_taken_and_changes_nothing(tmp_path: Path, flags: list[str]) -> None:
    run_glue.main([*flags, "--output_dir", str(tmp_path / "plain")])
    traced = ["--trace_steps", "0", "2", "4", "--seeds", "42"]
    run_glue.main([*flags, *traced, "--output_dir", str(tmp_path / "traced")])
    assert_same(weights(tmp_path / "traced"), weights(tmp_path / "plain"))
    content = json.loads((tmp_path / "traced" / "seed.json").read_text())
    assert list(content["trace"]) == ["0", "2", "4"]
    assert all(entry.keys() == {"matthews_correlation"} for entry in content["trace"].values())
    assert "trace" not in json.loads((tmp_path / "plain" / "seed.json").read_text())


def test_is_drawn(tmp_path: Path, flags: list[str]) -> None:
    pytest.importorskip("matplotlib")
    run_glue.main([*flags, "--trace_steps", "0", "3", "--seeds", "1", "2", "--output_dir", str(tmp_path / "a")])
    traces = main(
        [f"k=0:{tmp_path / 'a'}", "--metric", "matthews_correlation", "--output", str(tmp_path / "trace.png")]
    )
    assert [len(values) for values in traces["k=0"].values()] == [2, 2]
    assert (tmp_path / "trace.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="no 'f1'"):
        read_trace(tmp_path / "a", "f1")
    with pytest.raises(ValueError, match="--trace_steps"):
        read_trace(tmp_path / "data", "accuracy")


def test_wrong_steps_are_refused(tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit, match="trace_steps"):
        run_glue.main([*flags, "--trace_steps", "-1", "--output_dir", str(tmp_path / "out")])
