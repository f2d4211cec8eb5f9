"""One encoder with a head a task, and the word heads it shares with masked language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_meta import tiny_inputs, tiny_multi_task
from tiny_models import assert_same, assert_same_outputs, enliven
from torch.nn import functional
from transformers import AutoModel, AutoModelForMaskedLM

from modeling_hire import MultiTaskConfig, MultiTaskModel
from modeling_hire.training.word_heads import WORD_HEADS, adopt_word_head, to_masked_lm


TASKS = {
    "mlm": {"kind": "masked_lm", "weight": 2.0},
    "nli": {"kind": "classification", "labels": ["yes", "no"]},
    "sim": {"kind": "regression"},
}


def test_losses_are_the_heads_own() -> None:
    model = tiny_multi_task(tasks=TASKS).eval()
    inputs = tiny_inputs(0)
    inputs["labels"]["sim"] = torch.rand(3)
    outputs = model(**inputs, tasks=TASKS)
    words = inputs["labels"]["mlm"]
    expected = {
        "mlm": functional.cross_entropy(outputs.logits["mlm"].flatten(0, 1), words.flatten(), ignore_index=-100),
        "nli": functional.cross_entropy(outputs.logits["nli"], inputs["labels"]["nli"]),
        "sim": functional.mse_loss(outputs.logits["sim"], inputs["labels"]["sim"]),
    }
    for name, value in expected.items():
        torch.testing.assert_close(outputs.losses[name], value)
    torch.testing.assert_close(outputs.loss, 2 * expected["mlm"] + expected["nli"] + expected["sim"])


def test_a_batch_without_masked_words_has_a_loss() -> None:
    inputs = tiny_inputs(0, names=("mlm",))
    inputs["labels"]["mlm"][:] = -100
    loss = tiny_multi_task()(**inputs).loss
    loss.backward()
    assert loss.item() == 0


def test_logits_on_request() -> None:
    model = tiny_multi_task(tasks=TASKS).eval()
    plain = {name: value for name, value in tiny_inputs(0).items() if name != "labels"}
    assert list(model(**plain).logits) == list(TASKS)
    assert list(model(**plain, tasks=["sim"]).logits) == ["sim"]
    assert model(**tiny_inputs(0)).logits is None
    with pytest.raises(ValueError, match="task 'pos'.*'mlm', 'nli', 'sim'"):
        model(**plain, tasks=["pos"])


@pytest.mark.parametrize("encoder_type", ["bert", "roberta", "deberta-v2", "albert", "distilbert", "electra"])
def test_saved_and_loaded_is_the_same(encoder_type: str, tmp_path: Path) -> None:
    model = tiny_multi_task(encoder_type, attention="eager", tasks=TASKS).eval()
    model.save_pretrained(tmp_path)
    loaded = MultiTaskModel.from_pretrained(tmp_path)
    assert_same(loaded.state_dict(), model.state_dict())
    inputs = tiny_inputs(0)
    assert_same_outputs([loaded(**inputs).loss], [model(**inputs).loss])
    assert loaded.config.tasks == model.config.tasks


def test_loads_a_plain_encoder(tmp_path: Path) -> None:
    encoder = enliven(AutoModel.from_config(tiny_encoder_config("bert"))).eval()
    encoder.save_pretrained(tmp_path)
    model = MultiTaskModel.from_pretrained(tmp_path, tasks=TASKS)
    ids = tiny_inputs(0)["input_ids"]
    assert_same_outputs([model(ids).last_hidden_state], [encoder(ids).last_hidden_state])
    assert all(value.isfinite().all() for value in model.state_dict().values())


class TestWordHeads:
    """The word head of a masked language model of transformers goes in and comes out."""

    @pytest.fixture(params=[name for name in WORD_HEADS if name not in ("camembert", "xlm-roberta")])
    def masked(self, request: pytest.FixtureRequest) -> Any:
        return enliven(AutoModelForMaskedLM.from_config(tiny_encoder_config(request.param))).eval()

    def test_go_in_and_come_out(self, masked: Any, tmp_path: Path) -> None:
        masked.save_pretrained(tmp_path / "masked")
        model = MultiTaskModel.from_pretrained(tmp_path / "masked").eval()
        taken = adopt_word_head(model, "mlm", str(tmp_path / "masked"))
        assert taken == {name for name, _ in model.named_parameters() if name.startswith("heads.")}
        ids = tiny_inputs(0)["input_ids"]
        expected = masked(ids).logits
        torch.testing.assert_close(model(ids).logits["mlm"], expected, atol=1e-5, rtol=1e-5)
        out = to_masked_lm(model, "mlm")
        assert type(out) is type(masked)
        out.save_pretrained(tmp_path / "out")
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
        torch.testing.assert_close(again(ids).logits, expected, atol=1e-5, rtol=1e-5)

    def test_a_checkpoint_without_one_is_left_alone(self, tmp_path: Path) -> None:
        AutoModel.from_config(tiny_encoder_config("bert")).save_pretrained(tmp_path)
        model = MultiTaskModel.from_pretrained(tmp_path)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        assert adopt_word_head(model, "mlm", str(tmp_path)) == set()
        assert_same(model.state_dict(), before)

    def test_an_unknown_kind_has_none(self) -> None:
        assert to_masked_lm(tiny_multi_task("albert", attention="eager"), "mlm") is None


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({}, "tasks="),
        ({"a b": {"kind": "masked_lm"}}, "letters"),
        ({"a": {"kind": "mlm"}}, "masked_lm"),
        ({"a": {"kind": "classification"}}, "labels"),
        ({"a": {"kind": "classification", "labels": ["x"]}}, "two"),
        ({"a": {"kind": "regression", "labels": ["x", "y"]}}, "none"),
        ({"a": {"kind": "masked_lm", "weight": 0}}, "weight"),
        ({"a": {"kind": "masked_lm", "wait": 1}}, "wait"),
    ],
)
def test_wrong_tasks_are_refused(tasks: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiTaskConfig(encoder_config=tiny_encoder_config("bert"), tasks=tasks)
