"""The same tests over every encoder type: sentence encoders trained, streamed, padded, saved; and the refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import (
    PADDING_SENSITIVE,
    PLAN_UNSUPPORTED,
    REFUSED_TYPES,
    REFUSED_VARIANTS,
    STREAM_UNSUPPORTED,
    TINY_ENCODERS,
    UNUSED_PARAMETERS,
    tiny_encoder_config,
)
from tiny_models import assert_same, assert_same_outputs, rows, tiny_batch
from tiny_sentence_encoders import embed, sentence_model
from transformers import AutoModel, PreTrainedModel

from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder


PLAN = [0, 0, 1, 1, 2, 2]
PADDING_SAFE = [name for name in TINY_ENCODERS if name not in PADDING_SENSITIVE]
PLANNABLE = [name for name in TINY_ENCODERS if name not in PLAN_UNSUPPORTED]
# Reads every layer; reads the last one only, which takes another way through the model.
READERS = ("layer_attn", "mean")
every_encoder = pytest.mark.parametrize("encoder_type", TINY_ENCODERS)


def batch_for(model: PreTrainedModel, **kwargs: Any) -> dict[str, torch.Tensor]:
    batch = tiny_batch((9, 6, 4), **kwargs)
    batch["input_ids"][batch["attention_mask"] == 0] = model.config.pad_token_id or 0
    return batch


def test_there_are_enough() -> None:
    assert len(PLANNABLE) >= 25 and len(PADDING_SAFE) >= 25


@every_encoder
def test_trains(encoder_type: str) -> None:
    model = sentence_model(encoder_type).train()
    outputs = model(**batch_for(model), output_hidden_states=True)
    for state in outputs.hidden_states:
        state.retain_grad()
    outputs.pooler_output.pow(2).sum().backward()
    assert outputs.pooler_output.shape == (3, 32) and outputs.pooler_output.isfinite().all()
    assert all(state.grad is not None and state.grad.any() for state in outputs.hidden_states)
    unused = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
    ]
    known = UNUSED_PARAMETERS.get(encoder_type, r"^\b$")
    assert [name for name in unused if not re.search(known, name.removeprefix("encoder."))] == []


@every_encoder
def test_streamed_equals_stacked(encoder_type: str) -> None:
    for pooler in ("layer_attn", "mean_first_last", "static_mix"):
        model = sentence_model(encoder_type, pooler=pooler)
        batch = batch_for(model)
        stacked = embed(model, batch, output_hidden_states=True)  # which needs the whole list
        assert not hasattr(model, "_can_stream")
        torch.testing.assert_close(embed(model, batch), stacked, atol=1e-5, rtol=0)
        assert model._can_stream == (encoder_type not in STREAM_UNSUPPORTED)


@every_encoder
def test_the_last_layer_alone_is_that_of_the_list(encoder_type: str) -> None:
    model = sentence_model(encoder_type, pooler="mean")
    batch = batch_for(model)
    listed = embed(model, batch, output_hidden_states=True)
    torch.testing.assert_close(embed(model, batch), listed, atol=1e-5, rtol=0)
    assert not hasattr(model, "_can_stream")


@pytest.mark.parametrize("encoder_type", PADDING_SAFE)
@pytest.mark.parametrize("pooler", READERS)
def test_padding_and_company_change_nothing(encoder_type: str, pooler: str) -> None:
    model = sentence_model(encoder_type, pooler=pooler)
    batch = batch_for(model, tokens=13)
    padded = embed(model, batch)
    for row, length in enumerate((9, 6, 4)):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        torch.testing.assert_close(embed(model, alone)[0], padded[row], atol=1e-5, rtol=0)


@every_encoder
def test_order_changes_nothing(encoder_type: str) -> None:
    model = sentence_model(encoder_type)
    batch, order = batch_for(model), [2, 0, 1]
    torch.testing.assert_close(embed(model, rows(batch, order)), embed(model, batch)[order], atol=1e-5, rtol=0)


@every_encoder
def test_saved_and_loaded_is_the_same(encoder_type: str, tmp_path: Path) -> None:
    # With a plan where there can be one: the harder case.
    model = sentence_model(encoder_type, layer_plan=PLAN if encoder_type in PLANNABLE else None)
    batch = batch_for(model)
    model.save_pretrained(tmp_path)
    loaded, info = LayerAttnPoolEncoder.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.layer_indices == list(range(7 if encoder_type in PLANNABLE else 4))
    assert_same(loaded.state_dict(), model.state_dict())
    assert_same_outputs([embed(loaded, batch)], [embed(model, batch)])


@pytest.mark.parametrize("encoder_type", ["bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta"])
def test_tied_layers_equal_copies(encoder_type: str, tmp_path: Path) -> None:
    model = sentence_model(encoder_type)
    model.encoder.save_pretrained(tmp_path)
    embeddings = {}
    for tie in (True, False):
        deep = LayerAttnPoolEncoder.from_pretrained(tmp_path, duplicate="last:2", tie=tie)
        deep.pooler.load_state_dict(model.pooler.state_dict())
        assert deep.config.num_executed_layers == 5
        embeddings[tie] = embed(deep, batch_for(model))
    torch.testing.assert_close(embeddings[True], embeddings[False], atol=1e-5, rtol=0)


@every_encoder
def test_detached_is_the_plain_encoder(encoder_type: str, tmp_path: Path) -> None:
    model = sentence_model(encoder_type)
    batch = batch_for(model)
    model.detach_pooler("mean").save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    assert type(plain).__module__.startswith("transformers.") and plain.config.sentence_pooling == "mean"
    with torch.no_grad():
        ours, theirs = (encoder(**batch).last_hidden_state for encoder in (model, plain))
    assert_same_outputs([theirs], [ours])


class TestRefusal:
    """A model that cannot be read by layer is refused, whatever the pooler reads, when it is built or first run."""

    @staticmethod
    def build_and_run(encoder_config: Any, pooler: str, train: bool, grad: bool) -> None:
        model = LayerAttnPoolEncoder(LayerAttnPoolConfig(encoder_config=encoder_config, pooler=pooler)).train(train)
        with torch.set_grad_enabled(grad):
            model(**tiny_batch((16, 6, 4)))  # Reformer trains on multiples of eight tokens

    @pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
    @pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
    @pytest.mark.parametrize("pooler", [*READERS, "mean_first_last"])
    @pytest.mark.parametrize("model_type", REFUSED_TYPES)
    def test_of_other_models(self, model_type: str, pooler: str, train: bool, grad: bool) -> None:
        # BROS speaks for itself: "You have to specify bbox".
        with pytest.raises(ValueError, match=f"encoder_config.*{model_type}|bbox"):
            self.build_and_run(tiny_encoder_config(model_type), pooler, train, grad)

    @pytest.mark.parametrize("pooler", READERS)
    @pytest.mark.parametrize(("model_type", "overrides", "why"), REFUSED_VARIANTS)
    def test_of_variants(self, model_type: str, overrides: dict[str, Any], why: str, pooler: str) -> None:
        with pytest.raises(ValueError, match=f"encoder_config.*{model_type}"):
            self.build_and_run(tiny_encoder_config(model_type, **overrides), pooler, train=False, grad=False)
