"""Any sentence embedder as a model of mteb, the Massive Text Embedding Benchmark.

    import mteb
    from modeling_hire.evaluation.embedders import load_embedder
    from modeling_hire.evaluation.mteb_adapter import MtebEncoder

    embedder = load_embedder("me/my-encoder", revision=commit)
    mteb.evaluate(MtebEncoder(embedder, "me/my-encoder", commit), mteb.get_tasks(tasks=["STS12", "SICK-R"]))

mteb is optional (`pip install modeling_hire[mteb]`) and is imported when an adapter is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .embedders import Embedder, embed
from .extras import import_extra
from .geometry_measures import unit_vectors


class MtebEncoder:
    """What mteb calls an encoder, around an embedder.

    Embeddings are compared by cosine. Prompts of the embedder are used where they are named after mteb's task (and
    kind of text): `"STS12"`, `"QuoraRetrieval-query"`, or the kind alone, `"query"` and `"document"`.

    Args:
        embedder: what turns texts into vectors, see `load_embedder`.
        name: what mteb calls the model in its results and its cache, best `owner/name`.
        revision: of the model; results of two revisions are kept apart.

    Raises:
        ImportError: if mteb is not installed.
        ValueError: if `name` is not of that form.

    Example:

    ```python
    >>> from modeling_hire.evaluation.mteb_adapter import MtebEncoder

    >>> model = MtebEncoder(embedder, "me/my-encoder")  # doctest: +SKIP
    ```
    """

    def __init__(self, embedder: Embedder, name: str, revision: str | None = None):
        owner, slash, rest = name.partition("/")
        if not (owner and slash and rest) or "/" in rest:
            raise ValueError(f"name={name!r}: allowed is owner/name, as on the Hub.")
        meta = import_extra("mteb.models.model_meta", "mteb", "MtebEncoder")
        self.embedder = embedder
        config = getattr(embedder, "config", None)
        prompts = getattr(config, "prompts", None) or getattr(embedder, "prompts", None)
        self.prompts = {key: value for key, value in (prompts or {}).items() if value}
        self.mteb_model_meta = meta.ModelMeta.create_empty(
            {
                "name": name,
                # mteb names a folder of its cache after it.
                "revision": revision or "no_revision_available",
                "framework": ["PyTorch"],
                "similarity_fn_name": meta.ScoringFunction.COSINE,
                "use_instructions": bool(self.prompts),
                "embed_dim": getattr(config, "hidden_size", None),
            }
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embed the texts of mteb's batches.

        Args:
            inputs: batches, each with a list of texts under `"text"`.
            task_metadata: of the task; its name chooses the prompt.
            hf_split, hf_subset: where the texts are from; not looked at.
            prompt_type: whether they are queries or documents, if the task tells.
            kwargs: `batch_size`; others are not looked at.

        Returns:
            (texts, dimensions) of float32.

        Raises:
            ValueError: if a batch holds no text.
        """
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise ValueError(f"{task_metadata.name}: a batch of {', '.join(batch)}; allowed is text.")
            texts.extend(batch["text"])
        name = self._prompt_name(task_metadata.name, getattr(prompt_type, "value", prompt_type))
        options = {} if name is None else {"prompt_name": name}
        return embed(self.embedder, texts, kwargs.get("batch_size", 32), **options)

    def _prompt_name(self, task: str, kind: str | None) -> str | None:
        names = [f"{task}-{kind}", task, kind] if kind else [task]
        return next((name for name in names if name in self.prompts), None)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """The cosine of each embedding of the one (n, d) with each of the other (m, d): (n, m)."""
        return _rows(embeddings1) @ _rows(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """The cosine of each embedding of the one (n, d) with the same row of the other: (n,)."""
        return (_rows(embeddings1) * _rows(embeddings2)).sum(dim=1)


def _rows(embeddings: Any) -> torch.Tensor:
    vectors = torch.as_tensor(embeddings)
    return unit_vectors(vectors if vectors.dim() > 1 else vectors[None])
