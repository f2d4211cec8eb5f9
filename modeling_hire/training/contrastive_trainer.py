"""A `Trainer` for sentence embeddings by contrastive learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput

from ..configuration_layerwise import check_choice
from ..data.contrastive_arguments import SCHEMES
from ..evaluation.correlation import similarity_metrics
from .contrastive_arguments import ContrastiveTrainingArguments
from .contrastive_loss import ContrastiveLoss
from .gradient_cache import embed_cached
from .masked_words import MaskedWords, attach_word_head, check_masked_words, detach_word_head
from .trainer import LayerwiseTrainer


class ContrastiveTrainer(LayerwiseTrainer):
    r"""
    Trains a sentence encoder so that alike texts lie close together and others do not.

    Args:
        model ([`LayerAttnPoolEncoder`]): the sentence encoder.
        args ([`ContrastiveTrainingArguments`]): how to train, and the loss's settings.
        scheme (`str`): `"supervised"` (rows of anchor, positive and hard negatives), `"self_supervised"` (rows of one
            text, which is its own positive under another dropout), or `"hybrid"` (supervised rows with one more text
            at the end; the sum of both losses).
        train_dataset, data_collator, eval_dataset: rows as `ContrastiveData.encode` makes them, and
            `ContrastiveCollator`. Evaluation rows are pairs of texts with a score.
        compute_metrics: unset, the correlations of the similarities with the scores, `spearman` and `pearson`.
        kwargs: of [`LayerwiseTrainer`].

    `predict` and `evaluate` give the cosine similarity of each pair.

    Raises:
        ValueError: where the loss is undefined: no dropout in a scheme that needs it, Matryoshka dimensions beyond the
            width, or a batch of one text without negatives; or where masked words cannot be learnt.

    Example (`run_contrastive.py` does all this from a command line):

    ```python
    >>> from datasets import Dataset
    >>> from tokenizers import Tokenizer, models
    >>> from transformers import BertConfig, PreTrainedTokenizerFast
    >>> from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder
    >>> from modeling_hire.data.contrastive_collator import ContrastiveCollator
    >>> from modeling_hire.training.contrastive_arguments import ContrastiveTrainingArguments
    >>> from modeling_hire.training.contrastive_trainer import ContrastiveTrainer

    >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    >>> trainer = ContrastiveTrainer(
    ...     LayerAttnPoolEncoder(LayerAttnPoolConfig(encoder_config=encoder_config)),
    ...     ContrastiveTrainingArguments(
    ...         output_dir="out", use_cpu=True, per_device_train_batch_size=2, num_train_epochs=1,
    ...         eval_strategy="no", save_strategy="no", load_best_model_at_end=False, disable_tqdm=True,
    ...     ),
    ...     train_dataset=Dataset.from_dict(
    ...         {"input_ids": [[[5, 6], [5, 7, 6]], [[8, 9], [8]]], "text_ids": [[0, 1], [2, 3]]}
    ...     ),
    ...     data_collator=ContrastiveCollator(tokenizer),
    ... )
    >>> trainer.train().global_step
    {'train_runtime': ...
    1
    ```
    """

    # The loss is a mean over the batch; the trainer divides by the accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: PreTrainedModel,
        args: ContrastiveTrainingArguments,
        scheme: str = "supervised",
        new_parameters: set[str] = frozenset(),
        **kwargs: Any,
    ):
        check_scheme(model, args, scheme)
        check_masked_words(model, kwargs.get("processing_class"), args)
        self.scheme = scheme
        self.contrast = ContrastiveLoss(
            args.temperature, args.hard_negative_weight, args.two_way, args.matryoshka_dims
        )
        if args.mlm_weight:
            new_parameters = new_parameters | attach_word_head(model)
        kwargs.setdefault("compute_metrics", lambda found: similarity_metrics(found.predictions, found.label_ids))
        super().__init__(model=model, args=args, new_parameters=new_parameters, **kwargs)
        self.masked_words = MaskedWords(self.processing_class, args) if args.mlm_weight else None

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput | None:
        """As [`LayerwiseTrainer.train`]; the head of masked language modelling has served its purpose then."""
        output = super().train(*args, **kwargs)
        detach_word_head(self.accelerator.unwrap_model(self.model))
        return output

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """The loss of one batch, `(batch, texts, tokens)`."""
        text_ids = inputs["text_ids"]
        if self.scheme != "supervised":
            # The last text of a row once more: the dropout of its second pass is another.
            inputs = {name: torch.cat([value, value[:, -1:]], dim=1) for name, value in inputs.items()}
            text_ids = inputs["text_ids"]
        texts = flat(inputs)
        if self.args.cache_chunk is not None:
            embeddings = embed_cached(model, embedder(model), texts, self.args.cache_chunk)
            words = None
        elif self.masked_words is not None:
            embeddings, words = self.masked_words(model, texts)
        else:
            embeddings, words = embedder(model)(texts), None
        embeddings = embeddings.view(*text_ids.shape, -1)
        if self.scheme == "hybrid":
            loss = self.contrast(embeddings[:, :-2], text_ids[:, :-2])
            loss = loss + self.args.self_supervised_weight * self.contrast(embeddings[:, -2:], text_ids[:, -2:])
        else:
            loss = self.contrast(embeddings, text_ids)
        return loss if words is None else loss + self.args.mlm_weight * words

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, torch.Tensor, torch.Tensor | None]:
        """The cosine similarity of each pair, `(batch,)`, and its label."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            embeddings = embedder(model)(flat(inputs)).view(*inputs["input_ids"].shape[:2], -1).float()
        return None, functional.cosine_similarity(embeddings[:, 0], embeddings[:, 1], dim=-1), labels


def flat(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The encoder's inputs with the texts of all rows one below the other, `(batch * texts, tokens)`."""
    return {name: value.flatten(0, 1) for name, value in inputs.items() if value.dim() == 3}


def embedder(model: nn.Module) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """From encoder inputs to embeddings."""
    return lambda inputs: model(**inputs)["pooler_output"]


def check_scheme(model: PreTrainedModel, args: ContrastiveTrainingArguments, scheme: str) -> None:
    """Raise a `ValueError` where the scheme and the arguments leave the loss undefined for this model."""
    check_choice("scheme", scheme, SCHEMES)
    width = model.config.hidden_size
    for dim in args.matryoshka_dims or ():
        if dim > width:
            raise ValueError(f"matryoshka_dims={args.matryoshka_dims!r}: allowed is up to {width}, the width.")
    if scheme != "supervised" and not varies(model):
        raise ValueError(
            f"scheme={scheme!r}: a text and itself under another dropout are the pair to be learnt from, and this "
            f"{model.config.encoder_config.model_type!r} encoder trains without dropout (it has none, or is frozen), "
            "so that both are equal; allowed is an encoder with dropout, or scheme='supervised'."
        )


@torch.no_grad()
def varies(model: PreTrainedModel) -> bool:
    """Whether the encoder's states of a text differ from one pass to the next in training; tried out."""
    device, modes = model.device, [(module, module.training) for module in model.modules()]
    ids = torch.arange(8, device=device)[None] % len(model.get_input_embeddings().weight)
    # Random numbers of training are not used up.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model.train()
        first, second = (model(input_ids=ids)["last_hidden_state"] for _ in range(2))
        for module, mode in modes:
            module.training = mode
    return not torch.equal(first, second)
