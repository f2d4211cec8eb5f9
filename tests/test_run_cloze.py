"""Cloze tests: windows, scores, and `run_cloze.py`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import assert_same, tiny_tokenizer
from tiny_runs import killed_at, save_encoder, weights
from transformers import AutoModel, AutoModelForMaskedLM

import run_cloze
from modeling_hire.data.cloze import ClozeCollator, Passage, encode_passages, read_passages, split_labels
from modeling_hire.training.cloze import cloze_loss, option_scores


FLAGS = ("--use_cpu", "true", "--disable_tqdm", "true", "--max_length", "40", "--learning_rate", "1e-3")


def passage(numbers: random.Random, blanks: int, level: str = "high") -> dict[str, Any]:
    words = [f"w{numbers.randrange(90)}" for _ in range(6 * blanks)]
    for blank in range(blanks):
        words[6 * blank + 3] = "_"
    options = [[f"w{numbers.randrange(90)}", "w1 w2", "w3", "w4"] for _ in range(blanks)]
    return {
        "article": " ".join(words),
        "options": options,
        "answers": numbers.choices("ABCD", k=blanks),
        "source": "x",
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    numbers = random.Random(0)
    for split, count in (("train", 8), ("valid", 3), ("test", 3)):
        for level in ("high", "middle"):
            folder = tmp_path / "cloth" / split / level
            folder.mkdir(parents=True)
            for i in range(count):
                content = json.dumps(passage(numbers, numbers.randint(1, 9)))
                (folder / f"{level}{i}.json").write_text(content)
    save_encoder(tmp_path / "encoder")
    return tmp_path


def run(data: Path, output: str, *flags: Any) -> dict[str, Any]:
    given = ("--encoder", data / "encoder", "--dataset_dir", data / "cloth", *flags, "--output_dir", data / output)
    run_cloze.main([*FLAGS, *map(str, given)])
    return json.loads((data / output / "results.json").read_text())


def test_every_blank_is_answered_once_where_it_sees_most(data: Path) -> None:
    tokenizer, passages = tiny_tokenizer(), read_passages(data / "cloth", "train")
    for length in (12, 20, 500):
        rows = encode_passages(passages, tokenizer, length)
        assert sum(len(row["blanks"]) for row in rows) == sum(len(p.answers) for p in passages)
        for row in rows:
            assert len(row["input_ids"]) <= length
            assert all(row["input_ids"][place] == tokenizer.mask_token_id for place in row["blanks"])
            assert row["input_ids"][0] == tokenizer.cls_token_id
    whole = encode_passages(passages[:1], tokenizer, 500)[0]
    short = encode_passages(passages[:1], tokenizer, 12)
    assert [answer for row in short for answer in row["answers"]] == whole["answers"]
    assert [words for row in short for words in row["options"]] == whole["options"]


def test_scores_equal_a_loop(data: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = AutoModelForMaskedLM.from_pretrained(data / "encoder").eval()
    rows = list(encode_passages(read_passages(data / "cloth", "validation"), tokenizer, 30))
    batch = ClozeCollator(tokenizer)(rows)
    with torch.no_grad():
        scores = option_scores(model, batch)
    losses = []
    for r, row in enumerate(rows):
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0]
        for b, (place, words, answer) in enumerate(zip(row["blanks"], row["options"], row["answers"], strict=True)):
            probabilities = logits[place].log_softmax(-1)
            expected = torch.stack([probabilities[word].mean() for word in words])
            torch.testing.assert_close(scores[r, b], expected, atol=1e-5, rtol=1e-5)
            losses.append(-expected.log_softmax(-1)[answer])
    torch.testing.assert_close(cloze_loss(scores, batch["labels"]), torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)


def test_labels_hold_answers_and_levels() -> None:
    tokenizer = tiny_tokenizer()
    rows = encode_passages(
        [Passage(("w1", "w2"), (("w1", "w2", "w3", "w4"),), (2,), level) for level in ("middle", "high", None)],
        tokenizer,
        30,
    )
    answers, levels = split_labels(ClozeCollator(tokenizer)(list(rows))["labels"][:, 0])
    assert answers.tolist() == [2, 2, 2] and levels.tolist() == [0, 1, -1]


def test_scoring_and_fine_tuning(data: Path) -> None:
    before = run(data, "untrained", "--num_train_epochs", 0)
    assert set(before["metrics"]["42"]) == {"validation", "test"}
    assert set(before["metrics"]["42"]["test"]) == {"accuracy", "accuracy_middle", "accuracy_high"}
    assert before["chance"]["test"]["accuracy"] == 0.25
    after = run(data, "trained", "--num_train_epochs", 2, "--seeds", 1, 2)
    assert set(after["metrics"]) == {"1", "2"}
    assert type(AutoModelForMaskedLM.from_pretrained(data / "trained" / "seed-1")).__name__ == "BertForMaskedLM"
    assert run(data, "deeper", "--num_train_epochs", 1, "--duplicate", "first:1")["metrics"]


def test_killed_and_resumed_equals_left_alone(data: Path) -> None:
    run(data, "whole", "--num_train_epochs", 2)
    with killed_at(6):
        run(data, "killed", "--num_train_epochs", 2)
    run(data, "killed", "--num_train_epochs", 2, "--resume", "true")
    assert_same(weights(data / "killed"), weights(data / "whole"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["E"]}, "'E'"),
        ({"answers": []}, "1 blanks"),
        ({"options": [["w1", "w2"]]}, "4 words"),
        ({"article": "w1 w2"}, "0 blanks"),
        ({"article": None}, "no cloze test"),
    ],
)
def test_wrong_files_are_refused(data: Path, change: dict[str, Any], message: str) -> None:
    content = {"article": "w1 _ w2", "options": [["w1", "w2", "w3", "w4"]], "answers": ["A"]} | change
    if content["article"] is None:
        del content["article"]
    (data / "cloth" / "train" / "high" / "wrong.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=f"wrong.json.*{message}"):
        run(data, "out")
    assert not (data / "out").exists()


def test_models_without_a_word_head_are_refused(data: Path) -> None:
    AutoModel.from_pretrained(data / "encoder").save_pretrained(data / "bare")
    tiny_tokenizer().save_pretrained(data / "bare")
    with pytest.raises(SystemExit, match="ForMaskedLM"):
        run(data, "out", "--encoder", data / "bare")


def test_no_passages_are_refused(data: Path) -> None:
    with pytest.raises(SystemExit, match="no passages in a folder 'train'"):
        run(data, "out", "--dataset_dir", data)
