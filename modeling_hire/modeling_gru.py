"""Bidirectional GRUs over packed sequences, fast on the CPU and exact under padding.

A batch of token vectors is *packed*: only real tokens are kept, step by step, the longest sequence first. Padding
then costs nothing and cannot change a result. On the CPU the recurrence is a hand-written autograd function
(`_RecurrentLayer`), which beats `nn.GRU` in three ways: both directions share one batched product a step, the
gradient of the recurrent weights is one product over all steps instead of one a step, and the sequences shrink as
they end. On other devices the module is the library's `nn.GRU`, with the same parameters under the same names.
"""

from __future__ import annotations

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
        mirror (`torch.LongTensor` of shape `(packed_tokens,)`): packed place of the token as far from its sequence's
            end as this one is from its start. It is its own inverse, and turns a sequence around.
        first, last (`torch.LongTensor` of shape `(batch,)`): packed place of each row's first and last real token.
        example (`torch.LongTensor` of shape `(packed_tokens,)`): the row each token belongs to.
        lengths (`torch.LongTensor` of shape `(batch,)`): real tokens of each row.
        step_sizes (`list[int]`): how many sequences are still running at each step.
        shape (`tuple[int, int]`): rows and columns of the padded batch.
    """

    index: torch.Tensor
    mirror: torch.Tensor
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
        mirrored = offsets[lengths[example] - 1 - step] + rank[example]

        index, mirror, packed_example = torch.empty_like(place), torch.empty_like(place), torch.empty_like(place)
        index[place] = example * columns + column
        mirror[place] = mirrored
        packed_example[place] = example
        return cls(
            index=index,
            mirror=mirror,
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
            mirror=spread(self.mirror),
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


class _RecurrentLayer(torch.autograd.Function):
    """One GRU layer in one or both directions, over packed sequences.

    The cell is PyTorch's: `r = sig(W_r x + U_r h + b_r)`, `z = sig(W_z x + U_z h + b_z)`,
    `g = tanh(W_g x + b_g + r * (U_g h + c_g))`, `h' = (1 - z) * g + z * h`.

    Inputs and outputs are `(directions, packed_tokens, features)`; a backward direction comes turned around already,
    so that every direction runs forwards and shares the same steps.
    """

    @staticmethod
    def forward(ctx, inputs, weight_ih, weight_hh, bias_ih, bias_hh, step_sizes):
        size = weight_hh.shape[-1]
        reset_update = slice(0, 2 * size)
        # The biases of r and z simply add up; only that of the candidate must stay inside the reset gate's product.
        bias = bias_ih.clone()
        bias[:, reset_update] += bias_hh[:, reset_update]
        candidate_bias = bias_hh[:, None, 2 * size :]
        gates = torch.baddbmm(bias[:, None], inputs, weight_ih.transpose(1, 2))
        recurrent = gates.new_empty(gates.shape[0], gates.shape[1], size)
        states = torch.empty_like(recurrent)
        weight = weight_hh.transpose(1, 2).contiguous()

        start, previous = 0, None
        for running in step_sizes:
            now = slice(start, start + running)
            rz, candidate = gates[:, now, reset_update], gates[:, now, 2 * size :]
            update = gates[:, now, size : 2 * size]
            inner = recurrent[:, now]
            if previous is None:
                inner.copy_(candidate_bias.expand_as(inner))
                rz.sigmoid_()
            else:
                previous = previous[:, :running]
                product = torch.bmm(previous, weight)
                rz.add_(product[..., reset_update]).sigmoid_()
                torch.add(product[..., 2 * size :], candidate_bias, out=inner)
            candidate.addcmul_(gates[:, now, :size], inner).tanh_()
            if previous is None:
                torch.addcmul(candidate, candidate, update, value=-1, out=states[:, now])
            else:
                torch.lerp(candidate, previous, update, out=states[:, now])
            previous, start = states[:, now], start + running
        ctx.save_for_backward(inputs, weight_ih, weight_hh, gates, recurrent, states)
        ctx.step_sizes = step_sizes
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_states):
        inputs, weight_ih, weight_hh, gates, recurrent, states = ctx.saved_tensors
        step_sizes, size = ctx.step_sizes, weight_hh.shape[-1]
        starts = _starts(step_sizes)
        grad_gates = torch.empty_like(gates)
        grad_candidate = torch.empty_like(states)
        grad_state = states.new_zeros(states.shape[0], step_sizes[0], size)

        for step in range(len(step_sizes) - 1, -1, -1):
            running = step_sizes[step]
            now = slice(starts[step], starts[step] + running)
            reset, update, candidate = gates[:, now].split(size, dim=-1)
            grad_reset, grad_update, grad_inner = grad_gates[:, now].split(size, dim=-1)
            grad = grad_state[:, :running]
            grad += grad_states[:, now]
            if step:
                change = states[:, starts[step - 1] : starts[step - 1] + running] - candidate
            else:
                change = -candidate
            carried = grad * update
            # d sig(x) = s (1 - s) and d tanh(x) = 1 - t^2, each written as one multiply-add.
            torch.addcmul(update, update, update, value=-1, out=grad_update).mul_(change).mul_(grad)
            through = grad_candidate[:, now]
            torch.sub(grad, carried, out=through)
            through.addcmul_(through * candidate, candidate, value=-1)
            torch.mul(through, reset, out=grad_inner)
            gated = grad_inner * recurrent[:, now]
            torch.addcmul(gated, gated, reset, value=-1, out=grad_reset)
            if step:
                torch.baddbmm(carried, grad_gates[:, now], weight_hh, out=grad)

        grad_bias_hh = grad_gates.sum(dim=1)
        grad_weight_hh = torch.zeros_like(weight_hh)
        if len(step_sizes) > 1:
            previous = torch.cat(
                [
                    torch.arange(start, start + running, device=states.device)
                    for start, running in zip(starts[:-1], step_sizes[1:], strict=True)
                ]
            )
            later = grad_gates[:, step_sizes[0] :].transpose(1, 2)
            grad_weight_hh = torch.bmm(later, states.index_select(1, previous))
        # From here on the candidate's gradient is the one before the reset gate: that of the input product.
        grad_gates[..., 2 * size :] = grad_candidate
        grad_inputs = torch.bmm(grad_gates, weight_ih) if ctx.needs_input_grad[0] else None
        grad_weight_ih = torch.bmm(grad_gates.transpose(1, 2), inputs)
        return grad_inputs, grad_weight_ih, grad_weight_hh, grad_gates.sum(dim=1), grad_bias_hh, None


def _starts(step_sizes: list[int]) -> list[int]:
    starts = [0]
    for running in step_sizes[:-1]:
        starts.append(starts[-1] + running)
    return starts


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
            parameters = [
                torch.stack([getattr(self, f"{name}_l{layer}"), getattr(self, f"{name}_l{layer}_reverse")]).to(dtype)
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            turned = take_rows(inputs, packing.mirror)
            if first_token_only and layer == self.num_layers - 1:
                begin = inputs[: packing.step_sizes[0]]
                forwards = _RecurrentLayer.apply(
                    begin[None], *(parameter[:1] for parameter in parameters), packing.step_sizes[:1]
                )
                backwards = _RecurrentLayer.apply(
                    turned[None], *(parameter[1:] for parameter in parameters), packing.step_sizes
                )
                # Read backwards, a sequence ends at its first token.
                at_first = [take_rows(forwards[0], packing.first), take_rows(backwards[0], packing.last)]
                return torch.cat(at_first, dim=-1), _joined(final_states, begin)
            states = _RecurrentLayer.apply(torch.stack([inputs, turned]), *parameters, packing.step_sizes)
            final_states += [take_rows(states[0], packing.last), take_rows(states[1], packing.last)]
            inputs = torch.cat([states[0], take_rows(states[1], packing.mirror)], dim=-1)
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
