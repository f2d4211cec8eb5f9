"""How long a query takes, for several embedders side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from .embedders import Embedder, embed
from .retrieval_search import SearchIndex


# So many queries are timed: enough for a steady figure, and few beside the corpus.
_TIMED, _TIMED_ALONE, _ROUNDS = 256, 32, 5


def query_times(
    searchers: Sequence[tuple[Embedder, SearchIndex]], queries: Sequence[str], batch_size: int = 32, k: int = 100
) -> list[dict[str, float]]:
    """Milliseconds a query takes with each embedder and its index.

    The embedders take turns, a batch or a query each, so that what else the machine does meets all of them alike; each
    figure is the median over the turns.

    Args:
        searchers: embedders, each with the index of its documents.
        queries: texts; at most 256, evenly from all, are timed.
        batch_size: queries that are encoded at a time.
        k: documents looked for.

    Returns:
        For each: `encode_ms_per_query` (in batches), `search_ms_per_query` (all timed queries in one call) and
        `single_query_ms` (one query encoded and looked for by itself).

    Example:

    ```python
    >>> query_times([(embedder, index)], ["What is this?", "What is that?"])  # doctest: +SKIP
    ```
    """
    # Evenly from all, since neighbours may be alike in length; each text once, as `embed` would not encode it again.
    rows = np.unique(np.linspace(0, len(queries) - 1, min(_TIMED, len(queries))).astype(int))
    texts = list(dict.fromkeys(queries[row] for row in rows))
    batches = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
    vectors = [embed(embedder, texts, batch_size) for embedder, _ in searchers]  # also what is only done once
    encoding = _turns(
        [[_encode(embedder, batch) for batch in batches] for embedder, _ in searchers],
        [len(batch) for batch in batches],
    )
    searching = _turns(
        [[_search(index, found, k)] * _ROUNDS for (_, index), found in zip(searchers, vectors, strict=True)],
        [len(texts)] * _ROUNDS,
    )
    alone = _turns(
        [[_find(embedder, index, text, k) for text in texts[:_TIMED_ALONE]] for embedder, index in searchers],
        [1] * len(texts[:_TIMED_ALONE]),
    )
    return [
        {"encode_ms_per_query": one, "search_ms_per_query": two, "single_query_ms": three}
        for one, two, three in zip(encoding, searching, alone, strict=True)
    ]


def _turns(tasks: list[list[Callable[[], Any]]], sizes: list[int]) -> list[float]:
    """The median milliseconds of each one's tasks, divided by their sizes, the ones taking turns."""
    times: list[list[float]] = [[] for _ in tasks]
    for turn, size in enumerate(sizes):
        for own, each in zip(times, tasks, strict=True):
            start = time.perf_counter()
            each[turn]()
            own.append(1000 * (time.perf_counter() - start) / size)
    return [median(own) for own in times]


def _encode(embedder: Embedder, texts: list[str]) -> Callable[[], Any]:
    return lambda: embed(embedder, texts, len(texts))


def _search(index: SearchIndex, vectors: np.ndarray, k: int) -> Callable[[], Any]:
    return lambda: index.search(vectors, k)


def _find(embedder: Embedder, index: SearchIndex, text: str, k: int) -> Callable[[], Any]:
    return lambda: index.search(embed(embedder, [text], 1), k)
