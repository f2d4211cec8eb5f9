"""How embeddings lie in space: alignment, uniformity and anisotropy.

All three look at directions only: embeddings are scaled to length 1 first. Alignment and uniformity are those of Wang
and Isola (2020); anisotropy is the mean cosine of two embeddings.
"""

from __future__ import annotations

import math

import numpy as np
import torch


def unit_vectors(embeddings: np.ndarray | torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The embeddings (n, d) scaled to length 1; a zero vector stays one.

    Raises:
        ValueError: if they are not one finite vector a row.
    """
    vectors = torch.as_tensor(embeddings).to(torch.float64)
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"embeddings: shape {tuple(vectors.shape)}; allowed is (texts, dimensions).")
    if not vectors.isfinite().all():
        raise ValueError("embeddings: some numbers are not finite.")
    lengths = vectors.norm(dim=1, keepdim=True)
    return (vectors / lengths.where(lengths > 0, 1.0)).to(dtype)


def alignment(left: np.ndarray | torch.Tensor, right: np.ndarray | torch.Tensor) -> float:
    """Mean squared distance of pairs that mean the same; 0 is best, 2 is what unrelated directions have.

    Args:
        left, right: embeddings (n, d) of the two sides of each pair.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> alignment(np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([[2.0, 0.0], [1.0, 0.0]]))
        1.0
    """
    one, other = unit_vectors(left, torch.float64), unit_vectors(right, torch.float64)
    if one.shape != other.shape:
        raise ValueError(f"left and right: shapes {tuple(one.shape)} and {tuple(other.shape)}; allowed is the same.")
    return (one - other).square().sum(dim=1).mean().item()


def uniformity(embeddings: np.ndarray | torch.Tensor, t: float = 2.0, chunk_size: int = 1024) -> float:
    """Log of the mean of exp(-t d^2) over the distances d of all pairs of rows; the lower, the more evenly spread.

    Args:
        embeddings: (n, d), of distinct texts. A pair is two different rows, counted once.
        t: how fast a pair's part fades with distance.
        chunk_size: rows compared with all others at a time; the matrix of all pairs is never held.

    Returns:
        Between -4 t (all pairs opposite) and 0 (all embeddings equal).

    Raises:
        ValueError: if there are fewer than two rows.

    Example:
        >>> round(uniformity(np.array([[1.0, 0.0], [0.0, 1.0]])), 6)
        -4.0
    """
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size!r}: allowed is a whole number from 1 on.")
    vectors = unit_vectors(embeddings)
    count = _at_least_two(len(vectors))
    squares = vectors.square().sum(dim=1)
    total = 0.0
    for start in range(0, count, chunk_size):
        rows = vectors[start : start + chunk_size]
        # Each pair once: only rows from here on, and of the square at the front only what is above the diagonal.
        distances = squares[start : start + chunk_size, None] + squares[start:] - 2 * rows @ vectors[start:].T
        parts = distances.clamp(min=0).mul(-t).exp()
        total += parts.triu(diagonal=1).sum(dtype=torch.float64).item()
    return math.log(total / (count * (count - 1) / 2))


class MeanCosine:
    """The mean cosine of all pairs of embeddings, gathered a batch at a time.

    The sum over pairs follows from the sum of the unit vectors, so no pair is ever looked at and nothing but that sum
    is kept. It is what the mean over random pairs estimates.

    Example:
        >>> mean = MeanCosine()
        >>> mean.add(np.array([[1.0, 0.0], [3.0, 0.0]]))
        >>> mean.add(np.array([[0.0, 1.0]]))
        >>> round(mean.value(), 6)
        0.333333
    """

    def __init__(self) -> None:
        self.count = 0
        self._total: torch.Tensor | None = None
        self._squares = 0.0

    def add(self, embeddings: np.ndarray | torch.Tensor) -> None:
        """Take embeddings (n, d) of texts that were not there before."""
        vectors = unit_vectors(embeddings, torch.float64)
        total = vectors.sum(dim=0).cpu()
        self._total = total if self._total is None else self._total + total
        self._squares += vectors.square().sum().item()
        self.count += len(vectors)

    def value(self) -> float:
        """The mean over the pairs of two different embeddings; a zero vector has cosine 0 with every other.

        Raises:
            ValueError: if there were fewer than two.
        """
        count = _at_least_two(self.count)
        assert self._total is not None
        return (self._total.square().sum().item() - self._squares) / (count * (count - 1))


def mean_cosine(embeddings: np.ndarray | torch.Tensor) -> float:
    """Anisotropy: the mean cosine of all pairs of rows of embeddings (n, d); 0 where directions are evenly spread.

    Raises:
        ValueError: if there are fewer than two rows.
    """
    mean = MeanCosine()
    mean.add(embeddings)
    return mean.value()


def _at_least_two(count: int) -> int:
    if count < 2:
        raise ValueError(f"embeddings: {count} of them make no pair; allowed are at least two.")
    return count
