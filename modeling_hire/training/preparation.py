"""Everything that can be checked before a run starts: arguments, output folder, data, checkpoint, and their fit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from .arguments import EncoderArguments, RunArguments
from .models import encoder_config_of, is_own, public_name
from .results import repository_name
from .task import TrainingTask


RUN_FILE, SEED_FILE, RESULTS_FILE = "run.json", "seed.json", "results.json"
# Arguments that may differ between a run and its continuation.
NOT_IDENTITY = (
    *("resume", "keep_checkpoints", "seeds", "seed", "output_dir", "run_name", "report_to", "disable_tqdm"),
    *("push_to_hub", "hub_token", "hub_model_id", "hub_private_repo", "local_rank"),
    *("dataloader_num_workers", "dataloader_pin_memory", "preprocessing_num_workers"),
)
PATHS = (
    *("encoder", "model", "ensemble", "dataset_dir", "train_file", "validation_file", "test_file"),
    *("validation_dir", "unlabelled_file", "corpus_file", "validation_corpus_file"),
)
# Values of `model` that are no path, even if there is a folder of that name.
NEW_MODELS = ("hire", "last", "layer_attn_pool", "multi_task")


@dataclass
class Prepared:
    """A run that is ready to start.

    `first` is the first seed to train, with its model and the names of the new parameters; `None` if all seeds are
    finished. `base` is the name of the encoder or checkpoint on the Hub, if it has one.
    """

    model_arguments: EncoderArguments
    data_arguments: Any
    arguments: RunArguments
    identity: dict[str, Any]
    folders: dict[int, Path]
    task: TrainingTask
    checkpoint: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    base: str | None
    first: tuple[int, PreTrainedModel, set[str]] | None

    def model(self, seed: int) -> tuple[PreTrainedModel, set[str]]:
        """The model that a seed starts from, whatever ran before it in this process, and its new parameters."""
        if self.first is not None and self.first[0] == seed:
            _, model, new = self.first
            self.first = None  # training changes it
            return model, new
        set_seed(seed)
        return self.task.build(self.model_arguments, self.checkpoint, self.config, self.base)


def prepare(
    task_class: type[TrainingTask], model_arguments: EncoderArguments, data_arguments: Any, arguments: RunArguments
) -> Prepared:
    """Read data and checkpoint, check that they fit, turn text into tokens, and build the first model.

    Args:
        task_class: the kind of task.
        model_arguments, data_arguments, arguments: the command line; the middle part is what `task_class` takes.

    Raises:
        ValueError: for wrong arguments, data or checkpoints. Nothing has been written then.
    """
    output = Path(arguments.output_dir)
    identity = describe(model_arguments, data_arguments, arguments)
    check_output(output, identity, arguments.seeds, arguments.resume)
    if arguments.push_to_hub:
        check_repository(repository_name(arguments))
    several = len(arguments.seeds) > 1 or any(output.glob(f"seed-*/{RUN_FILE}"))
    folders = {seed: output / f"seed-{seed}" if several else output for seed in arguments.seeds}

    trains = arguments.num_train_epochs > 0
    if not trains and model_arguments.needs_training:
        raise ValueError(
            f"num_train_epochs=0: nothing is trained, and what goes on the encoder (model={model_arguments.model!r}) "
            "is new and knows nothing yet; allowed with a saved checkpoint (--model FOLDER_OR_REPOSITORY)."
        )
    checkpoint, config, tokenizer = task_class.start(model_arguments, data_arguments)
    task_class = task_class.for_config(config)
    saved = set(config.architectures or ())
    if not trains and is_own(config) and saved and not saved & task_class.head.class_names:
        raise ValueError(
            f"num_train_epochs=0: the checkpoint holds {', '.join(sorted(saved))}, the head of another task, and a "
            f"new head knows nothing yet; allowed is {' or '.join(sorted(task_class.head.class_names))}."
        )
    suffix = task_class.head.auto_class.__name__.removeprefix("AutoModel")
    if not trains and model_arguments.model == "last" and saved and not any(name.endswith(suffix) for name in saved):
        raise ValueError(
            f"num_train_epochs=0: encoder={model_arguments.encoder!r} was saved by {', '.join(sorted(saved))}, "
            f"without the head of this task, and a new head knows nothing yet; allowed is a checkpoint of ...{suffix}."
        )
    task = task_class(data_arguments, arguments, config)
    if trains and not task.has_evaluation and arguments.eval_strategy != "no":
        raise ValueError(
            f"eval_strategy={arguments.eval_strategy.value!r}: there is no evaluation data (validation_file); "
            "allowed is eval_strategy='no' with load_best_model_at_end=False and save_strategy='no'."
        )
    check_metric(arguments.best_metric, task)
    task.encode(tokenizer, encoder_config_of(config))

    prepared = Prepared(
        model_arguments=model_arguments,
        data_arguments=data_arguments,
        arguments=arguments,
        identity=identity,
        folders=folders,
        task=task,
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        base=public_name(model_arguments, config),
        first=None,
    )
    # Built now, so that weights which cannot be read are found before anything is written.
    seed = next((seed for seed in folders if not is_finished(folders[seed], arguments.resume)), None)
    if seed is not None:
        prepared.first = (seed, *prepared.model(seed))
        task.check_model(prepared.first[1], tokenizer, arguments)
    return prepared


def check_repository(name: str) -> None:
    """Raise a `ValueError` if a run could not be published under this name."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"hub_model_id={name!r}: {error}") from error
    if constants.HF_HUB_OFFLINE:
        raise ValueError("push_to_hub=True: the Hub cannot be reached (HF_HUB_OFFLINE is set).")


def check_metric(metric: str | None, task: TrainingTask) -> None:
    """Raise a `ValueError` if the metric that is to choose the best checkpoint is not computed."""
    known = [*task.metric_names, *(["loss"] if task.reports_loss else [])]
    if metric is not None and metric not in known:
        raise ValueError(f"metric_for_best_model={metric!r}: {task.spec.title} has {', '.join(map(repr, known))}.")


def is_finished(folder: Path, resume: bool) -> bool:
    """Whether a resumed run has nothing left to do for the seed of this folder.

    Raises:
        ValueError: if the folder says so in a file that is damaged.
    """
    path = folder / SEED_FILE
    if not (resume and path.is_file()):
        return False
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).keys() >= {"metrics"})
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"output_dir={str(folder)!r}: {SEED_FILE} there is damaged ({error}); delete it, and the seed is "
            "evaluated again."
        ) from error


# ---- what a run is, and whether the output folder holds another one -------------------------------------------------


def describe(model: EncoderArguments, data: Any, arguments: RunArguments) -> dict[str, Any]:
    """The arguments that make a run what it is, those at their default left out.

    A checkpoint is published with this description, so of a local path it shows the last part alone, with a checksum
    of the whole by which another path is told apart.
    """
    plain = type(arguments)(output_dir=arguments.output_dir, use_cpu=arguments.use_cpu).to_dict()
    training = {name: value for name, value in arguments.to_dict().items() if value != plain[name]}
    given = {**dataclasses.asdict(model), **dataclasses.asdict(data), **training}
    if arguments.best_metric is None:
        # `Trainer`'s default, which the task's main metric replaces.
        given = {k: v for k, v in given.items() if k not in ("metric_for_best_model", "greater_is_better")}
    kept = {name: value for name, value in given.items() if value is not None and name not in NOT_IDENTITY}
    return json.loads(json.dumps({name: _without_path(name, value) for name, value in kept.items()}, default=str))


def _without_path(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_without_path(name, item) for item in value]
    if not isinstance(value, str):
        return value
    named = name in PATHS and value not in NEW_MODELS and os.path.exists(value)
    if not (named or os.path.isabs(value)):
        return value
    path = Path(value).resolve()
    return f"{path.name} ({hashlib.sha256(str(path).encode()).hexdigest()[:8]})"


def check_output(output: Path, identity: dict[str, Any], seeds: list[int], resume: bool | None) -> None:
    """Raise a `ValueError` if `output_dir` holds something that this run would overwrite.

    `resume=None`: a run that cannot be gone on with.
    """
    where = f"output_dir={str(output)!r}"
    if output.is_symlink() and not output.exists():
        raise ValueError(f"{where}: a link that leads nowhere; allowed is a folder.")
    inside = next((parent for parent in output.parents if parent.exists()), None)
    if inside is not None and not inside.is_dir():
        raise ValueError(f"{where}: {inside} is a file; allowed is a folder.")
    if not output.exists():
        return
    if not output.is_dir():
        raise ValueError(f"{where}: a file is there; allowed is a folder.")
    if not any(output.iterdir()):
        return
    if not resume:
        way_out = "." if resume is None else ", or go on with the run there with --resume true."
        raise ValueError(f"{where}: holds another run or other files. Name another folder{way_out}")
    runs = {path: _read_run(path, where) for path in (output / RUN_FILE, *sorted(output.glob(f"seed-*/{RUN_FILE}")))}
    before = {path: run for path, run in runs.items() if run is not None}
    if not before:
        raise ValueError(f"{where}: holds files but no run ({RUN_FILE} is looked for), so there is none to resume.")
    there = sorted(run["seed"] for run in before.values())
    alone = output / RUN_FILE in before
    if (alone and there != seeds) or not set(there) <= set(seeds):
        raise ValueError(
            f"{where}: holds a run with seeds={there}, and seeds={seeds} cannot go on with it; allowed is "
            + ("that one seed." if alone else "those, and more.")
        )
    for run in before.values():
        arguments = run["arguments"]
        differ = sorted(k for k in arguments.keys() | identity.keys() if arguments.get(k) != identity.get(k))
        if differ:
            key = differ[0]
            raise ValueError(
                f"{where}: holds a run with other arguments ({key}={arguments.get(key)!r} there, "
                f"{identity.get(key)!r} here), which cannot be resumed with these."
            )


def _read_run(path: Path, where: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        return {"seed": run["seed"], "arguments": dict(run["arguments"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: {path.name} there is not one of this script ({error!r}).") from error
