"""From texts to token ids, and how long an input may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..configuration_positions import num_positions


_CUT = "_was_cut"


def tokenize_dataset(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, num_workers: int | None = None
) -> tuple[Dataset, int]:
    """Turn the texts of a dataset into token ids, without padding.

    Args:
        dataset: Rows with `text`, and `text_pair` for pairs, as `load_task_data` makes them.
        tokenizer: Any tokenizer of transformers.
        max_length: Longest input in tokens, special tokens included. Of a pair the longer text is cut first.
        num_workers: Processes to use; `None` means this one.

    Returns:
        The dataset with the model's inputs (`input_ids`, `attention_mask`, and `token_type_ids` if the tokenizer makes
        them) and `label`, where there is one; and how many inputs were longer than `max_length` and were cut.

    Raises:
        ValueError: If `max_length` leaves no room beside the special tokens.
    """
    columns = [name for name in ("text", "text_pair") if name in dataset.column_names]

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded, too_long = encode_texts(tokenizer, [batch[name] for name in columns], max_length)
        return {**encoded, _CUT: too_long}

    check_room(tokenizer, max_length, pair=len(columns) > 1)
    result = dataset.map(
        encode,
        batched=True,
        num_proc=num_workers,
        remove_columns=[name for name in dataset.column_names if name != "label"],
        desc="Tokenizing",
    )
    num_cut = sum(result[_CUT][:])
    return result.remove_columns(_CUT), num_cut


def check_room(tokenizer: PreTrainedTokenizerBase, max_length: int, pair: bool) -> None:
    """Raise a `ValueError` if `max_length` leaves no room beside the special tokens."""
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length <= special + pair:
        raise ValueError(
            f"max_length={max_length} leaves no room for text: this tokenizer adds {special} special tokens, so at "
            f"least {special + 1 + pair} are needed"
        )


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[Sequence[str]], max_length: int
) -> tuple[dict[str, list[Any]], list[bool]]:
    """Turn texts, or pairs of texts, into token ids, without padding.

    Args:
        tokenizer: Any tokenizer of transformers.
        texts: The texts; for pairs, the first ones and the second ones.
        max_length: Longest input in tokens, special tokens included. Of a pair the longer text is cut first.

    Returns:
        The model's inputs by name, a list of each; and for each input whether it was longer and was cut.
    """
    columns = [list(column) for column in texts]
    # Once without a limit: the only way to see, for every kind of tokenizer, which inputs are too long.
    encoded = dict(tokenizer(*columns, truncation=False, padding=False, verbose=False))
    encoded = {name: list(values) for name, values in encoded.items() if name in tokenizer.model_input_names}
    main = next(iter(encoded))
    too_long = [len(ids) > max_length for ids in encoded[main]]
    rows = [row for row, cut in enumerate(too_long) if cut]
    if rows:
        long_texts = [[column[row] for row in rows] for column in columns]
        shorter = tokenizer(*long_texts, truncation=True, max_length=max_length, padding=False)
        for name in encoded:
            for row, values in zip(rows, shorter[name], strict=True):
                encoded[name][row] = values
    return encoded, too_long


def truncation_note(split: str, num_cut: int, num_rows: int, max_length: int) -> str | None:
    """Return the sentence that tells the user how many inputs were cut, or `None` when none was."""
    if num_cut == 0:
        return None
    return f"{split}: {num_cut} of {num_rows} texts were longer than max_length={max_length} tokens and were cut."


def usable_max_length(
    requested: int, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig
) -> tuple[int, str | None]:
    """Return the longest input that tokenizer and encoder can take, up to what was asked for.

    Args:
        requested: The wanted `max_length`.
        tokenizer: Its `model_max_length` is a limit.
        encoder_config: The encoder's config. Learned positions are a limit, for RoBERTa's kind less the ones it never
            uses; encoders with relative positions only (DeBERTa-v2 and -v3, XLNet, T5, ...) have none.

    Returns:
        The length, and a note for the user if it is less than `requested`.
    """
    limits = {
        "the tokenizer's model_max_length": tokenizer.model_max_length,
        f"the positions of the {encoder_config.model_type} encoder": num_positions(encoder_config),
    }
    reason, limit = min(((r, n) for r, n in limits.items() if n is not None), key=lambda item: item[1])
    if requested <= limit:
        return requested, None
    return int(limit), f"max_length={requested} was lowered to {int(limit)}, {reason}; longer texts are cut."
