"""What must not change a result: padding, company in the batch, and the way it is computed."""

from __future__ import annotations

import re
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_models import (
    HEADS,
    assert_same,
    enliven,
    gradients,
    largest_difference,
    rows,
    tiny_batch,
    tiny_config,
    tiny_model,
)
from torch import nn

from modeling_hire import (
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
)


LENGTHS = (9, 6, 4, 1, 9)
WEIGHTINGS = ("dynamic", "mean", "random", "static", "last")
MIXTURES: dict[str, dict[str, Any]] = {
    **{weighting: {"weighting": weighting} for weighting in WEIGHTINGS},
    "fast": {"preset": "fast"},
    "own scorers": {"share_scorer": False},
    "embeddings": {"include_embeddings": True},
    "static embeddings": {"include_embeddings": True, "weighting": "static"},
    "planned": {"layer_plan": [0, 0, 1, 1, 2, 2]},
    "planned, own scorers": {"layer_plan": [2, 0, 0, 1], "share_scorer": False},
    "deberta-v2": {"encoder_type": "deberta-v2"},
    "modernbert, planned": {"encoder_type": "modernbert", "layer_plan": [0, 0, 1, 2]},
    "roberta-prelayernorm": {"encoder_type": "roberta-prelayernorm"},
    "xlnet, which cannot be streamed": {"encoder_type": "xlnet"},
}


@torch.no_grad()
def fused_and_weights(model: HireModel, batch: dict[str, torch.Tensor], **kwargs: Any) -> list[torch.Tensor]:
    """F at the real tokens, text by text, and the layer weights."""
    outputs = model(**batch, output_layer_weights=True, **kwargs)
    real = batch["attention_mask"].bool()
    fused = [states[places] for states, places in zip(outputs.last_hidden_state, real, strict=True)]
    return [*fused, *outputs.layer_weights]


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor], atol: float = 1e-5) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


def replica(model: nn.Module) -> nn.Module:
    """What DataParallel makes of a model for another device: its parameters are plain tensors, and not listed."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, copy in copies.items():
        for name, child in module.named_children():
            setattr(copy, name, copies[child])
        for name, value in module._parameters.items():
            if value is not None:
                setattr(copy, name, value.detach().clone())
    assert not list(copies[model].parameters())
    return copies[model]


@pytest.fixture(params=["paper", "fast"])
def model(request: pytest.FixtureRequest) -> HireModel:
    return tiny_model(request.param, model_class=HireModel)


class TestBatches:
    def test_more_padding_changes_nothing(self, model: HireModel) -> None:
        plain = fused_and_weights(model, tiny_batch(LENGTHS))
        assert_close(fused_and_weights(model, tiny_batch(LENGTHS, tokens=23)), plain)

    def test_what_stands_at_padding_changes_nothing(self, model: HireModel) -> None:
        batch = tiny_batch(LENGTHS)
        plain = fused_and_weights(model, batch)
        batch["input_ids"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 42)
        assert_close(fused_and_weights(model, batch), plain)

    def test_left_padding_is_as_good(self, model: HireModel) -> None:
        plain, left = tiny_batch(LENGTHS), tiny_batch(LENGTHS, tokens=14, side="left")
        # BERT counts positions from the first column: say where the text begins.
        left["position_ids"] = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
        assert_close(fused_and_weights(model, left), fused_and_weights(model, plain))

    def test_no_mask_means_no_padding(self, model: HireModel) -> None:
        batch = tiny_batch((7, 7))
        with torch.no_grad():
            states = model(input_ids=batch["input_ids"]).last_hidden_state
            torch.testing.assert_close(states, model(**batch).last_hidden_state)

    def test_order_and_size_change_nothing(self, model: HireModel) -> None:
        batch, order = tiny_batch(LENGTHS), [3, 0, 4, 2, 1]
        together = fused_and_weights(model, batch)
        turned = fused_and_weights(model, rows(batch, order))
        assert_close(turned, [together[i] for i in order] + [together[len(LENGTHS) + i] for i in order])
        for row in range(len(LENGTHS)):
            alone = fused_and_weights(model, rows(batch, slice(row, row + 1)))
            assert_close(alone, [together[row], together[len(LENGTHS) + row]])

    def test_first_token_only_is_the_first_token(self, model: HireModel) -> None:
        batch = tiny_batch(LENGTHS)
        with torch.no_grad():
            short = model(**batch, first_token_only=True).last_hidden_state
            torch.testing.assert_close(short, model(**batch).last_hidden_state[:, :1])

    def test_a_text_without_tokens_harms_nobody(self, model: HireModel) -> None:
        batch = tiny_batch((5, 1))
        batch["attention_mask"][1] = 0
        with torch.no_grad():
            states = model(**batch).last_hidden_state
            alone = model(**rows(batch, slice(0, 1))).last_hidden_state
        assert states.isfinite().all()
        torch.testing.assert_close(states[:1], alone, atol=1e-5, rtol=0)

    def test_embedded_tokens_are_as_good_as_ids(self, model: HireModel) -> None:
        batch = tiny_batch(LENGTHS)
        with torch.no_grad():
            embedded = model.get_input_embeddings()(batch["input_ids"])
            states = model(inputs_embeds=embedded, attention_mask=batch["attention_mask"]).last_hidden_state
            torch.testing.assert_close(states, model(**batch).last_hidden_state)

    def test_a_mask_of_another_shape_is_refused(self, model: HireModel) -> None:
        batch = tiny_batch(LENGTHS)
        with pytest.raises(ValueError, match=r"attention_mask of shape \(5, 1, 9\).*allowed is \(batch, tokens\)"):
            model(batch["input_ids"], batch["attention_mask"][:, None])

    @pytest.mark.parametrize("model_class", [HireModel, *HEADS])
    def test_no_input_is_refused(self, model_class: type) -> None:
        with pytest.raises(ValueError, match="input_ids=None and inputs_embeds=None"):
            tiny_model("fast", model_class=model_class)()

    @pytest.mark.parametrize(
        ("name", "shape", "allowed"),
        [
            ("input_ids", (9,), "(batch, tokens)"),
            ("input_ids", (2, 0), "(batch, tokens), at least 1 of each"),
            ("input_ids", (2, 3, 4), "(batch, tokens)"),
            ("inputs_embeds", (2, 9), "(batch, tokens, hidden_size)"),
        ],
    )
    def test_input_of_another_shape_is_refused(self, name: str, shape: tuple[int, ...], allowed: str) -> None:
        values = torch.zeros(shape, dtype=torch.long if name == "input_ids" else torch.float)
        with pytest.raises(ValueError, match=re.escape(f"{name} of shape {shape}: allowed is {allowed}")):
            tiny_model("fast")(**{name: values})

    def test_texts_without_choices_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"input_ids of shape \(5, 9\): allowed is \(batch, choices, tokens\)"):
            tiny_model("fast", model_class=HireForMultipleChoice)(**tiny_batch(LENGTHS))


class TestHiddenStates:
    @pytest.mark.parametrize("which", [0, 2, -1, [0, -2], [1, 3]])
    def test_are_chosen_by_index(self, model: HireModel, which: int | list[int]) -> None:
        batch = tiny_batch(LENGTHS)
        everything = model(**batch, output_hidden_states=True).hidden_states
        some = model(**batch, output_hidden_states=which).hidden_states
        chosen = {index % 4 for index in ([which] if isinstance(which, int) else which)}
        assert len(everything) == len(some) == 4
        for index, (state, expected) in enumerate(zip(some, everything, strict=True)):
            assert state is None if index not in chosen else torch.equal(state, expected)

    @pytest.mark.parametrize("which", [None, False, []])
    def test_are_not_returned_unasked(self, model: HireModel, which: Any) -> None:
        assert model(**tiny_batch(LENGTHS), output_hidden_states=which).hidden_states is None

    @pytest.mark.parametrize("which", [4, -5, [0, 9]])
    def test_that_do_not_exist_are_refused(self, model: HireModel, which: Any) -> None:
        message = f"output_hidden_states={which!r}: allowed is True, False, or indices from -4 to 3"
        with pytest.raises(ValueError, match=re.escape(message)):
            model(**tiny_batch(LENGTHS), output_hidden_states=which)


class TestStreaming:
    @pytest.mark.parametrize("name", MIXTURES)
    def test_equals_the_stacked_mixture(self, name: str) -> None:
        model, batch = tiny_model(**MIXTURES[name], model_class=HireModel), tiny_batch(LENGTHS)
        model.config.streaming = "never"
        stacked = fused_and_weights(model, batch)
        assert not hasattr(model, "_can_stream")
        model.config.streaming = "always"
        assert_close(fused_and_weights(model, batch), stacked)
        assert model._can_stream == ("cannot be streamed" not in name)

    def test_large_scores_do_not_overflow(self) -> None:
        model, batch = tiny_model(score_activation="none", model_class=HireModel), tiny_batch(LENGTHS)
        with torch.no_grad():
            model.weighting.scorers[0].head.weight.mul_(3000)
        model.config.streaming = "never"
        stacked = fused_and_weights(model, batch)
        model.config.streaming = "always"
        streamed = fused_and_weights(model, batch)
        assert max(weights.max() for weights in stacked[len(LENGTHS) :]) > 0.99
        # The scores are in the thousands: single precision leaves them three decimals.
        assert_close(streamed, stacked, atol=1e-2)

    @pytest.mark.parametrize(
        "heads", [HireForSequenceClassification, HireForTokenClassification, HireForQuestionAnswering]
    )
    def test_serves_every_head(self, heads: type, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model(model_class=heads, streaming="never")
        with torch.no_grad():
            stacked = model(**batch).to_tuple()
            model.config.streaming = "always"
            assert_close(list(model(**batch).to_tuple()), list(stacked))
        assert model.hire._can_stream

    def test_auto_begins_at_128_mebibytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, batch = tiny_model(model_class=HireModel), tiny_batch(LENGTHS)
        fused_and_weights(model, batch)
        assert not hasattr(model, "_can_stream")
        monkeypatch.setattr("modeling_hire.modeling_hire.STREAMING_BYTES", 100)
        fused_and_weights(model, batch)
        assert model._can_stream

    def test_never_holds_the_layers(self) -> None:
        model = tiny_model("fast", model_class=HireModel, streaming="always", encoder={"num_hidden_layers": 6})
        alive: list[int] = []
        references: list[Any] = []

        def visit(index: int, state: torch.Tensor) -> None:
            references.append(weakref.ref(state.untyped_storage()))
            alive.append(sum(reference() is not None for reference in references))

        with torch.no_grad():
            model.stream_layers(visit, **tiny_batch(LENGTHS))
        assert len(alive) == 6
        assert max(alive) <= 2

    @pytest.mark.parametrize("asked", ["output_hidden_states", "output_attentions"])
    def test_gives_way_to_what_is_asked_for(self, asked: str, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model(model_class=HireModel, streaming="always")
        model.set_attn_implementation("eager")
        with torch.no_grad():
            outputs = model(**batch, **{asked: True})
        assert len(outputs[asked.removeprefix("output_")]) >= 3

    @pytest.mark.parametrize("overrides", [{}, {"layer_plan": [0, 0, 1, 2]}])
    def test_threads_do_not_see_each_other(self, overrides: dict[str, Any]) -> None:
        model = tiny_model("fast", streaming="always", **overrides)
        batches = [tiny_batch((40, 30, 20)), tiny_batch((50, 45, 5), seed=3)]

        def logits(number: int) -> torch.Tensor:
            with torch.no_grad():
                return model(**batches[number % 2]).logits

        expected, interval = [logits(0), logits(1)], sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as pool:
                actual = list(pool.map(logits, range(80)))
        finally:
            sys.setswitchinterval(interval)
        assert_close(actual, expected * 40)

    @pytest.mark.parametrize("streaming", ["auto", "always"])
    def test_replicas_have_no_parameters_and_work(self, streaming: str, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model("paper", streaming=streaming)
        copies = [replica(model), replica(model)]  # before the first forward pass, as DataParallel makes them
        with torch.no_grad():
            for copy in (*copies, model):
                torch.testing.assert_close(copy(**batch).logits, tiny_model("paper")(**batch).logits)

    def test_gives_way_to_gradients(self, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model(streaming="always")
        model(**batch).logits.sum().backward()
        assert not hasattr(model.hire, "_can_stream")


class TestComputation:
    @pytest.mark.slow
    def test_compiled_equals_eager(self) -> None:
        torch._dynamo.reset()
        model, batch = tiny_model("fast", encoder={"num_hidden_layers": 2}), tiny_batch(LENGTHS)
        compiled = torch.compile(model, backend="eager")
        labels = torch.tensor([0, 1, 1, 0, 1])
        results = []
        for function in (model, compiled):
            model.zero_grad()
            outputs = function(**batch, labels=labels)
            outputs.loss.backward()
            results.append({"logits": outputs.logits.detach(), **gradients(model)})
        assert_same(*results, atol=1e-5)
        # Another length and number of texts.
        other = tiny_batch((5, 12))
        torch.testing.assert_close(compiled(**other).logits, model(**other).logits)

    @pytest.mark.parametrize("encoder_type", ["bert", "roberta", "modernbert"])
    @pytest.mark.parametrize("layer_plan", [None, [0, 0, 1, 2]])
    def test_attention_implementations_agree(self, encoder_type: str, layer_plan: list[int] | None) -> None:
        model, batch = tiny_model("fast", encoder_type, HireModel, layer_plan=layer_plan), tiny_batch(LENGTHS)
        results = {}
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            assert model.encoder.config._attn_implementation == implementation
            results[implementation] = fused_and_weights(model, batch)
        assert_close(results["sdpa"], results["eager"])

    def test_attentions_come_with_eager_attention(self, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model("fast")
        model.set_attn_implementation("eager")
        with torch.no_grad():
            attentions = model(**batch, output_attentions=True).attentions
        assert [tuple(attention.shape) for attention in attentions] == [(3, 4, 9, 9)] * 3

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast_stays_close_to_single(self, model: HireModel, dtype: torch.dtype) -> None:
        batch = tiny_batch(LENGTHS)
        plain = fused_and_weights(model, batch)
        with torch.autocast("cpu", dtype=dtype):
            half = [value.float() for value in fused_and_weights(model, batch)]
        assert all(value.isfinite().all() for value in half)
        assert_close(half, plain, atol=0.1 if dtype == torch.bfloat16 else 0.02)

    def test_autocast_trains(self, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model().train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch, labels=torch.tensor([0, 1, 1])).loss
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)

    @pytest.mark.parametrize("preset", ["paper", "fast"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_whole_model_in_another_precision(
        self, preset: str, dtype: torch.dtype, batch: dict[str, torch.Tensor]
    ) -> None:
        model = tiny_model(preset)
        plain = model(**batch).logits
        model.to(dtype)
        logits = model(**batch).logits
        assert logits.dtype == dtype
        logits.float().sum().backward()
        assert largest_difference(logits.float(), plain) < 0.15
        with torch.no_grad():
            model.config.streaming = "always"
            assert largest_difference(model(**batch).logits, logits) < (1e-9 if dtype == torch.float64 else 0.05)

    def test_choices_are_texts_side_by_side(self) -> None:
        batch = tiny_batch((9, 6, 4, 5))
        model = tiny_model(model_class=HireForMultipleChoice)
        single = enliven(HireForSequenceClassification(tiny_config(num_labels=1, problem_type="regression"))).eval()
        single.load_state_dict(model.state_dict())
        with torch.no_grad():
            choices = model(**{name: value.view(2, 2, -1) for name, value in batch.items()}).logits
            torch.testing.assert_close(choices.flatten(), single(**batch).logits.flatten())
