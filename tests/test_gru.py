"""The packed GRU against the library's own, one sequence at a time and without padding."""

from __future__ import annotations

import pytest
import torch
from tiny_models import assert_same, gradients
from torch import nn

from modeling_hire.modeling_gru import PackedBiGRU, Packing


MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0], [1, 1, 0, 0, 1], [0, 0, 1, 0, 0]],
    "equal": [[1, 1, 1]] * 3,
    "single tokens": [[1], [1]],
    "one row": [[1, 1, 1, 1]],
    "ties": [[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]],
    "empty row": [[0, 0, 0], [1, 1, 0], [0, 0, 0]],
}


@pytest.fixture(params=MASKS.values(), ids=MASKS.keys())
def mask(request: pytest.FixtureRequest) -> torch.Tensor:
    return torch.tensor(request.param)


def places_of(mask: torch.Tensor) -> list[list[int]]:
    """Columns of the real tokens, row by row; a row without any counts its first."""
    return [row.nonzero().flatten().tolist() or [0] for row in mask]


class TestPacking:
    def test_keeps_the_real_tokens_in_order(self, mask: torch.Tensor) -> None:
        packing, columns = Packing.from_mask(mask), mask.shape[1]
        for row, places in enumerate(places_of(mask)):
            kept = packing.index[packing.example == row]
            assert kept.tolist() == [row * columns + place for place in places]
            assert packing.lengths[row] == len(places)
            assert packing.index[packing.first[row]] == row * columns + places[0]
            assert packing.index[packing.last[row]] == row * columns + places[-1]

    def test_steps_never_grow(self, mask: torch.Tensor) -> None:
        packing = Packing.from_mask(mask)
        assert packing.step_sizes == sorted(packing.step_sizes, reverse=True)
        assert sum(packing.step_sizes) == len(packing.index) == packing.lengths.sum()
        assert packing.step_sizes[0] == len(mask)

    def test_unpack_undoes_pack_and_fills_in_zeros(self, mask: torch.Tensor) -> None:
        packing, padded = Packing.from_mask(mask), torch.randn(*mask.shape, 4)
        expected = torch.zeros_like(padded)
        for row, places in enumerate(places_of(mask)):
            expected[row, places] = padded[row, places]
        torch.testing.assert_close(packing.unpack(packing.pack(padded)), expected, atol=0, rtol=0)

    def test_pack_has_the_gradient_of_a_copy(self, mask: torch.Tensor) -> None:
        packing = Packing.from_mask(mask)
        padded = torch.randn(*mask.shape, 4, requires_grad=True)
        weight = torch.randn(len(packing.index), 4)
        (packing.pack(padded) * weight).sum().backward()
        torch.testing.assert_close(padded.grad, packing.unpack(weight), atol=0, rtol=0)

    def test_repeat_is_the_packing_of_repeated_rows(self, mask: torch.Tensor) -> None:
        packing, layers = Packing.from_mask(mask), torch.randn(3, *mask.shape, 4)
        side_by_side = torch.stack([packing.pack(layer) for layer in layers], dim=1).flatten(0, 1)
        repeated = packing.repeat(3)
        expected = torch.stack([packing.unpack(packing.pack(layer)) for layer in layers], dim=1).flatten(0, 1)
        torch.testing.assert_close(repeated.unpack(side_by_side), expected, atol=0, rtol=0)
        assert repeated.lengths.tolist() == packing.lengths.repeat_interleave(3).tolist()
        assert packing.repeat(1) is packing

    @pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int32])
    def test_takes_a_mask_of_any_type(self, dtype: torch.dtype) -> None:
        mask = torch.tensor(MASKS["holes"])
        assert Packing.from_mask(mask.to(dtype)).index.tolist() == Packing.from_mask(mask).index.tolist()


def reference(gru: PackedBiGRU, padded: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`nn.GRU` on each sequence by itself: outputs in place, zeros elsewhere, and the final states."""
    library = nn.GRU(gru.input_size, gru.hidden_size, gru.num_layers, bidirectional=True, batch_first=True)
    library = library.to(gru.weight_ih_l0.dtype)
    outputs, final_states = [], []
    for row, places in enumerate(places_of(mask)):
        states, final = torch.func.functional_call(
            library, dict(gru.named_parameters()), (padded[row : row + 1, places],)
        )
        blank = padded.new_zeros(mask.shape[1], 2 * gru.hidden_size)
        outputs.append(blank.index_copy(0, torch.tensor(places), states[0]))
        final_states.append(final.flatten())
    return torch.stack(outputs), torch.stack(final_states)


def run(gru: PackedBiGRU, padded: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    packing = Packing.from_mask(mask)
    outputs, final_states = gru(packing.pack(padded), packing)
    return packing.unpack(outputs), final_states


def run_and_differentiate(function, gru: PackedBiGRU, padded: torch.Tensor, mask: torch.Tensor) -> dict:
    """Outputs, final states and every gradient of a loss that reads them all, unevenly."""
    gru.zero_grad()
    padded = padded.clone().requires_grad_()
    results = function(gru, padded, mask)
    generator = torch.Generator().manual_seed(7)
    for_each = [torch.randn(result.shape, generator=generator, dtype=torch.float64) for result in results]
    sum((result * weight).sum() for result, weight in zip(results, for_each, strict=True)).backward()
    values = dict(zip(("outputs", "final_states"), results, strict=True))
    return {**values, "inputs": padded.grad, **gradients(gru)}


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_equals_the_library_gru_without_padding(mask: torch.Tensor, num_layers: int) -> None:
    gru = PackedBiGRU(5, 7, num_layers).double()
    padded = torch.randn(*mask.shape, 5, dtype=torch.float64)
    ours = run_and_differentiate(run, gru, padded, mask)
    assert_same(ours, run_and_differentiate(reference, gru, padded, mask), atol=1e-10)


def test_equals_the_library_gru_on_a_large_ragged_batch() -> None:
    lengths = torch.randint(1, 41, (24,))
    mask = (torch.arange(40) < lengths[:, None]).long()
    gru = PackedBiGRU(8, 8, 2).double()
    padded = torch.randn(*mask.shape, 8, dtype=torch.float64)
    ours = run_and_differentiate(run, gru, padded, mask)
    assert_same(ours, run_and_differentiate(reference, gru, padded, mask), atol=1e-10)


def test_gradient_check() -> None:
    packing = Packing.from_mask(torch.tensor(MASKS["ties"]))
    gru = PackedBiGRU(3, 2, 2).double()
    packed = torch.randn(len(packing.index), 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in gru.named_parameters()]

    def function(packed: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.func.functional_call(gru, dict(zip(names, parameters, strict=True)), (packed, packing))

    assert torch.autograd.gradcheck(function, (packed, *gru.parameters()))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_first_token_only_equals_the_full_run(mask: torch.Tensor, num_layers: int) -> None:
    gru = PackedBiGRU(5, 7, num_layers).double()
    padded = torch.randn(*mask.shape, 5, dtype=torch.float64)
    packing = Packing.from_mask(mask)

    def short(gru: PackedBiGRU, padded: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor]:
        return (gru(packing.pack(padded), packing, first_token_only=True)[0],)

    def full(gru: PackedBiGRU, padded: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor]:
        return (gru(packing.pack(padded), packing)[0][packing.first],)

    def differentiate(function) -> dict[str, torch.Tensor]:
        gru.zero_grad()
        inputs = padded.clone().requires_grad_()
        (outputs,) = function(gru, inputs, mask)
        (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=torch.float64).view_as(outputs)).sum().backward()
        return {"outputs": outputs, "inputs": inputs.grad, **gradients(gru)}

    assert_same(differentiate(short), differentiate(full), atol=1e-10)


def test_first_token_only_leaves_out_the_top_final_states() -> None:
    packing = Packing.from_mask(torch.tensor(MASKS["ties"]))
    gru = PackedBiGRU(5, 7, 2).double()
    packed = torch.randn(len(packing.index), 5, dtype=torch.float64)
    _, below = gru(packed, packing, first_token_only=True)
    torch.testing.assert_close(below, gru(packed, packing)[1][:, : 2 * 7])


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("first_token_only", [False, True])
def test_library_path_equals_ours(mask: torch.Tensor, first_token_only: bool, num_layers: int) -> None:
    packing = Packing.from_mask(mask)
    gru = PackedBiGRU(5, 7, num_layers).double()
    packed = torch.randn(len(packing.index), 5, dtype=torch.float64)
    ours = gru(packed, packing, first_token_only)
    library = gru._library_forward(packed, packing, first_token_only)
    for mine, theirs in zip(ours, library, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    mask = torch.tensor(MASKS["ties"])
    packing = Packing.from_mask(mask)
    gru = PackedBiGRU(5, 7, 2).to(dtype)
    packed = torch.randn(len(packing.index), 5, dtype=dtype, requires_grad=True)
    outputs, final_states = gru(packed, packing)
    assert outputs.dtype == final_states.dtype == dtype
    outputs.float().sum().backward()
    assert packed.grad.dtype == gru.weight_hh_l0.grad.dtype == dtype
    single = PackedBiGRU(5, 7, 2)
    single.load_state_dict(gru.state_dict())
    expected = single(packed.detach().float(), packing)[0].to(dtype)
    torch.testing.assert_close(outputs, expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_the_recurrence(dtype: torch.dtype) -> None:
    packing = Packing.from_mask(torch.tensor(MASKS["ties"]))
    gru = PackedBiGRU(5, 7, 2)
    packed = torch.randn(len(packing.index), 5)
    plain = gru(packed, packing)[0]
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(gru(packed, packing)[0], plain, atol=0, rtol=0)
        assert gru(packed.to(dtype), packing)[0].dtype == dtype


def test_has_the_state_dict_of_the_library_gru() -> None:
    ours, theirs = PackedBiGRU(5, 7, 2).state_dict(), nn.GRU(5, 7, 2, bidirectional=True).state_dict()
    assert {name: value.shape for name, value in ours.items()} == {name: value.shape for name, value in theirs.items()}


def test_frozen_parameters_get_no_gradient() -> None:
    packing = Packing.from_mask(torch.tensor(MASKS["ties"]))
    gru = PackedBiGRU(5, 7, 2).requires_grad_(False)
    packed = torch.randn(len(packing.index), 5, requires_grad=True)
    gru(packed, packing)[0].sum().backward()
    assert packed.grad.abs().sum() > 0
    assert not gradients(gru)
