"""Two processes learn embeddings as one does with the joined batch: the texts of both are each other's negatives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_contrastive_trainer import Watch
from tiny_contrastive import ALONE, QUICK, STILL, contrastive, data_flags, same_runs, trainer_of, write_data
from tiny_models import assert_same
from tiny_processes import REPOSITORY, environment, free_port, run_together
from tiny_runs import NO_DROPOUT, killed_at, save_encoder, weights

from modeling_hire.configuration_layer_attn_pool import POOLERS


pytestmark = pytest.mark.slow
STEPS = ("--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "2", "--save_steps", "2")
# By name: scheme, data of the anchors, and more flags. Batches of 4 in each process, against 8 in one.
CASES: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    **{
        f"{file} {'cached' if cache else 'whole'}": ("supervised", f"{file}.jsonl", cache)
        for file in ("pairs", "triplets", "two")
        for cache in ((), ("--cache_chunk", 5))
    },
    "two ways": ("supervised", "triplets.jsonl", ("--two_way", "true", "--matryoshka_dims", 8, 32)),
    "hybrid": ("hybrid", "triplets.jsonl", ()),
    "hybrid cached": ("hybrid", "triplets.jsonl", ("--cache_chunk", 7)),
    "lora": ("supervised", "triplets.jsonl", ("--peft", "lora")),
    "frozen": ("supervised", "triplets.jsonl", ("--freeze_encoder", "true", "--cache_chunk", 5)),
    "tied": ("supervised", "triplets.jsonl", ("--duplicate", "first:1", "--tie", "true")),
    **{pooler: ("supervised", "triplets.jsonl", ("--pooler", pooler)) for pooler in POOLERS if pooler != "layer_attn"},
    **{
        f"{pooler} cached": ("supervised", "triplets.jsonl", ("--pooler", pooler, "--cache_chunk", 4))
        for pooler in ("mean", "static_mix")
    },
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "still", **NO_DROPOUT)
    save_encoder(folder / "encoder")
    return write_data(folder)


def first_gradients(base: Path, output: Path, case: str, size: int, steps: int = 1) -> dict[str, torch.Tensor]:
    """The gradients with which the trainer takes its first step, of batches of `size`, `steps` of them accumulated."""
    scheme, file, more = CASES[case]
    data = (*data_flags(base, scheme), "--train_file", base / file)
    still = () if "--pooler" in more else STILL
    # A hybrid run needs dropout to start at all; it is taken out again.
    flags = ("--encoder", base / ("encoder" if scheme == "hybrid" else "still"), *data, *still, *more)
    sizes = ("--per_device_train_batch_size", size, "--gradient_accumulation_steps", steps, "--max_steps", 2)
    trainer, watch = trainer_of(output, *flags, *ALONE, *sizes, "--max_grad_norm", 0), Watch()
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    trainer.add_callback(watch)
    trainer.train()
    if trainer.args.world_size > 1:
        assert trainer.model_wrapped.find_unused_parameters is False
    return {name.removeprefix("module."): value for name, value in watch.gradients.items()}


def work(rank: int, base: Path, output: Path) -> None:
    """What each of the processes does, one after the other."""
    for case in CASES:
        torch.save(first_gradients(base, output / "unused", case, size=4), output / f"{case}-{rank}.pt")
    for cache in ("whole", "cached"):
        found = first_gradients(base, output / "unused", f"triplets {cache}", size=4, steps=2)
        torch.save(found, output / f"accumulated {cache}-{rank}.pt")
    flags = ("--encoder", base / "encoder", *data_flags(base, "supervised"), *STEPS, "--cache_chunk", 5)
    flags = (*flags, "--per_device_train_batch_size", 4)
    contrastive(output / "alone", *flags)
    with killed_at(5):  # inside the second of two epochs of three steps
        contrastive(output / "killed", *flags)
    contrastive(output / "killed", *flags, "--resume", "true")


@pytest.fixture(scope="module")
def both(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left."""
    output = tmp_path_factory.mktemp("both")
    run_together(work, base, output)
    return output


def same_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    largest = max(value.abs().max().item() for value in expected.values())
    assert largest > 1e-3
    assert_same(found, expected, atol=2e-6 * max(1, largest), rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_process(case: str, base: Path, both: Path, tmp_path: Path) -> None:
    one = first_gradients(base, tmp_path / "unused", case, size=8)
    for rank in (0, 1):
        same_gradients(torch.load(both / f"{case}-{rank}.pt"), one)


@pytest.mark.parametrize("cache", ["whole", "cached"])
def test_accumulated_gradients_are_those_of_one_process(cache: str, base: Path, both: Path, tmp_path: Path) -> None:
    """Two times 4 texts in each process, against two times 8."""
    one = first_gradients(base, tmp_path / "unused", f"triplets {cache}", size=8, steps=2)
    for rank in (0, 1):
        same_gradients(torch.load(both / f"accumulated {cache}-{rank}.pt"), one)


def test_a_killed_run_goes_on(both: Path) -> None:
    """With dropout and gradient caching, since each process keeps its random state."""
    same_runs(both / "killed", both / "alone")


def test_accelerate_launch(base: Path, tmp_path: Path) -> None:
    """The script under accelerate's launcher, against one process with batches of twice the size."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port()), str(REPOSITORY / "run_contrastive.py")]
    flags = ["--encoder", base / "still", *data_flags(base, "supervised"), *STILL, "--per_device_eval_batch_size", 3]
    # The bias of the keys has no effect: AdamW with a tiny epsilon would blow the noise in its gradient up.
    flags += ["--adam_epsilon", "1e-6", "--picture_examples", 7, "--export_detached", "mean"]
    two = [*QUICK, "--output_dir", tmp_path / "two", *flags, "--per_device_train_batch_size", 4]
    run = subprocess.run([*launch, *map(str, two)], env=environment(), capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("| validation | spearman |") == 1, "one process reports"
    assert "| `batch` | 8 |" in (tmp_path / "two" / "README.md").read_text(), "there were two"
    assert (tmp_path / "two" / "detached" / "model.safetensors").is_file()

    contrastive(tmp_path / "one", *flags, "--per_device_train_batch_size", 8)
    assert_same(weights(tmp_path / "two"), weights(tmp_path / "one"), atol=2e-4, rtol=1e-3)
    one, two = (
        json.loads((tmp_path / name / "seed.json").read_text())["metrics"]["validation"] for name in ("one", "two")
    )
    assert two == pytest.approx(one, abs=1e-4)
