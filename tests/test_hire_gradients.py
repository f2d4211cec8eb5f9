"""Gradients: they reach every new parameter, checkpointing leaves them alone, and the ReLU of the scores can die."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tiny_models import (
    HEADS,
    HIRE_SETTINGS,
    assert_same,
    gradients,
    new_parameters,
    tiny_batch,
    tiny_config,
    tiny_model,
    with_labels,
)
from transformers import PreTrainedModel

from modeling_hire import HireForSequenceClassification, HireForTokenClassification, HireModel
from modeling_hire.modeling_hire_layers import Score, rescued_relu


def score_gradients(model: PreTrainedModel) -> list[torch.Tensor]:
    return [p.grad for name, p in model.named_parameters() if ".weighting." in f".{name}" and p.grad is not None]


class TestReach:
    @pytest.mark.parametrize("setting", HIRE_SETTINGS)
    @pytest.mark.parametrize("model_class", [HireForSequenceClassification, HireForTokenClassification])
    def test_every_new_parameter(self, setting: str, model_class: type[PreTrainedModel]) -> None:
        model = tiny_model(**HIRE_SETTINGS[setting], model_class=model_class)
        model(**with_labels(model_class, tiny_batch((9, 6, 4, 1)))).loss.backward()
        missing = [name for name, p in new_parameters(model).items() if p.grad is None]
        still = [name for name, p in new_parameters(model).items() if p.grad is not None and not p.grad.any()]
        assert not missing
        if model_class is HireForSequenceClassification:
            # The head reads the first token, where a forward GRU has no state yet for this matrix to turn.
            top = re.compile(rf"fusion\.gru\.weight_hh_l{model.config.fusion_num_layers - 1}$")
            still = [name for name in still if not top.search(name)]
        if model.config.share_scorer:
            # As long as no score is cut off, a bias that all layers share moves all of them alike.
            still = [name for name in still if not name.endswith("head.bias")]
        assert not still

    @pytest.mark.parametrize("model_class", HEADS)
    def test_every_new_parameter_of_every_head(self, model_class: type[PreTrainedModel]) -> None:
        model = tiny_model(model_class=model_class)
        model(**with_labels(model_class, tiny_batch((9, 6, 4, 5)))).loss.backward()
        assert all(p.grad is not None for p in new_parameters(model).values())

    @pytest.mark.parametrize("preset", ["paper", "fast"])
    def test_every_parameter_of_the_encoder(self, preset: str, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model(preset)
        model(**batch, labels=torch.tensor([0, 1, 1])).loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in model.hire.encoder.parameters())

    def test_only_the_new_parameters_of_a_frozen_encoder(self, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model()
        model.hire.encoder.requires_grad_(False)
        model(**batch, labels=torch.tensor([0, 1, 1])).loss.backward()
        assert gradients(model).keys() == new_parameters(model).keys()

    def test_of_the_whole_model_are_right(self) -> None:
        small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
        model = tiny_model(model_class=HireModel, scorer_hidden_size=3, fusion_hidden_size=3, encoder=small).double()
        tokens = tiny_batch((4, 2))
        embedded = model.get_input_embeddings()(tokens["input_ids"]).detach().requires_grad_()
        weight = torch.randn(2, 4, 6, dtype=torch.float64)

        def function(embedded: torch.Tensor) -> torch.Tensor:
            outputs = model(inputs_embeds=embedded, attention_mask=tokens["attention_mask"])
            return (outputs.last_hidden_state * weight).sum()

        assert torch.autograd.gradcheck(function, embedded, atol=1e-6)


class TestCheckpointing:
    @pytest.mark.parametrize("overrides", [{}, {"preset": "fast"}, {"layer_plan": [0, 0, 1, 1, 2, 2]}])
    @pytest.mark.parametrize("encoder_type", ["bert", "roberta", "modernbert"])
    def test_leaves_the_gradients_alone(self, overrides: dict[str, Any], encoder_type: str) -> None:
        model = tiny_model(**overrides, encoder_type=encoder_type).train()
        batch, results = tiny_batch((9, 6, 4)) | {"labels": torch.tensor([0, 1, 1])}, []
        for checkpointing in (False, True):
            if checkpointing:
                model.activation_checkpointing_enable()
                assert model.is_activation_checkpointing
            torch.manual_seed(1)  # the same dropout
            model.zero_grad()
            model(**batch).loss.backward()
            results.append(gradients(model))
        assert_same(results[1], results[0], atol=1e-5)

    def test_recomputes_the_scorer(self) -> None:
        model = tiny_model().train()
        model.activation_checkpointing_enable()
        scorer, calls = model.hire.weighting.scorers[0], []
        scorer.summary.register_forward_pre_hook(lambda *_: calls.append(1))
        model(**tiny_batch((9, 6))).logits.sum().backward()
        assert len(calls) == 2


class TestDeadScores:
    """A ReLU whose input is negative for every layer and text gives equal weights, and the scorer no gradient."""

    @pytest.mark.parametrize("scorer", ["gru", "pooled"])
    def test_are_seen_in_equal_weights_and_no_gradient(self, scorer: str, batch: dict[str, torch.Tensor]) -> None:
        config = tiny_config(scorer=scorer, score_bias_init=-5.0, rescue_dead_scores=False)
        model = HireForSequenceClassification(config).eval()
        outputs = model(**batch, labels=torch.tensor([0, 1, 1]), output_layer_weights=True)
        outputs.loss.backward()
        assert (outputs.layer_weights == 1 / outputs.layer_weights.shape[1]).all()
        assert score_gradients(model) and not any(gradient.any() for gradient in score_gradients(model))

    def test_get_a_gradient_that_revives_them(self, batch: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(0)
        model = HireForSequenceClassification(tiny_config(score_bias_init=-5.0)).eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            model(**batch, labels=torch.tensor([0, 1, 1])).loss.backward()
            optimizer.step()
        weights = model(**batch, output_layer_weights=True).layer_weights
        assert (weights != 1 / weights.shape[1]).any()

    def test_are_rescued_without_touching_the_living(self) -> None:
        scores = torch.tensor([[-1.0, -2.0, -3.0], [1.0, -1.0, 2.0]], requires_grad=True)
        upstream = torch.tensor([[0.1, 0.2, -0.3], [1.0, 1.0, 1.0]])
        rescued = rescued_relu(scores)
        assert torch.equal(rescued, scores.relu())
        rescued.backward(upstream)
        torch.testing.assert_close(scores.grad, torch.tensor([[-0.2, -0.1, -0.6], [1.0, 0.0, 1.0]]))

    def test_layers_that_differ_by_little_keep_their_weights_under_autocast(self) -> None:
        score = Score(4)
        torch.nn.init.ones_(score.weight)
        torch.nn.init.ones_(score.bias)
        summaries = torch.tensor([[1e-3] * 4, [2e-3] * 4], dtype=torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            scores = score(summaries)
        assert scores.dtype == torch.float32 and scores[0] != scores[1]

    @pytest.mark.parametrize("hidden_size", [32, 128])
    def test_do_not_occur_at_the_start(self, hidden_size: int) -> None:
        batch, count = tiny_batch([8] * 8), len(HireForSequenceClassification(tiny_config()).config.layer_indices)
        for seed in range(10):
            torch.manual_seed(seed)
            config = tiny_config(encoder={"hidden_size": hidden_size})
            model = HireForSequenceClassification(config).eval()
            outputs = model(**batch, labels=torch.arange(8) % 2, output_layer_weights=True)
            outputs.loss.backward()
            assert not (outputs.layer_weights == 1 / count).any()
            assert all(gradient.any() for gradient in score_gradients(model))

    def test_cannot_occur_without_the_relu(self, batch: dict[str, torch.Tensor]) -> None:
        model = HireForSequenceClassification(tiny_config(score_activation="none", score_bias_init=-5.0)).eval()
        model(**batch, labels=torch.tensor([0, 1, 1])).loss.backward()
        # A bias that all layers share moves all scores alike, and the softmax not at all.
        moved = [name for name, p in new_parameters(model).items() if "head.bias" not in name and p.grad.any()]
        assert sum("weighting" in name for name in moved) == len(score_gradients(model)) - 1

    @pytest.mark.parametrize("bias", [-5.0, 0.0, 1.0])
    def test_depend_on_the_start_of_the_bias_alone(self, bias: float) -> None:
        model = HireModel(tiny_config(score_bias_init=bias, share_scorer=False))
        assert all(scorer.head.bias.item() == bias for scorer in model.weighting.scorers)
