"""ELMo's token encoder: convolutions over the characters of a token, highway layers, and a projection."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .configuration_elmo import ElmoConfig
from .configuration_elmo_characters import FILLER, PADDING


# A new highway lets most of its input through as it is.
GATE_BIAS = -2.0


class HighwayGate(nn.Linear):
    """The linear map of a highway's gate, a class of its own for its initial bias."""


class Highway(nn.Module):
    """`x' = g * relu(W_t x + b_t) + (1 - g) * x` with `g = sigmoid(W_c x + b_c)`, of one width.

    Args:
        size (`int`): features in and out.
    """

    def __init__(self, size: int):
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = HighwayGate(size, size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """`(..., size)` to `(..., size)`."""
        return torch.lerp(inputs, self.transform(inputs).relu(), self.gate(inputs).sigmoid())


class CharacterEncoder(nn.Module):
    """A vector for each token, from its characters alone.

    Every distinct token of a batch is encoded once, and only as many characters as the longest one has: what lies
    beyond is the same filling for all, and the convolutions need to see it only once.

    Args:
        config ([`ElmoConfig`]): the configuration.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.num_characters, config.character_size, padding_idx=PADDING)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.character_size, number, width) for width, number in config.filters
        )
        size = sum(number for _, number in config.filters)
        self.highways = nn.ModuleList(Highway(size) for _ in range(config.num_highway_layers))
        self.projection = nn.Linear(size, config.projection_size)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[config.character_activation]
        self.widest = max(width for width, _ in config.filters)

    def forward(self, characters: torch.LongTensor) -> torch.Tensor:
        """`(tokens, max_characters)` to `(tokens, projection_size)`."""
        distinct, place = torch.unique(characters, dim=0, return_inverse=True)
        filled = (distinct == FILLER).all(dim=0)
        # The first column from which there is only filling, and one window of the widest filter in it.
        start = int((~filled).nonzero().max()) + 1 if not filled.all() else 0
        embedded = self.embedding(distinct[:, : start + self.widest]).transpose(1, 2)
        # The activations rise, so the largest of the activated is the activated largest.
        largest = [functional.conv1d(embedded, c.weight, c.bias).max(dim=2).values for c in self.convolutions]
        vectors = self.activation(torch.cat(largest, dim=1))
        for highway in self.highways:
            vectors = highway(vectors)
        return self.projection(vectors).index_select(0, place)
