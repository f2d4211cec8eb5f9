"""LSTMs with a projection and clipped states over packed sequences, several directions at once.

PyTorch's LSTM projects its states but cannot clip them, which the original ELMo does at every step. Here the inputs of
all steps go through one product, a step works on all directions together and in place, and the gradient, written out
by hand, takes each weight's from one product over all steps. A gradient that is itself to be differentiated is that of
the plain recurrence (`plain_recurrence`), which computes the same.

With gates i, f, g, o of PyTorch's order:
`c' = clip(sig(f) * c + sig(i) * tanh(g))`, `h' = clip(W_hr (sig(o) * tanh(c')))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from transformers import initialization as init

from .configuration_elmo import ElmoConfig
from .modeling_gru import Packing, take_rows


Tensors = tuple[torch.Tensor, ...]
# Of a cell and of a projected state.
Clips = tuple[float | None, float | None]
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0")


@dataclass
class Steps:
    """The steps of packed sequences, which are longest first, so that those still running are the first ones.

    Attributes:
        sizes (`list[int]`): how many sequences run at each step.
        previous (`torch.LongTensor` of shape `(packed_tokens - sequences,)`): for each token but the first ones, in
            packed order, the place of the one before it in its sequence.
        reverse (`torch.LongTensor` of shape `(packed_tokens,)`): for each token, the place of the one that stands as
            far from the end as it does from the beginning. Applied twice, it changes nothing.
    """

    sizes: list[int]
    previous: torch.Tensor
    reverse: torch.Tensor

    @classmethod
    def of(cls, packing: Packing) -> Steps:
        """The steps of a packing.

        Example:

        ```python
        >>> import torch
        >>> from modeling_hire.modeling_elmo_lstm import Steps
        >>> from modeling_hire.modeling_gru import Packing

        >>> steps = Steps.of(Packing.from_mask(torch.tensor([[1, 1, 0], [1, 1, 1]])))
        >>> steps.previous.tolist(), steps.reverse.tolist()
        ([0, 1, 2], [4, 3, 2, 1, 0])
        ```
        """
        device = packing.index.device
        sizes = torch.tensor(packing.step_sizes, device=device)
        offsets = sizes.cumsum(0) - sizes
        tokens = torch.arange(len(packing.index), device=device)
        step = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        mirrored = packing.lengths[packing.example] - 1 - step
        second = packing.step_sizes[0]
        return cls(
            sizes=packing.step_sizes,
            previous=tokens[second:] - sizes[:-1].repeat_interleave(sizes[1:]),
            reverse=offsets[mirrored] + tokens - offsets[step],
        )

    def slices(self) -> list[slice]:
        """The packed rows of each step."""
        slices, start = [], 0
        for size in self.sizes:
            slices.append(slice(start, start + size))
            start += size
        return slices


def plain_recurrence(
    inputs: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    weights: Sequence[torch.Tensor],
    sizes: Sequence[int],
    clips: Clips,
) -> Tensors:
    """The recurrence as plain differentiable operations; arguments and results as of [`clipped_lstm`]."""
    weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = (
        torch.stack(same) for same in zip(*_by_lstm(weights), strict=True)
    )
    gates = torch.baddbmm((bias_ih + bias_hh)[:, None], inputs, weight_ih.transpose(1, 2))
    weight_hh, weight_hr = weight_hh.transpose(1, 2), weight_hr.transpose(1, 2)
    outputs, last_hidden, last_cell = [], [], []
    for now in gates.split(list(sizes), dim=1):
        running = now.shape[1]
        if running < hidden.shape[1]:
            last_hidden.insert(0, hidden[:, running:])
            last_cell.insert(0, cell[:, running:])
            hidden, cell = hidden[:, :running], cell[:, :running]
        i, f, g, o = torch.baddbmm(now, hidden, weight_hh).chunk(4, dim=2)
        cell = _clamped(f.sigmoid() * cell + i.sigmoid() * g.tanh(), clips[0])
        hidden = _clamped(torch.bmm(o.sigmoid() * cell.tanh(), weight_hr), clips[1])
        outputs.append(hidden)
    return torch.cat(outputs, 1), torch.cat([hidden, *last_hidden], 1), torch.cat([cell, *last_cell], 1)


def _clamped(values: torch.Tensor, clip: float | None) -> torch.Tensor:
    return values if clip is None else values.clamp(-clip, clip)


def _by_lstm(weights: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
    """Flat weights as five for each LSTM."""
    return [weights[start : start + 5] for start in range(0, len(weights), 5)]


class _ClippedLSTM(torch.autograd.Function):
    """See [`clipped_lstm`], whose arguments it takes in another order."""

    @staticmethod
    def forward(ctx, steps: Steps, clips: Clips, keep: bool, inputs, hidden, cell, *weights):
        lstms = _by_lstm(weights)
        projected, size = lstms[0][4].shape
        gates, outputs = (inputs.new_empty(*inputs.shape[:2], width) for width in (4 * size, projected))
        for gate, rows, weight in zip(gates, inputs, lstms, strict=True):
            torch.addmm(weight[2] + weight[3], rows, weight[0].t(), out=gate)
        # What only the gradient needs is kept for it alone: memory that nothing wrote to before is slow to write to.
        cells, squashed = (inputs.new_empty(*inputs.shape[:2], size) if keep else None for _ in range(2))
        last_hidden, last_cell = hidden.clone(), cell.clone()
        previous, state = hidden, cell
        for now in steps.slices():
            running, waiting = now.stop - now.start, previous.shape[1]
            if running < waiting:
                last_hidden[:, running:waiting] = previous[:, running:]
                last_cell[:, running:waiting] = state[:, running:]
            gate, shown = gates[:, now], outputs[:, now]
            for d, weight in enumerate(lstms):
                gate[d].addmm_(previous[d, :running], weight[1].t())
            gate[..., : 2 * size].sigmoid_()
            gate[..., 2 * size : 3 * size].tanh_()
            gate[..., 3 * size :].sigmoid_()
            i, f, g, o = gate.split(size, dim=2)
            new = torch.mul(f, state[:, :running], out=cells[:, now] if keep else None).addcmul_(i, g)
            if clips[0] is not None:
                new.clamp_(-clips[0], clips[0])
            exposed = torch.tanh(new, out=squashed[:, now] if keep else None) * o
            for d, weight in enumerate(lstms):
                torch.mm(exposed[d], weight[4].t(), out=shown[d])
            if clips[1] is not None:
                shown.clamp_(-clips[1], clips[1])
            previous, state = shown, new
        last_hidden[:, : previous.shape[1]], last_cell[:, : state.shape[1]] = previous, state
        if not keep:
            return outputs, last_hidden, last_cell
        ctx.steps, ctx.clips = steps, clips
        ctx.save_for_backward(outputs, gates, cells, squashed, inputs, hidden, cell, *weights)
        ctx.set_materialize_grads(False)
        return outputs, last_hidden, last_cell

    @staticmethod
    def backward(ctx, *grads):
        kept, given = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        # Where someone will differentiate this gradient: what was kept knows nothing of where it came from.
        find = _differentiable_gradients if torch.is_grad_enabled() else _gradients
        return None, None, None, *find(ctx, given, kept, grads)


def _differentiable_gradients(ctx, given: Tensors, kept: Tensors, grads: Sequence[torch.Tensor | None]):
    needed = ctx.needs_input_grad[3:]
    results = plain_recurrence(*given[:3], given[3:], ctx.steps.sizes, ctx.clips)
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        [tensor for tensor, wanted in zip(given, needed, strict=True) if wanted],
        [grad for _, grad in pairs],
        create_graph=True,
        allow_unused=True,
    )
    found = iter(found)
    return [next(found) if wanted else None for wanted in needed]


def _gradients(ctx, given: Tensors, kept: Tensors, grads: Sequence[torch.Tensor | None]):
    outputs, gates, cells, squashed = kept
    inputs, hidden, cell, *weights = given
    grad_outputs, grad_hidden, grad_cell = grads
    lstms, steps, clips, size = _by_lstm(weights), ctx.steps, ctx.clips, cells.shape[2]
    flowing = torch.zeros_like(hidden) if grad_hidden is None else grad_hidden.clone()
    carried = torch.zeros_like(cell) if grad_cell is None else grad_cell.clone()
    grad_gates, grad_shown = torch.empty_like(gates), torch.empty_like(outputs)
    slices = steps.slices()
    for step in reversed(range(len(slices))):
        now = slices[step]
        running = now.stop - now.start
        i, f, g, o = gates[:, now].split(size, dim=2)
        grad_i, grad_f, grad_g, grad_o = grad_gates[:, now].split(size, dim=2)
        shown, tanh_c = grad_shown[:, now], squashed[:, now]
        if grad_outputs is None:
            shown.copy_(flowing[:, :running])
        else:
            torch.add(flowing[:, :running], grad_outputs[:, now], out=shown)
        if clips[1] is not None:
            shown.masked_fill_(outputs[:, now].abs() >= clips[1], 0)
        exposed = torch.stack([torch.mm(rows, weight[4]) for rows, weight in zip(shown, lstms, strict=True)])
        # d sig(x) = s (1 - s) and d tanh(x) = 1 - t^2, each as one multiply-add.
        grad = torch.mul(exposed, tanh_c, out=grad_o).mul_(o)
        grad.addcmul_(grad, o, value=-1)
        exposed.mul_(o)
        carry = carried[:, :running]
        carry.add_(exposed).addcmul_(exposed.mul_(tanh_c), tanh_c, value=-1)
        if clips[0] is not None:
            carry.masked_fill_(cells[:, now].abs() >= clips[0], 0)
        before = cells[:, slices[step - 1]][:, :running] if step else cell[:, :running]
        grad = torch.mul(carry, i, out=grad_i)
        torch.addcmul(grad, grad * g, g, value=-1, out=grad_g)
        grad.mul_(g).addcmul_(grad, i, value=-1)
        grad = torch.mul(carry, before, out=grad_f).mul_(f)
        grad.addcmul_(grad, f, value=-1)
        carry.mul_(f)
        for d, weight in enumerate(lstms):
            torch.mm(grad_gates[d, now], weight[1], out=flowing[d, :running])

    needed, first = ctx.needs_input_grad[3:], steps.sizes[0]
    exposed = squashed * gates[..., 3 * size :] if any(needed[3:]) else None
    found: list[torch.Tensor | None] = [None, flowing, carried]
    if needed[0]:
        found[0] = torch.stack([grads @ weight[0] for grads, weight in zip(grad_gates, lstms, strict=True)])
    for d, grads in enumerate(grad_gates):
        if not any(needed[3 + 5 * d : 8 + 5 * d]):
            found += [None] * 5
            continue
        recurrent = grads[first:].t() @ outputs[d].index_select(0, steps.previous)
        recurrent.addmm_(grads[:first].t(), hidden[d])
        bias = grads.sum(dim=0)
        found += [grads.t() @ inputs[d], recurrent, bias, bias, grad_shown[d].t() @ exposed[d]]
    return found


def clipped_lstm(
    inputs: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    weights: Sequence[torch.Tensor],
    steps: Steps,
    clips: Clips,
) -> Tensors:
    """Run LSTMs with a projection and clipping over packed sequences, one a direction.

    Args:
        inputs (`torch.Tensor` of shape `(directions, packed_tokens, input_size)`): each direction in its own order.
        hidden, cell (`torch.Tensor` of shapes `(directions, sequences, projection_size)` and `(..., cell_size)`):
            where the sequences start, in packed order.
        weights: of each direction, `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh` and `weight_hr`, as in `nn.LSTM`.
        steps ([`Steps`]): where the steps lie.
        clips (`tuple[float | None, float | None]`): largest absolute value of a cell and of a projected state.

    Returns:
        The states, `(directions, packed_tokens, projection_size)`, and `hidden` and `cell` where the sequences end.
        Differentiable twice.
    """
    return _ClippedLSTM.apply(steps, clips, torch.is_grad_enabled(), inputs, hidden, cell, *weights)


class ElmoLayer(nn.Module):
    """One layer of the two language models: an LSTM each, which read packed sequences in opposite directions.

    Args:
        config ([`ElmoConfig`]): the configuration.
    """

    def __init__(self, config: ElmoConfig):
        super().__init__()
        size = config.projection_size
        self.forward_lstm = nn.LSTM(size, config.cell_size, proj_size=size)
        self.backward_lstm = nn.LSTM(size, config.cell_size, proj_size=size)
        self.clips = (config.cell_clip, config.proj_clip)

    def forward(
        self, inputs: torch.Tensor, steps: Steps, state: Tensors, directions: Sequence[str] = ("forward", "backward")
    ) -> tuple[torch.Tensor, Tensors]:
        """
        Args:
            inputs (`torch.Tensor` of shape `(directions, packed_tokens, projection_size)`): packed tokens; the
                backward direction's from the last to the first one.
            steps ([`Steps`]): where the steps lie.
            state: `hidden` and `cell` of [`clipped_lstm`].
            directions: which of the two run, in the order of the inputs' rows.

        Returns:
            The states, of the shape of the inputs, and the state where the sequences end.
        """
        lstms = [getattr(self, f"{direction}_lstm") for direction in directions]
        if self.clips == (None, None):
            return self._fused(lstms, inputs, steps, state)
        weights = [getattr(lstm, name) for lstm in lstms for name in WEIGHTS]
        outputs, *state = clipped_lstm(inputs, *state, weights, steps, self.clips)
        return outputs, tuple(state)

    @staticmethod
    def _fused(lstms: list[nn.LSTM], inputs: torch.Tensor, steps: Steps, state: Tensors):
        sizes = torch.tensor(steps.sizes)
        results = []
        for lstm, rows, hidden, cell in zip(lstms, inputs, *state, strict=True):
            packed, (hidden, cell) = lstm(PackedSequence(rows, sizes), (hidden[None], cell[None]))
            results.append((packed.data, hidden[0], cell[0]))
        outputs, hidden, cell = (torch.stack(parts) for parts in zip(*results, strict=True))
        return outputs, (hidden, cell)


def init_lstm(lstm: nn.LSTM) -> None:
    """TensorFlow's defaults, which the original was trained from; a new cell remembers what it has."""
    size, projected = lstm.hidden_size, lstm.proj_size
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_hr"):
            bound = (6 / (size + projected)) ** 0.5
            init.uniform_(parameter, -bound, bound)
        elif name.startswith("weight"):
            bound = (6 / (lstm.input_size + projected + 4 * size)) ** 0.5
            init.uniform_(parameter, -bound, bound)
        else:
            bias = torch.zeros_like(parameter)
            if name.startswith("bias_ih"):
                bias[size : 2 * size] = 1.0
            init.copy_(parameter, bias)


def turned(packed: torch.Tensor, steps: Steps) -> torch.Tensor:
    """Packed tokens `(packed_tokens, features)` with every sequence from its last token to its first."""
    return take_rows(packed, steps.reverse)
