"""Bidirectional GRUs over packed sequences, fast on the CPU and exact under padding.

A batch of token vectors is *packed*: only real tokens are kept, step by step, the longest sequence first. Padding
then costs nothing and cannot change a result. On the CPU the recurrence is a hand-written autograd function
(`_BiGRULayer`), which beats `nn.GRU` in three ways: the gradient of the recurrent weights is one product over all
steps instead of one a step, nothing is copied to turn sequences around or to join directions, and the element-wise
work of a step happens in place, while it is in the cache. On other devices the module is the library's `nn.GRU`, with
the same parameters under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence


@dataclass
class Packing:
    """Where each real token of a padded batch lies in packed order.

    Packed order is time-major: all first tokens, then all second tokens, and so on, within a step by falling length.

    Attributes:
        index (`torch.LongTensor` of shape `(packed_tokens,)`): flat position (`row * tokens + column`) of each token.
        first, last (`torch.LongTensor` of shape `(batch,)`): packed place of each row's first and last real token.
        example (`torch.LongTensor` of shape `(packed_tokens,)`): the row each token belongs to.
        lengths (`torch.LongTensor` of shape `(batch,)`): real tokens of each row.
        step_sizes (`list[int]`): how many sequences are still running at each step.
        shape (`tuple[int, int]`): rows and columns of the padded batch.
    """

    index: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    example: torch.Tensor
    lengths: torch.Tensor
    step_sizes: list[int]
    shape: tuple[int, int]

    @classmethod
    @torch.compiler.disable
    def from_mask(cls, attention_mask: torch.Tensor) -> Packing:
        """Build the packing of a padded batch.

        Args:
            attention_mask (`torch.Tensor` of shape `(batch, tokens)`): non-zero for real tokens. Padding may stand
                anywhere. A row without any real token keeps its first one, so that every row has a first token.

        Example:

        ```python
        >>> import torch
        >>> from modeling_hire.modeling_gru import Packing

        >>> packing = Packing.from_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]))
        >>> packing.step_sizes, packing.index.tolist()
        ([2, 2, 1], [3, 0, 4, 1, 5])
        ```
        """
        mask = attention_mask != 0
        rows, columns = mask.shape
        empty = ~mask.any(dim=1)
        mask = torch.cat([mask[:, :1] | empty[:, None], mask[:, 1:]], dim=1)
        lengths = mask.sum(dim=1)
        order = lengths.argsort(descending=True, stable=True)
        rank = order.argsort()
        sorted_lengths = lengths[order]

        steps = torch.arange(columns, device=mask.device)
        sizes = (sorted_lengths[None, :] > steps[:, None]).sum(dim=1)
        offsets = sizes.cumsum(dim=0) - sizes

        example, column = mask.nonzero(as_tuple=True)
        step = mask.cumsum(dim=1)[example, column] - 1
        place = offsets[step] + rank[example]

        index, packed_example = torch.empty_like(place), torch.empty_like(place)
        index[place] = example * columns + column
        packed_example[place] = example
        return cls(
            index=index,
            first=rank,
            last=offsets[lengths - 1] + rank,
            example=packed_example,
            lengths=lengths,
            step_sizes=[size for size in sizes.tolist() if size],
            shape=(rows, columns),
        )

    def repeat(self, times: int) -> Packing:
        """The packing of `times` sequences an example, side by side: row `example * times + i` is the i-th."""
        if times == 1:
            return self
        lane = torch.arange(times, device=self.index.device)

        def spread(places: torch.Tensor) -> torch.Tensor:
            return (places[:, None] * times + lane).flatten()

        columns, example = self.shape[1], spread(self.example)
        return Packing(
            index=example * columns + (self.index % columns).repeat_interleave(times),
            first=spread(self.first),
            last=spread(self.last),
            example=example,
            lengths=self.lengths.repeat_interleave(times),
            step_sizes=[size * times for size in self.step_sizes],
            shape=(self.shape[0] * times, self.shape[1]),
        )

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """`(batch, tokens, features)` to `(packed_tokens, features)`."""
        return take_rows(padded.flatten(0, 1), self.index)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """`(packed_tokens, features)` to `(batch, tokens, features)`, with zeros at padding."""
        rows, columns = self.shape
        padded = packed.new_zeros(rows * columns, packed.shape[-1])
        return padded.index_copy(0, self.index.to(packed.device), packed).view(rows, columns, -1)


class _TakeRows(torch.autograd.Function):
    """`rows[index]` for an index without repeats: its gradient is a copy, where the general one must add up."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_rows, *grad.shape[1:]).index_copy(0, index, grad), None


def take_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a matrix by an index that names no row twice, `(rows, features)` to `(len(index), features)`."""
    return _TakeRows.apply(rows, index.to(rows.device))


@dataclass
class _Direction:
    """One direction of one layer: PyTorch's cell, run over the steps of a packed batch.

    `r = sig(W_r x + U_r h + b_r)`, `z = sig(W_z x + U_z h + b_z)`, `g = tanh(W_g x + b_g + r * (U_g h + c_g))`,
    `h' = (1 - z) * g + z * h`.

    Attributes:
        weight_ih, weight_hh, bias_ih, bias_hh (`torch.Tensor`): as in `nn.GRU`, the rows of r, z and g in this order.
        steps (`list[slice]`): the packed rows of each step, in the order in which this direction takes them. Forwards
            there are ever fewer of them, backwards ever more; the rows of a sequence are at the same place in all.
    """

    weight_ih: torch.Tensor
    weight_hh: torch.Tensor
    bias_ih: torch.Tensor
    bias_hh: torch.Tensor
    steps: list[slice]

    def run(self, inputs: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill `states` `(packed_tokens, size)`; returns the gates r, z, g side by side and `U_g h + c_g`."""
        size = self.weight_hh.shape[1]
        # The biases of r and z simply add up; only that of the candidate must stay inside the reset gate's product.
        bias = self.bias_ih.clone()
        bias[: 2 * size] += self.bias_hh[: 2 * size]
        candidate_bias = self.bias_hh[2 * size :]
        tokens = max(now.stop for now in self.steps)
        gates = torch.addmm(bias, inputs[:tokens], self.weight_ih.t())
        recurrent = gates.new_empty(len(gates), size)
        weight_rz, weight_g = self.weight_hh.t().split([2 * size, size], dim=1)

        previous = states[:0]
        for now in self.steps:
            running = now.stop - now.start
            reset_update, candidate, inner = gates[now, : 2 * size], gates[now, 2 * size :], recurrent[now]
            reset, update = reset_update.split(size, dim=1)
            # Backwards, sequences join that have no state yet: theirs is zero.
            known = min(len(previous), running)
            previous = previous[:known]
            if known:
                reset_update[:known].addmm_(previous, weight_rz)
                torch.addmm(candidate_bias, previous, weight_g, out=inner[:known])
            if known < running:
                inner[known:] = candidate_bias
                previous = nn.functional.pad(previous, (0, 0, 0, running - known))
            reset_update.sigmoid_()
            candidate.addcmul_(reset, inner).tanh_()
            torch.lerp(candidate, previous, update, out=states[now])
            previous = states[now]
        return gates, recurrent

    def differentiate(
        self,
        inputs: torch.Tensor,
        gates: torch.Tensor,
        recurrent: torch.Tensor,
        states: torch.Tensor,
        grad_states: torch.Tensor | None,
        grad_final: torch.Tensor,
        grad_inputs: torch.Tensor | None,
        buffer: torch.Tensor,
    ) -> list[torch.Tensor]:
        """Add to `grad_inputs`; returns the gradients of the weights. `grad_final` is used up."""
        size = self.weight_hh.shape[1]
        # One buffer serves both products without a copy: the recurrent one reads the gradients of (U_g h + c_g), r, z,
        # the one with the inputs those of r, z, g.
        grads = buffer[: len(gates)]
        grad_hidden, grad_gates = grads[:, : 3 * size], grads[:, size:]
        weight_hh = self.weight_hh.roll(size, dims=0)

        for now in reversed(self.steps):
            reset, update, candidate = gates[now].split(size, dim=1)
            grad_inner, grad_reset, grad_update, grad_candidate = grads[now].split(size, dim=1)
            grad = grad_final[: now.stop - now.start]
            if grad_states is not None:
                grad += grad_states[now]
            carried = grad * update
            torch.sub(grad, carried, out=grad_candidate)
            # z (h - g) is h' - g, and d sig(x) = s (1 - s) and d tanh(x) = 1 - t^2 are each one multiply-add.
            torch.sub(states[now], candidate, out=grad_update).mul_(grad_candidate)
            grad_candidate.addcmul_(grad_candidate * candidate, candidate, value=-1)
            torch.mul(grad_candidate, reset, out=grad_inner)
            gated = grad_inner * recurrent[now]
            torch.addcmul(gated, gated, reset, value=-1, out=grad_reset)
            if now is not self.steps[0]:
                torch.addmm(carried, grad_hidden[now], weight_hh, out=grad)

        bias = grads.sum(dim=0)
        grad_bias_ih, grad_bias_hh = bias[size:], bias[: 3 * size].roll(-size, dims=0)
        later, earlier = self.successors()
        grad_weight_hh = (grad_hidden[later].t() @ states[earlier]).roll(-size, dims=0)
        grad_weight_ih = grad_gates.t() @ inputs[: len(grads)]
        if grad_inputs is not None:
            grad_inputs[: len(grads)].addmm_(grad_gates, self.weight_ih)
        return [grad_weight_ih, grad_weight_hh, grad_bias_ih, grad_bias_hh]

    def successors(self) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
        """The packed rows that had a state before them, and the rows of that state."""
        ordered = sorted(self.steps, key=lambda now: now.start)
        sizes = [now.stop - now.start for now in ordered]
        second = slice(sizes[0], ordered[-1].stop)
        if sizes[0] == sizes[-1]:
            first = slice(0, ordered[-1].start)
        else:
            ranges = [torch.arange(now.start, now.start + size) for now, size in zip(ordered, sizes[1:], strict=False)]
            first = torch.cat(ranges)
        return (second, first) if ordered[0] is self.steps[0] else (first, second)


class _BiGRULayer(torch.autograd.Function):
    """A bidirectional GRU layer over packed sequences.

    Takes `(packed_tokens, input_size)`, the packing, `first_token_only` and the weights, forwards before backwards.
    Returns the states of both directions side by side and, by row of the batch, the final states of both; with
    `first_token_only`, no states and those at the first token for the final ones.
    """

    @staticmethod
    def forward(ctx, inputs, packing, first_token_only, *weights):
        directions = _directions(packing, first_token_only, weights)
        states = inputs.new_empty(len(inputs), 2 * weights[1].shape[1])
        parts = states.chunk(2, dim=1)
        kept = [direction.run(inputs, part) for direction, part in zip(directions, parts, strict=True)]
        ends = [packing.first if first_token_only else packing.last, packing.first]
        final = torch.cat([part.index_select(0, end) for part, end in zip(parts, ends, strict=True)], dim=1)
        ctx.packing, ctx.first_token_only = packing, first_token_only
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs, states, *kept[0], *kept[1], *weights)
        return None if first_token_only else states, final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_states, grad_final):
        inputs, states, *kept = ctx.saved_tensors
        kept, weights = [kept[:2], kept[2:4]], kept[4:]
        grad_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        # Shared by the directions: memory that was written to before is much faster to write to.
        buffer = states.new_empty(len(states), 2 * states.shape[1])
        grad_weights = []
        for side, direction in enumerate(_directions(ctx.packing, ctx.first_token_only, weights)):
            part, grad_part, grad_end = (
                None if both is None else both.chunk(2, dim=1)[side] for both in (states, grad_states, grad_final)
            )
            # The state that each sequence ends with lies, in packed order, where the sequence's first token does.
            flowing = part.new_zeros(ctx.packing.shape[0], part.shape[1])
            if grad_end is not None:
                flowing.index_copy_(0, ctx.packing.first, grad_end)
            grad_weights += direction.differentiate(inputs, *kept[side], part, grad_part, flowing, grad_inputs, buffer)
        return grad_inputs, None, None, *grad_weights


def _directions(packing: Packing, first_token_only: bool, weights: Sequence[torch.Tensor]) -> list[_Direction]:
    steps, start = [], 0
    for running in packing.step_sizes:
        steps.append(slice(start, start + running))
        start += running
    return [
        _Direction(*weights[:4], steps[:1] if first_token_only else steps),
        _Direction(*weights[4:], steps[::-1]),
    ]


class PackedBiGRU(nn.GRU):
    """A bidirectional GRU over packed sequences, with the parameters and state-dict keys of `nn.GRU`.

    Args:
        input_size (`int`): features of a token.
        hidden_size (`int`): features of a state, per direction.
        num_layers (`int`): layers, each reading both directions of the one below.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire.modeling_gru import PackedBiGRU, Packing

    >>> packing = Packing.from_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]))
    >>> gru = PackedBiGRU(input_size=4, hidden_size=8, num_layers=2)
    >>> outputs, final_states = gru(packing.pack(torch.randn(2, 3, 4)), packing)
    >>> outputs.shape, final_states.shape
    (torch.Size([5, 16]), torch.Size([2, 32]))
    ```
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int):
        super().__init__(input_size, hidden_size, num_layers, bidirectional=True)

    @torch.compiler.disable
    def forward(
        self, packed: torch.Tensor, packing: Packing, first_token_only: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layers.

        Args:
            packed (`torch.Tensor` of shape `(packed_tokens, input_size)`): the real tokens, in packed order.
            packing ([`Packing`]): that order.
            first_token_only (`bool`): the caller reads the top layer at each sequence's first token and nowhere else.
                Its forward direction then stops after one step.

        Returns:
            The top layer's states, both directions side by side, `(packed_tokens, 2 * hidden_size)`, or
            `(batch, 2 * hidden_size)` with `first_token_only`; and the final states of every layer and direction,
            `(batch, num_layers * 2 * hidden_size)` (with `first_token_only`, those below the top layer only).
        """
        if packed.device.type != "cpu":
            return self._library_forward(packed, packing, first_token_only)
        weights = self.weight_ih_l0.dtype
        # Half precision has no fast path for the recurrence on a CPU and would lose the small updates of the state.
        compute = torch.float32 if weights in (torch.float16, torch.bfloat16) else weights
        with torch.autocast("cpu", enabled=False):
            outputs, final_states = self._packed_forward(packed.to(compute), packing, first_token_only, compute)
        return outputs.to(packed.dtype), final_states.to(packed.dtype)

    def _packed_forward(self, inputs, packing, first_token_only, dtype):
        final_states = []
        for layer in range(self.num_layers):
            weights = [
                getattr(self, f"{name}_l{layer}{side}").to(dtype)
                for side in ("", "_reverse")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            top = first_token_only and layer == self.num_layers - 1
            inputs, final = _BiGRULayer.apply(inputs, packing, top, *weights)
            if top:
                return final, _joined(final_states, final)
            final_states.append(final)
        return inputs, _joined(final_states, inputs)

    def _library_forward(self, packed, packing, first_token_only):
        sequences = PackedSequence(packed, torch.tensor(packing.step_sizes))
        outputs, states = super().forward(sequences)
        first = packing.first.to(packed.device)
        final_states = states.index_select(1, first).transpose(0, 1).flatten(1)
        outputs = outputs.data
        if first_token_only:
            return outputs.index_select(0, first), final_states[:, : -2 * self.hidden_size]
        return outputs, final_states


def _joined(final_states: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.cat(final_states, dim=-1) if final_states else like.new_empty(len(like), 0)
