"""HIRE: hidden representations, weighted by the input and fused with the last layer (Yang & Zhao, arXiv 1911.01940).

[`HireModel`] reads every hidden state of an encoder (`_mix`: the scores, their softmax s and the mixture A, equations
1 to 3) and fuses A with the last layer R into F (`_fuse`: equations 4 and 5). The parts are in `modeling_hire_layers`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_hire import HireConfig, RobertaHireConfig
from .modeling_gru import Packing
from .modeling_hire_layers import (
    FusionNetwork,
    HireClassificationHead,
    LayerWeighting,
    RunningMixture,
    Score,
)
from .modeling_hire_outputs import HireModelOutput, HireQuestionAnsweringOutput, HireTaskOutput
from .modeling_inputs import asked_for, at_least_single, check_mask, check_tokens, encoder_inputs, kept_states
from .modeling_layerwise import LayerwisePreTrainedModel
from .modeling_losses import class_loss, sequence_loss, span_loss


STREAMING_BYTES = 128 * 2**20


class HirePreTrainedModel(LayerwisePreTrainedModel):
    """Initialisation of the new modules, and what the HIRE classes have in common."""

    config: HireConfig
    config_class = HireConfig
    base_model_prefix = "hire"
    _no_split_modules = ["LayerScorer", "FusionNetwork"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.GRU):
            bound = module.hidden_size**-0.5
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)
        elif isinstance(module, Score):
            init.constant_(module.bias, self.config.score_bias_init)
        elif isinstance(module, LayerWeighting) and module.kind == "static":
            init.zeros_(module.layer_scores)
        elif isinstance(module, LayerWeighting) and module.kind == "random":
            init.normal_(module.layer_scores)


class HireModel(HirePreTrainedModel):
    r"""
    An encoder whose hidden layers are mixed by input-dependent weights and fused with the last one (arXiv 1911.01940).

    Args:
        config ([`HireConfig`]): the configuration.
        encoder (`PreTrainedModel`, *optional*): a loaded encoder of `config.encoder_config`, instead of a new one.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import HireConfig, HireModel

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    >>> model = HireModel(HireConfig.preset("paper", encoder_config)).eval()
    >>> outputs = model(input_ids=torch.tensor([[101, 2023, 102]]), output_layer_weights=True)
    >>> outputs.last_hidden_state.shape, outputs.layer_weights.shape
    (torch.Size([1, 3, 64]), torch.Size([1, 2]))
    ```
    """

    def __init__(self, config: HireConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = self.build_encoder(encoder)
        self.weighting = LayerWeighting(config)
        self.fusion = FusionNetwork(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        output_layer_weights: bool = False,
        output_hidden_states: bool | int | list[int] | None = None,
        first_token_only: bool = False,
        **kwargs: Any,
    ) -> HireModelOutput:
        r"""
        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs:
                what the encoder takes, `(batch, tokens)`. Without a mask every token is real.
            output_layer_weights (`bool`): whether to return the weights.
            output_hidden_states (`bool`, `int` or `list[int]`):
                whether to return the encoder's hidden states, or which: `None` stands for the others then.
            first_token_only (`bool`): F at the first token only, which costs less; sentence tasks read no other.

        Raises:
            ValueError: for inputs or a mask of another shape, a hidden state that does not exist, or an encoder that
                cannot be read by layer.
        """
        inputs = encoder_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds) | kwargs
        packing = self._packing(input_ids, inputs_embeds, attention_mask)
        encoded = None
        keep, attend = asked_for(self.config, output_hidden_states, inputs)
        streamed = self._stream(packing, inputs) if not (keep or attend) and self._should_stream(packing) else None
        if streamed is None:
            encoded = self.read_layers(**inputs)
            streamed = self._mix(encoded.hidden_states, packing)
        last, mixture, weights = streamed
        fused = self._fuse(last, mixture, packing, first_token_only)
        return HireModelOutput(
            last_hidden_state=fused,
            layer_weights=weights if output_layer_weights else None,
            hidden_states=kept_states(encoded.hidden_states, keep) if keep else None,
            attentions=getattr(encoded, "attentions", None),
        )

    def _packing(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
    ) -> Packing:
        tokens = check_tokens(input_ids, inputs_embeds, "batch", "tokens")
        if attention_mask is None:
            attention_mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        check_mask(attention_mask, tokens)
        return Packing.from_mask(attention_mask)

    # The packed length differs from batch to batch, so compiling what follows would compile it anew each time.
    @torch.compiler.disable
    def _mix(
        self, hidden_states: tuple[torch.Tensor, ...], packing: Packing
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """R and A, `(packed_tokens, hidden_size)`, and s, `(batch, layers)`, from all hidden states at once."""
        last = packing.pack(hidden_states[-1])
        layers = [packing.pack(hidden_states[index]).to(last.device) for index in self.config.layer_indices]
        layers = torch.stack(layers, dim=1)
        weights = at_least_single(self.weighting(layers, packing)).softmax(dim=-1)
        spread = weights.to(layers.dtype).index_select(0, packing.example.to(layers.device))
        return last, torch.bmm(spread[:, None], layers).squeeze(1), weights

    @torch.compiler.disable
    def _fuse(self, last: torch.Tensor, mixture: torch.Tensor, packing: Packing, first_token_only: bool):
        fused = self.fusion(last, mixture.to(last.dtype), packing, first_token_only)
        return fused[:, None] if first_token_only else packing.unpack(fused)

    def _should_stream(self, packing: Packing) -> bool:
        mode = self.config.streaming
        if mode == "never" or self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        rows, columns = packing.shape
        # A replica of DataParallel has no parameters to ask for their type.
        itemsize = next((p.dtype.itemsize for p in self.parameters() if p.is_floating_point()), 4)
        size = rows * columns * self.config.hidden_size * itemsize * len(self.config.layer_indices)
        return mode == "always" or size > STREAMING_BYTES

    def _stream(self, packing: Packing, inputs: dict[str, Any]):
        """As `_mix`, layer by layer; `None` if the encoder cannot be watched from outside."""
        running, indices = RunningMixture(), self.config.layer_indices

        def visit(index: int, state: torch.Tensor) -> None:
            if index in indices:
                layer = packing.pack(state)
                scores = self.weighting(layer[:, None], packing, column=indices.index(index))
                running.add(scores[:, 0], layer, packing)

        last = self.stream_layers(visit, **inputs)
        if last is None:
            return None
        visit(self.config.num_executed_layers, last)
        return packing.pack(last), *running.finish(packing)


class HireTaskModel(HirePreTrainedModel):
    """A [`HireModel`] and a head. `head` makes logits of F, and `loss` compares them with the labels."""

    first_token_only = False

    def __init__(self, config: HireConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.hire = HireModel(config, encoder)
        self.num_labels = config.num_labels
        self.dropout = nn.Dropout(config.hire_dropout)

    def head(self, fused: torch.Tensor) -> torch.Tensor:
        """`(batch, tokens, 2 * fusion_hidden_size)` to logits; one token only with `first_token_only`."""
        return self.classifier(fused[:, 0] if self.first_token_only else self.dropout(fused))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> HireTaskOutput:
        r"""
        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: see [`HireModel`].
            labels (`torch.Tensor`, *optional*): what the class says.
            num_items_in_batch (`int`, *optional*): labels in the whole accumulated batch; divides the loss.
        """
        outputs = self.hire(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            first_token_only=self.first_token_only,
            return_dict=True,
            **kwargs,
        )
        logits = self.head(outputs.last_hidden_state)
        loss = None if labels is None else sequence_loss(logits, labels, self.config, num_items_in_batch)
        return HireTaskOutput(loss=loss, logits=logits, **extras(outputs))


def extras(outputs: HireModelOutput) -> dict[str, Any]:
    """What a task model passes on from the bare model."""
    return {key: outputs[key] for key in ("layer_weights", "hidden_states", "attentions") if key in outputs}


class HireForSequenceClassification(HireTaskModel):
    r"""
    HIRE for one label a text or pair of texts: a class, several classes at once, or a score.

    `labels`: class ids `(batch,)`; scores `(batch,)` with `config.num_labels == 1`; zeros and ones
    `(batch, num_labels)` for several classes at once. `config.problem_type` settles which, or the labels' type does.
    Logits: `(batch, num_labels)`.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import HireConfig, HireForSequenceClassification

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    >>> model = HireForSequenceClassification(HireConfig.preset("fast", encoder_config, num_labels=3))
    >>> outputs = model(input_ids=torch.tensor([[101, 2023, 102]]), labels=torch.tensor([2]))
    >>> outputs.logits.shape
    torch.Size([1, 3])
    ```
    """

    first_token_only = True

    def __init__(self, config: HireConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        self.classifier = HireClassificationHead(config, self.hire.fusion.output_size, config.num_labels)
        self.post_init()


class HireForTokenClassification(HireTaskModel):
    r"""
    HIRE for a class a token. `labels`: class ids `(batch, tokens)`, -100 where none. Logits:
    `(batch, tokens, num_labels)`.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import HireConfig, HireForTokenClassification

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    >>> model = HireForTokenClassification(HireConfig.preset("fast", encoder_config, num_labels=5))
    >>> model(input_ids=torch.tensor([[101, 2023, 102]])).logits.shape
    torch.Size([1, 3, 5])
    ```
    """

    def __init__(self, config: HireConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        self.classifier = nn.Linear(self.hire.fusion.output_size, config.num_labels)
        self.post_init()


class HireForMultipleChoice(HireTaskModel):
    r"""
    HIRE for choosing one of several texts. Inputs: `(batch, choices, tokens)`. `labels`: the right choice `(batch,)`.
    Logits: `(batch, choices)`; other outputs have `batch * choices` rows.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import HireConfig, HireForMultipleChoice

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    >>> model = HireForMultipleChoice(HireConfig.preset("fast", encoder_config))
    >>> model(input_ids=torch.tensor([[[101, 2023, 102], [101, 2003, 102]]])).logits.shape
    torch.Size([1, 2])
    ```
    """

    first_token_only = True

    def __init__(self, config: HireConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        self.classifier = HireClassificationHead(config, self.hire.fusion.output_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> HireTaskOutput:
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        choices = check_tokens(input_ids, inputs_embeds, "batch", "choices", "tokens").shape[1]
        flat = [value if value is None else value.flatten(0, 1) for value in given]
        outputs = super().forward(*flat, return_dict=True, **kwargs)
        logits = outputs.logits.view(-1, choices)
        loss = None if labels is None else class_loss(logits, labels, num_items_in_batch)
        return HireTaskOutput(loss=loss, logits=logits, **extras(outputs))


class HireForQuestionAnswering(HireTaskModel):
    r"""
    HIRE for the span that answers a question. `start_positions` and `end_positions`: token indices `(batch,)`; an
    index outside the text counts as no label. Returns `start_logits` and `end_logits`, `(batch, tokens)`.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import HireConfig, HireForQuestionAnswering

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    >>> model = HireForQuestionAnswering(HireConfig.preset("fast", encoder_config))
    >>> model(input_ids=torch.tensor([[101, 2023, 102]])).start_logits.shape
    torch.Size([1, 3])
    ```
    """

    def __init__(self, config: HireConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        self.qa_outputs = nn.Linear(self.hire.fusion.output_size, 2)
        self.post_init()

    def head(self, fused: torch.Tensor) -> torch.Tensor:
        return self.qa_outputs(self.dropout(fused))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> HireQuestionAnsweringOutput:
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = super().forward(*given, return_dict=True, **kwargs)
        both = start_logits, end_logits = outputs.logits.unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(*both, start_positions, end_positions, num_items_in_batch, attention_mask)
        return HireQuestionAnsweringOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits, **extras(outputs)
        )


class RobertaHireModel(HireModel):
    """[`HireModel`] on a RoBERTa-like encoder, the paper's setting (see [`RobertaForHIRE`])."""

    config: RobertaHireConfig
    config_class = RobertaHireConfig


class RobertaForHIRE(HireForSequenceClassification):
    r"""
    The paper's model: HIRE for sequence classification or regression on a RoBERTa-like encoder.

    Example:

    ```python
    >>> import torch
    >>> from transformers import RobertaConfig
    >>> from modeling_hire import RobertaForHIRE, RobertaHireConfig

    >>> encoder_config = RobertaConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=2)
    >>> model = RobertaForHIRE(RobertaHireConfig.preset("paper", encoder_config)).eval()
    >>> model(input_ids=torch.tensor([[0, 100, 2]]), output_layer_weights=True).layer_weights.shape
    torch.Size([1, 3])
    ```
    """

    config: RobertaHireConfig
    config_class = RobertaHireConfig


# So that every checkpoint carries this code, those that a trainer saves along the way too.
HireConfig.register_for_auto_class()
RobertaHireConfig.register_for_auto_class()
HireModel.register_for_auto_class("AutoModel")
RobertaHireModel.register_for_auto_class("AutoModel")
HireForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
RobertaForHIRE.register_for_auto_class("AutoModelForSequenceClassification")
HireForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
HireForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
HireForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
