"""Tiny questions and runs of `run_squad.py`, which the tests of the script share."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_tokenizer
from transformers import AutoModelForMaskedLM

import run_squad
from modeling_hire.data.squad_arguments import SquadArguments
from modeling_hire.training.answering import QuestionAnswering
from modeling_hire.training.arguments import ModelArguments, SquadRunArguments
from modeling_hire.training.preparation import Prepared, prepare
from modeling_hire.training.yaml_arguments import YamlArgumentParser


# What makes a run small, quiet and independent of the machine. Later flags override earlier ones. Windows of 24 tokens
# hold all of some contexts and a part of others.
QUICK = (
    *("--use_cpu", "true", "--disable_tqdm", "true", "--num_train_epochs", "2", "--per_device_train_batch_size", "8"),
    *("--learning_rate", "1e-3", "--preset", "fast", "--picture_examples", "0"),
    *("--max_length", "24", "--doc_stride", "6", "--max_query_length", "8", "--max_answer_length", "5"),
)


def save_encoder(folder: Path, **overrides: Any) -> Path:
    """A plain encoder with a masked-language-model head and its tokenizer, as a user has on disk."""
    config = tiny_encoder_config("bert", **{"initializer_range": 0.3, **overrides})
    enliven(AutoModelForMaskedLM.from_config(config), seed=1).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def question(index: int, numbers: random.Random, negatives: bool = True) -> dict[str, Any]:
    """A question for the word after the one it names; every third one names a word that is not there."""
    words = [f"w{numbers.randrange(10, 90)}" for _ in range(numbers.randint(6, 40))]
    place = numbers.randrange(len(words) - 2)
    context = " ".join(words)
    asked = words[place]
    answers: list[dict[str, Any]] = []
    if negatives and index % 3 == 2:
        asked = "w5"
    else:
        start = len(" ".join(words[: place + 1])) + 1
        answers = [{"text": words[place + 1], "answer_start": start}]
        if index % 2:
            answers.append({"text": " ".join(words[place + 1 : place + 3]), "answer_start": start})
    return {"id": f"q{index}", "question": f"w1 {asked}", "context": context, "answers": answers}


def questions(count: int, seed: int = 0, negatives: bool = True) -> list[dict[str, Any]]:
    numbers = random.Random(seed)
    return [question(index + 1000 * seed, numbers, negatives) for index in range(count)]


def nested(rows: Sequence[dict[str, Any]], version: str = "v2.0") -> dict[str, Any]:
    """Rows in SQuAD's own format, two paragraphs an article."""
    paragraphs = [
        {
            "context": row["context"],
            "qas": [{**{k: row[k] for k in ("id", "question", "answers")}, "is_impossible": not row["answers"]}],
        }
        for row in rows
    ]
    articles = [{"title": f"t{i}", "paragraphs": paragraphs[i : i + 2]} for i in range(0, len(paragraphs), 2)]
    return {"version": version, "data": articles}


def write_squad(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in SQuAD's own format, compressed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(nested(rows)).encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def write_folder(folder: Path, train: int = 24, evaluation: int = 11, negatives: bool = True) -> Path:
    """A folder as `--dataset_dir` takes it."""
    write_squad(folder / "train.json.gz", questions(train, seed=1, negatives=negatives))
    write_squad(folder / "dev.json", questions(evaluation, seed=2, negatives=negatives))
    return folder


def squad(output: Path, *flags: Any) -> dict[str, Any]:
    """Run the script in this process; what `results.json` holds."""
    run_squad.main([*QUICK, "--output_dir", str(output), *map(str, flags)])
    path = output / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def prepared(output: Path, *flags: Any) -> Prepared:
    """A run that is ready to start."""
    parser = YamlArgumentParser([ModelArguments, SquadArguments, SquadRunArguments])
    return prepare(QuestionAnswering, *parser.parse([*QUICK, "--output_dir", str(output), *map(str, flags)]))


def refused(output: Path, *flags: Any) -> str:
    """The message with which the script refuses a run before it starts; nothing may be left behind."""
    before = sorted(output.rglob("*")) if output.exists() else None
    with pytest.raises(SystemExit) as caught:
        squad(output, *flags)
    after = sorted(output.rglob("*")) if output.exists() else None
    assert after == before, "a refused run must leave nothing behind"
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code
