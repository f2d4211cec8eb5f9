"""The members of an ensemble: models that are there already, or checkpoints that are in memory one at a time."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from ..training.models import check_tokenizer
from .predict_spans import evaluation_mode


Result = TypeVar("Result")
# What the name of a class of this head ends in, where that is not the name of the task.
_OTHER_SUFFIXES = {"ForSequenceClassification": "ForHIRE"}


class Member:
    """One model of an ensemble.

    Of a checkpoint the configuration is read at once, so that what is wrong with it is known before any work starts;
    the weights are read each time that `run` is called, and let go when it returns.

    Args:
        source: a model, or the name of a checkpoint: a repository or a folder with safetensors.
        auto_class: loads it, e.g. `AutoModelForSequenceClassification`.
        position: which member of the ensemble it is, for messages.
        tokenizer: its tokenizer; of a checkpoint, the one saved with it unless one is given.
        revision: commit, branch or tag of a repository.

    Attributes:
        name: how messages name it.
        config: its configuration.
        given: the model, or `None` for a checkpoint.

    Raises:
        ValueError: if it is neither, or the checkpoint cannot be read, has other weights than safetensors, or is of
            another task.
    """

    def __init__(
        self,
        source: PreTrainedModel | str | os.PathLike,
        auto_class: Any,
        position: int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        revision: str | None = None,
    ):
        self.auto_class, self.revision = auto_class, revision
        self._tokenizer, self._fingerprint = tokenizer, None
        self.given: PreTrainedModel | None = None
        if isinstance(source, nn.Module):
            self.name = f"members[{position}] ({type(source).__name__})"
            if revision is not None:
                raise ValueError(f"revision={revision!r}: {self.name} is a model; allowed is None.")
            if not isinstance(getattr(source, "config", None), PreTrainedConfig):
                raise ValueError(f"{self.name}: has no configuration; allowed is a model of transformers.")
            self.given, self.config = source, source.config
        elif isinstance(source, str | os.PathLike):
            self.checkpoint = os.fspath(source)
            self.name = f"members[{position}] ({self.checkpoint!r})"
            self.config = self._read_config()
            self._check_weights()
        else:
            raise ValueError(
                f"members[{position}]={source!r}: allowed is a model, or the repository or folder of a checkpoint."
            )

    # ---- what can be known before its weights are read --------------------------------------------------------------

    def _read_config(self) -> PreTrainedConfig:
        try:
            config = AutoConfig.from_pretrained(self.checkpoint, revision=self.revision, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.name}: no model can be read there ({_first_line(error)})") from error
        suffix = self.auto_class.__name__.removeprefix("AutoModel")
        saved = config.architectures or []
        # A head that is not in the checkpoint would be made of random numbers.
        if saved and not any(name.endswith((suffix, _OTHER_SUFFIXES.get(suffix, suffix))) for name in saved):
            raise ValueError(f"{self.name}: was saved by {saved[0]}; allowed is a fine-tuned checkpoint, ...{suffix}.")
        return config

    def _check_weights(self) -> None:
        """Find the weights, fetching them if they are on the Hub, and look at the head of the file."""
        path = None
        for file in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
            try:
                path = path or cached_file(self.checkpoint, file, revision=self.revision)
            except OSError as error:
                reason = error
        if path is None:
            raise ValueError(
                f"{self.name}: no weights in safetensors can be read there ({_first_line(reason)}). Pickled weights "
                "are not read, since that can run code."
            )
        if path.endswith(SAFE_WEIGHTS_NAME):
            try:
                with safe_open(path, framework="pt"):
                    pass
            except SafetensorError as error:
                raise ValueError(f"{self.name}: its weights are corrupt or cut short: {error}") from error

    @property
    def encoder_config(self) -> PreTrainedConfig:
        """The configuration of its encoder."""
        return getattr(self.config, "encoder_config", self.config)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer.

        Raises:
            ValueError: if there is none, or it knows no words or cannot pad.
        """
        if self._tokenizer is None:
            if self.given is not None:
                raise ValueError(
                    f"tokenizers: {self.name} is a model, so its tokenizer is not known; give one for each member."
                )
            try:
                found = AutoTokenizer.from_pretrained(self.checkpoint, revision=self.revision, trust_remote_code=False)
            except (OSError, ValueError) as error:
                raise ValueError(f"{self.name}: no tokenizer can be read there ({_first_line(error)})") from error
            check_tokenizer(self.name, found, getattr(self.config, "vocab_size", None))
            self._tokenizer = found
        return self._tokenizer

    @property
    def fingerprint(self) -> Any:
        """Equal for two members exactly if their tokenizers turn every text into the same inputs."""
        if self._fingerprint is None:
            tokenizer = self.tokenizer
            if tokenizer.is_fast:
                # How inputs are padded and cut is set anew at each call.
                state = json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
                known = json.dumps(state, sort_keys=True)
            else:
                known = id(tokenizer)
            sides = (tokenizer.padding_side, tokenizer.truncation_side)
            self._fingerprint = (known, tuple(tokenizer.model_input_names), tokenizer.cls_token_id, sides)
        return self._fingerprint

    def vocabulary(self) -> dict[str, int] | None:
        """Token ids by token, or `None` if there is no tokenizer to ask."""
        try:
            return self.tokenizer.get_vocab()
        except ValueError:
            return None

    # ---- running it -------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[PreTrainedModel], Result], device: torch.device, dtype: torch.dtype) -> Result:
        """Call a function with the model, in evaluation mode; a checkpoint is in memory for so long and no longer.

        Args:
            function: must keep neither the model nor a tensor of its weights.
            device, dtype: for a checkpoint; a model that was given stays as it is.

        Raises:
            ValueError: if the weights cannot be read, or are not all there.
        """
        if self.given is not None:
            with evaluation_mode(self.given):
                return function(self.given)
        return function(self._load(device, dtype))

    def _load(self, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
        try:
            model, loaded = self.auto_class.from_pretrained(
                self.checkpoint,
                revision=self.revision,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{self.name}: its weights cannot be read ({_first_line(error)})") from error
        missing = sorted(loaded["missing_keys"])
        if missing:
            raise ValueError(f"{self.name}: the checkpoint lacks {len(missing)} weights, such as {missing[0]!r}.")
        return model.to(device).eval()

    def takes(self, model: PreTrainedModel, name: str) -> bool:
        """Whether the model's `forward` has an input of this name, and the tokenizer, where it is known, makes it."""
        if self._tokenizer is not None and name not in self._tokenizer.model_input_names:
            return False
        parameters = inspect.signature(model.forward).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def make_members(
    sources: Sequence[PreTrainedModel | str | os.PathLike],
    auto_class: Any,
    tokenizers: PreTrainedTokenizerBase | Sequence[PreTrainedTokenizerBase | None] | None,
    revision: str | Sequence[str | None] | None,
) -> list[Member]:
    """The members of an ensemble.

    Args:
        sources: models and checkpoints.
        auto_class: loads checkpoints.
        tokenizers: one for all members, or one a member (`None` for a checkpoint's own).
        revision: one for all members, or one a member.

    Raises:
        ValueError: if there is no member, a list has another length, or a member is wrong.
    """
    if isinstance(sources, str | os.PathLike | nn.Module) or not isinstance(sources, Sequence | nn.ModuleList):
        raise ValueError(f"members={sources!r}: allowed is a list of models and checkpoints.")
    if len(sources) == 0:
        raise ValueError("members=[]: an ensemble has no members; allowed is one or more.")

    def one_each(name: str, values: Any, single: type) -> list[Any]:
        if values is None or isinstance(values, single):
            return [values] * len(sources)
        if len(values) != len(sources):
            raise ValueError(f"{name}: {len(values)} for {len(sources)} members; allowed is one a member.")
        return list(values)

    own_tokenizers = one_each("tokenizers", tokenizers, PreTrainedTokenizerBase)
    wrong = next((t for t in own_tokenizers if not isinstance(t, PreTrainedTokenizerBase | None)), None)
    if wrong is not None:
        raise ValueError(f"tokenizers: holds {wrong!r} ({type(wrong).__name__}); allowed are tokenizers and None.")
    revisions = one_each("revision", revision, str)
    triples = zip(sources, own_tokenizers, revisions, strict=True)
    return [
        Member(source, auto_class, position, tokenizer, commit)
        for position, (source, tokenizer, commit) in enumerate(triples)
    ]


def check_same_ids(members: Sequence[Member]) -> None:
    """Raise a `ValueError` if a token id means different things to two members, as far as their tokenizers tell."""
    known = [(member, vocabulary) for member in members if (vocabulary := member.vocabulary()) is not None]
    for member, vocabulary in known[1:]:
        if vocabulary != known[0][1]:
            raise ValueError(
                f"input_ids: {known[0][0].name} and {member.name} have tokenizers of different vocabularies, so one "
                "tensor cannot be the input of both; allowed is text, which predict() takes."
            )


def _first_line(error: Exception | None) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
