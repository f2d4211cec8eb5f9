"""Queries, documents and which fit: from pairs of duplicate questions, or from a collection in BEIR's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.columns import take_texts
from ..data.readers import Table, read_table
from ..data.sources import HubUnreachableError, read_hub, split_file
from ..data.tasks import TaskSpec


# Where BEIR's collection of Quora questions lies on the Hub.
HUB_COLLECTION = "mteb/quora"
_DUPLICATE = {0: False, 1: True, "0": False, "1": True}  # True and False too, which equal 1 and 0


@dataclass(frozen=True)
class RetrievalData:
    """What to search for, in what, and what is right.

    Args:
        name: of the data.
        corpus: n documents.
        queries: q queries.
        relevant: for each query the numbers of the documents that are right, at least one.
        own: (q,) the document that is the query itself and is left out of its results; -1 for none.
        notes: sentences for the user about this data.

    Raises:
        ValueError: if there is no query, or one has no relevant document.
    """

    name: str
    corpus: list[str]
    queries: list[str]
    relevant: list[np.ndarray]
    own: np.ndarray
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.queries:
            raise ValueError(f"{self.name}: no query has a relevant document, so there is nothing to score.")
        if not len(self.queries) == len(self.relevant) == len(self.own):
            raise ValueError(f"{self.name}: {len(self.queries)} queries, {len(self.relevant)} lists of documents.")
        lacking = next((row for row, documents in enumerate(self.relevant) if len(documents) == 0), None)
        if lacking is not None:
            raise ValueError(f"{self.name}: query {self.queries[lacking][:60]!r} has no relevant document.")


def load_retrieval(
    dataset_dir: str | Path | None = None,
    pairs: str | Path | None = None,
    split: str = "test",
    dataset_revision: str | None = None,
) -> RetrievalData:
    """Read retrieval data from a folder, a file of pairs, or the Hub.

    Args:
        dataset_dir: a folder with `pairs.jsonl` (see [`duplicate_questions`]), or with `corpus`, `queries` and
            `qrels/<split>` (see [`load_collection`]); or one that holds such a folder as `quora_duplicates` or
            `quora`.
        pairs: a file of pairs. With neither, BEIR's Quora collection is read from the Hub.
        split: of a collection.
        dataset_revision: commit, tag or branch on the Hub.

    Raises:
        HubUnreachableError: if the data is on the Hub and there is no network.
        ValueError: if data is missing or wrong; the message names file, row (counted from 1) and column.

    Example:

    ```python
    >>> data = load_retrieval("data")  # doctest: +SKIP
    ```
    """
    if pairs is not None:
        return duplicate_questions(read_table(pairs), Path(pairs).name)
    if dataset_dir is None:
        return _from_hub(split, dataset_revision)
    root = Path(dataset_dir)
    if not root.is_dir():
        raise ValueError(f"dataset_dir={str(root)!r} is not a folder")
    for folder in (root, root / "quora_duplicates", root / "quora"):
        if not folder.is_dir():
            continue
        file = split_file(folder, "pairs")
        if file is not None:
            return duplicate_questions(read_table(file), folder.resolve().name)
        if split_file(folder, "corpus") is not None:
            return load_collection(folder, split)
    raise ValueError(
        f"dataset_dir={str(root)!r}: holds no 'pairs.jsonl' and no 'corpus.jsonl' (or another format), nor does a "
        "folder 'quora_duplicates' or 'quora' in it."
    )


# ---- pairs ----------------------------------------------------------------------------------------------------------


def duplicate_questions(table: Table, name: str) -> RetrievalData:
    """Make a search task of pairs of questions that are duplicates or not.

    The corpus is every distinct question. Duplicates of duplicates are duplicates: each question that has any is a
    query, all others of its group are right, and the question itself is not looked at.

    Args:
        table: with the columns `question1`, `question2` (or `sentence1`, `sentence2`) and `is_duplicate` (or
            `label`): 1 for duplicates, 0 for others.
        name: what to call the data.

    Raises:
        ValueError: if a column is missing, a value is wrong, or there are no duplicates.

    Example:
        >>> rows = {"question1": ["a", "b", "d"], "question2": ["b", "c", "a"], "is_duplicate": [1, 1, 0]}
        >>> data = duplicate_questions(Table(rows, "mine"), "mine")
        >>> data.corpus, data.queries, data.relevant[0].tolist(), data.own.tolist()
        (['a', 'b', 'd', 'c'], ['a', 'b', 'c'], [1, 3], [0, 1, 3])
    """
    left = take_texts(table, table.require("question1", ("sentence1",)))
    right = take_texts(table, table.require("question2", ("sentence2",)))
    flags = _flags(table, table.require("is_duplicate", ("label",)))
    places: dict[str, int] = {}
    # All first questions, then all second ones, so that a question's number does not depend on the labels.
    pairs = [(places.setdefault(one, len(places)), other) for one, other in zip(left, right, strict=True)]
    pairs = [(one, places.setdefault(other, len(places))) for one, other in pairs]
    groups = _groups(len(places), [pair for pair, flag in zip(pairs, flags, strict=True) if flag])
    members: dict[int, list[int]] = {}
    for question, group in enumerate(groups):
        members.setdefault(group, []).append(question)
    corpus = list(places)
    own = [question for question, group in enumerate(groups) if len(members[group]) > 1]
    return RetrievalData(
        name=name,
        corpus=corpus,
        queries=[corpus[question] for question in own],
        relevant=[np.array([other for other in members[groups[q]] if other != q]) for q in own],
        own=np.array(own, dtype=np.int64),
        notes=(
            "a small collection made of pairs: every question that has a duplicate is a query, so figures are not "
            "those of BEIR's Quora collection.",
        ),
    )


def _flags(table: Table, column: str) -> list[bool]:
    flags = []
    for number, value in enumerate(table.columns[column], start=1):
        if not isinstance(value, str | int | float) or value not in _DUPLICATE:
            raise ValueError(f"{table.source}, row {number}: column {column!r} holds {value!r}; allowed is 0 or 1.")
        flags.append(_DUPLICATE[value])
    return flags


def _groups(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The lowest member of each one's group, when pairs belong together."""
    parents = list(range(count))

    def root(one: int) -> int:
        while parents[one] != one:
            parents[one] = parents[parents[one]]
            one = parents[one]
        return one

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parents[high] = low
    return [root(one) for one in range(count)]


# ---- a collection ---------------------------------------------------------------------------------------------------


def load_collection(folder: str | Path, split: str = "test") -> RetrievalData:
    """Read a collection in BEIR's form.

    Args:
        folder: with `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and `qrels/<split>.tsv`
            (`query-id`, `corpus-id`, `score`), each in any format that tables come in.
        split: which judgements to use.

    Raises:
        ValueError: if a file or column is missing, or an id is unknown.

    Example:

    ```python
    >>> data = load_collection("beir/quora", "test")  # doctest: +SKIP
    ```
    """
    folder = Path(folder)
    tables = []
    for place, name in ((folder, "corpus"), (folder, "queries"), (folder / "qrels", split)):
        file = split_file(place, name) if place.is_dir() else None
        if file is None:
            raise ValueError(f"{place}: no file {name}.jsonl (or .tsv, .csv, .json, .parquet).")
        tables.append(read_table(file))
    return _collection(f"{folder.resolve().name}, {split}", *tables)


def _from_hub(split: str, revision: str | None) -> RetrievalData:
    tables = []
    for config, names in (("corpus", ("corpus",)), ("queries", ("queries",)), ("default", (split,))):
        spec = TaskSpec(
            name="quora",
            title="Quora",
            text_columns=("text",),
            label_names=None,
            metrics=("spearman",),
            main_metric="spearman",
            hub_path=HUB_COLLECTION,
            hub_config=config,
            evaluation_splits=names,
            test_splits=(),
        )
        try:
            found = read_hub(spec, revision, evaluation_only=True)
        except HubUnreachableError as error:
            raise HubUnreachableError(
                f"No connection to the Hub, and {HUB_COLLECTION} is not in the local cache. Give --dataset_dir, a "
                "folder with pairs.jsonl or with corpus.jsonl, queries.jsonl and qrels/, or --pairs, a file."
            ) from error
        if not found:
            raise ValueError(f"{HUB_COLLECTION} ({config}) has no split {names[0]!r}.")
        tables.append(next(iter(found.values())))
    return _collection(f"{HUB_COLLECTION}, {split}", *tables)


def _collection(name: str, corpus: Table, queries: Table, judged: Table) -> RetrievalData:
    document_place = _places(corpus)
    titles = [""] * len(corpus) if corpus.find("title") is None else corpus.columns["title"]
    texts = take_texts(corpus, corpus.require("text"))
    documents = [f"{title} {text}".strip() if title else text for title, text in zip(titles, texts, strict=True)]
    query_place, query_texts = _places(queries), take_texts(queries, queries.require("text"))
    relevant: dict[str, list[int]] = {}
    columns = [judged.columns[judged.require(column)] for column in ("query-id", "corpus-id", "score")]
    for number, (query, document, score) in enumerate(zip(*columns, strict=True), start=1):
        for kind, known, value in (("query", query_place, query), ("document", document_place, document)):
            if str(value) not in known:
                raise ValueError(f"{judged.source}, row {number}: no {kind} has the id {value!r}.")
        try:
            positive = float(score) > 0
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{judged.source}, row {number}: column 'score' holds {score!r}; allowed is a number."
            ) from error
        if positive:
            relevant.setdefault(str(query), []).append(document_place[str(document)])
    ids = [query for query in query_place if query in relevant]
    asked = [query_texts[query_place[query]] for query in ids]
    # A query can be one of the documents, as in Quora: the same id and the same text.
    own = [document_place.get(query, -1) for query in ids]
    own = [place if place >= 0 and documents[place] == text else -1 for place, text in zip(own, asked, strict=True)]
    return RetrievalData(
        name=name,
        corpus=documents,
        queries=asked,
        relevant=[np.unique(relevant[query]) for query in ids],
        own=np.array(own, dtype=np.int64),
    )


def _places(table: Table) -> dict[str, int]:
    column = table.require("_id", ("id",))
    places: dict[str, int] = {}
    for number, value in enumerate(table.columns[column], start=1):
        key = _key(value)
        if key is None or key in places:
            problem = "is there twice" if key is not None else "is no id"
            raise ValueError(f"{table.source}, row {number}: column {column!r} holds {value!r}, which {problem}.")
        places[key] = number - 1
    return places


def _key(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and str(value) else None
