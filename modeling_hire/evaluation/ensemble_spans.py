"""Adding up what several models say about where an answer starts and ends, whatever pieces each cuts the text into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from ..data.spans import Window
from .spans import Candidates, decode_spans


class SpanSum:
    """The sum of the members' probabilities of the starts and ends of one question's answer.

    Each member's logits become two distributions, of the start and of the end. Each is over what the decoder chooses
    from: the pieces of the context that the member reads, over all of its windows (a piece that several windows show
    counts once, with its highest logit), and "no answer", once, as it stands in the window where it is worth least. So
    a member says no less in a long context, where most windows rightly find nothing, and an ensemble of one member
    ranks as this member does alone.

    Where all members cut the context into the same pieces, in the same windows, probabilities are added piece by
    piece and window by window. Where they do not, they are added character by character: a start belongs to the
    character at which its token starts, and an end to the one at which its token ends. Words begin and end at the same
    characters for every tokenizer, so that on words members agree or not as on tokens; within a word, a place counts
    for the members that have a token boundary there, and nothing is guessed about the others. The context is then one
    row of pieces: the stretches between all these characters.

    Args:
        windows: for each member, its windows of this question.
    """

    def __init__(self, windows: Sequence[Sequence[Window]]):
        first = windows[0]
        self.shared = all(_same_pieces(first, other) for other in windows[1:])
        self._pieces_per_token = 1.0
        if self.shared:
            pieces = [(window.starts, window.ends) for window in first]
        else:
            pieces = [_finest_pieces([window for member in windows for window in member])]
            fewest = min(len(np.unique(np.concatenate([w.starts[_is_text(w)] for w in member]))) for member in windows)
            self._pieces_per_token = len(pieces[0][0]) / max(fewest, 1)
        # In each of these windows "no answer" comes first, and then the context.
        self.windows = [Window(0, {}, 1, starts, ends, null=0, answer=(0, 0)) for starts, ends in pieces]
        self._totals = [[np.full(len(starts) + 1, -np.inf) for starts, _ in pieces] for _ in ("start", "end")]
        self._scales = [0.0, 0.0]
        self._count = 0

    def add(
        self, windows: Sequence[Window], start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray]
    ) -> None:
        """Add the probabilities of one member.

        Args:
            windows: the member's, of this question.
            start_logits, end_logits: of each window `(tokens,)`.
        """
        start_logits = [np.asarray(values, dtype=np.float64) for values in start_logits]
        end_logits = [np.asarray(values, dtype=np.float64) for values in end_logits]
        nulls = [s[w.null] + e[w.null] for w, s, e in zip(windows, start_logits, end_logits, strict=True)]
        least = int(np.argmin(nulls))
        for side, logits in enumerate((start_logits, end_logits)):
            null = logits[least][windows[least].null]
            contexts = [values[w.first : w.first + len(w.starts)] for w, values in zip(windows, logits, strict=True)]
            characters, values = _by_character(windows, contexts, ("starts", "ends")[side])
            scale = np.logaddexp.reduce(np.append(values, null))
            if self.shared:
                new = [np.append(null, context) for context in contexts]
            else:
                places = np.searchsorted((self.windows[0].starts, self.windows[0].ends)[side], characters)
                new = [np.full(len(self._totals[side][0]), -np.inf)]
                new[0][0], new[0][1 + places] = null, values
            for total, more in zip(self._totals[side], new, strict=True):
                np.logaddexp(total, more - scale, out=total)
            self._scales[side] += scale
        self._count += 1

    def logits(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Start and end logits of each of `windows`: logarithms of the mean probability, on the members' scale.

        The mean of the members' normalisers is added back, so that those of one member are its own. It is the same
        number for all spans of the question and for no answer, and so of no consequence.
        """
        start, end = (
            [total - np.log(self._count) + scale / self._count for total in totals]
            for totals, scale in zip(self._totals, self._scales, strict=True)
        )
        return start, end

    def decode(self, n_best_size: int, max_answer_length: int) -> Candidates:
        """The best spans of the question, from the decoder of single models.

        Args:
            n_best_size: how many spans to keep.
            max_answer_length: longest answer in tokens. Where members cut the context differently, it may be as long
                as so many tokens of the member with the longest tokens are, on average in this context.
        """
        length = max(1, math.ceil(max_answer_length * self._pieces_per_token))
        return decode_spans(self.windows, *self.logits(), 1, n_best_size, length)[0]


def by_question(windows: Sequence[Window]) -> list[slice]:
    """Where each question's windows are in a list that has them in the order of the questions."""
    places = [len(list(group)) for _, group in groupby(windows, key=lambda window: window.row)]
    stops = np.cumsum(places).tolist()
    return [slice(stop - count, stop) for stop, count in zip(stops, places, strict=True)]


def _same_pieces(one: Sequence[Window], other: Sequence[Window]) -> bool:
    """Whether two members read a context through the same windows of the same pieces."""
    return len(one) == len(other) and all(
        np.array_equal(a.starts, b.starts) and np.array_equal(a.ends, b.ends) for a, b in zip(one, other, strict=True)
    )


def _is_text(window: Window) -> np.ndarray:
    """Which of a window's tokens stand for characters."""
    return window.starts < window.ends


def _finest_pieces(windows: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
    """The stretches of a context between the characters at which any token starts or ends, without the gaps."""
    starts = np.concatenate([w.starts[_is_text(w)] for w in windows])
    ends = np.concatenate([w.ends[_is_text(w)] for w in windows])
    points = np.unique(np.concatenate([starts, ends]))
    # How many tokens cover the stretch after each point.
    changes = np.zeros(len(points), dtype=np.int64)
    np.add.at(changes, np.searchsorted(points, starts), 1)
    np.add.at(changes, np.searchsorted(points, ends), -1)
    covered = np.cumsum(changes)[:-1] > 0
    return points[:-1][covered], points[1:][covered]


def _by_character(
    windows: Sequence[Window], contexts: Sequence[np.ndarray], side: str
) -> tuple[np.ndarray, np.ndarray]:
    """A member's logits by the character at which tokens start or end.

    The tokens of one window at the same character (the bytes of one letter) are added up; of several windows that show
    the same character the highest counts.
    """
    texts = [_is_text(window) for window in windows]
    places = [getattr(window, side)[text] for window, text in zip(windows, texts, strict=True)]
    characters = np.unique(np.concatenate(places))
    highest = np.full(len(characters), -np.inf)
    for at, context, text in zip(places, contexts, texts, strict=True):
        added = np.full(len(characters), -np.inf)
        np.logaddexp.at(added, np.searchsorted(characters, at), context[text])
        np.maximum(highest, added, out=highest)
    return characters, highest
