"""Cloze tests such as CLOTH: passages with blanks, and four words to choose from for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..configuration_layerwise import is_integer
from .loading import capped_rows
from .pretraining import Frame


LEVELS = ("middle", "high")
SPLITS = {"train": ("train",), "validation": ("valid", "validation", "dev"), "test": ("test",)}
CHOICES = 4
BLANK = "_"


@dataclass
class ClozeArguments:
    """Where the passages are; made for `HfArgumentParser`.

    Raises:
        ValueError: on a wrong value; the message names the field and says what is allowed.
    """

    dataset_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder with train, valid and test, each of .json files (article, options, answers), in folders "
            "middle and high or directly."
        },
    )
    max_length: int = field(
        default=512, metadata={"help": "Tokens read at a time; a blank stands where it sees most."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on at most so many passages."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on at most so many passages."})
    sample_seed: int = field(default=0, metadata={"help": "Which passages a cap keeps."})

    def __post_init__(self) -> None:
        if self.dataset_dir is None:
            raise ValueError("dataset_dir=None: expected the folder that holds the passages")
        if not is_integer(self.max_length, 8):
            raise ValueError(f"max_length={self.max_length!r}: expected a whole number of at least 8")
        for name in ("max_train_samples", "max_eval_samples"):
            value = getattr(self, name)
            if value is not None and not is_integer(value, 1):
                raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
        if not is_integer(self.sample_seed, 0):
            raise ValueError(f"sample_seed={self.sample_seed!r}: expected a whole number of at least 0")


@dataclass(frozen=True)
class Passage:
    """A text with blanks.

    Args:
        pieces: the text around the blanks, one more than there are blanks.
        options: for each blank the words to choose from.
        answers: for each blank the number of the right one.
        level: of the school, one of `LEVELS`, or `None` if it is not known.
    """

    pieces: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    answers: tuple[int, ...]
    level: str | None


def read_passages(folder: str | Path, split: str) -> list[Passage]:
    """The passages of a split, by file name.

    Raises:
        ValueError: for a folder or file that is not there or wrong; it names the file and what is wrong.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"dataset_dir={str(folder)!r} is not a folder")
    home = next((root / name for name in SPLITS[split] if (root / name).is_dir()), None)
    files = [] if home is None else sorted(home.rglob("*.json"))
    return [_read(path) for path in files]


def _read(path: Path) -> Passage:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        article, options, answers = (content[name] for name in ("article", "options", "answers"))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no cloze test; article, options and answers are looked for ({error!r})") from error
    pieces = tuple(article.split(BLANK))
    if len(pieces) - 1 != len(options) or len(options) != len(answers):
        raise ValueError(
            f"{path}: {len(pieces) - 1} blanks ({BLANK}), {len(options)} lists of options and {len(answers)} answers; "
            "expected as many of each"
        )
    for number, (words, answer) in enumerate(zip(options, answers, strict=True), start=1):
        if len(words) != CHOICES or not all(isinstance(word, str) and word.strip() for word in words):
            raise ValueError(f"{path}: blank {number} has the options {words!r}; expected {CHOICES} words")
        if answer not in "ABCD" or len(answer) != 1:
            raise ValueError(f"{path}: blank {number} has the answer {answer!r}; expected A, B, C or D")
    level = next((level for level in LEVELS if path.parent.name == level or path.name.startswith(level)), None)
    return Passage(pieces, tuple(map(tuple, options)), tuple("ABCD".index(answer) for answer in answers), level)


def load_cloze(arguments: ClozeArguments, evaluation_only: bool) -> tuple[dict[str, list[Passage]], list[str]]:
    """The passages of each split that is there, and notes for the user.

    Raises:
        ValueError: if there is nothing to train on, or no passage at all.
    """
    found, notes = {}, []
    for split in SPLITS:
        if split == "train" and evaluation_only:
            continue
        passages = read_passages(arguments.dataset_dir, split)
        cap = arguments.max_train_samples if split == "train" else arguments.max_eval_samples
        kept = capped_rows(len(passages), cap, arguments.sample_seed)
        if len(kept) < len(passages):
            notes.append(f"{split}: {len(kept)} of {len(passages)} passages are kept.")
        if kept:
            found[split] = [passages[row] for row in kept]
    if not evaluation_only and "train" not in found:
        raise ValueError(
            f"dataset_dir={arguments.dataset_dir!r} has no passages in a folder 'train'; to evaluate only, set "
            "num_train_epochs=0"
        )
    if not found:
        raise ValueError(f"dataset_dir={arguments.dataset_dir!r} has no passages in a folder 'valid' or 'test'")
    return found, notes


def encode_passages(passages: Sequence[Passage], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Passages as windows of tokens, a mask for each blank.

    Args:
        passages: what to encode.
        tokenizer: with a mask token.
        max_length: longest window in tokens.

    Returns:
        Rows with `input_ids`, `blanks` (positions of the masks that are to be answered in this window), `options` (for
        each of these the tokens of its options), `answers`, and `levels` (numbers in `LEVELS`, -1 if not known).
    """
    frame = Frame(tokenizer, pair=False)
    rows = [row for passage in passages for row in _windows(passage, tokenizer, frame, max_length)]
    return Dataset.from_list(rows)


def _windows(
    passage: Passage, tokenizer: PreTrainedTokenizerBase, frame: Frame, max_length: int
) -> list[dict[str, Any]]:
    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text.strip() else []

    tokens, places = ids(passage.pieces[0]), []
    for piece in passage.pieces[1:]:
        places.append(len(tokens))
        tokens += [tokenizer.mask_token_id, *ids(piece)]
    room = max_length - tokenizer.num_special_tokens_to_add()
    # Windows overlap by half, and each blank is answered in the one in which it stands farthest from an end.
    starts = [0] if len(tokens) <= room else [*range(0, len(tokens) - room, max(1, room // 2)), len(tokens) - room]
    best = [max(starts, key=lambda s, p=place: min(p - s, s + room - 1 - p)) for place in places]
    rows = []
    for start in starts:
        chosen = [number for number, where in enumerate(best) if where == start]
        if not chosen:
            continue
        framed = frame(tokens[start : start + room])
        level = -1 if passage.level is None else LEVELS.index(passage.level)
        rows.append(
            {
                **{name: framed[name] for name in framed if name != "attention_mask"},
                "blanks": [places[number] - start + frame.length_ahead for number in chosen],
                # With the space before it, which is a part of the word for some tokenizers.
                "options": [[ids(f" {word}") for word in passage.options[number]] for number in chosen],
                "answers": [passage.answers[number] for number in chosen],
                "levels": [level] * len(chosen),
            }
        )
    return rows


class ClozeCollator:
    """Joins windows to a batch.

    Returns `input_ids` and `attention_mask`, (batch, tokens); `blanks`, (batch, blanks), 0 where a window has fewer;
    `options`, (batch, blanks, 4, tokens of a word), -1 where a word has fewer; and `labels`, (batch, blanks): the
    answer's number, plus 4 for each level above the first (see `split_labels`), -100 where there is no blank.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None = None):
        self.tokenizer, self.pad_to_multiple_of = tokenizer, pad_to_multiple_of

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        names = [name for name in ("input_ids", "token_type_ids") if name in rows[0]]
        texts = {name: [row[name] for row in rows] for name in names}
        batch = dict(
            self.tokenizer.pad(
                texts, pad_to_multiple_of=self.pad_to_multiple_of, return_attention_mask=True, return_tensors="pt"
            )
        )
        count = max(len(row["blanks"]) for row in rows)
        longest = max(len(word) for row in rows for blank in row["options"] for word in blank)
        batch["blanks"] = torch.zeros(len(rows), count, dtype=torch.long)
        batch["options"] = torch.full((len(rows), count, CHOICES, longest), -1)
        batch["labels"] = torch.full((len(rows), count), -100)
        for r, row in enumerate(rows):
            number = len(row["blanks"])
            batch["blanks"][r, :number] = torch.tensor(row["blanks"])
            levels = torch.tensor(row["levels"]) + 1
            batch["labels"][r, :number] = torch.tensor(row["answers"]) + CHOICES * levels
            for b, words in enumerate(row["options"]):
                for w, word in enumerate(words):
                    batch["options"][r, b, w, : len(word)] = torch.tensor(word)
        return batch


def split_labels(labels: Any) -> tuple[Any, Any]:
    """The answers and the levels (-1: not known) that labels hold."""
    return labels % CHOICES, labels // CHOICES - 1
