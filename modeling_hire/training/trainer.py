"""A `Trainer` with two learning rates and length-grouped batches that a resumed run repeats exactly."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput


class LengthGroupedSampler(Sampler[int]):
    """Shuffled indices whose batches hold texts of like length.

    The order depends on the seed and the epoch alone, not on the state of the global generator: every process of a
    distributed run sees the same one, and a resumed run the one it would have seen.

    Args:
        lengths (`Sequence[int]`): of the examples.
        batch_size (`int`): examples of one step of the whole run.
        seed (`int`): of the order.

    Example:

    ```python
    >>> from modeling_hire.training.trainer import LengthGroupedSampler

    >>> order = list(LengthGroupedSampler([9, 1, 8, 2], batch_size=2, seed=0))
    >>> sorted(map(sorted, (order[:2], order[2:])))
    [[0, 2], [1, 3]]
    ```
    """

    # Texts are sorted within so many batches: enough for even lengths, few enough to keep the order random.
    POOL = 50

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        pool = self.batch_size * self.POOL
        pools = [sorted(order[i : i + pool], key=lambda j: -self.lengths[j]) for i in range(0, len(order), pool)]
        batches = [part[i : i + self.batch_size] for part in pools for i in range(0, len(part), self.batch_size)]
        # The short batch, if there is one, stays last, so that the others stay whole.
        whole = [batch for batch in batches if len(batch) == self.batch_size]
        short = [batch for batch in batches if len(batch) < self.batch_size]
        shuffled = torch.randperm(len(whole), generator=generator).tolist()
        return iter([index for batch in [*(whole[i] for i in shuffled), *short] for index in batch])


class LayerwiseTrainer(Trainer):
    """`Trainer` for models whose encoder is pre-trained and whose other modules are new.

    `args` is a [`RunArguments`]: `new_learning_rate` is the rate of the parameters in `new_parameters`.
    """

    def __init__(self, *args, new_parameters: set[str] = frozenset(), **kwargs):
        super().__init__(*args, **kwargs)
        self.new_parameters = new_parameters
        self.add_callback(_EpochOfSampler(self))
        self.length_sampler: LengthGroupedSampler | None = None

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> TrainOutput | None:
        """As `Trainer.train`. A run that was killed after it had stopped early is not trained any further."""
        if resume_from_checkpoint is None:
            return super().train(**kwargs)
        # Without it a resumed run would forget how long it has waited for a better metric.
        self.args.restore_callback_states_from_checkpoint = True
        state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / "trainer_state.json"))
        if not state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        self.state = state
        self._load_from_checkpoint(resume_from_checkpoint)
        if state.best_global_step and self.args.load_best_model_at_end:
            # Named by step: the folder may have been moved since.
            best = Path(resume_from_checkpoint).with_name(f"checkpoint-{state.best_global_step}")
            self._load_from_checkpoint(str(best))
        return None

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW over four groups: encoder and new modules, with weight decay and without."""
        if self.optimizer is not None or self.args.new_learning_rate is None:
            return super().create_optimizer(model)
        model = self.model if model is None else model
        decayed = set(self.get_decay_parameter_names(model))
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups.setdefault((name in self.new_parameters, name in decayed), []).append(parameter)
        optimizer_class, optimizer_arguments = self.get_optimizer_cls_and_kwargs(self.args, model)
        self.optimizer = optimizer_class(
            [
                {
                    "params": parameters,
                    "lr": self.args.new_learning_rate if is_new else self.args.learning_rate,
                    "weight_decay": self.args.weight_decay if is_decayed else 0.0,
                }
                for (is_new, is_decayed), parameters in groups.items()
            ],
            **optimizer_arguments,
        )
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(dataset)
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        # Rows of several texts say how long the longest is.
        lengths = dataset["length"] if "length" in dataset.column_names else [len(ids) for ids in dataset["input_ids"]]
        self.length_sampler = LengthGroupedSampler(lengths, step, seed)
        return self.length_sampler

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """As `Trainer.get_eval_dataloader`, with the incomplete last batch too: rows are never left out of a score."""
        with self._keeping_last_batch():
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """As `Trainer.get_test_dataloader`, with the incomplete last batch too."""
        with self._keeping_last_batch():
            return super().get_test_dataloader(test_dataset)

    @contextlib.contextmanager
    def _keeping_last_batch(self) -> Iterator[None]:
        # `dataloader_drop_last` is for training, and the library heeds it everywhere.
        drops, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = drops

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler | None:
        # The library's length-grouped sampler would return predictions in another order than the rows'. The rows come
        # sorted by length already (see `preparation.sort_by_length`).
        return SequentialSampler(eval_dataset)


class _EpochOfSampler(TrainerCallback):
    """Tells the sampler the epoch. The library does so too, except where a distributed run resumes inside one."""

    def __init__(self, trainer: LayerwiseTrainer):
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.length_sampler is not None:
            self.trainer.length_sampler.set_epoch(int(state.epoch or 0))


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that is whole: a run may have been killed while it wrote one."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return next((str(path) for path in reversed(found) if is_whole(path)), None)


def is_whole(checkpoint: Path) -> bool:
    """Whether a trainer's checkpoint can be resumed from: its last file is there, and no file is cut short."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        weights = list(checkpoint.glob("*.safetensors"))
        for path in weights:
            with safe_open(path, "pt"):  # compares the file's size with what its header says
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    # What torch saves is a zip file, whose table of contents comes last.
    others = [*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")]
    return bool(weights) and all(zipfile.is_zipfile(path) for path in others)
