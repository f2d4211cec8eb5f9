"""Rows of texts as datasets of token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .preprocessing import tokenize_dataset


@dataclass
class EncodedContrastiveData:
    """What a trainer reads; `ContrastiveCollator` joins the rows to batches.

    Args:
        train: Rows with `input_ids` (a list of ids for each text: anchor, positive, negatives, and in hybrid training
            last the text of the self-supervised half; in self-supervised training one text), `text_ids` (a number for
            each text: equal texts have equal ones, in all rows) and `length` (tokens of the longest text). `None` when
            only evaluating.
        evaluation: Split name -> pairs with `input_ids` (two lists), `labels` (the score) and `length`, from the
            longest to the shortest.
        test: The same for splits that are scored at the end only.
        order: For each split of the two, for each row its number in the data as read:
            `restored[order] = predictions`.
        notes: Sentences for the user about texts that were cut.
    """

    train: Dataset | None
    evaluation: dict[str, Dataset]
    test: dict[str, Dataset]
    order: dict[str, list[int]]
    notes: list[str]


def encode_rows(
    texts: Sequence[str],
    members: np.ndarray,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    num_workers: int | None = None,
) -> tuple[Dataset, int]:
    """Turn rows of texts into token ids, each distinct text once.

    Args:
        texts: The distinct texts.
        members: The texts of each row, as numbers in `texts`: (rows, texts of a row).
        tokenizer: Any tokenizer of transformers.
        max_length: Longest text in tokens, special tokens included.
        num_workers: Processes to use; `None` means this one.

    Returns:
        The rows with `input_ids`, `text_ids` and `length`, and how many texts were cut. Texts that are the same tokens
        have the same `text_ids`: a model that ignores letter case cannot tell them apart, nor two long texts that
        differ only in what was cut. Where the tokenizer numbers the first text of an input other than by 0, there is
        `token_type_ids` too.

    Raises:
        ValueError: If `max_length` leaves no room beside the special tokens, or nothing is left of a text.
    """
    tokens, num_cut = tokenize_dataset(Dataset.from_dict({"text": texts}), tokenizer, max_length, num_workers)
    table = tokens.data.table
    ids = _one_chunk(table, "input_ids")
    lengths = np.diff(ids.offsets.to_numpy())
    if not lengths.all():
        empty = texts[int(np.argmin(lengths))]
        raise ValueError(f"This tokenizer makes no token of the text {empty!r:.60}: there is nothing to embed")
    columns: dict[str, pa.Array] = {"input_ids": _nested(ids, members)}
    if "token_type_ids" in table.column_names:
        types = _one_chunk(table, "token_type_ids")
        if types.values.to_numpy(zero_copy_only=False).any():
            columns["token_type_ids"] = _nested(types, members)
    columns["text_ids"] = _list_of(pa.array(_numbers(ids)[members].ravel()), members.shape)
    columns["length"] = pa.array(lengths[members].max(axis=1).astype(np.int64))
    return Dataset.from_dict(columns), num_cut


def encode_pairs(
    texts: Sequence[str],
    members: np.ndarray,
    scores: Sequence[float],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    num_workers: int | None = None,
) -> tuple[Dataset, list[int], int]:
    """Turn scored pairs into token ids, from the longest pair to the shortest.

    Args:
        texts, members, tokenizer, max_length, num_workers: As in `encode_rows`.
        scores: One for each pair, which becomes `labels`.

    Returns:
        The sorted pairs, for each of them the row it was before, and how many texts were cut.

    Raises:
        ValueError: As `encode_rows`.
    """
    pairs, num_cut = encode_rows(texts, members, tokenizer, max_length, num_workers)
    pairs = pairs.remove_columns("text_ids").add_column("labels", list(map(float, scores)))
    order = np.argsort(-np.asarray(pairs["length"][:]), kind="stable").tolist()
    return pairs.select(order), order, num_cut


def _one_chunk(table: pa.Table, column: str) -> pa.ListArray:
    chunks = table.column(column).combine_chunks()
    array = chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)
    # What was sliced keeps the values outside the slice; take() does not.
    return array.take(pa.array(np.arange(len(array))))


def _nested(tokens: pa.ListArray, members: np.ndarray) -> pa.ListArray:
    """For each row, the token lists of its texts."""
    return _list_of(tokens.take(pa.array(members.ravel())), members.shape)


def _list_of(values: pa.Array, shape: tuple[int, int]) -> pa.ListArray:
    """Cut an array into rows of equal length."""
    rows, width = shape
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), values)


def _numbers(tokens: pa.ListArray) -> np.ndarray:
    """A number for each list, equal for equal lists, in the order in which they first occur."""
    values, offsets = tokens.values.to_numpy(zero_copy_only=False), tokens.offsets.to_numpy()
    seen: dict[bytes, int] = {}
    numbers = np.empty(len(tokens), dtype=np.int64)
    for row, (start, stop) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        # A million texts fit into memory as digests, hardly as lists.
        digest = hashlib.blake2b(values[start:stop].tobytes(), digest_size=16).digest()
        numbers[row] = seen.setdefault(digest, len(seen))
    return numbers
