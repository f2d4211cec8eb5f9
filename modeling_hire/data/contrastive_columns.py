"""Which columns of a table are anchors, positives and negatives, and which are scored pairs."""

from __future__ import annotations

import re

from .columns import find_columns
from .messages import listing
from .readers import Table


# Names of the anchor, the positive and the negatives that go with them. Negatives may be numbered: negative_1, ...
_ROWS = (
    (("anchor", "query"), ("positive",), ("negative", "hard_negative")),
    (("query",), ("pos",), ("neg",)),
    (("sent0",), ("sent1",), ("hard_neg",)),
    (("premise",), ("entailment",), ("contradiction",)),
)
# Names that do not say that two texts mean the same.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
)
_SCORED_PAIRS = (*_PAIRS[:3], ("sentence_a", "sentence_b"))
_LABEL = re.compile(r"(.*_)?(labels?|score|similarity|relatedness|duplicate|paraphrase|gold)")
# Names that tell rows apart and say nothing.
_NUMBERS = re.compile(r"(.*_)?(idx|index|guid|q?id|pairid)\d*")
# The first two leave no doubt; SICK has one of them beside a `label` that is a class.
_SCORES = ("relatedness_score", "similarity_score", "score", "label", "labels", "similarity", "is_duplicate")
_SURE_SCORES = 2


def find_text_columns(table: Table, supervised: bool, given: list[str] | None = None) -> tuple[list[str], str | None]:
    """Decide which columns of `table` hold the texts of a row: anchor, positive, negatives.

    Args:
        table: The training data as read.
        supervised: Whether a row needs a positive. If not, a single column is found: of a row of several texts, the
            anchor.
        given: What the user named; taken as it is.

    Returns:
        The columns' names, and a note for the user where a choice was made that may surprise.

    Raises:
        ValueError: If a named column is missing, the choice is not clear, or the pairs have a label, so that not all
            of them are alike. The message lists the columns.

    Example:

    ```python
    >>> from modeling_hire.data.contrastive_columns import find_text_columns
    >>> from modeling_hire.data.readers import Table

    >>> table = Table({"negative_1": ["x"], "anchor": ["x"], "positive": ["x"], "negative": ["x"]}, "rows.jsonl")
    >>> find_text_columns(table, supervised=True)[0]
    ['anchor', 'positive', 'negative', 'negative_1']
    ```
    """
    if given is not None:
        return [table.require(name) for name in given], None
    by_lower = {name.lower(): name for name in table.columns}
    rows = [names for family in _ROWS for names in _row_names(family, list(by_lower))]
    pairs = [list(pair) for pair in _PAIRS if set(pair) <= set(by_lower)]
    # premise, hypothesis and entailment may stand side by side; a pair that shares a name with a row is no second one.
    pairs = [pair for pair in pairs if not any(set(pair) & set(names) for names in rows)]
    found = rows + pairs
    if not supervised:
        return _find_single(table, found, by_lower)
    if len(found) > 1:
        names = dict.fromkeys(by_lower[name] for names in found for name in names)
        raise ValueError(
            f"{table.source}: several columns may be the anchor and the positive ({listing(names)}); give "
            f"text_columns, from {listing(table.columns)}"
        )
    if not found:
        raise ValueError(
            f"{table.source}: no columns have names of an anchor and a positive (such as 'anchor' and 'positive', "
            "'sent0' and 'sent1', or 'sentence1' and 'sentence2'); give text_columns (anchor, positive, negatives), "
            f"from {listing(table.columns)}"
        )
    columns = [by_lower[name] for name in found[0]]
    label = next((by_lower[name] for name in by_lower if _LABEL.fullmatch(name)), None)
    if pairs and label is not None:
        raise ValueError(
            f"{table.source}: the pairs {listing(columns)} have the label {label!r}, so not all of them mean the "
            "same, and supervised training takes every row for a pair that does. Keep the rows whose label says so "
            "(for NLI: anchor, entailed and contradicted text in a row) and leave the label out; to take all rows, "
            f"give text_columns={columns!r}; to learn from the texts alone, scheme='self_supervised'"
        )
    rest = [
        name
        for lower, name in by_lower.items()
        if name not in columns and not _NUMBERS.fullmatch(lower) and not _LABEL.fullmatch(lower)
    ]
    if not rest:
        return columns, None
    return columns, (
        f"{table.source}: the texts of {listing(columns)} are used, {listing(rest)} not; text_columns takes others "
        "(anchor, positive, negatives)."
    )


def _row_names(family: tuple[tuple[str, ...], ...], names: list[str]) -> list[list[str]]:
    """The row that the names of one family make, anchor first; none if anchor or positive is not there."""
    anchors, positives, negatives = family
    anchor = [name for name in anchors if name in names]
    positive = [name for name in positives if name in names]
    if not anchor or not positive:
        return []
    numbered = re.compile(rf"({'|'.join(negatives)})(?:_?(\d+))?")
    matches = [match for name in names if (match := numbered.fullmatch(name))]
    matches.sort(key=lambda match: -1 if match[2] is None else int(match[2]))
    # Both "anchor" and "query" beside one "positive": not to be guessed.
    return [[name, *positive, *(match[0] for match in matches)] for name in anchor]


def _find_single(table: Table, found: list[list[str]], by_lower: dict[str, str]) -> tuple[list[str], str | None]:
    """The one column to take texts from."""
    anchors = list(dict.fromkeys(by_lower[names[0]] for names in found))
    singles = [by_lower[name] for name in ("text", "sentence") if name in by_lower]
    candidates = list(dict.fromkeys([*anchors, *singles]))
    if len(candidates) > 1:
        raise ValueError(
            f"{table.source}: several columns may be the text ({listing(candidates)}); give text_columns, one or more "
            f"of {listing(table.columns)}"
        )
    if singles:
        return singles, None
    if anchors:
        rest = [by_lower[name] for name in found[0][1:]]
        return anchors, (
            f"{table.source}: the texts of column {anchors[0]!r} are used, those of {listing(rest)} are not; "
            "text_columns takes others, or several."
        )
    try:
        return [find_columns(table, needs_label=False).texts[0]], None
    except ValueError as error:
        raise ValueError(
            f"{table.source}: no one column is clearly the text; give text_columns, one or more of "
            f"{listing(table.columns)}"
        ) from error


def find_score_columns(table: Table, given: list[str] | None = None) -> tuple[str, str, str]:
    """Decide which columns of `table` hold the two sentences of a pair and the score of how alike they are.

    Args:
        table: The pairs as read.
        given: What the user named; taken as it is.

    Raises:
        ValueError: If a named column is missing, or the choice is not clear. The message lists the columns.
    """
    if given is not None:
        first, second, score = (table.require(name) for name in given)
        return first, second, score
    by_lower = {name.lower(): name for name in table.columns}
    pairs = [pair for pair in _SCORED_PAIRS if set(pair) <= set(by_lower)]
    sure = [name for name in _SCORES[:_SURE_SCORES] if name in by_lower]
    scores = sure or [name for name in _SCORES if name in by_lower]
    problem = None
    if len(pairs) != 1:
        names = [by_lower[name] for pair in pairs for name in pair]
        problem = f"several columns may be the sentences ({listing(names)})" if names else "no columns look like them"
        problem = f"'sentence1' and 'sentence2' are expected; {problem}"
    elif len(scores) != 1:
        names = [by_lower[name] for name in scores]
        problem = f"several columns may be the score ({listing(names)})" if names else "no column looks like the score"
    if problem is not None:
        raise ValueError(
            f"{table.source}: {problem}; give validation_columns (first sentence, second sentence, score), from "
            f"{listing(table.columns)}"
        )
    return by_lower[pairs[0][0]], by_lower[pairs[0][1]], by_lower[scores[0]]
