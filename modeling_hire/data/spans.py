"""Questions and contexts as windows of token ids, with the characters that each token stands for.

A context that is too long for one input is read through several overlapping windows, each with the whole question.
The windows are cut here and not by the tokenizer, so that they are the same for every kind of it: WordPiece,
byte-level BPE and SentencePiece, whatever side it pads or truncates on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase


@dataclass
class Window:
    """One model input: a question with a stretch of its context.

    Args:
        row: which of the questions this is a window of, counted from 0.
        inputs: `input_ids`, `attention_mask` and, where the tokenizer makes them, `token_type_ids`, not padded.
        first: place in the input of the first token of the context.
        starts, ends: for each of the window's context tokens the characters of the context that it stands for, white
            space around them left out; equal for a token that stands for nothing else.
        null: place in the input that stands for "no answer": that of the classification token, or the first one.
        answer: places of the answer's first and last token, or twice `null` if it is not wholly in this window.
        cut: whether the question was longer than `max_query_length`.
    """

    row: int
    inputs: dict[str, list[int]]
    first: int
    starts: np.ndarray
    ends: np.ndarray
    null: int
    answer: tuple[int, int]
    cut: bool = False

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])


def make_windows(
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    contexts: Sequence[str],
    max_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int | None = 64,
    answers: Sequence[tuple[int, int] | None] | None = None,
    names: Sequence[str] | None = None,
) -> list[Window]:
    """Cut every question's context into windows.

    Args:
        tokenizer: a fast tokenizer, one that knows which characters a token stands for.
        questions, contexts: as many of one as of the other; either may be empty.
        max_length: longest input in tokens, special tokens and question included.
        doc_stride: how many tokens after the window before a window starts. (Where a window holds fewer tokens of the
            context than that, the next one starts right after them.)
        max_query_length: longest question in tokens, of longer ones the beginning is kept; `None` keeps all.
        answers: first character of each answer in its context and the one after its last, `None` for no answer.
        names: what to call the questions in messages, e.g. their ids.

    Returns:
        The windows in the order of the questions and of the text, at least one for each question.

    Raises:
        ValueError: if the tokenizer is not a fast one, a number is out of range, or a question leaves no room for its
            context; the message names the question.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = {word: i for i, word in enumerate(["[UNK]", "who", "Ann", "met", "Bob"])}
        >>> backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
        >>> windows = make_windows(tokenizer, ["who"], ["Ann met Bob"], max_length=3, doc_stride=1, answers=[(8, 11)])
        >>> [window.inputs["input_ids"] for window in windows]
        [[1, 2, 3], [1, 3, 4]]
        >>> [window.answer for window in windows]
        [(0, 0), (2, 2)]
        >>> windows[1].starts.tolist(), windows[1].ends.tolist()
        ([4, 8], [7, 11])
    """
    for name, value in (
        ("max_length", max_length),
        ("doc_stride", doc_stride),
        ("max_query_length", max_query_length),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer={type(tokenizer).__name__}: does not know which characters a token stands for; allowed is a "
            "fast tokenizer"
        )
    if len(questions) != len(contexts):
        raise ValueError(f"questions and contexts: {len(questions)} of one and {len(contexts)} of the other")
    if not len(questions):
        return []
    encoded = tokenizer(
        list(questions),
        list(contexts),
        truncation=False,
        padding=False,
        return_offsets_mapping=True,
        return_attention_mask=True,
        verbose=False,
    )
    windows: list[Window] = []
    for row, context in enumerate(contexts):
        name = f"Question {(row if names is None else names[row])!r}"
        pair = _Pair(tokenizer, encoded, row, context, max_query_length)
        answer = pair.tokens_of(None if answers is None else answers[row])
        for start, stop in _stretches(len(pair.starts), pair.room(max_length, name), doc_stride):
            windows.append(pair.window(row, start, stop, answer))
    return windows


class _Pair:
    """A question and its whole context as tokens: what goes before the context in an input, it, and what after."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, encoded: Any, row: int, context: str, max_query_length: int | None
    ):
        names = [name for name in encoded if name in (*tokenizer.model_input_names, "attention_mask")]
        self.columns = {name: encoded[name][row] for name in names}
        sides = encoded.sequence_ids(row)
        question = [place for place, side in enumerate(sides) if side == 0]
        places = [place for place, side in enumerate(sides) if side == 1]
        self.start = places[0] if places else len(sides)
        self.stop = places[-1] + 1 if places else len(sides)
        dropped = set(question[max_query_length:]) if max_query_length is not None else set()
        self.cut = bool(dropped)
        self.question_length = len(question) - len(dropped)
        self.before = [place for place in range(self.start) if place not in dropped]
        self.after = [place for place in range(self.stop, len(sides)) if place not in dropped]
        special = [place for place, side in enumerate(sides) if side is None]
        ids = self.columns["input_ids"]
        self.null = next((place for place in special if ids[place] == tokenizer.cls_token_id), None)
        offsets = [_trim(context, *offset) for offset in encoded["offset_mapping"][row][self.start : self.stop]]
        self.starts, self.ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T

    def room(self, max_length: int, name: str) -> int:
        """How many tokens of the context an input has room for."""
        others = len(self.before) + len(self.after)
        if others + (len(self.starts) > 0) > max_length:
            raise ValueError(
                f"{name} has {self.question_length} tokens and leaves no room for its context in "
                f"max_length={max_length}; allowed are at most {max_length - 1 - others + self.question_length} "
                "(a smaller max_query_length cuts it)"
            )
        return max_length - others

    def tokens_of(self, answer: tuple[int, int] | None) -> tuple[int, int] | None:
        """The first and last token of the context that hold a character of the answer."""
        if answer is None:
            return None
        inside = np.flatnonzero((self.starts < answer[1]) & (self.ends > answer[0]) & (self.starts < self.ends))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None

    def window(self, row: int, start: int, stop: int, answer: tuple[int, int] | None) -> Window:
        """The input with the context's tokens from `start` to before `stop`."""
        places = [*self.before, *range(self.start + start, self.start + stop), *self.after]
        null = 0 if self.null is None else places.index(self.null)
        first = len(self.before)
        labels = (null, null)
        if answer is not None and start <= answer[0] and answer[1] < stop:
            labels = (first + answer[0] - start, first + answer[1] - start)
        return Window(
            row=row,
            inputs={name: [values[place] for place in places] for name, values in self.columns.items()},
            first=first,
            starts=self.starts[start:stop],
            ends=self.ends[start:stop],
            null=null,
            answer=labels,
            cut=self.cut,
        )


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """A token's characters without the white space around them, which some tokenizers count to it."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _stretches(length: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Where the windows of a context start and stop."""
    start = 0
    while True:
        stop = min(start + room, length)
        yield start, stop
        if stop == length:
            return
        start += min(stride, room)
