"""Training rows and scored pairs from every kind of file, and what is refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from modeling_hire.data.contrastive import ContrastiveData, load_contrastive_data
from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.data.sources import HubUnreachableError


Write = Callable[..., str]
TRIPLETS = [{"anchor": f"a{i}", "positive": f"p{i}", "negative": f"n{i}"} for i in range(10)]
ROWS = [tuple(row.values()) for row in TRIPLETS]
PAIRS = [{"sentence1": f"x{i}", "sentence2": f"y{i}", "score": i / 2} for i in range(8)]


def load(**given: Any) -> ContrastiveData:
    return load_contrastive_data(ContrastiveArguments(**given))


def rows_of(data: ContrastiveData) -> list[tuple[str, ...]]:
    return [data.train[row] for row in range(len(data.train))]


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.json", "t.csv", "t.csv.gz", "t.tsv", "t.parquet"])
def test_triplets_from_every_kind_of_file(name: str, write: Write, tmp_path: Path) -> None:
    if name.endswith(".parquet"):
        path = str(tmp_path / name)
        Dataset.from_list(TRIPLETS).to_parquet(path)
    else:
        text = {"csv": as_csv(TRIPLETS), "tsv": as_csv(TRIPLETS, "\t"), "json": json.dumps(TRIPLETS)}
        path = write(name, text.get(name.split(".")[1], TRIPLETS))
    data = load(train_file=path)
    assert rows_of(data) == ROWS and data.num_negatives == 1 and data.notes == []
    assert data.evaluation == {} and data.test == {}


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_plain_text(name: str, write: Write) -> None:
    path = write(name, "one\r\n\n  two 😀\nthree\n")
    data = load(scheme="self_supervised", train_file=path)
    assert rows_of(data) == [("one",), ("two 😀",), ("three",)]
    for scheme in ("supervised", "hybrid"):
        with pytest.raises(ValueError, match="holds single texts, .* for scheme='self_supervised'"):
            load(scheme=scheme, train_file=path)


def test_several_files_are_joined(write: Write) -> None:
    other = [{"sent0": "s", "sent1": "t", "hard_neg": "u"}]
    assert rows_of(load(train_file=[write("a.jsonl", TRIPLETS), write("b.csv", as_csv(other))])) == [
        *ROWS,
        ("s", "t", "u"),
    ]
    with pytest.raises(
        ValueError, match=r"c\.jsonl, row 1 has 0 hard negatives, and .*a\.jsonl, row 1 has 1 hard neg"
    ):
        load(train_file=[write("a.jsonl", TRIPLETS), write("c.jsonl", [{"sent0": "s", "sent1": "t"}])])


def test_lists_of_positives_and_negatives(write: Write) -> None:
    rows = [{"query": "q", "pos": ["a", "b"], "neg": ["c", "d"]}, {"query": "r", "pos": ["e"], "neg": ["f", "g"]}]
    data = load(train_file=write("t.jsonl", rows))
    assert rows_of(data) == [("q", "a", "c", "d"), ("q", "b", "c", "d"), ("r", "e", "f", "g")]
    assert data.num_negatives == 2
    for wrong, said in (
        ({"query": "s", "pos": ["a"], "neg": ["c"]}, "row 3 has 1 hard negative, and .*row 1 has 2 hard negatives"),
        ({"query": "s", "pos": [], "neg": ["c", "d"]}, "row 3: column 'pos' is an empty list"),
        ({"query": ["s"], "pos": ["a"], "neg": ["c", "d"]}, r"row 3: column 'query' holds \['s'\] \(list\)"),
        ({"query": "s", "pos": ["a"], "neg": ["c", None]}, "row 3: column 'neg' holds None"),
    ):
        with pytest.raises(ValueError, match=said):
            load(train_file=write("t.jsonl", [*rows, wrong]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"positive": ""}, r"row 11: column 'positive' is empty \(''\)"),
        ({"negative": " \n"}, "row 11: column 'negative' is empty"),
        ({"anchor": None}, r"row 11: column 'anchor' holds None \(NoneType\) where text should be"),
        ({"anchor": 7}, r"row 11: column 'anchor' holds 7 \(int\) where text should be"),
        ({"anchor": float("nan")}, r"row 11: column 'anchor' holds nan \(float\)"),
        ({"anchor": "half \ud83d"}, "row 11: column 'anchor' .* not valid Unicode"),
    ],
)
def test_wrong_members(wrong: dict[str, Any], said: str, write: Write) -> None:
    rows = [*TRIPLETS, {**TRIPLETS[0], **wrong}]
    with pytest.raises(ValueError, match=said):
        load(train_file=write("t.jsonl", rows))


@pytest.mark.parametrize(
    ("value", "said"), [(None, "holds None"), (3.5, "holds 3.5"), ("\udc00", ".* not valid Unicode")]
)
def test_wrong_single_texts(value: Any, said: str, write: Write) -> None:
    with pytest.raises(ValueError, match=f"row 2: column 'text' {said}"):
        load(scheme="self_supervised", train_file=write("t.jsonl", [{"text": "a"}, {"text": value}]))


def test_no_texts(write: Write) -> None:
    with pytest.raises(ValueError, match="is empty"):
        load(train_file=write("t.jsonl", []))
    with pytest.raises(ValueError, match="is empty: it holds no text"):
        load(scheme="self_supervised", train_file=write("t.txt", "\n \n"))
    with pytest.raises(ValueError, match="holds no text: every value of .*'text'.* is blank"):
        load(scheme="self_supervised", train_file=write("t.jsonl", [{"text": " "}]))
    with pytest.raises(ValueError, match="does not exist"):
        load(train_file="nowhere.jsonl")
    with pytest.raises(ValueError, match="does not exist"):
        load(scheme="self_supervised", train_file="nowhere.txt")
    with pytest.raises(ValueError, match=r"unknown format: .*'\.parquet', '\.txt', '\.txt\.gz'"):
        load(train_file=write("t.xlsx", "x"))
    with pytest.raises(ValueError, match="nothing to train on: give train_file, .* num_train_epochs=0"):
        load(test_file=write("p.jsonl", PAIRS))


def test_blank_single_texts_are_left_out(write: Write) -> None:
    data = load(scheme="self_supervised", train_file=write("t.jsonl", [{"text": t} for t in ("a", "", "b", " ")]))
    assert rows_of(data) == [("a",), ("b",)]
    assert data.notes == [f"{data.notes[0].split(': ')[0]}: 2 of 4 texts are blank and left out."]


def test_unusual_texts_are_kept_as_they_are(write: Write) -> None:
    texts = ["word " * 200_000, "\x00\x07\x1b[0m", "👩‍👩‍👧‍👦 \u202eright", " spaces ", "NA"]
    rows = [{"anchor": text, "positive": text[::-1]} for text in texts]
    assert rows_of(load(train_file=write("t.jsonl", rows))) == [(text, text[::-1]) for text in texts]


def test_odd_rows_are_counted(write: Write) -> None:
    odd = [
        TRIPLETS[3],
        {"anchor": "s", "positive": "s", "negative": "t"},
        {"anchor": "s", "positive": "t", "negative": "t"},
        {"anchor": "s", "positive": "u", "negative": "s"},
    ]
    notes = load(train_file=write("t.jsonl", [*TRIPLETS, *odd])).notes
    assert [note.split("jsonl: ")[1] for note in notes] == [
        "1 of 14 rows repeat an earlier one; they are kept.",
        "in 1 of 14 rows the positive is the anchor.",
        "in 2 of 14 rows a negative is the anchor or the positive.",
    ]
    two = [{"anchor": "a", "positive": "b", "negative": "c", "negative_2": "c"}]
    assert "two negatives are the same" in load(train_file=write("t.jsonl", two)).notes[0]


def test_one_row_without_negatives(write: Write) -> None:
    path = write("t.jsonl", [{"sentence1": "a", "sentence2": "b"}, {"sentence1": "c", "sentence2": "d"}])
    for scheme in ("supervised", "self_supervised", "hybrid"):
        with pytest.raises(ValueError, match="one training row .* the contrastive loss is undefined"):
            load(scheme=scheme, train_file=path, max_train_samples=1)
    assert len(load(train_file=write("n.jsonl", TRIPLETS[:1])).train) == 1


def test_named_columns(write: Write) -> None:
    path = write("t.jsonl", TRIPLETS)
    assert rows_of(load(train_file=path, text_columns=["positive", "anchor"])) == [(p, a) for a, p, _ in ROWS]
    data = load(scheme="self_supervised", train_file=path, text_columns=["anchor", "negative"])
    assert rows_of(data) == [(text,) for a, _, n in ROWS for text in (a, n)]


def test_anchors_alone(write: Write) -> None:
    data = load(scheme="self_supervised", train_file=write("t.jsonl", TRIPLETS))
    assert rows_of(data) == [(row[0],) for row in ROWS] and "'positive', 'negative' are not" in data.notes[0]


# ---- a cap, and the unlabelled texts --------------------------------------------------------------------------------


def test_a_cap_keeps_a_fixed_choice_that_grows(write: Write) -> None:
    path = write("t.jsonl", TRIPLETS)

    def kept(cap: int, seed: int = 0) -> list[tuple[str, ...]]:
        data = load(train_file=path, max_train_samples=cap, sample_seed=seed)
        assert f"max_train_samples keeps {cap} of 10 rows (sample_seed {seed})" in data.notes[-1]
        return rows_of(data)

    assert kept(4) == kept(4) and len(kept(4)) == 4 and kept(4) != kept(4, seed=1)
    assert set(kept(3)) < set(kept(6)) and kept(6) == sorted(kept(6))
    assert load(train_file=path, max_train_samples=99).notes == []


def test_unlabelled_texts_go_with_rows(write: Write) -> None:
    path, texts = write("t.jsonl", TRIPLETS), [f"u{i}" for i in range(4)]
    given = {"scheme": "hybrid", "train_file": path, "unlabelled_file": write("u.txt", "\n".join(texts))}
    data = load(**given)
    rows = rows_of(data)
    assert [row[:3] for row in rows] == ROWS and data.num_negatives == 1
    last = [row[3] for row in rows]
    # Fewer texts than rows: each comes as often as any other, and all before one comes again.
    assert sorted(last[:4]) == texts and sorted(last[4:8]) == texts and len(set(last[8:])) == 2
    assert "4 texts for 10 rows, so texts are repeated" in data.notes[0]
    assert rows_of(load(**given)) == rows and rows_of(load(**given, sample_seed=1)) != rows
    # Capped rows keep their text.
    assert set(rows_of(load(**given, max_train_samples=5))) < set(rows)


def test_more_unlabelled_texts_than_rows(write: Write) -> None:
    many = write("u.jsonl", [{"text": f"u{i}"} for i in range(50)])
    data = load(scheme="hybrid", train_file=write("t.jsonl", TRIPLETS), unlabelled_file=[many])
    last = [row[3] for row in rows_of(data)]
    assert len(set(last)) == 10 and last != [f"u{i}" for i in range(10)]
    assert "50 texts for 10 rows, so 10 of them are used" in data.notes[0]


def test_without_unlabelled_texts_the_anchors_are_taken(write: Write) -> None:
    data = load(scheme="hybrid", train_file=write("t.jsonl", TRIPLETS))
    assert rows_of(data) == [(*row, row[0]) for row in ROWS] and "the anchors" in data.notes[0]


# ---- folders and the Hub --------------------------------------------------------------------------------------------


def test_folders(write: Write, tmp_path: Path) -> None:
    write("both/train.jsonl", TRIPLETS)
    write("both/validation.jsonl", TRIPLETS[:1])
    write("both/more.jsonl", TRIPLETS[:1])
    write("one/wiki.txt.gz", "a\nb\n")
    write("one/test.jsonl", TRIPLETS)
    write("one/README.md", "no data")
    assert rows_of(load(dataset_dir=str(tmp_path / "both"))) == ROWS
    data = load(scheme="self_supervised", dataset_dir=str(tmp_path / "one"))
    assert rows_of(data) == [("a",), ("b",)] and "it is the only data file" in data.notes[0]
    write("one/other.txt", "c\n")
    with pytest.raises(ValueError, match=r"several files .*\('other\.txt', 'wiki\.txt\.gz'\).*by train_file"):
        load(scheme="self_supervised", dataset_dir=str(tmp_path / "one"))
    with pytest.raises(ValueError, match="no file such as 'train.jsonl' .*; its folders are 'both', 'one'"):
        load(dataset_dir=str(tmp_path))
    with pytest.raises(ValueError, match="dataset_dir='nowhere' is not a folder"):
        load(dataset_dir="nowhere")


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, name: str | None, revision: str | None) -> DatasetDict:
        asked.append((path, name, revision))
        if name == "no-net":
            raise ConnectionError("no network")
        if name == "wrong":
            raise ValueError("BuilderConfig 'wrong' not found")
        split = "dev" if name == "no-train" else "train"
        return DatasetDict({split: Dataset.from_list(TRIPLETS)})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    given = {"dataset_name": "owner/triplets", "dataset_revision": "abc"}
    assert rows_of(load(**given)) == ROWS and asked == [("owner/triplets", None, "abc")]
    with pytest.raises(HubUnreachableError, match="No connection to the Hub, and dataset_name='owner/triplets'"):
        load(**given, dataset_config="no-net")
    with pytest.raises(ValueError, match=r"dataset_name='owner/triplets' \(dataset_config='wrong'.*'wrong' not found"):
        load(**given, dataset_config="wrong")
    with pytest.raises(ValueError, match="dataset_name='owner/triplets' has no train split"):
        load(**given, dataset_config="no-train")


def test_single_files_of_the_hub(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repo_id: str, filename: str, repo_type: str, revision: str | None) -> str:
        asked.append((repo_id, filename, repo_type, revision))
        if filename == "gone.csv":
            raise EntryNotFoundError("404: no such file")
        if filename == "offline.csv":
            raise LocalEntryNotFoundError("offline")
        return write("cached", as_csv(TRIPLETS)) if filename.endswith("csv") else write("cached", "a\nb\n")

    # What the cache calls a file ends as its name on the Hub does.
    def named(repo_id: str, filename: str, **kwargs: Any) -> str:
        path = Path(download(repo_id, filename, **kwargs))
        return str(path.rename(path.with_name(filename.split("/")[-1])))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", named)
    assert rows_of(load(train_file="hf://datasets/owner/name/folder/nli.csv")) == ROWS
    data = load(scheme="self_supervised", train_file="hf://datasets/owner/name@refs/pr/1/wiki.txt")
    assert rows_of(data) == [("a",), ("b",)]
    assert asked == [
        ("owner/name", "folder/nli.csv", "dataset", None),
        ("owner/name", "wiki.txt", "dataset", "refs/pr/1"),
    ]
    with pytest.raises(HubUnreachableError, match=r"No connection to the Hub, and hf://datasets/owner/name/offline"):
        load(train_file="hf://datasets/owner/name/offline.csv")
    with pytest.raises(ValueError, match=r"hf://datasets/owner/name@x/gone\.csv could not be loaded.*no such file"):
        load(train_file="hf://datasets/owner/name@x/gone.csv")
    with pytest.raises(ValueError, match="is named hf://datasets/OWNER/NAME/FILE"):
        load(train_file="hf://owner/name/file.csv")


# ---- scored pairs ---------------------------------------------------------------------------------------------------


def evaluate(**given: Any) -> ContrastiveData:
    return load_contrastive_data(ContrastiveArguments(**given), evaluation_only=True)


def test_pairs_and_their_scores(write: Write) -> None:
    expected = {"text": "x1", "text_pair": "y1", "label": 0.5}
    data = evaluate(validation_file=write("v.csv", as_csv(PAIRS)), test_file=write("t.jsonl", PAIRS[:3]))
    assert data.train is None and data.evaluation["validation"][1] == expected
    assert data.test["test"][1] == expected and len(data.test["test"]) == 3 and data.notes == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "row 9 holds nan where a score should be"),
        (None, "row 9 holds None where a score should be"),
        ("4.0", "row 9 holds '4.0' where a score should be"),
        (float("inf"), "row 9 holds inf"),
        (6, r"row 9 holds the score 6: score_range=\[0, 5\] allows scores from 0 to 5"),
        (-0.1, "row 9 holds the score -0.1: score_range"),
    ],
)
def test_wrong_scores(value: Any, said: str, write: Write) -> None:
    rows = [*PAIRS, {"sentence1": "x", "sentence2": "y", "score": value}]
    with pytest.raises(ValueError, match=said):
        evaluate(validation_file=write("v.jsonl", rows), score_range=[0, 5])


def test_a_score_of_text_in_csv(write: Write) -> None:
    rows = [*PAIRS, {"sentence1": "x", "sentence2": "y", "score": "much"}]
    with pytest.raises(ValueError, match="row 9 holds 'much' where a score should be"):
        evaluate(validation_file=write("v.csv", as_csv(rows)))


def test_constant_scores(write: Write) -> None:
    rows = [{**row, "score": 2.0} for row in PAIRS]
    with pytest.raises(ValueError, match="all 8 scores of column 'score' are 2.0, and a correlation with a constant"):
        evaluate(validation_file=write("v.jsonl", rows))
    with pytest.raises(ValueError, match="the 1 scores that are kept"):
        evaluate(validation_file=write("v.jsonl", PAIRS), max_eval_samples=1)


def test_hidden_scores(write: Write) -> None:
    hidden = [{**row, "score": -1} for row in PAIRS]
    data = evaluate(validation_file=write("v.jsonl", PAIRS), test_file=write("t.jsonl", hidden))
    assert data.test == {} and "the scores are not given (-1), so the test split is left out" in data.notes[0]
    with pytest.raises(ValueError, match="all scores of column 'score' are hidden"):
        evaluate(validation_file=write("v.jsonl", hidden))


def test_texts_of_pairs(write: Write) -> None:
    data = evaluate(validation_file=write("v.jsonl", [*PAIRS, {"sentence1": "", "sentence2": "y", "score": 1}]))
    assert len(data.evaluation["validation"]) == 9 and "1 of 9 pairs have a blank text" in data.notes[0]
    with pytest.raises(ValueError, match="row 9: column 'sentence2' holds None"):
        evaluate(validation_file=write("v.jsonl", [*PAIRS, {"sentence1": "x", "sentence2": None, "score": 1}]))


def test_a_cap_on_pairs(write: Write) -> None:
    data = evaluate(validation_file=write("v.jsonl", PAIRS), max_eval_samples=3)
    kept = sorted(np.random.default_rng(0).permutation(8)[:3].tolist())
    assert data.evaluation["validation"]["text"][:] == [f"x{row}" for row in kept]
    assert "max_eval_samples keeps 3 of 8 pairs (sample_seed 0)" in data.notes[0]


def test_folders_of_pairs(write: Write, tmp_path: Path) -> None:
    write("sts/dev.csv", as_csv(PAIRS))
    write("sts/test_part1.jsonl", PAIRS[:4])
    folder = str(tmp_path / "sts")
    data = evaluate(validation_dir=folder)
    assert len(data.evaluation["validation"]) == 8 and len(data.test["test"]) == 4
    assert "the test split is only a part (test_part1.jsonl)" in data.notes[0]
    data = evaluate(validation_dir=folder, test_file=write("whole.jsonl", PAIRS[:6]))
    assert len(data.test["test"]) == 6 and data.notes == []
    write("only/test.jsonl", PAIRS)
    with pytest.raises(ValueError, match=r"no file such as 'validation\.jsonl'.* give test_file='.*test\.jsonl'"):
        evaluate(validation_dir=str(tmp_path / "only"))
    with pytest.raises(ValueError, match="validation_dir='nowhere' is not a folder"):
        evaluate(validation_dir="nowhere")


def test_nothing_to_evaluate_on(write: Write) -> None:
    with pytest.raises(ValueError, match="nothing to evaluate on"):
        evaluate(train_file=write("t.jsonl", TRIPLETS))


def test_files_are_not_changed(write: Write) -> None:
    path = Path(write("t.jsonl", TRIPLETS))
    before = path.read_bytes(), sorted(path.parent.iterdir())
    load(train_file=str(path), max_train_samples=5)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == before


# ---- real data ------------------------------------------------------------------------------------------------------


def test_real_triplets_and_scored_pairs(shared_data: Path) -> None:
    data = load(dataset_dir=str(shared_data / "nli_triplets"), validation_dir=str(shared_data / "glue" / "stsb"))
    with (shared_data / "nli_triplets" / "train.jsonl").open(encoding="utf-8") as stream:
        expected = [json.loads(line) for line in stream]
    assert rows_of(data) == [(row["anchor"], row["positive"], row["negative"]) for row in expected]
    assert len(data.evaluation["validation"]) == 1500 and len(data.test["test"]) == 694
    assert any("in 6 of 3813 rows the positive is the anchor" in note for note in data.notes)
    assert any("only a part" in note for note in data.notes)


def test_real_unlabelled_texts(shared_data: Path) -> None:
    with gzip.open(shared_data / "unlabelled" / "wiki_sentences.txt.gz", "rt", encoding="utf-8") as stream:
        lines = [line.rstrip("\n") for line in stream]
    data = load(scheme="self_supervised", dataset_dir=str(shared_data / "unlabelled"))
    assert rows_of(data) == [(line,) for line in lines] and len(lines) == 17940


@pytest.mark.parametrize(
    ("name", "rows", "bounds"),
    [
        ("sts/sts12/test.jsonl", 3108, [0, 5]),
        ("sts/sts15/test.jsonl", 3000, [0, 5]),
        ("sick/validation.jsonl", 500, [1, 5]),
        ("sick/train.jsonl", 4500, [1, 5]),
    ],
)
def test_real_scored_pairs(name: str, rows: int, bounds: list[float], shared_data: Path) -> None:
    data = evaluate(test_file=str(shared_data / name), score_range=bounds)
    scores = data.test["test"]["label"][:]
    assert len(scores) == rows and bounds[0] <= min(scores) < max(scores) <= bounds[1]


@pytest.mark.parametrize("name", ["quora_duplicates/pairs.jsonl.gz", "sick/train.jsonl", "snli/train.jsonl.gz"])
def test_real_labelled_pairs_are_refused(name: str, shared_data: Path) -> None:
    with pytest.raises(ValueError, match="so not all of them mean the same"):
        load(train_file=str(shared_data / name))
