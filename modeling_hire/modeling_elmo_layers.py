"""The two language models of ELMo over a batch of texts, and the mixture of their layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .configuration_elmo import ElmoConfig
from .configuration_elmo_characters import TEXT_BEGIN, TEXT_END, boundary
from .modeling_elmo_characters import CharacterEncoder
from .modeling_elmo_lstm import ElmoLayer, Steps, Tensors, turned
from .modeling_gru import Packing, take_rows


BOTH = ("forward", "backward")


@dataclass
class Texts:
    """A batch of texts with their beginnings and ends, packed.

    Attributes:
        packing ([`Packing`]): of `(texts, tokens + 2)`: beginning, tokens with their padding, end. Of pairs, all first
            texts come before all second ones.
        steps ([`Steps`]): of the packing.
        characters (`torch.LongTensor` of shape `(packed_tokens, max_characters)`): how each packed token is spelt.
        shape (`tuple[int, int]`): rows and columns of the batch.
    """

    packing: Packing
    steps: Steps
    characters: torch.Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, input_ids: torch.Tensor, mask: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> Texts:
        """Take a batch apart.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, tokens, max_characters)`): spelt tokens.
            mask (`torch.BoolTensor` of shape `(batch, tokens)`): real tokens. Padding may stand anywhere.
            token_type_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*): 0 and 1 where the rows are
                pairs.
        """
        rows, columns, width = input_ids.shape
        masks = [mask] if token_type_ids is None else [mask & (token_type_ids == 0), mask & (token_type_ids != 0)]
        real = nn.functional.pad(torch.cat(masks), (1, 1), value=True)
        packing = Packing.from_mask(real.long())
        begin = torch.tensor(boundary(TEXT_BEGIN, width), device=input_ids.device)
        end = torch.tensor(boundary(TEXT_END, width), device=input_ids.device)
        spelt = torch.cat([begin.expand(rows, 1, -1), input_ids, end.expand(rows, 1, -1)], dim=1)
        index = packing.index % (rows * (columns + 2))
        return cls(packing, Steps.of(packing), spelt.flatten(0, 1).index_select(0, index), (rows, columns))

    def unpack(self, packed: torch.Tensor, first: int = 1, last: int = 1) -> torch.Tensor:
        """Packed tokens back in their places, zeros at padding.

        Args:
            packed (`torch.Tensor` of shape `(packed_tokens, features)`): what belongs to the tokens.
            first, last (`int`): how many columns to leave out at both ends: 1 where the text's beginning or end
                stands, 0 to keep it.

        Returns:
            `(batch, columns, features)`; `columns` is `tokens` if both ends are left out.
        """
        rows, columns = self.shape
        width = columns + 2 - first - last
        index = self.packing.index.to(packed.device)
        row, column = index // (columns + 2) % rows, index % (columns + 2) - first
        kept = ((column >= 0) & (column < width)).nonzero().squeeze(1)
        flat = packed.new_zeros(rows * width, packed.shape[1])
        place = row[kept] * width + column[kept]
        return flat.index_copy(0, place, take_rows(packed, kept)).view(rows, width, -1)


class ElmoMix(nn.Module):
    """`gamma * sum_l softmax(w)_l h_l`, with a number w for each layer, and gamma, to be trained.

    Args:
        config ([`ElmoConfig`]): the configuration.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.layer_scores = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))
        self.gamma = nn.Parameter(torch.ones(()))
        self.normalise = config.mix_layer_norm

    def forward(self, layers: Sequence[torch.Tensor], texts: Texts) -> torch.Tensor:
        """Layers, each `(packed_tokens, hidden_size)`, to their mixture, of the same shape."""
        if self.normalise:
            layers = [_normalised(layer, texts.packing) for layer in layers]
        weights = (self.gamma * self.layer_scores.softmax(dim=0)).to(layers[0].dtype)
        mixture = weights[0] * layers[0]
        for weight, layer in zip(weights[1:], layers[1:], strict=True):
            mixture = torch.addcmul(mixture, weight, layer)
        return mixture


def _normalised(layer: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Mean 0 and variance 1 over all tokens, both ends left out, and all features of each text."""
    texts, width = packing.shape
    example, column = packing.example.to(layer.device), packing.index.to(layer.device) % width
    inner = ((column > 0) & (column < width - 1)).to(layer.dtype)
    counts = layer.new_zeros(texts).index_add(0, example, inner).clamp(min=1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return (layer.new_zeros(texts).index_add(0, example, values.mean(dim=1) * inner) / counts)[example, None]

    centred = layer - mean(layer)
    return centred / (mean(centred.square()) + 1e-12).sqrt()


class ElmoEncoder(nn.Module):
    """The token encoder and the LSTM layers of both directions.

    Args:
        config ([`ElmoConfig`]): the configuration.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.characters = CharacterEncoder(config)
        self.layers = nn.ModuleList(ElmoLayer(config) for _ in range(config.num_hidden_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.config = config
        # Not buffers: where a stream of texts stands is no part of a model, and never saved with it.
        self._states: list[dict[str, Tensors]] = []

    def forward(self, texts: Texts, directions: Sequence[str] = BOTH) -> list[dict[str, torch.Tensor]]:
        """
        Args:
            texts ([`Texts`]): the batch.
            directions: which of the language models run.

        Returns:
            For the token vectors and each layer, by direction: the states in that direction's order,
            `(packed_tokens, projection_size)`.
        """
        weight = self.characters.projection.weight
        with torch.autocast(weight.device.type, enabled=False):
            tokens = self.characters(texts.characters)
            given = {"forward": tokens}
            if "backward" in directions:
                given["backward"] = turned(tokens, texts.steps)
            current = torch.stack([given[direction] for direction in directions])
            layers = [current]
            for number, layer in enumerate(self.layers):
                inputs = self.dropout(current)
                state = self._start(number, directions, texts, current)
                current, state = layer(inputs, texts.steps, state, directions)
                self._keep(number, directions, texts, state)
                if self.config.use_skip_connections and number > 0:
                    current = current + inputs
                layers.append(current)
        return [dict(zip(directions, layer, strict=True)) for layer in layers]

    def _start(self, number: int, directions: Sequence[str], texts: Texts, like: torch.Tensor) -> Tensors:
        """Where the LSTMs of a layer start, in packed order."""
        layer, count = self.layers[number], texts.packing.shape[0]
        sizes = (layer.forward_lstm.proj_size, layer.forward_lstm.hidden_size)
        parts = [like.new_zeros(len(directions), count, size) for size in sizes]
        if self.config.stateful and number < len(self._states):
            place = texts.packing.first
            for row, direction in enumerate(directions):
                for part, kept in zip(parts, self._states[number].get(direction, ()), strict=False):
                    known = min(count, len(kept))
                    part[row, place[:known]] = kept[:known].to(part)
        return tuple(parts)

    def _keep(self, number: int, directions: Sequence[str], texts: Texts, state: Tensors) -> None:
        """Remember where the sequences ended, by row. Rows that a smaller batch lacks stay where they were."""
        if not self.config.stateful:
            return
        if number == len(self._states):
            self._states.append({})
        place, states = texts.packing.first, self._states[number]
        for row, direction in enumerate(directions):
            ended = [part[row].detach().index_select(0, place) for part in state]
            before = states.get(direction, ended)
            states[direction] = tuple(
                torch.cat([new, old[len(new) :].to(new)]) for new, old in zip(ended, before, strict=True)
            )

    def reset_states(self) -> None:
        """Forget where the texts of the last batch ended."""
        self._states.clear()


def side_by_side(layers: list[dict[str, torch.Tensor]], steps: Steps) -> list[torch.Tensor]:
    """Each layer's states of both directions, at the same token, `(packed_tokens, 2 * projection_size)`."""
    return [torch.cat([layer["forward"], turned(layer["backward"], steps)], dim=1) for layer in layers]
