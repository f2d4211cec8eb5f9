"""Configuration of an encoder with a head for each of several tasks."""

from __future__ import annotations

from typing import Any, ClassVar

from .configuration_layerwise import LayerwiseConfig, check_choice, is_integer, is_number


# Kind of a task: what its head says of a text.
TASK_KINDS = ("masked_lm", "classification", "regression")


class MultiTaskConfig(LayerwiseConfig):
    r"""
    Configuration of [`MultiTaskModel`]: an encoder, and a head a task.

    Args:
        encoder_config, layer_plan: see [`LayerwiseConfig`].
        tasks (`dict[str, dict]`, *optional*, defaults to `{"mlm": {"kind": "masked_lm"}}`):
            For each task its `kind` (`"masked_lm"`: the words at masked places; `"classification"`: one of `labels`,
            a list of names, for a text or a pair of texts; `"regression"`: a score), and optionally `weight`, the
            factor of its loss (1).
        head_dropout (`float`, *optional*, defaults to 0.1): dropout before the heads of texts.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:

    ```python
    >>> from transformers import BertConfig
    >>> from modeling_hire import MultiTaskConfig

    >>> tasks = {"mlm": {"kind": "masked_lm"}, "rte": {"kind": "classification", "labels": ["yes", "no"]}}
    >>> list(MultiTaskConfig(encoder_config=BertConfig(), tasks=tasks).tasks)
    ['mlm', 'rte']
    ```
    """

    model_type = "multi_task"
    keys_to_ignore_at_inference = ["hidden_states", "attentions", "losses"]
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_multi_task.MultiTaskConfig",
        "AutoModel": "modeling_multi_task.MultiTaskModel",
    }

    tasks: dict[str, dict] | None = None
    head_dropout: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        if self.tasks is None:
            self.tasks = {"mlm": {"kind": "masked_lm"}}
        super().__post_init__(**kwargs)

    def check(self) -> None:
        super().check()
        if not (isinstance(self.tasks, dict) and self.tasks):
            raise ValueError(f"tasks={self.tasks!r}: allowed is a mapping of at least one name to a task.")
        for name, task in self.tasks.items():
            where = f"tasks[{name!r}]"
            # A head is a module of this name.
            if not (isinstance(name, str) and name.isidentifier()):
                raise ValueError(f"{where}: allowed is a name of letters, digits and underscores.")
            if not isinstance(task, dict):
                raise ValueError(f"{where}={task!r}: allowed is a mapping with 'kind'.")
            unknown = sorted(set(task) - {"kind", "labels", "weight"})
            if unknown:
                raise ValueError(f"{where} has no field {unknown[0]!r}; allowed are 'kind', 'labels' and 'weight'.")
            check_choice(f"{where}['kind']", task.get("kind"), TASK_KINDS)
            labels = task.get("labels")
            named = isinstance(labels, list | tuple) and len(labels) > 1 and all(isinstance(x, str) for x in labels)
            if task["kind"] == "classification" and not (named and len(set(labels)) == len(labels)):
                raise ValueError(f"{where}['labels']={labels!r}: allowed is a list of at least two different names.")
            if task["kind"] != "classification" and labels is not None:
                raise ValueError(f"{where}['labels']={labels!r}: a task of kind {task['kind']!r} has none.")
            weight = task.get("weight", 1.0)
            if not (is_number(weight) and weight > 0):
                raise ValueError(f"{where}['weight']={weight!r}: allowed is a number above 0.")
        if not (is_number(self.head_dropout) and 0 <= self.head_dropout < 1):
            raise ValueError(f"head_dropout={self.head_dropout!r}: allowed is a number from 0 to below 1.")
        if any(task["kind"] == "masked_lm" for task in self.tasks.values()) and not is_integer(self.vocab_size, 1):
            raise ValueError(f"encoder_config: vocab_size={self.vocab_size!r}; masked words need a vocabulary.")
