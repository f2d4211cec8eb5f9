"""Reading single files."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from modeling_hire.data.readers import read_table


ROWS = [{"text": "a b", "label": 1}, {"text": 'ünï, "q"', "label": 0}]
WANTED = {"text": ["a b", 'ünï, "q"'], "label": [1, 0]}


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "D.JSONL", "lines.json"])
def test_json_lines(write, name):
    table = read_table(write(name, ROWS))
    assert table.columns == WANTED
    assert table.typed


@pytest.mark.parametrize("template", ["{}", '{{"data": {}, "version": 1}}'])
def test_json(write, template):
    rows = '[{"text": "a b", "label": 1}, {"text": "ünï, \\"q\\"", "label": 0}]'
    assert read_table(write("d.json", template.format(rows))).columns == WANTED


def test_json_lines_keep_unicode_line_separators_inside_texts(write):
    table = read_table(write("d.jsonl", '{"text": "a\u2028b", "label": 0}\n\n{"text": "c", "label": 1}\n'))
    assert table.columns["text"] == ["a\u2028b", "c"]


def test_a_key_that_a_row_lacks_is_none(write):
    assert read_table(write("d.jsonl", [{"text": "a", "label": 1}, {"text": "b"}])).columns["label"] == [1, None]


def test_csv_keeps_every_cell_as_text(write):
    text = '\ufefftext,label\r\nNA,1\r\n"two\nlines, ""quoted""",0\r\n\r\n007,1\r\n,0\r\n'
    table = read_table(write("d.csv", text))
    assert table.columns == {"text": ["NA", 'two\nlines, "quoted"', "007", ""], "label": ["1", "0", "1", "0"]}
    assert not table.typed


def test_csv_takes_very_long_cells(write):
    assert len(read_table(write("d.csv", "text,label\n" + "x" * 200_000 + ",1\n")).columns["text"][0]) == 200_000


def test_tsv_as_glue_writes_it_does_not_quote(write):
    text = 'sentence\tlabel\n"never closed\t1\nsaid "hi"\t0\n'
    assert read_table(write("d.tsv", text)).columns["sentence"] == ['"never closed', 'said "hi"']


def test_tsv_as_data_frames_write_it_does_quote(write):
    text = 'sentence\tlabel\n"said ""hi"""\t0\nplain\t1\n'
    assert read_table(write("d.tsv.gz", text)).columns["sentence"] == ['said "hi"', "plain"]


def test_parquet_with_and_without_class_names(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features).to_parquet(
        tmp_path / "d.parquet"
    )
    table = read_table(tmp_path / "d.parquet")
    assert table.columns["label"] == [1, 0, -1]
    assert table.labels("label") == ["yes", "no", None]
    Dataset.from_dict({"text": ["a"], "label": [0.5]}).to_parquet(tmp_path / "e.parquet")
    assert read_table(tmp_path / "e.parquet").labels("label") == [0.5]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("d.jsonl", "", "is empty: it holds no rows"),
        ("d.json", "[]", "is empty: it holds no rows"),
        ("d.csv", "", "is empty: it holds not even a header"),
        ("d.csv", "text,label\n", "is empty: it holds no rows"),
        ("d.tsv", "text\tlabel\n", "is empty: it holds no rows"),
        ("d.xlsx", "x", r"unknown format: expected a name ending in '\.jsonl'"),
        ("d.jsonl", '{"a": 1}\n{"a": \n', "line 2 is not valid JSON"),
        ("d.jsonl", '{"a": 1}\n[1]\n', "row 2 holds a list where an object should be"),
        ("d.json", "{", "is not valid JSON"),
        ("d.json", "3", "holds a single int: expected a list"),
        ("d.csv", "a,b\n1,2\n3\n", "row 2 has 1 fields where the header has 2"),
        ("d.tsv", "a\tb\n1\t2\t3\n", "row 1 has 3 fields where the header has 2"),
        ("d.csv", "a,a\n1,2\n", "two columns of the same name"),
        ("d.csv", 'a,b\n1,2\n"never closed,2\n', "is broken after row 1"),
        ("d.csv", b"a,b\n\xff,1\n", r"is not UTF-8 text \(byte 4\)"),
        ("d.parquet", "PAR1 no", "is not a readable Parquet file"),
    ],
)
def test_broken_files(write, name, content, message):
    path = write(name, content)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path)
    assert Path(path).name in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match="is a folder, not a file"):
        read_table(tmp_path)


@pytest.mark.parametrize("cut", [5, -5])
def test_a_cut_gzip_file(tmp_path, cut):
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:cut])
    with pytest.raises(ValueError, match="is not a complete gzip file"):
        read_table(path)
    path.write_bytes(b"plain text")
    with pytest.raises(ValueError, match="is not a complete gzip file"):
        read_table(path)


def test_missing_column_names_those_present(write):
    table = read_table(write("d.jsonl", ROWS))
    with pytest.raises(
        ValueError, match=r"has no column 'labels'; its columns are 'text', 'label'\. Did you mean 'label'\?"
    ):
        table.require("labels")


def test_reading_leaves_nothing_behind(write, tmp_path):
    path = Path(write("d.csv", "text,label\na,1\nb,0\n"))
    before = path.read_bytes(), os.stat(path).st_mtime_ns
    read_table(path)
    assert (path.read_bytes(), os.stat(path).st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "mark"), [("d.csv", ";"), ("d.csv", "\t"), ("d.tsv", ","), ("d.tsv", ";")])
def test_another_separator_is_pointed_out(write, name, mark):
    with pytest.raises(ValueError, match=re.escape(f"has the one column {f'text{mark}label'!r}: is {mark!r} its sep")):
        read_table(write(name, f"text{mark}label\na{mark}1\nb{mark}0\n"))


def test_a_quoted_name_may_hold_the_separator(write):
    assert list(read_table(write("d.csv", '"text, raw"\na\n')).columns) == ["text, raw"]
