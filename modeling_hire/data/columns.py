"""Finding the text and label columns of a user's own file, and taking texts out of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .messages import listing
from .readers import Table


# Names that say what a column is. Order does not matter: more than one hit is reported, never resolved by rank.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("query", "passage"),
    ("text", "text_pair"),
    ("sentence", "sentence_pair"),
)
_SINGLES = ("text", "sentence", "review", "document", "content", "utterance", "question", "tweet", "query")
_LABELS = ("label", "labels", "target", "class", "category", "score", "gold_label", "stars", "rating", "similarity")
_ROW_IDS = ("", "idx", "id", "index", "guid", "unnamed: 0", "__index_level_0__")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


@dataclass(frozen=True)
class Columns:
    """Which columns of a file to read: one or two texts, and the label (`None` if the file has none)."""

    texts: tuple[str, ...]
    label: str | None


def find_columns(
    table: Table,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    needs_label: bool = True,
) -> Columns:
    """Decide which columns of `table` hold the text and the label.

    What the user named is taken. For the rest, well-known names are looked for, without regard to letter case; a
    single remaining column of text is taken as the text.

    Args:
        table: The file as read.
        text: Name of the text column, if the user gave it.
        text_pair: Name of the second text's column, if the user gave it.
        label: Name of the label column, if the user gave it.
        needs_label: Whether a file without a label column is an error.

    Raises:
        ValueError: If a named column is missing, or the choice is not clear; the message lists the columns.
    """
    if label is not None and (needs_label or label in table.columns):
        label = table.require(label)
    elif label is not None:
        label = None
    else:
        label = _find_label(table, needs_label, taken={text, text_pair})
    if text is not None:
        texts = tuple(table.require(name) for name in (text, text_pair) if name is not None)
    else:
        texts = _find_texts(table, label)
    return Columns(texts, label)


def _find_label(table: Table, needs_label: bool, taken: set[str | None]) -> str | None:
    """Return the one column with a name that labels go by."""
    found = [name for name in table.columns if name.lower() in _LABELS and name not in taken]
    if len(found) == 1:
        return found[0]
    # A column called exactly "label" beside, say, "score" is what the user means.
    if "label" in found:
        return "label"
    if not found and not needs_label:
        return None
    problem = f"several columns may be the label ({listing(found)})" if found else "no column looks like the label"
    raise ValueError(f"{table.source}: {problem}; give label_column, one of {listing(table.columns)}")


def _find_texts(table: Table, label: str | None) -> tuple[str, ...]:
    """Return the well-known pair or single text column, or else the only column that holds text."""
    by_lower = {name.lower(): name for name in table.columns if name != label}
    pairs = [(by_lower[a], by_lower[b]) for a, b in _PAIRS if a in by_lower and b in by_lower]
    if len(pairs) == 1:
        return pairs[0]
    singles = [by_lower[name] for name in _SINGLES if name in by_lower]
    if not pairs and len(singles) == 1:
        return (singles[0],)
    candidates = singles
    if not pairs and not singles:
        candidates = [name for lower, name in by_lower.items() if lower not in _ROW_IDS and _holds_text(table, name)]
        if len(candidates) == 1:
            return (candidates[0],)
    elif pairs:
        candidates = list(dict.fromkeys(name for pair in pairs for name in pair))
    problem = f"several columns may be the text ({listing(candidates)})" if candidates else "no column holds text"
    raise ValueError(
        f"{table.source}: {problem}; give text_column (and text_pair_column for pairs), from {listing(table.columns)}"
    )


def _holds_text(table: Table, name: str) -> bool:
    """Whether most values of a column are text that is not a number."""
    values = table.columns[name]
    words = sum(isinstance(value, str) and not _NUMBER.fullmatch(value) for value in values)
    return 2 * words > len(values)


def take_texts(table: Table, column: str) -> list[str]:
    """Return the column's texts as they are.

    Raises:
        ValueError: If a value is not a string; the message names the column and the row (counted from 1).
    """
    values = table.columns[column]
    for number, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise ValueError(
                f"{table.source}, row {number}: column {column!r} holds {value!r} ({type(value).__name__}) where text "
                "should be"
            )
    return values
