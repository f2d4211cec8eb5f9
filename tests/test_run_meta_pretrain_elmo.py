"""`run_meta_pretrain.py` with ELMo: its two language models as the tasks of an episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_run_meta_pretrain import data, pretrain  # noqa: F401
from tiny_elmo import SIZES, tiny_elmo
from tiny_models import assert_same
from tiny_runs import QUICK, killed_at, weights
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

import run_glue
from modeling_hire import ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling_hire.data.language_models import language_model_task


def on_new(data: Path, **fields: Any) -> tuple[Any, ...]:  # noqa: F811
    new = ("--new_encoder", "elmo", "--encoder_fields", json.dumps(SIZES | fields), "--vocab_size", 100)
    return (*new, "--corpus_file", data / "corpus.txt")


def log_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "seed.json").read_text())["log"]


@pytest.mark.parametrize(
    "flags",
    [(), ("--order", 2), ("--inner_steps", 0), ("--inner_loss", "sampled"), ("--objectives", "backward_lm")],
    ids=str,
)
def test_from_random_initialisation(data: Path, flags: tuple[Any, ...]) -> None:  # noqa: F811
    results = pretrain(data, "out", *on_new(data), "--validation_corpus_file", data / "corpus.txt", *flags)
    assert 0 < results["metrics"]["42"]["text"]["loss"] < 10
    assert ("inner_loss_2" in log_of(data / "out")[0]) == ("--inner_steps" not in flags)
    whole = AutoModelForPreTraining.from_pretrained(data / "out")
    assert isinstance(whole, ElmoForPreTraining)
    assert_same(AutoModel.from_pretrained(data / "out" / "encoder").state_dict(), whole.elmo.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(data / "out" / "encoder")
    assert tokenizer.vocab_size == whole.config.vocab_size > 80


def test_the_other_direction_stays_as_it_is(data: Path) -> None:  # noqa: F811
    pretrain(data, "out", *on_new(data), "--objectives", "forward_lm", "--weight_decay", 0, "--learning_rate", 0.1)
    pretrain(data, "start", *on_new(data), "--learning_rate", 0)
    before, after = (ElmoModel.from_pretrained(data / name / "encoder").state_dict() for name in ("start", "out"))
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert any("forward" in name for name in moved) and not any("backward" in name for name in moved), moved


def test_from_a_checkpoint_without_words(data: Path) -> None:  # noqa: F811
    tiny_elmo().save_pretrained(data / "elmo")
    ElmoTokenizer(splitting="whitespace").save_pretrained(data / "elmo")
    pretrain(data, "one", "--encoder", data / "elmo", "--corpus_file", data / "corpus.txt")
    tokenizer = AutoTokenizer.from_pretrained(data / "one")
    assert tokenizer.splitting == "whitespace" and tokenizer.vocab_size > 80
    # With words, a checkpoint is gone on with, softmax included.
    pretrain(data, "two", "--encoder", data / "one", "--corpus_file", data / "corpus.txt", "--learning_rate", 0)
    one, two = (ElmoForPreTraining.from_pretrained(data / name).state_dict() for name in ("one", "two"))
    assert_same(one, two)


def test_what_it_writes_is_fine_tuned(data: Path) -> None:  # noqa: F811
    pretrain(data, "out", *on_new(data))
    task = ("--task", "rte", "--dataset_dir", str(data / "data"), "--encoder", str(data / "out" / "encoder"))
    run_glue.main([*QUICK, *task, "--model", "last", "--output_dir", str(data / "tuned")])
    assert json.loads((data / "tuned" / "results.json").read_text())["metrics"]
    assert "trust_remote_code=True" in (data / "tuned" / "README.md").read_text()


def test_killed_and_resumed_equals_left_alone(data: Path) -> None:  # noqa: F811
    saving = ("--save_strategy", "steps", "--save_steps", "2")
    pretrain(data, "whole", *on_new(data, dropout=0.1), *saving)
    with killed_at(3):
        pretrain(data, "killed", *on_new(data, dropout=0.1), *saving)
    pretrain(data, "killed", *on_new(data, dropout=0.1), *saving, "--resume", "true")
    assert_same(weights(data / "killed"), weights(data / "whole"))


def test_long_sentences_are_cut_to_pieces() -> None:
    tokenizer = ElmoTokenizer.build(["a b c d e"])
    task = language_model_task([["a b c d e", "", "d"], ["e"]], tokenizer, ("forward_lm", "backward_lm"), 2)
    assert [row["words"] for row in task.dataset] == [["a", "b"], ["c", "d"], ["e"], ["d"], ["e"]]
    batch = task.collator(list(task.dataset))
    assert batch["labels"].shape == (5, 3) and batch["directions"] == "both"
    assert task.only(batch, "backward_lm")["directions"] == "backward"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--objectives", "mlm"), "forward_lm"),
        (("--tasks", "rte"), "tasks=['rte']"),
        (("--layer_plan", "0", "0"), "layer_plan"),
        (("--encoder_fields", '{"cel_size": 3}'), "Did you mean 'cell_size'"),
        (("--encoder_fields", '{"vocab_size": 9}'), "vocab_size"),
        (("--encoder_fields", '{"cell_size": 3}'), "projection_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:1]),
)
def test_what_is_refused(
    data: Path,  # noqa: F811
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        pretrain(data, "out", *on_new(data), *flags)
    assert message in str(stopped.value)
    assert not (data / "out").exists()


def test_a_text_encoder_has_no_language_models(data: Path) -> None:  # noqa: F811
    with pytest.raises(SystemExit, match="'bert' learns mlm"):
        text = ("--encoder", data / "encoder", "--corpus_file", data / "corpus.txt")
        pretrain(data, "out", *text, "--objectives", "forward_lm")


def test_hire_has_no_tokens_to_read(data: Path) -> None:  # noqa: F811
    tiny_elmo().save_pretrained(data / "elmo")
    ElmoTokenizer(splitting="whitespace").save_pretrained(data / "elmo")
    flags = [
        "--encoder",
        str(data / "elmo"),
        "--task",
        "cola",
        "--dataset_dir",
        str(data / "data"),
        "--use_cpu",
        "true",
    ]
    with pytest.raises(SystemExit, match="model='hire' and an encoder of type 'elmo'.*model='last'"):
        run_glue.main([*flags, "--model", "hire", "--output_dir", str(data / "out")])
    assert not (data / "out").exists()
