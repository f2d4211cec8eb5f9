"""Two processes answer questions as one does with batches of twice the size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import assert_same
from tiny_processes import REPOSITORY, environment, free_port
from tiny_runs import NO_DROPOUT, weights
from tiny_squad import QUICK, save_encoder, squad, write_folder


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", ["hire", "last"])
def test_accelerate_launch(model: str, tmp_path: Path) -> None:
    """24 windows, which fill three steps; 11 questions to evaluate, which do not."""
    save_encoder(tmp_path / "still", **NO_DROPOUT)
    write_folder(tmp_path / "data")
    flags = ["--encoder", tmp_path / "still", "--task", "squad_v2", "--dataset_dir", tmp_path / "data"]
    flags += ["--max_length", 64, "--doc_stride", 30, "--per_device_eval_batch_size", 3, "--model", model]
    flags += ["--hire_dropout", 0] if model == "hire" else []
    # The bias of the keys has no effect: AdamW with a tiny epsilon would blow the noise in its gradient up.
    flags += ["--adam_epsilon", "1e-6"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port()), str(REPOSITORY / "run_squad.py")]
    two = [*QUICK, "--output_dir", tmp_path / "two", *flags, "--per_device_train_batch_size", 4]
    run = subprocess.run([*launch, *map(str, two)], env=environment(), capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("| validation | f1 |") == 1, "one process reports"

    squad(tmp_path / "one", *flags, "--per_device_train_batch_size", 8)
    assert_same(weights(tmp_path / "two"), weights(tmp_path / "one"), atol=2e-4, rtol=1e-3)
    for name in ("predictions.json", "results.md"):
        one, other = ((tmp_path / folder / name).read_text() for folder in ("one", "two"))
        if name == "predictions.json":
            assert json.loads(one) == json.loads(other)
        else:
            assert one.splitlines()[:4] == other.splitlines()[:4], "exact match and F1"
