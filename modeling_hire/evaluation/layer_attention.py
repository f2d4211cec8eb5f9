"""Which layers a sentence encoder attends to, dataset by dataset: a table, a picture and the numbers as JSON.

    python -m modeling_hire.evaluation.layer_attention MODEL --dataset_dir data
    python -m modeling_hire.evaluation.layer_attention MODEL --tasks stsb:test sts15 sick --dataset_dir data \\
        --output layers.json --picture layers.png

The model is a checkpoint of this library whose pooler weighs the layers: `layer_attn` or `static_mix`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..analysis.layer_importance import collect_layer_weights
from ..analysis.plots import draw_layers_by_task, plots_available
from ..configuration_layer_attn_pool import LayerAttnPoolConfig
from ..data.messages import listing
from ..hub import markdown_table
from .command_line import EmbedderArguments, check_output, parse_command_line
from .embedders import Embedder
from .geometry import distinct_sentences
from .layer_anisotropy import batches_by_length, reading_parts
from .sts_data import STSDataset, load_sts_tasks


WEIGHING_POOLERS = ("layer_attn", "static_mix")


def layer_attention(embedder: Embedder, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
    """The weight of each layer in the embedding of each text (Oh et al., arXiv 2209.05972).

    For layer attention it is the mean over the queries of `alpha_ij`, the share of the value of layer `j`.

    Args:
        embedder: a `LayerAttnPoolEncoder` whose pooler weighs the layers.
        texts: n texts.
        batch_size: texts that go through the encoder at a time.

    Returns:
        (n, layers) of float32 in the order of `texts`; column `i` belongs to hidden state
        `embedder.config.layer_indices[i]`, rows sum to one.

    Raises:
        ValueError: if the embedder does not weigh layers, or there are no texts.

    Example:

    ```python
    >>> from modeling_hire.evaluation.embedders import load_embedder
    >>> from modeling_hire.evaluation.layer_attention import layer_attention

    >>> layer_attention(load_embedder("you/sentence-encoder"), ["One text."]).shape  # doctest: +SKIP
    (1, 13)
    ```
    """
    config = getattr(embedder, "config", None)
    if not isinstance(config, LayerAttnPoolConfig) or config.pooler not in WEIGHING_POOLERS:
        pooler = getattr(config, "pooler", type(embedder).__name__)
        raise ValueError(f"pooler={pooler!r}: does not weigh the layers; allowed is {listing(WEIGHING_POOLERS)}.")
    if config.detach_at_inference is not None:
        raise ValueError(
            f"detach_at_inference={config.detach_at_inference!r}: this embedding is one vector of the last layer; "
            f"to look at its pooler, load it with pooler={config.pooler!r}."
        )
    if not texts:
        raise ValueError("texts: there are none; allowed is at least one text.")
    model, *reading = reading_parts(embedder)
    batches = list(batches_by_length(reading, texts, batch_size))
    weights = collect_layer_weights(model, (inputs for _, inputs in batches))
    rows = [row for rows, _ in batches for row in rows]
    return weights[np.argsort(rows)]


def by_dataset(embedder: Embedder, datasets: Sequence[STSDataset], batch_size: int = 32) -> list[dict[str, Any]]:
    """Mean and spread of the layers' weights over each dataset's distinct sentences.

    Args:
        embedder: see `layer_attention`.
        datasets: the splits of one task are taken together.
        batch_size: sentences that go through the encoder at a time.

    Returns:
        For each task `name`, `sentences`, and `mean` and `std`, a number for each layer.
    """
    rows = []
    for task in dict.fromkeys(data.name for data in datasets):
        sentences = distinct_sentences([data for data in datasets if data.name == task])
        weights = layer_attention(embedder, sentences, batch_size)
        mean, std = ([round(float(number), 6) for number in numbers] for numbers in (weights.mean(0), weights.std(0)))
        rows.append({"name": task, "sentences": len(sentences), "mean": mean, "std": std})
    return rows


@dataclass
class LayerAttentionArguments:
    """Which sentences to look at, and the picture.

    Raises:
        ValueError: for a wrong value; it names the field and what is allowed.
    """

    tasks: list[str] = field(
        default_factory=lambda: ["stsb", "sts12", "sts13", "sts14", "sts15", "sick"],
        metadata={"help": "Similarity data whose sentences are read, as in modeling_hire.evaluation.sts."},
    )
    dataset_dir: str | None = field(
        default=None, metadata={"help": "Folder that holds the tasks' folders; without it, the Hub is asked."}
    )
    dataset_revision: str | None = field(default=None, metadata={"help": "Commit or branch of the data on the Hub."})
    picture: str | None = field(default=None, metadata={"help": "PNG to draw: datasets x layers."})

    def __post_init__(self) -> None:
        if self.dataset_dir is not None and self.dataset_revision is not None:
            raise ValueError(f"dataset_revision={self.dataset_revision!r}: allowed for data on the Hub only.")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Parse the command line, look, print the table and write JSON and picture."""
    try:
        model, arguments = parse_command_line(
            [EmbedderArguments, LayerAttentionArguments], sys.argv[1:] if argv is None else argv, __doc__
        )
        if arguments.picture is not None:
            check_output("picture", arguments.picture, ".png", model.overwrite)
        datasets = load_sts_tasks(arguments.tasks, arguments.dataset_dir, arguments.dataset_revision)
        embedder = model.load()
        rows = by_dataset(embedder, datasets, model.batch_size)
    except (ValueError, ImportError) as error:
        sys.exit(f"modeling_hire.evaluation.layer_attention: {error}")
    layers = list(embedder.config.layer_indices)  # type: ignore[attr-defined]
    cells = [[row["name"], row["sentences"], *(f"{weight:.3f}" for weight in row["mean"])] for row in rows]
    print(markdown_table(["dataset", "sentences", *(f"layer {layer}" for layer in layers)], cells))
    if arguments.picture is not None and plots_available(arguments.picture):
        weights = np.array([row["mean"] for row in rows])
        draw_layers_by_task(arguments.picture, weights, layers, [row["name"] for row in rows])
    report = {"model": model.public_name, "revision": model.revision, "layers": layers, "datasets": rows}
    model.write(report)
    return report


if __name__ == "__main__":
    main()
