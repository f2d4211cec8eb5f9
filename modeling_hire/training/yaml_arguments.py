"""Command lines with a YAML file in front: `run_glue.py config.yaml --learning_rate 2e-5`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser


class YamlArgumentParser(HfArgumentParser):
    """`HfArgumentParser` that takes a YAML file first, and refuses what it does not know.

    A flag on the command line overrides the file's value. Both go through the same conversion, so `1e-5` means a
    number in either. Abbreviated flags are not accepted.

    Args:
        dataclass_types: the dataclasses to fill.
        kwargs: of `argparse.ArgumentParser`.

    Example:

    ```python
    >>> from dataclasses import dataclass
    >>> from modeling_hire.training.yaml_arguments import YamlArgumentParser

    >>> @dataclass
    ... class Arguments:
    ...     task: str = "cola"
    ...     seeds: list[int] | None = None

    >>> YamlArgumentParser([Arguments]).parse(["--task", "rte"])
    (Arguments(task='rte', seeds=None),)
    >>> YamlArgumentParser([Arguments]).parse(["--taks", "rte"])
    Traceback (most recent call last):
        ...
    ValueError: the command line: unknown key 'taks'. Did you mean 'task'?
    ```
    """

    def __init__(self, dataclass_types: Sequence[type], **kwargs: Any):
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> None:
        raise ValueError(f"the command line: {message}")

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """The filled dataclasses, in order.

        Raises:
            ValueError: for an unknown key or flag (with the nearest known one), a wrong value, or a file that is not a
                YAML mapping.
        """
        argv = list(argv)
        if argv and not argv[0].startswith("-"):
            argv = self._from_file(Path(argv[0])) + argv[1:]
        parsed = self.parse_args_into_dataclasses(argv, return_remaining_strings=True, look_for_args_file=False)
        *filled, rest = parsed
        if rest:
            if rest[0].startswith("--"):
                self._check_known([rest[0][2:].partition("=")[0]], "the command line")
            raise ValueError(f"the command line: {rest[0]!r} belongs to no flag.")
        return tuple(filled)

    def _from_file(self, path: Path) -> list[str]:
        if not path.is_file():
            raise ValueError(f"{path}: no such file. The first argument is a YAML file, or a flag.")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not valid YAML: {error}") from error
        if values is None:
            return []
        if not isinstance(values, dict):
            raise ValueError(f"{path}: allowed is a mapping of keys to values, not {type(values).__name__}.")
        self._check_known(values, str(path))
        return [part for key, value in values.items() for part in _as_flag(key, value)]

    def _check_known(self, keys: Sequence[str] | dict[str, Any], where: str) -> None:
        known = {f.name for kind in self.dataclass_types for f in dataclasses.fields(kind) if f.init}
        for key in keys:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                raise ValueError(
                    f"{where}: unknown key {key!r}." + (f" Did you mean {near[0]!r}?" if near else " See --help.")
                )


def _as_flag(key: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [f"--{key}", *map(str, value)]
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
