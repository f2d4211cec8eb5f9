"""Deeper models without new pre-training: copy layers of any encoder, whatever its head (arXiv 2001.09309).

    python -m modeling_hire.duplication google-bert/bert-base-uncased first:3 bert-15-layers

writes a checkpoint of the plain transformers class, which `AutoModel` loads without code of this library.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import transformers
from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from .configuration_layer_plans import GRAMMAR, parse_plan
from .hub import PACKAGED_ENCODERS
from .modeling_duplicated import (
    BertWithDuplicatedLayers,
    BertWithDuplicatedLayersForMaskedLM,
    BertWithDuplicatedLayersForQuestionAnswering,
    BertWithDuplicatedLayersForSequenceClassification,
)
from .modeling_encoder_layers import PlannedLayers, deepen, find_layers, quantised, reading_weights


BERT_CLASSES = (
    BertWithDuplicatedLayers,
    BertWithDuplicatedLayersForMaskedLM,
    BertWithDuplicatedLayersForSequenceClassification,
    BertWithDuplicatedLayersForQuestionAnswering,
)


def duplicate_layers(
    model: PreTrainedModel, plan: str | Sequence[int], *, tie: bool | None = None, untie_passes: bool = False
) -> PreTrainedModel:
    """Copy layers of an encoder, with whatever head, into a deeper model of the same class (papers' multiplicities).

    Each copy stands directly after its source and has its own parameters. The new model's configuration is consistent
    (`num_hidden_layers`, `layer_types`, ...) and records the source of each layer in `layer_sources`, so saving it
    makes an ordinary checkpoint. An ALBERT runs all its layers with one set of weights: there a duplicate is one more
    pass.

    Args:
        model (`PreTrainedModel`): any transformers encoder with one list of like layers, or ALBERT. It is not changed.
        plan (`str` or list of `int`): how often each layer occurs; see [`parse_plan`].
        tie (`bool`, *optional*): whether copies share weights. Only BertWithDuplicatedLayers can do it; a plain
            transformers class cannot run one layer at two places, and the error says what can.
        untie_passes (`bool`): give every pass of an ALBERT weights of its own.

    Returns:
        `PreTrainedModel`: a new model, on the same device, in the same precision and mode.

    Raises:
        ValueError: for a plan that cannot be read, layers that cannot be found or differ by position, and models that
            are quantised, wrapped by PEFT, or run a `layer_plan`.

    Example:

    ```python
    >>> from transformers import RobertaConfig, RobertaForSequenceClassification
    >>> from modeling_hire.duplication import duplicate_layers

    >>> config = RobertaConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64)
    >>> deeper = duplicate_layers(RobertaForSequenceClassification(config), "first:2")
    >>> deeper.config.num_hidden_layers, deeper.config.layer_sources
    (6, [0, 0, 1, 1, 2, 3])
    ```
    """
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"model: a {type(model).__name__} with PEFT adapters; merge them first (`model.merge_and_unload()`), "
            "duplicate, and adapt the deeper model."
        )
    if getattr(model, "is_quantized", False) or getattr(model.config, "quantization_config", None):
        raise quantised(type(model).__name__)
    if hasattr(model.config, "encoder_config"):
        raise ValueError(
            f"model: a {type(model).__name__} reads the layers of its encoder; build it around a duplicated one, "
            f"`{type(model).__name__}.from_pretrained(encoder, duplicate=...)`."
        )
    if hasattr(model, "duplicate"):
        return model.duplicate(plan, tie=tie)
    if tie:
        raise ValueError(
            f"tie=True: the class {type(model).__name__} cannot run one layer at two places. Tied duplication is "
            "`layer_plan` of a HIRE configuration or of BertWithDuplicatedLayersConfig, "
            "`BertWithDuplicatedLayers.from_pretrained(..., duplicate=..., tie=True)`."
        )
    parent, name = find_layers(model.base_model)
    if isinstance(getattr(parent, name), PlannedLayers):
        raise ValueError("model: it runs a layer_plan; change the plan instead.")
    if untie_passes and name != "albert_layer_groups":
        raise ValueError(
            f"untie_passes=True: the copies in a {model.config.model_type!r} model are untied anyway; allowed for "
            "'albert', whose passes share weights."
        )
    return deepen(model, parse_plan(plan, model.config.num_hidden_layers), untie_passes)


def deepen_checkpoint(
    source: str,
    plan: str,
    output_dir: str | Path,
    *,
    revision: str | None = None,
    tie: bool | None = None,
    untie_passes: bool = False,
) -> PreTrainedModel:
    """Load a checkpoint with the head it has, duplicate layers of it, and save model, tokenizer and a model card.

    Args:
        source (`str`): a Hub repository, a folder, or `package:NAME` for the weights that an installed Python package
            carries.
        plan (`str`): see [`parse_plan`].
        output_dir (`str` or `Path`): a folder that is empty or not there yet.
        revision (`str`, *optional*): commit, branch or tag of the source on the Hub.
        tie (`bool`, *optional*): share the weights of copies; for BERT only, and saved with this library's class.
        untie_passes (`bool`): see [`duplicate_layers`].

    Returns:
        The model that was saved.

    Raises:
        ValueError: see [`duplicate_layers`]; and for a folder that holds something, or a source that cannot be read.
    """
    from .training.models import resolve_checkpoint  # which imports this file

    output = Path(output_dir)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"output_dir={str(output)!r}: it is not an empty folder, and nothing is overwritten.")
    inside = next(parent for parent in output.absolute().parents if parent.exists())
    if not inside.is_dir():
        raise ValueError(f"output_dir={str(output)!r}: {inside} is a file; allowed is a folder.")
    # What to call it in public: where a local folder lies is nobody's business.
    origin = None if Path(source).exists() else source
    if source.startswith("package:"):
        origin, source = PACKAGED_ENCODERS.get(source.removeprefix("package:")), resolve_checkpoint(source)
    config = _read_config(source, revision)
    parse_plan(plan, getattr(config, "num_executed_layers", config.num_hidden_layers))  # before the weights are read
    loading = {"revision": revision, "use_safetensors": True}
    if tie and config.model_type == "bert":
        model = _tied_bert_class(config).from_pretrained(source, duplicate=plan, tie=True, **loading)
    else:
        model_class = _class_of(config)
        with reading_weights(source, model_class.__name__):
            model = model_class.from_pretrained(source, **loading)
        model = duplicate_layers(model, plan, tie=tie, untie_passes=untie_passes)
    # Elsewhere first: a folder that is cut short would look like a checkpoint.
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        folder = Path(scratch) / "model"
        model.config._name_or_path = model.name_or_path = origin or ""
        model.save_pretrained(folder)
        try:
            AutoTokenizer.from_pretrained(source, revision=revision).save_pretrained(folder)
        except (OSError, ValueError):
            print(f"{source} has no tokenizer; only the model is saved.", file=sys.stderr)
        _write_card(folder, model, origin, plan)
        if output.exists():
            output.rmdir()
        shutil.move(folder, output)
    return model


def _read_config(source: str, revision: str | None) -> transformers.PreTrainedConfig:
    """The configuration of a checkpoint whose layers can be counted and copied."""
    if (Path(source) / "adapter_config.json").is_file() and not (Path(source) / "config.json").is_file():
        raise ValueError(
            f"{source}: a PEFT adapter; load the model with it, merge it (`model = model.merge_and_unload()`), save "
            "that (`model.save_pretrained(FOLDER)`, the tokenizer likewise), and duplicate FOLDER."
        )
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{source}: no model can be read there ({reason})") from error
    if getattr(config, "quantization_config", None):
        raise quantised(source)
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        raise ValueError(
            f"{source}: a model of type {config.model_type!r} does not say how many layers it has; allowed is an "
            "encoder such as 'bert'."
        )
    return config


def _class_of(config: transformers.PreTrainedConfig) -> type:
    """The class the checkpoint was saved with, so that its head is kept."""
    known = {cls.__name__: cls for cls in BERT_CLASSES}
    for name in config.architectures or ():
        if name in known or hasattr(transformers, name):
            return known.get(name) or getattr(transformers, name)
    return AutoModel


def _tied_bert_class(config: transformers.PreTrainedConfig) -> type:
    plain = _class_of(config)
    return next((cls for cls in BERT_CLASSES if cls.plain_class is plain), BertWithDuplicatedLayers)


def _write_card(folder: Path, model: PreTrainedModel, source: str | None, plan: str) -> None:
    config, name = model.config, type(model).__name__
    auto_map = getattr(config, "auto_map", None) or {}
    auto = next((auto for auto, target in auto_map.items() if target.endswith(f".{name}")), name)
    code = ", trust_remote_code=True" if auto_map else ""
    depth = getattr(config, "num_executed_layers", config.num_hidden_layers)
    order = getattr(config, "layer_plan", None)
    data = ModelCardData(base_model=source, library_name="transformers", tags=["layer-duplication"])
    text = f"""---
{data.to_yaml()}
---

# A model with duplicated layers

Layers of {source or "another checkpoint"} were duplicated by the plan `{plan}`, without further training
(arXiv 2001.09309). It is meant to be fine-tuned.

- layers that run: {depth}
- source of each layer, counted from 0: {getattr(config, "layer_sources", None) or "itself"}
- weights: {"of their own" if order is None else f"tied, in the order {order}"}

```python
from transformers import {auto}

model = {auto}.from_pretrained("<repository>", revision="<commit sha>"{code})
```
"""
    ModelCard(text).save(folder / "README.md")


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling_hire.duplication",
        description="Duplicate layers of a checkpoint, with the head it has, and save the deeper model.",
    )
    parser.add_argument("source", help="checkpoint: a Hub repository, a folder, or package:NAME")
    parser.add_argument("plan", help=GRAMMAR.removeprefix("allowed is "))
    parser.add_argument("output_dir", help="an empty or new folder")
    parser.add_argument("--revision", help="commit, branch or tag of the source")
    parser.add_argument("--tie", action="store_true", default=None, help="share the weights of copies (BERT only)")
    parser.add_argument("--untie_passes", action="store_true", help="give every pass of an ALBERT its own weights")
    args = parser.parse_args(argv)
    try:
        model = deepen_checkpoint(
            args.source,
            args.plan,
            args.output_dir,
            revision=args.revision,
            tie=args.tie,
            untie_passes=args.untie_passes,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"modeling_hire.duplication: {error}")
    depth = getattr(model.config, "num_executed_layers", model.config.num_hidden_layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{args.output_dir}: {type(model).__name__}, {depth} layers run, {parameters:,} parameters")


if __name__ == "__main__":
    main()
