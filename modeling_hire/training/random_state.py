"""Running a forward pass again with the dropout it had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import get_device_states, set_device_states


@dataclass
class RandomState:
    """The state of the random number generators of the CPU and of the devices that hold some tensors."""

    cpu: torch.Tensor
    devices: list[int]
    states: list[torch.Tensor]
    device_type: str

    @classmethod
    def now(cls, tensors: Sequence[torch.Tensor]) -> RandomState:
        """The state as it is, with that of the devices of `tensors`."""
        kinds = {tensor.device.type for tensor in tensors} - {"cpu"}
        return cls(torch.get_rng_state(), *get_device_states(*tensors), next(iter(kinds), "cuda"))

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """A context that draws what was drawn after `now`; what is drawn after it is not affected."""
        with torch.random.fork_rng(devices=self.devices, device_type=self.device_type):
            torch.set_rng_state(self.cpu)
            if self.devices:
                set_device_states(self.devices, self.states, device_type=self.device_type)
            yield
