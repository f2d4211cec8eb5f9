"""A generated English acceptability task: the data of the offline quick start.

Every sentence is written by the small grammar below; none was collected from a corpus or from people. So a score on
this task says that a program runs and learns, not how well a model knows English. For results that compare with other
work use CoLA.

The sentences come in minimal pairs. Both members of a pair have the same words but one (or, for `npi_licensing`, the
same words in another order), and exactly one member is acceptable:

    The key beside the old cabinets is heavy.      1
    The key beside the old cabinets are heavy.     0

The word that decides is acceptable as often as it is not, so that counting words cannot tell the two apart: the model
has to relate two words, in half of the sentences across others in between. The validation sentences draw a third of
their nouns, verbs and adjectives from words that no training sentence holds.

    python -m modeling_hire.data.acceptability OUT_DIR --num_train 4000 --num_validation 500 --seed 0

writes `OUT_DIR/acceptability/train.jsonl` and `OUT_DIR/acceptability/validation.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .acceptability_words import (
    GONE,
    HURT,
    MANNERS,
    MEN,
    MET,
    OPENERS,
    PEOPLE,
    PERSON_ADJECTIVES,
    PERSON_STATES,
    PLACES,
    SMILES,
    TAKE,
    THING_ADJECTIVES,
    THING_STATES,
    THINGS,
    WOMEN,
    Words,
)


TASK_NAME = "acceptability"

# A pair is built by drawing words until both members are new; this many draws without success mean there are no more.
_MAX_DRAWS = 2000
# The part of the validation split's words that training never saw.
_HELD_OUT_SHARE = 1 / 3


class _Picker:
    """Draws words for one split: from the common ones, and for validation a third of them from the held-out ones."""

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self._rng = rng
        self._held_out = held_out

    def forms(self, words: Words) -> tuple[str, ...]:
        """One word with all its forms."""
        held_out = self._held_out and self._rng.random() < _HELD_OUT_SHARE
        return self._rng.choice(words.held_out if held_out else words.common)

    def word(self, words: Words) -> str:
        """One word in its first form."""
        return self.forms(words)[0]

    def one_of(self, *options: str) -> str:
        """One of the given strings."""
        return self._rng.choice(options)

    def coin(self) -> bool:
        """True half of the time."""
        return self._rng.random() < 0.5

    def noun(self, words: Words, plural: bool, adjectives: Words, avoid: str = "") -> str:
        """A noun, every second time after an adjective; not the noun that stands in `avoid`, in either number."""
        forms = self.forms(words)
        while not set(forms).isdisjoint(avoid.split()):
            forms = self.forms(words)
        adjective = f"{self.word(adjectives)} " if self.coin() else ""
        return adjective + forms[plural]

    def person(self, plural: bool, avoid: str = "") -> str:
        """A noun for people."""
        return self.noun(PEOPLE, plural, PERSON_ADJECTIVES, avoid)

    def thing(self, plural: bool, avoid: str = "") -> str:
        """A noun for things."""
        return self.noun(THINGS, plural, THING_ADJECTIVES, avoid)

    def place(self, avoid: str) -> str:
        """Every second time a place, "next to the old lamps", whose noun has either number."""
        return f" {self.word(PLACES)} the {self.thing(self.coin(), avoid)}" if self.coin() else ""

    def modifier(self, avoid: str) -> str:
        """Every second time a place or a relative clause, whose person distracts from the one it belongs to."""
        if self.coin():
            return ""
        other, verb = self.person(self.coin(), avoid), self.word(MET)
        clauses = f" who {verb} the {other}", f" that the {other} {verb}"
        return self.one_of(*clauses, f" {self.word(PLACES)} the {other}")


# --------------------------------------------------------------------------------------------------------------------
# Phenomena: each returns (acceptable, unacceptable), still without capital and full stop. A coin says which of the two
# forms is the right one, so that each form is as frequent in acceptable sentences as in the others.
# --------------------------------------------------------------------------------------------------------------------
_Pair = tuple[str, str]


def _fill(frame: str, good: str, bad: str) -> _Pair:
    return frame.format(good), frame.format(bad)


def _subject_verb_agreement(pick: _Picker) -> _Pair:
    """The key beside the cabinets is/*are heavy. The boys that the teacher praised sing/*sings at home."""
    plural = pick.coin()
    if pick.coin():
        subject = pick.thing(plural)
        between, rest = pick.place(avoid=subject), pick.word(THING_STATES)
        forms = pick.one_of("is/are", "was/were", "looks/look", "seems/seem").split("/")
    else:
        subject = pick.person(plural)
        between = pick.modifier(avoid=subject)
        if pick.coin():
            forms, rest = list(pick.forms(SMILES)), pick.word(MANNERS)
        else:
            forms, rest = pick.one_of("is/are", "was/were").split("/"), pick.word(PERSON_STATES)
    return _fill(f"the {subject}{between} {{}} {rest}", forms[plural], forms[not plural])


def _determiner_noun(pick: _Picker) -> _Pair:
    """The chef repaired those/*that small clocks near the lamp."""
    plural = pick.coin()
    forms = pick.one_of("this/these", "that/those").split("/")
    thing = pick.thing(plural)
    frame = f"the {pick.person(pick.coin())} {pick.forms(TAKE)[1]} {{}} {thing}{pick.place(avoid=thing)}"
    return _fill(frame, forms[plural], forms[not plural])


def _reflexive_number(pick: _Picker) -> _Pair:
    """The girl near the boys hurt herself/*themselves."""
    plural, pronoun = pick.coin(), pick.one_of("himself", "herself")
    subject = pick.noun(MEN if pronoun == "himself" else WOMEN, plural, PERSON_ADJECTIVES)
    forms = (pronoun, "themselves")
    frame = f"the {subject}{pick.modifier(avoid=subject)} {pick.word(HURT)} {{}}"
    return _fill(frame, forms[plural], forms[not plural])


def _reflexive_gender(pick: _Picker) -> _Pair:
    """The king who met the queen blamed himself/*herself."""
    female = pick.coin()
    subject = pick.noun(WOMEN if female else MEN, False, PERSON_ADJECTIVES)
    forms = ("himself", "herself")
    frame = f"the {subject}{pick.modifier(avoid=subject)} {pick.word(HURT)} {{}}"
    return _fill(frame, forms[female], forms[not female])


def _npi_licensing(pick: _Picker) -> _Pair:
    """In this town no boy that the girls met has ever lied. *In this town the boy that no girls met has ever lied."""
    plural = pick.coin()
    subject = pick.person(plural)
    other = pick.person(pick.coin(), avoid=subject)
    # Something always stands in front: a capital "No" would be acceptable every time.
    frame = f"{pick.word(OPENERS)} {{}} {subject} that {{}} {other} {pick.word(MET)} "
    frame += f"{'have' if plural else 'has'} ever {pick.word(GONE)}"
    return frame.format("no", "the"), frame.format("the", "no")


def _verb_form(pick: _Picker) -> _Pair:
    """The nurse will quietly take/*taken/*taking the lamp."""
    plural = pick.coin()
    base, _, participle, progressive = pick.forms(TAKE)
    form_of = {"will": base, "had": participle, "were" if plural else "was": progressive}
    auxiliary = pick.one_of(*form_of)
    wrong = pick.one_of(*(form for form in form_of.values() if form != form_of[auxiliary]))
    adverb = f" {pick.one_of('quietly', 'quickly', 'secretly', 'of course')}" if pick.coin() else ""
    frame = f"the {pick.person(plural)} {auxiliary}{adverb} {{}} the {pick.thing(pick.coin())}"
    return _fill(frame, form_of[auxiliary], wrong)


# Six and no more: in a mixture of ten, 1500 sentences are too few for all-MiniLM-L6-v2 to learn most of them.
_PHENOMENA: dict[str, Callable[[_Picker], _Pair]] = {
    "subject_verb_agreement": _subject_verb_agreement,
    "determiner_noun": _determiner_noun,
    "reflexive_number": _reflexive_number,
    "reflexive_gender": _reflexive_gender,
    "npi_licensing": _npi_licensing,
    "verb_form": _verb_form,
}
PHENOMENA: tuple[str, ...] = tuple(_PHENOMENA)


# --------------------------------------------------------------------------------------------------------------------
# The task
# --------------------------------------------------------------------------------------------------------------------
def generate_acceptability(
    num_train: int = 4000, num_validation: int = 500, seed: int = 0
) -> dict[str, list[dict[str, str | int]]]:
    """
    Generates the acceptability task: minimal pairs of English sentences, half of them acceptable.

    Args:
        num_train: rows of the training split; an even number, since both members of a pair go to one split.
        num_validation: rows of the validation split; an even number. These rows depend on `num_validation` and `seed`
            alone: a longer training split is validated on the same sentences.
        seed: the same seed gives the same sentences in the same order.

    Returns:
        `{"train": rows, "validation": rows}`. A row is `{"sentence": str, "label": 0 or 1 (1 is acceptable),
        "phenomenon": one of PHENOMENA, "idx": its position in the split}`. The phenomena are equally frequent, no
        sentence appears twice, in whichever split.

    Raises:
        ValueError: a number of rows is not an even number of at least 2, `seed` is not an integer, or more rows are
            asked for than the grammar has sentences.

    Example:
        >>> data = generate_acceptability(num_train=20, num_validation=10, seed=0)
        >>> len(data["train"]), len(data["validation"])
        (20, 10)
        >>> sorted(data["train"][0])
        ['idx', 'label', 'phenomenon', 'sentence']
        >>> sum(row["label"] for row in data["train"])
        10
    """
    for name, value in (("num_train", num_train), ("num_validation", num_validation)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 2 or value % 2:
            raise ValueError(f"{name}={value!r}: must be an even number of at least 2 (the rows come in pairs)")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed={seed!r}: must be an integer")

    seen: set[str] = set()
    validation = _split("num_validation", num_validation, random.Random(f"validation {seed}"), True, seen)
    train = _split("num_train", num_train, random.Random(f"train {seed}"), False, seen)
    return {"train": train, "validation": validation}


def _split(
    field: str, num_rows: int, rng: random.Random, held_out: bool, seen: set[str]
) -> list[dict[str, str | int]]:
    """The rows of one split, none of them in `seen`, to which they are added."""
    pick = _Picker(rng, held_out)
    rows: list[dict[str, str | int]] = []
    for pair in range(num_rows // 2):
        phenomenon = PHENOMENA[pair % len(PHENOMENA)]
        for _ in range(_MAX_DRAWS):
            good, bad = (text[0].upper() + text[1:] + "." for text in _PHENOMENA[phenomenon](pick))
            if good not in seen and bad not in seen:
                break
        else:
            raise ValueError(
                f"{field}={num_rows}: the grammar has no more new sentences for {phenomenon!r} after "
                f"{len(rows)} rows; ask for fewer rows"
            )
        seen.update((good, bad))
        rows.append({"sentence": good, "label": 1, "phenomenon": phenomenon})
        rows.append({"sentence": bad, "label": 0, "phenomenon": phenomenon})
    rng.shuffle(rows)
    for idx, row in enumerate(rows):
        row["idx"] = idx
    return rows


def write_acceptability(
    output_dir: str | os.PathLike[str], num_train: int = 4000, num_validation: int = 500, seed: int = 0
) -> dict[str, Path]:
    """
    Writes the generated task as JSON Lines, in the folder layout of `run_glue.py --dataset_dir`.

    Args:
        output_dir: the files go to `output_dir/acceptability/`; folders that are missing are made.
        num_train, num_validation, seed: see [`generate_acceptability`].

    Returns:
        The path of each split's file, `{"train": ..., "validation": ...}`.

    Raises:
        FileExistsError: a file is there already and holds something else. Nothing is written then. A file with exactly
            these rows is left as it is.
        ValueError: as [`generate_acceptability`].

    Example:
        >>> import tempfile
        >>> paths = write_acceptability(tempfile.mkdtemp(), num_train=20, num_validation=10)
        >>> paths["train"].name, len(paths["train"].read_text().splitlines())
        ('train.jsonl', 20)
    """
    folder = Path(output_dir) / TASK_NAME
    contents: dict[Path, bytes] = {}
    for split, rows in generate_acceptability(num_train, num_validation, seed).items():
        contents[folder / f"{split}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8")
    missing = {path: content for path, content in contents.items() if not path.exists()}
    for path, content in contents.items():
        if path not in missing and path.read_bytes() != content:
            raise FileExistsError(
                f"{path} exists and holds other rows than num_train={num_train}, num_validation={num_validation}, "
                f"seed={seed} give: delete it or name another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in missing.items():
        _write_atomically(path, content)
    return {path.stem: path for path in contents}


def _write_atomically(path: Path, content: bytes) -> None:
    """A reader sees the whole file or none, also when the program is killed half-way."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes files that only their owner may read.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: see the top of this file."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling_hire.data.acceptability",
        description="Writes a generated English acceptability task (minimal pairs) as JSON Lines.",
    )
    parser.add_argument("output_dir", metavar="OUT_DIR", help="the files go to OUT_DIR/acceptability/")
    parser.add_argument("--num_train", type=int, default=4000, help="training rows, even (default: %(default)s)")
    parser.add_argument("--num_validation", type=int, default=500, help="validation rows, even (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        paths = write_acceptability(options.output_dir, options.num_train, options.num_validation, options.seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print("Generated sentences, not collected ones:")
    for split, path in paths.items():
        print(f"  {split:<10} {path}")


if __name__ == "__main__":
    main()
