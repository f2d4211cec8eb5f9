"""Contrastive batches that do not fit into memory: gradient caching (Gao et al., arXiv 2101.06983).

A contrastive loss needs the embeddings of the whole batch at once, but not the encoder's activations. So the texts run
chunk by chunk without a graph; the loss gives the gradient of each embedding; and each chunk runs once more, with a
graph and the same dropout, to carry its gradients into the parameters. Activations are held for one chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .random_state import RandomState


Inputs = dict[str, torch.Tensor]


@dataclass
class _Surroundings:
    """Under what a chunk is run: random numbers and autocast."""

    random: RandomState
    device_type: str
    casts: bool
    dtype: torch.dtype

    @classmethod
    def now(cls, inputs: Inputs) -> _Surroundings:
        kind = inputs["input_ids"].device.type
        random = RandomState.now(list(inputs.values()))
        return cls(random, kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Bring them back for a while; the random numbers after it are those that would have come without it."""
        # Weights that were cast while there was no graph have none, so none of them is taken from a cache.
        casting = torch.autocast(self.device_type, self.dtype, self.casts, cache_enabled=False)
        with self.random.replayed(), casting:
            yield


def embed_cached(
    model: nn.Module, embed: Callable[[Inputs], torch.Tensor], inputs: Inputs, chunk: int
) -> torch.Tensor:
    """Embeddings, whose backward pass runs the model once more, chunk by chunk.

    Args:
        model: what `embed` calls; a `DistributedDataParallel` synchronises its gradients once, in the last chunk.
        embed: from encoder inputs, `(texts, tokens)`, to embeddings, `(texts, hidden_size)`.
        inputs: of all texts.
        chunk: texts at a time.

    Returns:
        `(texts, hidden_size)`. Its gradient reaches the parameters, and nothing else. They may not be changed before.

    Example:

    ```python
    >>> import torch
    >>> from torch import nn
    >>> from modeling_hire.training.gradient_cache import embed_cached

    >>> model = nn.Embedding(9, 2)
    >>> texts = {"input_ids": torch.tensor([[1], [4], [7]])}
    >>> embeddings = embed_cached(model, lambda inputs: model(inputs["input_ids"])[:, 0], texts, chunk=2)
    >>> embeddings.sum().backward()
    >>> model.weight.grad[:, 0].tolist()
    [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    ```
    """
    count = len(inputs["input_ids"])
    pieces = [{name: value[i : i + chunk] for name, value in inputs.items()} for i in range(0, count, chunk)]
    states, parts = [], []
    with torch.no_grad():
        for piece in pieces:
            states.append(_Surroundings.now(piece))
            parts.append(embed(piece))
    embeddings = torch.cat(parts).requires_grad_()

    def replay(gradient: torch.Tensor) -> None:
        for index, (piece, state) in enumerate(zip(pieces, states, strict=True)):
            wait = index < len(pieces) - 1 and hasattr(model, "no_sync")
            with model.no_sync() if wait else contextlib.nullcontext(), torch.enable_grad():
                with state.again():
                    again = embed(piece)
                again.backward(gradient[index * chunk : index * chunk + len(again)].to(again.dtype))

    embeddings.register_hook(replay)
    return embeddings
