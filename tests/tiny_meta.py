"""Tiny models and tasks of meta-learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven

from modeling_hire import MultiTaskConfig, MultiTaskModel
from modeling_hire.data.episodes import MetaTask
from modeling_hire.training.meta_arguments import MetaTrainingArguments


TASKS = {"mlm": {"kind": "masked_lm"}, "nli": {"kind": "classification", "labels": ["yes", "no"]}}


def tiny_multi_task(
    encoder_type: str = "bert", tasks: dict | None = None, attention: str = "eager", **encoder: Any
) -> MultiTaskModel:
    """A multi-task model whose every part has a visible effect."""
    settings = {"num_hidden_layers": 2} | encoder
    config = MultiTaskConfig(encoder_config=tiny_encoder_config(encoder_type, **settings), tasks=tasks or TASKS)
    model = enliven(MultiTaskModel(config))
    model.set_attn_implementation(attention)
    return model


def tiny_inputs(seed: int, rows: int = 3, tokens: int = 6, names: tuple[str, ...] = ("mlm", "nli")) -> dict[str, Any]:
    """Model inputs with the labels of some tasks."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(5, 95, (rows, tokens), generator=generator)
    words = input_ids.masked_fill(torch.rand(input_ids.shape, generator=generator) < 0.5, -100)
    labels = {"mlm": words, "nli": torch.randint(0, 2, (rows,), generator=generator)}
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "labels": {name: labels[name] for name in names},
    }


class Rows:
    """Rows that say which they are."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> int:
        return row


def collate(names: tuple[str, ...]):
    """Inputs that depend on the rows, and on a random number."""

    def join(rows: list[int]) -> dict[str, Any]:
        return tiny_inputs(sum(rows) * 1000 + int(torch.randint(0, 1000, ())), rows=len(rows), names=names)

    return join


def tiny_tasks() -> list[MetaTask]:
    return [MetaTask("mlm", Rows(20), collate(("mlm",))), MetaTask("nli", Rows(13), collate(("nli",)))]


def tiny_arguments(folder: Path, **overrides: Any) -> MetaTrainingArguments:
    settings = {
        "inner_steps": 2,
        "inner_learning_rate": 0.05,
        "per_device_train_batch_size": 3,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return MetaTrainingArguments(output_dir=str(folder), **(settings | overrides))
