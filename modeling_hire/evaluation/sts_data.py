"""Pairs of sentences with gold similarity scores: from a local folder, the Hub, or files of your own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data.columns import find_columns, take_texts
from ..data.messages import listing
from ..data.readers import Table, read_table, split_suffix
from ..data.sources import HubUnreachableError, read_hub, split_file
from ..data.tasks import TaskSpec
from .correlation import is_constant
from .sts_tasks import STS_TASKS, STSTask, parse_task


@dataclass(frozen=True)
class STSDataset:
    """Pairs of sentences and how similar people find them.

    Args:
        name: of the task, e.g. `"sts12"`.
        split: of the task, e.g. `"test"`; `"test_part1"` is a part of it only.
        sentences1, sentences2: n texts each.
        scores: (n,) gold scores.
        subsets: the subset each pair is from, or `None` if there is only one.
        notes: sentences for the user about this data.
        split_in_subsets: whether the task is made of subsets, told or not.

    Raises:
        ValueError: if there is no pair, sizes differ, or all gold scores are equal, so that there is nothing to
            correlate with.

    Example:
        >>> STSDataset("mine", "test", ["a", "b"], ["c", "d"], np.array([0.0, 1.0])).label
        'mine/test'
    """

    name: str
    split: str
    sentences1: list[str]
    sentences2: list[str]
    scores: np.ndarray
    subsets: list[str] | None = None
    notes: tuple[str, ...] = field(default=())
    split_in_subsets: bool = False

    def __post_init__(self) -> None:
        sizes = [len(self.sentences1), len(self.sentences2), len(self.scores)]
        sizes += [] if self.subsets is None else [len(self.subsets)]
        if len(set(sizes)) > 1 or sizes[0] == 0:
            raise ValueError(f"{self.label}: columns of {sizes} values; allowed is one of each a pair, and one pair.")
        if is_constant(np.asarray(self.scores)):
            raise ValueError(
                f"{self.label}: all {len(self)} gold scores are {float(self.scores[0])}, so a correlation with them "
                "is undefined; allowed are at least two different scores."
            )

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def label(self) -> str:
        return f"{self.name}/{self.split}"

    def by_subset(self) -> dict[str, np.ndarray]:
        """The row numbers of each subset, in the order in which they appear."""
        if self.subsets is None:
            return {self.name: np.arange(len(self))}
        names, subsets = list(dict.fromkeys(self.subsets)), np.asarray(self.subsets, dtype=object)
        return {name: np.flatnonzero(subsets == name) for name in names}


# ---- tasks known by name --------------------------------------------------------------------------------------------


def load_sts_tasks(
    tasks: Sequence[str] | None = None, dataset_dir: str | Path | None = None, dataset_revision: str | None = None
) -> list[STSDataset]:
    """Read similarity tasks known by name.

    Args:
        tasks: `"sts12"`, ..., `"stsb:validation"`; `None` is every task (of a folder: every one that is there).
        dataset_dir: a folder with a folder for each task, next to each other or one level further down (`glue/stsb`,
            `sts/sts12`), or a task's own folder. `None`: the Hub.
        dataset_revision: commit, tag or branch on the Hub.

    Returns:
        One dataset for each task and split, in order. A split of which a part is there (`test_part1`) is named so.

    Raises:
        HubUnreachableError: if the data is on the Hub and there is no network.
        ValueError: if a task or file is missing or wrong; the message names file, row (counted from 1) and column.

    Example:

    ```python
    >>> datasets = load_sts_tasks(["sts12", "stsb:validation"], "data")  # doctest: +SKIP
    ```
    """
    if tasks is not None and not tasks:
        raise ValueError(f"tasks={tasks!r}: allowed is at least one of {listing(STS_TASKS)}.")
    if dataset_dir is not None and not Path(dataset_dir).is_dir():
        raise ValueError(f"dataset_dir={str(dataset_dir)!r} is not a folder")
    wanted = [parse_task(text) for text in (STS_TASKS if tasks is None else tasks)]
    found: list[STSDataset] = []
    for task, split in wanted:
        if dataset_dir is None:
            found += _from_hub(task, split, dataset_revision)
            continue
        folder = _task_folder(task, Path(dataset_dir))
        if folder is not None:
            found += _from_folder(task, split, folder)
        elif tasks is not None:
            raise ValueError(
                f"dataset_dir={str(dataset_dir)!r}: no folder {task.name!r} in it, nor one level further down."
            )
    if not found:
        raise ValueError(f"dataset_dir={str(dataset_dir)!r}: holds none of {listing(STS_TASKS)}.")
    labels = [dataset.label for dataset in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"tasks={list(tasks or ())!r}: {twice} is asked for twice.")
    return found


def _task_folder(task: STSTask, root: Path) -> Path | None:
    names = (task.name, *task.folders)
    if root.resolve().name.lower() in names:
        return root
    for parents in ([root], sorted(path for path in root.iterdir() if path.is_dir())):
        found = [path for parent in parents for path in sorted(parent.iterdir()) if path.name.lower() in names]
        found = [path for path in found if path.is_dir()]
        if len(found) > 1:
            raise ValueError(
                f"dataset_dir={str(root)!r}: several folders for {task.name}: {listing(map(str, found))}."
            )
        if found:
            return found[0]
    return None


def _from_folder(task: STSTask, split: str | None, folder: Path) -> list[STSDataset]:
    datasets, lacking = [], []
    for wanted in task.splits if split is None else (split,):
        path = split_file(folder, wanted) or split_file(folder, f"{wanted}_part1")
        if path is None:
            lacking.append(wanted)
            continue
        actual = path.name[: -len(split_suffix(path) or "")]
        notes = []
        if actual.endswith("_part1"):
            official = actual.removesuffix("_part1")
            notes.append(f"{actual} is only a part of {task.title}'s {official} split: its figures are not official.")
        datasets.append(_known(task, actual, read_table(path), notes))
    if not datasets:
        raise ValueError(
            f"{folder}: no file of {task.title}'s {' or '.join(lacking)} split; looked for names such as "
            f"'{lacking[0]}.jsonl', '{lacking[0]}.csv.gz' or '{lacking[0]}_part1.parquet'."
        )
    return datasets


def _from_hub(task: STSTask, split: str | None, revision: str | None) -> list[STSDataset]:
    splits = task.splits if split is None else (split,)
    # mteb's copy of SICK holds the same pairs in each of its splits.
    if split is None and task.hub_path == "mteb/sickr-sts":
        splits = ("test",)
    spec = TaskSpec(
        name=task.name,
        title=task.title,
        text_columns=("sentence1", "sentence2"),
        label_names=None,
        metrics=("spearman",),
        main_metric="spearman",
        hub_path=task.hub_path,
        evaluation_splits=splits,
        test_splits=(),
    )
    try:
        tables = read_hub(spec, revision, evaluation_only=True)
    except HubUnreachableError as error:
        raise HubUnreachableError(
            f"No connection to the Hub, and {task.hub_path} is not in the local cache. Give --dataset_dir, a folder "
            f"with {task.name}/{splits[-1]}.jsonl, or --files, your own."
        ) from error
    missing = [name for name in splits if name not in tables]
    if missing:
        raise ValueError(f"tasks={task.name}:{missing[0]}: {task.hub_path} has no such split.")
    notes = [f"{task.hub_path} {task.hub_note}"] if task.hub_note else []
    return [_known(task, name, table, notes) for name, table in tables.items()]


def _known(task: STSTask, split: str, table: Table, notes: list[str]) -> STSDataset:
    left, right = table.require("sentence1"), table.require("sentence2")
    score = table.require(task.score_columns[0], task.score_columns[1:])
    return STSDataset(
        name=task.name,
        split=split,
        sentences1=take_texts(table, left),
        sentences2=take_texts(table, right),
        scores=_scores(table, score, task.score_range),
        subsets=_subsets(table, table.find(task.subset_column) if task.subset_column else None),
        notes=tuple(notes),
        split_in_subsets=task.subset_column is not None,
    )


# ---- your own files -------------------------------------------------------------------------------------------------


def load_sts_file(
    path: str | Path,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    subset_column: str | None = None,
    score_range: tuple[float, float] | None = None,
) -> STSDataset:
    """Read pairs and scores from a CSV, TSV, JSON, JSON Lines or Parquet file.

    Args:
        path: the file, whose name without its ending becomes the dataset's.
        text_column, text_pair_column, label_column: columns of the two texts and the gold score; found by themselves
            when they have well-known names (`sentence1`, `sentence2`, `score`, ...).
        subset_column: column with the name of the subset that a pair is from.
        score_range: lowest and highest score allowed.

    Raises:
        ValueError: if the file or a column is missing, or a value is wrong.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
        >>> _ = path.write_text("sentence1,sentence2,score\\na,b,0.5\\nc,d,1\\n")
        >>> load_sts_file(path).scores
        array([0.5, 1. ])
    """
    if (text_column is None) != (text_pair_column is None):
        raise ValueError(
            f"text_column={text_column!r} and text_pair_column={text_pair_column!r}: give both, or neither."
        )
    if score_range is not None and not score_range[0] < score_range[1]:
        raise ValueError(f"score_range={score_range!r}: allowed are a lower and a higher number.")
    table, path = read_table(path), Path(path)
    columns = find_columns(table, text_column, text_pair_column, label_column)
    if len(columns.texts) != 2:
        raise ValueError(
            f"{table.source}: found one text column, {columns.texts[0]!r}; give text_column and text_pair_column, "
            f"from {listing(table.columns)}."
        )
    assert columns.label is not None  # find_columns raises otherwise
    return STSDataset(
        name=path.name[: -len(split_suffix(path) or "")],
        split="file",
        sentences1=take_texts(table, columns.texts[0]),
        sentences2=take_texts(table, columns.texts[1]),
        scores=_scores(table, columns.label, score_range),
        subsets=_subsets(table, None if subset_column is None else table.require(subset_column)),
    )


def _scores(table: Table, column: str, allowed: tuple[float, float] | None) -> np.ndarray:
    """The column as numbers within the range."""
    values: list[float] = []
    what = "a finite number" if allowed is None else f"a score from {allowed[0]:g} to {allowed[1]:g}"
    for number, value in enumerate(table.columns[column], start=1):
        score = _as_number(value, table.typed)
        if score is None or (allowed is not None and not allowed[0] <= score <= allowed[1]):
            raise ValueError(f"{table.source}, row {number}: column {column!r} holds {value!r}; allowed is {what}.")
        values.append(score)
    return np.array(values)


def _as_number(value: Any, typed: bool) -> float | None:
    """A finite number, or `None`. In CSV every cell is text; elsewhere text is no number."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or (isinstance(value, str) and not typed)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _subsets(table: Table, column: str | None) -> list[str] | None:
    return None if column is None else list(take_texts(table, column))
