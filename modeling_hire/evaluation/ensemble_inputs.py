"""From texts to what an ensemble's members read, and through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.preprocessing import check_room, encode_texts, usable_max_length
from ..data.spans import Window
from .ensemble_members import Member
from .predict_spans import run_windows


Inputs = TypeVar("Inputs")


def make_inputs(
    members: Sequence[Member], max_length: int, make: Callable[[PreTrainedTokenizerBase, int], Inputs]
) -> list[Inputs]:
    """Each member's inputs, made once for members of the same tokenizer.

    Args:
        members: with tokenizers.
        max_length: longest input in tokens, lowered to what tokenizer and model of a member can take.
        make: makes the inputs with a tokenizer and a length.
    """
    lengths = [usable_max_length(max_length, member.tokenizer, member.encoder_config)[0] for member in members]
    made: dict[Any, Inputs] = {}
    for member, length in zip(members, lengths, strict=True):
        key = (member.fingerprint, length)
        if key not in made:
            made[key] = make(member.tokenizer, length)
    return [made[member.fingerprint, length] for member, length in zip(members, lengths, strict=True)]


def check_texts(texts: Sequence[str], text_pairs: Sequence[str] | None) -> None:
    """Raise a `ValueError` unless these are lists of strings, as many of one as of the other."""
    for name, values in (("texts", texts), ("text_pairs", text_pairs)):
        if values is None and name == "text_pairs":
            continue
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ValueError(f"{name}={values!r}: allowed is a list of strings")
        wrong = [value for value in values if not isinstance(value, str)]
        if wrong:
            raise ValueError(f"{name}: holds {wrong[0]!r} ({type(wrong[0]).__name__}); allowed are strings")
    if text_pairs is not None and len(texts) != len(text_pairs):
        raise ValueError(f"texts and text_pairs: {len(texts)} of one and {len(text_pairs)} of the other")


@dataclass(frozen=True)
class TextInputs:
    """What a member reads.

    Args:
        rows: the inputs of each text or pair by name, without padding.
        max_length: longest input in tokens.
        num_cut: how many were longer and were cut.
    """

    rows: list[dict[str, list[int]]]
    max_length: int
    num_cut: int


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], text_pairs: Sequence[str] | None, max_length: int
) -> TextInputs:
    """The inputs of each text or pair.

    Raises:
        ValueError: if `max_length` leaves no room for text.
    """
    check_room(tokenizer, max_length, pair=text_pairs is not None)
    if not texts:
        return TextInputs([], max_length, 0)
    encoded, cut = encode_texts(tokenizer, [texts] if text_pairs is None else [texts, text_pairs], max_length)
    rows = [{name: values[row] for name, values in encoded.items()} for row in range(len(texts))]
    return TextInputs(rows, max_length, sum(cut))


@torch.no_grad()
def run_texts(
    member: Member,
    model: PreTrainedModel,
    inputs: Sequence[dict[str, list[int]]],
    batch_size: int,
) -> torch.Tensor:
    """The logits `(texts, labels)` of a member's model, in single precision and on the CPU.

    Raises:
        ValueError: if it has none of this shape, or they are NaN.
    """
    logits = torch.empty(len(inputs), model.config.num_labels)
    # Like lengths together, so that there is little padding.
    order = sorted(range(len(inputs)), key=lambda row: -len(inputs[row]["input_ids"]))
    for begin in range(0, len(order), batch_size):
        rows = order[begin : begin + batch_size]
        batch = member.tokenizer.pad([inputs[row] for row in rows], return_tensors="pt")
        (found,) = take_outputs(member, model, dict(batch.to(model.device)), ("logits",))
        logits[rows] = found.cpu()
    return logits


def run_questions(
    member: Member, model: PreTrainedModel, windows: Sequence[Window], batch_size: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Start and end logits of each window by a member's model.

    Raises:
        ValueError: if it has none, or they are NaN.
    """
    try:
        starts, ends = run_windows(model, member.tokenizer, windows, batch_size)
    except ValueError as error:
        raise ValueError(f"{member.name}: {error}") from error
    if any(np.isnan(values).any() for values in (*starts, *ends)):
        raise ValueError(f"{member.name}: its logits are NaN: it has diverged (or float32 would help).")
    return starts, ends


def take_outputs(
    member: Member, model: PreTrainedModel, inputs: dict[str, torch.Tensor], names: tuple[str, ...]
) -> list[torch.Tensor]:
    """A model's outputs of the given names, in single precision.

    Raises:
        ValueError: if it has no such outputs, they have another shape, or they are NaN.
    """
    outputs = model(**inputs)
    expected = [len(inputs["input_ids"]), *([model.config.num_labels] if names == ("logits",) else [])]
    values = [getattr(outputs, name, None) for name in names]
    if any(value is None or value.dim() != 2 or list(value.shape[: len(expected)]) != expected for value in values):
        raise ValueError(f"{member.name}: gives no {' and '.join(names)} of the right shape; is it of another task?")
    if any(value.isnan().any() for value in values):
        raise ValueError(f"{member.name}: its {' and '.join(names)} are NaN: it has diverged (or float32 would help).")
    return [value.float() for value in values]
