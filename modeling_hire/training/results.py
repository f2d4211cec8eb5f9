"""Metrics of one run over several seeds: files, a table, and the majority baseline."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import EvalPrediction

from ..data.loading import TaskData
from ..hub import markdown_table


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2, sort_keys=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def majority_baseline(
    data: TaskData, compute_metrics: Callable[[EvalPrediction], dict[str, float]], alignment: list[int] | None
) -> dict[str, dict[str, float]]:
    """Metrics of always answering with the most frequent training label (or the mean training score)."""
    if data.train is None:
        return {}
    answers = np.asarray(data.train["label"])
    scores: dict[str, dict[str, float]] = {}
    for split, dataset in data.evaluation.items():
        labels = np.asarray(dataset["label"])
        if data.spec.is_regression:
            predictions = np.full((len(labels), 1), answers.mean())
        else:
            answer = int(np.bincount(answers).argmax())
            ids = range(data.spec.num_labels) if alignment is None else alignment
            predictions = np.zeros((len(labels), max(ids) + 1))
            predictions[:, ids[answer]] = 1.0
            labels = np.asarray(ids)[labels]
        scores[split] = compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))
    return scores


def seed_table(results: Mapping[int, Mapping[str, Mapping[str, float]]], baseline: Mapping[str, Any]) -> str:
    """A Markdown table with a row a split and metric: mean, sample standard deviation and every seed.

    Args:
        results: for each seed, each evaluation split's metrics.
        baseline: the majority baseline's metrics, by split.
    """
    first = next(iter(results.values()))
    rows = []
    for split, metrics in first.items():
        for name in metrics:
            values = [by_split[split][name] for by_split in results.values()]
            spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
            floor = baseline.get(split, {}).get(name)
            rows.append(
                [split, name, f"{statistics.mean(values):.4f}", spread, *(f"{value:.4f}" for value in values)]
                + ([] if not baseline else ["" if floor is None else f"{floor:.4f}"])
            )
    header = ["split", "metric", "mean", "std", *(f"seed {seed}" for seed in results)]
    return markdown_table(header + (["majority"] if baseline else []), rows)
