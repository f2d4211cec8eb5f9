"""Windows of every kind of tokenizer, against the text they were cut from."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tiny_spans import TEXTS, TOKENIZERS, wordpiece
from transformers import PreTrainedTokenizerFast

from modeling_hire.data.spans import make_windows


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return TOKENIZERS[request.param]()


QUESTION = "When was it built?"


def test_one_window_is_what_the_tokenizer_makes(tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = [(question, context) for question in (QUESTION, "", " x ") for context in TEXTS]
    questions, contexts = zip(*pairs, strict=True)
    windows = make_windows(tokenizer, questions, contexts, max_length=500, max_query_length=None)
    assert [window.row for window in windows] == list(range(len(pairs)))
    whole = tokenizer(list(questions), list(contexts))  # one by one it would take an empty second text for none
    for window in windows:
        assert window.inputs == {name: whole[name][window.row] for name in window.inputs}
        assert window.inputs["input_ids"][window.null] == tokenizer.cls_token_id
        assert not window.cut


def test_tokens_stand_for_their_characters(tokenizer: PreTrainedTokenizerFast) -> None:
    """What a token stands for has no white space at its ends, is in order, and all of the text is there."""
    for window in make_windows(tokenizer, [QUESTION] * len(TEXTS), TEXTS, max_length=500):
        context = TEXTS[window.row]
        seen = set()
        for start, end in zip(window.starts.tolist(), window.ends.tolist(), strict=True):
            assert context[start:end] == context[start:end].strip()
            seen.update(range(start, end))
        assert (np.diff(window.starts) >= 0).all() and (np.diff(window.ends) >= 0).all()
        # Control characters and what the normalisation drops belong to no token; letters and digits all do.
        assert {place for place, letter in enumerate(context) if letter.isalnum()} <= seen
        for word in ("Paris", "white", "spaces", "half"):
            if word in context:
                at = context.index(word)
                spans = zip(window.starts.tolist(), window.ends.tolist(), strict=True)
                touching = [(a, b) for a, b in spans if a < at + len(word) and b > at]
                assert (min(touching)[0], max(b for _, b in touching)) == (at, at + len(word))


@pytest.mark.parametrize(("max_length", "stride", "longest"), [(24, 5, 64), (24, 500, 64), (16, 1, 3), (30, 8, None)])
def test_windows_cover_the_context(
    max_length: int, stride: int, longest: int | None, tokenizer: PreTrainedTokenizerFast
) -> None:
    context = " ".join(TEXTS[:3]) * 2
    (whole,) = make_windows(tokenizer, [QUESTION], [context], 10_000, max_query_length=longest)
    windows = make_windows(tokenizer, [QUESTION], [context], max_length, stride, longest)
    assert len(windows) > 2
    ids = np.array(whole.inputs["input_ids"])
    text = ids[whole.first : whole.first + len(whole.starts)]
    around = len(ids) - len(text)
    place = 0
    for index, window in enumerate(windows):
        count = len(window.starts)
        assert len(window) <= max_length and (len(window) == max_length or window is windows[-1])
        assert count + around == len(window)
        expected = np.concatenate([ids[: whole.first], text[place : place + count], ids[whole.first + len(text) :]])
        assert window.inputs["input_ids"] == expected.tolist()
        assert (window.starts == whole.starts[place : place + count]).all()
        assert window.inputs["input_ids"][window.null] == tokenizer.cls_token_id
        if index + 1 < len(windows):
            place += min(stride, count)
    assert place + len(windows[-1].starts) == len(text)


def test_answers_are_found_again(tokenizer: PreTrainedTokenizerFast) -> None:
    """Each word, and each row of words, is marked by exactly the tokens that hold it, wherever it is whole."""
    context = "  " + " ".join(TEXTS[0:1] * 2) + " caf\u00e9 \u6771\u4eac \U0001f600 end"
    ends = [i for i in range(1, len(context) + 1) if i == len(context) or context[i].isspace()]
    words = [(max(context.rfind(" ", 0, end), context.rfind("\t", 0, end)) + 1, end) for end in ends]
    words = [(start, end) for start, end in words if start < end]
    numbers = random.Random(0)
    spans = [sorted(numbers.sample(range(len(words)), 2)) for _ in range(20)]
    answers = [*words, *((words[i][0], words[j][1]) for i, j in spans)]
    many = [QUESTION] * len(answers), [context] * len(answers)
    (whole,) = make_windows(tokenizer, [QUESTION], [context], 500)
    room = len(whole) - len(whole.starts) + 15
    windows = make_windows(tokenizer, *many, max_length=room, doc_stride=4, answers=answers)
    found = set()
    for window in windows:
        start, end = answers[window.row]
        if window.answer == (window.null, window.null):
            # Not here, so not all of its tokens are.
            inside = (whole.starts < end) & (whole.ends > start)
            there = (window.starts < end) & (window.ends > start)
            assert there.sum() < inside.sum()
            continue
        first, last = (place - window.first for place in window.answer)
        assert context[window.starts[first] : window.ends[last]] == context[start:end]
        found.add(window.row)
    assert set(range(len(words))) <= found, "every single word is whole in some window"


def test_no_answer_is_the_classification_token(tokenizer: PreTrainedTokenizerFast) -> None:
    for answer in (None, (3, 4), (0, 0)):
        (window,) = make_windows(tokenizer, ["x"], ["the   tower"], answers=[answer])
        assert window.answer == (window.null, window.null), "white space is no answer"


def test_long_questions_keep_their_beginning(tokenizer: PreTrainedTokenizerFast) -> None:
    question = "the tower of iron and the city of light " * 4
    (whole,) = make_windows(tokenizer, [question], ["Paris"], 500, max_query_length=None)
    (window,) = make_windows(tokenizer, [question], ["Paris"], 500, max_query_length=5)
    (exact,) = make_windows(tokenizer, ["the"], ["Paris"], 500, max_query_length=10)
    assert window.cut and not exact.cut and not whole.cut
    around = len(exact) - len(tokenizer("the", add_special_tokens=False)["input_ids"])
    assert len(window) == around + 5
    assert window.inputs["input_ids"][:5] == whole.inputs["input_ids"][:5]


def test_the_tokenizer_is_left_as_it_was(tokenizer: PreTrainedTokenizerFast) -> None:
    make_windows(tokenizer, ["x"], ["the tower"], max_length=20)
    assert tokenizer.backend_tokenizer.truncation is None and tokenizer.backend_tokenizer.padding is None


def test_special_tokens_in_the_text_change_nothing() -> None:
    tokenizer = wordpiece()
    context = "<s> the </s> tower"
    (window,) = make_windows(tokenizer, ["</s>"], [context], answers=[(13, 18)])
    assert window.null == 0
    first, last = window.answer
    assert context[window.starts[first - window.first] : window.ends[last - window.first]] == "tower"


def test_a_tokenizer_that_was_saved_with_truncation_is_used_without() -> None:
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=300)
    (window,) = make_windows(tokenizer, [QUESTION], ["the tower of iron"], 100)
    assert 4 < len(window) < 100


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_length": 0}, "max_length=0"),
        ({"doc_stride": 1.5}, "doc_stride=1.5"),
        ({"max_query_length": True}, "max_query_length=True"),
        ({"contexts": ["a", "b"]}, "1 of one and 2 of the other"),
        ({"max_length": 6, "names": ["q7"]}, "Question 'q7' has .* tokens and leaves no room .* max_length=6"),
        ({"max_length": 6, "contexts": [""]}, "no room"),
    ],
)
def test_refusals(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_windows(**{"tokenizer": wordpiece(), "questions": [QUESTION], "contexts": ["the tower"], **changes})


def test_room_in_the_message_is_right() -> None:
    tokenizer = wordpiece()
    with pytest.raises(ValueError, match="allowed are at most") as caught:
        make_windows(tokenizer, ["the " * 50], ["the tower"], 20, max_query_length=None)
    room = int(str(caught.value).partition("at most ")[2].split()[0])
    windows = make_windows(tokenizer, ["the " * 50], ["the tower"], 20, max_query_length=room)
    assert all(len(window) == 20 and len(window.starts) == 1 for window in windows)
    with pytest.raises(ValueError):
        make_windows(tokenizer, ["the " * 50], ["the tower"], 20, max_query_length=room + 1)


def test_nothing_gives_nothing() -> None:
    assert make_windows(wordpiece(), [], []) == []
