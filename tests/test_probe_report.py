"""Tables, text and pictures of the reconstruction probe."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from modeling_hire.analysis.reconstruction_plots import (
    draw_accuracy_by_layer,
    draw_changes_by_layer,
    draw_decoded_text,
)
from modeling_hire.analysis.reconstruction_report import (
    change_table,
    decoded_text,
    layer_table,
    positions,
    scores_dict,
)
from modeling_hire.analysis.reconstruction_results import ChangedStack, DecodedLayer, LayerScores
from modeling_hire.analysis.reconstruction_scores import Scores


GOOD, BAD = Scores(10, 0.95, 0.125, 1.25, 1.0, 0.987), Scores(0, *[math.nan] * 5)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_a_row_a_layer() -> None:
    header, _, *rows = cells(layer_table([LayerScores(0, None, BAD, GOOD), LayerScores(1, 0, GOOD, BAD)]))
    assert header[:4] == ["layer", "block", "accuracy", "with special"]
    assert rows[0][:4] == ["0", "-", "-", "95.0"]
    assert rows[1] == ["1", "0", "95.0", "-", "0.125", "1.2", "1", "0.987"]


def test_a_row_a_layer_and_two_columns_a_change() -> None:
    changes = [ChangedStack(block, times, [0], GOOD, GOOD) for times in (0, 3) for block in (0, 1)]
    header, _, *rows = cells(change_table(changes))
    assert header == ["layer", "block", "removed: accuracy", "cosine", "x3: accuracy", "cosine"]
    assert rows == [["1", "0", "95.0", "0.987", "95.0", "0.987"], ["2", "1", "95.0", "0.987", "95.0", "0.987"]]


def test_numbers_that_are_none_become_null() -> None:
    assert scores_dict(BAD) == {"tokens": 0} | dict.fromkeys(
        ("accuracy", "loss", "mean_rank", "median_rank", "cosine")
    )


def test_places_of_copies() -> None:
    assert positions([0, 1, 2]) == [0, 1, 2, 3]
    assert positions([1, 1, 1]) == pytest.approx([0, 1 + 1 / 3, 1 + 2 / 3, 2])
    # A run and the same run again goes back.
    assert positions([0, 1, 0, 1]) == [0, 0.5, 1.5, 1, 2]


def test_long_texts_go_on_below() -> None:
    tokens = [f"token{i}" for i in range(10)]
    text = decoded_text(tokens, [DecodedLayer(0, None, [*tokens[:-1], "x"], [1.0] * 10, [1] * 10)], width=40)
    blocks = text.split("\n\n")
    assert len(blocks) == 3 and all(len(line) <= 40 for line in text.splitlines())
    assert [word for block in blocks for word in block.splitlines()[0].split()[1:]] == tokens
    assert [word for block in blocks for word in block.splitlines()[1].split()[1:]] == ["·"] * 9 + ["x"]


def test_pictures_of_odd_sizes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = [(f"curve {i}", [0, 1], [0.5, math.nan]) for i in range(7)]
    wide = np.full((2, 40), 0.5)
    words = [["$x", "a$very$long$word"] * 20] * 2
    paths = [
        draw_accuracy_by_layer(tmp_path / "1.png", curves, title="$", note="n"),
        draw_accuracy_by_layer(tmp_path / "2.png", [("deep", list(range(49)), [0.1] * 49)]),
        draw_changes_by_layer(tmp_path / "3.png", [("removed", [1], [math.nan], [-0.5])], math.nan),
        draw_decoded_text(tmp_path / "4.png", words[0], words, wide),
        draw_decoded_text(tmp_path / "5.png", words[0][:2], [row[:2] for row in words], wide[:, :2], names=["a", "b"]),
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert len(list(tmp_path.iterdir())) == len(paths)
