"""Pre-training runs: `run_meta_pretrain.py`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..data.arguments import DataArguments
from ..data.corpora import read_documents, stream_documents
from ..data.episodes import Episodes, MetaTask
from ..data.loading import TaskData, load_task_data
from ..data.meta_arguments import MetaDataArguments
from ..data.preprocessing import tokenize_dataset, usable_max_length
from ..data.pretraining import OBJECTIVES, PAIR_LABELS, pretraining_task
from ..data.sources import HubUnreachableError, is_network_error
from ..data.tasks import TaskSpec
from .inner_loop import InnerLoop
from .meta_arguments import MetaTrainingArguments, MultiTaskArguments
from .meta_trainer import MetaPretrainer, check_second_order
from .models import MULTI_TASK, encoder_config_of, is_own, load_source, source_type
from .new_encoder import new_encoder_config, train_tokenizer
from .task import TrainingTask
from .trainer import LayerwiseTrainer
from .word_heads import adopt_word_head, to_masked_lm


logger = logging.getLogger(__name__)


class Pretraining(TrainingTask):
    """Objectives on text and labelled tasks, learnt together, in episodes."""

    head = MULTI_TASK
    trainer_class = MetaPretrainer
    baseline_name = "baseline"
    # What can be learnt from text, and what is unless something is chosen.
    objectives: tuple[str, ...] = OBJECTIVES
    default_objectives: tuple[str, ...] = ("mlm", "next_sentence")

    def __init__(self, data_arguments: MetaDataArguments, arguments: MetaTrainingArguments, config: PreTrainedConfig):
        self.data_arguments, self.arguments = data_arguments, arguments
        if data_arguments.objectives is not None:
            check_kind(data_arguments.objectives, self.objectives, config)
        self.objectives = tuple(data_arguments.objectives or self.default_objectives)
        # Whether the checkpoint is a plain model of transformers, which may have a word head.
        self.is_plain = not is_own(config)
        self.notes, self.test, self.evaluation = [], {}, {}
        self.labelled: dict[str, TaskData] = {
            name: load_task_data(
                DataArguments(
                    task=name,
                    dataset_dir=data_arguments.dataset_dir,
                    max_length=data_arguments.max_length,
                    max_train_samples=data_arguments.max_train_samples,
                    max_eval_samples=data_arguments.max_eval_samples,
                    sample_seed=data_arguments.sample_seed,
                )
            )
            for name in data_arguments.tasks or ()
        }
        for data in self.labelled.values():
            self.notes.extend(data.notes)
        learnt = [*(self.objectives if data_arguments.has_text else ()), *(data_arguments.tasks or ())]
        self.spec = TaskSpec(
            name="pretraining",
            title=", ".join(learnt),
            text_columns=("text",),
            label_names=None,
            metrics=("loss",),
            main_metric="loss",
            hub_path=data_arguments.corpus_name,
            hub_config=data_arguments.corpus_config,
        )

    @classmethod
    def start(
        cls, model_arguments: MultiTaskArguments, data_arguments: MetaDataArguments
    ) -> tuple[str, PreTrainedConfig, PreTrainedTokenizerBase]:
        if source_type(model_arguments) == "elmo":
            return elmo_pretraining().start(model_arguments, data_arguments)
        if model_arguments.new_encoder is None:
            return load_source(model_arguments, cls.head)
        texts = sentences_of(data_arguments)
        tokenizer = train_tokenizer(texts, model_arguments.vocab_size, data_arguments.max_length)
        return (
            "",
            new_encoder_config(model_arguments.new_encoder, model_arguments.encoder_fields, tokenizer),
            tokenizer,
        )

    @classmethod
    def for_config(cls, config: PreTrainedConfig) -> type[Pretraining]:
        return elmo_pretraining() if config.model_type == "elmo" else cls

    @property
    def has_evaluation(self) -> bool:
        return self.data_arguments.validation_corpus_file is not None or any(
            data.evaluation for data in self.labelled.values()
        )

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss",)

    def encode(self, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig) -> None:
        args = self.data_arguments
        max_length, note = usable_max_length(args.max_length, tokenizer, encoder_config)
        self.notes.extend([note] if note else [])
        self.train_tasks: list[MetaTask] = []
        if args.has_text:
            self.train_tasks.append(self.text_task(documents_of(args), tokenizer, max_length))
            self.notes.append(f"text: {len(self.train_tasks[0].dataset)} inputs of up to {max_length} tokens.")
        for name, data in self.labelled.items():
            self.train_tasks.append(labelled_task(name, data.train, tokenizer, max_length))
        splits: dict[str, MetaTask] = {}
        if args.validation_corpus_file is not None:
            documents = read_documents(args.validation_corpus_file)
            splits["text"] = self.text_task(documents, tokenizer, max_length)
        for name, data in self.labelled.items():
            for split, rows in data.evaluation.items():
                splits[f"{name} {split}"] = labelled_task(name, rows, tokenizer, max_length)
        self.evaluation_tasks = list(splits.values())
        self.evaluation = {split: Episodes.for_evaluation([task], self.arguments) for split, task in splits.items()}
        self.train = self.train_tasks[0].dataset

    def text_task(
        self, documents: Iterator[list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> MetaTask:
        """What is learnt from text."""
        args = self.data_arguments
        return pretraining_task(
            documents, tokenizer, self.objectives, max_length, args.mlm_probability, args.sample_seed
        )

    def config_labels(self) -> dict[str, Any]:
        tasks: dict[str, dict[str, Any]] = {}
        for objective in self.objectives if self.data_arguments.has_text else ():
            labels = PAIR_LABELS.get(objective)
            tasks[objective] = (
                {"kind": "masked_lm"} if labels is None else {"kind": "classification", "labels": labels}
            )
        for name, data in self.labelled.items():
            names = data.spec.label_names
            tasks[name] = (
                {"kind": "regression"} if names is None else {"kind": "classification", "labels": list(names)}
            )
        return {"tasks": tasks}

    def build(
        self, model_arguments: MultiTaskArguments, checkpoint: str, config: PreTrainedConfig, base: str | None
    ) -> tuple[PreTrainedModel, set[str]]:
        model, new = super().build(model_arguments, checkpoint, config, base)
        if checkpoint and self.is_plain and "mlm" in model.heads:
            adopted = adopt_word_head(model, "mlm", checkpoint)
            if adopted:
                logger.warning("heads.mlm is the word head of %s, with its weights.", base or checkpoint)
            new -= adopted
        return model, new

    def check_model(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: MetaTrainingArguments
    ) -> None:
        self.check_heads(model)
        use_eager(model, arguments)
        check_second_order(model, arguments)
        if arguments.inner_steps:
            InnerLoop(model, arguments.inner_learning_rate, arguments.momentum, arguments.adapt)

    def check_heads(self, model: PreTrainedModel) -> None:
        """Raise a `ValueError` if the model lacks what a task needs."""
        for task in self.train_tasks:
            for objective in task.objectives:
                if objective not in model.heads:
                    raise ValueError(
                        f"task {objective!r}: the checkpoint has no head for it, but {', '.join(model.heads)}."
                    )
        for objective, wanted in self.config_labels()["tasks"].items():
            known = {name: model.config.tasks[objective].get(name) for name in wanted}
            if known != wanted:
                raise ValueError(
                    f"task {objective!r}: the checkpoint's head is for {known}; allowed is {wanted}, as in the data."
                )

    def make_trainer(self, model: PreTrainedModel, args: MetaTrainingArguments, **given: Any) -> LayerwiseTrainer:
        use_eager(model, args)
        # The trainer makes its own batches, and its losses are the model's.
        for name in ("train_dataset", "eval_dataset", "data_collator", "compute_metrics", "compute_loss_func"):
            given.pop(name)
        return MetaPretrainer(model, args, self.train_tasks, self.evaluation_tasks or None, **given)

    def collator(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None) -> None:
        """Each task has its own."""
        return None

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """The loss is all there is."""
        return {}

    def finish(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        arguments: MetaTrainingArguments,
        folder: Path,
    ) -> None:
        for name, part in self.parts(model).items():
            target = folder / name
            if target.exists():  # of a run that was interrupted after it
                shutil.rmtree(target)
            part.save_pretrained(target)
            tokenizer.save_pretrained(target)

    def parts(self, model: PreTrainedModel) -> dict[str, PreTrainedModel]:
        """What others fine-tune: `encoder`, a plain one, and `masked_lm`, with the word head, where there are such."""
        parts = {"encoder": model.encoder if model.config.layer_plan is None else None}
        if "mlm" in model.heads:
            parts["masked_lm"] = to_masked_lm(model, "mlm")
        return {name: part for name, part in parts.items() if part is not None}

    def partial_splits(self) -> dict[str, int]:
        cap = self.data_arguments.max_eval_samples
        return {
            f"{name} {split}": len(rows)
            for name, data in self.labelled.items()
            for split, rows in data.evaluation.items()
            if len(rows) == cap
        }

    def settings(self) -> dict[str, Any]:
        args = self.arguments
        return {
            "inner steps": args.inner_steps,
            "inner learning rate": args.inner_learning_rate,
            "order": args.order,
            "algorithm": args.algorithm,
            **{f"inputs ({task.name})": len(task.dataset) for task in self.train_tasks},
            "longest input": self.data_arguments.max_length,
        }


def elmo_pretraining() -> type[Pretraining]:
    """The kind for ELMo, which is made of this module's."""
    from .elmo_pretraining import ElmoPretraining

    return ElmoPretraining


def check_kind(objectives: list[str], allowed: tuple[str, ...], config: PreTrainedConfig) -> None:
    """Raise a `ValueError` for an objective that another kind of encoder has."""
    if not {*objectives} <= {*allowed}:
        raise ValueError(
            f"objectives={objectives!r}: an encoder of type {config.model_type!r} learns {', '.join(allowed)}."
        )


def use_eager(model: PreTrainedModel, arguments: MetaTrainingArguments) -> None:
    """For second derivatives, put plain attention in place of the default one, which has none."""
    encoder = encoder_config_of(model.config)
    if arguments.order == 2 and arguments.inner_steps > 0 and encoder._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")


def documents_of(args: MetaDataArguments) -> Iterator[list[str]]:
    """The documents to learn from, as they are read."""
    if args.corpus_file is not None:
        return read_documents(args.corpus_file, args.max_documents)
    from datasets import load_dataset

    try:
        rows = load_dataset(
            args.corpus_name, args.corpus_config, split="train", revision=args.corpus_revision, streaming=True
        )
    except Exception as error:  # of many libraries; the user needs to read which dataset it was
        if is_network_error(error):
            raise HubUnreachableError(
                f"No connection to the Hub, from which corpus_name={args.corpus_name!r} is streamed ({error}). "
                "To work without it, give --corpus_file FILE."
            ) from error
        raise ValueError(
            f"corpus_name={args.corpus_name!r} could not be read from the Hub: {type(error).__name__}: {error}."
        ) from error
    return stream_documents(rows, args.corpus_column, args.max_documents)


def sentences_of(args: MetaDataArguments) -> Iterator[str]:
    """The sentences that a new tokenizer, or a new vocabulary, is made of."""
    if not args.has_text:
        raise ValueError("new_encoder: its tokenizer is trained on text; give corpus_file or corpus_name.")
    return (sentence for document in documents_of(args) for sentence in document)


def labelled_task(name: str, rows: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> MetaTask:
    """A labelled task, for a head of its name."""
    tokens, _ = tokenize_dataset(rows, tokenizer, max_length)
    return MetaTask(name, tokens, LabelledCollator(name, tokenizer))


class LabelledCollator:
    """Joins rows of one labelled task to a batch."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase):
        self.name, self.pad = name, DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(self.pad(rows))
        return {name: value for name, value in batch.items() if name != "labels"} | {
            "labels": {self.name: batch["labels"]}
        }
