"""Examples grouped by label or by score, for pictures and tables of one group beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


# Scores have no natural groups; four parts still tell low from high in a picture.
_SCORE_PARTS = 4


def group_labels(
    labels: Sequence[Any] | np.ndarray | None,
    label_names: Sequence[str] | Mapping[int, str] | None,
    num_examples: int,
) -> tuple[np.ndarray, list[str]]:
    """
    Groups examples by their label.

    Args:
        labels: (examples,), labels, or scores: if any number is not whole, all are sorted and cut into four groups of
            equal size. None gives one group without a name.
        label_names: the name of each label, as a list or as a config's `id2label`; a label without a name is its own.
        num_examples: how many labels there must be.

    Returns:
        The number of each example's group, (examples,), and the groups' names.

    Raises:
        ValueError: the wrong number of labels, or NaN among them.

    Example:
        >>> groups, names = group_labels([1, 0, 1], ["bad", "good"], 3)
        >>> groups.tolist(), names
        ([1, 0, 1], ['bad', 'good'])
    """
    if labels is None:
        return np.zeros(num_examples, dtype=int), []
    values = np.asarray(labels)
    if values.shape != (num_examples,):
        raise ValueError(f"labels: must be one label for each of {num_examples} examples, got shape {values.shape}")
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            raise ValueError(f"labels: must not hold NaN, got {int(np.isnan(values).sum())}")
        if (values != values.round()).any():
            return _group_scores(values)
        values = values.astype(int)
    found, groups = np.unique(values, return_inverse=True)
    return groups, [_label_name(value, label_names) for value in found.tolist()]


def _group_scores(scores: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Examples sorted by score and cut into parts of equal size, named by their lowest and highest score."""
    parts = [part for part in np.array_split(np.argsort(scores, kind="stable"), _SCORE_PARTS) if len(part)]
    groups = np.zeros(len(scores), dtype=int)
    names: list[str] = []
    for group, part in enumerate(parts):
        groups[part] = group
        names.append(f"{group + 1}: {scores[part[0]]:.2f} to {scores[part[-1]]:.2f}")
    return groups, names


def _label_name(label: Any, names: Sequence[str] | Mapping[int, str] | None) -> str:
    # A config read from JSON may hold its label numbers as strings.
    if isinstance(names, Mapping):
        return str(names.get(label, names.get(str(label), label)))
    if names is not None and isinstance(label, int) and 0 <= label < len(names):
        return str(names[label])
    return str(label)
