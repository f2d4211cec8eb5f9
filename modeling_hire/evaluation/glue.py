"""GLUE's metrics, computed by scikit-learn and SciPy without any download.

`evaluate.load("accuracy")` fetches a script from the Hub. The classes here are `evaluate.Metric`s all the same, so
that they compose with that library (`evaluate.combine`, `add_batch`, ...), but they are part of the package and keep
what they are given in memory: no cache folder, no lock file, and every process of a distributed run may compute at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import evaluate
import numpy as np
from datasets import Features, Value
from scipy import stats
from sklearn import metrics as sklearn_metrics
from transformers import EvalPrediction

from ..data.labels import to_dataset_ids
from ..data.messages import did_you_mean, listing
from ..data.tasks import COMBINED_SCORE, TaskSpec


class OfflineMetric(evaluate.Metric):
    """Base of the metrics: scores predictions against references, both kept in memory.

    Args:
        **kwargs: Those of `evaluate.Metric`. `keep_in_memory` is on unless `num_process` asks for several processes
            that share a file.
    """

    name_in_results: str
    value_type = "int64"

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("keep_in_memory", kwargs.get("num_process", 1) == 1)
        super().__init__(**kwargs)

    def _build_data_dir(self) -> str:
        # The parent makes a cache folder here. In memory there is nothing to put into it, and the home folder may be
        # read-only.
        return self._data_dir_root if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="",
            features=Features({"predictions": Value(self.value_type), "references": Value(self.value_type)}),
        )

    def _compute(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
        return {self.name_in_results: float(self.score(np.asarray(predictions), np.asarray(references)))}

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        """Return the score of `predictions` (n,) against `references` (n,)."""
        raise NotImplementedError


class Accuracy(OfflineMetric):
    """Share of class ids that are right."""

    name_in_results = "accuracy"

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return sklearn_metrics.accuracy_score(references, predictions)


class F1(OfflineMetric):
    """Harmonic mean of precision and recall of class 1, as in GLUE; 0 if it is never predicted or never there."""

    name_in_results = "f1"

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return sklearn_metrics.f1_score(references, predictions, pos_label=1, average="binary", zero_division=0.0)


class MacroF1(OfflineMetric):
    """Mean over the classes of their F1; a class never predicted counts as 0."""

    name_in_results = "f1_macro"

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return sklearn_metrics.f1_score(references, predictions, average="macro", zero_division=0.0)


class MatthewsCorrelation(OfflineMetric):
    """Matthews correlation of class ids, -1 to 1; 0 if only one class is ever predicted or only one is there."""

    name_in_results = "matthews_correlation"

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return sklearn_metrics.matthews_corrcoef(references, predictions)


class Pearson(OfflineMetric):
    """Pearson correlation of scores, -1 to 1; 0 where it is undefined because one side is constant."""

    name_in_results = "pearson"
    value_type = "float64"

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        # A model that has learned nothing yet gives constant scores; NaN would break the choice of a checkpoint.
        return 0.0 if _constant(predictions, references) else stats.pearsonr(predictions, references).statistic


class Spearman(OfflineMetric):
    """Spearman rank correlation of scores, -1 to 1; 0 where it is undefined because one side is constant."""

    name_in_results = "spearman"
    value_type = "float64"

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return 0.0 if _constant(predictions, references) else stats.spearmanr(predictions, references).statistic


def _constant(*arrays: np.ndarray) -> bool:
    """Whether any of the arrays holds one value only (a single row does)."""
    return any(np.ptp(array) == 0 for array in arrays)


METRICS: dict[str, type[OfflineMetric]] = {
    cls.name_in_results: cls for cls in (Accuracy, F1, MacroF1, MatthewsCorrelation, Pearson, Spearman)
}


def load_metric(name: str) -> OfflineMetric:
    """Return a metric by name, without a download.

    Args:
        name: A key of `METRICS`.

    Raises:
        ValueError: If there is no such metric.

    Example:
        >>> load_metric("accuracy").compute(predictions=[0, 1, 1, 0], references=[0, 1, 0, 0])
        {'accuracy': 0.75}
    """
    if name not in METRICS:
        raise ValueError(
            f"metric={name!r} is not known: expected one of {listing(METRICS)}.{did_you_mean(name, METRICS)}"
        )
    return METRICS[name]()


def predicted_values(predictions: Any, spec: TaskSpec) -> np.ndarray:
    """Turn a model's outputs into one class id or score a row.

    Args:
        predictions: Logits (rows, labels), or scores (rows, 1) or (rows,) for regression. Of a tuple, as models with
            more outputs give, the first is taken.
        spec: The task.

    Returns:
        Class ids (rows,) of the model, or scores (rows,).

    Raises:
        ValueError: If the shape does not fit, or outputs are NaN (for scores: or infinite).
    """
    logits = np.asarray(predictions[0] if isinstance(predictions, (tuple, list)) else predictions)
    broken = ~np.isfinite(logits) if spec.is_regression else np.isnan(logits)
    if broken.any():
        rows = int(broken.reshape(len(logits), -1).any(axis=1).sum())
        raise ValueError(
            f"{rows} of {len(logits)} predictions are not finite numbers: the model has diverged (a lower learning "
            "rate or full precision may help)"
        )
    if spec.is_regression:
        if logits.size != len(logits):
            raise ValueError(f"Predictions of {spec.name} have shape {logits.shape}: expected one score a row")
        return logits.reshape(-1).astype(np.float64)
    if logits.ndim != 2:
        raise ValueError(f"Predictions of {spec.name} have shape {logits.shape}: expected (rows, labels)")
    return logits.argmax(axis=-1)


def build_compute_metrics(
    spec: TaskSpec, dataset_to_model: Sequence[int] | None = None
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make the `compute_metrics` function of a task for `transformers.Trainer`.

    Args:
        spec: The task; all of `spec.metrics` are computed.
        dataset_to_model: What `align_labels` returned, if the labels that the model is trained and evaluated with
            were changed from the dataset's ids to the model's. Both sides are turned back before scoring, because F1
            depends on which class is number 1.

    Returns:
        A function from `EvalPrediction` to the scores by name. Where it is the main metric, `combined_score` is their
        mean. Constant predictions have a correlation of 0.0, not NaN.
    """
    modules = [load_metric(name) for name in spec.metrics]

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        predicted: Any = predicted_values(prediction.predictions, spec)
        expected: Any = np.asarray(prediction.label_ids).reshape(-1)
        if len(predicted) != len(expected):
            raise ValueError(f"There are {len(predicted)} predictions for {len(expected)} labels")
        if dataset_to_model is not None and not spec.is_regression:
            predicted = to_dataset_ids(predicted, dataset_to_model)
            expected = to_dataset_ids(expected, dataset_to_model)
        scores: dict[str, float] = {}
        for module in modules:
            scores.update(module.compute(predictions=predicted, references=expected))
        if spec.main_metric == COMBINED_SCORE:
            scores[COMBINED_SCORE] = float(np.mean(list(scores.values())))
        return scores

    return compute_metrics
