"""What the ELMo models return."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class ElmoModelOutput(ModelOutput):
    """Output of [`ElmoModel`].

    Args:
        last_hidden_state (`torch.FloatTensor` of shape `(batch, tokens, hidden_size)`):
            The mixture of all layers, forward states before backward ones; zero at padding.
        hidden_states (`tuple[torch.FloatTensor]`, *optional*):
            On request: the token vectors, twice side by side, and each LSTM layer's states, all of the same shape.
    """

    last_hidden_state: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None


@dataclass
class ElmoPreTrainingOutput(ModelOutput):
    """Output of [`ElmoForPreTraining`].

    Args:
        loss: with labels, the mean of the losses of the directions that ran.
        forward_loss, backward_loss: with labels, the mean loss of a prediction in each direction.
        forward_logits, backward_logits (`torch.FloatTensor` of shape `(batch, tokens + 1, vocab_size)`, *optional*):
            Without labels, or on request: scores of the next word at the text's beginning and at every token, and of
            the word before at every token, and in the last column, after any padding, at the text's end, whose
            label is a text's last token; zero at padding.
        hidden_states: on request, as of [`ElmoModelOutput`].
    """

    loss: torch.FloatTensor | None = None
    forward_loss: torch.FloatTensor | None = None
    backward_loss: torch.FloatTensor | None = None
    forward_logits: torch.FloatTensor | None = None
    backward_logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None

    @property
    def losses(self) -> dict[str, torch.FloatTensor]:
        """The losses that there are by the name of the task: `forward_lm`, `backward_lm`."""
        given = {"forward_lm": self.forward_loss, "backward_lm": self.backward_loss}
        return {task: loss for task, loss in given.items() if loss is not None}


@dataclass
class ElmoClassifierOutput(ModelOutput):
    """Output of [`ElmoForSequenceClassification`]: `loss` with labels, `logits`, and `hidden_states` on request."""

    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
