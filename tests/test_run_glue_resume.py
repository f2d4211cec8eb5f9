"""A seed gives the same run twice, and a killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import QUICK, glue, killed_at, refused, same_runs, save_encoder, write_task

from modeling_hire.training.trainer import last_checkpoint


REPOSITORY = Path(__file__).resolve().parents[1]
STEPS = ("--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "2", "--save_steps", "2")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    write_task(folder / "data", "cola", train=30)
    return folder


@pytest.fixture(scope="module")
def flags(base: Path) -> tuple[Any, ...]:
    """Three epochs of four steps, with dropout, two learning rates and a short last batch."""
    named = ("--encoder", base / "encoder", "--task", "cola", "--dataset_dir", base / "data")
    return (*named, "--num_train_epochs", 3, "--new_learning_rate", "5e-3", "--preset", "paper-half")


@pytest.fixture(scope="module")
def alone(base: Path, flags: tuple[Any, ...]) -> Path:
    """A run that nobody disturbed, with checkpoints after steps 2, 4, ..., 12."""
    glue(base / "alone", *flags, *STEPS)
    return base / "alone"


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_a_seed_gives_the_same_run_twice(alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    glue(tmp_path / "again", *flags, *STEPS)
    same_runs(tmp_path / "again", alone)
    assert checkpoints(alone) == []


@pytest.mark.parametrize("step", [1, 7, 8, 12])
def test_a_killed_run_goes_on(step: int, alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    """Killed before the first checkpoint, inside the second epoch, after its last step, and after the last step."""
    with killed_at(step):
        glue(tmp_path / "run", *flags, *STEPS)
    assert bool(checkpoints(tmp_path / "run")) == (step > 2)
    assert not (tmp_path / "run" / "seed.json").exists()
    glue(tmp_path / "run", *flags, *STEPS, "--resume", "true")
    same_runs(tmp_path / "run", alone)


def test_a_run_killed_while_it_saves_goes_on(alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    """The newest checkpoint is no good: it lacks its last file, or a file is cut short."""
    with killed_at(7):
        glue(tmp_path / "run", *flags, *STEPS, "--save_total_limit", 3)
    newest = tmp_path / "run" / "checkpoint-6"
    assert last_checkpoint(tmp_path / "run") == str(newest)
    for file in ("trainer_state.json", "model.safetensors", "optimizer.pt"):
        content = (newest / file).read_bytes()
        (newest / file).write_bytes(content[: len(content) // 2])
        assert last_checkpoint(tmp_path / "run") == str(newest.with_name("checkpoint-4")), file
        (newest / file).write_bytes(content)
    (newest / "trainer_state.json").unlink()
    glue(tmp_path / "run", *flags, *STEPS, "--save_total_limit", 3, "--resume", "true")
    same_runs(tmp_path / "run", alone)


def test_early_stopping_remembers(base: Path, tmp_path: Path) -> None:
    """With a learning rate of almost nothing no evaluation is better than the first: it stops after four epochs."""
    named = ("--encoder", base / "encoder", "--task", "cola", "--dataset_dir", base / "data")
    flags = (*named, "--learning_rate", "1e-9", "--num_train_epochs", 9, "--early_stopping_patience", 3)
    glue(tmp_path / "alone", *flags)

    def evaluations(folder: Path) -> list[int]:
        log = json.loads((folder / "seed.json").read_text())["log"]
        return [entry["step"] for entry in log if "eval_loss" in entry]

    assert evaluations(tmp_path / "alone") == [4, 8, 12, 16]
    # Killed inside the fourth epoch, and after the evaluation that stops training.
    for name, step, event in (("inside", 13, "on_step_end"), ("stopped", 16, "on_save")):
        with killed_at(step, event):
            glue(tmp_path / name, *flags)
        glue(tmp_path / name, *flags, "--resume", "true")
        assert evaluations(tmp_path / name) == [4, 8, 12, 16], name
        same_runs(tmp_path / name, tmp_path / "alone")


def test_a_moved_run_goes_on(
    alone: Path, base: Path, flags: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started with relative paths, moved, and resumed from elsewhere."""
    monkeypatch.chdir(base)
    relative = ("--encoder", "encoder", "--task", "cola", "--dataset_dir", "data", *flags[6:], *STEPS)
    with killed_at(7):
        glue(Path("here"), *relative)
    monkeypatch.chdir(tmp_path)
    shutil.move(base / "here", tmp_path / "there")
    glue(Path("there"), *flags, *STEPS, "--resume", "true")
    same_runs(tmp_path / "there", alone)


def test_several_seeds_go_on(flags: tuple[Any, ...], tmp_path: Path) -> None:
    flags = (*flags, "--num_train_epochs", 1)
    glue(tmp_path / "alone", *flags, "--seeds", 1, 2)
    results = glue(tmp_path / "run", *flags, "--seeds", 1, 2)
    for file in ("results.json", "results.md", "seed-2/seed.json", "seed-2/model.safetensors"):
        (tmp_path / "run" / file).unlink()
    before = (tmp_path / "run" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    assert glue(tmp_path / "run", *flags, "--seeds", 1, 2, "--resume", "true") == results
    same_runs(tmp_path / "run" / "seed-2", tmp_path / "alone" / "seed-2")
    # One more seed later; those that are there are kept.
    more = glue(tmp_path / "run", *flags, "--seeds", 1, 2, 3, "--resume", "true")
    assert more["metrics"].keys() == {"1", "2", "3"} and more["metrics"]["1"] == results["metrics"]["1"]
    assert (tmp_path / "run" / "seed-1" / "model.safetensors").stat().st_mtime_ns == before
    assert "seeds=[1, 2, 3]" in refused(tmp_path / "run", *flags, "--seeds", 1, 2, "--resume", "true")


def test_a_finished_run_is_not_run_again(alone: Path, flags: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr("modeling_hire.training.running.make_trainer", never)
    before = json.loads((alone / "results.json").read_text())
    assert glue(alone, *flags, *STEPS, "--resume", "true") == before


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (("--learning_rate", "2e-3"), "learning_rate=0.001 there, 0.002 here"),
        (("--weighting", "mean"), "weighting=None there, 'mean' here"),
        (("--max_train_samples", "9"), "max_train_samples=None there, 9 here"),
        (("--seed", "7"), "seeds=[42], and seeds=[7]"),
        (("--seeds", "42", "7"), "seeds=[42], and seeds=[42, 7]"),
    ],
)
def test_other_arguments_are_refused(other: tuple[str, ...], said: str, alone: Path, flags: tuple[Any, ...]) -> None:
    assert said in refused(alone, *flags, *STEPS, *other, "--resume", "true")


def test_other_data_is_refused(alone: Path, base: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    shutil.copytree(base / "data", tmp_path / "data")
    message = refused(alone, *flags, *STEPS, "--dataset_dir", tmp_path / "data", "--resume", "true")
    assert "dataset_dir='data (" in message


def test_what_may_differ(alone: Path, flags: tuple[Any, ...]) -> None:
    glue(alone, *flags, *STEPS, "--resume", "true", "--keep_checkpoints", "true", "--dataloader_num_workers", 1)


def test_a_broken_run_file(alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"seed": 42')
    assert "run.json" in refused(tmp_path / "run", *flags, *STEPS, "--resume", "true")


@pytest.mark.slow
def test_a_process_killed_for_real_goes_on(alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, str(REPOSITORY / "run_glue.py"), *QUICK, "--output_dir", str(run)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log = (tmp_path / "log").open("w")
    child = subprocess.Popen([*command, *map(str, (*flags, *STEPS))], stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 300
        while not list(run.glob("checkpoint-*/trainer_state.json")) and child.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert not (run / "seed.json").exists()
    glue(run, *flags, *STEPS, "--resume", "true")
    same_runs(run, alone)
