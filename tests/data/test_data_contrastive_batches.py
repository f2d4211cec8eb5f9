"""Rows of texts as tokens, and joined to batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from modeling_hire.data.contrastive import ContrastiveData, TextRows, load_contrastive_data
from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.data.contrastive_collator import ContrastiveCollator


Write = Callable[..., str]


def letters(seed: int, rows: int, width: int, longest: int = 9) -> list[tuple[str, ...]]:
    """Random texts that occur more than once."""
    draw = random.Random(seed)
    pool = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, longest))) for _ in range(2 * rows)]
    return [tuple(draw.choices(pool, k=width)) for _ in range(rows)]


def made_of(rows: list[tuple[str, ...]]) -> ContrastiveData:
    return ContrastiveData("supervised", TextRows.of(rows), max(len(rows[0]) - 2, 0), {}, {})


@pytest.mark.parametrize("width", [1, 2, 4])
def test_tokens_and_numbers_of_texts(width: int, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = letters(0, 40, width)
    encoded = made_of(rows).encode(tokenizer, 6)
    assert len(encoded.train) == 40 and encoded.train.column_names == ["input_ids", "text_ids", "length"]
    number_of: dict[tuple[int, ...], int] = {}
    for texts, row in zip(rows, encoded.train, strict=True):
        # Each text alone, as the tokenizer has it.
        ids = [tokenizer(text, truncation=True, max_length=6)["input_ids"] for text in texts]
        assert row["input_ids"] == ids and row["length"] == max(map(len, ids))
        for text_ids, number in zip(ids, row["text_ids"], strict=True):
            assert number_of.setdefault(tuple(text_ids), number) == number
    assert sorted(number_of.values()) == list(range(len(number_of)))
    distinct = {text for row in rows for text in row}
    cut = sum(len(text.split()) > 4 for text in distinct)
    assert encoded.notes == [
        f"train: {cut} of {len(distinct)} texts were longer than max_length=6 tokens and were cut."
    ]


def test_texts_that_the_model_cannot_tell_apart_are_one(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [("a b c d", "a"), ("a b c e", " a "), ("b", "A"), ("?", "a b")]
    encoded = made_of(rows).encode(tokenizer, 5)
    assert encoded.train["text_ids"][:] == [[0, 1], [0, 1], [2, 3], [3, 4]]  # "A" and "?" are unknown to it


def test_workers_change_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    data = made_of(letters(1, 30, 3))
    alone = data.encode(tokenizer, 8)
    data.num_workers = 2
    assert data.encode(tokenizer, 8).train.to_dict() == alone.train.to_dict()


def test_no_room(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="max_length=2 leaves no room for text"):
        made_of([("a", "b")]).encode(tokenizer, 2)


def test_a_text_without_tokens() -> None:
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    assert made_of([("a", "a a")]).encode(tokenizer, 4).train[0]["input_ids"] == [[1], [1, 1]]
    with pytest.raises(ValueError, match=r"makes no token of the text ' '"):
        made_of([("a", " ")]).encode(tokenizer, 4)


def test_pairs_from_long_to_short(write: Write, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"sentence1": a, "sentence2": b, "score": score / 7} for score, (a, b) in enumerate(letters(2, 50, 2, 12))]
    given = {"validation_file": write("v.jsonl", rows), "test_file": write("t.jsonl", rows[:20])}
    data = load_contrastive_data(ContrastiveArguments(**given), evaluation_only=True)
    encoded = data.encode(tokenizer, 10)
    assert encoded.train is None and list(encoded.evaluation) == ["validation"] and list(encoded.test) == ["test"]
    for split, pairs, expected in (
        ("validation", encoded.evaluation["validation"], rows),
        ("test", encoded.test["test"], rows[:20]),
    ):
        lengths = pairs["length"][:]
        assert lengths == sorted(lengths, reverse=True) and sorted(encoded.order[split]) == list(range(len(expected)))
        for row, number in zip(pairs, encoded.order[split], strict=True):
            texts = [expected[number]["sentence1"], expected[number]["sentence2"]]
            assert row["input_ids"] == tokenizer(texts, truncation=True, max_length=10)["input_ids"]
            assert row["labels"] == pytest.approx(expected[number]["score"], abs=0)
    batch = ContrastiveCollator(tokenizer)([encoded.test["test"][row] for row in range(3)])
    assert batch["labels"].dtype == torch.float32 and batch["labels"].shape == (3,) and "text_ids" not in batch


def test_pairs_with_an_empty_text(write: Write, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"sentence1": "", "sentence2": "a b", "score": 1.0}, {"sentence1": "a", "sentence2": "b", "score": 0}]
    data = load_contrastive_data(ContrastiveArguments(test_file=write("t.jsonl", rows)), evaluation_only=True)
    assert data.encode(tokenizer, 8).test["test"][0]["input_ids"] == [[2, 3], [2, 4, 5, 3]]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
def test_batches(side: str, multiple: int | None, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.padding_side = side
    features = list(made_of(letters(3, 7, 3)).encode(tokenizer, 16).train)
    batch = ContrastiveCollator(tokenizer, multiple)(features)
    longest = max(row["length"] for row in features)
    expected = longest if multiple is None else -(-longest // multiple) * multiple
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "text_ids"}
    assert all(batch[name].shape == (7, 3, expected) for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert all(values.dtype == torch.int64 for values in batch.values()) and not batch["token_type_ids"].any()
    assert batch["text_ids"].tolist() == [row["text_ids"] for row in features]
    for i, row in enumerate(features):
        for j, ids in enumerate(row["input_ids"]):
            padding = [tokenizer.pad_token_id] * (expected - len(ids))
            # On the right, whichever side the tokenizer prefers: some encoders count positions from the first column.
            assert batch["input_ids"][i, j].tolist() == ids + padding
            assert batch["attention_mask"][i, j].tolist() == [1] * len(ids) + [0] * len(padding)


def test_batches_without_token_types(tokenizer_without_types: PreTrainedTokenizerFast) -> None:
    features = list(made_of(letters(4, 3, 1)).encode(tokenizer_without_types, 16).train)
    batch = ContrastiveCollator(tokenizer_without_types)(features)
    assert set(batch) == {"input_ids", "attention_mask", "text_ids"} and batch["input_ids"].shape[:2] == (3, 1)


def test_token_types_other_than_zero_are_kept(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 [SEP]:0 [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    features = list(made_of([("a b", "a"), ("c", "b")]).encode(tokenizer, 16).train)
    assert features[0]["token_type_ids"] == [[0, 0, 0, 2], [0, 0, 2]]
    batch = ContrastiveCollator(tokenizer)(features)
    assert batch["token_type_ids"].tolist() == [[[0, 0, 0, 2], [0, 0, 2, 0]], [[0, 0, 2, 0], [0, 0, 2, 0]]]


def test_what_cannot_be_joined(tokenizer: PreTrainedTokenizerFast) -> None:
    rows: list[dict[str, Any]] = [{"input_ids": [[2, 3]]}, {"input_ids": [[2, 3], [2, 4, 3]]}]
    with pytest.raises(ValueError, match=r"same number of texts, got \[1, 2\]"):
        ContrastiveCollator(tokenizer)(rows)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="pad_token=None"):
        ContrastiveCollator(tokenizer)


def test_real_texts(shared_data: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    data = load_contrastive_data(
        ContrastiveArguments(
            scheme="hybrid",
            dataset_dir=str(shared_data / "nli_triplets"),
            unlabelled_file=str(shared_data / "unlabelled" / "wiki_sentences.txt.gz"),
            validation_dir=str(shared_data / "glue" / "stsb"),
            max_train_samples=300,
            max_eval_samples=100,
        )
    )
    encoded = data.encode(tokenizer, 32)
    assert len(encoded.train) == 300 and {len(row["input_ids"]) for row in encoded.train} == {4}
    for number in (0, 150, 299):
        expected = tokenizer(list(data.train[number]), truncation=True, max_length=32)["input_ids"]
        assert encoded.train[number]["input_ids"] == expected
    batch = ContrastiveCollator(tokenizer)([encoded.train[row] for row in range(16)])
    assert batch["input_ids"].shape[:2] == (16, 4) and batch["input_ids"].shape[2] <= 32
