"""What ensembles return, and how members' outputs become theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput

from .spans import Candidates


@dataclass
class EnsembleClassifierOutput(ModelOutput):
    """What an ensemble says about a batch of texts.

    Args:
        logits: `(batch, labels)`: their softmax is the mean of the members' probabilities; of a single member they are
            its own. The mean score `(batch, 1)` where members predict a score.
        probabilities: `(batch, labels)`: the mean of the members' probabilities; `None` for scores.
        member_logits: `(members, batch, labels)`, the labels in the ensemble's order.
    """

    logits: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None
    member_logits: torch.Tensor | None = None


@dataclass
class EnsembleSpanOutput(ModelOutput):
    """What an ensemble says about a batch of windows.

    Args:
        start_logits, end_logits: `(batch, tokens)`: their softmax is the mean of the members' probabilities; of a
            single member they are its own. Minus infinity at tokens that cannot be chosen.
        start_probabilities, end_probabilities: `(batch, tokens)`: the mean of the members' probabilities.
    """

    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    start_probabilities: torch.Tensor | None = None
    end_probabilities: torch.Tensor | None = None


@dataclass(frozen=True)
class TextPrediction:
    """What an ensemble says about one text or pair of texts.

    Args:
        label: name of the most probable class; `None` if the members predict a score.
        score: that class's probability, or the predicted score.
        probabilities: of every class, by name; empty for a score.
    """

    label: str | None
    score: float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class FoundSpans:
    """What was found for each question.

    Args:
        ensemble: by all members together.
        members: by each member alone.
    """

    ensemble: list[Candidates]
    members: list[list[Candidates]]


def mean_distribution(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of several softmax distributions.

    Args:
        logits: `(members, ..., choices)`; minus infinity where something cannot be chosen.

    Returns:
        The logits of the mean, with the mean of the members' normalisers added, so that those of a single member are
        its own; and the mean.

    Example:
        >>> import torch
        >>> logits, mean = mean_distribution(torch.tensor([[0.2, 0.8], [0.6, 0.4]]).log())
        >>> mean
        tensor([0.4000, 0.6000])
        >>> bool(logits.softmax(-1).allclose(mean))
        True
    """
    scales = logits.logsumexp(-1, keepdim=True)
    logarithm = torch.logsumexp(logits - scales, 0) - torch.tensor(float(len(logits))).log().to(logits)
    return logarithm + scales.mean(0), logarithm.exp()
