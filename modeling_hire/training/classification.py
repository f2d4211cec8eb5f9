"""One run: fine-tune a model on a task with each seed, evaluate, explain, and save what can be published."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    set_seed,
)

from ..data.arguments import DataArguments
from ..data.labels import align_labels, to_dataset_ids
from ..data.loading import TaskData, load_task_data
from ..data.preprocessing import tokenize_dataset, truncation_note, usable_max_length
from ..evaluation.glue import build_compute_metrics, predicted_values
from ..evaluation.submission import write_submission
from ..hub import PACKAGED_ENCODERS, publish, write_model_card
from .arguments import ModelArguments, RunArguments
from .callbacks import DeadScorerCallback
from .models import OWN_TYPES, build_model, load_source
from .results import majority_baseline, seed_table, write_json
from .trainer import LayerwiseTrainer, sort_by_length


RUN_FILE, RESULTS_FILE = "run.json", "results.json"
# Arguments that may differ between a run and its continuation.
NOT_IDENTITY = ("resume", "seeds", "seed", "output_dir", "push_to_hub", "hub_token", "local_rank", "disable_tqdm")


@dataclass
class Prepared:
    """Everything a seed's training needs, checked before any work starts."""

    data: TaskData
    checkpoint: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    alignment: list[int] | None
    train: Dataset | None
    evaluation: dict[str, tuple[Dataset, list[int]]]
    test: dict[str, tuple[Dataset, list[int]]]
    notes: list[str]


def run(model_arguments: ModelArguments, data_arguments: DataArguments, arguments: RunArguments) -> dict[str, Any]:
    """Fine-tune with each of `arguments.seeds` and write models, metrics, pictures and cards.

    With one seed everything is in `output_dir`; with several, each seed has a folder `seed-N` in it. `results.json`
    and `results.md` in `output_dir` hold the metrics of all seeds.

    Returns:
        What `results.json` holds: `metrics` by seed, split and name, `majority`, and `folders` by seed.

    Raises:
        ValueError: for wrong arguments or data, before training, with nothing written.
    """
    output = Path(arguments.output_dir)
    identity = describe(model_arguments, data_arguments, arguments)
    check_output(output, identity, arguments.resume)
    prepared = prepare(model_arguments, data_arguments, arguments)
    main = arguments.process_index == 0
    if main:
        print("\n".join(prepared.notes))

    metrics: dict[int, dict[str, dict[str, float]]] = {}
    folders = {seed: output if len(arguments.seeds) == 1 else output / f"seed-{seed}" for seed in arguments.seeds}
    for seed, folder in folders.items():
        finished = folder / "seed.json"
        if arguments.resume and finished.is_file():
            metrics[seed] = json.loads(finished.read_text(encoding="utf-8"))["metrics"]
            continue
        metrics[seed] = train_seed(seed, folder, prepared, model_arguments, data_arguments, arguments, identity)

    compute_metrics = build_compute_metrics(prepared.data.spec, prepared.alignment)
    baseline = majority_baseline(prepared.data, compute_metrics, prepared.alignment)
    results = {
        "arguments": identity,
        "metrics": {str(seed): values for seed, values in metrics.items()},
        "majority": baseline,
        "folders": {str(seed): folder.name if folder != output else "." for seed, folder in folders.items()},
    }
    if main and prepared.evaluation:
        table = seed_table(metrics, baseline)
        write_json(output / RESULTS_FILE, results)
        (output / "results.md").write_text(table + "\n", encoding="utf-8")
        print(f"\n{prepared.data.spec.title}, model={model_arguments.model}\n\n{table}\n")
    if main and arguments.push_to_hub:
        publish(
            folders[best_seed(metrics, prepared.data.spec.main_metric)],
            repository_name(arguments),
            private=bool(arguments.hub_private_repo),
            token=arguments.hub_token,
        )
    return results


def describe(model: ModelArguments, data: DataArguments, arguments: RunArguments) -> dict[str, Any]:
    """The arguments that make a run what it is, those at their default left out."""
    default = {f.name: f.default for f in dataclasses.fields(RunArguments)}
    training = {
        name: value
        for name, value in arguments.to_dict().items()
        if name in default and value != default[name] and value not in (None, [], "") and name not in NOT_IDENTITY
    }
    given = {**dataclasses.asdict(model), **dataclasses.asdict(data)}
    both = {name: value for name, value in given.items() if value is not None} | training
    return json.loads(json.dumps(both, default=str))


def check_output(output: Path, identity: dict[str, Any], resume: bool) -> None:
    """Raise a `ValueError` if `output_dir` holds something that this run would overwrite."""
    if not output.exists():
        return
    if not output.is_dir():
        raise ValueError(f"output_dir={str(output)!r}: a file is there; allowed is a folder.")
    if not resume and any(output.iterdir()):
        raise ValueError(
            f"output_dir={str(output)!r}: holds another run or other files. Name another folder, or go on with the "
            "run there with --resume true."
        )
    for path in [output / RUN_FILE, *output.glob(f"seed-*/{RUN_FILE}")]:
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            differ = sorted(key for key in before.keys() | identity.keys() if before.get(key) != identity.get(key))
            if differ:
                key = differ[0]
                raise ValueError(
                    f"output_dir={str(output)!r}: holds a run with other arguments ({key}={before.get(key)!r} there, "
                    f"{identity.get(key)!r} here), which cannot be resumed with these."
                )


def prepare(model_arguments: ModelArguments, data_arguments: DataArguments, arguments: RunArguments) -> Prepared:
    """Read data and checkpoint, check that they fit, and turn text into tokens."""
    trains = arguments.num_train_epochs > 0
    checkpoint, config, tokenizer = load_source(model_arguments)
    own = config.model_type in OWN_TYPES
    names = None
    if own and data_arguments.task is None:
        regressor = config.problem_type == "regression" or config.num_labels == 1
        names = () if regressor else tuple(config.id2label[index] for index in range(config.num_labels))
    data = load_task_data(data_arguments, evaluation_only=not trains, label_names=names)
    if trains and data.train is None:
        raise ValueError("train_file=None: there is nothing to train on; to evaluate only, set num_train_epochs=0.")
    if trains and not data.evaluation and arguments.eval_strategy != "no":
        raise ValueError(
            f"eval_strategy={arguments.eval_strategy!r}: there is no evaluation data (validation_file); "
            "allowed is eval_strategy='no' with load_best_model_at_end=False and save_strategy='no'."
        )
    alignment = None
    if own and not data.spec.is_regression:
        alignment = align_labels(data.spec.label_names, config.label2id)

    encoder_config = config.encoder_config if own else config
    max_length, note = usable_max_length(data_arguments.max_length, tokenizer, encoder_config)
    notes = [*data.notes, *([note] if note else [])]

    def tokenize(split: str, dataset: Dataset) -> Dataset:
        tokens, cut = tokenize_dataset(dataset, tokenizer, max_length, data_arguments.preprocessing_num_workers)
        message = truncation_note(split, cut, len(dataset), max_length)
        notes.extend([message] if message else [])
        if alignment is not None and "label" in tokens.column_names:
            aligned = [alignment[label] for label in tokens["label"]]
            tokens = tokens.remove_columns("label").add_column("label", aligned)
        return tokens

    return Prepared(
        data=data,
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        alignment=alignment,
        train=tokenize("train", data.train) if trains else None,
        evaluation={split: sort_by_length(tokenize(split, rows)) for split, rows in data.evaluation.items()},
        test={split: sort_by_length(tokenize(split, rows)) for split, rows in data.test.items()},
        notes=notes,
    )


def train_seed(
    seed: int,
    folder: Path,
    prepared: Prepared,
    model_arguments: ModelArguments,
    data_arguments: DataArguments,
    arguments: RunArguments,
    identity: dict[str, Any],
) -> dict[str, dict[str, float]]:
    """Train with one seed; write model, predictions, layer picture and card. Returns metrics by split."""
    spec = prepared.data.spec
    # Each seed starts from the same state, whatever ran before it in this process.
    set_seed(seed)
    model, new = build_model(model_arguments, prepared.checkpoint, prepared.config, prepared.data)
    arguments = copy.copy(arguments)
    arguments.output_dir, arguments.seed, arguments.push_to_hub = str(folder), seed, False
    arguments.metric_for_best_model, arguments.greater_is_better = f"eval_{spec.main_metric}", True
    main = arguments.process_index == 0
    if main:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RUN_FILE, identity)

    callbacks = [DeadScorerCallback()]
    if arguments.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(arguments.early_stopping_patience))
    first = next(iter(prepared.evaluation.values()), (None, None))[0]
    trainer = LayerwiseTrainer(
        model=model,
        args=arguments,
        train_dataset=prepared.train,
        eval_dataset=first,
        processing_class=prepared.tokenizer,
        data_collator=DataCollatorWithPadding(prepared.tokenizer, pad_to_multiple_of=8 if arguments.fp16 else None),
        compute_metrics=build_compute_metrics(spec, prepared.alignment),
        callbacks=callbacks,
        new_parameters=new,
    )
    seconds = 0.0
    if prepared.train is not None:
        started = time.perf_counter()
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
        seconds = time.perf_counter() - started

    metrics: dict[str, dict[str, float]] = {}
    for split, (rows, _) in prepared.evaluation.items():
        scores = trainer.predict(rows, metric_key_prefix="m").metrics
        kept = {name.removeprefix("m_"): value for name, value in scores.items()}
        metrics[split] = {
            name: float(value) for name, value in kept.items() if name in spec.metrics or name == "combined_score"
        }
    for split, (rows, order) in prepared.test.items():
        values = predicted_values(trainer.predict(rows).predictions, spec)
        if prepared.alignment is not None:
            values = np.asarray(to_dataset_ids(values, prepared.alignment))
        restored = np.empty_like(values)
        restored[order] = values
        if main:
            write_submission(folder, spec, split, prepared.data.test[split]["idx"], restored)

    save(trainer, folder, model_arguments.peft is not None)
    if main:
        weights = explain(trainer, folder, prepared, model_arguments, arguments)
        card(folder, prepared, model_arguments, data_arguments, arguments, metrics, weights)
        log = [entry for entry in trainer.state.log_history if "loss" in entry or f"eval_{spec.main_metric}" in entry]
        write_json(folder / "seed.json", {"seed": seed, "metrics": metrics, "train_seconds": seconds, "log": log})
        if not arguments.keep_checkpoints:
            for checkpoint in folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
    trainer.accelerator.wait_for_everyone()
    return metrics


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to the end: the trainer's state is its last file."""
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def save(trainer: LayerwiseTrainer, folder: Path, is_adapter: bool) -> None:
    """The model whole, in safetensors, with its code and tokenizer; a LoRA adapter beside it."""
    if is_adapter:
        trainer.save_model(str(folder / "adapter"))
        if trainer.is_world_process_zero():
            trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(folder)
            trainer.processing_class.save_pretrained(folder)
    else:
        trainer.save_model(str(folder))
    # A pickle of the arguments, which run.json holds in plain text.
    for path in (folder / "training_args.bin", folder / "adapter" / "training_args.bin"):
        if trainer.is_world_process_zero():
            path.unlink(missing_ok=True)


def explain(
    trainer: LayerwiseTrainer,
    folder: Path,
    prepared: Prepared,
    model_arguments: ModelArguments,
    arguments: RunArguments,
) -> dict[int, float] | None:
    """Draw the layer weights of evaluation examples; the mean weight by hidden state."""
    from ..analysis.layer_importance import collect_layer_weights, save_layer_importance

    model = trainer.accelerator.unwrap_model(trainer.model)
    config = model.config
    if config.model_type not in OWN_TYPES or not prepared.evaluation or not arguments.picture_examples:
        return None
    split, (rows, _) = next(iter(prepared.evaluation.items()))
    # Rows are sorted by length: every k-th is a fair sample of them.
    chosen = np.linspace(0, len(rows) - 1, min(arguments.picture_examples, len(rows))).astype(int)
    sample = rows.select(chosen)
    weights = collect_layer_weights(model, trainer.get_test_dataloader(sample))
    spec = prepared.data.spec
    save_layer_importance(
        weights,
        config.layer_indices,
        folder,
        labels=np.asarray(sample["label"]),
        label_names=None if spec.is_regression else list(config.id2label.values()),
        title=f"{spec.title}: weight of each hidden layer",
        extra={"task": spec.title, "model": model_arguments.model, "split": split, "weighting": config.weighting},
    )
    return dict(zip(config.layer_indices, weights.mean(axis=0).tolist(), strict=True))


def card(
    folder: Path,
    prepared: Prepared,
    model_arguments: ModelArguments,
    data_arguments: DataArguments,
    arguments: RunArguments,
    metrics: dict[str, dict[str, float]],
    weights: dict[int, float] | None,
) -> None:
    """The model card of one seed."""
    spec = prepared.data.spec
    encoder = model_arguments.encoder or model_arguments.model
    base = PACKAGED_ENCODERS.get(encoder.removeprefix("package:"), encoder)
    what = {"hire": f"HIRE (preset `{model_arguments.preset}`)", "last": "The plain last-layer head"}
    settings = {
        "seed": arguments.seed,
        "learning rate": arguments.learning_rate,
        "learning rate of new modules": arguments.new_learning_rate or arguments.learning_rate,
        "batch": arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size,
        "epochs": arguments.num_train_epochs,
        "encoder frozen": model_arguments.freeze_encoder,
        "peft": model_arguments.peft,
        "training rows": 0 if prepared.train is None else len(prepared.train),
        "longest input": data_arguments.max_length,
    } | model_arguments.config_overrides()
    write_model_card(
        folder,
        title=f"{spec.title}: {what.get(model_arguments.model, 'HIRE, trained on')} on {base}",
        description=(
            f"{what.get(model_arguments.model, 'HIRE')}, fine-tuned on {spec.title}. "
            "HIRE weighs the hidden layers of the encoder by the input and fuses their mixture with the last layer "
            "(Yang & Zhao, arXiv 1911.01940)."
        ),
        repository=repository_name(arguments),
        # A local folder is no repository, and its path is nobody's business.
        base_model=None if Path(base).exists() else base,
        dataset=spec.hub_path,
        metrics=metrics,
        main_metric=spec.main_metric,
        settings=settings,
        layer_weights=weights,
    )


def repository_name(arguments: RunArguments) -> str:
    """The Hub repository to publish as: `hub_model_id`, or the output folder's name."""
    return arguments.hub_model_id or Path(arguments.output_dir).resolve().name


def best_seed(metrics: dict[int, dict[str, dict[str, float]]], main_metric: str) -> int:
    """The seed with the best main metric on the first evaluation split; the first seed without any."""
    return max(metrics, key=lambda seed: next(iter(metrics[seed].values()), {}).get(main_metric, 0.0))
