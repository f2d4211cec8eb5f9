"""Sentence embeddings from all hidden layers, by layer-wise attention pooling.

[`LayerAttnPoolEncoder`] runs an encoder, keeps two vectors of every layer (its first token and the mean of its tokens)
and attends over them. The poolers are in `modeling_layer_pooling`, what `encode` does with texts in
`modeling_text_encoding`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers import initialization as init
from transformers.utils import ModelOutput, can_return_tuple
from transformers.utils.hub import resolve_revision

from .configuration_layer_attn_pool import DETACHED, LayerAttnPoolConfig
from .configuration_layerwise import check_choice, is_integer
from .modeling_inputs import asked_for, check_mask, check_tokens, encoder_inputs, kept_states
from .modeling_layer_pooling import LayerPooler, LayerSummary
from .modeling_layerwise import HUB_KEYWORDS, LayerwisePreTrainedModel, first_row
from .modeling_text_encoding import (
    check_device,
    check_texts,
    embed_texts,
    evaluating,
    load_tokenizer,
    prompt_of,
    save_tokenizer,
    write_sentence_transformer,
)


# Keywords of `save_pretrained` that are for the upload.
UPLOAD_KEYWORDS = ("repo_id", "commit_message", "private", "create_pr", "revision")


@dataclass
class LayerAttnPoolOutput(ModelOutput):
    """Output of [`LayerAttnPoolEncoder`].

    Args:
        last_hidden_state (`torch.FloatTensor` of shape `(batch, tokens, hidden_size)`): the encoder's last layer.
        pooler_output (`torch.FloatTensor` of shape `(batch, hidden_size)`): the embeddings.
        layer_weights (`torch.FloatTensor` of shape `(batch, layers)`, *optional*):
            With `output_layer_weights=True`, from a pooler that weighs layers: the weight of each layer of
            `config.layer_indices`; rows sum to one. In layer attention it is the mean over the queries.
        hidden_states, attentions: the encoder's, on request.
    """

    last_hidden_state: torch.FloatTensor | None = None
    pooler_output: torch.FloatTensor | None = None
    layer_weights: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


class LayerAttnPoolEncoder(LayerwisePreTrainedModel):
    r"""
    An encoder whose hidden layers are pooled to one embedding of the text by attention over the layers.

    `from_pretrained` takes a checkpoint of this class, or any plain encoder: with `pooler="mean"` (or another that has
    nothing to train) the latter is a sentence encoder at once.

    Args:
        config ([`LayerAttnPoolConfig`]): the configuration.
        encoder (`PreTrainedModel`, *optional*): a loaded encoder of `config.encoder_config`, instead of a new one.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    >>> model = LayerAttnPoolEncoder(LayerAttnPoolConfig(encoder_config=encoder_config)).eval()
    >>> outputs = model(input_ids=torch.tensor([[101, 2023, 102]]), output_layer_weights=True)
    >>> outputs.pooler_output.shape, outputs.layer_weights.shape
    (torch.Size([1, 32]), torch.Size([1, 4]))
    ```
    """

    config: LayerAttnPoolConfig
    config_class = LayerAttnPoolConfig
    base_model_prefix = "layer_attn_pool"
    _no_split_modules = ["LayerPooler"]

    def __init__(self, config: LayerAttnPoolConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = self.build_encoder(encoder)
        self.pooler = LayerPooler(config)
        # Where `encode` looks for the tokenizer; a local folder has no place in the saved configuration.
        self.tokenizer_source: tuple[str, dict[str, Any]] | None = None
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self._without_tokenizer: tuple[str, dict[str, Any]] | None = None
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LayerPooler) and hasattr(module, "layer_scores"):
            init.zeros_(module.layer_scores)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> Any:
        """As [`LayerwisePreTrainedModel.from_pretrained`]; the tokenizer of the same place is the one of `encode`."""
        name = pretrained_model_name_or_path
        where = {key: kwargs[key] for key in ("cache_dir", "local_files_only", "token") if key in kwargs}
        revision = resolve_revision(name, kwargs.get("revision"), **where)
        if revision is not None:
            kwargs["revision"] = revision
        loaded = super().from_pretrained(name, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if name is not None:
            hub = {key: kwargs[key] for key in HUB_KEYWORDS if kwargs.get(key) is not None}
            if revision is not None:
                # The commit: what a branch points to may be another one when `encode` is called.
                hub["revision"] = str(getattr(revision, "resolved", revision))
            model.tokenizer_source = (str(name), hub)
        return loaded

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        output_layer_weights: bool = False,
        output_hidden_states: bool | int | list[int] | None = None,
        **kwargs: Any,
    ) -> LayerAttnPoolOutput:
        r"""
        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs:
                what the encoder takes, `(batch, tokens)`. Without a mask every token is real.
            output_layer_weights (`bool`): whether to return the weights of the layers.
            output_hidden_states (`bool`, `int` or `list[int]`):
                whether to return the encoder's hidden states, or which: `None` stands for the others then.

        Raises:
            ValueError: for inputs or a mask of another shape, a hidden state that does not exist, or an encoder that
                cannot be read by layer.
        """
        tokens = check_tokens(input_ids, inputs_embeds, "batch", "tokens")
        if attention_mask is not None:
            check_mask(attention_mask, tokens)
        inputs = encoder_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds) | kwargs
        config = self.config
        count = config.num_executed_layers + 1
        keep, attend = asked_for(config, output_hidden_states, inputs)
        detached = config.detach_at_inference is not None and not self.training
        layers = [count - 1] if detached else config.layer_indices
        summary, encoded, last = LayerSummary(attention_mask, config.cls_position), None, None
        if not (keep or attend):
            last = self._run_lean(summary, layers, inputs)
        if last is None:
            encoded = self.read_layers(**inputs)
            last = encoded.last_hidden_state
            for index in layers:
                summary.add(encoded.hidden_states[index])
        embeddings, weights = self.pooler(summary)
        return LayerAttnPoolOutput(
            last_hidden_state=last,
            pooler_output=embeddings,
            layer_weights=weights if output_layer_weights else None,
            hidden_states=kept_states(encoded.hidden_states, keep) if keep else None,
            attentions=getattr(encoded, "attentions", None),
        )

    def _run_lean(self, summary: LayerSummary, layers: list[int], inputs: dict[str, Any]) -> torch.Tensor | None:
        """The last hidden state, with `summary` filled and no other state held; `None` where that cannot be done."""
        last_index = self.config.num_executed_layers
        if layers == [last_index]:
            self._check_readable(inputs)
            last = self.encoder(**inputs, return_dict=True).last_hidden_state
        elif torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None  # the graph holds every state anyway
        else:
            last = self.stream_layers(lambda index, state: summary.add(state) if index in layers else None, **inputs)
        if last is not None:
            summary.add(last)
        return last

    @torch.no_grad()
    def _check_readable(self, inputs: dict[str, Any]) -> None:
        """Refuse, once, an encoder that cannot be read by layer, though this pooler reads none but the last."""
        if not (hasattr(self, "_is_readable") or torch.compiler.is_compiling()):
            with evaluating(self.encoder):
                self.read_layers(**first_row(inputs))
            self._is_readable = True

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> Any:
        """Embed texts; names and defaults are those of sentence-transformers.

        Args:
            sentences (`str` or `list[str]`): one text, or any number of them.
            prompt_name (`str`, *optional*): which of `config.prompts` to put in front of each text.
            prompt (`str`, *optional*): a text to put there, whatever the configuration says.
            batch_size (`int`): texts at a time. It does not change the result.
            show_progress_bar (`bool`, *optional*): unset, as the log level is INFO or lower.
            convert_to_numpy, convert_to_tensor (`bool`): return a NumPy array in float32, or (which wins) a tensor on
                the model's device; neither: a list of tensors.
            device (`str`, *optional*): where to move the model first; it stays there.
            normalize_embeddings (`bool`): scale each embedding to length 1, after cutting.
            truncate_dim (`int`, *optional*): keep so many of the first dimensions.
            tokenizer (*optional*): unset, that of the model's own checkpoint, at its revision.

        Returns:
            `(texts, dimensions)`, or `(dimensions,)` for a single text.

        Raises:
            ValueError: for something that is no text, an unknown prompt, a device or width that does not exist, or a
                tokenizer that is missing or does not fit the model.

        Example:

        ```python
        >>> from modeling_hire import LayerAttnPoolEncoder

        >>> name, revision = "you/sentence-encoder", "<commit sha>"
        >>> model = LayerAttnPoolEncoder.from_pretrained(name, revision=revision)  # doctest: +SKIP
        >>> model.encode(["A text.", "Another one."], normalize_embeddings=True).shape  # doctest: +SKIP
        (2, 768)
        ```
        """
        texts = check_texts(sentences)
        prefix = prompt_of(self.config, prompt_name, prompt)
        width = self.config.hidden_size
        if not is_integer(batch_size, 1):
            raise ValueError(f"batch_size={batch_size!r}: allowed is a positive whole number.")
        if truncate_dim is not None and not (is_integer(truncate_dim, 1) and truncate_dim <= width):
            raise ValueError(f"truncate_dim={truncate_dim!r}: allowed is a whole number from 1 to {width}, or None.")
        if tokenizer is None:
            self.tokenizer = tokenizer = load_tokenizer(self) if self.tokenizer is None else self.tokenizer
        if device is not None:
            self.to(check_device(device))
        embeddings = embed_texts(self, tokenizer, [prefix + text for text in texts], batch_size, show_progress_bar)
        embeddings = embeddings[:, :truncate_dim]
        if normalize_embeddings:
            embeddings = nn.functional.normalize(embeddings, dim=-1)
        if isinstance(sentences, str):
            embeddings = embeddings[0]
        if convert_to_tensor:
            return embeddings
        if convert_to_numpy:
            return embeddings.float().cpu().numpy()
        return embeddings if isinstance(sentences, str) else list(embeddings)

    def detach_pooler(self, pooling: str = "cls") -> PreTrainedModel:
        """The plain encoder, for inference that costs no more than the encoder: the pooler has served its training.

        Args:
            pooling (`str`): how its users are to pool, `"cls"` or `"mean"`; recorded as `sentence_pooling` in its
                configuration. [`modeling_hire.hub.save_detached`] writes it as a sentence-transformers folder.

        Returns:
            A model of the encoder's own class in transformers, with weights of its own.

        Raises:
            ValueError: for another pooling, or layers that run by a plan, which no plain class can do.
        """
        check_choice("pooling", pooling, DETACHED)
        if self.config.layer_plan is not None:
            raise ValueError(
                f"layer_plan={self.config.layer_plan!r}: the plain class of the encoder runs its layers once and in "
                "order; allowed is None. Duplicate the layers with weights of their own (tie=False) to detach."
            )
        encoder = copy.deepcopy(self.encoder)
        encoder.config.sentence_pooling = pooling
        return encoder

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in transformers; the folder can be loaded by `SentenceTransformer(folder, trust_remote_code=True)` too.

        The tokenizer of the model's own checkpoint goes with it, unless `encode` has not needed it and the folder
        holds one already. A model that came from no checkpoint has none: save yours in the same folder.
        """
        self.config.check()  # transformers would write the code first
        upload = {name: kwargs.pop(name) for name in UPLOAD_KEYWORDS if name in kwargs}
        saved = super().save_pretrained(save_directory, is_main_process, state_dict, **kwargs)
        if is_main_process:
            tokenizer = self.tokenizer
            if tokenizer is None and not os.path.exists(os.path.join(save_directory, "tokenizer_config.json")):
                tokenizer = self._find_tokenizer()
            if tokenizer is not None:
                save_tokenizer(tokenizer, save_directory)
            write_sentence_transformer(save_directory, self.config, tokenizer)
            if push_to_hub:  # here and not above: all of the folder
                repository = upload.pop("repo_id", os.path.basename(os.path.abspath(save_directory)))
                self.push_to_hub(repository, token=kwargs.get("token"), **upload)
        return saved

    def _find_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer beside the checkpoint, or `None` (then nothing is looked for a second time)."""
        if self.tokenizer_source is not None and self.tokenizer_source != self._without_tokenizer:
            try:
                return load_tokenizer(self)
            except ValueError:
                self._without_tokenizer = self.tokenizer_source
        return None


# So that every checkpoint carries this code, those that a trainer saves along the way too.
LayerAttnPoolConfig.register_for_auto_class()
LayerAttnPoolEncoder.register_for_auto_class("AutoModel")
