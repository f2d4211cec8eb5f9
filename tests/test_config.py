"""The configurations: what they refuse, the presets, the views of the encoder's fields, JSON and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import tiny_encoder_config
from tiny_models import tiny_config
from transformers import AutoConfig, BertConfig, PreTrainedConfig

from modeling_hire import HireConfig, HireForSequenceClassification, HireModel, LayerwiseConfig, RobertaHireConfig


# Field, wrong value, part of the message that says what is allowed.
WRONG: list[tuple[str, Any, str]] = [
    ("weighting", "dynamik", "'dynamic', 'mean', 'random', 'static', 'last'. Did you mean 'dynamic'?"),
    ("weighting", None, "allowed is one of 'dynamic'"),
    ("weighting", ["mean"], "allowed is one of 'dynamic'"),
    ("scorer", "lstm", "'gru', 'pooled'"),
    ("scorer_layers", 3, "1, 2"),
    ("scorer_layers", 0, "1, 2"),
    ("scorer_layers", True, "1, 2"),
    ("scorer_layers", 2.0, "1, 2"),
    ("scorer_layers", "2", "1, 2"),
    ("scorer_hidden_size", 0, "a positive whole number, or None"),
    ("scorer_hidden_size", 16.0, "a positive whole number, or None"),
    ("scorer_hidden_size", True, "a positive whole number, or None"),
    ("share_scorer", "yes", "True, False"),
    ("share_scorer", 1, "True, False"),
    ("score_activation", "gelu", "'relu', 'none', 'tanh'"),
    ("score_activation", None, "'relu', 'none', 'tanh'"),
    ("score_bias_init", "one", "a finite number"),
    ("score_bias_init", float("nan"), "a finite number"),
    ("score_bias_init", None, "a finite number"),
    ("include_embeddings", None, "True, False"),
    ("rescue_dead_scores", "no", "True, False"),
    ("fusion_num_layers", 4, "0, 1, 2, 3"),
    ("fusion_num_layers", -1, "0, 1, 2, 3"),
    ("fusion_num_layers", 1.0, "0, 1, 2, 3"),
    ("fusion_num_layers", False, "0, 1, 2, 3"),
    ("fusion_hidden_size", -4, "a positive whole number, or None"),
    ("fusion_hidden_size", "half", "a positive whole number, or None"),
    ("fusion_features", [], "a non-empty list of ['last', 'mixture', 'sum', 'product']"),
    ("fusion_features", ["last", "difference"], "a non-empty list of"),
    ("fusion_features", "last", "a non-empty list of"),
    ("fusion_features", ["last", "last"], "each feature once"),
    ("fusion_features", [["last"]], "a non-empty list of"),
    ("fusion_features", ["last"], "allowed is a list with 'mixture', 'sum' or 'product' in it"),
    ("problem_type", "regresion", "'multi_label_classification'. Did you mean 'regression'?"),
    ("num_labels", 0, "1 (a score) or more"),
    ("hire_dropout", 1.0, "a number from 0 up to, not including, 1"),
    ("hire_dropout", -0.1, "a number from 0"),
    ("hire_dropout", "0.1", "a number from 0"),
    ("hire_dropout", float("nan"), "a number from 0"),
    ("hire_dropout", None, "a number from 0"),
    ("streaming", "sometimes", "'auto', 'always', 'never'"),
    ("streaming", True, "'auto', 'always', 'never'"),
    ("layer_plan", [], "a non-empty list of layer numbers from 0 to 2"),
    ("layer_plan", [0, 3], "a non-empty list of layer numbers from 0 to 2"),
    ("layer_plan", [0, -1], "a non-empty list of layer numbers from 0 to 2"),
    ("layer_plan", [0, 1.0], "a non-empty list of layer numbers from 0 to 2"),
    ("layer_plan", [0, True], "a non-empty list of layer numbers from 0 to 2"),
    ("layer_plan", "001", "a non-empty list of layer numbers from 0 to 2"),
    ("layer_plan", 2, "a non-empty list of layer numbers from 0 to 2"),
]


class TestWrongValues:
    @pytest.mark.parametrize(("field", "value", "allowed"), WRONG, ids=str)
    def test_are_named_with_what_is_allowed(self, field: str, value: Any, allowed: str) -> None:
        with pytest.raises(ValueError, match=re.escape(allowed)) as error:
            tiny_config(**{field: value})
        assert f"{field}={value!r}" in str(error.value)

    @pytest.mark.parametrize(("field", "value", "allowed"), WRONG, ids=str)
    def test_are_not_saved_when_set_later(self, field: str, value: Any, allowed: str, tmp_path: Path) -> None:
        config = tiny_config()
        with pytest.raises(ValueError, match=re.escape(allowed)) as error:
            setattr(config, field, value)
            config.save_pretrained(tmp_path)
        assert f"{field}={value!r}" in str(error.value)
        assert not (tmp_path / "config.json").exists()

    def test_are_not_saved_with_a_model_either(self, tmp_path: Path) -> None:
        model = HireModel(tiny_config())
        model.config.hire_dropout = 2
        with pytest.raises(ValueError, match="hire_dropout=2"):
            model.save_pretrained(tmp_path)
        assert not list(tmp_path.glob("*.safetensors"))

    def test_in_a_file_are_named_when_it_is_read(self, tmp_path: Path) -> None:
        tiny_config().save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"scorer": "rnn"}))
        with pytest.raises(ValueError, match="scorer='rnn': allowed is one of 'gru', 'pooled'"):
            HireConfig.from_pretrained(tmp_path)

    def test_include_too_few_layers(self) -> None:
        with pytest.raises(ValueError, match=r"encoder_config: 1 executed layer\(s\).*at least 2"):
            tiny_config(encoder={"num_hidden_layers": 1})
        with pytest.raises(ValueError, match=r"1 executed layer\(s\)"):
            tiny_config(layer_plan=[2])
        assert tiny_config(encoder={"num_hidden_layers": 1}, layer_plan=[0, 0]).layer_indices == [1]

    @pytest.mark.parametrize("weighting", ["dynamic", "static"])
    def test_include_learned_weights_that_nothing_reads(self, weighting: str) -> None:
        with pytest.raises(ValueError, match=f"weighting='{weighting}' would never be trained"):
            tiny_config(weighting=weighting, fusion_features=["last"])
        assert tiny_config(weighting=weighting, fusion_features=["last", "product"]).weighting == weighting

    @pytest.mark.parametrize("weighting", ["mean", "random", "last"])
    def test_do_not_include_fixed_weights_that_nothing_reads(self, weighting: str) -> None:
        assert tiny_config(weighting=weighting, fusion_features=["last"]).fusion_features == ["last"]

    @pytest.mark.parametrize(
        "make",
        [
            lambda name: HireConfig(encoder_config=name),
            lambda name: HireConfig.preset("fast", name),
            HireConfig.from_encoder_config,
        ],
    )
    def test_include_something_else_than_a_config(self, make: Callable[[Any], Any]) -> None:
        with pytest.raises(ValueError, match="encoder_config='bert-base': allowed is a configuration, such as Auto"):
            make("bert-base")

    def test_include_a_config_around_a_config(self) -> None:
        for make in (HireConfig.from_encoder_config, lambda config: HireConfig(encoder_config=config.to_dict())):
            with pytest.raises(ValueError, match="encoder_config: 'hire' wraps an encoder itself"):
                make(tiny_config())

    @pytest.mark.parametrize("model_class", [HireModel, HireForSequenceClassification])
    def test_include_the_encoders_config_for_a_model(self, model_class: type) -> None:
        with pytest.raises(ValueError, match="config: a configuration of type 'bert'; allowed is a HireConfig"):
            model_class(tiny_encoder_config("bert"))

    @pytest.mark.parametrize(
        ("encoder", "message"),
        [
            ({"is_decoder": True}, "is_decoder=True.*allowed is is_decoder=False"),
            ({"is_encoder_decoder": True}, "encoder-decoder"),
        ],
    )
    def test_include_a_decoder(self, encoder: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"encoder_config.*{message}"):
            tiny_config(encoder=encoder)

    def test_include_another_encoder_for_the_paper_model(self) -> None:
        for make in (
            lambda: RobertaHireConfig.preset("paper", tiny_encoder_config("bert")),
            lambda: RobertaHireConfig(encoder_config=tiny_encoder_config("bert")),
        ):
            with pytest.raises(ValueError, match="encoder_config: model type 'bert'.*xlm-roberta"):
                make()


class TestUnknownFields:
    @pytest.mark.parametrize(
        ("name", "nearest"),
        [("weigthing", "weighting"), ("fusion_layers", "fusion_num_layers"), ("dropout", "hire_dropout")],
    )
    def test_are_named_with_the_nearest(self, name: str, nearest: str) -> None:
        for make in (HireConfig.from_encoder_config, lambda *args, **kw: HireConfig.preset("fast", *args, **kw)):
            with pytest.raises(ValueError, match=f"HireConfig has no field '{name}'. Did you mean '{nearest}'"):
                make(tiny_encoder_config("bert"), **{name: 1})

    @pytest.mark.parametrize(("name", "nearest"), [("weigthing", "weighting"), ("fusion_layers", "fusion_num_layers")])
    def test_are_named_by_the_constructor_if_they_are_nearly_known(self, name: str, nearest: str) -> None:
        with pytest.raises(ValueError, match=f"HireConfig has no field '{name}'. Did you mean '{nearest}'"):
            HireConfig(encoder_config=tiny_encoder_config("bert"), **{name: 1})

    def test_are_kept_by_the_constructor_otherwise(self, tmp_path: Path) -> None:
        # As every configuration of transformers does: a note of the user's, or a field of a later version.
        HireConfig(encoder_config=tiny_encoder_config("bert"), remark="mine", hidden_size=32).save_pretrained(tmp_path)
        assert HireConfig.from_pretrained(tmp_path).remark == "mine"

    def test_are_told_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="Its own fields: encoder_config, .*layer_plan.*weighting"):
            HireConfig.preset("fast", tiny_encoder_config("bert"), zzz=1)

    @pytest.mark.parametrize("field", ["num_labels", "id2label", "label2id", "problem_type", "dtype"])
    def test_are_not_the_general_ones(self, field: str) -> None:
        value = {
            "num_labels": 3,
            "id2label": {0: "no", 1: "yes"},
            "label2id": {"no": 0, "yes": 1},
            "problem_type": "regression",
            "dtype": "float32",
        }[field]
        HireConfig.preset("fast", tiny_encoder_config("bert"), **{field: value})


class TestPresets:
    def test_paper_is_the_default(self) -> None:
        by_name, plain = tiny_config("paper"), HireConfig(encoder_config=tiny_encoder_config("bert"))
        assert by_name.to_dict() == plain.to_dict()
        assert (plain.weighting, plain.scorer, plain.scorer_layers, plain.share_scorer) == ("dynamic", "gru", 2, True)
        assert (plain.score_activation, plain.include_embeddings, plain.fusion_num_layers) == ("relu", False, 2)
        assert plain.fusion_features == ["last", "mixture", "sum", "product"]

    def test_paper_half_halves_both_widths(self) -> None:
        config = tiny_config("paper-half")
        assert config.scorer_hidden_size == config.fusion_hidden_size == 16
        assert HireModel(config).fusion.output_size == 32

    def test_fast_pools_and_fuses_with_a_gru(self) -> None:
        config = tiny_config("fast")
        assert config.scorer == "pooled" and config.fusion_num_layers >= 1

    def test_yield_to_overrides(self) -> None:
        config = tiny_config("fast", fusion_num_layers=2, num_labels=5)
        assert (config.scorer, config.fusion_num_layers, config.num_labels) == ("pooled", 2, 5)

    def test_leave_the_given_config_alone(self) -> None:
        encoder = tiny_encoder_config("bert", architectures=["BertForMaskedLM"], num_labels=7)
        before = encoder.to_dict()
        config = HireConfig.preset("paper", encoder, layer_plan=[0, 1])
        config.vocab_size = 500
        assert encoder.to_dict() == before

    def test_drop_what_the_source_had_on_its_encoder(self) -> None:
        encoder = tiny_encoder_config("bert", architectures=["BertForMaskedLM"], num_labels=7)
        config = HireConfig.preset("paper", encoder)
        assert config.num_labels == config.encoder_config.num_labels == 2
        assert not config.encoder_config.architectures

    def test_unknown_one_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ValueError, match="preset='papper': allowed is one of .* Did you mean 'paper'"):
            tiny_config("papper")

    def test_take_an_encoder_with_one_width_only(self) -> None:
        with pytest.raises(ValueError, match="encoder_config: a 'perceiver' model has hidden_size=None"):
            tiny_config("fast", "perceiver")


VIEWS = {
    "vocab_size": 123,
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "max_position_embeddings": 80,
    "type_vocab_size": 3,
    "initializer_range": 0.5,
    "pad_token_id": 4,
    "bos_token_id": 5,
    "eos_token_id": 6,
}


class TestViews:
    @pytest.mark.parametrize(("field", "value"), VIEWS.items())
    def test_read_and_write_the_encoder(self, field: str, value: Any) -> None:
        config = tiny_config()
        assert getattr(config, field) == getattr(config.encoder_config, field, None)
        setattr(config, field, value)
        assert getattr(config, field) == getattr(config.encoder_config, field) == value

    def test_reach_fields_of_another_name(self) -> None:
        config = tiny_config(encoder_type="distilbert")
        assert (config.hidden_size, config.num_hidden_layers) == (32, 3)
        config.hidden_size = 64
        assert config.encoder_config.dim == 64

    @pytest.mark.parametrize(("field", "value"), VIEWS.items())
    def test_survive_a_reload(self, field: str, value: Any, tmp_path: Path) -> None:
        config = tiny_config()
        setattr(config, field, value)
        config.save_pretrained(tmp_path)
        loaded = HireConfig.from_pretrained(tmp_path)
        assert getattr(loaded, field) == getattr(loaded.encoder_config, field) == value
        assert field not in json.loads((tmp_path / "config.json").read_text())


class TestJson:
    @pytest.mark.parametrize("preset", ["paper", "paper-half", "fast"])
    @pytest.mark.parametrize("encoder_type", ["bert", "deberta-v2", "distilbert", "modernbert", "roberta"])
    def test_round_trip(self, preset: str, encoder_type: str, tmp_path: Path) -> None:
        config = tiny_config(preset, encoder_type, layer_plan=[0, 0, 1], num_labels=3, hire_dropout=0.25)
        config.save_pretrained(tmp_path)
        for loaded in (HireConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
            assert type(loaded) is HireConfig
            assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}

    def test_round_trip_of_the_paper_model(self, tmp_path: Path) -> None:
        config = RobertaHireConfig.preset("paper", tiny_encoder_config("xlm-roberta"))
        config.save_pretrained(tmp_path)
        loaded = AutoConfig.from_pretrained(tmp_path)
        assert type(loaded) is RobertaHireConfig
        assert loaded.encoder_config.to_dict() == config.encoder_config.to_dict()

    def test_tells_the_reader_which_column_is_which_layer(self, tmp_path: Path) -> None:
        tiny_config(include_embeddings=True).save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["layer_indices"] == [0, 1, 2]

    def test_ignores_a_wrong_column_map(self) -> None:
        config = HireConfig(encoder_config=tiny_encoder_config("bert"), layer_indices=[7])
        assert config.layer_indices == [1, 2]

    def test_lists_every_class_of_the_family(self, tmp_path: Path) -> None:
        tiny_config().save_pretrained(tmp_path)
        auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
        assert auto_map.keys() == {
            "AutoConfig",
            "AutoModel",
            "AutoModelForSequenceClassification",
            "AutoModelForTokenClassification",
            "AutoModelForQuestionAnswering",
            "AutoModelForMultipleChoice",
        }

    def test_map_never_points_back_to_another_repository(self) -> None:
        config = HireConfig(encoder_config=tiny_encoder_config("bert"), auto_map={"AutoModel": "someone/repo--a.B"})
        assert not any("--" in entry for entry in config.auto_map.values())


class TestLayerwiseConfig:
    def test_wraps_bert_by_default(self) -> None:
        assert isinstance(LayerwiseConfig().encoder_config, BertConfig)
        assert RobertaHireConfig().encoder_config.model_type == "roberta"

    def test_takes_a_dictionary(self) -> None:
        encoder = tiny_encoder_config("modernbert").to_dict()
        config = LayerwiseConfig(encoder_config=encoder)
        assert isinstance(config.encoder_config, PreTrainedConfig)
        assert config.encoder_config.model_type == "modernbert"

    def test_counts_what_is_executed(self) -> None:
        encoder = tiny_encoder_config("bert")
        assert LayerwiseConfig(encoder_config=encoder).num_executed_layers == 3
        assert LayerwiseConfig(encoder_config=encoder, layer_plan=[2]).num_executed_layers == 1

    def test_extras_are_not_gathered_in_evaluation(self) -> None:
        assert {"hidden_states", "attentions", "layer_weights"} <= set(HireConfig.keys_to_ignore_at_inference)
