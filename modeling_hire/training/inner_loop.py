"""The inner steps of an episode, and the exact gradient through them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .random_state import RandomState


# A loss and its parts by task, of one batch.
LossOfBatch = Callable[[Any], tuple[torch.Tensor, dict[str, torch.Tensor]]]
Gradients = list[torch.Tensor | None]


@dataclass
class InnerTrace:
    """What the inner steps of one episode left behind.

    Args:
        losses: of each step, at the parameters it started from.
        gradient_norms: of each step.
        start: the adapted parameters as they were, theta.
        totals: of each adapted parameter, the sum of what the steps were made of, where it was asked for.
        batches, points, random_states: of each step, where it started and what its dropout drew from. Kept only for a
            gradient of second order.
    """

    losses: list[torch.Tensor] = field(default_factory=list)
    gradient_norms: list[torch.Tensor] = field(default_factory=list)
    start: list[torch.Tensor] = field(default_factory=list)
    totals: list[torch.Tensor] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    points: list[list[torch.Tensor]] = field(default_factory=list)
    random_states: list[RandomState] = field(default_factory=list)


class InnerLoop:
    r"""
    Gradient descent inside an episode: from theta, phi_j = phi_{j-1} - a v_j with
    v_j = mu v_{j-1} + grad L(phi_{j-1}; batch j).

    The model's own parameters are moved in place and put back, so that tied weights, hooks and the optimiser stay as
    they are, and one more copy of the parameters is needed, whatever the number of steps.

    Args:
        model (`nn.Module`): its trainable parameters are adapted.
        learning_rate (`float`): a.
        momentum (`float`): mu.
        adapt (`str`, *optional*): a regular expression; parameters whose names it is not found in stay at theta.

    Raises:
        ValueError: if no trainable parameter is left to adapt, or one has half precision, in which steps vanish.
    """

    def __init__(self, model: nn.Module, learning_rate: float, momentum: float = 0.0, adapt: str | None = None):
        self.model, self.learning_rate, self.momentum = model, learning_rate, momentum
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        chosen = {name for name in trainable if adapt is None or re.search(adapt, name)}
        if not chosen:
            raise ValueError(
                f"adapt={adapt!r}: found in no name of a trainable parameter; allowed is part of one, such as "
                f"{next(iter(trainable), '(the model has none)')!r}."
            )
        low = next((name for name in chosen if torch.finfo(trainable[name].dtype).bits < 32), None)
        if low is not None:
            raise ValueError(
                f"{low}: its type is {trainable[low].dtype}, in which inner steps round to nothing; allowed are "
                "parameters of float32, with bf16=True for the arithmetic."
            )
        self.adapted = [trainable[name] for name in trainable if name in chosen]
        self.others = [trainable[name] for name in trainable if name not in chosen]

    @contextlib.contextmanager
    def episode(
        self,
        loss_of: LossOfBatch,
        batches: Sequence[Any],
        keep: bool = False,
        where: str = "",
        add_up: bool = False,
    ) -> Iterator[InnerTrace]:
        """Take the inner steps; inside the context the model stands at phi_k, after it at theta again.

        Args:
            loss_of: the loss of a batch, and its parts by task for messages.
            batches: one a step.
            keep: keep what [`InnerLoop.through`] needs, a copy of the adapted parameters for each step.
            where: begins the message of an error.
            add_up: sum up the steps' gradients in `totals`.

        Raises:
            FloatingPointError: naming the step and the task, if a loss is not finite.
        """
        theta = [parameter.detach().clone() for parameter in self.adapted]
        trace = InnerTrace(start=theta)
        if add_up:
            trace.totals = [torch.zeros_like(parameter) for parameter in theta]
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        velocity: list[torch.Tensor] | None = None
        parts: list[dict[str, torch.Tensor]] = []
        try:
            for batch in batches:
                if keep:
                    trace.batches.append(batch)
                    # The first point is theta itself.
                    trace.points.append([p.detach().clone() for p in self.adapted] if trace.points else theta)
                    trace.random_states.append(RandomState.now(tensors_of(batch)))
                loss, by_task = loss_of(batch)
                gradients = gradients_of(loss, self.adapted)
                trace.losses.append(loss.detach())
                parts.append({task: value.detach() for task, value in by_task.items()})
                del loss, by_task  # and with them the graph, before anything else is allocated
                trace.gradient_norms.append(norm(gradients))
                velocity = self._step(gradients, velocity, trace.totals)
                del gradients
            check_finite(trace.losses, parts, where)
            # Inner steps leave no trace in running statistics and the like.
            self._restore(buffers)
            yield trace
        finally:
            with torch.no_grad():
                for parameter, start in zip(self.adapted, theta, strict=True):
                    parameter.copy_(start)

    @torch.no_grad()
    def _step(self, gradients: Gradients, velocity: Gradients | None, totals: list[torch.Tensor]) -> Gradients | None:
        moved = [(p, g) for p, g in zip(self.adapted, gradients, strict=True) if g is not None]
        if self.momentum:
            if velocity is None:
                velocity = gradients
            else:
                velocity = [
                    g if v is None else v.mul_(self.momentum).add_(0 if g is None else g)
                    for v, g in zip(velocity, gradients, strict=True)
                ]
            moved = [(p, v) for p, v in zip(self.adapted, velocity, strict=True) if v is not None]
        if moved:
            parameters, steps = zip(*moved, strict=True)
            torch._foreach_add_(list(parameters), list(steps), alpha=-self.learning_rate)
        for total, step in zip(totals, velocity if self.momentum else gradients, strict=bool(totals)):
            if step is not None:
                total += step
        return velocity

    def through(
        self, trace: InnerTrace, loss_of: LossOfBatch, outer: Gradients, outer_of_others: Gradients
    ) -> tuple[Gradients, Gradients]:
        r"""
        The gradient of J(phi_k(theta)) at theta from that at phi_k, backwards through the steps: with lambda_k the
        outer gradient, u_j = mu u_{j+1} - a lambda_j and lambda_{j-1} = lambda_j + H_j u_j, where H_j is the Hessian
        of step j's loss at phi_{j-1}. One step's graph is alive at a time.

        Args:
            trace: of an episode with `keep=True`, still inside its context.
            loss_of: as it was.
            outer, outer_of_others: gradients of the adapted and of the other parameters at phi_k.

        Returns:
            Gradients of the adapted and of the other parameters, whose own change of the steps is in theirs.
        """
        adjoint, others = list(outer), list(outer_of_others)
        velocity: Gradients = [None] * len(adjoint)
        for batch, point, random_state in zip(
            reversed(trace.batches), reversed(trace.points), reversed(trace.random_states), strict=True
        ):
            velocity = [
                add(None if u is None else u * self.momentum, None if g is None else -self.learning_rate * g)
                for u, g in zip(velocity, adjoint, strict=True)
            ]
            with torch.no_grad():
                for parameter, value in zip(self.adapted, point, strict=True):
                    parameter.copy_(value)
            buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
            with random_state.replayed():
                loss, _ = loss_of(batch)
            inner = torch.autograd.grad(loss, self.adapted, create_graph=True, allow_unused=True)
            along = [
                (g * u).sum()
                for g, u in zip(inner, velocity, strict=True)
                if g is not None and u is not None and g.requires_grad
            ]
            if along:  # else a loss without curvature
                every = [*self.adapted, *self.others]
                products = torch.autograd.grad(torch.stack(along).sum(), every, allow_unused=True)
                adjoint = [add(g, h) for g, h in zip(adjoint, products, strict=False)]
                others = [add(g, h) for g, h in zip(others, products[len(adjoint) :], strict=True)]
            del loss, inner, along
            self._restore(buffers)  # once no graph holds them
        return adjoint, others

    @staticmethod
    @torch.no_grad()
    def _restore(buffers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for buffer, value in buffers:
            buffer.copy_(value)


def gradients_of(loss: torch.Tensor, parameters: list[nn.Parameter]) -> Gradients:
    """The gradient of each parameter, `None` where the loss does not depend on it; `.grad` stays as it is.

    A sharded parameter (FSDP2) takes part in a forward pass through a copy, and its gradient is put together and
    shared out by hooks of `backward`.
    """
    if not loss.requires_grad:  # of a task whose head alone could learn, and that is not trained
        return [None] * len(parameters)
    if not any(hasattr(parameter, "device_mesh") for parameter in parameters):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    gradients = [parameter.grad for parameter in parameters]
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient
    return gradients


def add(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """The sum of what is there."""
    if one is None or other is None:
        return one if other is None else other
    return one + other


def norm(gradients: Gradients) -> torch.Tensor:
    """The length of all gradients as one vector."""
    there = [gradient for gradient in gradients if gradient is not None]
    return torch.stack(torch._foreach_norm(there)).norm() if there else torch.zeros(())


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """All tensors of a nested batch."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    return [tensor for part in batch for tensor in tensors_of(part)] if isinstance(batch, list | tuple) else []


def check_finite(losses: list[torch.Tensor], parts: list[dict[str, torch.Tensor]], where: str = "") -> None:
    """Raise a `FloatingPointError` that names the first inner step, and the task, whose loss is not finite."""
    # All at once: the host waits for the device no more than once an episode.
    if torch.stack([loss.float() for loss in losses]).isfinite().all():
        return
    for step, (loss, by_task) in enumerate(zip(losses, parts, strict=True), start=1):
        if not loss.isfinite():
            wrong = [task for task, value in by_task.items() if not value.isfinite()]
            raise FloatingPointError(
                f"{where}inner step {step}: the loss of {' and '.join(wrong) or 'all together'} is {loss.item()}. "
                "A smaller inner_learning_rate may help; the last checkpoint is as it was."
            )
