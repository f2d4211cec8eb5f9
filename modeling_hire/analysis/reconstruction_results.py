"""What the reconstruction probe returns."""

from __future__ import annotations

from dataclasses import dataclass

from .reconstruction_scores import Scores


@dataclass(frozen=True)
class LayerScores:
    """What the output layer reads in one layer.

    Args:
        layer: number of the hidden state.
        block: the block of the checkpoint that made it, counted from 0; `None` for the embedding output.
        content: scores over the tokens that are not special.
        everything: scores over all tokens but padding.
    """

    layer: int
    block: int | None
    content: Scores
    everything: Scores


@dataclass(frozen=True)
class ProbedStack:
    """The layers of one model.

    Args:
        plan: the blocks in the order in which they ran.
        layers: one entry a hidden state; where the encoder has a final norm, every state went through it.
        final_norm: path of the final norm, `None` for encoders that end in a layer.
        without_final_norm: the same layers without it; `None` where there is none.
        cosine_to_original: mean cosine of its last layer to that of the unchanged model, over the tokens that are not
            special; `None` for the unchanged model.
    """

    plan: list[int]
    layers: list[LayerScores]
    final_norm: str | None = None
    without_final_norm: list[LayerScores] | None = None
    cosine_to_original: float | None = None


@dataclass(frozen=True)
class ChangedStack:
    """The top of a stack in which one block was left out or repeated.

    Args:
        block: the block, counted from 0; it makes the hidden state `block + 1`.
        times: how often it ran, 0 for removed.
        plan: the blocks in the order in which they ran.
        content: scores over the tokens that are not special; the cosine is to the original's last layer.
        everything: the same over all tokens but padding.
    """

    block: int
    times: int
    plan: list[int]
    content: Scores
    everything: Scores


@dataclass(frozen=True)
class DecodedLayer:
    """What the output layer reads in one layer of one text.

    Args:
        layer: number of the hidden state.
        block: the block that made it; `None` for the embedding output.
        tokens: the token with the highest logit at each place.
        probability: what each place's own token is given.
        rank: the rank of each place's own token, 1 being the highest.
    """

    layer: int
    block: int | None
    tokens: list[str]
    probability: list[float]
    rank: list[int]
