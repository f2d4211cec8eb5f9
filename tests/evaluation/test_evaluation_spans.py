"""The decoder against a naive loop over all pairs, on cases computed by hand, and what it writes."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from modeling_hire.data.spans import Window
from modeling_hire.evaluation.spans import NO_SPAN_ODDS, Candidates, Span, decode_spans, write_answers


def window(row: int, words: list[tuple[int, int]], first: int = 3) -> Window:
    starts, ends = np.array(words, dtype=np.int64).reshape(-1, 2).T
    return Window(row, {}, first, starts, ends, null=0, answer=(0, 0))


WORDS = [(0, 3), (4, 7), (7, 7), (8, 11), (12, 20)]


def drawn(count: int, seed: int) -> tuple[list[Window], list[np.ndarray], list[np.ndarray]]:
    """Windows of two questions over overlapping stretches of words, a few of which stand for nothing."""
    numbers = random.Random(seed)
    generator = np.random.default_rng(seed)
    windows, starts, ends = [], [], []
    for index in range(count):
        length, begin = numbers.randint(0, 12), numbers.randint(0, 5)
        words = [(5 * (begin + i), 5 * (begin + i) + numbers.choice((0, 4, 4))) for i in range(length)]
        windows.append(window(index % 2, words, first=numbers.randint(1, 4)))
        tokens = windows[-1].first + length + numbers.randint(1, 4)
        starts.append(generator.normal(size=tokens))
        ends.append(generator.normal(size=tokens))
    return windows, starts, ends


def naive(
    windows: list[Window], start_logits: list[np.ndarray], end_logits: list[np.ndarray], row: int, longest: int
) -> dict[tuple[int, int], float]:
    """Every allowed span of a question and its best score."""
    scores: dict[tuple[int, int], float] = {}
    for window, start, end in zip(windows, start_logits, end_logits, strict=True):
        for i in range(len(window.starts) if window.row == row else 0):
            for j in range(i, min(i + longest, len(window.starts))):
                if window.starts[i] == window.ends[i] or window.starts[j] == window.ends[j]:
                    continue
                key = (int(window.starts[i]), int(window.ends[j]))
                score = float(start[window.first + i] + end[window.first + j])
                scores[key] = max(score, scores.get(key, -math.inf))
    return scores


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("n_best", "longest"), [(1, 30), (5, 3), (1000, 4), (20, 1)])
def test_against_a_naive_loop(seed: int, n_best: int, longest: int) -> None:
    windows, starts, ends = drawn(9, seed)
    found = decode_spans(windows, starts, ends, 2, n_best, longest)
    for row, candidates in enumerate(found):
        scores = naive(windows, starts, ends, row, longest)
        best = sorted(scores.items(), key=lambda item: -item[1])[:n_best]
        assert [((span.start, span.end), span.score) for span in candidates.spans] == best
        nulls = [s[0] + e[0] for w, s, e in zip(windows, starts, ends, strict=True) if w.row == row]
        assert candidates.null_score == min(nulls)


def test_by_hand() -> None:
    """The best start comes after the best end: the best pair in order is another one."""
    start = np.array([2.0, 0, 0, 1.0, 0, 9, 5.0, 0])
    end = np.array([1.0, 0, 0, 4.0, 3.0, 9, 0, 0])
    (found,) = decode_spans([window(0, WORDS)], [start], [end], 1, n_best_size=3)
    # The third word stands for nothing, so its 9s do not count.
    assert [(span.start, span.end, span.score) for span in found.spans] == [(0, 3, 5), (8, 11, 5), (8, 20, 5)]
    assert found.null_score == 3 and found.odds == -2
    assert found.answer(-2.0) == found.spans[0] and found.answer(-2.1) is None
    expected = np.exp([5, 5, 5, 3]) / np.exp([5, 5, 5, 3]).sum()
    assert found.probabilities(True) == pytest.approx(expected)
    assert found.probabilities(False) == pytest.approx(np.ones(3) / 3)


@pytest.mark.parametrize("seed", range(5))
def test_order_padding_and_repetition_change_nothing(seed: int) -> None:
    windows, starts, ends = drawn(9, seed)
    before = decode_spans(windows, starts, ends, 2)
    order = list(range(9))
    random.Random(seed).shuffle(order)
    padded = [[np.append(part[i], [-100.0, 99.0]) for i in order] for part in (starts, ends)]
    assert decode_spans([windows[i] for i in order], *padded, 2) == before
    assert decode_spans(windows * 2, starts * 2, ends * 2, 2) == before


def test_the_least_null_score_counts() -> None:
    windows = [window(0, WORDS[:2]), window(0, WORDS[3:])]
    start = [np.array([7.0, 0, 0, 1, 1]), np.array([1.0, 0, 0, 1, 1])]
    end = [np.array([7.0, 0, 0, 1, 1]), np.array([0.5, 0, 0, 1, 1])]
    assert decode_spans(windows, start, end, 1)[0].null_score == 1.5


def test_a_context_without_tokens() -> None:
    for words in ([], [(3, 3)]):
        (found,) = decode_spans([window(0, words)], [np.ones(5)], [np.ones(5)], 1)
        assert found.spans == [] and found.odds == NO_SPAN_ODDS
        assert found.answer(None) is None and found.answer(1e9) is None
        assert found.probabilities(True).tolist() == [1.0] and len(found.probabilities(False)) == 0


def test_log_probabilities_of_minus_infinity() -> None:
    start, end = np.full(8, -np.inf), np.full(8, -np.inf)
    start[[0, 3]], end[[0, 4]] = -1.0, -2.0
    (found,) = decode_spans([window(0, WORDS)], [start], [end], 1)
    assert [(span.start, span.end) for span in found.spans] == [(0, 7)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_best_size": 0}, "n_best_size=0"),
        ({"max_answer_length": 2.0}, "max_answer_length=2.0"),
        ({"num_questions": 2}, "none of question 1"),
        ({"start_logits": [np.full(8, np.nan)]}, "diverged"),
    ],
)
def test_refusals(changes: dict, said: str) -> None:
    given = {"windows": [window(0, WORDS)], "start_logits": [np.ones(8)], "end_logits": [np.ones(8)]}
    with pytest.raises(ValueError, match=said):
        decode_spans(**{**given, "num_questions": 1, **changes})


def test_files(tmp_path: Path) -> None:
    found = [
        Candidates([Span(0, 4, 2.0, 1.0), Span(5, 8, 1.0, 1.0)], null_score=1.0),
        Candidates([Span(0, 4, 0.0, 0.0)], null_score=5.0),
        Candidates([], null_score=0.5),
    ]
    contexts = ["caf\u00e9 bar", "x" * 4, ""]
    paths = write_answers(tmp_path, ["p", "q", "r"], contexts, found, threshold=0.0)
    assert [path.name for path in paths] == ["predictions.json", "nbest_predictions.json", "null_odds.json"]
    texts, n_best, odds = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    assert texts == {"p": "caf\u00e9", "q": "", "r": ""}
    assert odds == {"p": -2.0, "q": 5.0, "r": NO_SPAN_ODDS}
    assert [entry["text"] for entry in n_best["p"]] == ["caf\u00e9", "bar", ""]
    assert [entry["text"] for entry in n_best["q"]] == ["", "x" * 4] and n_best["r"][0]["probability"] == 1
    for entries in n_best.values():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
    paths = write_answers(tmp_path, ["p", "q"], contexts[:2], found[:2], threshold=None, prefix="test_")
    assert [path.name for path in paths] == ["test_predictions.json", "test_nbest_predictions.json"]
    assert json.loads(paths[0].read_text(encoding="utf-8")) == {"p": "caf\u00e9", "q": "x" * 4}
    assert not list(tmp_path.glob("*.partial"))
