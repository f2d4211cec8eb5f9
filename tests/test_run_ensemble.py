"""`--ensemble` of both scripts, from end to end: against the members' own runs, and against loops over texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import accuracy_score, matthews_corrcoef
from tiny_ensembles import member, named, save
from tiny_models import tiny_tokenizer
from tiny_runs import answers, glue, read_rows, save_encoder, write_rows, write_task
from tiny_spans import wordpiece
from tiny_squad import questions, squad, write_folder
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import run_glue
import run_squad
from modeling_hire.evaluation.ensembles import EnsembleForQuestionAnswering
from modeling_hire.evaluation.squad import squad_scores


MNLI = ("entailment", "neutral", "contradiction")
QUIET = ("--use_cpu", "true", "--disable_tqdm", "true")
WINDOWS = ("--max_length", "24", "--doc_stride", "6", "--max_query_length", "8", "--max_answer_length", "5")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def ensemble(script: Any, output: Path, *flags: Any) -> dict[str, Any]:
    script.main([*QUIET, "--output_dir", str(output), *map(str, flags)])
    return read(output / "results.json") if (output / "results.json").is_file() else {}


def refused(script: Any, output: Path, *flags: Any) -> str:
    before = sorted(output.rglob("*")) if output.exists() else None
    with pytest.raises(SystemExit) as caught:
        ensemble(script, output, *flags)
    assert (sorted(output.rglob("*")) if output.exists() else None) == before, "nothing may be left behind"
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, data, and finished runs of HIRE and of the plain head on deeper and shallower encoders."""
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    write_task(folder / "data")
    write_task(folder / "data", "mnli")
    write_folder(folder / "questions")
    (folder / "test.json").write_text(
        json.dumps([{k: row[k] for k in ("id", "context", "question")} for row in questions(6, seed=3)])
    )
    for model, duplicate in (("hire", "all:1"), ("last", "first:2")):
        how = ("--encoder", folder / "encoder", "--model", model, "--duplicate", duplicate)
        glue(folder / model / "run", "--task", "cola", "--dataset_dir", folder / "data", *how)
        flags = ("--dataset_dir", folder / "questions", "--version_2_with_negative", "true", *how)
        squad(folder / f"{model}-squad", *flags)
    return folder


def test_classes_against_the_members_runs(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    members = [base / "hire" / "run", base / "last" / "run"]
    data = ("--task", "cola", "--dataset_dir", base / "data")
    results = ensemble(run_glue, tmp_path / "out", *data, "--ensemble", *members)
    shown = capsys.readouterr().out
    assert results["members"] == ["hire/run", "last/run"]
    assert list(results["metrics"]) == ["hire/run", "last/run", "ensemble"]
    for folder, name in zip(members, results["members"], strict=True):
        (own,) = read(folder / "results.json")["metrics"].values()
        assert results["metrics"][name]["validation"] == pytest.approx(own["validation"])

    def predicted(split: str) -> tuple[np.ndarray, list[Any]]:
        rows = read_rows(base / "data" / "cola" / f"{split}.jsonl")
        probabilities = sum(answers(folder, [[row["sentence"]] for row in rows]).softmax(-1) for folder in members)
        return probabilities.argmax(-1).numpy(), rows

    classes, rows = predicted("validation")
    expected = matthews_corrcoef([row["label"] for row in rows], classes)
    assert results["metrics"]["ensemble"]["validation"]["matthews_correlation"] == pytest.approx(expected)
    classes, rows = predicted("test")
    lines = [line.split("\t") for line in (tmp_path / "out" / "CoLA.tsv").read_text().splitlines()[1:]]
    assert lines == [[str(row["idx"]), str(label)] for row, label in zip(rows, classes, strict=True)]

    table = (tmp_path / "out" / "results.md").read_text()
    assert table.strip() in shown
    assert table.splitlines()[0] == "| split | model | matthews_correlation |"
    assert [line.split("|")[2].strip() for line in table.splitlines()[2:]] == ["hire/run", "last/run", "ensemble"]
    # Nothing says where on this machine anything lies, or what was not built.
    written = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert str(base) not in written and str(tmp_path) not in written
    assert not {"model", "encoder", "preset", "learning_rate"} & results["arguments"].keys()
    assert [name[: len("run (")] for name in results["arguments"]["ensemble"]] == ["run (", "run ("]


def test_yaml_and_the_same_twice(base: Path, tmp_path: Path) -> None:
    members = [str(base / "last" / "run"), str(base / "hire" / "run")]
    config = {"task": "cola", "dataset_dir": str(base / "data"), "ensemble": members, "per_device_eval_batch_size": 3}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    results = []
    for number in range(2):
        run_glue.main([str(tmp_path / "config.yaml"), *QUIET, "--output_dir", str(tmp_path / f"out-{number}")])
        results.append({path.name: path.read_bytes() for path in (tmp_path / f"out-{number}").iterdir()})
    assert results[0] == results[1]
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(config | {"ensembel": ["a"]}))
    with pytest.raises(SystemExit) as caught:
        run_glue.main([str(tmp_path / "wrong.yaml"), "--output_dir", str(tmp_path / "none")])
    assert "Did you mean 'ensemble'?" in caught.value.code


def test_labels_in_other_orders_and_other_tokenizers(base: Path, tmp_path: Path) -> None:
    """Pairs, two evaluation splits, two test files."""
    orders = (MNLI, ("neutral", "CONTRADICTION", "entailment"))
    pairs = [
        member("bert", tiny_tokenizer(), 1, **named(orders[0])),
        member("hire", wordpiece(), 2, layers=2, **named(orders[1])),
    ]
    folders = save(pairs, tmp_path)
    results = ensemble(
        run_glue, tmp_path / "out", "--task", "mnli", "--dataset_dir", base / "data", "--ensemble", *folders
    )
    for split in ("validation_matched", "validation_mismatched"):
        rows = read_rows(base / "data" / "mnli" / f"{split}.jsonl")
        texts = [[row["premise"], row["hypothesis"]] for row in rows]
        first, other = (answers(folder, texts).softmax(-1) for folder in folders)
        classes = (first + other[:, [2, 0, 1]]).argmax(-1)
        expected = accuracy_score([row["label"] for row in rows], classes)
        assert results["metrics"]["ensemble"][split]["accuracy"] == pytest.approx(expected)
        alone = accuracy_score([row["label"] for row in rows], other[:, [2, 0, 1]].argmax(-1))
        assert results["metrics"]["member-1"][split]["accuracy"] == pytest.approx(alone)
    lines = (tmp_path / "out" / "MNLI-m.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[1] for line in lines} <= set(MNLI) and len(lines) == 11
    assert (tmp_path / "out" / "MNLI-mm.tsv").is_file()


@torch.no_grad()
def test_scores_and_files_of_ones_own(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    kinds = {"num_labels": 1, "problem_type": "regression"}
    folders = save([member("bert", tokenizer, 1, **kinds), member("hire", tokenizer, 2, **kinds)], tmp_path)
    texts = [f"w{i} w{2 * i % 7}" for i in range(9)]
    write_rows(tmp_path / "test.jsonl", [{"text": text} for text in texts])
    data = ("--validation_file", write_rows(tmp_path / "dev.jsonl", scored(texts)))
    data = (*data, "--test_file", tmp_path / "test.jsonl")
    results = ensemble(run_glue, tmp_path / "out", *data, "--ensemble", *folders)
    mean = sum(answers(folder, [[text] for text in texts])[:, 0] for folder in folders) / 2
    expected = np.corrcoef(mean.numpy(), np.arange(9) / 2)[0, 1]
    assert results["metrics"]["ensemble"]["validation"]["pearson"] == pytest.approx(expected, abs=1e-5)
    lines = (tmp_path / "out" / "dev.tsv").read_text().splitlines()[1:]
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx(mean.tolist(), abs=6e-4)

    classifiers = save([member("bert", tokenizer, 1, **named(("no", "yes")))], tmp_path / "classes")
    rows = [{"text": text, "label": "yes" if i % 3 else "no"} for i, text in enumerate(texts)]
    dev = write_rows(tmp_path / "classes.jsonl", rows)
    results = ensemble(run_glue, tmp_path / "classes-out", "--validation_file", dev, "--ensemble", *classifiers)
    classes = answers(classifiers[0], [[text] for text in texts]).argmax(-1)
    expected = accuracy_score([row["label"] == "yes" for row in rows], classes)
    for name in ("member-0", "ensemble"):
        assert results["metrics"][name]["validation"]["accuracy"] == pytest.approx(expected)

    said = refused(run_glue, tmp_path / "none", *data, "--ensemble", *classifiers)
    assert "row 1" in said or "classes" in said
    said = refused(run_glue, tmp_path / "none", "--validation_file", dev, "--ensemble", *folders)
    assert "scores" in said or "score" in said


def scored(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text, "label": i / 2} for i, text in enumerate(texts)]


def test_questions_against_the_members_runs(base: Path, tmp_path: Path) -> None:
    members = [base / "hire-squad", base / "last-squad"]
    data = ("--validation_file", base / "questions" / "dev.json", "--test_file", base / "test.json")
    data = (*data, "--version_2_with_negative", "true", *WINDOWS)
    results = ensemble(run_squad, tmp_path / "out", *data, "--ensemble", *members)
    assert results["members"] == ["hire-squad", "last-squad"]
    for folder, name in zip(members, results["members"], strict=True):
        own = read(folder / "results.json")
        (metrics,) = own["metrics"].values()
        assert results["metrics"][name]["validation"] == pytest.approx(metrics["validation"], abs=1e-4)
        assert results["no_answer"]["validation"]["f1"] == pytest.approx(own["no_answer"]["validation"]["f1"])

    rows = [{**row, "texts": [one["text"] for one in row["answers"]]} for row in questions(11, seed=2)]
    models = [AutoModelForQuestionAnswering.from_pretrained(folder) for folder in members]
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in members]
    both = EnsembleForQuestionAnswering(models, tokenizers)
    sizes = {"max_length": 24, "doc_stride": 6, "max_query_length": 8, "max_answer_length": 5}
    ask, context = [row["question"] for row in rows], [row["context"] for row in rows]
    found = both.predict(ask, context, null_threshold=0.0, **sizes)
    predictions = read(tmp_path / "out" / "predictions.json")
    assert predictions == {row["id"]: answer.text for row, answer in zip(rows, found, strict=True)}
    odds = read(tmp_path / "out" / "null_odds.json")
    for row, answer in zip(rows, found, strict=True):
        assert odds[row["id"]] == pytest.approx(answer.null_score - answer.score, abs=1e-4)
    expected = squad_scores(predictions, {row["id"]: row["texts"] for row in rows})
    assert results["metrics"]["ensemble"]["validation"]["f1"] == pytest.approx(expected["f1"])
    assert read(tmp_path / "out" / "nbest_predictions.json").keys() == predictions.keys()
    assert len(read(tmp_path / "out" / "test_predictions.json")) == 6

    table = (tmp_path / "out" / "results.md").read_text().splitlines()
    assert table[0].startswith("| split | model | exact | f1 |")
    names = [line.split("|")[2].strip() for line in table[2:]]
    assert names == ["hire-squad", "last-squad", "ensemble", "no answer"]


def test_only_predictions_and_one_member_twice(base: Path, tmp_path: Path) -> None:
    run = base / "last-squad"
    flags = ("--test_file", base / "test.json", *WINDOWS, "--ensemble", run, run)
    assert ensemble(run_squad, tmp_path / "out", *flags) == {}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "test_predictions.json",
        "test_nbest_predictions.json",
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--encoder", "bert"), "encoder='bert': with ensemble"),
        (("--model", "last"), "model='last': with ensemble"),
        (("--peft", "lora"), "peft='lora': with ensemble"),
        (("--freeze_encoder", "true"), "freeze_encoder=True: with ensemble"),
        (("--duplicate", "first:1"), "duplicate='first:1': with ensemble"),
        (("--learning_rate", "0.5"), "learning_rate=0.5: with ensemble nothing is trained"),
        (("--seeds", "1", "2"), "seeds=[1, 2]: with ensemble nothing is trained"),
        (("--num_train_epochs", "7"), "num_train_epochs=7.0: with ensemble nothing is trained"),
        (("--resume", "true"), "resume=True: with ensemble nothing is trained"),
        (("--push_to_hub", "true"), "push_to_hub=True: with ensemble nothing is trained"),
        (("--bf16_full_eval", "true", "--fp16_full_eval", "true"), "At most one of fp16 and bf16"),
        (("--ensemble_revision", "a", "b", "c"), "revision: 3 for 2 members"),
        (("--ensemble", "/no/where"), "no model can be read there"),
        (("--ensemble",), "--ensemble"),
        (("--max_length", "2"), "leaves no room"),
    ],
)
def test_refusals(base: Path, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    data = ("--task", "cola", "--dataset_dir", base / "data")
    members = ("--ensemble", base / "hire" / "run", base / "last" / "run")
    assert said in refused(run_glue, tmp_path / "out", *data, *members, *flags)


def test_more_refusals(base: Path, tmp_path: Path) -> None:
    data = ("--task", "cola", "--dataset_dir", base / "data")
    run, questions_run = base / "hire" / "run", base / "hire-squad"
    assert "ensemble_revision" in refused(run_glue, tmp_path / "out", *data, "--ensemble_revision", "a")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "Name another folder" in refused(run_glue, tmp_path / "full", *data, "--ensemble", run)
    said = refused(run_glue, tmp_path / "out", *data, "--ensemble", run, questions_run)
    assert "was saved by HireForQuestionAnswering" in said
    said = refused(
        run_squad, tmp_path / "out", "--validation_file", base / "questions" / "dev.json", "--ensemble", run
    )
    assert "was saved by HireForSequenceClassification" in said
    (other,) = save([member("bert", tiny_tokenizer(), 1, **named(MNLI))], tmp_path / "other")
    said = refused(run_glue, tmp_path / "out", *data, "--ensemble", run, other)
    assert "'acceptable'" in said and "'neutral'" in said
    said = refused(run_glue, tmp_path / "out", *data, "--ensemble", other)
    assert "'acceptable'" in said and "'neutral'" in said
    (scorer,) = save([member("bert", tiny_tokenizer(), 1, num_labels=1)], tmp_path / "scorer")
    assert "predict scores, and the data has classes" in refused(
        run_glue, tmp_path / "out", *data, "--ensemble", scorer
    )


def test_one_process_only(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modeling_hire.training.arguments import RunArguments

    monkeypatch.setattr(RunArguments, "world_size", property(lambda self: 2))
    data = ("--task", "cola", "--dataset_dir", base / "data", "--ensemble", base / "hire" / "run")
    assert "2 processes were started; allowed is one" in refused(run_glue, tmp_path / "out", *data)
