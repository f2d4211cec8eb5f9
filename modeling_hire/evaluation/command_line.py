"""The part of a command line that the evaluations of sentence embeddings share: the model, and where results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..configuration_layer_plans import is_integer
from ..hub import PACKAGED_ENCODERS, write_json
from ..training.yaml_arguments import YamlArgumentParser
from .embedders import Embedder, load_embedder


@dataclass
class EmbedderArguments:
    """Which model to evaluate, and where to write.

    Raises:
        ValueError: for a wrong value; it names the field and what is allowed.
    """

    model: str | None = field(
        default=None,
        metadata={
            "help": "A Hub repository, a folder, or package:NAME: a checkpoint of this library, a plain encoder (with "
            "--pooler), or a sentence-transformers model. It may also come first, without the flag."
        },
    )
    revision: str | None = field(default=None, metadata={"help": "Commit, branch or tag of the model on the Hub."})
    pooler: str | None = field(
        default=None,
        metadata={
            "help": "How a plain encoder becomes a sentence encoder: cls_before_pooler, mean, mean_first_last or "
            "mean_top2."
        },
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "Where to read the tokenizer, if not with the model."}
    )
    max_length: int | None = field(
        default=None, metadata={"help": "Tokens read of a text; by default as many as the model says."}
    )
    batch_size: int = field(default=32, metadata={"help": "Texts that go through the encoder at a time."})
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that a sentence-transformers repository brings along."}
    )
    use_cpu: bool = field(default=False, metadata={"help": "Leave a graphics card alone."})
    output: str | None = field(default=None, metadata={"help": "JSON file to write; the table is shown in any case."})
    overwrite: bool = field(default=False, metadata={"help": "Replace the file if it is there."})

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError(f"model={self.model!r}: name one, a Hub repository or a folder.")
        if not is_integer(self.batch_size, 1):
            raise ValueError(f"batch_size={self.batch_size!r}: allowed is a whole number from 1 on.")
        if self.output is not None:
            check_output("output", self.output, ".json", self.overwrite)

    @property
    def public_name(self) -> str:
        """The model's name without the folder it lies in, which is nobody's business."""
        assert self.model is not None
        if self.model.startswith("package:"):
            return PACKAGED_ENCODERS.get(self.model.removeprefix("package:"), self.model)
        return Path(self.model).resolve().name if Path(self.model).exists() else self.model

    def load(self, pooler: str | None = None) -> Embedder:
        """The model, with another pooler if one is given."""
        assert self.model is not None
        return load_embedder(
            self.model,
            revision=self.revision,
            pooler=self.pooler if pooler is None else pooler,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            device="cpu" if self.use_cpu else None,
            trust_remote_code=self.trust_remote_code,
        )

    def write(self, report: dict[str, Any]) -> None:
        """Write the report to `output`, if one is named."""
        if self.output is not None:
            write_json(Path(self.output), report)


def check_output(name: str, value: str, suffix: str, overwrite: bool) -> None:
    """Raise a `ValueError` unless `value` is a file that may be written."""
    path = Path(value)
    if path.suffix.lower() != suffix:
        raise ValueError(f"{name}={value!r}: allowed is a name ending in {suffix}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{name}={value!r}: its folder does not exist.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise ValueError(f"{name}={value!r}: is there already; name another file, or replace it with --overwrite.")


def parse_command_line(kinds: Sequence[type], argv: Sequence[str], description: str | None) -> tuple[Any, ...]:
    """Fill the dataclasses from `[FILE.yaml] [MODEL] [--flag value ...]`.

    Raises:
        ValueError: for an unknown flag (with the nearest known one) or a wrong value.
    """
    argv = list(argv)
    place = 1 if argv and argv[0].lower().endswith((".yaml", ".yml")) else 0
    if len(argv) > place and not argv[place].startswith("-"):
        argv[place : place + 1] = ["--model", argv[place]]
    return YamlArgumentParser(kinds, description=description).parse(argv)
