"""Runs over cloze tests: `run_cloze.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.cloze import CHOICES, LEVELS, ClozeArguments, ClozeCollator, encode_passages, load_cloze, split_labels
from ..data.preprocessing import usable_max_length
from ..data.tasks import TaskSpec
from .arguments import EncoderArguments, RunArguments
from .models import MASKED_LM
from .task import TrainingTask, sort_by_length
from .trainer import LayerwiseTrainer


@dataclass
class MaskedLMArguments(EncoderArguments):
    """A masked language model, with the head that it was pre-trained with."""

    NEW: ClassVar[tuple[str, ...]] = ("last",)

    encoder: str | None = field(
        default=None, metadata={"help": "Masked language model: a Hub repository or a folder."}
    )
    model: str = field(
        default="last", metadata={"help": "'last' (the encoder's own head), or a saved checkpoint to go on from."}
    )


@dataclass
class ClozeRunArguments(RunArguments):
    """[`RunArguments`] for cloze tests."""

    per_device_train_batch_size: int = field(default=4, metadata={"help": "Passages of a batch of one device."})
    per_device_eval_batch_size: int = field(default=4, metadata={"help": "Passages of a batch of one device."})
    learning_rate: float = field(default=1e-5, metadata={"help": "Peak learning rate of AdamW."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training data."})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "Must stay False here."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_smoothing_factor != 0:
            raise ValueError(f"label_smoothing_factor={self.label_smoothing_factor!r}: allowed is 0 for cloze tests.")


class ClozeTrainer(LayerwiseTrainer):
    """Scores the options of each blank by the probability that the model gives them at its mask."""

    # The loss is a mean over the blanks of a batch; the trainer divides by the accumulation steps.
    loss_is_scaled_for_ga = False

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The cross-entropy of the right option."""
        return cloze_loss(option_scores(model, inputs), inputs["labels"])

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, scores `(batch, blanks, 4)` and labels."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            scores = option_scores(model, inputs)
        return cloze_loss(scores, inputs["labels"]).detach(), scores, inputs["labels"]


def option_scores(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """For each blank the mean log probability of each option's tokens at the blank's mask, `(batch, blanks, 4)`."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    known = {name: value for name, value in inputs.items() if name in names}
    logits = model(**known)["logits"]
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    words = logits[rows, inputs["blanks"]].float().log_softmax(dim=-1)
    options = inputs["options"]
    there = options >= 0
    found = words[:, :, None].expand(-1, -1, CHOICES, -1).gather(-1, options.clamp(min=0))
    return found.masked_fill(~there, 0).sum(-1) / there.sum(-1).clamp(min=1)


def cloze_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over blanks of scores `(batch, blanks, 4)`."""
    there = labels != -100
    return functional.cross_entropy(scores[there], split_labels(labels[there])[0])


class Cloze(TrainingTask):
    """The right word of four for each blank of a passage."""

    head = MASKED_LM
    trainer_class = ClozeTrainer
    baseline_name = "chance"

    def __init__(self, data_arguments: ClozeArguments, arguments: RunArguments, config: PreTrainedConfig):
        if not any(name.endswith(("ForMaskedLM", "ForPreTraining")) for name in config.architectures or ()):
            raise ValueError(
                f"encoder: a checkpoint of {' and '.join(config.architectures or ['no class'])}, which has no head "
                "for words; allowed is one of ...ForMaskedLM."
            )
        self.data_arguments = data_arguments
        self.passages, self.notes = load_cloze(data_arguments, evaluation_only=arguments.num_train_epochs == 0)
        self.levels = [
            level for level in LEVELS if any(p.level == level for part in self.passages.values() for p in part)
        ]
        self.spec = TaskSpec(
            name="cloth",
            title="Cloze",
            text_columns=("article",),
            label_names=None,
            metrics=("accuracy", *(f"accuracy_{level}" for level in self.levels)),
            main_metric="accuracy",
        )
        self.test = {}

    @property
    def has_evaluation(self) -> bool:
        return "validation" in self.passages

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.spec.metrics

    def encode(self, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig) -> None:
        if tokenizer.mask_token is None:
            raise ValueError("encoder: its tokenizer has no mask token to put into blanks.")
        max_length, note = usable_max_length(self.data_arguments.max_length, tokenizer, encoder_config)
        self.notes.extend([note] if note else [])
        encoded = {split: encode_passages(part, tokenizer, max_length) for split, part in self.passages.items()}
        self.train = encoded.pop("train", None)
        self.evaluation = {split: sort_by_length(rows)[0] for split, rows in encoded.items()}

    def collator(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None) -> Callable[[list], dict]:
        return ClozeCollator(tokenizer, pad_to_multiple_of)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        labels = np.asarray(prediction.label_ids)
        there = labels != -100
        answers, levels = split_labels(labels[there])
        right = np.asarray(prediction.predictions)[there].argmax(-1) == answers
        by_level = {f"accuracy_{level}": right[levels == LEVELS.index(level)] for level in self.levels}
        return {"accuracy": float(right.mean())} | {
            name: float(values.mean()) for name, values in by_level.items() if len(values)
        }

    def baseline(self) -> dict[str, dict[str, float]]:
        """What guessing gives."""
        return {split: dict.fromkeys(self.metric_names, 1 / CHOICES) for split in self.evaluation}

    def partial_splits(self) -> dict[str, int]:
        cap = self.data_arguments.max_eval_samples
        return {split: len(part) for split, part in self.passages.items() if split != "train" and len(part) == cap}

    def settings(self) -> dict[str, Any]:
        return {
            **{f"passages ({split})": len(part) for split, part in self.passages.items()},
            "longest window": self.data_arguments.max_length,
        }
