"""The command line of `run_probe.py`: which model, which text, what to ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..configuration_layer_plans import is_integer


@dataclass
class ProbeArguments:
    """What to probe; made for [`YamlArgumentParser`].

    Raises:
        ValueError: for a wrong value or a combination that makes no sense; it names the field and what is allowed.
    """

    checkpoint: str | None = field(
        default=None,
        metadata={"help": "Masked language model: a Hub repository or a folder. It may also come without a flag."},
    )
    revision: str | None = field(
        default=None,
        metadata={"help": "Commit, branch or tag of the checkpoint on the Hub."},
    )
    text_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Text to read: .txt (a text a line, empty lines left out), .csv, .tsv, .json, .jsonl, each also "
            ".gz, or .parquet."
        },
    )
    dataset: str | None = field(
        default=None,
        metadata={"help": "Or a dataset: a task known by name (sst2, rte, ...), or a repository of the Hub."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of the dataset on the Hub."})
    dataset_dir: str | None = field(
        default=None, metadata={"help": "Local folder to read a task known by name from, as in run_glue.py."}
    )
    dataset_revision: str | None = field(
        default=None, metadata={"help": "Commit, tag or branch of the dataset on the Hub."}
    )
    dataset_split: str = field(default="validation", metadata={"help": "Split of the dataset."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column that holds the text; found by itself when unambiguous."}
    )
    max_tokens: int = field(
        default=10_000, metadata={"help": "Tokens to probe at most, special ones included: whole texts, in order."}
    )
    max_length: int = field(default=128, metadata={"help": "Longest text in tokens; longer texts are cut."})
    batch_size: int = field(default=32, metadata={"help": "Texts that go through the encoder at a time."})
    chunk_size: int = field(default=256, metadata={"help": "Tokens whose logits are held at a time."})
    remove: bool = field(default=False, metadata={"help": "Also with each layer left out."})
    repeat: list[int] | None = field(
        default=None, metadata={"help": "Also with each layer run so many times in place: --repeat 2 3."}
    )
    duplicate: list[str] | None = field(
        default=None,
        metadata={"help": "Compare with duplicated models: plans such as first:3, all:2, single:0 or 2,2,1,1,1,1."},
    )
    sentence: str | None = field(
        default=None, metadata={"help": "Show what every layer decodes of this text, as text and as a picture."}
    )
    use_cpu: bool = field(default=False, metadata={"help": "Leave a graphics card alone."})
    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder for tables, JSON and pictures; without one, the tables are shown only."},
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace the results of an earlier probe there."})

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ValueError(f"checkpoint={self.checkpoint!r}: give one, a masked language model (--checkpoint NAME).")
        if self.output_dir is not None and not self.output_dir.strip():
            raise ValueError(f"output_dir={self.output_dir!r}: allowed is a folder.")
        if (self.text_file is None) == (self.dataset is None):
            raise ValueError(
                f"text_file={self.text_file!r} and dataset={self.dataset!r}: give one of the two, a text to probe on."
            )
        if self.dataset is None:
            for name in ("dataset_config", "dataset_dir", "dataset_revision"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)!r}: allowed with dataset only.")
        for name in ("max_tokens", "max_length", "batch_size", "chunk_size"):
            if not is_integer(getattr(self, name), 1):
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed is a whole number from 1 on.")
        if self.repeat is not None:
            if not all(is_integer(times, 2) for times in self.repeat):
                raise ValueError(f"repeat={self.repeat!r}: allowed are whole numbers from 2 on.")
            self.repeat = list(dict.fromkeys(self.repeat))
        if self.duplicate is not None:
            # A YAML list of numbers, or numbers with spaces between, is one plan.
            if len(self.duplicate) > 1 and all(plan.strip().isdigit() for plan in self.duplicate):
                self.duplicate = [",".join(plan.strip() for plan in self.duplicate)]
            self.duplicate = list(dict.fromkeys(self.duplicate))
        if self.sentence is not None and not self.sentence.strip():
            raise ValueError(f"sentence={self.sentence!r}: allowed is a text.")
