"""Retrieval: metrics against loops and scikit-learn, exact search, the data, and the program."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import datasets as hub_datasets
import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score
from tiny_embedders import DATA, FakeEmbedder, TableEmbedder, needs_data
from tiny_runs import save_encoder, write_rows

from modeling_hire.data.readers import Table
from modeling_hire.evaluation import retrieval
from modeling_hire.evaluation.retrieval import evaluate_retrieval
from modeling_hire.evaluation.retrieval_data import RetrievalData, duplicate_questions, load_collection, load_retrieval
from modeling_hire.evaluation.retrieval_metrics import retrieval_metrics
from modeling_hire.evaluation.retrieval_search import ExactIndex, FaissIndex


# ---- metrics --------------------------------------------------------------------------------------------------------


def metrics_by_a_loop(ranked: list[list[int]], relevant: list[list[int]], recall_at: list[int]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for documents, right in zip(ranked, relevant, strict=True):
        reciprocal, gain = 0.0, 0.0
        for rank, document in enumerate(documents[:10], start=1):
            if document in right:
                reciprocal = max(reciprocal, 1 / rank)
                gain += 1 / math.log2(rank + 1)
        best = sum(1 / math.log2(rank + 1) for rank in range(1, min(10, len(right)) + 1))
        values = {"mrr@10": reciprocal, "ndcg@10": gain / best}
        for k in recall_at:
            values[f"recall@{k}"] = len(set(documents[:k]) & set(right)) / len(right)
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + value / len(ranked)
    return totals


@pytest.mark.parametrize("length", [4, 10, 25])
def test_metrics_by_a_loop(length: int) -> None:
    draw = np.random.default_rng(length)
    ranked = np.stack([draw.permutation(40)[:length] for _ in range(30)])
    relevant = [draw.permutation(40)[: draw.integers(1, 15)] for _ in range(30)]
    recall_at = [1, 3, length]
    expected = metrics_by_a_loop(ranked.tolist(), [row.tolist() for row in relevant], recall_at)
    assert retrieval_metrics(ranked, relevant, recall_at) == pytest.approx(expected, abs=1e-12)


def test_ndcg_is_scikit_learns() -> None:
    draw = np.random.default_rng(3)
    scores, gold = draw.standard_normal((20, 50)), draw.random((20, 50)) < 0.1
    gold[:, 7] = True  # each has one
    ranked = np.argsort(-scores, axis=1)
    found = retrieval_metrics(ranked, [np.flatnonzero(row) for row in gold])["ndcg@10"]
    assert found == pytest.approx(ndcg_score(gold.astype(float), scores, k=10), abs=1e-12)


def test_metrics_by_hand() -> None:
    # Right at rank 2 of 3; at rank 11, too late for the first two; not at all.
    ranked = np.full((3, 12), -1)
    ranked[0, :3], ranked[1, :12], ranked[2, :2] = [5, 1, 2], list(range(20, 32)), [8, 9]
    found = retrieval_metrics(ranked, [[1, 2], [30], [3]], [1, 12])
    gain = (1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    assert found == pytest.approx({"mrr@10": 0.5 / 3, "ndcg@10": gain / 3, "recall@1": 0.0, "recall@12": 2 / 3})
    with pytest.raises(ValueError, match="query 2 has none"):
        retrieval_metrics(ranked, [[1], [], [3]])
    with pytest.raises(ValueError, match="for 2 queries"):
        retrieval_metrics(ranked, [[1], [2]])


# ---- search ---------------------------------------------------------------------------------------------------------


def sorted_by_a_loop(queries: np.ndarray, documents: np.ndarray, k: int, own: list[int]) -> list[list[int]]:
    unit = [row / np.linalg.norm(row) for row in documents]
    result = []
    for query, itself in zip(queries, own, strict=True):
        cosines = [float(np.dot(query / np.linalg.norm(query), row)) for row in unit]
        order = sorted(range(len(cosines)), key=lambda i: (-round(cosines[i], 6), i))
        result.append([document for document in order if document != itself][:k])
    return result


@pytest.mark.parametrize(("query_chunk", "document_chunk"), [(1, 1), (3, 7), (64, 10), (100, 500)])
def test_exact_search_by_a_loop(query_chunk: int, document_chunk: int) -> None:
    draw = np.random.default_rng(0)
    documents, queries = draw.standard_normal((53, 6)), draw.standard_normal((11, 6))
    own = [*range(10), -1]
    index = ExactIndex(documents, query_chunk=query_chunk, document_chunk=document_chunk)
    numbers, cosines = index.search(queries, 8, np.array(own))
    assert numbers.tolist() == sorted_by_a_loop(queries, documents, 8, own)
    for row, (found, query) in enumerate(zip(numbers, queries, strict=True)):
        expected = documents[found] @ query / np.linalg.norm(documents[found], axis=1) / np.linalg.norm(query)
        np.testing.assert_allclose(cosines[row], expected, atol=1e-6)
    assert index.nbytes == 53 * 6 * 4


@pytest.mark.parametrize("document_chunk", [1, 4, 6, 100])
def test_equals_come_in_the_order_of_their_numbers(document_chunk: int) -> None:
    # Signs and zeros alone, so that many cosines are equal to the bit, 0, 1 and negative ones among them.
    documents = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]] * 5, dtype=np.float32)
    index = ExactIndex(documents, document_chunk=document_chunk)
    numbers, cosines = index.search(np.array([[1.0, 0.0], [0.0, -2.0]]), 12, np.array([4, -1]))
    assert numbers[0].tolist() == [0, 8, 12, 16, 1, 3, 5, 7, 9, 11, 13, 15]
    assert numbers[1].tolist() == [3, 7, 11, 15, 19, 0, 2, 4, 6, 8, 10, 12]
    assert cosines[0].tolist() == [1.0] * 4 + [0.0] * 8


@pytest.mark.parametrize("document_chunk", [7, 13, 45, 8192])
def test_equal_documents_tie_whatever_the_blocks(document_chunk: int) -> None:
    # Of real width, where the last bits of a product depend on the shape of the block.
    draw = np.random.default_rng(0)
    documents = draw.standard_normal((50, 384)).astype(np.float32)
    documents[30:] = documents[:20]
    queries = documents[:20] + draw.standard_normal((20, 384)).astype(np.float32)
    found = ExactIndex(documents, document_chunk=document_chunk).search(queries, 2)[0]
    assert found.tolist() == [[number, number + 30] for number in range(20)]


def test_half_precision_around_it_changes_nothing() -> None:
    generator = np.random.default_rng(0)
    queries, documents = generator.normal(size=(5, 16)), generator.normal(size=(40, 16))
    index = ExactIndex(documents)
    expected = index.search(queries, 7)
    with torch.autocast("cpu", torch.bfloat16):
        found = index.search(queries, 7)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fewer_documents_than_asked_for_and_zero_vectors() -> None:
    index = ExactIndex(np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]))
    numbers, cosines = index.search(np.array([[2.0, 0.0]]), 100, np.array([0]))
    assert numbers.tolist() == [[1, 2, -1]] and cosines[0].tolist() == [0.0, -1.0, -math.inf]


@pytest.mark.parametrize(
    ("queries", "k", "own", "message"),
    [
        (np.ones((2, 3)), 5, None, "3 dimensions; allowed are the documents', 2"),
        (np.ones((2, 2)), 0, None, "k=0"),
        (np.ones((2, 2)), 5, np.array([0]), r"own: shape \(1,\)"),
        (np.full((2, 2), np.nan), 5, None, "not finite"),
    ],
)
def test_searches_that_cannot_be(queries: np.ndarray, k: int, own: np.ndarray | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExactIndex(np.ones((4, 2))).search(queries, k, own)


def test_faiss_finds_the_same() -> None:
    pytest.importorskip("faiss")
    draw = np.random.default_rng(0)
    documents, queries = draw.standard_normal((200, 8)), draw.standard_normal((20, 8))
    own = np.arange(20)
    own[5] = -1
    exact, flat = ExactIndex(documents), FaissIndex(documents)
    for k in (7, 199, 1000):
        for one, other in zip(exact.search(queries, k, own), flat.search(queries, k, own), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    assert flat.search(queries, 7)[0].tolist() == exact.search(queries, 7)[0].tolist()
    # The vectors and a short head.
    assert 0 <= flat.nbytes - exact.nbytes < 200

    near = FaissIndex(documents, "HNSW16")
    assert near.nbytes > flat.nbytes
    found = near.search(queries, 7, own)[0]
    assert not (found == own[:, None]).any(where=(own >= 0)[:, None])
    assert (
        np.mean([len(set(a) & set(b)) / 7 for a, b in zip(found, exact.search(queries, 7, own)[0], strict=True)]) > 0.9
    )
    with pytest.raises(ValueError, match="faiss_factory='Nonsense': FAISS cannot make this index"):
        FaissIndex(documents, "Nonsense")
    with pytest.raises(ValueError, match="faiss_factory='IVF500,Flat': FAISS cannot make this index"):
        FaissIndex(documents, "IVF500,Flat")
    embedder = FakeEmbedder()
    data = RetrievalData("mine", ["a", "b"], ["a"], [np.array([1])], np.array([0]))
    with pytest.raises(ValueError, match="faiss_factory='Nonsense'"):
        evaluate_retrieval(embedder, data, index="faiss", faiss_factory="Nonsense")
    assert embedder.calls == [["a"]]
    assert evaluate_retrieval(embedder, data, index="faiss")["metrics"]["mrr@10"] == 1.0


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    embedder = FakeEmbedder()
    data = RetrievalData("mine", ["a", "b"], ["a"], [np.array([1])], np.array([0]))
    with pytest.raises(ImportError, match=r"pip install modeling_hire\[faiss\]"):
        evaluate_retrieval(embedder, data, index="faiss")
    assert not embedder.calls


# ---- data -----------------------------------------------------------------------------------------------------------


def table(*rows: tuple[Any, Any, Any]) -> Table:
    left, right, flags = (list(column) for column in zip(*rows, strict=True))
    return Table({"question1": left, "question2": right, "is_duplicate": flags}, "mine")


def test_duplicates_of_duplicates_are_duplicates() -> None:
    rows = [
        ("a", "b", 1),
        ("c", "d", 1),
        ("e", "f", 0),
        ("d", "b", 1),
        ("g", "g", 1),
        ("h", "i", True),
        ("f", "h", "0"),
    ]
    data = duplicate_questions(table(*rows), "mine")
    assert sorted(data.corpus) == list("abcdefghi")
    groups = {query: {data.corpus[i] for i in right} for query, right in zip(data.queries, data.relevant, strict=True)}
    four = set("abcd")
    # A question that is its own duplicate alone is no query.
    assert groups == {**{query: four - {query} for query in four}, "h": {"i"}, "i": {"h"}}
    assert [data.corpus[own] for own in data.own] == data.queries


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", None, 1), r"row 2: column 'question2' holds None"),
        (("a", "b", 2), "row 2: column 'is_duplicate' holds 2; allowed is 0 or 1"),
        (("a", "b", None), "row 2: column 'is_duplicate' holds None"),
        (("a", "b", "yes"), "row 2: column 'is_duplicate' holds 'yes'"),
    ],
)
def test_wrong_pairs(row: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        duplicate_questions(table(("x", "y", 1), row), "mine")


def test_no_duplicates_at_all() -> None:
    with pytest.raises(ValueError, match="no query has a relevant document"):
        duplicate_questions(table(("x", "y", 0)), "mine")
    with pytest.raises(ValueError, match="has no column 'is_duplicate'"):
        duplicate_questions(Table({"question1": ["a"], "question2": ["b"]}, "mine"), "mine")


COLLECTION = {
    "corpus": [
        {"_id": "1", "title": "", "text": "a"},
        {"_id": "2", "title": "T", "text": "b"},
        {"_id": "3", "text": "c"},
    ],
    "queries": [{"_id": "1", "text": "a"}, {"_id": "3", "text": "other"}, {"_id": "q", "text": "unjudged"}],
    "test": [
        {"query-id": "1", "corpus-id": "2", "score": 1},
        {"query-id": "3", "corpus-id": "1", "score": 2},
        {"query-id": "3", "corpus-id": "2", "score": 0},
    ],
}


def write_collection(folder: Path) -> Path:
    write_rows(folder / "corpus.jsonl", COLLECTION["corpus"])
    write_rows(folder / "queries.jsonl", COLLECTION["queries"])
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row.values())) for row in COLLECTION["test"])]
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_collection(tmp_path: Path) -> None:
    data = load_retrieval(write_collection(tmp_path))
    assert data.corpus == ["a", "T b", "c"] and data.queries == ["a", "other"]
    assert [right.tolist() for right in data.relevant] == [[1], [0]]
    # The same id alone does not make a document the query: number 3 is another text.
    assert data.own.tolist() == [0, -1]
    with pytest.raises(ValueError, match="qrels: no file dev.jsonl"):
        load_collection(tmp_path, "dev")
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t9\t1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 1: no document has the id '9'"):
        load_collection(tmp_path)
    write_rows(tmp_path / "queries.jsonl", [*COLLECTION["queries"], {"_id": "1", "text": "again"}])
    with pytest.raises(ValueError, match="row 4: column '_id' holds '1', which is there twice"):
        load_collection(tmp_path)


def test_the_collection_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, config: str, revision: str | None) -> Any:
        assert path == "mteb/quora" and revision is None
        name = "test" if config == "default" else config
        return hub_datasets.DatasetDict({name: hub_datasets.Dataset.from_list(COLLECTION[name])})

    with pytest.raises(ConnectionError, match="mteb/quora is not in the local cache. Give --dataset_dir"):
        load_retrieval()
    monkeypatch.setattr(hub_datasets, "load_dataset", load_dataset)
    assert load_retrieval().relevant[0].tolist() == [1]
    with pytest.raises(ValueError, match="has no split 'dev'"):
        load_retrieval(split="dev")


def test_folders_without_data(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        load_retrieval(tmp_path / "missing")
    with pytest.raises(ValueError, match="holds no 'pairs.jsonl' and no 'corpus.jsonl'"):
        load_retrieval(tmp_path)


@needs_data
def test_the_local_data_as_it_is() -> None:
    data = load_retrieval(DATA)
    assert (data.name, len(data.corpus), len(data.queries)) == ("quora_duplicates", 9819, 3550)
    assert max(map(len, data.relevant)) == 8


# ---- the whole ------------------------------------------------------------------------------------------------------


def questions(count: int = 30) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in draw.integers(10, 90, 4)) for _ in range(2 * count)]
    return [
        {"question1": texts[i], "question2": texts[i + count], "is_duplicate": int(i % 3 == 0)} for i in range(count)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "quora_duplicates" / "pairs.jsonl", questions())
    return tmp_path


def test_the_whole_by_a_loop(folder: Path) -> None:
    data, embedder = load_retrieval(folder), FakeEmbedder()
    found = evaluate_retrieval(embedder, data, recall_at=[1, 5], query_chunk=7, document_chunk=9)
    documents = np.stack([embedder.vector(text) for text in data.corpus])
    ranked = sorted_by_a_loop(documents[data.own], documents, 10, data.own.tolist())
    expected = metrics_by_a_loop(ranked, [right.tolist() for right in data.relevant], [1, 5])
    assert found["metrics"] == pytest.approx(expected, abs=1e-9)
    assert found["index_bytes"] == 60 * 8 * 4 and found["queries"] == 20 and found["documents"] == 60
    times = [found[name] for name in ("encode_ms_per_query", "search_ms_per_query", "single_query_ms")]
    assert all(value > 0 for value in times)
    # Each text of corpus and queries was encoded once for the figures.
    assert sorted(embedder.calls[0]) == sorted(data.corpus)


def test_a_query_does_not_find_itself() -> None:
    embedder = TableEmbedder({"q": [1, 0], "right": [1, 0.5], "wrong": [0, 1]})
    data = RetrievalData("mine", ["q", "wrong", "right"], ["q"], [np.array([2])], np.array([0]))
    assert evaluate_retrieval(embedder, data)["metrics"]["mrr@10"] == 1.0
    asked = RetrievalData("mine", ["q", "wrong", "right"], ["q"], [np.array([2])], np.array([-1]))
    assert evaluate_retrieval(embedder, asked)["metrics"]["mrr@10"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": "fais"}, "index='fais'.*Did you mean 'faiss'"),
        ({"recall_at": [0]}, "recall_at=0"),
        ({"recall_at": []}, "recall_at: there are none"),
        ({"query_chunk": 0}, "query_chunk=0"),
        ({"document_chunk": 1.5}, "document_chunk=1.5"),
    ],
)
def test_wrong_arguments_are_refused_before_encoding(arguments: dict[str, Any], message: str) -> None:
    embedder = FakeEmbedder()
    data = RetrievalData("mine", ["a", "b"], ["a"], [np.array([1])], np.array([0]))
    with pytest.raises(ValueError, match=message):
        evaluate_retrieval(embedder, data, **arguments)
    assert not embedder.calls


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("checkpoint") / "tiny-encoder")


def refused(*flags: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        retrieval.main([str(flag) for flag in flags])
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


def test_table_and_json(checkpoint: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "retrieval.json"
    flags = [checkpoint, "--dataset_dir", folder, "--use_cpu", "--poolers", "mean", "cls_before_pooler"]
    flags = [str(flag) for flag in (*flags, "--recall_at", 10, 1, 20)]
    report = retrieval.main([*flags, "--output", str(output)])
    assert json.loads(output.read_text(encoding="utf-8")) == report and str(tmp_path) not in json.dumps(report)
    shown = capsys.readouterr().out
    assert "MRR@10 | nDCG@10 | Recall@1 | Recall@10 | Recall@20 | index (MB)" in shown
    assert "quora_duplicates: 20 queries, 60 documents, exact search" in shown
    assert [row["name"] for row in report["results"]] == ["tiny-encoder, mean", "tiny-encoder, cls_before_pooler"]
    again = retrieval.main([*flags, "--batch_size", "7", "--document_chunk", "13"])
    for one, other in zip(report["results"], again["results"], strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], abs=1e-5)


def test_pairs_of_your_own_and_what_is_refused(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("sentence1,sentence2,label\nw1 w2,w3,1\nw4,w5,0\n", encoding="utf-8")
    report = retrieval.main([str(checkpoint), "--pooler", "mean", "--pairs", str(path), "--use_cpu"])
    assert report["data"] == "mine.csv" and report["results"][0]["queries"] == 2
    flags = [checkpoint, "--pooler", "mean", "--dataset_dir", folder]
    assert "give one of the two" in refused(*flags, "--pairs", path)
    assert "Did you mean 'recall_at'?" in refused(*flags, "--recal_at", 1)
    assert "faiss_factory='HNSW32': allowed with index='faiss' only" in refused(*flags, "--faiss_factory", "HNSW32")
    assert "recall_at=0" in refused(*flags, "--recall_at", 0)
    assert "give one of the two" in refused(*flags, "--poolers", "mean")
    assert "for data on the Hub only" in refused(*flags, "--dataset_revision", "abc")
