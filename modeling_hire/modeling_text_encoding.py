"""From texts to embeddings: prompts, tokenizer, batches of like length, and what sentence-transformers reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration_layer_attn_pool import LayerAttnPoolConfig
from .configuration_positions import num_positions


logger = logging.get_logger(__name__)


def check_texts(sentences: str | Sequence[str]) -> list[str]:
    """The texts as a list; a `ValueError` that names the first one that is none."""
    texts = [sentences] if isinstance(sentences, str) else sentences
    if isinstance(texts, bytes | dict) or not hasattr(texts, "__iter__"):
        raise ValueError(f"sentences={sentences!r}: allowed is a text or a list of texts.")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"sentences[{index}]={text!r} ({type(text).__name__}): allowed is a text (str).")
    return texts


def prompt_of(config: LayerAttnPoolConfig, prompt_name: str | None, prompt: str | None) -> str:
    """What to put in front of each text.

    Raises:
        ValueError: for a name that the configuration does not have.
    """
    if prompt is not None:
        if prompt_name is not None:
            logger.warning(f"prompt_name={prompt_name!r} is not used, since prompt={prompt!r} was given.")
        return prompt
    name = config.default_prompt_name if prompt_name is None else prompt_name
    prompts = config.prompts or {}
    if name is not None and name not in prompts:
        raise ValueError(f"prompt_name={name!r}: allowed is one of {sorted(prompts)} (prompts of the configuration).")
    return "" if name is None else prompts[name]


def load_tokenizer(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the checkpoint that the model was loaded from.

    Raises:
        ValueError: if the model came from no checkpoint, or there is no tokenizer.
    """
    if model.tokenizer_source is None:
        raise ValueError("tokenizer=None: this model was not loaded from a checkpoint; give one.")
    name, hub = model.tokenizer_source
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **hub)
    except Exception as error:  # a folder without one fails in many ways, by the tokenizer's kind
        raise ValueError(f"tokenizer=None: none could be read from {name} ({error}); give one.") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"tokenizer=None: {name} holds none (tokenizer.json is looked for); give one.")
    return tokenizer


def max_length(config: LayerAttnPoolConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens of a text are read."""
    limits = (config.max_seq_length, tokenizer.model_max_length, num_positions(config.encoder_config))
    return int(min(limit for limit in limits if limit is not None))


def check_tokenizer_fits(config: LayerAttnPoolConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` if the tokenizer has ids the encoder lacks, or gives no token that stands for the text."""
    if config.vocab_size is not None and len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"tokenizer: it has {len(tokenizer)} ids and the encoder {config.vocab_size}; they do not fit together."
        )
    if not config.reads_first_token:
        return
    ids = tokenizer("a")["input_ids"]
    place = 0 if config.cls_position == "first" else -1
    if not ids or ids[place] not in tokenizer.all_special_ids:
        other = -1 - place
        advice = (
            f"cls_position={'last' if place == 0 else 'first'!r}, where it has one, or "
            if ids and ids[other] in tokenizer.all_special_ids
            else ""
        )
        raise ValueError(
            f"cls_position={config.cls_position!r}: this tokenizer puts no special token there ([CLS] in BERT), so "
            f"that none stands for the text; allowed is {advice}a pooler that reads none, such as pooler='mean'."
        )


@torch.no_grad()
def embed_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    batch_size: int,
    show_progress_bar: bool | None,
) -> torch.Tensor:
    """Embeddings in the order of the texts, `(texts, hidden_size)`, on the model's device.

    Texts of like length are batched together, the longest first, so that little is padded, and too little memory
    shows at once.
    """
    config = model.config
    check_tokenizer_fits(config, tokenizer)
    if not texts:
        return torch.zeros(0, config.hidden_size, dtype=model.dtype, device=model.device)
    encoded = tokenizer(texts, truncation=True, max_length=max_length(config, tokenizer), padding=False, verbose=False)
    encoded = {name: encoded[name] for name in encoded if name in tokenizer.model_input_names}
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = sorted(range(len(texts)), key=lambda row: -lengths[row])
    if show_progress_bar is None:
        show_progress_bar = logger.getEffectiveLevel() <= logging.INFO
    starts = range(0, len(order), batch_size)
    was_training = model.training
    model.eval()
    parts = []
    try:
        for start in logging.tqdm(starts, desc="Batches", disable=not show_progress_bar):
            rows = order[start : start + batch_size]
            batch = {name: [values[row] for row in rows] for name, values in encoded.items()}
            # At least one token, for a tokenizer that makes none of an empty text.
            longest = max(1, lengths[rows[0]])
            inputs = tokenizer.pad(batch, padding="max_length", max_length=longest, return_tensors="pt")
            parts.append(model(**inputs.to(model.device)).pooler_output)
    finally:
        model.train(was_training)
    embeddings = torch.cat(parts)
    restored = torch.empty_like(embeddings)
    restored[torch.tensor(order, device=embeddings.device)] = embeddings
    return restored


def write_sentence_transformer(folder: str | os.PathLike, config: LayerAttnPoolConfig) -> None:
    """Write the files by which sentence-transformers reads a checkpoint of this library: one module, the model."""
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    transformer: dict[str, Any] = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding",
        "unpad_inputs": False,  # poolers look for rows of tokens
    }
    if config.max_seq_length is not None:
        transformer["max_seq_length"] = config.max_seq_length
    files = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": kind}],
        "sentence_bert_config.json": transformer,
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": config.prompts or {},
            "default_prompt_name": config.default_prompt_name,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
