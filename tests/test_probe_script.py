"""`run_probe.py`: what it writes, and what it refuses before any work starts."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import tiny_encoder_config
from tiny_models import tiny_tokenizer
from tiny_runs import save_encoder, write_rows, write_task
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertForSequenceClassification

import run_probe
from modeling_hire import BertWithDuplicatedLayersForMaskedLM
from modeling_hire.analysis import reconstruction_run
from modeling_hire.analysis.reconstruction import ReconstructionProbe


TEXTS = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9 w10"]
PICTURES = ["probe_accuracy.png", "probe_changes.png", "probe_sentence.png"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("checkpoint") / "tiny-mlm")


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join([TEXTS[0], "", f"  {TEXTS[1]} ", TEXTS[2]]) + "\n", encoding="utf-8")
    return path


def probe(*flags: Any) -> dict[str, Any]:
    flags = [str(flag) for flag in flags]
    run_probe.main(flags)
    return json.loads((Path(flags[flags.index("--output_dir") + 1]) / "probe.json").read_text(encoding="utf-8"))


def refused(*flags: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        run_probe.main([str(flag) for flag in flags])
    assert isinstance(caught.value.code, str), "a message, not a status"
    return caught.value.code


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- what comes out -------------------------------------------------------------------------------------------------


def test_everything_at_once(checkpoint: Path, text_file: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "out" / "probe"
    flags = ["--remove", "--repeat", 2, 3, "--duplicate", "first:1", "2,0,1", "--sentence", "w1 w2 w99 $w3$ w4 $"]
    result = probe(checkpoint, "--text_file", text_file, *flags, "--output_dir", output)
    assert files(output) == ["probe.json", "probe.txt", *PICTURES] and files(tmp_path / "out") == ["probe"]
    for name in PICTURES:
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    assert (output / "probe.txt").read_text(encoding="utf-8").strip() in capsys.readouterr().out

    assert result["checkpoint"] == "tiny-mlm" and str(tmp_path) not in json.dumps(result)
    assert result["text"] == {"source": "text.txt", "texts": 3, "cut": 0, "max_length": 64}
    assert [entry["block"] for entry in result["original"]["layers"]] == [None, 0, 1, 2]
    assert result["original"]["layers"][0]["content"]["tokens"] == 10
    assert result["duplicated"]["first:1"]["plan"] == [0, 0, 1, 2]
    assert result["duplicated"]["2,0,1"]["plan"] == [0, 0, 2]
    assert [(c["block"], c["times"]) for c in result["changes"]] == [(b, t) for t in (0, 2, 3) for b in range(3)]
    assert [layer["layer"] for layer in result["sentence"]["layers"]] == [0, 1, 2, 3]
    # The file says what the library says.
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    for entry, expected in zip(
        result["original"]["layers"], ReconstructionProbe(model, tokenizer).layers(TEXTS).layers, strict=True
    ):
        assert entry["content"] == pytest.approx(vars(expected.content), abs=1e-5)
        assert entry["everything"] == pytest.approx(vars(expected.everything), abs=1e-5)


def test_twice_gives_the_same_files(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    flags = [checkpoint, "--text_file", text_file, "--remove", "--sentence", "w1 w2"]
    for name in ("one", "other"):
        probe(*flags, "--output_dir", tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "other")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name


def test_pre_norm_models_are_shown_with_and_without_their_final_norm(tmp_path: Path, text_file: Path) -> None:
    folder = save_encoder(tmp_path / "modern", "modernbert")
    result = probe(folder, "--text_file", text_file, "--output_dir", tmp_path / "out")
    assert result["original"]["final_norm"] == "final_norm"
    assert len(result["original"]["without_final_norm"]) == len(result["original"]["layers"]) == 4
    assert "without the final norm" in (tmp_path / "out" / "probe.txt").read_text(encoding="utf-8")


def test_texts_of_special_tokens_alone_give_valid_json(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "unknown.txt").write_text("nothing known here\n", encoding="utf-8")
    flags = ["--text_file", tmp_path / "unknown.txt", "--remove", "--duplicate", "all:2"]
    result = probe(checkpoint, *flags, "--output_dir", tmp_path / "out")
    assert result["original"]["layers"][1]["content"] == {"tokens": 0} | dict.fromkeys(
        ("accuracy", "loss", "mean_rank", "median_rank", "cosine")
    )
    assert result["duplicated"]["all:2"]["cosine_to_original"] is None
    json.loads((tmp_path / "out" / "probe.json").read_text(), parse_constant=lambda name: pytest.fail(name))


def test_without_matplotlib_the_numbers_are_written(
    checkpoint: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    probe(checkpoint, "--text_file", text_file, "--output_dir", tmp_path / "out")
    assert files(tmp_path / "out") == ["probe.json", "probe.txt"]


def test_yaml_and_the_places_of_the_checkpoint(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "probe.yaml"
    config.write_text(f"text_file: [{text_file}]\nduplicate: [2, 1, 1]\nmax_tokens: 6\nremove: true\n")
    result = probe(config, checkpoint, "--max_tokens", 9, "--output_dir", tmp_path / "one")
    assert list(result["duplicated"]) == ["2,1,1"] and result["text"]["texts"] == 2 and len(result["changes"]) == 3
    again = probe(config, "--checkpoint", checkpoint, "--max_tokens=9", "--output_dir", tmp_path / "two")
    assert again == result


def test_without_a_folder_the_tables_are_shown(
    checkpoint: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run_probe.main([str(checkpoint), "--text_file", str(text_file), "--duplicate", "first:1"])
    shown = capsys.readouterr().out
    assert "Duplicated first:1: blocks 0 0 1 2" in shown and "Written" not in shown
    assert files(tmp_path) == ["text.txt"]


@pytest.mark.parametrize("tie", [True, False])
def test_a_saved_duplicated_model_is_probed_like_the_plan(
    checkpoint: Path, text_file: Path, tmp_path: Path, tie: bool
) -> None:
    model = BertWithDuplicatedLayersForMaskedLM.from_pretrained(checkpoint, duplicate="first:1", tie=tie)
    model.save_pretrained(tmp_path / "deep")
    tiny_tokenizer().save_pretrained(tmp_path / "deep")
    flags = ["--text_file", text_file, "--remove", "--output_dir"]
    deep = probe(tmp_path / "deep", *flags, tmp_path / "one")
    planned = probe(checkpoint, *flags, tmp_path / "two", "--duplicate", "first:1")["duplicated"]["first:1"]
    assert len(deep["original"]["layers"]) == 5 and len(deep["changes"]) == 4
    for one, other in zip(deep["original"]["layers"], planned["layers"], strict=True):
        assert one["content"] == pytest.approx(other["content"], abs=1e-5)
    # Without the copy it is the original again.
    undone, original = deep["changes"][1], probe(checkpoint, *flags, tmp_path / "three")["original"]["layers"][-1]
    assert undone["content"]["loss"] == pytest.approx(original["content"]["loss"], abs=1e-5)


# ---- where text comes from ------------------------------------------------------------------------------------------


def test_files_of_every_kind(checkpoint: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "lines.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(TEXTS))
    write_rows(tmp_path / "rows.jsonl", [{"text": text, "label": 0} for text in TEXTS])
    (tmp_path / "rows.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)))
    write_rows(tmp_path / "other.jsonl", [{"body": text, "note": "w1"} for text in TEXTS])
    found = [
        probe(checkpoint, "--text_file", tmp_path / name, *flags, "--output_dir", tmp_path / f"out-{name}")
        for name, *flags in (
            ("lines.txt.gz",),
            ("rows.jsonl",),
            ("rows.csv",),
            ("other.jsonl", "--text_column", "body"),
        )
    ]
    assert all(result["original"] == found[0]["original"] for result in found)
    both = probe(
        *(checkpoint, "--text_file", tmp_path / "lines.txt.gz", tmp_path / "rows.csv"),
        *("--output_dir", tmp_path / "both"),
    )
    assert both["text"] == {"source": "lines.txt.gz, rows.csv", "texts": 6, "cut": 0, "max_length": 64}


def test_a_task_known_by_name(checkpoint: Path, tmp_path: Path) -> None:
    data = write_task(write_task(tmp_path / "data"), "rte")
    flags = ["--dataset_dir", data, "--output_dir"]
    assert probe(checkpoint, "--dataset", "cola", *flags, tmp_path / "one")["text"]["texts"] == 11
    assert probe(checkpoint, "--dataset", "rte", *flags, tmp_path / "pairs")["text"]["texts"] == 22
    train = probe(checkpoint, "--dataset", "cola", "--dataset_split", "train", *flags, tmp_path / "train")
    assert train["text"]["texts"] == 24 and train["text"]["source"] == "cola, train"
    message = refused(checkpoint, "--dataset", "cola", "--dataset_split", "dev", *flags, tmp_path / "none")
    assert "dataset_split='dev': cola has 'validation', 'test'" in message


def test_long_texts_are_cut_and_said_to_be(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "long.txt").write_text("w1 " * 100 + "\nw2\n", encoding="utf-8")
    result = probe(checkpoint, "--text_file", tmp_path / "long.txt", "--output_dir", tmp_path / "out")
    assert result["text"]["cut"] == 1 and "1 of them cut at 64 tokens" in capsys.readouterr().out


# ---- the output folder ----------------------------------------------------------------------------------------------


def test_an_earlier_probe_is_replaced_only_when_asked(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    flags = [checkpoint, "--text_file", text_file, "--output_dir", output]
    probe(*flags, "--remove")
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    assert "holds another probe" in refused(*flags)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    probe(*flags, "--overwrite")
    assert "probe_changes.png" not in files(output)
    (output / "mine.txt").write_text("mine")
    assert "holds other files (mine.txt" in refused(*flags, "--overwrite")
    message = refused(checkpoint, "--text_file", text_file, "--output_dir", text_file)
    assert "a file is there" in message


def test_a_run_that_dies_leaves_nothing(
    checkpoint: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no space left")

    monkeypatch.setattr(reconstruction_run, "draw", fail)
    before = files(tmp_path)
    with pytest.raises(RuntimeError, match="no space"):
        probe(checkpoint, "--text_file", text_file, "--output_dir", tmp_path / "out")
    assert files(tmp_path) == before


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max_tokens", "0"], "max_tokens=0: allowed is a whole number from 1"),
        (["--chunk_size", "-4"], "chunk_size=-4"),
        (["--batch_size", "many"], "batch_size"),
        (["--max_length", "2"], "max_length=2: allowed is more than the 2 special"),
        (["--repeat", "2", "1"], r"repeat=[2, 1]: allowed are whole numbers from 2 on"),
        (["--duplicate", "firts:3"], "duplicate='firts:3': allowed is a list"),
        (["--duplicate", "first:9"], "duplicate='first:9'"),
        (["--duplicate", "2,1"], "2 numbers for 3 layers"),
        (["--duplicate", "0,0,0"], "no layer is left"),
        (["--sentence", "  "], "sentence='  ': allowed is a text"),
        (["--dataset", "cola"], "give one of the two"),
        (["--dataset_dir", "data"], "dataset_dir='data': allowed with dataset only"),
        (["--remov"], "unknown key 'remov'. Did you mean 'remove'?"),
        (["--chunksize", "3"], "Did you mean 'chunk_size'?"),
        (["surplus"], "'surplus'"),
    ],
)
def test_wrong_flags(checkpoint: Path, text_file: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    output = tmp_path / "out"
    assert message in refused(checkpoint, "--text_file", text_file, "--output_dir", output, *flags)
    assert files(tmp_path) == ["text.txt"]


def test_things_left_out(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    assert "checkpoint=None: give one" in refused("--text_file", text_file, "--output_dir", tmp_path / "out")
    assert "output_dir=' '" in refused(checkpoint, "--text_file", text_file, "--output_dir", " ")
    assert "text_file=None and dataset=None" in refused(checkpoint, "--output_dir", tmp_path / "out")


def test_unknown_yaml_keys(tmp_path: Path, text_file: Path) -> None:
    config = tmp_path / "probe.yaml"
    config.write_text("chekpoint: x\n")
    assert "probe.yaml: unknown key 'chekpoint'. Did you mean 'checkpoint'?" in refused(config)
    config.write_text("max_tokens: lots\n")
    assert "max_tokens" in refused(config)
    assert "no such file" in refused(tmp_path / "none.yaml")


def test_wrong_files(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "text.doc").write_text("w1")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "broken.txt.gz").write_bytes(gzip.compress(b"w1 w2 w3 w4")[:-9])
    (tmp_path / "two.jsonl").write_text('{"a": "w1 w2", "b": "w3"}\n')
    for name, message in (
        ("empty.txt", "is empty"),
        ("text.doc", "allowed is a name ending in '.txt'"),
        ("latin.txt", "not UTF-8"),
        ("broken.txt.gz", "not a complete gzip file"),
        ("two.jsonl", "give text_column"),
        ("missing.txt", "does not exist"),
        ("missing.csv", "does not exist"),
    ):
        answer = refused(checkpoint, "--text_file", tmp_path / name, "--output_dir", tmp_path / "out")
        assert name in answer and message in answer
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_is_out_of_reach(checkpoint: Path, tmp_path: Path) -> None:
    answer = refused(checkpoint, "--dataset", "someone/some-text", "--output_dir", tmp_path / "out")
    assert "someone/some-text" in answer and "Hub" in answer
    answer = refused(checkpoint, "--dataset", "someone/x", "--dataset_dir", tmp_path, "--output_dir", tmp_path / "out")
    assert "dataset_dir" in answer and "text_file" in answer


def test_checkpoints_without_an_output_layer(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    flags = ["--text_file", text_file, "--output_dir", tmp_path / "out"]
    AutoModel.from_pretrained(checkpoint).save_pretrained(tmp_path / "encoder")
    BertForSequenceClassification.from_pretrained(checkpoint).save_pretrained(tmp_path / "classifier")
    for name in ("encoder", "classifier"):
        tiny_tokenizer().save_pretrained(tmp_path / name)
        answer = refused(tmp_path / name, *flags)
        assert "lacks an output layer (MLM head)" in answer and "cls.predictions" in answer
        assert "BertForMaskedLM" in answer
    assert not (tmp_path / "out").exists()


def test_half_of_a_checkpoint(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(checkpoint)
    model.save_pretrained(tmp_path / "half")
    tiny_tokenizer().save_pretrained(tmp_path / "half")
    weights = load_file(tmp_path / "half" / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if ".layer.1." not in name},
        tmp_path / "half" / "model.safetensors",
        metadata={"format": "pt"},
    )
    answer = refused(tmp_path / "half", "--text_file", text_file, "--output_dir", tmp_path / "out")
    assert "lacks a part of the encoder" in answer and "bert.encoder.layer.1." in answer
    (tmp_path / "half" / "model.safetensors").write_bytes(b"no weights")
    answer = refused(tmp_path / "half", "--text_file", text_file, "--output_dir", tmp_path / "out")
    assert "its weights cannot be read" in answer and not (tmp_path / "out").exists()


def test_checkpoints_that_are_no_encoders(text_file: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    flags = ["--text_file", text_file, "--output_dir", tmp_path / "out"]
    AutoModelForCausalLM.from_config(tiny_encoder_config("gpt2")).save_pretrained(tmp_path / "gpt2")
    AutoModel.from_config(tiny_encoder_config("xlnet")).save_pretrained(tmp_path / "xlnet")
    for name, message in (("gpt2", "decoder"), ("xlnet", "no masked language model of type 'xlnet'")):
        tiny_tokenizer().save_pretrained(tmp_path / name)
        assert message in refused(tmp_path / name, *flags)
    assert "no model and tokenizer could be read" in refused(tmp_path / "nothing", *flags)


def test_layers_that_cannot_be_left_out(text_file: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_encoder_config("xlm")).save_pretrained(tmp_path / "xlm")
    tiny_tokenizer().save_pretrained(tmp_path / "xlm")
    flags = [tmp_path / "xlm", "--text_file", text_file, "--output_dir", tmp_path / "out"]
    for question in (["--remove"], ["--repeat", 2], ["--duplicate", "all:2"]):
        assert "layer_plan" in refused(*flags, *question)
    assert not (tmp_path / "out").exists()
    assert not math.isnan(probe(*flags)["original"]["layers"][0]["everything"]["loss"])
