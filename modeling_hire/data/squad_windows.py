"""Questions as datasets of model inputs, and the windows they stand for read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .spans import Window, make_windows
from .squad_arguments import SquadArguments


# Columns that no model takes; the rest are inputs and `labels`.
_ABOUT = ("row", "first", "null", "answer", "starts", "ends")


def window_dataset(
    questions: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    args: SquadArguments,
    max_length: int,
    for_training: bool = False,
) -> tuple[Dataset, int]:
    """Cut questions into windows of token ids, without padding.

    Args:
        questions: as `load_squad` makes them.
        tokenizer: a fast tokenizer.
        args: how to cut.
        max_length: longest input in tokens, at most `args.max_length`.
        for_training: leave out what only the decoder needs.

    Returns:
        The model's inputs of each window; where answers are known `labels`, which are the places of the first
        reference answer's first and last token and the number of tokens of the window (see `labelled_span_loss`); and
        what `read_windows` reads. And how many questions were cut to `max_query_length`.

    Raises:
        ValueError: if a question leaves no room for its context; the message names its id.
    """
    has_answers = "texts" in questions.column_names

    def cut(batch: dict[str, list[Any]], rows: list[int]) -> dict[str, list[Any]]:
        spans = None
        if has_answers:
            pairs = zip(batch["texts"], batch["starts"], strict=True)
            spans = [(starts[0], starts[0] + len(texts[0])) if texts else None for texts, starts in pairs]
        windows = make_windows(
            tokenizer,
            batch["question"],
            batch["context"],
            max_length,
            args.doc_stride,
            args.max_query_length,
            answers=spans,
            names=batch["id"],
        )
        columns: dict[str, list[Any]] = {
            name: [window.inputs[name] for window in windows] for name in (windows[0].inputs if windows else ())
        }
        if has_answers:
            columns["labels"] = [[*window.answer, len(window)] for window in windows]
        # A question counts as cut once, whatever the number of its windows.
        columns["cut"] = [w.cut and (i == 0 or windows[i - 1].row != w.row) for i, w in enumerate(windows)]
        if not for_training:
            for name in _ABOUT:
                columns[name] = [getattr(window, name) for window in windows]
            columns["row"] = [rows[row] for row in columns["row"]]
        return columns

    result = questions.map(
        cut,
        with_indices=True,
        batched=True,
        num_proc=args.preprocessing_num_workers,
        remove_columns=questions.column_names,
        desc="Cutting windows",
    )
    return result.remove_columns("cut"), sum(result["cut"][:])


def read_windows(dataset: Dataset) -> tuple[Dataset, list[Window]]:
    """Split a dataset of windows into model inputs and what the decoder needs to know of each, in the same order."""
    about = dataset.select_columns(list(_ABOUT)).with_format("numpy")
    windows = [
        Window(
            row=int(item["row"]),
            inputs={},
            first=int(item["first"]),
            starts=np.asarray(item["starts"], dtype=np.int64),
            ends=np.asarray(item["ends"], dtype=np.int64),
            null=int(item["null"]),
            answer=(int(item["answer"][0]), int(item["answer"][1])),
        )
        for item in about
    ]
    return dataset.remove_columns(list(_ABOUT)), windows


class SpanCollator:
    """Joins windows to a batch, padded on the right whatever the tokenizer prefers: labels count from the left.

    Args:
        tokenizer: pads the inputs.
        pad_to_multiple_of: make lengths multiples of this.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None = None):
        self.tokenizer, self.pad_to_multiple_of = tokenizer, pad_to_multiple_of

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        labels = [feature["labels"] for feature in features if "labels" in feature]
        inputs = [{name: value for name, value in feature.items() if name != "labels"} for feature in features]
        batch = self.tokenizer.pad(
            inputs, padding_side="right", pad_to_multiple_of=self.pad_to_multiple_of, return_tensors="pt"
        )
        if labels:
            batch["labels"] = batch["input_ids"].new_tensor(labels)
        return batch
