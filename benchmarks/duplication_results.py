"""The experiments on layer duplication of docs/results.md: every command, run in turn, and their tables.

    python benchmarks/duplication_results.py run --keep [--only PREFIX ...] [--workers 2] [--dataset_dir DIR]
    python benchmarks/duplication_results.py tables

Each experiment is one command with three seeds on all-MiniLM-L6-v2 (6 layers): the original (`all:1`), and `first:k`
duplication, with the same settings. Scores are those of the last epoch on the development set: no checkpoint is
chosen by them. Ensembles are made of the kept checkpoints: of one model with three seeds, and of both models.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path


# So that it runs as a file as well as a module.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.experiments import RESULTS as ALL_RESULTS
from benchmarks.experiments import SEED_COLUMNS, cells, main, read, table


RESULTS = ALL_RESULTS / "duplication"
MODELS = {
    "original": ["--duplicate", "all:1"],
    "first-1": ["--duplicate", "first:1"],
    "first-3": ["--duplicate", "first:3"],
    "first-3-tied": ["--duplicate", "first:3", "--tie", "true"],
}
QUESTIONS = {"exact": 1, "f1": 1, "best_f1": 1, "HasAns_f1": 1}
# Task: configuration, script, the models to run, and the split and metrics to show.
TASKS = {
    "sst2": ("run_glue.py", ["original", "first-3", "first-3-tied"], "validation", {"accuracy": 100}),
    "snli": ("run_glue.py", ["original", "first-3"], "validation", {"accuracy": 100}),
    "squad_v2": ("run_squad.py", ["original", "first-3"], "validation", QUESTIONS),
}
# What the ensembles are made of, and how they read: as their members in training.
MEMBERS = {"original": ["original"], "first-3": ["first-3"], "both": ["original", "first-3"]}
ENSEMBLES = {
    "sst2": ["--max_length", "64", "--max_eval_samples", "1500"],
    "squad_v2": [
        *("--max_length", "192", "--doc_stride", "64", "--max_query_length", "48", "--max_eval_samples", "600"),
    ],
}


def experiments() -> dict[str, list[str]]:
    """Name to command, in the order to run them."""
    plan = {}
    for task, (script, models, *_) in TASKS.items():
        for model in models:
            plan[f"{task}-{model}"] = [script, f"configs/duplication/minilm/{task}.yaml", *MODELS[model]]
    for task, reading in ENSEMBLES.items():
        for name, models in MEMBERS.items():
            members = [f"outputs/results/{task}-{model}/seed-{seed}" for model in models for seed in (1, 2, 3)]
            command = [TASKS[task][0], "--task", task, *reading, "--use_cpu", "true", "--ensemble", *members]
            plan[f"{task}-ensemble-{name}"] = command
    return plan


def data(name: str, folder: str) -> list[str]:
    """Where a task's data lies under `--dataset_dir`."""
    if name.startswith("squad_v2-"):
        # Only 7 % of the questions of `train` are unanswerable; half of the others are.
        train = [f"{folder}/squad_v2/{file}" for file in ("train.json.gz", "train_extra_from_dev.json")]
        test = ["--validation_file", f"{folder}/squad_v2/dev.json"]
        return test if "-ensemble-" in name else ["--train_file", *train, *test]
    return ["--dataset_dir", f"{folder}/glue" if name.startswith("sst2-") else folder]


def tables() -> str:
    """All tables, with the metrics in per cent."""
    parts = []
    for task, (_, models, split, metrics) in TASKS.items():
        header = ["metric", "model", *SEED_COLUMNS]
        rows = [
            [metric, model, *cells(RESULTS, f"{task}-{model}", split, metric, scale)]
            for metric, scale in metrics.items()
            for model in models
        ]
        parts.append(f"### {task}\n\n{table(header, rows)}")
    for task in ENSEMBLES:
        _, _, split, metrics = TASKS[task]
        rows = []
        for name in MEMBERS:
            record = read(RESULTS, f"{task}-ensemble-{name}")
            if record is None:
                rows.append([name, "not run", "", "", "", ""])
                continue
            *members, together = [by_split[split] for by_split in record["metrics"].values()]
            for metric, scale in metrics.items():
                alone = [scale * member[metric] for member in members if metric in member]
                if metric in together:
                    cells_of_row = [statistics.mean(alone), max(alone), scale * together[metric]]
                    rows.append([name, str(len(members)), metric, *(f"{value:.1f}" for value in cells_of_row)])
        header = ["members", "number", "metric", "mean of members", "best member", "ensemble"]
        parts.append(f"### {task}: ensembles\n\n{table(header, rows)}")
    return "\n".join(parts)


if __name__ == "__main__":
    main(__doc__, experiments(), data, tables, RESULTS, dataset_dir="../shared/data")
