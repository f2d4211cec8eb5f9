"""What `encode`, and programs around it, must not depend on: threads, the side that is padded, prompts."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_contrastive import contrastive, write_pairs
from tiny_runs import save_encoder
from tiny_sentence_encoders import sentence_model
from transformers import AutoTokenizer

from modeling_hire import LayerAttnPoolEncoder, save_detached, to_sentence_transformer
from modeling_hire.evaluation.layer_anisotropy import layer_anisotropy
from modeling_hire.evaluation.layer_attention import layer_attention


TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12 w13", "w11 w1", "w12 w13 w14"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(save_encoder(tmp_path_factory.mktemp("encoder") / "tiny"))


@pytest.fixture
def switching() -> Any:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_do_not_cut_each_others_texts(tokenizer: Any, switching: None) -> None:
    model = sentence_model()
    model.config.max_seq_length = 5
    expected = model.encode(TEXTS, tokenizer=tokenizer)

    def difference(_: int) -> float:
        return float(np.abs(model.encode(TEXTS, tokenizer=tokenizer) - expected).max())

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(difference, range(150))) < 1e-5


def test_threads_leave_dropout_off_and_the_modes_as_they_were(tokenizer: Any, switching: None) -> None:
    model = sentence_model()
    expected = model.encode(TEXTS, tokenizer=tokenizer)
    model.train()
    model.encoder.embeddings.eval()
    modes = [module.training for module in model.modules()]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: model.encode(TEXTS, tokenizer=tokenizer), range(60)))
    assert max(np.abs(one - expected).max() for one in found) < 1e-5
    assert [module.training for module in model.modules()] == modes
    layer_anisotropy(with_tokenizer(model, tokenizer), TEXTS)
    assert [module.training for module in model.modules()] == modes


def with_tokenizer(model: LayerAttnPoolEncoder, tokenizer: Any) -> LayerAttnPoolEncoder:
    model.tokenizer = tokenizer
    return model


class TestTokenizersThatPadOnTheLeft:
    @pytest.fixture
    def saved(self, tmp_path: Path, tokenizer: Any) -> Path:
        model = sentence_model(encoder={"vocab_size": len(tokenizer)})
        model.save_pretrained(tmp_path / "saved")
        tokenizer.padding_side = "left"
        tokenizer.save_pretrained(tmp_path / "saved")
        tokenizer.padding_side = "right"
        return tmp_path / "saved"

    def test_evaluation_does_not_depend_on_the_batch(self, saved: Path) -> None:
        model = LayerAttnPoolEncoder.from_pretrained(saved)
        one, other = (layer_attention(model, TEXTS, size) for size in (1, 5))
        np.testing.assert_allclose(one, other, atol=1e-5)
        one, other = (layer_anisotropy(model, TEXTS, size) for size in (1, 5))
        assert one[0]["mean"] == pytest.approx(other[0]["mean"], abs=1e-5)
        assert one[-1]["mean"] == pytest.approx(other[-1]["mean"], abs=1e-5)

    def test_others_embed_as_encode_does(self, saved: Path, tmp_path: Path) -> None:
        sentence_transformers = pytest.importorskip("sentence_transformers")
        model = LayerAttnPoolEncoder.from_pretrained(saved)
        expected = model.encode(TEXTS)
        np.testing.assert_allclose(to_sentence_transformer(model).encode(TEXTS), expected, atol=1e-5)
        save_detached(model, tmp_path / "plain", "cls")
        model.config.detach_at_inference = "cls"
        plain = sentence_transformers.SentenceTransformer(str(tmp_path / "plain"))
        np.testing.assert_allclose(plain.encode(TEXTS), model.encode(TEXTS), atol=1e-5)

    def test_a_run_scores_what_encode_gives(self, saved: Path, tmp_path: Path) -> None:
        pairs = ("--validation_file", write_pairs(tmp_path / "pairs.jsonl"), "--num_train_epochs", 0)
        scores = []
        for side in ("left", "right"):
            tokenizer = AutoTokenizer.from_pretrained(saved)
            tokenizer.padding_side = side
            tokenizer.save_pretrained(saved)
            scores.append(contrastive(tmp_path / side, "--model", saved, *pairs)["metrics"]["42"])
        assert scores[0] == scores[1]


def test_the_default_prompt_is_in_front_of_what_is_trained_and_scored(tmp_path: Path, tokenizer: Any) -> None:
    model = sentence_model(encoder={"vocab_size": len(tokenizer)})
    model.config.prompts, model.config.default_prompt_name = {"q": "w50 w51 "}, "q"
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    flags = ("--validation_file", pairs, "--num_train_epochs", 0)
    prompted = contrastive(tmp_path / "one", "--model", tmp_path / "saved", *flags)["metrics"]["42"]["validation"]
    model.config.prompts = model.config.default_prompt_name = None
    model.save_pretrained(tmp_path / "saved")
    bare = contrastive(tmp_path / "two", "--model", tmp_path / "saved", *flags)["metrics"]["42"]["validation"]
    assert prompted != bare


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": 5}, "prompt=5"),
        ({"prompt": "\ud800"}, "broken Unicode"),
        ({"sentences": np.array("a")}, "allowed is a text or a list"),
        ({"device": "cuda:77"}, "device='cuda:77'"),
    ],
    ids=str,
)
def test_what_is_refused(tokenizer: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sentence_model().encode(**({"sentences": ["a"], "tokenizer": tokenizer} | arguments))


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_without_room_for_a_text(tokenizer: Any, limit: int) -> None:
    model = sentence_model()
    model.config.max_seq_length = limit
    with pytest.raises(ValueError, match=f"max_seq_length={limit}: this tokenizer adds 2 special tokens"):
        model.encode(TEXTS, tokenizer=tokenizer)


def test_a_detached_models_layers_are_not_looked_at(tmp_path: Path, tokenizer: Any) -> None:
    model = with_tokenizer(sentence_model(), tokenizer)
    model.config.detach_at_inference = "cls"
    with pytest.raises(ValueError, match="load it with pooler='layer_attn'"):
        layer_attention(model, TEXTS)


def test_saving_leaves_the_tokenizer_alone(tmp_path: Path, tokenizer: Any) -> None:
    model = with_tokenizer(sentence_model(), tokenizer)
    tokenizer.padding_side = "left"
    model.save_pretrained(tmp_path)
    assert tokenizer.padding_side == "left"
    assert AutoTokenizer.from_pretrained(tmp_path).padding_side == "right"
    tokenizer.padding_side = "right"


def test_hard_negatives_by_another_name_and_columns_left_over(tmp_path: Path) -> None:
    from modeling_hire.data.contrastive_columns import find_text_columns
    from modeling_hire.data.readers import Table

    row = {"anchor": ["a"], "positive": ["b"], "hard_negative": ["c"]}
    assert find_text_columns(Table(row, "x"), True) == (["anchor", "positive", "hard_negative"], None)
    columns, note = find_text_columns(Table(row | {"negatives": ["d"], "idx": [1]}, "x"), True)
    assert columns[2:] == ["hard_negative"] and "'negatives' not" in note
    with pytest.raises(ValueError, match="'relatedness'"):
        find_text_columns(Table({"sentence1": ["a"], "sentence2": ["b"], "relatedness": [1.0]}, "x"), True)
