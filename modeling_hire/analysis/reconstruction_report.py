"""The reconstruction probe's results as tables, as JSON and as pictures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..hub import markdown_table
from .plots import plots_available
from .reconstruction_plots import draw_accuracy_by_layer, draw_changes_by_layer, draw_decoded_text
from .reconstruction_results import ChangedStack, DecodedLayer, LayerScores, ProbedStack
from .reconstruction_scores import Scores


ACCURACY_PNG, CHANGES_PNG, SENTENCE_PNG = "probe_accuracy.png", "probe_changes.png", "probe_sentence.png"


# ---- numbers --------------------------------------------------------------------------------------------------------


def scores_dict(scores: Scores) -> dict[str, float | int | None]:
    """Scores for a JSON file, which knows no NaN."""
    return {name: _number(value) for name, value in dataclasses.asdict(scores).items()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def stack_dict(stack: ProbedStack) -> dict[str, Any]:
    """A probed stack for a JSON file."""

    def rows(layers: Sequence[LayerScores]) -> list[dict[str, Any]]:
        return [
            {
                "layer": entry.layer,
                "block": entry.block,
                "content": scores_dict(entry.content),
                "everything": scores_dict(entry.everything),
            }
            for entry in layers
        ]

    result = {"plan": stack.plan, "final_norm": stack.final_norm, "layers": rows(stack.layers)}
    if stack.cosine_to_original is not None:
        result["cosine_to_original"] = _number(stack.cosine_to_original)
    if stack.without_final_norm is not None:
        result["without_final_norm"] = rows(stack.without_final_norm)
    return result


def change_dict(change: ChangedStack) -> dict[str, Any]:
    """A changed stack for a JSON file."""
    return {
        "block": change.block,
        "times": change.times,
        "plan": change.plan,
        "content": scores_dict(change.content),
        "everything": scores_dict(change.everything),
    }


def decoded_dict(tokens: Sequence[str], decoded: Sequence[DecodedLayer]) -> dict[str, Any]:
    """A decoded text for a JSON file."""
    layers = [dataclasses.asdict(layer) for layer in decoded]
    for layer in layers:
        layer["probability"] = [round(value, 6) for value in layer["probability"]]
    return {"tokens": list(tokens), "layers": layers}


# ---- tables ---------------------------------------------------------------------------------------------------------


def layer_table(layers: Sequence[LayerScores]) -> str:
    """A Markdown table with a row a layer; accuracies in per cent."""
    header = ["layer", "block", "accuracy", "with special", "loss", "mean rank", "median rank", "cosine to last"]
    rows = [
        [
            entry.layer,
            "-" if entry.block is None else entry.block,
            _percent(entry.content.accuracy),
            _percent(entry.everything.accuracy),
            f"{entry.content.loss:.3f}",
            f"{entry.content.mean_rank:.1f}",
            f"{entry.content.median_rank:g}",
            f"{entry.content.cosine:.3f}",
        ]
        for entry in layers
    ]
    return markdown_table(header, rows)


def change_table(changes: Sequence[ChangedStack]) -> str:
    """A Markdown table with a row a layer, and for each kind of change the accuracy at the top and the cosine."""
    kinds = list(dict.fromkeys(change.times for change in changes))
    found = {(change.block, change.times): change for change in changes}
    header = ["layer", "block"]
    for times in kinds:
        header += [f"{change_name(times)}: accuracy", "cosine"]
    rows = []
    for block in dict.fromkeys(change.block for change in changes):
        row: list[Any] = [block + 1, block]
        for times in kinds:
            content = found[block, times].content
            row += [_percent(content.accuracy), f"{content.cosine:.3f}"]
        rows.append(row)
    return markdown_table(header, rows)


def change_name(times: int) -> str:
    """What to call a stack in which a layer runs so often."""
    return "removed" if times == 0 else f"x{times}"


def decoded_text(tokens: Sequence[str], decoded: Sequence[DecodedLayer], width: int = 100) -> str:
    """A decoded text to read: a line a layer, the last layer first, tokens in columns, `·` where the layer is right.

    Args:
        tokens: the text's tokens.
        decoded: what each layer decodes.
        width: characters in a line; longer texts go on in another block.

    Example:

    ```python
    >>> from modeling_hire.analysis.reconstruction_results import DecodedLayer
    >>> from modeling_hire.analysis.reconstruction_report import decoded_text

    >>> embeddings = DecodedLayer(0, None, ["a", "x"], [0.9, 0.1], [1, 7])
    >>> last = DecodedLayer(1, 0, ["a", "b"], [1.0, 0.8], [1, 1])
    >>> print(decoded_text(["a", "b"], [embeddings, last]))
    layer  a  b
        1  ·  ·
        0  ·  x
    ```
    """
    columns = []
    for place, token in enumerate(tokens):
        cells = [token, *(_cell(layer.tokens[place], token) for layer in reversed(decoded))]
        widest = max(map(len, cells))
        columns.append([cell.ljust(widest) for cell in cells])
    names = ["layer", *(str(layer.layer).rjust(5) for layer in reversed(decoded))]
    blocks: list[list[str]] = []
    for column in columns:
        if not blocks or len(blocks[-1][0]) + 2 + len(column[0]) > width:
            blocks.append(list(names))
        blocks[-1] = [f"{line}  {cell}" for line, cell in zip(blocks[-1], column, strict=True)]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def _cell(decoded: str, token: str) -> str:
    return "·" if decoded == token else decoded


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


# ---- pictures -------------------------------------------------------------------------------------------------------


def positions(plan: Sequence[int]) -> list[float]:
    """Where each hidden state of a stack belongs among the original's layers: copies between their source and before.

    ```python
    >>> from modeling_hire.analysis.reconstruction_report import positions

    >>> positions([0, 0, 1])
    [0.0, 0.5, 1.0, 2.0]
    ```
    """
    seen: dict[int, int] = {}
    places = [0.0]
    for block in plan:
        seen[block] = seen.get(block, 0) + 1
        places.append(block + seen[block] / list(plan).count(block))
    return places


def draw(
    folder: Path,
    name: str,
    original: ProbedStack,
    duplicated: Mapping[str, ProbedStack],
    changes: Sequence[ChangedStack],
    sentence: tuple[Sequence[str], Sequence[DecodedLayer]] | None,
) -> list[Path]:
    """Draw what there is to draw.

    Args:
        folder: where to.
        name: of the model, for the titles.
        original: the model's own stack.
        duplicated: plan to stack.
        changes: stacks with a layer removed or repeated.
        sentence: the tokens of a text, and what each layer decodes of it.

    Returns:
        The pictures written; none without matplotlib.
    """
    if not plots_available("the probe's pictures"):
        return []

    def curve(label: str, stack: ProbedStack, layers: Sequence[LayerScores]) -> tuple[str, list[float], list[float]]:
        return label, positions(stack.plan), [entry.content.accuracy for entry in layers]

    curves = [curve("original", original, original.layers)]
    if original.without_final_norm is not None:
        curves.append(curve("original, without the final norm", original, original.without_final_norm))
    curves += [curve(f"duplicated {plan}", stack, stack.layers) for plan, stack in duplicated.items()]
    count = original.layers[-1].content.tokens
    note = f"{count} tokens, special tokens left out"
    title = f"{name}: tokens that the output layer recognises in each layer"
    drawn = [draw_accuracy_by_layer(folder / ACCURACY_PNG, curves, title=title, note=note)]
    if changes:
        lines = []
        for times in dict.fromkeys(change.times for change in changes):
            chosen = [change for change in changes if change.times == times]
            lines.append(
                (
                    change_name(times),
                    [change.block + 1 for change in chosen],
                    [change.content.accuracy for change in chosen],
                    [change.content.cosine for change in chosen],
                )
            )
        accuracy = original.layers[-1].content.accuracy
        title = f"{name}: one layer removed or repeated"
        drawn.append(draw_changes_by_layer(folder / CHANGES_PNG, lines, accuracy, title=title, note=note))
    if sentence is not None:
        tokens, decoded = sentence
        drawn.append(
            draw_decoded_text(
                folder / SENTENCE_PNG,
                tokens,
                [layer.tokens for layer in decoded],
                np.array([layer.probability for layer in decoded]),
                title=f"{name}: what each layer decodes (bold italics: not the token that stands there)",
            )
        )
    return drawn
