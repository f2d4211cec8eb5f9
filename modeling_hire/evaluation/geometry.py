"""Alignment, uniformity and anisotropy of sentence embeddings, by pooler and by layer.

    python -m modeling_hire.evaluation.geometry MODEL --dataset_dir data
    python -m modeling_hire.evaluation.geometry google-bert/bert-base-uncased --poolers cls_before_pooler mean \
        --dataset_dir data --layers --output geometry.json --picture geometry.png

The sentences are those of STS-B; pairs that people scored above 4 of 5 are the ones that should lie close. A pooler
that is trained belongs to a checkpoint of its own: evaluate each, and join their files with --compare.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis.plots import plots_available
from ..hub import markdown_table
from .command_line import EmbedderArguments, check_output, parse_command_line
from .embedders import Embedder, describe_embedder, embed, short_name
from .geometry_measures import alignment, mean_cosine, uniformity
from .geometry_plots import draw_alignment_uniformity, draw_layer_anisotropy
from .layer_anisotropy import VECTORS, layer_anisotropy
from .sts_data import STSDataset, load_sts_tasks


MEASURES = ("alignment", "uniformity", "anisotropy")


def positive_pairs(datasets: Sequence[STSDataset], positive_above: float = 4.0) -> list[tuple[str, str]]:
    """The pairs of sentences that people scored above `positive_above`.

    Raises:
        ValueError: if there are none.
    """
    pairs = [
        (left, right)
        for data in datasets
        for left, right, score in zip(data.sentences1, data.sentences2, data.scores, strict=True)
        if score > positive_above
    ]
    if not pairs:
        highest = max((float(np.max(data.scores)) for data in datasets), default=math.nan)
        raise ValueError(
            f"positive_above={positive_above!r}: no pair has a higher score; allowed is a number below {highest:g}, "
            "the highest."
        )
    return pairs


def evaluate_geometry(
    embedder: Embedder, datasets: Sequence[STSDataset], positive_above: float = 4.0, batch_size: int = 32
) -> dict[str, Any]:
    """Measure how an embedder's vectors lie in space.

    Args:
        embedder: what turns sentences into vectors, see `load_embedder`.
        datasets: similarity data, pooled.
        positive_above: a pair with a higher gold score counts as alike.
        batch_size: sentences that go through the encoder at a time.

    Returns:
        `alignment` (of the pairs alike), `uniformity` and `anisotropy` (of all pairs of distinct sentences), and
        `positives` and `sentences`, how many there are of each.

    Raises:
        ValueError: if no pair is alike.

    Example:
        >>> class Lengths:
        ...     def encode(self, sentences, **options):
        ...         return np.array([[len(s), 1.0] for s in sentences], dtype=np.float32)
        >>> data = STSDataset("mine", "test", ["a", "bb"], ["c", "ffff"], np.array([5.0, 1.0]))
        >>> evaluate_geometry(Lengths(), [data])["alignment"]
        0.0
    """
    pairs = positive_pairs(datasets, positive_above)
    sentences = distinct_sentences(datasets)
    vectors = embed(embedder, sentences, batch_size)
    place = {sentence: row for row, sentence in enumerate(sentences)}
    left, right = (vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
    return {
        "alignment": alignment(left, right),
        "uniformity": uniformity(vectors),
        "anisotropy": mean_cosine(vectors),
        "positives": len(pairs),
        "sentences": len(sentences),
    }


def distinct_sentences(datasets: Sequence[STSDataset]) -> list[str]:
    """Every sentence of the data once, in order."""
    return list(dict.fromkeys(s for data in datasets for s in (*data.sentences1, *data.sentences2)))


def geometry_table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table, a row for each embedder."""
    cells = [[row["name"], *(f"{row[measure]:.4f}" for measure in MEASURES)] for row in rows]
    return markdown_table(["embedder", *MEASURES], cells)


def layer_table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of what `layer_anisotropy` returned."""
    header = ["layer", *(f"anisotropy ({name.replace('_', ' ')})" for name in VECTORS)]
    return markdown_table(header, [[row["layer"], *(f"{row[name]:.4f}" for name in VECTORS)] for row in rows])


@dataclass
class GeometryArguments:
    """Which sentences to look at, and what to report.

    Raises:
        ValueError: for a wrong value; it names the field and what is allowed.
    """

    tasks: list[str] = field(
        default_factory=lambda: ["stsb"],
        metadata={
            "help": "Similarity data to take sentences from: stsb is its validation and test split; for all of it, "
            "stsb:train stsb:validation stsb:test."
        },
    )
    dataset_dir: str | None = field(
        default=None, metadata={"help": "Folder that holds the tasks' folders; without it, the Hub is asked."}
    )
    dataset_revision: str | None = field(default=None, metadata={"help": "Commit or branch of the data on the Hub."})
    positive_above: float = field(default=4.0, metadata={"help": "Pairs with a higher score are alike."})
    poolers: list[str] | None = field(
        default=None, metadata={"help": "Several poolers on the same plain encoder, a row for each."}
    )
    layers: bool = field(default=False, metadata={"help": "Also the anisotropy of every layer."})
    compare: list[str] | None = field(
        default=None, metadata={"help": "JSON files of earlier runs, whose rows join table and picture."}
    )
    picture: str | None = field(
        default=None, metadata={"help": "PNG to draw; with --layers a second one, NAME_layers.png."}
    )

    def __post_init__(self) -> None:
        if not math.isfinite(self.positive_above):
            raise ValueError(f"positive_above={self.positive_above!r}: allowed is a finite number.")
        if self.dataset_dir is not None and self.dataset_revision is not None:
            raise ValueError(f"dataset_revision={self.dataset_revision!r}: allowed for data on the Hub only.")
        self.poolers = None if self.poolers is None else list(dict.fromkeys(self.poolers))

    @property
    def layer_picture(self) -> str | None:
        """Where the picture of the layers goes."""
        if self.picture is None or not self.layers:
            return None
        return str(Path(self.picture).with_suffix("")) + "_layers.png"

    def check_pictures(self, overwrite: bool) -> None:
        """Raise a `ValueError` if a picture cannot be written, or would replace something."""
        for path in (self.picture, self.layer_picture):
            if path is not None:
                check_output("picture", path, ".png", overwrite)

    def earlier_rows(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of earlier runs.

        Args:
            data: what this run looks at; the earlier ones must have looked at the same.

        Raises:
            ValueError: if a file is missing, not one of this program's, or about other data.
        """
        rows = []
        for path in self.compare or ():
            try:
                report = json.loads(Path(path).read_text(encoding="utf-8"))
                earlier = {key: report["data"][key] for key in data}
                for row in report["embedders"]:
                    rows.append({"name": str(row["name"]), **{measure: float(row[measure]) for measure in MEASURES}})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"compare={path!r}: not a file that this program wrote ({type(error).__name__}: {error})."
                ) from error
            if earlier != data:
                raise ValueError(f"compare={path!r}: is about other data, {earlier}; allowed is {data}.")
        return rows


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Parse the command line, measure, print the tables and write JSON and pictures."""
    try:
        model, arguments = parse_command_line(
            [EmbedderArguments, GeometryArguments], sys.argv[1:] if argv is None else argv, __doc__
        )
        if arguments.poolers is not None and model.pooler is not None:
            raise ValueError(f"poolers={arguments.poolers!r} and pooler={model.pooler!r}: give one of the two.")
        arguments.check_pictures(model.overwrite)
        datasets = load_sts_tasks(arguments.tasks, arguments.dataset_dir, arguments.dataset_revision)
        data = {
            "splits": {dataset.label: len(dataset) for dataset in datasets},
            "positive_above": arguments.positive_above,
            "positives": len(positive_pairs(datasets, arguments.positive_above)),
            "sentences": len(distinct_sentences(datasets)),
        }
        earlier = arguments.earlier_rows(data)
        poolers = arguments.poolers or [None]
        embedders = [model.load(pooler) for pooler in poolers]
        rows = [_row(model, embedder, datasets, arguments) for embedder in embedders]
        layers = (
            layer_anisotropy(embedders[0], distinct_sentences(datasets), model.batch_size) if arguments.layers else []
        )
    except (ValueError, ImportError) as error:
        sys.exit(f"modeling_hire.evaluation.geometry: {error}")
    report: dict[str, Any] = {
        "model": model.public_name,
        "revision": model.revision,
        "data": data | {"notes": [note for dataset in datasets for note in dataset.notes]},
        "embedders": rows,
        "layers": layers,
    }
    source = f"{', '.join(data['splits'])}: {data['sentences']} sentences, {data['positives']} pairs alike"
    print(f"{source}\n\n{geometry_table([*rows, *earlier])}")
    if layers:
        print(f"\n{report['model']}\n\n{layer_table(layers)}")
    if arguments.picture is not None and plots_available(arguments.picture):
        draw_alignment_uniformity(arguments.picture, [*rows, *earlier], source)
        if arguments.layer_picture is not None:
            draw_layer_anisotropy(arguments.layer_picture, {report["model"]: layers}, source)
    model.write(report)
    return report


def _row(
    model: EmbedderArguments, embedder: Embedder, datasets: list[STSDataset], arguments: GeometryArguments
) -> dict[str, Any]:
    description = describe_embedder(embedder)
    return {
        "name": f"{model.public_name}, {short_name(description)}",
        "embedder": description,
        **evaluate_geometry(embedder, datasets, arguments.positive_above, model.batch_size),
    }


if __name__ == "__main__":
    main()
