"""The parts of HIRE (Yang & Zhao, arXiv 1911.01940): the layer scorer, the mixture and the fusion network.

All of them work on packed tokens (see `Packing`): real ones only, so that padding can change nothing. In the paper's
terms, for the hidden states `H_1 .. H_L` of an encoder and `R = H_L`:

1. `u_i = [h_fwd(n); h_bwd(1)]` of every GRU layer: one two-layer bidirectional GRU, shared by the layers, reads `H_i`.
2. `a_i = ReLU(w . u_i + b)` and `s = softmax(a)` over the candidate layers: one weight an example and layer.
3. `A = sum_i s_i H_i`.
4. `M = [R; A; R + A; R * A]`.
5. `F = BiGRU(M)`, two layers; the task's head reads `F`.
"""

from __future__ import annotations

import torch
from torch import nn

from .configuration_hire import HireConfig
from .modeling_gru import PackedBiGRU, Packing
from .modeling_inputs import at_least_single


class GruSummary(nn.Module):
    """Equation 1: the final states of a bidirectional GRU over a layer's tokens, all its layers and directions."""

    def __init__(self, config: HireConfig):
        super().__init__()
        size = config.scorer_hidden_size or config.hidden_size
        self.dropout = nn.Dropout(config.hire_dropout)
        self.gru = PackedBiGRU(config.hidden_size, size, config.scorer_layers)
        self.output_size = 2 * config.scorer_layers * size

    def forward(self, layers: torch.Tensor, packing: Packing) -> torch.Tensor:
        examples, count = packing.shape[0], layers.shape[1]
        # The layers of an example are so many sequences side by side: one call for all of them.
        _, final_states = self.gru(self.dropout(layers).flatten(0, 1), packing.repeat(count))
        return final_states.view(examples, count, -1)


class PooledSummary(nn.Module):
    """A layer's first token and mean token through a small MLP: nearly free, and still a function of the input."""

    def __init__(self, config: HireConfig):
        super().__init__()
        self.output_size = config.scorer_hidden_size or max(1, config.hidden_size // 4)
        self.dropout = nn.Dropout(config.hire_dropout)
        self.dense = nn.Linear(2 * config.hidden_size, self.output_size)

    def forward(self, layers: torch.Tensor, packing: Packing) -> torch.Tensor:
        first = layers.index_select(0, packing.first)
        total = packing.unpack(layers.flatten(1)).sum(dim=1).view_as(first)
        mean = total / packing.lengths[:, None, None]
        # Dropout of what is read, not of every token, which would cost more than all the rest.
        return torch.tanh(self.dense(self.dropout(torch.cat([first, mean.to(first.dtype)], dim=-1))))


class Score(nn.Linear):
    """`w . u + b`. A class of its own, because `b` starts at `config.score_bias_init`: transformers initialises only
    modules that hold parameters themselves, so that the scorer around it would be passed over."""

    def __init__(self, inputs: int):
        super().__init__(inputs, 1)

    def forward(self, summary: torch.Tensor) -> torch.Tensor:
        # Layers differ by little beside b: a score rounded to bfloat16 would make most of them equal.
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(summary.device.type, enabled=False):
            return nn.functional.linear(summary.to(dtype), self.weight.to(dtype), self.bias.to(dtype))


class _RescuedReLU(torch.autograd.Function):
    """ReLU over the layers of an example, with a gradient where all of them are dead.

    The softmax over layers does not see what the scores have in common, so nothing but drift moves their mean, and an
    optimiser that normalises its steps lets it drift far. Where it has taken every layer of an example below zero,
    the gradient passes as through the identity and pushes all of them up by as much as the largest of it. The
    function is ReLU's, and so is the gradient wherever one score lives.
    """

    @staticmethod
    def forward(ctx, scores: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scores)
        return scores.relu()

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (scores,) = ctx.saved_tensors
        alive = scores > 0
        dead = ~alive.any(dim=-1, keepdim=True)
        return torch.where(dead, grad - grad.abs().amax(dim=-1, keepdim=True), grad * alive)


def rescued_relu(scores: torch.Tensor) -> torch.Tensor:
    """See [`_RescuedReLU`]; `(batch, layers)` to the same shape."""
    return _RescuedReLU.apply(scores)


class LayerScorer(nn.Module):
    """The score `w . u + b` of each layer of each example, before the activation.

    `forward(layers, packing)` takes `(packed_tokens, layers, hidden_size)` and returns `(batch, layers)`.
    """

    gradient_checkpointing = False  # set by `gradient_checkpointing_enable`, with the function to call

    def __init__(self, config: HireConfig):
        super().__init__()
        self.summary = GruSummary(config) if config.scorer == "gru" else PooledSummary(config)
        self.head = Score(self.summary.output_size)  # not `score`: PEFT takes that for the head of a task

    def forward(self, layers: torch.Tensor, packing: Packing) -> torch.Tensor:
        # The GRU's states over all layers are the largest thing that HIRE keeps for the backward pass.
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(self.scores, layers, packing)
        return self.scores(layers, packing)

    def scores(self, layers: torch.Tensor, packing: Packing) -> torch.Tensor:
        return self.head(self.summary(layers, packing)).squeeze(-1)


class LayerWeighting(nn.Module):
    """Equation 2: scores whose softmax over the layers are the weights s, wherever they come from."""

    def __init__(self, config: HireConfig):
        super().__init__()
        self.kind, count = config.weighting, len(config.layer_indices)
        relu = rescued_relu if config.rescue_dead_scores else torch.relu
        self.activation = {"relu": relu, "tanh": torch.tanh, "none": nn.Identity()}[config.score_activation]
        if self.kind == "dynamic":
            scorers = 1 if config.share_scorer else count
            self.scorers = nn.ModuleList([LayerScorer(config) for _ in range(scorers)])
        elif self.kind == "static":
            self.layer_scores = nn.Parameter(torch.zeros(count))
        elif self.kind == "random":
            self.register_buffer("layer_scores", torch.zeros(count))

    def forward(self, layers: torch.Tensor, packing: Packing, column: int = 0) -> torch.Tensor:
        """Scores `(batch, layers)` of the layers `(packed_tokens, layers, hidden_size)` from `column` on."""
        examples, count = packing.shape[0], layers.shape[1]
        if self.kind == "dynamic" and len(self.scorers) == 1:
            return self.activation(self.scorers[0](layers, packing))
        if self.kind == "dynamic":
            scores = [self.scorers[column + i](layers[:, i : i + 1], packing) for i in range(count)]
            return self.activation(torch.cat(scores, dim=1))
        if self.kind in ("static", "random"):
            return self.layer_scores[column : column + count].expand(examples, count)
        return layers.new_zeros(examples, count)


class RunningMixture:
    """Equation 3 one layer at a time: a softmax-weighted sum that keeps the largest score so far.

    Holds one layer instead of all of them; the result is that of the softmax over the whole list.
    """

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []
        self.peak = self.total = self.mixture = None

    def add(self, score: torch.Tensor, layer: torch.Tensor, packing: Packing) -> None:
        score = at_least_single(score)
        self.scores.append(score)
        if self.peak is None:
            self.peak, self.total, self.mixture = score, torch.ones_like(score), at_least_single(layer)
            return
        peak = torch.maximum(self.peak, score)
        decay, weight = (self.peak - peak).exp(), (score - peak).exp()
        self.peak, self.total = peak, self.total * decay + weight
        self.mixture.mul_(decay[packing.example, None]).addcmul_(layer, weight[packing.example, None])

    def finish(self, packing: Packing) -> tuple[torch.Tensor, torch.Tensor]:
        """The mixture `(packed_tokens, hidden_size)` and the weights `(batch, layers)`."""
        return self.mixture.div_(self.total[packing.example, None]), torch.stack(self.scores, dim=1).softmax(dim=1)


class FusionNetwork(nn.Module):
    """Equations 4 and 5: the features of R and A, through a bidirectional GRU (or a linear map with no layers)."""

    def __init__(self, config: HireConfig):
        super().__init__()
        self.features = config.fusion_features
        size = config.fusion_hidden_size or config.hidden_size
        inputs = len(self.features) * config.hidden_size
        self.output_size = 2 * size
        self.dropout = nn.Dropout(config.hire_dropout)
        self.gru = PackedBiGRU(inputs, size, config.fusion_num_layers) if config.fusion_num_layers else None
        self.projection = None if config.fusion_num_layers else nn.Linear(inputs, self.output_size)

    def forward(
        self, last: torch.Tensor, mixture: torch.Tensor, packing: Packing, first_token_only: bool
    ) -> torch.Tensor:
        """`(packed_tokens, output_size)`, or `(batch, output_size)` with `first_token_only`."""
        if self.gru is None and first_token_only:
            last, mixture = last.index_select(0, packing.first), mixture.index_select(0, packing.first)
        parts = {
            "last": lambda: last,
            "mixture": lambda: mixture,
            "sum": lambda: last + mixture,
            "product": lambda: last * mixture,
        }
        matched = self.dropout(torch.cat([parts[name]() for name in self.features], dim=-1))
        if self.gru is None:
            return self.projection(matched)
        return self.gru(matched, packing, first_token_only)[0]


class HireClassificationHead(nn.Module):
    """`W_2 tanh(W_1 c + b_1) + b_2` on the fused first token c, with dropout before both maps."""

    def __init__(self, config: HireConfig, inputs: int, num_labels: int):
        super().__init__()
        self.dropout = nn.Dropout(config.hire_dropout)
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, num_labels)

    def forward(self, fused: torch.Tensor) -> torch.Tensor:
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(fused)))))
