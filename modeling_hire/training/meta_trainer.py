"""Pre-training as meta-learning (Lv et al., arXiv 2004.05568) in a `Trainer`."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback

from ..data.episodes import Episodes, EvaluationBatches, MetaTask, alone
from .inner_loop import Gradients, InnerLoop, InnerTrace, norm
from .meta_arguments import MetaTrainingArguments
from .trainer import LayerwiseTrainer


class MetaPretrainer(LayerwiseTrainer):
    r"""
    Pre-trains a model for its ability to learn: an episode takes `args.inner_steps` steps of gradient descent from the
    parameters theta, phi_j = phi_{j-1} - a grad L(phi_{j-1}), and the gradient of the tasks' losses at phi_k on a
    fresh batch updates theta.

    With `order=1` that gradient is taken as it is at phi_k; with `order=2` it is carried back to theta exactly,
    through the steps. Everything else is `Trainer`'s: bf16, clipping, schedules, logs, checkpoints,
    resuming. Every process runs its own episodes, and the gradients are averaged. `inner_steps=0` is ordinary
    multi-task pre-training.

    Beside the outer loss it logs `inner_loss_1`, ..., `inner_loss_k`, the norm of the inner gradients, and
    `alignment`: the cosine of the direction of the inner steps and the outer gradient.

    Args:
        model ([`MultiTaskModel`] or any `PreTrainedModel`): called with a batch of a task, it returns `loss`, and may
            return `losses`, by task.
        args ([`MetaTrainingArguments`]): how to train.
        tasks (`list[MetaTask]`): data of each task.
        eval_tasks (`list[MetaTask]`, *optional*): data to evaluate on; `eval_loss` is the mean over all batches.
        kwargs: of [`LayerwiseTrainer`].

    Raises:
        ValueError: for arguments that exclude each other or do not fit the model.
        FloatingPointError: while it trains, naming update, step and task, if a loss or a gradient is not finite;
            before it reaches the parameters.

    Example:

    ```python
    >>> import torch
    >>> from transformers import BertConfig
    >>> from modeling_hire import MetaPretrainer, MetaTask, MetaTrainingArguments, MultiTaskConfig, MultiTaskModel

    >>> encoder_config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)
    >>> tasks = {"odd": {"kind": "classification", "labels": ["no", "yes"]}}
    >>> model = MultiTaskModel(MultiTaskConfig(encoder_config=encoder_config, tasks=tasks))
    >>> def collate(rows):
    ...     return {"input_ids": torch.tensor([[r, 1] for r in rows]), "labels": {"odd": torch.tensor(rows) % 2}}
    >>> args = MetaTrainingArguments("out", inner_steps=2, max_steps=1, use_cpu=True)  # doctest: +SKIP
    >>> trainer = MetaPretrainer(model, args, [MetaTask("odd", range(40), collate)])  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    ```
    """

    # The loss of a batch is a mean; the trainer divides by the episodes of an update.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: PreTrainedModel,
        args: MetaTrainingArguments,
        tasks: list[MetaTask],
        eval_tasks: list[MetaTask] | None = None,
        **kwargs: Any,
    ):
        check_second_order(model, args)
        self.inner_loop = (
            InnerLoop(model, args.inner_learning_rate, args.momentum, args.adapt) if args.inner_steps else None
        )
        self.episodes = Episodes(tasks, args)
        args.max_steps = self.episodes.updates
        self.recorded: dict[str, list[torch.Tensor]] = defaultdict(list)
        evaluation = None if eval_tasks is None else Episodes.for_evaluation(eval_tasks, args)
        super().__init__(model=model, args=args, train_dataset=self.episodes, eval_dataset=evaluation, **kwargs)
        if not args.fp16:  # whose scaler leaves such updates out
            self.add_callback(FiniteGradients())

    # ---- data -------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        """Episodes in their order, shared out among the processes."""
        return self._episode_loader(self.train_dataset)

    def get_eval_dataloader(self, eval_dataset: EvaluationBatches | None = None) -> DataLoader:
        """Batches of the evaluation tasks, one at a time."""
        return self._episode_loader(self.eval_dataset if eval_dataset is None else eval_dataset)

    def get_test_dataloader(self, test_dataset: EvaluationBatches) -> DataLoader:
        """As [`MetaPretrainer.get_eval_dataloader`]."""
        return self._episode_loader(test_dataset)

    def _episode_loader(self, episodes: Episodes | EvaluationBatches) -> DataLoader:
        workers = self.args.dataloader_num_workers
        return self.accelerator.prepare(DataLoader(episodes, batch_size=1, collate_fn=alone, num_workers=workers))

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As `Trainer.floating_point_ops`, of all batches of an episode."""
        batches = [batch for part in (*inputs["inner"], inputs["outer"]) for batch in part.values()]
        return sum(super(MetaPretrainer, self).floating_point_ops(batch) for batch in batches)

    # ---- one episode ------------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """The sum of the tasks' losses on a batch of each."""
        loss, by_task = losses_of(model, inputs)
        if model.training:
            check_outer(loss, by_task, self.state.global_step + 1)
        return loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """One episode: adds its gradient to the parameters' and returns its outer loss."""
        if self.inner_loop is None:
            return super().training_step(model, inputs["outer"], num_items_in_batch)
        model.train()
        inputs = self._prepare_inputs(inputs)
        module = self.accelerator.unwrap_model(model)

        def loss_of(batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            with self.compute_loss_context_manager(), self._without_fused_rnn():
                return losses_of(module, batch)

        second, reptile = self.args.order == 2, self.args.algorithm == "reptile"
        where = f"update {self.state.global_step + 1}, "
        with self.inner_loop.episode(loss_of, inputs["inner"], second, where, add_up=reptile) as trace:
            if reptile:
                return self._reptile(trace)
            before = self._own_gradients() if second else None
            fresh = all(parameter.grad is None for parameter in self.inner_loop.adapted)
            # In the second order the gradient is not the one to be averaged yet.
            wait = second and hasattr(model, "no_sync")
            with model.no_sync() if wait else contextlib.nullcontext(), self._without_fused_rnn():
                loss = super().training_step(model, inputs["outer"], num_items_in_batch)
            self._record(trace, fresh or second)
            if second:
                self._carry_back(trace, loss_of, before)
        if second:
            self._average()
        return loss

    def _reptile(self, trace: InnerTrace) -> torch.Tensor:
        """The mean of the inner gradients (of the velocities, with momentum)."""
        share = 1 / (len(trace.losses) * self.current_gradient_accumulation_steps)
        for parameter, total in zip(self.inner_loop.adapted, trace.totals, strict=True):
            gradient = total.mul_(share)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self._record(trace, with_alignment=False)
        self._average()
        return trace.losses[-1] / self.current_gradient_accumulation_steps

    def _own_gradients(self) -> Gradients:
        """Take what earlier episodes of the update have left, so that this episode's gradient stands alone."""
        parameters = [*self.inner_loop.adapted, *self.inner_loop.others]
        kept = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        return kept

    def _carry_back(self, trace: InnerTrace, loss_of: Any, before: Gradients) -> None:
        """Replace the gradient at phi_k by that at theta, beside what earlier episodes have left."""
        loop = self.inner_loop
        outer = [parameter.grad for parameter in loop.adapted]
        others = [parameter.grad for parameter in loop.others]
        adapted, others = loop.through(trace, loss_of, outer, others)
        for parameter, gradient, kept in zip([*loop.adapted, *loop.others], [*adapted, *others], before, strict=True):
            parameter.grad = kept if gradient is None else gradient if kept is None else kept.add_(gradient)

    def _average(self) -> None:
        """Average the gradients of all processes, once an update: `DistributedDataParallel` has not seen them."""
        if not (self.accelerator.sync_gradients and dist.is_available() and dist.is_initialized()):
            return
        for parameter in (*self.inner_loop.adapted, *self.inner_loop.others):
            if parameter.grad is None:  # it may be there in another process
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    @contextlib.contextmanager
    def _without_fused_rnn(self):
        # cuDNN's recurrent networks have no second derivative.
        off = self.args.order == 2 and self.args.device.type == "cuda"
        with torch.backends.cudnn.flags(enabled=False) if off else contextlib.nullcontext():
            yield

    # ---- logs -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _record(self, trace: InnerTrace, with_alignment: bool) -> None:
        for step, loss in enumerate(trace.losses, start=1):
            self.recorded[f"inner_loss_{step}"].append(loss)
        self.recorded["inner_grad_norm"].append(torch.stack(trace.gradient_norms).mean())
        if with_alignment and any(parameter.grad is not None for parameter in self.inner_loop.adapted):
            self.recorded["alignment"].append(alignment(trace.start, self.inner_loop.adapted))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As `Trainer.log`, with the means of the inner steps since the last log of the training loss."""
        if "loss" in logs and self.recorded:
            logs |= {name: torch.stack(values).float().mean().item() for name, values in self.recorded.items()}
            self.recorded.clear()
        super().log(logs, start_time)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor, None, None]:
        """The loss of one batch of each task, without adaptation."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs["outer"]).detach().mean(), None, None


def losses_of(model: nn.Module, batches: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The sum of the losses of a batch of each task, and each task's own."""
    total, by_task = None, {}
    for name, batch in batches.items():
        outputs = model(**batch)
        loss = outputs["loss"] if "loss" in outputs else None
        if loss is None:
            raise ValueError(f"task {name!r}: the model returned no loss; its collator must give labels.")
        by_task |= getattr(outputs, "losses", None) or {name: loss}
        total = loss if total is None else total + loss
    return total, by_task


def check_outer(loss: torch.Tensor, by_task: dict[str, torch.Tensor], update: int) -> None:
    """Raise a `FloatingPointError` if an outer loss is not finite, before it reaches a parameter.

    Raises:
        ValueError: if it depends on no trainable parameter.
    """
    if not loss.requires_grad:
        raise ValueError(
            f"update {update}: the loss of {' and '.join(by_task)} depends on no trainable parameter; freeze less, or "
            "leave the task out."
        )
    if not loss.isfinite():
        wrong = [task for task, value in by_task.items() if not value.isfinite()]
        raise FloatingPointError(
            f"update {update}: the outer loss of {' and '.join(wrong) or 'all together'} is {loss.item()}. A "
            "smaller inner_learning_rate or learning_rate may help; the last checkpoint is as it was."
        )


class FiniteGradients(TrainerCallback):
    """Stops a run before a gradient that is not finite reaches the parameters."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        """Raise a `FloatingPointError` for such a gradient."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not norm(gradients).isfinite():
            raise FloatingPointError(
                f"update {state.global_step + 1}: the gradient is not finite, though the losses are. A smaller "
                "inner_learning_rate or learning_rate may help; the last checkpoint is as it was."
            )


def alignment(start: list[torch.Tensor], parameters: list[nn.Parameter]) -> torch.Tensor:
    """The cosine between the way from the parameters to where they started and the parameters' gradient."""
    pairs = [(s - p, p.grad) for s, p in zip(start, parameters, strict=True) if p.grad is not None]
    product = sum((way * gradient).sum() for way, gradient in pairs)
    lengths = [torch.stack(torch._foreach_norm(list(side))).norm() for side in zip(*pairs, strict=True)]
    return product / (lengths[0] * lengths[1]).clamp(min=torch.finfo(torch.float32).tiny)


def check_second_order(model: PreTrainedModel, args: MetaTrainingArguments) -> None:
    """Raise a `ValueError` if this model has no second derivative that could be taken."""
    if args.order != 2 or args.inner_steps == 0:
        return
    # A model around an encoder attends nowhere itself.
    attending = [m for m in model.modules() if hasattr(m, "config") and not hasattr(m.config, "encoder_config")]
    for module in attending:
        attention = getattr(module.config, "_attn_implementation", None)
        if attention not in (None, "eager"):
            raise ValueError(
                f"order=2 and attn_implementation={attention!r}: fused attention has no second derivative; allowed is "
                "attn_implementation='eager', or order=1."
            )
    if args.fsdp or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise ValueError("order=2 and sharded parameters (fsdp): allowed is order=1, or DDP.")
