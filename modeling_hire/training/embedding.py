"""Runs over texts that are alike or not: `run_contrastive.py`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_layer_attn_pool import TRAINED_POOLERS, LayerAttnPoolConfig
from ..data.contrastive import load_contrastive_data
from ..data.contrastive_arguments import ContrastiveArguments
from ..data.contrastive_collator import ContrastiveCollator
from ..data.preprocessing import usable_max_length
from ..data.tasks import TaskSpec
from ..evaluation.correlation import similarity_metrics
from ..hub import save_detached
from ..modeling_text_encoding import check_tokenizer_fits, prompt_of
from .contrastive_arguments import ContrastiveTrainingArguments
from .contrastive_trainer import ContrastiveTrainer, check_scheme, flat
from .masked_words import check_masked_words
from .models import EMBEDDING
from .task import TrainingTask


TITLES = {
    "supervised": "texts that are alike or not",
    "self_supervised": "single texts",
    "hybrid": "texts that are alike or not, and single texts",
}
USAGE = """embeddings = model.encode(["A text.", "Another one."], tokenizer=tokenizer)

# Or with sentence-transformers:
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(name, revision=revision, trust_remote_code=True)
"""


class SentenceEmbedding(TrainingTask):
    """One embedding a text, learnt by contrast and tested by the similarity of pairs."""

    head = EMBEDDING
    trainer_class = ContrastiveTrainer
    baseline_name = "baseline"
    reports_loss = False

    def __init__(
        self,
        data_arguments: ContrastiveArguments,
        arguments: ContrastiveTrainingArguments,
        config: PreTrainedConfig,
    ):
        self.data_arguments = data_arguments
        trains = arguments.num_train_epochs > 0
        if trains and not data_arguments.has_training:
            raise ValueError(
                "train_file=None: there is nothing to train on; to evaluate only, set num_train_epochs=0."
            )
        self.data = load_contrastive_data(data_arguments, evaluation_only=not trains)
        self.notes = list(self.data.notes)
        # Of a saved sentence encoder: what its `encode` puts in front of every text.
        self.prompt = prompt_of(config, None, None) if isinstance(config, LayerAttnPoolConfig) else ""
        if self.prompt:
            self.notes.append(f"the model's default prompt, {self.prompt!r}, goes in front of every text.")
        self.spec = TaskSpec(
            name="contrastive",
            title=TITLES[data_arguments.scheme],
            text_columns=("text", "text_pair"),
            label_names=None,
            metrics=("spearman", "pearson"),
            main_metric="spearman",
        )
        self.test = {}
        if trains:
            check_batches(len(self.data.train), self.data.num_negatives, data_arguments.scheme, arguments)

    @property
    def has_evaluation(self) -> bool:
        return bool(self.data.evaluation)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.spec.metrics

    def encode(self, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig) -> None:
        max_length, note = usable_max_length(self.data_arguments.max_length, tokenizer, encoder_config)
        tokenizer.padding_side = "right"  # as the model's own `encode`, whose tokenizer is saved with it
        encoded = self.data.encode(tokenizer, max_length, self.prompt)
        self.notes.extend([*([note] if note else []), *encoded.notes])
        self.train = encoded.train
        # The first split is the one that chooses checkpoints: a test split comes after it, if there is one.
        self.evaluation = encoded.evaluation | encoded.test

    def check_model(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: ContrastiveTrainingArguments
    ) -> None:
        check_tokenizer_fits(model.config, tokenizer)
        if arguments.num_train_epochs > 0:
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise ValueError(
                    f"freeze_encoder=True: nothing is left to train, since pooler={model.config.pooler!r} has no "
                    f"weights; allowed is freeze_encoder=False, or a pooler out of {', '.join(TRAINED_POOLERS)}."
                )
            check_scheme(model, arguments, self.data_arguments.scheme)
            check_masked_words(model, tokenizer, arguments)
        if arguments.export_detached is not None and model.config.layer_plan is not None:
            raise ValueError(
                f"export_detached={arguments.export_detached!r}: the plain class of the encoder cannot run a "
                f"layer_plan ({model.config.layer_plan}); allowed is none, or copies with weights of their own."
            )

    def trainer_arguments(self) -> dict[str, Any]:
        return {"scheme": self.data_arguments.scheme}

    def collator(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None) -> Callable[[list], dict]:
        return ContrastiveCollator(tokenizer, pad_to_multiple_of)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        return similarity_metrics(prediction.predictions, prediction.label_ids)

    def groups(self, split: str, rows: Sequence[int], config: PreTrainedConfig) -> tuple[Any, None]:
        return np.asarray(self.evaluation[split].select(rows)["labels"]), None

    def picture_collator(self, collator: Callable[[list], dict]) -> Callable[[list], dict]:
        # The first text of each pair: one row of weights for a pair.
        def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            firsts = [{k: v[:1] for k, v in row.items() if k in ("input_ids", "token_type_ids")} for row in rows]
            return flat(collator(firsts))

        return collate

    def finish(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        arguments: ContrastiveTrainingArguments,
        folder: Path,
    ) -> None:
        if arguments.export_detached is not None:
            target = folder / "detached"
            if target.exists():  # of a run that was interrupted after it
                shutil.rmtree(target)
            save_detached(model, target, arguments.export_detached, tokenizer)

    def partial_splits(self) -> dict[str, int]:
        splits, cap = self.data.evaluation | self.data.test, self.data_arguments.max_eval_samples
        return {split: len(rows) for split, rows in splits.items() if len(rows) == cap}

    def usage(self) -> str:
        return USAGE

    def settings(self) -> dict[str, Any]:
        return {
            "scheme": self.data_arguments.scheme,
            "training rows": 0 if self.train is None else len(self.train),
            "longest text": self.data_arguments.max_length,
            **{f"evaluated pairs ({split})": len(rows) for split, rows in self.evaluation.items()},
        }


def check_batches(rows: int, num_negatives: int, scheme: str, arguments: ContrastiveTrainingArguments) -> None:
    """Raise a `ValueError` if the batches leave the loss undefined, or there is not one whole batch."""
    batch = arguments.train_batch_size * arguments.world_size
    has_negatives = scheme == "supervised" and num_negatives > 0
    if batch == 1 and not has_negatives:
        raise ValueError(
            "per_device_train_batch_size=1: the other rows of a batch are a row's negatives, and here it has none, so "
            "the loss is 0 whatever the model does; allowed is 2 or more, or rows with hard negatives."
        )
    if arguments.dataloader_drop_last and rows < batch:
        raise ValueError(
            f"per_device_train_batch_size={arguments.per_device_train_batch_size}: {rows} training rows make no whole "
            f"batch of {batch}, and incomplete ones are left out; allowed is a smaller batch."
        )
    if not arguments.dataloader_drop_last and rows % batch == 1 and not has_negatives:
        raise ValueError(
            f"dataloader_drop_last=False: the last of {rows} rows would be a batch by itself, which has no negatives; "
            "allowed is dataloader_drop_last=True, or another batch size."
        )
