"""The adapter for mteb, on tasks of its own kinds made of local data."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from tiny_embedders import DATA, FakeEmbedder

from modeling_hire.evaluation.mteb_adapter import MtebEncoder
from modeling_hire.evaluation.retrieval import evaluate_retrieval
from modeling_hire.evaluation.retrieval_data import RetrievalData, load_retrieval
from modeling_hire.evaluation.sts import evaluate_sts
from modeling_hire.evaluation.sts_data import STSDataset, load_sts_tasks


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(f"w{n}" for n in draw.integers(10, 40, 5)) for _ in range(count)]


def similarity_data() -> STSDataset:
    """The beginning of SICK's trial split, or made-up pairs where it is not there."""
    if DATA.is_dir():
        data = load_sts_tasks(["sick:validation"], DATA)[0]
        return STSDataset("sick", "validation", data.sentences1[:80], data.sentences2[:80], data.scores[:80])
    scores = np.random.default_rng(2).uniform(0, 5, 80)
    return STSDataset("mine", "validation", sentences(80, 0), sentences(80, 1), scores)


def retrieval_data() -> RetrievalData:
    """The questions of the duplicates, and of as many others."""
    if DATA.is_dir():
        data = load_retrieval(DATA)
        queries = list(range(0, 200, 2))
        kept = sorted({*range(0, 9000, 30), *(int(d) for q in queries for d in (data.own[q], *data.relevant[q]))})
        place = {document: number for number, document in enumerate(kept)}
        return RetrievalData(
            "quora",
            [data.corpus[document] for document in kept],
            [data.queries[q] for q in queries],
            [np.array([place[d] for d in data.relevant[q]]) for q in queries],
            np.array([place[data.own[q]] for q in queries]),
        )
    corpus = sentences(120, 3)
    return RetrievalData("mine", corpus, corpus[:40], [np.array([i + 60]) for i in range(40)], np.arange(40))


def metadata(task_metadata: Any, name: str, kind: str, main_score: str) -> Any:
    return task_metadata(
        name=name,
        description="Local data.",
        dataset={"path": "local/data", "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=main_score,
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation="",
        reference=None,
    )


def run(task: Any, embedder: Any) -> dict[str, float]:
    import mteb

    model = MtebEncoder(embedder, "me/tiny", "abc")
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False)
    assert result.model_name == "me/tiny" and result.model_revision == "abc"
    return result.task_results[0].scores["test"][0]


def test_a_similarity_task() -> None:
    pytest.importorskip("mteb")
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    data = similarity_data()

    class LocalSTS(AbsTaskSTS):
        metadata = globals()["metadata"](TaskMetadata, "LocalSTS", "STS", "cosine_spearman")

        def load_data(self, **kwargs: Any) -> None:
            rows = {"sentence1": data.sentences1, "sentence2": data.sentences2, "score": data.scores.tolist()}
            self.dataset = DatasetDict(test=Dataset.from_dict(rows))
            self.data_loaded = True

    scores = run(LocalSTS(), FakeEmbedder())
    ours = evaluate_sts(FakeEmbedder(), [data])[0]["scores"]["all"]
    assert scores["cosine_spearman"] == pytest.approx(ours["spearman"], abs=1e-5)
    assert scores["cosine_pearson"] == pytest.approx(ours["pearson"], abs=1e-5)
    # By the adapter's own similarity.
    assert scores["spearman"] == pytest.approx(ours["spearman"], abs=1e-5)


def test_a_retrieval_task() -> None:
    pytest.importorskip("mteb")
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    data = retrieval_data()
    own = [str(number) for number in data.own]

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = globals()["metadata"](TaskMetadata, "LocalRetrieval", "Retrieval", "ndcg_at_10")
        ignore_identical_ids = True

        def load_data(self, **kwargs: Any) -> None:
            ids = [str(number) for number in range(len(data.corpus))]
            split = RetrievalSplitData(
                corpus=Dataset.from_dict({"id": ids, "text": data.corpus}),
                queries=Dataset.from_dict({"id": own, "text": data.queries}),
                relevant_docs={
                    query: {str(document): 1 for document in documents}
                    for query, documents in zip(own, data.relevant, strict=True)
                },
                top_ranked=None,
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    scores = run(LocalRetrieval(), FakeEmbedder())
    ours = evaluate_retrieval(FakeEmbedder(), data)["metrics"]
    for theirs, name in (
        ("ndcg_at_10", "ndcg@10"),
        ("mrr_at_10", "mrr@10"),
        ("recall_at_1", "recall@1"),
        ("recall_at_10", "recall@10"),
        ("recall_at_100", "recall@100"),
    ):
        assert scores[theirs] == pytest.approx(ours[name], abs=1e-5), name


def test_it_is_what_mteb_calls_an_encoder() -> None:
    models = pytest.importorskip("mteb.models")
    model = MtebEncoder(FakeEmbedder(), "me/tiny")
    assert isinstance(model, models.EncoderProtocol)
    one, other = np.array([[3.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(model.similarity(one, other), [[0, 0.5**0.5], [0.5**0.5, 1]], atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(one, other), [0, 1], atol=1e-6)
    assert model.similarity(one[0], other).shape == (1, 2)


def test_prompts_by_task_and_kind() -> None:
    pytest.importorskip("mteb")
    asked = []

    class Prompted(FakeEmbedder):
        prompts = {"query": "q: ", "document": "", "STS12": "s: ", "Quora-query": "x: "}

        def encode(self, sentences: list[str], **options: Any) -> np.ndarray:
            asked.append(options.get("prompt_name"))
            return super().encode(sentences)

    model = MtebEncoder(Prompted(), "me/tiny")
    for task, kind in (
        ("STS12", None),
        ("Quora", "query"),
        ("Other", "query"),
        ("Other", "document"),
        ("Other", None),
    ):
        kind = None if kind is None else SimpleNamespace(value=kind)
        batches = [{"text": ["a", "b"]}, {"text": ["a"]}]
        options = {"task_metadata": SimpleNamespace(name=task), "hf_split": "test", "hf_subset": "default"}
        assert model.encode(batches, prompt_type=kind, batch_size=2, **options).shape == (3, 8)
    assert asked == ["STS12", "Quora-query", "query", None, None]
    with pytest.raises(ValueError, match="Other: a batch of image; allowed is text"):
        model.encode([{"image": [1]}], task_metadata=SimpleNamespace(name="Other"), hf_split="", hf_subset="")


def test_without_mteb_or_a_proper_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiny", "/tiny", "me/", "a/b/c"):
        with pytest.raises(ValueError, match="allowed is owner/name"):
            MtebEncoder(FakeEmbedder(), name)
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    with pytest.raises(ImportError, match=r"pip install modeling_hire\[mteb\]"):
        MtebEncoder(FakeEmbedder(), "me/tiny")
