"""What `run_squad.py` refuses: one clear line before anything is trained or written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_model, tiny_tokenizer
from tiny_squad import QUICK, questions, refused, save_encoder, squad, write_folder, write_squad

import run_squad
from modeling_hire import HireForQuestionAnswering


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    write_folder(folder / "data")
    return folder


@pytest.fixture
def flags(base: Path) -> tuple[Any, ...]:
    return ("--encoder", base / "encoder", "--task", "squad_v2", "--dataset_dir", base / "data")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--task", "squad_v3"), ("task='squad_v3'", "'squad_v1', 'squad_v2'", "Did you mean")),
        (("--preset", "papr"), ("preset='papr'", "Did you mean 'paper'?")),
        (("--doc_strid", "1"), ("unknown key 'doc_strid'", "'doc_stride'")),
        (("--doc_stride", "30"), ("doc_stride=30", "max_length=24")),
        (("--max_query_length", "24"), ("max_query_length=24", "max_length=24")),
        (("--max_length", "long"), ("max_length", "'long'")),
        (("--n_best_size", "0"), ("n_best_size=0",)),
        (("--max_answer_length", "-1"), ("max_answer_length=-1",)),
        (("--null_score_diff_threshold", "often"), ("null_score_diff_threshold", "'often'")),
        (("--metric_for_best_model", "accuracy"), ("metric_for_best_model='accuracy'", "'f1'", "'best_f1'")),
        (("--label_smoothing_factor", "0.1"), ("label_smoothing_factor=0.1",)),
        (("--num_train_epochs", "0"), ("num_train_epochs=0", "--model")),
        (("--seeds", "1", "1"), ("seeds=[1, 1]",)),
        (("--dataset_dir", "no/such/folder"), ("dataset_dir='no/such/folder'",)),
        (("--version_2_with_negative", "false"), ("has no answer", "version_2_with_negative=True")),
        (("--encoder", "no/such/folder"), ("no/such/folder", "local folder")),
        (("--model", "last", "--scorer", "gru"), ("scorer", "model='last'")),
    ],
)
def test_arguments(wrong: tuple[str, ...], said: tuple[str, ...], flags: tuple[Any, ...], output: Path) -> None:
    message = refused(output, *flags, *wrong)
    assert message.startswith("run_squad.py: ")
    assert all(part in message for part in said), message


def test_no_data_named(base: Path, output: Path) -> None:
    assert "give task" in refused(output, "--encoder", base / "encoder")


def test_data_on_the_hub_without_a_network(base: Path, output: Path) -> None:
    message = refused(output, "--encoder", base / "encoder", "--task", "squad_v2")
    assert "rajpurkar/squad_v2" in message and "--dataset_dir" in message and "--train_file" in message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "q1000"}, ("'q1000' occurs twice",)),
        ({"id": None}, ("has no id",)),
        ({"answers": [{"text": "w3", "answer_start": 7000}]}, ("'w3' of question 'q1003'", "answer_start=7000")),
        ({"context": None}, ("context=None",)),
    ],
)
def test_questions(fields: dict[str, Any], said: tuple[str, ...], base: Path, tmp_path: Path, output: Path) -> None:
    rows = questions(5, seed=1)
    rows[3] |= fields
    train = write_squad(tmp_path / "train.json", rows)
    flags = ("--encoder", base / "encoder", "--task", "squad_v2", "--train_file", train, "--validation_file", train)
    message = refused(output, *flags)
    assert "train.json" in message and all(part in message for part in said), message


def test_a_question_longer_than_the_window(base: Path, tmp_path: Path, output: Path) -> None:
    rows = questions(5, seed=1)
    rows[3]["question"] = "w1 " * 61
    train = write_squad(tmp_path / "train.json", rows)
    flags = ("--encoder", base / "encoder", "--task", "squad_v2", "--train_file", train, "--validation_file", train)
    # The tiny encoder has 64 positions, and three special tokens and at least one word of the context go in too.
    message = refused(output, *flags, "--max_length", 100, "--max_query_length", 99)
    assert "Question 'q1003' has 61 tokens" in message and "max_length=64" in message and "at most 60" in message


def test_nothing_to_train_on_or_to_evaluate(base: Path, tmp_path: Path, output: Path) -> None:
    file = write_squad(tmp_path / "some.json", questions(5))
    named = ("--encoder", base / "encoder", "--task", "squad_v2")
    assert "num_train_epochs=0" in refused(output, *named, "--validation_file", file)
    assert "eval_strategy='epoch'" in refused(output, *named, "--train_file", file)
    no = ("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false")
    assert squad(output, *named, "--train_file", file, *no, "--num_train_epochs", 1) == {}
    assert (output / "model.safetensors").is_file()


def test_checkpoints_of_another_kind(base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    assert "type 'bert'" in refused(output, *flags, "--model", base / "encoder")
    tiny_model("fast").save_pretrained(tmp_path / "classifier")
    tiny_tokenizer().save_pretrained(tmp_path / "classifier")
    message = refused(output, *flags, "--model", tmp_path / "classifier", "--num_train_epochs", 0)
    assert "HireForSequenceClassification" in message and "num_train_epochs=0" in message
    tiny_model("fast", model_class=HireForQuestionAnswering).save_pretrained(tmp_path / "answers")
    tiny_tokenizer().save_pretrained(tmp_path / "answers")
    squad(output, *flags, "--model", tmp_path / "answers", "--num_train_epochs", 0)


def test_a_plain_head_that_was_never_trained(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    evaluate = ("--model", "last", "--num_train_epochs", 0)
    message = refused(output, *flags, *evaluate)
    assert "BertForMaskedLM" in message and "num_train_epochs=0" in message and "ForQuestionAnswering" in message
    squad(tmp_path / "trained", *flags, "--model", "last", "--num_train_epochs", 1)
    trained = squad(output, *flags, *evaluate, "--encoder", tmp_path / "trained")
    before = json.loads((tmp_path / "trained" / "results.json").read_text())
    assert trained["metrics"] == before["metrics"]


def test_a_tokenizer_that_is_not_fast(flags: tuple[Any, ...], output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.is_fast", False)
    assert "fast tokenizer" in refused(output, *flags)


def test_output_folder_in_use(flags: tuple[Any, ...], output: Path) -> None:
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    assert "holds another run or other files" in refused(output, *flags)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_squad.main(["--help"])
    assert caught.value.code == 0
    assert "--null_score_diff_threshold" in capsys.readouterr().out


def test_yaml_file(flags: tuple[Any, ...], output: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for content, said in (
        ("doc_strid: 6", "unknown key 'doc_strid'. Did you mean 'doc_stride'?"),
        ("task: squad_v3", "task='squad_v3'"),
        ("max_length: many", "max_length"),
        ("text_column: x", "unknown key 'text_column'"),
    ):
        path.write_text(content)
        with pytest.raises(SystemExit) as caught:
            run_squad.main([str(path), *QUICK, "--output_dir", str(output), "--encoder", str(flags[1])])
        assert said in caught.value.code and not output.exists()
    path.write_text(json.dumps({"task": "squad_v2", "dataset_dir": str(flags[5]), "encoder": str(flags[1])}))
    run_squad.main([str(path), *QUICK, "--output_dir", str(output), "--num_train_epochs", "1"])
    assert (output / "results.md").is_file()
