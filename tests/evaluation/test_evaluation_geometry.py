"""Alignment, uniformity and anisotropy, against loops over pairs; and the program around them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_embedders import FakeEmbedder, SameEmbedder, minilm_folder
from tiny_runs import save_encoder, write_rows
from transformers import AutoModel, AutoTokenizer

from modeling_hire.evaluation import geometry
from modeling_hire.evaluation.embedders import embed, load_embedder
from modeling_hire.evaluation.geometry import distinct_sentences, evaluate_geometry
from modeling_hire.evaluation.geometry_measures import MeanCosine, alignment, mean_cosine, uniformity
from modeling_hire.evaluation.layer_anisotropy import layer_anisotropy
from modeling_hire.evaluation.sts_data import STSDataset


TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w11 w1", "w12 w13 w14"]


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length else vector


def squared_distance(one: list[float], other: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(unit(one), unit(other), strict=True))


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(unit(one), unit(other), strict=True))


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((37, 5)) * 3 + 1


# ---- measures -------------------------------------------------------------------------------------------------------


def test_alignment_by_a_loop(vectors: np.ndarray) -> None:
    left, right = vectors[:18], vectors[19:]
    expected = np.mean([squared_distance(a, b) for a, b in zip(left.tolist(), right.tolist(), strict=False)])
    assert alignment(left, right[:18]) == pytest.approx(expected, abs=1e-12)
    assert alignment(left, 7 * left) == pytest.approx(0, abs=1e-12)
    assert alignment(left, -left) == pytest.approx(4)
    with pytest.raises(ValueError, match=r"shapes \(18, 5\) and \(17, 5\)"):
        alignment(left, right[:17])


@pytest.mark.parametrize("chunk_size", [1, 5, 36, 37, 1000])
def test_uniformity_by_a_loop(vectors: np.ndarray, chunk_size: int) -> None:
    rows = vectors.tolist()
    parts = [math.exp(-2 * squared_distance(a, b)) for a, b in itertools.combinations(rows, 2)]
    assert uniformity(vectors, chunk_size=chunk_size) == pytest.approx(math.log(np.mean(parts)), abs=1e-5)


def test_uniformity_of_cases_known_by_hand() -> None:
    assert uniformity(np.ones((4, 3)), chunk_size=2) == pytest.approx(0, abs=1e-6)
    # Two opposite directions: d^2 = 4, exp(-8).
    assert uniformity(np.array([[1.0, 0.0], [-2.0, 0.0]])) == pytest.approx(-8)
    with pytest.raises(ValueError, match="1 of them make no pair"):
        uniformity(np.ones((1, 3)))
    with pytest.raises(ValueError, match="chunk_size=0"):
        uniformity(np.ones((3, 3)), chunk_size=0)
    with pytest.raises(ValueError, match="not finite"):
        uniformity(np.full((3, 3), np.nan))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        uniformity(np.ones(3))


def test_mean_cosine_by_a_loop_whatever_the_batches(vectors: np.ndarray) -> None:
    vectors[3] = 0  # a zero vector
    expected = np.mean([cosine(a, b) for a, b in itertools.combinations(vectors.tolist(), 2)])
    assert mean_cosine(vectors) == pytest.approx(expected, abs=1e-12)
    batches = MeanCosine()
    for start in (0, 7, 8, 30):
        batches.add(torch.tensor(vectors[start : {0: 7, 7: 8, 8: 30, 30: 37}[start]]))
    assert batches.value() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="0 of them make no pair"):
        MeanCosine().value()


def test_random_pairs_estimate_the_same(vectors: np.ndarray) -> None:
    draw = np.random.default_rng(1)
    left, right = draw.integers(0, 37, (2, 200_000))
    left, right = left[left != right], right[left != right]
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    estimate = (directions[left] * directions[right]).sum(axis=1).mean()
    assert mean_cosine(vectors) == pytest.approx(estimate, abs=0.01)


def test_the_whole_by_a_loop() -> None:
    left, right = ["a b", "c", "a b", "d e"], ["b a", "c d", "f", "a b"]
    scores = np.array([4.5, 4.0, 1.0, 5.0])
    found = evaluate_geometry(FakeEmbedder(), [STSDataset("mine", "test", left, right, scores)])
    embedder = FakeEmbedder()
    sentences = ["a b", "c", "d e", "b a", "c d", "f"]  # each once
    rows = [embedder.vector(text).tolist() for text in sentences]
    pairs = list(itertools.combinations(rows, 2))
    alike = [("a b", "b a"), ("d e", "a b")]  # above 4, not at it
    near = [squared_distance(*(embedder.vector(text).tolist() for text in pair)) for pair in alike]
    assert found["positives"] == 2 and found["sentences"] == 6
    assert found["alignment"] == pytest.approx(np.mean(near), abs=1e-5)
    spread = np.mean([math.exp(-2 * squared_distance(a, b)) for a, b in pairs])
    assert found["uniformity"] == pytest.approx(math.log(spread), abs=1e-5)
    assert found["anisotropy"] == pytest.approx(np.mean([cosine(a, b) for a, b in pairs]), abs=1e-5)


def test_no_pair_alike_is_said_before_encoding() -> None:
    embedder = FakeEmbedder()
    data = STSDataset("mine", "test", ["a", "b"], ["c", "d"], np.array([4.0, 1.0]))
    with pytest.raises(ValueError, match="positive_above=4.0: no pair has a higher score; allowed .* below 4"):
        evaluate_geometry(embedder, [data])
    assert not embedder.calls


def test_equal_embeddings_are_told_apart_from_nothing() -> None:
    data = STSDataset("mine", "test", ["a", "b"], ["c", "d"], np.array([5.0, 1.0]))
    found = evaluate_geometry(SameEmbedder(), [data])
    assert found["alignment"] == pytest.approx(0, abs=1e-6) and found["anisotropy"] == pytest.approx(1, abs=1e-6)
    assert found["uniformity"] == pytest.approx(0, abs=1e-6)


# ---- layers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("checkpoint") / "tiny-encoder")


@torch.no_grad()
def layers_by_a_loop(folder: Path | str, texts: list[str]) -> list[tuple[float, float]]:
    """Text by text and without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    outputs = [model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True) for text in texts]
    result = []
    for layer in range(len(outputs[0].hidden_states)):
        states = [output.hidden_states[layer][0].double() for output in outputs]
        vectors = [[state[0].tolist() for state in states], [state.mean(0).tolist() for state in states]]
        result.append(tuple(np.mean([cosine(a, b) for a, b in itertools.combinations(v, 2)]) for v in vectors))
    return result


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_layers_by_a_loop(checkpoint: Path, batch_size: int) -> None:
    embedder = load_embedder(checkpoint, pooler="mean", device="cpu")
    found = layer_anisotropy(embedder, [*TEXTS, TEXTS[0]], batch_size)
    expected = layers_by_a_loop(checkpoint, TEXTS)
    assert [row["layer"] for row in found] == list(range(len(expected)))
    for row, (first, mean) in zip(found, expected, strict=True):
        assert row["first_token"] == pytest.approx(first, abs=1e-5)
        assert row["mean"] == pytest.approx(mean, abs=1e-5)
    assert found[0]["first_token"] == pytest.approx(1, abs=1e-6)
    assert found[-1]["mean"] == pytest.approx(mean_cosine(embed(embedder, TEXTS)), abs=1e-5)


def test_layers_of_a_sentence_transformers_model() -> None:
    pytest.importorskip("sentence_transformers")
    texts = ["A man is eating.", "Two dogs run over a field of grass.", "It rains."]
    embedder = load_embedder(minilm_folder(), device="cpu")
    found, expected = layer_anisotropy(embedder, texts, 2), layers_by_a_loop(minilm_folder(), texts)
    assert len(found) == 7
    for row, (first, mean) in zip(found, expected, strict=True):
        assert row["first_token"] == pytest.approx(first, abs=1e-5)
        assert row["mean"] == pytest.approx(mean, abs=1e-5)


def test_layers_that_cannot_be_seen() -> None:
    with pytest.raises(ValueError, match="a FakeEmbedder does not show its layers"):
        layer_anisotropy(FakeEmbedder(), TEXTS)
    with pytest.raises(ValueError, match="1 different ones make no pair"):
        layer_anisotropy(FakeEmbedder(), ["a", "a"])


# ---- the program ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    words = [" ".join(f"w{n}" for n in draw.integers(10, 90, 4)) for _ in range(12)]
    rows = [
        {"sentence1": words[i], "sentence2": words[i + 6], "label": [5.0, 4.2, 4.0, 1.0, 0.0, 2.0][i], "idx": i}
        for i in range(6)
    ]
    write_rows(tmp_path / "stsb" / "validation.jsonl", rows)
    return tmp_path


def run(*flags: Any) -> dict[str, Any]:
    return geometry.main([str(flag) for flag in flags])


def refused(*flags: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        run(*flags)
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


def test_poolers_layers_and_pictures(
    checkpoint: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    out.mkdir()
    flags = [checkpoint, "--dataset_dir", folder, "--use_cpu", "--poolers", "mean", "cls_before_pooler", "--layers"]
    report = run(*flags, "--output", out / "geometry.json", "--picture", out / "poolers.png")
    assert sorted(path.name for path in out.iterdir()) == ["geometry.json", "poolers.png", "poolers_layers.png"]
    assert json.loads((out / "geometry.json").read_text()) == report and str(tmp_path) not in json.dumps(report)
    assert [row["name"] for row in report["embedders"]] == ["tiny-encoder, mean", "tiny-encoder, cls_before_pooler"]
    assert report["data"]["positives"] == 2 and report["data"]["sentences"] == 12
    assert report["data"]["splits"] == {"stsb/validation": 6} and len(report["layers"]) == 4
    shown = capsys.readouterr().out
    assert f"{report['embedders'][1]['uniformity']:.4f}" in shown and "anisotropy (first token)" in shown
    for name in ("poolers.png", "poolers_layers.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")

    flags = [checkpoint, "--dataset_dir", folder, "--use_cpu", "--pooler", "mean_top2"]
    again = run(*flags, "--compare", out / "geometry.json")
    assert len(again["embedders"]) == 1 and "tiny-encoder, cls_before_pooler" in capsys.readouterr().out
    assert "is about other data" in refused(*flags, "--compare", out / "geometry.json", "--positive_above", 4.5)


def test_the_same_numbers_for_any_batch(checkpoint: Path, folder: Path) -> None:
    flags = [checkpoint, "--dataset_dir", folder, "--use_cpu", "--pooler", "mean"]
    one, other = (run(*flags, "--batch_size", size)["embedders"][0] for size in (1, 9))
    for measure in geometry.MEASURES:
        assert one[measure] == pytest.approx(other[measure], abs=1e-5)


def test_what_is_refused(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    flags = [checkpoint, "--dataset_dir", folder, "--use_cpu"]
    assert "give one of the two" in refused(*flags, "--pooler", "mean", "--poolers", "mean")
    assert "pooler='meen'" in refused(*flags, "--poolers", "mean", "meen")
    assert "Did you mean 'picture'" in refused(*flags, "--pictures", "x.png")
    assert "positive_above=6.0" in refused(*flags, "--pooler", "mean", "--positive_above", 6)
    assert "picture=" in refused(*flags, "--pooler", "mean", "--picture", tmp_path / "x.jpg")
    assert "compare='nowhere.json'" in refused(*flags, "--pooler", "mean", "--compare", "nowhere.json")
    (tmp_path / "there.png").touch()
    assert "is there already" in refused(*flags, "--pooler", "mean", "--picture", tmp_path / "there.png")


def test_distinct_sentences_keep_their_order() -> None:
    data = STSDataset("mine", "test", ["b", "a"], ["a", "c"], np.array([1.0, 2.0]))
    assert distinct_sentences([data, data]) == ["b", "a", "c"]
