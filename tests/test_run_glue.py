"""`run_glue.py` from end to end on tiny data: what it reports, and what it leaves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from tiny_runs import (
    PAIRS,
    answers,
    glue,
    read_rows,
    save_encoder,
    sentence,
    texts_of,
    weights,
    write_rows,
    write_task,
)
from transformers import AutoModelForSequenceClassification, pipeline


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and small tasks."""
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    for task in ("cola", "mnli", "stsb"):
        write_task(folder / "data", task)
    return folder


@pytest.fixture(scope="module")
def named(base: Path) -> tuple[Any, ...]:
    """Flags that name the encoder and the data."""
    return ("--encoder", base / "encoder", "--dataset_dir", base / "data")


@pytest.fixture(scope="module")
def mnli(base: Path, named: tuple[Any, ...]) -> Path:
    """A finished run of HIRE on MNLI."""
    glue(base / "mnli", *named, "--task", "mnli", "--picture_examples", 6)
    return base / "mnli"


@pytest.fixture(scope="module")
def stsb(base: Path, named: tuple[Any, ...]) -> Path:
    """A finished run of the plain head on STS-B."""
    glue(base / "stsb", *named, "--task", "stsb", "--model", "last")
    return base / "stsb"


def predictions(path: Path) -> dict[int, str]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header == "index\tprediction"
    return {int(index): value for index, value in (line.split("\t") for line in lines)}


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """Metadata and text of a model card."""
    _, metadata, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_files_of_a_finished_run(mnli: Path) -> None:
    names = {path.name for path in mnli.iterdir()}
    code = {"configuration_hire.py", "configuration_layerwise.py", "modeling_hire.py", "modeling_layerwise.py"}
    kept = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "run.json"}
    made = {"seed.json", "results.json", "results.md", "layer_importance.json", "layer_importance.png"}
    assert code | kept | made | {"MNLI-m.tsv", "MNLI-mm.tsv"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl")) or "checkpoint" in name]


def test_results_have_both_splits_of_mnli(mnli: Path) -> None:
    results = json.loads((mnli / "results.json").read_text())
    splits = {"validation_matched", "validation_mismatched"}
    assert results["metrics"].keys() == {"42"} and results["metrics"]["42"].keys() == splits
    assert all(values.keys() == {"accuracy"} for values in results["metrics"]["42"].values())
    assert results["majority"].keys() == splits
    assert results["folders"] == {"42": "."}
    assert results["arguments"]["task"] == "mnli"
    seed = json.loads((mnli / "seed.json").read_text())
    assert seed["seed"] == 42 and seed["metrics"] == results["metrics"]["42"] and seed["train_seconds"] > 0
    assert [entry["step"] for entry in seed["log"] if "eval_accuracy" in entry] == [3, 6]
    assert json.loads((mnli / "run.json").read_text()) == {"seed": 42, "arguments": results["arguments"]}
    table = (mnli / "results.md").read_text()
    assert table.splitlines()[0] == "| split | metric | mean | std | seed 42 | majority |"
    assert "| validation_mismatched | accuracy |" in table


def test_metric_is_that_of_the_saved_model(mnli: Path, base: Path) -> None:
    rows = read_rows(base / "data" / "mnli" / "validation_mismatched.jsonl")
    found = answers(mnli, [[row[column] for column in PAIRS["mnli"]] for row in rows]).argmax(-1).tolist()
    right = statistics.mean(answer == row["label"] for answer, row in zip(found, rows, strict=True))
    reported = json.loads((mnli / "seed.json").read_text())["metrics"]["validation_mismatched"]["accuracy"]
    assert reported == pytest.approx(right)


def test_predictions_are_in_the_order_of_the_rows(mnli: Path, base: Path) -> None:
    for split, file in (("test_matched", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")):
        rows = read_rows(base / "data" / "mnli" / f"{split}.jsonl")
        found = answers(mnli, [[row[column] for column in PAIRS["mnli"]] for row in rows]).argmax(-1).tolist()
        names = ("entailment", "neutral", "contradiction")
        assert predictions(mnli / file) == {row["idx"]: names[answer] for row, answer in zip(rows, found, strict=True)}


def test_scores_are_in_the_order_of_the_rows(stsb: Path, base: Path) -> None:
    rows = read_rows(base / "data" / "stsb" / "test.jsonl")
    scores = answers(stsb, [[row[column] for column in PAIRS["stsb"]] for row in rows]).flatten()
    assert scores.std() > 0.02, f"the rows must be told apart: {scores}"
    written = predictions(stsb / "STS-B.tsv")
    assert list(written) == [row["idx"] for row in rows]
    found = torch.tensor([float(value) for value in written.values()])
    torch.testing.assert_close(found, scores.clamp(0, 5), atol=1e-3, rtol=0)


def test_regression_reports_correlations(stsb: Path) -> None:
    metrics = json.loads((stsb / "seed.json").read_text())["metrics"]["validation"]
    assert metrics.keys() == {"pearson", "spearman", "combined_score"}
    config = json.loads((stsb / "config.json").read_text())
    assert config["problem_type"] == "regression" and "auto_map" not in config


def test_labels_are_in_the_config(mnli: Path) -> None:
    config = json.loads((mnli / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
    assert config["problem_type"] == "single_label_classification"


def test_no_local_path_anywhere(mnli: Path, stsb: Path, base: Path) -> None:
    for folder in (mnli, stsb):
        leaks = [name for name, text in texts_of(folder).items() if str(base) in text or "/tmp" in text]
        assert not leaks


def test_card(mnli: Path) -> None:
    metadata, text = card_of(mnli)
    assert metadata["datasets"] == ["nyu-mll/glue"] and metadata["metrics"] == ["accuracy"]
    assert metadata["pipeline_tag"] == "text-classification" and metadata["library_name"] == "transformers"
    results = metadata["model-index"][0]["results"]
    assert {entry["dataset"]["split"] for entry in results} == {"validation_matched", "validation_mismatched"}
    assert "license" not in metadata  # the weights' licence is for their owner to say
    assert "# MNLI: HIRE (preset `fast`) on a bert encoder" in text
    assert 'name, revision = "mnli", "<commit sha>"' in text and "trust_remote_code=True" in text
    assert "| hidden state | mean weight |" in text and "![Layer weights by example](layer_importance.png)" in text
    assert "| `learning rate` | 0.001 |" in text and "| `training rows` | 24 |" in text


def test_card_of_the_plain_head_says_nothing_of_hire(stsb: Path) -> None:
    metadata, text = card_of(stsb)
    assert "HIRE" not in text and "trust_remote_code" not in text and "custom_code" not in metadata["tags"]
    assert 'name, revision = "stsb", "<commit sha>"' in text


def test_layer_picture(mnli: Path) -> None:
    report = json.loads((mnli / "layer_importance.json").read_text())
    assert report["task"] == "MNLI" and report["layers"] == [1, 2] and report["num_examples"] == 6
    assert report["split"] == "validation_matched" and sum(report["mean"]) == pytest.approx(1, abs=1e-4)


def test_saved_model_loads_and_classifies(mnli: Path) -> None:
    classify = pipeline("text-classification", model=str(mnli), device="cpu")
    assert classify({"text": "w1 w20", "text_pair": "w3"})["label"] in ("entailment", "neutral", "contradiction")


def test_evaluating_a_saved_checkpoint_needs_no_training_data(mnli: Path, base: Path, tmp_path: Path) -> None:
    for split in ("validation_matched", "validation_mismatched", "test_matched"):
        write_rows(tmp_path / f"{split}.jsonl", read_rows(base / "data" / "mnli" / f"{split}.jsonl"))
    flags = ("--model", mnli, "--task", "mnli", "--dataset_dir", tmp_path, "--num_train_epochs", 0)
    results = glue(tmp_path / "again", *flags)
    assert results["metrics"]["42"] == json.loads((mnli / "seed.json").read_text())["metrics"]
    assert results["majority"] == {}
    assert predictions(tmp_path / "again" / "MNLI-m.tsv") == predictions(mnli / "MNLI-m.tsv")
    assert all(torch.equal(value, weights(mnli)[name]) for name, value in weights(tmp_path / "again").items())


def test_predicting_alone(mnli: Path, base: Path, tmp_path: Path) -> None:
    """The user's own file without labels, and a model that knows its classes."""
    rows = [{"a": row["premise"], "b": row["hypothesis"]} for row in read_rows(base / "data/mnli/test_matched.jsonl")]
    file = write_rows(tmp_path / "mine.jsonl", rows)
    flags = ("--test_file", file, "--text_column", "a", "--text_pair_column", "b", "--num_train_epochs", 0)
    assert glue(tmp_path / "run", "--model", mnli, *flags) == {}
    expected = predictions(mnli / "MNLI-m.tsv")
    assert list(predictions(tmp_path / "run" / "mine.tsv").values()) == list(expected.values())


def test_labels_in_another_order_are_matched_by_name(mnli: Path, base: Path, tmp_path: Path) -> None:
    """A checkpoint whose head has its rows turned, and says so, gives the same answers."""
    turned, order = tmp_path / "turned", [2, 0, 1]
    model = AutoModelForSequenceClassification.from_pretrained(mnli)
    names = [model.config.id2label[i].upper() for i in range(3)]
    model.config.id2label = {place: names[old] for place, old in enumerate(order)}
    model.config.label2id = {name: place for place, name in model.config.id2label.items()}
    model.save_pretrained(turned)
    state = weights(turned)
    for name in ("classifier.out_proj.weight", "classifier.out_proj.bias"):
        state[name] = state[name][order].contiguous()
    save_file(state, turned / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (turned / name).write_bytes((mnli / name).read_bytes())
    flags = ("--task", "mnli", "--dataset_dir", base / "data", "--picture_examples", 4)
    results = glue(tmp_path / "again", "--model", turned, *flags, "--num_train_epochs", 0)
    assert results["metrics"]["42"] == json.loads((mnli / "seed.json").read_text())["metrics"]
    assert predictions(tmp_path / "again" / "MNLI-mm.tsv") == predictions(mnli / "MNLI-mm.tsv")
    trained = glue(tmp_path / "on", "--model", turned, *flags)
    config = json.loads((tmp_path / "on" / "config.json").read_text())
    assert trained["metrics"]["42"].keys() == results["metrics"]["42"].keys()
    assert config["id2label"]["0"] == "CONTRADICTION"
    assert not [name for name, text in texts_of(tmp_path / "on").items() if str(tmp_path) in text]


def test_several_seeds(named: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*named, "--task", "cola", "--weighting", "static", "--fusion_num_layers", 0)
    results = glue(tmp_path / "two", *flags, "--seeds", 1, 2)
    assert results["folders"] == {"1": "seed-1", "2": "seed-2"}
    values = [results["metrics"][seed]["validation"]["matthews_correlation"] for seed in ("1", "2")]
    table = (tmp_path / "two" / "results.md").read_text()
    mean, spread = statistics.mean(values), statistics.stdev(values)
    numbers = " | ".join(f"{value:.4f}" for value in (mean, spread, *values, 0))
    row = f"| validation | matthews_correlation | {numbers} |"
    assert table.splitlines() == [
        "| split | metric | mean | std | seed 1 | seed 2 | majority |",
        "| --- " * 7 + "|",
        row,
    ]
    assert table in capsys.readouterr().out
    assert not (tmp_path / "two" / "model.safetensors").exists()
    assert weights(tmp_path / "two" / "seed-1").keys() == weights(tmp_path / "two" / "seed-2").keys()
    # A seed gives the same whatever ran before it.
    glue(tmp_path / "one", *flags, "--seed", 2)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two" / "seed-2")
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert any(not torch.equal(first[name], value) for name, value in weights(tmp_path / "two" / "seed-1").items())


def test_own_csv_and_json_with_names_for_labels(base: Path, tmp_path: Path) -> None:
    import random

    numbers, names = random.Random(1), ("bad", "so, so", "very good")
    rows = [{"review": sentence(numbers, i % 3), "stars": names[i % 3]} for i in range(15)]
    # As a spreadsheet on Windows writes it: a mark for UTF-8, quotes, and its own line ends.
    lines = ["review,stars", *(f'"{row["review"]}, ""w5""","{row["stars"]}"' for row in rows)]
    (tmp_path / "train.csv").write_bytes("\ufeff".encode() + "\r\n".join(lines).encode() + b"\r\n")
    (tmp_path / "dev.json").write_text(json.dumps(rows[:7]))
    write_rows(tmp_path / "test.jsonl", [{"review": row["review"]} for row in rows[7:]])
    files = ("--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "dev.json")
    flags = ("--encoder", base / "encoder", *files, "--test_file", tmp_path / "test.jsonl", "--label_column", "stars")
    results = glue(tmp_path / "run", *flags)
    assert results["metrics"]["42"]["validation"].keys() == {"accuracy", "f1_macro"}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "so, so", "2": "very good"}
    found = answers(tmp_path / "run", [[row["review"]] for row in rows[7:]]).argmax(-1).tolist()
    assert list(predictions(tmp_path / "run" / "train.tsv").items()) == list(enumerate(names[i] for i in found))
    assert card_of(tmp_path / "run")[0].get("datasets") is None


def test_own_scores(base: Path, tmp_path: Path) -> None:
    lines = ["text,score", *(f"w{i} w{2 * i},{i - 7}.5" for i in range(14))]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    files = ("--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "train.csv")
    results = glue(tmp_path / "run", "--encoder", base / "encoder", *files, "--picture_examples", 5)
    assert results["metrics"]["42"]["validation"].keys() == {"pearson", "spearman", "combined_score"}
    # Goes on from the checkpoint, which knows that it predicts scores.
    flags = ("--model", tmp_path / "run", *files[2:], "--num_train_epochs", 0)
    again = glue(tmp_path / "again", *flags)
    for name, value in results["metrics"]["42"]["validation"].items():
        assert again["metrics"]["42"]["validation"][name] == pytest.approx(value, abs=1e-6)


def test_long_texts_are_cut_and_it_is_said(
    named: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"sentence": "w1 " * (80 if i == 3 else 3), "label": i % 2, "idx": i} for i in range(6)]
    for split in ("train", "validation"):
        write_rows(tmp_path / "cola" / f"{split}.jsonl", rows)
    flags = (*named[:2], "--task", "cola", "--dataset_dir", tmp_path, "--num_train_epochs", 1)
    glue(tmp_path / "run", *flags)
    said = capsys.readouterr().out
    assert "max_length=128 was lowered to 64" in said
    assert "train: 1 of 6 texts were longer than max_length=64 tokens and were cut." in said


def test_without_evaluation_and_checkpoints(named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false")
    results = glue(tmp_path / "run", *named, "--task", "cola", *flags)
    assert results["metrics"]["42"]["validation"].keys() == {"matthews_correlation"}


def test_bf16(named: tuple[Any, ...], tmp_path: Path) -> None:
    glue(tmp_path / "run", *named, "--task", "cola", "--bf16", "true", "--num_train_epochs", 1, "--preset", "paper")
    assert {value.dtype for value in weights(tmp_path / "run").values()} == {torch.float32}


def test_best_checkpoint_by_another_metric(named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--metric_for_best_model", "loss", "--keep_checkpoints", "true", "--num_train_epochs", 3)
    glue(tmp_path / "run", *named, "--task", "cola", *flags)
    log = json.loads((tmp_path / "run" / "seed.json").read_text())["log"]
    losses = {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    best = tmp_path / "run" / f"checkpoint-{min(losses, key=losses.get)}"
    saved = weights(tmp_path / "run")
    assert all(torch.equal(value, saved[name]) for name, value in weights(best).items())


@pytest.mark.parametrize("model", ["hire", "last"])
@pytest.mark.parametrize("tie", [False, True])
def test_duplicated_layers(model: str, tie: bool, named: tuple[Any, ...], tmp_path: Path) -> None:
    flags = ("--model", model, "--preset", "fast", "--duplicate", "first:2", "--tie", tie, "--num_train_epochs", 1)
    glue(tmp_path / "run", *named, "--task", "cola", *flags)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    config = loaded.config
    assert getattr(config, "num_executed_layers", config.num_hidden_layers) == 5
    inner = getattr(config, "encoder_config", config)
    assert inner.num_hidden_layers == (3 if tie else 5)
    assert (getattr(config, "layer_plan", None) == [0, 0, 1, 1, 2]) == tie
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "plan `first:2`" in card and ("shared weights" in card) == tie
    assert (tmp_path / "run" / "modeling_duplicated.py").exists() == (tie and model == "last")
