"""Small helpers that make error messages useful."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(value: str, allowed: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the name nearest to `value`, or an empty string when none is near.

    Args:
        value: What the user wrote.
        allowed: The names that would have been right. Letter case is ignored when looking for the nearest.

    Returns:
        A sentence that starts with a space, ready to be appended to an error message.
    """
    by_lower = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(str(value).lower(), list(by_lower), n=1, cutoff=0.6)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def listing(names: Iterable[str], limit: int = 20) -> str:
    """Return the names as `'a', 'b', 'c'`, cut after `limit` names with a count of the rest."""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
