"""Text to pre-train on, document by document and sentence by sentence, without holding a corpus in memory."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from .contrastive_sources import TEXT_SUFFIXES
from .hub_files import local_file
from .messages import listing
from .readers import SUFFIXES, read_table


# The end of a sentence, its closing quotes and brackets, and the beginning of the next one.
_BOUNDARY = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*(\w))")
# What ends in a full stop and no sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|No|Vol|Fig|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Inc|Ltd)"
    r"\.$"
)
# A heading of WikiText: "= Title =" begins an article, "= = Part = =" and deeper ones a part of it.
_HEADING = re.compile(r"\s*(=(?: =)*) .+ \1\s*")
_FORMATS = (*SUFFIXES, *TEXT_SUFFIXES)


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, by simple rules for European languages.

    Example:

    ```python
    >>> from modeling_hire.data.corpora import split_sentences

    >>> split_sentences('Dr. Smith came at 5 p.m. on Monday. "Why?" he asked. Nobody knew.')
    ['Dr. Smith came at 5 p.m. on Monday.', '"Why?" he asked.', 'Nobody knew.']
    ```
    """
    sentences, start = [], 0
    for match in _BOUNDARY.finditer(text):
        sentence = text[start : match.end()].strip()
        begins = match[1].isupper() or match[1].isdigit()
        if begins and not _ABBREVIATION.search(text[start : match.start()]):
            sentences.append(sentence)
            start = match.end()
    rest = text[start:].strip()
    return [sentence for sentence in (*sentences, rest) if sentence]


def read_documents(paths: Iterable[str], most: int | None = None) -> Iterator[list[str]]:
    """The documents of files, each a list of sentences, as they are read.

    Args:
        paths: `.txt` and `.txt.gz`: documents are parted by blank lines, or by the headings of WikiText where there
            are any; a line is a paragraph. A file of one sentence a line without blank lines is one document.
            `.json` in SQuAD's form: the paragraphs of an article. Other tables: the column `text`, a document a row.
            `hf://datasets/OWNER/NAME/FILE` names a file on the Hub.
        most: stop after so many documents.

    Raises:
        ValueError: for a file that is not there, of another format, or without any text.
    """
    return islice((document for path in paths for document in _documents(path)), most)


def stream_documents(rows: Iterable[dict[str, Any]], column: str, most: int | None = None) -> Iterator[list[str]]:
    """The documents of a dataset that is streamed, such as `datasets.load_dataset(..., streaming=True)` gives.

    Raises:
        ValueError: for a row without that column, or whose value is no text.
    """
    for number, row in enumerate(islice(rows, most), start=1):
        if not isinstance(row.get(column), str):
            raise ValueError(
                f"row {number}: column {column!r} holds {row.get(column)!r}; allowed is text. The columns are "
                f"{listing(row)}."
            )
        sentences = [s for line in row[column].splitlines() for s in split_sentences(line)]
        if sentences:
            yield sentences


def _documents(path: str) -> Iterator[list[str]]:
    file, name = Path(local_file(path)), path.lower()
    if not file.is_file():
        raise ValueError(f"corpus_file={path!r}: no such file")
    if name.endswith(TEXT_SUFFIXES):
        documents = _of_text(file)
    elif name.endswith((".json", ".json.gz")) and (articles := _squad_articles(file)) is not None:
        documents = articles
    elif name.endswith(SUFFIXES):
        table = read_table(file)
        documents = stream_documents(({"text": text} for text in table.columns[table.require("text")]), "text")
    else:
        raise ValueError(f"corpus_file={path!r} has an unknown format: expected a name ending in {listing(_FORMATS)}")
    empty = True
    try:
        for document in documents:
            empty = False
            yield document
    except UnicodeDecodeError as error:
        raise ValueError(f"corpus_file={path!r} is no text in UTF-8: {error}") from error
    if empty:
        raise ValueError(f"corpus_file={path!r} holds no text: all its lines are blank")


def _of_text(file: Path) -> Iterator[list[str]]:
    opened = gzip.open if file.name.lower().endswith(".gz") else open
    document: list[str] = []
    has_headings = False
    with opened(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            heading = _HEADING.fullmatch(line.rstrip("\n"))
            has_headings = has_headings or heading is not None
            # Blank lines part paragraphs where headings part articles, and articles where nothing else does.
            ends = heading[1] == "=" if heading else not line.strip() and not has_headings
            if ends and document:
                yield document
                document = []
            if line.strip() and heading is None:
                document.extend(split_sentences(line))
    if document:
        yield document


def _squad_articles(file: Path) -> Iterator[list[str]] | None:
    opened = gzip.open if file.name.lower().endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8") as stream:
        content = json.load(stream)
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not all("paragraphs" in article for article in articles):
        return None
    return (
        [sentence for paragraph in article["paragraphs"] for sentence in split_sentences(paragraph["context"])]
        for article in articles
    )
