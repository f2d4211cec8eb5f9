"""What `run_contrastive.py` refuses: one clear line before anything is trained or written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_contrastive import ALONE, QUICK, contrastive, data_flags, refused, write_data, write_triplets
from tiny_models import tiny_model, tiny_tokenizer
from tiny_runs import NO_DROPOUT, save_encoder, write_rows
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

import run_contrastive
from modeling_hire.training.contrastive_arguments import ContrastiveTrainingArguments


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    save_encoder(folder / "still", **NO_DROPOUT)
    write_data(folder)
    write_triplets(folder / "one.jsonl", count=1)
    write_triplets(folder / "nine.jsonl", count=9, negatives=0)
    return folder


@pytest.fixture
def flags(base: Path) -> tuple[Any, ...]:
    return ("--encoder", base / "encoder", *data_flags(base, "supervised"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run"


def check(message: str, said: tuple[str, ...]) -> None:
    assert message.startswith("run_contrastive.py: ")
    assert all(part in message for part in said), message
    assert "\n" not in message, "one line"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--scheme", "supervized"), ("scheme='supervized'", "'supervised'", "Did you mean 'supervised'?")),
        (("--pooler", "layer_atn"), ("pooler='layer_atn'", "Did you mean 'layer_attn'?")),
        (("--pooler", "mean", "--query", "cls_last"), ("query='cls_last'", "pooler='mean'", "layer_attn")),
        (("--pooler", "cls", "--concat_last_cls", "false"), ("concat_last_cls=False", "pooler='cls'")),
        (("--query", "all"), ("query='all'", "'cls_all'")),
        (("--activation", "gelu"), ("activation='gelu'", "'rrelu'")),
        (("--activation", "relu", "--rrelu_resample", "true"), ("rrelu_resample=True", "'relu'")),
        (("--detach_at_inference", "max"), ("detach_at_inference='max'", "'mean'")),
        (("--temperature", "0"), ("temperature=0.0", "above 0", "divided")),
        (("--temperature", "-1"), ("temperature=-1.0",)),
        (("--temperature", "nan"), ("temperature=nan",)),
        (("--hard_negative_weight", "inf"), ("hard_negative_weight=inf", "finite")),
        (("--self_supervised_weight", "-1"), ("self_supervised_weight=-1.0", "from 0 on")),
        (("--mlm_weight", "-0.1"), ("mlm_weight=-0.1",)),
        (("--mlm_weight", "0.1", "--mlm_probability", "1"), ("mlm_probability=1.0", "between 0 and 1")),
        (("--matryoshka_dims", "16", "64"), ("matryoshka_dims=[16, 64]", "up to 32")),
        (("--matryoshka_dims", "16", "16"), ("matryoshka_dims=[16, 16]", "different")),
        (("--matryoshka_dims", "0"), ("matryoshka_dims=[0]", "positive")),
        (("--cache_chunk", "0"), ("cache_chunk=0", "positive")),
        (("--cache_chunk", "4", "--mlm_weight", "0.1"), ("cache_chunk=4 and mlm_weight=0.1", "one of the two")),
        (("--export_detached", "max"), ("export_detached='max'", "'mean'")),
        (("--export_detached", "cls", "--layer_plan", "0", "0", "1"), ("export_detached='cls'", "layer_plan")),
        (("--export_detached", "cls", "--duplicate", "first:1", "--tie", "true"), ("export_detached='cls'", "layer")),
        (("--label_smoothing_factor", "0.1"), ("label_smoothing_factor=0.1",)),
        (("--remove_unused_columns", "true"), ("remove_unused_columns=True",)),
        (("--metric_for_best_model", "loss"), ("metric_for_best_model='loss'", "'spearman', 'pearson'")),
        (("--metric_for_best_model", "accuracy"), ("metric_for_best_model='accuracy'", "'spearman'")),
        (("--per_device_train_batch_size", "25"), ("per_device_train_batch_size=25", "24 training rows")),
        (("--temprature", "1"), ("unknown key 'temprature'", "'temperature'")),
        (("--preset", "paper"), ("unknown key 'preset'",)),
        (("--freeze_encoder", "true", "--pooler", "mean"), ("freeze_encoder=True", "pooler='mean'", "layer_attn")),
        (("--freeze_encoder", "true", "--mlm_weight", "1"), ("freeze_encoder=True", "mlm_weight=1.0")),
        (("--peft", "lora", "--mlm_weight", "1"), ("peft='lora'", "mlm_weight=1.0")),
        (("--num_train_epochs", "0"), ("num_train_epochs=0", "--model")),
        (("--num_train_epochs", "0", "--pooler", "static_mix"), ("num_train_epochs=0", "--model")),
        (("--max_length", "2"), ("max_length=2",)),
        (("--duplicate", "frist:1"), ("duplicate='frist:1'", "first:K")),
        (("--model", "layer_atn_pool"), ("layer_atn_pool",)),
        (("--push_to_hub", "true"), ("push_to_hub=True", "HF_HUB_OFFLINE")),
    ],
)
def test_arguments(wrong: tuple[str, ...], said: tuple[str, ...], flags: tuple[Any, ...], output: Path) -> None:
    check(refused(output, *flags, *wrong), said)


def test_misspelt_yaml_keys(base: Path, output: Path, tmp_path: Path) -> None:
    for key, near in (("temprature", "temperature"), ("unlabeled_file", "unlabelled_file"), ("poler", "pooler")):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({"encoder": str(base / "encoder"), key: 1}))
        with pytest.raises(SystemExit) as caught:
            run_contrastive.main([str(tmp_path / "run.yaml"), *QUICK, "--output_dir", str(output)])
        assert f"unknown key {key!r}. Did you mean {near!r}?" in caught.value.code
    assert not output.exists()


# ---- batches and data -----------------------------------------------------------------------------------------------


def test_a_batch_of_one_row(base: Path, flags: tuple[Any, ...], output: Path) -> None:
    one = ("--per_device_train_batch_size", 1)
    why = ("per_device_train_batch_size=1", "the loss is 0 whatever the model does", "2 or more")
    check(refused(output, *flags, *one, "--train_file", base / "pairs.jsonl"), why)
    for scheme in ("self_supervised", "hybrid"):
        check(refused(output, "--encoder", base / "encoder", *data_flags(base, scheme), *one), why)
    # With a hard negative the loss is defined.
    contrastive(output, *flags, *one, *ALONE, "--max_steps", 1)


def test_a_last_batch_of_one_row(base: Path, flags: tuple[Any, ...], output: Path) -> None:
    nine = ("--train_file", base / "nine.jsonl", "--dataloader_drop_last", "false")
    message = refused(output, *flags, *nine, "--per_device_train_batch_size", 4)
    check(message, ("dataloader_drop_last=False", "9 rows", "batch by itself"))
    contrastive(output, *flags, *nine, *ALONE, "--per_device_train_batch_size", 5, "--num_train_epochs", 1)


def test_one_training_row(base: Path, flags: tuple[Any, ...], output: Path) -> None:
    write_triplets(base / "single.jsonl", count=1, negatives=0)
    message = refused(output, *flags, "--train_file", base / "single.jsonl")
    assert "nothing that it could be told from" in message


def test_nothing_to_train_on(base: Path, output: Path) -> None:
    message = refused(output, "--encoder", base / "encoder", "--validation_file", base / "dev.jsonl")
    check(message, ("train_file=None", "num_train_epochs=0"))


def test_nothing_to_evaluate_on(base: Path, output: Path) -> None:
    message = refused(output, "--encoder", base / "encoder", "--train_file", base / "triplets.jsonl")
    check(message, ("eval_strategy='epoch'", "validation_file", "eval_strategy='no'"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"anchor": "w1", "positive": "w2", "negative": ""}, ("row 25", "'negative'", "empty")),
        ({"anchor": "w1", "positive": None, "negative": "w3"}, ("row 25", "'positive'", "None")),
        ({"anchor": 3, "positive": "w2", "negative": "w3"}, ("row 25", "'anchor'", "3 (int)")),
    ],
)
def test_members_of_a_row(
    row: dict[str, Any], said: tuple[str, ...], base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((base / "triplets.jsonl").read_text() + json.dumps(row) + "\n")
    check(refused(output, *flags, "--train_file", path), said)


def test_scores(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    rows = [{"sentence1": "w1", "sentence2": f"w{i}", "score": i} for i in range(7)]
    path = write_rows(tmp_path / "dev.jsonl", rows)
    message = refused(output, *flags, "--validation_file", path, "--score_range", 0, 5)
    check(message, ("row 7", "the score 6", "from 0.0 to 5.0"))
    write_rows(path, [row | {"score": 2} for row in rows])
    check(refused(output, *flags, "--validation_file", path), ("all 7 scores", "undefined"))


def test_unusual_texts_are_no_error(base: Path, tmp_path: Path, output: Path) -> None:
    """A long text, control characters, emoji, and another script."""
    texts = ["w1 " * 50_000, "a\x00b\x07\u200d", "🙂🏳️‍🌈", "テスト", "w1\tw2", "w3", "w4", "w5"]
    path = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    flags = ("--encoder", base / "encoder", *data_flags(base, "self_supervised"), "--train_file", path)
    contrastive(output, *flags, "--num_train_epochs", 1)


# ---- encoders and tokenizers ----------------------------------------------------------------------------------------


def bare_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that puts no special token anywhere."""
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    return tokenizer


def test_no_token_that_stands_for_the_text(base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    save_encoder(tmp_path / "encoder")
    bare_tokenizer().save_pretrained(tmp_path / "encoder")
    flags = (*flags, "--encoder", tmp_path / "encoder")
    for pooler in ("layer_attn", "cls", "cls_before_pooler", "cls_and_mean"):
        check(refused(output, *flags, "--pooler", pooler), ("cls_position='first'", "[CLS]", "pooler='mean'"))
    contrastive(output, *flags, "--pooler", "mean", *ALONE, "--max_steps", 1)


@pytest.mark.parametrize("scheme", ["self_supervised", "hybrid"])
def test_no_dropout(scheme: str, base: Path, output: Path) -> None:
    said = (f"scheme={scheme!r}", "'bert' encoder trains without dropout", "scheme='supervised'")
    check(refused(output, "--encoder", base / "still", *data_flags(base, scheme)), said)
    # A frozen encoder runs without the dropout that it has.
    frozen = ("--encoder", base / "encoder", *data_flags(base, scheme), "--freeze_encoder", "true")
    check(refused(output, *frozen), said)


def test_no_mask_token(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    save_encoder(tmp_path / "encoder")
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "encoder")
    message = refused(output, *flags, "--encoder", tmp_path / "encoder", "--mlm_weight", "0.1")
    check(message, ("mlm_weight=0.1", "no mask token"))


def test_settings_of_a_saved_model(base: Path, flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    contrastive(tmp_path / "saved", *flags, *ALONE, "--max_steps", 1)
    saved = ("--model", tmp_path / "saved", *flags[2:])
    check(refused(output, *saved, "--pooler", "mean"), ("pooler", "settings of its own", "layer_attn_pool"))
    check(refused(output, *saved, "--duplicate", "first:1"), ("duplicate='first:1'", "saved checkpoint"))
    check(refused(output, "--encoder", tmp_path / "saved", *flags[2:]), ("layer_attn_pool", "--model"))


def test_a_model_of_another_task(flags: tuple[Any, ...], tmp_path: Path, output: Path) -> None:
    tiny_model("fast").save_pretrained(tmp_path / "hire")
    tiny_tokenizer().save_pretrained(tmp_path / "hire")
    message = refused(output, "--model", tmp_path / "hire", *flags[2:])
    check(message, ("a checkpoint of type 'hire'", "layer_attn_pool"))


def test_a_plain_encoder_as_model(base: Path, flags: tuple[Any, ...], output: Path) -> None:
    check(refused(output, "--model", base / "encoder", *flags[2:]), ("type 'bert'", "--encoder"))


def test_every_argument_has_a_help_text() -> None:
    own = ContrastiveTrainingArguments.__annotations__
    fields = [f for f in dataclasses.fields(ContrastiveTrainingArguments) if f.name in own]
    assert fields and not [f.name for f in fields if not f.metadata.get("help")]
