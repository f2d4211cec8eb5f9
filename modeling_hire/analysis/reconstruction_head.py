"""The output layer of any masked language model, taken apart from its encoder, and the encoder's hidden states."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class _GivenStates(nn.Module):
    """Stands in for an encoder: returns the hidden states it holds, whatever it is asked."""

    def __init__(self, encoder: nn.Module, output_type: type):
        super().__init__()
        # In a tuple, so that the encoder is no part of this module.
        self.replaced = (encoder,)
        self.output_type = output_type
        self.states: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.replaced[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output_type(last_hidden_state=self.states)


class OutputLayer:
    """The pre-trained output layer of a masked language model, for hidden states of any origin.

    How a model calls its head differs from class to class, so its own forward is run, on a shallow copy in which the
    encoder is replaced by the given states. That this gives the model's own logits for its last layer is checked here.

    Args:
        model: any `AutoModelForMaskedLM` model, in evaluation mode. It is not changed, and its weights are not copied.

    Attributes:
        encoder (`PreTrainedModel`): the model below its head.
        vocab_size (`int`): number of logits of a token.
        example_ids (`torch.Tensor`): a short row of token ids, `(1, tokens)`, to try things on.

    Raises:
        ValueError: if the class has no encoder that can be replaced, or its head reads more than the last states.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> from modeling_hire.analysis.reconstruction_head import OutputLayer

    >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> model = BertForMaskedLM(BertConfig(vocab_size=50, **sizes)).eval()
    >>> OutputLayer(model)(torch.zeros(3, 8)).shape
    torch.Size([3, 50])
    ```
    """

    def __init__(self, model: PreTrainedModel):
        kind = type(model).__name__
        prefix = getattr(model, "base_model_prefix", "")
        self.encoder = getattr(model, "_modules", {}).get(prefix)
        if not isinstance(model, PreTrainedModel) or not isinstance(self.encoder, PreTrainedModel):
            raise ValueError(
                f"{kind}: must be a masked language model of transformers, an encoder with an output layer on it (a "
                "PEFT model is one after merge_and_unload())."
            )
        self.example_ids = _example_ids(model)
        seen: list[Any] = []
        handle = self.encoder.register_forward_hook(lambda module, args, output: seen.append(output))
        try:
            with torch.no_grad():
                own = model(input_ids=self.example_ids, return_dict=True).logits[0]
        finally:
            handle.remove()
        output = seen[0] if seen else None
        self._stand_in = _GivenStates(self.encoder, type(output) if hasattr(output, "keys") else BaseModelOutput)
        self._shell = copy.copy(model)
        self._shell._modules = {**model._modules, prefix: self._stand_in}
        # Where weights are spread over devices, `forward` is wrapped and would run the model copied from.
        self._shell.__dict__.pop("forward", None)
        self.vocab_size = own.shape[-1]
        self._check(own, output, kind)

    @torch.no_grad()
    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """The logits `(tokens, vocab_size)` of hidden states `(tokens, hidden_size)`."""
        self._stand_in.states = states[None]
        try:
            ids = self.example_ids.new_zeros(1, len(states))
            return self._shell(input_ids=ids, return_dict=True).logits[0]
        finally:
            self._stand_in.states = None

    def _check(self, own: torch.Tensor, output: Any, kind: str) -> None:
        last = getattr(output, "last_hidden_state", None)
        reason = "its encoder returns no last_hidden_state" if last is None else None
        if reason is None:
            try:
                logits = self(last[0])
            except Exception as error:  # a head may fail in any way on states that come without their encoder
                reason = f"its output layer does not run without its encoder ({type(error).__name__}: {error})"
            else:
                tolerance = max(1e-4, 16 * torch.finfo(own.dtype).eps) * max(1.0, own.abs().max().item())
                if logits.shape != own.shape or not (logits - own).abs().max().item() <= tolerance:
                    reason = "given its last layer alone, its output layer does not return the model's own logits"
        if reason is not None:
            raise ValueError(f"{kind}: {reason}, so its output layer cannot be fed other layers.")


def _example_ids(model: PreTrainedModel) -> torch.Tensor:
    """A row of ids that are no padding, to run the model on."""
    # The vocabulary may have grown beyond the config's, never shrunk below its embeddings.
    size = model.get_input_embeddings().weight.shape[0]
    padding = getattr(model.config, "pad_token_id", None)
    ids = [int(i) for i in torch.linspace(0, size - 1, 9).round() if int(i) != padding]
    return torch.tensor([ids], device=model.device)


def find_final_norm(encoder: PreTrainedModel) -> str | None:
    """Where an encoder keeps the norm that its last layer's output goes through, if it has one outside its layers.

    Args:
        encoder: in evaluation mode.

    Returns:
        The path of the module, for `get_submodule`; `None` for encoders that end in a layer (BERT and most).

    Example:

    ```python
    >>> from transformers import BertConfig, BertModel
    >>> from modeling_hire.analysis.reconstruction_head import find_final_norm

    >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> find_final_norm(BertModel(BertConfig(vocab_size=50, **sizes)).eval()) is None
    True
    ```
    """
    outputs: dict[str, Any] = {}
    handles = [
        module.register_forward_hook(lambda module, args, output, path=path: outputs.__setitem__(path, output))
        for path, module in encoder.named_modules()
        # A number in the path: it belongs to one layer.
        if "norm" in type(module).__name__.lower() and not any(part.isdigit() for part in path.split("."))
    ]
    try:
        with torch.no_grad():
            last = encoder(input_ids=_example_ids(encoder), return_dict=True).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    found = [
        path
        for path, output in outputs.items()
        if isinstance(output, torch.Tensor) and output.shape == last.shape and torch.equal(output, last)
    ]
    return found[-1] if found else None


def read_states(
    encoder: PreTrainedModel, batch: dict[str, torch.Tensor], final_norm: str | None = None
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """All hidden states of a batch, and the last one before the final norm.

    Args:
        encoder: an encoder of transformers.
        batch: inputs of the encoder; those that it does not know are left out.
        final_norm: where the final norm is, see [`find_final_norm`].

    Returns:
        The hidden states, each `(batch, tokens, hidden_size)`, embeddings first; and the last state without the final
        norm (the last state itself for an encoder without one).

    Raises:
        ValueError: if the encoder does not return equally shaped states that end in its `last_hidden_state`.
    """
    before: list[torch.Tensor] = []
    known = inspect.signature(encoder.forward).parameters
    with contextlib.ExitStack() as stack:
        if final_norm is not None:
            norm = encoder.get_submodule(final_norm)
            handle = norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
            stack.callback(handle.remove)
        outputs = encoder(
            **{name: value for name, value in batch.items() if name in known},
            output_hidden_states=True,
            return_dict=True,
        )
    states, last = getattr(outputs, "hidden_states", None), getattr(outputs, "last_hidden_state", None)
    fault = None
    if not states or last is None:
        fault = "returns no hidden states"
    elif any(state.shape != last.shape for state in states):
        fault = f"has layers of different shapes ({sorted({tuple(state.shape) for state in (*states, last)})})"
    elif states[-1] is not last and not torch.equal(states[-1], last):
        fault = "has a last hidden state that is not its last_hidden_state"
    if fault:
        raise ValueError(f"{type(encoder).__name__}: {fault}, so it cannot be read layer by layer.")
    return states, before[-1] if before else states[-1]


def share_weights(encoder: PreTrainedModel) -> PreTrainedModel:
    """A copy of an encoder's modules on the very same parameters and buffers."""
    tensors = (*encoder.parameters(), *encoder.buffers())
    return copy.deepcopy(encoder, {id(tensor): tensor for tensor in tensors})


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; each module's own mode again afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
