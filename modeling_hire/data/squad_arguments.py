"""The data part of the command line of `run_squad.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import did_you_mean, listing
from .tasks import TaskSpec


def _squad(name: str, title: str, hub_path: str) -> TaskSpec:
    return TaskSpec(
        name,
        title,
        text_columns=("question", "context"),
        label_names=None,
        metrics=("exact", "f1"),
        main_metric="f1",
        hub_path=hub_path,
        test_splits=(),
    )


SQUAD_TASKS = {
    "squad_v1": _squad("squad_v1", "SQuAD 1.1", "rajpurkar/squad"),
    "squad_v2": _squad("squad_v2", "SQuAD 2.0", "rajpurkar/squad_v2"),
}
_FILE_FIELDS = ("train_file", "validation_file", "test_file")


@dataclass
class SquadArguments:
    """Which questions to read, how many, and how they become inputs and answers; made for `HfArgumentParser`.

    There are three ways to name the data:

    - `task` alone: SQuAD 1.1 or 2.0 from the Hub;
    - `dataset_dir`: a local folder that holds `train.json` and `dev.json`;
    - `train_file` (with `validation_file` and `test_file` as wanted): files. To evaluate or predict only,
      `validation_file` or `test_file` alone will do.

    With a folder or files, `task` says which task they are a copy of.

    Raises:
        ValueError: On a wrong value or a combination that makes no sense; the message names the field and says what is
            allowed. Files are looked at later, by `load_squad`.
    """

    task: str | None = field(default=None, metadata={"help": f"Name of a task: {', '.join(SQUAD_TASKS)}."})
    dataset_dir: str | None = field(
        default=None,
        metadata={
            "help": "Local folder to read instead of the Hub: it holds train.json and dev.json, also as .json.gz, "
            ".jsonl, .csv or .parquet; or, with task, a folder of the task's name that does."
        },
    )
    dataset_revision: str | None = field(
        default=None,
        metadata={"help": "Commit, tag or branch of the task's dataset on the Hub; a full commit id repeats exactly."},
    )
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Training files, joined: SQuAD's nested JSON, or a table (.json, .jsonl, .csv, .tsv, each also "
            ".gz, or .parquet) with the columns id, context, question and answers (or answer and answer_start)."
        },
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Files to evaluate on, joined, in the same formats."}
    )
    test_file: list[str] | None = field(
        default=None, metadata={"help": "Files to predict on, joined; answers may be missing and are not looked at."}
    )
    version_2_with_negative: bool | None = field(
        default=None,
        metadata={
            "help": "Whether some questions have no answer, as in SQuAD 2.0. Unset, it is what the task says, and "
            "without a task false."
        },
    )
    max_length: int = field(
        default=384, metadata={"help": "Longest input in tokens, question and special tokens included."}
    )
    doc_stride: int = field(
        default=128, metadata={"help": "How many tokens after a window the next one of a long context starts."}
    )
    max_query_length: int | None = field(
        default=64, metadata={"help": "Longest question in tokens; of longer ones the beginning is kept."}
    )
    n_best_size: int = field(default=20, metadata={"help": "How many candidates of a question are kept."})
    max_answer_length: int = field(default=30, metadata={"help": "Longest answer in tokens."})
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={
            "help": "A question is left without an answer if no answer is worth more than the best answer by more "
            "than this. best_f1_thresh in the results says which value would have been best."
        },
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on at most this many questions, drawn at random (see sample_seed)."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on at most this many questions, drawn at random."}
    )
    max_predict_samples: int | None = field(
        default=None, metadata={"help": "Predict at most this many questions, drawn at random."}
    )
    sample_seed: int = field(
        default=0,
        metadata={"help": "Which questions a cap keeps. Separate from the training seed, so that seeds share them."},
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that turn text into tokens; none means the main process."}
    )

    def __post_init__(self) -> None:
        files = [name for name in _FILE_FIELDS if getattr(self, name) is not None]
        if self.task is not None:
            self.task = self._known_task(self.task)
        if self.task is None and self.dataset_dir is None and not files:
            raise ValueError(
                "No data named: give task (squad_v1 or squad_v2), dataset_dir (a folder with train.json and dev.json) "
                "or train_file (validation_file or test_file alone if nothing is trained)"
            )
        if files and self.dataset_dir is not None:
            raise ValueError(
                f"{files[0]}={getattr(self, files[0])!r} cannot be combined with dataset_dir={self.dataset_dir!r}: "
                "give one of the two"
            )
        if self.dataset_revision is not None and (self.task is None or self.dataset_dir is not None or files):
            raise ValueError(
                f"dataset_revision={self.dataset_revision!r} is for a task on the Hub: it needs task, and neither "
                "dataset_dir nor files"
            )
        if self.task == "squad_v1" and self.version_2_with_negative:
            raise ValueError("version_2_with_negative=True: every question of task='squad_v1' has an answer")
        if self.null_score_diff_threshold and not self.version_2:
            raise ValueError(
                f"null_score_diff_threshold={self.null_score_diff_threshold!r}: no question is left without an answer "
                "here; allowed with version_2_with_negative=True or task='squad_v2'"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        counts = ("max_length", "doc_stride", "max_query_length", "n_best_size", "max_answer_length")
        samples = ("max_train_samples", "max_eval_samples", "max_predict_samples", "preprocessing_num_workers")
        for name in (*counts, *samples, "sample_seed"):
            value, lowest = getattr(self, name), 0 if name == "sample_seed" else 1
            may_be_none = name in samples or name == "max_query_length"
            # YAML hands over what it finds: true, "128" and 128.0 must not pass for a number.
            if not (value is None and may_be_none) and (type(value) is not int or value < lowest):
                raise ValueError(f"{name}={value!r}: expected a whole number of at least {lowest}")
        threshold = self.null_score_diff_threshold
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold != threshold:
            raise ValueError(f"null_score_diff_threshold={threshold!r}: expected a number")
        if self.max_query_length is not None and self.max_query_length >= self.max_length:
            raise ValueError(
                f"max_query_length={self.max_query_length} leaves no room for a context in "
                f"max_length={self.max_length}: it must be less"
            )
        if self.doc_stride >= self.max_length:
            raise ValueError(
                f"doc_stride={self.doc_stride} would skip words between windows of max_length={self.max_length} "
                "tokens: it must be less"
            )

    @staticmethod
    def _known_task(name: str) -> str:
        key = name.lower().removeprefix("rajpurkar/").replace("-", "_")
        key = {"squad": "squad_v1", "squad_v1.1": "squad_v1", "squad_v2.0": "squad_v2"}.get(key, key)
        if key not in SQUAD_TASKS:
            raise ValueError(
                f"task={name!r} is not known: expected one of {listing(SQUAD_TASKS)}.{did_you_mean(key, SQUAD_TASKS)}"
            )
        return key

    @property
    def version_2(self) -> bool:
        """Whether questions may have no answer."""
        if self.version_2_with_negative is None:
            return self.task == "squad_v2"
        return self.version_2_with_negative
