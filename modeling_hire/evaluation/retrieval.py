"""Retrieval: finding the duplicates of a question among all questions.

    python -m modeling_hire.evaluation.retrieval MODEL --dataset_dir data
    python -m modeling_hire.evaluation.retrieval CHECKPOINT --poolers layer_attn cls_before_pooler --dataset_dir data
    python -m modeling_hire.evaluation.retrieval MODEL --index faiss --faiss_factory HNSW32 --output retrieval.json

A question is never its own result. The second line puts a trained pooler beside the encoder without it ("detached").
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..configuration_layer_plans import is_integer
from ..configuration_layerwise import check_choice
from ..hub import markdown_table
from .command_line import EmbedderArguments, parse_command_line
from .embedders import Embedder, describe_embedder, embed, short_name
from .extras import import_extra
from .retrieval_data import RetrievalData, load_retrieval
from .retrieval_metrics import retrieval_metrics
from .retrieval_search import ExactIndex, FaissIndex, SearchIndex, make_faiss_index
from .retrieval_timing import query_times


INDEXES = ("exact", "faiss")


def evaluate_retrieval(
    embedder: Embedder, data: RetrievalData, batch_size: int = 32, **options: Any
) -> dict[str, Any]:
    """Search with an embedder and score what it finds.

    Args:
        embedder: what turns texts into vectors, see `load_embedder`.
        data: see `load_retrieval`.
        batch_size: texts that go through the encoder at a time.
        options: those of [`compare_retrieval`].

    Returns:
        `metrics` (see `retrieval_metrics`), `queries`, `documents`, `dimensions`, `index_bytes`, and the milliseconds
        of `query_times`.

    Raises:
        ValueError: for a wrong argument, before the corpus is encoded.
        ImportError: if `index="faiss"` and FAISS is not installed.

    Example:
        >>> import numpy as np
        >>> class Lengths:
        ...     def encode(self, sentences, **options):
        ...         return np.array([[len(s), 1.0] for s in sentences], dtype=np.float32)
        >>> data = RetrievalData("mine", ["a", "b", "ccc"], ["a"], [np.array([1])], np.array([0]))
        >>> evaluate_retrieval(Lengths(), data)["metrics"]["mrr@10"]
        1.0
    """
    return compare_retrieval([embedder], data, batch_size, **options)[0]


def compare_retrieval(
    embedders: Sequence[Embedder],
    data: RetrievalData,
    batch_size: int = 32,
    *,
    recall_at: Sequence[int] = (1, 10, 100),
    index: str = "exact",
    faiss_factory: str = "Flat",
    query_chunk: int = 256,
    document_chunk: int = 8192,
) -> list[dict[str, Any]]:
    """Search with several embedders; they are timed in turns, so that their times can be compared.

    Args:
        embedders, data, batch_size: as in [`evaluate_retrieval`]; the indexes of all are held at once.
        recall_at: the k of recall.
        index: `"exact"`, or `"faiss"` for large corpora.
        faiss_factory: FAISS's description of its index.
        query_chunk, document_chunk: how many are compared at a time in exact search; no result depends on it.

    Returns:
        What [`evaluate_retrieval`] returns, for each.

    Raises:
        ValueError, ImportError: as there.
    """
    recall_at = check_search(index, recall_at)
    for name, value in (("query_chunk", query_chunk), ("document_chunk", document_chunk)):
        if not is_integer(value, 1):
            raise ValueError(f"{name}={value!r}: allowed is a whole number from 1 on.")
    if index == "faiss":
        for embedder in embedders:
            make_faiss_index(embed(embedder, data.queries[:1], 1).shape[1], faiss_factory)
    k = max(10, *recall_at)
    results: list[dict[str, Any]] = []
    searchers: list[tuple[Embedder, SearchIndex]] = []
    for embedder in embedders:
        vectors = embed(embedder, [*data.corpus, *data.queries], batch_size)
        documents, queries = vectors[: len(data.corpus)], vectors[len(data.corpus) :]
        searched: SearchIndex = (
            ExactIndex(documents, getattr(embedder, "device", "cpu"), query_chunk, document_chunk)
            if index == "exact"
            else FaissIndex(documents, faiss_factory)
        )
        ranked, _ = searched.search(queries, k, data.own)
        searchers.append((embedder, searched))
        results.append(
            {
                "metrics": retrieval_metrics(ranked, data.relevant, recall_at),
                "queries": len(data.queries),
                "documents": len(data.corpus),
                "dimensions": documents.shape[1],
                "index_bytes": int(searched.nbytes),
            }
        )
    times = query_times(searchers, data.queries, batch_size, k)
    return [result | own for result, own in zip(results, times, strict=True)]


def check_search(index: str, recall_at: Sequence[int]) -> list[int]:
    """The k of recall, each once and in order.

    Raises:
        ValueError: for an unknown index or a k that is no positive whole number.
        ImportError: if the index needs a package that is not installed.
    """
    check_choice("index", index, INDEXES)
    if index == "faiss":
        import_extra("faiss", "faiss", "index='faiss'")
    for k in recall_at:
        if not is_integer(k, 1):
            raise ValueError(f"recall_at={k!r}: allowed are whole numbers from 1 on.")
    if not recall_at:
        raise ValueError("recall_at: there are none; allowed is at least one whole number.")
    return sorted(set(recall_at))


def retrieval_table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of what [`evaluate_retrieval`] returned (with a `name`), metrics x 100."""
    names = list(rows[0]["metrics"])
    labels = {"mrr@10": "MRR@10", "ndcg@10": "nDCG@10"}
    header = ["embedder", *(labels.get(name, name.capitalize()) for name in names)]
    header += ["index (MB)", "encode (ms a query)", "search (ms a query)", "one query alone (ms)"]
    cells = [
        [
            row["name"],
            *(f"{100 * row['metrics'][name]:.2f}" for name in names),
            f"{row['index_bytes'] / 1e6:.1f}",
            *(f"{row[time_]:.2f}" for time_ in ("encode_ms_per_query", "search_ms_per_query", "single_query_ms")),
        ]
        for row in rows
    ]
    return markdown_table(header, cells)


@dataclass
class RetrievalArguments:
    """What to search in, and how.

    Raises:
        ValueError: for a wrong value or combination; it names the field and what is allowed.
    """

    dataset_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder with pairs.jsonl (question1, question2, is_duplicate), or with corpus.jsonl, "
            "queries.jsonl and qrels/; without it, BEIR's Quora collection is read from the Hub."
        },
    )
    pairs: str | None = field(default=None, metadata={"help": "A file of pairs, in any format that tables come in."})
    split: str = field(default="test", metadata={"help": "Split of a collection."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Commit or branch of the data on the Hub."})
    recall_at: list[int] = field(default_factory=lambda: [1, 10, 100], metadata={"help": "The k of recall."})
    poolers: list[str] | None = field(
        default=None, metadata={"help": "Several poolers of the same checkpoint, a row for each."}
    )
    index: str = field(default="exact", metadata={"help": "exact, or faiss (modeling_hire[faiss])."})
    faiss_factory: str = field(
        default="Flat", metadata={"help": "FAISS's description of its index: Flat, HNSW32, IVF1024,Flat, ..."}
    )
    query_chunk: int = field(default=256, metadata={"help": "Queries compared at a time in exact search."})
    document_chunk: int = field(default=8192, metadata={"help": "Documents compared at a time in exact search."})

    def __post_init__(self) -> None:
        if self.pairs is not None and self.dataset_dir is not None:
            raise ValueError(f"pairs={self.pairs!r} and dataset_dir={self.dataset_dir!r}: give one of the two.")
        if self.dataset_revision is not None and (self.pairs or self.dataset_dir) is not None:
            raise ValueError(f"dataset_revision={self.dataset_revision!r}: allowed for data on the Hub only.")
        for name in ("query_chunk", "document_chunk"):
            if not is_integer(getattr(self, name), 1):
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed is a whole number from 1 on.")
        if self.index == "exact" and self.faiss_factory != "Flat":
            raise ValueError(f"faiss_factory={self.faiss_factory!r}: allowed with index='faiss' only.")
        self.recall_at = check_search(self.index, self.recall_at)
        self.poolers = None if self.poolers is None else list(dict.fromkeys(self.poolers))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Parse the command line, search, print the table and write the JSON."""
    try:
        model, arguments = parse_command_line(
            [EmbedderArguments, RetrievalArguments], sys.argv[1:] if argv is None else argv, __doc__
        )
        if arguments.poolers is not None and model.pooler is not None:
            raise ValueError(f"poolers={arguments.poolers!r} and pooler={model.pooler!r}: give one of the two.")
        data = load_retrieval(arguments.dataset_dir, arguments.pairs, arguments.split, arguments.dataset_revision)
        embedders = [model.load(pooler) for pooler in arguments.poolers or [None]]
        results = compare_retrieval(
            embedders,
            data,
            model.batch_size,
            recall_at=arguments.recall_at,
            index=arguments.index,
            faiss_factory=arguments.faiss_factory,
            query_chunk=arguments.query_chunk,
            document_chunk=arguments.document_chunk,
        )
    except (ValueError, ImportError) as error:
        sys.exit(f"modeling_hire.evaluation.retrieval: {error}")
    rows = [_row(model, embedder, result) for embedder, result in zip(embedders, results, strict=True)]
    report = {
        "model": model.public_name,
        "revision": model.revision,
        "data": data.name,
        "notes": list(data.notes),
        "index": arguments.index if arguments.index == "exact" else f"faiss {arguments.faiss_factory}",
        "results": rows,
    }
    print(f"{data.name}: {len(data.queries)} queries, {len(data.corpus)} documents, {report['index']} search")
    print("\n".join(["", retrieval_table(rows), *(f"\n- {data.name}: {note}" for note in data.notes)]))
    model.write(report)
    return report


def _row(model: EmbedderArguments, embedder: Embedder, result: dict[str, Any]) -> dict[str, Any]:
    description = describe_embedder(embedder)
    return {"name": f"{model.public_name}, {short_name(description)}", "embedder": description, **result}


if __name__ == "__main__":
    main()
