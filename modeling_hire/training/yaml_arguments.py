"""Command lines with a YAML file in front: `run_glue.py config.yaml --learning_rate 2e-5`."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the description as it is written."""


class UniqueKeyLoader(yaml.SafeLoader):
    """Plain YAML, in which a key that is given twice is an error and not the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


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
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.where = "the command line"

    def error(self, message: str) -> None:
        raise ValueError(f"{self.where}: {message}")

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """The filled dataclasses, in order.

        Raises:
            ValueError: for an unknown key or flag (with the nearest known one), a wrong value, or a file that is not a
                YAML mapping.
        """
        argv, self.where = list(argv), "the command line"
        if argv and not argv[0].startswith("-"):
            argv = self._from_file(Path(argv[0])) + argv[1:]
        # First of all: without the flag that was misspelt, the dataclasses may miss something they need.
        _, rest = self.parse_known_args(argv)
        if rest:
            if rest[0].startswith("--"):
                self._check_known([rest[0][2:].partition("=")[0]])
            self.error(f"{rest[0]!r} belongs to no flag.")
        return self.parse_args_into_dataclasses(argv, look_for_args_file=False)

    def _from_file(self, path: Path) -> list[str]:
        """The file's keys and values as flags, each known and of the right type."""
        if not path.is_file():
            raise ValueError(f"{path}: no such file. The first argument is a YAML file, or a flag.")
        self.where = str(path)
        try:
            values = yaml.load(path.read_text(encoding="utf-8"), UniqueKeyLoader)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not valid YAML: {error}") from error
        if values is not None and not isinstance(values, dict):
            self.error(f"allowed is a mapping of keys to values, not {type(values).__name__}.")
        self._check_known(values or {})
        flags = [flag for key, value in (values or {}).items() for flag in self._as_flags(key, value)]
        self.parse_known_args(flags)  # a wrong value is reported here, where it is known to come from the file
        self.where = "the command line"
        return flags

    def _as_flags(self, key: str, value: Any) -> list[str]:
        action = next(action for action in self._actions if action.dest == key)
        if value is None:
            if action.default is not None:
                self.error(f"{key}: no value; allowed is one, or to leave the key out ({action.default!r} then).")
            return []
        if isinstance(value, list | tuple):
            if action.nargs != "+":
                self.error(f"{key}={value!r}: allowed is one value, not a list.")
            return [f"--{key}", *map(str, value)]
        # With "=", so that a value that begins with a dash is not taken for a flag.
        return [f"--{key}={json.dumps(value) if isinstance(value, dict) else value}"]

    def _check_known(self, keys: Iterable[Any]) -> None:
        known = {f.name for kind in self.dataclass_types for f in dataclasses.fields(kind) if f.init}
        for key in keys:
            if key not in known:
                near = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1)
                self.error(f"unknown key {key!r}." + (f" Did you mean {near[0]!r}?" if near else " See --help."))
