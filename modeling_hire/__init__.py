"""Hub-native model classes that use all hidden layers of a pre-trained encoder."""

from __future__ import annotations

import importlib
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from .configuration_duplicated import BertWithDuplicatedLayersConfig
from .configuration_elmo import ElmoConfig
from .configuration_hire import HireConfig, RobertaHireConfig
from .configuration_layer_attn_pool import LayerAttnPoolConfig
from .configuration_layerwise import LayerwiseConfig
from .configuration_multi_task import MultiTaskConfig
from .modeling_duplicated import (
    BertWithDuplicatedLayers,
    BertWithDuplicatedLayersForMaskedLM,
    BertWithDuplicatedLayersForQuestionAnswering,
    BertWithDuplicatedLayersForSequenceClassification,
)
from .modeling_elmo import ElmoForPreTraining, ElmoForSequenceClassification, ElmoModel
from .modeling_hire import (
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
    RobertaForHIRE,
    RobertaHireModel,
)
from .modeling_layer_attn_pool import LayerAttnPoolEncoder
from .modeling_layerwise import LayerwisePreTrainedModel
from .modeling_multi_task import MultiTaskModel
from .tokenization_elmo import ElmoTokenizer


__version__ = "0.1.0"

# Used on the training machine only, and imported at first use.
_LAZY = {
    "ContrastiveTrainer": "training.contrastive_trainer",
    "ContrastiveTrainingArguments": "training.contrastive_arguments",
    "EnsembleForQuestionAnswering": "evaluation.ensembles",
    "EnsembleForSequenceClassification": "evaluation.ensembles",
    "MetaPretrainer": "training.meta_trainer",
    "MetaTask": "data.episodes",
    "MetaTrainingArguments": "training.meta_arguments",
    "duplicate_layers": "duplication",
    "peft_modules": "hub",
    "evaluate_sts": "evaluation.sts",
    "load_embedder": "evaluation.embedders",
    "predict_spans": "evaluation.predict_spans",
    "publish": "hub",
    "save_detached": "hub",
    "to_sentence_transformer": "hub",
}

for _config in (
    HireConfig,
    RobertaHireConfig,
    BertWithDuplicatedLayersConfig,
    LayerAttnPoolConfig,
    MultiTaskConfig,
    ElmoConfig,
):
    AutoConfig.register(_config.model_type, _config)
AutoModel.register(HireConfig, HireModel)
AutoModel.register(RobertaHireConfig, RobertaHireModel)
AutoModelForSequenceClassification.register(HireConfig, HireForSequenceClassification)
AutoModelForSequenceClassification.register(RobertaHireConfig, RobertaForHIRE)
AutoModelForTokenClassification.register(HireConfig, HireForTokenClassification)
AutoModelForQuestionAnswering.register(HireConfig, HireForQuestionAnswering)
AutoModelForMultipleChoice.register(HireConfig, HireForMultipleChoice)
AutoModel.register(LayerAttnPoolConfig, LayerAttnPoolEncoder)
AutoModel.register(MultiTaskConfig, MultiTaskModel)
AutoModel.register(ElmoConfig, ElmoModel)
AutoModelForPreTraining.register(ElmoConfig, ElmoForPreTraining)
AutoModelForSequenceClassification.register(ElmoConfig, ElmoForSequenceClassification)
AutoTokenizer.register(ElmoConfig, slow_tokenizer_class=ElmoTokenizer)
AutoModel.register(BertWithDuplicatedLayersConfig, BertWithDuplicatedLayers)
AutoModelForMaskedLM.register(BertWithDuplicatedLayersConfig, BertWithDuplicatedLayersForMaskedLM)
AutoModelForSequenceClassification.register(
    BertWithDuplicatedLayersConfig, BertWithDuplicatedLayersForSequenceClassification
)
AutoModelForQuestionAnswering.register(BertWithDuplicatedLayersConfig, BertWithDuplicatedLayersForQuestionAnswering)

__all__ = [
    "BertWithDuplicatedLayers",
    "BertWithDuplicatedLayersConfig",
    "BertWithDuplicatedLayersForMaskedLM",
    "BertWithDuplicatedLayersForQuestionAnswering",
    "BertWithDuplicatedLayersForSequenceClassification",
    "ElmoConfig",
    "ElmoForPreTraining",
    "ElmoForSequenceClassification",
    "ElmoModel",
    "ElmoTokenizer",
    "HireConfig",
    "HireForMultipleChoice",
    "HireForQuestionAnswering",
    "HireForSequenceClassification",
    "HireForTokenClassification",
    "HireModel",
    "LayerAttnPoolConfig",
    "LayerAttnPoolEncoder",
    "LayerwiseConfig",
    "LayerwisePreTrainedModel",
    "MultiTaskConfig",
    "MultiTaskModel",
    "RobertaForHIRE",
    "RobertaHireConfig",
    "RobertaHireModel",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
