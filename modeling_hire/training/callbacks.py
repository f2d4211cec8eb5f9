"""Watching a model while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging


if TYPE_CHECKING:
    from .trainer import LayerwiseTrainer

logger = logging.get_logger(__name__)
TRACE = "trace_"


class DeadScorerCallback(TrainerCallback):
    """Warns when the ReLU of the layer scorer has died.

    A score of exactly zero for every layer of every example gives equal weights and, unless `rescue_dead_scores` of
    the model's config is on, no gradient, so that the scorer never comes back. The callback watches the scores of
    training batches and adds `dead_scores` to each log of the training loss, and to the last one: the share of
    examples without any live score since the log before. At 1.0 it warns.
    """

    def __init__(self) -> None:
        self.dead: torch.Tensor | int = 0
        self.seen = 0
        self.handles: list[Any] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs: Any
    ) -> None:
        for module in model.modules():
            if type(module).__name__ == "LayerWeighting":
                self.handles.append(module.register_forward_hook(self._look))

    def _look(self, module: nn.Module, args: tuple, scores: torch.Tensor) -> None:
        if module.training and module.kind == "dynamic":
            # Summed on the device: reading the number on every step would make the host wait for it.
            self.dead = self.dead + (scores.detach() == 0).all(dim=-1).sum()
            self.seen += scores.shape[0]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not self.seen or logs is None or not {"loss", "train_loss"} & logs.keys():
            return
        share = float(self.dead) / self.seen
        logs["dead_scores"] = state.log_history[-1]["dead_scores"] = share
        if share == 1.0:
            logger.warning(
                "The layer scorer is dead: since the last log every score was exactly 0 for all "
                f"{self.seen} examples, so the layer weights are equal. If it stays so, start again with "
                "rescue_dead_scores=True, a larger score_bias_init, score_activation='none', or a smaller "
                "new_learning_rate."
            )
        self.dead, self.seen = 0, 0

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class TraceCallback(TrainerCallback):
    """Evaluates after given numbers of updates, to show how fast a model learns. What is learnt is not affected.

    Args:
        trainer: whose model is evaluated.
        rows: what on.
        steps: after how many updates; 0 is before the first.
    """

    def __init__(self, trainer: LayerwiseTrainer, rows: Dataset, steps: Sequence[int]):
        self.trainer, self.rows, self.steps = trainer, rows, set(steps)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:
            self._look(state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._look(state)

    def _look(self, state: TrainerState) -> None:
        if state.global_step not in self.steps:
            return
        # The loader of the evaluation draws a seed, and training is to see the same dropout as without a trace.
        with torch.random.fork_rng():
            scores = self.trainer.predict(self.rows, metric_key_prefix=TRACE.rstrip("_")).metrics
        named = {name: value for name, value in scores.items() if name.startswith(TRACE)}
        # In the log history, which checkpoints hold: a resumed run has the whole trace.
        state.log_history.append({"step": state.global_step, **named})


def trace_of(state: TrainerState, metrics: Sequence[str]) -> dict[int, dict[str, float]]:
    """The metrics that a trace has seen, by number of updates."""
    return {
        entry["step"]: {name: entry[TRACE + name] for name in metrics if TRACE + name in entry}
        for entry in state.log_history
        if any(TRACE + name in entry for name in metrics)
    }
