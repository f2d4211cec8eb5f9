"""Which layers a model reads: the weights it gives them, as numbers and as a picture.

HIRE gives each example its own softmax weights over the hidden layers (`output_layer_weights=True`). This file
collects them over a dataset, writes them as `layer_importance.json` and `layer_importance.png`, and joins the JSON
files of several checkpoints into one picture of tasks x layers:

    python -m modeling_hire.analysis.layer_importance out/cola out/rte --output layers_by_task.png

Layers are named by the number of their hidden state: 0 is the embedding output, 1 the first block's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .label_groups import group_labels
from .plots import draw_layers_by_example, draw_layers_by_task, plots_available


if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

JSON_NAME = "layer_importance.json"
PNG_NAME = "layer_importance.png"
_UNIFORM_NOTE = "all weights are equal: a scorer that learned nothing, or fixed equal weights"


def collect_layer_weights(model: nn.Module, dataloader: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """
    Runs a model over a dataset and returns the weight it gives each layer for each example.

    Args:
        model: a model whose forward takes `output_layer_weights=True` and returns an object with `layer_weights` of
            shape (batch, layers). It runs in evaluation mode, without gradients, and gets its modes back afterwards.
        dataloader: batches as dictionaries of forward's arguments; tensors are moved to the model's device.

    Returns:
        (examples, layers) of float32, in the order of the dataloader.

    Raises:
        ValueError: there is no batch, or the model returns no layer weights.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> class Even(torch.nn.Module):
        ...     device = torch.device("cpu")
        ...
        ...     def forward(self, input_ids, output_layer_weights=False):
        ...         return SimpleNamespace(layer_weights=torch.full((len(input_ids), 4), 0.25))
        >>> collect_layer_weights(Even(), [{"input_ids": torch.ones(3, 5)}]).shape
        (3, 4)
    """
    import torch

    device = _device(model)
    # Module by module, since a frozen part may have been in evaluation mode while the rest was training.
    modes = {module: module.training for module in model.modules()}
    batches: list[np.ndarray] = []
    model.eval()
    try:
        with torch.no_grad():
            for batch in dataloader:
                inputs = {
                    name: value.to(device) if isinstance(value, torch.Tensor) else value
                    for name, value in batch.items()
                }
                weights = getattr(model(**inputs, output_layer_weights=True), "layer_weights", None)
                if weights is None or weights.dim() != 2:
                    found = "none" if weights is None else f"shape {tuple(weights.shape)}"
                    raise ValueError(
                        f"layer_weights={found} from {type(model).__name__}: must be a tensor (batch, layers), as "
                        "the HIRE classes return with output_layer_weights=True"
                    )
                batches.append(weights.detach().float().cpu().numpy())
    finally:
        for module, training in modes.items():
            module.training = training
    if not batches:
        raise ValueError("dataloader: must hold at least one batch, got none")
    return np.concatenate(batches)


def _device(model: nn.Module) -> Any:
    device = getattr(model, "device", None)
    return device if device is not None else next(model.parameters()).device


def save_layer_importance(
    weights: np.ndarray,
    layers: Sequence[int],
    output_dir: str | os.PathLike[str],
    *,
    labels: Sequence[Any] | np.ndarray | None = None,
    label_names: Sequence[str] | Mapping[int, str] | None = None,
    title: str | None = None,
    max_examples: int = 200,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """
    Writes `layer_importance.json` and `layer_importance.png` into a folder.

    The JSON holds `layers`, `num_examples`, `mean`, `std`, `min` and `max` over the examples (one number a layer),
    `entropy` (the mean over the examples of each one's entropy, divided by log(layers): 1 for equal weights, 0 for one
    layer alone), `uniform` (true if every example gives every layer the same weight, as a dead scorer does), `labels`
    (number of examples and mean weights of each label) and `examples` (index, label and weights of at most
    `max_examples`, spread evenly over the dataset). The picture shows these examples, sorted by label, and the mean
    and spread of all.

    Args:
        weights: (examples, layers), every row adding up to 1; see [`collect_layer_weights`].
        layers: (layers,), the number of each column's hidden state, 0 being the embeddings.
        output_dir: made if missing; earlier files of the two names are replaced.
        labels: (examples,), gold or predicted labels, or scores. Scores that are not whole numbers are cut into four
            groups of equal size.
        label_names: the name of each label, as a list or as a config's `id2label`.
        title: of the picture.
        max_examples: how many examples the JSON lists and the picture shows.
        extra: more JSON entries, such as `{"task": "cola", "model": "..."}`; `task` names the row in the joined
            picture and is part of the default title.

    Returns:
        `{"json": path, "png": path}`, without "png" where matplotlib is missing: a message says how to get it.

    Raises:
        ValueError: sizes that do not fit, weights that are no weights, or a name in `extra` that the file needs.

    Example:
        >>> import tempfile
        >>> paths = save_layer_importance(
        ...     np.array([[0.2, 0.8], [0.4, 0.6]]), [1, 2], tempfile.mkdtemp(), labels=[0, 1], extra={"task": "cola"}
        ... )
        >>> json.loads(paths["json"].read_text())["mean"]
        [0.3, 0.7]
    """
    weights = _checked_weights(weights, layers)
    if not isinstance(max_examples, int) or max_examples < 1:
        raise ValueError(f"max_examples={max_examples!r}: must be an integer of at least 1")
    num_examples, num_layers = weights.shape
    groups, group_names = group_labels(labels, label_names, num_examples)
    drawn = np.unique(np.linspace(0, num_examples - 1, min(max_examples, num_examples)).round().astype(int))
    mean, std = weights.mean(0), weights.std(0)
    uniform = _is_uniform(weights)

    report: dict[str, Any] = {
        "layers": [int(layer) for layer in layers],
        "num_examples": num_examples,
        "mean": _rounded(mean),
        "std": _rounded(std),
        "min": _rounded(weights.min(0)),
        "max": _rounded(weights.max(0)),
        "entropy": round(float(_entropy(weights).mean()), 6),
        "uniform": uniform,
        "labels": {
            name: {"num_examples": int((groups == group).sum()), "mean": _rounded(weights[groups == group].mean(0))}
            for group, name in enumerate(group_names)
        },
        "examples": [
            {
                "index": int(index),
                "label": group_names[groups[index]] if group_names else None,
                "weights": _rounded(weights[index]),
            }
            for index in drawn
        ],
    }
    clash = sorted(set(report) & set(extra or {}))
    if clash:
        raise ValueError(f"extra={clash}: must not use the names that the file itself needs ({', '.join(report)})")
    report = {**(extra or {}), **report}

    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    paths = {"json": _write_json(output_dir / JSON_NAME, report)}
    if plots_available(PNG_NAME):
        order = drawn[np.argsort(groups[drawn], kind="stable")]
        sizes = [(name, int((groups[drawn] == group).sum())) for group, name in enumerate(group_names)]
        shown = "" if len(drawn) == num_examples else f"{len(drawn)} of "
        task = f"{report['task']}: " if report.get("task") else ""
        paths["png"] = draw_layers_by_example(
            output_dir / PNG_NAME,
            weights[order],
            report["layers"],
            mean,
            std,
            groups=[(name, size) for name, size in sizes if size],
            title=title or f"{task}weight of each layer, {shown}{num_examples} examples",
            note=_UNIFORM_NOTE if uniform else None,
        )
    if uniform:
        logger.warning("%s: %s", paths["json"], _UNIFORM_NOTE)
    return paths


def _checked_weights(weights: np.ndarray, layers: Sequence[int]) -> np.ndarray:
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 2 or 0 in weights.shape:
        raise ValueError(f"weights: must be (examples, layers), neither of them 0, got shape {weights.shape}")
    if len(layers) != weights.shape[1]:
        raise ValueError(f"layers={list(layers)}: must name each of the {weights.shape[1]} columns of weights")
    # A hundredth leaves room for weights computed in bfloat16.
    if not np.isfinite(weights).all() or weights.min() < 0 or np.abs(weights.sum(1) - 1).max() > 0.01:
        raise ValueError(
            f"weights: every row must hold numbers from 0 to 1 that add up to 1, got values from {weights.min()} to "
            f"{weights.max()} and sums from {weights.sum(1).min()} to {weights.sum(1).max()}"
        )
    return weights


def _is_uniform(weights: np.ndarray) -> bool:
    """All weights equal. In half precision 1/n is off, but by the same for all; one layer alone has no choice."""
    return weights.shape[1] > 1 and float(weights.max() - weights.min()) <= 1e-6


def _entropy(weights: np.ndarray) -> np.ndarray:
    """(examples,), from 0 to 1; 0 if there is a single layer to choose from."""
    if weights.shape[1] == 1:
        return np.zeros(len(weights))
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return np.clip(-(weights * logs).sum(1) / np.log(weights.shape[1]), 0.0, 1.0)


def join_layer_importance(
    directories: Sequence[str | os.PathLike[str]],
    output_png: str | os.PathLike[str],
    output_json: str | os.PathLike[str] | None = None,
) -> dict[str, Path]:
    """
    Joins the `layer_importance.json` of several checkpoints into one picture of tasks (rows) x layers (columns).

    A column is the number of a hidden state, the same one for all rows; where a model has no such layer, or does not
    read it, the cell is blank. If the rows have different numbers of layers, the picture shows each weight times the
    row's number of layers, 1 being an equal share; the JSON holds the weights themselves. A row is named by the JSON's
    "task", or by its folder's name; rows of one name get the folder's name added. A row whose weights are all equal is
    marked with a star.

    Args:
        directories: folders with a `layer_importance.json` each, in the order of the rows.
        output_png: the picture to write, its name ending in .png; its folder is made if missing.
        output_json: the numbers; by default the same name with .json.

    Returns:
        `{"json": path, "png": path}`, without "png" where matplotlib is missing.

    Raises:
        FileNotFoundError: a folder has no such file; the message names the folder and the command that makes it.
        ValueError: no folder is given, an output name does not fit, or a file was not written by
            [`save_layer_importance`].

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for task in ("cola", "rte"):
        ...     _ = save_layer_importance(np.array([[0.2, 0.8]]), [1, 2], folder / task, extra={"task": task})
        >>> paths = join_layer_importance([folder / "cola", folder / "rte"], folder / "layers_by_task.png")
        >>> [row["task"] for row in json.loads(paths["json"].read_text())["rows"]]
        ['cola', 'rte']
    """
    if not directories:
        raise ValueError(f"directories=[]: must name at least one folder that holds {JSON_NAME}")
    output_png = Path(output_png)
    if output_png.suffix.lower() != ".png":
        raise ValueError(f"output_png={str(output_png)!r}: must end in .png")
    output_json = Path(output_json) if output_json is not None else output_png.with_suffix(".json")
    inputs = [Path(directory) / JSON_NAME for directory in directories]
    if output_json.resolve() in [path.resolve() for path in inputs]:
        raise ValueError(f"output_json={str(output_json)!r}: must not be one of the files to join")

    rows = [_read_row(path) for path in inputs]
    names = [row["task"] for row in rows]
    for row in rows:
        if names.count(row["task"]) > 1:
            row["task"] = f"{row['task']} ({Path(row['directory']).resolve().name})"
    columns = sorted({layer for row in rows for layer in row["layers"]})
    table = np.full((len(rows), len(columns)), np.nan)
    for line, row in zip(table, rows, strict=True):
        line[[columns.index(layer) for layer in row["layers"]]] = row["mean"]

    for path in (output_png, output_json):
        path.parent.mkdir(parents=True, exist_ok=True)
    paths = {"json": _write_json(output_json, {"layers": columns, "rows": rows})}
    if plots_available(output_png.name):
        any_uniform = any(row["uniform"] for row in rows)
        quantity = "mean weight of the layer"
        if len({len(row["layers"]) for row in rows}) > 1:
            # One of 23 layers gets less than one of 5 whatever the task; as shares of 1/n they compare.
            table *= [[len(row["layers"])] for row in rows]
            quantity = "mean weight x number of layers\n(1 = equal share)"
        paths["png"] = draw_layers_by_task(
            output_png,
            table,
            columns,
            [f"{row['task']} *" if row["uniform"] else row["task"] for row in rows],
            quantity=quantity,
            title="Weight of each layer, by task",
            note=f"* {_UNIFORM_NOTE}" if any_uniform else None,
        )
    return paths


def _read_row(path: Path) -> dict[str, Any]:
    """What the joined picture needs of one file, checked."""
    folder = path.parent
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: {f'no {JSON_NAME} in it' if folder.exists() else 'no such folder'}; this command makes it: "
            f"python run_glue.py CONFIG.yaml --model hire --output_dir {folder}"
        )
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        row = {
            "task": str(report.get("task") or folder.resolve().name),
            "directory": str(folder),
            "model": report.get("model"),
            "layers": [int(layer) for layer in report["layers"]],
            **{name: [float(number) for number in report[name]] for name in ("mean", "std")},
            "entropy": float(report["entropy"]),
            "uniform": bool(report["uniform"]),
            "num_examples": int(report["num_examples"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: must be a file that save_layer_importance wrote, got {error!r}") from error
    if not row["layers"] or not len(row["layers"]) == len(set(row["layers"])) == len(row["mean"]) == len(row["std"]):
        raise ValueError(f"{path}: layers, mean and std must be of one length, with every layer once")
    return row


def _rounded(numbers: np.ndarray) -> list[float]:
    return [round(float(number), 6) for number in numbers]


def _write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Writes under another name first, so that a killed program leaves no half file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Indented for reading, but a list of numbers on one line. Strings in JSON hold no line break: none is touched.
        text = json.dumps(content, indent=1)
        text = re.sub(r"\[\n([\d\s.,e+-]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: see the top of this file."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling_hire.analysis.layer_importance",
        description=f"Joins the {JSON_NAME} of several checkpoints into one picture of tasks x layers.",
    )
    parser.add_argument("directories", nargs="+", metavar="DIR", help=f"a checkpoint folder that holds {JSON_NAME}")
    parser.add_argument(
        "--output", required=True, metavar="PNG", help="the picture; the numbers go to the same name .json"
    )
    options = parser.parse_args(arguments)
    try:
        paths = join_layer_importance(options.directories, options.output)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    for path in paths.values():
        print(path)


if __name__ == "__main__":
    main()
