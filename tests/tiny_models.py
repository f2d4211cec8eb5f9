"""Tiny models, batches and comparisons that the model tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from modeling_hire import (
    HireConfig,
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
)


HEADS = (
    HireForSequenceClassification,
    HireForTokenClassification,
    HireForQuestionAnswering,
    HireForMultipleChoice,
)
# Every switch of HIRE, as keywords of `tiny_model`.
HIRE_SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper-half": {"preset": "paper-half"},
    "fast": {"preset": "fast"},
    "mean": {"weighting": "mean"},
    "random": {"weighting": "random"},
    "static": {"weighting": "static"},
    "last": {"weighting": "last"},
    "pooled": {"scorer": "pooled", "scorer_hidden_size": 5},
    "own scorers": {"share_scorer": False},
    "own pooled scorers": {"share_scorer": False, "scorer": "pooled"},
    "one scorer layer": {"scorer_layers": 1, "scorer_hidden_size": 7},
    "no activation": {"score_activation": "none"},
    "plain relu": {"rescue_dead_scores": False},
    "tanh": {"score_activation": "tanh"},
    "embeddings": {"include_embeddings": True},
    "static embeddings": {"include_embeddings": True, "weighting": "static"},
    "own scorers embeddings": {"include_embeddings": True, "share_scorer": False},
    "linear fusion": {"fusion_num_layers": 0},
    "linear fusion, narrow": {"fusion_num_layers": 0, "fusion_hidden_size": 6},
    "one fusion layer": {"fusion_num_layers": 1, "fusion_hidden_size": 6},
    "three fusion layers": {"fusion_num_layers": 3},
    "last only": {"fusion_features": ["last"], "weighting": "mean"},
    "mixture only": {"fusion_features": ["mixture"]},
    "two features, turned": {"fusion_features": ["product", "last"]},
    "three features": {"fusion_features": ["last", "mixture", "sum"], "fusion_num_layers": 0},
    "planned": {"layer_plan": [0, 0, 2, 1]},
    "roberta": {"encoder_type": "roberta"},
    "deberta-v2": {"encoder_type": "deberta-v2"},
}

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_config(preset: str = "paper", encoder_type: str = "bert", **overrides: Any) -> HireConfig:
    """A HIRE config around a tiny encoder; `encoder` in `overrides` holds fields of the encoder's config."""
    encoder = tiny_encoder_config(encoder_type, **overrides.pop("encoder", {}))
    return HireConfig.preset(preset, encoder, **overrides)


def tiny_model(
    preset: str = "paper",
    encoder_type: str = "bert",
    model_class: type[PreTrainedModel] = HireForSequenceClassification,
    seed: int = 0,
    **overrides: Any,
) -> PreTrainedModel:
    """A model in evaluation mode, its parameters drawn so that every part has a visible effect."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(tiny_config(preset, encoder_type, **overrides))
    return enliven(model, seed).eval()


@torch.no_grad()
def enliven(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Redraw the parameters, wider than a fresh encoder's: its layers hardly change their input, and hide faults."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        if parameter.dim() < 2:
            parameter.add_(0.1 * noise)
        else:
            parameter.copy_(noise * (parameter.shape[0] / parameter.numel()) ** 0.5)
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0
    return model


def tiny_batch(
    lengths: Sequence[int] = (9, 6, 4), tokens: int | None = None, side: str = "right", seed: int = 0
) -> dict[str, torch.Tensor]:
    """Random texts of the given lengths. The same seed gives the same texts, whatever the padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = tokens or max(lengths)
    # A pad id of 0 or 1 is what each tiny encoder has; the tests that care about padding fill in their encoder's.
    input_ids = torch.zeros(len(lengths), tokens, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    for row, length in enumerate(lengths):
        place = slice(0, length) if side == "right" else slice(tokens - length, tokens)
        input_ids[row, place] = torch.randint(5, 95, (length,), generator=generator)
        attention_mask[row, place] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def rows(batch: dict[str, torch.Tensor], index: Any) -> dict[str, torch.Tensor]:
    return {name: value[index] for name, value in batch.items()}


def with_labels(model_class: type[PreTrainedModel], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch of two or four texts with labels of the head's kind."""
    if model_class is HireForMultipleChoice:
        batch = {name: value.view(-1, 2, value.shape[1]) for name, value in batch.items()}
    count = len(batch["input_ids"])
    if model_class is HireForQuestionAnswering:
        return batch | {"start_positions": torch.arange(count), "end_positions": torch.arange(count) + 1}
    if model_class is HireForTokenClassification:
        return batch | {"labels": (batch["input_ids"] % 2).masked_fill(batch["attention_mask"] == 0, -100)}
    return batch | {"labels": torch.arange(count) % 2}


def new_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters that HIRE puts on the encoder."""
    inside = {id(parameter) for parameter in model.base_model.encoder.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in inside}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients that are there, by parameter name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], atol: float = 0, rtol: float = 0
) -> None:
    """Both have the same names, and each name the same values."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, atol=atol, rtol=rtol, msg=lambda text, n=name: f"{n}: {text}")


def assert_same_outputs(actual: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    """Both hold the same values up to the last digit.

    Loaded weights equal the saved ones to the bit, but they lie where the file's mapping puts them, and on some
    processors the order in which a matrix product sums depends on where its operands start.
    """
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()


def poison_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody has written to yet holds NaN, as it may."""

    def poisoned(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
            fresh = original(*args, **kwargs)
            return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh

        return allocate

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


def assert_scale_of_new_parameters(model: PreTrainedModel) -> None:
    """The new parameters, and the drawn scores, spread as their initialisation says."""
    inside = {id(value) for value in model.base_model.encoder.state_dict(keep_vars=True).values()}
    new = {key: value for key, value in model.state_dict(keep_vars=True).items() if id(value) not in inside}
    for name, value in new.items():
        assert value.isfinite().all(), name
        if ".gru." in name:
            bound = (value.shape[0] // 3) ** -0.5
            assert value.abs().max() <= bound, name
            assert 0.8 < value.std() / (bound / 3**0.5) < 1.2, name
        elif name.endswith("head.bias"):
            assert value.item() == model.config.score_bias_init, name
        elif name.endswith("layer_scores"):
            assert value.any() == (model.config.weighting == "random"), name
        elif name.endswith(".bias"):
            assert not value.any(), name
        else:
            assert 0.5 < value.std() / model.config.initializer_range < 1.5, name


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words, 99 ids: the special tokens, then `w0`, `w1`, ..."""
    words = SPECIAL_TOKENS + [f"w{i}" for i in range(99 - len(SPECIAL_TOKENS))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
