"""A tied layer plan in every encoder type, against a deeper encoder whose layers are deep copies."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from tiny_encoders import PLAN_UNSUPPORTED, STREAM_UNSUPPORTED, TINY_ENCODERS, tiny_encoder_config
from tiny_models import assert_same, gradients, tiny_batch, tiny_model
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from modeling_hire import HireConfig, HireForSequenceClassification


PLAN = [0, 0, 1, 1, 2, 2]
PLANNABLE = [name for name in TINY_ENCODERS if name not in PLAN_UNSUPPORTED]
STREAMABLE = [name for name in PLANNABLE if name not in STREAM_UNSUPPORTED]
LABELS = torch.tensor([0, 1, 1])


def deeper(encoder_config: PreTrainedConfig, plan: list[int]) -> PreTrainedConfig:
    """The config of an encoder that has what `plan` executes as layers of its own."""
    config = copy.deepcopy(encoder_config)
    config.num_hidden_layers = len(plan)
    for field in ("layer_types", "attention_window"):
        if getattr(config, field, None) is not None:
            setattr(config, field, [getattr(encoder_config, field)[layer] for layer in plan])
    return config


def untied_copy(tied: PreTrainedModel, plan: list[int]) -> tuple[PreTrainedModel, str]:
    """The same model without a plan, on a deeper encoder; and where its layers are (`""` for ALBERT's one group)."""
    untied = HireForSequenceClassification(HireConfig.preset("fast", deeper(tied.config.encoder_config, plan))).eval()
    found = ""
    for path, layers in list(untied.named_modules()):
        if isinstance(layers, nn.ModuleList) and len(layers) == len(plan) and "weighting" not in path:
            assert not found
            found = f"{path}."
            sources = list(tied.get_submodule(path)._modules.values())
            for place, layer in enumerate(plan):
                layers[place] = copy.deepcopy(sources[layer])
    # ESM's contact head reads the attention maps of all layers, so it has another shape; nothing here calls it.
    elsewhere = tuple(filter(None, (found, "hire.encoder.contact_head.")))
    outside = {key: value for key, value in tied.state_dict().items() if not key.startswith(elsewhere)}
    assert not untied.load_state_dict(outside, strict=False).unexpected_keys
    return untied, found


def summed_over_copies(untied: dict[str, torch.Tensor], layers: str, plan: list[int]) -> dict[str, torch.Tensor]:
    """Gradients of the copies, added up under the name of the layer they are copies of."""
    total: dict[str, torch.Tensor] = {}
    for name, gradient in untied.items():
        place = re.match(rf"{re.escape(layers)}(\d+)\.", name) if layers else None
        key = f"{layers}{plan[int(place[1])]}.{name[place.end() :]}" if place else name
        total[key] = total[key] + gradient if key in total else gradient
    return total


@pytest.mark.parametrize("plan", [PLAN, [2, 0]], ids=str)
@pytest.mark.parametrize("encoder_type", PLANNABLE)
def test_equals_untied_copies(encoder_type: str, plan: list[int]) -> None:
    tied = tiny_model("fast", encoder_type, layer_plan=plan)
    untied, layers = untied_copy(tied, plan)
    assert bool(layers) == (encoder_type != "albert")
    results = []
    for model in (tied, untied):
        outputs = model(**tiny_batch((9, 6, 4)), labels=LABELS, output_hidden_states=True, output_layer_weights=True)
        outputs.loss.backward()
        results.append(outputs)
    assert len(results[0].hidden_states) == len(plan) + 1
    for one, other in zip(results[0].hidden_states, results[1].hidden_states, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    for field in ("layer_weights", "logits"):
        torch.testing.assert_close(results[0][field], results[1][field], atol=1e-5, rtol=0)
    expected = summed_over_copies(gradients(untied), layers, plan)
    assert_same(gradients(tied), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("encoder_type", PLANNABLE)
def test_adds_no_parameter_and_renames_none(encoder_type: str) -> None:
    plain, tied = (tiny_model("fast", encoder_type, layer_plan=plan) for plan in (None, PLAN))
    assert tied.state_dict().keys() == plain.state_dict().keys()
    assert tied.num_parameters() == plain.num_parameters()
    assert (tied.config.num_hidden_layers, tied.config.num_executed_layers) == (3, 6)


@pytest.mark.parametrize("encoder_type", PLANNABLE)
def test_of_every_layer_once_is_no_plan(encoder_type: str) -> None:
    plain, once = (tiny_model("fast", encoder_type, layer_plan=plan) for plan in (None, [0, 1, 2]))
    with torch.no_grad():
        torch.testing.assert_close(once(**tiny_batch((9, 6))).logits, plain(**tiny_batch((9, 6))).logits)


@pytest.mark.parametrize("encoder_type", STREAMABLE)
def test_streams(encoder_type: str) -> None:
    model, batch = tiny_model("fast", encoder_type, layer_plan=PLAN, streaming="never"), tiny_batch((9, 6, 4))
    with torch.no_grad():
        stacked = model(**batch).logits
        model.config.streaming = "always"
        torch.testing.assert_close(model(**batch).logits, stacked, atol=1e-5, rtol=0)
    assert model.hire._can_stream


@pytest.mark.parametrize("encoder_type", PLAN_UNSUPPORTED)
def test_is_refused_where_it_cannot_be_followed(encoder_type: str) -> None:
    with pytest.raises(ValueError, match=f"{encoder_type}.*layer_plan|layer_plan.*{encoder_type}"):
        tiny_model("fast", encoder_type, layer_plan=PLAN)


def test_repeats_the_groups_of_albert() -> None:
    # Three groups of one layer each: an ALBERT whose layers have weights of their own.
    tied = tiny_model("fast", "albert", encoder={"num_hidden_groups": 3}, layer_plan=PLAN)
    config = tiny_encoder_config("albert", num_hidden_groups=6, num_hidden_layers=6)
    untied = HireForSequenceClassification(HireConfig.preset("fast", config)).eval()
    source, state = tied.state_dict(), untied.state_dict()
    for key in state:
        group = re.search(r"albert_layer_groups\.(\d+)", key)
        state[key] = source[key.replace(group[0], f"albert_layer_groups.{PLAN[int(group[1])]}") if group else key]
    untied.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(tied(**tiny_batch((9, 6))).logits, untied(**tiny_batch((9, 6))).logits)
