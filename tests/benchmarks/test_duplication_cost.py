"""The cost benchmark runs and counts what can be counted. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import duplication_cost


def test_counts_layers_parameters_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    duplication_cost.main(["--quick", "--tokens", "8", "--rounds", "1", "--threads", "1", "--output", str(path)])
    rows = {row["model"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    assert {name: row["layers"] for name, row in rows.items()} == {
        "original": 3,
        "first:1 untied": 4,
        "first:1 tied": 4,
        "first:3 untied": 6,
        "first:3 tied": 6,
        "all:2 untied": 6,
        "all:2 tied": 6,
    }
    original, layer = rows["original"]["parameters"], 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert rows["first:1 untied"]["parameters"] == original + layer
    assert rows["all:2 tied"]["parameters"] == original
    assert rows["all:2 tied"]["checkpoint_bytes"] == rows["original"]["checkpoint_bytes"]
    assert rows["first:1 tied"]["peak_bytes"] > rows["original"]["peak_bytes"]
