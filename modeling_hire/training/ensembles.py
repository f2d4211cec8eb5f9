"""`--ensemble`: fine-tuned checkpoints evaluated as one and each alone, on the data of a run; nothing is trained."""

from __future__ import annotations

import copy
import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import EvalPrediction

from ..data.arguments import DataArguments
from ..data.labels import align_labels
from ..data.loading import load_task_data
from ..data.preprocessing import truncation_note
from ..data.squad_arguments import SquadArguments
from ..data.tasks import COMBINED_SCORE, TaskSpec, get_task
from ..evaluation.ensembles import EnsembleForQuestionAnswering, EnsembleForSequenceClassification
from ..evaluation.glue import build_compute_metrics, predicted_values
from ..evaluation.spans import write_answers
from ..evaluation.submission import write_submission
from ..hub import markdown_table, write_json
from .answering import QuestionAnswering
from .arguments import ModelArguments, RunArguments
from .models import QUESTION_ANSWERING
from .preparation import RESULTS_FILE, check_output, describe
from .task import TrainingTask


# The run arguments that mean something where nothing is trained.
USED = (
    *("output_dir", "per_device_eval_batch_size", "bf16_full_eval", "fp16_full_eval", "use_cpu", "disable_tqdm"),
    *("num_train_epochs", "log_level", "report_to", "run_name"),
)
# The model arguments that are about an ensemble; the others say what to build.
OWN = ("ensemble", "ensemble_revision")
ENSEMBLE = "ensemble"
# By split: the metrics of each member and, last, of the ensemble.
Metrics = dict[str, list[dict[str, float]]]


class EnsembleTask(ABC):
    """Data, and an ensemble for it: made before anything is written, then run.

    Attributes:
        ensemble: not yet in memory.
        spec: title and metrics of the task.
        notes: sentences for the user.
        baseline_name: what to call the metrics of what needs no model.
    """

    ensemble: EnsembleForSequenceClassification | EnsembleForQuestionAnswering
    spec: TaskSpec
    notes: list[str]
    metric_names: tuple[str, ...]
    baseline_name = ""

    @abstractmethod
    def run(self, batch_size: int) -> Metrics:
        """Run every member over all of the data; the metrics of each evaluation split."""

    @abstractmethod
    def write(self, folder: Path) -> list[Path]:
        """Write the ensemble's predictions, after `run`; the files written."""

    def baseline(self) -> dict[str, dict[str, float]]:
        """For each evaluation split, the metrics of an answer that needs no model; empty if there is none."""
        return {}


class TextEnsemble(EnsembleTask):
    """Classes or scores of texts."""

    def __init__(self, checkpoints: list[str], loading: dict[str, Any], data_arguments: DataArguments):
        names = None if data_arguments.task is None else get_task(data_arguments.task).label_names
        scores = data_arguments.task is not None and names is None
        self.ensemble = EnsembleForSequenceClassification(checkpoints, **loading)
        own = self.ensemble.label_names
        if data_arguments.task is not None and (own is None) != scores:
            raise _wrong_kind(own is None)
        self.data = load_task_data(data_arguments, evaluation_only=True, label_names=own or ())
        self.spec, self.notes = self.data.spec, list(self.data.notes)
        if self.spec.is_regression != (own is None):
            raise _wrong_kind(own is None)
        # For each of the data's classes its place in the ensemble's outputs.
        self.places = [0] if own is None else align_labels(self.spec.label_names, {n: i for i, n in enumerate(own)})
        self.metric_names = (
            *self.spec.metrics,
            *([COMBINED_SCORE] if self.spec.main_metric == COMBINED_SCORE else []),
        )
        self._splits = {**self.data.evaluation, **self.data.test}
        columns = next(iter(self._splits.values())).column_names
        pairs = _joined(self._splits, "text_pair") if "text_pair" in columns else None
        self._inputs = self.ensemble.encode(_joined(self._splits, "text"), pairs, max_length=data_arguments.max_length)
        for member, inputs in zip(self.ensemble.members, self._inputs, strict=True):
            note = truncation_note(member.name, inputs.num_cut, len(inputs.rows), inputs.max_length)
            self.notes += [note] if note else []
        self._logits: dict[str, np.ndarray] = {}

    def run(self, batch_size: int) -> Metrics:
        found = self.ensemble.run(self._inputs, batch_size=batch_size)
        logits = torch.cat([found.member_logits, found.logits[None]])[..., self.places].numpy()
        stops = np.cumsum([len(rows) for rows in self._splits.values()])
        parts = dict(zip(self._splits, np.split(logits, stops[:-1], axis=1), strict=True))
        self._logits = {split: values[-1] for split, values in parts.items()}
        scores = build_compute_metrics(self.spec)
        return {
            split: [scores(EvalPrediction(values, np.asarray(rows["label"]))) for values in parts[split]]
            for split, rows in self.data.evaluation.items()
        }

    def write(self, folder: Path) -> list[Path]:
        return [
            write_submission(folder, self.spec, split, rows["idx"], predicted_values(self._logits[split], self.spec))
            for split, rows in self.data.test.items()
        ]


class QuestionEnsemble(EnsembleTask):
    """Spans that answer questions."""

    baseline_name = QuestionAnswering.baseline_name

    def __init__(
        self, checkpoints: list[str], loading: dict[str, Any], data_arguments: SquadArguments, arguments: RunArguments
    ):
        self.ensemble = EnsembleForQuestionAnswering(checkpoints, **loading)
        nothing_trained = copy.copy(arguments)
        nothing_trained.num_train_epochs = 0
        self.task = QuestionAnswering(data_arguments, nothing_trained, self.ensemble.members[0].config)
        self.spec, self.notes = self.task.spec, self.task.notes
        self.metric_names = self.task.metric_names
        self._splits = {**self.task.data.evaluation, **self.task.data.test}
        self._windows = self.ensemble.cut(
            _joined(self._splits, "question"),
            _joined(self._splits, "context"),
            max_length=data_arguments.max_length,
            doc_stride=data_arguments.doc_stride,
            max_query_length=data_arguments.max_query_length,
            names=_joined(self._splits, "id"),
        )
        for member, windows in zip(self.ensemble.members, self._windows, strict=True):
            shortened = len({window.row for window in windows if window.cut})
            if shortened:
                self.notes.append(
                    f"{member.name}: {shortened} questions were longer than "
                    f"max_query_length={data_arguments.max_query_length} tokens and were cut."
                )
        self._found: dict[str, list[Any]] = {}

    def run(self, batch_size: int) -> Metrics:
        args = self.task.data_arguments
        found = self.ensemble.run(
            self._windows,
            batch_size=batch_size,
            max_answer_length=args.max_answer_length,
            n_best_size=args.n_best_size,
        )
        metrics: Metrics = {}
        begin = 0
        for split, questions in self._splits.items():
            part = slice(begin, begin + len(questions))
            begin = part.stop
            self._found[split] = found.ensemble[part]
            if split in self.task.data.evaluation:
                everyone = (*found.members, found.ensemble)
                metrics[split] = [self._named(self.task.scores(split, one[part])) for one in everyone]
        return metrics

    def _named(self, scores: dict[str, float]) -> dict[str, float]:
        return {name: float(scores[name]) for name in self.metric_names if name in scores}

    def write(self, folder: Path) -> list[Path]:
        data, paths = self.task.data, []
        for split, questions in data.evaluation.items():
            texts = questions["id"][:], questions["context"][:]
            paths += write_answers(folder, *texts, self._found[split], self.task.threshold)
        for split in data.test:
            paths += self.task.write(folder, split, self._found[split])
        return paths

    def baseline(self) -> dict[str, dict[str, float]]:
        return {split: self._named(scores) for split, scores in self.task.baseline().items()}


@dataclass
class PreparedEnsemble:
    """An evaluation that is ready to start; `names` are those of the members in the results."""

    arguments: RunArguments
    identity: dict[str, Any]
    names: list[str]
    task: EnsembleTask


def prepare_ensemble(
    task_class: type[TrainingTask], model_arguments: ModelArguments, data_arguments: Any, arguments: RunArguments
) -> PreparedEnsemble:
    """Read data and the members' configurations, and check that all fit.

    Args:
        task_class: the kind of task.
        model_arguments, data_arguments, arguments: the command line.

    Raises:
        ValueError: for wrong arguments, data or checkpoints, and for arguments about what is built or trained. Nothing
            has been written then.
    """
    check_arguments(model_arguments, arguments)
    output, checkpoints = Path(arguments.output_dir), list(model_arguments.ensemble or ())
    built = {field.name for field in dataclasses.fields(model_arguments)} - set(OWN)
    described = describe(model_arguments, data_arguments, arguments)
    identity = {name: value for name, value in described.items() if name not in built}
    check_output(output, identity, arguments.seeds, resume=None)
    revisions = model_arguments.ensemble_revision
    loading: dict[str, Any] = {
        "revision": revisions[0] if revisions is not None and len(revisions) == 1 else revisions,
        "dtype": torch.float32,
    }
    for name, dtype in (("bf16_full_eval", torch.bfloat16), ("fp16_full_eval", torch.float16)):
        if getattr(arguments, name):
            loading["dtype"] = dtype
    if task_class.head is QUESTION_ANSWERING:
        task: EnsembleTask = QuestionEnsemble(checkpoints, loading, data_arguments, arguments)
    else:
        task = TextEnsemble(checkpoints, loading, data_arguments)
    return PreparedEnsemble(arguments, identity, member_names(checkpoints, taken=(ENSEMBLE,)), task)


def evaluate_ensemble(prepared: PreparedEnsemble) -> dict[str, Any]:
    """Evaluate an ensemble and each of its members, and write metrics and the ensemble's predictions.

    Returns:
        What `results.json` holds: `arguments`, `metrics` by member (and `ensemble`), split and name, `members` in
        their order, and the metrics of what needs no model under the task's `baseline_name`, if there are any.
    """
    arguments, task = prepared.arguments, prepared.task
    if task.notes:
        print("\n".join(task.notes))
    task.ensemble.to(arguments.device)
    found = task.run(arguments.per_device_eval_batch_size)
    rows = [*prepared.names, ENSEMBLE]
    metrics = {name: {split: values[row] for split, values in found.items()} for row, name in enumerate(rows)}
    baseline = task.baseline()
    results = {"arguments": prepared.identity, "metrics": metrics, "members": prepared.names}
    results |= {task.baseline_name: baseline} if baseline else {}

    output = Path(arguments.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    for path in task.write(output):
        print(f"Predictions: {path}")
    if found:
        shown = metrics | ({task.baseline_name.replace("_", " "): baseline} if baseline else {})
        table = model_table(shown, task.metric_names)
        write_json(output / RESULTS_FILE, results)
        (output / "results.md").write_text(table + "\n", encoding="utf-8")
        print(f"\n{task.spec.title}, an ensemble of {len(prepared.names)}\n\n{table}\n")
    return results


def check_arguments(model_arguments: ModelArguments, arguments: RunArguments) -> None:
    """Raise a `ValueError` for an argument that means nothing where nothing is built or trained."""
    for field in dataclasses.fields(model_arguments):
        value = getattr(model_arguments, field.name)
        if field.name not in OWN and value != field.default:
            raise ValueError(
                f"{field.name}={value!r}: with ensemble the checkpoints are evaluated as they are; allowed beside it "
                "is ensemble_revision."
            )
    plain = type(arguments)(output_dir=arguments.output_dir, use_cpu=arguments.use_cpu).to_dict()
    for name, value in arguments.to_dict().items():
        if value != plain[name] and name not in USED:
            raise ValueError(f"{name}={value!r}: with ensemble nothing is trained; allowed are {', '.join(USED)}.")
    if arguments.num_train_epochs not in (0, plain["num_train_epochs"]):
        raise ValueError(f"num_train_epochs={arguments.num_train_epochs!r}: with ensemble nothing is trained.")
    if arguments.world_size > 1:
        raise ValueError(f"ensemble: {arguments.world_size} processes were started; allowed is one.")


def member_names(checkpoints: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Names by which to tell checkpoints apart: repositories by their name, folders by as little as will do.

    Args:
        checkpoints: repositories and folders.
        taken: names that are not free.

    Example:
        >>> member_names(["runs/bert/seed-1", "runs/bert-15/seed-1", "owner/name", "owner/name"])
        ['bert/seed-1', 'bert-15/seed-1', 'owner/name', 'owner/name (2)']
    """
    parts = [_parts(name) for name in checkpoints]
    names: list[str] = []
    for own in parts:
        others = [other for other in parts if other != own]
        counts = range(1, len(own))
        count = next((n for n in counts if not any(other[-n:] == own[-n:] for other in others)), len(own))
        stem = name = "/".join(own[-count:])
        number = 1
        while name in (*names, *taken):
            number += 1
            name = f"{stem} ({number})"
        names.append(name)
    return names


def _parts(name: str) -> tuple[str, ...]:
    """What a checkpoint's name can be cut down to: a repository's to nothing less, a folder's to its last part."""
    if name.count("/") <= 1 and not os.path.exists(name):
        return (name,)
    return Path(name).resolve().parts


def model_table(metrics: dict[str, dict[str, dict[str, float]]], metric_names: Sequence[str]) -> str:
    """A Markdown table with a row a split and model.

    Args:
        metrics: by model, split and name.
        metric_names: the columns, in order.
    """
    splits = list(next(iter(metrics.values())))
    known = {name for by_split in metrics.values() for values in by_split.values() for name in values}
    columns = [name for name in metric_names if name in known]

    def row(split: str, model: str) -> list[str]:
        values = metrics[model].get(split, {})
        return [split, model, *(f"{values[name]:.4f}" if name in values else "" for name in columns)]

    rows = [row(split, model) for split in splits for model in metrics]
    return markdown_table(["split", "model", *columns], rows)


def _joined(splits: dict[str, Dataset], column: str) -> list[str]:
    return [value for rows in splits.values() for value in rows[column][:]]


def _wrong_kind(scores: bool) -> ValueError:
    kinds = {True: "scores", False: "classes"}
    return ValueError(f"ensemble: the members predict {kinds[scores]}, and the data has {kinds[not scores]}.")
