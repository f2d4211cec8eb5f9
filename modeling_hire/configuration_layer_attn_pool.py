"""Configuration of sentence encoders that attend over all hidden layers of an encoder."""

from __future__ import annotations

from typing import Any, ClassVar

from .configuration_layerwise import LayerwiseConfig, check_choice, is_integer


# What each pooler reads: hidden states by position in the list of all (0 the embeddings), `None` for every one.
POOLER_LAYERS: dict[str, tuple[int, ...] | None] = {
    "layer_attn": None,
    "static_mix": None,
    "cls": (-1,),
    "cls_before_pooler": (-1,),
    "mean": (-1,),
    "cls_and_mean": (-1,),
    "mean_first_last": (1, -1),
    "mean_top2": (-2, -1),
}
POOLERS = tuple(POOLER_LAYERS)
TRAINED_POOLERS = ("layer_attn", "static_mix", "cls", "cls_and_mean")
QUERIES = ("cls_all", "cls_last", "mean_all")
KEY_VALUES = ("mean_all", "cls_all")
SCORE_SCALES = ("n_layers", "sqrt_d", "none")
ACTIVATIONS = ("rrelu", "leaky", "relu", "none")
DETACHED = ("cls", "mean")
# Fields that only layer attention reads.
ATTENTION_FIELDS = ("query", "key_value", "concat_last_cls", "score_scale", "activation", "rrelu_resample")


class LayerAttnPoolConfig(LayerwiseConfig):
    r"""
    Configuration of [`LayerAttnPoolEncoder`]. The defaults are those of the authors' code for layer-wise attention
    pooling.

    Column `i` of `output.layer_weights` is the weight of `hidden_states[config.layer_indices[i]]`; hidden state 0 is
    the embedding output. `layer_indices` is written into `config.json` for the reader.

    Args:
        encoder_config, layer_plan: see [`LayerwiseConfig`].
        pooler (`str`, *optional*, defaults to `"layer_attn"`):
            How hidden states become one embedding, with "first token" short for the one at `cls_position` and "mean"
            for the mean of all real tokens:

            - `"layer_attn"`: attention over the layers, joined with the last first token, through a dense layer and
              tanh.
            - `"cls"`: the last first token through a dense layer and tanh; `"cls_before_pooler"`: without them.
            - `"mean"`: the mean of the last layer; `"mean_top2"`: of the last two; `"mean_first_last"`: of the first
              layer (not the embeddings) and the last.
            - `"cls_and_mean"`: the last first token joined with the last mean, through a dense layer and tanh.
            - `"static_mix"`: the means of all layers, weighted by the softmax of free scalars.
        query (`str`, *optional*, defaults to `"cls_all"`):
            What asks in layer attention: the first token of every layer, of the last one (`"cls_last"`), or the mean
            of every layer (`"mean_all"`).
        key_value (`str`, *optional*, defaults to `"mean_all"`): what answers: every layer's mean or first token
            (`"cls_all"`).
        concat_last_cls (`bool`, *optional*, defaults to `True`): whether the last first token is joined to the result.
        include_embeddings (`bool`, *optional*, defaults to `True`):
            Whether hidden state 0 is a layer, for `"layer_attn"` and `"static_mix"`.
        score_scale (`str`, *optional*, defaults to `"n_layers"`):
            What attention scores are divided by: the number of layers, the square root of the width (`"sqrt_d"`), or
            nothing (`"none"`).
        activation (`str`, *optional*, defaults to `"rrelu"`):
            After the projections to queries, keys and values: `"rrelu"` (a leaky ReLU whose slope is drawn between 1/8
            and 1/3 in training, and is their mean otherwise), `"leaky"` (that mean always), `"relu"` or `"none"`.
        rrelu_resample (`bool`, *optional*, defaults to `False`):
            Whether the slopes of keys and values are drawn anew for every query, as in the authors' loop. The
            expectation is the same, and it costs as many times more as there are layers.
        detach_at_inference (`str`, *optional*):
            `"cls"` or `"mean"`: in evaluation mode the embedding is the last first token, or the last mean, and the
            pooler serves training alone. `None`: the pooler is used always.
        cls_position (`str`, *optional*, defaults to `"first"`):
            Which token stands for the text: `"first"` or `"last"` (XLNet's, say), padding not counted.
        max_seq_length (`int`, *optional*):
            Tokens that `encode` reads of a text. `None`: as many as the encoder has positions for and the tokenizer
            allows; where neither sets a limit, 512. A larger number than that is for encoders without one.
        prompts (`dict[str, str]`, *optional*): by name, what `encode` can put in front of each text.
        default_prompt_name (`str`, *optional*): the one it does put there when none is asked for.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:

    ```python
    >>> from transformers import BertConfig
    >>> from modeling_hire import LayerAttnPoolConfig

    >>> LayerAttnPoolConfig(encoder_config=BertConfig(num_hidden_layers=3)).layer_indices
    [0, 1, 2, 3]
    >>> LayerAttnPoolConfig(encoder_config=BertConfig(num_hidden_layers=3), pooler="mean_first_last").layer_indices
    [1, 3]
    ```
    """

    model_type = "layer_attn_pool"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_layer_attn_pool.LayerAttnPoolConfig",
        "AutoModel": "modeling_layer_attn_pool.LayerAttnPoolEncoder",
    }

    pooler: str = "layer_attn"
    query: str = "cls_all"
    key_value: str = "mean_all"
    concat_last_cls: bool = True
    include_embeddings: bool = True
    score_scale: str = "n_layers"
    activation: str = "rrelu"
    rrelu_resample: bool = False
    detach_at_inference: str | None = None
    cls_position: str = "first"
    max_seq_length: int | None = None
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop("layer_indices", None)  # derived, and only written for the reader
        super().__post_init__(**kwargs)

    def check(self) -> None:
        super().check()
        check_choice("pooler", self.pooler, POOLERS)
        check_choice("query", self.query, QUERIES)
        check_choice("key_value", self.key_value, KEY_VALUES)
        check_choice("score_scale", self.score_scale, SCORE_SCALES)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("cls_position", self.cls_position, ("first", "last"))
        check_choice("detach_at_inference", self.detach_at_inference, (None, *DETACHED))
        for field in ("concat_last_cls", "include_embeddings", "rrelu_resample"):
            check_choice(field, getattr(self, field), (True, False))
        if self.pooler != "layer_attn":
            for field in ATTENTION_FIELDS:
                value, default = getattr(self, field), type(self).__dataclass_fields__[field].default
                if value != default:
                    raise ValueError(
                        f"{field}={value!r}: pooler={self.pooler!r} has no layer attention; allowed is "
                        f"{default!r}, the default, or pooler='layer_attn'."
                    )
        if self.rrelu_resample and self.activation != "rrelu":
            raise ValueError(f"rrelu_resample=True: allowed with activation='rrelu', not {self.activation!r}.")
        if self.max_seq_length is not None and not is_integer(self.max_seq_length, 1):
            raise ValueError(f"max_seq_length={self.max_seq_length!r}: allowed is a positive whole number, or None.")
        prompts = {} if self.prompts is None else self.prompts
        if not isinstance(prompts, dict) or not all(isinstance(s, str) for pair in prompts.items() for s in pair):
            raise ValueError(f"prompts={prompts!r}: allowed is a mapping of names to texts.")
        if self.default_prompt_name is not None and self.default_prompt_name not in prompts:
            raise ValueError(
                f"default_prompt_name={self.default_prompt_name!r}: allowed is one of prompts, here {sorted(prompts)}."
            )
        if self.pooler == "mean_top2" and self.num_executed_layers < 2:
            raise ValueError("pooler='mean_top2': the encoder runs one layer, so there are no two last ones.")

    @property
    def layer_indices(self) -> list[int]:
        """Index into `hidden_states` of each layer that the pooler reads."""
        chosen, count = POOLER_LAYERS[self.pooler], self.num_executed_layers + 1
        if chosen is None:
            return list(range(0 if self.include_embeddings else 1, count))
        return sorted({index % count for index in chosen})

    @property
    def reads_first_token(self) -> bool:
        """Whether any part of the pooler reads the token that stands for the text."""
        if "cls" in (self.pooler, self.detach_at_inference) or self.pooler in ("cls_before_pooler", "cls_and_mean"):
            return True
        reads = self.concat_last_cls or self.query != "mean_all" or self.key_value == "cls_all"
        return self.pooler == "layer_attn" and reads

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "layer_indices": self.layer_indices}
