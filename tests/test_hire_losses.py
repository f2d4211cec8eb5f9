"""The losses: their values, and that accumulating small batches weighs like one large batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import HEADS, assert_same, gradients, rows, tiny_batch, tiny_model, with_labels
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments

from modeling_hire import (
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForTokenClassification,
)


TEXTS = 16
LENGTHS = (9, 6, 4, 8, 2, 9, 7, 5, 9, 3, 4, 9, 6, 2, 9, 8)
NO_DROPOUT = {"hire_dropout": 0.0, "encoder": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}


def labelled(name: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """A model and 16 labelled texts for each head and each kind of loss."""
    batch, numbers = tiny_batch(LENGTHS), torch.Generator().manual_seed(3)
    if name == "classification":
        model = tiny_model("fast", num_labels=3, **NO_DROPOUT)
        return model, batch | {"labels": torch.randint(0, 3, (TEXTS,), generator=numbers)}
    if name == "regression":
        model = tiny_model("fast", num_labels=1, **NO_DROPOUT)
        return model, batch | {"labels": torch.randn(TEXTS, generator=numbers)}
    if name == "several scores":
        model = tiny_model("fast", num_labels=2, problem_type="regression", **NO_DROPOUT)
        return model, batch | {"labels": torch.randn(TEXTS, 2, generator=numbers)}
    if name == "multi-label":
        model = tiny_model("fast", num_labels=3, problem_type="multi_label_classification", **NO_DROPOUT)
        return model, batch | {"labels": torch.randint(0, 2, (TEXTS, 3), generator=numbers).float()}
    if name == "tokens":
        model = tiny_model("fast", model_class=HireForTokenClassification, num_labels=3, **NO_DROPOUT)
        labels = torch.randint(0, 3, batch["input_ids"].shape, generator=numbers)
        hidden = (batch["attention_mask"] == 0) | (torch.rand(labels.shape, generator=numbers) < 0.3)
        return model, batch | {"labels": labels.masked_fill(hidden, -100)}
    if name == "question":
        model = tiny_model("fast", model_class=HireForQuestionAnswering, **NO_DROPOUT)
        start = torch.randint(0, 2, (TEXTS,), generator=numbers)
        last = batch["attention_mask"].sum(dim=1) - 1
        return model, batch | {"start_positions": start.minimum(last), "end_positions": (start + 1).minimum(last)}
    model = tiny_model("fast", model_class=HireForMultipleChoice, **NO_DROPOUT)
    choices = {key: torch.stack([value, value.flip(0)], dim=1) for key, value in batch.items()}
    return model, choices | {"labels": torch.randint(0, 2, (TEXTS,), generator=numbers)}


KINDS = ["classification", "regression", "several scores", "multi-label", "tokens", "question", "choice"]


def within_text(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return logits.masked_fill(batch["attention_mask"] == 0, -torch.inf)


def expected_loss(name: str, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    if name == "question":
        start, end = (within_text(logits, batch) for logits in (outputs.start_logits, outputs.end_logits))
        start = functional.cross_entropy(start, batch["start_positions"])
        return (start + functional.cross_entropy(end, batch["end_positions"])) / 2
    logits, labels = outputs.logits, batch["labels"]
    if name == "regression":
        return functional.mse_loss(logits[:, 0], labels)
    if name == "several scores":
        return functional.mse_loss(logits, labels)
    if name == "multi-label":
        return functional.binary_cross_entropy_with_logits(logits, labels)
    if name == "tokens":
        return functional.cross_entropy(logits.transpose(1, 2), labels)
    return functional.cross_entropy(logits, labels)


class TestValue:
    @pytest.mark.parametrize("name", KINDS)
    def test_is_the_mean_of_the_usual_loss(self, name: str) -> None:
        model, batch = labelled(name)
        outputs = model(**batch)
        torch.testing.assert_close(outputs.loss, expected_loss(name, outputs, batch))

    @pytest.mark.parametrize("model_class", HEADS)
    def test_comes_first_and_with_labels_only(self, model_class: type, batch: dict[str, torch.Tensor]) -> None:
        model, batch = tiny_model("fast", model_class=model_class), with_labels(model_class, tiny_batch((9, 6, 4, 5)))
        outputs = model(**batch)
        assert outputs[0] is outputs.loss and outputs.loss.dim() == 0
        names = ("labels", "start_positions", "end_positions")
        assert model(**{key: value for key, value in batch.items() if key not in names}).loss is None
        assert isinstance(model(**batch, return_dict=False), tuple)

    @pytest.mark.parametrize(
        ("labels", "num_labels", "kind"),
        [
            (torch.tensor([0, 1, 1]), 2, "classification"),
            (torch.tensor([0.5, 1.0, -3.0]), 1, "regression"),
            (torch.tensor([1, 2, 3]), 1, "regression"),
            (torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), 2, "multi-label"),
        ],
    )
    def test_kind_follows_from_the_labels(
        self, labels: torch.Tensor, num_labels: int, kind: str, batch: dict[str, torch.Tensor]
    ) -> None:
        model = tiny_model("fast", num_labels=num_labels)
        outputs = model(**batch, labels=labels)
        as_float = labels if kind == "classification" else labels.float()
        torch.testing.assert_close(outputs.loss, expected_loss(kind, outputs, {"labels": as_float}))

    def test_tokens_without_any_label_give_zero(self, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model("fast", model_class=HireForTokenClassification)
        loss = model(**batch, labels=torch.full((3, 9), -100)).loss
        loss.backward()
        assert loss == 0

    @pytest.mark.parametrize("outside", [9, 1000, -1, -100])
    def test_a_position_outside_the_text_does_not_count(self, outside: int, batch: dict[str, torch.Tensor]) -> None:
        model = tiny_model("fast", model_class=HireForQuestionAnswering)
        outputs = model(
            **batch, start_positions=torch.tensor([1, outside, 2]), end_positions=torch.tensor([2, outside, 3])
        )
        start = functional.cross_entropy(within_text(outputs.start_logits, batch)[[0, 2]], torch.tensor([1, 2]))
        end = functional.cross_entropy(within_text(outputs.end_logits, batch)[[0, 2]], torch.tensor([2, 3]))
        torch.testing.assert_close(outputs.loss, (start + end) / 2)


class TestAccumulation:
    @pytest.mark.parametrize("as_tensor", [False, True])
    @pytest.mark.parametrize("name", KINDS)
    def test_four_times_four_is_sixteen(self, name: str, as_tensor: bool) -> None:
        model, batch = labelled(name)
        model(**batch).loss.backward()
        whole = gradients(model)
        model.zero_grad()
        labels = batch.get("labels", torch.zeros(TEXTS))
        count = (labels != -100).sum() if as_tensor else int((labels != -100).sum())
        for start in range(0, TEXTS, 4):
            model(**rows(batch, slice(start, start + 4)), num_items_in_batch=count).loss.backward()
        assert_same(gradients(model), whole, atol=1e-6, rtol=1e-4)

    @pytest.mark.parametrize("name", KINDS)
    def test_through_the_trainer(self, name: str, tmp_path: Path) -> None:
        results = []
        for size in (16, 4):
            model, batch = labelled(name)
            arguments = TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=size,
                gradient_accumulation_steps=TEXTS // size,
                max_steps=1,
                learning_rate=1.0,
                lr_scheduler_type="constant",
                optim="sgd",
                max_grad_norm=0,
                use_cpu=True,
                save_strategy="no",
                disable_tqdm=True,
                report_to="none",
            )
            before = {key: value.clone() for key, value in model.state_dict().items()}
            Trainer(model, arguments, train_dataset=Texts(batch)).train()
            results.append({key: before[key] - value for key, value in model.state_dict().items()})
        assert max(change.abs().max() for change in results[0].values()) > 1e-3
        assert_same(results[1], results[0], atol=1e-6, rtol=1e-3)


class Texts(Dataset):
    def __init__(self, batch: dict[str, torch.Tensor]):
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["input_ids"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return rows(self.batch, index)


class TestLabels:
    @pytest.mark.parametrize("dtype", [torch.long, torch.int, torch.int16, torch.int8, torch.uint8, torch.bool])
    def test_whole_numbers_are_class_ids_whatever_their_type(
        self, dtype: torch.dtype, batch: dict[str, torch.Tensor]
    ) -> None:
        model, labels = tiny_model("fast"), torch.tensor([1, 0, 1])
        logits = model(**batch).logits
        expected = functional.cross_entropy(logits, labels)
        torch.testing.assert_close(model(**batch, labels=labels.to(dtype)).loss, expected)
        torch.testing.assert_close(model(**batch, labels=labels.to(dtype)[:, None]).loss, expected)

    @pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16, torch.bool])
    def test_one_of_each_class_means_several_at_once(self, dtype: torch.dtype, batch: dict[str, torch.Tensor]) -> None:
        model, labels = tiny_model("fast"), torch.tensor([[1, 0], [1, 1], [0, 0]])
        expected = functional.binary_cross_entropy_with_logits(model(**batch).logits, labels.float())
        torch.testing.assert_close(model(**batch, labels=labels.to(dtype)).loss, expected)

    @pytest.mark.parametrize(
        ("labels", "overrides", "said"),
        [
            (torch.tensor([0.0, 1.0, 0.0]), {}, "(3,) and type torch.float32: allowed is shape (3, 2) for problem_t"),
            (torch.tensor([0, 1]), {}, "(2,) and type torch.int64: allowed is shape (3,) for problem_type='single"),
            (torch.zeros(3, 2).long(), {}, "(3, 2) and type torch.int64: allowed is shape (3,) for problem_type='s"),
            (torch.zeros(2), {"num_labels": 1}, "allowed is shape (3,) for problem_type='regression' with 1 labels"),
            (torch.zeros(3), {"num_labels": 3, "problem_type": "regression"}, "allowed is shape (3, 3) for problem"),
        ],
    )
    def test_of_another_shape_are_refused(
        self, labels: torch.Tensor, overrides: dict[str, Any], said: str, batch: dict[str, torch.Tensor]
    ) -> None:
        with pytest.raises(ValueError, match=re.escape(f"labels of shape {said}" if said[0] == "(" else said)):
            tiny_model("fast", **overrides)(**batch, labels=labels)
