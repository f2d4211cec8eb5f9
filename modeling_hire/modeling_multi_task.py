"""One encoder with a head a task: the model of multi-task and meta-learning pre-training (arXiv 2004.05568)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_multi_task import MultiTaskConfig
from .modeling_inputs import at_least_single, check_tokens, encoder_inputs
from .modeling_layerwise import LayerwisePreTrainedModel
from .modeling_losses import class_loss


@dataclass
class MultiTaskOutput(ModelOutput):
    """Output of [`MultiTaskModel`].

    Args:
        loss (`torch.FloatTensor`, *optional*): with labels, the weighted sum of the tasks' losses.
        losses (`dict[str, torch.FloatTensor]`, *optional*): with labels, each task's own, without its weight.
        logits (`dict[str, torch.FloatTensor]`, *optional*): of the tasks asked for: `(batch, num_labels)` for texts,
            `(batch,)` for scores, `(batch, tokens, vocab_size)` for words.
        last_hidden_state (`torch.FloatTensor` of shape `(batch, tokens, hidden_size)`): the encoder's.
        hidden_states, attentions: the encoder's, on request.
    """

    loss: torch.FloatTensor | None = None
    losses: dict[str, torch.FloatTensor] | None = None
    logits: dict[str, torch.FloatTensor] | None = None
    last_hidden_state: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


class WordHead(nn.Module):
    """Words from hidden states, with the embedding matrix of the encoder as the output matrix, as in BERT."""

    def __init__(self, width: int, embedding_size: int, vocab_size: int, eps: float = 1e-12):
        super().__init__()
        self.dense = nn.Linear(width, embedding_size)
        self.norm = nn.LayerNorm(embedding_size, eps=eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """`(..., hidden_size)` to logits, `(..., vocab_size)`."""
        return functional.linear(self.norm(ACT2FN["gelu"](self.dense(states))), embeddings, self.bias)


class TextHead(nn.Module):
    """Classes or a score of a text from its first token, through a dense layer and tanh."""

    def __init__(self, width: int, num_labels: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, num_labels)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(batch, hidden_size)` to logits, `(batch, num_labels)`."""
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(first_tokens)))))


class MultiTaskModel(LayerwisePreTrainedModel):
    r"""
    An encoder with a head for each of `config.tasks`. `from_pretrained` takes a checkpoint of this class or, with
    `tasks=...`, any plain encoder.

    Args:
        config ([`MultiTaskConfig`]): the configuration.
        encoder (`PreTrainedModel`, *optional*): a loaded encoder of `config.encoder_config`, instead of a new one.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import MultiTaskConfig, MultiTaskModel

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    >>> tasks = {"mlm": {"kind": "masked_lm"}, "nli": {"kind": "classification", "labels": ["yes", "no"]}}
    >>> model = MultiTaskModel(MultiTaskConfig(encoder_config=encoder_config, tasks=tasks))
    >>> ids = torch.tensor([[101, 103, 102]])
    >>> outputs = model(ids, labels={"mlm": torch.tensor([[-100, 2023, -100]]), "nli": torch.tensor([1])})
    >>> sorted(outputs.losses)
    ['mlm', 'nli']
    ```
    """

    config: MultiTaskConfig
    config_class = MultiTaskConfig
    base_model_prefix = "multi_task"

    def __init__(self, config: MultiTaskConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = self.build_encoder(encoder)
        self.heads = nn.ModuleDict()
        for name, task in config.tasks.items():
            if task["kind"] == "masked_lm":
                vocab_size, embedding_size = self.encoder.get_input_embeddings().weight.shape
                eps = getattr(config.encoder_config, "layer_norm_eps", 1e-12)
                self.heads[name] = WordHead(config.hidden_size, embedding_size, vocab_size, eps)
            else:
                count = len(task["labels"]) if task["kind"] == "classification" else 1
                self.heads[name] = TextHead(config.hidden_size, count, config.head_dropout)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, WordHead):
            init.zeros_(module.bias)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: dict[str, torch.Tensor] | None = None,
        tasks: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> MultiTaskOutput:
        r"""
        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs:
                what the encoder takes, `(batch, tokens)`.
            labels (`dict[str, torch.Tensor]`, *optional*):
                by task: words `(batch, tokens)`, -100 where none is to be found; class ids `(batch,)`; scores
                `(batch,)`.
            tasks (`Iterable[str]`, *optional*): whose logits to return; unset, none with labels and all without.

        Raises:
            ValueError: for a task that the model does not have.
        """
        check_tokens(input_ids, inputs_embeds, "batch", "tokens")
        wanted = list(tasks) if tasks is not None else [] if labels is not None else list(self.heads)
        unknown = [name for name in (*wanted, *(labels or ())) if name not in self.heads]
        if unknown:
            raise ValueError(f"task {unknown[0]!r}: this model has {', '.join(map(repr, self.heads))}.")
        inputs = encoder_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds) | kwargs
        encoded = self.encoder(**inputs, return_dict=True)
        states = encoded.last_hidden_state
        losses = {name: self._loss(name, states, values) for name, values in (labels or {}).items()}
        weighted = [self.config.tasks[name].get("weight", 1.0) * loss for name, loss in losses.items()]
        return MultiTaskOutput(
            loss=sum(weighted[1:], weighted[0]) if weighted else None,
            losses=losses or None,
            logits={name: self._logits(name, states) for name in wanted} or None,
            last_hidden_state=states,
            hidden_states=encoded.get("hidden_states"),
            attentions=encoded.get("attentions"),
        )

    def _logits(self, name: str, states: torch.Tensor) -> torch.Tensor:
        head, kind = self.heads[name], self.config.tasks[name]["kind"]
        if kind == "masked_lm":
            return head(states, self.get_input_embeddings().weight)
        logits = head(states[:, 0])
        return logits.squeeze(-1) if kind == "regression" else logits

    def _loss(self, name: str, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        kind = self.config.tasks[name]["kind"]
        if kind == "masked_lm":
            # The words of a vocabulary are many: logits are made where there is something to be found alone.
            chosen = labels != -100
            logits = self.heads[name](states[chosen], self.get_input_embeddings().weight)
            return class_loss(logits, labels[chosen])
        logits = self._logits(name, states)
        if kind == "regression":
            return functional.mse_loss(at_least_single(logits), labels.to(at_least_single(logits).dtype))
        return class_loss(logits, labels)


# So that every checkpoint carries this code, those that a trainer saves along the way too.
MultiTaskConfig.register_for_auto_class()
MultiTaskModel.register_for_auto_class("AutoModel")
