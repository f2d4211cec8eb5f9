"""Runs over texts and pairs of texts with a class or a score: `run_glue.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.arguments import DataArguments
from ..data.labels import align_labels, to_dataset_ids
from ..data.loading import TaskData, load_task_data
from ..data.preprocessing import tokenize_dataset, truncation_note, usable_max_length
from ..data.tasks import COMBINED_SCORE
from ..evaluation.glue import build_compute_metrics, predicted_values
from ..evaluation.submission import write_submission
from ..modeling_losses import sequence_loss
from .arguments import ModelArguments, RunArguments
from .models import SEQUENCE_CLASSIFICATION, is_own
from .preparation import prepare
from .running import train
from .task import TrainingTask, sort_by_length


def run(model_arguments: ModelArguments, data_arguments: DataArguments, arguments: RunArguments) -> dict[str, Any]:
    """Check and prepare everything, then train: see [`prepare`] and [`train`]."""
    return train(prepare(Classification, model_arguments, data_arguments, arguments))


class Classification(TrainingTask):
    """A class or a score for a text or a pair of texts."""

    head = SEQUENCE_CLASSIFICATION
    baseline_name = "majority"

    def __init__(self, data_arguments: DataArguments, arguments: RunArguments, config: PreTrainedConfig):
        self.data_arguments = data_arguments
        self.data = read_data(data_arguments, arguments, config)
        self.spec, self.notes = self.data.spec, list(self.data.notes)
        # The model's class ids by the data's, where a saved model has its own.
        self.alignment: list[int] | None = None
        if is_own(config):
            check_labels(config, self.spec.is_regression)
            if not self.spec.is_regression:
                self.alignment = align_labels(self.spec.label_names, config.label2id)
        self.scores = build_compute_metrics(self.spec, self.alignment)

    @property
    def has_evaluation(self) -> bool:
        return bool(self.data.evaluation)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*self.spec.metrics, *([COMBINED_SCORE] if self.spec.main_metric == COMBINED_SCORE else []))

    def encode(self, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig) -> None:
        max_length, note = usable_max_length(self.data_arguments.max_length, tokenizer, encoder_config)
        self.notes.extend([note] if note else [])

        def tokenize(split: str, dataset: Dataset) -> Dataset:
            workers = self.data_arguments.preprocessing_num_workers
            tokens, cut = tokenize_dataset(dataset, tokenizer, max_length, workers)
            message = truncation_note(split, cut, len(dataset), max_length)
            self.notes.extend([message] if message else [])
            if self.alignment is not None and "label" in tokens.column_names:
                aligned = [self.alignment[label] for label in tokens["label"]]
                tokens = tokens.remove_columns("label").add_column("label", aligned)
            return tokens

        self.train = None if self.data.train is None else tokenize("train", self.data.train)
        self.evaluation = {s: sort_by_length(tokenize(s, rows))[0] for s, rows in self.data.evaluation.items()}
        sorted_test = {s: sort_by_length(tokenize(s, rows)) for s, rows in self.data.test.items()}
        self.test = {split: rows for split, (rows, _) in sorted_test.items()}
        self.test_order = {split: order for split, (_, order) in sorted_test.items()}

    def config_labels(self) -> dict[str, Any]:
        if self.spec.is_regression:
            return {"num_labels": 1, "problem_type": "regression"}
        return {
            "id2label": dict(enumerate(self.spec.label_names)),
            "label2id": {name: index for index, name in enumerate(self.spec.label_names)},
            "problem_type": "single_label_classification",
        }

    def collator(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None) -> Callable[[list], dict]:
        return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=pad_to_multiple_of)

    def loss(self, model: nn.Module, arguments: RunArguments, is_plain: bool) -> Callable[..., torch.Tensor] | None:
        if not is_plain or arguments.label_smoothing_factor != 0:
            return None

        # The plain head's own loss ignores how many rows an accumulated batch has; this one is as HIRE's.
        def compute_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
            return sequence_loss(outputs["logits"], labels, model.config, num_items_in_batch)

        return compute_loss

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        return self.scores(prediction)

    def baseline(self) -> dict[str, dict[str, float]]:
        """Metrics of always answering with the most frequent training label (or the mean training score)."""
        if self.data.train is None:
            return {}
        answers = np.asarray(self.data.train["label"])
        scores: dict[str, dict[str, float]] = {}
        for split, dataset in self.data.evaluation.items():
            labels = np.asarray(dataset["label"])
            if self.spec.is_regression:
                predictions = np.full((len(labels), 1), answers.mean())
            else:
                answer = int(np.bincount(answers).argmax())
                ids = range(self.spec.num_labels) if self.alignment is None else self.alignment
                predictions = np.zeros((len(labels), max(ids) + 1))
                predictions[:, ids[answer]] = 1.0
                labels = np.asarray(ids)[labels]
            scores[split] = self.scores(EvalPrediction(predictions=predictions, label_ids=labels))
        return scores

    def decode(self, split: str, predictions: Any) -> np.ndarray:
        values = predicted_values(predictions, self.spec)
        if self.alignment is not None:
            values = np.asarray(to_dataset_ids(values, self.alignment))
        restored = np.empty_like(values)
        restored[self.test_order[split]] = values
        return restored

    def write(self, folder: Path, split: str, decoded: np.ndarray) -> list[Path]:
        return [write_submission(folder, self.spec, split, self.data.test[split]["idx"], decoded)]

    def groups(self, split: str, rows: Sequence[int], config: PreTrainedConfig) -> tuple[Any, list[str] | None]:
        labels = np.asarray(self.evaluation[split].select(rows)["label"])
        return labels, None if self.spec.is_regression else list(config.id2label.values())

    def settings(self) -> dict[str, Any]:
        return {
            "training rows": 0 if self.train is None else len(self.train),
            "longest input": self.data_arguments.max_length,
            **{f"evaluated rows ({split})": len(rows) for split, rows in self.evaluation.items()},
        }


def read_data(data_arguments: DataArguments, arguments: RunArguments, config: PreTrainedConfig) -> TaskData:
    """The data, with what the run needs of it there."""
    trains = arguments.num_train_epochs > 0
    if trains and data_arguments.task is None and data_arguments.train_file is None:
        raise ValueError(
            "train_file=None: there is nothing to train on; to evaluate or predict only, set num_train_epochs=0."
        )
    names = None
    if is_own(config) and data_arguments.task is None:
        names = () if is_regressor(config) else tuple(config.id2label[index] for index in range(config.num_labels))
    return load_task_data(data_arguments, evaluation_only=not trains, label_names=names)


def is_regressor(config: PreTrainedConfig) -> bool:
    """Whether a saved checkpoint predicts a score."""
    return config.problem_type == "regression" or config.num_labels == 1


def check_labels(config: PreTrainedConfig, is_regression: bool) -> None:
    """Raise a `ValueError` if a saved checkpoint predicts classes and the data has scores, or the other way round."""
    if is_regressor(config) != is_regression:
        kinds = {True: "scores", False: "classes"}
        raise ValueError(
            f"model: the checkpoint predicts {kinds[is_regressor(config)]}, and the data has {kinds[is_regression]}."
        )
