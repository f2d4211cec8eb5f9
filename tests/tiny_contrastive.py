"""Tiny texts and runs of `run_contrastive.py`, which the tests of the script share."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import weights, write_rows

import run_contrastive
from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.training.contrastive_arguments import ContrastiveTrainingArguments, PoolingArguments
from modeling_hire.training.contrastive_trainer import ContrastiveTrainer
from modeling_hire.training.embedding import SentenceEmbedding
from modeling_hire.training.preparation import Prepared, prepare
from modeling_hire.training.running import make_trainer
from modeling_hire.training.yaml_arguments import YamlArgumentParser


# What makes a run small, quiet and independent of the machine. Later flags override earlier ones.
QUICK = (
    *("--use_cpu", "true", "--disable_tqdm", "true", "--num_train_epochs", "2", "--per_device_train_batch_size", "8"),
    *("--learning_rate", "1e-3", "--picture_examples", "0", "--max_length", "16"),
)
# No evaluation and no checkpoint on the way.
ALONE = ("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false")
# Without anything drawn at random but the order of the rows (with an encoder without dropout).
STILL = ("--activation", "leaky")


def words(numbers: random.Random, topic: int, shortest: int = 1, longest: int = 8) -> str:
    """A text of which every second word is one of its topic's."""
    count = numbers.randint(shortest, longest)
    return " ".join(
        f"w{10 * topic + numbers.randrange(5)}" if i % 2 else f"w{numbers.randrange(90)}" for i in range(count + 1)
    )


def write_triplets(path: Path, count: int = 24, negatives: int = 1, seed: int = 0) -> Path:
    """Anchor and positive of one topic, and hard negatives of others."""
    numbers, rows = random.Random(seed), []
    for _ in range(count):
        topic = numbers.randrange(4)
        row = {"anchor": words(numbers, topic), "positive": words(numbers, topic)}
        names = ("negative",) if negatives == 1 else tuple(f"negative_{i + 1}" for i in range(negatives))
        rows.append(row | {name: words(numbers, 4 + numbers.randrange(4)) for name in names})
    return write_rows(path, rows)


def write_pairs(path: Path, count: int = 11, seed: int = 1) -> Path:
    """Scored pairs, alike or not."""
    numbers, rows = random.Random(seed), []
    for index in range(count):
        topics = numbers.randrange(8), numbers.randrange(8)
        texts = [words(numbers, topics[0]), words(numbers, topics[index % 2])]
        score = 5.0 * (topics[0] == topics[index % 2]) * (0.8 + 0.2 * numbers.random())
        rows.append({"sentence1": texts[0], "sentence2": texts[1], "score": round(score, 3)})
    return write_rows(path, rows)


def write_data(folder: Path) -> Path:
    """Files of every kind: triplets.jsonl, pairs.jsonl (two texts a row), texts.txt, dev.jsonl and test.jsonl."""
    write_triplets(folder / "triplets.jsonl")
    write_triplets(folder / "two.jsonl", negatives=2)
    write_triplets(folder / "pairs.jsonl", negatives=0)
    numbers = random.Random(2)
    texts = [words(numbers, numbers.randrange(8), longest=12) for _ in range(24)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    write_pairs(folder / "dev.jsonl")
    write_pairs(folder / "test.jsonl", count=7, seed=3)
    return folder


def data_flags(folder: Path, scheme: str) -> tuple[Any, ...]:
    """Flags that name the data of a scheme, and the pairs that choose the best checkpoint."""
    files = {
        "supervised": ("--train_file", folder / "triplets.jsonl"),
        "self_supervised": ("--train_file", folder / "texts.txt"),
        "hybrid": ("--train_file", folder / "triplets.jsonl", "--unlabelled_file", folder / "texts.txt"),
    }
    return ("--scheme", scheme, *files[scheme], "--validation_file", folder / "dev.jsonl")


def contrastive(output: Path, *flags: Any) -> dict[str, Any]:
    """Run the script in this process; what `results.json` holds."""
    run_contrastive.main([*QUICK, "--output_dir", str(output), *map(str, flags)])
    path = output / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def prepared(output: Path, *flags: Any) -> Prepared:
    """A run that is ready to start."""
    parser = YamlArgumentParser([PoolingArguments, ContrastiveArguments, ContrastiveTrainingArguments])
    return prepare(SentenceEmbedding, *parser.parse([*QUICK, "--output_dir", str(output), *map(str, flags)]))


def trainer_of(output: Path, *flags: Any) -> ContrastiveTrainer:
    """The trainer of a run's first seed."""
    run = prepared(output, *flags)
    return make_trainer(run, *run.model(run.arguments.seeds[0]), run.arguments)


def refused(output: Path, *flags: Any) -> str:
    """The message with which the script refuses a run before it starts; nothing may be left behind."""
    before = sorted(output.rglob("*")) if output.exists() else None
    with pytest.raises(SystemExit) as caught:
        contrastive(output, *flags)
    after = sorted(output.rglob("*")) if output.exists() else None
    assert after == before, "a refused run must leave nothing behind"
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


def evaluations(folder: Path) -> list[tuple[int, float]]:
    """Step and correlation of every evaluation of a finished run."""
    log = json.loads((folder / "seed.json").read_text(encoding="utf-8"))["log"]
    return [(entry["step"], entry["eval_spearman"]) for entry in log if "eval_spearman" in entry]


def losses(folder: Path) -> list[tuple[int, float]]:
    """Step and training loss of every log of a finished run."""
    log = json.loads((folder / "seed.json").read_text(encoding="utf-8"))["log"]
    return [(entry["step"], entry["loss"]) for entry in log if "loss" in entry]


def same_runs(one: Path, other: Path) -> None:
    """Two finished runs have the same metrics, to the bit the same weights, and the same all the way."""
    left, right = (json.loads((path / "seed.json").read_text(encoding="utf-8")) for path in (one, other))
    assert left["metrics"] == right["metrics"]
    assert evaluations(one) == evaluations(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert not [name for name in first if not first[name].equal(second[name])]
