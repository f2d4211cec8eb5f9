"""What a run leaves to be read: metrics over several seeds, the majority baseline, and the model card."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import EvalPrediction

from ..data.loading import TaskData
from ..hub import markdown_table, write_model_card
from .arguments import RunArguments


if TYPE_CHECKING:
    from .preparation import Prepared


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


def best_seed(metrics: Mapping[int, Mapping[str, Mapping[str, float]]], main_metric: str) -> int:
    """The seed with the best main metric on the first evaluation split; the first seed without any."""
    return max(metrics, key=lambda seed: next(iter(metrics[seed].values()), {}).get(main_metric, 0.0))


def repository_name(arguments: RunArguments) -> str:
    """The Hub repository to publish as: `hub_model_id`, or the output folder's name."""
    return arguments.hub_model_id or Path(arguments.output_dir).resolve().name


def write_card(
    folder: Path,
    prepared: Prepared,
    arguments: RunArguments,
    metrics: Mapping[str, Mapping[str, float]],
    weights: Mapping[int, float] | None,
) -> Path:
    """The model card of one seed, in its folder.

    Args:
        folder, prepared: of the seed.
        arguments: the seed's own.
        metrics: by evaluation split.
        weights: mean weight by hidden state, if the model weighs layers.
    """
    spec, given, config = prepared.data.spec, prepared.model_arguments, prepared.config
    is_plain = given.model == "last"
    what = {"hire": f"HIRE (preset `{given.preset}`)", "last": "The plain last-layer head"}.get(given.model, "HIRE")
    description = f"{what}, fine-tuned on {spec.title}."
    if not is_plain:
        description += (
            " HIRE weighs the hidden layers of the encoder by the input and fuses their mixture with the last layer "
            "(Yang & Zhao, arXiv 1911.01940)."
        )
    kind = getattr(config, "encoder_config", config).model_type
    settings = {
        "seed": arguments.seed,
        "learning rate": arguments.learning_rate,
        "learning rate of new modules": arguments.new_learning_rate or arguments.learning_rate,
        "batch": arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size,
        "epochs": arguments.num_train_epochs,
        "encoder frozen": given.freeze_encoder,
        "peft": given.peft,
        "training rows": 0 if prepared.train is None else len(prepared.train),
        "longest input": prepared.data_arguments.max_length,
    } | given.config_overrides()
    return write_model_card(
        folder,
        title=f"{spec.title}: {what} on {prepared.base or f'a {kind} encoder'}",
        description=description,
        repository=repository_name(arguments),
        base_model=prepared.base,
        dataset=spec.hub_path,
        dataset_config=spec.hub_config,
        metrics=metrics,
        settings=settings,
        layer_weights=weights,
        custom_code=not is_plain,
    )
