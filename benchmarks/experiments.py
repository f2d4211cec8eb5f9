"""Running many experiments with several seeds each, and putting their scores into tables.

An experiment is one command of a script of this repository. Its metrics go to `<results>/<name>.json`; one that is
there already is not run again, so a list of experiments can be run in pieces.
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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BASELINES = ("majority", "no_answer")  # what a task's answer without a model is called in its results
SEED_COLUMNS = ("mean", "std", "seeds 1 2 3")


def run_one(name: str, command: list[str], data: list[str], folder: Path, keep: bool = False) -> None:
    """Run one experiment and keep its metrics.

    Args:
        name: of the experiment.
        command: the script and its arguments.
        data: arguments that say where the data lies, and which are not written down.
        folder: where the metrics go.
        keep: keep its checkpoints as well, in `outputs/results/<name>`.
    """
    target, output = folder / f"{name}.json", ROOT / "outputs" / "results" / name
    if target.exists():
        return
    shutil.rmtree(output, ignore_errors=True)
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole = [sys.executable, *command, *data, "--output_dir", str(output)]
    done = subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        print(f"{name}: failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}", flush=True)
        return
    content = json.loads((output / "results.json").read_text(encoding="utf-8"))
    logs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(output.rglob("seed.json"))]
    dead = [entry["dead_scores"] for log in logs for entry in log["log"] if "dead_scores" in entry]
    record = {
        "command": " ".join(["python", *command, *(Path(word).name if "/" in word else word for word in data)]),
        "metrics": content["metrics"],
        **{name: content[name] for name in BASELINES if name in content},
        "seconds": round(seconds),
        "largest_share_of_dead_scores": max(dead, default=None),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if not keep:
        shutil.rmtree(output)
    print(f"{name}: {seconds:.0f} s", flush=True)


def read(folder: Path, name: str) -> dict | None:
    """What an experiment wrote down, if it was run."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def cells(folder: Path, name: str, split: str, metric: str, scale: float = 100) -> list[str]:
    """Mean, standard deviation and the seeds of one experiment."""
    record = read(folder, name)
    if record is None:
        return ["not run", "", ""]
    values = [scale * by_split[split][metric] for by_split in record["metrics"].values()]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return [f"{statistics.mean(values):.1f}", f"{spread:.1f}", " ".join(f"{value:.1f}" for value in values)]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]) + "\n"


def main(
    description: str | None,
    experiments: Mapping[str, list[str]],
    data: Callable[[str, str], list[str]],
    tables: Callable[[], str],
    folder: Path,
    dataset_dir: str,
) -> None:
    """The command line of a list of experiments: `run` or `tables`.

    Args:
        description: help text.
        experiments: name -> script and arguments, in the order to run them.
        data: the arguments that say where an experiment's data lies, of its name and `--dataset_dir`.
        tables: makes the tables.
        folder: of the metrics.
        dataset_dir: default of `--dataset_dir`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "tables"])
    parser.add_argument("--only", nargs="*", default=[""], help="Run the experiments whose names start so.")
    parser.add_argument("--workers", type=int, default=2, help="Experiments at a time, one thread each.")
    parser.add_argument("--keep", action="store_true", help="Keep the checkpoints, which ensembles are made of.")
    parser.add_argument("--dataset_dir", default=dataset_dir)
    options = parser.parse_args()
    if options.action == "tables":
        print(tables())
        return
    chosen = {name: command for name, command in experiments.items() if name.startswith(tuple(options.only))}
    with ThreadPoolExecutor(options.workers) as pool:
        futures = [
            pool.submit(run_one, name, command, data(name, options.dataset_dir), folder, options.keep)
            for name, command in chosen.items()
        ]
        for future in futures:
            future.result()
