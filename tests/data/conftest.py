"""Fixtures of the data tests: the real data where it is there, no network, a tiny tokenizer and a file writer."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


@pytest.fixture
def shared_data() -> Path:
    """The folder of real datasets beside the repository."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real datasets are not here: {folder} does not exist")
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach another machine fails at once."""

    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        # Worker processes talk through sockets in the file system.
        if self.family == socket.AF_UNIX:
            return connect(self, address)
        raise AssertionError(f"a test tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """A function that writes rows (as JSON Lines) or text under a name, packed if it ends in .gz; returns the path."""

    def write_file(name: str, content: list[dict[str, Any]] | str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write_file


def make_tokenizer(token_types: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer that makes one token of each letter a to z: [CLS] first [SEP] (second [SEP])."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, **{chr(97 + i): 4 + i for i in range(26)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if token_types else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=names,
    )


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture
def tokenizer_without_types() -> PreTrainedTokenizerFast:
    return make_tokenizer(token_types=False)
