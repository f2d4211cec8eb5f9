"""From start and end logits to answers: one decoder for the training script and for `predict_spans`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.spans import Window


# Null odds of a question whose context holds no token: no logits differ by so much, and JSON has no infinity.
NO_SPAN_ODDS = 1e6


@dataclass(frozen=True)
class Span:
    """A stretch of a context.

    Args:
        start, end: its first character and the one after its last.
        start_logit, end_logit: of the tokens at its ends.
    """

    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Sum of both logits."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Candidates:
    """What a model finds for one question.

    Args:
        spans: different stretches of the context, the best first; none if the context holds no token.
        null_score: what "no answer" is worth: the least sum of the logits of the classification token over the
            question's windows. (In most windows of a long context there is no answer, and that is no wonder.)
    """

    spans: list[Span]
    null_score: float

    @property
    def odds(self) -> float:
        """How much more no answer is worth than the best span."""
        return self.null_score - self.spans[0].score if self.spans else NO_SPAN_ODDS

    def answer(self, threshold: float | None) -> Span | None:
        """The best span, or `None` if the odds are above the threshold or there is no span.

        Args:
            threshold: on `odds`; `None` means that there is an answer wherever there is a token.
        """
        if not self.spans or (threshold is not None and self.odds > threshold):
            return None
        return self.spans[0]

    def probabilities(self, with_null: bool) -> np.ndarray:
        """Softmax of the scores of the spans, and of the null score after them if wanted."""
        scores = np.array([span.score for span in self.spans] + [self.null_score] * with_null)
        weights = np.exp(scores - scores.max(initial=-np.inf))
        return weights / weights.sum()


def decode_spans(
    windows: Iterable[Window],
    start_logits: Iterable[np.ndarray],
    end_logits: Iterable[np.ndarray],
    num_questions: int,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> list[Candidates]:
    """The best spans of every question, over all its windows.

    All pairs of a start and an end in a window's context are looked at that make an answer of at most
    `max_answer_length` tokens. Windows overlap: a stretch that several of them show counts once, with its best score.

    Args:
        windows: in any order.
        start_logits, end_logits: for each window `(tokens,)`, padded on the right or not. Sums of log-probabilities,
            as an ensemble makes them, will do as well.
        num_questions: how many questions there are.
        n_best_size: how many spans to keep of a question.
        max_answer_length: longest answer in tokens.

    Returns:
        The candidates of each question, in the order of the questions.

    Raises:
        ValueError: if a number is out of range, logits are NaN, or a question has no window.

    Example:
        >>> import numpy as np
        >>> from modeling_hire.data.spans import Window
        >>> starts, ends = np.array([0, 4, 8]), np.array([3, 7, 11])  # "Ann met Bob" after "[CLS] who [SEP]"
        >>> window = Window(0, {}, first=3, starts=starts, ends=ends, null=0, answer=(0, 0))
        >>> start, end = np.array([1.0, 9, 9, 0, 0, 3]), np.array([0.5, 9, 9, 1, 0, 2])
        >>> (found,) = decode_spans([window], [start], [end], num_questions=1)
        >>> (found.spans[0].start, found.spans[0].end, found.spans[0].score), found.null_score
        ((8, 11, 5.0), 1.5)
    """
    for name, value in (("n_best_size", n_best_size), ("max_answer_length", max_answer_length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
    best: list[dict[tuple[int, int], Span]] = [{} for _ in range(num_questions)]
    null_scores = [np.inf] * num_questions
    for window, start, end in zip(windows, start_logits, end_logits, strict=True):
        start, end = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
        if np.isnan(start).any() or np.isnan(end).any():
            raise ValueError(
                "logits are NaN: the model has diverged (a lower learning rate or full precision may help)"
            )
        null_scores[window.row] = min(null_scores[window.row], float(start[window.null] + end[window.null]))
        found = best[window.row]
        for span in _spans_of(window, start, end, n_best_size, max_answer_length):
            key = (span.start, span.end)
            if key not in found or found[key].score < span.score:
                found[key] = span
    without = next((row for row, score in enumerate(null_scores) if score == np.inf), None)
    if without is not None:
        raise ValueError(f"windows: there is none of question {without}.")
    ranked = [sorted(found.values(), key=lambda span: (-span.score, span.start, span.end)) for found in best]
    return [Candidates(spans[:n_best_size], null) for spans, null in zip(ranked, null_scores, strict=True)]


def _spans_of(window: Window, start: np.ndarray, end: np.ndarray, n_best_size: int, max_answer_length: int):
    """The best spans of one window."""
    count = len(window.starts)
    if count == 0:
        return
    place = slice(window.first, window.first + count)
    is_text = window.starts < window.ends
    start, end = np.where(is_text, start[place], -np.inf), np.where(is_text, end[place], -np.inf)
    width = min(max_answer_length, count)
    # Row i of this view holds the ends at i, i + 1, ..., so that every allowed pair is one number of the sum.
    following = np.lib.stride_tricks.sliding_window_view(np.append(end, np.full(width - 1, -np.inf)), width)
    scores = (start[:, None] + following).ravel()
    top = np.argpartition(-scores, min(n_best_size, len(scores)) - 1)[:n_best_size]
    for pair in top[np.isfinite(scores[top])]:
        first, length = divmod(int(pair), width)
        last = first + length
        if window.starts[first] < window.ends[last]:
            yield Span(int(window.starts[first]), int(window.ends[last]), float(start[first]), float(end[last]))


def write_answers(
    folder: Path,
    ids: Sequence[str],
    contexts: Sequence[str],
    candidates: Sequence[Candidates],
    threshold: float | None,
    prefix: str = "",
) -> list[Path]:
    """Write the answers to a set of questions as JSON, as the official evaluation takes them.

    Args:
        folder: one that exists.
        ids, contexts, candidates: of each question.
        threshold: on the null odds, `None` where every question has an answer (SQuAD 1.1).
        prefix: of the files' names.

    Returns:
        `predictions.json` (id to text), `nbest_predictions.json` (id to a list of texts with probability, logits and
        characters) and, with a threshold, `null_odds.json` (id to how much more no answer is worth than the best
        one). Each appears whole or not at all.
    """
    texts = {
        key: "" if (span := found.answer(threshold)) is None else context[span.start : span.end]
        for key, context, found in zip(ids, contexts, candidates, strict=True)
    }
    n_best = {
        key: _n_best(context, found, threshold is not None)
        for key, context, found in zip(ids, contexts, candidates, strict=True)
    }
    files: dict[str, Mapping[str, Any]] = {"predictions.json": texts, "nbest_predictions.json": n_best}
    if threshold is not None:
        files["null_odds.json"] = {key: found.odds for key, found in zip(ids, candidates, strict=True)}
    paths = []
    for name, content in files.items():
        path = folder / f"{prefix}{name}"
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, path)
        paths.append(path)
    return paths


def _n_best(context: str, found: Candidates, with_null: bool) -> list[dict[str, Any]]:
    """The candidates of a question as plain dictionaries, the best first; no answer is one of them where it may be."""
    entries = [
        {
            "text": context[span.start : span.end],
            "start": span.start,
            "end": span.end,
            "score": span.score,
            "start_logit": span.start_logit,
            "end_logit": span.end_logit,
        }
        for span in found.spans
    ]
    if with_null:
        entries.append({"text": "", "score": found.null_score})
    probabilities = found.probabilities(with_null)
    entries = [{**entry, "probability": p} for entry, p in zip(entries, probabilities.tolist(), strict=True)]
    return sorted(entries, key=lambda entry: -entry["score"])
