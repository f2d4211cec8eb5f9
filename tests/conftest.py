"""What holds for every test: no network, one thread, the same random numbers each time."""

from __future__ import annotations

import os


# Before anything imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import ipaddress  # noqa: E402
import socket  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from tiny_models import tiny_batch, tiny_tokenizer  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402


torch.set_num_threads(1)


def _is_local(address: Any) -> bool:
    host = address[0] if isinstance(address, tuple) else address
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach another machine fails at once; this one may talk to itself."""

    def guarded(connect: Any) -> Any:
        def guard(self: socket.socket, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address):
                raise AssertionError(f"a test tried to connect to {address}")
            return connect(self, address)

        return guard

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Three texts of 9, 6 and 4 tokens, padded on the right."""
    return tiny_batch()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()
