"""Runs over questions whose answers are spans of a context: `run_squad.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.preprocessing import usable_max_length
from ..data.spans import Window
from ..data.squad import load_squad
from ..data.squad_arguments import SquadArguments
from ..data.squad_windows import SpanCollator, read_windows, window_dataset
from ..evaluation.spans import Candidates, decode_spans, write_answers
from ..evaluation.squad import no_answer_scores, squad_scores
from ..modeling_losses import span_loss
from .arguments import RunArguments
from .models import QUESTION_ANSWERING
from .task import TrainingTask, sort_by_length


PARTS = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
BEST = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")


def labelled_span_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Mean of the losses of start and end, for `Trainer`, which knows one tensor of labels.

    Padding gets no share of the softmax, so that the loss of a window does not depend on its neighbours in the batch.

    Args:
        outputs: with `start_logits` and `end_logits` `(batch, tokens)`, padded on the right.
        labels: `(batch, 3)`: place of the answer's first token, of its last one, and number of tokens of the window.
        num_items_in_batch: the numbers in the labels of all accumulated batches, three a window.

    Example:
        >>> import torch
        >>> outputs = {"start_logits": torch.zeros(1, 6), "end_logits": torch.zeros(1, 6)}
        >>> loss = labelled_span_loss(outputs, torch.tensor([[1, 2, 4]]))  # one of four tokens, twice
        >>> bool(loss.isclose(torch.tensor(4.0).log()))
        True
    """
    starts, ends, lengths = labels.unbind(dim=-1)
    places = torch.arange(outputs["start_logits"].shape[1], device=labels.device)
    windows = None if num_items_in_batch is None else num_items_in_batch / labels.shape[-1]
    return span_loss(outputs["start_logits"], outputs["end_logits"], starts, ends, windows, places < lengths[:, None])


class QuestionAnswering(TrainingTask):
    """The span of a context that answers a question, or that there is none."""

    head = QUESTION_ANSWERING
    baseline_name = "no_answer"

    def __init__(self, data_arguments: SquadArguments, arguments: RunArguments, config: PreTrainedConfig):
        self.data_arguments = data_arguments
        self.data = load_squad(data_arguments, evaluation_only=not arguments.num_train_epochs > 0)
        self.spec, self.notes = self.data.spec, list(self.data.notes)
        self.threshold = data_arguments.null_score_diff_threshold if self.data.version_2 else None
        self.windows: dict[str, list[Window]] = {}
        self.max_length = data_arguments.max_length

    @property
    def has_evaluation(self) -> bool:
        return bool(self.data.evaluation)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("exact", "f1", *((*PARTS, *BEST) if self.data.version_2 else ()))

    def encode(self, tokenizer: PreTrainedTokenizerBase, encoder_config: PreTrainedConfig) -> None:
        self.max_length, note = usable_max_length(self.data_arguments.max_length, tokenizer, encoder_config)
        if note:
            self.notes.append(note.partition(";")[0] + "; longer contexts are read through several windows.")

        def cut(split: str, questions: Dataset) -> Dataset:
            for_training = split == "train"
            rows, shortened = window_dataset(
                questions, tokenizer, self.data_arguments, self.max_length, for_training=for_training
            )
            if shortened:
                self.notes.append(
                    f"{split}: {shortened} of {len(questions)} questions were longer than "
                    f"max_query_length={self.data_arguments.max_query_length} tokens and were cut."
                )
            if for_training:
                return rows
            rows, self.windows[split] = read_windows(sort_by_length(rows)[0])
            return rows

        self.train = None if self.data.train is None else cut("train", self.data.train)
        self.evaluation = {split: cut(split, rows) for split, rows in self.data.evaluation.items()}
        self.test = {split: cut(split, rows) for split, rows in self.data.test.items()}

    def config_labels(self) -> dict[str, Any]:
        # Start and end. A checkpoint of classes, which may serve as the encoder, has another number.
        return {"num_labels": 2}

    def collator(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None) -> Callable[[list], dict]:
        return SpanCollator(tokenizer, pad_to_multiple_of)

    def loss(self, model: nn.Module, arguments: RunArguments, is_plain: bool) -> Callable[..., torch.Tensor] | None:
        return labelled_span_loss

    def decode(self, split: str, predictions: Any) -> list[Candidates]:
        args, questions = self.data_arguments, {**self.data.evaluation, **self.data.test}[split]
        start_logits, end_logits = predictions[:2]
        return decode_spans(
            self.windows[split], start_logits, end_logits, len(questions), args.n_best_size, args.max_answer_length
        )

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        (split,) = self.evaluation
        return self.scores(split, self.decode(split, prediction.predictions))

    def scores(self, split: str, found: Sequence[Candidates]) -> dict[str, float]:
        """The metrics of what was found for each question of an evaluation split."""
        questions = self.data.evaluation[split]
        ids, contexts = questions["id"][:], questions["context"][:]
        # Whatever no answer is worth: the threshold is applied to the odds, and the best one looked for.
        best = [candidates.answer(None) for candidates in found]
        texts = [context[span.start : span.end] if span else "" for span, context in zip(best, contexts, strict=True)]
        answers = dict(zip(ids, texts, strict=True))
        odds = None
        if self.threshold is not None:
            odds = {key: candidates.odds for key, candidates in zip(ids, found, strict=True)}
        return squad_scores(answers, self._references(split), odds, self.threshold or 0.0, self.data.version_2)

    def _references(self, split: str) -> dict[str, list[str]]:
        questions = self.data.evaluation[split]
        return dict(zip(questions["id"][:], questions["texts"][:], strict=True))

    def baseline(self) -> dict[str, dict[str, float]]:
        """Metrics of calling every question unanswerable."""
        if not self.data.version_2:
            return {}
        return {split: no_answer_scores(self._references(split)) for split in self.data.evaluation}

    def write(self, folder: Path, split: str, decoded: list[Candidates]) -> list[Path]:
        return self._write(folder, self.data.test[split], decoded, prefix=f"{split}_")

    def write_evaluation(self, folder: Path, split: str, predictions: Any) -> None:
        self._write(folder, self.data.evaluation[split], self.decode(split, predictions))

    def _write(self, folder: Path, questions: Dataset, found: list[Candidates], prefix: str = "") -> list[Path]:
        return write_answers(folder, questions["id"][:], questions["context"][:], found, self.threshold, prefix)

    def groups(self, split: str, rows: Sequence[int], config: PreTrainedConfig) -> tuple[Any, list[str] | None]:
        windows = [self.windows[split][row] for row in rows]
        return [int(window.answer != (window.null, window.null)) for window in windows], ["no answer", "answer"]

    def settings(self) -> dict[str, Any]:
        args = self.data_arguments
        numbers = {
            "training questions": 0 if self.data.train is None else len(self.data.train),
            "longest input": self.max_length,
            "stride of windows": args.doc_stride,
            "longest question": args.max_query_length,
            "longest answer": args.max_answer_length,
            **{f"evaluated questions ({split})": len(rows) for split, rows in self.data.evaluation.items()},
        }
        return numbers | ({} if self.threshold is None else {"null threshold": self.threshold})
