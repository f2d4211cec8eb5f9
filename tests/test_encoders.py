"""The same tests over every encoder type: HIRE trained on it, streamed, padded, saved; and who is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import (
    PADDING_SENSITIVE,
    PLAN_UNSUPPORTED,
    REFUSED_TYPES,
    REFUSED_VARIANTS,
    ROBERTA_LIKE,
    STREAM_UNSUPPORTED,
    TINY_ENCODERS,
    tiny_encoder_config,
)
from tiny_models import assert_same, assert_same_outputs, new_parameters, rows, tiny_batch, tiny_model
from transformers import PreTrainedConfig, PreTrainedModel

from modeling_hire import HireConfig, HireForSequenceClassification, RobertaForHIRE, RobertaHireConfig


PLAN = [0, 0, 1, 1, 2, 2]
LABELS = torch.tensor([0, 1, 1])
PADDING_SAFE = [name for name in TINY_ENCODERS if name not in PADDING_SENSITIVE]
PLANNABLE = [name for name in TINY_ENCODERS if name not in PLAN_UNSUPPORTED]
every_encoder = pytest.mark.parametrize("encoder_type", TINY_ENCODERS)


def batch_for(model: PreTrainedModel, **kwargs: Any) -> dict[str, torch.Tensor]:
    batch = tiny_batch((9, 6, 4), **kwargs)
    batch["input_ids"][batch["attention_mask"] == 0] = model.config.pad_token_id or 0
    return batch


def logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch).logits


def test_there_are_enough() -> None:
    assert len(set(TINY_ENCODERS) - set(PLAN_UNSUPPORTED)) >= 25


@every_encoder
def test_trains(encoder_type: str) -> None:
    model = tiny_model("fast", encoder_type)
    outputs = model(**batch_for(model), labels=LABELS, output_hidden_states=True)
    assert len(outputs.hidden_states) == model.config.num_executed_layers + 1 == 4
    assert {tuple(state.shape) for state in outputs.hidden_states} == {(3, 9, 32)}
    outputs.loss.backward()
    assert outputs.logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in new_parameters(model).values())
    assert any(p.grad is not None and p.grad.any() for p in model.hire.encoder.parameters())


@every_encoder
def test_reads_every_layer(encoder_type: str) -> None:
    model = tiny_model("fast", encoder_type)
    outputs = model(**batch_for(model), labels=LABELS, output_hidden_states=True)
    for state in outputs.hidden_states[1:]:
        state.retain_grad()
    outputs.loss.backward()
    assert all(state.grad is not None and state.grad.any() for state in outputs.hidden_states[1:])


@every_encoder
def test_streamed_equals_stacked(encoder_type: str) -> None:
    model = tiny_model("fast", encoder_type, streaming="never")
    batch = batch_for(model)
    stacked = logits(model, batch)
    model.config.streaming = "always"
    torch.testing.assert_close(logits(model, batch), stacked, atol=1e-5, rtol=0)
    assert model.hire._can_stream == (encoder_type not in STREAM_UNSUPPORTED)


@pytest.mark.parametrize("encoder_type", PADDING_SAFE)
def test_padding_changes_nothing(encoder_type: str) -> None:
    model = tiny_model("fast", encoder_type)
    batch = batch_for(model, tokens=13)
    padded = logits(model, batch)
    for row, length in enumerate((9, 6, 4)):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        torch.testing.assert_close(logits(model, alone)[0], padded[row], atol=1e-5, rtol=0)


@every_encoder
def test_texts_do_not_meet(encoder_type: str) -> None:
    model = tiny_model("fast", encoder_type)
    batch, order = batch_for(model), [2, 0, 1]
    torch.testing.assert_close(logits(model, rows(batch, order)), logits(model, batch)[order], atol=1e-5, rtol=0)


@every_encoder
def test_saved_and_loaded_is_the_same(encoder_type: str, tmp_path: Path) -> None:
    # With a plan where there can be one: the harder case.
    model = tiny_model("fast", encoder_type, layer_plan=PLAN if encoder_type in PLANNABLE else None)
    batch = batch_for(model)
    model.save_pretrained(tmp_path)
    loaded, info = HireForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.layer_plan == model.config.layer_plan
    assert_same(loaded.state_dict(), model.state_dict())
    assert_same_outputs([logits(loaded, batch)], [logits(model, batch)])


class TestRefusal:
    """A model that cannot be read layer by layer is refused, when it is built or at its first forward."""

    @staticmethod
    def build_and_run(encoder_config: PreTrainedConfig, train: bool) -> None:
        model = HireForSequenceClassification(HireConfig.preset("fast", encoder_config)).train(train)
        model(**tiny_batch((16, 6, 4)), labels=LABELS)  # Reformer trains on multiples of eight tokens

    @pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
    @pytest.mark.parametrize("model_type", REFUSED_TYPES)
    def test_of_other_models(self, model_type: str, train: bool) -> None:
        # BROS speaks for itself: "You have to specify bbox".
        with pytest.raises(ValueError, match=f"encoder_config.*{model_type}|bbox"):
            self.build_and_run(tiny_encoder_config(model_type), train)

    @pytest.mark.parametrize("model_type", REFUSED_TYPES)
    def test_holds_for_streaming(self, model_type: str) -> None:
        with torch.no_grad(), pytest.raises(ValueError, match=f"encoder_config.*{model_type}|bbox"):
            config = HireConfig.preset("fast", tiny_encoder_config(model_type), streaming="always")
            HireForSequenceClassification(config).eval()(**tiny_batch((16, 6, 4)))

    @pytest.mark.parametrize(("model_type", "overrides", "why"), REFUSED_VARIANTS)
    def test_of_variants(self, model_type: str, overrides: dict[str, Any], why: str) -> None:
        with pytest.raises(ValueError, match=f"encoder_config.*{model_type}"):
            self.build_and_run(tiny_encoder_config(model_type, **overrides), train=False)

    @every_encoder
    def test_of_all_but_roberta_by_the_paper_model(self, encoder_type: str) -> None:
        encoder_config = tiny_encoder_config(encoder_type)
        if encoder_type in ROBERTA_LIKE:
            config = RobertaHireConfig.preset("fast", encoder_config)
            assert RobertaForHIRE(config).eval()(**tiny_batch((5,))).logits.shape == (1, 2)
        else:
            with pytest.raises(ValueError, match=f"{encoder_type}.*RoBERTa-like"):
                RobertaHireConfig.preset("fast", encoder_config)
