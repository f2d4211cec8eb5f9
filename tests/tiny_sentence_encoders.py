"""Tiny sentence encoders and tokenizers that the tests of `LayerAttnPoolEncoder` share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_tokenizer
from tokenizers import processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder
from modeling_hire.configuration_layer_attn_pool import POOLERS


# Every switch of the pooler, as keywords of the configuration.
SETTINGS: dict[str, dict[str, Any]] = {
    **{pooler: {"pooler": pooler} for pooler in POOLERS},
    "last first token asks": {"query": "cls_last"},
    "means ask": {"query": "mean_all"},
    "first tokens answer": {"key_value": "cls_all"},
    "the other way round": {"query": "mean_all", "key_value": "cls_all"},
    "not joined": {"concat_last_cls": False},
    "without embeddings": {"include_embeddings": False},
    "static mix without embeddings": {"pooler": "static_mix", "include_embeddings": False},
    "scores over sqrt(d)": {"score_scale": "sqrt_d"},
    "scores as they are": {"score_scale": "none"},
    "leaky": {"activation": "leaky"},
    "relu": {"activation": "relu"},
    "no activation": {"activation": "none"},
    "slopes drawn again": {"rrelu_resample": True},
    "last token": {"cls_position": "last"},
    "cls, last token": {"pooler": "cls", "cls_position": "last"},
    "detached to the first token": {"detach_at_inference": "cls"},
    "detached to the mean": {"detach_at_inference": "mean"},
    "planned": {"layer_plan": [0, 0, 2, 1]},
}


def sentence_config(encoder_type: str = "bert", **overrides: Any) -> LayerAttnPoolConfig:
    """A configuration around a tiny encoder; `encoder` in `overrides` holds fields of the encoder's config."""
    encoder_config = tiny_encoder_config(encoder_type, **overrides.pop("encoder", {}))
    return LayerAttnPoolConfig(encoder_config=encoder_config, **overrides)


def sentence_model(encoder_type: str = "bert", seed: int = 0, **overrides: Any) -> LayerAttnPoolEncoder:
    """A sentence encoder in evaluation mode, its parameters drawn so that every part has a visible effect."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LayerAttnPoolEncoder(sentence_config(encoder_type, **overrides))
    return enliven(model, seed).eval()


def saved(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **overrides: Any) -> LayerAttnPoolEncoder:
    """A sentence encoder, saved with a tokenizer and loaded again."""
    sentence_model(**overrides).save_pretrained(folder)
    (tiny_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return LayerAttnPoolEncoder.from_pretrained(folder)


@torch.no_grad()
def embed(model: PreTrainedModel, batch: dict[str, torch.Tensor], **kwargs: Any) -> torch.Tensor:
    return model(**batch, **kwargs).pooler_output


@torch.no_grad()
def embed_alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """Embeddings of texts, each by itself and without padding, in the model's present mode."""
    return torch.cat([model(**tokenizer(text, return_tensors="pt")).pooler_output for text in texts])


def tokenizer_with(template: str | None = "[CLS] $A [SEP]", **settings: Any) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with another place for its special tokens (`None` for none at all) or other settings."""
    tokenizer = tiny_tokenizer()
    specials = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.backend_tokenizer.post_processor = (
        processors.TemplateProcessing(single=template, special_tokens=specials) if template else None
    )
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    return tokenizer


def texts_of_many_lengths(count: int = 23) -> list[str]:
    """Texts of one to twenty words, in no order."""
    numbers = random.Random(0)
    return [" ".join(f"w{numbers.randrange(90)}" for _ in range(numbers.randint(1, 20))) for _ in range(count)]


def close(actual: Any, expected: Any, atol: float = 1e-5) -> bool:
    """Whether both have one shape and the same numbers, up to the tolerance."""
    return np.shape(actual) == np.shape(expected) and np.abs(np.asarray(actual) - np.asarray(expected)).max() <= atol
