"""What `run_probe.py` reads: the masked language model and the text."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.utils import logging

from ..data.arguments import DataArguments
from ..data.columns import find_columns, take_texts
from ..data.loading import load_task_data
from ..data.messages import listing
from ..data.readers import SUFFIXES, Table, read_lines, read_table, split_suffix
from ..data.sources import read_hub
from ..data.tasks import TASKS, TaskSpec
from ..modeling_encoder_layers import check_encoder, reading_weights
from ..training.models import check_tokenizer, resolve_checkpoint
from .reconstruction_arguments import ProbeArguments


LINE_SUFFIXES = (".txt", ".txt.gz")


def load_masked_lm(name: str, revision: str | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a masked language model in float32, all of whose weights are in the checkpoint, and its tokenizer.

    Args:
        name: a Hub repository or a folder.
        revision: commit, branch or tag on the Hub.

    Raises:
        ValueError: if it cannot be read, is no masked language model, or comes without an output layer, which would
            be drawn at random.

    Example:

    ```python
    >>> from modeling_hire.analysis.reconstruction_loading import load_masked_lm

    >>> model, tokenizer = load_masked_lm("google-bert/bert-base-uncased")  # doctest: +SKIP
    ```
    """
    where, options = f"checkpoint={name!r}", {"revision": revision, "trust_remote_code": False}
    folder = resolve_checkpoint(name)
    try:
        config = AutoConfig.from_pretrained(folder, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{where}: no model and tokenizer could be read there ({_first_line(error)}). Without a network, name a "
            "local folder."
        ) from error
    check_tokenizer(name, tokenizer, getattr(config, "vocab_size", None))
    try:
        check_encoder(config)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('encoder_config: ')}") from error
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ValueError(
            f"{where}: transformers has no masked language model of type {config.model_type!r}, so there is no output "
            "layer to probe."
        )
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what is missing is said below, and is no advice to train it
    try:
        with reading_weights(folder, "AutoModelForMaskedLM"):
            model, report = AutoModelForMaskedLM.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
            )
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{where}: its weights cannot be read: {_first_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(report["missing_keys"])
    if missing:
        encoder = f"{model.base_model_prefix}."
        head = [key for key in missing if not key.startswith(encoder)]
        what = "an output layer (MLM head)" if head else "a part of the encoder"
        raise ValueError(
            f"{where}: the checkpoint lacks {what}; these weights would be drawn at random: "
            f"{listing(head or missing, 4)}. Allowed is a checkpoint saved from {type(model).__name__} or from "
            "pre-training."
        )
    return model.eval(), tokenizer


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def read_texts(arguments: ProbeArguments) -> tuple[list[str], str]:
    """The texts to probe on, and what to call them.

    Raises:
        ValueError: if a file or dataset is missing or empty, or its text column cannot be found.
    """
    if arguments.text_file is not None:
        texts = [text for path in arguments.text_file for text in _file_texts(path, arguments.text_column)]
        source = ", ".join(Path(path).name for path in arguments.text_file)
    else:
        texts, source = _dataset_texts(arguments), f"{arguments.dataset}, {arguments.dataset_split}"
    return [text for text in texts if text.strip()], source


def _file_texts(path: str, column: str | None) -> list[str]:
    if path.lower().endswith(LINE_SUFFIXES):
        return read_lines(path)
    if split_suffix(Path(path)) is None:
        raise ValueError(f"text_file={path!r}: allowed is a name ending in {listing((*LINE_SUFFIXES, *SUFFIXES))}.")
    return _table_texts(read_table(path), column)


def _table_texts(table: Table, column: str | None) -> list[str]:
    columns = find_columns(table, text=column, needs_label=False).texts
    rows = zip(*(take_texts(table, name) for name in columns), strict=True)
    return [text for row in rows for text in row]


def _dataset_texts(arguments: ProbeArguments) -> list[str]:
    name, split = arguments.dataset, arguments.dataset_split
    if name.lower() in TASKS:
        for field in ("text_column", "dataset_config"):
            if getattr(arguments, field) is not None:
                raise ValueError(f"{field}={getattr(arguments, field)!r}: not allowed with a task known by name.")
        data = load_task_data(
            DataArguments(task=name, dataset_dir=arguments.dataset_dir, dataset_revision=arguments.dataset_revision),
            evaluation_only=split != "train",
        )
        splits = {**({"train": data.train} if data.train is not None else {}), **data.evaluation, **data.test}
        if split == "validation" and split not in splits:
            split = next(iter(data.evaluation), split)  # MNLI has two
        if split not in splits:
            raise ValueError(f"dataset_split={split!r}: {name} has {listing(splits)}.")
        rows = splits[split]
        texts = [rows[column] for column in ("text", "text_pair") if column in rows.column_names]
        return [text for row in zip(*texts, strict=True) for text in row]
    if arguments.dataset_dir is not None:
        raise ValueError(
            f"dataset_dir={arguments.dataset_dir!r}: allowed with a task known by name ({', '.join(TASKS)}); "
            f"dataset={name!r} is none. For files of your own give text_file."
        )
    spec = TaskSpec(
        name=name,
        title=name,
        text_columns=("text",),
        label_names=None,
        metrics=("accuracy",),
        main_metric="accuracy",
        hub_path=name,
        hub_config=arguments.dataset_config,
        evaluation_splits=(split,),
        test_splits=(),
    )
    tables = read_hub(spec, arguments.dataset_revision, evaluation_only=True)
    if split not in tables:
        raise ValueError(f"dataset_split={split!r}: {name} has no such split.")
    return _table_texts(tables[split], arguments.text_column)
