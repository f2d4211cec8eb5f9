"""Pictures of layer weights. matplotlib is optional and is imported inside the functions only.

Figures are built with matplotlib's objects and an Agg canvas, never with pyplot: no window system is needed, and a
program that draws with pyplot itself finds its own state untouched.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# Safe for the common kinds of colour blindness, and still ordered when printed in grey.
COLORMAP = "cividis"
BAR_COLOR = "#3b5b92"
# Groups narrower than this share of the width have no room for a name.
_NARROWEST_NAMED_GROUP = 0.06
_MOST_ANNOTATED_COLUMNS = 12


def plots_available(what: str) -> bool:
    """
    Says whether matplotlib is there; where it is not, logs how to get it.

    Args:
        what: the picture that is skipped without it, for the message.

    Returns:
        True if pictures can be drawn.

    Example:
        >>> plots_available("layer_importance.png") in (True, False)
        True
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        logger.warning(
            "%s is not drawn because matplotlib is not installed (the numbers are written all the same): "
            "pip install modeling_hire[plots]",
            what,
        )
        return False
    return True


def draw_layers_by_example(
    path: str | os.PathLike[str],
    weights: np.ndarray,
    layers: Sequence[int],
    mean: np.ndarray,
    std: np.ndarray,
    groups: Sequence[tuple[str, int]] = (),
    title: str | None = None,
    note: str | None = None,
) -> Path:
    """
    Draws layers x examples as a heat map, with a bar of each layer's mean and spread beside it.

    Args:
        path: the PNG to write.
        weights: (examples, layers), the examples in the order to draw.
        layers: (layers,), the hidden-state number of each column, 0 being the embeddings.
        mean, std: (layers,), of all examples, drawn or not.
        groups: name and number of examples of each run of neighbouring examples (one label each).
        title: above the picture.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> weights = np.array([[0.2, 0.8], [0.4, 0.6]])
        >>> draw_layers_by_example(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/layers.png", weights, [1, 2], weights.mean(0), weights.std(0)
        ... )
    """
    from matplotlib.figure import Figure

    num_examples, num_layers = weights.shape
    figure = Figure(figsize=(10, 2.1 + 0.24 * max(num_layers, 7)), dpi=150, layout="constrained")
    heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=(3.5, 1))

    image = heat.imshow(
        weights.T,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap=COLORMAP,
        vmin=0.0,
        # Weights that are all equal would otherwise fill the map with the colour of the highest weight there is.
        vmax=max(float(weights.max()), 1.5 / num_layers),
    )
    heat.set_xlabel("examples, sorted by label" if groups else "examples")
    heat.set_ylabel("hidden layer (0 = embeddings)" if 0 in layers else "hidden layer")
    heat.set_yticks(range(num_layers), [str(layer) for layer in layers])
    _mark_groups(heat, groups, num_examples)
    # At the far right, so that each bar stands beside its row of the map.
    figure.colorbar(
        image, ax=[heat, bars], label="weight of the layer in an example", pad=0.02, fraction=0.04, aspect=30
    )

    positions = np.arange(num_layers)
    # A weight is never negative, so the whisker stops at 0.
    below = np.minimum(std, mean)
    bars.barh(positions, mean, color=BAR_COLOR, height=0.7)
    bars.errorbar(mean, positions, xerr=np.stack([below, std]), fmt="none", ecolor="black", elinewidth=1, capsize=2)
    bars.axvline(1 / num_layers, color="gray", linestyle="--", linewidth=1)
    bars.set_xlim(0.0, max(float((mean + std).max()), 1.5 / num_layers) * 1.08)
    bars.set_xlabel("mean ± standard deviation\n(dashed: equal weights)", fontsize=9)
    bars.tick_params(axis="y", left=False, labelleft=False)
    bars.spines[["top", "right"]].set_visible(False)

    set_titles(figure, title, note)
    return save_figure(figure, path)


def draw_layers_by_task(
    path: str | os.PathLike[str],
    weights: np.ndarray,
    layers: Sequence[int],
    names: Sequence[str],
    quantity: str = "mean weight of the layer",
    title: str | None = None,
    note: str | None = None,
) -> Path:
    """
    Draws tasks x layers as a heat map: one row for each task.

    Args:
        path: the PNG to write.
        weights: (tasks, layers), the numbers to draw, NaN where a task's model has no such layer: a blank cell. They
            are printed into the cells where there are at most 12 columns.
        layers: (layers,), the hidden-state number of each column, 0 being the embeddings.
        names: (tasks,), the name of each row.
        quantity: what the numbers are, for the colour bar.
        title: above the picture.
        note: a line in smaller print under the title.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draw_layers_by_task(  # doctest: +SKIP
        ...     f"{tempfile.mkdtemp()}/tasks.png", np.array([[0.2, 0.8], [1.0, np.nan]]), [1, 2], ["cola", "rte"]
        ... )
    """
    from matplotlib.figure import Figure

    num_tasks, num_layers = weights.shape
    annotated = num_layers <= _MOST_ANNOTATED_COLUMNS
    height = 1.9 + 0.42 * max(num_tasks, 3)
    longest = max(len(name) for name in names)
    figure = Figure(
        figsize=(2.5 + 0.09 * longest + (0.65 * max(num_layers, 5) if annotated else 0.34 * num_layers), height),
        dpi=150,
        layout="constrained",
    )
    axes = figure.subplots()
    highest = float(np.nanmax(weights))
    image = axes.imshow(weights, aspect="auto", interpolation="nearest", cmap=COLORMAP, vmin=0.0, vmax=highest)
    axes.set_facecolor("0.9")
    axes.set_xlabel("hidden layer (0 = embeddings)" if 0 in layers else "hidden layer")
    axes.set_xticks(range(num_layers), [str(layer) for layer in layers])
    axes.set_ylabel("task")
    axes.set_yticks(range(num_tasks), list(names))
    # Thin gaps between the rows: each is a model of its own.
    axes.set_yticks(np.arange(num_tasks - 1) + 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    if annotated:
        for row, column in zip(*np.nonzero(~np.isnan(weights)), strict=True):
            value = weights[row, column]
            color = "white" if value < 0.55 * highest else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=8)
    figure.colorbar(image, ax=axes, label=quantity, pad=0.02)
    set_titles(figure, title, note)
    return save_figure(figure, path)


def _mark_groups(axes: Axes, groups: Sequence[tuple[str, int]], num_examples: int) -> None:
    """White lines between groups of examples, their names above the map."""
    start = 0
    ticks, names = [], []
    for name, size in groups:
        if start:
            axes.axvline(start - 0.5, color="white", linewidth=1.5)
        if size >= _NARROWEST_NAMED_GROUP * num_examples:
            ticks.append(start + size / 2 - 0.5)
            names.append(name if len(name) <= 24 else name[:22] + "…")
        start += size
    if ticks:
        top = axes.secondary_xaxis("top")
        top.set_xticks(ticks, names, fontsize=9)
        top.tick_params(length=0)
        top.spines["top"].set_visible(False)


def set_titles(figure: Figure, title: str | None, note: str | None) -> None:
    if title or note:
        figure.suptitle("\n".join(line for line in (title, note) if line), fontsize=11)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes under another name first, so that a killed program leaves no half picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        FigureCanvasAgg(figure)
        # Without the version stamp the same numbers give the same file.
        figure.savefig(temporary, format="png", metadata={"Software": None})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
