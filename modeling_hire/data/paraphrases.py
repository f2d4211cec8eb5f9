"""Generated English paraphrases: texts of the offline quick start of sentence embeddings.

Every sentence is written by the small grammar below, about somebody who did something to somebody else; none was
collected from a corpus or from people. So a score on them says that a program runs and learns, not how well a model
knows English.

An event is said in four ways, which are paraphrases of each other:

    The tall boy thanked the teachers.             The teachers were thanked by the tall boy.
    It was the tall boy that thanked the teachers. It was the teachers that the tall boy thanked.

Turned around, the same words tell another event, which is the hard negative: "The teachers thanked the tall boy." What
a sentence says is in the order of its words, not in which words there are. The scored pairs draw a third of their
nouns, verbs and adjectives from words that no training sentence holds.

In `run_contrastive.py` the names `generated:paraphrases/train` and `generated:paraphrases/validation` stand for the
two as files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from .acceptability import _Picker
from .acceptability_words import MET
from .messages import listing
from .readers import Table


PREFIX = "generated:"
NAMES = ("generated:paraphrases/train", "generated:paraphrases/validation")
# What two sentences have in common, from all to nothing, and the score of such a pair.
SCORES = {"event": 5.0, "people and roles": 3.0, "verb and one role": 2.0, "words": 1.0, "nothing": 0.0}


@dataclass(frozen=True)
class _Event:
    """Somebody did something to somebody else."""

    agent: str
    verb: str
    patient: str
    agent_is_plural: bool
    patient_is_plural: bool

    def turned(self) -> _Event:
        """The same with the roles exchanged."""
        return _Event(self.patient, self.verb, self.agent, self.patient_is_plural, self.agent_is_plural)

    def said(self, way: int) -> str:
        """The event as a sentence."""
        agent, verb, patient = self.agent, self.verb, self.patient
        text = (
            f"the {agent} {verb} the {patient}",
            f"the {patient} {'were' if self.patient_is_plural else 'was'} {verb} by the {agent}",
            f"it was the {agent} that {verb} the {patient}",
            f"it was the {patient} that the {agent} {verb}",
        )[way]
        return text[0].upper() + text[1:] + "."


def generate_paraphrases(
    num_train: int = 2000, num_validation: int = 500, seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """
    Generates triplets to learn from and scored pairs to test on.

    Args:
        num_train: triplets.
        num_validation: scored pairs, equally many of each score; a multiple of 5. They depend on this number and
            `seed` alone.
        seed: the same seed gives the same sentences in the same order.

    Returns:
        `{"train": rows, "validation": rows}`. A training row is `{"anchor": str, "positive": str (the same event in
        another way), "negative": str (the event turned around)}`, a validation row `{"sentence1": str, "sentence2":
        str, "score": float}`: 5 for the same event in another way, 3 for another verb, 2 for another person in one of
        the roles, 1 for the event turned around, and 0 for another event.

    Raises:
        ValueError: a number is not a whole one of at least 1, or `num_validation` is no multiple of 5.

    Example:
        >>> data = generate_paraphrases(num_train=4, num_validation=10)
        >>> [sorted(rows[0]) for rows in data.values()]
        [['anchor', 'negative', 'positive'], ['score', 'sentence1', 'sentence2']]
        >>> sorted(row["score"] for row in data["validation"])
        [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 5.0, 5.0]
    """
    for name, value in (("num_train", num_train), ("num_validation", num_validation)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}: must be a whole number of at least 1")
    if num_validation % len(SCORES):
        raise ValueError(f"num_validation={num_validation!r}: must be a multiple of {len(SCORES)}, the kinds of pairs")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed={seed!r}: must be an integer")
    return {
        "train": _triplets(num_train, random.Random(f"paraphrases train {seed}")),
        "validation": _scored_pairs(num_validation, random.Random(f"paraphrases validation {seed}")),
    }


def generated_table(name: str) -> Table:
    """The table that a name such as `generated:paraphrases/train` stands for.

    Raises:
        ValueError: for a name that stands for none.
    """
    if name not in NAMES:
        raise ValueError(f"{name!r}: what is generated is {listing(NAMES)}")
    rows = generate_paraphrases()[name.rpartition("/")[2]]
    return Table({column: [row[column] for row in rows] for column in rows[0]}, name)


def _triplets(count: int, rng: random.Random) -> list[dict[str, str]]:
    pick, rows = _Picker(rng, held_out=False), []
    for _ in range(count):
        event, (first, second) = _event(pick), rng.sample(range(4), 2)
        negative = event.turned().said(rng.randrange(4))
        rows.append({"anchor": event.said(first), "positive": event.said(second), "negative": negative})
    return rows


def _scored_pairs(count: int, rng: random.Random) -> list[dict[str, Any]]:
    pick, rows = _Picker(rng, held_out=True), []
    for _ in range(count // len(SCORES)):
        for kind, score in SCORES.items():
            event, (first, second) = _event(pick), rng.sample(range(4), 2)
            other = _other_event(event, kind, pick)
            rows.append({"sentence1": event.said(first), "sentence2": other.said(second), "score": score})
    rng.shuffle(rows)
    return rows


def _event(pick: _Picker) -> _Event:
    plural = pick.coin(), pick.coin()
    agent = pick.person(plural[0])
    return _Event(agent, pick.word(MET), pick.person(plural[1], avoid=agent), *plural)


def _other_event(event: _Event, kind: str, pick: _Picker) -> _Event:
    """An event that has with the given one in common what a key of `SCORES` says."""
    if kind == "event":
        return event
    if kind == "words":
        return event.turned()
    new = _event(pick)
    said = f"{event.agent} {event.patient} {event.verb}"
    while {*new.agent.split()[-1:], *new.patient.split()[-1:], new.verb} & {*said.split()}:
        new = _event(pick)
    if kind == "people and roles":
        return replace(event, verb=new.verb)
    if kind == "verb and one role":
        if pick.coin():
            return replace(event, agent=new.agent, agent_is_plural=new.agent_is_plural)
        return replace(event, patient=new.patient, patient_is_plural=new.patient_is_plural)
    return new
