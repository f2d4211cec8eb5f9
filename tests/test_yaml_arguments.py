"""Command lines with a YAML file in front."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from modeling_hire.data.arguments import DataArguments
from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.data.meta_arguments import MetaDataArguments
from modeling_hire.data.squad_arguments import SquadArguments
from modeling_hire.training.arguments import CONFIG_FIELDS, ModelArguments, RunArguments, SquadRunArguments
from modeling_hire.training.contrastive_arguments import (
    POOLING_FIELDS,
    ContrastiveTrainingArguments,
    PoolingArguments,
)
from modeling_hire.training.meta_arguments import MetaTrainingArguments, MultiTaskArguments
from modeling_hire.training.yaml_arguments import YamlArgumentParser


REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass
class Some:
    task: str = "cola"
    rate: float = 0.1
    bias: float | None = None
    seeds: list[int] | None = None
    names: list[str] = field(default_factory=lambda: ["a"])
    freeze: bool = False
    keep: bool = True
    extra: str | None = None


def parse(*argv: str) -> Some:
    (some,) = YamlArgumentParser([Some]).parse(argv)
    return some


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        (tmp_path / "some.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "some.yaml")

    return write


def test_defaults() -> None:
    assert parse() == Some()


def test_values_of_every_kind(file: Any) -> None:
    path = file("task: rte\nrate: 1e-5\nbias: -5e-1\nseeds: [1, 2]\nnames: b\nfreeze: true\nkeep: no\nextra: {a: 1}\n")
    expected = Some("rte", 1e-5, -0.5, [1, 2], ["b"], True, False, '{"a": 1}')
    assert parse(path) == expected


def test_flags_override_the_file(file: Any) -> None:
    path = file("task: rte\nseeds: [1, 2]\nfreeze: true\n")
    assert parse(path, "--task", "qnli", "--seeds", "3", "--freeze", "false") == Some(task="qnli", seeds=[3])
    assert parse(path, "--task=qnli", "--no_keep") == Some(task="qnli", seeds=[1, 2], freeze=True, keep=False)


def test_values_that_look_like_flags(file: Any) -> None:
    assert parse(file('task: "--rate"')).task == "--rate"


def test_empty_file_and_empty_value(file: Any) -> None:
    assert parse(file("# nothing\n")) == Some()
    assert parse(file("seeds:\nbias: null\n")) == Some()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tsk: rte", "some.yaml: unknown key 'tsk'. Did you mean 'task'?"),
        ("zzzzzz: 1", "some.yaml: unknown key 'zzzzzz'. See --help."),
        ("1: 2", "unknown key 1"),
        ("rate: much", "some.yaml: argument --rate: invalid float value: 'much'"),
        ("rate: [1, 2]", "some.yaml: rate=[1, 2]: allowed is one value, not a list."),
        ("rate:", "some.yaml: rate: no value; allowed is one, or to leave the key out (0.1 then)."),
        ("seeds: [1, x]", "some.yaml: argument --seeds: invalid int value: 'x'"),
        ("seeds: []", "some.yaml: argument --seeds: expected at least one argument"),
        ("freeze: perhaps", "some.yaml: argument --freeze"),
        ("just text", "allowed is a mapping of keys to values, not str."),
        ("a: b: c", "not valid YAML"),
    ],
)
def test_wrong_files(text: str, said: str, file: Any) -> None:
    with pytest.raises(ValueError) as caught:
        parse(file(text))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--tsk", "rte"), "the command line: unknown key 'tsk'. Did you mean 'task'?"),
        (("--tsk=rte",), "the command line: unknown key 'tsk'."),
        (("--see", "1"), "unknown key 'see'. Did you mean 'seeds'?"),
        (("--rate", "much"), "the command line: argument --rate: invalid float value: 'much'"),
        (("--rate",), "the command line: argument --rate: expected one argument"),
        (("no.yaml",), "no.yaml: no such file"),
        (("--task", "a", "b"), "'b' belongs to no flag"),
    ],
)
def test_wrong_command_lines(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(*argv)
    assert said in str(caught.value)


def test_a_parser_can_be_used_again(file: Any) -> None:
    parser = YamlArgumentParser([Some])
    with pytest.raises(ValueError, match=r"some\.yaml"):
        parser.parse([file("rate: much")])
    with pytest.raises(ValueError, match="the command line"):
        parser.parse(["--rate", "much"])
    assert parser.parse([file("task: rte")])[0].task == "rte"


CONFIGS = [
    path
    for path in sorted((REPOSITORY / "configs").rglob("*.yaml"))
    if "probe" not in path.relative_to(REPOSITORY).parts
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(REPOSITORY / "configs")))
def test_every_config_of_the_repository(path: Path) -> None:
    kinds = [ModelArguments, DataArguments, RunArguments]
    if path.stem.startswith("squad"):
        kinds[1:] = [SquadArguments, SquadRunArguments]
    if "contrastive" in (path.stem, *path.relative_to(REPOSITORY).parts):
        kinds = [PoolingArguments, ContrastiveArguments, ContrastiveTrainingArguments]
    if "meta" in (path.stem, *path.relative_to(REPOSITORY).parts):
        kinds = [MultiTaskArguments, MetaDataArguments, MetaTrainingArguments]
    model, data, run = YamlArgumentParser(kinds).parse([str(path), "--use_cpu", "true"])
    assert model.is_new and run.seeds
    has_data = {PoolingArguments: lambda: data.has_training, MultiTaskArguments: lambda: data.has_text or data.tasks}
    assert has_data.get(kinds[0], lambda: data.task)()


def test_config_fields_are_those_of_the_config() -> None:
    from modeling_hire import HireConfig, LayerAttnPoolConfig
    from modeling_hire.configuration_layerwise import config_field_names

    assert set(CONFIG_FIELDS) <= config_field_names(HireConfig)
    assert all(getattr(ModelArguments(encoder="x"), name) is None for name in CONFIG_FIELDS)
    assert set(POOLING_FIELDS) <= config_field_names(LayerAttnPoolConfig)
    assert all(getattr(PoolingArguments(encoder="x"), name) is None for name in POOLING_FIELDS)


def test_a_misspelt_flag_is_what_is_reported() -> None:
    parser = YamlArgumentParser([ModelArguments, DataArguments, RunArguments])
    with pytest.raises(ValueError, match="unknown key 'encodr'. Did you mean 'encoder'?"):
        parser.parse(["--encodr", "x", "--task", "cola", "--output_dir", "out"])


def test_seed_and_seeds(tmp_path: Path) -> None:
    def seeds(**given: Any) -> list[int]:
        return RunArguments(output_dir=str(tmp_path), use_cpu=True, **given).seeds

    assert seeds() == [42] and seeds(seed=3) == [3] and seeds(seeds=[1, 2]) == [1, 2]
    assert seeds(seed=1, seeds=[1, 2]) == [1, 2]


def test_a_key_that_is_given_twice_is_refused(file: Any) -> None:
    with pytest.raises(ValueError, match="the key 'task' is given twice"):
        parse(file("task: cola\nrate: 0.2\ntask: rte\n"))
