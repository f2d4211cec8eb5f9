"""Sentence encoders: what they return, what must not change it, and how it may be computed."""

from __future__ import annotations

import itertools
import re
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import (
    assert_same_outputs,
    enliven,
    rows,
    tiny_batch,
)
from tiny_sentence_encoders import SETTINGS, embed, sentence_model
from transformers import AutoModel

from modeling_hire import LayerAttnPoolEncoder
from modeling_hire.modeling_layer_pooling import LayerSummary


LENGTHS = (9, 6, 4, 1, 9)
every_setting = pytest.mark.parametrize("name", SETTINGS)


@pytest.fixture(params=["layer_attn", "mean_first_last", "cls"])
def model(request: pytest.FixtureRequest) -> LayerAttnPoolEncoder:
    return sentence_model(pooler=request.param)


class TestOutput:
    @every_setting
    def test_has_the_last_layer_first_and_the_embedding_second(self, name: str) -> None:
        model, batch = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS)
        with torch.no_grad():
            outputs = model(**batch)
            plain = model.encoder(**batch).last_hidden_state
        assert list(outputs) == ["last_hidden_state", "pooler_output"]
        assert_same_outputs([outputs[0]], [plain])
        assert outputs[1] is outputs.pooler_output and outputs.pooler_output.shape == (5, 32)

    def test_as_a_tuple(self, model: LayerAttnPoolEncoder) -> None:
        batch = tiny_batch(LENGTHS)
        with torch.no_grad():
            outputs = model(**batch, return_dict=False)
            assert_same_outputs(outputs, model(**batch).to_tuple())

    @every_setting
    def test_holds_the_weights_of_the_layers_on_request(self, name: str) -> None:
        model, batch = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS)
        with torch.no_grad():
            assert model(**batch).layer_weights is None
            weights = model(**batch, output_layer_weights=True).layer_weights
        if model.config.pooler in ("layer_attn", "static_mix") and model.config.detach_at_inference is None:
            assert weights.shape == (5, len(model.config.layer_indices))
            torch.testing.assert_close(weights.sum(dim=1), torch.ones(5))
        else:
            assert weights is None

    @pytest.mark.parametrize("which", [0, 2, -1, [0, -2], [1, 3]])
    def test_holds_the_hidden_states_that_are_chosen(
        self, model: LayerAttnPoolEncoder, which: int | list[int]
    ) -> None:
        batch = tiny_batch(LENGTHS)
        with torch.no_grad():
            everything = model(**batch, output_hidden_states=True).hidden_states
            some = model(**batch, output_hidden_states=which).hidden_states
        chosen = {index % 4 for index in ([which] if isinstance(which, int) else which)}
        assert len(everything) == len(some) == 4
        for index, (state, expected) in enumerate(zip(some, everything, strict=True)):
            assert state is None if index not in chosen else torch.equal(state, expected)

    @pytest.mark.parametrize("which", [None, False, []])
    def test_holds_no_hidden_states_unasked(self, model: LayerAttnPoolEncoder, which: Any) -> None:
        assert model(**tiny_batch(LENGTHS), output_hidden_states=which).hidden_states is None

    def test_holds_attentions_on_request(self, model: LayerAttnPoolEncoder) -> None:
        model.set_attn_implementation("eager")
        batch = tiny_batch(LENGTHS)
        with torch.no_grad():
            outputs = model(**batch, output_attentions=True)
        assert [tuple(attention.shape) for attention in outputs.attentions] == [(5, 4, 9, 9)] * 3
        torch.testing.assert_close(outputs.pooler_output, embed(model, batch), atol=1e-6, rtol=0)


class TestRefusedInput:
    def test_none(self, model: LayerAttnPoolEncoder) -> None:
        with pytest.raises(ValueError, match="input_ids=None and inputs_embeds=None"):
            model()

    @pytest.mark.parametrize(
        ("name", "shape", "allowed"),
        [
            ("input_ids", (9,), "(batch, tokens)"),
            ("input_ids", (2, 0), "(batch, tokens), at least 1 of each"),
            ("input_ids", (2, 3, 4), "(batch, tokens)"),
            ("inputs_embeds", (2, 9), "(batch, tokens, hidden_size)"),
        ],
    )
    def test_of_another_shape(self, name: str, shape: tuple[int, ...], allowed: str) -> None:
        values = torch.zeros(shape, dtype=torch.long if name == "input_ids" else torch.float)
        with pytest.raises(ValueError, match=re.escape(f"{name} of shape {shape}: allowed is {allowed}")):
            sentence_model()(**{name: values})

    def test_a_mask_of_another_shape(self, model: LayerAttnPoolEncoder) -> None:
        batch = tiny_batch(LENGTHS)
        with pytest.raises(ValueError, match=r"attention_mask of shape \(5, 1, 9\).*allowed is \(batch, tokens\)"):
            model(batch["input_ids"], batch["attention_mask"][:, None])

    @pytest.mark.parametrize("which", [4, -5, [0, 9]])
    def test_hidden_states_that_do_not_exist(self, model: LayerAttnPoolEncoder, which: Any) -> None:
        message = f"output_hidden_states={which!r}: allowed is True, False, or indices from -4 to 3"
        with pytest.raises(ValueError, match=re.escape(message)):
            model(**tiny_batch(LENGTHS), output_hidden_states=which)


class TestInvariances:
    @every_setting
    def test_more_padding_changes_nothing(self, name: str) -> None:
        model = sentence_model(**SETTINGS[name])
        plain = embed(model, tiny_batch(LENGTHS))
        torch.testing.assert_close(embed(model, tiny_batch(LENGTHS, tokens=23)), plain, atol=1e-5, rtol=0)

    @every_setting
    def test_order_and_size_of_the_batch_change_nothing(self, name: str) -> None:
        model, batch, order = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS), [3, 0, 4, 2, 1]
        together = embed(model, batch)
        torch.testing.assert_close(embed(model, rows(batch, order)), together[order], atol=1e-5, rtol=0)
        for row in range(len(LENGTHS)):
            alone = embed(model, rows(batch, slice(row, row + 1)))
            torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)

    @every_setting
    def test_left_padding_is_as_good(self, name: str) -> None:
        model, plain = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS)
        left = tiny_batch(LENGTHS, tokens=14, side="left")
        # BERT counts positions from the first column: say where the text begins.
        left["position_ids"] = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
        torch.testing.assert_close(embed(model, left), embed(model, plain), atol=1e-5, rtol=0)

    @every_setting
    def test_no_mask_means_no_padding(self, name: str) -> None:
        model, batch = sentence_model(**SETTINGS[name]), tiny_batch((7, 7))
        unmasked = embed(model, {"input_ids": batch["input_ids"]})
        torch.testing.assert_close(unmasked, embed(model, batch), atol=1e-6, rtol=0)

    def test_what_stands_at_padding_changes_nothing(self, model: LayerAttnPoolEncoder) -> None:
        batch = tiny_batch(LENGTHS)
        plain = embed(model, batch)
        batch["input_ids"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 42)
        torch.testing.assert_close(embed(model, batch), plain, atol=1e-5, rtol=0)

    def test_a_text_without_tokens_harms_nobody(self, model: LayerAttnPoolEncoder) -> None:
        batch = tiny_batch((5, 1))
        batch["attention_mask"][1] = 0
        embeddings = embed(model, batch)
        assert embeddings.isfinite().all()
        torch.testing.assert_close(embeddings[:1], embed(model, rows(batch, slice(0, 1))), atol=1e-5, rtol=0)

    def test_embedded_tokens_are_as_good_as_ids(self, model: LayerAttnPoolEncoder) -> None:
        batch = tiny_batch(LENGTHS)
        embedded = model.get_input_embeddings()(batch["input_ids"]).detach()
        given = {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]}
        torch.testing.assert_close(embed(model, given), embed(model, batch), atol=1e-6, rtol=0)


class TestStreaming:
    @every_setting
    def test_equals_the_list_of_layers(self, name: str) -> None:
        model, batch = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS)
        listed = embed(model, batch, output_hidden_states=True)
        torch.testing.assert_close(embed(model, batch), listed, atol=1e-5, rtol=0)
        with_gradients = model(**batch).pooler_output.detach()
        torch.testing.assert_close(with_gradients, listed, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("masked", [True, False])
    @pytest.mark.parametrize("pooler", ["layer_attn", "static_mix", "mean"])
    def test_holds_two_vectors_of_each_layer(self, pooler: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        model = sentence_model(pooler=pooler, encoder={"num_hidden_layers": 6})
        batch = tiny_batch(LENGTHS)
        if not masked:
            del batch["attention_mask"]
        embed(model, batch)  # the first pass tries out whether the layers can be seen
        alive: list[int] = []
        states: list[weakref.ref] = []
        add = LayerSummary.add

        def noting(self: LayerSummary, state: torch.Tensor) -> None:
            states.append(weakref.ref(state.untyped_storage()))
            alive.append(sum(reference() is not None for reference in states))
            add(self, state)

        monkeypatch.setattr(LayerSummary, "add", noting)
        with torch.no_grad():
            outputs = model(**batch)
        assert len(alive) == (1 if pooler == "mean" else 7)
        # The state before the one at hand lives on in the layer that runs, as the residual.
        assert max(alive) <= 2
        living = [reference() for reference in states if reference() is not None]
        assert len(living) == 1 and living[0]._cdata == outputs.last_hidden_state.untyped_storage()._cdata

    def test_gives_way_to_gradients(self) -> None:
        model = sentence_model()
        model(**tiny_batch()).pooler_output.sum().backward()
        assert not hasattr(model, "_can_stream")
        embed(model, tiny_batch())
        assert model._can_stream

    @pytest.mark.parametrize("layer_plan", [None, [0, 0, 1, 2]], ids=str)
    def test_threads_do_not_see_each_other(self, layer_plan: list[int] | None) -> None:
        model = sentence_model(layer_plan=layer_plan)
        batches = [tiny_batch((40, 30, 20)), tiny_batch((50, 45, 5), seed=3)]
        expected, interval = [embed(model, batch) for batch in batches], sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as pool:
                actual = list(pool.map(lambda number: embed(model, batches[number % 2]), range(60)))
        finally:
            sys.setswitchinterval(interval)
        for one, other in zip(actual, itertools.cycle(expected), strict=False):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)

    def test_a_first_pass_without_gradients_draws_no_more_random_numbers_than_another(self) -> None:
        # Gradient caching runs every text twice and needs the same dropout.
        results = []
        for warm in (False, True):
            model, batch = sentence_model().train(), tiny_batch(LENGTHS)
            if warm:
                embed(model, batch)
            torch.manual_seed(3)
            results.append(embed(model, batch))
        assert torch.equal(*results)


class TestDetachedAtInference:
    @pytest.mark.parametrize("pooling", ["cls", "mean"])
    def test_the_pooler_serves_training_alone(self, pooling: str) -> None:
        kept, detached = sentence_model(), sentence_model(detach_at_inference=pooling)
        batch = tiny_batch(LENGTHS)
        plain = sentence_model(pooler="cls_before_pooler" if pooling == "cls" else "mean")
        plain.encoder.load_state_dict(detached.encoder.state_dict())
        torch.testing.assert_close(embed(detached, batch), embed(plain, batch), atol=1e-6, rtol=0)
        results = []
        for model in (kept, detached):
            torch.manual_seed(1)
            results.append(embed(model.train(), batch))
        assert torch.equal(*results)

    def test_reads_the_last_layer_only(self) -> None:
        model = sentence_model(detach_at_inference="mean")
        embed(model, tiny_batch())
        assert not hasattr(model, "_can_stream")


class TestPlans:
    @pytest.mark.parametrize("pooler", ["layer_attn", "static_mix", "mean_top2"])
    def test_tied_layers_equal_copies(self, pooler: str, tmp_path: Path) -> None:
        plain = enliven(AutoModel.from_config(tiny_encoder_config("bert")))
        plain.save_pretrained(tmp_path)
        tied, untied = (
            LayerAttnPoolEncoder.from_pretrained(tmp_path, pooler=pooler, duplicate="2,1,2", tie=tie)
            for tie in (True, False)
        )
        enliven(tied.pooler)
        untied.pooler.load_state_dict(tied.pooler.state_dict())
        assert tied.config.layer_plan == [0, 0, 1, 2, 2] and untied.config.layer_plan is None
        assert tied.config.layer_indices == untied.config.layer_indices
        assert sum(p.numel() for p in untied.parameters()) > sum(p.numel() for p in tied.parameters())
        torch.testing.assert_close(embed(tied, tiny_batch()), embed(untied, tiny_batch()), atol=1e-6, rtol=0)
