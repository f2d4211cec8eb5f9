"""Tiny data, encoders and runs of `run_glue.py`, which the tests of the script share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from safetensors.torch import load_file
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_tokenizer
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

import run_glue
from modeling_hire.data.arguments import DataArguments
from modeling_hire.training.arguments import ModelArguments, RunArguments
from modeling_hire.training.callbacks import DeadScorerCallback
from modeling_hire.training.classification import Classification
from modeling_hire.training.preparation import Prepared, prepare
from modeling_hire.training.yaml_arguments import YamlArgumentParser


logging.disable_progress_bar()
datasets.disable_progress_bars()

# What makes a run small, quiet and independent of the machine. Later flags override earlier ones.
QUICK = (
    *("--use_cpu", "true", "--disable_tqdm", "true", "--num_train_epochs", "2", "--per_device_train_batch_size", "8"),
    *("--learning_rate", "1e-3", "--preset", "fast", "--picture_examples", "0"),
)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PAIRS = {"mnli": ("premise", "hypothesis"), "rte": ("sentence1", "sentence2"), "stsb": ("sentence1", "sentence2")}


def save_encoder(folder: Path, encoder_type: str = "bert", **overrides: Any) -> Path:
    """A plain encoder with a masked-language-model head and its tokenizer, as a user has on disk.

    New modules on it start with weights so wide that different texts get visibly different answers.
    """
    config = tiny_encoder_config(encoder_type, **{"initializer_range": 0.3, **overrides})
    model = AutoModelForMaskedLM.from_config(config)
    enliven(model, seed=1).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def sentence(numbers: random.Random, label: int, shortest: int = 2, longest: int = 9) -> str:
    """Words of which the first one tells the label."""
    return " ".join(
        [f"w{label}", *(f"w{numbers.randrange(10, 90)}" for _ in range(numbers.randint(shortest, longest)))]
    )


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_task(folder: Path, task: str = "cola", train: int = 24, evaluation: int = 11) -> Path:
    """A task in the folder format; the labels of the test split are hidden as GLUE's are, its row numbers from 100."""
    numbers = random.Random(0)
    columns = PAIRS.get(task, ("sentence",))

    def row(index: int, hidden: bool) -> dict[str, Any]:
        label = numbers.randrange(3 if task == "mnli" else 2)
        texts = {column: sentence(numbers, label) for column in columns}
        shown: float = label if task != "stsb" else round(label * 4 + numbers.random(), 2)
        if hidden:
            shown = -1.0 if task == "stsb" else -1
        return {**texts, "label": shown, "idx": index + 100 * hidden}

    ends = ("_matched", "_mismatched") if task == "mnli" else ("",)
    for split in ("train", *(f"{split}{end}" for split in ("validation", "test") for end in ends)):
        count = train if split == "train" else evaluation
        write_rows(folder / task / f"{split}.jsonl", [row(i, split.startswith("test")) for i in range(count)])
    return folder


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def glue(output: Path, *flags: Any) -> dict[str, Any]:
    """Run the script in this process; what `results.json` holds."""
    run_glue.main([*QUICK, "--output_dir", str(output), *map(str, flags)])
    path = output / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def prepared(output: Path, *flags: Any) -> Prepared:
    """A run that is ready to start."""
    parser = YamlArgumentParser([ModelArguments, DataArguments, RunArguments])
    return prepare(Classification, *parser.parse([*QUICK, "--output_dir", str(output), *map(str, flags)]))


def refused(output: Path, *flags: Any) -> str:
    """The message with which the script refuses a run before it starts; nothing may be left behind."""
    before = sorted(output.rglob("*")) if output.exists() else None
    with pytest.raises(SystemExit) as caught:
        glue(output, *flags)
    after = sorted(output.rglob("*")) if output.exists() else None
    assert after == before, "a refused run must leave nothing behind"
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_runs(one: Path, other: Path) -> None:
    """Two finished runs have the same metrics, to the bit the same weights, and evaluations alike all the way."""
    left, right = (json.loads((path / "seed.json").read_text()) for path in (one, other))
    assert left["metrics"] == right["metrics"]
    assert evaluations(left["log"]) == evaluations(right["log"])
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different


def evaluations(log: list[dict[str, float]]) -> list[tuple[int, float]]:
    """Step and loss of every evaluation; the best checkpoint alone would not show what came after it."""
    return [(entry["step"], entry["eval_loss"]) for entry in log if "eval_loss" in entry]


@torch.no_grad()
def answers(folder: Path, texts: Sequence[Sequence[str]]) -> torch.Tensor:
    """The logits of a saved checkpoint, text by text and without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return torch.cat([model(**tokenizer(*parts, return_tensors="pt")).logits for parts in texts])


def texts_of(folder: Path) -> dict[str, str]:
    """Every text file below a folder, by its relative path."""
    binary = (".safetensors", ".png", ".pt", ".bin", ".pth")
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in binary
    }


class Killed(BaseException):
    """Stands for a run that is killed from outside."""


@contextmanager
def killed_at(step: int, event: str = "on_step_end") -> Iterator[None]:
    """A run in here dies at the given step of its training."""

    def die(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(DeadScorerCallback, event, die)
        yield
