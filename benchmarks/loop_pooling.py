"""Layer-wise attention pooling as a loop over the queries, the way the authors' code computes it.

For every layer whose first token asks, the means of all layers are stacked, projected to keys and values and activated
once more. It takes its weights from a `LayerPooler` with the default settings, and gives the same embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from modeling_hire.modeling_layer_pooling import LOWER, UPPER, LayerPooler


class LoopPooler(nn.Module):
    """The loop over queries, sharing the parameters of `pooler`."""

    def __init__(self, pooler: LayerPooler):
        super().__init__()
        self.attention, self.dense = pooler.attention, pooler.dense

    def forward(self, first_tokens: Sequence[torch.Tensor], token_means: Sequence[torch.Tensor]) -> torch.Tensor:
        """Embeddings, `(batch, hidden_size)`, from one tensor of that shape a layer."""
        pooled = []
        for asking in first_tokens:
            layers = torch.stack(list(token_means), dim=1)
            query = self._activate(self.attention.query(asking))[:, None]
            keys = self._activate(self.attention.key(layers))
            values = self._activate(self.attention.value(layers))
            scores = query @ keys.transpose(1, 2) / len(token_means)
            pooled.append(scores.softmax(dim=-1) @ values)
        mean = torch.cat(pooled, dim=1).mean(dim=1)
        return torch.tanh(self.dense(torch.cat([first_tokens[-1], mean], dim=-1)))

    def _activate(self, projected: torch.Tensor) -> torch.Tensor:
        return functional.rrelu(projected, LOWER, UPPER, self.training)
