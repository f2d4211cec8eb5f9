"""Ensembles of models that find answers in texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForQuestionAnswering

from ..data.spans import Window, make_windows
from .ensemble_base import Ensemble
from .ensemble_inputs import make_inputs, run_questions
from .ensemble_outputs import EnsembleSpanOutput, FoundSpans, mean_distribution
from .ensemble_spans import SpanSum, by_question
from .predict_spans import SpanAnswer, as_answer, as_lists, check_numbers, check_threshold
from .spans import Candidates, decode_spans


class EnsembleForQuestionAnswering(Ensemble):
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

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        context_mask: torch.Tensor | None = None,
    ) -> EnsembleSpanOutput:
        """Start and end of the answer in token ids, where they mean the same to all members.

        Each row is a window of its own; `predict` is for contexts of several.

        Args:
            input_ids (`(batch, tokens)`), attention_mask, token_type_ids: as for any model; the last goes to the
                members that have such.
            context_mask (`(batch, tokens)`): 1 where an answer may be and at the place that stands for no answer; by
                default all tokens that are no padding.

        Raises:
            ValueError: if the tokenizers are known and differ.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self.run_tensors(("start_logits", "end_logits"), inputs)
        starts, ends = (torch.stack([member[side] for member in outputs]) for side in (0, 1))
        chosen = attention_mask if context_mask is None else context_mask
        if chosen is not None:
            outside = ~chosen.to(starts.device).bool()
            starts, ends = (logits.masked_fill(outside, -torch.inf) for logits in (starts, ends))
        (start_logits, start_mean), (end_logits, end_mean) = mean_distribution(starts), mean_distribution(ends)
        return EnsembleSpanOutput(start_logits, end_logits, start_mean, end_mean)

    def cut(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        *,
        max_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int | None = 64,
        names: Sequence[str] | None = None,
    ) -> list[list[Window]]:
        """Each member's windows of the contexts, by its own tokenizer; the first step of `predict`.

        Args:
            questions, contexts: as many of one as of the other.
            max_length, doc_stride, max_query_length, names: see `make_windows`. The length is lowered, member by
                member, to what model and tokenizer can take.

        Raises:
            ValueError: as `make_windows`, or if the tokenizer of a member is not known.
        """
        check_numbers(max_length=max_length)
        asked, read = as_lists(questions, contexts)
        return make_inputs(
            self.members,
            max_length,
            lambda *how: make_windows(how[0], asked, read, how[1], doc_stride, max_query_length, names=names),
        )

    @torch.no_grad()
    def run(
        self,
        windows: Sequence[Sequence[Window]],
        *,
        batch_size: int = 32,
        max_answer_length: int = 30,
        n_best_size: int = 20,
    ) -> FoundSpans:
        """Run every member over its windows, one member after the other; the second step of `predict`.

        Args:
            windows: what `cut` returned.
            batch_size: how many windows are run at a time. It does not matter to the result.
            max_answer_length, n_best_size: see `decode_spans`.
        """
        check_numbers(batch_size=batch_size, max_answer_length=max_answer_length, n_best_size=n_best_size)
        places = [by_question(own) for own in windows]
        count = len(places[0])
        sums = [SpanSum([own[at[row]] for own, at in zip(windows, places, strict=True)]) for row in range(count)]
        alone: list[list[Candidates]] = []
        for member, own, at in zip(self.members, windows, places, strict=True):
            starts, ends = self.run_member(
                member, lambda model, m=member, w=own: run_questions(m, model, w, batch_size)
            )
            alone.append(decode_spans(own, starts, ends, count, n_best_size, max_answer_length))
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
        numbers = {"batch_size": batch_size, "max_answer_length": max_answer_length, "n_best_size": n_best_size}
        check_numbers(**numbers)
        check_threshold(null_threshold)
        asked, read = as_lists(questions, contexts)
        how = {"max_length": max_length, "doc_stride": doc_stride, "max_query_length": max_query_length}
        found = self.run(self.cut(asked, read, **how), **numbers)
        answers = [as_answer(one, text, null_threshold) for one, text in zip(found.ensemble, read, strict=True)]
        return answers[0] if isinstance(questions, str) and isinstance(contexts, str) else answers
