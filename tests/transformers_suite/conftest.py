"""Collection of transformers' own model tests: their marks, and what is not to be collected."""

from __future__ import annotations

from pathlib import Path

import pytest


# What is imported, not run by itself.
collect_ignore = ["downloaded", "upstream"]
MARKS = (
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "torch_compile_test",
)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", f"{mark}: a mark of transformers' own tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Their import takes ten seconds, which a run that leaves them out need not wait for.
    left_out = "not transformers_suite" in config.option.markexpr
    return True if left_out and collection_path.name == "test_hire.py" else None
