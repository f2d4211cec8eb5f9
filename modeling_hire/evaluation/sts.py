"""Semantic textual similarity: how well cosines of embeddings follow people's judgement.

    python -m modeling_hire.evaluation.sts MODEL --dataset_dir data
    python -m modeling_hire.evaluation.sts google-bert/bert-base-uncased --pooler mean --tasks sts12 stsb:validation
    python -m modeling_hire.evaluation.sts MODEL --files pairs.csv --output sts.json

STS12 to STS16 are made of subsets, and published figures differ in how these are put together: `all` correlates all
pairs of the task at once, `mean` averages the subsets' correlations, `wmean` weighs them by their size. `all` is the
default here; the output names what it holds. No regressor is trained on top.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.messages import did_you_mean, listing
from ..hub import markdown_table
from .command_line import EmbedderArguments, parse_command_line
from .correlation import cosine_similarities, is_constant, similarity_metrics
from .embedders import Embedder, describe_embedder, embed
from .sts_data import STSDataset, load_sts_file, load_sts_tasks


AGGREGATIONS = ("all", "mean", "wmean")
METRICS = ("spearman", "pearson")


def evaluate_sts(
    embedder: Embedder,
    datasets: Sequence[STSDataset],
    aggregations: Sequence[str] = ("all",),
    batch_size: int = 32,
) -> list[dict[str, Any]]:
    """Score embeddings on similarity datasets.

    Args:
        embedder: what turns sentences into vectors, see `load_embedder`.
        datasets: what to score on, see `load_sts_tasks` and `load_sts_file`.
        aggregations: how subsets are put together: `"all"`, `"mean"`, `"wmean"`.
        batch_size: sentences that go through the encoder at a time.

    Returns:
        For each dataset a dictionary: `dataset`, `split`, `pairs`, `scores` (aggregation -> `spearman` and `pearson`,
        -1 to 1, or `None` where the model gives all pairs the same similarity, so that no correlation exists),
        `subsets` (name -> `pairs`, `spearman`, `pearson`) and `notes`.

    Raises:
        ValueError: for an unknown aggregation, one that the data cannot have, or no dataset, before any encoding; and
            if the embedder's vectors are not finite.

    Example:
        >>> class Lengths:
        ...     def encode(self, sentences, **options):
        ...         return np.array([[len(s), 1.0] for s in sentences], dtype=np.float32)
        >>> data = STSDataset("mine", "test", ["a", "bb", "c"], ["d", "e", "ffff"], np.array([5.0, 3.0, 1.0]))
        >>> evaluate_sts(Lengths(), [data])[0]["scores"]["all"]["spearman"]
        1.0
    """
    datasets, aggregations = list(datasets), list(aggregations)
    _check(datasets, aggregations)
    results = []
    for dataset in datasets:
        vectors = embed(embedder, dataset.sentences1 + dataset.sentences2, batch_size)
        cosines = cosine_similarities(vectors[: len(dataset)], vectors[len(dataset) :])
        results.append(_score(dataset, cosines, aggregations))
    return results


def _check(datasets: Sequence[STSDataset], aggregations: Sequence[str]) -> None:
    if not datasets:
        raise ValueError("datasets: there are none; allowed is at least one.")
    for name in aggregations:
        if name not in AGGREGATIONS:
            raise ValueError(
                f"aggregations={name!r}: allowed is one of {listing(AGGREGATIONS)}.{did_you_mean(name, AGGREGATIONS)}"
            )
    if not aggregations:
        raise ValueError(f"aggregations: there are none; allowed are {listing(AGGREGATIONS)}.")
    averaged = next((name for name in aggregations if name != "all"), None)
    for dataset in datasets if averaged is not None else ():
        if dataset.split_in_subsets and dataset.subsets is None:
            raise ValueError(
                f"aggregations={averaged!r}: {dataset.label} does not say which subset a pair is from (no column "
                "'source'); allowed is 'all'."
            )
        for name, rows in dataset.by_subset().items():
            if is_constant(dataset.scores[rows]):
                raise ValueError(
                    f"aggregations={averaged!r}: all {len(rows)} gold scores of subset {name!r} of {dataset.label} "
                    "are equal, so its correlation is undefined; allowed is 'all'."
                )


def _score(dataset: STSDataset, cosines: np.ndarray, aggregations: Sequence[str]) -> dict[str, Any]:
    subsets = {
        name: {"pairs": len(rows), **similarity_metrics(cosines[rows], dataset.scores[rows], undefined=None)}
        for name, rows in dataset.by_subset().items()
    }
    scores: dict[str, dict[str, float | None]] = {}
    for aggregation in aggregations:
        if aggregation == "all":
            scores["all"] = similarity_metrics(cosines, dataset.scores, undefined=None)
        else:
            weights = [subset["pairs"] if aggregation == "wmean" else 1 for subset in subsets.values()]
            scores[aggregation] = {
                metric: _average([subset[metric] for subset in subsets.values()], weights) for metric in METRICS
            }
    notes = list(dataset.notes)
    undefined = [name for name, values in scores.items() if values["spearman"] is None]
    if undefined:
        notes.append(
            f"{', '.join(undefined)}: undefined, the model gives all pairs (of a subset) the same similarity."
        )
    return {
        "dataset": dataset.name,
        "split": dataset.split,
        "pairs": len(dataset),
        "scores": scores,
        "subsets": {} if dataset.subsets is None else subsets,
        "notes": notes,
    }


def _average(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.average(present, weights=weights)) if len(present) == len(values) else None


def mean_of_rows(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """The unweighted mean over the datasets of what [`evaluate_sts`] returned: aggregation -> metric -> mean."""
    return {
        aggregation: {
            metric: _average([row["scores"][aggregation][metric] for row in results], [1] * len(results))
            for metric in METRICS
        }
        for aggregation in results[0]["scores"]
    }


def sts_table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of what [`evaluate_sts`] returned, correlations x 100, with the mean over the rows."""
    names = list(results[0]["scores"])
    rows = [[row["dataset"], row["split"], row["pairs"], *_cells(row["scores"])] for row in results]
    if len(results) > 1:
        pairs = sum(row["pairs"] for row in results)
        rows.append([f"mean of {len(results)} rows", "", pairs, *_cells(mean_of_rows(results))])
    header = [f"{metric.capitalize()} ({name})" for name in names for metric in METRICS]
    lines = [markdown_table(["dataset", "split", "pairs", *header], rows)]
    notes = list(dict.fromkeys(f"{row['dataset']}/{row['split']}: {note}" for row in results for note in row["notes"]))
    return "\n".join(lines + ([""] + [f"- {note}" for note in notes] if notes else []))


def _cells(scores: dict[str, dict[str, float | None]]) -> list[str]:
    values = [values[metric] for values in scores.values() for metric in METRICS]
    return ["undefined" if value is None else f"{100 * value:.2f}" for value in values]


@dataclass
class STSArguments:
    """Which similarity data to score on, and how.

    Raises:
        ValueError: for a wrong value or combination; it names the field and what is allowed.
    """

    tasks: list[str] | None = field(
        default=None,
        metadata={
            "help": "sts12 sts13 sts14 sts15 sts16 stsb sick, with a split if you like (stsb:validation); by default "
            "all, of a folder all that are there."
        },
    )
    dataset_dir: str | None = field(
        default=None, metadata={"help": "Folder that holds the tasks' folders; without it, the Hub is asked."}
    )
    dataset_revision: str | None = field(default=None, metadata={"help": "Commit or branch of the data on the Hub."})
    files: list[str] | None = field(
        default=None, metadata={"help": "Your own pairs: .csv, .tsv, .json, .jsonl (each also .gz) or .parquet."}
    )
    text_column: str | None = field(default=None, metadata={"help": "Column of your files with the first sentence."})
    text_pair_column: str | None = field(default=None, metadata={"help": "Column with the second sentence."})
    label_column: str | None = field(default=None, metadata={"help": "Column with the gold score."})
    subset_column: str | None = field(default=None, metadata={"help": "Column with the name of a pair's subset."})
    score_range: list[float] | None = field(
        default=None, metadata={"help": "Lowest and highest gold score allowed in your files: --score_range 0 5."}
    )
    aggregations: list[str] = field(
        default_factory=lambda: ["all"], metadata={"help": "How subsets are put together: all, mean, wmean."}
    )

    def __post_init__(self) -> None:
        own = ("text_column", "text_pair_column", "label_column", "subset_column", "score_range")
        for name in own if self.files is None else ("dataset_dir", "dataset_revision", "tasks"):
            if getattr(self, name) is not None:
                other = "with files only" if self.files is None else f"without files={self.files!r} only"
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed {other}.")
        if self.dataset_dir is not None and self.dataset_revision is not None:
            raise ValueError(f"dataset_revision={self.dataset_revision!r}: allowed for data on the Hub only.")
        if self.score_range is not None and len(self.score_range) != 2:
            raise ValueError(f"score_range={self.score_range!r}: allowed are two numbers, lowest and highest.")
        self.aggregations = list(dict.fromkeys(self.aggregations))

    def load(self) -> list[STSDataset]:
        """Read the data."""
        if self.files is None:
            return load_sts_tasks(self.tasks, self.dataset_dir, self.dataset_revision)
        columns = (self.text_column, self.text_pair_column, self.label_column, self.subset_column)
        allowed = None if self.score_range is None else (self.score_range[0], self.score_range[1])
        return [load_sts_file(path, *columns, score_range=allowed) for path in self.files]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Parse the command line, score, print the table and write the JSON."""
    try:
        model, arguments = parse_command_line(
            [EmbedderArguments, STSArguments], sys.argv[1:] if argv is None else argv, __doc__
        )
        datasets = arguments.load()
        _check(datasets, arguments.aggregations)
        embedder = model.load()
        results = evaluate_sts(embedder, datasets, arguments.aggregations, model.batch_size)
    except (ValueError, ImportError) as error:
        # What is wrong and what is allowed is in the message; where we noticed is not the user's concern.
        sys.exit(f"modeling_hire.evaluation.sts: {error}")
    report = {
        "model": model.public_name,
        "revision": model.revision,
        "embedder": describe_embedder(embedder),
        "measure": "cosine similarity, no regressor",
        "aggregations": arguments.aggregations,
        "results": results,
        "mean_of_rows": mean_of_rows(results),
    }
    print(f"{report['model']}, {report['embedder']}: correlations x 100\n\n{sts_table(results)}")
    model.write(report)
    return report


if __name__ == "__main__":
    main()
