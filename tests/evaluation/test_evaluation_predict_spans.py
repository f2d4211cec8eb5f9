"""`predict_spans` against one unbatched forward pass a window, for every kind of tokenizer and model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_model
from tiny_spans import TEXTS, TOKENIZERS, wordpiece
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

from modeling_hire import HireForQuestionAnswering
from modeling_hire.data.spans import make_windows
from modeling_hire.evaluation.predict_spans import SpanAnswer, predict_spans


LONG = " ".join(TEXTS[:5]) * 2
QUESTIONS = ["When was it built?", "", "Where?", "Who?" * 9, "When was it built?", "where does it stand?", "what?"]
CONTEXTS = [TEXTS[0], TEXTS[0], LONG, TEXTS[3], "", "   ", TEXTS[1]]
SMALL = {"max_length": 40, "doc_stride": 6, "max_query_length": 12}


def model_of(kind: str, vocabulary: int) -> PreTrainedModel:
    sizes = {"vocab_size": vocabulary, "pad_token_id": 0}
    if kind == "hire":
        return tiny_model("fast", model_class=HireForQuestionAnswering, encoder=sizes)
    return enliven(AutoModelForQuestionAnswering.from_config(tiny_encoder_config(kind, **sizes)), seed=2).eval()


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return TOKENIZERS[request.param]()


@torch.no_grad()
def slow(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, question: str, context: str) -> tuple:
    """Best span, its score and the null score, one window at a time and pair by pair."""
    best, null = (0, 0, -np.inf), np.inf
    for window in make_windows(tokenizer, [question], [context], **SMALL):
        outputs = model(**{name: torch.tensor([values]) for name, values in window.inputs.items()})
        start, end = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
        null = min(null, start[window.null] + end[window.null])
        for i in range(len(window.starts)):
            for j in range(i, min(i + 30, len(window.starts))):
                texts = window.starts[i] < window.ends[i] and window.starts[j] < window.ends[j]
                score = start[window.first + i] + end[window.first + j]
                if texts and score > best[2] + 1e-6:
                    best = (int(window.starts[i]), int(window.ends[j]), score)
    return best, null


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_against_one_window_at_a_time(batch_size: int, tokenizer: PreTrainedTokenizerFast) -> None:
    model = model_of("hire", len(tokenizer))
    found = predict_spans(model, tokenizer, QUESTIONS, CONTEXTS, batch_size=batch_size, **SMALL)
    for answer, question, context in zip(found, QUESTIONS, CONTEXTS, strict=True):
        (start, end, score), null = slow(model, tokenizer, question, context)
        assert answer.null_score == pytest.approx(null, abs=1e-5)
        assert (answer.start, answer.end) == (start, end)
        assert answer.text == context[start:end]
        if answer.score is None:
            assert answer.text == "" and not context.strip() and answer.n_best == []
        else:
            assert answer.score == pytest.approx(score, abs=1e-5)
            assert answer.n_best[0].text == answer.text and answer.n_best[0].n_best == []


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "deberta-v2", "albert", "xlnet"])
def test_models_of_transformers(kind: str) -> None:
    tokenizer = wordpiece()
    model = model_of(kind, len(tokenizer) + 1)
    found = predict_spans(model, tokenizer, QUESTIONS, CONTEXTS, batch_size=3, **SMALL)
    for answer, question, context in zip(found, QUESTIONS, CONTEXTS, strict=True):
        (start, end, _), null = slow(model, tokenizer, question, context)
        assert (answer.start, answer.end, answer.null_score) == (start, end, pytest.approx(null, abs=1e-4))


def test_one_question_or_several() -> None:
    tokenizer = wordpiece()
    model = model_of("hire", len(tokenizer))
    alone = predict_spans(model, tokenizer, QUESTIONS[0], TEXTS[0])
    assert isinstance(alone, SpanAnswer)
    (listed,) = predict_spans(model, tokenizer, [QUESTIONS[0]], [TEXTS[0]])
    assert listed == alone
    asked = predict_spans(model, tokenizer, QUESTIONS[:3], TEXTS[0])
    assert [answer.text for answer in asked][0] == alone.text and len(asked) == 3
    read = predict_spans(model, tokenizer, QUESTIONS[0], [LONG, TEXTS[0]])
    assert read[1].text == alone.text and len(read) == 2
    assert predict_spans(model, tokenizer, [], []) == []


def test_threshold() -> None:
    tokenizer = wordpiece()
    model = model_of("hire", len(tokenizer))
    best = predict_spans(model, tokenizer, QUESTIONS[0], TEXTS[0])
    odds = best.null_score - best.score
    kept = predict_spans(model, tokenizer, QUESTIONS[0], TEXTS[0], null_threshold=odds + 1e-6)
    assert kept == best and best.text
    none = predict_spans(model, tokenizer, QUESTIONS[0], TEXTS[0], null_threshold=odds - 1e-6)
    assert (none.text, none.start, none.end) == ("", 0, 0)
    assert none.n_best == best.n_best and none.score == best.score
    assert none.probability + sum(entry.probability for entry in none.n_best) == pytest.approx(1)


def test_the_model_is_left_as_it_was() -> None:
    tokenizer = wordpiece()
    model = model_of("hire", len(tokenizer)).train()
    model.base_model.encoder.eval()
    before = [module.training for module in model.modules()]
    predict_spans(model, tokenizer, QUESTIONS[0], TEXTS[0])
    assert [module.training for module in model.modules()] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_length_is_lowered_to_what_the_model_takes() -> None:
    """Positions for 64 tokens, and a window of 384 asked for."""
    tokenizer = wordpiece()
    model = model_of("hire", len(tokenizer))
    answer = predict_spans(model, tokenizer, "x", LONG * 2)
    assert answer.text and answer.text in LONG * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"questions": ["a", "b"], "contexts": ["c"]}, "2 of one and 1 of the other"),
        ({"questions": [None]}, "questions: holds None"),
        ({"contexts": [3]}, "contexts: holds 3"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"max_answer_length": 0}, "max_answer_length=0"),
        ({"null_threshold": "0"}, "null_threshold='0'"),
        ({"null_threshold": float("nan")}, "null_threshold=nan"),
        ({"questions": ["the " * 80], "max_query_length": None}, "no room"),
    ],
)
def test_refusals(changes: dict[str, Any], said: str) -> None:
    tokenizer = wordpiece()
    given = {"questions": ["x"], "contexts": ["y"], **changes}
    with pytest.raises(ValueError, match=said):
        predict_spans(model_of("hire", len(tokenizer)), tokenizer, **given)
