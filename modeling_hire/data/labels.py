"""Labels: turning what a file says into class ids or scores, and matching a dataset's ids with a model's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import did_you_mean, listing
from .tasks import TaskSpec


_INTEGER = re.compile(r"[-+]?\d+")
_GENERIC = re.compile(r"LABEL_\d+")
LARGEST_SCORE = 1e18
# What spreadsheets and data-frame libraries write where a value is missing.
_MISSING_WORDS = frozenset({"", "nan", "na", "n/a", "none", "null", "<na>"})


def is_missing(value: Any) -> bool:
    """Whether a label is absent: `None`, NaN or an empty string."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or value == ""


def is_hidden(value: Any) -> bool:
    """Whether a label is absent or says -1, GLUE's and SNLI's mark for a label that is not given."""
    if is_missing(value):
        return True
    return value.strip() in ("-1", "-1.0", "-") if isinstance(value, str) else value == -1


# ---- scores --------------------------------------------------------------------------------------------------------


def to_score(value: Any, typed: bool, where: str, number: int) -> float:
    """Return a label as a finite number.

    Args:
        value: What the file holds.
        typed: Whether the file tells numbers from text; if so, text is never a score.
        where: The file, for messages.
        number: The row, counted from 1, for messages.

    Raises:
        ValueError: If it is missing, NaN, infinite, text, or too large for a loss to be finite.
    """
    score = value
    if isinstance(value, str) and not typed:
        try:
            score = float(value)
        except ValueError:
            pass
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise ValueError(f"{where}, row {number} holds {value!r} where a score should be")
    if abs(score) > LARGEST_SCORE:
        raise ValueError(
            f"{where}, row {number} holds the score {value!r}: at most {LARGEST_SCORE:g} can be learned, since its "
            "square must fit into single precision"
        )
    return float(score)


# ---- tasks known by name --------------------------------------------------------------------------------------------


def task_labels(values: Sequence[Any], spec: TaskSpec, typed: bool, where: str) -> list[int | float | None]:
    """Convert the label column of a task known by name to class ids or scores.

    Class labels may be ids or names (letter case does not matter). Absent labels and -1 become `None`.

    Raises:
        ValueError: If a label is not one of the task's; the message names the row (counted from 1).
    """
    convert = _task_score if spec.label_names is None else _task_class
    return [
        None if is_hidden(value) else convert(value, spec, typed, where, number)
        for number, value in enumerate(values, start=1)
    ]


def _task_score(value: Any, spec: TaskSpec, typed: bool, where: str, number: int) -> float:
    score = to_score(value, typed, where, number)
    low, high = spec.score_range or (-math.inf, math.inf)
    if not low <= score <= high:
        raise ValueError(
            f"{where}, row {number} holds the score {value!r}: {spec.name} has scores from {low} to {high}"
        )
    return score


def _task_class(value: Any, spec: TaskSpec, typed: bool, where: str, number: int) -> int:
    names = spec.label_names or ()
    label = value
    if isinstance(value, str):
        by_name = {_plain(name): i for i, name in enumerate(names)}
        if _plain(value) in by_name:
            return by_name[_plain(value)]
        try:
            label = float(value) if not typed else value
        except ValueError:
            pass
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(names):
        allowed = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
        raise ValueError(f"{where}, row {number} has the label {value!r}: {spec.name} has {allowed}")
    return label


# ---- a user's own files ---------------------------------------------------------------------------------------------


def find_class_names(values: Sequence[Any], typed: bool, where: str) -> tuple[str, ...] | None:
    """Decide what a label column of the user's own holds: classes or scores.

    Text, whole numbers and true/false are classes, named by how they are written and sorted (whole numbers by value).
    Numbers with a decimal point are scores, even when all of them are whole (1.0, 5.0): data-frame libraries write
    classes that way only when some are missing, and rating scales look like that too.

    Args:
        values: The label column, whole.
        typed: Whether the file tells numbers from text. In CSV and TSV it does not: the look of all values decides.
        where: The file, for messages.

    Returns:
        The class names in the order of their ids, or `None` if the labels are scores.

    Raises:
        ValueError: If a label is missing, numbers and text are mixed, there is only one class, or each row has a
            class of its own.
    """
    kinds = [_kind(value, typed) for value in values]
    if "text" in kinds and "int" in kinds and not typed:
        # A column of numbers with "nan" in it has holes. Beside other words, "none" may well be the name of a class.
        words = {value.strip().lower() for kind, value in zip(kinds, values, strict=True) if kind == "text"}
        if words <= _MISSING_WORDS:
            kinds = ["missing" if kind == "text" else kind for kind in kinds]
    present = set(kinds)
    numbers = kinds.count("int") + kinds.count("float")
    if "float" in present and numbers == len(kinds):
        return None
    for number, (kind, value) in enumerate(zip(kinds, values, strict=True), start=1):
        # In a column of mostly numbers with decimal points, whatever is no number is a broken score.
        if "float" in present and kind not in ("int", "float") and 2 * numbers >= len(kinds):
            raise ValueError(f"{where}, row {number} holds {value!r} where a score should be")
        if kind == "missing":
            raise ValueError(f"{where}, row {number} has no label ({value!r})")
        if kind not in ("int", "float", "text", "bool"):
            raise ValueError(
                f"{where}, row {number} holds {value!r} ({kind}) where a label, text or number, should be"
            )
    if len(present) > 1 and (typed or "float" in present):
        found = " and ".join(
            f"{values[kinds.index(kind)]!r} in row {kinds.index(kind) + 1}" for kind in sorted(present)
        )
        raise ValueError(f"{where} mixes labels of different kinds: {found}")
    names = {class_name(value, typed) for value in values}
    if len(names) == 1:
        raise ValueError(f"{where} holds only one class, {names.pop()!r}: there is nothing to learn")
    if len(names) == len(values) >= 20:
        raise ValueError(f"{where}: each of the {len(values)} rows has a label of its own; give another label_column")
    broken = next((name for name in sorted(names) if any(mark in name for mark in "\t\n\r")), None)
    if broken is not None:
        raise ValueError(f"{where} has the label {broken!r}: a label must not hold tabs or line breaks")
    if all(_INTEGER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _kind(value: Any, typed: bool) -> str:
    """Return what one label looks like: `"int"`, `"float"`, `"text"`, `"bool"` or `"missing"`."""
    if is_missing(value):
        return "missing"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    if isinstance(value, str) and not typed:
        if _INTEGER.fullmatch(value.strip()):
            return "int"
        if value.strip().lower() in _MISSING_WORDS:
            return "text"
        try:
            float(value)
        except ValueError:
            return "text"
        return "float"
    return "text" if isinstance(value, str) else type(value).__name__


def class_name(value: Any, typed: bool) -> str:
    """Return the class name of one label: text without outer blanks, whole numbers without a decimal point."""
    if isinstance(value, str):
        name = value.strip()
        if typed or _kind(name, typed) != "float":
            # "+1" and "01" are the class 1 only if they are written so everywhere; names stay as they are.
            return name
        value = float(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def own_labels(
    values: Sequence[Any], class_names: Sequence[str] | None, typed: bool, where: str, origin: str
) -> list[int | float]:
    """Convert the label column of a user's own file to ids of `class_names`, or to scores if that is `None`.

    Args:
        values: The label column.
        class_names: What `find_class_names` found in the training file.
        typed: Whether the file tells numbers from text.
        where: The file, for messages.
        origin: Where the class names come from, for messages.

    Raises:
        ValueError: If a label is missing, is not a finite number where a score should be, or is a class that `origin`
            does not have. The message names the row (counted from 1).
    """
    if class_names is None:
        return [to_score(value, typed, where, number) for number, value in enumerate(values, start=1)]
    ids = {name: i for i, name in enumerate(class_names)}
    labels: list[int | float] = []
    for number, value in enumerate(values, start=1):
        if is_missing(value):
            raise ValueError(f"{where}, row {number} has no label ({value!r})")
        name = class_name(value, typed)
        if name not in ids:
            raise ValueError(
                f"{where}, row {number} has the label {name!r}, which {origin} does not have; labels there: "
                f"{listing(class_names)}.{did_you_mean(name, class_names)}"
            )
        labels.append(ids[name])
    return labels


# ---- a dataset's ids and a model's ----------------------------------------------------------------------------------


def _plain(name: str) -> str:
    """Return a label name without what spellings differ in: letter case, outer blanks, `-`, `_` and spaces."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def is_generic(names: Sequence[str]) -> bool:
    """Whether label names say nothing: `LABEL_0`, `LABEL_1`, ..., which transformers writes when none were given."""
    return bool(names) and all(_GENERIC.fullmatch(str(name)) for name in names)


def align_labels(spec_label_names: Sequence[str], label2id: Mapping[str, int]) -> list[int]:
    """Match a dataset's class ids with a model's by name.

    Models trained elsewhere may order the same labels differently (MNLI models often do); comparing ids would then
    count right answers as wrong.

    Args:
        spec_label_names: The dataset's class names in the order of their ids.
        label2id: The model's `config.label2id`. Letter case, `-`, `_` and spaces do not matter.

    Returns:
        For each dataset id the model's id. If the model's names are the generic `LABEL_0`, `LABEL_1`, ... and there
        are as many, ids are taken to agree.

    Raises:
        ValueError: If the dataset has more labels than the model, or the names are not the same set.

    Example:
        >>> align_labels(("entailment", "not_entailment"), {"NOT_ENTAILMENT": 0, "ENTAILMENT": 1})
        [1, 0]
    """
    if not spec_label_names:
        raise ValueError("align_labels needs the dataset's label names; a regression task has none")
    ours, theirs = list(spec_label_names), [str(name) for name in label2id]
    if len(ours) > len(theirs):
        raise ValueError(
            f"The data has more labels ({len(ours)}: {listing(ours)}) than the model "
            f"({len(theirs)}: {listing(theirs)})"
        )
    if is_generic(theirs) and len(ours) == len(theirs):
        return list(range(len(ours)))
    exact = {str(name): int(i) for name, i in label2id.items()}
    if set(ours) == set(theirs):
        return [exact[name] for name in ours]
    plain = {_plain(name): i for name, i in exact.items()}
    wanted = [_plain(name) for name in ours]
    # Names that differ only in spelling must not be merged: two of the dataset's labels would get one id.
    merged = len(plain) < len(theirs) or len(set(wanted)) < len(ours)
    if merged or set(wanted) != set(plain):
        raise ValueError(f"The labels of the data ({listing(ours)}) are not those of the model ({listing(theirs)})")
    return [plain[name] for name in wanted]


def to_dataset_ids(model_ids: Sequence[int], dataset_to_model: Sequence[int]) -> list[int]:
    """Turn a model's class ids back into the dataset's: the inverse of what `align_labels` returned.

    Raises:
        ValueError: If an id is not one of the model's ids in `dataset_to_model`.
    """
    back = {model_id: dataset_id for dataset_id, model_id in enumerate(dataset_to_model)}
    unknown = sorted({int(i) for i in model_ids} - set(back))
    if unknown:
        raise ValueError(f"Class ids {unknown} are not among the model's ids {list(dataset_to_model)}")
    return [back[int(i)] for i in model_ids]
