"""Ensembles that answer questions, against loops over members, windows and pairs of places."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_ensembles import Pair, member, models_and_tokenizers, readers
from tiny_models import tiny_batch, tiny_tokenizer
from tiny_spans import TEXTS, TOKENIZERS, wordpiece

from modeling_hire.data.spans import Window, make_windows
from modeling_hire.evaluation.ensemble_spans import SpanSum
from modeling_hire.evaluation.ensembles import EnsembleForQuestionAnswering
from modeling_hire.evaluation.predict_spans import SpanAnswer, predict_spans


LONG = " ".join(TEXTS[:5]) * 2
QUESTIONS = ["When was it built?", "", "Where?", "Who?" * 9, "When was it built?", "where does it stand?", "what?"]
CONTEXTS = [TEXTS[0], TEXTS[0], LONG, TEXTS[3], "", "   ", TEXTS[1]]
SMALL = {"max_length": 40, "doc_stride": 6, "max_query_length": 12}


def ensemble_of(pairs: Sequence[Pair]) -> EnsembleForQuestionAnswering:
    return EnsembleForQuestionAnswering(*models_and_tokenizers(pairs))


# ---- independent loops ----------------------------------------------------------------------------------------------


@torch.no_grad()
def logits_of(pair: Pair, question: str, context: str) -> list[tuple[Window, list[float], list[float]]]:
    """Each window with its logits, run alone."""
    model, tokenizer = pair
    rows = []
    for window in make_windows(tokenizer, [question], [context], **SMALL):
        outputs = model(**{name: torch.tensor([values]) for name, values in window.inputs.items()})
        rows.append((window, outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()))
    return rows


def least_null(rows: list) -> tuple[float, float]:
    return min(((start[w.null], end[w.null]) for w, start, end in rows), key=sum)


def by_character(rows: list) -> list[dict[Any, float]]:
    """Probability of each character (or of "none") to be the first of the answer, and to be the one after its last."""
    result = []
    for side, null in enumerate(least_null(rows)):
        weight: dict[Any, float] = {}
        for window, *logits in rows:
            here: dict[Any, float] = defaultdict(float)
            for place, (a, b) in enumerate(zip(window.starts.tolist(), window.ends.tolist(), strict=True)):
                if a < b:
                    here[(a, b)[side]] += math.exp(logits[side][window.first + place])
            for character, value in here.items():
                weight[character] = max(weight.get(character, 0.0), value)
        weight["none"] = math.exp(null)
        total = sum(weight.values())
        result.append({character: value / total for character, value in weight.items()})
    return result


def mean(distributions: Sequence[dict[Any, float]]) -> dict[Any, float]:
    keys = {key for one in distributions for key in one}
    return {key: sum(one.get(key, 0.0) for one in distributions) / len(distributions) for key in keys}


def slow_characters(pairs: Sequence[Pair], question: str, context: str) -> tuple[tuple[int, int], float]:
    """The best span of any length by characters, and by how much more no answer is worth."""
    starts, ends = zip(*(by_character(logits_of(pair, question, context)) for pair in pairs), strict=True)
    start, end = mean(starts), mean(ends)
    best, most = (0, 0), 0.0
    for a, p in start.items():
        for b, q in end.items():
            if a != "none" and b != "none" and a < b and p * q > most * (1 + 1e-9):
                best, most = (a, b), p * q
    null = start["none"] * end["none"]
    return best, math.log(null / most) if most else math.inf


def slow_tokens(pairs: Sequence[Pair], question: str, context: str) -> tuple[tuple[int, int], float]:
    """The same for members with one tokenizer: window by window, and token by token."""
    runs = [logits_of(pair, question, context) for pair in pairs]
    scales, nulls = [], []
    for rows in runs:
        none = least_null(rows)
        shares = by_character(rows)
        # exp(logit) / scale is a probability, as that of no answer shows.
        scales.append([math.exp(none[side]) / shares[side]["none"] for side in (0, 1)])
        nulls.append([shares[side]["none"] for side in (0, 1)])
    best, most = (0, 0), 0.0
    for number, (window, _, _) in enumerate(runs[0]):
        count = len(window.starts)
        for i in range(count):
            for j in range(i, min(i + 30, count)):
                if window.starts[i] >= window.ends[i] or window.starts[j] >= window.ends[j]:
                    continue
                p, q = (
                    sum(math.exp(rows[number][1 + side][window.first + (i, j)[side]]) / scale[side]
                        for rows, scale in zip(runs, scales, strict=True)) / len(runs)
                    for side in (0, 1)
                )  # fmt: skip
                if p * q > most * (1 + 1e-9):
                    best, most = (int(window.starts[i]), int(window.ends[j])), p * q
    null = math.prod(sum(one[side] for one in nulls) / len(nulls) for side in (0, 1))
    return best, math.log(null / most) if most else math.inf


# ---- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["one tokenizer", "own tokenizers"])
def test_against_loops(shared: bool) -> None:
    pairs = readers(shared)
    slow = slow_tokens if shared else slow_characters
    longest = 30 if shared else 1000
    found = ensemble_of(pairs).predict(QUESTIONS, CONTEXTS, max_answer_length=longest, **SMALL)
    for answer, question, context in zip(found, QUESTIONS, CONTEXTS, strict=True):
        (start, end), odds = slow(pairs, question, context)
        assert (answer.start, answer.end) == (start, end)
        assert answer.text == context[start:end]
        if answer.score is None:
            assert not context.strip() and odds == math.inf
        else:
            assert answer.null_score - answer.score == pytest.approx(odds, abs=1e-5)
    assert len({answer.text for answer in found}) > 3


@pytest.mark.parametrize("shared", [True, False], ids=["one tokenizer", "own tokenizers"])
def test_order_and_batches_do_not_matter(shared: bool) -> None:
    pairs = readers(shared)
    expected = ensemble_of(pairs).predict(QUESTIONS, CONTEXTS, **SMALL)
    turned = ensemble_of(pairs[::-1]).predict(QUESTIONS[::-1], CONTEXTS[::-1], batch_size=2, **SMALL)[::-1]
    alone = [ensemble_of(pairs).predict(*one, batch_size=1, **SMALL) for one in zip(QUESTIONS, CONTEXTS, strict=True)]
    for answers in (turned, alone):
        for one, other in zip(answers, expected, strict=True):
            assert_same_answer(one, other)


def assert_same_answer(one: SpanAnswer, other: SpanAnswer) -> None:
    assert (one.text, one.start, one.end) == (other.text, other.start, other.end)
    assert one.null_score == pytest.approx(other.null_score, abs=1e-5)
    assert one.probability == pytest.approx(other.probability, abs=1e-5)
    assert one.score == (None if other.score is None else pytest.approx(other.score, abs=1e-5))
    assert len(one.n_best) == len(other.n_best)
    for left, right in zip(one.n_best[:3], other.n_best[:3], strict=True):
        assert_same_answer(left, right)


@pytest.mark.parametrize("kind", list(TOKENIZERS))
def test_one_member_is_itself(kind: str) -> None:
    """With every kind of tokenizer, on contexts of one window and of several, to the last candidate and its score."""
    model, tokenizer = member("hire", TOKENIZERS[kind](), 1, answers=True)
    expected = predict_spans(model, tokenizer, QUESTIONS, CONTEXTS, **SMALL)
    for models in ([model], [model, model]):
        found = EnsembleForQuestionAnswering(models, tokenizer).predict(QUESTIONS, CONTEXTS, **SMALL)
        for one, other in zip(found, expected, strict=True):
            assert_same_answer(one, other)
    ensemble = EnsembleForQuestionAnswering([model], tokenizer)
    spans = ensemble.run(ensemble.cut(QUESTIONS, CONTEXTS, **SMALL))
    alone = [(found.null_score, found.spans[:1]) for found in spans.members[0]]
    assert [null for null, _ in alone] == pytest.approx([answer.null_score for answer in expected])
    assert [spans[0].start if spans else 0 for _, spans in alone] == [answer.start for answer in expected]


def test_threshold_and_single_strings() -> None:
    ensemble = ensemble_of(readers(False))
    best = ensemble.predict(QUESTIONS[0], TEXTS[0])
    assert isinstance(best, SpanAnswer)
    odds = best.null_score - best.score
    assert ensemble.predict(QUESTIONS[0], TEXTS[0], null_threshold=odds + 1e-6) == best
    assert ensemble.predict(QUESTIONS[0], TEXTS[0], null_threshold=odds - 1e-6).text == ""
    assert_same_answer(ensemble.predict(QUESTIONS[:2], TEXTS[0])[0], best)
    assert ensemble.predict([], []) == []


def test_members_of_different_lengths() -> None:
    """One tokenizer, but one member reads more of the context at a time."""
    tokenizer = wordpiece()
    short, long = (member("bert", tokenizer, seed, answers=True)[0] for seed in (1, 2))
    ensemble = EnsembleForQuestionAnswering([short, long], tokenizer)
    ensemble.members[0].config.max_position_embeddings = 30
    answer = ensemble.predict("Where?", LONG, doc_stride=6)
    assert answer.text and answer.text in LONG
    windows = [make_windows(tokenizer, ["Where?"], [LONG], length, 6) for length in (30, 64)]
    assert not SpanSum(windows).shared and SpanSum([windows[0], windows[0]]).shared


# ---- tensors --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_tensors() -> None:
    models = [member(kind, tiny_tokenizer(), i, answers=True)[0] for i, kind in enumerate(("bert", "hire", "albert"))]
    ensemble = EnsembleForQuestionAnswering(models)
    batch, wide = tiny_batch(), tiny_batch(tokens=15)
    output, wider = ensemble(**batch), ensemble(**wide)
    mask = torch.zeros_like(batch["input_ids"])
    mask[:, [0, 2, 3]] = 1
    masked = ensemble(**batch, context_mask=mask)
    for row, length in enumerate((9, 6, 4)):
        ids = batch["input_ids"][row : row + 1, :length]
        for name in ("start", "end"):
            logits = [getattr(model(input_ids=ids), f"{name}_logits")[0] for model in models]
            expected = sum(values.softmax(-1) for values in logits) / 3
            found = getattr(output, f"{name}_probabilities")[row]
            assert found[:length].allclose(expected, atol=1e-5) and not found[length:].any()
            assert getattr(wider, f"{name}_probabilities")[row, :length].allclose(expected, atol=1e-5)
            assert getattr(output, f"{name}_logits")[row].softmax(-1).allclose(found, atol=1e-6)
            chosen = sum(values[[0, 2, 3]].softmax(-1) for values in logits) / 3
            assert getattr(masked, f"{name}_probabilities")[row, [0, 2, 3]].allclose(chosen, atol=1e-5)
    alone = EnsembleForQuestionAnswering(models[:1])(input_ids=batch["input_ids"][:1])
    assert alone.start_logits.allclose(models[0](batch["input_ids"][:1]).start_logits, atol=1e-5)


def test_tensors_where_ids_differ() -> None:
    ensemble = ensemble_of(readers(False))
    with pytest.raises(ValueError, match=r"members\[0\] .*members\[1\] .*different vocabularies"):
        ensemble(**tiny_batch())


# ---- adding up, by hand ---------------------------------------------------------------------------------------------


def window(starts: Sequence[int], ends: Sequence[int]) -> Window:
    """A context after one token that stands for no answer."""
    return Window(0, {}, 1, np.array(starts), np.array(ends), null=0, answer=(0, 0))


def test_different_pieces_by_hand() -> None:
    """ "Ann met Bob" as three words, and as "An", "n", "met Bob"."""
    words, pieces = window([0, 4, 8], [3, 7, 11]), window([0, 2, 4], [2, 3, 11])
    total = SpanSum([[words], [pieces]])
    assert not total.shared
    (frame,) = total.windows
    assert (frame.starts.tolist(), frame.ends.tolist()) == ([0, 2, 4, 7, 8], [2, 3, 7, 8, 11])
    total.add([words], [np.log([0.1, 0.2, 0.3, 0.4])], [np.log([0.2, 0.1, 0.1, 0.6])])
    total.add([pieces], [np.log([0.5, 0.1, 0.1, 0.3])], [np.log([0.4, 0.1, 0.2, 0.3])])
    ((start,), (end,)) = total.logits()
    assert np.exp(start) == pytest.approx([0.3, 0.15, 0.05, 0.3, 0.0, 0.2])
    assert np.exp(end) == pytest.approx([0.3, 0.05, 0.15, 0.05, 0.0, 0.45])
    found = total.decode(n_best_size=2, max_answer_length=3)
    assert [(span.start, span.end) for span in found.spans] == [(4, 11), (8, 11)]
    assert math.exp(found.spans[0].score) == pytest.approx(0.3 * 0.45)
    assert math.exp(found.null_score) == pytest.approx(0.3 * 0.3)


def test_no_answer_counts_once() -> None:
    """A window that rightly holds no answer takes nothing from one that does."""
    near, far = window([0], [3]), window([4], [7])
    total = SpanSum([[near, far], [near, far]])
    for _ in range(2):
        total.add(
            [near, far], [np.array([0.0, 2.0]), np.array([50.0, 1.0])], [np.array([0.0, 2.0]), np.array([50, 1])]
        )
    found = total.decode(5, 5)
    assert [(span.start, span.score) for span in found.spans] == [(0, pytest.approx(4)), (4, pytest.approx(2))]
    assert found.null_score == pytest.approx(0)


def test_longest_answer_where_pieces_differ() -> None:
    """Three words of one member are six pieces; an answer of at most two tokens is at most four of these."""
    words, letters = window([0, 2, 4], [2, 4, 6]), window(range(6), range(1, 7))
    total = SpanSum([[words], [letters]])
    for one in (words, letters):
        total.add([one], [np.zeros(len(one.starts) + 1)], [np.zeros(len(one.starts) + 1)])
    lengths = {span.end - span.start for span in total.decode(50, 2).spans}
    assert max(lengths) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"questions": ["a", "b"], "contexts": ["c"]}, "2 of one and 1 of the other"),
        ({"questions": [None]}, "questions: holds None"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"max_answer_length": 0}, "max_answer_length=0"),
        ({"null_threshold": "0"}, "null_threshold='0'"),
        ({"null_threshold": float("nan")}, "null_threshold=nan"),
        ({"n_best_size": 1.5}, "n_best_size=1.5"),
        ({"doc_stride": 0}, "doc_stride=0"),
        ({"questions": ["the " * 80], "max_query_length": None}, "no room"),
    ],
)
def test_refusals(changes: dict[str, Any], said: str) -> None:
    given = {"questions": ["x"], "contexts": ["y"], **changes}
    with pytest.raises(ValueError, match=said):
        ensemble_of(readers(True)[:1]).predict(**given)


def test_wrong_members() -> None:
    classifier, tokenizer = member("bert", wordpiece(), 1)
    with pytest.raises(ValueError, match=r"members\[0\] \(Bert.*no start and end logits"):
        EnsembleForQuestionAnswering([classifier], tokenizer).predict("x", "y")
    with pytest.raises(ValueError, match="no start_logits and end_logits of the right shape"):
        EnsembleForQuestionAnswering([classifier])(**tiny_batch())
    broken, _ = member("bert", tokenizer, 1, answers=True)
    with torch.no_grad():
        broken.qa_outputs.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"members\[0\].*NaN"):
        EnsembleForQuestionAnswering([broken], tokenizer).predict("x", "y")
