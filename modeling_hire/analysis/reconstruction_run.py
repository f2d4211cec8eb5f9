"""A run of `run_probe.py`: read, check, probe, and only then write."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..configuration_layer_plans import parse_plan
from ..data.preprocessing import usable_max_length
from ..hub import write_json
from .reconstruction import ReconstructionProbe
from .reconstruction_arguments import ProbeArguments
from .reconstruction_loading import load_masked_lm, read_texts
from .reconstruction_report import (
    ACCURACY_PNG,
    CHANGES_PNG,
    SENTENCE_PNG,
    change_dict,
    change_table,
    decoded_dict,
    decoded_text,
    draw,
    layer_table,
    stack_dict,
)


JSON_NAME, TEXT_NAME = "probe.json", "probe.txt"
# In the order in which they are put in place: the numbers last.
OWN_FILES = (TEXT_NAME, ACCURACY_PNG, CHANGES_PNG, SENTENCE_PNG, JSON_NAME)


def prepare(arguments: ProbeArguments) -> Callable[[], dict[str, Any]]:
    """Read model and text, and check everything; what is returned runs the probe and writes its results.

    Raises:
        ValueError: for wrong arguments, text or checkpoint. Nothing has been written then.
    """
    folder = None if arguments.output_dir is None else Path(arguments.output_dir)
    if folder is not None:
        check_folder(folder, arguments.overwrite)
    texts, source = read_texts(arguments)
    model, tokenizer = load_masked_lm(arguments.checkpoint, arguments.revision)
    if torch.cuda.is_available() and not arguments.use_cpu:
        model.to("cuda")
    probe = ReconstructionProbe(
        model,
        tokenizer,
        batch_size=arguments.batch_size,
        max_length=_usable_length(arguments.max_length, tokenizer, model),
        chunk_size=arguments.chunk_size,
    )
    plans = {plan: parse_plan(plan, probe.num_blocks) for plan in arguments.duplicate or ()}
    if plans or arguments.remove or arguments.repeat:
        probe.check_plannable()
    rows, cut = probe.encode(texts, arguments.max_tokens)
    if arguments.sentence is not None:
        probe.encode([arguments.sentence])
    return lambda: _run(arguments, folder, probe, plans, rows, cut, source)


def check_folder(folder: Path, overwrite: bool) -> None:
    """Raise a `ValueError` if `output_dir` holds something that this run would replace or mix with."""
    where = f"output_dir={str(folder)!r}"
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{where}: a file is there; allowed is a folder.")
    others = [path.name for path in sorted(folder.iterdir()) if path.name not in OWN_FILES]
    if others:
        raise ValueError(f"{where}: holds other files ({others[0]}, ...); allowed is a new or empty folder.")
    if any(folder.iterdir()) and not overwrite:
        raise ValueError(f"{where}: holds another probe; name another folder, or replace it with --overwrite.")


def _usable_length(wanted: int, tokenizer: Any, model: Any) -> int:
    length, note = usable_max_length(wanted, tokenizer, model.base_model.config)
    if note:
        print(note)
    return length


def _run(
    arguments: ProbeArguments,
    folder: Path | None,
    probe: ReconstructionProbe,
    plans: dict[str, list[int]],
    rows: list[dict[str, Any]],
    cut: int,
    source: str,
) -> dict[str, Any]:
    """Probe, print, and write: every file or none."""
    original = probe.layers(rows)
    duplicated = {name: probe.layers(rows, plan) for name, plan in plans.items()}
    changes = []
    if arguments.remove or arguments.repeat:
        changes = probe.changes(rows, remove=arguments.remove, repeat=arguments.repeat or ())
    sentence = probe.decode(arguments.sentence) if arguments.sentence is not None else None

    top = original.layers[-1]
    name = Path(arguments.checkpoint).resolve().name if Path(arguments.checkpoint).exists() else arguments.checkpoint
    parts = [
        f"{name} ({type(probe.model).__name__}, {probe.num_blocks} layers) on {source}: {len(rows)} texts"
        + (f", {cut} of them cut at {probe.max_length} tokens" if cut else "")
        + f"; {top.content.tokens} tokens, {top.everything.tokens} with special ones. Accuracies in per cent.",
        "Original" + (f", through the final norm ({original.final_norm})" if original.final_norm else ""),
        layer_table(original.layers),
    ]
    if original.without_final_norm is not None:
        parts += ["Original, without the final norm", layer_table(original.without_final_norm)]
    for plan, stack in duplicated.items():
        blocks = " ".join(map(str, stack.plan))
        heading = f"Duplicated {plan}: blocks {blocks}"
        if stack.cosine_to_original is not None:
            heading += f"; cosine of its last layer to the original's {stack.cosine_to_original:.3f}"
        parts += [heading, layer_table(stack.layers)]
    if changes:
        parts += [
            "One layer removed or repeated: accuracy at the top, cosine to the original's last layer",
            change_table(changes),
        ]
    if sentence is not None:
        parts += ["What each layer decodes (· where it is the token that stands there)", decoded_text(*sentence)]
    text = "\n\n".join(parts)
    print(text)

    result = {
        "checkpoint": name,
        "revision": arguments.revision,
        "model_class": type(probe.model).__name__,
        "num_layers": probe.num_blocks,
        "text": {"source": source, "texts": len(rows), "cut": cut, "max_length": probe.max_length},
        "original": stack_dict(original),
        "duplicated": {plan: stack_dict(stack) for plan, stack in duplicated.items()},
        "changes": [change_dict(change) for change in changes],
        "sentence": decoded_dict(*sentence) if sentence is not None else None,
    }
    if folder is not None:
        _write(folder, text, result, lambda place: draw(place, name, original, duplicated, changes, sentence))
    return result


def _write(folder: Path, text: str, result: dict[str, Any], draw_into: Callable[[Path], Any]) -> None:
    """Make all files beside the folder, then move them in."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (partial / TEXT_NAME).write_text(text + "\n", encoding="utf-8")
        draw_into(partial)
        write_json(partial / JSON_NAME, result)
        folder.mkdir(exist_ok=True)
        for name in OWN_FILES:
            if (partial / name).exists():
                (partial / name).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"\nWritten to {folder}")
