"""SQuAD's scores against hand computation, a naive search of the threshold, and what must not change them."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Any

import pytest

from modeling_hire.evaluation.squad import (
    SquadMetric,
    best_threshold,
    exact_match,
    no_answer_scores,
    normalize_answer,
    score_answers,
    squad_scores,
    word_f1,
)


WORDS = ("the", "a", "an", "Paris", "1889,", "tower", "Iron", "-", "iron.", "Eiffel's", "of")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a test tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower", "eiffel tower"),
        ("  two\twords\n", "two words"),
        ("An apple, a day.", "apple day"),
        ("theatre and another", "theatre and another"),  # articles inside words stay
        ("U.S.A.", "usa"),
        ("a-b", "ab"),  # punctuation goes first, so that this "a" is no article
        ("A", ""),
        ("the a an", ""),
        ("$1,000.50", "100050"),
        ("caf\u00e9 \u2013 \u00c9t\u00e9", "caf\u00e9 \u2013 \u00e9t\u00e9"),  # punctuation is ASCII's alone
        ("", ""),
    ],
)
def test_normalisation_by_hand(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "f1"),
    [
        ("Denver Broncos", "the Denver Broncos!", 1, 1),
        ("Denver", "Denver Broncos", 0, 2 / 3),  # precision 1, recall 1/2
        ("the champion Denver Broncos", "Denver Broncos", 0, 0.8),  # precision 2/3, recall 1
        ("red red blue", "red blue blue", 0, 2 / 3),  # each word counts as often as in both: 2 of 3 and 3
        ("Carolina", "Denver", 0, 0),
        ("", "Denver", 0, 0),
        ("Denver", "", 0, 0),
        ("", "", 1, 1),
        ("the", "", 1, 1),
    ],
)
def test_scores_of_one_answer_by_hand(answer: str, reference: str, exact: float, f1: float) -> None:
    assert exact_match(answer, reference) == exact
    assert word_f1(answer, reference) == pytest.approx(f1)


def test_the_two_versions_differ_on_empty_texts() -> None:
    assert word_f1("the", "The", empty_matches=False) == 0
    exact, f1 = score_answers({"q": "a"}, {"q": ["The"]}, version_2=False)
    assert exact == {"q": 1} and f1 == {"q": 0}
    assert score_answers({"q": "a"}, {"q": ["The"]}) == ({"q": 1}, {"q": 1})
    # A reference of which nothing remains does not count beside others in SQuAD 2.0.
    assert score_answers({"q": ""}, {"q": ["the", "Paris"]})[0] == {"q": 0}


def test_the_best_reference_counts() -> None:
    references = {"q": ["in the year 1889", "1889", "May 1889"]}
    assert score_answers({"q": "1889"}, references) == ({"q": 1}, {"q": 1})
    assert score_answers({"q": "year 1889"}, references)[1]["q"] == pytest.approx(0.8)


ANSWERS = {"p": "Paris", "q": "1889", "r": "iron tower", "s": "Gustave"}
REFERENCES: dict[str, list[str]] = {"p": ["Paris"], "q": [], "r": ["the iron lattice tower"], "s": []}


def test_all_scores_by_hand() -> None:
    odds = {"p": -5.0, "q": 2.0, "r": 1.0, "s": -1.0}
    # At 0 the questions p and s are answered: p is right, q rightly not answered, r wrongly not, s wrongly answered.
    expected = {"exact": 50, "f1": 50, "total": 4, "HasAns_exact": 50, "HasAns_f1": 50, "HasAns_total": 2}
    expected |= {"NoAns_exact": 50, "NoAns_f1": 50, "NoAns_total": 2}
    # Answering p alone: p, q and s are right. Answering up to r: p, q, and 0.8 of r, which is less.
    expected |= {"best_exact": 75, "best_exact_thresh": -5, "best_f1": 75, "best_f1_thresh": -5}
    assert squad_scores(ANSWERS, REFERENCES, odds) == pytest.approx(expected)
    # With s above r the best F1 answers r as well, and exact match does not.
    odds["s"] = 1.5
    scores = squad_scores(ANSWERS, REFERENCES, odds, threshold=1.0)
    assert scores["f1"] == pytest.approx(100 * 3.8 / 4) and scores["exact"] == 75
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(95), 1.0)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75, -5.0)


def test_without_odds_the_answers_are_final() -> None:
    scores = squad_scores({**ANSWERS, "q": ""}, REFERENCES)
    assert scores["exact"] == 50 and "best_f1" not in scores
    assert squad_scores({"p": "paris"}, {"p": ["Paris"]}, version_2=False) == {"exact": 100, "f1": 100, "total": 1}


def test_calling_everything_unanswerable() -> None:
    scores = no_answer_scores(REFERENCES)
    assert scores["exact"] == scores["f1"] == 50
    assert scores["NoAns_f1"] == 100 and scores["HasAns_f1"] == 0
    assert "NoAns_f1" not in no_answer_scores({"p": ["Paris"]})


def drawn(count: int, seed: int) -> tuple[dict[str, str], dict[str, list[str]], dict[str, float]]:
    numbers = random.Random(seed)

    def text() -> str:
        return " ".join(numbers.choices(WORDS, k=numbers.randint(1, 4)))

    ids = [f"id{i}" for i in range(count)]
    references = {key: [text() for _ in range(numbers.choice((0, 0, 1, 3)))] for key in ids}
    answers = {key: numbers.choice([text(), *references[key]]) for key in ids}
    return answers, references, {key: numbers.choice((-2, -1, 0, 1, 2)) + numbers.choice((0, 0.25)) for key in ids}


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_that_of_a_naive_search(seed: int) -> None:
    """Odds come in few values, so that there are ties."""
    answers, references, odds = drawn(30, seed)
    scores = squad_scores(answers, references, odds)
    for name in ("exact", "f1"):
        naive = {t: squad_scores(answers, references, odds, t)[name] for t in sorted({-9.0, *odds.values()})}
        assert scores[f"best_{name}"] == pytest.approx(max(naive.values()))
        reached = squad_scores(answers, references, odds, scores[f"best_{name}_thresh"])
        assert reached[name] == pytest.approx(scores[f"best_{name}"])


def test_threshold_without_ties_is_the_official_one() -> None:
    """Worked by hand: 2 of 5 without an answer; answering in the order of the odds gives 3, 3, 2, 3, 2."""
    answered = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0, "e": 0.0}
    unanswered = {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0, "e": 1.0}
    odds = {"a": -4.0, "b": -3.0, "c": -2.0, "d": -1.0, "e": 0.0}
    assert best_threshold(answered, unanswered, odds) == (60.0, -4.0)
    answered["b"] = 1.0
    assert best_threshold(answered, unanswered, odds) == (80.0, -3.0)


@pytest.mark.parametrize("seed", range(5))
def test_order_and_repetition_change_nothing(seed: int) -> None:
    answers, references, odds = drawn(25, seed)
    before = squad_scores(answers, references, odds)
    keys = list(references)
    random.Random(seed + 100).shuffle(keys)
    turned = squad_scores(
        {key: answers[key] for key in reversed(keys)},
        {key: references[key][::-1] for key in keys},
        {key: odds[key] for key in sorted(keys)},
    )
    assert turned == pytest.approx(before)
    twice = [{f"{key}{copy}": part[key] for copy in "xy" for key in keys} for part in (answers, references, odds)]
    doubled = squad_scores(*twice)
    totals = {name: 2 * value for name, value in before.items() if name.endswith("total")}
    assert doubled == pytest.approx({**before, **totals})
    whole = squad_scores(answers, {key: texts * 2 for key, texts in references.items()}, odds)
    assert whole == pytest.approx(before)
    for name in ("exact", "f1"):
        parts = sum(before[f"{p}_{name}"] * before[f"{p}_total"] for p in ("HasAns", "NoAns"))
        assert before[name] == pytest.approx(parts / before["total"])


def test_exact_never_exceeds_f1() -> None:
    answers, references, _ = drawn(300, seed=7)
    exact, f1 = score_answers(answers, references)
    assert all(exact[key] <= f1[key] for key in references)


def as_rows(
    answers: dict[str, str], references: dict[str, list[str]], odds: dict[str, float] | None = None
) -> tuple[list[dict], list[dict]]:
    predictions = [{"id": key, "prediction_text": text} for key, text in answers.items()]
    for row in predictions if odds else []:
        row["no_answer_probability"] = odds[row["id"]]
    expected = [
        {"id": key, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for key, texts in references.items()
    ]
    return predictions, expected


def test_the_metric_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers, references, odds = drawn(40, seed=3)
    predictions, expected = as_rows(answers, references, odds)
    metric = SquadMetric()
    for start in range(0, 40, 7):
        part = slice(start, start + 7)
        metric.add_batch(predictions=predictions[part], references=expected[part])
    assert metric.compute(no_answer_threshold=0.5) == squad_scores(answers, references, odds, 0.5)
    final, _ = as_rows(answers, references, dict.fromkeys(answers, 0.0))
    scores = metric.compute(predictions=final, references=expected)
    assert {name: scores[name] for name in scores if "best" not in name} == squad_scores(answers, references)
    predictions, expected = as_rows({"p": "x"}, {"p": ["X", "y"]})
    one = SquadMetric(version_2=False).compute(predictions=predictions, references=expected)
    assert one == {"exact": 100, "f1": 100, "total": 1}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("answers", "references", "version_2", "said"),
    [
        ({}, {"p": []}, True, "'p' has no prediction"),
        ({"p": "", "z": "x"}, {"p": []}, True, "'z' belongs to no question"),
        ({"p": ""}, {"p": []}, False, "'p' has no answer"),
        ({}, {}, True, "nothing to score"),
    ],
)
def test_refusals(answers: dict, references: dict, version_2: bool, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        squad_scores(answers, references, version_2=version_2)


def test_metric_refuses_repeated_ids_and_missing_odds() -> None:
    predictions, expected = as_rows({"p": "x"}, {"p": []}, {"p": 0.0})
    with pytest.raises(ValueError, match="same id"):
        SquadMetric().compute(predictions=predictions * 2, references=expected * 2)
    with pytest.raises(ValueError, match="'q' has no prediction"):
        squad_scores({"p": "", "q": ""}, {"p": [], "q": []}, {"p": 1.0})
