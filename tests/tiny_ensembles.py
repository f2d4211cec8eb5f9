"""Tiny members of ensembles, of several encoders, depths and tokenizers, which the tests of ensembles share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_model
from tiny_spans import byte_level, sentencepiece, wordpiece
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from modeling_hire import HireForQuestionAnswering, HireForSequenceClassification


Pair = tuple[PreTrainedModel, PreTrainedTokenizerFast]
LABELS = ("no", "maybe", "yes")


def member(kind: str, tokenizer: PreTrainedTokenizerFast, seed: int, answers: bool = False, **settings: Any) -> Pair:
    """A model in evaluation mode with its tokenizer; `kind` is "hire" or a model type of transformers."""
    # RoBERTa's kind counts positions from its padding id on.
    encoder = {"vocab_size": len(tokenizer), "pad_token_id": 0, "max_position_embeddings": 64 + (kind == "roberta")}
    depth = settings.pop("layers", None)
    if depth:
        encoder["n_layers" if kind == "distilbert" else "num_hidden_layers"] = depth
    if kind == "hire":
        head = HireForQuestionAnswering if answers else HireForSequenceClassification
        model = tiny_model("fast", model_class=head, seed=seed, encoder=encoder, **settings)
    else:
        auto = AutoModelForQuestionAnswering if answers else AutoModelForSequenceClassification
        model = enliven(auto.from_config(tiny_encoder_config(kind, **encoder, **settings)), seed=seed).eval()
    return model, tokenizer


def named(labels: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}


def classifiers() -> list[Pair]:
    """Of different encoders, depths and tokenizers, with the labels in different orders."""
    return [
        member("bert", wordpiece(), 1, layers=2, **named(LABELS)),
        member("roberta", byte_level(True), 2, layers=4, **named(("yes", "no", "maybe"))),
        member("hire", sentencepiece(True), 3, **named(("Maybe", "YES", "no"))),
    ]


def readers(shared: bool) -> list[Pair]:
    """Of different encoders and depths, with one tokenizer or with one each."""
    tokenizers = [wordpiece()] * 3 if shared else [wordpiece(), byte_level(True), sentencepiece(False)]
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (("bert", {"layers": 2}), ("roberta", {"layers": 4}), ("hire", {}))
    return [
        member(kind, tokenizer, seed, answers=True, **settings)
        for seed, ((kind, settings), tokenizer) in enumerate(zip(kinds, tokenizers, strict=True), start=1)
    ]


def models_and_tokenizers(pairs: Sequence[Pair]) -> tuple[list[PreTrainedModel], list[PreTrainedTokenizerFast]]:
    return [model for model, _ in pairs], [tokenizer for _, tokenizer in pairs]


def save(pairs: Sequence[Pair], folder: Path) -> list[Path]:
    """The members as checkpoints."""
    paths = []
    for number, pair in enumerate(pairs):
        paths.append(folder / f"member-{number}")
        for part in pair:
            part.save_pretrained(paths[-1])
    return paths
