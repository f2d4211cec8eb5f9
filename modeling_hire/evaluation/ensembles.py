"""Ensembles: several fine-tuned models answer as one, by the sum of their probabilities."""

from .ensemble_answering import EnsembleForQuestionAnswering
from .ensemble_classification import EnsembleForSequenceClassification
from .ensemble_outputs import EnsembleClassifierOutput, EnsembleSpanOutput, FoundSpans, TextPrediction


__all__ = [
    "EnsembleClassifierOutput",
    "EnsembleForQuestionAnswering",
    "EnsembleForSequenceClassification",
    "EnsembleSpanOutput",
    "FoundSpans",
    "TextPrediction",
]
