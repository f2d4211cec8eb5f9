"""HIRE against its equations, written out here as loops over examples, layers and tokens, without padding."""

from __future__ import annotations

import pytest
import torch
from tiny_models import HIRE_SETTINGS, rows, tiny_batch, tiny_config, tiny_model
from torch import nn

from modeling_hire import (
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
)


LENGTHS = (9, 6, 4, 1)


def gru_direction(gru: nn.GRU, suffix: str, sequence: list[torch.Tensor]) -> list[torch.Tensor]:
    """The state after each token, from the four parameters of one layer and direction."""
    w_r, w_z, w_g = getattr(gru, f"weight_ih_{suffix}").chunk(3)
    u_r, u_z, u_g = getattr(gru, f"weight_hh_{suffix}").chunk(3)
    b_r, b_z, b_g = getattr(gru, f"bias_ih_{suffix}").chunk(3)
    c_r, c_z, c_g = getattr(gru, f"bias_hh_{suffix}").chunk(3)
    h, states = torch.zeros_like(b_r), []
    for x in sequence:
        r = torch.sigmoid(w_r @ x + b_r + u_r @ h + c_r)
        z = torch.sigmoid(w_z @ x + b_z + u_z @ h + c_z)
        g = torch.tanh(w_g @ x + b_g + r * (u_g @ h + c_g))
        h = (1 - z) * g + z * h
        states.append(h)
    return states


def bigru(gru: nn.GRU, sequence: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The top layer's states, and `[h_fwd(n); h_bwd(1)]` of every layer."""
    final = []
    for layer in range(gru.num_layers):
        forwards = gru_direction(gru, f"l{layer}", sequence)
        backwards = gru_direction(gru, f"l{layer}_reverse", sequence[::-1])[::-1]
        final += [forwards[-1], backwards[0]]
        sequence = [torch.cat([one, other]) for one, other in zip(forwards, backwards, strict=True)]
    return sequence, torch.cat(final)


def score(model: HireModel, column: int, layer: torch.Tensor) -> torch.Tensor:
    """Equations 1 and 2 up to the softmax, for one layer `(tokens, hidden_size)` of one example."""
    config, weighting = model.config, model.weighting
    if config.weighting in ("static", "random"):
        return weighting.layer_scores[column]
    if config.weighting in ("mean", "last"):
        return layer.new_zeros(())
    scorer = weighting.scorers[0 if config.share_scorer else column]
    if config.scorer == "gru":
        _, summary = bigru(scorer.summary.gru, list(layer))
    else:
        dense = scorer.summary.dense
        pooled = torch.cat([layer[0], sum(layer) / len(layer)])
        summary = torch.tanh(dense.weight @ pooled + dense.bias)
    a = (scorer.head.weight @ summary + scorer.head.bias)[0]
    return {"relu": lambda: a.clamp(min=0), "tanh": lambda: torch.tanh(a), "none": lambda: a}[
        config.score_activation
    ]()


def naive_hire(model: HireModel, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """F `(tokens, 2 * width)` and s `(layers,)` of one text without padding."""
    config = model.config
    states = [state[0] for state in model.encoder(input_ids[None], output_hidden_states=True).hidden_states]
    layers = [states[index] for index in config.layer_indices]
    exponents = [score(model, column, layer).exp() for column, layer in enumerate(layers)]
    weights = [exponent / sum(exponents) for exponent in exponents]
    last = states[-1]
    mixture = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
    features = {"last": last, "mixture": mixture, "sum": last + mixture, "product": last * mixture}
    matched = torch.cat([features[name] for name in config.fusion_features], dim=1)
    if config.fusion_num_layers:
        fused = torch.stack(bigru(model.fusion.gru, list(matched))[0])
    else:
        fused = matched @ model.fusion.projection.weight.T + model.fusion.projection.bias
    return fused, torch.stack(weights)


def naive_head(head: nn.Module, fused: torch.Tensor) -> torch.Tensor:
    inner = torch.tanh(head.dense.weight @ fused + head.dense.bias)
    return head.out_proj.weight @ inner + head.out_proj.bias


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["f64", "f32"])
@pytest.mark.parametrize("setting", HIRE_SETTINGS)
@torch.no_grad()
def test_equals_the_equations(setting: str, dtype: torch.dtype, tolerance: float) -> None:
    model = tiny_model(**HIRE_SETTINGS[setting], model_class=HireModel).to(dtype)
    batch = tiny_batch(LENGTHS)
    outputs = model(**batch, output_layer_weights=True)
    for row, length in enumerate(LENGTHS):
        fused, weights = naive_hire(model, batch["input_ids"][row, :length])
        torch.testing.assert_close(outputs.last_hidden_state[row, :length], fused, atol=tolerance, rtol=0)
        assert (outputs.last_hidden_state[row, length:] == 0).all()
        torch.testing.assert_close(
            outputs.layer_weights[row], weights, atol=max(tolerance, 1e-6), rtol=0, check_dtype=False
        )


@pytest.fixture
def long_batch() -> dict[str, torch.Tensor]:
    return tiny_batch(LENGTHS)


@torch.no_grad()
def test_sequence_head(long_batch: dict[str, torch.Tensor]) -> None:
    model = tiny_model(model_class=HireForSequenceClassification, num_labels=3).double()
    logits = model(**long_batch).logits
    for row, length in enumerate(LENGTHS):
        fused, _ = naive_hire(model.hire, long_batch["input_ids"][row, :length])
        torch.testing.assert_close(logits[row], naive_head(model.classifier, fused[0]))


@torch.no_grad()
def test_token_head(long_batch: dict[str, torch.Tensor]) -> None:
    model = tiny_model(model_class=HireForTokenClassification, num_labels=5).double()
    logits = model(**long_batch).logits
    for row, length in enumerate(LENGTHS):
        fused, _ = naive_hire(model.hire, long_batch["input_ids"][row, :length])
        expected = fused @ model.classifier.weight.T + model.classifier.bias
        torch.testing.assert_close(logits[row, :length], expected)


@torch.no_grad()
def test_question_head(long_batch: dict[str, torch.Tensor]) -> None:
    model = tiny_model(model_class=HireForQuestionAnswering).double()
    outputs = model(**long_batch)
    for row, length in enumerate(LENGTHS):
        fused, _ = naive_hire(model.hire, long_batch["input_ids"][row, :length])
        expected = fused @ model.qa_outputs.weight.T + model.qa_outputs.bias
        torch.testing.assert_close(outputs.start_logits[row, :length], expected[:, 0])
        torch.testing.assert_close(outputs.end_logits[row, :length], expected[:, 1])


@torch.no_grad()
def test_choice_head(long_batch: dict[str, torch.Tensor]) -> None:
    model = tiny_model(model_class=HireForMultipleChoice).double()
    logits = model(**{name: value.view(2, 2, -1) for name, value in long_batch.items()}).logits
    for row, length in enumerate(LENGTHS):
        fused, _ = naive_hire(model.hire, long_batch["input_ids"][row, :length])
        torch.testing.assert_close(logits[row // 2, row % 2], naive_head(model.classifier, fused[0])[0])


class TestLayerWeights:
    @pytest.mark.parametrize("setting", HIRE_SETTINGS)
    @torch.no_grad()
    def test_rows_sum_to_one(self, setting: str, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model(**HIRE_SETTINGS[setting])
        weights = model(**batch, output_layer_weights=True).layer_weights
        assert weights.shape == (3, len(model.config.layer_indices))
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))

    @pytest.mark.parametrize("preset", ["paper", "fast"])
    @torch.no_grad()
    def test_dynamic_ones_vary_with_the_input(self, preset: str, batch: dict[str, torch.Tensor]) -> None:
        weights = tiny_model(preset)(**batch, output_layer_weights=True).layer_weights
        assert (weights[0] - weights[1]).abs().max() > 1e-3

    @pytest.mark.parametrize("weighting", ["mean", "random", "static", "last"])
    @torch.no_grad()
    def test_fixed_ones_do_not(self, weighting: str, batch: dict[str, torch.Tensor]) -> None:
        weights = tiny_model(weighting=weighting)(**batch, output_layer_weights=True).layer_weights
        assert (weights == weights[0]).all()

    @torch.no_grad()
    def test_are_returned_on_request_only(self, batch: dict[str, torch.Tensor]) -> None:
        assert tiny_model()(**batch).layer_weights is None

    def test_random_ones_are_drawn_once_and_saved(self, batch: dict[str, torch.Tensor], tmp_path) -> None:
        model = tiny_model(weighting="random", encoder={"num_hidden_layers": 6})
        scores = model.hire.weighting.layer_scores
        assert scores.std() > 0.1 and not isinstance(scores, nn.Parameter)
        first, second = (model(**batch, output_layer_weights=True).layer_weights for _ in range(2))
        torch.testing.assert_close(first, scores.softmax(dim=0).expand(3, -1))
        assert torch.equal(first, second)
        model.save_pretrained(tmp_path)
        loaded = HireForSequenceClassification.from_pretrained(tmp_path)
        assert torch.equal(loaded.hire.weighting.layer_scores, scores)

    def test_random_ones_differ_between_models(self) -> None:
        one, other = (HireModel(tiny_config(weighting="random")).weighting.layer_scores for _ in range(2))
        assert not torch.equal(one, other)

    @pytest.mark.parametrize(
        ("overrides", "indices"),
        [
            ({}, [1, 2]),
            ({"include_embeddings": True}, [0, 1, 2]),
            ({"weighting": "last"}, [3]),
            ({"layer_plan": [0, 0, 1, 1, 2, 2]}, [1, 2, 3, 4, 5]),
        ],
    )
    @torch.no_grad()
    def test_columns_are_the_hidden_states_of_layer_indices(
        self, overrides: dict, indices: list[int], batch: dict[str, torch.Tensor]
    ) -> None:
        # The mixture of one layer alone, which a scorer of this layer alone gives, is that hidden state.
        kind = {"weighting": "static"} | overrides
        model = tiny_model(**kind, fusion_num_layers=0, fusion_features=["mixture"], fusion_hidden_size=16).hire
        assert model.config.layer_indices == indices
        model.fusion.projection.weight.copy_(torch.eye(32))
        model.fusion.projection.bias.zero_()
        for column, index in enumerate(indices):
            if model.config.weighting == "static":
                model.weighting.layer_scores.fill_(-100)[column] = 100
            outputs = model(**rows(batch, slice(0, 1)), output_hidden_states=True, output_layer_weights=True)
            assert outputs.layer_weights[0, column] == 1
            torch.testing.assert_close(outputs.last_hidden_state, outputs.hidden_states[index])
