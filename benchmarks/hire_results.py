"""The experiments of docs/results.md: every command, run in turn, and their tables.

    python benchmarks/hire_results.py run [--only PREFIX ...] [--workers 2] [--dataset_dir ../shared/data/glue]
    python benchmarks/hire_results.py tables

Each experiment is one `run_glue.py` command with three seeds on all-MiniLM-L6-v2. Its metrics go to
`benchmarks/results/hire/<name>.json`; one that is there already is not run again. Scores are those of the last epoch
on the development set: no checkpoint is chosen by them.
"""

from __future__ import annotations

import sys
from pathlib import Path


# So that it runs as a file as well as a module.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.experiments import RESULTS as ALL_RESULTS
from benchmarks.experiments import SEED_COLUMNS, cells, main, read, table


RESULTS = ALL_RESULTS / "hire"
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
MODELS = {
    "last": ["--model", "last"],
    "fast": ["--preset", "fast"],
    "paper-half": ["--preset", "paper-half"],
    "paper": ["--preset", "paper"],
}
COMMON = (
    "--seeds 1 2 3 --bf16 true --eval_strategy no --save_strategy no --load_best_model_at_end false "
    "--picture_examples 0 --disable_tqdm true --use_cpu true --logging_steps 20"
).split()
CAPS = {
    "cola": "--max_train_samples 2000 --num_train_epochs 3",
    "rte": "--max_train_samples 250 --num_train_epochs 2",
}
FROZEN = (
    "--freeze_encoder true --num_train_epochs 3 --max_train_samples 800 --max_eval_samples 300 "
    "--max_predict_samples 1 --learning_rate 1e-3 --new_learning_rate 1e-3"
)


def experiments() -> dict[str, list[str]]:
    """Name to command, in the order to run them."""

    def command(task: str, *parts: str | list[str]) -> list[str]:
        flags = [flag for part in parts for flag in (part.split() if isinstance(part, str) else part)]
        return ["run_glue.py", f"configs/hire/minilm/{task}.yaml", *COMMON, *flags]

    plan = {f"models-cola-{model}": command("cola", CAPS["cola"], flags) for model, flags in MODELS.items()}
    for weighting in ("mean", "random", "static", "last"):
        plan[f"weighting-cola-{weighting}"] = command("cola", CAPS["cola"], f"--weighting {weighting}")
    for layers in (0, 2, 3):
        plan[f"fusion-cola-{layers}"] = command("cola", CAPS["cola"], f"--fusion_num_layers {layers}")
    for width in (96, 384):
        plan[f"width-cola-{width}"] = command("cola", CAPS["cola"], f"--fusion_hidden_size {width}")
    for task in TASKS:
        for model in ("last", "fast"):
            plan[f"frozen-{task}-{model}"] = command(task, FROZEN, MODELS[model])
    for model, flags in MODELS.items():
        plan[f"models-rte-{model}"] = command("rte", CAPS["rte"], flags)
    return plan


def scores(name: str, split: str, metric: str) -> list[str]:
    """Mean, standard deviation and the seeds of one experiment."""
    return cells(RESULTS, name, split, metric)


def tables() -> str:
    """All tables of docs/results.md, with the metrics times 100."""
    seeds = list(SEED_COLUMNS)
    mcc = ("validation", "matthews_correlation")
    parts = ["### CoLA and RTE\n"]
    rows = [
        [
            model,
            *scores(f"models-cola-{model}", *mcc),
            *scores(f"models-rte-{model}", "validation", "accuracy"),
        ]
        for model in MODELS
    ]
    parts.append(table(["model", *(f"CoLA {s}" for s in seeds), *(f"RTE {s}" for s in seeds)], rows))
    parts.append("### Weighting (preset `fast`, CoLA)\n")
    names = {"dynamic": "models-cola-fast"} | {w: f"weighting-cola-{w}" for w in ("mean", "random", "static", "last")}
    parts.append(table(["weighting", *seeds], [[w, *scores(name, *mcc)] for w, name in names.items()]))
    parts.append("### Fusion layers (preset `fast`, CoLA)\n")
    depths = {"0": "fusion-cola-0", "1": "models-cola-fast", "2": "fusion-cola-2", "3": "fusion-cola-3"}
    parts.append(table(["fusion_num_layers", *seeds], [[d, *scores(name, *mcc)] for d, name in depths.items()]))
    parts.append("### Fusion width (preset `fast`, CoLA)\n")
    widths = {"96 (d/4)": "width-cola-96", "192 (d/2)": "models-cola-fast", "384 (d)": "width-cola-384"}
    parts.append(table(["fusion_hidden_size", *seeds], [[w, *scores(name, *mcc)] for w, name in widths.items()]))
    parts.append("### Frozen encoder\n")
    rows = []
    for task in TASKS:
        metric = {"cola": "matthews_correlation", "stsb": "combined_score", "mrpc": "f1", "qqp": "f1"}.get(
            task, "accuracy"
        )
        split = "validation_matched" if task == "mnli" else "validation"
        last, fast = (scores(f"frozen-{task}-{model}", split, metric) for model in ("last", "fast"))
        record = read(RESULTS, f"frozen-{task}-last")
        floor = "" if record is None else f"{100 * record['majority'][split][metric]:.1f}"
        rows.append([task, metric, floor, *last, *fast])
    parts.append(
        table(["task", "metric", "majority", *(f"last {s}" for s in seeds), *(f"fast {s}" for s in seeds)], rows)
    )
    return "\n".join(parts)


if __name__ == "__main__":
    main(
        __doc__,
        experiments(),
        lambda name, folder: ["--dataset_dir", folder],
        tables,
        RESULTS,
        dataset_dir="../shared/data/glue",
    )
