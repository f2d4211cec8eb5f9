"""BERT with duplicated layers: against stacks built by hand, tied and untied, loaded, trained and turned back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import assert_same, assert_same_outputs, enliven, gradients, rows, tiny_batch
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    RobertaModel,
)

from modeling_hire import (
    BertWithDuplicatedLayers,
    BertWithDuplicatedLayersConfig,
    BertWithDuplicatedLayersForMaskedLM,
    BertWithDuplicatedLayersForQuestionAnswering,
    BertWithDuplicatedLayersForSequenceClassification,
    HireConfig,
    HireForQuestionAnswering,
    HireForSequenceClassification,
)
from modeling_hire.configuration_layer_plans import parse_plan
from modeling_hire.duplication import duplicate_layers


PLAIN = {
    BertWithDuplicatedLayers: BertModel,
    BertWithDuplicatedLayersForMaskedLM: BertForMaskedLM,
    BertWithDuplicatedLayersForSequenceClassification: BertForSequenceClassification,
    BertWithDuplicatedLayersForQuestionAnswering: BertForQuestionAnswering,
}
AUTO = dict(
    zip(
        PLAIN,
        (AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForQuestionAnswering),
        strict=True,
    )
)
every_class = pytest.mark.parametrize("model_class", PLAIN)
every_head = pytest.mark.parametrize("model_class", [cls for cls in PLAIN if cls is not BertWithDuplicatedLayers])
every_plan = pytest.mark.parametrize("plan", ["first:2", "block:0-1", [2, 0, 3]], ids=str)
either_way = pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])


def plain_model(plain_class: type[PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    return enliven(plain_class(tiny_encoder_config("bert"))).eval()


def by_hand(model: PreTrainedModel, sources: list[int]) -> PreTrainedModel:
    model = copy.deepcopy(model)
    encoder = model.base_model.encoder
    encoder.layer = nn.ModuleList([copy.deepcopy(encoder.layer[source]) for source in sources])
    model.config.num_hidden_layers = len(sources)
    return model


def run(model: PreTrainedModel) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return model(**tiny_batch((9, 6))).to_tuple()


@either_way
@every_plan
@every_class
def test_equals_a_stack_built_by_hand(model_class: type, plan: Any, tie: bool, tmp_path: Path) -> None:
    source = plain_model(PLAIN[model_class])
    source.save_pretrained(tmp_path / "plain")
    expected = run(by_hand(source, parse_plan(plan, 3)))
    model = model_class.from_pretrained(tmp_path / "plain", duplicate=plan, tie=tie)
    assert type(model) is model_class and not model.training
    assert_same_outputs(run(model), expected)
    model.save_pretrained(tmp_path / "ours")
    # Loaded again, nothing is duplicated again.
    for loader in (model_class, AUTO[model_class]):
        loaded, info = loader.from_pretrained(tmp_path / "ours", output_loading_info=True)
        assert type(loaded) is model_class and not info["missing_keys"] and not info["unexpected_keys"]
        assert_same(loaded.state_dict(), model.state_dict())
        assert_same_outputs(run(loaded), expected)
    bare = AutoModel.from_pretrained(tmp_path / "ours")
    assert_same_outputs(run(bare)[:1], run(by_hand(source.base_model, parse_plan(plan, 3)))[:1])


@every_class
def test_tied_has_the_parameters_and_the_size_of_the_original(model_class: type, tmp_path: Path) -> None:
    source = plain_model(PLAIN[model_class])
    source.save_pretrained(tmp_path / "plain")
    model = model_class.from_pretrained(tmp_path / "plain", duplicate="all:3", tie=True)
    assert model.num_parameters() == source.num_parameters()
    assert_same(model.state_dict(), source.state_dict())
    model.save_pretrained(tmp_path / "ours")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("plain", "ours")]
    assert sizes[0] == sizes[1]


class TestRecord:
    @pytest.fixture
    def plain(self, tmp_path: Path) -> Path:
        plain_model(BertForMaskedLM).save_pretrained(tmp_path / "plain")
        return tmp_path / "plain"

    def load(self, folder: Path, *args: Any) -> BertWithDuplicatedLayersForMaskedLM:
        duplicate, tie = args or (None, None)
        return BertWithDuplicatedLayersForMaskedLM.from_pretrained(folder, duplicate=duplicate, tie=tie)

    def test_says_where_layers_come_from(self, plain: Path) -> None:
        assert self.load(plain).config.layer_sources is None and self.load(plain).config.layer_plan is None
        untied = self.load(plain, "first:1", False).config
        assert (untied.num_hidden_layers, untied.layer_sources, untied.layer_plan) == (4, [0, 0, 1, 2], None)
        tied = self.load(plain, "first:1", True).config
        assert (tied.num_hidden_layers, tied.layer_sources, tied.layer_plan) == (3, None, [0, 0, 1, 2])
        assert tied.num_executed_layers == untied.num_executed_layers == 4

    def test_removed_layers_are_not_kept(self, plain: Path) -> None:
        # A layer that never runs has no gradient, which stops distributed training.
        tied = self.load(plain, [2, 0, 1], True)
        assert (tied.config.num_hidden_layers, tied.config.layer_plan) == (2, [0, 0, 1])
        assert tied.config.layer_sources == [0, 2]

    @pytest.mark.parametrize("first", [False, True])
    @pytest.mark.parametrize("second", [False, True])
    def test_duplicating_again_composes(self, plain: Path, tmp_path: Path, first: bool, second: bool) -> None:
        self.load(plain, "last:1", first).save_pretrained(tmp_path / "once")
        twice = self.load(tmp_path / "once", [1, 1, 1, 2], second)
        assert_same_outputs(run(twice), run(by_hand(BertForMaskedLM.from_pretrained(plain), [0, 1, 2, 2, 2])))
        twice.save_pretrained(tmp_path / "twice")
        assert_same_outputs(run(self.load(tmp_path / "twice")), run(twice))
        config = twice.config
        order = config.layer_plan or list(range(config.num_hidden_layers))
        sources = config.layer_sources or [0, 1, 2]
        assert [sources[block] for block in order] == [0, 1, 2, 2, 2]
        assert (config.layer_plan is not None) == second

    def test_stays_as_it_is_tied_unless_told_otherwise(self, plain: Path, tmp_path: Path) -> None:
        self.load(plain, "last:1", True).save_pretrained(tmp_path / "once")
        assert self.load(tmp_path / "once", "all:2", None).config.layer_plan == [0, 0, 1, 1, 2, 2, 2, 2]

    def test_method_and_function_do_the_same(self, plain: Path) -> None:
        once = self.load(plain, "last:1", True)
        before = copy.deepcopy(once.state_dict())
        for twice in (once.duplicate("first:1"), duplicate_layers(once, "first:1")):
            assert twice.config.layer_plan == [0, 0, 1, 2, 2]
        assert_same(once.state_dict(), before)
        memory = {parameter.data_ptr() for parameter in once.parameters()}
        assert not any(parameter.data_ptr() in memory for parameter in twice.parameters())
        assert duplicate_layers(once, "first:1", tie=False).config.layer_sources == [0, 0, 1, 2, 2]

    def test_an_ordinary_deeper_bert_keeps_its_record(self, plain: Path, tmp_path: Path) -> None:
        duplicate_layers(BertForMaskedLM.from_pretrained(plain), "first:1").save_pretrained(tmp_path / "deep")
        assert self.load(tmp_path / "deep", "last:1", False).config.layer_sources == [0, 0, 1, 2, 2]


class TestPlainAgain:
    @every_class
    def test_untied(self, model_class: type, tmp_path: Path) -> None:
        plain_model(PLAIN[model_class]).save_pretrained(tmp_path / "plain")
        model = model_class.from_pretrained(tmp_path / "plain", duplicate="first:2").train()
        plain = model.to_bert()
        assert type(plain) is PLAIN[model_class] and plain.training and plain.config.model_type == "bert"
        assert_same(plain.state_dict(), model.state_dict())
        assert plain.base_model.encoder.layer[0].output.dense.weight is not model.base_model.encoder.layer[0]
        plain.eval().save_pretrained(tmp_path / "again")
        assert not list((tmp_path / "again").glob("*.py"))
        loaded = AUTO[model_class].from_pretrained(tmp_path / "again")
        assert type(loaded) is PLAIN[model_class] and loaded.config.layer_sources == [0, 0, 1, 1, 2]
        assert_same_outputs(run(loaded), run(model.eval()))

    def test_tied_is_refused_with_a_way_out(self) -> None:
        config = BertWithDuplicatedLayersConfig(**_sizes(), layer_plan=[0, 0, 1, 2])
        model = enliven(BertWithDuplicatedLayers(config)).eval()
        with pytest.raises(ValueError, match=r"layer_plan=\[0, 0, 1, 2\].*tie=False"):
            model.to_bert()
        assert_same_outputs(run(model.duplicate([1] * 4, tie=False).to_bert()), run(model))


def _sizes() -> dict[str, Any]:
    return {key: value for key, value in tiny_encoder_config("bert").to_dict().items() if key != "model_type"}


@pytest.mark.parametrize("plain_class", [BertModel, BertForMaskedLM, BertForPreTraining, BertForQuestionAnswering])
@every_class
def test_any_kind_of_checkpoint(model_class: type, plain_class: type, tmp_path: Path) -> None:
    source = plain_model(plain_class)
    source.save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path, duplicate="first:1")
    layers, theirs = model.base_model.encoder.layer, source.base_model.encoder.layer
    for place, layer in enumerate([0, 0, 1, 2]):
        assert_same(layers[place].state_dict(), theirs[layer].state_dict())
    if hasattr(model, "cls") and hasattr(source, "cls"):
        assert_same(model.cls.predictions.state_dict(), source.cls.predictions.state_dict())
        embeddings = model.bert.embeddings.word_embeddings.weight
        assert model.cls.predictions.decoder.weight is embeddings


@either_way
def test_hidden_states_follow_the_execution(tie: bool, tmp_path: Path) -> None:
    source = plain_model(BertForSequenceClassification)
    source.save_pretrained(tmp_path)
    classes = (BertWithDuplicatedLayers, BertWithDuplicatedLayersForSequenceClassification)
    for model in [cls.from_pretrained(tmp_path, duplicate="all:2", tie=tie) for cls in classes]:
        everything = model(**tiny_batch(), output_hidden_states=True).hidden_states
        expected = by_hand(source, [0, 0, 1, 1, 2, 2])(**tiny_batch(), output_hidden_states=True).hidden_states
        assert_same_outputs(everything, expected)
        some = model(**tiny_batch(), output_hidden_states=[-1, -3, 1]).hidden_states
        assert [index for index, state in enumerate(some) if state is not None] == [1, 4, 6]
        assert_same_outputs([some[6], some[4], some[1]], [everything[6], everything[4], everything[1]])


@either_way
@every_head
def test_accumulated_batches_weigh_as_one(model_class: type, tie: bool) -> None:
    extra = {"layer_plan": [0, 0, 1, 2]} if tie else {}
    model = enliven(model_class(BertWithDuplicatedLayersConfig(**_sizes(), **extra))).eval()
    batch = tiny_batch((9, 6, 4, 8))
    if model_class is BertWithDuplicatedLayersForMaskedLM:
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        batch["labels"] = labels.masked_fill(torch.arange(9) % 3 == 0, -100)
        count = (batch["labels"] != -100).sum()
        logits = model(**{key: batch[key] for key in ("input_ids", "attention_mask")}).logits
        expected = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    elif model_class is BertWithDuplicatedLayersForQuestionAnswering:
        batch |= {"start_positions": torch.tensor([1, 2, 0, 3]), "end_positions": torch.tensor([2, 4, 1, 7])}
        count = 4
        outputs = model(**{key: batch[key] for key in ("input_ids", "attention_mask")})
        padding = batch["attention_mask"] == 0
        pairs = ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions"))
        pairs = [(logits.masked_fill(padding, -torch.inf), name) for logits, name in pairs]
        expected = sum(functional.cross_entropy(logits, batch[name]) for logits, name in pairs) / 2
    else:
        batch["labels"], count = torch.tensor([0, 1, 1, 0]), 4
        logits = model(**{key: batch[key] for key in ("input_ids", "attention_mask")}).logits
        expected = functional.cross_entropy(logits, batch["labels"])
    whole = model(**batch).loss
    torch.testing.assert_close(whole, expected)
    whole.backward()
    at_once = gradients(model)
    model.zero_grad()
    for row in range(4):
        model(**rows(batch, slice(row, row + 1)), num_items_in_batch=count).loss.backward()
    assert_same(gradients(model), at_once, atol=1e-6, rtol=1e-4)


def test_what_is_frozen_stays_so() -> None:
    model = BertWithDuplicatedLayersForSequenceClassification(BertWithDuplicatedLayersConfig(**_sizes()))
    model.bert.encoder.layer[1].requires_grad_(False)
    deeper = model.duplicate("all:2")
    frozen = {name for name, parameter in deeper.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in deeper.named_parameters() if ".layer.2." in name or ".layer.3." in name}


def test_padding_has_no_share_in_the_loss_of_a_span() -> None:
    duplicated = BertWithDuplicatedLayersForQuestionAnswering(BertWithDuplicatedLayersConfig(**_sizes()))
    hire = HireForQuestionAnswering(HireConfig.preset("fast", tiny_encoder_config("bert")))
    places = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 4])}
    for model in (duplicated, hire):
        enliven(model).eval()
        losses = [model(**tiny_batch((9, 6), tokens=tokens), **places).loss for tokens in (9, 15)]
        torch.testing.assert_close(*losses, atol=1e-6, rtol=1e-5)
        # An answer said to lie in the padding does not count.
        outside = {**places, "start_positions": torch.tensor([1, 8]), "end_positions": torch.tensor([2, 8])}
        alone = model(**tiny_batch((9,), tokens=9), **{name: value[:1] for name, value in places.items()}).loss
        torch.testing.assert_close(model(**tiny_batch((9, 6)), **outside).loss, alone, atol=1e-6, rtol=1e-5)


def test_every_executed_layer_gets_a_gradient_and_tied_ones_the_sum() -> None:
    config = BertWithDuplicatedLayersConfig(**_sizes(), layer_plan=[0, 0, 1, 2])
    tied = enliven(BertWithDuplicatedLayersForSequenceClassification(config)).eval()
    untied = tied.duplicate([1] * 4, tie=False)
    for model in (tied, untied):
        model(**tiny_batch(), labels=torch.tensor([0, 1, 1])).loss.backward()
    assert all(parameter.grad is not None for parameter in tied.parameters())
    layers = untied.bert.encoder.layer
    for name, parameter in tied.bert.encoder.layer._modules["0"].named_parameters():
        total = sum(layers[place].get_parameter(name).grad for place in (0, 1))
        torch.testing.assert_close(parameter.grad, total, atol=1e-6, rtol=1e-4)


@either_way
def test_gradient_checkpointing_and_autocast(tie: bool) -> None:
    extra = {"layer_plan": [0, 0, 1, 2]} if tie else {}
    model = enliven(
        BertWithDuplicatedLayersForSequenceClassification(BertWithDuplicatedLayersConfig(**_sizes(), **extra))
    )
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = tiny_batch() | {"labels": torch.tensor([0, 1, 1])}
    model(**batch).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**batch).loss.backward()
    assert_same(gradients(model), expected, atol=1e-6, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(**batch).loss.isfinite()


def test_resized_embeddings_survive(tmp_path: Path) -> None:
    plain_model(BertForMaskedLM).save_pretrained(tmp_path / "plain")
    model = BertWithDuplicatedLayersForMaskedLM.from_pretrained(tmp_path / "plain", duplicate="first:1", tie=True)
    model.resize_token_embeddings(107)
    model.save_pretrained(tmp_path / "ours")
    loaded = BertWithDuplicatedLayersForMaskedLM.from_pretrained(tmp_path / "ours")
    assert loaded.config.vocab_size == 107
    assert_same_outputs(run(loaded), run(model))


class TestRefusals:
    def test_another_encoder(self, tmp_path: Path) -> None:
        RobertaModel(tiny_encoder_config("roberta")).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="type 'roberta'; allowed .* 'bert'.*duplicate_layers"):
            BertWithDuplicatedLayers.from_pretrained(tmp_path, duplicate="first:1")

    def test_a_wrong_plan(self, tmp_path: Path) -> None:
        plain_model(BertModel).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="duplicate='first:4': allowed are 1 to 3 layers"):
            BertWithDuplicatedLayers.from_pretrained(tmp_path, duplicate="first:4")

    def test_quantisation(self, tmp_path: Path) -> None:
        plain_model(BertModel).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="full-precision"):
            BertWithDuplicatedLayers.from_pretrained(tmp_path, duplicate="first:1", quantization_config={"bits": 4})

    @pytest.mark.parametrize(
        "fields",
        [
            {"layer_plan": [0, 3]},
            {"layer_plan": []},
            {"layer_plan": "first:1"},
            {"layer_sources": [0, 1]},
            {"layer_sources": [0, 1, -1]},
            {"is_decoder": True},
        ],
        ids=str,
    )
    def test_wrong_fields(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"^{next(iter(fields))}="):
            BertWithDuplicatedLayersConfig(**_sizes() | fields)

    def test_a_field_set_wrongly_later_is_not_saved(self, tmp_path: Path) -> None:
        config = BertWithDuplicatedLayersConfig(**_sizes())
        config.layer_plan = [7]
        with pytest.raises(ValueError, match="layer_plan"):
            config.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="layer_plan"):
            BertWithDuplicatedLayers(config)


def test_hire_takes_the_encoder_of_an_untied_one(tmp_path: Path) -> None:
    plain_model(BertModel).save_pretrained(tmp_path / "plain")
    BertWithDuplicatedLayers.from_pretrained(tmp_path / "plain", duplicate="first:1").to_bert().save_pretrained(
        tmp_path / "deep"
    )
    model = HireForSequenceClassification.from_pretrained(tmp_path / "deep", preset="fast")
    assert model.config.layer_indices == [1, 2, 3]
    assert model.config.num_hidden_layers == 4
