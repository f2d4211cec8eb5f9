"""The trainer and its parts: batches, accumulation, learning rates, frozen encoders, LoRA, dead scorers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny_models import assert_same
from tiny_runs import NO_DROPOUT, answers, glue, prepared, read_rows, save_encoder, texts_of, weights, write_task
from transformers import AutoModelForSequenceClassification

from modeling_hire import HireConfig, HireForSequenceClassification
from modeling_hire.training.running import make_trainer
from modeling_hire.training.trainer import LayerwiseTrainer, LengthGroupedSampler


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    save_encoder(folder / "still", **NO_DROPOUT)
    for task in ("cola", "stsb"):
        write_task(folder / "data", task, train=14)
    return folder


@pytest.fixture(scope="module")
def flags(base: Path) -> tuple[Any, ...]:
    return ("--encoder", base / "encoder", "--task", "cola", "--dataset_dir", base / "data")


def trainer_of(output: Path, *flags: Any) -> LayerwiseTrainer:
    run = prepared(output, *flags)
    return make_trainer(run, *run.model(run.arguments.seeds[0]), run.arguments)


LENGTHS = [int(3 + 60 * (i * 0.618 % 1) ** 2) for i in range(1000)]


@pytest.mark.parametrize(("rows", "batch"), [(1, 8), (7, 8), (8, 8), (1000, 8), (1000, 16), (999, 7), (5, 1)])
def test_sampler_gives_every_row_once(rows: int, batch: int) -> None:
    sampler = LengthGroupedSampler(LENGTHS[:rows], batch, seed=3)
    assert len(sampler) == rows
    assert sorted(sampler) == list(range(rows))


def test_sampler_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        torch.rand(1)  # the global generator has no say
        sampler = LengthGroupedSampler(LENGTHS, 16, seed)
        sampler.set_epoch(epoch)
        before = torch.get_rng_state()
        rows = list(sampler)
        assert torch.equal(torch.get_rng_state(), before)
        return rows

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6


def test_sampler_groups_lengths_and_keeps_batches_random() -> None:
    rows = list(LengthGroupedSampler(LENGTHS, 16, seed=0))
    batches = [[LENGTHS[row] for row in rows[i : i + 16]] for i in range(0, len(rows), 16)]
    padding = sum(max(batch) * len(batch) for batch in batches) / sum(LENGTHS)
    assert padding < 1.1, "texts of like length must share a batch"
    longest = [max(batch) for batch in batches]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)
    assert len(batches[-1]) == 1000 % 16, "the short batch is the last one"


@pytest.mark.parametrize("task", ["cola", "stsb"])
@pytest.mark.parametrize("model", ["hire", "last"])
def test_accumulated_batches_weigh_as_one(task: str, model: str, base: Path, tmp_path: Path) -> None:
    """14 rows in one batch, or in batches of 4, 4, 4 and 2: the same step."""
    flags = ["--encoder", base / "still", "--task", task, "--dataset_dir", base / "data", "--model", model]
    flags += ["--optim", "sgd", "--max_grad_norm", "0", "--learning_rate", "0.1", "--num_train_epochs", "1"]
    flags += ["--hire_dropout", "0"] if model == "hire" else []
    # Constant from the first step.
    flags += ["--warmup_steps", "0", "--lr_scheduler_type", "constant", "--save_strategy", "no"]
    flags += ["--eval_strategy", "no", "--load_best_model_at_end", "false"]
    after = []
    for size, steps in ((16, 1), (4, 4)):
        sizes = ("--per_device_train_batch_size", size, "--gradient_accumulation_steps", steps)
        trainer = trainer_of(tmp_path / str(size), *flags, *sizes)
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        trainer.train()
        assert trainer.state.global_step == 1
        after.append(trainer.model.state_dict())
    assert_same(after[0], after[1], atol=1e-6, rtol=1e-5)
    moved = max(
        (after[0][name] - value).abs().max().item() for name, value in before.items() if value.is_floating_point()
    )
    assert moved > 1e-3


def test_two_learning_rates(flags: tuple[Any, ...], tmp_path: Path) -> None:
    run = ("--learning_rate", "1e-4", "--new_learning_rate", "1e-2", "--weight_decay", "0.5")
    trainer = trainer_of(tmp_path / "run", *flags, *run)
    groups = trainer.create_optimizer().param_groups
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    found = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert found.keys() == set(names.values()), "every parameter is trained"
    for name, (rate, decay) in found.items():
        assert rate == (1e-4 if name.startswith("hire.encoder.") else 1e-2), name
        assert decay == (0.0 if name.endswith("bias") or "bias_" in name or "LayerNorm" in name else 0.5), name
    assert len(groups) == 4


def test_one_learning_rate_for_all(flags: tuple[Any, ...], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *flags, "--learning_rate", "1e-4")
    assert {group["lr"] for group in trainer.create_optimizer().param_groups} == {1e-4}


def test_new_modules_of_the_plain_head(flags: tuple[Any, ...], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *flags, "--model", "last")
    assert trainer.new_parameters == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("model", ["hire", "last"])
def test_frozen_encoder(model: str, base: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *flags, "--model", model, "--freeze_encoder")
    encoder = trainer.model.base_model if model == "last" else trainer.model.base_model.encoder
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    trainer.train()
    trainer.model.train()
    assert not any(m.training for n, m in encoder.named_modules() if "pooler" not in n), "no dropout in the encoder"
    assert trainer.model.training and (model == "last" or trainer.model.base_model.fusion.training)
    changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == ({"pooler.dense.weight", "pooler.dense.bias"} if model == "last" else set())


@pytest.mark.parametrize("model", ["hire", "last"])
def test_lora(model: str, base: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    results = glue(run, *flags, "--peft", "lora", "--model", model, "--picture_examples", 5, "--learning_rate", "1e-2")
    assert results["metrics"]["42"]["validation"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in (run / "adapter").iterdir()}
    assert not [name for name, text in texts_of(run).items() if str(base) in text or str(tmp_path) in text]
    assert not list(run.rglob("*.bin"))
    texts = [[row["sentence"]] for row in read_rows(base / "data" / "cola" / "test.jsonl")]
    merged = answers(run, texts)
    assert not any("lora" in name for name in weights(run)), "the model in the root is whole"

    torch.manual_seed(0)
    if model == "hire":
        config = HireConfig.from_pretrained(run)
        plain = HireForSequenceClassification.from_pretrained(base / "encoder", config=config)
    else:
        plain = AutoModelForSequenceClassification.from_pretrained(base / "encoder")
    adapted = PeftModel.from_pretrained(plain, run / "adapter").eval()
    tokenizer = prepared(tmp_path / "other", *flags).tokenizer
    with torch.no_grad():
        logits = torch.cat([adapted(**tokenizer(*parts, return_tensors="pt")).logits for parts in texts])
    torch.testing.assert_close(merged, logits, atol=1e-5, rtol=1e-5)


def test_lora_trains_adapters_and_new_modules(flags: tuple[Any, ...], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *flags, "--peft", "lora", "--new_learning_rate", "1e-2")
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    for part in ("lora_A", "lora_B", "weighting", "fusion", "classifier"):
        assert any(part in name for name in trained), part
    rates = {group["lr"]: len(group["params"]) for group in trainer.create_optimizer().param_groups}
    assert set(rates) == {1e-3, 1e-2}


def test_resumed_lora(flags: tuple[Any, ...], tmp_path: Path) -> None:
    from tiny_runs import killed_at, same_runs

    glue(tmp_path / "alone", *flags, "--peft", "lora")
    with killed_at(3):
        glue(tmp_path / "run", *flags, "--peft", "lora")
    glue(tmp_path / "run", *flags, "--peft", "lora", "--resume", "true")
    same_runs(tmp_path / "run", tmp_path / "alone")


def test_dead_scorer_is_reported(flags: tuple[Any, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead = ("--preset", "paper", "--score_bias_init", "-90", "--rescue_dead_scores", "false")
    with caplog.at_level(logging.WARNING, logger="transformers"):
        glue(tmp_path / "run", *flags, *dead, "--num_train_epochs", 1, "--logging_steps", 1, "--picture_examples", 4)
    log = json.loads((tmp_path / "run" / "seed.json").read_text())["log"]
    shares = [entry["dead_scores"] for entry in log if "loss" in entry]
    assert shares == [1.0, 1.0]
    assert "The layer scorer is dead" in caplog.text and "score_bias_init" in caplog.text
    assert json.loads((tmp_path / "run" / "layer_importance.json").read_text())["uniform"] is True


def test_live_scorer_is_not(flags: tuple[Any, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Shorter than a logging interval: the last log says it all the same."""
    with caplog.at_level(logging.WARNING, logger="transformers"):
        glue(tmp_path / "run", *flags, "--preset", "paper", "--num_train_epochs", 1)
    log = json.loads((tmp_path / "run" / "seed.json").read_text())["log"]
    assert [entry["dead_scores"] for entry in log if "train_loss" in entry][0] < 1
    assert "scorer is dead" not in caplog.text
