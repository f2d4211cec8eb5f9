"""How layers are repeated, removed and executed: the notation of duplication plans, and checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


GRAMMAR = (
    "allowed is a list with how often each layer occurs, such as 2,2,1,1 (0 removes a layer), or first:K, last:K "
    "(the first or last K layers twice), all:M (every layer M times), single:I (layer I twice) or block:I-J (layers I "
    "to J as a run, then the same run again); layers count from 0"
)


def parse_plan(plan: str | Sequence[int], num_layers: int) -> list[int]:
    """Which layer of the original stands at each place of the new stack.

    Args:
        plan (`str` or sequence of `int`): how often each layer occurs, one number a layer, each copy directly after
            its source and 0 for a layer left out; or `"first:k"`, `"last:k"`, `"all:m"`, `"single:i"` or
            `"block:i-j"`, the last of which repeats layers i to j as a run after the run. Layers count from 0, and j
            is included.
        num_layers (`int`): layers of the original.

    Returns:
        The layer numbers in the order of the new stack.

    Raises:
        ValueError: for a plan that cannot be read, names a layer that does not exist, or leaves no layer.

    Example:

    ```python
    >>> from modeling_hire.configuration_layer_plans import parse_plan

    >>> parse_plan("first:2", num_layers=3), parse_plan([2, 0, 1], num_layers=3), parse_plan("block:0-1", num_layers=3)
    ([0, 0, 1, 1, 2], [0, 0, 2], [0, 1, 0, 1, 2])
    ```
    """
    layers = range(num_layers)
    if isinstance(plan, str):
        text = plan.strip()
        named = re.fullmatch(r"(first|last|all|single):(\d+)", text)
        block = re.fullmatch(r"block:(\d+)-(\d+)", text)
        if block:
            first, last = int(block[1]), int(block[2])
            if not first <= last < num_layers:
                raise _wrong(plan, f"allowed are layers 0 to {num_layers - 1}, the smaller first")
            run = list(range(first, last + 1))
            return [*range(first), *run, *run, *range(last + 1, num_layers)]
        if named:
            return _expand(plan, _multiplicities(plan, named[1], int(named[2]), num_layers))
        if not re.fullmatch(r"[\[(]?\s*\d+(\s*[,\s]\s*\d+)*\s*[\])]?", text):
            raise _wrong(plan, GRAMMAR)
        plan = [int(number) for number in re.findall(r"\d+", text)]
    numbers = list(plan) if isinstance(plan, Sequence) else None
    if numbers is None or not all(is_integer(number, 0) for number in numbers):
        raise _wrong(plan, GRAMMAR)
    if len(numbers) != num_layers:
        raise _wrong(plan, f"{len(numbers)} numbers for {num_layers} layers; {GRAMMAR}")
    return _expand(plan, dict(zip(layers, numbers, strict=True)))


def _multiplicities(plan: str, kind: str, number: int, num_layers: int) -> dict[int, int]:
    layers = range(num_layers)
    if kind == "all":
        return dict.fromkeys(layers, number)
    if kind == "single":
        if number >= num_layers:
            raise _wrong(plan, f"allowed are layers 0 to {num_layers - 1}")
        return {layer: 1 + (layer == number) for layer in layers}
    if not 1 <= number <= num_layers:
        raise _wrong(plan, f"allowed are 1 to {num_layers} layers")
    twice = layers[:number] if kind == "first" else layers[-number:]
    return {layer: 1 + (layer in twice) for layer in layers}


def _expand(plan: Any, multiplicities: dict[int, int]) -> list[int]:
    sources = [layer for layer, times in multiplicities.items() for _ in range(times)]
    if not sources:
        raise _wrong(plan, f"no layer is left; {GRAMMAR}")
    return sources


def _wrong(plan: Any, allowed: str) -> ValueError:
    return ValueError(f"duplicate={plan!r}: {allowed}.")


def compose(inner: Sequence[int] | None, outer: Sequence[int]) -> list[int]:
    """One plan for two: `outer` chooses among the places that `inner` filled (`None`: each layer once).

    ```python
    >>> from modeling_hire.configuration_layer_plans import compose

    >>> compose([0, 0, 1], [0, 1, 2, 2])
    [0, 0, 1, 1]
    ```
    """
    return list(outer) if inner is None else [inner[place] for place in outer]


def check_layer_plan(plan: Any, num_layers: int) -> None:
    """Raise a `ValueError` unless `plan` is an order in which so many layers can be executed."""
    if not (isinstance(plan, list) and plan and all(is_integer(layer, 0, num_layers - 1) for layer in plan)):
        raise ValueError(
            f"layer_plan={plan!r}: allowed is a non-empty list of layer numbers from 0 to {num_layers - 1} "
            f"(the encoder has {num_layers} layers)."
        )


def is_integer(value: Any, low: int, high: int | None = None) -> bool:
    """Whether `value` is a whole number from `low` to `high` (`True` and `False` are not numbers here)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
