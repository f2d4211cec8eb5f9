"""Loading tasks known by name from folders, a stand-in for the Hub, and the generator."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from modeling_hire.data.arguments import DataArguments
from modeling_hire.data.loading import HubUnreachableError, load_task_data
from modeling_hire.data.tasks import GLUE_TASKS, TASKS


RTE = [{"sentence1": "a", "sentence2": "b", "label": 0}, {"sentence1": "c", "sentence2": "d", "label": 1}]
STSB = [{"sentence1": "a", "sentence2": "b", "label": 0.5}, {"sentence1": "c", "sentence2": "d", "label": 5}]
SNLI = [{"premise": "p", "hypothesis": str(n), "label": n} for n in (0, -1, 2, -1, 1)]

# Rows of (train, each evaluation split, each test split), from the data's own description.
SIZES = {
    "cola": (8551, [1043], []),
    "sst2": (67349, [872], []),
    "mrpc": (3668, [408], [1725]),
    "stsb": (5749, [1500], [694]),
    "qqp": (8872, [984], []),
    "mnli": (9999, [1000, 1000], []),
    "qnli": (9999, [5463], []),
    "rte": (2490, [277], []),
    "wnli": (635, [71], []),
    "snli": (11968, [9842], [9824]),
    "sst5": (8544, [1101], [1105]),
    "trec": (5452, [500], [500]),
}


def load(task, directory=None, evaluation_only=False, **kwargs):
    directory = None if directory is None else str(directory)
    return load_task_data(DataArguments(task=task, dataset_dir=directory, **kwargs), evaluation_only)


# ---- the real data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SIZES)
def test_real_data(shared_data, task):
    data = load(task, shared_data / "glue" if task in GLUE_TASKS else shared_data)
    spec = TASKS[task]
    assert data.spec is spec
    sizes = len(data.train), [len(d) for d in data.evaluation.values()], [len(d) for d in data.test.values()]
    assert sizes == SIZES[task]
    assert tuple(data.evaluation) == spec.evaluation_splits
    for dataset in (data.train, *data.evaluation.values(), *data.test.values()):
        assert dataset.column_names == ["text", *["text_pair"] * (len(spec.text_columns) == 2), "label", "idx"]
        labels = np.array(dataset["label"][:])
        if spec.is_regression:
            assert labels.dtype == np.float64 and labels.min() >= 0 and labels.max() <= 5
        else:
            assert set(labels.tolist()) == set(range(spec.num_labels))
    assert any("only a part" in note for note in data.notes) == (task in ("stsb", "sst5"))
    assert any("TREC has no validation split" in note for note in data.notes) == (task == "trec")


def test_the_tasks_own_folder_will_do_too(shared_data):
    assert len(load("wnli", shared_data / "glue" / "wnli").train) == 635


def test_real_data_from_one_folder_too_high(shared_data):
    with pytest.raises(ValueError, match="has no folder 'rte' and no files.* Did you mean '.*glue'"):
        load("rte", shared_data)


# ---- folders --------------------------------------------------------------------------------------------------------


def folder(write, rows=RTE, task="rte", **splits):
    splits = splits or {"train": rows, "validation": rows}
    for split, content in splits.items():
        path = write(f"{task}/{split}.jsonl", content)
    return path.rsplit("/", 2)[0]


def test_snli_rows_without_a_gold_label_are_dropped_and_counted(write):
    data = load("snli", folder(write, task="snli", train=SNLI, validation=SNLI[:1], test=SNLI[1:3]))
    assert data.train.to_dict() == {
        "text": ["p"] * 3,
        "text_pair": ["0", "2", "1"],
        "label": [0, 2, 1],
        "idx": [0, 2, 4],
    }
    assert data.test["test"]["label"][:] == [2]
    assert [note for note in data.notes if "without a gold label" in note] == [
        f"{data_path(write, 'snli/train.jsonl')}: 2 rows without a gold label were left out, 3 remain.",
        f"{data_path(write, 'snli/test.jsonl')}: 1 rows without a gold label were left out, 1 remain.",
    ]


def data_path(write, name):
    return write("x", "").rsplit("/", 1)[0] + f"/{name}"


def test_hidden_test_labels_are_left_out(write):
    hidden = [{**row, "label": -1} for row in RTE]
    no_column = [{k: v for k, v in row.items() if k != "label"} for row in RTE]
    for test in (hidden, no_column):
        data = load("rte", folder(write, train=RTE, validation=RTE, test=test))
        assert data.test["test"].column_names == ["text", "text_pair", "idx"]
    scores = [{**row, "label": -1.0} for row in STSB]
    data = load("stsb", folder(write, task="stsb", train=STSB, validation=STSB, test=scores))
    assert "label" not in data.test["test"].column_names


def test_labels_may_be_given_by_name_or_as_text(write):
    named = [{**row, "label": name} for row, name in zip(RTE, ("Not_Entailment", "entailment"), strict=True)]
    assert load("rte", folder(write, named)).train["label"][:] == [1, 0]
    write("rte2/train.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n")
    path = write("rte2/validation.tsv", "sentence1\tsentence2\tlabel\na\tb\t1.0\n")
    data = load("rte", path.rsplit("/", 1)[0])
    assert data.train["label"][:] == [1, 0]
    assert data.evaluation["validation"]["label"][:] == [1]


def test_mnli_with_one_evaluation_split(write):
    rows = [{"premise": "p", "hypothesis": "h", "label": n} for n in range(3)]
    data = load("mnli", folder(write, task="mnli", train=rows, validation_matched=rows))
    assert list(data.evaluation) == ["validation_matched"]
    assert any("no validation_mismatched split" in note for note in data.notes)


def test_evaluation_only_reads_no_training_data(write):
    data = load("rte", folder(write, validation=RTE), evaluation_only=True)
    assert data.train is None and len(data.evaluation["validation"]) == 2
    assert load("rte", folder(write, task="r/rte", test=RTE), evaluation_only=True).evaluation == {}


@pytest.mark.parametrize(
    "task, rows, message",
    [
        ("rte", [{**RTE[0], "label": 2}], r"row 1 has the label 2: rte has 0 \(entailment\), 1 \(not_entailment\)"),
        ("rte", [RTE[0], {**RTE[0], "label": "neutral"}], "row 2 has the label 'neutral': rte has"),
        ("rte", [RTE[0], {**RTE[0], "label": 0.5}], "row 2 has the label 0.5: rte has"),
        ("rte", [RTE[0], {**RTE[0], "label": True}], "row 2 has the label True: rte has"),
        ("rte", [RTE[0], {**RTE[0], "label": None}], "row 2 holds None where a label should be"),
        ("rte", [RTE[0], {**RTE[0], "label": -1}], "row 2 holds -1 where a label should be"),
        ("rte", [{**RTE[0], "label": -1}], r"all labels are hidden \(-1\), it can only be predicted on"),
        ("rte", [{"sentence1": "a", "label": 0}], r"no column 'sentence2'.* Did you mean 'sentence1'\?"),
        ("rte", [{"sentence1": "a", "sentence2": "b", "gold": 0}], "no column 'label'; its columns are"),
        ("rte", [{**RTE[0], "sentence2": None}], r"row 1: column 'sentence2' holds None \(NoneType\) where text"),
        ("stsb", [STSB[0], {**STSB[0], "label": float("nan")}], "row 2 holds nan where a score should be"),
        ("stsb", [STSB[0], {**STSB[0], "label": float("inf")}], "row 2 holds inf where a score should be"),
        ("stsb", [STSB[0], {**STSB[0], "label": None}], "row 2 holds None where a score should be"),
        ("stsb", [STSB[0], {**STSB[0], "label": "high"}], "row 2 holds 'high' where a score should be"),
        ("stsb", [STSB[0], {**STSB[0], "label": 5.5}], "row 2 holds the score 5.5: stsb has scores from 0.0 to 5.0"),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_bad_rows(write, task, rows, message, split):
    good = RTE if task == "rte" else STSB
    root = folder(write, task=task, **{"train": good, "validation": good, split: rows})
    with pytest.raises(ValueError, match=rf"{split}\.jsonl.*{message}"):
        load(task, root)


def test_bad_folders(write, tmp_path):
    with pytest.raises(ValueError, match="dataset_dir='/no/where' is not a folder"):
        load("rte", "/no/where")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match="has no folder 'rte' and no files such as 'train.jsonl' or 'validation.jsonl.gz'"
    ):
        load("rte", tmp_path / "empty")
    root = folder(write, RTE)
    with pytest.raises(ValueError, match="is the folder of task 'rte', but task='mrpc'"):
        load("mrpc", f"{root}/rte")
    with pytest.raises(ValueError, match="has no train split for rte"):
        load("rte", folder(write, task="no_train/rte", validation=RTE))
    with pytest.raises(ValueError, match="has no split to evaluate rte on: expected 'validation'"):
        load("rte", folder(write, task="no_val/rte", train=RTE))
    shutil.copy(f"{root}/rte/train.jsonl", f"{root}/rte/train.json")
    with pytest.raises(ValueError, match=r"several files for the split 'train': 'train.jsonl', 'train.json'"):
        load("rte", root)


# ---- the Hub, played by a function ----------------------------------------------------------------------------------


def test_hub_splits_are_normalised_and_labels_go_by_name(monkeypatch):
    calls = []
    # A copy whose label ids are the other way round from GLUE's.
    features = Features(
        {
            "sentence1": Value("string"),
            "sentence2": Value("string"),
            "label": ClassLabel(names=["not_entailment", "entailment"]),
            "idx": Value("int32"),
        }
    )

    def split(labels, start):
        size = len(labels)
        columns = {"sentence1": ["a"] * size, "sentence2": ["b"] * size, "label": labels}
        return Dataset.from_dict({**columns, "idx": list(range(start, start + size))}, features=features)

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return DatasetDict(train=split([0, 1], 0), validation=split([1], 10), test=split([-1, -1], 20))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load("rte", dataset_revision="abc")
    assert calls == [(("nyu-mll/glue", "rte"), {"revision": "abc"})]
    assert data.train.to_dict() == {"text": ["a", "a"], "text_pair": ["b", "b"], "label": [1, 0], "idx": [0, 1]}
    assert data.evaluation["validation"]["label"][:] == [0]
    assert data.test["test"].to_dict() == {"text": ["a", "a"], "text_pair": ["b", "b"], "idx": [20, 21]}


def test_hub_labels_of_another_set_are_refused(monkeypatch):
    features = Features({"sentence": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    split = Dataset.from_dict({"sentence": ["a"], "label": [0]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: DatasetDict(train=split, validation=split))
    with pytest.raises(ValueError, match=r"nyu-mll/glue \(sst2\), split train, row 1 has the label 'bad': sst2 has 0"):
        load("sst2")


def test_hub_copies_of_sst5_and_trec_name_their_columns_differently(monkeypatch):
    sst5 = Dataset.from_dict({"text": ["a", "b"], "label": [4, 0], "label_text": ["very positive", "very negative"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: DatasetDict(train=sst5, validation=sst5, test=sst5))
    assert load("sst5").train.to_dict() == {"text": ["a", "b"], "label": [4, 0], "idx": [0, 1]}

    calls = []

    def load_trec(path, config, revision):
        calls.append(revision)
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found trec.py")
        trec = Dataset.from_dict({"text": ["a", "b"], "label-coarse": [5, 0], "label-fine": [3, 1]})
        return DatasetDict(train=trec, test=trec)

    monkeypatch.setattr(datasets, "load_dataset", load_trec)
    assert load("trec").evaluation["test"]["label"][:] == [5, 0]
    assert calls == [None, "refs/convert/parquet"]
    with pytest.raises(ValueError, match="CogComp/trec could not be loaded .*revision='x'"):
        monkeypatch.setattr(datasets, "load_dataset", lambda *a, revision: load_trec("", None, None))
        load("trec", dataset_revision="x")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'nyu-mll/glue' on the Hub (OfflineModeIsEnabled)"),
        type("ConnectError", (type("TransportError", (Exception,), {}),), {})("name not known"),
        TimeoutError("too slow"),
    ],
)
def test_no_network(monkeypatch, error):
    def load_dataset(*args, **kwargs):
        raise RuntimeError("wrapped") from error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = (
        r"No connection to the Hub, and nyu-mll/glue \(rte\) is not in the local cache.*--dataset_dir.*--train_file"
    )
    with pytest.raises(HubUnreachableError, match=message) as caught:
        load("rte")
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, ConnectionError)


def test_no_network_for_real(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(HubUnreachableError, match="No connection to the Hub.*--dataset_dir"):
        load("snli")
    assert list(tmp_path.iterdir()) == []


def test_other_hub_errors_are_passed_on_with_the_local_options(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise KeyError("odd")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match=r"nyu-mll/glue \(rte\) could not be loaded .*KeyError: 'odd'.*--train_file"):
        load("rte")


# ---- generated ------------------------------------------------------------------------------------------------------


def test_the_generated_task_uses_the_sample_seed(monkeypatch):
    def generate_acceptability(num_train=4000, num_validation=500, seed=0):
        rows = [{"sentence": f"s{i} {seed}", "label": i % 2, "phenomenon": "x", "idx": i} for i in range(6)]
        return {"train": rows, "validation": rows[:2]}

    fake = types.ModuleType("acceptability")
    fake.generate_acceptability = generate_acceptability
    monkeypatch.setitem(sys.modules, "modeling_hire.data.acceptability", fake)
    data = load("acceptability", sample_seed=3, max_eval_samples=1)
    assert data.train["text"][:] == [f"s{i} 3" for i in range(6)]
    assert (len(data.evaluation["validation"]), data.test) == (1, {})
    assert any("generated by a grammar" in note for note in data.notes)


def test_the_generated_task_for_real():
    data = load("acceptability", max_train_samples=100)
    assert len(data.train) == 100 and set(data.train["label"][:]) == {0, 1}
    assert len(data.evaluation["validation"]) == 500


def test_a_label_in_evaluation_that_training_never_saw_is_refused(write):
    folder = Path(write("snli/train.jsonl", [row for row in SNLI if row["label"] != 1])).parent
    write("snli/validation.jsonl", SNLI)
    with pytest.raises(
        ValueError, match=r"validation.jsonl has rows with the label 'neutral', which .*train.jsonl does"
    ):
        load("snli", folder)
    assert load("snli", folder, evaluation_only=True).evaluation["validation"].num_rows == 3


def test_classes_that_a_cap_leaves_out_are_told(write):
    folder = Path(write("snli/train.jsonl", SNLI * 3)).parent
    write("snli/validation.jsonl", SNLI)
    notes = load("snli", folder, max_train_samples=1).notes
    told = [note for note in notes if "max_train_samples=1 leaves no row of " in note]
    assert len(told) == 1 and sum(name in told[0] for name in ("entailment", "neutral", "contradiction")) == 2
    assert not any("leaves no row" in note for note in load("snli", folder).notes)


@pytest.mark.parametrize(("task", "rows", "what"), [("rte", RTE, "class, 'entailment'"), ("stsb", STSB, "score, 0.5")])
def test_training_data_with_nothing_to_learn_is_refused(write, task, rows, what):
    folder = Path(write(f"{task}/train.jsonl", rows[:1] * 3)).parent
    write(f"{task}/validation.jsonl", rows)
    with pytest.raises(ValueError, match=f"train.jsonl holds only one {what}: there is nothing to learn"):
        load(task, folder)
