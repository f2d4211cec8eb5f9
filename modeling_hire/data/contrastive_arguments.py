"""The data part of the command line of `run_contrastive.py`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

from ..configuration_layerwise import check_choice, is_integer


SCHEMES = ("supervised", "self_supervised", "hybrid")
_TRAIN_SOURCES = ("train_file", "dataset_name", "dataset_dir")
_LISTS = ("train_file", "unlabelled_file", "text_columns", "validation_columns")
_FILES_HELP = (
    "(.jsonl, .json, .csv, .tsv, each also .gz, .parquet, or .txt and .txt.gz with a text a line); "
    "hf://datasets/OWNER/NAME/FILE is a file of a dataset on the Hub, hf://datasets/OWNER/NAME@REVISION/FILE of one "
    "of its revisions"
)


@dataclass
class ContrastiveArguments:
    """Which texts to learn embeddings from, and which scored pairs to test them on; made for `HfArgumentParser`.

    The training data comes from one of `train_file`, `dataset_name` (the Hub) and `dataset_dir` (a local folder). To
    evaluate only, `validation_file`, `validation_dir` or `test_file` alone will do.

    Raises:
        ValueError: on a wrong value or a combination that makes no sense; the message names the field and says what is
            allowed. Files are looked at later, by `load_contrastive_data`.

    Example:

    ```python
    >>> from modeling_hire.data.contrastive_arguments import ContrastiveArguments

    >>> arguments = ContrastiveArguments(train_file="nli_for_simcse.csv", validation_dir="glue/stsb")
    >>> arguments.scheme, arguments.train_file, arguments.max_length
    ('supervised', ['nli_for_simcse.csv'], 32)
    >>> ContrastiveArguments(scheme="unsupervised", train_file="wiki.txt")
    Traceback (most recent call last):
        ...
    ValueError: scheme='unsupervised': allowed is one of 'supervised', 'self_supervised', 'hybrid'. Did you mean
    'supervised'?
    ```
    """

    scheme: str = field(
        default="supervised",
        metadata={
            "help": "What is alike: 'supervised' (the texts of a row: a pair, or a pair and hard negatives), "
            "'self_supervised' (a text and itself under other dropout), or 'hybrid' (both)."
        },
    )
    train_file: list[str] | None = field(default=None, metadata={"help": f"Training files, joined {_FILES_HELP}."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub whose train split is the training data."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of dataset_name."})
    dataset_revision: str | None = field(
        default=None,
        metadata={"help": "Commit, tag or branch of dataset_name; a full commit id repeats exactly."},
    )
    dataset_dir: str | None = field(
        default=None,
        metadata={"help": "Local folder with the training data in a file named train.*, or in its only data file."},
    )
    text_columns: list[str] | None = field(
        default=None,
        metadata={
            "help": "Columns of the training data: anchor, positive, negatives. For 'self_supervised', columns whose "
            "texts are all used. Unset, well-known names are found (anchor, positive, negative; sent0, sent1, "
            "hard_neg; premise, entailment, contradiction; query, pos, neg; sentence1, sentence2; text; sentence)."
        },
    )
    unlabelled_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Files with the texts of the self-supervised half of 'hybrid', in the same formats, with one "
            "column of text. Unset, these are the anchors of the training data."
        },
    )
    validation_file: str | None = field(
        default=None,
        metadata={"help": "Pairs of sentences with a score of how alike they are, in a table as above."},
    )
    validation_dir: str | None = field(
        default=None,
        metadata={"help": "Local folder with such pairs in a file named validation.* and, if wanted, test.*."},
    )
    test_file: str | None = field(
        default=None,
        metadata={"help": "Such pairs, scored at the end only. Takes the place of the test.* of validation_dir."},
    )
    validation_columns: list[str] | None = field(
        default=None,
        metadata={
            "help": "Columns of the scored pairs: first sentence, second sentence, score. Unset, well-known names are "
            "found."
        },
    )
    score_range: list[float] | None = field(
        default=None,
        metadata={"help": "Lowest and highest score (0 5); another score is an error then. Unset, any number goes."},
    )
    max_length: int = field(
        default=32, metadata={"help": "Longest text in tokens, special tokens included; longer texts are cut."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on at most this many rows, drawn at random (see sample_seed)."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on at most this many pairs of each split, drawn at random."}
    )
    sample_seed: int = field(
        default=0,
        metadata={
            "help": "Which rows a cap keeps, and which unlabelled text goes with which row. Separate from the "
            "training seed, so that runs with several seeds see the same rows."
        },
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that turn text into tokens; none means the main process."}
    )

    def __post_init__(self) -> None:
        check_choice("scheme", self.scheme, SCHEMES)
        for name in _LISTS:
            self._check_list(name)
        for name in ("dataset_name", "dataset_config", "dataset_revision", "dataset_dir"):
            self._check_text(name, getattr(self, name))
        for name in ("validation_file", "validation_dir", "test_file"):
            self._check_text(name, getattr(self, name))
        self._check_sources()
        self._check_columns()
        self._check_numbers()

    def _check_list(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        # A single name is a list of one, also where the field is not filled by a parser.
        value = [value] if isinstance(value, str | os.PathLike) else value
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"{name}={value!r}: expected one or several names")
        for item in value:
            self._check_text(name, item)
        setattr(self, name, [str(item) for item in value])

    def _check_text(self, name: str, value: Any) -> None:
        if value is not None and (not isinstance(value, str | os.PathLike) or not str(value)):
            raise ValueError(f"{name}={value!r}: expected a name, not {type(value).__name__}")

    def _check_sources(self) -> None:
        given = [name for name in _TRAIN_SOURCES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{given[0]}={getattr(self, given[0])!r} cannot be combined with "
                f"{given[1]}={getattr(self, given[1])!r}: give one of the two"
            )
        if not given and not self.has_evaluation:
            raise ValueError(
                "No data named: give train_file, dataset_name or dataset_dir (validation_file, validation_dir or "
                "test_file alone if nothing is trained)"
            )
        for name in ("dataset_config", "dataset_revision"):
            if getattr(self, name) is not None and self.dataset_name is None:
                raise ValueError(f"{name}={getattr(self, name)!r} needs dataset_name, a dataset on the Hub")
        if self.validation_file is not None and self.validation_dir is not None:
            raise ValueError(
                f"validation_file={self.validation_file!r} cannot be combined with "
                f"validation_dir={self.validation_dir!r}: give one of the two"
            )
        if self.unlabelled_file is not None and self.scheme != "hybrid":
            raise ValueError(
                f"unlabelled_file={self.unlabelled_file!r} is for scheme='hybrid', not scheme={self.scheme!r}"
                + (": give the texts as train_file" if self.scheme == "self_supervised" else "")
            )
        if not given:
            for name in ("text_columns", "unlabelled_file"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} needs train_file, dataset_name or dataset_dir: there is no "
                        "training data"
                    )

    def _check_columns(self) -> None:
        lowest = 1 if self.scheme == "self_supervised" else 2
        if self.text_columns is not None and len(self.text_columns) < lowest:
            raise ValueError(
                f"text_columns={self.text_columns!r}: scheme={self.scheme!r} needs at least two, the anchor and the "
                "positive"
            )
        if self.validation_columns is not None and len(self.validation_columns) != 3:
            raise ValueError(
                f"validation_columns={self.validation_columns!r}: expected three names, of the first sentence, the "
                "second sentence and the score"
            )
        if self.validation_columns is not None and not self.has_evaluation:
            raise ValueError(
                f"validation_columns={self.validation_columns!r} needs validation_file, validation_dir or test_file"
            )
        for name in ("text_columns", "validation_columns"):
            names = getattr(self, name) or []
            if len(set(names)) < len(names):
                raise ValueError(f"{name}={names!r}: the names must differ")

    def _check_numbers(self) -> None:
        for name in (
            "max_length",
            "max_train_samples",
            "max_eval_samples",
            "sample_seed",
            "preprocessing_num_workers",
        ):
            value, lowest = getattr(self, name), 0 if name == "sample_seed" else 1
            may_be_none = type(self).__dataclass_fields__[name].default is None
            if not (value is None and may_be_none) and not is_integer(value, lowest):
                raise ValueError(f"{name}={value!r}: expected a whole number of at least {lowest}")
        bounds = self.score_range
        if bounds is None:
            return
        numbers = isinstance(bounds, list | tuple) and all(
            isinstance(bound, int | float) and not isinstance(bound, bool) and math.isfinite(bound) for bound in bounds
        )
        if not numbers or len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise ValueError(f"score_range={bounds!r}: expected two numbers, the lowest score and the highest")

    @property
    def has_evaluation(self) -> bool:
        """Whether scored pairs are named."""
        return any(name is not None for name in (self.validation_file, self.validation_dir, self.test_file))

    @property
    def has_training(self) -> bool:
        """Whether training data is named."""
        return any(getattr(self, name) is not None for name in _TRAIN_SOURCES)
