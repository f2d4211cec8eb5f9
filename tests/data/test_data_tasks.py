"""The table of tasks."""

from __future__ import annotations

import pytest

from modeling_hire.data.tasks import GLUE_TASKS, TASKS, TaskSpec, get_task
from modeling_hire.evaluation.glue import METRICS


# GLUE's own table: task -> (columns, labels, metrics).
GLUE = {
    "cola": (("sentence",), 2, ("matthews_correlation",)),
    "sst2": (("sentence",), 2, ("accuracy",)),
    "mrpc": (("sentence1", "sentence2"), 2, ("accuracy", "f1")),
    "stsb": (("sentence1", "sentence2"), 1, ("pearson", "spearman")),
    "qqp": (("question1", "question2"), 2, ("accuracy", "f1")),
    "mnli": (("premise", "hypothesis"), 3, ("accuracy",)),
    "qnli": (("question", "sentence"), 2, ("accuracy",)),
    "rte": (("sentence1", "sentence2"), 2, ("accuracy",)),
    "wnli": (("sentence1", "sentence2"), 2, ("accuracy",)),
}


def test_the_nine_glue_tasks_are_as_glue_defines_them():
    assert set(GLUE_TASKS) == set(GLUE)
    for name, (columns, num_labels, metrics) in GLUE.items():
        spec = get_task(name)
        assert (spec.text_columns, spec.num_labels, spec.metrics) == (columns, num_labels, metrics)
        assert (spec.hub_path, spec.hub_config) == ("nyu-mll/glue", name)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_consistent(name):
    spec = TASKS[name]
    assert spec.name == name
    assert set(spec.metrics) <= set(METRICS)
    assert spec.is_regression == (spec.label_names is None)
    assert set(spec.submission_files) == set(spec.test_splits)
    assert ("f1" not in spec.metrics) or spec.num_labels == 2
    assert hash(spec) == hash(TASKS[name])


def test_submission_files_are_glues():
    files = {name for task in GLUE_TASKS for name in TASKS[task].submission_files.values()}
    assert files == {f"{t}.tsv" for t in "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI".split()}


def test_main_metrics():
    mains = {name: spec.main_metric for name, spec in TASKS.items()}
    assert mains["cola"] == mains["acceptability"] == "matthews_correlation"
    assert {name for name, main in mains.items() if main == "combined_score"} == {"mrpc", "qqp", "stsb"}


@pytest.mark.parametrize("name", ["STS-B", "stsb", "sts_b", "STSB"])
def test_spelling_of_a_task_does_not_matter(name):
    assert get_task(name).name == "stsb"


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"task='mrcp' is not known: expected one of 'cola'.*Did you mean 'mrpc'\?"):
        get_task("mrcp")
    with pytest.raises(ValueError, match="not known") as caught:
        get_task("zzz")
    assert "Did you mean" not in str(caught.value)


def test_a_spec_checks_itself():
    with pytest.raises(ValueError, match=r"text_columns=\(\) of task 'x': expected 1 or 2"):
        TaskSpec("x", "X", (), None, ("pearson",), "pearson")
    with pytest.raises(ValueError, match="main_metric='combined_score' of task 'x': expected one of 'pearson'$"):
        TaskSpec("x", "X", ("a",), None, ("pearson",), "combined_score")
    with pytest.raises(ValueError, match="submission_labels=.*expected one for each"):
        TaskSpec("x", "X", ("a",), ("n", "y"), ("accuracy",), "accuracy", submission_labels=("n",))
