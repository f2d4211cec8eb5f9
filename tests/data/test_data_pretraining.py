"""Masked words and pairs of sentences."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from modeling_hire.data.pretraining import Frame, cut, packed, paired, pretraining_task


def documents(count: int = 30, seed: int = 0) -> list[list[str]]:
    """Documents whose words tell which they are and in which order they come."""
    numbers = random.Random(seed)
    return [
        [" ".join(f"w{d}" for _ in range(numbers.randint(2, 6))) for _ in range(numbers.randint(2, 9))]
        for d in range(count)
    ]


def ids(count: int = 30) -> list[list[list[int]]]:
    return [[[d * 100 + s] * 3 for s in range(6)] for d in range(count)]


def test_packed_rows_hold_every_token_once() -> None:
    rows = [first for first, _, _ in packed(ids(), room=7)]
    assert max(map(len, rows)) == 7
    kept = [token for row in rows for token in row]
    everything = [token for document in ids() for sentence in document for token in sentence]
    assert [token for token in everything if token in set(kept)] == kept
    assert len(everything) - len(kept) <= 30  # one token left over is no text


def test_pairs_of_the_next_sentence() -> None:
    rows = list(paired(ids(200), 12, "next_sentence", seed=0))
    for first, second, label in rows:
        assert 0 < len(first) + len(second) <= 12 and first and second
        same = first[-1] // 100 == second[0] // 100
        assert same == (label == 0)
        if label == 0:
            assert second[0] >= first[-1]
    assert 0.4 < sum(label for *_, label in rows) / len(rows) < 0.6
    again, other = (list(paired(ids(200), 12, "next_sentence", seed)) for seed in (0, 1))
    assert rows == again != other


def test_pairs_in_order() -> None:
    for first, second, label in paired(ids(100), 12, "sentence_order", seed=0):
        assert first[-1] // 100 == second[0] // 100
        assert (first[0] > second[-1]) == (label == 1)


def test_short_documents_make_no_pairs() -> None:
    assert list(paired([[[1, 2]], []], 12, "next_sentence", seed=0)) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1] * 3, [2] * 3, (3, 3)),
        ([1] * 9, [2] * 2, (6, 2)),
        ([1] * 2, [2] * 9, (2, 6)),
        ([1] * 9, [2] * 9, (4, 4)),
    ],
)
def test_long_parts_are_cut(first: list[int], second: list[int], expected: tuple[int, int]) -> None:
    assert tuple(map(len, cut(first, second, 8))) == expected


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("which", ["here", "there"])
def test_inputs_equal_the_tokenizers(tokenizer: PreTrainedTokenizerFast, which: str, pair: bool) -> None:
    tokenizer = tokenizer if which == "here" else tiny_tokenizer()
    texts = ("w1 w2 w3", "w4 w5") if pair else ("w1 w2 w3",)
    parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    built = Frame(tokenizer, pair)(*parts)
    expected = tokenizer(*texts)
    assert built["input_ids"] == expected["input_ids"]
    assert built.get("token_type_ids") == expected.get("token_type_ids")


def test_words_are_masked_anew_and_never_special_ones() -> None:
    tokenizer = tiny_tokenizer()
    task = pretraining_task(documents(), tokenizer, ("mlm", "next_sentence"), max_length=24, mlm_probability=0.3)
    rows = [task.dataset[i] for i in range(len(task.dataset))]
    torch.manual_seed(0)
    one, other = task.collator(rows), task.collator(rows)
    assert not torch.equal(one["labels"]["mlm"], other["labels"]["mlm"])
    assert torch.equal(one["labels"]["next_sentence"], other["labels"]["next_sentence"])
    chosen = one["labels"]["mlm"] != -100
    assert 0.25 < chosen.sum() / one["attention_mask"].sum() < 0.33
    assert not torch.isin(one["labels"]["mlm"][chosen], torch.tensor(tokenizer.all_special_ids)).any()
    masked = (one["input_ids"][chosen] == tokenizer.mask_token_id).float().mean()
    assert 0.7 < masked < 0.9
    assert one["input_ids"].shape[1] <= 24


@pytest.mark.parametrize(
    ("objectives", "settings", "message"),
    [
        (("mlm", "next_sentence", "sentence_order"), {}, "one of"),
        (("clm",), {}, "objectives"),
        ((), {}, "objectives"),
        (("mlm",), {"max_length": 3}, "max_length=3"),
        (("mlm", "next_sentence"), {"documents": [["w1 w2"]]}, "two sentences"),
        (("mlm",), {"documents": []}, "text"),
    ],
)
def test_wrong_requests_are_refused(objectives: Any, settings: dict[str, Any], message: str) -> None:
    given = {"documents": documents(3), "max_length": 24} | settings
    with pytest.raises(ValueError, match=message):
        pretraining_task(given["documents"], tiny_tokenizer(), objectives, given["max_length"])


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="mask token"):
        pretraining_task(documents(3), tokenizer, ("mlm",), 24)
