"""Answering questions with a model: what transformers 5 has no pipeline for any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_layerwise import is_integer
from ..data.preprocessing import usable_max_length
from ..data.spans import Window, make_windows
from .spans import Candidates, decode_spans


@dataclass(frozen=True)
class SpanAnswer:
    """The answer to one question.

    Args:
        text: the answer, a part of the context; empty if there is none.
        start, end: its first character in the context and the one after its last; equal (0) if there is none.
        score: sum of its start and end logits (of those it would have, if it is empty); `None` if the context holds
            no token.
        probability: its share of the n best answers and of no answer; of no answer itself if the text is empty.
        null_score: what no answer is worth, on the scale of `score`.
        n_best: the best answers, this one among them unless it is empty, as answers without an `n_best` of their own.
    """

    text: str
    start: int
    end: int
    score: float | None
    probability: float
    null_score: float
    n_best: list[SpanAnswer] = field(default_factory=list, repr=False)


def predict_spans(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: str | Sequence[str],
    contexts: str | Sequence[str],
    *,
    null_threshold: float | None = None,
    batch_size: int = 32,
    max_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int | None = 64,
    max_answer_length: int = 30,
    n_best_size: int = 20,
) -> SpanAnswer | list[SpanAnswer]:
    """Find the answers to questions in their contexts.

    A long context is read through overlapping windows. Which other texts share a batch does not matter. The model is
    run as it is, on its device, in evaluation mode and without gradients, and gets its mode back.

    Args:
        model: any model with start and end logits, of this library or of transformers.
        tokenizer: its tokenizer, a fast one.
        questions: one question or several.
        contexts: one text or several. One of the two sides may be a single string where the other has several: each
            question is then asked of the same context, or the same question of each context. Texts may be empty.
        null_threshold: above which `null_score - score` the answer is empty: `best_f1_thresh` of the training run,
            or 0.0, for a model trained on SQuAD 2.0. `None` gives the best span wherever the context holds a word.
        batch_size: windows that are run at a time.
        max_length, doc_stride, max_query_length: how windows are cut, see `make_windows`. The length is lowered to
            what model and tokenizer can take.
        max_answer_length: longest answer in tokens.
        n_best_size: how many candidates to keep for `n_best`.

    Returns:
        One answer if both sides are single strings, and else a list of answers.

    Raises:
        ValueError: if there are not as many questions as contexts, a number is out of range, a question leaves no
            room for its context, the tokenizer is not a fast one, or the model has no start and end logits.

    Example:
        >>> from transformers import AutoTokenizer, BertConfig
        >>> from modeling_hire import HireConfig, HireForQuestionAnswering
        >>> from modeling_hire.evaluation.predict_spans import predict_spans
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = {word: i for i, word in enumerate(["[PAD]", "who", "Ann", "met", "Bob"])}
        >>> backend = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
        >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
        >>> encoder = BertConfig(vocab_size=5, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = HireForQuestionAnswering(HireConfig.preset("fast", encoder))
        >>> answers = predict_spans(model, tokenizer, ["who met", "who"], "Ann met Bob")
        >>> [answer.text in "Ann met Bob" for answer in answers]
        [True, True]
    """
    single = isinstance(questions, str) and isinstance(contexts, str)
    asked, read = as_lists(questions, contexts)
    check_numbers(batch_size=batch_size, max_answer_length=max_answer_length, n_best_size=n_best_size)
    check_threshold(null_threshold)
    encoder_config = getattr(model.config, "encoder_config", model.config)
    length, _ = usable_max_length(max_length, tokenizer, encoder_config)
    windows = make_windows(tokenizer, asked, read, length, doc_stride, max_query_length)
    start_logits, end_logits = run_windows(model, tokenizer, windows, batch_size)
    found = decode_spans(windows, start_logits, end_logits, len(asked), n_best_size, max_answer_length)
    answers = [as_answer(candidates, context, null_threshold) for candidates, context in zip(found, read, strict=True)]
    return answers[0] if single else answers


def check_threshold(null_threshold: float | None) -> None:
    """Raise a `ValueError` unless it is a number or `None`."""
    is_number = isinstance(null_threshold, int | float) and not isinstance(null_threshold, bool)
    if null_threshold is not None and not (is_number and null_threshold == null_threshold):
        raise ValueError(f"null_threshold={null_threshold!r}: expected a number, or None for an answer in any case")


def check_numbers(**values: int) -> None:
    """Raise a `ValueError` unless all are whole numbers of at least 1."""
    for name, value in values.items():
        if not is_integer(value, 1):
            raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")


def as_lists(questions: str | Sequence[str], contexts: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Questions and contexts, as many of one as of the other; a single string is used with all of the other side."""
    asked = [questions] if isinstance(questions, str) else list(questions)
    read = [contexts] if isinstance(contexts, str) else list(contexts)
    for name, texts in (("questions", asked), ("contexts", read)):
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"{name}: holds {wrong[0]!r} ({type(wrong[0]).__name__}); allowed are strings")
    if isinstance(questions, str):
        asked = asked * len(read)
    elif isinstance(contexts, str):
        read = read * len(asked)
    if len(asked) != len(read):
        raise ValueError(f"questions and contexts: {len(asked)} of one and {len(read)} of the other")
    return asked, read


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Inside, a model is in evaluation mode; afterwards each of its modules is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def run_windows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, windows: Sequence[Window], batch_size: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Start and end logits of each window, without padding."""
    start_logits: list[np.ndarray] = [np.empty(0)] * len(windows)
    end_logits = list(start_logits)
    # Like lengths together, so that there is little padding.
    order = sorted(range(len(windows)), key=lambda index: -len(windows[index]))
    with evaluation_mode(model):
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            batch = tokenizer.pad([windows[i].inputs for i in chosen], padding_side="right", return_tensors="pt")
            outputs = model(**batch.to(model.device))
            if getattr(outputs, "start_logits", None) is None:
                raise ValueError(f"model={type(model).__name__}: has no start and end logits; is it of another task?")
            starts, ends = outputs.start_logits.float().cpu().numpy(), outputs.end_logits.float().cpu().numpy()
            for index, start, end in zip(chosen, starts, ends, strict=True):
                start_logits[index], end_logits[index] = start[: len(windows[index])], end[: len(windows[index])]
    return start_logits, end_logits


def as_answer(found: Candidates, context: str, threshold: float | None) -> SpanAnswer:
    """The answer that a question's candidates give."""
    probabilities = found.probabilities(with_null=True)
    n_best = [
        SpanAnswer(context[span.start : span.end], span.start, span.end, span.score, float(p), found.null_score)
        for span, p in zip(found.spans, probabilities[:-1], strict=True)
    ]
    if found.answer(threshold) is None:
        score = n_best[0].score if n_best else None
        return SpanAnswer("", 0, 0, score, float(probabilities[-1]), found.null_score, n_best)
    best = n_best[0]
    return SpanAnswer(best.text, best.start, best.end, best.score, best.probability, best.null_score, n_best)
