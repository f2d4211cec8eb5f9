"""Questions from every kind of file, what is refused, and the datasets of windows made of them."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from tiny_models import tiny_tokenizer
from tiny_squad import nested, questions, write_folder, write_squad

from modeling_hire.data.sources import HubUnreachableError
from modeling_hire.data.spans import make_windows
from modeling_hire.data.squad import load_squad
from modeling_hire.data.squad_arguments import SquadArguments
from modeling_hire.data.squad_windows import SpanCollator, read_windows, window_dataset


ROWS = questions(7)
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def columns(answers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A CSV file with the columns of the first row."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_file(kind: str, folder: Path) -> Path:
    """The same rows in one of the forms that are read."""
    flat = [{**row, "title": "t", "answers": columns(row["answers"])} for row in ROWS]
    path = folder / f"dev.{kind.split()[0]}"
    if kind in ("json", "json.gz"):
        return write_squad(path, ROWS)
    if kind == "json flat":
        path.write_text(json.dumps({"data": flat}))
    elif kind == "json list":
        path.write_text(json.dumps(ROWS))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in flat))
    elif kind == "jsonl single":
        single = [{**row, "answers": None} for row in ROWS]
        for row in single:
            first = ROWS[int(row["id"][1:])]["answers"][:1]
            row.pop("answers")
            row |= {"answer": first[0]["text"], "answer_start": first[0]["answer_start"]} if first else {"answer": ""}
        path.write_text("".join(json.dumps(row) + "\n" for row in single))
    elif kind == "csv":
        write_table(path, [{**row, "answers": json.dumps(row["answers"])} for row in flat])
    elif kind == "csv single":
        rows = []
        for row in ROWS:
            first = (row["answers"] or [{"text": "", "answer_start": ""}])[0]
            plain = {name: row[name] for name in ("id", "context", "question")}
            rows.append({**plain, "answer": first["text"], "answer_start": first["answer_start"]})
        write_table(path, rows)
    elif kind == "parquet":
        Dataset.from_list(flat).to_parquet(path)
    return path


KINDS = ("json", "json.gz", "json flat", "json list", "jsonl", "jsonl single", "csv", "csv single", "parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file(kind: str, tmp_path: Path) -> None:
    path = as_file(kind, tmp_path)
    args = SquadArguments(validation_file=[str(path)], version_2_with_negative=True)
    data = load_squad(args, evaluation_only=True)
    found = data.evaluation["validation"].to_list()
    for row, expected in zip(found, ROWS, strict=True):
        answers = expected["answers"][:1] if "single" in kind else expected["answers"]
        assert row["texts"] == [answer["text"] for answer in answers]
        assert row["starts"] == [answer["answer_start"] for answer in answers]
        assert {name: row[name] for name in ("id", "context", "question")} == {
            name: expected[name] for name in ("id", "context", "question")
        }
    assert data.version_2 and data.spec.title == "dev" and data.spec.hub_path is None and data.train is None


def test_training_files_are_joined(tmp_path: Path) -> None:
    files = [write_squad(tmp_path / "a.json", questions(3, 1)), write_squad(tmp_path / "b.json.gz", questions(4, 2))]
    dev = write_squad(tmp_path / "dev.json", ROWS)
    names = {"train_file": [str(file) for file in files], "validation_file": [str(dev)]}
    data = load_squad(SquadArguments(task="squad_v2", max_train_samples=5, **names))
    whole = load_squad(SquadArguments(task="squad_v2", **names))
    assert whole.train["id"][:] == [row["id"] for row in (*questions(3, 1), *questions(4, 2))]
    kept = data.train["id"][:]
    assert len(kept) == 5 and kept == [name for name in whole.train["id"] if name in kept]
    assert any("max_train_samples keeps 5 of 7" in note for note in data.notes)
    assert data.spec.title == "SQuAD 2.0" and data.spec.hub_path == "rajpurkar/squad_v2"


@pytest.mark.parametrize("train", ["train.json", "train.json.gz", "train-v2.0.json", "train.jsonl"])
@pytest.mark.parametrize("dev", ["dev.json", "dev.json.gz", "dev-v2.0.json", "validation.json"])
def test_folder(train: str, dev: str, tmp_path: Path) -> None:
    if train.endswith("jsonl"):
        (tmp_path / train).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        write_squad(tmp_path / train, ROWS)
    write_squad(tmp_path / dev, questions(2, 3))
    data = load_squad(SquadArguments(dataset_dir=str(tmp_path), version_2_with_negative=True))
    assert len(data.train) == 7 and len(data.evaluation["validation"]) == 2 and not data.test


def test_folder_of_a_task(tmp_path: Path) -> None:
    write_folder(tmp_path / "squad_v2")
    for root in (tmp_path, tmp_path / "squad_v2"):
        data = load_squad(SquadArguments(task="SQuAD-v2", dataset_dir=str(root)))
        assert data.version_2 and len(data.train) == 24
    with pytest.raises(ValueError, match="folder of task 'squad_v2', but task='squad_v1'"):
        load_squad(SquadArguments(task="squad_v1", dataset_dir=str(tmp_path / "squad_v2")))


def test_answers_of_a_test_file_are_not_looked_at(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in ("id", "context", "question")} for row in ROWS]
    (tmp_path / "test.json").write_text(json.dumps(rows))
    wrong = copy.deepcopy(ROWS)
    wrong[0]["answers"][0]["answer_start"] = 7000
    write_squad(tmp_path / "wrong.json", wrong)
    for name in ("test.json", "wrong.json"):
        data = load_squad(SquadArguments(test_file=[str(tmp_path / name)]), evaluation_only=True)
        assert data.test["test"].column_names == ["id", "context", "question"] and len(data.test["test"]) == 7


def test_the_hub_without_a_network() -> None:
    with pytest.raises(HubUnreachableError, match="rajpurkar/squad_v2 .*--dataset_dir"):
        load_squad(SquadArguments(task="squad_v2"))


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as the Hub's datasets hold them."""
    rows = Dataset.from_list([{**row, "title": "t", "answers": columns(row["answers"])} for row in ROWS])
    asked = []

    def load(spec: Any, revision: str | None) -> dict[str, Dataset]:
        asked.append((spec.hub_path, revision))
        return {"train": rows, "validation": rows.select(range(3))}

    monkeypatch.setattr("modeling_hire.data.sources._load_hub_dataset", load)
    data = load_squad(SquadArguments(task="squad_v2", dataset_revision="abc"))
    assert asked == [("rajpurkar/squad_v2", "abc")]
    assert data.train["texts"][:] == [[answer["text"] for answer in row["answers"]] for row in ROWS]
    assert len(data.evaluation["validation"]) == 3 and data.spec.title == "SQuAD 2.0"
    assert load_squad(SquadArguments(task="squad_v2"), evaluation_only=True).train is None
    with pytest.raises(ValueError, match=r"rajpurkar/squad, split train, row 3: question 'q2' has no answer"):
        load_squad(SquadArguments(task="squad_v1"))


def changed(row: int, **fields: Any) -> list[dict[str, Any]]:
    rows = copy.deepcopy(ROWS)
    rows[row] |= fields
    return rows


FIRST = ROWS[0]["answers"][0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changed(1, id=None), "article 1, paragraph 2, question 1 has no id"),
        (changed(1, id=""), "has no id"),
        (changed(3, id="q0"), "paragraph 2, question 1: id='q0' occurs twice, first at .*article 1, paragraph 1"),
        (changed(1, context=None), "context=None of question 'q1'"),
        (changed(1, question=3), "question=3 of question 'q1'"),
        (changed(0, answers=[{**FIRST, "answer_start": FIRST["answer_start"] + 1}]), "'q0' is not at answer_start"),
        (changed(0, answers=[{**FIRST, "text": "Paris"}]), "'Paris' of question 'q0' .*nowhere in the context"),
        (changed(0, answers=[{**FIRST, "answer_start": 7000}]), f"found at {FIRST['answer_start']}"),
        (changed(0, answers=[{**FIRST, "answer_start": -1}]), "answer_start=-1; allowed"),
        (changed(0, answers=[{**FIRST, "answer_start": True}]), "answer_start=True"),
        (changed(0, answers=[{"text": "w1"}]), "answer_start=None"),
        (changed(0, answers=[{**FIRST, "text": " "}]), "text=' '"),
        (changed(0, answers=["w1"]), "answers of question 'q0' must be a list of objects"),
        (changed(0, answers="[{"), "is not JSON"),
        (changed(0, answers={"text": ["w1"], "answer_start": []}), "equal length"),
        ([], "is empty"),
    ],
)
def test_wrong_questions(rows: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    path = write_squad(tmp_path / "dev.json", rows)
    args = SquadArguments(validation_file=[str(path)], version_2_with_negative=True)
    with pytest.raises(ValueError, match=said) as caught:
        load_squad(args, evaluation_only=True)
    assert "dev.json" in str(caught.value)


def test_a_question_that_says_nothing_of_its_answers(tmp_path: Path) -> None:
    """Such as those of a test set, which would train a model to answer nothing."""
    path = write_squad(tmp_path / "train.json", ROWS)
    content = json.loads(path.read_text())
    question = content["data"][1]["paragraphs"][0]["qas"][0]
    del question["answers"]
    path.write_text(json.dumps(content))
    args = SquadArguments(train_file=[str(path)], version_2_with_negative=True)
    question["is_impossible"] = False
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"train\.json, article 2, paragraph 1, question 1: .* has no 'answers'"):
        load_squad(args)
    question["is_impossible"] = True
    path.write_text(json.dumps(content))
    assert load_squad(args).train["texts"][2] == []


def test_no_answer_in_a_run_of_version_1(tmp_path: Path) -> None:
    path = write_squad(tmp_path / "dev.json", ROWS)
    for given in ({}, {"version_2_with_negative": False}, {"task": "squad_v1"}):
        with pytest.raises(ValueError, match="'q2' has no answer, and version_2_with_negative=False .*True"):
            load_squad(SquadArguments(validation_file=[str(path)], **given), evaluation_only=True)


def test_answers_beside_is_impossible(tmp_path: Path) -> None:
    content = nested(ROWS)
    content["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    (tmp_path / "dev.json").write_text(json.dumps(content))
    args = SquadArguments(validation_file=[str(tmp_path / "dev.json")], version_2_with_negative=True)
    with pytest.raises(ValueError, match="'q0' has is_impossible=True and the answer"):
        load_squad(args, evaluation_only=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"data": [{"title": "t", "paragraphs": [{"context": "x"}]}]}, "paragraph 1 has no 'qas'"),
        ({"data": [{"title": "t", "paragraphs": {"context": "x"}}]}, "paragraphs must be a list"),
        ({"data": []}, "empty"),
        ([{"id": "a", "context": "x"}], "no column 'question'"),
        ([{"id": "a", "context": "x", "question": "y"}], "no column 'answers', nor 'answer'"),
        ([{"id": "a", "context": "x", "question": "y", "answer": "x"}], "no column 'answer_start'"),
    ],
)
def test_wrong_files(content: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(content))
    args = SquadArguments(validation_file=[str(tmp_path / "dev.json")], version_2_with_negative=True)
    with pytest.raises(ValueError, match=said):
        load_squad(args, evaluation_only=True)


def test_wrong_folders(tmp_path: Path) -> None:
    def load(**kwargs: Any) -> None:
        load_squad(SquadArguments(dataset_dir=str(tmp_path), version_2_with_negative=True), **kwargs)

    with pytest.raises(ValueError, match=r"no files such as 'train\.json'"):
        load()
    write_squad(tmp_path / "dev.json", ROWS)
    with pytest.raises(ValueError, match="nothing to train on"):
        load()
    load(evaluation_only=True)
    write_squad(tmp_path / "dev-v2.0.json", ROWS)
    with pytest.raises(ValueError, match="several files for the split 'validation'"):
        load(evaluation_only=True)
    with pytest.raises(ValueError, match="is not a folder"):
        load_squad(SquadArguments(dataset_dir=str(tmp_path / "dev.json")))


def test_repeated_ids_across_files(tmp_path: Path) -> None:
    files = [write_squad(tmp_path / f"{name}.json", questions(3, 1)) for name in "ab"]
    args = SquadArguments(train_file=[str(file) for file in files], version_2_with_negative=True)
    with pytest.raises(ValueError, match=r"b\.json.*'q1000' occurs twice, first at .*a\.json"):
        load_squad(args)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "No data named"),
        ({"task": "squad_v3"}, r"task='squad_v3'.*'squad_v1', 'squad_v2'.*Did you mean"),
        ({"train_file": ["a"], "dataset_dir": "b"}, r"train_file=\['a'\].*dataset_dir='b'"),
        ({"dataset_dir": "b", "dataset_revision": "main"}, "dataset_revision='main'"),
        ({"task": "squad_v1", "version_2_with_negative": True}, "version_2_with_negative=True"),
        ({"task": "squad_v1", "max_length": 64}, "max_query_length=64 .*max_length=64"),
        ({"task": "squad_v1", "max_length": 100}, "doc_stride=128 .*max_length=100"),
        ({"task": "squad_v1", "doc_stride": 0}, "doc_stride=0"),
        ({"task": "squad_v1", "n_best_size": True}, "n_best_size=True"),
        ({"task": "squad_v1", "max_answer_length": 1.5}, "max_answer_length=1.5"),
        ({"task": "squad_v1", "max_train_samples": 0}, "max_train_samples=0"),
        ({"task": "squad_v1", "sample_seed": -1}, "sample_seed=-1"),
        ({"task": "squad_v1", "null_score_diff_threshold": float("nan")}, "null_score_diff_threshold=nan"),
        ({"task": "squad_v1", "null_score_diff_threshold": 1.5}, "null_score_diff_threshold=1.5.*version_2"),
        ({"test_file": ["a"], "null_score_diff_threshold": -1.0}, "null_score_diff_threshold=-1.0"),
    ],
)
def test_wrong_arguments(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SquadArguments(**fields)


def test_version() -> None:
    assert SquadArguments(task="squad_v2").version_2 and not SquadArguments(task="rajpurkar/squad").version_2
    assert not SquadArguments(train_file=["a"]).version_2
    assert not SquadArguments(task="squad_v2", version_2_with_negative=False).version_2


def windows_of(for_training: bool, **fields: Any) -> tuple[Dataset, int, Dataset]:
    args = SquadArguments(train_file=["a"], **{"max_length": 16, "doc_stride": 4, "max_query_length": 8, **fields})
    rows = Dataset.from_list(
        [
            {
                **{name: row[name] for name in ("id", "context", "question")},
                "texts": [answer["text"] for answer in row["answers"]],
                "starts": [answer["answer_start"] for answer in row["answers"]],
            }
            for row in ROWS
        ]
    )
    return *window_dataset(rows, tiny_tokenizer(), args, 16, for_training), rows


def test_datasets_of_windows_are_the_windows() -> None:
    dataset, cut, rows = windows_of(for_training=False)
    inputs, about = read_windows(dataset)
    spans = [(s[0], s[0] + len(t[0])) if t else None for s, t in zip(rows["starts"], rows["texts"], strict=True)]
    expected = make_windows(tiny_tokenizer(), rows["question"][:], rows["context"][:], 16, 4, 8, answers=spans)
    assert cut == 0 and len(expected) == len(inputs) > len(rows)
    for item, found, window in zip(inputs, about, expected, strict=True):
        assert {name: item[name] for name in window.inputs} == window.inputs
        assert item["labels"] == [*window.answer, len(window)]
        assert (found.row, found.first, found.null, found.answer) == (
            window.row,
            window.first,
            window.null,
            window.answer,
        )
        assert np.array_equal(found.starts, window.starts) and np.array_equal(found.ends, window.ends)
    train, _, _ = windows_of(for_training=True)
    assert set(train.column_names) == set(inputs.column_names)
    assert train["labels"][:] == inputs["labels"][:]


def test_questions_that_were_cut_are_counted_once() -> None:
    _, cut, _ = windows_of(for_training=False, max_query_length=1)
    assert cut == len(ROWS)


def test_a_question_without_room_is_named() -> None:
    rows = Dataset.from_list([{"id": "long", "context": "w1", "question": "w2 " * 30}])
    args = SquadArguments(train_file=["a"], max_length=16, doc_stride=4, max_query_length=None)
    with pytest.raises(ValueError, match="Question 'long' has 30 tokens .*max_length=16"):
        window_dataset(rows, tiny_tokenizer(), args, 16)


def test_batches_are_padded_on_the_right() -> None:
    dataset, _, _ = windows_of(for_training=True)
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = "left"
    rows = sorted(dataset.to_list(), key=lambda row: len(row["input_ids"]))[:: len(dataset) - 1]
    batch = SpanCollator(tokenizer, pad_to_multiple_of=8)(rows)
    assert batch["input_ids"].shape == (2, 16)
    for ids, mask, labels, row in zip(
        *(batch[n] for n in ("input_ids", "attention_mask", "labels")), rows, strict=True
    ):
        length = len(row["input_ids"])
        assert ids[:length].tolist() == row["input_ids"] and mask.sum() == length == labels[2]
    without = SpanCollator(tokenizer)([{"input_ids": [1, 2]}, {"input_ids": [1]}])
    assert "labels" not in without and without["input_ids"].tolist() == [[1, 2], [1, 0]]


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not here")
@pytest.mark.parametrize(
    ("task", "train", "dev", "negative"), [("squad_v1", 11877, 5956, 0), ("squad_v2", 4719, 2437, 1283)]
)
def test_real_questions(task: str, train: int, dev: int, negative: int) -> None:
    data = load_squad(SquadArguments(task=task, dataset_dir=str(DATA)))
    assert (len(data.train), len(data.evaluation["validation"])) == (train, dev)
    assert sum(not texts for texts in data.evaluation["validation"]["texts"]) == negative
