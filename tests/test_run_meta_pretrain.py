"""`run_meta_pretrain.py`, end to end and on what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import assert_same
from tiny_runs import QUICK, killed_at, save_encoder, weights, write_task
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import run_glue
import run_meta_pretrain


FLAGS = (
    *("--use_cpu", "true", "--disable_tqdm", "true", "--max_steps", "4", "--per_device_train_batch_size", "4"),
    *("--inner_steps", "2", "--learning_rate", "1e-3", "--logging_steps", "1", "--max_length", "24"),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A corpus of words the tiny tokenizer knows, two tasks, and an encoder with a word head."""
    text = "\n\n".join(
        "\n".join(" ".join(f"W{(d * 7 + s + w) % 90}" for w in range(5)) + "." for s in range(6)) for d in range(12)
    )
    (tmp_path / "corpus.txt").write_text(text.replace("W", "w").replace(".", " ."))
    for task in ("rte", "cola", "stsb"):
        write_task(tmp_path / "data", task)
    save_encoder(tmp_path / "encoder")
    return tmp_path


def pretrain(data: Path, output: str, *flags: Any) -> dict[str, Any]:
    run_meta_pretrain.main([*FLAGS, *map(str, flags), "--output_dir", str(data / output)])
    path = data / output / "results.json"
    return json.loads(path.read_text()) if path.exists() else {}


def on_text(data: Path) -> tuple[Any, ...]:
    return ("--encoder", data / "encoder", "--corpus_file", data / "corpus.txt")


def on_tasks(data: Path, *tasks: str) -> tuple[Any, ...]:
    return ("--encoder", data / "encoder", "--tasks", *tasks, "--dataset_dir", data / "data")


@pytest.mark.parametrize("flags", [(), ("--order", 2), ("--inner_steps", 0), ("--objectives", "mlm")], ids=str)
def test_on_text(data: Path, flags: tuple[Any, ...]) -> None:
    pretrain(data, "out", *on_text(data), *flags)
    log = json.loads((data / "out" / "seed.json").read_text())["log"]
    assert ("inner_loss_2" in log[0]) == ("--inner_steps" not in flags)
    encoder = AutoModel.from_pretrained(data / "out" / "encoder")
    masked = AutoModelForMaskedLM.from_pretrained(data / "out" / "masked_lm").eval()
    state = masked.base_model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in encoder.state_dict().items() if "pooler" not in name)
    assert AutoTokenizer.from_pretrained(data / "out" / "encoder").mask_token == "[MASK]"


def test_on_labelled_tasks(data: Path) -> None:
    metrics = pretrain(data, "out", *on_tasks(data, "rte", "cola", "stsb"), "--inner_loss", "sampled")["metrics"]["42"]
    assert list(metrics) == ["rte validation", "cola validation", "stsb validation"]
    assert all(0 < split["loss"] < 20 for split in metrics.values())
    assert not (data / "out" / "masked_lm").exists()


def test_evaluates_while_it_trains(data: Path) -> None:
    often = ("--eval_strategy", "steps", "--eval_steps", 2, "--save_strategy", "steps", "--save_steps", 2)
    best = ("--load_best_model_at_end", "true")
    text = ("--validation_corpus_file", data / "corpus.txt")
    metrics = pretrain(data, "out", *on_text(data), *text, *on_tasks(data, "rte")[2:], *often, *best)["metrics"]["42"]
    log = json.loads((data / "out" / "seed.json").read_text())["log"]
    losses = {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    assert set(losses) == {2, 4}
    # Of all splits together, batch by batch.
    assert min(losses.values()) <= max(split["loss"] for split in metrics.values())


def test_on_both_from_random_initialisation(data: Path) -> None:
    fields = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    new = ("--new_encoder", "bert", "--encoder_fields", json.dumps(fields), "--vocab_size", 120)
    text = ("--corpus_file", data / "corpus.txt", "--validation_corpus_file", data / "corpus.txt")
    metrics = pretrain(data, "out", *new, *text, *on_tasks(data, "rte")[2:])["metrics"]["42"]
    assert list(metrics) == ["text", "rte validation"]
    config = AutoModel.from_pretrained(data / "out" / "encoder").config
    tokenizer = AutoTokenizer.from_pretrained(data / "out" / "encoder")
    assert (config.hidden_size, config.vocab_size) == (32, len(tokenizer))
    assert tokenizer("w1 w2", "w3")["token_type_ids"][-1] == 1


def test_on_a_stream_from_the_hub(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def load_dataset(name: str, config: str | None, **kwargs: Any) -> Any:
        asked.update(kwargs, name=name, config=config)
        return ({"body": f"w{i % 80} w2 w3 .\nw4 w5 w{i % 70} ."} for i in range(10**9))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    stream = ("--corpus_name", "some/text", "--corpus_config", "en", "--corpus_column", "body", "--max_documents", 20)
    pretrain(data, "out", "--encoder", data / "encoder", *stream, "--objectives", "mlm")
    assert asked["streaming"] is True and (asked["name"], asked["config"]) == ("some/text", "en")
    assert (data / "out" / "encoder" / "model.safetensors").exists()


def test_every_process_trains_the_same_tokenizer() -> None:
    program = (
        "from modeling_hire.training.new_encoder import train_tokenizer\n"
        "texts = [' '.join(f'{a}{b}{c}x' for a in 'abcdefgh' for b in 'ijkl') + '.' for c in 'mnopqrst']\n"
        "tokenizer = train_tokenizer(iter(texts), 90, 16)\n"
        "print(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]), tokenizer('aimx zz')['input_ids'])"
    )
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout and "('[MASK]', 4)" in runs[0].stdout


def test_a_head_for_other_labels_is_refused(data: Path) -> None:
    pretrain(data, "first", *on_tasks(data, "rte"))
    path = data / "first" / "config.json"
    config = json.loads(path.read_text())
    config["tasks"]["rte"]["labels"].reverse()
    path.write_text(json.dumps(config))
    with pytest.raises(SystemExit, match="task 'rte': the checkpoint's head is for .* as in the data"):
        pretrain(data, "out", "--model", data / "first", *on_tasks(data, "rte")[2:])
    assert not (data / "out").exists()


def test_an_explosion_leaves_no_checkpoint(data: Path) -> None:
    saving = ("--save_strategy", "steps", "--save_steps", "1")
    with pytest.raises(FloatingPointError, match="update 1: the outer loss of .* is (nan|inf)"):
        pretrain(data, "out", *on_text(data), "--inner_steps", 1, "--inner_learning_rate", "1e30", *saving)
    assert not list((data / "out").glob("checkpoint-*"))


def test_what_it_writes_is_fine_tuned(data: Path) -> None:
    pretrain(data, "out", *on_text(data))
    task = ("--task", "rte", "--dataset_dir", str(data / "data"), "--encoder", str(data / "out" / "encoder"))
    run_glue.main([*QUICK, *task, "--output_dir", str(data / "hire")])
    assert json.loads((data / "hire" / "results.json").read_text())["metrics"]
    model = AutoModelForSequenceClassification.from_pretrained(data / "out" / "encoder")
    assert model(torch.tensor([[2, 7, 3]])).logits.shape == (1, 2)


def test_a_saved_model_is_gone_on_with(data: Path) -> None:
    pretrain(data, "one", *on_text(data))
    pretrain(data, "two", "--model", data / "one", "--corpus_file", data / "corpus.txt")
    assert (data / "two" / "encoder" / "model.safetensors").exists()


def test_the_word_head_of_the_source_is_kept(data: Path) -> None:
    pretrain(data, "out", *on_text(data), "--learning_rate", 0.0, "--weight_decay", 0.0)
    masked = AutoModelForMaskedLM.from_pretrained(data / "out" / "masked_lm")
    assert_same(masked.state_dict(), AutoModelForMaskedLM.from_pretrained(data / "encoder").state_dict())


def test_killed_and_resumed_equals_left_alone(data: Path) -> None:
    saving = ("--save_strategy", "steps", "--save_steps", "2")
    pretrain(data, "whole", *on_text(data), *saving)
    with killed_at(3):
        pretrain(data, "killed", *on_text(data), *saving)
    pretrain(data, "killed", *on_text(data), *saving, "--resume", "true")
    assert_same(weights(data / "killed"), weights(data / "whole"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--inner_steps", "-1"), "inner_steps=-1"),
        (("--inner_learning_rate", "0"), "inner_learning_rate=0.0"),
        (("--corpus_fil", "x"), "Did you mean 'corpus_file'"),
        (("--task_weights", "{"), "JSON"),
        (("--objectives", "mlm", "nsp"), "objectives"),
        (("--tasks", "rtee"), "'rte'"),
        (("--new_encoder", "bert"), "one of the two"),
        (("--max_length", "2"), "max_length=2"),
        (("--order", "2", "--attn_implementation", "flex_attention"), "'eager'"),
        (("--adapt", "decoder"), "adapt='decoder'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    data: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as error:
        pretrain(data, "out", *on_text(data), *flags)
    assert message in str(error.value) + capsys.readouterr().err
    assert not (data / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n \n", "no text"),
        ("w1 w2 w3 .\n\nw4 w5 .\n", "two sentences"),
        ("w1 w2 w3 .\nw4 w5 .\n", "parts of others"),
    ],
)
def test_useless_corpora_are_refused(data: Path, text: str, message: str) -> None:
    (data / "corpus.txt").write_text(text)
    with pytest.raises(SystemExit, match=message):
        pretrain(data, "out", *on_text(data))
    assert not (data / "out").exists()
