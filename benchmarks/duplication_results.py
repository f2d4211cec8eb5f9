"""The experiments on layer duplication of docs/results.md: every command, run in turn, and their tables.

    python benchmarks/duplication_results.py run [--only PREFIX ...] [--workers 2] [--dataset_dir ../shared/data]
    python benchmarks/duplication_results.py tables

Each experiment is one command with three seeds on all-MiniLM-L6-v2 (6 layers): the original (`all:1`), and `first:k`
duplication, with the same settings. Scores are those of the last epoch on the development set: no checkpoint is
chosen by them.
"""

from __future__ import annotations

import sys
from pathlib import Path


# So that it runs as a file as well as a module.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.experiments import RESULTS as ALL_RESULTS
from benchmarks.experiments import SEED_COLUMNS, cells, main, table


RESULTS = ALL_RESULTS / "duplication"
MODELS = {
    "original": ["--duplicate", "all:1"],
    "first-1": ["--duplicate", "first:1"],
    "first-3": ["--duplicate", "first:3"],
    "first-3-tied": ["--duplicate", "first:3", "--tie", "true"],
}
# Task: configuration, script, the models to run, and the split and metrics to show.
TASKS = {
    "sst2": ("run_glue.py", list(MODELS), "validation", {"accuracy": 100}),
    "snli": ("run_glue.py", list(MODELS), "validation", {"accuracy": 100}),
    "squad_v2": ("run_squad.py", ["original", "first-3"], "validation", {"exact": 1, "f1": 1}),
}


def experiments() -> dict[str, list[str]]:
    """Name to command, in the order to run them."""
    plan = {}
    for task, (script, models, *_) in TASKS.items():
        for model in models:
            plan[f"{task}-{model}"] = [script, f"configs/duplication/minilm/{task}.yaml", *MODELS[model]]
    return plan


def data(name: str, folder: str) -> list[str]:
    """Where a task's data lies under `--dataset_dir`."""
    if name.startswith("squad_v2-"):
        # Only 7 % of the questions of `train` are unanswerable; half of the others are.
        train = [f"{folder}/squad_v2/{file}" for file in ("train.json.gz", "train_extra_from_dev.json")]
        return ["--train_file", *train, "--validation_file", f"{folder}/squad_v2/dev.json"]
    return ["--dataset_dir", f"{folder}/glue" if name.startswith("sst2-") else folder]


def tables() -> str:
    """All tables, with the metrics in per cent."""
    parts = []
    for task, (_, models, split, metrics) in TASKS.items():
        header = ["model", *(f"{metric} {column}" for metric in metrics for column in SEED_COLUMNS)]
        rows = []
        for model in models:
            scores = [cells(RESULTS, f"{task}-{model}", split, *metric) for metric in metrics.items()]
            rows.append([model, *(cell for score in scores for cell in score)])
        parts.append(f"### {task}\n\n{table(header, rows)}")
    return "\n".join(parts)


if __name__ == "__main__":
    main(__doc__, experiments(), data, tables, RESULTS, dataset_dir="../shared/data")
