"""Original ELMo weights: the reference output, every array in its place, and files that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import assert_same
from transformers import AutoConfig

from modeling_hire.elmo_conversion import convert, main
from modeling_hire.modeling_elmo import ElmoForSequenceClassification, ElmoModel
from modeling_hire.tokenization_elmo import ElmoTokenizer


h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install modeling_hire[elmo]")

REFERENCE = Path(__file__).parents[2] / "shared" / "data" / "elmo"
OPTIONS: dict[str, Any] = {
    "lstm": {
        "cell_clip": 3,
        "use_skip_connections": True,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 3,
        "dim": 5,
    },
    "char_cnn": {
        "embedding": {"dim": 2},
        "filters": [[1, 2], [3, 4]],
        "n_highway": 1,
        "n_characters": 262,
        "max_characters_per_token": 50,
        "activation": "relu",
    },
}
CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"


def shapes() -> dict[str, tuple[int, ...]]:
    """The arrays that the options describe."""
    arrays: dict[str, tuple[int, ...]] = {"char_embed": (261, 2), "CNN_proj/W_proj": (6, 3), "CNN_proj/b_proj": (3,)}
    for number, (width, count) in enumerate(OPTIONS["char_cnn"]["filters"]):
        arrays |= {f"CNN/W_cnn_{number}": (1, width, 2, count), f"CNN/b_cnn_{number}": (count,)}
    for name in ("carry", "transform"):
        arrays |= {f"CNN_high_0/W_{name}": (6, 6), f"CNN_high_0/b_{name}": (6,)}
    for rnn in (0, 1):
        for layer in (0, 1):
            cell = f"RNN_{rnn}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            arrays |= {f"{cell}/W_0": (6, 20), f"{cell}/B": (20,), f"{cell}/W_P_0": (5, 3)}
    return arrays


def write(folder: Path, options: Any = OPTIONS, change: Callable[[dict], None] | None = None) -> tuple[Path, Path]:
    """Original files with numbers that tell where they come from; returns their paths."""
    generator = torch.Generator().manual_seed(0)
    arrays = {name: torch.randn(shape, generator=generator).numpy() for name, shape in shapes().items()}
    if change is not None:
        change(arrays)
    paths = folder / "options.json", folder / "weights.hdf5"
    paths[0].write_text(options if isinstance(options, str) else json.dumps(options))
    with h5py.File(paths[1], "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return paths


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="no reference output of the original: ../shared/data/elmo")
class TestReference:
    """The top layer of the official implementation, sentence by sentence."""

    @pytest.fixture(scope="class")
    def sentences(self) -> list[str]:
        return json.loads((REFERENCE / "sentences.json").read_text())

    @pytest.fixture(scope="class")
    def expected(self) -> list[torch.Tensor]:
        with h5py.File(REFERENCE / "lm_embeddings_0.hdf5") as file:
            return [torch.cat([*torch.from_numpy(file[str(i)][...])], dim=1) for i in range(len(file))]

    def converted(self, folder: Path, **settings: Any) -> tuple[ElmoModel, ElmoTokenizer]:
        files = REFERENCE / "options.json", REFERENCE / "lm_weights.hdf5"
        convert(*files, folder / "out", splitting="whitespace", **settings)
        return ElmoModel.from_pretrained(folder / "out"), ElmoTokenizer.from_pretrained(folder / "out")

    @torch.no_grad()
    def top(self, model: ElmoModel, tokenizer: ElmoTokenizer, sentence: str) -> torch.Tensor:
        return model(**tokenizer(sentence, return_tensors="pt"), output_hidden_states=-1).hidden_states[-1][0]

    def test_all_ten_with_state(
        self, tmp_path: Path, sentences: list[str], expected: list[torch.Tensor], worst: float = 1e-5
    ) -> None:
        model, tokenizer = self.converted(tmp_path, stateful=True)
        assert len(sentences) == len(expected) == 10
        for _ in range(2):
            for sentence, states in zip(sentences, expected, strict=True):
                actual = self.top(model, tokenizer, sentence)
                torch.testing.assert_close(actual, states, atol=worst, rtol=0)
            model.reset_states()

    def test_the_first_without_state(self, tmp_path: Path, sentences: list[str], expected: list[torch.Tensor]) -> None:
        model, tokenizer = self.converted(tmp_path)
        for _ in range(2):
            torch.testing.assert_close(self.top(model, tokenizer, sentences[0]), expected[0], atol=1e-5, rtol=0)
        assert (self.top(model, tokenizer, sentences[1]) - expected[1]).abs().max() > 1, "it carried its state"

    def test_needs_the_skip_connection(
        self, tmp_path: Path, sentences: list[str], expected: list[torch.Tensor]
    ) -> None:
        model, tokenizer = self.converted(tmp_path)
        model.config.use_skip_connections = False
        assert (self.top(model, tokenizer, sentences[0]) - expected[0]).abs().max() > 1


class TestPlaces:
    def test_every_array_is_used_once(self, tmp_path: Path) -> None:
        files = write(tmp_path)
        model = convert(*files, tmp_path / "out")
        with h5py.File(files[1]) as file:
            read = {name: torch.from_numpy(file[name][...]) for name in shapes()}
        parts = model.encoder.characters
        assert torch.equal(parts.embedding.weight[1:], read["char_embed"]) and not parts.embedding.weight[0].any()
        # [kernel, characters, filters] there; [filters, characters, kernel] here.
        assert torch.equal(parts.convolutions[1].weight[3, 1], read["CNN/W_cnn_1"][0, :, 1, 3])
        assert torch.equal(parts.highways[0].gate.weight[2], read["CNN_high_0/W_carry"][:, 2])
        assert torch.equal(parts.highways[0].transform.bias, read["CNN_high_0/b_transform"])
        lstm = model.encoder.layers[1].backward_lstm
        # i, j, f, o there; i, f, g, o here, with j for g.
        for ours, theirs in ((0, 0), (1, 2), (2, 1), (3, 3)):
            here, there = slice(5 * ours, 5 * ours + 5), slice(5 * theirs, 5 * theirs + 5)
            assert torch.equal(lstm.weight_ih_l0[here], read[f"{CELL}/W_0"][:3, there].t())
            assert torch.equal(lstm.weight_hh_l0[here], read[f"{CELL}/W_0"][3:, there].t())
            assert torch.equal(lstm.bias_ih_l0[here], read[f"{CELL}/B"][there] + (ours == 1))
        assert torch.equal(lstm.weight_hr_l0, read[f"{CELL}/W_P_0"].t()) and not lstm.bias_hh_l0.any()
        originals = sum(value.numel() for value in read.values())
        here = sum(parameter.numel() for parameter in model.encoder.parameters())
        assert here == originals + 2 + 4 * 20  # the row of padding, and the second bias of four LSTMs

    def test_what_is_written(self, tmp_path: Path) -> None:
        model = convert(*write(tmp_path), tmp_path / "deep" / "out", stateful=True, splitting="whitespace")
        names = {path.name for path in (tmp_path / "deep" / "out").iterdir()}
        assert {"config.json", "model.safetensors", "words.txt", "tokenizer_config.json", "modeling_elmo.py"} <= names
        assert not any(name.endswith((".bin", ".hdf5")) or name == "elmo_conversion.py" for name in names)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
        again = ElmoModel.from_pretrained(tmp_path / "deep" / "out")
        assert_same(again.state_dict(), model.state_dict())
        assert again.config.stateful and (again.config.cell_clip, again.config.proj_clip) == (3, 3)
        assert ElmoTokenizer.from_pretrained(tmp_path / "deep" / "out").splitting == "whitespace"
        tuned = ElmoForSequenceClassification.from_pretrained(tmp_path / "deep" / "out", num_labels=3)
        assert_same(tuned.elmo.state_dict(), model.state_dict())

    def test_an_empty_folder_will_do(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        convert(*write(tmp_path), tmp_path / "out")
        assert (tmp_path / "out" / "config.json").is_file()

    @pytest.mark.parametrize(
        ("part", "entry", "value", "field"),
        [
            ("char_cnn", "n_characters", 261, ("num_characters", 262)),
            ("lstm", "cell_clip", None, ("cell_clip", None)),
            ("lstm", "use_skip_connections", False, ("use_skip_connections", False)),
            ("char_cnn", "activation", "tanh", ("character_activation", "tanh")),
        ],
    )
    def test_variants(self, tmp_path: Path, part: str, entry: str, value: Any, field: tuple[str, Any]) -> None:
        options = {**OPTIONS, part: {**OPTIONS[part], entry: value}}
        model = convert(*write(tmp_path, options), tmp_path / "out")
        assert getattr(model.config, field[0]) == field[1]


def without(name: str) -> Callable[[dict], None]:
    return lambda arrays: arrays.pop(name)


def put(name: str, array: Any) -> Callable[[dict], None]:
    return lambda arrays: arrays.update({name: array})


def changed(part: str, **entries: Any) -> dict[str, Any]:
    return {**OPTIONS, part: {**OPTIONS[part], **entries}}


def lacking(part: str, entry: str) -> dict[str, Any]:
    return {**OPTIONS, part: {key: value for key, value in OPTIONS[part].items() if key != entry}}


WRONG: dict[str, tuple[Any, Callable[[dict], None] | None, str]] = {
    "missing": (OPTIONS, without(f"{CELL}/B"), rf"weights.hdf5'?: {CELL}/B is missing \(1 of 23 arrays are\)"),
    "another shape": (
        OPTIONS,
        put("CNN_proj/W_proj", torch.zeros(6, 4).numpy()),
        r"CNN_proj/W_proj has shape \(6, 4\); allowed is \(6, 3\), by the options file",
    ),
    "another model": (changed("lstm", dim=7), None, r"W_0 has shape \(6, 20\); allowed is \(6, 28\)"),
    "more layers": (changed("lstm", n_layers=3), None, r"Cell2/LSTMCell/W_0 is missing"),
    "fewer layers": (changed("lstm", n_layers=1), None, r"Cell1/LSTMCell/B has no place .*\(6 arrays left over\)"),
    "not finite": (OPTIONS, put("CNN_proj/b_proj", torch.full((3,), torch.nan).numpy()), "b_proj holds .* not finite"),
    "no numbers": (OPTIONS, put("char_embed", [b"a", b"b"]), "char_embed holds no numbers"),
    "nothing": (OPTIONS, lambda arrays: arrays.clear(), r"char_embed is missing .*the file holds none"),
    "no JSON": ("{", None, "options.json'?: cannot be read as JSON"),
    "no options": ("[]", None, "char_cnn.n_characters is missing; is it an ELMo's"),
    "no size": (lacking("lstm", "projection_dim"), None, "lstm.projection_dim is missing"),
    "characters": (changed("char_cnn", n_characters=300), None, "n_characters=300; allowed is 261 or 262"),
    "activation": (changed("char_cnn", activation="gelu"), None, "options.json'?: character_activation='gelu'"),
    "filters": (changed("char_cnn", filters=[[60, 2]]), None, r"filters=\[\[60, 2\]\]"),
    "one direction": ({**OPTIONS, "bidirectional": False}, None, "bidirectional=false"),
}


class TestRefuses:
    @pytest.mark.parametrize(("options", "change", "message"), WRONG.values(), ids=WRONG)
    def test_files_that_do_not_fit(
        self, tmp_path: Path, options: Any, change: Callable[[dict], None] | None, message: str
    ) -> None:
        files = write(tmp_path, options, change)
        with pytest.raises(ValueError, match=message):
            convert(*files, tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["options.json", "weights.hdf5"]

    def test_what_is_no_hdf5_or_not_there(self, tmp_path: Path) -> None:
        options, weights = write(tmp_path)
        weights.write_bytes(b"no HDF5" * 99)
        with pytest.raises(ValueError, match=r"weights.hdf5'?: cannot be read as HDF5"):
            convert(options, weights, tmp_path / "out")
        with pytest.raises(ValueError, match=r"lost.hdf5'?: cannot be read as HDF5"):
            convert(options, tmp_path / "lost.hdf5", tmp_path / "out")
        with pytest.raises(ValueError, match=r"lost.json'?: cannot be read as JSON"):
            convert(tmp_path / "lost.json", weights, tmp_path / "out")

    def test_a_folder_with_files(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="holds files; allowed is a new or empty folder"):
            convert(*write(tmp_path), tmp_path)

    def test_without_h5py(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = write(tmp_path)
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(ImportError, match=r"pip install modeling_hire\[elmo\]"):
            convert(*files, tmp_path / "out")


class TestCommandLine:
    def test_converts(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options, weights = write(tmp_path)
        assert main([str(options), str(weights), str(tmp_path / "out"), "--stateful"]) == 0
        assert "ElmoModel, 1,363 parameters" in capsys.readouterr().out
        assert AutoConfig.from_pretrained(tmp_path / "out", trust_remote_code=True).stateful

    def test_says_what_is_wrong(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options, weights = write(tmp_path, OPTIONS, without("char_embed"))
        assert main([str(options), str(weights), str(tmp_path / "out")]) == 2
        assert "char_embed is missing" in capsys.readouterr().err

    @pytest.mark.slow
    def test_as_a_module(self, tmp_path: Path) -> None:
        options, weights = write(tmp_path)
        command = [sys.executable, "-m", "modeling_hire.elmo_conversion", str(options), str(weights), "out"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
        assert (tmp_path / "out" / "model.safetensors").is_file()
