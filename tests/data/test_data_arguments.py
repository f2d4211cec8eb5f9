"""The data part of the command line."""

from __future__ import annotations

from dataclasses import fields

import pytest
from transformers import HfArgumentParser, TrainingArguments

from modeling_hire.data.arguments import DataArguments


def test_no_field_clashes_with_the_training_arguments():
    ours, theirs = ({f.name for f in fields(cls)} for cls in (DataArguments, TrainingArguments))
    assert not ours & theirs


def test_every_field_has_help():
    assert all(f.metadata.get("help") for f in fields(DataArguments))


def test_parses_from_a_command_line_beside_the_training_arguments(tmp_path):
    parser = HfArgumentParser([DataArguments, TrainingArguments])
    line = f"--task rte --max_train_samples 10 --sample_seed 3 --output_dir {tmp_path}"
    data, _ = parser.parse_args_into_dataclasses(line.split())
    assert (data.task, data.max_train_samples, data.sample_seed, data.max_length) == ("rte", 10, 3, 128)


def test_spelling_of_the_task_is_settled():
    assert DataArguments(task="SST-2").task == "sst2"


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({}, "No data named: give task .* or train_file"),
        ({"task": "rte", "train_file": "a.csv"}, r"train_file='a.csv' is for your own files .* task='rte'"),
        ({"task": "rte", "validation_file": "a.csv"}, "validation_file='a.csv' is for your own files"),
        ({"task": "rte", "text_column": "a"}, "text_column='a' is for your own files"),
        ({"task": "rte", "label_column": "a"}, "label_column='a' is for your own files"),
        (
            {"train_file": "a.csv", "dataset_dir": "d"},
            "dataset_dir='d' is for a task known by name .* train_file='a.csv'",
        ),
        ({"train_file": "a.csv", "dataset_revision": "main"}, "dataset_revision='main' is for a task known by name"),
        (
            {"task": "rte", "dataset_dir": "d", "dataset_revision": "x"},
            "dataset_revision='x' is for a dataset on the Hub",
        ),
        ({"task": "rtf"}, r"task='rtf' is not known.*Did you mean 'rte'\?"),
        ({"train_file": "a.csv", "text_pair_column": "b"}, "text_pair_column='b' needs text_column"),
        ({"train_file": "a.csv", "text_column": "b", "label_column": "b"}, "must differ"),
        ({"task": "rte", "max_length": 0}, "max_length=0: expected a whole number of at least 1"),
        ({"task": "rte", "max_length": None}, "max_length=None: expected"),
        ({"task": "rte", "max_length": "128"}, "max_length='128': expected"),
        ({"task": "rte", "max_train_samples": -1}, "max_train_samples=-1: expected"),
        ({"task": "rte", "max_eval_samples": 0}, "max_eval_samples=0: expected"),
        ({"task": "rte", "max_predict_samples": 1.5}, "max_predict_samples=1.5: expected"),
        ({"task": "rte", "max_train_samples": True}, "max_train_samples=True: expected"),
        ({"task": "rte", "sample_seed": -1}, "sample_seed=-1: expected a whole number of at least 0"),
        ({"task": "rte", "sample_seed": None}, "sample_seed=None: expected"),
        ({"task": "rte", "preprocessing_num_workers": 0}, "preprocessing_num_workers=0: expected"),
    ],
)
def test_wrong_values(kwargs, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**kwargs)


def test_evaluation_files_alone_are_allowed():
    assert DataArguments(test_file="a.csv").train_file is None
