"""Building a model around a plain encoder's checkpoint: the encoder comes over, whatever head it has does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import TINY_ENCODERS, tiny_encoder_config
from tiny_models import (
    assert_same,
    assert_same_outputs,
    assert_scale_of_new_parameters,
    enliven,
    new_parameters,
    poison_new_memory,
    tiny_batch,
    tiny_config,
)
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from modeling_hire import (
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
    RobertaForHIRE,
    RobertaHireModel,
)


def save_source(folder: Path, encoder_type: str, auto_class: type = AutoModel, **overrides: Any) -> PreTrainedModel:
    """A plain transformers model with weights that no initialisation would give, saved in `folder`."""
    source = enliven(auto_class.from_config(tiny_encoder_config(encoder_type, **overrides)), seed=5).eval()
    source.save_pretrained(folder)
    return source


def assert_encoder_of(model: PreTrainedModel, source: PreTrainedModel) -> None:
    theirs = source.base_model.state_dict()
    ours = model.base_model.encoder.state_dict()
    assert ours and not ours.keys() - theirs.keys()
    assert_same(ours, {name: theirs[name] for name in ours})
    left_out = {name.partition(".")[0] for name in theirs.keys() - ours.keys()}
    assert left_out <= {"pooler"}


def assert_reloads(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_same(loaded.state_dict(), model.state_dict())
    with torch.no_grad():
        assert_same_outputs(loaded(**tiny_batch())[:1], model(**tiny_batch())[:1])


class TestSources:
    @pytest.mark.parametrize("encoder_type", TINY_ENCODERS)
    def test_with_a_head(self, encoder_type: str, tmp_path: Path) -> None:
        # A head puts a prefix before the encoder's names; the bare encoder's have none.
        auto_class = AutoModel
        if encoder_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            auto_class = AutoModelForMaskedLM
        elif encoder_type in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
            auto_class = AutoModelForSequenceClassification
        source = save_source(tmp_path / "source", encoder_type, auto_class)
        model = HireForSequenceClassification.from_pretrained(tmp_path / "source", preset="fast")
        assert_encoder_of(model, source)
        assert_reloads(model, tmp_path / "ours")

    @pytest.mark.parametrize("encoder_type", ["albert", "bert", "deberta-v2", "distilbert", "modernbert", "roberta"])
    @pytest.mark.parametrize(
        "auto_class",
        [
            AutoModel,
            AutoModelForSequenceClassification,
            AutoModelForTokenClassification,
            AutoModelForQuestionAnswering,
        ],
    )
    @pytest.mark.parametrize("model_class", [HireModel, HireForTokenClassification])
    def test_of_every_kind(self, encoder_type: str, auto_class: type, model_class: type, tmp_path: Path) -> None:
        source = save_source(tmp_path / "source", encoder_type, auto_class)
        model = model_class.from_pretrained(tmp_path / "source", preset="paper-half")
        assert_encoder_of(model, source)
        assert_reloads(model, tmp_path / "ours")

    @pytest.mark.parametrize("encoder_type", ["roberta", "xlm-roberta", "camembert"])
    def test_fine_tuned_for_the_paper_model(self, encoder_type: str, tmp_path: Path) -> None:
        source = save_source(tmp_path / "source", encoder_type, AutoModelForSequenceClassification, num_labels=3)
        for model_class in (RobertaForHIRE, RobertaHireModel):
            model = model_class.from_pretrained(tmp_path / "source")
            assert_encoder_of(model, source)
            assert model.config.num_labels == 2
            assert_reloads(model, tmp_path / model_class.__name__)

    def test_head_of_the_same_names_and_shapes_does_not_leak_in(self, tmp_path: Path) -> None:
        source = save_source(tmp_path, "roberta", AutoModelForSequenceClassification)
        model = RobertaForHIRE.from_pretrained(tmp_path, preset="fast")
        theirs = {f"classifier.{name}": value for name, value in source.classifier.state_dict().items()}
        ours = {name: value for name, value in model.state_dict().items() if name.startswith("classifier.")}
        assert {name: value.shape for name, value in ours.items()} == {n: v.shape for n, v in theirs.items()}
        assert not any(torch.equal(ours[name], theirs[name]) for name in ours)
        assert_scale_of_new_parameters(model)

    def test_encoder_gives_the_hidden_states_of_the_source(self, tmp_path: Path) -> None:
        source = save_source(tmp_path, "bert", AutoModelForMaskedLM)
        model = HireModel.from_pretrained(tmp_path)
        with torch.no_grad():
            ours = model(**tiny_batch(), output_hidden_states=True).hidden_states
            theirs = source(**tiny_batch(), output_hidden_states=True).hidden_states
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)

    def test_is_not_written_to(self, tmp_path: Path) -> None:
        save_source(tmp_path, "bert")
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        HireForSequenceClassification.from_pretrained(tmp_path, num_labels=4).config.vocab_size = 7
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


class TestNewParameters:
    @pytest.mark.parametrize("weighting", ["dynamic", "static", "random"])
    @pytest.mark.parametrize("preset", ["paper", "fast"])
    def test_are_drawn_in_poisoned_memory_too(
        self, preset: str, weighting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_source(tmp_path, "bert", hidden_size=64)
        poison_new_memory(monkeypatch)
        model = HireForSequenceClassification.from_pretrained(tmp_path, preset=preset, weighting=weighting)
        assert_scale_of_new_parameters(model)

    def test_differ_from_load_to_load(self, tmp_path: Path) -> None:
        save_source(tmp_path, "bert")
        one, other = (new_parameters(HireForSequenceClassification.from_pretrained(tmp_path)) for _ in range(2))
        drawn = [name for name, value in one.items() if value.dim() > 1]
        assert drawn and not any(torch.equal(one[name], other[name]) for name in drawn)

    def test_follow_the_seed(self, tmp_path: Path) -> None:
        save_source(tmp_path, "bert")
        states = []
        for _ in range(2):
            torch.manual_seed(11)
            states.append(HireForSequenceClassification.from_pretrained(tmp_path).state_dict())
        assert_same(*states)

    def test_are_told_with_what_was_dropped(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        save_source(tmp_path, "bert", AutoModelForMaskedLM)
        HireForSequenceClassification.from_pretrained(tmp_path, preset="fast")
        (message,) = [text for text in caplog.messages if "Newly initialised" in text]
        assert "hire.weighting.scorers.0.head" in message and "classifier.out_proj" in message
        assert "Dropped from the source: cls.predictions" in message and "hire.encoder" not in message

    def test_are_listed_in_the_loading_info(self, tmp_path: Path) -> None:
        save_source(tmp_path, "bert", AutoModelForMaskedLM)
        model, info = HireForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"] == new_parameters(model).keys()
        assert any(key.startswith("cls.predictions") for key in info["unexpected_keys"])


class TestKeywords:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        save_source(tmp_path / "source", "bert", AutoModelForSequenceClassification, num_labels=3)
        return tmp_path / "source"

    def test_fields_reach_the_config(self, source: Path) -> None:
        labels = {0: "no", 1: "perhaps", 2: "yes", 3: "surely"}
        model = HireForSequenceClassification.from_pretrained(
            source, weighting="static", fusion_num_layers=1, id2label=labels, layer_plan=[0, 0, 1, 2]
        )
        assert (model.config.weighting, model.config.fusion_num_layers) == ("static", 1)
        assert model.config.id2label == labels and model.classifier.out_proj.out_features == 4
        assert model.hire.weighting.layer_scores.shape == (3,)

    def test_preset_and_overrides(self, source: Path) -> None:
        config = HireForSequenceClassification.from_pretrained(source, preset="fast", fusion_num_layers=2).config
        assert (config.scorer, config.fusion_num_layers) == ("pooled", 2)

    def test_config_replaces_the_derived_one(self, source: Path) -> None:
        config = tiny_config("paper-half", num_labels=5)
        model = HireForSequenceClassification.from_pretrained(source, config=config, hire_dropout=0.3)
        assert model.config.scorer_hidden_size == 16 and model.classifier.out_proj.out_features == 5
        assert (model.config.hire_dropout, config.hire_dropout) == (0.3, 0.1)

    def test_config_may_be_a_folder(self, source: Path, tmp_path: Path) -> None:
        tiny_config("fast", num_labels=5).save_pretrained(tmp_path / "config")
        model = HireForSequenceClassification.from_pretrained(source, config=str(tmp_path / "config"))
        assert model.config.scorer == "pooled" and model.config.num_labels == 5

    @pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"])
    def test_dtype_is_that_of_every_parameter(self, source: Path, dtype: Any, tmp_path: Path) -> None:
        model = HireForSequenceClassification.from_pretrained(source, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert torch.get_default_dtype() == torch.float32
        model.save_pretrained(tmp_path / "half")
        loaded = HireForSequenceClassification.from_pretrained(tmp_path / "half")
        assert loaded.dtype == torch.bfloat16
        assert_same(loaded.state_dict(), model.state_dict())

    def test_dtype_is_the_checkpoints_by_default(self, tmp_path: Path) -> None:
        AutoModel.from_config(tiny_encoder_config("bert")).to(torch.float16).save_pretrained(tmp_path)
        assert HireModel.from_pretrained(tmp_path).dtype == torch.float16
        assert HireModel.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_attention_implementation(self, source: Path, implementation: str) -> None:
        model = HireForSequenceClassification.from_pretrained(source, attn_implementation=implementation)
        assert model.hire.encoder.config._attn_implementation == implementation
        assert model.config.encoder_config._attn_implementation == implementation

    def test_model_is_in_evaluation_mode(self, source: Path) -> None:
        model = HireForSequenceClassification.from_pretrained(source)
        assert not any(module.training for module in model.modules())


class TestDeviceMap:
    SPLIT = {"hire.encoder": "cpu", "hire.weighting": "cpu", "hire.fusion": "disk", "classifier": "cpu"}
    ALL = ["cpu", "auto", {"": "cpu"}, {"hire": "cpu", "classifier": "cpu"}, SPLIT, {"": "disk"}]

    @pytest.mark.parametrize("device_map", ALL, ids=str)
    def test_changes_no_result(self, device_map: Any, tmp_path: Path) -> None:
        save_source(tmp_path / "source", "bert")
        results = []
        for keywords in ({}, {"device_map": device_map, "offload_folder": tmp_path / "offloaded"}):
            torch.manual_seed(11)
            model = HireForSequenceClassification.from_pretrained(tmp_path / "source", **keywords)
            with torch.no_grad():
                results.append(model(**tiny_batch()).logits)
        assert_same_outputs(results[:1], results[1:])

    @pytest.mark.parametrize("device_map", ALL, ids=str)
    def test_changes_no_result_of_our_own_checkpoint(self, device_map: Any, tmp_path: Path) -> None:
        model = enliven(HireForSequenceClassification(tiny_config("fast"))).eval()
        model.save_pretrained(tmp_path / "ours")
        loaded = HireForSequenceClassification.from_pretrained(
            tmp_path / "ours", device_map=device_map, offload_folder=tmp_path / "offloaded"
        )
        with torch.no_grad():
            assert_same_outputs([loaded(**tiny_batch()).logits], [model(**tiny_batch()).logits])

    def test_takes_no_weights_of_an_earlier_load_from_the_disk(self, tmp_path: Path) -> None:
        save_source(tmp_path / "source", "bert")
        keywords = {"device_map": self.SPLIT, "offload_folder": tmp_path / "offloaded"}
        results = []
        for _ in range(2):
            model = HireForSequenceClassification.from_pretrained(tmp_path / "source", **keywords)
            with torch.no_grad():
                results.append(model(**tiny_batch()).logits)
        assert not torch.equal(*results)
