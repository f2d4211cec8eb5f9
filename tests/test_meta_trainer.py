"""Meta-learning in a `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_meta import tiny_arguments, tiny_multi_task, tiny_tasks
from torch.utils.data import DataLoader
from transformers import Trainer, set_seed

from modeling_hire import MetaPretrainer
from modeling_hire.data.episodes import Episodes, alone
from modeling_hire.training.meta_trainer import losses_of
from modeling_hire.training.trainer import last_checkpoint


def train(folder: Path, resume: str | None = None, model: Any = None, **overrides: Any) -> MetaPretrainer:
    set_seed(0)
    model = tiny_multi_task() if model is None else model
    trainer = MetaPretrainer(model, tiny_arguments(folder, **overrides), tiny_tasks())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in trainer.model.parameters()]


def same(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(*pair) for pair in zip(weights(one), weights(other), strict=True))


class Plain(Trainer):
    """An ordinary trainer on the outer batches of episodes."""

    def get_train_dataloader(self) -> DataLoader:
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_size=1, collate_fn=alone))

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        return losses_of(model, inputs["outer"])[0]


def test_no_inner_steps_is_multi_task_training(tmp_path: Path) -> None:
    # Bit for bit, dropout and all.
    settings = {"inner_steps": 0, "gradient_accumulation_steps": 2}
    trainer = train(tmp_path / "meta", **settings)
    set_seed(0)
    arguments = tiny_arguments(tmp_path / "plain", **settings)
    plain = Plain(tiny_multi_task(), arguments, train_dataset=Episodes(tiny_tasks(), arguments))
    plain.model_accepts_loss_kwargs = False
    plain.train()
    assert same(trainer, plain)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_an_update_is_the_mean_of_its_episodes(tmp_path: Path, order: int, accumulation: int) -> None:
    settings = {"order": order, "gradient_accumulation_steps": accumulation}
    trainer = MetaPretrainer(tiny_multi_task().eval(), tiny_arguments(tmp_path, **settings), tiny_tasks())
    trainer.model.train = lambda mode=True: trainer.model  # no dropout
    trainer.current_gradient_accumulation_steps = accumulation
    episodes = [trainer.episodes[e] for e in range(accumulation)]
    total = None
    for episode in episodes:
        trainer.model.zero_grad()
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(trainer.model, episode)
        alone = [p.grad.clone() for p in trainer.model.parameters()]
        total = alone if total is None else [a + b for a, b in zip(total, alone, strict=True)]
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = accumulation
    for episode in episodes:
        trainer.training_step(trainer.model, episode)
    for parameter, expected in zip(trainer.model.parameters(), total, strict=True):
        torch.testing.assert_close(parameter.grad, expected / accumulation, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"order": 2},
        {"inner_optimizer": "sgd_momentum"},
        {"algorithm": "reptile"},
        {"inner_loss": "sampled", "outer_loss": "sampled"},
        {"outer_batch": "same"},
        {"adapt": "heads"},
        {"gradient_accumulation_steps": 2, "order": 2},
        {"bf16": True},
        {"task_weights": {"mlm": 3, "nli": 1}, "inner_loss": "sampled"},
    ],
    ids=str,
)
def test_trains_and_logs(tmp_path: Path, overrides: dict[str, Any]) -> None:
    before = [parameter.clone() for parameter in tiny_multi_task().parameters()]
    trainer = train(tmp_path, **overrides)
    assert all(value.isfinite().all() for value in weights(trainer))
    assert not all(torch.equal(*pair) for pair in zip(weights(trainer), before, strict=True))
    log = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert {"inner_loss_1", "inner_loss_2", "inner_grad_norm", "grad_norm"} <= log.keys()
    assert ("alignment" in log) == (overrides.get("algorithm") != "reptile")
    assert -1 <= log.get("alignment", 0) <= 1
    assert same(trainer, train(tmp_path / "again", **overrides))


@pytest.mark.parametrize(
    "overrides", [{"order": 1}, {"order": 2, "inner_loss": "sampled"}, {"inner_steps": 0}], ids=str
)
def test_resumed_equals_left_alone(tmp_path: Path, overrides: dict[str, Any]) -> None:
    whole = train(tmp_path / "whole", **overrides)
    saved = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": None} | overrides
    train(tmp_path / "killed", **saved)
    checkpoint = tmp_path / "killed" / "checkpoint-2"
    (tmp_path / "killed" / "checkpoint-4").rename(tmp_path / "gone")
    assert last_checkpoint(tmp_path / "killed") == str(checkpoint)
    resumed = train(tmp_path / "killed", resume=str(checkpoint), **saved)
    assert same(resumed, whole)


def test_a_loss_that_explodes_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"inner step \d: the loss of (mlm|nli)"):
        train(tmp_path, inner_learning_rate=1e30, inner_steps=3)


def test_evaluates_without_adaptation(tmp_path: Path) -> None:
    model = tiny_multi_task().eval()
    trainer = MetaPretrainer(model, tiny_arguments(tmp_path), tiny_tasks(), eval_tasks=tiny_tasks())
    loss = trainer.evaluate()["eval_loss"]
    batches = [trainer.eval_dataset[number]["outer"] for number in range(len(trainer.eval_dataset))]
    with torch.no_grad():
        expected = torch.stack([losses_of(model, batch)[0] for batch in batches]).mean().item()
    assert loss == pytest.approx(expected, abs=1e-5)


class TestEpisodes:
    def test_every_row_comes_once_a_pass(self, tmp_path: Path) -> None:
        episodes = Episodes(tiny_tasks(), tiny_arguments(tmp_path))
        rows = [row for number in range(20) for row in episodes.rows(0, number)]  # batches of 3, 20 rows
        assert sorted(rows[:20]) == sorted(rows[20:40]) == list(range(20))
        assert rows[:20] != rows[20:40]

    def test_batches_follow_each_other(self, tmp_path: Path) -> None:
        episodes = Episodes(tiny_tasks(), tiny_arguments(tmp_path))
        assert [episodes.before[e, p, 0] for e in (0, 1) for p in range(3)] == list(range(6))

    def test_sampled_tasks_follow_the_shares(self, tmp_path: Path) -> None:
        arguments = tiny_arguments(tmp_path, inner_loss="sampled", task_weights={"mlm": 3, "nli": 1}, max_steps=2000)
        drawn = Episodes(tiny_tasks(), arguments).schedule[:, :2]
        assert (drawn == 0).mean() == pytest.approx(0.75, abs=0.03)

    def test_matching_gradient_evaluations_takes_fewer_updates(self, tmp_path: Path) -> None:
        arguments = {"max_steps": 60, "inner_steps": 5}
        assert len(Episodes(tiny_tasks(), tiny_arguments(tmp_path, **arguments))) == 60
        assert len(Episodes(tiny_tasks(), tiny_arguments(tmp_path, match="grad_evals", **arguments))) == 10

    def test_wrong_tasks_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="names must differ"):
            Episodes([*tiny_tasks(), *tiny_tasks()], tiny_arguments(tmp_path))
        with pytest.raises(ValueError, match="task_weights: no task 'rte'"):
            Episodes(tiny_tasks(), tiny_arguments(tmp_path, task_weights={"rte": 1}))


class TestRefusals:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("inner_steps", -1),
            ("inner_learning_rate", 0.0),
            ("order", 3),
            ("algorithm", "mamel"),
            ("inner_momentum", 1.0),
            ("adapt", "("),
            ("task_weights", {"mlm": -1}),
        ],
    )
    def test_wrong_values(self, tmp_path: Path, field: str, value: Any) -> None:
        with pytest.raises(ValueError, match=field):
            tiny_arguments(tmp_path, **{field: value})

    @pytest.mark.parametrize(
        "overrides",
        [
            {"algorithm": "reptile", "order": 2},
            {"algorithm": "reptile", "inner_steps": 0},
            {"outer_batch": "same", "inner_steps": 0},
            {"outer_batch": "same", "inner_loss": "sampled"},
            {"fp16": True},
        ],
        ids=str,
    )
    def test_what_does_not_go_together(self, tmp_path: Path, overrides: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(overrides))):
            tiny_arguments(tmp_path, **overrides)

    def test_second_order_through_fused_attention(self, tmp_path: Path) -> None:
        model = tiny_multi_task(attention="sdpa")
        with pytest.raises(ValueError, match="attn_implementation='sdpa'.*'eager'"):
            MetaPretrainer(model, tiny_arguments(tmp_path, order=2), tiny_tasks())
