"""Documents and sentences of text files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from modeling_hire.data.corpora import read_documents, split_sentences, stream_documents


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Mr. Fox met Dr. Bear. They spoke.", ["Mr. Fox met Dr. Bear.", "They spoke."]),
        ("It cost 3.50 euros. Fine.", ["It cost 3.50 euros.", "Fine."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("J. R. Smith came (late). He sat.", ["J. R. Smith came (late).", "He sat."]),
        ("no capital. after the stop", ["no capital. after the stop"]),
        ("  ", []),
        ("Grüße aus Köln. Ärger gibt es nicht.", ["Grüße aus Köln.", "Ärger gibt es nicht."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_nothing_is_lost() -> None:
    text = 'A cat. "Dogs?" (Yes.) etc. Mr. X. said: no... Well! 5 p.m. Then'
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def write(path: Path, text: str) -> str:
    if path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_blank_lines_part_documents(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "A one. A two.\nA three.\n\n\nB one.\n")
    assert list(read_documents([path])) == [["A one.", "A two.", "A three."], ["B one."]]


def test_headings_of_wikitext_part_articles(tmp_path: Path) -> None:
    text = " \n = Cats = \n \n One cat . \n \n = = Food = = \n \n They eat . \n \n = Dogs = \n \n One dog . \n"
    assert list(read_documents([write(tmp_path / "wiki.txt", text)])) == [["One cat .", "They eat ."], ["One dog ."]]


def test_paragraphs_of_squad(tmp_path: Path) -> None:
    content = {"data": [{"title": "T", "paragraphs": [{"context": "One. Two.", "qas": []}, {"context": "Three."}]}]}
    path = write(tmp_path / "squad.json", json.dumps(content))
    assert list(read_documents([path])) == [["One.", "Two.", "Three."]]


def test_tables_and_a_cap(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", "".join(json.dumps({"text": f"Row {i}."}) + "\n" for i in range(5)))
    assert list(read_documents([path, path], most=7)) == [[f"Row {i % 5}."] for i in range(7)]


def test_files_are_read_as_they_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "text.txt", "A.\n\nB.\n")
    documents = read_documents([path, str(tmp_path / "missing.txt")])
    assert next(documents) == ["A."]
    with pytest.raises(ValueError, match="missing.txt"):
        list(documents)


@pytest.mark.parametrize(("name", "text", "message"), [("a.txt", " \n\n", "holds no text"), ("a.pdf", "x", "format")])
def test_unusable_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_documents([write(tmp_path / name, text)]))


def test_streams(tmp_path: Path) -> None:
    endless = ({"text": f"Row {i}. More."} for i in range(10**9))
    assert list(stream_documents(endless, "text", most=2)) == [["Row 0.", "More."], ["Row 1.", "More."]]
    with pytest.raises(ValueError, match="row 1: column 'body'.*text"):
        list(stream_documents([{"text": "A."}], "body"))
