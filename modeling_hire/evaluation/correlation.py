"""How well similarities follow gold scores: rank and linear correlation, and what to say where there is none."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from scipy import stats


logger = logging.getLogger(__name__)

# Equal embeddings of unlike length differ in the last digits of float32; ranking these differences would be noise.
_NOISE = 1e-6
_WHO = {"scores": "the model's similarities are", "gold": "the gold scores are"}


def cosine_similarities(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The cosine of each row of `left` with the same row of `right`; 0 where either is a zero vector.

    Args:
        left, right: embeddings (n, d).

    Returns:
        (n,) of float64.

    Example:
        >>> cosine_similarities(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [1.0, 1.0]]))
        array([1., 0.])
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.divide((left * right).sum(axis=1), lengths, out=np.zeros(len(left)), where=lengths > 0)


def is_constant(values: np.ndarray) -> bool:
    """Whether all values are one and the same up to float32's precision; fewer than two always are."""
    return len(values) < 2 or bool(np.ptp(values) <= _NOISE * np.abs(values).max())


def similarity_metrics(
    scores: Sequence[float] | np.ndarray, gold: Sequence[float] | np.ndarray, undefined: float | None = 0.0
) -> dict[str, float | None]:
    """Spearman and Pearson correlation of a model's similarities with gold scores.

    Args:
        scores: the model's similarities (n,).
        gold: the scores of the dataset (n,).
        undefined: what to return where one side is constant (or there is one pair only), so that a correlation does
            not exist: a number, so that a training run can go on comparing checkpoints, or `None`. A warning is
            logged either way; NaN is never returned.

    Returns:
        `{"spearman": ..., "pearson": ...}`, from -1 to 1.

    Raises:
        ValueError: if the sizes differ, there is no pair, or a number is not finite.

    Example:
        >>> similarity_metrics([0.1, 0.5, 0.9], [1.0, 2.0, 4.0])["spearman"]
        1.0
        >>> similarity_metrics([0.5, 0.5, 0.5], [1.0, 2.0, 4.0], undefined=None)
        {'spearman': None, 'pearson': None}
    """
    scores, gold = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (scores, gold))
    if len(scores) != len(gold) or len(scores) == 0:
        raise ValueError(f"scores and gold: {len(scores)} and {len(gold)} numbers; allowed is one of each a pair.")
    for name, values in (("scores", scores), ("gold", gold)):
        if not np.isfinite(values).all():
            wrong = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"{name}: number {wrong + 1} is {values[wrong]}; allowed are finite numbers.")
    constant = [name for name, values in (("scores", scores), ("gold", gold)) if is_constant(values)]
    if constant:
        logger.warning(
            "The correlation of %d pairs is undefined (%s all equal); %s is given for it.",
            len(scores),
            " and ".join(_WHO[name] for name in constant),
            undefined,
        )
        return {"spearman": undefined, "pearson": undefined}
    return {
        "spearman": float(stats.spearmanr(scores, gold).statistic),
        "pearson": float(stats.pearsonr(scores, gold).statistic),
    }
