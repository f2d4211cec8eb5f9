"""The words that ELMo's language models predict: over all of them, or over a sample while training."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from .configuration_elmo import ElmoConfig
from .modeling_inputs import at_least_single
from .modeling_losses import class_loss


def inclusion_probabilities(vocab_size: int, expected: int) -> torch.Tensor:
    """How likely each word is to be drawn, where words are sorted by falling frequency.

    The words of a large corpus occur about as often as `1 / rank`. A word's probability is that of occurring at least
    once in so many draws from that distribution that `expected` different ones come together on average.

    Args:
        vocab_size (`int`): words.
        expected (`int`): how many of them are drawn on average; fewer than all.

    Returns:
        Probabilities `(vocab_size,)`, in double precision, which sum to `expected`.

    Example:

    ```python
    >>> from modeling_hire.modeling_elmo_softmax import inclusion_probabilities

    >>> probabilities = inclusion_probabilities(1000, expected=100)
    >>> round(probabilities.sum().item(), 3), bool(probabilities[0] > probabilities[999])
    (100.0, True)
    ```
    """
    ranks = torch.arange(vocab_size, dtype=torch.float64)
    # log(1 - p) of the share p of a word in a text.
    absent = torch.log1p(-torch.log1p(1 / (ranks + 1)) / math.log(vocab_size + 1))
    low, high = 0.0, 1.0
    while -torch.expm1(high * absent).sum() < expected:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if -torch.expm1(middle * absent).sum() < expected else (low, middle)
    return -torch.expm1(high * absent)


class WordSoftmax(nn.Linear):
    """Scores of all words, and the loss of the right one.

    With `config.softmax == "sampled"`, while training the sum over all words is estimated from a sample, drawn anew
    for each batch: every word is in it by itself with its own probability, and weighs one over that. The right word
    always counts in full. The estimate of the sum is unbiased, so the loss approaches that over all words as the
    sample grows.

    Args:
        config ([`ElmoConfig`]): the configuration.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__(config.projection_size, config.vocab_size)
        self.num_sampled = config.num_sampled_words if config.softmax == "sampled" else None
        self._inclusion: torch.Tensor | None = None

    def loss(
        self, states: torch.Tensor, words: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Mean loss of predictions.

        Args:
            states (`torch.Tensor` of shape `(predictions, projection_size)`): what is predicted from.
            words (`torch.LongTensor` of shape `(predictions,)`): the right words; -100 where none counts.
            num_items_in_batch (`int`, *optional*): divides the sum instead of the number of words that count.
        """
        counted = (words != -100).nonzero().squeeze(1)
        states, words = states.index_select(0, counted), words.index_select(0, counted)
        if self.num_sampled is None or not self.training:
            return class_loss(self(states), words, num_items_in_batch)
        drawn, logits = self._sample(states, words)
        right = (states * functional.embedding(words, self.weight)).sum(dim=1) + self.bias[words]
        # The right word comes first, and not again.
        logits = logits.masked_fill(drawn == words[:, None], torch.finfo(logits.dtype).min)
        logits = torch.cat([at_least_single(right)[:, None], logits], dim=1)
        return class_loss(logits, torch.zeros_like(words), num_items_in_batch)

    def _sample(self, states: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Drawn words, and their scores less the logarithm of how likely each was to be drawn."""
        if self._inclusion is None or self._inclusion.device != words.device:
            self._inclusion = inclusion_probabilities(self.out_features, self.num_sampled).to(words.device)
        drawn = (torch.rand_like(self._inclusion) < self._inclusion).nonzero().squeeze(1)
        logits = functional.linear(states, functional.embedding(drawn, self.weight), self.bias[drawn])
        logits = at_least_single(logits)
        return drawn, logits - self._inclusion[drawn].log().to(logits.dtype)
