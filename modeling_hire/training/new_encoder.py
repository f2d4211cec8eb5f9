"""An encoder from random initialisation, with a tokenizer trained on the corpus."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
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
    """A WordPiece tokenizer for lower-case text, as BERT's, trained on texts. The same texts give the same ids.

    Args:
        texts: read once; a temporary file holds them meanwhile.
        vocab_size: at most so many words, word pieces and special tokens.
        max_length: longest input that its models take.

    Raises:
        ValueError: if there is no text.
    """
    learner = word_pieces(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    normalizer, splitter = learner.normalizer, learner.pre_tokenizer
    inside: set[str] = set()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for text in texts:
            line = normalizer.normalize_str(text)
            inside.update(letter for word, _ in splitter.pre_tokenize_str(line) for letter in word[1:])
            file.write(" ".join(line.split()) + "\n")
        if not file.tell():
            raise ValueError("corpus_file: there is no text to train a tokenizer on")
        file.seek(0)
        # The trainer meets the letters inside words in an order that every process draws anew, and numbers them by it;
        # told beforehand, they and all that is merged from them have the same numbers everywhere.
        told = [*SPECIAL_TOKENS.values(), *(f"##{letter}" for letter in sorted(inside))]
        trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=told, show_progress=False)
        learner.train_from_iterator(file, trainer)
    ids = learner.get_vocab()
    # Anew, since in the learner the letters are special tokens.
    backend = word_pieces(models.WordPiece(ids, unk_token=SPECIAL_TOKENS["unk_token"]))
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


def word_pieces(model: models.WordPiece) -> Tokenizer:
    """A tokenizer that cleans, splits and joins text as BERT's."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


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
