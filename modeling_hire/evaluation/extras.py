"""Packages that are not installed by default, imported at their first use."""

from __future__ import annotations

import importlib
from types import ModuleType


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: its name in Python, e.g. `"faiss"`.
        extra: the extra of this package that installs it.
        what: what needs it, for the message.

    Raises:
        ImportError: if it is not installed, or broken; the message says how to install it.

    Example:
        >>> import_extra("no_such_module", "faiss", "index='faiss'")
        Traceback (most recent call last):
            ...
        ImportError: index='faiss' needs the package no_such_module: pip install modeling_hire[faiss]
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        broken = "" if isinstance(error, ModuleNotFoundError) and error.name == module else f" ({error})"
        raise ImportError(f"{what} needs the package {module}: pip install modeling_hire[{extra}]{broken}") from error
