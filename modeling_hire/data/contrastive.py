"""The texts of contrastive training and the scored pairs of its evaluation, read and checked.

A training row holds texts that are alike, and texts that are not: anchor, positive, hard negatives. In self-supervised
training it holds one text, which is its own positive; in hybrid training a supervised row and one more text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from transformers import PreTrainedTokenizerBase

from .columns import take_texts
from .contrastive_arguments import ContrastiveArguments
from .contrastive_columns import find_score_columns, find_text_columns
from .contrastive_encoding import EncodedContrastiveData, encode_pairs, encode_rows
from .contrastive_sources import evaluation_tables, read_texts, training_tables
from .labels import is_hidden, to_score
from .loading import capped_rows
from .preprocessing import truncation_note
from .readers import Table


@dataclass
class TextRows:
    """Rows of texts, each distinct text held once.

    Args:
        texts: The distinct texts.
        members: For each row its texts, as numbers in `texts`: (rows, texts of a row).

    Example:

    ```python
    >>> from modeling_hire.data.contrastive import TextRows

    >>> rows = TextRows.of([("A cat.", "An animal."), ("A dog.", "An animal.")])
    >>> rows.texts, rows.members.tolist()
    (['A cat.', 'An animal.', 'A dog.'], [[0, 1], [2, 1]])
    >>> len(rows), rows[1]
    (2, ('A dog.', 'An animal.'))
    ```
    """

    texts: list[str]
    members: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]]) -> TextRows:
        """Number the texts of rows, which all have the same number of them."""
        numbers: dict[str, int] = {}
        members = [[numbers.setdefault(text, len(numbers)) for text in row] for row in rows]
        return cls(list(numbers), np.asarray(members, dtype=np.int64).reshape(len(rows), -1))

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, row: int) -> tuple[str, ...]:
        return tuple(self.texts[member] for member in self.members[row])


@dataclass
class ContrastiveData:
    """Texts to learn from and scored pairs to test on, ready to be turned into tokens.

    Args:
        scheme: As in `ContrastiveArguments`.
        train: The training rows, or `None` when only evaluating.
        num_negatives: How many hard negatives each row has.
        evaluation: Split name -> pairs, with the columns `text`, `text_pair` and `label` (the score).
        test: The same for splits that are scored at the end only.
        notes: Sentences for the user about what was left out, capped, guessed or found to be odd.
        num_workers: Processes that turn text into tokens; `None` means this one.
    """

    scheme: str
    train: TextRows | None
    num_negatives: int
    evaluation: dict[str, Dataset]
    test: dict[str, Dataset]
    notes: list[str] = field(default_factory=list)
    num_workers: int | None = None

    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int, prompt: str = "") -> EncodedContrastiveData:
        """Turn all texts into token ids, without padding.

        Args:
            tokenizer: Any tokenizer of transformers that can pad.
            max_length: Longest text in tokens, special tokens included; longer ones are cut, which is noted.
            prompt: Put in front of every text.

        Returns:
            See `EncodedContrastiveData`; `ContrastiveCollator` joins its rows to batches.

        Raises:
            ValueError: If `max_length` leaves no room beside the special tokens, or nothing is left of a text.
        """
        notes: list[str] = []

        def note(split: str, num_cut: int, num_texts: int) -> None:
            message = truncation_note(split, num_cut, num_texts, max_length)
            notes.extend([message] if message else [])

        train = None
        if self.train is not None:
            texts = [prompt + text for text in self.train.texts]
            train, num_cut = encode_rows(texts, self.train.members, tokenizer, max_length, self.num_workers)
            note("train", num_cut, len(self.train.texts))
        splits: dict[str, Dataset] = {}
        order: dict[str, list[int]] = {}
        for split, pairs in {**self.evaluation, **self.test}.items():
            rows = TextRows.of(list(zip(pairs["text"][:], pairs["text_pair"][:], strict=True)))
            texts = [prompt + text for text in rows.texts]
            splits[split], order[split], num_cut = encode_pairs(
                texts, rows.members, pairs["label"][:], tokenizer, max_length, self.num_workers
            )
            note(split, num_cut, len(rows.texts))
        return EncodedContrastiveData(
            train=train,
            evaluation={split: splits[split] for split in self.evaluation},
            test={split: splits[split] for split in self.test},
            order=order,
            notes=notes,
        )


def load_contrastive_data(arguments: ContrastiveArguments, evaluation_only: bool = False) -> ContrastiveData:
    """Read, check and cap the data that `arguments` names. Nothing is written, and no file is changed.

    Args:
        arguments: Which data, see `ContrastiveArguments`.
        evaluation_only: Leave the training data out.

    Raises:
        HubUnreachableError: If data is on the Hub and there is no network (a `ConnectionError` and `ValueError`).
        ValueError: If data is missing, empty or wrong; the message names file, row (counted from 1) and column. Wrong
            are members of a row that are no text or blank, rows of different numbers of texts, scores that are
            missing, not finite or outside `score_range`, and splits whose scores are all the same.
    """
    notes: list[str] = []
    train, num_negatives = None, 0
    if evaluation_only and not arguments.has_evaluation:
        raise ValueError("There is nothing to evaluate on: give validation_file, validation_dir or test_file")
    if not evaluation_only:
        train, num_negatives = _load_train(arguments, notes)
    tables = evaluation_tables(arguments, notes)
    splits = {split: _scored_pairs(table, split, arguments, notes) for split, table in tables.items()}
    return ContrastiveData(
        scheme=arguments.scheme,
        train=train,
        num_negatives=num_negatives,
        evaluation={split: pairs for split, pairs in splits.items() if split == "validation"},
        test={split: pairs for split, pairs in splits.items() if split == "test" and pairs is not None},
        notes=notes,
        num_workers=arguments.preprocessing_num_workers,
    )


# ---- training rows --------------------------------------------------------------------------------------------------


def _load_train(args: ContrastiveArguments, notes: list[str]) -> tuple[TextRows, int]:
    tables = training_tables(args, notes)
    source = ", ".join(table.source for table in tables)
    if args.scheme == "self_supervised":
        rows: list[tuple[str, ...]] = [(text,) for text in _single_texts(tables, args.text_columns, notes)]
    else:
        rows = _supervised_rows(tables, args, notes)
    _note_repeats(rows, source, notes)
    num_negatives = max(len(rows[0]) - 2, 0)
    if args.scheme == "hybrid":
        rows = _with_unlabelled(rows, args, notes)
    kept = capped_rows(len(rows), args.max_train_samples, args.sample_seed)
    if len(kept) < len(rows):
        notes.append(
            f"{source}: max_train_samples keeps {len(kept)} of {len(rows)} rows (sample_seed {args.sample_seed})."
        )
        rows = [rows[row] for row in kept]
    if len(rows) == 1 and (args.scheme != "supervised" or num_negatives == 0):
        raise ValueError(
            f"{source}: there is one training row and nothing that it could be told from, so the contrastive loss is "
            "undefined: the other rows of a batch are its negatives, and at least two rows are needed"
        )
    return TextRows.of(rows), num_negatives


def _supervised_rows(tables: list[Table], args: ContrastiveArguments, notes: list[str]) -> list[tuple[str, ...]]:
    """Anchor, positive and negatives of every row, each row with the same number of texts."""
    rows: list[tuple[str, ...]] = []
    first = ""
    for table in tables:
        if list(table.columns) == ["text"]:
            raise ValueError(
                f"{table.source} holds single texts, and scheme={args.scheme!r} needs rows of an anchor and a "
                "positive; single texts are for scheme='self_supervised'"
                + (", or for unlabelled_file" if args.scheme == "hybrid" else "")
            )
        columns, note = find_text_columns(table, supervised=True, given=args.text_columns)
        notes.extend([note] if note else [])
        for number, row in _rows_of(table, columns):
            where = f"{table.source}, row {number}"
            first = first or where
            if rows and len(row) != len(rows[0]):
                raise ValueError(
                    f"{where} has {_count(row)}, and {first} has {_count(rows[0])}: all rows need the same number"
                )
            rows.append(row)
    return rows


def _count(row: tuple[str, ...]) -> str:
    return f"{len(row) - 2} hard negative{'' if len(row) == 3 else 's'}"


def _rows_of(table: Table, columns: list[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The rows of a table and their numbers from 1; a list of positives makes a row of each."""
    for number, values in enumerate(zip(*(table.columns[column] for column in columns), strict=True), start=1):
        members = []
        for column, value in zip(columns, values, strict=True):
            where = f"{table.source}, row {number}: column {column!r}"
            texts = value if isinstance(value, list) and column != columns[0] else [value]
            if not texts and column == columns[1]:
                raise ValueError(f"{where} is an empty list: a row needs a positive")
            for text in texts:
                _check_text(text, where)
                if not text.strip():
                    raise ValueError(f"{where} is empty ({text!r}): each text of a row must say something")
            members.append(texts)
        anchor, positives, *negatives = members
        for positive in positives:
            yield number, (*anchor, positive, *(text for texts in negatives for text in texts))


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{where} holds {value!r} ({type(value).__name__}) where text should be")
    # Half of a character, which JSON can express and UTF-8 cannot; tokenizers fail on it without saying where.
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds {value!r:.60}, which is not valid Unicode (half of a surrogate pair)"
        ) from error


def _single_texts(tables: list[Table], given: list[str] | None, notes: list[str]) -> list[str]:
    """Single texts; blank ones are left out, as blank lines of a text file are."""
    texts: list[str] = []
    for table in tables:
        columns, note = find_text_columns(table, supervised=False, given=given)
        notes.extend([note] if note else [])
        for column in columns:
            for number, text in enumerate(take_texts(table, column), start=1):
                _check_text(text, f"{table.source}, row {number}: column {column!r}")
        found = [text for row in zip(*(table.columns[column] for column in columns), strict=True) for text in row]
        filled = [text for text in found if text.strip()]
        if not filled:
            raise ValueError(f"{table.source} holds no text: every value of {columns!r} is blank")
        if len(filled) < len(found):
            notes.append(f"{table.source}: {len(found) - len(filled)} of {len(found)} texts are blank and left out.")
        texts += filled
    return texts


def _with_unlabelled(rows: list[tuple[str, ...]], args: ContrastiveArguments, notes: list[str]) -> list[tuple]:
    """Add to each row the text of the self-supervised half: its anchor, or one of the unlabelled texts."""
    if args.unlabelled_file is None:
        notes.append("unlabelled_file is not given: the self-supervised half learns from the anchors.")
        return [(*row, row[0]) for row in rows]
    texts = _single_texts([read_texts(path) for path in args.unlabelled_file], None, notes)
    # Shuffled anew for each pass over the texts, so that none comes twice before all came once.
    generator = np.random.default_rng((args.sample_seed, 1))
    passes = [generator.permutation(len(texts)) for _ in range(-(-len(rows) // len(texts)))]
    chosen = np.concatenate(passes)[: len(rows)].tolist()
    source, counts = ", ".join(args.unlabelled_file), f"{len(texts)} texts for {len(rows)} rows"
    if len(texts) > len(rows):
        notes.append(f"{source}: {counts}, so {len(rows)} of them are used (sample_seed {args.sample_seed}).")
    elif len(texts) < len(rows):
        notes.append(f"{source}: {counts}, so texts are repeated.")
    return [(*row, texts[number]) for row, number in zip(rows, chosen, strict=True)]


def _note_repeats(rows: list[tuple[str, ...]], source: str, notes: list[str]) -> None:
    repeated = len(rows) - len(set(rows))
    what = "texts" if len(rows[0]) == 1 else "rows"
    if repeated:
        notes.append(f"{source}: {repeated} of {len(rows)} {what} repeat an earlier one; they are kept.")
    equal = Counter(
        kind
        for row in rows
        if len(set(row)) < len(row)
        for kind, found in (
            ("the positive is the anchor", row[0] == row[1]),
            ("a negative is the anchor or the positive", not set(row[:2]).isdisjoint(row[2:])),
            ("two negatives are the same", len(set(row[2:])) < len(row[2:])),
        )
        if found
    )
    notes.extend(f"{source}: in {count} of {len(rows)} rows {kind}." for kind, count in equal.items())


# ---- scored pairs ---------------------------------------------------------------------------------------------------


def _scored_pairs(table: Table, split: str, args: ContrastiveArguments, notes: list[str]) -> Dataset | None:
    """The pairs of a split; `None` for a test split whose scores are not given."""
    first, second, score = find_score_columns(table, args.validation_columns)
    texts = [take_texts(table, column) for column in (first, second)]
    for column, values in zip((first, second), texts, strict=True):
        for number, text in enumerate(values, start=1):
            _check_text(text, f"{table.source}, row {number}: column {column!r}")
    values = table.columns[score]
    if all(is_hidden(value) for value in values):
        if split == "test":
            notes.append(f"{table.source}: the scores are not given ({values[0]!r}), so the test split is left out.")
            return None
        raise ValueError(f"{table.source}: all scores of column {score!r} are hidden ({values[0]!r})")
    scores = [_score(value, table, number, args.score_range) for number, value in enumerate(values, start=1)]
    blank = sum(not (a.strip() and b.strip()) for a, b in zip(*texts, strict=True))
    if blank:
        notes.append(f"{table.source}: {blank} of {len(scores)} pairs have a blank text.")
    kept = capped_rows(len(scores), args.max_eval_samples, args.sample_seed)
    if len(kept) < len(scores):
        counts = f"{len(kept)} of {len(scores)} pairs"
        notes.append(f"{table.source}: max_eval_samples keeps {counts} (sample_seed {args.sample_seed}).")
    if len({scores[row] for row in kept}) == 1:
        which = f"all {len(kept)} scores" if len(kept) == len(scores) else f"the {len(kept)} scores that are kept"
        raise ValueError(
            f"{table.source}: {which} of column {score!r} are {scores[kept[0]]!r}, and a correlation with a constant "
            "is undefined"
        )
    columns = {
        "text": [texts[0][row] for row in kept],
        "text_pair": [texts[1][row] for row in kept],
        "label": [scores[row] for row in kept],
    }
    features = {"text": Value("string"), "text_pair": Value("string"), "label": Value("float64")}
    return Dataset.from_dict(columns, features=Features(features))


def _score(value: Any, table: Table, number: int, bounds: list[float] | None) -> float:
    score = to_score(value, table.typed, table.source, number)
    if bounds is not None and not bounds[0] <= score <= bounds[1]:
        raise ValueError(
            f"{table.source}, row {number} holds the score {value!r}: score_range={bounds!r} allows scores from "
            f"{bounds[0]} to {bounds[1]}"
        )
    return score
