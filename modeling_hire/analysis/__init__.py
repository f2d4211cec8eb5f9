"""What a trained model does inside: layer importance and its pictures. Never imported by the files of a checkpoint."""

from __future__ import annotations

from importlib import import_module
from typing import Any


_HOMES = {
    "collect_layer_weights": "layer_importance",
    "join_layer_importance": "layer_importance",
    "save_layer_importance": "layer_importance",
}

__all__ = sorted(_HOMES)


# Looked up on first use: `python -m modeling_hire.analysis.layer_importance` would otherwise load that file twice.
def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
