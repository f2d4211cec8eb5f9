"""One vector for a text, or for a pair of texts whose tokens are compared with each other."""

from __future__ import annotations

import torch
from torch import nn

from .configuration_elmo import ElmoConfig


class ElmoMatcher(nn.Module):
    r"""
    ESIM's attention, comparison and pooling (Chen et al., arXiv 1609.06038) on ELMo's states. ESIM's own two recurrent
    layers are left out: the states know their context already.

    With x a token's state through a linear map and a ReLU, every token looks at the tokens of the *other* text,
    `x~ = sum_j softmax_j(x . x_j / sqrt(size)) x_j`, and is compared with what it found,
    `y = relu(W [x; x~; x - x~; x * x~] + b)`. The texts' means and maxima of y, side by side, go through a layer with
    a tanh. A single text finds nothing, `x~ = 0`, and the second text's mean and maximum are zero.

    Args:
        config ([`ElmoConfig`]): the configuration.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        size = config.classifier_size
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.encode = nn.Linear(config.hidden_size, size)
        self.compare = nn.Linear(4 * size, size)
        self.dense = nn.Linear(4 * size, size)

    def forward(self, states: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """
        Args:
            states (`torch.Tensor` of shape `(batch, tokens, hidden_size)`): of both texts.
            first, second (`torch.BoolTensor` of shape `(batch, tokens)`): the tokens of each text.

        Returns:
            `(batch, classifier_size)`.
        """
        own = self.encode(self.dropout(states)).relu()
        found = attend(own, first, second)
        compared = torch.cat([own, found, own - found, own * found], dim=2)
        compared = self.compare(self.dropout(compared)).relu()
        pooled = torch.cat([*mean_and_maximum(compared, first), *mean_and_maximum(compared, second)], dim=1)
        return self.dropout(self.dense(self.dropout(pooled)).tanh())


def attend(states: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What each token finds in the other text, `(batch, tokens, size)`; zero where there is none."""
    across = first[:, :, None] & second[:, None, :]
    across = across | across.transpose(1, 2)
    scores = torch.bmm(states, states.transpose(1, 2)) * states.shape[2] ** -0.5
    # The lowest number and not -inf: the softmax of a token that may look nowhere would be NaN.
    weights = scores.masked_fill(~across, torch.finfo(scores.dtype).min).softmax(dim=2)
    return torch.bmm(weights.masked_fill(~across, 0), states)


def mean_and_maximum(states: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and maximum over the tokens of a text, each `(batch, size)`; zero for a text without tokens."""
    outside = ~mask[:, :, None]
    mean = states.masked_fill(outside, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)[:, None]
    # What is compared is positive or zero, so zero stands for nothing in a maximum.
    return mean.to(states.dtype), states.masked_fill(outside, 0).amax(dim=1)
