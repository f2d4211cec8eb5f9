"""What the HIRE models return."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class HireModelOutput(ModelOutput):
    """Output of [`HireModel`].

    Args:
        last_hidden_state (`torch.FloatTensor` of shape `(batch, tokens, 2 * fusion_hidden_size)`):
            The fused representation F; zero at padding. Only the first token with `first_token_only`.
        layer_weights (`torch.FloatTensor` of shape `(batch, layers)`, *optional*):
            With `output_layer_weights=True`: the weight of each layer of `config.layer_indices`; rows sum to one.
        hidden_states, attentions: the encoder's, on request.
    """

    last_hidden_state: torch.FloatTensor | None = None
    layer_weights: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


@dataclass
class HireTaskOutput(ModelOutput):
    """Output of the classification heads: `loss` with labels, `logits`, and on request the fields of the model's."""

    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    layer_weights: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


@dataclass
class HireQuestionAnsweringOutput(ModelOutput):
    """Output of [`HireForQuestionAnswering`]: `start_logits` and `end_logits` of shape `(batch, tokens)`."""

    loss: torch.FloatTensor | None = None
    start_logits: torch.FloatTensor | None = None
    end_logits: torch.FloatTensor | None = None
    layer_weights: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None
