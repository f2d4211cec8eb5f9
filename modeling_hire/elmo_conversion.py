"""Turn the original weights of ELMo, an options file and an HDF5 file, into a checkpoint of [`ElmoModel`].

    python -m modeling_hire.elmo_conversion options.json weights.hdf5 out/
    python -m modeling_hire.elmo_conversion options.json weights.hdf5 out/ --splitting whitespace --stateful

Writes configuration, weights (safetensors), code and tokenizer into a new folder. Needs h5py
(`pip install modeling_hire[elmo]`), and no network: the original files are given, wherever they came from.

The original files hold no weights for the mixture of the layers, which are trained with a task: the checkpoint's
mixture is the plain mean. Nor do they hold the softmax over words: a language model continued from them
(`ElmoForPreTraining.from_pretrained`) starts that anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .configuration_elmo import ElmoConfig
from .evaluation.extras import import_extra
from .modeling_elmo import ElmoModel
from .tokenization_elmo import SPLITTINGS, ElmoTokenizer


# Both directions, as they are called in the file.
RNNS = {"forward": "RNN_0", "backward": "RNN_1"}
# The file's gates are input, candidate, forget, output; PyTorch's input, forget, candidate, output.
GATES = (0, 2, 1, 3)
# TensorFlow adds it in every step; here it is a part of the bias.
FORGET_BIAS = 1.0


def convert(
    options_file: str | os.PathLike,
    weight_file: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    splitting: str = "punctuation",
    stateful: bool = False,
) -> ElmoModel:
    """Read original weights, and write a checkpoint of [`ElmoModel`] with its tokenizer.

    Args:
        options_file: the JSON file of the architecture.
        weight_file: the HDF5 file of the weights.
        folder: a new or empty folder. It is written at once, when everything else has succeeded.
        splitting (`str`): how the tokenizer splits texts, see [`ElmoTokenizer`].
        stateful (`bool`): whether the model carries its state from batch to batch, as the original does.

    Returns:
        The model, in evaluation mode.

    Raises:
        ImportError: without h5py.
        ValueError: for a file that cannot be read, an architecture that is no ELMo's, weights that are missing, left
            over, of another shape or not finite, or a folder that holds files.

    Example:

    ```python
    >>> from modeling_hire.elmo_conversion import convert

    >>> model = convert("options.json", "weights.hdf5", "elmo-original")  # doctest: +SKIP
    >>> model.config.hidden_size  # doctest: +SKIP
    1024
    ```
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(f"folder={str(folder)!r}: holds files; allowed is a new or empty folder.")
    config = read_options(options_file)
    config.stateful = stateful
    tokenizer = ElmoTokenizer(max_characters=config.max_characters, splitting=splitting)
    arrays = read_arrays(weight_file)
    model = ElmoModel(config).eval()
    load_original(model, arrays, str(weight_file))

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside it first, so that a full disk leaves no half of a checkpoint.
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside) / "checkpoint"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        if folder.is_dir():
            folder.rmdir()
        made.rename(folder)
    return model


def read_options(options_file: str | os.PathLike) -> ElmoConfig:
    """The configuration that an original options file describes.

    Raises:
        ValueError: for a file that cannot be read, lacks an entry, or describes something else.
    """
    name = os.fspath(options_file)
    try:
        options = json.loads(Path(options_file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"options_file={name!r}: cannot be read as JSON ({error}).") from error

    def entry(*keys: str, **default: Any) -> Any:
        value = options
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                if default:
                    return default["default"]
                raise ValueError(f"options_file={name!r}: {'.'.join(keys)} is missing; is it an ELMo's?")
            value = value[key]
        return value

    characters = entry("char_cnn", "n_characters")
    # The original counts 261 while training, and 262, with padding, from then on; the weights are the same.
    if characters not in (261, 262):
        raise ValueError(f"options_file={name!r}: char_cnn.n_characters={characters!r}; allowed is 261 or 262.")
    if not entry("bidirectional", default=True):
        raise ValueError(f"options_file={name!r}: bidirectional=false; allowed is true.")
    fields = {
        "max_characters": entry("char_cnn", "max_characters_per_token"),
        "character_size": entry("char_cnn", "embedding", "dim"),
        "filters": entry("char_cnn", "filters"),
        "character_activation": entry("char_cnn", "activation"),
        "num_highway_layers": entry("char_cnn", "n_highway", default=0) or 0,
        "cell_size": entry("lstm", "dim"),
        "projection_size": entry("lstm", "projection_dim"),
        "num_hidden_layers": entry("lstm", "n_layers"),
        "use_skip_connections": entry("lstm", "use_skip_connections", default=False),
        "cell_clip": entry("lstm", "cell_clip", default=None),
        "proj_clip": entry("lstm", "proj_clip", default=None),
    }
    try:
        return ElmoConfig(**fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"options_file={name!r}: {error}") from error


def read_arrays(weight_file: str | os.PathLike) -> dict[str, torch.Tensor]:
    """All arrays of an HDF5 file by their names, in single precision.

    Raises:
        ImportError: without h5py.
        ValueError: for a file that is not there or no HDF5.
    """
    h5py = import_extra("h5py", "elmo", "reading original ELMo weights")
    name, arrays = os.fspath(weight_file), {}

    def visit(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            try:
                arrays[key] = torch.from_numpy(item[...].astype("float32"))
            except (TypeError, ValueError) as error:
                raise ValueError(f"weight_file={name!r}: {key} holds no numbers ({error}).") from error

    try:
        with h5py.File(weight_file, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise ValueError(f"weight_file={name!r}: cannot be read as HDF5 ({error}).") from error
    return arrays


def load_original(model: ElmoModel, arrays: dict[str, torch.Tensor], name: str) -> None:
    """Copy original arrays into a model; nothing is copied unless everything fits.

    Raises:
        ValueError: for arrays that are missing, left over, of another shape or not finite.
    """
    state = model.state_dict()
    sources = list(_original_names(model.config))
    missing = [key for key, *_ in sources if key not in arrays]
    if missing:
        raise ValueError(
            f"weight_file={name!r}: {missing[0]} is missing ({len(missing)} of {len(sources)} arrays are); the file "
            f"holds {', '.join(sorted(arrays)[:3]) or 'none'}{', ...' if len(arrays) > 3 else ''}."
        )
    for key, shape, _ in sources:
        if tuple(arrays[key].shape) != shape:
            raise ValueError(
                f"weight_file={name!r}: {key} has shape {tuple(arrays[key].shape)}; allowed is {shape}, by the "
                "options file."
            )
        if not arrays[key].isfinite().all():
            raise ValueError(f"weight_file={name!r}: {key} holds numbers that are not finite.")
    left = sorted(arrays.keys() - {key for key, *_ in sources})
    if left:
        raise ValueError(
            f"weight_file={name!r}: {left[0]} has no place in the model that the options file describes "
            f"({len(left)} array{'s' * (len(left) > 1)} left over)."
        )
    for key, _, targets in sources:
        for target, value in targets(arrays[key]).items():
            state[target].copy_(value)


def _original_names(config: ElmoConfig) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    """Each array's name and shape in the file, and what makes entries of the model's state of it."""
    size, projected, cell = config.character_size, config.projection_size, config.cell_size
    characters = "encoder.characters"
    # The file has no row for padding, which is zero.
    yield (
        "char_embed",
        (config.num_characters - 1, size),
        lambda a: {f"{characters}.embedding.weight": torch.cat([a.new_zeros(1, a.shape[1]), a])},
    )
    total = 0
    for number, (width, count) in enumerate(config.filters):
        name, total = f"{characters}.convolutions.{number}", total + count
        yield (
            f"CNN/W_cnn_{number}",
            (1, width, size, count),
            lambda a, name=name: {f"{name}.weight": a[0].permute(2, 1, 0)},
        )
        yield f"CNN/b_cnn_{number}", (count,), lambda a, name=name: {f"{name}.bias": a}
    for number in range(config.num_highway_layers):
        for original, ours in (("transform", "transform"), ("carry", "gate")):
            name = f"{characters}.highways.{number}.{ours}"
            yield (
                f"CNN_high_{number}/W_{original}",
                (total, total),
                lambda a, name=name: {f"{name}.weight": a.t()},
            )
            yield f"CNN_high_{number}/b_{original}", (total,), lambda a, name=name: {f"{name}.bias": a}
    yield "CNN_proj/W_proj", (total, projected), lambda a: {f"{characters}.projection.weight": a.t()}
    yield "CNN_proj/b_proj", (projected,), lambda a: {f"{characters}.projection.bias": a}
    for direction, rnn in RNNS.items():
        for number in range(config.num_hidden_layers):
            name = f"encoder.layers.{number}.{direction}_lstm"
            original = f"{rnn}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            yield f"{original}/W_0", (2 * projected, 4 * cell), lambda a, name=name: _gate_weights(a, name)
            yield f"{original}/B", (4 * cell,), lambda a, name=name: _gate_biases(a, name)
            yield (
                f"{original}/W_P_0",
                (cell, projected),
                lambda a, name=name: {f"{name}.weight_hr_l0": a.t()},
            )


def _gate_weights(array: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    # Rows for the input come first, then those for the state.
    of_input, of_state = array.chunk(2)
    return {f"{name}.weight_ih_l0": _gates(of_input.t()), f"{name}.weight_hh_l0": _gates(of_state.t())}


def _gate_biases(array: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    bias = _gates(array)
    forget = torch.zeros(4, len(bias) // 4)
    forget[1] = FORGET_BIAS
    return {f"{name}.bias_ih_l0": bias + forget.flatten(), f"{name}.bias_hh_l0": torch.zeros_like(bias)}


def _gates(array: torch.Tensor) -> torch.Tensor:
    parts = array.chunk(4)
    return torch.cat([parts[gate] for gate in GATES])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling_hire.elmo_conversion", description=__doc__.split("\n")[0]
    )
    parser.add_argument("options_file", help="JSON file of the architecture")
    parser.add_argument("weight_file", help="HDF5 file of the weights")
    parser.add_argument("folder", help="new or empty folder for the checkpoint")
    parser.add_argument(
        "--splitting", default="punctuation", choices=SPLITTINGS, help="how the tokenizer splits texts"
    )
    parser.add_argument("--stateful", action="store_true", help="carry the state from batch to batch")
    options = parser.parse_args(arguments)
    try:
        model = convert(**vars(options))
    except (ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
    print(
        f"{options.folder}: ElmoModel, {parameters:,} parameters; its mixture of layers is to be trained with a task."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
