"""The inner steps of meta-learning, and the exact gradient through them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_meta import tiny_inputs, tiny_multi_task
from torch import nn

from modeling_hire.training.inner_loop import InnerLoop
from modeling_hire.training.meta_trainer import losses_of


class Recurrent(nn.Module):
    """An LSTM with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(99, 5), nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, input_ids: torch.Tensor, labels: dict[str, torch.Tensor], **ignored: Any) -> dict[str, Any]:
        states, _ = self.lstm(self.embed(input_ids))
        return {"loss": nn.functional.cross_entropy(self.out(states[:, -1]), labels["nli"])}


class Linear(nn.Module):
    """A loss without curvature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x @ self.weight).sum()}


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(kind: str) -> nn.Module:
    return Recurrent() if kind == "lstm" else tiny_multi_task(num_hidden_layers=1).double()


def gradient(
    loop: InnerLoop, model: nn.Module, inner: list[Any], outer: Any, order: int
) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """The meta-gradient of every trainable parameter, adapted ones first, and the outer loss."""

    def loss_of(batch: Any) -> Any:
        return losses_of(model, batch)

    torch.manual_seed(5)
    every = [*loop.adapted, *loop.others]
    with loop.episode(loss_of, inner, keep=order == 2) as trace:
        loss = loss_of(outer)[0]
        gradients = list(torch.autograd.grad(loss, every, allow_unused=True))
        if order == 2:
            count = len(loop.adapted)
            adapted, others = loop.through(trace, loss_of, gradients[:count], gradients[count:])
            gradients = [*adapted, *others]
    return gradients, loss.detach()


@pytest.mark.parametrize("adapt", [None, "encoder|lstm"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", ["tied head", "lstm"])
def test_equals_finite_differences(double: None, kind: str, steps: int, momentum: float, adapt: str | None) -> None:
    # Dropout is on: its masks are those of the steps taken forwards.
    model = build(kind).train()
    loop = InnerLoop(model, 0.1, momentum, adapt)
    inner, outer = [{"x": tiny_inputs(seed)} for seed in range(steps)], {"x": tiny_inputs(99)}
    gradients, _ = gradient(loop, model, inner, outer, order=2)
    torch.manual_seed(steps)
    for parameter, value in zip([*loop.adapted, *loop.others], gradients, strict=True):
        direction, step = torch.randn_like(parameter), 1e-5
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
            losses.append(gradient(loop, model, inner, outer, order=1)[1])
            with torch.no_grad():
                parameter.sub_(sign * step * direction)
        expected = (losses[0] - losses[1]) / (2 * step)
        actual = torch.zeros(()) if value is None else (value * direction).sum()
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_equals_the_gradient_through_the_kept_graph(double: None) -> None:
    # Written once more, with functional parameters and one graph of everything.
    model = build("lstm")
    inner, outer = [tiny_inputs(seed) for seed in range(3)], tiny_inputs(99)
    theta = dict(model.named_parameters())
    phi = theta
    for batch in inner:
        loss = torch.func.functional_call(model, phi, kwargs=batch)["loss"]
        steps = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        phi = {name: p - 0.1 * step for (name, p), step in zip(phi.items(), steps, strict=True)}
    expected = torch.autograd.grad(torch.func.functional_call(model, phi, kwargs=outer)["loss"], list(theta.values()))
    actual, _ = gradient(InnerLoop(model, 0.1), model, [{"x": batch} for batch in inner], {"x": outer}, order=2)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)


def test_orders_agree_without_curvature() -> None:
    model = Linear()
    inner, outer = [{"x": {"x": torch.randn(3, 4)}} for _ in range(3)], {"x": {"x": torch.randn(3, 4)}}
    loop = InnerLoop(model, 0.1)
    (first,), _ = gradient(loop, model, inner, outer, order=1)
    (second,), _ = gradient(loop, model, inner, outer, order=2)
    assert torch.equal(first, second)


def test_steps_are_gradient_descent() -> None:
    model = tiny_multi_task().eval()
    twin = tiny_multi_task().eval()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    batches = [{"x": tiny_inputs(seed)} for seed in range(3)]
    for batch in batches:
        optimizer.zero_grad()
        losses_of(twin, batch)[0].backward()
        optimizer.step()
    with InnerLoop(model, 0.1, 0.9).episode(lambda batch: losses_of(model, batch), batches):
        for actual, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


class TestLeavesNoTrace:
    def run(self, model: nn.Module, **kwargs: Any) -> None:
        loop = InnerLoop(model, 0.1, **kwargs)
        with loop.episode(lambda batch: losses_of(model, batch), [{"x": tiny_inputs(0)}], keep=True) as trace:
            outer = losses_of(model, {"x": tiny_inputs(1)})[0]
            every = [*loop.adapted, *loop.others]
            gradients = list(torch.autograd.grad(outer, every, allow_unused=True))
            loop.through(
                trace,
                lambda batch: losses_of(model, batch),
                gradients[: len(loop.adapted)],
                gradients[len(loop.adapted) :],
            )

    def test_in_parameters_gradients_and_buffers(self) -> None:
        model = tiny_multi_task().train()
        model.register_buffer("seen", torch.zeros(()))
        hook = model.register_forward_hook(lambda *_: model.seen.add_(1) and None)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        self.run(model)
        hook.remove()
        # The outer pass counts, as in plain training; inner steps and their repetition do not.
        before["seen"] += 1
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_in_frozen_parameters(self) -> None:
        model = tiny_multi_task()
        model.encoder.embeddings.requires_grad_(False)
        loop = InnerLoop(model, 0.1)
        frozen = {id(parameter) for parameter in model.encoder.embeddings.parameters()}
        assert not frozen & {id(parameter) for parameter in loop.adapted}
        self.run(model)

    def test_after_an_error(self) -> None:
        model = tiny_multi_task()
        before = [parameter.clone() for parameter in model.parameters()]
        loop = InnerLoop(model, 1e30)
        batches = [{"x": tiny_inputs(seed)} for seed in range(3)]
        with (
            pytest.raises(FloatingPointError, match=r"inner step \d: the loss of (mlm|nli).*inner_learning_rate"),
            loop.episode(lambda batch: losses_of(model, batch), batches),
        ):
            pass
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


def test_nothing_to_adapt_is_refused() -> None:
    with pytest.raises(ValueError, match="adapt='decoder'.*'encoder"):
        InnerLoop(tiny_multi_task(), 0.1, adapt="decoder")
