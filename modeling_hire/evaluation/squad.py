"""Exact match and F1 of answers, as SQuAD 1.1 and 2.0 define them (Rajpurkar et al., 2016 and 2018).

An answer counts as the best of its comparisons with the reference answers. Before that, both sides are put in lower
case and lose punctuation, the words "a", "an" and "the", and superfluous white space. All scores are percentages.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import evaluate
from datasets import Features, Value
from datasets import Sequence as ListOf

from .glue import OfflineMetric


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """An answer as it is compared: lower case, no punctuation, no articles, single spaces.

    Args:
        text: any text.

    Example:
        >>> normalize_answer("The  Eiffel-Tower, a tower!")
        'eiffeltower tower'
    """
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, reference: str) -> float:
    """1.0 if both are the same once normalised, and 0.0 otherwise.

    Example:
        >>> exact_match("the Eiffel Tower.", "Eiffel tower")
        1.0
    """
    return float(normalize_answer(answer) == normalize_answer(reference))


def word_f1(answer: str, reference: str, empty_matches: bool = True) -> float:
    """Harmonic mean of precision and recall of the answer's words, 0.0 to 1.0.

    Args:
        answer, reference: the texts; they are normalised first.
        empty_matches: whether two texts of which nothing remains score 1.0, as in SQuAD 2.0, where no answer can be
            the right one. In SQuAD 1.1 they share no word and score 0.0.

    Example:
        >>> word_f1("tall Eiffel Tower", "the Eiffel Tower")  # 2 of 3 words are right, and none is missing
        0.8
    """
    words, expected = normalize_answer(answer).split(), normalize_answer(reference).split()
    if not words or not expected:
        return float(empty_matches and words == expected)
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected))


def score_answers(
    answers: Mapping[str, str], references: Mapping[str, Sequence[str]], version_2: bool = True
) -> tuple[dict[str, float], dict[str, float]]:
    """Exact match and F1 of every question, 0.0 to 1.0.

    Args:
        answers: answer by question id; an empty text says that there is no answer.
        references: the right answers by question id; none means that the question has no answer.
        version_2: score as SQuAD 2.0 does. SQuAD 1.1 differs where nothing remains of a text (see `word_f1`), and
            knows no questions without an answer.

    Returns:
        Exact match and F1, each by question id, in the order of `references`.

    Raises:
        ValueError: if a question has no prediction, a prediction belongs to no question, or SQuAD 1.1 is to score a
            question without an answer.
    """
    _check_ids(answers, references)
    exact, f1 = {}, {}
    for key, texts in references.items():
        # References that are nothing but an article or punctuation are dropped there, and so is the last of them.
        texts = ([text for text in texts if normalize_answer(text)] or [""]) if version_2 else list(texts)
        if not texts:
            raise ValueError(f"question {key!r} has no answer, which SQuAD 1.1 does not know; score it as version 2.")
        exact[key] = max(exact_match(answers[key], text) for text in texts)
        f1[key] = max(word_f1(answers[key], text, empty_matches=version_2) for text in texts)
    return exact, f1


def _check_ids(answers: Mapping[str, Any], references: Mapping[str, Any]) -> None:
    if not references:
        raise ValueError("references={}: there is nothing to score.")
    missing = next((key for key in references if key not in answers), None)
    if missing is not None:
        raise ValueError(f"question {missing!r} has no prediction; answer '' where there is no answer.")
    unknown = next((key for key in answers if key not in references), None)
    if unknown is not None:
        raise ValueError(f"the prediction for {unknown!r} belongs to no question.")


def best_threshold(
    answered: Mapping[str, float], unanswered: Mapping[str, float], odds: Mapping[str, float]
) -> tuple[float, float]:
    """The best mean score that a threshold on the null odds gives, and that threshold.

    A question is answered if its odds are at most the threshold. Where several thresholds are as good, it is the
    lowest one. Questions of equal odds are answered together, and a threshold below all odds is found where answering
    nothing is best; the official script differs in both, and its threshold may not give its score.

    Args:
        answered: score of each question if it is answered, 0.0 to 1.0.
        unanswered: its score if it is said to have no answer.
        odds: how much more no answer is worth than the best answer.

    Returns:
        Score (a percentage) and threshold.

    Example:
        >>> answered, unanswered = {"p": 1.0, "q": 0.0, "r": 0.5}, {"p": 0.0, "q": 1.0, "r": 0.0}
        >>> best_threshold(answered, unanswered, {"p": -3.0, "q": 2.0, "r": -1.0})
        (83.33333333333333, -1.0)
    """
    order = sorted(odds, key=lambda key: odds[key])
    current = best = sum(unanswered[key] for key in order)
    threshold = odds[order[0]] - 1.0
    for place, key in enumerate(order):
        current += answered[key] - unanswered[key]
        last_of_equals = place + 1 == len(order) or odds[order[place + 1]] > odds[key]
        # Sums of the same numbers in another order differ in their last digits.
        if last_of_equals and current > best + 1e-9:
            best, threshold = current, odds[key]
    return 100.0 * best / len(order), float(threshold)


def squad_scores(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
    version_2: bool = True,
) -> dict[str, float]:
    """All of SQuAD's scores, as percentages.

    Args:
        answers: the best answer by question id, given `odds` also for questions that it will be withheld from.
        references: the right answers by question id, none where the question has none.
        odds: how much more no answer is worth than the best answer, by question id; unset, `answers` are final.
        threshold: above which odds a question is said to have no answer.
        version_2: score as SQuAD 2.0 does, see `score_answers`.

    Returns:
        `exact`, `f1` and `total`; for SQuAD 2.0 also the same of the questions with and without an answer (`HasAns_`,
        `NoAns_`, where there are such), and with `odds` the best scores that any threshold gives (`best_exact`,
        `best_f1`) and that threshold (`best_exact_thresh`, `best_f1_thresh`).

    Raises:
        ValueError: as `score_answers`, or if `odds` lack a question.

    Example:
        >>> squad_scores({"p": "Paris", "q": "1889"}, {"p": ["Paris"], "q": []}, {"p": -4.0, "q": 3.0})["exact"]
        100.0
    """
    if not version_2:
        exact, f1 = score_answers(answers, references, version_2=False)
        return _summary(exact, f1, list(references))
    final: Mapping[str, str] = answers
    if odds is not None:
        _check_ids(odds, references)
        final = {key: "" if odds[key] > threshold else answer for key, answer in answers.items()}
    exact, f1 = score_answers(final, references)
    results = _summary(exact, f1, list(references))
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        keys = [key for key, texts in references.items() if bool(texts) is wanted]
        if keys:
            results.update(_summary(exact, f1, keys, prefix))
    if odds is not None:
        answered = score_answers(answers, references)
        unanswered = score_answers(dict.fromkeys(references, ""), references)
        for name, with_answer, without in zip(("exact", "f1"), answered, unanswered, strict=True):
            results[f"best_{name}"], results[f"best_{name}_thresh"] = best_threshold(with_answer, without, odds)
    return results


def _summary(
    exact: Mapping[str, float], f1: Mapping[str, float], keys: Sequence[str], prefix: str = ""
) -> dict[str, float]:
    """Mean scores of some questions."""

    def mean(scores: Mapping[str, float]) -> float:
        return 100.0 * sum(scores[key] for key in keys) / len(keys)

    return {f"{prefix}exact": mean(exact), f"{prefix}f1": mean(f1), f"{prefix}total": len(keys)}


def no_answer_scores(references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The scores of calling every question unanswerable, the least that a model of SQuAD 2.0 should beat."""
    return squad_scores(dict.fromkeys(references, ""), references)


class SquadMetric(OfflineMetric):
    """Exact match and F1 of SQuAD, as an `evaluate.Metric` that needs no download.

    Predictions are `{"id", "prediction_text"}`, for SQuAD 2.0 with `"no_answer_probability"` (0.0 where the text is
    final); references are `{"id", "answers"}`, where `answers` holds the lists `text` and `answer_start`, empty for a
    question without an answer. `compute` takes `no_answer_threshold`: above it a question counts as not answered.

    Args:
        version_2: score as SQuAD 2.0 does; `False` scores as SQuAD 1.1.
        **kwargs: those of `evaluate.Metric`.

    Example:
        >>> metric = SquadMetric(version_2=False)
        >>> predictions = [{"id": "p", "prediction_text": "in Paris"}]
        >>> references = [{"id": "p", "answers": {"text": ["Paris"], "answer_start": [0]}}]
        >>> scores = metric.compute(predictions=predictions, references=references)
        >>> scores["exact"], round(scores["f1"], 2)
        (0.0, 66.67)
    """

    def __init__(self, version_2: bool = True, **kwargs: Any) -> None:
        self.version_2 = version_2
        super().__init__(**kwargs)

    def _info(self) -> evaluate.MetricInfo:
        answers = {"text": ListOf(Value("string")), "answer_start": ListOf(Value("int64"))}
        references = {"id": Value("string"), "answers": answers}
        prediction = {"id": Value("string"), "prediction_text": Value("string")}
        if self.version_2:
            prediction["no_answer_probability"] = Value("float64")
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="",
            features=Features({"predictions": prediction, "references": references}),
        )

    def _compute(
        self,
        predictions: Sequence[Mapping[str, Any]],
        references: Sequence[Mapping[str, Any]],
        no_answer_threshold: float = 1.0,
    ) -> dict[str, float]:
        expected = {row["id"]: list(row["answers"]["text"]) for row in references}
        answers = {row["id"]: row["prediction_text"] for row in predictions}
        for rows, ids in ((references, expected), (predictions, answers)):
            if len(ids) < len(rows):
                raise ValueError("id: there are several rows of the same id; ids must differ.")
        odds = {row["id"]: row["no_answer_probability"] for row in predictions} if self.version_2 else None
        return squad_scores(answers, expected, odds, no_answer_threshold, self.version_2)
