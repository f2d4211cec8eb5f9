"""How well logits name the tokens they stand for: counted chunk by chunk, holding nothing but sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scores:
    """Means over tokens.

    Args:
        tokens: how many there were. With none, the other numbers are NaN.
        accuracy: share of the tokens whose own logit is the highest of all.
        loss: mean cross-entropy, in nats.
        mean_rank: mean rank of the token's own logit; 1 is the highest, and an equal logit counts as higher.
        median_rank: the middle one, or the mean of the two in the middle.
        cosine: mean cosine of a token's hidden state to the reference's, mostly the last layer's.
    """

    tokens: int
    accuracy: float
    loss: float
    mean_rank: float
    median_rank: float
    cosine: float


class ScoreCounter:
    """Sums up the scores of one layer, over all tokens and over those that are not special.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire.analysis.reconstruction_scores import ScoreCounter

    >>> counter = ScoreCounter(vocab_size=3)
    >>> logits = torch.tensor([[2.0, 0.0, 1.0], [2.0, 0.0, 1.0]])
    >>> counter.add(logits, torch.tensor([0, 1]), torch.tensor([False, False]), torch.ones(2))
    >>> content, everything = counter.scores()
    >>> content.accuracy, content.mean_rank
    (0.5, 2.0)
    ```
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu"):
        # Row 0 counts the special tokens, row 1 the others; column r those of rank r. Exact medians, whatever the
        # number of tokens.
        self.ranks = torch.zeros(2, vocab_size + 1, dtype=torch.long, device=device)
        self.sums = torch.zeros(2, 2, dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, ids: torch.Tensor, special: torch.Tensor, cosine: torch.Tensor) -> None:
        """Count some tokens.

        Args:
            logits: (tokens, vocab_size), overwritten.
            ids: (tokens,), what each of them is.
            special: (tokens,), whether it is a special token.
            cosine: (tokens,), of its hidden state to the reference.
        """
        logits = logits.float()
        own = logits.gather(1, ids[:, None])
        # Counting what is lower puts a logit that is no number at the very end.
        ranks = logits.shape[1] - (logits < own).sum(dim=1)
        highest = logits.amax(dim=1, keepdim=True)
        # In place: one more tensor of this size would double the memory.
        total = logits.sub_(highest).exp_().sum(dim=1)
        loss = total.log() + (highest - own)[:, 0]
        values = torch.stack([loss, cosine.float()]).double()
        for row, chosen in enumerate((special, ~special)):
            self.ranks[row] += torch.bincount(ranks[chosen], minlength=self.ranks.shape[1])
            self.sums[row] += values[:, chosen].sum(dim=1)

    def scores(self) -> tuple[Scores, Scores]:
        """The scores without special tokens, and those of all tokens.

        Raises:
            ValueError: if a logit or a hidden state was not finite.
        """
        if not self.sums.isfinite().all():
            raise ValueError("logits or hidden states are not finite numbers; try dtype=float32.")
        ranks, sums = self.ranks.cpu(), self.sums.cpu()
        return _summary(ranks[1], sums[1]), _summary(ranks.sum(dim=0), sums.sum(dim=0))


def _summary(ranks: torch.Tensor, sums: torch.Tensor) -> Scores:
    tokens = int(ranks.sum())
    if not tokens:
        return Scores(0, *[math.nan] * 5)
    below = ranks.cumsum(0)
    # The ranks at the two middle places; the same place if the number of tokens is odd.
    middle = [int(torch.searchsorted(below, place, right=True)) for place in ((tokens - 1) // 2, tokens // 2)]
    weighted = int((ranks * torch.arange(len(ranks))).sum())
    loss, cosine = (sums / tokens).tolist()
    return Scores(tokens, int(ranks[1]) / tokens, loss, weighted / tokens, sum(middle) / 2, cosine)
