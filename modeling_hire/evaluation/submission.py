"""Predictions as the tab-separated files that the GLUE server takes."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from ..data.messages import listing
from ..data.tasks import TaskSpec


def write_submission(
    path: str | Path, spec: TaskSpec, test_split: str, idx: Sequence[int], predictions: Sequence[int | float]
) -> Path:
    """Write the predictions for one test split, as GLUE wants them.

    The file has a header `index<TAB>prediction` and one line a row. Classes are written as their id, or as their name
    for the tasks where GLUE wants that (MNLI, QNLI, RTE); STS-B scores are held within 0 to 5 and have three decimals.

    Args:
        path: A folder that exists, in which the file gets GLUE's name for it (`MNLI-m.tsv`), or the file itself.
        spec: The task.
        test_split: Which of `spec.test_splits` this is.
        idx: The rows' `idx`, in the order of `predictions`.
        predictions: The dataset's class ids (see `to_dataset_ids` if the model orders labels differently), or scores.

    Returns:
        The file written. It appears whole or not at all.

    Raises:
        ValueError: If the split is not one of the task's, lengths differ, or a prediction is out of range or not
            finite.
    """
    if test_split not in spec.test_splits:
        raise ValueError(
            f"test_split={test_split!r} of task {spec.name!r}: expected one of {listing(spec.test_splits)}"
        )
    if len(idx) != len(predictions):
        raise ValueError(f"There are {len(predictions)} predictions for {len(idx)} row ids")
    path = Path(path)
    if path.is_dir():
        path = path / spec.submission_files.get(test_split, f"{spec.name}-{test_split}.tsv")
    lines = [f"{int(row)}\t{_written(value, spec, int(row))}\n" for row, value in zip(idx, predictions, strict=True)]
    _write_whole(path, "index\tprediction\n" + "".join(lines))
    return path


def _written(value: int | float, spec: TaskSpec, row: int) -> str:
    """Return one prediction as the file says it."""
    if spec.label_names is None:
        score = float(value)
        if not math.isfinite(score):
            raise ValueError(f"The prediction for row {row} is {score}: expected a finite score")
        if spec.score_range is not None:
            score = min(max(score, spec.score_range[0]), spec.score_range[1])
        return f"{score:.3f}"
    label = int(value)
    if label != value or not 0 <= label < spec.num_labels:
        raise ValueError(
            f"The prediction for row {row} is {value}: expected a class id from 0 to {spec.num_labels - 1}"
        )
    return str(label) if spec.submission_labels is None else spec.submission_labels[label]


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody ever sees half of it: next to its place first, then moved there."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
