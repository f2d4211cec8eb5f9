"""What HIRE must compute: multiply-accumulates (MAC) of its matrix products, forward.

The method as published is counted: every GRU runs over every real token in both directions, although a sentence task
reads F at the first token only, so that the forward direction of the top fusion layer could stop after one step (this
library does; `saved_by_first_token` is what that leaves out). Element-wise work is left out on both sides. A training
step costs three times a forward in every part, so ratios hold for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedConfig

from modeling_hire import HireConfig


def encoder_macs(config: PreTrainedConfig, lengths: Sequence[int]) -> int:
    """An encoder of the BERT kind on a padded batch: `L n (4 d^2 + 2 d f + 2 n d)` a row, `12 d^2` where f = 4 d."""
    width, inner, longest = config.hidden_size, config.intermediate_size, max(lengths)
    token = 4 * width**2 + 2 * width * inner + 2 * longest * width
    return config.num_hidden_layers * len(lengths) * longest * token


def gru_macs(inputs: int, size: int, layers: int) -> int:
    """A bidirectional GRU, a token: `2 * 3 h (d_in + h)` a layer."""
    return sum(6 * size * ((inputs if layer == 0 else 2 * size) + size) for layer in range(layers))


def scorer_macs(config: HireConfig, lengths: Sequence[int]) -> int:
    """The scores of all candidate layers."""
    width, count = config.hidden_size, len(config.layer_indices)
    if config.weighting != "dynamic":
        return 0
    if config.scorer == "gru":
        size = config.scorer_hidden_size or width
        return count * sum(lengths) * gru_macs(width, size, config.scorer_layers)
    return count * len(lengths) * 2 * width * (config.scorer_hidden_size or max(1, width // 4))


def hire_macs(config: HireConfig, lengths: Sequence[int], num_labels: int = 2) -> int:
    """Everything HIRE for a sentence task puts on the encoder."""
    width, size = config.hidden_size, config.fusion_hidden_size or config.hidden_size
    inputs = len(config.fusion_features) * width
    if config.fusion_num_layers:
        fusion = sum(lengths) * gru_macs(inputs, size, config.fusion_num_layers)
    else:
        fusion = len(lengths) * inputs * 2 * size
    mixture = len(config.layer_indices) * sum(lengths) * width
    head = len(lengths) * (2 * size * width + width * num_labels)
    return scorer_macs(config, lengths) + mixture + fusion + head


def saved_by_first_token(config: HireConfig, lengths: Sequence[int]) -> int:
    """What stopping the top fusion layer's forward direction after one step leaves out."""
    if not config.fusion_num_layers:
        return 0
    size = config.fusion_hidden_size or config.hidden_size
    below = len(config.fusion_features) * config.hidden_size if config.fusion_num_layers == 1 else 2 * size
    return (sum(lengths) - len(lengths)) * 3 * size * (below + size)


def last_layer_head_macs(config: PreTrainedConfig, lengths: Sequence[int], num_labels: int = 2) -> int:
    """The plain classification head: a dense layer on the first token, and the labels."""
    return len(lengths) * (config.hidden_size**2 + config.hidden_size * num_labels)


def predicted_ratio(config: HireConfig, lengths: Sequence[int]) -> float:
    """Cost of HIRE on an encoder over the cost of the encoder with its plain head, for rows of these lengths.

    The encoder pays for the padding, HIRE for real tokens only.
    """
    encoder = encoder_macs(config.encoder_config, lengths)
    return (encoder + hire_macs(config, lengths)) / (encoder + last_layer_head_macs(config.encoder_config, lengths))
