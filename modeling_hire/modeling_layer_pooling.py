"""Poolers: from two vectors a layer, its first token and the mean of its tokens, to one embedding of a text."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .configuration_layer_attn_pool import LayerAttnPoolConfig
from .modeling_inputs import at_least_single


# Slopes between which RReLU draws, and their mean, which it uses outside training.
LOWER, UPPER = 1 / 8, 1 / 3
MEAN_SLOPE = (LOWER + UPPER) / 2


class LayerSummary:
    """What the poolers read of hidden states, gathered one layer at a time: of a token state nothing is kept.

    Args:
        attention_mask (`torch.Tensor`, *optional*): `(batch, tokens)`, zero at padding; `None` if there is none.
        cls_position (`str`): which real token stands for the text, `"first"` or `"last"`.
    """

    def __init__(self, attention_mask: torch.Tensor | None, cls_position: str):
        self.first_tokens: list[torch.Tensor] = []
        self.token_means: list[torch.Tensor] = []
        self.is_last = cls_position == "last"
        self.shares: torch.Tensor | None = None
        if attention_mask is not None:
            # Padding may be on either side.
            marks = (attention_mask != 0).long()
            self.position = marks.shape[1] - 1 - marks.flip(1).argmax(1) if self.is_last else marks.argmax(1)
            # Of the mean: a sum of many tokens could exceed what half precision holds.
            self.shares = (marks / marks.sum(dim=1, keepdim=True).clamp(min=1))[:, None]

    def add(self, state: torch.Tensor) -> None:
        """Take a hidden state, `(batch, tokens, hidden_size)`."""
        if self.shares is None:
            # A copy: a view would hold the whole state.
            self.first_tokens.append(state[:, -1 if self.is_last else 0].clone())
            self.token_means.append(state.mean(dim=1))
            return
        device = state.device
        self.first_tokens.append(state[torch.arange(len(state), device=device), self.position.to(device)])
        # A product of matrices: nothing as large as the states is written.
        self.token_means.append(torch.bmm(self.shares.to(device, state.dtype), state).squeeze(1))

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """First tokens and means, `(batch, layers, hidden_size)` each."""
        device = self.first_tokens[-1].device  # layers may lie on several
        return tuple(
            torch.stack([vector.to(device) for vector in vectors], dim=1)
            for vectors in (self.first_tokens, self.token_means)
        )


class LayerAttention(nn.Module):
    r"""
    Attention over layers: q_i = phi(W_q h_i), k_j = phi(W_k g_j), v_j = phi(W_v g_j),
    alpha_ij = softmax_j(q_i . k_j / N), and the mean over i of sum_j alpha_ij v_j. The mean over the queries is taken
    of the weights, so that the result is one weighted sum of the values.
    """

    def __init__(self, config: LayerAttnPoolConfig):
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, first_tokens: torch.Tensor, token_means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend.

        Args:
            first_tokens, token_means: `(batch, layers, hidden_size)`.

        Returns:
            The pooled layers, `(batch, hidden_size)`, and the weight of each layer, `(batch, layers)`.
        """
        config = self.config
        asking = {"cls_all": first_tokens, "cls_last": first_tokens[:, -1:], "mean_all": token_means}[config.query]
        answering = token_means if config.key_value == "mean_all" else first_tokens
        queries, keys, values = self.query(asking), self.key(answering), self.value(answering)
        scale = {"n_layers": answering.shape[1], "sqrt_d": answering.shape[2] ** 0.5, "none": 1.0}[config.score_scale]
        queries = self._activate(queries) / scale
        if config.rrelu_resample and self.training:
            return self._attend_resampled(queries, keys, values)
        keys, values = self._activate(keys), self._activate(values)
        weights = at_least_single(torch.bmm(queries, keys.transpose(1, 2))).softmax(dim=-1).mean(dim=1)
        return torch.bmm(weights[:, None].to(values.dtype), values).squeeze(1), weights

    def _attend_resampled(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor):
        # One draw of slopes for every query: (batch, queries, layers, hidden_size).
        shape = (-1, queries.shape[1], -1, -1)
        keys, values = (self._activate(each[:, None].expand(shape)) for each in (keys, values))
        scores = torch.einsum("bqd,bqld->bql", queries, keys)
        weights = at_least_single(scores).softmax(dim=-1)
        pooled = torch.einsum("bql,bqld->bqd", weights.to(values.dtype), values).mean(dim=1)
        return pooled, weights.mean(dim=1)

    def _activate(self, projected: torch.Tensor) -> torch.Tensor:
        kind = self.config.activation
        if kind == "rrelu" and self.training:
            # As functional.rrelu, whose loop over the elements costs a CPU half as much as the projection itself.
            slopes = projected.new_empty(projected.shape).uniform_(LOWER, UPPER)
            return projected * slopes.clamp_(min=projected.detach().sign())  # 1 above zero
        if kind in ("rrelu", "leaky"):
            return functional.leaky_relu(projected, MEAN_SLOPE)
        return functional.relu(projected) if kind == "relu" else projected


class LayerPooler(nn.Module):
    """The pooler that `config.pooler` names: a [`LayerSummary`] becomes one embedding."""

    def __init__(self, config: LayerAttnPoolConfig):
        super().__init__()
        self.config = config
        width, kind = config.hidden_size, config.pooler
        if kind == "layer_attn":
            self.attention = LayerAttention(config)
        if kind == "static_mix":
            self.layer_scores = nn.Parameter(torch.zeros(len(config.layer_indices)))
        if kind in ("layer_attn", "cls", "cls_and_mean"):
            joined = kind == "cls_and_mean" or (kind == "layer_attn" and config.concat_last_cls)
            self.dense = nn.Linear(2 * width if joined else width, width)

    def forward(self, summary: LayerSummary) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pool.

        Args:
            summary: of the hidden states `config.layer_indices`.

        Returns:
            The embedding, `(batch, hidden_size)`, and the weight of each layer, `(batch, layers)`, or `None` if this
            pooler has none.
        """
        kind, config = self.config.pooler, self.config
        last_first, last_mean = summary.first_tokens[-1], summary.token_means[-1]
        if not self.training and config.detach_at_inference is not None:
            return (last_first if config.detach_at_inference == "cls" else last_mean), None
        if kind == "layer_attn":
            pooled, weights = self.attention(*summary.stacked())
            if config.concat_last_cls:
                pooled = torch.cat([last_first, pooled.to(last_first.dtype)], dim=-1)
            return self._dense(pooled), weights
        if kind == "static_mix":
            means = summary.stacked()[1]
            weights = self.layer_scores.softmax(dim=0).to(means.device, means.dtype)
            return torch.einsum("l,bld->bd", weights, means), weights.expand(len(means), -1)
        if kind == "cls":
            return self._dense(last_first), None
        if kind == "cls_before_pooler":
            return last_first, None
        if kind == "cls_and_mean":
            return self._dense(torch.cat([last_first, last_mean], dim=-1)), None
        # The mean of means is the mean over layers and tokens alike: every layer has as many.
        return summary.stacked()[1].mean(dim=1), None

    def _dense(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(vectors))
