"""The layers a sentence encoder attends to, against one text at a time; and the program around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_embedders import FakeEmbedder
from tiny_runs import save_encoder, write_rows
from transformers import AutoTokenizer

from modeling_hire import LayerAttnPoolEncoder
from modeling_hire.evaluation import layer_attention as program
from modeling_hire.evaluation.embedders import load_embedder
from modeling_hire.evaluation.layer_attention import layer_attention


TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w11 w1", "w12 w13 w14"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    encoder = save_encoder(folder / "encoder")
    torch.manual_seed(0)
    model = LayerAttnPoolEncoder.from_pretrained(encoder)
    for weight in (model.pooler.attention.query.weight, model.pooler.attention.key.weight):
        torch.nn.init.normal_(weight, std=1.0)  # large, so that the layers' weights differ
    model.save_pretrained(folder / "sentences")
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder / "sentences")
    return folder / "sentences"


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_weights_of_one_text_at_a_time(checkpoint: Path, batch_size: int) -> None:
    embedder = load_embedder(checkpoint, device="cpu")
    found = layer_attention(embedder, TEXTS, batch_size)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    with torch.no_grad():
        expected = [
            embedder(**tokenizer(text, return_tensors="pt"), output_layer_weights=True).layer_weights[0].numpy()
            for text in TEXTS
        ]
    assert found.shape == (len(TEXTS), len(embedder.config.layer_indices))
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)
    assert np.ptp(found, axis=0).max() > 1e-3, "texts that differ, or their order would not matter"


def test_the_program(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    draw = np.random.default_rng(0)
    for task in ("stsb", "sick"):
        words = [" ".join(f"w{n}" for n in draw.integers(10, 90, 4)) for _ in range(8)]
        rows = [
            {
                "sentence1": words[i],
                "sentence2": words[i + 4],
                "label": float(i),
                "relatedness_score": 1.0 + i,
                "idx": i,
            }
            for i in range(4)
        ]
        write_rows(tmp_path / task / "validation.jsonl", rows)
    flags = [str(checkpoint), "--tasks", "stsb", "sick", "--dataset_dir", str(tmp_path), "--use_cpu"]
    written = ["--output", str(tmp_path / "out.json"), "--picture", str(tmp_path / "out.png")]
    report = program.main([*flags, *written])
    assert json.loads((tmp_path / "out.json").read_text()) == report
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert report["layers"] == [0, 1, 2, 3] and report["model"] == "sentences"
    assert [row["name"] for row in report["datasets"]] == ["stsb", "sick"]
    for row in report["datasets"]:
        assert sum(row["mean"]) == pytest.approx(1, abs=1e-5) and row["sentences"] == 8
        assert f"{row['mean'][2]:.3f}" in capsys.readouterr().out or row["name"] == "sick"
    with pytest.raises(SystemExit, match="is there already"):
        program.main([*flags, *written])


def test_what_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="pooler='mean': does not weigh the layers"):
        layer_attention(load_embedder(checkpoint, pooler="mean", device="cpu"), TEXTS)
    with pytest.raises(ValueError, match="pooler='FakeEmbedder'"):
        layer_attention(FakeEmbedder(), TEXTS)
    with pytest.raises(ValueError, match="texts: there are none"):
        layer_attention(load_embedder(checkpoint, device="cpu"), [])
