"""Rows of several texts joined to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase


class ContrastiveCollator:
    """Joins rows of several texts to a batch: all texts padded to one length, on the side that the tokenizer prefers.

    Args:
        tokenizer: Pads the texts; it must have a padding token.
        pad_to_multiple_of: Make the length a multiple of this.

    Raises:
        ValueError: If the tokenizer has no padding token.

    Called with rows, as `ContrastiveData.encode` makes them, it returns `input_ids` and `attention_mask`, (batch,
    texts of a row, tokens), and `token_type_ids` of the same shape if the tokenizer has such an input; and where the
    rows have them, `text_ids`, (batch, texts of a row), and `labels`, float (batch,). Other columns are left out.

    Example:

    ```python
    >>> from tokenizers import Tokenizer, models
    >>> from transformers import PreTrainedTokenizerFast
    >>> from modeling_hire.data.contrastive_collator import ContrastiveCollator

    >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    >>> first = {"input_ids": [[5, 6, 7], [5, 8]], "text_ids": [0, 1]}
    >>> batch = ContrastiveCollator(tokenizer)([first, {"input_ids": [[9], [5, 8]], "text_ids": [2, 1]}])
    >>> batch["input_ids"].tolist()
    [[[5, 6, 7], [5, 8, 0]], [[9, 0, 0], [5, 8, 0]]]
    >>> batch["attention_mask"].sum(-1).tolist(), batch["text_ids"].tolist()
    ([[3, 2], [1, 2]], [[0, 1], [2, 1]])
    ```
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None = None):
        if tokenizer.pad_token_id is None:
            raise ValueError(
                "pad_token=None: texts of different lengths cannot be joined; give the tokenizer a padding token"
            )
        self.tokenizer, self.pad_to_multiple_of = tokenizer, pad_to_multiple_of

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        widths = {len(feature["input_ids"]) for feature in features}
        if len(widths) != 1:
            raise ValueError(f"The rows of a batch must have the same number of texts, got {sorted(widths)}")
        shape = (len(features), widths.pop())
        inputs: dict[str, list[list[int]]] = {
            "input_ids": [list(ids) for feature in features for ids in feature["input_ids"]]
        }
        if "token_type_ids" in self.tokenizer.model_input_names:
            inputs["token_type_ids"] = (
                [list(types) for feature in features for types in feature["token_type_ids"]]
                if "token_type_ids" in features[0]
                else [[0] * len(ids) for ids in inputs["input_ids"]]
            )
        padded = self.tokenizer.pad(
            inputs,
            padding_side="right",  # as `encode`: an encoder may count positions from the first column
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_attention_mask=True,
            return_tensors="pt",
        )
        batch = {name: values.view(*shape, -1) for name, values in padded.items()}
        if "text_ids" in features[0]:
            batch["text_ids"] = torch.tensor([list(feature["text_ids"]) for feature in features])
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([float(feature["labels"]) for feature in features])
        return batch
