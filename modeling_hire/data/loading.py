"""From the data arguments to datasets of one form, with everything checked on the way.

Whatever the source, each dataset has the columns `text`, for pairs `text_pair`, `label` (a class id, or a float for
regression; left out of test splits whose labels are hidden) and `idx` (the row's own `idx`, or its number from 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from .arguments import DataArguments
from .columns import find_columns, take_texts
from .labels import align_labels, find_class_names, is_generic, is_hidden, own_labels, task_labels
from .messages import listing
from .readers import Table, read_table
from .sources import HubUnreachableError, generate, read_folder, read_hub
from .tasks import COMBINED_SCORE, TaskSpec, get_task


__all__ = ["HubUnreachableError", "TaskData", "align_labels", "load_task_data", "own_task"]


MODEL = "the model"  # where class names come from that no file of this run settles


@dataclass
class TaskData:
    """A task with its data, ready to be tokenized.

    Args:
        spec: The task; for your own files one made from what they hold.
        train: Training rows, or `None` when only evaluating.
        evaluation: Split name -> rows with labels.
        test: Split name -> rows, with a `label` column only where labels are known.
        notes: Sentences for the user about what was dropped, capped, guessed or found to be partial.
    """

    spec: TaskSpec
    train: Dataset | None
    evaluation: dict[str, Dataset]
    test: dict[str, Dataset]
    notes: list[str]


@dataclass
class _Rows:
    """One split on its way to a dataset: texts, labels (`None`: the split has none) and row ids."""

    texts: list[list[str]]
    labels: list[Any] | None
    idx: list[int]
    source: str


def load_task_data(
    args: DataArguments, evaluation_only: bool = False, *, label_names: Sequence[str] | None = None
) -> TaskData:
    """Read, check and cap the data that `args` names. Nothing is written, and no file is changed.

    Args:
        args: Which data, see `DataArguments`.
        evaluation_only: Leave the training split out (a `train_file` is still read for its class names).
        label_names: For your own files when a trained model is evaluated: the model's class names, which take the
            place of those found in the training file; an empty sequence says that the model predicts scores. Generic
            names (`LABEL_0`, ...) are ignored. Tasks known by name have their own names, to be matched with
            `align_labels`.

    Raises:
        HubUnreachableError: If the data is on the Hub and there is no network (a `ConnectionError` and `ValueError`).
        ValueError: If data is missing, empty or wrong; the message names file, row (counted from 1) and column.
    """
    if args.task is not None:
        return _load_named(args, get_task(args.task), evaluation_only)
    return _load_own(args, evaluation_only, label_names)


# ---- tasks known by name --------------------------------------------------------------------------------------------


def _load_named(args: DataArguments, spec: TaskSpec, evaluation_only: bool) -> TaskData:
    notes = [spec.hint] if spec.hint else []
    if args.dataset_dir is not None:
        where = f"dataset_dir={args.dataset_dir!r}"
        tables, folder_notes = read_folder(spec, args.dataset_dir, evaluation_only)
        notes += folder_notes
    elif spec.hub_path is None:
        where = "the generator"
        tables = generate(spec, args.sample_seed, evaluation_only)
    else:
        where = f"{spec.hub_path} on the Hub"
        tables = read_hub(spec, args.dataset_revision, evaluation_only)

    if not evaluation_only and "train" not in tables:
        raise ValueError(f"{where} has no train split for {spec.name}: expected a file such as 'train.jsonl'")
    missing = [split for split in spec.evaluation_splits if split not in tables]
    if len(missing) == len(spec.evaluation_splits) and not (evaluation_only and tables):
        raise ValueError(
            f"{where} has no split to evaluate {spec.name} on: expected {listing(spec.evaluation_splits)}"
        )
    if missing:
        notes.append(f"{where} has no {' and no '.join(missing)} split: {spec.title} is evaluated without.")

    def rows(split: str, hidden_ok: bool) -> _Rows:
        return _named_rows(tables[split], spec, hidden_ok, notes)

    return _finish(
        args,
        spec,
        train=None if evaluation_only else rows("train", False),
        evaluation={split: rows(split, False) for split in spec.evaluation_splits if split in tables},
        test={split: rows(split, True) for split in spec.test_splits if split in tables},
        notes=notes,
    )


def _named_rows(table: Table, spec: TaskSpec, hidden_ok: bool, notes: list[str]) -> _Rows:
    """Check one split of a known task and settle its unlabelled rows."""
    texts = [
        take_texts(table, table.require(name, tuple(spec.column_aliases.get(name, ())))) for name in spec.text_columns
    ]
    aliases = tuple(spec.column_aliases.get(spec.label_column, ()))
    find = table.find if hidden_ok else table.require
    column = find(spec.label_column, aliases)
    rows = _Rows(texts, None, _row_ids(table), table.source)
    if column is None:
        return rows
    values = table.labels(column)
    labels = task_labels(values, spec, table.typed, table.source)
    hidden = [number for number, label in enumerate(labels) if label is None]
    if hidden_ok and len(hidden) == len(labels):
        return rows
    if len(hidden) == len(labels):
        raise ValueError(f"{table.source}: all labels are hidden ({values[0]!r}), it can only be predicted on")
    if hidden and not spec.drop_unlabelled:
        what = "score" if spec.is_regression else "label"
        raise ValueError(f"{table.source}, row {hidden[0] + 1} holds {values[hidden[0]]!r} where a {what} should be")
    if hidden:
        keep = [number for number, label in enumerate(labels) if label is not None]
        rows.texts = [[column_texts[number] for number in keep] for column_texts in texts]
        rows.idx = [rows.idx[number] for number in keep]
        labels = [labels[number] for number in keep]
        note = f"{table.source}: {len(hidden)} rows without a gold label were left out, {len(keep)} remain."
        # TREC-like tasks read one split twice; say it once.
        if note not in notes:
            notes.append(note)
    rows.labels = labels
    return rows


# ---- a user's own files ---------------------------------------------------------------------------------------------


def own_task(name: str, text_columns: tuple[str, ...], label_column: str, names: tuple[str, ...] | None) -> TaskSpec:
    """Make the spec of a task that exists only as the user's own files.

    Classes get accuracy and macro-averaged F1 (which does not hide a rare class that is never found) with accuracy as
    the main metric; scores get Pearson and Spearman with their mean, as STS-B.
    """
    scores = names is None
    return TaskSpec(
        name=name,
        title=name,
        text_columns=text_columns,
        label_names=names,
        metrics=("pearson", "spearman") if scores else ("accuracy", "f1_macro"),
        main_metric=COMBINED_SCORE if scores else "accuracy",
        label_column=label_column,
        submission_files={"test": f"{name}.tsv"},
        submission_labels=names,
    )


def _load_own(args: DataArguments, evaluation_only: bool, label_names: Sequence[str] | None) -> TaskData:
    paths = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    if not evaluation_only and paths["train"] is None:
        raise ValueError("train_file=None: there is nothing to train on; without training, evaluate or predict only")
    if evaluation_only and paths["validation"] is None and paths["test"] is None:
        raise ValueError("validation_file and test_file are both None: there is nothing to evaluate or predict on")
    tables = {split: read_table(path) for split, path in paths.items() if path is not None}

    first_split, first = next(iter(tables.items()))
    columns = find_columns(
        first, args.text_column, args.text_pair_column, args.label_column, needs_label=first_split != "test"
    )
    unused = [name for name in first.columns if name not in (*columns.texts, columns.label, "idx")]
    notes = [
        f"Read text from {listing(columns.texts)} and labels from {columns.label!r} of {first.source}"
        + (f"; not used: {listing(unused)}." if unused else ".")
    ]
    label_column = columns.label or args.label_column or "label"
    names, origin = _own_classes(tables, label_column, label_names, notes)
    spec = own_task(Path(first.source).name.split(".")[0], columns.texts, label_column, names)

    def rows(split: str) -> _Rows:
        return _own_rows(tables[split], spec, origin, hidden_ok=split == "test")

    return _finish(
        args,
        spec,
        train=None if evaluation_only else rows("train"),
        evaluation={"validation": rows("validation")} if "validation" in tables else {},
        test={"test": rows("test")} if "test" in tables else {},
        notes=notes,
        origin=origin,
    )


def _own_classes(
    tables: dict[str, Table], column: str, given: Sequence[str] | None, notes: list[str]
) -> tuple[tuple[str, ...] | None, str]:
    """Return the class names (`None` for scores) and where they come from."""
    if given is not None and not is_generic(given):
        return (tuple(given) or None), MODEL
    source = next(tables[split] for split in ("train", "validation", "test") if split in tables)
    if source is tables.get("test") and (column not in source.columns or _all_hidden(source, column)):
        raise ValueError(
            f"{source.source} has no labels, so the classes are not known: give train_file or validation_file too, or "
            "a model with label names"
        )
    values = source.labels(source.require(column))
    names = find_class_names(values, source.typed, source.source)
    if names is None:
        if all(float(value).is_integer() for value in values):
            notes.append(
                f"All labels of {source.source} are whole numbers with a decimal point, such as {values[0]!r}: they "
                "are taken as scores (regression). For classes, write them without."
            )
    else:
        notes.append(f"{len(names)} classes in {source.source}: {listing(names)}.")
    return names, "the training data" if source is tables.get("train") else source.source


def _own_rows(table: Table, spec: TaskSpec, origin: str, hidden_ok: bool) -> _Rows:
    """Check one of the user's own files."""
    texts = [take_texts(table, table.require(name)) for name in spec.text_columns]
    rows = _Rows(texts, None, _row_ids(table), table.source)
    # A user's -1 may be a class or a score; only a test file of nothing but -1 means that labels are hidden.
    if hidden_ok and (spec.label_column not in table.columns or _all_hidden(table, spec.label_column)):
        return rows
    values = table.labels(table.require(spec.label_column))
    rows.labels = list(own_labels(values, spec.label_names, table.typed, table.source, origin))
    return rows


def _all_hidden(table: Table, column: str) -> bool:
    return all(is_hidden(value) for value in table.labels(column))


# ---- both -----------------------------------------------------------------------------------------------------------


def _row_ids(table: Table) -> list[int]:
    """Return the rows' own `idx` where these are distinct whole numbers, and else the row numbers from 0."""
    own: Sequence[Any] = table.columns.get("idx", ())
    if not table.typed and all(str(value).isdecimal() for value in own):
        own = [int(value) for value in own]
    if own and all(type(value) is int for value in own) and len(set(own)) == len(own):
        return list(own)
    return list(range(len(table)))


def _finish(
    args: DataArguments,
    spec: TaskSpec,
    train: _Rows | None,
    evaluation: dict[str, _Rows],
    test: dict[str, _Rows],
    notes: list[str],
    origin: str | None = None,
) -> TaskData:
    """Check what the splits must have in common, cap each and turn it into a dataset."""
    if train is not None:
        # A model that was trained before knows its classes, whatever this data holds.
        _check_training_labels(train, args, spec, {} if origin == MODEL else evaluation, notes)
    for rows in [*([train] if train else []), *evaluation.values(), *test.values()]:
        blank = sum(not any(text.strip() for text in texts) for texts in zip(*rows.texts, strict=True))
        note = f"{rows.source}: {blank} of {len(rows.idx)} rows have no text but blanks."
        if blank and note not in notes:
            notes.append(note)

    def build(rows: _Rows, cap: int | None, cap_name: str) -> Dataset:
        kept = capped_rows(len(rows.idx), cap, args.sample_seed)
        if len(kept) < len(rows.idx):
            counts = f"{len(kept)} of {len(rows.idx)} rows"
            note = f"{rows.source}: {cap_name} keeps {counts} (sample_seed {args.sample_seed})."
            if note not in notes:
                notes.append(note)
        return _to_dataset(rows, kept, spec)

    return TaskData(
        spec=spec,
        train=None if train is None else build(train, args.max_train_samples, "max_train_samples"),
        evaluation={s: build(rows, args.max_eval_samples, "max_eval_samples") for s, rows in evaluation.items()},
        test={s: build(rows, args.max_predict_samples, "max_predict_samples") for s, rows in test.items()},
        notes=notes,
    )


def _check_training_labels(
    train: _Rows, args: DataArguments, spec: TaskSpec, evaluation: dict[str, _Rows], notes: list[str]
) -> None:
    """Raise unless there is something to learn, and every class that is evaluated occurs in training."""
    labels: list[Any] = train.labels or []
    if len(set(labels)) == 1:
        what = f"score, {labels[0]!r}" if spec.label_names is None else f"class, {spec.label_names[labels[0]]!r}"
        raise ValueError(f"{train.source} holds only one {what}: there is nothing to learn")
    if spec.label_names is None:
        return
    kept = {labels[row] for row in capped_rows(len(labels), args.max_train_samples, args.sample_seed)}
    for rows in evaluation.values():
        evaluated = set(rows.labels or [])
        unseen = [spec.label_names[label] for label in sorted(evaluated.difference(labels))]
        if unseen:
            raise ValueError(
                f"{rows.source} has rows with the label {unseen[0]!r}, which {train.source} does not have"
            )
        lost = [spec.label_names[label] for label in sorted(evaluated - kept)]
        note = f"{train.source}: max_train_samples={args.max_train_samples} leaves no row of {listing(lost)}."
        if lost and note not in notes:
            notes.append(note)


def capped_rows(num_rows: int, cap: int | None, seed: int) -> list[int]:
    """Return which rows a cap keeps: a random choice that depends on `seed` alone, in the original order.

    A smaller cap keeps a subset of what a larger one keeps, so that learning curves grow the same data.
    """
    if cap is None or cap >= num_rows:
        return list(range(num_rows))
    return sorted(np.random.default_rng(seed).permutation(num_rows)[:cap].tolist())


def _to_dataset(rows: _Rows, kept: list[int], spec: TaskSpec) -> Dataset:
    """Build an in-memory dataset of the chosen rows."""
    columns: dict[str, list[Any]] = {}
    features: dict[str, Value] = {}
    for name, texts in zip(("text", "text_pair"), rows.texts, strict=False):
        columns[name] = [texts[number] for number in kept]
        features[name] = Value("string")
    if rows.labels is not None:
        columns["label"] = [rows.labels[number] for number in kept]
        features["label"] = Value("float64" if spec.is_regression else "int64")
    columns["idx"] = [rows.idx[number] for number in kept]
    features["idx"] = Value("int64")
    return Dataset.from_dict(columns, features=Features(features))
