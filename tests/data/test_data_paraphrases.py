"""Generated paraphrases: what a row says, scores, splits, and the names that stand for files."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from modeling_hire.data.acceptability_words import MET, PEOPLE, PERSON_ADJECTIVES
from modeling_hire.data.contrastive import load_contrastive_data
from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.data.paraphrases import NAMES, SCORES, generate_paraphrases


VERBS = "|".join(word for group in (MET.common, MET.held_out) for (word,) in group)
PERSON = r"the ((?:\w+ )?\w+)"
# Which groups are agent, verb and patient.
WAYS = [
    (rf"{PERSON} ({VERBS}) {PERSON}\.", (1, 2, 3)),
    (rf"{PERSON} (?:was|were) ({VERBS}) by {PERSON}\.", (3, 2, 1)),
    (rf"it was {PERSON} that ({VERBS}) {PERSON}\.", (1, 2, 3)),
    (rf"it was {PERSON} that {PERSON} ({VERBS})\.", (2, 3, 1)),
]


def meaning(text: str) -> tuple[str, str, str]:
    """Who did what to whom."""
    found = [
        tuple(match[group] for group in groups)
        for pattern, groups in WAYS
        if (match := re.fullmatch(pattern, text[0].lower() + text[1:]))
    ]
    assert len(found) == 1, text
    return found[0]


@pytest.fixture(scope="module")
def data() -> dict[str, list[dict[str, Any]]]:
    return generate_paraphrases()


def test_triplets(data: dict[str, list[dict[str, Any]]]) -> None:
    assert len(data["train"]) == 2000
    for row in data["train"]:
        agent, verb, patient = meaning(row["anchor"])
        assert meaning(row["positive"]) == (agent, verb, patient) and row["positive"] != row["anchor"]
        assert meaning(row["negative"]) == (patient, verb, agent)
        assert agent.split()[-1] != patient.split()[-1]


def test_scores_say_what_two_sentences_have_in_common(data: dict[str, list[dict[str, Any]]]) -> None:
    counts = Counter(row["score"] for row in data["validation"])
    assert counts == dict.fromkeys(SCORES.values(), 100)
    for row in data["validation"]:
        one, two = meaning(row["sentence1"]), meaning(row["sentence2"])
        same = [a == b for a, b in zip(one, two, strict=True)]
        if row["score"] == 1:
            assert two == one[::-1]
        else:
            expected = {5: ([1, 1, 1],), 3: ([1, 0, 1],), 2: ([0, 1, 1], [1, 1, 0]), 0: ([0, 0, 0],)}
            assert same in expected[row["score"]], row


def test_verbs_agree_in_number(data: dict[str, list[dict[str, Any]]]) -> None:
    plural = {forms[1] for forms in (*PEOPLE.common, *PEOPLE.held_out)}
    seen = Counter()
    for row in data["train"]:
        match = re.match(rf"The (?:\w+ )?(\w+) (was|were) (?:{VERBS}) by ", row["positive"])
        if match:
            assert (match[2] == "were") == (match[1] in plural)
            seen[match[2]] += 1
    assert min(seen.values()) > 100


def test_some_words_are_in_scored_pairs_alone(data: dict[str, list[dict[str, Any]]]) -> None:
    held_out = {form for words in (PEOPLE, PERSON_ADJECTIVES, MET) for forms in words.held_out for form in forms}
    train = {word for row in data["train"] for text in row.values() for word in text.lower().strip(".").split()}
    assert not train & held_out
    pairs = [f"{row['sentence1']} {row['sentence2']}".lower().replace(".", "").split() for row in data["validation"]]
    assert 0.5 < sum(bool(held_out & set(words)) for words in pairs) / len(pairs) < 0.95


def test_a_seed_gives_the_same_sentences(data: dict[str, list[dict[str, Any]]]) -> None:
    assert generate_paraphrases() == data
    assert generate_paraphrases(seed=1)["train"] != data["train"]
    assert generate_paraphrases(num_train=10)["validation"] == data["validation"]


@pytest.mark.parametrize(
    "wrong", [{"num_train": 0}, {"num_train": 1.5}, {"num_validation": 7}, {"num_validation": True}, {"seed": "1"}]
)
def test_wrong_numbers(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        generate_paraphrases(**wrong)


def test_names_stand_for_files() -> None:
    loaded = load_contrastive_data(ContrastiveArguments(train_file=NAMES[0], validation_file=NAMES[1]))
    assert len(loaded.train) == 2000 and loaded.num_negatives == 1
    assert len(loaded.evaluation["validation"]) == 500
    single = load_contrastive_data(ContrastiveArguments(scheme="self_supervised", train_file=NAMES[0]))
    assert len(single.train) == 2000
    with pytest.raises(ValueError, match="what is generated is 'generated:paraphrases/train', "):
        load_contrastive_data(ContrastiveArguments(train_file="generated:paraphrase"))
