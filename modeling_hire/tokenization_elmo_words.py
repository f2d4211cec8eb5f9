"""How a text is split into words, and the file of the words that a language model predicts."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache


PAD, UNK, BEGIN, END = "<PAD>", "<UNK>", "<S>", "</S>"
SPECIAL_WORDS = (PAD, UNK, BEGIN, END)

# In this order: abbreviations (U.S.), the end of a contraction ('t, 's), words and numbers with marks inside
# (well-known, 1,000.50), and everything else, where a mark that is repeated (--, ...) is one token.
_TOKEN = re.compile(r"(?:[a-z]\.){2,}|(?<=\w)'\w+|\w+(?:[-.,:/&@_]\w+)*|(.)\1*", re.ASCII | re.IGNORECASE)


@lru_cache(maxsize=100_000)
def split_word(word: str) -> tuple[str, ...]:
    """A run of non-space characters, split around its punctuation."""
    shape = word.replace("’", "'")
    if not word.isascii():
        # Letters, digits, combining marks and joiners of every script make words, as `a` does.
        shape = "".join(mark if mark.isascii() or unicodedata.category(mark)[0] in "PS" else "a" for mark in shape)
    return tuple(word[match.start() : match.end()] for match in _TOKEN.finditer(shape))


def numbered(words: Iterable[str]) -> dict[str, int]:
    """Words and their ids, in the order given."""
    return {word: index for index, word in enumerate(words)}


def read_words(path: str | os.PathLike) -> dict[str, int]:
    """Read a vocabulary; a `ValueError` says what is wrong with the file."""
    try:
        with open(path, encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            words = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"vocab_file={os.fspath(path)!r}: cannot be read as UTF-8 text ({error}).") from error
    words = [word.removesuffix("\r") for word in words]
    words = words[:-1] if words[-1] == "" else words
    ids = numbered(words)
    if len(ids) < len(words):
        repeated = next(word for word, count in Counter(words).items() if count > 1)
        raise ValueError(f"vocab_file={os.fspath(path)!r}: allowed is each word once; {repeated!r} is there again.")
    if tuple(words[: len(SPECIAL_WORDS)]) != SPECIAL_WORDS:
        raise ValueError(
            f"vocab_file={os.fspath(path)!r}: allowed is a file whose first lines are {', '.join(SPECIAL_WORDS)}, "
            f"here {', '.join(words[: len(SPECIAL_WORDS)]) or 'nothing'}."
        )
    return ids
