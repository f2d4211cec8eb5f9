"""The data part of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tasks import get_task


_FILE_FIELDS = ("train_file", "validation_file", "test_file")
_COLUMN_FIELDS = ("text_column", "text_pair_column", "label_column")


@dataclass
class DataArguments:
    """Which data to read and how much of it; made for `transformers.HfArgumentParser`.

    There are three ways to name the data, and exactly one must be used:

    - `task`: a task known by name, from the Hub (or generated, for `acceptability`);
    - `task` and `dataset_dir`: the same task from a local folder;
    - `train_file` (with `validation_file` and `test_file` as wanted): your own files. To evaluate or predict only,
      `validation_file` or `test_file` alone will do.

    Raises:
        ValueError: On a wrong value or a combination that makes no sense; the message names the field and says what is
            allowed. Files are looked at later, by `load_task_data`.
    """

    task: str | None = field(
        default=None,
        metadata={
            "help": "Name of a task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, snli, sst5, trec, or "
            "acceptability (generated, needs no download)."
        },
    )
    dataset_dir: str | None = field(
        default=None,
        metadata={
            "help": "Local folder to read the task from instead of the Hub: it holds <task>/<split>.jsonl (or .json, "
            ".csv, .tsv, .parquet, and .gz of the text formats), or is itself the task's folder."
        },
    )
    dataset_revision: str | None = field(
        default=None,
        metadata={"help": "Commit, tag or branch of the task's dataset on the Hub; a full commit id repeats exactly."},
    )
    train_file: str | None = field(
        default=None,
        metadata={"help": "Your own training data: .csv, .tsv, .json, .jsonl (each also .gz) or .parquet."},
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Your own evaluation data, with the same columns as train_file."}
    )
    test_file: str | None = field(
        default=None, metadata={"help": "Your own data to predict on; its label column may be missing."}
    )
    text_column: str | None = field(
        default=None, metadata={"help": "Column of your files that holds the text; found by itself when unambiguous."}
    )
    text_pair_column: str | None = field(
        default=None, metadata={"help": "Column of your files that holds the second text of a pair, if there is one."}
    )
    label_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of your files that holds the label: text or whole numbers mean classes, numbers with a "
            "decimal point mean scores (regression). Found by itself when unambiguous."
        },
    )
    max_length: int = field(
        default=128, metadata={"help": "Longest input in tokens, special tokens included; longer texts are cut."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on at most this many rows, drawn at random (see sample_seed)."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on at most this many rows of each evaluation split."}
    )
    max_predict_samples: int | None = field(
        default=None, metadata={"help": "Predict at most this many rows of each test split."}
    )
    sample_seed: int = field(
        default=0,
        metadata={
            "help": "Which rows a cap keeps (and, for the generated task, which sentences are made). Separate from "
            "the training seed, so that runs with several seeds see the same rows."
        },
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that turn text into tokens; none means the main process."}
    )

    def __post_init__(self) -> None:
        files = [name for name in _FILE_FIELDS if getattr(self, name) is not None]
        if self.task is None and not files:
            raise ValueError(
                "No data named: give task (a task known by name) or train_file (your own data; validation_file or "
                "test_file alone if nothing is trained)"
            )
        if self.task is not None:
            self._forbid(
                [*files, *(n for n in _COLUMN_FIELDS if getattr(self, n) is not None)], "your own files", "task"
            )
            # Stored as the key of TASKS, so that folders and messages do not depend on how it was spelled.
            self.task = get_task(self.task).name
        else:
            given = [name for name in ("dataset_dir", "dataset_revision") if getattr(self, name) is not None]
            self._forbid(given, "a task known by name", files[0])
        if self.dataset_revision is not None and self.dataset_dir is not None:
            self._forbid(["dataset_revision"], "a dataset on the Hub", "dataset_dir")
        if self.text_pair_column is not None and self.text_column is None:
            raise ValueError(
                f"text_pair_column={self.text_pair_column!r} needs text_column, the first text of the pair"
            )
        columns = [getattr(self, name) for name in _COLUMN_FIELDS if getattr(self, name) is not None]
        if len(set(columns)) < len(columns):
            raise ValueError(f"text_column, text_pair_column and label_column must differ, got {columns!r}")
        for name in ("max_length", "max_train_samples", "max_eval_samples", "max_predict_samples"):
            self._check_int(name, lowest=1)
        self._check_int("preprocessing_num_workers", lowest=1)
        self._check_int("sample_seed", lowest=0)

    def _forbid(self, given: list[str], belongs_to: str, other: str) -> None:
        """Raise if a field is given that does not go with the chosen source of data."""
        if given:
            raise ValueError(
                f"{given[0]}={getattr(self, given[0])!r} is for {belongs_to} and cannot be combined with "
                f"{other}={getattr(self, other)!r}: give one of the two"
            )

    def _check_int(self, name: str, lowest: int) -> None:
        """Raise unless the field is a whole number of at least `lowest`, or `None` where that is its default."""
        value = getattr(self, name)
        if value is None and type(self).__dataclass_fields__[name].default is None:
            return
        # YAML hands over what it finds: true, "128" and 128.0 must not pass for a number of rows.
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(f"{name}={value!r}: expected a whole number of at least {lowest}")
