"""The experiments of docs/results.md: every command, run in turn, and their tables.

    python benchmarks/hire_results.py run [--only PREFIX ...] [--workers 2] [--dataset_dir ../shared/data/glue]
    python benchmarks/hire_results.py tables

Each experiment is one `run_glue.py` command with three seeds on all-MiniLM-L6-v2. Its metrics go to
`benchmarks/results/hire/<name>.json`; one that is there already is not run again. Scores are those of the last epoch
on the development set: no checkpoint is chosen by them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


HERE = Path(__file__).resolve().parent
ROOT, RESULTS = HERE.parent, HERE / "results" / "hire"
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
    """Name to arguments of `run_glue.py`, in the order to run them."""

    def command(task: str, *parts: str | list[str]) -> list[str]:
        flags = [flag for part in parts for flag in (part.split() if isinstance(part, str) else part)]
        return [f"configs/hire/minilm/{task}.yaml", *COMMON, *flags]

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


def run_one(name: str, arguments: list[str], dataset_dir: str) -> None:
    """Run one experiment and keep its metrics; the checkpoints are not kept."""
    target, output = RESULTS / f"{name}.json", ROOT / "outputs" / "results" / name
    if target.exists():
        return
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "run_glue.py", *arguments, "--output_dir", str(output)]
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--dataset_dir", dataset_dir], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        print(f"{name}: failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}", flush=True)
        return
    content = json.loads((output / "results.json").read_text(encoding="utf-8"))
    flags = " ".join(arguments)
    logs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(output.glob("seed-*/seed.json"))]
    dead = [entry["dead_scores"] for log in logs for entry in log["log"] if "dead_scores" in entry]
    record = {
        "command": f"python run_glue.py {flags} --dataset_dir DIR --output_dir OUT",
        "metrics": content["metrics"],
        "majority": content["majority"],
        "seconds": round(seconds),
        "largest_share_of_dead_scores": max(dead, default=None),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(output)
    print(f"{name}: {seconds:.0f} s", flush=True)


def cells(name: str, split: str, metric: str) -> list[str]:
    """Mean, standard deviation and the seeds of one experiment."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return ["not run", "", ""]
    metrics = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    values = [100 * by_split[split][metric] for by_split in metrics.values()]
    return [f"{statistics.mean(values):.1f}", f"{statistics.stdev(values):.1f}", " ".join(f"{v:.1f}" for v in values)]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]) + "\n"


def tables() -> str:
    """All tables of docs/results.md, with the metrics times 100."""
    seeds = ["mean", "std", "seeds 1 2 3"]
    mcc = ("validation", "matthews_correlation")
    parts = ["### CoLA and RTE\n"]
    rows = [
        [model, *cells(f"models-cola-{model}", *mcc), *cells(f"models-rte-{model}", "validation", "accuracy")]
        for model in MODELS
    ]
    parts.append(table(["model", *(f"CoLA {s}" for s in seeds), *(f"RTE {s}" for s in seeds)], rows))
    parts.append("### Weighting (preset `fast`, CoLA)\n")
    names = {"dynamic": "models-cola-fast"} | {w: f"weighting-cola-{w}" for w in ("mean", "random", "static", "last")}
    parts.append(table(["weighting", *seeds], [[w, *cells(name, *mcc)] for w, name in names.items()]))
    parts.append("### Fusion layers (preset `fast`, CoLA)\n")
    depths = {"0": "fusion-cola-0", "1": "models-cola-fast", "2": "fusion-cola-2", "3": "fusion-cola-3"}
    parts.append(table(["fusion_num_layers", *seeds], [[d, *cells(name, *mcc)] for d, name in depths.items()]))
    parts.append("### Fusion width (preset `fast`, CoLA)\n")
    widths = {"96 (d/4)": "width-cola-96", "192 (d/2)": "models-cola-fast", "384 (d)": "width-cola-384"}
    parts.append(table(["fusion_hidden_size", *seeds], [[w, *cells(name, *mcc)] for w, name in widths.items()]))
    parts.append("### Frozen encoder\n")
    rows = []
    for task in TASKS:
        metric = {"cola": "matthews_correlation", "stsb": "combined_score", "mrpc": "f1", "qqp": "f1"}.get(
            task, "accuracy"
        )
        split = "validation_matched" if task == "mnli" else "validation"
        last, fast = (cells(f"frozen-{task}-{model}", split, metric) for model in ("last", "fast"))
        path = RESULTS / f"frozen-{task}-last.json"
        floor = ""
        if path.exists():
            floor = f"{100 * json.loads(path.read_text(encoding='utf-8'))['majority'][split][metric]:.1f}"
        rows.append([task, metric, floor, *last, *fast])
    parts.append(
        table(["task", "metric", "majority", *(f"last {s}" for s in seeds), *(f"fast {s}" for s in seeds)], rows)
    )
    return "\n".join(parts)


def main() -> None:
    """Run the experiments, or print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "tables"])
    parser.add_argument("--only", nargs="*", default=[""], help="Run the experiments whose names start so.")
    parser.add_argument("--workers", type=int, default=2, help="Experiments at a time, one thread each.")
    parser.add_argument("--dataset_dir", default="../shared/data/glue")
    options = parser.parse_args()
    if options.action == "tables":
        print(tables())
        return
    chosen = {name: flags for name, flags in experiments().items() if name.startswith(tuple(options.only))}
    with ThreadPoolExecutor(options.workers) as pool:
        for future in [pool.submit(run_one, name, flags, options.dataset_dir) for name, flags in chosen.items()]:
            future.result()


if __name__ == "__main__":
    main()
