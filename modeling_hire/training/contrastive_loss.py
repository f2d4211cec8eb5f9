"""InfoNCE over in-batch and hard negatives, on one process or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional


@dataclass(frozen=True)
class ContrastiveLoss:
    r"""
    The InfoNCE loss of anchors z_i against all candidates of the batch: with cosine similarities over a temperature,
    the cross-entropy of finding the positive,
    -log exp(cos(z_i, p_i) / tau) / (sum_j exp(cos(z_i, p_j) / tau) + sum_jk exp(cos(z_i, n_jk) / tau + w [i = j])).

    In several processes the candidates are those of all of them, with gradients that equal one process's on the whole
    batch. A candidate that is the same text as the anchor or its positive is no negative of it, nor is what another
    row gives as a positive of the same anchor.

    Args:
        temperature (`float`): tau.
        hard_negative_weight (`float`): w, added to the logit of an anchor's own hard negatives; 0 in SimCSE, 1 in the
            code of the layer-wise attention paper's authors.
        two_way (`bool`): the mean of this loss and the one in which positives look for their anchors.
        dimensions (`Sequence[int]`, *optional*): the mean of the losses over embeddings cut to each of these lengths
            (Matryoshka); unset, whole embeddings.

    Raises:
        ValueError: when called with one candidate: an anchor that has nothing but its positive to choose from.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire.training.contrastive_loss import ContrastiveLoss

    >>> vectors = torch.eye(4)[None].transpose(0, 1)  # four rows of one text
    >>> ContrastiveLoss(temperature=1.0)(vectors.expand(-1, 2, -1), torch.arange(4)[:, None].expand(-1, 2)).item()
    0.7436...
    ```
    """

    temperature: float = 0.05
    hard_negative_weight: float = 1.0
    two_way: bool = False
    dimensions: Sequence[int] | None = None

    def __call__(self, embeddings: torch.Tensor, text_ids: torch.Tensor) -> torch.Tensor:
        """The mean loss over the rows.

        Args:
            embeddings: `(batch, texts, hidden_size)`: anchor, positive and hard negatives of each row.
            text_ids: `(batch, texts)`: equal numbers for equal texts.

        Returns:
            A number, in float32, or float64 if the embeddings are.
        """
        everyone, ids = gather(embeddings), gather(text_ids)
        first = len(embeddings) * (dist.get_rank() if is_distributed() else 0)
        own = torch.arange(first, first + len(embeddings), device=embeddings.device)
        if everyone.shape[0] * (everyone.shape[1] - 1) < 2:
            raise ValueError(
                "per_device_train_batch_size=1: the only row of this batch has no hard negative, so its anchor has "
                "nothing but its positive to choose from, and the loss is 0 whatever the model does; allowed is a "
                "larger batch, or rows with hard negatives."
            )
        widths = [embeddings.shape[-1]] if self.dimensions is None else self.dimensions
        losses = []
        for width in widths:
            cut = everyone[..., :width]
            # Half precision tells cosines above 0.99 hardly apart, and the temperature makes much of them.
            cut = functional.normalize(cut.to(torch.promote_types(cut.dtype, torch.float32)), dim=-1)
            losses.append(self._loss(cut, ids, own))
            if self.two_way:
                # Positives choose among the anchors; hard negatives are the anchors' only.
                losses.append(self._loss(cut[:, [1, 0]], ids[:, [1, 0]], own))
        return torch.stack(losses).mean()

    def _loss(self, vectors: torch.Tensor, ids: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        rows, texts, _ = vectors.shape
        # Candidates in the order positives, first negatives, second negatives, ...: row r's stand at r, rows + r, ...
        candidates = vectors[:, 1:].transpose(0, 1).flatten(0, 1)
        candidate_ids = ids[:, 1:].T.flatten()
        logits = vectors[own, 0] @ candidates.T / self.temperature
        if texts > 2 and self.hard_negative_weight:
            bonus = torch.zeros_like(logits)
            columns = own[:, None] + rows * torch.arange(1, texts - 1, device=own.device)
            logits = logits + bonus.scatter(1, columns, self.hard_negative_weight)
        alike = (ids[own, 0, None] == candidate_ids) | (ids[own, 1, None] == candidate_ids)
        alike[:, :rows] |= ids[own, 0, None] == ids[:, 0]  # the same anchor's positives, which come first
        alike[torch.arange(len(own), device=own.device), own] = False  # the positive itself
        return functional.cross_entropy(logits.masked_fill(alike, float("-inf")), own)


def is_distributed() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of all processes, in the order of their ranks; a tensor of one process as it is.

    The backward pass adds up what every process's loss wants of these rows. `DistributedDataParallel` then takes the
    mean over processes, as of everything, and the result is the gradient of the mean loss of one process on all rows.
    """
    return _Gather.apply(tensor) if is_distributed() else tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.rows = len(tensor)
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        start = ctx.rows * dist.get_rank()
        return gradient[start : start + ctx.rows]
