"""Episodes of meta-learning: which rows of which task each inner step and the outer loss see."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .messages import listing


if TYPE_CHECKING:
    from ..training.meta_arguments import MetaTrainingArguments


@dataclass
class MetaTask:
    """A task of meta-training: its rows, and what joins them to a batch.

    Args:
        name (`str`): for messages, logs and `task_weights`.
        dataset (`Sequence`): rows, by index.
        collator (`Callable`): makes the keyword arguments of the model of a list of rows. Random choices in it (by
            torch's generator), such as which words are masked, are repeated by a resumed run.
        objectives (`tuple[str, ...]`): the names of the losses in it, where one batch serves several
            (`labels={"mlm": ..., "next_sentence": ...}`); unset, the task's own name. With sampled losses one of them
            is drawn.

    Raises:
        ValueError: for a task without rows.

    Example:

    ```python
    >>> import torch
    >>> from modeling_hire import MetaTask

    >>> def collate(rows):
    ...     input_ids = torch.tensor([[2, row, 3] for row in rows])
    ...     return {"input_ids": input_ids, "labels": {"odd": input_ids[:, 1] % 2}}
    >>> task = MetaTask("odd", range(10, 20), collate)
    >>> task.collator([task.dataset[0], task.dataset[3]])["labels"]["odd"].tolist()
    [0, 1]
    ```
    """

    name: str
    dataset: Sequence[Any]
    collator: Callable[[list[Any]], dict[str, Any]]
    objectives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.dataset) == 0:
            raise ValueError(f"task {self.name!r} has no data; allowed is at least one row.")
        self.objectives = self.objectives or (self.name,)

    def only(self, inputs: dict[str, Any], objective: str) -> dict[str, Any]:
        """The inputs of a batch for one of its losses alone."""
        return inputs | {"labels": {objective: inputs["labels"][objective]}}


class Episodes(Dataset):
    """A fixed sequence of episodes, each of which can be made by itself: a resumed run sees what is left of it.

    Every task's rows come in an order shuffled anew for each pass over them. Item `e` is
    `{"inner": [batch, ...], "outer": batch}` with a batch a step, each of them model inputs by task.

    Args:
        tasks (`list[MetaTask]`): what there is to learn.
        args ([`MetaTrainingArguments`]): inner steps, batch size, how tasks are drawn, and how many updates there are.

    Raises:
        ValueError: if there is no task, two have one name, or `task_weights` names others.
    """

    def __init__(self, tasks: Sequence[MetaTask], args: MetaTrainingArguments):
        self.tasks, self.batch_size, self.seed = list(tasks), args.per_device_train_batch_size, args.seed
        self.check(args.task_weights)
        self.inner_steps, self.same = args.inner_steps, args.outer_batch == "same"
        # Which loss each batch of an episode has: all of them (-1), or one of the list.
        self.choices = [(t, objective) for t, task in enumerate(self.tasks) for objective in task.objectives]
        per_update = args.gradient_accumulation_steps * args.world_size
        self.updates = self.count_updates(args, per_update)
        fresh = 0 if self.same else 1
        kinds = [args.inner_loss] * self.inner_steps + [args.outer_loss] * fresh
        shape = (self.updates * per_update, len(kinds))
        draws = np.random.default_rng((self.seed, 0)).choice(len(self.choices), size=shape, p=self.shares(args))
        self.schedule = np.where(np.array(kinds) == "joint", -1, draws)
        # How many batches of each task come before each batch.
        of_task = np.array([t for t, _ in self.choices])
        flat = self.schedule.ravel()
        uses = np.stack([(flat == -1) | (of_task[flat] == t) for t in range(len(self.tasks))], axis=1)
        self.before = (np.cumsum(uses, axis=0) - uses).reshape(*shape, len(self.tasks))
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    @classmethod
    def for_evaluation(cls, tasks: Sequence[MetaTask], args: MetaTrainingArguments) -> EvaluationBatches:
        """All rows of the tasks once, in their order."""
        return EvaluationBatches(tasks, args.per_device_eval_batch_size, args.seed)

    def check(self, weights: dict[str, float] | None) -> None:
        """Raise a `ValueError` if the tasks and the weights make no sense."""
        names = [objective for task in self.tasks for objective in task.objectives]
        if not self.tasks:
            raise ValueError("tasks=[]: allowed is at least one task.")
        if len(set(names)) < len(names):
            raise ValueError(f"tasks: the names must differ, got {listing(names)}.")
        unknown = sorted(set(weights or {}) - set(names))
        if unknown:
            raise ValueError(f"task_weights: no task {unknown[0]!r}; allowed are {listing(names)}.")

    def shares(self, args: MetaTrainingArguments) -> np.ndarray:
        """How often each loss is drawn."""
        if args.task_weights is not None:
            sizes = np.array([args.task_weights.get(objective, 0.0) for _, objective in self.choices], dtype=float)
        else:
            power = {"proportional": 1.0, "sqrt": 0.5, "uniform": 0.0}[args.task_sampling]
            sizes = np.array([len(self.tasks[t].dataset) ** power for t, _ in self.choices], dtype=float)
        return sizes / sizes.sum()

    def count_updates(self, args: MetaTrainingArguments, per_update: int) -> int:
        """How many updates the run has."""
        if args.max_steps > 0:
            updates = args.max_steps
        else:
            rows = max(len(task.dataset) for task in self.tasks)
            updates = math.ceil(args.num_train_epochs * rows / (self.batch_size * per_update))
        if args.match == "updates":
            return updates
        needed = args.inner_steps + 1
        if updates < needed:
            raise ValueError(
                f"match='grad_evals': {updates} gradient evaluations (max_steps, num_train_epochs) make no update of "
                f"inner_steps={args.inner_steps}; allowed is {needed} or more."
            )
        return updates // needed

    def __len__(self) -> int:
        return len(self.schedule)

    def __getitem__(self, episode: int) -> dict[str, Any]:
        batches = [self.batch(episode, position) for position in range(self.schedule.shape[1])]
        if self.same:
            batches.append(batches[-1])
        return {"inner": batches[: self.inner_steps], "outer": batches[-1]}

    def batch(self, episode: int, position: int) -> dict[str, Any]:
        """The inputs of each task that one batch of an episode has."""
        choice, parts = self.schedule[episode, position], {}
        for t, task in enumerate(self.tasks):
            if choice != -1 and self.choices[choice][0] != t:
                continue
            rows = self.rows(t, int(self.before[episode, position, t]))
            with repeatable(self.seed, episode, position, t):
                inputs = task.collator([task.dataset[row] for row in rows])
            if choice != -1 and len(task.objectives) > 1:
                inputs = task.only(inputs, self.choices[choice][1])
            parts[task.name] = inputs
        return parts

    def rows(self, task: int, number: int) -> list[int]:
        """The rows of a task's batch of this number."""
        size, start = len(self.tasks[task].dataset), number * self.batch_size
        return [int(self.order(task, i // size)[i % size]) for i in range(start, start + self.batch_size)]

    def order(self, task: int, passed: int) -> np.ndarray:
        """The order of a task's rows after so many passes over them."""
        if (task, passed) not in self._orders:
            # Those of two passes are enough: a batch may lie across their border.
            self._orders = {
                key: value for key, value in self._orders.items() if key[0] != task or key[1] == passed - 1
            }
            generator = np.random.default_rng((self.seed, 1, task, passed))
            self._orders[task, passed] = generator.permutation(len(self.tasks[task].dataset))
        return self._orders[task, passed]


class EvaluationBatches(Dataset):
    """The rows of all tasks once, batch by batch, each as an episode without inner steps."""

    def __init__(self, tasks: Sequence[MetaTask], batch_size: int, seed: int):
        self.tasks, self.seed = list(tasks), seed
        self.parts = [
            (t, range(start, min(start + batch_size, len(task.dataset))))
            for t, task in enumerate(self.tasks)
            for start in range(0, len(task.dataset), batch_size)
        ]

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        t, rows = self.parts[number]
        task = self.tasks[t]
        with repeatable(self.seed, number):
            return {"inner": [], "outer": {task.name: task.collator([task.dataset[row] for row in rows])}}


@contextlib.contextmanager
def repeatable(*numbers: int) -> Iterator[None]:
    """A context whose random numbers depend on these numbers alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.default_rng(numbers).integers(2**63)))
        yield


def alone(items: list[Any]) -> Any:
    """The one item of a batch of one."""
    (item,) = items
    return item
