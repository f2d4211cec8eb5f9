"""ELMo (Peters et al., arXiv 1802.05365): a forward and a backward language model, whose layers are mixed.

A token's vector comes from its characters; two stacks of LSTMs read the vectors from the left and from the right; a
trained mixture of the vectors and of all LSTM layers represents the token in its context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_elmo import ElmoConfig
from .modeling_elmo_characters import GATE_BIAS, HighwayGate
from .modeling_elmo_layers import BOTH, ElmoEncoder, ElmoMix, Texts, side_by_side
from .modeling_elmo_lstm import init_lstm, turned
from .modeling_elmo_matching import ElmoMatcher
from .modeling_elmo_outputs import ElmoClassifierOutput, ElmoModelOutput, ElmoPreTrainingOutput
from .modeling_elmo_softmax import WordSoftmax
from .modeling_inputs import check_mask, check_tokens, choose_states
from .modeling_losses import sequence_loss


DIRECTIONS = {"both": BOTH, "forward": ("forward",), "backward": ("backward",)}


class ElmoPreTrainedModel(PreTrainedModel):
    """Initialisation, and what the ELMo classes have in common."""

    config: ElmoConfig
    config_class = ElmoConfig
    base_model_prefix = "elmo"
    _no_split_modules = ["CharacterEncoder", "ElmoLayer"]

    def __init__(self, config: ElmoConfig, *args: Any, **kwargs: Any):
        config.check()  # a field may have been set since the configuration was made
        super().__init__(config, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Linear | nn.Conv1d):
            # The original's scale: what comes out varies as what goes in does.
            init.normal_(module.weight, std=(module.weight[0].numel()) ** -0.5)
            init.constant_(module.bias, GATE_BIAS if isinstance(module, HighwayGate) else 0.0)
        elif isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -1.0, 1.0)
            if not getattr(module.weight, "_is_hf_initialized", False):  # a slice does not carry the flag
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LSTM):
            init_lstm(module)
        elif isinstance(module, ElmoMix):
            init.zeros_(module.layer_scores)
            init.ones_(module.gamma)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the characters."""
        return self.base_model.encoder.characters.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base_model.encoder.characters.embedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Raises a `ValueError`: every token has a vector already, since every byte has."""
        raise ValueError("ELMo reads characters: there are no token embeddings to resize, and no token is unknown.")

    def reset_states(self) -> None:
        """With `config.stateful`: let the next batch start as the first one did."""
        self.base_model.encoder.reset_states()


class ElmoModel(ElmoPreTrainedModel):
    r"""
    The bare model: a vector for each token, from its text.

    Args:
        config ([`ElmoConfig`]): the configuration.

    Example:

    ```python
    >>> from modeling_hire.configuration_elmo import ElmoConfig
    >>> from modeling_hire.modeling_elmo import ElmoModel
    >>> from modeling_hire.tokenization_elmo import ElmoTokenizer

    >>> model = ElmoModel(ElmoConfig(filters=[[1, 8], [2, 16]], cell_size=64, projection_size=16)).eval()
    >>> batch = ElmoTokenizer()(["Hello world", "Hi"], padding=True, return_tensors="pt")
    >>> outputs = model(**batch, output_hidden_states=True)
    >>> outputs.last_hidden_state.shape, len(outputs.hidden_states)
    (torch.Size([2, 2, 32]), 3)
    ```
    """

    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        self.encoder = ElmoEncoder(config)
        self.mix = ElmoMix(config)
        self.dropout = nn.Dropout(config.mix_dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        **kwargs: Any,
    ) -> ElmoModelOutput:
        r"""
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, tokens, max_characters)`):
                Spelt tokens, without the text's beginning and end, which are put around it here.
            attention_mask (`torch.Tensor` of shape `(batch, tokens)`, *optional*):
                Non-zero for real tokens; unset, those with any character.
            token_type_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
                Non-zero for tokens of the second text of a pair. Each text is read by itself.
            output_hidden_states (`bool`, `int` or `list[int]`):
                whether to return the layers, or which: `None` stands for the others then.

        Raises:
            ValueError: for inputs of another shape, ids of no character, a hidden state that does not exist, or pairs
                with `config.stateful`.
        """
        config = self.config
        which = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        keep = choose_states(which, config.num_hidden_layers + 1)
        texts = self.read(input_ids, attention_mask, token_type_ids)
        layers = side_by_side(self.encoder(texts), texts.steps)
        mixed = self.dropout(texts.unpack(self.mix(layers, texts)))
        return ElmoModelOutput(last_hidden_state=mixed, hidden_states=unpacked(layers, texts, keep))

    @torch.compiler.disable
    def read(
        self,
        input_ids: torch.LongTensor | None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
    ) -> Texts:
        """Check a batch, and pack its texts; see `forward`."""
        check_tokens(input_ids, None, "batch", "tokens", "max_characters")
        config = self.config
        if input_ids.shape[2] != config.max_characters:
            raise ValueError(
                f"input_ids of shape {tuple(input_ids.shape)}: allowed is (batch, tokens, "
                f"{config.max_characters}), the character ids that ElmoTokenizer gives."
            )
        if input_ids.numel():
            low, high = (int(value) for value in input_ids.aminmax())
            if low < 0 or high >= config.num_characters:
                raise ValueError(
                    f"input_ids from {low} to {high}: allowed are character ids from 0 to "
                    f"{config.num_characters - 1} (num_characters)."
                )
        if attention_mask is None:
            attention_mask = (input_ids != 0).any(dim=2)
        check_mask(attention_mask, input_ids)
        mask = attention_mask != 0
        if token_type_ids is not None:
            if token_type_ids.shape != mask.shape:
                raise ValueError(
                    f"token_type_ids of shape {tuple(token_type_ids.shape)}: allowed is (batch, tokens), here "
                    f"{tuple(mask.shape)}."
                )
            if not (token_type_ids * mask).any():
                token_type_ids = None
            elif config.stateful:
                raise ValueError(
                    "token_type_ids of pairs with stateful=True: allowed are single texts, since a row continues the "
                    "same row of the batch before; or set config.stateful=False."
                )
        return Texts.of(input_ids, mask, token_type_ids)


def unpacked(layers: list[torch.Tensor], texts: Texts, keep: set[int]) -> tuple[torch.Tensor | None, ...] | None:
    """The packed layers to return, in their places in the batch."""
    if not keep:
        return None
    return tuple(texts.unpack(layer) if index in keep else None for index, layer in enumerate(layers))


class ElmoForPreTraining(ElmoPreTrainedModel):
    r"""
    The two language models, which share the token encoder and, by default, the softmax over words.

    Going right, each word of a text is predicted from those before it, and its end from all; going left, each word
    from those after it, and its beginning from all. `labels` `(batch, tokens + 1)` are the word ids of the tokens and
    of the text's end, as `ElmoTokenizer(..., return_labels=True)` gives them; -100 does not count, nor does padding.

    The mixture of the layers has no part in this and is not trained.

    Args:
        config ([`ElmoConfig`]): the configuration, with a `vocab_size`.

    Raises:
        ValueError: without a `vocab_size`.

    Example:

    ```python
    >>> from modeling_hire.configuration_elmo import ElmoConfig
    >>> from modeling_hire.modeling_elmo import ElmoForPreTraining
    >>> from modeling_hire.tokenization_elmo import ElmoTokenizer

    >>> tokenizer = ElmoTokenizer.build(["A text.", "Another text."])
    >>> sizes = {"filters": [[1, 8], [2, 16]], "cell_size": 64, "projection_size": 16}
    >>> model = ElmoForPreTraining(ElmoConfig(vocab_size=tokenizer.vocab_size, **sizes))
    >>> outputs = model(**tokenizer(["A text."], return_labels=True, return_tensors="pt"))
    >>> bool(outputs.loss == (outputs.forward_loss + outputs.backward_loss) / 2)
    True
    ```
    """

    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        if config.vocab_size is None:
            raise ValueError("vocab_size=None: allowed is the number of words to predict (tokenizer.vocab_size).")
        self.elmo = ElmoModel(config)
        # What has no part in the loss would have no gradient, on which distributed training stops.
        self.elmo.mix.requires_grad_(False)
        self.dropout = nn.Dropout(config.dropout)
        self.softmax = WordSoftmax(config)
        if not config.share_softmax:
            self.backward_softmax = WordSoftmax(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.softmax

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        directions: str = "both",
        output_logits: bool | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> ElmoPreTrainingOutput:
        r"""
        Args:
            input_ids, attention_mask, output_hidden_states: see [`ElmoModel`].
            token_type_ids: zeros, if given: texts are single here.
            labels (`torch.LongTensor` of shape `(batch, tokens + 1)`, *optional*): the words to predict.
            directions (`str`): `"both"`, or the one language model to run, `"forward"` or `"backward"`.
            output_logits (`bool`, *optional*): whether to return the scores of all words; unset, without labels.
            num_items_in_batch (`int`, *optional*): labels in the whole accumulated batch; divides each loss.

        Raises:
            ValueError: for what [`ElmoModel`] refuses, pairs, labels that do not fit, or another direction.
        """
        if directions not in DIRECTIONS:
            raise ValueError(f"directions={directions!r}: allowed is one of {', '.join(map(repr, DIRECTIONS))}.")
        config, runs = self.config, DIRECTIONS[directions]
        which = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        keep = choose_states(which, config.num_hidden_layers + 1)
        if keep and runs != BOTH:
            raise ValueError(f"output_hidden_states with directions={directions!r}: allowed is directions='both'.")
        texts = self.elmo.read(input_ids, attention_mask, token_type_ids)
        if texts.packing.shape[0] != len(input_ids):
            raise ValueError("token_type_ids of pairs: allowed are single texts, one a row.")
        words = None if labels is None else self._words(labels, input_ids, attention_mask)
        layers = self.elmo.encoder(texts, runs)

        output = ElmoPreTrainingOutput()
        for direction, states, softmax in self._predictions(layers[-1]):
            if words is not None:
                own = words.index_select(0, texts.packing.index)
                own = own if direction == "forward" else own[texts.steps.reverse]
                # A token predicts the one after it, in the order in which this direction reads.
                sources, targets = states.index_select(0, texts.steps.previous), own[len(labels) :]
                output[f"{direction}_loss"] = softmax.loss(sources, targets, num_items_in_batch)
            if output_logits or (output_logits is None and words is None):
                logits = softmax(states if direction == "forward" else turned(states, texts.steps))
                ends = (0, 1) if direction == "forward" else (1, 0)
                output[f"{direction}_logits"] = texts.unpack(logits, *ends)
        if words is not None:
            output.loss = sum(output[f"{direction}_loss"] for direction in runs) / len(runs)
        if keep:
            output.hidden_states = unpacked(side_by_side(layers, texts.steps), texts, keep)
        return output

    def _predictions(self, top: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, WordSoftmax]]:
        for direction, states in top.items():
            own = direction == "backward" and not self.config.share_softmax
            yield direction, self.dropout(states), self.backward_softmax if own else self.softmax

    def _words(
        self, labels: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """The word ids of beginning, tokens and end, `(batch * (tokens + 2),)`, where [`Texts`] has them."""
        config, (rows, columns) = self.config, input_ids.shape[:2]
        if labels.shape != (rows, columns + 1):
            raise ValueError(
                f"labels of shape {tuple(labels.shape)}: allowed is (batch, tokens + 1), here {(rows, columns + 1)}: "
                "the word ids of the tokens and of the text's end."
            )
        low, high = (int(value) for value in labels.aminmax())
        if (low < 0 and ((labels < 0) & (labels != -100)).any()) or high >= config.vocab_size:
            raise ValueError(
                f"labels from {low} to {high}: allowed are word ids from 0 to {config.vocab_size - 1} (vocab_size), "
                "and -100 where none counts."
            )
        mask = (input_ids != 0).any(dim=2) if attention_mask is None else attention_mask != 0
        # The label of the end comes right after that of the last token, wherever the padding stands.
        after = (mask * torch.arange(1, columns + 1, device=mask.device)).amax(dim=1, keepdim=True)
        end = labels.gather(1, after)
        begin = torch.where(end == -100, end, config.bos_token_id)
        return torch.cat([begin, labels[:, :columns], end], dim=1).flatten()


class ElmoForSequenceClassification(ElmoPreTrainedModel):
    r"""
    ELMo for one label a text or pair of texts: a class, several classes at once, or a score.

    Both texts are read by themselves; their tokens are compared by attention (see [`ElmoMatcher`]), pooled and
    classified. `labels` as in every such model: class ids `(batch,)`; scores `(batch,)` with
    `config.num_labels == 1`; zeros and ones `(batch, num_labels)` for several classes at once. Logits:
    `(batch, num_labels)`.

    Args:
        config ([`ElmoConfig`]): the configuration.

    Example:

    ```python
    >>> from modeling_hire.configuration_elmo import ElmoConfig
    >>> from modeling_hire.modeling_elmo import ElmoForSequenceClassification
    >>> from modeling_hire.tokenization_elmo import ElmoTokenizer

    >>> config = ElmoConfig(filters=[[1, 8], [2, 16]], cell_size=64, projection_size=16, num_labels=3)
    >>> batch = ElmoTokenizer()(["A man sleeps."], ["Nobody is awake."], return_tensors="pt")
    >>> ElmoForSequenceClassification(config).eval()(**batch).logits.shape
    torch.Size([1, 3])
    ```
    """

    def __init__(self, config: ElmoConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.elmo = ElmoModel(config)
        self.matcher = ElmoMatcher(config)
        self.classifier = nn.Linear(config.classifier_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> ElmoClassifierOutput:
        r"""
        Args:
            input_ids, attention_mask, token_type_ids, kwargs: see [`ElmoModel`].
            labels (`torch.Tensor`, *optional*): what the class says.
            num_items_in_batch (`int`, *optional*): labels in the whole accumulated batch; divides the loss.
        """
        outputs = self.elmo(input_ids, attention_mask, token_type_ids, return_dict=True, **kwargs)
        states = outputs.last_hidden_state
        mask = (input_ids != 0).any(dim=2) if attention_mask is None else attention_mask != 0
        second = torch.zeros_like(mask) if token_type_ids is None else mask & (token_type_ids != 0)
        logits = self.classifier(self.matcher(states, mask & ~second, second))
        loss = None if labels is None else sequence_loss(logits, labels, self.config, num_items_in_batch)
        return ElmoClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


# So that every checkpoint carries this code, those that a trainer saves along the way too.
ElmoConfig.register_for_auto_class()
ElmoModel.register_for_auto_class("AutoModel")
ElmoForPreTraining.register_for_auto_class("AutoModelForPreTraining")
ElmoForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
