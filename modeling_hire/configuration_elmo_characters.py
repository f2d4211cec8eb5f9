"""How ELMo spells a token: the ids of its characters.

A token is its UTF-8 bytes between the marks of its two ends, filled up to a fixed number of ids. The ids are those of
the original weights, with 0 free for padding: byte b is b + 1.
"""

from __future__ import annotations


PADDING = 0  # all ids of a token that is none
TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, FILLER = 257, 258, 259, 260, 261


def spell(token: str, max_characters: int = 50) -> list[int]:
    """The character ids of a token.

    Args:
        token (`str`): a word, or anything else that counts as one token. Of what does not fit, the end is left out.
        max_characters (`int`): ids to return.

    Example:

    ```python
    >>> from modeling_hire.configuration_elmo_characters import spell

    >>> spell("né", max_characters=8)
    [259, 111, 196, 170, 260, 261, 261, 261]
    ```
    """
    # A lone surrogate, as broken JSON holds it, is no UTF-8; it gets the three bytes that it would have.
    spelt = token.encode("utf-8", "surrogatepass")[: max_characters - 2]
    return _fill([WORD_BEGIN, *(byte + 1 for byte in spelt), WORD_END], max_characters)


def boundary(mark: int, max_characters: int = 50) -> list[int]:
    """The character ids of the token that stands before (`TEXT_BEGIN`) or after (`TEXT_END`) a text."""
    return _fill([WORD_BEGIN, mark, WORD_END], max_characters)


def unspell(ids: list[int]) -> str:
    """The token that character ids spell; bytes that are no UTF-8, such as of a cut letter, come as U+FFFD."""
    return bytes(index - 1 for index in ids if 0 < index <= 256).decode("utf-8", "replace")


def _fill(ids: list[int], max_characters: int) -> list[int]:
    return ids + [FILLER] * (max_characters - len(ids))
