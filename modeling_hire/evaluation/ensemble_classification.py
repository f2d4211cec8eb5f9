"""Ensembles of text classifiers, and of models that score texts."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from .ensemble_base import Ensemble, Tokenizers
from .ensemble_inputs import TextInputs, check_texts, make_inputs, run_texts, tokenize
from .ensemble_labels import match_labels
from .ensemble_outputs import EnsembleClassifierOutput, TextPrediction, mean_distribution
from .predict_spans import check_numbers


class EnsembleForSequenceClassification(Ensemble):
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
        super().__init__(members, tokenizers, revision=revision, dtype=dtype)
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
        outputs = self.run_tensors(("logits",), inputs)
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

    def encode(
        self, texts: Sequence[str], text_pairs: Sequence[str] | None = None, *, max_length: int = 512
    ) -> list[TextInputs]:
        """Each member's inputs for texts, by its own tokenizer; the first step of `predict`.

        Args:
            texts, text_pairs: texts, or first and second texts of pairs.
            max_length: longest input in tokens; longer ones are cut, of a pair the longer text first. It is lowered,
                member by member, to what model and tokenizer can take.

        Raises:
            ValueError: if the number is out of range or leaves no room for text, texts are no strings, there are not
                as many pairs as texts, or a tokenizer is not known.
        """
        check_numbers(max_length=max_length)
        check_texts(texts, text_pairs)
        return make_inputs(self.members, max_length, lambda *how: tokenize(how[0], texts, text_pairs, how[1]))

    @torch.no_grad()
    def run(self, inputs: Sequence[TextInputs], *, batch_size: int = 32) -> EnsembleClassifierOutput:
        """Run every member over its inputs, one member after the other; the second step of `predict`.

        Args:
            inputs: what `encode` returned.
            batch_size: how many of them are run at a time. It does not matter to the result.

        Returns:
            The outputs of all texts, on the CPU and in double precision.
        """
        check_numbers(batch_size=batch_size)
        logits = [
            self.run_member(member, lambda model, m=member, i=own.rows: run_texts(m, model, i, batch_size))[:, order]
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
        """Classify or score texts, each member reading them with its own tokenizer.

        Args:
            texts, text_pairs: one text or several; of pairs, the first and the second ones.
            batch_size, max_length: see `run` and `encode`.

        Returns:
            One prediction for a single string, and else a list of predictions.

        Raises:
            ValueError: as `encode`.
        """
        check_numbers(batch_size=batch_size)
        single = isinstance(texts, str)
        if single and not isinstance(text_pairs, str | None):
            raise ValueError("text_pairs: several for one text; allowed are as many of one as of the other")
        many = [[x] if isinstance(x, str) else x for x in (texts, text_pairs)]
        outputs = self.run(self.encode(*many, max_length=max_length), batch_size=batch_size)
        if self.label_names is None:
            found = [TextPrediction(None, score, {}) for score in outputs.logits[:, 0].tolist()]
        else:
            rows = [dict(zip(self.label_names, row, strict=True)) for row in outputs.probabilities.tolist()]
            best = [max(row, key=lambda name, row=row: row[name]) for row in rows]
            found = [TextPrediction(name, row[name], row) for name, row in zip(best, rows, strict=True)]
        return found[0] if single else found
