"""The configuration of sentence encoders: what it refuses, which layers it names, JSON and back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import tiny_encoder_config
from tiny_sentence_encoders import SETTINGS, sentence_config, sentence_model
from transformers import AutoConfig, BertConfig

from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder


# Field, wrong value, part of the message that says what is allowed.
WRONG: list[tuple[str, Any, str]] = [
    ("pooler", "layer_atn", "Did you mean 'layer_attn'?"),
    ("pooler", None, "allowed is one of 'layer_attn', 'static_mix', 'cls'"),
    ("query", "cls", "'cls_all', 'cls_last', 'mean_all'"),
    ("key_value", "mean_last", "'mean_all', 'cls_all'"),
    ("score_scale", 1, "'n_layers', 'sqrt_d', 'none'"),
    ("activation", "gelu", "'rrelu', 'leaky', 'relu', 'none'"),
    ("activation", None, "'rrelu', 'leaky', 'relu', 'none'"),
    ("concat_last_cls", 1, "True, False"),
    ("include_embeddings", "yes", "True, False"),
    ("rrelu_resample", None, "True, False"),
    ("detach_at_inference", "max", "None, 'cls', 'mean'"),
    ("cls_position", 0, "'first', 'last'"),
    ("max_seq_length", 0, "a positive whole number, or None"),
    ("max_seq_length", 32.0, "a positive whole number, or None"),
    ("max_seq_length", True, "a positive whole number, or None"),
    ("prompts", ["query: "], "a mapping of names to texts"),
    ("prompts", {"query": None}, "a mapping of names to texts"),
    ("prompts", {1: "query: "}, "a mapping of names to texts"),
    ("default_prompt_name", "query", "one of prompts, here []"),
    ("layer_plan", [0, 3], "from 0 to 2"),
]
# Settings that only layer attention has, refused beside another pooler: they would change nothing.
FOR_ATTENTION_ONLY = [
    ("query", "cls_last"),
    ("key_value", "cls_all"),
    ("concat_last_cls", False),
    ("score_scale", "none"),
    ("activation", "relu"),
    ("rrelu_resample", True),
]


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}: allowed is")) as error:
        sentence_config(**{field: value})
    assert allowed in str(error.value)


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG)
def test_a_wrong_value_set_later_is_not_saved(field: str, value: Any, allowed: str, tmp_path: Path) -> None:
    model = sentence_model()
    setattr(model.config, field, value)
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")):
        model.save_pretrained(tmp_path / "folder")
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize("pooler", ["mean", "cls", "static_mix"])
@pytest.mark.parametrize(("field", "value"), FOR_ATTENTION_ONLY)
def test_settings_without_effect_are_refused(field: str, value: Any, pooler: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}: pooler={pooler!r} has no layer attention")):
        sentence_config(pooler=pooler, **{field: value})


def test_slopes_cannot_be_drawn_again_without_rrelu() -> None:
    with pytest.raises(ValueError, match="rrelu_resample=True: allowed with activation='rrelu', not 'leaky'"):
        sentence_config(rrelu_resample=True, activation="leaky")


def test_two_last_layers_are_needed_for_their_mean() -> None:
    with pytest.raises(ValueError, match="pooler='mean_top2': the encoder runs one layer"):
        sentence_config(pooler="mean_top2", encoder={"num_hidden_layers": 1})
    with pytest.raises(ValueError, match="pooler='mean_top2'"):
        sentence_config(pooler="mean_top2", layer_plan=[1])


def test_a_misspelt_field_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match="no field 'cls_positon'. Did you mean 'cls_position'"):
        LayerAttnPoolConfig.from_encoder_config(tiny_encoder_config("bert"), cls_positon="last")
    with pytest.raises(ValueError, match="no field 'include_embedings'. Did you mean 'include_embeddings'"):
        LayerAttnPoolConfig(include_embedings=False)


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"include_embeddings": False}, [1, 2, 3]),
        ({"pooler": "static_mix"}, [0, 1, 2, 3]),
        ({"pooler": "cls"}, [3]),
        ({"pooler": "cls_before_pooler"}, [3]),
        ({"pooler": "mean"}, [3]),
        ({"pooler": "cls_and_mean"}, [3]),
        ({"pooler": "mean_first_last"}, [1, 3]),  # the first layer, not the embeddings
        ({"pooler": "mean_top2"}, [2, 3]),
        ({"layer_plan": [0, 0, 2]}, [0, 1, 2, 3]),
        ({"layer_plan": [0, 1, 1, 2, 2], "pooler": "mean_top2"}, [4, 5]),
        ({"pooler": "mean_first_last", "encoder": {"num_hidden_layers": 1}}, [1]),
    ],
    ids=str,
)
def test_layer_indices(settings: dict[str, Any], layers: list[int]) -> None:
    config = sentence_config(**settings)
    assert config.layer_indices == layers == config.to_dict()["layer_indices"]


@pytest.mark.parametrize("name", SETTINGS)
def test_knows_whether_a_first_token_is_read(name: str) -> None:
    config = sentence_config(**SETTINGS[name])
    without = config.pooler in ("mean", "mean_first_last", "mean_top2", "static_mix")
    assert config.reads_first_token != without
    all_means = sentence_config(query="mean_all", concat_last_cls=False)
    assert not all_means.reads_first_token
    assert sentence_config(query="mean_all", concat_last_cls=False, detach_at_inference="cls").reads_first_token


@pytest.mark.parametrize("name", SETTINGS)
def test_json_and_back(name: str, tmp_path: Path) -> None:
    config = sentence_config(**SETTINGS[name], prompts={"query": "query: "}, max_seq_length=17)
    config.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    assert text["layer_indices"] == config.layer_indices and text["model_type"] == "layer_attn_pool"
    for loaded in (LayerAttnPoolConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is LayerAttnPoolConfig
        assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}


def test_layer_indices_in_a_file_are_for_the_reader_only() -> None:
    config = LayerAttnPoolConfig(encoder_config=BertConfig(num_hidden_layers=2), layer_indices=[7])
    assert config.layer_indices == [0, 1, 2]


def test_sizes_are_the_encoders() -> None:
    config = sentence_config()
    config.vocab_size = 120
    assert config.encoder_config.vocab_size == 120
    assert LayerAttnPoolEncoder(config).get_input_embeddings().num_embeddings == 120
