"""transformers' own model tests (`ModelTesterMixin`) on the HIRE classes. Run by `make test-transformers`.

A test that does not apply is in `NOT_APPLICABLE`, with the reason; one that skips itself and is not there fails. Tests
that need a GPU or a package that is not installed are skipped by transformers' own decorators.
"""

from __future__ import annotations

import unittest
from fnmatch import fnmatch
from typing import Any, ClassVar

import pytest
import torch
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel, RobertaConfig

from modeling_hire import (
    HireConfig,
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
    RobertaForHIRE,
    RobertaHireConfig,
    RobertaHireModel,
)

from .upstream import test_modeling_common as common


pytestmark = pytest.mark.transformers_suite

# The tests choose inputs and labels by looking the class up in transformers' tables; ours are added to their copy.
for _table, _names in {
    "MODEL_MAPPING_NAMES": ("HireModel", "RobertaHireModel"),
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": ("HireForSequenceClassification", "RobertaForHIRE"),
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": ("HireForTokenClassification",),
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": ("HireForQuestionAnswering",),
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": ("HireForMultipleChoice",),
}.items():
    setattr(common, _table, {**getattr(common, _table), "hire": _names})

NOT_APPLICABLE = {
    "test_*_features_*": "for models of pictures, sound or video beside text; HIRE reads text only",
    "test_multimodal_outputs_are_returned": "for models of several kinds of input that generate; HIRE reads text only",
    "test_sdpa_can_dispatch_composite_models": (
        "for a language model beside a tower of another modality; the encoder's attention is set and checked in "
        "test_sdpa_can_dispatch_non_composite_models and test_attn_implementation_composite_models"
    ),
    "test_eager_matches_sdpa_inference_*_output_attentions": (
        "wants `output_attentions` in the signature of `forward`; it reaches the encoder with the other keywords, as "
        "test_attention_outputs shows"
    ),
    "test_encoder_decoder_loss_no_double_shift": "for sequence-to-sequence language models",
    "test_causal_lm_loss_honors_shift_labels": "for causal language models",
    "test_bc_cache_name_forward": "for models with a key-value cache, which one that reads both ways has no use for",
    "test_eager_matches_batched_and_grouped_inference_*": "for mixtures of experts",
    "test_moe_models_record_router_logits": "for mixtures of experts",
    "test_output_router_logits_from_config": "for mixtures of experts",
    "test_model_rope_*": "for rotary positions; positions are the encoder's, and these encoders learn theirs",
    "test_vision_axial_rope": "for rotary positions in pictures",
    "test_sliding_window_mask": "for sliding windows; the masks are the encoder's, and these encoders have none",
    "test_resize_position_vector_embeddings": "neither BERT nor RoBERTa in transformers can resize its positions",
    "test_feed_forward_chunking": (
        "sets a field of the outer configuration; the feed-forward layers are the encoder's and follow the field of "
        "`encoder_config`, so that the test would compare a model with itself"
    ),
    "test_keep_in_fp32_modules*": "for modules that stay in float32 whatever dtype is asked for; HIRE has none",
    "test_tp_plan_matches_params": "for models that come with a plan for tensor parallelism",
    "test_reverse_loading_mapping": "for models that rename the weights of their checkpoints; HIRE does not",
    "test_can_load_from_already_mapped_keys": "for models that rename the weights of their checkpoints; HIRE does not",
}

TINY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}


class HireModelTester:
    """What the tests ask about the model: its configuration, a batch, and the sizes to expect."""

    batch_size = 4
    seq_length = 7
    num_choices = 3
    is_training = True
    hidden_size = TINY["hidden_size"]
    num_attention_heads = TINY["num_attention_heads"]

    def __init__(self, config: HireConfig):
        self.config = config
        self.num_hidden_layers = config.num_executed_layers

    def get_config(self) -> HireConfig:
        return self.config

    def prepare_config_and_inputs_for_common(self) -> tuple[HireConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.seq_length)
        lengths = torch.tensor([7, 5, 3, 6])
        inputs = {
            "input_ids": torch.randint(5, TINY["vocab_size"], shape),
            "token_type_ids": torch.randint(0, self.config.type_vocab_size, shape),
            "attention_mask": (torch.arange(self.seq_length) < lengths[:, None]).long(),
        }
        return self.config, {name: value.to(common.torch_device) for name, value in inputs.items()}


class HireTests(common.ModelTesterMixin):
    """The tests, on `all_model_classes` with the configuration that the class names."""

    all_model_classes: tuple[type[PreTrainedModel], ...]
    preset: ClassVar[str] = "paper"
    # Two layers are as many as the tests allow; with the embeddings there are two candidates to weigh.
    fields: ClassVar[dict[str, Any]] = {"include_embeddings": True}
    encoder_config: ClassVar[PreTrainedConfig] = BertConfig(**TINY)
    config_class: ClassVar[type[HireConfig]] = HireConfig
    not_applicable: ClassVar[dict[str, str]] = NOT_APPLICABLE
    # Wrapping a configuration is what transformers means by composite.
    _is_composite = True
    # The tests take a file without a copyright year for an old one, of which they do not expect this.
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self) -> None:
        for pattern, reason in self.not_applicable.items():
            if fnmatch(self._testMethodName, pattern):
                raise unittest.SkipTest(reason)
        config = self.config_class.preset(self.preset, self.encoder_config, **self.fields)
        self.model_tester = HireModelTester(config)

    def skipTest(self, reason: str) -> None:
        self.fail(f"{self._testMethodName} wants to be skipped, and NOT_APPLICABLE does not have it: {reason}")

    def test_sdpa_can_dispatch_non_composite_models(self) -> None:
        self._is_composite = False  # There is one encoder, so its attention is the model's.
        super().test_sdpa_can_dispatch_non_composite_models()


class HireModelTest(HireTests, unittest.TestCase):
    """The paper's model, and every task."""

    all_model_classes = (
        HireModel,
        HireForSequenceClassification,
        HireForTokenClassification,
        HireForQuestionAnswering,
        HireForMultipleChoice,
    )


class RobertaHireModelTest(HireTests, unittest.TestCase):
    """The same on RoBERTa, through the classes for it."""

    all_model_classes = (RobertaHireModel, RobertaForHIRE)
    config_class = RobertaHireConfig
    encoder_config = RobertaConfig(**TINY, type_vocab_size=2, pad_token_id=1, bos_token_id=0, eos_token_id=2)


class HireFastModelTest(HireTests, unittest.TestCase):
    """The pooled scorer, without the ReLU, one scorer a layer, and one narrow fusion layer."""

    all_model_classes = (HireModel, HireForSequenceClassification)
    preset = "fast"
    fields = {"include_embeddings": True, "share_scorer": False}


class HireStaticModelTest(HireTests, unittest.TestCase):
    """Weights that are parameters of the model, and a linear fusion."""

    all_model_classes = (HireModel, HireForTokenClassification)
    fields = {"include_embeddings": True, "weighting": "static", "fusion_num_layers": 0}


class HireRandomModelTest(HireTests, unittest.TestCase):
    """Weights that are a buffer, drawn once."""

    all_model_classes = (HireModel,)
    fields = {"include_embeddings": True, "weighting": "random", "fusion_num_layers": 1}
    not_applicable = {
        **NOT_APPLICABLE,
        "test_init_weights_can_init_buffers": (
            "expects the same buffers with and without `_init_weights`, and this one is drawn there; that it is, also "
            "for a model from the meta device, test_can_init_all_missing_weights shows"
        ),
    }


class HireTiedPlanModelTest(HireTests, unittest.TestCase):
    """Two layers of which the first is executed twice, with its weights tied."""

    all_model_classes = (HireModel, HireForSequenceClassification)
    fields = {"layer_plan": [0, 0, 1]}
    not_applicable = {
        **NOT_APPLICABLE,
        "test_num_layers_is_small": "the others expect as many layers as are executed, three, and this one allows two",
        "test_internal_model_config_and_subconfig_are_same": (
            "an encoder with a plan holds a copy of its configuration that counts the executed layers; the outer one "
            "keeps counting those that have weights"
        ),
    }
