"""Pictures of the reconstruction probe. matplotlib is optional and is imported inside the functions only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .plots import COLORMAP, save_figure, set_titles


# Told apart by colour-blind readers and by line style in grey print.
_STYLES = (
    ("#3b5b92", "-", "o"),
    ("#c8781e", "--", "s"),
    ("#4d8f5b", "-.", "^"),
    ("#8a5a9e", ":", "D"),
    ("#777777", (0, (5, 1, 1, 1)), "v"),
)
# Wider maps would have cells too narrow for a word.
_MOST_NAMED_TOKENS = 24


def draw_accuracy_by_layer(
    path: str | os.PathLike[str],
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    title: str | None = None,
    note: str | None = None,
) -> Path:
    """
    Draws reconstruction accuracy over the layers, a line for each model.

    Args:
        path: the PNG to write.
        curves: name, positions and accuracies (0 to 1) of each line; a position is a layer of the original, and copies
            of a layer lie between it and the one before.
        title: above the picture.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draw_accuracy_by_layer(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/accuracy.png", [("original", [0, 1, 2], [0.7, 0.8, 1.0])]
        ... )
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    for (name, positions, values), (color, line, marker) in zip(curves, _cycle(len(curves)), strict=True):
        axes.plot(positions, values, color=color, linestyle=line, marker=marker, markersize=4, label=name)
    deepest = max(max(positions) for _, positions, _ in curves)
    axes.set_xticks(_ticks(int(deepest)))
    axes.set_xlabel("hidden layer of the original (0 = embeddings); copies lie just before it")
    axes.set_ylabel("tokens recognised")
    axes.set_ylim(-0.02, 1.02)
    _tidy(axes)
    axes.legend(fontsize=8, frameon=False)
    set_titles(figure, title, note)
    return save_figure(figure, path)


def draw_changes_by_layer(
    path: str | os.PathLike[str],
    changes: Sequence[tuple[str, Sequence[int], Sequence[float], Sequence[float]]],
    original_accuracy: float,
    title: str | None = None,
    note: str | None = None,
) -> Path:
    """
    Draws what removing or repeating each layer does at the top: accuracy, and cosine to the original's last layer.

    Args:
        path: the PNG to write.
        changes: for each kind of change its name, the layers changed, the accuracies and the cosines.
        original_accuracy: of the last layer of the unchanged model, drawn as a line across.
        title: above the picture.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draw_changes_by_layer(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/changes.png", [("removed", [1, 2], [0.9, 0.8], [0.9, 0.7])], 0.95
        ... )
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, layers, accuracies, cosines), (color, line, marker) in zip(changes, _cycle(len(changes)), strict=True):
        for axes, values in ((left, accuracies), (right, cosines)):
            axes.plot(layers, values, color=color, linestyle=line, marker=marker, markersize=4, label=name)
    left.axhline(original_accuracy, color="gray", linewidth=1)
    left.annotate(
        "unchanged", (0.99, original_accuracy), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
    )
    left.set_ylabel("tokens recognised at the top")
    left.set_ylim(-0.02, 1.05)
    right.set_ylabel("cosine to the original's last layer")
    lowest = min(0.0, *(value for _, _, _, cosines in changes for value in cosines))
    right.set_ylim(lowest - 0.02, 1.05)
    deepest = max(max(layers) for _, layers, _, _ in changes)
    for axes in (left, right):
        axes.set_xticks([tick for tick in _ticks(deepest) if tick])
        axes.set_xlabel("layer that is changed")
        _tidy(axes)
    right.legend(fontsize=8, frameon=False)
    set_titles(figure, title, note)
    return save_figure(figure, path)


def draw_decoded_text(
    path: str | os.PathLike[str],
    tokens: Sequence[str],
    decoded: Sequence[Sequence[str]],
    probability: np.ndarray,
    names: Sequence[str] | None = None,
    title: str | None = None,
    note: str | None = None,
) -> Path:
    """
    Draws layers x tokens as a heat map: in each cell what the layer decodes, coloured by the true token's probability.

    Args:
        path: the PNG to write.
        tokens: (tokens,), the text.
        decoded: (layers, tokens), the token that each layer decodes, lowest layer first; printed where there are at
            most 24 columns.
        probability: (layers, tokens), the probability given to the true token.
        names: (layers,), the name of each row; the number of the hidden state if not given.
        title: above the picture.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draw_decoded_text(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/text.png", ["a", "b"], [["a", "c"], ["a", "b"]], np.eye(2)
        ... )
    """
    from matplotlib.figure import Figure

    num_layers, num_tokens = probability.shape
    named = num_tokens <= _MOST_NAMED_TOKENS
    figure = Figure(
        figsize=(2.2 + (0.72 if named else 0.2) * num_tokens, 1.6 + 0.34 * num_layers), dpi=120, layout="constrained"
    )
    axes = figure.subplots()
    image = axes.imshow(
        probability, aspect="auto", origin="lower", interpolation="nearest", cmap=COLORMAP, vmin=0.0, vmax=1.0
    )
    axes.set_yticks(range(num_layers), list(names) if names is not None else [str(i) for i in range(num_layers)])
    axes.set_ylabel("hidden layer (0 = embeddings)")
    axes.set_xticks(range(num_tokens), [_plain(token) for token in tokens], rotation=45, ha="right", fontsize=8)
    if named:
        for row in range(num_layers):
            for column in range(num_tokens):
                word = decoded[row][column]
                right = word == tokens[column]
                color = "white" if probability[row, column] < 0.55 else "black"
                axes.text(
                    column,
                    row,
                    _plain(word if len(word) <= 11 else f"{word[:10]}…"),
                    ha="center",
                    va="center",
                    color=color,
                    fontsize=7,
                    fontweight="normal" if right else "bold",
                    fontstyle="normal" if right else "italic",
                )
    figure.colorbar(image, ax=axes, label="probability of the true token", pad=0.01)
    set_titles(figure, title, note)
    return save_figure(figure, path)


def _cycle(count: int) -> list[tuple]:
    return [_STYLES[i % len(_STYLES)] for i in range(count)]


def _ticks(deepest: int) -> list[int]:
    return list(range(0, deepest + 1, 1 if deepest <= 14 else 2))


def _tidy(axes: object) -> None:
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(text: str) -> str:
    """Two dollar signs would be read as a formula."""
    return text.replace("$", r"\$")
