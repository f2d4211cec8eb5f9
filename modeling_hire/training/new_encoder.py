"""An encoder from random initialisation, with a tokenizer trained on the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerFast


SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer for lower-case text, as BERT's, trained on texts.

    Args:
        texts: read once.
        vocab_size: at most so many words, word pieces and special tokens.
        max_length: longest input that its models take.

    Raises:
        ValueError: if there is no text.
    """
    backend = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS.values()), show_progress=False
    )
    read = 0

    def counted() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    backend.train_from_iterator(counted(), trainer)
    if read == 0:
        raise ValueError("corpus_file: there is no text to train a tokenizer on")
    ids = {token: backend.token_to_id(token) for token in SPECIAL_TOKENS.values()}
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )


def new_encoder_config(
    model_type: str, fields: dict[str, Any] | None, tokenizer: PreTrainedTokenizerFast
) -> PreTrainedConfig:
    """The configuration of a new encoder for a tokenizer.

    Args:
        model_type: such as `"bert"`.
        fields: of its configuration; those that the tokenizer decides are set to what it needs.
        tokenizer: of its texts.

    Raises:
        ValueError: for an unknown type or field.
    """
    try:
        known = AutoConfig.for_model(model_type)
    except ValueError as error:
        raise ValueError(f"new_encoder={model_type!r}: transformers knows no such model type.") from error
    for name in fields or {}:
        if not hasattr(known, name):
            raise ValueError(f"encoder_fields: a {model_type!r} configuration has no field {name!r}.")
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    needed = {"vocab_size": len(tokenizer)} | {name: value for name, value in ids.items() if hasattr(known, name)}
    return AutoConfig.for_model(model_type, **((fields or {}) | needed))
