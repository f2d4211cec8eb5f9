"""The reconstruction probe: what a pre-trained output layer reads in hidden layers it was never trained on.

An unmasked text goes through the encoder of a masked language model; every layer's hidden states, the embedding output
included, go through the model's own output layer (Kao et al., 2020, arXiv 2001.09309). A token counts as recognised
if its own logit is the highest. The same is asked of the top of stacks from which a layer was taken, or in which it is
run several times. Nothing is trained.

Layers go by the number of their hidden state: 0 is the embedding output, 1 the first block's. A layer plan lists the
blocks in the order in which they run, the first one being 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..modeling_encoder_layers import install_layer_plan
from .reconstruction_head import OutputLayer, evaluating, find_final_norm, read_states, share_weights
from .reconstruction_results import ChangedStack, DecodedLayer, LayerScores, ProbedStack
from .reconstruction_scores import ScoreCounter, Scores


Texts = Sequence[str] | Sequence[Mapping[str, Any]]


class ReconstructionProbe:
    """Feeds every hidden layer of a masked language model to the model's own output layer.

    Logits are made for `chunk_size` tokens at a time, so that neither texts nor layers multiply the memory of the
    vocabulary. Results do not depend on `batch_size`, `chunk_size` or padding (but for rounding, and for the few
    encoders whose own states depend on padding).

    Args:
        model (`PreTrainedModel`): any `AutoModelForMaskedLM` model. It is not changed.
        tokenizer (`PreTrainedTokenizerBase`): its tokenizer; `all_special_ids` says which tokens are special.
        batch_size (`int`): texts at a time.
        max_length (`int`): longest text in tokens, special tokens included; longer ones are cut.
        chunk_size (`int`): tokens whose logits are held at a time.

    Raises:
        ValueError: for a wrong size, or a model whose output layer cannot be fed other hidden states.

    Example:

    ```python
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
    >>> from modeling_hire.analysis.reconstruction import ReconstructionProbe

    >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "the": 2, "cat": 3}, unk_token="[UNK]"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> probe = ReconstructionProbe(BertForMaskedLM(BertConfig(vocab_size=4, **sizes)), tokenizer)
    >>> stack = probe.layers(["the cat", "the dog"])
    >>> [(entry.layer, entry.content.tokens, entry.everything.tokens) for entry in stack.layers]
    [(0, 3, 4), (1, 3, 4), (2, 3, 4)]
    ```
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int = 32,
        max_length: int = 128,
        chunk_size: int = 256,
    ):
        for name, value in (("batch_size", batch_size), ("max_length", max_length), ("chunk_size", chunk_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: allowed is a whole number from 1 on.")
        self.model, self.tokenizer = model, tokenizer
        self.batch_size, self.max_length, self.chunk_size = batch_size, max_length, chunk_size
        with evaluating(model):
            self.head = OutputLayer(model)
            self.encoder = self.head.encoder
            self.final_norm = find_final_norm(self.encoder)
            states, _ = read_states(self.encoder, {"input_ids": self.head.example_ids})
        self.num_blocks = len(states) - 1

    # ---- what can be asked ------------------------------------------------------------------------------------------

    def layers(self, texts: Texts, plan: Sequence[int] | None = None) -> ProbedStack:
        """Probe every layer.

        Args:
            texts: texts, or rows of token ids as [`encode`] makes them.
            plan: blocks in the order in which to run them, weights tied; each once if not given. Before any training
                this is what a model with copied blocks computes. The cosine is to the last layer of this stack.

        Raises:
            ValueError: if there are no texts, or the plan cannot be executed.
        """
        encoder, executed = self._planned(plan)
        norms = [True, False] if self.final_norm else [True]
        counters = [[self._counter() for _ in norms] for _ in range(len(executed) + 1)]
        changed, cosines = encoder is not self.encoder, []
        for batch, mask in self._batches(texts):
            ids, special = self._tokens(batch, mask)
            with evaluating(self.model):
                states, before_norm = read_states(encoder, batch, self.final_norm)
                if changed:
                    original = read_states(self.encoder, batch)[0][-1]
                    cosines.append(_cosine(states[-1][mask], original[mask])[~special].double())
                for column, normed in enumerate(norms):
                    last = (states[-1] if normed else before_norm)[mask]
                    for layer, state in enumerate(states):
                        at_top = layer == len(executed)
                        own = last if at_top else state[mask]
                        self._count(counters[layer][column], own, last, ids, special, normed and not at_top)
        scored = [
            [
                LayerScores(
                    layer, executed[layer - 1] if layer else None, *self._scores(row[column], f"layer {layer}")
                )
                for layer, row in enumerate(counters)
            ]
            for column in range(len(norms))
        ]
        cosine = torch.cat(cosines).mean().item() if changed else None
        return ProbedStack(executed, scored[0], self.final_norm, scored[1] if self.final_norm else None, cosine)

    def changes(
        self,
        texts: Texts,
        remove: bool = True,
        repeat: Sequence[int] = (2, 3),
    ) -> list[ChangedStack]:
        """Probe the top of every stack in which one block is left out, or runs several times in place.

        Args:
            texts: texts, or rows of token ids as [`encode`] makes them.
            remove: whether to leave each block out.
            repeat: how often to run each block, one stack for every number and block.

        Raises:
            ValueError: if there are no texts, a number is below 2, or the encoder's layers cannot be left out.
        """
        if any(isinstance(times, bool) or not isinstance(times, int) or times < 2 for times in repeat):
            raise ValueError(f"repeat={list(repeat)!r}: allowed are whole numbers from 2 on.")
        changes = [0, *repeat] if remove else list(repeat)
        blocks = range(self.num_blocks)
        if self.num_blocks == 1:
            changes = [times for times in changes if times]  # without its only block there is nothing left to read
        stacks = [
            (block, times, *self._planned([b for b in blocks for _ in range(times if b == block else 1)]))
            for times in changes
            for block in blocks
        ]
        counters = [self._counter() for _ in stacks]
        for batch, mask in self._batches(texts) if stacks else ():
            ids, special = self._tokens(batch, mask)
            with evaluating(self.model):
                original = read_states(self.encoder, batch)[0][-1][mask]
                for (_, _, encoder, _), counter in zip(stacks, counters, strict=True):
                    top = read_states(encoder, batch)[0][-1][mask]
                    self._count(counter, top, original, ids, special, through_norm=False)
        return [
            ChangedStack(block, times, executed, *self._scores(counter, f"block {block} run {times} times"))
            for (block, times, _, executed), counter in zip(stacks, counters, strict=True)
        ]

    def decode(self, text: str, plan: Sequence[int] | None = None) -> tuple[list[str], list[DecodedLayer]]:
        """What the output layer reads at each place of one text, in every layer (through the final norm, if any).

        Args:
            text: one text.
            plan: as in [`layers`].

        Returns:
            The text's tokens, and an entry a layer.

        Raises:
            ValueError: if the text has no tokens, or the plan cannot be executed.
        """
        encoder, executed = self._planned(plan)
        decoded = []
        (batch, mask), *_ = self._batches([text])
        ids = batch["input_ids"][mask]
        with evaluating(self.model):
            states, _ = read_states(encoder, batch)
            for layer, state in enumerate(states):
                best, probability, rank = [], [], []
                through_norm = layer < len(executed)
                for start in range(0, len(ids), self.chunk_size):
                    chunk = slice(start, start + self.chunk_size)
                    logits = self._logits(state[mask][chunk], through_norm)
                    own = logits.gather(1, ids[chunk, None])
                    best += logits.argmax(dim=1).tolist()
                    rank += (logits.shape[1] - (logits < own).sum(dim=1)).tolist()
                    probability += (own[:, 0] - logits.logsumexp(dim=1)).exp().tolist()
                block = executed[layer - 1] if layer else None
                decoded.append(DecodedLayer(layer, block, self._names(best), probability, rank))
        return self._names(ids.tolist()), decoded

    def check_plannable(self) -> None:
        """Raise a `ValueError` if this encoder's layers cannot be left out or repeated."""
        install_layer_plan(share_weights(self.encoder), list(range(self.num_blocks)))

    def encode(self, texts: Sequence[str], max_tokens: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """Turn texts into rows of token ids, as many whole rows as fit into `max_tokens` tokens (at least one).

        Texts without a token of their own are left out.

        Args:
            texts: texts, in the order in which to take them.
            max_tokens: most tokens in all, special ones included; no limit if not given.

        Returns:
            The rows, and how many of them were cut at `max_length`.

        Raises:
            ValueError: if `max_length` leaves no room beside the special tokens, or no text has a token.
        """
        added = self.tokenizer.num_special_tokens_to_add()
        if self.max_length <= added:
            raise ValueError(
                f"max_length={self.max_length}: allowed is more than the {added} special tokens of a text."
            )
        rows, total, cut = [], 0, 0
        for text in texts:
            row = self.tokenizer(text, truncation=True, max_length=self.max_length)
            size = len(row["input_ids"])
            if size <= added:
                continue
            if max_tokens is not None and rows and total + size > max_tokens:
                break
            rows.append({name: row[name] for name in self.tokenizer.model_input_names if name in row})
            total += size
            # Only a row that is full can have been cut.
            cut += size == self.max_length and len(self.tokenizer(text, verbose=False)["input_ids"]) > size
        if not rows:
            raise ValueError("texts: there is no text with a token in it.")
        return rows, cut

    # ---- how it is done ---------------------------------------------------------------------------------------------

    def _planned(self, plan: Sequence[int] | None) -> tuple[PreTrainedModel, list[int]]:
        """The encoder that runs a plan, on the model's own weights, and the plan spelled out."""
        blocks = list(range(self.num_blocks))
        if plan is None or list(plan) == blocks:
            return self.encoder, blocks
        plan = list(plan)
        if not plan or any(block not in blocks for block in plan):
            raise ValueError(f"plan={plan!r}: allowed is a non-empty list of blocks from 0 to {self.num_blocks - 1}.")
        encoder = share_weights(self.encoder)
        install_layer_plan(encoder, plan)
        return encoder.eval(), plan

    def _batches(self, texts: Texts) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Padded batches of texts of like length, and where they hold tokens."""
        rows = list(texts)
        if not rows or isinstance(rows[0], str):
            rows, _ = self.encode(rows)
        rows.sort(key=lambda row: -len(row["input_ids"]))
        for start in range(0, len(rows), self.batch_size):
            chosen = [dict(row) for row in rows[start : start + self.batch_size]]
            for row in chosen:
                row.setdefault("attention_mask", [1] * len(row["input_ids"]))
            batch = self.tokenizer.pad(chosen, return_tensors="pt", verbose=False)
            batch = {name: value.to(self.model.device) for name, value in batch.items()}
            yield batch, batch["attention_mask"].bool()

    def _tokens(self, batch: dict[str, torch.Tensor], mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = batch["input_ids"][mask]
        special = torch.tensor(self.tokenizer.all_special_ids, device=ids.device, dtype=ids.dtype)
        return ids, torch.isin(ids, special)

    def _logits(self, states: torch.Tensor, through_norm: bool) -> torch.Tensor:
        if through_norm and self.final_norm:
            states = self.encoder.get_submodule(self.final_norm)(states)
        return self.head(states).float()

    def _count(
        self,
        counter: ScoreCounter,
        states: torch.Tensor,
        reference: torch.Tensor,
        ids: torch.Tensor,
        special: torch.Tensor,
        through_norm: bool,
    ) -> None:
        for start in range(0, len(ids), self.chunk_size):
            chunk = slice(start, start + self.chunk_size)
            own = states[chunk]
            if through_norm and self.final_norm:
                own = self.encoder.get_submodule(self.final_norm)(own)
            counter.add(self.head(own), ids[chunk], special[chunk], _cosine(own, reference[chunk]))

    def _counter(self) -> ScoreCounter:
        return ScoreCounter(self.head.vocab_size, self.model.device)

    def _scores(self, counter: ScoreCounter, what: str) -> tuple[Scores, Scores]:
        try:
            return counter.scores()
        except ValueError as error:
            raise ValueError(f"{type(self.model).__name__}, {what}: {error}") from error

    def _names(self, ids: list[int]) -> list[str]:
        names = self.tokenizer.convert_ids_to_tokens(ids)
        # A model may have more rows than its tokenizer has tokens.
        return [name if isinstance(name, str) else f"<{i}>" for i, name in zip(ids, names, strict=True)]


def _cosine(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return cosine_similarity(one.float(), other.float(), dim=-1)
