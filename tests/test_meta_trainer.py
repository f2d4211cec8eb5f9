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
    with pytest.raises(FloatingPointError, match=r"update 1, inner step \d: the loss of (mlm|nli)"):
        train(tmp_path, inner_learning_rate=1e30, inner_steps=3)


@pytest.mark.parametrize("order", [1, 2])
def test_an_outer_loss_that_explodes_reaches_no_parameter(tmp_path: Path, order: int) -> None:
    # The only inner step is fine where it starts, and leads to where nothing is.
    model = tiny_multi_task()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(FloatingPointError, match="update 1: the outer loss of mlm"):
        train(tmp_path, model=model, inner_learning_rate=1e30, inner_steps=1, order=order, save_strategy="steps")
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("inner_steps", [0, 1])
def test_a_gradient_that_is_not_finite_reaches_no_parameter(tmp_path: Path, inner_steps: int) -> None:
    model = tiny_multi_task()
    before = [parameter.clone() for parameter in model.parameters()]
    trainer = MetaPretrainer(model, tiny_arguments(tmp_path, inner_steps=inner_steps), tiny_tasks())
    step = trainer.training_step

    def spoil(*args: Any) -> torch.Tensor:
        loss = step(*args)
        next(p.grad for p in model.parameters() if p.grad is not None).view(-1)[0] = torch.inf
        return loss

    trainer.training_step = spoil
    with pytest.raises(FloatingPointError, match="update 1: the gradient is not finite"):
        trainer.train()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_reptile_is_the_mean_of_the_inner_steps(tmp_path: Path, momentum: float) -> None:
    optimizer = {"inner_optimizer": "sgd_momentum", "inner_momentum": momentum} if momentum else {}
    # So small that the way the parameters go is lost to rounding.
    arguments = tiny_arguments(tmp_path, algorithm="reptile", inner_learning_rate=1e-6, inner_steps=3, **optimizer)
    trainer = MetaPretrainer(tiny_multi_task().eval(), arguments, tiny_tasks())
    trainer.model.train = lambda mode=True: trainer.model  # no dropout
    trainer.current_gradient_accumulation_steps = 1
    episode = trainer.episodes[0]
    trainer.training_step(trainer.model, episode)
    found = [parameter.grad.clone() for parameter in trainer.model.parameters()]
    model, velocity, total = tiny_multi_task().eval(), None, None
    for batch in episode["inner"]:
        gradients = torch.autograd.grad(losses_of(model, batch)[0], list(model.parameters()))
        velocity = (
            gradients if velocity is None else [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
        )
        total = velocity if total is None else [t + v for t, v in zip(total, velocity, strict=True)]
    for one, other in zip(found, total, strict=True):
        torch.testing.assert_close(one, other / 3, atol=1e-5, rtol=1e-3)


def test_a_task_that_moves_nothing_of_what_is_adapted(tmp_path: Path) -> None:
    sampled = {"inner_loss": "sampled", "outer_loss": "sampled", "adapt": "heads.nli"}
    assert all(value.isfinite().all() for value in weights(train(tmp_path, **sampled)))
    model = tiny_multi_task()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "heads.nli" in name
    with pytest.raises(ValueError, match="the loss of mlm depends on no trainable parameter"):
        train(tmp_path / "frozen", model=model, outer_loss="sampled", task_weights={"mlm": 1})


def test_half_precision_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="torch.bfloat16, in which inner steps round to nothing"):
        MetaPretrainer(tiny_multi_task().bfloat16(), tiny_arguments(tmp_path), tiny_tasks())


def test_a_task_without_labels_is_named(tmp_path: Path) -> None:
    tasks = tiny_tasks()
    collate = tasks[1].collator
    tasks[1].collator = lambda rows: {k: v for k, v in collate(rows).items() if k != "labels"}
    with pytest.raises(ValueError, match="task 'nli': the model returned no loss"):
        MetaPretrainer(tiny_multi_task(), tiny_arguments(tmp_path), tasks).train()


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

    def test_too_few_gradients_for_one_update(self, tmp_path: Path) -> None:
        arguments = tiny_arguments(tmp_path, match="grad_evals", inner_steps=20, max_steps=12)
        with pytest.raises(ValueError, match="12 gradient evaluations .* allowed is 21 or more"):
            Episodes(tiny_tasks(), arguments)

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
            {"train_sampling_strategy": "group_by_length"},
            {"remove_unused_columns": True},
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
