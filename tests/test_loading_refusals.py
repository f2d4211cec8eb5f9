"""What `from_pretrained` refuses, each with an error that says what is wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import tiny_config, tiny_model
from transformers import AutoModel, AutoModelForMaskedLM

from modeling_hire import HireConfig, HireForSequenceClassification, HireModel, RobertaForHIRE


@pytest.fixture(params=["plain", "ours"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A plain encoder's checkpoint, and one of ours."""
    plain = AutoModelForMaskedLM.from_config(tiny_encoder_config("bert"))
    (plain if request.param == "plain" else tiny_model("fast")).save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [lambda data: data[: len(data) // 2], lambda data: data[:6], lambda data: b"", lambda data: b"\0" * 200],
        ids=["truncated", "cut in the header", "empty", "zeros"],
    )
    def test_to_the_weights(self, checkpoint: Path, damage) -> None:
        file = checkpoint / "model.safetensors"
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(OSError, match="checkpoint: its weights cannot be read, a file is corrupt or cut short"):
            HireForSequenceClassification.from_pretrained(checkpoint)

    def test_to_the_config(self, checkpoint: Path) -> None:
        (checkpoint / "config.json").write_text('{"model_type": "be')
        with pytest.raises(OSError, match="not a valid JSON file"):
            HireForSequenceClassification.from_pretrained(checkpoint)

    def test_to_the_names(self, tmp_path: Path) -> None:
        model = AutoModel.from_config(tiny_encoder_config("bert"))
        model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 4}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"lacks encoder weights, for example 'encoder.layer.3"):
            HireForSequenceClassification.from_pretrained(tmp_path)

    def test_missing_weights(self, checkpoint: Path) -> None:
        (checkpoint / "model.safetensors").unlink()
        with pytest.raises(OSError, match="no file named model.safetensors"):
            HireForSequenceClassification.from_pretrained(checkpoint)

    def test_weights_in_a_pickle(self, checkpoint: Path) -> None:
        (checkpoint / "model.safetensors").unlink()
        torch.save({}, checkpoint / "pytorch_model.bin")
        with pytest.raises(OSError, match="no file named model.safetensors.*refused on purpose") as error:
            HireForSequenceClassification.from_pretrained(checkpoint)
        assert len(str(error.value).splitlines()) == 1, "scripts show the first line"

    def test_weights_in_a_pickle_can_be_converted_as_the_message_says(self, tmp_path: Path) -> None:
        plain = AutoModelForMaskedLM.from_config(tiny_encoder_config("bert"))
        plain.save_pretrained(tmp_path / "pickled")
        (tmp_path / "pickled" / "model.safetensors").unlink()
        torch.save(plain.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
        with pytest.raises(OSError) as error:
            HireForSequenceClassification.from_pretrained(tmp_path / "pickled")
        code = re.search(r"AutoModel\.from_pretrained\(.*\)\.save_pretrained\(FOLDER\)", str(error.value))
        eval(code[0], {"AutoModel": AutoModel, "FOLDER": tmp_path / "converted"})
        model = HireForSequenceClassification.from_pretrained(tmp_path / "converted", preset="fast")
        weights = plain.bert.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in model.hire.encoder.state_dict().items())

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="nowhere"):
            HireForSequenceClassification.from_pretrained(tmp_path / "nowhere")

    def test_no_network(self) -> None:
        with pytest.raises(OSError, match="couldn't connect|offline"):
            HireForSequenceClassification.from_pretrained("someone/some-encoder")


class TestKeywords:
    def test_unknown_one(self, checkpoint: Path) -> None:
        with pytest.raises(ValueError, match="weigthing"):
            HireForSequenceClassification.from_pretrained(checkpoint, weigthing="mean")

    @pytest.mark.parametrize(("name", "nearest"), [("weigthing", "weighting"), ("revison", "revision")])
    def test_unknown_one_is_told_the_nearest(self, checkpoint: Path, name: str, nearest: str) -> None:
        with pytest.raises(ValueError, match=f"HireConfig has no field '{name}'. Did you mean '{nearest}'"):
            HireForSequenceClassification.from_pretrained(checkpoint, **{name: "mean"})

    def test_wrong_value(self, checkpoint: Path) -> None:
        with pytest.raises(ValueError, match="weighting='means': allowed is one of .* Did you mean 'mean'"):
            HireForSequenceClassification.from_pretrained(checkpoint, weighting="means")

    def test_wrong_plan(self, checkpoint: Path) -> None:
        with pytest.raises(ValueError, match=r"layer_plan=\[0, 3\]: allowed is .* from 0 to 2"):
            HireForSequenceClassification.from_pretrained(checkpoint, layer_plan=[0, 3])

    def test_unknown_preset(self, tmp_path: Path) -> None:
        AutoModel.from_config(tiny_encoder_config("bert")).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="preset='quick': allowed is one of 'paper', 'paper-half', 'fast'"):
            HireForSequenceClassification.from_pretrained(tmp_path, preset="quick")

    def test_preset_for_a_finished_model(self, tmp_path: Path) -> None:
        tiny_model("fast").save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="preset='paper': .* has settings of its own"):
            HireForSequenceClassification.from_pretrained(tmp_path, preset="paper")

    def test_config_of_a_plain_encoder(self, checkpoint: Path) -> None:
        with pytest.raises(ValueError, match="config: a configuration of type 'bert'; allowed is a HireConfig"):
            HireForSequenceClassification.from_pretrained(checkpoint, config=tiny_encoder_config("bert"))

    def test_wrong_value_in_a_config(self, checkpoint: Path) -> None:
        config = tiny_config("fast")
        config.fusion_num_layers = 7
        with pytest.raises(ValueError, match="fusion_num_layers=7: allowed is one of 0, 1, 2, 3"):
            HireForSequenceClassification.from_pretrained(checkpoint, config=config)


class TestOtherModels:
    @pytest.mark.parametrize(
        ("model_type", "reason"),
        [
            ("gpt2", "decoder-only"),
            ("llama", "decoder-only"),
            ("t5", "encoder-decoder"),
            ("bart", "encoder-decoder"),
            ("vit", "does not take text"),
            ("lxmert", "does not say how many layers"),
        ],
    )
    def test_are_refused_before_any_weight_is_read(self, model_type: str, reason: str, tmp_path: Path) -> None:
        tiny_encoder_config(model_type).save_pretrained(tmp_path)  # and no weights at all
        for keywords in ({}, {"preset": "fast"}):
            with pytest.raises(ValueError, match=f"encoder_config.*{model_type}.*{reason}"):
                HireForSequenceClassification.from_pretrained(tmp_path, **keywords)

    def test_encoder_in_the_wrong_config(self, tmp_path: Path) -> None:
        AutoModel.from_config(tiny_encoder_config("gpt2")).save_pretrained(tmp_path)
        config = HireConfig.preset("fast", tiny_encoder_config("bert"))
        with pytest.raises(ValueError, match="lacks encoder weights.*is it a 'bert' checkpoint"):
            HireForSequenceClassification.from_pretrained(tmp_path, config=config)

    def test_one_layer(self, tmp_path: Path) -> None:
        tiny_encoder_config("bert", num_hidden_layers=1).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"1 executed layer\(s\).*at least 2"):
            HireForSequenceClassification.from_pretrained(tmp_path)

    def test_paper_model_takes_roberta_only(self, checkpoint: Path) -> None:
        with pytest.raises(ValueError, match="encoder_config: model type 'bert'.*RoBERTa-like"):
            RobertaForHIRE.from_pretrained(checkpoint)

    def test_unknown_type(self, checkpoint: Path) -> None:
        file = checkpoint / "config.json"
        file.write_text(file.read_text().replace('"model_type": "bert"', '"model_type": "nonesuch"'))
        with pytest.raises(ValueError, match="nonesuch"):
            HireForSequenceClassification.from_pretrained(checkpoint)

    def test_another_family_of_this_library(self, tmp_path: Path) -> None:
        tiny_model("fast").save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        file.write_text(file.read_text().replace('"model_type": "hire"', '"model_type": "elsewhere"'))
        with pytest.raises(ValueError, match="a checkpoint of type 'elsewhere' cannot be loaded into HireModel"):
            HireModel.from_pretrained(tmp_path)

    def test_encoder_that_needs_remote_code(self, tmp_path: Path) -> None:
        tiny_encoder_config("bert").save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        entry = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.Own", "AutoModel": "own.Own"}}
        file.write_text(json.dumps(json.loads(file.read_text()) | entry))
        with pytest.raises(ValueError, match="remote code|trust_remote_code|own"):
            HireForSequenceClassification.from_pretrained(tmp_path)

    def test_leaves_nothing_behind(self, tmp_path: Path) -> None:
        tiny_encoder_config("gpt2").save_pretrained(tmp_path / "gpt2")
        shutil.copytree(tmp_path / "gpt2", tmp_path / "before")
        with pytest.raises(ValueError):
            HireForSequenceClassification.from_pretrained(tmp_path / "gpt2")
        assert {f.name for f in (tmp_path / "gpt2").iterdir()} == {f.name for f in (tmp_path / "before").iterdir()}
