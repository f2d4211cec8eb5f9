"""Predictions files."""

from __future__ import annotations

import os

import numpy as np
import pytest

from modeling_hire.data.loading import own_task
from modeling_hire.data.tasks import get_task
from modeling_hire.evaluation.submission import write_submission


def test_ids(tmp_path):
    path = write_submission(tmp_path, get_task("cola"), "test", [0, 1, 2], np.array([1, 0, 1]))
    assert path == tmp_path / "CoLA.tsv"
    assert path.read_bytes() == b"index\tprediction\n0\t1\n1\t0\n2\t1\n"


def test_names_and_the_two_mnli_files(tmp_path):
    spec = get_task("mnli")
    first = write_submission(tmp_path, spec, "test_matched", [0, 1, 2], [0, 1, 2])
    second = write_submission(tmp_path, spec, "test_mismatched", [5], [2])
    assert (first.name, second.name) == ("MNLI-m.tsv", "MNLI-mm.tsv")
    assert first.read_text() == "index\tprediction\n0\tentailment\n1\tneutral\n2\tcontradiction\n"
    assert second.read_text() == "index\tprediction\n5\tcontradiction\n"


def test_stsb_scores_are_clipped_and_have_three_decimals(tmp_path):
    path = write_submission(tmp_path, get_task("stsb"), "test", range(4), [-0.4, 5.7, 2.34567, np.float32(3)])
    assert path.name == "STS-B.tsv"
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t5.000\n2\t2.346\n3\t3.000\n"


def test_own_tasks_write_their_names_and_unclipped_scores(tmp_path):
    path = write_submission(tmp_path, own_task("mine", ("text",), "label", ("bad", "good")), "test", [0], [1])
    assert path == tmp_path / "mine.tsv"
    assert path.read_text() == "index\tprediction\n0\tgood\n"
    scores = own_task("s", ("text",), "label", None)
    assert "-7.500" in write_submission(tmp_path, scores, "test", [0], [-7.5]).read_text()


def test_a_file_name_of_ones_own(tmp_path):
    target = tmp_path / "out.tsv"
    target.write_text("old")
    assert write_submission(target, get_task("rte"), "test", [0], [1]) == target
    assert target.read_text() == "index\tprediction\n0\tnot_entailment\n"
    assert [p.name for p in tmp_path.iterdir()] == ["out.tsv"]


@pytest.mark.parametrize(
    "task, split, idx, predictions, message",
    [
        ("rte", "validation", [0], [0], "test_split='validation' of task 'rte': expected one of 'test'"),
        ("rte", "test", [0, 1], [0], "There are 1 predictions for 2 row ids"),
        ("rte", "test", [4], [2], "The prediction for row 4 is 2: expected a class id from 0 to 1"),
        ("rte", "test", [4], [-1], "The prediction for row 4 is -1: expected"),
        ("rte", "test", [4], [0.5], "The prediction for row 4 is 0.5: expected"),
        ("stsb", "test", [4], [float("nan")], "The prediction for row 4 is nan: expected a finite score"),
    ],
)
def test_wrong_predictions_leave_nothing_behind(tmp_path, task, split, idx, predictions, message):
    with pytest.raises(ValueError, match=message):
        write_submission(tmp_path, get_task(task), split, idx, predictions)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    target = write_submission(tmp_path, get_task("rte"), "test", [0], [1])
    before = target.read_text()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_submission(tmp_path, get_task("rte"), "test", [0], [0])
    assert target.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["RTE.tsv"]
