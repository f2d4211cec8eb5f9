"""Meta-learning in two processes: their own episodes, averaged (DDP); or one joint episode in shards (FSDP2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_meta import tiny_arguments, tiny_inputs, tiny_multi_task, tiny_tasks
from tiny_processes import run_together
from torch import nn

from modeling_hire import MetaPretrainer
from modeling_hire.training.inner_loop import InnerLoop
from modeling_hire.training.meta_trainer import losses_of


pytestmark = pytest.mark.slow
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Adam would turn the rounding of a gradient that is zero, such as that of a key's bias, into a step of full size.
PLAIN = {"max_steps": 2, "optim": "sgd"}
SETTINGS: dict[str, dict[str, Any]] = {
    "first order": {},
    "second order": {"order": 2},
    "reptile": {"algorithm": "reptile"},
    "sampled": {"inner_loss": "sampled", "outer_loss": "sampled", "max_steps": 4},
    "second order, sampled": {"order": 2, "inner_loss": "sampled", "outer_loss": "sampled", "max_steps": 4},
    "accumulated": {"order": 2, "gradient_accumulation_steps": 2},
    "no inner steps": {"inner_steps": 0},
}


def train(folder: Path, **overrides: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = tiny_multi_task(**STILL)
    for head in model.heads.values():
        if hasattr(head, "dropout"):
            head.dropout.p = 0.0
    trainer = MetaPretrainer(model, tiny_arguments(folder, **(PLAIN | overrides)), tiny_tasks())
    trainer.train()
    return {
        name: value.clone() for name, value in trainer.accelerator.unwrap_model(trainer.model).state_dict().items()
    }


def rows_of_rank(seed: int, rank: int | None) -> dict[str, Any]:
    """Classified texts: all of them, or one process's half."""
    inputs = tiny_inputs(seed, rows=4, names=("nli",))
    part = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    labels = {"nli": inputs["labels"]["nli"][part]}
    return {"x": {name: value[part] for name, value in inputs.items() if name != "labels"} | {"labels": labels}}


def sharded_episode(model: nn.Module, rank: int | None) -> dict[str, torch.Tensor]:
    """The gradients of one episode, in whole tensors."""
    loop = InnerLoop(model, 0.05, momentum=0.9)
    inner, outer = [rows_of_rank(seed, rank) for seed in (1, 2, 3)], rows_of_rank(9, rank)
    with loop.episode(lambda batch: losses_of(model, batch), inner):
        losses_of(model, outer)[0].backward()
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad
            found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def sharded_model() -> nn.Module:
    return tiny_multi_task(tasks={"nli": {"kind": "classification", "labels": ["yes", "no"]}}, **STILL).eval()


def work(rank: int, folder: Path) -> None:
    for name, overrides in SETTINGS.items():
        torch.save(train(folder / "out", **overrides), folder / f"{name}-{rank}.pt")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = sharded_model(), init_device_mesh("cpu", (2,))
    for layer in model.encoder.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    before = [parameter.full_tensor().clone() for parameter in model.parameters()]
    torch.save(sharded_episode(model, rank), folder / f"sharded-{rank}.pt")
    after = [parameter.full_tensor() for parameter in model.parameters()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One start of the processes for all."""
    folder = tmp_path_factory.mktemp("meta")
    run_together(work, folder)
    return folder


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_are_two_episodes_an_update(folder: Path, tmp_path: Path, name: str) -> None:
    overrides = SETTINGS[name]
    episodes = 2 * overrides.get("gradient_accumulation_steps", 1)
    expected = train(tmp_path, **(overrides | {"gradient_accumulation_steps": episodes}))
    for rank in (0, 1):
        found = torch.load(folder / f"{name}-{rank}.pt")
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-4, msg=lambda text, k=key: f"{k}: {text}")


def test_shards_are_one_joint_episode(folder: Path) -> None:
    expected = sharded_episode(sharded_model(), None)
    for rank in (0, 1):
        found = torch.load(folder / f"sharded-{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-4)
