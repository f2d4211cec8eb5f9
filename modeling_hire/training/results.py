"""What a run leaves to be read: metrics over several seeds, and the model card."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig

from ..hub import markdown_table, write_model_card
from .arguments import EncoderArguments, RunArguments
from .models import needs_code


if TYPE_CHECKING:
    from .preparation import Prepared


def seed_table(
    results: Mapping[int, Mapping[str, Mapping[str, float]]], baseline: Mapping[str, Any], baseline_name: str
) -> str:
    """A Markdown table with a row a split and metric: mean, sample standard deviation and every seed.

    Args:
        results: for each seed, each evaluation split's metrics.
        baseline: metrics of what needs no model, by split.
        baseline_name: what to call it.
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
    return markdown_table(header + ([baseline_name.replace("_", " ")] if baseline else []), rows)


def best_seed(metrics: Mapping[int, Mapping[str, Mapping[str, float]]], main_metric: str) -> int:
    """The seed with the best main metric on the first evaluation split; the first seed without any."""
    sign = -1 if main_metric == "loss" else 1
    return max(metrics, key=lambda seed: sign * next(iter(metrics[seed].values()), {}).get(main_metric, 0.0))


def repository_name(arguments: RunArguments) -> str:
    """The Hub repository to publish as: `hub_model_id`, or the output folder's name."""
    return arguments.hub_model_id or Path(arguments.output_dir).resolve().name


def write_card(
    folder: Path,
    prepared: Prepared,
    arguments: RunArguments,
    model_config: PreTrainedConfig,
    metrics: Mapping[str, Mapping[str, float]],
    weights: Mapping[int, float] | None,
) -> Path:
    """The model card of one seed, in its folder.

    Args:
        folder, prepared: of the seed.
        arguments: the seed's own.
        model_config: of the model that was saved.
        metrics: by evaluation split.
        weights: mean weight by hidden state, if the model weighs layers.
    """
    task, given = prepared.task, prepared.model_arguments
    spec, config = task.spec, model_config
    what, how = describe_model(config, given)
    description = f"{what}, fine-tuned on {spec.title}."
    if given.duplicate is not None:
        description += (
            f" Layers of the encoder were duplicated by the plan `{given.duplicate}`, "
            f"{'with shared weights' if given.tie else 'each copy with its own weights'} (arXiv 2001.09309)."
        )
    description += how
    kind = getattr(config, "encoder_config", config).model_type
    settings = {
        "seed": arguments.seed,
        "learning rate": arguments.learning_rate,
        "learning rate of new modules": arguments.new_learning_rate or arguments.learning_rate,
        "batch": arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size,
        "epochs": arguments.num_train_epochs,
        "encoder frozen": given.freeze_encoder,
        "peft": given.peft,
        **({} if given.duplicate is None else {"duplicated layers": given.duplicate, "copies tied": given.tie}),
        **task.settings(),
        **given.config_overrides(),
    }
    # A threshold is a setting for whoever uses the model, and no measure of it.
    thresholds = {
        f"{name} ({split})": f"{value:.4f}"
        for split, values in metrics.items()
        for name, value in values.items()
        if name.endswith("_thresh")
    }
    measured = {
        split: {name: value for name, value in values.items() if not name.endswith("_thresh")}
        for split, values in metrics.items()
    }
    return write_model_card(
        folder,
        title=f"{spec.title}: {what} on {prepared.base or f'a {kind} encoder'}",
        description=description,
        repository=repository_name(arguments),
        base_model=prepared.base,
        dataset=spec.hub_path,
        dataset_config=spec.hub_config,
        metrics=measured,
        settings=settings | thresholds,
        layer_weights=weights,
        custom_code=needs_code(config),
        auto_class=task.head.auto_class.__name__,
        pipeline=task.head.pipeline,
        usage=task.usage(),
        partial=task.partial_splits(),
    )


def describe_model(config: PreTrainedConfig, given: EncoderArguments) -> tuple[str, str]:
    """What a model is, for the title of its card, and a sentence on how it works."""
    if config.model_type.startswith("hire"):
        return (
            f"HIRE (preset `{given.preset}`)" if given.model == "hire" else "HIRE",
            " HIRE weighs the hidden layers of the encoder by the input and fuses their mixture with the last layer "
            "(Yang & Zhao, arXiv 1911.01940).",
        )
    if config.model_type == "layer_attn_pool":
        attends = config.pooler == "layer_attn"
        return (
            f"Sentence encoder (pooler `{config.pooler}`)",
            " Two vectors of each hidden layer, its first token and the mean of its tokens, are pooled by attention "
            "over the layers." * attends,
        )
    if config.model_type == "multi_task":
        return "Encoder with a head a task", ""
    if config.model_type == "elmo":
        return "ELMo", " ELMo mixes the layers of a forward and a backward LSTM (Peters et al., arXiv 1802.05365)."
    return "The plain last-layer head", ""
