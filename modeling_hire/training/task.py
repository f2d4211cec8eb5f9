"""What differs between kinds of tasks in a run; the rest of `modeling_hire.training` serves them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset
from torch import nn
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.loading import TaskData
from ..data.tasks import TaskSpec
from .arguments import EncoderArguments, RunArguments
from .models import Head, build_model, load_source
from .trainer import LayerwiseTrainer


class TrainingTask(ABC):
    """A kind of task, and the data that a run trains, evaluates and predicts on.

    Made by `prepare`: first the data is read and checked, then, in `encode`, turned into tokens.

    Args:
        data_arguments: the data part of the command line.
        arguments: the run's.
        config: of the checkpoint that the run starts from.

    Attributes:
        data: what was read, by split; `data_arguments` say what.
        spec: title, metrics and origin of the task.
        notes: sentences for the user, who reads them when the run starts.
        train: rows as tokens, or `None` if nothing is trained.
        evaluation, test: for each split, the rows from the longest to the shortest; `test` has no labels, and most
            kinds of tasks have none.

    Raises:
        ValueError: for wrong data, or data that does not fit the checkpoint.
    """

    head: ClassVar[Head]
    trainer_class: ClassVar[type[LayerwiseTrainer]] = LayerwiseTrainer
    # Whether evaluations have a loss, by which the best checkpoint can be chosen.
    reports_loss: ClassVar[bool] = True
    # Column of the results that holds what needs no model.
    baseline_name: ClassVar[str]

    data: TaskData
    spec: TaskSpec
    notes: list[str]
    train: Dataset | None
    evaluation: dict[str, Dataset]
    test: dict[str, Dataset]

    @abstractmethod
    def __init__(self, data_arguments: Any, arguments: RunArguments, config: PreTrainedConfig): ...

    @classmethod
    def start(
        cls, model_arguments: EncoderArguments, data_arguments: Any
    ) -> tuple[str, PreTrainedConfig, PreTrainedTokenizerBase]:
        """The checkpoint to start from, its configuration and tokenizer."""
        return load_source(model_arguments, cls.head)

    @classmethod
    def for_config(cls, config: PreTrainedConfig) -> type[TrainingTask]:
        """The kind of task for what `start` has found, where some encoders need one of their own."""
        return cls

    @property
    @abstractmethod
    def has_evaluation(self) -> bool:
        """Whether there is data to evaluate on; known before `encode`."""

    @property
    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that are reported, in order."""

    @abstractmethod
    def encode(self, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig) -> None:
        """Turn the text into tokens: sets `train`, `evaluation` and `test`, and adds to `notes`."""

    def config_labels(self) -> dict[str, Any]:
        """Fields of a new model's configuration that the data decides."""
        return {}

    # Most kinds of tasks have nothing more to check, and no more to write.
    def write_evaluation(self, folder: Path, split: str, predictions: Any) -> None:  # noqa: B027
        """Write the predictions for an evaluation split, where that is of use."""

    def check_model(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: RunArguments) -> None:  # noqa: B027, E501
        """Raise a `ValueError` if this model cannot be trained or evaluated on the data; nothing is written yet."""

    def build(
        self, model_arguments: EncoderArguments, checkpoint: str, config: PreTrainedConfig, base: str | None
    ) -> tuple[PreTrainedModel, set[str]]:
        """The model to train, and the names of its new parameters; see [`build_model`]."""
        return build_model(model_arguments, checkpoint, config, self.head, self.config_labels(), base)

    def trainer_arguments(self) -> dict[str, Any]:
        """What `trainer_class` takes beside what every trainer does."""
        return {}

    def make_trainer(self, **given: Any) -> LayerwiseTrainer:
        """The trainer of a run, from what every trainer takes."""
        return self.trainer_class(**given, **self.trainer_arguments())

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None) -> Callable[[list], dict]:
        """What joins rows to a batch."""

    def loss(self, model: nn.Module, arguments: RunArguments, is_plain: bool) -> Callable[..., torch.Tensor] | None:
        """The loss from outputs, labels and `num_items_in_batch`; `None` leaves it to the model or the trainer."""
        return None

    @abstractmethod
    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """The metrics of an evaluation split."""

    def baseline(self) -> dict[str, dict[str, float]]:
        """For each evaluation split, the metrics of an answer that needs no model; empty if there is none."""
        return {}

    def decode(self, split: str, predictions: Any) -> Any:
        """What the model's outputs say about the rows of a test split, in the order in which they were read."""
        return predictions

    def write(self, folder: Path, split: str, decoded: Any) -> list[Path]:
        """Write the predictions for a test split; the files written. A task without such splits has none."""
        return []

    def groups(self, split: str, rows: Sequence[int], config: PreTrainedConfig) -> tuple[Any, list[str] | None]:
        """By what the layer picture of a model sorts rows of an evaluation split: labels, and the labels' names."""
        return None, None

    def picture_collator(self, collator: Callable[[list], dict]) -> Callable[[list], dict]:
        """What joins rows of an evaluation split to a batch for the layer picture."""
        return collator

    def finish(  # noqa: B027
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: RunArguments, folder: Path
    ) -> None:
        """Write what belongs beside a trained model in its folder."""

    def usage(self) -> str:
        """Lines for the model card that use the model, after those that load it; empty if there are none."""
        return ""

    def partial_splits(self) -> dict[str, int]:
        """How many rows were evaluated of each split that was not evaluated whole."""
        # A split that has no more rows than the cap is whole.
        cap = self.data_arguments.max_eval_samples
        return {split: len(rows) for split, rows in self.data.evaluation.items() if len(rows) == cap}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the model card says about the data."""


def sort_by_length(dataset: Dataset) -> tuple[Dataset, list[int]]:
    """A tokenised dataset from its longest row to its shortest, so that batches need little padding.

    Returns:
        The sorted dataset, and for each of its rows the row it was before: `restored[order] = predictions`.
    """
    lengths = [len(ids) for ids in dataset["input_ids"]]
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return dataset.select(order), order
