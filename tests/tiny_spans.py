"""Tokenizers of every kind, and texts that are hard for them, which the tests of question answering share."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.implementations import BaseTokenizer
from transformers import PreTrainedTokenizerFast


# White space at the ends and in rows, accents, emoji of several bytes, ligatures, other scripts, special tokens.
TEXTS = (
    "The tower, built in 1889, stands in Paris.",
    "  \n leading and trailing white space \t ",
    "Two  spaces,\ttabs\u00a0and a no-break space",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m e\u0301tude",
    "emoji \U0001f600\U0001f469\u200d\U0001f680 and \u6771\u4eac \u043c\u043e\u0441\u043a\u0432\u0430",
    "\ufb01nal \u2460 \uff21\uff22\uff23 half\u2013dash",
    "",
    "   ",
    "x",
)
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
CORPUS = [" ".join(TEXTS), "the tower of iron and the city of light in 1889 " * 3]


def _finish(backend: Tokenizer | BaseTokenizer, last: bool = False, **kwargs: object) -> PreTrainedTokenizerFast:
    """A tokenizer with a classification token in front, as BERT's, or at the end, as XLNet's."""
    single, pair = ("$A </s> <s>", "$A </s> $B </s> <s>") if last else ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")
    if backend.post_processor is None:
        backend.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[("<s>", 2), ("</s>", 3)]
        )
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, **kwargs)


def wordpiece(**kwargs: object) -> PreTrainedTokenizerFast:
    """As BERT's: lower case, no accents, pieces of words."""
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL))
    return _finish(backend, **kwargs)


def byte_level(trim: bool, **kwargs: object) -> PreTrainedTokenizerFast:
    """As RoBERTa's: pieces of bytes, to which the space before belongs; `trim` leaves it out of the offsets."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(CORPUS, trainer)
    if trim:
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", 3), ("<s>", 2), trim_offsets=True, add_prefix_space=False
        )
    backend.decoder = decoders.ByteLevel()
    return _finish(backend, **kwargs)


def sentencepiece(split: bool, **kwargs: object) -> PreTrainedTokenizerFast:
    """As T5's and XLM-R's: a unigram model over text whose spaces are written as letters; `split` drops them first."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    spaces = pre_tokenizers.Metaspace()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]) if split else spaces
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>")
    backend.train_from_iterator(CORPUS, trainer)
    return _finish(backend, **kwargs)


def class_token_last() -> PreTrainedTokenizerFast:
    """As XLNet's: padding on the left, and the classification token at the end."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    return _finish(backend, last=True, padding_side="left", truncation_side="left")


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "wordpiece": wordpiece,
    "wordpiece, left": lambda: wordpiece(padding_side="left", truncation_side="left"),
    "byte-level, trimmed": lambda: byte_level(True),
    "byte-level": lambda: byte_level(False),
    "sentencepiece": lambda: sentencepiece(False),
    "sentencepiece, split": lambda: sentencepiece(True),
    "class token last": class_token_last,
}
