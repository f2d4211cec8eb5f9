"""Sentences for the two language models of ELMo: from documents to batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from datasets import Features, Sequence, Value

from ..tokenization_elmo import ElmoTokenizer
from .episodes import MetaTask
from .pretraining import on_disk


# Objective to the direction of `ElmoForPreTraining`.
DIRECTIONS = {"forward_lm": "forward", "backward_lm": "backward"}


class LanguageModelTask(MetaTask):
    """A task of meta-learning on text whose losses are those of the language models.

    A batch has the labels of both, and says which of them to run.
    """

    def only(self, inputs: dict[str, Any], objective: str) -> dict[str, Any]:
        return inputs | {"directions": DIRECTIONS[objective]}


def language_model_task(
    documents: Iterable[list[str]],
    tokenizer: ElmoTokenizer,
    objectives: tuple[str, ...],
    max_length: int,
    name: str = "text",
) -> LanguageModelTask:
    """A task of meta-learning on text: the next word, the one before, or both.

    Args:
        documents: lists of sentences; they are read once, and their words are kept on disk.
        tokenizer: with a vocabulary of words to predict.
        objectives: of `"forward_lm"` and `"backward_lm"`.
        max_length: longest input in tokens; a longer sentence becomes several inputs.
        name: of the task.

    Raises:
        ValueError: for documents without a word.
    """
    pieces = (
        words[start : start + max_length]
        for document in documents
        for sentence in document
        if (words := tokenizer.tokenize(sentence))
        for start in range(0, len(words), max_length)
    )
    head = next(pieces, None)
    if head is None:
        raise ValueError(f"corpus_file: nothing to learn from in it; objectives={list(objectives)!r} need text.")

    def rows() -> Iterator[dict[str, Any]]:
        for words in itertools.chain([head], pieces):
            yield {"words": words}

    dataset = on_disk(rows, Features({"words": Sequence(Value("string"))}))
    return LanguageModelTask(name, dataset, LanguageModelCollator(tokenizer, objectives), objectives)


class LanguageModelCollator:
    """Spells the words of rows and joins them to a batch."""

    def __init__(self, tokenizer: ElmoTokenizer, objectives: tuple[str, ...]):
        self.tokenizer = tokenizer
        self.direction = "both" if len(objectives) > 1 else DIRECTIONS[objectives[0]]

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self.tokenizer(
            [row["words"] for row in rows],
            is_split_into_words=True,
            padding=True,
            return_labels=True,
            return_tensors="pt",
        )
        return {**batch, "directions": self.direction}
