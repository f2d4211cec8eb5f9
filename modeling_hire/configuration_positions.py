"""How many tokens an encoder can take."""

from __future__ import annotations

from transformers import PreTrainedConfig


# Encoders that count positions from padding_idx + 1, so that many of their positions are never used.
_OFFSET_POSITIONS = frozenset(
    {
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
# Encoders with relative positions only: `max_position_embeddings`, where they have it, is no limit.
_RELATIVE_POSITIONS = frozenset({"funnel", "mega", "t5", "umt5", "xlnet"})


def num_positions(config: PreTrainedConfig) -> int | None:
    """How many positions an encoder has for tokens, or `None` if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    # DeBERTa adds learned absolute positions to its relative ones only if told so; published ones are not.
    if config.model_type in _RELATIVE_POSITIONS or not getattr(config, "position_biased_input", True):
        return None
    if not isinstance(positions, int) or positions <= 0:
        return None
    if config.model_type in _OFFSET_POSITIONS:
        padding = getattr(config, "pad_token_id", None)
        return positions - (1 if padding is None else padding) - 1
    return positions
