"""The data part of the command line of `run_meta_pretrain.py`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..configuration_layerwise import check_choice, is_integer, is_number
from .pretraining import check_objectives
from .tasks import TASKS


@dataclass
class MetaDataArguments:
    """What to pre-train on: text with objectives of its own, labelled tasks, or both; made for `HfArgumentParser`.

    Raises:
        ValueError: on a wrong value or a combination that makes no sense; the message names the field and says what is
            allowed. Files are looked at later.
    """

    corpus_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Text: .txt(.gz) with documents parted by blank lines or WikiText headings, SQuAD's .json(.gz), "
            "or a table with the column 'text'; hf://datasets/OWNER/NAME/FILE is a file on the Hub."
        },
    )
    corpus_name: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub whose train split is the text; it is streamed."}
    )
    corpus_config: str | None = field(default=None, metadata={"help": "Configuration of corpus_name."})
    corpus_revision: str | None = field(default=None, metadata={"help": "Commit, tag or branch of corpus_name."})
    corpus_column: str = field(default="text", metadata={"help": "Column of corpus_name that holds a document."})
    validation_corpus_file: list[str] | None = field(
        default=None, metadata={"help": "Text to evaluate on, as corpus_file."}
    )
    objectives: list[str] | None = field(
        default=None,
        metadata={
            "help": "What is learnt from text: mlm, and next_sentence or sentence_order (unset: the first two); of "
            "ELMo forward_lm and backward_lm (unset: both)."
        },
    )
    tasks: list[str] | None = field(
        default=None, metadata={"help": f"Labelled tasks, each with a head of its own, of {', '.join(TASKS)}."}
    )
    dataset_dir: str | None = field(
        default=None, metadata={"help": "Local folder with a folder for each of tasks; unset, they are on the Hub."}
    )
    max_length: int = field(default=128, metadata={"help": "Longest input in tokens, special tokens included."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens that are to be found."})
    max_documents: int | None = field(default=None, metadata={"help": "Read at most so many documents of the text."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on at most so many rows of each labelled task."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on at most so many rows of each task."}
    )
    sample_seed: int = field(default=0, metadata={"help": "Which rows a cap keeps, and how sentences are paired."})

    def __post_init__(self) -> None:
        for name in ("corpus_file", "validation_corpus_file", "tasks"):
            value = getattr(self, name)
            if isinstance(value, str | os.PathLike):
                setattr(self, name, [str(value)])
        if self.corpus_file is not None and self.corpus_name is not None:
            raise ValueError(
                f"corpus_file={self.corpus_file!r} cannot be combined with corpus_name={self.corpus_name!r}: give one "
                "of the two"
            )
        if not (self.has_text or self.tasks):
            raise ValueError("No data named: give corpus_file or corpus_name (text), or tasks (labelled tasks)")
        for name in ("corpus_config", "corpus_revision"):
            if getattr(self, name) is not None and self.corpus_name is None:
                raise ValueError(f"{name}={getattr(self, name)!r} needs corpus_name, a dataset on the Hub")
        if self.validation_corpus_file is not None and not self.has_text:
            raise ValueError(
                f"validation_corpus_file={self.validation_corpus_file!r}: there is no text to train on (corpus_file)"
            )
        if self.objectives is not None:
            check_objectives(tuple(self.objectives))
        for task in self.tasks or ():
            check_choice("tasks", task, tuple(TASKS))
        if len(set(self.tasks or ())) < len(self.tasks or ()):
            raise ValueError(f"tasks={self.tasks!r}: allowed is each once")
        for name in ("max_length", "max_documents", "max_train_samples", "max_eval_samples"):
            value = getattr(self, name)
            if not (value is None and name != "max_length") and not is_integer(value, 1):
                raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
        if not is_integer(self.sample_seed, 0):
            raise ValueError(f"sample_seed={self.sample_seed!r}: expected a whole number of at least 0")
        if not (is_number(self.mlm_probability) and 0 < self.mlm_probability < 1):
            raise ValueError(f"mlm_probability={self.mlm_probability!r}: allowed is a number between 0 and 1")

    @property
    def has_text(self) -> bool:
        """Whether there is text to learn from."""
        return self.corpus_file is not None or self.corpus_name is not None
