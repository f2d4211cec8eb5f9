"""Masked language modelling beside another loss, so that an encoder does not forget its words."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, PreTrainedTokenizerBase

from ..modeling_multi_task import WordHead


class MaskedWords:
    """The masked language modelling loss of a batch of texts, in one forward pass with their embeddings.

    The head is new. It is a part of the model while it trains (`model.word_head`), so that it is optimised, saved in
    checkpoints and resumed like the rest; `detach_word_head` takes it off.

    Args:
        tokenizer: knows the mask token and the special tokens.
        args: `mlm_probability`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, args: Any):
        self.masker = DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.mlm_probability)

    def __call__(self, model: nn.Module, texts: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings of the texts as they are, and the loss on their masked copies.

        Args:
            model: the sentence encoder, wrapped for training or not.
            texts: encoder inputs, `(texts, tokens)`.
        """
        count, device = len(texts["input_ids"]), texts["input_ids"].device
        masked, labels = self.masker.torch_mask_tokens(texts["input_ids"].cpu().clone())
        both = {
            name: torch.cat([value, masked.to(device) if name == "input_ids" else value])
            for name, value in texts.items()
        }
        outputs = model(**both)
        chosen = labels.to(device) != -100
        states = outputs["last_hidden_state"][count:][chosen]
        inner = getattr(model, "module", model)
        logits = inner.word_head(states, inner.get_input_embeddings().weight)
        loss = functional.cross_entropy(logits.float(), labels.to(device)[chosen], reduction="sum")
        # A batch may have no masked word.
        return outputs["pooler_output"][:count], loss / chosen.sum().clamp(min=1)


def check_masked_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, args: Any) -> None:
    """Raise a `ValueError` if this model cannot learn masked words, and `mlm_weight` says that it is to."""
    if not args.mlm_weight:
        return
    where = f"mlm_weight={args.mlm_weight}"
    if tokenizer is None or tokenizer.mask_token is None:
        raise ValueError(f"{where}: this tokenizer has no mask token; allowed is 0.")
    if hasattr(model, "peft_config"):
        raise ValueError(
            f"{where} and peft='lora': an adapter has no place for the new word head; give one of the two."
        )
    if not any(parameter.requires_grad for parameter in model.base_model.encoder.parameters()):
        raise ValueError(f"{where} and freeze_encoder=True: the encoder cannot learn words; give one of the two.")


def attach_word_head(model: PreTrainedModel) -> set[str]:
    """Put a new head on the model, see `check_masked_words`; the names of its parameters."""
    vocab_size, embedding_size = model.get_input_embeddings().weight.shape
    head = WordHead(model.config.hidden_size, embedding_size, vocab_size)
    model.word_head = head.to(model.device, model.dtype)
    model.word_head.apply(model._init_weights)
    return {f"word_head.{name}" for name, _ in model.word_head.named_parameters()}


def detach_word_head(model: PreTrainedModel) -> None:
    """Take the head off again."""
    if hasattr(model, "word_head"):
        del model.word_head
