"""Masked words and pairs of sentences: from documents to the batches that an encoder is pre-trained on."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Sequence, Value
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from .episodes import MetaTask


Document = list[list[int]]  # the token ids of its sentences
PAIR_OBJECTIVES = ("next_sentence", "sentence_order")
# Of transformers, and of ELMo.
OBJECTIVES = ("mlm", *PAIR_OBJECTIVES)
LANGUAGE_MODELS = ("forward_lm", "backward_lm")
PAIR_LABELS = {
    "next_sentence": ["follows", "elsewhere"],
    "sentence_order": ["in_order", "swapped"],
}


def pretraining_task(
    documents: Iterable[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    objectives: tuple[str, ...],
    max_length: int,
    mlm_probability: float = 0.15,
    seed: int = 0,
    name: str = "text",
) -> MetaTask:
    """A task of meta-learning on text, which one batch serves whole.

    Args:
        documents: lists of sentences; they are read once, and what is made of them is kept on disk.
        tokenizer: with a mask token for `"mlm"`.
        objectives: of `"mlm"`, and `"next_sentence"` (does the second part follow the first, or come from another
            document) or `"sentence_order"` (are two parts that belong together in order).
        max_length: longest input in tokens.
        mlm_probability: share of the tokens that are to be found: 80 % of them masked, 10 % replaced, 10 % kept.
        seed: of the pairs.
        name: of the task.

    Raises:
        ValueError: for objectives that do not go together, a tokenizer without a mask token, or documents of which no
            input can be made.
    """
    check_objectives(objectives)
    pair = next((objective for objective in objectives if objective in PAIR_OBJECTIVES), None)
    if "mlm" in objectives and tokenizer.mask_token is None:
        raise ValueError("objectives: 'mlm' needs a tokenizer with a mask token; this one has none.")
    special = tokenizer.num_special_tokens_to_add(pair=pair is not None)
    room = max_length - special
    if room < 2:
        raise ValueError(f"max_length={max_length}: this tokenizer adds {special} special tokens; allowed is more.")

    tokenised = (
        [ids for ids in tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"] if ids]
        for document in documents
        if document
    )
    made = packed(tokenised, room) if pair is None else paired(tokenised, room, pair, seed)
    head = next(made, None)
    if head is None:
        what = "documents of two sentences or more" if pair is not None else "text"
        raise ValueError(f"corpus_file: nothing to learn from in it; objectives={list(objectives)!r} need {what}.")

    def rows() -> Iterator[dict[str, Any]]:
        for first, second, label in itertools.chain([head], made):
            yield {"first": first, "second": second, "label": label}

    ids = Sequence(Value("int32"))
    dataset = on_disk(rows, Features({"first": ids, "second": ids, "label": Value("int64")}))
    return MetaTask(name, dataset, PretrainingCollator(tokenizer, objectives, mlm_probability), objectives)


def on_disk(rows: Callable[[], Iterator[dict[str, Any]]], features: Features) -> Dataset:
    """The rows that a generator gives, in a temporary file, and in memory only as far as they are read."""
    folder = tempfile.mkdtemp(prefix="modeling_hire_rows_")
    dataset = Dataset.from_generator(
        rows,
        features=features,
        cache_dir=folder,
        fingerprint=uuid.uuid4().hex,  # else the generator would be hashed, with all it holds
    )
    weakref.finalize(dataset, shutil.rmtree, folder, ignore_errors=True)
    return dataset


def check_objectives(objectives: tuple[str, ...]) -> None:
    """Raise a `ValueError` unless these can be learnt from one batch."""
    known = {*objectives} <= {*OBJECTIVES} or {*objectives} <= {*LANGUAGE_MODELS}
    if not known or not objectives or len(set(objectives)) < len(objectives):
        raise ValueError(
            f"objectives={list(objectives)!r}: allowed are {', '.join(OBJECTIVES)}, or for ELMo "
            f"{', '.join(LANGUAGE_MODELS)}, each once."
        )
    if len(set(objectives) & set(PAIR_OBJECTIVES)) > 1:
        raise ValueError(
            f"objectives={list(objectives)!r}: the two parts of an input are of one kind; allowed is one of "
            f"{' and '.join(PAIR_OBJECTIVES)}."
        )


def packed(documents: Iterable[Document], room: int) -> Iterator[tuple[list[int], list[int], int]]:
    """Sentences of a document one after the other, as many as there is room for; longer ones are cut to pieces."""
    for document in documents:
        current: list[int] = []
        for sentence in document:
            current += sentence
            while len(current) >= room:
                yield current[:room], [], 0
                current = current[room:]
        if len(current) > 1:
            yield current, [], 0


def paired(
    documents: Iterable[Document], room: int, objective: str, seed: int, window: int = 100
) -> Iterator[tuple[list[int], list[int], int]]:
    """Two parts of like length a row, half of them belonging together, and the label that says so (0).

    The other half's second part is from another document, one of `window` that were read before or after it; for
    `"sentence_order"` both parts change places instead.
    """
    generator = np.random.default_rng(seed)
    pool: list[list[list[int]]] = []

    def rows_of(
        document: list[list[int]], others: list[list[list[int]]]
    ) -> Iterator[tuple[list[int], list[int], int]]:
        start = 0
        while start + 1 < len(document):
            end, length = start, 0
            while end < len(document) and (length < room or end < start + 2):
                length += len(document[end])
                end += 1
            middle = int(generator.integers(start + 1, end))
            first, second = join(document[start:middle]), join(document[middle:end])
            label = int(generator.integers(2))
            if label and objective == "sentence_order":
                first, second = second, first
            elif label and others:
                other = others[int(generator.integers(len(others)))]
                begin = int(generator.integers(len(other)))
                second = join(other[begin:])[: max(len(second), room - len(first), 1)]
                # What was not used of this document comes next.
                end = middle if middle > start else end
            else:
                label = 0
            yield (*cut(first, second, room), label)
            start = end

    for document in documents:
        if len(document) < 2:
            continue
        pool.append(document)
        if len(pool) > window:
            yield from rows_of(pool[0], pool[1:])
            pool.pop(0)
    if len(pool) == 1 and objective == "next_sentence":
        raise ValueError(
            "corpus_file: only one document of two sentences or more in it, and objectives 'next_sentence' needs "
            "parts of others. Part documents by blank lines, or learn 'sentence_order', or 'mlm' alone."
        )
    for index, document in enumerate(pool):
        yield from rows_of(document, pool[:index] + pool[index + 1 :])


def join(sentences: list[list[int]]) -> list[int]:
    """The tokens of sentences, one after the other."""
    return [token for sentence in sentences for token in sentence]


def cut(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Both parts shortened to fit, the longer one first: the first at its beginning, the second at its end."""
    share = room // 2
    if len(first) + len(second) > room:
        if len(first) <= share:
            second = second[: room - len(first)]
        elif len(second) <= share:
            first = first[len(first) - (room - len(second)) :]
        else:
            first, second = first[len(first) - (room - share) :], second[:share]
    return first, second


class PretrainingCollator:
    """Joins rows to a batch, and masks words anew each time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, objectives: tuple[str, ...], mlm_probability: float = 0.15):
        self.tokenizer, self.objectives = tokenizer, objectives
        self.pair = bool(set(objectives) & set(PAIR_OBJECTIVES))
        self.frame = Frame(tokenizer, self.pair)
        self.masker = (
            DataCollatorForLanguageModeling(tokenizer, mlm_probability=mlm_probability)
            if "mlm" in objectives
            else None
        )

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        encoded = [self.frame(*([row["first"], row["second"]] if self.pair else [row["first"]])) for row in rows]
        inputs = dict(self.tokenizer.pad(encoded, return_tensors="pt"))
        inputs = {
            name: inputs[name] for name in inputs if name in (*self.tokenizer.model_input_names, "attention_mask")
        }
        labels: dict[str, torch.Tensor] = {}
        if self.masker is not None:
            inputs["input_ids"], labels["mlm"] = self.masker.torch_mask_tokens(inputs["input_ids"])
        for objective in set(self.objectives) & set(PAIR_OBJECTIVES):
            labels[objective] = torch.tensor([row["label"] for row in rows])
        return inputs | {"labels": labels}


class Frame:
    """What a tokenizer puts before, between and after texts, so that it can be put around token ids.

    Args:
        tokenizer: any.
        pair: for two texts, or one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pair: bool):
        # Read off texts that are known; whether their tokens are words does not matter.
        word = tokenizer("a", add_special_tokens=False)["input_ids"]
        framed = tokenizer("a", "a") if pair else tokenizer("a")
        ids = framed["input_ids"]
        types = framed.get("token_type_ids", [0] * len(ids))
        places, start = [], 0
        for _ in range(2 if pair else 1):
            start = next(i for i in range(start, len(ids)) if ids[i : i + len(word)] == word)
            places.append(start)
            start += len(word)
        ends = [0, *(place + len(word) for place in places)]
        # Special tokens ahead of each text and at the end, with their types; and the type of each text.
        self.around = [
            list(zip(ids[e:p], types[e:p], strict=True)) for e, p in zip(ends, [*places, None], strict=True)
        ]
        self.length_ahead = len(self.around[0])
        self.types = [types[place] for place in places]
        self.has_types = "token_type_ids" in framed

    def __call__(self, *texts: list[int]) -> dict[str, list[int]]:
        """The inputs of a model, from the token ids of the texts."""
        ids, types = [], []
        for ahead, text, kind in zip(self.around, (*texts, []), (*self.types, 0), strict=True):
            ids += [*(token for token, _ in ahead), *text]
            types += [*(t for _, t in ahead), *[kind] * len(text)]
        inputs = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        return inputs | {"token_type_ids": types} if self.has_types else inputs
