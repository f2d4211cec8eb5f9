"""Anisotropy of every hidden layer of an encoder, of its first tokens and of the means of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_layer_attn_pool import LayerAttnPoolConfig
from ..modeling_layer_pooling import LayerSummary
from ..modeling_text_encoding import check_texts, evaluating, load_tokenizer, max_length, prompt_of
from .embedders import Embedder
from .geometry_measures import MeanCosine


VECTORS = ("first_token", "mean")


def layer_anisotropy(embedder: Embedder, texts: Sequence[str], batch_size: int = 32) -> list[dict[str, Any]]:
    """The mean cosine of two different texts, by layer and by what stands for a text in it.

    Batches stream through the encoder; of each layer only two sums of vectors are kept.

    Args:
        embedder: a `LayerAttnPoolEncoder`, or a `SentenceTransformer` on a transformers encoder.
        texts: at least two different ones; a text that comes twice counts once.
        batch_size: texts that go through the encoder at a time.

    Returns:
        For each hidden state, from 0 (the embedding output) on: `layer`, `first_token` and `mean`. In most encoders
        all texts share the first token of layer 0, whose anisotropy is 1.

    Raises:
        ValueError: if the embedder does not show its layers, or there are fewer than two texts.

    Example:

    ```python
    >>> from modeling_hire.evaluation.embedders import load_embedder
    >>> from modeling_hire.evaluation.layer_anisotropy import layer_anisotropy

    >>> embedder = load_embedder("google-bert/bert-base-uncased", pooler="mean")  # doctest: +SKIP
    >>> layer_anisotropy(embedder, ["One text.", "Another."])[12]["mean"]  # doctest: +SKIP
    ```
    """
    distinct = list(dict.fromkeys(check_texts(texts)))
    if len(distinct) < 2:
        raise ValueError(f"texts: {len(distinct)} different ones make no pair; allowed are at least two.")
    cosines: list[tuple[MeanCosine, MeanCosine]] = []
    for summary in _summaries(embedder, distinct, batch_size):
        cosines = cosines or [(MeanCosine(), MeanCosine()) for _ in summary.first_tokens]
        for means, vectors in zip(cosines, zip(summary.first_tokens, summary.token_means, strict=True), strict=True):
            for mean, vector in zip(means, vectors, strict=True):
                mean.add(vector)
    return [
        {"layer": layer, **{name: mean.value() for name, mean in zip(VECTORS, means, strict=True)}}
        for layer, means in enumerate(cosines)
    ]


@torch.no_grad()
def _summaries(embedder: Embedder, texts: list[str], batch_size: int) -> Iterator[LayerSummary]:
    """The two vectors of every layer, a batch of texts at a time, the longest first."""
    model, *reading = reading_parts(embedder)
    position = getattr(model.config, "cls_position", "first")
    with evaluating(model):
        for _, inputs in batches_by_length(reading, texts, batch_size):
            summary = LayerSummary(inputs["attention_mask"].to(model.device), position)
            _visit_layers(model, {name: value.to(model.device) for name, value in inputs.items()}, summary)
            yield summary


def batches_by_length(
    reading: Sequence[Any], texts: Sequence[str], batch_size: int
) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Batches of texts, the longest first: which rows they are, and what the model takes.

    Args:
        reading: tokenizer, longest text in tokens, and prompt, as the last three of `reading_parts`.
        texts: n texts.
        batch_size: texts of a batch.
    """
    tokenizer, length, prefix = reading
    encoded = tokenizer([prefix + text for text in texts], truncation=True, max_length=length, verbose=False)
    encoded = {name: encoded[name] for name in encoded if name in tokenizer.model_input_names}
    order = sorted(range(len(texts)), key=lambda row: -len(encoded["input_ids"][row]))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = {name: [values[row] for row in rows] for name, values in encoded.items()}
        yield rows, dict(tokenizer.pad(batch, padding_side="right", return_tensors="pt"))


def _visit_layers(model: PreTrainedModel, inputs: dict[str, Any], summary: LayerSummary) -> None:
    if hasattr(model, "stream_layers"):
        last = model.stream_layers(lambda index, state: summary.add(state), **inputs)
        if last is not None:
            summary.add(last)
            return
        states = model.read_layers(**inputs).hidden_states
    else:
        states = getattr(model(**inputs, output_hidden_states=True, return_dict=True), "hidden_states", None)
    if states is None:
        raise ValueError(f"embedder: its {model.config.model_type!r} encoder returns no hidden states.")
    for state in states:
        summary.add(state)


def reading_parts(embedder: Embedder) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, int, str]:
    """The model whose layers are read, its tokenizer, the longest text in tokens, and what is put before each."""
    config = getattr(embedder, "config", None)
    if isinstance(config, LayerAttnPoolConfig):
        model: Any = embedder
        tokenizer = load_tokenizer(model) if model.tokenizer is None else model.tokenizer
        return model, tokenizer, max_length(config, tokenizer), prompt_of(config, None, None)
    first = next(iter(embedder.children()), None) if isinstance(embedder, torch.nn.Module) else None
    if not isinstance(getattr(first, "auto_model", None), PreTrainedModel):
        raise ValueError(
            f"embedder: a {type(embedder).__name__} does not show its layers; allowed is a LayerAttnPoolEncoder or a "
            "SentenceTransformer on a transformers encoder."
        )
    model, wrapper = first.auto_model, embedder  # type: ignore[union-attr]
    length = min(wrapper.max_seq_length or 512, wrapper.tokenizer.model_max_length)  # type: ignore[attr-defined]
    prompts, default = wrapper.prompts, wrapper.default_prompt_name  # type: ignore[attr-defined]
    return model, wrapper.tokenizer, length, prompts.get(default, "") if default else ""  # type: ignore[attr-defined]
