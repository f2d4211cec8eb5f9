"""Configuration of HIRE: input-dependent weights over an encoder's hidden layers, fused with the last layer."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from .configuration_layerwise import LayerwiseConfig, check_choice, check_sizes, is_integer, is_number


WEIGHTINGS = ("dynamic", "mean", "random", "static", "last")
SCORERS = ("gru", "pooled")
SCORE_ACTIVATIONS = ("relu", "none", "tanh")
FUSION_FEATURES = ("last", "mixture", "sum", "product")
PRESETS = ("paper", "paper-half", "fast")
ROBERTA_LIKE = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
    "data2vec-text",
)


class HireConfig(LayerwiseConfig):
    r"""
    Configuration of [`HireModel`] and its task models. The defaults are the paper's (Yang & Zhao, arXiv 1911.01940);
    where the paper is silent they are a choice, and a field.

    Column `i` of `output.layer_weights` is the weight of `hidden_states[config.layer_indices[i]]`; hidden state 0 is
    the embedding output. `layer_indices` is written into `config.json` for the reader.

    Args:
        encoder_config, layer_plan: see [`LayerwiseConfig`].
        weighting (`str`, *optional*, defaults to `"dynamic"`):
            Where the weights come from: `"dynamic"` (scored on the input), `"static"` (the softmax of free scalars),
            `"mean"` (all equal), `"random"` (drawn once, then fixed and saved), `"last"` (a control: the mixture is
            the last layer itself).
        scorer (`str`, *optional*, defaults to `"gru"`):
            How `"dynamic"` summarises a layer: `"gru"` (the paper's bidirectional GRU over the tokens) or `"pooled"`
            (the first token and the mean of all tokens through a small MLP).
        scorer_layers (`int`, *optional*, defaults to 2): layers of the scorer's GRU, 1 or 2.
        scorer_hidden_size (`int`, *optional*):
            Width of the scorer, per direction for the GRU. `None` is the encoder's `hidden_size` for `"gru"` and a
            quarter of it for `"pooled"`.
        share_scorer (`bool`, *optional*, defaults to `True`): one scorer for all layers, or one each.
        score_activation (`str`, *optional*, defaults to `"relu"`): on the score, before the softmax over layers.
        score_bias_init (`float`, *optional*, defaults to 1.0):
            Start of the score's bias. A ReLU whose input is negative for every layer gives equal weights and no
            gradient, for good: started here it is alive for every input, and the class of functions is the same.
        rescue_dead_scores (`bool`, *optional*, defaults to `True`):
            Whether an example whose scores are all negative still gets a gradient, which pushes them up. Only the
            gradient differs from a plain ReLU's, and only there.
        include_embeddings (`bool`, *optional*, defaults to `False`): whether hidden state 0 is a candidate.
        fusion_num_layers (`int`, *optional*, defaults to 2): GRU layers of the fusion, 0 to 3; 0 is a linear map.
        fusion_hidden_size (`int`, *optional*): width of the fusion GRU per direction. `None` is `hidden_size`.
        fusion_features (`list[str]`, *optional*, defaults to all four):
            What the fusion reads: `"last"` (R), `"mixture"` (A), `"sum"` (R + A), `"product"` (R * A). `"last"` alone
            leaves nothing for learned weights to do, and is refused with `"dynamic"` and `"static"`.
        hire_dropout (`float`, *optional*, defaults to 0.1): dropout on the inputs of both GRUs and of the head.
        streaming (`str`, *optional*, defaults to `"auto"`):
            Whether inference without gradients mixes the layers as they come instead of holding them all: `"auto"`
            (when they would take over 128 MiB), `"always"` or `"never"`.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:

    ```python
    >>> from transformers import RobertaConfig
    >>> from modeling_hire import HireConfig

    >>> config = HireConfig.preset("paper-half", RobertaConfig(num_hidden_layers=6), num_labels=3)
    >>> config.fusion_hidden_size, config.layer_indices
    (384, [1, 2, 3, 4, 5])
    ```
    """

    model_type = "hire"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_hire.HireConfig",
        "AutoModel": "modeling_hire.HireModel",
        "AutoModelForSequenceClassification": "modeling_hire.HireForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_hire.HireForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_hire.HireForQuestionAnswering",
        "AutoModelForMultipleChoice": "modeling_hire.HireForMultipleChoice",
    }

    weighting: str = "dynamic"
    scorer: str = "gru"
    scorer_layers: int = 2
    scorer_hidden_size: int | None = None
    share_scorer: bool = True
    score_activation: str = "relu"
    score_bias_init: float = 1.0
    rescue_dead_scores: bool = True
    include_embeddings: bool = False
    fusion_num_layers: int = 2
    fusion_hidden_size: int | None = None
    fusion_features: list[str] | None = None
    hire_dropout: float = 0.1
    streaming: str = "auto"

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop("layer_indices", None)  # derived, and only written for the reader
        if self.fusion_features is None:
            self.fusion_features = list(FUSION_FEATURES)
        super().__post_init__(**kwargs)

    def check(self) -> None:
        super().check()
        check_choice("weighting", self.weighting, WEIGHTINGS)
        check_choice("scorer", self.scorer, SCORERS)
        check_choice("score_activation", self.score_activation, SCORE_ACTIVATIONS)
        check_choice("scorer_layers", self.scorer_layers, (1, 2))
        check_choice("fusion_num_layers", self.fusion_num_layers, (0, 1, 2, 3))
        check_choice("streaming", self.streaming, ("auto", "always", "never"))
        for field in ("share_scorer", "include_embeddings", "rescue_dead_scores"):
            check_choice(field, getattr(self, field), (True, False))
        for field in ("scorer_hidden_size", "fusion_hidden_size"):
            value = getattr(self, field)
            if not (value is None or is_integer(value, 1)):
                raise ValueError(f"{field}={value!r}: allowed is a positive whole number, or None for the default.")
        features = self.fusion_features
        if not (isinstance(features, list) and features and all(name in FUSION_FEATURES for name in features)):
            raise ValueError(f"fusion_features={features!r}: allowed is a non-empty list of {list(FUSION_FEATURES)}.")
        if len(set(features)) < len(features):
            raise ValueError(f"fusion_features={features!r}: allowed is each feature once.")
        if features == ["last"] and self.weighting in ("dynamic", "static"):
            raise ValueError(
                f"fusion_features={features!r}: nothing of the mixture is read, so the weights of "
                f"weighting={self.weighting!r} would never be trained; allowed is a list with 'mixture', 'sum' or "
                "'product' in it, or weighting='last', 'mean' or 'random', which have nothing to train."
            )
        if not (is_number(self.hire_dropout) and 0 <= self.hire_dropout < 1):
            raise ValueError(
                f"hire_dropout={self.hire_dropout!r}: allowed is a number from 0 up to, not including, 1."
            )
        if not is_number(self.score_bias_init):
            raise ValueError(f"score_bias_init={self.score_bias_init!r}: allowed is a finite number.")
        if self.num_executed_layers < 2:
            raise ValueError(
                f"encoder_config: {self.num_executed_layers} executed layer(s); HIRE mixes the layers below the last "
                "one, so at least 2 are needed."
            )

    @property
    def layer_indices(self) -> list[int]:
        """Index into `hidden_states` of each column of `layer_weights`. Papers' set I: all but the last layer."""
        last = self.num_executed_layers
        if self.weighting == "last":
            return [last]
        return list(range(0 if self.include_embeddings else 1, last))

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "layer_indices": self.layer_indices}

    @classmethod
    def preset(cls, name: str, encoder_config: PreTrainedConfig, **overrides: Any) -> HireConfig:
        """A named set of fields around an encoder's configuration.

        `"paper"` is the paper's model. `"paper-half"` halves the width of both GRUs. `"fast"` scores a layer by its
        pooled tokens and fuses with one narrow GRU layer: its cost beside the encoder is small.

        Args:
            name (`str`): `"paper"`, `"paper-half"` or `"fast"`.
            encoder_config (`PreTrainedConfig`): the encoder's configuration, copied.
            overrides: fields that differ from the preset.

        Raises:
            ValueError: for an unknown preset or field, or a wrong value.
        """
        check_choice("preset", name, PRESETS)
        check_sizes(encoder_config)
        half = max(1, encoder_config.hidden_size // 2)
        settings: dict[str, Any] = {
            "paper": {},
            "paper-half": {"scorer_hidden_size": half, "fusion_hidden_size": half},
            "fast": {
                "scorer": "pooled",
                "score_activation": "none",
                "fusion_num_layers": 1,
                "fusion_hidden_size": half,
            },
        }[name]
        return cls.from_encoder_config(encoder_config, **(settings | overrides))


class RobertaHireConfig(HireConfig):
    r"""
    Configuration of [`RobertaForHIRE`], the paper's model: [`HireConfig`] around a RoBERTa-like encoder
    (roberta, xlm-roberta, camembert, roberta-prelayernorm, xlm-roberta-xl, data2vec-text).

    Raises:
        ValueError: for an encoder of another type.

    Example:

    ```python
    >>> from transformers import RobertaConfig
    >>> from modeling_hire import RobertaHireConfig

    >>> RobertaHireConfig.preset("paper", RobertaConfig(num_hidden_layers=4)).layer_indices
    [1, 2, 3]
    ```
    """

    model_type = "hire_roberta"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_hire.RobertaHireConfig",
        "AutoModel": "modeling_hire.RobertaHireModel",
        "AutoModelForSequenceClassification": "modeling_hire.RobertaForHIRE",
    }

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_config is None:
            self.encoder_config = {"model_type": "roberta"}
        super().__post_init__(**kwargs)

    def check(self) -> None:
        model_type = self.encoder_config.model_type
        if model_type not in ROBERTA_LIKE:
            raise ValueError(
                f"encoder_config: model type {model_type!r}; RobertaForHIRE takes a RoBERTa-like encoder "
                f"({', '.join(ROBERTA_LIKE)}). HireForSequenceClassification takes any encoder."
            )
        super().check()
