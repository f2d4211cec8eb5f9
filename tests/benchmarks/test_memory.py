"""Peak memory against allocations whose size is known."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from benchmarks.memory import PeakMemory, peak_resident_bytes


KIB = 1024
MIB = 1024 * KIB


def kibibytes(count: int) -> torch.Tensor:
    return torch.ones(count * KIB // 4)


def hold(mebibytes: int) -> None:
    torch.ones(mebibytes * MIB // 4)


def fail() -> None:
    raise ValueError("on purpose")


def vanish() -> None:
    os._exit(3)


def test_counts_what_is_alive_at_once():
    with PeakMemory() as memory:
        first = kibibytes(8)
        assert memory.live_bytes == 8 * KIB
        second = kibibytes(4)
        del first
        assert memory.live_bytes == 4 * KIB
        third = kibibytes(2)
    assert (memory.peak_bytes, memory.live_bytes) == (12 * KIB, 6 * KIB)
    del second, third
    assert memory.live_bytes == 6 * KIB  # what dies after the block does not change the answer


def test_what_was_there_before_does_not_count():
    given = kibibytes(64)
    with PeakMemory() as memory:
        given.mul_(2)
        given.view(2, -1).t()
        torch.mul(given, 3, out=given)
    assert (memory.peak_bytes, memory.live_bytes) == (0, 0)


def test_what_was_there_before_and_is_freed_does_not_count_either():
    given = kibibytes(64)
    with PeakMemory() as memory:
        given.mul_(2)
        del given
        result = kibibytes(4)
    assert (memory.peak_bytes, memory.live_bytes) == (4 * KIB, 4 * KIB)
    del result


def test_views_are_free_and_keep_their_storage():
    with PeakMemory() as memory:
        part = kibibytes(8)[:2]
        assert memory.live_bytes == 8 * KIB
        del part
    assert (memory.peak_bytes, memory.live_bytes) == (8 * KIB, 0)


def test_growth_in_place():
    given = kibibytes(1)
    with PeakMemory() as memory:
        given.resize_(4 * KIB // 4)
        assert memory.live_bytes == 3 * KIB
        own = kibibytes(1)
        own.untyped_storage().resize_(8 * KIB)
        own.add_(1)  # seen at the next operation
        assert memory.live_bytes == 11 * KIB
        torch.ones(16 * KIB // 4, out=own)
        assert memory.live_bytes == 19 * KIB
        del own, given
    assert (memory.peak_bytes, memory.live_bytes) == (19 * KIB, 0)


def test_tensors_saved_for_backward_count_until_the_graph_is_gone():
    given = kibibytes(4).requires_grad_()
    with PeakMemory() as memory:
        total = given.exp().exp().sum()  # each exp saves its result
        assert memory.live_bytes == 8 * KIB + 4
        total.backward()
        assert memory.live_bytes == 4 * KIB + 4  # the gradient and the total
    assert memory.peak_bytes > 12 * KIB


def test_custom_functions_count_inside_too():
    class Waste(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(kibibytes(16))
            return x + kibibytes(4).sum()

        @staticmethod
        def backward(ctx, grad):
            return grad + kibibytes(32).sum()

    given = torch.ones(1, requires_grad=True)
    with PeakMemory() as memory:
        result = Waste.apply(given)
        assert 20 * KIB <= memory.peak_bytes < 21 * KIB
        assert 16 * KIB <= memory.live_bytes < 17 * KIB
        result.backward()
    assert 48 * KIB <= memory.peak_bytes < 49 * KIB


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])  # the second hands them over whole
def test_what_composite_operations_make_on_the_way_counts(context):
    gru, inputs = nn.GRU(8, 16), torch.randn(5, 3, 8)
    with context(), PeakMemory() as memory:
        outputs, _ = gru(inputs)
    gates = 5 * 3 * 3 * 16 * 4  # of all steps at once
    assert memory.peak_bytes >= outputs.nbytes + gates


def test_a_model_forward_and_backward():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    inputs = torch.randn(32, 64)
    with PeakMemory() as memory:
        model(inputs).sum().backward()
    gradients = sum(parameter.grad.nbytes for parameter in model.parameters())
    assert gradients <= memory.live_bytes < gradients + KIB
    assert memory.peak_bytes >= gradients + 32 * 128 * 4  # with the activations between the layers


def test_python_data_counts_when_it_becomes_a_tensor():
    with PeakMemory() as memory:
        made = torch.tensor([1.0, 2.0])
    assert memory.live_bytes == made.nbytes


def test_resident_size_of_a_child_is_its_own():
    ballast = torch.ones(600 * MIB // 4)  # a child must not report what its parent holds
    small, large = (peak_resident_bytes(hold, size) for size in (1, 200))
    assert small < ballast.nbytes
    assert 150 * MIB < large - small < 250 * MIB


@pytest.mark.parametrize("function, message", [(fail, "on purpose"), (vanish, "ended without a word")])
def test_a_failing_child_is_an_error(function, message):
    with pytest.raises(RuntimeError, match=message):
        peak_resident_bytes(function)
