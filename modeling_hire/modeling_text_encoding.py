"""From texts to embeddings: prompts, tokenizer, batches of like length, and what sentence-transformers reads."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration_layer_attn_pool import LayerAttnPoolConfig
from .configuration_positions import num_positions


logger = logging.get_logger(__name__)

# How many batches are tokenised at once.
SORTED_BATCHES = 64
# Tokens of a text where nothing sets a limit: the cost of attention grows with their square.
DEFAULT_LENGTH = 512
# A call of a fast tokenizer sets how it cuts, then encodes: another thread must not come between.
_TOKENIZING = threading.RLock()
_MODES = threading.Lock()
# Of each model that is in evaluation mode for now: for how many callers, and the modes that its parts were in.
_evaluated: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()


def check_texts(sentences: str | Sequence[str]) -> list[str]:
    """The texts as a list; a `ValueError` that names the first one that is none."""
    texts = [sentences] if isinstance(sentences, str) else sentences
    if isinstance(texts, bytes | dict) or not hasattr(texts, "__iter__") or getattr(texts, "ndim", 1) == 0:
        raise ValueError(f"sentences={sentences!r}: allowed is a text or a list of texts.")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"sentences[{index}]={text!r} ({type(text).__name__}): allowed is a text (str).")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                broken = ascii(text[error.start])
                raise ValueError(
                    f"sentences[{index}]: broken Unicode, {broken} at character {error.start}; allowed is a text that "
                    'can be written in UTF-8, such as text.encode("utf-8", "replace").decode() makes of it.'
                ) from None
    return texts


def check_device(device: str | torch.device) -> torch.device:
    """The device; a `ValueError` if there is none of that name."""
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)  # whether it is there
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r}: allowed is a device of torch that this machine has, such as 'cpu' or 'cuda:0'."
        ) from error
    return chosen


def prompt_of(config: LayerAttnPoolConfig, prompt_name: str | None, prompt: str | None) -> str:
    """What to put in front of each text.

    Raises:
        ValueError: for a name that the configuration does not have.
    """
    if prompt is not None:
        if prompt_name is not None:
            logger.warning(f"prompt_name={prompt_name!r} is not used, since prompt={prompt!r} was given.")
        if not isinstance(prompt, str):
            raise ValueError(f"prompt={prompt!r}: allowed is a text (str).")
        return check_texts(prompt)[0]
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
        # With a configuration that is at hand, transformers need not read, and ask about the code of, the model's own.
        tokenizer = AutoTokenizer.from_pretrained(name, config=model.config.encoder_config, **hub)
    except Exception as error:  # a folder without one fails in many ways, by the tokenizer's kind
        reason = " ".join(str(error).split())
        raise ValueError(f"tokenizer=None: none could be read from {name}; give one. ({reason})") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"tokenizer=None: {name} holds none (tokenizer.json is looked for); give one.")
    return tokenizer


def max_length(config: LayerAttnPoolConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens of a text are read."""
    encoder_config = config.encoder_config
    positions = num_positions(encoder_config)
    if positions is None and config.max_seq_length is None:
        # No limit of the encoder's own (DeBERTa, XLNet); DeBERTa says how long the texts were that it has seen.
        positions = getattr(encoder_config, "max_position_embeddings", None)
    # A tokenizer without a limit says 10**30.
    limits = (config.max_seq_length, positions, tokenizer.model_max_length)
    return min((int(limit) for limit in limits if limit is not None and 0 < limit < 10**9), default=DEFAULT_LENGTH)


def check_tokenizer_fits(config: LayerAttnPoolConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` if the tokenizer has ids the encoder lacks, or gives no token that stands for the text."""
    if config.vocab_size is not None and len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"tokenizer: it has {len(tokenizer)} ids and the encoder {config.vocab_size}; they do not fit together."
        )
    if tokenizer.pad_token_id is None:
        raise ValueError("tokenizer: it has no padding token; set its pad_token, whatever token it is.")
    limit, special = max_length(config, tokenizer), tokenizer.num_special_tokens_to_add()
    if limit <= special:
        raise ValueError(
            f"max_seq_length={limit}: this tokenizer adds {special} special tokens to a text; allowed is more."
        )
    if not config.reads_first_token:
        return
    with _TOKENIZING:
        ids, word = (tokenizer("a", add_special_tokens=add)["input_ids"] for add in (True, False))
    place = 0 if config.cls_position == "first" else -1

    def is_added(at: int) -> bool:
        # The token of an unknown word is special too.
        return bool(ids) and ids[at] in tokenizer.all_special_ids and ids[at] != (word or [None])[at]

    if not is_added(place):
        other = -1 - place
        advice = (
            f"cls_position={'last' if place == 0 else 'first'!r}, where it has one, or " if is_added(other) else ""
        )
        raise ValueError(
            f"cls_position={config.cls_position!r}: this tokenizer puts no special token there ([CLS] in BERT), so "
            f"that none stands for the text; allowed is {advice}a pooler that reads none, such as pooler='mean'."
        )


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In here `model` is in evaluation mode; after it every part of it is in the mode that it was in.

    Several threads may be in here with one model: the first to come notes the modes, the last to go restores them.
    """
    with _MODES:
        entry = _evaluated.setdefault(model, [0, None])
        if entry[0] == 0:
            entry[1] = [(module, module.training) for module in model.modules()]
            model.eval()
        entry[0] += 1
    try:
        yield
    finally:
        with _MODES:
            entry[0] -= 1
            if entry[0] == 0:
                del _evaluated[model]
                for module, mode in entry[1]:
                    module.training = mode


@torch.no_grad()
def embed_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    batch_size: int,
    show_progress_bar: bool | None,
) -> torch.Tensor:
    """Embeddings in the order of the texts, `(texts, hidden_size)`, on the model's device."""
    config = model.config
    check_tokenizer_fits(config, tokenizer)
    if not texts:
        return torch.zeros(0, config.hidden_size, dtype=model.dtype, device=model.device)
    if show_progress_bar is None:
        show_progress_bar = logger.getEffectiveLevel() <= logging.INFO
    order, parts = [], []
    with evaluating(model), logging.tqdm(total=len(texts), desc="Texts", disable=not show_progress_bar) as bar:
        for rows, inputs in batches_by_length(tokenizer, texts, batch_size, max_length(config, tokenizer)):
            parts.append(model(**inputs.to(model.device)).pooler_output)
            order += rows
            bar.update(len(rows))
    embeddings = torch.cat(parts)
    restored = torch.empty_like(embeddings)
    restored[torch.tensor(order, device=embeddings.device)] = embeddings
    return restored


def batches_by_length(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], batch_size: int, limit: int
) -> Iterator[tuple[list[int], BatchEncoding]]:
    """Row numbers and encoder inputs of texts of like length, so that little is padded.

    The longest come first, so that too little memory shows at once. By their characters texts are sorted all together,
    by their tokens some thousands at a time: the tokens of a whole corpus would take more memory than its embeddings.
    """
    by_characters = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    for place in range(0, len(texts), batch_size * SORTED_BATCHES):
        chunk = by_characters[place : place + batch_size * SORTED_BATCHES]
        with _TOKENIZING:
            encoded = tokenizer(
                [texts[row] for row in chunk], truncation=True, max_length=limit, padding=False, verbose=False
            )
        columns = {name: encoded[name] for name in encoded if name in tokenizer.model_input_names}
        lengths = [len(ids) for ids in encoded["input_ids"]]
        by_tokens = sorted(range(len(chunk)), key=lambda index: -lengths[index])
        for start in range(0, len(chunk), batch_size):
            picked = by_tokens[start : start + batch_size]
            inputs = tokenizer.pad(
                {name: [values[index] for index in picked] for name, values in columns.items()},
                padding="max_length",
                # At least one token, for a tokenizer that makes none of an empty text.
                max_length=max(1, lengths[picked[0]]),
                # An encoder may count positions from the first column, whichever side its tokenizer pads.
                padding_side="right",
                return_tensors="pt",
                verbose=False,
            )
            yield [chunk[index] for index in picked], inputs


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | os.PathLike) -> None:
    """Save a tokenizer that pads on the right, as `encode` does, for others that read the folder."""
    side, tokenizer.padding_side = tokenizer.padding_side, "right"
    try:
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.padding_side = side


def write_sentence_transformer(
    folder: str | os.PathLike, config: LayerAttnPoolConfig, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Write the files by which sentence-transformers reads a checkpoint of this library: one module, the model."""
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    transformer: dict[str, Any] = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding",
        "unpad_inputs": False,  # poolers look for rows of tokens
    }
    length = config.max_seq_length if tokenizer is None else max_length(config, tokenizer)
    if length is not None:
        transformer["max_seq_length"] = length
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
