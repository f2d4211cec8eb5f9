"""Losses of the task heads, which weigh accumulated batches as one."""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import PreTrainedConfig

from .modeling_inputs import at_least_single


def sequence_loss(
    logits: torch.Tensor, labels: torch.Tensor, config: PreTrainedConfig, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Mean loss of logits `(..., num_labels)` against labels, of the kind `config.problem_type` or the labels say.

    It is divided by `num_items_in_batch` where a trainer gives it, so that accumulated batches weigh as one.

    Raises:
        ValueError: for labels whose number does not fit.
    """
    problem = config.problem_type
    if problem is None:
        several = labels.is_floating_point() or (labels.dtype == torch.bool and labels.shape == logits.shape)
        problem = "multi_label_classification" if several else "single_label_classification"
        problem = "regression" if config.num_labels == 1 else problem
    single = problem == "single_label_classification"
    expected = logits.shape[:-1] if single or config.num_labels == 1 else logits.shape
    if labels.numel() != expected.numel():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype}: allowed is shape {tuple(expected)} for "
            f"problem_type={problem!r} with {config.num_labels} labels. Unless config.problem_type is set, labels "
            "are class ids if they are whole numbers, and several classes at once if not."
        )
    if single:
        return class_loss(logits, labels, num_items_in_batch)
    labels = labels.to(logits.dtype).view_as(logits)
    loss_function = functional.mse_loss if problem == "regression" else functional.binary_cross_entropy_with_logits
    return _mean(loss_function(logits, labels, reduction="sum"), labels.numel(), num_items_in_batch)


def class_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Mean cross-entropy of logits `(..., classes)` against class ids `(...)`; a label of -100 does not count."""
    total = functional.cross_entropy(at_least_single(logits.flatten(0, -2)), labels.flatten().long(), reduction="sum")
    return _mean(total, (labels != -100).sum().clamp(min=1), num_items_in_batch)


def span_loss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_positions: torch.Tensor,
    end_positions: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean of the losses of start and end, from logits `(batch, tokens)` and token indices `(batch,)`.

    An index outside the text does not count. With the mask `(batch, tokens)`, padding gets no share of the softmax, so
    that the loss of a text does not depend on how long its neighbours in the batch are.
    """
    losses = []
    for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
        logits, positions = at_least_single(logits), positions.view(-1)
        outside = (positions < 0) | (positions >= logits.shape[1])
        if attention_mask is not None and attention_mask.dim() == 2:
            padding = attention_mask == 0
            # The lowest number and not -inf: a row without any text would have no gradient but NaN.
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
            outside = outside | padding.gather(1, positions.clamp(0, logits.shape[1] - 1)[:, None]).squeeze(1)
        losses.append(class_loss(logits, positions.masked_fill(outside, -100), num_items_in_batch))
    return sum(losses) / 2


def _mean(total: torch.Tensor, count: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None):
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / (count if num_items_in_batch is None else num_items_in_batch)
