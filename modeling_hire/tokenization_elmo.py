"""The tokenizer of ELMo: words spelt as character ids, and a vocabulary of words for the language model to predict."""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizer
from transformers.utils import PaddingStrategy

from .configuration_elmo_characters import PADDING, TEXT_BEGIN, TEXT_END, WORD_BEGIN, spell, unspell
from .tokenization_elmo_words import BEGIN, END, PAD, SPECIAL_WORDS, UNK, numbered, read_words, split_word


SPLITTINGS = ("punctuation", "whitespace")
NO_LABEL = -100


class ElmoTokenizer(PreTrainedTokenizer):
    r"""
    Splits texts into words and spells each as character ids: `input_ids` is `(batch, tokens, max_characters)`.

    The model puts the beginning and the end of a text around it by itself. A pair of texts comes as one row with
    `token_type_ids` 0 and 1, and the model reads the two apart. The tokens may be given instead of a text, with
    `is_split_into_words=True`; they are then left as they are. Languages written without spaces need that.

    `return_labels=True` adds `labels`, `(batch, tokens + 1)`: the word ids of the tokens and of the text's end, which
    [`ElmoForPreTraining`] predicts; -100 at padding. [`ElmoTokenizer.build`] makes the vocabulary they come from,
    which is saved with the tokenizer.

    Args:
        vocab_file (`str`, *optional*):
            The vocabulary, one word a line in the order of the ids, `<PAD>`, `<UNK>`, `<S>` and `</S>` first. Unset,
            there are no other words: enough for a model that predicts none.
        max_characters (`int`, *optional*, defaults to 50):
            Character ids of a token. A token of more UTF-8 bytes than this less 2 is cut.
        splitting (`str`, *optional*, defaults to `"punctuation"`):
            Where a text is split: at white space and around punctuation, or at white space only (`"whitespace"`), for
            texts whose tokens are separated already.
        lowercase (`bool`, *optional*, defaults to `False`): whether words are looked up in lower case in the
            vocabulary. Their characters stay as they are.
        kwargs: of every tokenizer.

    Raises:
        ValueError: for a setting that is not allowed, or a vocabulary that cannot be read.

    Example:

    ```python
    >>> from modeling_hire.tokenization_elmo import ElmoTokenizer

    >>> tokenizer = ElmoTokenizer.build(["The cat sat.", "The dog sat."], vocab_size=6)
    >>> tokenizer.tokenize("The cat didn't sit...")
    ['The', 'cat', 'didn', "'t", 'sit', '...']
    >>> batch = tokenizer(["The cat sat.", "Sat"], padding=True, return_labels=True, return_tensors="pt")
    >>> batch["input_ids"].shape, batch["labels"].tolist()
    (torch.Size([2, 4, 50]), [[5, 1, 1, 4, 3], [1, 3, -100, -100, -100]])
    ```
    """

    vocab_files_names = {"vocab_file": "words.txt"}
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]

    def __init__(
        self,
        vocab_file: str | os.PathLike | None = None,
        max_characters: int = 50,
        splitting: str = "punctuation",
        lowercase: bool = False,
        **kwargs: Any,
    ):
        if not isinstance(max_characters, int) or isinstance(max_characters, bool) or max_characters < 3:
            raise ValueError(f"max_characters={max_characters!r}: allowed is a whole number, 3 or more.")
        if splitting not in SPLITTINGS:
            raise ValueError(f"splitting={splitting!r}: allowed is one of {', '.join(map(repr, SPLITTINGS))}.")
        if not isinstance(lowercase, bool):
            raise ValueError(f"lowercase={lowercase!r}: allowed is True or False.")
        self.max_characters, self.splitting, self.lowercase = max_characters, splitting, lowercase
        self.words = read_words(vocab_file) if vocab_file is not None else numbered(SPECIAL_WORDS)
        self._texts = list(self.words)
        special = {"pad_token": PAD, "unk_token": UNK, "bos_token": BEGIN, "eos_token": END}
        super().__init__(
            max_characters=max_characters,
            splitting=splitting,
            lowercase=lowercase,
            # What a text says is never taken for a mark.
            **{**special, "split_special_tokens": True, "clean_up_tokenization_spaces": False} | kwargs,
        )

    @classmethod
    def build(
        cls, texts: Iterable[str | Sequence[str]], vocab_size: int = 50_000, min_count: int = 1, **settings: Any
    ) -> ElmoTokenizer:
        """A tokenizer whose vocabulary is the most frequent words of a corpus.

        Args:
            texts: texts, or lists of tokens. They are gone through once and not kept.
            vocab_size (`int`): largest number of words, with the four special ones. They are sorted by falling
                frequency, and equally frequent ones by the alphabet.
            min_count (`int`): how often a word must occur.
            settings: of the class.

        Raises:
            ValueError: for texts without a word, or a setting that is not allowed.
        """
        if not isinstance(vocab_size, int) or vocab_size <= len(SPECIAL_WORDS):
            raise ValueError(f"vocab_size={vocab_size!r}: allowed is a whole number above {len(SPECIAL_WORDS)}.")
        if not isinstance(min_count, int) or min_count < 1:
            raise ValueError(f"min_count={min_count!r}: allowed is a whole number, 1 or more.")
        tokenizer, counts = cls(**settings), Counter()
        for text in texts:
            counts.update(map(tokenizer._looked_up, tokenizer.tokenize(text) if isinstance(text, str) else text))
        for word in SPECIAL_WORDS:
            counts.pop(word, None)
        words = [word for _, word in sorted((-count, word) for word, count in counts.items() if count >= min_count)]
        if not words:
            raise ValueError(f"texts: no word occurs {min_count} times or more in them.")
        return tokenizer.with_words(words[: vocab_size - len(SPECIAL_WORDS)])

    def with_words(self, words: Iterable[str]) -> ElmoTokenizer:
        """This tokenizer with the vocabulary `words`, by falling frequency; the special words come before them."""
        # A word with a line break in it, which only a list of tokens can hold, has no place in a file of lines.
        words = [word for word in words if word not in SPECIAL_WORDS and not re.search(r"[\r\n]", word)]
        tokenizer = copy.deepcopy(self)
        tokenizer.words = numbered(dict.fromkeys([*SPECIAL_WORDS, *words]))
        tokenizer._texts = list(tokenizer.words)
        tokenizer._update_total_vocab_size()
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Words that the language model can predict, the special ones included."""
        return len(self.words)

    def get_vocab(self) -> dict[str, int]:
        return {**self.words, **self._added_tokens_encoder}

    def _update_total_vocab_size(self) -> None:
        self.total_vocab_size = len(self.get_vocab())

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        path = os.path.join(save_directory, f"{filename_prefix}-" * bool(filename_prefix) + "words.txt")
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            file.writelines(f"{word}\n" for word in self._texts)
        return (path,)

    # ---- words ------------------------------------------------------------------------------------------------------

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        words = text.split()
        return words if self.splitting == "whitespace" else [token for word in words for token in split_word(word)]

    def _looked_up(self, word: str) -> str:
        return word.lower() if self.lowercase else word

    def _convert_token_to_id(self, token: str) -> int:
        return self.words.get(self._looked_up(token), self.words[UNK])

    def _convert_id_to_token(self, index: int) -> str:
        return self._texts[index] if 0 <= index < len(self._texts) else UNK

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Words of word ids (numbers) or of character ids (lists of numbers)."""
        ids = _plain(ids)
        if isinstance(ids, int) or not any(isinstance(index, list) for index in ids):
            return super().convert_ids_to_tokens(ids, skip_special_tokens)
        tokens = map(self._token_of, ids)
        return [token for token in tokens if not (skip_special_tokens and token in SPECIAL_WORDS)]

    def _token_of(self, characters: list[int]) -> str:
        if not any(characters):
            return PAD
        for mark, word in ((TEXT_BEGIN, BEGIN), (TEXT_END, END)):
            if characters[:2] == [WORD_BEGIN, mark]:
                return word
        return unspell(characters)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str | list[str]:
        """The text of word ids or of character ids, `(tokens, max_characters)`, or the texts of a batch of them."""
        ids = _plain(token_ids)
        of_words = isinstance(ids, int) or all(isinstance(index, int) for index in ids)
        # Lists of numbers are spelt tokens of one text if all are as long as a token is, and word ids of texts if not.
        spelt = not of_words and all(len(row) == self.max_characters for row in ids)
        if of_words or (spelt and _is_one_text(ids)):
            return self._decode(ids, skip_special_tokens, **kwargs)
        return [self._decode(row, skip_special_tokens, **kwargs) for row in ids]

    # ---- texts to batches -------------------------------------------------------------------------------------------

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_attention_mask: bool | None = None,
        return_labels: bool = False,
        truncation_strategy: Any = "do_not_truncate",
        **kwargs: Any,
    ) -> BatchEncoding:
        if return_labels and text_pair is not None:
            raise ValueError("return_labels=True with a pair of texts: allowed are single texts.")
        single = isinstance(text, str) or (is_split_into_words and all(isinstance(token, str) for token in text))
        pairs = _paired(text, text_pair, single, is_split_into_words)
        if not pairs:
            return BatchEncoding({name: [] for name in self.model_input_names})
        encoded: dict[str, list[Any]] = {}
        for pair in pairs:
            tokens = [self._tokens(side, is_split_into_words, kwargs) for side in pair if side is not None]
            row = self.prepare_for_model(
                *tokens,
                truncation=getattr(truncation_strategy, "value", truncation_strategy),
                max_length=max_length,
                return_attention_mask=False,
                **{key: value for key, value in kwargs.items() if key in _PASSED_ON},
            )
            if return_labels:
                row["labels"] = [*map(self._label, row["input_ids"]), self.eos_token_id]
            spelt = {token: spell(token, self.max_characters) for token in set(row["input_ids"])}
            row["input_ids"] = [spelt[token] for token in row["input_ids"]]
            for name, value in row.items():
                encoded.setdefault(name, []).append(value)
        if return_tensors is not None and padding_strategy == PaddingStrategy.DO_NOT_PAD:
            padding_strategy = PaddingStrategy.LONGEST if not any(encoded["input_ids"]) else padding_strategy
        encoded = self.pad(
            encoded,
            padding=padding_strategy.value,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        if single and return_tensors is None:
            return BatchEncoding({name: values[0] for name, values in encoded.items()})
        return BatchEncoding(dict(encoded), tensor_type=return_tensors)

    def _tokens(self, text: str | Sequence[str], is_split_into_words: bool, kwargs: dict[str, Any]) -> list[str]:
        if is_split_into_words:
            return list(text)
        return self.tokenize(text, split_special_tokens=kwargs.get("split_special_tokens", self.split_special_tokens))

    def _label(self, token: str) -> int:
        # A text that spells the name of a mark says a word that is not in the vocabulary.
        return self.words[UNK] if token in SPECIAL_WORDS else self._convert_token_to_id(token)

    def truncate_sequences(
        self,
        ids: list[str],
        pair_ids: list[str] | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: Any = "longest_first",
        stride: int = 0,
    ) -> tuple[list[str], list[str] | None, list[str]]:
        """As every tokenizer, token by token off the longer one of a pair; of two equally long ones, the second."""
        if pair_ids is None or getattr(truncation_strategy, "value", truncation_strategy) != "longest_first":
            return super().truncate_sequences(ids, pair_ids, num_tokens_to_remove, truncation_strategy, stride)
        first, second = len(ids), len(pair_ids)
        for _ in range(min(num_tokens_to_remove, first + second)):
            first, second = (first - 1, second) if first > second else (first, second - 1)
        if self.truncation_side == "left":
            return ids[len(ids) - first :], pair_ids[len(pair_ids) - second :], []
        return ids[:first], pair_ids[:second], []

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str | PaddingStrategy = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad a text or a batch of texts, as every tokenizer; `labels` that come with them are padded with -100."""
        if isinstance(encoded_inputs, list | tuple):
            encoded_inputs = {name: [row[name] for row in encoded_inputs] for name in encoded_inputs[0]}
        encoded = {name: _plain(values) for name, values in encoded_inputs.items()}
        if "input_ids" not in encoded:
            raise ValueError(f"encoded_inputs with {sorted(encoded)}: allowed are inputs with 'input_ids'.")
        single = _is_one_text(encoded["input_ids"])
        if single:
            encoded = {name: [values] for name, values in encoded.items()}
        strategy, _, max_length, _ = self._get_padding_truncation_strategies(
            padding=padding, max_length=max_length, verbose=verbose
        )
        width = None
        if strategy != PaddingStrategy.DO_NOT_PAD:
            longest = max(map(len, encoded["input_ids"]), default=0)
            # A batch of empty texts gets a column of padding: a tensor without columns has no place for the ids.
            width = max(1, longest if strategy == PaddingStrategy.LONGEST else max_length)
            multiple = pad_to_multiple_of or 1
            width = -(-width // multiple) * multiple
        if return_attention_mask or (return_attention_mask is None and "attention_mask" in self.model_input_names):
            encoded.setdefault("attention_mask", [[1] * len(row) for row in encoded["input_ids"]])
        if width is not None:
            side = padding_side or self.padding_side
            fillings = {"input_ids": [PADDING] * self.max_characters, "special_tokens_mask": 1, "labels": NO_LABEL}
            for name in encoded.keys() & {"attention_mask", "token_type_ids", *fillings}:
                # Labels have one more than tokens. Those of a text's class are one number, and stay.
                more = name == "labels"
                encoded[name] = [
                    _padded(row, width + more, fillings.get(name, 0), side) if isinstance(row, list) else row
                    for row in encoded[name]
                ]
        if single:
            encoded = {name: values[0] for name, values in encoded.items()}
        return BatchEncoding(encoded, tensor_type=return_tensors)


_PASSED_ON = (
    "add_special_tokens",
    "stride",
    "return_token_type_ids",
    "return_overflowing_tokens",
    "return_special_tokens_mask",
    "return_length",
    "verbose",
)


def _paired(text: Any, text_pair: Any, single: bool, split: bool) -> list[tuple[Any, Any]]:
    """The rows of a batch as pairs, the second of which is `None` for single texts."""
    if single:
        return [(text, text_pair)]
    if text_pair is not None and (isinstance(text_pair, str) or len(text_pair) != len(text)):
        given = "one text" if isinstance(text_pair, str) else f"{len(text_pair)} texts"
        raise ValueError(f"text_pair with {given}: allowed are as many as in text, {len(text)}.")
    rows = list(zip(text, text_pair, strict=True)) if text_pair is not None else []
    for row in text if text_pair is None else ():
        is_pair = isinstance(row, list | tuple) and len(row) == 2 and not (split and isinstance(row[0], str))
        rows.append(tuple(row) if is_pair else (row, None))
    for pair in rows:
        for side in pair:
            fits = isinstance(side, list | tuple) if split else isinstance(side, str)
            if side is not None and not fits:
                kind = "a list of tokens" if split else "a text, or a pair of texts"
                raise ValueError(f"text={side!r}: allowed is {kind}.")
    return rows


def _padded(row: list[Any], width: int, filling: Any, side: str) -> list[Any]:
    filler = [filling] * (width - len(row))
    return filler + row if side == "left" else row + filler


def _plain(values: Any) -> Any:
    """Arrays and tensors, also those inside a list, as lists of numbers."""
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, tuple) or (isinstance(values, list) and any(hasattr(value, "tolist") for value in values)):
        return [_plain(value) for value in values]
    return values


def _is_one_text(ids: list[Any]) -> bool:
    """Whether these are the spelt tokens of one text, not those of a batch: a text may be empty, a token never."""
    return not ids or (len(ids[0]) > 0 and isinstance(ids[0][0], int))


ElmoTokenizer.register_for_auto_class("AutoTokenizer")
