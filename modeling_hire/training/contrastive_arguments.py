"""The model and run parts of the command line of `run_contrastive.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..configuration_layer_attn_pool import (
    ACTIVATIONS,
    DETACHED,
    KEY_VALUES,
    POOLERS,
    QUERIES,
    SCORE_SCALES,
    TRAINED_POOLERS,
)
from ..configuration_layerwise import check_choice, is_integer, is_number
from .arguments import EncoderArguments, RunArguments


# Fields of PoolingArguments that are fields of LayerAttnPoolConfig too; unset ones keep its defaults.
POOLING_FIELDS = (
    "pooler",
    "query",
    "key_value",
    "concat_last_cls",
    "include_embeddings",
    "score_scale",
    "activation",
    "rrelu_resample",
    "detach_at_inference",
    "cls_position",
    "layer_plan",
)


@dataclass
class PoolingArguments(EncoderArguments):
    """The encoder, and how its layers become one embedding. Unset fields keep the configuration's defaults."""

    NEW: ClassVar[tuple[str, ...]] = ("layer_attn_pool",)

    model: str = field(
        default="layer_attn_pool",
        metadata={
            "help": "'layer_attn_pool' (a new sentence encoder around the encoder), or the folder or repository of a "
            "saved one to go on from."
        },
    )
    pooler: str | None = field(default=None, metadata={"help": f"Pooler: {', '.join(POOLERS)}."})
    query: str | None = field(default=None, metadata={"help": f"What asks in layer attention: {', '.join(QUERIES)}."})
    key_value: str | None = field(default=None, metadata={"help": f"What answers: {', '.join(KEY_VALUES)}."})
    concat_last_cls: bool | None = field(
        default=None, metadata={"help": "Whether the last first token is joined to the result of layer attention."}
    )
    include_embeddings: bool | None = field(
        default=None, metadata={"help": "Whether the embedding output is a layer of layer attention."}
    )
    score_scale: str | None = field(
        default=None, metadata={"help": f"What attention scores are divided by: {', '.join(SCORE_SCALES)}."}
    )
    activation: str | None = field(
        default=None, metadata={"help": f"After the projections: {', '.join(ACTIVATIONS)}."}
    )
    rrelu_resample: bool | None = field(
        default=None, metadata={"help": "Draw the slopes of keys and values anew for every query, as the authors do."}
    )
    detach_at_inference: str | None = field(
        default=None, metadata={"help": "Use the pooler in training only, and then 'cls' or 'mean' of the last layer."}
    )
    cls_position: str | None = field(
        default=None, metadata={"help": "Which token stands for the text: first, or last (XLNet)."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_new and self.config_overrides():
            raise ValueError(
                f"{next(iter(self.config_overrides()))}: model={self.model!r} is a saved checkpoint with settings of "
                f"its own; allowed with model={self.NEW[0]!r}."
            )

    @property
    def needs_training(self) -> bool:
        return self.is_new and (self.pooler is None or self.pooler in TRAINED_POOLERS)

    def config_overrides(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in POOLING_FIELDS if getattr(self, name) is not None}


@dataclass
class ContrastiveTrainingArguments(RunArguments):
    """[`RunArguments`] with the recipe of the layer-wise attention paper's authors and the loss's settings.

    Gradient accumulation is a mean over batches: it adds no negatives. `cache_chunk` makes real batches of any size.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:

    ```python
    >>> from modeling_hire.training.contrastive_arguments import ContrastiveTrainingArguments

    >>> arguments = ContrastiveTrainingArguments(output_dir="out", use_cpu=True, cache_chunk=16)
    >>> arguments.temperature, arguments.hard_negative_weight, arguments.per_device_train_batch_size
    (0.05, 1.0, 64)
    >>> ContrastiveTrainingArguments(output_dir="out", use_cpu=True, temperature=0)
    Traceback (most recent call last):
        ...
    ValueError: temperature=0: allowed is a number above 0; similarities are divided by it.
    ```
    """

    temperature: float = field(default=0.05, metadata={"help": "Cosine similarities are divided by it."})
    hard_negative_weight: float = field(
        default=1.0, metadata={"help": "Added to the logit of an anchor's own hard negatives; SimCSE has 0."}
    )
    self_supervised_weight: float = field(
        default=1.0, metadata={"help": "Weight of the self-supervised loss beside the supervised one, in 'hybrid'."}
    )
    two_way: bool = field(
        default=False, metadata={"help": "Positives look for their anchors too; the loss is the mean of both ways."}
    )
    matryoshka_dims: list[int] | None = field(
        default=None, metadata={"help": "Mean of the losses over embeddings cut to each of these lengths."}
    )
    mlm_weight: float = field(
        default=0.0, metadata={"help": "Weight of masked language modelling beside the contrastive loss; 0: none."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens that are masked for it."})
    export_detached: str | None = field(
        default=None,
        metadata={
            "help": "Also write the plain encoder, to be pooled by 'cls' or 'mean', into the folder 'detached'."
        },
    )
    cache_chunk: int | None = field(
        default=None,
        metadata={
            "help": "Run the encoder on so many texts at a time, twice, so that memory does not grow with the batch "
            "(gradient caching)."
        },
    )

    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate of AdamW."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Training batch of one device."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Evaluation batch of one device."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training data."})
    warmup_steps: float = field(default=0.0, metadata={"help": "Warm-up: steps, or a share of them below 1."})
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW's weight decay."})
    adam_beta2: float = field(default=0.999, metadata={"help": "AdamW's second beta."})
    adam_epsilon: float = field(default=1e-8, metadata={"help": "AdamW's epsilon."})
    # Texts of like length would be no fair sample of negatives.
    train_sampling_strategy: str = field(default="random", metadata={"help": "random; or group_by_length."})
    # A last batch of another size would have other negatives than the rest.
    dataloader_drop_last: bool = field(default=True, metadata={"help": "Leave out an incomplete last batch."})
    # The texts' numbers are no argument of the model's.
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "Must stay False here."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load_best_model_at_end and self.best_metric is None:
            # Evaluations have no loss, which would be the default.
            self.metric_for_best_model, self.greater_is_better = "spearman", True
        if not (is_number(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"temperature={self.temperature!r}: allowed is a number above 0; similarities are divided by it."
            )
        for name in ("self_supervised_weight", "mlm_weight"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0):
                raise ValueError(f"{name}={value!r}: allowed is a number from 0 on.")
        if not is_number(self.hard_negative_weight):
            raise ValueError(f"hard_negative_weight={self.hard_negative_weight!r}: allowed is a finite number.")
        if not (is_number(self.mlm_probability) and 0 < self.mlm_probability < 1):
            raise ValueError(f"mlm_probability={self.mlm_probability!r}: allowed is a number between 0 and 1.")
        dims = self.matryoshka_dims
        if dims is not None and not (dims and all(is_integer(d, 1) for d in dims) and len(set(dims)) == len(dims)):
            raise ValueError(f"matryoshka_dims={dims!r}: allowed is different positive whole numbers.")
        check_choice("export_detached", self.export_detached, (None, *DETACHED))
        if self.cache_chunk is not None and not is_integer(self.cache_chunk, 1):
            raise ValueError(f"cache_chunk={self.cache_chunk!r}: allowed is a positive whole number.")
        if self.cache_chunk is not None and self.mlm_weight:
            raise ValueError(
                f"cache_chunk={self.cache_chunk} and mlm_weight={self.mlm_weight}: masked language modelling needs "
                "the activations that caching gives up; give one of the two."
            )
        if self.remove_unused_columns:
            raise ValueError("remove_unused_columns=True: it would drop the texts' numbers; allowed is False.")
        if self.label_smoothing_factor != 0:
            raise ValueError(f"label_smoothing_factor={self.label_smoothing_factor!r}: allowed is 0 for this loss.")
