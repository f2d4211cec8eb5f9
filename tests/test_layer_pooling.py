"""Poolers against the published equations, written as loops over texts, layers, queries and tokens."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tiny_sentence_encoders import SETTINGS, sentence_config
from torch import nn
from torch.func import functional_call

from modeling_hire import LayerAttnPoolConfig
from modeling_hire.configuration_layer_attn_pool import (
    ACTIVATIONS,
    KEY_VALUES,
    POOLERS,
    QUERIES,
    SCORE_SCALES,
    TRAINED_POOLERS,
)
from modeling_hire.modeling_layer_pooling import LayerAttention, LayerPooler, LayerSummary


# A mask of six columns for texts of these lengths, and where their tokens stand.
LENGTHS = (6, 3, 1, 4)
RIGHT = torch.tensor([[1] * length + [0] * (6 - length) for length in LENGTHS])
MASKS = {"right": RIGHT, "left": RIGHT.flip(1), "gap": RIGHT.roll(1, dims=1), "none": None}


def phi(vector: torch.Tensor, activation: str) -> torch.Tensor:
    """The activation outside training: RReLU's slope is then the mean of 1/8 and 1/3, 11/48."""
    slope = {"rrelu": 11 / 48, "leaky": 11 / 48, "relu": 0.0, "none": 1.0}[activation]
    return torch.where(vector >= 0, vector, slope * vector)


def attend(attention: LayerAttention, first: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer attention of one text, `(layers, hidden_size)` each, as the authors compute it: query after query."""
    config, count = attention.config, len(first)
    asking = {"cls_all": list(first), "cls_last": [first[-1]], "mean_all": list(mean)}[config.query]
    answering = mean if config.key_value == "mean_all" else first
    scale = {"n_layers": count, "sqrt_d": math.sqrt(first.shape[1]), "none": 1}[config.score_scale]
    pooled, weights = [], []
    for asked in asking:
        query = phi(attention.query.weight @ asked, config.activation)
        keys = [phi(attention.key.weight @ layer, config.activation) for layer in answering]  # every time anew
        values = [phi(attention.value.weight @ layer, config.activation) for layer in answering]
        scores = [math.exp((query @ key).item() / scale) for key in keys]
        alpha = [score / sum(scores) for score in scores]
        pooled.append(sum(a * value for a, value in zip(alpha, values, strict=True)))
        weights.append(torch.tensor(alpha))
    return sum(pooled) / len(pooled), sum(weights) / len(weights)


def pool_text(pooler: LayerPooler, states: list[torch.Tensor]) -> torch.Tensor:
    """The embedding of one text from its hidden states at real tokens, `(tokens, hidden_size)`, all of them."""
    config, last = pooler.config, states[-1]
    place = 0 if config.cls_position == "first" else len(last) - 1

    def mean(state: torch.Tensor) -> torch.Tensor:
        return sum(token for token in state) / len(state)

    def dense(vector: torch.Tensor) -> torch.Tensor:
        return torch.tanh(pooler.dense.weight @ vector + pooler.dense.bias)

    kind = config.detach_at_inference or config.pooler
    if config.detach_at_inference == "cls" or kind == "cls_before_pooler":
        return last[place]
    if kind == "mean":
        return mean(last)
    if kind == "cls":
        return dense(last[place])
    if kind == "cls_and_mean":
        return dense(torch.cat([last[place], mean(last)]))
    if kind == "mean_first_last":
        return (mean(states[1]) + mean(last)) / 2
    if kind == "mean_top2":
        return (mean(states[-2]) + mean(last)) / 2
    layers = states if config.include_embeddings else states[1:]
    means = torch.stack([mean(layer) for layer in layers])
    if kind == "static_mix":
        shares = [math.exp(score) for score in pooler.layer_scores]
        return sum(share / sum(shares) * layer for share, layer in zip(shares, means, strict=True))
    pooled, _ = attend(pooler.attention, torch.stack([layer[place] for layer in layers]), means)
    return dense(torch.cat([last[place], pooled]) if config.concat_last_cls else pooled)


def make_pooler(config: LayerAttnPoolConfig) -> LayerPooler:
    pooler = LayerPooler(config).eval()
    with torch.no_grad():
        for parameter in pooler.parameters():
            parameter.normal_(std=0.6)
    return pooler


def make_states(config: LayerAttnPoolConfig, texts: int = len(LENGTHS), tokens: int = 6) -> list[torch.Tensor]:
    return list(torch.randn(config.num_executed_layers + 1, texts, tokens, config.hidden_size))


def summarise(config: LayerAttnPoolConfig, states: list[torch.Tensor], mask: torch.Tensor | None) -> LayerSummary:
    summary = LayerSummary(mask, config.cls_position)
    for index in [config.num_executed_layers] if config.detach_at_inference else config.layer_indices:
        summary.add(states[index])
    return summary


def tiny(**overrides: Any) -> LayerAttnPoolConfig:
    return sentence_config(encoder={"hidden_size": 8}, **overrides)


class TestAttention:
    @pytest.mark.parametrize("query", QUERIES)
    @pytest.mark.parametrize("key_value", KEY_VALUES)
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("score_scale", SCORE_SCALES)
    @torch.no_grad()
    def test_equals_the_loop_over_queries(self, query: str, key_value: str, activation: str, score_scale: str) -> None:
        for joined, embeddings in itertools.product((True, False), repeat=2):
            config = tiny(
                query=query,
                key_value=key_value,
                activation=activation,
                score_scale=score_scale,
                concat_last_cls=joined,
                include_embeddings=embeddings,
            )
            pooler, states = make_pooler(config).double(), [state.double() for state in make_states(config, texts=2)]
            summary = summarise(config, states, None)
            actual, weights = pooler(summary)
            for row in range(2):
                alone = [state[row] for state in states]
                torch.testing.assert_close(actual[row], pool_text(pooler, alone), atol=1e-9, rtol=1e-9)
                first, mean = (vectors[row] for vectors in summary.stacked())
                _, expected = attend(pooler.attention, first, mean)
                torch.testing.assert_close(weights[row].float(), expected, atol=1e-6, rtol=1e-6)
            assert weights.shape == (2, len(config.layer_indices))

    @torch.no_grad()
    def test_equals_the_loop_at_its_real_size(self) -> None:
        # 13 layers of width 768, as the authors have them, on vectors of the size that BERT's have.
        config = LayerAttnPoolConfig()
        attention = LayerAttention(config).eval()
        for parameter in attention.parameters():
            parameter.normal_(std=0.02)
        first, mean = torch.randn(2, 2, 13, 768)
        actual, weights = attention(first, mean)
        for row in range(2):
            expected, shares = attend(attention, first[row], mean[row])
            torch.testing.assert_close(actual[row], expected, atol=1e-6, rtol=0)
            torch.testing.assert_close(weights[row], shares, atol=1e-6, rtol=0)

    def test_defaults_are_those_of_the_authors(self) -> None:
        config = LayerAttnPoolConfig()
        assert (config.pooler, config.query, config.key_value) == ("layer_attn", "cls_all", "mean_all")
        assert (config.score_scale, config.activation, config.rrelu_resample) == ("n_layers", "rrelu", False)
        assert config.concat_last_cls and config.include_embeddings and config.layer_indices == list(range(13))
        pooler = LayerPooler(config)
        assert [linear.bias for linear in pooler.attention.children()] == [None] * 3
        assert sum(parameter.numel() for parameter in pooler.parameters()) == 5 * 768**2 + 768
        assert pooler.dense.weight.shape == (768, 2 * 768)

    @torch.no_grad()
    def test_large_scores_do_not_overflow(self) -> None:
        config = tiny(score_scale="none")
        pooler = make_pooler(config)
        pooler.attention.query.weight.mul_(1e4)
        embeddings, weights = pooler(summarise(config, make_states(config), RIGHT))
        assert embeddings.isfinite().all() and weights.isfinite().all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(LENGTHS)))


class TestWeights:
    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("training", [False, True])
    @torch.no_grad()
    def test_are_shares_of_the_layers(self, name: str, training: bool) -> None:
        config = tiny(**SETTINGS[name])
        pooler, states = make_pooler(config).train(training), make_states(config)
        if training and config.detach_at_inference is not None:
            config.detach_at_inference = None  # in training the pooler itself is used
        _, weights = pooler(summarise(config, states, RIGHT))
        if config.pooler not in ("layer_attn", "static_mix") or config.detach_at_inference is not None:
            assert weights is None
        else:
            assert weights.shape == (len(LENGTHS), len(config.layer_indices))
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(LENGTHS)))

    @torch.no_grad()
    def test_say_what_each_layer_adds(self) -> None:
        # Without an activation the result is linear in the values: the weights alone tell it.
        config = tiny(activation="none", concat_last_cls=False)
        pooler, states = make_pooler(config), make_states(config)
        summary = summarise(config, states, RIGHT)
        pooled, weights = pooler.attention(*summary.stacked())
        means = summary.stacked()[1]
        expected = torch.einsum("bl,bld->bd", weights, means) @ pooler.attention.value.weight.T
        torch.testing.assert_close(pooled, expected, atol=1e-6, rtol=1e-5)

    @torch.no_grad()
    def test_of_a_fresh_static_mix_are_equal(self) -> None:
        config = tiny(pooler="static_mix")
        _, weights = LayerPooler(config)(summarise(config, make_states(config), None))
        assert torch.equal(weights, torch.full((len(LENGTHS), 4), 0.25))


class TestPoolers:
    @pytest.mark.parametrize("side", MASKS)
    @pytest.mark.parametrize("name", SETTINGS)
    @torch.no_grad()
    def test_equal_loops_over_texts_and_tokens(self, name: str, side: str) -> None:
        config, mask = tiny(**SETTINGS[name]), MASKS[side]
        pooler, states = make_pooler(config), make_states(config)
        embeddings, _ = pooler(summarise(config, states, mask))
        real = torch.ones(len(LENGTHS), 6) if mask is None else mask
        for row in range(len(LENGTHS)):
            alone = [state[row][real[row].bool()] for state in states]
            torch.testing.assert_close(embeddings[row], pool_text(pooler, alone), atol=1e-6, rtol=1e-5)

    @pytest.mark.parametrize("mask", [RIGHT.bool(), RIGHT.float(), RIGHT.to(torch.uint8) * 3], ids=str)
    @torch.no_grad()
    def test_any_mask_that_is_zero_at_padding_will_do(self, mask: torch.Tensor) -> None:
        config = tiny()
        pooler, states = make_pooler(config), make_states(config)
        plain, _ = pooler(summarise(config, states, RIGHT))
        assert torch.equal(pooler(summarise(config, states, mask))[0], plain)

    @pytest.mark.parametrize("name", SETTINGS)
    def test_a_text_without_tokens_is_finite(self, name: str) -> None:
        config = tiny(**SETTINGS[name])
        mask = RIGHT.clone()
        mask[1] = 0
        embeddings, _ = make_pooler(config)(summarise(config, make_states(config), mask))
        assert embeddings.isfinite().all()

    @pytest.mark.parametrize("masked", [True, False])
    def test_the_mean_of_a_long_text_fits_into_half_precision(self, masked: bool) -> None:
        # The sum of 512 tokens would not: 65,504 is the largest number.
        state = torch.full((2, 512, 4), 300.0, dtype=torch.float16)
        summary = LayerSummary(torch.ones(2, 512) if masked else None, "first")
        summary.add(state)
        torch.testing.assert_close(summary.token_means[0], state[:, 0], atol=0, rtol=1e-3)

    @pytest.mark.parametrize("masked", [True, False])
    @pytest.mark.parametrize("position", ["first", "last"])
    def test_two_vectors_are_all_that_a_summary_holds(self, masked: bool, position: str) -> None:
        state = torch.randn(4, 6, 8)
        summary = LayerSummary(RIGHT if masked else None, position)
        summary.add(state)
        for vectors in (*summary.first_tokens, *summary.token_means):
            assert vectors.untyped_storage().nbytes() == 4 * 8 * 4

    @pytest.mark.parametrize("pooler", POOLERS)
    def test_hold_nothing_that_is_not_trained(self, pooler: str) -> None:
        config = tiny(pooler=pooler)
        module = make_pooler(config)
        assert bool(list(module.parameters())) == (pooler in TRAINED_POOLERS)
        if pooler in TRAINED_POOLERS:
            module.train()(summarise(config, make_states(config), RIGHT))[0].pow(2).sum().backward()
            assert all(parameter.grad.any() for parameter in module.parameters())


class TestRandomSlopes:
    """RReLU: with one layer the attention is its activation, so with a unit matrix for values it is seen bare."""

    @staticmethod
    def bare(**overrides: Any) -> LayerAttention:
        attention = LayerAttention(sentence_config(encoder={"hidden_size": 64}, **overrides))
        nn.init.eye_(attention.value.weight)
        nn.init.eye_(attention.key.weight)
        return attention

    @torch.no_grad()
    def slopes(self, attention: LayerAttention) -> torch.Tensor:
        vectors = torch.randn(500, 1, 64)
        pooled, _ = attention(vectors, vectors)
        slopes = pooled / vectors[:, 0]
        positive = vectors[:, 0] > 0
        torch.testing.assert_close(slopes[positive], torch.ones(int(positive.sum())))
        return slopes[~positive]

    def test_are_their_mean_in_evaluation(self) -> None:
        slopes = self.slopes(self.bare().eval())
        torch.testing.assert_close(slopes, torch.full_like(slopes, 11 / 48))

    @pytest.mark.parametrize("resample", [False, True])
    def test_are_drawn_evenly_between_an_eighth_and_a_third_in_training(self, resample: bool) -> None:
        slopes = self.slopes(self.bare(rrelu_resample=resample).train())
        assert slopes.min() >= 1 / 8 - 1e-6 and slopes.max() <= 1 / 3 + 1e-6
        counts = torch.histc(slopes, bins=5, min=1 / 8, max=1 / 3) / len(slopes)
        torch.testing.assert_close(counts, torch.full((5,), 0.2), atol=0.02, rtol=0)
        assert slopes.mean().item() == pytest.approx(11 / 48, abs=0.003)

    @pytest.mark.parametrize(("activation", "slope"), [("leaky", 11 / 48), ("relu", 0.0), ("none", 1.0)])
    @pytest.mark.parametrize("training", [False, True])
    def test_are_fixed_in_the_other_activations(self, activation: str, slope: float, training: bool) -> None:
        slopes = self.slopes(self.bare(activation=activation).train(training))
        torch.testing.assert_close(slopes, torch.full_like(slopes, slope))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_are_drawn_in_other_precisions(self, dtype: torch.dtype) -> None:
        attention = self.bare().to(dtype).train()
        vectors = -torch.ones(8, 1, 64, dtype=dtype)
        with torch.no_grad():
            slopes = -attention(vectors, vectors)[0].float()
        assert slopes.min() > 0.12 and slopes.max() < 0.34 and len(slopes.unique()) > 8

    @pytest.mark.parametrize("resample", [False, True])
    @torch.no_grad()
    def test_are_drawn_again_for_every_query_if_told_so(self, resample: bool) -> None:
        # All values are -1 and all layers weigh the same, so the result is minus the mean of the slopes: of one for
        # each layer, or of one for each layer and query. The variance of a mean tells how many there are.
        layers, deviation = 4, (1 / 3 - 1 / 8) / math.sqrt(12)
        attention = self.bare(rrelu_resample=resample).train()
        attention.query.weight.zero_()
        means = -torch.ones(400, layers, 64)
        pooled, weights = attention(torch.randn(400, layers, 64), means)
        torch.testing.assert_close(weights, torch.full((400, layers), 1 / layers))
        draws = layers**2 if resample else layers
        assert pooled.std().item() == pytest.approx(deviation / math.sqrt(draws), rel=0.03)
        assert -pooled.mean().item() == pytest.approx(11 / 48, abs=0.002)

    @torch.no_grad()
    def test_drawn_again_or_not_evaluation_is_the_same(self) -> None:
        once, again = (make_pooler(tiny(rrelu_resample=resample)) for resample in (False, True))
        again.load_state_dict(once.state_dict())
        summary = summarise(once.config, make_states(once.config), RIGHT)
        assert torch.equal(once(summary)[0], again(summary)[0])

    @pytest.mark.parametrize("resample", [False, True])
    @torch.no_grad()
    def test_a_seed_gives_the_same_twice(self, resample: bool) -> None:
        config = tiny(rrelu_resample=resample)
        pooler, summary = make_pooler(config).train(), summarise(config, make_states(config), RIGHT)
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(pooler(summary)[0])
        assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


class TestGradients:
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", [name for name in SETTINGS if "detached" not in name])
    def test_equal_finite_differences(self, name: str, training: bool) -> None:
        config = sentence_config(encoder={"hidden_size": 4, "num_attention_heads": 2}, **SETTINGS[name])
        pooler = make_pooler(config).double().train(training)
        states = [state.double().requires_grad_() for state in make_states(config, texts=2, tokens=3)]
        names = [name for name, _ in pooler.named_parameters()]
        mask = torch.tensor([[1, 1, 1], [1, 1, 0]])

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(0)  # the same slopes
            count = len(states)
            parameters = dict(zip(names, tensors[count:], strict=True))
            return functional_call(pooler, parameters, (summarise(config, list(tensors[:count]), mask),))[0]

        assert torch.autograd.gradcheck(run, (*states, *pooler.parameters()), fast_mode=True)

    def test_reach_every_layer(self) -> None:
        config = tiny()
        states = [state.requires_grad_() for state in make_states(config)]
        make_pooler(config).train()(summarise(config, states, RIGHT))[0].pow(2).sum().backward()
        assert all(state.grad[RIGHT.bool()].any(dim=-1).all() for state in states)
        assert not any(state.grad[~RIGHT.bool()].any() for state in states)
