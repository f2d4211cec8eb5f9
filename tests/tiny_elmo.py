"""Tiny ELMo models, texts and tokenizers that the tests of ELMo share."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import enliven
from transformers import BatchEncoding, PreTrainedModel

from modeling_hire.configuration_elmo import ElmoConfig
from modeling_hire.modeling_elmo import ElmoModel
from modeling_hire.tokenization_elmo import ElmoTokenizer


SIZES: dict[str, Any] = {
    "character_size": 3,
    "filters": [[1, 4], [2, 5], [3, 6]],
    "cell_size": 10,
    "projection_size": 6,
    "classifier_size": 7,
}
TEXTS = (
    "The cat sat on the mat, and the dog did not.",
    "Dogs bark.",
    "A naïve café: 1,000.50 words!",
    "On the mat sat the cat.",
)
CLIPPED = {"cell_clip": 0.4, "proj_clip": 0.3}
FUSED = {"cell_clip": None, "proj_clip": None}


def tiny_elmo_config(**overrides: Any) -> ElmoConfig:
    """A tiny configuration whose clipping bites, without dropout."""
    quiet = {"dropout": 0.0, "mix_dropout": 0.0, "classifier_dropout": 0.0}
    return ElmoConfig(**(SIZES | CLIPPED | quiet | overrides))


def tiny_elmo(
    model_class: type[PreTrainedModel] = ElmoModel, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> PreTrainedModel:
    """A model in evaluation mode, its parameters drawn so that every part has a visible effect."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(tiny_elmo_config(**overrides))
    return enliven(model, seed).eval().to(dtype)


def elmo_tokenizer(**settings: Any) -> ElmoTokenizer:
    """With a vocabulary of the most frequent words of the texts."""
    return ElmoTokenizer.build(TEXTS, vocab_size=16, **settings)


def elmo_batch(*texts: Any, side: str = "right", **settings: Any) -> BatchEncoding:
    """The given texts (or all) as a padded batch of tensors."""
    tokenizer = elmo_tokenizer()
    return tokenizer(list(texts or TEXTS), padding=True, padding_side=side, return_tensors="pt", **settings)
