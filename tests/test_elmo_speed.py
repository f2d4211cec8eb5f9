"""The speed benchmark of ELMo runs, and what it compares computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.elmo_speed import main


@pytest.mark.slow
def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # It compares the outputs of its contenders before it times them, and stops where they differ.
    report = main(["--quick", "--output", str(tmp_path / "speed.json")])
    assert json.loads((tmp_path / "speed.json").read_text())["settings"]["quick"]
    assert {row["who"] for row in report["recurrence"]} == {"ours", "loop", "library"}
    assert len(report["recurrence"]) == 9 and len(report["characters"]) == 4 and len(report["step"]) == 3
    assert all(row["seconds"] > 0 for part in ("recurrence", "characters", "step") for row in report[part])
    assert "token encoder" in capsys.readouterr().out
