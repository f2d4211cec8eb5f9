"""The LSTMs of ELMo against a naive loop, PyTorch's own, and finite differences of first and second order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_elmo import tiny_elmo_config
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from modeling_hire.modeling_elmo_lstm import WEIGHTS, ElmoLayer, Steps, clipped_lstm, plain_recurrence, turned
from modeling_hire.modeling_gru import Packing


LENGTHS = (3, 5, 1, 2)
BOTH = ("forward", "backward")
CLIPS = ((0.5, 0.4), (None, 0.4), (0.5, None))


def packing_of(lengths: tuple[int, ...] = LENGTHS) -> tuple[Packing, Steps]:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    packing = Packing.from_mask(mask.long())
    return packing, Steps.of(packing)


def layer_and_inputs(clips: tuple, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, sizes: tuple = (5, 3)):
    """A layer in double precision, packed inputs of two directions, and where they start."""
    torch.manual_seed(seed)
    cell, size = sizes
    config = tiny_elmo_config(cell_size=cell, projection_size=size, cell_clip=clips[0], proj_clip=clips[1])
    layer = ElmoLayer(config).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    packing, steps = packing_of(lengths)
    inputs = torch.randn(2, sum(lengths), size, dtype=torch.float64)
    state = tuple(0.3 * torch.randn(2, len(lengths), size, dtype=torch.float64) for size in (size, cell))
    return layer, packing, steps, inputs, state


def one_by_one(lstm: nn.LSTM, inputs: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, clips: tuple):
    """A sequence `(tokens, features)` through an LSTM, a step at a time, as the paper's code says it."""

    def clip(values: torch.Tensor, limit: float | None) -> torch.Tensor:
        return values if limit is None else values.clip(-limit, limit)

    outputs = []
    for token in inputs:
        gates = lstm.weight_ih_l0 @ token + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ hidden + lstm.bias_hh_l0
        i, f, g, o = gates.split(lstm.hidden_size)
        cell = clip(torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g), clips[0])
        hidden = clip(lstm.weight_hr_l0 @ (torch.sigmoid(o) * torch.tanh(cell)), clips[1])
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell


def naive(layer: ElmoLayer, packing: Packing, inputs: torch.Tensor, state: tuple, clips: tuple):
    """Every sequence of a packed batch by itself."""
    outputs, ends = torch.zeros_like(inputs), [part.clone() for part in state]
    for d, direction in enumerate(BOTH):
        lstm = getattr(layer, f"{direction}_lstm")
        for row in range(len(packing.lengths)):
            places, rank = (packing.example == row).nonzero().squeeze(1), packing.first[row]
            result = one_by_one(lstm, inputs[d, places], state[0][d, rank], state[1][d, rank], clips)
            outputs[d, places], ends[0][d, rank], ends[1][d, rank] = result
    return outputs, *ends


@pytest.mark.parametrize("clips", [*CLIPS, (None, None)], ids=str)
@torch.no_grad()
def test_equals_a_naive_loop(clips: tuple) -> None:
    layer, packing, steps, inputs, state = layer_and_inputs(clips)
    outputs, ends = layer(inputs, steps, state)
    for actual, expected in zip((outputs, *ends), naive(layer, packing, inputs, state, clips), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)
    if clips[1] is not None:
        assert (outputs.abs() == clips[1]).any(), "nothing was clipped"


@torch.no_grad()
def test_a_step_by_hand() -> None:
    # All gates are sig(0) = 1/2 and the candidate tanh(2); what is carried over is clipped to 1.
    zero = torch.zeros(4, 1, dtype=torch.float64)
    weight_ih = torch.tensor([[0.0], [0.0], [2.0], [0.0]], dtype=torch.float64)
    weights = [weight_ih, zero, zero[:, 0], zero[:, 0], torch.tensor([[3.0]], dtype=torch.float64)]
    _, steps = packing_of((1,))
    start = torch.zeros(1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1), 4.0, dtype=torch.float64)
    outputs, _, cell = clipped_lstm(torch.ones(1, 1, 1, dtype=torch.float64), *start, weights, steps, (1.0, 1.1))
    assert cell.item() == 1.0  # of 4 / 2 + tanh(2) / 2
    assert outputs.item() == 1.1  # of 3 / 2 * tanh(1) = 1.142
    outputs, *_ = clipped_lstm(torch.ones(1, 1, 1, dtype=torch.float64), *start, weights, steps, (1.0, None))
    assert outputs.item() == pytest.approx(1.5 * torch.tensor(1.0).tanh().item(), rel=1e-6)


def test_clips_that_never_bite_equal_the_library() -> None:
    clipped, _, steps, inputs, state = layer_and_inputs((1e9, 1e9))
    fused = layer_and_inputs((None, None))[0]
    assert fused.clips == (None, None)
    results = []
    for layer in (clipped, fused):
        given = inputs.clone().requires_grad_()
        outputs, ends = layer(given, steps, state)
        wanted = (given, *layer.parameters())
        total = (outputs * outputs.detach().roll(1)).sum() + ends[0].sum() + ends[1].square().sum()
        results.append((outputs, *ends, *torch.autograd.grad(total, wanted)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-9)


def as_function(clips: tuple, lengths: tuple[int, ...]) -> tuple[Callable, list[torch.Tensor]]:
    layer, _, steps, inputs, state = layer_and_inputs(clips, lengths, seed=3, sizes=(3, 2))
    weights = [getattr(lstm, name) for lstm in (layer.forward_lstm, layer.backward_lstm) for name in WEIGHTS]
    given = [inputs.requires_grad_(), *(part.requires_grad_() for part in state), *weights]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if clips != (None, None):
            return clipped_lstm(*tensors[:3], tensors[3:], steps, clips)
        outputs, ends = layer(tensors[0], steps, tensors[1:3])
        return outputs, *ends

    return function, given


class TestGradients:
    @pytest.mark.parametrize("clips", [*CLIPS, (None, None)], ids=str)
    def test_first_order(self, clips: tuple) -> None:
        assert gradcheck(*as_function(clips, (1, 2)))

    @pytest.mark.parametrize("clips", [*CLIPS[:1], (None, None)], ids=str)
    def test_second_order(self, clips: tuple) -> None:
        assert gradgradcheck(*as_function(clips, (1, 2)))

    @pytest.mark.parametrize("clips", CLIPS, ids=str)
    def test_equal_those_of_the_plain_recurrence(self, clips: tuple) -> None:
        function, given = as_function(clips, LENGTHS)
        _, steps = packing_of()
        results = []
        for run in (function, lambda *t: plain_recurrence(*t[:3], t[3:], steps.sizes, clips)):
            outputs, hidden, cell = run(*given)
            results.append(torch.autograd.grad(outputs.sin().sum() + hidden.exp().sum() + cell.cos().sum(), given))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)

    def test_twice_from_one_graph(self) -> None:
        function, given = as_function(CLIPS[0], LENGTHS)
        total = function(*given)[0].sum()
        first = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
        again = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
        differentiable = torch.autograd.grad(total, given, create_graph=True, allow_unused=True)
        for one, other, third in zip(first, again, differentiable, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(one, third.detach(), atol=1e-12, rtol=1e-10)

    def test_only_what_is_asked_for(self) -> None:
        function, given = as_function(CLIPS[0], LENGTHS)
        frozen = [tensor.detach().requires_grad_(index in (0, 8, 9)) for index, tensor in enumerate(given)]
        outputs = function(*frozen)[0]
        outputs.sum().backward()
        assert [tensor.grad is not None for tensor in frozen] == [index in (0, 8, 9) for index in range(len(given))]
        expected = torch.autograd.grad(function(*given)[0].sum(), [given[0], given[8], given[9]])
        for index, value in zip((0, 8, 9), expected, strict=True):
            torch.testing.assert_close(frozen[index].grad, value)


def test_steps() -> None:
    packing, steps = packing_of()
    places = {(row, step): None for row, length in enumerate(LENGTHS) for step in range(length)}
    for row in range(len(LENGTHS)):
        for step, place in enumerate((packing.example == row).nonzero().squeeze(1).tolist()):
            places[row, step] = place
    for (row, step), place in places.items():
        assert steps.reverse[place] == places[row, LENGTHS[row] - 1 - step]
        if step:
            assert steps.previous[place - len(LENGTHS)] == places[row, step - 1]
    packed = torch.randn(sum(LENGTHS), 2)
    assert torch.equal(turned(turned(packed, steps), steps), packed)


def test_half_precision_runs() -> None:
    layer, _, steps, inputs, state = layer_and_inputs(CLIPS[0])
    layer = layer.bfloat16()
    outputs, _ = layer(inputs.bfloat16(), steps, tuple(part.bfloat16() for part in state))
    outputs.float().sum().backward()
    assert outputs.dtype == torch.bfloat16 and all(p.grad.isfinite().all() for p in layer.parameters())
