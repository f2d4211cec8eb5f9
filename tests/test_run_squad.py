"""`run_squad.py` from end to end on tiny questions: what it reports, and what it leaves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_runs import texts_of, weights
from tiny_squad import questions, save_encoder, squad, write_folder, write_squad
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from modeling_hire.evaluation.predict_spans import predict_spans
from modeling_hire.evaluation.squad import no_answer_scores, squad_scores


SIZES = {"max_length": 24, "doc_stride": 6, "max_query_length": 8, "max_answer_length": 5}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and questions."""
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    write_folder(folder / "data" / "squad_v2")
    write_folder(folder / "data" / "squad_v1", negatives=False)
    rows = [{name: row[name] for name in ("id", "context", "question")} for row in questions(6, seed=3)]
    (folder / "test.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture(scope="module")
def named(base: Path) -> tuple[Any, ...]:
    """Flags that name the encoder and the questions."""
    return ("--encoder", base / "encoder", "--task", "squad_v2", "--dataset_dir", base / "data")


@pytest.fixture(scope="module")
def version_2(base: Path, named: tuple[Any, ...]) -> Path:
    """A finished run of HIRE on questions of which some have no answer."""
    squad(base / "v2", *named, "--picture_examples", 6)
    return base / "v2"


@pytest.fixture(scope="module")
def version_1(base: Path) -> Path:
    """A finished run of the plain head on questions that all have one."""
    data = base / "data" / "squad_v1"
    files = ("--train_file", data / "train.json.gz", "--validation_file", data / "dev.json")
    squad(base / "v1", "--encoder", base / "encoder", "--model", "last", *files, "--test_file", base / "test.json")
    return base / "v1"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def answers_of(folder: Path, rows: list[dict[str, Any]], threshold: float | None) -> list[Any]:
    """What the saved model answers when it is asked question by question."""
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        predict_spans(model, tokenizer, row["question"], row["context"], null_threshold=threshold, **SIZES)
        for row in rows
    ]


DEV = questions(11, seed=2)


def test_files_of_a_finished_run(version_2: Path) -> None:
    names = {path.name for path in version_2.iterdir()}
    code = {"configuration_hire.py", "configuration_layerwise.py", "modeling_hire.py", "modeling_layerwise.py"}
    kept = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "run.json"}
    made = {"seed.json", "results.json", "results.md", "layer_importance.json", "layer_importance.png"}
    assert code | kept | made | {"predictions.json", "nbest_predictions.json", "null_odds.json"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".partial")) or "checkpoint" in name]


def test_results(version_2: Path) -> None:
    results = read(version_2 / "results.json")
    metrics = results["metrics"]["42"]["validation"]
    parts = ["HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"]
    best = ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    assert list(metrics) == ["exact", "f1", *parts, *best]
    assert metrics["best_f1"] >= metrics["f1"] >= metrics["exact"]
    references = {row["id"]: [answer["text"] for answer in row["answers"]] for row in DEV}
    assert results["no_answer"] == {"validation": no_answer_scores(references)}
    table = (version_2 / "results.md").read_text().splitlines()
    assert table[0] == "| split | metric | mean | std | seed 42 | no answer |"
    floor = 100 * sum(not texts for texts in references.values()) / len(DEV)
    assert any(line.startswith("| validation | f1 |") and line.endswith(f"| {floor:.4f} |") for line in table)
    log = read(version_2 / "seed.json")["log"]
    assert [entry["step"] for entry in log if "eval_f1" in entry and "eval_loss" in entry], "the best is chosen by F1"


def test_metrics_and_predictions_are_those_of_the_saved_model(version_2: Path) -> None:
    """Asked one by one, without padding and in another order, it gives the very answers that were written."""
    found = answers_of(version_2, DEV, threshold=0.0)
    predictions, odds = read(version_2 / "predictions.json"), read(version_2 / "null_odds.json")
    assert predictions == {row["id"]: answer.text for row, answer in zip(DEV, found, strict=True)}
    for row, answer in zip(DEV, found, strict=True):
        assert odds[row["id"]] == pytest.approx(answer.null_score - answer.score, abs=1e-4)
    references = {row["id"]: [answer["text"] for answer in row["answers"]] for row in DEV}
    best = {row["id"]: answer.n_best[0].text for row, answer in zip(DEV, found, strict=True)}
    reported = read(version_2 / "seed.json")["metrics"]["validation"]
    scores = squad_scores(best, references, odds)
    assert {name: scores[name] for name in reported} == pytest.approx(reported)
    assert squad_scores(predictions, references)["f1"] == pytest.approx(reported["f1"])


def test_n_best(version_2: Path) -> None:
    n_best, predictions = read(version_2 / "nbest_predictions.json"), read(version_2 / "predictions.json")
    contexts = {row["id"]: row["context"] for row in DEV}
    for key, entries in n_best.items():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        assert [entry["score"] for entry in entries] == sorted((e["score"] for e in entries), reverse=True)
        assert entries[0]["text"] == predictions[key]
        assert all(contexts[key][e["start"] : e["end"]] == e["text"] for e in entries if e["text"])
        assert all(len(entry["text"].split()) <= 5 for entry in entries)


def test_version_1_always_answers(version_1: Path, base: Path) -> None:
    rows = questions(11, seed=2, negatives=False)
    found = answers_of(version_1, rows, threshold=None)
    predictions = read(version_1 / "predictions.json")
    assert predictions == {row["id"]: answer.text for row, answer in zip(rows, found, strict=True)}
    assert all(predictions.values()) and not (version_1 / "null_odds.json").exists()
    results = read(version_1 / "results.json")
    metrics = results["metrics"]["42"]["validation"]
    assert list(metrics) == ["exact", "f1"] and results["no_answer"] == {}
    references = {row["id"]: [answer["text"] for answer in row["answers"]] for row in rows}
    assert squad_scores(predictions, references, version_2=False)["f1"] == pytest.approx(metrics["f1"])
    assert (version_1 / "results.md").read_text().splitlines()[0] == "| split | metric | mean | std | seed 42 |"
    test = read(version_1 / "test_predictions.json")
    asked = read(base / "test.json")
    expected = answers_of(version_1, asked, threshold=None)
    assert test == {row["id"]: answer.text for row, answer in zip(asked, expected, strict=True)}
    assert (version_1 / "test_nbest_predictions.json").is_file()


def test_card(version_2: Path, version_1: Path) -> None:
    _, metadata, text = (version_2 / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    metadata = yaml.safe_load(metadata)
    assert metadata["datasets"] == ["rajpurkar/squad_v2"] and metadata["pipeline_tag"] == "question-answering"
    assert {"exact", "f1"} <= set(metadata["metrics"]) and not any("thresh" in name for name in metadata["metrics"])
    assert "# SQuAD 2.0: HIRE (preset `fast`) on a bert encoder" in text and "trust_remote_code=True" in text
    assert "model = AutoModelForQuestionAnswering.from_pretrained(" in text
    assert "| `training questions` | 24 |" in text and "| `evaluated questions (validation)` | 11 |" in text
    assert "| `best_f1_thresh (validation)` |" in text
    text = (version_1 / "README.md").read_text(encoding="utf-8")
    assert "HIRE" not in text and "trust_remote_code" not in text and "AutoModelForQuestionAnswering" in text


def test_layer_picture(version_2: Path) -> None:
    report = read(version_2 / "layer_importance.json")
    assert report["task"] == "SQuAD 2.0" and report["num_examples"] == 6
    assert set(report["labels"]) <= {"answer", "no answer"}


def test_no_local_path_anywhere(version_2: Path, version_1: Path, base: Path) -> None:
    for folder in (version_2, version_1):
        assert not [name for name, text in texts_of(folder).items() if str(base) in text]


def test_evaluating_a_saved_checkpoint(version_2: Path, base: Path, tmp_path: Path) -> None:
    """With other batches and without training data; the same numbers, weights and answers."""
    dev = ("--task", "squad_v2", "--validation_file", base / "data" / "squad_v2" / "dev.json")
    flags = ("--model", version_2, *dev, "--num_train_epochs", 0, "--per_device_eval_batch_size", 3)
    results = squad(tmp_path / "again", *flags)
    before = read(version_2 / "seed.json")["metrics"]["validation"]
    assert results["metrics"]["42"]["validation"] == pytest.approx(before, abs=1e-4)
    assert read(tmp_path / "again" / "predictions.json") == read(version_2 / "predictions.json")
    assert all(torch.equal(value, weights(version_2)[name]) for name, value in weights(tmp_path / "again").items())
    # The threshold that was best then gives what was promised.
    squad(tmp_path / "best", *flags, "--null_score_diff_threshold", before["best_f1_thresh"] + 1e-5)
    again = read(tmp_path / "best" / "seed.json")["metrics"]["validation"]
    assert again["f1"] == pytest.approx(before["best_f1"])


def test_going_on_from_a_saved_checkpoint(version_2: Path, base: Path, tmp_path: Path) -> None:
    flags = ("--model", version_2, "--task", "squad_v2", "--dataset_dir", base / "data", "--num_train_epochs", 1)
    squad(tmp_path / "on", *flags)
    changed = [n for n, value in weights(tmp_path / "on").items() if not torch.equal(value, weights(version_2)[n])]
    assert "qa_outputs.weight" in changed


def test_predicting_alone(version_2: Path, base: Path, tmp_path: Path) -> None:
    flags = ("--model", version_2, "--task", "squad_v2", "--test_file", base / "test.json", "--num_train_epochs", 0)
    assert squad(tmp_path / "run", *flags) == {}
    asked = read(base / "test.json")
    expected = answers_of(version_2, asked, threshold=0.0)
    found = read(tmp_path / "run" / "test_predictions.json")
    assert found == {row["id"]: answer.text for row, answer in zip(asked, expected, strict=True)}
    assert read(tmp_path / "run" / "test_null_odds.json").keys() == found.keys()


def test_several_seeds(named: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = squad(tmp_path / "two", *named, "--seeds", 1, 2)
    assert results["folders"] == {"1": "seed-1", "2": "seed-2"}
    values = [results["metrics"][seed]["validation"]["f1"] for seed in ("1", "2")]
    floor = results["no_answer"]["validation"]["f1"]
    table = (tmp_path / "two" / "results.md").read_text()
    numbers = (statistics.mean(values), statistics.stdev(values), *values, floor)
    assert f"| validation | f1 | {' | '.join(f'{value:.4f}' for value in numbers)} |" in table.splitlines()
    assert table in capsys.readouterr().out
    assert (tmp_path / "two" / "seed-2" / "predictions.json").is_file()
    squad(tmp_path / "one", *named, "--seed", 2)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two" / "seed-2")
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_joined_files_and_caps(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = write_squad(tmp_path / "more.json", questions(9, seed=5))
    folder = base / "data" / "squad_v2"
    files = ("--train_file", folder / "train.json.gz", more, "--validation_file", folder / "dev.json")
    caps = ("--max_train_samples", 10, "--max_eval_samples", 5, "--num_train_epochs", 1)
    flags = ("--encoder", base / "encoder", *files, "--version_2_with_negative", "true", *caps)
    results = squad(tmp_path / "run", *flags)
    said = capsys.readouterr().out
    assert "train: max_train_samples keeps 10 of 33 questions" in said
    assert "validation: max_eval_samples keeps 5 of 11 questions" in said
    assert len(read(tmp_path / "run" / "predictions.json")) == 5
    # A local path says its last part and a checksum.
    assert [name.partition(" (")[0] for name in results["arguments"]["train_file"]] == ["train.json.gz", "more.json"]


@pytest.mark.parametrize("model", ["hire", "last"])
def test_lora(model: str, named: tuple[Any, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    results = squad(run, *named, "--peft", "lora", "--model", model, "--learning_rate", "1e-2")
    assert results["metrics"]["42"]["validation"]["f1"] >= 0
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in (run / "adapter").iterdir()}
    assert not any("lora" in name for name in weights(run)), "the model in the root is whole"
    found = answers_of(run, DEV, threshold=0.0)
    assert read(run / "predictions.json") == {row["id"]: a.text for row, a in zip(DEV, found, strict=True)}


def test_frozen_encoder(base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    squad(tmp_path / "run", *named, "--freeze_encoder", "true", "--num_train_epochs", 1)
    trained = weights(tmp_path / "run")
    before = {f"hire.encoder.{n.removeprefix('bert.')}": v for n, v in weights(base / "encoder").items()}
    shared = before.keys() & trained.keys()
    assert len(shared) > 20 and all(torch.equal(trained[name], before[name]) for name in shared)


def test_long_questions_are_cut_and_it_is_said(
    base: Path, named: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = questions(6, seed=6)
    rows[2]["question"] = "w1 " * 12
    file = write_squad(tmp_path / "long.json", rows)
    flags = (*named[:4], "--train_file", file, "--validation_file", file, "--num_train_epochs", 1)
    squad(tmp_path / "run", *flags)
    assert (
        "train: 1 of 6 questions were longer than max_query_length=8 tokens and were cut." in capsys.readouterr().out
    )


def test_empty_contexts_and_questions(base: Path, named: tuple[Any, ...], tmp_path: Path) -> None:
    rows = questions(6, seed=6)
    rows[2] |= {"context": "", "answers": []}
    rows[5] |= {"question": "", "context": " \n", "answers": []}
    file = write_squad(tmp_path / "odd.json", rows)
    flags = (*named[:4], "--train_file", file, "--validation_file", file, "--num_train_epochs", 1)
    squad(tmp_path / "run", *flags)
    predictions = read(tmp_path / "run" / "predictions.json")
    assert predictions[rows[2]["id"]] == predictions[rows[5]["id"]] == ""


def test_best_checkpoint_is_chosen_by_f1(named: tuple[Any, ...], tmp_path: Path) -> None:
    squad(tmp_path / "run", *named, "--keep_checkpoints", "true", "--save_total_limit", 9, "--num_train_epochs", 3)
    log = read(tmp_path / "run" / "seed.json")["log"]
    scores = {entry["step"]: entry["eval_f1"] for entry in log if "eval_f1" in entry}
    best = tmp_path / "run" / f"checkpoint-{max(scores, key=scores.get)}"
    saved = weights(tmp_path / "run")
    assert len(scores) == 3 and all(torch.equal(value, saved[name]) for name, value in weights(best).items())
