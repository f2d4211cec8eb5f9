"""One run: fine-tune a model on a task with each seed, evaluate, explain, and save what can be published."""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, PreTrainedModel
from transformers.trainer_utils import IntervalStrategy

from ..hub import publish, write_json
from .arguments import RunArguments
from .callbacks import DeadScorerCallback, TraceCallback, trace_of
from .models import weighs_layers
from .preparation import RESULTS_FILE, RUN_FILE, SEED_FILE, Prepared, is_finished
from .results import best_seed, repository_name, seed_table, write_card
from .trainer import LayerwiseTrainer, last_checkpoint


def train(prepared: Prepared) -> dict[str, Any]:
    """Fine-tune with each of `arguments.seeds` and write models, metrics, pictures and cards.

    With one seed everything is in `output_dir`; with several, each seed has a folder `seed-N` in it. `results.json`
    and `results.md` in `output_dir` hold the metrics of all seeds.

    Returns:
        What `results.json` holds: `arguments`, `metrics` by seed, split and name, the metrics of what needs no model
        under the task's `baseline_name`, and `folders` by seed.
    """
    arguments, folders, task = prepared.arguments, prepared.folders, prepared.task
    output = Path(arguments.output_dir)
    main = arguments.process_index == 0
    # No process writes before the last one has looked at the output folder.
    PartialState().wait_for_everyone()
    if main and task.notes:
        print("\n".join(task.notes))

    metrics: dict[int, dict[str, dict[str, float]]] = {}
    for seed, folder in folders.items():
        if is_finished(folder, arguments.resume):
            metrics[seed] = json.loads((folder / SEED_FILE).read_text(encoding="utf-8"))["metrics"]
        else:
            metrics[seed] = train_seed(seed, prepared)

    baseline = task.baseline()
    results = {
        "arguments": prepared.identity,
        "metrics": {str(seed): values for seed, values in metrics.items()},
        task.baseline_name: baseline,
        "folders": {str(seed): folder.name if folder != output else "." for seed, folder in folders.items()},
    }
    if main and task.evaluation:
        table = seed_table(metrics, baseline, task.baseline_name)
        write_json(output / RESULTS_FILE, results)
        (output / "results.md").write_text(table + "\n", encoding="utf-8")
        print(f"\n{task.spec.title}, model={prepared.model_arguments.model}\n\n{table}\n")
    if main and arguments.push_to_hub:
        publish(
            folders[best_seed(metrics, task.spec.main_metric)],
            repository_name(arguments),
            private=bool(arguments.hub_private_repo),
            token=arguments.hub_token,
        )
    return results


def train_seed(seed: int, prepared: Prepared) -> dict[str, dict[str, float]]:
    """Train with one seed; write model, predictions, layer picture and card. Returns metrics by split."""
    task, folder = prepared.task, prepared.folders[seed]
    model, new = prepared.model(seed)
    arguments = copy.copy(prepared.arguments)
    arguments.output_dir, arguments.seed, arguments.push_to_hub = str(folder), seed, False
    if task.train is None:
        arguments.eval_strategy = IntervalStrategy.NO  # during training, of which there is none
    best_metric = arguments.best_metric or task.spec.main_metric
    arguments.metric_for_best_model, arguments.greater_is_better = f"eval_{best_metric}", best_metric != "loss"
    main = arguments.process_index == 0
    if main:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RUN_FILE, {"seed": seed, "arguments": prepared.identity})

    trainer = make_trainer(prepared, model, new, arguments)
    if arguments.trace_steps is not None and task.evaluation:
        trainer.add_callback(TraceCallback(trainer, next(iter(task.evaluation.values())), arguments.trace_steps))
    seconds = 0.0
    if task.train is not None:
        started = time.perf_counter()
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
        seconds = time.perf_counter() - started

    metrics = evaluate(trainer, prepared)
    predict(trainer, prepared, folder)
    published = save(trainer, folder, prepared.model_arguments.peft is not None)
    if main:
        task.finish(published, prepared.tokenizer, arguments, folder)
        weights = explain(published, trainer, prepared, folder)
        write_card(folder, prepared, arguments, published.config, metrics, weights)
        named = {"loss", "train_loss", f"eval_{best_metric}"}
        log = [entry for entry in trainer.state.log_history if named & entry.keys()]
        content = {"seed": seed, "metrics": metrics, "train_seconds": seconds, "log": log}
        if arguments.trace_steps is not None:
            content["trace"] = trace_of(trainer.state, task.metric_names)
        write_json(folder / SEED_FILE, content)
        if not arguments.keep_checkpoints:
            for checkpoint in folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
    trainer.accelerator.wait_for_everyone()
    return metrics


def make_trainer(
    prepared: Prepared, model: PreTrainedModel, new: set[str], arguments: RunArguments
) -> LayerwiseTrainer:
    """The trainer of one seed."""
    task = prepared.task
    callbacks = [DeadScorerCallback()]
    if arguments.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(arguments.early_stopping_patience))
    return task.make_trainer(
        model=model,
        args=arguments,
        train_dataset=task.train,
        eval_dataset=next(iter(task.evaluation.values()), None),
        processing_class=prepared.tokenizer,
        data_collator=task.collator(prepared.tokenizer, 8 if arguments.fp16 else None),
        compute_metrics=task.compute_metrics,
        compute_loss_func=task.loss(model, arguments, prepared.model_arguments.model == "last"),
        callbacks=callbacks,
        new_parameters=new,
    )


def evaluate(trainer: LayerwiseTrainer, prepared: Prepared) -> dict[str, dict[str, float]]:
    """The task's metrics on each evaluation split; writes its predictions for them, if it has any to show."""
    task = prepared.task
    metrics: dict[str, dict[str, float]] = {}
    for split, rows in task.evaluation.items():
        output = trainer.predict(rows, metric_key_prefix="m")
        scores = output.metrics
        metrics[split] = {name: float(scores[f"m_{name}"]) for name in task.metric_names if f"m_{name}" in scores}
        if trainer.is_world_process_zero():
            task.write_evaluation(Path(trainer.args.output_dir), split, output.predictions)
    return metrics


def predict(trainer: LayerwiseTrainer, prepared: Prepared, folder: Path) -> None:
    """Write the predictions for each test split."""
    for split, rows in prepared.task.test.items():
        decoded = prepared.task.decode(split, trainer.predict(rows).predictions)
        if trainer.is_world_process_zero():
            for path in prepared.task.write(folder, split, decoded):
                print(f"Predictions for {split}: {path}")


def save(trainer: LayerwiseTrainer, folder: Path, is_adapter: bool) -> PreTrainedModel:
    """Save the model whole, in safetensors, with its code and tokenizer; a LoRA adapter beside it.

    Returns:
        The model that was saved.
    """
    trainer.save_model(str(folder / "adapter" if is_adapter else folder))
    model = trainer.accelerator.unwrap_model(trainer.model)
    if is_adapter:
        model = model.merge_and_unload()
        if trainer.is_world_process_zero():
            model.save_pretrained(folder)
            trainer.processing_class.save_pretrained(folder)
    if trainer.is_world_process_zero():
        # A pickle of the arguments, which run.json holds in plain text, and PEFT's card, which is an empty form.
        for name in ("training_args.bin", "adapter/training_args.bin", "adapter/README.md"):
            (folder / name).unlink(missing_ok=True)
    return model


def explain(
    model: PreTrainedModel, trainer: LayerwiseTrainer, prepared: Prepared, folder: Path
) -> dict[int, float] | None:
    """Draw the layer weights of evaluation examples; the mean weight by hidden state."""
    from ..analysis.layer_importance import collect_layer_weights, save_layer_importance

    task, config, count = prepared.task, model.config, trainer.args.picture_examples
    if not weighs_layers(config) or not task.evaluation or not count:
        return None
    weighting = config.pooler if config.model_type == "layer_attn_pool" else config.weighting
    split, rows = next(iter(task.evaluation.items()))
    # Rows are sorted by length: every k-th is a fair sample of them.
    chosen = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)
    sample = rows.select(chosen)
    sample = sample.remove_columns([name for name in ("label", "labels") if name in sample.column_names])
    # Not one of the trainer's loaders, which would share the rows among the processes: this is for one alone.
    batches = DataLoader(sample, trainer.args.eval_batch_size, collate_fn=task.picture_collator(trainer.data_collator))
    weights = collect_layer_weights(model, batches)
    labels, names = task.groups(split, chosen, config)
    save_layer_importance(
        weights,
        config.layer_indices,
        folder,
        labels=labels,
        label_names=names,
        title=f"{task.spec.title}: weight of each hidden layer",
        extra={"task": task.spec.title, "split": split, "weighting": weighting},
    )
    return dict(zip(config.layer_indices, weights.mean(axis=0).tolist(), strict=True))
