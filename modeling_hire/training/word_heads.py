"""The word heads of masked language models of transformers, from and to that of a multi-task model."""

from __future__ import annotations

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from ..modeling_multi_task import MultiTaskModel, WordHead


_BERT = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
_ROBERTA = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
# Where the dense layer, the norm and the bias of the output lie, by model type.
WORD_HEADS = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA,
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "electra": ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
}


def paired(head: WordHead, masked: PreTrainedModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The parameters of a multi-task model's word head, each with its like in a masked language model."""
    dense, norm, bias = WORD_HEADS[masked.config.model_type]
    theirs = dict(masked.named_parameters(remove_duplicate=False))
    return [
        (head.dense.weight, theirs[f"{dense}.weight"]),
        (head.dense.bias, theirs[f"{dense}.bias"]),
        (head.norm.weight, theirs[f"{norm}.weight"]),
        (head.norm.bias, theirs[f"{norm}.bias"]),
        (head.bias, theirs[bias]),
    ]


@torch.no_grad()
def adopt_word_head(model: MultiTaskModel, task: str, checkpoint: str, revision: str | None = None) -> set[str]:
    """Take the word head of a masked language model's checkpoint into a multi-task model.

    Returns:
        The names of the parameters that were taken over; none if the checkpoint has no such head.
    """
    config = model.config.encoder_config
    if config.model_type not in WORD_HEADS:
        return set()
    masked, info = AutoModelForMaskedLM.from_pretrained(
        checkpoint, revision=revision, dtype=torch.float32, use_safetensors=True, output_loading_info=True
    )
    head = model.heads[task]
    # Tied parameters of the output are not in a file.
    missing = [name for name in info["missing_keys"] if name.startswith(WORD_HEADS[config.model_type][:2])]
    if missing or head.bias.shape != paired(head, masked)[-1][1].shape:
        return set()
    for own, other in paired(head, masked):
        own.copy_(other)
    return {f"heads.{task}.{name}" for name, _ in head.named_parameters()}


@torch.no_grad()
def to_masked_lm(model: MultiTaskModel, task: str) -> PreTrainedModel | None:
    """The encoder and a word head as a masked language model of transformers; `None` where that class is not known."""
    config = model.config.encoder_config
    if config.model_type not in WORD_HEADS or model.config.layer_plan is not None:
        return None
    masked = AutoModelForMaskedLM.from_config(config, dtype=model.dtype)
    masked.base_model.load_state_dict(model.encoder.state_dict(), strict=False)
    for own, other in paired(model.heads[task], masked):
        other.copy_(own)
    masked.tie_weights()
    return masked.eval()
