"""Configuration of BERT with duplicated layers."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import BertConfig

from .configuration_layer_plans import check_layer_plan, is_integer


class BertWithDuplicatedLayersConfig(BertConfig):
    r"""
    A BERT configuration that records where duplicated layers come from, and in which order tied ones are executed.

    Args:
        layer_sources (`list[int]`, *optional*):
            For each of the `num_hidden_layers` layers, the number of the layer of the original model that it was
            copied from. A record: it changes nothing. `None` for layers that were never copied or left out.
        layer_plan (`list[int]`, *optional*):
            The order in which the layers are executed, for example `[0, 0, 1, 1, 2, 2]` for three layers applied twice
            each with one set of weights (*tied* duplication). `None` executes every layer once.
        kwargs: fields of `BertConfig`.

    Raises:
        ValueError: for a plan that names a layer that does not exist, or sources that are not one a layer.

    Example:

    ```python
    >>> from modeling_hire import BertWithDuplicatedLayersConfig

    >>> config = BertWithDuplicatedLayersConfig(num_hidden_layers=3, layer_plan=[0, 0, 1, 2])
    >>> config.num_executed_layers
    4
    ```
    """

    model_type = "bert_with_duplicated_layers"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_duplicated.BertWithDuplicatedLayersConfig",
        "AutoModel": "modeling_duplicated.BertWithDuplicatedLayers",
        "AutoModelForMaskedLM": "modeling_duplicated.BertWithDuplicatedLayersForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_duplicated.BertWithDuplicatedLayersForSequenceClassification",
        "AutoModelForQuestionAnswering": "modeling_duplicated.BertWithDuplicatedLayersForQuestionAnswering",
    }

    layer_sources: list[int] | None = None
    layer_plan: list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        # Whole, so that one repository serves every class, and never pointing back to where it was loaded from.
        self.auto_map = dict(self.auto_classes)
        self.check()

    def validate(self) -> None:
        """Run by `save_pretrained`, so that a field set to a wrong value later is not saved."""
        super().validate()
        self.check()

    def check(self) -> None:
        """Raise a `ValueError` that names the first wrong field, its value, and what is allowed."""
        if self.is_decoder:
            raise ValueError("is_decoder=True: allowed is is_decoder=False, an encoder.")
        if self.layer_plan is not None:
            check_layer_plan(self.layer_plan, self.num_hidden_layers)
        sources = self.layer_sources
        if sources is not None and not (
            isinstance(sources, list)
            and len(sources) == self.num_hidden_layers
            and all(is_integer(layer, 0) for layer in sources)
        ):
            raise ValueError(
                f"layer_sources={sources!r}: allowed is a list of {self.num_hidden_layers} layer numbers "
                "(num_hidden_layers), counted from 0."
            )

    @property
    def num_executed_layers(self) -> int:
        """How many layers run: the length of `layer_plan`, or every layer once."""
        return self.num_hidden_layers if self.layer_plan is None else len(self.layer_plan)
