"""What ensembles of all kinds share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .ensemble_inputs import take_outputs
from .ensemble_members import Member, check_same_ids, make_members


Tokenizers = PreTrainedTokenizerBase | Sequence[PreTrainedTokenizerBase | None] | None


class Ensemble(nn.Module):
    """Members, and where those that are checkpoints are loaded to.

    Args:
        members, tokenizers, revision, dtype: see [`EnsembleForSequenceClassification`].
    """

    auto_class: Any

    def __init__(
        self,
        members: Sequence[PreTrainedModel | str | os.PathLike],
        tokenizers: Tokenizers = None,
        *,
        revision: str | Sequence[str | None] | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.members = make_members(members, self.auto_class, tokenizers, revision)
        # Checkpoints are no submodules: they come and go.
        self.given = nn.ModuleList(member.given for member in self.members if member.given is not None)
        # An empty tensor goes where `.to()` sends this module, and checkpoints are loaded to where it is.
        self.register_buffer("_place", torch.empty(0, dtype=dtype), persistent=False)
        self._same_ids = False

    def __len__(self) -> int:
        return len(self.members)

    def run_member(self, member: Member, function: Callable[[PreTrainedModel], Any]) -> Any:
        """Call a function with a member's model: see [`Member.run`]."""
        return member.run(function, self._place.device, self._place.dtype)

    def run_tensors(self, names: tuple[str, ...], inputs: dict[str, torch.Tensor | None]) -> list[list[torch.Tensor]]:
        """Each member's outputs of the given names for one tensor of token ids."""
        if not self._same_ids:
            check_same_ids(self.members)
            self._same_ids = True

        def call(member: Member, model: PreTrainedModel) -> list[torch.Tensor]:
            given = {name: value.to(model.device) for name, value in inputs.items() if value is not None}
            if "token_type_ids" in given and not member.takes(model, "token_type_ids"):
                del given["token_type_ids"]
            return [value.to(inputs["input_ids"].device) for value in take_outputs(member, model, given, names)]

        return [self.run_member(member, lambda model, member=member: call(member, model)) for member in self.members]
