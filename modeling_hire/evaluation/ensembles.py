"""Ensembles: several fine-tuned models answer as one, by the sum of their probabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..configuration_layerwise import is_integer
from ..data.spans import make_windows
from .ensemble_inputs import check_texts, make_inputs, run_questions, run_texts, take_outputs, tokenize
from .ensemble_labels import match_labels
from .ensemble_members import Member, check_same_ids, make_members
from .ensemble_outputs import (
    EnsembleClassifierOutput,
    EnsembleSpanOutput,
    FoundSpans,
    TextPrediction,
    mean_distribution,
)
from .ensemble_spans import SpanSum, by_question
from .predict_spans import SpanAnswer, as_answer, as_lists
from .spans import Candidates, decode_spans


Tokenizers = PreTrainedTokenizerBase | Sequence[PreTrainedTokenizerBase | None] | None


class _Ensemble(nn.Module):
    """What ensembles of all kinds share: their members, and where checkpoints are loaded to."""

    auto_class: Any

    def __init__(
        self,
        members: Sequence[PreTrainedModel | str | os.PathLike],
        tokenizers: Tokenizers,
        revision: str | Sequence[str | None] | None,
        dtype: torch.dtype,
    ):
        super().__init__()
        self.members = make_members(members, self.auto_class, tokenizers, revision)
        # Checkpoints are no submodules: they come and go.
        self.given = nn.ModuleList(member.given for member in self.members if member.given is not None)
        # An empty tensor goes where `.to()` sends this module, and checkpoints are loaded to where it is.
        self.register_buffer("_place", torch.empty(0, dtype=dtype), persistent=False)
        self._same_ids = False

    def __len__(self) -> int:
        return len(self.members)

    def _run(self, member: Member, function: Callable[[PreTrainedModel], Any]) -> Any:
        return member.run(function, self._place.device, self._place.dtype)

    def _forward(self, names: tuple[str, ...], inputs: dict[str, torch.Tensor | None]) -> list[list[torch.Tensor]]:
        """Each member's outputs of the given names for one tensor of token ids."""
        if not self._same_ids:
            check_same_ids(self.members)
            self._same_ids = True

        def call(member: Member, model: PreTrainedModel) -> list[torch.Tensor]:
            given = {name: value.to(model.device) for name, value in inputs.items() if value is not None}
            if "token_type_ids" in given and not member.takes(model, "token_type_ids"):
                del given["token_type_ids"]
            return [value.to(inputs["input_ids"].device) for value in take_outputs(member, model, given, names)]

        return [self._run(member, lambda model, member=member: call(member, model)) for member in self.members]


class EnsembleForSequenceClassification(_Ensemble):
    """Several text classifiers as one: the sum of their probabilities (Kao et al., arXiv 2001.09309).

    Probabilities are divided by the number of members, which makes them sum to one. Members that predict a score are
    averaged. A member is a model, or a checkpoint by name, which is loaded when its turn comes and let go before the
    next one's: however many there are, one at a time is in memory. Members may be of different encoders, depths and
    tokenizers. It is for inference: `forward` runs without gradients and in evaluation mode, whatever mode the members
    are in.

    Args:
        members: models of this library or of transformers, and repositories or folders of checkpoints.
        tokenizers: one for all members, or one a member. A checkpoint's own is used where none is given; a model needs
            one for `predict`.
        revision: of checkpoints on the Hub: commit, branch or tag, one for all or one a member.
        dtype: precision in which checkpoints are loaded.
        label_names: the classes in the order that outputs shall have, by default the first member's. Classes are
            matched by name, whatever the order in which a member has them. Members whose classes have no names
            (`LABEL_0`, `LABEL_1`, ...) can only be combined with each other, or where this argument names them.

    Attributes:
        label_names: the classes in the order of the outputs; `None` if members predict a score.

    Raises:
        ValueError: if there are no members, one of them cannot be read or is of another task, some predict classes
            and some a score, or their classes differ.

    Example:
        >>> import torch
        >>> from transformers import BertConfig
        >>> from modeling_hire import HireConfig, HireForSequenceClassification
        >>> from modeling_hire.evaluation.ensembles import EnsembleForSequenceClassification
        >>> def classifier(layers, names):
        ...     encoder = BertConfig(hidden_size=32, num_hidden_layers=layers, num_attention_heads=2)
        ...     config = HireConfig.preset("fast", encoder, id2label=dict(enumerate(names)))
        ...     return HireForSequenceClassification(config).eval()
        >>> one, other = classifier(2, ["no", "yes"]), classifier(3, ["yes", "no"])
        >>> ensemble = EnsembleForSequenceClassification([one, other])
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> with torch.no_grad():
        ...     apart = [one(ids).logits.softmax(-1), other(ids).logits.softmax(-1).flip(-1)]
        >>> ensemble.label_names, bool(ensemble(ids).probabilities.allclose((apart[0] + apart[1]) / 2))
        (('no', 'yes'), True)
    """

    auto_class = AutoModelForSequenceClassification

    def __init__(
        self,
        members: Sequence[PreTrainedModel | str | os.PathLike],
        tokenizers: Tokenizers = None,
        *,
        revision: str | Sequence[str | None] | None = None,
        dtype: torch.dtype = torch.float32,
        label_names: Sequence[str] | None = None,
    ):
        super().__init__(members, tokenizers, revision, dtype)
        self.label_names, self._orders = match_labels(self.members, label_names)

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
    ) -> EnsembleClassifierOutput:
        """Classify token ids, where they mean the same to all members.

        Args:
            input_ids (`(batch, tokens)`), attention_mask, token_type_ids: as for any model; the last goes to the
                members that have such.

        Raises:
            ValueError: if the tokenizers are known and differ.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self._forward(("logits",), inputs)
        logits = [values[..., order] for (values,), order in zip(outputs, self._orders, strict=True)]
        return self.combine(torch.stack(logits))

    def combine(self, member_logits: torch.Tensor) -> EnsembleClassifierOutput:
        """What the ensemble says, given what its members say.

        Args:
            member_logits: `(members, batch, labels)`, the labels in the ensemble's order.
        """
        if self.label_names is None:
            return EnsembleClassifierOutput(logits=member_logits.mean(0), member_logits=member_logits)
        logits, mean = mean_distribution(member_logits)
        return EnsembleClassifierOutput(logits=logits, probabilities=mean, member_logits=member_logits)

    @torch.no_grad()
    def predict_logits(
        self,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        batch_size: int = 32,
        max_length: int = 512,
    ) -> EnsembleClassifierOutput:
        """The outputs for texts, each member reading them with its own tokenizer.

        Args:
            texts, text_pairs: texts, or first and second texts of pairs.
            batch_size: how many of them are run at a time. It does not matter to the result.
            max_length: longest input in tokens; longer ones are cut, of a pair the longer text first. It is lowered,
                member by member, to what model and tokenizer can take.

        Returns:
            The outputs of all texts, on the CPU and in double precision.

        Raises:
            ValueError: if a number is out of range, texts are no strings, there are not as many pairs as texts, or a
                tokenizer is not known.
        """
        check_numbers(batch_size=batch_size, max_length=max_length)
        check_texts(texts, text_pairs)
        inputs = make_inputs(self.members, max_length, lambda *how: tokenize(how[0], texts, text_pairs, how[1]))
        logits = [
            self._run(member, lambda model, m=member, i=own: run_texts(m, model, i, batch_size))[:, order]
            for member, own, order in zip(self.members, inputs, self._orders, strict=True)
        ]
        return self.combine(torch.stack(logits).double())

    def predict(
        self,
        texts: str | Sequence[str],
        text_pairs: str | Sequence[str] | None = None,
        *,
        batch_size: int = 32,
        max_length: int = 512,
    ) -> TextPrediction | list[TextPrediction]:
        """Classify or score texts: see [`predict_logits`], which takes lists only.

        Returns:
            One prediction for a single string, and else a list of predictions.
        """
        single = isinstance(texts, str)
        if single and not isinstance(text_pairs, str | None):
            raise ValueError("text_pairs: several for one text; allowed are as many of one as of the other")
        many = [[x] if isinstance(x, str) else x for x in (texts, text_pairs)]
        outputs = self.predict_logits(*many, batch_size=batch_size, max_length=max_length)
        if self.label_names is None:
            found = [TextPrediction(None, score, {}) for score in outputs.logits[:, 0].tolist()]
        else:
            rows = [dict(zip(self.label_names, row, strict=True)) for row in outputs.probabilities.tolist()]
            best = [max(row, key=lambda name, row=row: row[name]) for row in rows]
            found = [TextPrediction(name, row[name], row) for name, row in zip(best, rows, strict=True)]
        return found[0] if single else found


class EnsembleForQuestionAnswering(_Ensemble):
    """Several models that find answers as one: the sum of their probabilities (Kao et al., arXiv 2001.09309).

    The members' probabilities of where the answer starts, of where it ends, and of no answer are added, and the spans
    decoded once: see [`SpanSum`] for what these are over. Members whose tokenizers cut a context into the same pieces
    are added token by token. Where they do not, starts and ends are added at the characters of the context where
    tokens start and end, which is the one place that all tokenizers share.

    As for the members and when they are in memory, see [`EnsembleForSequenceClassification`].

    Args:
        members: models of this library or of transformers, and repositories or folders of checkpoints.
        tokenizers: one for all members, or one a member. A checkpoint's own is used where none is given; a model needs
            one for `predict`.
        revision: of checkpoints on the Hub: commit, branch or tag, one for all or one a member.
        dtype: precision in which checkpoints are loaded.

    Raises:
        ValueError: if there are no members, or one of them cannot be read or is of another task.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import BertConfig, PreTrainedTokenizerFast
        >>> from modeling_hire import HireConfig, HireForQuestionAnswering
        >>> from modeling_hire.evaluation.ensembles import EnsembleForQuestionAnswering
        >>> words = {word: i for i, word in enumerate(["[PAD]", "who", "Ann", "met", "Bob"])}
        >>> backend = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
        >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
        >>> def reader(layers):
        ...     encoder = BertConfig(vocab_size=5, hidden_size=32, num_hidden_layers=layers, num_attention_heads=2)
        ...     return HireForQuestionAnswering(HireConfig.preset("fast", encoder))
        >>> ensemble = EnsembleForQuestionAnswering([reader(2), reader(3)], tokenizer)
        >>> ensemble.predict("who", "Ann met Bob").text in "Ann met Bob"
        True
    """

    auto_class = AutoModelForQuestionAnswering

    def __init__(
        self,
        members: Sequence[PreTrainedModel | str | os.PathLike],
        tokenizers: Tokenizers = None,
        *,
        revision: str | Sequence[str | None] | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(members, tokenizers, revision, dtype)

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        context_mask: torch.Tensor | None = None,
    ) -> EnsembleSpanOutput:
        """Start and end of the answer in token ids, where they mean the same to all members.

        Each row is a window of its own; [`find_spans`] is for contexts of several.

        Args:
            input_ids (`(batch, tokens)`), attention_mask, token_type_ids: as for any model; the last goes to the
                members that have such.
            context_mask (`(batch, tokens)`): 1 where an answer may be and at the place that stands for no answer; by
                default all tokens that are no padding.

        Raises:
            ValueError: if the tokenizers are known and differ.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self._forward(("start_logits", "end_logits"), inputs)
        starts, ends = (torch.stack([member[side] for member in outputs]) for side in (0, 1))
        chosen = attention_mask if context_mask is None else context_mask
        if chosen is not None:
            outside = ~chosen.to(starts.device).bool()
            starts, ends = (logits.masked_fill(outside, -torch.inf) for logits in (starts, ends))
        (start_logits, start_mean), (end_logits, end_mean) = mean_distribution(starts), mean_distribution(ends)
        return EnsembleSpanOutput(start_logits, end_logits, start_mean, end_mean)

    @torch.no_grad()
    def find_spans(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        *,
        batch_size: int = 32,
        max_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int | None = 64,
        max_answer_length: int = 30,
        n_best_size: int = 20,
        names: Sequence[str] | None = None,
    ) -> FoundSpans:
        """The best spans of questions, by the ensemble and by each member alone, each with its own tokenizer.

        Args:
            questions, contexts: as many of one as of the other.
            batch_size: how many windows are run at a time. It does not matter to the result.
            max_length, doc_stride, max_query_length, names: see `make_windows`. The length is lowered, member by
                member, to what model and tokenizer can take.
            max_answer_length, n_best_size: see `decode_spans`.

        Raises:
            ValueError: as `predict_spans`.
        """
        check_numbers(
            batch_size=batch_size,
            max_length=max_length,
            max_answer_length=max_answer_length,
            n_best_size=n_best_size,
        )
        asked, read = as_lists(questions, contexts)
        windows = make_inputs(
            self.members,
            max_length,
            lambda *how: make_windows(how[0], asked, read, how[1], doc_stride, max_query_length, names=names),
        )
        places = [by_question(own) for own in windows]
        sums = [SpanSum([own[at[row]] for own, at in zip(windows, places, strict=True)]) for row in range(len(asked))]
        alone: list[list[Candidates]] = []
        for member, own, at in zip(self.members, windows, places, strict=True):
            starts, ends = self._run(member, lambda model, m=member, w=own: run_questions(m, model, w, batch_size))
            alone.append(decode_spans(own, starts, ends, len(asked), n_best_size, max_answer_length))
            for total, place in zip(sums, at, strict=True):
                total.add(own[place], starts[place], ends[place])
        return FoundSpans([total.decode(n_best_size, max_answer_length) for total in sums], alone)

    def predict(
        self,
        questions: str | Sequence[str],
        contexts: str | Sequence[str],
        *,
        null_threshold: float | None = None,
        batch_size: int = 32,
        max_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int | None = 64,
        max_answer_length: int = 30,
        n_best_size: int = 20,
    ) -> SpanAnswer | list[SpanAnswer]:
        """Find the answers to questions in their contexts: arguments and answers are those of `predict_spans`.

        Raises:
            ValueError: as `predict_spans`, or if the tokenizer of a member is not known.
        """
        asked, read = as_lists(questions, contexts)
        found = self.find_spans(
            asked,
            read,
            batch_size=batch_size,
            max_length=max_length,
            doc_stride=doc_stride,
            max_query_length=max_query_length,
            max_answer_length=max_answer_length,
            n_best_size=n_best_size,
        )
        answers = [as_answer(one, text, null_threshold) for one, text in zip(found.ensemble, read, strict=True)]
        return answers[0] if isinstance(questions, str) and isinstance(contexts, str) else answers


def check_numbers(**values: int) -> None:
    """Raise a `ValueError` unless all are whole numbers of at least 1."""
    for name, value in values.items():
        if not is_integer(value, 1):
            raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
