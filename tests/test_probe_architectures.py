"""The reconstruction probe on every masked language model of transformers that the library reads, built tiny."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_encoders import PADDING_SENSITIVE, PLAN_UNSUPPORTED, TINY_ENCODERS, tiny_encoder_config
from tiny_models import tiny_tokenizer
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from modeling_hire.analysis.reconstruction import ReconstructionProbe


MASKED_LMS = sorted(TINY_ENCODERS.keys() & MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys())
# Norms that come after the last layer, seen in the source.
FINAL_NORMS = {
    "esm": "encoder.emb_layer_norm_after",
    "esmc": "norm",
    "eurobert": "norm",
    "megatron-bert": "encoder.ln",
    "modernbert": "final_norm",
    "neomme": "final_norm",
    "roberta-prelayernorm": "LayerNorm",
    "ultrabert": "norm",
    "xlm-roberta-xl": "encoder.LayerNorm",
}
TEXTS = ["w1 w2 w3 w4 w5 w6 w7", "w20 w30 w40 w50", "w60 w70"]


# Trained embeddings of the padding token reach the last real token there: the encoder's own states depend on padding.
SENSITIVE = {*PADDING_SENSITIVE, "mobilebert"}


def plain_tokenizer() -> PreTrainedTokenizerFast:
    """Without token types, which mean a language to XLM."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def tiny_mlm(model_type: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(tiny_encoder_config(model_type)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that every layer, norm and bias has an effect
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def own_logits(model: PreTrainedModel, text: str, layer: int, normed: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's own forward, in which a hook swaps another layer in for the last one."""
    row = dict(plain_tokenizer()(text, return_tensors="pt"))
    if model.config.model_type == "fnet":
        del row["attention_mask"]  # which it does not know

    def swap(module: torch.nn.Module, args: tuple, output: dict) -> dict:
        states = module.get_submodule(normed)(output.hidden_states[layer]) if normed else output.hidden_states[layer]
        return type(output)(last_hidden_state=states)

    states = model.base_model(**row, output_hidden_states=True, return_dict=True).hidden_states
    if layer == len(states) - 1:
        return model(**row, return_dict=True).logits[0], row["input_ids"][0]
    hooked = model.base_model.register_forward_hook(swap)
    # The encoder returns no hidden states unless it is asked to.
    asked = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "output_hidden_states": True}), with_kwargs=True
    )
    try:
        return model(**row, return_dict=True).logits[0], row["input_ids"][0]
    finally:
        hooked.remove()
        asked.remove()


def test_there_are_many() -> None:
    named = {"bert", "roberta", "albert", "distilbert", "electra", "mpnet", "deberta-v2", "modernbert", "xlm-roberta"}
    assert named <= set(MASKED_LMS) and len(MASKED_LMS) >= 40


@torch.no_grad()
@pytest.mark.parametrize("model_type", MASKED_LMS)
def test_every_layer_gives_what_the_models_own_forward_gives(model_type: str) -> None:
    model = tiny_mlm(model_type)
    probe = ReconstructionProbe(model, plain_tokenizer(), batch_size=1, chunk_size=5)
    stack = probe.layers(TEXTS)
    assert stack.final_norm == FINAL_NORMS.get(model_type)
    assert [entry.layer for entry in stack.layers] == [0, 1, 2, 3]
    for entry in stack.layers:
        logits, ids = zip(*(own_logits(model, text, entry.layer, stack.final_norm) for text in TEXTS), strict=True)
        logits, ids = torch.cat(logits), torch.cat(ids)
        own = logits.gather(1, ids[:, None])
        ranks = (logits >= own).sum(dim=1)
        scores = entry.everything
        assert scores.tokens == len(ids)
        assert scores.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, ids).item(), rel=1e-4)
        # Two logits may be as good as equal, and change places by rounding.
        assert scores.mean_rank == pytest.approx(ranks.float().mean().item(), abs=0.15)
        assert scores.accuracy == pytest.approx((ranks == 1).float().mean().item(), abs=1e-6)
    assert stack.layers[-1].everything.cosine == pytest.approx(1, abs=1e-6)
    assert stack.layers[0].everything.loss != pytest.approx(stack.layers[-1].everything.loss, abs=1e-6)


@pytest.mark.parametrize("model_type", MASKED_LMS)
def test_changed_stacks(model_type: str) -> None:
    probe = ReconstructionProbe(tiny_mlm(model_type), plain_tokenizer())
    if model_type in PLAN_UNSUPPORTED:
        for ask in (probe.check_plannable, lambda: probe.changes(TEXTS), lambda: probe.layers(TEXTS, [0, 1])):
            with pytest.raises(ValueError, match="layer_plan"):
                ask()
        return
    probe.check_plannable()
    changes = {(change.block, change.times): change for change in probe.changes(TEXTS, repeat=[2])}
    assert len(changes) == 6
    # Without its last block, the top is the layer below (through the final norm, which the probe applies to it).
    below = probe.layers(TEXTS).layers[2]
    assert dataclasses.astuple(changes[2, 0].content) == pytest.approx(dataclasses.astuple(below.content), abs=1e-4)
    repeated = probe.layers(TEXTS, [0, 1, 1, 2])
    assert [entry.block for entry in repeated.layers] == [None, 0, 1, 1, 2]
    top = dataclasses.astuple(repeated.layers[-1].content)[:-1]
    assert dataclasses.astuple(changes[1, 2].content)[:-1] == pytest.approx(top, abs=1e-4)
    assert changes[1, 2].content.cosine == pytest.approx(repeated.cosine_to_original, abs=1e-5)


@pytest.mark.parametrize("model_type", [name for name in MASKED_LMS if name not in SENSITIVE])
def test_padding_does_not_matter(model_type: str) -> None:
    model = tiny_mlm(model_type)
    alone, together = (ReconstructionProbe(model, plain_tokenizer(), batch_size=size).layers(TEXTS) for size in (1, 3))
    for one, other in zip(alone.layers, together.layers, strict=True):
        assert one.everything.loss == pytest.approx(other.everything.loss, abs=1e-5)
        assert one.everything.cosine == pytest.approx(other.everything.cosine, abs=1e-5)
