"""A seed gives the same embeddings twice, and a killed run of `run_contrastive.py` goes on as if nothing happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_contrastive import contrastive, data_flags, evaluations, refused, same_runs, write_data
from tiny_runs import killed_at, save_encoder, weights

from modeling_hire.training.trainer import last_checkpoint


STEPS = ("--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "2", "--save_steps", "2")
# Three epochs of three steps, with dropout, drawn slopes, two learning rates and rows that are left out.
LONG = ("--num_train_epochs", 3, "--per_device_train_batch_size", 7, "--new_learning_rate", "5e-3", *STEPS)
KINDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "supervised": ("supervised", ()),
    "self-supervised": ("self_supervised", ()),
    "hybrid, cached": ("hybrid", ("--cache_chunk", 5)),
    "masked words": ("supervised", ("--mlm_weight", "0.15")),
    "self-supervised masked words": ("self_supervised", ("--mlm_weight", "0.15")),
    "accumulated, by length": (
        "supervised",
        ("--gradient_accumulation_steps", 2, "--num_train_epochs", 5, "--train_sampling_strategy", "group_by_length"),
    ),
    "lora": ("supervised", ("--peft", "lora")),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    return write_data(folder)


def flags_of(base: Path, kind: str) -> tuple[Any, ...]:
    scheme, more = KINDS[kind]
    return ("--encoder", base / "encoder", *data_flags(base, scheme), *LONG, *more)


@pytest.fixture(scope="module", params=KINDS)
def alone(request: pytest.FixtureRequest, base: Path) -> tuple[str, Path]:
    """A run that nobody disturbed, with checkpoints after steps 2, 4, 6, and 8."""
    folder = base / request.param.replace(" ", "-")
    contrastive(folder, *flags_of(base, request.param))
    return request.param, folder


def test_again(alone: tuple[str, Path], base: Path, tmp_path: Path) -> None:
    kind, folder = alone
    contrastive(tmp_path / "again", *flags_of(base, kind))
    same_runs(tmp_path / "again", folder)
    assert len({score for _, score in evaluations(folder)}) > 1, "something happens on the way"


@pytest.mark.parametrize("step", [1, 5])
def test_a_killed_run_goes_on(step: int, alone: tuple[str, Path], base: Path, tmp_path: Path) -> None:
    """Killed before the first checkpoint, and inside an epoch."""
    kind, folder = alone
    with killed_at(step):
        contrastive(tmp_path / "run", *flags_of(base, kind))
    assert bool(last_checkpoint(tmp_path / "run")) == (step > 2)
    contrastive(tmp_path / "run", *flags_of(base, kind), "--resume", "true")
    same_runs(tmp_path / "run", folder)


@pytest.mark.parametrize("kind", ["self-supervised", "masked words"])
def test_a_run_killed_after_its_last_step_goes_on(kind: str, base: Path, tmp_path: Path) -> None:
    contrastive(tmp_path / "alone", *flags_of(base, kind))
    with killed_at(9):
        contrastive(tmp_path / "run", *flags_of(base, kind))
    contrastive(tmp_path / "run", *flags_of(base, kind), "--resume", "true")
    same_runs(tmp_path / "run", tmp_path / "alone")
    assert not [name for name in weights(tmp_path / "run") if "word_head" in name]


def test_another_seed_gives_another_run(base: Path, tmp_path: Path) -> None:
    flags = flags_of(base, "supervised")
    for seed in (1, 2):
        contrastive(tmp_path / str(seed), *flags, "--seed", seed, "--num_train_epochs", 1)
    one, two = (weights(tmp_path / str(seed)) for seed in (1, 2))
    assert [name for name in one if not torch.equal(one[name], two[name])]


def test_several_seeds_go_on(base: Path, tmp_path: Path) -> None:
    flags = (*flags_of(base, "self-supervised"), "--num_train_epochs", 1, "--seeds", 1, 2)
    flags = (*flags, "--export_detached", "cls")
    results = contrastive(tmp_path / "run", *flags)
    for file in ("results.json", "results.md", "seed-2/seed.json", "seed-2/model.safetensors"):
        (tmp_path / "run" / file).unlink()
    # The second seed was killed after it had written the detached encoder.
    before = weights(tmp_path / "run" / "seed-2" / "detached")
    assert contrastive(tmp_path / "run", *flags, "--resume", "true") == results
    after = weights(tmp_path / "run" / "seed-2" / "detached")
    assert before.keys() == after.keys() and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (("--temperature", "0.1"), "temperature=None there, 0.1 here"),
        (("--pooler", "cls"), "pooler=None there, 'cls' here"),
        (("--max_length", "12"), "max_length=16 there, 12 here"),
        (("--scheme", "self_supervised"), "there"),
        (("--cache_chunk", "4"), "cache_chunk=None there, 4 here"),
    ],
)
def test_other_arguments_are_refused(other: tuple[str, ...], said: str, base: Path, tmp_path: Path) -> None:
    flags = (*flags_of(base, "supervised"), "--num_train_epochs", 1)
    with killed_at(1):
        contrastive(tmp_path / "run", *flags)
    assert said in refused(tmp_path / "run", *flags, *other, "--resume", "true")


def test_run_files_hold_no_local_path(base: Path, tmp_path: Path) -> None:
    flags = (*flags_of(base, "hybrid, cached"), "--num_train_epochs", 1)
    contrastive(tmp_path / "run", *flags)
    said = json.dumps(json.loads((tmp_path / "run" / "run.json").read_text()))
    assert "texts.txt (" in said and str(base) not in said
