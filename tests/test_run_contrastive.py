"""`run_contrastive.py` from end to end on tiny data: what it reports, and what it leaves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import pearsonr, spearmanr
from test_hub import StandIn, hub  # noqa: F401
from tiny_contrastive import ALONE, QUICK, contrastive, data_flags, write_data
from tiny_models import assert_same
from tiny_runs import read_rows, save_encoder, texts_of, weights
from transformers import AutoModel, AutoTokenizer

import run_contrastive
from modeling_hire import LayerAttnPoolEncoder


SCHEMES = ("supervised", "self_supervised", "hybrid")
TEXTS = ["w1 w2 w3", "w4", "w50 w60 w70 w80 w20 w1", "w1 w2"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and data."""
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    return write_data(folder)


@pytest.fixture(scope="module")
def named(base: Path) -> tuple[Any, ...]:
    """Flags that name the encoder and the data."""
    return ("--encoder", base / "encoder", *data_flags(base, "supervised"))


@pytest.fixture(scope="module", params=SCHEMES)
def run(request: pytest.FixtureRequest, base: Path) -> tuple[str, Path]:
    """A scheme and a finished run of it, scored on a development and a test split."""
    folder = base / f"run-{request.param}"
    flags = ("--encoder", base / "encoder", *data_flags(base, request.param), "--test_file", base / "test.jsonl")
    contrastive(folder, *flags, "--picture_examples", 6)
    return request.param, folder


@pytest.fixture(scope="module")
def finished(base: Path, named: tuple[Any, ...]) -> Path:
    """A run of the supervised scheme."""
    contrastive(base / "finished", *named, "--export_detached", "mean", "--picture_examples", 5)
    return base / "finished"


def scores_of(folder: Path, path: Path) -> np.ndarray:
    """The cosine of each pair of a file, text by text and without padding."""
    model, tokenizer = LayerAttnPoolEncoder.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for row in read_rows(path):
        a, b = (
            model(**tokenizer(row[name], return_tensors="pt", truncation=True, max_length=16)).pooler_output[0]
            for name in ("sentence1", "sentence2")
        )
        found.append(torch.nn.functional.cosine_similarity(a, b, dim=0).item())
    return np.array(found)


# ---- a run of each scheme -------------------------------------------------------------------------------------------


def test_files_of_a_finished_run(run: tuple[str, Path]) -> None:
    _, folder = run
    names = {path.name for path in folder.iterdir()}
    code = {"configuration_layer_attn_pool.py", "modeling_layer_attn_pool.py", "modeling_text_encoding.py"}
    kept = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "run.json"}
    made = {"seed.json", "results.json", "results.md", "layer_importance.json", "layer_importance.png"}
    sentence = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    assert code | kept | made | sentence <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl")) or "checkpoint" in name]


def test_metrics_are_those_of_the_saved_model(run: tuple[str, Path], base: Path) -> None:
    """On every pair, those of an incomplete last batch too."""
    _, folder = run
    results = json.loads((folder / "results.json").read_text())
    metrics = results["metrics"]["42"]
    assert metrics == json.loads((folder / "seed.json").read_text())["metrics"]
    assert list(metrics) == ["validation", "test"]
    for split, file in (("validation", "dev.jsonl"), ("test", "test.jsonl")):
        gold, found = [row["score"] for row in read_rows(base / file)], scores_of(folder, base / file)
        assert metrics[split]["spearman"] == pytest.approx(spearmanr(found, gold).statistic, abs=1e-6)
        assert metrics[split]["pearson"] == pytest.approx(pearsonr(found, gold).statistic, abs=1e-4)


def test_the_best_checkpoint_by_spearman_is_kept(base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--num_train_epochs", 4, "--keep_checkpoints", "true", "--save_total_limit", 9)
    contrastive(tmp_path / "run", *named, *flags)
    log = json.loads((tmp_path / "run" / "seed.json").read_text())["log"]
    scores = {entry["step"]: entry["eval_spearman"] for entry in log if "eval_spearman" in entry}
    assert list(scores) == [3, 6, 9, 12]
    best = tmp_path / "run" / f"checkpoint-{max(scores, key=scores.get)}"
    assert_same(weights(tmp_path / "run"), weights(best))


def test_embeddings_everywhere(run: tuple[str, Path]) -> None:
    """Through the class with the saved tokenizer, and through sentence-transformers."""
    _, folder = run
    expected = LayerAttnPoolEncoder.from_pretrained(folder).encode(TEXTS)
    assert expected.shape == (4, 32) and np.ptp(expected, axis=0).max() > 1e-2
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is missing")
    model = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)


def test_no_local_path_anywhere(run: tuple[str, Path], base: Path) -> None:
    leaks = [name for name, text in texts_of(run[1]).items() if str(base) in text or "/tmp" in text]
    assert not leaks


def test_card(run: tuple[str, Path]) -> None:
    scheme, folder = run
    _, head, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["pipeline_tag"] == "sentence-similarity" and "custom_code" in metadata["tags"]
    assert "datasets" not in metadata and "model-index" not in metadata, "files of one's own have no name on the Hub"
    assert metadata["metrics"] == ["pearson", "spearman"]
    assert "Sentence encoder (pooler `layer_attn`) on a bert encoder" in text
    assert "AutoModel.from_pretrained(" in text and "SentenceTransformer(name, revision=revision, trust" in text
    assert "model.encode([" in text and "| hidden state | mean weight |" in text
    assert f"| `scheme` | {scheme} |" in text and "| `training rows` | 24 |" in text and "| test | " in text


def test_layer_picture(run: tuple[str, Path]) -> None:
    report = json.loads((run[1] / "layer_importance.json").read_text())
    assert report["layers"] == [0, 1, 2, 3] and report["num_examples"] == 6 and report["weighting"] == "layer_attn"
    assert sum(report["mean"]) == pytest.approx(1, abs=1e-4)


# ---- what a run may start from --------------------------------------------------------------------------------------


def test_going_on_from_a_saved_model(finished: Path, base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--model", finished, *named[2:], "--num_train_epochs", 1)
    contrastive(tmp_path / "on", *flags)
    one, two = weights(finished), weights(tmp_path / "on")
    assert one.keys() == two.keys() and [name for name in one if not torch.equal(one[name], two[name])]
    assert not [name for name, text in texts_of(tmp_path / "on").items() if str(base) in text]


def test_evaluating_a_saved_model_needs_no_training_data(finished: Path, base: Path, tmp_path: Path) -> None:
    flags = ("--model", finished, "--validation_file", base / "dev.jsonl", "--num_train_epochs", 0)
    results = contrastive(tmp_path / "again", *flags)
    assert results["metrics"]["42"] == json.loads((finished / "seed.json").read_text())["metrics"]
    assert_same(weights(tmp_path / "again"), weights(finished))
    only = contrastive(tmp_path / "test", "--model", finished, "--test_file", base / "dev.jsonl", *flags[4:])
    assert only["metrics"]["42"]["test"] == results["metrics"]["42"]["validation"]


def test_evaluating_a_plain_encoder(base: Path, tmp_path: Path) -> None:
    """A pooling without weights needs no training."""
    flags = ("--encoder", base / "encoder", "--validation_file", base / "dev.jsonl", "--num_train_epochs", 0)
    results = contrastive(tmp_path / "run", *flags, "--pooler", "mean")
    encoder, tokenizer = (
        AutoModel.from_pretrained(base / "encoder").eval(),
        AutoTokenizer.from_pretrained(base / "encoder"),
    )
    found, rows = [], read_rows(base / "dev.jsonl")
    for row in rows:
        a, b = (
            encoder(**tokenizer(row[name], return_tensors="pt")).last_hidden_state[0].mean(0)
            for name in ("sentence1", "sentence2")
        )
        found.append(torch.nn.functional.cosine_similarity(a, b, dim=0).item())
    expected = spearmanr(found, [row["score"] for row in rows]).statistic
    assert results["metrics"]["42"]["validation"]["spearman"] == pytest.approx(expected, abs=1e-6)


def test_lora(named: tuple[Any, ...], tmp_path: Path) -> None:
    contrastive(tmp_path / "run", *named, "--peft", "lora", "--export_detached", "cls", "--num_train_epochs", 1)
    adapter = tmp_path / "run" / "adapter"
    assert (adapter / "adapter_model.safetensors").is_file() and (adapter / "adapter_config.json").is_file()
    model = LayerAttnPoolEncoder.from_pretrained(tmp_path / "run")
    assert not [name for name in model.state_dict() if "lora" in name]
    assert model.encode(TEXTS).shape == (4, 32)
    plain = AutoModel.from_pretrained(tmp_path / "run" / "detached").state_dict()
    for name, value in model.encoder.state_dict().items():
        torch.testing.assert_close(plain[name], value, atol=0, rtol=0)
    results = json.loads((tmp_path / "run" / "seed.json").read_text())["metrics"]
    flags = ("--model", tmp_path / "run", *named[2:], "--num_train_epochs", 0)
    again = contrastive(tmp_path / "again", *flags)["metrics"]["42"]["validation"]
    assert again == pytest.approx(results["validation"], abs=1e-4)


def test_lora_with_a_pooler_without_weights(named: tuple[Any, ...], tmp_path: Path) -> None:
    contrastive(tmp_path / "run", *named, "--peft", "lora", "--pooler", "mean", "--num_train_epochs", 1)
    assert LayerAttnPoolEncoder.from_pretrained(tmp_path / "run").encode("w1").shape == (32,)


@pytest.mark.parametrize("pooler", ["layer_attn", "static_mix", "cls", "cls_and_mean"])
def test_frozen_encoder(pooler: str, base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    contrastive(tmp_path / "run", *named, "--freeze_encoder", "true", "--pooler", pooler, "--num_train_epochs", 1)
    before, after = AutoModel.from_pretrained(base / "encoder").state_dict(), weights(tmp_path / "run")
    inside = {name.removeprefix("encoder."): value for name, value in after.items() if name.startswith("encoder.")}
    assert inside and all(torch.equal(value, before[name]) for name, value in inside.items())
    assert any(name.startswith("pooler.") for name in after)


@pytest.mark.parametrize("tie", [False, True])
def test_duplicated_layers(tie: bool, named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--duplicate", "first:1", "--tie", tie, "--num_train_epochs", 1, "--picture_examples", 4)
    contrastive(tmp_path / "run", *named, *flags, *(() if tie else ("--export_detached", "mean")))
    model = LayerAttnPoolEncoder.from_pretrained(tmp_path / "run")
    config = model.config
    assert config.num_executed_layers == 4 and config.layer_indices == [0, 1, 2, 3, 4]
    assert config.encoder_config.num_hidden_layers == (3 if tie else 4)
    assert config.layer_plan == ([0, 0, 1, 2] if tie else None)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "plan `first:1`" in card and ("shared weights" in card) == tie
    if not tie:
        assert AutoModel.from_pretrained(tmp_path / "run" / "detached").config.num_hidden_layers == 4


# ---- poolers, and the plain encoder beside them ---------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_detached_encoder(pooling: str, named: tuple[Any, ...], tmp_path: Path) -> None:
    """It loads with transformers alone, and with sentence-transformers."""
    contrastive(tmp_path / "run", *named, "--export_detached", pooling, "--num_train_epochs", 1)
    folder = tmp_path / "run" / "detached"
    assert not list(folder.glob("*.py")) and "auto_map" not in json.loads((folder / "config.json").read_text())
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert type(model).__module__.startswith("transformers.models.bert")
    assert model.config.sentence_pooling == pooling
    trained = weights(tmp_path / "run")
    for name, value in model.state_dict().items():
        if f"encoder.{name}" in trained:
            assert torch.equal(value, trained[f"encoder.{name}"]), name
    states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    expected = torch.stack([state[0] if pooling == "cls" else state.mean(0) for state in states]).detach().numpy()
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is missing")
    found = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_detached_at_inference(base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    """Trained with layer attention and scored without."""
    contrastive(tmp_path / "run", *named, "--detach_at_inference", "mean", "--export_detached", "mean")
    encoder = AutoModel.from_pretrained(tmp_path / "run" / "detached").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "detached")
    model = LayerAttnPoolEncoder.from_pretrained(tmp_path / "run")
    for text, embedding in zip(TEXTS, model.encode(TEXTS), strict=True):
        state = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(embedding, state.detach().numpy(), atol=1e-5)
    metrics = json.loads((tmp_path / "run" / "seed.json").read_text())["metrics"]["validation"]
    gold = [row["score"] for row in read_rows(base / "dev.jsonl")]
    found = scores_of(tmp_path / "run", base / "dev.jsonl")
    assert metrics["spearman"] == pytest.approx(spearmanr(found, gold).statistic, abs=1e-6)


def test_switches_are_in_the_config(named: tuple[Any, ...], tmp_path: Path) -> None:
    switches = {"query": "mean_all", "key_value": "cls_all", "score_scale": "sqrt_d", "activation": "relu"}
    given = [part for name, value in switches.items() for part in (f"--{name}", value)]
    flags = (*given, "--concat_last_cls", "false", "--include_embeddings", "false", "--num_train_epochs", 1)
    contrastive(tmp_path / "run", *named, *flags)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {name: config[name] for name in switches} == switches
    assert config["concat_last_cls"] is False and config["layer_indices"] == [1, 2, 3]


# ---- seeds, cards, publishing ---------------------------------------------------------------------------------------


def test_several_seeds(named: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*named, "--num_train_epochs", 1)
    results = contrastive(tmp_path / "two", *flags, "--seeds", 1, 2)
    assert results["folders"] == {"1": "seed-1", "2": "seed-2"} and results["baseline"] == {}
    values = [results["metrics"][seed]["validation"]["spearman"] for seed in ("1", "2")]
    numbers = " | ".join(f"{v:.4f}" for v in (statistics.mean(values), statistics.stdev(values), *values))
    table = (tmp_path / "two" / "results.md").read_text()
    assert table.splitlines()[:3] == [
        "| split | metric | mean | std | seed 1 | seed 2 |",
        "| --- " * 6 + "|",
        f"| validation | spearman | {numbers} |",
    ]
    assert table in capsys.readouterr().out
    # A seed gives the same whatever ran before it.
    contrastive(tmp_path / "one", *flags, "--seed", 2)
    assert_same(weights(tmp_path / "one"), weights(tmp_path / "two" / "seed-2"))


def test_what_is_published(named: tuple[Any, ...], tmp_path: Path, hub: list[StandIn]) -> None:  # noqa: F811
    run = tmp_path / "my-embeddings"
    flags = ("--push_to_hub", "true", "--export_detached", "mean", "--keep_checkpoints", "true")
    contrastive(run, *named, *flags, "--num_train_epochs", 1)
    ((repository, folder, files),) = hub[0].uploads
    assert repository == "somebody/my-embeddings" and folder == run
    needed = {"config.json", "model.safetensors", "tokenizer.json", "modules.json", "sentence_bert_config.json"}
    assert needed | {"modeling_layer_attn_pool.py", "config_sentence_transformers.json", "README.md"} <= set(files)
    assert not [
        name for name in files if name.startswith(("detached", "checkpoint")) or name.endswith((".bin", ".pt"))
    ]
    assert 'name, revision = "somebody/my-embeddings", "<commit sha>"' in (run / "README.md").read_text()


def test_scores_of_a_part_of_a_split_say_so(base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--max_eval_samples", 5, "--test_file", base / "test.jsonl", "--num_train_epochs", 1)
    contrastive(tmp_path / "run", *named, *flags)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| validation (5 rows of it) |" in card and "| test (5 rows of it) |" in card


def test_without_evaluation(base: Path, tmp_path: Path) -> None:
    flags = ("--encoder", base / "encoder", "--train_file", base / "triplets.jsonl", *ALONE)
    assert contrastive(tmp_path / "run", *flags) == {}
    assert "Not evaluated." in (tmp_path / "run" / "README.md").read_text()
    # A test split alone is scored at the end.
    results = contrastive(tmp_path / "test", *flags, "--test_file", base / "test.jsonl")
    assert results["metrics"]["42"].keys() == {"test"}


def test_a_yaml_file(base: Path, tmp_path: Path) -> None:
    values = {
        "scheme": "hybrid",
        "train_file": [str(base / "triplets.jsonl"), str(base / "triplets.jsonl")],
        "unlabelled_file": str(base / "texts.txt"),
        "validation_file": str(base / "dev.jsonl"),
        "score_range": [0, 5],
        "encoder": str(base / "encoder"),
        "matryoshka_dims": [8, 32],
        "two_way": True,
        "cache_chunk": 16,
        "num_train_epochs": 1,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    run_contrastive.main([str(tmp_path / "run.yaml"), *QUICK, "--output_dir", str(tmp_path / "run")])
    said = json.loads((tmp_path / "run" / "run.json").read_text())["arguments"]
    assert said["matryoshka_dims"] == [8, 32] and said["cache_chunk"] == 16 and said["two_way"] is True
    assert "| `training rows` | 48 |" in (tmp_path / "run" / "README.md").read_text()


def test_bf16(named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--bf16", "true", "--num_train_epochs", 1, "--mlm_weight", "0.1")
    contrastive(tmp_path / "run", *named, *flags)
    assert {value.dtype for value in weights(tmp_path / "run").values()} == {torch.float32}
