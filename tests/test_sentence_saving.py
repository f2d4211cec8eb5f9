"""Sentence encoders saved and loaded again: by this library, transformers and sentence-transformers, with equal
embeddings; and where the tokenizer comes from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_tokenizer
from tiny_sentence_encoders import SETTINGS, close, saved, sentence_model, tokenizer_with
from transformers import AutoModel, AutoTokenizer, pipeline

from modeling_hire import LayerAttnPoolEncoder, save_detached, to_sentence_transformer


TEXTS = ["w1 w2 w3", "w4", "", "w5 " * 30, "w6 w7"]
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json"}
OTHER_FILES = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"}


class TestFolder:
    def test_holds_model_tokenizer_and_what_sentence_transformers_reads(self, tmp_path: Path) -> None:
        saved(tmp_path / "first").save_pretrained(tmp_path / "second")
        ours = {"config.json", "model.safetensors"} | TOKENIZER_FILES | OTHER_FILES
        assert files(tmp_path / "second") == ours
        code = {path.name for path in (tmp_path / "second").glob("*.py")}
        assert code == {
            "configuration_layer_attn_pool.py",
            "configuration_layer_plans.py",
            "configuration_layerwise.py",
            "configuration_positions.py",
            "modeling_encoder_layers.py",
            "modeling_inputs.py",
            "modeling_layer_attn_pool.py",
            "modeling_layer_pooling.py",
            "modeling_layerwise.py",
            "modeling_text_encoding.py",
        }

    def test_says_nothing_of_this_machine(self, tmp_path: Path) -> None:
        AutoModel.from_config(tiny_encoder_config("bert")).save_pretrained(tmp_path / "plain")
        tiny_tokenizer().save_pretrained(tmp_path / "plain")
        LayerAttnPoolEncoder.from_pretrained(tmp_path / "plain").save_pretrained(tmp_path / "ours")
        for path in (tmp_path / "ours").glob("*.json"):
            assert str(tmp_path) not in path.read_text(encoding="utf-8"), path.name

    def test_twice_is_the_same(self, tmp_path: Path) -> None:
        saved(tmp_path / "new").save_pretrained(tmp_path / "once")
        LayerAttnPoolEncoder.from_pretrained(tmp_path / "once").save_pretrained(tmp_path / "twice")
        assert files(tmp_path / "once") == files(tmp_path / "twice")
        for name in files(tmp_path / "once"):
            once, twice = ((tmp_path / folder / name).read_bytes() for folder in ("once", "twice"))
            if name.endswith(".json"):
                once, twice = json.loads(once), json.loads(twice)
            assert once == twice, name

    def test_over_an_older_one_is_the_new_one(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        saved(folder, pooler="cls", seed=3, prompts={"query": "w9 "}, max_seq_length=20)
        model = saved(tmp_path / "new", pooler="layer_attn")
        expected = model.encode(TEXTS)
        model.save_pretrained(folder)
        assert close(LayerAttnPoolEncoder.from_pretrained(folder).encode(TEXTS), expected)
        settings = json.loads((folder / "config_sentence_transformers.json").read_text())
        assert settings["prompts"] == {} and settings["default_prompt_name"] is None
        assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 64

    def test_over_a_detached_one_is_attached(self, tmp_path: Path) -> None:
        library = pytest.importorskip("sentence_transformers")
        model = saved(tmp_path / "new")
        save_detached(model, tmp_path / "folder")
        model.save_pretrained(tmp_path / "folder")
        loaded = library.SentenceTransformer(str(tmp_path / "folder"), trust_remote_code=True, device="cpu")
        assert close(loaded.encode(TEXTS), model.encode(TEXTS))

    def test_of_other_processes_than_the_main_one_gets_nothing_extra(self, tmp_path: Path) -> None:
        model = saved(tmp_path / "first")
        model.save_pretrained(tmp_path / "second", is_main_process=False)
        assert not OTHER_FILES & files(tmp_path / "second") and not TOKENIZER_FILES & files(tmp_path / "second")

    def test_is_uploaded_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        uploads = []

        def upload(self: LayerAttnPoolEncoder, repository: str, **options: Any) -> None:
            uploads.append((repository, options, files(tmp_path / "mine")))

        monkeypatch.setattr(LayerAttnPoolEncoder, "push_to_hub", upload)
        model = saved(tmp_path / "first")
        model.save_pretrained(tmp_path / "mine", push_to_hub=True, private=True, commit_message="First", token="t")
        model.save_pretrained(tmp_path / "mine", push_to_hub=True, repo_id="lab/other")
        whole = {"config.json", "model.safetensors"} | TOKENIZER_FILES | OTHER_FILES
        assert uploads == [
            ("mine", {"private": True, "commit_message": "First", "token": "t"}, whole),
            ("lab/other", {"token": None}, whole),
        ]


class TestTokenizer:
    def test_goes_along_though_it_was_never_used(self, tmp_path: Path) -> None:
        enliven(AutoModel.from_config(tiny_encoder_config("bert"))).save_pretrained(tmp_path / "plain")
        tokenizer_with("[CLS] $A [SEP]", model_max_length=11).save_pretrained(tmp_path / "plain")
        model = LayerAttnPoolEncoder.from_pretrained(tmp_path / "plain", pooler="mean")
        model.save_pretrained(tmp_path / "ours")
        assert model.tokenizer is None
        loaded = LayerAttnPoolEncoder.from_pretrained(tmp_path / "ours")
        assert close(loaded.encode(TEXTS), model.encode(TEXTS))
        assert loaded.tokenizer.model_max_length == 11

    def test_that_the_user_saved_there_stays(self, tmp_path: Path) -> None:
        model = saved(tmp_path / "first")
        own = tiny_tokenizer()
        own.add_tokens(["mine"])
        own.save_pretrained(tmp_path / "second")
        model.resize_token_embeddings(len(own))
        model.save_pretrained(tmp_path / "second")
        assert len(AutoTokenizer.from_pretrained(tmp_path / "second")) == 100

    def test_that_was_used_replaces_one_that_was_there(self, tmp_path: Path) -> None:
        model = saved(tmp_path / "first")
        expected = model.encode(TEXTS)
        tokenizer_with("[CLS] [CLS] $A [SEP]").save_pretrained(tmp_path / "second")
        model.save_pretrained(tmp_path / "second")
        assert close(LayerAttnPoolEncoder.from_pretrained(tmp_path / "second").encode(TEXTS), expected)

    @pytest.mark.parametrize("source", ["none", "checkpoint without one"])
    def test_that_is_not_there_is_not_missed(
        self, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = sentence_model()
        if source != "none":
            model.save_pretrained(tmp_path / "first")
            model = LayerAttnPoolEncoder.from_pretrained(tmp_path / "first")
        model.save_pretrained(tmp_path / "second")
        assert files(tmp_path / "second") == {"config.json", "model.safetensors"} | OTHER_FILES
        # A training run saves often: it is looked for once.
        monkeypatch.setattr("modeling_hire.modeling_layer_attn_pool.load_tokenizer", lambda model: 1 / 0)
        model.save_pretrained(tmp_path / "third")

    def test_is_the_one_of_the_models_commit(self, tmp_path: Path) -> None:
        # Two commits in a cache of the Hub, with another tokenizer each; the branch moves on after loading.
        repository = tmp_path / "models--lab--sentences"
        commits = ("1" * 40, "2" * 40)
        for commit, limit in zip(commits, (5, 9), strict=True):
            saved(repository / "snapshots" / commit, tokenizer_with(model_max_length=limit))
        (repository / "refs").mkdir()
        branch = repository / "refs" / "main"
        branch.write_text(commits[0])
        options = {"cache_dir": str(tmp_path), "local_files_only": True}
        before = LayerAttnPoolEncoder.from_pretrained("lab/sentences", **options)
        by_auto = AutoModel.from_pretrained("lab/sentences", **options)
        branch.write_text(commits[1])
        after = LayerAttnPoolEncoder.from_pretrained("lab/sentences", **options)
        named = LayerAttnPoolEncoder.from_pretrained("lab/sentences", revision=commits[0], **options)
        given = LayerAttnPoolEncoder.from_pretrained("lab/sentences", config=before.config, **options)
        limits = []
        for model in (before, by_auto, named, after, given):
            model.encode("w1")
            limits.append(model.tokenizer.model_max_length)
        assert limits == [5, 5, 5, 9, 9]


@pytest.mark.parametrize("name", SETTINGS)
def test_auto_model_gives_equal_embeddings(name: str, tmp_path: Path) -> None:
    model = saved(tmp_path, **SETTINGS[name])
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is LayerAttnPoolEncoder
    assert close(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-6)


class TestPipeline:
    def test_gives_the_states_of_the_tokens(self, tmp_path: Path) -> None:
        model = saved(tmp_path)
        extract = pipeline("feature-extraction", model=str(tmp_path))
        tokenizer = tiny_tokenizer()
        for text, states in zip(TEXTS, extract(TEXTS), strict=True):
            with torch.no_grad():
                expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
            assert close(states, expected.numpy())


class TestSentenceTransformers:
    @pytest.fixture(autouse=True)
    def library(self) -> Any:
        return pytest.importorskip("sentence_transformers")

    @pytest.mark.parametrize("name", SETTINGS)
    def test_gives_equal_embeddings(self, name: str, tmp_path: Path, library: Any) -> None:
        model = saved(tmp_path, **SETTINGS[name])
        if model.config.cls_position == "last":  # the tiny tokenizer ends a text with [SEP]
            assert model.config.reads_first_token
        loaded = library.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
        assert close(loaded.encode(TEXTS, batch_size=2), model.encode(TEXTS))
        assert loaded.get_embedding_dimension() == 32

    @pytest.mark.parametrize("length", [None, 40])
    @pytest.mark.parametrize("encoder_type", ["roberta", "modernbert", "deberta-v2", "distilbert", "xlnet"])
    def test_gives_equal_embeddings_of_other_encoders(
        self, encoder_type: str, length: int | None, tmp_path: Path, library: Any
    ) -> None:
        model = saved(tmp_path / "first", encoder_type=encoder_type, max_seq_length=length)
        model.save_pretrained(tmp_path)
        loaded = library.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
        assert close(loaded.encode([*TEXTS, "w1 " * 100]), model.encode([*TEXTS, "w1 " * 100]))

    def test_knows_the_prompts_and_the_limit(self, tmp_path: Path, library: Any) -> None:
        prompts = {"query": "w80 w81 ", "passage": "w82 "}
        model = saved(tmp_path, prompts=prompts, default_prompt_name="passage", max_seq_length=6)
        loaded = library.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
        assert prompts.items() <= loaded.prompts.items()
        assert loaded.default_prompt_name == "passage" and loaded.max_seq_length == 6
        for options in (
            {},
            {"prompt_name": "query"},
            {"prompt": ""},
            {"truncate_dim": 5, "normalize_embeddings": True},
        ):
            assert close(loaded.encode(TEXTS, **options), model.encode(TEXTS, **options))

    def test_saves_and_loads_it_again(self, tmp_path: Path, library: Any) -> None:
        model = saved(tmp_path / "ours")
        loaded = library.SentenceTransformer(str(tmp_path / "ours"), trust_remote_code=True, device="cpu")
        loaded.save_pretrained(str(tmp_path / "theirs"))
        again = library.SentenceTransformer(str(tmp_path / "theirs"), trust_remote_code=True, device="cpu")
        assert close(again.encode(TEXTS), model.encode(TEXTS))
        back = LayerAttnPoolEncoder.from_pretrained(tmp_path / "theirs")
        assert close(back.encode(TEXTS), model.encode(TEXTS))

    def test_trains_it(self, tmp_path: Path, library: Any) -> None:
        loaded = library.SentenceTransformer(str(saved_at(tmp_path)), trust_remote_code=True, device="cpu").train()
        features = loaded.preprocess(TEXTS[:2]) if hasattr(loaded, "preprocess") else loaded.tokenize(TEXTS[:2])
        loaded(features)["sentence_embedding"].pow(2).sum().backward()
        named = dict(loaded.named_parameters())
        assert all(p.grad is not None for name, p in named.items() if ".pooler." in name)

    @pytest.mark.parametrize("given", [False, True])
    def test_is_made_of_a_model_in_memory(self, given: bool, tmp_path: Path, library: Any) -> None:
        model = sentence_model() if given else saved(tmp_path)
        tokenizer = tiny_tokenizer() if given else None
        made = to_sentence_transformer(model, tokenizer)
        assert isinstance(made, library.SentenceTransformer)
        assert close(made.encode(TEXTS), model.encode(TEXTS, tokenizer=tokenizer))
        with torch.no_grad():
            model.pooler.dense.weight.zero_()
        assert np.abs(made.encode(TEXTS)).max() > 0.01, "it has weights of its own"

    def test_is_not_made_without_a_tokenizer(self) -> None:
        with pytest.raises(ValueError, match="tokenizer=None: this model was not loaded from a checkpoint"):
            to_sentence_transformer(sentence_model())


def saved_at(folder: Path) -> Path:
    saved(folder)
    return folder


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"pip install modeling_hire\[sentence-transformers\]"):
        to_sentence_transformer(sentence_model(), tiny_tokenizer())


def test_a_deleted_folder_does_not_matter_to_a_loaded_model(tmp_path: Path) -> None:
    model = saved(tmp_path / "folder")
    expected = model.encode(TEXTS)
    shutil.rmtree(tmp_path / "folder")
    model.save_pretrained(tmp_path / "again")
    assert close(LayerAttnPoolEncoder.from_pretrained(tmp_path / "again").encode(TEXTS), expected)
