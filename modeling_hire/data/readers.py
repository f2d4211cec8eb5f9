"""Reading one table from a local file, without changing it and without leaving a cache behind."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .messages import did_you_mean, listing


SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


@dataclass
class Table:
    """Named columns of equal length, and where they came from.

    Args:
        columns: Column name -> one value a row.
        source: What to call this table in messages, e.g. its path.
        typed: Whether numbers and text are told apart by the source. In CSV and TSV they are not: every cell is text.
        class_names: For columns that hold class ids with known names (as the Hub's do): column -> names by id.
    """

    columns: dict[str, list[Any]]
    source: str
    typed: bool = True
    class_names: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def find(self, name: str, aliases: tuple[str, ...] = ()) -> str | None:
        """Return the first of `name` and `aliases` that is a column of this table, or `None`."""
        return next((candidate for candidate in (name, *aliases) if candidate in self.columns), None)

    def require(self, name: str, aliases: tuple[str, ...] = ()) -> str:
        """Return what `find` returns.

        Raises:
            ValueError: If the column is missing; the message names the columns there are.
        """
        found = self.find(name, aliases)
        if found is None:
            raise ValueError(
                f"{self.source} has no column {name!r}; its columns are {listing(self.columns)}."
                f"{did_you_mean(name, self.columns)}"
            )
        return found

    def labels(self, column: str) -> list[Any]:
        """Return the column's values; where class names are known, the names, and `None` for -1 (no label)."""
        names = self.class_names.get(column)
        if names is None:
            return self.columns[column]
        return [None if value is None or value < 0 else names[value] for value in self.columns[column]]


def split_suffix(path: Path) -> str | None:
    """Return the part of the file's name that says its format (`".jsonl.gz"`), or `None` if it is not a known one."""
    name = path.name.lower()
    # Longest first, so that ".jsonl.gz" is not taken for an unknown ".gz".
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)


def read_table(path: str | Path) -> Table:
    """Read a whole CSV, TSV, JSON, JSON Lines or Parquet file.

    Cells of CSV and TSV files stay text: nothing is guessed, so "NA" or "007" in a text column is kept as written.
    JSON may be a list of objects, an object with such a list under `"data"`, or one object a line. A key that a JSON
    object lacks is read as `None`.

    Args:
        path: The file; the text formats may be gzip-compressed (`.gz`).

    Raises:
        ValueError: If the file is missing, of an unknown format, broken, not UTF-8, or has no rows. The message names
            the file and, where there is one, the row (counted from 1, without the header).
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise ValueError(f"Data file {str(path)!r} {what}")
    suffix = split_suffix(path)
    if suffix is None:
        raise ValueError(
            f"Data file {str(path)!r} has an unknown format: expected a name ending in {listing(SUFFIXES)}"
        )
    source = str(path)
    if suffix == ".parquet":
        table = _read_parquet(path, source)
    else:
        text = _read_text(path, source)
        if suffix.startswith((".csv", ".tsv")):
            table = _parse_delimited(text, source, "," if suffix.startswith(".csv") else "\t")
        else:
            table = _rows_to_table(_parse_json(text, source, lines=suffix.startswith(".jsonl")), source)
    if len(table) == 0:
        raise ValueError(f"{source} is empty: it holds no rows")
    return table


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file that are not empty, without the white space around them.

    Args:
        path: The file, plain or gzip-compressed (`.gz`).

    Raises:
        ValueError: If the file is missing, broken, not UTF-8, or holds no text.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise ValueError(f"Text file {str(path)!r} {what}")
    lines = [line.strip() for line in _read_text(path, str(path)).split("\n")]
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError(f"{path} is empty: it holds no text")
    return lines


def _read_text(path: Path, source: str) -> str:
    """Return the file's text, unpacked if need be and without a byte-order mark."""
    try:
        data = path.read_bytes()
        if path.name.lower().endswith(".gz"):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{source} is not a complete gzip file: {error}") from error
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error


def _parse_delimited(text: str, source: str, delimiter: str) -> Table:
    """Split CSV or TSV text into columns of strings."""
    if delimiter == "\t" and not _tsv_is_quoted(text):
        # GLUE's own TSV files do not quote, and a sentence may start with a quotation mark that never closes.
        rows = [line.split("\t") for line in text.replace("\r\n", "\n").split("\n") if line]
    else:
        rows = _csv_rows(text, source, delimiter)
    if not rows:
        raise ValueError(f"{source} is empty: it holds not even a header line")
    header, *rows = rows
    other = next((mark for mark in {",", ";", "\t"} - {delimiter} if mark in header[0]), None)
    if len(header) == 1 and other is not None:
        raise ValueError(
            f"{source} has the one column {header[0]!r}: is {other!r} its separator? Allowed is a comma in .csv and a "
            "tab in .tsv"
        )
    if len(set(header)) < len(header):
        raise ValueError(f"{source} has two columns of the same name: {listing(header)}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(
                f"{source}, row {number} has {len(row)} fields where the header has {len(header)} "
                f"({listing(header)}): check separators and quotation marks"
            )
    columns = {name: list(values) for name, values in zip(header, zip(*rows, strict=True), strict=False)}
    return Table(columns or {name: [] for name in header}, source, typed=False)


def _csv_rows(text: str, source: str, delimiter: str) -> list[list[str]]:
    """Return the non-empty records of quoted CSV text."""
    previous = csv.field_size_limit(sys.maxsize)
    rows: list[list[str]] = []
    try:
        # newline="" keeps line breaks inside quoted fields as they are.
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            if row:
                rows.append(row)
    except csv.Error as error:
        raise ValueError(f"{source} is broken after row {max(len(rows) - 1, 0)}: {error}") from error
    finally:
        csv.field_size_limit(previous)
    return rows


def _tsv_is_quoted(text: str) -> bool:
    """Whether quotation marks in TSV text are CSV quoting: each field that holds one is a well-formed quoted field."""
    if '"' not in text:
        return False
    fields = (cell for line in text.split("\n") for cell in line.rstrip("\r").split("\t") if '"' in cell)
    return all(
        len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "") for cell in fields
    )


def _parse_json(text: str, source: str, lines: bool) -> list[Any]:
    """Return the records of JSON or JSON Lines text."""
    if not lines:
        try:
            content = json.loads(text) if text.strip() else []
        except json.JSONDecodeError as error:
            # Many tools write JSON Lines into files called .json. What is broken as both is reported as JSON.
            try:
                return _parse_json(text, source, lines=True)
            except ValueError:
                raise ValueError(f"{source} is not valid JSON: {error}") from error
        if isinstance(content, dict):
            content = content["data"] if isinstance(content.get("data"), list) else [content]
        if not isinstance(content, list):
            raise ValueError(f"{source} holds a single {type(content).__name__}: expected a list of objects")
        return content
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{source}, line {number} is not valid JSON: {error}") from error
    return records


def _rows_to_table(rows: list[Any], source: str) -> Table:
    """Turn a list of objects into columns."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"{source}, row {number} holds a {type(row).__name__} where an object should be")
        names.update(dict.fromkeys(row))
    return Table({name: [row.get(name) for row in rows] for name in names}, source)


def _read_parquet(path: Path, source: str) -> Table:
    """Read a Parquet file, with the class names that the datasets library stores in it."""
    # Imported here: only Parquet needs them, and they take a while to load.
    import pyarrow
    import pyarrow.parquet
    from datasets import ClassLabel, Features

    try:
        content = pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{source} is not a readable Parquet file: {error}") from error
    features = Features.from_arrow_schema(content.schema)
    class_names = {name: feature.names for name, feature in features.items() if isinstance(feature, ClassLabel)}
    return Table(content.to_pydict(), source, class_names=class_names)
