"""Configuration of ELMo: a character convolution, two stacks of LSTMs, and a trained mixture of their layers."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from .configuration_layer_plans import is_integer
from .configuration_layerwise import (
    PROBLEM_TYPES,
    check_choice,
    check_known_fields,
    config_field_names,
    is_number,
)


ORIGINAL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Beginning, at least one byte, end.
SHORTEST_WORD = 3
SIZES = ("character_size", "cell_size", "projection_size", "num_hidden_layers", "classifier_size", "num_sampled_words")
DROPOUTS = ("dropout", "mix_dropout", "classifier_dropout")
SWITCHES = ("use_skip_connections", "stateful", "mix_layer_norm", "share_softmax")


class ElmoConfig(PreTrainedConfig):
    r"""
    Configuration of [`ElmoModel`] and its task models (Peters et al., arXiv 1802.05365). The defaults are the original
    model's.

    Args:
        num_characters (`int`, *optional*, defaults to 262): character ids: 0 for padding, 256 bytes, and five marks.
        max_characters (`int`, *optional*, defaults to 50): ids of a token, the marks of its two ends included.
        character_size (`int`, *optional*, defaults to 16): width of a character's embedding.
        filters (`list[list[int]]`, *optional*): `[width, number]` of each convolution over the characters.
        character_activation (`str`, *optional*, defaults to `"relu"`): of the convolutions, `"relu"` or `"tanh"`.
        num_highway_layers (`int`, *optional*, defaults to 2): highway layers on the convolutions, 0 or more.
        cell_size (`int`, *optional*, defaults to 4096): width of an LSTM's cell.
        projection_size (`int`, *optional*, defaults to 512):
            Width of a token's vector and of an LSTM's state, per direction; below `cell_size`. A hidden state is twice
            as wide (`hidden_size`).
        num_hidden_layers (`int`, *optional*, defaults to 2): LSTM layers of each direction.
        use_skip_connections (`bool`, *optional*, defaults to `True`):
            Whether every LSTM layer but the first adds its input to its output.
        cell_clip, proj_clip (`float`, *optional*, default to 3.0):
            Largest absolute value of a cell and of a projected state. `None` does not clip. With both `None` the LSTMs
            are PyTorch's own.
        stateful (`bool`, *optional*, defaults to `False`):
            Whether the LSTMs start where they stopped in the batch before, as the original does, row by row. The state
            is never saved, and `model.reset_states()` forgets it. Stateless, the same text always gets the same
            vectors.
        mix_layer_norm (`bool`, *optional*, defaults to `False`):
            Whether a layer is normalised before the mixture, over all tokens and features of a text.
        vocab_size (`int`, *optional*): words that the language model predicts. `None` for a model that predicts none.
        softmax (`str`, *optional*, defaults to `"full"`):
            How the language model is trained: over all words (`"full"`), or over the right one and words drawn by
            their rank (`"sampled"`), which takes words sorted by falling frequency. Evaluation is always over all.
        num_sampled_words (`int`, *optional*, defaults to 8192): words drawn a batch, on average.
        share_softmax (`bool`, *optional*, defaults to `True`): one softmax for both directions, or one each.
        classifier_size (`int`, *optional*, defaults to 300): width of the classifier's layers.
        dropout (`float`, *optional*, defaults to 0.1): on the inputs of every LSTM and of the softmax.
        mix_dropout (`float`, *optional*, defaults to 0.5): on the mixture.
        classifier_dropout (`float`, *optional*, defaults to 0.2): on the inputs of the classifier's layers.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*, default to 0, 2 and 3):
            *Word* ids of padding, beginning and end of a text. The language model predicts the last two.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:

    ```python
    >>> from modeling_hire.configuration_elmo import ElmoConfig

    >>> ElmoConfig(filters=[[1, 8], [2, 16]], cell_size=64, projection_size=16).hidden_size
    32
    ```
    """

    model_type = "elmo"
    keys_to_ignore_at_inference = ["hidden_states", "forward_logits", "backward_logits"]
    # The entries of `auto_map`: one repository serves the bare model and every task.
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_elmo.ElmoConfig",
        "AutoModel": "modeling_elmo.ElmoModel",
        "AutoModelForPreTraining": "modeling_elmo.ElmoForPreTraining",
        "AutoModelForSequenceClassification": "modeling_elmo.ElmoForSequenceClassification",
    }

    num_characters: int = 262
    max_characters: int = 50
    character_size: int = 16
    filters: list[list[int]] | None = None
    character_activation: str = "relu"
    num_highway_layers: int = 2
    cell_size: int = 4096
    projection_size: int = 512
    num_hidden_layers: int = 2
    use_skip_connections: bool = True
    cell_clip: float | None = 3.0
    proj_clip: float | None = 3.0
    stateful: bool = False
    mix_layer_norm: bool = False
    vocab_size: int | None = None
    softmax: str = "full"
    num_sampled_words: int = 8192
    share_softmax: bool = True
    classifier_size: int = 300
    dropout: float = 0.1
    mix_dropout: float = 0.5
    classifier_dropout: float = 0.2
    pad_token_id: int = 0
    bos_token_id: int = 2
    eos_token_id: int = 3

    def __post_init__(self, **kwargs: Any) -> None:
        if self.filters is None:
            self.filters = [list(pair) for pair in ORIGINAL_FILTERS]
        width = kwargs.pop("hidden_size", None)  # derived, and only written for the reader
        if width is not None and width != 2 * self.projection_size:
            raise ValueError(
                f"hidden_size={width!r}: allowed is twice projection_size={self.projection_size!r}, which sets it."
            )
        own = [field.name for field in fields(self) if field.name not in config_field_names(PreTrainedConfig)]
        for name in kwargs:
            if not hasattr(type(self), name) and difflib.get_close_matches(name, own, n=1, cutoff=0.85):
                check_known_fields(type(self), [name])
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
        check_choice("problem_type", self.problem_type, PROBLEM_TYPES)
        check_choice("character_activation", self.character_activation, ("relu", "tanh"))
        check_choice("softmax", self.softmax, ("full", "sampled"))
        if self.num_labels < 1:
            raise ValueError(f"num_labels={self.num_labels!r}: allowed is 1 (a score) or more.")
        for field in SWITCHES:
            check_choice(field, getattr(self, field), (True, False))
        for field in SIZES:
            self._demand(field, is_integer(getattr(self, field), 1), "a positive whole number")
        self._demand("num_highway_layers", is_integer(self.num_highway_layers, 0), "a whole number, 0 or more")
        # 256 bytes and the marks: both ends of a word, both ends of a text, padding inside a word, padding.
        self._demand("num_characters", is_integer(self.num_characters, 262), "a whole number, 262 or more")
        self._demand("max_characters", is_integer(self.max_characters, SHORTEST_WORD), "a whole number, 3 or more")
        self._check_filters()
        if self.projection_size >= self.cell_size:
            raise ValueError(
                f"projection_size={self.projection_size!r}: allowed is a whole number below cell_size="
                f"{self.cell_size!r}."
            )
        for field in ("cell_clip", "proj_clip"):
            value = getattr(self, field)
            fits = value is None or (is_number(value) and value > 0)
            self._demand(field, fits, "a positive number, or None for no clipping")
        for field in DROPOUTS:
            value = getattr(self, field)
            self._demand(field, is_number(value) and 0 <= value < 1, "a number from 0 up to, not including, 1")
        self._check_words()

    def _demand(self, field: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{field}={getattr(self, field)!r}: allowed is {allowed}.")

    def _check_filters(self) -> None:
        pairs = self.filters
        fits = isinstance(pairs, list | tuple) and len(pairs) > 0
        fits = fits and all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and is_integer(pair[0], 1, self.max_characters)
            and is_integer(pair[1], 1)
            for pair in pairs
        )
        allowed = f"a list of [width, number] pairs, widths from 1 to max_characters={self.max_characters}"
        self._demand("filters", fits, allowed)

    def _check_words(self) -> None:
        ends = ("pad_token_id", "bos_token_id", "eos_token_id")
        for field in ends:
            self._demand(field, is_integer(getattr(self, field), 0), "a word id, 0 or more")
        if self.vocab_size is None:
            return
        self._demand("vocab_size", is_integer(self.vocab_size, 4), "a whole number, 4 or more, or None")
        for field in ends:
            fits = getattr(self, field) < self.vocab_size
            self._demand(field, fits, f"a word id below vocab_size={self.vocab_size}")
        if self.softmax == "sampled" and self.num_sampled_words >= self.vocab_size:
            raise ValueError(
                f"num_sampled_words={self.num_sampled_words!r}: allowed is a number below vocab_size="
                f"{self.vocab_size}; to train over all words set softmax='full'."
            )

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state: both directions side by side."""
        return 2 * self.projection_size

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "hidden_size": self.hidden_size}
