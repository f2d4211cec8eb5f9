"""Reading questions with their contexts and answers, and checking them before any work starts.

Whatever the source, each dataset has the columns `id`, `context`, `question`, and, where answers are known, `texts`
and `starts`: the reference answers and their first characters in the context, empty for a question without an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf

from .loading import TaskData, capped_rows
from .messages import listing
from .readers import Table, read_table
from .sources import HubUnreachableError, read_hub, split_file
from .squad_arguments import SQUAD_TASKS, SquadArguments
from .tasks import TaskSpec


# What the files of a folder are called; official releases carry their version.
FILE_NAMES = {
    "train": ("train", "train-v1.1", "train-v2.0"),
    "validation": ("dev", "validation", "dev-v1.1", "dev-v2.0"),
    "test": ("test",),
}


@dataclass
class SquadData(TaskData):
    """Questions, ready to be cut into windows.

    Args:
        version_2: whether questions may have no answer.
    """

    version_2: bool


@dataclass
class _Question:
    """One question on its way to a dataset; `where` says where it was read."""

    where: str
    id: str
    context: str
    question: str
    answers: list[tuple[str, int]]


def load_squad(args: SquadArguments, evaluation_only: bool = False) -> SquadData:
    """Read, check and cap the questions that `args` names. Nothing is written, and no file is changed.

    Args:
        args: which data, see `SquadArguments`.
        evaluation_only: leave the training questions out.

    Raises:
        HubUnreachableError: if the data is on the Hub and there is no network (a `ConnectionError` and `ValueError`).
        ValueError: if data is missing, empty or wrong; the message names file, row and question. Wrong are ids that
            are missing or occur twice, answers that are not where they are said to be, and, unless the data is said
            to have them (`version_2_with_negative`), questions without an answer.
    """
    tables = _read_tables(args, evaluation_only)
    notes: list[str] = []
    caps = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}

    def build(split: str) -> Dataset:
        questions = _collect(tables[split], args.version_2, has_answers=split != "test")
        kept = capped_rows(len(questions), getattr(args, caps[split]), args.sample_seed)
        if len(kept) < len(questions):
            notes.append(
                f"{split}: {caps[split]} keeps {len(kept)} of {len(questions)} questions "
                f"(sample_seed {args.sample_seed})."
            )
        return _to_dataset([questions[row] for row in kept], has_answers=split != "test")

    return SquadData(
        spec=_spec(args),
        version_2=args.version_2,
        train=build("train") if "train" in tables else None,
        evaluation={"validation": build("validation")} if "validation" in tables else {},
        test={"test": build("test")} if "test" in tables else {},
        notes=notes,
    )


def _spec(args: SquadArguments) -> TaskSpec:
    """What is known of the task; questions of one's own are scored as SQuAD's of the same kind."""
    if args.task is not None:
        return SQUAD_TASKS[args.task]
    known = SQUAD_TASKS["squad_v2" if args.version_2 else "squad_v1"]
    source = args.dataset_dir or next(f for f in (args.train_file, args.validation_file, args.test_file) if f)
    name = Path(source if isinstance(source, str) else source[0]).resolve().name.split(".")[0]
    return replace(known, name=name, title=name, hub_path=None)


# ---- where tables come from -----------------------------------------------------------------------------------------


def _read_tables(args: SquadArguments, evaluation_only: bool) -> dict[str, list[Table]]:
    """The tables of each split that is there."""
    given = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    paths = {split: files for split, files in given.items() if files}
    where = ", ".join(f"{split}_file={files!r}" for split, files in paths.items())
    if args.dataset_dir is not None:
        paths = _folder_files(Path(args.dataset_dir), args.task)
        where = f"dataset_dir={args.dataset_dir!r}"
    elif not paths:
        return _read_hub(args, evaluation_only)
    if evaluation_only:
        paths.pop("train", None)
        if not paths:
            raise ValueError(f"{where}: there is nothing to evaluate or predict on")
    elif "train" not in paths:
        raise ValueError(
            f"{where}: there is nothing to train on (a file such as train.json); to evaluate or predict only, set "
            "num_train_epochs=0"
        )
    return {split: [read_table(file) for file in files] for split, files in paths.items()}


def _folder_files(folder: Path, task: str | None) -> dict[str, list[str]]:
    """The files of a folder, by split."""
    if not folder.is_dir():
        raise ValueError(f"dataset_dir={str(folder)!r} is not a folder")
    home = folder / task if task is not None and (folder / task).is_dir() else folder
    other = next((name for name in SQUAD_TASKS if name != task), None)
    if task is not None and home is folder and folder.resolve().name == other:
        raise ValueError(f"dataset_dir={str(folder)!r} is the folder of task {other!r}, but task={task!r}")
    found: dict[str, list[str]] = {}
    for split, names in FILE_NAMES.items():
        files = [str(path) for name in names if (path := split_file(home, name)) is not None]
        if len(files) > 1:
            raise ValueError(
                f"dataset_dir={str(folder)!r} has several files for the split {split!r}: {listing(files)}; name "
                "those you mean by train_file and validation_file, which join them"
            )
        if files:
            found[split] = files
    if not found:
        raise ValueError(
            f"dataset_dir={str(folder)!r} has no files such as 'train.json', 'dev.json' or 'dev.json.gz'"
            + (f", and no folder {task!r} with them" if task else "")
        )
    return found


def _read_hub(args: SquadArguments, evaluation_only: bool) -> dict[str, list[Table]]:
    spec = SQUAD_TASKS[args.task]
    try:
        tables = read_hub(spec, args.dataset_revision, evaluation_only)
    except HubUnreachableError as error:
        raise HubUnreachableError(
            f"No connection to the Hub, and {spec.hub_path} is not in the local cache. To work without the Hub, give "
            "--dataset_dir DIR (a folder with train.json and dev.json) or --train_file FILE with --validation_file "
            "FILE."
        ) from error
    return {split: [table] for split, table in tables.items()}


# ---- questions ------------------------------------------------------------------------------------------------------


def _collect(tables: list[Table], version_2: bool, has_answers: bool) -> list[_Question]:
    """Join the questions of several tables, each checked."""
    questions: list[_Question] = []
    seen: dict[str, str] = {}
    for table in tables:
        before = len(questions)
        rows = _nested_rows(table) if "paragraphs" in table.columns else _flat_rows(table, has_answers)
        for where, row in rows:
            question = _question(where, row, has_answers)
            if question.id in seen:
                raise ValueError(
                    f"{where}: id={question.id!r} occurs twice, first at {seen[question.id]}; ids must differ"
                )
            seen[question.id] = where
            if has_answers and not version_2 and not question.answers:
                raise ValueError(
                    f"{where}: question {question.id!r} has no answer, and version_2_with_negative=False says that "
                    "all have one; allowed is version_2_with_negative=True"
                )
            questions.append(question)
        if len(questions) == before:
            raise ValueError(f"{table.source} is empty: it holds no questions")
    return questions


def _nested_rows(table: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions of a file in SQuAD's own format: articles of paragraphs of questions."""
    for a, paragraphs in enumerate(table.columns["paragraphs"], start=1):
        here = f"{table.source}, article {a}"
        for p, paragraph in enumerate(_objects(paragraphs, f"{here}: paragraphs"), start=1):
            there = f"{here}, paragraph {p}"
            if "qas" not in paragraph:
                raise ValueError(f"{there} has no 'qas' (its questions); its keys are {listing(paragraph)}")
            for q, row in enumerate(_objects(paragraph["qas"], f"{there}: qas"), start=1):
                yield f"{there}, question {q}", {**row, "context": paragraph.get("context")}


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{name} must be a list of objects, not {value!r:.60}")
    return value


def _flat_rows(table: Table, has_answers: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions of a table with a row each."""
    names = [table.require(name) for name in ("id", "context", "question")]
    if has_answers and "answers" not in table.columns:
        if "answer" not in table.columns:
            raise ValueError(
                f"{table.source} has no column 'answers', nor 'answer' with 'answer_start'; its columns are "
                f"{listing(table.columns)}"
            )
        table.require("answer_start")
    optional = ("answers", "answer", "answer_start", "is_impossible")
    names += [name for name in optional if name in table.columns]
    for number in range(len(table)):
        yield f"{table.source}, row {number + 1}", {name: table.columns[name][number] for name in names}


def _question(where: str, row: dict[str, Any], has_answers: bool) -> _Question:
    """Check one question."""
    identity = row.get("id")
    if identity is None or identity == "":
        raise ValueError(f"{where} has no id: every question needs an id of its own")
    for name in ("context", "question"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{where}: {name}={row.get(name)!r} of question {identity!r}: text is expected")
    question = _Question(where, str(identity), row["context"], row["question"], [])
    if has_answers:
        impossible = str(row.get("is_impossible", False)).lower() in ("true", "1")
        if not impossible and "answers" not in row and "answer" not in row:
            raise ValueError(
                f"{where}: question {identity!r} has no 'answers'; allowed is an empty list of them, or "
                "is_impossible=true, for a question without an answer"
            )
        question.answers = _answers(where, row)
        for text, start in question.answers:
            _check_answer(question, text, start)
        if impossible and question.answers:
            raise ValueError(
                f"{where}: question {identity!r} has is_impossible={row['is_impossible']!r} and the answer "
                f"{question.answers[0][0]!r}; allowed is one of the two"
            )
    return question


def _answers(where: str, row: dict[str, Any]) -> list[tuple[str, int]]:
    """The answers of a row, in whichever form they are written."""
    name = f"{where}: answers of question {row['id']!r}"
    if "answers" not in row:
        if row.get("answer") in (None, ""):
            return []
        return [(_text(row["answer"], name), _start(row.get("answer_start"), name))]
    value = row["answers"]
    if isinstance(value, str) and value.strip():  # in CSV
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: {value!r:.60} is not JSON ({error})") from error
    if value is None or value == "":
        return []
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(f"{name}: {value!r:.60}; allowed are the lists 'text' and 'answer_start' of equal length")
        return [(_text(t, name), _start(s, name)) for t, s in zip(texts, starts, strict=True)]
    return [(_text(a.get("text"), name), _start(a.get("answer_start"), name)) for a in _objects(value, name)]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{name}: text={value!r}; allowed is a text that is not empty (a question without an answer has none)"
        )
    return value


def _start(value: Any, name: str) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: answer_start={value!r}; allowed is the number of its first character, from 0")
    return value


def _check_answer(question: _Question, text: str, start: int) -> None:
    there = question.context[start : start + len(text)]
    if there == text:
        return
    place = question.context.find(text)
    elsewhere = f"it is found at {place}" if place >= 0 else "it is nowhere in the context"
    raise ValueError(
        f"{question.where}: answer {text!r} of question {question.id!r} is not at answer_start={start}, where the "
        f"context has {there!r}; {elsewhere}"
    )


def _to_dataset(questions: list[_Question], has_answers: bool) -> Dataset:
    columns: dict[str, list[Any]] = {
        name: [getattr(question, name) for question in questions] for name in ("id", "context", "question")
    }
    features: dict[str, Any] = dict.fromkeys(columns, Value("string"))
    if has_answers:
        columns["texts"] = [[text for text, _ in question.answers] for question in questions]
        columns["starts"] = [[start for _, start in question.answers] for question in questions]
        features |= {"texts": ListOf(Value("string")), "starts": ListOf(Value("int64"))}
    return Dataset.from_dict(columns, features=Features(features))
