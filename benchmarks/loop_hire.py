"""HIRE as one would first write it: a loop over the layers, the library's GRU over packed sequences in each.

It computes what the `paper` preset computes and takes its weights, so that results can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers.utils import ModelOutput

from modeling_hire import HireForSequenceClassification
from modeling_hire.modeling_hire_layers import LayerScorer


def _library_gru(gru: nn.GRU) -> nn.GRU:
    """A plain `nn.GRU` with the weights of `gru`."""
    copied = nn.GRU(gru.input_size, gru.hidden_size, gru.num_layers, batch_first=True, bidirectional=True)
    copied.load_state_dict(gru.state_dict())
    return copied


class LoopScorer(nn.Module):
    """A score for each layer of each example, layer by layer.

    Args:
        scorer (`LayerScorer`): its weights are copied.
    """

    def __init__(self, scorer: LayerScorer):
        super().__init__()
        self.dropout = nn.Dropout(scorer.summary.dropout.p)
        self.gru = _library_gru(scorer.summary.gru)
        self.score = nn.Linear(scorer.head.in_features, 1)
        self.score.load_state_dict(scorer.head.state_dict())

    def forward(self, layers: Sequence[torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
        """Padded layers, each `(batch, tokens, hidden_size)`, to `(batch, layers)`."""
        lengths = attention_mask.sum(dim=1).tolist()
        scores = []
        for layer in layers:
            packed = pack_padded_sequence(self.dropout(layer), lengths, batch_first=True, enforce_sorted=False)
            _, final_states = self.gru(packed)
            scores.append(torch.relu(self.score(final_states.transpose(0, 1).flatten(1))))
        return torch.cat(scores, dim=1)


class LoopHire(nn.Module):
    """HIRE for a sentence task, layer by layer.

    Args:
        model (`HireForSequenceClassification`): of the `paper` or `paper-half` preset. Its encoder and head are used,
            the weights of its GRUs copied.
    """

    def __init__(self, model: HireForSequenceClassification):
        super().__init__()
        self.indices = model.config.layer_indices
        self.encoder, self.classifier = model.hire.encoder, model.classifier
        self.scorer = LoopScorer(model.hire.weighting.scorers[0])
        self.dropout = nn.Dropout(model.hire.fusion.dropout.p)
        self.fusion = _library_gru(model.hire.fusion.gru)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> ModelOutput:
        encoded = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        layers = [encoded.hidden_states[index] for index in self.indices]
        weights = self.scorer(layers, attention_mask).softmax(dim=1)
        mixture = sum(weights[:, i, None, None] * layer for i, layer in enumerate(layers))
        last = encoded.hidden_states[-1]
        matched = self.dropout(torch.cat([last, mixture, last + mixture, last * mixture], dim=-1))
        lengths = attention_mask.sum(dim=1).tolist()
        packed = pack_padded_sequence(matched, lengths, batch_first=True, enforce_sorted=False)
        fused, _ = pad_packed_sequence(self.fusion(packed)[0], batch_first=True)
        logits = self.classifier(fused[:, 0])
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return ModelOutput({"loss": loss, "logits": logits})
