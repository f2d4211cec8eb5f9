"""LoRA with the modules that `peft_modules` names: the new ones are trained and saved whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from tiny_models import HEADS, assert_same, enliven, new_parameters, tiny_batch, tiny_config, tiny_model, with_labels
from transformers import PreTrainedModel

from modeling_hire import HireForSequenceClassification
from modeling_hire.hub import peft_modules


def adapted(model: PreTrainedModel, task_type: TaskType | None = None) -> PeftModel:
    return get_peft_model(model, LoraConfig(r=2, lora_alpha=4, task_type=task_type, **peft_modules(model)))


def train(model: PeftModel, batch: dict[str, torch.Tensor], steps: int = 3) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()


def outputs(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(model.eval()(**batch).to_tuple())


@pytest.mark.parametrize("preset", ["paper", "fast"])
@pytest.mark.parametrize("model_class", HEADS)
def test_adapter_saved_and_loaded_gives_the_same(preset: str, model_class: type, tmp_path: Path) -> None:
    # The base model is the encoder with new modules of another draw: they must come out of the adapter.
    config = tiny_config(preset)
    model = enliven(model_class(config)).eval()
    batch = with_labels(model_class, tiny_batch((9, 6, 4, 5)))
    before = outputs(model, batch)
    peft_model = adapted(model)
    train(peft_model, batch)
    after = outputs(peft_model, batch)
    assert not torch.allclose(after[1], before[1], atol=1e-3)
    peft_model.save_pretrained(tmp_path)

    other = enliven(model_class(config), seed=9).eval()
    other.hire.encoder.load_state_dict(enliven(model_class(config)).hire.encoder.state_dict())
    loaded = PeftModel.from_pretrained(other, tmp_path)
    for one, two in zip(outputs(loaded, batch), after, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=0)


@pytest.mark.parametrize("weighting", ["dynamic", "static", "random", "mean"])
def test_all_that_is_new_is_trained_and_nothing_else_whole(weighting: str) -> None:
    model = tiny_model("paper", weighting=weighting)
    new = new_parameters(model)
    encoder = {name: p.clone() for name, p in model.named_parameters() if name not in new}
    peft_model = adapted(model, TaskType.SEQ_CLS)
    trained = {name for name, p in peft_model.named_parameters() if p.requires_grad}
    assert new.keys() <= {plain_name(name) for name in trained}
    assert any("lora_A" in name for name in trained)
    train(peft_model, with_labels(HireForSequenceClassification, tiny_batch((9, 6))))
    state = {name.replace(".base_layer", ""): p for name, p in peft_model.base_model.model.named_parameters()}
    assert_same({name: state[name] for name in encoder}, encoder)


def plain_name(name: str) -> str:
    """What the model itself calls a parameter that PEFT saves whole."""
    return name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")


@pytest.mark.parametrize(
    ("encoder_type", "layer_plan"),
    [("roberta", None), ("deberta-v2", None), ("modernbert", None), ("distilbert", [0, 0, 1, 2]), ("albert", None)],
)
def test_on_other_encoders(encoder_type: str, layer_plan: list[int] | None, tmp_path: Path) -> None:
    model = tiny_model("fast", encoder_type, layer_plan=layer_plan)
    batch = with_labels(HireForSequenceClassification, tiny_batch((9, 6)))
    peft_model = adapted(model, TaskType.SEQ_CLS)
    train(peft_model, batch)
    after = outputs(peft_model, batch)
    peft_model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny_model("fast", encoder_type, layer_plan=layer_plan), tmp_path)
    torch.testing.assert_close(outputs(loaded, batch), after, atol=1e-6, rtol=0)


def test_merged_adapter_is_an_ordinary_checkpoint(tmp_path: Path) -> None:
    batch = with_labels(HireForSequenceClassification, tiny_batch((9, 6)))
    peft_model = adapted(tiny_model("fast"))
    train(peft_model, batch)
    after = outputs(peft_model, batch)
    merged = peft_model.merge_and_unload()
    merged.save_pretrained(tmp_path)
    loaded = HireForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(outputs(loaded, batch), after, atol=1e-5, rtol=0)
