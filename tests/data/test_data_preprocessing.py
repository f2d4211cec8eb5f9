"""Token ids and the longest usable input."""

from __future__ import annotations

import tempfile

import datasets
import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModel

from modeling_hire.data.preprocessing import tokenize_dataset, truncation_note, usable_max_length


CLS, SEP, A, B = 2, 3, 4, 5


def test_single_texts(tokenizer):
    dataset = Dataset.from_dict({"text": ["a", "a b a", ""], "label": [1, 0, 1], "idx": [5, 6, 7]})
    tokenized, num_cut = tokenize_dataset(dataset, tokenizer, max_length=4)
    assert tokenized["input_ids"][:] == [[CLS, A, SEP], [CLS, A, B, SEP], [CLS, SEP]]
    assert tokenized["attention_mask"][:] == [[1] * 3, [1] * 4, [1] * 2]
    assert tokenized["label"][:] == [1, 0, 1]
    assert set(tokenized.column_names) == {"input_ids", "token_type_ids", "attention_mask", "label"}
    assert num_cut == 1
    assert dataset.column_names == ["text", "label", "idx"]


def test_pairs_lose_the_longer_text_first(tokenizer):
    dataset = Dataset.from_dict({"text": ["a a a a", "a"], "text_pair": ["b", "b"], "idx": [0, 1]})
    tokenized, num_cut = tokenize_dataset(dataset, tokenizer, max_length=6)
    assert tokenized["input_ids"][:] == [[CLS, A, A, SEP, B, SEP], [CLS, A, SEP, B, SEP]]
    assert tokenized["token_type_ids"][:] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    assert num_cut == 1
    assert "label" not in tokenized.column_names


def test_a_text_of_just_the_right_length_is_not_cut(tokenizer):
    tokenized, num_cut = tokenize_dataset(Dataset.from_dict({"text": ["a b"]}), tokenizer, max_length=4)
    assert num_cut == 0 and tokenized["input_ids"][:] == [[CLS, A, B, SEP]]


def test_equal_to_the_tokenizers_own_truncation(tokenizer):
    texts = ["a " * n for n in range(12)]
    pairs = ["b " * ((5 * n) % 12) for n in range(12)]
    tokenized, num_cut = tokenize_dataset(Dataset.from_dict({"text": texts, "text_pair": pairs}), tokenizer, 9)
    expected = tokenizer(texts, pairs, truncation=True, max_length=9)
    assert tokenized["input_ids"][:] == expected["input_ids"]
    assert num_cut == sum(n + (5 * n) % 12 + 3 > 9 for n in range(12))


def test_no_token_types_where_the_tokenizer_makes_none(tokenizer_without_types):
    tokenized, _ = tokenize_dataset(Dataset.from_dict({"text": ["a"]}), tokenizer_without_types, 8)
    assert set(tokenized.column_names) == {"input_ids", "attention_mask"}


def test_several_processes_give_the_same(tokenizer):
    dataset = Dataset.from_dict({"text": ["a " * n for n in range(9)], "label": list(range(9))})
    alone, cut_alone = tokenize_dataset(dataset, tokenizer, 6)
    together, cut_together = tokenize_dataset(dataset, tokenizer, 6, num_workers=2)
    assert alone.to_dict() == together.to_dict()
    assert cut_alone == cut_together == 4


def test_no_cache_files_are_left(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tokenized, _ = tokenize_dataset(Dataset.from_dict({"text": ["a b"]}), tokenizer, 6)
    assert tokenized.cache_files == []
    assert list(tmp_path.iterdir()) == []


def test_a_length_without_room_for_text(tokenizer):
    with pytest.raises(ValueError, match="max_length=2 leaves no room for text: this tokenizer adds 2 .* at least 3"):
        tokenize_dataset(Dataset.from_dict({"text": ["a"]}), tokenizer, 2)
    with pytest.raises(ValueError, match="max_length=4 leaves no room .* at least 5"):
        tokenize_dataset(Dataset.from_dict({"text": ["a"], "text_pair": ["b"]}), tokenizer, 4)


def test_truncation_note():
    assert truncation_note("train", 0, 10, 128) is None
    assert truncation_note("train", 3, 10, 128) == (
        "train: 3 of 10 texts were longer than max_length=128 tokens and were cut."
    )


TINY = {
    "vocab_size": 99,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "max_position_embeddings": 20,
}


@pytest.mark.parametrize(
    "kind, extra, limit",
    [
        ("bert", {"pad_token_id": 0}, 20),
        ("roberta", {"pad_token_id": 1}, 18),
        ("xlm-roberta", {"pad_token_id": 3}, 16),
        ("mpnet", {"pad_token_id": 1}, 18),
        ("deberta-v2", {"position_biased_input": True}, 20),
    ],
)
def test_the_encoders_positions_are_the_limit(tokenizer, kind, extra, limit):
    config = AutoConfig.for_model(kind, **TINY, **extra)
    length, note = usable_max_length(128, tokenizer, config)
    assert length == limit
    assert note == f"max_length=128 was lowered to {limit}, the positions of the {kind} encoder; longer texts are cut."
    assert usable_max_length(limit, tokenizer, config) == (limit, None)
    # The claim itself: the encoder takes so many tokens and not one more.
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        model(input_ids=torch.full((1, limit), 7))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, limit + 1), 7))


@pytest.mark.parametrize("kind", ["deberta-v2", "xlnet"])
def test_relative_positions_are_no_limit(tokenizer, kind):
    extra = {**TINY, "position_biased_input": False, "relative_attention": True} if kind == "deberta-v2" else {}
    assert usable_max_length(4096, tokenizer, AutoConfig.for_model(kind, **extra)) == (4096, None)


def test_the_tokenizers_limit(tokenizer):
    tokenizer.model_max_length = 16
    length, note = usable_max_length(64, tokenizer, AutoConfig.for_model("bert", **TINY))
    assert (length, note) == (
        16,
        "max_length=64 was lowered to 16, the tokenizer's model_max_length; longer texts are cut.",
    )
