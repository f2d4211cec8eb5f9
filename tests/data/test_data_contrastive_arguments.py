"""The data part of `run_contrastive.py`'s command line, and which columns of a table it means."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.data.contrastive_columns import find_score_columns, find_text_columns
from modeling_hire.data.contrastive_sources import TEXT_SUFFIXES
from modeling_hire.data.readers import SUFFIXES, Table
from modeling_hire.training.yaml_arguments import YamlArgumentParser


CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs" / "contrastive").rglob("*.yaml"))


def parse(*argv: str) -> ContrastiveArguments:
    return YamlArgumentParser([ContrastiveArguments]).parse(argv)[0]


def table(*columns: str, **values: list[Any]) -> Table:
    return Table({**{name: ["some text", "more text"] for name in columns}, **values}, "rows.jsonl")


def test_defaults_and_the_command_line() -> None:
    args = parse("--train_file", "a.jsonl", "b.csv", "--validation_file", "c.csv", "--score_range", "0", "5")
    assert args.scheme == "supervised" and args.max_length == 32 and args.sample_seed == 0
    assert args.train_file == ["a.jsonl", "b.csv"] and args.score_range == [0, 5]
    assert args.has_training and args.has_evaluation
    assert not parse("--test_file", "c.csv").has_training


def test_one_name_is_a_list_of_one() -> None:
    args = ContrastiveArguments(scheme="hybrid", train_file=Path("a.jsonl"), unlabelled_file="b.txt")
    assert args.train_file == ["a.jsonl"] and args.unlabelled_file == ["b.txt"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "No data named: give train_file, dataset_name or dataset_dir"),
        ({"scheme": "unsup", "train_file": "a"}, "scheme='unsup': allowed is one of 'supervised', 'self_supervised'"),
        ({"scheme": None, "train_file": "a"}, "scheme=None: allowed is one of"),
        ({"train_file": "a", "dataset_dir": "b"}, r"train_file=\['a'\] cannot be combined with dataset_dir='b'"),
        ({"dataset_name": "a/b", "dataset_dir": "b"}, "dataset_name='a/b' cannot be combined with dataset_dir='b'"),
        ({"dataset_config": "x", "train_file": "a"}, "dataset_config='x' needs dataset_name"),
        ({"dataset_revision": "x", "train_file": "a"}, "dataset_revision='x' needs dataset_name"),
        ({"validation_file": "a", "validation_dir": "b"}, "validation_file='a' cannot be combined with validation_di"),
        ({"train_file": "a", "unlabelled_file": "b"}, r"unlabelled_file=\['b'\] is for scheme='hybrid', not"),
        (
            {"scheme": "self_supervised", "train_file": "a", "unlabelled_file": "b"},
            "not scheme='self_supervised': give the texts as train_file",
        ),
        ({"scheme": "hybrid", "test_file": "a", "unlabelled_file": "b"}, r"unlabelled_file=\['b'\] needs train_file"),
        ({"test_file": "a", "text_columns": ["a", "b"]}, r"text_columns=\['a', 'b'\] needs train_file"),
        ({"train_file": "a", "text_columns": ["x"]}, r"text_columns=\['x'\]: .* needs at least two"),
        ({"train_file": "a", "text_columns": ["x", "x"]}, r"text_columns=\['x', 'x'\]: the names must differ"),
        ({"train_file": []}, r"train_file=\[\]: expected one or several names"),
        ({"train_file": ["a", 3]}, "train_file=3: expected a name, not int"),
        ({"train_file": 3}, "train_file=3: expected one or several names"),
        ({"dataset_dir": ""}, "dataset_dir='': expected a name"),
        ({"validation_file": ["a"]}, r"validation_file=\['a'\]: expected a name, not list"),
        ({"test_file": "a", "validation_columns": ["x", "y"]}, "expected three names"),
        ({"train_file": "a", "validation_columns": ["x", "y", "z"]}, "needs validation_file, validation_dir or test_"),
        ({"test_file": "a", "validation_columns": ["x", "y", "x"]}, "the names must differ"),
        ({"test_file": "a", "score_range": [5, 0]}, r"score_range=\[5, 0\]: expected two numbers, the lowest"),
        ({"test_file": "a", "score_range": [0]}, r"score_range=\[0\]: expected two numbers"),
        ({"test_file": "a", "score_range": [0, float("nan")]}, "score_range=.*: expected two numbers"),
        ({"test_file": "a", "score_range": 5}, "score_range=5: expected two numbers"),
        ({"train_file": "a", "max_length": 0}, "max_length=0: expected a whole number of at least 1"),
        ({"train_file": "a", "max_length": None}, "max_length=None: expected a whole number"),
        ({"train_file": "a", "max_train_samples": 0}, "max_train_samples=0: expected a whole number of at least 1"),
        ({"train_file": "a", "max_eval_samples": 2.0}, "max_eval_samples=2.0: expected a whole number"),
        ({"train_file": "a", "sample_seed": -1}, "sample_seed=-1: expected a whole number of at least 0"),
        ({"train_file": "a", "preprocessing_num_workers": True}, "preprocessing_num_workers=True: expected"),
    ],
)
def test_wrong_values(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ContrastiveArguments(**given)


def test_misspelt_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown key 'validaton_file'\. Did you mean 'validation_file'\?"):
        parse("--train_file", "a.jsonl", "--validaton_file", "b.jsonl")
    path = tmp_path / "some.yaml"
    path.write_text("train_fiel: a.jsonl")
    with pytest.raises(ValueError, match=r"unknown key 'train_fiel'\. Did you mean 'train_file'\?"):
        parse(str(path))


def test_the_help_names_every_format() -> None:
    said = ContrastiveArguments.__dataclass_fields__["train_file"].metadata["help"]
    assert all(suffix.removesuffix(".gz") in said for suffix in (*SUFFIXES, *TEXT_SUFFIXES))


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (("anchor", "positive"), ["anchor", "positive"]),
        (("negative", "idx", "positive", "anchor", "label"), ["anchor", "positive", "negative"]),
        (("anchor", "positive", "negative_10", "negative_2"), ["anchor", "positive", "negative_2", "negative_10"]),
        (("anchor", "positive", "negative_1", "negative"), ["anchor", "positive", "negative", "negative_1"]),
        (("query", "positive", "negative1"), ["query", "positive", "negative1"]),
        (("sent0", "sent1", "hard_neg"), ["sent0", "sent1", "hard_neg"]),
        (("Sent1", "SENT0"), ["SENT0", "Sent1"]),
        (("premise", "hypothesis", "entailment", "contradiction"), ["premise", "entailment", "contradiction"]),
        (("query", "pos", "neg", "id"), ["query", "pos", "neg"]),
        (("sentence1", "sentence2", "idx"), ["sentence1", "sentence2"]),
        (("question1", "question2", "qid1"), ["question1", "question2"]),
    ],
)
def test_text_columns_by_name(columns: tuple[str, ...], found: list[str]) -> None:
    chosen, note = find_text_columns(table(*columns), supervised=True)
    assert chosen == found
    # A text that is left out is named.
    assert (note is not None) == ("hypothesis" in columns)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("a", "b"), "no columns have names of an anchor and a positive .* give text_columns .* from 'a', 'b'"),
        (("anchor", "negative"), "no columns have names of an anchor and a positive"),
        (("anchor", "query", "positive"), r"several columns may be .*\('anchor', 'positive', 'query'\); give text_c"),
        (("anchor", "positive", "sentence1", "sentence2"), "several columns may be the anchor and the positive"),
        (("question1", "question2", "is_duplicate"), "the pairs 'question1', 'question2' have the label 'is_duplicat"),
        (("sentence1", "sentence2", "score"), r".* have the label 'score'.*text_columns=\['sentence1', 'sentence2'\]"),
        (("sentence1", "sentence2", "relatedness_score"), ".* have the label 'relatedness_score'"),
        (("premise", "hypothesis", "label"), ".* have the label 'label', so not all of them mean the same"),
    ],
)
def test_text_columns_that_are_not_clear(columns: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=f"rows.jsonl: {said}"):
        find_text_columns(table(*columns), supervised=True)


def test_named_text_columns() -> None:
    rows = table("question1", "question2", "is_duplicate")
    assert find_text_columns(rows, True, ["question1", "question2"])[0] == ["question1", "question2"]
    with pytest.raises(ValueError, match=r"no column 'question3'; .* Did you mean 'question2'\?"):
        find_text_columns(rows, True, ["question1", "question3"])


@pytest.mark.parametrize(
    ("columns", "found", "noted"),
    [
        (("text",), ["text"], None),
        (("Sentence", "label", "score"), ["Sentence"], None),
        (("anchor", "positive", "negative"), ["anchor"], "those of 'positive', 'negative' are not"),
        (("sentence1", "sentence2", "label"), ["sentence1"], "those of 'sentence2' are not"),
        (("review", "label"), ["review"], None),
        (("whatever", "idx"), ["whatever"], None),
    ],
)
def test_single_column(columns: tuple[str, ...], found: list[str], noted: str | None) -> None:
    names, note = find_text_columns(table(*columns), supervised=False)
    assert names == found and (note is None if noted is None else noted in note)


@pytest.mark.parametrize("columns", [("text", "sentence"), ("anchor", "positive", "text"), ("one", "two")])
def test_single_column_that_is_not_clear(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="text_columns, one or more of"):
        find_text_columns(table(*columns), supervised=False)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (("sentence1", "sentence2", "label", "idx"), ("sentence1", "sentence2", "label")),
        (("score", "sentence1", "sentence2", "genre"), ("sentence1", "sentence2", "score")),
        (
            ("sentence_A", "sentence_B", "label", "relatedness_score"),
            ("sentence_A", "sentence_B", "relatedness_score"),
        ),
        (("text1", "text2", "Similarity"), ("text1", "text2", "Similarity")),
    ],
)
def test_score_columns_by_name(columns: tuple[str, ...], found: tuple[str, str, str]) -> None:
    assert find_score_columns(table(*columns)) == found


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            ("a", "b", "score"),
            "'sentence1' and 'sentence2' are expected; no columns look like them; give validation_c",
        ),
        (("sentence1", "sentence2"), "no column looks like the score; give validation_columns"),
        (("sentence1", "sentence2", "score", "label"), r"several columns may be the score \('score', 'label'\)"),
        (("sentence1", "sentence2", "text1", "text2", "label"), "several columns may be the sentences"),
    ],
)
def test_score_columns_that_are_not_clear(columns: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_score_columns(table(*columns))


def test_named_score_columns() -> None:
    assert find_score_columns(table("x", "y", "z"), ["y", "x", "z"]) == ("y", "x", "z")
    with pytest.raises(ValueError, match="no column 'w'"):
        find_score_columns(table("x", "y", "z"), ["y", "x", "w"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_data_part_of_every_config(path: Path) -> None:
    names = {field.name for field in dataclasses.fields(ContrastiveArguments)}
    values = {name: value for name, value in yaml.safe_load(path.read_text("utf-8")).items() if name in names}
    args = ContrastiveArguments(**values)
    assert args.scheme == path.stem and args.has_training and args.has_evaluation
    assert (args.unlabelled_file is not None) == (args.scheme == "hybrid")


def test_there_are_configs_of_every_scheme() -> None:
    folder = Path("contrastive")
    expected = [
        folder / size / f"{s}.yaml" for size in (".", "minilm") for s in ("supervised", "self_supervised", "hybrid")
    ]
    assert {Path(*path.parts[path.parts.index("contrastive") :]) for path in CONFIGS} == set(expected)
