"""Configuration of models that read every hidden layer of a wrapped encoder."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_layer_plans import check_layer_plan, is_integer


PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


def _view(name: str) -> property:
    """A property that reads and writes the field of the wrapped encoder's config."""

    def read(self: LayerwiseConfig) -> Any:
        return getattr(self.encoder_config, name, None)

    def write(self: LayerwiseConfig, value: Any) -> None:
        setattr(self.encoder_config, name, value)

    return property(read, write, doc=f"`{name}` of `encoder_config`.")


class LayerwiseConfig(PreTrainedConfig):
    r"""
    Wraps the configuration of any encoder of transformers.

    `vocab_size`, `hidden_size`, `num_hidden_layers` and the like are views of `encoder_config`: reading and setting
    them reads and sets the encoder's, so that there is one truth (and `resize_token_embeddings` survives a reload).

    Args:
        encoder_config (`PreTrainedConfig` or `dict`, *optional*, defaults to a BERT-base configuration):
            The encoder's own configuration.
        layer_plan (`list[int]`, *optional*):
            The order in which the encoder's layers are executed, for example `[0, 0, 1, 1, 2, 2]` for three layers
            applied twice each. Repeated layers share their weights (*tied* duplication: no new parameters), and a
            layer that is not named is skipped. `None` executes every layer once.

    Raises:
        ValueError: for an encoder that is no encoder, or a plan that names a layer that does not exist.

    Example:

    ```python
    >>> from transformers import BertConfig
    >>> from modeling_hire import LayerwiseConfig

    >>> config = LayerwiseConfig(encoder_config=BertConfig(num_hidden_layers=3), layer_plan=[0, 0, 1, 2])
    >>> config.num_hidden_layers, config.num_executed_layers
    (3, 4)
    ```
    """

    model_type = "layerwise"
    sub_configs_defaults = {"encoder_config": SubConfigSpec(AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["hidden_states", "attentions", "layer_weights", "cache"]

    encoder_config: PreTrainedConfig | dict | None = None
    layer_plan: list[int] | None = None

    vocab_size = _view("vocab_size")
    hidden_size = _view("hidden_size")
    num_hidden_layers = _view("num_hidden_layers")
    num_attention_heads = _view("num_attention_heads")
    max_position_embeddings = _view("max_position_embeddings")
    type_vocab_size = _view("type_vocab_size")
    initializer_range = _view("initializer_range")
    pad_token_id = _view("pad_token_id")
    bos_token_id = _view("bos_token_id")
    eos_token_id = _view("eos_token_id")

    # The entries of `auto_map`: one repository serves the bare model and every task. A subclass with heads fills it.
    auto_classes: ClassVar[dict[str, str]] = {}

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_config is not None and not isinstance(self.encoder_config, dict):
            check_is_config(self.encoder_config)
        # Every configuration of transformers keeps what it does not know. What is nearly a field was meant as one.
        own = [field.name for field in fields(self) if field.name not in config_field_names(PreTrainedConfig)]
        for name in kwargs:
            if not hasattr(type(self), name) and difflib.get_close_matches(name, own, n=1, cutoff=0.85):
                check_known_fields(type(self), [name])
        super().__post_init__(**kwargs)
        if self.auto_classes:
            # `save_pretrained` alone would list only the class that was saved, and a checkpoint loaded from the Hub
            # comes with entries that point back to its source repository.
            self.auto_map = dict(self.auto_classes)
        self.check()

    def validate(self) -> None:
        """Run by `save_pretrained`, so that a field set to a wrong value later is not saved."""
        super().validate()
        self.check()

    def check(self) -> None:
        """Raise a `ValueError` that names the first wrong field, its value, and what is allowed."""
        encoder = self.encoder_config
        if hasattr(encoder, "encoder_config"):
            raise ValueError(
                f"encoder_config: {encoder.model_type!r} wraps an encoder itself; allowed is the encoder's own "
                "configuration (its encoder_config)."
            )
        check_choice("problem_type", self.problem_type, PROBLEM_TYPES)
        if self.num_labels < 1:
            raise ValueError(f"num_labels={self.num_labels!r}: allowed is 1 (a score) or more.")
        if getattr(encoder, "is_encoder_decoder", False):
            raise ValueError(
                f"encoder_config: {encoder.model_type!r} is an encoder-decoder (seq2seq) model; "
                "allowed is an encoder such as 'bert', 'roberta' or 'deberta-v2'."
            )
        if getattr(encoder, "is_decoder", False):
            raise ValueError(
                f"encoder_config: is_decoder=True (model type {encoder.model_type!r}); allowed is is_decoder=False, "
                "since a layer-wise model reads the whole text in both directions."
            )
        check_sizes(encoder)
        if self.layer_plan is not None:
            check_layer_plan(self.layer_plan, self.num_hidden_layers)

    @property
    def num_executed_layers(self) -> int:
        """How many layers run: the length of `layer_plan`, or every layer once."""
        return self.num_hidden_layers if self.layer_plan is None else len(self.layer_plan)

    @classmethod
    def from_encoder_config(cls, encoder_config: PreTrainedConfig, **overrides: Any) -> LayerwiseConfig:
        """Build a configuration around an encoder's, refusing a field that does not exist.

        Args:
            encoder_config (`PreTrainedConfig`): the encoder's configuration. It is copied, never changed.
            overrides: fields of this class, or of every configuration (`num_labels`, `id2label`, `problem_type`, ...).

        Raises:
            ValueError: for an unknown field, with the nearest known one.
        """
        check_is_config(encoder_config)
        check_known_fields(cls, overrides)
        encoder_config = copy.deepcopy(encoder_config)
        # What the source had on top of its encoder is not ours.
        encoder_config.architectures = encoder_config.problem_type = None
        encoder_config.num_labels = 2
        return cls(encoder_config=encoder_config, **overrides)


def check_is_config(encoder_config: Any) -> None:
    """Raise a `ValueError` if what should be an encoder's configuration is something else, such as its name."""
    if not isinstance(encoder_config, PreTrainedConfig):
        raise ValueError(
            f"encoder_config={encoder_config!r}: allowed is a configuration, such as "
            "AutoConfig.from_pretrained(name) returns."
        )


def check_sizes(encoder_config: PreTrainedConfig) -> None:
    """Raise a `ValueError` for an encoder without one width and one number of layers."""
    check_is_config(encoder_config)
    for field in ("hidden_size", "num_hidden_layers"):
        value = getattr(encoder_config, field, None)
        if not is_integer(value, 1):
            raise ValueError(
                f"encoder_config: a {encoder_config.model_type!r} model has {field}={value!r}; allowed is an encoder "
                "with one width and one number of layers, such as 'bert' or 'roberta'."
            )


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number (`True` and `False` are not numbers here)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_choice(field: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise a `ValueError` unless `value` is one of `allowed`, with the nearest allowed one."""
    # `1 == 1.0 == True`, yet a layer count of 1.0 or True fails later, and obscurely.
    same_kind = {type(choice) for choice in allowed}
    if not (type(value) in same_kind and value in allowed):
        near = difflib.get_close_matches(str(value), [str(choice) for choice in allowed], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{field}={value!r}: allowed is one of {', '.join(map(repr, allowed))}.{hint}")


def config_field_names(cls: type[PreTrainedConfig]) -> set[str]:
    """Names that a configuration class takes as keywords, the views of the encoder's fields excepted."""
    return {field.name for field in fields(cls)} | {"num_labels", "dtype", "attn_implementation"}


def check_known_fields(cls: type[PreTrainedConfig], names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise a `ValueError` that names the first unknown field and the nearest known one.

    Args:
        cls: the configuration's class.
        names: what was given.
        others: keywords that are no fields, yet may have been meant.
    """
    known = config_field_names(cls)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *others], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            own = sorted(known - config_field_names(PreTrainedConfig))
            raise ValueError(f"{cls.__name__} has no field {name!r}.{hint} Its own fields: {', '.join(own)}.")
