"""How to meta-train: the run part of the command line of `run_meta_pretrain.py`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..configuration_layerwise import check_choice, is_integer, is_number
from .arguments import EncoderArguments, RunArguments


ALGORITHMS = ("maml", "reptile")
INNER_OPTIMIZERS = ("sgd", "sgd_momentum")
LOSSES = ("joint", "sampled")
TASK_SAMPLING = ("proportional", "sqrt", "uniform")
OUTER_BATCHES = ("fresh", "same")
MATCHES = ("updates", "grad_evals")


def read_mapping(name: str, value: dict | str | None) -> dict[str, Any] | None:
    """A mapping that a command line gives as JSON.

    Raises:
        ValueError: if it is none.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{name}={value!r}: not valid JSON ({error}).") from error
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name}={value!r}: allowed is a mapping of names to values.")
    return value


@dataclass
class MultiTaskArguments(EncoderArguments):
    """The encoder to pre-train: a checkpoint's, or a new one with a tokenizer of its own."""

    NEW: ClassVar[tuple[str, ...]] = ("multi_task",)

    model: str = field(
        default="multi_task",
        metadata={
            "help": "'multi_task' (an encoder with a new head a task), or the folder or repository of a saved one to "
            "go on from."
        },
    )
    new_encoder: str | None = field(
        default=None,
        metadata={
            "help": "Model type (bert, roberta, ...) of an encoder from random initialisation, with a tokenizer "
            "trained on the corpus."
        },
    )
    encoder_fields: dict | str | None = field(
        default=None, metadata={"help": 'Fields of its configuration, as {"num_hidden_layers": 4, ...}.'}
    )
    vocab_size: int = field(default=8192, metadata={"help": "Vocabulary of its tokenizer, at most."})

    def __post_init__(self) -> None:
        self.encoder_fields = read_mapping("encoder_fields", self.encoder_fields)
        if self.new_encoder is not None and self.encoder is not None:
            raise ValueError(f"new_encoder={self.new_encoder!r} and encoder={self.encoder!r}: give one of the two.")
        super().__post_init__()
        if self.new_encoder is not None and not self.is_new:
            raise ValueError(
                f"new_encoder={self.new_encoder!r}: model={self.model!r} is a saved checkpoint; give one."
            )
        if self.encoder_fields is not None and self.new_encoder is None:
            raise ValueError(f"encoder_fields={self.encoder_fields!r} needs new_encoder, an encoder to build.")
        if not is_integer(self.vocab_size, 100):
            raise ValueError(f"vocab_size={self.vocab_size!r}: allowed is a whole number from 100 on.")

    @property
    def needs_encoder(self) -> bool:
        return super().needs_encoder and self.new_encoder is None

    def config_overrides(self) -> dict[str, Any]:
        return {} if self.layer_plan is None else {"layer_plan": self.layer_plan}


@dataclass
class MetaTrainingArguments(RunArguments):
    """[`RunArguments`] for pre-training as meta-learning (Lv et al., arXiv 2004.05568).

    An episode is `inner_steps` steps of gradient descent on training batches and one gradient, at the point they lead
    to, on other batches: the gradient of the parameters' ability to learn. An update is made of
    `gradient_accumulation_steps` episodes on every device, and `per_device_train_batch_size` is the batch of one inner
    step. `inner_steps=0` is ordinary multi-task pre-training.

    Example:

    ```python
    >>> from modeling_hire import MetaTrainingArguments

    >>> args = MetaTrainingArguments("out", inner_steps=5, inner_optimizer="sgd_momentum", use_cpu=True)
    >>> args.inner_steps, args.momentum
    (5, 0.9)
    ```
    """

    inner_steps: int = field(default=5, metadata={"help": "Inner steps of an episode (k); 0 is plain pre-training."})
    inner_learning_rate: float = field(
        default=1e-3, metadata={"help": "Step size of the inner steps; 5e-5 to go on from a released checkpoint."}
    )
    inner_optimizer: str = field(default="sgd", metadata={"help": f"One of {', '.join(INNER_OPTIMIZERS)}."})
    inner_momentum: float = field(
        default=0.9, metadata={"help": "Momentum of sgd_momentum; each episode starts anew."}
    )
    order: int = field(
        default=1, metadata={"help": "2: the exact gradient through the inner steps; 1: without second derivatives."}
    )
    algorithm: str = field(
        default="maml", metadata={"help": "maml, or as a baseline reptile: the mean of the inner gradients."}
    )
    inner_loss: str = field(
        default="joint", metadata={"help": "joint: the sum of all tasks' losses; sampled: of one task, drawn."}
    )
    outer_loss: str = field(default="joint", metadata={"help": "As inner_loss, of an episode's last batch."})
    task_sampling: str = field(
        default="sqrt", metadata={"help": f"How sampled tasks are drawn, by their size: {', '.join(TASK_SAMPLING)}."}
    )
    task_weights: dict | str | None = field(
        default=None, metadata={"help": 'Shares by task instead of task_sampling, as {"mnli": 2, "rte": 1}.'}
    )
    outer_batch: str = field(
        default="fresh",
        metadata={"help": "fresh batches for the outer gradient, or the same as the last inner step."},
    )
    adapt: str | None = field(
        default=None,
        metadata={"help": "Regular expression: the inner steps move the parameters whose names it is found in."},
    )
    match: str = field(
        default="updates",
        metadata={
            "help": "What num_train_epochs or max_steps count, so that different k compare: updates, or grad_evals "
            "(k + 1 of them an update, so that there are so many fewer updates)."
        },
    )

    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate of AdamW, the outer optimiser."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Batch of one inner step on one device."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the data at one batch an update."})
    weight_decay: float = field(default=0.01, metadata={"help": "AdamW's weight decay."})
    adam_beta2: float = field(default=0.999, metadata={"help": "AdamW's second beta."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "AdamW's epsilon."})
    eval_strategy: str = field(default="no", metadata={"help": "When to evaluate: no, steps or epoch."})
    save_strategy: str = field(default="no", metadata={"help": "When to save: no, steps or epoch."})
    load_best_model_at_end: bool = field(default=False, metadata={"help": "End with the best checkpoint."})
    train_sampling_strategy: str = field(default="random", metadata={"help": "Must stay random here."})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "Must stay False here."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.task_weights = read_mapping("task_weights", self.task_weights)
        if not is_integer(self.inner_steps, 0):
            raise ValueError(f"inner_steps={self.inner_steps!r}: allowed is a whole number from 0 on.")
        if not (is_number(self.inner_learning_rate) and self.inner_learning_rate > 0):
            raise ValueError(
                f"inner_learning_rate={self.inner_learning_rate!r}: allowed is a number above 0; without inner steps, "
                "set inner_steps=0."
            )
        check_choice("order", self.order, (1, 2))
        check_choice("algorithm", self.algorithm, ALGORITHMS)
        check_choice("inner_optimizer", self.inner_optimizer, INNER_OPTIMIZERS)
        check_choice("inner_loss", self.inner_loss, LOSSES)
        check_choice("outer_loss", self.outer_loss, LOSSES)
        check_choice("task_sampling", self.task_sampling, TASK_SAMPLING)
        check_choice("outer_batch", self.outer_batch, OUTER_BATCHES)
        check_choice("match", self.match, MATCHES)
        if not (is_number(self.inner_momentum) and 0 <= self.inner_momentum < 1):
            raise ValueError(f"inner_momentum={self.inner_momentum!r}: allowed is a number from 0 to below 1.")
        for task, weight in (self.task_weights or {}).items():
            if not (is_number(weight) and weight >= 0):
                raise ValueError(f"task_weights[{task!r}]={weight!r}: allowed is a number from 0 on.")
        if self.task_weights is not None and not any(self.task_weights.values()):
            raise ValueError(f"task_weights={self.task_weights!r}: allowed is at least one number above 0.")
        if self.adapt is not None:
            try:
                re.compile(self.adapt)
            except re.error as error:
                raise ValueError(f"adapt={self.adapt!r}: not a regular expression ({error}).") from error
        if self.algorithm == "reptile" and self.order == 2:
            raise ValueError("algorithm='reptile' and order=2: Reptile takes no derivative of the inner steps.")
        if self.algorithm == "reptile" and self.inner_steps == 0:
            raise ValueError("algorithm='reptile' and inner_steps=0: Reptile is made of inner steps; allowed is 1 on.")
        if self.outer_batch == "same" and self.inner_steps == 0:
            raise ValueError("outer_batch='same' and inner_steps=0: there is no inner step whose batch it could be.")
        if self.outer_batch == "same" and self.inner_loss != self.outer_loss:
            raise ValueError(
                f"outer_batch='same', inner_loss={self.inner_loss!r} and outer_loss={self.outer_loss!r}: the same "
                "batch holds the same tasks; allowed is equal losses."
            )
        if self.fp16 and self.inner_steps > 0:
            raise ValueError(
                f"fp16=True and inner_steps={self.inner_steps}: the inner gradients are not scaled, and small ones "
                "would vanish in half precision; allowed is bf16=True."
            )
        if self.train_sampling_strategy != "random" or self.remove_unused_columns:
            raise ValueError(
                f"train_sampling_strategy={self.train_sampling_strategy!r} and remove_unused_columns="
                f"{self.remove_unused_columns!r}: episodes have an order and columns of their own; allowed are "
                "'random' and False."
            )
        if self.outer_loss == "sampled":
            # Heads of the tasks that were not drawn get no gradient.
            self.ddp_find_unused_parameters = True

    @property
    def momentum(self) -> float:
        """Of the inner steps."""
        return self.inner_momentum if self.inner_optimizer == "sgd_momentum" else 0.0
