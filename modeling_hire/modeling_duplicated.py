"""BERT with duplicated layers: a deeper model without new pre-training (arXiv 2001.09309).

Untied, as in the paper, the copies have their own parameters, and the model is a BERT of more layers. Tied, the layers
of the original are executed in the order of `config.layer_plan`, with no new parameters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput
from transformers.models.bert.modeling_bert import BertLayer
from transformers.utils import ModelOutput, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder

from .configuration_duplicated import BertWithDuplicatedLayersConfig
from .configuration_layer_plans import compose, parse_plan
from .modeling_encoder_layers import PlannedLayers, quantised, reading_weights, rebuild
from .modeling_layerwise import HUB_KEYWORDS
from .modeling_losses import class_loss, sequence_loss, span_loss


class DuplicatedLayersMixin:
    """What the bare model and the task models have in common: execution by a plan, loading, and duplicating."""

    config: BertWithDuplicatedLayersConfig
    config_class = BertWithDuplicatedLayersConfig
    plain_class: ClassVar[type[PreTrainedModel]]

    def __init__(self, config: BertWithDuplicatedLayersConfig, *args: Any, **kwargs: Any):
        config.check()  # a field may have been set since the configuration was made
        super().__init__(config, *args, **kwargs)
        if self.base_model is not self:
            self.bert = BertWithDuplicatedLayers(config, add_pooling_layer=self.bert.pooler is not None)
            self.post_init()
        elif config.layer_plan is not None:
            self.encoder.layer = PlannedLayers(list(self.encoder.layer), config.layer_plan)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *args: Any,
        duplicate: str | Sequence[int] | None = None,
        tie: bool | None = None,
        **kwargs: Any,
    ) -> PreTrainedModel | tuple[PreTrainedModel, dict[str, Any]]:
        """Load a checkpoint of this family, or a plain BERT checkpoint of any kind, and duplicate layers of it.

        Args:
            pretrained_model_name_or_path (`str`): a Hub repository or a folder.
            duplicate (`str` or list of `int`, *optional*): how often each executed layer occurs in the new stack, see
                [`parse_plan`]: `"first:3"`, `[2, 2, 1, 1]`, ... A checkpoint that is duplicated already composes, and
                without this argument nothing is ever duplicated.
            tie (`bool`, *optional*): whether copies share the weights of their source (`layer_plan`). Unset, as the
                checkpoint does; a plain one starts untied.
            kwargs: how to load (`revision`, `dtype`, `num_labels`, ...), as in transformers.

        Raises:
            ValueError: for a plan that cannot be read, a checkpoint that is no BERT, or quantisation.

        Example:

        ```python
        >>> from modeling_hire import BertWithDuplicatedLayersForMaskedLM

        >>> name, revision = "google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"
        >>> model = BertWithDuplicatedLayersForMaskedLM.from_pretrained(
        ...     name, revision=revision, duplicate="first:3"
        ... )  # doctest: +SKIP
        >>> model.config.num_hidden_layers  # doctest: +SKIP
        15
        ```
        """
        name = pretrained_model_name_or_path
        if name is None:
            return super().from_pretrained(None, *args, **kwargs)
        hub = {key: kwargs[key] for key in HUB_KEYWORDS if kwargs.get(key) is not None}
        source, _ = PreTrainedConfig.get_config_dict(name, **hub)
        kind = source.get("model_type")
        kwargs.setdefault("use_safetensors", True)  # a pickle can run code when it is read
        if kind not in ("bert", cls.config_class.model_type):
            raise ValueError(
                f"{name}: a checkpoint of type {kind!r}; allowed for {cls.__name__} is 'bert'. For other encoders see "
                "`modeling_hire.duplication.duplicate_layers`."
            )
        if kind != "bert" and duplicate is None and tie is None:
            with reading_weights(name, cls.__name__, **kwargs):
                return super().from_pretrained(name, *args, **kwargs)
        if source.get("quantization_config") or kwargs.get("quantization_config") is not None:
            raise quantised(name)
        with_info = kwargs.pop("output_loading_info", False)
        placement = {key: kwargs.pop(key) for key in ("device_map", "max_memory", "offload_folder") if key in kwargs}
        loader = cls.plain_class if kind == "bert" else super()
        with reading_weights(name, cls.plain_class.__name__ if kind == "bert" else cls.__name__, **kwargs):
            model, info = loader.from_pretrained(name, *args, output_loading_info=True, **kwargs)
        model = cls._rearranged(model, [1] * _depth(model) if duplicate is None else duplicate, tie, **placement)
        return (model, info) if with_info else model

    def duplicate(self, plan: str | Sequence[int], tie: bool | None = None) -> PreTrainedModel:
        """A copy of this model with executed layers duplicated (or removed): see `from_pretrained`."""
        return self._rearranged(self, plan, tie)

    @classmethod
    def _rearranged(cls, model: PreTrainedModel, plan: str | Sequence[int], tie: bool | None, **placement: Any):
        """The stack that `plan` makes of a BERT's executed layers, in this class."""
        old = model.config
        executed = getattr(old, "layer_plan", None)
        tie = executed is not None if tie is None else tie
        order = compose(executed, parse_plan(plan, _depth(model)))
        # Blocks that are kept, by their number in `model`: one for each place, or only the different ones.
        blocks = sorted(set(order)) if tie else order
        sources = compose(getattr(old, "layer_sources", None), blocks)
        fields = old.to_dict() | {
            "num_hidden_layers": len(blocks),
            "layer_plan": [blocks.index(block) for block in order] if tie else None,
            "layer_sources": None if sources == list(range(old.num_hidden_layers)) else sources,
        }
        config = cls.config_class(**{key: value for key, value in fields.items() if key not in _NOT_COPIED})
        return rebuild(cls, model, config, _path(model), blocks, **placement)

    def to_bert(self) -> PreTrainedModel:
        """The same model as an ordinary BERT of transformers, whose checkpoint needs no code of this library.

        Raises:
            ValueError: for tied layers, which an ordinary BERT cannot express.
        """
        if self.config.layer_plan is not None:
            raise ValueError(
                f"layer_plan={self.config.layer_plan!r}: an ordinary BERT cannot execute a plan; give the copies "
                "weights of their own first, `model.duplicate([1] * model.config.num_executed_layers, tie=False)`."
            )
        fields = {
            key: value for key, value in self.config.to_dict().items() if key not in (*_NOT_COPIED, "layer_plan")
        }
        layers = range(self.config.num_hidden_layers)
        return rebuild(self.plain_class, self, BertConfig(**fields), _path(self), layers)


# What a configuration says of the checkpoint it came from, and not of the model.
_NOT_COPIED = ("model_type", "auto_map", "architectures", "transformers_version", "_name_or_path", "dtype")


def _path(model: PreTrainedModel) -> str:
    return "encoder.layer" if model.base_model is model else f"{model.base_model_prefix}.encoder.layer"


def _depth(model: PreTrainedModel) -> int:
    return getattr(model.config, "num_executed_layers", model.config.num_hidden_layers)


class BertWithDuplicatedLayers(DuplicatedLayersMixin, BertModel):
    r"""
    BERT whose layers are executed in the order of `config.layer_plan`, or were copied untied.

    Args:
        config ([`BertWithDuplicatedLayersConfig`]): the configuration.
        add_pooling_layer (`bool`): whether to have BERT's pooler.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire import BertWithDuplicatedLayers, BertWithDuplicatedLayersConfig

    >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    >>> model = BertWithDuplicatedLayers(BertWithDuplicatedLayersConfig(**sizes, layer_plan=[0, 0, 1])).eval()
    >>> len(model(input_ids=torch.tensor([[101, 102]]), output_hidden_states=True).hidden_states)
    4
    >>> model.duplicate("last:1", tie=False).config.layer_sources
    [0, 0, 1, 1]
    ```
    """

    plain_class = BertModel
    _can_record_outputs = BertModel._can_record_outputs | {
        "hidden_states": OutputRecorder(BertLayer, num_hidden_layers_key="num_executed_layers")
    }


class LabelledMixin(DuplicatedLayersMixin):
    """A head that is trained on `labels`, whose loss weighs accumulated batches as one (BERT's own does not)."""

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        outputs = super().forward(input_ids, attention_mask, token_type_ids, return_dict=True, **kwargs)
        loss = None if labels is None else self.compute_loss(outputs.logits, labels, num_items_in_batch)
        return type(outputs)(loss=loss, **outputs)


class BertWithDuplicatedLayersForMaskedLM(LabelledMixin, BertForMaskedLM):
    r"""
    [`BertWithDuplicatedLayers`] and BERT's masked language model head. `labels`: `(batch, tokens)`, token ids or -100.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire import BertWithDuplicatedLayersConfig, BertWithDuplicatedLayersForMaskedLM

    >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    >>> model = BertWithDuplicatedLayersForMaskedLM(BertWithDuplicatedLayersConfig(**sizes, layer_plan=[0, 1, 1]))
    >>> model(input_ids=torch.tensor([[101, 102]])).logits.shape
    torch.Size([1, 2, 30522])
    ```
    """

    plain_class = BertForMaskedLM

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        return class_loss(logits, labels, num_items_in_batch)


class BertWithDuplicatedLayersForSequenceClassification(LabelledMixin, BertForSequenceClassification):
    r"""
    [`BertWithDuplicatedLayers`] and a classifier or regressor. `labels`: `(batch,)`, class ids or scores.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire import BertWithDuplicatedLayersConfig, BertWithDuplicatedLayersForSequenceClassification

    >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    >>> config = BertWithDuplicatedLayersConfig(**sizes, layer_plan=[0, 1, 1])
    >>> model = BertWithDuplicatedLayersForSequenceClassification(config)
    >>> model(input_ids=torch.tensor([[101, 102]])).logits.shape
    torch.Size([1, 2])
    ```
    """

    plain_class = BertForSequenceClassification

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        return sequence_loss(logits, labels, self.config, num_items_in_batch)


class BertWithDuplicatedLayersForQuestionAnswering(DuplicatedLayersMixin, BertForQuestionAnswering):
    r"""
    [`BertWithDuplicatedLayers`] and BERT's head for the span that answers a question. `start_positions` and
    `end_positions`: token indices `(batch,)`; an index outside the text counts as no label.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire import BertWithDuplicatedLayersConfig, BertWithDuplicatedLayersForQuestionAnswering

    >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    >>> config = BertWithDuplicatedLayersConfig(**sizes, layer_plan=[0, 1, 1])
    >>> model = BertWithDuplicatedLayersForQuestionAnswering(config)
    >>> model(input_ids=torch.tensor([[101, 102]])).start_logits.shape
    torch.Size([1, 2])
    ```
    """

    plain_class = BertForQuestionAnswering

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        outputs = super().forward(input_ids, attention_mask, token_type_ids, return_dict=True, **kwargs)
        loss = None
        if start_positions is not None and end_positions is not None:
            logits = (outputs.start_logits, outputs.end_logits)
            loss = span_loss(*logits, start_positions, end_positions, num_items_in_batch, attention_mask)
        return QuestionAnsweringModelOutput(loss=loss, **outputs)


# So that every checkpoint carries this code, those that a trainer saves along the way too.
BertWithDuplicatedLayersConfig.register_for_auto_class()
BertWithDuplicatedLayers.register_for_auto_class("AutoModel")
BertWithDuplicatedLayersForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
BertWithDuplicatedLayersForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
BertWithDuplicatedLayersForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
