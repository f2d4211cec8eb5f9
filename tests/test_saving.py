"""Our own checkpoints: saved and loaded again they are the same model, through every class of the family."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import tiny_encoder_config
from tiny_models import (
    HEADS,
    HIRE_SETTINGS,
    assert_same,
    assert_same_outputs,
    assert_scale_of_new_parameters,
    enliven,
    poison_new_memory,
    tiny_batch,
    tiny_config,
    tiny_model,
)
from transformers import (
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from modeling_hire import (
    HireConfig,
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
    RobertaForHIRE,
    RobertaHireConfig,
    RobertaHireModel,
)


AUTO_CLASSES = {
    HireForSequenceClassification: AutoModelForSequenceClassification,
    HireForTokenClassification: AutoModelForTokenClassification,
    HireForQuestionAnswering: AutoModelForQuestionAnswering,
    HireForMultipleChoice: AutoModelForMultipleChoice,
    HireModel: AutoModel,
}


def run(model: PreTrainedModel) -> tuple[torch.Tensor, ...]:
    batch = tiny_batch((9, 6))
    if isinstance(model, HireForMultipleChoice):
        batch = {name: value[None] for name, value in batch.items()}
    with torch.no_grad():
        return model(**batch).to_tuple()


def assert_equal(one: PreTrainedModel, other: PreTrainedModel) -> None:
    assert type(one) is type(other)
    assert_same(one.state_dict(), other.state_dict())
    assert_same_outputs(run(one), run(other))


class TestRoundTrip:
    @pytest.mark.parametrize("setting", HIRE_SETTINGS)
    def test_of_every_setting(self, setting: str, tmp_path: Path) -> None:
        model = tiny_model(**HIRE_SETTINGS[setting])
        model.save_pretrained(tmp_path)
        loaded, info = HireForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert_equal(loaded, model)

    @pytest.mark.parametrize("model_class", AUTO_CLASSES)
    def test_of_every_class_through_its_auto_class(self, model_class: type, tmp_path: Path) -> None:
        model = tiny_model(model_class=model_class)
        model.save_pretrained(tmp_path)
        assert_equal(model_class.from_pretrained(tmp_path), model)
        assert_equal(AUTO_CLASSES[model_class].from_pretrained(tmp_path), model)

    def test_of_the_paper_model_through_its_auto_classes(self, tmp_path: Path) -> None:
        config = RobertaHireConfig.preset("paper", tiny_encoder_config("roberta"))
        model = enliven(RobertaForHIRE(config)).eval()
        model.save_pretrained(tmp_path)
        assert_equal(AutoModelForSequenceClassification.from_pretrained(tmp_path), model)
        bare = AutoModel.from_pretrained(tmp_path)
        assert isinstance(bare, RobertaHireModel)
        assert_same_outputs(run(bare)[:1], run(model.hire)[:1])

    @pytest.mark.parametrize("model_class", HEADS)
    def test_bare_model_gives_the_hidden_states_of_every_head(self, model_class: type, tmp_path: Path) -> None:
        model = tiny_model(model_class=model_class)
        model.save_pretrained(tmp_path)
        bare = AutoModel.from_pretrained(tmp_path)
        assert_same(bare.state_dict(), model.hire.state_dict())
        with torch.no_grad():
            ours, theirs = (part(**tiny_batch()).last_hidden_state for part in (bare, model.hire))
        assert_same_outputs([ours], [theirs])

    def test_keeps_a_weight_that_an_initialisation_would_change(self, tmp_path: Path) -> None:
        for weighting in ("dynamic", "static", "random"):
            model = tiny_model(weighting=weighting)
            state = {key: torch.full_like(value, 0.5) for key, value in model.state_dict().items()}
            model.load_state_dict(state)
            model.save_pretrained(tmp_path)
            assert_same(HireForSequenceClassification.from_pretrained(tmp_path).state_dict(), state)

    def test_twice_writes_the_same_files(self, tmp_path: Path) -> None:
        tiny_model(layer_plan=[0, 0, 1]).save_pretrained(tmp_path / "new")
        for source, target in (("new", "once"), ("once", "twice")):
            HireForSequenceClassification.from_pretrained(tmp_path / source).save_pretrained(tmp_path / target)
        files = {file.name for file in (tmp_path / "once").iterdir()}
        assert files == {file.name for file in (tmp_path / "twice").iterdir()}
        for name in files:
            once, twice = ((tmp_path / folder / name).read_bytes() for folder in ("once", "twice"))
            if name == "config.json":
                once, twice = (json.dumps(json.loads(text), sort_keys=True) for text in (once, twice))
            assert once == twice, name

    def test_in_several_files(self, tmp_path: Path) -> None:
        model = tiny_model()
        model.save_pretrained(tmp_path, max_shard_size="100KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
        assert_equal(HireForSequenceClassification.from_pretrained(tmp_path), model)

    @pytest.mark.parametrize("encoder_type", ["bert", "albert", "modernbert"])
    def test_of_a_layer_plan(self, encoder_type: str, tmp_path: Path) -> None:
        model = tiny_model("fast", encoder_type, layer_plan=[0, 0, 1, 2, 2])
        model.save_pretrained(tmp_path / "tied")
        loaded = HireForSequenceClassification.from_pretrained(tmp_path / "tied")
        assert loaded.config.layer_plan == [0, 0, 1, 2, 2]
        assert loaded.config.encoder_config.num_hidden_layers == 3
        assert_equal(loaded, model)
        tiny_model("fast", encoder_type).save_pretrained(tmp_path / "plain")
        sizes = [len(load_file(tmp_path / name / "model.safetensors")) for name in ("tied", "plain")]
        assert sizes[0] == sizes[1]

    def test_with_another_layer_plan(self, tmp_path: Path) -> None:
        model = tiny_model("fast")
        model.save_pretrained(tmp_path)
        loaded = HireForSequenceClassification.from_pretrained(tmp_path, layer_plan=[2, 1, 0])
        expected = tiny_model("fast", layer_plan=[2, 1, 0])
        expected.load_state_dict(model.state_dict())
        assert_same_outputs(run(loaded)[:1], run(expected)[:1])

    def test_encoder_under_a_plan_is_not_saved_by_itself(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="layer_plan, which a plain checkpoint cannot express"):
            tiny_model("fast", layer_plan=[0, 0, 1]).hire.encoder.save_pretrained(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_encoder_without_a_plan_is_a_plain_checkpoint(self, tmp_path: Path) -> None:
        model = tiny_model("fast")
        model.hire.encoder.save_pretrained(tmp_path)
        plain = AutoModel.from_pretrained(tmp_path)
        assert_same(
            {k: v for k, v in plain.state_dict().items() if "pooler" not in k}, model.hire.encoder.state_dict()
        )
        again = HireForSequenceClassification.from_pretrained(tmp_path, preset="fast")
        assert_same(again.hire.encoder.state_dict(), model.hire.encoder.state_dict())


class TestNewHead:
    """A checkpoint of one task, loaded for another, keeps all but the head."""

    @pytest.mark.parametrize(
        ("source", "target"),
        [(source, target) for source in (HireModel, HireForSequenceClassification) for target in HEADS[1:]],
    )
    def test_is_drawn_and_told(
        self, source: type, target: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tiny_model(model_class=source)
        model.save_pretrained(tmp_path)
        poison_new_memory(monkeypatch)
        loaded, info = target.from_pretrained(tmp_path, output_loading_info=True, ignore_mismatched_sizes=True)
        base = model if source is HireModel else model.hire
        assert_same(loaded.hire.state_dict(), base.state_dict())
        head = {key: value for key, value in loaded.state_dict().items() if not key.startswith("hire.")}
        drawn = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
        assert all(value.isfinite().all() and value.abs().max() < 0.2 for key, value in head.items() if key in drawn)
        if source is HireModel:
            assert info["missing_keys"] == head.keys()

    @pytest.mark.parametrize("weighting", ["dynamic", "static", "random"])
    @pytest.mark.parametrize("preset", ["paper", "fast"])
    def test_and_all_that_is_new_is_drawn_in_poisoned_memory(
        self, preset: str, weighting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = tiny_config(preset, weighting=weighting, encoder={"hidden_size": 64})
        model = HireForSequenceClassification(config)
        model.save_pretrained(tmp_path)
        file = tmp_path / "model.safetensors"
        encoder = {key: value for key, value in load_file(file).items() if key.startswith("hire.encoder.")}
        save_file(encoder, file, metadata={"format": "pt"})
        poison_new_memory(monkeypatch)
        loaded, info = HireForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"] == loaded.state_dict().keys() - encoder.keys()
        assert_same(loaded.hire.encoder.state_dict(), model.hire.encoder.state_dict())
        assert_scale_of_new_parameters(loaded)


class TestVocabulary:
    @pytest.mark.parametrize("layer_plan", [None, [0, 0, 1, 2]])
    @pytest.mark.parametrize("encoder_type", ["bert", "roberta", "deberta-v2", "distilbert", "modernbert", "xlnet"])
    def test_resized_survives_a_reload(self, encoder_type: str, layer_plan: list[int] | None, tmp_path: Path) -> None:
        model = tiny_model("fast", encoder_type, layer_plan=layer_plan)
        model.resize_token_embeddings(120)
        assert model.config.vocab_size == model.config.encoder_config.vocab_size == 120
        model.save_pretrained(tmp_path)
        loaded = HireForSequenceClassification.from_pretrained(tmp_path)
        assert loaded.get_input_embeddings().num_embeddings == 120
        assert_equal(loaded, model)
        with torch.no_grad():
            assert loaded(input_ids=torch.tensor([[5, 119, 6]])).logits.isfinite().all()

    def test_embeddings_can_be_replaced(self) -> None:
        model = tiny_model("fast")
        new = torch.nn.Embedding(50, 32)
        model.set_input_embeddings(new)
        assert model.get_input_embeddings() is model.hire.get_input_embeddings() is new


class TestFolder:
    @pytest.mark.parametrize("model_class", AUTO_CLASSES)
    def test_holds_the_code_and_the_whole_map(self, model_class: type, tmp_path: Path) -> None:
        model = tiny_model("fast", model_class=model_class)
        model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        files = {file.stem for file in tmp_path.glob("*.py")}
        assert {entry.partition(".")[0] for entry in config["auto_map"].values()} <= files
        assert config["auto_map"] == HireModel.config_class.auto_classes
        assert config["architectures"] == [model_class.__name__]
        assert config["model_type"] == "hire" and config["layer_indices"] == [1, 2]

    def test_says_nothing_of_the_encoder_twice(self, tmp_path: Path) -> None:
        tiny_model("fast").save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert not {"vocab_size", "hidden_size", "num_hidden_layers"} & config.keys()


def test_the_folder_of_a_local_encoder_stays_private(tmp_path: Path) -> None:
    source, saved = tmp_path / "encoder", tmp_path / "saved"
    AutoModel.from_config(tiny_encoder_config("bert")).save_pretrained(source)
    HireForSequenceClassification.from_pretrained(source, preset="fast").save_pretrained(saved)
    assert str(tmp_path) not in (saved / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("layer_plan", [None, [0, 0, 1, 2]], ids=str)
def test_a_model_can_be_pickled(layer_plan: list[int] | None) -> None:
    config = HireConfig.preset("fast", tiny_encoder_config("bert"), layer_plan=layer_plan)
    model = HireForSequenceClassification(config)
    assert pickle.loads(pickle.dumps(model)).state_dict().keys() == model.state_dict().keys()
