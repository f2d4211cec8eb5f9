"""Sentence encoders: how they are loaded and copied, and the ways in which they may be computed and trained."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_encoders import tiny_encoder_config
from tiny_models import (
    assert_same,
    assert_same_outputs,
    enliven,
    gradients,
    largest_difference,
    new_parameters,
    poison_new_memory,
    tiny_batch,
)
from tiny_sentence_encoders import SETTINGS, embed, sentence_config, sentence_model
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM

from modeling_hire import LayerAttnPoolEncoder
from modeling_hire.hub import peft_modules


LENGTHS = (9, 6, 4, 1, 9)
every_setting = pytest.mark.parametrize("name", SETTINGS)


def replica(model: nn.Module) -> nn.Module:
    """What DataParallel makes of a model for another device: its parameters are plain tensors, and not listed."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, duplicate in copies.items():
        for name, child in module.named_children():
            setattr(duplicate, name, copies[child])
        for name, value in module._parameters.items():
            if value is None:
                duplicate._parameters[name] = None
            else:
                setattr(duplicate, name, value.detach().clone())
    assert not list(copies[model].parameters())
    return copies[model]


@pytest.fixture(params=["layer_attn", "mean_first_last", "cls"])
def model(request: pytest.FixtureRequest) -> LayerAttnPoolEncoder:
    return sentence_model(pooler=request.param)


class TestLoading:
    def test_a_plain_encoder_with_means_is_a_sentence_encoder_at_once(self, tmp_path: Path) -> None:
        source = enliven(AutoModelForMaskedLM.from_config(tiny_encoder_config("roberta"))).eval()
        source.save_pretrained(tmp_path)
        model, info = LayerAttnPoolEncoder.from_pretrained(tmp_path, pooler="mean", output_loading_info=True)
        assert not info["missing_keys"] and not new_parameters(model)
        batch = tiny_batch(LENGTHS)
        batch["input_ids"][batch["attention_mask"] == 0] = 1
        with torch.no_grad():
            states = source.roberta(**batch).last_hidden_state
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(embed(model, batch)[row], states[row, :length].mean(dim=0), atol=1e-5, rtol=0)

    @every_setting
    def test_new_parameters_are_drawn_in_poisoned_memory_too(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = sentence_config(encoder={"hidden_size": 64}, **SETTINGS[name])
        model = LayerAttnPoolEncoder(config)
        model.save_pretrained(tmp_path / "ours")
        file = tmp_path / "ours" / "model.safetensors"
        encoder = {key: value for key, value in load_file(file).items() if key.startswith("encoder.")}
        save_file(encoder, file, metadata={"format": "pt"})
        AutoModel.from_config(tiny_encoder_config("bert", hidden_size=64)).save_pretrained(tmp_path / "plain")
        poison_new_memory(monkeypatch)
        for source in ("ours", "plain"):
            fields = SETTINGS[name] if source == "plain" else {}
            loaded, info = LayerAttnPoolEncoder.from_pretrained(tmp_path / source, output_loading_info=True, **fields)
            new = new_parameters(loaded)
            assert info["missing_keys"] == new.keys()
            for key, value in new.items():
                assert value.isfinite().all(), key
                if key.endswith(("bias", "layer_scores")):
                    assert not value.any(), key
                else:
                    assert 0.017 < value.std() < 0.023 and abs(value.mean()) < 0.002, key

    def test_a_resized_vocabulary_survives(self, tmp_path: Path) -> None:
        model = sentence_model()
        model.resize_token_embeddings(120)
        model.save_pretrained(tmp_path)
        loaded = LayerAttnPoolEncoder.from_pretrained(tmp_path)
        assert loaded.config.vocab_size == 120
        assert_same(loaded.state_dict(), model.state_dict())
        assert embed(loaded, {"input_ids": torch.tensor([[5, 119, 6]])}).isfinite().all()

    def test_keeps_a_weight_that_an_initialisation_would_change(self, tmp_path: Path) -> None:
        for pooler in ("layer_attn", "static_mix"):
            model = sentence_model(pooler=pooler)
            state = {key: torch.full_like(value, 0.5) for key, value in model.state_dict().items()}
            model.load_state_dict(state)
            model.save_pretrained(tmp_path)
            assert_same(LayerAttnPoolEncoder.from_pretrained(tmp_path).state_dict(), state)

    def test_another_pooler_replaces_the_checkpoints(self, tmp_path: Path) -> None:
        model = sentence_model()
        model.save_pretrained(tmp_path)
        changed = LayerAttnPoolEncoder.from_pretrained(tmp_path, pooler="mean")
        assert changed.config.pooler == "mean" and not new_parameters(changed)
        expected = sentence_model(pooler="mean")
        expected.encoder.load_state_dict(model.encoder.state_dict())
        assert_same_outputs([embed(changed, tiny_batch())], [embed(expected, tiny_batch())])

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_copies_are_equal_and_their_own(self, copied: Any) -> None:
        model = sentence_model(layer_plan=[0, 0, 1])
        other = copied(model)
        assert_same_outputs([embed(other, tiny_batch())], [embed(model, tiny_batch())])
        assert not {p.data_ptr() for p in other.parameters()} & {p.data_ptr() for p in model.parameters()}


class TestComputation:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    @every_setting
    def test_whole_model_in_another_precision(self, name: str, dtype: torch.dtype) -> None:
        model, batch = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS)
        plain = embed(model, batch)
        model.to(dtype)
        outputs = model(**batch, output_layer_weights=True)
        assert outputs.pooler_output.dtype == outputs.last_hidden_state.dtype == dtype
        outputs.pooler_output.float().sum().backward()
        assert largest_difference(outputs.pooler_output.to(plain.dtype), plain) < (
            1e-5 if dtype == torch.float64 else 0.15
        )
        tolerance = 1e-9 if dtype == torch.float64 else 0.05
        assert largest_difference(embed(model, batch), outputs.pooler_output) < tolerance
        if outputs.layer_weights is not None and dtype != torch.float64:
            torch.testing.assert_close(outputs.layer_weights.float().sum(1), torch.ones(5), atol=0.01, rtol=0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @every_setting
    def test_autocast_stays_close_to_single(self, name: str, dtype: torch.dtype) -> None:
        model, batch = sentence_model(**SETTINGS[name]), tiny_batch(LENGTHS)
        plain = embed(model, batch)
        with torch.autocast("cpu", dtype=dtype):
            half = embed(model, batch).float()
            model.train()(**batch).pooler_output.float().pow(2).sum().backward()
        assert largest_difference(half, plain) < (0.15 if dtype == torch.bfloat16 else 0.03)
        assert all(value.isfinite().all() for value in gradients(model).values())

    def test_replicas_have_no_parameters_and_work(self, model: LayerAttnPoolEncoder) -> None:
        batch = tiny_batch(LENGTHS)
        copies = [replica(model), replica(model)]  # before the first forward pass, as DataParallel makes them
        for duplicate in copies:
            torch.testing.assert_close(embed(duplicate, batch), embed(model, batch))
            torch.testing.assert_close(duplicate(**batch).pooler_output, embed(model, batch))

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    def test_attention_implementations_agree(self, model: LayerAttnPoolEncoder, implementation: str) -> None:
        plain = embed(model, tiny_batch(LENGTHS))
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(embed(model, tiny_batch(LENGTHS)), plain, atol=1e-5, rtol=0)

    def test_checkpointed_gradients_are_equal(self, model: LayerAttnPoolEncoder) -> None:
        results = []
        for checkpoint in (False, True):
            if checkpoint:
                model.gradient_checkpointing_enable()
            model.zero_grad()
            torch.manual_seed(0)
            model.train()(**tiny_batch(LENGTHS)).pooler_output.pow(2).sum().backward()
            results.append(gradients(model))
        assert_same(*results, atol=1e-5)

    @pytest.mark.slow
    def test_compiled_equals_eager(self) -> None:
        torch._dynamo.reset()
        model = sentence_model(encoder={"num_hidden_layers": 2})
        compiled = torch.compile(model, backend="eager")
        results = []
        for function in (model, compiled):
            model.zero_grad()
            embeddings = function(**tiny_batch(LENGTHS)).pooler_output
            embeddings.pow(2).sum().backward()
            results.append({"embeddings": embeddings.detach(), **gradients(model)})
        assert_same(*results, atol=1e-5)
        other = tiny_batch((5, 12))
        torch.testing.assert_close(embed(compiled, other), embed(model, other), atol=1e-6, rtol=0)


class TestPeft:
    @pytest.fixture
    def adapted(self) -> Iterator[PeftModel]:
        model = sentence_model()
        yield get_peft_model(model, LoraConfig(r=2, lora_alpha=4, **peft_modules(model)))

    def test_trains_the_pooler_whole_and_adapts_the_encoder(self, adapted: PeftModel) -> None:
        names = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
        assert sum(".pooler.modules_to_save." in name for name in names) == 5
        assert all("lora_" in name or ".pooler." in name for name in names)
        assert not any("lora_" in name for name in names if ".pooler." in name)

    def test_saved_and_loaded_gives_the_same(self, adapted: PeftModel, tmp_path: Path) -> None:
        optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
        before = embed(adapted, tiny_batch())
        for _ in range(2):
            optimizer.zero_grad()
            adapted(**tiny_batch()).pooler_output.pow(2).sum().backward()
            optimizer.step()
        after = embed(adapted.eval(), tiny_batch())
        assert largest_difference(before, after) > 1e-3
        adapted.save_pretrained(tmp_path)
        other = sentence_model(seed=9)
        other.encoder.load_state_dict(sentence_model().encoder.state_dict())
        loaded = PeftModel.from_pretrained(other, tmp_path).eval()
        torch.testing.assert_close(embed(loaded, tiny_batch()), after, atol=1e-6, rtol=0)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(embed(merged, tiny_batch()), after, atol=1e-5, rtol=0)
