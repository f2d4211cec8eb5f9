"""Retrieval: finding the duplicates of a question among all questions.

    python -m modeling_hire.evaluation.retrieval MODEL --dataset_dir data
    python -m modeling_hire.evaluation.retrieval CHECKPOINT --poolers layer_attn cls_before_pooler --dataset_dir data
    python -m modeling_hire.evaluation.retrieval MODEL --index faiss --faiss_factory HNSW32 --output retrieval.json

A question is never its own result. The second line puts a trained pooler beside the encoder without it ("detached").
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..configuration_layer_plans import is_integer
from ..configuration_layerwise import check_choice
from ..hub import markdown_table
from .command_line import EmbedderArguments, parse_command_line
from .embedders import Embedder, describe_embedder, embed
from .extras import import_extra
from .retrieval_data import RetrievalData, load_retrieval
from .retrieval_metrics import retrieval_metrics
from .retrieval_search import ExactIndex, FaissIndex, SearchIndex, make_faiss_index


INDEXES = ("exact", "faiss")
# So many queries are timed: enough for a steady figure, and few beside the corpus.
_TIMED, _TIMED_ALONE = 256, 32


def evaluate_retrieval(
    embedder: Embedder,
    data: RetrievalData,
    batch_size: int = 32,
    recall_at: Sequence[int] = (1, 10, 100),
    index: str = "exact",
    faiss_factory: str = "Flat",
    query_chunk: int = 256,
    document_chunk: int = 8192,
) -> dict[str, Any]:
    """Search with an embedder and score what it finds.

    Args:
        embedder: what turns texts into vectors, see `load_embedder`.
        data: see `load_retrieval`.
        batch_size: texts that go through the encoder at a time.
        recall_at: the k of recall.
        index: `"exact"`, or `"faiss"` for large corpora.
        faiss_factory: FAISS's description of its index.
        query_chunk, document_chunk: how many are compared at a time in exact search; no result depends on it.

    Returns:
        `metrics` (see `retrieval_metrics`), `queries`, `documents`, `dimensions`, `index_bytes`, and milliseconds:
        `search_ms_per_query` and `encode_ms_per_query` of many queries at a time, and `single_query_ms`, the median of
        encoding and finding one alone.

    Raises:
        ValueError: for a wrong argument, before the corpus is encoded.
        ImportError: if `index="faiss"` and FAISS is not installed.

    Example:
        >>> class Lengths:
        ...     def encode(self, sentences, **options):
        ...         return np.array([[len(s), 1.0] for s in sentences], dtype=np.float32)
        >>> data = RetrievalData("mine", ["a", "b", "ccc"], ["a"], [np.array([1])], np.array([0]))
        >>> evaluate_retrieval(Lengths(), data)["metrics"]["mrr@10"]
        1.0
    """
    recall_at = check_search(index, recall_at)
    for name, value in (("query_chunk", query_chunk), ("document_chunk", document_chunk)):
        if not is_integer(value, 1):
            raise ValueError(f"{name}={value!r}: allowed is a whole number from 1 on.")
    if index == "faiss":
        make_faiss_index(embed(embedder, data.queries[:1], 1).shape[1], faiss_factory)
    vectors = embed(embedder, [*data.corpus, *data.queries], batch_size)
    documents, queries = vectors[: len(data.corpus)], vectors[len(data.corpus) :]
    device = getattr(embedder, "device", "cpu")
    searched: SearchIndex
    if index == "exact":
        searched = ExactIndex(documents, device, query_chunk, document_chunk)
    else:
        searched = FaissIndex(documents, faiss_factory)
    start = time.perf_counter()
    ranked, _ = searched.search(queries, max(10, *recall_at), data.own)
    searching = time.perf_counter() - start
    return {
        "metrics": retrieval_metrics(ranked, data.relevant, recall_at),
        "queries": len(data.queries),
        "documents": len(data.corpus),
        "dimensions": documents.shape[1],
        "index_bytes": int(searched.nbytes),
        "search_ms_per_query": 1000 * searching / len(data.queries),
        **_query_times(embedder, data, searched, batch_size),
    }


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


def _query_times(
    embedder: Embedder, data: RetrievalData, index: SearchIndex, batch_size: int
) -> dict[str, float | None]:
    """Milliseconds to encode a query among others, and to encode and search one alone."""
    # Evenly from all, since neighbours may be alike in length.
    rows = np.unique(np.linspace(0, len(data.queries) - 1, min(_TIMED, len(data.queries))).astype(int))
    texts = list(dict.fromkeys(data.queries[row] for row in rows))
    embed(embedder, texts[:1], 1)  # what is only done once
    start = time.perf_counter()
    embed(embedder, texts, batch_size)
    encoding = 1000 * (time.perf_counter() - start) / len(texts)
    alone = []
    for text in texts[:_TIMED_ALONE]:
        start = time.perf_counter()
        index.search(embed(embedder, [text], 1), 10)
        alone.append(1000 * (time.perf_counter() - start))
    return {"encode_ms_per_query": encoding, "single_query_ms": statistics.median(alone)}


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
        rows = []
        for embedder in [model.load(pooler) for pooler in arguments.poolers or [None]]:
            description = describe_embedder(embedder)
            result = evaluate_retrieval(
                embedder,
                data,
                model.batch_size,
                arguments.recall_at,
                arguments.index,
                arguments.faiss_factory,
                arguments.query_chunk,
                arguments.document_chunk,
            )
            name = f"{model.public_name}, {description.get('pooler', description['class'])}"
            name += f" detached ({description['detached']})" if "detached" in description else ""
            rows.append({"name": name, "embedder": description, **result})
    except (ValueError, ImportError) as error:
        sys.exit(f"modeling_hire.evaluation.retrieval: {error}")
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


if __name__ == "__main__":
    main()
