"""The tasks known by name: their columns, labels, metrics and file names.

Metrics are GLUE's own (Wang et al., 2018): Matthews correlation for CoLA, accuracy and F1 for MRPC and QQP, Pearson
and Spearman correlation for STS-B, accuracy for the rest. All of a task's metrics are always reported. Its
`main_metric` is the one number that picks a checkpoint or fills a table. Where GLUE names two metrics, that number is
their mean, `combined_score`, as on GLUE's leaderboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .messages import did_you_mean, listing


COMBINED_SCORE = "combined_score"


@dataclass(frozen=True)
class TaskSpec:
    """What there is to know about one task before reading any of its data.

    Args:
        name: Short name used on the command line, e.g. `"rte"`.
        title: Name for people, e.g. `"RTE"`.
        text_columns: One column name, or two for tasks over pairs of texts.
        label_names: Class names in the order of their ids; `None` means the label is a score (regression).
        metrics: Names of the metrics to report, see `modeling_hire.evaluation.glue.METRICS`.
        main_metric: The metric that picks the best checkpoint: one of `metrics`, or `"combined_score"` (their mean).
        hub_path: Dataset id on the Hub, or `None` for data that is not there.
        hub_config: Name of the configuration inside that dataset, or `None` when it has only one.
        label_column: Name of the label column.
        evaluation_splits: Splits to evaluate on; two for MNLI.
        test_splits: Splits to predict on.
        submission_files: For each test split, the name of its predictions file.
        submission_labels: What the predictions file says for each class id; `None` means the id itself.
        column_aliases: Other names that copies of this dataset use for a column.
        score_range: Lowest and highest score of a regression task, or `None` when any number goes.
        drop_unlabelled: Rows without a gold label (-1) belong to the dataset and are to be left out (SNLI).
        hint: One sentence that a user of this task should read, or an empty string.
    """

    name: str
    title: str
    text_columns: tuple[str, ...]
    label_names: tuple[str, ...] | None
    metrics: tuple[str, ...]
    main_metric: str
    hub_path: str | None = None
    hub_config: str | None = None
    label_column: str = "label"
    evaluation_splits: tuple[str, ...] = ("validation",)
    test_splits: tuple[str, ...] = ("test",)
    submission_files: Mapping[str, str] = field(default_factory=dict, hash=False)
    submission_labels: tuple[str, ...] | None = None
    column_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    score_range: tuple[float, float] | None = None
    drop_unlabelled: bool = False
    hint: str = ""

    def __post_init__(self) -> None:
        if len(self.text_columns) not in (1, 2):
            raise ValueError(f"text_columns={self.text_columns!r} of task {self.name!r}: expected 1 or 2 column names")
        allowed = (*self.metrics, COMBINED_SCORE) if len(self.metrics) > 1 else self.metrics
        if self.main_metric not in allowed:
            raise ValueError(
                f"main_metric={self.main_metric!r} of task {self.name!r}: expected one of {listing(allowed)}"
            )
        if self.submission_labels is not None and len(self.submission_labels) != len(self.label_names or ()):
            raise ValueError(
                f"submission_labels={self.submission_labels!r} of task {self.name!r}: expected one for each of the "
                f"labels {self.label_names!r}"
            )

    @property
    def is_regression(self) -> bool:
        """Whether the label is a score rather than a class."""
        return self.label_names is None

    @property
    def num_labels(self) -> int:
        """How many outputs a model needs for this task: 1 for regression."""
        return 1 if self.label_names is None else len(self.label_names)


def _glue(name: str, title: str, text_columns: tuple[str, ...], **fields: object) -> TaskSpec:
    """Build a GLUE task; unless told otherwise, its metric is accuracy and its title names the predictions file."""
    settings: dict[str, object] = {
        "metrics": ("accuracy",),
        "main_metric": "accuracy",
        "submission_files": {"test": f"{title}.tsv"},
        **fields,
    }
    return TaskSpec(name, title, text_columns, hub_path="nyu-mll/glue", hub_config=name, **settings)  # type: ignore[arg-type]


_SENTENCE = ("sentence",)
_SENTENCES = ("sentence1", "sentence2")
_NLI = ("entailment", "neutral", "contradiction")
_ENTAILED_OR_NOT = ("entailment", "not_entailment")

_ALL = (
    _glue(
        "cola",
        "CoLA",
        _SENTENCE,
        label_names=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
        main_metric="matthews_correlation",
    ),
    _glue("sst2", "SST-2", _SENTENCE, label_names=("negative", "positive")),
    _glue(
        "mrpc",
        "MRPC",
        _SENTENCES,
        label_names=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        main_metric=COMBINED_SCORE,
    ),
    _glue(
        "stsb",
        "STS-B",
        _SENTENCES,
        label_names=None,
        metrics=("pearson", "spearman"),
        main_metric=COMBINED_SCORE,
        score_range=(0.0, 5.0),
    ),
    _glue(
        "qqp",
        "QQP",
        ("question1", "question2"),
        label_names=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        main_metric=COMBINED_SCORE,
    ),
    _glue(
        "mnli",
        "MNLI",
        ("premise", "hypothesis"),
        label_names=_NLI,
        evaluation_splits=("validation_matched", "validation_mismatched"),
        test_splits=("test_matched", "test_mismatched"),
        submission_files={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        submission_labels=_NLI,
    ),
    _glue(
        "qnli",
        "QNLI",
        ("question", "sentence"),
        label_names=_ENTAILED_OR_NOT,
        submission_labels=_ENTAILED_OR_NOT,
    ),
    _glue("rte", "RTE", _SENTENCES, label_names=_ENTAILED_OR_NOT, submission_labels=_ENTAILED_OR_NOT),
    _glue(
        "wnli",
        "WNLI",
        _SENTENCES,
        label_names=("not_entailment", "entailment"),
        hint="WNLI's validation sentences repeat training sentences with the opposite label: a model that learns the "
        "training data scores below the majority, and published results often leave WNLI out.",
    ),
    TaskSpec(
        name="snli",
        title="SNLI",
        text_columns=("premise", "hypothesis"),
        label_names=_NLI,
        metrics=("accuracy",),
        main_metric="accuracy",
        hub_path="stanfordnlp/snli",
        submission_files={"test": "SNLI.tsv"},
        submission_labels=_NLI,
        drop_unlabelled=True,
    ),
    TaskSpec(
        name="sst5",
        title="SST-5",
        text_columns=("text",),
        label_names=("very negative", "negative", "neutral", "positive", "very positive"),
        metrics=("accuracy",),
        main_metric="accuracy",
        hub_path="SetFit/sst5",
        submission_files={"test": "SST-5.tsv"},
        column_aliases={"text": ("sentence",)},
    ),
    TaskSpec(
        name="trec",
        title="TREC",
        text_columns=("text",),
        label_names=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
        metrics=("accuracy",),
        main_metric="accuracy",
        hub_path="CogComp/trec",
        label_column="coarse_label",
        evaluation_splits=("test",),
        submission_files={"test": "TREC.tsv"},
        submission_labels=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
        column_aliases={"coarse_label": ("label-coarse", "label_coarse")},
        hint="TREC has no validation split, so evaluation uses the test split: do not choose checkpoints or settings "
        "by it and then report it.",
    ),
    TaskSpec(
        name="acceptability",
        title="generated acceptability",
        text_columns=_SENTENCE,
        label_names=("unacceptable", "acceptable"),
        metrics=("matthews_correlation", "accuracy"),
        main_metric="matthews_correlation",
        test_splits=(),
        hint="The acceptability sentences are generated by a grammar: a result says nothing about natural text.",
    ),
)

TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _ALL}
GLUE_TASKS: tuple[str, ...] = tuple(spec.name for spec in _ALL if spec.hub_path == "nyu-mll/glue")


def get_task(name: str) -> TaskSpec:
    """Return the task of this name.

    Args:
        name: A key of `TASKS`; letter case, `-` and `_` do not matter (`"STS-B"` finds `"stsb"`).

    Raises:
        ValueError: If there is no such task; the message lists the names and suggests the nearest.
    """
    key = str(name).lower().replace("-", "").replace("_", "")
    if key not in TASKS:
        raise ValueError(f"task={name!r} is not known: expected one of {listing(TASKS)}.{did_you_mean(key, TASKS)}")
    return TASKS[key]
