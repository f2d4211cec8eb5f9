"""The pooler taken off: a plain encoder with a fixed pooling, which needs no code of this library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import assert_same, tiny_batch, tiny_tokenizer
from tiny_sentence_encoders import close, saved, sentence_model, tokenizer_with
from transformers import AutoModel, AutoTokenizer, BertModel, pipeline

from modeling_hire import LayerAttnPoolEncoder, save_detached


TEXTS = ["w1 w2 w3", "w4", "", "w5 " * 30, "w6 w7"]
# What a fresh process runs that cannot import this library: argument 1 is the folder, 2 the texts, 3 where to write.
FRESH = """
import json, sys
sys.modules["modeling_hire"] = None
import numpy, torch
torch.set_num_threads(1)
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")  # no trust_remote_code
numpy.save(sys.argv[3], model.encode(json.loads(sys.argv[2])))
"""


def plainly_pooled(model: LayerAttnPoolEncoder, pooling: str, texts: list[str]) -> np.ndarray:
    """The encoder's last layer of each text by itself, pooled by hand."""
    tokenizer, pooled = tiny_tokenizer(), []
    place = 0 if model.config.cls_position == "first" else -1
    with torch.no_grad():
        for text in texts:
            state = model.encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            pooled.append(state[place] if pooling == "cls" else state.mean(dim=0))
    return torch.stack(pooled).numpy()


class TestDetachPooler:
    def test_gives_the_plain_class(self) -> None:
        model = sentence_model()
        plain = model.detach_pooler()
        assert type(plain) is BertModel and plain.config.sentence_pooling == "cls"
        assert not hasattr(model.config.encoder_config, "sentence_pooling"), "the model itself stays as it is"
        assert_same(plain.state_dict(), model.encoder.state_dict())

    def test_shares_no_memory(self) -> None:
        model = sentence_model()
        plain = model.detach_pooler("mean")
        before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.add_(1)
        assert_same(model.encoder.state_dict(), before)

    def test_needs_nothing_that_the_model_has_done_before(self) -> None:
        model = sentence_model()
        with torch.no_grad():
            states = model(**tiny_batch()).last_hidden_state  # with hooks on its layers
            torch.testing.assert_close(model.detach_pooler()(**tiny_batch()).last_hidden_state, states)

    @pytest.mark.parametrize("pooling", ["max", "CLS", None, "first"])
    def test_refuses_other_poolings(self, pooling: Any, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=re.escape(f"pooling={pooling!r}: allowed is one of 'cls', 'mean'")):
            sentence_model().detach_pooler(pooling)
        with pytest.raises(ValueError, match="pooling="):
            save_detached(sentence_model(), tmp_path / "folder", pooling, tiny_tokenizer())
        assert not (tmp_path / "folder").exists()

    def test_refuses_a_tied_plan(self, tmp_path: Path) -> None:
        model = sentence_model(layer_plan=[0, 0, 1, 2])
        with pytest.raises(ValueError, match=re.escape("layer_plan=[0, 0, 1, 2]: the plain class")):
            model.detach_pooler()
        with pytest.raises(ValueError, match="layer_plan="):
            save_detached(model, tmp_path / "folder", tokenizer=tiny_tokenizer())
        assert not (tmp_path / "folder").exists()

    def test_takes_copied_layers(self, tmp_path: Path) -> None:
        AutoModel.from_config(tiny_encoder_config("bert")).save_pretrained(tmp_path)
        model = LayerAttnPoolEncoder.from_pretrained(tmp_path, duplicate="all:2")
        assert model.detach_pooler().config.num_hidden_layers == 6


class TestSaved:
    @pytest.mark.parametrize("pooling", ["cls", "mean"])
    @pytest.mark.parametrize("encoder_type", ["bert", "roberta", "modernbert", "deberta-v2"])
    def test_is_the_encoder_with_plain_pooling(self, pooling: str, encoder_type: str, tmp_path: Path) -> None:
        library = pytest.importorskip("sentence_transformers")
        model = saved(tmp_path / "ours", encoder_type=encoder_type)
        assert save_detached(model, tmp_path / "plain", pooling) == tmp_path / "plain"
        expected = plainly_pooled(model, pooling, TEXTS)
        loaded = library.SentenceTransformer(str(tmp_path / "plain"), device="cpu")  # no trust_remote_code
        assert close(loaded.encode(TEXTS, batch_size=2), expected)
        detached = LayerAttnPoolEncoder.from_pretrained(tmp_path / "ours", detach_at_inference=pooling)
        assert close(detached.encode(TEXTS), expected)
        ours = LayerAttnPoolEncoder.from_pretrained(
            tmp_path / "plain", pooler="mean" if pooling == "mean" else "cls_before_pooler"
        )
        assert close(ours.encode(TEXTS), expected)

    def test_pools_the_last_token_where_that_stands_for_the_text(self, tmp_path: Path) -> None:
        library = pytest.importorskip("sentence_transformers")
        model = saved(tmp_path / "ours", cls_position="last")
        save_detached(model, tmp_path / "plain", "cls")
        loaded = library.SentenceTransformer(str(tmp_path / "plain"), device="cpu")
        assert close(loaded.encode(TEXTS), plainly_pooled(model, "cls", TEXTS))

    def test_holds_no_code_and_a_plain_configuration(self, tmp_path: Path) -> None:
        save_detached(saved(tmp_path / "ours"), tmp_path / "plain", "mean")
        assert not list((tmp_path / "plain").rglob("*.py"))
        config = json.loads((tmp_path / "plain" / "config.json").read_text())
        assert config["model_type"] == "bert" and config["architectures"] == ["BertModel"]
        assert config["sentence_pooling"] == "mean" and "auto_map" not in config and "encoder_config" not in config
        for path in (tmp_path / "plain").rglob("*.json"):
            assert str(tmp_path) not in path.read_text(encoding="utf-8"), path.name

    def test_loads_as_the_plain_model(self, tmp_path: Path) -> None:
        model = saved(tmp_path / "ours")
        save_detached(model, tmp_path / "plain")
        plain, info = AutoModel.from_pretrained(tmp_path / "plain", add_pooling_layer=False, output_loading_info=True)
        assert type(plain) is BertModel and not info["missing_keys"] and not info["unexpected_keys"]
        assert_same(plain.state_dict(), model.encoder.state_dict())
        assert AutoTokenizer.from_pretrained(tmp_path / "plain")("w1")["input_ids"] == [2, 6, 3]
        states = pipeline("feature-extraction", model=str(tmp_path / "plain"))("w1 w2")
        assert close(np.mean(states[0], axis=0), plainly_pooled(model, "mean", ["w1 w2"])[0])

    def test_keeps_prompts_and_the_limit(self, tmp_path: Path) -> None:
        library = pytest.importorskip("sentence_transformers")
        model = saved(
            tmp_path / "ours", prompts={"query": "w80 "}, default_prompt_name="query", detach_at_inference="mean"
        )
        model.config.max_seq_length = 6
        save_detached(model, tmp_path / "plain", "mean")
        loaded = library.SentenceTransformer(str(tmp_path / "plain"), device="cpu")
        assert loaded.max_seq_length == 6
        for options in ({}, {"prompt": ""}, {"prompt_name": "query", "normalize_embeddings": True}):
            assert close(loaded.encode(TEXTS, **options), model.encode(TEXTS, **options))

    @pytest.mark.parametrize("length", [None, 150])
    def test_reads_as_much_of_a_text_where_the_encoder_has_no_limit(self, length: int | None, tmp_path: Path) -> None:
        library = pytest.importorskip("sentence_transformers")
        model = sentence_model("deberta-v2", max_seq_length=length, detach_at_inference="mean")
        tokenizer = tokenizer_with(model_max_length=10**30)
        save_detached(model, tmp_path / "plain", "mean", tokenizer)
        loaded = library.SentenceTransformer(str(tmp_path / "plain"), device="cpu")
        texts = ["w1 " * 200, "w2"]
        assert close(loaded.encode(texts), model.encode(texts, tokenizer=tokenizer))

    @pytest.mark.slow
    @pytest.mark.parametrize("pooling", ["cls", "mean"])
    def test_needs_no_code_of_this_library(self, pooling: str, tmp_path: Path) -> None:
        pytest.importorskip("sentence_transformers")
        model = saved(tmp_path / "ours")
        save_detached(model, tmp_path / "plain", pooling)
        arguments = [str(tmp_path / "plain"), json.dumps(TEXTS), str(tmp_path / "found.npy")]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-I", "-c", FRESH, *arguments], env=environment, check=True, timeout=300)
        assert close(np.load(tmp_path / "found.npy"), plainly_pooled(model, pooling, TEXTS))


class TestRefusedFolders:
    @pytest.mark.parametrize("kind", ["folder with a file", "file"])
    def test_that_hold_something(self, kind: str, tmp_path: Path) -> None:
        target = tmp_path / "target"
        if kind == "file":
            target.write_text("mine")
        else:
            target.mkdir()
            (target / "notes.txt").write_text("mine")
        with pytest.raises(ValueError, match=re.escape(f"folder={str(target)!r}: holds files")):
            save_detached(saved(tmp_path / "ours"), target)
        assert (target if kind == "file" else target / "notes.txt").read_text() == "mine"

    def test_empty_ones_are_fine(self, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        save_detached(saved(tmp_path / "ours"), tmp_path / "plain")
        assert (tmp_path / "plain" / "modules.json").is_file()

    def test_nothing_is_written_without_a_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="tokenizer=None"):
            save_detached(sentence_model(), tmp_path / "plain")
        assert not (tmp_path / "plain").exists()
