"""Small things of every `forward`: checks of what it is given, which states it returns, in which precision it sums."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig


def check_tokens(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, *axes: str) -> torch.Tensor:
    """Whichever is given; a `ValueError` if it is neither, or has other axes or an empty one beside the batch."""
    if input_ids is None and inputs_embeds is None:
        raise ValueError("input_ids=None and inputs_embeds=None: one of the two is needed.")
    name, tokens = ("input_ids", input_ids) if input_ids is not None else ("inputs_embeds", inputs_embeds)
    axes = axes if input_ids is not None else (*axes, "hidden_size")
    if tokens.dim() != len(axes) or 0 in tokens.shape[1:]:
        raise ValueError(f"{name} of shape {tuple(tokens.shape)}: allowed is ({', '.join(axes)}), at least 1 of each.")
    return tokens


def choose_states(which: bool | int | list[int] | None, count: int) -> set[int]:
    """Which of `count` hidden states to return: all for `True`, or those of the indices (negative ones from the end).

    Raises:
        ValueError: for an index that does not exist.
    """
    if isinstance(which, bool) or which is None:
        return set(range(count)) if which else set()
    indices = [which] if isinstance(which, int) else list(which)
    if not all(-count <= index < count for index in indices):
        raise ValueError(
            f"output_hidden_states={which!r}: allowed is True, False, or indices from {-count} to {count - 1}."
        )
    return {index % count for index in indices}


def asked_for(
    config: PreTrainedConfig, output_hidden_states: bool | int | list[int] | None, inputs: dict[str, Any]
) -> tuple[set[int], bool]:
    """Which hidden states a call is to return, and whether attentions; what it leaves open, the configuration decides.

    `inputs`, of the encoder, are made to ask for attentions too.
    """
    which = config.output_hidden_states if output_hidden_states is None else output_hidden_states
    attend = inputs.get("output_attentions", config.output_attentions or config.encoder_config.output_attentions)
    if attend:
        inputs["output_attentions"] = True
    return choose_states(which, config.num_executed_layers + 1), bool(attend)


def kept_states(states: tuple[torch.Tensor, ...], keep: set[int]) -> tuple[torch.Tensor | None, ...]:
    """The hidden states to return, `None` in place of the others."""
    return tuple(state if index in keep else None for index, state in enumerate(states))


def encoder_inputs(
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """By name what is given: not every encoder takes all of these."""
    named = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "position_ids": position_ids,
        "inputs_embeds": inputs_embeds,
    }
    return {name: value for name, value in named.items() if value is not None}


def check_mask(attention_mask: torch.Tensor, tokens: torch.Tensor) -> None:
    """Raise a `ValueError` unless the mask is of the shape of the tokens, `(batch, tokens)`."""
    if attention_mask.shape != tokens.shape[:2]:
        raise ValueError(
            f"attention_mask of shape {tuple(attention_mask.shape)}: allowed is (batch, tokens), "
            f"here {tuple(tokens.shape[:2])}."
        )


def at_least_single(values: torch.Tensor) -> torch.Tensor:
    """Half precision becomes single, so that a softmax or a long sum is exact enough."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
