"""Two processes on this machine do what one does with batches of twice the size.

Where the rows do not fill the last step, accelerate repeats some of them so that all processes have as many batches;
such a step is not that of one process. The data here fills every step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import assert_same, gradients
from tiny_processes import REPOSITORY, environment, free_port, run_together
from tiny_runs import NO_DROPOUT, QUICK, glue, killed_at, prepared, same_runs, save_encoder, weights, write_task
from transformers import TrainerCallback


pytestmark = pytest.mark.slow
TASKS = [(task, model) for task in ("cola", "stsb") for model in ("hire", "last")]
STEPS = ("--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "3", "--save_steps", "3")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "still", **NO_DROPOUT)
    for task in ("cola", "stsb"):
        write_task(folder / "data", task, train=32, evaluation=11)
    return folder


def flags_of(base: Path, task: str = "cola", model: str = "hire") -> tuple[Any, ...]:
    still = ("--hire_dropout", 0, "--preset", "paper-half") if model == "hire" else ("--model", "last")
    return ("--encoder", base / "still", "--dataset_dir", base / "data", "--task", task, *still)


class Look(TrainerCallback):
    """Keeps the gradients of the first step."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.gradients = {name.removeprefix("module."): value for name, value in gradients(model).items()}


def first_gradients(base: Path, output: Path, task: str, model: str, size: int, steps: int) -> dict[str, torch.Tensor]:
    """The gradients with which the trainer takes its first step, of batches of `size`, `steps` of them accumulated."""
    from modeling_hire.training.running import make_trainer

    sizes = ("--per_device_train_batch_size", size, "--gradient_accumulation_steps", steps, "--max_steps", 2)
    no = ("--save_strategy", "no", "--eval_strategy", "no", "--load_best_model_at_end", "false", "--max_grad_norm", 0)
    run = prepared(output, *flags_of(base, task, model), *sizes, *no)
    trainer, look = make_trainer(run, *run.model(42), run.arguments), Look()
    trainer.add_callback(look)
    trainer.train()
    if run.arguments.world_size > 1:
        assert trainer.model_wrapped.find_unused_parameters is False
    return look.gradients


def work(rank: int, base: Path, output: Path) -> None:
    """What each of the processes does, one after the other."""
    for task, model in TASKS:
        found = first_gradients(base, output / "unused", task, model, size=4, steps=2)
        torch.save(found, output / f"{task}-{model}-{rank}.pt")
    flags = (*flags_of(base), *STEPS, "--per_device_train_batch_size", 2, "--hire_dropout", 0.1)
    glue(output / "alone", *flags)
    with killed_at(13):  # inside the second of two epochs of eight steps
        glue(output / "killed", *flags)
    glue(output / "killed", *flags, "--resume", "true")


@pytest.fixture(scope="module")
def both(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left."""
    output = tmp_path_factory.mktemp("both")
    run_together(work, base, output)
    return output


@pytest.mark.parametrize(("task", "model"), TASKS)
def test_gradients_are_those_of_one_process(task: str, model: str, base: Path, both: Path, tmp_path: Path) -> None:
    """Two processes with two batches of 4 each, against one with a batch of 16."""
    one = first_gradients(base, tmp_path / "unused", task, model, size=16, steps=1)
    assert max(value.abs().max().item() for value in one.values()) > 1e-3
    for rank in (0, 1):
        assert_same(torch.load(both / f"{task}-{model}-{rank}.pt"), one, atol=1e-6, rtol=1e-4)


def test_a_killed_run_goes_on(both: Path) -> None:
    """Each process goes on with the rows that were its own; with dropout, since each keeps its random state."""
    same_runs(both / "killed", both / "alone")


def test_accelerate_launch(base: Path, tmp_path: Path) -> None:
    """The script under accelerate's launcher, against one process with batches of twice the size."""
    # What starts several processes here is `--multi_gpu`: with `--cpu` they are left to MPI. The script's `--use_cpu`
    # makes them use gloo.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port()), str(REPOSITORY / "run_glue.py")]
    flags = [*flags_of(base), "--picture_examples", 7, "--per_device_eval_batch_size", 3]
    two = [*QUICK, "--output_dir", tmp_path / "two", *flags, "--per_device_train_batch_size", 4]
    run = subprocess.run([*launch, *map(str, two)], env=environment(), capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("| validation | matthews_correlation |") == 1, "one process reports"
    assert "| `batch` | 8 |" in (tmp_path / "two" / "README.md").read_text(), "there were two"

    glue(tmp_path / "one", *flags, "--per_device_train_batch_size", 8)
    assert_same(weights(tmp_path / "two"), weights(tmp_path / "one"), atol=2e-4, rtol=1e-3)
    metrics = [json.loads((tmp_path / name / "seed.json").read_text())["metrics"] for name in ("one", "two")]
    assert metrics[0] == metrics[1]
    for name in ("CoLA.tsv", "results.md"):
        assert (tmp_path / "one" / name).read_text() == (tmp_path / "two" / name).read_text()
    report = json.loads((tmp_path / "two" / "layer_importance.json").read_text())
    assert report["num_examples"] == 7
