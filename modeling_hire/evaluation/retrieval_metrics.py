"""MRR, nDCG and recall of ranked lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def retrieval_metrics(
    ranked: np.ndarray, relevant: Sequence[Sequence[int] | np.ndarray], recall_at: Sequence[int] = (1, 10, 100)
) -> dict[str, float]:
    """Score ranked lists, each metric the mean over the queries.

    - `mrr@10`: 1 / rank of the first relevant document among the first 10, else 0.
    - `ndcg@10`: the sum of 1 / log2(1 + rank) over the relevant documents among the first 10, divided by what it
      would be with all relevant ones in front.
    - `recall@k`: share of the relevant documents that are among the first k.

    Args:
        ranked: (queries, k) documents by number, best first; -1 where a list is shorter.
        relevant: for each query the numbers of the documents that are right, at least one.
        recall_at: the k of recall; none may be longer than the lists, unless they hold all documents.

    Returns:
        Metric -> value from 0 to 1.

    Raises:
        ValueError: if there is no query, the numbers of lists differ, or a query has no relevant document.

    Example:
        >>> retrieval_metrics(np.array([[4, 7, 2], [1, 3, 0]]), [[7], [1, 0]], recall_at=[1, 3])
        {'mrr@10': 0.75, 'ndcg@10': 0.7753..., 'recall@1': 0.25, 'recall@3': 1.0}
    """
    ranked = np.asarray(ranked)
    if ranked.ndim != 2 or len(ranked) != len(relevant) or len(ranked) == 0:
        raise ValueError(f"ranked: shape {ranked.shape} for {len(relevant)} queries; allowed is one list a query.")
    counts = np.array([len(set(np.asarray(documents).tolist())) for documents in relevant])
    if not counts.all():
        raise ValueError(f"relevant: query {int(np.argmin(counts)) + 1} has none; allowed is at least one document.")
    hits = np.stack([np.isin(row, documents) for row, documents in zip(ranked, relevant, strict=True)])
    places = np.arange(1, ranked.shape[1] + 1)

    top = hits[:, :10]
    first = np.where(top.any(axis=1), 1 / (1 + top.argmax(axis=1)), 0.0)
    gains = 1 / np.log2(1 + np.arange(1, 11))
    best = np.cumsum(gains)[np.minimum(counts, 10) - 1]
    metrics = {
        "mrr@10": float(first.mean()),
        "ndcg@10": float(((top * gains[: top.shape[1]]).sum(axis=1) / best).mean()),
    }
    for k in recall_at:
        metrics[f"recall@{k}"] = float((hits[:, places <= k].sum(axis=1) / counts).mean())
    return metrics
