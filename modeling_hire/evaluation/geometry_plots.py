"""Pictures of how embeddings lie in space. matplotlib is imported inside the functions only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.plots import save_figure, set_titles


if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart by shape too, for print and for the colour-blind.
_MARKERS = "osD^vP*Xp<>h"
_COLORS = ("#3b5b92", "#c8553d", "#2a9d8f", "#e9a23b", "#7b4b94", "#5f6b6d", "#a3b18a", "#d17b88")


def draw_alignment_uniformity(
    path: str | os.PathLike[str], points: Sequence[Mapping[str, Any]], note: str | None = None
) -> Path:
    """Draw uniformity (across) against alignment (up), a point for each embedder: the nearer to the lower left corner,
    the better.

    Args:
        path: the PNG to write.
        points: with `name`, `uniformity` and `alignment`.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draw_alignment_uniformity(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/poolers.png", [{"name": "mean", "uniformity": -2.1, "alignment": 0.2}]
        ... )
    """
    from matplotlib.figure import Figure

    # The legend stands below, in two columns.
    figure = Figure(figsize=(7.5, max(4.8, 3.9 + 0.1 * len(points))), dpi=150, layout="constrained")
    axes = figure.subplots()
    # What all names begin with is said once.
    names = [point["name"] for point in points]
    heads = {name.rpartition(", ")[0] for name in names}
    shared = heads.pop() if len(heads) == 1 and len(names) > 1 else ""
    for number, (point, name) in enumerate(zip(points, names, strict=True)):
        axes.scatter(
            point["uniformity"],
            point["alignment"],
            s=70,
            marker=_MARKERS[number % len(_MARKERS)],
            color=_COLORS[number % len(_COLORS)],
            edgecolors="black",
            linewidths=0.5,
            label=name.removeprefix(f"{shared}, "),
            zorder=3,
        )
    axes.margins(0.12)
    axes.set_xlabel("uniformity (lower: embeddings more evenly spread)")
    axes.set_ylabel("alignment (lower: like sentences nearer)")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure)
    set_titles(figure, "Alignment against uniformity" + (f": {shared}" if shared else ""), note)
    return save_figure(figure, path)


def draw_layer_anisotropy(
    path: str | os.PathLike[str], layers: Mapping[str, Sequence[Mapping[str, Any]]], note: str | None = None
) -> Path:
    """Draw the anisotropy of every layer: a line for the first tokens and one for the means, of each model.

    Args:
        path: the PNG to write.
        layers: model -> what `layer_anisotropy` returned.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draw_layer_anisotropy(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/layers.png", {"tiny": [{"layer": 0, "first_token": 1.0, "mean": 0.3}]}
        ... )
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.5, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    shared = next(iter(layers)) if len(layers) == 1 else ""
    for number, (name, rows) in enumerate(layers.items()):
        for place, (vector, style, marker) in enumerate((("first_token", "--", "s"), ("mean", "-", "o"))):
            axes.plot(
                [row["layer"] for row in rows],
                [row[vector] for row in rows],
                linestyle=style,
                marker=marker,
                markersize=4,
                color=_COLORS[(2 * number + place) % len(_COLORS)],
                label=("" if shared else f"{name}, ") + vector.replace("_", " "),
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("hidden layer (0 = embeddings)")
    axes.set_ylabel("mean cosine of two texts")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.03)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure)
    set_titles(figure, "Anisotropy by layer" + (f": {shared}" if shared else ""), note)
    return save_figure(figure, path)


def _legend(figure: Figure) -> None:
    """Below the axes, since points and lines may lie anywhere in them."""
    longest = max(len(label) for axes in figure.axes for label in axes.get_legend_handles_labels()[1])
    columns = 4 if longest <= 20 else 2 if longest <= 45 else 1
    figure.legend(loc="outside lower center", fontsize=9, frameon=False, ncols=columns)
